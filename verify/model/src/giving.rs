//! The steps of the protocol that concern handles: detach, attach, extend and release.

use crate::bounds::Bounds;
use crate::ghost::{Event, EventSet};
use crate::handle::{Handle, HandleStage};
use crate::network::{Answer, Given, HANDLE_SEQ, HANDLES, OwnerId, Released, Renewed, Request};
use crate::owner::Stage;
use crate::protocol::{Protocol, State};

impl State {
    fn handle(&mut self, id: OwnerId) -> &mut Handle {
        &mut self.handles[usize::from(id - HANDLES)]
    }

    pub fn awaits(&self, to: OwnerId, request: &Request) -> bool {
        if to >= HANDLES {
            return self.handles[usize::from(to - HANDLES)].awaits(request);
        }
        self.owners[usize::from(to)].awaits(request)
    }

    pub fn extend_handle(&mut self, id: OwnerId) {
        let (token, sent) = (self.handle(id).token, self.now);
        self.network.send(id, Request::Renew { token, only: 0, sent });
    }

    /// A release after a detach without an answer leaves a tombstone for its copies.
    pub fn release_handle(&mut self, id: OwnerId, bounds: &Bounds) {
        let handle = *self.handle(id);
        let request = match handle.stage {
            HandleStage::Known { in_doubt } => {
                let copies_until = if in_doubt { bounds.not_after(self.now) } else { 0 };
                let (seq, attempt) = (HANDLE_SEQ, HANDLE_SEQ);
                Request::Release { seq, holds: 0, token: handle.token, attempt, copies_until, copy: 0 }
            }
            HandleStage::Releasing(request) => request,
            _ => return,
        };
        *self.handle(id) = Handle { until: 0, stage: HandleStage::Releasing(request), ..handle };
        self.network.send(id, request);
    }

    /// The caller of an unanswered detach gives up, and has the handle.
    pub fn know_handle_of(&mut self, owner: OwnerId) {
        if let Stage::Holding(hold) = &self.owners[usize::from(owner)].stage
            && let Some(Request::Give { to, .. }) = hold.pending
        {
            self.handle(to).stage = HandleStage::Known { in_doubt: true };
        }
    }
}

impl Protocol {
    pub fn detach(&self, state: &mut State, id: OwnerId, events: &mut EventSet) {
        let Stage::Holding(hold) = &state.owners[usize::from(id)].stage else { return };
        let handle = HANDLES + state.handles.len() as OwnerId;
        state.handles.push(Handle { token: hold.token, until: 0, is_spent: false, stage: HandleStage::Asked });
        self.act(state, id, events, |owner, cx| owner.detach(handle, cx));
    }

    /// Who attaches it relies on it as a handle no longer.
    pub fn attach(&self, state: &mut State, id: OwnerId, handle: OwnerId, events: &mut EventSet) {
        let Handle { token, .. } = *state.handle(handle);
        *state.handle(handle) = Handle { until: 0, is_spent: true, ..*state.handle(handle) };
        self.act(state, id, events, |owner, cx| owner.attach(handle, token, cx));
    }

    /// What an answer says of handles.
    pub fn tell_handle(&self, state: &mut State, to: OwnerId, request: Request, answer: Answer, events: &mut EventSet) {
        if !state.awaits(to, &request) {
            return;
        }
        match (request, answer) {
            (Request::Give { to: handle, sent, .. }, Answer::Given(answer)) if handle >= HANDLES => {
                let handle = state.handle(handle);
                match answer {
                    Given::Given { remaining } => {
                        handle.until = sent + remaining;
                        handle.stage = HandleStage::Known { in_doubt: false };
                    }
                    Given::Lost | Given::Refused => handle.stage = HandleStage::Over,
                }
            }
            (Request::Give { from, .. }, Answer::Given(Given::Given { .. })) => {
                state.handle(from).stage = HandleStage::Over;
            }
            (Request::Renew { sent, .. }, Answer::Renewed(Renewed::Renewed { remaining })) if to >= HANDLES => {
                events.add(Event::HandleExtended);
                let handle = state.handle(to);
                if !handle.is_spent {
                    handle.until = handle.until.max(sent + remaining);
                }
            }
            (Request::Release { .. }, Answer::Released(released)) if to >= HANDLES => {
                if matches!(released, Released::Freed { .. }) {
                    events.add(Event::HandleReleased);
                }
                state.handle(to).stage = HandleStage::Over;
            }
            _ => {}
        }
    }
}
