//! Actors: callers that lock, nest, cancel, time out, drop and unlock at random.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fairlock::simulation::{Task, owner_id};
use fairlock::{
    DetachError, FairLock, HandleError, HoldError, HoldHandle, LockClient, LockError, LockGuard, Loss, Owner,
    RequestError, UnlockError, Unlocked, owner,
};
use tokio::task::coop::has_budget_remaining;
use tokio::time::{sleep, timeout};

use crate::checker::{Claim, Cost};
use crate::keys::{key_of, owner_in};
use crate::world::{LONGEST_LEASE, World};

/// One caller in one process, for as long as the process lives.
pub struct Actor {
    pub world: Arc<World>,
    pub client: LockClient,
    pub number: usize,
    pub names: usize,
    /// The shortest lease that this client may ask for.
    pub shortest_lease: Duration,
    /// The lease of a renewed lock.
    pub lease: Duration,
    /// A renewed hold ends after this long.
    pub max_hold: Option<Duration>,
}

const DEEPEST: usize = 4;
/// Without faults, the answer to a request for a lease comes within this time.
const SENT: Duration = Duration::from_millis(100);
/// How many rounds an actor goes on for after its client's runtime has ended.
const ROUNDS_WITHOUT_RUNTIME: u32 = 5;

impl Actor {
    pub async fn live(self) {
        let mut rounds_without = ROUNDS_WITHOUT_RUNTIME;
        while !self.world.state().ending {
            // Until the calm phase has settled, nothing new turns up, so actors are slower.
            let settling = self.world.state().calm && self.world.is_settling();
            let rest = if settling { 300 } else { 40 };
            self.world.sleep_up_to(Duration::from_millis(rest)).await;
            let name = format!("lock{}", self.world.below(self.names as u64));
            let lock = self.client.lock(&name);
            owner::scope(async {
                let mut has_given_up = false;
                self.try_once(&lock, &mut has_given_up).await;
                // The same owner again: late copies of its earlier requests may arrive after its later ones (R1).
                while self.world.chance(0.3) {
                    self.try_once(&lock, &mut has_given_up).await;
                }
            })
            .await;
            if !self.has_runtime() || self.is_closed() {
                // It can only learn of the end, in every possible way.
                rounds_without -= 1;
                if rounds_without == 0 {
                    return;
                }
            }
        }
    }

    fn has_runtime(&self) -> bool {
        self.world.has_runtime(self.client.id())
    }

    fn is_closed(&self) -> bool {
        self.world.is_closed(self.client.id())
    }

    fn note(&self, what: &'static str, more: impl FnOnce() -> String) {
        self.world.note(what, self.number, || format!("actor {} {}", self.number, more()));
    }

    /// One call for the lock, of a random kind, and the section that follows if it gets the lock. `has_given_up`: an
    /// earlier call of this owner got nothing, and its place may still be there.
    async fn try_once(&self, lock: &FairLock, has_given_up: &mut bool) {
        let calm = self.world.state().calm;
        let kind = self.world.below(100);
        // At least a round trip of the calm phase.
        let limit = Duration::from_millis(50 + self.world.below(2500));
        match kind {
            0..3 if calm => return,
            0..3 => return self.force(lock).await,
            3..6 => return self.with(lock).await,
            6..9 if self.names > 1 && self.world.state().has_sets => return self.all(limit, has_given_up).await,
            _ => {}
        }
        // In the calm phase longer than any section, since nobody renews it.
        let least = if calm { LONGEST_LEASE } else { self.shortest_lease + Duration::from_secs(1) };
        let fixed = least - Duration::from_millis(self.world.below(if calm { 500 } else { 1000 }));
        let fixed = self.long_lease().or((kind < 16).then_some(fixed));
        let lock = fixed.map_or_else(|| lock.clone(), |fixed| lock.with_lease(fixed));
        self.note("wants", || lock.name().to_owned());
        let (begun, asked) = (self.world.elapsed(), self.world.server_ms());
        let waiting = Waiting::begin(self);
        let asking = async {
            match kind % 5 {
                // Its caller cancels it.
                0 => timeout(limit, lock.lock()).await.unwrap_or_else(|_| {
                    self.world.fault("cancellations");
                    Err(LockError::Timeout { holder: None })
                }),
                1 => lock.lock_timeout(limit).await,
                2 => lock.try_lock().await.and_then(|guard| guard.into_result().map_err(LockError::from)),
                _ => lock.lock().await,
            }
        };
        let (outcome, rested) = self.rests(Cost::Moment, asking).await;
        drop(waiting);
        match outcome {
            Ok(guard) => {
                // Without faults only its guards may end it, its lease if fixed, or `max_hold`.
                let least = fixed.or(self.least_of_max_hold());
                let least = least.map_or(Duration::MAX, |least| least.mul_f64(0.98).saturating_sub(SENT));
                // If a future was unpolled and reads its grant late, the grant may end before its first renewal has an
                // answer.
                let is_nearly_over = rested && guard.held().valid_for() < SENT;
                let safe =
                    (!self.world.is_settling() && !is_nearly_over).then(|| self.world.elapsed().saturating_add(least));
                let (guards, asks_for) = (vec![guard], fixed);
                Section { actor: self, lock: &lock, guards, dropped: false, begun, safe, fixed, asks_for }.run().await;
            }
            // Its time had run out when it was polled again.
            Err(LockError::Unreachable(_)) if rested => *has_given_up = true,
            Err(error) => {
                if !kind.is_multiple_of(5) && !*has_given_up {
                    self.check_timeout(&error, &[&lock], asked);
                }
                *has_given_up = true;
                self.check_error(&error, begun);
            }
        }
    }

    /// A call from then on (common time, ms) that ran to its end. If it reports that others had one of its names, they
    /// had.
    fn check_timeout(&self, error: &LockError, locks: &[&FairLock], since: i64) {
        let owner = owner::current().filter(|_| matches!(error, LockError::Timeout { .. }));
        let Some(owner) = owner.map(|owner| owner_id(&self.client, owner)) else { return };
        let (keys, now): (Vec<_>, _) = (locks.iter().map(|lock| key(lock)).collect(), self.world.server_ms());
        self.world.state().checker.check_timeout(&keys, &owner, since, now);
    }

    /// The part of `max_hold` that is surely left when an actor reads its guard: the hold may be up to a lease older.
    fn least_of_max_hold(&self) -> Option<Duration> {
        self.max_hold.map(|longest| longest.saturating_sub(self.lease))
    }

    /// Rarely a lease longer than any other; never if a freeze must outlast all leases.
    fn long_lease(&self) -> Option<Duration> {
        let state = self.world.state();
        if state.calm || state.strict {
            return None;
        }
        drop(state);
        if self.world.later(30) > 0 {
            return None;
        }
        self.world.fault("long_leases");
        Some(Duration::from_millis(8000 + self.world.later(4000)))
    }

    /// Runs a call as a future that may go unpolled for a while at any of its awaits. Returns whether it did.
    async fn rests<T>(&self, cost: Cost, call: impl Future<Output = T>) -> (T, bool) {
        let owner = owner::current().map(|owner| owner_id(&self.client, owner)).unwrap_or_default();
        let call = Box::pin(call);
        Resting { actor: self, owner, cost, call, was_polled: false, rest: None, has_rested: false, waited: false }
            .await
    }

    /// Checks the error of a call that began at `begun`.
    fn check_error(&self, error: &LockError, begun: Duration) {
        self.note("gets nothing", || error.to_string());
        let expected = match error {
            // The unlock checks whether a loss was allowed.
            LockError::Timeout { .. } | LockError::Lost | LockError::QueueFull { .. } => true,
            // Only with faults: requests from before the calm phase may still be late. Or a crowd shares few requests
            // in flight, and its turn did not come in time.
            LockError::Unreachable(_) if self.world.is_overloaded(self.client.id()) => true,
            // With `strict_restart`, after a restart in the phase of faults.
            LockError::Unreachable(cause) if cause.to_string().contains("the server grants nothing") => true,
            LockError::Unreachable(_) | LockError::Refused(_) if self.world.was_down_since(begun) => true,
            LockError::Unreachable(_) | LockError::Refused(_) => self.world.is_settling(),
            LockError::RuntimeGone => {
                self.world.fault("calls_without_runtime");
                !self.has_runtime()
            }
            LockError::Closed => self.is_closed(),
            _ => false,
        };
        if !expected {
            self.world.state().checker.report("errors", format!("actor {}: {error}", self.number));
        }
    }

    /// Holds a lock while something happens that must not end it, then releases it.
    pub async fn keep(&self, lock: &FairLock, happens: impl Future<Output = ()>) {
        let guard = timeout(Duration::from_secs(5), lock.lock()).await;
        let Ok(Ok(guard)) = guard else { return happens.await };
        let token = guard.token();
        self.begin(lock, guard.held(), None);
        happens.await;
        if !guard.is_valid() {
            self.world.state().checker.report("P4", format!("{token} was lost while it was kept"));
        }
        self.end(lock, token);
        let _ = guard.unlock().await;
    }

    async fn force(&self, lock: &FairLock) {
        self.world.fault("forced_unlocks");
        // The reply may be lost. The checker sees the effect on the server.
        let _ = lock.force_unlock().await;
    }

    async fn with(&self, lock: &FairLock) {
        let again = lock.clone();
        let section = |held: fairlock::Held| async move {
            let token = held.token();
            self.begin(lock, held, None);
            if let (Ok(guard), _) = self.rests(Cost::All, again.lock()).await {
                self.work(lock, token).await;
                let _ = guard.unlock().await;
            }
            self.end(lock, token);
        };
        // Nobody cancels anything inside, so each claim that begins also ends.
        let _ = lock.with(section).await;
    }

    /// Several names at once, in any order. The calm phase would reveal calls that wait for each other.
    async fn all(&self, limit: Duration, has_given_up: &mut bool) {
        let mut names: Vec<_> = (0..self.names).filter(|_| self.world.chance(0.8)).collect();
        if self.world.chance(0.5) {
            names.reverse();
        }
        let locks: Vec<_> = names.iter().map(|name| self.client.lock(format!("lock{name}"))).collect();
        let all = self.client.lock_all(locks.iter().map(FairLock::name));
        self.note("wants all", || format!("of {names:?}"));
        self.world.fault("sets");
        let (begun, asked) = (self.world.elapsed(), self.world.server_ms());
        let kind = self.world.below(5);
        let outcome = {
            let _waiting = (Waiting::begin(self), Gathering::begin(self));
            let asking = async {
                match kind {
                    0 => timeout(limit, all.lock()).await.unwrap_or(Err(LockError::Timeout { holder: None })),
                    1 => all.lock_timeout(limit).await,
                    2 => all.try_lock().await.and_then(|guard| guard.into_result().map_err(LockError::from)),
                    _ => all.lock().await,
                }
            };
            self.rests(Cost::Lease, asking).await
        };
        let (outcome, rested) = outcome;
        let guard = match outcome {
            Ok(guard) => guard,
            Err(LockError::Unreachable(_)) if rested => return *has_given_up = true,
            Err(error) => {
                if kind > 0 && !*has_given_up {
                    self.check_timeout(&error, &locks.iter().collect::<Vec<_>>(), asked);
                }
                *has_given_up = true;
                return self.check_error(&error, begun);
            }
        };
        // A try does not check again the names that it got first.
        if kind != 2 && !guard.is_valid() {
            self.world.state().checker.report("L4", format!("one of {guard:?} was lost before all were there"));
        }
        let held = locks.iter().filter_map(|lock| Some((lock, guard.get(lock.name())?.held())));
        let held: Vec<_> = held.collect();
        for (lock, held) in &held {
            // It may have got some a while ago, and a failover may have lost them since.
            self.add(self.claim(lock, held.held(), None));
        }
        for (lock, held) in &held {
            self.work(lock, held.token()).await;
        }
        for (lock, held) in &held {
            self.end(lock, held.token());
        }
        if self.world.chance(0.3) {
            return drop(guard);
        }
        // The error names the lost locks. The unlock of a single lock checks whether a loss was allowed.
        let _ = self.rests(Cost::Lease, guard.unlock()).await;
    }

    /// As another owner.
    async fn attach_and_end(&self, lock: &FairLock, handle: &HoldHandle, token: u64) {
        let begun = self.world.elapsed();
        match self.client.attach(handle).await {
            Ok(guard) => {
                self.attached(lock, &guard, token);
                self.work(lock, token).await;
                self.end(lock, token);
                let _ = guard.unlock().await;
            }
            Err(error) => self.check_attach(handle, &error, begun, false),
        }
    }

    fn attached(&self, lock: &FairLock, guard: &LockGuard, token: u64) {
        self.note("attaches", || format!("{token}"));
        if guard.token() != token {
            let what = format!("{} was attached by a handle of {token}", guard.token());
            self.world.state().checker.report("R16", what);
        }
        self.add(self.claim(lock, guard.held(), None));
    }

    /// In a cluster clocks differ: a copy that is late for one node is not late for another.
    fn is_lost(&self, handle: &HoldHandle) {
        if self.world.nodes() == 1 {
            self.world.state().checker.handle_is_lost(&key_of(handle.name()), owner_in(&handle.to_string()));
        }
    }

    fn check_attach(&self, handle: &HoldHandle, error: &HandleError, begun: Duration, rested: bool) {
        self.note("attaches nothing", || error.to_string());
        let expected = match error {
            // Its lease may have ended, or the detach got no answer.
            HandleError::Lost => {
                self.is_lost(handle);
                true
            }
            HandleError::Request(RequestError::RuntimeGone) => !self.has_runtime(),
            HandleError::Request(RequestError::Closed) | HandleError::Unreachable(_) if self.is_closed() => true,
            HandleError::Unreachable(_) if self.world.is_overloaded(self.client.id()) => true,
            HandleError::Unreachable(_) | HandleError::Request(RequestError::Refused(_)) => {
                rested || self.world.is_settling() || self.world.was_down_since(begun)
            }
            _ => false,
        };
        if !expected {
            self.world.state().checker.report("errors", format!("actor {}: not attached: {error}", self.number));
        }
    }

    fn begin(&self, lock: &FairLock, held: fairlock::Held, fixed: Option<Duration>) {
        let claim = self.claim(lock, held, fixed);
        self.world.state().checker.check_is_known(&claim);
        self.add(claim);
    }

    fn claim(&self, lock: &FairLock, held: fairlock::Held, fixed: Option<Duration>) -> Claim {
        let (process, began) = (self.client.id().to_owned(), self.world.elapsed());
        // A nested guard shares the remaining lease of its hold.
        let lease = if held.holds() > 1 { held.valid_for() } else { fixed.unwrap_or(self.lease) };
        let ends = self.max_hold.filter(|_| fixed.is_none()).map(|longest| {
            // The hold may be up to a lease older than its caller's first look.
            let least = (began + longest).saturating_sub(self.lease);
            (least, began + longest)
        });
        Claim { lock: key(lock), actor: self.number, process, held, began, lease, is_renewed: fixed.is_none(), ends }
    }

    fn add(&self, claim: Claim) {
        self.note("holds", || format!("{} under {}", claim.lock, claim.held.token()));
        let (server_ms, clock_rate) = (self.world.server_ms(), self.world.state().rates.clock_rate);
        self.world.state().checker.claim(claim, server_ms, clock_rate);
    }

    fn end(&self, lock: &FairLock, token: u64) {
        let claims = self.world.state().checker.release(&key(lock), token);
        let now = self.world.elapsed();
        let is_spent = |claim: &Claim| claim.ends.is_some_and(|(_, last)| now >= last);
        if claims.iter().any(is_spent) {
            self.world.fault("max_holds");
        }
    }

    fn check_deadlines(&self) {
        let (server_ms, clock_rate) = (self.world.server_ms(), self.world.state().rates.clock_rate);
        self.world.state().checker.check_deadlines(server_ms, clock_rate);
    }

    /// Reads, waits, and writes. The resource refuses to write under an older token (P2), so no update gets lost.
    async fn work(&self, lock: &FairLock, token: u64) {
        let read = self.world.state().checker.read(&key(lock), token, self.number);
        self.pass_time().await;
        self.check_deadlines();
        if let Some(value) = read {
            let written = self.world.state().checker.write(&key(lock), token, value + 1);
            self.note(if written { "writes" } else { "is fenced" }, || format!("{} under {token}", lock.name()));
        }
    }

    /// Mostly short, sometimes longer than any lease.
    async fn pass_time(&self) {
        let most = match self.world.below(100) {
            0..70 => 10,
            // Long enough for others to poll, too short to lose a hold.
            _ if self.world.state().calm => 200,
            70..95 => 60,
            95..99 => 600,
            _ => 6000,
        };
        self.world.sleep_up_to(Duration::from_millis(most)).await;
    }
}

/// A call whose future is at times not polled for a while; it ignores its wakers until then.
struct Resting<'a, F> {
    actor: &'a Actor,
    owner: String,
    cost: Cost,
    call: Pin<Box<F>>,
    was_polled: bool,
    rest: Option<Task>,
    has_rested: bool,
    /// It was waiting for a lock.
    waited: bool,
}

impl<F> Resting<'_, F> {
    /// In the calm phase a caller that holds the lock may go unpolled only for as long as others work with it.
    fn begin(&mut self, length: Duration) {
        let (world, cost) = (self.actor.world.clone(), self.cost);
        let calm = world.state().calm;
        let length =
            if !calm { length } else { length.min(Duration::from_secs(if cost == Cost::All { 1 } else { 8 })) };
        self.actor.note("rests", || format!("for {length:?}"));
        let server_ms = world.server_ms();
        let mut state = world.state();
        state.checker.rests_on(&self.owner, cost, server_ms);
        state.rested += if cost == Cost::Moment { length.min(Duration::from_millis(250)) } else { length };
        // It does not wait in the meantime.
        let waited = state.waiting.remove(&self.actor.number).is_some();
        drop(state);
        (self.has_rested, self.waited) = (true, waited);
        self.rest = Some(Box::pin(async move { drop(timeout(length, world.wakes.notified()).await) }));
    }
}

impl<F: Future> Future for Resting<'_, F> {
    type Output = (F::Output, bool);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_next = self.was_polled && self.rest.is_none();
        if let Some(length) = is_next.then(|| self.actor.world.rests_for()).flatten() {
            self.begin(length);
        }
        if let Some(rest) = &mut self.rest {
            ready!(rest.as_mut().poll(context));
            self.rest = None;
            self.actor.note("goes on", String::new);
            let (now, waits) =
                (self.actor.world.elapsed(), std::mem::take(&mut self.waited).then_some(self.actor.number));
            let mut state = self.actor.world.state();
            state.checker.has_rested(&self.owner);
            state.waiting.extend(waits.map(|number| (number, now)));
        }
        let outcome = self.call.as_mut().poll(context);
        // The runtime stops a task after some steps. The call may not have begun then.
        self.was_polled |= has_budget_remaining();
        Poll::Ready((ready!(outcome), self.has_rested))
    }
}

impl<F> Drop for Resting<'_, F> {
    fn drop(&mut self) {
        self.actor.world.state().checker.has_rested(&self.owner);
    }
}

/// An actor waits, until this is dropped.
struct Waiting<'a>(&'a Actor);

impl<'a> Waiting<'a> {
    fn begin(actor: &'a Actor) -> Self {
        let since = actor.world.elapsed();
        actor.world.state().waiting.insert(actor.number, since);
        Self(actor)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.world.state().waiting.remove(&self.0.number);
    }
}

/// An actor may have some of the names that it wants, until this is dropped.
struct Gathering<'a>(&'a Actor);

impl<'a> Gathering<'a> {
    fn begin(actor: &'a Actor) -> Self {
        actor.world.state().checker.gathers(actor.client.id(), actor.number);
        Self(actor)
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.0.world.state().checker.has_gathered(self.0.client.id(), self.0.number);
    }
}

/// The key by which World and Checker know the lock.
fn key(lock: &FairLock) -> String {
    key_of(lock.name())
}

/// A lock that an actor holds, and what it does with it.
struct Section<'a> {
    actor: &'a Actor,
    lock: &'a FairLock,
    guards: Vec<LockGuard>,
    /// The count on the server may differ for a moment: a guard was dropped, or a nested lock got no answer. The
    /// background corrects it later.
    dropped: bool,
    /// When the call began.
    begun: Duration,
    /// Without faults: it must last until then.
    safe: Option<Duration>,
    /// Its lease, if the client does not renew it.
    fixed: Option<Duration>,
    /// The same for a new hold that its calls get.
    asks_for: Option<Duration>,
}

impl Section<'_> {
    async fn run(mut self) {
        let (actor, mut token) = (self.actor, self.guards[0].token());
        actor.begin(self.lock, self.guards[0].held(), self.fixed);
        let steps = actor.world.below(4);
        for _ in 0..steps {
            if self.guards.is_empty() {
                return;
            }
            if actor.world.extends() {
                self.extend(token).await;
                continue;
            }
            if actor.world.passes_on() {
                self.pass_on(token).await;
                continue;
            }
            match actor.world.below(10) {
                0..3 => self.nest().await,
                3 => self.end_a_guard(token).await,
                4 => self.check_count(token).await,
                5 => self.two_branches().await,
                6 => token = self.two_tasks(token).await,
                _ => actor.work(self.lock, token).await,
            }
        }
        self.wait_for_loss_or_go_on(token).await;
        while !self.guards.is_empty() {
            self.end_a_guard(token).await;
        }
    }

    /// Asks for a new lease, which never shortens the hold. It may be nested, and renewed or fixed.
    async fn extend(&self, token: u64) {
        let (actor, world) = (self.actor, &self.actor.world);
        let Some(guard) = self.guards.last() else { return };
        world.fault("extends");
        let most = if world.state().calm { 500 } else { 1000 };
        let lease = actor.shortest_lease + Duration::from_millis(world.of_handle(most));
        let (begun, before, was_sure) = (world.elapsed(), guard.valid_for(), self.must_be_held(token));
        let (extended, rested) = actor.rests(Cost::All, Box::pin(guard.extend(lease))).await;
        let took = world.elapsed() - begun;
        actor.note("extends", || format!("{token} by {lease:?}: {extended:?}"));
        let is_sure = was_sure && !rested && self.must_be_held(token) && !world.is_overloaded(actor.client.id());
        let report = |promise: &str, what: String| world.state().checker.report(promise, what);
        match extended {
            // The clocks may differ a little, and the lease counts from when the client sent the request.
            Ok(()) if is_sure && guard.valid_for() + took + lease / 20 < lease.max(before) => {
                let left = guard.valid_for();
                report("R5", format!("{token} was extended to {lease:?} and had {before:?}, and has {left:?}"));
            }
            Ok(()) => {}
            // It would outlast `max_hold`, which counts from the hold's beginning.
            Err(HoldError::Lease(_))
                if actor.max_hold.is_some_and(|longest| begun + took - self.begun + lease > longest) => {}
            Err(HoldError::Request(RequestError::Closed)) if actor.is_closed() => {}
            Err(error @ (HoldError::Lease(_) | HoldError::Request(RequestError::Closed))) => {
                report("errors", format!("{token} was not extended: {error}"));
            }
            Err(error) if is_sure && actor.has_runtime() && !world.was_down_since(begun) => {
                report("errors", format!("without faults {token} was not extended: {error}"));
            }
            Err(_) => {}
        }
    }

    /// Gives the hold to a handle. Then this owner or another one attaches it, or somebody releases it, or nobody does
    /// anything.
    async fn pass_on(&mut self, token: u64) {
        let (actor, world) = (self.actor, &self.actor.world);
        let Some(guard) = self.guards.pop() else { return };
        let is_nested = !self.guards.is_empty();
        if !is_nested {
            actor.end(self.lock, token);
        }
        world.fault("handles");
        let (begun, left) = (world.elapsed(), guard.valid_for());
        // Longer than an attach takes without faults. In the calm phase others wait for some of these leases.
        let lease = actor.shortest_lease + Duration::from_secs(1);
        let detaching = Box::pin(guard.detach(lease));
        let (handle, is_sure) = match actor.rests(Cost::Lease, detaching).await.0 {
            Ok(handle) => (handle, true),
            Err(DetachError::Unanswered { handle, .. }) => (handle, false),
            Err(DetachError::Refused { guard, reason, .. }) => {
                return self.goes_on_after(guard, &reason, (begun, begun + left), is_nested);
            }
            Err(error) => return world.state().checker.report("errors", error.to_string()),
        };
        actor.note("detaches", || format!("{token}{}", if is_sure { "" } else { ", without an answer" }));
        if is_nested {
            world
                .state()
                .checker
                .report("R16", format!("{token} was detached, and {} guards are left", self.guards.len()));
        }
        self.dropped = true;
        if world.of_handle(3) == 0 {
            let extended = actor.client.extend(&handle, lease).await;
            actor.note("extends by a handle", || format!("{token}: {extended:?}"));
            if matches!(extended, Err(HandleError::Lost)) {
                actor.is_lost(&handle);
            }
        }
        let calm = world.state().calm;
        match world.of_handle(if calm { 6 } else { 8 }) {
            0..2 => self.attach_again(&handle, token).await,
            2..4 => Box::pin(Owner::new().scope(actor.attach_and_end(self.lock, &handle, token))).await,
            4 => {
                let released = actor.client.release(&handle).await;
                actor.note("releases by a handle", || format!("{token}: {released:?}"));
            }
            5 => {
                let limit = Duration::from_micros(world.of_handle(20_000));
                drop(timeout(limit, actor.client.attach(&handle)).await);
                let _ = actor.client.release(&handle).await;
            }
            _ => {}
        }
    }

    /// The guard goes on unchanged.
    fn goes_on_after(
        &mut self,
        guard: LockGuard,
        reason: &HoldError,
        (begun, lasts_until): (Duration, Duration),
        is_nested: bool,
    ) {
        let (actor, world, token) = (self.actor, &self.actor.world, guard.token());
        actor.note("keeps", || format!("{token}: {reason}"));
        // The client does not renew a hold during a detach (P6), so a long detach outlasts the hold: nobody relies on
        // it then.
        let has_lapsed = world.elapsed() >= lasts_until;
        if has_lapsed {
            self.safe = None;
        }
        let expected = match reason {
            HoldError::Nested(_) => is_nested,
            HoldError::Lost(_) => !self.must_be_held(token),
            HoldError::Request(RequestError::NotSent(_)) if world.is_overloaded(actor.client.id()) => true,
            HoldError::Request(RequestError::NotSent(_) | RequestError::Refused(_)) => {
                world.is_settling() || world.was_down_since(begun)
            }
            HoldError::Request(RequestError::RuntimeGone) => !actor.has_runtime(),
            HoldError::Request(RequestError::Closed) => actor.is_closed(),
            _ => false,
        };
        if !expected {
            world.state().checker.report("errors", format!("actor {}: not detached: {reason}", actor.number));
        }
        if !is_nested && !has_lapsed {
            self.claim_again(guard.held(), self.fixed);
        }
        self.guards.push(guard);
    }

    /// Claims a hold that began a while ago.
    fn claim_again(&self, held: fairlock::Held, fixed: Option<Duration>) {
        let mut claim = self.actor.claim(self.lock, held, fixed);
        claim.ends = claim.ends.map(|(_, last)| (Duration::ZERO, last));
        self.actor.add(claim);
    }

    async fn attach_again(&mut self, handle: &HoldHandle, token: u64) {
        let (actor, begun) = (self.actor, self.actor.world.elapsed());
        let attaching = Box::pin(actor.client.attach(handle));
        let (attached, rested) = actor.rests(Cost::Lease, attaching).await;
        match attached {
            Ok(guard) => {
                actor.attached(self.lock, &guard, token);
                // From now on the client renews it.
                (self.fixed, self.safe) = (None, None);
                self.guards.push(guard);
            }
            Err(error) => actor.check_attach(handle, &error, begun, rested),
        }
    }

    async fn nest(&mut self) {
        if self.guards.len() >= DEEPEST {
            return;
        }
        let limit = Duration::from_millis(self.actor.world.below(1500));
        let begun = self.actor.world.elapsed();
        match self.actor.rests(Cost::All, timeout(limit, self.lock.lock())).await.0 {
            Ok(Ok(guard)) => self.nested(guard),
            // Without an answer, or dropped in flight: the background takes the request back.
            Ok(Err(error)) => {
                self.dropped = true;
                self.actor.check_error(&error, begun);
            }
            Err(_) => self.dropped = true,
        }
    }

    fn nested(&mut self, guard: LockGuard) {
        let (token, outer) = (guard.token(), self.guards[0].token());
        self.actor.note("nests", || format!("{} under {token}", self.guards.len() + 1));
        if token != outer {
            let what = format!("a nested lock got {token} inside {outer}");
            self.actor.world.state().checker.report("P2", what);
        }
        self.guards.push(guard);
    }

    /// Two branches of one task ask at once, as the same owner. Their requests take turns.
    async fn two_branches(&mut self) {
        if self.guards.len() + 2 > DEEPEST {
            return;
        }
        let both = async { tokio::join!(biased; self.lock.lock(), self.lock.try_lock()) };
        let both = timeout(Duration::from_millis(1500), both);
        let (Ok((one, other)), _) = self.actor.rests(Cost::All, both).await else {
            self.dropped = true;
            return;
        };
        // The background takes back a request without an answer.
        self.dropped |= one.is_err() || other.is_err();
        one.into_iter().for_each(|guard| self.nested(guard));
        other.into_iter().filter_map(|tried| tried.into_result().ok()).for_each(|guard| self.nested(guard));
    }

    /// Two tasks of one owner: one drops all guards in turn, while the other asks for a nested lock, which shares the
    /// hold or, after its end, gets a new one. Returns the token of the present hold.
    async fn two_tasks(&mut self, token: u64) -> u64 {
        let (world, lock, owner) = (&self.actor.world, self.lock.clone(), self.guards[0].owner());
        let (begun, was_valid) = (world.elapsed(), self.guards[0].is_valid());
        world.fault("owners_in_two_tasks");
        // The claim ends before the guards do, since another owner may get the lock then.
        self.actor.end(self.lock, token);
        let mut rests: Vec<_> = self.guards.iter().map(|_| Duration::from_micros(world.below(8000))).collect();
        let guards = std::mem::take(&mut self.guards);
        let dropping = owner.scope(async move {
            for guard in guards {
                sleep(rests.pop().unwrap_or_default()).await;
                drop(guard);
            }
        });
        let (answer, answered) = tokio::sync::oneshot::channel();
        let rest = Duration::from_micros(world.below(8000));
        let nesting = owner.scope(async move {
            sleep(rest).await;
            let _ = answer.send(timeout(Duration::from_millis(1500), lock.lock()).await);
        });
        let spawn = |task| tokio::spawn(world.in_process(self.actor.client.id(), task));
        let (dropping, nesting) = (spawn(Box::pin(dropping)), spawn(Box::pin(nesting)));
        let _ = tokio::join!(dropping, nesting);
        self.dropped = true;
        match answered.await {
            Ok(Ok(Ok(guard))) => self.goes_on(token, guard),
            Ok(Ok(Err(error))) => {
                // All guards may be gone, and their release waits until a slot has moved.
                let has_waited = was_valid && world.was_down_since(begun);
                if self.must_be_held(token) && matches!(error, LockError::Lost) && !has_waited {
                    world.state().checker.report("P4", format!("without faults {token} was lost to a nested lock"));
                }
                self.actor.check_error(&error, begun);
                token
            }
            _ => token,
        }
    }

    fn goes_on(&mut self, before: u64, guard: LockGuard) -> u64 {
        let token = guard.token();
        self.actor.note("goes on", || format!("under {token} after {before}"));
        // A failover lost the other hold, and the next node's clock may be behind.
        let was_lost = self.actor.world.state().checker.may_be_lost(&key(self.lock), before);
        if token < before && !was_lost {
            let what = format!("an owner that had {before} got the older {token}");
            self.actor.world.state().checker.report("P2", what);
        }
        // It may have got the lock a while ago.
        let fixed = if token == before { self.fixed.map(|_| guard.valid_for()) } else { self.asks_for };
        self.claim_again(guard.held(), fixed);
        self.guards.push(guard);
        token
    }

    /// Unlocks or drops a random guard.
    async fn end_a_guard(&mut self, token: u64) {
        let Some(index) = (!self.guards.is_empty()).then(|| self.actor.world.below(self.guards.len() as u64)) else {
            return;
        };
        let guard = self.guards.swap_remove(index as usize);
        if self.guards.is_empty() {
            // From here on another owner may get the lock at any moment.
            self.actor.end(self.lock, token);
        }
        if self.actor.world.chance(0.3) {
            self.dropped = true;
            self.actor.note("drops", || format!("{token}, {} left", self.guards.len()));
            return drop(guard);
        }
        let (begun, was_valid) = (self.actor.world.elapsed(), guard.is_valid());
        let (outcome, rested) = self.actor.rests(Cost::Lease, guard.unlock()).await;
        let answer = outcome.as_ref().map_or_else(ToString::to_string, |unlocked| format!("{unlocked:?}"));
        self.actor.note("unlocks", || format!("{token}, {} left: {answer}", self.guards.len()));
        // While a slot moves a release has to wait, perhaps past the end of its lease.
        let has_waited = rested || was_valid && self.actor.world.was_down_since(begun);
        self.check_unlock(token, &outcome, has_waited);
    }

    /// Without faults only its guards end a renewed hold, unless a failover has lost it.
    fn must_be_held(&self, token: u64) -> bool {
        let (world, server_ms) = (&self.actor.world, self.actor.world.server_ms());
        let checker = &world.state().checker;
        let excused =
            checker.may_be_lost(&key(self.lock), token) || checker.is_stalled(self.actor.client.id(), server_ms);
        self.safe.is_some_and(|until| world.elapsed() < until) && !excused
    }

    fn check_unlock(&mut self, token: u64, outcome: &Result<Unlocked, UnlockError>, has_waited: bool) {
        let world = &self.actor.world;
        let server_ms = world.server_ms();
        let has_runtime = self.actor.has_runtime();
        if let (true, Err(error)) = (self.must_be_held(token) && !has_waited, outcome)
            && !world.state().checker.is_behind_one_that_rests(self.actor.client.id(), error)
        {
            world.state().checker.report("P4", format!("without faults {token} ended with {error}"));
        }
        if let (true, Err(UnlockError::RuntimeGone { .. })) = (has_runtime, outcome) {
            world.state().checker.report("errors", format!("{token}: its runtime has not ended"));
        }
        // Without a runtime the client cannot send a leave (R11).
        if has_runtime && matches!(outcome, Err(UnlockError::Lost(_))) {
            world.state().checker.unlock_answered_lost(&key(self.lock), token);
        }
        match *outcome {
            Ok(Unlocked::Freed) if self.guards.is_empty() => {
                let now = tokio::time::Instant::now().into_std();
                world.state().checker.unlock_answered_freed(&key(self.lock), token, now, server_ms);
            }
            Ok(Unlocked::StillHeld(left)) if left as usize == self.guards.len() => {}
            Ok(other) => {
                let what = format!("{other:?} with {} guards left under {token}", self.guards.len());
                world.state().checker.report("P4", what);
            }
            Err(UnlockError::Lost(Loss::Gone)) => {
                world.state().checker.unlock_answered_gone(&key(self.lock), token, server_ms)
            }
            // The background goes on with the release.
            Err(UnlockError::Unknown { .. } | UnlockError::Refused { .. }) => self.dropped = true,
            Err(_) => {}
        }
    }

    /// P4: without requests in flight the server counts as many holds as there are guards.
    async fn check_count(&self, token: u64) {
        if self.dropped || self.guards.is_empty() {
            return;
        }
        let Ok(status) = self.lock.status().await else { return };
        let Some(holder) = status.holder.filter(|holder| holder.token == token && self.guards[0].is_valid()) else {
            return;
        };
        // After the answer: a failover may come before it.
        let is_miscounted = self.actor.world.state().checker.is_miscounted(&key(self.lock), token);
        if holder.holds as usize != self.guards.len() && !is_miscounted {
            let what = format!("{} holds on the server for {} guards under {token}", holder.holds, self.guards.len());
            self.actor.world.state().checker.report("P4", what);
        }
    }

    /// P8 without a runtime: nobody renews, and the guard still reports the loss at its deadline.
    async fn wait_for_the_deadline(&self, guard: &LockGuard) {
        let (world, token) = (&self.actor.world, guard.token());
        let left = guard.valid_for();
        match timeout(left + Duration::from_millis(10), guard.lost()).await {
            Ok(_) => world.fault("losses_without_runtime"),
            Err(_) => {
                let what = format!("without its runtime, the holder of {token} was not told of its end after {left:?}");
                world.state().checker.report("P8", what);
            }
        }
    }

    /// Works on, or waits for the loss of the hold. P8: the guard reports it at the local deadline at the latest.
    async fn wait_for_loss_or_go_on(&self, token: u64) {
        let Some(guard) = self.guards.first() else { return };
        let world = &self.actor.world;
        if !self.actor.has_runtime() {
            return self.wait_for_the_deadline(guard).await;
        }
        let calm = world.state().calm;
        let is_patient = !calm && self.fixed.is_some_and(|fixed| fixed > LONGEST_LEASE);
        if (world.below(20) > 0 || calm) && !is_patient {
            return self.actor.work(self.lock, token).await;
        }
        let lost = timeout(Duration::from_secs(if is_patient { 9 } else { 5 }), guard.lost()).await;
        if let Ok(loss) = lost {
            self.actor.note("hears", || format!("of the loss of {token}: {loss}"));
            if guard.is_valid() {
                world.state().checker.report("P8", format!("the guard reported the loss of {token}, but is valid"));
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}
