//! One client at work: acquiring, holding, releasing, waiting. What it sends, the store carries.

pub mod acquire;
pub mod cleanup;
pub mod close;
pub mod context;
pub mod detached;
pub mod error;
mod farewells;
pub mod guard;
pub mod handles;
pub mod hold;
pub mod last_answer;
mod lease;
pub mod listing;
pub mod lock;
pub mod observe;
pub mod owner;
pub mod owners;
mod poller;
pub mod release;
pub mod requests;
mod schedule;
mod self_wait;
pub mod task_or_thread;
mod waiters;
mod watchdog;
mod without_runtime;

use std::sync::Arc;
use std::time::Instant;

use fairlock_proto::push::Push;
use futures::future::BoxFuture;
use futures::future::join;
use futures::{FutureExt, StreamExt, stream};
use tokio_util::sync::CancellationToken;

use crate::store::runtime::log_line;
use crate::store::{Listener, ServedKeys};
use context::Context;
use hold::{Hold, Holds};
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

impl Engine {
    pub fn start(context: Context) -> Arc<Self> {
        let engine = Self::start_unheard(context);
        let listener: Arc<dyn Listener> = engine.clone();
        // Weak: the engine owns the store, which must not keep it alive in turn.
        engine.context.runner.store.listen(Arc::downgrade(&listener));
        engine
    }

    /// Another listener hands on what its store reports.
    pub fn start_unheard(context: Context) -> Arc<Self> {
        let context = Arc::new(context);
        let holds = Holds::new(context.clone());
        let poller = Poller::new(holds.clone());
        watchdog::start(&holds);
        poller.start();
        Arc::new(Self { context, holds, poller })
    }

    fn doubted(&self, keys: &ServedKeys) -> Vec<Arc<Hold>> {
        self.holds.owners.holds().into_iter().filter(|hold| is_concerned(hold, keys)).collect()
    }
}

/// Whether the server of these keys may have forgotten it. A hold that is being released does not matter.
fn is_concerned(hold: &Hold, keys: &ServedKeys) -> bool {
    !hold.done.initialized() && keys.contains(&hold.entry.keys.lock) && hold.is_doubted()
}

/// Asks the server about holds that it may have forgotten. What has no answer is asked again by the watchdog.
async fn check(doubted: Vec<Arc<Hold>>) {
    stream::iter(doubted)
        .for_each_concurrent(CHECKED_TOGETHER, |hold| async move {
            // The watchdog may have come first.
            if hold.is_doubted() {
                watchdog::attend(hold).await;
            }
        })
        .await;
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
            None => {
                log_line(|| tracing::debug!(target: "fairlock::server", "an unknown message on this client's channel"))
            }
        }
    }

    fn resumed(self: Arc<Self>, keys: ServedKeys, broke: Option<Instant>) -> BoxFuture<'static, ()> {
        async move {
            // After the checks, which end with the connection.
            let checked = CancellationToken::new();
            let _checked = checked.clone().drop_guard();
            self.poller.say_farewells(&keys, broke, checked);
            let names = self.poller.waiters.names().into_iter().filter(|name| keys.contains(&name.lock));
            let polls = stream::iter(names).for_each_concurrent(CHECKED_TOGETHER, |name| {
                let poller = self.poller.clone();
                async move { poller.resume(&name).await }
            });
            self.holds.doubt();
            join(polls, check(self.doubted(&keys))).await;
        }
        .boxed()
    }

    fn gone(self: Arc<Self>) {
        // Waits first. A hold that begins at this very moment looks at the token after it was entered into the table,
        // and is released.
        if self.context.gone.is_cancelled() {
            // Another connection of this client has reported it already.
            return;
        }
        self.context.gone.cancel();
        self.context.over.cancel();
        without_runtime::watch_deadlines(&self.holds);
    }
}
