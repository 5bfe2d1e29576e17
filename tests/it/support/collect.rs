//! What the library logs.

use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex};

/// Collects every event of this thread while its guard lives: tests run on a runtime of one thread.
#[derive(Clone, Default)]
pub struct Collect(Arc<Mutex<Vec<String>>>);

/// With a single subscriber in the process, tracing asks that of the thread which comes first to a place that logs.
/// That may be a test without one, and then nothing is ever heard of that place. So there are always two.
static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| tracing::Dispatch::new(Collect::default()));

impl Collect {
    pub fn here(self) -> tracing::subscriber::DefaultGuard {
        LazyLock::force(&ANOTHER);
        tracing::subscriber::set_default(self)
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Each as its level and its fields.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Collect {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {}={value:?}", field.name()).unwrap();
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
