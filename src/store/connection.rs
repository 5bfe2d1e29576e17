//! One RESP3 connection to Redis or Valkey: sends scripts, reads replies, hears pushes.

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

/// Requests share it behind one `Arc`: to copy its parts for each of them costs more.
pub struct Connection {
    pub io: MultiplexedConnection,
    pub dead: CancellationToken,
    /// In a cluster the id of this node, and a colon: a part of the channels that belong to it. The bus carries every
    /// message to all nodes. With it a client receives only messages of the node that serves the slot, and not of a
    /// primary that was replaced while it was frozen, nor a grant that found no subscriber at the node and was taken
    /// back.
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
    /// Signs in over a fresh connection. No database is chosen yet: a cluster and a Sentinel refuse that before their
    /// errors could name them.
    pub async fn open(
        io: Box<dyn Io>,
        credentials: &Credentials,
        handle: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        // With RESP3 one connection carries replies and pushes, so that both are up or both are down. Without CLIENT SETINFO,
        // which would be one more right: a server logs each denial.
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(username) = credentials.username() {
            info = info.set_username(username);
        }
        if let Some(password) = credentials.password() {
            info = info.set_password(password);
        }
        let dead = CancellationToken::new();
        // No time-out of the crate's own, which is 500 ms by default. The machine has one, and the driver notifies the supervisor
        // when it passes (decision 44).
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            // A request is in the driver's hands when its future was polled once, if the channel has room. It has few places by
            // default.
            .set_pipeline_buffer_size(4 * IN_FLIGHT)
            .set_push_sender(on_push(dead.clone(), handle));
        let (io, driver) = MultiplexedConnection::new_with_config(&info, io, config).await?;
        // The task that reads and writes. On a dead line it would wait for what is in flight without an end. When it ends,
        // each request that is in flight fails: it may have run, and waiting for its time-out would only delay the retry.
        // Ended from outside: a look at the token with each poll of the driver costs more than a task for each connection.
        let driver = tokio::spawn(driver).abort_handle();
        tokio::spawn(dead.clone().cancelled_owned().map(move |()| driver.abort()));
        let last = dead.clone().drop_guard();
        Ok(Self { io, dead, channel_tag: String::new(), _last: last })
    }

    /// EVAL for the first call of a script, and EVALSHA for those behind it. A server that has lost its
    /// scripts is sent the text at once, and again with each retry until it has it: over a link that is
    /// so slow that both do not fit into one operation time-out, a script would never run otherwise.
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
        // Boxed, because it is rare: every call would have room for it otherwise.
        Box::pin(self.evaluate_text(known, script, call, request)).await
    }

    /// The EVALSHA of a script that the server knows.
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

    /// What is no reply of a script belongs to another request, as do all behind it.
    fn read(&self, value: Value) -> Result<ScriptReply, RequestError> {
        read(value).inspect_err(|_| self.dead.cancel())
    }

    pub async fn send(&self, command: &redis::Cmd) -> Result<Value, RequestError> {
        let outcome = self.io.clone().send_packed_command(command).await;
        outcome.and_then(Value::extract_error).map_err(|error| self.failed(error))
    }

    async fn send_call(&self, command: &redis::Cmd, asking: bool) -> Result<Value, RequestError> {
        // Boxed, because it is rare: every call would have room for it otherwise.
        if asking { Box::pin(self.send_asking(command)).await } else { self.send(command).await }
    }

    /// In one write: ASKING is good for the next command of the connection, which must be this one.
    async fn send_asking(&self, command: &redis::Cmd) -> Result<Value, RequestError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING").add_command(command.clone());
        let outcome = self.io.clone().send_packed_commands(&pipe, 1, 1).await;
        let reply =
            outcome.and_then(|replies| Value::extract_error(replies.into_iter().next_back().unwrap_or(Value::Nil)));
        reply.map_err(|error| self.failed(error))
    }

    /// The script, and the EVALSHA if the server knows it. No `async fn`, which would keep room for the command.
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
        // Allocated once: growing it argument by argument cost more than the rest of a call here.
        let mut command = redis::Cmd::with_capacity(4 + keys + args, 40 + script.len() + length);
        // The number of the request comes first in every script. Its echo in the reply distinguishes a shifted reply
        // from the right one (P1).
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
            // No reply from the server, so the connection has failed. Mark it now: requests that are sent before the
            // driver reports it would be lost as well. The crate's words for it are those of a parser or of a pipe.
            None => {
                self.dead.cancel();
                RequestError::Unanswered(Arc::new(Fault::Disconnected))
            }
        }
    }
}

/// The scripts that a server was sent. It may forget them by SCRIPT FLUSH or a restart, and then says so.
#[derive(Default)]
pub struct KnownScripts(Mutex<BTreeSet<ScriptName>>);

impl KnownScripts {
    fn has(&self, script: &Script) -> bool {
        self.0.lock().contains(&script.name)
    }
}

/// A script is known from when its text is sent: the server runs what comes behind it later. Dropped without an answer, it
/// is not known.
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

/// The server's own error, as opposed to one of the connection.
pub fn refusal(error: &RedisError) -> Option<Refusal> {
    // The crate gives a refused sign-in a kind of its own, without the server's code.
    let code = error.code().or_else(|| (error.kind() == ErrorKind::AuthenticationFailed).then_some("WRONGPASS"))?;
    Some(Refusal::new(code, error.detail().unwrap_or_default()))
}

fn read(value: Value) -> Result<ScriptReply, RequestError> {
    // A reply in no known form is not a refusal: the script has run, so its outcome is unknown.
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
        // The crate has a value of its own for the text OK.
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
            // The driver says this once, when the connection breaks. A frozen server causes no such
            // push, which is why the supervisor pings.
            (PushKind::Disconnection, _) => dead.cancel(),
            // A server that was frozen may go on after another one has taken over. Its grants are over.
            _ if dead.is_cancelled() => {}
            // The first element is the channel. A client listens on one only.
            (PushKind::Message, [_, Value::BulkString(payload), ..]) => handle(payload),
            _ => {}
        }
        Ok(())
    }
}
