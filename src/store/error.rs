//! Why there is no connection, or no answer to a request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::options::OptionsError;

/// An underlying error. Shared, because several waiting tasks may fail for the same reason.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A request that the server refused.
///
/// Usually the request did not run and changed nothing; see [`in_script`](Self::in_script).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The first word of the server's error, such as `WRONGTYPE` or `OOM`. A missing right is always `NOPERM`,
    /// although servers report it as `ERR` inside a script.
    pub code: String,
    /// The rest of the server's error.
    pub message: String,
    /// The server refused a command inside a script. Redis does not roll back, so the script's earlier commands took
    /// effect. After `lock`, `lock_timeout` and `try_lock` the client undoes them in the background. It repeats a
    /// release. After `force_unlock` it does nothing more.
    pub in_script: bool,
}

/// The beginning of Redis' reply to a command that it does not know.
const UNKNOWN: &str = "unknown command '";

/// How to handle a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// It may pass: a failover, a full disk, another client's slow script.
    Passing,
    /// A retry is useless until someone changes something. The request changed nothing.
    Final,
    /// Part of a script has run.
    Unknown,
}

impl Refusal {
    /// From the code and the rest of the server's error.
    pub(crate) fn new(code: &str, message: &str) -> Self {
        // Redis appends the place in the script where the error was raised. Search from the end: a key name in the
        // message may contain the same words. The scripts' own checks come before their first write, and their
        // messages begin with the library's name.
        let acl_failure = message.strip_prefix("ACL failure in script: ");
        let message = acl_failure.unwrap_or(message);
        let (text, place) =
            message.rsplit_once(" script: ").map_or((message, None), |(text, place)| (text, Some(place)));
        let is_own_check = text.contains("fairlock: ");
        // For an unknown command, Redis repeats the arguments. The first argument of EVAL is a whole script.
        let text = match text.split_once("', with args beginning with") {
            Some((command, _arguments)) if command.starts_with(UNKNOWN) => format!("{command}'"),
            _ => text.trim_end_matches(',').to_owned(),
        };
        // Inside a script, the error for a missing right lacks a code. Redis 7.0 uses these words; later versions and
        // Valkey use those above.
        let lacks_right = acl_failure.is_some() || text.starts_with("The user executing the script can't ");
        Self {
            code: if lacks_right { "NOPERM" } else { code }.to_owned(),
            message: text,
            in_script: acl_failure.is_some() || place.is_some() && !is_own_check,
        }
    }

    /// Replaces the message by the rights that the user lacks, as the server reported them in a check.
    pub(crate) fn lacks(&mut self, missing: &[String]) {
        self.message = lacking(missing);
    }

    /// Whether the same request may succeed later although nobody has changed anything: for example, the server is
    /// loading its data, has reached `maxclients`, or is failing over. False if part of a script [has
    /// run](Self::in_script).
    ///
    /// ```
    /// fn is_worth_a_retry(error: &fairlock::RequestError) -> bool {
    ///     matches!(error, fairlock::RequestError::Refused(refusal) if refusal.may_pass())
    /// }
    /// ```
    pub fn may_pass(&self) -> bool {
        self.kind() == RefusalKind::Passing
    }

    /// The server closed this connection because it has reached `maxclients`. In a cluster, the bus counts too.
    fn is_full(&self) -> bool {
        self.message.starts_with("max number of clients ")
    }

    pub(crate) fn is_about_rights(&self) -> bool {
        self.code == "NOPERM"
    }

    pub(crate) fn kind(&self) -> RefusalKind {
        match self.code.as_str() {
            // First, because the code is not enough: OOM before a script is harmless, OOM inside one comes after
            // writes (decision 41).
            _ if self.in_script => RefusalKind::Unknown,
            _ if self.is_full() => RefusalKind::Passing,
            "LOADING" | "READONLY" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK"
            | "NOREPLICAS" | "MISCONF" | "OOM" | "NOBOOT" => RefusalKind::Passing,
            _ => RefusalKind::Final,
        }
    }

    /// The record of boot.lua is gone, and perhaps the server's data as well. The request did not run.
    pub(crate) fn lacks_boot(&self) -> bool {
        self.code == "NOBOOT"
    }

    /// The server lacks the script, the record of its start, or the keys. The request did not run.
    pub(crate) fn is_for_the_long_way(&self) -> bool {
        self.code == "NOSCRIPT" || self.lacks_boot() || self.is_of_a_slot()
    }

    /// A cluster's error about one slot: its keys are moving, or no node serves it. Other errors concern the whole
    /// server.
    pub(crate) fn is_of_a_slot(&self) -> bool {
        matches!(self.code.as_str(), "TRYAGAIN" | "MOVED" | "ASK")
            || self.code == "CLUSTERDOWN" && self.message.contains("slot")
    }

    /// Whether another server is the primary now, or the primary is not up yet.
    pub(crate) fn means_another_primary(&self) -> bool {
        // BUSY, MISCONF and the like do not count: a primary reports them too, and would report the same on a new
        // connection.
        matches!(self.code.as_str(), "READONLY" | "LOADING" | "MASTERDOWN")
    }

    /// What someone can do about it. `None`: unknown for this code.
    fn advice(&self) -> Option<&'static str> {
        Some(match self.code.as_str() {
            "WRONGTYPE" => "delete that key, or use another lock name or key prefix",
            "NOPERM" => {
                "give the user the keys and channels of the prefix and the commands that docs/deploying.md lists"
            }
            "NOAUTH" | "WRONGPASS" => "put the right user and password into the URL",
            "OOM" => "free memory on the server, and use maxmemory-policy noeviction",
            "READONLY" => "connect to the primary: this server is a replica",
            "MISCONF" => "the server cannot persist: see its log",
            "NOREPLICAS" => "min-replicas-to-write is not met: see the server's replicas",
            "LOADING" | "MASTERDOWN" | "BUSY" => "the server is not ready: try again",
            "TRYAGAIN" | "MOVED" | "ASK" => "the cluster moves the slot of this lock: try again",
            "CLUSTERDOWN" => "part of the cluster is down: see CLUSTER INFO",
            _ if self.is_full() => "the server has no room for one more client: end some, or raise maxclients",
            _ if self.message.starts_with(UNKNOWN) => "that command was renamed or disabled on the server",
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (", self.code, self.message)?;
        // The request's own error states the consequence.
        let ran = if self.in_script { "part of the request may have run" } else { "nothing was changed" };
        match self.advice() {
            Some(advice) if self.in_script => write!(f, "{advice}; {ran})"),
            Some(advice) => write!(f, "{advice})"),
            None => write!(f, "{ran})"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A name that no lock can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("a lock needs a name of at least one byte")]
    Empty,
    /// The name is longer than 1024 bytes.
    #[error("the name has {0} bytes; 1024 are allowed: use a hash of it")]
    TooLong(usize),
}

/// Why a single request, such as [`status`](crate::FairLock::status) or
/// [`force_unlock`](crate::FairLock::force_unlock), got no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No lock can have this name. The client sent nothing.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The client sent nothing: it was not connected, the server was refusing all requests, or too many of the
    /// client's other requests were queued before this one. The text has the reason.
    #[error("not sent: {0}")]
    NotSent(Cause),
    /// The client sent the request, but got no answer in time. The request may have run, or may run later.
    ///
    /// The client never retries `force_unlock`, since a second run could end the next holder's hold. Look at
    /// [`status`](crate::FairLock::status) before you repeat it.
    #[error("sent, but without an answer: {0}; it may have run, or may run later")]
    Unanswered(Cause),
    /// The server refused the request. If it refused [inside a script](Refusal::in_script), a `force_unlock` may have
    /// run in part: look at [`status`](crate::FairLock::status) before you repeat it.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// Semaphores and read-write locks need one server, and this client has several masters. The client sent nothing.
    #[error("semaphores and read-write locks need one server: several masters do not support them")]
    SeveralServers,
    /// The client is closed. It sent nothing.
    #[error("the client is closed")]
    Closed,
    /// The client's runtime has ended, and the connection with it. A request under way may have run. See
    /// [`LockClientBuilder::runtime`](crate::LockClientBuilder::runtime).
    #[error("the runtime of this client has ended: make the client in a runtime that lives longer")]
    RuntimeGone,
}

/// Semaphores and read-write locks need one server.
#[derive(Debug, Clone, Copy)]
pub struct SeveralServers;

impl From<SeveralServers> for RequestError {
    fn from(SeveralServers: SeveralServers) -> Self {
        Self::SeveralServers
    }
}

/// Why connecting failed. The server's data did not change.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of range, or two options do not fit together.
    #[error("invalid options: {0}")]
    Options(OptionsError),
    /// No tokio runtime can run the client: there is none here, its time or io driver is missing, or it has ended.
    #[error("there is no tokio runtime here: call it in one, with its time and io drivers enabled")]
    NoRuntime,
    /// fairlock cannot use the redis crate's description of a server.
    #[error("this redis::ConnectionInfo cannot be used: {0}")]
    ConnectionInfo(ConnectionInfoError),
    /// The text is not a Redis URL.
    #[error("not a Redis URL, such as redis://user:password@host:6379/0 or unix:///run/redis.sock: {0}")]
    Url(String),
    /// `rediss://` without the feature `tls`.
    #[error("rediss:// needs fairlock's feature `tls`: enable it in Cargo.toml")]
    TlsNotBuilt,
    /// No connection to that address, or no answer: the name cannot be resolved, nothing listens there, the server is
    /// silent, or it is not Redis. This may pass.
    #[error("cannot reach the server at {address}: {cause}")]
    #[non_exhaustive]
    Unreachable {
        /// Host and port, or the path of the socket.
        address: String,
        /// The cause.
        cause: Cause,
    },
    /// This client rejects the server's TLS certificate, or the server rejects this client's.
    #[error("no TLS connection to the server at {address}: the certificate is not accepted: {reason}")]
    #[non_exhaustive]
    Certificate {
        /// Host and port.
        address: String,
        /// Which rule the certificate breaks, and advice.
        reason: String,
    },
    /// The user or password is wrong or missing.
    #[error("the server does not accept the user or password: {0}")]
    Credentials(Refusal),
    /// The [provider](crate::ConnectOptions::credentials_provider) of user and password failed.
    #[error("the credentials provider failed: {0}")]
    CredentialsProvider(Cause),
    /// The [provider](crate::ConnectOptions::certificates_provider) of certificates failed, or TLS cannot use its
    /// certificates.
    #[error("the certificates provider failed: {0}")]
    CertificatesProvider(Cause),
    /// The user may not run what the scripts need, or a command is renamed or disabled on the server. Nothing ran.
    #[error("{}{}", lacking(missing), beside_rights(missing))]
    #[non_exhaustive]
    Rights {
        /// Each missing right as `ACL SETUSER` takes it: `+command`, `~keys`, `&channels`. The client uses EVAL to
        /// find out: a user without the right to EVAL lacks `+eval`, and may lack more.
        missing: Vec<String>,
    },
    /// The server is a node of a Redis Cluster, but the URL is for a single server.
    #[error("the server is a node of a Redis Cluster: connect with redis+cluster://host:port")]
    Cluster,
    /// The server is not a node of a cluster, but the URL is for one.
    #[error("the server at {address} is not a cluster node: connect with redis://{address}/")]
    #[non_exhaustive]
    NotCluster {
        /// Host and port.
        address: String,
    },
    /// No slot of the cluster has a master yet, as before `redis-cli --cluster create`. This may pass.
    #[error(
        "the cluster is not ready: none of its slots is assigned to a master yet: see CLUSTER SLOTS and CLUSTER INFO at \
         {address}, and create the cluster if it does not exist"
    )]
    #[non_exhaustive]
    NoMasters {
        /// Host and port of the node that reported this.
        address: String,
    },
    /// Two servers of a quorum are the same. It would count twice, and losing it would lose two.
    #[error("{one} and {other} lead to the same server: a quorum needs servers that fail independently")]
    #[non_exhaustive]
    SameServer {
        /// The URL of one of them, without the password.
        one: String,
        /// The other address.
        other: String,
    },
    /// The error of one of the servers of a quorum.
    #[error("{server}: {cause}")]
    #[non_exhaustive]
    Server {
        /// The server's URL without the password, or its number if the client does not know the URL.
        server: String,
        /// The error at that server.
        cause: Box<ConnectError>,
    },
    /// The client can reach fewer than a majority of the quorum's servers. This may pass.
    #[error("{connected} of {all} servers can be reached, and {majority} are needed: {cause}")]
    #[non_exhaustive]
    NoQuorum {
        /// How many servers the client can reach.
        connected: usize,
        /// How many servers there are.
        all: usize,
        /// How many it needs.
        majority: usize,
        /// The error of one of the other servers.
        cause: Box<ConnectError>,
    },
    /// The server is a Sentinel, but the URL is for a single server.
    #[error("the server is a Sentinel, which keeps no data: connect with redis-sentinel://host:port/service")]
    Sentinel,
    /// The server is not a Sentinel, but the URL names it as one.
    #[error("the server at {address} is not a Sentinel: their usual port is 26379")]
    #[non_exhaustive]
    NotSentinel {
        /// Host and port.
        address: String,
    },
    /// A Sentinel does not accept the user or password for Sentinels. User and password in the URL are for the
    /// servers.
    #[error(
        "the Sentinel at {address} does not accept the user or password: set sentinel_username and sentinel_password: {reason}"
    )]
    #[non_exhaustive]
    SentinelCredentials {
        /// Host and port.
        address: String,
        /// The Sentinel's own words.
        reason: String,
    },
    /// More than half of the Sentinels do not know the service: not yet, or under another name. This may pass.
    #[error(
        "the Sentinels do not know the service {service:?} yet, or it has another name: see `sentinel monitor` in their \
         configuration"
    )]
    #[non_exhaustive]
    UnknownService {
        /// The name in the URL.
        service: String,
    },
    /// No more than half of the Sentinels name the same primary: too few answer, or they disagree, as they do for a
    /// moment during a failover. This may pass.
    #[error("no majority of the Sentinels names a primary of {service:?}: {answers}")]
    #[non_exhaustive]
    NoMajority {
        /// The name of the service.
        service: String,
        /// What each Sentinel answered.
        answers: String,
    },
    /// The server is too old.
    #[error("the server is Redis {found}: upgrade it to Redis 7.0 or Valkey 7.2, or later")]
    #[non_exhaustive]
    TooOld {
        /// The version that the server reports.
        found: String,
    },
    /// The server is a replica.
    #[error("the server is a read-only replica: connect to its primary")]
    ReadOnly,
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart) cannot detect restarts of this server: its INFO
    /// lacks a field. A proxy may hide it.
    #[error(
        "strict_restart needs the field {missing} of INFO, which the server does not report: leave strict_restart out"
    )]
    #[non_exhaustive]
    NoLife {
        /// The missing field.
        missing: &'static str,
    },
    /// The server refused something else.
    #[error("the server refused: {0}")]
    Refused(Refusal),
}

/// Why a [`redis::ConnectionInfo`] does not convert into [`ConnectOptions`](crate::ConnectOptions).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionInfoError {
    /// TLS that accepts any certificate (`insecure: true`, `#insecure` in a URL). fairlock always verifies the
    /// server.
    #[error(
        "it accepts any certificate (`insecure`), and fairlock always verifies the server: make ConnectOptions with \
         root_certificate, set to the authority that signed the server's certificate"
    )]
    Insecure,
    /// Certificates or other TLS settings (`tls_params`, from `Client::build_with_tls`), which the redis crate keeps
    /// private.
    #[error(
        "the certificates in it cannot be read from outside of the redis crate: make ConnectOptions with root_certificate and \
         client_certificate"
    )]
    Certificates,
    /// TLS without the feature `tls`.
    #[error("it asks for TLS, which needs fairlock's feature `tls`: enable it in Cargo.toml")]
    TlsNotBuilt,
    /// A negative database number.
    #[error("there is no database {0}")]
    Database(i64),
    /// A kind of address that this version does not know.
    #[error("{0} is a kind of address that fairlock does not support")]
    Address(String),
}

impl RequestError {
    /// Chooses one of several servers' errors. `NotSent` only if there is no other, since it says least.
    pub(crate) fn most_telling(errors: impl Iterator<Item = Self>) -> Option<Self> {
        errors.max_by_key(|error| !matches!(error, Self::NotSent(_)))
    }

    /// Whether the request has, or may have, changed something.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unanswered(_) | Self::RuntimeGone => true,
            Self::Refused(refusal) => refusal.in_script,
            _ => false,
        }
    }
}

fn lacking(missing: &[String]) -> String {
    format!("the user lacks rights that locks need: ACL SETUSER <user> {}", missing.join(" "))
}

/// Another explanation if these rights are missing at the start.
fn beside_rights(missing: &[String]) -> &'static str {
    if missing == ["+eval"] {
        return "; more may be missing, which only EVAL can ask: docs/deploying.md lists all that locks need";
    }
    // The server gives the same answer for a command that it does not have.
    if missing.iter().any(|right| right.starts_with('+')) {
        return " (or the command was renamed or disabled on the server)";
    }
    // `%R~` alone is not enough.
    if missing.iter().any(|right| right.starts_with('~')) { " (to read these keys and to write them)" } else { "" }
}

impl ConnectError {
    /// The cause alone, without the server's address.
    pub(crate) fn into_cause(self) -> Cause {
        match self {
            Self::Unreachable { cause, .. } => cause,
            other => Arc::new(other),
        }
    }

    /// The same error, with the server of a quorum that it comes from.
    pub(crate) fn of_server(self, server: String) -> Self {
        match self {
            // These are the same for all servers.
            Self::Options(_) | Self::NoRuntime => self,
            error => Self::Server { server, cause: Box::new(error) },
        }
    }

    /// Whether a later attempt may succeed although no setting, right or password has changed. The server has not
    /// refused the client, but is not ready: it is down, its name cannot be resolved yet, it is loading its data, it
    /// has reached `maxclients`, or it is still a replica; no slot of the cluster has a master yet; the Sentinels do
    /// not know the service yet, or too few of them answer.
    ///
    /// With [`retry_on_initial_connect`](crate::LockClientBuilder::retry_on_initial_connect) the client starts in all
    /// of these cases.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::ConnectError> {
    /// use std::time::Duration;
    ///
    /// use fairlock::LockClient;
    ///
    /// let client = loop {
    ///     match LockClient::connect("redis://127.0.0.1/").await {
    ///         Err(error) if error.may_pass() => eprintln!("not ready yet: {error}"),
    ///         outcome => break outcome?,
    ///     }
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    /// };
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::ReadOnly
            | Self::NoMasters { .. }
            | Self::UnknownService { .. }
            | Self::NoMajority { .. }
            | Self::NoQuorum { .. } => true,
            Self::Refused(refusal) => refusal.may_pass(),
            Self::Server { cause, .. } => cause.may_pass(),
            _ => false,
        }
    }
}

impl From<ConnectionInfoError> for ConnectError {
    fn from(error: ConnectionInfoError) -> Self {
        Self::ConnectionInfo(error)
    }
}

impl From<OptionsError> for ConnectError {
    fn from(error: OptionsError) -> Self {
        // Not `#[from]`: thiserror would also make it the source, and a printed error chain would repeat it.
        Self::Options(error)
    }
}

/// What prevents a connection to a server. The text has advice.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Obstacle {
    #[error("no answer within {0:?}")]
    NotProvided(Duration),
    #[error("it panicked")]
    Panicked,
    #[error("the host name cannot be resolved: {0}")]
    Name(Arc<std::io::Error>),
    #[error("the host name was not resolved within {0:?}: the resolver is slow, or cannot be reached")]
    SlowName(Duration),
    #[error("{look_up}; and the server cannot be reached at its earlier address {address} either: {cause}")]
    Earlier { look_up: Cause, address: std::net::SocketAddr, cause: Cause },
    #[error("another server answers there now: its run_id differs")]
    AnotherServer,
    #[error("cannot tell whether it is the same server: the user needs +info to read its run_id")]
    NoRunId,
    #[error("the connection was refused: no server listens there")]
    Refused,
    #[error("there is no such socket: the server does not run, or its `unixsocket` is another path")]
    NoSocket,
    #[error("no connection within {0:?}: the host is down, or a firewall is in the way")]
    NoConnection(Duration),
    #[cfg(feature = "tls")]
    #[error("it accepted the connection, but did not answer the TLS handshake within {0:?}: does it use TLS there?")]
    NoHandshake(Duration),
    #[cfg(feature = "tls")]
    #[error(
        "it refused the TLS handshake ({0}): it shares no TLS version or no cipher with this client, or it \
         requires a client certificate"
    )]
    NothingInCommon(String),
    #[error("it accepted the connection, but did not answer within {0:?}")]
    Silent(Duration),
    #[error(
        "it accepted the connection, and then closed it or sent no Redis reply: does Redis listen there, is TLS on at \
         both ends (rediss://) or at neither (redis://), and is maxclients reached?"
    )]
    NoRedis,
}

/// Why the client did not send a request, or got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// The connection was closed while requests were waiting for it.
    #[error("the connection has ended")]
    Disconnected,
    /// No attempt to connect has ended yet.
    #[error("there is no connection to the server yet")]
    NotConnected,
    /// No node of the cluster serves this slot.
    #[error("no master of the cluster serves slot {0}: see CLUSTER INFO")]
    Uncovered(u16),
    /// The node does not know most masters of the client's cluster.
    #[error("the node there belongs to another cluster, or to none: see CLUSTER NODES there")]
    AnotherCluster,
    /// The server refused a request because the call's time had expired by the server's clock (R2).
    #[error("it reached the server too late, and the server did nothing")]
    TooLate,
    /// With `strict_restart`: the server may have forgotten a grant.
    #[error(
        "the server grants nothing for another {0:?}: it was restarted, and its holders may still rely on their leases"
    )]
    Frozen(Duration),
    /// The handle holds nothing, but its detach may still take effect.
    #[error("the detach of this handle had no answer, and may still be served")]
    Undecided,
    /// The call was too short for an answer or an error.
    #[error("no answer yet")]
    NoAnswerYet,
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_ready_passes_and_what_a_person_has_to_change_does_not() {
        let (address, service, answers) = ("h:1".to_owned(), "s".to_owned(), String::new());
        let refused = |code, message| ConnectError::Refused(Refusal::new(code, message));
        let unreachable = ConnectError::Unreachable { address: address.clone(), cause: Arc::new(Fault::NotConnected) };
        for error in [
            unreachable.clone(),
            unreachable.of_server("redis://h:1/".into()),
            ConnectError::ReadOnly,
            ConnectError::NoMasters { address: address.clone() },
            ConnectError::UnknownService { service: service.clone() },
            ConnectError::NoMajority { service, answers },
            refused("LOADING", "Redis is loading the dataset in memory"),
            refused("CLUSTERDOWN", "Hash slot not served"),
            refused("ERR", "max number of clients reached"),
            refused("ERR", "max number of clients + cluster connections reached"),
        ] {
            assert!(error.may_pass(), "{error}");
        }
        for error in [
            ConnectError::Credentials(Refusal::new("WRONGPASS", "invalid username-password pair")),
            ConnectError::Rights { missing: vec!["+eval".into()] },
            ConnectError::Certificate { address: address.clone(), reason: String::new() },
            ConnectError::NotCluster { address: address.clone() },
            ConnectError::Cluster,
            ConnectError::Sentinel,
            ConnectError::NotSentinel { address: address.clone() },
            ConnectError::SentinelCredentials { address, reason: String::new() },
            ConnectError::TooOld { found: "6.2".into() },
            refused("DENIED", "Redis is running in protected mode"),
            refused("ERR", "unknown command 'EVAL', with args beginning with: 'x'"),
        ] {
            assert!(!error.may_pass(), "{error}");
        }
    }

    /// The error's text once contained the beginning of a script.
    #[test]
    fn a_command_that_the_server_does_not_have_is_named_without_its_arguments() {
        let refusal = Refusal::new("ERR", "unknown command 'EVAL', with args beginning with: '#!lua flags=allow-oom' ");
        let expected = "ERR unknown command 'EVAL' (that command was renamed or disabled on the server)";
        assert_eq!((refusal.to_string().as_str(), refusal.kind()), (expected, RefusalKind::Final));
    }

    /// The first wording is Redis 7.0's, the second Redis 7.2's and Valkey's.
    #[test]
    fn a_right_that_is_missing_inside_a_script_is_known_in_the_words_of_each_server() {
        for message in [
            "The user executing the script can't run this command or subcommand script: 8a2, on @user_script:59.",
            "ACL failure in script: User w has no permissions to run the 'pexpire' command script: 8a2, on @user_script:59.",
        ] {
            let refusal = Refusal::new("ERR", message);
            assert!(refusal.is_about_rights() && refusal.in_script, "{refusal:?}");
            assert_eq!(refusal.kind(), RefusalKind::Unknown);
            assert!(!refusal.message.contains("script: ") && refusal.message.len() > 40, "{refusal}");
        }
    }
}
