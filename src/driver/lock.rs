//! The lock of a client whose locks the machine has, by its name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::Way;
use fairlock_proto::event::{Lease, Manner, Scope, Want};

use super::call::Pending;
use super::client::Client;
use super::error;
use super::guard::DrivenGuard;
use super::hold::{About, DrivenHold};
use super::shared::Answered;
use crate::engine::error::LockError;
use crate::engine::last_answer::too_late;
use crate::engine::lock::{Caller, EngineLock, LockLease};
use crate::engine::observe::{self, ObservedCall};
use crate::engine::owner::Owner;
use crate::engine::task_or_thread::TaskOrThread;
use crate::store::clock::{is_over, now};

#[derive(Clone)]
pub struct DrivenLock {
    /// Its name, lease and label, and what is asked about it beside locking.
    pub lock: EngineLock,
    client: Arc<Client>,
}

impl DrivenLock {
    pub fn new(lock: EngineLock, client: Arc<Client>) -> Self {
        Self { lock, client }
    }

    pub fn changed(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        Self { lock: change(&self.lock), client: self.client.clone() }
    }

    /// The holds of all owners of this client here.
    pub fn holds(&self) -> Vec<Arc<DrivenHold>> {
        self.lock.keys().map_or_else(|_| Vec::new(), |keys| self.client.driver().holds(&keys.lock))
    }

    /// How many guards there are on valid holds of these owners.
    pub fn guards(&self, is_meant: impl Fn(Owner) -> bool) -> u32 {
        let holds = self.holds().into_iter().filter(|hold| hold.is_valid() && is_meant(hold.entry.owner));
        holds.map(|hold| hold.live()).sum()
    }

    /// Whether the task that runs now has the lock outside of any scope.
    pub fn is_held_by_this_task(&self) -> bool {
        let task = TaskOrThread::current();
        self.holds().iter().any(|hold| hold.entry.scope == Scope::Call && hold.entry.task == task && hold.live() > 0)
    }

    /// `None`: the lock is not free, and the call does not wait.
    pub async fn acquire(
        &self,
        caller: Caller,
        wait: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<DrivenGuard>, LockError> {
        // A time-out that is too long to be added is as good as none.
        let limit = timeout.and_then(|timeout| now().checked_add(timeout));
        let (about, lease, weight) =
            self.about(caller).inspect_err(|error| observe::refused_at_once(&self.lock.metrics, error))?;
        if is_over(limit) {
            let error = too_late().await;
            observe::refused_at_once(&self.lock.metrics, &error);
            return Err(error);
        }
        let clock = self.client.driver().clock;
        let manner = match limit.map(|limit| clock.moment(limit)) {
            limit if wait => Manner::Waits { limit },
            limit => {
                let limit = limit.unwrap_or_else(|| clock.moment(self.lock.context().runner.limit()));
                Manner::Tries { limit, proposed: None }
            }
        };
        acquire(self.client.clone(), about.want(lease, manner, weight), about).await
    }

    fn about(&self, caller: Caller) -> Result<(Arc<About>, Lease, u32), LockError> {
        let (keys, terms, lease) = self.lock.checked()?;
        let about = About {
            keys: keys.clone(),
            owner: caller.owner,
            owner_id: caller.owner.id(&self.lock.context().runner.client.id).into(),
            terms: terms.clone(),
            metrics: self.lock.metrics.clone(),
            began: caller.began,
            scope: if caller.scoped { Scope::Owner } else { Scope::Call },
            task: TaskOrThread::current(),
        };
        Ok((Arc::new(about), lease_of(lease), self.lock.weight()))
    }
}

fn lease_of(LockLease { time, is_renewed }: LockLease) -> Lease {
    if is_renewed { Lease::Renewed(time) } else { Lease::Fixed(time) }
}

/// Asks for the lock until there is an outcome. `None`: it is not free, and the call does not wait.
async fn acquire(client: Arc<Client>, want: Want, about: Arc<About>) -> Result<Option<DrivenGuard>, LockError> {
    let metrics = about.metrics.clone();
    // Before the work, and so dropped after it: what is given up was left first.
    let call = ObservedCall::begin(about.clone(), &metrics);
    let outcome = call.drive(pin!(ask(client, want, about))).await;
    match &outcome {
        Ok(Some(guard)) => {
            let hold = guard.hold();
            if call.is_told() {
                hold.show();
            }
            call.acquired(hold.token, || guard.way == Way::HandedOver);
        }
        Ok(None) => call.busy(),
        Err(error) => call.failed(error),
    }
    outcome
}

async fn ask(client: Arc<Client>, want: Want, about: Arc<About>) -> Result<Option<DrivenGuard>, LockError> {
    let runner = &client.driver().context().runner;
    loop {
        let mut pending = Pending::new(client.clone());
        return match pending.outcome(&want, &about).await {
            Answered::Granted(granted) => Ok(Some(DrivenGuard::new(pending, granted))),
            Answered::Failed(error) => Err(error::of_call(error, want.weight, runner, &about.keys.lock)),
            // This future was not polled when its turn came, and the lock went to the next one.
            Answered::PassedOver => continue,
            Answered::Busy | Answered::Unlocked(_) => Ok(None),
        };
    }
}
