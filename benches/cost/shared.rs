//! The cost of single calls of the scripts for shared names, next to the calls for a lock: in instructions, and in the
//! server's own time. Each is the median of some rounds, and each round has a new name.

use std::collections::HashMap;
use std::fmt::Write as _;

use redis::{Connection, Value, cmd};

use crate::script::text;
use crate::server::Server;
use crate::{Outcome, callgrind};

const SCRIPTS: [(&str, &str, bool); 6] = [
    ("acquire", include_str!("../../lua/acquire.lua"), false),
    ("release", include_str!("../../lua/release.lua"), false),
    ("shared/acquire", include_str!("../../lua/shared/acquire.lua"), true),
    ("shared/poll", include_str!("../../lua/shared/poll.lua"), true),
    ("shared/release", include_str!("../../lua/shared/release.lua"), true),
    ("shared/renew", include_str!("../../lua/shared/renew.lua"), true),
];

const SETTINGS: &str = "3600000 65536 86400000 fairlock:wake:";
const LEASE: &str = "3600000";
const NEVER: &str = "9999999999999999";
/// As long as real client ids. All calls are theirs, and all of them are reachable.
const CLIENTS: [&str; 2] = ["c0000000000000000000000000000000", "d0000000000000000000000000000000"];
const ROUNDS: usize = 9;

/// A row: its name, and a function that prepares a new name and returns the cost of the measured calls.
type Row = (&'static str, fn(&mut Name<'_>) -> Outcome<f64>);

const ROWS: [Row; 15] = [
    ("a lock's pair", |name| Ok(name.lock()? + name.unlock()?)),
    ("a permit's pair, of 5, alone", |name| name.pair("1,5", 0)),
    ("… beside another holder", |name| name.pair("1,5", 1)),
    ("… beside 63 others", |name| name.pair("1,64", 63)),
    ("a read pair, alone", |name| name.pair("1,1024", 0)),
    ("… beside another reader", |name| name.pair("1,1024", 1)),
    ("a write pair", |name| name.pair("1024,1024", 0)),
    ("a lock is handed over, two wait", |name| {
        (0..3).try_for_each(|_| name.lock().map(drop))?;
        name.unlock()
    }),
    ("a permit is handed over, of 1, two wait", |name| name.hand_over("1,1", 1)),
    ("… of 10", |name| name.hand_over("1,10", 10)),
    ("a writer makes way for 32 readers", |name| {
        name.take("1024,1024")?;
        name.take_many("1,1024", 32)?;
        name.give_back(1)
    }),
    ("64 ended holders are taken out, and one comes in", |name| name.ended(64)),
    ("256 ended holders", |name| name.ended(256)),
    ("a poll, 2 wait for 1 permit", |name| {
        name.take_many("1,1", 3)?;
        name.poll()
    }),
    ("a poll, 1,000 wait for 1,000 permits", |name| {
        name.take_many("1,1000", 2000)?;
        name.poll()
    }),
];

pub fn measure(short: bool) -> Outcome<()> {
    let rounds = if short { 3 } else { ROUNDS };
    let mut table = "| | instructions | µs |\n|---|---|---|\n".to_owned();
    let mut costs = Vec::new();
    for counts in [true, false] {
        if counts && !callgrind::is_there() {
            return Err("valgrind is not installed: apt-get install valgrind".into());
        }
        let server = if counts { Server::under_callgrind()? } else { Server::bare()? };
        costs.push(rows(server, if counts { rounds } else { 5 * rounds })?);
    }
    for (index, (name, _)) in ROWS.iter().enumerate() {
        writeln!(table, "| {name} | {:.0} | {:.0} |", costs[0][index], costs[1][index])?;
    }
    println!("{table}");
    Ok(())
}

fn rows(server: Server, rounds: usize) -> Outcome<Vec<f64>> {
    let (mut redis, mut subscriber) = (server.connection()?, server.connection()?);
    for client in CLIENTS {
        let subscribe = cmd("SUBSCRIBE").arg(format!("fairlock:wake:{client}")).get_packed_command();
        subscriber.send_packed_command(&subscribe)?;
        subscriber.recv_response()?;
    }
    let mut hashes = HashMap::new();
    for (name, source, is_shared) in SCRIPTS {
        hashes.insert(name, cmd("SCRIPT").arg("LOAD").arg(text(source, is_shared)).query(&mut redis)?);
    }
    let mut at = Name { server, redis, hashes, number: 0, key: String::new() };
    let median = |row: &Row, at: &mut Name<'_>| {
        let mut costs = Vec::new();
        for _ in 0..=rounds {
            at.begin()?;
            costs.push(row.1(at)?);
        }
        // The first round is a warm-up.
        let costs = &mut costs[1..];
        costs.sort_by(f64::total_cmp);
        Ok(costs[costs.len() / 2])
    };
    ROWS.iter().map(|row| median(row, &mut at)).collect()
}

/// A name, which `begin` empties.
struct Name<'a> {
    server: Server,
    redis: Connection,
    hashes: HashMap<&'a str, String>,
    /// The number of the last owner.
    number: usize,
    key: String,
}

impl Name<'_> {
    fn begin(&mut self) -> Outcome<()> {
        cmd("FLUSHALL").exec(&mut self.redis)?;
        (self.key, self.number) = ("fairlock:{n:orders}".into(), 0);
        // As for a recently used name.
        let (s, us): (u64, u64) = cmd("TIME").query(&mut self.redis)?;
        cmd("SET")
            .arg(format!("{}:token", self.key))
            .arg(s * 1_000_000 + us)
            .arg("PX")
            .arg(86_400_000)
            .exec(&mut self.redis)?;
        Ok(())
    }

    fn owner(number: usize) -> String {
        format!("{}:{number}", CLIENTS[number % 2])
    }

    fn call(&mut self, script: &str, suffixes: &[&str], args: &[&str], is_measured: bool) -> Outcome<f64> {
        let keys: Vec<_> = suffixes.iter().map(|suffix| format!("{}{suffix}", self.key)).collect();
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(keys.len()).arg(&keys).arg(1).arg(args);
        if is_measured {
            return Ok(self.server.cost(&call)?.1);
        }
        call.query::<Value>(&mut self.redis)?;
        Ok(0.0)
    }

    fn lock(&mut self) -> Outcome<f64> {
        self.number += 1;
        let (owner, seq) = (Self::owner(self.number), self.number.to_string());
        let keys = ["", ":queue", ":deadlines", ":token", &format!(":tombstone:{owner}")];
        self.call("acquire", &keys, &[NEVER, &owner, &seq, LEASE, &format!("{LEASE}/"), SETTINGS], true)
    }

    /// The first owner releases.
    fn unlock(&mut self) -> Outcome<f64> {
        self.call("release", &["", ":queue", ":deadlines", ":token"], &[&Self::owner(1), "9000", SETTINGS], true)
    }

    fn ask(&mut self, share: &str, is_measured: bool) -> Outcome<f64> {
        self.number += 1;
        let (owner, seq) = (Self::owner(self.number), self.number.to_string());
        let keys = ["", ":queue", ":deadlines", ":token", &format!(":tombstone:{owner}"), ":limit"];
        let terms = format!("{share},{LEASE}/");
        self.call("shared/acquire", &keys, &[NEVER, &owner, &seq, LEASE, &terms, SETTINGS], is_measured)
    }

    fn take(&mut self, share: &str) -> Outcome<f64> {
        self.ask(share, true)
    }

    fn take_many(&mut self, share: &str, count: usize) -> Outcome<()> {
        (0..count).try_for_each(|_| self.ask(share, false).map(drop))
    }

    fn give_back(&mut self, number: usize) -> Outcome<f64> {
        let owner = Self::owner(number);
        let keys = ["", ":queue", ":deadlines", ":token", &format!(":tombstone:{owner}"), ":limit"];
        self.call("shared/release", &keys, &[&owner, "9000", SETTINGS], true)
    }

    fn pair(&mut self, share: &str, others: usize) -> Outcome<f64> {
        self.take_many(share, others)?;
        Ok(self.take(share)? + self.give_back(others + 1)?)
    }

    fn hand_over(&mut self, share: &str, holders: usize) -> Outcome<f64> {
        self.take_many(share, holders + 2)?;
        self.give_back(1)
    }

    fn ended(&mut self, count: usize) -> Outcome<f64> {
        let share = format!("1,{count}");
        self.take_many(&share, count)?;
        // As if all their leases had ended.
        let fields: Vec<String> = cmd("HGETALL").arg(&self.key).query(&mut self.redis)?;
        for pair in fields.chunks(2) {
            let mut words: Vec<_> = pair[1].split(' ').collect();
            words[if pair[0] == "!used" { 2 } else { 0 }] = "1";
            cmd("HSET").arg(&self.key).arg(&pair[0]).arg(words.join(" ")).exec(&mut self.redis)?;
        }
        self.take(&share)
    }

    fn poll(&mut self) -> Outcome<f64> {
        let ticket = format!("{}:{}", Self::owner(self.number), self.number);
        let keys = ["", ":queue", ":deadlines", ":token", ":limit"];
        self.call("shared/poll", &keys, &[CLIENTS[self.number % 2], "1", SETTINGS, &ticket], true)
    }
}
