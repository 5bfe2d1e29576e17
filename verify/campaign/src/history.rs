//! The history: one file of JSON lines for each process. The judge reads them all.
//!
//! Each line has `t`, nanoseconds of CLOCK_MONOTONIC, which all processes of the machine share, `e`, what happened, and `c`, who
//! saw it. The other fields, by `e`:
//!
//! | `e` | written by | fields |
//! |---|---|---|
//! | `client` | a worker that begins | `host`, and its settings in ms: `lease`, `op`, `poll`, `wttl`, `gttl` |
//! | `ask` | before a call | `id`, `n` the name, `how` (lock, timeout, try, all, attach, release), `limit` in ms if there is one |
//! | `hold` | after a call that got the lock | `id`, `tok`, `own` the owner, `until` the local deadline, `fixed` if the lease is not renewed |
//! | `until` | a holder whose deadline has moved | `id`, `until` |
//! | `shrink` | before a holder gives a part back, or a writer becomes a reader | `id`, `w` what is left |
//! | `end` | after a call that got nothing, before one is dropped | `id`, `why` |
//! | `in`, `out` | a nested call: after it got a guard, after that was unlocked | `id` of the hold, `k` holds there are now |
//! | `detach` | before a guard is detached | `id`, `lease` of the handle in ms |
//! | `detached` | after it | `id`, `why` (ok, unanswered, refused), `until` the local deadline of the handle if ok |
//! | `free` | before an unlock or a drop | `id` |
//! | `freed` | after an unlock | `id`, `why` |
//! | `lost` | a holder that hears of its loss | `id`, `why`, `until` the last deadline it knew of |
//! | `force`, `forced` | before and after a `force_unlock` | `id`, `n`, if only one hold is meant its `tok`, and on several masters `owns`, who has it on each; `hit` |
//! | `closing`, `closed` | before and after `close` | `why` |
//! | `write` | the register, of a write, and of a reader's read | `id`, `n`, `tok`, `ok` |
//! | `stall` | the pulse: this machine stood still | `d` ns, from `t` on |
//! | `run`, `load`, `quiet`, `left` | the driver: settings, begin and end of the load, keys that stay | see driver.rs |
//! | `place` | the driver: which shard of a cluster has a name | `n`, `shard` |
//! | `fault`, `healed` | the driver: before a fault, and when nothing of it is left | `id`, `kind`, `hosts`, `shards` |
//!
//! What several may hold has three more fields in `ask`: `mode` (permit, read, write), `w` what is asked for, and `of` what there is
//! of the name, the same in all of its calls. Holders may weigh `of` together. A reader weighs 1, and a writer all. Without these
//! fields it is a lock: 1 of 1.
//!
//! A call by a handle (attach, release) has `from` in `ask`: the hold that the handle was made of, as `CLIENT/ID`. It has no limit.
//! After an attach the hold has a line `hold` of its own, with the same token; it weighs what the hold weighed. `detached` with `unanswered`: the handle has the hold, or
//! nothing; with `refused`: the guard has it as before.

use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    u64::try_from(time.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap()
}

/// One file of the history. A line is one write, so that none is lost or cut when the process is killed.
pub struct History {
    file: File,
    who: String,
}

impl History {
    pub fn open(path: &Path, who: &str) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the folder is there");
        Self { file, who: who.to_owned() }
    }

    /// A line that happens now. `fields`: the rest of it, as JSON.
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
