//! The holds of this process: how many guards, until when, and whether it is lost.
//!
//! A [`Hold`] is what one owner has at one lock between a free -> held and its end. Counts are set on
//! the server, never added to or subtracted from, so a retry does no harm (P4).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use fairlock_proto::keys::{Share, place};
use fairlock_proto::requests::leave::Leave;
use fairlock_proto::requests::renew::Only;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use super::cleanup::{self, LeaveRequest};
use super::context::Context;
use super::detached::DetachRefusal;
use super::error::{Ended, Loss};
use super::lease;
use super::observe::{Holding, Lost, Who};
use super::owner::Owner;
use super::owners::{OwnerEntry, OwnerTable};
use super::schedule::Schedule;
use super::task_or_thread::TaskOrThread;
use crate::store::admission::PATIENCE;
use crate::store::clock::now;
use crate::store::options::OptionsError;
use crate::store::runtime::log_line;
use crate::sync::Mutex;

/// One owner at one lock.
pub type Entry = OwnerEntry<Hold>;

/// All holds of one client.
pub struct Holds {
    pub context: Arc<Context>,
    pub owners: Arc<OwnerTable<Hold>>,
    /// When the watchdog renews which hold.
    pub schedule: Schedule<Hold>,
    /// Grows when the server may have forgotten holds: a new connection, gained slots.
    doubts: AtomicU64,
}

impl Holds {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            context,
            owners: Arc::new(OwnerTable::new()),
            schedule: Schedule::default(),
            doubts: AtomicU64::new(0),
        })
    }

    /// All holds are doubted until the server has answered a request about them that is sent after this.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }

    /// To be read before a request is sent.
    pub fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::SeqCst)
    }

    /// The server reports that this hold was ended by force.
    pub fn revoked(&self, lock_key: &str, owner_id: &str, token: u64) {
        let hold = Owner::of_id(owner_id).and_then(|owner| self.owners.hold_of(lock_key, owner));
        // The message may be late: a newer hold of the same owner has another token.
        if let Some(hold) = hold.filter(|hold| hold.token == token) {
            hold.lose(Loss::Forced);
        }
    }
}

/// How a hold begins.
pub struct NewHold {
    pub token: u64,
    /// The attempt that got it.
    pub attempt: u64,
    /// The terms of its place in the queue, see `keys::terms`.
    pub terms: Arc<str>,
    pub was_queued: bool,
    pub deadline: Instant,
    /// When the request that gave this deadline was sent. `None` for a trusted push, which is to be
    /// renewed soon.
    pub renewed: Option<Instant>,
    pub lease: Duration,
    /// Renewed by the watchdog until the last guard is gone; otherwise the lease is fixed.
    pub watched: bool,
    /// [`Holds::doubts`] before the request was sent whose answer began it.
    pub doubts: u64,
    /// Part of a call for several names: see [`Hold::keep`].
    pub is_part: bool,
    /// Server time until which a copy of the acquire may still be under way; 0: none is.
    pub copies_until: i64,
    /// Outside of a scope it is never re-entered, so a wait for it in the same task is a mistake.
    pub scoped: bool,
    /// What its first guard has of the name.
    pub share: Share,
    pub holding: Holding,
}

/// Between free -> held and the end of it.
pub struct Hold {
    holds: Arc<Holds>,
    pub entry: Arc<Entry>,
    pub token: u64,
    pub attempt: u64,
    pub terms: Arc<str>,
    /// It was handed over to a place in the queue.
    pub was_queued: bool,
    pub began: Instant,
    /// The first guard's. Nested guards share it.
    pub lease: Duration,
    /// The lease is renewed, not fixed.
    pub watched: bool,
    pub holder: TaskOrThread,
    pub scoped: bool,
    /// The warning about a task that waits for itself was given.
    warned: AtomicBool,
    /// Its span and metrics.
    pub holding: Holding,
    /// Cancelled when the hold has ended, or nothing more will be known of it: all its watchers end.
    pub over: CancellationToken,
    /// Set when the final unlock is sent, or the hold has ended: a renewal under way ends. A token would be one more
    /// allocation for each hold.
    pub done: SetOnce<()>,
    /// Called at its end: for the hold on several servers that it is a part of, if any.
    pub at_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
    state: Mutex<HoldState>,
}

struct HoldState {
    /// Guards alive.
    live: u32,
    /// The number of these guards that write.
    writers: u32,
    /// What it shall have of the name, see [`Share`].
    weight: u32,
    /// Holds that the server counts; `None` while a request about it has no answer.
    on_server: Option<u32>,
    /// The weight that the server has answered for. It changes only with the number of holds.
    weight_on_server: u32,
    // Local clock, less the drift (R5). It never moves back.
    deadline: Instant,
    // `None` until the server has set the lease that we want: see `NewHold`.
    renewed: Option<Instant>,
    /// [`Holds::doubts`] before the last answered request was sent.
    doubts: u64,
    /// The doubts up to here are answered by its own place on the schedule, and by no check: see [`Hold::begin`].
    owed: u64,
    /// How many of these guards belong to calls that do not have yet all that they want.
    parts: u32,
    /// Until when such a call wants it.
    wanted_until: Instant,
    /// From when `max_hold` counts: since the first guard whose call has all that it wants.
    whole_since: Option<Instant>,
    /// The longest lease that the server was asked for.
    longest_lease: Duration,
    detaching: DetachStage,
    /// When a renewal last kept the memory of the token.
    remembered: Instant,
    /// All guards ended in time, and the outcome of the release will stay unknown.
    forgotten: bool,
    /// It was lost while all guards were of such calls. Who had a guard before has given it back in time.
    given_back: bool,
    /// When its last guard ended.
    released: Option<Instant>,
    /// A release is sent beside the request that has the turn: see [`Hold::take_over`].
    taken_over: bool,
    /// Its last release is sent by a task in the background, until there is an answer.
    in_background: bool,
    /// Where the hold is in the watchdog's schedule.
    due: Option<Instant>,
    // The acquire's. The request that ends the hold carries it, for the tombstone (R3).
    copies_until: i64,
    // Set once. The holder may have acted on it, so a later reason does not replace it.
    end: Option<End>,
}

/// Whether a handle is about to become the owner. The guard is not relied on from then on (R16).
#[derive(Clone, Copy, PartialEq, Eq)]
enum DetachStage {
    No,
    /// The call waits for its owner's turn. It may rest, so it costs others a lease, as a part does (P6).
    Waits,
    /// The server may have been asked: nothing is renewed any more.
    Asks,
}

impl HoldState {
    fn count(&self) -> Count {
        if self.live == 0 { Count::NONE } else { Count { holds: self.live, weight: self.weight } }
    }

    /// Not by calls that do not have yet all that they want: these begin anew.
    fn is_relied_on(&self) -> bool {
        self.live > self.parts
    }

    /// All guards are of such calls, whose futures may rest.
    fn is_part(&self) -> bool {
        self.live > 0 && !self.is_relied_on()
    }

    /// Who relied on this hold, if it is found lost now.
    fn reliance(&self, loss: Loss) -> Reliance {
        if self.is_relied_on() {
            return Reliance::Guards;
        }
        // Released before its lease was over, and not there: it was lost before that. After the lease, the release came late.
        let was_lost_before = self.live == 0 && loss == Loss::Gone && now() < self.deadline;
        if was_lost_before { Reliance::PastGuards } else { Reliance::Nobody }
    }

    fn end_writing(&mut self, is_writer: bool) {
        self.writers -= u32::from(is_writer);
        if is_writer && self.writers == 0 {
            self.weight = Share::READER.weight;
        }
    }
}

/// Who relied on a hold when it was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reliance {
    Guards,
    /// Guards that have ended by now: `unlock` reports the loss to its caller.
    PastGuards,
    Nobody,
}

/// What a server counts of a hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub holds: u32,
    pub weight: u32,
}

impl Count {
    pub const NONE: Self = Self { holds: 0, weight: 0 };
}

/// The watchdog's next request.
#[derive(Clone, Copy)]
pub struct Question {
    /// To be set, if less is left.
    pub lease: Duration,
    /// For the first question after a trusted push, which sets the wanted lease even if it is shorter; see renew.lua.
    pub only: Only,
    /// [`Holds::doubts`] before it was sent.
    pub doubts: u64,
}

/// How a hold ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Freed,
    /// A handle has it.
    Detached,
    Lost(Loss),
}

impl Hold {
    /// A hold with its first guard counted, on the watchdog's schedule if it is to be renewed.
    pub fn begin(holds: &Arc<Holds>, entry: &Arc<Entry>, new: NewHold) -> Arc<Self> {
        let began = now();
        let hold = Arc::new(Self {
            holds: holds.clone(),
            entry: entry.clone(),
            token: new.token,
            attempt: new.attempt,
            terms: new.terms,
            was_queued: new.was_queued,
            began,
            lease: new.lease,
            watched: new.watched,
            holder: TaskOrThread::current(),
            scoped: new.scoped,
            warned: AtomicBool::new(false),
            holding: new.holding,
            over: CancellationToken::new(),
            done: SetOnce::new(),
            at_end: OnceLock::new(),
            state: Mutex::new(HoldState {
                live: 1,
                writers: (new.share == Share::WRITER).into(),
                weight: new.share.weight,
                on_server: Some(1),
                weight_on_server: new.share.weight,
                deadline: new.deadline,
                renewed: new.renewed,
                doubts: new.doubts,
                owed: 0,
                parts: new.is_part.into(),
                wanted_until: began + new.lease,
                whole_since: (!new.is_part).then_some(began),
                longest_lease: new.lease,
                detaching: DetachStage::No,
                remembered: began,
                forgotten: false,
                given_back: false,
                released: None,
                taken_over: false,
                in_background: false,
                due: None,
                copies_until: new.copies_until,
                end: None,
            }),
        });
        // Before `begin` returns: revocations and `close` look in the table, and the caller then asks
        // its waiter what came earlier.
        entry.set_hold(&hold);
        // P1: no doubt is missed. A doubt from before this line is owed an answer; a later doubt is followed by a
        // check, which looks in the table and finds this hold. What that check asks without an answer is owed too, so
        // the answer to an earlier renewal takes nothing off the schedule. A renewal that is under way when a doubt
        // arises owes nothing: with many holds, and slots that come one by one, it would never end (E1).
        hold.state.lock().owed = holds.doubts();
        hold.schedule(false);
        hold
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.holds.context
    }

    pub fn is_valid(&self) -> bool {
        self.valid_for() > Duration::ZERO
    }

    pub fn valid_for(&self) -> Duration {
        let state = self.state.lock();
        // Without guards a release is on its way, and the next holder may have the lock already.
        let over = state.end.is_some() || state.live == 0 || state.detaching != DetachStage::No;
        if over { Duration::ZERO } else { state.deadline.saturating_duration_since(now()) }
    }

    /// How it ended, as far as it has been noticed; see [`expire_if_due`](Self::expire_if_due).
    pub fn end(&self) -> Option<End> {
        let state = self.state.lock();
        if state.given_back { Some(End::Freed) } else { state.end }
    }

    /// Loses the hold if its deadline has passed, then returns how it ended. The watchdog may be late
    /// under load: a caller that is about to rely on the hold must not wait for it (P8).
    pub fn expire_if_due(&self) -> Option<End> {
        self.expire_if_due_at(now())
    }

    fn expire_if_due_at(&self, at: Instant) -> Option<End> {
        let overdue = {
            let state = self.state.lock();
            // A detach under way is served in time, or not at all.
            state.end.is_none() && state.deadline <= at && state.detaching != DetachStage::Asks
        };
        if overdue {
            self.lose(Loss::Expired);
        }
        self.end()
    }

    /// Whether a nested call comes too late for it. Without guards it is being released, so its deadline is no loss.
    pub fn is_over(&self) -> bool {
        if self.live() > 0 { self.expire_if_due().is_some() } else { self.end().is_some() || self.deadline() <= now() }
    }

    /// Whether its last guard ended before its lease did.
    pub fn was_released_in_time(&self) -> bool {
        let state = self.state.lock();
        state.released.is_some_and(|at| at < state.deadline)
    }

    /// How it ended, for outside watchers. At its deadline it is lost while there are guards; without guards it was released
    /// in time, and only the server's answer is missing.
    pub fn ended(&self) -> Option<Ended> {
        let end = if self.live() > 0 { self.expire_if_due() } else { self.end() };
        match end {
            // Said once, it stays so: what a late release finds is known to its caller alone.
            _ if self.state.lock().forgotten => Some(Ended::Freed),
            Some(End::Lost(loss)) => Some(Ended::Lost(loss)),
            Some(End::Freed) => Some(Ended::Freed),
            Some(End::Detached) => Some(Ended::Detached),
            None => None,
        }
    }

    /// Cancelled when it has ended.
    pub fn over_token(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Resolves when it has ended.
    pub async fn until_ended(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.over.cancelled().await;
        }
    }

    pub fn live(&self) -> u32 {
        self.state.lock().live
    }

    /// Whether there is a guard of a call that has all that it wants.
    pub fn is_relied_on(&self) -> bool {
        self.state.lock().is_relied_on()
    }

    pub fn deadline(&self) -> Instant {
        self.state.lock().deadline
    }

    /// The server has answered what was asked, when the request was sent at `sent`: the lease is good until `deadline`.
    pub fn extend(&self, question: Question, sent: Instant, deadline: Instant) {
        let mut state = self.state.lock();
        // A renewal that was served late may have left it more than `max_hold` has. The end of a part moves on.
        let last = self.held_until(&state);
        let deadline = last.map_or(deadline, |last| deadline.min(last));
        // Answers may overtake each other: an older one must not take back what a newer one gave.
        state.deadline = state.deadline.max(deadline);
        state.renewed = state.renewed.max(Some(sent));
        state.doubts = state.doubts.max(question.doubts);
    }

    /// Counts one more guard. False when the hold was lost while the answer was on its way.
    #[must_use]
    pub fn enter(self: &Arc<Self>, on_server: u32, share: Share, is_part: bool) -> bool {
        let mut state = self.state.lock();
        // Under the same lock as the count. A loss after this finds the new guard and reports to it.
        if state.end.is_some() || state.forgotten || state.taken_over {
            return false;
        }
        let was_relied_on = state.is_relied_on();
        state.live += 1;
        state.parts += u32::from(is_part);
        state.wanted_until = now() + self.lease;
        (state.released, state.in_background) = (None, false);
        state.on_server = Some(on_server);
        if share == Share::WRITER {
            // The guard that it was nested in may have ended meanwhile, and taken the weight with it.
            state.writers += 1;
            state.weight = share.weight;
        }
        if !is_part && !was_relied_on {
            self.become_whole(state);
        }
        true
    }

    /// Whether `extend` may ask for this lease.
    pub fn check_extend(&self, wanted: Duration) -> Result<(), OptionsError> {
        let options = self.context().options();
        options.check_lease("the lease of extend", wanted)?;
        let held =
            self.state.lock().whole_since.map(|since| now().saturating_duration_since(since)).unwrap_or_default();
        options.max_hold.map_or(Ok(()), |longest| options.check_max_hold(wanted, longest.saturating_sub(held)))
    }

    /// The lease to ask for in an `extend`. Never shorter than what the holder has asked for: the next renewal comes only
    /// then, and the first one, which would set that lease, goes with an extend. But a hold that is renewed ends with
    /// `max_hold` all the same.
    pub fn lease_to_extend(&self, wanted: Duration) -> Duration {
        let mut state = self.state.lock();
        let own = if self.watched || state.renewed.is_none() { self.lease } else { wanted };
        let rest = self.renewed_until(&state).map(|last| last.saturating_duration_since(now()));
        let lease = wanted.max(rest.map_or(own, |rest| own.min(rest)));
        state.longest_lease = state.longest_lease.max(lease);
        lease
    }

    /// The longest that the server may keep it.
    pub fn longest_lease(&self) -> Duration {
        self.state.lock().longest_lease
    }

    /// Until [`keep_after_all`](Self::keep_after_all) it is not relied on.
    pub fn wait_to_detach(&self) -> Result<(), DetachRefusal> {
        self.check_not_lost()?;
        let mut state = self.state.lock();
        // Other guards rely on it until the detach has its turn, which is then refused.
        if state.live == 1 {
            (state.detaching, state.wanted_until) = (DetachStage::Waits, now() + self.lease);
        }
        Ok(())
    }

    /// In the owner's turn. From here on it is not renewed.
    pub fn begin_to_detach(&self) -> Result<(), DetachRefusal> {
        self.check_not_lost()?;
        let mut state = self.state.lock();
        if state.live > 1 {
            return Err(DetachRefusal::Nested(state.live));
        }
        state.detaching = DetachStage::Asks;
        Ok(())
    }

    fn check_not_lost(&self) -> Result<(), DetachRefusal> {
        match self.expire_if_due() {
            Some(End::Lost(loss)) => Err(DetachRefusal::Lost(loss)),
            _ => Ok(()),
        }
    }

    /// Whether the server may have been asked to give it to a handle.
    pub fn is_detaching(&self) -> bool {
        self.state.lock().detaching == DetachStage::Asks
    }

    /// The detach was refused.
    pub fn keep_after_all(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let was = std::mem::replace(&mut state.detaching, DetachStage::No);
        self.renew_after_a_rest(&mut state);
        drop(state);
        // A check or a renewal that came due while the server was asked has not run: make up for it.
        self.schedule(was == DetachStage::Asks);
    }

    /// The handle has it, or it will be free: ends it here. Returns what is to be left, so that no copy of an earlier
    /// request takes effect any more, and whether one may.
    pub fn detached(&self) -> (LeaveRequest, bool) {
        let (request, copies) = {
            let mut state = self.state.lock();
            // Before the end can be seen (R4): see `lose`.
            let request = self.leave_request(&state, state.copies_until);
            // A reported loss stays a loss.
            state.end.get_or_insert(End::Detached);
            (state.live, state.parts) = (0, 0);
            (request, state.copies_until > 0)
        };
        self.set_over();
        // A panic of the user's subscriber here would cost the caller its handle.
        log_line(|| self.holding.detached(&self.who(), self.token, || self.held_for()));
        (request, copies)
    }

    /// Ends all that the owner has until now. The lock on the state keeps the seq before the end.
    fn leave_request(&self, state: &HoldState, copies_until: i64) -> LeaveRequest {
        let leave = Leave {
            keys: self.entry.keys.clone(),
            owner: self.entry.owner_id.clone(),
            seq: self.context().next_seq(),
            place: place(&self.entry.owner_id, self.attempt, &self.terms),
            copies_until,
        };
        LeaveRequest { leave, lease: state.longest_lease, leaving: None }
    }

    /// Whether the server may have forgotten it, as far as this client knows.
    pub fn is_doubted(&self) -> bool {
        self.state.lock().doubts < self.holds.doubts()
    }

    /// [`Holds::doubts`] of its client.
    pub fn doubts(&self) -> u64 {
        self.holds.doubts()
    }

    /// What to ask the server now. `None`: nothing, until there is a doubt or the deadline has come.
    pub fn question(&self) -> Option<Question> {
        let (doubts, state) = (self.holds.doubts(), self.state.lock());
        let is_confirmed = state.renewed.is_some();
        // After `max_hold` nothing extends it. The first question sets the lease, whatever was left. A part, whose end
        // moves on while its call is polled, asks for all of its lease: a copy for less might be served behind a later
        // one (R5).
        let last = self.renewed_until(&state).filter(|_| is_confirmed || state.is_relied_on());
        let rest = last.map(|last| last.saturating_duration_since(now()));
        let lease = rest.map_or(self.lease, |rest| rest.min(self.lease));
        // A server that took over may have forgotten the request that set the lease, so it is set to at least the rest
        // that the holder relies on (R5). If nothing was forgotten the server has that, and renew.lua never shortens a
        // lease.
        let left = lease::lasting(state.deadline.saturating_duration_since(now()));
        let is_doubted = state.doubts < doubts;
        if (self.watched || !is_confirmed) && !lease.is_zero() {
            let lease = match is_confirmed {
                _ if is_doubted => lease.max(left),
                // It sets the lease, and `max_hold` may leave less than the grant that is relied on (P1).
                false => lease.max(left.min(self.lease)),
                true => lease,
            };
            let only = if is_confirmed { Only::Longer } else { Only::Attempt(self.attempt) };
            return Some(Question { lease, only, doubts });
        }
        // A fixed lease is not extended.
        is_doubted.then_some(Question { lease: left, only: Only::Longer, doubts })
    }

    /// Whether `max_hold` is the reason that its lease was not extended again.
    pub fn has_reached_max_hold(&self) -> bool {
        let state = self.state.lock();
        self.held_until(&state).is_some_and(|last| last <= now() + self.lease / 3)
    }

    /// The end of `max_hold`, if there is one.
    fn held_until(&self, state: &HoldState) -> Option<Instant> {
        let longest = self.context().options().max_hold.filter(|_| self.watched)?;
        state.whole_since.map(|since| since + longest)
    }

    /// The latest end of a renewed lease, if there is a bound.
    fn renewed_until(&self, state: &HoldState) -> Option<Instant> {
        let is_wanted = state.is_part() || state.detaching != DetachStage::No;
        let wanted_until = Some(state.wanted_until).filter(|_| is_wanted && self.watched);
        self.held_until(state).into_iter().chain(wanted_until).min()
    }

    /// Renews a part of an unfinished call, which calls this at each poll and not between: a call that rests costs
    /// others a lease (P6).
    pub fn keep(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.wanted_until = now() + self.lease;
        // Not what an outer section holds as well.
        if !state.is_relied_on() {
            drop(state);
            self.schedule(false);
        }
    }

    /// The call of one of the guards has all parts.
    pub fn complete(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let was_relied_on = state.is_relied_on();
        state.parts -= 1;
        state.given_back = false;
        if !was_relied_on {
            self.become_whole(state);
        }
    }

    fn become_whole(self: &Arc<Self>, mut state: MutexGuard<'_, HoldState>) {
        state.whole_since.get_or_insert_with(now);
        self.renew_after_a_rest(&mut state);
        drop(state);
        self.schedule(false);
    }

    /// Where the last renewals asked for no more than was left, the next one is due as if a whole lease ended at this deadline.
    fn renew_after_a_rest(&self, state: &mut HoldState) {
        if state.renewed.is_some() && state.deadline < lease::next_renewal(now(), self.lease) {
            state.renewed = state.deadline.checked_sub(self.lease).or(state.renewed);
        }
    }

    /// Puts it on the watchdog's schedule, in place of an earlier entry. `unanswered`: its last question had no answer.
    pub fn schedule(self: &Arc<Self>, unanswered: bool) {
        let mut state = self.state.lock();
        // The final unlock may have overtaken the renewal that leads here.
        if state.end.is_some() || state.forgotten {
            return;
        }
        if unanswered {
            state.owed = self.holds.doubts();
        }
        let due = self.next_due(&state, unanswered);
        // Under the lock, or two of these calls leave the place of the earlier one.
        if let Some(before) = state.due.replace(due) {
            self.holds.schedule.remove(before, self.attempt);
        }
        self.holds.schedule.insert(due, self.attempt, self);
    }

    fn next_due(&self, state: &HoldState, unanswered: bool) -> Instant {
        let due = match (self.release_overdue_at(state), state.renewed) {
            // A caller that polls its release is sooner.
            (Some(at), _) => (at + PATIENCE).max(now()),
            _ if self.done.initialized() => state.deadline,
            _ if unanswered => now() + lease::retry_pause(self.lease),
            _ if state.doubts < state.owed => now(),
            (None, None) => lease::first_renewal(self.began, state.deadline),
            (None, Some(renewed)) if self.watched => lease::next_renewal(renewed, self.lease),
            (None, Some(_)) => state.deadline,
        };
        // At its deadline at the latest: it is reported as lost there (P8). After `max_hold` only that is left.
        let is_the_last = self.renewed_until(state).is_some_and(|last| last <= due.max(now()));
        if is_the_last { state.deadline } else { due.min(state.deadline) }
    }

    /// The final unlock is under way, or the hold is over: no more renewals.
    pub fn stop_renewing(&self) {
        let _ = self.done.set(());
    }

    /// The final unlock was sent, and its outcome is not known.
    pub fn is_being_released(&self) -> bool {
        self.done.initialized() && self.live() == 0 && self.is_open()
    }

    /// The final unlock could have been sent by now, or answered, and its future may rest.
    pub fn is_release_overdue(&self) -> bool {
        let state = self.state.lock();
        state.end.is_none() && !state.forgotten && self.release_overdue_at(&state).is_some_and(|at| at <= now())
    }

    fn release_overdue_at(&self, state: &HoldState) -> Option<Instant> {
        // It may be sent again by its caller until then.
        let sent = if self.done.initialized() { self.context().operation_timeout() } else { Duration::ZERO };
        state.released.filter(|_| !state.in_background).map(|at| at + sent + PATIENCE)
    }

    /// A task in the background releases it.
    pub fn goes_on_in_background(&self) {
        self.state.lock().in_background = true;
    }

    /// Watchers wait for the outcome of the final unlock until the lease is over: the future of its caller may rest.
    pub fn forget_when_due(self: &Arc<Self>) {
        if self.deadline() <= now() { self.forget() } else { self.schedule(false) }
    }

    /// Counts one guard less, which has ended at `at`. A release reports it to the server. After the deadline the guard has
    /// lost the hold, whether anyone noticed or not: then its watchers, the log and `unlock` all say so (P8).
    pub fn drop_guard(&self, at: Instant, is_writer: bool, is_part: bool) {
        // Expire the hold before the count drops: a hold without guards reports its loss to no one. Both use the same
        // instant, so a guard that ends in time here is also released in time below.
        self.expire_if_due_at(at);
        let mut state = self.state.lock();
        state.live -= 1;
        state.parts -= u32::from(is_part);
        state.released = (state.live == 0).then_some(at);
        state.end_writing(is_writer);
    }

    /// A guard that writes only reads from now on. A release reports it to the server.
    pub fn downgrade(&self) {
        self.state.lock().end_writing(true);
    }

    /// Whether a write would wait for this owner's own read.
    pub fn is_only_read(&self) -> bool {
        let state = self.state.lock();
        state.live > 0 && state.writers == 0
    }

    /// What it has of the name.
    pub fn weight(&self) -> u32 {
        self.state.lock().weight
    }

    /// From now on it has that much, if it had more. A release reports it to the server.
    pub fn shrink_to(&self, weight: u32) {
        let mut state = self.state.lock();
        state.weight = state.weight.min(weight);
    }

    /// What to set on the server, or `None` if it has that.
    pub fn unsettled(&self) -> Option<Count> {
        let state = self.state.lock();
        let count = state.count();
        let is_settled = state.on_server == Some(count.holds) && state.weight_on_server == count.weight;
        (!is_settled).then_some(count)
    }

    /// What the server shall count of it.
    pub fn count(&self) -> Count {
        self.state.lock().count()
    }

    /// A request about the count is under way. Until its answer the server's count is unknown.
    pub fn set_unsettled(&self) {
        self.state.lock().on_server = None;
    }

    pub fn settle(&self, on_server: Count) {
        let mut state = self.state.lock();
        (state.on_server, state.weight_on_server) = (Some(on_server.holds), on_server.weight);
    }

    pub fn copies_until(&self) -> i64 {
        self.state.lock().copies_until
    }

    /// The server has freed it on our request.
    pub fn freed(&self) {
        // A reported loss stays a loss.
        self.state.lock().end.get_or_insert(End::Freed);
        self.set_over();
        self.holding.freed(&self.who(), self.token, || self.held_for());
    }

    /// It was released, and no more will be known of it: its watchers must not wait on.
    pub fn forget(&self) {
        {
            let mut state = self.state.lock();
            // With a guard alive the hold can still be lost, and its holder must learn which it is.
            if state.end.is_some() || state.live > 0 {
                return;
            }
            state.forgotten = true;
        }
        self.set_over();
        self.holding.forgotten(&self.who(), self.token, || self.held_for());
    }

    /// Without guards it is released although another request of its owner has the turn, whose future may rest. Returns
    /// the seq of that release, or `None` if there are guards. No nested call enters it any more: its answer may come
    /// after that release was sent (P1). The seq is drawn before an end of this hold is visible, so that it is smaller
    /// than that of the owner's next attempt, which the release must not end (R4).
    pub fn take_over(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.taken_over |= state.live == 0;
        state.taken_over.then(|| self.context().next_seq())
    }

    /// Whether it has no end yet, for its watchers either.
    pub fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.end.is_none() && !state.forgotten
    }

    pub fn is_taken_over(&self) -> bool {
        self.state.lock().taken_over
    }

    /// Notifies the holder, once, and leaves on the server, so that no late copy of its acquire brings the hold back
    /// (R11).
    pub fn lose(&self, loss: Loss) {
        let context = self.context();
        let (request, reliance) = {
            let mut state = self.state.lock();
            // `close` does not lose a hold without guards: its release is under way.
            if state.end.is_some() || loss == Loss::Closed && state.live == 0 {
                return;
            }
            state.given_back = state.is_part();
            // Drawn before the end can be seen. If the owner saw the end first and asked anew, its new
            // attempt could have a smaller seq than this leave, which would end that attempt too (R4).
            let copies_until = state.copies_until.max(context.runner.not_after(&self.entry.keys.lock));
            let request = self.leave_request(&state, copies_until);
            state.end = Some(End::Lost(loss));
            // Now: another thread may count the last guard away before the log is written.
            (request, state.reliance(loss))
        };
        self.stop_renewing();
        // Before the notifications, on which a quorum may lose its holds on other servers.
        cleanup::leave(context, request);
        // The holder is notified without any network (P8).
        self.set_over();
        // The log and the recorder are the user's, and may panic. Replies and pushes come here too: a panic would end the
        // task that reads them, and with it the connection.
        log_line(|| self.tell_of_loss(loss, reliance));
    }

    fn set_over(&self) {
        self.stop_renewing();
        let due = self.state.lock().due.take();
        if let Some(due) = due {
            self.holds.schedule.remove(due, self.attempt);
        }
        self.over.cancel();
        self.at_end.get().into_iter().for_each(|at_end| at_end());
    }

    fn tell_of_loss(&self, loss: Loss, reliance: Reliance) {
        let who = self.who();
        self.holding.lost(|| self.held_for(), loss, reliance != Reliance::Nobody);
        // `close` logs all its losses in one line, and a quorum may survive the loss of a node.
        let is_quiet = loss == Loss::Closed || reliance != Reliance::Guards || who.is_node;
        let lost = Lost { who, token: self.token, held: self.held_for(), loss };
        if is_quiet { lost.debug() } else { lost.warn() }
    }

    /// The hold, for its log lines.
    pub fn who(&self) -> Who<'_> {
        self.entry.who(&self.terms, self.context().is_node())
    }

    fn held_for(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// Whether the next renewal should also keep the memory of the token (P2). It is asked for once in a
    /// quarter of its time, so that some of these requests may fail.
    pub fn remember(&self) -> bool {
        let every = self.context().options().token_ttl / 4;
        let mut state = self.state.lock();
        let due = state.remembered + every <= now();
        if due {
            state.remembered = now();
        }
        due
    }

    /// Whether no warning was logged yet that work may be waiting for this hold of its own.
    pub fn may_be_warned_of(&self) -> bool {
        self.is_valid() && !self.warned.load(Ordering::Relaxed)
    }

    pub fn set_warned(&self) {
        self.warned.store(true, Ordering::Relaxed);
    }
}
