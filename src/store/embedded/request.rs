//! A request with its own copies of keys and arguments: it is still delivered when the caller's future is dropped.

use std::iter::once;
use std::time::Instant;

use crate::store::call::{Arg, Call};
use crate::store::clock::now;
use crate::store::error::Refusal;
use crate::store::reply::ScriptReply;
use crate::store::script::Script;

pub struct Request {
    pub client: String,
    pub script: &'static Script,
    pub keys: Vec<String>,
    pub args: Vec<String>,
    /// ASKING came before it.
    pub asking: bool,
    pub sent: Instant,
}

pub type Served = Result<ScriptReply, Refusal>;

impl Request {
    /// `tag`: see [`EmbeddedServer::tag`](super::EmbeddedServer::tag).
    pub fn new(client: &str, call: Call<'_>, request: u64, tag: &str) -> Self {
        // Redis hands each argument to a script as text, numbers too.
        let text = |arg: &Arg<'_>| match arg {
            Arg::Text(text) => (*text).to_owned(),
            Arg::Channel(text) => format!("{text}{tag}"),
            Arg::Int(number) => number.to_string(),
        };
        Self {
            client: client.to_owned(),
            script: call.script,
            keys: call.keys.iter().map(ToString::to_string).collect(),
            // The number of the request is the first argument of every script.
            args: once(request.to_string()).chain(call.args.iter().map(text)).collect(),
            asking: call.asking,
            sent: now(),
        }
    }
}
