//! Keeping a hold: one task for each, until the final unlock cancels it.
//!
//! A renewal has three outcomes (R12): renewed, lost, and unknown, which is retried. Only "lost"
//! or the local deadline ends a hold; a server that does not answer does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout_at};

use crate::error::Loss;
use crate::hold::Hold;
use crate::lease;
use crate::store::reply::Renewed;
use crate::store::{StoreError, now};

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    Renewed,
    Lost,
    Unknown,
}

/// One renewal, within the time that an operation may take. Moves the hold's deadline, or ends it.
///
/// `only`: see renew.lua, for the first renewal after a trusted push, which sets the asked lease.
pub(crate) async fn renew(hold: &Hold, only: Option<u64>) -> Renewal {
    let (core, seat) = (&hold.seat.core, &hold.seat);
    let wanted = hold.lease();
    match core.scripts.renew(&seat.keys, &seat.owner_id, hold.token, wanted, only, core.patience()).await {
        Ok(answer) => match answer.body {
            Renewed::Renewed { lease_left } => {
                hold.extend(answer.sent, lease::told(answer.sent, lease_left, wanted));
                Renewal::Renewed
            }
            // After our own release that is no loss: the hold has ended, and lose() does nothing.
            Renewed::Lost if hold.done.is_cancelled() => Renewal::Lost,
            Renewed::Lost => {
                hold.lose(Loss::Gone);
                Renewal::Lost
            }
        },
        Err(StoreError::Refused(refusal)) => {
            tracing::warn!(name = %seat.name, %refusal, "a renewal was refused; trying until the lease ends");
            Renewal::Unknown
        }
        Err(_) => Renewal::Unknown,
    }
}

/// Renews every third of the lease until the hold ends, and tells of the loss at its deadline.
pub(crate) async fn watch(hold: Arc<Hold>) {
    let last = hold.seat.core.options.max_hold.map(|longest| hold.began + longest);
    let done = hold.done.clone();
    done.run_until_cancelled(async {
        let mut only = hold.renewed().is_none().then_some(hold.attempt);
        loop {
            let due = hold.renewed().map_or_else(
                || lease::first_renewal(hold.began, hold.deadline()),
                |renewed| lease::next_renewal(renewed, hold.lease()),
            );
            if last.is_some_and(|last| last <= due) {
                tracing::warn!(name = %hold.seat.name, "held for max_hold: it is renewed no more");
                return expire(hold.clone()).await;
            }
            if !sleep_before_deadline(&hold, due).await || !renew_until_known(&hold, only).await {
                return;
            }
            only = None;
        }
    })
    .await;
}

/// For a hold with a fixed lease that came by a trusted push: gives it that lease, once.
pub(crate) async fn confirm(hold: Arc<Hold>) {
    let done = hold.done.clone();
    done.run_until_cancelled(async {
        if sleep_before_deadline(&hold, lease::first_renewal(hold.began, hold.deadline())).await {
            renew_until_known(&hold, Some(hold.attempt)).await;
        }
    })
    .await;
}

/// Tells of the loss at the deadline; renews nothing.
pub(crate) async fn expire(hold: Arc<Hold>) {
    let done = hold.done.clone();
    done.run_until_cancelled(async {
        // The deadline moves when a nested hold asks for more.
        while hold.end().is_none() {
            sleep_until(hold.deadline().into()).await;
        }
    })
    .await;
}

/// Sleeps until `due`. False when the hold ended first.
async fn sleep_before_deadline(hold: &Hold, due: Instant) -> bool {
    sleep_until(due.min(hold.deadline()).into()).await;
    hold.end().is_none()
}

/// Renews with retries until the deadline. False when the hold ended.
async fn renew_until_known(hold: &Hold, only: Option<u64>) -> bool {
    while hold.end().is_none() {
        // Bounded by the deadline: P8 tells of the loss in time even if this renewal hangs.
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
    let pause: Duration = lease::retry_pause(hold.lease());
    sleep_until((now() + pause).min(hold.deadline()).into()).await;
}
