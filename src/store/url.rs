//! From a URL to a client of the redis crate.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::error::ConnectError;

const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a server is, and how to know it.
#[derive(Debug, Clone)]
pub struct Target {
    pub url: String,
    /// PEM, for `rediss://`.
    pub root_certificate: Option<Vec<u8>>,
}

impl Target {
    /// A client that has not connected yet, and the server's address for messages.
    pub fn open(self) -> Result<(redis::Client, String), ConnectError> {
        let info = connection_info(&self.url)?;
        let address = info.addr().to_string();
        Ok((open(info, self.root_certificate)?, address))
    }
}

fn connection_info(url: &str) -> Result<ConnectionInfo, ConnectError> {
    // The redis crate would call it a bad URL and not say what to do.
    #[cfg(not(feature = "tls"))]
    if url.starts_with("rediss://") || url.starts_with("valkeys://") {
        return Err(ConnectError::TlsNotBuilt);
    }
    let info = url.into_connection_info().map_err(|error| ConnectError::Url(error.to_string()))?;
    // Nagle's algorithm is on by default, and costs a hand-off over a 10 ms link 12 ms.
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

#[cfg(feature = "tls")]
fn open(info: ConnectionInfo, root_certificate: Option<Vec<u8>>) -> Result<redis::Client, ConnectError> {
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return redis::Client::open(info).map_err(|error| ConnectError::Url(error.to_string()));
    }
    // Without a provider the redis crate panics at connect. An application that chose one keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: root_certificate };
    redis::Client::build_with_tls(info, certificates).map_err(|error| ConnectError::Url(error.to_string()))
}

#[cfg(not(feature = "tls"))]
fn open(info: ConnectionInfo, _root_certificate: Option<Vec<u8>>) -> Result<redis::Client, ConnectError> {
    redis::Client::open(info).map_err(|error| ConnectError::Url(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_by_name() {
        assert!(matches!(connection_info("rediss://127.0.0.1:1/"), Err(ConnectError::TlsNotBuilt)));
    }

    #[test]
    fn every_connection_sends_at_once_and_speaks_resp3() {
        let info = connection_info("redis://127.0.0.1:1/?protocol=resp2").unwrap();
        assert!(info.tcp_settings().nodelay());
        assert_eq!(info.redis_settings().protocol(), ProtocolVersion::RESP3);
    }
}
