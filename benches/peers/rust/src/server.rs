//! A private server of a peer: Redis, PostgreSQL or etcd.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Outcome, process};

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Redis,
    Postgres,
    Etcd,
}

/// Listens on a free port of 127.0.0.1, with its own folder. Killed when dropped.
pub struct Server {
    kind: Kind,
    /// In the form that the programs take.
    pub address: String,
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// `None` if PostgreSQL's programs are not installed: `postgres=FOLDER`. Words before the folder run them as a
    /// user other than root.
    pub fn start(kind: Kind, languages: &BTreeMap<&str, &str>) -> Outcome<Option<Self>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("fairlock-peers-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let (mut command, address) = match (kind, languages.get("postgres"), languages.get("go")) {
            (Kind::Redis, ..) => (redis(port, &dir), format!("127.0.0.1:{port}")),
            (Kind::Postgres, Some(programs), _) => {
                (postgres(programs, port, &dir)?, format!("postgres://postgres@127.0.0.1:{port}/postgres"))
            }
            (Kind::Etcd, _, Some(program)) => (etcd(program, port, &dir)?, format!("127.0.0.1:{port}")),
            _ => return Ok(None),
        };
        let log = std::fs::File::create(dir.join("log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let server = Self { kind, address, child, dir };
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let log = std::fs::read_to_string(server.dir.join("log"))?;
            // PostgreSQL listens before it is ready.
            let ready = kind != Kind::Postgres || log.contains("ready to accept connections");
            if ready && TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            if Instant::now() > limit {
                return Err(format!("{command:?} does not answer: {log}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(server))
    }

    pub fn cpu_us(&self) -> Outcome<Option<f64>> {
        if self.kind == Kind::Postgres { Ok(None) } else { process::cpu_us(&self.child).map(Some) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL frees its shared memory only if it ends on request.
        if self.kind == Kind::Postgres {
            let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        } else {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn redis(port: u16, dir: &Path) -> Command {
    let mut command = Command::new(std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into()));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
    command
}

/// etcd writes its keys to disk before it grants a lock. That cost is part of the comparison.
fn etcd(program: &str, port: u16, dir: &Path) -> Outcome<Command> {
    let url = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    let mut command = Command::new(program);
    command.args(["etcd-server", "--listen-client-urls", &url, "--advertise-client-urls", &url, "--data-dir"]);
    command.arg(dir.join("data")).args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    Ok(command)
}

fn postgres(programs: &str, port: u16, dir: &Path) -> Outcome<Command> {
    let (before, folder) = programs.rsplit_once(' ').unwrap_or(("", programs));
    let program = |name: &str| {
        let mut words = before.split_whitespace().map(str::to_owned).chain([format!("{folder}/{name}")]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    };
    if !before.is_empty() {
        Command::new("chown").arg("postgres").arg(dir).status()?;
    }
    let data = dir.join("data");
    let initdb =
        program("initdb").arg("-D").arg(&data).args(["-A", "trust", "-U", "postgres", "--no-locale"]).output()?;
    if !initdb.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&initdb.stderr)).into());
    }
    let mut command = program("postgres");
    command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
    command.arg("-k").arg(dir).args(["-c", "max_connections=300"]);
    Ok(command)
}
