//! Why there is no connection, and why a request has no answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::options::OptionsError;

/// An underlying error. Shared, because several waiting tasks may fail for the same reason.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A request that the server refused. It ran nothing and changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The first word of the server's error, such as `WRONGTYPE`, `NOPERM` or `OOM`.
    pub code: String,
    /// The rest of the server's error.
    pub message: String,
}

impl Refusal {
    /// Whether it may pass by itself: a failover, a server that starts, a slow script of another
    /// client.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self.code.as_str(),
            "LOADING" | "READONLY" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOREPLICAS"
        )
    }

    /// Whether a retry is useless until a person changes something.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.code.as_str(), "WRONGTYPE" | "NOPERM" | "NOAUTH" | "WRONGPASS")
    }

    /// Whether the primary is another server now, or not up yet.
    pub(crate) fn means_another_primary(&self) -> bool {
        matches!(self.code.as_str(), "READONLY" | "LOADING" | "MASTERDOWN")
    }

    fn advice(&self) -> &'static str {
        match self.code.as_str() {
            "WRONGTYPE" => "delete that key, or use another lock name or key prefix",
            "NOPERM" => "give the user the keys and channels of the prefix and the commands that README.md lists",
            "NOAUTH" | "WRONGPASS" => "put the right user and password into the URL",
            "OOM" => "free memory on the server, and use maxmemory-policy noeviction",
            "READONLY" => "connect to the primary: this server is a replica",
            "MISCONF" => "the server cannot persist: see its log",
            "NOREPLICAS" => "min-replicas-to-write is not met: see the server's replicas",
            "LOADING" | "MASTERDOWN" | "BUSY" => "the server is not ready: try again",
            _ => "nothing was changed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.code, self.message, self.advice())
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
    /// There was no connection, so nothing was sent.
    #[error("not sent: there is no connection to the server")]
    NotSent(#[source] Cause),
    /// The request was sent, but no answer came in time. It may have run, or may run later.
    ///
    /// `force_unlock` is never repeated by itself, since a second run could end the next holder's
    /// lock: look at [`status`](crate::FairLock::status) before you repeat it.
    #[error("sent, but no answer came in time: it may have run, or may run later")]
    Unanswered(#[source] Cause),
    /// The server refused the request and changed nothing.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The client is closed. Nothing was sent.
    #[error("the client is closed")]
    Closed,
    /// The runtime that the client was made in has ended, and the connection with it. Nothing was sent.
    /// See [`LockClientBuilder::runtime`](crate::LockClientBuilder::runtime).
    #[error("the runtime of this client has ended: make the client in one that lives longer")]
    RuntimeGone,
}

/// Why there is no client. Nothing was changed on the server.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of range, or two options do not fit together.
    #[error("invalid options: {0}")]
    Options(OptionsError),
    /// There is no tokio runtime that can run the client: none here, one without its time or io driver, or
    /// one that has ended.
    #[error("there is no tokio runtime here: call it in one, with its time and io drivers enabled")]
    NoRuntime,
    /// The text is not a Redis URL.
    #[error("not a Redis URL, such as redis://user:password@host:6379/0 or unix:///run/redis.sock: {0}")]
    Url(String),
    /// `rediss://` without the feature `tls`.
    #[error("rediss:// needs fairlock's feature `tls`: enable it in Cargo.toml")]
    TlsNotBuilt,
    /// There is no connection to that address, or no answer from it.
    #[error("cannot reach the server at {address}: {cause}")]
    Unreachable {
        /// Host and port, or the path of the socket.
        address: String,
        /// What went wrong.
        cause: Cause,
    },
    /// User or password are wrong or missing.
    #[error("the server does not accept the user or password of the URL: {0}")]
    Credentials(Refusal),
    /// The server is too old.
    #[error("the server is Redis {found}: upgrade it to Redis 7.0 or Valkey 7.2, or later")]
    TooOld {
        /// The version that the server reports.
        found: String,
    },
    /// The server is a replica.
    #[error("the server is a read-only replica: connect to its primary")]
    ReadOnly,
    /// The server refused something else.
    #[error("the server refused: {0}")]
    Refused(Refusal),
}

impl From<OptionsError> for ConnectError {
    fn from(error: OptionsError) -> Self {
        // Not `#[from]`: thiserror would make it the source as well, and a printed error chain
        // would say everything twice.
        Self::Options(error)
    }
}

/// The connection was closed while requests were waiting for it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the connection was closed")]
pub struct Disconnected;

/// The server accepted the connection but did not answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct NoAnswer(pub Duration);
