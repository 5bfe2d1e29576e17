//! Shared parts of the tests: servers, a proxy with faults, worker processes, and waits with a limit.

mod binaries;
#[path = "../../topologies/src/clock.rs"]
mod clock;
pub mod cluster;
mod collect;
mod embedded;
mod history;
mod inside;
mod names;
#[path = "../../topologies/src/ports.rs"]
mod ports;
mod proxy;
pub mod recipe;
pub mod sentinels;
mod server;
mod store;
#[cfg(feature = "cli")]
pub mod tool;
mod worker;

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use fairlock::{LockClient, LockClientBuilder};
use tokio::time::Instant;

use clock::ShiftedClock;

pub use collect::{Collect, Text, log_to};
pub use embedded::{Embedded, Network, embedded, in_virtual_time, on_several_in_virtual_time, virtually};
pub use history::History;
pub use inside::{Inside, under_lost_replies};
pub use names::{Answer, with_names};
pub use ports::free_port;
pub use proxy::Proxy;
pub use server::{BOOT, Server};
pub use store::Store;
pub use worker::{Worker, count, counter, pass_gate, read_number};

/// The longest time that a test waits for one thing. A test that hangs fails.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The timings of a test client: short enough to wait for, long enough for a loaded machine.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    pub lease: Duration,
    pub operation_timeout: Duration,
    pub waiter_ttl: Duration,
    pub poll_interval: Duration,
    pub grant_ttl: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(3000),
            operation_timeout: Duration::from_millis(1000),
            waiter_ttl: Duration::from_millis(3000),
            poll_interval: Duration::from_millis(500),
            grant_ttl: Duration::from_millis(1500),
        }
    }
}

impl Timing {
    /// Long timeouts, for tests in which a slow machine must not look like a fault.
    pub fn relaxed() -> Self {
        Self { lease: Duration::from_secs(30), operation_timeout: Duration::from_secs(10), ..Self::default() }
    }

    pub fn builder(&self) -> LockClientBuilder {
        LockClient::builder()
            .lease(self.lease)
            .operation_timeout(self.operation_timeout)
            .waiter_ttl(self.waiter_ttl)
            .poll_interval(self.poll_interval)
            .grant_ttl(self.grant_ttl)
    }

    pub async fn connect(&self, url: &str) -> LockClient {
        self.builder().connect(url).await.expect("the server is there")
    }
}

/// Runs a whole test, and fails if it hangs.
pub async fn limit<F: Future>(test: F) -> F::Output {
    limit_to(Duration::from_secs(90), test).await
}

pub async fn limit_to<F: Future>(longest: Duration, test: F) -> F::Output {
    tokio::time::timeout(longest, test).await.expect("the test hangs")
}

/// Runs a whole test on its own server. Checks P10 afterwards: no key, no subscription and no task remains, even if the
/// test did not close its clients.
pub async fn on_a_server(test: impl AsyncFnOnce(&Server)) {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    limit(async {
        let before = tasks();
        let server = Server::start().await;
        test(&server).await;
        server.assert_clean().await;
        eventually("no task is left", async || tasks() <= before).await;
    })
    .await;
}

/// The same on each kind of store, one after the other. The embedded store runs in virtual time if the runtime has one
/// thread.
pub async fn on_each_store(test: impl AsyncFn(&Store)) {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for store in &Store::each().await {
        let all = limit_to(Duration::from_secs(300), async {
            let before = tasks();
            test(store).await;
            store.assert_clean().await;
            eventually("no task is left", async || tasks() <= before).await;
        });
        // The output appears only if the test fails.
        if matches!(store, Store::Embedded(_)) {
            println!("on the embedded server:");
            virtually(all).await;
        } else {
            println!("on a real server:");
            all.await;
        }
    }
}

/// Polls until the condition is true.
pub async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < LONGEST_WAIT, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Shifts the clocks of servers, so that they differ.
pub fn clock() -> &'static ShiftedClock {
    static CLOCK: LazyLock<ShiftedClock> = LazyLock::new(|| ShiftedClock::build(env!("CARGO_TARGET_TMPDIR").as_ref()));
    &CLOCK
}

/// How much work a test does. The environment can ask for more than a normal run has time for.
pub fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Random numbers from a seed (splitmix64, by Sebastiano Vigna).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }
}
