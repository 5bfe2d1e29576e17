//! Background work for the server: leaves of attempts that ended, and passing on a free lock behind many waiters that
//! cannot take it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairlock_proto::keys::Keys;
use fairlock_proto::requests::leave::{Leave, Left};
use fairlock_proto::requests::poll::Poll;
use tokio::time::{sleep, timeout_at};

use super::context::Context;
use super::waiters::{LeavingPlace, Waiter, Waiters};
use crate::store::clock::now;
use crate::store::error::RequestError;
use crate::store::runner::Answer;
use crate::store::runtime::log_line;

/// The pause of a leave that is refused until a person helps, as it seems.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(1);

/// An attempt or a lost hold that the server must forget.
pub struct LeaveRequest {
    pub leave: Leave,
    /// The longest that the server can keep what the attempt got.
    pub lease: Duration,
    /// `None`: it was served, so nothing keeps a place of it alive.
    pub leaving: Option<LeavingPlace>,
}

/// Leaves for an attempt, and for all copies of its request that may be served until `copies_until`. `waiters`: those of
/// its client.
pub fn leave_for(context: &Arc<Context>, waiters: &Arc<Waiters>, waiter: &Waiter, copies_until: i64) {
    let leaving = Some(LeavingPlace::new(waiters, &waiter.keys.lock));
    let request = Leave {
        keys: waiter.keys.clone(),
        owner: waiter.owner_id().clone(),
        seq: waiter.seq,
        place: waiter.place(),
        copies_until,
    };
    leave(context, LeaveRequest { leave: request, lease: waiter.lease(), leaving });
}

/// R9: leaves in the background, until the server has answered, or until everything that could be
/// left behind has expired.
pub fn leave(context: &Arc<Context>, request: LeaveRequest) {
    // From now on, and not from when the task first runs: what is left behind expires from now on.
    let limit = context.forgotten_at(request.lease);
    context.spawn(leave_until(context.clone(), request, limit));
}

pub async fn leave_until(context: Arc<Context>, request: LeaveRequest, mut limit: Instant) {
    let keys = &request.leave.keys;
    let (mut backoff, mut was_refused) = (context.backoff(), false);
    loop {
        // A place does not expire while its client is heard for the name: it would be granted the lock, and left only then
        // (P6). There are no more of these leaves than places, and who does not answer gives no new ones.
        if let Some(heard) = request.leaving.as_ref().and_then(LeavingPlace::heard) {
            limit = limit.max(context.forgotten_after(heard, Duration::ZERO));
        }
        if now() >= limit {
            return;
        }
        // A refused leave pauses with its turn, or many of them would be as many requests a second.
        let mut turn = None;
        if was_refused {
            turn = timeout_at(limit.into(), context.refused_leaves.acquire()).await.ok();
            if turn.is_none() {
                continue;
            }
        }
        let pause = match context.runner.leave(&request.leave).await {
            Ok(Answer { body: Left { more }, sent, .. }) => {
                context.given_back(keys, sent);
                if was_refused {
                    context.is_told_of_refused_leaves.store(false, Ordering::Relaxed);
                }
                if more {
                    pass_on(&context, keys);
                }
                return;
            }
            // Nothing can be sent any longer. The ticket or the lease has to expire.
            Err(RequestError::Closed | RequestError::RuntimeGone) => return,
            // A repeated leave needs no seq of its own: the second one finds nothing to do. After a refusal too, since a right
            // that is missing may come back (P5).
            Err(error) => {
                if let RequestError::Refused(refusal) = &error
                    && refusal.needs_a_person()
                {
                    was_refused = true;
                    if !context.is_told_of_refused_leaves.swap(true, Ordering::Relaxed) {
                        log_line(|| {
                            tracing::warn!(target: "fairlock::lock", name = %keys.name, %refusal, "could not leave the queue yet");
                        });
                    }
                }
                // Nor does a place expire while its slot is on the move: a client that comes back keeps it alive.
                if error.is_about_a_slot() {
                    limit = limit.max(context.forgotten_at(Duration::ZERO));
                }
                if turn.is_some() { sleep(AFTER_A_REFUSAL) } else { backoff.pause_after(&error) }
            }
        };
        pause.await;
        drop(turn);
    }
}

/// Goes on where a script reached its bound: the lock is free, and a live ticket may wait behind the places that one
/// call reads.
pub fn pass_on(context: &Arc<Context>, keys: &Arc<Keys>) {
    let (task_context, keys) = (context.clone(), keys.clone());
    context.spawn(async move {
        let poll = Poll { keys, waits: false, names_ours: false, tickets: Vec::new() };
        // An error ends this. Clients that wait for the lock go on with their own polls, and without
        // them the keys of the queue expire (P10).
        while let Ok(answer) = task_context.runner.poll(&poll).await {
            if !answer.body.more {
                break;
            }
        }
    });
}
