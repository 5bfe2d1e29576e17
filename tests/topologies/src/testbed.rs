//! One scenario: its folder, its story, and the time.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::story;

/// The longest wait of a scenario for one condition.
const LONGEST_WAIT: Duration = Duration::from_secs(40);

/// Nanoseconds on a clock that all processes of this machine share, unlike `Instant`.
pub type Nanos = u64;

pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    u64::try_from(time.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap()
}

pub fn to_ms(nanos: Nanos) -> u64 {
    nanos / 1_000_000
}

/// The folder of one scenario. In it, each process has its own folder with a log.
pub struct Testbed {
    dir: TempDir,
}

impl Testbed {
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("fairlock-topologies-").unwrap();
        story::begin(File::create(dir.path().join("story.log")).unwrap());
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The story and the last lines of each log, for a failed scenario.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let mut logs = vec![self.path().join("story.log")];
        let entries = std::fs::read_dir(self.path()).unwrap().flatten();
        let mut servers: Vec<_> = entries.map(|entry| entry.path().join("log")).filter(|log| log.exists()).collect();
        servers.sort();
        logs.extend(servers);
        for log in logs {
            let lines = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<_> = lines.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            let _ = writeln!(text, "---- {}\n{}", log.display(), last.join("\n"));
        }
        text
    }

    /// How often the story contains this text.
    pub fn told(&self, text: &str) -> usize {
        std::fs::read_to_string(self.path().join("story.log")).unwrap_or_default().matches(text).count()
    }

    /// Keeps the folder, so that a person can inspect it.
    pub fn keep(self) {
        eprintln!("kept: {}", self.dir.keep().display());
    }
}

/// Polls until the condition is true.
pub async fn eventually(what: &str, is_so: impl AsyncFnMut() -> bool) -> Nanos {
    within(LONGEST_WAIT, what, is_so).await
}

/// The same with its own limit. Returns the time at which the condition was first seen to be true.
pub async fn within(longest: Duration, what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Nanos {
    let begun = Instant::now();
    loop {
        if is_so().await {
            return now();
        }
        assert!(begun.elapsed() < longest, "not within {longest:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes a line to the story of the current scenario.
pub fn note(text: impl AsRef<str>) {
    story::write(text.as_ref());
}

/// Appends to a file, and ignores errors.
pub fn append(file: &Mutex<Option<File>>, line: &str) {
    if let Some(file) = &mut *file.lock().unwrap() {
        let _ = writeln!(file, "{line}");
    }
}
