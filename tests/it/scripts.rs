//! Each script alone, on a real server and on the embedded one: state before, call, reply, state after, and the same
//! call again. bench.rs explains how to write a row.

use redis::Value;

use crate::bench::{Bench, KINDS, Row, assert_fits, check, client_of, key, shape};
use crate::support::{Random, Server, limit};

/// `strict_restart`: until the freeze ends the server grants no lock, but places stay, and owners renew, re-enter and
/// release their holds.
#[tokio::test]
async fn frozen_rows() {
    let rows = [
        Row {
            what: "free: queued until the freeze is over",
            before: &["frozen 3600000"],
            call: "acquire boot=1",
            reply: "queued T * 0 0",
            after: "queue c:1:5 | clients c",
            again: "queued T * 0 1",
        },
        Row {
            what: "free: busy",
            before: &["frozen 3600000"],
            call: "acquire boot=1 mode=0",
            reply: "busy 0",
            after: "",
            again: "busy 0",
        },
        Row {
            what: "free, another waits: behind it",
            before: &["frozen 3600000", "waits d:1:2"],
            call: "acquire boot=1",
            reply: "queued T * 0 0",
            after: "queue d:1:2 c:1:5 | clients c d",
            again: "queued T * 0 1",
        },
        Row {
            what: "a retry that waits keeps its place",
            before: &["frozen 3600000", "waits c:1:5", "waits d:1:2"],
            call: "acquire boot=1",
            reply: "queued T * 0 1",
            after: "queue c:1:5 d:1:2 | clients c d",
            again: "queued T * 0 1",
        },
        Row {
            what: "held by another",
            before: &["frozen 3600000", "held d:1 2 7"],
            call: "acquire boot=1",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "one more hold",
            before: &["frozen 3600000", "held c:1 4 7"],
            call: "acquire boot=1 mode=1:7",
            reply: "held 7 2 *",
            after: "lock c:1=2 5,7,0,3000/L",
            again: "held 7 2 *",
        },
        Row {
            what: "a retry of what was granted before",
            before: &["frozen 3600000", "held c:1 5 7"],
            call: "acquire boot=1",
            reply: "held 7 1 *",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "held 7 1 *",
        },
        Row {
            what: "a new first hold ends the owner's lost one",
            before: &["frozen 3600000", "held c:1 4 7", "waits d:1:2"],
            call: "acquire boot=1",
            reply: "queued T * 0 0",
            after: "queue d:1:2 c:1:5 | clients c d",
            again: "queued T * 0 1",
        },
        Row {
            what: "a tombstone",
            before: &["frozen 3600000", "tombstone c:1 5"],
            call: "acquire boot=1",
            reply: "left",
            after: "tombstone c:1=5",
            again: "left",
        },
        Row {
            what: "the freeze is over",
            before: &["frozen -1"],
            call: "acquire boot=1",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "the freeze is over, others wait: they come first",
            before: &["frozen -1", "waits d:1:2", "waits e:1:3"],
            call: "acquire boot=1",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue e:1:3 c:1:5 | clients c d e",
            again: "queued T * 0 1 2 T * * 3000/L",
        },
        Row {
            what: "poll hears, and passes nothing on",
            before: &["frozen 3600000", "waits c:1:5", "waits d:1:2"],
            call: "poll boot=1 tickets=c:1:5,c:1:6",
            reply: "polled 0 1 2 1 - 0 0 T * 1 2",
            after: "queue c:1:5 d:1:2 | clients c d",
            again: "polled 0 1 2 1 - 0 0 T * 1 2",
        },
        Row {
            what: "poll names the holder",
            before: &["frozen 3600000", "held d:1 2 7", "waits c:1:5"],
            call: "poll boot=1 tickets=c:1:5",
            reply: "polled 0 1 1 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "polled 0 1 1 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
        },
        Row {
            what: "poll after the freeze serves the first",
            before: &["frozen -1", "waits d:1:2", "waits c:1:5"],
            call: "poll boot=1 tickets=c:1:5",
            reply: "polled 0 1 1 0 d:1 2 T T * 0",
            after: "lock d:1=1 2,T,T,3000/L | queue c:1:5 | clients c d",
            again: "polled 0 1 1 1 d:1 2 T T * 0 2 T * * 3000/L",
        },
        Row {
            what: "release frees, and passes nothing on",
            before: &["frozen 3600000", "held c:1 4 7", "waits d:1:2"],
            call: "release boot=1",
            reply: "freed 7 0",
            after: "queue d:1:2 | clients d",
            again: "gone 0",
        },
        Row {
            what: "release without waiters",
            before: &["frozen 3600000", "held c:1 4 7"],
            call: "release boot=1",
            reply: "freed 7 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "release of one of two holds",
            before: &["frozen 3600000", "held c:1 4 7", "HSET lock c:1 2"],
            call: "release boot=1 special=1:7",
            reply: "held 1",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "held 1",
        },
        Row {
            what: "release with a copy of the acquire on its way",
            before: &["frozen 3600000", "held c:1 4 7", "waits d:1:2"],
            call: "release boot=1 special=+2000~c:1:4/3000/L",
            reply: "freed 7 0",
            after: "queue d:1:2 | clients d | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "release after the freeze passes on",
            before: &["frozen -1", "held c:1 4 7", "waits d:1:2"],
            call: "release boot=1",
            reply: "freed 7 0",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "leave of a holder",
            before: &["frozen 3600000", "held c:1 5 7", "waits d:1:2"],
            call: "leave boot=1",
            reply: "freed 7 0",
            after: "queue d:1:2 | clients d",
            again: "gone 0",
        },
        Row {
            what: "leave of a waiter, with the lock free",
            before: &["frozen 3600000", "waits c:1:5", "waits d:1:2"],
            call: "leave boot=1",
            reply: "gone 0",
            after: "queue d:1:2 | clients c d",
            again: "gone 0",
        },
        Row {
            what: "leave after the freeze passes on",
            before: &["frozen -1", "held c:1 5 7", "waits d:1:2"],
            call: "leave boot=1",
            reply: "freed 7 0",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "force_unlock frees, and passes nothing on",
            before: &["frozen 3600000", "held d:1 2 7", "waits e:1:3"],
            call: "force_unlock boot=1",
            reply: "freed 7 0",
            after: "queue e:1:3 | clients e",
            again: "free 0",
        },
        Row {
            what: "force_unlock after the freeze passes on",
            before: &["frozen -1", "held d:1 2 7", "waits e:1:3"],
            call: "force_unlock boot=1",
            reply: "freed 7 0",
            after: "lock e:1=1 3,T,T,3000/L",
            again: "freed T 0",
        },
        Row {
            what: "inspect says how long",
            before: &["frozen 3600000", "held d:1 2 7"],
            call: "inspect boot=1",
            reply: "inspected d:1 1 7 0 0 L * 0 *",
            after: "lock d:1=1 2,7,0,3000/L",
            again: "inspected d:1 1 7 0 0 L * 0 *",
        },
        Row {
            what: "inspect after the freeze",
            before: &["frozen -1"],
            call: "inspect boot=1",
            reply: "inspected  0 0 0 0  -2 0 -1",
            after: "",
            again: "inspected  0 0 0 0  -2 0 -1",
        },
    ];
    // The state is the one after the first call: when called again, force_unlock ends the next hold.
    let (once, rows): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.what == "force_unlock after the freeze passes on");
    check(&rows).await;
    for mut bench in Bench::each().await {
        for row in &once {
            for step in row.before {
                bench.prepare(step).await;
            }
            assert_eq!(bench.call(row.call).await, row.reply, "{}", row.what);
            assert_fits(row.what, "state", &bench.state().await, row.after);
        }
    }
}

/// The script refuses a missing or foreign record before it changes anything. If it is missing, the client runs
/// boot.lua.
#[tokio::test]
async fn without_a_record_of_the_start_nothing_is_done() {
    let calls = [
        "acquire boot=1",
        "acquire boot=1 mode=1:7",
        "poll boot=1 tickets=c:1:5",
        "leave boot=1",
        "release boot=1",
        "release boot=1 special=+2000~c:1:4/3000/L",
        "force_unlock boot=1",
        "inspect boot=1",
    ];
    limit(async {
        for mut bench in Bench::each().await {
            for (call, holder) in calls.iter().flat_map(|call| [(call, Some("c:1")), (call, Some("d:1")), (call, None)])
            {
                for (step, code) in
                    [("DEL boot", "NOBOOT"), ("SET boot nonsense", "ERR"), ("RPUSH boot x", "WRONGTYPE")]
                {
                    bench.command("FLUSHALL").await;
                    if let Some(holder) = holder {
                        bench.prepare(&format!("held {holder} 4 7")).await;
                    }
                    bench.prepare("waits e:1:3").await;
                    bench.prepare(step).await;
                    let before = bench.dump().await;
                    let refused = bench.try_call(call).await.expect_err(call);
                    assert_eq!(refused.code, code, "{call}: {refused:?}");
                    assert!(refused.text.contains(&key("boot")), "{call}: {refused:?}");
                    assert_eq!(bench.dump().await, before, "{call}: something was changed");
                }
            }
        }
    })
    .await;
}

/// The first client of a life sets the end of the freeze. Later clients move it only if they know of a longer lease.
#[tokio::test]
async fn boot_keeps_the_furthest_instant_of_one_life() {
    async fn boot(bench: &mut Bench, call: &str) -> i64 {
        let words = bench.raw_call(call).await.unwrap();
        assert_eq!(words[0], "booted", "{call}");
        words[1].parse().unwrap()
    }
    limit(async {
        for mut bench in Bench::each().await {
            let begun = bench.now().await;
            let first = boot(&mut bench, "boot life=L freeze=60000").await;
            assert!((begun + 60_000..=bench.now().await + 60_001).contains(&first), "{first}, begun {begun}");
            assert_eq!(bench.ttl("boot").await, -1, "a record that expires would freeze once more");
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            assert_eq!(boot(&mut bench, "boot life=L freeze=60000").await, first, "the same life");
            assert_eq!(boot(&mut bench, "boot life=L freeze=10000").await, first);
            assert_eq!(boot(&mut bench, "boot life=L freeze=90000").await, first + 30_000, "of a longer lease");
            assert_eq!(boot(&mut bench, "boot life=L freeze=60000").await, first + 30_000);
            // The freeze of the earlier life goes on.
            assert_eq!(boot(&mut bench, "boot life=M freeze=1000").await, first + 30_000);
            let again = boot(&mut bench, "boot life=L freeze=100000").await;
            assert!(again > first + 30_000, "another start freezes anew");
            // Long after the start, a client with a longer lease does not freeze the server again.
            bench.command(&format!("SET boot {}~{}~0~L", begun - 500_000, begun - 600_000)).await;
            assert_eq!(boot(&mut bench, "boot life=L freeze=200000").await, begun - 400_000);
            // Another server was the primary in between, although this one was not demoted.
            let failed_over = boot(&mut bench, "boot life=L freeze=1000 epoch=3").await;
            assert!(failed_over > begun, "{failed_over}, begun {begun}");
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            for epoch in [3, 2, 0] {
                let told = boot(&mut bench, &format!("boot life=L freeze=1000 epoch={epoch}")).await;
                assert_eq!(told, failed_over, "a client that has not heard of it yet");
            }
        }
    })
    .await;
}

/// R1: a retry gets the same answer. R2: the script refuses a late request. R3: it also refuses a copy that arrives
/// after the leave (`left`). R6: a free lock goes to the waiters first.
#[tokio::test]
async fn acquire_rows() {
    let rows = [
        Row {
            what: "free",
            before: &[],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "free, without waiting",
            before: &[],
            call: "acquire mode=0",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "the terms of the call are kept",
            before: &[],
            call: "acquire terms=9000/a~b/c",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,9000/a b/c",
            again: "held T 1 *",
        },
        Row {
            what: "a retry of a grant gets the full lease",
            before: &["held c:1 5 7", "PEXPIRE lock 1000"],
            call: "acquire",
            reply: "held 7 1 10000",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "held 7 1 *",
        },
        Row {
            what: "a retry never shortens the lease",
            before: &["held c:1 5 7"],
            call: "acquire lease=500",
            reply: "held 7 1 *",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "held 7 1 *",
        },
        Row {
            what: "held by another: queued",
            before: &["held d:1 2 7"],
            call: "acquire",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the place has the terms of the call",
            before: &["held d:1 2 7"],
            call: "acquire terms=9000/a~b/c",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5/9000/a b/c | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "another call of this client waits",
            before: &["held d:1 2 7", "waits c:2:3"],
            call: "acquire",
            reply: "queued 7 * 0 1 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:2:3 c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "a retry keeps its place",
            before: &["held d:1 2 7", "waits c:1:5", "waits d:2:3"],
            call: "acquire",
            reply: "queued 7 * 0 1 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c d",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "held by another: busy",
            before: &["held d:1 2 7"],
            call: "acquire mode=0",
            reply: "busy 0 * 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L",
            again: "busy 0 * 2 7 0 0 3000/L",
        },
        Row {
            what: "free, another waits: it is granted to the waiter",
            before: &["waits d:1:2"],
            call: "acquire mode=0",
            reply: "busy 0",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "busy 0 * 2 T * * 3000/L",
        },
        Row {
            what: "free, others wait: queued behind them",
            before: &["waits d:1:2", "waits e:1:3"],
            call: "acquire",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue e:1:3 c:1:5 | clients c d e",
            again: "queued T * 0 1 2 T * * 3000/L",
        },
        Row {
            what: "free, only dead ones wait",
            before: &["waits z:1:2", "waits z:2:3", "dead z"],
            call: "acquire mode=0",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "free, the first waiter is unreachable: passed over, still first",
            before: &["waits x:1:2"],
            call: "acquire mode=0",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | queue x:1:2 | clients x",
            again: "held T 1 *",
        },
        Row {
            what: "a retry by the first waiter",
            before: &["waits c:1:5", "waits d:1:2"],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | queue d:1:2 | clients c d",
            again: "held T 1 *",
        },
        Row {
            what: "a retry by a waiter that was taken for dead",
            before: &["waits x:1:2", "unreachable x", "waits c:1:5", "dead c"],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | queue x:1:2 | clients c -x",
            again: "held T 1 *",
        },
        Row {
            what: "full",
            before: &["held d:1 2 7", "waits d:2:3"],
            call: "acquire max_waiters=1",
            reply: "full 1 0",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 | clients d",
            again: "full 1 0",
        },
        Row {
            what: "full: a retry has its place already",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0 1 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "full of dead ones",
            before: &["held d:1 2 7", "waits z:2:3", "dead z"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c !z",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "full of one who left",
            before: &["held d:1 2 7", "waits d:2:3", "ZREM deadlines d:2:3"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c d",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "full, with a dead one between",
            before: &["held d:1 2 7", "waits d:2:3", "waits z:1:4", "waits e:1:5", "dead z"],
            call: "acquire max_waiters=3",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 e:1:5 c:1:5 | clients c d e !z",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "full of unreachable ones, who live",
            before: &["held d:1 2 7", "waits x:2:3", "unreachable x"],
            call: "acquire max_waiters=1",
            reply: "full 1 0",
            after: "lock d:1=1 2,7,0,3000/L | queue x:2:3 | clients -x",
            again: "full 1 0",
        },
        Row { what: "late", before: &[], call: "acquire not_after=+-1", reply: "late", after: "", again: "late" },
        Row {
            what: "a late copy after its own leave",
            before: &["tombstone c:1 5"],
            call: "acquire",
            reply: "left",
            after: "tombstone c:1=5",
            again: "left",
        },
        Row {
            what: "after the leave of an earlier attempt",
            before: &["tombstone c:1 4"],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | tombstone c:1=4",
            again: "held T 1 *",
        },
        Row {
            what: "a late copy from before the current hold",
            before: &["held c:1 6 7"],
            call: "acquire",
            reply: "stale",
            after: "lock c:1=1 6,7,0,3000/L",
            again: "stale",
        },
        Row {
            what: "a first hold ends the owner's earlier one",
            before: &["held c:1 4 7"],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "a first hold ends the owner's earlier one, and the waiters are served first",
            before: &["held c:1 4 7", "waits d:1:2", "waits e:1:3"],
            call: "acquire",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue e:1:3 c:1:5 | clients c d e",
            again: "queued T * 0 1 2 T * * 3000/L",
        },
        Row {
            what: "nested",
            before: &["held c:1 4 7"],
            call: "acquire mode=1:7",
            reply: "held 7 2 *",
            after: "lock c:1=2 5,7,0,3000/L",
            again: "held 7 2 *",
        },
        Row {
            what: "nested, while others wait",
            before: &["held c:1 4 7", "waits d:1:2"],
            call: "acquire mode=1:7",
            reply: "held 7 2 *",
            after: "lock c:1=2 5,7,0,3000/L | queue d:1:2 | clients d",
            again: "held 7 2 *",
        },
        Row {
            what: "nested on a free lock",
            before: &[],
            call: "acquire mode=1:7",
            reply: "lost",
            after: "",
            again: "lost",
        },
        Row {
            what: "nested under another token",
            before: &["held c:1 4 8"],
            call: "acquire mode=1:7",
            reply: "lost",
            after: "lock c:1=1 4,8,0,3000/L",
            again: "lost",
        },
        Row {
            what: "nested, a late copy",
            before: &["held c:1 6 7"],
            call: "acquire mode=1:7",
            reply: "stale",
            after: "lock c:1=1 6,7,0,3000/L",
            again: "stale",
        },
    ];
    limit(check(&rows)).await;
}

/// P3: the caller joins the queue before the script serves the last waiter. Otherwise the next newcomer would overtake
/// it.
#[tokio::test]
async fn p3_an_acquire_that_serves_the_last_waiter_has_its_place() {
    limit(async {
        for before in ["token 7", "held c:1 4 7"] {
            for mut bench in Bench::each().await {
                bench.prepare(before).await;
                bench.prepare("waits d:1:2").await;
                assert_fits(before, "reply", &bench.call("acquire").await, "queued T * 0 0");
                bench.call("acquire owner=e:1 seq=6").await;
                assert_eq!(
                    bench.state().await,
                    "lock d:1=1 2,T,T,3000/L | queue c:1:5 e:1:6 | clients c d e",
                    "{before}"
                );
            }
        }
    })
    .await;
}

/// R8: a poll first marks its client as alive, and then passes a free lock on.
#[tokio::test]
async fn poll_rows() {
    let rows = [
        Row {
            what: "nothing is there",
            before: &[],
            call: "poll",
            reply: "polled 0 0 0 0 - 0 0 T -2 0",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2 0",
        },
        Row {
            what: "the client waits for nothing: it is not heard, and passes the lock on",
            before: &["waits d:1:2"],
            call: "poll waits=0",
            reply: "polled 0 0 0 0 d:1 2 T T * 0",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "polled 0 0 0 0 d:1 2 T T * 0 2 T * * 3000/L",
        },
        Row {
            what: "first in line",
            before: &["held d:1 2 7", "waits c:1:5", "waits d:2:3"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 2 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c d",
            again: "polled 0 1 2 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
        },
        Row {
            what: "not first in line",
            before: &["held d:1 2 7", "waits d:2:3", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 2 0 d:1 2 7 7 * 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 c:1:5 | clients c d",
            again: "polled 0 1 2 0 d:1 2 7 7 * 0 2 7 0 0 3000/L",
        },
        Row {
            what: "no member: it had been given up",
            before: &["held d:1 2 7", "waits c:1:5", "ZREM deadlines c"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 1 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "polled 0 1 1 1 d:1 2 7 7 * 0 2 7 0 0 3000/L",
        },
        Row {
            what: "several tickets: the numbers of those without a place",
            before: &["held d:1 2 7", "waits c:1:5", "waits c:2:6"],
            call: "poll tickets=c:1:5,c:9:9,c:2:6,c:8:8",
            reply: "polled 0 1 2 1 d:1 2 7 7 * 2 2 4 2 7 0 0 3000/L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 c:2:6 | clients c",
            again: "polled 0 1 2 1 d:1 2 7 7 * 2 2 4 2 7 0 0 3000/L",
        },
        Row {
            what: "granted before",
            before: &["held c:1 5 7"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 0 0 c:1 5 7 7 * 1 1 5 7 0 0 3000/L",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "polled 0 0 0 0 c:1 5 7 7 * 1 1 5 7 0 0 3000/L",
        },
        Row {
            what: "the lease has ended: granted to the caller",
            before: &["waits c:1:5", "waits d:1:6"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 1 * c:1 5 T T * 0",
            after: "lock c:1=1 5,T,T,3000/L | queue d:1:6 | clients c d",
            again: "polled 0 1 1 0 c:1 5 T T * 1 1 5 T * * 3000/L",
        },
        Row {
            what: "the lease has ended: granted to an earlier waiter",
            before: &["waits d:1:6", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 1 * d:1 6 T T * 0",
            after: "lock d:1=1 6,T,T,3000/L | queue c:1:5 | clients c d",
            again: "polled 0 1 1 1 d:1 6 T T * 0 6 T * * 3000/L",
        },
        Row {
            what: "the caller is alive, even past its deadline",
            before: &["waits c:1:5", "waits d:1:6", "dead c"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 1 * c:1 5 T T * 0",
            after: "lock c:1=1 5,T,T,3000/L | queue d:1:6 | clients c d",
            again: "polled 0 1 1 0 c:1 5 T T * 1 1 5 T * * 3000/L",
        },
        Row {
            what: "heard again: an unreachable one is served in its turn",
            before: &["waits x:1:3", "waits d:1:6", "unreachable x"],
            call: "poll caller=x tickets=x:1:3",
            reply: "polled 0 1 1 * x:1 3 T T * 0",
            after: "lock x:1=1 3,T,T,3000/L | queue d:1:6 | clients d x",
            again: "polled 0 1 1 0 x:1 3 T T * 1 1 3 T * * 3000/L",
        },
        Row {
            what: "dead ones at the head go, unreachable ones keep their order",
            before: &[
                "waits z:1:2",
                "waits x:1:3",
                "waits z:2:4",
                "waits x:2:5",
                "waits d:3:6",
                "waits d:4:7",
                "dead z",
            ],
            call: "poll waits=0",
            reply: "polled 0 0 4 0 d:3 6 T T * 0",
            after: "lock d:3=1 6,T,T,3000/L | queue x:1:3 z:2:4 x:2:5 d:4:7 | clients d x !z",
            again: "polled 0 0 4 0 d:3 6 T T * 0 6 T * * 3000/L",
        },
        Row {
            what: "all are dead",
            before: &["waits z:1:2", "waits y:2:4", "dead z", "dead y"],
            call: "poll waits=0",
            reply: "polled 0 0 0 0 - 0 0 T -2 0",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2 0",
        },
        Row {
            what: "one who left is passed over",
            before: &["waits d:1:2", "waits d:2:3", "ZREM deadlines d:1:2"],
            call: "poll waits=0",
            reply: "polled 0 0 0 0 d:2 3 T T * 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "polled 0 0 0 0 d:2 3 T T * 0 3 T * * 3000/L",
        },
    ];
    limit(check(&rows)).await;
}

/// An operator deletes a key of the name by hand.
#[tokio::test]
async fn deletion_rows() {
    let rows = [
        Row {
            what: "the list was deleted: a retry gets a new place",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:5", "DEL queue"],
            call: "acquire",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the list was deleted: no ticket from before has a place",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:4", "DEL queue"],
            call: "acquire",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the list was deleted, and the lock is free",
            before: &["waits d:2:3", "waits c:1:5", "DEL queue"],
            call: "acquire",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | clients c d | tickets c:1:5 d:2:3",
            again: "held T 1 *",
        },
        Row {
            what: "the list was deleted: a poll says so",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:5", "DEL queue"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 0 0 e:1 2 7 7 * 1 1 2 7 0 0 3000/L",
            after: "lock e:1=1 2,7,0,3000/L",
            again: "polled 0 0 0 0 e:1 2 7 7 * 1 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the sorted set was deleted: a retry gets a new place",
            before: &["held e:1 2 7", "waits c:1:5", "waits d:2:3", "DEL deadlines"],
            call: "acquire",
            reply: "queued 7 * 0 0 2 7 0 0 3000/L",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 c:1:5 | clients c | tickets c:1:5",
            again: "queued 7 * 0 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the sorted set was deleted: a poll says so",
            before: &["held e:1 2 7", "waits c:1:5", "waits d:2:3", "DEL deadlines"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 2 1 e:1 2 7 7 * 1 1 2 7 0 0 3000/L",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c | tickets none",
            again: "polled 0 1 2 1 e:1 2 7 7 * 1 1 2 7 0 0 3000/L",
        },
        Row {
            what: "the sorted set was deleted: nobody is served",
            before: &["held c:1 5 7", "waits d:2:3", "waits e:1:2", "DEL deadlines"],
            call: "release",
            reply: "freed 7 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "the hash was deleted: the next one is served",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:5", "DEL lock"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 1 * d:2 3 T T * 0",
            after: "lock d:2=1 3,T,T,3000/L | queue c:1:5 | clients c d",
            again: "polled 0 1 1 1 d:2 3 T T * 0 3 T * * 3000/L",
        },
        Row {
            what: "the hash was deleted: a release passes on",
            before: &["held c:1 5 7", "waits d:2:3", "DEL lock"],
            call: "release",
            reply: "gone 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the hash was deleted: a leave passes on",
            before: &["held c:1 5 7", "waits d:2:3", "DEL lock"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "all was deleted",
            before: &[],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 0 0 - 0 0 T -2 1 1",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2 1 1",
        },
    ];
    limit(check(&rows)).await;
}

/// R3: it removes the ticket and writes a tombstone. R4: it never ends a later attempt. R6: if it frees the lock, it
/// passes it on.
#[tokio::test]
async fn leave_rows() {
    let rows = [
        Row {
            what: "neither queued nor holding",
            before: &[],
            call: "leave",
            reply: "gone 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "queued",
            before: &["held d:1 2 7", "waits d:2:3", "waits c:1:5", "waits d:3:6"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 d:3:6 | clients c d",
            again: "gone 0",
        },
        Row {
            what: "the first of several places of one owner",
            before: &["held d:1 2 7", "waits c:1:5", "waits c:1:6"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:6 | clients c",
            again: "gone 0",
        },
        Row {
            what: "the only one queued",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:1=1 2,7,0,3000/L",
            again: "gone 0",
        },
        Row {
            what: "a place with spaces",
            before: &["held d:1 2 7", "waits c:1:5/9000/a~b/c", "waits d:2:3"],
            call: "leave place=c:1:5/9000/a~b/c",
            reply: "gone 0",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 | clients c d",
            again: "gone 0",
        },
        Row {
            what: "granted: passed on",
            before: &["held c:1 5 7", "waits d:2:3"],
            call: "leave",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "granted, nobody waits",
            before: &["held c:1 5 7"],
            call: "leave",
            reply: "freed 7 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "granted, and another call of the same owner waits",
            before: &["held c:1 5 7", "waits c:1:8"],
            call: "leave",
            reply: "freed 7 0",
            after: "lock c:1=1 8,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "held since an earlier attempt, and a copy may be in flight",
            before: &["held c:1 4 7"],
            call: "leave copies_until=+2000",
            reply: "freed 7 0",
            after: "tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a later attempt of the owner is not touched",
            before: &["held c:1 6 7", "waits d:2:3"],
            call: "leave copies_until=+2000",
            reply: "gone 0",
            after: "lock c:1=1 6,7,0,3000/L | queue d:2:3 | clients d | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a greater tombstone stays",
            before: &["tombstone c:1 9"],
            call: "leave copies_until=+2000",
            reply: "gone 0",
            after: "tombstone c:1=9",
            again: "gone 0",
        },
        Row {
            what: "all copies are refused by now: no tombstone",
            before: &["waits c:1:5"],
            call: "leave copies_until=+-1",
            reply: "gone 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "the lock is found free: passed on",
            before: &["waits c:1:5", "waits d:2:3"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "held by another, the first in line is dead: nothing is looked at",
            before: &["held d:1 2 7", "waits z:1:2", "waits c:1:5", "dead z"],
            call: "leave",
            reply: "gone 0",
            after: "lock d:1=1 2,7,0,3000/L | queue z:1:2 | clients c !z",
            again: "gone 0",
        },
    ];
    limit(check(&rows)).await;
}

/// R4: it compares owner and token, creates nothing, and only extends.
#[tokio::test]
async fn renew_rows() {
    let rows = [
        Row {
            what: "extends",
            before: &["held c:1 5 7", "PEXPIRE lock 100"],
            call: "renew token=7",
            reply: "renewed 10000",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "renewed *",
        },
        Row { what: "creates nothing", before: &[], call: "renew token=7", reply: "lost", after: "", again: "lost" },
        Row {
            what: "another token",
            before: &["held c:1 5 8"],
            call: "renew token=7",
            reply: "lost",
            after: "lock c:1=1 5,8,0,3000/L",
            again: "lost",
        },
        Row {
            what: "another owner",
            before: &["held d:1 5 7"],
            call: "renew token=7",
            reply: "lost",
            after: "lock d:1=1 5,7,0,3000/L",
            again: "lost",
        },
    ];
    limit(async {
        for mut bench in Bench::each().await {
            bench.check(&rows).await;
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 5 7").await;
            bench.call("renew token=7 lease=500").await;
            assert!(bench.ttl("lock").await > 5000, "a renewal never shortens the lease");
            bench.call("renew token=7 lease=500 only=4").await;
            assert!(bench.ttl("lock").await > 5000, "also not with `only`, after a later request of the owner");
            assert_eq!(bench.call("renew token=7 lease=500 only=5").await, "renewed 500");
            assert!(bench.ttl("lock").await <= 500, "but it does for the attempt in `only`");
        }
    })
    .await;
}

/// R1: it sets the count and never subtracts, so a retry changes nothing. R3, R4 and R6 as for leave.
#[tokio::test]
async fn release_rows() {
    let rows = [
        Row {
            what: "the last hold",
            before: &["held c:1 4 7"],
            call: "release",
            reply: "freed 7 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "the last hold, others wait",
            before: &["held c:1 4 7", "waits d:2:3", "waits e:1:6"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | queue e:1:6 | clients d e",
            again: "gone 0",
        },
        Row {
            what: "the last hold, one waits",
            before: &["held c:1 4 7", "waits d:2:3"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the last hold, the same owner waits",
            before: &["held c:1 4 7", "waits c:1:6"],
            call: "release",
            reply: "freed 7 0",
            after: "lock c:1=1 6,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the last hold, the first in line is dead",
            before: &["held c:1 4 7", "waits z:1:2", "waits d:2:3", "dead z"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the last hold, the first in line left",
            before: &["held c:1 4 7", "waits e:1:2", "waits d:2:3", "ZREM deadlines e:1:2"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the last hold, the first in line is unreachable: it keeps its place",
            before: &["held c:1 4 7", "waits x:1:2", "waits d:2:3", "waits x:2:4"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | queue x:1:2 x:2:4 | clients d x",
            again: "gone 0",
        },
        Row {
            what: "the last hold, the first in line is known as unreachable",
            before: &["held c:1 4 7", "waits x:1:2", "waits d:2:3", "unreachable x"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | queue x:1:2 | clients d -x",
            again: "gone 0",
        },
        Row {
            what: "the last hold, all waiters are dead or unreachable",
            before: &["held c:1 4 7", "waits x:1:2", "waits z:2:3", "dead z"],
            call: "release",
            reply: "freed 7 0",
            after: "queue x:1:2 z:2:3 | clients x !z",
            again: "gone 0",
        },
        Row {
            what: "one of several",
            before: &["held c:1 4 7", "HSET lock c:1 3"],
            call: "release special=2:7",
            reply: "held 2",
            after: "lock c:1=2 5,7,0,3000/L",
            again: "held 2",
        },
        Row {
            what: "one of several, of a lost hold",
            before: &["held c:1 4 8"],
            call: "release special=2:7",
            reply: "lost",
            after: "lock c:1=1 4,8,0,3000/L",
            again: "lost",
        },
        Row {
            what: "one of several, a late copy",
            before: &["held c:1 6 7"],
            call: "release special=2:7",
            reply: "stale",
            after: "lock c:1=1 6,7,0,3000/L",
            again: "stale",
        },
        Row {
            what: "a later attempt of the owner is not touched",
            before: &["held c:1 6 7"],
            call: "release",
            reply: "gone 0",
            after: "lock c:1=1 6,7,0,3000/L",
            again: "gone 0",
        },
        Row {
            what: "a late copy of the acquire took the lock again, with another token: freed too",
            before: &["held c:1 4 8"],
            call: "release",
            reply: "freed 8 0",
            after: "",
            again: "gone 0",
        },
        Row { what: "the lock is free", before: &[], call: "release", reply: "gone 0", after: "", again: "gone 0" },
        Row {
            what: "another owner has the lock",
            before: &["held d:1 4 7"],
            call: "release",
            reply: "gone 0",
            after: "lock d:1=1 4,7,0,3000/L",
            again: "gone 0",
        },
        Row {
            what: "another owner has the lock, and some wait",
            before: &["held d:1 4 7", "waits e:1:5"],
            call: "release",
            reply: "gone 0",
            after: "lock d:1=1 4,7,0,3000/L | queue e:1:5 | clients e",
            again: "gone 0",
        },
        Row {
            what: "a copy of the acquire may come",
            before: &["held c:1 4 7"],
            call: "release special=+2000~c:1:4/3000/L",
            reply: "freed 7 0",
            after: "tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a copy of the acquire may come, and one waits",
            before: &["held c:1 4 7", "waits d:2:3"],
            call: "release special=+2000~c:1:4/3000/L",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a late copy of the acquire is in the queue, and another may come",
            before: &["held d:1 9 7", "waits c:1:4"],
            call: "release special=+2000~c:1:4/3000/L",
            reply: "gone 0",
            after: "lock d:1=1 9,7,0,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "the lock is found free: passed on",
            before: &["waits d:2:3"],
            call: "release",
            reply: "gone 0",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "gone 0",
        },
    ];
    limit(check(&rows)).await;
}

#[tokio::test]
async fn force_unlock_rows() {
    let rows = [
        Row {
            what: "held",
            before: &["held d:1 2 7"],
            call: "force_unlock",
            reply: "freed 7 0",
            after: "",
            again: "free 0",
        },
        Row { what: "free", before: &[], call: "force_unlock", reply: "free 0", after: "", again: "free 0" },
        // With an expected token it ends only the hold that the operator saw.
        Row {
            what: "held under the expected token",
            before: &["held d:1 2 7"],
            call: "force_unlock expected=7",
            reply: "freed 7 0",
            after: "",
            again: "free 0",
        },
        Row {
            what: "held under another token",
            before: &["held d:1 2 7", "waits e:1:3"],
            call: "force_unlock expected=6",
            reply: "other 7",
            after: "lock d:1=1 2,7,0,3000/L | queue e:1:3 | clients e",
            again: "other 7",
        },
        Row {
            what: "held, only dead ones wait",
            before: &["held d:1 2 7", "waits z:1:2", "dead z"],
            call: "force_unlock",
            reply: "freed 7 0",
            after: "",
            again: "free 0",
        },
        Row {
            what: "held, an unreachable one waits",
            before: &["held d:1 2 7", "waits x:1:2"],
            call: "force_unlock",
            reply: "freed 7 0",
            after: "queue x:1:2 | clients x",
            again: "free 0",
        },
        Row {
            what: "late",
            before: &["held d:1 2 7"],
            call: "force_unlock not_after=+-1",
            reply: "late",
            after: "lock d:1=1 2,7,0,3000/L",
            again: "late",
        },
    ];
    limit(async {
        for mut bench in Bench::each().await {
            bench.check(&rows).await;
            // With a waiter, a second run ends the waiter's hold, so the client never retries this call.
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 2 7").await;
            bench.prepare("waits d:1:5").await;
            assert_eq!(bench.call("force_unlock").await, "freed 7 0");
            assert_eq!(bench.state().await, "lock d:1=1 5,T,T,3000/L");
            assert_eq!(bench.call("force_unlock").await, "freed T 0");
            assert_eq!(bench.state().await, "");
        }
    })
    .await;
}

#[tokio::test]
async fn inspect_rows() {
    let rows = [
        Row {
            what: "free",
            before: &[],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 0 -1",
            after: "",
            again: "inspected  0 0 0 0  -2 0 -1",
        },
        Row {
            what: "held, and some wait",
            before: &[
                "held d:1 2 7",
                "waits c:1:5",
                "waits z:2:6",
                "waits d:2:3",
                "waits x:1:4",
                "dead z",
                "unreachable x",
            ],
            call: "inspect",
            reply: "inspected d:1 1 7 0 0 L * 3 -1 c:1:5 * L d:2:3 * L x:1:4 * L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 z:2:6 d:2:3 x:1:4 | clients c d -x !z",
            again: "inspected d:1 1 7 0 0 L * 3 -1 c:1:5 * L d:2:3 * L x:1:4 * L",
        },
        Row {
            what: "one who left does not count",
            before: &["waits c:1:5", "waits d:2:3", "ZREM deadlines c:1:5"],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 1 -1 d:2:3 * L",
            after: "queue c:1:5 d:2:3 | clients c d | tickets d:2:3",
            again: "inspected  0 0 0 0  -2 1 -1 d:2:3 * L",
        },
        Row {
            what: "a silence is not forgiven to a client without a deadline (seed 3251)",
            before: &[
                "waits c:1:5",
                "waits d:2:3",
                "ZREM deadlines c",
                "ZADD deadlines 0 !spent 9000000000000 !forgiven",
            ],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 1 -1 d:2:3 * L",
            after: "queue c:1:5 d:2:3 | clients d !forgiven",
            again: "inspected  0 0 0 0  -2 1 -1 d:2:3 * L",
        },
        Row {
            what: "since when, and a label with spaces and slashes",
            before: &["HSET lock d:1 2 !grant 2~7~1700000001~42~3000/a~b/9/c:1:1/~", "PEXPIRE lock 9000"],
            call: "inspect",
            reply: "inspected d:1 2 7 1700000001 42 a b/9/c:1:1/  * 0 -1",
            after: "lock d:1=2 2,7,T,3000/a b/9/c:1:1/ ",
            again: "inspected d:1 2 7 1700000001 42 a b/9/c:1:1/  * 0 -1",
        },
        Row {
            what: "a label that looks like a place",
            before: &["waits c:1:5", "waits c:2:6/3000/a/d:1:2/5/"],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 2 -1 c:1:5 * L c:2:6 * a/d:1:2/5/",
            after: "queue c:1:5 c:2:6/3000/a/d:1:2/5/ | clients c",
            again: "inspected  0 0 0 0  -2 2 -1 c:1:5 * L c:2:6 * a/d:1:2/5/",
        },
        Row {
            what: "only whether it is held",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "inspect most=0",
            reply: "inspected d:1 1 7 0 0 L * 1 -1",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "inspected d:1 1 7 0 0 L * 1 -1",
        },
    ];
    limit(check(&rows)).await;
}

/// In a long queue the script reads only the first 256 places. It counts later ones by their tickets.
#[tokio::test]
async fn inspect_counts_the_tickets_of_a_long_queue() {
    limit(async {
        for mut bench in Bench::each().await {
            many(&mut bench, "z", 1, 50).await;
            many(&mut bench, "d", 1, 1000).await;
            bench.prepare("dead z").await;
            let left: String = (1..=100).map(|seq| format!(" d:1:{seq}")).collect();
            bench.command(&format!("ZREM deadlines{left}")).await;
            let reply = bench.call("inspect most=1").await;
            assert_fits("long", "reply", &reply, "inspected  0 0 0 0  -2 900 -1 d:1:101 * L");
        }
    })
    .await;
}

#[tokio::test]
async fn grants_and_revocations_are_published_to_the_client() {
    use futures::StreamExt;
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        let mut subscribed = bench.server().pubsub().await;
        subscribed.subscribe("fairlock:wake:d").await.unwrap();
        bench.prepare("held c:1 4 7").await;
        bench.prepare("waits d:1:5/1234/L").await;
        bench.call("release").await;
        let mut messages = subscribed.on_message();
        let mut next = async || messages.next().await.unwrap().get_payload::<String>().unwrap();
        let grant = next().await;
        let words: Vec<_> = grant.split(' ').collect();
        assert_eq!((words[0], words[2], words[3], words[4]), ("grant", "1234", "d:1:5", "fairlock:{n:n}"));
        bench.call("force_unlock").await;
        assert_eq!(next().await, format!("revoked {} d:1 fairlock:{{n:n}}", words[1]));
    })
    .await;
}

/// The calls that can pass a lock on, each with the state that it needs: `c:1` holds the lock, or the lock is free.
const PASSING_ON: [(&str, &str); 6] = [
    ("held c:1 4 7", "release"),
    ("held c:1 4 7", "release special=+2000~c:1:4/3000/L"),
    ("held c:1 4 7", "leave"),
    ("held c:1 4 7", "force_unlock"),
    ("token 7", "acquire mode=0"),
    ("token 7", "poll waits=0"),
];

/// A grant that lasts for the releaser's `grant_ttl` is too short for a distant waiter.
#[tokio::test]
async fn a_grant_lasts_as_long_as_the_waiter_asked_for() {
    limit(async {
        for mut bench in Bench::each().await {
            for (before, call) in PASSING_ON {
                bench.command("FLUSHALL").await;
                bench.prepare(before).await;
                bench.prepare("waits d:1:5/4321/L").await;
                bench.call(call).await;
                let ttl = bench.ttl("lock").await;
                assert!((3000..=4321).contains(&ttl), "{call}: {ttl}");
            }
        }
    })
    .await;
}

/// P6: otherwise a waiter whose process hangs could get the lock just before its deadline, and cost a whole grant_ttl
/// more.
#[tokio::test]
async fn p6_a_grant_never_outlives_the_deadline_of_its_client() {
    limit(async {
        for mut bench in Bench::each().await {
            for (before, call) in PASSING_ON {
                bench.command("FLUSHALL").await;
                bench.prepare(before).await;
                bench.prepare("waits d:1:5").await;
                let soon = bench.now().await + 800;
                bench.command(&format!("ZADD deadlines {soon} d")).await;
                bench.call(call).await;
                let ttl = bench.ttl("lock").await;
                assert!((1..=800).contains(&ttl), "{call}: {ttl}");
            }
        }
    })
    .await;
}

/// Each script that passes a lock on meets every kind of place that it must pass over.
#[tokio::test]
async fn p3_each_script_serves_the_first_one_that_lives_and_is_reachable() {
    limit(async {
        for mut bench in Bench::each().await {
            for (before, call) in PASSING_ON {
                bench.command("FLUSHALL").await;
                bench.prepare(before).await;
                for step in ["waits z:1:1", "waits x:1:2", "waits z:1:3", "waits e:1:4", "waits e:1:5", "waits d:1:6"] {
                    bench.prepare(step).await;
                }
                bench.prepare("dead z").await;
                bench.command("ZREM deadlines e:1:4").await;
                bench.call(call).await;
                let state = bench.state().await;
                let expected = "lock e:1=1 5,T,T,3000/L | queue x:1:2 z:1:3 e:1:4 d:1:6 | clients d e x !z | tickets d:1:6 x:1:2 z:1:3";
                assert!(state.starts_with(expected), "{call}: {state}");
            }
        }
    })
    .await;
}

/// The waiter then finds its grant by a poll.
#[tokio::test]
async fn a_client_that_may_not_publish_passes_the_lock_on() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        bench.command("ACL SETUSER mute on >secret allkeys allchannels +@all -publish").await;
        bench.command("AUTH mute secret").await;
        for (before, call) in PASSING_ON {
            bench.command("FLUSHALL").await;
            bench.prepare(before).await;
            bench.prepare("waits d:1:5").await;
            bench.prepare("waits e:1:6").await;
            bench.call(call).await;
            let state = bench.state().await;
            assert!(state.starts_with("lock d:1=1 5,T,T,3000/L | queue e:1:6 | clients d e"), "{call}: {state}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_client_is_served_after_it_is_heard() {
    limit(async {
        for heard in ["poll caller=x", "acquire owner=x:1 seq=9", "acquire owner=x:1 seq=2"] {
            for mut bench in Bench::each().await {
                for step in ["held c:1 4 7", "waits x:1:2", "waits d:1:3", "waits d:1:4"] {
                    bench.prepare(step).await;
                }
                bench.call("release").await;
                let state = bench.state().await;
                assert_eq!(state, "lock d:1=1 3,T,T,3000/L | queue x:1:2 d:1:4 | clients d x", "{heard}");
                bench.call("force_unlock").await;
                assert!(bench.state().await.starts_with("lock d:1=1 4,T,T,3000/L | queue x:1:2"), "{heard}");
                bench.call(heard).await;
                assert!(bench.state().await.contains("clients d x"), "{heard}");
                // The poll comes from `x` itself, so `x` counts as reachable.
                bench.command("DEL lock").await;
                bench.call("poll caller=x").await;
                assert!(bench.state().await.starts_with("lock x:1=1 2,T,T,3000/L"), "{heard}");
            }
        }
    })
    .await;
}

/// Adds `count` places of a client, from seq `first` on.
async fn many(bench: &mut Bench, client: &str, first: i64, count: i64) {
    for from in (first..first + count).step_by(1000) {
        let seqs: Vec<i64> = (from..(first + count).min(from + 1000)).collect();
        let places: String = seqs.iter().map(|seq| format!(" {client}:1:{seq}/3000/L")).collect();
        bench.command(&format!("RPUSH queue{places}")).await;
        let tickets: String = seqs.iter().map(|seq| format!(" inf {client}:1:{seq}")).collect();
        bench.command(&format!("ZADD deadlines{tickets}")).await;
    }
    let soon = bench.now().await + 60_000;
    bench.command(&format!("ZADD deadlines {soon} {client}")).await;
    bench.command("PEXPIRE queue 90000").await;
    bench.command("PEXPIRE deadlines 90000").await;
}

/// The same for a semaphore.
async fn many_shared(bench: &mut Bench, client: &str, count: i64) {
    many(bench, client, 1, count).await;
    bench.command("DEL queue").await;
    for from in (1..=count).step_by(1000) {
        let places: String = (from..from + 1000).map(|seq| format!(" {client}:1:{seq}/1,1,3000/L")).collect();
        bench.command(&format!("RPUSH queue{places}")).await;
    }
    bench.command("PEXPIRE queue 90000").await;
}

/// P6: the script does not look again at tickets and places that it has passed over. Each pair once walked past all of
/// them, in 33 calls for a lock and as many for its release.
#[tokio::test]
async fn p6_a_newcomer_beside_unreachable_places_walks_past_them_once() {
    limit(async {
        for (acquire, release, poll) in [
            ("acquire mode=0", "release", "poll waits=0"),
            ("shared/acquire mode=0", "shared/release", "shared/poll waits=0"),
        ] {
            for mut bench in Bench::each().await {
                if acquire.starts_with("shared") {
                    many_shared(&mut bench, "x", 5000).await;
                } else {
                    many(&mut bench, "x", 1, 5000).await;
                }
                bench.prepare("unreachable x").await;
                for pair in 0..3 {
                    let (mut calls, seq) = (1, 10 * pair);
                    while !bench.call(&format!("{acquire} owner=c:1 seq={}", seq + 1)).await.starts_with("held") {
                        calls += 1;
                        assert!(calls < 100, "{acquire}: it is free");
                    }
                    let mut reply = bench.call(&format!("{release} owner=c:1 seq={}", seq + 2)).await;
                    while reply.ends_with(" 1") || reply.starts_with("polled 1") || reply.starts_with("shared 1") {
                        reply = bench.call(poll).await;
                        calls += 1;
                    }
                    assert!(pair == 0 || calls == 1, "{acquire}: {calls} calls");
                }
            }
        }
    })
    .await;
}

/// The commands that the real server has run, including those inside scripts.
async fn commands_run(bench: &mut Bench) -> i64 {
    let info = String::from_utf8(match bench.command("INFO commandstats").await {
        Value::BulkString(text) => text,
        Value::VerbatimString { text, .. } => text.into_bytes(),
        other => panic!("{other:?}"),
    });
    let info = info.unwrap();
    let calls = info.lines().filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<i64>().ok());
    calls.sum()
}

/// P6: a call passes over some 1,150 places of one dead or unreachable client, and clears 50 dead ones. No call looks
/// again at places that an earlier one passed over.
#[tokio::test]
async fn p6_a_hundred_thousand_places_take_ninety_bounded_calls() {
    limit(async {
        for kind in ["dead", "unreachable", "silent"] {
            for mut bench in Bench::each().await {
                let is_real = bench.is_real();
                many(&mut bench, "x", 1, 100_000).await;
                if kind != "silent" {
                    bench.prepare(&format!("{kind} x")).await;
                }
                bench.prepare("waits d:1:5").await;
                bench.command("PEXPIRE queue 90000").await;
                bench.command("PEXPIRE deadlines 90000").await;
                let mut calls = 0;
                loop {
                    let before = if is_real { commands_run(&mut bench).await } else { 0 };
                    let reply = bench.call("poll waits=0").await;
                    if is_real {
                        // One for each block of places, and a few more.
                        let run = commands_run(&mut bench).await - before;
                        assert!(run < 200, "{kind}: {run} commands in one call");
                    }
                    calls += 1;
                    assert!(calls <= 90, "{kind}: {calls} calls");
                    if reply.starts_with("polled 0") {
                        assert!(reply.contains(" d:1 5 T T "), "{kind}: {reply}");
                        break;
                    }
                    assert!(reply.starts_with("polled 1"), "{kind}: {reply}");
                }
                let places = bench.number("LLEN queue").await;
                if kind == "dead" {
                    let cleared = 100_000 - places;
                    assert!(cleared > 0 && cleared <= 52 * calls, "{cleared} cleared in {calls} calls");
                } else {
                    assert_eq!(places, 100_000, "{kind}");
                }
                // The next hand-over looks at few of them.
                many(&mut bench, "e", 1, 1).await;
                let before = if is_real { commands_run(&mut bench).await } else { 0 };
                bench.call("release owner=d:1 seq=6").await;
                assert!(bench.lock_state().await.starts_with("lock e:1=1 1,"), "{kind}");
                if is_real {
                    let run = commands_run(&mut bench).await - before;
                    assert!(run < 50, "{kind}: {run} commands in a hand-over");
                }
            }
        }
    })
    .await;
}

/// `acquire` once took a free lock although a live waiter was queued, after more places than one call looks at.
#[tokio::test]
async fn p3_nobody_overtakes_beyond_the_bound_of_one_call() {
    limit(async {
        for mut bench in Bench::each().await {
            many(&mut bench, "x", 1, 2040).await;
            bench.prepare("waits e:1:9999").await;
            assert_eq!(bench.call("acquire mode=0").await, "busy 1");
            assert_eq!(bench.lock_state().await, "");
            // The next call goes on after those places, and serves the waiter.
            assert_fits("queued", "reply", &bench.call("acquire max_waiters=5000").await, "queued T * 0 0");
            assert!(bench.lock_state().await.starts_with("lock e:1=1 9999,"));
        }
    })
    .await;
}

/// `!skip` counts places at the head that no script needs to look at. The count ends if one of their clients sends a
/// request or leaves.
#[tokio::test]
async fn the_count_of_places_to_skip_ends_when_one_of_their_clients_is_heard_or_leaves() {
    limit(async {
        for (call, count) in [
            ("poll caller=x", None),
            ("poll caller=y", None),
            ("poll caller=d", Some("40")),
            // A client whose places the count does not include.
            ("poll caller=e", Some("40")),
            ("acquire owner=x:1 seq=90", None),
            ("acquire owner=x:1 seq=3", None),
            ("acquire owner=d:1 seq=90", Some("40")),
            ("leave owner=x:1 seq=7", None),
            ("leave owner=d:1 seq=51", Some("40")),
            // This place does not exist.
            ("leave owner=x:1 seq=99", Some("40")),
        ] {
            for mut bench in Bench::each().await {
                bench.prepare("held c:1 4 7").await;
                many(&mut bench, "x", 1, 20).await;
                many(&mut bench, "y", 21, 20).await;
                for step in ["waits d:1:50", "waits d:1:51", "waits d:1:52"] {
                    bench.prepare(step).await;
                }
                bench.call("release").await;
                assert!(bench.state().await.contains("clients d -x -y | skip 40"), "{}", bench.state().await);
                bench.call(call).await;
                let state = bench.state().await;
                let skip = state.split("skip ").nth(1);
                assert_eq!(skip, count, "{call}: {state}");
                assert!(!state.contains("tickets"), "{call}: {state}");
            }
        }
    })
    .await;
}

/// The shortest list with a count. The count must not hide waiters that come after a leave.
#[tokio::test]
async fn a_leave_from_the_shortest_list_with_a_count_ends_it() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            many(&mut bench, "x", 1, 32).await;
            bench.prepare("waits d:1:50").await;
            bench.call("release").await;
            assert_eq!((bench.number("LLEN queue").await, bench.skip().await), (32, 32));
            bench.call("leave owner=x:1 seq=7").await;
            for seq in 51..54 {
                bench.call(&format!("acquire owner=d:{seq} seq={seq}")).await;
            }
            bench.call("force_unlock").await;
            assert!(bench.lock_state().await.starts_with("lock d:51=1 51,"), "{}", bench.lock_state().await);
        }
    })
    .await;
}

/// The count includes all places, and then some of them die. With too few left, the script must remove it, or it hides
/// later places.
#[tokio::test]
async fn a_count_of_all_places_ends_when_too_few_of_them_are_left() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            many(&mut bench, "x", 1, 20).await;
            many(&mut bench, "y", 21, 20).await;
            bench.call("release").await;
            assert_eq!((bench.number("LLEN queue").await, bench.skip().await), (40, 40));
            bench.prepare("dead x").await;
            bench.call("force_unlock").await;
            assert_eq!((bench.number("LLEN queue").await, bench.skip().await), (20, 0));
        }
    })
    .await;
}

/// With fewer places, a count would save too little.
#[tokio::test]
async fn fewer_than_32_places_are_not_noted() {
    limit(async {
        for (passed, skip) in [(31, ""), (32, " | skip 32")] {
            for mut bench in Bench::each().await {
                bench.prepare("held c:1 4 7").await;
                many(&mut bench, "x", 1, passed).await;
                many(&mut bench, "d", 50, 2).await;
                bench.call("release").await;
                let mark = if skip.is_empty() { "" } else { "-" };
                assert!(bench.state().await.ends_with(&format!("clients d {mark}x{skip}")), "{passed}");
            }
        }
    })
    .await;
}

/// Clients of a random queue die, become unreachable, send requests and leave. After each step the list and the sorted
/// set have the same tickets, the skipped places include none that counts, and the first that counts is served.
#[tokio::test]
async fn random_queues_serve_the_first_one_that_counts() {
    limit(async {
        for seed in 0..6 {
            let mut random = Random::new(seed);
            let mut bench = Bench::one().await;
            let mut seq = 0;
            let mut served = 0;
            for step in 0..700 {
                let client = ["c", "d", "e", "x", "y", "z"][random.below(6) as usize];
                let before = bench.queue().await;
                let call = match random.below(20) {
                    0..=9 => {
                        seq += 1;
                        format!("acquire owner={client}:1 seq={seq} max_waiters=1000")
                    }
                    10 => format!("poll caller={client}"),
                    11 => {
                        bench.prepare(&format!("dead {client}")).await;
                        continue;
                    }
                    12..=14 if !before.is_empty() => {
                        let (ticket, _) = &before[random.below(before.len() as u64) as usize];
                        let (owner, seq) = ticket.rsplit_once(':').unwrap();
                        format!("leave owner={owner} seq={seq}")
                    }
                    15..=17 => "force_unlock".into(),
                    _ => match bench.holder().await {
                        Some(owner) => format!("release owner={owner} seq=9999"),
                        None => "poll waits=0".into(),
                    },
                };
                let holder = bench.holder().await;
                bench.call(&call).await;
                let what = format!("seed {seed}, step {step}: {call}");
                let state = bench.state().await;
                assert!(!state.contains("tickets"), "{what}: {state}");
                let after = bench.queue().await;
                let skip = bench.skip().await;
                let hidden: Vec<_> = after.iter().take(skip).filter(|(_, counts)| *counts).collect();
                assert!(skip <= after.len() && hidden.is_empty(), "{what}: skip {skip}, hidden {hidden:?}: {state}");
                let now_holds = bench.holder().await;
                if call.starts_with("force") || call.starts_with("release") {
                    let gone = |ticket: &str| !after.iter().any(|(other, _)| other == ticket);
                    let caller = if call.starts_with("force") { "c" } else { client_of(holder.as_deref().unwrap()) };
                    let reachable = |ticket: &str| ["d", "e", caller].contains(&client_of(ticket));
                    let first = before.iter().find(|(ticket, counts)| *counts && reachable(ticket));
                    match first {
                        Some((ticket, _)) => {
                            served += 1;
                            assert!(gone(ticket), "{what}: {ticket} was not served: {state}");
                            assert_eq!(now_holds.as_deref(), ticket.rsplit_once(':').map(|(owner, _)| owner), "{what}");
                        }
                        None => assert_eq!(now_holds, None, "{what}: {state}"),
                    }
                }
            }
            assert!(served > 20, "{served}");
        }
    })
    .await;
}

/// A leave takes out its own place, at any position, and no other.
#[tokio::test]
async fn leaving_takes_out_exactly_one_place() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            for waiter in 0..200 {
                let client = ["c", "d", "e"][waiter % 3];
                bench.call(&format!("acquire owner={client}:{waiter} seq={waiter} max_waiters=500")).await;
            }
            // Longer than a busy machine needs for this test.
            for kind in ["lock", "queue", "deadlines"] {
                bench.prepare(&format!("PEXPIRE {kind} 600000")).await;
            }
            let mut expected: Vec<String> = bench.queue().await.into_iter().map(|(ticket, _)| ticket).collect();
            let mut random = Random::new(1);
            while !expected.is_empty() {
                let ticket = expected.remove(random.below(expected.len() as u64) as usize);
                let (owner, seq) = ticket.rsplit_once(':').unwrap();
                for _ in 0..2 {
                    assert_eq!(bench.call(&format!("leave owner={owner} seq={seq}")).await, "gone 0");
                }
                let left: Vec<String> = bench.queue().await.into_iter().map(|(ticket, _)| ticket).collect();
                assert_eq!(left, expected, "after {ticket}");
                assert!(!bench.state().await.contains("tickets"), "after {ticket}");
            }
            assert_eq!(bench.keys().await, [key("lock"), key("tokens")]);
        }
    })
    .await;
}

/// From a list of more than 8,192 places, a leave takes out only the last place. Others stay until a script passes over
/// them.
#[tokio::test]
async fn a_place_in_a_very_long_list_stays_when_its_ticket_leaves() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            many(&mut bench, "d", 1, 8194).await;
            for (seq, places) in [(8194, 8193), (2, 8193), (2, 8193), (8193, 8192), (1, 8191), (3, 8190)] {
                bench.call(&format!("leave owner=d:1 seq={seq}")).await;
                assert_eq!(bench.number("LLEN queue").await, places, "{seq}");
            }
            // The release passes over place 2.
            bench.call("release owner=c:9").await;
            assert!(bench.lock_state().await.starts_with("lock d:1=1 4,"));
            assert_eq!(bench.number("LLEN queue").await, 8188);
        }
    })
    .await;
}

/// max_waiters counts tickets exactly. The list is at most twice as long, and dead ones make room.
#[tokio::test]
async fn max_waiters_is_exact_and_the_list_is_bounded() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            for seq in 1..=10 {
                let reply = bench.call(&format!("acquire owner=d:1 seq={seq} max_waiters=10")).await;
                assert!(reply.starts_with("queued"), "{seq}: {reply}");
            }
            let before = bench.dump().await;
            assert_eq!(bench.call("acquire owner=e:1 seq=99 max_waiters=10").await, "full 10 0");
            assert!(bench.dump().await == before);
            bench.call("leave owner=d:1 seq=4").await;
            assert!(bench.call("acquire owner=e:1 seq=99 max_waiters=10").await.starts_with("queued"));
            assert_eq!(bench.call("acquire owner=e:1 seq=98 max_waiters=10").await, "full 10 0");
            // A client dies, and all of its places make room at once.
            bench.prepare("dead d").await;
            for seq in 100..109 {
                let reply = bench.call(&format!("acquire owner=e:1 seq={seq} max_waiters=10")).await;
                assert!(reply.starts_with("queued"), "{seq}: {reply}");
            }
            assert_eq!(bench.call("acquire owner=e:1 seq=110 max_waiters=10").await, "full 10 0");
            assert_eq!(bench.state().await.split(" | ").nth(2), Some("clients !d e"));
        }
    })
    .await;
}

/// One call takes out at most 50 dead places, and reports that another call may find more.
#[tokio::test]
async fn a_full_queue_is_swept_in_bounded_steps() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            many(&mut bench, "z", 1, 1300).await;
            bench.prepare("dead z").await;
            let call = "acquire owner=d:1 seq=1 max_waiters=1240";
            assert_eq!(bench.call(call).await, "full 1250 1");
            assert!(bench.call(call).await.starts_with("queued"));
            assert_eq!(bench.number("LLEN queue").await, 1300 - 2 * 50 + 1);
        }
    })
    .await;
}

/// Places without tickets do not count as waiters, but a list of more than 2 x max_waiters is too long.
#[tokio::test]
async fn a_list_of_places_without_tickets_is_bounded() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            many(&mut bench, "z", 1, 600).await;
            let left: String = (1..=600).map(|seq| format!(" z:1:{seq}")).collect();
            bench.command(&format!("ZREM deadlines{left}")).await;
            let call = "acquire owner=d:1 seq=1 max_waiters=260";
            assert_eq!(bench.call(call).await, "full 0 1");
            assert!(bench.call(call).await.starts_with("queued"));
            assert_eq!(bench.number("LLEN queue").await, 600 - 2 * 50 + 1);
        }
    })
    .await;
}

/// In the middle of a long list a search would cost too much: the tickets of dead waiters make room, and their places
/// stay.
#[tokio::test]
async fn the_dead_in_the_middle_of_a_long_queue_make_room() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 4 7").await;
            for (client, from, count) in [("d", 1, 8400), ("z", 10_000, 4000), ("e", 20_000, 8400)] {
                many(&mut bench, client, from, count).await;
            }
            bench.prepare("dead z").await;
            // The clock decides which part a call looks at.
            let mut calls = 0;
            while !bench.call("acquire owner=c:1 seq=1 max_waiters=20700").await.starts_with("queued") {
                calls += 1;
                assert!(calls < 2000, "no room");
            }
            let tickets = bench.number("ZCOUNT deadlines inf inf").await;
            assert!(tickets <= 20_700, "{tickets}");
            assert_eq!(bench.number("LLEN queue").await, 20_801);
        }
    })
    .await;
}

/// Making room takes places out of the `!skip` count and keeps the remaining count. Otherwise, after each newcomer to a
/// full queue, the next call would walk past all of them again.
#[tokio::test]
async fn making_room_keeps_the_count_of_places_to_skip() {
    limit(async {
        for (dead, left) in [("", 40), ("z", 30)] {
            for mut bench in Bench::each().await {
                bench.prepare("held c:1 4 7").await;
                many(&mut bench, "z", 1, 10).await;
                many(&mut bench, "x", 11, 30).await;
                many(&mut bench, "d", 50, 20).await;
                bench.call("release").await;
                assert_eq!(bench.skip().await, 40);
                if dead.is_empty() {
                    bench.command("ZREM deadlines d:1:60 d:1:61").await;
                } else {
                    bench.prepare("dead z").await;
                }
                assert!(bench.call("acquire owner=e:1 seq=90 max_waiters=58").await.starts_with("queued"));
                assert_eq!(bench.skip().await, left, "{}", bench.state().await);
            }
        }
    })
    .await;
}

/// At the head they all go at once. Otherwise each hand-over would check their tickets again.
#[tokio::test]
async fn the_places_of_those_who_have_left_go_at_the_head() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            many(&mut bench, "d", 1, 200).await;
            let left: String = (1..=150).map(|seq| format!(" d:1:{seq}")).collect();
            bench.command(&format!("ZREM deadlines{left}")).await;
            bench.call("release").await;
            assert!(bench.lock_state().await.starts_with("lock d:1=1 151,"), "{}", bench.lock_state().await);
            assert_eq!(bench.number("LLEN queue").await, 200 - 151);
        }
    })
    .await;
}

/// Far from both ends the winner's place stays, because a search would cost too much. A later call passes over it.
#[tokio::test]
async fn a_winner_in_the_middle_of_a_long_queue_leaves_its_place() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            many(&mut bench, "x", 1, 8400).await;
            many(&mut bench, "d", 10_000, 2).await;
            many(&mut bench, "e", 20_000, 8400).await;
            bench.call("release").await;
            while bench.holder().await.is_none() {
                bench.call("poll waits=0").await;
            }
            for seq in [10_000, 10_001, 20_000] {
                let state = bench.lock_state().await;
                assert!(state.contains(&format!("=1 {seq},")), "{seq}: {state}");
                bench.call("force_unlock").await;
            }
            assert_eq!(bench.number("LLEN queue").await, 8400 + 2 + 8400);
        }
    })
    .await;
}

/// Waiters come and die during a long hold. Neither the list nor the sorted set grows with them.
#[tokio::test]
async fn the_keys_of_a_queue_stay_in_proportion() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:9 1 7").await;
            for generation in 0..40 {
                for waiter in 0..50 {
                    let seq = generation * 100 + waiter;
                    let call = format!("acquire owner=g{generation}:{waiter} seq={seq} max_waiters=100");
                    let reply = bench.call(&call).await;
                    assert!(reply.starts_with("queued"), "{call}: {reply}");
                }
                bench.prepare(&format!("dead g{generation}")).await;
                let (places, members) = (bench.number("LLEN queue").await, bench.number("ZCARD deadlines").await);
                assert!(places <= 200, "generation {generation}: {places} places");
                assert!(members <= 2 * 200 + 64 + 2, "generation {generation}: {members} members");
            }
            // Now with clients that have one waiter each and leave.
            bench.command("DEL queue").await;
            bench.command("DEL deadlines").await;
            bench.call("acquire owner=d:1 seq=1").await;
            for client in 0..1000 {
                bench.call(&format!("acquire owner=h{client}:1 seq=5")).await;
                bench.call(&format!("leave owner=h{client}:1 seq=5")).await;
                bench.prepare(&format!("dead h{client}")).await;
            }
            let members = bench.number("ZCARD deadlines").await;
            assert!(members < 100, "{members} members for one who waits");
        }
    })
    .await;
}

/// The reply to a dead client shows that the server gave it up when it took out its places.
#[tokio::test]
async fn a_client_whose_places_were_taken_is_unknown() {
    limit(async {
        for take in ["poll waits=0", "acquire owner=e:1 seq=90 max_waiters=2", "release owner=c:9"] {
            for mut bench in Bench::each().await {
                for step in ["held c:9 4 7", "waits z:1:1", "waits d:1:2", "dead z"] {
                    bench.prepare(step).await;
                }
                if take.starts_with("poll") {
                    bench.command("DEL lock").await;
                }
                bench.call(take).await;
                assert!(!bench.state().await.contains("z:1:1"), "{take}: {}", bench.state().await);
                bench.prepare("waits d:1:9").await;
                assert_fits(
                    take,
                    "reply",
                    &bench.call("poll caller=z tickets=z:1:1").await,
                    "polled 0 0 * 0 * * * * * 1 1 * * * * *",
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_tombstone_lives_past_the_last_copy_and_never_gets_shorter() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.call("leave copies_until=+5000").await;
            let ttl = bench.ttl("tombstone:c:1").await;
            assert!((5000..=6000).contains(&ttl), "{ttl}");
            // Once, a later leave with an earlier `copies_until` shortened the tombstone.
            bench.call("leave copies_until=+100").await;
            assert!(bench.ttl("tombstone:c:1").await > 4000);
            bench.call("release special=+100~c:1:5/3000/L").await;
            assert!(bench.ttl("tombstone:c:1").await > 4000);
        }
    })
    .await;
}

/// With clients of different settings the list once expired before the sorted set. A waiter whose ticket was only in
/// the sorted set got the answer "queued", but nothing served it.
#[tokio::test]
async fn the_keys_of_a_queue_expire_together() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            for call in [
                "acquire owner=d:1 seq=5 waiter_ttl=60000",
                "acquire owner=e:1 seq=7 waiter_ttl=5000",
                "leave owner=d:1 seq=5",
                "poll caller=e waiter_ttl=5000",
                "poll caller=d waiter_ttl=60000",
                "DEL deadlines",
                "acquire owner=e:2 seq=8 waiter_ttl=5000",
                "DEL deadlines",
                "poll caller=e waiter_ttl=5000",
                "DEL queue",
                "acquire owner=d:1 seq=9 waiter_ttl=60000",
            ] {
                if call.starts_with("DEL") {
                    bench.command(call).await;
                    continue;
                }
                bench.call(call).await;
                let (list, set) = (bench.ttl("queue").await, bench.ttl("deadlines").await);
                assert!((list - set).abs() < 2000 && list > 60_000, "{call}: {list} and {set}");
            }
        }
    })
    .await;
}

/// P10: if all clients of a queue are silent its keys expire, but not while the server may be stalled for a minute.
#[tokio::test]
async fn a_poll_keeps_the_queue_for_more_than_a_minute() {
    limit(async {
        for mut bench in Bench::each().await {
            for step in ["held d:1 4 7", "waits c:1:5", "PEXPIRE queue 8000", "PEXPIRE deadlines 8000"] {
                bench.prepare(step).await;
            }
            bench.call("poll waiter_ttl=6000").await;
            for kind in ["queue", "deadlines"] {
                let ttl = bench.ttl(kind).await;
                assert!((89_000..=90_000).contains(&ttl), "{kind}: {ttl}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_wrong_type_names_its_key_and_changes_nothing() {
    let calls = [
        "acquire",
        "acquire mode=0",
        "acquire mode=1:7",
        "poll tickets=c:1:5",
        "leave copies_until=+2000",
        "renew token=7",
        "raise token=7 floor=9",
        "force_unlock",
        "release",
        "release special=+2000~c:1:5/3000/L",
        "inspect",
    ];
    limit(async {
        let mut refused = 0;
        for mut bench in Bench::each().await {
            for call in calls {
                let verb = call.split(' ').next().unwrap();
                for (kind, holder) in KINDS.iter().flat_map(|kind| [(kind, "c:1"), (kind, "d:1"), (kind, "nobody")]) {
                    if !shape(verb).0.contains(kind) || verb == "renew" && *kind == "tokens" {
                        continue;
                    }
                    let what = format!("{call} with a foreign {kind}, held by {holder}");
                    bench.command("FLUSHALL").await;
                    for step in [&format!("held {holder} 4 7"), "waits c:1:5", "waits d:2:3"] {
                        bench.prepare(step).await;
                    }
                    if holder == "nobody" {
                        bench.command("DEL lock").await;
                    }
                    bench.command(&format!("DEL {kind}")).await;
                    bench.prepare(&format!("foreign {kind}")).await;
                    // Redis does not roll back, so a script must read every key before its first write.
                    let before = bench.dump().await;
                    let foreign =
                        |dump: &[(String, Vec<String>)]| dump.iter().find(|(name, _)| *name == key(kind)).cloned();
                    match bench.try_call(call).await {
                        // The script did not need that key.
                        Ok(_) => assert_eq!(foreign(&bench.dump().await), foreign(&before), "{what}"),
                        Err(error) => {
                            refused += 1;
                            assert_eq!(error.code, "WRONGTYPE", "{what}: {error:?}");
                            assert!(error.text.contains(&format!("'{}'", key(kind))), "{what}: {error:?}");
                            assert_eq!(bench.dump().await, before, "{what}: something was changed");
                        }
                    }
                }
            }
        }
        assert!(refused > 100, "{refused}");
    })
    .await;
}

/// Two versions of the library never damage each other's locks, and no script changes foreign data.
#[tokio::test]
async fn a_newer_format_and_foreign_data_are_refused_by_name_and_not_changed() {
    const HASH: [&str; 6] = ["acquire", "acquire mode=0", "poll caller=d", "force_unlock", "inspect", "poll waits=0"];
    const LIST: [&str; 7] = ["acquire", "acquire mode=0", "poll waits=0", "force_unlock", "release", "leave", "poll"];
    limit(async {
        for mut bench in Bench::each().await {
            for (steps, calls, kind, text) in [
                (
                    ["HSET lock d:1 1 !format 9 !state x"].as_slice(),
                    HASH.as_slice(),
                    "lock",
                    "format 9, and this client knows format 2",
                ),
                (&["HSET lock name value other 5"], &HASH, "lock", "does not hold a lock of fairlock"),
                (
                    &["RPUSH queue !9/d:1:5/x", "ZADD deadlines 1 d inf d:1:5"],
                    &LIST,
                    "queue",
                    "a place of format 9, and this client knows format 2",
                ),
                (&["RPUSH queue hello", "ZADD deadlines 1 d"], &LIST, "queue", "does not hold a queue of fairlock"),
                (&["RPUSH queue a:b:c/d", "ZADD deadlines 1 d"], &LIST, "queue", "does not hold a queue of fairlock"),
            ] {
                for holder in ["", "held c:1 4 7"] {
                    for call in calls {
                        bench.command("FLUSHALL").await;
                        for step in steps {
                            bench.command(step).await;
                            bench.command("SET tokens 7").await;
                        }
                        if !holder.is_empty() {
                            // Neither a poll nor a newcomer looks at the queue of a held lock.
                            if kind == "lock" || call.starts_with("poll") || call.starts_with("acquire") {
                                continue;
                            }
                            bench.prepare(holder).await;
                        }
                        let what = format!("{call}, {steps:?}, {holder}");
                        let before = bench.dump().await;
                        let error =
                            bench.try_call(call).await.map(|reply| format!("{what}: {reply}")).expect_err("refused");
                        assert!(error.text.contains(text), "{what}: {error:?}");
                        assert!(error.text.contains(&format!("'{}'", key(kind))), "{what}: {error:?}");
                        assert_eq!(bench.dump().await, before, "{what}");
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_foreign_hash_is_not_ended_by_who_never_held_it() {
    limit(async {
        for mut bench in Bench::each().await {
            for call in ["release", "release special=1:7", "leave", "renew token=7", "acquire mode=1:7"] {
                for waits in [false, true] {
                    bench.command("FLUSHALL").await;
                    if waits {
                        bench.prepare("waits d:2:3").await;
                    }
                    bench.command("HSET lock name value !format 9").await;
                    let before = bench.dump().await;
                    let _ = bench.try_call(call).await;
                    assert_eq!(bench.dump().await, before, "{call}, somebody waits: {waits}");
                }
            }
        }
    })
    .await;
}

/// A hand-over takes out the last owner before it writes the next one. A refusal in between leaves a lock without an
/// owner.
#[tokio::test]
async fn a_lock_without_an_owner_is_passed_on() {
    limit(async {
        for mut bench in Bench::each().await {
            for call in ["poll caller=d tickets=d:2:3", "release", "force_unlock"] {
                bench.command("FLUSHALL").await;
                bench.prepare("held c:1 4 7").await;
                bench.prepare("waits d:2:3").await;
                bench.command("HDEL lock c:1").await;
                bench.call(call).await;
                let lock = bench.dump().await.swap_remove(0).1;
                assert!(lock.contains(&"d:2=1".to_owned()), "{call}: {lock:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_no_number_is_refused_and_changes_nothing() {
    limit(async {
        for mut bench in Bench::each().await {
            for damage in ["SET tokens nonsense", "SET tokens 99999999999999999999", "SET tokens -x"] {
                for (before, call) in PASSING_ON {
                    bench.command("FLUSHALL").await;
                    bench.prepare(before).await;
                    bench.prepare("waits d:2:3").await;
                    bench.command(damage).await;
                    let before = bench.dump().await;
                    let error = bench.try_call(call).await.expect_err(call);
                    assert!(
                        error.text.contains(&format!("the key '{}'", key("tokens"))),
                        "{damage}, {call}: {error:?}"
                    );
                    assert_eq!(bench.dump().await, before, "{damage}, {call}");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn p2_the_next_token_is_above_the_clock_and_the_stored_one() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("token 9007199254740000").await;
            bench.call("acquire").await;
            assert_eq!(bench.number("GET tokens").await, 9_007_199_254_740_001);
            bench.command("FLUSHALL").await;
            let clock = 1000 * bench.now().await;
            bench.call("acquire").await;
            let fresh = bench.number("GET tokens").await;
            assert!((clock..clock + 5_000_000).contains(&fresh));
        }
    })
    .await;
}

/// The stored token can expire during a long hold. The hash remembers the token as well.
#[tokio::test]
async fn p2_the_token_of_the_hold_counts_when_the_stored_one_is_gone() {
    limit(async {
        for mut bench in Bench::each().await {
            for (before, call) in &PASSING_ON[..4] {
                for stored in ["DEL tokens", "SET tokens 9007199254730000", "SET tokens 95"] {
                    bench.command("FLUSHALL").await;
                    bench.prepare(&before.replace(" 7", " 9007199254740000")).await;
                    bench.prepare("waits d:1:5").await;
                    bench.command(stored).await;
                    bench.call(call).await;
                    let token = bench.lock_token().await.unwrap();
                    assert_eq!(token, "9007199254740001", "{call}, {stored}");
                    assert_eq!(bench.number("GET tokens").await.to_string(), token, "{call}, {stored}");
                }
            }
            // An owner asks for a first hold again.
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 4 9007199254740000").await;
            bench.command("DEL tokens").await;
            assert_eq!(bench.raw_call("acquire").await.unwrap()[1], "9007199254740001");
        }
    })
    .await;
}

/// R16: it moves a hold from one owner to another under the same token, and gives nothing else.
#[tokio::test]
async fn give_rows() {
    let give = |what, before, call, reply, after| Row { what, before, call, reply, after, again: reply };
    const DETACH: &str = "give from=c:1 seq=5 token=7 to=h:0 lease=10000";
    const ATTACH: &str = "give from=h:0 seq=3 token=7 to=d:1 attempt=3 lease=10000 terms=3000/M";
    const LATE: &str = "give from=c:1 seq=5 token=7 to=h:0 lease=10000 not_after=+-9000";
    let rows = [
        give("nobody holds it", &[][..], DETACH, "lost", ""),
        // P1: if the script refused it as late, a guard would go on without a hold.
        give("nobody does any more, and it is late", &[], LATE, "lost", ""),
        give("another owner does", &["held d:1 4 7"], DETACH, "lost", "lock d:1=1 4,7,0,3000/L"),
        give("under another token", &["held c:1 4 8"], DETACH, "lost", "lock c:1=1 4,8,0,3000/L"),
        give("it was attached since", &["held c:1 6 7"], DETACH, "stale", "lock c:1=1 6,7,0,3000/L"),
        give(
            "its handle was released",
            &["held c:1 4 7", "tombstone h:0 1"],
            DETACH,
            "left",
            "lock c:1=1 4,7,0,3000/L | tombstone h:0=1",
        ),
        give(
            "who has left",
            &["held h:0 1 7", "tombstone d:1 3"],
            ATTACH,
            "left",
            "lock h:0=1 1,7,0,3000/L | tombstone d:1=3",
        ),
    ];
    // The rest of the lease differs the second time.
    let given: [(&[&str], &str, &str); 5] = [
        (&["held c:1 4 7"], DETACH, "lock h:0=1 1,7,0,3000/L"),
        (&["held c:1 4 7", "HSET lock c:1 3"], DETACH, "lock h:0=1 1,7,0,3000/L"),
        (&["held h:0 1 7"], ATTACH, "lock d:1=1 3,7,0,3000/M"),
        (&["held h:0 1 7", "tombstone d:1 2"], ATTACH, "lock d:1=1 3,7,0,3000/M | tombstone d:1=2"),
        // Late, but an earlier copy was served: a refusal must mean that none was.
        (&["held h:0 1 7"], LATE, "lock h:0=1 1,7,0,3000/L"),
    ];
    limit(async {
        for mut bench in Bench::each().await {
            bench.check(&rows).await;
            for (before, call, after) in given {
                bench.command("FLUSHALL").await;
                for step in before {
                    bench.prepare(step).await;
                }
                for _ in 0..2 {
                    assert!(bench.call(call).await.starts_with("given "), "{before:?}: {call}");
                    assert_eq!(bench.state().await, after, "{before:?}: {call}");
                }
            }
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 4 7").await;
            assert_eq!(bench.call(LATE).await, "late");
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 4 7").await;
            bench.command("DEL tokens").await;
            bench.call(DETACH).await;
            assert_eq!(bench.command("GET tokens").await, Value::BulkString("7".into()), "P2");
            // A shorter lease as well: nobody relies on the longer one any more.
            bench.call("give from=h:0 seq=3 token=7 to=d:1 attempt=3 lease=3000").await;
            assert!((2000..=3000).contains(&bench.ttl("lock").await));
            bench.call("release owner=d:1 seq=9 special=0:8:0").await;
            assert_eq!(bench.lock_token().await.as_deref(), Some("7"), "a handle names its token");
        }
    })
    .await;
}

/// Q3: it raises the token for the holder only, and never lowers it; the next grant is above it.
#[tokio::test]
async fn raise_rows() {
    let raise = |what, before, call, reply, after| Row { what, before, call, reply, after, again: reply };
    let rows = [
        raise("another token", &["held c:1 5 8"][..], "raise token=7 floor=90", "lost", "lock c:1=1 5,8,0,3000/L"),
        raise("another owner", &["held d:1 5 7"], "raise token=7 floor=90", "lost", "lock d:1=1 5,7,0,3000/L"),
        raise("nobody", &[], "raise token=7 floor=90", "lost", ""),
        raise("the holder", &["held c:1 5 7"], "raise token=7 floor=90", "raised", "lock c:1=1 5,7,0,3000/L"),
    ];
    limit(async {
        for mut bench in Bench::each().await {
            bench.check(&rows).await;
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 5 7").await;
            // Ahead of the clock, as another server's token may be.
            let floor = 2_000_000_000_000_000_u64;
            for (raised_to, kept) in [(floor, floor), (floor - 1, floor), (floor + 5, floor + 5)] {
                bench.call(&format!("raise token=7 floor={raised_to}")).await;
                assert_eq!(bench.command("GET tokens").await, Value::BulkString(kept.to_string().into()));
                assert!(bench.ttl("tokens").await > 60_000, "at least as long as token_ttl");
            }
            bench.call("release seq=6").await;
            let granted = bench.raw_call("acquire owner=d:1").await.unwrap();
            assert_eq!(granted[1], (floor + 6).to_string());
        }
    })
    .await;
}

/// Q3, Q8: the script gives it if it is above the last token and not ahead of the clock by more than a lease.
#[tokio::test]
async fn a_proposed_token() {
    limit(async {
        for mut bench in Bench::each().await {
            let now: u64 = bench.raw_call("acquire").await.unwrap()[1].parse().unwrap();
            let second = 1_000_000;
            for (proposed, last, is_given) in [
                (now - 60 * second, None, true),
                (now + 5 * second, None, true),
                (now + 60 * second, None, false),
                (now + 5 * second, Some(now + 5 * second - 1), true),
                (now + 5 * second, Some(now + 5 * second), false),
                (now + 5 * second, Some(now + 60 * second), false),
            ] {
                bench.command("FLUSHALL").await;
                if let Some(last) = last {
                    bench.prepare(&format!("token {last}")).await;
                }
                let call = format!("acquire mode=0:{proposed} lease=10000");
                let granted = bench.raw_call(&call).await.unwrap();
                let token: u64 = granted[1].parse().unwrap();
                assert_eq!(granted[0], "held");
                assert_eq!(token == proposed, is_given, "{token}, proposed {proposed} after {last:?}");
                assert!(token > last.unwrap_or(0) && token < now + 61 * second);
                assert_eq!(bench.number("GET tokens").await, i64::try_from(token).unwrap());
                assert_eq!(bench.raw_call(&call).await.unwrap()[1], granted[1], "a retry");
                bench.call("release seq=6").await;
                let next: u64 = bench.raw_call("acquire seq=7").await.unwrap()[1].parse().unwrap();
                assert!(next > token);
            }
            for before in [&["held d:1 5 7"][..], &["held d:1 5 7", "waits e:1:3"]] {
                bench.command("FLUSHALL").await;
                for before in before {
                    bench.prepare(before).await;
                }
                let reply = bench.call(&format!("acquire mode=0:{now}")).await;
                assert!(reply.starts_with("busy 0 "), "{reply}");
            }
        }
    })
    .await;
}

/// A renewal that names the token's key extends its life, and creates it again if it is missing.
#[tokio::test]
async fn p2_a_renewal_keeps_the_memory_of_the_token() {
    limit(async {
        for mut bench in Bench::each().await {
            for damage in ["PEXPIRE tokens 1000", "DEL tokens"] {
                bench.prepare("held c:1 5 7").await;
                bench.command(damage).await;
                bench.call("renew token=7").await;
                assert!(bench.ttl("tokens").await <= 1000, "not without that key");
                bench.call("renew token=7 remember=60000").await;
                assert!(bench.ttl("tokens").await > 50_000, "{damage}");
                assert_eq!(bench.number("GET tokens").await, 7, "{damage}");
                assert_eq!(bench.call("renew token=8 remember=60000").await, "lost");
            }
        }
    })
    .await;
}

/// The first grant in each 100 s sets the key's time to live. Later grants do not change it.
#[tokio::test]
async fn the_memory_of_the_token_is_kept_for_token_ttl_at_the_least() {
    limit(async {
        for mut bench in Bench::each().await {
            let (mut ttl, mut calls) = (0, 0);
            // Repeats if the 100 s end between two of these calls.
            while calls < 3 && ttl != 90_000 {
                calls += 1;
                bench.command("FLUSHALL").await;
                bench.call("acquire").await;
                let fresh = bench.ttl("tokens").await;
                assert!((150_000..=160_000).contains(&fresh), "{fresh}");
                bench.command("PEXPIRE tokens 90000").await;
                bench.call("release").await;
                bench.call("acquire seq=6").await;
                ttl = (bench.ttl("tokens").await + 999) / 1000 * 1000;
            }
            assert_eq!(ttl, 90_000);
            // This token is from before these 100 s.
            let earlier = 1000 * bench.now().await - 100_000_000;
            bench.command(&format!("SET tokens {earlier} PX 90000")).await;
            bench.call("release seq=6").await;
            bench.call("acquire seq=7").await;
            assert!(bench.ttl("tokens").await > 150_000);
        }
    })
    .await;
}

const EVERY_CALL: [&str; 8] = [
    "acquire",
    "poll tickets=c:1:5",
    "renew token=7",
    "raise token=7 floor=9",
    "release",
    "leave",
    "force_unlock",
    "inspect",
];

/// The scripts have the flag allow-oom, so that owners can still free locks on a full server.
#[tokio::test]
async fn a_full_server_runs_every_script() {
    limit(async {
        let server = Server::with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]).await;
        let mut bench = Bench::on(server).await;
        bench.prepare("held d:1 4 7").await;
        bench.server().fill().await;
        for call in EVERY_CALL {
            bench.call(call).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_replica_refuses_every_script_that_writes() {
    limit(async {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        let mut bench = Bench::on(replica).await;
        for call in EVERY_CALL.into_iter().filter(|call| *call != "inspect") {
            let error = bench.try_call(call).await.expect_err(call);
            assert_eq!(error.code, "READONLY", "{call}: {error:?}");
        }
        // `inspect` works on a replica: operators need it most when nothing can be changed.
        bench.call("inspect").await;
    })
    .await;
}

/// If the server refuses a script between HSET and PEXPIRE, the hash has no lease. It must not stay held forever.
#[tokio::test]
async fn a_hash_without_a_lease_gets_one_from_the_next_caller() {
    // An acquire that does not wait mends it too.
    for call in ["acquire owner=c:1", "acquire owner=c:1 mode=0", "poll tickets=c:1:5", "poll waits=0"] {
        for mut bench in Bench::each().await {
            bench.command("HSET lock x:1 1 !grant 5~7~0~0~3000/L").await;
            bench.call(call).await;
            assert!(bench.ttl("lock").await > 0, "{call}");
        }
    }
}

#[tokio::test]
async fn an_unreadable_place_behind_an_unreachable_client_changes_nothing() {
    for call in ["release", "leave seq=4", "force_unlock", "acquire owner=c:1 seq=9 mode=0"] {
        for mut bench in Bench::each().await {
            for step in ["held c:1 4 7", "waits x:1:2", "RPUSH queue rubbish"] {
                bench.prepare(step).await;
            }
            let before = bench.dump().await;
            let refused = bench.try_call(call).await.expect_err(call);
            assert!(refused.text.contains("does not hold a queue of fairlock"), "{call}: {refused:?}");
            assert!(bench.dump().await == before, "{call}");
        }
    }
}

/// An operator has deleted the field of the grant.
#[tokio::test]
async fn a_release_of_a_hash_without_its_grant_ends_it() {
    for mut bench in Bench::each().await {
        bench.prepare("held c:1 4 7").await;
        bench.command("HDEL lock !grant").await;
        assert_eq!(bench.call("release").await, "freed 0 0");
        assert_eq!(bench.state().await, "");
    }
}

/// A replica repeats the messages of its primary, even to the clients that it kept from its own time as the primary.
#[tokio::test]
async fn p1_who_cannot_be_reached_is_told_of_nothing() {
    use futures::StreamExt;
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        // Reads every message without being a subscriber of the channel.
        let mut all = bench.server().pubsub().await;
        all.psubscribe("fairlock:wake:*").await.unwrap();
        for step in ["held c:1 4 7", "waits x:1:2", "waits y:1:3", "waits d:1:5"] {
            bench.prepare(step).await;
        }
        bench.call("release").await;
        let told: String = all.on_message().next().await.unwrap().get_payload().unwrap();
        assert!(told.contains(" d:1:5 "), "{told}");
    })
    .await;
}

/// Tokens run ahead of a clock that went back. The key must live as long as usual.
#[tokio::test]
async fn the_memory_of_a_token_ahead_of_the_clock_is_kept() {
    for mut bench in Bench::each().await {
        bench.command("SET tokens 9000000000000000 PX 500").await;
        bench.call("acquire").await;
        assert!(bench.ttl("tokens").await > 60_000);
    }
}

/// A script does not turn a value that it cannot read into a token or a freeze.
#[tokio::test]
async fn what_is_no_token_and_no_record_is_refused() {
    for mut bench in Bench::each().await {
        for token in ["nan", "-7", "inf", "x"] {
            bench.command(&format!("SET tokens {token}")).await;
            let refused = bench.try_call("acquire").await.expect_err(token);
            assert!(refused.text.contains("does not hold a token"), "{token}: {refused:?}");
        }
        bench.command("SET boot foreign").await;
        let refused = bench.try_call("boot").await.expect_err("foreign");
        assert!(refused.text.contains("does not hold a record of fairlock"), "{refused:?}");
        assert_eq!(bench.command("GET boot").await, Value::BulkString(b"foreign".to_vec()));
    }
}

/// An operator has deleted the list. Whichever command the server refuses in the call that begins the next list, no
/// ticket without a place may stay, because nothing would end it.
#[tokio::test]
async fn tickets_of_a_deleted_list_do_not_stay() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for right in ["zadd", "rpushx", "unlink", "rpush", "pexpire", "pttl"] {
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 4 7").await;
            bench.prepare("waits d:1:5").await;
            bench.prepare("waits d:2:6").await;
            bench.command("DEL queue").await;
            bench.is_refused_without(right, "acquire owner=e:1 seq=8").await;
            bench.call("acquire owner=e:2 seq=9").await;
            let (tickets, places) = (bench.number("ZCOUNT deadlines inf inf").await, bench.number("LLEN queue").await);
            assert!((1..=places).contains(&tickets), "{tickets} tickets for {places} places, without {right}");
        }
    })
    .await;
}

/// P6: without the right to take out its ticket, a winner would keep its place, and win again as soon as it has given
/// the lock back. Two abandoned waits once passed the lock to each other forever.
#[tokio::test]
async fn p6_who_may_not_take_out_a_ticket_hands_nothing_over() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for (held, waits, calls) in [
            ("held c:1 4 7", "waits", ["leave owner=c:1 seq=4", "release owner=c:1 seq=5", "force_unlock expected=7"]),
            (
                "holds c:1 4 7 1,1",
                "queues",
                ["shared/leave owner=c:1 seq=4", "shared/release owner=c:1 seq=5", "shared/force_unlock expected=7"],
            ),
        ] {
            for call in calls {
                bench.command("FLUSHALL").await;
                bench.prepare(held).await;
                for ticket in ["d:1:5", "d:2:6", "d:3:7"] {
                    bench.prepare(&format!("{waits} {ticket}")).await;
                }
                let before = bench.dump().await;
                bench.is_refused_without("zrem", call).await;
                assert_eq!(bench.dump().await, before, "{call}");
            }
        }
    })
    .await;
}

/// The script marks dead places in the list before it removes them. If the server refused it in between, no script
/// could read the marks, and every script refused the queue until it expired.
#[tokio::test]
async fn p6_who_may_not_take_dead_places_out_leaves_a_queue_that_can_be_read() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for (held, waits, acquire) in
            [("held d:1 2 7", "waits", "acquire"), ("holds d:1 2 7 1,1", "queues", "shared/acquire")]
        {
            bench.command("FLUSHALL").await;
            bench.prepare(held).await;
            for place in ["d:2:3", "z:1:4", "e:1:5"] {
                bench.prepare(&format!("{waits} {place}")).await;
            }
            bench.prepare("dead z").await;
            bench.is_refused_without("lrem", &format!("{acquire} max_waiters=3")).await;
            // It joins with its own place, which a leave would remove, and replaces the dead one.
            let next = bench.call(&format!("{acquire} owner=f:1 seq=9 max_waiters=4")).await;
            assert!(next.starts_with("queued "), "{next}");
            assert_eq!(bench.number("LLEN queue").await, 4);
        }
    })
    .await;
}

/// If the server received a request from the client a moment ago, a new place and ticket leave its deadline as it is.
/// Otherwise, or if a script passed the client over, the place brings a new deadline: waits shorter than the poll
/// interval must not kill it (P3).
#[tokio::test]
async fn a_new_place_is_a_sign_of_life_unless_its_client_was_heard_a_moment_ago() {
    limit(async {
        for mut bench in Bench::each().await {
            // The rest of 60 s, whether the deadline stays, and `max_waiters`.
            for (left, stays, max_waiters) in
                [(59_000, true, 100), (50_000, false, 100), (-59_000, false, 100), (59_000, false, 1)]
            {
                bench.command("FLUSHALL").await;
                bench.prepare("held d:1 4 7").await;
                bench.prepare("waits c:1:2").await;
                let deadline = if left > 0 { bench.now().await + left } else { left - bench.now().await };
                bench.command(&format!("ZADD deadlines {deadline} c")).await;
                let call = format!("acquire owner=c:2 seq=9 waiter_ttl=60000 max_waiters={max_waiters}");
                let reply = bench.call(&call).await;
                let places = if max_waiters == 1 { 1 } else { 2 };
                let status = if max_waiters == 1 { "full" } else { "queued" };
                assert!(reply.starts_with(status), "{left}: {reply}");
                assert_eq!(bench.number("LLEN queue").await, places, "{left}");
                assert_eq!(bench.number("ZCOUNT deadlines inf inf").await, places, "{left}");
                let is_kept = bench.number(&format!("ZCOUNT deadlines {deadline} {deadline}")).await == 1;
                assert_eq!(is_kept, stays, "{left} with {max_waiters}");
            }
        }
    })
    .await;
}
