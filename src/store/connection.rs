//! One RESP3 connection to Redis or Valkey: sends scripts, reads replies, receives pushes.

use std::collections::BTreeSet;
use std::sync::Arc;

use fairlock_proto::command::{Arg, Command, ScriptName};
use fairlock_proto::reply::{Field, Malformed, ScriptReply};
use futures::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call::Call;
use super::connect_options::Credentials;
use super::dial::Io;
use super::error::{Fault, Refusal, RequestError};
use super::link;
use super::options::IN_FLIGHT;
use super::script::{self, Script};
use crate::sync::Mutex;

/// Requests share it in one `Arc`: cloning its parts for each request costs more.
pub struct Connection {
    pub io: MultiplexedConnection,
    pub dead: CancellationToken,
    /// In a cluster, the id of this node and a colon, as part of its channels' names. The bus carries every message
    /// to all nodes. With the tag, a client receives messages only from the node that serves the slot: not from a
    /// primary that was replaced while it was frozen, and not a grant that found no subscriber at the node and was
    /// taken back.
    pub channel_tag: String,
    /// Marks the connection as dead when its last user drops it.
    _last: DropGuard,
}

impl link::Connection for Arc<Connection> {
    fn dead(&self) -> &CancellationToken {
        &self.dead
    }
}

impl Connection {
    /// Signs in over a fresh connection. It does not choose a database yet: a cluster and a Sentinel refuse that, and
    /// the client could not report the real problem.
    pub async fn open(
        io: Box<dyn Io>,
        credentials: &Credentials,
        handle: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        // With RESP3, one connection carries replies and pushes, so that both are up or both are down. Without CLIENT
        // SETINFO, which would need another right: a server logs each denial.
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(username) = credentials.username() {
            info = info.set_username(username);
        }
        if let Some(password) = credentials.password() {
            info = info.set_password(password);
        }
        let dead = CancellationToken::new();
        // Turn off the crate's own time-out, 500 ms by default. The machine has one, and the driver notifies the
        // supervisor when it expires (decision 44).
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            // If the channel has room, the driver gets a request at the first poll of its future. By default it has
            // little room.
            .set_pipeline_buffer_size(4 * IN_FLIGHT)
            .set_push_sender(on_push(dead.clone(), handle));
        let (io, driver) = MultiplexedConnection::new_with_config(&info, io, config).await?;
        // The task that reads and writes. On a dead line it would wait without end for the replies in flight. When
        // the task ends, each request in flight fails: it may have run, and waiting for its time-out would only delay
        // the retry. A second task aborts it, since checking the token at each poll of the driver would cost more.
        let driver = tokio::spawn(driver).abort_handle();
        tokio::spawn(dead.clone().cancelled_owned().map(move |()| driver.abort()));
        let last = dead.clone().drop_guard();
        Ok(Self { io, dead, channel_tag: String::new(), _last: last })
    }

    /// Sends EVAL for the first call of a script, and EVALSHA for the calls after it. If the server has lost its
    /// scripts, the client sends the text at once, and with each retry until the server has it. Over a link too slow
    /// for both within one operation time-out, the script would never run otherwise.
    pub async fn evaluate(
        &self,
        known: &KnownScripts,
        call: Call<'_>,
        request: u64,
    ) -> Result<ScriptReply, RequestError> {
        let (script, by_sha1) = self.first_command(known, call, request);
        if let Some(by_sha1) = by_sha1 {
            match self.send_call(&by_sha1, call.asking).await {
                // NOSCRIPT ran nothing, so the EVAL is the first copy of this request, not a second one.
                Err(RequestError::Refused(refusal)) if refusal.code == "NOSCRIPT" => {}
                outcome => return self.read(outcome?),
            }
        }
        // Boxed, because it is rare: otherwise every call would reserve room for it.
        Box::pin(self.evaluate_text(known, script, call, request)).await
    }

    /// The EVALSHA, if the server knows the script.
    pub fn command_by_sha1(&self, known: &KnownScripts, call: Call<'_>, request: u64) -> Option<redis::Cmd> {
        self.first_command(known, call, request).1
    }

    pub async fn evaluate_command(&self, command: &redis::Cmd) -> Result<ScriptReply, RequestError> {
        self.read(self.send(command).await?)
    }

    async fn evaluate_text(
        &self,
        known: &KnownScripts,
        script: &'static Script,
        call: Call<'_>,
        request: u64,
    ) -> Result<ScriptReply, RequestError> {
        let sent = Sending::begin(known, script);
        let by_text = self.command("EVAL", script.text(), &(call.command)(), request);
        let value = self.send_call(&by_text, call.asking).await?;
        sent.was_taken();
        self.read(value)
    }

    /// If this is not a reply of a script, it belongs to another request, and so do all replies after it.
    fn read(&self, value: Value) -> Result<ScriptReply, RequestError> {
        read(value).inspect_err(|_| self.dead.cancel())
    }

    pub async fn send(&self, command: &redis::Cmd) -> Result<Value, RequestError> {
        let outcome = self.io.clone().send_packed_command(command).await;
        outcome.and_then(Value::extract_error).map_err(|error| self.failed(error))
    }

    async fn send_call(&self, command: &redis::Cmd, asking: bool) -> Result<Value, RequestError> {
        // Boxed, because it is rare: otherwise every call would reserve room for it.
        if asking { Box::pin(self.send_asking(command)).await } else { self.send(command).await }
    }

    /// In one write: ASKING applies to the connection's next command, which must be this one.
    async fn send_asking(&self, command: &redis::Cmd) -> Result<Value, RequestError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING").add_command(command.clone());
        let outcome = self.io.clone().send_packed_commands(&pipe, 1, 1).await;
        let reply =
            outcome.and_then(|replies| Value::extract_error(replies.into_iter().next_back().unwrap_or(Value::Nil)));
        reply.map_err(|error| self.failed(error))
    }

    /// The script, and the EVALSHA if the server knows it. Not an `async fn`, which would reserve room for the
    /// command.
    fn first_command(
        &self,
        known: &KnownScripts,
        call: Call<'_>,
        request: u64,
    ) -> (&'static Script, Option<redis::Cmd>) {
        let command = (call.command)();
        let script = script::of(command.script);
        (script, known.has(script).then(|| self.command("EVALSHA", script.sha1(), &command, request)))
    }

    fn command(&self, verb: &str, script: &str, sent: &Command<'_>, request: u64) -> redis::Cmd {
        let (mut keys, mut args, mut length) = (0, 0, 0);
        for key in sent.keys() {
            (keys, length) = (keys + 1, length + key.len());
        }
        for arg in sent.args() {
            (args, length) = (args + arg.count(), length + arg.len_at_most());
        }
        // Allocate once: growing it with each argument cost more than everything else in a call here.
        let mut command = redis::Cmd::with_capacity(4 + keys + args, 40 + script.len() + length);
        // The request's number comes first in every script. Its echo in the reply exposes shifted replies (P1).
        command.arg(verb).arg(script).arg(keys);
        for key in sent.keys() {
            command.arg(key);
        }
        command.arg(request);
        for arg in sent.args() {
            match arg {
                Arg::Text(text) => command.arg(&**text),
                Arg::Texts(texts) => command.arg(*texts),
                Arg::Channel(text) if self.channel_tag.is_empty() => command.arg(text),
                Arg::Channel(text) => command.arg([text, &*self.channel_tag].concat()),
                Arg::Int(number) => command.arg(number),
                Arg::Natural(number) => command.arg(number),
            };
        }
        command
    }

    fn failed(&self, error: RedisError) -> RequestError {
        match refusal(&error) {
            Some(refusal) => RequestError::Refused(refusal),
            // The server did not reply, so the connection has failed. Mark it now: otherwise the client would also
            // lose requests that it sends before the driver reports it. The crate's error would talk about a parser
            // or a pipe.
            None => {
                self.dead.cancel();
                RequestError::Unanswered(Arc::new(Fault::Disconnected))
            }
        }
    }
}

/// The scripts that the client has sent to a server. SCRIPT FLUSH or a restart makes the server forget them, which it
/// reports.
#[derive(Default)]
pub struct KnownScripts(Mutex<BTreeSet<ScriptName>>);

impl KnownScripts {
    fn has(&self, script: &Script) -> bool {
        self.0.lock().contains(&script.name)
    }
}

/// A script is known from the moment the client sends its text, since the server runs later requests after it.
/// Dropping this without an answer makes the script unknown again.
struct Sending<'a> {
    known: &'a KnownScripts,
    script: &'static Script,
}

impl<'a> Sending<'a> {
    fn begin(known: &'a KnownScripts, script: &'static Script) -> Self {
        known.0.lock().insert(script.name);
        Self { known, script }
    }

    fn was_taken(self) {
        std::mem::forget(self);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.known.0.lock().remove(&self.script.name);
    }
}

/// The server's own error, as opposed to an error of the connection.
pub fn refusal(error: &RedisError) -> Option<Refusal> {
    // The crate has its own kind for a refused sign-in, without the server's code.
    let code = error.code().or_else(|| (error.kind() == ErrorKind::AuthenticationFailed).then_some("WRONGPASS"))?;
    Some(Refusal::new(code, error.detail().unwrap_or_default()))
}

fn read(value: Value) -> Result<ScriptReply, RequestError> {
    // A reply of unknown form is not a refusal: the script has run, and its outcome is unknown.
    let unknown = |what: String| RequestError::Unanswered(Arc::new(Malformed(what)));
    let values = match value {
        Value::BulkString(bytes) => return Ok(ScriptReply::Text(bytes)),
        Value::Array(values) => values,
        other => return Err(unknown(format!("{other:?} where a text or an array is expected"))),
    };
    let field = |value| match value {
        Value::Int(number) => Ok(Field::Int(number)),
        Value::BulkString(bytes) => Ok(Field::Text(bytes)),
        Value::SimpleString(text) => Ok(Field::Text(text.into_bytes())),
        // The crate has a separate value for the text OK.
        Value::Okay => Ok(Field::Text(b"OK".to_vec())),
        other => Err(unknown(format!("{other:?} inside an array"))),
    };
    values.into_iter().map(field).collect::<Result<_, _>>().map(ScriptReply::List)
}

/// Handles pushes. It runs inside the connection's driver, so it must not block.
fn on_push(
    dead: CancellationToken,
    handle: impl Fn(&[u8]) + Send + Sync,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync {
    move |push: PushInfo| {
        match (push.kind, push.data.as_slice()) {
            // The driver reports this once, when the connection breaks. A frozen server causes no such push, so the
            // supervisor pings.
            (PushKind::Disconnection, _) => dead.cancel(),
            // A frozen server may continue after another one has taken over. Its grants have ended.
            _ if dead.is_cancelled() => {}
            // The first element is the channel. A client listens on one only.
            (PushKind::Message, [_, Value::BulkString(payload), ..]) => handle(payload),
            _ => {}
        }
        Ok(())
    }
}
