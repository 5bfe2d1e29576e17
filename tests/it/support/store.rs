//! A store of either kind, for the tests that run on both.

use std::time::Duration;

use fairlock::{LockClient, LockClientBuilder};

use super::{Embedded, Server, Timing};

pub enum Store {
    Redis(Server),
    Embedded(Embedded),
}

impl Store {
    pub async fn each() -> Vec<Self> {
        vec![Self::Redis(Server::start().await), Self::Embedded(Embedded::new())]
    }

    pub async fn connect(&self, timing: Timing) -> LockClient {
        self.open(timing.builder()).await
    }

    pub async fn open(&self, builder: LockClientBuilder) -> LockClient {
        match self {
            Self::Redis(server) => builder.connect(server.url()).await.expect("the server is there"),
            Self::Embedded(server) => server.open(builder).await,
        }
    }

    pub async fn flush(&self) {
        match self {
            Self::Redis(server) => {
                redis::cmd("FLUSHALL").exec_async(&mut server.connection().await).await.unwrap();
            }
            Self::Embedded(server) => server.server.flush(),
        }
    }

    /// Makes the whole process sleep, with all of its tasks.
    pub async fn sleep_as_a_whole(&self, time: Duration) {
        match self {
            Self::Redis(_) => std::thread::sleep(time),
            Self::Embedded(_) => tokio::time::advance(time).await,
        }
    }

    /// P10, see [`Server::assert_clean`].
    pub async fn assert_clean(&self) {
        match self {
            Self::Redis(server) => server.assert_clean().await,
            Self::Embedded(server) => server.assert_clean().await,
        }
    }
}
