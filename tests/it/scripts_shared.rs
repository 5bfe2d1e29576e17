//! Each script for shared names alone, on a real server and on the embedded one, as in scripts.rs.

use crate::bench::{Bench, Row, check, flatten, key, pairs};
use crate::support::{Server, limit};

/// R1: a retry gets the same answer. R2: the script refuses a late request. R3: it also refuses a copy that arrives
/// after the leave. R6: waiters come first.
#[tokio::test]
async fn acquire_rows() {
    check(&[
        Row {
            what: "nobody holds it",
            before: &[],
            call: "shared/acquire",
            reply: "held T 1 10000",
            after: "room 1 c:1=1,5,T,1,1,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "a heavy one, with a label",
            before: &[],
            call: "shared/acquire terms=3,5,9000/a~b,c/d",
            reply: "held T 1 10000",
            after: "room 3 c:1=1,5,T,3,5,9000/a b,c/d",
            again: "held T 1 *",
        },
        Row {
            what: "there is room beside others",
            before: &["holds d:1 2 7 2,5", "holds e:1 3 8 2,5"],
            call: "shared/acquire terms=1,5,3000/L",
            reply: "held T 1 10000",
            after: "room 5 c:1=1,5,T,1,5,3000/L d:1=1,2,7,2,5,3000/L e:1=1,3,8,2,5,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "no room: queued",
            before: &["holds d:1 2 7 2,5", "holds e:1 3 8 2,5"],
            call: "shared/acquire terms=2,5,3000/L",
            reply: "queued T * 0 0",
            after: "room 4 d:1=1,2,7,2,5,3000/L e:1=1,3,8,2,5,3000/L | queue c:1:5/2,5,3000/L | clients c",
            again: "queued T * 0 1",
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
            reply: "held T 1 10000",
            after: "room 2 c:1=1,5,T,1,2,3000/L d:1=1,2,7,1,1,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "the limit that is set wins over a smaller one",
            before: &["holds d:1 2 7 1,1", "SET limit 2"],
            call: "shared/acquire",
            reply: "held T 1 10000",
            after: "room 2 c:1=1,5,T,1,1,3000/L d:1=1,2,7,1,1,3000/L | limit 2",
            again: "held T 1 *",
        },
        Row {
            what: "the limit that is set wins over a greater one",
            before: &["holds d:1 2 7 1,9", "SET limit 1"],
            call: "shared/acquire terms=1,9,3000/L",
            reply: "queued T * 0 0",
            after: "room 1 d:1=1,2,7,1,9,3000/L | limit 1 | queue c:1:5/1,9,3000/L | clients c",
            again: "queued T * 0 1",
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
            reply: "queued T -2 0 1",
            after: "limit 2 | queue c:1:5/3,5,3000/L | clients c",
            again: "queued T -2 0 1",
        },
        Row {
            what: "a limit of 0 pauses, and refuses nobody",
            before: &["SET limit 0"],
            call: "shared/acquire",
            reply: "queued T -2 0 0",
            after: "limit 0 | queue c:1:5 | clients c",
            again: "queued T -2 0 1",
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
            reply: "queued T * 0 0",
            after: "room 3 d:1=1,2,7,3,5,3000/L | queue e:1:3/5,5,3000/L c:1:5/1,5,3000/L | clients c e",
            again: "queued T * 0 1",
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
            reply: "queued T * 0 0",
            after: "room 3 d:1=1,2,T,2,3,3000/L e:1=1,3,T,1,3,3000/L | queue e:2:3/1,3,3000/L c:1:5/1,3,3000/L | clients c d e",
            again: "queued T * 0 1",
        },
        Row {
            what: "those who wait come in, and then the newcomer",
            before: &["queues d:1:2/2,4,3000/L"],
            call: "shared/acquire terms=2,4,3000/L mode=0",
            reply: "held T 1 10000",
            after: "room 4 c:1=1,5,T,2,4,3000/L d:1=1,2,T,2,4,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "one that waits asks again when there is room: it is served in the answer",
            before: &["queues c:1:5/2,4,3000/L", "queues d:1:2/2,4,3000/L"],
            call: "shared/acquire terms=2,4,3000/L",
            reply: "held T 1 10000",
            after: "room 4 c:1=1,5,T,2,4,3000/L d:1=1,2,T,2,4,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "only dead ones wait",
            before: &["queues z:1:2", "queues z:2:3", "dead z"],
            call: "shared/acquire mode=0",
            reply: "held T 1 10000",
            after: "room 1 c:1=1,5,T,1,1,3000/L",
            again: "held T 1 *",
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
            reply: "held T 1 10000",
            after: "room 2 c:1=1,5,T,1,2,3000/L e:1=1,3,8,1,2,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "a lease is over, and there is room beside it: it stays",
            before: &["holds d:1 2 7 1,3 -5", "holds e:1 3 8 1,3"],
            call: "shared/acquire terms=1,3,3000/L",
            reply: "held T 1 10000",
            after: "room 3 c:1=1,5,T,1,3,3000/L d:1=1,2,7,1,3,3000/L e:1=1,3,8,1,3,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "a summary that counts too much is made right when it matters",
            before: &["holds d:1 2 7 1,2 -5", "holds e:1 3 8 1,2", "HDEL lock d:1", "HSET lock !used 2~2~1~8"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000",
            after: "room 2 c:1=1,5,T,1,2,3000/L e:1=1,3,8,1,2,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "a retry of a grant gets the full lease",
            before: &["holds c:1 5 7 1,1 1000"],
            call: "shared/acquire",
            reply: "held 7 1 10000",
            after: "room 1 c:1=1,5,7,1,1,3000/L",
            again: "held 7 1 *",
        },
        Row {
            what: "a retry never shortens the lease",
            before: &["holds c:1 5 7 1,1"],
            call: "shared/acquire lease=500",
            reply: "held 7 1 *",
            after: "room 1 c:1=1,5,7,1,1,3000/L",
            again: "held 7 1 *",
        },
        Row {
            what: "an attempt after a lost hold ends that (decision 3)",
            before: &["holds c:1 4 7 2,2"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "held T 1 10000",
            after: "room 1 c:1=1,5,T,1,2,3000/L",
            again: "held T 1 *",
        },
        Row {
            what: "an attempt after a lost hold, with others waiting",
            before: &["holds c:1 4 7 2,2", "queues d:1:2/2,2,3000/L"],
            call: "shared/acquire terms=1,2,3000/L",
            reply: "queued T * 0 0",
            after: "room 2 d:1=1,2,T,2,2,3000/L | queue c:1:5/1,2,3000/L | clients c d",
            again: "queued T * 0 1",
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
            reply: "held 7 2 *",
            after: "room 1 c:1=2,5,7,1,1,3000/L | queue d:1:2 | clients d",
            again: "held 7 2 *",
        },
        Row {
            what: "one more hold, asked for with the number before it",
            before: &["holds c:1 4 7 1,1", "HSET lock c:1 99999999999999~2~4~7~1,1,3000/L"],
            call: "shared/acquire mode=1:7",
            reply: "held 7 2 *",
            after: "room 1 c:1=2,5,7,1,1,3000/L",
            again: "held 7 2 *",
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
            reply: "queued T * 0 0",
            after: "queue d:1:2 c:1:5 | clients c d",
            again: "queued T * 0 1",
        },
        Row {
            what: "the freeze is over",
            before: &["frozen -1", "queues d:1:2/1,2,3000/L"],
            call: "shared/acquire boot=1 terms=1,2,3000/L",
            reply: "held T 1 10000",
            after: "room 2 c:1=1,5,T,1,2,3000/L d:1=1,2,T,1,2,3000/L",
            again: "held T 1 *",
        },
    ])
    .await;
}

/// The script sets the count and the weight, so a retry gets the same answer.
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
            what: "a copy of an earlier acquire came late, and queued behind a later hold of its owner: that hold stays",
            before: &["holds c:1 4 7 1,2", "holds d:1 6 8 1,2", "queues d:1:3/1,2,3000/L"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,6,8,1,2,3000/L",
            again: "gone 0",
        },
        Row {
            what: "a script that was refused had let an owner in, and left its place: it has its hold already",
            before: &["holds c:1 4 7 1,2", "holds d:1 3 8 1,2", "queues d:1:3/1,2,3000/L"],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 1 d:1=1,3,8,1,2,3000/L",
            again: "gone 0",
        },
        Row {
            what: "an owner that comes in anew has lost its earlier hold, which makes room for the next one in the same call",
            before: &[
                "holds c:1 4 7 1,2",
                "holds d:1 2 8 1,2",
                "queues d:1:3/1,2,3000/L",
                "queues e:1:5/1,2,3000/L",
            ],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 2 d:1=1,3,T,1,2,3000/L e:1=1,5,T,1,2,3000/L",
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
            what: "who comes in has a second place, since its ticket was lost and it queued again: that one hides nobody",
            before: &[
                "holds c:1 4 7 1,2",
                "queues d:1:2/2,2,3000/L",
                "queues d:1:2/2,2,3000/L",
                "queues e:1:3/1,4,3000/L",
            ],
            call: "shared/release",
            reply: "freed 7 0",
            after: "room 3 d:1=1,2,T,2,2,3000/L e:1=1,3,T,1,4,3000/L",
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
            what: "after the end of its lease, which nobody came in for",
            before: &["holds c:1 4 7 1,2 -5", "holds d:1 2 8 1,2"],
            call: "shared/release",
            reply: "freed 7 0",
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
            before: &["holds c:1 4 7 1,1", "HSET lock c:1 99999999999999~2~4~7~1,1,3000/L"],
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
            call: "shared/release special=+2000~c:1:4/1,1,3000/L",
            reply: "freed 7 0",
            after: "room 1 d:1=1,2,T,1,1,3000/L | tombstone c:1=5",
            again: "gone 0",
        },
        Row {
            what: "again, and the first time it was refused after it had taken the owner out: its weight is counted no longer",
            before: &["holds c:1 4 7 1,2", "holds e:1 2 8 1,2", "HDEL lock c:1", "queues d:1:2/1,2,3000/L"],
            call: "shared/release",
            reply: "gone 0",
            after: "room 2 d:1=1,2,T,1,2,3000/L e:1=1,2,8,1,2,3000/L",
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
            what: "of a handle whose lease is over: lost, and taken out",
            before: &["holds c:1 4 7 1,2 -5", "holds d:1 2 8 1,2"],
            call: "shared/release special=0:7:0",
            reply: "gone 0",
            after: "room 1 d:1=1,2,8,1,2,3000/L",
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
            call: "shared/leave place=c:1:5/3,3,3000/L",
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
            what: "again, and the first time it was refused after it had taken the owner out",
            before: &[
                "holds c:1 4 7 2,3",
                "holds d:1 2 8 1,3",
                "HDEL lock c:1",
                "tombstone c:1 5",
                "queues e:1:3/2,3,3000/L",
            ],
            call: "shared/leave",
            reply: "gone 0",
            after: "room 3 d:1=1,2,8,1,3,3000/L e:1=1,3,T,2,3,3000/L | tombstone c:1=5",
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

/// R8: it answers which tickets wait, which hold the name, and which do neither.
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
            before: &["holds e:1 2 7 1,1 -5", "HSET lock e:1 99999999999999~1~2~7~1,1,3000/L", "queues c:1:5"],
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

/// R16: it moves a hold from one owner to another with its token and its weight, and gives nothing else.
#[tokio::test]
async fn give_rows() {
    let give = |what, before, call, reply, after| Row { what, before, call, reply, after, again: reply };
    const DETACH: &str = "shared/give from=c:1 seq=5 token=7 to=h:0 terms=9,9,3000/L";
    const ATTACH: &str = "shared/give from=h:0 seq=3 token=7 to=d:1 attempt=3 terms=9,9,2000/M";
    const LATE: &str = "shared/give from=c:1 seq=5 token=7 to=h:0 terms=9,9,3000/L not_after=+-9000";
    const BESIDE: &str = "holds e:1 2 8 1,4";
    let rows = [
        give("nobody holds it", &[][..], DETACH, "lost", ""),
        give("others do", &[BESIDE], DETACH, "lost", "room 1 e:1=1,2,8,1,4,3000/L"),
        give("under another token", &["holds c:1 4 8 2,4"], DETACH, "lost", "room 2 c:1=1,4,8,2,4,3000/L"),
        give(
            "its lease is over",
            &["holds c:1 4 7 2,4 -5", BESIDE],
            DETACH,
            "lost",
            "room 3 c:1=1,4,7,2,4,3000/L e:1=1,2,8,1,4,3000/L",
        ),
        give("it was attached since", &["holds c:1 6 7 2,4"], DETACH, "stale", "room 2 c:1=1,6,7,2,4,3000/L"),
        give(
            "its handle was released",
            &["holds c:1 4 7 2,4", "tombstone h:0 1"],
            DETACH,
            "left",
            "room 2 c:1=1,4,7,2,4,3000/L | tombstone h:0=1",
        ),
        give(
            "who has left",
            &["holds h:0 1 7 2,4", "tombstone d:1 3"],
            ATTACH,
            "left",
            "room 2 h:0=1,1,7,2,4,3000/L | tombstone d:1=3",
        ),
        give(
            "an ended hold of who would get it is still counted",
            &["holds d:1 2 6 1,4 -5", "holds h:0 1 7 2,4"],
            ATTACH,
            "lost",
            "room 3 d:1=1,2,6,1,4,3000/L h:0=1,1,7,2,4,3000/L",
        ),
        give("late", &["holds c:1 4 7 2,4"], LATE, "late", "room 2 c:1=1,4,7,2,4,3000/L"),
        // P1: if the script refused it, a guard would go on without a hold.
        give(
            "late, served before, and the lease of the handle is over: not a refusal",
            &["holds h:0 1 7 2,4 -5", BESIDE],
            LATE,
            "lost",
            "room 3 e:1=1,2,8,1,4,3000/L h:0=1,1,7,2,4,3000/L",
        ),
        give("the same, and it was taken out since", &[BESIDE], LATE, "lost", "room 1 e:1=1,2,8,1,4,3000/L"),
        give("a lock", &["held c:1 4 7"], DETACH, "lost", "lock c:1=1 4,7,0,3000/L"),
        Row {
            what: "a detach",
            before: &["holds c:1 4 7 2,4", BESIDE],
            call: DETACH,
            reply: "given 10000 2",
            after: "room 3 e:1=1,2,8,1,4,3000/L h:0=1,1,7,2,4,3000/L",
            again: "given * 2",
        },
        Row {
            what: "an attach: another label, and the same weight and limit",
            before: &["holds h:0 1 7 2,4", BESIDE],
            call: ATTACH,
            reply: "given 10000 2",
            after: "room 3 d:1=1,3,7,2,4,2000/M e:1=1,2,8,1,4,3000/L",
            again: "given * 2",
        },
        // The summary is right: see `room_state`.
        Row {
            what: "a shorter lease than what was left",
            before: &["holds h:0 1 7 2,4 60000", "holds e:1 2 8 1,4 60000"],
            call: "shared/give from=h:0 seq=3 token=7 to=d:1 attempt=3 lease=500 terms=9,9,2000/M",
            reply: "given 500 2",
            after: "room 3 d:1=1,3,7,2,4,2000/M e:1=1,2,8,1,4,3000/L",
            again: "given * 2",
        },
        Row {
            what: "late, and served before: so a refusal says that no copy was served",
            before: &["holds h:0 1 7 2,4"],
            call: LATE,
            reply: "given * 2",
            after: "room 2 h:0=1,1,7,2,4,3000/L",
            again: "given * 2",
        },
        Row {
            what: "by its handle only the hold under that token is released",
            before: &["holds h:0 1 7 2,4", BESIDE],
            call: "shared/release owner=h:0 seq=1 special=0:8:0",
            reply: "gone 0",
            after: "room 3 e:1=1,2,8,1,4,3000/L h:0=1,1,7,2,4,3000/L",
            again: "gone 0",
        },
    ];
    check(&rows).await;
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("holds h:0 1 7 2,4 60000").await;
            bench.prepare(BESIDE).await;
            bench.command("DEL tokens").await;
            let before = bench.ttl("lock").await;
            bench.call("shared/give from=h:0 seq=3 token=7 to=d:1 attempt=3 lease=500 terms=9,9,2000/M").await;
            assert_eq!(flatten(bench.command("GET tokens").await), ["7"], "P2");
            assert!(bench.ttl("lock").await > before - 5000, "others hold longer");
            bench.call("shared/give from=d:1 seq=9 token=7 to=h:1 lease=90000 terms=9,9,2000/M").await;
            assert!(bench.ttl("lock").await > 80_000, "the hash lives as long as the longest lease");
        }
        // P1: the server refused the first copy before it had set the key's time to live.
        for again in [ATTACH, "shared/acquire owner=d:1 seq=3", "shared/acquire owner=d:1 seq=4 mode=1:7"] {
            for mut bench in Bench::each().await {
                bench.prepare("holds d:1 3 7 2,4 60000").await;
                bench.command("PEXPIRE lock 1000").await;
                let reply = bench.call(again).await;
                assert!(reply.starts_with("given") || reply.starts_with("held"), "{again}: {reply}");
                assert!(bench.ttl("lock").await > 50_000, "{again}: the key lives as long as the answer says");
            }
        }
        for calls in [
            &["shared/give from=c:1 seq=5 token=7 to=h:0 lease=500 terms=9,9,2000/M"][..],
            &["shared/renew token=7 lease=500 only=4"],
            &["shared/release"],
            &["shared/release seq=9 special=+2000~c:1:4/1,1,3000/L"],
        ] {
            for mut bench in Bench::each().await {
                bench.prepare("holds c:1 4 7 1,1 60000").await;
                bench.prepare("queues d:1:2").await;
                for call in calls {
                    bench.call(call).await;
                }
                assert!(bench.ttl("lock").await <= 3000, "{calls:?}: the hash ends with its only holder");
            }
        }
    })
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
            what: "again, and the first time it was refused after it had taken the owner out: its weight is counted no longer",
            before: &["holds d:1 2 7 2,2", "HDEL lock d:1", "queues e:1:3/2,2,3000/L"],
            call: "shared/force_unlock expected=7",
            reply: "free 0",
            after: "room 2 e:1=1,3,T,2,2,3000/L",
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
        Row {
            what: "a silence is not forgiven to a client without a deadline",
            before: &["queues c:1:5", "queues d:2:3", "ZREM deadlines c", "ZADD deadlines 0 !spent 9000000000000 !forgiven"],
            call: "shared/inspect",
            reply: "shared 0 -1 0 1 -1 0 d:2:3 * 1 1 L",
            after: "queue c:1:5 d:2:3 | clients d !forgiven",
            again: "shared 0 -1 0 1 -1 0 d:2:3 * 1 1 L",
        },
    ])
    .await;
}

/// Each of these calls needs most of the keys.
const CALLS: [&str; 12] = [
    "shared/acquire",
    "shared/acquire mode=0",
    "shared/acquire mode=1:7",
    "shared/poll tickets=c:1:5",
    "shared/poll waits=2",
    "shared/leave copies_until=+2000",
    "shared/release",
    "shared/release special=+2000~c:1:5/1,1,3000/L",
    "shared/release special=1:7:1",
    "shared/force_unlock expected=7",
    "shared/set_limit permits=9",
    "shared/inspect",
];

/// Redis does not roll back, so a script reads everything that it may refuse before its first write.
#[tokio::test]
async fn what_is_not_of_fairlock_is_refused_by_its_key_and_nothing_is_changed() {
    let damages = [
        ("queue", "foreign queue", "WRONGTYPE"),
        ("lock", "foreign lock", "WRONGTYPE"),
        ("deadlines", "foreign deadlines", "WRONGTYPE"),
        ("tokens", "foreign tokens", "WRONGTYPE"),
        ("limit", "RPUSH limit foreign", "WRONGTYPE"),
        ("limit", "SET limit nonsense", "ERR"),
        ("limit", "SET limit -3", "ERR"),
        ("tokens", "SET tokens nonsense", "ERR"),
        ("lock", "HSET lock name value other 5", "ERR"),
        ("lock", "HSET lock !format 9 !state x", "ERR"),
        ("lock", "HSET lock !used nonsense", "ERR"),
        ("queue", "RPUSH queue hello", "ERR"),
        ("queue", "RPUSH queue c:1:5/hello", "ERR"),
        ("queue", "RPUSH queue !9/c:1:5/x", "ERR"),
        ("lock", "HSET lock c:1 nonsense", "ERR"),
    ];
    limit(async {
        let mut refused = 0;
        for mut bench in Bench::each().await {
            for call in CALLS {
                for (kind, damage, code) in damages {
                    for holder in ["c:1", "d:1", "nobody"] {
                        bench.command("FLUSHALL").await;
                        let foreign_hash = damage.starts_with("HSET lock") && !damage.contains("c:1");
                        // The other keys are valid.
                        if holder != "nobody" && !foreign_hash {
                            bench.prepare(&format!("holds {holder} 4 7 1,1 -5")).await;
                        }
                        if !damage.starts_with("RPUSH queue") {
                            for step in ["queues c:1:5", "queues d:2:3"] {
                                bench.prepare(step).await;
                            }
                        }
                        if code == "WRONGTYPE" {
                            bench.command(&format!("DEL {kind}")).await;
                        }
                        if damage.starts_with("HSET lock c:1") && holder != "c:1" {
                            continue;
                        }
                        bench.prepare(damage).await;
                        let what = format!("{call}, {damage}, held by {holder}");
                        let before = bench.dump().await;
                        match bench.try_call(call).await {
                            // The script did not need the damaged key.
                            Ok(_) => {
                                let of = |dump: &[(String, Vec<String>)]| {
                                    dump.iter().find(|(name, _)| *name == key(kind)).cloned()
                                };
                                let (is, was) = (of(&bench.dump().await), of(&before));
                                assert!(is == was || damage.contains("c:1") || damage.contains("limit"), "{what}");
                            }
                            Err(error) => {
                                refused += 1;
                                assert_eq!(error.code, code, "{what}: {error:?}");
                                assert!(error.text.contains(&format!("'{}'", key(kind))), "{what}: {error:?}");
                                assert_eq!(bench.dump().await, before, "{what}: something was changed");
                            }
                        }
                    }
                }
            }
        }
        assert!(refused > 600, "{refused}");
    })
    .await;
}

/// Returns the record of a holder, or an empty text.
async fn record(bench: &mut Bench, owner: &str) -> String {
    flatten(bench.command(&format!("HGET lock {owner}")).await).concat().replace("(nil)", "")
}

async fn many(bench: &mut Bench, count: usize, share: &str) {
    for number in 0..count {
        bench.prepare(&format!("queues d:{number}:1/{share},3000/L")).await;
    }
}

/// P2, P3: a call lets up to 32 neighbours in together, in their order, each with its own token.
#[tokio::test]
async fn p2_p3_up_to_32_come_in_with_a_call_and_then_more_is_said() {
    limit(async {
        for mut bench in Bench::each().await {
            for (waiting, served, more) in [(40, 32, "1"), (32, 32, "0"), (5, 5, "0")] {
                bench.command("FLUSHALL").await;
                bench.prepare("holds c:1 4 7 1024,1024").await;
                many(&mut bench, waiting, "1,1024").await;
                assert_eq!(bench.call("shared/release").await, format!("freed 7 {more}"));
                assert_eq!(bench.number("LLEN queue").await as usize, waiting - served);
                let mut tokens = Vec::new();
                for number in 0..served {
                    let record = record(&mut bench, &format!("d:{number}")).await;
                    tokens.push(record.split(' ').nth(3).expect("it holds").parse::<u64>().unwrap());
                }
                assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
                assert_eq!(bench.number("GET tokens").await as u64, *tokens.last().unwrap());
                assert_eq!(bench.call("shared/poll waits=0").await.split(' ').nth(1), Some("0"));
                assert_eq!(bench.number("EXISTS queue").await, 0);
            }
        }
    })
    .await;
}

/// If the server refuses a give, either it has written nothing, or the units that it took from the owner no longer
/// count. They once counted until the end of the lease.
#[tokio::test]
async fn p5_a_give_that_is_refused_keeps_nobody_out() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for right in ["hset", "hdel"] {
            bench.command("FLUSHALL").await;
            bench.prepare("holds c:1 4 7 2,2").await;
            let before = bench.dump().await;
            let give = "shared/give from=c:1 seq=6 token=7 to=y:1 attempt=1 lease=9000 terms=2,2,3000/L";
            bench.is_refused_without(right, give).await;
            if right == "hset" {
                assert_eq!(bench.dump().await, before);
            } else {
                // As if the server had refused the next command.
                bench.command("HDEL lock c:1").await;
                assert_eq!(bench.call("shared/acquire owner=d:1 terms=2,2,3000/L").await, "held T 1 10000");
            }
        }
    })
    .await;
}

/// The server refused a leave after it had removed its owner, and before it had counted that. The next copy counts
/// again.
#[tokio::test]
async fn p5_a_leave_that_is_sent_again_counts_anew() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        for place in ["", " place=c:1:4/2,2,3000/L"] {
            bench.command("FLUSHALL").await;
            bench.prepare("holds c:1 4 7 2,2").await;
            bench.prepare("holds c:2 5 8 2,2").await;
            let leave = format!("shared/leave owner=c:1 seq=6 copies_until=0{place}");
            bench.is_refused_without("hset", &leave).await;
            assert_eq!(bench.call(&leave).await, "gone 0");
            assert_eq!(bench.call("shared/acquire owner=d:1 terms=2,4,3000/L").await, "held T 1 10000", "{place}");
        }
    })
    .await;
}

/// If a place stays in front of the winners, the script marks them before it removes them from the list. If the server
/// refused it in between, no script could read the marks, and every script refused the queue until it expired.
#[tokio::test]
async fn p6_who_may_not_take_a_place_out_leaves_a_queue_that_can_be_read() {
    limit(async {
        let mut bench = Bench::on(Server::start().await).await;
        // No client is subscribed as x.
        let waiters = ["queues x:1:5/2,2,3000/L", "queues d:1:6/1,2,3000/L", "queues d:2:7/1,2,3000/L"];
        for step in ["holds c:1 4 7 2,2"].into_iter().chain(waiters) {
            bench.prepare(step).await;
        }
        bench.is_refused_without("lrem", "shared/release owner=c:1 seq=8").await;
        assert!(bench.call("shared/poll caller=d waits=1").await.starts_with("shared 0 1 3 "));
        assert!(bench.call("shared/release owner=d:1 seq=9").await.starts_with("freed "));
        assert!(bench.call("shared/release owner=d:2 seq=9").await.starts_with("freed "));
        // The remaining places lack tickets, and the next winner takes them along.
        assert_eq!(bench.call("shared/acquire owner=e:1 terms=2,2,3000/L").await, "held T 1 10000");
    })
    .await;
}

#[tokio::test]
async fn p3_a_reader_behind_a_writer_waits() {
    limit(async {
        for mut bench in Bench::each().await {
            let acquire = |owner: &str, weight: u32| format!("shared/acquire owner={owner} terms={weight},1024,3000/L");
            assert_eq!(bench.call(&acquire("d:1", 1)).await, "held T 1 10000");
            assert!(bench.call(&acquire("e:1", 1024)).await.starts_with("queued "));
            assert!(bench.call(&acquire("d:2", 1)).await.starts_with("queued "));
            assert!(bench.call(&acquire("d:3", 1)).await.starts_with("queued "));
            let token = record(&mut bench, "d:1").await;
            let token = token.split(' ').nth(3).unwrap();
            // A nested acquire goes past them.
            let nested = format!("{} mode=1:{token} seq=6", acquire("d:1", 1));
            assert_eq!(bench.call(&nested).await, "held T 2 10000");
            bench.call("shared/release owner=d:1 seq=9").await;
            assert!(!record(&mut bench, "e:1").await.is_empty());
            assert_eq!(bench.number("LLEN queue").await, 2);
            // A downgrade lets the readers in.
            let token = record(&mut bench, "e:1").await;
            let token = token.split(' ').nth(3).unwrap().to_owned();
            assert_eq!(bench.call(&format!("shared/release owner=e:1 seq=9 special=1:{token}:1")).await, "held 1 0");
            assert_eq!(bench.number("EXISTS queue").await, 0);
            assert_eq!(pairs(bench.command("HGETALL lock").await).len(), 4);
        }
    })
    .await;
}

/// Many dead holders cost several calls, and each call has a bound.
#[tokio::test]
async fn at_most_256_ended_holders_are_taken_out_in_a_call() {
    limit(async {
        for mut bench in Bench::each().await {
            for number in 0..600 {
                bench.prepare(&format!("holds x:{number} 4 {number} 1,600 -5")).await;
            }
            // The call needs all units, so the first calls find no room.
            for (reply, left) in [("busy 1", 344), ("busy 1", 88), ("held T 1 10000", 1)] {
                assert_eq!(bench.call("shared/acquire mode=0 terms=600,600,3000/L").await, reply);
                assert_eq!(pairs(bench.command("HGETALL lock").await).len(), left + 1, "{reply}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn at_most_1024_hold_a_name_and_more_of_them_wait() {
    limit(async {
        for mut bench in Bench::each().await {
            for number in 0..1023 {
                bench.prepare(&format!("holds d:{number} 4 {number} 1,5000")).await;
            }
            assert_eq!(bench.call("shared/acquire terms=1,5000,3000/L").await, "held T 1 10000");
            assert!(bench.call("shared/acquire owner=e:1 terms=1,5000,3000/L").await.starts_with("queued "));
            assert_eq!(bench.call("shared/acquire owner=e:2 mode=0 terms=1,5000,3000/L").await, "busy 0");
            bench.call("shared/release seq=9").await;
            assert!(!record(&mut bench, "e:1").await.is_empty());
        }
    })
    .await;
}

/// P6: a grant ends with the client's deadline. P7: the hash lives as long as the longest lease.
#[tokio::test]
async fn p6_a_grant_ends_with_its_client_and_the_hash_with_the_longest_lease() {
    limit(async {
        for mut bench in Bench::each().await {
            bench.prepare("holds c:1 4 7 2,2").await;
            for place in ["d:1:2/1,2,60000/L", "e:1:3/1,2,1000/L"] {
                bench.prepare(&format!("queues {place}")).await;
            }
            bench.command("PEXPIRE lock 500").await;
            bench.call("shared/release").await;
            let now = bench.now().await;
            for (owner, least, most) in [("d:1", 3000, 5000), ("e:1", 500, 1000)] {
                let record = record(&mut bench, owner).await;
                let left = record.split(' ').next().unwrap().parse::<i64>().unwrap() - now;
                assert!((least..=most).contains(&left), "{owner}: {left}");
            }
            assert!((3000..=5000).contains(&bench.ttl("lock").await));
            // A longer lease moves the end of the key; a shorter one does not.
            bench.call("shared/acquire owner=y:1 lease=40000 terms=1,3,3000/L mode=0").await;
            bench.call("shared/acquire owner=y:2 lease=1000 terms=1,4,3000/L mode=0").await;
            assert!((38_000..=40_000).contains(&bench.ttl("lock").await));
        }
    })
    .await;
}

/// P3: nobody loses a place because the server stalled.
#[tokio::test]
async fn p3_a_silence_of_all_clients_is_forgiven() {
    limit(async {
        for mut bench in Bench::each().await {
            for step in ["holds c:1 4 7 2,2", "queues d:1:2/1,2,3000/L", "queues e:1:3/1,2,3000/L"] {
                bench.prepare(step).await;
            }
            let past = bench.now().await - 1000;
            bench.command(&format!("ZADD deadlines {past} d {past} e")).await;
            bench.call("shared/release").await;
            assert_eq!(
                bench.state().await,
                "room 2 d:1=1,2,T,1,2,3000/L e:1=1,3,T,1,2,3000/L",
                "both were served, although the deadlines have passed"
            );
        }
    })
    .await;
}

/// P2: even after the stored token has expired, and after the clock went back.
#[tokio::test]
async fn p2_the_last_token_counts_when_the_stored_one_is_gone() {
    limit(async {
        for mut bench in Bench::each().await {
            for (call, owner) in [
                ("shared/acquire owner=e:1 terms=1,3,3000/L mode=0", "e:1"),
                ("shared/release", "d:1"),
                ("shared/poll waits=0 caller=d", "d:1"),
                ("shared/leave seq=9", "d:1"),
                ("shared/set_limit permits=3", "d:1"),
            ] {
                bench.command("FLUSHALL").await;
                bench.prepare("holds c:1 4 9007199254740000 1,2").await;
                if owner == "d:1" {
                    bench.prepare("queues d:1:5/1,2,3000/L").await;
                }
                bench.command("DEL tokens").await;
                bench.call(call).await;
                let record = record(&mut bench, owner).await;
                assert_eq!(record.split(' ').nth(3), Some("9007199254740001"), "{call}: {record}");
                assert_eq!(bench.number("GET tokens").await, 9_007_199_254_740_001, "{call}");
            }
        }
    })
    .await;
}
