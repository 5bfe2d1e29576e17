//! A request of any script, and its reply.

use crate::command::Command;
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed};
use crate::requests::acquire::{Acquire, Acquired};
use crate::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use crate::requests::give::{Gave, Give};
use crate::requests::inspect::{Inspect, Inspected};
use crate::requests::leave::{Leave, Left};
use crate::requests::poll::{Poll, Polled};
use crate::requests::raise::{Raise, Raised};
use crate::requests::release::{Release, Released};
use crate::requests::renew::{Renew, Renewed};
use crate::requests::set_limit::{LimitSet, SetLimit};
use crate::requests::{ClientArgs, ScriptRequest};

#[derive(Debug, Clone)]
pub enum Request {
    Acquire(Acquire),
    Release(Release),
    Renew(Renew),
    Poll(Poll),
    Leave(Leave),
    /// Boxed, because it is larger than the others, and rare.
    Give(Box<Give>),
    Inspect(Inspect),
    ForceUnlock(ForceUnlock),
    SetLimit(SetLimit),
    Raise(Raise),
}

/// The same call on a request of any script.
macro_rules! each {
    ($request:expr, $it:ident => $call:expr) => {
        match $request {
            Request::Acquire($it) => $call,
            Request::Release($it) => $call,
            Request::Renew($it) => $call,
            Request::Poll($it) => $call,
            Request::Leave($it) => $call,
            Request::Give($it) => $call,
            Request::Inspect($it) => $call,
            Request::ForceUnlock($it) => $call,
            Request::SetLimit($it) => $call,
            Request::Raise($it) => $call,
        }
    };
}

impl Request {
    pub fn keys(&self) -> &Keys {
        each!(self, request => &request.keys)
    }

    /// The run of the script, with its keys and arguments.
    pub fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        each!(self, request => request.command(client))
    }

    /// Decodes the reply after its head.
    pub fn answer(&self, status: &str, fields: &mut Fields<'_>) -> Result<Answer, Malformed> {
        Ok(match self {
            Self::Acquire(_) => Answer::Acquired(Decode::decode(status, fields)?),
            Self::Release(_) => Answer::Released(Decode::decode(status, fields)?),
            Self::Renew(_) => Answer::Renewed(Decode::decode(status, fields)?),
            Self::Poll(_) => Answer::Polled(Box::new(Decode::decode(status, fields)?)),
            Self::Leave(_) => Answer::Left(Decode::decode(status, fields)?),
            Self::Give(_) => Answer::Gave(Decode::decode(status, fields)?),
            Self::Inspect(_) => Answer::Inspected(Box::new(Decode::decode(status, fields)?)),
            Self::ForceUnlock(_) => Answer::Forced(Decode::decode(status, fields)?),
            Self::SetLimit(_) => Answer::LimitSet(Decode::decode(status, fields)?),
            Self::Raise(_) => Answer::Raised(Decode::decode(status, fields)?),
        })
    }
}

#[derive(Debug, Clone)]
pub struct Reply {
    /// The server's clock in microseconds since 1970, if the script has read it.
    pub server_micros: Option<i64>,
    pub answer: Answer,
}

#[derive(Debug, Clone)]
pub enum Answer {
    Acquired(Acquired),
    Released(Released),
    Renewed(Renewed),
    Polled(Box<Polled>),
    Left(Left),
    Gave(Gave),
    Inspected(Box<Inspected>),
    Forced(ForceUnlocked),
    LimitSet(LimitSet),
    Raised(Raised),
}
