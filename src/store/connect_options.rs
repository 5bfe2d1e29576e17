//! Where a server is and how to sign in there: everything in a URL, and more.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;

use super::certificates::Certificates;
#[cfg(feature = "tls")]
use super::certificates::ClientCertificate;
use super::options::OptionsError;
use super::source::Source;

/// Where a server is and how to sign in there, for
/// [`LockClientBuilder::connect_with`](crate::LockClientBuilder::connect_with).
///
/// A URL is the short form: see [`from_url`](Self::from_url). `Debug` shows neither passwords nor keys.
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// use fairlock::{ConnectOptions, LockClient};
///
/// let options = ConnectOptions::tcp("redis.internal", 6379).username("worker").password("secret").database(1);
/// let client = LockClient::builder().connect_with(options).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until a client connects with them"]
pub struct ConnectOptions {
    pub(crate) topology: Topology,
    pub(crate) database: u32,
    pub(crate) sign_in: SignIn,
    pub(crate) tls: Option<TlsOptions>,
    /// User and password for the Sentinels, which have accounts of their own.
    pub(crate) sentinel_sign_in: Credentials,
    /// The Sentinels use no TLS, although the servers do.
    pub(crate) sentinels_are_plain: bool,
}

/// The kind of servers, and the source of their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    Single(Address),
    Sentinel {
        service: String,
        sentinels: Vec<Address>,
    },
    /// Some nodes of the cluster, which name the others.
    Cluster {
        seeds: Vec<Address>,
    },
}

/// A host and a port, or the path of a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // An IPv6 address has colons of its own.
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// User and password: fixed, or from a provider.
pub type SignIn = Source<Credentials>;

/// The certificates for TLS: fixed, or from a provider.
pub type TlsOptions = Source<Certificates>;

/// A user and a password. A [credentials provider](ConnectOptions::credentials_provider) returns them. `Debug` does
/// not show the password.
///
/// ```
/// let credentials = fairlock::Credentials::new("worker", "secret");
/// assert!(!format!("{credentials:?}").contains("secret"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// A user and password.
    ///
    /// ```
    /// let credentials = fairlock::Credentials::new("worker", "secret");
    /// ```
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: Some(password.into()) }
    }

    /// A password for the user `default`, as set by `requirepass`.
    ///
    /// ```
    /// let credentials = fairlock::Credentials::of_default_user("secret");
    /// ```
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self { username: None, password: Some(password.into()) }
    }

    pub(crate) fn username(&self) -> Option<&str> {
        // An empty user (`redis://:secret@host`) means the user `default`.
        self.username.as_deref().filter(|name| !name.is_empty())
    }

    /// If the user has no password, the client sends an empty one. Without one it would not sign in, and the server
    /// would treat it as the user `default`.
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref().or(self.username().map(|_| ""))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Credentials").field("username", &self.username).field("password", &password).finish()
    }
}

/// As a URL, without the password.
impl fmt::Display for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { "s" } else { "" };
        let user = self.sign_in.fixed.username().map(|user| format!("{user}@")).unwrap_or_default();
        match &self.topology {
            Topology::Single(Address::Unix(path)) => write!(f, "unix://{}", path.display())?,
            Topology::Single(address) => write!(f, "redis{tls}://{user}{address}/")?,
            Topology::Sentinel { service, sentinels } => {
                write!(f, "redis{tls}-sentinel://{user}{}/{service}/", list(sentinels))?;
            }
            Topology::Cluster { seeds } => write!(f, "redis{tls}+cluster://{user}{}/", list(seeds))?,
        }
        match &self.topology {
            Topology::Cluster { .. } => Ok(()),
            Topology::Single(Address::Unix(_)) if self.database == 0 => Ok(()),
            Topology::Single(Address::Unix(_)) => write!(f, "?db={}", self.database),
            _ => write!(f, "{}", self.database),
        }
    }
}

/// Separated by commas, for a URL.
pub fn list(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn tcp_addresses<H: Into<String>>(servers: impl IntoIterator<Item = (H, u16)>) -> Vec<Address> {
    servers.into_iter().map(|(host, port)| Address::Tcp { host: host.into(), port }).collect()
}

impl ConnectOptions {
    /// A server at a host name or IP address and a port, usually 6379.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379);
    /// ```
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::at(Topology::Single(Address::Tcp { host: host.into(), port }))
    }

    /// A server on this machine, at this path of a Unix socket.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::unix("/run/redis/redis.sock");
    /// ```
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(Topology::Single(Address::Unix(path.into())))
    }

    /// The primary of a service that Sentinels watch. `service` is its name in `sentinel monitor`; each Sentinel is a
    /// host and a port, usually 26379. List all of the Sentinels: the client believes in a primary only if more than
    /// half of those listed name it.
    ///
    /// ```
    /// let sentinels = [("s1.internal", 26379), ("s2.internal", 26379), ("s3.internal", 26379)];
    /// let options = fairlock::ConnectOptions::sentinel("mymaster", sentinels).password("secret");
    /// assert!(options.to_string().starts_with("redis-sentinel://s1.internal:26379,"));
    /// ```
    pub fn sentinel<H: Into<String>>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = (H, u16)>,
    ) -> Self {
        Self::at(Topology::Sentinel { service: service.into(), sentinels: tcp_addresses(sentinels) })
    }

    /// A Redis or Valkey Cluster. Pass host and port of some of its nodes; they name the others.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::cluster([("n1.internal", 6379), ("n2.internal", 6379)]);
    /// assert_eq!(options.to_string(), "redis+cluster://n1.internal:6379,n2.internal:6379/");
    /// ```
    pub fn cluster<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Self {
        Self::at(Topology::Cluster { seeds: tcp_addresses(nodes) })
    }

    pub(crate) fn at(topology: Topology) -> Self {
        Self {
            topology,
            database: 0,
            sign_in: SignIn::default(),
            tls: None,
            sentinel_sign_in: Credentials::default(),
            sentinels_are_plain: false,
        }
    }

    /// The database number. Defaults to 0.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).database(1);
    /// ```
    pub fn database(mut self, number: u32) -> Self {
        self.database = number;
        self
    }

    /// The user. Defaults to `default`. Without a [password](Self::password) the client sends an empty one, which the
    /// server accepts for a user with `nopass`.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).username("worker");
    /// ```
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.sign_in.fixed.username = Some(username.into());
        self
    }

    /// The password of the [user](Self::username), or of the user `default`. Defaults to none.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).password("secret");
    /// assert!(!format!("{options:?}").contains("secret"));
    /// ```
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.sign_in.fixed.password = Some(password.into());
        self
    }

    /// Asks for user and password again at each connect and reconnect, for tokens that expire. Use it instead of
    /// [`username`](Self::username) and [`password`](Self::password).
    ///
    /// The operation time-out includes the provider's time. If the provider fails or panics at a reconnect, the
    /// client tries again, as if the server had not answered. The provider runs in a task of its own. Put blocking
    /// code into `tokio::task::spawn_blocking`: on a single-threaded runtime it would block the renewal of all locks.
    ///
    /// ```
    /// use fairlock::{ConnectOptions, Credentials};
    /// # async fn fresh_token() -> std::io::Result<String> { Ok(String::new()) }
    ///
    /// let options = ConnectOptions::tcp("redis.internal", 6379).credentials_provider(|| async {
    ///     Ok::<_, std::io::Error>(Credentials::new("worker", fresh_token().await?))
    /// });
    /// ```
    pub fn credentials_provider<P, F, E>(mut self, provider: P) -> Self
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.sign_in.set_provider(provider);
        self
    }

    /// The user at the Sentinels, which have accounts of their own. Defaults to `default`.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::sentinel("mymaster", [("s1.internal", 26379)])
    ///     .sentinel_username("watcher")
    ///     .sentinel_password("secret");
    /// ```
    pub fn sentinel_username(mut self, username: impl Into<String>) -> Self {
        self.sentinel_sign_in.username = Some(username.into());
        self
    }

    /// The password at the Sentinels. Defaults to none: the client does not send them the servers' password.
    ///
    /// ```
    /// let url = "redis-sentinel://:secret@s1.internal,s2.internal,s3.internal/mymaster";
    /// let options = fairlock::ConnectOptions::from_url(url)?.sentinel_password("another");
    /// assert!(!format!("{options} {options:?}").contains("another"));
    /// # Ok::<_, fairlock::ConnectError>(())
    /// ```
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_sign_in.password = Some(password.into());
        self
    }

    /// Connects to the Sentinels without TLS even if the servers use it. By default both use TLS or neither does.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::sentinel("mymaster", [("s1.internal", 26379)]).tls();
    /// let options = options.sentinel_without_tls();
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn sentinel_without_tls(mut self) -> Self {
        self.sentinels_are_plain = true;
        self
    }

    /// Uses TLS, and trusts the certificate authorities of the machine.
    ///
    /// The thread that makes the client reads their files, once, which takes some milliseconds. With
    /// [`root_certificate`](Self::root_certificate) it does not read them.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6380).tls();
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Uses TLS, and trusts these certificate authorities (PEM) instead of the machine's.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// use fairlock::ConnectOptions;
    ///
    /// let options = ConnectOptions::tcp("redis.internal", 6380).root_certificate(std::fs::read("ca.pem")?);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().fixed.root = Some(pem.into());
        self
    }

    /// Uses TLS, and presents this client certificate to the server: the certificate and its private key, as PEM.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// use fairlock::ConnectOptions;
    ///
    /// let (certificate, key) = (std::fs::read("client.pem")?, std::fs::read("client.key")?);
    /// let options = ConnectOptions::tcp("redis.internal", 6380).client_certificate(certificate, key);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let client = ClientCertificate { certificate: certificate.into(), key: key.into() };
        self.tls.get_or_insert_default().fixed.client = Some(client);
        self
    }

    /// Uses TLS, and asks for the certificates at each connect and reconnect to a server or a Sentinel. A running
    /// program can thus change to a new authority or renew its client certificate. Use it instead of
    /// [`root_certificate`](Self::root_certificate) and [`client_certificate`](Self::client_certificate).
    ///
    /// The client parses certificates again only if they have changed. If the provider returns no root certificate,
    /// the client trusts the machine's authorities, which it reads once. The provider follows the rules of a
    /// [`credentials_provider`](Self::credentials_provider): it runs in a task of its own and within the operation
    /// time-out. The client asks again at the next attempt if the provider fails, or if TLS cannot use its
    /// certificates, such as half a file.
    ///
    /// ```
    /// use fairlock::{Certificates, ConnectOptions};
    ///
    /// // The files, as cert-manager or Vault replaces them.
    /// let options = ConnectOptions::tcp("redis.internal", 6380).certificates_provider(|| async {
    ///     let root = tokio::task::spawn_blocking(|| std::fs::read("/etc/redis/ca.pem")).await??;
    ///     Ok::<_, std::io::Error>(Certificates::new().root_certificate(root))
    /// });
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn certificates_provider<P, F, E>(mut self, provider: P) -> Self
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Certificates, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.tls.get_or_insert_default().set_provider(provider);
        self
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster { .. })
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        match &self.topology {
            Topology::Single(address) => address.check()?,
            Topology::Sentinel { sentinels: servers, .. } | Topology::Cluster { seeds: servers } => {
                if servers.is_empty() {
                    return Err(OptionsError::Address("there is no host"));
                }
                servers.iter().try_for_each(Address::check)?;
                let is_again = |(index, server)| servers.iter().take(index).any(|before| before == server);
                if matches!(self.topology, Topology::Sentinel { .. }) && servers.iter().enumerate().any(is_again) {
                    return Err(OptionsError::Address("a Sentinel is named twice, and each one has one vote"));
                }
            }
        }
        match &self.topology {
            Topology::Single(Address::Unix(_)) if self.tls.is_some() => return Err(OptionsError::TlsOnUnixSocket),
            Topology::Sentinel { service, .. } if service.is_empty() => return Err(OptionsError::NoService),
            Topology::Cluster { .. } if self.database != 0 => {
                return Err(OptionsError::DatabaseOnCluster(self.database));
            }
            _ => {}
        }
        let for_sentinels = self.sentinels_are_plain || self.sentinel_sign_in != Credentials::default();
        // If they were ignored, the user would think that they protect something.
        if for_sentinels && !matches!(self.topology, Topology::Sentinel { .. }) {
            return Err(OptionsError::NoSentinels);
        }
        if self.sign_in.is_ambiguous() {
            return Err(OptionsError::TwoCredentials);
        }
        if self.tls.as_ref().is_some_and(Source::is_ambiguous) {
            return Err(OptionsError::TwoCertificates);
        }
        Ok(())
    }
}

impl Address {
    fn check(&self) -> Result<(), OptionsError> {
        Err(OptionsError::Address(match self {
            Self::Tcp { host, .. } if host.is_empty() => "the host is empty",
            // User and port belong elsewhere. The resolver would take all of this for a name.
            Self::Tcp { host, .. } if host.contains(['/', '@', ' ', ',']) => {
                "the host must be a name or an IP address, without anything else"
            }
            Self::Tcp { port: 0, .. } => "the port is 0",
            Self::Unix(path) if path.as_os_str().is_empty() => "the path of the socket is empty",
            _ => return Ok(()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_shown() {
        let options = ConnectOptions::tcp("h", 1).username("worker").password("hush");
        #[cfg(feature = "tls")]
        let options = options.client_certificate("public", "hush");
        let shown = format!("{options:?} {options:#?}");
        // The bytes must not show either.
        assert!(!shown.contains("104, 117"), "{shown}");
        assert!(shown.contains("worker") && !shown.contains("hush"), "{shown}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(ConnectOptions::tcp("", 1).check(), Err(OptionsError::Address(_))));
        assert!(matches!(ConnectOptions::tcp("user@host", 1).check(), Err(OptionsError::Address(_))));
        assert!(matches!(ConnectOptions::tcp("h", 0).check(), Err(OptionsError::Address(_))));
        assert!(matches!(ConnectOptions::unix("").check(), Err(OptionsError::Address(_))));
        let both = ConnectOptions::tcp("h", 1).password("x");
        let both = both.credentials_provider(|| async { Ok::<_, std::io::Error>(Credentials::default()) });
        assert_eq!(both.check(), Err(OptionsError::TwoCredentials));
        #[cfg(feature = "tls")]
        {
            let provided = |options: ConnectOptions| {
                options.certificates_provider(|| async { Ok::<_, std::io::Error>(Certificates::new()) })
            };
            assert_eq!(provided(ConnectOptions::tcp("h", 1).tls()).check(), Ok(()));
            let both = provided(ConnectOptions::tcp("h", 1).root_certificate("x"));
            assert_eq!(both.check(), Err(OptionsError::TwoCertificates));
            assert_eq!(provided(ConnectOptions::unix("/s")).check(), Err(OptionsError::TlsOnUnixSocket));
        }
        #[cfg(feature = "tls")]
        assert_eq!(ConnectOptions::unix("/s").tls().check(), Err(OptionsError::TlsOnUnixSocket));
        let nobody: [(&str, u16); 0] = [];
        assert!(matches!(ConnectOptions::cluster(nobody).check(), Err(OptionsError::Address(_))));
        assert!(matches!(ConnectOptions::cluster([("h", 0)]).check(), Err(OptionsError::Address(_))));
        let in_cluster = ConnectOptions::cluster([("h", 1)]).database(1);
        assert_eq!(in_cluster.check(), Err(OptionsError::DatabaseOnCluster(1)));
        assert_eq!(ConnectOptions::sentinel("", [("h", 1)]).check(), Err(OptionsError::NoService));
        let twice = ConnectOptions::sentinel("s", [("h", 1), ("i", 1), ("h", 1)]);
        assert!(matches!(twice.check(), Err(OptionsError::Address(_))));
        assert_eq!(ConnectOptions::sentinel("s", [("h", 1), ("h", 2)]).check(), Ok(()));
        assert_eq!(ConnectOptions::tcp("h", 1).sentinel_password("x").check(), Err(OptionsError::NoSentinels));
    }

    #[test]
    fn an_address_is_shown_as_in_a_url() {
        assert_eq!(ConnectOptions::tcp("::1", 7).to_string(), "redis://[::1]:7/0");
        assert_eq!(ConnectOptions::unix("/a").database(3).to_string(), "unix:///a?db=3");
    }
}
