//! `rediss://`, against servers with certificates of their own.

use fairlock::{ConnectError, ConnectOptions, LockClient, OptionsError, PeerProtocol};
use tempfile::TempDir;

use crate::support::cluster::command;
use crate::support::{Server, Timing, eventually, free_port, limit};

/// A certificate for `localhost` that has signed itself, and its key.
struct Identity {
    certificate: String,
    key: String,
}

impl Identity {
    fn new() -> Self {
        Self::of("localhost")
    }

    fn of(host: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        Self { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    /// Valid in these years.
    fn between(from: i32, to: i32) -> Self {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }
}

struct TlsServer {
    plain: Server,
    port: u16,
    _files: TempDir,
}

impl TlsServer {
    /// `client`: the only client certificate that it accepts, if it asks for one.
    async fn start(identity: &Identity, client: Option<&Identity>) -> Self {
        Self::with(identity, client, &[]).await
    }

    async fn with(identity: &Identity, client: Option<&Identity>, args: &[&str]) -> Self {
        let files = TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let port = free_port();
        let of_tls = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &write("cert.pem", &identity.certificate),
            "--tls-key-file",
            &write("key.pem", &identity.key),
            "--tls-ca-cert-file",
            &write("ca.pem", &client.unwrap_or(identity).certificate),
            "--tls-auth-clients",
            if client.is_some() { "yes" } else { "no" },
        ];
        let plain = Server::with(&[&of_tls, args].concat()).await;
        Self { plain, port, _files: files }
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }

    fn at(&self) -> ConnectOptions {
        ConnectOptions::tcp("localhost", self.port)
    }
}

#[tokio::test]
async fn rediss_works_with_a_root_certificate_and_not_without() {
    limit(async {
        let identity = Identity::new();
        let server = TlsServer::start(&identity, None).await;
        let builder = Timing::default().builder().root_certificate(identity.certificate.as_str());
        let client = builder.connect(server.url()).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        assert!(client.lock("x").try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
        client.close().await.unwrap();

        let error = Timing::default().builder().connect(server.url()).await.expect_err("nobody vouches for it");
        assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
        assert!(error.to_string().contains("set root_certificate"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_told() {
    limit(async {
        let identity = Identity::new();
        let server = TlsServer::start(&identity, None).await;
        let options = ConnectOptions::tcp("127.0.0.1", server.port).root_certificate(identity.certificate.as_str());
        let error = Timing::default().builder().connect_with(options).await.unwrap_err();
        assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
        assert!(error.to_string().contains("not for the host name 127.0.0.1"), "{error}");
    })
    .await;
}

/// The text had the second in which it was tried, so that each try was logged as a new cause. Found by an attack.
#[tokio::test]
async fn a_certificate_that_has_expired_or_is_not_valid_yet_is_told_in_the_same_words_each_time() {
    limit(async {
        for (years, words) in [((2020, 2021), "it has expired"), ((2090, 2091), "it is not valid yet")] {
            let identity = Identity::between(years.0, years.1);
            let server = TlsServer::start(&identity, None).await;
            let options = server.at().root_certificate(identity.certificate.as_str());
            let error = Timing::default().builder().connect_with(options).await.unwrap_err();
            assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(words) && !text.contains("verification time"), "{text}");
        }
    })
    .await;
}

/// It was said that a certificate is not accepted. Found by an attack.
#[tokio::test]
async fn a_server_without_a_version_or_a_cipher_in_common_is_told() {
    limit(async {
        // A fatal alert: protocol_version, and handshake_failure.
        for alert in [b"\x15\x03\x03\x00\x02\x02\x46", b"\x15\x03\x03\x00\x02\x02\x28"] {
            let port = crate::connecting::answering(alert).await;
            let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{port}/")).await.unwrap_err();
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
            assert!(error.to_string().contains("no cipher in common"), "{error}");
        }
        // bad_certificate
        let port = crate::connecting::answering(b"\x15\x03\x03\x00\x02\x02\x2a").await;
        let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{port}/")).await.unwrap_err();
        assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn tls_at_one_end_only_is_told() {
    limit(async {
        let identity = Identity::new();
        let server = TlsServer::start(&identity, None).await;
        let plain = server.url().replace("rediss://", "redis://");
        let error = Timing::default().builder().connect(plain).await.unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
        let secure = server.plain.url().replace("redis://", "rediss://");
        let error = Timing::default().builder().connect(secure).await.unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
        let http = crate::connecting::answering(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{http}/")).await.unwrap_err();
        assert!(matches!(error, ConnectError::WrongProtocol { found: PeerProtocol::NotTls, .. }), "{error:?}");
        let closing = crate::connecting::answering(b"").await;
        let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{closing}/")).await.unwrap_err();
        assert!(error.to_string().contains("closed it without an answer"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_a_server_that_asks() {
    limit(async {
        let (identity, own) = (Identity::new(), Identity::new());
        let server = TlsServer::start(&identity, Some(&own)).await;
        let options = server.at().root_certificate(identity.certificate.as_str());
        let error = Timing::default().builder().connect_with(options.clone()).await.unwrap_err();
        assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
        assert!(error.to_string().contains("client certificate"), "{error}");
        let options = options.client_certificate(own.certificate.as_str(), own.key.as_str());
        assert!(!format!("{options:?}").contains("PRIVATE"), "{options:?}");
        let client = Timing::default().builder().connect_with(options).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn certificates_that_are_none_are_named() {
    for (options, what) in [
        (ConnectOptions::tcp("localhost", 1).root_certificate("nonsense"), "root certificate"),
        (ConnectOptions::tcp("localhost", 1).client_certificate("nonsense", Identity::new().key), "client certificate"),
        (ConnectOptions::tcp("localhost", 1).client_certificate(Identity::new().certificate, "nonsense"), "client key"),
    ] {
        let error = Timing::default().builder().connect_with(options).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(_)), "{error:?}");
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}

#[tokio::test]
async fn tls_installs_no_crypto_provider_for_the_process() {
    limit(async {
        let identity = Identity::new();
        let server = TlsServer::start(&identity, None).await;
        let builder = Timing::default().builder().root_certificate(identity.certificate.as_str());
        builder.connect(server.url()).await.unwrap().close().await.unwrap();
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
    })
    .await;
}

/// A certificate that nothing reads would look like a check of the server's certificate.
#[tokio::test]
async fn a_root_certificate_that_would_not_be_used_is_refused() {
    let builder = || LockClient::builder().root_certificate("pem");
    let unused = [
        builder().connect("redis://127.0.0.1:1/").await,
        builder().connect("unix:///no/such.sock").await,
        builder().connect_with(ConnectOptions::tcp("127.0.0.1", 1).tls()).await,
        #[cfg(feature = "embedded")]
        builder().embedded(&fairlock::EmbeddedServer::new()),
    ];
    for outcome in unused {
        let error = outcome.unwrap_err();
        assert!(matches!(error, ConnectError::Options(OptionsError::UnusedRootCertificate)), "{error:?}");
    }
}

/// A node of a cluster gives a client that asks over TLS the port with TLS.
#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    limit(async {
        let identity = Identity::new();
        let bus = free_port().to_string();
        let args = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
        let server = TlsServer::with(&identity, None, &args).await;
        command(&server.plain, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        eventually("it serves", async || command(&server.plain, &["CLUSTER", "INFO"]).await.contains("state:ok")).await;
        let url = format!("rediss+cluster://localhost:{}", server.port);
        let builder = Timing::default().builder().root_certificate(identity.certificate.as_str());
        let client = builder.connect(url).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn sentinels_may_be_without_tls() {
    limit(async {
        let identity = Identity::of("127.0.0.1");
        let server = TlsServer::start(&identity, None).await;
        let sentinel = Server::sentinel().await;
        let port = server.port.to_string();
        command(&sentinel, &["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "1"]).await;
        let options = ConnectOptions::sentinel("mymaster", [("127.0.0.1", sentinel.port())])
            .root_certificate(identity.certificate.as_str());
        let error = Timing::default().builder().connect_with(options.clone()).await.unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
        let client = Timing::default().builder().connect_with(options.sentinel_without_tls()).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}
