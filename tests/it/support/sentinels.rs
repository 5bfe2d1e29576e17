//! A primary with a replica, and Sentinels that watch them.

use super::cluster::command;
use super::{Server, eventually};

/// A primary, its replica and three Sentinels, which end with it.
pub struct Sentinels {
    pub primary: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Three Sentinels. Two must agree that the primary is down.
    pub async fn start() -> Self {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(watching(&primary).await);
        }
        for sentinel in &sentinels {
            eventually("the Sentinels know each other and the replica", async || {
                let mut redis = sentinel.connection().await;
                let mut question = redis::cmd("SENTINEL");
                question.arg("MASTER").arg("mymaster");
                let facts = question.query_async::<std::collections::HashMap<String, String>>(&mut redis).await;
                let facts = facts.unwrap_or_default();
                facts.get("num-other-sentinels").is_some_and(|others| others == "2")
                    && facts.get("num-slaves").is_some_and(|replicas| replicas == "1")
            })
            .await;
        }
        Self { primary, replica, sentinels }
    }

    pub fn url(&self) -> String {
        url(&self.sentinels, "mymaster")
    }
}

/// A Sentinel that watches this server by the name mymaster.
pub async fn watching(primary: &Server) -> Server {
    let sentinel = Server::sentinel().await;
    watch(&sentinel, primary).await;
    sentinel
}

/// Makes a Sentinel watch this server by the name mymaster.
pub async fn watch(sentinel: &Server, primary: &Server) {
    let port = primary.port().to_string();
    command(sentinel, &["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "2"]).await;
    for (option, value) in [("down-after-milliseconds", "1000"), ("failover-timeout", "5000")] {
        command(sentinel, &["SENTINEL", "SET", "mymaster", option, value]).await;
    }
}

pub fn url<'a>(sentinels: impl IntoIterator<Item = &'a Server>, service: &str) -> String {
    let hosts: Vec<_> = sentinels.into_iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis-sentinel://{}/{service}/0", hosts.join(","))
}
