//! What is done with handles: detaching, attaching, extending, releasing.

use super::bounds::Bounds;
use super::events::{Event, EventSet};
use super::handle::{Handle, HandleStage};
use super::network::{Answer, HANDLE_SEQ, HANDLES, OwnerId, Passed, Released, Renewed, Request};
use super::owner::Stage;
use super::protocol::{Shared, State};

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
                let (token, attempt) = (handle.token, HANDLE_SEQ);
                Request::Release { seq: HANDLE_SEQ, holds: 0, weight: 0, token, attempt, copies_until, copy: 0 }
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

impl Shared {
    pub fn detach(&self, state: &mut State, id: OwnerId, events: &mut EventSet) {
        let Stage::Holding(hold) = &state.owners[usize::from(id)].stage else { return };
        let handle = HANDLES + state.handles.len() as OwnerId;
        let (token, weight) = (hold.token, hold.weight);
        state.handles.push(Handle { token, weight, until: 0, is_spent: false, stage: HandleStage::Asked });
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
                    Passed::Given { remaining, .. } => {
                        handle.until = sent + remaining;
                        handle.stage = HandleStage::Known { in_doubt: false };
                    }
                    Passed::Lost | Passed::Refused => handle.stage = HandleStage::Over,
                }
            }
            (Request::Give { from, .. }, Answer::Given(Passed::Given { .. })) => {
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
