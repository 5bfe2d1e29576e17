//! TLS by rustls. The crypto provider belongs to the connection: nothing is installed for the whole process.

use std::io;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::connect_options::TlsOptions;
use super::error::{ConnectError, Obstacle, PeerProtocol};
use super::options::OptionsError;

pub struct Tls(TlsConnector);

impl Tls {
    pub fn new(options: &TlsOptions) -> Result<Self, OptionsError> {
        // An application that chose a provider for its process gets that one here too.
        let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("TLS", error))?
            .with_root_certificates(roots(options.root_certificate.as_deref())?);
        let config = match &options.client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let key = PrivateKeyDer::from_pem_slice(&client.key).map_err(|error| invalid("client key", error))?;
                let chain = certificates("client certificate", &client.certificate)?;
                config.with_client_auth_cert(chain, key).map_err(|error| invalid("client certificate", error))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub async fn handshake(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn invalid(what: &'static str, error: impl std::fmt::Display) -> OptionsError {
    OptionsError::Certificate { what, reason: error.to_string() }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, OptionsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| invalid(what, error))?;
    // A PEM text without a certificate is read without an error. Then nothing would be trusted, and
    // each handshake would fail for another reason than the real one.
    if found.is_empty() { Err(invalid(what, "there is no certificate in the PEM text")) } else { Ok(found) }
}

/// The authorities to trust: those given, or else those of the machine.
fn roots(given: Option<&[u8]>) -> Result<RootCertStore, OptionsError> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = given else {
        // Machines often have a few certificates that rustls does not read; the others count.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in certificates("root certificate", pem)? {
        // Each one must be readable, unlike those of the machine: the user has named it, and would
        // look for the fault elsewhere.
        roots.add(certificate).map_err(|error| invalid("root certificate", error))?;
    }
    Ok(roots)
}

/// What went wrong in a handshake. `None`: nothing that is particular to TLS.
pub fn explain(address: String, host: &str, error: &io::Error) -> Option<ConnectError> {
    let obstacle = |address, obstacle: Obstacle| ConnectError::Unreachable { address, cause: Arc::new(obstacle) };
    Some(match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(reason)) => {
            ConnectError::Certificate { address, reason: certificate_words(host, reason) }
        }
        Some(rustls::Error::AlertReceived(alert)) => match alert {
            // TLS 1.2 has no alert of its own for a missing client certificate.
            Alert::ProtocolVersion | Alert::HandshakeFailure | Alert::InsufficientSecurity => {
                obstacle(address, Obstacle::NothingInCommon(format!("{alert:?}")))
            }
            // About what it was shown, often the client certificate.
            _ => ConnectError::Certificate { address, reason: format!("the server said {alert:?}") },
        },
        // A server without TLS answers the first message with text, which is no TLS record.
        Some(rustls::Error::InvalidMessage(_)) => ConnectError::WrongProtocol { address, found: PeerProtocol::NotTls },
        // Others close without an answer, so this alone does not show the cause.
        _ if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            obstacle(address, Obstacle::Closed)
        }
        _ => return None,
    })
}

fn certificate_words(host: &str, reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer => {
            "no known authority has signed it: set root_certificate to the certificate of its authority".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is not for the host name {host}: connect by a name that it lists ({reason})")
        }
        // Without the time of now: a text that changes would be logged as a new cause at each try.
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: give the server a new one, and see the clock of this machine".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: see the clock of this machine".into()
        }
        reason => reason.to_string(),
    }
}
