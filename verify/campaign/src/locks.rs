//! Callers of locks.

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use fairlock::{Tried, Unlocked, WithError, owner};
use tokio::time::sleep;

use crate::caller::{Caller, Running, reason};

impl Caller {
    /// Many short sections, in all possible ways.
    pub fn any_of(mut self, names: Vec<String>) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let name = self.rng.choice(&names).expect("there are names").clone();
                match self.rng.u32(0..100) {
                    80..86 => self.nested(&name).await,
                    86..89 => self.lock_all(&names).await,
                    98.. => self.with(&name).await,
                    way => self.once(&name, way).await,
                }
            }
        })
    }

    /// A call for one guard.
    async fn once(&mut self, name: &str, way: u32) {
        let lock = self.worker.client.lock(name);
        let got = match way {
            0..58 => self.wait(&lock, None).await,
            58..72 => {
                let limit = self.ms(20..3000);
                self.wait_for(&lock, limit).await
            }
            72..80 => self.try_it(&lock).await,
            89..95 => self.give_up(&lock).await,
            _ => {
                let lease = self.worker.settings.lease;
                self.wait(&lock.with_lease(lease), Some(lease)).await
            }
        };
        if let Some((id, guard)) = got {
            let length = self.length();
            self.section(id, guard, length).await;
        }
    }

    /// A long line of waiters with a known order.
    pub fn in_line(self, name: String) -> Running {
        self.again_and_again(name, 20..60, 0..100)
    }

    /// Holds the lock for seconds, so that there is much to lose.
    pub fn for_long(self, name: String) -> Running {
        self.again_and_again(name, 3000..12_000, 0..300)
    }

    /// Holds for a random time and pauses for a random time, both in ms.
    fn again_and_again(mut self, name: String, lengths: Range<u64>, pauses: Range<u64>) -> Running {
        Box::pin(async move {
            let lock = self.worker.client.lock(&name);
            while !self.worker.has_stopped() {
                let length = self.ms(lengths.clone());
                if let Some((id, guard)) = self.wait(&lock, None).await {
                    self.section(id, guard, length).await;
                }
                sleep(self.ms(pauses.clone())).await;
            }
        })
    }

    async fn nested(&mut self, name: &str) {
        owner::scope(async {
            let lock = self.worker.client.lock(name);
            let Some((id, guard)) = self.wait(&lock, None).await else { return };
            if let Ok(inner) = lock.lock_timeout(Duration::from_secs(2)).await {
                self.worker.history.line("in", format_args!(r#""id":{id},"k":{}"#, inner.holds()));
                if let Ok(Unlocked::StillHeld(left)) = inner.unlock().await {
                    self.worker.history.line("out", format_args!(r#""id":{id},"k":{left}"#));
                }
            }
            let length = self.length();
            self.section(id, guard, length).await;
        })
        .await;
    }

    async fn lock_all(&mut self, names: &[String]) {
        let count = self.rng.usize(2..=4);
        let names = self.rng.choose_multiple(names.iter(), count);
        let limit = self.ms(200..4000);
        let ids: Vec<u64> = names.iter().map(|name| self.worker.ask(name, "all", Some(limit), "")).collect();
        match self.worker.client.lock_all(&names).lock_timeout(limit).await {
            Ok(all) => {
                let mut guards = all.into_guards();
                guards.sort_by_key(|guard| names.iter().position(|name| *name == guard.name()));
                let told = |(id, guard)| self.worker.told(id, Ok(Tried::Acquired(guard)), None);
                let held: Vec<_> = ids.into_iter().zip(guards).filter_map(told).collect();
                for (id, guard) in held {
                    self.section(id, guard, Duration::ZERO).await;
                }
            }
            Err(error) => ids.into_iter().for_each(|id| self.worker.end(id, reason(&error))),
        }
    }

    async fn with(&mut self, name: &str) {
        let worker = self.worker.clone();
        let id = worker.ask(name, "lock", None, "");
        let lock = worker.client.lock(name);
        let inside = worker.clone();
        let running = lock.with(|held| async move {
            inside.holds(id, &held, "");
            self.write(id, &held, "write").await;
            // `with` does the release itself.
            inside.history.line("free", format_args!(r#""id":{id}"#));
        });
        let mut running = pin!(running);
        let outcome = tokio::select! {
            outcome = &mut running => outcome,
            () = worker.stopped() => {
                worker.end(id, "cancelled");
                return;
            }
        };
        match outcome {
            Ok(()) => worker.history.line("freed", format_args!(r#""id":{id},"why":"ok""#)),
            Err(WithError::Lock(error)) => worker.end(id, reason(&error)),
            Err(_) => worker.history.line("freed", format_args!(r#""id":{id},"why":"lost""#)),
        }
    }
}
