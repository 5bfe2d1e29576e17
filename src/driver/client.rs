//! The driver of one client, whose locks the machine has.

use std::future::poll_fn;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fairlock_proto::error::Cause;
use fairlock_proto::event::{CallId, Connection, Event, LinkEvent, NodeId, RequestId};
use fairlock_proto::push::Push;
use fairlock_proto::request::Request;
use fairlock_proto::slots::Topology;
use fairlock_proto::stages::entry::Stage;
use fairlock_proto::time::{Instant as Moment, ServerTime};
use futures::FutureExt;
use tokio::sync::SetOnce;
use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep_until, timeout};

use super::after::{After, ForTheTask};
use super::clock::LocalClock;
use super::context::Context as ClientContext;
use super::courier::Courier;
use super::hold::{About, DrivenHold};
use super::observe::{CallerSpan, Named};
use super::relay::{Left, Relay};
use super::report::Reporter;
use super::requests::Replied;
use super::room::Carrier;
use super::settings;
use super::shared::{Answered, Shared};
use super::slots;
use super::without_runtime;
use crate::store::boot::Boot;
use crate::store::clock::now;
use crate::store::runtime::log_line;
use crate::store::server::Server;
use crate::store::{Listener, ServedKeys, Store};
use crate::sync::Mutex;

/// How many rounds a thread works for others before the task takes over: a caller has its own work.
const ROUNDS: usize = 8;

pub struct Driver {
    context: Arc<ClientContext>,
    pub clock: LocalClock,
    shared: Mutex<Shared>,
    /// The task's waker, which never changes.
    task: OnceLock<Waker>,
    relay: Relay<Courier>,
    reporter: Reporter,
    /// How many requests were unanswered when the machine closed.
    unfinished: OnceLock<usize>,
    /// Set when the connection has ended, too.
    closed: SetOnce<()>,
}

/// Shared by the clones, locks and guards of a client. Dropping the last one closes the machine.
pub struct Client(Arc<Driver>);

impl Client {
    pub fn driver(&self) -> &Arc<Driver> {
        &self.0
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.feed(Event::Close);
    }
}

impl Driver {
    /// Starts the driver for the locks of this client.
    pub fn start(context: Arc<ClientContext>) -> Arc<Client> {
        let clock = LocalClock::new();
        let topology = if context.runner.store.is_cluster() { Topology::Cluster } else { Topology::OneServer };
        let settings = settings::of(&context.runner.client.id, context.options());
        let shared = Mutex::new(Shared::new(settings, topology, clock));
        let driver = Arc::new_cyclic(|driver: &Weak<Self>| Self {
            clock,
            shared,
            task: OnceLock::new(),
            relay: Relay::new(Courier::new(context.clone(), driver.clone()), ROUNDS),
            reporter: Reporter::default(),
            unfinished: OnceLock::new(),
            closed: SetOnce::new(),
            context,
        });
        let listener: Arc<dyn Listener> = driver.clone();
        driver.store().listen(Arc::downgrade(&listener));
        driver.look_for_connections();
        // Without tokio's budget: the callers have their own.
        driver.context().spawn_driver(unconstrained(run(driver.clone())));
        Arc::new(Client(driver))
    }

    pub fn context(&self) -> &Arc<ClientContext> {
        &self.context
    }

    /// The limit of a call that begins now.
    pub fn operation_limit(&self) -> Moment {
        self.clock.now() + self.context().operation_timeout()
    }

    fn store(&self) -> &dyn Store {
        &*self.context().runner.store
    }

    /// Hands in an event whose caller does not wait for an outcome.
    pub fn feed(&self, event: Event<'_>) {
        let after = self.step(event);
        self.finish(after);
    }

    fn step(&self, event: Event<'_>) -> After {
        let mut after = After::default();
        self.shared.lock().step(event, &mut after);
        after
    }

    /// Does the work that had to wait for a free mutex.
    fn finish(&self, mut after: After) {
        let work = after.wake();
        if !after.reports.is_empty() {
            self.reporter.tell(self.context(), after.reports);
        }
        if let Some(unfinished) = after.closed {
            let _ = self.unfinished.set(unfinished);
        }
        if work == ForTheTask::Something {
            self.wake_task();
        }
    }

    /// The same for a caller, which sends its requests itself: the task would cost one more hop.
    fn finish_and_send(&self, mut after: After) {
        let sends = std::mem::take(&mut after.sends);
        self.finish(after);
        if sends {
            self.carry();
        }
    }

    /// Begins a call with an event. The outcome wakes its caller.
    pub fn begin(
        &self,
        about: Option<Arc<About>>,
        waker: Waker,
        event: impl FnOnce(CallId) -> Event<'static>,
    ) -> (CallId, Option<Answered>) {
        let mut after = After::default();
        // The log is user code, so the mutex must be free.
        let span = about.as_ref().and_then(|about| CallerSpan::of(&about.who()));
        let begun = self.shared.lock().begin(about, span, waker, event, &mut after);
        self.finish_and_send(after);
        begun
    }

    /// Reads the outcome of a call. Any outcome but a grant ends the call.
    pub fn poll_call(&self, call: CallId, context: &Context<'_>) -> Poll<Answered> {
        let mut after = After::default();
        let mut answered = self.shared.lock().read(call, &mut after);
        if answered.is_none() {
            // Before the mutex is taken: a waker is user code.
            let waker = context.waker().clone();
            answered = self.shared.lock().wait(call, waker, &mut after);
        }
        self.finish(after);
        answered.map_or(Poll::Pending, Poll::Ready)
    }

    /// The caller has dropped its future or its guard.
    pub fn gone(&self, call: CallId) {
        let mut after = After::default();
        let _slot = self.shared.lock().gone(call, &mut after);
        self.finish_and_send(after);
    }

    /// Ends the guard, whose caller waits for the outcome.
    pub fn unlock(&self, call: CallId, waker: Waker) -> Option<Answered> {
        let mut after = After::default();
        let answered = self.shared.lock().unlock(call, waker, &mut after);
        self.finish_and_send(after);
        answered
    }

    pub fn is_at(&self, owner: u64, lock_key: &Arc<str>, is_meant: impl Fn(&Stage) -> bool) -> bool {
        is_meant(self.shared.lock().stage_at(owner, lock_key))
    }

    /// The clock of the only server, in microseconds since 1970; 0 if unknown.
    pub fn server_micros(&self) -> i64 {
        self.shared.lock().server_micros(NodeId(0))
    }

    pub fn holds(&self, lock_key: &str) -> Vec<Arc<DrivenHold>> {
        self.shared.lock().holds(lock_key)
    }

    /// The holds that a guard relies on.
    pub fn valid_holds(&self) -> Vec<Arc<DrivenHold>> {
        self.shared.lock().valid_holds()
    }

    /// Closes the machine, then the connection. Returns how many requests stayed unanswered, the same number to all
    /// callers.
    pub async fn close(&self) -> usize {
        let at_first = self.shared.lock().holds_left();
        // A quorum logs this once for all its servers.
        if !self.context.closing.is_cancelled() && !self.context.is_node() {
            warn_of(self.valid_holds().len());
        }
        self.context.begin_to_close();
        self.feed(Event::Close);
        // With a limit: in a runtime that nothing drives, nothing ends.
        let closed = async { timeout(4 * self.context.operation_timeout(), self.closed.wait()).await };
        if self.context.drive(closed).await.is_none() {
            // The runtime has ended: no request gets an answer, and the holds end with it.
            self.do_all_that_is_due();
            return at_first;
        }
        self.unfinished()
    }

    /// Whether the client is closed, and each of its requests had an answer.
    pub fn is_finished(&self) -> bool {
        self.unfinished.get() == Some(&0)
    }

    /// How many releases and leaves are unanswered.
    pub fn unfinished(&self) -> usize {
        self.unfinished.get().copied().unwrap_or_else(|| self.shared.lock().unfinished())
    }

    /// Notifies the machine of servers that were connected before the driver listened.
    fn look_for_connections(&self) {
        for seat in self.store().seats() {
            if self.store().server(seat).is_some_and(|server| server.is_ready()) {
                self.connected(slots::node_at(seat));
            }
        }
    }

    fn connected(&self, node: NodeId) {
        let server = self.store().server(node.0);
        let frozen_until = server.and_then(|server| server.boot()).map_or(0, Boot::tell);
        let micros = server.map_or(0, |server| server.clock().micros_at(now()));
        let connection = self.shared.lock().next_connection(node);
        self.feed(Event::Link(LinkEvent::Up {
            connection,
            server_micros: (micros > 0).then_some(micros),
            frozen_until: ServerTime(i64::try_from(frozen_until).unwrap_or(i64::MAX)),
        }));
    }

    /// A step does a bounded part, and no task will come back for more.
    fn do_all_that_is_due(&self) {
        while self.shared.lock().is_due() {
            self.feed(Event::Time);
        }
    }

    /// Ends the holds that are due. Returns when the next one is.
    fn next_deadline(&self) -> Option<Instant> {
        self.feed(Event::Time);
        let shared = self.shared.lock();
        let next = shared.next_timer().filter(|_| shared.has_holds())?;
        Some(self.clock.instant(next))
    }

    fn connection(&self, keys: &ServedKeys) -> Connection {
        self.shared.lock().connection(slots::node_at(keys.seat()))
    }

    fn has_rebooted(&self, node: NodeId) -> bool {
        let server = self.store().server(node.0);
        server.and_then(|server| server.boot()).is_some_and(Boot::has_news)
    }
}

impl Driver {
    /// Hands answers to the machine, and fetches the requests to send.
    fn exchange(&self, answers: &mut Vec<Replied>, outbox: &mut Vec<(RequestId, Request)>, after: &mut After) {
        after.rebooted = answers.iter().map(|(id, _)| id.node).find(|node| self.has_rebooted(*node)).or(after.rebooted);
        answers.reverse();
        let mut shared = self.shared.lock();
        while let Some((id, reply)) = answers.pop() {
            shared.step(Event::Replied(id, reply), after);
        }
        // After the answer that reports a move: it means that the server did not run the request.
        shared.tell_of_moves(self.store(), after);
        shared.swap_outbox(outbox);
        after.sends = false;
    }

    /// Does the work that the answers left.
    fn finish_answers(&self, after: After) {
        let rebooted = after.rebooted;
        self.finish(after);
        // The server lost its data although the connection stayed. The client checks everything, as on a new
        // connection.
        rebooted.into_iter().for_each(|node| self.connected(node));
    }

    /// Gives the machine the time if a timer is due. Otherwise wakes the task when the next one is.
    fn keep_time(&self, mut sleep: Pin<&mut Sleep>, context: &mut Context<'_>) {
        let mut after = After::default();
        let due = self.shared.lock().time(&mut after);
        // Wakes the task again if there is something to send.
        self.finish(after);
        let Some(due) = due.map(|due| self.clock.instant(due).into()) else { return };
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        if sleep.poll_unpin(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }
}

impl Carrier for Driver {
    /// Sends requests and reads answers. A caller that runs at once sends its next request itself.
    fn carry(&self) {
        let work = |courier: &mut Courier| {
            let mut after = After::default();
            courier.carry(|answers, outbox| self.exchange(answers, outbox, &mut after));
            if self.unfinished.get().is_some() {
                courier.end();
            }
            after
        };
        if self.relay.carry(work, |after| self.finish_answers(after)) == Left::Something {
            self.wake_task();
        }
    }

    /// The task needs a wake only after its first poll, which looks for work anyway.
    fn wake_task(&self) {
        self.task.get().into_iter().for_each(Waker::wake_by_ref);
    }
}

/// `held`: the number of holds with live guards.
pub fn warn_of(held: usize) {
    if held > 0 {
        tracing::warn!(target: "fairlock::client", held, "closing a client that still holds locks: they are lost");
    }
}

/// The driver's task. It ends with the machine, and ends the connection.
pub async fn run(driver: Arc<Driver>) {
    let mut sleep = pin!(sleep_until(now().into()));
    poll_fn(|context| {
        driver.task.get_or_init(|| context.waker().clone());
        let attend = || {
            driver.carry();
            driver.keep_time(sleep.as_mut(), context);
        };
        // The log is user code. A panic in it must not end the client.
        if catch_unwind(AssertUnwindSafe(attend)).is_err() {
            context.waker().wake_by_ref();
        }
        if driver.unfinished.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    // Once more, to drop the requests under way: nobody reads their answers any longer.
    driver.carry();
    // Here, since a caller of `close` may not wait for it.
    driver.context.end().await;
    log_line(|| {
        let (client, unfinished) = (&driver.context.runner.client.id, driver.unfinished());
        tracing::debug!(target: "fairlock::client", %client, unfinished, "closed");
    });
    let _ = driver.closed.set(());
}

impl Listener for Driver {
    fn pushed(&self, from: &ServedKeys, payload: &[u8]) {
        match Push::decode(payload) {
            Some(push) => self.feed(Event::Pushed(self.connection(from), push)),
            None => {
                log_line(|| tracing::debug!(target: "fairlock::server", "an unknown message on this client's channel"));
            }
        }
    }

    fn resumed(&self, keys: &ServedKeys) {
        self.connected(slots::node_at(keys.seat()));
    }

    fn broke(&self, keys: &ServedKeys) {
        let cause = self.store().server(keys.seat()).map_or_else(|| self.store().fault(""), Server::fault);
        self.feed(Event::Link(LinkEvent::Down(self.connection(keys), Cause(cause))));
    }

    fn moved(&self, slots: RangeInclusive<u16>) {
        self.shared.lock().slots_moved(slots);
        self.carry();
    }

    fn gone(self: Arc<Self>) {
        if self.context().gone.is_cancelled() {
            // Another connection of this client has reported it already.
            return;
        }
        self.context.gone.cancel();
        self.context.over.cancel();
        self.feed(Event::RuntimeGone);
        self.do_all_that_is_due();
        let holds = self.shared.lock().holds_left();
        let driver = Arc::downgrade(&self);
        without_runtime::keep_time(self.context(), holds, move || driver.upgrade()?.next_deadline());
    }
}
