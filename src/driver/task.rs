//! A call that a task of the client makes for its caller: a call for several names, or at several servers.
//!
//! The caller's future only reads the outcome, so other clients never wait for a future that nobody polls. If the
//! caller does not claim its result within 250 ms, the task gives the hold back, and the caller asks again, as with a
//! single name.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use fairlock_proto::desk::{LATE, PATIENCE};
use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::after::wake;
use super::context::Context;
use super::limit::within;
use super::outcome::LockError;
use crate::store::clock::now;
use crate::sync::Mutex;

/// Lets a task make the call until its caller has claimed an outcome. Dropping this future ends the task, which drops
/// its guards.
///
/// `work` keeps the limit, but perhaps nothing drives its runtime. So a caller in another runtime keeps the limit too,
/// and ends with the error that `late` makes.
pub async fn carry_out<T, F>(
    context: &Context,
    limit: Option<Instant>,
    late: impl FnOnce() -> LockError,
    work: impl Fn() -> F,
) -> Result<T, LockError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, LockError>> + Send + 'static,
{
    let limit = limit.filter(|_| context.is_elsewhere());
    within(limit, until_claimed(context, work)).await.unwrap_or_else(|| Err(late()))
}

async fn until_claimed<T, F>(context: &Context, work: impl Fn() -> F) -> Result<T, LockError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, LockError>> + Send + 'static,
{
    while !context.over.is_cancelled() {
        let slot = Arc::new(Slot::default());
        // Ends the task with this future.
        let _caller = slot.without_caller.clone().drop_guard();
        // In the caller's span, like the caller's own work.
        let worker = Worker { slot: slot.clone(), over: context.over.clone() };
        context.spawn(work_for(worker, work()).in_current_span());
        // Cloned before the mutex is taken: a waker is user code.
        match poll_fn(|context| slot.read(context.waker().clone())).await {
            Outcome::Done(outcome) => return outcome.unwrap_or_else(|panic| resume_unwind(panic)),
            Outcome::PassedOver => {}
            Outcome::Vanished => break,
        }
    }
    Err(context.why_over())
}

type Panicked = Box<dyn Any + Send>;

/// The state that the task and its caller share.
struct Slot<T> {
    progress: Mutex<Progress<T>>,
    /// Cancelled when the caller has read its outcome, or is gone.
    without_caller: CancellationToken,
    /// Notified when the caller is polled for a reason other than this call: it has other work (see
    /// `Event::Disturbed`).
    disturbed: Notify,
}

enum Progress<T> {
    UnderWay(Option<Waker>),
    Over(Outcome<T>),
    /// The caller has read the outcome.
    Claimed,
}

enum Outcome<T> {
    Done(Result<Result<T, LockError>, Panicked>),
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
    fn read(&self, waker: Waker) -> Poll<Outcome<T>> {
        let mut progress = self.progress.lock();
        let last = match std::mem::replace(&mut *progress, Progress::Claimed) {
            Progress::Over(outcome) => return Poll::Ready(outcome),
            Progress::UnderWay(last) => last,
            Progress::Claimed => return Poll::Pending,
        };
        *progress = Progress::UnderWay(Some(waker));
        // Frees the mutex before the last waker drops.
        drop(progress);
        // Nobody used the last waker, so the call did not cause this poll.
        if last.is_some() {
            self.disturbed.notify_one();
        }
        Poll::Pending
    }
}

/// The task's side.
struct Worker<T> {
    slot: Arc<Slot<T>>,
    /// Cancelled when the client serves no more calls.
    over: CancellationToken,
}

impl<T> Worker<T> {
    fn tell(&self, outcome: Outcome<T>) {
        // An unread outcome drops here, when the mutex is free.
        let before = std::mem::replace(&mut *self.slot.progress.lock(), Progress::Over(outcome));
        if let Progress::UnderWay(Some(waker)) = before {
            wake(waker);
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        let is_under_way = matches!(*self.slot.progress.lock(), Progress::UnderWay(_));
        if is_under_way {
            self.tell(Outcome::Vanished);
        }
    }
}

async fn work_for<T>(worker: Worker<T>, work: impl Future<Output = Result<T, LockError>>) {
    let without_caller = worker.slot.without_caller.clone();
    let mut working = pin!(AssertUnwindSafe(work).catch_unwind());
    let outcome = loop {
        tokio::select! {
            biased;
            () = without_caller.cancelled() => return,
            outcome = &mut working => break outcome,
            // Polls the work once more, as its caller's task would.
            () = worker.slot.disturbed.notified() => {}
        }
    };
    let is_held = matches!(outcome, Ok(Ok(_)));
    worker.tell(Outcome::Done(outcome));
    // `close` waits for this task, and a caller that does not read must not hold it up.
    let patience = worker.over.run_until_cancelled(patience());
    if is_held && without_caller.run_until_cancelled(patience).await.is_some() {
        worker.tell(Outcome::PassedOver);
    }
}

/// Waits as long as a caller may leave a result unclaimed.
async fn patience() {
    loop {
        let due = now() + PATIENCE;
        sleep_until(due.into()).await;
        if now() <= due + LATE {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::after::tests::Counting;
    use super::*;

    /// The end of the task woke the caller once more.
    #[test]
    fn a_caller_is_woken_for_its_outcome_and_not_when_the_task_ends() {
        let (slot, counting) = (Arc::new(Slot::default()), Arc::new(Counting::default()));
        let worker = Worker { slot: slot.clone(), over: CancellationToken::new() };
        assert!(slot.read(counting.clone().into()).is_pending());
        worker.tell(Outcome::Done(Ok(Ok(()))));
        assert!(matches!(slot.read(counting.clone().into()), Poll::Ready(Outcome::Done(_))));
        drop(worker);
        assert_eq!(counting.0.load(Ordering::Relaxed), 1);
    }
}
