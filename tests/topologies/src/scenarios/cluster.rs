//! Slots that move, masters that change, nodes that do not announce their address, and slots without a master.

use std::time::Duration;

use fairlock::LockClientBuilder;

use crate::checker::Findings;
use crate::clock::ShiftedClock;
use crate::cluster::{Cluster, Node, SHARDS, names, shard_of, shard_of_slot, slot_of};
use crate::load::{Plan, builder, builder_for_clocks, connect_all_with};
use crate::report::Report;
use crate::run::{CLIENTS, Run, is_up};
use crate::scenarios::Extent;
use crate::scenarios::sentinel::must_differ;
use crate::server::Server;
use crate::testbed::{Testbed, eventually, note, now, to_ms};
use crate::watch::ScriptWatch;

/// Names on all shards.
fn plan() -> Plan {
    let of_each = |start: &str, count| -> Vec<String> {
        (0..SHARDS).flat_map(|shard| names(start, count, |slot| shard_of_slot(slot) == shard)).collect()
    };
    let (names, alone, long) = (of_each("work:", 6), of_each("work:alone:", 6), of_each("long:", 2));
    Plan { names, alone, long, section: Duration::from_millis(15) }
}

/// The name of a gate on this shard.
fn gate_on(shard: usize) -> String {
    names("gate:", 1, |slot| shard_of_slot(slot) == shard).remove(0)
}

/// Ends the load. It must leave nothing on any node that is up.
async fn finish(cluster: &Cluster, run: Run, report: &mut Report) -> Findings {
    let masters: Vec<&Server> = cluster.masters().await.into_iter().map(|node| node.server.as_ref()).collect();
    let mut others = Vec::new();
    for node in &cluster.nodes {
        if masters.iter().all(|master| master.port() != node.server.port()) && is_up(&node.server).await {
            others.push(node.server.as_ref());
        }
    }
    run.finish(report, &masters, &others, shard_of).await
}

/// The longest stall on the other shards. By default a cluster that misses a shard serves no slot at all.
fn stall_elsewhere(findings: &Findings, shard: usize) -> u64 {
    let elsewhere = findings.stalls.iter().filter(|(other, _)| **other != shard).map(|(_, stall)| *stall).max();
    elsewhere.unwrap_or_default()
}

/// For a cluster that does not require full coverage.
fn others_must_go_on(report: &mut Report, findings: &Findings, shard: usize) {
    report.reach("stall elsewhere ms", stall_elsewhere(findings, shard), 500);
}

/// One slot moves around between all masters. Its names are busy, and one holder renews its hold all the time.
pub async fn slots_move(bed: &Testbed, extent: Extent) -> Report {
    let cluster = Cluster::start(bed, &[], &[]).await;
    move_slots(&cluster, builder, if extent == Extent::Short { 8 } else { 50 }, extent).await
}

async fn move_slots(cluster: &Cluster, builder: fn() -> LockClientBuilder, moves: usize, extent: Extent) -> Report {
    let slot = slot_of("moved:");
    let (in_slot, mut plan) = (|other| other == slot, plan());
    plan.names.extend(names("moved:", 3, in_slot));
    plan.long.extend(names("long:", 1, in_slot));
    let renewed = plan.long.last().expect("there is one").clone();
    let run = Run::with(connect_all_with(builder, &cluster.url(), CLIENTS).await, plan).await;
    let mut report = Report::new(extent);
    let gate = names("gate:", 1, in_slot).remove(0);
    let before = run.inversions(&gate).await;
    run.record.fault();
    let (mut keys, mut longest) = (0, 0);
    for number in 0..moves {
        // Sometimes so slowly that a renewal meets the moving slot: one comes every third of a lease.
        let dwell = Duration::from_millis(if number % 4 == 0 { 400 } else { 20 });
        let target = &cluster.nodes[(shard_of_slot(slot) + number + 1) % SHARDS];
        let begun = now();
        keys += cluster.move_slot(slot, target, dwell).await.expect("the slot can be moved");
        longest = longest.max(now() - begun);
        note(format!("slot {slot} was on its way for {} ms", to_ms(now() - begun)));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    report.figure("moves", moves as u64).figure("keys moved", keys as u64).figure("longest move ms", to_ms(longest));
    let rested = now();
    run.until_granted_after(rested).await;
    report.reach("granted again after ms", to_ms(now() - rested), 2000);
    run.settle().await;
    let behind = run.inversions(&gate).await;
    report.must(before + behind == 0, "served out of order in a slot that rests");
    let begun = run.record.counted(&format!("begun {renewed}"));
    report.must(begun == 1, format!("{renewed} was taken {begun} times and not only renewed"));
    let findings = finish(cluster, run, &mut report).await;
    report.figure("stall of a moved name ms", findings.moved_stall);
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_lose_nothing(&findings);
    report
}

pub async fn failover_by_hand(bed: &Testbed, extent: Extent) -> Report {
    let cluster = Cluster::start(bed, &[], &[]).await;
    fail_over_each(&cluster, builder, extent).await
}

/// Each shard gets another master, one after the other.
async fn fail_over_each(cluster: &Cluster, builder: fn() -> LockClientBuilder, extent: Extent) -> Report {
    let run = Run::with(connect_all_with(builder, &cluster.url(), CLIENTS).await, plan()).await;
    let mut report = Report::new(extent);
    run.record.fault();
    let mut used = 0;
    let mut across = 0;
    for shard in 0..SHARDS {
        let old = cluster.master_of_shard(shard).await;
        let gate = run.shut_gate(&gate_on(shard)).await;
        let watch = ScriptWatch::start(old.server.clone());
        let switched = cluster.fail_over(old).await;
        run.until_it_works().await;
        used = used.max(to_ms(watch.last_call().saturating_sub(switched)));
        across += gate.open().await;
        report.must(run.inversions(&gate_on(shard)).await == 0, "served out of order behind the failover");
    }
    run.wait_for_ghosts().await;
    report.figure("inversions across", across as u64).reach("old master used ms", used, 1000);
    let findings = finish(cluster, run, &mut report).await;
    report.reach("stall of a name ms", findings.name_stall, 1500);
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_lose_nothing(&findings);
    report
}

pub async fn master_killed(bed: &Testbed, extent: Extent) -> Report {
    let cluster = Cluster::start(bed, &[], &[]).await;
    let run = Run::start(&cluster.url(), plan()).await;
    let mut report = Report::new(extent);
    let old = cluster.master_of_shard(0).await;
    let killed = run.record.fault();
    old.server.kill();
    let switched = cluster.until_taken_over(old, 0).await;
    run.record.switched(switched);
    run.settle().await;
    let behind = run.inversions(&gate_on(0)).await;
    report.must(behind == 0, "served out of order behind the failover");
    let findings = finish(&cluster, run, &mut report).await;
    report.must_recover(&findings, to_ms(switched - killed));
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings).must_keep_established(&findings);
    report.figure("stall elsewhere ms", stall_elsewhere(&findings, 0));
    report
}

pub async fn master_frozen(bed: &Testbed, extent: Extent) -> Report {
    let cluster = Cluster::start(bed, &[], &[]).await;
    let run = Run::start(&cluster.url(), plan()).await;
    let mut report = Report::new(extent);
    let old = cluster.master_of_shard(0).await;
    let frozen = run.record.fault();
    old.server.freeze();
    let switched = cluster.until_taken_over(old, 0).await;
    run.record.switched(switched);
    run.until_granted_after(switched).await;
    tokio::time::sleep(Duration::from_nanos((frozen + 10_000_000_000).saturating_sub(now()))).await;
    let used = ScriptWatch::start(old.server.clone());
    let resumed = now();
    old.server.resume();
    eventually("the old master is a replica", async || old.server.replicates().await).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    report.reach("old master used ms", to_ms(used.last_call().saturating_sub(resumed)), 1000);
    run.settle().await;
    let findings = finish(&cluster, run, &mut report).await;
    report.must_recover(&findings, to_ms(switched - frozen));
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings).must_keep_established(&findings);
    report.figure("stall elsewhere ms", stall_elsewhere(&findings, 0));
    report
}

/// Nodes that do not announce their host. It is nil in CLUSTER SLOTS and empty in MOVED: the node that was asked.
pub async fn unknown_endpoints(bed: &Testbed, extent: Extent) -> Report {
    let args = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let cluster = Cluster::start(bed, &args, &[]).await;
    let moved = cluster.nodes[0].server.ask::<String>("GET {elsewhere}:anything").await;
    note(format!("a node that does not serve a slot says {moved:?}"));
    let run = Run::start(&cluster.url(), plan()).await;
    let mut report = Report::new(extent);
    run.record.fault();
    let old = cluster.master_of_shard(1).await;
    cluster.fail_over(old).await;
    run.settle().await;
    let slot = slot_of("work:0");
    let target = &cluster.nodes[(shard_of_slot(slot) + 2) % SHARDS];
    let target = cluster.master_of_shard(shard_of_first(target, &cluster)).await;
    cluster.move_slot(slot, target, Duration::from_millis(50)).await.expect("the slot can be moved");
    run.settle().await;
    let findings = finish(&cluster, run, &mut report).await;
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_lose_nothing(&findings);
    report
}

/// The shard whose first master, or first replica, is this node.
fn shard_of_first(node: &Node, cluster: &Cluster) -> usize {
    cluster.nodes.iter().position(|other| other.id == node.id).expect("a node of ours") % SHARDS
}

/// Kills master and replica of a shard, then restarts the master. Names elsewhere go on; names of the shard wait.
pub async fn shard_without_master(bed: &Testbed, extent: Extent) -> Report {
    let args = ["--cluster-require-full-coverage", "no", "--appendonly", "yes"];
    let cluster = Cluster::start(bed, &args, &[]).await;
    let run = Run::start(&cluster.url(), plan()).await;
    let mut report = Report::new(extent);
    let master = cluster.master_of_shard(2).await;
    run.record.fault();
    cluster.partner(master).server.kill();
    master.server.kill();
    tokio::time::sleep(Duration::from_secs(4)).await;
    master.server.restart().await;
    let back = now();
    run.until_granted_after(back).await;
    report.figure("granted again after ms", to_ms(now() - back));
    run.settle().await;
    let findings = finish(&cluster, run, &mut report).await;
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_keep_established(&findings);
    others_must_go_on(&mut report, &findings, 2);
    report
}

/// A slot without a master: `CLUSTERDOWN Hash slot not served`. Its names wait until it has one again.
pub async fn uncovered_slot(bed: &Testbed, extent: Extent) -> Report {
    let cluster = Cluster::start(bed, &["--cluster-require-full-coverage", "no"], &[]).await;
    let (mut plan, name) = (plan(), "moved:");
    let slot = slot_of(name);
    plan.names.push(name.into());
    let run = Run::start(&cluster.url(), plan).await;
    let mut report = Report::new(extent);
    run.record.fault();
    note(format!("nobody has slot {slot}"));
    let owner = cluster.master_of(slot).await;
    drop_slot(&cluster, owner, slot).await;
    let before = run.record.ended("work:");
    let waiting = Duration::from_secs(3);
    tokio::time::sleep(waiting).await;
    report.must(run.record.ended("work:") > before + 20, "other names do not go on");
    owner.server.tell::<String>(&format!("CLUSTER ADDSLOTS {slot}")).await;
    let back = now();
    note(format!("slot {slot} is back"));
    run.until_granted_after(back).await;
    report.figure("granted again after ms", to_ms(now() - back));
    run.settle().await;
    let findings = finish(&cluster, run, &mut report).await;
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_keep_established(&findings);
    others_must_go_on(&mut report, &findings, SHARDS);
    report
}

/// The owner first: others would learn from it that it has the slot.
async fn drop_slot(cluster: &Cluster, owner: &Node, slot: u16) {
    let command = format!("CLUSTER DELSLOTS {slot}");
    owner.server.tell::<String>(&command).await;
    for node in cluster.nodes.iter().filter(|node| node.id != owner.id) {
        // For a node that has learned of it already, this fails.
        let _ = node.server.ask::<String>(&command).await;
    }
}

/// The clocks of the nodes are 3 s apart: between masters, and between each master and its replica.
pub async fn clocks_differ(bed: &Testbed, extent: Extent) -> Report {
    let clock = ShiftedClock::build(bed.path());
    let environments = [0, 3000, -3000, 3000, 0, 0].map(|shift| clock.environment(shift));
    let cluster = Cluster::start(bed, &[], &environments).await;
    must_differ(&cluster.nodes[0].server, &cluster.nodes[1].server).await;
    must_differ(&cluster.nodes[0].server, &cluster.nodes[2].server).await;
    let moves = if extent == Extent::Short { 4 } else { 12 };
    let mut report = move_slots(&cluster, builder_for_clocks, moves, extent).await;
    report.append("failover", fail_over_each(&cluster, builder_for_clocks, extent).await);
    report
}
