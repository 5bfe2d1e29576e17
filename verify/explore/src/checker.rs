//! Checks what must always be true (P1, P2, P5 to P9), by what callers see and by what remains at the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock_proto::effect::{HoldId, Outcome};
use fairlock_proto::error::CallError;
use fairlock_proto::event::CallId;
use fairlock_proto::time::Instant;

use crate::caller::{Caller, FIRST_LEASE, HandleState, LEASE, OPERATION, POLL, State, Taken, WAITER_TTL};
use crate::names::{is_shared, limit_of};

/// How long a name may have waiters without a new holder after all trouble has ended. A hold or a place of a dead
/// client lasts at most this long, and then a poll finds the lock free.
const STALLED: Duration = Duration::from_secs(
    WAITER_TTL.as_secs() + FIRST_LEASE.as_secs() + LEASE.as_secs() + 1 + POLL.as_secs() + 4 * OPERATION.as_secs(),
);

/// A message takes 20 ms here.
pub const NOTIFIED: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Checker {
    /// The names that have moved, and their new servers.
    pub moved: BTreeMap<String, usize>,
    pub holds: u64,
    /// The guards that callers rely on, by client and call.
    guards: BTreeMap<(usize, CallId), Guard>,
    /// The last token of each lock that a caller saw, and its hold.
    tokens: BTreeMap<usize, (u64, usize, HoldId)>,
    /// The tokens of shared names, and their holds.
    shares: BTreeMap<(usize, u64), (usize, HoldId)>,
    /// The tokens of holds that ended by force. Their holders may not know it yet.
    forced: BTreeMap<(usize, u64), Instant>,
    grants: BTreeMap<(usize, CallId), u64>,
    /// Since when a name has waiters and no guard.
    stalled: BTreeMap<usize, Instant>,
    /// The last timer of each client, and how often it was due.
    timers: BTreeMap<usize, (Instant, u32)>,
    broken: Option<String>,
}

#[derive(Debug, Clone, Copy)]
pub struct Guard {
    name: usize,
    owner: u64,
    weight: u32,
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

    /// P8: a holder learns of a loss at its deadline, and of a force_unlock by a message if none is lost.
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
            Outcome::Failed(CallError::Timeout(_)) if caller.limit.is_none() => {
                self.breaks(format!("c{client} {call:?}: a wait without a limit ends"));
            }
            Outcome::Failed(CallError::Timeout(_) | CallError::Unreachable(_))
                if caller.limit.is_some_and(|limit| now < limit) =>
            {
                self.breaks(format!("c{client} {call:?}: it times out too early"));
            }
            Outcome::PassedOver if caller.state == State::Holds => {
                self.breaks(format!("P8: c{client} {call:?}: a guard is passed over that was claimed"));
            }
            Outcome::Busy(_) if caller.waits => {
                self.breaks(format!("c{client} {call:?}: who waits hears that it is busy"));
            }
            _ => self.ends(client, call),
        }
    }

    /// R16: a released handle does not come back. An attached hold keeps its token.
    fn attached(&mut self, client: usize, caller: &Caller, taken: Taken, token: u64, hold: HoldId) {
        if token != taken.token {
            self.breaks(format!("P2: the handle of {} is attached as {token}", taken.token));
        }
        if taken.state == HandleState::GivenBack {
            self.breaks(format!("R16: c{client} attaches {token} of name {}, which was given back", caller.name));
        }
        if is_shared(caller.name) {
            self.shares.insert((caller.name, token), (client, hold));
        } else if self.tokens.get(&caller.name).is_some_and(|(last, ..)| *last > token) {
            self.breaks(format!("P2: {token} at name {} is attached after a later one", caller.name));
        } else {
            self.tokens.insert(caller.name, (token, client, hold));
        }
    }

    /// Each share has its own token.
    fn shared(&mut self, client: usize, caller: &Caller, token: u64, hold: HoldId) {
        let of = *self.shares.entry((caller.name, token)).or_insert((client, hold));
        if of != (client, hold) {
            self.breaks(format!("P2: two holds of name {} have the token {token}", caller.name));
        }
    }

    /// The caller does not rely on a guard that is being detached.
    pub fn rests(&mut self, client: usize, call: CallId) -> Option<Guard> {
        self.guards.remove(&(client, call))
    }

    pub fn goes_on(&mut self, client: usize, call: CallId, guard: Guard) {
        // The client may have renewed the hold while the detach waited for its turn.
        self.guards.entry((client, call)).or_insert(guard);
    }

    /// The guard has less weight from now on.
    pub fn shrinks(&mut self, client: usize, call: CallId, weight: u32) {
        if let Some(guard) = self.guards.get_mut(&(client, call)) {
            guard.weight = guard.weight.min(weight);
        }
    }

    /// P2: the next hold has a greater token, and nested guards have the token of their hold.
    fn granted(&mut self, client: usize, caller: &Caller, token: u64, hold: HoldId) {
        // The answer comes after a forced unlock: the hold is lost as it begins.
        if self.forced.contains_key(&(caller.name, token)) {
            return;
        }
        if let Some(taken) = caller.attaches {
            return self.attached(client, caller, taken, token, hold);
        }
        if is_shared(caller.name) {
            return self.shared(client, caller, token, hold);
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

    /// P1: the guards that are valid now are within the limit, and the guards of a lock have one owner.
    pub fn valid(&mut self, client: usize, call: CallId, caller: &Caller, until: Instant, now: Instant) {
        let is_forced =
            self.grants.get(&(client, call)).is_some_and(|token| self.forced.contains_key(&(caller.name, *token)));
        // The guards of one owner share the weight of the greatest.
        let mut of_owners = BTreeMap::from([((client, caller.owner), caller.weight)]);
        let mut others = Vec::new();
        for ((other, of), guard) in self.guards.iter().filter(|(_, guard)| guard.name == caller.name) {
            if guard.until > now && !self.forced.contains_key(&(guard.name, guard.token)) {
                let weight = of_owners.entry((*other, guard.owner)).or_default();
                *weight = guard.weight.max(*weight);
                others.push((*other, *of, guard.until));
            }
        }
        let limit = limit_of(caller.name);
        if of_owners.values().sum::<u32>() > limit && until > now && !is_forced {
            let (name, weight) = (caller.name, caller.weight);
            self.breaks(format!(
                "P1: c{client} {call:?} has {weight} of {name} at {now:?}, until {until:?}, beside {others:?}"
            ));
        }
        let token = self.grants.get(&(client, call)).copied().unwrap_or_default();
        let Caller { name, owner, weight, .. } = *caller;
        self.guards.insert((client, call), Guard { name, owner, weight, token, until });
    }

    pub fn ends(&mut self, client: usize, call: CallId) {
        self.guards.remove(&(client, call));
        self.grants.remove(&(client, call));
    }

    /// P6, P7, P9: a name with waiters gets a holder.
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

    /// A step does a bounded part of the due work, so a timer may stay due for a few steps, but not without end.
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
