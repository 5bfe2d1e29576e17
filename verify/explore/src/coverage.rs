//! Which events met which stages, and which stage followed which.

use std::collections::{BTreeMap, BTreeSet};

use fairlock_proto::event::{Event, LinkEvent};
use fairlock_proto::push::Push;
use fairlock_proto::session::Session;
use fairlock_proto::slab::Id;
use fairlock_proto::time::Instant;

use crate::witness::{StageName, concerned, stage_of};

/// An event without its data.
pub const KINDS: [&str; 19] = [
    "Call",
    "Disturbed",
    "Claimed",
    "Unlock",
    "Shrink",
    "Extend",
    "Detach",
    "Gone",
    "Answer",
    "Refusal",
    "No answer",
    "Grant",
    "Revoked",
    "Up",
    "Down",
    "Serves",
    "Time",
    "Close",
    "RuntimeGone",
];

pub fn kind(event: &Event<'_>) -> &'static str {
    use fairlock_proto::error::RequestError;
    match event {
        Event::Call(..) => "Call",
        Event::Disturbed(_) => "Disturbed",
        Event::Claimed(_) => "Claimed",
        Event::Unlock(_) => "Unlock",
        Event::Shrink { .. } => "Shrink",
        Event::Extend { .. } => "Extend",
        Event::Detach { .. } => "Detach",
        // These two concern no owner.
        Event::Ask(..) => "Ask",
        Event::Unread(_) => "Unread",
        Event::Gone(_) => "Gone",
        Event::Replied(_, Ok(_)) => "Answer",
        Event::Replied(_, Err(RequestError::Refused(_))) => "Refusal",
        Event::Replied(_, Err(_)) => "No answer",
        Event::Pushed(_, Push::Grant { .. }) => "Grant",
        Event::Pushed(_, Push::Revoked { .. }) => "Revoked",
        Event::Link(LinkEvent::Up { .. }) => "Up",
        Event::Link(LinkEvent::Down(..)) => "Down",
        Event::Link(LinkEvent::Serves(..)) => "Serves",
        Event::Time => "Time",
        Event::Close => "Close",
        Event::RuntimeGone => "RuntimeGone",
    }
}

#[derive(Debug, Clone, Default)]
pub struct Coverage {
    pub met: BTreeMap<(StageName, &'static str), u64>,
    pub transitions: BTreeSet<(StageName, StageName)>,
}

impl Coverage {
    pub fn before(&self, session: &Session, event: &Event<'_>, now: Instant) -> Vec<(Option<Id>, StageName)> {
        concerned(session, event, now).into_iter().map(|id| (id, stage_of(session, id))).collect()
    }

    pub fn after(&mut self, session: &Session, kind: &'static str, before: Vec<(Option<Id>, StageName)>) {
        for (id, stage) in before {
            *self.met.entry((stage, kind)).or_default() += 1;
            if id.is_some() {
                self.transitions.insert((stage, stage_of(session, id)));
            }
        }
    }

    pub fn add(&mut self, other: &Self) {
        for (pair, times) in &other.met {
            *self.met.entry(*pair).or_default() += times;
        }
        self.transitions.extend(&other.transitions);
    }

    /// The pairs of stages that followed each other, in lines such as `Idle -> Asking`.
    pub fn arrows(&self) -> BTreeSet<String> {
        let moves = self.transitions.iter().filter(|(from, to)| from != to);
        moves.map(|(from, to)| format!("{from:?} -> {to:?}")).collect()
    }

    /// The table of stages and events: how often each pair met.
    pub fn table(&self) -> String {
        let mut table = format!("{:14}", "");
        KINDS.iter().for_each(|kind| table += &format!("{kind:>12}"));
        for stage in StageName::ALL {
            table += &format!("\n{:14}", format!("{stage:?}"));
            for kind in KINDS {
                table += &format!("{:>12}", self.met.get(&(stage, kind)).copied().unwrap_or(0));
            }
        }
        table
    }
}
