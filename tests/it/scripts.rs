//! Each script by itself, on a real server and on the embedded one: state before, call, reply, state after, and
//! the same call once more. bench.rs says how rows are written.

use redis::Value;

use crate::bench::{Bench, KINDS, Row, assert_fits, check, flatten, key, shape};
use crate::support::{Server, limit};

/// R1: a retry gets the same answer. R2: a late one is refused. R3: so is a copy after the leave (`left`). R6: a free
/// lock goes to the waiters first.
#[tokio::test]
async fn acquire_rows() {
    let held = "lock c:1=1 !attempt=5 !token=T !label=L";
    let rows = [
        Row {
            what: "free",
            before: &[],
            call: "acquire",
            reply: "held T 1 10000 0",
            after: held,
            again: "held T 1 * 0",
        },
        Row {
            what: "free, without waiting",
            before: &[],
            call: "acquire wait=0",
            reply: "held T 1 10000 0",
            after: held,
            again: "held T 1 * 0",
        },
        Row {
            what: "a retry of a grant gets the full lease",
            before: &["held c:1 5 7", "PEXPIRE lock 1000"],
            call: "acquire",
            reply: "held 7 1 10000 0",
            after: "lock c:1=1 !attempt=5 !token=7 !label=L",
            again: "held 7 1 * 0",
        },
        Row {
            what: "a retry never shortens the lease",
            before: &["held c:1 5 7"],
            call: "acquire lease=500",
            reply: "held 7 1 * 0",
            after: "lock c:1=1 !attempt=5 !token=7 !label=L",
            again: "held 7 1 * 0",
        },
        Row {
            what: "held by another: queued",
            before: &["held d:1 2 7"],
            call: "acquire",
            reply: "queued 7 * 0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue c:1:5/L | living c:1:5",
            again: "queued 7 * 0",
        },
        Row {
            what: "held by another: busy",
            before: &["held d:1 2 7"],
            call: "acquire wait=0",
            reply: "busy 0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L",
            again: "busy 0",
        },
        Row {
            what: "free, another waits: it is granted to the waiter",
            before: &["waits d:1:2"],
            call: "acquire wait=0",
            reply: "busy 0",
            after: "lock d:1=1 !attempt=2 !token=T !label=L",
            again: "busy 0",
        },
        Row {
            what: "free, others wait: queued behind them",
            before: &["waits d:1:2", "waits e:1:3"],
            call: "acquire",
            reply: "queued T * 0",
            after: "lock d:1=1 !attempt=2 !token=T !label=L | queue e:1:3/L c:1:5/L | living c:1:5 e:1:3",
            again: "queued T * 0",
        },
        Row {
            what: "free, only dead tickets wait",
            before: &["dead d:1:2", "dead e:1:3"],
            call: "acquire wait=0",
            reply: "held T 1 10000 0",
            after: held,
            again: "held T 1 * 0",
        },
        Row {
            what: "free, the first waiter is unreachable: passed over, still first",
            before: &["waits x:1:2"],
            call: "acquire wait=0",
            reply: "held T 1 10000 0",
            after: "lock c:1=1 !attempt=5 !token=T !label=L | queue x:1:2/L | living x:1:2",
            again: "held T 1 * 0",
        },
        Row {
            what: "a retry by the first waiter",
            before: &["waits c:1:5", "waits d:1:2"],
            call: "acquire",
            reply: "held T 1 10000 0",
            after: "lock c:1=1 !attempt=5 !token=T !label=L | queue d:1:2/L | living d:1:2",
            again: "held T 1 * 0",
        },
        Row {
            what: "full",
            before: &["held d:1 2 7", "waits d:2:3"],
            call: "acquire max_waiters=1",
            reply: "full 1",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue d:2:3/L | living d:2:3",
            again: "full 1",
        },
        Row {
            what: "full of dead tickets",
            before: &["held d:1 2 7", "dead d:2:3"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue d:2:3/L c:1:5/L | living c:1:5",
            again: "queued 7 * 0",
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
            reply: "held T 1 10000 0",
            after: "lock c:1=1 !attempt=5 !token=T !label=L | tombstone c:1=4",
            again: "held T 1 * 0",
        },
        Row {
            what: "a late copy from before the current hold",
            before: &["held c:1 6 7"],
            call: "acquire",
            reply: "stale",
            after: "lock c:1=1 !attempt=6 !token=7 !label=L",
            again: "stale",
        },
        Row {
            what: "a first hold ends the owner's earlier one",
            before: &["held c:1 4 7"],
            call: "acquire",
            reply: "held T 1 10000 0",
            after: held,
            again: "held T 1 * 0",
        },
        Row {
            what: "a first hold ends the owner's earlier one, and the waiters are served first",
            before: &["held c:1 4 7", "waits d:1:2"],
            call: "acquire",
            reply: "queued T * 0",
            after: "lock d:1=1 !attempt=2 !token=T !label=L | queue c:1:5/L | living c:1:5",
            again: "queued T * 0",
        },
        Row {
            what: "nested",
            before: &["held c:1 4 7"],
            call: "acquire holds=1 token=7",
            reply: "held 7 2 * 0",
            after: "lock c:1=2 !attempt=5 !token=7 !label=L",
            again: "held 7 2 * 0",
        },
        Row {
            what: "nested, while others wait",
            before: &["held c:1 4 7", "waits d:1:2"],
            call: "acquire holds=1 token=7 wait=0",
            reply: "held 7 2 * 0",
            after: "lock c:1=2 !attempt=5 !token=7 !label=L | queue d:1:2/L | living d:1:2",
            again: "held 7 2 * 0",
        },
        Row {
            what: "nested on a free lock",
            before: &[],
            call: "acquire holds=1 token=7",
            reply: "lost",
            after: "",
            again: "lost",
        },
        Row {
            what: "nested under another token",
            before: &["held c:1 4 8"],
            call: "acquire holds=1 token=7",
            reply: "lost",
            after: "lock c:1=1 !attempt=4 !token=8 !label=L",
            again: "lost",
        },
        Row {
            what: "nested, a late copy",
            before: &["held c:1 6 7"],
            call: "acquire holds=1 token=7",
            reply: "stale",
            after: "lock c:1=1 !attempt=6 !token=7 !label=L",
            again: "stale",
        },
    ];
    limit(check(&rows)).await;
}

/// R8: a poll renews the caller's tickets first and then passes a free lock on. It answers only for tickets that are
/// not simply queued.
#[tokio::test]
async fn poll_rows() {
    let rows = [
        Row {
            what: "without tickets",
            before: &[],
            call: "poll",
            reply: "polled 0 T -2 ",
            after: "",
            again: "polled 0 T -2 ",
        },
        Row {
            what: "queued",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 7 * c:1:5",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue c:1:5/L | living c:1:5",
            again: "polled 0 7 * c:1:5",
        },
        Row {
            what: "granted before: it gets its full lease",
            before: &["held c:1 5 7", "PEXPIRE lock 1000"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 7 *  1 granted 7 10000",
            after: "lock c:1=1 !attempt=5 !token=7 !label=L",
            again: "polled 0 7 *  1 granted 7 *",
        },
        Row {
            what: "the lease has ended: granted to the caller",
            before: &["waits c:1:5", "waits d:1:6"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 T * d:1:6 1 granted T 10000",
            after: "lock c:1=1 !attempt=5 !token=T !label=L | queue d:1:6/L | living d:1:6",
            again: "polled 0 T * d:1:6 1 granted T *",
        },
        Row {
            what: "the lease has ended: granted to an earlier waiter",
            before: &["waits d:1:6", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 T * c:1:5",
            after: "lock d:1=1 !attempt=6 !token=T !label=L | queue c:1:5/L | living c:1:5",
            again: "polled 0 T * c:1:5",
        },
        Row {
            what: "the caller is alive, even past its deadline",
            before: &["dead c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 T *  1 granted T 10000",
            after: "lock c:1=1 !attempt=5 !token=T !label=L",
            again: "polled 0 T *  1 granted T *",
        },
        Row {
            what: "several tickets",
            before: &["held d:1 2 7", "waits c:1:5", "waits c:2:6"],
            call: "poll tickets=c:1:5,c:9:9,c:2:6",
            reply: "polled 0 7 * c:1:5 2 unknown  0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue c:1:5/L c:2:6/L | living c:1:5 c:2:6",
            again: "polled 0 7 * c:1:5 2 unknown  0",
        },
        Row {
            what: "a ticket without an entry in the list",
            before: &["ZADD deadlines 99999999999999 c:1:5", "PEXPIRE deadlines 9000"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 T -2  1 unknown  0",
            after: "",
            again: "polled 0 T -2  1 unknown  0",
        },
        Row {
            what: "dead tickets are removed, unreachable ones keep their order",
            before: &["dead d:1:2", "waits x:1:3", "dead d:2:4", "waits x:2:5", "waits d:3:6", "waits d:4:7"],
            call: "poll",
            reply: "polled 0 T * x:1:3",
            after: "lock d:3=1 !attempt=6 !token=T !label=L | queue x:1:3/L x:2:5/L d:4:7/L | living d:4:7 x:1:3 x:2:5",
            again: "polled 0 T * x:1:3",
        },
    ];
    limit(check(&rows)).await;
}

/// R3: it removes the ticket and writes a tombstone. R4: it never ends a later attempt. R6: it passes on what it
/// frees.
#[tokio::test]
async fn leave_rows() {
    let rows = [
        Row {
            what: "neither queued nor holding",
            before: &[],
            call: "leave",
            reply: "gone  0",
            after: "",
            again: "gone  0",
        },
        Row {
            what: "queued",
            before: &["held d:1 2 7", "waits d:2:3", "waits c:1:5", "waits d:3:6"],
            call: "leave",
            reply: "gone  0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue d:2:3/L d:3:6/L | living d:2:3 d:3:6",
            again: "gone  0",
        },
        Row {
            what: "the only one queued",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "leave",
            reply: "gone  0",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L",
            again: "gone  0",
        },
        Row {
            what: "granted: passed on",
            before: &["held c:1 5 7", "waits d:2:3"],
            call: "leave",
            reply: "freed 7 0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L",
            again: "gone  0",
        },
        Row {
            what: "held since an earlier attempt, and a copy may be in flight",
            before: &["held c:1 4 7"],
            call: "leave copies_until=+2000",
            reply: "freed 7 0",
            after: "tombstone c:1=5",
            again: "gone  0",
        },
        Row {
            what: "a later attempt of the owner is not touched",
            before: &["held c:1 6 7"],
            call: "leave copies_until=+2000",
            reply: "gone  0",
            after: "lock c:1=1 !attempt=6 !token=7 !label=L | tombstone c:1=5",
            again: "gone  0",
        },
        Row {
            what: "a greater tombstone stays",
            before: &["tombstone c:1 9"],
            call: "leave copies_until=+2000",
            reply: "gone  0",
            after: "tombstone c:1=9",
            again: "gone  0",
        },
        Row {
            what: "all copies are refused by now: no tombstone",
            before: &["waits c:1:5"],
            call: "leave copies_until=+-1",
            reply: "gone  0",
            after: "",
            again: "gone  0",
        },
        Row {
            what: "the lock is found free: passed on",
            before: &["waits c:1:5", "waits d:2:3"],
            call: "leave",
            reply: "gone  0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L",
            again: "gone  0",
        },
    ];
    limit(check(&rows)).await;
}

/// R4: it compares owner and token, creates nothing, and only extends.
#[tokio::test]
async fn renew_rows() {
    let held = "lock c:1=1 !attempt=5 !token=7 !label=L";
    let rows = [
        Row {
            what: "extends",
            before: &["held c:1 5 7", "PEXPIRE lock 100"],
            call: "renew token=7",
            reply: "renewed 10000",
            after: held,
            again: "renewed *",
        },
        Row { what: "creates nothing", before: &[], call: "renew token=7", reply: "lost", after: "", again: "lost" },
        Row {
            what: "another token",
            before: &["held c:1 5 8"],
            call: "renew token=7",
            reply: "lost",
            after: "lock c:1=1 !attempt=5 !token=8 !label=L",
            again: "lost",
        },
        Row {
            what: "another owner",
            before: &["held d:1 5 7"],
            call: "renew token=7",
            reply: "lost",
            after: "lock d:1=1 !attempt=5 !token=7 !label=L",
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
            call: "release token=7",
            reply: "freed 7 0",
            after: "",
            again: "gone  0",
        },
        Row {
            what: "the last hold, others wait",
            before: &["held c:1 4 7", "waits d:2:3", "waits e:1:6"],
            call: "release token=7",
            reply: "freed 7 0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L | queue e:1:6/L | living e:1:6",
            again: "gone  0",
        },
        Row {
            what: "the last hold, the first in line is dead",
            before: &["held c:1 4 7", "dead d:1:2", "waits d:2:3"],
            call: "release token=7",
            reply: "freed 7 0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L",
            again: "gone  0",
        },
        Row {
            what: "the last hold, the first in line is unreachable",
            before: &["held c:1 4 7", "waits x:1:2", "waits d:2:3", "waits x:2:4"],
            call: "release token=7",
            reply: "freed 7 0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L | queue x:1:2/L x:2:4/L | living x:1:2 x:2:4",
            again: "gone  0",
        },
        Row {
            what: "the last hold, all waiters are dead or unreachable",
            before: &["held c:1 4 7", "waits x:1:2", "dead d:2:3"],
            call: "release token=7",
            reply: "freed 7 0",
            after: "queue x:1:2/L | living x:1:2",
            again: "gone  0",
        },
        Row {
            what: "one of several",
            before: &["held c:1 4 7", "HSET lock c:1 3"],
            call: "release token=7 holds=2",
            reply: "held 2",
            after: "lock c:1=2 !attempt=5 !token=7 !label=L",
            again: "held 2",
        },
        Row {
            what: "one of several, of a lost hold",
            before: &["held c:1 4 8"],
            call: "release token=7 holds=2",
            reply: "lost",
            after: "lock c:1=1 !attempt=4 !token=8 !label=L",
            again: "lost",
        },
        Row {
            what: "one of several, a late copy",
            before: &["held c:1 6 7"],
            call: "release token=7 holds=2",
            reply: "stale",
            after: "lock c:1=1 !attempt=6 !token=7 !label=L",
            again: "stale",
        },
        Row {
            what: "a later attempt of the owner is not touched",
            before: &["held c:1 6 7"],
            call: "release token=7",
            reply: "gone  0",
            after: "lock c:1=1 !attempt=6 !token=7 !label=L",
            again: "gone  0",
        },
        Row {
            what: "a late copy of the acquire took the lock again, with another token: freed too",
            before: &["held c:1 4 8"],
            call: "release token=7",
            reply: "freed 8 0",
            after: "",
            again: "gone  0",
        },
        Row {
            what: "the lock is free",
            before: &[],
            call: "release token=7",
            reply: "gone  0",
            after: "",
            again: "gone  0",
        },
        Row {
            what: "another owner has the lock",
            before: &["held d:1 4 7"],
            call: "release token=7",
            reply: "gone  0",
            after: "lock d:1=1 !attempt=4 !token=7 !label=L",
            again: "gone  0",
        },
        Row {
            what: "a late copy of the acquire is in the queue, and another may come",
            before: &["held d:1 9 7", "waits c:1:4"],
            call: "release token=7 entry=c:1:4/L copies_until=+2000",
            reply: "gone  0",
            after: "lock d:1=1 !attempt=9 !token=7 !label=L | tombstone c:1=5",
            again: "gone  0",
        },
        Row {
            what: "the lock is found free: passed on",
            before: &["waits d:2:3"],
            call: "release token=7",
            reply: "gone  0",
            after: "lock d:2=1 !attempt=3 !token=T !label=L",
            again: "gone  0",
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
            again: "free  0",
        },
        Row { what: "free", before: &[], call: "force_unlock", reply: "free  0", after: "", again: "free  0" },
        Row {
            what: "late",
            before: &["held d:1 2 7"],
            call: "force_unlock not_after=+-1",
            reply: "late",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L",
            again: "late",
        },
    ];
    limit(async {
        for mut bench in Bench::each().await {
            bench.check(&rows).await;
            // With a waiter, a second run ends the waiter's hold. That is why the client never retries it.
            bench.command("FLUSHALL").await;
            bench.prepare("held c:1 2 7").await;
            bench.prepare("waits d:1:5").await;
            assert_eq!(bench.call("force_unlock").await, "freed 7 0");
            assert_eq!(bench.state().await, "lock d:1=1 !attempt=5 !token=T !label=L");
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
            reply: "inspected  0   -2 0",
            after: "",
            again: "inspected  0   -2 0",
        },
        Row {
            what: "held, and some wait",
            before: &["held d:1 2 7", "waits c:1:5", "dead c:2:6", "waits d:2:3"],
            call: "inspect",
            reply: "inspected d:1 1 7 L * 3 c:1:5 * L d:2:3 * L",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue c:1:5/L c:2:6/L d:2:3/L | living c:1:5 c:2:6 d:2:3",
            again: "inspected d:1 1 7 L * 3 c:1:5 * L d:2:3 * L",
        },
        Row {
            what: "a label that looks like an entry",
            before: &["waits c:1:5", "RPUSH queue c:2:6/a/d:1:2/", "ZADD deadlines 99999999999999 c:2:6"],
            call: "inspect",
            reply: "inspected  0   -2 2 c:1:5 * L c:2:6 * a/d:1:2/",
            after: "queue c:1:5/L c:2:6/a/d:1:2/ | living c:1:5 c:2:6",
            again: "inspected  0   -2 2 c:1:5 * L c:2:6 * a/d:1:2/",
        },
        Row {
            what: "only whether it is held",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "inspect most=0",
            reply: "inspected d:1 1 7 L * 1",
            after: "lock d:1=1 !attempt=2 !token=7 !label=L | queue c:1:5/L | living c:1:5",
            again: "inspected d:1 1 7 L * 1",
        },
    ];
    limit(check(&rows)).await;
}

#[tokio::test]
async fn grants_and_revocations_are_published_to_the_client() {
    use futures::StreamExt;
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        let mut subscribed = redis::Client::open(bench.server().url()).unwrap().get_async_pubsub().await.unwrap();
        subscribed.subscribe("fairlock:wake:d").await.unwrap();
        bench.prepare("held c:1 4 7").await;
        bench.prepare("waits d:1:5").await;
        bench.call("release token=7").await;
        let mut messages = subscribed.on_message();
        let mut next = async || messages.next().await.unwrap().get_payload::<String>().unwrap();
        let grant = next().await;
        let words: Vec<_> = grant.split(' ').collect();
        assert_eq!((words[0], words[2], words[3], words[4]), ("grant", "3000", "d:1:5", "fairlock:{n:n}"));
        bench.call("force_unlock").await;
        assert_eq!(next().await, format!("revoked {} d:1 fairlock:{{n:n}}", words[1]));
    })
    .await;
}

/// P6: otherwise a frozen waiter could be granted the lock just before its deadline, and cost a whole grant_ttl more.
#[tokio::test]
async fn p6_a_grant_never_outlives_its_tickets_own_deadline() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held c:1 4 7").await;
            bench.prepare("waits d:1:5").await;
            let soon = bench.now().await + 800;
            bench.command(&format!("ZADD deadlines {soon} d:1:5")).await;
            bench.call("release token=7").await;
            assert!(bench.ttl("lock").await <= 800);
            bench.prepare("waits d:2:6").await;
            bench.call("force_unlock").await;
            let ttl = bench.ttl("lock").await;
            assert!((2000..=3000).contains(&ttl), "{ttl}");
        }
    })
    .await;
}

#[tokio::test]
async fn p6_many_dead_tickets_take_several_bounded_calls() {
    limit(async {
        for mut bench in Bench::each().await {
            many(&mut bench, "d", 3000, -1000).await;
            bench.prepare("waits e:1:9999").await;
            // One call clears 64.
            for _ in 0..3000 / 64 {
                assert_fits("more to do", "reply", &bench.call("poll").await, "polled 1 T -2 *");
            }
            assert_fits("done", "reply", &bench.call("poll").await, "polled 0 T * ");
            assert_eq!(bench.state().await, "lock e:1=1 !attempt=9999 !token=T !label=L");
        }
    })
    .await;
}

/// Review A3: `acquire` took a free lock although a live waiter stood in the queue, behind 1024 unreachable ones.
/// One call looks at no more than those.
#[tokio::test]
async fn p3_nobody_overtakes_beyond_the_bound_of_one_call() {
    limit(async {
        for mut bench in Bench::each().await {
            many(&mut bench, "x", 1040, 60_000).await;
            bench.prepare("waits e:1:9999").await;
            assert_eq!(bench.call("acquire wait=0").await, "busy 0");
            assert_fits("queued", "reply", &bench.call("acquire max_waiters=5000").await, "queued T -2 0");
            // A poll of a waiter beyond that bound keeps its ticket.
            assert_fits("kept", "reply", &bench.call("poll tickets=c:1:5").await, "polled 0 T -2 x:1:0");
        }
    })
    .await;
}

/// Review B3, B4: the list grew with the number of all tickets there had been, not with the living ones.
#[tokio::test]
async fn the_queue_stays_in_proportion_to_the_living() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("held e:1 1 7").await;
            many(&mut bench, "d", 2000, 60_000).await;
            for seq in 1..2000 {
                bench.call(&format!("leave owner=d:1 seq={seq}")).await;
            }
            let length = |value: Value| if let Value::Int(number) = value { number } else { -1 };
            assert_eq!(length(bench.command("ZCARD deadlines").await), 1);
            let list = length(bench.command("LLEN queue").await);
            assert!(list <= 130, "{list} entries for one living");

            // Waiters come and die, fifty at a time, while the lock is held.
            bench.command("DEL queue").await;
            bench.command("DEL deadlines").await;
            for generation in 0..20 {
                for waiter in 0..50 {
                    let seq = 5000 + generation * 100 + waiter;
                    bench.call(&format!("acquire owner=c:{seq} seq={seq}")).await;
                }
                for ticket in bench.living().await {
                    bench.command(&format!("ZADD deadlines 1 {ticket}")).await;
                }
            }
            let list = length(bench.command("LLEN queue").await);
            assert!(list <= 2 * 50 + 128 + 1, "{list} entries for 50 of the last generation");
        }
    })
    .await;
}

/// Adds tickets `client:1:0` and so on, all with the same deadline, in ms from now.
async fn many(bench: &mut Bench, client: &str, count: i64, deadline: i64) {
    let deadline = bench.now().await + deadline;
    for seq in 0..count {
        bench.command(&format!("RPUSH queue {client}:1:{seq}/L")).await;
        bench.command(&format!("ZADD deadlines {deadline} {client}:1:{seq}")).await;
    }
    bench.command("PEXPIRE queue 90000").await;
    bench.command("PEXPIRE deadlines 90000").await;
}

#[tokio::test]
async fn a_tombstone_lives_past_the_last_copy_and_never_gets_shorter() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.call("leave copies_until=+5000").await;
            let ttl = bench.ttl("tombstone:c:1").await;
            assert!((5000..=6000).contains(&ttl), "{ttl}");
            // Review A7: a later leave with an earlier `copies_until` shortened it.
            bench.call("leave copies_until=+100").await;
            assert!(bench.ttl("tombstone:c:1").await > 4000);
        }
    })
    .await;
}

/// P10: a list that is trimmed to nothing and filled again has no TTL. Review B6, and a bug that the test
/// `p3_the_waiters_of_a_killed_process_cost_the_others_nothing` found.
#[tokio::test]
async fn a_queue_that_is_trimmed_keeps_its_time_to_live() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for step in ["dead d:1:2", "waits x:1:3"] {
            bench.prepare(step).await;
        }
        bench.call("poll").await;
        let ttl = bench.ttl("queue").await;
        assert!((1000..=12_000).contains(&ttl), "{ttl}");
        bench.prepare("dead d:1:4").await;
        bench.command("LPUSH queue d:1:1/L").await;
        bench.command("PERSIST queue").await;
        bench.call("leave owner=d:9 entry=d:9:9/L").await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_fits(
            "the list without a TTL is still there",
            "queue",
            &flatten(bench.command("LRANGE queue 0 -1").await).join(" "),
            "x:1:3/L",
        );
    })
    .await;
}

/// Found by the simulator, seed 1882455091970145: with clients of different settings the list expired before the
/// sorted set. A waiter whose ticket was only in the sorted set was told "queued" and never served.
#[tokio::test]
async fn the_keys_of_a_queue_expire_together() {
    limit(async {
        for mut bench in Bench::each().await {
            // One client with a long waiter_ttl and tickets that have left, and one with a short waiter_ttl.
            bench.prepare("held c:1 4 7").await;
            for call in [
                "acquire owner=d:1 seq=5 waiter_ttl=60000",
                "leave owner=d:1 seq=5 copies_until=0",
                "acquire owner=d:1 seq=6 waiter_ttl=60000",
                "acquire owner=e:1 seq=7 waiter_ttl=5000",
                "poll tickets=e:1:7 waiter_ttl=5000",
            ] {
                bench.call(call).await;
                let mut ttls = Vec::new();
                for kind in ["queue", "deadlines"] {
                    ttls.push(bench.ttl(kind).await);
                }
                let (least, most) = (ttls.iter().min().unwrap(), ttls.iter().max().unwrap());
                assert!(most - least < 2000, "{call}: {ttls:?}");
            }
            let ttl = bench.ttl("queue").await;
            assert!(ttl > 60_000, "{ttl}");
            // The sorted set is gone and the list still has entries: a new ticket creates the sorted set again.
            bench.command("DEL deadlines").await;
            bench.call("acquire owner=e:2 seq=8 waiter_ttl=5000").await;
            for kind in ["queue", "deadlines"] {
                let ttl = bench.ttl(kind).await;
                assert!(ttl > 60_000, "{kind}: {ttl}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_wrong_type_names_its_key_and_changes_nothing() {
    let calls = [
        "acquire",
        "acquire wait=0",
        "poll tickets=c:1:5",
        "leave copies_until=+2000",
        "renew token=7",
        "force_unlock",
        "release token=7 copies_until=+2000",
        "inspect",
    ];
    limit(async {
        for mut bench in Bench::each().await {
            for call in calls {
                let verb = call.split(' ').next().unwrap();
                for kind in KINDS.iter().filter(|kind| shape(verb).0.contains(kind)) {
                    bench.command("FLUSHALL").await;
                    for step in ["held d:1 4 7", "waits c:1:5", "waits d:2:3"] {
                        bench.prepare(step).await;
                    }
                    bench.command(&format!("DEL {kind}")).await;
                    bench.prepare(&format!("foreign {kind}")).await;
                    // Redis does not roll back, so a script must read every key before its first write.
                    let before = bench.dump().await;
                    let error = bench.try_call(call).await.expect_err(&format!("{call} with a foreign {kind}"));
                    assert_eq!(error.code, "WRONGTYPE", "{call} {kind}: {error:?}");
                    assert!(error.text.contains(&format!("'{}'", key(kind))), "{call} {kind}: {error:?}");
                    assert!(bench.dump().await == before, "{call} with a foreign {kind} changed something");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_no_number_is_refused_and_changes_nothing() {
    limit(async {
        for mut bench in Bench::each().await {
            for (damage, calls) in [
                ("SET tokens nonsense", ["acquire", "poll tickets=c:1:5", "force_unlock"].as_slice()),
                ("SET tokens 99999999999999999999", &["acquire", "poll", "force_unlock"]),
                ("HSET lock c:9 1 !token nonsense", &["acquire", "poll"]),
            ] {
                for call in calls {
                    bench.command("FLUSHALL").await;
                    bench.prepare("waits d:2:3").await;
                    bench.command(damage).await;
                    let before = bench.dump().await;
                    let error = bench.try_call(call).await.expect_err(call);
                    assert!(error.text.contains("fairlock: the key"), "{damage}, {call}: {error:?}");
                    assert!(bench.dump().await == before, "{damage}, {call} changed something");
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
            let stored: u64 = flatten(bench.command("GET tokens").await)[0].parse().unwrap();
            assert_eq!(stored, 9_007_199_254_740_001);
            bench.command("FLUSHALL").await;
            let clock = 1000 * bench.now().await;
            bench.call("acquire").await;
            let fresh: i64 = flatten(bench.command("GET tokens").await)[0].parse().unwrap();
            assert!((clock..clock + 5_000_000).contains(&fresh));
            assert!(bench.ttl("tokens").await > 50_000);
        }
    })
    .await;
}

const EVERY_CALL: [&str; 7] =
    ["acquire", "poll tickets=c:1:5", "renew token=7", "release token=7", "leave", "force_unlock", "inspect"];

/// The scripts have the flag allow-oom, so that a full server can still free locks.
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
async fn a_replica_refuses_every_script() {
    limit(async {
        let primary = Server::start().await;
        let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]).await;
        let mut bench = Bench::on(replica).await;
        for call in EVERY_CALL {
            let error = bench.try_call(call).await.expect_err(call);
            assert_eq!(error.code, "READONLY", "{call}: {error:?}");
        }
    })
    .await;
}

/// A script that was refused between HSET and PEXPIRE leaves a hash without a lease. It must not stay held forever.
#[tokio::test]
async fn a_hash_without_a_lease_gets_one_from_the_next_caller() {
    for call in ["acquire owner=c:1", "acquire owner=c:1 wait=0", "poll tickets=c:1:5"] {
        for mut bench in Bench::each().await {
            bench.command("HSET lock x:1 1 !attempt 5 !token 7 !label L").await;
            bench.call(call).await;
            assert!(bench.ttl("lock").await > 0, "{call}");
        }
    }
}
