//! `rediss://`, against servers that have their own certificates.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fairlock::{Certificates, ConnectError, ConnectOptions, LockClient, OptionsError};
use tempfile::TempDir;

use crate::support::cluster::command;
use crate::support::{Server, Timing, eventually, free_port, limit};

/// A self-signed certificate for `localhost`, and its key.
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

    /// A certificate that is valid in these years.
    fn between(from: i32, to: i32) -> Self {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// Writes the files of a server's own identity, and returns the paths of the certificate and the key.
fn write(identity: &Identity, folder: &Path) -> [String; 2] {
    [("cert.pem", &identity.certificate), ("key.pem", &identity.key)].map(|(name, text)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

struct TlsServer {
    plain: Server,
    port: u16,
    files: TempDir,
}

impl TlsServer {
    /// `client`: if given, the server demands this client certificate.
    async fn start(identity: &Identity, client: Option<&Identity>) -> Self {
        Self::with(identity, client, &[]).await
    }

    async fn with(identity: &Identity, client: Option<&Identity>, args: &[&str]) -> Self {
        let files = TempDir::new().unwrap();
        let [certificate, key] = write(identity, files.path());
        let authority = files.path().join("ca.pem");
        std::fs::write(&authority, &client.unwrap_or(identity).certificate).unwrap();
        let port = free_port();
        let of_tls = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            authority.to_str().unwrap(),
            "--tls-auth-clients",
            if client.is_some() { "yes" } else { "no" },
        ];
        let plain = Server::with(&[&of_tls, args].concat()).await;
        Self { plain, port, files }
    }

    /// The only node of a cluster, announced to clients with these options.
    async fn in_cluster(identity: &Identity, announced: &[&str]) -> Self {
        let bus = free_port().to_string();
        let args = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
        let server = Self::with(identity, None, &[&args, announced].concat()).await;
        command(&server.plain, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        eventually("it serves", async || command(&server.plain, &["CLUSTER", "INFO"]).await.contains("state:ok")).await;
        server
    }

    /// Switches to another identity, and drops the connections of clients, so that each must verify it again.
    async fn change_to(&self, identity: &Identity) {
        let [certificate, key] = write(identity, self.files.path());
        let paths = ["tls-cert-file", &certificate, "tls-key-file", &key, "tls-ca-cert-file", &certificate];
        command(&self.plain, &[&["CONFIG", "SET"], &paths[..]].concat()).await;
        command(&self.plain, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
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
        assert!(client.lock("x").try_lock().await.unwrap().is_busy());
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

/// The error text contained the second of the attempt, so the client logged each attempt as a new cause.
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

/// The error blamed a certificate.
#[tokio::test]
async fn a_server_without_a_version_or_a_cipher_in_common_is_told() {
    limit(async {
        // Fatal alerts: protocol_version, and handshake_failure.
        for alert in [b"\x15\x03\x03\x00\x02\x02\x46", b"\x15\x03\x03\x00\x02\x02\x28"] {
            let port = crate::connecting::answering(alert).await;
            let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{port}/")).await.unwrap_err();
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
            assert!(error.to_string().contains("no cipher with this client"), "{error}");
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
        assert!(error.to_string().contains("is TLS on at both ends"), "{error}");
        let secure = server.plain.url().replace("redis://", "rediss://");
        let error = Timing::default().builder().connect(secure).await.unwrap_err();
        assert!(error.to_string().contains("does it use TLS there"), "{error}");
        // Text is not a TLS record; other servers just close the connection.
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
            let port = crate::connecting::answering(answer).await;
            let error = Timing::default().builder().connect(format!("rediss://127.0.0.1:{port}/")).await.unwrap_err();
            assert!(error.to_string().contains("is TLS on at both ends"), "{error}");
        }
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

/// An unused certificate would look like a check of the server's certificate.
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

/// If a client asks over TLS, a node of a cluster answers with its TLS port.
#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    limit(async {
        let identity = Identity::new();
        let server = TlsServer::in_cluster(&identity, &[]).await;
        let url = format!("rediss+cluster://localhost:{}", server.port);
        let builder = Timing::default().builder().root_certificate(identity.certificate.as_str());
        let client = builder.connect(url).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// The client could not connect at all.
#[tokio::test]
async fn a_node_that_its_cluster_lists_by_address_may_have_a_certificate_for_the_host_of_the_url() {
    limit(async {
        let by_address = ["--cluster-announce-ip", "127.0.0.1"];
        for (certified, seeds) in [
            ("localhost", &["localhost"][..]),
            // A certificate for the address, as before, even if the URL has a host as well (here of a node that is
            // down).
            ("127.0.0.1", &["127.0.0.1"]),
            ("127.0.0.1", &["localhost:1", "127.0.0.1"]),
            // A certificate for any of the hosts.
            ("localhost", &["elsewhere.invalid:1", "localhost"]),
        ] {
            let identity = Identity::of(certified);
            let server = TlsServer::in_cluster(&identity, &by_address).await;
            let with_port = |seed: &&str| match seed.contains(':') {
                true => (*seed).to_owned(),
                false => format!("{seed}:{}", server.port),
            };
            let seeds = seeds.iter().map(with_port).collect::<Vec<_>>().join(",");
            let builder = Timing::default().builder().root_certificate(identity.certificate.as_str());
            let client = builder.connect(format!("rediss+cluster://{seeds}")).await;
            let client = client.unwrap_or_else(|error| panic!("{certified} by {seeds}: {error}"));
            client.lock("x").lock().await.unwrap().unlock().await.unwrap();
            client.close().await.unwrap();
        }
    })
    .await;
}

/// The error advised to connect by another name, which changes nothing.
#[tokio::test]
async fn a_node_with_a_certificate_for_another_name_is_refused_with_the_settings_of_its_cluster() {
    limit(async {
        let (seed, node) = (Identity::new(), Identity::of("other.test"));
        let other = TlsServer::start(&node, None).await;
        let port = other.port.to_string();
        for announced in [
            &["--cluster-announce-ip", "127.0.0.1"][..],
            // For the client this name is another one than the name in the URL.
            &["--cluster-announce-hostname", "LOCALHOST", "--cluster-preferred-endpoint-type", "hostname"],
        ] {
            // The node lists itself at the port of the other server.
            let announced = [announced, &["--cluster-announce-tls-port", &port]].concat();
            let server = TlsServer::in_cluster(&seed, &announced).await;
            let roots = [seed.certificate.as_str(), &node.certificate].concat();
            let url = format!("rediss+cluster://localhost:{}", server.port);
            let error = Timing::default().builder().root_certificate(roots).connect(url).await.unwrap_err();
            assert!(matches!(error, ConnectError::Certificate { .. }), "{error:?}");
            for words in ["cluster-announce-hostname", "cluster-preferred-endpoint-type hostname", "other.test"] {
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    })
    .await;
}

/// The running client kept the authority that it had read first, and lost its locks.
#[tokio::test]
async fn a_client_with_a_certificates_provider_outlives_the_authority_of_its_server() {
    limit(async {
        let (old, new) = (Identity::new(), Identity::new());
        let server = TlsServer::start(&old, None).await;
        let current = Arc::new(Mutex::new(old.certificate.clone()));
        let provided = current.clone();
        let options = server.at().certificates_provider(move || {
            let root = provided.lock().unwrap().clone();
            async move { Ok::<_, std::io::Error>(Certificates::new().root_certificate(root)) }
        });
        let client = Timing::relaxed().builder().connect_with(options).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        current.lock().unwrap().clone_from(&new.certificate);
        server.change_to(&new).await;
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_certificates_provider_gives_a_client_certificate() {
    limit(async {
        let (identity, own) = (Identity::new(), Identity::new());
        let server = TlsServer::start(&identity, Some(&own)).await;
        let certificates = Certificates::new()
            .root_certificate(identity.certificate.as_str())
            .client_certificate(own.certificate.as_str(), own.key.as_str());
        assert!(!format!("{certificates:?}").contains("PRIVATE"), "{certificates:?}");
        let options = server.at().certificates_provider(move || {
            let certificates = certificates.clone();
            async move { Ok::<_, std::io::Error>(certificates) }
        });
        let client = Timing::default().builder().connect_with(options).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_certificates_provider_that_does_not_provide_is_told() {
    async fn told(options: ConnectOptions, words: &str) {
        let error = Timing::default().builder().connect_with(options).await.unwrap_err();
        assert!(matches!(error, ConnectError::CertificatesProvider(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    limit(async {
        let server = TlsServer::start(&Identity::new(), None).await;
        let at = || server.at();
        let sealed = || async { Err::<Certificates, _>(std::io::Error::other("the vault is sealed")) };
        told(at().certificates_provider(sealed), "the vault is sealed").await;
        told(at().certificates_provider(std::future::pending::<Result<_, std::io::Error>>), "no answer within 1s")
            .await;
        let half = || async { Ok::<_, std::io::Error>(Certificates::new().root_certificate("-----BEGIN CERT")) };
        told(at().certificates_provider(half), "the root certificate cannot be used").await;
        let panicking = || async {
            assert!(std::hint::black_box(false), "on purpose");
            Ok::<_, std::io::Error>(Certificates::new())
        };
        told(at().certificates_provider(panicking), "panicked").await;
    })
    .await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn the_command_outlives_the_authority_in_its_file() {
    use crate::support::tool::{self, Tool};

    tool::limit(async {
        let (old, new) = (Identity::new(), Identity::new());
        let server = TlsServer::start(&old, None).await;
        let file = server.files.path().join("given.pem");
        std::fs::write(&file, &old.certificate).unwrap();
        let arguments = ["--cacert", file.to_str().unwrap(), "lock", "x", "--", "sh", "-c", "echo in; read line"];
        let mut running = Tool::new(&server.url(), &arguments).start();
        assert_eq!(running.line().await, "in");
        std::fs::write(&file, &new.certificate).unwrap();
        server.change_to(&new).await;
        let subscribers = async || command(&server.plain, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        eventually("it is back", async || !subscribers().await.is_empty()).await;
        running.say("go on\n").await;
        let (ended, err) = running.end().await;
        assert_eq!(ended.code(), Some(0), "{err}");
        assert_eq!(command(&server.plain, &["EXISTS", "fairlock:{n:x}"]).await, "0", "it was released");
        // At the start, the error names a file that the command cannot use.
        for (file, words) in
            [("/no/such.pem", "--cacert /no/such.pem: No such file"), ("/dev/null", "root certificate")]
        {
            let ended = Tool::new(&server.url(), &["--cacert", file, "status", "x"]).run().await;
            assert_eq!(ended.code, Some(2), "{}", ended.err);
            assert!(ended.err.contains(words), "{}", ended.err);
        }
    })
    .await;
}

/// The redis crate reads such a URL only if its own TLS is enabled.
#[tokio::test]
async fn what_the_redis_crate_connects_to_by_tls_is_taken_over() {
    use redis::{ConnectionAddr, IntoConnectionInfo};

    limit(async {
        let identity = Identity::new();
        let server = TlsServer::start(&identity, None).await;
        let at = |insecure| {
            let (host, port) = ("localhost".to_owned(), server.port);
            ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }.into_connection_info().unwrap()
        };
        let builder = || Timing::default().builder().root_certificate(identity.certificate.as_str());
        let client = builder().connect(at(false)).await.unwrap();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        let error = builder().connect(at(true)).await.unwrap_err();
        assert!(matches!(error, ConnectError::ConnectionInfo(fairlock::ConnectionInfoError::Insecure)), "{error:?}");
        let options = ConnectOptions::try_from(at(false)).unwrap().root_certificate(identity.certificate.as_str());
        Timing::default().builder().connect_with(options).await.unwrap().close().await.unwrap();
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
