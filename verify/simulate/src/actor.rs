//! Callers: they lock, nest, cancel, time out, drop and unlock, each in its own way and time.

use std::sync::Arc;
use std::time::Duration;

use fairlock::{FairLock, LockClient, LockError, LockGuard, Loss, UnlockError, Unlocked, owner};
use tokio::time::{sleep, timeout};

use crate::checker::Claim;
use crate::world::World;

/// One caller, in one process, for as long as that lives.
pub struct Actor {
    pub world: Arc<World>,
    pub client: LockClient,
    pub number: usize,
    pub names: usize,
    /// The shortest lease that this client may ask for.
    pub shortest_lease: Duration,
}

const DEEPEST: usize = 4;

impl Actor {
    pub async fn live(self) {
        while !self.world.state().ending {
            // While it calms down nothing is searched for.
            let settling = self.world.state().calm && self.world.is_settling();
            let rest = if settling { 300 } else { 40 };
            self.world.sleep_up_to(Duration::from_millis(rest)).await;
            let name = format!("lock{}", self.world.below(self.names as u64));
            let lock = self.client.lock(&name);
            owner::scope(async {
                self.turn(&lock).await;
                // The same owner again: late copies of its earlier requests meet its later ones.
                while self.world.chance(0.3) {
                    self.turn(&lock).await;
                }
            })
            .await;
        }
    }

    fn note(&self, what: &'static str, more: impl FnOnce() -> String) {
        self.world.note(what, self.number, || format!("actor {} {}", self.number, more()));
    }

    /// One wish for a lock, and what comes of it.
    async fn turn(&self, lock: &FairLock) {
        let calm = self.world.state().calm;
        let kind = self.world.below(100);
        // More than a round trip in a calm world.
        let patience = Duration::from_millis(50 + self.world.below(2500));
        match kind {
            0..3 if calm => return,
            0..3 => return self.force(lock).await,
            3..6 => return self.with(lock).await,
            _ => {}
        }
        let fixed = self.shortest_lease + Duration::from_millis(self.world.below(1000));
        let lock = if kind < 16 && !calm { lock.with_lease(fixed) } else { lock.clone() };
        self.note("wants", || lock.name().to_owned());
        let outcome = match kind % 5 {
            // Cancelled by its caller.
            0 => timeout(patience, lock.lock()).await.unwrap_or_else(|_| {
                self.world.fault("cancellations");
                Err(LockError::Timeout)
            }),
            1 => lock.lock_timeout(patience).await,
            2 => lock.try_lock().await.and_then(|guard| guard.ok_or(LockError::Timeout)),
            _ => lock.lock().await,
        };
        match outcome {
            Ok(guard) => {
                // Nothing may end such a hold but its guards.
                let safe = kind >= 16 && !self.world.is_settling();
                Section { actor: self, lock: &lock, guards: vec![guard], dropped: false, safe }.run().await;
            }
            Err(error) => self.refused(&error),
        }
    }

    fn refused(&self, error: &LockError) {
        self.note("gets nothing", || error.to_string());
        let fine = match error {
            // A loss that may not be is told by the unlock.
            LockError::Timeout | LockError::Lost | LockError::QueueFull { .. } => true,
            // What was sent before the calm may still be late; what is sent in a calm world is not.
            LockError::Unreachable(_) | LockError::Refused(_) => self.world.is_settling(),
            _ => false,
        };
        if !fine {
            self.world.state().checker.said("errors", format!("actor {}: {error}", self.number));
        }
    }

    async fn force(&self, lock: &FairLock) {
        self.world.fault("forced_unlocks");
        // An answer is not needed: what it did is seen on the server.
        let _ = lock.force_unlock().await;
    }

    async fn with(&self, lock: &FairLock) {
        let again = lock.clone();
        let section = |held: fairlock::Held| async move {
            let token = held.token();
            self.begin(lock, held);
            if let Ok(guard) = again.lock().await {
                self.work(lock, token).await;
                let _ = guard.unlock().await;
            }
            self.end(lock, token);
        };
        // Nothing is cancelled inside, so a claim that began has ended.
        let _ = lock.with(section).await;
    }

    fn begin(&self, lock: &FairLock, held: fairlock::Held) {
        self.note("holds", || format!("{} under {}", lock.name(), held.token()));
        let claim = Claim { lock: key(lock), actor: self.number, process: self.client.id().to_owned(), held };
        let (server_ms, rate) = (self.world.server_ms(), self.world.state().climate.rate);
        self.world.state().checker.claim(claim, server_ms, rate);
    }

    fn end(&self, lock: &FairLock, token: u64) {
        let claims = self.world.state().checker.release(&key(lock), token);
        drop(claims);
    }

    fn beliefs_are_backed(&self) {
        let (server_ms, rate) = (self.world.server_ms(), self.world.state().climate.rate);
        self.world.state().checker.beliefs_are_backed(server_ms, rate);
    }

    /// Reads, takes its time, and writes: whether it is still the holder, the resource decides.
    async fn work(&self, lock: &FairLock, token: u64) {
        let read = self.world.state().checker.read(&key(lock), token, self.number);
        self.pass_time().await;
        self.beliefs_are_backed();
        if let Some(value) = read {
            let written = self.world.state().checker.write(&key(lock), token, value + 1);
            self.note(if written { "writes" } else { "is fenced" }, || format!("{} under {token}", lock.name()));
        }
    }

    /// Mostly short; now and then longer than any lease.
    async fn pass_time(&self) {
        let most = match self.world.below(100) {
            0..70 => 10,
            // Long enough for polls; nobody is to lose anything.
            _ if self.world.state().calm => 200,
            70..95 => 60,
            95..99 => 600,
            _ => 6000,
        };
        self.world.sleep_up_to(Duration::from_millis(most)).await;
    }
}

/// As World and Checker name a lock.
fn key(lock: &FairLock) -> String {
    format!("fairlock:{{n:{}}}", lock.name())
}

/// What an actor does with a lock while it has it.
struct Section<'a> {
    actor: &'a Actor,
    lock: &'a FairLock,
    guards: Vec<LockGuard>,
    /// A guard was dropped rather than unlocked: the server hears of it later.
    dropped: bool,
    /// Renewed, and in a calm world.
    safe: bool,
}

impl Section<'_> {
    async fn run(mut self) {
        let (actor, token) = (self.actor, self.guards[0].token());
        actor.begin(self.lock, self.guards[0].held());
        let steps = actor.world.below(4);
        for _ in 0..steps {
            if self.guards.is_empty() {
                return;
            }
            match actor.world.below(10) {
                0..3 => self.nest().await,
                3 => self.step_out(token).await,
                4 => self.count_is_exact(token).await,
                5 => self.two_branches().await,
                _ => actor.work(self.lock, token).await,
            }
        }
        self.wait_for_loss_or_go_on(token).await;
        while !self.guards.is_empty() {
            self.step_out(token).await;
        }
    }

    async fn nest(&mut self) {
        if self.guards.len() >= DEEPEST {
            return;
        }
        let patience = Duration::from_millis(self.actor.world.below(1500));
        match timeout(patience, self.lock.lock()).await {
            Ok(Ok(guard)) => self.nested(guard),
            // Without an answer, or given up half-way, the background sets the count right, some time.
            Ok(Err(error)) => {
                self.dropped = true;
                self.actor.refused(&error);
            }
            Err(_) => self.dropped = true,
        }
    }

    fn nested(&mut self, guard: LockGuard) {
        let (token, outer) = (guard.token(), self.guards[0].token());
        self.actor.note("nests", || format!("{} under {token}", self.guards.len() + 1));
        if token != outer {
            let what = format!("a nested lock got {token} inside {outer}");
            self.actor.world.state().checker.said("P2", what);
        }
        self.guards.push(guard);
    }

    /// Both want it at once, and share the owner.
    async fn two_branches(&mut self) {
        if self.guards.len() + 2 > DEEPEST {
            return;
        }
        let both = async { tokio::join!(biased; self.lock.lock(), self.lock.try_lock()) };
        let Ok((one, other)) = timeout(Duration::from_millis(1500), both).await else {
            self.dropped = true;
            return;
        };
        // Without an answer it is taken back in the background.
        self.dropped |= one.is_err() || other.is_err();
        one.into_iter().for_each(|guard| self.nested(guard));
        other.into_iter().flatten().for_each(|guard| self.nested(guard));
    }

    /// One guard less, any of them.
    async fn step_out(&mut self, token: u64) {
        let Some(place) = (!self.guards.is_empty()).then(|| self.actor.world.below(self.guards.len() as u64)) else {
            return;
        };
        let guard = self.guards.swap_remove(place as usize);
        if self.guards.is_empty() {
            // From here on it may be somebody else's at any moment.
            self.actor.end(self.lock, token);
        }
        if self.actor.world.chance(0.3) {
            self.dropped = true;
            self.actor.note("drops", || format!("{token}, {} left", self.guards.len()));
            return drop(guard);
        }
        let outcome = guard.unlock().await;
        let said = outcome.as_ref().map_or_else(ToString::to_string, |unlocked| format!("{unlocked:?}"));
        self.actor.note("unlocks", || format!("{token}, {} left: {said}", self.guards.len()));
        self.unlocked(token, &outcome);
    }

    fn unlocked(&mut self, token: u64, outcome: &Result<Unlocked, UnlockError>) {
        let world = &self.actor.world;
        let server_ms = world.server_ms();
        if let (true, Err(error)) = (self.safe, outcome) {
            world.state().checker.said("P4", format!("in a calm world {token} ended with {error}"));
        }
        if matches!(outcome, Err(UnlockError::Lost(_))) {
            world.state().checker.said_lost(&key(self.lock), token);
        }
        match *outcome {
            Ok(Unlocked::Freed) if self.guards.is_empty() => {
                let now = tokio::time::Instant::now().into_std();
                world.state().checker.said_freed(&key(self.lock), token, now, server_ms);
            }
            Ok(Unlocked::StillHeld(left)) if left as usize == self.guards.len() => {}
            Ok(other) => {
                let what = format!("{other:?} with {} guards left under {token}", self.guards.len());
                world.state().checker.said("P4", what);
            }
            Err(UnlockError::Lost(Loss::Gone)) => world.state().checker.said_gone(&key(self.lock), token, server_ms),
            Err(UnlockError::Unknown { .. }) => self.dropped = true,
            Err(_) => {}
        }
    }

    /// P4: at rest the server counts as many holds as there are guards.
    async fn count_is_exact(&self, token: u64) {
        if self.dropped || self.guards.is_empty() {
            return;
        }
        let Ok(status) = self.lock.status().await else { return };
        let Some(holder) = status.holder.filter(|holder| holder.token == token && self.guards[0].is_valid()) else {
            return;
        };
        if holder.holds as usize != self.guards.len() {
            let what = format!("{} holds on the server for {} guards under {token}", holder.holds, self.guards.len());
            self.actor.world.state().checker.said("P4", what);
        }
    }

    /// Works on, or waits until it is lost, which is told at the local deadline at the latest.
    async fn wait_for_loss_or_go_on(&self, token: u64) {
        let Some(guard) = self.guards.first() else { return };
        let world = &self.actor.world;
        if world.below(20) > 0 || world.state().calm {
            return self.actor.work(self.lock, token).await;
        }
        let lost = timeout(Duration::from_secs(5), guard.lost()).await;
        if let Ok(loss) = lost {
            self.actor.note("hears", || format!("of the loss of {token}: {loss}"));
            if guard.is_valid() {
                world.state().checker.said("P8", format!("{token} was said to be lost, and is valid"));
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}
