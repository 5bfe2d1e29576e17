//! A node's view of its cluster: CLUSTER INFO and CLUSTER SLOTS.

use std::collections::{BTreeMap, BTreeSet};

use fairlock_proto::reply::Malformed;
use redis::Value;

use crate::store::connect_options::Address;

/// Some slots, and the master that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRange {
    pub first: u16,
    pub last: u16,
    pub master: Address,
}

#[derive(Default)]
pub struct View {
    pub ranges: Vec<SlotRange>,
    /// All masters and replicas that it names.
    pub nodes: Vec<Address>,
    /// The masters, including those without an address.
    pub shards: Shards,
}

/// The masters by id, each with the ids of its replicas.
pub type Shards = BTreeMap<String, BTreeSet<String>>;

impl View {
    /// Reads the reply to CLUSTER SLOTS of the node at `asked`.
    pub fn read(slots: &Value, asked: &Address) -> Result<Self, Malformed> {
        let mut view = Self::default();
        for range in array(slots)? {
            let [first, last, nodes @ ..] = array(range)? else { return Err(unexpected(range)) };
            let (first, last) = (slot(first)?, slot(last)?);
            let ids = nodes.iter().map(id).collect::<Result<Vec<_>, _>>()?;
            // The master comes first.
            if let [master, replicas @ ..] = &ids[..] {
                view.shards.entry(master.clone()).or_default().extend(replicas.iter().cloned());
            }
            let nodes = nodes.iter().map(|node| address(node, asked)).collect::<Result<Vec<_>, _>>()?;
            // The client cannot use a master without an address, and treats its slots as not served.
            if let Some(Some(master)) = nodes.first() {
                view.ranges.push(SlotRange { first, last, master: master.clone() });
            }
            view.nodes.extend(nodes.into_iter().flatten());
        }
        view.nodes.sort();
        view.nodes.dedup();
        Ok(view)
    }

    pub fn names(&self, id: &str) -> bool {
        self.shards.contains_key(id) || self.shards.values().any(|replicas| replicas.contains(id))
    }

    /// The slots that no master serves, such as `0-5460 7000`. Empty if there are none.
    pub fn uncovered(&self) -> String {
        let mut ranges: Vec<_> = self.ranges.iter().map(|range| (range.first, range.last)).collect();
        ranges.sort_unstable();
        let mut missing = Vec::new();
        let mut next = 0;
        // An extra range after the last slot closes the last gap.
        for (first, last) in ranges.into_iter().chain([(super::slots::SLOTS, super::slots::SLOTS)]) {
            if next + 1 == first {
                missing.push(next.to_string());
            } else if next < first {
                missing.push(format!("{next}-{}", first - 1));
            }
            next = next.max(last.saturating_add(1));
        }
        missing.join(" ")
    }
}

/// A node's view of itself and the cluster, from CLUSTER INFO.
#[derive(Debug, PartialEq, Eq)]
pub struct Health {
    /// The greatest epoch that the node knows. Each failover raises it, and so do most moves of slots.
    pub epoch: u64,
    /// The node can reach most masters, and every slot has a master.
    pub is_ok: bool,
}

impl Health {
    pub fn read(info: &str) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Self {
            epoch: field("cluster_current_epoch:").and_then(|epoch| epoch.parse().ok()).unwrap_or_default(),
            is_ok: field("cluster_state:") == Some("ok"),
        }
    }
}

fn array(value: &Value) -> Result<&[Value], Malformed> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(other)),
    }
}

fn slot(value: &Value) -> Result<u16, Malformed> {
    match value {
        Value::Int(number) => u16::try_from(*number).map_err(|_| unexpected(value)),
        other => Err(unexpected(other)),
    }
}

/// `[endpoint, port, id, more]`. `None`: the node has no usable address.
fn address(node: &Value, asked: &Address) -> Result<Option<Address>, Malformed> {
    let [endpoint, port, rest @ ..] = array(node)? else { return Err(unexpected(node)) };
    let port = slot(port)?;
    let named = text(endpoint).unwrap_or_default();
    let host = match (named.as_str(), asked) {
        // The asked node does not know a name for it, so it is on the same host.
        ("", Address::Tcp { host, .. }) => host.clone(),
        // The cluster prefers host names, and this node has none. Its IP address follows.
        ("?", _) => match rest.get(1).and_then(ip) {
            Some(ip) => ip,
            None => return Ok(None),
        },
        (named, _) => named.to_owned(),
    };
    // 0: the node cannot be reached this way, for example because it has no TLS.
    Ok((port != 0).then_some(Address::Tcp { host, port }))
}

/// The third element.
fn id(node: &Value) -> Result<String, Malformed> {
    let [_endpoint, _port, id, ..] = array(node)? else { return Err(unexpected(node)) };
    text(id).ok_or_else(|| unexpected(node))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// The value of `ip` in a list of names and values.
fn ip(more: &Value) -> Option<String> {
    match more {
        Value::Array(words) => {
            let at = words.iter().position(|word| text(word).as_deref() == Some("ip"))?;
            text(words.get(at + 1)?)
        }
        Value::Map(pairs) => {
            pairs.iter().find(|(name, _)| text(name).as_deref() == Some("ip")).and_then(|(_, ip)| text(ip))
        }
        _ => None,
    }
}

fn unexpected(value: &Value) -> Malformed {
    Malformed(format!("{value:?} in a reply to CLUSTER SLOTS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn node(endpoint: Value, port: i64, more: Vec<Value>) -> Value {
        Value::Array(vec![endpoint, Value::Int(port), bulk(&format!("id {port}")), Value::Array(more)])
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
    }

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    #[test]
    fn slots_and_nodes_are_read() {
        let reply = Value::Array(vec![
            range(0, 5, vec![node(bulk("10.0.0.1"), 1, vec![]), node(bulk("10.0.0.2"), 2, vec![])]),
            // A node that does not know its own name, and a node without the host name that the cluster prefers.
            range(7, 9, vec![node(Value::Nil, 3, vec![])]),
            range(10, 16383, vec![node(bulk("?"), 4, vec![bulk("ip"), bulk("10.0.0.4")])]),
        ]);
        let view = View::read(&reply, &at("asked", 9)).unwrap();
        let masters: Vec<_> = view.ranges.iter().map(|range| (range.first, range.last, range.master.clone())).collect();
        assert_eq!(masters, [(0, 5, at("10.0.0.1", 1)), (7, 9, at("asked", 3)), (10, 16383, at("10.0.0.4", 4))]);
        assert_eq!(view.nodes, [at("10.0.0.1", 1), at("10.0.0.2", 2), at("10.0.0.4", 4), at("asked", 3)]);
        let shard = |master: &str, replicas: &[&str]| (master.into(), replicas.iter().map(|id| (*id).into()).collect());
        assert_eq!(view.shards, [shard("id 1", &["id 2"]), shard("id 3", &[]), shard("id 4", &[])].into());
        assert!(["id 1", "id 2"].iter().all(|id| view.names(id)) && !view.names("id 5"));
        assert_eq!(view.uncovered(), "6");
    }

    #[test]
    fn a_master_without_an_address_serves_nothing() {
        let reply = Value::Array(vec![
            range(3, 5, vec![node(bulk("?"), 1, vec![])]),
            range(6, 16380, vec![node(bulk("h"), 0, vec![])]),
        ]);
        let view = View::read(&reply, &at("asked", 9)).unwrap();
        assert_eq!((view.ranges.len(), view.uncovered()), (0, "0-16383".to_owned()));
        assert!(View::read(&Value::Okay, &at("asked", 9)).is_err());
    }

    #[test]
    fn epoch_and_state_are_read() {
        let info = "cluster_state:ok\r\ncluster_current_epoch:12\r\ncluster_my_epoch:3\r\n";
        assert_eq!(Health::read(info), Health { epoch: 12, is_ok: true });
        assert_eq!(Health::read("x"), Health { epoch: 0, is_ok: false });
    }
}
