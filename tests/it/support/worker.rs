//! A worker process that locks and unlocks on the test's commands.
//!
//! It is this test binary, started again to run only `worker_process`. It reads its commands from stdin, one a line,
//! and answers with lines that begin with `@`.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fairlock::{LockClient, LockError, LockGuard};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{LONGEST_WAIT, Timing};

const URL: &str = "FAIRLOCK_WORKER_URL";
const LEASE: &str = "FAIRLOCK_WORKER_LEASE_MS";

/// The test's end of a worker process. Killed when dropped.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
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
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, stdin, answers };
        worker.expect("ready").await;
        worker
    }

    pub async fn tell(&mut self, command: &str) {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    /// Returns its next answer. Lines without `@` come from libtest.
    pub async fn next_line(&mut self) -> String {
        let answer = async {
            loop {
                let line = self.answers.next_line().await.unwrap().expect("the worker runs");
                if let Some((_, answer)) = line.split_once('@') {
                    return answer.to_owned();
                }
            }
        };
        tokio::time::timeout(LONGEST_WAIT, answer).await.expect("the worker answers in time")
    }

    /// Returns the rest of its next answer, which must begin with `start`.
    pub async fn expect(&mut self, start: &str) -> String {
        let answer = self.next_line().await;
        let rest = answer.strip_prefix(start).unwrap_or_else(|| panic!("{answer:?} instead of {start:?}"));
        rest.trim().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

/// The worker's side. When libtest runs it as an ordinary test, it checks itself: a worker starts, answers, and ends
/// when its stdin is closed.
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
    outcomes: mpsc::Sender<(String, Result<LockGuard, LockError>)>,
}

async fn serve(url: &str) {
    let lease = std::env::var(LEASE).unwrap().parse().unwrap();
    let timing = Timing { lease: Duration::from_millis(lease), ..Timing::default() };
    let client = timing.builder().label("worker").connect(url).await.unwrap();
    let (outcomes, mut finished) = mpsc::channel(1024);
    let mut serving = Serving { client, guards: HashMap::new(), waits: HashMap::new(), outcomes };
    let mut commands: Lines<BufReader<Stdin>> = BufReader::new(tokio::io::stdin()).lines();
    say("ready");
    loop {
        tokio::select! {
            command = commands.next_line() => match command.unwrap() {
                Some(command) => serving.run(&command).await,
                None => break,
            },
            Some((id, outcome)) = finished.recv() => serving.report(id, outcome),
        }
    }
    serving.client.close().await.unwrap();
}

impl Serving {
    async fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            // lock NAME ID: waits, then answers `held ID TOKEN` or `error ID …`.
            ["lock", name, id] => self.wait(name, id),
            ["cancel", id] => {
                self.waits.remove(id).unwrap().abort();
                say(&format!("cancelled {id}"));
            }
            ["try", name, id] => {
                let guard = self.client.lock(name).try_lock().await.unwrap().into_result().ok();
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
            // gate NAME PERMITS WEIGHT PATH TIMES: writes each entry and each exit to a file.
            ["gate", name, permits, weight, path, times] => {
                let (permits, times) = (permits.parse().unwrap(), times.parse().unwrap());
                pass_gate(&self.client, (name, permits), weight.parse().unwrap(), path, times).await;
                say("passed");
            }
            // permit NAME PERMITS ID: acquires a permit, and keeps it.
            ["permit", name, permits, id] => {
                let permit = self.client.semaphore(name, permits.parse().unwrap()).acquire().await.unwrap();
                say(&format!("permitted {id} {}", permit.token()));
                std::mem::forget(permit);
            }
            _ => panic!("no such command: {command}"),
        }
    }

    fn wait(&mut self, name: &str, id: &str) {
        let (lock, outcomes, key) = (self.client.lock(name), self.outcomes.clone(), id.to_owned());
        let wait = tokio::spawn(async move {
            let outcome = lock.lock().await;
            outcomes.send((key, outcome)).await.unwrap();
        });
        self.waits.insert(id.to_owned(), wait);
    }

    fn report(&mut self, id: String, outcome: Result<LockGuard, LockError>) {
        match outcome {
            Ok(guard) => {
                say(&format!("held {id} {}", guard.token()));
                let (held, told) = (guard.held(), id.clone());
                tokio::spawn(async move {
                    // The task ends with the hold, even if the guard is released.
                    if let Some(loss) = held.ended().await.loss() {
                        say(&format!("lost {told} {loss:?}"));
                    }
                });
                self.guards.insert(id, guard);
            }
            Err(error) => say(&format!("error {id} {error:?}")),
        }
    }
}

/// Makes a file with the number 0, for [`count`].
pub fn counter() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    write_number(file.path(), 0);
    file
}

pub fn read_number(path: impl AsRef<Path>) -> u32 {
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Always writes the same length: a truncated file goes to the disk each time it is closed.
fn write_number(path: impl AsRef<Path>, number: u32) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all(format!("{number:010}").as_bytes()).unwrap();
}

/// Reads a number, lets other tasks run, and writes it back plus one. Without mutual exclusion, updates would get lost.
pub async fn count(client: &LockClient, name: &str, path: &str, times: u32) {
    for _ in 0..times {
        let guard = client.lock(name).lock().await.unwrap();
        let before = read_number(path);
        tokio::task::yield_now().await;
        write_number(path, before + 1);
        guard.unlock().await.unwrap();
    }
}

/// Takes permits again and again. Its weight is in the file, as a sum of lines, while it has them.
pub async fn pass_gate(client: &LockClient, gate: (&str, u32), weight: u32, path: &str, times: u32) {
    let note = |sign: char| {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{sign}{weight}\n").as_bytes()).unwrap();
    };
    let gate = client.semaphore(gate.0, gate.1);
    for _ in 0..times {
        let permit = gate.acquire_many(weight).await.unwrap();
        note('+');
        tokio::time::sleep(Duration::from_millis(1)).await;
        note('-');
        permit.release().await.unwrap();
    }
}

fn say(what: &str) {
    // libtest may have started a line.
    println!("\n@{what}");
}
