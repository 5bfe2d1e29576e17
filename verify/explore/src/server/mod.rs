//! A small model of the scripts of `lua/`: their effect on the names of one server, in a few lines each.
//! `tests/lua.rs` compares it with the scripts on random sequences. `lock` is for locks, `shared` for semaphores and
//! read-write locks, and `run` for what both have in common.
//!
//! It leaves out what a few clients never meet:
//!
//! - the bounds of one call, and `!skip`, which notes 32 passed-over places. So `more` has one reason: an owner has two
//!   tickets at a shared name;
//! - places far from both ends, and tickets without a place or places without a ticket, which come only from those, from
//!   a refused command, or by hand. The model has one list for both;
//! - the places that `max_waiters` sweeps out before it refuses a new one;
//! - a proposed token at a shared name: only locks are held on several servers;
//! - the end of `token_ttl`, and formats of other versions;
//! - the labels of holders and waiters, and the time of a grant: an inspection answers without them.

mod holders;
mod lock;
mod name;
mod run;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use fairlock_proto::request::{Answer, Reply, Request};
use fairlock_proto::requests::release::Release;

pub use self::holders::{Holder, Place, Shared};
pub use self::name::{Client, Message, Name, Text, TokenClock, Tombstone, client_of, revoked};

use self::run::Run;

#[derive(Debug, Clone)]
pub struct Server {
    pub names: BTreeMap<String, Name>,
    pub reachable: BTreeSet<String>,
    pub frozen_until_us: u64,
    pub token_clock: TokenClock,
}

impl Hash for Server {
    /// For searches, which add the times of leases themselves.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.names, &self.reachable).hash(state);
    }
}

impl Server {
    pub fn new(token_clock: TokenClock) -> Self {
        let (names, reachable) = (BTreeMap::new(), BTreeSet::new());
        Self { names, reachable, frozen_until_us: 0, token_clock }
    }

    /// Runs a request at this time of the server's clock, and appends its messages.
    pub fn run(&mut self, request: &Request, client: &Client, now_us: u64, messages: &mut Vec<Message>) -> Reply {
        let (keys, is_shared) = (request.keys(), request.keys().kind.is_shared());
        let lock = keys.lock.to_string();
        let name = self.names.entry(lock.clone()).or_default();
        name.expire(now_us);
        let (reachable, frozen_us) = (&self.reachable, self.frozen_until_us.saturating_sub(now_us));
        let caller = match request {
            Request::Release(Release { owner, .. }) => client_of(owner),
            _ => &client.id,
        };
        let token_clock = self.token_clock;
        let mut run = Run { name, lock, client, caller, now_us, reachable, frozen_us, token_clock, messages };
        let tells_time = !matches!(request, Request::Release(release) if run.is_quick(release));
        let answer = match request {
            Request::Acquire(it) if is_shared => Answer::Acquired(run.acquire_share(it)),
            Request::Acquire(it) => Answer::Acquired(run.acquire(it)),
            Request::Release(it) if is_shared => Answer::Released(run.release_share(it)),
            Request::Release(it) => Answer::Released(run.release(it)),
            Request::Renew(it) if is_shared => Answer::Renewed(run.renew_share(it)),
            Request::Renew(it) => Answer::Renewed(run.renew(it)),
            Request::Poll(it) if is_shared => Answer::Polled(Box::new(run.poll_shares(it))),
            Request::Poll(it) => Answer::Polled(Box::new(run.poll(it))),
            Request::Leave(it) if is_shared => Answer::Left(run.leave_share(it)),
            Request::Leave(it) => Answer::Left(run.leave(it)),
            Request::Give(it) if is_shared => Answer::Gave(run.give_share(it)),
            Request::Give(it) => Answer::Gave(run.give(it)),
            Request::ForceUnlock(it) if is_shared => Answer::Forced(run.force_share(it)),
            Request::ForceUnlock(it) => Answer::Forced(run.force_unlock(it)),
            Request::SetLimit(it) => Answer::LimitSet(run.set_limit(it)),
            Request::Raise(it) => Answer::Raised(run.raise(it)),
            Request::Inspect(it) => Answer::Inspected(Box::new(run.inspect(it))),
        };
        Reply { server_micros: tells_time.then_some(now_us.cast_signed()), answer }
    }

    /// Whether the server reaches the client of this owner and takes it for alive. A client without any place counts
    /// as alive.
    pub fn hears(&self, name: &Name, owner: &str, now_us: u64) -> bool {
        let client = client_of(owner);
        self.reachable.contains(client) && name.deadlines.get(client).is_none_or(|deadline| *deadline >= now_us + 1000)
    }

    /// Ends everything whose time has passed.
    pub fn expire(&mut self, now_us: u64) {
        self.names.values_mut().for_each(|name| name.expire(now_us));
    }
}
