//! Work for when the mutex of the driver is free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use fairlock_proto::effect::Note;
use fairlock_proto::error::Ended;
use fairlock_proto::event::NodeId;

use super::hold::{About, DrivenHold};
use super::observe::CallerSpan;

#[derive(Default)]
pub struct After {
    /// The first caller; usually there is one.
    caller: Option<Waker>,
    callers: Vec<Waker>,
    /// The unused waker of an earlier poll.
    replaced: Option<Waker>,
    /// A server that lost its data although the connection to it stayed.
    pub rebooted: Option<NodeId>,
    /// There are requests to send.
    pub sends: bool,
    /// The task should come sooner than it plans to.
    pub is_sooner: bool,
    pub reports: Vec<Report>,
    /// The machine is closed, with this many requests unanswered.
    pub closed: Option<usize>,
}

/// Reports to the log, the metrics and the watchers of holds, which may run user code.
pub enum Report {
    Ended(Arc<DrivenHold>, Ended),
    InLine(Arc<About>, CallerSpan),
    PassedOver(Arc<About>),
    Note(Note),
    /// The machine panicked, and is closed.
    Panicked,
    /// The client needs a connection to this server.
    Wanted(NodeId),
    /// The connection to this server may be half-open.
    Suspect(NodeId),
}

/// Whether the task has anything to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ForTheTask {
    Nothing,
    Something,
}

impl After {
    pub fn wakes(&mut self, caller: Option<Waker>) {
        match caller {
            caller @ Some(_) if self.caller.is_none() => self.caller = caller,
            caller => self.callers.extend(caller),
        }
    }

    /// A waker is user code, and so is its `Drop`.
    pub fn drops(&mut self, replaced: Option<Waker>) {
        self.replaced = replaced;
    }

    /// Wakes the callers. Each waker is user code: a panic in one must not keep the others waiting.
    pub fn wake(&mut self) -> ForTheTask {
        self.caller.take().into_iter().for_each(wake);
        // Usually there is only one.
        if !self.callers.is_empty() {
            std::mem::take(&mut self.callers).into_iter().for_each(wake);
        }
        let has_work = self.sends || self.is_sooner || self.closed.is_some();
        if has_work { ForTheTask::Something } else { ForTheTask::Nothing }
    }
}

pub fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

#[cfg(test)]
pub mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    struct Angry;

    impl Wake for Angry {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    /// Counts its wakes.
    #[derive(Default)]
    pub struct Counting(pub AtomicU32);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The callers after it waited forever. Found by an attack.
    #[test]
    fn a_waker_that_panics_keeps_nothing_from_the_others() {
        let (mut after, counting) = (After { sends: true, ..After::default() }, Arc::new(Counting::default()));
        for _ in 0..3 {
            after.wakes(Some(Arc::new(Angry).into()));
            after.wakes(Some(counting.clone().into()));
        }
        assert!(after.wake() == ForTheTask::Something);
        assert_eq!(counting.0.load(Ordering::Relaxed), 3);
    }
}
