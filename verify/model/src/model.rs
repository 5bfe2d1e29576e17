//! The protocol as a model that stateright can search: which actions are possible in a state, and what follows.

use stateright::{Model, Property};

use crate::bounds::{Bounds, Fault};
use crate::checked::Checked;
use crate::client::Client;
use crate::events::Reached;
use crate::ghost::{Event, EventSet, Ghost};
use crate::network::{HANDLES, Message, Network, Push};
use crate::owner::Owner;
use crate::properties;
use crate::protocol::{Action, Protocol, State, deaf};
use crate::pruning::Pruning;
use crate::rules::Rules;
use crate::server::Server;

impl Checked for Protocol {
    type Rules = Rules;
    type Bounds = Bounds;
    type Event = Event;

    fn new(rules: Rules, bounds: Bounds) -> Self {
        Self { rules, bounds, reached: Reached::default() }
    }

    fn reached(&self) -> EventSet {
        self.reached.all()
    }

    fn set_bound(bounds: &mut Bounds, option: &str, value: u8) {
        match option {
            "--time" => bounds.end = value,
            "--attempts" => bounds.attempts = value,
            "--reentries" => bounds.reentries = value,
            "--retries" => bounds.retries = value,
            "--clients" => bounds.clients = value,
            _ => bounds.in_flight = usize::from(value),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let owners = (0..self.bounds.owners).map(|_| Owner::new(&self.bounds)).collect();
        let clients = (0..self.bounds.clients).map(|_| Client::new(&self.bounds)).collect();
        let clock_in_tokens = self.bounds.faults.contains(&Fault::Restart);
        let ghost = Ghost { clock_in_tokens, ..Ghost::default() };
        let (server, network) = (Server::default(), Network::default());
        let mut state = State { now: 0, server, owners, handles: Vec::new(), clients, network, ghost };
        let mut events = EventSet::default();
        for id in (0..self.bounds.owners).filter(|_| self.bounds.begun) {
            self.act(&mut state, id, &mut events, Owner::start);
            while let Some(message) = state.network.first() {
                self.deliver(&mut state, message, &mut events);
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { now, server, owners, handles, clients, network, ghost } = state;
        let bounds = &self.bounds;
        let mut offer = |may: bool, action: Action| {
            if may {
                actions.push(action);
            }
        };
        offer(*now < bounds.end + ghost.stall, Action::Tick);
        for (id, owner) in (0..).zip(owners) {
            let in_turn = bounds.may_be_first(id) || owners[usize::from(id) - 1].has_started();
            offer(owner.may_start() && in_turn, Action::Start(id));
            offer(owner.may_retry(), Action::Retry(id));
            offer(owner.may_retry_leave(), Action::RetryLeave(id));
            offer(bounds.gives_up && owner.may_give_up(), Action::GiveUp(id));
            offer(bounds.renews && owner.may_renew(id, network, bounds, *now), Action::Renew(id));
            offer(owner.may_reenter(*now), Action::Reenter(id));
            offer(owner.may_unlock(), Action::Unlock(id));
            offer(owner.may_notice_loss(*now), Action::NoticeLoss(id));
            offer(owner.may_send_late_leave(), Action::SendLateLeave(id));
            offer(handles.len() < usize::from(bounds.detaches) && owner.may_detach(*now), Action::Detach(id));
            for lease in bounds.extend_to {
                offer(owner.may_extend(*now), Action::Extend(id, *lease));
            }
            for (handle, state) in (HANDLES..).zip(handles) {
                offer(state.may_be_used() && owner.may_attach(), Action::Attach(id, handle));
            }
        }
        for (id, handle) in (HANDLES..).zip(handles) {
            offer(handle.may_be_used() && handle.may_be_extended(id, network), Action::ExtendHandle(id));
            offer(handle.may_be_released(id, network), Action::ReleaseHandle(id));
        }
        for (id, client) in (0..).zip(clients) {
            offer(self.may_poll(state, id), Action::Poll(id));
            let in_flight = client.poll.is_some_and(|poll| network.has_poll(id, poll.number));
            offer(client.timeouts > 0 && in_flight, Action::GiveUpPoll(id));
            offer(ghost.deafens < bounds.deafens && !client.deaf, Action::Deafen(id));
            offer(ghost.reconnects < bounds.reconnects, Action::Reconnect(id));
        }
        for message in network.iter() {
            let too_early = matches!(message, Message::Pushed { to, push } if !owners[usize::from(*to)].accepts(push));
            offer(!too_early, Action::Deliver(*message));
            let may_be_lost = match message {
                Message::Pushed { push: Push::Revoked { .. }, .. } => !bounds.revocations_arrive,
                Message::Pushed { .. } => true,
                _ => bounds.lossy,
            };
            offer(may_be_lost, Action::Lose(*message));
        }
        offer(server.lock.is_none() && !server.queue.is_empty(), Action::PassOn);
        for fault in bounds.faults {
            let has_use = match fault {
                Fault::ForceUnlock | Fault::DeleteLock => server.lock.is_some(),
                Fault::DeleteQueue | Fault::DeleteDeadlines => !server.queue.is_empty(),
                Fault::Flush => true,
                Fault::Restart => *now < bounds.end,
                Fault::ClockStep | Fault::ClockBack => true,
                Fault::Stall(_) => !server.queue.is_empty(),
            };
            offer(ghost.fault.is_none() && has_use, Action::Fault(*fault));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let had = &state.server.queue;
        let before: Vec<_> = state.server.waiting(state.now, &self.bounds).collect();
        let had = had.clone();
        let mut state = state.clone();
        let mut events = EventSet::default();
        match action {
            Action::Tick => self.tick(&mut state, &mut events),
            Action::Start(id) => self.act(&mut state, id, &mut events, Owner::start),
            Action::Retry(id) => self.act(&mut state, id, &mut events, Owner::retry),
            Action::RetryLeave(id) => self.act(&mut state, id, &mut events, Owner::retry_leave),
            Action::GiveUp(id) => {
                state.know_handle_of(id);
                self.act(&mut state, id, &mut events, Owner::give_up);
            }
            Action::Renew(id) => self.act(&mut state, id, &mut events, Owner::renew),
            Action::Reenter(id) => self.act(&mut state, id, &mut events, Owner::reenter),
            Action::Unlock(id) => self.act(&mut state, id, &mut events, Owner::unlock),
            Action::NoticeLoss(id) => self.act(&mut state, id, &mut events, Owner::lose),
            Action::SendLateLeave(id) => self.act(&mut state, id, &mut events, Owner::send_late_leave),
            Action::Extend(id, lease) => self.act(&mut state, id, &mut events, |owner, cx| owner.extend(lease, cx)),
            Action::Detach(id) => self.detach(&mut state, id, &mut events),
            Action::Attach(id, handle) => self.attach(&mut state, id, handle, &mut events),
            Action::ExtendHandle(id) => state.extend_handle(id),
            Action::ReleaseHandle(id) => state.release_handle(id, &self.bounds),
            Action::Poll(id) => self.poll(&mut state, id, &mut events),
            Action::GiveUpPoll(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.timeouts -= 1;
                client.give_up_poll(&self.rules, &mut events);
            }
            Action::Deafen(id) => {
                state.ghost.deafens += 1;
                state.clients[usize::from(id)].deaf = true;
            }
            Action::Reconnect(id) => self.reconnect(&mut state, id, &mut events),
            Action::Deliver(message) => self.deliver(&mut state, message, &mut events),
            Action::Lose(message) => state.network.remove(&message),
            Action::PassOn => {
                let deaf = deaf(&state);
                self.script(&mut state, &deaf, &mut events).pass_on(None);
            }
            Action::Fault(fault) => self.fault(&mut state, fault, &mut events),
        }
        self.check_places(&had, &before, action, &mut state);
        Pruning { rules: &self.rules, bounds: &self.bounds }.prune(&mut state, &mut events);
        self.forget_names(&mut state);
        if state.network.len() > self.bounds.in_flight {
            return None;
        }
        self.note(events);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
