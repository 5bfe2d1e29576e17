//! A process of its own that locks and unlocks at the test's word.
//!
//! It is this very test binary, started again to run `worker_process` alone. Commands come as
//! lines on its stdin; what it says back are lines with `@` before them.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use fairlock::{LockClient, LockError, LockGuard};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{PATIENCE, Timing};

const URL: &str = "FAIRLOCK_WORKER_URL";
const LEASE: &str = "FAIRLOCK_WORKER_LEASE_MS";

/// The test's end of a worker process. Killed when dropped.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub async fn start(url: &str) -> Self {
        Self::with_lease(url, Timing::default().lease).await
    }

    pub async fn with_lease(url: &str, lease: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["support::worker::worker_process", "--exact", "--nocapture"])
            .env(URL, url)
            .env(LEASE, lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the test binary starts again");
        let stdin = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, stdin, said };
        worker.expect("ready").await;
        worker
    }

    pub async fn tell(&mut self, command: &str) {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    /// The next thing it says.
    pub async fn hear(&mut self) -> String {
        let line = async {
            loop {
                let line = self.said.next_line().await.unwrap().expect("the worker speaks");
                if let Some((_, said)) = line.split_once('@') {
                    return said.to_owned();
                }
            }
        };
        tokio::time::timeout(PATIENCE, line).await.expect("the worker speaks in time")
    }

    /// What it says next must begin with `start`; returns the rest.
    pub async fn expect(&mut self, start: &str) -> String {
        let said = self.hear().await;
        let rest = said.strip_prefix(start).unwrap_or_else(|| panic!("{said:?} in place of {start:?}"));
        rest.trim().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

/// The other end. Started as a test of its own it looks at itself: a worker starts, answers, and
/// ends with its stdin.
#[tokio::test]
async fn worker_process() {
    if let Ok(url) = std::env::var(URL) {
        serve(&url).await;
        std::process::exit(0);
    }
    let server = super::Server::start().await;
    let mut worker = Worker::start(&server.url()).await;
    worker.tell("lock x 1").await;
    worker.expect("held 1").await;
    drop(worker.stdin);
    assert!(worker.child.wait().await.unwrap().success());
}

struct Serving {
    client: LockClient,
    guards: HashMap<String, LockGuard>,
    waits: HashMap<String, JoinHandle<()>>,
    acquired: mpsc::Sender<(String, Result<LockGuard, LockError>)>,
}

async fn serve(url: &str) {
    let lease = std::env::var(LEASE).unwrap().parse().unwrap();
    let timing = Timing { lease: Duration::from_millis(lease), ..Timing::default() };
    let client = timing.builder().label("worker").connect(url).await.unwrap();
    let (acquired, mut arrivals) = mpsc::channel(1024);
    let mut serving = Serving { client, guards: HashMap::new(), waits: HashMap::new(), acquired };
    let mut commands: Lines<BufReader<Stdin>> = BufReader::new(tokio::io::stdin()).lines();
    say("ready");
    loop {
        tokio::select! {
            command = commands.next_line() => match command.unwrap() {
                Some(command) => serving.obey(&command).await,
                None => break,
            },
            Some((id, outcome)) = arrivals.recv() => serving.arrive(id, outcome),
        }
    }
    serving.client.close().await.unwrap();
}

impl Serving {
    async fn obey(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            // lock NAME ID: waits; says `held ID TOKEN MICROS` or `error ID …`
            ["lock", name, id] => self.wait(name, id, None),
            ["timeout", name, id, millis] => self.wait(name, id, Some(Duration::from_millis(millis.parse().unwrap()))),
            ["cancel", id] => {
                self.waits.remove(id).unwrap().abort();
                say(&format!("cancelled {id}"));
            }
            ["try", name, id] => {
                let guard = self.client.lock(name).try_lock().await.unwrap();
                say(&format!("tried {id} {}", guard.is_some()));
                guard.map(|guard| self.guards.insert(id.into(), guard));
            }
            ["unlock", id] => {
                let outcome = self.guards.remove(id).unwrap().unlock().await;
                say(&format!("unlocked {id} {outcome:?}"));
            }
            ["valid", id] => say(&format!("valid {id} {}", self.guards[id].is_valid())),
            ["count", name, path, times] => {
                count(&self.client, name, path, times.parse().unwrap()).await;
                say("counted");
            }
            _ => panic!("no such command: {command}"),
        }
    }

    fn wait(&mut self, name: &str, id: &str, timeout: Option<Duration>) {
        let (lock, to, key) = (self.client.lock(name), self.acquired.clone(), id.to_owned());
        let wait = tokio::spawn(async move {
            let outcome = match timeout {
                Some(timeout) => lock.lock_timeout(timeout).await,
                None => lock.lock().await,
            };
            to.send((key, outcome)).await.unwrap();
        });
        self.waits.insert(id.to_owned(), wait);
    }

    fn arrive(&mut self, id: String, outcome: Result<LockGuard, LockError>) {
        match outcome {
            Ok(guard) => {
                say(&format!("held {id} {}", guard.token()));
                let (held, told) = (guard.held(), id.clone());
                tokio::spawn(async move {
                    // It ends with the hold, also with one that was given back.
                    if let Some(loss) = held.lost().await {
                        say(&format!("lost {told} {loss:?}"));
                    }
                });
                self.guards.insert(id, guard);
            }
            Err(error) => say(&format!("error {id} {error:?}")),
        }
    }
}

/// Sections that lose updates unless they exclude each other: read, let others run, write.
pub async fn count(client: &LockClient, name: &str, path: &str, times: u32) {
    for _ in 0..times {
        let guard = client.lock(name).lock().await.unwrap();
        let before: u32 = std::fs::read_to_string(path).unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        std::fs::write(path, (before + 1).to_string()).unwrap();
        guard.unlock().await.unwrap();
    }
}

fn say(what: &str) {
    // libtest has begun a line of its own.
    println!("\n@{what}");
}
