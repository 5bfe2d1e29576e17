//! What all attempts and holds of one client share: the scripts, the numbers that are never given
//! twice, the tasks in the background.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hold::{Seat, Seats};
use crate::lease::Grant;
use crate::options::Options;
use crate::owner::Owner;
use crate::store::keys::Keys;
use crate::store::reply::Push;
use crate::store::{Ending, Host, Listener, Scripts, StoreError, now};
use crate::wake::Wake;
use crate::watchdog::{self, Watchdog};

/// How many names and holds are resumed at once after a reconnect.
const RESUMED_TOGETHER: usize = 64;

pub(crate) struct Core {
    pub(crate) options: Options,
    /// The client's uuid: the first part of its owner ids, the last of its channel.
    pub(crate) client: String,
    pub(crate) scripts: Scripts,
    pub(crate) wake: Wake,
    pub(crate) seats: Seats,
    pub(crate) watchdog: Watchdog,
    /// Cancelled by `close`: new calls are refused and waits end.
    pub(crate) closing: CancellationToken,
    pub(crate) tasks: TaskTracker,
    runtime: Handle,
    host: Option<Host>,
    seq: AtomicU64,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(options: Options, client: String, scripts: Scripts, runtime: Handle) -> Arc<Self> {
        let core = Arc::new(Self {
            options,
            client,
            host: scripts.host(),
            scripts,
            wake: Wake::default(),
            seats: Seats::default(),
            watchdog: Watchdog::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime,
            seq: AtomicU64::new(1),
        });
        let listener: Arc<dyn Listener> = core.clone();
        core.scripts.listen(Arc::downgrade(&listener));
        core
    }

    /// Strictly growing: whatever the server has seen of this client before is smaller (R1).
    pub(crate) fn next_seq(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn owner_id(&self, owner: Owner) -> Arc<str> {
        [&self.client, ":", &owner.number().to_string()].concat().into()
    }

    /// From anywhere: inside the runtime, outside, or after it is gone, when it drops the future.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.host {
            None => self.tasks.spawn_on(task, &self.runtime),
            Some(host) => self.tasks.spawn_on(host(task.boxed()), &self.runtime),
        };
    }

    pub(crate) fn patience(&self) -> Duration {
        self.options.operation_timeout
    }

    /// When nothing that was sent until now can have an effect on the server any more: its tickets
    /// and leases are over.
    pub(crate) fn forgotten_at(&self, lease: Duration) -> Instant {
        now() + lease.max(self.options.waiter_ttl) + 2 * self.patience()
    }

    /// R9: leaving is the background's, and goes on until the server has answered, or until all
    /// that could be left behind has expired.
    pub(crate) fn leave(&self, seat: &Arc<Seat>, departure: Departure) {
        let seat = seat.clone();
        let limit = self.forgotten_at(departure.lease);
        self.spawn(async move { depart(&seat, departure, limit).await });
    }

    /// Goes on where one call reached its bound: `more` dead tickets than it clears.
    pub(crate) fn clear(self: &Arc<Self>, keys: &Arc<Keys>) {
        let (core, keys) = (self.clone(), keys.clone());
        self.spawn(async move {
            while let Ok(answer) = core.scripts.poll(&keys, &[], core.patience()).await {
                if !answer.body.more {
                    break;
                }
            }
        });
    }
}

/// What leaves, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departure {
    /// Everything of the owner up to this seq ends.
    pub(crate) seq: u64,
    /// The attempt whose ticket goes.
    pub(crate) attempt: u64,
    /// Server time until which an earlier copy may still be served; 0: none.
    pub(crate) last_ms: i64,
    pub(crate) lease: Duration,
}

async fn depart(seat: &Arc<Seat>, departure: Departure, limit: Instant) {
    let core = &seat.core;
    while now() < limit {
        let ending = Ending {
            owner: &seat.owner_id,
            seq: departure.seq,
            attempt: departure.attempt,
            last_ms: departure.last_ms,
        };
        match core.scripts.leave(&seat.keys, ending, core.patience()).await {
            Ok(answer) => {
                if answer.body.more {
                    core.clear(&seat.keys);
                }
                return;
            }
            Err(StoreError::Closed) => return,
            Err(StoreError::Refused(refusal)) if refusal.is_final() => {
                tracing::warn!(name = %seat.keys.name, %refusal, "could not leave the queue; the ticket expires");
                return;
            }
            // A leave is as good the second time, and needs no seq of its own.
            Err(_) => {}
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Between two tries of a request that had no answer, lest a failing connection be hammered.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl Listener for Core {
    fn pushed(&self, payload: &[u8]) {
        match Push::decode(payload) {
            Some(Push::Grant { token, lease, ticket }) => self.wake.granted(ticket, Grant { token, lease }),
            Some(Push::Revoked { token, owner, lock }) => {
                // The wait first: its hold may begin at this very moment, and then looks there.
                self.wake.revoked(lock, owner, token);
                self.seats.revoked(lock, owner, token);
            }
            None => tracing::debug!("a message on our channel that is not ours"),
        }
    }

    /// Every wait asks and every watched hold renews before the new connection serves anybody else.
    fn resumed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move {
            let polls = self.wake.names().into_iter().map(|keys| {
                let core = self.clone();
                async move { core.wake.poll(&core, &keys).await }.boxed()
            });
            let renewals = self.seats.holds().into_iter().filter(|hold| hold.is_renewed()).map(|hold| {
                async move {
                    let _ = watchdog::renew(&hold, None).await;
                }
                .boxed()
            });
            let all: Vec<_> = polls.chain(renewals).collect();
            stream::iter(all).for_each_concurrent(RESUMED_TOGETHER, |asked| asked).await;
        }
        .boxed()
    }
}
