//! Host names that lead wherever a test wants.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;

use super::{eventually, limit};

/// The folder that `names.c` reads.
const FOLDER: &str = "NAMES";

/// The resolver of this process.
pub struct Names {
    folder: PathBuf,
}

/// The result of a look-up.
#[derive(Clone, Copy)]
pub enum Answer {
    At(&'static str),
    Empty,
    Fails,
}

/// Runs a whole test in its own process, where the test decides what names resolve to. It starts the same test again.
pub async fn with_names(test: impl AsyncFnOnce(&Names)) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return limit(test(&Names { folder: folder.into() })).await;
    }
    let folder = TempDir::new().unwrap();
    let thread = std::thread::current();
    let mut again = tokio::process::Command::new(std::env::current_exe().unwrap());
    // The thread of a test has the test's name.
    again.args([thread.name().unwrap(), "--exact", "--nocapture"]).kill_on_drop(true);
    again.env(FOLDER, folder.path()).env("LD_PRELOAD", &*LIBRARY).stdin(Stdio::null());
    let ended = again.output().await.unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let is_passed = ended.status.success() && said.contains("1 passed");
    assert!(is_passed, "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
}

/// Needs a C compiler.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("names.c"), folder.join("names.so"));
    std::fs::write(&source, include_str!("names.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
    assert!(compiler.status().expect("cc is there").success(), "the resolver does not compile");
    library
});

impl Names {
    /// From now on each look-up takes this long, and has this result.
    pub fn lead(&self, name: &str, delay: Duration, answer: Answer) {
        let answer = match answer {
            Answer::At(addresses) => addresses,
            Answer::Empty => "",
            Answer::Fails => "fails",
        };
        // Replaces the file, so that no look-up reads half of it.
        let new = self.folder.join("new");
        std::fs::write(&new, format!("{} {answer}", delay.as_millis())).unwrap();
        std::fs::rename(new, self.folder.join(name)).unwrap();
    }

    /// The look-ups of this process so far, each as a name and an answer.
    pub fn looked_up(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let own = format!("{} ", std::process::id());
        log.lines().filter_map(|line| line.strip_prefix(&own)).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until `look_ups` more look-ups have ended.
    pub async fn after(&self, look_ups: usize) {
        let before = self.looked_up().len();
        eventually("the name is looked up", async || self.looked_up().len() >= before + look_ups).await;
    }
}
