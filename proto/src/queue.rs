//! The waiters of one name, and the polls that speak for all of them (R8), in case a push got lost (P9).
//!
//! The client acts on missing places alone. A wrong belief that a waiter has its place costs time, not safety. The
//! rotation finds it, or a full round does at once if there is a reason to doubt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{Epoch, RequestNumber, Seq};
use crate::error::{CallError, RequestError};
use crate::held_by::HeldBy;
use crate::keys::{Keys, Kind, ticket};
use crate::lease;
use crate::node::Lane;
use crate::requests::poll::{Polled, PolledHolder};
use crate::sending::LastAnswer;
use crate::settings::Settings;
use crate::slab::{Id, Slab};
use crate::time::Instant;
use crate::timers::{STEP, Standing};
use crate::trust::{Floor, Trust};

/// How many tickets a poll verifies. These cost the server about as much as the other work of a poll.
const VERIFIED_IN_A_POLL: usize = 16;
/// How many of these are the client's oldest tickets.
const OLDEST_IN_A_POLL: usize = 4;
/// Tickets in one request of a round that verifies all places. This bounds the work of one call.
const TICKETS_IN_A_POLL: usize = 128;
/// How many requests of such a round are under way together.
const POLLS_AT_ONCE: usize = 16;
/// The poll for the end of the holder's lease comes this much later, so that it finds the lock free.
const AFTER_LEASE: Duration = Duration::from_millis(2);
/// Clients that are not first in line poll this much later. The first one then finds the lock free and the others find
/// it taken, with one useful call instead of many.
const HEAD_START: Duration = Duration::from_millis(30);
/// The pause after a poll without an answer.
const POLL_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Hash)]
pub struct Queue {
    pub keys: Arc<Keys>,
    pub slot: u16,
    /// Oldest first.
    waiters: BTreeMap<Seq, Waiter>,
    pub trust: Trust,
    /// The outcome of the last request about the name.
    last: LastAnswer,
    /// When the client sent the last answered poll.
    last_poll: Instant,
    places: Places,
    /// When there was last a reason to verify all places.
    unsure: Option<Instant>,
    /// The last ticket that the rotation verified.
    rotation: Seq,
    next_poll: Instant,
    round: Option<Round>,
    /// The epoch of the server that the client last asked.
    epoch: Epoch,
    pub standing: Standing,
}

#[derive(Debug, Clone, Hash)]
struct Waiter {
    entry: Id,
    owner_id: Arc<str>,
}

/// Whether all waiters have a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Places {
    /// As far as the client knows. A round that is under way may verify them.
    Sure,
    /// A waiter may have lost its place: the next round verifies all.
    Unsure,
}

/// How many requests a round may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One, however many places there are to verify.
    AtOnce,
    Full,
}

/// The polls that are under way, and the polls still to send.
#[derive(Debug, Clone, Hash)]
struct Round {
    left: Left,
    asked: Vec<(RequestNumber, Carried)>,
    /// When the next round is due, according to the answers so far.
    next: Option<Instant>,
}

/// The places that a round still has to ask about.
#[derive(Debug, Clone, Hash)]
enum Left {
    Nothing,
    /// A few places, in one request.
    Few(Carried),
    /// All places between these seqs, in as many requests as it takes. The second was the last waiter when the round
    /// began.
    All(Seq, Seq),
}

/// The tickets that one request of a round carries.
#[derive(Debug, Clone, Hash)]
pub struct Carried {
    seqs: Vec<Seq>,
    /// In a round that verifies a few places: the number of waiters when it began.
    waiting: Option<usize>,
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Queues {
    queues: Slab<Queue>,
    by_name: BTreeMap<Arc<str>, Id>,
}

/// The meaning of an answer for the waiters.
pub enum News {
    Polled {
        keys: Arc<Keys>,
        /// For a lock only.
        holder: Option<PolledHolder>,
        /// The waiters that now hold a shared name.
        granted: Vec<PolledHolder>,
        /// How many calls wait here. `places`: how many wait over all clients.
        waiting: usize,
        places: u64,
        /// The waiters that the poll spoke for.
        carried: Vec<(Id, Seq)>,
        /// The waiters among them that lost their places.
        without: Vec<(Id, Seq)>,
    },
    /// The error is permanent. The waits of `some` end, and the next poll ends more.
    Failed { error: CallError, some: Vec<(Id, Seq)> },
}

impl Queues {
    pub fn of(&self, lock_key: &str) -> Option<Id> {
        self.by_name.get(lock_key).copied()
    }

    pub fn get(&self, id: Id) -> Option<&Queue> {
        self.queues.get(id)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut Queue> {
        self.queues.get_mut(id)
    }

    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.by_name.is_empty()
    }

    pub fn ids_from(&self, from: usize, count: usize) -> (Vec<Id>, Option<usize>) {
        self.queues.ids_from(from, count)
    }

    /// The queue of a waiter's name, created if there is none.
    pub fn for_waiter(&mut self, new: &NewWaiter<'_>, next_poll: Instant) -> Id {
        let Self { queues, by_name } = self;
        *by_name.entry(new.keys.lock.clone()).or_insert_with(|| queues.insert(Queue::new(new, next_poll)))
    }

    /// Returns the queue if this was its last waiter.
    pub fn remove_waiter(&mut self, id: Id, seq: Seq) -> Option<Queue> {
        let queue = self.queues.get_mut(id)?;
        queue.waiters.remove(&seq);
        if !queue.waiters.is_empty() {
            return None;
        }
        let queue = self.queues.remove(id)?;
        self.by_name.remove(&queue.keys.lock);
        Some(queue)
    }
}

impl Queue {
    fn new(new: &NewWaiter<'_>, next_poll: Instant) -> Self {
        Self {
            keys: new.keys.clone(),
            slot: new.slot,
            waiters: BTreeMap::new(),
            trust: Trust::new(new.floor),
            last: LastAnswer::Others(None),
            last_poll: new.floor.asked,
            places: Places::Sure,
            unsure: None,
            rotation: Seq(0),
            next_poll,
            round: None,
            epoch: new.floor.epoch,
            standing: Standing::default(),
        }
    }

    /// The server has given this waiter a place.
    pub fn add(&mut self, new: NewWaiter<'_>, now: Instant, regular: Instant) {
        self.trust.learn(new.floor);
        self.last = LastAnswer::Others(new.holder);
        // The request may be older than the reason to verify all, and the round that verified the others did not carry
        // this ticket.
        let is_old = self.unsure.is_some_and(|since| new.floor.asked <= since);
        if is_old || new.belief == Belief::GivenUp && !self.waiters.is_empty() {
            self.verify_all(now);
        }
        self.waiters.insert(new.seq, Waiter { entry: new.entry, owner_id: new.owner_id.clone() });
        self.poll_by(match new.lease_left {
            // The lock may be free with dead tickets first in the queue. A poll passes over more of them (P6).
            _ if new.more => now,
            // The client does not know yet whether it is first in line, so it counts as one of the others.
            Some(left) => regular.min(now + left + AFTER_LEASE + HEAD_START),
            None => regular,
        });
    }

    /// Shows at once that this client is alive, with one request. The next round verifies all places.
    pub fn resume(&mut self, epoch: Epoch, now: Instant, regular: Duration) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.verify_all(now);
            self.begin_round(now, regular, Scope::AtOnce);
            self.poll_by(now);
        }
    }

    /// When the next round is due.
    pub fn due(&self) -> Option<Instant> {
        self.round.is_none().then_some(self.next_poll)
    }

    pub fn verify_all(&mut self, now: Instant) {
        (self.places, self.unsure) = (Places::Unsure, Some(now));
    }

    pub fn poll_by(&mut self, due: Instant) {
        self.next_poll = self.next_poll.min(due);
    }

    fn known(&self, seqs: &[Seq]) -> Vec<(Id, Seq)> {
        seqs.iter().filter_map(|seq| self.waiters.get(seq).map(|waiter| (waiter.entry, *seq))).collect()
    }

    /// The oldest tickets, whose turn comes next, and some of the others, so that the rotation verifies each in time.
    fn some_in_rotation(&mut self) -> Vec<Seq> {
        let oldest = self.waiters.keys().take(OLDEST_IN_A_POLL);
        let behind = self.waiters.range(Seq(self.rotation.0 + 1)..).map(|(seq, _)| seq);
        let others = behind.chain(self.waiters.keys()).take(VERIFIED_IN_A_POLL - OLDEST_IN_A_POLL);
        let some: Vec<_> = oldest.chain(others).copied().collect();
        self.rotation = some.last().copied().unwrap_or_default();
        some
    }

    pub fn begin_round(&mut self, now: Instant, regular: Duration, scope: Scope) {
        let Some((last, _)) = self.waiters.last_key_value().filter(|_| self.round.is_none()) else { return };
        // Set at the start, so that the end of the round does not undo an earlier poll that something asks for in
        // between.
        self.next_poll = now + regular;
        let (waiting, last) = (self.waiters.len(), *last);
        let is_small = waiting <= VERIFIED_IN_A_POLL;
        let left = if is_small || scope == Scope::Full && self.places == Places::Unsure {
            // A doubt from here on is for the next round.
            self.places = Places::Sure;
            Left::All(Seq(0), last)
        } else {
            Left::Few(Carried { seqs: self.some_in_rotation(), waiting: Some(waiting) })
        };
        self.round = Some(Round { left, asked: Vec::new(), next: None });
    }

    pub fn wants(&self) -> Option<Lane> {
        let Round { left, asked, .. } = self.round.as_ref()?;
        let wants = match left {
            Left::Nothing => false,
            Left::Few(_) => true,
            Left::All(..) => asked.len() < POLLS_AT_ONCE,
        };
        wants.then_some(Lane::Urgent)
    }

    /// The tickets of the next request.
    pub fn carry(&mut self, number: RequestNumber) -> Vec<String> {
        let Self { round: Some(round), waiters, .. } = self else { return Vec::new() };
        let carried = match std::mem::replace(&mut round.left, Left::Nothing) {
            Left::Nothing => return Vec::new(),
            Left::Few(carried) => carried,
            Left::All(from, last) => {
                // All of these waiters may have gone by now.
                let mut seqs = waiters.range(from..=last).map(|(seq, _)| *seq);
                let some: Vec<_> = seqs.by_ref().take(TICKETS_IN_A_POLL).collect();
                round.left = seqs.next().map_or(Left::Nothing, |next| Left::All(next, last));
                Carried { seqs: some, waiting: None }
            }
        };
        let of = |seq: &Seq| waiters.get(seq).map(|waiter| ticket(&waiter.owner_id, seq.0));
        let tickets = carried.seqs.iter().filter_map(of).collect();
        round.asked.push((number, carried));
        tickets
    }

    /// Takes out the tickets that this request carried. Its round goes on without them.
    pub fn take(&mut self, number: RequestNumber) -> Option<Carried> {
        let asked = &mut self.round.as_mut()?.asked;
        let at = asked.iter().position(|(asked, _)| *asked == number)?;
        Some(asked.swap_remove(at).1)
    }

    /// Reads an answer for the waiters.
    pub fn read(&mut self, asked: &Carried, polled: Polled, floor: Floor, now: Instant, settings: &Settings) -> News {
        let gap = now.since(self.last_poll);
        self.trust.learn(floor);
        self.last_poll = self.last_poll.max(floor.asked);
        let is_unclear = asked.is_unclear(&polled, self.keys.kind, self.waiters.len(), gap, settings);
        if is_unclear {
            self.verify_all(now);
        }
        let is_due = is_unclear || polled.more;
        self.go_on(if is_due { now } else { next_after(&polled, floor.asked, now, settings.poll_interval) });
        let (carried, without) = (self.known(&asked.seqs), self.known(&asked.without(&polled, self.keys.kind)));
        let (keys, waiting, places) = (self.keys.clone(), self.waiters.len(), polled.places);
        let Polled { holder, held_by, granted, .. } = polled;
        self.last = LastAnswer::Others(held_by);
        News::Polled { keys, holder, granted, waiting, places, carried, without }
    }

    pub fn last_answer(&self) -> LastAnswer {
        self.last.clone()
    }

    /// A poll went unanswered, so its evidence is missing. A permanent error ends the waits.
    pub fn unanswered(&mut self, error: Option<RequestError>, now: Instant) -> Option<News> {
        self.verify_all(now);
        self.go_on(now + POLL_RETRY);
        let error = error?;
        let Some(error) = error.of_call() else {
            self.last = LastAnswer::Failed(error);
            return None;
        };
        let some = self.waiters.iter().take(STEP).map(|(seq, waiter)| (waiter.entry, *seq)).collect();
        Some(News::Failed { error, some })
    }

    /// `next` is when the next round is due according to this answer.
    fn go_on(&mut self, next: Instant) {
        let Some(round) = &mut self.round else { return };
        let next = round.next.map_or(next, |earlier| earlier.min(next));
        round.next = Some(next);
        if round.asked.is_empty() && matches!(round.left, Left::Nothing) {
            self.round = None;
            self.poll_by(next);
        }
    }
}

impl Carried {
    /// Whether a waiter may have lost its place since the last answer, and this one does not show which. `now_waiting`
    /// is the number of waiters now.
    fn is_unclear(&self, polled: &Polled, kind: Kind, now_waiting: usize, gap: Duration, settings: &Settings) -> bool {
        let Some(waiting) = self.waiting else { return false };
        // The server may have granted many waiters a shared name since the round began.
        let waiting = if kind.is_shared() { waiting.min(now_waiting) } else { waiting };
        let ours = polled.holder.iter().chain(&polled.granted).filter(|holder| settings.is_ours(&holder.owner)).count();
        let expected = waiting.saturating_sub(ours) as u64;
        // Neither of two answers shows a grant that came and ended between them.
        let is_unseen = gap > lease::sure(settings.first_lease);
        let is_free = none_has_a_place(polled, kind);
        !polled.known || polled.places < expected || !polled.missing.is_empty() || is_free || is_unseen
    }

    /// The waiters without a place. P3: they ask again in their order, so only a round that verifies all acts on it.
    fn without(&self, polled: &Polled, kind: Kind) -> Vec<Seq> {
        match self.waiting {
            Some(_) => Vec::new(),
            None if none_has_a_place(polled, kind) => self.seqs.clone(),
            None => polled.missing.iter().filter_map(|index| self.seqs.get(*index)).copied().collect(),
        }
    }
}

/// Whether the lock is free and the server found no next holder. A frozen server does not look for one, and a shared
/// name is free as long as it has room.
fn none_has_a_place(polled: &Polled, kind: Kind) -> bool {
    !kind.is_shared() && polled.holder.is_none() && polled.frozen_for.is_none() && !polled.more
}

fn next_after(polled: &Polled, sent: Instant, now: Instant, regular: Duration) -> Instant {
    // P7: as soon as the lease of a dead holder ends, the client that is first in line polls for the lock. If that
    // client is dead too, one of the others does a moment later.
    let head_start = if polled.first { Duration::ZERO } else { HEAD_START };
    let lease_left = polled.holder.as_ref().and_then(|holder| holder.lease_left);
    let lease_left = lease_left.or(polled.frozen_for).or(polled.room_in);
    let regular = sent + regular;
    lease_left.map_or(regular, |left| regular.min(now + left + AFTER_LEASE + head_start))
}

/// An attempt that the server has given a place.
pub struct NewWaiter<'a> {
    pub keys: &'a Arc<Keys>,
    pub slot: u16,
    pub entry: Id,
    pub owner_id: &'a Arc<str>,
    pub seq: Seq,
    pub floor: Floor,
    pub lease_left: Option<Duration>,
    /// The holder of the lock.
    pub holder: Option<Box<HeldBy>>,
    /// The lock is free, and the script has more places to look at.
    pub more: bool,
    pub belief: Belief,
}

/// Whether the server knew that this client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    Known,
    /// The server may have given the client up, and its places with it (R8).
    GivenUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Instant = Instant::from_micros(60_000_000);

    fn settings() -> Settings {
        Settings {
            client: "c".into(),
            prefix: "p".into(),
            operation_timeout: 2 * SECOND,
            waiter_ttl: 7 * SECOND,
            poll_interval: 2 * SECOND,
            grant_ttl: 3 * SECOND,
            first_lease: 5 * SECOND,
            token_ttl: 60 * SECOND,
            lease: 30 * SECOND,
            max_hold: None,
            in_flight: 4,
        }
    }

    fn floor() -> Floor {
        Floor { token: 7, asked: NOW, round_trip: SECOND / 10, epoch: Epoch::default() }
    }

    fn waiter<'a>(keys: &'a Arc<Keys>, owner_id: &'a Arc<str>, seq: u64) -> NewWaiter<'a> {
        NewWaiter {
            keys,
            slot: 0,
            entry: Slab::default().insert(()),
            owner_id,
            seq: Seq(seq),
            floor: floor(),
            lease_left: None,
            holder: None,
            more: false,
            belief: Belief::Known,
        }
    }

    fn add(queue: Option<Queue>, seq: u64, belief: Belief, lease_left: Option<Duration>) -> Queue {
        let (keys, owner_id) = (Arc::new(Keys::new("p", "x")), format!("c:{seq}").into());
        let new = NewWaiter { lease_left, belief, ..waiter(&keys, &owner_id, seq) };
        let regular = NOW + 2 * SECOND;
        let mut queue = queue.unwrap_or_else(|| Queue::new(&new, regular));
        queue.add(new, NOW, regular);
        queue
    }

    fn queue(waiters: u64) -> Queue {
        let queue = (1..=waiters).fold(None, |queue, seq| Some(add(queue, seq, Belief::Known, None)));
        queue.expect("somebody waits")
    }

    /// The number of tickets in each request of one round, before any answer.
    fn round(queue: &mut Queue, scope: Scope) -> Vec<usize> {
        queue.begin_round(NOW, 2 * SECOND, scope);
        let mut tickets = Vec::new();
        while queue.wants().is_some() {
            tickets.push(queue.carry(RequestNumber(tickets.len() as u64)).len());
        }
        tickets
    }

    fn polled(places: u64) -> Polled {
        let held_by = None;
        let holder = Some(PolledHolder { owner: "d:1".into(), attempt: 1, token: 8, lease_left: None });
        let granted = Vec::new();
        let (more, known, first, room_in, frozen_for) = (false, true, false, None, None);
        Polled {
            more,
            known,
            places,
            first,
            holder,
            held_by,
            granted,
            room_in,
            frozen_for,
            floor: 8,
            missing: Vec::new(),
        }
    }

    /// A queue with twenty waiters reads this answer. Returns whether its next round verifies all places.
    fn verifies_all_after(polled: Polled, asked: Instant) -> bool {
        let mut queue = queue(20);
        round(&mut queue, Scope::Full);
        let carried = queue.take(RequestNumber(0)).expect("it was asked");
        queue.read(&carried, polled, Floor { asked, ..floor() }, asked + SECOND / 10, &settings());
        queue.places == Places::Unsure
    }

    #[test]
    fn a_queue_lasts_as_long_as_its_waiters() {
        let (keys, owner_id, mut queues) = (Arc::new(Keys::new("p", "x")), "c:1".into(), Queues::default());
        let [id, same] = [1, 2].map(|seq| {
            let new = waiter(&keys, &owner_id, seq);
            let id = queues.for_waiter(&new, NOW);
            queues.get_mut(id).expect("it is there").add(new, NOW, NOW);
            id
        });
        assert_eq!(id, same);
        assert!(queues.remove_waiter(id, Seq(1)).is_none() && !queues.is_empty());
        assert!(queues.remove_waiter(id, Seq(2)).is_some() && queues.is_empty());
    }

    /// R8: a server that gives a client up drops its places too.
    #[test]
    fn a_waiter_whose_client_was_given_up_has_all_places_verified() {
        assert_eq!(add(Some(queue(1)), 2, Belief::Known, None).places, Places::Sure);
        assert_eq!(add(Some(queue(1)), 2, Belief::GivenUp, None).places, Places::Unsure);
        assert_eq!(add(None, 1, Belief::GivenUp, None).places, Places::Sure, "there are no others");
    }

    /// The round that verified the others did not carry its ticket, and its own answer may be older than the doubt.
    #[test]
    fn a_waiter_that_asked_before_a_doubt_has_all_places_verified() {
        let (keys, owner_id) = (Arc::new(Keys::new("p", "x")), "c:2".into());
        for (asked, places) in [(NOW, Places::Unsure), (NOW + SECOND, Places::Sure)] {
            let mut queue = queue(1);
            queue.verify_all(NOW);
            round(&mut queue, Scope::Full);
            let new = NewWaiter { floor: Floor { asked, ..floor() }, ..waiter(&keys, &owner_id, 2) };
            queue.add(new, NOW + SECOND, NOW + 2 * SECOND);
            assert_eq!(queue.places, places);
        }
    }

    /// P6: one poll does not look at all places.
    #[test]
    fn a_new_waiter_polls_at_once_if_the_lock_is_free_behind_more_places() {
        let (keys, owner_id) = (Arc::new(Keys::new("p", "x")), "c:2".into());
        let mut queue = queue(1);
        queue.add(NewWaiter { more: true, ..waiter(&keys, &owner_id, 2) }, NOW, NOW + 2 * SECOND);
        assert_eq!(queue.due(), Some(NOW));
    }

    /// P7: the poll comes when the lease of a dead holder ends, after the poll of a client that is first in line.
    #[test]
    fn a_new_waiter_polls_as_the_lease_of_the_holder_ends() {
        let due = add(None, 1, Belief::Known, Some(SECOND)).due();
        assert_eq!(due, Some(NOW + SECOND + AFTER_LEASE + HEAD_START));
        assert_eq!(add(None, 1, Belief::Known, Some(9 * SECOND)).due(), Some(NOW + 2 * SECOND));
    }

    #[test]
    fn a_poll_verifies_a_few_places_and_in_doubt_all_of_them_in_several_polls() {
        let mut queue = queue(300);
        assert_eq!(round(&mut queue, Scope::Full), [VERIFIED_IN_A_POLL]);
        queue.round = None;
        queue.verify_all(NOW);
        assert_eq!(round(&mut queue, Scope::AtOnce), [VERIFIED_IN_A_POLL]);
        queue.round = None;
        assert_eq!(round(&mut queue, Scope::Full), [128, 128, 44]);
        assert_eq!(queue.places, Places::Sure, "until there is another reason");
        let mut queue = self::queue(3000);
        queue.verify_all(NOW);
        assert_eq!(round(&mut queue, Scope::Full), [TICKETS_IN_A_POLL; POLLS_AT_ONCE]);
    }

    /// A queue with two waiters reads this answer to its first poll.
    fn read(polled: Polled) -> (Queue, News) {
        let mut queue = queue(2);
        round(&mut queue, Scope::Full);
        let carried = queue.take(RequestNumber(0)).expect("it was asked");
        let news = queue.read(&carried, polled, floor(), NOW, &settings());
        (queue, news)
    }

    /// P6: one poll does not look at all places.
    #[test]
    fn a_free_lock_with_more_places_is_polled_for_again_at_once() {
        let free = Polled { holder: None, ..polled(2) };
        let (queue, news) = read(Polled { more: true, ..free.clone() });
        assert!(matches!(news, News::Polled { without, .. } if without.is_empty()));
        assert_eq!(queue.due(), Some(NOW));
        // There are no other waiters, so these have lost their places.
        let (_, news) = read(free);
        assert!(matches!(news, News::Polled { without, .. } if without.len() == 2));
    }

    /// Each round has the oldest tickets, and the rotation comes to each of the others.
    #[test]
    fn the_places_are_verified_in_rotation() {
        let mut queue = queue(40);
        let mut seen: Vec<_> = (0..3).flat_map(|_| queue.some_in_rotation()).collect();
        assert_eq!(seen[..4], [1, 2, 3, 4].map(Seq));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 36, "thrice twelve, which begin with the oldest");
    }

    #[test]
    fn an_answer_that_leaves_a_doubt_has_all_places_verified() {
        let soon = NOW + SECOND;
        assert!(!verifies_all_after(polled(20), soon));
        assert!(verifies_all_after(polled(19), soon), "fewer have a place than wait");
        assert!(verifies_all_after(Polled { known: false, ..polled(20) }, soon), "the server gave the client up");
        assert!(
            verifies_all_after(Polled { holder: None, ..polled(20) }, soon),
            "nobody was served, though all is free"
        );
        assert!(verifies_all_after(Polled { missing: vec![3], ..polled(20) }, soon));
        // One of the waiters has the lock.
        let ours = Some(PolledHolder { owner: "c:1".into(), attempt: 1, token: 8, lease_left: None });
        assert!(!verifies_all_after(Polled { holder: ours, ..polled(19) }, soon));
        // A grant may have come and gone since the last answer.
        assert!(!verifies_all_after(polled(20), NOW + 4 * SECOND));
        assert!(verifies_all_after(polled(20), NOW + 5 * SECOND));
    }

    #[test]
    fn a_round_lasts_until_its_last_answer() {
        let mut queue = queue(300);
        queue.verify_all(NOW);
        let requests = round(&mut queue, Scope::Full).len() as u64;
        for number in (0..requests).map(RequestNumber) {
            assert_eq!(queue.due(), None);
            let carried = queue.take(number).expect("it was asked");
            queue.read(&carried, polled(300), floor(), NOW, &settings());
        }
        assert!(queue.due().is_some());
    }

    #[test]
    fn a_poll_without_an_answer_is_repeated_after_a_pause() {
        let mut queue = queue(1);
        round(&mut queue, Scope::Full);
        queue.take(RequestNumber(0));
        queue.unanswered(None, NOW + SECOND);
        assert_eq!((queue.due(), queue.places), (Some(NOW + SECOND + POLL_RETRY), Places::Unsure));
    }

    /// P7: the client that is first in line asks first.
    #[test]
    fn the_next_poll_comes_as_the_lease_of_the_holder_ends() {
        let due = |first| {
            let mut queue = queue(1);
            round(&mut queue, Scope::Full);
            let carried = queue.take(RequestNumber(0)).expect("it was asked");
            let mut polled = Polled { first, ..polled(1) };
            polled.holder.iter_mut().for_each(|holder| holder.lease_left = Some(SECOND / 2));
            queue.read(&carried, polled, floor(), NOW, &settings());
            queue.due()
        };
        assert_eq!(due(true), Some(NOW + SECOND / 2 + AFTER_LEASE));
        assert_eq!(due(false), Some(NOW + SECOND / 2 + AFTER_LEASE + HEAD_START));
    }
}
