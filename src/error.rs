//! The errors of the public API.
//!
//! The variants distinguish three cases, since a caller reacts differently to each: *others hold it*, *you lost it*,
//! and *we do not know*. The client never reports a failed connection as "not acquired".

pub use crate::driver::outcome::{Ended, HoldError, LockError, Loss, UnlockError};

pub use crate::store::error::{Cause, ConnectError, ConnectionInfoError, NameError, Refusal, RequestError};
pub use crate::store::options::OptionsError;

/// Why [`with`](crate::FairLock::with) failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WithError<T, S = UnlockError>
where
    S: std::error::Error + 'static,
{
    /// The call did not acquire the lock, and the section did not run.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The section ran to its end, but the client cannot be sure that it held the lock until then.
    #[error("the section ran, but the lock may have been lost before it ended")]
    #[non_exhaustive]
    Unlock {
        /// The value that the section returned.
        output: T,
        /// The error of the unlock.
        #[source]
        source: S,
    },
}

/// The locks that [`AllGuard::unlock`](crate::AllGuard::unlock) may have lost before it released them. It has released
/// all others.
#[derive(Debug, Clone, thiserror::Error)]
#[error("may have been lost before they were unlocked: {}", failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "))]
#[non_exhaustive]
pub struct UnlockAllError {
    /// The first error, by name.
    #[source]
    pub first: UnlockError,
    /// Each of these names with its error, sorted by name.
    pub failed: Vec<(String, UnlockError)>,
}

/// [`close`](crate::LockClient::close) could not finish in time. Leases and places expire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "servers without an answer: {servers}; releases or leaves without one: {unfinished}; what they left ends with its lease"
)]
#[non_exhaustive]
pub struct CloseError {
    /// How many releases or leaves got no answer; with several servers, also the probes of the silent servers. Without
    /// a connection, the client may have sent none of them.
    pub unfinished: usize,
    /// How many servers did not answer all requests in time: 1, unless the client has [several](crate::masters).
    pub servers: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Every message of the chain, the outermost first.
    fn chain(error: &dyn Error) -> Vec<String> {
        let inner = error.source().map_or_else(Vec::new, chain);
        std::iter::once(error.to_string()).chain(inner).collect()
    }

    #[test]
    fn a_printed_error_chain_says_nothing_twice() {
        let cause: Cause = Arc::new(std::io::Error::other("the cable is cut"));
        let refusal = Refusal::new("OOM", "out of memory");
        let option = OptionsError::OutOfRange { option: "lease", value: Duration::ZERO };
        let lost = UnlockError::Lost(Loss::Forced);
        let errors: Vec<Box<dyn Error>> = vec![
            Box::new(ConnectError::Options(option.clone())),
            Box::new(ConnectError::Unreachable { address: "127.0.0.1:1".into(), cause: cause.clone() }),
            Box::new(ConnectError::Credentials(refusal.clone())),
            Box::new(ConnectError::CredentialsProvider(cause.clone())),
            Box::new(ConnectError::CertificatesProvider(cause.clone())),
            Box::new(ConnectError::ConnectionInfo(ConnectionInfoError::Insecure)),
            Box::new(ConnectError::Refused(refusal.clone())),
            Box::new(ConnectError::Credentials(refusal.clone()).of_server("redis://127.0.0.1:1/".into())),
            Box::new(RequestError::Name(NameError::Empty)),
            Box::new(RequestError::NotSent(cause.clone())),
            Box::new(RequestError::Unanswered(cause.clone())),
            Box::new(RequestError::Refused(refusal.clone())),
            Box::new(LockError::Name(NameError::Empty)),
            Box::new(LockError::Lease(option)),
            Box::new(LockError::Unreachable(cause.clone())),
            Box::new(LockError::Refused(refusal.clone())),
            Box::new(UnlockError::Refused { refusal: refusal.clone(), until: Instant::now() }),
            Box::new(UnlockError::Unknown { until: Instant::now(), cause: cause.clone() }),
            Box::new(UnlockAllError { first: lost.clone(), failed: vec![("orders:42".into(), lost.clone())] }),
            Box::new(WithError::<()>::Lock(LockError::Timeout { holder: None })),
            Box::new(WithError::Unlock { output: (), source: lost }),
        ];
        for error in errors {
            let messages = chain(error.as_ref());
            for (index, inner) in messages.iter().enumerate().skip(1) {
                assert!(messages[..index].iter().all(|outer| !outer.contains(inner.as_str())), "{messages:?}");
            }
        }
    }

    #[test]
    fn each_cause_is_said() {
        let cause: Cause = Arc::new(std::io::Error::other("the cable is cut"));
        let connect = ConnectError::Unreachable { address: "127.0.0.1:1".into(), cause: cause.clone() };
        let (of_lock, not_sent) = (LockError::Unreachable(cause.clone()), RequestError::NotSent(cause.clone()));
        let unanswered = RequestError::Unanswered(cause.clone());
        let unknown = UnlockError::Unknown { until: Instant::now(), cause };
        // In the first line, since a log or a 503 shows only that.
        for error in [&connect as &dyn Error, &of_lock, &not_sent, &unanswered, &unknown] {
            assert!(error.to_string().contains("the cable is cut"), "{error}");
        }
    }
}
