//! Text of counterexamples. Owners are A, B, C, and handles G and H; a client has the name of its first owner; `#2` is seq 2; `t1` is
//! tick 1.

use std::fmt::{Display, Formatter, Result};

use crate::client::Client;
use crate::network::{Answer, FOREVER, Message, OwnerId, Poll, Push, Request, Ticket};
use crate::owner::{Hold, Owner, Stage};
use crate::protocol::{Action, State};
use crate::server::{Server, Tombstone};

/// The name of an owner, or of a client.
pub fn name(id: OwnerId) -> char {
    char::from(b'A' + id)
}

pub fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Tick => f.write_str("the clock ticks"),
            Self::Start(id) => write!(f, "{} asks for the lock", name(id)),
            Self::Retry(id) => write!(f, "{} sends its request again", name(id)),
            Self::RetryLeave(id) => write!(f, "{} sends its leave again", name(id)),
            Self::GiveUp(id) => write!(f, "{} gives up", name(id)),
            Self::Poll(id) => write!(f, "client {} polls", name(id)),
            Self::Renew(id) => write!(f, "{} renews", name(id)),
            Self::Extend(id, lease) => write!(f, "{} extends its hold to {lease}", name(id)),
            Self::Reenter(id) => write!(f, "{} asks for one more hold", name(id)),
            Self::Unlock(id) => write!(f, "{} drops a guard", name(id)),
            Self::NoticeLoss(id) => write!(f, "{} notices that its deadline has passed", name(id)),
            Self::SendLateLeave(id) => write!(f, "{} sends the leave of the hold that it lost", name(id)),
            Self::GiveUpPoll(id) => write!(f, "client {} does not wait for its poll any more", name(id)),
            Self::Detach(id) => write!(f, "{} detaches what it holds", name(id)),
            Self::Attach(id, handle) => write!(f, "{} attaches handle {}", name(id), name(handle)),
            Self::ExtendHandle(id) => write!(f, "handle {} is extended", name(id)),
            Self::ReleaseHandle(id) => write!(f, "handle {} is released", name(id)),
            Self::Deafen(id) => write!(f, "the subscription of client {} breaks", name(id)),
            Self::Reconnect(id) => write!(f, "client {} reconnects", name(id)),
            Self::Deliver(message @ (Message::ToServer { .. } | Message::PollToServer { .. })) => {
                write!(f, "the server serves {message}")
            }
            Self::Deliver(message) => write!(f, "received: {message}"),
            Self::Lose(message) => write!(f, "lost: {message}"),
            Self::PassOn => f.write_str("a free lock is passed on by a poll without a client"),
            Self::Fault(fault) => write!(f, "{fault:?}"),
        }
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::ToServer { from, request } => write!(f, "[{} {request}]", name(*from)),
            Self::Reply { to, request, answer } => write!(f, "[{} {request} = {answer}]", name(*to)),
            Self::PollToServer { from, poll } => write!(f, "[client {} {poll}]", name(*from)),
            Self::PollReply { to, poll, answer } => write!(f, "[client {} {poll} = {answer:?}]", name(*to)),
            Self::Pushed { to, push } => write!(f, "[push to {}: {push}]", name(*to)),
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Acquire { seq, copy, sent, nested, .. } => {
                write!(f, "acquire #{seq}")?;
                if let Some(nested) = nested {
                    write!(f, " to re-enter token {} with {}", nested.token, nested.holds)?;
                }
                write!(f, ", sent t{sent}{}", CopyNumber(copy))
            }
            Self::Leave { seq, copies_until, copy, .. } => {
                write!(f, "leave up to #{seq}{}{}", CopiesUntil(copies_until), CopyNumber(copy))
            }
            Self::Release { seq, holds, copies_until, copy, .. } => {
                write!(f, "release #{seq} to {holds}{}{}", CopiesUntil(copies_until), CopyNumber(copy))
            }
            Self::Renew { token, sent, .. } => write!(f, "renew token {token}, sent t{sent}"),
            Self::Extend { seq, token, lease, sent, copy } => {
                write!(f, "extend #{seq} of token {token} to {lease}, sent t{sent}{}", CopyNumber(copy))
            }
            Self::Give { from, to, seq, token, sent, copy } => {
                write!(
                    f,
                    "give #{seq} of token {token} from {} to {}, sent t{sent}{}",
                    name(from),
                    name(to),
                    CopyNumber(copy)
                )
            }
        }
    }
}

impl Display for Poll {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { number, sent, waiting, verifies } = self;
        let verifies = if *verifies { " that verifies" } else { "" };
        write!(f, "poll {number}{verifies}, waiting {waiting:?}, sent t{sent}")
    }
}

/// Marks a retry.
struct CopyNumber(u8);

impl Display for CopyNumber {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0 > 0 { write!(f, ", copy {}", self.0 + 1) } else { Ok(()) }
    }
}

/// Server time until which a copy of the acquire may be served.
struct CopiesUntil(u8);

impl Display for CopiesUntil {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0 > 0 { write!(f, ", copies until t{}", self.0) } else { Ok(()) }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Acquired(answer) => write!(f, "{answer:?}"),
            Self::Left(answer) => write!(f, "{answer:?}"),
            Self::Released(answer) => write!(f, "{answer:?}"),
            Self::Renewed(answer) => write!(f, "{answer:?}"),
            Self::Given(answer) => write!(f, "{answer:?}"),
        }
    }
}

impl Display for Push {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Grant { seq, token, lasts } => write!(f, "grant of #{seq}, token {token}, for {lasts}"),
            Self::Revoked { token } => write!(f, "token {token} is revoked"),
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "t{} {}", self.now, self.server)?;
        for (id, owner) in (0..).zip(&self.owners) {
            writeln!(f, "       {}: {owner}", name(id))?;
        }
        for (id, client) in (0..).zip(&self.clients) {
            writeln!(f, "       client {}: {client}", name(id))?;
        }
        write!(f, "       in flight: {}", list(self.network.iter()))
    }
}

impl Display for Server {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.lock {
            Some(lock) => {
                let owner = name(lock.owner);
                write!(f, "{owner} owns it x{} since #{}", lock.holds, lock.attempt)?;
                write!(f, ", token {}, until t{}", lock.token, lock.expires)?;
            }
            None => f.write_str("free")?,
        }
        if self.unbooted {
            f.write_str(", not booted")?;
        }
        if self.frozen_until > 0 {
            write!(f, ", frozen until t{}", self.frozen_until)?;
        }
        let place = |ticket: &Ticket| {
            let give_up = match self.tickets.get(ticket) {
                Some(&FOREVER) => String::new(),
                Some(give_up) => format!(" until t{give_up}"),
                None => " without ticket".to_owned(),
            };
            format!("{}#{}{give_up}", name(ticket.owner), ticket.seq)
        };
        write!(f, "; queue: {}", list(self.queue.iter().map(place)))?;
        let lost = self.tickets.keys().filter(|ticket| !self.queue.contains(ticket));
        write!(f, "; tickets without place: {}", list(lost.map(place)))?;
        for (client, heard) in self.heard.iter() {
            let unreachable = if heard.unreachable { " unreachable" } else { "" };
            write!(f, "; client {} until t{}{unreachable}", name(*client), heard.until)?;
        }
        write!(f, "; skip {}", self.skip)?;
        let tombstone = |(owner, tombstone): &(OwnerId, Tombstone)| {
            format!("{} up to #{} until t{}", name(*owner), tombstone.seq, tombstone.until)
        };
        write!(f, "; tombstones: {}", list(self.tombstones.iter().map(tombstone)))
    }
}

impl Display for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.stage {
            Stage::Idle => f.write_str("idle")?,
            Stage::Acquiring { request, .. } => write!(f, "acquiring, {request}")?,
            Stage::Waiting { seq, queued_at, floor, confirming, .. } => {
                write!(f, "waiting #{seq}, queued at t{queued_at}, floor {floor}")?;
                confirming.iter().try_for_each(|request| write!(f, ", confirming: {request}"))?;
            }
            Stage::Holding(Hold { token, deadline, guards, pending, .. }) => {
                write!(f, "holding with {guards} guards, token {token}, until t{deadline}")?;
                pending.iter().try_for_each(|request| write!(f, ", unanswered: {request}"))?;
            }
        }
        self.leaving.iter().try_for_each(|leave| write!(f, "; leaving: {leave}"))?;
        if self.unsent_leave.is_some() { f.write_str("; a leave not sent yet") } else { Ok(()) }
    }
}

impl Display for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { poll, answered, doubt, deaf, verified, .. } = self;
        write!(f, "doubt {doubt:?}, last answer {answered:?}")?;
        poll.iter().try_for_each(|poll| write!(f, ", unanswered: {poll}"))?;
        write!(f, "{}", if *verified { ", verified last" } else { "" })?;
        write!(f, "{}", if *deaf { ", deaf" } else { "" })
    }
}
