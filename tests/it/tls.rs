//! `rediss://`, against a server with a self-signed certificate.

use fairlock::ConnectError;

use crate::support::{Server, Timing, limit};

#[tokio::test]
async fn rediss_works_with_a_root_certificate_and_not_without() {
    limit(async {
        let dir = tempfile::TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let port = crate::support::free_port();
        let (cert, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
        let _server = Server::with(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            cert,
            "--tls-key-file",
            key,
            "--tls-ca-cert-file",
            cert,
            "--tls-auth-clients",
            "no",
        ])
        .await;
        let url = format!("rediss://localhost:{port}/");

        let builder = Timing::default().builder().root_certificate(made.cert.pem());
        let client = builder.connect(&url).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        assert!(client.lock("x").try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
        client.close().await.unwrap();

        let error = Timing::default().builder().connect(&url).await.expect_err("its certificate is not trusted");
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    })
    .await;
}
