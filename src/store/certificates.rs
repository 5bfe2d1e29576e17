//! The certificates that TLS uses to verify the server, and the server to verify this client.

use std::fmt;

/// The certificates for TLS. A [certificates provider](crate::ConnectOptions::certificates_provider) returns them.
/// `Debug` does not show the key.
///
/// Without a root certificate the client trusts the authorities of the machine.
///
/// ```no_run
/// # fn example() -> std::io::Result<()> {
/// use fairlock::Certificates;
///
/// let certificates = Certificates::new()
///     .root_certificate(std::fs::read("ca.pem")?)
///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "certificates do nothing until a provider returns them"]
// Only the feature `tls` reads the fields.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub struct Certificates {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCertificate>,
}

/// A certificate of this client, as PEM.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub struct ClientCertificate {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// Without the key.
impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
impl Certificates {
    /// The authorities of the machine, and no certificate of this client.
    ///
    /// ```
    /// let certificates = fairlock::Certificates::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities (PEM) instead of the machine's. The text may contain several, such as the old and the
    /// new one while servers change over.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// let certificates = fairlock::Certificates::new().root_certificate(std::fs::read("ca.pem")?);
    /// # Ok(()) }
    /// ```
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root = Some(pem.into());
        self
    }

    /// Presents this client certificate to the server: the certificate and its private key, as PEM.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// let (certificate, key) = (std::fs::read("client.pem")?, std::fs::read("client.key")?);
    /// let certificates = fairlock::Certificates::new().client_certificate(certificate, key);
    /// # Ok(()) }
    /// ```
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some(ClientCertificate { certificate: certificate.into(), key: key.into() });
        self
    }
}
