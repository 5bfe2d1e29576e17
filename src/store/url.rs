//! From a URL to options.

use std::str::FromStr;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::connect_options::ConnectOptions;
use super::error::ConnectError;

impl ConnectOptions {
    /// Reads a URL: `redis://user:password@host:port/database`, `rediss://` for TLS (feature `tls`), or
    /// `unix:///path?user=…&pass=…&db=…`. What is reserved in a URL is percent-encoded there.
    ///
    /// ```
    /// let options = fairlock::ConnectOptions::from_url("redis://worker:secret@redis.internal:6379/1")?;
    /// # Ok::<_, fairlock::ConnectError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Url`] if it is none, and [`ConnectError::TlsNotBuilt`] for `rediss://` without
    /// the feature.
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        let url = url.as_ref();
        let (plain, is_tls) = without_tls(url)?;
        let invalid = |error: redis::RedisError| ConnectError::Url(error.to_string());
        let info = plain.as_str().into_connection_info().map_err(invalid)?;
        let mut options = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Self::tcp(host, *port),
            ConnectionAddr::Unix(path) => Self::unix(path),
            other => return Err(ConnectError::Url(format!("{other} is no place of a server"))),
        };
        let settings = info.redis_settings();
        if let Some(username) = settings.username() {
            options = options.username(username);
        }
        if let Some(password) = settings.password() {
            options = options.password(password);
        }
        // The crate takes a negative number. It is refused here, and not by the server at SELECT.
        let negative = |_| ConnectError::Url(format!("there is no database {}", settings.db()));
        options = options.database(u32::try_from(settings.db()).map_err(negative)?);
        if is_tls {
            options.tls.get_or_insert_default();
        }
        Ok(options)
    }
}

impl FromStr for ConnectOptions {
    type Err = ConnectError;

    fn from_str(url: &str) -> Result<Self, ConnectError> {
        Self::from_url(url)
    }
}

/// The same URL for a connection without TLS, which is what the redis crate reads here, and whether it
/// asks for TLS.
fn without_tls(url: &str) -> Result<(String, bool), ConnectError> {
    let schemes = [("rediss://", "redis://"), ("valkeys://", "valkey://")];
    let secure = schemes.iter().find_map(|(tls, plain)| Some((plain, url.strip_prefix(tls)?)));
    let Some((plain, rest)) = secure else { return Ok((url.to_owned(), false)) };
    // Said here: the redis crate does not know the name of this library's feature.
    if !cfg!(feature = "tls") {
        return Err(ConnectError::TlsNotBuilt);
    }
    // `#insecure` of the redis crate: silently ignored, it would look like a certificate that is wrong.
    if rest.contains('#') {
        return Err(ConnectError::Url(
            "#insecure is not supported: set root_certificate to the authority that signed the server's certificate"
                .into(),
        ));
    }
    Ok((format!("{plain}{rest}"), true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect_options::Address;

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_by_name() {
        assert!(matches!(ConnectOptions::from_url("rediss://127.0.0.1:1/"), Err(ConnectError::TlsNotBuilt)));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_told_by_the_scheme() {
        for url in ["rediss://h:1/", "valkeys://h:1/"] {
            assert!(ConnectOptions::from_url(url).unwrap().tls.is_some(), "{url}");
        }
        assert!(matches!(ConnectOptions::from_url("rediss://h:1/#insecure"), Err(ConnectError::Url(_))));
    }

    #[tokio::test]
    async fn each_part_is_read() {
        let options = ConnectOptions::from_url("redis://worker:p%40ss@host:7/3?protocol=resp2").unwrap();
        assert_eq!(options.address, Address::Tcp { host: "host".into(), port: 7 });
        assert_eq!((options.database, options.tls.is_none()), (3, true));
        let credentials = options.credentials().await.unwrap();
        assert_eq!((credentials.username(), credentials.password()), (Some("worker"), Some("p@ss")));
        let options: ConnectOptions = "redis://[::1]/".parse().unwrap();
        assert_eq!(options.address, Address::Tcp { host: "::1".into(), port: 6379 });
        let options = ConnectOptions::from_url("unix:///a/b.sock?db=2&user=u&pass=p").unwrap();
        assert_eq!((options.address, options.database), (Address::Unix("/a/b.sock".into()), 2));
        assert!(matches!(ConnectOptions::from_url("redis://h/-1"), Err(ConnectError::Url(_))));
    }

    #[tokio::test]
    async fn a_user_without_a_password_is_sent_with_an_empty_one() {
        let sent = async |url| ConnectOptions::from_url(url).unwrap().credentials().await.unwrap();
        assert_eq!(sent("redis://worker@h/").await.password(), Some(""));
        assert_eq!(sent("redis://h/").await.password(), None);
        let of_default = sent("redis://:secret@h/").await;
        assert_eq!((of_default.username(), of_default.password()), (None, Some("secret")));
    }
}
