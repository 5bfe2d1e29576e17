//! Counts who is inside a semaphore or a read-write lock at the same time, under faults.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{Held, LockClient};
use futures::future::join_all;

use super::{Proxy, Random, Server, Timing, eventually, limit_to};

/// The holds in use now, with their weights. Any of them may be lost, and not yet released.
#[derive(Default)]
pub struct Inside {
    holders: Mutex<Vec<(Held, u32)>>,
    sections: AtomicU32,
}

impl Inside {
    /// P1: the weights of all valid holds together stay within the limit.
    pub async fn section(&self, held: Held, weight: u32, limit: u32, work: Duration) {
        let token = held.token();
        {
            let mut holders = self.holders.lock().unwrap();
            holders.push((held, weight));
            // A hold never becomes valid again. So the holds that pass the second check were all valid at the same
            // time, before it.
            let valid: Vec<_> = holders.iter().filter(|(held, _)| held.is_valid()).collect();
            let sum: u32 = valid.iter().filter(|(held, _)| held.is_valid()).map(|(_, weight)| weight).sum();
            assert!(sum <= limit, "{valid:?}");
        }
        tokio::time::sleep(work).await;
        self.holders.lock().unwrap().retain(|(held, _)| held.token() != token);
        self.sections.fetch_add(1, Ordering::Relaxed);
    }
}

/// Eight clients lose replies and connections. P4: afterwards nothing is held.
pub async fn under_lost_replies<F: Future<Output = ()> + Send + 'static>(
    works: impl Fn(LockClient, Arc<Inside>, Random) -> F,
    is_free: impl AsyncFn(&LockClient) -> bool,
) {
    limit_to(Duration::from_secs(300), async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let clients = join_all((0..8).map(|_| async { Timing::default().connect(&proxy.url()).await })).await;
        proxy.lose_replies(0.05, 1);
        let inside = Arc::new(Inside::default());
        let seeded = clients.iter().zip(1..);
        let tasks = seeded.map(|(client, seed)| tokio::spawn(works(client.clone(), inside.clone(), Random::new(seed))));
        for task in join_all(tasks).await {
            task.unwrap();
        }
        let sections = inside.sections.load(Ordering::Relaxed);
        assert!(sections > 60, "too few sections to prove anything: {sections}");
        proxy.lose_replies(0.0, 1);
        eventually("all is given back", async || is_free(&clients[0]).await).await;
        for client in clients {
            client.close().await.unwrap();
        }
        server.assert_clean().await;
    })
    .await;
}
