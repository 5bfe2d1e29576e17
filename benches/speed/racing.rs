//! Redlock's way to a majority: each client asks all servers at once for a key that expires. A client that gets fewer
//! than a majority releases its keys and tries again after a random pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;

use crate::Outcome;
use crate::baselines::Setnx;
use crate::contender::Contender;

/// The default of Redlock's clients: node-redlock pauses for 200 ms, and up to 100 ms more or less.
pub const AS_REDLOCK: Duration = Duration::from_millis(200);
/// Twice the time of a section here, as a user might tune it. With 1 ms and 20 ms it made as many holds.
pub const TUNED: Duration = Duration::from_millis(4);

/// One of several clients. Each clone takes the next client, as if it were another process: with one connection, all
/// clones would ask the servers in one order and would not race.
pub struct Racing {
    clients: Arc<Vec<Vec<Setnx>>>,
    client: usize,
    next: Arc<AtomicUsize>,
    pause: Duration,
    splits: Arc<AtomicU64>,
    random: Arc<AtomicU64>,
}

impl Clone for Racing {
    fn clone(&self) -> Self {
        let client = self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len();
        let (clients, next) = (self.clients.clone(), self.next.clone());
        Self { clients, client, next, pause: self.pause, splits: self.splits.clone(), random: self.random.clone() }
    }
}

impl Racing {
    pub async fn connect(urls: &[String], count: usize, pause: Duration) -> Outcome<Self> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut nodes = Vec::new();
            for url in urls {
                nodes.push(Setnx::connect(url).await?);
            }
            clients.push(nodes);
        }
        let (next, splits, random) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Self { clients: Arc::new(clients), client: 0, next, pause, splits, random })
    }

    fn nodes(&self) -> &[Setnx] {
        &self.clients[self.client]
    }

    /// Rounds that got some servers and released them.
    pub fn splits(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    async fn try_all(&self) -> Outcome<Vec<Option<u64>>> {
        let asked = join_all(self.nodes().iter().map(|node| node.try_lock("racing"))).await;
        asked.into_iter().collect()
    }

    async fn give_back(&self, secrets: Vec<Option<u64>>) -> Outcome<()> {
        let held = self.nodes().iter().zip(secrets).filter_map(|(node, secret)| Some((node, secret?)));
        let released = join_all(held.map(|(node, secret)| node.unlock("racing", secret))).await;
        released.into_iter().collect()
    }

    /// Between half and one and a half times the pause: splitmix64, by Sebastiano Vigna.
    fn pause(&self) -> Duration {
        let mut mixed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.pause.mul_f64(0.5 + ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

impl Contender for Racing {
    type Guard = Vec<Option<u64>>;

    async fn lock(&self) -> Outcome<Self::Guard> {
        loop {
            let secrets = self.try_all().await?;
            let got = secrets.iter().flatten().count();
            if got > self.nodes().len() / 2 {
                return Ok(secrets);
            }
            self.splits.fetch_add(u64::from(got > 0), Ordering::Relaxed);
            self.give_back(secrets).await?;
            tokio::time::sleep(self.pause()).await;
        }
    }

    async fn unlock(&self, secrets: Self::Guard) -> Outcome<()> {
        self.give_back(secrets).await
    }

    async fn pace(&self) -> Outcome<()> {
        Err("not measured".into())
    }

    async fn waiters(&self) -> Outcome<u64> {
        Err("who races does not wait in a queue".into())
    }
}
