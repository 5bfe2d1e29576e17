//! One client at work: acquiring, holding, releasing, waiting. What it sends, the store carries.

pub mod acquire;
pub mod cleanup;
pub mod close;
pub mod context;
pub mod error;
mod farewells;
pub mod hold;
pub mod last_error;
mod lease;
pub mod listing;
pub mod losses;
pub mod observe;
pub mod owner;
mod owners;
mod poller;
pub mod release;
pub mod requests;
mod schedule;
mod self_wait;
mod task_or_thread;
mod waiters;
mod watchdog;
mod without_runtime;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tokio_util::sync::CancellationToken;

use crate::store::push::Push;
use crate::store::{Listener, ServedKeys};
use context::Context;
use hold::Holds;
use lease::Grant;
use poller::Poller;

/// How many names and holds are checked at once after a reconnect.
const CHECKED_TOGETHER: usize = 64;

/// All parts of one client.
pub struct Engine {
    pub context: Arc<Context>,
    pub holds: Arc<Holds>,
    poller: Arc<Poller>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Engine {
    pub fn start(context: Context) -> Arc<Self> {
        let context = Arc::new(context);
        let holds = Holds::new(context.clone());
        let poller = Poller::new(holds.clone());
        watchdog::start(&holds);
        let engine = Arc::new(Self { context, holds, poller });
        let listener: Arc<dyn Listener> = engine.clone();
        // Weak: the engine owns the store, which must not keep it alive in turn.
        engine.context.runner.listen(Arc::downgrade(&listener));
        engine
    }

    /// Asks the server about each hold. A hold may have been ended while its connection was cut: by
    /// force, or with the server's data. Fixed leases are checked as well, but not extended.
    fn hold_checks(&self, keys: &ServedKeys) -> impl Iterator<Item = BoxFuture<'static, ()>> + Send + use<> {
        let keys = keys.clone();
        let holds = self.holds.owners.holds().into_iter();
        let served = holds.filter(move |hold| hold.end().is_none() && keys.contains(&hold.entry.keys.lock));
        served.map(|hold| {
            async move {
                let check = async {
                    if hold.is_renewed() { watchdog::renew(&hold, None).await } else { watchdog::check(&hold).await }
                };
                // It may have to wait until it can be sent. A final unlock that goes first ends it: what
                // is given back must not be renewed (P10).
                let _ = hold.done.run_until_cancelled(check).await;
            }
            .boxed()
        })
    }
}

impl Listener for Engine {
    fn pushed(&self, from: &ServedKeys, payload: &[u8]) {
        match Push::decode(payload) {
            Some(Push::Grant { token, lease, ticket, lock }) => {
                self.poller.granted(from, lock, ticket, Grant { token, lease })
            }
            Some(Push::Revoked { token, owner, lock }) => {
                // The waiters first. A hold that begins at this very moment is not in the table yet,
                // but it asks its waiter after it was entered there. In the other order it could miss
                // both.
                self.poller.waiters.revoked(lock, owner, token);
                self.holds.revoked(lock, owner, token);
            }
            None => tracing::debug!(target: "fairlock::server", "an unknown message on this client's channel"),
        }
    }

    /// Every wait asks and every hold is checked before any new acquire uses the connection.
    fn resumed(self: Arc<Self>, keys: ServedKeys, broke: Option<Instant>) -> BoxFuture<'static, ()> {
        async move {
            let _check = self.holds.losses.check();
            self.poller.waiters.forget_grants(&keys);
            // After the checks, which are dropped if they take too long.
            let checked = CancellationToken::new();
            let _checked = checked.clone().drop_guard();
            self.poller.say_farewells(&keys, broke, checked);
            let names = self.poller.waiters.names().into_iter().filter(|name| keys.contains(&name.lock));
            let polls = names.map(|name| {
                let poller = self.poller.clone();
                async move { poller.resume(&name).await }.boxed()
            });
            let all: Vec<_> = polls.chain(self.hold_checks(&keys)).collect();
            stream::iter(all).for_each_concurrent(CHECKED_TOGETHER, |check| check).await;
        }
        .boxed()
    }

    fn flushed(self: Arc<Self>, keys: ServedKeys) {
        let engine = self.clone();
        self.context.spawn(async move {
            let _check = engine.holds.losses.check();
            // Only holds: a holder would rely on what is gone until its next renewal (P8). A waiter
            // finds out by its next poll, and asks anew (P9).
            let all: Vec<_> = engine.hold_checks(&keys).collect();
            stream::iter(all).for_each_concurrent(CHECKED_TOGETHER, |check| check).await;
        });
    }

    fn gone(&self) {
        // Waits first. A hold that begins at this very moment looks at the token after it was entered
        // into the table, and is given back.
        if self.context.gone.is_cancelled() {
            // Another connection of this client has told it already.
            return;
        }
        self.context.gone.cancel();
        without_runtime::watch_deadlines(&self.holds);
    }
}
