//! A private `redis-server`, and an admin connection to it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::aio::MultiplexedConnection;

use crate::connection::{MessageHandler, connect};
use crate::script::text;
use crate::{Outcome, Transport};

/// Listens on a free port and on a Unix socket, and keeps nothing on disk. Killed when dropped.
pub struct Server {
    dir: PathBuf,
    port: u16,
    process: Mutex<Child>,
}

/// Numbers the servers of this process, so that each has its own folder.
static SERVERS: AtomicU64 = AtomicU64::new(0);

impl Server {
    pub async fn start() -> Outcome<Self> {
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fairlock-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(&binary);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--unixsocket").arg(dir.join("redis.sock")).arg("--dir").arg(&dir);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.map_err(|error| format!("{binary} does not start ({error}): run scripts/setup"))?;
        let server = Self { dir, port, process: Mutex::new(process) };
        server.wait_until_it_answers().await?;
        Ok(server)
    }

    async fn wait_until_it_answers(&self) -> Outcome<()> {
        let limit = Instant::now() + Duration::from_secs(10);
        while let Err(error) = connect(&self.url(Transport::Tcp), MessageHandler::none()).await {
            if Instant::now() > limit {
                return Err(format!("redis-server does not answer: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, transport: Transport) -> String {
        match transport {
            Transport::Tcp => format!("redis://127.0.0.1:{}/", self.port),
            Transport::Unix => format!("unix://{}", self.dir.join("redis.sock").display()),
            Transport::Proxied(port) => format!("redis://127.0.0.1:{port}/"),
        }
    }

    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // Both calls fail only if the process has ended already.
        let _ = process.kill();
        let _ = process.wait();
    }

    pub fn freeze(&self) -> Outcome<()> {
        let id = self.process.lock().unwrap_or_else(PoisonError::into_inner).id();
        Ok(kill(Pid::from_raw(i32::try_from(id)?), Signal::SIGSTOP)?)
    }

    pub async fn admin(&self) -> Outcome<Admin> {
        Ok(Admin { redis: connect(&self.url(Transport::Tcp), MessageHandler::none()).await? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A connection that reads and sets things on the server itself.
#[derive(Clone)]
pub struct Admin {
    redis: MultiplexedConnection,
}

impl Admin {
    pub async fn run<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> Outcome<T> {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        Ok(command.query_async(&mut self.redis).await?)
    }

    /// One number of INFO. For a line like `calls=3,usec=…` it is the first.
    pub async fn info(&mut self, section: &str, field: &str) -> Outcome<f64> {
        let text: String = self.run(&["INFO", section]).await?;
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = found.unwrap_or("0").split(',').next().unwrap_or("0");
        Ok(value.trim_start_matches("calls=").trim().parse()?)
    }

    /// The CPU time that the server has used.
    pub async fn cpu(&mut self) -> Outcome<Duration> {
        let user = self.info("cpu", "used_cpu_user").await?;
        Ok(Duration::from_secs_f64(user + self.info("cpu", "used_cpu_sys").await?))
    }

    /// How many scripts clients ran by hash.
    pub async fn scripts_run(&mut self) -> Outcome<f64> {
        self.info("commandstats", "cmdstat_evalsha").await
    }

    pub async fn version(&mut self) -> Outcome<String> {
        let text: String = self.run(&["INFO", "server"]).await?;
        let version = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.ok_or("INFO without a version")?.trim().to_owned())
    }

    /// Deletes everything that an earlier row left.
    pub async fn clear(&mut self) -> Outcome<()> {
        self.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]).await?;
        self.run::<()>(&["SLOWLOG", "RESET"]).await?;
        self.run::<()>(&["FLUSHALL", "SYNC"]).await
    }

    /// From now on the slow log records every command with its time.
    pub async fn log_every_command(&mut self) -> Outcome<()> {
        self.run::<()>(&["CONFIG", "SET", "slowlog-max-len", "2000000"]).await?;
        self.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await?;
        self.run::<()>(&["SLOWLOG", "RESET"]).await
    }

    /// Stops the log, empties it, and returns the scripts in it.
    pub async fn logged_scripts(&mut self) -> Outcome<Vec<Logged>> {
        self.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]).await?;
        let entries: Vec<redis::Value> = self.run(&["SLOWLOG", "GET", "-1"]).await?;
        self.run::<()>(&["SLOWLOG", "RESET"]).await?;
        let names = Names::read_scripts()?;
        Ok(entries.iter().filter_map(|entry| names.read(entry)).collect())
    }
}

/// One script call, and the server's time for it.
#[derive(Clone)]
pub struct Logged {
    pub script: String,
    pub micros: u64,
}

/// The longest of these calls.
pub fn longest_call(calls: &[Logged]) -> Outcome<&Logged> {
    Ok(calls.iter().max_by_key(|call| call.micros).ok_or("no script was run")?)
}

/// The 99.9th percentile of these calls, in µs.
pub fn p999(calls: &[Logged]) -> u64 {
    let mut micros: Vec<u64> = calls.iter().map(|call| call.micros).collect();
    micros.sort_unstable();
    micros.get(micros.len().saturating_sub(1 + micros.len() / 1000)).copied().unwrap_or(0)
}

/// The names of fairlock's scripts, by the hashes under which the server runs them.
struct Names(HashMap<String, String>);

impl Names {
    fn read_scripts() -> Outcome<Self> {
        let mut names = HashMap::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua"))? {
            let path = entry?.path();
            if let (Some("lua"), Some(name)) = (path.extension().and_then(OsStr::to_str), path.file_stem()) {
                let script = redis::Script::new(&text(&std::fs::read_to_string(&path)?, false));
                names.insert(script.get_hash().to_owned(), name.to_string_lossy().into_owned());
            }
        }
        Ok(Self(names))
    }

    /// An entry of the slow log is: id, time, duration, words and so on.
    fn read(&self, entry: &redis::Value) -> Option<Logged> {
        let redis::Value::Array(fields) = entry else { return None };
        let micros = redis::from_redis_value_ref(fields.get(2)?).ok()?;
        let words: Vec<String> = redis::from_redis_value_ref(fields.get(3)?).ok()?;
        let script = match words.first()?.to_ascii_uppercase().as_str() {
            "EVALSHA" => self.0.get(words.get(1)?)?.clone(),
            // A client's first use of a script. The log has only the beginning of its text.
            "EVAL" => "eval".into(),
            _ => return None,
        };
        Some(Logged { script, micros })
    }
}
