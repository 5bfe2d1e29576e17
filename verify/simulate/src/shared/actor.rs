//! Actors: callers that take permits, read and write, shrink, downgrade, cancel, drop and release at random.

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::owner_id;
use fairlock::{FairRwLock, FairSemaphore, Held, LockClient, LockError, Permit, ReadGuard, Tried, WriteGuard, owner};
use tokio::time::timeout;

use super::checker::Claim;
use super::trial::{RW_LOCKS, SEMAPHORES, Trial};
use crate::keys::key_of;
use crate::world::{LONGEST_LEASE, World};

pub struct Actor {
    pub trial: Arc<Trial>,
    pub client: LockClient,
    pub number: usize,
    /// The limit that this process names.
    pub permits: u32,
    pub shortest_lease: Duration,
}

/// How a caller waits: without a limit, with a limit, until the caller cancels, or not at all.
#[derive(Clone, Copy)]
enum How {
    Waits,
    Limited(Duration),
    Cancelled(Duration),
    Tries,
}

/// The weight of a writer.
const ALL: u32 = 1024;

impl Actor {
    pub fn world(&self) -> &World {
        &self.trial.world
    }

    pub async fn live(self) {
        let mut rounds_without = 5;
        while !self.world().state().ending {
            let settling = self.world().state().calm && self.world().is_settling();
            self.world().sleep_up_to(Duration::from_millis(if settling { 300 } else { 40 })).await;
            if self.world().by_handle_of_permits(2) {
                self.uses_a_handle().await;
            }
            if self.world().chance(0.6) {
                self.takes_permits().await;
            } else {
                let name = RW_LOCKS[self.world().below(RW_LOCKS.len() as u64) as usize];
                let lock = self.client.rw_lock(name);
                owner::scope(async {
                    let mut has_given_up = false;
                    self.reads_or_writes(&lock, &mut has_given_up).await;
                    while self.world().chance(0.3) {
                        self.reads_or_writes(&lock, &mut has_given_up).await;
                    }
                })
                .await;
            }
            if !self.world().has_runtime(self.client.id()) || self.is_closed() {
                rounds_without -= 1;
                if rounds_without == 0 {
                    return;
                }
            }
        }
    }

    pub fn note(&self, what: &'static str, more: impl FnOnce() -> String) {
        self.world().note(what, self.number, || format!("actor {} {}", self.number, more()));
    }

    fn how(&self) -> How {
        let limit = Duration::from_millis(50 + self.world().below(2500));
        match self.world().below(6) {
            0 => How::Limited(limit),
            1 => How::Cancelled(limit),
            2 => How::Tries,
            _ => How::Waits,
        }
    }

    async fn takes_permits(&self) {
        let name = SEMAPHORES[self.world().below(SEMAPHORES.len() as u64) as usize];
        let semaphore = self.client.semaphore(name, self.permits);
        let calm = self.world().state().calm;
        if !calm && self.world().chance(0.03) {
            return self.sets_permits(&semaphore).await;
        }
        if !calm && self.world().chance(0.03) {
            return self.revokes(&semaphore).await;
        }
        let semaphore = if self.world().chance(0.15) {
            let least = if calm { LONGEST_LEASE } else { self.shortest_lease + Duration::from_secs(1) };
            semaphore.with_lease(least - Duration::from_millis(self.world().below(500)))
        } else {
            semaphore
        };
        let weight = if self.world().chance(0.6) { 1 } else { 1 + self.world().below(u64::from(self.permits)) as u32 };
        self.note("wants", || format!("{weight} of {}", semaphore.name()));
        let _waits = self.waits();
        let outcome = match self.how() {
            How::Waits => semaphore.acquire_many(weight).await.map(Tried::Acquired),
            How::Limited(limit) => semaphore.acquire_many_timeout(weight, limit).await.map(Tried::Acquired),
            How::Tries => semaphore.try_acquire_many(weight).await,
            How::Cancelled(limit) => {
                self.world().fault("cancellations");
                timeout(limit, semaphore.acquire_many(weight))
                    .await
                    .unwrap_or(Err(LockError::Timeout { holder: None }))
                    .map(Tried::Acquired)
            }
        };
        drop(_waits);
        match outcome {
            Ok(Tried::Acquired(permit)) => self.has_permits(&semaphore, permit, weight).await,
            Ok(Tried::Busy(_)) => {}
            Err(error) => self.check_error(&error),
        }
    }

    pub async fn has_permits(&self, semaphore: &FairSemaphore, mut permit: Permit, weight: u32) {
        let (name, token) = (key_of(semaphore.name()), permit.token());
        if permit.weight() != weight {
            self.report("P4", format!("{weight} were asked for, and {} are there", permit.weight()));
        }
        self.begins(&name, permit.held(), weight);
        self.works().await;
        let (mut weight, mut is_known) = (weight, true);
        if weight > 1 && self.world().chance(0.5) {
            let less = 1 + self.world().below(u64::from(weight - 1)) as u32;
            self.note("shrinks", || format!("{token} from {weight} to {less}"));
            self.changes(&name, token, less, 1);
            weight = less;
            let shrunk = if self.world().chance(0.2) {
                self.world().fault("shrinks_dropped");
                timeout(Duration::from_micros(self.world().below(6000)), permit.shrink_to(less)).await.ok()
            } else {
                Some(permit.shrink_to(less).await)
            };
            is_known = matches!(shrunk, Some(Ok(())));
            self.works().await;
            if matches!(shrunk, Some(Ok(()))) && permit.is_valid() && self.is_settled() {
                self.trial.checker().check_hold(&name, token, 1, weight);
                self.trial.report();
            }
        }
        if self.world().chance(0.05) {
            // In the calm phase a crowd waits for some of these.
            let longest = Duration::from_secs(if self.world().state().calm { 1 } else { 5 });
            let _ = timeout(longest, permit.lost()).await;
        }
        if self.world().by_handle_of_permits(if self.world().state().calm { 12 } else { 3 }) {
            match self.detaches(&name, permit, weight, is_known).await {
                Some(again) => permit = again,
                None => return,
            }
        }
        self.ends(&name, token);
        if self.world().chance(0.3) {
            self.note("drops", || token.to_string());
            return drop(permit);
        }
        let was_valid = permit.is_valid();
        let answer = permit.release().await;
        self.note("releases", || format!("{token}: {answer:?}"));
        if let Err(error) = answer
            && was_valid
            && !self.world().state().checker.is_behind_one_that_rests(self.client.id(), &error)
            && self.must_be_held(&name, token)
        {
            self.report("P4", format!("without faults {token} ended with {error}"));
        }
    }

    async fn sets_permits(&self, semaphore: &FairSemaphore) {
        self.world().fault("permits_set");
        let permits = [None, None, Some(0), Some(1), Some(2), Some(5)][self.world().below(6) as usize];
        let answer = semaphore.set_permits(permits).await;
        self.note("sets", || format!("{permits:?} of {}: {answer:?}", semaphore.name()));
    }

    async fn revokes(&self, semaphore: &FairSemaphore) {
        self.world().fault("revocations");
        let Ok(status) = semaphore.status().await else { return };
        let Some(holder) = status.holders.first() else { return };
        let answer = semaphore.force_unlock_token(holder.token).await;
        self.note("revokes", || format!("{}: {answer:?}", holder.token));
    }

    /// `has_given_up`: an earlier call of this owner got nothing, and its place may still be there.
    async fn reads_or_writes(&self, lock: &FairRwLock, has_given_up: &mut bool) {
        let how = self.how();
        let is_judged = !*has_given_up && matches!(how, How::Limited(_) | How::Tries);
        let begun = self.world().server_ms();
        let writes = self.world().chance(0.35);
        self.note("wants", || format!("{} of {}", if writes { "a write" } else { "a read" }, lock.name()));
        let waits = self.waits();
        if writes {
            let outcome = match how {
                How::Waits => lock.write().await.map(Tried::Acquired),
                How::Limited(limit) => lock.write_timeout(limit).await.map(Tried::Acquired),
                How::Tries => lock.try_write().await,
                How::Cancelled(limit) => timeout(limit, lock.write())
                    .await
                    .unwrap_or(Err(LockError::Timeout { holder: None }))
                    .map(Tried::Acquired),
            };
            drop(waits);
            *has_given_up |= !matches!(outcome, Ok(Tried::Acquired(_)));
            self.check_busy(lock, is_judged.then_some(begun), &outcome);
            match outcome {
                Ok(Tried::Acquired(guard)) => self.has_written(lock, guard).await,
                Ok(Tried::Busy(_)) => {}
                Err(error) => self.check_error(&error),
            }
            return;
        }
        let outcome = match how {
            How::Waits => lock.read().await.map(Tried::Acquired),
            How::Limited(limit) => lock.read_timeout(limit).await.map(Tried::Acquired),
            How::Tries => lock.try_read().await,
            How::Cancelled(limit) => timeout(limit, lock.read())
                .await
                .unwrap_or(Err(LockError::Timeout { holder: None }))
                .map(Tried::Acquired),
        };
        drop(waits);
        *has_given_up |= !matches!(outcome, Ok(Tried::Acquired(_)));
        self.check_busy(lock, is_judged.then_some(begun), &outcome);
        match outcome {
            Ok(Tried::Acquired(guard)) => {
                let token = guard.token();
                self.begins(&key_of(lock.name()), guard.held(), 1);
                self.reads(lock, guard, token).await;
            }
            Ok(Tried::Busy(_)) => {}
            Err(error) => self.check_error(&error),
        }
    }

    /// If a call of this scope reported that others have the lock, they had. `since`: when it began; `None` skips the
    /// check.
    fn check_busy<T>(&self, lock: &FairRwLock, since: Option<i64>, outcome: &Result<Tried<T>, LockError>) {
        let Some(begun) = since.filter(|_| matches!(outcome, Ok(Tried::Busy(_)) | Err(LockError::Timeout { .. })))
        else {
            return;
        };
        let Some(owner) = owner::current().map(|owner| owner_id(&self.client, owner)) else { return };
        self.trial.checker().check_busy(&key_of(lock.name()), &owner, begun, self.world().server_ms());
        self.trial.report();
    }

    async fn has_written(&self, lock: &FairRwLock, guard: WriteGuard) {
        let (name, token) = (key_of(lock.name()), guard.token());
        self.begins(&name, guard.held(), ALL);
        self.works().await;
        if self.world().chance(0.3) {
            self.note("downgrades", || token.to_string());
            self.changes(&name, token, 1, 1);
            match guard.downgrade().await {
                Ok(guard) => {
                    if guard.token() != token {
                        self.report("P2", format!("a downgrade made {} of {token}", guard.token()));
                    }
                    self.reads(lock, guard, token).await;
                }
                Err(_) => self.ends(&name, token),
            }
            return;
        }
        self.ends(&name, token);
        if self.world().chance(0.3) {
            return drop(guard);
        }
        let answer = guard.unlock().await;
        self.note("unlocks", || format!("{token}: {answer:?}"));
    }

    /// A read, and perhaps one in it, past the waiting writers.
    async fn reads(&self, lock: &FairRwLock, guard: ReadGuard, token: u64) {
        let name = key_of(lock.name());
        self.works().await;
        let mut guards = vec![guard];
        if self.world().chance(0.3) {
            let limit = Duration::from_millis(self.world().below(1500));
            if let Ok(Ok(nested)) = timeout(limit, lock.read()).await {
                self.note("nests", || format!("{} in {token}", nested.token()));
                if nested.token() != token {
                    self.report("P2", format!("a nested read got {} inside {token}", nested.token()));
                }
                guards.push(nested);
                self.works().await;
            }
        }
        if self.world().chance(0.05) {
            let write = timeout(Duration::from_millis(500), lock.write()).await;
            if let Ok(Ok(_)) = write {
                self.report("P1", format!("a write began inside of the read {token} of its owner"));
            }
        }
        while let Some(guard) = guards.pop() {
            if guards.is_empty() {
                self.ends(&name, token);
            }
            if self.world().chance(0.3) {
                drop(guard);
                continue;
            }
            let answer = guard.unlock().await;
            self.note("unlocks", || format!("{token}, {} left: {answer:?}", guards.len()));
        }
    }

    async fn works(&self) {
        let calm = self.world().state().calm;
        let most = if !calm && self.world().chance(0.1) { 3000 } else { 60 };
        self.world().sleep_up_to(Duration::from_millis(most)).await;
        self.trial.look();
    }

    fn is_settled(&self) -> bool {
        self.trial.is_settled()
    }

    /// Without faults only its guards end a hold.
    pub fn must_be_held(&self, name: &str, token: u64) -> bool {
        self.is_settled() && !self.is_closed() && !self.trial.checker().is_void(name, token)
    }

    fn waits(&self) -> Waits<'_> {
        let since = self.world().elapsed();
        self.world().state().waiting.insert(self.number, since);
        Waits(self)
    }

    pub fn begins(&self, name: &str, held: Held, weight: u32) {
        self.note("has", || format!("{weight} of {name} under {}", held.token()));
        let (actor, process) = (self.number, self.client.id().to_owned());
        let claim = Claim { name: name.to_owned(), actor, process, held, weight, guards: 1 };
        self.trial.checker().begins(claim);
        self.trial.look();
    }

    pub fn ends(&self, name: &str, token: u64) {
        let claims = self.trial.checker().ends(name, token, self.number);
        drop(claims);
    }

    fn changes(&self, name: &str, token: u64, weight: u32, guards: u32) {
        self.trial.checker().changes(name, token, self.number, |claim| (claim.weight, claim.guards) = (weight, guards));
    }

    pub fn report(&self, promise: &str, what: String) {
        self.world().state().checker.report(promise, what);
    }

    fn check_error(&self, error: &LockError) {
        self.note("gets nothing", || error.to_string());
        // `Permits`: `set_permits` has lowered the limit below this weight.
        let expected = matches!(
            error,
            LockError::Timeout { .. } | LockError::Lost | LockError::QueueFull { .. } | LockError::Permits { .. }
        );
        if !expected && self.is_undisturbed() {
            self.report("errors", format!("without faults: {error:?}"));
        }
    }

    /// Each call of its client gets an answer in time.
    pub fn is_undisturbed(&self) -> bool {
        let id = self.client.id();
        self.is_settled() && !self.is_closed() && !self.world().is_overloaded(id) && self.world().has_runtime(id)
    }

    pub fn is_closed(&self) -> bool {
        self.world().is_closed(self.client.id())
    }
}

/// An actor waits, until this is dropped.
struct Waits<'a>(&'a Actor);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.world().state().waiting.remove(&self.0.number);
    }
}
