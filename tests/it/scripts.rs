//! Each script by itself, on a real server and on the embedded one: state before, call, reply, state after, and
//! the same call once more. bench.rs says how rows are written.

use redis::Value;

use crate::bench::{Bench, KINDS, Row, assert_fits, check, flatten, key, shape};
use crate::support::{Server, limit};

/// R1: a retry gets the same answer. R2: a late one is refused. R3: so is a copy after the leave (`left`). R6: a free
/// lock goes to the waiters first.
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
            reply: "queued 7 * 0 0",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "the place has the terms of the call",
            before: &["held d:1 2 7"],
            call: "acquire terms=9000/a~b/c",
            reply: "queued 7 * 0 0",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5/9000/a b/c | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "another call of this client waits",
            before: &["held d:1 2 7", "waits c:2:3"],
            call: "acquire",
            reply: "queued 7 * 0 1",
            after: "lock d:1=1 2,7,0,3000/L | queue c:2:3 c:1:5 | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "a retry keeps its place",
            before: &["held d:1 2 7", "waits c:1:5", "waits d:2:3"],
            call: "acquire",
            reply: "queued 7 * 0 1",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c d",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "held by another: busy",
            before: &["held d:1 2 7"],
            call: "acquire mode=0",
            reply: "busy 0",
            after: "lock d:1=1 2,7,0,3000/L",
            again: "busy 0",
        },
        Row {
            what: "free, another waits: it is granted to the waiter",
            before: &["waits d:1:2"],
            call: "acquire mode=0",
            reply: "busy 0",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "busy 0",
        },
        Row {
            what: "free, another waits: queued behind it",
            before: &["waits d:1:2"],
            call: "acquire",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue c:1:5 | clients c",
            again: "queued T * 0 1",
        },
        Row {
            what: "free, others wait: queued behind them",
            before: &["waits d:1:2", "waits e:1:3"],
            call: "acquire",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue e:1:3 c:1:5 | clients c d e",
            again: "queued T * 0 1",
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
            what: "free, the first waiter is unreachable: passed over and marked, still first",
            before: &["waits x:1:2"],
            call: "acquire mode=0",
            reply: "held T 1 10000",
            after: "lock c:1=1 5,T,T,3000/L | queue x:1:2 | clients -x",
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
            reply: "queued 7 * 0 1",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "full of dead ones",
            before: &["held d:1 2 7", "waits z:2:3", "dead z"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0 0",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "full of one who left",
            before: &["held d:1 2 7", "waits d:2:3", "ZREM deadlines d:2:3"],
            call: "acquire max_waiters=1",
            reply: "queued 7 * 0 0",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c d",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "full, with a dead one between",
            before: &["held d:1 2 7", "waits d:2:3", "waits z:1:4", "waits e:1:5", "dead z"],
            call: "acquire max_waiters=3",
            reply: "queued 7 * 0 0",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 e:1:5 c:1:5 | clients c d e",
            again: "queued 7 * 0 1",
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
            before: &["held c:1 4 7", "waits d:1:2"],
            call: "acquire",
            reply: "queued T * 0 0",
            after: "lock d:1=1 2,T,T,3000/L | queue c:1:5 | clients c",
            again: "queued T * 0 1",
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

/// R8: a client that polls is heard first, and a free lock is passed on then.
#[tokio::test]
async fn poll_rows() {
    let rows = [
        Row {
            what: "nothing is there",
            before: &[],
            call: "poll",
            reply: "polled 0 0 0 0 - 0 0 T -2",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2",
        },
        Row {
            what: "the client waits for nothing: it is not heard, and passes the lock on",
            before: &["waits d:1:2"],
            call: "poll waiter_ttl=0",
            reply: "polled 0 0 0 0 d:1 2 T T 3000",
            after: "lock d:1=1 2,T,T,3000/L",
            again: "polled 0 0 0 0 d:1 2 T T *",
        },
        Row {
            what: "first in line",
            before: &["held d:1 2 7", "waits c:1:5", "waits d:2:3"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 2 1 d:1 2 7 7 *",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c d",
            again: "polled 0 1 2 1 d:1 2 7 7 *",
        },
        Row {
            what: "not first in line",
            before: &["held d:1 2 7", "waits d:2:3", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 2 0 d:1 2 7 7 *",
            after: "lock d:1=1 2,7,0,3000/L | queue d:2:3 c:1:5 | clients c d",
            again: "polled 0 1 2 0 d:1 2 7 7 *",
        },
        Row {
            what: "no member: it had been given up",
            before: &["held d:1 2 7", "waits c:1:5", "ZREM deadlines c"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 1 1 d:1 2 7 7 *",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "polled 0 1 1 1 d:1 2 7 7 *",
        },
        Row {
            what: "several tickets: the numbers of those without a place",
            before: &["held d:1 2 7", "waits c:1:5", "waits c:2:6"],
            call: "poll tickets=c:1:5,c:9:9,c:2:6,c:8:8",
            reply: "polled 0 1 2 1 d:1 2 7 7 * 2 4",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 c:2:6 | clients c",
            again: "polled 0 1 2 1 d:1 2 7 7 * 2 4",
        },
        Row {
            what: "granted before",
            before: &["held c:1 5 7"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 0 0 c:1 5 7 7 * 1",
            after: "lock c:1=1 5,7,0,3000/L",
            again: "polled 0 0 0 0 c:1 5 7 7 * 1",
        },
        Row {
            what: "the lease has ended: granted to the caller",
            before: &["waits c:1:5", "waits d:1:6"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 1 * c:1 5 T T 3000",
            after: "lock c:1=1 5,T,T,3000/L | queue d:1:6 | clients c d",
            again: "polled 0 1 1 0 c:1 5 T T * 1",
        },
        Row {
            what: "the lease has ended: granted to an earlier waiter",
            before: &["waits d:1:6", "waits c:1:5"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 1 1 * d:1 6 T T 3000",
            after: "lock d:1=1 6,T,T,3000/L | queue c:1:5 | clients c d",
            again: "polled 0 1 1 1 d:1 6 T T *",
        },
        Row {
            what: "the caller is alive, even past its deadline",
            before: &["waits c:1:5", "waits d:1:6", "dead c"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 * 1 * c:1 5 T T 3000",
            after: "lock c:1=1 5,T,T,3000/L | queue d:1:6 | clients c d",
            again: "polled 0 1 1 0 c:1 5 T T * 1",
        },
        Row {
            what: "heard again: an unreachable one is served in its turn",
            before: &["waits x:1:3", "waits d:1:6", "unreachable x"],
            call: "poll caller=x tickets=x:1:3",
            reply: "polled 0 1 1 * x:1 3 T T 3000",
            after: "lock x:1=1 3,T,T,3000/L | queue d:1:6 | clients d x",
            again: "polled 0 1 1 0 x:1 3 T T * 1",
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
            call: "poll waiter_ttl=0",
            reply: "polled 0 0 4 0 d:3 6 T T 3000",
            after: "lock d:3=1 6,T,T,3000/L | queue x:1:3 z:2:4 x:2:5 d:4:7 | clients d -x",
            again: "polled 0 0 4 0 d:3 6 T T *",
        },
        Row {
            what: "all are dead",
            before: &["waits z:1:2", "waits y:2:4", "dead z", "dead y"],
            call: "poll waiter_ttl=0",
            reply: "polled 0 0 0 0 - 0 0 T -2",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2",
        },
        Row {
            what: "one who left is passed over",
            before: &["waits d:1:2", "waits d:2:3", "ZREM deadlines d:1:2"],
            call: "poll waiter_ttl=0",
            reply: "polled 0 0 0 0 d:2 3 T T 3000",
            after: "lock d:2=1 3,T,T,3000/L",
            again: "polled 0 0 0 0 d:2 3 T T *",
        },
    ];
    limit(check(&rows)).await;
}

/// Somebody deletes one key of a name by hand.
#[tokio::test]
async fn deletion_rows() {
    let rows = [
        Row {
            what: "the list was deleted: a retry gets a new place",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:5", "DEL queue"],
            call: "acquire",
            reply: "queued 7 * 0 0",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "the list was deleted: no ticket from before has a place",
            before: &["held e:1 2 7", "waits d:2:3", "waits c:1:4", "DEL queue"],
            call: "acquire",
            reply: "queued 7 * 0 0",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "queued 7 * 0 1",
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
            reply: "polled 0 0 0 0 e:1 2 7 7 * 1",
            after: "lock e:1=1 2,7,0,3000/L",
            again: "polled 0 0 0 0 e:1 2 7 7 * 1",
        },
        Row {
            what: "the sorted set was deleted: a retry gets a new place",
            before: &["held e:1 2 7", "waits c:1:5", "waits d:2:3", "DEL deadlines"],
            call: "acquire",
            reply: "queued 7 * 0 0",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 c:1:5 | clients c | tickets c:1:5",
            again: "queued 7 * 0 1",
        },
        Row {
            what: "the sorted set was deleted: a poll says so",
            before: &["held e:1 2 7", "waits c:1:5", "waits d:2:3", "DEL deadlines"],
            call: "poll tickets=c:1:5",
            reply: "polled 0 0 2 1 e:1 2 7 7 * 1",
            after: "lock e:1=1 2,7,0,3000/L | queue c:1:5 d:2:3 | clients c | tickets none",
            again: "polled 0 1 2 1 e:1 2 7 7 * 1",
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
            reply: "polled 0 1 1 * d:2 3 T T 3000",
            after: "lock d:2=1 3,T,T,3000/L | queue c:1:5 | clients c d",
            again: "polled 0 1 1 1 d:2 3 T T *",
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
            reply: "polled 0 0 0 0 - 0 0 T -2 1",
            after: "",
            again: "polled 0 0 0 0 - 0 0 T -2 1",
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
            what: "the last hold, the first in line is unreachable: marked, and keeps its place",
            before: &["held c:1 4 7", "waits x:1:2", "waits d:2:3", "waits x:2:4"],
            call: "release",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | queue x:1:2 x:2:4 | clients d -x",
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
            after: "queue x:1:2 z:2:3 | clients -x !-z",
            again: "gone 0",
        },
        Row {
            what: "one of several",
            before: &["held c:1 4 7", "HSET lock c:1 3"],
            call: "release holds=2:7",
            reply: "held 2",
            after: "lock c:1=2 5,7,0,3000/L",
            again: "held 2",
        },
        Row {
            what: "one of several, of a lost hold",
            before: &["held c:1 4 8"],
            call: "release holds=2:7",
            reply: "lost",
            after: "lock c:1=1 4,8,0,3000/L",
            again: "lost",
        },
        Row {
            what: "one of several, a late copy",
            before: &["held c:1 6 7"],
            call: "release holds=2:7",
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
            call: "release late=+2000~c:1:4/3000/L",
            reply: "freed 7 0",
            after: "tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a copy of the acquire may come, and one waits",
            before: &["held c:1 4 7", "waits d:2:3"],
            call: "release late=+2000~c:1:4/3000/L",
            reply: "freed 7 0",
            after: "lock d:2=1 3,T,T,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "a late copy of the acquire is in the queue, and another may come",
            before: &["held d:1 9 7", "waits c:1:4"],
            call: "release late=+2000~c:1:4/3000/L",
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
            after: "queue x:1:2 | clients -x",
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
            // With a waiter, a second run ends the waiter's hold. That is why the client never retries it.
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
            reply: "inspected  0 0 0 0  -2 0",
            after: "",
            again: "inspected  0 0 0 0  -2 0",
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
            reply: "inspected d:1 1 7 0 0 L * 3 c:1:5 * L d:2:3 * L x:1:4 * L",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 z:2:6 d:2:3 x:1:4 | clients c d -x !z",
            again: "inspected d:1 1 7 0 0 L * 3 c:1:5 * L d:2:3 * L x:1:4 * L",
        },
        Row {
            what: "one who left does not count",
            before: &["waits c:1:5", "waits d:2:3", "ZREM deadlines c:1:5"],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 1 d:2:3 * L",
            after: "queue c:1:5 d:2:3 | clients c d | tickets d:2:3",
            again: "inspected  0 0 0 0  -2 1 d:2:3 * L",
        },
        Row {
            what: "since when, and a label with spaces and slashes",
            before: &["HSET lock d:1 2 !grant 2~7~1700000001~42~3000/a~b/9/c:1:1/~", "PEXPIRE lock 9000"],
            call: "inspect",
            reply: "inspected d:1 2 7 1700000001 42 a b/9/c:1:1/  * 0",
            after: "lock d:1=2 2,7,T,3000/a b/9/c:1:1/ ",
            again: "inspected d:1 2 7 1700000001 42 a b/9/c:1:1/  * 0",
        },
        Row {
            what: "a label that looks like a place",
            before: &["waits c:1:5", "waits c:2:6/3000/a/d:1:2/5/"],
            call: "inspect",
            reply: "inspected  0 0 0 0  -2 2 c:1:5 * L c:2:6 * a/d:1:2/5/",
            after: "queue c:1:5 c:2:6/3000/a/d:1:2/5/ | clients c",
            again: "inspected  0 0 0 0  -2 2 c:1:5 * L c:2:6 * a/d:1:2/5/",
        },
        Row {
            what: "only whether it is held",
            before: &["held d:1 2 7", "waits c:1:5"],
            call: "inspect most=0",
            reply: "inspected d:1 1 7 0 0 L * 1",
            after: "lock d:1=1 2,7,0,3000/L | queue c:1:5 | clients c",
            again: "inspected d:1 1 7 0 0 L * 1",
        },
    ];
    limit(check(&rows)).await;
}
