//! What a client has for all its owners at the name: its polls, what it trusts from them, and its doubt.

use crate::bounds::Bounds;
use crate::ghost::{Event, EventSet};
use crate::network::{ClientId, Network, Poll, Seq, Time, Token};
use crate::rules::Rules;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next_poll: Seq,
    /// Polls that the client may still give up while they are in flight.
    pub timeouts: u8,
    /// The poll without an answer, and since when.
    pub poll: Option<Poll>,
    /// R7: send time and floor of the last answered poll of the name.
    pub answered: Option<(Time, Token)>,
    pub doubt: Doubt,
    /// Every poll asks for all tickets, as with 32 waiters or fewer: nothing is left to doubt.
    verifies_always: bool,
    /// The last poll verified. The rotation carries each ticket in every second poll.
    pub verified: bool,
    /// No push reaches it. It does not know that.
    pub deaf: bool,
}

/// Whether a waiter of this client may have lost its place unnoticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doubt {
    None,
    Raised,
    /// A poll that was sent after the doubt arose asks for all tickets.
    Verifying,
}

impl Client {
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            next_poll: 1,
            timeouts: bounds.timeouts,
            poll: None,
            answered: None,
            doubt: Doubt::None,
            verifies_always: bounds.verifies_always,
            verified: false,
            deaf: false,
        }
    }

    pub fn raise_doubt(&mut self, rules: &Rules, events: &mut EventSet) {
        if rules.doubt && !self.verifies_always {
            events.add(Event::Doubted);
            self.doubt = Doubt::Raised;
        }
    }

    /// R8: one poll at a time. A lost poll is given up.
    pub fn may_poll(&self, id: ClientId, network: &Network) -> bool {
        self.poll.is_none_or(|poll| !network.has_poll(id, poll.number))
    }

    pub fn awaits(&self, poll: &Poll) -> bool {
        self.poll == Some(*poll)
    }

    /// The poll has no answer in time, or the connection broke.
    pub fn give_up_poll(&mut self, rules: &Rules, events: &mut EventSet) {
        if self.poll.take().is_some() {
            if self.doubt == Doubt::Verifying {
                self.doubt = Doubt::Raised;
            }
            if rules.doubt_unanswered {
                self.raise_doubt(rules, events);
            }
        }
    }

    /// The next poll. In doubt it asks for all tickets.
    pub fn next_poll(&mut self, now: Time, waiting: [Seq; 2], rotates: bool, rules: &Rules) -> Poll {
        let verifies = self.doubt != Doubt::None || rotates && !self.verified || self.verifies_always;
        if self.doubt != Doubt::None {
            self.doubt = if rules.doubt_until_answered { Doubt::Verifying } else { Doubt::None };
        }
        let poll = Poll { number: self.next_poll, sent: now, waiting, verifies };
        self.next_poll += 1;
        self.verified = verifies && !self.verifies_always;
        self.poll = Some(poll);
        poll
    }
}
