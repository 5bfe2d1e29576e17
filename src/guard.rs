//! What a holder has in hand.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Loss, UnlockError};
use crate::hold::{End, Hold};
use crate::owner::Owner;
use crate::release::Release;
use crate::store::now;

pub use crate::release::Unlocked;

/// One hold on a lock. It ends with [`unlock`](Self::unlock), or when it is dropped.
///
/// Dropping hands the release to the client's background: it blocks nothing and works outside a
/// runtime, in a panic and at shutdown; but it tells you nothing. The guard carries its owner with
/// it: it may leave its scope, its task and its thread.
///
/// While it lives a watchdog renews the lease. A guard can still be *lost*: the server was out of
/// reach for a whole lease, the process was paused, somebody forced it. Then work that goes on may
/// run beside the next holder's. [`Held::lost`] tells at once; a check of [`Held::token`] at the
/// resource makes it harmless.
///
/// ```no_run
/// # async fn example(client: fairlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").lock().await?;
/// tokio::select! {
///     () = ship_the_order(guard.token()) => { guard.unlock().await?; }
///     loss = guard.lost() => eprintln!("stopped: {loss}"),
/// }
/// # Ok(()) }
/// # async fn ship_the_order(token: u64) {}
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    held: Held,
    /// Unlocked in plain sight: dropping does nothing any more.
    ended: bool,
}

/// What may be asked of a hold by those who do not end it. Cheap to clone; it keeps nothing locked.
#[derive(Clone)]
pub struct Held {
    hold: Arc<Hold>,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { held: Held { hold }, ended: false }
    }

    /// Gives this hold back and waits for the server's word: one round trip.
    ///
    /// [`Unlocked::Freed`]: nobody holds it, or the next waiter already does.
    /// [`Unlocked::StillHeld`]: the owner has more guards.
    ///
    /// # Errors
    /// [`UnlockError::Lost`] if it was lost before. [`UnlockError::Unknown`] if the server gave no
    /// answer within the operation time-out; the client goes on trying.
    ///
    /// # Cancel safety
    /// Once called, the release is done: dropping the future leaves it to the background.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let limit = now() + self.held.hold.seat.core.patience();
        self.end().run(limit).await
    }

    /// The view of it that can be cloned and handed to others.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    fn end(&mut self) -> Release {
        self.ended = true;
        self.held.hold.leave();
        Release::new(self.held.hold.clone())
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.ended {
            // Unfinished when it is dropped, so the background finishes it.
            drop(self.end());
        }
    }
}

impl Held {
    /// The fencing token of this hold: greater than that of every hold of this lock before it, and
    /// the same for all nested guards. No round trip.
    ///
    /// A resource that remembers the greatest token it has seen, and refuses smaller ones, is safe
    /// from a holder that does not know yet that it lost the lock. Nothing else is.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// Whether it is held for sure at this instant, by the local clock. No round trip.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// For how long it is held for sure if no renewal comes any more; zero when it is lost. No
    /// round trip.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// Resolves when the hold is lost, and says how: at its local deadline without any network, at
    /// once on a force-unlock. Never resolves if it is unlocked well.
    ///
    /// # Cancel safety
    /// Safe to drop and call again.
    pub async fn lost(&self) -> Loss {
        self.hold.time();
        loop {
            if let Some(End::Lost(loss)) = self.hold.end() {
                return loss;
            }
            self.hold.lost.cancelled().await;
        }
    }

    /// The same as a token, for code that takes one. Cancelled when the hold is lost.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.hold.time();
        // A child: whoever gets it may cancel it without telling everybody else of a loss.
        self.hold.lost.child_token()
    }

    /// How many guards share this hold: 1, and one more for each nested one. No round trip.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.hold.live()
    }

    /// Whose hold it is.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.hold.seat.owner
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hold.seat.keys.name
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(&self.held, f.debug_struct("LockGuard"))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(self, f.debug_struct("Held"))
    }
}

fn describe(held: &Held, mut debug: fmt::DebugStruct<'_, '_>) -> fmt::Result {
    debug
        .field("name", &held.name())
        .field("owner", &held.owner())
        .field("token", &held.token())
        .field("valid_for", &held.valid_for())
        .finish()
}
