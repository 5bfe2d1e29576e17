//! The error into which all others convert, and its kinds.

use crate::driver::tried::Busy;
use crate::error::{
    CloseError, ConnectError, ConnectionInfoError, HoldError, LockError, Loss, NameError, OptionsError, Refusal,
    RequestError, UnlockAllError, UnlockError, WithError,
};
use crate::handle::{DetachError, HandleError, ParseHandleError};

/// Any error of this library, for functions that use more than one part of it. `?` converts all other errors into it.
///
/// The error of a single call has more detail: match on it if you can. Converting it drops any value it carries: the
/// output of a section ([`WithError`]), or the guard or the handle of a detach ([`DetachError`](crate::DetachError)). A
/// dropped guard releases its hold.
///
/// ```no_run
/// use std::time::Duration;
///
/// use fairlock::{Error, ErrorKind, LockClient};
///
/// async fn work() -> Result<(), Error> {
///     let client = LockClient::connect("redis://127.0.0.1/").await?;
///     let guard = client.lock("orders:42").lock().await?;
///     guard.extend(Duration::from_secs(60)).await?;
///     let handle = guard.detach(Duration::from_secs(600)).await?;
///     client.attach(&handle).await?.unlock().await?;
///     Ok(client.close().await?)
/// }
///
/// # async fn example() {
/// match work().await {
///     Ok(()) => {}
///     Err(error) if error.is_retryable() => println!("later again: {error}"),
///     Err(error) if error.kind() == ErrorKind::Misuse => panic!("a bug of ours: {error}"),
///     Err(error) => println!("it needs somebody: {error}"),
/// }
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// [`connect`](crate::LockClient::connect) failed.
    Connect(#[from] ConnectError),
    /// A call acquired nothing.
    Lock(#[from] LockError),
    /// Others have it, and the call does not wait: [`Tried::into_result`](crate::Tried::into_result).
    Busy(#[from] Busy),
    /// An unlock, or the release of a permit, failed.
    Unlock(#[from] UnlockError),
    /// The unlock of several names failed.
    UnlockAll(#[from] UnlockAllError),
    /// A guard could not extend, shrink, downgrade, detach or keep its hold.
    Hold(#[from] HoldError),
    /// A call by a handle failed.
    Handle(#[from] HandleError),
    /// The text is not a handle.
    ParseHandle(#[from] ParseHandleError),
    /// A single request failed, such as `status` or `force_unlock`.
    Request(#[from] RequestError),
    /// [`close`](crate::LockClient::close) could not finish in time.
    Close(#[from] CloseError),
}

/// The category of an error, by how a caller can react. See [`Error::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Others held it until the call timed out. Nothing is wrong.
    Timeout,
    /// Others have it, or the queue is full, and the call did not wait. Nothing is wrong.
    Busy,
    /// The server did not answer in time, so the outcome may be unknown, or it refused for a reason that
    /// [may pass](crate::Refusal::may_pass), such as loading its data. The problem may pass on its own.
    Unreachable,
    /// The server refused. Someone must fix the server or its ACL.
    Refused,
    /// The hold is lost, or the handle holds nothing. Stop the work that relied on it.
    Lost,
    /// The client is closed, or its runtime has ended.
    Closed,
    /// The call or the configuration is wrong: a retry fails too.
    Misuse,
}

impl Error {
    /// Returns the category of the error.
    ///
    /// ```
    /// use fairlock::{Error, ErrorKind, LockError, Loss, UnlockError};
    ///
    /// assert_eq!(Error::from(LockError::Closed).kind(), ErrorKind::Closed);
    /// assert_eq!(Error::from(UnlockError::Lost(Loss::Expired)).kind(), ErrorKind::Lost);
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Connect(error) => of_connect(error),
            Self::Lock(error) => of_lock(error),
            Self::Busy(_) => ErrorKind::Busy,
            Self::Unlock(error) => of_unlock(error),
            Self::UnlockAll(error) => of_unlock(&error.first),
            Self::Hold(error) => of_hold(error),
            Self::Handle(error) => of_handle(error),
            Self::ParseHandle(_) => ErrorKind::Misuse,
            Self::Request(error) => of_request(error),
            Self::Close(_) => ErrorKind::Unreachable,
        }
    }

    /// Whether the same call may succeed later without anyone changing anything, and does no harm even if the server
    /// carried out the first one. A `force_unlock` without an answer is not retryable: a second one could end the next
    /// holder's hold. Nor is an unlock: the client already repeats it.
    ///
    /// Errors about a guard are not retryable either: its work has begun, and a loop around the whole job would run it
    /// twice. An error of a single request does not know its call: you may repeat a `status` without an answer,
    /// although this returns `false`.
    ///
    /// ```
    /// use fairlock::{Error, LockError};
    ///
    /// assert!(!Error::from(LockError::Closed).is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lock(error) => error.is_retryable(),
            Self::Busy(_) => true,
            Self::Connect(_) => self.kind() == ErrorKind::Unreachable,
            Self::Handle(HandleError::Unreachable(_)) => true,
            Self::Request(error) | Self::Handle(HandleError::Request(error)) => match error {
                RequestError::NotSent(_) => true,
                RequestError::Refused(refusal) => refusal.may_pass(),
                _ => false,
            },
            _ => false,
        }
    }
}

impl<T, S: std::error::Error + Into<Error> + 'static> From<WithError<T, S>> for Error {
    fn from(error: WithError<T, S>) -> Self {
        match error {
            WithError::Lock(error) => error.into(),
            WithError::Unlock { source, .. } => source.into(),
        }
    }
}

impl<T, E: From<Error>, S: std::error::Error + Into<Error> + 'static> WithError<Result<T, E>, S> {
    /// For a section that returns a `Result`. The section's error takes precedence over the unlock's.
    pub(crate) fn flatten(outcome: Result<Result<T, E>, Self>) -> Result<T, E> {
        match outcome {
            Ok(output) | Err(Self::Unlock { output: output @ Err(_), .. }) => output,
            Err(error) => Err(Error::from(error).into()),
        }
    }
}

impl<G> From<DetachError<G>> for Error {
    fn from(error: DetachError<G>) -> Self {
        match error {
            DetachError::Refused { reason, .. } => reason.into(),
            DetachError::Unanswered { cause, .. } => RequestError::Unanswered(cause).into(),
        }
    }
}

impl From<OptionsError> for Error {
    fn from(error: OptionsError) -> Self {
        ConnectError::from(error).into()
    }
}

impl From<ConnectionInfoError> for Error {
    fn from(error: ConnectionInfoError) -> Self {
        ConnectError::from(error).into()
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        LockError::from(error).into()
    }
}

/// A downgrade returns the loss itself.
impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        HoldError::Lost(loss).into()
    }
}

fn of_connect(error: &ConnectError) -> ErrorKind {
    match error {
        ConnectError::CredentialsProvider(_) | ConnectError::CertificatesProvider(_) => ErrorKind::Unreachable,
        ConnectError::Server { cause, .. } => of_connect(cause),
        error if error.may_pass() => ErrorKind::Unreachable,
        ConnectError::Credentials(_)
        | ConnectError::SentinelCredentials { .. }
        | ConnectError::Certificate { .. }
        | ConnectError::Rights { .. }
        | ConnectError::Refused(_) => ErrorKind::Refused,
        _ => ErrorKind::Misuse,
    }
}

fn of_lock(error: &LockError) -> ErrorKind {
    match error {
        LockError::Timeout { .. } => ErrorKind::Timeout,
        LockError::QueueFull { .. } => ErrorKind::Busy,
        LockError::Unreachable(_) => ErrorKind::Unreachable,
        LockError::Refused(refusal) => of_refusal(refusal),
        LockError::Lost => ErrorKind::Lost,
        LockError::Closed | LockError::RuntimeGone => ErrorKind::Closed,
        LockError::SelfWait
        | LockError::WouldDeadlock
        | LockError::Name(_)
        | LockError::Lease(_)
        | LockError::Label(_)
        | LockError::Permits { .. }
        | LockError::SeveralServers => ErrorKind::Misuse,
    }
}

fn of_unlock(error: &UnlockError) -> ErrorKind {
    match error {
        UnlockError::Lost(_) => ErrorKind::Lost,
        UnlockError::Refused { refusal, .. } => of_refusal(refusal),
        UnlockError::Unknown { .. } => ErrorKind::Unreachable,
        UnlockError::RuntimeGone { .. } => ErrorKind::Closed,
    }
}

fn of_hold(error: &HoldError) -> ErrorKind {
    match error {
        HoldError::Lost(_) => ErrorKind::Lost,
        HoldError::Request(error) => of_request(error),
        HoldError::Lease(_) | HoldError::Nested(_) | HoldError::Permits { .. } | HoldError::SeveralServers => {
            ErrorKind::Misuse
        }
    }
}

fn of_handle(error: &HandleError) -> ErrorKind {
    match error {
        HandleError::Unreachable(_) => ErrorKind::Unreachable,
        HandleError::Lost => ErrorKind::Lost,
        HandleError::Request(error) => of_request(error),
        HandleError::OwnerBusy
        | HandleError::OtherKind { .. }
        | HandleError::OtherPrefix { .. }
        | HandleError::SeveralServers
        | HandleError::Lease(_) => ErrorKind::Misuse,
    }
}

fn of_refusal(refusal: &Refusal) -> ErrorKind {
    if refusal.may_pass() { ErrorKind::Unreachable } else { ErrorKind::Refused }
}

fn of_request(error: &RequestError) -> ErrorKind {
    match error {
        RequestError::NotSent(_) | RequestError::Unanswered(_) => ErrorKind::Unreachable,
        RequestError::Refused(refusal) => of_refusal(refusal),
        RequestError::Closed | RequestError::RuntimeGone => ErrorKind::Closed,
        RequestError::Name(_) | RequestError::SeveralServers => ErrorKind::Misuse,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::error::Cause;

    fn cause() -> Cause {
        Arc::new(std::io::Error::other("the cable is cut"))
    }

    #[test]
    fn each_kind_says_what_a_caller_can_do() {
        let refusal = Refusal::new("NOPERM", "no permission");
        let unknown = UnlockError::Unknown { until: Instant::now(), cause: cause() };
        let cases: [(Error, ErrorKind); 15] = [
            (LockError::Timeout { holder: None }.into(), ErrorKind::Timeout),
            (LockError::QueueFull { waiters: 7 }.into(), ErrorKind::Busy),
            (Busy::default().into(), ErrorKind::Busy),
            (LockError::Unreachable(cause()).into(), ErrorKind::Unreachable),
            (LockError::Refused(refusal.clone()).into(), ErrorKind::Refused),
            (LockError::SelfWait.into(), ErrorKind::Misuse),
            (NameError::Empty.into(), ErrorKind::Misuse),
            (
                ConnectError::Unreachable { address: "127.0.0.1:1".into(), cause: cause() }.into(),
                ErrorKind::Unreachable,
            ),
            (ConnectError::Credentials(refusal).into(), ErrorKind::Refused),
            (ConnectionInfoError::Insecure.into(), ErrorKind::Misuse),
            (UnlockError::Lost(Loss::Expired).into(), ErrorKind::Lost),
            (unknown.into(), ErrorKind::Unreachable),
            (Loss::Forced.into(), ErrorKind::Lost),
            (HandleError::Lost.into(), ErrorKind::Lost),
            (RequestError::Closed.into(), ErrorKind::Closed),
        ];
        for (error, kind) in cases {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    /// A second run may do harm: it could end the next owner's hold.
    #[test]
    fn what_may_have_run_is_not_retryable() {
        assert!(Error::from(RequestError::NotSent(cause())).is_retryable());
        assert!(!Error::from(RequestError::Unanswered(cause())).is_retryable());
        // A retry of the whole job would run it twice: `unlock_at_least` has ended the guard.
        assert!(!Error::from(HoldError::Request(RequestError::NotSent(cause()))).is_retryable());
        assert!(!Error::from(UnlockError::Unknown { until: Instant::now(), cause: cause() }).is_retryable());
        assert!(Error::from(LockError::Unreachable(cause())).is_retryable());
    }

    /// A loop by `is_retryable` gave up on a server that was loading its data.
    #[test]
    fn a_refusal_that_may_pass_is_retryable() {
        let refused = |code: &str| Refusal::new(code, "not now");
        for (code, kind) in [("LOADING", ErrorKind::Unreachable), ("NOPERM", ErrorKind::Refused)] {
            let is_retryable = kind == ErrorKind::Unreachable;
            let errors: [Error; 2] =
                [ConnectError::Refused(refused(code)).into(), RequestError::Refused(refused(code)).into()];
            for error in errors {
                assert_eq!((error.kind(), error.is_retryable()), (kind, is_retryable), "{error:?}");
            }
        }
        assert!(Error::from(ConnectError::ReadOnly).is_retryable());
    }

    /// Converting drops the section's output or the guard, and keeps the reason.
    #[test]
    fn an_error_that_carries_something_keeps_its_reason() {
        let lost = WithError::Unlock { output: 7, source: UnlockError::Lost(Loss::Expired) };
        assert!(matches!(Error::from(lost), Error::Unlock(UnlockError::Lost(Loss::Expired))));
        let refused = DetachError::Refused { guard: (), reason: HoldError::Nested(2) };
        assert!(matches!(Error::from(refused), Error::Hold(HoldError::Nested(2))));
    }
}
