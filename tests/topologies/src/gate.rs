//! P3, asserted exactly: each waiter joins once the previous one is in the queue, and they get the lock in that order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockGuard};
use tokio::task::JoinSet;

use crate::testbed::{eventually, note};

/// A held lock with a queue.
pub struct Gate {
    holder: LockGuard,
    waiters: JoinSet<()>,
    served: Arc<Mutex<Vec<usize>>>,
}

impl Gate {
    /// The first client holds the name. The others queue in turn.
    pub async fn shut(clients: &[LockClient], name: &str, waiters: usize) -> Self {
        let holder = clients[0].lock(name).lock().await.expect("the gate can be shut");
        let mut gate = Self { holder, waiters: JoinSet::new(), served: Arc::default() };
        for number in 0..waiters {
            let lock = clients[(number + 1) % clients.len()].lock(name).labelled(format!("waiter {number}"));
            gate.waiters.spawn(wait(lock.clone(), number, gate.served.clone()));
            eventually(&format!("waiter {number} is in the queue of {name}"), async || {
                let Ok(status) = lock.status().await else { return false };
                let last = status.queue.last().map(|waiter| waiter.label.clone());
                last == Some(format!("waiter {number}"))
            })
            .await;
        }
        gate
    }

    /// Serves all waiters, and returns how many of them came after a later one.
    pub async fn open(mut self) -> usize {
        if let Err(error) = self.holder.unlock().await {
            note(format!("the gate: {error}"));
        }
        let all = async {
            while let Some(waiter) = self.waiters.join_next().await {
                waiter.expect("no waiter panics");
            }
        };
        tokio::time::timeout(Duration::from_secs(40), all).await.expect("all waiters at the gate are served");
        let served = self.served.lock().unwrap().clone();
        note(format!("the gate served {served:?}"));
        served.windows(2).filter(|pair| pair[0] > pair[1]).count()
    }
}

async fn wait(lock: FairLock, number: usize, served: Arc<Mutex<Vec<usize>>>) {
    let guard = lock.lock().await.expect("a waiter at the gate gets the lock");
    served.lock().unwrap().push(number);
    let _ = guard.unlock().await;
}
