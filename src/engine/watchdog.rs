//! Renews each hold when it is due, until its final unlock.
//!
//! A renewal has three outcomes (R12): renewed, lost, and unknown, which is retried. Only "lost" or
//! the local deadline ends a hold. A server that does not answer does not.

use std::pin::pin;
use std::sync::Arc;

use fairlock_proto::requests::renew::{Renew, Renewed};
use futures::future::{Either, select};
use tokio::time::timeout_at;

use super::error::Loss;
use super::hold::{Hold, Holds, Question};
use super::lease;
use super::release;
use super::schedule::Schedule;
use crate::store::runtime::survive;

/// Starts the one task that serves all holds of a client. It ends with the client.
pub fn start(holds: &Arc<Holds>) {
    // Each in a task of its own. A renewal that hangs must not make the others late (P8).
    let attend = |holds: &Arc<Holds>, hold| holds.context.spawn(attend(hold));
    let serve = Schedule::serve(Arc::downgrade(holds), |holds| &holds.schedule, attend);
    holds.context.spawn_until_closing(serve);
}

/// Attends to a hold: sends its next request, and puts it back on the schedule. At its deadline it is lost.
pub async fn attend(hold: Arc<Hold>) {
    // P6: the future of its release may rest.
    if hold.is_release_overdue() {
        release::take_over(&hold);
    }
    if hold.is_being_released() {
        return hold.forget_when_due();
    }
    // The look below comes first where both are ready.
    if hold.done.initialized() {
        return hold.schedule(false);
    }
    let done = pin!(hold.done.wait());
    let look = pin!(async {
        if hold.expire_if_due().is_some() {
            if hold.has_reached_max_hold() {
                tracing::warn!(target: "fairlock::lock", name = %hold.entry.keys.name, "held for max_hold: the lease was not renewed again");
            }
            return;
        }
        // Asked for the owner of before, the server would not know it. With the answer to the detach it is over, or comes back on the
        // schedule. Till then it is not on it: its deadline may have passed, and would be due again and again.
        if hold.is_detaching() {
            return;
        }
        let is_answered = match hold.question() {
            None => true,
            // Bounded by the deadline: the loss is reported in time even if this renewal hangs (P8).
            Some(question) => {
                let asked = timeout_at(hold.deadline().into(), survive(ask(&hold, &question))).await;
                asked.ok().flatten().unwrap_or(false)
            }
        };
        hold.schedule(!is_answered);
    });
    // The final unlock ends this. A renewal behind it would find the lock gone, and a released hold must not be renewed
    // (P10).
    if let Either::Right(_) = select(look, done).await {
        hold.schedule(false);
    }
}

/// Sends one request, and waits up to the operation time-out. Moves the hold's deadline, or ends the hold. False: the outcome is unknown.
async fn ask(hold: &Hold, question: &Question) -> bool {
    let entry = &hold.entry;
    let Question { lease, only, .. } = *question;
    let remember = hold.remember();
    let (keys, owner) = (entry.keys.clone(), entry.owner_id.clone());
    let renew = Renew { keys, owner, token: hold.token, lease, only, remember };
    match hold.context().runner.renew(&renew, None).await {
        Ok(answer) => match answer.body {
            Renewed::Renewed { lease_left } => {
                // Not more than the holder wanted (decision 16), which is more than a check asks for.
                hold.extend(*question, answer.sent, lease::deadline_told(answer.sent, lease_left, hold.lease));
                true
            }
            // The final release overtook this renewal: that is no loss.
            Renewed::Lost if hold.done.initialized() => true,
            // The handle has it, or it is free: the answer to the detach decides.
            Renewed::Lost if hold.is_detaching() => false,
            Renewed::Lost => {
                hold.lose(Loss::Gone);
                true
            }
        },
        // Passing refusals are logged once for all holds, where requests are admitted.
        Err(error) => {
            tracing::debug!(target: "fairlock::lock", name = %entry.keys.name, %error, "a renewal failed; retrying until the lease ends");
            false
        }
    }
}
