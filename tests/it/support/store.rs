//! A store of either kind, for the tests that run on both.

use fairlock::{LockClient, LockClientBuilder};

use super::{Server, Timing};

pub enum Store {
    Redis(Server),
    #[cfg(feature = "embedded")]
    Embedded(fairlock::EmbeddedServer),
}

impl Store {
    pub async fn each() -> Vec<Self> {
        vec![
            Self::Redis(Server::start().await),
            #[cfg(feature = "embedded")]
            Self::Embedded(fairlock::EmbeddedServer::new()),
        ]
    }

    pub async fn connect(&self, timing: Timing) -> LockClient {
        self.open(timing.builder()).await
    }

    pub async fn open(&self, builder: LockClientBuilder) -> LockClient {
        match self {
            Self::Redis(server) => builder.connect(server.url()).await.expect("the server is there"),
            #[cfg(feature = "embedded")]
            Self::Embedded(server) => builder.embedded(server).expect("the server is there"),
        }
    }

    /// Deletes all keys.
    pub async fn flush(&self) {
        match self {
            Self::Redis(server) => {
                redis::cmd("FLUSHALL").exec_async(&mut server.connection().await).await.unwrap();
            }
            #[cfg(feature = "embedded")]
            Self::Embedded(server) => server.flush(),
        }
    }

    /// P10, see [`Server::assert_clean`]. The embedded server does not list its subscriptions.
    pub async fn assert_clean(&self) {
        match self {
            Self::Redis(server) => server.assert_clean().await,
            #[cfg(feature = "embedded")]
            Self::Embedded(server) => {
                let clean = async || server.keys().iter().all(|key| key.ends_with("}:token") || key == super::BOOT);
                super::eventually("only tokens are left", clean).await;
            }
        }
    }
}
