//! From the server to those who wait: pushed grants as they come, and polls that make up for the
//! pushes that do not.
//!
//! A push is a hint, the state on the server is the truth (P9). A waiter registers before it sends
//! anything, because its grant may come before the reply that says "queued".

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::core::Core;
use crate::hold;
use crate::lease::{Grant, Queued};
use crate::store::keys::{Keys, ticket};
use crate::store::reply::{Place, Polled};
use crate::store::{Answer, Refusal, StoreError, now};

/// Tickets in one poll: a call's work is bounded.
const POLLED_TOGETHER: usize = 128;
/// A poll at the end of the holder's lease comes a little after it.
const AFTER_LEASE: Duration = Duration::from_millis(2);
/// Those who are not first in line leave the first a head start at that moment.
const HEAD_START: Duration = Duration::from_millis(30);
/// Before a poll that had no answer is repeated.
const POLL_RETRY: Duration = Duration::from_millis(100);

/// One attempt that may be granted the lock.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) seq: u64,
    owner_id: Arc<str>,
    pub(crate) lease: Duration,
    /// What waits, for the warning.
    place: hold::Place,
    keys: Arc<Keys>,
    news: Mutex<News>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct News {
    /// The last pushed grant.
    pushed: Option<Grant>,
    /// The last answer "queued".
    queued: Option<Queued>,
    verdict: Option<Verdict>,
    /// The greatest token of this owner that was ended by force; 0: none.
    revoked: u64,
}

/// What ends a wait, or may.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// A poll found that it owns the lock for so long.
    Granted { token: u64, sent: Instant, lease_left: Duration },
    /// A pushed grant that may be relied on until then (R7).
    Trusted { token: u64, until: Instant },
    /// A grant came that is too old to be trusted: ask.
    Confirm { token: u64 },
    /// The ticket has no place any more.
    NoPlace,
    /// Polls are refused, and not for a passing reason.
    Failed(Box<Refusal>),
}

/// The attempts of one client that wait.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// By seq, which no two attempts of a client share.
    waiters: Mutex<BTreeMap<u64, Arc<Waiter>>>,
    /// Those with a place, by lock key; a name is here exactly while its poller runs.
    queues: Mutex<BTreeMap<Arc<str>, Queue>>,
}

#[derive(Debug)]
struct Queue {
    keys: Arc<Keys>,
    tickets: BTreeMap<u64, Arc<Waiter>>,
    next_poll: Instant,
    /// Rings when `next_poll` came nearer.
    sooner: Arc<Notify>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these; if it did, the data would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    /// Resolves when there is something to act upon.
    pub(crate) async fn verdict(&self) -> Verdict {
        loop {
            // `notify_one` keeps a permit when nobody listens, so nothing is missed in between.
            if let Some(verdict) = self.take() {
                return verdict;
            }
            self.bell.notified().await;
        }
    }

    fn take(&self) -> Option<Verdict> {
        let mut news = lock(&self.news);
        if let Some(verdict) = news.verdict.take() {
            return Some(verdict);
        }
        let queued = news.queued?;
        let grant = news.pushed.take()?;
        if let Some(until) = queued.trust(grant, now()) {
            return Some(Verdict::Trusted { token: grant.token, until });
        }
        // At or below the floor it is from before the poll, which found the ticket queued: over.
        (grant.token > queued.floor).then_some(Verdict::Confirm { token: grant.token })
    }

    /// Made when it is needed: waiters are many.
    fn ticket(&self) -> String {
        ticket(&self.owner_id, self.seq)
    }

    fn has(&self, ticket: &str) -> bool {
        let split = ticket.rsplit_once(':');
        split.is_some_and(|(owner, seq)| *owner == *self.owner_id && seq.parse() == Ok(self.seq))
    }

    pub(crate) fn is_revoked(&self, token: u64) -> bool {
        lock(&self.news).revoked >= token
    }

    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut lock(&self.news));
        self.bell.notify_one();
    }

    fn is_queued(&self, queued: Queued) {
        self.tell(|news| {
            // Answers may overtake each other; only a later question moves the deadline on.
            if news.queued.is_none_or(|known| known.asked <= queued.asked) {
                news.queued = Some(queued);
            }
        });
    }

    fn conclude(&self, verdict: Verdict) {
        self.tell(|news| news.verdict = Some(verdict));
    }
}

impl Wake {
    /// Before anything is sent for this ticket.
    pub(crate) fn register(&self, keys: &Arc<Keys>, seq: u64, owner_id: &Arc<str>, lease: Duration) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            seq,
            owner_id: owner_id.clone(),
            lease,
            place: hold::place(),
            keys: keys.clone(),
            news: Mutex::default(),
            bell: Notify::new(),
        });
        lock(&self.waiters).insert(seq, waiter.clone());
        waiter
    }

    pub(crate) fn deregister(&self, waiter: &Waiter) {
        lock(&self.waiters).remove(&waiter.seq);
        if let Some(queue) = lock(&self.queues).get_mut(&waiter.keys.lock) {
            queue.tickets.remove(&waiter.seq);
            if queue.tickets.is_empty() {
                queue.sooner.notify_one();
            }
        }
    }

    /// The server has given it a place: from now on it is polled for.
    pub(crate) fn queued(
        &self,
        core: &Arc<Core>,
        waiter: &Arc<Waiter>,
        queued: Queued,
        lease_left: Option<Duration>,
        more: bool,
    ) {
        waiter.is_queued(queued);
        let now = now();
        let regular = now + core.options.poll_interval;
        let due = if more {
            now
        } else {
            lease_left.map_or(regular, |left| regular.min(now + left + AFTER_LEASE + HEAD_START))
        };
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get_mut(&waiter.keys.lock) {
            queue.tickets.insert(waiter.seq, waiter.clone());
            if due < queue.next_poll {
                queue.next_poll = due;
                queue.sooner.notify_one();
            }
            return;
        }
        let queue = Queue {
            keys: waiter.keys.clone(),
            tickets: BTreeMap::from([(waiter.seq, waiter.clone())]),
            next_poll: due,
            sooner: Arc::new(Notify::new()),
        };
        queues.insert(waiter.keys.lock.clone(), queue);
        drop(queues);
        core.spawn(keep_polling(core.clone(), waiter.keys.clone()));
    }

    /// Ask at once, because something is unclear.
    pub(crate) fn hurry(&self, waiter: &Waiter) {
        if let Some(queue) = lock(&self.queues).get_mut(&waiter.keys.lock) {
            queue.next_poll = now();
            queue.sooner.notify_one();
        }
    }

    pub(crate) fn granted(&self, ticket: &str, grant: Grant) {
        let seq = ticket.rsplit(':').next().and_then(|seq| seq.parse().ok());
        let waiter = seq.and_then(|seq: u64| lock(&self.waiters).get(&seq).cloned());
        // Unknown: its attempt is over, and its leave passes the lock on.
        if let Some(waiter) = waiter.filter(|waiter| waiter.has(ticket)) {
            waiter.tell(|news| {
                if news.pushed.is_none_or(|known| known.token < grant.token) {
                    news.pushed = Some(grant);
                }
            });
        }
    }

    /// A hold that is about to begin was ended by force before it did.
    pub(crate) fn revoked(&self, lock_key: &str, owner: &str, token: u64) {
        let waiters = lock(&self.waiters);
        let theirs = |waiter: &&Arc<Waiter>| *waiter.owner_id == *owner && *waiter.keys.lock == *lock_key;
        for waiter in waiters.values().filter(theirs) {
            let mut news = lock(&waiter.news);
            news.revoked = news.revoked.max(token);
        }
    }

    pub(crate) fn names(&self) -> Vec<Arc<Keys>> {
        lock(&self.queues).values().map(|queue| queue.keys.clone()).collect()
    }

    /// Asks for all tickets of one name, oldest first.
    pub(crate) async fn poll(&self, core: &Arc<Core>, keys: &Keys) {
        let mut due = now() + core.options.poll_interval;
        let waiters: Vec<_> = match lock(&self.queues).get_mut(&keys.lock) {
            Some(queue) => {
                // Whoever wants it sooner while this poll is under way says so against this.
                queue.next_poll = due;
                queue.tickets.values().cloned().collect()
            }
            None => return,
        };
        warn_of_self_wait(core, keys, &waiters);
        for together in waiters.chunks(POLLED_TOGETHER) {
            let tickets: Vec<_> = together.iter().map(|waiter| (waiter.ticket(), waiter.lease)).collect();
            match core.scripts.poll(keys, &tickets, core.patience()).await {
                Ok(answer) => due = due.min(self.spread(core, together, &answer)),
                Err(StoreError::Refused(refusal)) if !refusal.is_passing() => {
                    together.iter().for_each(|waiter| waiter.conclude(Verdict::Failed(refusal.clone().into())));
                }
                Err(_) => due = due.min(now() + POLL_RETRY),
            }
        }
        if let Some(queue) = lock(&self.queues).get_mut(&keys.lock) {
            queue.next_poll = queue.next_poll.min(due);
        }
    }

    /// Tells each waiter its answer. Returns when to ask again.
    fn spread(&self, core: &Core, waiters: &[Arc<Waiter>], answer: &Answer<Polled>) -> Instant {
        let polled = &answer.body;
        for (index, waiter) in waiters.iter().enumerate() {
            match polled.places.get(&index) {
                Some(&Place::Granted { token, lease_left }) => {
                    waiter.conclude(Verdict::Granted { token, sent: answer.sent, lease_left });
                }
                Some(Place::Unknown) => waiter.conclude(Verdict::NoPlace),
                None => waiter.is_queued(Queued { asked: answer.sent, floor: polled.floor }),
            }
        }
        if polled.more {
            return now();
        }
        // P7: whoever is first asks when the holder's lease ends, the others a moment later.
        let first = waiters.iter().any(|waiter| waiter.has(&polled.first));
        let head_start = if first { Duration::ZERO } else { HEAD_START };
        let regular = answer.sent + core.options.poll_interval;
        polled.lease_left.map_or(regular, |left| regular.min(now() + left + AFTER_LEASE + head_start))
    }

    /// When to poll next, or `None` when nobody waits: then the name is forgotten.
    fn next_poll(&self, keys: &Keys) -> Option<(Instant, Arc<Notify>)> {
        let mut queues = lock(&self.queues);
        let queue = queues.get(&keys.lock)?;
        if queue.tickets.is_empty() {
            queues.remove(&keys.lock);
            return None;
        }
        Some((queue.next_poll, queue.sooner.clone()))
    }
}

/// A task that waits for a lock it holds itself waits for ever; without a scope nothing tells
/// the library that it is the same work.
fn warn_of_self_wait(core: &Core, keys: &Keys, waiters: &[Arc<Waiter>]) {
    // A holder is older than those who wait for it.
    for hold in core.seats.holds_at(&keys.lock, 16) {
        if hold.is_open_to_a_warning() && waiters.iter().any(|waiter| waiter.place == hold.place) {
            hold.warned.store(true, Ordering::Relaxed);
            tracing::warn!(
                name = %hold.seat.keys.name,
                "this task waits for a lock that it holds itself; run the work in owner::scope (or FairLock::with) to re-enter it"
            );
        }
    }
}

/// One task for each name that this client waits for: its polls travel together (R8).
async fn keep_polling(core: Arc<Core>, keys: Arc<Keys>) {
    while let Some((due, sooner)) = core.wake.next_poll(&keys) {
        tokio::select! {
            // In this order for the simulator: one seed, one run.
            biased;
            () = sleep_until(due.into()) => core.wake.poll(&core, &keys).await,
            () = sooner.notified() => {}
        }
    }
}
