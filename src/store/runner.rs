//! Sends one request and reads its reply. [`requests`](super::requests) has one method for each of them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlock_proto::effect::Request;
use fairlock_proto::event::{Reply, RequestId};
use fairlock_proto::keys;
use fairlock_proto::reply::{Decode, Fields, Head, Malformed, ScriptReply};
use fairlock_proto::requests::{self, ClientArgs, ScriptRequest};
use futures::FutureExt;
use tokio::time::timeout_at;

use super::admission::InFlight;
use super::boot::Boot;
use super::call::Call;
use super::call::{Answerer, Post};
use super::clock::{ServerClock, is_over, millis, now};
use super::error::{Cause, Fault, Refusal, RequestError};
use super::options::Options;
use super::server::{Server, Told};
use super::{Priority, Ran, Store};
use crate::metrics::RequestMetrics;

/// A reply, with the instant before its request was sent.
#[derive(Clone)]
pub struct Answer<T> {
    /// Leases count from here, not from the arrival of the reply (R5).
    pub sent: Instant,
    pub body: T,
    /// The server's clock in milliseconds since 1970, or 0 where the script did not read it.
    pub server_ms: i64,
}

/// Runs the scripts of one client.
pub struct Runner {
    pub store: Box<dyn Store>,
    pub options: Arc<Options>,
    pub client: ClientArgs,
    /// The terms of a wait without a label of its own.
    pub terms: Arc<str>,
    requests: AtomicU64,
}

impl Runner {
    /// `id`: the client's.
    pub fn new(store: Box<dyn Store>, options: Arc<Options>, id: String) -> Self {
        let Options { prefix, waiter_ttl, max_waiters, token_ttl, label, strict_restart, .. } = &*options;
        let settings = requests::settings(prefix, *waiter_ttl, *max_waiters, *token_ttl);
        let boot_key = strict_restart.map(|_| keys::boot(prefix));
        let client = ClientArgs { id, settings, token_ttl: *token_ttl, boot_key };
        let terms = keys::terms(options.first_lease(), label).into();
        Self { store, options, client, terms, requests: AtomicU64::new(1) }
    }

    /// Whether the server of this lock can be reached, as far as is known.
    pub fn is_connected(&self, lock_key: &str) -> bool {
        self.store.serving(lock_key).is_some_and(|server| server.is_ready(Priority::Urgent))
    }

    /// Whether the server of this lock grants nothing for a while, as far as is known.
    pub fn is_frozen(&self, lock_key: &str) -> bool {
        self.frozen_for(lock_key).is_some()
    }

    /// For how much longer it grants nothing.
    pub fn frozen_for(&self, lock_key: &str) -> Option<Duration> {
        let server = self.store.serving(lock_key)?;
        // As usual there was no freeze, and the clock need not be read.
        let frozen_until = server.boot().map(Boot::frozen_until).filter(|until| *until > 0)?;
        let frozen_until = i64::try_from(frozen_until).unwrap_or(i64::MAX);
        let left = frozen_until.saturating_sub(server.clock().at(now()));
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_millis)
    }

    pub fn server_id(&self) -> Option<String> {
        self.store.server(0).and_then(Server::server_id)
    }

    /// When a call that begins now, and waits for nothing but its answer, is out of time.
    pub fn limit(&self) -> Instant {
        now() + self.options.operation_timeout
    }

    /// Server time up to which a request that is sent now may be served (R2).
    pub fn not_after(&self, lock_key: &str) -> i64 {
        self.clock(lock_key).map_or(0, |clock| clock.at(now())) + millis(self.options.operation_timeout)
    }

    /// `None`: no server has this lock at the moment, so nothing is sent.
    fn clock(&self, lock_key: &str) -> Option<&ServerClock> {
        self.store.serving(lock_key).map(Server::clock)
    }

    /// Waits until a request for this lock may be sent. Without a limit (`by`) the wait for others that were here before has
    /// none, and the operation time-out starts when this request's turn has come. So overload costs
    /// waiting, and no request that a caller has given up is ever sent.
    pub async fn admit(
        &self,
        lock_key: &str,
        priority: Priority,
        by: Option<Instant>,
    ) -> Result<Arc<InFlight>, RequestError> {
        loop {
            // A look comes first, so that the usual case needs no timer.
            let admission = match self.store.serving(lock_key).filter(|server| may_send(*server, priority)) {
                Some(server) => server.admission(),
                None => {
                    let by = by.unwrap_or_else(|| self.limit());
                    // Boxed, because it is rare: each request that waits for its turn would have room for it otherwise.
                    Box::pin(self.usable(lock_key, priority, by)).await?.admission()
                }
            };
            let mut entering = pin!(admission.enter(priority, self.options.operation_timeout, by));
            let at_once = entering.as_mut().now_or_never();
            let has_waited = at_once.is_none();
            let in_flight = match (at_once, by) {
                // As usual, and without a timer.
                (Some(in_flight), _) => in_flight,
                (None, None) => entering.await,
                // Boxed: waits without a limit need no room for a timer.
                (None, Some(by)) => match Box::pin(timeout_at(by.into(), entering)).await {
                    Ok(in_flight) => in_flight,
                    Err(_) => return Err(RequestError::NotSent(Arc::new(Fault::NoTurn))),
                },
            };
            // The lock may have gone to another node of a cluster meanwhile, which has limits of its own.
            let is_same =
                |server: &dyn Server| std::ptr::eq(admission, server.admission()) && server.is_ready(priority);
            if let Some(in_flight) = in_flight.filter(|_| self.store.serving(lock_key).is_some_and(is_same)) {
                if is_over(by) {
                    // When requests run out of time together, the others free their slots only as this one's time ends.
                    let fault = if has_waited { Fault::NoTurn } else { Fault::NoAnswerYet };
                    return Err(RequestError::NotSent(Arc::new(fault)));
                }
                return Ok(in_flight);
            }
        }
    }

    /// Waits for a connection, and until the server does not refuse everything.
    async fn usable<'a>(
        &'a self,
        lock_key: &'a str,
        priority: Priority,
        by: Instant,
    ) -> Result<&'a dyn Server, RequestError> {
        let server = match timeout_at(by.into(), self.store.ready(lock_key, priority)).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(RequestError::NotSent(self.store.fault(lock_key))),
        };
        if priority != Priority::Question {
            // After the wait for a connection. A probe that still has to wait for one would keep others
            // from probing.
            server.admission().open(by).await.map_err(RequestError::Refused)?;
        }
        Ok(server)
    }

    /// Why a request for this lock has no answer, if it has not failed.
    pub fn why_no_answer(&self, lock_key: &str) -> Cause {
        let server = self.store.serving(lock_key).filter(|server| server.is_ready(Priority::Normal));
        let Some(server) = server else { return self.store.fault(lock_key) };
        match server.admission().refusal() {
            Some(refusal) => Arc::new(refusal),
            None => Arc::new(Fault::NoAnswerYet),
        }
    }

    /// Sends the request, waits for its reply, and learns the server's time from it.
    pub async fn run<R: ScriptRequest>(
        &self,
        admitted: Arc<InFlight>,
        request: &R,
    ) -> Result<Answer<R::Reply>, RequestError> {
        let (lock, command) = (&*request.keys().lock, || request.command(&self.client));
        let call = Call::new(&command, lock, admitted.priority);
        // Relaxed: the number only has to differ from those of other requests.
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        // Before the request is on its way: the server's lease begins later, never earlier (R5).
        let sent = now();
        let metrics = &self.options.metrics;
        let _in_flight = metrics.in_flight();
        let answered = {
            let answering = pin!(timeout_at(admitted.deadline.into(), self.store.run(call, number)));
            admitted.run(answering).await
        };
        let Ran { reply, by } = match answered {
            Ok(Ok(ran)) => ran,
            Ok(Err(error)) => {
                // A request without an answer says nothing about the gate. If it was the probe, its
                // permit lets the next one probe when it is dropped.
                if let RequestError::Refused(refusal) = &error {
                    metrics.refused(&refusal.code);
                    self.answered(&admitted, lock, Some(refusal));
                }
                return Err(error);
            }
            Err(_) => {
                // A half-open connection causes no error (decision 44).
                self.store.serving(lock).into_iter().for_each(Server::suspect);
                return Err(RequestError::Unanswered(Arc::new(Fault::NoAnswer(self.options.operation_timeout))));
            }
        };
        metrics.round_trip(|| now().saturating_duration_since(sent));
        // Before the reply is read: a server that runs scripts does not refuse, even if this reply
        // turns out to be wrong.
        self.answered(&admitted, lock, None);
        decode(number, sent, by.clock(), &reply).map_err(|error| {
            by.distrust();
            RequestError::Unanswered(Arc::new(error))
        })
    }

    /// Whether this post took the request. Without a limit, a gate or a time-out: who asks has its own.
    pub fn hand_over(&self, request: &Request, number: u64, post: &mut dyn Post) -> bool {
        let command = || request.command(&self.client);
        post.take(Call::new(&command, &request.keys().lock, Priority::Urgent), number)
    }

    /// Sends a request that no post takes.
    pub async fn send_the_long_way(
        &self,
        request: &Request,
        id: RequestId,
    ) -> Result<(ScriptReply, Answerer), RequestError> {
        let command = || request.command(&self.client);
        let call = Call::new(&command, &request.keys().lock, Priority::Urgent);
        let Ran { reply, by } = self.store.run_at(id.node.0, call, id.number.0).await?;
        let is_asked = self.store.server(id.node.0).is_some_and(|asked| std::ptr::addr_eq(asked, by));
        Ok((reply, if is_asked { Answerer::Asked } else { Answerer::Another }))
    }

    /// Reads what came of it.
    pub fn end(
        &self,
        observed: &RequestMetrics,
        request: &Request,
        id: RequestId,
        outcome: Result<(ScriptReply, Answerer), RequestError>,
    ) -> Result<Reply, RequestError> {
        let (reply, answerer) = outcome.inspect_err(|error| {
            if let RequestError::Refused(refusal) = error {
                self.options.metrics.refused(&refusal.code);
            }
        })?;
        observed.answered(now);
        read(id.number.0, request, &reply, answerer).map_err(|error| {
            self.store.server(id.node.0).into_iter().for_each(Server::distrust);
            RequestError::Unanswered(Arc::new(error))
        })
    }

    /// Sends one command that changes nothing to one of the servers. Returns how long its answer took, too.
    pub async fn ask(&self, server: &dyn Server, words: &[&str]) -> Result<(Told, Duration), RequestError> {
        let timeout = self.options.operation_timeout;
        let deadline = now() + timeout;
        match timeout_at(deadline.into(), server.ready(Priority::Question)).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(RequestError::NotSent(server.fault())),
        }
        let entering = server.admission().enter(Priority::Question, timeout, Some(deadline));
        let Ok(Some(in_flight)) = timeout_at(deadline.into(), entering).await else {
            return Err(RequestError::NotSent(Arc::new(Fault::NoTurn)));
        };
        let sent = now();
        match in_flight.run(pin!(timeout_at(deadline.into(), server.ask(words)))).await {
            Ok(outcome) => outcome.map(|told| (told, now().saturating_duration_since(sent))),
            Err(_) => {
                server.suspect();
                Err(RequestError::Unanswered(Arc::new(Fault::NoAnswer(timeout))))
            }
        }
    }

    /// Opens or closes the gate. Not that of the node from which the lock has gone meanwhile: another one answered.
    fn answered(&self, admitted: &InFlight, lock_key: &str, refusal: Option<&Refusal>) {
        let is_of = |server: &dyn Server| admitted.is_of(server.admission());
        if self.store.serving(lock_key).is_some_and(is_of) {
            admitted.answered(refusal);
        }
    }

    /// For a reply that cannot be the one to this request: drops the connection. The outcome of the
    /// request is unknown.
    pub fn distrust(&self, lock_key: &str, error: Malformed) -> RequestError {
        self.store.serving(lock_key).into_iter().for_each(Server::distrust);
        RequestError::Unanswered(Arc::new(error))
    }
}

/// Whether a request would be sent at once: the server is connected, and does not refuse everything.
fn may_send(server: &dyn Server, priority: Priority) -> bool {
    server.is_ready(priority) && (priority == Priority::Question || !server.admission().is_closed())
}

fn decode<T: Decode>(
    request: u64,
    sent: Instant,
    clock: &ServerClock,
    reply: &ScriptReply,
) -> Result<Answer<T>, Malformed> {
    let (head, mut fields) = head_of(request, reply)?;
    if head.seconds > 0 {
        clock.learn(sent, head.seconds, head.micros);
    }
    Ok(Answer { sent, body: T::decode(head.status, &mut fields)?, server_ms: head.server_ms() })
}

fn read(number: u64, request: &Request, reply: &ScriptReply, answerer: Answerer) -> Result<Reply, Malformed> {
    let (head, mut fields) = head_of(number, reply)?;
    let has_clock = head.seconds > 0 && answerer == Answerer::Asked;
    let server_micros = has_clock.then_some(head.seconds * 1_000_000 + head.micros);
    Ok(Reply { server_micros, answer: request.answer(head.status, &mut fields)? })
}

fn head_of<'a>(request: u64, reply: &'a ScriptReply) -> Result<(Head<'a>, Fields<'a>), Malformed> {
    let mut fields = Fields::new(reply);
    let head = Head::decode(&mut fields)?;
    // A connection whose replies are shifted by one would give a lock to the wrong caller (P1).
    if u64::try_from(head.request) != Ok(request) {
        return Err(Malformed(format!("the reply to request {} arrived for request {request}", head.request)));
    }
    Ok((head, fields))
}
