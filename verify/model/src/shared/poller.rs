//! What a client has for all its owners at the name: its polls, and what it trusts from them. Verification and doubt are those
//! of the lock, and not modelled here: each poll asks for all tickets, or for the first of them.

use super::network::{ClientId, Network, Poll, Seq, Time, Token};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub next_poll: Seq,
    pub poll: Option<Poll>,
    /// R7: send time and floor of the last answer of the name, whichever ticket it was about.
    pub answered: Option<(Time, Token)>,
    /// No message reaches it. It does not know that.
    pub deaf: bool,
}

impl Client {
    pub fn new() -> Self {
        Self { next_poll: 1, poll: None, answered: None, deaf: false }
    }

    /// R8: one poll at a time. A lost poll is given up.
    pub fn may_poll(&self, id: ClientId, network: &Network) -> bool {
        self.poll.is_none_or(|poll| !network.carries_poll(id, poll.number))
    }

    pub fn note_answer(&mut self, sent: Time, floor: Token) {
        if self.answered.is_none_or(|(before, _)| before <= sent) {
            self.answered = Some((sent, floor));
        }
    }

    pub fn awaits(&self, poll: &Poll) -> bool {
        self.poll == Some(*poll)
    }

    pub fn next_poll(&mut self, now: Time, asked: [Seq; 2]) -> Poll {
        let poll = Poll { number: self.next_poll, sent: now, asked };
        self.next_poll += 1;
        self.poll = Some(poll);
        poll
    }
}
