//! The lock of a client whose locks the machine has, by its name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::effect::Way;
use fairlock_proto::event::{Lease, Manner, Scope, Want};
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{Keys, Kind, Share};
use fairlock_proto::question::{Finding, Question};
use fairlock_proto::requests::inspect::Inspected;
use fairlock_proto::stages::entry::Stage;

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
use crate::store::clock::now;
use crate::store::error::RequestError;
use crate::store::runner::Answer;

#[derive(Clone)]
pub struct DrivenLock {
    /// Its name, lease and label, and what is asked about it beside locking.
    pub lock: EngineLock,
    client: Arc<Client>,
}

impl DrivenLock {
    pub fn of(kind: Kind, share: Share, client: Arc<Client>, name: &str) -> Self {
        let lock = EngineLock::new(kind, share, client.driver().engine.clone(), name);
        Self { lock, client }
    }

    pub fn changed(&self, change: impl Fn(&EngineLock) -> EngineLock) -> Self {
        Self { lock: change(&self.lock), client: self.client.clone() }
    }

    /// The holds of all owners of this client here.
    pub fn holds(&self) -> Vec<Arc<DrivenHold>> {
        self.lock.keys().map_or_else(|_| Vec::new(), |keys| self.client.driver().holds(&keys.lock))
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
        let clock = self.client.driver().clock;
        let manner = match limit.map(|limit| clock.moment(limit)) {
            limit if wait => Manner::Waits { limit },
            limit => {
                let limit = limit.unwrap_or_else(|| clock.moment(self.lock.context().runner.limit()));
                Manner::Tries { limit, proposed: None }
            }
        };
        self.call(caller, manner).await
    }

    /// At one of several servers: for no longer than that, and with this token if it can be given.
    pub async fn try_at_node(
        &self,
        caller: Caller,
        proposed: u64,
        timeout: Duration,
    ) -> Result<Option<DrivenGuard>, LockError> {
        let (limit, proposed) = (self.client.driver().clock.now() + timeout, Some(proposed).filter(|token| *token > 0));
        self.call(caller, Manner::Tries { limit, proposed }).await
    }

    async fn call(&self, caller: Caller, manner: Manner) -> Result<Option<DrivenGuard>, LockError> {
        let (about, lease, weight) =
            self.about(caller).inspect_err(|error| observe::refused_at_once(&self.lock.metrics, error))?;
        if manner.limit().is_some_and(|limit| limit <= self.client.driver().clock.now()) {
            let error = too_late().await;
            observe::refused_at_once(&self.lock.metrics, &error);
            return Err(error);
        }
        acquire(self.client.clone(), about.want(lease, manner, weight), about).await
    }

    /// Whether this owner waits behind others, by the server's last answer.
    pub fn is_behind_others(&self, owner: Owner) -> bool {
        self.is_at(owner, |stage| matches!(stage, Stage::Queued(_)))
    }

    /// Whether what this owner has given up has no answer yet.
    pub fn is_releasing(&self, owner: Owner) -> bool {
        self.is_at(owner, |stage| matches!(stage, Stage::Releasing(_)))
    }

    fn is_at(&self, owner: Owner, is_meant: impl Fn(&Stage) -> bool) -> bool {
        self.lock.keys().is_ok_and(|keys| self.client.driver().is_at(owner.number(), &keys.lock, is_meant))
    }

    /// Takes what a handle holds. `None`: this owner holds the lock or waits for it already.
    pub async fn attach(&self, caller: Caller, handle: &Handle) -> Result<Option<DrivenGuard>, LockError> {
        let limit = self.client.driver().clock.moment(self.lock.context().runner.limit());
        self.call(caller, Manner::Attaches { limit, handle: Arc::new(handle.clone()) }).await
    }

    /// Asks something about it, once.
    pub async fn ask(&self, question: Question) -> Result<Finding, RequestError> {
        ask_once(&self.client, self.lock.keys()?, question).await
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

    /// Every later token is greater than that. `false`: it is not held any longer.
    pub async fn raise(&self, hold: &DrivenHold, floor: u64) -> Result<bool, RequestError> {
        self.carry_out(Question::Raise { owner: hold.entry.owner_id.clone(), token: hold.token, floor }).await
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
            task: caller.task,
            is_node: self.lock.context().is_node(),
        };
        Ok((Arc::new(about), lease_of(lease), self.lock.weight()))
    }
}

/// Asks something about a name, once.
pub async fn ask_once(client: &Arc<Client>, keys: &Arc<Keys>, question: Question) -> Result<Finding, RequestError> {
    Pending::new(client.clone()).ask(keys, question).await.map_err(|error| match error {
        Unasked::Failed(error) => error::of_asked(error, &client.driver().context().runner, &keys.lock),
        Unasked::Closed => RequestError::Closed,
    })
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
