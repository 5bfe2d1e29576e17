//! A `redis-server` for one test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::clock::ShiftedClock;
use super::{eventually, free_port};

/// The record of a server's last start, with `strict_restart`.
pub const BOOT: &str = "fairlock:{boot}";

/// Listens on a free port and on a Unix socket. Killed when dropped.
pub struct Server {
    dir: TempDir,
    ip: String,
    port: u16,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    process: Mutex<Option<Child>>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// A Sentinel that watches nothing yet. It needs a file for its state.
    pub async fn sentinel() -> Self {
        Self::with(&["--sentinel"]).await
    }

    pub async fn with(args: &[&str]) -> Self {
        let server = Self::prepared(args);
        server.launch().await;
        server
    }

    /// Another server with the same arguments and port, at another address.
    pub async fn beside(other: &Self, ip: &str) -> Self {
        let mut server = Self::prepared(&[]);
        (server.ip, server.port, server.args) = (ip.to_owned(), other.port, other.args.clone());
        server.launch().await;
        server
    }

    /// A server in cluster mode. By default the port of its bus is its port plus 10,000, which may be in use.
    pub async fn node() -> Self {
        Self::with(&["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]).await
    }

    /// A server whose clock is off by `shift_ms`: ahead, or slow if negative.
    pub async fn with_clock(clock: &ShiftedClock, shift_ms: i64, args: &[&str]) -> Self {
        let mut server = Self::prepared(args);
        server.environment = clock.environment(shift_ms);
        server.launch().await;
        let time: (i64, i64) = redis::cmd("TIME").query_async(&mut server.connection().await).await.unwrap();
        let here = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let ahead = time.0 * 1000 - i64::try_from(here.as_millis()).unwrap();
        assert!((ahead - shift_ms).abs() < 60_000.min(shift_ms.abs().max(2000)), "its clock is ahead by {ahead} ms");
        server
    }

    fn prepared(args: &[&str]) -> Self {
        Self {
            dir: folder(),
            ip: "127.0.0.1".to_owned(),
            port: free_port(),
            args: args.iter().map(ToString::to_string).collect(),
            environment: Vec::new(),
            process: Mutex::new(None),
        }
    }

    pub fn url(&self) -> String {
        format!("redis://{}:{}/", self.ip, self.port)
    }

    /// The URL of the user `worker`, with the password `secret`, from whom tests take rights away.
    pub fn url_of_worker(&self) -> String {
        self.url().replace("redis://", "redis://worker:secret@")
    }

    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    async fn launch(&self) {
        // For another version, or for Valkey, set REDIS_SERVER=/usr/bin/valkey-server.
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(&binary);
        if self.args.iter().any(|arg| arg == "--sentinel") {
            let file = self.dir.path().join("sentinel.conf");
            std::fs::OpenOptions::new().create(true).append(true).open(&file).unwrap();
            command.arg(file);
        }
        let child = command
            .args(["--port", &self.port.to_string(), "--bind", &self.ip])
            .args(["--unixsocket", self.socket().to_str().unwrap()])
            .args(["--dir", self.dir.path().to_str().unwrap()])
            // With `everysec`, the default, a server that keeps data answers before it writes during a sync, and loses
            // those answers when it is killed.
            .args(["--save", "", "--appendonly", "no", "--appendfsync", "no", "--daemonize", "no"])
            .args(&self.args)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} does not start ({error}): run scripts/setup"));
        *self.process.lock().unwrap() = Some(child);
        eventually("redis-server answers", async || self.answers().await).await;
    }

    async fn answers(&self) -> bool {
        // Asks at the socket in the server's own folder, which the server opens after its port. At the port another
        // server may answer, from which this one could not take it.
        let Ok(client) = redis::Client::open(self.unix_url()) else { return false };
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
        match redis::cmd("PING").query_async::<String>(&mut connection).await {
            Ok(_) => true,
            Err(error) => error.code() == Some("NOAUTH"),
        }
    }

    /// Makes the next snapshot fail, with a folder in place of its file.
    pub async fn break_snapshots(&self) {
        std::fs::create_dir(self.dir.path().join("dump.rdb")).unwrap();
        let mut redis = self.connection().await;
        redis::cmd("BGSAVE").exec_async(&mut redis).await.unwrap();
        eventually("the snapshot has failed", async || {
            let info: String =
                redis::cmd("INFO").arg("persistence").query_async(&mut self.connection().await).await.unwrap();
            info.contains("rdb_last_bgsave_status:err")
        })
        .await;
    }

    /// A plain connection, for checks without the library.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let client = redis::Client::open(self.url()).unwrap();
        // Sentinel closes all connections of a server whose role it changes, even new ones.
        for _ in 0..100 {
            if let Ok(connection) = client.get_multiplexed_async_connection_with_config(&config).await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no connection to the server at {}", self.port());
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.process.lock().unwrap() {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }

    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub async fn kill(&self) {
        self.end();
    }

    fn end(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            // SIGKILL also ends a stopped process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the server and starts it again, without data.
    pub async fn restart(&self) {
        self.end();
        self.launch().await;
    }

    /// The same for a server with `--appendonly yes`, which keeps its data.
    pub async fn restart_with_data(&self) {
        assert!(self.args.iter().any(|arg| arg == "--appendonly"), "this server keeps no data");
        self.restart().await;
    }

    /// Kills the server and starts it again with its data, at another port.
    pub async fn come_back_at(&mut self, port: u16) {
        self.port = port;
        self.restart_with_data().await;
    }

    /// Writes a snapshot now.
    pub async fn save(&self) {
        redis::cmd("SAVE").exec_async(&mut self.connection().await).await.unwrap();
    }

    /// Kills the server and starts it again with the data of its last [`save`](Self::save).
    pub async fn restart_from_snapshot(&self) {
        assert!(self.dir.path().join("dump.rdb").is_file(), "this server has saved nothing");
        self.restart().await;
    }

    /// Makes it a replica of another server. Returns when it has all the data.
    pub async fn replicate(&self, primary: &Server) {
        let mut redis = self.connection().await;
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(primary.port()).exec_async(&mut redis).await.unwrap();
        eventually("it has the data", async || {
            let info: String =
                redis::cmd("INFO").arg("replication").query_async(&mut self.connection().await).await.unwrap();
            info.contains("master_link_status:up")
        })
        .await;
    }

    /// Makes it a primary of its own, which follows no other server any more.
    pub async fn promote(&self) {
        let mut redis = self.connection().await;
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut redis).await.unwrap();
    }

    /// The time to live of a key in ms; -2 if it does not exist.
    pub async fn lifetime(&self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query_async(&mut self.connection().await).await.unwrap()
    }

    pub async fn version(&self) -> String {
        match self.info("valkey_version:").await {
            Some(version) => version,
            None => self.redis_version().await,
        }
    }

    /// The version of Redis that it resembles: Valkey reports one too, for older clients.
    pub async fn redis_version(&self) -> String {
        self.info("redis_version:").await.unwrap()
    }

    async fn info(&self, name: &str) -> Option<String> {
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.connection().await).await.unwrap();
        info.lines().find_map(|line| line.strip_prefix(name)).map(|version| version.trim().to_owned())
    }

    /// A connection that subscribes.
    pub async fn pubsub(&self) -> redis::aio::PubSub {
        redis::Client::open(self.url()).unwrap().get_async_pubsub().await.unwrap()
    }

    /// How often a command was run, by INFO commandstats.
    pub async fn calls(&self, command: &str) -> u64 {
        let mut redis = self.connection().await;
        let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await.unwrap();
        let start = format!("cmdstat_{command}:calls=");
        let calls = info.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// How many connections the server has accepted so far, including the one of this call.
    pub async fn connections(&self) -> u64 {
        let mut redis = self.connection().await;
        let info: String = redis::cmd("INFO").arg("stats").query_async(&mut redis).await.unwrap();
        let received = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        received.unwrap().trim().parse().unwrap()
    }

    /// Writes keys until the server's memory is full.
    pub async fn fill(&self) {
        let mut redis = self.connection().await;
        for size in [100_000, 10_000, 1_000, 100, 1] {
            for number in 0.. {
                let key = format!("filler {size} {number}");
                let set = redis::cmd("SET").arg(key).arg("x".repeat(size)).exec_async(&mut redis).await;
                if let Err(error) = set {
                    assert_eq!(error.code(), Some("OOM"), "{error}");
                    break;
                }
            }
        }
    }

    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut self.connection().await).await.unwrap();
        keys.sort();
        keys
    }

    /// The same after the test has killed processes: the queue of their waiters expires.
    pub async fn assert_clean_but_for_the_dead(&self) {
        for key in self.keys().await.iter().filter(|key| key.ends_with(":queue") || key.ends_with(":deadlines")) {
            let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut self.connection().await).await.unwrap();
            assert!((1..=90_000).contains(&ttl), "{key} with a TTL of {ttl} ms");
            redis::cmd("DEL").arg(key).exec_async(&mut self.connection().await).await.unwrap();
        }
        self.assert_clean().await;
    }

    /// P10: without a holder and waiters, a name has at most the key of its token, with a TTL. Tombstones expire within
    /// seconds, so this waits for them. No subscription remains.
    pub async fn assert_clean(&self) {
        let mut redis = self.connection().await;
        let offending = async |redis: &mut MultiplexedConnection| {
            let mut offending = Vec::new();
            for key in self.keys().await {
                let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(redis).await.unwrap();
                // The record of boot.lua has no TTL.
                if key != BOOT && (!key.ends_with("}:token") || ttl == -1) {
                    offending.push(format!("{key:?} with a TTL of {ttl} ms"));
                }
            }
            let channels: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query_async(redis).await.unwrap();
            offending.extend(channels.into_iter().map(|channel| format!("subscription {channel}")));
            offending
        };
        for _ in 0..300 {
            if offending(&mut redis).await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
        panic!("left behind: {:#?}\n{clients}", offending(&mut redis).await);
    }
}

/// In memory if the system has such a folder, so that the servers' writes cost no time.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
