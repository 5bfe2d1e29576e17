//! R13: while a cluster moves a slot, a script runs as a whole or not at all.
//!
//! In such a slot Redis routes each command of a script separately. If a key is missing, or the script has deleted it,
//! the command fails with "Script attempted to access a non local key", and earlier commands keep their effect. So this
//! test runs every script over every state of its keys, on both nodes of a cluster that moves their slot. The script
//! must either refuse before any command, or do the same as in a slot that does not move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "embedded")]
use fairlock::simulation::{self, Delivery, Faults, Slot};
#[cfg(feature = "embedded")]
use fairlock::{LockClient, Unlocked};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{RedisResult, Value};

use crate::bench::{SCRIPTS, flatten, key};
use crate::support::{Server, eventually, limit_to};

/// A node of the cluster, with its server.
struct Node {
    server: Server,
    redis: MultiplexedConnection,
    id: String,
    /// Messages reach the clients `d` and `e`, as they would reach the caller `c`; they do not reach `x` and `w`.
    _subscribed: PubSub,
}

impl Node {
    async fn start() -> Self {
        let server = Server::node().await;
        let mut redis = server.connection().await;
        let id = redis::cmd("CLUSTER").arg("MYID").query_async(&mut redis).await.unwrap();
        let mut subscribed = server.pubsub().await;
        subscribed.subscribe(&["fairlock:wake:d", "fairlock:wake:e"]).await.unwrap();
        Self { server, redis, id, _subscribed: subscribed }
    }

    /// Sends all commands at once. An error is a reply like any other.
    async fn pipe(&mut self, commands: &[Words]) -> Vec<Outcome> {
        let mut pipe = redis::pipe();
        for words in commands {
            pipe.cmd(&words[0]).arg(&words[1..]);
        }
        let replies: Vec<RedisResult<Value>> = pipe.ignore_errors().query_async(&mut self.redis).await.unwrap();
        replies.into_iter().map(|reply| reply.map_err(|error| error.to_string())).collect()
    }

    async fn command(&mut self, text: &str) -> Vec<String> {
        let reply = self.pipe(&[words(text)]).await.remove(0);
        flatten(reply.unwrap_or_else(|error| panic!("{text}: {error}")))
    }
}

type Words = Vec<String>;
type Outcome = Result<Value, String>;

fn words(text: &str) -> Words {
    text.split(' ').map(ToOwned::to_owned).collect()
}

/// Two nodes. The first has all slots, and the slot of the name is on its way from the first to the second.
struct Cluster {
    source: Node,
    target: Node,
    slot: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// A slot that does not move.
    Rest,
    /// The node that the slot leaves.
    Source,
    /// The node that receives the slot, over ASK.
    Target,
}

impl Cluster {
    async fn start() -> Self {
        let (mut source, mut target) = (Node::start().await, Node::start().await);
        source.command("CLUSTER ADDSLOTSRANGE 0 16383").await;
        let ports = target.command("CLUSTER NODES").await.concat();
        // `<id> <address>:<port>@<bus port> …`
        let bus = ports.split(['@', ' ', ',']).nth(2).unwrap();
        source.command(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", target.server.port())).await;
        let slot = source.command(&format!("CLUSTER KEYSLOT {}", key("lock"))).await.concat();
        eventually("both nodes know of each other, and who has the slots", async || {
            let (mut one, mut two) = (source.server.connection().await, target.server.connection().await);
            let mut agree = true;
            for redis in [&mut one, &mut two] {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(redis).await.unwrap();
                agree &= info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2");
                agree &= info.contains("cluster_size:1");
                let nodes: String = redis::cmd("CLUSTER").arg("NODES").query_async(redis).await.unwrap();
                agree &= !nodes.contains("handshake");
            }
            agree
        })
        .await;
        target.command(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id)).await;
        for node in [&mut source, &mut target] {
            node.command("FLUSHALL").await;
        }
        Self { source, target, slot }
    }

    /// Makes the state, reads it, runs the script, and reads the state again.
    async fn run(&mut self, at: At, state: &[Words], script: &Words) -> Run {
        let setslot = |how: &str| words(&format!("CLUSTER SETSLOT {} {how}", self.slot));
        let mut commands = vec![words("FLUSHALL")];
        match at {
            At::Rest | At::Source => {
                commands.extend(state.iter().cloned());
                commands.extend(READS.iter().cloned());
                if at == At::Source {
                    commands.push(setslot(&format!("MIGRATING {}", self.target.id)));
                }
                commands.push(script.clone());
                commands.push(setslot("STABLE"));
                commands.extend(READS.iter().cloned());
            }
            At::Target => {
                let asked = state
                    .iter()
                    .cloned()
                    .chain(READS.iter().cloned())
                    .chain([script.clone()])
                    .chain(READS.iter().cloned());
                commands.extend(asked.flat_map(|command| [words("ASKING"), command]));
            }
        }
        let node = if at == At::Target { &mut self.target } else { &mut self.source };
        let mut replies = node.pipe(&commands).await;
        if at == At::Target {
            let mut index = 0;
            replies.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        } else {
            // The replies to SETSLOT.
            drop(replies.remove(replies.len() - READS.len() - 1));
            if at == At::Source {
                drop(replies.remove(replies.len() - READS.len() - 2));
            }
        }
        let after = contents(replies.split_off(replies.len() - READS.len()));
        let outcome = replies.pop().unwrap();
        let before = contents(replies.split_off(replies.len() - READS.len()));
        for reply in replies {
            reply.expect("the state can be made");
        }
        Run { before, outcome, after }
    }
}

struct Run {
    before: Vec<String>,
    outcome: Outcome,
    after: Vec<String>,
}

const TOMBSTONE: &str = "tombstone:c:1";

/// The commands that read the contents of the keys, and their times to live.
static READS: LazyLock<Vec<Words>> = LazyLock::new(|| {
    let contents = [
        format!("HGETALL {}", key("lock")),
        format!("LRANGE {} 0 -1", key("queue")),
        format!("ZRANGE {} 0 -1 WITHSCORES", key("deadlines")),
        format!("GET {}", key("tokens")),
        format!("GET {}", key(TOMBSTONE)),
        format!("GET {}", key("limit")),
    ];
    let kinds = ["lock", "queue", "deadlines", "tokens", TOMBSTONE, "limit"];
    let lifetimes = kinds.map(|kind| format!("PTTL {}", key(kind)));
    contents.iter().chain(&lifetimes).map(|text| words(text)).collect()
});

/// One text for each reply to `READS`.
fn contents(replies: Vec<Outcome>) -> Vec<String> {
    let mut texts = Vec::new();
    for (index, reply) in replies.into_iter().enumerate() {
        let reply = flatten(reply.expect("a key can be read"));
        texts.push(match index {
            // The order in a hash or a sorted set does not matter.
            0 | 2 => {
                let mut pairs: Vec<_> = reply.chunks(2).map(|pair| pair.join("=")).collect();
                pairs.sort();
                pairs.join(" | ")
            }
            _ => reply.join(" | "),
        });
    }
    texts
}

/// Whether two runs did the same: everything is equal except times.
fn alike(one: &[String], other: &[String]) -> bool {
    fn numbers(text: &str) -> (String, Vec<i64>) {
        let mut form = String::new();
        let mut found = Vec::new();
        let mut digits = String::new();
        for character in text.chars().chain(['\n']) {
            if character.is_ascii_digit() {
                digits.push(character);
                continue;
            }
            if !digits.is_empty() {
                found.push(digits.parse().unwrap());
                form.push('#');
                digits.clear();
            }
            form.push(character);
        }
        (form, found)
    }
    let near = |(one, other): (&i64, &i64)| {
        let most = match one.min(other) {
            ..500 => 0,
            // The rest of a lease.
            500..1_000_000_000 => 400,
            // Seconds and milliseconds since 1970.
            1_000_000_000..1_000_000_000_000_000 => 10_000,
            // Microseconds: tokens.
            _ => 30_000_000,
        };
        (one - other).abs() <= most
    };
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            let (one, other) = (numbers(&without_clock(one)), numbers(&without_clock(other)));
            one.0 == other.0 && one.1.iter().zip(&other.1).all(near)
        })
}

/// Removes the microseconds in the field `!grant`, any number up to a million.
fn without_clock(text: &str) -> String {
    let Some((head, grant)) = text.split_once("!grant=") else { return text.to_owned() };
    let kept: Vec<_> = grant.split(' ').enumerate().filter(|(index, _)| *index != 3).map(|(_, word)| word).collect();
    format!("{head}!grant={}", kept.join(" "))
}

/// The reply without the server's time.
fn without_time(reply: Value) -> Vec<String> {
    let words: Vec<String> = match reply {
        Value::Array(_) => flatten(reply),
        text => flatten(text).concat().split(' ').map(ToOwned::to_owned).collect(),
    };
    let is_time = |index: &usize| matches!(index, 2 | 3) || words[0] == "inspected" && matches!(index, 7 | 8);
    words.iter().enumerate().filter(|(index, _)| !is_time(index)).map(|(_, word)| word.clone()).collect()
}

// ---- the states

/// A token that is lower than the clock, and one that is ahead of it, as after the clock went back.
const TOKENS: [&str; 2] = ["7", "9007199254700000"];

/// One state of all keys of the name.
struct State {
    /// `-`, or OWNER SEQ HOLDS.
    lock: &'static str,
    /// One letter for each place: see `place`. A number before it repeats it.
    queue: String,
    /// Which key is missing although there is a queue: the list or the sorted set.
    without: &'static str,
    token: &'static str,
    tokens: bool,
    tombstone: Option<&'static str>,
}

impl State {
    fn name(&self) -> String {
        let Self { lock, queue, without, token, tokens, tombstone } = self;
        let tokens = if *tokens { token } else { "-" };
        format!("lock {lock}, queue {queue:?} without {without:?}, tokens {tokens}, tombstone {tombstone:?}")
    }

    /// The commands that make the state. `is_shared`: for a semaphore; it has a limit for all clients if the last token
    /// is known.
    fn commands(&self, is_shared: bool) -> Vec<Words> {
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let mut commands = Vec::new();
        if let [owner, seq, holds] = self.lock.split(' ').collect::<Vec<_>>()[..]
            && is_shared
        {
            let (record, soon) = (format!("{} {holds} {seq} {} {TERMS}", now + 10_000, self.token), now + 10_000);
            let fields = [owner.to_owned(), record, "!used".into()];
            let used = format!("1 1 {soon} {}", self.token);
            commands.push([words(&format!("HSET {}", key("lock"))), fields.to_vec(), vec![used]].concat());
            commands.push(words(&format!("PEXPIRE {} 10000", key("lock"))));
        } else if let [owner, seq, holds] = self.lock.split(' ').collect::<Vec<_>>()[..] {
            let grant = format!("{seq} {} 1700000000 5 3000/L", self.token);
            commands.push(["HSET", &key("lock"), owner, holds, "!grant", &grant].map(String::from).to_vec());
            commands.push(words(&format!("PEXPIRE {} 10000", key("lock"))));
        }
        let (mut places, mut scores) = (Vec::new(), BTreeMap::new());
        let mut times = String::new();
        for letter in self.queue.chars() {
            if letter.is_ascii_digit() {
                times.push(letter);
                continue;
            }
            for _ in 0..std::mem::take(&mut times).parse().unwrap_or(1) {
                place(letter, now, &mut places, &mut scores);
            }
        }
        if is_shared {
            places.iter_mut().for_each(|place| *place = place.replace("/3000/L", &format!("/{TERMS}")));
        }
        if is_shared && self.tokens {
            commands.push(words(&format!("SET {} 2", key("limit"))));
        }
        if self.queue.contains('!') {
            scores.insert("!skip".into(), "40".into());
        }
        // The last writer to the sorted set left its client there, and only a later writer removes it.
        let has_client = scores.keys().any(|member| !member.contains([':', '!']));
        if !scores.is_empty() && !has_client {
            scores.insert("e".into(), (now + 20_000).to_string());
        }
        if !places.is_empty() && !self.without.contains('q') {
            commands.push([words(&format!("RPUSH {}", key("queue"))), places].concat());
            commands.push(words(&format!("PEXPIRE {} 12000", key("queue"))));
        }
        if !scores.is_empty() && !self.without.contains('d') {
            let members = scores.into_iter().flat_map(|(member, score)| [score, member]);
            commands.push(words(&format!("ZADD {}", key("deadlines"))).into_iter().chain(members).collect());
            commands.push(words(&format!("PEXPIRE {} 12000", key("deadlines"))));
        }
        if self.tokens {
            commands.push(words(&format!("SET {} {} PX 60000", key("tokens"), self.token)));
        }
        if let Some(seq) = self.tombstone {
            commands.push(words(&format!("SET {} {seq} PX 5000", key(TOMBSTONE))));
        }
        commands
    }
}

/// Adds a place of this kind to the queue.
fn place(kind: char, now: i64, places: &mut Words, scores: &mut BTreeMap<String, String>) {
    let seq = 10 + places.len();
    let (client, score) = match kind {
        // Alive and reachable.
        'd' => ("d", Some(now + 20_000)),
        // Dead: silent for too long.
        'z' => ("z", Some(now - 1000)),
        // Dead: forgotten.
        'y' => ("y", None),
        // Alive, but no message reaches it, and no script has noted that yet.
        'x' => ("x", Some(now + 20_000)),
        // The same, and noted.
        'w' => ("w", Some(-now - 20_000)),
        // Has left, but its place remains.
        'e' => ("e", Some(now + 20_000)),
        // The caller's client: first the attempt of the calls, and then others.
        'c' => ("c", Some(now + 20_000)),
        // A note that no script needs to look at the first places.
        '!' => return,
        _ => panic!("no such kind of place: {kind}"),
    };
    let mine = kind == 'c' && !scores.contains_key("c:1:5");
    let ticket = if mine { "c:1:5".into() } else { format!("{client}:2:{seq}") };
    if let Some(score) = score {
        scores.insert(client.into(), score.to_string());
    }
    if kind != 'e' {
        scores.insert(ticket.clone(), "inf".into());
    }
    places.push(format!("{ticket}/3000/L"));
}

const LOCKS: [&str; 6] = ["-", "c:1 4 1", "c:1 5 1", "c:1 9 1", "c:1 4 2", "d:1 2 1"];

fn states() -> Vec<State> {
    let mut queues: BTreeSet<String> = BTreeSet::from([String::new()]);
    for first in "dzyxwec".chars() {
        queues.insert(first.into());
        queues.extend("dzxec".chars().map(|second| format!("{first}{second}")));
    }
    let longer = ["zzd", "xcd", "zxcd", "eec", "dcd", "cdc", "zyxwe", "zyxwedc"];
    // With a note, in the middle of many, and more than one call clears or looks at.
    let many = ["40z", "40zd", "40xcd", "!40wcd", "!40wzc", "!40zc", "140z", "140zd", "140zc", "2100wd"];
    queues.extend(longer.into_iter().chain(many).map(ToOwned::to_owned));
    let mut states = Vec::new();
    // All keys exist, as far as there is a queue.
    for queue in &queues {
        for lock in LOCKS {
            for token in TOKENS {
                for seq in ["4", "9"] {
                    // Every combination with a short queue; with a longer one only those that matter to the choice of
                    // the next holder.
                    let is_vast = queue.contains("00");
                    let matters = match queue.len() {
                        0 | 1 => true,
                        _ if seq == "9" || token != TOKENS[0] && !is_vast => false,
                        2 | 3 => !["-", "c:1 4 2"].contains(&lock),
                        _ => lock == "c:1 4 1" || lock == "d:1 2 1" && !is_vast,
                    };
                    if !matters {
                        continue;
                    }
                    let (queue, tombstone) = (queue.clone(), Some(seq));
                    states.push(State { lock, queue, without: "", token, tokens: true, tombstone });
                }
            }
        }
    }
    // Each key is present or missing.
    for queue in ["", "d", "zc"] {
        for lock in ["-", "c:1 4 1", "d:1 2 1"] {
            for without in ["", "q", "d"] {
                for tokens in [false, true] {
                    for tombstone in [None, Some("4")] {
                        let complete = without.is_empty() && tokens && tombstone.is_some();
                        if !complete && (!queue.is_empty() || without.is_empty()) {
                            let queue = queue.to_owned();
                            states.push(State { lock, queue, without, token: TOKENS[0], tokens, tombstone });
                        }
                    }
                }
            }
        }
    }
    states
}

// ---- the calls

struct Call {
    script: &'static str,
    what: &'static str,
    keys: &'static [&'static str],
    /// After the number of the request. `+N` means N ms from now, `+Nus` the same in µs, and TOKEN the token of the
    /// hold.
    args: &'static [&'static str],
}

/// One permit of five.
const TERMS: &str = "1,5,3000/L";
const SHARED_FIVE: &[&str] = &["lock", "queue", "deadlines", "tokens", "limit"];
const SHARED_SIX: &[&str] = &["lock", "queue", "deadlines", "tokens", TOMBSTONE, "limit"];
const FOUR: &[&str] = &["lock", "queue", "deadlines", "tokens"];
const FIVE: &[&str] = &["lock", "queue", "deadlines", "tokens", TOMBSTONE];
const SETTINGS: &str = "6000 5000 60000 fairlock:wake:";

/// All scripts, with arguments in the form that proto/src/requests sends.
const CALLS: [Call; 37] = {
    const fn call(
        script: &'static str,
        what: &'static str,
        keys: &'static [&'static str],
        args: &'static [&'static str],
    ) -> Call {
        Call { script, what, keys, args }
    }
    [
        call("acquire", "waits", FIVE, &["+2000us", "c:1", "5", "10000", "3000/L", SETTINGS]),
        call("acquire", "does not wait", FIVE, &["+2000us", "c:1", "5", "10000", "3000/L", SETTINGS, "0"]),
        call("acquire", "one more", FIVE, &["+2000us", "c:1", "5", "10000", "3000/L", SETTINGS, "1:TOKEN"]),
        call(
            "acquire",
            "may be full",
            FIVE,
            &["+2000us", "c:1", "5", "10000", "3000/L", "6000 1 60000 fairlock:wake:"],
        ),
        call(
            "acquire",
            "is bounded",
            FIVE,
            &["+2000us", "c:1", "5", "10000", "3000/L", "6000 100 60000 fairlock:wake:"],
        ),
        call("acquire", "late", FIVE, &["+-1us", "c:1", "5", "10000", "3000/L", SETTINGS]),
        call("poll", "waits", FOUR, &["c", "1", SETTINGS, "c:1:5", "c:2:11"]),
        call("poll", "passes on", FOUR, &["c", "0", SETTINGS]),
        call("leave", "no copy", FIVE, &["0", "c:1", "5", "c:1:5/3000/L", SETTINGS]),
        call("leave", "with a copy", FIVE, &["+2000", "c:1", "5", "c:1:5/3000/L", SETTINGS]),
        call("renew", "one key", &["lock"], &["c:1", "TOKEN", "10000", "0"]),
        call("renew", "a shorter lease", &["lock"], &["c:1", "TOKEN", "3000", "4"]),
        call("renew", "with the token", &["lock", "tokens"], &["c:1", "TOKEN", "10000", "0", "60000"]),
        call("raise", "", &["lock", "tokens"], &["c:1", "TOKEN", "9999999999999999", "60000"]),
        call(
            "give",
            "",
            &["lock", "tokens", TOMBSTONE],
            &["+2000us", "c:1", "5", "TOKEN", "c-5:0", "1", "10000", "3000/L", "60000"],
        ),
        call("renew", "an extend", &["lock"], &["c:1", "TOKEN", "30000", "9"]),
        call("release", "by a handle", FIVE, &["c:1", "5", SETTINGS, "0:TOKEN:0"]),
        call("release", "to 0", FOUR, &["c:1", "5", SETTINGS]),
        call("release", "to 1", FOUR, &["c:1", "5", SETTINGS, "1:TOKEN"]),
        call("release", "with a copy", FIVE, &["c:1", "5", SETTINGS, "+2000 c:1:5/3000/L"]),
        call("force_unlock", "", FOUR, &["+2000us", "c", "", SETTINGS]),
        call("inspect", "", &["lock", "queue", "deadlines"], &["10"]),
        call("shared/acquire", "waits", SHARED_SIX, &["+2000us", "c:1", "5", "10000", TERMS, SETTINGS]),
        call("shared/acquire", "wants two", SHARED_SIX, &["+2000us", "c:1", "5", "10000", "2,5,3000/L", SETTINGS]),
        call("shared/acquire", "does not wait", SHARED_SIX, &["+2000us", "c:1", "5", "10000", TERMS, SETTINGS, "0"]),
        call("shared/acquire", "one more", SHARED_SIX, &["+2000us", "c:1", "5", "10000", TERMS, SETTINGS, "1:TOKEN"]),
        call("shared/poll", "waits", SHARED_FIVE, &["c", "1", SETTINGS, "c:1:5", "c:2:11"]),
        call("shared/poll", "names ours", SHARED_FIVE, &["c", "2", SETTINGS]),
        call("shared/leave", "with a copy", SHARED_SIX, &["+2000", "c:1", "5", "c:1:5/1,5,3000/L", SETTINGS]),
        call("shared/renew", "", &["lock"], &["c:1", "TOKEN", "10000", "0"]),
        call(
            "shared/give",
            "",
            &["lock", "tokens", TOMBSTONE],
            &["+2000us", "c:1", "5", "TOKEN", "c-5:0", "1", "10000", TERMS, "60000"],
        ),
        call("shared/release", "to 0", SHARED_SIX, &["c:1", "5", SETTINGS]),
        call("shared/release", "to 1", SHARED_SIX, &["c:1", "5", SETTINGS, "1:TOKEN:1"]),
        call("shared/release", "with a copy", SHARED_SIX, &["c:1", "5", SETTINGS, "+2000 c:1:5/1,5,3000/L"]),
        call("shared/force_unlock", "", SHARED_FIVE, &["+2000us", "c", "TOKEN", SETTINGS]),
        call("shared/set_limit", "", SHARED_FIVE, &["+2000us", "c", "3", SETTINGS]),
        call("shared/inspect", "", &["lock", "queue", "deadlines", "limit"], &["10"]),
    ]
};

impl Call {
    fn is_shared(&self) -> bool {
        self.script.starts_with("shared/")
    }

    fn name(&self) -> String {
        [self.script, self.what].join(" ").trim_end().to_owned()
    }

    fn command(&self, hash: &str, token: &str) -> Words {
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let mut command = vec!["EVALSHA".into(), hash.into(), self.keys.len().to_string()];
        command.extend(self.keys.iter().map(|kind| key(kind)));
        command.push("77".into());
        for arg in self.args {
            let (first, rest) = arg.split_once(' ').map_or((*arg, None), |(first, rest)| (first, Some(rest)));
            let first = match first.strip_prefix('+') {
                Some(later) => match later.strip_suffix("us") {
                    Some(later) => (1000 * (now + later.parse::<i64>().unwrap())).to_string(),
                    None => (now + later.parse::<i64>().unwrap()).to_string(),
                },
                None => first.replace("TOKEN", token),
            };
            command.push(rest.map_or(first.clone(), |rest| format!("{first} {rest}")));
        }
        command
    }

    /// Whether the result of this call can depend on what is special about this state.
    fn needs(&self, state: &State) -> bool {
        let is_short = state.queue.len() < 2;
        // Only an acquire reads the tombstone.
        let by_tombstone = self.script.ends_with("acquire") && is_short || state.tombstone != Some("9");
        // Only scripts that pass the lock on use the next token.
        let passes_on = self.keys.contains(&"queue") && self.keys.contains(&"tokens");
        let by_token = passes_on || state.token == TOKENS[0];
        let by_queue = passes_on && self.what != "late" || is_short;
        by_tombstone && by_token && by_queue
    }
}

// ---- the search

#[derive(Default)]
struct Found {
    /// How often each call ran to its end, by call and node.
    ran: BTreeMap<(String, &'static str), u32>,
    refused: u32,
    states: usize,
    /// The script did something and then failed.
    half_done: Vec<(&'static str, String)>,
    /// A refusal that changed something, or an effect that differs from the effect in a slot that does not move.
    wrong: Vec<String>,
}

async fn search(scripts: &BTreeMap<&'static str, String>, calls: &[&Call], states: &[&State]) -> Found {
    let mut cluster = Cluster::start().await;
    let mut hashes = BTreeMap::new();
    for (name, text) in scripts {
        let load: Words = ["SCRIPT", "LOAD", text].map(ToOwned::to_owned).to_vec();
        for node in [&mut cluster.source, &mut cluster.target] {
            hashes.insert(*name, flatten(node.pipe(std::slice::from_ref(&load)).await.remove(0).unwrap()).concat());
        }
    }
    let mut found = Found { states: states.len(), ..Found::default() };
    for state in states {
        for call in calls.iter().filter(|call| call.needs(state)) {
            // The effect of the call in a slot that does not move.
            let mut rest: Option<Rest> = None;
            for (at, node) in [(At::Source, "source"), (At::Target, "target")] {
                // At the target a script over several keys begins under the same conditions, and may do more.
                if at == At::Target && (state.token != TOKENS[0] || state.queue.len() > 3) {
                    continue;
                }
                let what = format!("{} at the {node}: {}", call.name(), state.name());
                let script = call.command(&hashes[call.script], state.token);
                let run = cluster.run(at, &state.commands(call.is_shared()), &script).await;
                match run.outcome {
                    Ok(reply) => {
                        let reply = without_time(reply);
                        let is_alike =
                            |rest: &Option<Rest>| rest.as_ref().is_some_and(|it| it.is_like(&reply, &run.after));
                        // Runs it again, because a loaded machine may have been slow in one of the runs.
                        for _ in 0..2 {
                            if !is_alike(&rest) {
                                rest = Some(at_rest(&mut cluster, state, call, &hashes[call.script]).await);
                            }
                        }
                        if !is_alike(&rest) {
                            let done = (&reply, &run.after);
                            found.wrong.push(format!("{what}\n    did {done:?}\n instead of {rest:?}"));
                        }
                        *found.ran.entry((call.name(), node)).or_default() += 1;
                    }
                    Err(error) if ["TRYAGAIN", "ASK", "MOVED"].iter().any(|code| is_code(&error, code)) => {
                        found.refused += 1;
                        if !alike(&run.before, &run.after) {
                            found.wrong.push(format!("{what}: refused with {error}, and changed {:?}", run.after));
                        }
                    }
                    Err(error) => {
                        found.half_done.push((call.script, format!("{what}\n    {error}\n    left {:?}", run.after)));
                    }
                }
            }
        }
    }
    found
}

/// The redis crate shows the codes that it knows in its own words.
fn is_code(error: &str, code: &str) -> bool {
    let known = match code {
        "TRYAGAIN" => "TryAgain",
        "ASK" => "Ask",
        _ => "Moved",
    };
    error.starts_with(code) || error.starts_with(known)
}

#[derive(Debug)]
struct Rest {
    reply: Words,
    after: Vec<String>,
}

impl Rest {
    fn is_like(&self, reply: &[String], after: &[String]) -> bool {
        alike(&self.reply, reply) && alike(&self.after, after)
    }
}

/// The reply and the state in a slot that does not move.
async fn at_rest(cluster: &mut Cluster, state: &State, call: &Call, hash: &str) -> Rest {
    let run = cluster.run(At::Rest, &state.commands(call.is_shared()), &call.command(hash, state.token)).await;
    let reply = run.outcome.unwrap_or_else(|error| panic!("{} at rest, {}: {error}", call.name(), state.name()));
    Rest { reply: without_time(reply), after: run.after }
}

/// Runs each script of locks, or of shared names, over all states.
async fn runs_as_a_whole_or_not_at_all(is_shared: bool) {
    limit_to(Duration::from_secs(600), async {
        let calls: Vec<_> = CALLS.iter().filter(|call| call.is_shared() == is_shared).collect();
        let scripts: BTreeSet<_> = calls.iter().map(|call| call.script).collect();
        // boot.lua belongs to strict_restart, which does not work on a cluster.
        let library = SCRIPTS.keys().filter(|name| **name != "boot" && name.starts_with("shared/") == is_shared);
        assert!(library.eq(scripts.iter()), "each script of the library is called");
        let states = states();
        let found = search(&SCRIPTS, &calls, &states.iter().collect::<Vec<_>>()).await;
        let all: u32 = found.ran.values().sum();
        println!("{} states: {all} calls ran, {} were refused", found.states, found.refused);
        println!("{:#?}", found.ran);
        let few = |list: &[String]| list.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        let half_done: Vec<_> = found.half_done.into_iter().map(|(_, what)| what).collect();
        assert!(half_done.is_empty(), "{} half done:\n{}", half_done.len(), few(&half_done));
        assert!(found.wrong.is_empty(), "{} wrong:\n{}", found.wrong.len(), few(&found.wrong));
        for call in calls {
            for node in ["source", "target"] {
                let ran = found.ran.get(&(call.name(), node)).copied().unwrap_or_default();
                assert!(ran >= 10, "{} ran {ran} times at the {node}", call.name());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn r13_each_script_of_a_lock_runs_as_a_whole_or_not_at_all_in_a_slot_that_moves() {
    runs_as_a_whole_or_not_at_all(false).await;
}

#[tokio::test]
async fn r13_each_script_of_a_shared_name_runs_as_a_whole_or_not_at_all_in_a_slot_that_moves() {
    runs_as_a_whole_or_not_at_all(true).await;
}

/// The search must find a script that deletes a key and writes it again, as all scripts that pass a lock on did before.
#[tokio::test]
async fn r13_a_script_that_makes_a_key_again_is_found() {
    limit_to(Duration::from_secs(600), async {
        let (set, delete) =
            ("call('HSET', lock, owner, '1',", "if ending and ending ~= owner then call('HDEL', lock, ending) end\n");
        let again = format!("if ending then call('DEL', lock) end\n{set}");
        let names = ["acquire", "force_unlock", "leave", "release"];
        let mutate = |name: &&'static str| {
            let text = &SCRIPTS[name];
            assert!(
                text.contains(set) && text.matches(set).count() == text.matches(delete).count(),
                "{name} has the lines to replace"
            );
            (*name, text.replace(set, &again).replace(delete, ""))
        };
        let scripts = names.iter().map(mutate).collect();
        // One call of each script is enough.
        let whats = ["waits", "", "no copy", "to 0"];
        let calls: Vec<_> =
            CALLS.iter().filter(|call| names.contains(&call.script) && whats.contains(&call.what)).collect();
        // The shortest queues are enough, too.
        let states = states();
        let short: Vec<_> = states.iter().filter(|state| state.queue.len() < 2 && state.token == TOKENS[0]).collect();
        let found = search(&scripts, &calls, &short).await;
        for name in names {
            let half_done = found.half_done.iter().filter(|(script, _)| *script == name).count();
            println!("{name}: {half_done} half done");
            assert!(half_done > 0, "{name} was not found");
        }
    })
    .await;
}

/// The faults of a node: a renewal takes this time to arrive.
#[cfg(feature = "embedded")]
struct SlowRenewals(Duration);

#[cfg(feature = "embedded")]
impl Faults for SlowRenewals {
    fn request(&self, _client: &str, script: &str) -> Vec<Delivery> {
        let slow = if script == "renew" { self.0 } else { Duration::ZERO };
        vec![Delivery { request: slow, ..Delivery::AT_ONCE }]
    }
}

/// A node redirects a renewal with ASK, an operator gives up the move, and the key goes back before the renewal reaches
/// the other node, which then does not know the hold.
#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn p8_a_hold_whose_key_has_gone_back_to_its_node_is_not_lost() {
    let ms = Duration::from_millis;
    let nodes = simulation::cluster([SlowRenewals(Duration::ZERO), SlowRenewals(ms(100))]);
    let [source, target] = &nodes[..] else { panic!("two nodes") };
    let (lock_key, owner) = ("fairlock:{n:lock}", simulation::address(source));
    let served = || Slot { owner: owner.clone(), ..Slot::default() };
    nodes.iter().for_each(|node| simulation::set_slot(node, lock_key, served()));
    let builder =
        LockClient::builder().lease(ms(3000)).operation_timeout(ms(500)).poll_interval(ms(500)).grant_ttl(ms(1000));
    let (client, _looks) = simulation::connect(builder, &nodes, source).unwrap();
    let guard = client.lock("lock").lock().await.unwrap();
    assert_eq!(source.keys().iter().filter(|key| *key == lock_key).count(), 1, "the lock has that key");

    simulation::set_slot(target, lock_key, Slot { importing: Some(owner.clone()), ..served() });
    simulation::set_slot(source, lock_key, Slot { migrating: Some(simulation::address(target)), ..served() });
    source.migrate(lock_key, target);
    // A third of the lease, and half of the way to the target.
    tokio::time::sleep(ms(1050)).await;
    target.migrate(lock_key, source);
    tokio::time::sleep(ms(10_000)).await;
    assert!(guard.is_valid(), "renewed all the time");
    nodes.iter().for_each(|node| simulation::set_slot(node, lock_key, served()));
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Freed);
    client.close().await.unwrap();
}
