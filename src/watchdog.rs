//! Keeping holds: each is renewed when it is due, until its final unlock cancels that.
//!
//! A renewal has three outcomes (R12): renewed, lost, and unknown, which is retried. Only "lost"
//! or the local deadline ends a hold; a server that does not answer does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout_at};

use crate::core::Core;
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
            tracing::warn!(name = %seat.keys.name, %refusal, "a renewal was refused; trying until the lease ends");
            Renewal::Unknown
        }
        Err(_) => Renewal::Unknown,
    }
}

/// The holds of one client that are to be attended to, by when. One task for all of them: most holds
/// are over before their first renewal, and must not cost a task each.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    rounds: Mutex<Rounds>,
    /// Rings when the next round is to come sooner than the last one said, and at the end.
    bell: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Rounds {
    /// By instant and attempt: no two holds of a client began by the same one. The final unlock takes
    /// its hold out.
    due: BTreeMap<(Instant, u64), Weak<Hold>>,
    /// When the task comes by itself, though what it comes for may be over by then: so holds that
    /// come and go do not wake it.
    comes_at: Option<Instant>,
    runs: bool,
}

impl Watchdog {
    /// Puts the hold's next renewal on the list.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        let (core, due) = (&hold.seat.core, next(hold));
        let Some(before) = hold.set_due(due) else { return };
        let mut rounds = self.rounds();
        if let Some(before) = before {
            rounds.due.remove(&(before, hold.attempt));
        }
        let sooner = rounds.comes_at.is_none_or(|at| due < at);
        if sooner {
            rounds.comes_at = Some(due);
        }
        rounds.due.insert((due, hold.attempt), Arc::downgrade(hold));
        let runs = std::mem::replace(&mut rounds.runs, true);
        drop(rounds);
        if !runs {
            let (closing, bell) = (core.closing.clone(), self.bell.clone());
            let keep = keep(Arc::downgrade(core), bell);
            core.spawn(async move {
                let _ = closing.run_until_cancelled(keep).await;
            });
        } else if sooner {
            self.bell.notify_one();
        }
    }

    pub(crate) fn forget(&self, due: Instant, attempt: u64) {
        self.rounds().due.remove(&(due, attempt));
    }

    #[cfg(all(test, feature = "embedded"))]
    pub(crate) fn listed(&self) -> usize {
        self.rounds().due.len()
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        // Nothing panics while it holds this; if it did, the data would still be whole.
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is due, and tells when the next round is.
    fn round(&self) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut rounds = self.rounds();
        let later = rounds.due.split_off(&(now() + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut rounds.due, later);
        rounds.comes_at = rounds.due.first_key_value().map(|((next, _), _)| *next);
        let next = rounds.comes_at;
        (due.into_values().filter_map(|hold| hold.upgrade()).collect(), next)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

/// Goes its rounds until the client is gone.
async fn keep(core: Weak<Core>, bell: Arc<Notify>) {
    while let Some(core) = core.upgrade() {
        let (due, next) = core.watchdog.round();
        for hold in due {
            core.spawn(attend(hold));
        }
        // Asleep it must not keep the client alive.
        drop(core);
        tokio::select! {
            // In this order for the simulator: one seed, one run.
            biased;
            () = bell.notified() => {}
            () = until(next) => {}
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// When a hold is to be attended to next: a third of the lease after its last renewal.
fn next(hold: &Hold) -> Instant {
    let due = hold.renewed().map_or_else(
        || lease::first_renewal(hold.began, hold.deadline()),
        |renewed| lease::next_renewal(renewed, hold.lease()),
    );
    due.min(hold.renewed_until().unwrap_or(due))
}

/// Renews a hold that is due, with retries, and tells of the loss at its deadline.
async fn attend(hold: Arc<Hold>) {
    let done = hold.done.clone();
    done.run_until_cancelled(async {
        if hold.renewed_until().is_some_and(|last| last <= now()) {
            tracing::warn!(name = %hold.seat.keys.name, "held for max_hold: it is renewed no more");
            return expire(hold.clone()).await;
        }
        let only = hold.renewed().is_none().then_some(hold.attempt);
        // A fixed lease that came by a trusted push is given once and not renewed. With max_hold
        // reached meanwhile somebody still has to tell of the loss.
        if renew_until_known(&hold, only).await && hold.is_watched() {
            hold.seat.core.watchdog.watch(&hold);
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
