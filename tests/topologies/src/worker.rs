//! A separate process that holds locks: this program again, with a hidden subcommand.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::load::{Load, Plan, connect};
use crate::record::{End, Hold, Record};
use crate::resource::Resource;
use crate::testbed::eventually;

pub const SUBCOMMAND: &str = "worker";

/// The parent's side of a worker. Dropping it kills the process.
pub struct Worker {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    /// The worker uses these names (comma-separated), and holds a name that begins with `long` all the time.
    pub fn start(url: &str, resource: &Path, names: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([SUBCOMMAND, url, resource.to_str().unwrap(), names])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (reader, read) = (BufReader::new(child.stdout.take().unwrap()), lines.clone());
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                read.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub async fn until_holds(&self) {
        let holds = async || self.lines.lock().unwrap().iter().any(|line| line == "holds");
        eventually("the worker holds", holds).await;
    }

    /// The holds that have ended since the last call.
    pub fn holds(&self) -> Vec<Hold> {
        let mut lines = self.lines.lock().unwrap();
        let holds = lines.iter().filter_map(|line| read(line)).collect();
        lines.retain(|line| read(line).is_none());
        holds
    }

    /// Ends the worker's load, waits for that, and returns the holds since the last call.
    pub async fn end(mut self) -> Vec<Hold> {
        drop(self.child.stdin.take());
        let ended = async || self.lines.lock().unwrap().iter().any(|line| line == "ended");
        eventually("the worker ends", ended).await;
        self.holds()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(hold: &Hold) -> String {
    let Hold { name, token, start, last_valid, ended, end } = hold;
    let end = match end {
        End::Freed => "freed",
        End::Unknown => "unknown",
        End::Lost(loss) => loss,
    };
    format!("hold\t{name}\t{token}\t{start}\t{last_valid}\t{ended}\t{end}")
}

fn read(line: &str) -> Option<Hold> {
    let ["hold", name, token, start, last_valid, ended, end] = line.split('\t').collect::<Vec<_>>()[..] else {
        return None;
    };
    let number = |word: &str| word.parse().expect("a number");
    let end = match end {
        "freed" => End::Freed,
        "unknown" => End::Unknown,
        loss => End::Lost(loss.to_owned()),
    };
    Some(Hold {
        name: name.to_owned(),
        token: number(token),
        start: number(start),
        last_valid: number(last_valid),
        ended: number(ended),
        end,
    })
}

/// The worker's own side: it works until its standard input ends.
pub async fn work(url: &str, resource: &str, names: &str) {
    let (long, names) = names.split(',').map(ToOwned::to_owned).partition(|name: &String| name.starts_with("long"));
    let plan = Plan { names, alone: Vec::new(), long, section: Duration::from_millis(15) };
    let client = connect(url).await;
    let record = Arc::new(Record::new(Resource::connect(resource).await));
    let load = Load::start(std::slice::from_ref(&client), &plan, &record).await;
    let stdin = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    let mut told = 0;
    let mut holds = false;
    while !stdin.is_finished() {
        tell(&record, &mut told);
        if !holds && (told > 0 || !record.counts("begun").is_empty()) {
            holds = true;
            println!("holds");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    load.stop().await;
    let _ = client.close().await;
    tell(&record, &mut told);
    println!("ended");
}

/// Prints the holds that are not printed yet.
fn tell(record: &Record, told: &mut usize) {
    for hold in &record.holds()[*told..] {
        println!("{}", write(hold));
        *told += 1;
    }
}
