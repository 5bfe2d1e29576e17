//! Converts the redis crate's description of a server into options.

use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use super::connect_options::{Address, ConnectOptions, Topology};
use super::error::ConnectionInfoError;

/// Takes over the address, TLS, the database, the user and the password.
///
/// Ignores settings for the redis crate's own connections: the protocol version (a lock needs RESP3), the library
/// name, and TCP settings. To connect like an existing client, use
/// [`Client::get_connection_info`](redis::Client::get_connection_info).
///
/// ```
/// use fairlock::{ConnectOptions, ConnectionInfoError};
/// use redis::IntoConnectionInfo;
///
/// let info = "redis://worker:secret@redis.internal/1".into_connection_info()?;
/// let options = ConnectOptions::try_from(info)?;
/// assert_eq!(options.to_string(), "redis://worker@redis.internal:6379/1");
///
/// let wrong = "redis://redis.internal/-1".into_connection_info()?;
/// assert_eq!(ConnectOptions::try_from(&wrong).err(), Some(ConnectionInfoError::Database(-1)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ConnectionInfoError`] names the part that fairlock cannot use.
impl TryFrom<&ConnectionInfo> for ConnectOptions {
    type Error = ConnectionInfoError;

    fn try_from(info: &ConnectionInfo) -> Result<Self, ConnectionInfoError> {
        at(info.addr())?.signed_in(info.redis_settings())
    }
}

/// The same, by value.
impl TryFrom<ConnectionInfo> for ConnectOptions {
    type Error = ConnectionInfoError;

    fn try_from(info: ConnectionInfo) -> Result<Self, ConnectionInfoError> {
        Self::try_from(&info)
    }
}

fn at(address: &ConnectionAddr) -> Result<ConnectOptions, ConnectionInfoError> {
    let single = |address| ConnectOptions::at(Topology::Single(address));
    match address {
        ConnectionAddr::Tcp(host, port) => Ok(single(Address::Tcp { host: host.clone(), port: *port })),
        ConnectionAddr::Unix(path) => Ok(single(Address::Unix(path.clone()))),
        ConnectionAddr::TcpTls { insecure: true, .. } => Err(ConnectionInfoError::Insecure),
        // Without these certificates the client would trust authorities that the user did not choose, or the server
        // would refuse the client.
        ConnectionAddr::TcpTls { tls_params: Some(_), .. } => Err(ConnectionInfoError::Certificates),
        ConnectionAddr::TcpTls { .. } if !cfg!(feature = "tls") => Err(ConnectionInfoError::TlsNotBuilt),
        ConnectionAddr::TcpTls { host, port, .. } => {
            let mut options = single(Address::Tcp { host: host.clone(), port: *port });
            options.tls.get_or_insert_default();
            Ok(options)
        }
        other => Err(ConnectionInfoError::Address(other.to_string())),
    }
}

impl ConnectOptions {
    /// Adds the user, password and database of the redis crate's settings.
    pub(super) fn signed_in(mut self, settings: &RedisConnectionInfo) -> Result<Self, ConnectionInfoError> {
        if let Some(username) = settings.username() {
            self = self.username(username);
        }
        if let Some(password) = settings.password() {
            self = self.password(password);
        }
        // The crate accepts a negative number. Refuse it here, before SELECT would fail.
        let database = u32::try_from(settings.db()).map_err(|_| ConnectionInfoError::Database(settings.db()))?;
        Ok(self.database(database))
    }
}

#[cfg(test)]
mod tests {
    use redis::{Client, IntoConnectionInfo};

    use super::*;

    fn info(address: ConnectionAddr) -> ConnectionInfo {
        address.into_connection_info().unwrap()
    }

    fn by_tls(insecure: bool) -> ConnectionInfo {
        info(ConnectionAddr::TcpTls { host: "h".into(), port: 7, insecure, tls_params: None })
    }

    #[tokio::test]
    async fn what_can_be_taken_over_is() {
        let settings = RedisConnectionInfo::default().set_username("worker").set_password("hush").set_db(3);
        let settings = settings.set_protocol(redis::ProtocolVersion::RESP2).set_lib_name("mine", "1");
        for (address, shown) in [
            (ConnectionAddr::Tcp("h".into(), 7), "redis://worker@h:7/3"),
            (ConnectionAddr::Tcp("::1".into(), 7), "redis://worker@[::1]:7/3"),
            (ConnectionAddr::Unix("/a/b.sock".into()), "unix:///a/b.sock?db=3"),
        ] {
            let options = ConnectOptions::try_from(info(address).set_redis_settings(settings.clone())).unwrap();
            assert_eq!(options.to_string(), shown);
            let credentials = options.sign_in.get().await.unwrap();
            assert_eq!((credentials.username(), credentials.password()), (Some("worker"), Some("hush")));
        }
        let client = Client::open("redis://h:7/2").unwrap();
        assert_eq!(ConnectOptions::try_from(client.get_connection_info()).unwrap().to_string(), "redis://h:7/2");
    }

    #[test]
    fn what_cannot_be_taken_over_has_its_error() {
        let refused = |info: ConnectionInfo| ConnectOptions::try_from(info).unwrap_err();
        assert_eq!(refused(by_tls(true)), ConnectionInfoError::Insecure);
        let negative = RedisConnectionInfo::default().set_db(-1);
        let negative = info(ConnectionAddr::Tcp("h".into(), 7)).set_redis_settings(negative);
        assert_eq!(refused(negative), ConnectionInfoError::Database(-1));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_has_its_error() {
        assert_eq!(ConnectOptions::try_from(by_tls(false)).unwrap_err(), ConnectionInfoError::TlsNotBuilt);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_taken_over() {
        assert_eq!(ConnectOptions::try_from(by_tls(false)).unwrap().to_string(), "rediss://h:7/0");
    }
}
