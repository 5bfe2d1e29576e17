//! The data under the mutex: the machine, the slots that callers read, and the requests to send.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use fairlock_proto::effect::{DetachOutcome, Effect, HoldId, Note, Outcome, Way};
use fairlock_proto::error::{CallError, ChangeError, Ended, Loss, RequestError, UnlockError, Unlocked};
use fairlock_proto::event::{CallId, Connection, Event, LinkEvent, NodeId, RequestId};
use fairlock_proto::held_by::HeldBy;
use fairlock_proto::question::Finding;
use fairlock_proto::request::Request;
use fairlock_proto::session::Session;
use fairlock_proto::settings::Settings;
use fairlock_proto::slab::Slab;
use fairlock_proto::slots::Topology;
use fairlock_proto::stages::entry::Stage;
use fairlock_proto::time::Instant as Moment;

use super::after::{After, Report};
use super::clock::LocalClock;
use super::error;
use super::hold::{About, DrivenHold};
use super::observe::CallerSpan;
use super::slots;
use crate::store::Store;

pub struct Shared {
    clock: LocalClock,
    session: Session,
    slots: Slab<Slot>,
    holds: BTreeMap<HoldId, Arc<DrivenHold>>,
    /// In the order in which they go out.
    outbox: Vec<(RequestId, Request)>,
    /// Empty between two steps; kept for its capacity.
    effects: Vec<Effect>,
    /// When the task will come next, unless something wakes it earlier.
    planned: Option<Moment>,
    connections: BTreeMap<NodeId, u32>,
    /// Moved slots that the machine does not know of yet. Few, because after each move the courier runs and takes all.
    moved: Vec<RangeInclusive<u16>>,
}

/// The data that a caller reads. Removed with the last outcome, or when the caller is gone.
pub struct Slot {
    /// `None`: the call does not ask for a guard.
    about: Option<Arc<About>>,
    hold: Option<Arc<DrivenHold>>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    attention: Attention,
    /// `None`: the log does not mention the wait.
    span: Option<CallerSpan>,
}

impl Slot {
    /// Wakes a caller that may now read an outcome that it could not read before.
    fn looks_again(&mut self, after: &mut After) {
        if self.outcome.is_some() {
            after.wakes(self.waker.take());
        }
    }

    fn in_line(&self) -> Option<Report> {
        Some(Report::InLine(self.about.clone()?, self.span.clone()?))
    }
}

/// Whether a waiting caller was ever polled for a reason other than its wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attention {
    Undisturbed,
    Disturbed,
}

/// A guard's share of a hold.
pub struct Granted {
    pub hold: Arc<DrivenHold>,
    pub way: Way,
    pub weight: u32,
}

/// The outcome of a call or of an unlock.
pub enum Answered {
    Granted(Granted),
    Busy(Option<Box<HeldBy>>),
    Failed(CallError),
    PassedOver,
    Unlocked(Result<Unlocked, UnlockError>),
    Extended(Result<(), ChangeError>),
    Detached(DetachOutcome),
    Found(Result<Finding, RequestError>),
}

impl Shared {
    pub fn new(settings: Settings, topology: Topology, clock: LocalClock) -> Self {
        Self {
            clock,
            session: Session::new(settings, topology),
            slots: Slab::default(),
            holds: BTreeMap::new(),
            outbox: Vec::new(),
            effects: Vec::new(),
            planned: None,
            connections: BTreeMap::new(),
            moved: Vec::new(),
        }
    }

    pub fn next_connection(&mut self, node: NodeId) -> Connection {
        let number = self.connections.entry(node).or_default();
        *number += 1;
        Connection { node, number: *number }
    }

    pub fn connection(&self, node: NodeId) -> Connection {
        Connection { node, number: self.connections.get(&node).copied().unwrap_or(0) }
    }

    pub fn slots_moved(&mut self, slots: RangeInclusive<u16>) {
        self.moved.push(slots);
    }

    /// Notifies the machine of slots that another server has now.
    pub fn tell_of_moves(&mut self, store: &dyn Store, after: &mut After) {
        while let Some(slots) = self.moved.pop() {
            for (run, node) in slots::moves(slots, |slot| store.seat_of(slot), |slot| self.session.serving(slot)) {
                self.step(Event::Link(LinkEvent::Serves(node, run)), after);
            }
        }
    }

    pub fn step(&mut self, event: Event<'_>, after: &mut After) {
        let now = self.clock.now();
        self.guarded(now, after, |session, effects| session.step(now, event, effects));
        let next = self.session.next_timer();
        after.is_sooner |= next.is_some_and(|next| self.planned.is_none_or(|planned| next < planned));
        after.sends |= !self.outbox.is_empty();
    }

    /// A panic in the machine is a bug of this library. Nothing that the machine knows is reliable afterwards.
    fn guarded(&mut self, now: Moment, after: &mut After, step: impl FnOnce(&mut Session, &mut Vec<Effect>)) {
        let mut effects = std::mem::take(&mut self.effects);
        let step = AssertUnwindSafe(|| step(&mut self.session, &mut effects));
        if catch_unwind(step).is_err() {
            effects.clear();
            self.begin_closed(now, &mut effects, after);
        }
        // Pops from the end, which moves no elements.
        effects.reverse();
        while let Some(effect) = effects.pop() {
            self.take(now, effect, after);
        }
        self.effects = effects;
    }

    /// Replaces the machine by a closed one, and ends every hold and every call (P8).
    fn begin_closed(&mut self, now: Moment, effects: &mut Vec<Effect>, after: &mut After) {
        self.session = Session::new(self.session.settings().clone(), Topology::OneServer);
        self.session.step(now, Event::Close, effects);
        self.outbox.clear();
        for hold in std::mem::take(&mut self.holds).into_values() {
            hold.ends(error::CLOSED);
            after.reports.push(Report::Ended(hold, Ended::Lost(Loss::Closed)));
        }
        for slot in self.slots.iter_mut() {
            slot.outcome = Some(Outcome::Failed(CallError::Closed));
            after.wakes(slot.waker.take());
        }
        after.reports.push(Report::Panicked);
    }

    fn take(&mut self, now: Moment, effect: Effect, after: &mut After) {
        match effect {
            Effect::Send(id, _, request) => self.outbox.push((id, request)),
            Effect::Tell(call, outcome) => self.tell(now, call, outcome, after),
            Effect::Valid(call, until) => {
                if let Some(slot) = self.slots.get_mut(call.0) {
                    slot.hold.iter().for_each(|hold| hold.extends(until));
                    slot.looks_again(after);
                }
            }
            // `Effect::Ended` notifies the watchers of all guards together.
            Effect::Lost(call, _) => self.slots.get_mut(call.0).into_iter().for_each(|slot| slot.looks_again(after)),
            Effect::Ended(hold, ended) => {
                if let Some(hold) = self.holds.remove(&hold) {
                    hold.ends(error::ended(ended));
                    after.reports.push(Report::Ended(hold, ended));
                }
            }
            Effect::Wanted(node) => after.reports.push(Report::Wanted(node)),
            Effect::Suspect(connection) => after.reports.push(Report::Suspect(connection.node)),
            Effect::Note(Note::IsQueued(call)) => {
                after.reports.extend(self.slots.get(call.0).and_then(Slot::in_line));
            }
            Effect::Note(note) => after.reports.push(Report::Note(note)),
            Effect::Closed { unfinished } => {
                after.closed = Some(unfinished);
                self.forget_holds(after);
            }
        }
    }

    fn tell(&mut self, now: Moment, call: CallId, outcome: Outcome, after: &mut After) {
        let Some(slot) = self.slots.get_mut(call.0) else { return };
        if let (Outcome::Granted { token, hold, until, .. }, Some(about)) = (&outcome, &slot.about) {
            let (token, hold, until) = (*token, *hold, *until);
            let begin = || Arc::new(DrivenHold::begin(token, about.clone(), now, until, self.clock));
            let hold = self.holds.entry(hold).or_insert_with(begin);
            hold.extends(until);
            slot.hold = Some(hold.clone());
        }
        if matches!(outcome, Outcome::PassedOver) {
            after.reports.extend(slot.about.clone().map(Report::PassedOver));
        }
        slot.outcome = Some(outcome);
        after.wakes(slot.waker.take());
    }

    /// No answer will come any more. Ends the holds without guards; a hold with guards ends at its deadline, even if
    /// one of them is being detached.
    fn forget_holds(&mut self, after: &mut After) {
        let guards = self.slots.iter_mut().filter(|slot| slot.outcome.is_none()).filter_map(|slot| slot.hold.as_ref());
        let held: BTreeSet<_> = guards.map(Arc::as_ptr).collect();
        let is_held = |hold: &Arc<DrivenHold>| held.contains(&Arc::as_ptr(hold));
        let (kept, forgotten) = std::mem::take(&mut self.holds).into_iter().partition(|(_, hold)| is_held(hold));
        self.holds = kept;
        for hold in BTreeMap::into_values(forgotten) {
            hold.ends(error::ended(Ended::Unconfirmed));
            after.reports.push(Report::Ended(hold, Ended::Unconfirmed));
        }
    }

    /// Begins a call with an event. Returns its outcome if it is there at once; otherwise the outcome wakes the waker.
    pub fn begin(
        &mut self,
        about: Option<Arc<About>>,
        span: Option<CallerSpan>,
        waker: Waker,
        event: impl FnOnce(CallId) -> Event<'static>,
        after: &mut After,
    ) -> (CallId, Option<Answered>) {
        let (waker, attention) = (Some(waker), Attention::Undisturbed);
        let call = CallId(self.slots.insert(Slot { about, hold: None, outcome: None, waker, attention, span }));
        self.step(event(call), after);
        (call, self.read(call, after))
    }

    /// Takes the outcome of a call, or keeps the waker for it.
    pub fn wait(&mut self, call: CallId, waker: Waker, after: &mut After) -> Option<Answered> {
        let answered = self.read(call, after);
        let Some(slot) = self.slots.get_mut(call.0).filter(|_| answered.is_none()) else { return answered };
        let before = slot.waker.replace(waker);
        let was_woken = before.is_none();
        after.drops(before);
        // Something polled the task during the wait, but not for the wait: it has other work.
        if !was_woken && slot.attention == Attention::Undisturbed {
            slot.attention = Attention::Disturbed;
            self.step(Event::Disturbed(call), after);
        }
        None
    }

    /// Takes the outcome of a call, if it is there.
    pub fn read(&mut self, call: CallId, after: &mut After) -> Option<Answered> {
        let slot = self.slots.get_mut(call.0)?;
        let outcome = slot.outcome.take()?;
        if let (Outcome::Granted { way, weight, .. }, Some(hold)) = (&outcome, &slot.hold) {
            if let Some(answered) = ended_before_its_claim(hold) {
                drop(self.gone(call, after));
                return Some(answered);
            }
            if self.session.is_doubted(call) {
                slot.outcome = Some(outcome);
                return None;
            }
            let answered = Answered::Granted(Granted { hold: hold.clone(), way: *way, weight: *weight });
            self.step(Event::Claimed(call), after);
            return Some(answered);
        }
        self.slots.discard(call.0);
        Some(match outcome {
            Outcome::Granted { .. } | Outcome::PassedOver => Answered::PassedOver,
            Outcome::Busy(holder) => Answered::Busy(holder),
            Outcome::Failed(error) => Answered::Failed(error),
            Outcome::Unlocked(outcome) => Answered::Unlocked(outcome),
            Outcome::Extended(outcome) => Answered::Extended(outcome),
            Outcome::Detached(outcome) => Answered::Detached(outcome),
            Outcome::Answered(outcome) => Answered::Found(outcome),
        })
    }

    /// Returns the slot, which the caller must drop when the mutex is free.
    pub fn gone(&mut self, call: CallId, after: &mut After) -> Option<Slot> {
        self.step(Event::Gone(call), after);
        let mut slot = self.slots.remove(call.0)?;
        let unread = slot.outcome.take_if(|outcome| matches!(outcome, Outcome::Detached(_)));
        if let Some(Outcome::Detached(DetachOutcome::Done(handle) | DetachOutcome::Unanswered(handle, _))) = unread {
            self.step(Event::Unread(handle), after);
        }
        Some(slot)
    }

    pub fn unlock(&mut self, call: CallId, waker: Waker, after: &mut After) -> Option<Answered> {
        after.drops(self.slots.get_mut(call.0)?.waker.replace(waker));
        self.step(Event::Unlock(call), after);
        self.read(call, after)
    }

    /// Swaps the requests to send for an empty list.
    pub fn swap_outbox(&mut self, outbox: &mut Vec<(RequestId, Request)>) {
        std::mem::swap(&mut self.outbox, outbox);
    }

    /// Handles everything that is due, and returns when the task should come next. Keeps a plan that lies ahead, even
    /// if its reason has gone: it costs less to come once too often.
    pub fn time(&mut self, after: &mut After) -> Option<Moment> {
        let now = self.clock.now();
        if self.is_due() {
            self.step(Event::Time, after);
        }
        let ahead = self.planned.filter(|planned| *planned > now);
        self.planned = self.session.next_timer().into_iter().chain(ahead).min();
        after.is_sooner = false;
        self.planned
    }

    /// When the machine needs `Event::Time`.
    pub fn next_timer(&self) -> Option<Moment> {
        self.session.next_timer()
    }

    pub fn is_due(&self) -> bool {
        self.session.next_timer().is_some_and(|due| due <= self.clock.now())
    }

    pub fn has_holds(&self) -> bool {
        !self.holds.is_empty()
    }

    pub fn holds(&self, lock_key: &str) -> Vec<Arc<DrivenHold>> {
        self.holds.values().filter(|hold| *hold.entry.keys.lock == *lock_key).cloned().collect()
    }

    pub fn stage_at(&self, owner: u64, lock_key: &Arc<str>) -> &Stage {
        self.session.stage_at(owner, lock_key)
    }

    pub fn server_micros(&self, node: NodeId) -> i64 {
        self.session.server_micros(self.clock.now(), node)
    }

    /// How many releases and leaves are unanswered.
    pub fn unfinished(&self) -> usize {
        self.session.unfinished()
    }

    pub fn holds_left(&self) -> usize {
        self.holds.len()
    }

    /// The holds that a guard relies on.
    pub fn valid_holds(&self) -> Vec<Arc<DrivenHold>> {
        self.holds.values().filter(|hold| hold.is_valid()).cloned().collect()
    }
}

/// The outcome for a caller whose hold ended before the caller read its grant.
fn ended_before_its_claim(hold: &DrivenHold) -> Option<Answered> {
    Some(match hold.end()? {
        error::CLOSED => Answered::Failed(CallError::Closed),
        // Someone ended it by force, and the caller should learn that from its guard.
        error::FORCED if hold.live() == 0 => return None,
        // The call would have re-entered it.
        _ if hold.live() > 0 => Answered::Failed(CallError::Lost),
        _ => Answered::PassedOver,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairlock_proto::canonical::Seq;
    use fairlock_proto::event::{Lease, Manner, Scope};
    use fairlock_proto::keys::Keys;
    use fairlock_proto::request::{Answer, Reply};
    use fairlock_proto::requests::acquire::Acquired;
    use fairlock_proto::requests::renew::Renewed;
    use fairlock_proto::time::ServerTime;

    use super::super::settings;
    use super::*;
    use crate::driver::owner::Owner;
    use crate::driver::task_or_thread::TaskOrThread;
    use crate::metrics::{Metrics, MetricsOptions};
    use crate::store::clock::now;
    use crate::store::options::Options;

    const LEASE: Lease = Lease::Renewed(Duration::from_secs(30));

    fn shared(clock: LocalClock) -> Shared {
        Shared::new(settings::of("c", &Options::default()), Topology::OneServer, clock)
    }

    fn about() -> Arc<About> {
        Arc::new(About {
            keys: Arc::new(Keys::new("p", "x")),
            owner: Owner::new(),
            owner_id: "c:1".into(),
            terms: "5000/".into(),
            metrics: Metrics::new(&MetricsOptions::default(), None).of_lock("x"),
            began: now(),
            scope: Scope::Call,
            task: TaskOrThread::current(),
            manner: Manner::Waits { limit: None },
            lease: LEASE,
            weight: 1,
            is_node: false,
        })
    }

    fn call(shared: &mut Shared, after: &mut After) -> (CallId, Option<Answered>) {
        let about = about();
        let want = about.want();
        shared.begin(Some(about), None, Waker::noop().clone(), |call| Event::Call(call, want), after)
    }

    fn connect(shared: &mut Shared, after: &mut After) {
        let connection = shared.next_connection(NodeId(0));
        let server_micros = Some(1_700_000_000_000_000);
        let frozen_until = ServerTime::default();
        shared.step(Event::Link(LinkEvent::Up { connection, server_micros, frozen_until }), after);
    }

    fn answer(shared: &mut Shared, answer: Answer, after: &mut After) {
        let (id, _) = shared.outbox.pop().unwrap();
        shared.step(Event::Replied(id, Ok(Reply { server_micros: None, answer })), after);
    }

    /// A connected client, and a call to which the server has granted the lock.
    fn granted(after: &mut After) -> (Shared, CallId) {
        let mut shared = shared(LocalClock::new());
        connect(&mut shared, after);
        let (call, outcome) = call(&mut shared, after);
        assert!(outcome.is_none());
        let acquired = Acquired::Held { token: 7, holds: 1, lease_left: LEASE.length() };
        answer(&mut shared, Answer::Acquired(acquired), after);
        (shared, call)
    }

    /// R15: after a reconnect, the server must confirm an earlier grant before its caller relies on it.
    #[test]
    fn a_grant_from_before_a_new_connection_is_read_when_the_server_has_confirmed_it() {
        let mut after = After::default();
        let (mut shared, call) = granted(&mut after);
        connect(&mut shared, &mut after);
        assert!(shared.read(call, &mut after).is_none());
        let lease_left = LEASE.length();
        answer(&mut shared, Answer::Renewed(Renewed::Renewed { lease_left }), &mut after);
        assert!(matches!(shared.read(call, &mut after), Some(Answered::Granted(granted)) if granted.hold.token == 7));
    }

    /// A client whose background nothing drives asks for this number.
    #[test]
    fn a_leave_without_an_answer_is_unfinished_although_its_hold_has_ended() {
        let mut after = After::default();
        let (mut shared, guard) = granted(&mut after);
        assert!(shared.read(guard, &mut after).is_some());
        shared.step(Event::Close, &mut after);
        assert_eq!((shared.holds_left(), shared.unfinished()), (0, 1));
    }

    /// The holder never learned of the end. Found by the simulator, seed 75.
    #[test]
    fn what_is_being_detached_as_the_runtime_ends_is_held_until_its_deadline() {
        let mut after = After::default();
        let (mut shared, guard) = granted(&mut after);
        let Some(Answered::Granted(Granted { hold, .. })) = shared.read(guard, &mut after) else { panic!("it has it") };
        hold.is_claimed();
        let _unreliable = hold.is_not_relied_on();
        shared.step(Event::RuntimeGone, &mut after);
        assert_eq!(shared.holds_left(), 1);
    }

    #[test]
    fn a_panic_of_the_machine_ends_each_hold_and_each_call() {
        let clock = LocalClock::new();
        let (mut shared, mut after) = (shared(clock), After::default());
        let hold = Arc::new(DrivenHold::begin(7, about(), clock.now(), clock.now() + LEASE.length(), clock));
        hold.is_claimed();
        shared.holds.insert(HoldId(Seq(1)), hold.clone());
        let (waiting, outcome) = call(&mut shared, &mut after);
        assert!(outcome.is_none() && hold.is_valid());
        shared.guarded(clock.now(), &mut after, |_, _| panic!("a bug"));
        assert!(!hold.is_valid() && hold.end() == Some(error::CLOSED));
        assert!(matches!(shared.read(waiting, &mut after), Some(Answered::Failed(CallError::Closed))));
        assert_eq!(after.closed, Some(0));
        let (_, outcome) = call(&mut shared, &mut after);
        assert!(matches!(outcome, Some(Answered::Failed(CallError::Closed))), "it is closed");
    }
}
