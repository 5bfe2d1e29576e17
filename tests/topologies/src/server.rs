//! One `redis-server` process: a data server, a cluster node, or a Sentinel.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult, Value};

use crate::ports::free_port;
use crate::testbed::{Testbed, eventually, note};

/// Dropping it kills the process.
pub struct Server {
    name: String,
    dir: PathBuf,
    port: u16,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    password: Option<String>,
    process: Mutex<Option<Child>>,
}

impl Server {
    /// A server on a free port, not yet started.
    pub fn new(bed: &Testbed, name: &str) -> Self {
        let dir = bed.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        Self {
            name: name.to_owned(),
            dir,
            port: free_port(),
            // Like tests/it/support/server.rs.
            args: ["--save", "", "--appendfsync", "no"].map(ToOwned::to_owned).to_vec(),
            environment: Vec::new(),
            password: None,
            process: Mutex::new(None),
        }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Makes it a Sentinel with this configuration. The Sentinel keeps its state in the file.
    pub fn sentinel(mut self, configuration: &str) -> Self {
        let file = self.dir.join("sentinel.conf");
        std::fs::write(&file, configuration).unwrap();
        self.args = vec![file.to_str().unwrap().to_owned(), "--sentinel".into()];
        self
    }

    pub fn environment(mut self, variables: &[(String, String)]) -> Self {
        self.environment.extend_from_slice(variables);
        self
    }

    /// The password that the scenario uses at this server. The server's arguments set the server's own.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        let login = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        format!("redis://{login}{}/", self.address())
    }

    /// Starts the process and does not wait for it.
    pub fn launch(&self) {
        // Another version, or Valkey: REDIS_SERVER=/usr/bin/valkey-server.
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let log = File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let child = Command::new(&binary)
            .args(&self.args)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--dir", self.dir.to_str().unwrap()])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} does not start ({error}): run scripts/setup"));
        *self.process.lock().unwrap() = Some(child);
    }

    pub async fn ready(&self) {
        eventually(&format!("{} answers", self.name), async || self.ask::<Value>("PING").await.is_ok()).await;
    }

    pub async fn start(self) -> Self {
        self.launch();
        self.ready().await;
        self
    }

    /// A separate connection, for a caller that sends many commands.
    pub async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(1)))
            .set_response_timeout(Some(Duration::from_secs(1)));
        redis::Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Sends a command, given as words.
    pub async fn ask<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        ask(&mut self.connection().await?, command).await
    }

    /// The same, but panics on an error.
    pub async fn tell<T: FromRedisValue>(&self, command: &str) -> T {
        let answer = self.ask(command).await;
        answer.unwrap_or_else(|error| panic!("{}: {command}: {error}", self.name))
    }

    fn signal(&self, signal: Signal) {
        note(format!("{signal} to {} ({})", self.name, self.port));
        if let Some(child) = &*self.process.lock().unwrap() {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }

    /// Stops the process. Its sockets stay open.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn kill(&self) {
        note(format!("SIGKILL to {} ({})", self.name, self.port));
        self.end();
    }

    fn end(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            // SIGKILL also ends a stopped process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed server again, with its data on the disk.
    pub async fn restart(&self) {
        note(format!("{} ({}) starts again", self.name, self.port));
        self.launch();
        self.ready().await;
    }

    pub async fn is_master(&self) -> bool {
        self.ask::<Vec<Value>>("ROLE").await.is_ok_and(|role| text(&role[0]) == "master")
    }

    /// One field of INFO.
    pub async fn info(&self, section: &str, field: &str) -> Option<String> {
        let info: String = self.ask(&format!("INFO {section}")).await.ok()?;
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(|value| value.trim().to_owned()))
    }

    pub async fn replicates(&self) -> bool {
        self.info("replication", "master_link_status").await.as_deref() == Some("up")
    }

    /// How often any client called a script here, successfully or not.
    pub async fn script_calls(&self) -> RedisResult<u64> {
        let info: String = self.ask("INFO commandstats").await?;
        let of = |line: &str| -> u64 {
            let words = line.split([':', ',']);
            let counts = words.filter_map(|word| {
                word.strip_prefix("calls=").or_else(|| word.strip_prefix("rejected_calls="))?.parse::<u64>().ok()
            });
            counts.sum()
        };
        Ok(info.lines().filter(|line| line.starts_with("cmdstat_eval")).map(of).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub async fn ask<T: FromRedisValue>(redis: &mut MultiplexedConnection, command: &str) -> RedisResult<T> {
    let mut words = command.split(' ');
    redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query_async(redis).await
}

pub fn text(value: &Value) -> String {
    String::from_redis_value_ref(value).unwrap_or_default()
}
