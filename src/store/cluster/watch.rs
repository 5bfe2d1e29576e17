//! Keeps the table of a cluster: asks its nodes, one at a time, whether anything has changed.
//!
//! The table always belongs to one cluster, whose masters the client believes (`Masters`). A look changes it only if
//! - the answering node belongs to that cluster ([`identity`](super::identity)), whatever its address, or
//! - the watch has asked each known address, no majority of the believed masters answers, no seed leads to one of
//!   them, and another cluster has answered in their place for [`SETTLED`] ([`judge`]): someone replaced the cluster
//!   on purpose.
//!
//! The watch treats a node of another cluster like a node that does not answer.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::reply::Malformed;
use futures::future::try_join;
use futures::stream::{FuturesUnordered, StreamExt};
use redis::{RedisError, Value};
use tokio::time::{sleep, timeout, timeout_at};

use super::identity::{Answer, Look, Verdict, judge};
use super::table::Table;
use super::view::{Health, View};
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::connect_options::{Address, list};
use crate::store::connection::Connection;
use crate::store::dial::{Access, Limit, Place, Target};
use crate::store::error::{ConnectError, Fault};
use crate::store::node::network::NetworkWire;
use crate::store::node::{SignedIn, cluster_error, sign_in};

/// How often the watch asks a node: a client has to leave a demoted master within a second.
const INTERVAL: Duration = Duration::from_millis(400);
/// How long a node may take to answer: a frozen node must not hold up the others.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest pause between two looks at the whole table, however many requests are redirected.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// How long the watch reads the whole table after each change: an election raises the epoch before the slots have a
/// new master.
const UNSETTLED: Duration = Duration::from_secs(3);
/// The longest pause between two looks: a slot may move without a new epoch.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After this many doubts the watch asks another node: this one may have lost contact with the others.
const DOUBTS_AT_ONE: u32 = 3;
/// How many nodes, and how many seeds, the watch asks at the same time: a frozen node uses up its whole limit.
const AT_ONCE: usize = 2;
/// After this many nodes in a row that know less than others or report the cluster down, the watch believes them: the
/// cluster may be new, or down.
const PASSED_OVER_AT_MOST: u32 = 10;
/// How long another cluster must answer in place of this one before the watch believes it. Addresses that change
/// hands may lead to it for a moment while this cluster's nodes come back elsewhere.
const SETTLED: Duration = Duration::from_secs(5);

pub struct Watch {
    table: Arc<Table<NetworkWire>>,
    access: Arc<Access>,
    seeds: Vec<Address>,
    operation_timeout: Duration,
    /// The nodes that the last look named.
    nodes: Vec<Address>,
    /// The epoch of the last look. The watch does not believe a node that knows less.
    epoch: u64,
    passed_over: u32,
    round: Round,
    /// Another cluster that may have replaced this one: its masters, and since when it answers.
    other: Option<(BTreeSet<String>, Instant)>,
    looked: Instant,
    changed: Instant,
    /// The slots without a master, as last logged.
    uncovered: String,
}

/// A connection to a node, to ask about the cluster.
struct Source {
    address: Address,
    connection: Connection,
}

enum Asked {
    Health(Health),
    All(Look),
}

/// The answers since a node last reported this cluster well.
#[derive(Default)]
struct Round {
    turns: usize,
    answers: Vec<(Address, Answer)>,
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
        let (round, other, epoch, passed_over) = (Round::default(), None, 0, 0);
        Self {
            table,
            access,
            seeds,
            operation_timeout,
            nodes,
            epoch,
            passed_over,
            round,
            other,
            looked,
            changed,
            uncovered,
        }
    }

    /// Asks all seeds at once. Believes the cluster that most of them belong to, and the seed there that knows most.
    pub async fn look_first(&mut self) -> Result<(), ConnectError> {
        let (mut looks, mut first_error) = (Vec::new(), None);
        for outcome in self.ask_seeds().await {
            match outcome {
                Ok((_source, look)) => looks.push(look),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        let best =
            (0..looks.len()).max_by_key(|index| looks.get(*index).map(|look| (look.confirmed_by(&looks), look.rank())));
        // There is at least one seed, so there is an error.
        let Some(best) = best else { return first_error.map_or(Ok(()), Err) };
        let look = looks.swap_remove(best);
        if look.view.ranges.is_empty() {
            return Err(self.no_masters());
        }
        self.apply(look);
        Ok(())
    }

    /// After the first answer, the other seeds have little time left: a dead seed must not hold up the rest.
    async fn ask_seeds(&self) -> Vec<Result<(Source, Look), ConnectError>> {
        let limit = Limit::of(self.operation_timeout);
        let mut asking: FuturesUnordered<_> = self.seeds.iter().map(|seed| self.ask_once(seed, limit)).collect();
        let (mut answers, mut until) = (Vec::new(), None);
        while let Some(answer) = next(&mut asking, until).await {
            if answer.is_ok() {
                until.get_or_insert(now() + PATIENCE);
            }
            answers.push(answer);
        }
        answers
    }

    fn no_masters(&self) -> ConnectError {
        ConnectError::NoMasters { address: self.seeds.first().map(ToString::to_string).unwrap_or_default() }
    }

    fn target(&self, address: &Address) -> Target {
        Target::new(Place::at(address.clone()), self.access.clone(), None)
    }

    async fn ask_once(&self, address: &Address, limit: Limit) -> Result<(Source, Look), ConnectError> {
        let target = self.target(address);
        let source = Source::open(&target, limit).await?;
        // A new limit: the look-up of the seed's name may have used most of the last one.
        let limit = Limit::of(limit.limit);
        let asked = async { source.look(source.health().await?).await };
        let silent = || target.unreachable(Arc::new(Fault::NoAnswer(limit.limit)));
        let look = limit.run(asked).await.ok_or_else(silent)?.map_err(|error| cluster_error(&target, error))?;
        Ok((source, look))
    }

    /// Runs until the client drops it.
    pub async fn run(&mut self) {
        let (mut backoff, mut said, mut failed) = (Backoff::reconnect(), false, 0);
        // Asks other nodes each time: the last one did not answer, or knew less.
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
                    if !said && self.is_complete(failed) {
                        tracing::warn!(target: "fairlock::server", %error, "no node of the cluster reports the table of slots");
                        said = true;
                    }
                }
            }
            if self.is_complete(self.round.turns) {
                self.end_round();
            }
        }
    }

    /// Whether this many turns have asked each known address.
    fn is_complete(&self, turns: usize) -> bool {
        AT_ONCE * turns >= self.nodes.len().max(self.seeds.len())
    }

    /// Finds a node of this cluster, preferably one that reports it well.
    async fn open_next(&mut self, turn: usize) -> Result<Source, ConnectError> {
        let (mut ours, mut error) = (None, None);
        for (address, outcome) in self.ask_some(turn).await {
            let (source, look) = match outcome {
                Ok(answer) => answer,
                Err(failure) => {
                    error = Some(failure);
                    continue;
                }
            };
            match self.is_ours(&look) {
                true if look.is_well() => {
                    (self.round, self.other) = (Round::default(), None);
                    return Ok(source);
                }
                true => ours = Some(source),
                false => error = Some(self.target(&address).unreachable(Arc::new(Fault::AnotherCluster))),
            }
            let is_seed = self.seeds.contains(&address);
            self.round.answers.push((address, Answer { look, is_seed }));
        }
        self.round.turns += 1;
        // There is at least one seed, so there is an answer or an error.
        ours.ok_or_else(|| error.unwrap_or_else(|| self.no_masters()))
    }

    /// Stops at the first node that reports this cluster well. It asks seeds as well as nodes, since all nodes may
    /// have moved to other addresses.
    async fn ask_some(&self, turn: usize) -> Vec<(Address, Result<(Source, Look), ConnectError>)> {
        let limit = Limit::of(self.operation_timeout);
        let some = |of: &[Address]| {
            let all = of.iter().cycle().skip(AT_ONCE * turn % of.len().max(1));
            all.take(AT_ONCE.min(of.len())).cloned().collect::<Vec<_>>()
        };
        let ask = |address: Address| async move { (address.clone(), self.ask_once(&address, limit).await) };
        let mut asking: FuturesUnordered<_> = some(&self.nodes).into_iter().chain(some(&self.seeds)).map(ask).collect();
        let (mut answers, mut until) = (Vec::new(), None);
        while let Some((address, outcome)) = next(&mut asking, until).await {
            let ours = outcome.as_ref().ok().map(|(_source, look)| look).filter(|look| self.is_ours(look));
            if ours.is_some() {
                until.get_or_insert(now() + PATIENCE);
            }
            let is_well = ours.is_some_and(Look::is_well);
            answers.push((address, outcome));
            if is_well {
                break;
            }
        }
        answers
    }

    fn is_ours(&self, look: &Look) -> bool {
        self.table.masters.know(&look.id, &look.view)
    }

    /// The round has asked each known address, and no node reports this cluster well.
    fn end_round(&mut self) {
        let (addresses, mut answers): (Vec<_>, Vec<_>) = std::mem::take(&mut self.round).answers.into_iter().unzip();
        match judge(&self.table.masters.known(), &answers) {
            Verdict::Ours(index) => {
                self.other = None;
                return self.apply(answers.swap_remove(index).look);
            }
            Verdict::Another(index) if self.is_settled(&answers[index].look) => {
                tracing::warn!(target: "fairlock::server", seeds = %list(&self.seeds), "most masters of this cluster were replaced: checking all holds and waits at the new ones");
                (self.other, self.passed_over) = (None, 0);
                self.table.leave_cluster();
                return self.apply(answers.swap_remove(index).look);
            }
            Verdict::Another(_) => {}
            Verdict::Undecided => self.other = None,
        }
        for (address, Answer { look, .. }) in addresses.iter().zip(&answers) {
            if !self.is_ours(look) {
                self.table.leads_elsewhere(address);
            }
        }
    }

    fn is_settled(&mut self, look: &Look) -> bool {
        let masters = || look.view.shards.keys();
        let before = self.other.take().filter(|(before, _)| before.iter().eq(masters()));
        let (_, since) = self.other.insert(before.unwrap_or_else(|| (masters().cloned().collect(), now())));
        now() >= *since + SETTLED
    }

    /// Asks this node repeatedly, until it does not answer or the watch should ask another one.
    async fn watch(&mut self, source: Source) {
        let (mut is_doubtful, mut doubts, opened) = (true, 0, now());
        // While the watch has not fully believed a node, it asks another one every few seconds.
        while doubts < DOUBTS_AT_ONE && (self.passed_over == 0 || now() < opened + LONGEST_PAUSE) {
            let asked = async {
                let health = source.health().await?;
                let is_due = is_doubtful || self.passed_over > 0 || self.is_due(&health);
                Ok::<_, RedisError>(if is_due { Asked::All(source.look(health).await?) } else { Asked::Health(health) })
            };
            match timeout(PATIENCE, asked).await {
                // The node has joined another cluster.
                Ok(Ok(Asked::All(look))) if !self.is_ours(&look) => return,
                Ok(Ok(asked)) if self.is_behind(&asked) => {
                    if self.passed_over < PASSED_OVER_AT_MOST {
                        self.passed_over += 1;
                        return sleep(SHORTEST_PAUSE).await;
                    }
                    // Every node asked lately knows less, so the watch believes them. After the first one, `is_due`
                    // asks for everything.
                    if let Asked::All(look) = asked {
                        self.apply(look);
                    }
                }
                Ok(Ok(asked)) => {
                    self.passed_over = 0;
                    if let Asked::All(look) = asked {
                        self.apply(look);
                    }
                }
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
        // A slot without a master gets one without a new epoch.
        health.epoch != self.epoch
            || !self.uncovered.is_empty()
            || now < self.changed + UNSETTLED
            || now > self.looked + LONGEST_PAUSE
    }

    /// Whether the watch should ask other nodes before believing this one. A removed node reports the cluster down
    /// and names no slots. An isolated node does not learn of a new epoch.
    fn is_behind(&self, asked: &Asked) -> bool {
        let (health, names_nothing) = match asked {
            Asked::Health(health) => (health, false),
            Asked::All(Look { health, view, .. }) => (health, view.ranges.is_empty()),
        };
        health.epoch < self.epoch || !health.is_ok || names_nothing
    }

    fn apply(&mut self, Look { health, view, .. }: Look) {
        // Before the table makes connections: each compares its cluster with these masters.
        self.table.masters.believe(&view);
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
        // An empty view names no nodes. Keep the earlier ones as the best guess.
        if !view.nodes.is_empty() {
            self.nodes = view.nodes;
        }
    }
}

/// The next answer. `until` limits the wait once another node has answered, so that a dead node does not hold up the
/// look.
async fn next<F: Future>(asking: &mut FuturesUnordered<F>, until: Option<Instant>) -> Option<F::Output> {
    match until {
        None => asking.next().await,
        Some(until) => timeout_at(until.into(), asking.next()).await.ok().flatten(),
    }
}

impl Source {
    async fn open(target: &Target, limit: Limit) -> Result<Self, ConnectError> {
        // This connection ignores pushes.
        let SignedIn { connection, .. } = sign_in(target, limit, |_| {}).await?;
        Ok(Self { address: target.place.address.clone(), connection })
    }

    async fn health(&self) -> Result<Health, RedisError> {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut self.connection.io.clone()).await?;
        Ok(Health::read(&info))
    }

    async fn look(&self, health: Health) -> Result<Look, RedisError> {
        let (mut io, mut slots_io) = (self.connection.io.clone(), self.connection.io.clone());
        let (mut my_id, mut slots) = (redis::cmd("CLUSTER"), redis::cmd("CLUSTER"));
        let (id, slots) = try_join(
            my_id.arg("MYID").query_async::<String>(&mut io),
            slots.arg("SLOTS").query_async::<Value>(&mut slots_io),
        )
        .await?;
        let unexpected = |error: Malformed| {
            RedisError::from((redis::ErrorKind::UnexpectedReturnType, "CLUSTER SLOTS", error.to_string()))
        };
        let view = View::read(&slots, &self.address).map_err(unexpected)?;
        Ok(Look { id, health, view })
    }
}
