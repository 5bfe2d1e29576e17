//! The machine as its driver sees it: events in, effects out, and a timer.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::canonical::{RequestNumber, Seq};
use crate::chore::Leaving;
use crate::desk::{Common, Desk, LATE, Punctuality};
use crate::effect::{Effect, Note, Outcome};
use crate::errand::Errand;
use crate::error::{CallError, Cause, Fault, RequestError};
use crate::event::{CallId, Connection, Event, LinkEvent, NodeId, RequestId, Want};
use crate::handle::Handle;
use crate::keys::{Keys, Kind};
use crate::node::{Asker, InFlight, Lane, Link, Node};
use crate::push::Push;
use crate::question::Question;
use crate::queue::News;
use crate::request::{Reply, Request};
use crate::requests::poll::PolledHolder;
use crate::self_wait;
use crate::sending::{Answered, Sent};
use crate::settings::Settings;
use crate::slab::{Beside, Id, Slab};
use crate::slots::{SLOTS, Serving, Topology};
use crate::stages::entry::{Closing, Entry, Recognition, Said, Stage};
use crate::stages::line::{Change, Next};
use crate::time::{Instant, ServerTime};
use crate::timers::{STEP, Timer};
use crate::trust::Grant;
use crate::work::{Whose, Work};

/// Everything that one client holds and wants. The public fields are for `verify/explore`; a driver does not read
/// them.
#[derive(Debug, Clone, Hash)]
pub struct Session {
    pub entries: Slab<Entry>,
    by_name: BTreeMap<(Arc<str>, u64), Id>,
    pub calls: Beside<CallPlace>,
    pub common: Common,
    state: State,
    work: VecDeque<Work>,
    working: Option<Instant>,
    /// The number of owners whose last release is unanswered.
    releasing: usize,
}

/// The place of a call in the machine, and its limit.
#[derive(Debug, Clone, Copy, Hash)]
pub struct CallPlace {
    pub at: At,
    limit: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Hash)]
pub enum At {
    Entry(Id),
    /// The call is a question.
    Chore(Id),
}

impl CallPlace {
    pub fn entry(&self) -> Option<Id> {
        if let At::Entry(id) = self.at { Some(id) } else { None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Open,
    /// Releases and leaves have until this instant to be answered.
    Closing(Closing, Instant),
    Closed(Closing),
}

impl State {
    fn closing(self) -> Option<Closing> {
        if let Self::Closing(why, _) | Self::Closed(why) = self { Some(why) } else { None }
    }
}

impl Session {
    pub fn new(settings: Settings, topology: Topology) -> Self {
        Self {
            entries: Slab::default(),
            by_name: BTreeMap::new(),
            calls: Beside::default(),
            common: Common::new(settings, topology),
            state: State::Open,
            work: VecDeque::new(),
            working: None,
            releasing: 0,
        }
    }

    /// Takes one event and appends its effects to `effects`, in the order in which the driver must carry them out.
    pub fn step(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        let first = effects.len();
        let late = self.next_timer().is_some_and(|due| due + LATE < now);
        let punctuality = if late { Punctuality::Late } else { Punctuality::InTime };
        let mut step = Step { session: self, now, punctuality, effects };
        step.take(event);
        step.send();
        step.end_if_closed();
        self.forget_calls(&effects[first..]);
    }

    /// When [`Event::Time`] is due.
    pub fn next_timer(&self) -> Option<Instant> {
        self.common.timers.next().into_iter().chain(self.common.node_due).min()
    }

    /// Whether the server that has the lock now may not know this call's hold (R15). The machine is asking it, and
    /// [`Effect::Valid`] or [`Effect::Lost`] follows.
    pub fn is_doubted(&self, call: CallId) -> bool {
        let entry = self.entry_of(call).and_then(|id| self.entries.get(id));
        entry.is_some_and(|entry| entry.is_doubted(self.common.slots.serving(entry.who.slot).epoch))
    }

    /// The stage of an owner at a name.
    pub fn stage_at(&self, owner: u64, lock_key: &Arc<str>) -> &Stage {
        let entry = self.entry_at(owner, lock_key).and_then(|id| self.entries.get(id));
        entry.map_or(&Stage::Idle, |entry| &entry.stage)
    }

    /// The number of releases and leaves that are unanswered.
    pub fn unfinished(&self) -> usize {
        self.releasing + self.common.chores.leaves
    }

    pub fn settings(&self) -> &Settings {
        &self.common.settings
    }

    /// The server of a slot, as far as the machine knows.
    pub fn serving(&self, slot: u16) -> NodeId {
        self.common.slots.serving(slot).node
    }

    /// A server's clock in microseconds since 1970, or 0 if it is unknown.
    pub fn server_micros(&self, now: Instant, node: NodeId) -> i64 {
        self.common.nodes.get(usize::from(node.0)).map_or(0, |node| node.clock.micros_at(now))
    }

    /// Whether nothing is left of any call, and nothing waits to be sent.
    pub fn is_idle(&self) -> bool {
        let Common { queues, chores, .. } = &self.common;
        let is_idle =
            self.entries.is_empty() && self.by_name.is_empty() && self.calls.is_empty() && self.work.is_empty();
        is_idle && queues.is_empty() && chores.chores.is_empty() && self.next_timer().is_none()
    }

    /// The entry of this owner at this name.
    pub fn entry_at(&self, owner: u64, lock_key: &Arc<str>) -> Option<Id> {
        self.by_name.get(&(lock_key.clone(), owner)).copied()
    }

    /// The entry of this call or guard.
    pub fn entry_of(&self, call: CallId) -> Option<Id> {
        self.calls.get(call.0)?.entry()
    }

    /// `None` if the asker no longer exists.
    fn slot_of(&self, asker: Asker) -> Option<u16> {
        match asker {
            Asker::Entry(id) | Asker::Renewal(id) => self.entries.get(id).map(|entry| entry.who.slot),
            Asker::Queue(id) => self.common.queues.get(id).map(|queue| queue.slot),
            Asker::Chore(id) => self.common.chores.chores.get(id).map(|chore| chore.slot),
        }
    }

    /// The entries of all owners at this name, oldest first.
    fn entries_at(&self, lock_key: &Arc<str>) -> impl Iterator<Item = Id> {
        let (from, to) = ((lock_key.clone(), 0), (lock_key.clone(), u64::MAX));
        self.by_name.range(from..=to).map(|(_, id)| *id)
    }

    /// Forgets calls with a last outcome, and stops the limits of calls with a grant.
    fn forget_calls(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Tell(call, Outcome::Granted { .. }) => self.stop_limit(*call),
                Effect::Tell(call, _) => {
                    self.stop_limit(*call);
                    self.calls.discard(call.0);
                }
                _ => {}
            }
        }
    }

    fn stop_limit(&mut self, call: CallId) {
        if let Some(place) = self.calls.get_mut(call.0) {
            self.common.timers.plan(Timer::Call(call), &mut place.limit, None);
        }
    }
}

/// One event on its way through the machine.
struct Step<'a> {
    session: &'a mut Session,
    now: Instant,
    punctuality: Punctuality,
    effects: &'a mut Vec<Effect>,
}

impl Step<'_> {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Call(call, want) => self.call(call, want),
            Event::Disturbed(call) => self.with_call(call, |entry, _| entry.disturbed(call)),
            Event::Claimed(call) => self.with_call(call, |entry, _| entry.claimed(call)),
            Event::Unlock(call) => self.with_call(call, |entry, desk| entry.unlock(call, desk)),
            Event::Shrink { call, guard, weight } => {
                self.change(call, guard, None, |entry, desk| entry.shrink(call, guard, weight, desk));
            }
            Event::Extend { call, guard, lease } => {
                let next = Next::Extend(Change { id: call, lease });
                self.change(call, guard, self.operation_limit(), |entry, _| entry.who.line.push_back(next));
            }
            Event::Detach { call, guard, lease } => {
                let next = Next::Detach(Change { id: call, lease });
                self.change(call, guard, self.operation_limit(), |entry, _| entry.who.line.push_back(next));
            }
            Event::Ask(call, keys, question) => self.ask(call, keys, question),
            Event::Gone(call) => self.gone(call),
            Event::Unread(handle) => self.give_back(*handle),
            Event::Replied(request, reply) => self.replied(request, reply),
            Event::Pushed(connection, push) => self.pushed(connection, &push),
            Event::Link(event) => self.link(event),
            Event::Time => self.time(),
            Event::Close => self.close(Closing::ByUser),
            Event::RuntimeGone => self.close(Closing::RuntimeGone),
        }
    }

    fn desk(&mut self) -> Desk<'_> {
        let Self { now, punctuality, .. } = *self;
        Desk { now, punctuality, common: &mut self.session.common, effects: self.effects }
    }

    /// Changes an entry, starts its next calls, and removes it if that leaves nothing of it.
    fn with(&mut self, id: Id, change: impl FnOnce(&mut Entry, &mut Desk<'_>)) {
        let Self { now, punctuality, .. } = *self;
        let Session { entries, common, by_name, releasing, .. } = &mut *self.session;
        let Some(entry) = entries.get_mut(id) else { return };
        let mut desk = Desk { now, punctuality, common, effects: self.effects };
        *releasing -= usize::from(entry.is_releasing());
        change(entry, &mut desk);
        entry.go_on(&mut desk);
        entry.keep(&mut desk);
        *releasing += usize::from(entry.is_releasing());
        if entry.is_over() {
            by_name.remove(&(entry.who.keys.lock.clone(), entry.who.owner));
            entries.discard(id);
        }
    }

    fn with_call(&mut self, call: CallId, change: impl FnOnce(&mut Entry, &mut Desk<'_>)) {
        let Some(entry) = self.session.entry_of(call) else { return };
        let why = self.session.state.closing();
        self.with(entry, |entry, desk| {
            change(entry, desk);
            // `close` may have passed this entry already. With the runtime gone, a release that begins now would wait
            // for nothing.
            why.into_iter().for_each(|why| entry.close(why, desk));
        });
    }

    fn call(&mut self, call: CallId, want: Want) {
        if let Some(why) = self.session.state.closing() {
            return self.effects.push(Effect::Tell(call, Outcome::Failed(why.error())));
        }
        let id = self.session.entry_at(want.owner, &want.keys.lock).unwrap_or_else(|| self.new_entry(&want));
        self.place(call, At::Entry(id), want.manner.limit());
        self.with(id, |entry, desk| entry.call(call, want, desk));
    }

    fn place(&mut self, call: CallId, at: At, limit: Option<Instant>) {
        let mut place = CallPlace { at, limit: None };
        self.session.common.timers.plan(Timer::Call(call), &mut place.limit, limit);
        self.session.calls.insert(call.0, place);
    }

    fn new_entry(&mut self, want: &Want) -> Id {
        let slot = self.session.common.slots.of(&want.keys.lock);
        let id = self.session.entries.insert_with(|id| Entry::new(id, want, slot));
        self.session.by_name.insert((want.keys.lock.clone(), want.owner), id);
        id
    }

    /// A call about a guard's hold, until `limit`. A shrink has none: the hold itself keeps the time of its caller.
    fn change(
        &mut self,
        call: CallId,
        guard: CallId,
        limit: Option<Instant>,
        change: impl FnOnce(&mut Entry, &mut Desk<'_>),
    ) {
        let Some(entry) = self.session.entry_of(guard) else {
            return self.effects.push(Effect::Tell(call, Outcome::Failed(CallError::Lost)));
        };
        self.place(call, At::Entry(entry), limit);
        self.with_call(call, change);
    }

    fn ask(&mut self, call: CallId, keys: Arc<Keys>, question: Question) {
        if let Some(why) = self.session.state.closing() {
            return self.effects.push(Effect::Tell(call, Outcome::Failed(why.error())));
        }
        let slot = self.session.common.slots.of(&keys.lock);
        let chore = self.desk().ask_once(keys, slot, Errand { call, question });
        self.place(call, At::Chore(chore), self.operation_limit());
    }

    fn operation_limit(&self) -> Option<Instant> {
        Some(self.now + self.session.common.settings.operation_timeout)
    }

    fn gone(&mut self, call: CallId) {
        match self.session.calls.get(call.0).map(|place| place.at) {
            // The server may still serve a request that is under way.
            Some(At::Chore(id)) => drop(self.desk().end_chore(id)),
            _ => self.with_call(call, |entry, desk| entry.gone(call, desk)),
        }
        self.session.stop_limit(call);
        self.session.calls.remove(call.0);
    }

    fn give_back(&mut self, handle: Handle) {
        // The client sends nothing any more. The hold ends with its lease.
        if let State::Closed(_) | State::Closing(Closing::RuntimeGone, _) = self.session.state {
            return;
        }
        let keys = Arc::new(Keys::of(handle.kind, &self.session.common.settings.prefix, &handle.name));
        let slot = self.session.common.slots.of(&keys.lock);
        self.desk().give_back(keys, slot, handle);
    }

    /// Sends some of the waiting requests, as far as limits and gates allow.
    fn send(&mut self) {
        let (mut left, limit) = (STEP, self.session.common.settings.in_flight);
        while let Some(node) = self.session.common.next_ready() {
            while left > 0
                && let Some((lane, asker)) = self.session.common.node(node).take_next(limit, self.now)
            {
                self.send_one(node, lane, asker);
                left -= 1;
            }
            self.keep_node(node);
            if left == 0 {
                self.session.common.becomes_ready(node);
                break;
            }
        }
        self.plan_work();
    }

    /// Makes the remaining work due at once.
    fn plan_work(&mut self) {
        let Session { common, work, working, .. } = &mut *self.session;
        let due = (!work.is_empty() || common.has_ready()).then_some(self.now);
        common.timers.plan(Timer::Work, working, due);
    }

    fn send_one(&mut self, node: NodeId, lane: Lane, asker: Asker) {
        let Some(slot) = self.session.slot_of(asker) else { return };
        let (sent, Serving { node: serving, epoch }) = (self.now, self.session.common.slots.serving(slot));
        if serving != node {
            // The slot has moved, and the check that follows a move has not reached this asker yet.
            return self.keep(asker);
        }
        let number = self.session.common.next_request();
        let Some(request) = self.make(asker, number) else { return };
        let to = self.session.common.node(node);
        let Some(connection) = to.connection() else { return };
        to.sent(number, InFlight { asker, lane, slot, sent, epoch });
        self.effects.push(Effect::Send(RequestId { node, number }, connection, request));
    }

    /// Moves the asker to the node that serves its slot now.
    fn keep(&mut self, asker: Asker) {
        match asker {
            Asker::Entry(id) | Asker::Renewal(id) => self.with(id, |_, _| {}),
            Asker::Queue(id) => self.desk().keep_queue(id),
            Asker::Chore(id) => self.desk().keep_chore(id),
        }
    }

    /// Makes the request whose turn has come. `None` if the asker does not want it any more.
    fn make(&mut self, asker: Asker, number: RequestNumber) -> Option<Request> {
        let mut made = None;
        match asker {
            Asker::Entry(id) => self.with(id, |entry, desk| made = entry.ask(number, desk)),
            Asker::Renewal(id) => self.with(id, |entry, desk| made = entry.renew(number, desk)),
            Asker::Queue(id) => made = self.desk().ask_to_poll(id, number),
            Asker::Chore(id) => made = self.desk().ask_for_chore(id, number),
        }
        made
    }

    fn keep_node(&mut self, id: NodeId) {
        let common = &mut self.session.common;
        let (timeout, limit) = (common.settings.operation_timeout, common.settings.in_flight);
        common.node(id).plan(timeout, limit);
        common.node_due = common.nodes.iter().filter_map(|node| node.due).min();
    }

    fn replied(&mut self, RequestId { node: id, number }: RequestId, reply: Result<Reply, RequestError>) {
        let (now, common) = (self.now, &mut self.session.common);
        let node = common.node(id);
        let Some(request) = node.end(number) else { return };
        if let Ok(Reply { server_micros: Some(micros), .. }) = reply {
            node.clock.learn(request.sent, micros);
        }
        let note = if request.lane == Lane::Read { None } else { node.answered(&reply, number.0, now) };
        self.effects.extend(note.map(Effect::Note));
        self.end(id, number, request, reply);
    }

    /// Ends a request: its answer has come, or never will.
    fn end(&mut self, node: NodeId, number: RequestNumber, request: InFlight, reply: Result<Reply, RequestError>) {
        self.session.common.becomes_ready(node);
        let InFlight { sent, epoch, .. } = request;
        let answered = Answered { number, sent: Sent { at: sent, epoch }, reply };
        match request.asker {
            Asker::Entry(id) => self.with(id, |entry, desk| entry.replied(answered, desk)),
            Asker::Renewal(id) => self.with(id, |entry, desk| entry.renewed(answered, desk)),
            Asker::Queue(id) => {
                let news = self.desk().polled(id, answered);
                news.into_iter().for_each(|news| self.tell_waiters(news));
            }
            Asker::Chore(id) => {
                let found = self.desk().chore_replied(id, answered);
                found
                    .into_iter()
                    .for_each(|(keys, holders)| holders.iter().for_each(|holder| self.found(&keys, holder)));
            }
        }
        self.end_checks(node);
    }

    fn tell_waiters(&mut self, news: News) {
        match news {
            News::Polled { keys, holder, granted, waiting, places, carried, without } => {
                holder.iter().chain(&granted).for_each(|holder| self.found(&keys, holder));
                self.warn_of_self_wait(&keys, holder.as_ref(), &carried);
                self.effects.push(Effect::Note(Note::StillWaiting { keys, waiting, places, holder }));
                for (id, seq) in without {
                    self.with(id, |entry, desk| entry.has_no_place(seq, desk));
                }
            }
            News::Failed { error, some } => {
                for (id, seq) in some {
                    self.with(id, |entry, desk| entry.cannot_wait(seq, &error, desk));
                }
            }
        }
    }

    /// A poll has named a holder.
    fn found(&mut self, keys: &Arc<Keys>, holder: &PolledHolder) {
        let PolledHolder { owner, attempt, token, lease_left } = holder;
        let said = Said::Polled { token: *token };
        if self.has_lock(&keys.lock, owner, Seq(*attempt), said) == Recognition::Unknown {
            self.leave_unknown(keys.clone(), owner, Seq(*attempt), lease_left.unwrap_or_default());
        }
    }

    /// `holder` is set for locks only.
    fn warn_of_self_wait(&mut self, keys: &Arc<Keys>, holder: Option<&PolledHolder>, waiters: &[(Id, Seq)]) {
        let held: Vec<_> = match keys.kind {
            Kind::Lock => {
                let owner = holder.and_then(|holder| owner_of(&holder.owner));
                owner.and_then(|owner| self.session.entry_at(owner, &keys.lock)).into_iter().collect()
            }
            // The oldest entries come first, and a holder is older than its waiters.
            Kind::Semaphore | Kind::RwLock => self.session.entries_at(&keys.lock).take(self_wait::SEARCHED).collect(),
        };
        let note = self_wait::find(&mut self.session.entries, &held, waiters, self.now);
        self.effects.extend(note.map(|stuck| Effect::Note(stuck.note(keys.clone()))));
    }

    /// The server reports that this owner has the lock. The owners of other clients are not for this client to leave.
    fn has_lock(&mut self, lock_key: &Arc<str>, owner_id: &str, seq: Seq, said: Said) -> Recognition {
        if !self.session.common.settings.is_ours(owner_id) {
            return Recognition::Known;
        }
        let mut recognition = Recognition::Unknown;
        if let Some(id) = owner_of(owner_id).and_then(|owner| self.session.entry_at(owner, lock_key)) {
            self.with(id, |entry, desk| recognition = entry.has_lock(seq, said, desk));
        }
        recognition
    }

    /// A copy of an old request has taken the lock, or a server that took over brings back a stale place (R15). The
    /// leave has the seq that the server named, so it does not touch a later request of this owner (R4).
    fn leave_unknown(&mut self, keys: Arc<Keys>, owner_id: &str, seq: Seq, lease: Duration) {
        let slot = self.session.common.slots.of(&keys.lock);
        let (owner, place, copies_until) = (owner_id.into(), String::new(), ServerTime::default());
        self.desk().leave(keys, slot, Leaving { owner, seq, place, copies_until, lease });
    }

    fn pushed(&mut self, connection: Connection, push: &Push<'_>) {
        let (Push::Grant { lock, .. } | Push::Revoked { lock, .. }) = *push;
        let common = &mut self.session.common;
        // A message from an earlier connection may come from a server that has been replaced.
        if common.node(connection.node).connection() != Some(connection) {
            return;
        }
        if common.slots.serving(common.slots.of(lock)).node != connection.node {
            // Another node has taken over the slot, and may have granted the lock too (P1). The message is only a
            // reason to ask.
            let queue = common.queues.of(lock);
            return queue.into_iter().for_each(|id| self.desk().verify_soon(id));
        }
        match *push {
            Push::Grant { token, lease, ticket, lock } => self.granted(Grant { token, lease }, ticket, lock),
            Push::Revoked { token, owner, lock } => self.revoked(token, owner, lock),
        }
    }

    fn granted(&mut self, grant: Grant, ticket: &str, lock_key: &str) {
        let parts = ticket.rsplit_once(':').and_then(|(owner, seq)| Some((owner, Seq(seq.parse().ok()?))));
        let Some((owner, seq)) = parts else { return };
        if self.has_lock(&lock_key.into(), owner, seq, Said::Pushed(grant)) == Recognition::Unknown {
            let keys = Keys::of_lock(&self.session.common.settings.prefix, lock_key);
            keys.into_iter().for_each(|keys| self.leave_unknown(Arc::new(keys), owner, seq, grant.lease));
        }
    }

    fn revoked(&mut self, token: u64, owner_id: &str, lock_key: &str) {
        if let Some(id) = owner_of(owner_id).and_then(|owner| self.session.entry_at(owner, &lock_key.into())) {
            self.with(id, |entry, desk| entry.revoked(token, desk));
        }
        // The ended hold may have been the grant of a waiter whose message got lost.
        self.desk().verify_all(lock_key);
    }

    fn link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up { connection, server_micros, frozen_until } => {
                self.up(connection, server_micros, frozen_until)
            }
            LinkEvent::Down(connection, cause) => self.down(connection, cause),
            LinkEvent::Serves(node, slots) => self.serves(node, &slots),
        }
    }

    fn up(&mut self, connection: Connection, server_micros: Option<i64>, frozen_until: ServerTime) {
        let id = connection.node;
        if let Some(before) = self.session.common.node(id).connection() {
            self.down(before, Fault::Disconnected.into());
        }
        let (now, common) = (self.now, &mut self.session.common);
        common.slots.renew(id);
        let until = now + common.settings.operation_timeout;
        let node = common.node(id);
        (node.link, node.frozen_until) = (Link::Checking(connection, until), frozen_until);
        server_micros.into_iter().for_each(|micros| node.clock.learn(now, micros));
        let since = node.released.since_end(node.broke);
        self.session.common.becomes_ready(id);
        self.check_all(id);
        self.session.work.push_back(Work::Released { node: id, slots: 0..=SLOTS - 1, since, behind: "".into() });
        self.work();
        self.end_checks(id);
    }

    fn down(&mut self, connection: Connection, cause: Cause) {
        let node = self.session.common.node(connection.node);
        if node.connection() != Some(connection) {
            return;
        }
        (node.link, node.broke) = (Link::Down(cause), Some(self.now));
        let under_way = node.under_way(|_| true);
        self.lose_answers(connection.node, under_way, &unanswered(Fault::Disconnected));
    }

    /// The machine ignores an answer that still comes: the server that took over would not know a hold that begins
    /// with it.
    fn lose_answers(&mut self, id: NodeId, numbers: Vec<RequestNumber>, error: &RequestError) {
        for number in numbers {
            if let Some(request) = self.session.common.node(id).end(number) {
                self.end(id, number, request, Err(error.clone()));
            }
        }
    }

    fn serves(&mut self, id: NodeId, slots: &RangeInclusive<u16>) {
        let common = &mut self.session.common;
        let others: Vec<_> = common.nodes.iter().map(|node| node.id).filter(|other| *other != id).collect();
        common.slots.assign(slots, id);
        common.node(id);
        for other in others {
            let node = self.session.common.node(other);
            let (since, lost) =
                (node.released.since_end(Some(self.now)), node.under_way(|it| slots.contains(&it.slot)));
            self.lose_answers(other, lost, &unanswered(Fault::Disconnected));
            self.session.work.push_back(Work::Released { node: other, slots: slots.clone(), since, behind: "".into() });
        }
        self.check_all(id);
        self.work();
    }

    /// Asks about each wait and hold at this node, waits first.
    fn check_all(&mut self, node: NodeId) {
        // A check that has begun goes on. If each slot that moves restarted it, it would never reach the last holds.
        for whose in [Whose::Queues, Whose::Entries, Whose::Chores] {
            let check = Work::Check { node, whose, from: 0 };
            if !self.session.work.contains(&check) {
                self.session.work.push_back(check);
            }
        }
    }

    /// Lets all requests go once the checks on a new connection are answered, or their time has passed.
    fn end_checks(&mut self, id: NodeId) {
        let is_at_work = self.session.work.iter().any(|work| work.checks() == Some(id));
        let (now, node) = (self.now, self.session.common.node(id));
        if let Link::Checking(connection, until) = node.link
            && (until <= now || !is_at_work && node.is_checked())
        {
            node.link = Link::Up(connection);
            self.session.common.becomes_ready(id);
        }
    }

    fn time(&mut self) {
        let due = |node: &&Node| node.due.is_some_and(|due| due <= self.now);
        let nodes: Vec<_> = self.session.common.nodes.iter().filter(due).map(|node| node.id).collect();
        nodes.into_iter().for_each(|id| self.node_time(id));
        for timer in self.session.common.timers.due(self.now, STEP) {
            match timer {
                Timer::Entry(id) => self.with(id, |entry, desk| entry.time(desk)),
                Timer::Call(call) => self.late(call),
                Timer::Queue(id) => self.desk().queue_time(id),
                Timer::Chore(id) => self.desk().chore_time(id),
                Timer::Work => self.work(),
                Timer::Closing => {}
            }
        }
    }

    /// The limit of a call has passed.
    fn late(&mut self, call: CallId) {
        self.session.stop_limit(call);
        match self.session.calls.get(call.0).map(|place| place.at) {
            Some(At::Chore(id)) => self.desk().time_out_errand(id),
            _ => self.with_call(call, |entry, desk| entry.late(call, desk)),
        }
    }

    fn node_time(&mut self, id: NodeId) {
        let timeout = self.session.common.settings.operation_timeout;
        let (now, node) = (self.now, self.session.common.node(id));
        let (late, connection) = (node.under_way(|request| request.sent + timeout <= now), node.connection());
        if let Some(connection) = connection.filter(|_| !late.is_empty()) {
            self.effects.push(Effect::Suspect(connection));
        }
        self.lose_answers(id, late, &unanswered(Fault::NoAnswer(timeout)));
        self.end_checks(id);
        self.session.common.becomes_ready(id);
    }

    fn close(&mut self, why: Closing) {
        if why == Closing::RuntimeGone {
            self.stop_sending();
        }
        let mut planned = match (self.session.state, why) {
            (State::Open, _) => None,
            (State::Closing(Closing::ByUser, before), Closing::RuntimeGone) => Some(before),
            // Holds stayed valid without the runtime, until their deadlines. Now they end.
            (State::Closed(Closing::RuntimeGone), Closing::ByUser) => {
                self.session.work.push_back(Work::Close { why, from: 0 });
                return self.work();
            }
            _ => return,
        };
        let common = &mut self.session.common;
        let until = self.now + 3 * common.settings.operation_timeout;
        common.timers.plan(Timer::Closing, &mut planned, Some(until));
        self.session.state = State::Closing(why, until);
        self.session.work.push_back(Work::Close { why, from: 0 });
        self.work();
    }

    fn end_if_closed(&mut self) {
        let State::Closing(why, until) = self.session.state else { return };
        let unfinished = self.session.unfinished();
        let is_done = self.session.work.is_empty() && (unfinished == 0 || why == Closing::RuntimeGone);
        if is_done || until <= self.now {
            self.session.state = State::Closed(why);
            self.session.common.timers.plan(Timer::Closing, &mut Some(until), None);
            for call in self.session.common.chores.callers() {
                self.effects.push(Effect::Tell(call, Outcome::Failed(why.error())));
                self.gone(call);
            }
            self.effects.push(Effect::Closed { unfinished });
        }
    }

    /// The client can send nothing any more, and no answer will come.
    fn stop_sending(&mut self) {
        let nodes: Vec<_> = self.session.common.nodes.iter().map(|node| node.id).collect();
        for id in nodes {
            let node = self.session.common.node(id);
            node.link = Link::Down(Fault::Disconnected.into());
            let under_way = node.under_way(|_| true);
            self.lose_answers(id, under_way, &RequestError::RuntimeGone);
        }
    }

    /// Does some of the work that is too much for one step.
    fn work(&mut self) {
        let mut left = STEP;
        while left > 0
            && let Some(work) = self.session.work.pop_front()
        {
            let (done, rest) = self.do_some(work, left);
            left -= done.min(left);
            rest.into_iter().for_each(|rest| self.session.work.push_front(rest));
        }
    }

    /// Returns the amount of work done, and the work that is left.
    fn do_some(&mut self, work: Work, count: usize) -> (usize, Option<Work>) {
        match work {
            Work::Check { node, whose, from } => {
                let (done, next) = self.check_some(whose, from, count);
                if next.is_none() {
                    self.end_checks(node);
                }
                (done, next.map(|from| Work::Check { node, whose, from }))
            }
            Work::Released { node, slots, since, behind } => {
                let (names, next) = self.session.common.node(node).released.since(since, &behind, count);
                let done = 1 + names.len();
                names.into_iter().for_each(|keys| self.look_at_released(keys, &slots));
                (done, next.map(|behind| Work::Released { node, slots, since, behind }))
            }
            Work::Close { why, from } => {
                let (ids, next) = self.session.entries.ids_from(from, count);
                let done = 1 + ids.len();
                ids.into_iter().for_each(|id| self.with(id, |entry, desk| entry.close(why, desk)));
                (done, next.map(|from| Work::Close { why, from }))
            }
        }
    }

    fn check_some(&mut self, whose: Whose, from: usize, count: usize) -> (usize, Option<usize>) {
        let Session { entries, common, .. } = &*self.session;
        let (ids, next) = match whose {
            Whose::Queues => common.queues.ids_from(from, count),
            Whose::Entries => entries.ids_from(from, count),
            Whose::Chores => common.chores.chores.ids_from(from, count),
        };
        let done = ids.len();
        for id in ids {
            match whose {
                Whose::Queues => self.desk().resume(id),
                Whose::Entries => self.with(id, |entry, desk| entry.check(desk)),
                Whose::Chores => self.desk().keep_chore(id),
            }
        }
        (done, next)
    }

    fn look_at_released(&mut self, keys: Arc<Keys>, slots: &RangeInclusive<u16>) {
        let slot = self.session.common.slots.of(&keys.lock);
        if slots.contains(&slot) {
            // A stale hold has less than a lease left.
            let until = self.now + self.session.common.settings.longest_effect(self.session.common.settings.lease);
            self.desk().look_at_released(keys, slot, until);
        }
    }
}

fn unanswered(fault: Fault) -> RequestError {
    RequestError::Unanswered(fault.into())
}

/// The number in an owner's id.
fn owner_of(id: &str) -> Option<u64> {
    id.rsplit(':').next()?.parse().ok()
}
