//! The lock of a client whose locks the machine has, by its name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::Way;
use fairlock_proto::event::{Lease, Manner, Scope, Want};
use fairlock_proto::handle::Handle;
use fairlock_proto::question::{Finding, Question};
use fairlock_proto::requests::inspect::Inspected;

use super::call::{Pending, Unasked};
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
use crate::store::error::RequestError;
use crate::store::runner::Answer;

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

    /// Takes what a handle holds. `None`: this owner holds the lock or waits for it already.
    pub async fn attach(&self, caller: Caller, handle: &Handle) -> Result<Option<DrivenGuard>, LockError> {
        let (about, lease, weight) =
            self.about(caller).inspect_err(|error| observe::refused_at_once(&self.lock.metrics, error))?;
        let limit = self.client.driver().clock.moment(self.lock.context().runner.limit());
        let manner = Manner::Attaches { limit, handle: Arc::new(handle.clone()) };
        acquire(self.client.clone(), about.want(lease, manner, weight), about).await
    }

    /// Asks something about it, once.
    pub async fn ask(&self, question: Question) -> Result<Finding, RequestError> {
        let (keys, runner) = (self.lock.keys()?, &self.lock.context().runner);
        Pending::new(self.client.clone()).ask(keys, question).await.map_err(|error| match error {
            Unasked::Failed(error) => error::of_asked(error, runner, &keys.lock),
            Unasked::Closed => RequestError::Closed,
        })
    }

    /// The holder, and the first `most` waiters.
    pub async fn inspect(&self, most: u32) -> Result<Answer<Inspected>, RequestError> {
        match self.ask(Question::Inspect { most }).await? {
            Finding::Inspected { inspected, server_micros, asked } => {
                let sent = self.client.driver().clock.instant(asked);
                Ok(Answer { body: *inspected, sent, server_ms: server_micros / 1000 })
            }
            // The machine answers no inspection so.
            Finding::Done | Finding::Nothing => Err(RequestError::Closed),
        }
    }

    /// Asks for something to be done. `false`: nothing was held.
    pub async fn carry_out(&self, question: Question) -> Result<bool, RequestError> {
        Ok(matches!(self.ask(question).await?, Finding::Done))
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
            // Its caller rested for a whole lease with what the handle held, which is spent.
            Answered::PassedOver if want.manner.attaches() => Err(LockError::Lost),
            // This future was not polled when its turn came, and the lock went to the next one.
            Answered::PassedOver => continue,
            // The others are outcomes of other calls.
            _ => Ok(None),
        };
    }
}
