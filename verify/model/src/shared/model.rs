//! The protocol as a model that stateright can search.

use stateright::{Model, Property};

use super::bounds::{Bounds, Fault};
use super::events::{Event, EventSet, Ghost};
use super::network::{HANDLES, Message, Network};
use super::owner::Owner;
use super::poller::Client;
use super::properties;
use super::protocol::{Action, Shared, State, deaf};
use super::pruning::Pruning;
use super::rules::Rules;
use super::server::Server;
use crate::checked::Checked;
use crate::events::Reached;

impl Checked for Shared {
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
            "--in-flight" => bounds.in_flight = usize::from(value),
            _ => {}
        }
    }
}

impl Model for Shared {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let bounds = &self.bounds;
        let owners = (0..bounds.owners).map(|_| Owner::new(bounds)).collect();
        let clients = (0..bounds.clients).map(|_| Client::new()).collect();
        let ghost = Ghost { clock_in_tokens: bounds.faults.contains(&Fault::Restart), ..Ghost::default() };
        let server = Server { unbooted: false, ..Server::restarted(bounds) };
        let mut state =
            State { now: 0, server, owners, handles: Vec::new(), clients, network: Network::default(), ghost };
        let mut events = EventSet::default();
        for id in 0..bounds.begun {
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
        offer(*now < bounds.end, Action::Tick);
        for (id, owner) in (0..).zip(owners) {
            let in_turn = bounds.may_be_first(id) || owners[usize::from(id) - 1].has_started();
            offer(owner.may_start() && in_turn, Action::Start(id));
            offer(owner.may_retry(), Action::Retry(id));
            offer(owner.may_retry_leave(), Action::RetryLeave(id));
            offer(bounds.gives_up && owner.may_give_up(), Action::GiveUp(id));
            offer(bounds.renews && owner.may_renew(id, network, bounds, *now), Action::Renew(id));
            offer(owner.may_reenter(*now), Action::Reenter(id));
            offer(owner.may_shrink(*now), Action::Shrink(id));
            offer(owner.may_release(), Action::Release(id));
            offer(owner.may_notice_loss(*now), Action::NoticeLoss(id));
            offer(owner.may_send_late_leave(), Action::SendLateLeave(id));
            offer(handles.len() < usize::from(bounds.detaches) && owner.may_detach(*now), Action::Detach(id));
            for (handle, state) in (HANDLES..).zip(handles) {
                offer(state.may_be_used() && owner.may_attach(), Action::Attach(id, handle));
            }
        }
        for (id, handle) in (HANDLES..).zip(handles) {
            offer(handle.may_be_extended(id, network), Action::ExtendHandle(id));
            offer(handle.may_be_released(id, network), Action::ReleaseHandle(id));
        }
        for (id, client) in (0..).zip(clients) {
            offer(self.may_poll(state, id), Action::Poll(id));
            offer(ghost.deafens < bounds.deafens && !client.deaf, Action::Deafen(id));
        }
        for message in network.iter() {
            let too_early = matches!(message, Message::Pushed { to, push } if !owners[usize::from(*to)].accepts(push));
            offer(!too_early, Action::Deliver(*message));
            offer(bounds.lossy || matches!(message, Message::Pushed { .. }), Action::Lose(*message));
        }
        offer(!server.queue.is_empty(), Action::PassOn);
        if let Some(limit) = bounds.permits.get(usize::from(ghost.permits_set)) {
            offer(true, Action::SetPermits(*limit));
        }
        for fault in bounds.faults.iter().filter(|_| ghost.fault.is_none()) {
            match fault {
                Fault::Revoke => {
                    server.holders.iter().for_each(|(_, holder)| offer(true, Action::Revoke(holder.token)));
                }
                Fault::Restart => offer(*now < bounds.end, Action::Fault(*fault)),
                Fault::Flush => offer(true, Action::Fault(*fault)),
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
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
            Action::Shrink(id) => self.act(&mut state, id, &mut events, Owner::shrink),
            Action::Release(id) => self.act(&mut state, id, &mut events, Owner::release_guard),
            Action::NoticeLoss(id) => self.act(&mut state, id, &mut events, Owner::lose),
            Action::SendLateLeave(id) => self.act(&mut state, id, &mut events, Owner::send_late_leave),
            Action::Detach(id) => self.detach(&mut state, id, &mut events),
            Action::Attach(id, handle) => self.attach(&mut state, id, handle, &mut events),
            Action::ExtendHandle(id) => state.extend_handle(id),
            Action::ReleaseHandle(id) => state.release_handle(id, &self.bounds),
            Action::Poll(id) => self.poll(&mut state, id, &mut events),
            Action::Deafen(id) => {
                state.ghost.deafens += 1;
                state.clients[usize::from(id)].deaf = true;
            }
            Action::Deliver(message) => self.deliver(&mut state, message, &mut events),
            Action::Lose(message) => state.network.remove(&message),
            Action::PassOn => {
                let deaf = deaf(&state);
                self.script(&mut state, &deaf, &mut events).pass_on(None);
            }
            Action::SetPermits(limit) => self.set_permits(&mut state, limit, &mut events),
            Action::Revoke(token) => self.revoke(&mut state, token, &mut events),
            Action::Fault(fault) => self.fault(&mut state, fault, &mut events),
        }
        Pruning { rules: &self.rules, bounds: &self.bounds }.prune(&mut state, &mut events);
        self.forget_names(&mut state);
        self.forget_limits(&mut state);
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
