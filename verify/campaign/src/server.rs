//! A redis-server with its own host, disk and clock.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{Connection, FromRedisValue, RedisResult};

use crate::hosts::{Host, run};

pub const PORT: u16 = 6379;
/// Longer than anything takes except a fault.
const LONGEST_WAIT: Duration = Duration::from_secs(90);

pub struct Server {
    pub host: Host,
    dir: PathBuf,
    args: Vec<String>,
    clock: PathBuf,
    process: Mutex<Option<Child>>,
}

/// The library that shifts clocks. A campaign compiles it once.
pub fn compile_clock(dir: &Path) {
    let source = dir.join("clock.c");
    std::fs::write(&source, include_str!("clock.c")).unwrap();
    run(&format!("cc -shared -fPIC -O1 -o {}/clock.so {}", dir.display(), source.display()));
}

impl Server {
    /// It does not run yet. Its disk is small and in memory.
    pub fn new(bed: &Path, host: Host, args: &[&str]) -> Self {
        let dir = bed.join(&host.name);
        let disk = dir.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        run(&format!("mount -t tmpfs -o size=160m tmpfs {}", disk.display()));
        let clock = dir.join("clock");
        std::fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
        let args = args.iter().map(ToString::to_string).collect();
        Self { host, dir, args, clock, process: Mutex::new(None) }
    }

    /// A Sentinel with this configuration file, in which it keeps its state.
    pub fn sentinel(bed: &Path, host: Host, configuration: &str) -> Self {
        let file = bed.join(format!("{}.conf", host.name));
        std::fs::write(&file, configuration).unwrap();
        Self::new(bed, host, &[file.to_str().unwrap(), "--sentinel"])
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    pub fn launch(&self) {
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let log = File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let library = self.dir.parent().expect("a folder").join("clock.so");
        let path = |path: PathBuf| path.to_str().unwrap().to_owned();
        let child = self
            .host
            .command(Path::new(&binary))
            .args(&self.args)
            .args(["--port", &PORT.to_string(), "--bind", "0.0.0.0", "--protected-mode", "no"])
            .args(["--unixsocket", &path(self.socket()), "--dir", &path(self.dir.join("disk"))])
            .env("LD_PRELOAD", library)
            .env("CAMPAIGN_CLOCK", &self.clock)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} does not start ({error}): run scripts/setup"));
        *self.process.lock().unwrap() = Some(child);
    }

    pub fn ready(&self) {
        eventually(&format!("{} answers", self.host.name), || self.ask::<String>("PING").is_ok());
    }

    fn connect(&self) -> RedisResult<Connection> {
        let client = redis::Client::open(format!("redis+unix://{}", self.socket().display()))?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(connection)
    }

    /// Runs a command, given as its words. It does not use the network, so the driver can always reach the server.
    pub fn ask<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        let mut words = command.split(' ');
        let mut request = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            request.arg(word);
        }
        request.query(&mut self.connect()?)
    }

    /// The same, but it panics without an answer.
    pub fn tell<T: FromRedisValue>(&self, command: &str) -> T {
        self.ask(command).unwrap_or_else(|error| panic!("{}: {command}: {error}", self.host.name))
    }

    /// A field of INFO.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let info: String = self.ask(&format!("INFO {section}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(ToOwned::to_owned))
    }

    pub fn is_master(&self) -> bool {
        self.info("replication", "role").as_deref() == Some("master")
    }

    /// Whether it is a replica that has all of its master's data.
    pub fn follows(&self) -> bool {
        self.info("replication", "master_link_status").as_deref() == Some("up")
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.process.lock().unwrap() {
            let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal);
        }
    }

    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Deletes the data on its disk. Call it after a kill.
    pub fn wipe(&self) {
        run(&format!("rm -rf {}/appendonlydir", self.dir.join("disk").display()));
    }

    /// Sets how far this server's wall clock is ahead of the machine's.
    pub fn shift_clock(&self, ms: i64) {
        // Writes in place, because the process has mapped the file.
        let file = File::options().write(true).open(&self.clock).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &ms.to_ne_bytes(), 0).unwrap();
    }

    /// Fills its disk.
    pub fn fill_disk(&self) {
        let zeros = vec![0_u8; 1 << 16];
        let mut file = File::create(self.dir.join("disk/full")).unwrap();
        for size in [zeros.len(), 4096, 1] {
            while std::io::Write::write_all(&mut file, &zeros[..size]).is_ok() {}
        }
    }

    pub fn empty_disk(&self) {
        let _ = std::fs::remove_file(self.dir.join("disk/full"));
    }

    /// Keys of the library that may not remain after all its clients have closed: all but last tokens and records of
    /// the start.
    pub fn leftovers(&self) -> Vec<String> {
        let keys: Vec<String> = self.tell("KEYS *");
        let may_stay = |key: &&String| key.ends_with(":{boot}") || key.ends_with("}:token");
        let stays = |key: &String| self.ask::<i64>(&format!("PTTL {key}")).is_ok_and(|ttl| ttl != -2);
        let forever = |key: &String| key.ends_with(":token") && self.ask::<i64>(&format!("PTTL {key}")) == Ok(-1);
        let (tokens, others): (Vec<String>, Vec<String>) = keys.into_iter().partition(|key| may_stay(&key));
        others.into_iter().filter(stays).chain(tokens.into_iter().filter(forever)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the condition holds.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(LONGEST_WAIT, is_so), "not within {LONGEST_WAIT:?}: {what}");
}

/// Whether the condition holds within this time.
pub fn within(longest: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > longest {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
