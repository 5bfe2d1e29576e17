//! A lock of one client at its server, by name, and a call for it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::effect::Way;
use fairlock_proto::event::{Lease, Manner, Scope};
use fairlock_proto::handle::Handle;
use fairlock_proto::keys::{self, Keys, Kind, LONGEST_NAME, Share, label_of, shared_terms};
use fairlock_proto::question::{Finding, Question};
use fairlock_proto::requests::inspect::Inspected;
use fairlock_proto::stages::entry::Stage;

use super::call::{Pending, Unasked};
use super::client::Client;
use super::context::Context;
use super::error;
use super::guard::DrivenGuard;
use super::hold::{About, DrivenHold};
use super::limit::too_late;
use super::observe::{self, ObservedCall};
use super::outcome::LockError;
use super::owner::Owner;
use super::shared::Answered;
use super::task_or_thread::TaskOrThread;
use super::tried::{Busy, Tried};
use crate::metrics::LockMetrics;
use crate::store::clock::now;
use crate::store::error::{NameError, RequestError};
use crate::store::options::{OptionsError, check_label};
use crate::store::runner::Answer;

#[derive(Clone)]
pub struct DrivenLock {
    client: Arc<Client>,
    name: Arc<str>,
    keys: Result<Arc<Keys>, NameError>,
    /// How much of the name a call wants.
    share: Share,
    /// Boxed, because an error is rare.
    pub lease: Result<LockLease, Box<OptionsError>>,
    /// The `<first lease>/<label>` suffix of this lock's places in the queue.
    terms: Result<Arc<str>, Box<OptionsError>>,
    pub metrics: LockMetrics,
}

/// The lease of a lock, and whether the watchdog renews it.
#[derive(Debug, Clone, Copy)]
pub struct LockLease {
    pub time: Duration,
    pub is_renewed: bool,
}

/// What a call does if others have the name or wait for it.
#[derive(Debug, Clone, Copy)]
pub enum IfBusy {
    /// Wait for the turn, for this long at most.
    Wait(Option<Duration>),
    /// Return without the name. The server has this long to answer; `None`: an operation time-out.
    Return(Option<Duration>),
}

/// The caller on whose behalf a call runs.
#[derive(Clone, Copy)]
pub struct Caller {
    pub owner: Owner,
    /// Whether later calls may re-enter the hold.
    pub scoped: bool,
    /// When the caller began. A call for several servers may come to this one later.
    pub began: Instant,
    /// Where the caller began. Another task may make the call for it.
    pub task: TaskOrThread,
}

impl Caller {
    /// `scope`: the owner of the scope that the caller is in.
    pub fn of(scope: Option<Owner>) -> Self {
        Self {
            owner: scope.unwrap_or_else(Owner::new),
            scoped: scope.is_some(),
            began: now(),
            task: TaskOrThread::current(),
        }
    }
}

impl DrivenLock {
    /// A share of this name, used as this kind.
    pub fn of(kind: Kind, share: Share, client: Arc<Client>, name: &str) -> Self {
        let context = client.driver().context();
        let keys = match name.len() {
            0 => Err(NameError::Empty),
            length if length > LONGEST_NAME => Err(NameError::TooLong(length)),
            _ => Ok(Arc::new(Keys::of(kind, &context.options().prefix, name))),
        };
        // The client's lease, which the builder has checked.
        let lease = Ok(LockLease { time: context.options().lease, is_renewed: true });
        let terms = Ok(context.runner.terms.clone());
        let metrics = context.options().metrics.of_lock(name);
        let lock = Self { client, name: name.into(), keys, share, lease, terms, metrics };
        if kind.is_shared() { lock.with_share(share) } else { lock }
    }

    /// The same name, with another share.
    pub fn with_share(&self, share: Share) -> Self {
        let first_lease = self.context().options().first_lease();
        let terms = self.terms.clone().map(|terms| shared_terms(share, first_lease, label_of(&terms)).into());
        Self { share, terms, ..self.clone() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the server without the password.
    pub fn address(&self) -> &str {
        &self.context().options().address
    }

    pub fn with_lease(&self, lease: LockLease) -> Self {
        let checked = self.context().options().check_lease("the lease of this lock", lease.time);
        Self { lease: checked.map(|()| lease).map_err(Box::new), ..self.clone() }
    }

    pub fn labelled(&self, label: &str) -> Self {
        let first_lease = self.context().options().first_lease();
        let is_shared = self.keys.as_ref().is_ok_and(|keys| keys.kind.is_shared());
        let terms = || match is_shared {
            true => shared_terms(self.share, first_lease, label),
            false => keys::terms(first_lease, label),
        };
        let terms = check_label(label).map(|()| terms().into()).map_err(Box::new);
        Self { terms, ..self.clone() }
    }

    /// The suffix of its places in the queue, with the label.
    pub fn terms(&self) -> &str {
        self.terms.as_deref().unwrap_or_default()
    }

    /// Checks the name, the lease and the label.
    pub fn check(&self) -> Result<(), LockError> {
        self.valid().inspect_err(|error| observe::refused_at_once(&self.metrics, error))
    }

    pub fn valid(&self) -> Result<(), LockError> {
        self.checked().map(drop)
    }

    pub fn context(&self) -> &Arc<Context> {
        self.client.driver().context()
    }

    pub fn keys(&self) -> Result<&Arc<Keys>, NameError> {
        self.keys.as_ref().map_err(Clone::clone)
    }

    /// The parts that a call needs, or the first error: `with_lease` and the like cannot return theirs.
    pub fn checked(&self) -> Result<(&Arc<Keys>, &Arc<str>, LockLease), LockError> {
        let lease = self.lease.as_ref().map_err(|error| LockError::Lease((**error).clone()))?;
        let terms = self.terms.as_ref().map_err(|error| LockError::Label((**error).clone()))?;
        let keys = self.keys()?;
        let Share { weight, limit } = self.share;
        if weight == 0 || weight > limit {
            return Err(LockError::Permits { wanted: weight, permits: limit });
        }
        Ok((keys, terms, *lease))
    }

    /// The holds of this lock, for all owners of this client.
    pub fn holds(&self) -> Vec<Arc<DrivenHold>> {
        self.keys().map_or_else(|_| Vec::new(), |keys| self.client.driver().holds(&keys.lock))
    }

    /// The owners of this client that hold the lock, with the number of their guards.
    pub fn guards(&self) -> Vec<(Owner, u32)> {
        let valid = self.holds().into_iter().filter(|hold| hold.is_valid());
        valid.map(|hold| (hold.entry.owner, hold.live())).collect()
    }

    /// Whether the current task holds the lock outside of any scope.
    pub fn is_held_by_this_task(&self) -> bool {
        let task = TaskOrThread::current();
        self.holds().iter().any(|hold| hold.entry.scope == Scope::Call && hold.entry.task == task && hold.live() > 0)
    }

    pub async fn acquire(&self, caller: Caller, if_busy: IfBusy) -> Result<Tried<DrivenGuard>, LockError> {
        self.call(caller, self.manner(if_busy)).await
    }

    fn manner(&self, if_busy: IfBusy) -> Manner {
        let clock = self.client.driver().clock;
        // A time-out that is too long to add is as good as none.
        let limit = |timeout: Option<Duration>| Some(clock.moment(now().checked_add(timeout?)?));
        match if_busy {
            IfBusy::Wait(timeout) => Manner::Waits { limit: limit(timeout) },
            IfBusy::Return(timeout) => {
                let limit = limit(timeout).unwrap_or_else(|| clock.moment(self.context().runner.limit()));
                Manner::Tries { limit, proposed: None }
            }
        }
    }

    /// Tries at one of several servers, for `timeout` at most, and proposes a token.
    pub async fn try_at_node(
        &self,
        caller: Caller,
        proposed: u64,
        timeout: Duration,
    ) -> Result<Tried<DrivenGuard>, LockError> {
        let (limit, proposed) = (self.client.driver().clock.now() + timeout, Some(proposed).filter(|token| *token > 0));
        self.call(caller, Manner::Tries { limit, proposed }).await
    }

    async fn call(&self, caller: Caller, manner: Manner) -> Result<Tried<DrivenGuard>, LockError> {
        let about = self.about(caller, manner).inspect_err(|error| observe::refused_at_once(&self.metrics, error))?;
        if about.manner.limit().is_some_and(|limit| limit <= self.client.driver().clock.now()) {
            let error = too_late().await;
            observe::refused_at_once(&self.metrics, &error);
            return Err(error);
        }
        acquire(self.client.clone(), about).await
    }

    /// Whether this owner waits after others, by the server's last answer.
    pub fn is_behind_others(&self, owner: Owner) -> bool {
        self.is_at(owner, Stage::is_behind_others)
    }

    /// Whether a release of this owner is unanswered.
    pub fn is_releasing(&self, owner: Owner) -> bool {
        self.is_at(owner, |stage| matches!(stage, Stage::Releasing(_)))
    }

    fn is_at(&self, owner: Owner, is_meant: impl Fn(&Stage) -> bool) -> bool {
        self.keys().is_ok_and(|keys| self.client.driver().is_at(owner.number(), &keys.lock, is_meant))
    }

    /// Takes over the hold of a handle. Busy: this owner already holds the lock or waits for it.
    pub async fn attach(&self, caller: Caller, handle: &Handle) -> Result<Tried<DrivenGuard>, LockError> {
        let limit = self.client.driver().clock.moment(self.context().runner.limit());
        self.call(caller, Manner::Attaches { limit, handle: Arc::new(handle.clone()) }).await
    }

    /// Asks a question about the lock, once.
    pub async fn ask(&self, question: Question) -> Result<Finding, RequestError> {
        ask_once(&self.client, self.keys()?, question).await
    }

    /// The holder, and the first `most` waiters.
    pub async fn inspect(&self, most: u32) -> Result<Answer<Inspected>, RequestError> {
        match self.ask(Question::Inspect { most }).await? {
            Finding::Inspected { inspected, server_micros } => {
                Ok(Answer { body: *inspected, server_ms: server_micros / 1000 })
            }
            // The machine never answers an inspection like this.
            Finding::Done | Finding::Nothing => Err(RequestError::Closed),
        }
    }

    /// Makes every later token greater than `floor`. Returns false if the hold has ended.
    pub async fn raise(&self, hold: &DrivenHold, floor: u64) -> Result<bool, RequestError> {
        self.carry_out(Question::Raise { owner: hold.entry.owner_id.clone(), token: hold.token, floor }).await
    }

    /// Asks for a change. Returns false if nothing was there to change.
    pub async fn carry_out(&self, question: Question) -> Result<bool, RequestError> {
        Ok(matches!(self.ask(question).await?, Finding::Done))
    }

    /// Ends the present hold, if it has the expected token. Returns whether there was such a hold.
    pub async fn force_unlock(&self, expected: Option<u64>) -> Result<bool, RequestError> {
        self.carry_out(Question::ForceUnlock { expected }).await
    }

    /// Sets the limit of a shared name for all clients. With `None`, each client's own limit counts.
    pub async fn set_limit(&self, limit: Option<u32>) -> Result<(), RequestError> {
        self.carry_out(Question::SetLimit { limit }).await.map(drop)
    }

    /// Sets a new lease for the hold of a handle, unless more is left. Returns false if the handle holds nothing.
    pub async fn extend_handle(&self, handle: &Handle, lease: Duration) -> Result<bool, RequestError> {
        self.carry_out(Question::Extend { handle: handle.clone(), lease }).await
    }

    /// Releases the hold of a handle. Returns false if the handle held nothing.
    pub async fn release_handle(&self, handle: &Handle) -> Result<bool, RequestError> {
        self.carry_out(Question::Release { handle: handle.clone() }).await
    }

    fn about(&self, caller: Caller, manner: Manner) -> Result<Arc<About>, LockError> {
        let (keys, terms, lease) = self.checked()?;
        Ok(Arc::new(About {
            keys: keys.clone(),
            owner: caller.owner,
            owner_id: caller.owner.id(&self.context().runner.client.id),
            terms: terms.clone(),
            metrics: self.metrics.clone(),
            began: caller.began,
            scope: if caller.scoped { Scope::Owner } else { Scope::Call },
            task: caller.task,
            manner,
            lease: lease_of(lease),
            weight: self.share.weight,
            is_node: self.context().is_node(),
        }))
    }
}

/// Asks a question about a name, once.
pub async fn ask_once(client: &Arc<Client>, keys: &Arc<Keys>, question: Question) -> Result<Finding, RequestError> {
    Pending::new(client.clone()).ask(keys, question).await.map_err(|error| match error {
        Unasked::Failed(error) => error::of_asked(error, &client.driver().context().runner, &keys.lock),
        Unasked::Closed => RequestError::Closed,
    })
}

fn lease_of(LockLease { time, is_renewed }: LockLease) -> Lease {
    if is_renewed { Lease::Renewed(time) } else { Lease::Fixed(time) }
}

/// Asks for the lock until there is an outcome.
async fn acquire(client: Arc<Client>, about: Arc<About>) -> Result<Tried<DrivenGuard>, LockError> {
    let metrics = about.metrics.clone();
    // Declared before the work, so dropped after it: a call leaves the queue before it reports that it gave up.
    let call = ObservedCall::begin(about.clone(), &metrics);
    let outcome = call.drive(pin!(ask(client, about))).await;
    match &outcome {
        Ok(Tried::Acquired(guard)) => {
            let hold = guard.hold();
            if call.is_told() {
                hold.show();
            }
            call.acquired(hold.token, || guard.way == Way::HandedOver);
        }
        Ok(Tried::Busy(_)) => call.busy(),
        Err(error) => call.failed(error),
    }
    outcome
}

async fn ask(client: Arc<Client>, about: Arc<About>) -> Result<Tried<DrivenGuard>, LockError> {
    let runner = &client.driver().context().runner;
    loop {
        let mut pending = Pending::new(client.clone());
        return match pending.outcome(&about).await {
            Answered::Granted(granted) => Ok(Tried::Acquired(DrivenGuard::new(pending, granted))),
            Answered::Busy(holder) => Ok(Tried::Busy(Busy::of(holder))),
            Answered::Failed(error) => Err(error::of_call(error, about.weight, runner, &about.keys.lock)),
            // The caller left the grant unclaimed for a whole lease, and the handle is used up.
            Answered::PassedOver if about.manner.attaches() => Err(LockError::Lost),
            // The caller did not poll this future when its turn came, and the next one got the lock.
            Answered::PassedOver => continue,
            // Other outcomes belong to other calls.
            _ => Ok(Tried::Busy(Busy::default())),
        };
    }
}
