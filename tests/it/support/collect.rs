//! Collects the library's log.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Collects every event and span of this thread while its guard lives: tests run on a runtime of one thread.
#[derive(Clone)]
pub struct Collect {
    most: Level,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    /// A span's id is its place here, from 1.
    spans: Vec<Span>,
    /// The spans that are entered now.
    entered: Vec<u64>,
}

/// A span and its state.
#[derive(Debug, Clone)]
pub struct Span {
    pub name: &'static str,
    pub level: Level,
    pub target: String,
    pub fields: BTreeMap<String, String>,
    /// The span that contains it.
    pub parent: Option<&'static str>,
    /// The number of its handles.
    kept: usize,
}

impl Span {
    pub fn is_closed(&self) -> bool {
        self.kept == 0
    }
}

/// If the process has only one subscriber, tracing asks the first thread that reaches a call site. That may be a test
/// without a subscriber, and then the call site stays silent. So there are always two.
pub(super) static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| tracing::Dispatch::new(Collect::default()));

/// Makes this the subscriber of the thread while the guard lives.
pub fn log_to(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    LazyLock::force(&ANOTHER);
    tracing::subscriber::set_default(subscriber)
}

impl Default for Collect {
    fn default() -> Self {
        Self::up_to(Level::TRACE)
    }
}

impl Collect {
    /// Skips events below this level.
    pub fn up_to(most: Level) -> Self {
        Self { most, said: Arc::default() }
    }

    pub fn here(self) -> DefaultGuard {
        log_to(self)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap()
    }

    pub fn clear(&self) {
        self.said().lines.clear();
    }

    /// All events, each as its level and its fields.
    pub fn lines(&self) -> Vec<String> {
        self.said().lines.clone()
    }

    /// The lines of one event, found by the beginning of its text.
    pub fn of(&self, level: &str, text: &str) -> Vec<String> {
        let start = format!("{level} message={text}");
        self.lines().into_iter().filter(|line| line.starts_with(&start)).collect()
    }

    /// Whether the event occurred. tests/house.rs looks for calls of this: a test must see each event.
    pub fn saw(&self, level: &str, text: &str) -> bool {
        !self.of(level, text).is_empty()
    }

    /// The spans of this name, in the order in which they began.
    pub fn spans(&self, name: &str) -> Vec<Span> {
        self.said().spans.iter().filter(|span| span.name == name).cloned().collect()
    }
}

impl Subscriber for Collect {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock") && *metadata.level() <= self.most || metadata.target() == "test"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut said = self.said();
        let explicit = attributes.parent().map(Id::into_u64);
        let parent = explicit.or(said.entered.last().copied().filter(|_| attributes.is_contextual()));
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let metadata = attributes.metadata();
        let parent = parent.and_then(|id| said.spans.get(id as usize - 1)).map(|span| span.name);
        let (name, level, target) = (metadata.name(), *metadata.level(), metadata.target().to_owned());
        said.spans.push(Span { name, level, target, fields: fields.0, parent, kept: 1 });
        Id::from_u64(said.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        self.said().spans[id.into_u64() as usize - 1].fields.extend(fields.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.said().lines.push(text.0);
    }

    fn enter(&self, id: &Id) {
        self.said().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        self.said().entered.retain(|entered| *entered != id.into_u64());
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.said().spans[id.into_u64() as usize - 1].kept += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut said = self.said();
        let span = &mut said.spans[id.into_u64() as usize - 1];
        span.kept -= 1;
        span.is_closed()
    }
}

#[derive(Default)]
pub struct Text(pub String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}
