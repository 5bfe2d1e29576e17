//! Holds the model of the scripts to the scripts: random requests go to both, and replies, messages and keys must be the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlock_emulator::{Interpreter, Reply as Replied};
use fairlock_explore::server::{self, Holder, Message, Name, Place, Server, Text, TokenClock, Tombstone};
use fairlock_explore::world::brief;
use fairlock_proto::command::{Arg, Command};
use fairlock_proto::effect::Request;
use fairlock_proto::event::{Answer, Reply};
use fairlock_proto::keys::{self, Keys};
use fairlock_proto::push::Push;
use fairlock_proto::reply::{Decode, Fields, Head, ScriptReply};
use fairlock_proto::requests::acquire::{Acquire, Mode};
use fairlock_proto::requests::boot::{Boot, Booted};
use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::leave::Leave;
use fairlock_proto::requests::poll::Poll;
use fairlock_proto::requests::release::Release;
use fairlock_proto::requests::renew::{Only, Renew};
use fairlock_proto::requests::{ClientArgs, ScriptRequest, settings};

#[path = "../../../src/store/script.rs"]
#[allow(dead_code)]
mod script;

const SEQUENCES: u64 = 400;
const REQUESTS: usize = 60;
const PREFIX: &str = "fairlock";
const CLIENTS: usize = 3;
/// A day for each sequence: the clock of the keys never goes back.
const DAY_US: u64 = 86_400_000_000;
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// Longer than a sequence.
const TOKEN_TTL: Duration = Duration::from_secs(7 * 86_400);

#[test]
fn the_model_does_what_the_scripts_do() {
    let (mut lua, mut replied) = (Interpreter::new().expect("Lua begins"), BTreeSet::new());
    for seed in 1..=SEQUENCES {
        let mut sequence = Sequence::new(seed, lua);
        for _ in 0..REQUESTS {
            sequence.step();
        }
        replied.append(&mut sequence.replied);
        lua = sequence.lua;
    }
    let all = [
        "acquire busy",
        "acquire held",
        "acquire late",
        "acquire left",
        "acquire lost",
        "acquire queued",
        "acquire stale",
        "boot booted",
        "force_unlock free",
        "force_unlock freed",
        "leave freed",
        "leave gone",
        "poll polled",
        "release freed",
        "release gone",
        "release held",
        "release lost",
        "release stale",
        "renew lost",
        "renew renewed",
    ];
    assert!(replied.iter().eq(all), "{replied:?}");
}

/// One that was asked for before.
#[derive(Clone)]
struct Attempt {
    name: usize,
    owner: usize,
    seq: u64,
    mode: Mode,
    terms: Arc<str>,
}

struct Client {
    settings: server::Client,
    args: ClientArgs,
    /// What its grants last, in ms.
    first_lease: u64,
    last_seq: u64,
}

struct Sequence {
    random: fastrand::Rng,
    now_us: u64,
    lua: Interpreter,
    model: Server,
    names: Vec<Arc<Keys>>,
    clients: Vec<Client>,
    attempts: Vec<Attempt>,
    tokens: Vec<u64>,
    starts: u64,
    /// How many of 20 requests are acquires: with more of them more clients wait.
    acquires: u8,
    /// The scripts with the statuses of their replies.
    replied: BTreeSet<String>,
    story: Vec<String>,
}

/// A value of one of these.
macro_rules! one_of {
    ($random:expr, $($value:expr),+ $(,)?) => {{
        let values = [$($value),+];
        values[$random.usize(..values.len())].clone()
    }};
}

impl Sequence {
    fn new(seed: u64, lua: Interpreter) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let is_strict = random.u8(..3) == 0;
        let names = (0..random.usize(1..=2)).map(|name| Arc::new(Keys::new(PREFIX, &format!("n{name}")))).collect();
        let clients = (0..CLIENTS).map(|number| Client::new(number, is_strict, &mut random)).collect();
        let mut sequence = Self {
            now_us: EPOCH_US + seed * DAY_US + random.u64(..1_000_000),
            acquires: one_of!(random, 9, 14),
            random,
            lua,
            model: Server::new(TokenClock::Time),
            names,
            clients,
            attempts: Vec::new(),
            tokens: vec![7],
            starts: 0,
            replied: BTreeSet::new(),
            story: vec![format!("seed {seed}, strict: {is_strict}")],
        };
        sequence.redis(&["FLUSHALL"]);
        // A flush takes a microsecond.
        sequence.now_us += 1;
        sequence.subscribe();
        if is_strict {
            sequence.start();
        }
        sequence
    }

    fn step(&mut self) {
        self.pass_time();
        match self.random.u8(..40) {
            0 | 1 => self.subscribe(),
            2 => self.force_unlock(),
            3 if self.is_strict() && self.random.bool() => self.start(),
            3 if !self.is_strict() => self.migrate(),
            _ => self.ask(),
        }
        self.compare_keys();
    }

    fn is_strict(&self) -> bool {
        self.clients[0].args.is_strict()
    }

    /// Often none at all, and often to about the moment at which something ends.
    fn pass_time(&mut self) {
        let ends: Vec<_> = self.model.names.values().flat_map(Name::times).filter(|end| *end > self.now_us).collect();
        let to_an_end = ends.get(self.random.usize(..ends.len().max(1)));
        self.now_us += match (self.random.u8(..40), to_an_end) {
            (0..16, _) => 0,
            (16..20, _) => self.random.u64(..2000),
            (20..28, Some(end)) => (end + self.random.u64(..3000)).saturating_sub(1500).max(self.now_us) - self.now_us,
            (28..30, _) => self.random.u64(..1_000_000),
            // Those who wait are dead then, or about to be.
            (30..35, _) => self.random.u64(2_000_000..8_000_000),
            (38.., _) => self.random.u64(..100_000_000),
            _ => self.random.u64(..20_000_000),
        };
        self.model.expire(self.now_us);
    }

    /// Some clients come, and some go.
    fn subscribe(&mut self) {
        let reached: BTreeSet<_> = self.clients.iter().map(|client| client.settings.id.clone()).collect();
        self.model.reachable = reached.into_iter().filter(|_| self.random.u8(..4) > 0).collect();
        let channels =
            self.model.reachable.iter().map(|id| format!("{}{id}", keys::channel_prefix(PREFIX)).into_bytes());
        let channels = channels.collect();
        self.lua.keyspace(|keyspace| keyspace.channels = channels);
        self.story.push(format!("reachable: {:?}", self.model.reachable));
    }

    /// The server starts: it is frozen for some time.
    fn start(&mut self) {
        self.starts += 1;
        let (key, life) = (keys::boot(PREFIX), self.starts.to_string());
        let freeze = Duration::from_millis(self.random.u64(..15_000));
        let text = self.run_script(&Boot { key, life, epoch: 0, freeze }.command());
        let Booted { frozen_until } = decoded(&text).1;
        self.model.frozen_until_us = frozen_until * 1000;
        self.story.push(format!("{} frozen until {frozen_until}", self.now_us));
    }

    /// All keys go to a server whose clock is ahead.
    fn migrate(&mut self) {
        let (from_us, to_us) = (self.now_us, self.now_us + self.random.u64(..5_000_000));
        self.lua.keyspace(|keyspace| {
            keyspace.at(from_us.cast_signed());
            let keys = keyspace.keys();
            let dumps: Vec<_> = keys.iter().filter_map(|key| keyspace.dump(key)).collect();
            keyspace.at(to_us.cast_signed());
            keys.iter().zip(dumps).for_each(|(key, dump)| keyspace.load(key, dump));
        });
        let names = std::mem::take(&mut self.model.names);
        self.model.names = names.into_iter().map(|(lock, name)| (lock, name.moved(from_us, to_us))).collect();
        self.now_us = to_us;
        self.model.expire(to_us);
        self.story.push(format!("{from_us} moves, where it is {to_us}"));
    }

    fn force_unlock(&mut self) {
        let (keys, client) = (self.names[self.random.usize(..self.names.len())].clone(), self.random.usize(..CLIENTS));
        let Client { settings, args, .. } = &self.clients[client];
        let (settings, args) = (settings.clone(), args.clone());
        self.story.push(format!("{} force_unlock of {} by c{client}", self.now_us, keys.name));
        let request = ForceUnlock { keys: keys.clone(), expected: None, not_after: i64::MAX };
        let text = self.run_script(&request.command(&args));
        let is_freed = match decoded(&text).1 {
            ForceUnlocked::Freed { more: false } => true,
            ForceUnlocked::Free { more: false } => false,
            other => panic!("{other:?}"),
        };
        let mut messages = Vec::new();
        let token = self.model.force_unlock(&keys, &settings, self.now_us, &mut messages);
        self.same(is_freed, token.is_some());
        self.compare_messages(messages);
    }

    fn ask(&mut self) {
        let (client, request) = self.request();
        self.story.push(format!("{} c{client} {}", self.now_us, brief(&request)));
        let Client { settings, args, .. } = &self.clients[client];
        let (settings, args) = (settings.clone(), args.clone());
        let command = command_of(&request, &args);
        let text = self.run_script(&command);
        let answer = answer_of(&request, &text);
        let mut messages = Vec::new();
        let reply = self.model.run(&request, &settings, self.now_us, &mut messages);
        self.story.push(format!("    {:?}", reply.answer));
        self.same(format!("{answer:?}"), format!("{reply:?}"));
        self.compare_messages(messages);
        self.tokens.extend(self.model.names.values().filter_map(|name| Some(name.holder.as_ref()?.token)));
        self.tokens.dedup();
    }

    fn request(&mut self) -> (usize, Request) {
        let mut attempt = self.attempt();
        let holder = self.holder(attempt.name);
        // Half of what is for holders comes from the holder.
        if let Some(Holder { owner, seq, .. }) = holder.clone().filter(|_| self.random.bool()) {
            attempt.owner = number_of(&owner);
            attempt.seq = one_of!(self.random, seq, seq, seq + 1, seq.saturating_sub(1).max(1));
        }
        if self.random.u8(..20) < self.acquires {
            return self.acquire();
        }
        let request = match self.random.u8(..11) {
            0..4 => self.release(&attempt, holder),
            4..6 => self.renew(&attempt, holder),
            6..9 => self.poll(&attempt),
            _ => self.leave(),
        };
        (client_of(&request).unwrap_or(attempt.owner / 2), request)
    }

    /// One of those before, or a new one.
    fn attempt(&mut self) -> Attempt {
        let (name, owner) = (self.random.usize(..self.names.len()), self.random.usize(..2 * CLIENTS));
        let earlier = self.attempts.iter().rev().filter(|it| it.name == name && it.owner == owner);
        let earlier: Vec<_> = earlier.take(3).cloned().collect();
        if let Some(attempt) = earlier.first().filter(|_| self.random.u8(..5) < 2) {
            return attempt.clone();
        }
        if let Some(attempt) = earlier.last().filter(|_| self.random.u8(..6) == 0) {
            return attempt.clone();
        }
        let client = &mut self.clients[owner / 2];
        client.last_seq += 1;
        let (seq, terms) = (client.last_seq, keys::terms(Duration::from_millis(client.first_lease), "x").into());
        let mode = match self.random.u8(..8) {
            0 => Mode::Try,
            1 => Mode::Propose(self.proposed(name)),
            2 => Mode::Nest(self.token(name), self.random.u32(1..3)),
            _ => Mode::Queue,
        };
        Attempt { name, owner, seq, mode, terms }
    }

    fn next_in_line(&mut self) -> Option<Attempt> {
        let name = self.random.usize(..self.names.len());
        let first = self.model.names.get(&*self.names[name].lock)?.queue.first()?;
        let is_first = |it: &&Attempt| *owner_id(it.owner) == *first.owner && it.seq == first.seq;
        self.attempts.iter().find(is_first).cloned()
    }

    fn proposed(&mut self, name: usize) -> u64 {
        let ahead = self.random.u64(..4_000_000);
        one_of!(self.random, self.token(name) + 1, self.now_us + ahead, self.now_us.saturating_sub(ahead))
    }

    /// The present token of the name, or another one.
    fn token(&mut self, name: usize) -> u64 {
        let holder = self.holder(name).filter(|_| self.random.u8(..4) > 0);
        holder.map_or_else(|| self.tokens[self.random.usize(..self.tokens.len())], |holder| holder.token)
    }

    fn holder(&self, name: usize) -> Option<Holder> {
        self.model.names.get(&*self.names[name].lock)?.holder.clone()
    }

    fn lease(&mut self) -> Duration {
        Duration::from_millis(one_of!(self.random, 1, 50, 1000, 5000, 5000, 30_000))
    }

    /// In ms of the server, or 0.
    fn late(&mut self) -> i64 {
        let now = (self.now_us / 1000).cast_signed();
        let ahead = self.random.i64(1..20_000);
        one_of!(self.random, now + ahead, now + ahead, now + ahead, now + ahead, now, now + 1, now - ahead, 0)
    }

    fn acquire(&mut self) -> (usize, Request) {
        let attempt = self.next_in_line().filter(|_| self.random.u8(..6) == 0);
        let attempt = attempt.unwrap_or_else(|| self.attempt());
        if !self.attempts.iter().any(|it| it.owner == attempt.owner && it.seq == attempt.seq) {
            self.attempts.push(attempt.clone());
        }
        let Attempt { name, owner, seq, mode, terms } = attempt;
        let (keys, not_after, lease) = (self.names[name].clone(), self.late(), self.lease());
        let request = Acquire { keys, owner: owner_id(owner), seq, mode, lease, terms, not_after };
        (owner / 2, Request::Acquire(request))
    }

    fn release(&mut self, attempt: &Attempt, holder: Option<Holder>) -> Request {
        let holds = if self.random.u8(..3) > 0 { 0 } else { self.random.u32(1..3) };
        let copies_until = if self.random.bool() { 0 } else { self.late() };
        let token = self.token(attempt.name);
        let began = self.earlier(attempt).unwrap_or_else(|| attempt.clone());
        let seq = one_of!(self.random, attempt.seq, attempt.seq, holder.map_or(attempt.seq, |holder| holder.seq));
        Request::Release(Release {
            keys: self.names[attempt.name].clone(),
            owner: owner_id(attempt.owner),
            token,
            holds,
            weight: 0,
            seq,
            attempt: began.seq,
            copies_until,
            terms: began.terms,
            is_handle: false,
        })
    }

    /// One of this owner at this name.
    fn earlier(&mut self, of: &Attempt) -> Option<Attempt> {
        let earlier: Vec<_> =
            self.attempts.iter().filter(|it| it.name == of.name && it.owner == of.owner).cloned().collect();
        self.random.choice(&earlier).cloned()
    }

    fn renew(&mut self, attempt: &Attempt, holder: Option<Holder>) -> Request {
        let seq = holder.map_or(attempt.seq, |holder| holder.seq);
        let only = one_of!(
            self.random,
            Only::Longer,
            Only::Attempt(seq),
            Only::Attempt(attempt.seq),
            Only::Extend(seq + 1),
            Only::Extend(attempt.seq)
        );
        Request::Renew(Renew {
            keys: self.names[attempt.name].clone(),
            owner: owner_id(attempt.owner),
            token: self.token(attempt.name),
            lease: self.lease(),
            only,
            remember: self.random.bool(),
        })
    }

    fn poll(&mut self, attempt: &Attempt) -> Request {
        let client = attempt.owner / 2;
        let ours: Vec<_> = self.attempts.iter().filter(|it| it.owner / 2 == client).cloned().collect();
        let asked = ours.iter().rev().take(self.random.usize(..5));
        let mut tickets: Vec<_> = asked.map(|it| keys::ticket(&owner_id(it.owner), it.seq)).collect();
        if self.random.bool() {
            tickets.push(keys::ticket(&owner_id(attempt.owner), attempt.seq));
        }
        let keys = self.names[attempt.name].clone();
        Request::Poll(Poll { keys, waits: self.random.u8(..4) > 0, names_ours: false, tickets })
    }

    fn leave(&mut self) -> Request {
        let last = self.attempts.len().saturating_sub(12)..self.attempts.len();
        let place = self.random.choice(self.attempts[last].to_vec());
        let place = place.unwrap_or_else(|| self.attempt());
        let later = self.clients[place.owner / 2].last_seq + 1;
        let seq = one_of!(self.random, place.seq, place.seq, later);
        self.clients[place.owner / 2].last_seq += u64::from(seq == later);
        let owner = owner_id(place.owner);
        let text = if self.random.u8(..5) == 0 { String::new() } else { keys::place(&owner, place.seq, &place.terms) };
        let (keys, copies_until) = (self.names[place.name].clone(), self.late());
        Request::Leave(Leave { keys, owner, seq, place: text, copies_until })
    }

    fn redis(&mut self, words: &[&str]) -> Replied {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let now_us = self.now_us.cast_signed();
        let run = self.lua.keyspace(|keyspace| {
            keyspace.at(now_us);
            keyspace.execute(&words)
        });
        run.expect("the keys are there")
    }

    fn text(&mut self, words: &[&str]) -> Option<String> {
        match self.redis(words) {
            Replied::Bulk(text) => Some(String::from_utf8(text).expect("it is text")),
            Replied::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    fn list(&mut self, words: &[&str]) -> Vec<String> {
        let Replied::List(list) = self.redis(words) else { panic!("{words:?} is no list") };
        let text = |reply| if let Replied::Bulk(text) = reply { String::from_utf8(text).ok() } else { None };
        list.into_iter().filter_map(text).collect()
    }

    fn run_script(&mut self, command: &Command<'_>) -> String {
        let now_us = self.now_us.cast_signed();
        self.lua.keyspace(|keyspace| keyspace.at(now_us));
        let keys: Vec<_> = command.keys().map(str::as_bytes).collect();
        let args: Vec<_> = std::iter::once("1".to_owned()).chain(command.args().flat_map(values)).collect();
        let args: Vec<_> = args.iter().map(String::as_bytes).collect();
        let text = script::of(command.script).text();
        match self.lua.eval(command.script.name(), text, &keys, &args) {
            Replied::Bulk(text) => {
                let text = String::from_utf8(text).expect("it is text");
                let status = text.split(' ').next().unwrap_or_default();
                self.replied.insert(format!("{} {status}", command.script.name()));
                text
            }
            other => panic!("{}\n{other:?}", self.story.join("\n")),
        }
    }

    #[track_caller]
    fn same<T: PartialEq + std::fmt::Debug>(&self, lua: T, model: T) {
        assert!(lua == model, "{}\nLua:   {lua:?}\nmodel: {model:?}", self.story.join("\n"));
    }

    fn compare_messages(&mut self, messages: Vec<Message>) {
        let published = self.lua.keyspace(|keyspace| std::mem::take(&mut keyspace.published)).unwrap_or_default();
        let published = published.iter().map(|(channel, payload, _)| message(channel, payload));
        self.same(published.collect::<Vec<_>>(), messages);
    }

    fn compare_keys(&mut self) {
        for keys in self.names.clone() {
            let model = self.model.names.get(&*keys.lock).cloned().unwrap_or_default();
            // Else `!skip` would be noted.
            assert!(model.queue.len() < 32, "seed {}", self.story[0]);
            let lua = self.read_keys(&keys);
            self.same(lua, model);
        }
    }

    /// What the scripts keep of a name.
    fn read_keys(&mut self, keys: &Keys) -> Name {
        let deadlines = self.deadlines(keys);
        let client = |(member, at): (&String, &u64)| (!member.starts_with('!')).then(|| (member.clone(), *at));
        Name {
            holder: self.read_holder(keys),
            queue: self.list(&["LRANGE", &keys.queue, "0", "-1"]).iter().map(|text| place(text)).collect(),
            deadlines: deadlines.iter().filter_map(client).collect(),
            queue_until_us: self.end_of(&keys.queue).unwrap_or(0),
            forgiven_us: deadlines.get("!forgiven").copied().unwrap_or(0),
            spent_us: deadlines.get("!spent").copied().unwrap_or(0),
            tombstones: (0..2 * CLIENTS).filter_map(|owner| self.read_tombstone(keys, &owner_id(owner))).collect(),
            last_token: self.text(&["GET", &keys.tokens]).map_or(0, |token| natural(&token)),
        }
    }

    /// Without the tickets, of which there must be one for each place.
    fn deadlines(&mut self, keys: &Keys) -> BTreeMap<String, u64> {
        let queue = self.list(&["LRANGE", &keys.queue, "0", "-1"]);
        let members = self.list(&["ZRANGE", &keys.deadlines, "0", "-1"]);
        let (ended, queue_ended) = (self.end_of(&keys.deadlines), self.end_of(&keys.queue));
        self.same(ended, queue_ended);
        let mut deadlines = BTreeMap::new();
        let mut tickets = BTreeSet::new();
        for member in members {
            match self.text(&["ZSCORE", &keys.deadlines, &member]).as_deref() {
                Some("inf") => drop(tickets.insert(member)),
                score => drop(deadlines.insert(member, natural(score.unwrap_or("0")) * 1000)),
            }
        }
        let places = queue.iter().map(|place| place.split('/').next().unwrap_or_default().to_owned()).collect();
        self.same(tickets, places);
        deadlines
    }

    fn read_holder(&mut self, keys: &Keys) -> Option<Holder> {
        let fields = self.list(&["HGETALL", &keys.lock]);
        let grant = fields.chunks(2).find(|pair| pair[0] == "!grant")?[1].clone();
        let [owner, holds] = fields.chunks(2).find(|pair| pair[0] != "!grant")? else { return None };
        let mut grant = grant.split(' ').map(natural);
        Some(Holder {
            owner: owner.clone(),
            holds: holds.parse().expect("it is a number"),
            seq: grant.next()?,
            token: grant.next()?,
            until_us: self.end_of(&keys.lock)?,
        })
    }

    fn read_tombstone(&mut self, keys: &Keys, owner: &str) -> Option<(String, Tombstone)> {
        let key = keys.tombstone(owner);
        let seq = natural(&self.text(&["GET", &key])?);
        Some((owner.to_owned(), Tombstone { seq, until_us: self.end_of(&key)? }))
    }

    /// When this key ends, in µs.
    fn end_of(&mut self, key: &str) -> Option<u64> {
        let Replied::Int(left) = self.redis(&["PTTL", key]) else { return None };
        assert_ne!(left, -1, "{key} has no end");
        Some((self.now_us / 1000 + u64::try_from(left).ok()?) * 1000)
    }
}

impl Client {
    fn new(number: usize, is_strict: bool, random: &mut fastrand::Rng) -> Self {
        let id = format!("c{number}");
        let waiter_ttl_ms = one_of!(random, 3001_i64, 5000, 10_000, 45_001);
        let (max_waiters, waiter_ttl) = (100, Duration::from_millis(waiter_ttl_ms.unsigned_abs()));
        let args = ClientArgs {
            id: id.clone(),
            settings: settings(PREFIX, waiter_ttl, max_waiters, TOKEN_TTL),
            token_ttl: TOKEN_TTL,
            boot_key: is_strict.then(|| keys::boot(PREFIX)),
        };
        let settings = server::Client { id, waiter_ttl_ms, max_waiters: max_waiters as usize };
        Self { settings, args, first_lease: one_of!(random, 1000, 5000), last_seq: random.u64(1..12) }
    }
}

/// Two owners for each client.
fn owner_id(owner: usize) -> Arc<str> {
    format!("c{}:{}", owner / 2, owner % 2).into()
}

fn number_of(owner: &str) -> usize {
    (0..2 * CLIENTS).find(|number| *owner == *owner_id(*number)).expect("it is one of them")
}

fn client_of(request: &Request) -> Option<usize> {
    match request {
        Request::Leave(leave) => Some(number_of(&leave.owner) / 2),
        _ => None,
    }
}

fn command_of<'a>(request: &'a Request, args: &'a ClientArgs) -> Command<'a> {
    match request {
        Request::Acquire(it) => it.command(args),
        Request::Release(it) => it.command(args),
        Request::Renew(it) => it.command(args),
        Request::Poll(it) => it.command(args),
        Request::Leave(it) => it.command(args),
    }
}

fn values(arg: &Arg<'_>) -> Vec<String> {
    match arg {
        Arg::Text(text) => vec![text.to_string()],
        Arg::Texts(texts) => texts.to_vec(),
        Arg::Channel(text) => vec![(*text).to_owned()],
        Arg::Int(number) => vec![number.to_string()],
        Arg::Natural(number) => vec![number.to_string()],
    }
}

fn answer_of(request: &Request, text: &str) -> Reply {
    let (server_micros, answer) = match request {
        Request::Acquire(_) => with(Answer::Acquired, text),
        Request::Release(_) => with(Answer::Released, text),
        Request::Renew(_) => with(Answer::Renewed, text),
        Request::Poll(_) => with(|polled| Answer::Polled(Box::new(polled)), text),
        Request::Leave(_) => with(Answer::Left, text),
    };
    Reply { server_micros, answer }
}

fn with<T: Decode>(answer: impl FnOnce(T) -> Answer, text: &str) -> (Option<i64>, Answer) {
    let (server_micros, decoded) = decoded(text);
    (server_micros, answer(decoded))
}

/// With the server's clock, if the script has read it.
fn decoded<T: Decode>(text: &str) -> (Option<i64>, T) {
    let reply = ScriptReply::Text(text.as_bytes().to_vec());
    let mut fields = Fields::new(&reply);
    let head = Head::decode(&mut fields).expect("a reply has a head");
    let micros = Some(head.seconds * 1_000_000 + head.micros).filter(|micros| *micros > 0);
    (micros, T::decode(head.status, &mut fields).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn message(channel: &[u8], payload: &[u8]) -> Message {
    let channel = String::from_utf8_lossy(channel);
    let client = channel.strip_prefix(&keys::channel_prefix(PREFIX)).expect("it is a client's").to_owned();
    let (lock, text) = match Push::decode(payload).expect("it is a message") {
        Push::Grant { token, lease, ticket, lock } => {
            let lease_ms = u64::try_from(lease.as_millis()).expect("it is short");
            (lock, Text::Grant { token, lease_ms, ticket: ticket.to_owned() })
        }
        Push::Revoked { token, owner, lock } => (lock, Text::Revoked { token, owner: owner.to_owned() }),
    };
    Message { client, lock: lock.to_owned(), text }
}

fn place(text: &str) -> Place {
    let (ticket, terms) = text.split_once('/').expect("it has terms");
    let (owner, seq) = ticket.rsplit_once(':').expect("it has a seq");
    let first_lease_ms = natural(terms.split('/').next().unwrap_or_default());
    Place { owner: owner.to_owned(), seq: natural(seq), first_lease_ms }
}

fn natural(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}
