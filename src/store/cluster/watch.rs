//! Keeps the table of a cluster: asks its nodes, one at a time, whether anything has changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::select_ok;
use futures::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::{sleep, timeout, timeout_at};

use super::table::Table;
use super::view::{Health, View};
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::connect_options::Address;
use crate::store::connection::Connection;
use crate::store::dial::{Access, Limit, Place, Target};
use crate::store::error::{ConnectError, Fault};
use crate::store::node::network::NetworkWire;
use crate::store::node::{cluster_error, sign_in};
use crate::store::reply::Malformed;

/// How often a node is asked: a client has to leave a demoted master within a second.
const INTERVAL: Duration = Duration::from_millis(400);
/// How long a node may take to answer: a frozen node must not keep the others from being asked.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at the whole table, however many requests are redirected.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// How long the whole table is read after each change: an election raises the epoch before the slots
/// have a new master.
const UNSETTLED: Duration = Duration::from_secs(3);
/// And at least that often: a slot may move without a new epoch.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Doubts after which another node is asked: this one may be cut off from the others.
const DOUBTS_AT_ONE: u32 = 3;
/// A node that knows less than others, or reports the cluster down, is believed after this many such nodes
/// in a row: the cluster may have been made anew, or be down.
const PASSED_OVER_AT_MOST: u32 = 10;

pub struct Watch {
    table: Arc<Table<NetworkWire>>,
    access: Arc<Access>,
    seeds: Vec<Address>,
    operation_timeout: Duration,
    /// The nodes that the last look has named.
    nodes: Vec<Address>,
    /// The epoch of the last look: a node that knows less is not believed.
    epoch: u64,
    passed_over: u32,
    looked: Instant,
    changed: Instant,
    /// The slots without a master, as last logged.
    uncovered: String,
}

/// A connection to a node that is asked about the cluster.
struct Source {
    address: Address,
    connection: Connection,
}

/// A node's answer.
struct Look {
    health: Health,
    view: View,
}

impl Watch {
    pub fn new(
        table: Arc<Table<NetworkWire>>,
        access: Arc<Access>,
        seeds: Vec<Address>,
        operation_timeout: Duration,
    ) -> Self {
        let (nodes, uncovered) = (Vec::new(), String::new());
        let (looked, changed) = (now(), now());
        Self { table, access, seeds, operation_timeout, nodes, epoch: 0, passed_over: 0, looked, changed, uncovered }
    }

    /// Asks all seeds at once, and believes the seed that knows most.
    pub async fn look_first(&mut self) -> Result<(), ConnectError> {
        let (mut best, mut first_error) = (None, None);
        for outcome in self.ask_seeds().await {
            match outcome {
                Ok(look) if best.as_ref().is_none_or(|best: &Look| best.rank() < look.rank()) => best = Some(look),
                Ok(_) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        // There is at least one seed, so there is an error.
        let Some(look) = best else { return first_error.map_or(Ok(()), Err) };
        if look.view.ranges.is_empty() {
            let address = self.seeds.first().map(ToString::to_string).unwrap_or_default();
            return Err(ConnectError::NoMasters { address });
        }
        self.apply(look);
        Ok(())
    }

    /// Once one has answered, the others have little time left: a dead one must not hold up the rest.
    async fn ask_seeds(&self) -> Vec<Result<Look, ConnectError>> {
        let limit = Limit::of(self.operation_timeout);
        let mut asking: FuturesUnordered<_> = self.seeds.iter().map(|seed| self.ask_once(seed, limit)).collect();
        let (mut answers, mut until) = (Vec::new(), None);
        while let Some(answer) = match until {
            None => asking.next().await,
            Some(until) => timeout_at(until, asking.next()).await.ok().flatten(),
        } {
            if answer.is_ok() {
                until.get_or_insert((now() + PATIENCE).into());
            }
            answers.push(answer);
        }
        answers
    }

    async fn ask_once(&self, address: &Address, limit: Limit) -> Result<Look, ConnectError> {
        let target = Target::new(Place::at(address.clone()), self.access.clone(), None);
        let mut source = Source::open(&target, limit).await?;
        let asked = async { Ok((source.health().await?, source.view().await?)) };
        let silent = || target.unreachable(Arc::new(Fault::NoAnswer(limit.limit)));
        let (health, view) =
            limit.run(asked).await.ok_or_else(silent)?.map_err(|error| cluster_error(&target, error))?;
        Ok(Look { health, view })
    }

    /// Until it is dropped, with its client.
    pub async fn run(&mut self) {
        let (mut backoff, mut said, mut failed) = (Backoff::reconnect(), false, 0);
        // Other nodes each time: the last one did not answer, or knew less.
        for turn in 0_usize.. {
            backoff.pause().await;
            match self.open_next(turn).await {
                Ok(source) => {
                    failed = 0;
                    if std::mem::take(&mut said) {
                        tracing::info!(target: "fairlock::server", address = %source.address, "a node of the cluster answers again");
                    }
                    let opened = now();
                    self.watch(source).await;
                    backoff.connection_lived_for(now().saturating_duration_since(opened));
                }
                Err(error) => {
                    failed += 1;
                    tracing::debug!(target: "fairlock::server", %error, "cannot ask this node of the cluster");
                    // Two are asked in each turn: now each one has been asked.
                    if !said && 2 * failed >= self.nodes.len() + self.seeds.len() {
                        tracing::warn!(target: "fairlock::server", %error, "no node of the cluster reports the table of slots");
                        said = true;
                    }
                }
            }
        }
    }

    /// Two at once: a frozen one takes all the time that it gets.
    async fn open_next(&self, turn: usize) -> Result<Source, ConnectError> {
        let candidates: Vec<_> = self.nodes.iter().chain(&self.seeds).collect();
        let limit = Limit::of(self.operation_timeout);
        let opening =
            (0..2).filter_map(|next| candidates.get((2 * turn + next) % candidates.len().max(1))).map(|node| {
                let target = Target::new(Place::at((*node).clone()), self.access.clone(), None);
                async move { Source::open(&target, limit).await }.boxed()
            });
        // There is at least one seed, so this is not empty.
        select_ok(opening).await.map(|(source, _other)| source)
    }

    /// Asks this node again and again, until it does not answer or another one should be asked.
    async fn watch(&mut self, mut source: Source) {
        let (mut is_doubtful, mut doubts, opened) = (true, 0, now());
        // As long as no node is believed without reserve, another one is asked every few seconds.
        while doubts < DOUBTS_AT_ONE && (self.passed_over == 0 || now() < opened + LONGEST_PAUSE) {
            let asked = async {
                let health = source.health().await?;
                let is_due = is_doubtful || self.passed_over > 0 || self.is_due(&health);
                let view = if is_due { Some(source.view().await?) } else { None };
                Ok::<_, RedisError>((health, view))
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok((health, view))) if self.is_behind(&health, view.as_ref()) => {
                    if self.passed_over < PASSED_OVER_AT_MOST {
                        self.passed_over += 1;
                        return sleep(SHORTEST_PAUSE).await;
                    }
                    // All report it.
                    self.apply(Look { health, view: view.unwrap_or_default() });
                }
                Ok(Ok((health, Some(view)))) => {
                    self.passed_over = 0;
                    self.apply(Look { health, view });
                }
                Ok(Ok((_, None))) => self.passed_over = 0,
                Ok(Err(error)) => {
                    return tracing::debug!(target: "fairlock::server", address = %source.address, %error, "no answer about the cluster");
                }
                Err(_) => return,
            }
            let table = self.table.clone();
            tokio::select! {
                () = sleep(INTERVAL) => is_doubtful = false,
                () = table.doubt.notified() => {
                    (is_doubtful, doubts) = (true, doubts + 1);
                    sleep(SHORTEST_PAUSE).await;
                }
            }
        }
    }

    fn is_due(&self, health: &Health) -> bool {
        let now = now();
        // A slot that had no master gets one without a new epoch.
        health.epoch != self.epoch
            || !self.uncovered.is_empty()
            || now < self.changed + UNSETTLED
            || now > self.looked + LONGEST_PAUSE
    }

    /// Whether other nodes should be asked before this one is believed. A removed node reports the
    /// cluster down and names no slot; a node that is cut off does not learn of a new epoch.
    fn is_behind(&self, health: &Health, view: Option<&View>) -> bool {
        let names_nothing = view.is_some_and(|view| view.ranges.is_empty());
        health.epoch < self.epoch || !health.is_ok || names_nothing
    }

    fn apply(&mut self, Look { health, view }: Look) {
        if health.epoch != self.epoch {
            self.changed = now();
        }
        (self.epoch, self.looked) = (health.epoch, now());
        self.table.replace(&view.ranges);
        let uncovered = view.uncovered();
        if uncovered != self.uncovered {
            if uncovered.is_empty() {
                tracing::info!(target: "fairlock::server", "all slots of the cluster are served again");
            } else {
                tracing::warn!(target: "fairlock::server", slots = %uncovered, "slots of the cluster have no master: their locks wait");
            }
            self.uncovered = uncovered;
        }
        // An empty view names no node, and the nodes of before are then the best guess.
        if !view.nodes.is_empty() {
            self.nodes = view.nodes;
        }
    }
}

impl Look {
    /// The greater, the better.
    fn rank(&self) -> (bool, u64) {
        (!self.view.ranges.is_empty(), self.health.epoch)
    }
}

impl Source {
    async fn open(target: &Target, limit: Limit) -> Result<Self, ConnectError> {
        // It receives nothing that it has not asked for.
        let (connection, _first) = sign_in(target, limit, |_| {}).await?;
        Ok(Self { address: target.place.address.clone(), connection })
    }

    fn io(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection.io
    }

    async fn health(&mut self) -> Result<Health, RedisError> {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(self.io()).await?;
        Ok(Health::read(&info))
    }

    async fn view(&mut self) -> Result<View, RedisError> {
        let slots: Value = redis::cmd("CLUSTER").arg("SLOTS").query_async(self.io()).await?;
        let unexpected = |error: Malformed| {
            RedisError::from((redis::ErrorKind::UnexpectedReturnType, "CLUSTER SLOTS", error.to_string()))
        };
        View::read(&slots, &self.address).map_err(unexpected)
    }
}
