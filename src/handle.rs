//! Holds that outlive a guard: a handle can be stored, and used in another process.

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

/// A hold without a guard: what [`LockGuard::detach`] makes, and [`LockClient::attach`] takes up again, in any process. Of permits:
/// [`Permit::detach`] and [`LockClient::attach_permit`].
///
/// It is a text of letters, digits and `_`, which a shell, JSON and the environment carry unchanged: see its
/// [`Display`](fmt::Display) and [`FromStr`], and the feature `serde`. It names the lock or the semaphore, its prefix and its token, and
/// has no URL and no password: the client that uses it brings the connection. It is not renewed. What it holds is free when
/// its lease ends, as after a crash.
///
/// **Whoever can connect to the server can spend a handle** that they have read, or made: name, owner and token, which the status of the
/// lock shows, are all that it takes. (Those of a guard make no handle.) Whoever can connect can force the lock too. Mind that in the log
/// of a pipeline.
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

/// The format. Another one is refused by name.
const VERSION: &str = "fairlock1";

impl HoldHandle {
    /// What it holds: [`Kind::Lock`], or [`Kind::Semaphore`] if it has permits.
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

    /// The name of the lock, or of the semaphore.
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

    /// The fencing token of the hold. Detaching and attaching keep it, so a resource cannot tell the two processes apart.
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

    /// The lease that [`detach`](LockGuard::detach) was given, in whole milliseconds. How much of it is left only the server knows.
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
        // Not the owner: a log is read by many, and the owner is enough to spend the handle.
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

/// FNV-1a. Against a text that was cut or mistyped, not against anybody.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Why a text is no handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHandleError {
    /// It is no handle, or not all of one.
    #[error("this is no handle, or a part of it is missing or changed")]
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
        // One text for each handle, with the checksum of it.
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

/// Why [`LockGuard::detach`] or [`Permit::detach`] has no handle to return, or does not know what it holds.
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
    /// The server may have served it. If it has, the handle holds the lock or the permits. If not, the client releases them. Use the
    /// handle as any other: [`attach`](LockClient::attach) and [`extend`](LockClient::extend) show which it was, and
    /// [`release`](LockClient::release) leaves nothing behind either way. As long as the request may still be served, for an
    /// operation time-out at most, they ask again, and say that they do not know when their time is over.
    #[error("no answer to the detach: {cause}; the handle has the hold, or it is given back")]
    #[non_exhaustive]
    Unanswered {
        /// What has the hold, if it was detached.
        handle: HoldHandle,
        /// Why there is no answer.
        cause: Cause,
    },
}

/// Why [`LockClient::attach`], [`attach_permit`](LockClient::attach_permit), [`extend`](LockClient::extend) or
/// [`release`](LockClient::release) by a handle failed. A release that was refused [half-way](Refusal::in_script), or has no answer, may have
/// released: it can be repeated. What an attach may have attached is released as soon as the server answers.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// Only `attach`: the owner of this scope holds the lock or waits for it already. Nothing was sent.
    #[error("the owner of this scope holds this lock or waits for it already")]
    OwnerBusy,
    /// The handle is of another kind: [`attach`](LockClient::attach) takes the handle of a lock, and
    /// [`attach_permit`](LockClient::attach_permit) that of permits. Nothing was sent.
    #[error("this is the handle of {is}, and not of {asked}")]
    #[non_exhaustive]
    OtherKind {
        /// That of the handle.
        is: Kind,
        /// What the call attaches.
        asked: Kind,
    },
    /// Only `attach`: not served in time, as [`LockError::Unreachable`], or before the client was closed.
    #[error("not served in time: {0}; what may have been attached is released as soon as the server answers")]
    Unreachable(Cause),
    /// The server does not know the hold: its lease is over, it was released, attached or ended by force; or it is another
    /// server.
    #[error(
        "this handle holds nothing: its lease is over, it was attached, released or forced, or this is another server"
    )]
    Lost,
    /// The handle is of another prefix.
    #[error("this handle is of the prefix {prefix:?}, which is not that of this client")]
    #[non_exhaustive]
    OtherPrefix {
        /// That of the handle.
        prefix: String,
    },
    /// The client has [several servers](crate::masters).
    #[error("a client of several servers has no handles")]
    SeveralServers,
    /// The lease does not fit the client's options.
    #[error("the lease does not fit: {0}")]
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
    /// Sets a new lease from now on, for a hold [that is not renewed](crate::FairLock::with_lease) and whose work takes longer than
    /// planned. One round trip, also where the guard is nested, whose hold all its guards share.
    ///
    /// It never shortens: where more is left, that stays. For a renewed hold it bridges a time in which this process cannot renew,
    /// as when it is about to stand still; afterwards it is renewed as before.
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
    /// See [`HoldError`]. [`Lease`](HoldError::Lease): shorter or longer than a lease may be
    /// ([`with_lease`](crate::FairLock::with_lease) says what that is), or beyond [`max_hold`](crate::LockClientBuilder::max_hold).
    /// [`Request`](HoldError::Request): refused, or no answer within the operation time-out; the lock is valid for as long as
    /// [`valid_for`](crate::Held::valid_for) says.
    ///
    /// # Cancel safety
    /// Dropped, it may have set the lease on the server, which this guard then does not rely on.
    pub async fn extend(&self, lease: Duration) -> Result<(), HoldError> {
        self.any().extend(lease).await
    }

    /// Ends this guard, but not the hold: that belongs to the returned handle from then on, for as long as the lease says and
    /// under the same token. One round trip.
    ///
    /// From the call on [`is_valid`](crate::Held::is_valid) is false. Each [`Held`](crate::Held) of this guard ends as
    /// [`Ended::Detached`](crate::Ended::Detached). The handle is not renewed: the lease has to cover the way to the
    /// process that takes it up, and may be shorter or longer than before. [`max_hold`](crate::LockClientBuilder::max_hold) does not
    /// limit it, nor what [`LockClient::extend`] sets for the handle.
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
    /// [`DetachError::Refused`] returns the guard: it is one of several that are nested, the lease does not fit, the lock is lost, the client
    /// has several servers, or nothing could be sent within the operation time-out. [`DetachError::Unanswered`] returns the handle.
    ///
    /// # Cancel safety
    /// Dropped, the hold is released in the background, also if the handle has it by then. Not polled, it goes on: the handle has
    /// the hold then, and ends with its lease if no caller reads it.
    #[allow(clippy::result_large_err)] // the guard, which the caller gets back
    pub async fn detach(self, lease: Duration) -> Result<HoldHandle, DetachError> {
        detach(self.into_any(), lease, Self::new).await
    }
}

impl Permit {
    /// Ends this permit, but not what it holds: that belongs to the returned handle from then on, with the same weight, for as long
    /// as the lease says and under the same token. One round trip. As [`LockGuard::detach`].
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
    /// [`DetachError::Refused`] returns the permit: the lease does not fit, the permit is lost, or nothing could be sent within the
    /// operation time-out. [`DetachError::Unanswered`] returns the handle.
    ///
    /// # Cancel safety
    /// As for [`LockGuard::detach`].
    #[allow(clippy::result_large_err)] // the permit, which the caller gets back
    pub async fn detach(self, lease: Duration) -> Result<HoldHandle, DetachError<Self>> {
        detach(self.into_guard(), lease, Self::new).await
    }
}

/// `again`: the guard as it was.
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
    /// Takes up what a handle holds: the owner of this [scope](crate::owner::scope), or a new one, has it from then on, under the
    /// same token, and it is renewed with [this client's lease](crate::LockClientBuilder::lease). One round trip.
    ///
    /// It spends the handle: a second attach is [`Lost`](HandleError::Lost), unless a failover has lost the first one, also
    /// with [`strict_restart`](crate::LockClientBuilder::strict_restart). Then both rely on it until the first one hears. What [`extend`](Self::extend) has promised for the
    /// handle ends with it. A process that has it and did not attach is not notified, and has the same token.
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
    /// See [`HandleError`]. Nothing is attached then. A handle of permits is [`OtherKind`](HandleError::OtherKind): see
    /// [`attach_permit`](Self::attach_permit).
    ///
    /// # Cancel safety
    /// Dropped, it releases in the background what it may have attached. If it was not served, the handle is as before. The client
    /// releases what it has attached if this future is not polled within 250 ms.
    pub async fn attach(&self, handle: &HoldHandle) -> Result<LockGuard, HandleError> {
        self.take_up(handle, Kind::Lock, caller()).await.map(LockGuard::new)
    }

    /// Takes up the permits that a handle has: all of them, under the same token, and they are renewed with
    /// [this client's lease](crate::LockClientBuilder::lease). One round trip. As [`attach`](Self::attach), but its owner is a new one,
    /// also in a [scope](crate::owner::scope): a permit is never re-entered.
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
    /// See [`HandleError`]; `OwnerBusy` does not occur here. Nothing is attached then.
    ///
    /// # Cancel safety
    /// As for `attach`.
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
            // A transient refusal: it was asked again until the time of the call was over.
            Err(LockError::Unreachable(cause)) => match cause.downcast_ref::<Refusal>() {
                Some(refusal) => RequestError::Refused(refusal.clone()).into(),
                None => HandleError::Unreachable(cause),
            },
            Err(LockError::Refused(refusal)) => RequestError::Refused(refusal).into(),
            Err(LockError::RuntimeGone) => RequestError::RuntimeGone.into(),
            // Closed meanwhile: the request may have been served. The others do not occur here.
            Err(error) => HandleError::Unreachable(Arc::new(error)),
        })
    }

    /// Sets a new lease for what a handle of either kind holds, from now on. One round trip. It never shortens, leaves the handle usable,
    /// and is not limited by [`max_hold`](crate::LockClientBuilder::max_hold).
    ///
    /// Any process with the handle may do it: a job that watches over others, or the process that was given it and does
    /// not attach.
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
    /// Dropped, it may have set the lease.
    pub async fn extend(&self, handle: &HoldHandle, lease: Duration) -> Result<(), HandleError> {
        let lock = self.lock_of(handle)?;
        let lock = lock.at_server()?;
        let options = lock.context().options();
        options.check_lease("the lease of extend", lease).map_err(HandleError::Lease)?;
        known(lock.extend_handle(&handle.hold, lease).await)
    }

    /// Releases what a handle of either kind holds, without taking it up first: the next in line have it, or it is free. One round trip.
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
    /// See [`HandleError`]. [`Lost`](HandleError::Lost): there was nothing to release. Where a first answer was lost, `Ok` says that the
    /// handle holds nothing any more, by whatever.
    ///
    /// # Cancel safety
    /// Dropped, it may have released it. It may be repeated.
    pub async fn release(&self, handle: &HoldHandle) -> Result<(), HandleError> {
        let lock = self.lock_of(handle)?;
        let lock = lock.at_server()?;
        known(lock.release_handle(&handle.hold).await)
    }

    fn lock_of(&self, handle: &HoldHandle) -> Result<AnyLock, HandleError> {
        // What it has of a semaphore the server knows.
        let lock = self.backend().lock(handle.kind(), Share::LOCK, &handle.hold.name);
        let at_server = lock.at_server()?;
        if at_server.context().options().prefix != handle.prefix {
            return Err(HandleError::OtherPrefix { prefix: handle.prefix.clone() });
        }
        Ok(lock)
    }
}

/// `false`: the handle holds nothing.
fn known(outcome: Result<bool, RequestError>) -> Result<(), HandleError> {
    if outcome? { Ok(()) } else { Err(HandleError::Lost) }
}
