//! The history: one file of JSON lines for each process. The judge reads them all.
//!
//! Each line has `t`, `e` and `c`. `t` is nanoseconds of CLOCK_MONOTONIC, which all processes of the machine share;
//! `e` is the event, and `c` the process that saw it. The other fields depend on `e`:
//!
//! | `e` | written by | fields |
//! |---|---|---|
//! | `client` | a worker that begins | `host`, and its settings in ms: `lease`, `op`, `poll`, `wttl`, `gttl` |
//! | `ask` | before a call | `id`, `n` the name, `how` (lock, timeout, try, all, attach, release), `limit` in ms if there is one |
//! | `hold` | after a call that got the lock | `id`, `tok`, `own` the owner, `until` the local deadline, `fixed` if the lease is not renewed |
//! | `until` | a holder whose deadline has moved | `id`, `until` |
//! | `shrink` | before a holder releases a part, or a writer becomes a reader | `id`, `w` the remaining weight |
//! | `end` | after a call that got nothing, before the caller drops one | `id`, `why` |
//! | `in`, `out` | a nested call: after it got a guard, after it unlocked that | `id` of the hold, `k` holds there are now |
//! | `detach` | before a caller detaches a guard | `id`, `lease` of the handle in ms |
//! | `detached` | after it | `id`, `why` (ok, unanswered, refused), `until` the local deadline of the handle if ok |
//! | `free` | before an unlock or a drop | `id` |
//! | `freed` | after an unlock | `id`, `why` |
//! | `lost` | a holder that learns of its loss | `id`, `why`, `until` the last deadline it knew of |
//! | `force`, `forced` | before and after a `force_unlock` | `id`, `n`, the `tok` of the hold if it names one, and on several masters `owns`, the owners there; `hit` |
//! | `closing`, `closed` | before and after `close` | `why` |
//! | `write` | the register, about a write, and about a reader's read | `id`, `n`, `tok`, `ok` |
//! | `stall` | the pulse: this machine stalled | `d` ns, from `t` on |
//! | `run`, `load`, `quiet`, `left` | the driver: settings, begin and end of the load, keys that remain | see arena.rs |
//! | `place` | the driver: the shard of a cluster that has a name | `n`, `shard` |
//! | `fault`, `healed` | the driver: before a fault, and after all its effects have ended | `id`, `kind`, `hosts`, `shards` |
//!
//! For a shared name, `ask` has three more fields: `mode` (permit, read, write), `w` the wanted weight, and `of` the
//! limit of the name, which is the same in all its calls. Holders may weigh `of` together. A reader weighs 1, and a
//! writer all. Without these fields the name is a lock: 1 of 1.
//!
//! A call with a handle (attach, release) has `from` in `ask`: the detached hold, as `CLIENT/ID`. It has no limit.
//! After an attach the hold has its own line `hold`, with the same token and weight. `detached` with `unanswered`: the
//! handle has the hold, or nothing; with `refused`: the guard has it as before.

use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    u64::try_from(time.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap()
}

/// One file of the history. Each line is one write, so a kill neither loses nor cuts one.
pub struct History {
    file: File,
    who: String,
}

impl History {
    pub fn open(path: &Path, who: &str) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the folder is there");
        Self { file, who: who.to_owned() }
    }

    /// Writes a line with the present time. `fields`: its other fields, as JSON.
    pub fn line(&self, event: &str, fields: Arguments) {
        self.line_at(now(), event, fields);
    }

    pub fn line_at(&self, t: u64, event: &str, fields: Arguments) {
        let line = format!("{{\"t\":{t},\"c\":\"{}\",\"e\":\"{event}\",{fields}}}\n", self.who);
        (&self.file).write_all(line.as_bytes()).expect("the disk has room");
    }
}

/// A list of words as JSON.
pub fn list<T: AsRef<str>>(words: &[T]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{:?}", word.as_ref())).collect();
    format!("[{}]", quoted.join(","))
}
