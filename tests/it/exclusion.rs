//! P1: one holder at a time, across processes and within one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::Held;

use crate::support::{
    Proxy, Random, Server, Timing, Worker, count, counter, limit, limit_to, on_each_store, read_number,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_sixteen_clients_in_as_many_processes_count_exactly() {
    limit(async {
        let server = Server::start().await;
        let file = counter();
        let path = file.path().to_str().unwrap();
        let mut workers = Vec::new();
        for _ in 0..16 {
            workers.push(Worker::start(&server.url()).await);
        }
        for worker in &mut workers {
            worker.tell(&format!("count p1 {path} 100")).await;
        }
        for worker in &mut workers {
            worker.expect("counted").await;
        }
        assert_eq!(read_number(path), 1600);
        drop(workers);
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn p1_branches_of_one_task_exclude_each_other() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let file = counter();
        let path = file.path().to_str().unwrap();
        futures::future::join_all((0..16).map(|_| count(&client, "p1", path, 100))).await;
        assert_eq!(read_number(path), 1600);
        client.close().await.unwrap();
    })
    .await;
}

/// The same under faults: lost replies and connections, callers that give up, and guards dropped without an unlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_valid_holders_exclude_each_other_under_faults() {
    limit_to(Duration::from_secs(300), async {
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let mut clients = Vec::new();
        for _ in 0..12 {
            clients.push(Timing::default().connect(&proxy.url()).await);
        }
        proxy.lose_replies(0.05, 1);
        let inside = Arc::new(Inside::default());
        let tasks = clients.iter().cloned().zip(1u64..).map(|(client, seed)| {
            let (inside, mut random) = (inside.clone(), Random::new(seed));
            tokio::spawn(async move {
                for _ in 0..75 {
                    let timeout = Duration::from_millis(random.below(400));
                    if let Ok(guard) = client.lock("p1").lock_timeout(timeout).await {
                        inside.section(&guard.held(), Duration::from_micros(random.below(3000))).await;
                        match random.below(3) {
                            0 => drop(guard),
                            _ => drop(guard.unlock().await),
                        }
                    }
                }
            })
        });
        for task in futures::future::join_all(tasks).await {
            task.unwrap();
        }
        let sections = inside.sections.load(Ordering::Relaxed);
        assert!(sections > 100, "too few sections to prove anything: {sections}");
        proxy.lose_replies(0.0, 1);
        for client in clients {
            client.close().await.unwrap();
        }
        server.assert_clean().await;
    })
    .await;
}

/// The holds in the critical section now. Lost holds may still be inside.
#[derive(Default)]
struct Inside {
    holders: Mutex<Vec<Held>>,
    sections: AtomicU32,
}

impl Inside {
    async fn section(&self, me: &Held, work: Duration) {
        {
            let mut holders = self.holders.lock().unwrap();
            for other in holders.iter() {
                // P1 allows an expired holder here, but not two valid ones. A hold never becomes valid again, so if
                // both are valid now, both were valid at the first of these two calls.
                let (mine, theirs) = (me.valid_for(), other.valid_for());
                assert!(mine.is_zero() || theirs.is_zero(), "{me:?} beside {other:?}");
                assert_ne!(me.token(), other.token());
            }
            holders.push(me.held());
        }
        tokio::time::sleep(work).await;
        self.holders.lock().unwrap().retain(|holder| holder.token() != me.token());
        self.sections.fetch_add(1, Ordering::Relaxed);
    }
}
