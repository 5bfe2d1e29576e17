//! Whether clients still use a server: the time of the last script call there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::server::Server;
use crate::testbed::{Nanos, now};

pub struct ScriptWatch {
    last: Arc<AtomicU64>,
    asking: JoinHandle<()>,
}

impl ScriptWatch {
    /// Asks the server every 20 ms, even if it is silent for a while.
    pub fn start(server: Arc<Server>) -> Self {
        let last = Arc::new(AtomicU64::new(now()));
        let asking = tokio::spawn(watch(server, last.clone()));
        Self { last, asking }
    }

    /// The last time at which the number of calls had grown.
    pub fn last_call(&self) -> Nanos {
        self.last.load(Ordering::Relaxed)
    }
}

impl Drop for ScriptWatch {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

async fn watch(server: Arc<Server>, last: Arc<AtomicU64>) {
    let mut seen = 0;
    loop {
        if let Ok(calls) = server.script_calls().await {
            if calls > seen {
                last.store(now(), Ordering::Relaxed);
            }
            seen = calls;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
