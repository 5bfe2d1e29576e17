//! Where a server is and how to sign in there: what a URL says, and what does not fit into one.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::error::{Cause, ConnectError};
use super::options::OptionsError;

/// Where a server is and how to sign in there, for
/// [`LockClientBuilder::connect_with`](crate::LockClientBuilder::connect_with).
///
/// A URL is the short way to write one: [`from_url`](Self::from_url). `Debug` shows no password and no key.
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// use fairlock::{ConnectOptions, LockClient};
///
/// let options = ConnectOptions::tcp("redis.internal", 6379).username("worker").password("secret").database(1);
/// let client = LockClient::builder().connect_with(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until a client connects with them"]
pub struct ConnectOptions {
    pub(crate) address: Address,
    pub(crate) database: u32,
    sign_in: Credentials,
    provider: Option<Provider>,
    pub(crate) tls: Option<TlsOptions>,
}

/// A host and a port, or the path of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// How TLS knows the server, and the server knows this client.
#[derive(Debug, Clone, Default)]
// Read by the TLS of the feature `tls` only.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub struct TlsOptions {
    pub root_certificate: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub client: Option<ClientCertificate>,
}

/// A certificate of this client, as PEM.
#[cfg(feature = "tls")]
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub struct ClientCertificate {
    pub certificate: Vec<u8>,
    pub key: Secret,
}

/// What `Debug` must not show.
#[cfg(feature = "tls")]
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

#[cfg(feature = "tls")]
impl Secret {
    pub fn pem(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

type Provide = dyn Fn() -> BoxFuture<'static, Result<Credentials, Cause>> + Send + Sync;

#[derive(Clone)]
struct Provider(Arc<Provide>);

/// A user and a password, as a [provider](ConnectOptions::credentials_provider) of credentials returns them.
/// `Debug` does not show the password.
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
    /// A user and their password.
    ///
    /// ```
    /// let credentials = fairlock::Credentials::new("worker", "secret");
    /// ```
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: Some(password.into()) }
    }

    /// A password of the user `default`, as `requirepass` sets it.
    ///
    /// ```
    /// let credentials = fairlock::Credentials::of_default_user("secret");
    /// ```
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self { username: None, password: Some(password.into()) }
    }

    pub(crate) fn username(&self) -> Option<&str> {
        // An empty user, as in `redis://:secret@host`, means the user `default`.
        self.username.as_deref().filter(|name| !name.is_empty())
    }

    /// A user without a password is sent with an empty one: otherwise nothing would be sent, and the
    /// server would take the client for the user `default`.
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

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("address", &self.address.to_string())
            .field("database", &self.database)
            .field("credentials", &self.sign_in)
            .field("has_credentials_provider", &self.provider.is_some())
            .field("tls", &self.tls)
            .finish()
    }
}

impl ConnectOptions {
    /// A server at a host name or an IP address, and a port: 6379 is usual.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379);
    /// ```
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::at(Address::Tcp { host: host.into(), port })
    }

    /// A server on this machine, at the path of its Unix socket.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::unix("/run/redis/redis.sock");
    /// ```
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(Address::Unix(path.into()))
    }

    fn at(address: Address) -> Self {
        Self { address, database: 0, sign_in: Credentials::default(), provider: None, tls: None }
    }

    /// The number of the database. Defaults to 0.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).database(1);
    /// ```
    pub fn database(mut self, number: u32) -> Self {
        self.database = number;
        self
    }

    /// The user. Defaults to `default`. A user without a [password](Self::password) is sent with an
    /// empty one, which a user with `nopass` accepts.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).username("worker");
    /// ```
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.sign_in.username = Some(username.into());
        self
    }

    /// The password of the [user](Self::username), or of the user `default`. Defaults to none.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::tcp("redis.internal", 6379).password("secret");
    /// assert!(!format!("{options:?}").contains("secret"));
    /// ```
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.sign_in.password = Some(password.into());
        self
    }

    /// Asks for user and password anew at each connect and each reconnect, for tokens that end. It
    /// stands in place of [`username`](Self::username) and [`password`](Self::password).
    ///
    /// Its time counts as part of the operation time-out. When it fails at a reconnect, the client
    /// tries again, as with a server that does not answer.
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
        self.provider = Some(Provider(Arc::new(move || {
            let asked = provider();
            async move { asked.await.map_err(|error| Cause::from(error.into())) }.boxed()
        })));
        self
    }

    /// Uses TLS, and trusts the certificate authorities of the machine.
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

    /// Uses TLS, and trusts these certificate authorities, as PEM, and not those of the machine.
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
        self.tls.get_or_insert_default().root_certificate = Some(pem.into());
        self
    }

    /// Uses TLS, and shows the server this certificate: the certificate and its private key, as PEM.
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
        let client = ClientCertificate { certificate: certificate.into(), key: Secret(key.into()) };
        self.tls.get_or_insert_default().client = Some(client);
        self
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        match &self.address {
            Address::Tcp { host, .. } if host.is_empty() => return Err(OptionsError::Address("the host is empty")),
            // The place of the user and the port is elsewhere: this would be looked up as a name.
            Address::Tcp { host, .. } if host.contains(['/', '@', ' ']) => {
                return Err(OptionsError::Address("the host must be a name or an IP address, without anything else"));
            }
            Address::Tcp { port: 0, .. } => return Err(OptionsError::Address("the port is 0")),
            Address::Unix(path) if path.as_os_str().is_empty() => {
                return Err(OptionsError::Address("the path of the socket is empty"));
            }
            Address::Unix(_) if self.tls.is_some() => return Err(OptionsError::TlsOnUnixSocket),
            _ => {}
        }
        // One of them would win without a word, and the user could not tell which.
        if self.provider.is_some() && self.sign_in != Credentials::default() {
            return Err(OptionsError::TwoCredentials);
        }
        Ok(())
    }

    /// Asks the provider, if there is one.
    pub(crate) async fn credentials(&self) -> Result<Credentials, ConnectError> {
        match &self.provider {
            // Not kept: a token may have ended by the next reconnect.
            Some(provider) => (provider.0)().await.map_err(ConnectError::CredentialsProvider),
            None => Ok(self.sign_in.clone()),
        }
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
        // As bytes, too.
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
        assert_eq!(ConnectOptions::unix("/s").tls().check(), Err(OptionsError::TlsOnUnixSocket));
    }

    #[test]
    fn an_address_is_shown_as_in_a_url() {
        assert_eq!(ConnectOptions::tcp("::1", 7).address.to_string(), "[::1]:7");
        assert_eq!(ConnectOptions::tcp("host", 7).address.to_string(), "host:7");
    }
}
