//! The server: its keys, and one function for each script in `lua/`, which follows it branch by
//! branch. Scripts are atomic, so each is one step.

use crate::map::Map;
use crate::network::{ClientId, Message, Nested, Network, Push, Seq, Time, Token};
use crate::protocol::{Bounds, Ghost, Seen, Sight, Wrong};
use crate::rules::Rules;

/// The lock's hash while somebody holds it. Each client of the model has one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lock {
    pub owner: ClientId,
    pub holds: u8,
    /// `!attempt`: the last seq that was served.
    pub attempt: Seq,
    pub token: Token,
    pub expires: Time,
}

/// An attempt's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub owner: ClientId,
    pub seq: Seq,
}

/// The key `:left:<owner>`: the seq up to which the owner has left (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tombstone {
    pub seq: Seq,
    pub until: Time,
}

/// All keys of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<Lock>,
    /// The list. It may keep dead tickets.
    pub queue: Vec<Ticket>,
    /// The sorted set: this says who is alive.
    pub deadlines: Map<Ticket, Time>,
    /// The last token given.
    pub token: Token,
    pub tombstones: Map<ClientId, Tombstone>,
}

impl Server {
    /// What the server does by itself when time passes: keys expire. The lock is not passed on by
    /// that, the next script to look does it.
    pub fn expire(&mut self, now: Time, seen: &mut Seen) {
        if self.lock.is_some_and(|lock| lock.expires <= now) {
            self.lock = None;
            seen.add(Sight::LeaseExpired);
        }
        self.tombstones.retain(|_, tombstone| tombstone.until > now);
    }

    pub fn held_by(&self, owner: ClientId) -> Option<Lock> {
        self.lock.filter(|lock| lock.owner == owner)
    }

    pub fn is_alive(&self, ticket: Ticket, now: Time) -> bool {
        self.deadlines.get(&ticket).is_some_and(|ends| *ends > now)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Acquired {
    Held {
        token: Token,
        holds: u8,
        left: Time,
    },
    /// No later grant has a token up to `floor`.
    Queued {
        floor: Token,
    },
    /// Not free, and not willing to wait.
    Busy,
    /// Nested, but the owner does not hold under that token.
    Lost,
    /// Late, or a tombstone, or a later request of the owner was served.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Polled {
    Granted { token: Token, left: Time },
    Queued { floor: Token },
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Released {
    /// It was this owner's; the token it held.
    Freed {
        token: Token,
    },
    Held {
        holds: u8,
    },
    /// Not under that token, or a later request was served.
    Lost,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Renewed {
    Renewed { left: Time },
    Lost,
}

/// One run of a script: the keys, the clock, and what it publishes.
pub struct Script<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub server: &'a mut Server,
    pub network: &'a mut Network,
    pub ghost: &'a mut Ghost,
    pub seen: &'a mut Seen,
}

impl Script<'_> {
    /// lua/acquire.lua
    pub fn acquire(&mut self, owner: ClientId, seq: Seq, sent: Time, nested: Option<Nested>) -> Acquired {
        if self.rules.r2_not_after && self.now > self.bounds.not_after(sent) {
            return Acquired::Over;
        }
        if self.server.tombstones.get(&owner).is_some_and(|tombstone| tombstone.seq >= seq) {
            self.seen.add(Sight::TombstoneRefused);
            return Acquired::Over;
        }
        match nested {
            Some(nested) => self.reenter(owner, seq, nested),
            None => self.acquire_first(owner, seq),
        }
    }

    fn reenter(&mut self, owner: ClientId, seq: Seq, nested: Nested) -> Acquired {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == nested.token) else {
            return Acquired::Lost;
        };
        if lock.attempt > seq {
            return Acquired::Over;
        }
        // Set, never added to: a retry finds the number it would have set (R1).
        let holds = match (self.rules.r1_count_is_set, lock.attempt == seq) {
            (true, true) => lock.holds,
            (true, false) => nested.holds + 1,
            (false, _) => lock.holds + 1,
        };
        if lock.attempt == seq {
            self.seen.add(Sight::RetryAnswered);
        }
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        self.held_by_us()
    }

    fn acquire_first(&mut self, owner: ClientId, seq: Seq) -> Acquired {
        let ticket = Ticket { owner, seq };
        if let Some(lock) = self.server.held_by(owner) {
            if lock.attempt == seq {
                self.seen.add(Sight::RetryAnswered);
                if !self.rules.r1_retry_is_served_once {
                    self.server.lock = Some(Lock { holds: lock.holds + 1, ..lock });
                }
                return self.held_by_us();
            }
            if lock.attempt > seq {
                return Acquired::Over;
            }
            // By asking anew the owner says that its earlier hold is over (decision 3).
            self.server.lock = None;
        }
        if self.server.lock.is_none() && self.rules.r6_hand_over {
            self.advance();
            if self.server.held_by(owner).is_some_and(|lock| lock.attempt == seq) {
                return self.held_by_us();
            }
        }
        if self.server.lock.is_none() {
            self.note_overtaking(owner);
            if !self.rules.r6_hand_over {
                // `advance` would have found its own ticket.
                self.purge(ticket);
            }
            let token = self.hold(ticket, self.bounds.lease);
            return Acquired::Held { token, holds: 1, left: self.bounds.lease };
        }
        if !self.bounds.waits(owner) {
            self.seen.add(Sight::Busy);
            return Acquired::Busy;
        }
        self.enqueue(ticket);
        Acquired::Queued { floor: self.server.lock.map_or(self.server.token, |lock| lock.token) }
    }

    /// The lease never shrinks here: somebody may already rely on the longer one.
    fn held_by_us(&mut self) -> Acquired {
        let lease = self.bounds.lease;
        let (token, left) = self.extend(lease);
        let holds = self.server.lock.map_or(0, |lock| lock.holds);
        Acquired::Held { token, holds, left }
    }

    /// To `lease` from now at least. Returns the token and what is left then.
    fn extend(&mut self, lease: Time) -> (Token, Time) {
        let Some(lock) = &mut self.server.lock else { return (0, 0) };
        lock.expires = lock.expires.max(self.now + lease);
        (lock.token, lock.expires - self.now)
    }

    fn enqueue(&mut self, ticket: Ticket) {
        if !self.server.deadlines.contains_key(&ticket) {
            let now = self.now;
            self.server.deadlines.retain(|_, ends| *ends > now);
            // The list may still have the place from before it was dead; that one counts then
            // (docs/design.md, decision 15).
            if self.server.queue.contains(&ticket) {
                self.seen.add(Sight::OldPlace);
            }
            self.server.queue.push(ticket);
        } else {
            self.seen.add(Sight::RetryAnswered);
        }
        self.server.deadlines.insert(ticket, self.now + self.bounds.waiter_ttl);
    }

    /// lua/poll.lua, for one ticket
    pub fn poll(&mut self, owner: ClientId, seq: Seq) -> Polled {
        let ticket = Ticket { owner, seq };
        // Renew first, then pass on: whoever asks is alive.
        let placed = self.server.deadlines.contains_key(&ticket);
        if placed {
            self.server.deadlines.insert(ticket, self.now + self.bounds.waiter_ttl);
        }
        self.clear();
        match self.server.lock {
            Some(lock) if lock.owner == owner && lock.attempt == seq => {
                let (token, left) = self.extend(self.bounds.lease);
                Polled::Granted { token, left }
            }
            Some(lock) if placed => Polled::Queued { floor: lock.token },
            // Free, nobody left to pass it on to, and still this ticket was not reached.
            _ => {
                self.server.deadlines.remove(&ticket);
                Polled::Unknown
            }
        }
    }

    /// lua/poll.lua without tickets: passes a free lock on.
    pub fn clear(&mut self) {
        if self.server.lock.is_none() && self.rules.r6_hand_over {
            self.advance();
        }
    }

    /// lua/leave.lua
    pub fn leave(&mut self, owner: ClientId, seq: Seq, attempt: Seq, last: Time) -> Left {
        self.bury(owner, seq, last);
        self.purge(Ticket { owner, seq: attempt });
        let ours = self.is_ended_by(owner, seq) && self.rules.r9_leave_passes_on;
        if ours {
            self.seen.add(Sight::LeftWhileOwner);
            self.server.lock = None;
        }
        self.clear();
        Left::Done
    }

    /// lua/release.lua
    pub fn release(
        &mut self,
        owner: ClientId,
        seq: Seq,
        holds: u8,
        token: Token,
        attempt: Seq,
        last: Time,
    ) -> Released {
        if holds > 0 {
            return self.release_some(owner, seq, holds, token);
        }
        if last > 0 {
            self.bury(owner, seq, last);
            self.purge(Ticket { owner, seq: attempt });
        }
        let lock = self.server.lock;
        let ours = self.is_ended_by(owner, seq);
        if ours {
            self.server.lock = None;
        }
        self.clear();
        match lock {
            Some(lock) if ours => Released::Freed { token: lock.token },
            _ => Released::Gone,
        }
    }

    fn release_some(&mut self, owner: ClientId, seq: Seq, holds: u8, token: Token) -> Released {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == token && lock.attempt <= seq) else {
            return Released::Lost;
        };
        // A retry finds what it would have set.
        let holds = if lock.attempt == seq { lock.holds } else { holds };
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        Released::Held { holds }
    }

    /// R4: what the owner has from requests up to `seq`, never a later attempt.
    fn is_ended_by(&self, owner: ClientId, seq: Seq) -> bool {
        self.server.held_by(owner).is_some_and(|lock| lock.attempt <= seq || !self.rules.r4_ends_compare_seq)
    }

    /// lua/renew.lua
    pub fn renew(&mut self, owner: ClientId, token: Token, only: Seq) -> Renewed {
        let lease = self.bounds.lease;
        let ours = self.server.held_by(owner);
        match ours.filter(|lock| lock.token == token || !self.rules.r4_renew_compares_token) {
            Some(lock) if lock.attempt == only => {
                self.server.lock = Some(Lock { expires: self.now + lease, ..lock });
                Renewed::Renewed { left: lease }
            }
            Some(_) => Renewed::Renewed { left: self.extend(lease).1 },
            None if self.server.lock.is_none() && !self.rules.r4_renew_only_extends => {
                let expires = self.now + lease;
                self.server.lock = Some(Lock { owner, holds: 1, attempt: only, token, expires });
                Renewed::Renewed { left: lease }
            }
            None => Renewed::Lost,
        }
    }

    /// lua/force_unlock.lua
    pub fn force_unlock(&mut self) {
        if let Some(lock) = self.server.lock.take() {
            self.network.insert(Message::Pushed { to: lock.owner, push: Push::Revoked { token: lock.token } });
        }
        self.clear();
    }

    /// lua/lib/purge.lua: takes one ticket out of the queue.
    fn purge(&mut self, ticket: Ticket) {
        if !self.rules.r3_purge || self.server.deadlines.remove(&ticket).is_none() {
            return;
        }
        if self.server.deadlines.is_empty() {
            self.server.queue.clear();
        } else if let Some(place) = self.server.queue.iter().rposition(|other| *other == ticket) {
            self.server.queue.remove(place);
        }
    }

    /// lua/lib/purge.lua, R3: late copies of requests up to `seq` find this until `last`, and one
    /// tick longer; after that R2 refuses them anyway.
    fn bury(&mut self, owner: ClientId, seq: Seq, last: Time) {
        if !self.rules.r3_tombstone || last < self.now.max(1) {
            return;
        }
        // Neither the seq nor the time of an earlier one shrinks.
        let old = self.server.tombstones.get(&owner).copied().unwrap_or(Tombstone { seq, until: 0 });
        let tombstone = Tombstone { seq: old.seq.max(seq), until: old.until.max(last + 1) };
        self.server.tombstones.insert(owner, tombstone);
    }

    /// lua/lib/advance.lua: makes the first live ticket the owner (R6). The lock must be free.
    fn advance(&mut self) {
        let mut seen = 0;
        let mut winner = None;
        for ticket in &self.server.queue {
            seen += 1;
            // Either way it is out of the queue: dead, or about to own the lock.
            let ends = self.server.deadlines.remove(ticket);
            if let Some(ends) = ends.filter(|ends| *ends > self.now) {
                winner = Some((*ticket, ends));
                break;
            }
        }
        self.server.queue.drain(..seen);
        if seen > 0 && self.server.queue.is_empty() {
            self.server.deadlines.clear();
        }
        if let Some((ticket, ends)) = winner {
            self.grant(ticket, ends);
        }
    }

    fn grant(&mut self, ticket: Ticket, ends: Time) {
        // Never longer than the ticket's own deadline (P6, decision 1).
        let lease = self.bounds.grant_ttl.min(ends - self.now);
        let token = self.hold(ticket, lease);
        // The message says for how long: the waiter's own settings may differ (R7).
        let lasts = if self.rules.r7_push_says_real_time { lease } else { self.bounds.grant_ttl };
        let push = Push::Grant { seq: ticket.seq, token, lasts };
        self.network.insert(Message::Pushed { to: ticket.owner, push });
        self.seen.add(Sight::HandOver);
    }

    /// The one place where the lock goes from free to held.
    fn hold(&mut self, ticket: Ticket, lease: Time) -> Token {
        let token = self.next_token();
        let Ticket { owner, seq: attempt } = ticket;
        self.server.lock = Some(Lock { owner, holds: 1, attempt, token, expires: self.now + lease });
        self.server.token = token;
        if token <= self.ghost.highest {
            self.ghost.wrong = Some(Wrong::TokenDidNotGrow);
        }
        self.ghost.highest = self.ghost.highest.max(token);
        token
    }

    /// R10: the clock keeps tokens growing when the stored one was lost.
    fn next_token(&self) -> Token {
        let stored = self.server.token + 1;
        if self.rules.r10_clock_in_tokens { stored.max(self.bounds.clock_for_tokens(self.now)) } else { stored }
    }

    /// P3, seen from where it would go wrong: a free lock taken past a live ticket of another.
    fn note_overtaking(&mut self, owner: ClientId) {
        let waits = |ticket: &&Ticket| ticket.owner != owner && self.server.is_alive(**ticket, self.now);
        if self.server.queue.iter().any(|ticket| waits(&ticket)) {
            self.ghost.wrong = Some(Wrong::Overtaken);
        }
    }
}
