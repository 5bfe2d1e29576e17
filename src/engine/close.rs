//! Closing: releases under way finish, what is still held is lost, and every wait leaves its queue.
//!
//! It does not depend on the futures of callers, which may stand still: a branch of a `select!` that is
//! never polled again would stall it.

use std::sync::Arc;

use tokio::time::timeout;

use super::Engine;
use super::cleanup;
use super::error::Loss;
use super::hold::Hold;
use super::release;

/// The holds whose guards are alive. A hold whose deadline has passed is lost as expired, not as closed (P8).
pub fn held(engine: &Engine) -> Vec<Arc<Hold>> {
    engine.holds.owners.holds().into_iter().filter(|hold| hold.live() > 0 && hold.expire_if_due().is_none()).collect()
}

/// `held`: the number of holds whose guards are alive.
pub fn warn_of(held: usize) {
    if held > 0 {
        tracing::warn!(target: "fairlock::client", held, "closing a client that still holds locks: they are lost");
    }
}

/// Closes the client and waits for its releases and leaves. Returns how many had no answer: the same to all who call it.
pub async fn close(engine: &Arc<Engine>) -> usize {
    let context = &engine.context;
    // Before anything is lost. If the runtime is gone, none of these gets an answer.
    let at_first = unfinished(engine);
    // Only on a closed tracker does `wait` ever end. Tasks can still be spawned on it. `true` for the first caller alone.
    if context.tasks.close() {
        begin(engine);
    }
    // With a limit: in a runtime that is not driven no task ends.
    let waiting = context.gone.run_until_cancelled(timeout(4 * context.operation_timeout(), context.unfinished.wait()));
    if let Some(Ok(unfinished)) = waiting.await {
        return *unfinished;
    }
    // Without an answer the runtime is gone, or does not run.
    forget(engine);
    let _ = context.unfinished.set(at_first);
    context.unfinished.get().copied().unwrap_or(at_first)
}

fn begin(engine: &Arc<Engine>) {
    let context = &engine.context;
    // First refuse new calls, then look for waits, then for holds: a call that acquires in between is
    // found as the one or as the other.
    context.closing.cancel();
    leave_all_waits(engine);
    // A quorum logs it itself, once for all servers.
    if context.options().node.is_none() {
        warn_of(held(engine).len());
    }
    for hold in engine.holds.owners.holds() {
        hold.lose(Loss::Closed);
    }
    // In the background: a caller that drops its future or does not poll it again has closed the client all the same.
    let ending = engine.clone();
    context.spawn_unwatched(async move { end(&ending).await });
}

/// Waits for the releases and leaves, ends the connection, and notes how many had no answer.
async fn end(engine: &Engine) {
    let context = &engine.context;
    let drained = tokio::select! {
        biased;
        () = context.gone.cancelled() => return,
        drained = timeout(3 * context.operation_timeout(), drain(engine)) => drained.is_ok(),
    };
    let unfinished = if drained { 0 } else { left(engine) };
    forget(engine);
    tracing::debug!(target: "fairlock::client", client = %context.runner.client.id, unfinished, "closed");
    let _ = context.unfinished.set(unfinished);
}

/// After the drain. Otherwise leaves and releases could not be sent, and others would wait for their leases.
fn forget(engine: &Engine) {
    engine.context.runner.store.close();
    // Holds with guards get no more answers.
    engine.holds.owners.holds().iter().for_each(|hold| hold.forget());
}

/// A wait's own future leaves when it is polled or dropped. This does not wait for that.
fn leave_all_waits(engine: &Engine) {
    let (context, waiters) = (&engine.context, &engine.poller.waiters);
    for waiter in waiters.withdraw_all(|lock_key| context.runner.not_after(lock_key)) {
        cleanup::leave_for(context, waiters, &waiter, context.runner.not_after(&waiter.keys.lock));
    }
}

/// Waits for the background, then finishes the releases that callers have begun and do not drive.
async fn drain(engine: &Engine) {
    let context = &engine.context;
    // The callers first, so that an unlock that is being driven gets its answer itself.
    tokio::task::yield_now().await;
    context.tasks.wait().await;
    // The background has finished its own releases by now. What is left belongs to callers that stand
    // still, and they may have the turn.
    for hold in engine.holds.owners.holds() {
        if hold.is_open() {
            release::take_over(&hold);
        }
    }
    context.tasks.wait().await;
}

/// What has no answer yet.
pub fn left(engine: &Engine) -> usize {
    // Not the sum: an open hold and the task that releases it would count twice.
    unfinished(engine).max(engine.context.tasks.len())
}

/// Holds that the server may still count.
fn unfinished(engine: &Engine) -> usize {
    engine.holds.owners.holds().iter().filter(|hold| hold.is_open()).count()
}
