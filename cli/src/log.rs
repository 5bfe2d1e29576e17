//! The library's log and the command's own messages, as lines on standard error.

use std::fmt::Write as _;
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::output::text;

/// Escapes the message, which may contain names of keys and texts from servers.
pub fn say(message: &str) {
    let message = text(message);
    // Without stderr there is nobody to inform.
    let _ = writeln!(std::io::stderr(), "fairlock: {message}");
}

/// Prints warnings, and with `verbose` INFO and DEBUG events as well.
pub fn start(verbose: bool) {
    let most = if verbose { Level::DEBUG } else { Level::WARN };
    // This is the first and only subscriber of the process.
    let _ = tracing::subscriber::set_global_default(Lines { most });
}

struct Lines {
    most: Level,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("fairlock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        say(&format!("{}{}", line.message, line.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
