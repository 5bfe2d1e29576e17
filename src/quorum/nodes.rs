//! The servers of a quorum, and which of them are usable now (Q10).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fairlock_proto::keys::Keys;
use fairlock_proto::question::{Finding, Question};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::driver::client::Client;
use crate::driver::context::Context;
use crate::driver::lock::ask_once;
use crate::store::clock::now;
use crate::store::error::{Cause, ConnectError, Fault, Refusal, RefusalKind, RequestError};
use crate::store::options::OptionsError;
use crate::store::runtime::log_line;
use crate::sync::Mutex;

/// How often to check which nodes are usable, while a call waits at one of them.
const TICK: Duration = Duration::from_millis(50);
/// The pause between probes. A silent node may answer one at once, and fall silent again.
const PAUSE: Duration = Duration::from_millis(200);

pub struct QuorumNode {
    pub client: Arc<Client>,
    /// For messages.
    pub address: String,
    /// Why the client skips it: it did not answer in time, or refuses everything, and has answered nothing since.
    silent: Mutex<Option<Cause>>,
    /// The server's ID, once a comparison has shown that it is no other node. The node's name may lead to another
    /// server later.
    distinct: Mutex<Option<String>>,
    /// Whether the log has reported that it is another node.
    is_told_of: AtomicBool,
    /// Notified while the node is unusable.
    lost: Notify,
}

/// All servers, in the order that all clients share (Q1).
pub struct Nodes {
    pub all: Vec<QuorumNode>,
    /// The context of the first one. All have the same options and owners, and close together.
    pub context: Arc<Context>,
    /// How long a request may take before the client skips its node.
    pub node_timeout: Duration,
    /// Notified when a node becomes usable or unusable.
    pub changed: Notify,
    watch: Mutex<NodeWatch>,
    comparing: Mutex<()>,
}

/// The watch over the nodes, which runs while calls wait at one.
#[derive(Default)]
struct NodeWatch {
    waiting: usize,
    runs: bool,
}

impl QuorumNode {
    fn new(client: Arc<Client>) -> Self {
        let address = client.driver().context().options().address.clone();
        let (silent, distinct, lost) = Default::default();
        Self { client, address, silent, distinct, is_told_of: AtomicBool::new(false), lost }
    }

    fn context(&self) -> &Context {
        self.client.driver().context()
    }

    /// The identity of the server, once connected. `None` if the user lacks the right to ask for it.
    fn server_id(&self) -> Option<String> {
        self.context().runner.server_id()
    }

    /// Whether a comparison showed that it is no other node.
    fn is_distinct(&self, id: &str) -> bool {
        self.distinct.lock().as_deref() == Some(id)
    }

    /// Whether it is connected, answers, and grants.
    fn is_usable(&self) -> bool {
        let runner = &self.context().runner;
        // A single server, so the key does not matter.
        runner.is_connected("") && !runner.is_frozen("") && self.silent.lock().is_none()
    }
}

impl Nodes {
    /// Refuses two addresses of one server: it would count twice, and its loss would be the loss of two.
    pub fn new(clients: Vec<Arc<Client>>, node_timeout: Duration) -> Result<Self, ConnectError> {
        let first = clients.first().ok_or(OptionsError::TooFewServers(0))?;
        let context = first.driver().context().clone();
        let all: Vec<_> = clients.into_iter().map(QuorumNode::new).collect();
        let id = QuorumNode::server_id;
        for (index, node) in all.iter().enumerate() {
            let same =
                |other: &&QuorumNode| other.address == node.address || id(node).is_some() && id(node) == id(other);
            if let Some(other) = all.iter().take(index).find(same) {
                return Err(ConnectError::SameServer { one: other.address.clone(), other: node.address.clone() });
            }
        }
        let (changed, watch, comparing) = Default::default();
        Ok(Self { all, context, node_timeout, changed, watch, comparing })
    }

    pub fn clients(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.all.iter().map(|node| &node.client)
    }

    /// How many nodes must count.
    pub fn majority(&self) -> usize {
        super::majority(self.all.len())
    }

    pub fn usable(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|index| self.is_usable(*index)).collect()
    }

    /// A token for these nodes: the time of the clock that is furthest ahead. A node that has given a later token does
    /// not take it (Q3).
    pub fn token_now(&self, indices: &[usize]) -> u64 {
        let nodes = indices.iter().filter_map(|index| self.all.get(*index));
        let clocks = nodes.map(|node| node.client.driver().server_micros());
        clocks.max().and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0)
    }

    pub fn is_usable(&self, index: usize) -> bool {
        self.all.get(index).is_some_and(QuorumNode::is_usable) && self.same_as(index).is_none()
    }

    /// Why the first node that the client skips does not serve.
    pub fn why_skipped(&self) -> Option<Cause> {
        let is_skipped = |node: &&QuorumNode| !node.is_usable() && !node.context().runner.is_frozen("");
        let node = self.all.iter().find(is_skipped)?;
        let silent = node.silent.lock().clone().filter(|_| node.context().runner.is_connected(""));
        Some(silent.unwrap_or_else(|| node.context().runner.why_no_answer("")))
    }

    /// How much longer each frozen node grants nothing.
    pub fn frozen_for(&self) -> Vec<Duration> {
        let runners = self.all.iter().map(|node| &node.context().runner);
        runners.filter(|runner| runner.is_connected("")).filter_map(|runner| runner.frozen_for("")).collect()
    }

    /// The pairs of addresses that lead to one server.
    pub fn twins(&self) -> Vec<(String, String)> {
        let address = |index: usize| self.all.get(index).map(|node| node.address.clone());
        let twins = (0..self.all.len()).filter_map(|index| Some((address(self.same_as(index)?)?, address(index)?)));
        twins.collect()
    }

    /// The node that is the same server as this one, under another address. It would count twice, and its loss would be
    /// the loss of two. The builder compares the nodes that it reaches; others may connect later.
    pub fn same_as(&self, index: usize) -> Option<usize> {
        let node = self.all.get(index)?;
        let (other, twin) = self.compare(index, node)?;
        if !node.is_told_of.swap(true, Ordering::Relaxed) {
            log_line(|| {
                tracing::warn!(target: "fairlock::quorum", node = %node.address, other = %twin.address, "two addresses of the quorum lead to one server: it counts once");
            });
        }
        Some(other)
    }

    fn compare(&self, index: usize, node: &QuorumNode) -> Option<(usize, &QuorumNode)> {
        let id = node.server_id().filter(|id| !node.is_distinct(id))?;
        // Otherwise a simultaneous comparison of two nodes could find both distinct.
        let _one_at_a_time = self.comparing.lock();
        let same = |(other, node): &(usize, &QuorumNode)| {
            // If both are new, the first one counts.
            let is_same = node.server_id().as_ref() == Some(&id);
            *other != index && is_same && (*other < index || node.is_distinct(&id))
        };
        let found = self.all.iter().enumerate().find(same).filter(|_| !node.is_distinct(&id));
        if found.is_none() {
            *node.distinct.lock() = Some(id);
        }
        found
    }

    /// Resolves when this node is no longer usable. Works only while a [`Waiting`] lives.
    pub async fn lost(&self, index: usize) {
        let Some(node) = self.all.get(index) else { return };
        loop {
            // Registers before looking, so as not to miss a loss between the look and the await.
            let lost = node.lost.notified();
            if !self.is_usable(index) {
                return;
            }
            lost.await;
        }
    }

    /// The node did not answer in time. The client skips it until it has answered a probe (Q10).
    pub fn suspect(self: &Arc<Self>, index: usize, keys: &Arc<Keys>, cause: Cause) {
        let Some(node) = self.all.get(index) else { return };
        let before = node.silent.lock().replace(cause.clone());
        if before.is_none() {
            node.lost.notify_waiters();
            self.changed.notify_waiters();
            let asking = ask_until_it_serves(Arc::downgrade(self), index, keys.clone());
            node.context().spawn(asking);
            // Last, here and below: the log is user code, and may panic.
            tracing::warn!(target: "fairlock::quorum", node = %node.address, %cause, "a server of the quorum is skipped until it serves again");
        }
    }

    /// The fault of a node that did not answer for this long.
    pub fn no_answer(&self) -> Cause {
        Arc::new(Fault::NoAnswer(self.node_timeout))
    }

    /// Watches the nodes while calls wait. `keys`: the keys of any lock, for the probes.
    async fn look_after(self: Arc<Self>, keys: Arc<Keys>) {
        let (mut usable, mut asked) = (self.usable(), now());
        loop {
            sleep(TICK).await;
            // Under the same mutex as the count: a call that comes now finds no task running, and starts another one.
            let goes_on = {
                let mut watch = self.watch.lock();
                watch.runs = watch.waiting > 0 && !self.is_over();
                watch.runs
            };
            if !goes_on {
                return;
            }
            // Often enough to notice a frozen node within an operation time-out. A frozen server causes no error, and
            // the client asks a refusing one again: the waiters in its queue would wait with it.
            if asked + self.context.operation_timeout() / 3 <= now() {
                asked = now();
                self.usable().into_iter().for_each(|index| self.doubt(index, &keys));
            }
            let before = std::mem::replace(&mut usable, self.usable());
            // On each tick: a call that began to wait since the last one may have found the node usable (P9).
            let lost = self.all.iter().enumerate().filter(|(index, _)| !usable.contains(index));
            lost.for_each(|(_, node)| node.lost.notify_waiters());
            if before != usable {
                self.changed.notify_waiters();
            }
        }
    }

    fn is_over(&self) -> bool {
        self.all.iter().any(|node| node.context().over.is_cancelled())
    }

    /// Probes a node, and skips it if it does not serve.
    pub fn doubt(self: &Arc<Self>, index: usize, keys: &Arc<Keys>) {
        let Some(node) = self.all.get(index) else { return };
        let (nodes, keys, client) = (self.clone(), keys.clone(), node.client.clone());
        node.context().spawn(async move {
            let cause = match timeout(nodes.node_timeout, ask_once(&client, &keys, Question::Probe)).await {
                Err(_) => Some(nodes.no_answer()),
                // Not one whose connection has just ended: it may be back in a moment, and calls keep their places
                // there.
                Ok(outcome) => refusal_of_all(&outcome).map(|refusal| Arc::new(refusal.clone()) as Cause),
            };
            if let Some(cause) = cause {
                nodes.suspect(index, &keys, cause);
            }
        });
    }
}

/// The refusal with which the node refuses everything for now, according to a probe. A node that refuses only this name
/// serves.
fn refusal_of_all(outcome: &Result<Finding, RequestError>) -> Option<&Refusal> {
    let Err(RequestError::Refused(refusal)) = outcome else { return None };
    Some(refusal).filter(|refusal| refusal.kind() == RefusalKind::Passing)
}

/// Probes a node that the client skips, in a task of its own. Ends with the clients.
async fn ask_until_it_serves(nodes: Weak<Nodes>, index: usize, keys: Arc<Keys>) {
    loop {
        // Not kept during the pause: the last client may go away while its server is down.
        let Some(nodes) = nodes.upgrade() else { return };
        let Some(node) = nodes.all.get(index) else { return };
        let outcome = ask_once(&node.client, &keys, Question::Probe).await;
        if matches!(outcome, Err(RequestError::Closed | RequestError::RuntimeGone)) {
            return;
        }
        // Without an answer the probe usually took an operation time-out.
        let is_silent = matches!(outcome, Err(RequestError::NotSent(_) | RequestError::Unanswered(_)));
        if !is_silent && refusal_of_all(&outcome).is_none() {
            let _before = node.silent.lock().take();
            nodes.changed.notify_waiters();
            tracing::info!(target: "fairlock::quorum", node = %node.address, "a server of the quorum serves again");
            return;
        }
        drop(nodes);
        sleep(PAUSE).await;
    }
}

/// While this lives, a call waits at a node, and the client watches the nodes.
pub struct Waiting<'a> {
    nodes: &'a Arc<Nodes>,
}

impl<'a> Waiting<'a> {
    pub fn begin(nodes: &'a Arc<Nodes>, keys: &Arc<Keys>) -> Self {
        let begins = {
            let mut watch = nodes.watch.lock();
            watch.waiting += 1;
            !std::mem::replace(&mut watch.runs, true)
        };
        if begins {
            nodes.context.spawn(nodes.clone().look_after(keys.clone()));
        }
        Self { nodes }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.nodes.watch.lock().waiting -= 1;
    }
}
