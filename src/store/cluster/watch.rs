//! Keeps the table of a cluster: asks its nodes, one at a time, whether anything has changed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::{sleep, timeout};

use super::table::Table;
use super::view::{View, epoch};
use crate::store::clock::now;
use crate::store::connect_options::Address;
use crate::store::connection::{Connection, refusal};
use crate::store::dial::{Access, Limit, Target};
use crate::store::error::ConnectError;
use crate::store::node::{Node, connect_error};

/// How often a node is asked: a client has to leave a demoted master within a second.
const INTERVAL: Duration = Duration::from_millis(400);
/// How long a node may take: one that is frozen must not keep the others from being asked.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at the whole table, however many requests are redirected.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// A node whose epoch is behind is asked again that often, then believed: the cluster may have been made
/// anew.
const DOUBTED_AT_MOST: u32 = 10;

pub struct Watch {
    table: Arc<Table<Node>>,
    access: Arc<Access>,
    seeds: Vec<Address>,
    operation_timeout: Duration,
    /// The nodes that the last look has named.
    nodes: Vec<Address>,
    /// Of the last look: a node that knows less is not believed.
    epoch: u64,
    doubted: u32,
    /// The slots without a master, as the log has said it.
    uncovered: String,
}

/// A connection to a node that is asked about the cluster.
struct Source {
    address: Address,
    connection: Connection,
}

/// What a node answers.
struct Look {
    epoch: u64,
    view: View,
}

impl Watch {
    pub fn new(table: Arc<Table<Node>>, access: Arc<Access>, seeds: Vec<Address>, operation_timeout: Duration) -> Self {
        let (nodes, uncovered) = (Vec::new(), String::new());
        Self { table, access, seeds, operation_timeout, nodes, epoch: 0, doubted: 0, uncovered }
    }

    /// Asks all seeds at once, and believes the one that knows most.
    pub async fn look_first(&mut self) -> Result<(), ConnectError> {
        let limit = Limit { limit: self.operation_timeout, until: now() + self.operation_timeout };
        let asked = join_all(self.seeds.iter().map(|seed| self.ask_once(seed, limit))).await;
        let (looks, errors): (Vec<_>, Vec<_>) = asked.into_iter().partition(Result::is_ok);
        let best = looks.into_iter().flatten().max_by_key(|look| (!look.view.ranges.is_empty(), look.epoch));
        let Some(look) = best else {
            // There is at least one seed, so there is an error.
            return errors.into_iter().find_map(Result::err).map_or(Ok(()), Err);
        };
        if look.view.ranges.is_empty() {
            let address = self.seeds.first().map(ToString::to_string).unwrap_or_default();
            return Err(ConnectError::NoMasters { address });
        }
        self.apply(look);
        Ok(())
    }

    async fn ask_once(&self, address: &Address, limit: Limit) -> Result<Look, ConnectError> {
        let target = Target::new(address.clone(), self.access.clone(), None);
        let mut source = Source::open(&target, limit).await?;
        let asked = async { Ok((source.epoch().await?, source.view().await?)) };
        let silent = || target.unreachable(Arc::new(crate::store::error::NoAnswer(limit.limit)));
        let (epoch, view) =
            limit.run(asked).await.ok_or_else(silent)?.map_err(|error| cluster_error(&target, error))?;
        Ok(Look { epoch, view })
    }

    /// Until it is dropped, with its client.
    pub async fn run(mut self) {
        // Another node each time: the last one did not answer.
        for turn in 0_usize.. {
            let candidates: Vec<_> = self.nodes.iter().chain(&self.seeds).collect();
            let Some(address) = candidates.get(turn % candidates.len().max(1)) else { return };
            let target = Target::new((*address).clone(), self.access.clone(), None);
            let limit = Limit { limit: PATIENCE, until: now() + PATIENCE };
            match Source::open(&target, limit).await {
                Ok(source) => self.watch(source).await,
                Err(error) => {
                    tracing::debug!(address = %target.address(), %error, "cannot ask this node of the cluster")
                }
            }
            // Also if all fail at once: then this is no busy loop.
            sleep(SHORTEST_PAUSE).await;
        }
    }

    /// Asks this node again and again, until it does not answer or knows less than others.
    async fn watch(&mut self, mut source: Source) {
        let mut is_doubtful = true;
        loop {
            let asked = async {
                let epoch = source.epoch().await?;
                // A slot that had no master gets one without a new epoch.
                let is_due = is_doubtful || epoch != self.epoch || !self.uncovered.is_empty();
                let view = if is_due { Some(source.view().await?) } else { None };
                Ok::<_, RedisError>((epoch, view))
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok((epoch, _))) if epoch < self.epoch && self.doubted < DOUBTED_AT_MOST => {
                    self.doubted += 1;
                    return;
                }
                Ok(Ok((epoch, Some(view)))) => self.apply(Look { epoch, view }),
                Ok(Ok((_, None))) => {}
                _ => return,
            }
            let table = self.table.clone();
            tokio::select! {
                () = sleep(INTERVAL) => is_doubtful = false,
                () = table.doubt.notified() => {
                    is_doubtful = true;
                    sleep(SHORTEST_PAUSE).await;
                }
            }
        }
    }

    fn apply(&mut self, Look { epoch, view }: Look) {
        (self.epoch, self.doubted) = (epoch, 0);
        self.table.replace(&view.ranges);
        let uncovered = view.uncovered();
        if uncovered != self.uncovered {
            if uncovered.is_empty() {
                tracing::info!("all slots of the cluster are served again");
            } else {
                tracing::warn!(slots = %uncovered, "slots of the cluster have no master: their locks wait");
            }
            self.uncovered = uncovered;
        }
        // An empty view names nobody, and the nodes of before are then the best guess.
        if !view.nodes.is_empty() {
            self.nodes = view.nodes;
        }
    }
}

impl Source {
    async fn open(target: &Target, limit: Limit) -> Result<Self, ConnectError> {
        let credentials = target.credentials(limit).await?;
        let stream = target.dial(limit).await?;
        let first = stream.first_bytes();
        // It hears nothing that it has not asked for.
        let opened = limit.run(Connection::open(stream, &credentials, |_| {})).await;
        let connection = opened.ok_or_else(|| target.silent(&first, limit))?;
        let connection = connection.map_err(|error| crate::store::node::sign_in_error(target, error, &first))?;
        Ok(Self { address: target.address.clone(), connection })
    }

    fn io(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection.io
    }

    async fn epoch(&mut self) -> Result<u64, RedisError> {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(self.io()).await?;
        // Without it every answer counts as new.
        Ok(epoch(&info).unwrap_or(u64::MAX))
    }

    async fn view(&mut self) -> Result<View, RedisError> {
        let slots: Value = redis::cmd("CLUSTER").arg("SLOTS").query_async(self.io()).await?;
        let unexpected = |error: crate::store::reply::Malformed| {
            RedisError::from((redis::ErrorKind::UnexpectedReturnType, "CLUSTER SLOTS", error.to_string()))
        };
        View::read(&slots, &self.address).map_err(unexpected)
    }
}

/// A server that answers CLUSTER with an error is not in a cluster, or its user may not ask.
fn cluster_error(target: &Target, error: RedisError) -> ConnectError {
    match refusal(&error) {
        Some(refusal) if refusal.is_about_rights() => {
            ConnectError::Rights { missing: vec!["+cluster|info".to_owned(), "+cluster|slots".to_owned()] }
        }
        Some(refusal) if refusal.message.contains("cluster support disabled") => {
            ConnectError::NotCluster { address: target.address() }
        }
        _ => connect_error(target, error),
    }
}
