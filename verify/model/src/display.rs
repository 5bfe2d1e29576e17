//! Text of counterexamples. Clients are A, B, C, nodes have numbers from 1 on; `#2` is seq 2; `t1` is tick 1.

use std::fmt::{Display, Formatter, Result};

use crate::client::{Client, Slot, Stage};
use crate::network::{Body, ClientId, Message, NodeId};
use crate::node::Node;
use crate::protocol::{Action, State};

fn name(client: ClientId) -> char {
    char::from(b'A' + client)
}

fn number(node: NodeId) -> NodeId {
    node + 1
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut of = |client: ClientId, what: &str| write!(f, "{} {what}", name(client));
        match *self {
            Self::Tick => f.write_str("the clock ticks"),
            Self::Start(id) => of(id, "wants the lock"),
            Self::Cancel(id) => of(id, "gives up"),
            Self::Renew(id) => of(id, "renews"),
            Self::Unlock(id) => of(id, "unlocks"),
            Self::Lose(id) => of(id, "notices that its deadlines have passed"),
            Self::GiveUpNode(id, node) => of(id, &format!("does not wait for node {} any longer", number(node))),
            Self::Poll(id, node) => of(id, &format!("polls node {}", number(node))),
            Self::TakeIn(id, node) => of(id, &format!("tries node {} for the guard it has", number(node))),
            Self::LeaveAgain(id, node) => of(id, &format!("leaves node {} again", number(node))),
            Self::Cut(id, node) => of(id, &format!("does not reach node {}", number(node))),
            Self::Heal(id, node) => of(id, &format!("reaches node {} again", number(node))),
            Self::Deliver(message) if message.body.is_request() => write!(f, "served: {message}"),
            Self::Deliver(message) => write!(f, "received: {message}"),
            Self::DeliverCopy(message) => write!(f, "a copy arrives: {message}"),
            Self::LoseMessage(message) => write!(f, "lost: {message}"),
            Self::Die(node) => write!(f, "node {} dies", number(node)),
            Self::Restart(node, loss, ahead) => {
                write!(f, "node {} restarts, loses {loss:?}, its clock {ahead} ahead", number(node))
            }
            Self::Save(node) => write!(f, "node {} writes its data to disk", number(node)),
            Self::ForceUnlock(node) => write!(f, "force_unlock on node {}", number(node)),
        }
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { client, node, seq, sent, body } = self;
        write!(f, "[{}#{seq} node {}: {body:?}", name(*client), number(*node))?;
        match body {
            Body::Raise { .. } | Body::Leave | Body::Raised => f.write_str("]"),
            _ => write!(f, ", sent t{sent}]"),
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "t{}", self.now)?;
        for (id, node) in (0..).zip(&self.nodes) {
            writeln!(f, "       node {}: {node}", number(id))?;
        }
        for (id, client) in (0..).zip(&self.clients) {
            writeln!(f, "       {}: {client}", name(id))?;
        }
        write!(f, "       in flight: {}", list(self.network.iter()))?;
        let cut = self.cut.iter().map(|(client, node)| format!("{} and node {}", name(*client), number(*node)));
        if self.cut.is_empty() { Ok(()) } else { write!(f, "; cut: {}", list(cut)) }
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.data.hold {
            Some(hold) => {
                let raised = if hold.raised { ", raised" } else { "" };
                write!(f, "{}#{} holds it{raised}", name(hold.client), hold.seq)?;
                write!(f, ", token {}, until t{}", hold.token, hold.expires)?;
            }
            None => f.write_str("free")?,
        }
        let queue = self.data.queue.iter().map(|(client, seq)| format!("{}#{seq}", name(*client)));
        write!(f, "; stored {}; queue: {}", self.data.stored, list(queue))?;
        if self.frozen_until > 0 {
            write!(f, "; frozen until t{}", self.frozen_until)?;
        }
        if self.ahead > 0 {
            write!(f, "; clock {} ahead", self.ahead)?;
        }
        f.write_str(if self.alive { "" } else { "; dead" })
    }
}

impl Display for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.stage {
            Stage::Idle => f.write_str("idle")?,
            Stage::Failed => f.write_str("failed")?,
            Stage::Taking => f.write_str("taking")?,
            Stage::Raising { token } => write!(f, "raising to {token}")?,
            Stage::Holding { token } => write!(f, "HOLDING with token {token}")?,
        }
        for (node, slot) in (0..).zip(&self.slots) {
            if *slot != Slot::Unused {
                write!(f, "; {}: {slot}", number(node))?;
            }
        }
        for (node, seq) in (0..).zip(&self.leaving).filter(|(_, seq)| **seq > 0) {
            write!(f, "; leaving {} up to #{seq}", number(node))?;
        }
        Ok(())
    }
}

impl Display for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Asked { seq, sent } => write!(f, "asked #{seq} at t{sent}"),
            Self::Queued { seq } => write!(f, "queued #{seq}"),
            Self::Got { seq, token, deadline, raised } => {
                let raised = if *raised { ", raised" } else { "" };
                write!(f, "got #{seq} until t{deadline}, token {token}{raised}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}
