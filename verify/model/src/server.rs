//! The server: its keys, and one function for each script in `lua/`, branch by branch. A script is
//! atomic, so each call is one step.

use crate::map::Map;
use crate::network::{ClientId, Message, Nested, Network, Push, Seq, Time, Token};
use crate::protocol::{Bounds, Event, EventSet, Ghost, Violation};
use crate::rules::Rules;

/// The hash of a held lock. Each client of the model has one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lock {
    pub owner: ClientId,
    pub holds: u8,
    /// `!attempt`: the last seq served (R1).
    pub attempt: Seq,
    pub token: Token,
    pub expires: Time,
}

/// One attempt in the queue; the list entry without its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub owner: ClientId,
    pub seq: Seq,
}

/// The key `:tombstone:<owner>`: acquires of this owner up to `seq` are refused (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tombstone {
    pub seq: Seq,
    pub until: Time,
}

/// All keys of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<Lock>,
    /// The list of entries, oldest first. It may contain dead tickets.
    pub queue: Vec<Ticket>,
    /// The sorted set. A ticket is alive until its deadline here.
    pub deadlines: Map<Ticket, Time>,
    /// The last token given out.
    pub token: Token,
    pub tombstones: Map<ClientId, Tombstone>,
}

impl Server {
    /// Expires keys. This does not pass on the lock: the next script that finds it free does.
    pub fn expire(&mut self, now: Time, events: &mut EventSet) {
        if self.lock.is_some_and(|lock| lock.expires <= now) {
            self.lock = None;
            events.add(Event::LeaseExpired);
        }
        self.tombstones.retain(|_, tombstone| tombstone.until > now);
    }

    pub fn held_by(&self, owner: ClientId) -> Option<Lock> {
        self.lock.filter(|lock| lock.owner == owner)
    }

    pub fn is_alive(&self, ticket: Ticket, now: Time) -> bool {
        self.deadlines.get(&ticket).is_some_and(|deadline| *deadline > now)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Acquired {
    Held {
        token: Token,
        holds: u8,
        remaining: Time,
    },
    /// Each later grant has a token above `floor` (R7).
    Queued {
        floor: Token,
    },
    /// Not free, and the caller does not wait.
    Busy,
    /// A nested acquire, but the owner does not hold under that token.
    Lost,
    /// The statuses late, left and stale: too late, behind a tombstone, or a later request of the
    /// owner was served.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Polled {
    Granted { token: Token, remaining: Time },
    Queued { floor: Token },
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Released {
    /// The lock was this owner's, under this token.
    Freed {
        token: Token,
    },
    Held {
        holds: u8,
    },
    /// The hold has another token, or a later request was served.
    Lost,
    /// There was nothing to end.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Renewed {
    Renewed { remaining: Time },
    Lost,
}

/// One run of a script, with the keys, the clock, and the messages it may publish.
pub struct Script<'a> {
    pub rules: &'a Rules,
    pub bounds: &'a Bounds,
    pub now: Time,
    pub server: &'a mut Server,
    pub network: &'a mut Network,
    pub ghost: &'a mut Ghost,
    pub events: &'a mut EventSet,
}

impl Script<'_> {
    /// lua/acquire.lua
    pub fn acquire(&mut self, owner: ClientId, seq: Seq, sent: Time, nested: Option<Nested>) -> Acquired {
        if self.rules.r2_not_after && self.now > self.bounds.not_after(sent) {
            return Acquired::Refused;
        }
        if self.server.tombstones.get(&owner).is_some_and(|tombstone| tombstone.seq >= seq) {
            self.events.add(Event::TombstoneRefused);
            return Acquired::Refused;
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
            return Acquired::Refused;
        }
        // R1: set the count, never add to it, or a retry would count twice.
        let holds = match (self.rules.r1_count_is_set, lock.attempt == seq) {
            (true, true) => lock.holds,
            (true, false) => nested.holds + 1,
            (false, _) => lock.holds + 1,
        };
        if lock.attempt == seq {
            self.events.add(Event::RetryAnswered);
        }
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        self.reply_held()
    }

    fn acquire_first(&mut self, owner: ClientId, seq: Seq) -> Acquired {
        let ticket = Ticket { owner, seq };
        if let Some(lock) = self.server.held_by(owner) {
            if lock.attempt == seq {
                self.events.add(Event::RetryAnswered);
                if !self.rules.r1_retry_is_served_once {
                    self.server.lock = Some(Lock { holds: lock.holds + 1, ..lock });
                }
                return self.reply_held();
            }
            if lock.attempt > seq {
                return Acquired::Refused;
            }
            // The owner asks for a first hold, so its earlier one is over (decision 3).
            self.server.lock = None;
        }
        if self.server.lock.is_none() && self.rules.r6_hand_over {
            self.advance();
            if self.server.held_by(owner).is_some_and(|lock| lock.attempt == seq) {
                return self.reply_held();
            }
        }
        if self.server.lock.is_none() {
            self.record_overtaking(owner);
            if !self.rules.r6_hand_over {
                // Where `advance` runs it takes the caller's ticket out of the queue.
                self.purge(ticket);
            }
            let token = self.hold(ticket, self.bounds.lease);
            return Acquired::Held { token, holds: 1, remaining: self.bounds.lease };
        }
        if !self.bounds.waits(owner) {
            self.events.add(Event::Busy);
            return Acquired::Busy;
        }
        self.enqueue(ticket);
        Acquired::Queued { floor: self.server.lock.map_or(self.server.token, |lock| lock.token) }
    }

    /// Does not shorten the lease: the holder may already rely on the longer one (P1).
    fn reply_held(&mut self) -> Acquired {
        let lease = self.bounds.lease;
        let (token, remaining) = self.extend(lease);
        let holds = self.server.lock.map_or(0, |lock| lock.holds);
        Acquired::Held { token, holds, remaining }
    }

    /// Extends the lock to `lease` from now at least. Returns its token and remaining time.
    fn extend(&mut self, lease: Time) -> (Token, Time) {
        let Some(lock) = &mut self.server.lock else { return (0, 0) };
        lock.expires = lock.expires.max(self.now + lease);
        (lock.token, lock.expires - self.now)
    }

    fn enqueue(&mut self, ticket: Ticket) {
        if !self.server.deadlines.contains_key(&ticket) {
            let now = self.now;
            self.server.deadlines.retain(|_, deadline| *deadline > now);
            // The list may still have the entry from before the ticket expired. That entry then
            // counts (decision 15).
            if self.server.queue.contains(&ticket) {
                self.events.add(Event::OldEntry);
            }
            self.server.queue.push(ticket);
        } else {
            self.events.add(Event::RetryAnswered);
        }
        self.server.deadlines.insert(ticket, self.now + self.bounds.waiter_ttl);
    }

    /// lua/poll.lua, for one ticket.
    pub fn poll(&mut self, owner: ClientId, seq: Seq) -> Polled {
        let ticket = Ticket { owner, seq };
        // Renew before passing on: a client that polls is alive, even if its deadline just passed
        // (decision 5).
        let queued = self.server.deadlines.contains_key(&ticket);
        if queued {
            self.server.deadlines.insert(ticket, self.now + self.bounds.waiter_ttl);
        }
        self.pass_on();
        match self.server.lock {
            Some(lock) if lock.owner == owner && lock.attempt == seq => {
                let (token, remaining) = self.extend(self.bounds.lease);
                Polled::Granted { token, remaining }
            }
            Some(lock) if queued => Polled::Queued { floor: lock.token },
            // Not queued; or the lock is still free, so `advance` found no entry of this ticket.
            _ => {
                self.server.deadlines.remove(&ticket);
                Polled::Unknown
            }
        }
    }

    /// lua/poll.lua without tickets: passes on a free lock.
    pub fn pass_on(&mut self) {
        if self.server.lock.is_none() && self.rules.r6_hand_over {
            self.advance();
        }
    }

    /// lua/leave.lua
    pub fn leave(&mut self, owner: ClientId, seq: Seq, attempt: Seq, copies_until: Time) -> Left {
        self.write_tombstone(owner, seq, copies_until);
        self.purge(Ticket { owner, seq: attempt });
        let ours = self.is_ended_by(owner, seq) && self.rules.r9_leave_passes_on;
        if ours {
            self.events.add(Event::LeftWhileOwner);
            self.server.lock = None;
        }
        self.pass_on();
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
        copies_until: Time,
    ) -> Released {
        if holds > 0 {
            return self.release_some(owner, seq, holds, token);
        }
        if copies_until > 0 {
            self.write_tombstone(owner, seq, copies_until);
            self.purge(Ticket { owner, seq: attempt });
        }
        let lock = self.server.lock;
        let ours = self.is_ended_by(owner, seq);
        if ours {
            self.server.lock = None;
        }
        self.pass_on();
        match lock {
            Some(lock) if ours => Released::Freed { token: lock.token },
            _ => Released::Gone,
        }
    }

    fn release_some(&mut self, owner: ClientId, seq: Seq, holds: u8, token: Token) -> Released {
        let Some(lock) = self.server.held_by(owner).filter(|lock| lock.token == token && lock.attempt <= seq) else {
            return Released::Lost;
        };
        // R1: a retry finds the count that it would set.
        let holds = if lock.attempt == seq { lock.holds } else { holds };
        self.server.lock = Some(Lock { holds, attempt: seq, ..lock });
        Released::Held { holds }
    }

    /// R4: a request ends what the owner has from requests up to its seq. A late copy must not end
    /// a later attempt.
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
                Renewed::Renewed { remaining: lease }
            }
            Some(_) => Renewed::Renewed { remaining: self.extend(lease).1 },
            None if self.server.lock.is_none() && !self.rules.r4_renew_only_extends => {
                let expires = self.now + lease;
                self.server.lock = Some(Lock { owner, holds: 1, attempt: only, token, expires });
                Renewed::Renewed { remaining: lease }
            }
            None => Renewed::Lost,
        }
    }

    /// lua/force_unlock.lua
    pub fn force_unlock(&mut self) {
        if let Some(lock) = self.server.lock.take() {
            self.network.insert(Message::Pushed { to: lock.owner, push: Push::Revoked { token: lock.token } });
        }
        self.pass_on();
    }

    /// lua/lib/purge.lua: takes a ticket out of the queue (R3).
    fn purge(&mut self, ticket: Ticket) {
        if !self.rules.r3_purge || self.server.deadlines.remove(&ticket).is_none() {
            return;
        }
        if self.server.deadlines.is_empty() {
            self.server.queue.clear();
        } else if let Some(index) = self.server.queue.iter().rposition(|other| *other == ticket) {
            self.server.queue.remove(index);
        }
    }

    /// lua/lib/purge.lua: late copies of acquires up to `seq` find the tombstone until one tick after
    /// `copies_until` (R3). After that R2 refuses them.
    fn write_tombstone(&mut self, owner: ClientId, seq: Seq, copies_until: Time) {
        if !self.rules.r3_tombstone || copies_until < self.now.max(1) {
            return;
        }
        // An earlier tombstone is never shortened (A7).
        let old = self.server.tombstones.get(&owner).copied().unwrap_or(Tombstone { seq, until: 0 });
        let tombstone = Tombstone { seq: old.seq.max(seq), until: old.until.max(copies_until + 1) };
        self.server.tombstones.insert(owner, tombstone);
    }

    /// lua/lib/advance.lua: makes the first live ticket the owner (R6). Requires a free lock.
    fn advance(&mut self) {
        let mut examined = 0;
        let mut winner = None;
        for ticket in &self.server.queue {
            examined += 1;
            // A dead ticket and the winner both leave the queue.
            let deadline = self.server.deadlines.remove(ticket);
            if let Some(deadline) = deadline.filter(|deadline| *deadline > self.now) {
                winner = Some((*ticket, deadline));
                break;
            }
        }
        self.server.queue.drain(..examined);
        if examined > 0 && self.server.queue.is_empty() {
            self.server.deadlines.clear();
        }
        if let Some((ticket, deadline)) = winner {
            self.grant(ticket, deadline);
        }
    }

    fn grant(&mut self, ticket: Ticket, deadline: Time) {
        // Capped by the ticket's deadline, so dead waiters do not add up (P6, decision 1).
        let lease = self.bounds.grant_ttl.min(deadline - self.now);
        let token = self.hold(ticket, lease);
        // The push names the duration, since the waiter's settings may differ (R7).
        let lasts = if self.rules.r7_push_says_real_time { lease } else { self.bounds.grant_ttl };
        let push = Push::Grant { seq: ticket.seq, token, lasts };
        self.network.insert(Message::Pushed { to: ticket.owner, push });
        self.events.add(Event::HandOver);
    }

    /// The only transition from free to held.
    fn hold(&mut self, ticket: Ticket, lease: Time) -> Token {
        let token = self.next_token();
        let Ticket { owner, seq: attempt } = ticket;
        self.server.lock = Some(Lock { owner, holds: 1, attempt, token, expires: self.now + lease });
        self.server.token = token;
        if token <= self.ghost.highest {
            self.ghost.violation = Some(Violation::TokenDidNotGrow);
        }
        self.ghost.highest = self.ghost.highest.max(token);
        token
    }

    /// R10: the clock keeps tokens growing after the stored one is lost.
    fn next_token(&self) -> Token {
        let stored = self.server.token + 1;
        if self.rules.r10_clock_in_tokens { stored.max(self.bounds.clock_for_tokens(self.now)) } else { stored }
    }

    /// Records a violation of P3: an acquire takes a free lock past a live ticket of another owner.
    fn record_overtaking(&mut self, owner: ClientId) {
        let waits = |ticket: &Ticket| ticket.owner != owner && self.server.is_alive(*ticket, self.now);
        if self.server.queue.iter().any(waits) {
            self.ghost.violation = Some(Violation::Overtaken);
        }
    }
}
