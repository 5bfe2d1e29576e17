//! Why there is no connection, and why a request has no answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::options::OptionsError;

/// An underlying error. Shared, because several waiting tasks may fail for the same reason.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A request that the server refused.
///
/// Usually it ran nothing and changed nothing; see [`in_script`](Self::in_script).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The first word of the server's error, such as `WRONGTYPE` or `OOM`. For each missing right it is `NOPERM`,
    /// although servers use `ERR` inside a script.
    pub code: String,
    /// The rest of the server's error.
    pub message: String,
    /// The refusal came from a command inside a script. Redis does not roll back, so what the script
    /// did before that command is done. After `lock`, `lock_timeout` and `try_lock` the client takes it
    /// back in the background; a release it repeats; and after `force_unlock` it does nothing more.
    pub in_script: bool,
}

/// How Redis begins its answer to a command that it does not know.
const UNKNOWN: &str = "unknown command '";

/// How to handle a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// It may pass: a failover, a full disk, a slow script of another client.
    Passing,
    /// A retry is useless until a person changes something. Nothing was changed.
    Final,
    /// Part of a script has run.
    Unknown,
}

impl Refusal {
    /// From the server's error: its code, and the rest.
    pub(crate) fn new(code: &str, message: &str) -> Self {
        // Redis appends where in the script an error was raised. From the end, since a name of a key in
        // the message may have the same words in it. The scripts' own checks come before the first
        // write, and their messages begin with the name of the library.
        let acl_failure = message.strip_prefix("ACL failure in script: ");
        let message = acl_failure.unwrap_or(message);
        let (text, place) =
            message.rsplit_once(" script: ").map_or((message, None), |(text, place)| (text, Some(place)));
        let is_own_check = text.contains("fairlock: ");
        // Redis repeats the arguments of a command that it does not know, and the first argument of EVAL is a script.
        let text = match text.split_once("', with args beginning with") {
            Some((command, _arguments)) if command.starts_with(UNKNOWN) => format!("{command}'"),
            _ => text.trim_end_matches(',').to_owned(),
        };
        // A right that is missing inside a script has no code: Redis 7.0 has these words, later ones and
        // Valkey have those above.
        let lacks_right = acl_failure.is_some() || text.starts_with("The user executing the script can't ");
        Self {
            code: if lacks_right { "NOPERM" } else { code }.to_owned(),
            message: text,
            in_script: acl_failure.is_some() || place.is_some() && !is_own_check,
        }
    }

    /// The rights that the user lacks, by the server's answer when they were checked.
    pub(crate) fn lacks(&mut self, missing: &[String]) {
        self.message = lacking(missing);
    }

    /// Whether the same request may succeed later without a change by a person: the server is
    /// loading its data, has no room for one more client, or fails over, for example. Not if part of a script
    /// [has run](Self::in_script).
    ///
    /// ```
    /// fn is_worth_a_retry(error: &fairlock::RequestError) -> bool {
    ///     matches!(error, fairlock::RequestError::Refused(refusal) if refusal.may_pass())
    /// }
    /// ```
    pub fn may_pass(&self) -> bool {
        self.kind() == RefusalKind::Passing
    }

    /// The server has closed this connection, since it has as many as `maxclients` allows. In a cluster, the
    /// bus takes some of these.
    fn is_full(&self) -> bool {
        self.message.starts_with("max number of clients ")
    }

    pub(crate) fn is_about_rights(&self) -> bool {
        self.code == "NOPERM"
    }

    pub(crate) fn kind(&self) -> RefusalKind {
        match self.code.as_str() {
            // First, since the code alone is not enough: OOM before a script is harmless, and OOM inside comes
            // after writes (decision 41).
            _ if self.in_script => RefusalKind::Unknown,
            _ if self.is_full() => RefusalKind::Passing,
            "LOADING" | "READONLY" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK"
            | "NOREPLICAS" | "MISCONF" | "OOM" | "NOBOOT" => RefusalKind::Passing,
            _ => RefusalKind::Final,
        }
    }

    /// The record of boot.lua is gone, and the server's data may be gone with it. Nothing was run.
    pub(crate) fn lacks_boot(&self) -> bool {
        self.code == "NOBOOT"
    }

    /// The server has not the script of the request, or not the record of its start, or not the keys. Nothing was run.
    pub(crate) fn is_for_the_long_way(&self) -> bool {
        self.code == "NOSCRIPT" || self.lacks_boot() || self.is_of_a_slot()
    }

    /// A cluster's errors about one slot: its keys are on the move, or no node has it. Others are of the whole server.
    pub(crate) fn is_of_a_slot(&self) -> bool {
        matches!(self.code.as_str(), "TRYAGAIN" | "MOVED" | "ASK")
            || self.code == "CLUSTERDOWN" && self.message.contains("slot")
    }

    /// Whether the primary is another server now, or not up yet.
    pub(crate) fn means_another_primary(&self) -> bool {
        // BUSY, MISCONF and the like are not among them: the primary has them too, and a new
        // connection would hear the same.
        matches!(self.code.as_str(), "READONLY" | "LOADING" | "MASTERDOWN")
    }

    /// What a person can do. `None`: unknown for this code.
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
        // The consequence depends on the request, whose own error has it.
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
/// [`force_unlock`](crate::FairLock::force_unlock), has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No lock can have this name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nothing was sent: there was no connection, the server was refusing all requests, or too many other requests of this client were
    /// ahead. The text has the reason.
    #[error("not sent: {0}")]
    NotSent(Cause),
    /// The request was sent, but no answer came in time. It may have run, or may run later.
    ///
    /// `force_unlock` is never retried automatically, since a second run could end the next holder's lock: look at
    /// [`status`](crate::FairLock::status) before you repeat it.
    #[error("sent, but without an answer: {0}; it may have run, or may run later")]
    Unanswered(Cause),
    /// The server refused the request. Where that was [inside a script](Refusal::in_script) a
    /// `force_unlock` may have run in part: look at [`status`](crate::FairLock::status) before you repeat
    /// it.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// Semaphores and read-write locks are on one server, and this client has several masters. Nothing was sent.
    #[error("semaphores and read-write locks are not served by several masters: connect to one server for them")]
    SeveralServers,
    /// The client is closed. Nothing was sent.
    #[error("the client is closed")]
    Closed,
    /// The runtime that the client was made in has ended, and the connection with it. A request that was under way may
    /// have run. See [`LockClientBuilder::runtime`](crate::LockClientBuilder::runtime).
    #[error("the runtime of this client has ended: make the client in a runtime that lives longer")]
    RuntimeGone,
}

/// Semaphores and read-write locks are on one server.
#[derive(Debug, Clone, Copy)]
pub struct SeveralServers;

impl From<SeveralServers> for RequestError {
    fn from(SeveralServers: SeveralServers) -> Self {
        Self::SeveralServers
    }
}

/// Why there is no client. Nothing was changed on the server.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of range, or two options do not fit together.
    #[error("invalid options: {0}")]
    Options(OptionsError),
    /// There is no tokio runtime that can run the client: none here, a runtime without its time or io driver, or one
    /// that has ended.
    #[error("there is no tokio runtime here: call it in one, with its time and io drivers enabled")]
    NoRuntime,
    /// The redis crate's description of a server cannot be used.
    #[error("this redis::ConnectionInfo cannot be used: {0}")]
    ConnectionInfo(ConnectionInfoError),
    /// The text is not a Redis URL.
    #[error("not a Redis URL, such as redis://user:password@host:6379/0 or unix:///run/redis.sock: {0}")]
    Url(String),
    /// `rediss://` without the feature `tls`.
    #[error("rediss:// needs fairlock's feature `tls`: enable it in Cargo.toml")]
    TlsNotBuilt,
    /// There is no connection to that address, or no answer from it: the name is not known, nothing
    /// listens there, the server is silent, or what answers is not Redis. This may pass.
    #[error("cannot reach the server at {address}: {cause}")]
    #[non_exhaustive]
    Unreachable {
        /// Host and port, or the path of the socket.
        address: String,
        /// The cause.
        cause: Cause,
    },
    /// The TLS certificate of the server, or of this client, is not accepted.
    #[error("no TLS connection to the server at {address}: the certificate is not accepted: {reason}")]
    #[non_exhaustive]
    Certificate {
        /// Host and port.
        address: String,
        /// The rule that it breaks, and advice.
        reason: String,
    },
    /// User or password are wrong or missing.
    #[error("the server does not accept the user or password: {0}")]
    Credentials(Refusal),
    /// The [provider](crate::ConnectOptions::credentials_provider) of user and password failed.
    #[error("the credentials provider failed: {0}")]
    CredentialsProvider(Cause),
    /// The [provider](crate::ConnectOptions::certificates_provider) of certificates failed, or TLS cannot use what it returned.
    #[error("the certificates provider failed: {0}")]
    CertificatesProvider(Cause),
    /// The user may not run what the scripts need, or the server has a command renamed or disabled. Nothing
    /// was run.
    #[error("{}{}", lacking(missing), beside_rights(missing))]
    #[non_exhaustive]
    Rights {
        /// Each missing right as `ACL SETUSER` takes it: `+command`, `~keys`, `&channels`. The question is
        /// asked by EVAL: a user without the right to it lacks `+eval`, and may lack more.
        missing: Vec<String>,
    },
    /// The server is a node of a Redis Cluster, and the URL is that of a single server.
    #[error("the server is a node of a Redis Cluster: connect with redis+cluster://host:port")]
    Cluster,
    /// The server is no node of a cluster, and the URL is that of a cluster.
    #[error("the server at {address} is no node of a cluster: connect with redis://{address}/")]
    #[non_exhaustive]
    NotCluster {
        /// Host and port.
        address: String,
    },
    /// No slot of the cluster has a master yet, as before `redis-cli --cluster create`. This may pass.
    #[error(
        "the cluster is not ready: none of its slots is assigned to a master yet: see CLUSTER SLOTS and CLUSTER INFO at \
         {address}, and create the cluster if nobody has"
    )]
    #[non_exhaustive]
    NoMasters {
        /// Host and port of the node that reported it.
        address: String,
    },
    /// Two servers of a quorum are one: it would count twice, and its loss would be that of two.
    #[error("{one} and {other} lead to the same server: a quorum needs servers that are lost one by one")]
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
        /// Its URL without the password, or its number if that is not known.
        server: String,
        /// The error there.
        cause: Box<ConnectError>,
    },
    /// Fewer than a majority of the servers of a quorum can be reached. This may pass.
    #[error("{connected} of {all} servers can be reached, and {majority} are needed: {cause}")]
    #[non_exhaustive]
    NoQuorum {
        /// How many can be reached.
        connected: usize,
        /// How many there are.
        all: usize,
        /// How many are needed.
        majority: usize,
        /// The error of one of the others.
        cause: Box<ConnectError>,
    },
    /// The server is a Sentinel, and the URL is that of a single server.
    #[error("the server is a Sentinel, which keeps no data: connect with redis-sentinel://host:port/service")]
    Sentinel,
    /// The server is not a Sentinel, and the URL names it as one.
    #[error("the server at {address} is not a Sentinel: their usual port is 26379")]
    #[non_exhaustive]
    NotSentinel {
        /// Host and port.
        address: String,
    },
    /// A Sentinel does not accept the user or password for Sentinels. Those of the URL are for the servers.
    #[error(
        "the Sentinel at {address} does not accept the user or password: set sentinel_username and sentinel_password: {reason}"
    )]
    #[non_exhaustive]
    SentinelCredentials {
        /// Host and port.
        address: String,
        /// In its own words.
        reason: String,
    },
    /// More than half of the Sentinels do not know the service: not yet, or by another name. This may pass.
    #[error(
        "the Sentinels do not know the service {service:?} yet, or it has another name: see `sentinel monitor` in their \
         configuration"
    )]
    #[non_exhaustive]
    UnknownService {
        /// The name in the URL.
        service: String,
    },
    /// No more than half of the Sentinels name the same primary: too few answer, or they disagree, as they
    /// do for a moment during a failover. This may pass.
    #[error("no majority of the Sentinels names a primary of {service:?}: {answers}")]
    #[non_exhaustive]
    NoMajority {
        /// The name of the service.
        service: String,
        /// The answer of each.
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
    /// [`strict_restart`](crate::LockClientBuilder::strict_restart) cannot detect a restart of this server: its INFO
    /// has no such field. A proxy may hide it.
    #[error(
        "strict_restart needs the field {missing} of INFO, which the server does not report: leave strict_restart out"
    )]
    #[non_exhaustive]
    NoLife {
        /// The field.
        missing: &'static str,
    },
    /// The server refused something else.
    #[error("the server refused: {0}")]
    Refused(Refusal),
}

/// The part of a [`redis::ConnectionInfo`] that [`ConnectOptions`](crate::ConnectOptions) cannot take over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionInfoError {
    /// TLS that accepts any certificate (`insecure: true`, `#insecure` in a URL). This library always verifies the server.
    #[error(
        "it accepts any certificate (`insecure`), and fairlock always verifies the server: make ConnectOptions with \
         root_certificate, set to the authority that signed the server's certificate"
    )]
    Insecure,
    /// Certificates, or other settings of TLS (`tls_params`, by `Client::build_with_tls`), which the redis crate does not let others
    /// read.
    #[error(
        "the certificates in it cannot be read from outside of the redis crate: make ConnectOptions with root_certificate and \
         client_certificate"
    )]
    Certificates,
    /// TLS without the feature `tls`.
    #[error("it wants TLS, which needs fairlock's feature `tls`: enable it in Cargo.toml")]
    TlsNotBuilt,
    /// A negative database.
    #[error("there is no database {0}")]
    Database(i64),
    /// An address of a kind that this version does not know.
    #[error("{0} is an address of a kind that fairlock does not know")]
    Address(String),
}

impl RequestError {
    /// Chooses one of the errors of several servers: `NotSent` only if there is no other, since it says least.
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

/// Another explanation for these missing rights at the start.
fn beside_rights(missing: &[String]) -> &'static str {
    if missing == ["+eval"] {
        return "; more may be missing, which only EVAL can ask: docs/deploying.md lists all that locks need";
    }
    // The server answers the same for a command that it does not have.
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

    /// The same of a server of a quorum.
    pub(crate) fn of_server(self, server: String) -> Self {
        match self {
            // The same for all of them.
            Self::Options(_) | Self::NoRuntime => self,
            error => Self::Server { server, cause: Box::new(error) },
        }
    }

    /// Whether a later attempt may succeed although no setting, right or password has changed: the server is not ready, but it did
    /// not refuse. It is down, its name is not known yet, it is loading its data, it has no room for one more client, or it is still a
    /// replica; no slot of the cluster has a master yet; the Sentinels do not know the service yet, or too few of them answer.
    ///
    /// [`retry_on_initial_connect`](crate::LockClientBuilder::retry_on_initial_connect) begins in all of these cases.
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
        // Not `#[from]`: thiserror would make it the source as well, and a printed error chain
        // would say everything twice.
        Self::Options(error)
    }
}

/// The obstacle to a server. The text has advice.
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
    #[error("another server is there now, which has another run_id")]
    AnotherServer,
    #[error("whether it is the same server is unknown, since its user may not ask for its run_id: it needs +info")]
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
        "it refused the TLS handshake ({0}): it has no version of TLS or no cipher in common with this client, or it \
         wants a client certificate"
    )]
    NothingInCommon(String),
    #[error("it accepted the connection, but did not answer within {0:?}")]
    Silent(Duration),
    #[error(
        "it accepted the connection, and then closed it or sent what is no answer of Redis: does Redis listen there, is TLS on at \
         both ends (rediss://) or at neither (redis://), and is maxclients reached?"
    )]
    NoRedis,
}

/// Why a request was not sent, or has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// The connection was closed while requests were waiting for it.
    #[error("the connection has ended")]
    Disconnected,
    /// No attempt to connect has ended yet.
    #[error("there is no connection to the server yet")]
    NotConnected,
    /// No node of a cluster is asked about this slot.
    #[error("no master of the cluster serves slot {0}: see CLUSTER INFO")]
    Uncovered(u16),
    /// The node does not see most masters of the client's cluster.
    #[error("the node there is in another cluster than this client, or in none: see CLUSTER NODES there")]
    AnotherCluster,
    /// The server refused a request because the time of its call was over, by the server's clock (R2).
    #[error("it reached the server too late, which did nothing")]
    TooLate,
    /// With `strict_restart`: the server may have forgotten a grant.
    #[error(
        "the server grants nothing for another {0:?}: it was restarted, and its holders may still rely on their leases"
    )]
    Frozen(Duration),
    /// A handle holds nothing, and may do so yet.
    #[error("the detach of this handle had no answer, and may still be served")]
    Undecided,
    /// The time of a call was too short for an answer or an error.
    #[error("no answer yet")]
    NoAnswerYet,
    /// A request had no answer within its time.
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

    /// The text of an error had the beginning of a script in it.
    #[test]
    fn a_command_that_the_server_does_not_have_is_named_without_its_arguments() {
        let refusal = Refusal::new("ERR", "unknown command 'EVAL', with args beginning with: '#!lua flags=allow-oom' ");
        let expected = "ERR unknown command 'EVAL' (that command was renamed or disabled on the server)";
        assert_eq!((refusal.to_string().as_str(), refusal.kind()), (expected, RefusalKind::Final));
    }

    /// Redis 7.0 says it in the first way, Redis 7.2 and Valkey in the second.
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
