//! Reads the records of a campaign's processes: calls, holds, faults. verify/campaign/src/history.rs, which writes
//! them, describes the format.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

pub use crate::record::{Call, Client, Detached, Fault, Force, Hold, How, MS, NEVER, Run, Time, Write};

/// One line. Its fields depend on `e`.
#[derive(Deserialize)]
struct Line<'a> {
    t: Time,
    c: &'a str,
    e: &'a str,
    #[serde(default)]
    id: u64,
    n: Option<&'a str>,
    how: Option<&'a str>,
    limit: Option<u64>,
    mode: Option<&'a str>,
    of: Option<u64>,
    w: Option<u64>,
    from: Option<&'a str>,
    tok: Option<u64>,
    own: Option<&'a str>,
    #[serde(default)]
    owns: Vec<String>,
    until: Option<Time>,
    fixed: Option<u64>,
    why: Option<String>,
    k: Option<u64>,
    hit: Option<bool>,
    by: Option<&'a str>,
    ok: Option<bool>,
    d: Option<Time>,
    host: Option<&'a str>,
    lease: Option<u64>,
    op: Option<u64>,
    poll: Option<u64>,
    wttl: Option<u64>,
    gttl: Option<u64>,
    topology: Option<&'a str>,
    seed: Option<u64>,
    strict: Option<bool>,
    freeze: Option<u64>,
    shard: Option<usize>,
    kind: Option<&'a str>,
    hosts: Option<Vec<String>>,
    shards: Option<Vec<usize>>,
    keys: Option<Vec<String>>,
    text: Option<String>,
}

#[derive(Default)]
pub struct History {
    pub run: Run,
    pub names: Vec<String>,
    pub hosts: Vec<String>,
    pub clients: Vec<Client>,
    pub calls: Vec<Call>,
    pub holds: Vec<Hold>,
    pub faults: Vec<Fault>,
    pub forces: Vec<Force>,
    pub writes: Vec<Write>,
    /// The stalls of the machine.
    pub stalls: Vec<(Time, Time)>,
    /// The keys that remained. `None` without a check.
    pub left: Option<Vec<String>>,
    /// Observations of the driver: processes that died or hung.
    pub notes: Vec<(Time, String, String)>,
    /// The shard of each name. Only clusters have more than one.
    pub shard: HashMap<usize, usize>,
    /// The calls with the handle of a hold.
    uses: HashMap<usize, Vec<usize>>,
    /// Lines that a process did not finish.
    pub torn: usize,
    ids: HashMap<String, usize>,
    by_id: HashMap<(usize, u64), usize>,
    fault_ids: HashMap<u64, usize>,
    force_ids: HashMap<(usize, u64), usize>,
}

impl History {
    /// Reads all files of a folder.
    pub fn read(dir: &Path) -> std::io::Result<Self> {
        let mut files: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let mut history = Self::default();
        // The register names clients and calls, so it comes last.
        files.sort_by_key(|file| file.ends_with("register.jsonl"));
        for file in files {
            history.add(&std::fs::read_to_string(file)?);
        }
        history.finish();
        Ok(history)
    }

    /// Adds the lines of one process, or of several.
    pub fn add(&mut self, text: &str) {
        for line in text.lines() {
            match serde_json::from_str::<Line>(line) {
                Ok(line) => self.line(&line),
                Err(_) => self.torn += 1,
            }
        }
    }

    /// Sorts, and finds out when clients were killed.
    pub fn finish(&mut self) {
        self.stalls.sort_unstable();
        self.writes.sort_by_key(|write| write.t);
        self.link_handles();
        for client in 0..self.clients.len() {
            let Client { host, began, .. } = self.clients[client];
            let next = self.clients.iter().filter(|other| other.host == host && other.began > began);
            let next = next.map(|other| other.began).min().unwrap_or(NEVER);
            let hits = |fault: &&Fault| {
                let there = fault.hosts.as_ref().is_some_and(|hosts| hosts.contains(&host));
                fault.kind == "kill-client" && there && fault.to > began && fault.from < next
            };
            let killed = self.faults.iter().filter(hits).map(|fault| fault.to).min();
            self.clients[client].killed = killed.unwrap_or(NEVER);
        }
        let last = self.clients.iter().map(|client| client.closing).filter(|closing| *closing != NEVER);
        self.run.ended = last.min().unwrap_or(self.run.quiet).max(self.run.quiet);
    }

    /// Runs at the end, because processes may write about a handle in any order.
    fn link_handles(&mut self) {
        for call in 0..self.calls.len() {
            let Some((client, id)) = self.calls[call].from.as_ref().and_then(|from| from.split_once('/')) else {
                continue;
            };
            let client = self.ids.get(&format!("client {client}")).copied();
            let Some(key) = client.zip(id.parse().ok()) else { continue };
            let hold = self.by_id.get(&key).and_then(|call| self.calls[*call].hold);
            self.calls[call].handle_of = hold;
            hold.into_iter().for_each(|hold| self.uses.entry(hold).or_default().push(call));
        }
        for hold in 0..self.holds.len() {
            let mut grant = hold;
            // The loop ends: each hold was attached later than it was detached.
            while let Some(before) = self.calls[self.holds[grant].call].handle_of {
                grant = before;
            }
            self.holds[hold].grant = grant;
            self.holds[hold].weight = self.weight_of(hold);
        }
        // A call with a handle does not record the limit of the name.
        let mut of = vec![1; self.names.len()];
        self.calls.iter().for_each(|call| of[call.name] = call.of.max(of[call.name]));
        self.calls.iter_mut().for_each(|call| call.of = of[call.name]);
    }

    /// The first weight of a hold. For an attached hold, that is the last weight of the hold before it.
    fn weight_of(&self, hold: usize) -> u64 {
        let mut at = hold;
        while let Some(before) = self.calls[self.holds[at].call].handle_of {
            at = before;
            if let Some((_, left)) = self.holds[at].shrunk {
                return left;
            }
        }
        self.calls[self.holds[at].call].weight
    }

    /// The calls with the handle of this hold.
    pub fn uses(&self, hold: usize) -> impl Iterator<Item = &Call> {
        self.uses.get(&hold).into_iter().flatten().map(|call| &self.calls[*call])
    }

    /// The time of the first call with this handle that the server may have served.
    pub fn first_use(&self, hold: usize) -> Time {
        let served = self.uses(hold).filter(|call| call.why.as_deref() != Some("lost"));
        served.map(|call| call.asked).min().unwrap_or(NEVER)
    }

    /// Whether it was granted, not attached.
    pub fn is_grant(&self, hold: usize) -> bool {
        self.calls[self.holds[hold].call].how != How::Attach
    }

    fn id(&mut self, list: fn(&mut Self) -> &mut Vec<String>, prefix: &str, word: &str) -> usize {
        let key = format!("{prefix}{word}");
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        list(self).push(word.to_owned());
        let id = list(self).len() - 1;
        self.ids.insert(key, id);
        id
    }

    fn name(&mut self, word: Option<&str>) -> usize {
        self.id(|history| &mut history.names, "name ", word.unwrap_or_default())
    }

    fn host(&mut self, word: &str) -> usize {
        self.id(|history| &mut history.hosts, "host ", word)
    }

    fn line(&mut self, line: &Line) {
        match line.e {
            "run" => self.begin(line),
            "load" => self.run.began = line.t,
            "quiet" => self.run.quiet = line.t,
            "place" => {
                let name = self.name(line.n);
                self.shard.insert(name, line.shard.unwrap_or_default());
            }
            "stall" => self.stalls.push((line.t, line.t + line.d.unwrap_or_default())),
            "left" => self.left = line.keys.clone(),
            "fault" => self.fault(line),
            "healed" => {
                if let Some(fault) = self.fault_ids.get(&line.id) {
                    self.faults[*fault].to = line.t;
                }
            }
            "client" => self.client(line),
            "write" => {
                let client = line.by.and_then(|by| self.ids.get(&format!("client {by}")).copied());
                let call = client.and_then(|client| self.by_id.get(&(client, line.id)).copied());
                self.writes.push(Write { t: line.t, call, ok: line.ok.unwrap_or_default() });
            }
            "died" | "hangs" | "unsettled" => {
                self.notes.push((line.t, line.e.to_owned(), line.text.clone().unwrap_or_default()));
            }
            _ => {
                if let Some(client) = self.ids.get(&format!("client {}", line.c)).copied() {
                    self.of_client(line, client);
                }
            }
        }
    }

    fn begin(&mut self, line: &Line) {
        self.run.topology = line.topology.unwrap_or_default().to_owned();
        self.run.seed = line.seed.unwrap_or_default();
        self.run.strict = line.strict.unwrap_or_default();
        self.run.freeze = line.freeze.unwrap_or_default() * MS;
    }

    fn fault(&mut self, line: &Line) {
        let hosts = line.hosts.as_ref().map(|hosts| hosts.iter().map(|host| self.host(host)).collect());
        let kind = line.kind.unwrap_or_default().to_owned();
        self.fault_ids.insert(line.id, self.faults.len());
        self.faults.push(Fault { kind, hosts, shards: line.shards.clone(), from: line.t, to: NEVER });
    }

    fn client(&mut self, line: &Line) {
        let host = self.host(line.host.unwrap_or_default());
        self.ids.insert(format!("client {}", line.c), self.clients.len());
        let ms = |value: Option<u64>| value.unwrap_or_default() * MS;
        self.clients.push(Client {
            name: line.c.to_owned(),
            host,
            lease: ms(line.lease),
            op: ms(line.op),
            waiter_ttl: ms(line.wttl.or(line.poll)),
            first_lease: ms(line.gttl) + ms(line.poll),
            began: line.t,
            closing: NEVER,
            closed: NEVER,
            killed: NEVER,
        });
    }

    fn of_client(&mut self, line: &Line, client: usize) {
        match line.e {
            "closing" => self.clients[client].closing = line.t,
            "closed" => self.clients[client].closed = line.t,
            "ask" => self.ask(line, client),
            "force" => {
                let name = self.name(line.n);
                self.force_ids.insert((client, line.id), self.forces.len());
                self.forces.push(Force {
                    name,
                    token: line.tok,
                    owners: line.owns.clone(),
                    from: line.t,
                    to: NEVER,
                    hit: None,
                });
            }
            "forced" => {
                if let Some(force) = self.force_ids.get(&(client, line.id)) {
                    let force = &mut self.forces[*force];
                    (force.to, force.hit) = (line.t, line.hit);
                }
            }
            _ => {
                let Some(call) = self.by_id.get(&(client, line.id)).copied() else { return };
                match self.calls[call].hold {
                    Some(hold) => Self::of_hold(line, &mut self.holds[hold]),
                    None => self.outcome(line, call),
                }
            }
        }
    }

    fn ask(&mut self, line: &Line, client: usize) {
        let how = match line.how {
            Some("timeout") => How::Timeout,
            Some("try") => How::Try,
            Some("all") => How::All,
            Some("attach") => How::Attach,
            Some("release") => How::Release,
            _ => How::Lock,
        };
        let name = self.name(line.n);
        self.by_id.insert((client, line.id), self.calls.len());
        self.calls.push(Call {
            client,
            id: line.id,
            name,
            how,
            asked: line.t,
            limit: line.limit.map(|limit| limit * MS),
            mode: ["permit", "read", "write"].into_iter().find(|mode| line.mode == Some(mode)).unwrap_or("lock"),
            weight: line.w.unwrap_or(1),
            of: line.of.unwrap_or(1),
            from: line.from.map(ToOwned::to_owned),
            handle_of: None,
            ended: NEVER,
            why: None,
            hold: None,
        });
    }

    fn outcome(&mut self, line: &Line, index: usize) {
        let call = &mut self.calls[index];
        call.ended = line.t;
        if line.e != "hold" {
            call.why = line.why.clone();
            return;
        }
        call.hold = Some(self.holds.len());
        self.holds.push(Hold {
            call: index,
            client: call.client,
            name: call.name,
            token: line.tok.unwrap_or_default(),
            owner: line.own.unwrap_or_default().to_owned(),
            start: line.t,
            until: line.until.unwrap_or_default(),
            is_fixed: line.fixed.is_some(),
            free: NEVER,
            freed: None,
            lost: None,
            listens: false,
            nested: Vec::new(),
            weight: call.weight,
            shrunk: None,
            detached: None,
            grant: self.holds.len(),
        });
    }

    fn of_hold(line: &Line, hold: &mut Hold) {
        let why = || line.why.clone().unwrap_or_default();
        if matches!(line.e, "until" | "lost") {
            hold.until = hold.until.max(line.until.unwrap_or_default());
            hold.listens = true;
        }
        match line.e {
            "shrink" => hold.shrunk = Some((line.t, line.w.unwrap_or_default())),
            "detach" => {
                let lease = line.lease.unwrap_or_default() * MS;
                let (asked, answered, until, was_refused) = (line.t, NEVER, 0, false);
                hold.detached = Some(Detached { asked, lease, answered, until, was_refused });
            }
            "detached" => {
                if let Some(detached) = &mut hold.detached {
                    detached.answered = line.t;
                    detached.until = line.until.unwrap_or_default();
                    detached.was_refused = line.why.as_deref() == Some("refused");
                }
            }
            // `end`: the caller dropped the call together with its hold, or during the release. The first of both
            // times counts.
            "free" | "end" => hold.free = hold.free.min(line.t),
            "freed" => hold.freed = Some((line.t, why())),
            "lost" => hold.lost = Some((line.t, why())),
            "in" | "out" => hold.nested.push((line.e == "in", line.k.unwrap_or_default())),
            _ => {}
        }
    }

    /// How long the machine stalled between these two times.
    pub fn stalled(&self, from: Time, to: Time) -> Time {
        let first = self.stalls.partition_point(|(_, end)| *end <= from);
        let within = self.stalls[first..].iter().take_while(|(begin, _)| *begin < to);
        within.map(|(begin, end)| (*end).min(to) - (*begin).max(from)).sum()
    }

    pub fn shard_of(&self, name: usize) -> usize {
        self.shard.get(&name).copied().unwrap_or_default()
    }

    pub fn host_of(&self, client: usize) -> usize {
        self.clients[client].host
    }

    /// The indices of all holds, or of all calls, by name.
    pub fn by_name<T>(&self, all: &[T], name: impl Fn(&T) -> usize) -> Vec<Vec<usize>> {
        let mut lists = vec![Vec::new(); self.names.len()];
        all.iter().enumerate().for_each(|(index, one)| lists[name(one)].push(index));
        lists
    }
}
