//! Sends one request, and reads its reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock_proto::event::RequestId;
use fairlock_proto::keys;
use fairlock_proto::reply::{Fields, Head, Malformed, ScriptReply};
use fairlock_proto::request::{Reply, Request};
use fairlock_proto::requests::{self, ClientArgs};
use tokio::time::timeout_at;

use super::boot::Boot;
use super::call::{Answerer, Call, Post};
use super::clock::now;
use super::error::{Cause, Fault, RequestError};
use super::options::Options;
use super::server::{Server, Told};
use super::{Ran, Store};
use crate::metrics::RequestMetrics;

#[derive(Clone)]
pub struct Answer<T> {
    pub body: T,
    /// The server's clock in milliseconds since 1970, or 0 if the script did not read it.
    pub server_ms: i64,
}

pub struct Runner {
    pub store: Box<dyn Store>,
    pub options: Arc<Options>,
    pub client: ClientArgs,
    /// The terms of a wait without its own label.
    pub terms: Arc<str>,
}

impl Runner {
    /// `id`: the client's.
    pub fn new(store: Box<dyn Store>, options: Arc<Options>, id: String) -> Self {
        let Options { prefix, waiter_ttl, max_waiters, token_ttl, label, strict_restart, .. } = &*options;
        let settings = requests::settings(prefix, *waiter_ttl, *max_waiters, *token_ttl);
        let boot_key = strict_restart.map(|_| keys::boot(prefix));
        let client = ClientArgs { id, settings, token_ttl: *token_ttl, boot_key };
        let terms = keys::terms(options.first_lease(), label).into();
        Self { store, options, client, terms }
    }

    /// Whether the client can reach the server of this lock, as far as it knows.
    pub fn is_connected(&self, lock_key: &str) -> bool {
        self.store.serving(lock_key).is_some_and(|server| server.is_ready())
    }

    /// Whether the server of this lock is frozen and grants nothing, as far as the client knows.
    pub fn is_frozen(&self, lock_key: &str) -> bool {
        self.frozen_for(lock_key).is_some()
    }

    /// How much longer the server grants nothing.
    pub fn frozen_for(&self, lock_key: &str) -> Option<Duration> {
        let server = self.store.serving(lock_key)?;
        // Usually there was no freeze. Then do not read the clock.
        let frozen_until = server.boot().map(Boot::frozen_until).filter(|until| *until > 0)?;
        let frozen_until = i64::try_from(frozen_until).unwrap_or(i64::MAX);
        let left = frozen_until.saturating_sub(server.clock().at(now()));
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_millis)
    }

    pub fn server_id(&self) -> Option<String> {
        self.store.server(0).and_then(Server::server_id)
    }

    /// The end of a call that begins now and only waits for its answer.
    pub fn limit(&self) -> Instant {
        now() + self.options.operation_timeout
    }

    /// Why a request for this lock is still unanswered, if it has not failed.
    pub fn why_no_answer(&self, lock_key: &str) -> Cause {
        if self.is_connected(lock_key) { Arc::new(Fault::NoAnswerYet) } else { self.store.fault(lock_key) }
    }

    /// Whether this post took the request. It sets no limit, gate or time-out: the caller has its own.
    pub fn hand_over(&self, request: &Request, number: u64, post: &mut dyn Post) -> bool {
        let command = || request.command(&self.client);
        post.take(Call::new(&command, &request.keys().lock), number)
    }

    pub async fn send_the_long_way(
        &self,
        request: &Request,
        id: RequestId,
    ) -> Result<(ScriptReply, Answerer), RequestError> {
        let command = || request.command(&self.client);
        let call = Call::new(&command, &request.keys().lock);
        let Ran { reply, by } = self.store.run_at(id.node.0, call, id.number.0).await?;
        let is_asked = self.store.server(id.node.0).is_some_and(|asked| std::ptr::addr_eq(asked, by));
        Ok((reply, if is_asked { Answerer::Asked } else { Answerer::Another }))
    }

    /// Reads the outcome.
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

    /// Sends a command that changes nothing to one of the servers. Also returns how long the answer took.
    pub async fn ask(&self, server: &dyn Server, words: &[&str]) -> Result<(Told, Duration), RequestError> {
        let timeout = self.options.operation_timeout;
        let deadline = now() + timeout;
        match timeout_at(deadline.into(), server.ready()).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(RequestError::NotSent(server.fault())),
        }
        let sent = now();
        match timeout_at(deadline.into(), server.ask(words)).await {
            Ok(outcome) => outcome.map(|told| (told, now().saturating_duration_since(sent))),
            Err(_) => {
                server.suspect();
                Err(RequestError::Unanswered(Arc::new(Fault::NoAnswer(timeout))))
            }
        }
    }
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
    // If the connection's replies were shifted by one, the wrong caller would get a lock (P1).
    if u64::try_from(head.request) != Ok(request) {
        return Err(Malformed(format!("the reply to request {} arrived for request {request}", head.request)));
    }
    Ok((head, fields))
}
