//! A call that a task of the client makes for its caller: one for several names, or at several servers.
//!
//! Its caller may stand still, and nobody else is to wait for that: the future of the caller only reads the outcome. The same
//! rule counts as for a single name: what is not claimed within 250 ms is given back, and the caller asks anew.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use fairlock_proto::desk::PATIENCE;
use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::after::wake;
use super::context::Context;
use crate::store::clock::now;
use crate::sync::Mutex;

/// A timer that fires so much too late shows that the whole process stood still, and not the caller alone.
const LATE: Duration = Duration::from_millis(50);

/// The runtime of the client has ended, and the task with it.
pub struct RuntimeGone;

/// Makes the call until its outcome is claimed. Dropped, the task ends, and drops what it has.
pub async fn carry_out<T, F>(context: &Context, work: impl Fn() -> F) -> Result<T, RuntimeGone>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    loop {
        let slot = Arc::new(Slot::default());
        // Ends the task with this future.
        let _caller = slot.without_caller.clone().drop_guard();
        // In the span of the caller, as if it were its own work.
        context.spawn(work_for(Worker(slot.clone()), work()).in_current_span());
        let outcome = poll_fn(|context| slot.read(|| context.waker().clone())).await;
        match outcome {
            Outcome::Done(outcome) => return Ok(outcome.unwrap_or_else(|panic| resume_unwind(panic))),
            Outcome::PassedOver => {}
            Outcome::Vanished => return Err(RuntimeGone),
        }
    }
}

type Panicked = Box<dyn Any + Send>;

/// What passes between the task and its caller.
struct Slot<T> {
    progress: Mutex<Progress<T>>,
    /// Cancelled when the caller has read its outcome, or is gone.
    without_caller: CancellationToken,
    /// Notified when the caller is polled for another reason than this call: it has other work (see `Event::Disturbed`).
    disturbed: Notify,
}

enum Progress<T> {
    UnderWay(Option<Waker>),
    Over(Outcome<T>),
}

enum Outcome<T> {
    Done(Result<T, Panicked>),
    PassedOver,
    Vanished,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        let (progress, without_caller) = (Mutex::new(Progress::UnderWay(None)), CancellationToken::new());
        Self { progress, without_caller, disturbed: Notify::new() }
    }
}

impl<T> Slot<T> {
    /// `waker`: made before the mutex is taken, since it is the user's.
    fn read(&self, waker: impl FnOnce() -> Waker) -> Poll<Outcome<T>> {
        let waker = waker();
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::UnderWay(Some(waker))) {
            Progress::Over(outcome) => Poll::Ready(outcome),
            before @ Progress::UnderWay(_) => {
                // Dropped when the mutex is free.
                drop(progress);
                // Its waker was not used.
                if matches!(before, Progress::UnderWay(Some(_))) {
                    self.disturbed.notify_one();
                }
                drop(before);
                Poll::Pending
            }
        }
    }

    /// Replaces the outcome that nobody has read, if there is one. Returns it, to be dropped when the mutex is free.
    fn ends(&self, outcome: Outcome<T>) -> Progress<T> {
        std::mem::replace(&mut *self.progress.lock(), Progress::Over(outcome))
    }
}

/// The task's side.
struct Worker<T>(Arc<Slot<T>>);

impl<T> Worker<T> {
    fn tell(&self, outcome: Outcome<T>) {
        if let Progress::UnderWay(Some(waker)) = self.0.ends(outcome) {
            wake(waker);
        }
    }

    fn is_under_way(&self) -> bool {
        matches!(*self.0.progress.lock(), Progress::UnderWay(_))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if self.is_under_way() {
            self.tell(Outcome::Vanished);
        }
    }
}

async fn work_for<T>(worker: Worker<T>, work: impl Future<Output = T>) {
    let without_caller = worker.0.without_caller.clone();
    let mut working = pin!(AssertUnwindSafe(work).catch_unwind());
    let outcome = loop {
        tokio::select! {
            biased;
            () = without_caller.cancelled() => return,
            outcome = &mut working => break outcome,
            // What it waits for is polled once more, as it would be in the task of its caller.
            () = worker.0.disturbed.notified() => {}
        }
    };
    worker.tell(Outcome::Done(outcome));
    if without_caller.run_until_cancelled(patience()).await.is_none() {
        return;
    }
    if !worker.is_under_way() {
        worker.tell(Outcome::PassedOver);
    }
}

/// As long as a caller may leave a result unclaimed.
async fn patience() {
    loop {
        let due = now() + PATIENCE;
        sleep_until(due.into()).await;
        if now() <= due + LATE {
            return;
        }
    }
}
