//! Hand-written histories, to check what the judge finds in them.

use crate::checks::judge;
use crate::history::History;

pub const NOTHING: [&str; 0] = [];

/// A mode, a weight, and the limit.
#[derive(Clone, Copy)]
pub struct Share(pub &'static str, pub u64, pub u64);

/// A hand-written history. Times are in ms.
pub struct Story {
    lines: Vec<String>,
    topology: &'static str,
    pub calls: u64,
}

impl Story {
    /// Clients on hosts of their own: leases of 3 s, an operation timeout of 1 s, waiters that live for 1.5 s.
    pub fn new() -> Self {
        Self::on("single")
    }

    pub fn on(topology: &'static str) -> Self {
        let (name, strict) = topology.split_once(' ').map_or((topology, false), |(name, _)| (name, true));
        let mut story = Self { lines: Vec::new(), topology, calls: 0 };
        story.line(0, "driver", "run", &format!(r#""topology":"{name}","strict":{strict},"freeze":6000,"seed":1"#));
        for (client, host) in [("a.1", "a"), ("b.1", "b"), ("c.1", "c")] {
            let settings = r#""lease":3000,"op":1000,"poll":500,"wttl":1500,"gttl":750"#;
            story.line(0, client, "client", &format!(r#""host":"{host}",{settings}"#));
        }
        story.line(1, "driver", "load", r#""text":"""#);
        story
    }

    pub fn line(&mut self, ms: u64, who: &str, event: &str, fields: &str) {
        let nanos = ms * 1_000_000;
        self.lines.push(format!(r#"{{"t":{nanos},"c":"{who}","e":"{event}",{fields}}}"#));
    }

    /// A call that waits. Its outcome follows later.
    pub fn asks(&mut self, ms: u64, who: &str) -> u64 {
        self.calls_with(ms, who, "lock", "")
    }

    fn calls_with(&mut self, ms: u64, who: &str, how: &str, more: &str) -> u64 {
        self.calls += 1;
        self.line(ms, who, "ask", &format!(r#""id":{},"n":"x","how":"{how}"{more}"#, self.calls));
        self.calls
    }

    /// The same, for a share of the name.
    pub fn asks_share(&mut self, ms: u64, who: &str, share: Share) -> u64 {
        let Share(mode, weight, of) = share;
        self.calls_with(ms, who, "lock", &format!(r#","mode":"{mode}","w":{weight},"of":{of}"#))
    }

    /// Asks, gets the share at once, and releases it.
    pub fn shares(&mut self, from: u64, to: u64, who: &str, share: Share, token: u64) -> u64 {
        let id = self.asks_share(from - 1, who, share);
        self.gets(from, who, id, token);
        self.frees(to, who, id);
        id
    }

    pub fn shrinks(&mut self, ms: u64, who: &str, id: u64, left: u64) {
        self.line(ms, who, "shrink", &format!(r#""id":{id},"w":{left}"#));
    }

    /// The handle's lease of 2 s ends 2 s later.
    pub fn detaches(&mut self, ms: u64, who: &str, id: u64) {
        self.line(ms, who, "detach", &format!(r#""id":{id},"lease":2000"#));
        let until = (ms + 2000) * 1_000_000;
        self.line(ms + 1, who, "detached", &format!(r#""id":{id},"why":"ok","until":{until}"#));
    }

    /// A call with the handle of another client's hold: `attach` or `release`.
    pub fn uses(&mut self, ms: u64, who: &str, how: &str, (maker, id): (&str, u64)) -> u64 {
        self.calls_with(ms, who, how, &format!(r#","from":"{maker}/{id}""#))
    }

    pub fn asks_for(&mut self, ms: u64, who: &str, limit: u64) -> u64 {
        self.calls_with(ms, who, "timeout", &format!(r#","limit":{limit}"#))
    }

    pub fn ends(&mut self, ms: u64, who: &str, id: u64, why: &str) {
        self.line(ms, who, "end", &format!(r#""id":{id},"why":"{why}""#));
    }

    /// Gets it, with a lease of 3 s from then on.
    pub fn gets(&mut self, ms: u64, who: &str, id: u64, token: u64) {
        let until = (ms + 3000) * 1_000_000;
        self.line(ms, who, "hold", &format!(r#""id":{id},"tok":{token},"until":{until}"#));
    }

    pub fn frees(&mut self, ms: u64, who: &str, id: u64) {
        self.line(ms, who, "free", &format!(r#""id":{id}"#));
        self.line(ms + 1, who, "freed", &format!(r#""id":{id},"why":"ok""#));
    }

    pub fn loses(&mut self, ms: u64, who: &str, id: u64, why: &str) {
        self.line(ms, who, "lost", &format!(r#""id":{id},"why":"{why}""#));
    }

    /// Asks, gets the lock at once, and releases it.
    pub fn holds(&mut self, from: u64, to: u64, who: &str, token: u64) -> u64 {
        let id = self.asks(from - 1, who);
        self.gets(from, who, id, token);
        self.frees(to, who, id);
        id
    }

    /// `c` ends the hold with this token by force.
    pub fn forces(&mut self, ms: u64, token: u64) {
        self.line(ms, "c.1", "force", &format!(r#""id":99,"n":"x","tok":{token}"#));
        self.line(ms + 10, "c.1", "forced", r#""id":99,"hit":true"#);
    }

    pub fn fault(&mut self, from: u64, to: u64, kind: &str, hosts: &str) {
        self.calls += 1;
        let hosts = if hosts.is_empty() { String::new() } else { format!(r#","hosts":["{hosts}"]"#) };
        self.line(from, "driver", "fault", &format!(r#""id":{},"kind":"{kind}"{hosts}"#, self.calls));
        self.line(to, "driver", "healed", &format!(r#""id":{}"#, self.calls));
    }

    /// The promises that the judge finds broken, if all clients but these close in good order after 30 s.
    pub fn found(mut self, killed: &[&str]) -> Vec<&'static str> {
        self.line(30_000, "driver", "quiet", r#""text":"""#);
        for client in ["a.1", "b.1", "c.1"].iter().filter(|client| !killed.contains(client)) {
            self.line(30_001, client, "closing", r#""op":1000"#);
            self.line(30_002, client, "closed", r#""why":"ok""#);
        }
        if !self.lines.iter().any(|line| line.contains(r#""left""#)) {
            self.line(31_000, "driver", "left", r#""keys":[]"#);
        }
        let mut history = History::default();
        history.add(&self.lines.join("\n"));
        history.finish();
        assert_eq!((history.torn, history.run.topology.as_str()), (0, self.topology.split(' ').next().unwrap()));
        let verdict = judge(&history);
        verdict.violations.iter().for_each(|violation| println!("{}: {}", violation.promise, violation.text));
        verdict.counts.into_keys().collect()
    }

    pub fn finds(self) -> Vec<&'static str> {
        self.found(&[])
    }
}
