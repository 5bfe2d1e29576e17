//! A private `redis-server`.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// Listens on a free port and on a Unix socket, and keeps nothing on disk. Killed when dropped.
pub struct Server {
    dir: PathBuf,
    port: u16,
    process: Child,
}

impl Server {
    pub fn start() -> Outcome<Self> {
        let dir = std::env::temp_dir().join(format!("fairlock-against-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(&binary);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--unixsocket").arg(dir.join("socket")).arg("--dir").arg(&dir);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { dir, port, process };
        let limit = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() || !server.dir.join("socket").exists() {
            if Instant::now() > limit {
                return Err(format!("{binary} does not answer").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub fn process(&self) -> &Child {
        &self.process
    }

    pub fn tcp(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn unix(&self) -> String {
        format!("unix://{}", self.dir.join("socket").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
