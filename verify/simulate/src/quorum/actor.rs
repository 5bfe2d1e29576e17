//! Callers that lock a quorum, nest, cancel, time out, drop and unlock at random.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock::{FairLock, Held, LockClient, LockError, LockGuard, Loss, UnlockError, Unlocked, owner};
use tokio::time::{sleep, timeout};

use super::checker::Claim;
use super::trial::{Claimed, Trial, owner_id};
use crate::sightings::untrue;
use crate::world::{LONGEST_LEASE, World};

/// One caller in one process, for as long as the process lives.
pub struct Actor {
    pub trial: Arc<Trial>,
    pub client: LockClient,
    pub id: String,
    pub number: usize,
    pub names: usize,
    /// The shortest lease that this client may ask for.
    pub shortest_lease: Duration,
    /// How long a node may be silent before the others go on, and how long a request may take.
    pub node_timeout: Duration,
    pub operation_timeout: Duration,
}

const DEEPEST: usize = 4;
/// How many rounds an actor goes on for after its client's runtime has ended.
const ROUNDS_WITHOUT_RUNTIME: u32 = 5;
/// The round trips of a lock over calm links, with a margin.
const TRIPS: Duration = Duration::from_millis(150);
/// A guard reports a loss within this time.
const AT_ONCE: Duration = Duration::from_millis(10);

type Got = Result<Claimed, LockError>;

impl Actor {
    fn world(&self) -> &World {
        &self.trial.world
    }

    pub async fn live(self) {
        let mut rounds_without = ROUNDS_WITHOUT_RUNTIME;
        while !self.world().state().ending {
            let settling = self.world().state().calm && self.world().is_settling();
            let rest = if settling { 300 } else { 40 };
            self.world().sleep_up_to(Duration::from_millis(rest)).await;
            let lock = self.client.lock(format!("lock{}", self.world().below(self.names as u64)));
            owner::scope(async {
                self.try_once(&lock, true).await;
                // The same owner again, while its released hold may still be there.
                while self.world().chance(0.3) {
                    self.try_once(&lock, false).await;
                }
            })
            .await;
            if !self.has_runtime() || self.world().is_closed(&self.id) {
                rounds_without -= 1;
                if rounds_without == 0 {
                    return;
                }
            }
        }
    }

    fn has_runtime(&self) -> bool {
        self.world().has_runtime(&self.id)
    }

    fn note(&self, what: &'static str, more: impl FnOnce() -> String) {
        self.world().note(what, self.number, || format!("actor {} {}", self.number, more()));
    }

    fn report(&self, rule: &'static str, what: String) {
        self.trial.report(vec![(rule, what)]);
    }

    /// One call for the lock, of a random kind, and the section that follows if it gets the lock. `is_first`: its owner
    /// has given up no earlier call.
    async fn try_once(&self, lock: &FairLock, is_first: bool) {
        let calm = self.world().state().calm;
        let kind = self.world().below(100);
        let limit = Duration::from_millis(50 + self.world().below(2500));
        match kind {
            0..3 if calm => return,
            0..3 => return self.force(lock).await,
            3..6 => return self.with(lock).await,
            _ => {}
        }
        // In the calm phase longer than any section, since nobody renews it.
        let least = if calm { LONGEST_LEASE } else { self.shortest_lease + Duration::from_secs(1) };
        let fixed = least - Duration::from_millis(self.world().below(if calm { 500 } else { 1000 }));
        let lock = if kind < 16 { lock.with_lease(fixed) } else { lock.clone() };
        self.note("wants", || lock.name().to_owned());
        let (begun, asked) = (self.world().elapsed(), self.trial.clocks_ms());
        let calling = Calling::begin(self, is_first && kind % 5 > 2);
        let outcome = match kind % 5 {
            // Its caller cancels it, at any of its awaits.
            0 => timeout(limit, self.claimed(&lock, lock.lock())).await.unwrap_or_else(|_| {
                self.world().fault("cancellations");
                Err(LockError::Timeout { holder: None })
            }),
            1 => self.claimed(&lock, lock.lock_timeout(limit)).await,
            2 => self.try_lock(&lock, is_first).await,
            _ => self.claimed(&lock, lock.lock()).await,
        };
        drop(calling);
        match outcome {
            Ok(claimed) => {
                let section = Section { actor: self, lock: &lock, renewed: kind >= 16, begun, guards: vec![claimed] };
                section.run().await;
            }
            Err(error) => {
                let limit = match kind % 5 {
                    1 => Some(limit),
                    // This owner's releases may need their answers first.
                    2 if !is_first => Some(self.node_timeout),
                    _ => None,
                };
                if is_first && !kind.is_multiple_of(5) && matches!(error, LockError::Timeout { .. }) {
                    self.check_timeout(&lock, &asked);
                }
                self.check_error(&error, begun, limit);
            }
        }
    }

    /// A call of this scope since then (by the clock of each server, ms) reported that others had the lock: at least at
    /// one server.
    fn check_timeout(&self, lock: &FairLock, since: &[i64]) {
        let Some(owner) = owner::current().map(|owner| owner_id(&self.id, owner)) else { return };
        let (keys, now) = ([key(lock)], self.trial.clocks_ms());
        if !self.trial.state().checker.had_others(&keys, &owner, since, &now) {
            self.report("errors", untrue(&owner, &keys));
        }
    }

    /// The claim begins at the instant when the client forms the guard.
    async fn claimed(&self, lock: &FairLock, call: impl Future<Output = Result<LockGuard, LockError>>) -> Got {
        let called = self.world().elapsed();
        let attempt = Attempt { actor: self, has_ended: false };
        let guard = Arc::new(call.await?);
        attempt.ends();
        self.world().state().checker.sections += 1;
        let owner = owner_id(&self.id, guard.owner());
        Ok(self.trial.claim(Claim { lock: key(lock), actor: self.number, owner, guard, called }))
    }

    /// Q10: absent nodes cost one short time-out, not one each time.
    async fn try_lock(&self, lock: &FairLock, is_first: bool) -> Got {
        let begun = self.world().elapsed();
        let known = self.trial.are_away_since().is_some_and(|since| begun > since + 2 * self.operation_timeout);
        let call = async { lock.try_lock().await.and_then(|guard| guard.into_result().map_err(LockError::from)) };
        let outcome = self.claimed(lock, call).await;
        let took = self.world().elapsed() - begun;
        // Do not blame the nodes: this owner's earlier releases need their answers first, and a failed try waits for
        // its own.
        let releases = u32::from(!is_first) + u32::from(outcome.is_err());
        if known && self.trial.are_away_since().is_some() && took >= (1 + releases) * self.node_timeout {
            self.report("Q10", format!("actor {}: nodes are known to be away, and it took {took:?}", self.number));
        }
        outcome
    }

    /// Checks the error of a call that began at `begun`, with a time limit of `limit`.
    fn check_error(&self, error: &LockError, begun: Duration, limit: Option<Duration>) {
        self.note("gets nothing", || format!("{error:?}"));
        let expected = match error {
            LockError::Timeout { .. } | LockError::Lost | LockError::QueueFull { .. } => true,
            // By then it has seen no other owner.
            LockError::Unreachable(_) if limit.is_some_and(|limit| limit < self.node_timeout + TRIPS) => true,
            LockError::Unreachable(_) | LockError::Refused(_) => !self.trial.was_steady_since(begun),
            LockError::RuntimeGone => {
                self.world().fault("calls_without_runtime");
                !self.has_runtime()
            }
            LockError::Closed => self.world().is_closed(&self.id),
            _ => false,
        };
        if !expected {
            self.report("errors", format!("actor {}: {error}", self.number));
        }
    }

    async fn force(&self, lock: &FairLock) {
        self.world().fault("forced_unlocks");
        // The replies may be lost. The checker sees the effect on the servers.
        let _ = lock.force_unlock().await;
    }

    async fn with(&self, lock: &FairLock) {
        let calling = Calling::begin(self, false);
        let section = |held: Held| async move {
            let outer = held.token();
            let Ok(claimed) = self.claimed(lock, lock.lock()).await else { return };
            if claimed.guard().token() != outer {
                self.report("Q11", format!("with() has {outer}, and its nested lock {}", claimed.guard().token()));
            }
            self.work(&claimed).await;
            if let Some(guard) = claimed.end() {
                let _ = guard.unlock().await;
            }
        };
        let _ = lock.with(section).await;
        drop(calling);
    }

    /// Reads, waits, and writes. The resource refuses to write under an older token, so no update gets lost.
    async fn work(&self, claimed: &Claimed) {
        let (lock, token) = (format!("fairlock:{{n:{}}}", claimed.guard().name()), claimed.guard().token());
        let read = self.world().state().checker.read(&lock, token, self.number);
        self.check_fence(claimed, read.is_some());
        self.pass_time().await;
        self.trial.look();
        if let Some(value) = read {
            let written = self.world().state().checker.write(&lock, token, value + 1);
            self.note(if written { "writes" } else { "is fenced" }, || format!("{lock} under {token}"));
            self.check_fence(claimed, written);
        }
        let guard = claimed.guard();
        // P8: an invalid guard reports its loss at once.
        if self.has_runtime() && !guard.is_valid() && timeout(AT_ONCE, guard.lost()).await.is_err() {
            self.report("P8", format!("{token} is not valid, and its loss is not told"));
        }
    }

    /// P2: the resource has not seen a greater token than a valid guard's.
    fn check_fence(&self, claimed: &Claimed, passed: bool) {
        if !passed && claimed.guard().is_valid() && !claimed.is_void() {
            self.report("P2", format!("{} is valid, and the resource has seen a later token", claimed.guard().token()));
        }
    }

    /// Mostly short, sometimes longer than any lease.
    async fn pass_time(&self) {
        let most = match self.world().below(100) {
            0..70 => 10,
            _ if self.world().state().calm => 200,
            70..95 => 60,
            95..99 => 600,
            _ => 6000,
        };
        self.world().sleep_up_to(Duration::from_millis(most)).await;
    }
}

/// The key by which checkers know the lock at each server.
fn key(lock: &FairLock) -> String {
    format!("fairlock:{{n:{}}}", lock.name())
}

/// A call is under way, until this is dropped.
struct Calling<'a> {
    actor: &'a Actor,
    owner: String,
}

impl<'a> Calling<'a> {
    fn begin(actor: &'a Actor, patient: bool) -> Self {
        let owner = owner::current().map_or_else(String::new, |owner| owner_id(&actor.id, owner));
        let since = actor.world().elapsed();
        actor.world().state().waiting.insert(actor.number, since);
        actor.trial.state().checker.call_begins(&owner, patient);
        Self { actor, owner }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.actor.world().state().waiting.remove(&self.actor.number);
        self.actor.trial.state().checker.call_ends(&self.owner);
    }
}

/// A call that asks nodes. A call that gives up has not learned yet which of them are silent.
struct Attempt<'a> {
    actor: &'a Actor,
    has_ended: bool,
}

impl Attempt<'_> {
    fn ends(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.actor.trial.gives_up(&self.actor.id);
        }
    }
}

/// A lock that an actor holds, and what it does with it.
struct Section<'a> {
    actor: &'a Actor,
    lock: &'a FairLock,
    renewed: bool,
    begun: Duration,
    guards: Vec<Claimed>,
}

impl Section<'_> {
    async fn run(mut self) {
        let actor = self.actor;
        for _ in 0..actor.world().below(4) {
            match actor.world().below(10) {
                0..3 => self.nest().await,
                3 => self.end_a_guard().await,
                4 => self.two_branches().await,
                5 => self.two_tasks().await,
                _ => self.work().await,
            }
            if self.guards.is_empty() {
                return;
            }
        }
        self.wait_for_loss_or_go_on().await;
        while !self.guards.is_empty() {
            self.end_a_guard().await;
        }
    }

    async fn work(&self) {
        if let Some(claimed) = self.guards.first() {
            self.actor.work(claimed).await;
        }
    }

    async fn nest(&mut self) {
        if self.guards.len() >= DEEPEST {
            return;
        }
        let limit = Duration::from_millis(self.actor.world().below(1500));
        let begun = self.actor.world().elapsed();
        match timeout(limit, self.actor.claimed(self.lock, self.lock.lock())).await {
            Ok(Ok(claimed)) => {
                self.check_nested(&claimed);
                self.guards.push(claimed);
            }
            Ok(Err(error)) => {
                if matches!(error, LockError::Lost) {
                    self.actor.world().fault("reentries_after_a_loss");
                }
                self.actor.check_error(&error, begun, None);
            }
            Err(_) => {}
        }
    }

    /// Q11: it has the token of the hold, which is valid: a call does not enter a lost hold.
    fn check_nested(&self, claimed: &Claimed) {
        let (token, outer) = (claimed.guard().token(), self.guards[0].guard().token());
        self.actor.note("nests", || format!("{} under {token}", self.guards.len() + 1));
        if token != outer {
            self.actor.report("Q11", format!("a nested lock got {token} inside {outer}"));
        }
        if !claimed.guard().is_valid() {
            self.actor.report("Q10", format!("a nested lock got {token}, which is lost"));
        }
    }

    /// Two branches of one task ask at once, as the same owner.
    async fn two_branches(&mut self) {
        if self.guards.len() + 2 > DEEPEST {
            return;
        }
        let lock = self.lock;
        let trying = async { lock.try_lock().await.and_then(|guard| guard.into_result().map_err(LockError::from)) };
        // Checked on arrival: it may be lost while the other one waits.
        let checked = async |call: Pin<Box<dyn Future<Output = _> + Send>>| {
            self.actor.claimed(lock, call).await.inspect(|claimed| self.check_nested(claimed))
        };
        let both = async { tokio::join!(biased; checked(Box::pin(lock.lock())), checked(Box::pin(trying))) };
        let Ok((one, other)) = timeout(Duration::from_millis(1500), both).await else { return };
        self.guards.extend([one, other].into_iter().flatten());
    }

    /// Two tasks of one owner: one drops all guards in turn, while the other asks for a nested lock, which shares the
    /// hold or, after its end, gets a new one.
    async fn two_tasks(&mut self) {
        let (actor, lock, owner) = (self.actor, self.lock, self.guards[0].guard().owner());
        actor.world().fault("owners_in_two_tasks");
        let guards: Vec<_> = std::mem::take(&mut self.guards).into_iter().filter_map(Claimed::end).collect();
        let mut rests: Vec<_> = guards.iter().map(|_| Duration::from_micros(actor.world().below(8000))).collect();
        let dropping = async move {
            for guard in guards {
                sleep(rests.pop().unwrap_or_default()).await;
                drop(guard);
            }
        };
        let task = tokio::spawn(actor.world().in_process(&actor.id, Box::pin(owner.scope(dropping))));
        sleep(Duration::from_micros(actor.world().below(8000))).await;
        self.begun = actor.world().elapsed();
        let calling = Calling::begin(actor, false);
        let outcome = timeout(Duration::from_millis(1500), actor.claimed(lock, lock.lock())).await;
        drop(calling);
        let _ = task.await;
        match outcome {
            Ok(Ok(claimed)) => self.guards.push(claimed),
            Ok(Err(error)) => actor.check_error(&error, self.begun, None),
            Err(_) => {}
        }
    }

    /// Unlocks or drops a random guard.
    async fn end_a_guard(&mut self) {
        let (actor, index) = (self.actor, self.actor.world().below(self.guards.len() as u64) as usize);
        let claimed = self.guards.swap_remove(index);
        let (void, formed) = (claimed.is_void(), claimed.guard().servers());
        let Some(guard) = claimed.end() else { return };
        let token = guard.token();
        if actor.world().chance(0.3) {
            actor.note("drops", || format!("{token}, {} left", self.guards.len()));
            return drop(guard);
        }
        let outcome = guard.unlock().await;
        let answer = outcome.as_ref().map_or_else(ToString::to_string, |unlocked| format!("{unlocked:?}"));
        actor.note("unlocks", || format!("{token}, {} left: {answer}", self.guards.len()));
        if matches!(outcome, Err(UnlockError::Lost(_))) {
            actor.world().fault("losses_of_a_majority");
        }
        if !void {
            self.check_unlock(token, &formed, &outcome);
        }
    }

    /// Without faults only its guards end a renewed hold, and the loss of a minority does not.
    fn check_unlock(&self, token: u64, formed: &[usize], outcome: &Result<Unlocked, UnlockError>) {
        let (actor, trial) = (self.actor, &self.actor.trial);
        let calm = actor.world().state().calm && !actor.world().is_settling();
        let is_safe = calm && self.renewed && trial.majority_was_left_alone(formed, self.begun);
        match outcome {
            Err(error) if is_safe => actor.report("P4", format!("without faults {token} ended with {error}")),
            Err(UnlockError::RuntimeGone { .. }) if actor.has_runtime() => {
                actor.report("errors", format!("{token}: its runtime has not ended"));
            }
            Ok(Unlocked::Freed) if !self.guards.is_empty() && trial.was_steady_since(self.begun) => {
                actor.report("P4", format!("{token} was freed with {} guards left", self.guards.len()));
            }
            Ok(Unlocked::StillHeld(_)) if self.guards.is_empty() && trial.was_steady_since(self.begun) => {
                actor.report("P4", format!("{token} is held still, without a guard"));
            }
            _ => {}
        }
    }

    /// Works on, or waits for the loss of the hold.
    async fn wait_for_loss_or_go_on(&self) {
        let (Some(claimed), world) = (self.guards.first(), self.actor.world()) else { return };
        let (guard, token) = (claimed.guard(), claimed.guard().token());
        if !self.actor.has_runtime() {
            // P8: nobody renews, and the guard still reports the loss at its deadline.
            let left = guard.valid_for();
            match timeout(left + AT_ONCE, guard.lost()).await {
                Ok(_) => world.fault("losses_without_runtime"),
                Err(_) => self.actor.report("P8", format!("without its runtime, the end of {token} was not told")),
            }
            return;
        }
        if world.below(20) > 0 || world.state().calm {
            return self.actor.work(claimed).await;
        }
        let lost: Result<Loss, _> = timeout(Duration::from_secs(5), guard.lost()).await;
        if let Ok(loss) = lost {
            self.actor.note("hears", || format!("of the loss of {token}: {loss}"));
            if guard.is_valid() {
                self.actor.report("P8", format!("the guard reported the loss of {token}, but is valid"));
            }
        }
    }
}
