//! Which fault suspends which promise, where, and until when. Only this table excuses anything.
//!
//! It is the inverse of the table "What it promises where" in docs/deploying.md. Where: the hosts and shards that the
//! history names for the fault, or all of them. Until when: from the beginning of the fault until some time after its
//! end.

use crate::history::{Fault, History, MS, Time};

/// The promises that a fault can suspend. P2, P4, P5, and the end of each call never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// P1: from the fault's beginning on, holds granted before its end do not count. Later holds do.
    One,
    /// P3, for a wait that others overtake.
    Order,
    /// P6, P7 and P9: how soon a free lock goes to a waiter.
    Handover,
    /// P8: a holder learns at once that it was forced out, and at its local deadline that its lease has ended.
    Told,
}

use Promise::{Handover, One, Order, Told};

pub const PROMISES: [Promise; 4] = [One, Order, Handover, Told];

/// A time after the end of a fault, in ms. `and_freeze` adds the pause of `strict_restart`, if that is on.
#[derive(Clone, Copy)]
pub struct After {
    pub ms: u64,
    pub and_freeze: bool,
}

const fn ms(ms: u64) -> Option<After> {
    Some(After { ms, and_freeze: false })
}

const fn freeze_and(ms: u64) -> Option<After> {
    Some(After { ms, and_freeze: true })
}

const KEPT: Option<After> = None;

/// A client that was cut off reconnects within an operation timeout and a second. Lost SYN packets are sent again
/// after 1 and 3 s.
const RECONNECT: Option<After> = ms(4500);

pub struct Row {
    pub kind: &'static str,
    /// The topologies. `strict`: with `strict_restart`, and with `min-replicas-to-write` on Sentinel.
    pub on: &'static str,
    /// In the order of `PROMISES`.
    pub suspends: [Option<After>; 4],
    pub why: &'static str,
}

const ALL: &str = "single, single strict, sentinel, sentinel strict, cluster, quorum";
const FAILS_OVER: &str = "sentinel, cluster";

/// The first row that fits a fault counts.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    // Faults of one client. All promises hold for the others, and for this client those that work offline.
    Row { kind: "silent", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "a client without a connection is passed over" },
    Row { kind: "one-way-out", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "the same" },
    Row { kind: "one-way-in", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "the same" },
    Row { kind: "cable", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "the same" },
    Row { kind: "stop-client", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "a stopped process notices nothing, its own deadline neither" },
    Row { kind: "kill-client", on: ALL, suspends: [KEPT, ms(0), ms(0), ms(0)], why: "it is dead" },
    Row { kind: "connections", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "whose connection is gone is passed over" },
    Row { kind: "scripts", on: ALL, suspends: [KEPT, KEPT, KEPT, KEPT], why: "" },
    Row { kind: "start", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "fresh servers of strict clients grant nothing at first" },
    // Faults of servers that refuse, or are unreachable, and that forget nothing.
    Row { kind: "memory", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "the server refuses" },
    Row { kind: "disk", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "the server refuses" },
    Row { kind: "acl", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "the server refuses" },
    Row { kind: "slots", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "names in a slot that moves wait" },
    Row { kind: "node", on: ALL, suspends: [KEPT, ms(3000), ms(3000), ms(3000)], why: "the same, to a node that joins and leaves" },
    Row { kind: "stray-master", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "clients look for the primary" },
    Row { kind: "ring", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "each client has another first server" },
    Row { kind: "clock", on: "quorum", suspends: [ms(100), ms(11_000), ms(11_000), ms(3000)], why: "a hold on just a majority ends with a server whose clock jumps" },
    Row { kind: "clock", on: ALL, suspends: [ms(100), ms(11_000), ms(11_000), ms(3000)], why: "a jump of the clock ends leases, or makes them longer" },
    // Faults of servers that may fail over: an asynchronous failover forgets whatever was not replicated.
    Row { kind: "halves", on: FAILS_OVER, suspends: [ms(1000), RECONNECT, RECONNECT, RECONNECT], why: "an asynchronous failover forgets" },
    Row { kind: "cut-server", on: FAILS_OVER, suspends: [ms(1000), RECONNECT, RECONNECT, RECONNECT], why: "an asynchronous failover forgets" },
    Row { kind: "stop-server", on: "sentinel, sentinel strict, cluster", suspends: [ms(1000), freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "an asynchronous failover forgets, and a frozen primary goes on" },
    Row { kind: "kill-server", on: FAILS_OVER, suspends: [ms(1000), RECONNECT, RECONNECT, RECONNECT], why: "an asynchronous failover forgets" },
    Row { kind: "failover", on: FAILS_OVER, suspends: [ms(1000), RECONNECT, RECONNECT, RECONNECT], why: "an asynchronous failover forgets" },
    // Faults of servers that forget everything and do not freeze.
    Row { kind: "wipe-server", on: "single, sentinel, cluster", suspends: [ms(100), RECONNECT, RECONNECT, RECONNECT], why: "its data is gone" },
    Row { kind: "flush", on: "single, sentinel, cluster", suspends: [ms(100), RECONNECT, RECONNECT, RECONNECT], why: "its data is gone" },
    // All other faults, and those with `strict_restart`: always one holder, after a freeze if there may be one.
    Row { kind: "halves", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "no majority, or a freeze" },
    Row { kind: "cut-server", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "the first server changes" },
    Row { kind: "stop-server", on: ALL, suspends: [KEPT, RECONNECT, RECONNECT, RECONNECT], why: "connections that were silent for long are given up" },
    Row { kind: "kill-server", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "down, then a freeze" },
    Row { kind: "failover", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "a freeze" },
    Row { kind: "wipe-server", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "the waiters queue again, behind a freeze" },
    Row { kind: "flush", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "the waiters queue again, behind a freeze" },
    Row { kind: "flush-majority", on: ALL, suspends: [KEPT, freeze_and(4500), freeze_and(4500), freeze_and(4500)], why: "the same, of two of three" },
];

/// Begins and ends, in order, without overlap.
type Spans = Vec<(Time, Time)>;
/// An interval, and the windows in which it does not count.
pub type Lasting<'a> = (Time, Time, &'a [(Time, Time)]);

/// The windows of a history in which promises are suspended.
pub struct Windows {
    /// Indexed by promise (and last: any fault at all), shard, and host (and last: all hosts).
    merged: Vec<Vec<Vec<Spans>>>,
    hosts: usize,
}

/// Shards of the largest topology.
const SHARDS: usize = 3;
/// How long after its end a fault may still cause a loss: the longest lease, and the time to recover.
const AFTERMATH: Time = 10_000 * MS;

impl Windows {
    pub fn new(history: &History) -> Self {
        let hosts = history.hosts.len();
        let columns = (0..=PROMISES.len()).map(|promise| {
            let of = |shard: usize, host: usize| {
                let touching =
                    history.faults.iter().filter(|fault| touches(fault, shard, (host < hosts).then_some(host)));
                let window = |fault: &Fault| match PROMISES.get(promise) {
                    Some(promise) => window(history, fault, *promise),
                    None => Some((fault.from, fault.to.saturating_add(AFTERMATH + history.run.freeze))),
                };
                merge(touching.filter_map(window).collect())
            };
            (0..SHARDS).map(|shard| (0..=hosts).map(|host| of(shard, host)).collect()).collect()
        });
        Self { merged: columns.collect(), hosts }
    }

    /// `host`: a client's host, or none for promises to all clients.
    pub fn of(&self, promise: Promise, shard: usize, host: Option<usize>) -> &[(Time, Time)] {
        let column = PROMISES.iter().position(|known| *known == promise).unwrap_or_default();
        &self.merged[column][shard][host.unwrap_or(self.hosts)]
    }

    pub fn is_suspended(&self, promise: Promise, shard: usize, host: usize, from: Time, to: Time) -> bool {
        overlaps(self.of(promise, shard, Some(host)), from, to)
    }

    /// Whether any fault may be the cause.
    pub fn has_cause(&self, shard: usize, host: usize, from: Time, to: Time) -> bool {
        overlaps(&self.merged[PROMISES.len()][shard][host], from, to)
    }
}

/// Whether a fault concerns this shard and this host, or all hosts if none is given.
pub fn touches(fault: &Fault, shard: usize, host: Option<usize>) -> bool {
    let hosts = fault.hosts.as_ref().is_none_or(|hosts| host.is_some_and(|host| hosts.contains(&host)));
    hosts && fault.shards.as_ref().is_none_or(|shards| shards.contains(&shard))
}

/// From when until when this fault suspends this promise.
pub fn window(history: &History, fault: &Fault, promise: Promise) -> Option<(Time, Time)> {
    let run = &history.run;
    let topology = format!("{}{}", run.topology, if run.strict { " strict" } else { "" });
    let fits = |row: &&Row| row.kind == fault.kind && row.on.split(", ").any(|on| on == topology);
    let column = PROMISES.iter().position(|known| *known == promise)?;
    // A fault that the table does not know excuses nothing.
    let after = TABLE.iter().find(fits)?.suspends[column]?;
    let freeze = if after.and_freeze { run.freeze } else { 0 };
    Some((fault.from, fault.to.saturating_add(after.ms * MS + freeze)))
}

/// Whether a failover within this time may have forgotten the use of a handle, even with `strict_restart`. Then the
/// handle may be used again while its first user still relies on it.
pub fn forgets_uses(history: &History, shard: usize, from: Time, to: Time) -> bool {
    let fails_over = |fault: &Fault| {
        ["halves", "cut-server", "stop-server", "kill-server", "failover"].contains(&fault.kind.as_str())
            && FAILS_OVER.contains(history.run.topology.as_str())
    };
    let within = |fault: &Fault| fault.from < to && fault.to.saturating_add(1000 * MS) > from;
    history.faults.iter().any(|fault| fails_over(fault) && within(fault) && touches(fault, shard, None))
}

fn merge(mut windows: Spans) -> Spans {
    windows.sort_unstable();
    let mut merged: Spans = Vec::new();
    for (from, to) in windows {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

pub fn overlaps(windows: &[(Time, Time)], from: Time, to: Time) -> bool {
    let next = windows.partition_point(|window| window.1 < from);
    windows.get(next).is_some_and(|window| window.0 <= to)
}

/// How much of these intervals lies between two instants and outside their windows. Each instant counts once.
pub fn covered(intervals: Vec<Lasting>, from: Time, to: Time) -> Time {
    let mut parts = Vec::new();
    for (begin, end, windows) in intervals {
        let (mut begin, end) = (begin.max(from), end.min(to));
        for (shut, open) in windows.iter().filter(|window| window.0 < end) {
            if *shut > begin {
                parts.push((begin, *shut));
            }
            begin = begin.max(*open);
        }
        if begin < end {
            parts.push((begin, end));
        }
    }
    merge(parts).iter().map(|(begin, end)| end - begin).sum()
}
