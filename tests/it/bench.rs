//! Runs single scripts on one store. Calls, replies and the keys' state are text.
//!
//! In an expected text `*` matches any word. `T` is a token that the server made; tokens that a test sets are small
//! numbers. Clients `d` and `e` are subscribed to their channels. Clients `x` and `y` are not, so they are
//! unreachable. `c` is the caller. In a step and in a call, `~` is a space inside a word.
//!
//! The scripts for shared names have names like `shared/acquire`, and the terms `1,1,3000/L` (weight, limit, grant
//! TTL, label). Their state begins with `room SUM OWNER=HOLDS,ATTEMPT,TOKEN,TERMS…`.
//!
//! A state is written as
//! `lock OWNER=HOLDS ATTEMPT,TOKEN,SINCE,TERMS | queue PLACE… | clients CLIENT… | tickets TICKET… | skip N |
//! tombstone OWNER=SEQ`, without the empty parts. SINCE is 0 if a test made the grant. The terms `3000/L` of a place
//! are omitted. `-x` is a client marked as unreachable, `!x` a dead one. The tickets are omitted if they equal those
//! in the queue, as they should.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use fairlock_proto::keys;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::support::Server;

#[path = "../../src/store/glob.rs"]
#[allow(dead_code)]
pub mod glob;
#[path = "../../src/store/script.rs"]
#[allow(dead_code)]
mod script;

/// The scripts by name, with their includes filled in, as the library sends them.
pub static SCRIPTS: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let texts = [
        ("acquire", include_str!("../../lua/acquire.lua")),
        ("boot", include_str!("../../lua/boot.lua")),
        ("force_unlock", include_str!("../../lua/force_unlock.lua")),
        ("give", include_str!("../../lua/give.lua")),
        ("inspect", include_str!("../../lua/inspect.lua")),
        ("leave", include_str!("../../lua/leave.lua")),
        ("poll", include_str!("../../lua/poll.lua")),
        ("raise", include_str!("../../lua/raise.lua")),
        ("release", include_str!("../../lua/release.lua")),
        ("renew", include_str!("../../lua/renew.lua")),
    ];
    let shared = [
        ("shared/acquire", include_str!("../../lua/shared/acquire.lua")),
        ("shared/force_unlock", include_str!("../../lua/shared/force_unlock.lua")),
        ("shared/give", include_str!("../../lua/shared/give.lua")),
        ("shared/inspect", include_str!("../../lua/shared/inspect.lua")),
        ("shared/leave", include_str!("../../lua/shared/leave.lua")),
        ("shared/poll", include_str!("../../lua/shared/poll.lua")),
        ("shared/release", include_str!("../../lua/shared/release.lua")),
        ("shared/renew", include_str!("../../lua/shared/renew.lua")),
        ("shared/set_limit", include_str!("../../lua/shared/set_limit.lua")),
    ];
    let locks = texts.into_iter().map(|(name, text)| (name, script::assemble(text, false)));
    locks.chain(shared.into_iter().map(|(name, text)| (name, script::assemble(text, true)))).collect()
});

const PREFIX: &str = "fairlock";
const NAME: &str = "n";
/// Not a bound in the scripts: one store could be a millisecond below it and the other not.
const FOREIGN_TTL_MS: u32 = 55_000;
/// The terms for a shared name, unless the call has others.
const SHARED_TERMS: &str = "1,1,3000/L";
pub const KINDS: [&str; 4] = ["lock", "queue", "deadlines", "tokens"];

pub struct Row {
    pub what: &'static str,
    pub before: &'static [&'static str],
    pub call: &'static str,
    pub reply: &'static str,
    pub after: &'static str,
    /// The reply to the same call again. The state must not change (R1).
    pub again: &'static str,
}

/// Checks the rows on both stores, one after the other.
pub async fn check(rows: &[Row]) {
    for mut bench in Bench::each().await {
        bench.check(rows).await;
    }
}

/// An error reply of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub code: String,
    pub text: String,
}

impl Refused {
    /// Cuts off the place in the script, which Redis adds.
    fn new(code: &str, text: &str) -> Self {
        let text = text.split(" script: ").next().unwrap();
        Self { code: code.to_owned(), text: text.to_owned() }
    }
}

impl From<redis::RedisError> for Refused {
    fn from(error: redis::RedisError) -> Self {
        Self::new(error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
    }
}

#[allow(clippy::large_enum_variant)] // only two values exist
enum Store {
    Redis {
        server: Server,
        redis: MultiplexedConnection,
        scripts: HashMap<&'static str, redis::Script>,
        _subscribed: redis::aio::PubSub,
    },
    #[cfg(feature = "embedded")]
    Embedded(Box<fairlock_emulator::Interpreter>),
}

pub struct Bench {
    store: Store,
}

impl Bench {
    pub async fn each() -> Vec<Self> {
        vec![
            Self::on(Server::start().await).await,
            #[cfg(feature = "embedded")]
            Self::embedded(),
        ]
    }

    /// The fastest store.
    pub async fn one() -> Self {
        Self::each().await.pop().expect("a store")
    }

    pub async fn on(server: Server) -> Self {
        let mut subscribed = server.pubsub().await;
        subscribed.subscribe(&["fairlock:wake:d", "fairlock:wake:e"]).await.unwrap();
        let redis = server.connection().await;
        let scripts = SCRIPTS.iter().map(|(name, source)| (*name, redis::Script::new(source))).collect();
        Self { store: Store::Redis { server, redis, scripts, _subscribed: subscribed } }
    }

    #[cfg(feature = "embedded")]
    pub fn embedded() -> Self {
        let engine = fairlock_emulator::Interpreter::new().unwrap();
        engine.keyspace(|keyspace| {
            keyspace.channels.extend(["d", "e"].map(|client| format!("fairlock:wake:{client}").into_bytes()));
        });
        Self { store: Store::Embedded(Box::new(engine)) }
    }

    pub fn is_real(&self) -> bool {
        matches!(self.store, Store::Redis { .. })
    }

    pub fn server(&self) -> &Server {
        match &self.store {
            Store::Redis { server, .. } => server,
            #[cfg(feature = "embedded")]
            Store::Embedded(_) => panic!("this test is for a real server"),
        }
    }

    /// Reports all rows that differ.
    pub async fn check(&mut self, rows: &[Row]) {
        let mut differences = Vec::new();
        for row in rows {
            self.command("FLUSHALL").await;
            for step in row.before {
                self.prepare(step).await;
            }
            let reply = self.call(row.call).await;
            differences.extend(difference(row.what, "reply", &reply, row.reply));
            differences.extend(difference(row.what, "state", &self.state().await, row.after));
            self.assert_everything_expires(row.what).await;
            let again = self.call(row.call).await;
            differences.extend(difference(row.what, "second reply", &again, row.again));
            differences.extend(difference(row.what, "state after the second", &self.state().await, row.after));
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    /// `held OWNER SEQ TOKEN`, `waits PLACE`, `dead CLIENT`, `unreachable CLIENT`, `tombstone OWNER SEQ`, `token N`,
    /// `newer lock`, `foreign KIND`, `frozen MS` (in the life `L`), or a Redis command with the kind of a key in place
    /// of the key. For a semaphore: `holds OWNER SEQ TOKEN WEIGHT,LIMIT [MS]` (MS of its lease are left), `queues
    /// PLACE`, and `ended OWNER` (the only holder).
    pub async fn prepare(&mut self, step: &str) {
        self.try_prepare(step).await.unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }

    pub async fn try_prepare(&mut self, step: &str) -> Result<(), Refused> {
        let parts: Vec<&str> = step.split(' ').collect();
        let (soon, past) = (self.now().await + 5000, self.now().await - 1);
        let expire = || ["PEXPIRE queue 12000".to_owned(), "PEXPIRE deadlines 12000".to_owned()];
        let commands = match parts[..] {
            ["held", owner, seq, token] => vec![
                format!("HSET lock {owner} 1 !grant {seq}~{token}~0~0~3000/L"),
                "PEXPIRE lock 10000".into(),
                format!("SET tokens {token} PX 60000"),
            ],
            ["waits", place] => {
                let place = if place.contains('/') { place.to_owned() } else { format!("{place}/3000/L") };
                let ticket = place.split('/').next().unwrap();
                let mut commands = vec![
                    format!("RPUSH queue {place}"),
                    format!("ZADD deadlines {soon} {} inf {ticket}", client_of(ticket)),
                ];
                commands.extend(expire());
                commands
            }
            // Its silence was forgiven once already, so the server does not forgive it again.
            ["dead", client] => {
                [format!("ZADD deadlines {past} {client} {past} !forgiven")].into_iter().chain(expire()).collect()
            }
            ["unreachable", client] => {
                [format!("ZADD deadlines -{soon} {client}")].into_iter().chain(expire()).collect()
            }
            ["holds", owner, seq, token, share] => self.record(owner, seq, token, share, "10000").await,
            ["holds", owner, seq, token, share, left] => self.record(owner, seq, token, share, left).await,
            // The only holder, whose lease has ended.
            ["ended", owner] => vec![
                "DEL lock".into(),
                format!("HSET lock !used 1~1~1~7 {owner} 1~1~3~7~1,3,3000/L"),
                "PEXPIRE lock 10000".into(),
            ],
            ["queues", place] => {
                let place = if place.contains('/') { place.to_owned() } else { format!("{place}/{SHARED_TERMS}") };
                let ticket = place.split('/').next().unwrap();
                let mut commands = vec![
                    format!("RPUSH queue {place}"),
                    format!("ZADD deadlines {soon} {} inf {ticket}", client_of(ticket)),
                ];
                commands.extend(expire());
                commands
            }
            ["tombstone", owner, seq] => vec![format!("SET tombstone:{owner} {seq} PX 5000")],
            ["token", token] => vec![format!("SET tokens {token} PX 60000")],
            ["frozen", ms] => {
                let now = self.now().await;
                vec![format!("SET boot {}~{now}~0~L", now + ms.parse::<i64>().unwrap())]
            }
            ["newer", "lock"] => vec!["DEL lock".into(), "HSET lock !format 9".into()],
            // This key never has a value of this type.
            ["foreign", "tokens"] => vec!["DEL tokens".into(), "RPUSH tokens foreign".into()],
            ["foreign", kind] => vec![format!("SET {kind} foreign PX {FOREIGN_TTL_MS}")],
            _ => vec![step.to_owned()],
        };
        for command in commands {
            self.try_command(words(&command)).await?;
        }
        Ok(())
    }

    /// The commands that add a holder of a semaphore, with the new summary.
    async fn record(&mut self, owner: &str, seq: &str, token: &str, share: &str, left: &str) -> Vec<String> {
        let ends = self.now().await + left.parse::<i64>().unwrap();
        let (weight, _) = share.split_once(',').unwrap();
        let before = flatten(self.try_command(words("HGET lock !used")).await.unwrap_or(Value::Nil)).concat();
        let before: Vec<i64> = before.split(' ').filter_map(|word| word.parse().ok()).collect();
        let (used, holders, soon) = match before[..] {
            [used, holders, soon, ..] => (used, holders, soon),
            _ => (0, 0, i64::MAX),
        };
        let summary = format!("{}~{}~{}~{token}", used + weight.parse::<i64>().unwrap(), holders + 1, soon.min(ends));
        vec![
            format!("HSET lock !used {summary} {owner} {ends}~1~{seq}~{token}~{share},3000/L"),
            "PEXPIRE lock 10000".into(),
            format!("SET tokens {token} PX 60000"),
        ]
    }

    pub async fn command(&mut self, text: &str) -> Value {
        self.try_command(words(text)).await.unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    async fn try_command(&mut self, words: Vec<String>) -> Result<Value, Refused> {
        match &mut self.store {
            Store::Redis { redis, .. } => {
                redis::cmd(&words[0]).arg(&words[1..]).query_async(redis).await.map_err(Refused::from)
            }
            #[cfg(feature = "embedded")]
            Store::Embedded(engine) => {
                let bytes: Vec<_> = words.into_iter().map(String::into_bytes).collect();
                let reply = engine.keyspace(|keyspace| {
                    keyspace.at(micros());
                    keyspace.execute(&bytes)
                });
                value(reply.unwrap())
            }
        }
    }

    /// Both stores use the machine's clock.
    pub async fn now(&mut self) -> i64 {
        micros() / 1000
    }

    /// The token in the lock's hash.
    pub async fn lock_token(&mut self) -> Option<String> {
        let grant = self.try_command(words("HGET lock !grant")).await.ok()?;
        (grant != Value::Nil).then(|| flatten(grant).concat().split(' ').nth(1).unwrap().to_owned())
    }

    /// The token in the hash: the lock's, or the last one of a shared name.
    pub async fn last_token(&mut self) -> Option<String> {
        let summary = self.try_command(words("HGET lock !used")).await.ok()?;
        match summary {
            Value::Nil => self.lock_token().await,
            summary => flatten(summary).concat().split(' ').nth(4).map(str::to_owned),
        }
    }

    /// Runs `verb name=value …` with defaults for other arguments. Returns the reply without request number and time.
    pub async fn call(&mut self, call: &str) -> String {
        self.try_call(call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"))
    }

    pub async fn try_call(&mut self, call: &str) -> Result<String, Refused> {
        let words = self.raw_call(call).await?;
        Ok(words.iter().map(|word| normal(word)).collect::<Vec<_>>().join(" "))
    }

    /// Checks that the server refuses the call while this right is missing.
    pub async fn is_refused_without(&mut self, right: &str, call: &str) {
        self.command(&format!("ACL SETUSER default -{right}")).await;
        self.try_call(call).await.expect_err(right);
        self.command(&format!("ACL SETUSER default +{right}")).await;
    }

    /// The words of the reply, without the request number and the time.
    pub async fn raw_call(&mut self, call: &str) -> Result<Vec<String>, Refused> {
        let (verb, given) = call.split_once(' ').unwrap_or((call, ""));
        let given: HashMap<&str, &str> = given.split(' ').filter_map(|word| word.split_once('=')).collect();
        let now = self.now().await;
        // For a give, the new owner: its tombstone counts.
        let owner = given.get("owner").or(given.get("to")).copied().unwrap_or("c:1").to_owned();
        let script = SCRIPTS.keys().copied().find(|name| *name == verb).expect("a script of that name");
        let (kinds, names) = shape(verb);
        let known =
            |name| names.contains(&name) || ["tickets", "remember", "boot"].contains(&name) || SETTINGS.contains(&name);
        assert!(given.keys().all(|name| known(name)), "{call}: {verb} has other arguments");
        // The last argument of these scripts, and the last key of a release and a renewal, are optional.
        let optional = ["mode", "special", "remember"].iter().find(|name| names.contains(*name));
        let unused = usize::from(optional.is_some_and(|name| !given.contains_key(*name)));
        let kind = |kind: &&str| if *kind == "tombstone" { key(&format!("tombstone:{owner}")) } else { key(kind) };
        // `boot=1`: the client has strict_restart, so it sends all keys.
        let sends_all = verb == "acquire" || verb.starts_with("shared/") && verb != "shared/renew";
        let unused_keys = if given.contains_key("boot") || sends_all { 0 } else { unused };
        let mut keys: Vec<String> = kinds[..kinds.len() - unused_keys].iter().map(kind).collect();
        keys.extend(given.get("boot").map(|_| key("boot")));
        let mut args = Vec::new();
        for name in &names[..names.len() - unused] {
            let of_verb = || match (*name, verb.starts_with("shared/")) {
                ("terms", true) => SHARED_TERMS.into(),
                ("place", true) => format!("{}/{SHARED_TERMS}", ticket_of(&owner, &given)),
                _ => default(name, &owner, &given),
            };
            let value = given.get(name).map_or_else(of_verb, ToString::to_string);
            // `+N` is N ms from now, in the script's unit.
            let value = match value.strip_prefix('+').filter(|_| *name != "only") {
                Some(rest) => {
                    let (ms, rest) = rest.split_once('~').map_or((rest, None), |(ms, rest)| (ms, Some(rest)));
                    let unit = if *name == "not_after" { 1000 } else { 1 };
                    let time = ((now + ms.parse::<i64>().unwrap()) * unit).to_string();
                    rest.map_or(time.clone(), |rest| format!("{time} {rest}"))
                }
                None => value,
            };
            args.push(value.replace('~', " "));
        }
        args.extend(given.get("tickets").into_iter().flat_map(|tickets| tickets.split(',')).map(str::to_owned));
        let mut words = match self.eval(script, &keys, &args).await? {
            Value::BulkString(text) => String::from_utf8(text).unwrap().split(' ').map(str::to_owned).collect(),
            list => flatten(list),
        };
        assert_eq!(words[1], "77", "the number of the request in the reply to {call}");
        let (seconds, micros): (i64, i64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
        let time = seconds * 1000 + micros / 1000;
        // A release that does not need the time skips the clock, and returns 0.
        let without_time = time == 0 && verb.ends_with("release");
        assert!(without_time || (now - 1..now + 5000).contains(&time), "the time in the reply to {call}");
        words.drain(1..4);
        Ok(words)
    }

    async fn eval(&mut self, script: &'static str, keys: &[String], args: &[String]) -> Result<Value, Refused> {
        match &mut self.store {
            Store::Redis { redis, scripts, .. } => {
                let outcome = scripts[script].prepare_invoke().key(keys).arg(args).invoke_async(redis).await;
                outcome.map_err(Refused::from)
            }
            #[cfg(feature = "embedded")]
            Store::Embedded(engine) => {
                engine.keyspace(|keyspace| keyspace.at(micros()));
                let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
                let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
                value(engine.eval(script, &SCRIPTS[script], &keys, &args))
            }
        }
    }

    pub async fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = match &mut self.store {
            Store::Redis { redis, .. } => redis::cmd("KEYS").arg("*").query_async(redis).await.unwrap(),
            #[cfg(feature = "embedded")]
            Store::Embedded(engine) => {
                let keys = engine.keyspace(|keyspace| {
                    keyspace.at(micros());
                    keyspace.keys()
                });
                keys.unwrap().into_iter().map(|key| String::from_utf8(key).unwrap()).collect::<Vec<_>>()
            }
        };
        keys.sort();
        keys
    }

    /// The contents of all keys, without times, in the format at the top of this file.
    pub async fn state(&mut self) -> String {
        let (is_shared, state) = (self.is_shared().await, self.lock_state().await);
        let lock = state.split_once(' ').map(|(_, fields)| fields.to_owned()).into_iter().collect();
        let limit = flatten(self.command("GET limit").await).into_iter().filter(|limit| limit != "(nil)").collect();
        let places = flatten(self.command("LRANGE queue 0 -1").await);
        let shown = |place: &String| {
            let default = ["/3000/L", "/1,1,3000/L"].into_iter().find_map(|terms| place.strip_suffix(terms));
            default.unwrap_or(place).to_owned()
        };
        let queue: Vec<_> = places.iter().map(shown).collect();
        let mut placed: Vec<_> = places.iter().map(|place| place.split('/').next().unwrap().to_owned()).collect();
        placed.sort();
        let now = self.now().await;
        let (mut clients, mut tickets, mut skip) = (Vec::new(), Vec::new(), Vec::new());
        for (member, score) in self.members().await {
            match member.as_str() {
                "!skip" => skip.push(score.to_string()),
                "!spent" => {}
                "!forgiven" if score as i64 <= now => {}
                "!forgiven" => clients.push(member),
                ticket if ticket.contains(':') => {
                    tickets.push(if score.is_infinite() { member } else { format!("{member}={score}") })
                }
                _ => {
                    let dead = if score.abs() as i64 > now { "" } else { "!" };
                    clients.push(format!("{dead}{}{member}", if score < 0.0 { "-" } else { "" }));
                }
            }
        }
        clients.sort_by_key(|client| client.trim_start_matches(['!', '-']).to_owned());
        tickets.sort();
        if tickets == placed {
            tickets.clear();
        } else if tickets.is_empty() {
            tickets.push("none".into());
        }
        let mut tombstones = Vec::new();
        for key in self.keys().await {
            if let Some((_, owner)) = key.split_once(":tombstone:") {
                let seq = flatten(self.command(&format!("GET tombstone:{owner}")).await).concat();
                tombstones.push(format!("{owner}={seq}"));
            }
        }
        let parts = [
            (if is_shared { "room" } else { "lock" }, lock),
            ("limit", limit),
            ("queue", queue),
            ("clients", clients),
            ("tickets", tickets),
            ("skip", skip),
            ("tombstone", tombstones),
        ];
        let parts = parts.into_iter().filter(|(_, words)| !words.is_empty());
        parts.map(|(kind, words)| format!("{kind} {}", words.join(" "))).collect::<Vec<_>>().join(" | ")
    }

    async fn is_shared(&mut self) -> bool {
        flatten(self.try_command(words("HGET lock !used")).await.unwrap_or(Value::Nil)) != ["(nil)"]
    }

    /// The contents of the hash, in the format of `state`.
    pub async fn lock_state(&mut self) -> String {
        if self.is_shared().await {
            return self.room_state().await;
        }
        let mut lock: Vec<_> = pairs(self.command("HGETALL lock").await).iter().map(|pair| shown_field(pair)).collect();
        lock.sort_by_key(|field| (!field.contains('='), field.clone()));
        if lock.is_empty() { String::new() } else { format!("lock {}", lock.join(" ")) }
    }

    /// For a shared name. `!` before the sum means that the summary does not fit the records.
    async fn room_state(&mut self) -> String {
        let fields = pairs(self.command("HGETALL lock").await);
        let summary = fields.iter().find_map(|field| field.strip_prefix("!used=")).unwrap();
        let summary: Vec<i64> = summary.split(' ').map(|word| word.parse().unwrap()).collect();
        let (mut shown, mut sum, mut first) = (Vec::new(), 0, i64::MAX);
        for (owner, record) in fields.iter().filter_map(|field| field.split_once('=')) {
            if owner.starts_with('!') {
                continue;
            }
            let [ends, holds, seq, token, terms] = record.splitn(5, ' ').collect::<Vec<_>>()[..] else {
                panic!("{owner}: {record}")
            };
            shown.push(format!("{owner}={holds},{seq},{},{terms}", normal(token)));
            sum += terms.split(',').next().unwrap().parse::<i64>().unwrap();
            first = first.min(ends.parse().unwrap());
        }
        shown.sort();
        let fits = summary[0] == sum && summary[1] == shown.len() as i64 && summary[2] <= first;
        format!("room {}{} {}", if fits { "" } else { "!" }, summary[0], shown.join(" "))
    }

    pub async fn holder(&mut self) -> Option<String> {
        let fields = pairs(self.command("HGETALL lock").await);
        fields.iter().find(|field| !field.starts_with('!')).map(|field| field.split('=').next().unwrap().to_owned())
    }

    /// The tickets in the list, and whether each counts: it has not left, and its client is alive and reachable.
    pub async fn queue(&mut self) -> Vec<(String, bool)> {
        let members: HashMap<_, _> = self.members().await.into_iter().collect();
        let now = self.now().await as f64;
        let places = flatten(self.command("LRANGE queue 0 -1").await);
        let tickets = places.iter().map(|place| place.split('/').next().unwrap().to_owned());
        let counts = |ticket: &String| {
            members.contains_key(ticket) && members.get(client_of(ticket)).is_some_and(|until| *until > now)
        };
        tickets.map(|ticket| (ticket.clone(), counts(&ticket))).collect()
    }

    /// The number of places to skip.
    pub async fn skip(&mut self) -> usize {
        self.members().await.iter().find(|(member, _)| member == "!skip").map_or(0, |(_, skip)| *skip as usize)
    }

    /// The sorted set: clients with their deadlines, tickets, and the number of places to skip.
    pub async fn members(&mut self) -> Vec<(String, f64)> {
        let members = flatten(self.command("ZRANGE deadlines 0 -1").await);
        if members.is_empty() {
            return Vec::new();
        }
        let scores = flatten(self.command(&format!("ZMSCORE deadlines {}", members.join(" "))).await);
        members.into_iter().zip(scores.iter().map(|score| score.parse().unwrap())).collect()
    }

    pub async fn number(&mut self, command: &str) -> i64 {
        flatten(self.command(command).await)[0].parse().unwrap()
    }

    pub async fn ttl(&mut self, kind: &str) -> i64 {
        flatten(self.command(&format!("PTTL {kind}")).await)[0].parse().unwrap()
    }

    async fn assert_everything_expires(&mut self, what: &str) {
        for key in self.keys().await {
            let ttl = self.try_command(vec!["PTTL".into(), key.clone()]).await;
            let stays = [self::key("boot"), self::key("limit")].contains(&key);
            assert!(stays || ttl != Ok(Value::Int(-1)), "{what}: {key} never expires");
        }
    }

    /// Each key of any type, with its contents.
    pub async fn dump(&mut self) -> Vec<(String, Vec<String>)> {
        let mut dump = Vec::new();
        for key in self.keys().await {
            let contents = self.contents(&key).await;
            dump.push((key, contents));
        }
        dump
    }

    /// The TTL of each key.
    pub async fn ttls(&mut self) -> Vec<String> {
        let mut ttls = Vec::new();
        for key in self.keys().await {
            ttls.extend(flatten(self.try_command(vec!["PTTL".into(), key]).await.unwrap()));
        }
        ttls
    }

    async fn contents(&mut self, key: &str) -> Vec<String> {
        let about = |verb: &str, rest: &[&str]| {
            [verb, key].iter().chain(rest).map(ToString::to_string).collect::<Vec<String>>()
        };
        let mut contents = Vec::new();
        // Only the read for the key's own type succeeds.
        if let Ok(fields) = self.try_command(about("HGETALL", &[])).await {
            let mut fields = pairs(fields);
            fields.sort();
            contents.extend(fields);
        } else if let Ok(members) = self.try_command(about("ZRANGE", &["0", "-1"])).await {
            // Sorted by name: the scores are times, and the two stores may differ by a millisecond.
            let mut members = flatten(members);
            members.sort();
            let all: Vec<_> = members.iter().map(String::as_str).collect();
            contents.extend(flatten(self.try_command(about("ZMSCORE", &all)).await.unwrap()));
            contents.extend(members);
        } else if let Ok(elements) = self.try_command(about("LRANGE", &["0", "-1"])).await {
            contents.extend(flatten(elements));
        } else {
            contents.extend(flatten(self.try_command(about("GET", &[])).await.unwrap()));
        }
        contents
    }
}

/// The words of a command. The second one is the kind of a key, and becomes the key.
fn words(text: &str) -> Vec<String> {
    let words = text.split(' ').enumerate();
    words.map(|(index, word)| if index == 1 { key(word) } else { word.replace('~', " ") }).collect()
}

pub fn client_of(ticket: &str) -> &str {
    ticket.split(':').next().unwrap()
}

/// A field of the hash. A grant becomes `ATTEMPT,TOKEN,SINCE,TERMS`.
fn shown_field(pair: &str) -> String {
    let Some(grant) = pair.strip_prefix("!grant=") else { return pair.to_owned() };
    let words: Vec<_> = grant.splitn(5, ' ').collect();
    let [attempt, token, seconds, micros, terms] = words[..] else { return pair.to_owned() };
    let since: i64 = seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap();
    format!("{attempt},{},{},{terms}", normal(token), normal(&since.to_string()))
}

fn micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

/// The embedded store's reply as a value of the redis crate.
#[cfg(feature = "embedded")]
fn value(reply: fairlock_emulator::Reply) -> Result<Value, Refused> {
    use fairlock_emulator::Reply;
    Ok(match reply {
        Reply::Int(number) => Value::Int(number),
        Reply::Bulk(bytes) => Value::BulkString(bytes),
        Reply::Nil => Value::Nil,
        Reply::Ok => Value::Okay,
        Reply::List(replies) => Value::Array(replies.into_iter().map(value).collect::<Result<_, _>>()?),
        Reply::Error(text) => {
            let (code, text) = text.split_once(' ').unwrap();
            return Err(Refused::new(code, text));
        }
    })
}

/// The kinds of KEYS and the names of ARGV, in order, with optional ones, but without the last key for `boot=1`.
pub fn shape(verb: &str) -> (&'static [&'static str], &'static [&'static str]) {
    const ALL: &[&str] = &["lock", "queue", "deadlines", "tokens", "tombstone"];
    const SHARED: &[&str] = &["lock", "queue", "deadlines", "tokens", "tombstone", "limit"];
    const UNLEFT: &[&str] = &["lock", "queue", "deadlines", "tokens", "limit"];
    match verb {
        "shared/acquire" => (SHARED, &["request", "not_after", "owner", "seq", "lease", "terms", "settings", "mode"]),
        "shared/poll" => (UNLEFT, &["request", "caller", "waits", "settings"]),
        "shared/leave" => (SHARED, &["request", "copies_until", "owner", "seq", "place", "settings"]),
        "shared/release" => (SHARED, &["request", "owner", "seq", "settings", "special"]),
        "shared/force_unlock" => (UNLEFT, &["request", "not_after", "caller", "expected", "settings"]),
        "shared/set_limit" => (UNLEFT, &["request", "not_after", "caller", "permits", "settings"]),
        "shared/inspect" => (&["lock", "queue", "deadlines", "limit"], &["request", "most"]),
        "shared/renew" => (&["lock", "tokens"], &["request", "owner", "token", "lease", "only", "remember"]),
        "acquire" => (ALL, &["request", "not_after", "owner", "seq", "lease", "terms", "settings", "mode"]),
        "poll" => (&ALL[..4], &["request", "caller", "waits", "settings"]),
        "leave" => (ALL, &["request", "copies_until", "owner", "seq", "place", "settings"]),
        "renew" => (&["lock", "tokens"], &["request", "owner", "token", "lease", "only", "remember"]),
        "raise" => (&["lock", "tokens"], &["request", "owner", "token", "floor", "token_ttl"]),
        "give" | "shared/give" => (
            &["lock", "tokens", "tombstone"],
            &["request", "not_after", "from", "seq", "token", "to", "attempt", "lease", "terms", "token_ttl"],
        ),
        "release" => (ALL, &["request", "owner", "seq", "settings", "special"]),
        "boot" => (&["boot"], &["request", "life", "epoch", "freeze"]),
        "force_unlock" => (&ALL[..4], &["request", "not_after", "caller", "expected", "settings"]),
        _ => (&["lock", "queue", "deadlines"], &["request", "most"]),
    }
}

/// The parts of the `settings` argument.
const SETTINGS: [&str; 4] = ["waiter_ttl", "max_waiters", "token_ttl", "channel"];

fn ticket_of(owner: &str, given: &HashMap<&str, &str>) -> String {
    format!("{owner}:{}", given.get("seq").copied().unwrap_or("5"))
}

fn default(name: &str, owner: &str, given: &HashMap<&str, &str>) -> String {
    match name {
        "request" => "77".into(),
        "not_after" => "+2000".into(),
        "owner" => owner.into(),
        "seq" => "5".into(),
        "attempt" => "1".into(),
        "copies_until" | "only" => "0".into(),
        "waits" => "1".into(),
        "expected" | "permits" => String::new(),
        "lease" => "10000".into(),
        "terms" => "3000/L".into(),
        "settings" => {
            let value = |name: &&str| given.get(name).map_or_else(|| default(name, owner, given), ToString::to_string);
            SETTINGS.iter().map(value).collect::<Vec<_>>().join(" ")
        }
        "waiter_ttl" => "6000".into(),
        "max_waiters" => "100".into(),
        "token_ttl" => "60000".into(),
        "channel" => "fairlock:wake:".into(),
        "caller" => "c".into(),
        "place" => format!("{}/3000/L", ticket_of(owner, given)),
        "most" => "10".into(),
        "life" => "L".into(),
        "epoch" => "0".into(),
        "freeze" => "60000".into(),
        _ => panic!("no default for {name}"),
    }
}

pub fn key(kind: &str) -> String {
    // Scripts for locks and for shared names get the same keys here.
    let all = keys::Keys::new(PREFIX, NAME);
    match kind {
        "lock" => all.lock.to_string(),
        "queue" => all.queue,
        "deadlines" => all.deadlines,
        "tokens" => all.tokens,
        "limit" => format!("{}:limit", all.lock),
        "boot" => keys::boot(PREFIX),
        _ => kind.strip_prefix("tombstone:").map_or(kind.to_owned(), |owner| all.tombstone(owner)),
    }
}

pub fn flatten(value: Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.into_iter().flat_map(flatten).collect(),
        Value::Int(number) => vec![number.to_string()],
        Value::BulkString(bytes) => vec![String::from_utf8(bytes).unwrap()],
        Value::Okay => vec!["OK".into()],
        Value::Nil => vec!["(nil)".into()],
        Value::Double(score) => vec![score.to_string()],
        other => panic!("no script or command here replies {other:?}"),
    }
}

pub fn pairs(hash: Value) -> Vec<String> {
    let flat = match hash {
        Value::Map(pairs) => pairs.into_iter().flat_map(|(field, value)| [field, value]).flat_map(flatten).collect(),
        other => flatten(other),
    };
    flat.chunks(2).map(|pair| format!("{}={}", pair[0], pair[1])).collect()
}

/// `T` for a token that the server made: it is a time in microseconds, far greater than any other number here.
pub fn normal(word: &str) -> String {
    let made = word.len() >= 16 && word.bytes().all(|byte| byte.is_ascii_digit());
    if made { "T".into() } else { word.into() }
}

fn difference(what: &str, part: &str, found: &str, expected: &str) -> Option<String> {
    let (words, pattern): (Vec<_>, Vec<_>) = (found.split(' ').collect(), expected.split(' ').collect());
    let fits =
        words.len() == pattern.len() && words.iter().zip(&pattern).all(|(word, like)| *like == "*" || word == like);
    (!fits).then(|| format!("{what}: {part}\n    found {found:?}\n expected {expected:?}"))
}

pub fn assert_fits(what: &str, part: &str, found: &str, expected: &str) {
    assert_eq!(difference(what, part, found, expected), None);
}
