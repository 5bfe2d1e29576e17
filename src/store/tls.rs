//! TLS by rustls. Each connection uses its own crypto provider; none is installed for the whole process.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription as Alert, CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Certificates;
use super::connect_options::{Address, TlsOptions};
use super::error::{ConnectError, Obstacle};
use super::options::OptionsError;
use super::source::Source;
use crate::sync::Mutex;

/// The names that a server's certificate may be for.
pub enum Peers {
    /// Each server by the host that the user or a Sentinel has named.
    Separate,
    /// The nodes of a cluster. If the cluster lists a node by address, its certificate may also be for one of these
    /// hosts, which the user has named: most clusters announce addresses, and few authorities sign one (decision 99).
    OfCluster(Vec<ServerName<'static>>),
}

impl Peers {
    /// `None`: not a cluster.
    pub fn new(seeds: Option<&[Address]>) -> Self {
        let host = |seed: &Address| match seed {
            Address::Tcp { host, .. } if !is_address(host) => ServerName::try_from(host.clone()).ok(),
            _ => None,
        };
        seeds.map_or(Self::Separate, |seeds| Self::OfCluster(seeds.iter().filter_map(host).collect()))
    }

    /// The names that a certificate may be for, in addition to this host.
    fn other_names(&self, host: &str) -> &[ServerName<'static>] {
        match self {
            Self::OfCluster(hosts) if is_address(host) => hosts,
            _ => &[],
        }
    }
}

fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

/// TLS for all servers of one kind.
pub struct Tls {
    certificates: TlsOptions,
    peers: Arc<Peers>,
    /// The certificates of the last connect, parsed. The next connect reuses them if they are the same.
    latest: Mutex<Option<(Certificates, Certified)>>,
    /// The machine's authorities. Reading them takes some milliseconds, so the client reads them only when it first
    /// needs them.
    of_machine: OnceLock<Arc<RootCertStore>>,
}

#[derive(Clone)]
pub struct Certified {
    config: Arc<ClientConfig>,
    /// Verifies a server's certificate. `None` without known authorities: no check could succeed.
    verifier: Option<Arc<WebPkiServerVerifier>>,
    peers: Arc<Peers>,
}

impl Tls {
    pub fn new(certificates: TlsOptions, peers: Peers) -> Result<Self, OptionsError> {
        let tls =
            Self { certificates, peers: Arc::new(peers), latest: Mutex::default(), of_machine: OnceLock::default() };
        // Report unusable certificates before dialling.
        if !tls.certificates.has_provider() {
            tls.certified(tls.certificates.fixed.clone())?;
        }
        Ok(tls)
    }

    pub fn certificates(&self) -> &Source<Certificates> {
        &self.certificates
    }

    pub fn certified(&self, certificates: Certificates) -> Result<Certified, OptionsError> {
        let mut latest = self.latest.lock();
        if let Some((known, certified)) = &*latest
            && *known == certificates
        {
            return Ok(certified.clone());
        }
        let certified = self.read(&certificates)?;
        *latest = Some((certificates, certified.clone()));
        Ok(certified)
    }

    fn read(&self, certificates: &Certificates) -> Result<Certified, OptionsError> {
        // Use the application's crypto provider if it has installed one for its process.
        let crypto = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
        let roots = match &certificates.root {
            Some(pem) => Arc::new(roots(pem)?),
            None => self.of_machine.get_or_init(|| Arc::new(roots_of_machine())).clone(),
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), crypto.clone()).build().ok();
        let config = ClientConfig::builder_with_provider(crypto)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("TLS", error))?
            .with_root_certificates(roots);
        let config = match &certificates.client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let key = PrivateKeyDer::from_pem_slice(&client.key).map_err(|error| invalid("client key", error))?;
                let chain = parsed("client certificate", &client.certificate)?;
                config.with_client_auth_cert(chain, key).map_err(|error| invalid("client certificate", error))?
            }
        };
        Ok(Certified { config: Arc::new(config), verifier, peers: self.peers.clone() })
    }
}

impl Certified {
    pub async fn handshake(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let own = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let (config, name) = match (self.peers.other_names(host), &self.verifier) {
            ([first, ..], Some(verifier)) => {
                let names = [&[own], self.peers.other_names(host)].concat();
                let mut config = ClientConfig::clone(&self.config);
                // rustls resumes a session only with the same verifier, and here each handshake has its own.
                config.resumption = Resumption::disabled();
                config.dangerous().set_certificate_verifier(Arc::new(AnyName { usual: verifier.clone(), names }));
                // TLS sends names to the server, but no addresses. The server can choose its certificate by the name.
                (Arc::new(config), first.clone())
            }
            _ => (self.config.clone(), own),
        };
        TlsConnector::from(config).connect(name, stream).await
    }
}

/// Accepts a certificate that the usual check accepts for one of several names.
#[derive(Debug)]
struct AnyName {
    usual: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _sent_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let mut outcome = Err(CertificateError::NotValidForName.into());
        for name in &self.names {
            outcome = self.usual.verify_server_cert(certificate, intermediates, name, ocsp_response, now);
            // Any other fault would be the same for all names.
            if !outcome.as_ref().is_err_and(is_about_the_name) {
                break;
            }
        }
        outcome
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

fn is_about_the_name(error: &TlsError) -> bool {
    matches!(
        error,
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

fn invalid(what: &'static str, error: impl std::fmt::Display) -> OptionsError {
    OptionsError::Certificate { what, reason: error.to_string() }
}

fn parsed(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, OptionsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| invalid(what, error))?;
    // A PEM text without a certificate parses without an error. The client would then trust nothing, and each
    // handshake would fail with a misleading error.
    if found.is_empty() { Err(invalid(what, "there is no certificate in the PEM text")) } else { Ok(found) }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, OptionsError> {
    let mut roots = RootCertStore::empty();
    for certificate in parsed("root certificate", pem)? {
        // Each one must be readable, unlike the machine's: the user has named it, and would look for the fault
        // elsewhere.
        roots.add(certificate).map_err(|error| invalid("root certificate", error))?;
    }
    Ok(roots)
}

fn roots_of_machine() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Machines often have a few certificates that rustls cannot read. Use the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

impl Certified {
    /// Explains why a handshake failed. `None`: the error is not about TLS.
    pub fn explain(&self, address: String, host: &str, error: &io::Error) -> Option<ConnectError> {
        let obstacle = |address, obstacle: Obstacle| ConnectError::Unreachable { address, cause: Arc::new(obstacle) };
        Some(match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(TlsError::InvalidCertificate(reason)) => {
                ConnectError::Certificate { address, reason: self.certificate_words(host, reason) }
            }
            Some(TlsError::AlertReceived(alert)) => match alert {
                // TLS 1.2 lacks an alert for a missing client certificate.
                Alert::ProtocolVersion | Alert::HandshakeFailure | Alert::InsufficientSecurity => {
                    obstacle(address, Obstacle::NothingInCommon(format!("{alert:?}")))
                }
                // The server rejects something that the client presented, often its certificate.
                _ => ConnectError::Certificate { address, reason: format!("the server said {alert:?}") },
            },
            // A server without TLS answers the first message with text, which is not a TLS record.
            Some(TlsError::InvalidMessage(_)) => obstacle(address, Obstacle::NoRedis),
            // Or it closes the connection.
            _ if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                obstacle(address, Obstacle::NoRedis)
            }
            _ => return None,
        })
    }

    fn certificate_words(&self, host: &str, reason: &CertificateError) -> String {
        match reason {
            CertificateError::UnknownIssuer => {
                "no known authority has signed it: set root_certificate to the certificate of its authority".into()
            }
            // Usually the authority was replaced under the same name.
            CertificateError::BadSignature => {
                "it is signed with another key than that of the known authority of this name: was the authority replaced? \
                 Set root_certificate to the certificate of the new one"
                    .into()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                self.wrong_name(host, reason)
            }
            // Leave out the present time: the client would log a changing text as a new cause at each try.
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "it has expired: give the server a new one, and see the clock of this machine".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet: see the clock of this machine".into()
            }
            reason => reason.to_string(),
        }
    }

    fn wrong_name(&self, host: &str, reason: &CertificateError) -> String {
        let advice = match &*self.peers {
            // The cluster lists the node by another host than the URL does.
            Peers::OfCluster(hosts) if hosts.iter().all(|name| name.to_str() != host) => {
                "set cluster-announce-hostname to a name that it lists and cluster-preferred-endpoint-type hostname at each \
                 node, or connect by such a name"
            }
            _ => "connect by a name that it lists",
        };
        let others = self.peers.other_names(host).iter().map(|name| format!(" or {}", name.to_str()));
        format!("it is not for the host name {host}{}: {advice} ({reason})", others.collect::<String>())
    }
}
