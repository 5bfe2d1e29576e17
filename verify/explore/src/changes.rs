//! Callers change their holds: they shrink, extend and detach them. Others attach the handles.

use std::sync::Arc;

use fairlock_proto::effect::{DetachOutcome, Outcome};
use fairlock_proto::error::ChangeError;
use fairlock_proto::event::{CallId, Event, Lease, Manner, Scope, TaskId, Want};
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{Kind, Share};
use fairlock_proto::question::{Finding, Question};

use crate::caller::{Caller, HandleState, LEASE, OPERATION, State, Taken};
use crate::handles::Change;
use crate::names::{keys, terms};
use crate::world::{Happening, Life, World};

impl World {
    pub(crate) fn change(&mut self, client: usize, guard: CallId) {
        let Some(caller) = self.clients[client].callers.get(&guard).filter(|it| it.state == State::Holds).cloned()
        else {
            return;
        };
        if self.clients[client].changes.values().any(|change| change.guard() == Some(guard)) {
            return;
        }
        let (kind, lease) = (keys(caller.name).kind, 2 * LEASE);
        let call = self.new_call(client);
        let event = match self.below(3) {
            0 if caller.weight > 1 => self.shrink(client, call, guard),
            0 | 1 => {
                self.clients[client].changes.insert(call, Change::Extend(guard));
                Event::Extend { call, guard, lease }
            }
            // Read-write locks have no handles.
            _ if kind == Kind::RwLock => {
                self.clients[client].calls.remove(call.0);
                return;
            }
            _ => {
                let relied_on = self.checker.rests(client, guard);
                self.clients[client].changes.insert(call, Change::Detach(guard, relied_on));
                Event::Detach { call, guard, lease: LEASE }
            }
        };
        self.say(|| format!("c{client} {event:?}"));
        self.step(client, event);
    }

    fn new_call(&mut self, client: usize) -> CallId {
        CallId(self.clients[client].calls.insert(()))
    }

    fn shrink(&mut self, client: usize, call: CallId, guard: CallId) -> Event<'static> {
        let weight = 1;
        self.checker.shrinks(client, guard, weight);
        if let Some(caller) = self.clients[client].callers.get_mut(&guard) {
            caller.weight = weight;
        }
        self.clients[client].changes.insert(call, Change::Shrink(guard));
        Event::Shrink { call, guard, weight }
    }

    /// A caller that ends its guard no longer waits for a change of it.
    pub(crate) fn drop_change(&mut self, client: usize, guard: CallId) -> Option<Change> {
        let changes = self.clients[client].changes.iter();
        let meant = changes.filter(|(_, change)| change.guard() == Some(guard)).map(|(call, _)| *call).next();
        let call = meant?;
        let change = self.forget_change(client, call);
        self.say(|| format!("c{client} {call:?} is dropped"));
        self.step(client, Event::Gone(call));
        change
    }

    fn forget_change(&mut self, client: usize, call: CallId) -> Option<Change> {
        self.clients[client].calls.remove(call.0);
        self.clients[client].changes.remove(&call)
    }

    /// Returns whether it was the outcome of a change.
    pub(crate) fn change_is_told(&mut self, client: usize, call: CallId, outcome: &Outcome) -> bool {
        let Some(change) = self.clients[client].changes.get(&call).cloned() else { return false };
        self.forget_change(client, call);
        match (change, outcome) {
            (
                Change::Detach(guard, _),
                Outcome::Detached(DetachOutcome::Done(handle) | DetachOutcome::Unanswered(handle, _)),
            ) => {
                let name = self.clients[client].callers.get(&guard).map(|caller| caller.name);
                self.handles.told.insert(handle.owner.clone());
                self.handles.left.extend(name.map(|name| (name, (**handle).clone())));
                self.forget(client, guard);
                self.step(client, Event::Gone(guard));
            }
            (Change::Detach(guard, relied_on), Outcome::Detached(DetachOutcome::Refused(why))) => {
                let is_lost = matches!(why, ChangeError::Lost(_));
                let relied_on = relied_on.filter(|_| !is_lost);
                relied_on.into_iter().for_each(|relied_on| self.checker.goes_on(client, guard, relied_on));
            }
            (Change::Releases(handle), Outcome::Answered(Ok(Finding::Done | Finding::Nothing))) => {
                self.handles.given_back.push(handle);
            }
            _ => {}
        }
        true
    }

    /// Attaches a handle, or extends or releases its hold. Returns false if there is no handle.
    pub(crate) fn uses_handle(&mut self, client: usize) -> bool {
        let count = self.handles.left.len() as u64;
        if count == 0 {
            return false;
        }
        let at = self.below(count) as usize;
        let (name, handle) = self.handles.left[at].clone();
        match self.below(4) {
            0 => self.ask(client, name, Question::Extend { handle, lease: LEASE }),
            1 => {
                self.handles.left.remove(at);
                self.ask(client, name, Question::Release { handle });
            }
            // An attach usually uses up the handle, but others may still try it.
            how => {
                if how == 2 {
                    self.handles.left.remove(at);
                }
                self.attach(client, name, handle);
            }
        }
        true
    }

    fn ask(&mut self, client: usize, name: usize, question: Question) {
        let call = self.new_call(client);
        let change = match &question {
            Question::Release { handle } => Change::Releases(handle.clone()),
            _ => Change::Extends,
        };
        self.clients[client].changes.insert(call, change);
        self.say(|| format!("c{client} {call:?} asks {question:?}"));
        self.step(client, Event::Ask(call, keys(name), question));
    }

    fn attach(&mut self, client: usize, name: usize, handle: Handle) {
        let call = self.new_call(client);
        let is_scoped = keys(name).kind != Kind::Semaphore && self.one_in(2);
        let this = &mut self.clients[client];
        this.next_owner += 1;
        let owner = if is_scoped { 1 } else { this.next_owner };
        let scope = if is_scoped { Scope::Owner } else { Scope::Call };
        let is_spent = self.handles.is_given_back(&handle.owner);
        let state = if is_spent { HandleState::GivenBack } else { HandleState::MayHold };
        let (limit, taken) = (self.now + OPERATION, Taken { token: handle.token, state });
        let (waits, attaches, state) = (false, Some(taken), State::Waits);
        let caller = Caller { name, owner, waits, limit: Some(limit), weight: 1, attaches, state };
        self.clients[client].callers.insert(call, caller);
        let lease = if self.one_in(2) { Lease::Fixed(LEASE) } else { Lease::Renewed(LEASE) };
        self.say(|| format!("c{client} {call:?} attaches {handle:?} as {owner}"));
        let want = Want {
            keys: keys(name),
            owner,
            owner_id: format!("c{client}:{owner}").into(),
            scope,
            manner: Manner::Attaches { limit, handle: Arc::new(handle) },
            lease,
            weight: 1,
            terms: terms(name, Share::LOCK),
            task: TaskId(0),
        };
        self.step(client, Event::Call(call, want));
        self.perhaps(6, 2000, |_| Happening::End(client, call));
    }

    /// Uses a client that is still open.
    pub(crate) fn give_handles_back(&mut self) {
        let Some(client) = self.clients.iter().position(|client| client.life == Life::Open) else { return };
        for (name, handle) in std::mem::take(&mut self.handles.left) {
            self.ask(client, name, Question::Release { handle });
        }
    }
}
