//! What becomes of the waiters of a state when nothing goes wrong any more: as in the lock's model, states without a message in
//! flight are followed, while two more clients compete. Each waiter must come to hold, and none may be overtaken. What has been
//! granted already must be found by the next poll (P9).

use super::events::{Event, EventSet};
use super::network::OwnerId;
use super::owner::{Owner, Stage};
use super::poller::Client;
use super::protocol::{Action, Shared, State};

const ROUNDS: u8 = 14;
const COMPETITORS: u8 = 2;

pub fn no_waiter_is_stuck(shared: &Shared, state: &State) -> bool {
    if !shared.bounds.settles || state.network.len() > 0 {
        return true;
    }
    let mut stuck: Vec<OwnerId> = (0..shared.bounds.owners).filter(|id| is_waiting(state, *id)).collect();
    if stuck.is_empty() {
        return true;
    }
    let granted: Vec<OwnerId> = stuck.iter().copied().filter(|id| is_granted(state, *id)).collect();
    let mut follow = Follow { shared, state: state.clone(), events: EventSet::default() };
    follow.begin();
    for round in 0..ROUNDS {
        follow.polls();
        if round == 0 && granted.iter().any(|id| !matches!(follow.owner(*id).stage, Stage::Holding(_))) {
            return false;
        }
        follow.rest_of_round();
        if follow.state.ghost.violation.is_some() {
            return false;
        }
        stuck.retain(|id| is_waiting(&follow.state, *id));
        if stuck.is_empty() {
            follow.events.add(Event::Settled);
            shared.note(follow.events);
            return true;
        }
    }
    false
}

fn is_waiting(state: &State, id: OwnerId) -> bool {
    matches!(state.owners[usize::from(id)].stage, Stage::Waiting { .. } | Stage::Acquiring { .. })
}

/// It waits for a message, and the server has granted it what it asked for.
fn is_granted(state: &State, id: OwnerId) -> bool {
    let seq = state.owners[usize::from(id)].waiting_seq();
    let holder = state.server.holders.get(&id);
    holder.is_some_and(|holder| Some(holder.attempt) == seq && holder.ends > state.now)
}

struct Follow<'a> {
    shared: &'a Shared,
    state: State,
    events: EventSet,
}

impl Follow<'_> {
    fn begin(&mut self) {
        self.state.clients.iter_mut().for_each(|client| client.deaf = false);
        self.state.owners.extend((0..COMPETITORS).map(|_| Owner::new(&self.shared.bounds)));
        self.state.clients.extend((0..COMPETITORS).map(|_| Client::new()));
        self.state.owners.iter_mut().for_each(Owner::allow_all);
        // A gate does not stay paused.
        if self.state.server.limit.is_some() {
            self.shared.set_permits(&mut self.state, None, &mut self.events);
            self.deliver();
        }
    }

    fn owners(&self) -> std::ops::Range<OwnerId> {
        0..self.shared.bounds.owners + COMPETITORS
    }

    fn owner(&self, id: OwnerId) -> &Owner {
        &self.state.owners[usize::from(id)]
    }

    fn polls(&mut self) {
        for client in 0..self.shared.bounds.clients + COMPETITORS {
            if self.shared.may_poll(&self.state, client) {
                self.shared.poll(&mut self.state, client, &mut self.events);
                self.deliver();
            }
        }
    }

    fn rest_of_round(&mut self) {
        for id in self.owners().skip(usize::from(self.shared.bounds.owners)) {
            if self.owner(id).stage == Stage::Idle {
                self.step(Action::Start(id));
            }
        }
        for id in self.owners() {
            if matches!(self.owner(id).stage, Stage::Acquiring { .. }) {
                self.step(Action::Retry(id));
            }
        }
        let holding: Vec<_> = self.owners().filter(|id| matches!(self.owner(*id).stage, Stage::Holding(_))).collect();
        for id in holding {
            self.let_go(id);
        }
        self.state.now += 1;
        self.state.server.expire(self.state.now, &mut self.events);
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
                hold if hold.guards > 0 => Action::Release(id),
                _ => Action::Retry(id),
            };
            self.step(action);
        }
    }

    fn step(&mut self, action: Action) {
        let (shared, state, events) = (self.shared, &mut self.state, &mut self.events);
        match action {
            Action::Start(id) => shared.act(state, id, events, Owner::start),
            Action::Retry(id) => shared.act(state, id, events, Owner::retry),
            Action::RetryLeave(id) => shared.act(state, id, events, Owner::retry_leave),
            Action::Release(id) => shared.act(state, id, events, Owner::release_guard),
            Action::NoticeLoss(id) => shared.act(state, id, events, Owner::lose),
            _ => unreachable!("not a step of a round"),
        }
        self.deliver();
    }

    /// All messages arrive.
    fn deliver(&mut self) {
        while let Some(message) = self.state.network.first() {
            self.shared.deliver_or_drop(&mut self.state, message, &mut self.events);
        }
        self.shared.forget_names(&mut self.state);
    }
}
