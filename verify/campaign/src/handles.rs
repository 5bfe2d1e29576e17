//! Callers whose locks and permits outlive their guards: one caller detaches, and posts the handle at the register.
//! Another one takes it there.

use std::time::Duration;

use fairlock::{DetachError, HandleError, HoldError, HoldHandle, LockGuard, Permit, RequestError, Tried};
use tokio::time::sleep;

use crate::caller::{Caller, Running, nanos};
use crate::history::now;
use crate::kinds::{Detachable, Permits, Wanted};

/// A handle, and the hold that it came from: `CLIENT/ID`.
struct Posted {
    from: String,
    handle: HoldHandle,
}

impl Caller {
    /// Locks and detaches, again and again.
    pub fn that_detaches(mut self, name: String) -> Running {
        Box::pin(async move {
            let lock = self.worker.client.lock(&name);
            while !self.worker.has_stopped() {
                self.begin(&lock).await;
            }
        })
    }

    pub fn that_detaches_permits(mut self, name: String, of: u32) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let (semaphore, weight) = (self.worker.client.semaphore(&name, of), self.rng.u32(1..of));
                self.begin(&Permits { semaphore, of, weight }).await;
            }
        })
    }

    pub fn that_attaches(self, name: String) -> Running {
        Box::pin(self.take_all::<LockGuard>(name))
    }

    pub fn that_attaches_permits(self, name: String) -> Running {
        Box::pin(self.take_all::<Permit>(name))
    }

    /// Others take the handle, or this caller continues itself, or the lease of the handle ends.
    async fn begin<W: Wanted>(&mut self, wanted: &W)
    where
        W::Guard: Detachable,
    {
        let length = self.ms(0..500);
        if let Some((id, guard)) = self.wait(wanted, None).await
            && self.rely(id, &guard, length).await
            && let Some(posted) = self.detach(id, guard).await
        {
            match self.rng.u32(0..10) {
                0 => {}
                1 => {
                    sleep(self.ms(0..2000)).await;
                    self.go_on::<W::Guard>(&posted).await;
                }
                _ => self.post(&posted).await,
            }
        }
        sleep(self.ms(0..300)).await;
    }

    /// Takes the handles that others have posted.
    async fn take_all<G: Detachable>(mut self, name: String) {
        while !self.worker.has_stopped() {
            sleep(self.ms(20..400)).await;
            let answer = self.ask_register(&format!("take {name}\n")).await;
            if let Some((from, handle)) = answer.split_once(' ') {
                let handle = handle.parse().expect("what another one has posted");
                self.go_on::<G>(&Posted { from: from.to_owned(), handle }).await;
            }
        }
    }

    async fn post(&mut self, Posted { from, handle }: &Posted) {
        self.ask_register(&format!("post {} {from} {handle}\n", handle.name())).await;
    }

    async fn detach<G: Detachable>(&mut self, id: u64, guard: G) -> Option<Posted> {
        let worker = self.worker.clone();
        let lease = self.ms(2000..5000);
        worker.history.line("detach", format_args!(r#""id":{id},"lease":{}"#, lease.as_millis()));
        // Like a holder's deadline: from before the request, less the possible difference of clocks.
        let until = now() + nanos(lease) / 100 * 99 - nanos(Duration::from_millis(2));
        let (handle, why) = match guard.detach(lease).await {
            Ok(handle) => (handle, format!(r#""ok","until":{until}"#)),
            Err(DetachError::Unanswered { handle, .. }) => (handle, r#""unanswered""#.to_owned()),
            Err(DetachError::Refused { guard, reason, .. }) => {
                worker.history.line("detached", format_args!(r#""id":{id},"why":"refused""#));
                match reason {
                    HoldError::Lost(loss) => worker.lost(id, loss, 0),
                    _ => self.give_back(id, guard).await,
                }
                return None;
            }
            Err(_) => return None,
        };
        worker.history.line("detached", format_args!(r#""id":{id},"why":{why}"#));
        Some(Posted { from: format!("{}/{id}", worker.settings.id), handle })
    }

    async fn go_on<G: Detachable>(&mut self, posted: &Posted) {
        let got = match self.rng.u32(0..10) {
            0 => return self.release(posted).await,
            // Only one of two gets it.
            1 => {
                let (one, other) = tokio::join!(self.attach::<G>(posted), self.attach::<G>(posted));
                [one, other]
            }
            2 => [self.attach::<G>(posted).await, self.attach::<G>(posted).await],
            _ => [self.attach::<G>(posted).await, None],
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

    async fn attach<G: Detachable>(&self, posted: &Posted) -> Option<(u64, G)> {
        let id = self.ask_by_handle("attach", posted);
        match G::attach(&self.worker.client, &posted.handle).await {
            Ok(guard) => self.worker.told(id, Ok(Tried::Acquired(guard)), None),
            Err(error) => {
                self.worker.end(id, reason(&error));
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
        HandleError::Request(RequestError::NotSent(_) | RequestError::Unanswered(_)) => "unreachable",
        HandleError::Request(RequestError::Refused(_)) => "refused",
        HandleError::Request(RequestError::Closed) => "closed",
        _ => "other",
    }
}
