//! Random faults, by seed. One thread brings faults of servers and the network, the other faults of clients and
//! connections.
//!
//! The judge's table (verify/judge/src/table.rs) lists the promises that each kind suspends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::arena::{Arena, Scope};
use crate::hosts::Host;
use crate::server::{Server, within};
use crate::topology::{Kind, nodes, shard_of, slot_of};

use Kind::{Cluster, Quorum, Sentinel, Single};

type Act = fn(&Arena, &mut Rng, &str);

/// A kind of fault, its action, and how often each topology draws it.
struct Fault {
    kind: &'static str,
    act: Act,
    on: &'static [(Kind, u32)],
}

const EVERYWHERE: &[(Kind, u32)] = &[(Single, 2), (Sentinel, 2), (Cluster, 2), (Quorum, 2)];
/// The campaign's temper decides about faults that forget, fail over, or shift clocks: see `draw`.
const SERVERS: &[Fault] = &[
    Fault { kind: "silent", act: silent, on: &[(Single, 5), (Sentinel, 4), (Cluster, 4), (Quorum, 4)] },
    Fault { kind: "one-way-out", act: one_way_out, on: EVERYWHERE },
    Fault { kind: "one-way-in", act: one_way_in, on: EVERYWHERE },
    Fault { kind: "cable", act: cable, on: EVERYWHERE },
    Fault { kind: "halves", act: halves, on: EVERYWHERE },
    Fault { kind: "ring", act: ring, on: &[(Quorum, 3)] },
    Fault { kind: "cut-server", act: cut_server, on: &[(Sentinel, 2), (Cluster, 2), (Quorum, 3)] },
    Fault { kind: "stop-server", act: stop_server, on: EVERYWHERE },
    Fault { kind: "kill-server", act: kill_server, on: EVERYWHERE },
    Fault { kind: "wipe-server", act: wipe_server, on: &[(Single, 3), (Quorum, 3)] },
    Fault { kind: "flush", act: flush, on: &[(Single, 3), (Sentinel, 2), (Cluster, 2), (Quorum, 2)] },
    Fault { kind: "flush-majority", act: flush_majority, on: &[(Quorum, 1)] },
    Fault { kind: "clock", act: clock, on: &[(Single, 4), (Quorum, 4)] },
    Fault { kind: "memory", act: memory, on: EVERYWHERE },
    Fault { kind: "disk", act: disk, on: &[(Single, 2), (Quorum, 2)] },
    Fault { kind: "acl", act: acl, on: EVERYWHERE },
    Fault { kind: "failover", act: failover, on: &[(Sentinel, 3), (Cluster, 3)] },
    Fault { kind: "stray-master", act: stray_master, on: &[(Sentinel, 1)] },
    Fault { kind: "slots", act: slots, on: &[(Cluster, 4)] },
    Fault { kind: "node", act: node, on: &[(Cluster, 2)] },
];
const CLIENTS: &[Fault] = &[
    Fault { kind: "stop-client", act: stop_client, on: &[(Single, 4), (Sentinel, 4), (Cluster, 4), (Quorum, 4)] },
    Fault { kind: "kill-client", act: kill_client, on: EVERYWHERE },
    Fault { kind: "connections", act: connections, on: EVERYWHERE },
    Fault { kind: "scripts", act: scripts, on: EVERYWHERE },
];

/// Brings faults until it has to stop. When it returns, the last one has ended.
pub fn torment(arena: &Arena, seed: u64, only: &[String], stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for (faults, pause, salt) in [(SERVERS, 1500..4000, 1), (CLIENTS, 1000..5000, 2)] {
            let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(salt));
            scope.spawn(move || {
                let drawn = draw(arena, faults, seed, only);
                while !drawn.is_empty() && rest(rng.u64(pause.clone()), stop) {
                    let fault = drawn[rng.usize(0..drawn.len())];
                    (fault.act)(arena, &mut rng, fault.kind);
                }
            });
        }
    });
}

/// The faults of this campaign, each as often as its weight. One seed in three shifts clocks, and then no server
/// forgets: without its data, a server takes tokens from its clock.
fn draw(arena: &Arena, faults: &'static [Fault], seed: u64, only: &[String]) -> Vec<&'static Fault> {
    let clocks = seed.is_multiple_of(3);
    let forgets = ["wipe-server", "flush", "flush-majority", "failover", "stray-master"];
    let fits = |fault: &&Fault| if clocks { !forgets.contains(&fault.kind) } else { fault.kind != "clock" };
    let is_wanted = |fault: &&Fault| {
        if only.is_empty() { fits(fault) } else { only.iter().any(|kind| kind == fault.kind) }
    };
    let times = |fault: &Fault| {
        let on = fault.on.iter().find(|(kind, _)| *kind == arena.topology.kind);
        on.map_or(0, |(_, times)| *times as usize)
    };
    faults.iter().filter(is_wanted).flat_map(|fault| std::iter::repeat_n(fault, times(fault))).collect()
}

/// False: the campaign has ended.
fn rest(ms: u64, stop: &AtomicBool) -> bool {
    for _ in 0..ms / 50 {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Short, longer than some timeouts, or longer than all leases.
fn dwell(rng: &mut Rng) {
    let ms = match rng.u32(0..4) {
        0 => rng.u64(50..800),
        1 => rng.u64(800..3000),
        _ => rng.u64(5500..8000),
    };
    std::thread::sleep(Duration::from_millis(ms));
}

fn any_host(arena: &Arena, rng: &mut Rng) -> Host {
    let hosts = arena.hosts();
    hosts[rng.usize(0..hosts.len())].clone()
}

/// One client's host, or up to half of them.
fn some_hosts(arena: &Arena, rng: &mut Rng) -> (Vec<Host>, Scope) {
    let hosts = arena.hosts();
    let count = rng.usize(1..=hosts.len() / 2);
    let hosts = rng.choose_multiple(hosts, count);
    (hosts.clone(), Scope { hosts: Some(hosts), shards: None })
}

fn server_hosts(arena: &Arena) -> Vec<Host> {
    arena.topology.servers.iter().chain(&arena.topology.sentinels).map(|server| server.host.clone()).collect()
}

/// A server in use, and the shards that it serves.
fn any_master(arena: &Arena, rng: &mut Rng) -> (Arc<Server>, Scope) {
    let mut masters = arena.topology.masters();
    if masters.is_empty() {
        masters = arena.topology.servers.clone();
    }
    let server = masters[rng.usize(0..masters.len())].clone();
    let scope = scope_of(arena, &server);
    (server, scope)
}

fn scope_of(arena: &Arena, server: &Server) -> Scope {
    let shard = (arena.topology.kind == Cluster).then(|| arena.topology.shard(server)).flatten();
    Scope { hosts: None, shards: shard.map(|shard| vec![shard]) }
}

/// Drops all packets between these pairs, for a while.
fn part(arena: &Arena, rng: &mut Rng, pairs: &[(Host, Host)]) {
    pairs.iter().for_each(|(from, to)| arena.network.drop_packets(from, to));
    dwell(rng);
    pairs.iter().for_each(|(from, to)| arena.network.pass_packets(from, to));
}

fn product(some: &[Host], others: &[Host]) -> Vec<(Host, Host)> {
    let with = |one: &Host| others.iter().map(move |other| (one.clone(), other.clone())).collect::<Vec<_>>();
    some.iter().flat_map(with).collect()
}

fn both_ways(mut pairs: Vec<(Host, Host)>) -> Vec<(Host, Host)> {
    let back: Vec<_> = pairs.iter().map(|(from, to)| (to.clone(), from.clone())).collect();
    pairs.extend(back);
    pairs
}

fn silent(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (hosts, scope) = some_hosts(arena, rng);
    let pairs = both_ways(product(&hosts, &server_hosts(arena)));
    arena.fault(kind, &scope, || part(arena, rng, &pairs));
}

fn one_way_out(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (hosts, scope) = some_hosts(arena, rng);
    let pairs = product(&hosts, &server_hosts(arena));
    arena.fault(kind, &scope, || part(arena, rng, &pairs));
}

fn one_way_in(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (hosts, scope) = some_hosts(arena, rng);
    let pairs = product(&server_hosts(arena), &hosts);
    arena.fault(kind, &scope, || part(arena, rng, &pairs));
}

fn cable(arena: &Arena, rng: &mut Rng, kind: &str) {
    let host = any_host(arena, rng);
    arena.fault(kind, &Scope::host(&host), || {
        arena.network.pull(&host);
        dwell(rng);
        arena.network.plug_in(&host);
    });
}

/// The hosts fall into two sides that cannot reach each other.
fn halves(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for host in arena.hosts().into_iter().chain(server_hosts(arena)) {
        if rng.bool() { one.push(host) } else { other.push(host) }
    }
    let pairs = both_ways(product(&one, &other));
    arena.fault_of_servers(kind, &Scope::default(), || part(arena, rng, &pairs));
}

/// Each client misses another one of the masters.
fn ring(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (hosts, servers) = (arena.hosts(), server_hosts(arena));
    let pairs = hosts.iter().cloned().zip(servers.iter().cloned().cycle()).collect();
    arena.fault(kind, &Scope::default(), || part(arena, rng, &both_ways(pairs)));
}

/// Cuts a server off from clients, servers and Sentinels.
fn cut_server(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    let others: Vec<_> =
        arena.hosts().into_iter().chain(server_hosts(arena)).filter(|host| *host != server.host).collect();
    let pairs = both_ways(product(std::slice::from_ref(&server.host), &others));
    arena.fault_of_servers(kind, &scope, || part(arena, rng, &pairs));
}

fn stop_server(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        server.signal(Signal::SIGSTOP);
        dwell(rng);
        server.signal(Signal::SIGCONT);
    });
}

/// The server comes back with the data on its disk.
fn kill_server(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        server.kill();
        dwell(rng);
        restart(arena, &server);
    });
}

/// The server comes back without data.
fn wipe_server(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        server.kill();
        server.wipe();
        dwell(rng);
        restart(arena, &server);
    });
}

fn restart(arena: &Arena, server: &Server) {
    server.launch();
    server.ready();
    thaw(arena);
}

/// Restart only one of several masters at a time, and the next when that one counts again: docs/quorum.md.
fn thaw(arena: &Arena) {
    if arena.topology.kind == Quorum {
        std::thread::sleep(Duration::from_millis(8500));
    }
}

fn flush(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        let _ = server.ask::<String>("FLUSHALL");
        thaw(arena);
    });
}

/// Two of three masters forget at once. Their holds are lost, and nobody may get the names before the leases have
/// ended.
fn flush_majority(arena: &Arena, rng: &mut Rng, kind: &str) {
    let servers = rng.choose_multiple(&arena.topology.servers, 2);
    arena.fault_of_servers(kind, &Scope::default(), || {
        for server in servers {
            let _ = server.ask::<String>("FLUSHALL");
        }
        thaw(arena);
    });
}

/// The wall clock of a server jumps, and later back.
fn clock(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    let by = rng.i64(1000..8000) * if rng.bool() { 1 } else { -1 };
    arena.fault_of_servers(kind, &scope, || {
        server.shift_clock(by);
        dwell(rng);
        server.shift_clock(0);
    });
}

fn memory(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        let _ = server.ask::<String>("CONFIG SET maxmemory 1");
        dwell(rng);
        while server.ask::<String>("CONFIG SET maxmemory 0").is_err() {}
    });
}

fn disk(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        server.fill_disk();
        dwell(rng);
        server.empty_disk();
        arena.settle();
        // A short write may have left half a command in the file. If the server were killed later, it would not start
        // with that.
        let _ = server.ask::<String>("CONFIG SET appendonly no");
        let _ = server.ask::<String>("CONFIG SET appendonly yes");
        let is_written = || server.info("persistence", "aof_rewrite_in_progress").as_deref() == Some("0");
        within(Duration::from_secs(20), is_written);
    });
}

fn acl(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    let rights = *rng.choice(&["-evalsha", "-@scripting", "-publish"]).expect("some");
    arena.fault_of_servers(kind, &scope, || {
        let _ = server.ask::<String>(&format!("ACL SETUSER default {rights}"));
        dwell(rng);
        while server.ask::<String>("ACL SETUSER default +@all").is_err() {}
    });
}

/// A failover by hand while all is well.
fn failover(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (master, scope) = any_master(arena, rng);
    arena.fault_of_servers(kind, &scope, || {
        let asked = match arena.topology.kind {
            Cluster => arena.topology.replica_of(&master).map(|replica| replica.ask::<String>("CLUSTER FAILOVER")),
            _ => Some(arena.topology.sentinels[0].ask::<String>("SENTINEL FAILOVER locks")),
        };
        drop(asked);
        std::thread::sleep(Duration::from_millis(1500));
    });
}

/// Promotes a replica by hand. The Sentinels make it a replica again.
fn stray_master(arena: &Arena, _: &mut Rng, kind: &str) {
    let Some(replica) = arena.topology.servers.iter().find(|server| !server.is_master()) else { return };
    arena.fault_of_servers(kind, &Scope::default(), || {
        let _ = replica.ask::<String>("REPLICAOF NO ONE");
        std::thread::sleep(Duration::from_millis(500));
    });
}

/// Slots with names move to another master, key by key, and later back.
fn slots(arena: &Arena, rng: &mut Rng, kind: &str) {
    let masters = arena.topology.masters();
    let [from, to] = rng.choose_multiple(0..masters.len(), 2)[..] else { return };
    let scope = Scope { hosts: None, shards: Some(vec![from, to]) };
    arena.fault_of_servers(kind, &scope, || lend_slots(arena, from, &masters[from], &masters[to], rng));
}

/// A node joins, serves some slots for a while, and leaves.
fn node(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (masters, Some(spare)) = (arena.topology.masters(), &arena.topology.spare) else { return };
    if masters.is_empty() {
        return;
    }
    let from = rng.usize(0..masters.len());
    arena.fault_of_servers(kind, &Scope { hosts: None, shards: Some(vec![from]) }, || {
        if arena.topology.admit(spare) {
            lend_slots(arena, from, &masters[from], spare, rng);
        }
        arena.topology.dismiss(spare);
    });
}

/// Another node has some slots with names of this shard for a while.
fn lend_slots(arena: &Arena, shard: usize, from: &Server, to: &Server, rng: &mut Rng) {
    let mut lent: Vec<u16> = arena.names().iter().map(|name| slot_of(name)).collect();
    lent.retain(|slot| shard_of(*slot) == shard);
    rng.shuffle(&mut lent);
    lent.truncate(rng.usize(1..=3));
    lent.sort_unstable();
    lent.dedup();
    lent.iter().for_each(|slot| move_slot(arena, *slot, from, to, rng));
    dwell(rng);
    lent.iter().for_each(|slot| move_slot(arena, *slot, to, from, rng));
}

fn move_slot(arena: &Arena, slot: u16, from: &Server, to: &Server, rng: &mut Rng) {
    let id = |server: &Server| nodes(server).unwrap_or_default().into_iter().find(|node| node.me).map(|node| node.id);
    let (Some(source), Some(target)) = (id(from), id(to)) else { return };
    let _ = to.ask::<String>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    let _ = from.ask::<String>(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    while let Ok(keys) = from.ask::<Vec<String>>(&format!("CLUSTER GETKEYSINSLOT {slot} 1")) {
        let Some(key) = keys.first() else { break };
        let _ = from.ask::<String>(&format!("MIGRATE {} 6379 {key} 0 2000", to.host.address()));
        std::thread::sleep(Duration::from_millis(rng.u64(0..100)));
    }
    // The target first, so that the slot always has a master.
    let owned = format!("CLUSTER SETSLOT {slot} NODE {target}");
    for server in [to, from].into_iter().chain(arena.topology.masters().iter().map(AsRef::as_ref)) {
        let _ = server.ask::<String>(&owned);
    }
}

fn stop_client(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (hosts, scope) = some_hosts(arena, rng);
    arena.fault(kind, &scope, || {
        hosts.iter().for_each(|host| arena.signal_worker(host, Signal::SIGSTOP));
        dwell(rng);
        hosts.iter().for_each(|host| arena.signal_worker(host, Signal::SIGCONT));
    });
}

/// Another process takes its place a moment later.
fn kill_client(arena: &Arena, rng: &mut Rng, kind: &str) {
    let host = any_host(arena, rng);
    arena.fault(kind, &Scope::host(&host), || arena.kill_worker(&host));
    std::thread::sleep(Duration::from_millis(rng.u64(0..2000)));
    arena.start_worker(&host);
}

fn connections(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault(kind, &scope, || {
        for which in ["normal", "pubsub"] {
            let _ = server.ask::<u64>(&format!("CLIENT KILL TYPE {which}"));
        }
    });
}

fn scripts(arena: &Arena, rng: &mut Rng, kind: &str) {
    let (server, scope) = any_master(arena, rng);
    arena.fault(kind, &scope, || drop(server.ask::<String>("SCRIPT FLUSH")));
}
