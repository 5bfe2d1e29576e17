//! Holds that outlive a guard: you can store a handle, and use it in another process.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{Kind, Share};
use fairlock_proto::time::ServerTime;

use crate::backend::{AnyGuard, AnyLock};
use crate::client::LockClient;
use crate::driver::detached::DetachOutcome;
use crate::driver::lock::Caller;
use crate::driver::tried::Tried;
use crate::error::HoldError;
use crate::error::{Cause, LockError, OptionsError, Refusal, RequestError};
use crate::guard::LockGuard;
use crate::lock::caller;
use crate::semaphore::Permit;
use crate::store::error::SeveralServers;

/// A hold without a guard. [`LockGuard::detach`] makes one, and [`LockClient::attach`] turns it into a guard again, in
/// any process. For permits, there are [`Permit::detach`] and [`LockClient::attach_permit`].
///
/// A handle is a text of letters, digits and `_`, which a shell, JSON and the environment carry unchanged: see its
/// [`Display`](fmt::Display) and [`FromStr`], and the feature `serde`. It contains the name of the lock or the
/// semaphore, the prefix and the token, but neither a URL nor a password: the client that uses it brings the
/// connection. Nothing renews a handle. Its hold ends with its lease, as after a crash.
///
/// **Anyone who can connect to the server can use a handle** that they have read, or made: all it takes is the name,
/// the owner and the token, which the status of the lock shows. (The status of a guard's lock does not make a handle.)
/// But anyone who can connect can also force the lock. Mind this if a pipeline logs a handle.
///
/// ```
/// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
/// use fairlock::HoldHandle;
/// use std::time::Duration;
///
/// let guard = client.lock("deploy").lock().await?;
/// let text = guard.detach(Duration::from_secs(1800)).await?.to_string();
///
/// // Later, and elsewhere:
/// let handle: HoldHandle = text.parse()?;
/// let guard = client.attach(&handle).await?;
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HoldHandle {
    prefix: String,
    hold: Handle,
}

/// The version of the format. The parser reports any other version as such.
const VERSION: &str = "fairlock1";

impl HoldHandle {
    /// Whether it holds a lock ([`Kind::Lock`]) or permits ([`Kind::Semaphore`]).
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::Kind;
    ///
    /// let permit = client.semaphore("render", 5).acquire().await?;
    /// assert_eq!(permit.detach(std::time::Duration::from_secs(60)).await?.kind(), Kind::Semaphore);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.hold.kind
    }

    /// The name of the lock or the semaphore.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("deploy").lock().await?;
    /// assert_eq!(guard.detach(std::time::Duration::from_secs(60)).await?.name(), "deploy");
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hold.name
    }

    /// The fencing token of the hold. Detaching and attaching keep it, so a resource cannot distinguish the two
    /// processes.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("deploy").lock().await?;
    /// let token = guard.token();
    /// assert_eq!(guard.detach(std::time::Duration::from_secs(60)).await?.token(), token);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// The lease that [`detach`](LockGuard::detach) got, in whole milliseconds. Only the server knows how much of it is
    /// left.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// # use std::time::Duration;
    /// let guard = client.lock("deploy").lock().await?;
    /// assert_eq!(guard.detach(Duration::from_secs(60)).await?.lease(), Duration::from_secs(60));
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.hold.lease
    }

    #[cfg(feature = "_cli")]
    pub(crate) fn owner(&self) -> &str {
        &self.hold.owner
    }
}

impl fmt::Debug for HoldHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the owner: many people read a log, and the owner is enough to use the handle.
        f.debug_struct("HoldHandle").field("name", &self.name()).field("token", &self.token()).finish_non_exhaustive()
    }
}

impl fmt::Display for HoldHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Handle { kind, name, owner, token, lease, copies_until } = &self.hold;
        let parts = [&*self.prefix, name, owner].map(hex).join("_");
        let text = format!("{VERSION}_{parts}_{token}_{}_{}_{}", lease.as_millis(), copies_until.0, kind.word());
        write!(f, "{text}_{:08x}", checksum(&text))
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn text_of(hex: &str) -> Option<String> {
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| u8::try_from(16 * high + low).ok()).collect::<Option<_>>()?;
    if rest.is_empty() { String::from_utf8(bytes).ok() } else { None }
}

/// FNV-1a: finds a text that was cut or mistyped, but does not stop an attacker.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Why a text is not a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHandleError {
    /// It is not a handle, or not all of one.
    #[error("this is not a handle, or part of it is missing or changed")]
    Malformed,
    /// A newer version of fairlock made it.
    #[error("this handle has another format: use the version of fairlock that made it")]
    OtherVersion,
}

impl FromStr for HoldHandle {
    type Err = ParseHandleError;

    fn from_str(text: &str) -> Result<Self, ParseHandleError> {
        let version = text.split('_').next().unwrap_or_default();
        if version != VERSION {
            let number = version.strip_prefix("fairlock").unwrap_or_default();
            let is_a_version = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            return Err(if is_a_version { ParseHandleError::OtherVersion } else { ParseHandleError::Malformed });
        }
        Self::read(text).ok_or(ParseHandleError::Malformed)
    }
}

impl HoldHandle {
    fn read(text: &str) -> Option<Self> {
        let (parts, sum) = text.rsplit_once('_')?;
        let [_, prefix, name, owner, token, lease, copies_until, kind] = *parts.split('_').collect::<Vec<_>>() else {
            return None;
        };
        let hold = Handle {
            kind: Kind::of_word(kind)?,
            name: text_of(name)?,
            owner: text_of(owner)?.into(),
            token: token.parse().ok()?,
            lease: Duration::from_millis(lease.parse().ok()?),
            copies_until: ServerTime(copies_until.parse().ok()?),
        };
        let handle = Self { prefix: text_of(prefix)?, hold };
        // Each handle has one text, including the checksum.
        (handle.hold.is_well_formed() && sum.len() == 8 && handle.to_string() == text).then_some(handle)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for HoldHandle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for HoldHandle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why [`LockGuard::detach`] or [`Permit::detach`] failed, or does not know whether its handle holds anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError<G = LockGuard> {
    /// Nothing has happened, and the guard is as before.
    #[error("not detached: {reason}")]
    #[non_exhaustive]
    Refused {
        /// The guard, or the permit.
        guard: G,
        /// Why.
        reason: HoldError,
    },
    /// The server may have served the request. If it has, the handle holds the lock or the permits. If not, the client
    /// releases them. Use the handle like any other: [`attach`](LockClient::attach) and [`extend`](LockClient::extend)
    /// show whether it has the hold, and [`release`](LockClient::release) cleans up in either case. As long as the
    /// server may still serve the request, for at most an operation time-out, these calls ask again. If their time ends
    /// before that, they report that they do not know.
    #[error("no answer to the detach: {cause}; either the handle has the hold, or the client releases it")]
    #[non_exhaustive]
    Unanswered {
        /// The handle that has the hold, if the server detached it.
        handle: HoldHandle,
        /// Why the server did not answer.
        cause: Cause,
    },
}

/// Why [`LockClient::attach`], [`attach_permit`](LockClient::attach_permit), [`extend`](LockClient::extend) or
/// [`release`](LockClient::release) failed for a handle. A release that the server refused
/// [half-way](Refusal::in_script), or did not answer, may have happened: you can repeat it. After an attach that may
/// have happened, the client releases the hold as soon as the server answers.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// Only `attach`: the owner of this scope holds the lock or waits for it already. The client sent nothing.
    #[error("the owner of this scope already holds this lock or waits for it")]
    OwnerBusy,
    /// The handle is of another kind: [`attach`](LockClient::attach) takes a handle of a lock, and
    /// [`attach_permit`](LockClient::attach_permit) a handle of permits. The client sent nothing.
    #[error("this is a handle of {is}, not of {asked}")]
    #[non_exhaustive]
    OtherKind {
        /// The kind of the handle.
        is: Kind,
        /// The kind that the call attaches.
        asked: Kind,
    },
    /// Only `attach`: the server did not serve the call in time (see [`LockError::Unreachable`]), or before the client
    /// closed.
    #[error("no answer in time: {0}; if the attach still succeeds, the client releases the hold")]
    Unreachable(Cause),
    /// The server does not know the hold: its lease has expired, a call released, attached or forced it, or this is
    /// another server.
    #[error(
        "this handle holds nothing: its lease has ended, it was attached, released or forced, or this is another server"
    )]
    Lost,
    /// The handle has another prefix than the client.
    #[error("this handle has the prefix {prefix:?}, and this client has another one")]
    #[non_exhaustive]
    OtherPrefix {
        /// The prefix of the handle.
        prefix: String,
    },
    /// The client has [several servers](crate::masters).
    #[error("handles need one server: several masters do not support them")]
    SeveralServers,
    /// The lease does not fit the client's options.
    #[error("invalid lease: {0}")]
    Lease(OptionsError),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl From<SeveralServers> for HandleError {
    fn from(SeveralServers: SeveralServers) -> Self {
        Self::SeveralServers
    }
}

impl LockGuard {
    /// Sets a new lease that counts from now, for a hold [without renewal](crate::FairLock::with_lease) whose work
    /// takes longer than planned. One round trip, even for a nested guard: all nested guards share the hold.
    ///
    /// It never shortens the lease: if more is left, that stays. For a renewed hold, it bridges a time in which this
    /// process cannot renew, such as an expected pause. After that the client renews the hold as before.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| { tokio::time::pause();
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("report").with_lease(Duration::from_secs(60)).lock().await?;
    /// for _part in 0..10 {
    ///     tokio::time::sleep(Duration::from_secs(30)).await;
    ///     guard.extend(Duration::from_secs(60)).await?;
    /// }
    /// assert!(guard.is_valid());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HoldError`]. [`Lease`](HoldError::Lease): shorter or longer than a lease may be (see
    /// [`with_lease`](crate::FairLock::with_lease)), or beyond [`max_hold`](crate::LockClientBuilder::max_hold).
    /// [`Request`](HoldError::Request): the server refused, or did not answer within the operation time-out; the lock
    /// stays valid for as long as [`valid_for`](crate::Held::valid_for) returns.
    ///
    /// # Cancel safety
    /// If you drop the future, the server may have set the lease, but this guard does not rely on that.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.any().extend(lease).await
    }

    /// Ends this guard, but not its hold, which belongs to the returned handle from then on, for as long as `lease` and
    /// under the same token. One round trip.
    ///
    /// From the call on, [`is_valid`](crate::Held::is_valid) is false. Each [`Held`](crate::Held) of this guard ends as
    /// [`Ended::Detached`](crate::Ended::Detached). The client does not renew the handle: the lease has to last until
    /// another process attaches the handle, and may be shorter or longer than before.
    /// [`max_hold`](crate::LockClientBuilder::max_hold) limits neither this lease nor the lease that
    /// [`LockClient::extend`] sets for the handle.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use fairlock::Ended;
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("deploy").lock().await?;
    /// let held = guard.held();
    /// let handle = guard.detach(Duration::from_secs(1800)).await?;
    /// assert_eq!(held.ended().await, Ended::Detached);
    /// assert!(client.lock("deploy").is_locked().await?);
    /// client.release(&handle).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`DetachError::Refused`] returns the guard: other guards are nested with it, the lease does not fit, the client
    /// has lost the lock or has several servers, or it could send nothing within the operation time-out.
    /// [`DetachError::Unanswered`] returns the handle.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the hold in the background, even if the handle has it by then. If
    /// you keep the future without polling it, the call goes on: the handle then has the hold, which ends with its
    /// lease if no caller reads the handle.
    #[allow(clippy::result_large_err)] // the guard, which the caller gets back
    pub async fn detach(self, lease: Duration) -> Result<HoldHandle, DetachError> {
        detach(self.into_any(), lease, Self::new).await
    }
}

impl Permit {
    /// Ends this permit, but not its hold, which belongs to the returned handle from then on, with the same weight, for
    /// as long as `lease` and under the same token. One round trip. See [`LockGuard::detach`].
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let gate = client.semaphore("render", 5);
    /// let handle = gate.acquire_many(2).await?.detach(Duration::from_secs(1800)).await?;
    /// assert_eq!(gate.status().await?.used, 2);
    /// client.release(&handle).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`DetachError::Refused`] returns the permit: the lease does not fit, the client has lost the permits, or it
    /// could send nothing within the operation time-out. [`DetachError::Unanswered`] returns the handle.
    ///
    /// # Cancel safety
    /// Same as [`LockGuard::detach`].
    #[allow(clippy::result_large_err)] // the permit, which the caller gets back
    pub async fn detach(self, lease: Duration) -> Result<HoldHandle, DetachError<Self>> {
        detach(self.into_guard(), lease, Self::new).await
    }
}

/// `again` makes a guard for the caller again.
#[allow(clippy::result_large_err)]
async fn detach<G>(
    guard: AnyGuard,
    lease: Duration,
    again: impl Fn(AnyGuard) -> G,
) -> Result<HoldHandle, DetachError<G>> {
    let prefix = guard.prefix();
    match guard.detach(lease).await {
        DetachOutcome::Detached(hold) => Ok(HoldHandle { prefix, hold }),
        DetachOutcome::Unanswered(hold, cause) => {
            Err(DetachError::Unanswered { handle: HoldHandle { prefix, hold }, cause })
        }
        DetachOutcome::Refused(guard, reason) => Err(DetachError::Refused { guard: again(guard), reason }),
    }
}

impl LockClient {
    /// Turns a handle into a guard: from then on the owner of this [scope](crate::owner::scope), or a new owner, has
    /// the hold under the same token, and the client renews it with [its lease](crate::LockClientBuilder::lease). One
    /// round trip.
    ///
    /// This uses the handle up: a second attach is [`Lost`](HandleError::Lost), unless a failover has lost the first
    /// one, even with [`strict_restart`](crate::LockClientBuilder::strict_restart). In that case both rely on the hold
    /// until the first one learns of it. A lease that [`extend`](Self::extend) has set for the handle ends with the
    /// attach. Nothing notifies a process that uses the handle without attaching it, and it has the same token.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("deploy").lock().await?;
    /// let token = guard.token();
    /// let handle = guard.detach(Duration::from_secs(1800)).await?;
    /// let guard = client.attach(&handle).await?;
    /// assert_eq!(guard.token(), token);
    /// assert!(client.attach(&handle).await.is_err());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HandleError`]. After an error, nothing is attached. A handle of permits is
    /// [`OtherKind`](HandleError::OtherKind): see [`attach_permit`](Self::attach_permit).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases in the background the hold that it may have attached. If the server
    /// has not served the call, the handle is as before. The client also releases the hold if you do not poll this
    /// future for a whole lease; the call then returns [`HandleError::Lost`].
    pub async fn attach(&self, handle: &HoldHandle) -> Result<LockGuard, HandleError> {
        self.take_up(handle, Kind::Lock, caller()).await.map(LockGuard::new)
    }

    /// Turns a handle of permits into a permit, which has all of them from then on under the same token. The client
    /// renews it with [its lease](crate::LockClientBuilder::lease). One round trip. Like [`attach`](Self::attach), but
    /// the owner is always a new one, even in a [scope](crate::owner::scope): permits do not nest.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let permit = client.semaphore("render", 5).acquire_many(2).await?;
    /// let handle = permit.detach(Duration::from_secs(1800)).await?;
    /// let permit = client.attach_permit(&handle).await?;
    /// assert_eq!((permit.weight(), permit.token()), (2, handle.token()));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HandleError`]; `OwnerBusy` does not occur here. After an error, nothing is attached.
    ///
    /// # Cancel safety
    /// Same as `attach`.
    pub async fn attach_permit(&self, handle: &HoldHandle) -> Result<Permit, HandleError> {
        self.take_up(handle, Kind::Semaphore, Caller::of(None)).await.map(Permit::new)
    }

    async fn take_up(&self, handle: &HoldHandle, asked: Kind, caller: Caller) -> Result<AnyGuard, HandleError> {
        let lock = self.lock_of(handle)?;
        if handle.kind() != asked {
            return Err(HandleError::OtherKind { is: handle.kind(), asked });
        }
        let lock = lock.at_server()?;
        if lock.context().closing.is_cancelled() {
            return Err(RequestError::Closed.into());
        }
        Err(match lock.attach(caller, &handle.hold).await {
            Ok(Tried::Acquired(guard)) => return Ok(AnyGuard::One(guard)),
            Ok(Tried::Busy(_)) => HandleError::OwnerBusy,
            Err(LockError::Lost | LockError::Name(_)) => HandleError::Lost,
            Err(LockError::Lease(error) | LockError::Label(error)) => HandleError::Lease(error),
            // A transient refusal: the client asked again until the call's time ended.
            Err(LockError::Unreachable(cause)) => match cause.downcast_ref::<Refusal>() {
                Some(refusal) => RequestError::Refused(refusal.clone()).into(),
                None => HandleError::Unreachable(cause),
            },
            Err(LockError::Refused(refusal)) => RequestError::Refused(refusal).into(),
            Err(LockError::RuntimeGone) => RequestError::RuntimeGone.into(),
            // The client closed in the meantime, and the server may have served the request. Other errors do not occur
            // here.
            Err(error) => HandleError::Unreachable(Arc::new(error)),
        })
    }

    /// Sets a new lease that counts from now, for the hold of a handle of either kind. One round trip. It never
    /// shortens the lease, and leaves the handle usable. [`max_hold`](crate::LockClientBuilder::max_hold) does not
    /// limit it.
    ///
    /// Any process with the handle may call this: a job that watches over others, or the process that got the handle
    /// and does not attach it.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let handle = client.lock("deploy").lock().await?.detach(Duration::from_secs(60)).await?;
    /// client.extend(&handle, Duration::from_secs(3600)).await?;
    /// # client.release(&handle).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HandleError`]. [`Lost`](HandleError::Lost) is final.
    ///
    /// # Cancel safety
    /// If you drop the future, the server may have set the lease.
    pub async fn extend(&self, handle: &HoldHandle, lease: Duration) -> Result<(), HandleError> {
        let lock = self.lock_of(handle)?;
        let lock = lock.at_server()?;
        let options = lock.context().options();
        options.check_lease("the lease of extend", lease).map_err(HandleError::Lease)?;
        known(lock.extend_handle(&handle.hold, lease).await)
    }

    /// Releases the hold of a handle of either kind, without attaching it first: the next in line get it, or the name
    /// is free. One round trip.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// use std::time::Duration;
    ///
    /// let handle = client.lock("deploy").lock().await?.detach(Duration::from_secs(60)).await?;
    /// client.release(&handle).await?;
    /// assert!(!client.lock("deploy").is_locked().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// See [`HandleError`]. [`Lost`](HandleError::Lost): there was nothing to release. If a first answer got lost on
    /// the way, `Ok` means that the handle holds nothing now, for whatever reason.
    ///
    /// # Cancel safety
    /// If you drop the future, the server may have released it. You may call it again.
    pub async fn release(&self, handle: &HoldHandle) -> Result<(), HandleError> {
        let lock = self.lock_of(handle)?;
        let lock = lock.at_server()?;
        known(lock.release_handle(&handle.hold).await)
    }

    fn lock_of(&self, handle: &HoldHandle) -> Result<AnyLock, HandleError> {
        // The server knows how many permits the handle has.
        let lock = self.backend().lock(handle.kind(), Share::LOCK, &handle.hold.name);
        let at_server = lock.at_server()?;
        if at_server.context().options().prefix != handle.prefix {
            return Err(HandleError::OtherPrefix { prefix: handle.prefix.clone() });
        }
        Ok(lock)
    }
}

/// `false` means that the handle holds nothing.
fn known(outcome: Result<bool, RequestError>) -> Result<(), HandleError> {
    if outcome? { Ok(()) } else { Err(HandleError::Lost) }
}
