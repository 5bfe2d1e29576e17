//! Handles of permits: an actor that detaches posts the handle, and an actor in any process finds and uses it.

use std::time::Duration;

use fairlock::{DetachError, FairSemaphore, HandleError, HoldError, HoldHandle, Permit, RequestError};
use tokio::time::timeout;

use super::actor::Actor;
use super::posted::Posted;
use crate::keys::owner_in;

impl Actor {
    /// Gives the permits to a handle. Returns them if nothing has happened. `weight`: of the permits, and whether the
    /// server knows it.
    pub async fn detaches(&self, name: &str, permit: Permit, weight: u32, is_known: bool) -> Option<Permit> {
        let (token, held) = (permit.token(), permit.held());
        let world = self.world();
        self.ends(name, token);
        world.fault("permits_detached");
        // Longer than an attach takes without faults. In the calm phase others wait for some of these leases.
        let lease = self.shortest_lease + Duration::from_secs(1);
        if world.state().calm {
            world.state().rested += lease;
        }
        let begun = world.elapsed();
        // A fixed lease may end in the meantime.
        let is_sure = self.must_be_held(name, token) && held.valid_for() > Duration::from_millis(500);
        let detaching = permit.detach(lease);
        let outcome = if world.of_permit(8) == 0 {
            let limit = Duration::from_micros(world.of_permit(6000));
            let Ok(outcome) = timeout(limit, detaching).await else {
                self.note("gives up its detach", || token.to_string());
                return None;
            };
            outcome
        } else {
            detaching.await
        };
        let (handle, is_answered) = match outcome {
            Ok(handle) => (handle, true),
            Err(DetachError::Unanswered { handle, .. }) => (handle, false),
            Err(DetachError::Refused { guard, reason, .. }) => {
                self.is_still_there((name, weight), &guard, &reason, is_sure);
                return Some(guard);
            }
            Err(error) => {
                self.report("errors", error.to_string());
                return None;
            }
        };
        self.note("detaches", || format!("{token}{}", if is_answered { "" } else { ", without an answer" }));
        if held.is_valid() {
            self.report("R16", format!("{token} is relied on after it was detached"));
        }
        if handle.token() != token {
            self.report("R16", format!("the handle of {token} names {}", handle.token()));
        }
        let text = handle.to_string();
        let (name, owner) = (name.to_owned(), owner_in(&text));
        self.trial.checker().is_in_use(&name, &owner);
        let lasts_until = if is_answered && is_sure { begun + lease.mul_f64(0.98) } else { Duration::ZERO };
        let weight = (is_answered && is_known).then_some(weight);
        self.trial.post(Posted { text, name, owner, token, weight, lasts_until });
        None
    }

    fn is_still_there(&self, (name, weight): (&str, u32), permit: &Permit, reason: &HoldError, is_sure: bool) {
        self.note("keeps", || format!("{}: {reason}", permit.token()));
        let expected = match reason {
            HoldError::Lost(_) => !is_sure || !self.must_be_held(name, permit.token()),
            HoldError::Nested(_) | HoldError::SeveralServers | HoldError::Lease(_) => false,
            _ => !self.is_undisturbed(),
        };
        if !expected {
            self.report("errors", format!("without faults {} was not detached: {reason}", permit.token()));
        }
        self.begins(name, permit.held(), weight);
    }

    /// Finds a handle, and uses it.
    pub async fn uses_a_handle(&self) {
        let Some(mut posted) = self.trial.take_posted() else { return };
        let world = self.world();
        let handle = match posted.text.parse::<HoldHandle>() {
            Ok(handle) => handle,
            Err(error) => return self.report("errors", format!("{}: {error}", posted.text)),
        };
        // Others have it too: someone attaches it twice, or releases it after an attach.
        if world.of_permit(5) == 0 {
            posted.lasts_until = Duration::ZERO;
            self.trial.post(posted.clone());
        }
        match world.of_permit(10) {
            0..2 => {
                self.extends(&handle, &mut posted).await;
                self.trial.post(posted);
            }
            2 => self.releases(&handle, &posted).await,
            3 => {
                world.fault("attaches_given_up");
                let limit = Duration::from_micros(world.of_permit(6000));
                if let Ok(Ok(permit)) = timeout(limit, self.client.attach_permit(&handle)).await {
                    self.trial.checker().is_spent(&posted.name, &posted.owner);
                    drop(permit);
                } else if world.of_permit(2) == 0 {
                    self.releases(&handle, &Posted { lasts_until: Duration::ZERO, ..posted }).await;
                } else {
                    self.trial.post(Posted { lasts_until: Duration::ZERO, ..posted });
                }
            }
            // Forgotten.
            4 => {}
            _ => self.attaches(&handle, posted).await,
        }
    }

    async fn extends(&self, handle: &HoldHandle, posted: &mut Posted) {
        let (lease, begun) = (self.shortest_lease + Duration::from_secs(1), self.world().elapsed());
        let extended = self.client.extend(handle, lease).await;
        self.note("extends by a handle", || format!("{}: {extended:?}", posted.token));
        match extended {
            Ok(()) if posted.lasts_until > begun => posted.lasts_until = begun + lease.mul_f64(0.98),
            Ok(()) => {}
            Err(error) => self.check_handle(posted, &error),
        }
    }

    async fn releases(&self, handle: &HoldHandle, posted: &Posted) {
        let released = self.client.release(handle).await;
        self.note("releases by a handle", || format!("{}: {released:?}", posted.token));
        if matches!(released, Ok(()) | Err(HandleError::Lost)) {
            self.trial.checker().is_spent(&posted.name, &posted.owner);
        }
        if let Err(error) = released {
            self.check_handle(posted, &error);
        }
    }

    async fn attaches(&self, handle: &HoldHandle, posted: Posted) {
        match self.client.attach_permit(handle).await {
            Ok(permit) => {
                self.world().fault("permits_attached");
                self.trial.checker().is_spent(&posted.name, &posted.owner);
                self.note("attaches", || posted.token.to_string());
                if permit.token() != posted.token {
                    self.report("R16", format!("{} was attached by a handle of {}", permit.token(), posted.token));
                }
                let weight = permit.weight();
                if posted.lasts_until > self.world().elapsed() && posted.weight.is_some_and(|least| least != weight) {
                    self.report("P4", format!("{:?} were detached, and {weight} attached", posted.weight));
                }
                let semaphore: FairSemaphore = self.client.semaphore(handle.name(), self.permits);
                Box::pin(self.has_permits(&semaphore, permit, weight)).await;
            }
            Err(HandleError::Unreachable(_)) if !self.is_undisturbed() => {}
            Err(error) => {
                if matches!(error, HandleError::Lost) {
                    self.trial.checker().is_spent(&posted.name, &posted.owner);
                }
                self.check_handle(&posted, &error);
            }
        }
    }

    /// Checks the error of a handle that nobody could use.
    fn check_handle(&self, posted: &Posted, error: &HandleError) {
        self.note("has no use of a handle", || format!("{}: {error}", posted.token));
        let expected = match error {
            // The lease has ended, or somebody else has used it, or it never had anything.
            HandleError::Lost => {
                if self.world().nodes() == 1 {
                    self.trial.checker().handle_is_lost(&posted.name, &posted.owner);
                }
                posted.lasts_until < self.world().elapsed() || !self.must_be_held(&posted.name, posted.token)
            }
            HandleError::Request(RequestError::Closed) => self.is_closed(),
            HandleError::Request(_) => !self.is_undisturbed(),
            _ => false,
        };
        if !expected {
            self.report("R16", format!("without faults the handle of {} was of no use: {error}", posted.token));
        }
    }
}
