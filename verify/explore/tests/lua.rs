//! Compares the model of the scripts with the scripts: random requests go to both, and replies, messages and keys must
//! be equal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlock_emulator::{Interpreter, Reply as Replied};
use fairlock_explore::server::{self, Holder, Message, Name, Place, Server, Shared, Text, TokenClock, Tombstone};
use fairlock_explore::world::brief;
use fairlock_proto::command::{Arg, Command};
use fairlock_proto::keys::{self, Keys, Kind, Share};
use fairlock_proto::push::Push;
use fairlock_proto::reply::{Decode, Field, Fields, Head, ScriptReply};
use fairlock_proto::request::{Answer, Reply, Request};
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::boot::{Boot, Booted};
use fairlock_proto::requests::force_unlock::ForceUnlock;
use fairlock_proto::requests::give::Give;
use fairlock_proto::requests::inspect::Inspect;
use fairlock_proto::requests::leave::Leave;
use fairlock_proto::requests::poll::Poll;
use fairlock_proto::requests::raise::Raise;
use fairlock_proto::requests::release::Release;
use fairlock_proto::requests::renew::{Only, Renew};
use fairlock_proto::requests::set_limit::SetLimit;
use fairlock_proto::requests::{ClientArgs, settings};

#[path = "../../../src/store/script.rs"]
#[allow(dead_code)]
mod script;

const SEQUENCES: u64 = 1600;
const REQUESTS: usize = 60;
/// Fewer waiters than this.
const MOST_PLACES: usize = 32;
const PREFIX: &str = "fairlock";
const CLIENTS: usize = 3;
/// Two owners for each client, and two of handles.
const OWNERS: usize = 2 * CLIENTS + 2;
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
        "force_unlock late",
        "force_unlock other",
        "give given",
        "give late",
        "give left",
        "give lost",
        "give stale",
        "inspect inspected",
        "leave freed",
        "leave gone",
        "poll polled",
        "raise lost",
        "raise raised",
        "release freed",
        "release gone",
        "release held",
        "release lost",
        "release stale",
        "renew lost",
        "renew renewed",
        "shared/acquire busy",
        "shared/acquire heavy",
        "shared/acquire held",
        "shared/acquire late",
        "shared/acquire left",
        "shared/acquire lost",
        "shared/acquire queued",
        "shared/acquire stale",
        "shared/force_unlock free",
        "shared/force_unlock freed",
        "shared/force_unlock late",
        "shared/give given",
        "shared/give late",
        "shared/give left",
        "shared/give lost",
        "shared/give stale",
        "shared/inspect shared",
        "shared/leave freed",
        "shared/leave gone",
        "shared/poll shared",
        "shared/release freed",
        "shared/release gone",
        "shared/release held",
        "shared/release lost",
        "shared/release stale",
        "shared/renew lost",
        "shared/renew renewed",
        "shared/set_limit late",
        "shared/set_limit set",
    ];
    assert!(replied.iter().eq(all), "{replied:?}");
}

/// An earlier attempt.
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
    /// The duration of its grants, in ms.
    first_lease: u64,
    /// The number of permits that it gives a semaphore.
    limit: u32,
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
    gives: Vec<Give>,
    tokens: Vec<u64>,
    starts: u64,
    /// How many of 20 requests are acquires. With more of them, more clients wait.
    acquires: u8,
    /// Time passes only now and then, so leases and places outlast more requests.
    is_calm: bool,
    /// The scripts, with the statuses of their replies.
    replied: BTreeSet<String>,
    story: Vec<String>,
}

/// One of these values.
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
        let mut kind = || one_of!(random, Kind::Lock, Kind::Lock, Kind::Semaphore, Kind::Semaphore, Kind::RwLock);
        let kinds = [kind(), kind()];
        let names = kinds[..random.usize(1..=2)].iter().enumerate();
        let names = names.map(|(name, kind)| Keys::of(*kind, PREFIX, &format!("n{name}")).into()).collect();
        let limit = random.u32(1..4);
        let clients = (0..CLIENTS).map(|number| Client::random(number, is_strict, limit, &mut random)).collect();
        let mut sequence = Self {
            now_us: EPOCH_US + seed * DAY_US + random.u64(..1_000_000),
            acquires: one_of!(random, 9, 14),
            is_calm: random.bool(),
            random,
            lua,
            model: Server::new(TokenClock::Time),
            names,
            clients,
            attempts: Vec::new(),
            gives: Vec::new(),
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
            2 if self.is_strict() && self.random.bool() => self.start(),
            2 if !self.is_strict() => self.migrate(),
            _ => self.ask(),
        }
        self.compare_keys();
    }

    fn is_strict(&self) -> bool {
        self.clients[0].args.is_strict()
    }

    /// Often no time at all, and often the time until just before or after something ends.
    fn pass_time(&mut self) {
        if self.is_calm && self.random.u8(..8) > 0 {
            return;
        }
        let ends: Vec<_> = self.model.names.values().flat_map(Name::times).filter(|end| *end > self.now_us).collect();
        let to_an_end = ends.get(self.random.usize(..ends.len().max(1)));
        self.now_us += match (self.random.u8(..40), to_an_end) {
            (0..16, _) => 0,
            (16..20, _) => self.random.u64(..2000),
            (20..28, Some(end)) => (end + self.random.u64(..3000)).saturating_sub(1500).max(self.now_us) - self.now_us,
            (28..30, _) => self.random.u64(..1_000_000),
            // The waiters are then dead, or about to be.
            (30..35, _) => self.random.u64(2_000_000..8_000_000),
            (38.., _) => self.random.u64(..100_000_000),
            _ => self.random.u64(..20_000_000),
        };
        self.model.expire(self.now_us);
    }

    /// Some clients connect, others disconnect.
    fn subscribe(&mut self) {
        let ids: Vec<_> = self.clients.iter().map(|client| client.settings.id.clone()).collect();
        let reached = ids.into_iter().filter(|_| self.random.u8(..4) > 0).collect();
        self.reach(reached);
    }

    fn reach(&mut self, ids: BTreeSet<String>) {
        let channel = |id| format!("{}{id}", keys::channel_prefix(PREFIX)).into_bytes();
        let channels = ids.iter().map(channel).collect();
        self.lua.keyspace(|keyspace| keyspace.channels = channels);
        self.story.push(format!("reachable: {ids:?}"));
        self.model.reachable = ids;
    }

    /// The server starts, and is frozen for some time.
    fn start(&mut self) {
        self.starts += 1;
        let (key, life) = (keys::boot(PREFIX), self.starts.to_string());
        let freeze = Duration::from_millis(self.random.u64(..15_000));
        let reply = self.run_script(&Boot { key, life, epoch: 0, freeze }.command());
        let Booted { frozen_until } = decoded(&reply).1;
        self.model.frozen_until_us = frozen_until * 1000;
        self.story.push(format!("{} frozen until {frozen_until}", self.now_us));
    }

    /// All keys move to a server whose clock is ahead.
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

    fn ask(&mut self) {
        let (client, request) = self.request();
        self.run(client, &request);
        self.tokens.extend(self.model.names.values().flat_map(Name::holders).map(|holder| holder.token));
        self.tokens.sort();
        self.tokens.dedup();
    }

    fn run(&mut self, client: usize, request: &Request) {
        self.story.push(format!("{} c{client} {}", self.now_us, brief(request)));
        let Client { settings, args, .. } = &self.clients[client];
        let (settings, args) = (settings.clone(), args.clone());
        let reply = self.run_script(&request.command(&args));
        let answer = answer_of(request, &reply);
        let mut messages = Vec::new();
        let reply = self.model.run(request, &settings, self.now_us, &mut messages);
        self.story.push(format!("    {:?}", reply.answer));
        self.same(format!("{answer:?}"), format!("{reply:?}"));
        self.compare_messages(messages);
    }

    fn request(&mut self) -> (usize, Request) {
        let mut attempt = self.attempt();
        let holder = self.holder(attempt.name);
        // Half of the requests for holders come from the holder.
        if let Some(Holder { owner, seq, .. }) = holder.clone().filter(|_| self.random.bool()) {
            attempt.owner = number_of(&owner);
            attempt.seq = one_of!(self.random, seq, seq, seq + 1, seq.saturating_sub(1).max(1));
        }
        if self.random.u8(..20) < self.acquires {
            return self.acquire();
        }
        if self.random.u8(..8) == 0 {
            (attempt.owner, attempt.seq) = (self.random.usize(2 * CLIENTS..OWNERS), 1);
        }
        let request = match self.random.u8(..17) {
            0..5 => self.release(&attempt, holder),
            5..7 => self.renew(&attempt, holder),
            7..10 => self.poll(&attempt),
            10 => self.leave(),
            11..14 => self.give(&attempt, holder),
            14 => one_of!(self.random, self.force_unlock(attempt.name), self.raise(&attempt)),
            15 => Request::Inspect(Inspect { keys: self.names[attempt.name].clone(), most: MOST_PLACES as u32 }),
            _ => self.set_limit(),
        };
        (self.sender(&request, attempt.owner), request)
    }

    /// Any client may have a handle, or send a request that any client may send.
    fn sender(&mut self, request: &Request, owner: usize) -> usize {
        let owner = match request {
            Request::Leave(leave) => number_of(&leave.owner),
            Request::Release(release) => number_of(&release.owner),
            _ => owner,
        };
        if owner < 2 * CLIENTS { owner / 2 } else { self.random.usize(..CLIENTS) }
    }

    /// An earlier attempt, or a new one.
    fn attempt(&mut self) -> Attempt {
        let (name, owner) = (self.random.usize(..self.names.len()), self.random.usize(..2 * CLIENTS));
        self.attempt_of(owner, name)
    }

    fn attempt_of(&mut self, owner: usize, name: usize) -> Attempt {
        let earlier = self.attempts.iter().rev().filter(|it| it.name == name && it.owner == owner);
        let earlier: Vec<_> = earlier.take(3).cloned().collect();
        if let Some(attempt) = earlier.first().filter(|_| self.random.u8(..5) < 2) {
            return attempt.clone();
        }
        if let Some(attempt) = earlier.last().filter(|_| self.random.u8(..6) == 0) {
            return attempt.clone();
        }
        self.clients[owner / 2].last_seq += 1;
        let (seq, terms) = (self.clients[owner / 2].last_seq, self.terms(owner / 2, name));
        let mode = match self.random.u8(..9) {
            0 | 8 => Mode::Try,
            1 if self.names[name].kind == Kind::Lock => Mode::Propose(self.proposed(name)),
            2 => Mode::Nest(self.token(name), self.random.u32(1..3)),
            _ => Mode::Queue,
        };
        Attempt { name, owner, seq, mode, terms }
    }

    fn terms(&mut self, client: usize, name: usize) -> Arc<str> {
        let Client { first_lease, limit, .. } = self.clients[client];
        let (first_lease, weight) = (Duration::from_millis(first_lease), one_of!(self.random, 1, 1, 1, 2, 3));
        let share = match self.names[name].kind {
            Kind::Semaphore => Share { weight, limit: limit.max(weight) },
            Kind::RwLock => one_of!(self.random, Share::READER, Share::WRITER),
            _ => return keys::terms(first_lease, "x").into(),
        };
        keys::shared_terms(share, first_lease, "x").into()
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
        let is_present = self.random.u8(..4) > 0;
        let holder = self.holder(name).filter(|_| is_present);
        holder.map_or_else(|| self.tokens[self.random.usize(..self.tokens.len())], |holder| holder.token)
    }

    /// The holder, or one of the holders of a shared name.
    fn holder(&mut self, name: usize) -> Option<Holder> {
        let holders: Vec<_> = self.model.names.get(&*self.names[name].lock)?.holders().cloned().collect();
        self.random.choice(holders)
    }

    fn lease(&mut self) -> Duration {
        Duration::from_millis(one_of!(self.random, 1, 50, 1000, 5000, 30_000, 30_000, 30_000))
    }

    /// In the server's ms, or 0.
    fn late(&mut self) -> i64 {
        let now = (self.now_us / 1000).cast_signed();
        let ahead = self.random.i64(1..20_000);
        match self.random.u8(..12) {
            0..8 => now + ahead,
            8 => now,
            9 => now + 1,
            10 => now - ahead,
            _ => 0,
        }
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
        let is_handle = self.random.u8(..if attempt.owner < 2 * CLIENTS { 8 } else { 1 }) == 0;
        let holds = if is_handle || self.random.u8(..3) > 0 { 0 } else { self.random.u32(1..3) };
        let copies_until = if self.random.bool() { 0 } else { self.late() };
        let weight = one_of!(self.random, 1, 1, 2, 1024);
        // Half of the releases name the hold.
        let held = holder.filter(|_| self.random.bool());
        let token = held.as_ref().map_or_else(|| self.token(attempt.name), |holder| holder.token);
        let began = self.earlier(attempt).unwrap_or_else(|| attempt.clone());
        let place = self.queue(attempt.name).into_iter().find(|place| *place.owner == *owner_id(attempt.owner));
        let [held, place] =
            [held.map(|held| held.seq), place.map(|place| place.seq)].map(|seq| seq.unwrap_or(attempt.seq));
        let seq = one_of!(self.random, attempt.seq, attempt.seq, held, place);
        Request::Release(Release {
            keys: self.names[attempt.name].clone(),
            owner: owner_id(attempt.owner),
            token,
            holds,
            weight,
            seq,
            attempt: began.seq,
            copies_until,
            terms: began.terms,
            is_handle,
        })
    }

    fn queue(&self, name: usize) -> Vec<Place> {
        self.model.names.get(&*self.names[name].lock).map_or_else(Vec::new, |name| name.queue.clone())
    }

    /// From a client to a handle or back, or an earlier give again.
    fn give(&mut self, attempt: &Attempt, holder: Option<Holder>) -> Request {
        let last = self.gives.iter().rev().take(4).cloned().collect::<Vec<_>>();
        if let Some(earlier) = self.random.choice(last).filter(|_| self.random.u8(..3) == 0) {
            let not_after = self.late();
            return Request::Give(Box::new(Give { not_after, ..earlier }));
        }
        let holder = holder.filter(|_| self.random.u8(..5) > 0);
        let from = holder.as_ref().map_or(attempt.owner, |holder| number_of(&holder.owner));
        let token = holder.as_ref().map_or_else(|| self.token(attempt.name), |holder| holder.token);
        let seq = holder.map_or(attempt.seq, |holder| one_of!(self.random, holder.seq, holder.seq + 1, attempt.seq));
        let (to, gets) = self.receiver(attempt.name);
        let (keys, not_after, lease) = (self.names[attempt.name].clone(), self.late(), self.lease());
        let (from, to, terms) = (owner_id(from), owner_id(to), self.terms(from / 2 % CLIENTS, attempt.name));
        let give = Give { keys, from, seq, token, to, attempt: gets, lease, terms, not_after };
        self.gives.push(give.clone());
        Request::Give(Box::new(give))
    }

    /// The owner and attempt that get a hold: often an attempt that waits or has left.
    fn receiver(&mut self, name: usize) -> (usize, u64) {
        let model = self.model.names.get(&*self.names[name].lock);
        let known: Vec<_> =
            model.iter().flat_map(|name| name.seqs()).map(|(owner, seq)| (number_of(owner), seq)).collect();
        let waiting = self.queue(name).iter().map(|place| (number_of(&place.owner), place.seq)).collect();
        let of = one_of!(self.random, known, waiting, Vec::new());
        if let Some((owner, seq)) = self.random.choice(of) {
            return (owner, one_of!(self.random, seq, seq + 1, seq.saturating_sub(1).max(1)));
        }
        match self.random.usize(..OWNERS + 4) {
            client if client < 2 * CLIENTS => (client, self.attempt_of(client, name).seq),
            _ => (self.random.usize(2 * CLIENTS..OWNERS), 1),
        }
    }

    fn force_unlock(&mut self, name: usize) -> Request {
        let expected =
            if self.names[name].kind == Kind::Lock && self.random.bool() { None } else { Some(self.token(name)) };
        Request::ForceUnlock(ForceUnlock { keys: self.names[name].clone(), expected, not_after: self.late() })
    }

    /// Only locks are raised: a quorum has no shared names.
    fn raise(&mut self, attempt: &Attempt) -> Request {
        let keys = self.names[attempt.name].clone();
        if keys.kind != Kind::Lock {
            return self.force_unlock(attempt.name);
        }
        let (owner, token) = (owner_id(attempt.owner), self.token(attempt.name));
        let floor = one_of!(self.random, token, token + 1, token + 1000, token.saturating_sub(1));
        Request::Raise(Raise { keys, owner, token, floor })
    }

    fn set_limit(&mut self) -> Request {
        let semaphores: Vec<_> = self.names.iter().filter(|keys| keys.kind == Kind::Semaphore).cloned().collect();
        match self.random.choice(semaphores) {
            Some(keys) => {
                let limit = one_of!(self.random, None, None, Some(0), Some(1), Some(2), Some(5));
                Request::SetLimit(SetLimit { keys, limit, not_after: self.late() })
            }
            None => self.leave(),
        }
    }

    /// An earlier attempt of this owner at this name.
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
        Request::Poll(Poll { keys, waits: self.random.u8(..4) > 0, names_ours: self.random.u8(..5) == 0, tickets })
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

    fn run_script(&mut self, command: &Command<'_>) -> ScriptReply {
        let now_us = self.now_us.cast_signed();
        self.lua.keyspace(|keyspace| keyspace.at(now_us));
        let keys: Vec<_> = command.keys().map(str::as_bytes).collect();
        let args: Vec<_> = std::iter::once("1".to_owned()).chain(command.args().flat_map(values)).collect();
        let args: Vec<_> = args.iter().map(String::as_bytes).collect();
        let text = script::of(command.script).text();
        let reply = match self.lua.eval(command.script.name(), text, &keys, &args) {
            Replied::Bulk(text) => ScriptReply::Text(text),
            Replied::List(fields) => ScriptReply::List(fields.into_iter().map(field).collect()),
            other => panic!("{}\n{other:?}", self.story.join("\n")),
        };
        let status = Fields::new(&reply).text().expect("it has a status").to_owned();
        self.replied.insert(format!("{} {status}", command.script.name()));
        reply
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
            // With more places, the scripts would note `!skip`.
            assert!(model.queue.len() < MOST_PLACES, "seed {}", self.story[0]);
            let lua = self.read_keys(&keys);
            self.same(lua, model);
        }
    }

    /// The scripts' data of a name.
    fn read_keys(&mut self, keys: &Keys) -> Name {
        let deadlines = self.deadlines(keys);
        let client = |(member, at): (&String, &u64)| (!member.starts_with('!')).then(|| (member.clone(), *at));
        Name {
            holder: self.read_holder(keys),
            shared: self.read_shared(keys),
            queue: self.list(&["LRANGE", &keys.queue, "0", "-1"]).iter().map(|text| place(text)).collect(),
            deadlines: deadlines.iter().filter_map(client).collect(),
            queue_until_us: self.end_of(&keys.queue).unwrap_or(0),
            forgiven_us: deadlines.get("!forgiven").copied().unwrap_or(0),
            spent_us: deadlines.get("!spent").copied().unwrap_or(0),
            tombstones: (0..OWNERS).filter_map(|owner| self.read_tombstone(keys, &owner_id(owner))).collect(),
            last_token: self.text(&["GET", &keys.tokens]).map_or(0, |token| natural(&token)),
        }
    }

    /// Without the tickets. Each place must have one.
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

    fn read_shared(&mut self, keys: &Keys) -> Shared {
        let limit = self.text(&["GET", &keys.limit]).map(|limit| natural(&limit) as u32);
        let mut fields = BTreeMap::new();
        if keys.kind.is_shared() {
            let all = self.list(&["HGETALL", &keys.lock]);
            fields.extend(all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())));
        }
        let Some(summary) = fields.remove("!used") else { return Shared { limit, ..Shared::default() } };
        let summary: Vec<_> = summary.split(' ').map(natural).collect();
        let holders: BTreeMap<_, _> =
            fields.into_iter().map(|(owner, record)| (owner.clone(), record_of(owner, &record))).collect();
        let used = holders.values().map(|holder| u64::from(holder.share.weight)).sum();
        let last_token = self.text(&["GET", &keys.tokens]).map_or(0, |token| natural(&token));
        let counted = vec![used, holders.len() as u64, summary[2], last_token];
        self.same(&summary, &counted);
        let until_us = self.end_of(&keys.lock).expect("it has an end");
        Shared { holders, soon_us: Some(summary[2] * 1000), until_us, limit }
    }

    fn read_holder(&mut self, keys: &Keys) -> Option<Holder> {
        if keys.kind.is_shared() {
            return None;
        }
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
            share: Share::LOCK,
        })
    }

    fn read_tombstone(&mut self, keys: &Keys, owner: &str) -> Option<(String, Tombstone)> {
        let key = keys.tombstone(owner);
        let seq = natural(&self.text(&["GET", &key])?);
        Some((owner.to_owned(), Tombstone { seq, until_us: self.end_of(&key)? }))
    }

    /// When this key expires, in µs.
    fn end_of(&mut self, key: &str) -> Option<u64> {
        let Replied::Int(left) = self.redis(&["PTTL", key]) else { return None };
        assert_ne!(left, -1, "{key} has no end");
        Some((self.now_us / 1000 + u64::try_from(left).ok()?) * 1000)
    }
}

impl Client {
    fn new(number: usize, is_strict: bool, waiter_ttl_ms: i64) -> Self {
        let id = format!("c{number}");
        let (max_waiters, waiter_ttl) = (100, Duration::from_millis(waiter_ttl_ms.unsigned_abs()));
        let args = ClientArgs {
            id: id.clone(),
            settings: settings(PREFIX, waiter_ttl, max_waiters, TOKEN_TTL),
            token_ttl: TOKEN_TTL,
            boot_key: is_strict.then(|| keys::boot(PREFIX)),
        };
        let settings = server::Client { id, waiter_ttl_ms, max_waiters: max_waiters as usize };
        Self { settings, args, first_lease: 5000, limit: 2, last_seq: 0 }
    }

    fn random(number: usize, is_strict: bool, limit: u32, random: &mut fastrand::Rng) -> Self {
        Self {
            first_lease: one_of!(random, 1000, 5000),
            limit: if random.u8(..4) > 0 { limit } else { random.u32(1..5) },
            last_seq: random.u64(1..12),
            ..Self::new(number, is_strict, one_of!(random, 3001, 5000, 10_000, 45_001))
        }
    }
}

fn owner_id(owner: usize) -> Arc<str> {
    match owner.checked_sub(2 * CLIENTS) {
        Some(handle) => format!("c{handle}-5:0").into(),
        None => format!("c{}:{}", owner / 2, owner % 2).into(),
    }
}

fn number_of(owner: &str) -> usize {
    (0..OWNERS).find(|number| *owner == *owner_id(*number)).expect("it is one of them")
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

/// The model's part of the answer.
fn answer_of(request: &Request, reply: &ScriptReply) -> Reply {
    let (server_micros, mut fields, status) = head(reply);
    let mut answer = request.answer(status, &mut fields).unwrap_or_else(|error| panic!("{reply:?}: {error}"));
    if let Answer::Inspected(inspected) = &mut answer {
        inspected.holders.iter_mut().for_each(|holder| (holder.since, holder.label) = Default::default());
        inspected.queue.iter_mut().for_each(|place| place.label.clear());
    }
    if let Answer::Acquired(Acquired::Queued { holder, .. } | Acquired::Busy { holder, .. }) = &mut answer {
        *holder = None;
    }
    if let Answer::Polled(polled) = &mut answer {
        polled.held_by = None;
    }
    Reply { server_micros, answer }
}

fn decoded<T: Decode>(reply: &ScriptReply) -> (Option<i64>, T) {
    let (server_micros, mut fields, status) = head(reply);
    (server_micros, T::decode(status, &mut fields).unwrap_or_else(|error| panic!("{reply:?}: {error}")))
}

/// The server's clock if the script has read it, the fields after the head, and the status.
fn head(reply: &ScriptReply) -> (Option<i64>, Fields<'_>, &str) {
    let mut fields = Fields::new(reply);
    let head = Head::decode(&mut fields).expect("a reply has a head");
    let micros = Some(head.seconds * 1_000_000 + head.micros).filter(|micros| *micros > 0);
    (micros, fields, head.status)
}

fn field(reply: Replied) -> Field {
    match reply {
        Replied::Int(number) => Field::Int(number),
        Replied::Bulk(text) => Field::Text(text),
        other => panic!("{other:?} is no field"),
    }
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
    let numbers = terms.split('/').next().unwrap_or_default();
    let first_lease_ms = natural(numbers.rsplit(',').next().unwrap_or_default());
    let share = keys::share_of(terms).unwrap_or(Share::LOCK);
    Place { owner: owner.to_owned(), seq: natural(seq), share, first_lease_ms }
}

fn record_of(owner: String, record: &str) -> Holder {
    let [end, holds, seq, token, terms] = *record.splitn(5, ' ').collect::<Vec<_>>() else { panic!("{record}") };
    let share = keys::share_of(terms).expect("it has terms");
    let [until_us, holds, seq, token] = [natural(end) * 1000, natural(holds), natural(seq), natural(token)];
    Holder { owner, holds: holds as u32, seq, token, until_us, share }
}

fn natural(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Sequences that random runs rarely meet.
mod rare {
    use super::*;

    const LONG: u64 = 30_000;

    /// A semaphore, and clients with these times to live.
    struct Rare(Sequence);

    impl Rare {
        fn new(waiter_ttls_ms: [i64; CLIENTS]) -> Self {
            let mut sequence = Sequence::new(1, Interpreter::new().expect("Lua begins"));
            sequence.names = vec![Keys::of(Kind::Semaphore, PREFIX, "s").into()];
            sequence.clients =
                waiter_ttls_ms.iter().enumerate().map(|(number, ttl)| Client::new(number, false, *ttl)).collect();
            sequence.model = Server::new(TokenClock::Time);
            let mut rare = Self(sequence);
            rare.reach(&[0, 1, 2]);
            rare
        }

        fn reach(&mut self, clients: &[usize]) {
            self.0.reach(clients.iter().map(|client| format!("c{client}")).collect());
        }

        fn pass(&mut self, ms: u64) {
            self.0.now_us += ms * 1000;
            self.0.model.expire(self.0.now_us);
        }

        fn run(&mut self, client: usize, request: &Request) {
            self.0.run(client, request);
            self.0.compare_keys();
        }

        fn acquire(&mut self, owner: usize, seq: u64, (weight, limit): (u32, u32), lease_ms: u64) {
            let terms = keys::shared_terms(Share { weight, limit }, Duration::from_secs(5), "x").into();
            let (keys, not_after, lease) = (self.0.names[0].clone(), i64::MAX, Duration::from_millis(lease_ms));
            let (mode, of) = (Mode::Queue, owner_id(owner));
            self.run(owner / 2, &Request::Acquire(Acquire { keys, owner: of, seq, mode, lease, terms, not_after }));
        }

        fn token(&self, owner: usize) -> u64 {
            let name = &self.0.model.names[&*self.0.names[0].lock];
            name.shared.holders[&*owner_id(owner)].token
        }

        fn give(&mut self, from: usize, to: usize, attempt: u64, lease_ms: u64) {
            let (token, lease) = (self.token(from), Duration::from_millis(lease_ms));
            let (keys, from, to, terms) = (self.0.names[0].clone(), owner_id(from), owner_id(to), "1,1,5000/x".into());
            let give = Give { keys, from, seq: 100, token, to, attempt, lease, terms, not_after: i64::MAX };
            self.run(0, &Request::Give(Box::new(give)));
        }

        fn release(&mut self, owner: usize, seq: u64, holds: u32) {
            let (keys, token, terms) = (self.0.names[0].clone(), self.token(owner), "".into());
            let (weight, attempt, copies_until, is_handle) = (1, 0, 0, false);
            let of = owner_id(owner);
            let release =
                Release { keys, owner: of, token, holds, weight, seq, attempt, copies_until, terms, is_handle };
            self.run(owner / 2, &Request::Release(release));
        }
    }

    #[test]
    fn a_release_notes_no_silence_of_the_second_in_line_if_the_first_fills_the_room() {
        for limit_of_second in [1, 2] {
            let mut rare = Rare::new([45_001, 10_000, 3001]);
            rare.acquire(0, 1, (1, 1), LONG);
            rare.acquire(2, 1, (1, 1), LONG);
            rare.acquire(4, 1, (1, limit_of_second), LONG);
            rare.pass(4000);
            rare.release(0, 1, 0);
        }
    }

    #[test]
    fn a_release_looks_at_all_where_a_lease_has_ended() {
        let mut rare = Rare::new([45_001, 10_000, 3001]);
        rare.acquire(0, 1, (1, 2), LONG);
        rare.acquire(1, 2, (1, 2), 1000);
        rare.acquire(2, 1, (1, 2), LONG);
        rare.acquire(4, 1, (1, 2), LONG);
        rare.pass(4000);
        rare.release(0, 1, 0);
    }

    #[test]
    fn one_that_waits_was_given_a_share() {
        for (attempt, lease) in [(4, LONG), (5, LONG), (6, LONG), (4, 1000), (5, 1000), (6, 1000)] {
            let mut rare = Rare::new([45_001, 10_000, 3001]);
            rare.acquire(0, 1, (1, 2), LONG);
            rare.acquire(1, 2, (1, 2), LONG);
            rare.acquire(2, 5, (1, 2), LONG);
            rare.acquire(4, 1, (1, 2), LONG);
            rare.give(1, 2, attempt, lease);
            rare.pass(4000);
            rare.release(0, 1, 0);
        }
    }

    #[test]
    fn one_that_waits_gives_back_a_part_of_what_it_was_given() {
        let mut rare = Rare::new([45_001, 10_000, 3001]);
        rare.acquire(0, 1, (1, 3), LONG);
        rare.acquire(1, 2, (2, 3), LONG);
        rare.acquire(2, 5, (1, 3), LONG);
        rare.give(1, 2, 4, LONG);
        rare.release(2, 5, 1);
    }

    #[test]
    fn one_that_is_heard_comes_in_with_an_earlier_place_of_its_client() {
        let mut rare = Rare::new([3001, 6100, 3001]);
        rare.acquire(4, 1, (2, 2), 1000);
        rare.acquire(2, 1, (1, 2), LONG);
        rare.acquire(0, 1, (1, 2), LONG);
        rare.reach(&[]);
        rare.pass(5000);
        rare.acquire(1, 2, (1, 2), LONG);
    }
}
