//! Reads options from a URL.

use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

use super::connect_options::{Address, ConnectOptions, Topology};
use super::error::ConnectError;

/// The default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;

impl ConnectOptions {
    /// Reads a URL. Percent-encode characters that are reserved in URLs.
    ///
    /// | URL | what it names |
    /// |---|---|
    /// | `redis://user:password@host:port/database` | one server |
    /// | `unix:///path?user=…&pass=…&db=…`, also with `redis+unix` | one server on this machine |
    /// | `redis-sentinel://user:password@host1:port,host2:port/service/database` | the primary of a service that Sentinels watch |
    /// | `redis+cluster://user:password@host1:port,host2:port` | a cluster, by some of its nodes |
    ///
    /// Write `rediss` instead of `redis` for TLS (feature `tls`). `valkey` and `valkeys` mean the same. User and
    /// password are for the servers; see [`sentinel_password`](Self::sentinel_password) for the Sentinels. `Display`
    /// shows the URL without the password.
    ///
    /// ```
    /// use fairlock::ConnectOptions;
    ///
    /// let one = ConnectOptions::from_url("redis://worker:secret@redis.internal:6379/1")?;
    /// assert_eq!(one.to_string(), "redis://worker@redis.internal:6379/1");
    /// let watched = ConnectOptions::from_url("redis-sentinel://s1,s2:7000,s3/mymaster/0")?;
    /// assert_eq!(watched.to_string(), "redis-sentinel://s1:26379,s2:7000,s3:26379/mymaster/0");
    /// # Ok::<_, fairlock::ConnectError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Url`] if the text is not such a URL, [`ConnectError::Options`] if it names a database of a
    /// cluster, and [`ConnectError::TlsNotBuilt`] for TLS without the feature.
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        let url = url.as_ref();
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
        let scheme = scheme.to_ascii_lowercase();
        let scheme = Scheme::read(&scheme)?;
        // If it were ignored, the user would see a certificate error instead.
        if scheme.is_tls && rest.contains('#') {
            return Err(invalid(
                "#insecure is not supported: set root_certificate to the authority that signed the server's certificate",
            ));
        }
        check_parameters(rest, scheme.plain)?;
        let mut options = match scheme.kind {
            SchemeKind::Single => single(&format!("{}://{rest}", scheme.plain))?,
            // Taken literally, the first host would be part of the password.
            SchemeKind::Sentinel | SchemeKind::Cluster
                if rest.rsplit_once('@').is_some_and(|(who, _)| who.contains('@') && who.contains(',')) =>
            {
                return Err(invalid(
                    "there are two @: user and password stand once, before the first host; write an @ in the password as %40",
                ));
            }
            // Do not show the part before the `@`: the password may contain it.
            SchemeKind::Sentinel | SchemeKind::Cluster
                if rest.split_once('/').is_some_and(|(_, path)| path.contains('@')) =>
            {
                return Err(invalid("there is an @ behind a /: write a / in the password as %2F, and an @ as %40"));
            }
            SchemeKind::Sentinel => by_sentinels(without_parameters(rest))?,
            SchemeKind::Cluster => cluster(without_parameters(rest))?,
        };
        if scheme.is_tls {
            options.tls.get_or_insert_default();
        }
        options.check()?;
        Ok(options)
    }
}

impl FromStr for ConnectOptions {
    type Err = ConnectError;

    fn from_str(url: &str) -> Result<Self, ConnectError> {
        Self::from_url(url)
    }
}

fn invalid(why: impl ToString) -> ConnectError {
    ConnectError::Url(why.to_string())
}

/// Explains the error. The redis crate's own texts do not name the part of the URL.
fn unread(error: RedisError) -> ConnectError {
    let text = error.to_string();
    let what = text.split_once(" - ").map_or(&*text, |(what, _kind)| what);
    invalid(match what {
        "Redis URL did not parse" => {
            "host and port cannot be read: a port is a number up to 65535, an IPv6 address stands in brackets; write a / \
             in the password as %2F, and an @ as %40"
        }
        "Invalid database number" => "the database must be a number",
        what => what,
    })
}

fn without_parameters(rest: &str) -> &str {
    rest.split_once('?').map_or(rest, |(before, _)| before)
}

/// If they were ignored, the user would think that the database or password counts.
fn check_parameters(rest: &str, plain: &str) -> Result<(), ConnectError> {
    let known: &[&str] = if plain.contains("unix") { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
    if rest.contains('#') {
        return Err(invalid("nothing may follow a #: write a # in the password as %23"));
    }
    let Some((_, parameters)) = rest.split_once('?') else { return Ok(()) };
    // Do not show it: the password may contain it.
    if parameters.contains('@') {
        return Err(invalid("there is an @ behind a ?: write a ? in the password as %3F"));
    }
    let names = parameters.split('&').map(|parameter| parameter.split('=').next().unwrap_or_default());
    match names.filter(|name| !name.is_empty()).find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(invalid(format!("the parameter {name} is not known here; known are {}", known.join(", ")))),
    }
}

enum SchemeKind {
    Single,
    Sentinel,
    Cluster,
}

fn unknown(scheme: &str) -> ConnectError {
    invalid(format!(
        "{scheme}:// is not known; known are redis://, unix://, redis-sentinel://, redis+cluster://, and with TLS \
         rediss://, rediss-sentinel://, rediss+cluster://"
    ))
}

struct Scheme<'a> {
    kind: SchemeKind,
    /// The scheme for the redis crate, without TLS. The crate's error would not name our feature `tls`.
    plain: &'a str,
    is_tls: bool,
}

impl<'a> Scheme<'a> {
    fn read(scheme: &'a str) -> Result<Self, ConnectError> {
        let (base, kind) = match scheme.split_once(['-', '+']) {
            // redis-rs and others write it this way.
            Some(("redis" | "valkey", "unix")) if scheme.contains('+') => ("unix", SchemeKind::Single),
            Some((base, "sentinel")) if scheme.contains('-') => (base, SchemeKind::Sentinel),
            Some((base, "cluster")) if scheme.contains('+') => (base, SchemeKind::Cluster),
            Some(_) => return Err(unknown(scheme)),
            None => (scheme, SchemeKind::Single),
        };
        let (plain, is_tls) = match base {
            "rediss" => ("redis", true),
            "valkeys" => ("valkey", true),
            other => (other, false),
        };
        if !matches!((plain, &kind), ("redis" | "valkey", _) | ("unix", SchemeKind::Single)) {
            return Err(unknown(scheme));
        }
        if is_tls && !cfg!(feature = "tls") {
            return Err(ConnectError::TlsNotBuilt);
        }
        Ok(Self { kind, plain, is_tls })
    }
}

/// One server, parsed by the redis crate.
fn single(url: &str) -> Result<ConnectOptions, ConnectError> {
    ConnectOptions::try_from(url.into_connection_info().map_err(unread)?).map_err(invalid)
}

/// Adds the user, password and database that the redis crate has read.
fn signed_in(options: ConnectOptions, info: &ConnectionInfo) -> Result<ConnectOptions, ConnectError> {
    options.signed_in(info.redis_settings()).map_err(invalid)
}

fn by_sentinels(rest: &str) -> Result<ConnectOptions, ConnectError> {
    let (servers, path) = Hosts::read(rest);
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() {
        return Err(invalid("the name of the service is missing, as in redis-sentinel://host1,host2/mymaster"));
    }
    let service = percent_decoded(service)?;
    let sentinels = servers.addresses(SENTINEL_PORT)?;
    signed_in(ConnectOptions::at(Topology::Sentinel { service, sentinels }), &servers.info(database)?)
}

fn cluster(rest: &str) -> Result<ConnectOptions, ConnectError> {
    let (servers, database) = Hosts::read(rest);
    let seeds = servers.addresses(6379)?;
    signed_in(ConnectOptions::at(Topology::Cluster { seeds }), &servers.info(database)?)
}

/// `user:password@host1:port,host2:port`.
struct Hosts<'a> {
    sign_in: Option<&'a str>,
    hosts: Vec<&'a str>,
}

impl<'a> Hosts<'a> {
    /// Also returns the text after the first `/`.
    fn read(rest: &'a str) -> (Self, &'a str) {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // From the end: an unescaped `@` in the password is the most frequent mistake, and this still finds the host.
        let (sign_in, hosts) = authority.rsplit_once('@').map_or((None, authority), |(who, at)| (Some(who), at));
        (Self { sign_in, hosts: hosts.split(',').collect() }, path)
    }

    fn addresses(&self, default_port: u16) -> Result<Vec<Address>, ConnectError> {
        let read = |text: &&str| {
            if text.is_empty() {
                return Err(invalid("a host is empty"));
            }
            let info = format!("redis://{text}").as_str().into_connection_info();
            let info = info.map_err(|_| invalid(format!("{text} cannot be read as host:port")))?;
            let ConnectionAddr::Tcp(host, port) = info.addr() else {
                return Err(invalid(format!("{text} is no host")));
            };
            // The crate fills in the default port of a server.
            let names_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            Ok(Address::Tcp { host: host.clone(), port: if names_port { *port } else { default_port } })
        };
        self.hosts.iter().map(read).collect()
    }

    /// User, password and database. The redis crate parses them, with a dummy host.
    fn info(&self, database: &str) -> Result<ConnectionInfo, ConnectError> {
        let sign_in = self.sign_in.map(|who| format!("{who}@")).unwrap_or_default();
        format!("redis://{sign_in}host/{database}").as_str().into_connection_info().map_err(unread)
    }
}

/// Decodes a part of a path. Service names contain few encoded characters, so this is short rather than fast.
fn percent_decoded(text: &str) -> Result<String, ConnectError> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, encoded)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let byte = encoded.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| invalid(format!("% in {text} needs two digits")))?);
        rest = encoded.get(2..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).map_err(|_| invalid(format!("{text} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_by_name() {
        for url in ["rediss://127.0.0.1:1/", "rediss-sentinel://h/s", "rediss+cluster://h"] {
            assert!(matches!(ConnectOptions::from_url(url), Err(ConnectError::TlsNotBuilt)), "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_told_by_the_scheme() {
        for url in ["rediss://h:1/", "valkeys://h:1/", "rediss-sentinel://h/s", "rediss+cluster://h,i"] {
            assert!(ConnectOptions::from_url(url).unwrap().tls.is_some(), "{url}");
        }
        assert!(matches!(ConnectOptions::from_url("rediss://h:1/#insecure"), Err(ConnectError::Url(_))));
    }

    #[tokio::test]
    async fn each_part_is_read() {
        let options = ConnectOptions::from_url("redis://worker:p%40ss@host:7/3?protocol=resp2").unwrap();
        assert_eq!(options.to_string(), "redis://worker@host:7/3");
        assert!(options.tls.is_none());
        let credentials = options.sign_in.get().await.unwrap();
        assert_eq!((credentials.username(), credentials.password()), (Some("worker"), Some("p@ss")));
        let options: ConnectOptions = "redis://[::1]/".parse().unwrap();
        assert_eq!(options.topology, Topology::Single(Address::Tcp { host: "::1".into(), port: 6379 }));
        let options = ConnectOptions::from_url("unix:///a/b.sock?db=2&user=u&pass=p").unwrap();
        assert_eq!(options.topology, Topology::Single(Address::Unix("/a/b.sock".into())));
        assert_eq!(options.database, 2);
        for scheme in ["redis+unix", "valkey+unix", "REDIS+UNIX"] {
            let options = ConnectOptions::from_url(format!("{scheme}:///a/b.sock?db=2")).unwrap();
            assert_eq!(options.to_string(), "unix:///a/b.sock?db=2");
        }
    }

    #[tokio::test]
    async fn several_servers_are_read() {
        let options = ConnectOptions::from_url("redis-sentinel://u:p%40@a:1,[::1],c/my%20master/2").unwrap();
        assert_eq!(options.to_string(), "redis-sentinel://u@a:1,[::1]:26379,c:26379/my master/2");
        let credentials = options.sign_in.get().await.unwrap();
        assert_eq!(credentials.password(), Some("p@"));
        let options = ConnectOptions::from_url("redis+cluster://:p@a,[::1]:7,c:8").unwrap();
        assert_eq!(options.to_string(), "redis+cluster://a:6379,[::1]:7,c:8/");
        let options = ConnectOptions::from_url("REDIS-Sentinel://a,b:26379/s?protocol=resp3").unwrap();
        assert_eq!(options.to_string(), "redis-sentinel://a:26379,b:26379/s/0");
        assert_eq!(ConnectOptions::from_url("valkey+cluster://a/0").unwrap().to_string(), "redis+cluster://a:6379/");
    }

    #[test]
    fn each_mistake_has_its_words() {
        let said = |url| ConnectOptions::from_url(url).unwrap_err().to_string();
        for (url, word) in [
            ("redis.internal:6379", "no scheme"),
            ("http://h/", "http:// is not known"),
            ("redis-cluster://h/", "redis-cluster:// is not known"),
            ("redis+sentinel://h/s", "redis+sentinel:// is not known"),
            ("redis-cluster://h/", "redis+cluster://"),
            ("rediss+unix:///s", "rediss+unix:// is not known"),
            ("redis-unix:///s", "redis-unix:// is not known"),
            ("redis://h/0?db=1", "parameter db"),
            ("redis://h/?password=x", "parameter password"),
            ("redis://:pa?ss@h/", "%3f"),
            ("redis://:pa#ss@h/", "%23"),
            ("unix:///s?password=x", "known are db, user, pass"),
            ("redis-sentinel://h/s?db=1", "parameter db"),
            ("redis+cluster://h?x", "parameter x"),
            ("redis://h/-1", "no database -1"),
            ("redis-sentinel://a,b", "name of the service"),
            ("redis-sentinel://a,,b/s", "a host is empty"),
            ("redis-sentinel://a/s/x", "database"),
            ("redis-sentinel://a/%zz", "two digits"),
            ("redis+cluster://a:99999", "a:99999"),
            ("redis+cluster://", "a host is empty"),
            ("redis-sentinel://u:p@a,u:p@b/s", "two @"),
            ("redis+cluster://u:pa/ss@a:1", "%2f"),
            ("redis-sentinel://u:6379/abc@h1", "%2f"),
            ("redis-sentinel://u:pa/ss@h/svc", "%2f"),
            ("redis+cluster://a/3", "no database 3"),
            ("redis://h:99999/", "a port is a number"),
            ("redis://h:abc/", "a port is a number"),
            ("redis://[::1/", "brackets"),
            ("redis://user:pa/ss@h/", "%2f"),
            ("redis://h/abc", "database must be a number"),
            ("redis://h/1/2", "database must be a number"),
            ("redis-sentinel://a,b/s/x", "database must be a number"),
            ("redis-sentinel://a:99999/s", "a:99999 cannot be read as host:port"),
            ("redis://", "hostname"),
            ("unix://", "path"),
            ("redis://u:p%ff@h/", "utf-8"),
            ("redis-sentinel://u:p%ff@h/s", "utf-8"),
        ] {
            assert!(!said(url).contains("InvalidClientConfig"), "{url}: {}", said(url));
            assert!(said(url).to_lowercase().contains(word), "{url}: {}", said(url));
        }
    }

    #[tokio::test]
    async fn a_user_without_a_password_is_sent_with_an_empty_one() {
        let sent = async |url| ConnectOptions::from_url(url).unwrap().sign_in.get().await.unwrap();
        assert_eq!(sent("redis://worker@h/").await.password(), Some(""));
        assert_eq!(sent("redis://h/").await.password(), None);
        let of_default = sent("redis://:secret@h/").await;
        assert_eq!((of_default.username(), of_default.password()), (None, Some("secret")));
    }
}
