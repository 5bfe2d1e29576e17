//! Each script for shared names alone, on a real server and on the embedded one, as in scripts.rs.

use crate::bench::{Bench, Row, check};
use crate::support::limit;

/// R1: a retry gets the same answer. R2: a late one is refused. R3: so is a copy after the leave. R6: those who wait come first.
#[tokio::test]
async fn acquire_rows() {
    check(&[
        Row {
            what: "nobody holds it",
            before: &[],
            call: "shared/acquire",
            reply: "held T 1 10000 0",
            after: "room 1 c:1=1,5,T,1,1,3000/L",
            again: "held T 1 * 1",
        },
        Row {
            what: "a heavy one, with a label",
            before: &[],
            call: "shared/acquire terms=3,5,9000/a~b,c/d",
            reply: "held T 1 10000 0",
            after: "room 3 c:1=1,5,T,3,5,9000/a b,c/d",
            again: "held T 1 * 5",
        },
        Row {
            what: "there is room beside others",
            before: &["holds d:1 2 7 2,5", "holds e:1 3 8 2,5"],
            call: "shared/acquire terms=1,5,3000/L",
            reply: "held T 1 10000 5",
            after: "room 5 c:1=1,5,T,1,5,3000/L d:1=1,2,7,2,5,3000/L e:1=1,3,8,2,5,3000/L",
            again: "held T 1 * 5",
        },
        Row {
            what: "no room: queued",
            before: &["holds d:1 2 7 2,5", "holds e:1 3 8 2,5"],
            call: "shared/acquire terms=2,5,3000/L",
            reply: "queued T * 0 0 5",
            after: "room 4 d:1=1,2,7,2,5,3000/L e:1=1,3,8,2,5,3000/L | queue c:1:5/2,5,3000/L | clients c",
            again: "queued T * 0 1 5",
        },
        Row {
            what: "no room: busy",
            before: &["holds d:1 2 7 1,1"],
            call: "shared/acquire mode=0",
            reply: "busy 0",
            after: "room 1 d:1=1,2,7,1,1,3000/L",
            again: "busy 0",
        },
        Row {
            what: "its own client's limit counts, which may be another one",
            before: &["holds d:1 2 7 1,1"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000 1",
            after: "room 2 c:1=1,5,T,1,2,3000/L d:1=1,2,7,1,1,3000/L",
            again: "held T 1 * 2",
        },
        Row {
            what: "the limit that is set wins over a smaller one",
            before: &["holds d:1 2 7 1,1", "SET limit 2"],
            call: "shared/acquire",
            reply: "held T 1 10000 1",
            after: "room 2 c:1=1,5,T,1,1,3000/L d:1=1,2,7,1,1,3000/L | limit 2",
            again: "held T 1 * 1",
        },
        Row {
            what: "the limit that is set wins over a greater one",
            before: &["holds d:1 2 7 1,9", "SET limit 1"],
            call: "shared/acquire terms=1,9,3000/L",
            reply: "queued T * 0 0 9",
            after: "room 1 d:1=1,2,7,1,9,3000/L | limit 1 | queue c:1:5/1,9,3000/L | clients c",
            again: "queued T * 0 1 9",
        },
        Row {
            what: "a weight above the limit of its client",
            before: &[],
            call: "shared/acquire terms=3,2,3000/L",
            reply: "heavy 2",
            after: "",
            again: "heavy 2",
        },
        Row {
            what: "a weight above the limit that is set",
            before: &["SET limit 2"],
            call: "shared/acquire terms=3,5,3000/L",
            reply: "heavy 2",
            after: "limit 2",
            again: "heavy 2",
        },
        Row {
            what: "one that waits already stays, and fits no longer",
            before: &["SET limit 2", "queues c:1:5/3,5,3000/L"],
            call: "shared/acquire terms=3,5,3000/L",
            reply: "queued T -2 0 1 0",
            after: "limit 2 | queue c:1:5/3,5,3000/L | clients c",
            again: "queued T -2 0 1 0",
        },
        Row {
            what: "a limit of 0 pauses, and refuses nobody",
            before: &["SET limit 0"],
            call: "shared/acquire",
            reply: "queued T -2 0 0 0",
            after: "limit 0 | queue c:1:5 | clients c",
            again: "queued T -2 0 1 0",
        },
        Row {
            what: "a limit of 0: busy",
            before: &["SET limit 0"],
            call: "shared/acquire mode=0",
            reply: "busy 0",
            after: "limit 0",
            again: "busy 0",
        },
        Row {
            what: "somebody waits who has no room: a newcomer that would fit queues behind",
            before: &["holds d:1 2 7 3,5", "queues e:1:3/5,5,3000/L"],
            call: "shared/acquire terms=1,5,3000/L",
            reply: "queued T * 0 0 5",
            after: "room 3 d:1=1,2,7,3,5,3000/L | queue e:1:3/5,5,3000/L c:1:5/1,5,3000/L | clients c e",
            again: "queued T * 0 1 5",
        },
        Row {
            what: "somebody waits who has no room: busy",
            before: &["holds d:1 2 7 3,5", "queues e:1:3/5,5,3000/L"],
            call: "shared/acquire terms=1,5,3000/L mode=0",
            reply: "busy 0",
            after: "room 3 d:1=1,2,7,3,5,3000/L | queue e:1:3/5,5,3000/L | clients e",
            again: "busy 0",
        },
        Row {
            what: "there is room for those who wait: they come in first",
            before: &["queues d:1:2/2,3,3000/L", "queues e:1:3/1,3,3000/L", "queues e:2:3/1,3,3000/L"],
            call: "shared/acquire terms=1,3,3000/L",
            reply: "queued T * 0 0 0",
            after: "room 3 d:1=1,2,T,2,3,3000/L e:1=1,3,T,1,3,3000/L | queue e:2:3/1,3,3000/L c:1:5/1,3,3000/L | clients c d e",
            again: "queued T * 0 1 3",
        },
        Row {
            what: "those who wait come in, and then the newcomer",
            before: &["queues d:1:2/2,4,3000/L"],
            call: "shared/acquire terms=2,4,3000/L mode=0",
            reply: "held T 1 10000 0",
            after: "room 4 c:1=1,5,T,2,4,3000/L d:1=1,2,T,2,4,3000/L",
            again: "held T 1 * 4",
        },
        Row {
            what: "one that waits asks again when there is room: it is served in the answer",
            before: &["queues c:1:5/2,4,3000/L", "queues d:1:2/2,4,3000/L"],
            call: "shared/acquire terms=2,4,3000/L",
            reply: "held T 1 10000 0",
            after: "room 4 c:1=1,5,T,2,4,3000/L d:1=1,2,T,2,4,3000/L",
            again: "held T 1 * 4",
        },
        Row {
            what: "only dead ones wait",
            before: &["queues z:1:2", "queues z:2:3", "dead z"],
            call: "shared/acquire mode=0",
            reply: "held T 1 10000 0",
            after: "room 1 c:1=1,5,T,1,1,3000/L",
            again: "held T 1 * 1",
        },
        Row {
            what: "an unreachable one in front, which does not fit either, is passed over (P6)",
            before: &["holds d:1 2 7 1,2", "queues x:1:2/2,2,3000/L", "queues e:1:3/1,2,3000/L"],
            call: "shared/acquire terms=1,2,3000/L mode=0",
            reply: "busy 0",
            after: "room 2 d:1=1,2,7,1,2,3000/L e:1=1,3,T,1,2,3000/L | queue x:1:2/2,2,3000/L | clients e x",
            again: "busy 0",
        },
        Row {
            what: "a lease is over, and there is no room without its end",
            before: &["holds d:1 2 7 1,2 -5", "holds e:1 3 8 1,2"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000 2",
            after: "room 2 c:1=1,5,T,1,2,3000/L e:1=1,3,8,1,2,3000/L",
            again: "held T 1 * 2",
        },
        Row {
            what: "a lease is over, and there is room beside it: it stays",
            before: &["holds d:1 2 7 1,3 -5", "holds e:1 3 8 1,3"],
            call: "shared/acquire terms=1,3,3000/L",
            reply: "held T 1 10000 3",
            after: "room 3 c:1=1,5,T,1,3,3000/L d:1=1,2,7,1,3,3000/L e:1=1,3,8,1,3,3000/L",
            again: "held T 1 * 3",
        },
        Row {
            what: "a summary that counts too much is made right when it matters",
            before: &["holds d:1 2 7 1,2 -5", "holds e:1 3 8 1,2", "HDEL lock #d:1", "HSET lock !used 2~2~1~2~8"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000 2",
            after: "room 2 c:1=1,5,T,1,2,3000/L e:1=1,3,8,1,2,3000/L",
            again: "held T 1 * 2",
        },
        Row {
            what: "a retry of a grant gets the full lease",
            before: &["holds c:1 5 7 1,1 1000"],
            call: "shared/acquire",
            reply: "held 7 1 10000 1",
            after: "room 1 c:1=1,5,7,1,1,3000/L",
            again: "held 7 1 * 1",
        },
        Row {
            what: "a retry never shortens the lease",
            before: &["holds c:1 5 7 1,1"],
            call: "shared/acquire lease=500",
            reply: "held 7 1 * 1",
            after: "room 1 c:1=1,5,7,1,1,3000/L",
            again: "held 7 1 * 1",
        },
        Row {
            what: "an attempt after a lost hold ends that (decision 3)",
            before: &["holds c:1 4 7 2,2"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000 2",
            after: "room 1 c:1=1,5,T,1,2,3000/L",
            again: "held T 1 * 2",
        },
        Row {
            what: "an attempt after a lost hold, with others waiting",
            before: &["holds c:1 4 7 2,2", "queues d:1:2/2,2,3000/L"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "queued T * 0 0 2",
            after: "room 2 d:1=1,2,T,2,2,3000/L | queue c:1:5/1,2,3000/L | clients c d",
            again: "queued T * 0 1 2",
        },
        Row {
            what: "an earlier attempt than the one that was served",
            before: &["holds c:1 6 7 1,1"],
            call: "shared/acquire",
            reply: "stale",
            after: "room 1 c:1=1,6,7,1,1,3000/L",
            again: "stale",
        },
        Row {
            what: "a copy after the leave",
            before: &["tombstone c:1 5"],
            call: "shared/acquire",
            reply: "left",
            after: "tombstone c:1=5",
            again: "left",
        },
        Row {
            what: "too late",
            before: &[],
            call: "shared/acquire not_after=+-1",
            reply: "late",
            after: "",
            again: "late",
        },
        Row {
            what: "one more hold, past those who wait",
            before: &["holds c:1 4 7 1,1", "queues d:1:2"],
            call: "shared/acquire mode=1:7",
            reply: "held 7 2 * 1",
            after: "room 1 c:1=2,5,7,1,1,3000/L | queue d:1:2 | clients d",
            again: "held 7 2 * 1",
        },
        Row {
            what: "one more hold, of one under another token",
            before: &["holds c:1 4 7 1,1"],
            call: "shared/acquire mode=1:8",
            reply: "lost",
            after: "room 1 c:1=1,4,7,1,1,3000/L",
            again: "lost",
        },
        Row {
            what: "one more hold, whose lease is over",
            before: &["holds c:1 4 7 1,1 -5"],
            call: "shared/acquire mode=1:7",
            reply: "lost",
            after: "room 1 c:1=1,4,7,1,1,3000/L",
            again: "lost",
        },
        Row {
            what: "as many wait as may",
            before: &["holds d:1 2 7 1,1", "queues e:1:3"],
            call: "shared/acquire max_waiters=1",
            reply: "full 1 0",
            after: "room 1 d:1=1,2,7,1,1,3000/L | queue e:1:3 | clients e",
            again: "full 1 0",
        },
        Row {
            what: "frozen: queued until the freeze is over",
            before: &["frozen 3600000", "queues d:1:2"],
            call: "shared/acquire boot=1",
            reply: "queued T * 0 0 0",
            after: "queue d:1:2 c:1:5 | clients c d",
            again: "queued T * 0 1 0",
        },
        Row {
            what: "the freeze is over",
            before: &["frozen -1", "queues d:1:2/1,2,3000/L"],
            call: "shared/acquire boot=1 terms=1,2,3000/L",
            reply: "held T 1 10000 0",
            after: "room 2 c:1=1,5,T,1,2,3000/L d:1=1,2,T,1,2,3000/L",
            again: "held T 1 * 2",
        },
    ])
    .await;
}

/// The count and the weight are set: a retry gets the same answer.
#[tokio::test]
async fn release_rows() {
    check(&[
        Row {
            what: "the only holder",
            before: &["holds c:1 4 7 1,1"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "",
            again: "gone 0",
        },
        Row {
            what: "one of two",
            before: &["holds c:1 4 7 1,2", "holds d:1 2 8 1,2"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,8,1,2,3000/L",
            again: "gone 0",
        },
        Row {
            what: "it is handed over",
            before: &["holds c:1 4 7 1,1", "queues d:1:2", "queues e:1:3"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,T,1,1,3000/L | queue e:1:3 | clients d e",
            again: "gone 0",
        },
        Row {
            what: "a heavy one makes room for several",
            before: &[
                "holds c:1 4 7 3,3",
                "queues d:1:2/1,3,3000/L",
                "queues e:1:3/2,3,3000/L",
                "queues e:2:3/1,3,3000/L",
            ],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 3 d:1=1,2,T,1,3,3000/L e:1=1,3,T,2,3,3000/L | queue e:2:3/1,3,3000/L | clients d e",
            again: "gone 0",
        },
        Row {
            what: "a heavy one at the front blocks those behind it",
            before: &["holds c:1 4 7 1,3", "holds d:1 2 8 1,3", "queues d:2:2/3,3,3000/L", "queues e:1:3/1,3,3000/L"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,8,1,3,3000/L | queue d:2:2/3,3,3000/L e:1:3/1,3,3000/L | clients d e",
            again: "gone 0",
        },
        Row {
            what: "the next ticket is of the owner that releases",
            before: &["holds c:1 4 7 1,1", "queues c:1:6"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 c:1=1,6,T,1,1,3000/L",
            again: "gone 0",
        },
        Row {
            what: "the next one has an unreachable client before it",
            before: &["holds c:1 4 7 1,1", "queues x:1:2", "queues d:1:2"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,T,1,1,3000/L | queue x:1:2 | clients d x",
            again: "gone 0",
        },
        Row {
            what: "after the end of its lease",
            before: &["holds c:1 4 7 1,2 -5", "holds d:1 2 8 1,2"],
            call: "shared/release",
            reply: "gone 0",
            after: "room 1 d:1=1,2,8,1,2,3000/L",
            again: "gone 0",
        },
        Row {
            what: "a later attempt is not touched (R4)",
            before: &["holds c:1 6 7 1,1"],
            call: "shared/release",
            reply: "gone 0",
            after: "room 1 c:1=1,6,7,1,1,3000/L",
            again: "gone 0",
        },
        Row {
            what: "one of two holds",
            before: &["holds c:1 4 7 1,1", "HSET lock #c:1 2~4~7~99999999999999~1,1,3000/L"],
            call: "shared/release special=1:7:1",
            reply: "held 1 0",
            after: "room 1 c:1=1,5,7,1,1,3000/L",
            again: "held 1 0",
        },
        Row {
            what: "a smaller weight makes room",
            before: &["holds c:1 4 7 3,3", "queues d:1:2/2,3,3000/L", "queues e:1:3/1,3,3000/L"],
            call: "shared/release special=1:7:1",
            reply: "held 1 0",
            after: "room 3 c:1=1,5,7,1,3,3000/L d:1=1,2,T,2,3,3000/L | queue e:1:3/1,3,3000/L | clients d e",
            again: "held 1 0",
        },
        Row {
            what: "never a greater weight",
            before: &["holds c:1 4 7 2,3"],
            call: "shared/release special=1:7:3",
            reply: "held 1 0",
            after: "room 2 c:1=1,5,7,2,3,3000/L",
            again: "held 1 0",
        },
        Row {
            what: "a smaller weight, under another token",
            before: &["holds c:1 4 7 3,3"],
            call: "shared/release special=1:8:1",
            reply: "lost",
            after: "room 3 c:1=1,4,7,3,3,3000/L",
            again: "lost",
        },
        Row {
            what: "a copy of the acquire may be under way",
            before: &["holds c:1 4 7 1,1", "queues c:1:4", "queues d:1:2"],
            call: "shared/release special=+2000~!3/c:1:4/1,1,3000/L",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,T,1,1,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "of a handle, under another token",
            before: &["holds c:1 4 7 1,1"],
            call: "shared/release special=0:8:0",
            reply: "gone 0",
            after: "room 1 c:1=1,4,7,1,1,3000/L",
            again: "gone 0",
        },
        Row {
            what: "frozen: nobody comes in",
            before: &["frozen 3600000", "holds c:1 4 7 1,1", "queues d:1:2"],
            call: "shared/release boot=1",
            reply: "freed 7 0",
            after: "queue d:1:2 | clients d",
            again: "gone 0",
        },
    ])
    .await;
}

#[tokio::test]
async fn leave_rows() {
    check(&[
        Row {
            what: "of a holder",
            before: &["holds c:1 5 7 1,2", "holds d:1 2 8 1,2", "queues e:1:3/1,2,3000/L"],
            call: "shared/leave",
            reply: "freed 7 0",
            after: "room 2 d:1=1,2,8,1,2,3000/L e:1=1,3,T,1,2,3000/L",
            again: "gone 0",
        },
        Row {
            what: "of a waiter",
            before: &["holds d:1 2 7 1,1", "queues e:1:3", "queues c:1:5"],
            call: "shared/leave",
            reply: "gone 0",
            after: "room 1 d:1=1,2,7,1,1,3000/L | queue e:1:3 | clients c e",
            again: "gone 0",
        },
        Row {
            what: "of a heavy one at the front: those behind it come in",
            before: &[
                "holds d:1 2 7 1,3",
                "queues c:1:5/3,3,3000/L",
                "queues e:1:3/1,3,3000/L",
                "queues e:2:3/1,3,3000/L",
            ],
            call: "shared/leave place=!3/c:1:5/3,3,3000/L",
            reply: "gone 0",
            after: "room 3 d:1=1,2,7,1,3,3000/L e:1=1,3,T,1,3,3000/L e:2=1,3,T,1,3,3000/L",
            again: "gone 0",
        },
        Row {
            what: "of the only waiter",
            before: &["holds d:1 2 7 1,1", "queues c:1:5"],
            call: "shared/leave copies_until=+2000",
            reply: "gone 0",
            after: "room 1 d:1=1,2,7,1,1,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "of an earlier attempt: the later one is not touched (R4)",
            before: &["holds c:1 6 7 1,1"],
            call: "shared/leave",
            reply: "gone 0",
            after: "room 1 c:1=1,6,7,1,1,3000/L",
            again: "gone 0",
        },
    ])
    .await;
}

/// R8: which tickets wait, which hold the name, and which do neither.
#[tokio::test]
async fn poll_rows() {
    check(&[
        Row {
            what: "waits",
            before: &["holds d:1 2 7 1,1", "queues c:1:5", "queues e:1:3"],
            call: "shared/poll tickets=c:1:5,c:1:6",
            reply: "shared 0 1 2 1 T * -1 + -",
            after: "room 1 d:1=1,2,7,1,1,3000/L | queue c:1:5 e:1:3 | clients c e",
            again: "shared 0 1 2 1 T * -1 + -",
        },
        Row {
            what: "was granted",
            before: &["holds c:1 5 7 1,3", "holds c:2 6 8 1,3 5000", "queues c:3:5/3,3,3000/L"],
            call: "shared/poll tickets=c:1:5,c:2:6,c:2:7,c:3:5",
            reply: "shared 0 1 1 1 T * -1 c:1 5 7 * c:2 6 8 * - +",
            after: "room 2 c:1=1,5,7,1,3,3000/L c:2=1,6,8,1,3,3000/L | queue c:3:5/3,3,3000/L | clients c",
            again: "shared 0 1 1 1 T * -1 c:1 5 7 * c:2 6 8 * - +",
        },
        Row {
            what: "is granted in this call",
            before: &["queues c:1:5/1,2,3000/L", "queues d:1:2/1,2,3000/L", "queues c:2:5/1,2,3000/L"],
            call: "shared/poll tickets=c:1:5,c:2:5",
            reply: "shared 0 1 1 1 T 3000 -1 c:1 5 T 3000 +",
            after: "room 2 c:1=1,5,T,1,2,3000/L d:1=1,2,T,1,2,3000/L | queue c:2:5/1,2,3000/L | clients c d",
            again: "shared 0 1 1 1 T * -1 c:1 5 T * +",
        },
        Row {
            what: "the end of a lease lets the next one in",
            before: &[
                "holds e:1 2 7 1,2 -5",
                "holds e:2 2 8 1,2",
                "queues d:1:2/1,2,3000/L",
                "queues c:1:5/1,2,3000/L",
            ],
            call: "shared/poll tickets=c:1:5",
            reply: "shared 0 1 1 0 T 3000 -1 +",
            after: "room 2 d:1=1,2,T,1,2,3000/L e:2=1,2,8,1,2,3000/L | queue c:1:5/1,2,3000/L | clients c d",
            again: "shared 0 1 1 1 T * -1 +",
        },
        Row {
            what: "an end that was put off is looked up again",
            before: &["holds e:1 2 7 1,1 -5", "HSET lock #e:1 1~2~7~99999999999999~1,1,3000/L", "queues c:1:5"],
            call: "shared/poll tickets=c:1:5",
            reply: "shared 0 1 1 1 T * -1 +",
            after: "room 1 e:1=1,2,7,1,1,3000/L | queue c:1:5 | clients c",
            again: "shared 0 1 1 1 T * -1 +",
        },
        Row {
            what: "what a client holds is named for its farewells",
            before: &["holds c:1 5 7 1,3", "holds d:1 6 8 1,3", "holds c:2 6 9 1,3 -5"],
            call: "shared/poll waits=2",
            reply: "shared 0 0 0 0 T 0 -1 c:1 5 7 *",
            after: "room 3 c:1=1,5,7,1,3,3000/L c:2=1,6,9,1,3,3000/L d:1=1,6,8,1,3,3000/L",
            again: "shared 0 0 0 0 T 0 -1 c:1 5 7 *",
        },
        Row {
            what: "only serves the queue",
            before: &["queues d:1:2"],
            call: "shared/poll waits=0",
            reply: "shared 0 0 0 0 T 3000 -1",
            after: "room 1 d:1=1,2,T,1,1,3000/L",
            again: "shared 0 0 0 0 T * -1",
        },
        Row {
            what: "frozen",
            before: &["frozen 3600000", "queues c:1:5"],
            call: "shared/poll boot=1 tickets=c:1:5",
            reply: "shared 0 1 1 1 T -2 * +",
            after: "queue c:1:5 | clients c",
            again: "shared 0 1 1 1 T -2 * +",
        },
        Row {
            what: "paused",
            before: &["SET limit 0", "queues c:1:5"],
            call: "shared/poll tickets=c:1:5",
            reply: "shared 0 1 1 1 T -2 -1 +",
            after: "limit 0 | queue c:1:5 | clients c",
            again: "shared 0 1 1 1 T -2 -1 +",
        },
    ])
    .await;
}

#[tokio::test]
async fn renew_rows() {
    check(&[
        Row {
            what: "the full lease",
            before: &["holds c:1 5 7 1,2 1000", "holds d:1 2 8 1,2"],
            call: "shared/renew token=7",
            reply: "renewed 10000",
            after: "room 2 c:1=1,5,7,1,2,3000/L d:1=1,2,8,1,2,3000/L",
            again: "renewed *",
        },
        Row {
            what: "never a shorter one",
            before: &["holds c:1 5 7 1,2"],
            call: "shared/renew token=7 lease=500",
            reply: "renewed *",
            after: "room 1 c:1=1,5,7,1,2,3000/L",
            again: "renewed *",
        },
        Row {
            what: "a shorter one after a grant",
            before: &["holds c:1 5 7 1,2"],
            call: "shared/renew token=7 lease=500 only=5",
            reply: "renewed 500",
            after: "room 1 c:1=1,5,7,1,2,3000/L",
            again: "renewed *",
        },
        Row {
            what: "an extend is the last request",
            before: &["holds c:1 5 7 1,2"],
            call: "shared/renew token=7 lease=20000 only=+6",
            reply: "renewed 20000",
            after: "room 1 c:1=1,6,7,1,2,3000/L",
            again: "renewed *",
        },
        Row {
            what: "another token",
            before: &["holds c:1 5 7 1,2"],
            call: "shared/renew token=8",
            reply: "lost",
            after: "room 1 c:1=1,5,7,1,2,3000/L",
            again: "lost",
        },
        Row {
            what: "after its end",
            before: &["holds c:1 5 7 1,2 -5", "holds d:1 2 8 1,2"],
            call: "shared/renew token=7",
            reply: "lost",
            after: "room 2 c:1=1,5,7,1,2,3000/L d:1=1,2,8,1,2,3000/L",
            again: "lost",
        },
    ])
    .await;
}

#[tokio::test]
async fn force_unlock_and_set_limit_rows() {
    check(&[
        Row {
            what: "the hold with this token ends, and the next one comes in",
            before: &["holds d:1 2 7 1,2", "holds e:1 3 8 1,2", "queues d:2:2/1,2,3000/L"],
            call: "shared/force_unlock expected=7",
            reply: "freed 7 0",
            after: "room 2 d:2=1,2,T,1,2,3000/L e:1=1,3,8,1,2,3000/L",
            again: "free 0",
        },
        Row {
            what: "no hold has this token",
            before: &["holds d:1 2 7 1,2"],
            call: "shared/force_unlock expected=9",
            reply: "free 0",
            after: "room 1 d:1=1,2,7,1,2,3000/L",
            again: "free 0",
        },
        Row {
            what: "too late",
            before: &["holds d:1 2 7 1,2"],
            call: "shared/force_unlock expected=7 not_after=+-1",
            reply: "late",
            after: "room 1 d:1=1,2,7,1,2,3000/L",
            again: "late",
        },
        Row {
            what: "a higher limit serves those who wait",
            before: &["holds d:1 2 7 1,1", "queues d:2:2", "queues e:1:3", "queues e:2:3"],
            call: "shared/set_limit permits=3",
            reply: "set 0",
            after: "room 3 d:1=1,2,7,1,1,3000/L d:2=1,2,T,1,1,3000/L e:1=1,3,T,1,1,3000/L | limit 3 | queue e:2:3 | clients d e",
            again: "set 0",
        },
        Row {
            what: "a lower limit takes nothing",
            before: &["holds d:1 2 7 2,3", "holds e:1 3 8 1,3", "queues d:2:2/1,3,3000/L"],
            call: "shared/set_limit permits=1",
            reply: "set 0",
            after: "room 3 d:1=1,2,7,2,3,3000/L e:1=1,3,8,1,3,3000/L | limit 1 | queue d:2:2/1,3,3000/L | clients d",
            again: "set 0",
        },
        Row {
            what: "no limit any more: that of each client counts again",
            before: &["SET limit 0", "queues d:1:2/1,2,3000/L", "queues e:1:3/1,1,3000/L"],
            call: "shared/set_limit",
            reply: "set 0",
            after: "room 1 d:1=1,2,T,1,2,3000/L | queue e:1:3 | clients d e",
            again: "set 0",
        },
        Row {
            what: "set too late",
            before: &[],
            call: "shared/set_limit permits=3 not_after=+-1",
            reply: "late",
            after: "",
            again: "late",
        },
    ])
    .await;
}

#[tokio::test]
async fn inspect_rows() {
    check(&[
        Row {
            what: "nothing",
            before: &[],
            call: "shared/inspect",
            reply: "shared 0 -1 0 0 -1 0",
            after: "",
            again: "shared 0 -1 0 0 -1 0",
        },
        Row {
            what: "holders in the order of their tokens, and those who wait",
            before: &[
                "SET limit 3",
                "holds d:1 2 8 2,5",
                "holds c:1 5 7 1,4",
                "holds e:1 3 9 1,4 -5",
                "queues e:1:3/2,5,3000/a~b",
                "queues z:1:3",
                "dead z",
            ],
            call: "shared/inspect",
            reply: "shared 3 3 2 1 -1 2 c:1 1 7 * 1 4 L d:1 1 8 * 2 5 L e:1:3 * 2 5 a b",
            after: "room 4 c:1=1,5,7,1,4,3000/L d:1=1,2,8,2,5,3000/L e:1=1,3,9,1,4,3000/L | limit 3 | queue e:1:3/2,5,3000/a b z:1:3 | clients e !z",
            again: "shared 3 3 2 1 -1 2 c:1 1 7 * 1 4 L d:1 1 8 * 2 5 L e:1:3 * 2 5 a b",
        },
    ])
    .await;
}

/// Whoever meets a name of another kind changes nothing, and says which kind it is.
#[tokio::test]
async fn a_name_of_another_kind_is_refused_and_not_changed() {
    const LOCK: [&str; 8] = [
        "acquire",
        "acquire mode=0",
        "poll",
        "poll waits=0",
        "force_unlock",
        "release",
        "release owner=c:3",
        "inspect",
    ];
    const SHARED: [&str; 9] = [
        "shared/acquire",
        "shared/acquire mode=0",
        "shared/poll tickets=c:1:5",
        "shared/poll waits=2",
        "shared/release",
        "shared/leave copies_until=+2000",
        "shared/force_unlock expected=7",
        "shared/set_limit permits=3",
        "shared/inspect",
    ];
    limit(async {
        for mut bench in Bench::each().await {
            let of = |calls: &[&str], kind: &str| calls.iter().map(|call| format!("{call}{kind}")).collect::<Vec<_>>();
            let cases: [(&[&str], Vec<String>, &str); 9] = [
                (&["holds c:1 5 7 1,1"], of(&LOCK, ""), "semaphore, asked as lock"),
                (&["holds c:1 5 7 1,1", "queues d:1:2"], of(&LOCK, ""), "semaphore, asked as lock"),
                (&["queues d:1:2"], of(&LOCK[..7], ""), "semaphore, asked as lock"),
                (&["holds c:1 5 7 1,1"], of(&SHARED, " kind=4"), "semaphore, asked as rw_lock"),
                (&["queues d:1:2"], of(&SHARED, " kind=4"), "semaphore, asked as rw_lock"),
                (&["SET limit 3"], of(&SHARED, " kind=4"), "semaphore, asked as rw_lock"),
                (&["held c:1 5 7"], of(&SHARED, ""), "lock, asked as semaphore"),
                (&["waits d:1:2"], of(&SHARED, ""), "lock, asked as semaphore"),
                (&["holds c:1 5 7 1,1", "HSET lock !format 4"], of(&SHARED, ""), "rw_lock, asked as semaphore"),
            ];
            for (steps, calls, text) in cases {
                for call in calls {
                    bench.command("FLUSHALL").await;
                    for step in steps {
                        bench.prepare(step).await;
                    }
                    let before = bench.dump().await;
                    let refused = bench.try_call(&call).await.expect_err(&format!("{call}: {steps:?}"));
                    assert_eq!(refused.code, "OTHERKIND", "{call}: {refused:?}");
                    assert!(refused.text.contains(text), "{call}, {steps:?}: {refused:?}");
                    assert_eq!(bench.dump().await, before, "{call}, {steps:?}");
                }
            }
        }
    })
    .await;
}
