//! The options of a client: plain data with defaults, checked once.

use std::time::Duration;

use crate::metrics::{Metrics, MetricsOptions};

/// Requests in flight of each kind. Enough to keep a server busy, but few enough that a renewal waits for a few
/// milliseconds of work at most (P8).
pub const IN_FLIGHT: usize = 256;

/// The options of one client.
#[derive(Debug, Clone)]
pub struct Options {
    pub prefix: String,
    pub label: String,
    pub lease: Duration,
    pub operation_timeout: Duration,
    pub waiter_ttl: Duration,
    pub poll_interval: Duration,
    pub grant_ttl: Duration,
    pub token_ttl: Duration,
    pub max_waiters: u32,
    pub max_hold: Option<Duration>,
    /// The longest lease of any client.
    pub strict_restart: Option<Duration>,
    /// How far the clock of each of several servers may be off.
    pub clock_difference: Duration,
    /// How long one of several servers may take to answer. `None`: a quarter of the operation time-out.
    pub server_timeout: Option<Duration>,
    /// Requests in flight of each kind.
    pub in_flight: usize,
    /// The server's URL without the password, for messages.
    pub address: String,
    /// The server of a quorum that this client is for. The quorum then logs holds and losses itself.
    pub node: Option<String>,
    pub metrics_options: MetricsOptions,
    /// Made from the two fields above when the client connects.
    pub metrics: Metrics,
}

/// An option that is out of range, or two options that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The key prefix is empty, longer than 256 bytes, or contains `{` or `}`.
    #[error(
        "the key prefix must have 1 to 256 bytes and neither '{{' nor '}}', so that each name keeps a hash tag of its own"
    )]
    Prefix,
    /// The label is longer than 256 bytes.
    #[error("the label has {0} bytes; 256 are allowed")]
    LabelTooLong(usize),
    /// A duration below a millisecond (such as zero) or above a year.
    #[error("{option} is {value:?}; it must be between 1 ms and 365 days")]
    #[non_exhaustive]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: Duration,
    },
    /// One duration must be at least as long as another.
    #[error("{larger} ({larger_value:?}) must be at least {smaller} ({smaller_value:?}): {reason}")]
    #[non_exhaustive]
    TooShort {
        /// The option that is too short.
        larger: &'static str,
        /// Its value.
        larger_value: Duration,
        /// The option it is compared with.
        smaller: &'static str,
        /// The value of that option.
        smaller_value: Duration,
        /// Why it must not be shorter.
        reason: &'static str,
    },
    /// `max_waiters` is 0.
    #[error("max_waiters is 0, so no call could wait; use try_lock if you do not want to wait")]
    NoWaiters,
    /// The host, the port or the path cannot belong to a server.
    #[error("not the address of a server: {0}")]
    Address(&'static str),
    /// A database other than 0, in a cluster.
    #[error("a cluster has no database {0}: leave the number out, and use a prefix to keep locks apart")]
    DatabaseOnCluster(u32),
    /// The service name, by which the Sentinels know the primary, is missing.
    #[error("the name of the service is empty: it is the name in `sentinel monitor`, such as mymaster")]
    NoService,
    /// An option for Sentinels is set, but the client connects without them.
    #[error("sentinel_username, sentinel_password and sentinel_without_tls are for connecting by Sentinels")]
    NoSentinels,
    /// TLS needs a host and a port.
    #[error("a Unix socket has no TLS: leave tls, root_certificate, client_certificate and certificates_provider out")]
    TlsOnUnixSocket,
    /// Nothing would use the builder's root certificate.
    #[error(
        "root_certificate of the builder is for rediss:// URLs, and for what the redis crate connects to by TLS: use such a URL, or \
         ConnectOptions::root_certificate with connect_with"
    )]
    UnusedRootCertificate,
    /// Both fixed credentials and a provider are set.
    #[error("username or password and also a credentials_provider are set: use one of them")]
    TwoCredentials,
    /// Both fixed certificates and a provider are set.
    #[error("root_certificate or client_certificate and also a certificates_provider are set: use one of them")]
    TwoCertificates,
    /// `strict_restart` works with a single server and with Sentinels only.
    #[error("strict_restart does not work on a cluster, whose masters fail over one by one: leave it out")]
    StrictRestartOnCluster,
    /// A quorum of fewer than three servers survives no loss.
    #[error("a quorum needs three or more servers: {0} cannot survive a loss")]
    TooFewServers(usize),
    /// A server of a quorum is a cluster.
    #[error("a quorum is made of single servers, or of primaries that Sentinels watch: a cluster has slots that move")]
    QuorumOfClusters,
    /// A certificate or key is unusable.
    #[error("the {what} cannot be used: {reason}")]
    #[non_exhaustive]
    Certificate {
        /// Which certificate or key.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

const LONGEST_LABEL: usize = 256;
const LONGEST_PREFIX: usize = 256;
/// How long after a replica's promotion the old primary may still make grants that the replica has not received.
const REPLICATION_LAG: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "fairlock".into(),
            label: default_label(),
            lease: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(2),
            waiter_ttl: Duration::from_secs(7),
            poll_interval: Duration::from_secs(2),
            grant_ttl: Duration::from_secs(3),
            token_ttl: Duration::from_secs(24 * 3600),
            max_waiters: 1 << 16,
            max_hold: None,
            strict_restart: None,
            clock_difference: Duration::ZERO,
            server_timeout: None,
            in_flight: IN_FLIGHT,
            address: String::new(),
            node: None,
            metrics_options: MetricsOptions::default(),
            metrics: Metrics::default(),
        }
    }
}

/// `host:pid`: enough to find the process that blocks others.
fn default_label() -> String {
    let host = std::fs::read_to_string("/etc/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map_or_else(|| "localhost".into(), |host| host.trim().to_owned());
    // 60 characters take 240 bytes at most, which leaves room for the pid.
    let host: String = host.chars().take(60).collect();
    format!("{host}:{}", std::process::id())
}

impl Options {
    pub fn check(&self) -> Result<(), OptionsError> {
        // The first `{` of a key begins its hash tag. A brace in the prefix could give the locks of all names the
        // same tag, or no tag (see keys.rs).
        if self.prefix.is_empty() || self.prefix.len() > LONGEST_PREFIX || self.prefix.contains(['{', '}']) {
            return Err(OptionsError::Prefix);
        }
        check_label(&self.label)?;
        // Otherwise each waiting call would end with `full`, which means that others wait.
        if self.max_waiters == 0 {
            return Err(OptionsError::NoWaiters);
        }
        self.check_ranges()?;
        self.check_lease("lease", self.lease)?;
        self.check_freeze("grant_ttl and poll_interval together", self.first_lease(), 2 * self.clock_difference)?;
        at_least(
            ("operation_timeout", self.operation_timeout),
            ("server_timeout", self.server_timeout()),
            "a request that has ended cannot be waited for",
        )?;
        // P9: a lost message costs a poll interval, and the next poll must still find the ticket alive. Also, the
        // server receives a poll from some client within half a waiter_ttl, unless the server or the network stalls
        // (lib/silence.lua).
        long_enough(
            self.waiter_ttl >= 3 * self.poll_interval,
            ("waiter_ttl", self.waiter_ttl),
            // Report the value that the user has set, not its multiple.
            ("three times poll_interval", self.poll_interval),
            "one lost poll would cost a live waiter its place",
        )?;
        // P6: advance caps a grant by the ticket's deadline (decision 1), so a longer grant_ttl would have no effect.
        at_least(
            ("waiter_ttl", self.waiter_ttl),
            ("grant_ttl", self.grant_ttl),
            "a grant never outlives the ticket it was made to",
        )
    }

    /// How long a pushed grant lasts until its waiter confirms it. The waiter counts from its last poll (R7), and
    /// this leaves it at least `grant_ttl` whenever that poll was. If the message does not arrive, the waiter's next
    /// poll finds the grant (R8).
    pub fn first_lease(&self) -> Duration {
        self.grant_ttl.saturating_add(self.poll_interval)
    }

    fn check_ranges(&self) -> Result<(), OptionsError> {
        let times = [
            ("lease", self.lease),
            ("operation_timeout", self.operation_timeout),
            // Before the options that depend on it.
            ("poll_interval", self.poll_interval),
            ("waiter_ttl", self.waiter_ttl),
            ("grant_ttl", self.grant_ttl),
            ("token_ttl", self.token_ttl),
            // Without max_hold, check the lease instead, which is already in the list.
            ("max_hold", self.max_hold.unwrap_or(self.lease)),
            ("strict_restart", self.strict_restart.unwrap_or(self.lease)),
            ("server_timeout", self.server_timeout()),
            // Unlike the others, it may be zero.
            ("clock_difference", self.clock_difference.max(Duration::from_millis(1))),
            ("strict_restart and twice the clock_difference", self.freeze().unwrap_or(self.lease)),
        ];
        times.into_iter().try_for_each(|(option, value)| in_range(option, value))
    }

    /// How long one of several servers may take to answer before the client proceeds without it.
    pub fn server_timeout(&self) -> Duration {
        self.server_timeout.unwrap_or((self.operation_timeout / 4).max(Duration::from_millis(1)))
    }

    /// Checks the lease of the client or of a single lock.
    pub fn check_lease(&self, option: &'static str, lease: Duration) -> Result<(), OptionsError> {
        in_range(option, lease)?;
        // R5 counts a lease from before its request. With a longer operation time-out, the lease could have expired
        // when the answer arrives.
        at_least(
            (option, lease),
            ("operation_timeout", self.operation_timeout),
            "the lease could be over before the answer that gives it",
        )?;
        // P7, decision 12: waiters learn from their last poll when the lease ends.
        at_least((option, lease), ("poll_interval", self.poll_interval), "waiters would notice its end too late")?;
        self.check_longest(option, lease)
    }

    /// Checks how long a hold may last without a renewal.
    pub fn check_longest(&self, option: &'static str, time: Duration) -> Result<(), OptionsError> {
        in_range(option, time)?;
        // R10: without the key, the next token comes from the clock alone. If someone set the clock back, that token
        // would be smaller than the holder's (P2).
        at_least(
            ("token_ttl", self.token_ttl),
            (option, time),
            "the last token must be remembered while it is in use",
        )?;
        self.check_freeze(option, time, Duration::ZERO)
    }

    /// Checks the lease that `extend` asks for against the time that `max_hold` leaves.
    pub fn check_max_hold(&self, lease: Duration, left: Duration) -> Result<(), OptionsError> {
        at_least(("what max_hold leaves", left), ("the lease of extend", lease), "a hold must end by then")
    }

    /// P1 over a restart: if a hold could outlast the freeze, two owners could hold the name afterwards.
    fn check_freeze(&self, option: &'static str, value: Duration, more: Duration) -> Result<(), OptionsError> {
        let longest = self.strict_restart.map_or(value, |longest| longest + more);
        at_least(
            ("strict_restart", longest),
            (option, value),
            "a restarted server would grant a lock that it has forgotten, and that is still held",
        )
    }

    /// How long a server that may have forgotten a grant refuses to make new ones. `None`: it does not freeze.
    pub fn freeze(&self) -> Option<Duration> {
        // Q8: after a loss of data, the server's tokens come from its clock.
        self.strict_restart.map(|longest| {
            longest.saturating_add(self.clock_difference.saturating_mul(2)).saturating_add(REPLICATION_LAG)
        })
    }
}

pub fn check_label(label: &str) -> Result<(), OptionsError> {
    // Each place in the queue contains it.
    if label.len() > LONGEST_LABEL { Err(OptionsError::LabelTooLong(label.len())) } else { Ok(()) }
}

/// Checks that a duration is allowed.
pub fn in_range(option: &'static str, value: Duration) -> Result<(), OptionsError> {
    // The client would send less than a millisecond as 0, and PEXPIRE with 0 deletes the key. The upper bound keeps
    // sums of durations within the range of PEXPIRE and `Instant`.
    if value < Duration::from_millis(1) || value > YEAR {
        return Err(OptionsError::OutOfRange { option, value });
    }
    Ok(())
}

fn at_least(
    larger: (&'static str, Duration),
    smaller: (&'static str, Duration),
    reason: &'static str,
) -> Result<(), OptionsError> {
    long_enough(larger.1 >= smaller.1, larger, smaller, reason)
}

/// Returns the error unless the relation between the two holds.
fn long_enough(
    holds: bool,
    (larger, larger_value): (&'static str, Duration),
    (smaller, smaller_value): (&'static str, Duration),
    reason: &'static str,
) -> Result<(), OptionsError> {
    if holds {
        return Ok(());
    }
    Err(OptionsError::TooShort { larger, larger_value, smaller, smaller_value, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn checked(change: impl FnOnce(&mut Options)) -> Result<(), OptionsError> {
        let mut options = Options::default();
        change(&mut options);
        options.check()
    }

    #[test]
    fn the_defaults_fit() {
        assert_eq!(checked(|_| {}), Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let short = checked(|o| o.lease = Duration::from_secs(1)).unwrap_err().to_string();
        assert!(short.contains("lease (1s)") && short.contains("operation_timeout (2s)"), "{short}");
        assert!(matches!(checked(|o| o.lease = Duration::ZERO), Err(OptionsError::OutOfRange { option: "lease", .. })));
        assert!(matches!(checked(|o| o.waiter_ttl = Duration::from_secs(3)), Err(OptionsError::TooShort { .. })));
        assert_eq!(checked(|o| o.grant_ttl = Duration::from_millis(1)), Ok(()), "the poll interval comes on top");
        // A client that polls less often than a lease lasts would notice its end too late (P7).
        assert!(matches!(
            checked(|o| (o.lease, o.poll_interval, o.waiter_ttl) =
                (Duration::from_secs(2), o.grant_ttl, Duration::from_secs(9))),
            Err(OptionsError::TooShort { smaller: "poll_interval", .. })
        ));
        assert!(matches!(checked(|o| o.token_ttl = Duration::from_secs(1)), Err(OptionsError::TooShort { .. })));
        assert_eq!(checked(|o| o.prefix = "a{b".into()), Err(OptionsError::Prefix));
        assert_eq!(checked(|o| o.label = "x".repeat(257)), Err(OptionsError::LabelTooLong(257)));
        assert_eq!(checked(|o| o.max_waiters = 0), Err(OptionsError::NoWaiters));
        assert_eq!(checked(|o| o.strict_restart = Some(o.lease)), Ok(()));
        let short = checked(|o| o.strict_restart = Some(o.lease / 2)).unwrap_err().to_string();
        assert!(short.contains("strict_restart (15s)") && short.contains("lease (30s)"), "{short}");
        let short = checked(|o| (o.lease, o.strict_restart) = (2 * SECOND, Some(2 * SECOND))).unwrap_err();
        assert!(short.to_string().contains("grant_ttl and poll_interval together (5s)"), "{short}");
    }
}
