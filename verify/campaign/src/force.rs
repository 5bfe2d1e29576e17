//! An operator who ends holds by force.

use fairlock::RequestError;
use tokio::time::sleep;

use crate::caller::{Caller, Running};

impl Caller {
    pub fn by_force(mut self) -> Running {
        Box::pin(async move {
            let settings = self.worker.settings.clone();
            while !self.worker.has_stopped() {
                sleep(settings.force.mul_f64(0.5 + self.rng.f64())).await;
                let own = settings.own_names(self.rng.u32(0..settings.workers));
                let (kind, shared) = (self.rng.u32(0..8), settings.shared > 0);
                match kind {
                    2 if shared => self.force_one_of(&settings.handle_names()).await,
                    3 if shared => self.revoke_permits().await,
                    4 if shared => self.revoke_read_or_write().await,
                    0 | 1 => self.force_one_of(&settings.work_names()).await,
                    _ => self.force_one_of(&own).await,
                }
            }
        })
    }

    /// Reads the holder, and ends that hold. One time in eight it ends whatever hold there is.
    async fn force_one_of(&mut self, names: &[String]) {
        let name = self.rng.choice(names).expect("there are names");
        let lock = self.worker.client.lock(name);
        let Ok(status) = lock.status().await else { return };
        let Some(holder) = &status.holder else { return };
        if self.rng.u32(0..8) == 0 {
            return self.force(name, "", lock.force_unlock()).await;
        }
        let token = token_field(holder.token);
        if let [_] = status.servers[..] {
            return self.force(name, &token, lock.force_unlock_token(holder.token)).await;
        }
        let holders = status.servers.iter().filter_map(|server| server.answer.as_ref().ok()?.holder.as_ref());
        let owners: Vec<_> = holders.map(|holder| &holder.owner).collect();
        self.force(name, &format!(r#"{token},"owns":{owners:?}"#), lock.force_unlock_shown(&status)).await;
    }

    async fn revoke_permits(&mut self) {
        let among = self.worker.settings.all_semaphores();
        let (name, permits) = self.rng.choice(&among).expect("there are semaphores");
        let semaphore = self.worker.client.semaphore(name, *permits);
        let Ok(status) = semaphore.status().await else { return };
        if let Some(holder) = self.rng.choice(&status.holders) {
            self.force(name, &token_field(holder.token), semaphore.force_unlock_token(holder.token)).await;
        }
    }

    async fn revoke_read_or_write(&mut self) {
        let settings = &self.worker.settings;
        let (long, short) = (settings.long_rw_names(), settings.rw_names());
        let among = if self.rng.bool() { long } else { short };
        let name = self.rng.choice(&among).expect("there are names");
        let lock = self.worker.client.rw_lock(name);
        let Ok(status) = lock.status().await else { return };
        let holders: Vec<_> = status.writer.iter().chain(&status.readers).collect();
        if let Some(holder) = self.rng.choice(&holders) {
            self.force(name, &token_field(holder.token), lock.force_unlock_token(holder.token)).await;
        }
    }

    /// `which`: the field that names the hold.
    async fn force(&self, name: &str, which: &str, forced: impl Future<Output = Result<bool, RequestError>>) {
        let id = self.worker.new_id();
        self.worker.history.line("force", format_args!(r#""id":{id},"n":"{name}"{which}"#));
        // Without an answer the request may have run.
        if let Ok(hit) = forced.await {
            self.worker.history.line("forced", format_args!(r#""id":{id},"hit":{hit}"#));
        }
    }
}

fn token_field(token: u64) -> String {
    format!(r#","tok":{token}"#)
}
