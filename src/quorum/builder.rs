//! From options to a client of several masters.

#[cfg(feature = "embedded")]
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use uuid::Uuid;

use super::client::QuorumClient;
use super::nodes::{Node, Nodes};
use crate::builder::LockClientBuilder;
use crate::client::LockClient;
use crate::error::{ConnectError, OptionsError};
use crate::store::connect_options::ConnectOptions;
use crate::store::options::in_range;
#[cfg(feature = "embedded")]
use crate::store::{embedded::EmbeddedServer, error::Disconnected};

/// Of the clocks of two servers, if nothing else is said.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
/// With fewer servers no loss of one can be survived.
const FEWEST: usize = 3;

/// Options of a [`QuorumClient`]. All clients of the same locks need the same servers in the same order, and the same
/// [`longest_lease`](Self::longest_lease).
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// use fairlock::{LockClient, QuorumClient};
/// use std::time::Duration;
///
/// let each = LockClient::builder().lease(Duration::from_secs(10)).label("billing worker 7");
/// let client = QuorumClient::builder().nodes(each).connect(["redis://a/", "redis://b/", "redis://c/"]).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct QuorumClientBuilder {
    each: LockClientBuilder,
    node_timeout: Option<Duration>,
    longest_lease: Option<Duration>,
    clock_difference: Duration,
    strict_restart: bool,
}

impl QuorumClient {
    /// Connects with the default options; see [`QuorumClientBuilder`]. Takes at most three times the operation time-out.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// let client = fairlock::QuorumClient::connect(["redis://a/", "redis://b/", "redis://c/"]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] says what is wrong with a URL, a server or its credentials. A minority of the servers may be out of
    /// reach; they are used as soon as they answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConnectError> {
        Self::builder().connect(urls).await
    }

    /// Options to change before connecting.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use std::time::Duration;
    ///
    /// let builder = fairlock::QuorumClient::builder().node_timeout(Duration::from_millis(100));
    /// let client = builder.connect(["redis://a/", "redis://b/", "redis://c/"]).await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> QuorumClientBuilder {
        QuorumClientBuilder::default()
    }
}

impl Default for QuorumClientBuilder {
    fn default() -> Self {
        Self {
            each: LockClient::builder(),
            node_timeout: None,
            longest_lease: None,
            clock_difference: CLOCK_DIFFERENCE,
            strict_restart: true,
        }
    }
}

impl QuorumClientBuilder {
    /// The options of the client of each server: lease, operation time-out, label, prefix and the rest. Its
    /// [`strict_restart`](LockClientBuilder::strict_restart) is set by this builder.
    ///
    /// ```
    /// use fairlock::{LockClient, QuorumClient};
    ///
    /// let builder = QuorumClient::builder().nodes(LockClient::builder().prefix("staging"));
    /// ```
    pub fn nodes(mut self, each: LockClientBuilder) -> Self {
        self.each = each;
        self
    }

    /// How long one server may take to answer before the others go on without it. It is then left out until it has
    /// answered. Defaults to a quarter of the operation time-out, which it may not be above; longer than a round trip to the
    /// slowest server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::QuorumClient::builder().node_timeout(Duration::from_millis(100));
    /// ```
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// The longest lease that any client of these servers asks for. A server that was started without its data counts
    /// only when so much time, and twice the [`clock_difference`](Self::clock_difference), is over. Defaults to the lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::QuorumClient::builder().longest_lease(Duration::from_secs(60));
    /// ```
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.longest_lease = Some(longest);
        self
    }

    /// By how much the clock of each server may be off the true time, while a server is down and until it grants again.
    /// Defaults to 1 s. Tokens come from these clocks; validity does not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = fairlock::QuorumClient::builder().clock_difference(Duration::from_millis(200));
    /// ```
    pub fn clock_difference(mut self, difference: Duration) -> Self {
        self.clock_difference = difference;
        self
    }

    /// Whether a server that was started anew, or has lost its data, does not count until everything that it may have
    /// forgotten is over: see [`LockClientBuilder::strict_restart`]. On by default. New servers wait as long, once. Without
    /// it a server that comes back empty can let two hold the lock.
    ///
    /// ```
    /// let for_tests = fairlock::QuorumClient::builder().strict_restart(false);
    /// ```
    pub fn strict_restart(mut self, strict: bool) -> Self {
        self.strict_restart = strict;
        self
    }

    /// Checks the options and connects to all servers at the same time. A minority of them may be out of reach; they are
    /// used as soon as they answer. Takes at most three times the operation time-out.
    ///
    /// Each URL names one server, or the primary of a service that Sentinels watch; see [`ConnectOptions::from_url`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// let urls = ["redis://one.internal/", "redis://two.internal/", "redis://three.internal/"];
    /// let client = fairlock::QuorumClient::builder().connect(urls).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] says which option is wrong, or which [server](ConnectError::Server): an error that does not pass by
    /// itself is reported although a majority could serve. [`ConnectError::NoQuorum`] if too few can be reached. Two URLs
    /// that lead to one server are refused; without `strict_restart` that is seen only if they are alike. Nothing was
    /// changed on the servers but the record of `strict_restart`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect(self, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<QuorumClient, ConnectError> {
        let servers = urls.into_iter().enumerate().map(|(index, url)| {
            // Not the URL: where it cannot be read nobody knows what in it is a password.
            ConnectOptions::from_url(url).map_err(|error| error.of_server(format!("URL {}", index + 1)))
        });
        let servers: Vec<_> = servers.collect::<Result<_, _>>()?;
        self.connect_with(servers).await
    }

    /// The same with more than URLs say. Takes at most three times the operation time-out.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use fairlock::{ConnectOptions, QuorumClient};
    ///
    /// let servers = ["one.internal", "two.internal", "three.internal"].map(|host| ConnectOptions::tcp(host, 6379));
    /// let client = QuorumClient::builder().connect_with(servers).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect).
    pub async fn connect_with(
        self,
        servers: impl IntoIterator<Item = ConnectOptions>,
    ) -> Result<QuorumClient, ConnectError> {
        let servers: Vec<_> = servers.into_iter().collect();
        if servers.iter().any(ConnectOptions::is_cluster) {
            return Err(OptionsError::QuorumOfClusters.into());
        }
        let checked = self.check(servers.len())?;
        // The same for all, so that an owner has one name.
        let id = Uuid::new_v4().simple().to_string();
        let connecting = servers.into_iter().map(|server| {
            let (each, id, address) = (checked.each.clone(), id.clone(), server.to_string());
            async move { (address.clone(), each.node(address).connect_or_go_on(server, id).await) }
        });
        let (mut nodes, mut connected, mut first_error) = (Vec::new(), 0, None);
        for (address, outcome) in join_all(connecting).await {
            let of_server = |error: ConnectError| error.of_server(address.clone());
            let (client, outcome) = outcome.map_err(of_server)?;
            match outcome.map_err(of_server) {
                Ok(()) => connected += 1,
                Err(error) if error.may_pass() => drop(first_error.get_or_insert(error)),
                Err(error) => return Err(error),
            }
            nodes.push(Node::new(client.engine().clone(), address));
        }
        let nodes = checked.nodes(nodes)?;
        match first_error {
            Some(error) if connected < nodes.majority() && !checked.each.goes_on() => {
                Err(no_quorum(&nodes, connected, error))
            }
            _ => Ok(QuorumClient::new(nodes, checked.longest_lease, checked.each.metrics())),
        }
    }

    /// The same with servers inside this process, for a first look and for tests.
    ///
    /// ```
    /// use fairlock::{EmbeddedServer, QuorumClient};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let servers = [EmbeddedServer::new(), EmbeddedServer::new(), EmbeddedServer::new()];
    /// let client = QuorumClient::builder().strict_restart(false).embedded(&servers)?;
    /// servers[1].shut_down();
    /// let guard = client.lock("orders:42").lock().await?;
    /// assert_eq!(guard.nodes(), [0, 2]);
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "embedded")]
    #[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
    pub fn embedded(self, servers: &[EmbeddedServer]) -> Result<QuorumClient, ConnectError> {
        let checked = self.check(servers.len())?;
        let id = servers.first().map(EmbeddedServer::next_client).unwrap_or_default();
        let (mut nodes, mut connected) = (Vec::new(), 0);
        for (number, server) in servers.iter().enumerate() {
            let address = format!("embedded server {number}");
            let each = checked.each.clone().node(address.clone());
            let (client, is_connected) = each.embedded_or_go_on(server, id.clone())?;
            connected += usize::from(is_connected);
            nodes.push(Node::new(client.engine().clone(), address));
        }
        let nodes = checked.nodes(nodes)?;
        // As over connections: a minority may be down.
        if connected < nodes.majority() && !checked.each.goes_on() {
            let address = "an embedded server".to_owned();
            let error = ConnectError::Unreachable { address, cause: Arc::new(Disconnected) };
            return Err(no_quorum(&nodes, connected, error));
        }
        Ok(QuorumClient::new(nodes, checked.longest_lease, checked.each.metrics()))
    }

    fn check(self, servers: usize) -> Result<Checked, OptionsError> {
        if servers < FEWEST {
            return Err(OptionsError::TooFewServers(servers));
        }
        let (lease, operation_timeout) = self.each.lease_and_operation_timeout();
        // First those that the others are made of, so that the one is named that was set.
        in_range("lease", lease)?;
        in_range("operation_timeout", operation_timeout)?;
        let longest_lease = self.longest_lease.unwrap_or(lease);
        in_range("longest_lease", longest_lease)?;
        let node_timeout = self.node_timeout.unwrap_or(operation_timeout / 4);
        if let Some(set) = self.node_timeout {
            in_range("node_timeout", set)?;
        }
        // Unlike the others it may be zero.
        in_range("clock_difference", self.clock_difference.max(Duration::from_millis(1)))?;
        let fits = |larger: (&'static str, Duration), smaller: (&'static str, Duration), reason| {
            let [(larger, larger_value), (smaller, smaller_value)] = [larger, smaller];
            let error = OptionsError::TooShort { larger, larger_value, smaller, smaller_value, reason };
            if larger_value >= smaller_value { Ok(()) } else { Err(error) }
        };
        fits(
            ("longest_lease", longest_lease),
            ("lease", lease),
            "a restarted server would grant a lock that it has forgotten, and that is still held",
        )?;
        fits(
            ("operation_timeout", operation_timeout),
            ("node_timeout", node_timeout),
            "a request that has ended cannot be waited for",
        )?;
        // Q8: the tokens of a server that has forgotten all come from its clock.
        let freeze = longest_lease + 2 * self.clock_difference;
        if self.strict_restart {
            in_range("longest_lease and twice the clock_difference", freeze)?;
        }
        let each = if self.strict_restart { self.each.strict_restart(freeze) } else { self.each };
        Ok(Checked { each, node_timeout, longest_lease })
    }
}

fn no_quorum(nodes: &Nodes, connected: usize, error: ConnectError) -> ConnectError {
    let (all, majority) = (nodes.all.len(), nodes.majority());
    ConnectError::NoQuorum { connected, all, majority, cause: Box::new(error) }
}

/// Options that fit together.
struct Checked {
    each: LockClientBuilder,
    node_timeout: Duration,
    longest_lease: Duration,
}

impl Checked {
    fn nodes(&self, nodes: Vec<Node>) -> Result<Nodes, ConnectError> {
        let id = Node::server_id;
        for (index, node) in nodes.iter().enumerate() {
            let same_address = |other: &&Node| other.address == node.address;
            let same = |other: &&Node| same_address(other) || id(node).is_some() && id(node) == id(other);
            // It would count twice, and its loss would be that of two.
            if let Some(other) = nodes.iter().take(index).find(same) {
                return Err(ConnectError::SameServer { one: other.address.clone(), other: node.address.clone() });
            }
        }
        Ok(Nodes::new(nodes, self.node_timeout))
    }
}
