//! Servers whose clocks differ.
//!
//! libfaketime breaks Debian's redis-server, so this builds its own library for LD_PRELOAD.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("clock.c");

/// A library that shifts the clock of a server.
pub struct ShiftedClock {
    library: PathBuf,
}

impl ShiftedClock {
    /// Needs a C compiler.
    pub fn build(dir: &Path) -> Self {
        let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().expect("cc is there").success(), "the clock does not compile");
        Self { library }
    }

    /// The environment of a server whose clock is ahead by `shift_ms`, or slow if that is negative.
    pub fn environment(&self, shift_ms: i64) -> Vec<(String, String)> {
        let library = self.library.to_str().unwrap().to_owned();
        vec![("LD_PRELOAD".into(), library), ("CLOCK_SHIFT_MS".into(), shift_ms.to_string())]
    }
}
