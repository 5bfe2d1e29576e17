//! The warning about work that waits for a lock that it holds itself, which has no end.
//!
//! Without a scope the library cannot know which calls belong together, and a spawned task inherits
//! nothing that it could see. So this judges by what it knows, and only after a whole lease:
//!
//! - A call that began before the hold did cannot come after it: two branches of a `join!`.
//! - A task that is polled while it waits, and not for the wait, has other work: a branch that may
//!   still unlock.
//! - A hold in a scope that is waited for by a task without one: often a `spawn` inside of `with`. It may also be an
//!   independent task, so the warning is conditional.
//!
//! - A permit is waited for beside others of the same task as a rule. Only if theirs leave too few can it wait for itself.
//!
//! Not warned of: a self-wait beside a branch that goes on, such as a timer in a `select!`. Warned of by mistake: a
//! branch that sleeps for a whole lease with the lock in hand while another one, begun later, waits.

use std::sync::Arc;

use fairlock_proto::keys::{Keys, Kind};

use super::hold::{Hold, Holds};
use super::waiters::Waiter;
use crate::store::clock::now;

/// A holder is older than its waiters, so that only the oldest owners matter. A look at all of them for each waiter
/// would be quadratic.
const SEARCHED: usize = 16;

pub fn warn(holds: &Holds, keys: &Keys, waiters: &[Arc<Waiter>]) {
    for hold in holds.owners.holds_at(&keys.lock, SEARCHED) {
        if !hold.may_be_warned_of() {
            continue;
        }
        let mut patient =
            waiters.iter().filter(|waiter| has_waited_long(waiter, &hold) && excludes(holds, &hold, waiter));
        // In a scope the holder would have re-entered, so only a call from outside of it can be stuck.
        // Without a scope it is the same task that is.
        if hold.scoped {
            if patient.any(|waiter| !waiter.scoped && waiter.caller != hold.holder) {
                hold.set_warned();
                tracing::warn!(
                    target: "fairlock::lock",
                    name = %keys.name,
                    "a task outside of any scope waits for a lock of a scope: that scope has held it for a whole lease, and if it waits for the task, neither ends; spawn the task with Owner::scope"
                );
            }
        } else if patient.any(|waiter| waiter.caller == hold.holder && waiter.is_undisturbed()) {
            hold.set_warned();
            if keys.kind == Kind::Semaphore {
                tracing::warn!(
                    target: "fairlock::lock",
                    name = %keys.name,
                    "this task waits for permits while it holds others: together they are more than there are"
                );
                continue;
            }
            tracing::warn!(
                target: "fairlock::lock",
                name = %keys.name,
                "this task waits for a lock that it holds itself; run the work in owner::scope (or FairLock::with) to re-enter it"
            );
        }
    }
}

/// Whether the waiter cannot be served while the task of this hold keeps all that it has.
fn excludes(holds: &Holds, hold: &Hold, waiter: &Waiter) -> bool {
    if hold.entry.keys.kind != Kind::Semaphore {
        return true;
    }
    let of_task = holds.owners.holds_at(&hold.entry.keys.lock, SEARCHED).into_iter();
    let of_task = of_task.filter(|other| other.holder == hold.holder && other.is_valid());
    // Two of them may seem valid although the server has lost one.
    let kept: u64 = of_task.map(|other| u64::from(other.weight())).sum();
    waiter.share().is_none_or(|share| kept + u64::from(share.weight) > u64::from(share.limit))
}

fn has_waited_long(waiter: &Waiter, hold: &Hold) -> bool {
    waiter.waits_since() > hold.began && waiter.waits_since() + hold.lease <= now()
}
