//! The recipes of `examples/recipes`, as processes.

use std::future::Future;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{LONGEST_WAIT, binaries};

/// Runs a whole test. Its limit excludes the build.
pub async fn with_recipes(test: impl Future<Output = ()>) {
    binaries::build().await;
    super::limit_to(Duration::from_secs(120), test).await;
}

/// A running recipe. Killed when dropped.
pub struct Recipe {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Recipe {
    pub fn start(name: &str, url: &str, argument: &str, settings: &[(&str, &str)]) -> Self {
        let mut process = Command::new(binaries::path(&format!("recipe-{name}")))
            .arg(argument)
            .env("REDIS_URL", url)
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the recipe starts");
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Returns the next line that contains these words.
    pub async fn hears(&mut self, words: &str) -> String {
        let line = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the recipe goes on");
                println!("{line}");
                if line.contains(words) {
                    return line;
                }
            }
        };
        timeout(LONGEST_WAIT, line).await.unwrap_or_else(|_| panic!("it never says {words:?}"))
    }

    /// Returns the number at the end of that line.
    pub async fn hears_number(&mut self, words: &str) -> u64 {
        self.hears(words).await.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id().expect("it runs")).unwrap()), signal).unwrap();
    }

    pub async fn end(&mut self) -> ExitStatus {
        timeout(LONGEST_WAIT, self.process.wait()).await.expect("it ends").unwrap()
    }
}

/// Sends an HTTP request, and returns the status and the body.
pub async fn ask(address: &str, request: &str) -> (u16, String) {
    let answer = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    };
    timeout(LONGEST_WAIT + Duration::from_secs(10), answer).await.expect("an answer in time")
}
