//! The settings of a client: plain data with defaults, checked once.

use std::time::Duration;

use crate::client::LockClient;
use crate::error::ConnectError;

/// Settings for a [`LockClient`]; [`connect`](Self::connect) checks them and makes it.
///
/// All durations are checked against each other, to the millisecond.
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// use fairlock::LockClient;
/// use std::time::Duration;
///
/// let client = LockClient::builder()
///     .lease(Duration::from_secs(10))
///     .label("billing worker 7")
///     .connect("redis://127.0.0.1/")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    pub(crate) options: Options,
    pub(crate) root_certificate: Option<Vec<u8>>,
}

/// Settings that were checked, or are about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) lease: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) waiter_ttl: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) grant_ttl: Duration,
    pub(crate) token_ttl: Duration,
    pub(crate) max_waiters: u32,
    pub(crate) max_hold: Option<Duration>,
}

/// Two settings that do not fit together, or one that fits nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The key prefix is empty, longer than 256 bytes, or has `{` or `}` in it.
    #[error(
        "the key prefix must have 1 to 256 bytes and neither '{{' nor '}}', so that each name keeps a hash tag of its own"
    )]
    Prefix,
    /// The label is longer than 256 bytes.
    #[error("the label has {0} bytes; 256 are allowed")]
    LabelTooLong(usize),
    /// A time of zero, below a millisecond, or of more than a year.
    #[error("{setting} is {value:?}; it must be between 1 ms and 365 days")]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// What it was set to.
        value: Duration,
    },
    /// One time must be at least another.
    #[error("{larger} ({larger_value:?}) must be at least {smaller} ({smaller_value:?}): {reason}")]
    TooShort {
        /// The setting that is too short.
        larger: &'static str,
        /// Its value.
        larger_value: Duration,
        /// What it must reach.
        smaller: &'static str,
        /// That value.
        smaller_value: Duration,
        /// What breaks otherwise.
        reason: &'static str,
    },
    /// `max_waiters` is 0.
    #[error("max_waiters is 0, so nobody could ever wait; use try_lock to not wait")]
    NoWaiters,
}

const LONGEST_LABEL: usize = 256;
const LONGEST_PREFIX: usize = 256;
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "fairlock".into(),
            label: default_label(),
            lease: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(2),
            waiter_ttl: Duration::from_secs(6),
            poll_interval: Duration::from_secs(2),
            grant_ttl: Duration::from_secs(3),
            token_ttl: Duration::from_secs(24 * 3600),
            max_waiters: 1 << 16,
            max_hold: None,
        }
    }
}

/// `host:pid`, which is what somebody at three in the morning wants to know.
fn default_label() -> String {
    let host = std::fs::read_to_string("/etc/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map_or_else(|| "localhost".into(), |host| host.trim().to_owned());
    let host: String = host.chars().take(60).collect();
    format!("{host}:{}", std::process::id())
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        if self.prefix.is_empty() || self.prefix.len() > LONGEST_PREFIX || self.prefix.contains(['{', '}']) {
            return Err(OptionsError::Prefix);
        }
        if self.label.len() > LONGEST_LABEL {
            return Err(OptionsError::LabelTooLong(self.label.len()));
        }
        if self.max_waiters == 0 {
            return Err(OptionsError::NoWaiters);
        }
        self.check_ranges()?;
        self.check_lease("lease", self.lease)?;
        at_least(
            ("waiter_ttl", self.waiter_ttl),
            ("twice poll_interval", 2 * self.poll_interval),
            "one lost poll would cost a live waiter its place",
        )?;
        at_least(
            ("waiter_ttl", self.waiter_ttl),
            ("grant_ttl", self.grant_ttl),
            "a grant never outlives the ticket it was made to",
        )?;
        at_least(
            ("grant_ttl", self.grant_ttl),
            ("poll_interval", self.poll_interval),
            "a grant whose message is lost is found by the next poll",
        )
    }

    fn check_ranges(&self) -> Result<(), OptionsError> {
        let times = [
            ("lease", self.lease),
            ("operation_timeout", self.operation_timeout),
            ("waiter_ttl", self.waiter_ttl),
            ("poll_interval", self.poll_interval),
            ("grant_ttl", self.grant_ttl),
            ("token_ttl", self.token_ttl),
            ("max_hold", self.max_hold.unwrap_or(self.lease)),
        ];
        times.into_iter().try_for_each(|(setting, value)| in_range(setting, value))
    }

    /// Also for the leases of single locks.
    pub(crate) fn check_lease(&self, setting: &'static str, lease: Duration) -> Result<(), OptionsError> {
        in_range(setting, lease)?;
        at_least(
            (setting, lease),
            ("operation_timeout", self.operation_timeout),
            "the lease could be over before the answer that gives it",
        )?;
        at_least(
            (setting, lease),
            ("poll_interval", self.poll_interval),
            "those who wait would notice its end too late",
        )?;
        at_least(
            ("token_ttl", self.token_ttl),
            (setting, lease),
            "the last token must be remembered while it is in use",
        )
    }
}

fn in_range(setting: &'static str, value: Duration) -> Result<(), OptionsError> {
    if value < Duration::from_millis(1) || value > YEAR {
        return Err(OptionsError::OutOfRange { setting, value });
    }
    Ok(())
}

fn at_least(
    (larger, larger_value): (&'static str, Duration),
    (smaller, smaller_value): (&'static str, Duration),
    reason: &'static str,
) -> Result<(), OptionsError> {
    if larger_value < smaller_value {
        return Err(OptionsError::TooShort { larger, larger_value, smaller, smaller_value, reason });
    }
    Ok(())
}

impl LockClientBuilder {
    pub(crate) fn new() -> Self {
        Self { options: Options::default(), root_certificate: None }
    }

    /// How long the server keeps a lock without a renewal, and so how long others wait for a
    /// holder that died. Defaults to 30 s; renewed every third of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long one request may take, the connection included. Defaults to 2 s.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.options.operation_timeout = timeout;
        self
    }

    /// How long a waiter keeps its place without being heard of. Defaults to 6 s.
    pub fn waiter_ttl(mut self, ttl: Duration) -> Self {
        self.options.waiter_ttl = ttl;
        self
    }

    /// How often a waiting client asks, in case a message was lost. Defaults to 2 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.options.poll_interval = interval;
        self
    }

    /// How long a lock that was handed to a waiter is kept for it until it answers. Defaults to 3 s.
    pub fn grant_ttl(mut self, ttl: Duration) -> Self {
        self.options.grant_ttl = ttl;
        self
    }

    /// How long the last token of an unused name is remembered. Defaults to 24 h.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.options.token_ttl = ttl;
        self
    }

    /// How many may wait for one name; past it `lock` fails with
    /// [`LockError::QueueFull`](crate::LockError::QueueFull). Defaults to 65,536.
    pub fn max_waiters(mut self, waiters: u32) -> Self {
        self.options.max_waiters = waiters;
        self
    }

    /// After how long a hold is renewed no more, whoever forgot to unlock it. Defaults to never.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.max_hold = Some(longest);
        self
    }

    /// Free text that [`status`](crate::FairLock::status) shows beside this client's holds and
    /// waits. Defaults to host and process id.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// What all keys begin with. Clients with different prefixes do not see each other. Defaults
    /// to `fairlock`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// The certificate authority for `rediss://`, PEM, in place of the machine's own.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// Checks the settings and connects: `redis://`, `rediss://` (feature `tls`) or `unix://`.
    ///
    /// Takes at most twice the operation time-out. From then on the client keeps the connection by
    /// itself.
    ///
    /// # Errors
    /// [`ConnectError`] says which setting, address, credential or server is wrong; nothing was
    /// changed on the server.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LockClient, ConnectError> {
        LockClient::open(self, url.as_ref()).await
    }

    /// Checks the settings and connects to a server inside this process.
    ///
    /// ```
    /// use fairlock::{EmbeddedServer, LockClient};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = EmbeddedServer::new();
    /// let one = LockClient::builder().label("one").embedded(&server)?;
    /// let two = LockClient::builder().label("two").embedded(&server)?;
    /// let guard = one.lock("x").lock().await?;
    /// assert_eq!(two.lock("x").status().await?.holder.map(|holder| holder.label), Some("one".into()));
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] says which setting is wrong, that there is no runtime, or that the server is
    /// [shut down](crate::EmbeddedServer::shut_down).
    #[cfg(feature = "embedded")]
    #[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
    pub fn embedded(self, server: &crate::EmbeddedServer) -> Result<LockClient, ConnectError> {
        LockClient::open_embedded(self, server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(matches!(
            checked(|o| o.lease = Duration::ZERO),
            Err(OptionsError::OutOfRange { setting: "lease", .. })
        ));
        assert!(matches!(checked(|o| o.waiter_ttl = Duration::from_secs(3)), Err(OptionsError::TooShort { .. })));
        assert!(matches!(checked(|o| o.grant_ttl = Duration::from_secs(1)), Err(OptionsError::TooShort { .. })));
        // Review A8: who polls less often than a lease lasts notices its end too late (P7).
        assert!(matches!(
            checked(|o| (o.lease, o.poll_interval, o.waiter_ttl) =
                (Duration::from_secs(2), o.grant_ttl, Duration::from_secs(9))),
            Err(OptionsError::TooShort { smaller: "poll_interval", .. })
        ));
        assert!(matches!(checked(|o| o.token_ttl = Duration::from_secs(1)), Err(OptionsError::TooShort { .. })));
        assert_eq!(checked(|o| o.prefix = "a{b".into()), Err(OptionsError::Prefix));
        assert_eq!(checked(|o| o.label = "x".repeat(257)), Err(OptionsError::LabelTooLong(257)));
        assert_eq!(checked(|o| o.max_waiters = 0), Err(OptionsError::NoWaiters));
    }
}
