//! One server that is killed and restarted; a process that is frozen for longer than its lease.

use std::time::Duration;

use crate::checker::check;
use crate::load::{LEASE, Plan};
use crate::record::End;
use crate::report::Report;
use crate::run::Run;
use crate::scenarios::Extent;
use crate::server::Server;
use crate::testbed::{Testbed, eventually, note};
use crate::worker::Worker;

pub async fn restart_with_data(bed: &Testbed, extent: Extent) -> Report {
    let server = Server::new(bed, "server").args(&["--appendonly", "yes"]).start().await;
    let (run, mut report) = restarted(&server, extent).await;
    let findings = run.finish(&mut report, &[&server], &[], |_| 0).await;
    report
        .must_exclude(&findings)
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must_lose_nothing(&findings);
    report
}

/// When the server forgets, exclusion ends. Still, holders are notified, tokens grow, and waiters come back.
pub async fn restart_without_data(bed: &Testbed, extent: Extent) -> Report {
    let server = Server::new(bed, "server").start().await;
    let (run, mut report) = restarted(&server, extent).await;
    let findings = run.finish(&mut report, &[&server], &[], |_| 0).await;
    report
        .must_keep_tokens(&findings)
        .must_have_no_ghosts(&findings)
        .must(findings.lost() > 0, "a server forgot its holds, and nobody was told");
    report
}

async fn restarted(server: &Server, extent: Extent) -> (Run, Report) {
    let run = Run::start(&server.url(), Plan::new(8, 4)).await;
    let mut report = Report::new(extent);
    let before = run.inversions("gate").await;
    run.record.fault();
    server.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    run.settle().await;
    let behind = run.inversions("gate").await;
    report.must(before + behind == 0, "served out of order");
    (run, report)
}

/// A process frozen beyond its lease continues as if nothing had happened. The resource refuses its write, and it
/// learns of its loss.
pub async fn frozen_process(bed: &Testbed, extent: Extent) -> Report {
    let server = Server::new(bed, "server").start().await;
    let run = Run::start(&server.url(), Plan::new(2, 0)).await;
    let socket = bed.path().join("resource");
    run.record.resource.serve(&socket);
    let worker = Worker::start(&server.url(), &socket, "long:worker");
    worker.until_holds().await;
    note("the worker is frozen");
    run.record.fault();
    worker.freeze();
    // The next holder is in this process.
    let lock = run.clients[0].lock("long:worker");
    let guard = tokio::time::timeout(3 * LEASE, lock.lock()).await.expect("it has a lease").expect("it is granted");
    assert!(run.record.resource.write("long:worker", guard.token()).await, "the newer token is accepted");
    worker.resume();
    note("the worker goes on");
    let mut holds = Vec::new();
    eventually("the worker hears that it has lost", async || {
        holds = worker.holds();
        !holds.is_empty()
    })
    .await;
    let mut report = Report::new(extent);
    report.must(matches!(holds[0].end, End::Lost(_)), format!("the worker was frozen: {:?}", holds[0]));
    report.must(holds[0].token < guard.token(), "the newer hold has no greater token");
    let _ = guard.unlock().await;
    holds.extend(worker.end().await);
    for hold in holds {
        run.record.add(hold);
    }
    let overlaps = check(&run.record, &|_| 0).overlaps;
    report.must(overlaps.is_empty(), format!("overlaps: {overlaps:#?}"));
    let findings = run.finish(&mut report, &[&server], &[], |_| 0).await;
    report.must_keep_tokens(&findings).must_have_no_ghosts(&findings);
    report
}
