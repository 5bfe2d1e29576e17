//! Asks the server about those who wait, in case a push was lost (P9).
//!
//! There is one task for each name that this client waits for. One request carries many tickets (R8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::context::Context;
use super::hold::Holds;
use super::lease::Queued;
use super::self_wait;
use super::waiters::{WaitOutcome, Waiter, Waiters};
use crate::store::clock::now;
use crate::store::keys::Keys;
use crate::store::runner::Answer;
use crate::store::verbs::poll::{Poll, Polled, TicketStatus};

/// Tickets in one request: the work of one call is bounded.
const TICKETS_IN_A_POLL: usize = 128;
/// A poll at the end of the holder's lease comes a little after it, so that it finds the lock free.
const AFTER_LEASE: Duration = Duration::from_millis(2);
/// The client that is not first in line asks this much later, so that the first one finds the lock
/// free and the others find it taken, with one useful call instead of many.
const HEAD_START: Duration = Duration::from_millis(30);
/// The pause after a poll without an answer.
const POLL_RETRY: Duration = Duration::from_millis(100);

/// The waiters of one client, and what polling for them needs.
#[derive(Debug)]
pub struct Poller {
    holds: Arc<Holds>,
    pub waiters: Waiters,
}

impl Poller {
    pub fn new(holds: Arc<Holds>) -> Arc<Self> {
        Arc::new(Self { holds, waiters: Waiters::default() })
    }

    fn context(&self) -> &Arc<Context> {
        &self.holds.context
    }

    /// The server has queued this waiter: polls for it from now on.
    ///
    /// `lease_left` is the holder's. `more`: the server has more dead tickets to clear.
    pub fn enqueue(self: &Arc<Self>, waiter: &Arc<Waiter>, queued: Queued, lease_left: Option<Duration>, more: bool) {
        waiter.set_queued(queued);
        let now = now();
        let regular = now + self.context().options().poll_interval;
        let due = match lease_left {
            // The lock may be free behind dead tickets, and a poll clears more of them (P6).
            _ if more => now,
            // Which client is first in line is not known yet, so this one counts as one of the others.
            Some(left) => regular.min(now + left + AFTER_LEASE + HEAD_START),
            None => regular,
        };
        if self.waiters.enqueue(waiter, due) {
            self.context().spawn(self.clone().run(waiter.keys.clone()));
        }
    }

    /// Polls at once, because something is unclear.
    pub fn hurry(&self, waiter: &Waiter) {
        self.waiters.poll_by(&waiter.keys.lock, now());
    }

    /// Until no waiter of this name is left.
    async fn run(self: Arc<Self>, keys: Arc<Keys>) {
        while let Some((due, sooner)) = self.waiters.next_poll(&keys.lock) {
            tokio::select! {
                // In this order, so that the simulator can repeat a run.
                biased;
                () = sleep_until(due.into()) => self.poll(&keys).await,
                () = sooner.notified() => {}
            }
        }
    }

    /// Asks for all tickets of one name, oldest first.
    pub async fn poll(&self, keys: &Keys) {
        let mut next = now() + self.context().options().poll_interval;
        // Before the first request. A call of `hurry` while one is under way can then bring the next
        // poll nearer, and is not undone at the end.
        let waiters = self.waiters.begin_poll(&keys.lock, next);
        self_wait::warn(&self.holds, keys, &waiters);
        for together in waiters.chunks(TICKETS_IN_A_POLL) {
            let tickets: Vec<_> = together.iter().map(|waiter| (waiter.ticket(), waiter.lease)).collect();
            match (Poll { keys, tickets: &tickets }).run(&self.context().runner).await {
                Ok(answer) => {
                    together.iter().for_each(|waiter| waiter.last_error.answered());
                    tell(together, &answer);
                    next = next.min(self.next_after(together, &answer));
                }
                Err(error) => {
                    together.iter().for_each(|waiter| waiter.failed(error.clone()));
                    // A ticket that is not polled for dies (R8), so a regular pause would be too long.
                    next = next.min(now() + POLL_RETRY);
                }
            }
        }
        // Not simply set: an earlier poll may have been asked for since.
        self.waiters.poll_by(&keys.lock, next);
    }

    fn next_after(&self, waiters: &[Arc<Waiter>], answer: &Answer<Polled>) -> Instant {
        let polled = &answer.body;
        if polled.more {
            return now();
        }
        // A dead holder is replaced as soon as its lease ends (P7): by the client that is first in
        // line, or a moment later by one of the others if that client is dead too.
        let is_first = waiters.iter().any(|waiter| waiter.has_ticket(&polled.first));
        let head_start = if is_first { Duration::ZERO } else { HEAD_START };
        let regular = answer.sent + self.context().options().poll_interval;
        polled.lease_left.map_or(regular, |left| regular.min(now() + left + AFTER_LEASE + head_start))
    }
}

/// Tells each waiter what the answer says about it.
fn tell(waiters: &[Arc<Waiter>], answer: &Answer<Polled>) {
    let polled = &answer.body;
    for (index, waiter) in waiters.iter().enumerate() {
        match polled.statuses.get(&index) {
            Some(&TicketStatus::Granted { token, lease_left }) => {
                waiter.set_outcome(WaitOutcome::Granted { token, sent: answer.sent, lease_left });
            }
            Some(TicketStatus::Unknown) => waiter.set_outcome(WaitOutcome::NoPlace),
            // Those that are still queued are not in the answer (decision 21). For them it moves the
            // trust in a push on (R7).
            None => waiter.set_queued(Queued { asked: answer.sent, floor: polled.floor }),
        }
    }
}
