//! An embedded server in virtual time, for tests that wait: an hour of leases takes milliseconds, and it does not
//! matter how busy the machine is.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::simulation::{Delivery, Faults, Ran, command, servers};
use fairlock::{EmbeddedServer, LockClient, LockClientBuilder};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{BOOT, Timing, eventually, limit_to};

/// Time passes only while all tasks wait, so a test that hangs reaches this limit at once.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

pub struct Embedded {
    pub server: EmbeddedServer,
    pub network: Network,
}

impl Embedded {
    pub fn new() -> Self {
        let [embedded] = Self::several();
        embedded
    }

    /// Several servers with one clock.
    pub fn several<const N: usize>() -> [Self; N] {
        let networks: [Network; N] = std::array::from_fn(|_| Network::default());
        let servers = servers(networks.clone());
        std::array::from_fn(|number| Self { server: servers[number].clone(), network: networks[number].clone() })
    }

    pub async fn connect(&self, timing: Timing) -> LockClient {
        self.open(timing.builder()).await
    }

    pub async fn open(&self, builder: LockClientBuilder) -> LockClient {
        builder.embedded(&self.server).expect("the server is there")
    }

    /// Runs a command on the keys, as an operator would. Returns the words of the reply, with an empty one for nil.
    pub fn command(&self, words: &[&str]) -> Vec<String> {
        command(&self.server, words)
    }

    /// P10, see [`Server::assert_clean`](super::Server::assert_clean). The embedded server does not list subscriptions.
    pub async fn assert_clean(&self) {
        let clean = async || self.server.keys().iter().all(|key| key.ends_with("}:token") || key == BOOT);
        eventually("only tokens are left", clean).await;
    }
}

/// The network between a server and its clients. It works until a test sets a fault.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    delay: Duration,
    /// The delay of each client, by its id. `None`: the network loses everything from and to this client.
    delays: BTreeMap<String, Option<Duration>>,
    is_silent: bool,
    loses_messages: bool,
    refusal: Option<&'static str>,
    calls: u64,
    refused: u64,
}

impl Network {
    /// A network in which requests, replies and messages take 5 ms each.
    pub fn slow() -> Self {
        let network = Self::default();
        network.delay(Duration::from_millis(5));
        network
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// Delays each request and each reply by this much.
    pub fn delay(&self, delay: Duration) {
        self.with(|state| state.delay = delay);
    }

    /// The same for the client with this id.
    pub fn delay_of(&self, client: &str, delay: Duration) {
        self.with(|state| state.delays.insert(client.to_owned(), Some(delay)));
    }

    /// Loses everything that this client sends or should receive.
    pub fn cut_off(&self, client: &str) {
        self.with(|state| state.delays.insert(client.to_owned(), None));
    }

    pub fn mend(&self, client: &str) {
        self.with(|state| state.delays.remove(client));
    }

    /// Loses all requests while it is on.
    pub fn silence(&self, on: bool) {
        self.with(|state| state.is_silent = on);
    }

    /// Loses all messages, but no replies, while it is on.
    pub fn lose_messages(&self, on: bool) {
        self.with(|state| state.loses_messages = on);
    }

    /// Sets the error with which the server refuses all requests.
    pub fn refuse(&self, refusal: Option<&'static str>) {
        self.with(|state| state.refusal = refusal);
    }

    /// How many scripts have run.
    pub fn calls(&self) -> u64 {
        self.with(|state| state.calls)
    }

    /// How many requests the server has refused.
    pub fn refused(&self) -> u64 {
        self.with(|state| state.refused)
    }
}

impl State {
    /// `None` for a lost request.
    fn delay_of(&self, client: &str) -> Option<Duration> {
        self.delays.get(client).copied().unwrap_or(Some(self.delay)).filter(|_| !self.is_silent)
    }
}

impl Faults for Network {
    fn request(&self, client: &str, _script: &str) -> Vec<Delivery> {
        let delay = self.with(|state| state.delay_of(client));
        delay.map(|delay| Delivery { request: delay, reply: Some(delay) }).into_iter().collect()
    }

    fn push(&self, client: &str) -> Vec<Duration> {
        self.with(|state| state.delay_of(client).filter(|_| !state.loses_messages)).into_iter().collect()
    }

    fn refuse(&self, _client: &str, _script: &str) -> Option<&'static str> {
        self.with(|state| {
            state.refused += u64::from(state.refusal.is_some());
            state.refusal
        })
    }

    fn ran(&self, _ran: &Ran<'_>) {
        self.with(|state| state.calls += 1);
    }
}

/// Makes time virtual for this future, if the runtime has one thread.
pub async fn virtually<F: Future>(future: F) -> F::Output {
    if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
        return future.await;
    }
    tokio::time::pause();
    let output = future.await;
    tokio::time::resume();
    output
}

/// Runs a whole test in virtual time, on its own server. Checks P10 afterwards, like
/// [`on_a_server`](super::on_a_server).
pub async fn in_virtual_time(test: impl AsyncFnOnce(&Embedded)) {
    on_several_in_virtual_time(async |[server]: &[Embedded; 1]| test(server).await).await;
}

/// A client of all these servers.
pub fn embedded(builder: LockClientBuilder, servers: &[Embedded]) -> LockClient {
    let servers: Vec<_> = servers.iter().map(|each| each.server.clone()).collect();
    builder.embedded(&servers).expect("the servers are there")
}

/// Like [`in_virtual_time`], on several servers.
pub async fn on_several_in_virtual_time<const N: usize>(test: impl AsyncFnOnce(&[Embedded; N])) {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let all = async {
        let (before, servers) = (tasks(), Embedded::several());
        test(&servers).await;
        for server in &servers {
            server.assert_clean().await;
        }
        eventually("no task is left", async || tasks() <= before).await;
    };
    virtually(limit_to(A_DAY, all)).await;
}
