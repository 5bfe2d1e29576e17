//! Renews each hold when it is due, until its final unlock.
//!
//! A renewal has three outcomes (R12): renewed, lost, and unknown, which is retried. Only "lost" or
//! the local deadline ends a hold. A server that does not answer does not.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout_at};

use super::error::Loss;
use super::hold::{Hold, Holds};
use super::lease;
use crate::store::clock::now;
use crate::store::verbs::renew::{Renew, Renewed};

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Renewed,
    Lost,
    Unknown,
}

/// Starts the one task that serves all holds of a client. It ends with the client.
pub fn start(holds: &Arc<Holds>) {
    let closing = holds.context.closing.clone();
    let serve = serve(Arc::downgrade(holds), holds.schedule.sooner());
    // `close` waits for all tasks and loses what is held, so this one must end before.
    holds.context.spawn(async move {
        let _ = closing.run_until_cancelled(serve).await;
    });
}

async fn serve(holds: Weak<Holds>, sooner: Arc<Notify>) {
    while let Some(holds) = holds.upgrade() {
        let (due, next) = holds.schedule.take_due();
        for hold in due {
            // Each in a task of its own. A renewal that hangs must not make the others late (P8).
            holds.context.spawn(attend(hold));
        }
        // Asleep, this task must not keep the client alive.
        drop(holds);
        tokio::select! {
            // In this order, so that the simulator can repeat a run.
            biased;
            () = sooner.notified() => {}
            () = sleep_until_any(next) => {}
        }
    }
}

async fn sleep_until_any(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// Renews a hold that is due, with retries, and reports the loss at its deadline.
async fn attend(hold: Arc<Hold>) {
    let done = hold.done.clone();
    // The final unlock ends this. A renewal behind it would find the lock gone.
    done.run_until_cancelled(async {
        // The guards that asked for renewal are gone. What is left is a fixed lease.
        if !is_to_be_renewed(&hold) {
            return;
        }
        if hold.has_reached_max_hold() {
            tracing::warn!(target: "fairlock::lock", name = %hold.entry.keys.name, "held for max_hold: the lease is not renewed again");
            return hold.clone().expire_at_deadline().await;
        }
        let only = hold.renewed().is_none().then_some(hold.attempt);
        // A fixed lease that began by a trusted push is confirmed once and never renewed again. With
        // max_hold reached meanwhile the hold still goes back on the schedule, to report the loss.
        if renew_until_known(&hold, only).await && hold.is_watched() {
            hold.schedule_renewal();
        }
    })
    .await;
}

/// A fixed lease is renewed only to confirm a trusted push.
fn is_to_be_renewed(hold: &Hold) -> bool {
    hold.is_watched() || hold.renewed().is_none()
}

/// Renews with retries until the deadline. False when the hold ended, or is not to be renewed now.
async fn renew_until_known(hold: &Hold, only: Option<u64>) -> bool {
    while hold.expire_if_due().is_none() && is_to_be_renewed(hold) {
        // Bounded by the deadline: the loss is reported in time even if this renewal hangs (P8).
        let outcome = timeout_at(hold.deadline().into(), renew(hold, only)).await;
        match outcome.unwrap_or(Renewal::Unknown) {
            Renewal::Renewed => return true,
            Renewal::Lost => return false,
            Renewal::Unknown => pause(hold).await,
        }
    }
    false
}

async fn pause(hold: &Hold) {
    let pause = lease::retry_pause(hold.lease());
    // Not beyond the deadline: the loss must be reported there (P8).
    sleep_until((now() + pause).min(hold.deadline()).into()).await;
}

/// One renewal, within the operation time-out. Moves the hold's deadline, or ends the hold.
///
/// `only`: for the first renewal after a trusted push, which sets the wanted lease; see renew.lua.
pub async fn renew(hold: &Hold, only: Option<u64>) -> Renewal {
    renew_for(hold, hold.lease(), only).await
}

async fn renew_for(hold: &Hold, wants: Duration, only: Option<u64>) -> Renewal {
    let entry = &hold.entry;
    // Not `wants`, which is shorter for a check. The holder may rely on what is left, up to what it wanted
    // (decision 16).
    let wanted = hold.lease();
    let remember = hold.remember();
    let (keys, owner) = (&entry.keys, &entry.owner_id);
    let renew = Renew { keys, owner, token: hold.token, lease: wants, only, remember };
    match renew.run(&hold.context().runner).await {
        Ok(answer) => match answer.body {
            Renewed::Renewed { lease_left } => {
                hold.extend(answer.sent, lease::deadline_told(answer.sent, lease_left, wanted));
                Renewal::Renewed
            }
            // The final release overtook this renewal: that is no loss.
            Renewed::Lost if hold.done.is_cancelled() => Renewal::Lost,
            Renewed::Lost => {
                hold.lose(Loss::Gone);
                Renewal::Lost
            }
        },
        // Passing refusals are logged once for all holds, where requests are admitted.
        Err(error) => {
            tracing::debug!(target: "fairlock::lock", name = %entry.keys.name, %error, "a renewal failed; retrying until the lease ends");
            Renewal::Unknown
        }
    }
}

/// Asks whether the hold is still there, without extending its lease. A server that took over may have forgotten the
/// request that set it, and gets it back.
pub async fn check(hold: &Hold) -> Renewal {
    // Where nothing was forgotten the server has at least that (R5), and renew.lua never shortens a lease.
    let rest = hold.deadline().saturating_duration_since(now());
    renew_for(hold, lease::lasting(rest), None).await
}
