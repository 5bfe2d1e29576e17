//! The events before the failure of a test that seldom fails, with times: events of the library, of the proxies, and of
//! the test.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::collect::{ANOTHER, Text};

/// How many lines to keep, for all clients together.
const KEPT: usize = 60_000;
/// How many lines to show.
const SHOWN: usize = 400;

#[derive(Clone)]
pub struct History {
    begun: Instant,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl History {
    pub fn new() -> Self {
        Self { begun: Instant::now(), lines: Arc::default() }
    }

    /// A runtime whose two threads write to this history.
    pub fn runtime(&self) -> Runtime {
        std::sync::LazyLock::force(&ANOTHER);
        let history = self.clone();
        // Forgotten on purpose, so that it lasts until the thread ends.
        let listen = move || std::mem::forget(tracing::subscriber::set_default(history.clone()));
        Builder::new_multi_thread().worker_threads(2).enable_all().on_thread_start(listen).build().unwrap()
    }

    /// The last lines that contain one of these texts.
    pub fn about(&self, words: &[&str]) -> String {
        let lines = self.lines.lock().unwrap();
        let is_about = |line: &&String| words.iter().any(|word| line.contains(word));
        let found: Vec<_> = lines.iter().filter(is_about).map(String::as_str).collect();
        found[found.len().saturating_sub(SHOWN)..].join("\n")
    }
}

impl Subscriber for History {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        metadata.is_event() && (target.starts_with("fairlock") || target == "proxy" || target == "test")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{:9.3}", self.begun.elapsed().as_secs_f64()));
        event.record(&mut text);
        let mut lines = self.lines.lock().unwrap();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(text.0);
    }

    // The test uses no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
