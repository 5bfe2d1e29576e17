//! Identifies where code runs, to recognise a task that waits for itself.

use std::thread::ThreadId;

/// A task may move between threads. Code outside of any task belongs to its thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskOrThread {
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl TaskOrThread {
    pub fn current() -> Self {
        tokio::task::try_id().map_or_else(|| Self::Thread(std::thread::current().id()), Self::Task)
    }

    /// A hash, since neither tokio nor the standard library offers a number.
    pub fn id(self) -> fairlock_proto::event::TaskId {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        fairlock_proto::event::TaskId(hasher.finish())
    }
}
