//! P3, judged by what the server does: the first live waiter with a place gets the lock first.

use std::collections::BTreeMap;

use crate::server::Server;

#[derive(Default)]
pub struct Order {
    /// Keyed by lock.
    lines: BTreeMap<String, Line>,
    /// The last attempt of each owner at a lock, and its last attempt that it gave up.
    asked: Seqs,
    given_up: Seqs,
}

/// Keyed by lock and owner.
#[derive(Default)]
struct Seqs(BTreeMap<String, BTreeMap<String, u64>>);

impl Seqs {
    fn of(&self, lock: &str, owner: &str) -> Option<u64> {
        self.0.get(lock)?.get(owner).copied()
    }

    fn insert(&mut self, lock: &str, owner: &str, seq: u64) {
        self.0.entry(lock.to_owned()).or_default().insert(owner.to_owned(), seq);
    }
}

#[derive(Default)]
struct Line {
    /// In order of arrival. A waiter that has lost its place at the server keeps it here.
    waiters: Vec<Waiter>,
    /// The token of the last holder.
    token: Option<u64>,
}

struct Waiter {
    ticket: Ticket,
    claim: Claim,
}

/// The owner and the seq of an attempt.
type Ticket = (String, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// No later waiter may get the lock before it.
    Good,
    /// It was silent, it gave up, or its server has forgotten something.
    Excused,
}

impl Order {
    /// The server is about to serve a waiter. It may pass over silent clients.
    pub fn serves(&mut self, lock: &str, server: &Server, now_us: u64) {
        if let (Some(line), Some(name)) = (self.lines.get_mut(lock), server.names.get(lock)) {
            line.excuse(|ticket| !server.hears(name, &ticket.0, now_us));
        }
    }

    /// The server has served a request about this lock. `waits`: whether a caller of an owner still waits. Returns the
    /// overtaken ticket, and the ticket that overtook it.
    pub fn served(&mut self, lock: &str, server: &Server, waits: impl Fn(&str) -> bool) -> Option<(Ticket, Ticket)> {
        let (line, name) = (self.lines.entry(lock.to_owned()).or_default(), server.names.get(lock)?);
        let is_given_up = |(owner, seq): &Ticket| self.given_up.of(lock, owner).is_some_and(|last| last >= *seq);
        let is_excused = |ticket: &Ticket| !waits(&ticket.0) || is_given_up(ticket);
        line.excuse(is_excused);
        let queued: Vec<_> = name.queue.iter().map(|place| (place.owner.clone(), place.seq)).collect();
        for ticket in &queued {
            // A late copy may bring back an earlier place.
            let is_last = self.asked.of(lock, &ticket.0).is_none_or(|last| last == ticket.1);
            line.add(ticket, if is_last && !is_excused(ticket) { Claim::Good } else { Claim::Excused }, &queued);
        }
        let mut granted: Vec<_> =
            name.holders().filter(|holder| line.token.is_none_or(|last| last < holder.token)).collect();
        granted.sort_unstable_by_key(|holder| holder.token);
        let mut overtaken = None;
        for holder in granted {
            let ticket = (holder.owner.clone(), holder.seq);
            overtaken = overtaken.or_else(|| line.overtaken_by(&ticket));
            line.waiters.retain(|waiter| waiter.ticket != ticket);
            line.token = Some(holder.token);
        }
        line.waiters.retain(|it| it.claim == Claim::Good || queued.contains(&it.ticket));
        overtaken
    }

    pub fn asked(&mut self, lock: &str, owner: &str, seq: u64) {
        self.asked.insert(lock, owner, seq);
    }

    /// A call of this owner has ended, so its attempts so far lose their claim.
    pub fn given_up(&mut self, lock: &str, owner: &str) {
        let last = self.asked.of(lock, owner).unwrap_or(0);
        self.given_up.insert(lock, owner, last);
    }

    /// The lock has moved to this server, or the server has forgotten something: its queue is the line from now on.
    pub fn begin_anew(&mut self, lock: &str, server: &Server) {
        self.lines.remove(lock);
        self.served(lock, server, |_| true);
    }
}

impl Line {
    fn excuse(&mut self, is_meant: impl Fn(&Ticket) -> bool) {
        let meant = self.waiters.iter_mut().filter(|waiter| is_meant(&waiter.ticket));
        meant.for_each(|waiter| waiter.claim = Claim::Excused);
    }

    /// Adds the ticket where its owner has lost a place, or else before the first waiter that is after it at the
    /// server.
    fn add(&mut self, ticket: &Ticket, claim: Claim, queued: &[Ticket]) {
        let position = |ticket: &Ticket| self.waiters.iter().position(|waiter| waiter.ticket == *ticket);
        if position(ticket).is_some() {
            return;
        }
        let is_lost = |it: &Waiter| it.ticket.0 == ticket.0 && it.claim == Claim::Good && !queued.contains(&it.ticket);
        let behind = queued.iter().skip_while(|other| *other != ticket);
        let lost = self.waiters.iter().position(is_lost);
        let at = lost.or_else(|| behind.into_iter().find_map(position)).unwrap_or(self.waiters.len());
        lost.into_iter().for_each(|at| drop(self.waiters.remove(at)));
        self.waiters.insert(at, Waiter { ticket: ticket.clone(), claim });
    }

    fn overtaken_by(&self, granted: &Ticket) -> Option<(Ticket, Ticket)> {
        let mut before = self.waiters.iter().take_while(|waiter| waiter.ticket != *granted);
        let first = before.find(|waiter| waiter.claim == Claim::Good && waiter.ticket.0 != granted.0)?;
        Some((first.ticket.clone(), granted.clone()))
    }
}
