//! What becomes of the waiters of a state when nothing goes wrong any more.
//!
//! A property on single states cannot express "at last". So the states in which no message is in flight are followed
//! for some rounds in which messages arrive at once, clients poll, and holders release. Three more clients compete for
//! the lock all the time: it is never free when a poll arrives, and the list is never empty, either of which would
//! reveal that a place is lost. Each waiter must come to hold the lock.

use crate::client::Client;
use crate::ghost::{Event, EventSet};
use crate::network::OwnerId;
use crate::owner::{Owner, Stage};
use crate::protocol::{Action, Protocol, State};

/// An old lease may have to end, a place may be found missing by the second poll, and then all the others are
/// served first.
const ROUNDS: u8 = 14;
const COMPETITORS: u8 = 3;

/// P9: from here on, without faults, each waiter comes to hold the lock.
pub fn no_waiter_is_stuck(protocol: &Protocol, state: &State) -> bool {
    if !protocol.bounds.settles || state.network.len() > 0 {
        return true;
    }
    let is_waiting = |state: &State, id: OwnerId| {
        let stage = &state.owners[usize::from(id)].stage;
        matches!(stage, Stage::Waiting { .. } | Stage::Acquiring { .. })
    };
    let mut stuck: Vec<OwnerId> = (0..protocol.bounds.owners).filter(|id| is_waiting(state, *id)).collect();
    if stuck.is_empty() {
        return true;
    }
    let mut follow = Follow { protocol, state: state.clone(), events: EventSet::default() };
    follow.begin();
    for _ in 0..ROUNDS {
        follow.round();
        // Overtaken on the way.
        if follow.state.ghost.violation.is_some() {
            return false;
        }
        stuck.retain(|id| is_waiting(&follow.state, *id));
        if stuck.is_empty() {
            follow.events.add(Event::Settled);
            protocol.note(follow.events);
            return true;
        }
    }
    false
}

struct Follow<'a> {
    protocol: &'a Protocol,
    state: State,
    events: EventSet,
}

impl Follow<'_> {
    fn begin(&mut self) {
        // A subscription that works again without the client's notice: a reconnect would raise doubt.
        self.state.clients.iter_mut().for_each(|client| client.deaf = false);
        let competitors = (0..COMPETITORS).map(|_| Owner::new(&self.protocol.bounds));
        self.state.owners.extend(competitors);
        let theirs = (0..COMPETITORS).map(|_| Client::new(&self.protocol.bounds));
        self.state.clients.extend(theirs);
        self.state.owners.iter_mut().for_each(Owner::allow_all);
    }

    fn owners(&self) -> std::ops::Range<OwnerId> {
        0..self.protocol.bounds.owners + COMPETITORS
    }

    fn owner(&self, id: OwnerId) -> &Owner {
        &self.state.owners[usize::from(id)]
    }

    fn round(&mut self) {
        for id in self.owners().skip(usize::from(self.protocol.bounds.owners)) {
            if self.owner(id).stage == Stage::Idle {
                self.step(Action::Start(id));
            }
        }
        for id in self.owners() {
            if matches!(self.owner(id).stage, Stage::Acquiring { .. }) {
                self.step(Action::Retry(id));
            }
        }
        for client in 0..self.protocol.bounds.clients + COMPETITORS {
            if self.protocol.may_poll(&self.state, client) {
                self.protocol.poll(&mut self.state, client, &mut self.events);
                self.deliver();
            }
        }
        let holding: Vec<_> = self.owners().filter(|id| matches!(self.owner(*id).stage, Stage::Holding(_))).collect();
        for id in holding {
            self.let_go(id);
        }
        self.state.now += 1;
        self.state.server.expire(self.state.now, &self.protocol.bounds, &mut self.events);
        for id in self.owners() {
            for _ in 0..self.owner(id).leaving.len() {
                self.step(Action::RetryLeave(id));
            }
        }
    }

    fn let_go(&mut self, id: OwnerId) {
        for _ in 0..8 {
            let Stage::Holding(hold) = &self.owner(id).stage else { return };
            let action = match hold {
                hold if hold.guards > 0 && hold.deadline <= self.state.now => Action::NoticeLoss(id),
                hold if hold.guards > 0 => Action::Unlock(id),
                _ => Action::Retry(id),
            };
            self.step(action);
        }
    }

    fn step(&mut self, action: Action) {
        let (protocol, state, events) = (self.protocol, &mut self.state, &mut self.events);
        match action {
            Action::Start(id) => protocol.act(state, id, events, Owner::start),
            Action::Retry(id) => protocol.act(state, id, events, Owner::retry),
            Action::RetryLeave(id) => protocol.act(state, id, events, Owner::retry_leave),
            Action::Unlock(id) => protocol.act(state, id, events, Owner::unlock),
            Action::NoticeLoss(id) => protocol.act(state, id, events, Owner::lose),
            _ => unreachable!("not a step of a round"),
        }
        self.deliver();
    }

    /// All messages arrive.
    fn deliver(&mut self) {
        while let Some(message) = self.state.network.first() {
            self.protocol.deliver_or_drop(&mut self.state, message, &mut self.events);
        }
        self.protocol.forget_names(&mut self.state);
    }
}
