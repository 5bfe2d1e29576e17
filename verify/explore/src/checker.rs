//! What must always be true (P1, P2, P5 to P9), by what callers see and by what is left at the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock_proto::effect::{HoldId, Outcome};
use fairlock_proto::error::CallError;
use fairlock_proto::event::CallId;
use fairlock_proto::time::Instant;

use crate::caller::{Caller, FIRST_LEASE, LEASE, OPERATION, POLL, State, WAITER_TTL};

/// How long a name may have waiters and nobody who was granted it, when all trouble is over: a hold or a place of a client that
/// is gone lasts so long at most, then a poll finds the lock free.
const STALLED: Duration = Duration::from_secs(
    WAITER_TTL.as_secs() + FIRST_LEASE.as_secs() + LEASE.as_secs() + 1 + POLL.as_secs() + 4 * OPERATION.as_secs(),
);

/// A message needs 20 ms here.
pub const NOTIFIED: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Checker {
    /// The names that have moved, and to which server.
    pub moved: BTreeMap<String, usize>,
    pub holds: u64,
    /// By client and call: what its guard relies on.
    guards: BTreeMap<(usize, CallId), Guard>,
    /// The last token of each name that a caller saw, and of which hold.
    tokens: BTreeMap<usize, (u64, usize, HoldId)>,
    /// The tokens of holds that were ended by force: their holders may not know it yet.
    forced: BTreeMap<(usize, u64), Instant>,
    grants: BTreeMap<(usize, CallId), u64>,
    /// Since when a name has waiters and no guard.
    stalled: BTreeMap<usize, Instant>,
    /// The last timer of each client, and how often it was due.
    timers: BTreeMap<usize, (Instant, u32)>,
    broken: Option<String>,
}

struct Guard {
    name: usize,
    owner: u64,
    token: u64,
    until: Instant,
}

impl Checker {
    pub fn broken(&self) -> Option<String> {
        self.broken.clone()
    }

    pub fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub fn forced(&mut self, name: usize, token: u64, now: Instant) {
        self.forced.insert((name, token), now);
    }

    /// P8: a holder learns at its deadline that it has lost the lock, and of a force_unlock by a message if none is lost.
    pub fn notified(&mut self, is_awake: impl Fn(usize) -> bool, is_quiet: bool, now: Instant) {
        let of_living = self.guards.iter().filter(|((client, _), _)| is_awake(*client));
        let is_forced = |guard: &Guard| {
            let forced = self.forced.get(&(guard.name, guard.token)).copied();
            is_quiet && forced.is_some_and(|forced| now.since(forced) > NOTIFIED)
        };
        let late = of_living.into_iter().find(|(_, guard)| now.since(guard.until) > NOTIFIED || is_forced(guard));
        if let Some(((client, call), guard)) = late {
            let until = guard.until;
            self.breaks(format!("P8: c{client} {call:?} is not told that its hold is lost, which ended at {until:?}"));
        }
    }

    pub fn told(&mut self, client: usize, call: CallId, caller: &Caller, outcome: &Outcome, now: Instant) {
        match outcome {
            Outcome::Granted { token, hold, until, .. } => {
                self.holds += 1;
                self.granted(client, caller, *token, *hold);
                self.grants.insert((client, call), *token);
                self.valid(client, call, caller, *until, now);
            }
            Outcome::Failed(CallError::Timeout) if caller.limit.is_none() => {
                self.breaks(format!("c{client} {call:?}: a wait without a limit ends"));
            }
            Outcome::Failed(CallError::Timeout | CallError::Unreachable(_))
                if caller.limit.is_some_and(|limit| now < limit) =>
            {
                self.breaks(format!("c{client} {call:?}: it times out too early"));
            }
            Outcome::PassedOver if caller.state == State::Holds => {
                self.breaks(format!("P8: c{client} {call:?}: a guard is passed over that was claimed"));
            }
            Outcome::Busy if caller.waits => {
                self.breaks(format!("c{client} {call:?}: who waits hears that it is busy"));
            }
            _ => self.ends(client, call),
        }
    }

    /// P2: the next hold has a greater token, and nested guards have that of their hold.
    fn granted(&mut self, client: usize, caller: &Caller, token: u64, hold: HoldId) {
        // The answer to a grant that was ended by force meanwhile: it is lost as it begins.
        if self.forced.contains_key(&(caller.name, token)) {
            return;
        }
        if let Some((last, of, same)) = self.tokens.get(&caller.name).copied() {
            if (of, same) == (client, hold) {
                if token != last {
                    self.breaks(format!("P2: one hold has the tokens {last} and {token}"));
                }
            } else if token <= last {
                self.breaks(format!("P2: {token} at name {} comes after {last}", caller.name));
            }
        }
        self.tokens.insert(caller.name, (token, client, hold));
    }

    /// P1: no guard of another owner is relied on at this moment.
    pub fn valid(&mut self, client: usize, call: CallId, caller: &Caller, until: Instant, now: Instant) {
        let is_other = |(other, guard): &(&(usize, CallId), &Guard)| {
            let is_other = other.0 != client || guard.owner != caller.owner;
            let is_forced = self.forced.contains_key(&(guard.name, guard.token));
            is_other && guard.name == caller.name && guard.until > now && !is_forced
        };
        let other = self.guards.iter().find(is_other).map(|((client, call), guard)| (*client, *call, guard.until));
        let is_forced =
            self.grants.get(&(client, call)).is_some_and(|token| self.forced.contains_key(&(caller.name, *token)));
        if let Some((other, of, its_end)) = other.filter(|_| until > now && !is_forced) {
            self.breaks(format!(
                "P1: c{client} {call:?} and c{other} {of:?} hold {} at {now:?}, until {until:?} and {its_end:?}",
                caller.name
            ));
        }
        let token = self.grants.get(&(client, call)).copied().unwrap_or_default();
        self.guards.insert((client, call), Guard { name: caller.name, owner: caller.owner, token, until });
    }

    pub fn ends(&mut self, client: usize, call: CallId) {
        self.guards.remove(&(client, call));
        self.grants.remove(&(client, call));
    }

    /// P6, P7, P9: somebody is granted a name that is waited for.
    pub fn progress(&mut self, name: usize, is_waited_for: bool, is_trouble: bool, now: Instant) {
        let is_held = self.guards.values().any(|guard| guard.name == name && guard.until > now);
        if !is_waited_for || is_trouble || is_held {
            self.stalled.remove(&name);
            return;
        }
        let since = *self.stalled.entry(name).or_insert(now);
        if now.since(since) > STALLED {
            self.breaks(format!("P9: name {name} has waiters since {since:?}, and nobody is granted it"));
        }
    }

    /// A step does a bounded part of what is due, so that a timer may stay due for a few steps, but not for ever.
    pub fn timer(&mut self, client: usize, due: Instant) {
        let (last, times) = self.timers.entry(client).or_default();
        *times = if *last == due { *times + 1 } else { 0 };
        *last = due;
        if *times > 1000 {
            self.breaks(format!("a timer of c{client} stays due at {due:?}"));
        }
    }

    pub fn left(&mut self, client: usize, callers: &[String], is_idle: bool) {
        if !callers.is_empty() {
            self.breaks(format!("c{client}: callers have had no outcome: {callers:?}"));
        }
        if !is_idle {
            self.breaks(format!("P10: c{client} is not idle at the end"));
        }
    }

    pub fn left_at_server(&mut self, is_free: bool, what: &str) {
        if !is_free {
            self.breaks(format!("P5: something is held or waited for at the end: {what}"));
        }
    }
}
