//! Text of counterexamples. Owners are A, B, C, and handles I and J; a client has the name of its first owner; `#2` is seq 2; `t1` is tick 1.

use std::fmt::{Display, Formatter, Result};

use super::network::{Message, Push, Request};
use super::owner::Stage;
use super::protocol::{Action, State};
use crate::display::{list, name};

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Tick => f.write_str("the clock ticks"),
            Self::Start(id) => write!(f, "{} asks", name(id)),
            Self::Retry(id) => write!(f, "{} sends its request again", name(id)),
            Self::RetryLeave(id) => write!(f, "{} sends its leave again", name(id)),
            Self::GiveUp(id) => write!(f, "{} gives up", name(id)),
            Self::Renew(id) => write!(f, "{} renews", name(id)),
            Self::Reenter(id) => write!(f, "{} asks for a nested read", name(id)),
            Self::Shrink(id) => write!(f, "{} shrinks to 1", name(id)),
            Self::Release(id) => write!(f, "{} drops a guard", name(id)),
            Self::NoticeLoss(id) => write!(f, "{} notices that its deadline has passed", name(id)),
            Self::SendLateLeave(id) => write!(f, "{} sends the leave of the hold that it lost", name(id)),
            Self::Detach(id) => write!(f, "{} detaches what it holds", name(id)),
            Self::Attach(id, handle) => write!(f, "{} attaches handle {}", name(id), name(handle)),
            Self::ExtendHandle(id) => write!(f, "handle {} is extended", name(id)),
            Self::ReleaseHandle(id) => write!(f, "handle {} is released", name(id)),
            Self::Poll(id) => write!(f, "client {} polls", name(id)),
            Self::Deafen(id) => write!(f, "the subscription of client {} breaks", name(id)),
            Self::Deliver(message @ (Message::ToServer { .. } | Message::PollToServer { .. })) => {
                write!(f, "the server serves {message}")
            }
            Self::Deliver(message) => write!(f, "received: {message}"),
            Self::Lose(message) => write!(f, "lost: {message}"),
            Self::PassOn => f.write_str("a poll without a client"),
            Self::SetPermits(limit) => write!(f, "set_permits({limit:?})"),
            Self::Revoke(token) => write!(f, "revoke({token})"),
            Self::Fault(fault) => write!(f, "{fault:?}"),
        }
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::ToServer { from, request } => write!(f, "[{} {request}]", name(*from)),
            Self::Reply { to, request, answer } => write!(f, "[{} {request} = {answer:?}]", name(*to)),
            Self::PollToServer { from, poll } => write!(f, "[client {} poll t{}]", name(*from), poll.sent),
            Self::PollReply { to, poll, answer } => {
                write!(f, "[client {} poll t{} = {answer:?}]", name(*to), poll.sent)
            }
            Self::Pushed { to, push: Push::Grant { seq, token, lasts } } => {
                write!(f, "[push to {}: #{seq} has token {token} for {lasts}]", name(*to))
            }
            Self::Pushed { to, push: Push::Revoked { token } } => write!(f, "[push to {}: {token} revoked]", name(*to)),
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Acquire { seq, copy, sent, nested } => {
                write!(f, "acquire #{seq} t{sent} copy {copy}{}", if nested.is_some() { " nested" } else { "" })
            }
            Self::Leave { seq, copies_until, copy, .. } => write!(f, "leave #{seq} until t{copies_until} copy {copy}"),
            Self::Release { seq, holds, weight, copy, .. } => {
                write!(f, "release #{seq} to {holds} of weight {weight} copy {copy}")
            }
            Self::Renew { token, sent, .. } => write!(f, "renew {token} t{sent}"),
            Self::Give { from, to, seq, token, sent, copy } => {
                write!(f, "give #{seq} of {token} from {} to {} t{sent} copy {copy}", name(from), name(to))
            }
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let server = &self.server;
        write!(f, "t{} used {}", self.now, server.used)?;
        server.limit.iter().try_for_each(|limit| write!(f, " limit {limit}"))?;
        for (owner, holder) in server.holders.iter() {
            let (holds, weight, token, ends) = (holder.holds, holder.weight, holder.token, holder.ends);
            write!(f, " [{} {holds}x{weight} token {token} until t{ends}]", name(*owner))?;
        }
        write!(f, " soon t{}", server.soon)?;
        write!(f, " queue ({})", list(server.queue.iter().map(|it| format!("{}#{}", name(it.owner), it.seq))))?;
        for (id, owner) in (0..).zip(&self.owners) {
            write!(f, "; {}: ", name(id))?;
            match &owner.stage {
                Stage::Idle => f.write_str("idle")?,
                Stage::Acquiring { seq, .. } => write!(f, "asks #{seq}")?,
                Stage::Waiting { seq, queued_at, floor, .. } => {
                    write!(f, "waits #{seq} since t{queued_at} floor {floor}")?
                }
                Stage::Holding(hold) => {
                    let (token, guards, weight, deadline) = (hold.token, hold.guards, hold.weight, hold.deadline);
                    write!(f, "holds {guards}x{weight} token {token} until t{deadline}")?;
                }
            }
        }
        let violation = self.ghost.violation;
        violation.iter().try_for_each(|violation| write!(f, "  {violation:?}"))?;
        write!(f, "; in flight: {}", list(self.network.iter()))
    }
}
