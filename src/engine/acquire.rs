//! Acquiring: from a call to a hold, by way of the queue. Dropped half-way, it leaves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::handle::Handle;
use fairlock_proto::keys::Share;
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::give::{Gave, Give};
use fairlock_proto::requests::renew::{Only, Renew, Renewed};
use futures::FutureExt;
use tokio::time::sleep_until;

use super::Engine;
use super::cleanup;
use super::error::{LockError, Loss};
use super::hold::{Entry, Hold, NewHold};
use super::lease::{self, Queued};
use super::observe::{self, Holding, Named, Who};
use super::owners::OwnersTurn;
use super::release::Release;
use super::waiters::{NewWaiter, Turn, WaitOutcome, Waiter};
use crate::metrics::LockMetrics;
use crate::store::Priority;
use crate::store::admission::InFlight;
use crate::store::backoff::Backoff;
use crate::store::clock::{is_over, now};
use crate::store::error::RequestError;
use crate::store::runner::Answer;

/// How often one grant is asked about before it is relied on.
const CONFIRMED_AT_MOST: u32 = 3;

/// A request for the lock.
pub struct AcquireRequest<'a> {
    pub engine: &'a Arc<Engine>,
    /// The caller.
    pub entry: Arc<Entry>,
    pub lease: Duration,
    /// Renewed by the watchdog.
    pub watched: bool,
    /// Part of a call for several names.
    pub is_part: bool,
    /// `try_lock` only: how long to wait for the server. `None`: queue if the lock is not free.
    pub limit: Option<Instant>,
    /// `try_lock` only: the token to propose, or 0 for none (Q3).
    pub proposed: u64,
    /// The handle whose hold it takes, instead of asking for the lock. With a limit.
    pub attach: Option<&'a Handle>,
    /// Called in a scope, so that it may be re-entered.
    pub scoped: bool,
    /// How much of the name it wants.
    pub share: Share,
    /// When it was called.
    pub began: Instant,
    /// The terms of a place in the queue, see `keys::terms`.
    pub terms: &'a Arc<str>,
    pub metrics: LockMetrics,
}

/// One more guard's worth of the lock for this owner. `None` if the lock is not free and the request
/// is not to wait. It tries without end: the caller limits the time by dropping it.
pub async fn acquire(request: &AcquireRequest<'_>) -> Result<Option<Arc<Hold>>, LockError> {
    let mut kept = None;
    loop {
        // We need to look at this _before_ we ask for the turn, which that call keeps for as long as it
        // waits. Otherwise `try_lock` would first wait for a whole operation time-out.
        if request.limit.is_some() && request.entry.is_queueing() {
            // Another branch of this owner waits in the queue, so the lock is not free.
            return Ok(None);
        }
        // Before the turn as well, which a request without an answer may keep for long.
        refuse_upgrade(request)?;
        let turn = match kept.take() {
            Some(turn) => turn,
            None => {
                let Some(turn) = take_turn(request).await? else { return Ok(None) };
                // The answer on record went to an earlier call of this owner.
                request.entry.last_answer.own();
                turn
            }
        };
        // A lost hold with guards counts too. Otherwise a nested call would begin a new hold, and the
        // outer section would not know that it has lost its own.
        let Some(hold) = request.entry.hold().filter(|hold| hold.is_relied_on() || hold.end().is_none()) else {
            // We must keep the turn until this returns. Otherwise two branches of one owner could both ask for
            // a first hold, and the second one would end the hold of the first (decision 3).
            return first_hold(request).await;
        };
        // Read once. Another thread may drop the last guard between two looks, and a request for "one
        // more than 0 holds" would end the hold on the server and begin another one.
        let holds = hold.live();
        if holds > 0 && request.attach.is_some() {
            return Ok(None);
        }
        if holds > 0 {
            refuse_upgrade(request)?;
            // Boxed, like everything here that is rare or short: waiters are many, and keep the size of this future
            // while they wait.
            match Box::pin(reenter(hold, holds, request, turn)).await? {
                Reentry::Entered(hold) => return Ok(Some(hold)),
                // With the turn: the release may wait for it, and rest.
                Reentry::Over(turn) => kept = turn,
            }
            continue;
        }
        // The last guard is gone, but its release was not sent yet. Re-entering now would keep the lock from the
        // waiters, so the release goes first (P3).
        // Its outcome does not matter here. Without an answer it keeps the turn and goes on in the background, and the
        // next round waits for it.
        kept = Box::pin(Release::with_turn(hold, turn).run_before_another()).await;
    }
}

/// A write inside of a read of the same owner would wait for itself, and an upgrade would overtake the writers that wait.
fn refuse_upgrade(request: &AcquireRequest<'_>) -> Result<(), LockError> {
    let is_refused = |hold: Arc<Hold>| hold.end().is_none() && hold.is_only_read();
    let would_wait = request.share == Share::WRITER && request.entry.hold().is_some_and(is_refused);
    if would_wait { Err(LockError::WouldDeadlock) } else { Ok(()) }
}

/// `None`: the request is not to wait, and another call of this owner has the turn, and waits behind others.
async fn take_turn(request: &AcquireRequest<'_>) -> Result<Option<OwnersTurn>, LockError> {
    let entry = &request.entry;
    let Some(limit) = request.limit else { return Ok(Some(entry.turn().await)) };
    // The turn may belong to a release, after which the lock is free. So `try_lock` waits for it too.
    match Box::pin(entry.turn_in_time(limit)).await {
        Some(turn) => Ok(Some(turn)),
        None => request.not_in_time(),
    }
}

impl Named for &AcquireRequest<'_> {
    fn who(&self) -> Who<'_> {
        self.entry.who(self.terms, self.engine.context.is_node())
    }

    fn began(&self) -> Instant {
        self.began
    }
}

impl AcquireRequest<'_> {
    /// Waits until a request may be sent.
    async fn admit(&self) -> Result<Arc<InFlight>, RequestError> {
        self.engine.context.runner.admit(&self.entry.keys.lock, Priority::Normal, self.limit).await
    }

    pub fn out_of_time(&self) -> LockError {
        self.entry.out_of_time(&self.engine.context.runner)
    }

    /// The outcome of a `try_lock` that is out of time. `None`: others have the lock.
    fn not_in_time<T>(&self) -> Result<Option<T>, LockError> {
        match self.out_of_time() {
            LockError::Timeout => Ok(None),
            error => Err(error),
        }
    }

    /// A pause, but not beyond the time of the call.
    async fn pause(&self, backoff: &mut Backoff) {
        let end = now() + backoff.next();
        sleep_until(self.limit.map_or(end, |limit| limit.min(end)).into()).await;
    }

    /// The pause before a request is repeated, unless the error or the time ends the call.
    async fn pause_after(&self, error: RequestError, backoff: &mut Backoff) -> Result<(), LockError> {
        self.entry.last_answer.note(error.clone())?;
        if backoff.pause_until(self.limit, &error).await { Ok(()) } else { Err(self.out_of_time()) }
    }

    fn mode(&self) -> Mode {
        match (self.limit, self.proposed) {
            (None, _) => Mode::Queue,
            (Some(_), 0) => Mode::Try,
            (Some(_), proposed) => Mode::Propose(proposed),
        }
    }
}

enum Reentry {
    Entered(Arc<Hold>),
    /// It was released meanwhile, so the call is not nested. The owner's turn.
    Over(Option<OwnersTurn>),
}

/// One more hold on what the owner has. If that was lost meanwhile, it returns `Lost` and does not begin a new hold:
/// the outer section would not know.
async fn reenter(
    hold: Arc<Hold>,
    holds: u32,
    request: &AcquireRequest<'_>,
    turn: OwnersTurn,
) -> Result<Reentry, LockError> {
    let (entry, context) = (&hold.entry, hold.context());
    let mut backoff = context.backoff();
    let mut acquire = Acquire {
        keys: entry.keys.clone(),
        owner: entry.owner_id.clone(),
        seq: context.next_seq(),
        mode: Mode::Nest(hold.token, holds),
        lease: hold.lease,
        terms: request.terms.clone(),
        not_after: 0,
    };
    // Given up half-way, the server may count one hold too many. Dropping this corrects it (P4).
    let undo = Release::with_turn(hold.clone(), turn);
    // The local deadline ends this loop as well. With a silent server the caller must still learn of the loss (P8).
    while !hold.is_over() {
        // At each try: a server may be silent for longer than until `max_hold`. A lease that is not to be extended gets no
        // more than what is left of it here, which is less than on the server (R5). Not less either: a key that has lost
        // its time to live gets this one.
        let question = hold.question();
        let rest = || lease::lasting(hold.deadline().saturating_duration_since(now()));
        acquire.lease = question.map_or_else(rest, |question| question.lease);
        // Before the await that may be the last one.
        hold.set_unsettled();
        let asking = async {
            let admitted = request.admit().await?;
            context.runner.acquire(admitted, &mut acquire, &mut 0).await
        };
        let answer = match asking.await {
            Ok(answer) => answer,
            Err(error) => {
                request.pause_after(error, &mut backoff).await?;
                continue;
            }
        };
        if !matches!(answer.body, Acquired::Late) {
            entry.last_answer.own();
        }
        match answer.body {
            Acquired::Held { holds, lease_left, .. } => {
                if let Some(question) = question {
                    let deadline = lease::deadline_told(answer.sent, lease_left, acquire.lease);
                    hold.extend(question, answer.sent, deadline);
                }
                // The hold may have been lost while this answer was on its way. Then the leave sent for the loss
                // has a later seq, and takes this level back as well (R11).
                if hold.is_taken_over() || hold.is_over() || !hold.enter(holds, request.share, request.is_part) {
                    break;
                }
                drop(undo.cancel());
                return Ok(Reentry::Entered(hold));
            }
            // Our estimate of the server's clock was off; this answer has corrected it.
            Acquired::Late => request.pause(&mut backoff).await,
            // The server does not have this hold under our token, or gives an answer that a nested
            // request cannot get. In doubt it must not be relied on (P1).
            _ if hold.is_taken_over() => break,
            _ => {
                hold.lose(Loss::Gone);
                break;
            }
        }
    }
    // Where its last guard has ended, no outer section is left that would have to know.
    if hold.is_relied_on() { Err(LockError::Lost) } else { Ok(Reentry::Over(undo.cancel())) }
}

/// The first hold: from nothing to owning the lock.
async fn first_hold(request: &AcquireRequest<'_>) -> Result<Option<Arc<Hold>>, LockError> {
    let (mut backoff, mut turn) = (request.engine.context.backoff(), None);
    loop {
        let mut attempt = Attempt::new(request);
        let is_queued = {
            let waiter = attempt.waiter.clone();
            let asking = pin!(until_sent(Box::pin(attempt.ask()), turn.take()));
            match waiter.drive(asking).await? {
                Asked::Held(hold) => return Ok(Some(hold)),
                Asked::Busy => return Ok(None),
                Asked::Queued => true,
                Asked::Over => false,
            }
        };
        // Not in the match, which would keep room for the answer.
        if is_queued {
            let waiter = attempt.waiter.clone();
            let waiting = pin!(attempt.wait(&mut turn));
            if let Some(hold) = waiter.drive(waiting).await? {
                return Ok(Some(hold));
            }
        }
        // The server has forgotten this attempt, or its answer came too late. A new attempt goes to
        // the end of the queue. Dropping the old one leaves, in case something of it is still there.
        drop(attempt);
        Box::pin(request.pause(&mut backoff)).await;
        // A limited call has no place to lose. It had the lock, and could not rely on it in time.
        if is_over(request.limit) {
            return request.not_in_time();
        }
        if let Some(turn) = &mut turn {
            Box::pin(turn.begin()).await;
        }
    }
}

/// Polled once, the request is on its way: then the turn is over.
async fn until_sent<T>(mut asking: impl Future<Output = T> + Unpin, mut turn: Option<Box<Turn>>) -> T {
    poll_fn(|context| {
        let asked = asking.poll_unpin(context);
        turn = None;
        asked
    })
    .await
}

/// One try to get the lock: (owner, seq).
struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    waiter: Arc<Waiter>,
    /// Server time until which a copy without an answer may still be served; 0: none is under way.
    copies_until: i64,
    /// The server has a place or a hold for it.
    must_leave: bool,
    /// When it first asked about a grant without an answer. That may have set the lease that it wants, which can be
    /// shorter than the grant.
    confirming: Option<Instant>,
    /// What it gets of the name: what it asks for, or what a handle has.
    share: Share,
    /// [`Holds::doubts`](super::hold::Holds::doubts) before the last request was sent.
    doubts: u64,
}

enum Asked {
    Held(Arc<Hold>),
    Queued,
    Busy,
    Over,
}

/// The answer to one request.
enum Tried {
    Over(Result<Asked, LockError>),
    /// The same request will get further.
    AtOnce,
    /// The same after a pause. Our estimate of the server's clock was off, and this answer has corrected it; or see
    /// [`Handle::is_undecided`].
    Late,
}

impl<'a> Attempt<'a> {
    fn new(request: &'a AcquireRequest<'a>) -> Self {
        let AcquireRequest { engine, ref entry, lease, terms, scoped, share, began, attach, .. } = *request;
        let seq = engine.context.next_seq();
        // Before anything is sent: the grant may come before the reply (R7).
        let new = NewWaiter { lease, terms, scoped, attaches: attach.is_some(), began };
        let waiter = engine.poller.waiters.register(entry, seq, new);
        Self { request, waiter, copies_until: 0, must_leave: false, confirming: None, share, doubts: 0 }
    }

    /// Asks until there is an answer. Each retry is the same request (R1).
    async fn ask(&mut self) -> Result<Asked, LockError> {
        let mut backoff = self.request.engine.context.backoff();
        loop {
            // Begun after `close` had taken all others out of their queues: it must not send anything.
            if self.waiter.is_withdrawn() {
                return Err(LockError::Closed);
            }
            match self.ask_once().await {
                Ok(Tried::Over(asked)) => return asked,
                Ok(Tried::AtOnce) => {}
                Ok(Tried::Late) => self.request.pause(&mut backoff).await,
                Err(error) => {
                    // A script that failed half-way may have left anything behind.
                    self.must_leave |= matches!(&error, RequestError::Refused(refusal) if refusal.in_script);
                    tokio::select! {
                        // In this order, so that the simulator can repeat a run.
                        biased;
                        paused = self.request.pause_after(error, &mut backoff) => paused?,
                        // P6: the others would wait for the end of the pause, or of the grant.
                        () = self.waiter.early_grant() => {}
                    }
                }
            }
        }
    }

    async fn ask_once(&mut self) -> Result<Tried, RequestError> {
        let admitted = self.request.admit().await?;
        // After the wait for a connection: this request answers the doubts that a new connection has raised.
        self.doubts = self.request.engine.holds.doubts();
        // Its future may have rested meanwhile.
        if self.waiter.is_passed_over() {
            return Ok(Tried::Over(Ok(Asked::Over)));
        }
        // R7, R15: an answer proves nothing about a message from before its request, which may be of another server. If this
        // attempt has the lock, the answer says so.
        self.waiter.forget_grant();
        match self.request.attach {
            None => self.acquire(admitted).await,
            Some(detached) => self.attach(admitted, detached).await,
        }
    }

    /// Asks for the lock, or for a place in its queue.
    async fn acquire(&mut self, admitted: Arc<InFlight>) -> Result<Tried, RequestError> {
        let AcquireRequest { engine, entry, lease, terms, .. } = self.request;
        let mut acquire = Acquire {
            keys: entry.keys.clone(),
            owner: entry.owner_id.clone(),
            seq: self.waiter.seq,
            mode: self.request.mode(),
            lease: *lease,
            terms: Arc::clone(terms),
            not_after: 0,
        };
        let answer = engine.context.runner.acquire(admitted, &mut acquire, &mut self.copies_until).await?;
        Ok(self.read(answer).await)
    }

    /// What the answer means for this attempt.
    async fn read(&mut self, answer: Answer<Acquired>) -> Tried {
        let AcquireRequest { engine, entry, share, .. } = self.request;
        // Its future was not polled for a while. A poll found the grant, and the client gave it back.
        if self.waiter.is_passed_over() {
            return Tried::Over(Ok(Asked::Over));
        }
        match answer.body {
            Acquired::Queued { .. } | Acquired::Busy { .. } | Acquired::Full { .. } => entry.last_answer.others(),
            // For a request that is late or over, the script does not check who has the lock.
            Acquired::Late | Acquired::Over => {}
            Acquired::Held { .. } | Acquired::Lost | Acquired::TooHeavy { .. } => entry.last_answer.own(),
        }
        Tried::Over(match answer.body {
            Acquired::Held { token, lease_left, .. } => {
                let hold = self.hold_answered(token, answer.sent, lease_left).await;
                Ok(hold.map_or(Asked::Over, Asked::Held))
            }
            Acquired::Queued { floor, lease_left, more, known } => {
                self.must_leave = true;
                let queued = Queued::new(answer.sent, now(), floor);
                // An earlier copy may have got the answer that the client was unknown (R8).
                let doubtful = !known || self.copies_until > 0;
                engine.poller.enqueue(&self.waiter, queued, lease_left, more, doubtful);
                Ok(Asked::Queued)
            }
            Acquired::Busy { more: false } => Ok(Asked::Busy),
            // Free behind more dead tickets than one call clears: the next call clears more of them.
            Acquired::Busy { more: true } | Acquired::Full { more: true, .. } => return Tried::AtOnce,
            Acquired::Full { waiters, more: false } => Err(LockError::QueueFull { waiters }),
            Acquired::TooHeavy { limit } => Err(LockError::Permits { wanted: share.weight, permits: limit }),
            Acquired::Late => return Tried::Late,
            Acquired::Lost | Acquired::Over => Ok(Asked::Over),
        })
    }

    /// Takes what a handle holds.
    async fn attach(&mut self, admitted: Arc<InFlight>, detached: &Handle) -> Result<Tried, RequestError> {
        let AcquireRequest { engine, entry, lease, terms, .. } = self.request;
        let (seq, token) = (self.waiter.seq, detached.token);
        let mut give = Give {
            keys: entry.keys.clone(),
            from: detached.owner.clone(),
            seq,
            token,
            to: entry.owner_id.clone(),
            attempt: seq,
            lease: *lease,
            terms: Arc::clone(terms),
            not_after: 0,
        };
        let answer = engine.context.runner.give(admitted, &mut give, &mut self.copies_until).await?;
        let is_final = match answer.body {
            Gave::Given { .. } => true,
            Gave::Lost => !detached.is_undecided(answer.server_ms),
            Gave::Late => false,
        };
        if !is_final {
            return Ok(Tried::Late);
        }
        entry.last_answer.own();
        Ok(match answer.body {
            Gave::Given { lease_left, weight } => {
                self.share.weight = weight.max(self.share.weight);
                let hold = self.hold_answered(token, answer.sent, lease_left).await;
                Tried::Over(hold.map(Asked::Held).ok_or(LockError::Lost))
            }
            Gave::Lost | Gave::Late => Tried::Over(Err(LockError::Lost)),
        })
    }

    /// Waits in the queue. `None`: the place in the queue is lost, and `next` is when to ask again.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice, and waiters are many")]
    fn wait(&mut self, next: &mut Option<Box<Turn>>) -> impl Future<Output = Result<Option<Arc<Hold>>, LockError>> {
        async move {
            let _queueing = self.request.entry.queueing();
            observe::in_line(&self.request.who());
            loop {
                match self.waiter.outcome().await {
                    // P1: it may have rested over a failover, and others have the name by now.
                    WaitOutcome::Granted { token, until } if !self.is_doubted() && self.lasts(until) => {
                        // At first the grant's own time counts. A lease that is shorter than it is kept
                        // from the start.
                        let lease_from = self.confirming.unwrap_or_else(now);
                        let deadline = until.min(lease::deadline(lease_from, self.request.lease));
                        return Ok(self.hold(token, deadline, None));
                    }
                    WaitOutcome::Granted { token, .. } | WaitOutcome::Confirm { token } => {
                        // Without a hold we wait on. The place in the queue may still be ours, and the next poll shows it
                        // (P9).
                        if let Some(hold) = Box::pin(self.confirm(token)).await {
                            return Ok(Some(hold));
                        }
                    }
                    WaitOutcome::NoPlace(turn) => {
                        *next = Some(turn);
                        return Ok(None);
                    }
                    WaitOutcome::Failed(error) => return Err(*error),
                }
            }
        }
    }

    /// A grant counts from the last answer to a poll, which may be late: is `grant_ttl` left of it now?
    fn lasts(&self, until: Instant) -> bool {
        now() + lease::sure(self.request.engine.context.options().grant_ttl) <= until
    }

    /// A new connection or slots came since the last request.
    fn is_doubted(&self) -> bool {
        self.doubts < self.request.engine.holds.doubts()
    }

    /// Asks about a grant that came too late to be trusted: one round trip (R7).
    async fn confirm(&mut self, token: u64) -> Option<Arc<Hold>> {
        let renew = Renew {
            keys: self.request.entry.keys.clone(),
            owner: self.request.entry.owner_id.clone(),
            token,
            lease: self.request.lease,
            // A grant may last longer than the wanted lease. This lets the server set the shorter one,
            // unless it has served a later request since (decision 16).
            only: Only::Attempt(self.waiter.seq),
            remember: false,
        };
        self.confirming.get_or_insert_with(now);
        let runner = &self.request.engine.context.runner;
        self.waiter.confirms(true);
        let mut asked = 0;
        let answer = loop {
            self.doubts = self.request.engine.holds.doubts();
            let answer = runner.renew(&renew, None).await;
            asked += 1;
            // It asks again if one more connection came since: this future may have rested (P1). There is a bound, since slots
            // may come within each round trip (E1).
            let is_doubted = self.is_doubted() && asked < CONFIRMED_AT_MOST;
            if answer.is_err() || !is_doubted || is_over(self.request.limit) {
                break answer;
            }
        };
        self.waiter.confirms(false);
        match answer {
            // Else it has lost the grant, which says nothing of others.
            Ok(answer) => {
                if let Renewed::Renewed { lease_left } = answer.body {
                    self.request.entry.last_answer.own();
                    return self.hold_told(token, answer.sent, lease_left);
                }
            }
            Err(error) => {
                tracing::debug!(target: "fairlock::lock", name = %self.request.entry.keys.name, %error, "a grant could not be confirmed; polling")
            }
        }
        // A poll asks the same question, and the poller repeats it until there is an answer.
        self.request.engine.poller.verify_soon(&self.request.entry.keys.lock);
        None
    }

    /// A hold by the answer to the request for it.
    async fn hold_answered(&mut self, token: u64, sent: Instant, lease_left: Duration) -> Option<Arc<Hold>> {
        self.must_leave = true;
        // It asks the server once more if something came before this future looked (P1), or if the answer was on its way, or
        // rested, for longer than the hold lasts yet: it might be lost before its first renewal is answered (P8).
        let is_late = lease_left < 2 * now().saturating_duration_since(sent);
        if is_late || self.is_doubted() {
            Box::pin(self.confirm(token)).await
        } else {
            self.hold_told(token, sent, lease_left)
        }
    }

    /// A hold that the server has answered for.
    fn hold_told(&mut self, token: u64, sent: Instant, lease_left: Duration) -> Option<Arc<Hold>> {
        // A grant may outlast the wanted lease. Then the first renewal has yet to set that lease.
        let renewed = (lease_left <= self.request.lease).then_some(sent);
        self.hold(token, lease::deadline_told(sent, lease_left, self.request.lease), renewed)
    }

    /// The hold, unless its time is over already: then dropping this attempt leaves.
    fn hold(&mut self, token: u64, deadline: Instant, renewed: Option<Instant>) -> Option<Arc<Hold>> {
        // Passed over, it has left: a poll found this grant first.
        if deadline <= now() || !self.waiter.claim() {
            self.must_leave = true;
            return None;
        }
        // Before that: the recorder is the user's, and may panic.
        let holding = Holding::begin(self.request.metrics.clone());
        // From here on the hold releases. Otherwise dropping this attempt would
        // leave with its seq, and end the hold that it has just begun.
        self.must_leave = false;
        let new = NewHold {
            token,
            attempt: self.waiter.seq,
            terms: self.request.terms.clone(),
            was_queued: self.request.entry.is_queueing(),
            deadline,
            renewed,
            lease: self.request.lease,
            watched: self.request.watched,
            doubts: self.doubts,
            is_part: self.request.is_part,
            // From now on the hold's own end takes care of the late copies (R3).
            copies_until: std::mem::take(&mut self.copies_until),
            scoped: self.request.scoped,
            share: self.share,
            holding,
        };
        let hold = Hold::begin(&self.request.engine.holds, &self.request.entry, new);
        // Ended by force between the server's answer and this line: the message found no hold to end, but it marked the
        // waiter.
        if self.waiter.is_revoked(token) {
            hold.lose(Loss::Forced);
        }
        // After the hold was entered into the table: `close` withdraws the waiters and then looks for
        // holds, and finds this attempt as the one or as the other.
        if !self.waiter.begin_hold() {
            hold.lose(Loss::Closed);
        }
        Some(hold)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let (waiters, copies_until) = (&self.request.engine.poller.waiters, self.copies_until);
        // An answer like "busy" leaves nothing behind. A request without an answer may still be served,
        // so it needs a leave although the server may know nothing of it (P5). `close` may have left already.
        if (self.must_leave || copies_until > 0) && !self.waiter.is_left_for(copies_until) {
            // Before the deregistration, which may end the poller: `close` waits only while there is
            // a task.
            cleanup::leave_for(&self.request.engine.context, waiters, &self.waiter, copies_until);
        }
        if copies_until > 0 {
            // That copy may have got the answer that the server had given this client up (R8).
            waiters.doubt(&self.request.entry.keys.lock);
        }
        waiters.deregister(&self.waiter);
    }
}
