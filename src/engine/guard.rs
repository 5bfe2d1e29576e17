//! One guard's share of a hold at one server. Dropping it releases it in the background.

use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::error::{Loss, UnlockError};
use super::hold::{End, Hold};
use super::release::{Release, Unlocked};
use crate::store::clock::now;

pub struct EngineGuard {
    pub hold: Arc<Hold>,
    /// Keeps the client working while there is a guard: it hears revocations and resumes after reconnects.
    _engine: Arc<Engine>,
    /// It writes, as the only one.
    is_writer: bool,
    /// Its call has not got yet all that it wants, and may rest.
    is_part: bool,
    /// Unlocked: dropping it does nothing.
    ended: bool,
}

impl EngineGuard {
    pub fn new(engine: Arc<Engine>, hold: Arc<Hold>, is_writer: bool, is_part: bool) -> Self {
        Self { hold, _engine: engine, is_writer, is_part, ended: false }
    }

    /// Releases it, and waits for the outcome.
    pub async fn unlock(mut self) -> Result<Unlocked, UnlockError> {
        let is_shared = self.hold.entry.keys.kind.is_shared();
        let release = self.end(now());
        // Where a writer goes on as a reader, others wait for that, or for what has the owner's turn before it.
        if is_shared && release.leaves_guards() { release.run_in_background().await } else { release.run().await }
    }

    /// It only reads from here on. The same as for a release: the request is sent when this is run, or in the background.
    pub async fn downgrade(&mut self) -> Result<(), Loss> {
        if std::mem::take(&mut self.is_writer) {
            self.hold.downgrade();
        }
        self.give_some_back().await
    }

    /// From here on it has that much of the name. The same as for a release.
    pub async fn shrink_to(&self, weight: u32) -> Result<(), Loss> {
        self.hold.shrink_to(weight);
        self.give_some_back().await
    }

    /// Without an answer it goes on in the background, which is no error, unless the hold is over by then.
    async fn give_some_back(&self) -> Result<(), Loss> {
        let outcome = Release::new(self.hold.clone()).run_in_background().await;
        match (outcome, self.hold.expire_if_due()) {
            (Err(UnlockError::Lost(loss)), _) | (_, Some(End::Lost(loss))) => Err(loss),
            _ => Ok(()),
        }
    }

    /// Its call has all that it wants.
    pub fn complete(&mut self) {
        if std::mem::take(&mut self.is_part) {
            self.hold.complete();
        }
    }

    /// The hold has ended with it, and there is nothing to give back.
    pub fn forget(mut self) {
        self.ended = true;
    }

    /// Ends the guard at `at`: released, or lost if its deadline has passed by then. Running the returned release sends the
    /// request; dropping it sends the request in the background.
    pub fn end(&mut self, at: Instant) -> Release {
        // Before the count. The guard itself is still dropped after this, and must not count twice (P4).
        self.ended = true;
        self.hold.drop_guard(at, self.is_writer, self.is_part);
        Release::new(self.hold.clone())
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        if !self.ended {
            // A release that is dropped before it is finished goes to the background.
            drop(self.end(now()));
        }
    }
}
