//! Callers of semaphores and of read-write locks.

use std::time::Duration;

use fairlock::{Ended, Held, HoldError, Loss, Permit, WriteGuard};
use tokio::time::sleep;

use crate::caller::{Caller, Running};
use crate::kinds::{Permits, Reads, Wanted, Writes};

impl Caller {
    /// Many short sections, in all possible ways. `semaphores` have their numbers of permits.
    pub fn of_shared(mut self, semaphores: Vec<(String, u32)>, rw_names: Vec<String>) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let length = self.length();
                if self.rng.bool() {
                    let (name, of) = self.rng.choice(&semaphores).expect("there are semaphores").clone();
                    let permits = self.permits(&name, of, of);
                    if let Some((id, permit)) = self.in_any_way(&permits).await {
                        self.with_permits(id, permit, length).await;
                    }
                    continue;
                }
                let lock = self.worker.client.rw_lock(self.rng.choice(&rw_names).expect("there are names"));
                if self.rng.u32(0..4) > 0 {
                    if let Some((id, guard)) = self.in_any_way(&Reads(lock)).await {
                        self.section(id, guard, length).await;
                    }
                } else if let Some((id, guard)) = self.in_any_way(&Writes(lock)).await {
                    self.writing(id, guard, length).await;
                }
            }
        })
    }

    /// Holds permits for seconds, so that there is much to lose.
    pub fn with_permits_for_long(mut self, name: String, of: u32) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let length = self.ms(3000..12_000);
                let permits = self.permits(&name, of, 2);
                if let Some((id, permit)) = self.wait(&permits, None).await {
                    self.with_permits(id, permit, length).await;
                }
                sleep(self.ms(0..300)).await;
            }
        })
    }

    /// Reads for seconds, and sometimes writes.
    pub fn reading_for_long(mut self, name: String) -> Running {
        Box::pin(async move {
            let lock = self.worker.client.rw_lock(&name);
            while !self.worker.has_stopped() {
                if self.rng.u32(0..6) > 0 {
                    let length = self.ms(3000..12_000);
                    if let Some((id, guard)) = self.wait(&Reads(lock.clone()), None).await {
                        self.section(id, guard, length).await;
                    }
                } else if let Some((id, guard)) = self.wait(&Writes(lock.clone()), None).await {
                    let length = self.ms(500..3000);
                    self.writing(id, guard, length).await;
                }
                sleep(self.ms(0..300)).await;
            }
        })
    }

    /// Mostly one permit, and at most `most`.
    fn permits(&mut self, name: &str, of: u32, most: u32) -> Permits {
        let weight = if self.rng.u32(0..3) > 0 { 1 } else { self.rng.u32(1..=most) };
        Permits { semaphore: self.worker.client.semaphore(name, of), of, weight }
    }

    async fn in_any_way<W: Wanted>(&mut self, wanted: &W) -> Option<(u64, W::Guard)> {
        match self.rng.u32(0..100) {
            0..64 => self.wait(wanted, None).await,
            64..80 => {
                let limit = self.ms(20..3000);
                self.wait_for(wanted, limit).await
            }
            80..90 => self.try_it(wanted).await,
            _ => self.give_up(wanted).await,
        }
    }

    /// Some release a part of their permits half-way.
    async fn with_permits(&mut self, id: u64, permit: Permit, length: Duration) {
        let weight = permit.weight();
        if weight == 1 || self.rng.bool() {
            return self.section(id, permit, length).await;
        }
        if !self.rely(id, &permit, length / 2).await {
            return;
        }
        let left = self.rng.u32(1..weight);
        self.shrinks(id, left);
        match unless_lost(permit.held(), permit.shrink_to(left)).await {
            Err(loss) | Ok(Err(HoldError::Lost(loss))) => self.worker.lost(id, loss, 0),
            Ok(_) => self.section(id, permit, length / 2).await,
        }
    }

    /// Some go on as readers half-way.
    async fn writing(&mut self, id: u64, guard: WriteGuard, length: Duration) {
        if self.rng.bool() {
            return self.section(id, guard, length).await;
        }
        if !self.rely(id, &guard, length / 2).await {
            return;
        }
        self.shrinks(id, 1);
        match unless_lost(guard.held(), guard.downgrade()).await {
            Err(loss) | Ok(Err(loss)) => self.worker.lost(id, loss, 0),
            Ok(Ok(guard)) => self.section(id, guard, length / 2).await,
        }
    }

    /// Before the call: from here on the caller relies on no more.
    fn shrinks(&self, id: u64, weight: u32) {
        self.worker.history.line("shrink", format_args!(r#""id":{id},"w":{weight}"#));
    }
}

/// A holder's call that also watches for a loss: without an answer the call takes an operation timeout.
async fn unless_lost<T>(held: Held, call: impl Future<Output = T>) -> Result<T, Loss> {
    tokio::select! {
        biased;
        Ended::Lost(loss) = held.ended() => Err(loss),
        outcome = call => Ok(outcome),
    }
}
