//! A cluster for one test: masters without replicas.

use super::{Server, eventually, free_port};

/// A cluster whose servers end with it.
pub struct Cluster {
    pub masters: Vec<Server>,
}

impl Cluster {
    /// Starts masters that share the slots evenly.
    pub async fn start(masters: u16) -> Self {
        Self::with(masters, &[]).await
    }

    pub async fn with(masters: u16, args: &[&str]) -> Self {
        let nodes = Self::nodes(masters, args).await;
        Self::create(&nodes).await;
        Self { masters: nodes.into_iter().map(|(server, _)| server).collect() }
    }

    /// Starts servers that are not a cluster yet. Returns them with the ports of their bus.
    pub async fn nodes(masters: u16, args: &[&str]) -> Vec<(Server, String)> {
        let mut servers = Vec::new();
        for _ in 0..masters {
            // By default the port of the cluster's bus is the server's port plus 10,000, which may be in use.
            let bus = free_port().to_string();
            let all = [&["--cluster-enabled", "yes", "--cluster-port", &bus], args].concat();
            servers.push((Server::with(&all).await, bus));
        }
        servers
    }

    /// Makes a cluster of these servers.
    pub async fn create(servers: &[(Server, String)]) {
        let (first, bus) = &servers[0];
        let masters = u32::try_from(servers.len()).unwrap();
        let share = 16_384 / masters;
        for (number, (server, _)) in (0..).zip(servers) {
            let last = if number + 1 == masters { 16_383 } else { (number + 1) * share - 1 };
            command(server, &["CLUSTER", "ADDSLOTSRANGE", &(number * share).to_string(), &last.to_string()]).await;
            command(server, &["CLUSTER", "MEET", "127.0.0.1", &first.port().to_string(), bus]).await;
        }
        for (server, _) in servers {
            eventually("the cluster is complete", async || {
                let info = command(server, &["CLUSTER", "INFO"]).await;
                info.contains("cluster_state:ok") && info.contains(&format!("cluster_size:{masters}"))
            })
            .await;
        }
    }

    /// Kills its first nodes, and starts them with their data at these ports.
    pub async fn come_back_at(&mut self, ports: &[u16]) {
        for master in self.masters.iter().take(ports.len()) {
            master.kill().await;
        }
        for (master, port) in self.masters.iter_mut().zip(ports) {
            master.come_back_at(*port).await;
        }
        self.settle().await;
    }

    /// Waits until all nodes find the cluster complete.
    pub async fn settle(&self) {
        for server in &self.masters {
            eventually("the cluster is complete", async || {
                command(server, &["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
            })
            .await;
        }
    }

    /// The latest epoch that any of its nodes knows.
    pub async fn epoch(&self) -> u64 {
        let mut latest = 0;
        for server in &self.masters {
            let info = command(server, &["CLUSTER", "INFO"]).await;
            let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim().parse().ok());
            latest = latest.max(epoch.unwrap());
        }
        latest
    }

    /// Moves its epoch beyond this one.
    pub async fn advance_beyond(&self, epoch: u64) {
        while self.epoch().await <= epoch {
            for server in &self.masters {
                command(server, &["CLUSTER", "BUMPEPOCH"]).await;
            }
        }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.masters.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub async fn id(&self, master: usize) -> String {
        command(&self.masters[master], &["CLUSTER", "MYID"]).await
    }

    /// Moves a slot with all its keys. Runs `while_it_moves` half-way.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize, while_it_moves: impl AsyncFnOnce()) {
        let (source, target, slot) = (&self.masters[from], &self.masters[to], slot.to_string());
        command(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from).await]).await;
        command(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to).await]).await;
        loop {
            let keys: Vec<String> = redis::cmd("CLUSTER")
                .arg(&["GETKEYSINSLOT", &slot, "100"])
                .query_async(&mut source.connection().await)
                .await
                .unwrap();
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg(&["127.0.0.1", &port, "", "0", "5000", "KEYS"]).arg(&keys);
            migrate.exec_async(&mut source.connection().await).await.unwrap();
        }
        while_it_moves().await;
        for server in [target, source] {
            command(server, &["CLUSTER", "SETSLOT", &slot, "NODE", &self.id(to).await]).await;
        }
    }
}

pub async fn command(server: &Server, words: &[&str]) -> String {
    let mut redis = server.connection().await;
    let reply = redis::cmd(words[0]).arg(&words[1..]).query_async::<redis::Value>(&mut redis).await;
    let reply = reply.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    redis::from_redis_value::<Option<String>>(reply).ok().flatten().unwrap_or_default()
}

/// The slot of a lock's keys, according to the server.
pub async fn slot_of(server: &Server, name: &str) -> u16 {
    let mut redis = server.connection().await;
    redis::cmd("CLUSTER").arg("KEYSLOT").arg(format!("fairlock:{{n:{name}}}")).query_async(&mut redis).await.unwrap()
}
