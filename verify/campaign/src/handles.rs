//! Callers whose locks outlive their guards: one detaches, and posts the handle at the register; another one takes it there.

use std::time::Duration;

use fairlock::{AttachError, DetachError, DetachRefusal, HandleError, HoldHandle, LockGuard};
use tokio::time::sleep;

use crate::caller::{Caller, Running, nanos};
use crate::history::now;

/// A handle, and which hold it was made of: `CLIENT/ID`.
struct Posted {
    from: String,
    handle: HoldHandle,
}

impl Caller {
    /// Detaches what it locks. Others take the handle, or it goes on itself, or nobody does.
    pub fn that_detaches(mut self, name: String) -> Running {
        Box::pin(async move {
            let lock = self.worker.client.lock(&name);
            while !self.worker.has_stopped() {
                let length = self.ms(0..500);
                if let Some((id, guard)) = self.wait(&lock, None).await
                    && self.rely(id, &guard, length).await
                    && let Some(posted) = self.detach(id, guard).await
                {
                    match self.rng.u32(0..10) {
                        0 => {}
                        1 => {
                            sleep(self.ms(0..2000)).await;
                            self.go_on(&posted).await;
                        }
                        _ => self.post(&posted).await,
                    }
                }
                sleep(self.ms(0..300)).await;
            }
        })
    }

    /// Takes the handles that others have posted.
    pub fn that_attaches(mut self, name: String) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                sleep(self.ms(20..400)).await;
                let answer = self.ask_register(&format!("take {name}\n")).await;
                if let Some((from, handle)) = answer.split_once(' ') {
                    let handle = handle.parse().expect("what another one has posted");
                    self.go_on(&Posted { from: from.to_owned(), handle }).await;
                }
            }
        })
    }

    async fn post(&mut self, Posted { from, handle }: &Posted) {
        self.ask_register(&format!("post {} {from} {handle}\n", handle.name())).await;
    }

    async fn detach(&mut self, id: u64, guard: LockGuard) -> Option<Posted> {
        let worker = self.worker.clone();
        let lease = self.ms(2000..5000);
        worker.history.line("detach", format_args!(r#""id":{id},"lease":{}"#, lease.as_millis()));
        // As a holder counts: from before it asked, and less what clocks may differ by.
        let until = now() + nanos(lease) / 100 * 99 - nanos(Duration::from_millis(2));
        let (handle, why) = match guard.detach(lease).await {
            Ok(handle) => (handle, format!(r#""ok","until":{until}"#)),
            Err(DetachError::Unanswered { handle, .. }) => (handle, r#""unanswered""#.to_owned()),
            Err(DetachError::Refused { guard, reason, .. }) => {
                worker.history.line("detached", format_args!(r#""id":{id},"why":"refused""#));
                match reason {
                    DetachRefusal::Lost(loss) => worker.lost(id, loss, 0),
                    _ => self.give_back(id, guard).await,
                }
                return None;
            }
            Err(_) => return None,
        };
        worker.history.line("detached", format_args!(r#""id":{id},"why":{why}"#));
        Some(Posted { from: format!("{}/{id}", worker.settings.id), handle })
    }

    async fn go_on(&mut self, posted: &Posted) {
        let got = match self.rng.u32(0..10) {
            0 => return self.release(posted).await,
            // Only one of two gets it.
            1 => {
                let (one, other) = tokio::join!(self.attach(posted), self.attach(posted));
                [one, other]
            }
            2 => [self.attach(posted).await, self.attach(posted).await],
            _ => [self.attach(posted).await, None],
        };
        for (id, guard) in got.into_iter().flatten() {
            let length = if self.rng.u32(0..3) > 0 { self.ms(0..300) } else { self.ms(1000..5000) };
            if !self.rely(id, &guard, length).await {
                continue;
            }
            if self.rng.u32(0..3) > 0 {
                self.give_back(id, guard).await;
            } else if let Some(posted) = self.detach(id, guard).await {
                self.post(&posted).await;
            }
        }
    }

    async fn attach(&self, posted: &Posted) -> Option<(u64, LockGuard)> {
        let id = self.ask_by_handle("attach", posted);
        match self.worker.client.attach(&posted.handle).await {
            Ok(guard) => self.worker.told(id, Ok(Some(guard)), None),
            Err(error) => {
                let why = match &error {
                    AttachError::Handle(error) => reason(error),
                    _ => "other",
                };
                self.worker.end(id, why);
                None
            }
        }
    }

    async fn release(&self, posted: &Posted) {
        let id = self.ask_by_handle("release", posted);
        let outcome = self.worker.client.release(&posted.handle).await;
        self.worker.end(id, outcome.as_ref().map_or_else(reason, |()| "ok"));
    }

    fn ask_by_handle(&self, how: &str, posted: &Posted) -> u64 {
        self.worker.ask(posted.handle.name(), how, None, &format!(r#","from":"{}""#, posted.from))
    }
}

fn reason(error: &HandleError) -> &'static str {
    match error {
        HandleError::Lost => "lost",
        HandleError::Unreachable(_) => "unreachable",
        HandleError::Refused(_) => "refused",
        HandleError::Closed => "closed",
        _ => "other",
    }
}
