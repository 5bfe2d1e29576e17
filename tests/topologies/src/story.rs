//! The events of a scenario, in order: its faults, and the library's log.

use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::testbed::{Nanos, append, now, to_ms};

static FILE: Mutex<Option<File>> = Mutex::new(None);
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// From here on, lines go to this file.
pub fn begin(file: File) {
    BEGUN.store(now(), Ordering::Relaxed);
    *FILE.lock().unwrap() = Some(file);
}

pub fn write(text: &str) {
    append(&FILE, &format!("{:>8}  {text}", at(now())));
}

/// An instant in the format of the story.
pub fn at(instant: Nanos) -> String {
    let ms = to_ms(instant.saturating_sub(BEGUN.load(Ordering::Relaxed)));
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// From now on, adds the library's log.
pub fn listen() {
    tracing::subscriber::set_global_default(Listener).expect("there is no other subscriber");
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::DEBUG && metadata.target().starts_with("fairlock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("  {} ", event.metadata().level());
        event.record(&mut Words(&mut line));
        write(&line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
