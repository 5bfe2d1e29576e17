//! Polls the server for the waiters, in case a push was lost (P9).
//!
//! There is one task for each name that this client waits for. One request speaks for all its waiters, and
//! verifies the places of a few (R8). That a place is not named as missing is never acted upon: a wrong
//! belief costs time, not safety, and is found by the rotation, or at once where there is a doubt.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::keys::Keys;
use fairlock_proto::requests::leave::Leave;
use fairlock_proto::requests::poll::{Poll, Polled, PolledHolder};
use futures::{FutureExt, StreamExt, stream};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::cleanup::{self, LeaveRequest};
use super::context::Context;
use super::hold::Holds;
use super::lease::{self, Grant, Queued};
use super::observe::millis;
use super::owner::Owner;
use super::schedule::Schedule;
use super::self_wait;
use super::waiters::{Offer, Round, WaitOutcome, Waiter, Waiters};
use crate::store::ServedKeys;
use crate::store::clock::now;
use crate::store::error::{RefusalKind, RequestError};
use crate::store::runner::Answer;
use crate::store::runtime::survive;

/// Tickets in one request of a round that verifies all of them: the work of one call is bounded.
const TICKETS_IN_A_POLL: usize = 128;
/// Requests of such a round that are sent together.
const POLLS_AT_ONCE: usize = 16;
/// A poll at the end of the holder's lease comes a little after it, so that it finds the lock free.
const AFTER_LEASE: Duration = Duration::from_millis(2);
/// The client that is not first in line asks this much later, so that the first one finds the lock
/// free and the others find it taken, with one useful call instead of many.
const HEAD_START: Duration = Duration::from_millis(30);
/// The pause after a poll without an answer.
const POLL_RETRY: Duration = Duration::from_millis(100);

/// The waiters of one client, and what polling for them needs.
pub struct Poller {
    holds: Arc<Holds>,
    pub waiters: Arc<Waiters>,
}

impl Poller {
    pub fn new(holds: Arc<Holds>) -> Arc<Self> {
        Arc::new(Self { holds, waiters: Arc::default() })
    }

    /// Starts the one task that passes over grants which are not taken. It ends with the client.
    pub fn start(self: &Arc<Self>) {
        let serve = Schedule::serve(
            Arc::downgrade(self),
            |poller| &*poller.waiters.offers,
            |poller, waiter| poller.pass_over(&waiter),
        );
        self.context().spawn_until_closing(serve);
    }

    /// Passes over a waiter whose future was woken for a grant and not polled since: the lock goes to the next one
    /// (P6). If the future goes on, it queues again.
    fn pass_over(self: &Arc<Self>, waiter: &Arc<Waiter>) {
        match waiter.take_back() {
            Offer::Over => return,
            Offer::Until(later) => return self.waiters.offers.insert(later, waiter.seq, waiter),
            Offer::Unread => return self.context().spawn(self.clone().ask_for(waiter.clone())),
            Offer::PassedOver => {}
        }
        // With each copy of its request that may be under way.
        let copies_until = self.context().runner.not_after(&waiter.keys.lock);
        cleanup::leave_for(self.context(), &self.waiters, waiter, copies_until);
        tracing::debug!(target: "fairlock::lock", name = %waiter.keys.name, owner = %waiter.owner_id(), "a future that waits was not polled when its turn came");
    }

    /// Only the waiter's future could read its answer. So this asks the server whether it has the lock, and then offers
    /// the grant to the waiter and passes over it. It asks about this ticket alone: hundreds of futures may rest, and each answer
    /// would list the holds of all.
    async fn ask_for(self: Arc<Self>, waiter: Arc<Waiter>) {
        if self.ask_whose(&waiter.keys, false, vec![waiter.ticket()]).await.is_err() {
            self.waiters.offers.insert(now() + POLL_RETRY, waiter.seq, &waiter);
        }
    }

    fn context(&self) -> &Arc<Context> {
        &self.holds.context
    }

    /// The server has queued this waiter: polls for it from now on.
    ///
    /// `lease_left`: the holder's. `more`: the lock is free, and there are more places to look at. `doubtful`: the server may have
    /// given up on this client before.
    pub fn enqueue(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        queued: Queued,
        lease_left: Option<Duration>,
        more: bool,
        doubtful: bool,
    ) {
        let now = now();
        let regular = now + self.context().options().poll_interval;
        let due = match lease_left {
            // The lock may be free behind dead tickets, and a poll passes over more of them (P6).
            _ if more => now,
            // Which client is first in line is not known yet, so this one counts as one of the others.
            Some(left) => regular.min(now + left + AFTER_LEASE + HEAD_START),
            None => regular,
        };
        if self.waiters.enqueue(waiter, queued, doubtful, due) {
            self.context().spawn(self.clone().run(waiter.keys.clone()));
        }
    }

    /// Polls for all waiters of this name at once, because something is unclear.
    pub fn verify_soon(&self, lock_key: &str) {
        self.waiters.doubt(lock_key);
        self.waiters.poll_by(lock_key, now());
    }

    /// Polls until no waiter of this name is left.
    async fn run(self: Arc<Self>, keys: Arc<Keys>) {
        while let Some((due, sooner)) = self.waiters.next_poll(&keys.lock) {
            tokio::select! {
                // In this order, so that the simulator can repeat a run.
                biased;
                () = sleep_until(due.into()) => {
                    if survive(self.poll(&keys, false)).await.is_none() {
                        // Its evidence is lost, as without an answer.
                        self.waiters.doubt(&keys.lock);
                        self.waiters.poll_by(&keys.lock, now() + POLL_RETRY);
                    }
                }
                () = sooner.notified() => {}
            }
        }
    }

    /// After a reconnect: shows at once that this client is alive, with one request, and leaves it to the
    /// next poll to verify all places.
    pub async fn resume(&self, keys: &Arc<Keys>) {
        self.waiters.doubt(&keys.lock);
        self.poll(keys, true).await;
        self.waiters.poll_by(&keys.lock, now());
    }

    /// One round: one request, or as many as it takes to verify all tickets where there is a doubt.
    async fn poll(&self, keys: &Arc<Keys>, at_once: bool) {
        let regular = now() + self.context().options().poll_interval;
        // Before the first request. What asks for an earlier poll while this one is under way is not
        // undone at the end.
        let Some(round) = self.waiters.begin_round(&keys.lock, regular, at_once) else { return };
        self_wait::warn(&self.holds, keys, &round.waiters);
        let polls = round.carried.chunks(TICKETS_IN_A_POLL).map(|carried| self.ask(keys, &round, carried).boxed());
        let next: Vec<_> = stream::iter(polls.collect::<Vec<_>>()).buffered(POLLS_AT_ONCE).collect().await;
        // A poll without an answer proves nothing: the doubt stays (R8).
        if let Some(doubt) = round.verifies.filter(|_| next.iter().all(Option::is_some)) {
            self.waiters.verified(&keys.lock, doubt);
        }
        let next = next.into_iter().map(|next| next.unwrap_or_else(|| now() + POLL_RETRY)).min();
        // Not simply set: an earlier poll may have been asked for since.
        self.waiters.poll_by(&keys.lock, next.unwrap_or(regular));
    }

    /// One request. Returns when the next one is due. `None`: no answer, for a reason that the waiters got.
    async fn ask(&self, keys: &Arc<Keys>, round: &Round, carried: &[Arc<Waiter>]) -> Option<Instant> {
        let tickets: Vec<_> = carried.iter().map(|waiter| waiter.ticket()).collect();
        let (context, asked) = (self.context(), round.spoken_for(carried));
        let waiting = || asked.iter().filter(|waiter| !waiter.is_over());
        let poll = Poll { keys: keys.clone(), waits: true, names_ours: false, tickets };
        match context.runner.poll(&poll).await {
            Ok(answer) => {
                let polled = &answer.body;
                context.options().metrics.polled();
                tell_of_wait(keys, round, polled);
                self.waiters.answered(&keys.lock, Queued::new(answer.sent, now(), polled.floor));
                let holders: BTreeSet<_> = self.ours(polled).map(|holder| holder.attempt).collect();
                let others_have_it = |waiter: &&Arc<Waiter>| !holders.contains(&waiter.seq);
                waiting().filter(|waiter| others_have_it(waiter)).for_each(|waiter| waiter.last_answer.others());
                self.tell(keys, round, carried, &answer);
                let missing = !polled.missing.is_empty();
                let doubtful = round.verifies.is_none() && (missing || self.is_doubtful(keys, round, &answer));
                if doubtful {
                    self.waiters.doubt(&keys.lock);
                }
                Some(if doubtful || polled.more { now() } else { self.next_after(&answer) })
            }
            Err(error) => {
                waiting().for_each(|waiter| waiter.failed(error.clone()));
                // The evidence of this poll is lost.
                self.waiters.doubt(&keys.lock);
                None
            }
        }
    }

    /// Notifies the waiters whose state the answer changes.
    fn tell(&self, keys: &Arc<Keys>, round: &Round, carried: &[Arc<Waiter>], answer: &Answer<Polled>) {
        let polled = &answer.body;
        let granted: Vec<_> = self.ours(polled).filter_map(|holder| self.tell_holder(keys, holder)).collect();
        // Free, and no winner was found: so none of ours has a place. Frozen, the server did not look for one.
        let is_free = polled.holder.is_none() && polled.frozen_for.is_none() && !polled.more;
        let none_has = is_free && !keys.kind.is_shared();
        let without: Vec<_> = match none_has {
            true => round.spoken_for(carried).iter().collect(),
            // P3: they ask again in their order, so first all are verified.
            false if round.verifies.is_none() => Vec::new(),
            false => polled.missing.iter().filter_map(|index| carried.get(*index)).collect(),
        };
        for waiter in without.into_iter().filter(|waiter| granted.iter().all(|other| other.seq != waiter.seq)) {
            waiter.set_outcome(WaitOutcome::NoPlace(round.next_turn().into()));
        }
    }

    /// The holders that belong to this client.
    fn ours<'a>(&self, polled: &'a Polled) -> impl Iterator<Item = &'a PolledHolder> {
        let holder = polled.holder.as_ref().filter(|holder| self.is_ours(&holder.owner));
        holder.into_iter().chain(&polled.granted)
    }

    fn is_ours(&self, owner: &str) -> bool {
        owner.rsplit_once(':').is_some_and(|(client, _)| *client == *self.context().runner.client.id)
    }

    /// The lock is this client's. If a waiter has it, its message was lost or is late: most of the grant's time may be over.
    fn tell_holder(&self, keys: &Arc<Keys>, holder: &PolledHolder) -> Option<Arc<Waiter>> {
        let PolledHolder { owner, attempt, token, lease_left } = holder;
        if let Some(waiter) = self.waiters.find(owner, *attempt) {
            self.waiters.offer(&waiter, |state| state.outcome = Some(WaitOutcome::Confirm { token: *token }));
            return Some(waiter);
        }
        self.leave_if_unknown(keys, owner, *attempt, lease_left.unwrap_or_default());
        None
    }

    /// The lock is this client's, and no waiter of it is meant. A copy of an old request has taken it, or a server that
    /// took over brings back a stale hold (R15).
    fn leave_if_unknown(&self, keys: &Arc<Keys>, owner_id: &str, attempt: u64, lease: Duration) {
        let hold = Owner::of_id(owner_id).and_then(|owner| self.holds.owners.hold_of(&keys.lock, owner));
        // With any token: an attempt that is sent again after a loss of data gets another one, and a leave would end
        // that hold too (R4). If the hold is not the one on the server, its next check finds it lost, and leaves. A
        // hold that has ended does not count: its watchers may keep it alive.
        if hold.is_some_and(|hold| hold.is_open()) {
            return;
        }
        // With the seq that the server named. A later request of this owner is not touched, and if its release
        // is under way, this finds nothing to do (R4).
        let leave =
            Leave { keys: keys.clone(), owner: owner_id.into(), seq: attempt, place: String::new(), copies_until: 0 };
        cleanup::leave(self.context(), LeaveRequest { leave, lease, leaving: None });
    }

    /// A grant was pushed.
    pub fn granted(&self, from: &ServedKeys, lock_key: &str, ticket: &str, grant: Grant) {
        // A node that does not serve the lock has lost its slot to another one, which may have granted it too
        // (P1). So this is only a reason to ask.
        if !from.contains(lock_key) {
            return self.verify_soon(lock_key);
        }
        // The waiters first: a hold that begins is in the table before its waiter goes.
        if self.waiters.granted(ticket, grant) {
            return;
        }
        // Its attempt has ended. As a rule a leave is under way for it, but a server that took over may have
        // brought back a place that was left or served (R15).
        let parts = ticket.rsplit_once(':').and_then(|(owner, seq)| Some((owner, seq.parse().ok()?)));
        let keys = Keys::of_lock(&self.context().options().prefix, lock_key);
        if let (Some((owner, seq)), Some(keys)) = (parts, keys) {
            self.leave_if_unknown(&Arc::new(keys), owner, seq, grant.lease);
        }
    }

    /// R15: after a reconnect, checks the names that this client released just before the connection broke. Begins when
    /// `checked` is cancelled: its waits and holds go first.
    pub fn say_farewells(self: &Arc<Self>, keys: &ServedKeys, broke: Option<Instant>, checked: CancellationToken) {
        let context = self.context();
        // A stale hold has less than a lease left.
        let until = context.forgotten_at(context.options().lease);
        if context.farewells.owe(keys, broke, until) {
            let poller = self.clone();
            context.spawn(async move {
                checked.cancelled().await;
                poller.ask_for_ghosts().await;
            });
        }
    }

    /// Asks until each name has an answer, or its time is over.
    async fn ask_for_ghosts(&self) {
        let mut backoff = self.context().backoff();
        while let Some(owed) = self.context().farewells.owed() {
            let asked = stream::iter(owed).map(|lock_key| self.ask_for_a_ghost(lock_key).boxed());
            let outcomes: Vec<_> = asked.buffered(POLLS_AT_ONCE).collect().await;
            if let Some(error) = outcomes.into_iter().find_map(Result::err) {
                if matches!(error, RequestError::Closed | RequestError::RuntimeGone) {
                    return;
                }
                backoff.pause_after(&error).await;
            }
        }
    }

    /// One poll for a name, however often it was released. It also finds a ghost of an owner before the last.
    async fn ask_for_a_ghost(&self, lock_key: Arc<str>) -> Result<(), RequestError> {
        let context = self.context();
        // Never none: the name was made with this prefix.
        if let Some(keys) = Keys::of_lock(&context.options().prefix, &lock_key).map(Arc::new) {
            self.ask_whose(&keys, keys.kind.is_shared(), Vec::new()).await?;
        }
        context.farewells.said(&lock_key);
        Ok(())
    }

    /// Notifies the waiters that have the name, and leaves for each hold without a waiter here.
    async fn ask_whose(&self, keys: &Arc<Keys>, names_ours: bool, tickets: Vec<String>) -> Result<(), RequestError> {
        let context = self.context();
        let poll = Poll { keys: keys.clone(), waits: false, names_ours, tickets };
        match context.runner.poll(&poll).await {
            Ok(answer) => {
                for holder in self.ours(&answer.body) {
                    self.tell_holder(keys, holder);
                }
                if answer.body.more {
                    cleanup::pass_on(context, keys);
                }
                Ok(())
            }
            // No retry helps: it ends with its lease.
            Err(RequestError::Refused(refusal)) if refusal.kind() == RefusalKind::Final => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a waiter may have lost its place since the last answer, and this one does not show which.
    fn is_doubtful(&self, keys: &Keys, round: &Round, answer: &Answer<Polled>) -> bool {
        let polled = &answer.body;
        let gap = now().saturating_duration_since(round.heard);
        let granted = polled.holder.as_ref().is_some_and(|holder| self.is_ours(&holder.owner));
        // Several may have been granted a shared name while this poll was under way. For a lock that is rare.
        let expected = match keys.kind.is_shared() {
            true => round.waiters.iter().filter(|waiter| waiter.is_in_line()).count() as u64,
            false => round.waiters.len() as u64 - u64::from(granted),
        };
        // A grant that came and ended between the two answers was seen by none of them.
        !polled.known || polled.places < expected || gap > lease::sure(self.context().options().first_lease())
    }

    fn next_after(&self, answer: &Answer<Polled>) -> Instant {
        let polled = &answer.body;
        // A dead holder is replaced as soon as its lease ends (P7): by the client that is first in
        // line, or a moment later by one of the others if that client is dead too.
        let head_start = if polled.first { Duration::ZERO } else { HEAD_START };
        let regular = answer.sent + self.context().options().poll_interval;
        let lease_left = polled.holder.as_ref().and_then(|holder| holder.lease_left);
        // After a freeze too, the first one finds the lock free.
        let room_in = lease_left.or(polled.frozen_for).or(polled.room_in);
        room_in.map_or(regular, |left| regular.min(now() + left + AFTER_LEASE + head_start))
    }
}

fn tell_of_wait(keys: &Keys, round: &Round, polled: &Polled) {
    let holder = polled.holder.as_ref();
    tracing::debug!(
        target: "fairlock::lock",
        name = %keys.name,
        waiting = round.waiters.len(),
        places = polled.places,
        holder = holder.map(|holder| &*holder.owner),
        lease_left_ms = holder.and_then(|holder| holder.lease_left).map(millis),
        "still waiting"
    );
}
