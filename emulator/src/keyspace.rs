//! Strings, hashes, lists and sorted sets with expiry: the parts of Redis that the scripts use, with the same types,
//! conversions and error texts.
//!
//! It uses neither Lua nor tokio. The caller sets the time with [`Keyspace::at`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

type Bytes = Vec<u8>;
type Words<'a> = &'a [Bytes];
/// A published message: channel, text, and whether the channel had a subscriber.
pub type Message = (Bytes, Bytes, bool);

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Int(i64),
    Bulk(Bytes),
    Nil,
    Ok,
    List(Vec<Reply>),
    /// A code and a text, as in `ERR syntax error`.
    Error(String),
}

type Executed = Result<Reply, Reply>;

fn error(text: &str) -> Reply {
    Reply::Error(text.to_owned())
}

fn wrong_type() -> Reply {
    error("WRONGTYPE Operation against a key holding the wrong kind of value")
}

fn syntax() -> Reply {
    error("ERR syntax error")
}

fn count(number: usize) -> Executed {
    Ok(Reply::Int(number as i64))
}

fn bulk_or_nil(bytes: Option<&Bytes>) -> Reply {
    bytes.map_or(Reply::Nil, |bytes| Reply::Bulk(bytes.clone()))
}

/// One of the types of values. `from` returns `None` if the value has another type.
trait Content: Default {
    fn from(value: &Value) -> Option<&Self>;
    fn from_mut(value: &mut Value) -> Option<&mut Self>;
    fn wrap(self) -> Value;
    fn is_empty(&self) -> bool;
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Text(Text),
    Hash(Hash),
    List(List),
    Zset(Zset),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Text(Bytes);
#[derive(Debug, Clone, Default, PartialEq)]
struct Hash(BTreeMap<Bytes, Bytes>);
#[derive(Debug, Clone, Default, PartialEq)]
struct List(VecDeque<Bytes>);
#[derive(Debug, Clone, Default, PartialEq)]
struct Zset {
    scores: HashMap<Bytes, f64>,
    /// Ordered by score, then by member, as in Redis.
    order: BTreeSet<(Score, Bytes)>,
}

/// The least and the greatest score, and whether each of them is excluded.
type ScoreBounds = ((f64, bool), (f64, bool));

#[derive(Debug, Clone, Copy, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! kind {
    ($kind:ident, $is_empty:expr) => {
        impl Content for $kind {
            fn from(value: &Value) -> Option<&Self> {
                if let Value::$kind(inner) = value { Some(inner) } else { None }
            }
            fn from_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$kind(inner) = value { Some(inner) } else { None }
            }
            fn wrap(self) -> Value {
                Value::$kind(self)
            }
            fn is_empty(&self) -> bool {
                $is_empty(self)
            }
        }
    };
}

// An empty string stays. Values of other types disappear with their last element.
kind!(Text, |_: &Text| false);
kind!(Hash, |hash: &Hash| hash.0.is_empty());
kind!(List, |list: &List| list.0.is_empty());
kind!(Zset, |zset: &Zset| zset.scores.is_empty());

impl Zset {
    fn remove(&mut self, member: &Bytes) -> bool {
        // Change both together: otherwise ZRANGEBYSCORE would still find the member in `order` after its ZREM.
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(Score(score), member.clone()))
    }

    fn within(&self, ((min, above), (max, below)): ScoreBounds) -> impl Iterator<Item = &Bytes> {
        // The empty member sorts before all others with the same score.
        let from_min =
            self.order.range((Score(min), Bytes::new())..).skip_while(move |(score, _)| above && score.0 == min);
        from_min.take_while(move |(score, _)| score.0 < max || !below && score.0 == max).map(|(_, member)| member)
    }

    fn insert(&mut self, member: &Bytes, score: f64) {
        self.remove(member);
        // Redis has one zero, but `total_cmp` distinguishes 0.0 and -0.0.
        let score = if score == 0.0 { 0.0 } else { score };
        self.scores.insert(member.clone(), score);
        self.order.insert((Score(score), member.clone()));
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Stored {
    value: Value,
    expires_at: Option<i64>,
}

/// How the slot of a running script moves, in a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Moves {
    #[default]
    Rests,
    /// To another node: a command may only use keys that are still here.
    Leaves,
    /// From another node: the same holds for a command with several keys.
    Comes,
}

impl Moves {
    /// Whether a command on `keys` keys, of which `missing` are not here, would have to run at another node.
    pub fn is_elsewhere(self, keys: usize, missing: usize) -> bool {
        match self {
            Self::Rests => false,
            Self::Leaves => missing > 0,
            Self::Comes => missing > 0 && keys > 1,
        }
    }
}

/// The keys of one server, at one time.
#[derive(Debug, Default)]
pub struct Keyspace {
    entries: HashMap<Bytes, Stored>,
    /// The same expiry times in order, to remove expired keys that nobody reads.
    expiries: BTreeSet<(i64, Bytes)>,
    /// Microseconds since 1970. It does not change while a script runs.
    now: i64,
    /// The channels that have a subscriber.
    pub channels: BTreeSet<Bytes>,
    /// The ids of clients that do not count as subscribers; see `Faults::behind`.
    pub behind: Vec<String>,
    /// The messages published since they were last taken.
    pub published: Vec<Message>,
    /// The commands to refuse in the running script.
    pub refused: Option<RefusedCommands>,
    /// How the slot of the running script moves.
    pub moves: Moves,
}

/// The commands that a server refuses inside a script. The script's earlier commands stay done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCommands {
    /// One command, after this many others.
    After(u32),
    /// All commands of this name, in capitals: the user lacks that right.
    Named(&'static str),
}

/// A key's value and its remaining lifetime in ms, as MIGRATE carries them to another server.
pub struct Dump {
    value: Value,
    lifetime: Option<i64>,
}

/// All keys at one time, with their expiry times.
#[derive(Debug, Clone)]
pub struct Snapshot {
    entries: HashMap<Bytes, Stored>,
    expiries: BTreeSet<(i64, Bytes)>,
}

/// The name, the number of words including the name (negative: at least that many), and the implementation.
type Command = (&'static str, i32, fn(&mut Keyspace, Words<'_>) -> Executed);

const COMMANDS: &[Command] = &[
    ("DEL", -2, Keyspace::del),
    ("EXISTS", -2, Keyspace::exists),
    ("FLUSHALL", 1, Keyspace::flushall),
    ("GET", 2, Keyspace::get),
    ("HDEL", -3, Keyspace::hdel),
    ("HGET", 3, Keyspace::hget),
    ("HGETALL", 2, Keyspace::hgetall),
    ("HMGET", -3, Keyspace::hmget),
    ("HSET", -4, Keyspace::hset),
    ("LINDEX", 3, Keyspace::lindex),
    ("LLEN", 2, Keyspace::llen),
    ("LPOP", 2, Keyspace::lpop),
    ("LRANGE", 4, Keyspace::lrange),
    ("LREM", 4, Keyspace::lrem),
    ("LSET", 4, Keyspace::lset),
    ("LTRIM", 4, Keyspace::ltrim),
    ("PEXPIRE", -3, Keyspace::pexpire),
    ("PTTL", 2, Keyspace::pttl),
    ("PING", 1, Keyspace::ping),
    ("PUBLISH", 3, Keyspace::publish),
    ("PUBSUB", -2, Keyspace::pubsub),
    ("RPOP", 2, Keyspace::rpop),
    ("RPUSH", -3, Keyspace::rpush),
    ("RPUSHX", -3, Keyspace::rpushx),
    ("SCAN", -2, Keyspace::scan),
    ("SET", -3, Keyspace::set),
    ("TIME", 1, Keyspace::time),
    ("UNLINK", -2, Keyspace::del),
    ("ZADD", -4, Keyspace::zadd),
    ("ZCARD", 2, Keyspace::zcard),
    ("ZCOUNT", 4, Keyspace::zcount),
    ("ZMSCORE", -3, Keyspace::zmscore),
    ("ZRANGE", 4, Keyspace::zrange),
    ("ZRANGEBYSCORE", -4, Keyspace::zrangebyscore),
    ("ZREM", -3, Keyspace::zrem),
    ("ZREVRANGEBYSCORE", -4, Keyspace::zrevrangebyscore),
    ("ZSCORE", 3, Keyspace::zscore),
];

impl Keyspace {
    /// Sets the clock, but never back, and removes expired keys.
    pub fn at(&mut self, micros: i64) {
        self.now = self.now.max(micros);
        // Removes all expired keys at once. Redis removes a key at the next read, or some time later, but scripts
        // cannot see the difference.
        let now = self.millis();
        while let Some((due, key)) = self.expiries.pop_first() {
            if due > now {
                self.expiries.insert((due, key));
                return;
            }
            self.entries.remove(&key);
        }
    }

    /// In microseconds since 1970.
    pub fn now(&self) -> i64 {
        self.now
    }

    fn millis(&self) -> i64 {
        self.now / 1000
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot { entries: self.entries.clone(), expiries: self.expiries.clone() }
    }

    /// The next [`at`](Self::at) removes keys that have expired since. The subscriptions stay, since they belong to
    /// connections. Takes a microsecond, like a flush.
    pub fn restore(&mut self, snapshot: Snapshot) {
        self.now += 1;
        (self.entries, self.expiries) = (snapshot.entries, snapshot.expiries);
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// Takes a key and its value out.
    pub fn dump(&mut self, key: &[u8]) -> Option<Dump> {
        let (key, now) = (key.to_vec(), self.millis());
        let lifetime = self.entries.get(&key)?.expires_at.map(|at| at - now);
        self.set_expiry(&key, None);
        Some(Dump { value: self.entries.remove(&key)?.value, lifetime })
    }

    /// RESTORE with REPLACE.
    pub fn load(&mut self, key: &[u8], Dump { value, lifetime }: Dump) {
        let key = key.to_vec();
        self.remove(&key);
        self.entries.insert(key.clone(), Stored { value, expires_at: None });
        self.set_expiry(&key, lifetime.map(|lifetime| self.millis() + lifetime));
    }

    pub fn keys(&self) -> Vec<Bytes> {
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        // The map's order is random, and a simulated run must be repeatable.
        keys.sort();
        keys
    }

    /// Runs one command, as `redis.pcall` does.
    pub fn execute(&mut self, words: Words<'_>) -> Reply {
        let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        // The name, then the number of words, then the rights: Redis checks in this order.
        let Some((_, arity, command)) = COMMANDS.iter().find(|(known, ..)| known.as_bytes() == name) else {
            return error("ERR Unknown Redis command called from script");
        };
        let length = words.len() as i32;
        if length != *arity && (*arity > 0 || length < -arity) {
            return error("ERR Wrong number of args calling Redis command from script");
        }
        if self.refuses(&name) {
            return error("NOPERM this user has no permissions to run this command");
        }
        let keys = keys_of(&name, words);
        if self.moves.is_elsewhere(keys.len(), keys.iter().filter(|key| !self.has(key)).count()) {
            return error("ERR Script attempted to access a non local key in a cluster node");
        }
        command(self, &words[1..]).unwrap_or_else(|error| error)
    }

    fn refuses(&mut self, name: &[u8]) -> bool {
        match &mut self.refused {
            None => false,
            Some(RefusedCommands::Named(refused)) => refused.as_bytes() == name,
            Some(RefusedCommands::After(0)) => {
                self.refused = None;
                true
            }
            Some(RefusedCommands::After(left)) => {
                *left -= 1;
                false
            }
        }
    }

    fn read<K: Content>(&self, key: &Bytes) -> Result<Option<&K>, Reply> {
        self.entries.get(key).map(|entry| K::from(&entry.value).ok_or_else(wrong_type)).transpose()
    }

    /// Changes a value. Creates a missing one, and removes one that is empty afterwards.
    fn change<K: Content, T>(&mut self, key: &Bytes, change: impl FnOnce(&mut K) -> T) -> Result<T, Reply> {
        if !self.entries.contains_key(key) {
            self.entries.insert(key.clone(), Stored { value: K::default().wrap(), expires_at: None });
        }
        // A key of another type stays: WRONGTYPE changes nothing.
        let inner = self.entries.get_mut(key).and_then(|entry| K::from_mut(&mut entry.value)).ok_or_else(wrong_type)?;
        let result = change(inner);
        // Even if the command found nothing to do: an LTRIM of a missing key must not create it.
        if inner.is_empty() {
            self.remove(key);
        }
        Ok(result)
    }

    fn remove(&mut self, key: &Bytes) -> bool {
        // The expiry first. If it stayed, it would end a later key of this name too early.
        self.set_expiry(key, None);
        self.entries.remove(key).is_some()
    }

    fn set_expiry(&mut self, key: &Bytes, at: Option<i64>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.expires_at, at);
        if let Some(before) = before {
            self.expiries.remove(&(before, key.clone()));
        }
        if let Some(at) = at {
            self.expiries.insert((at, key.clone()));
        }
    }

    fn time(&mut self, _: Words<'_>) -> Executed {
        let part = |number: i64| Reply::Bulk(number.to_string().into_bytes());
        Ok(Reply::List(vec![part(self.now / 1_000_000), part(self.now % 1_000_000)]))
    }

    fn ping(&mut self, _: Words<'_>) -> Executed {
        Ok(Reply::Bulk(b"PONG".to_vec()))
    }

    /// `SCAN cursor MATCH start* COUNT count`. MATCH and COUNT are optional, and may come once. The keys are sorted
    /// by their hashes, and the cursor is a hash. Like Redis, a scan therefore finds each key that exists all the
    /// time.
    fn scan(&mut self, words: Words<'_>) -> Executed {
        let cursor = std::str::from_utf8(&words[0]).ok().and_then(|text| text.parse::<u64>().ok());
        let cursor = cursor.ok_or_else(|| error("ERR invalid cursor"))?;
        let (mut start, mut most) = (Vec::new(), 10);
        if !words[1..].len().is_multiple_of(2) {
            return Err(syntax());
        }
        for pair in words[1..].chunks(2) {
            match pair[0].to_ascii_uppercase().as_slice() {
                b"MATCH" => start = start_of(&pair[1])?,
                b"COUNT" => {
                    most = usize::try_from(integer(&pair[1])?).ok().filter(|most| *most > 0).ok_or_else(syntax)?
                }
                _ => return Err(syntax()),
            }
        }
        let mut left: Vec<_> =
            self.entries.keys().map(|key| (hash(key), key)).filter(|(at, _)| *at >= cursor).collect();
        left.sort_unstable();
        let next = left.get(most).map(|(at, _)| *at);
        // Keys with the same hash are on the same page.
        let page = left.into_iter().take_while(|(at, _)| next.is_none_or(|next| *at < next)).map(|(_, key)| key);
        let begins = |key: &&Bytes| {
            key.len() >= start.len() && start.iter().zip(*key).all(|(one, byte)| one.is_none_or(|one| one == *byte))
        };
        let page = page.filter(begins).cloned().map(Reply::Bulk).collect();
        Ok(Reply::List(vec![Reply::Bulk(next.unwrap_or(0).to_string().into_bytes()), Reply::List(page)]))
    }

    fn publish(&mut self, words: Words<'_>) -> Executed {
        // There are 0 or 1 receivers here, as each client has its own channel.
        let received = self.has_subscriber(&words[0]);
        self.published.push((words[0].clone(), words[1].clone(), received));
        count(received.into())
    }

    fn has_subscriber(&self, channel: &Bytes) -> bool {
        self.channels.contains(channel) && !self.behind.iter().any(|client| channel.ends_with(client.as_bytes()))
    }

    /// `PUBSUB NUMSUB channel …`
    fn pubsub(&mut self, words: Words<'_>) -> Executed {
        if !words[0].eq_ignore_ascii_case(b"NUMSUB") {
            return Err(error("ERR unknown subcommand of PUBSUB"));
        }
        let counted = words[1..].iter().map(|channel| (channel, i64::from(self.has_subscriber(channel))));
        Ok(Reply::List(
            counted.flat_map(|(channel, count)| [Reply::Bulk(channel.clone()), Reply::Int(count)]).collect(),
        ))
    }

    /// Takes a microsecond even if the clock stops: numbers that a script derives from TIME afterwards must differ
    /// from earlier ones. Redis behaves the same.
    fn flushall(&mut self, _: Words<'_>) -> Executed {
        self.now += 1;
        self.entries.clear();
        self.expiries.clear();
        Ok(Reply::Ok)
    }

    fn del(&mut self, words: Words<'_>) -> Executed {
        count(words.iter().filter(|key| self.remove(key)).count())
    }

    fn exists(&mut self, words: Words<'_>) -> Executed {
        count(words.iter().filter(|key| self.entries.contains_key(*key)).count())
    }

    fn pttl(&mut self, words: Words<'_>) -> Executed {
        let left = match self.entries.get(&words[0]) {
            None => -2,
            Some(entry) => entry.expires_at.map_or(-1, |at| at - self.millis()),
        };
        Ok(Reply::Int(left))
    }

    fn pexpire(&mut self, words: Words<'_>) -> Executed {
        let lifetime = integer(&words[1])?;
        // Redis checks the range before it looks for the key, so this is an error even if the key is missing.
        let at = self.millis().checked_add(lifetime);
        let at = at.ok_or_else(|| error("ERR invalid expire time in 'pexpire' command"))?;
        let is_longer_only = match words.get(2) {
            Some(option) if option.eq_ignore_ascii_case(b"GT") => true,
            Some(_) => return Err(syntax()),
            None => false,
        };
        let Some(entry) = self.entries.get(&words[0]) else { return count(0) };
        // A key without an expiry counts as longer-lived than any other.
        if is_longer_only && entry.expires_at.is_none_or(|before| at <= before) {
            return count(0);
        }
        // A time of zero or less deletes the key at once.
        if lifetime <= 0 {
            self.remove(&words[0]);
        } else {
            self.set_expiry(&words[0], Some(at));
        }
        count(1)
    }

    fn get(&mut self, words: Words<'_>) -> Executed {
        Ok(bulk_or_nil(self.read::<Text>(&words[0])?.map(|text| &text.0)))
    }

    fn set(&mut self, words: Words<'_>) -> Executed {
        let at = match &words[2..] {
            [] => None,
            [option] if option.eq_ignore_ascii_case(b"KEEPTTL") => {
                self.entries.get(&words[0]).and_then(|entry| entry.expires_at)
            }
            [option, lifetime] if option.eq_ignore_ascii_case(b"PX") => {
                let at = Some(integer(lifetime)?).filter(|ms| *ms > 0).and_then(|ms| self.millis().checked_add(ms));
                Some(at.ok_or_else(|| error("ERR invalid expire time in 'set' command"))?)
            }
            _ => return Err(syntax()),
        };
        // SET replaces a value of any type, and its expiry. So first do everything that can fail.
        self.remove(&words[0]);
        let value = Value::Text(Text(words[1].clone()));
        self.entries.insert(words[0].clone(), Stored { value, expires_at: None });
        self.set_expiry(&words[0], at);
        Ok(Reply::Ok)
    }

    fn field(&self, key: &Bytes, field: &Bytes) -> Result<Option<&Bytes>, Reply> {
        Ok(self.read::<Hash>(key)?.and_then(|hash| hash.0.get(field)))
    }

    fn hget(&mut self, words: Words<'_>) -> Executed {
        Ok(bulk_or_nil(self.field(&words[0], &words[1])?))
    }

    fn hmget(&mut self, words: Words<'_>) -> Executed {
        let hash = self.read::<Hash>(&words[0])?;
        let value = |field| bulk_or_nil(hash.and_then(|hash| hash.0.get(field)));
        Ok(Reply::List(words[1..].iter().map(value).collect()))
    }

    fn hgetall(&mut self, words: Words<'_>) -> Executed {
        let pairs = self.read::<Hash>(&words[0])?.into_iter().flat_map(|hash| &hash.0);
        let flat = pairs.flat_map(|(field, value)| [Reply::Bulk(field.clone()), Reply::Bulk(value.clone())]);
        Ok(Reply::List(flat.collect()))
    }

    fn hset(&mut self, words: Words<'_>) -> Executed {
        // HSET itself reports a field without a value, not the check of the number of words. So the text differs.
        if words.len().is_multiple_of(2) {
            return Err(error("ERR wrong number of arguments for 'hset' command"));
        }
        let new = |pair: &[Bytes], hash: &mut Hash| hash.0.insert(pair[0].clone(), pair[1].clone()).is_none();
        let added = |hash: &mut Hash| words[1..].chunks(2).filter(|pair| new(pair, hash)).count();
        count(self.change(&words[0], added)?)
    }

    fn hdel(&mut self, words: Words<'_>) -> Executed {
        let gone = |hash: &mut Hash| words[1..].iter().filter(|field| hash.0.remove(*field).is_some()).count();
        count(self.change(&words[0], gone)?)
    }

    fn llen(&mut self, words: Words<'_>) -> Executed {
        count(self.read::<List>(&words[0])?.map_or(0, |list| list.0.len()))
    }

    fn lindex(&mut self, words: Words<'_>) -> Executed {
        let index = integer(&words[1])?;
        let Some(list) = self.read::<List>(&words[0])? else { return Ok(Reply::Nil) };
        let index = if index < 0 { index.saturating_add(list.0.len() as i64) } else { index };
        Ok(bulk_or_nil(usize::try_from(index).ok().and_then(|index| list.0.get(index))))
    }

    fn lrange(&mut self, words: Words<'_>) -> Executed {
        let (from, to) = (integer(&words[1])?, integer(&words[2])?);
        let Some(list) = self.read::<List>(&words[0])? else { return Ok(Reply::List(Vec::new())) };
        let range = index_range(from, to, list.0.len());
        Ok(Reply::List(list.0.range(range).cloned().map(Reply::Bulk).collect()))
    }

    fn ltrim(&mut self, words: Words<'_>) -> Executed {
        let (from, to) = (integer(&words[1])?, integer(&words[2])?);
        self.change(&words[0], |list: &mut List| {
            let range = index_range(from, to, list.0.len());
            list.0.truncate(range.end);
            list.0.drain(..range.start.min(range.end));
        })?;
        Ok(Reply::Ok)
    }

    fn rpush(&mut self, words: Words<'_>) -> Executed {
        let push = |list: &mut List| {
            list.0.extend(words[1..].iter().cloned());
            list.0.len()
        };
        count(self.change(&words[0], push)?)
    }

    fn rpushx(&mut self, words: Words<'_>) -> Executed {
        if self.read::<List>(&words[0])?.is_none() { count(0) } else { self.rpush(words) }
    }

    fn lpop(&mut self, words: Words<'_>) -> Executed {
        Ok(bulk_or_nil(self.change(&words[0], |list: &mut List| list.0.pop_front())?.as_ref()))
    }

    fn rpop(&mut self, words: Words<'_>) -> Executed {
        Ok(bulk_or_nil(self.change(&words[0], |list: &mut List| list.0.pop_back())?.as_ref()))
    }

    /// `LREM key n element`: removes the first n, the last -n, or with 0 all of them.
    fn lrem(&mut self, words: Words<'_>) -> Executed {
        let (limit, element) = (integer(&words[1])?, &words[2]);
        let most = if limit == 0 { usize::MAX } else { usize::try_from(limit.unsigned_abs()).unwrap_or(usize::MAX) };
        let remove = |list: &mut List| {
            let equal = |(index, found): (usize, &Bytes)| (found == element).then_some(index);
            let mut indices: Vec<_> = match limit < 0 {
                true => list.0.iter().enumerate().rev().filter_map(equal).take(most).collect(),
                false => list.0.iter().enumerate().filter_map(equal).take(most).collect(),
            };
            indices.sort_unstable();
            // From the end, so that the other indices stay right.
            indices.iter().rev().for_each(|index| drop(list.0.remove(*index)));
            indices.len()
        };
        count(self.change(&words[0], remove)?)
    }

    fn lset(&mut self, words: Words<'_>) -> Executed {
        let index = integer(&words[1])?;
        if self.read::<List>(&words[0])?.is_none() {
            return Err(error("ERR no such key"));
        }
        let set = |list: &mut List| {
            let index = if index < 0 { index.saturating_add(list.0.len() as i64) } else { index };
            let element = usize::try_from(index).ok().and_then(|index| list.0.get_mut(index));
            element.map(|element| element.clone_from(&words[2]))
        };
        self.change(&words[0], set)?.map(|()| Reply::Ok).ok_or_else(|| error("ERR index out of range"))
    }

    fn zcard(&mut self, words: Words<'_>) -> Executed {
        count(self.read::<Zset>(&words[0])?.map_or(0, |zset| zset.scores.len()))
    }

    fn zscore(&mut self, words: Words<'_>) -> Executed {
        Ok(self.read::<Zset>(&words[0])?.map_or(Reply::Nil, |zset| score_of(zset, &words[1])))
    }

    fn zmscore(&mut self, words: Words<'_>) -> Executed {
        let zset = self.read::<Zset>(&words[0])?;
        let score = |member| zset.map_or(Reply::Nil, |zset| score_of(zset, member));
        Ok(Reply::List(words[1..].iter().map(score).collect()))
    }

    fn zadd(&mut self, words: Words<'_>) -> Executed {
        let pairs = &words[1..];
        if !pairs.len().is_multiple_of(2) {
            return Err(syntax());
        }
        // Read all scores before the first change: Redis adds nothing if one of them is not a number.
        let scored: Vec<_> = pairs.chunks(2).map(|pair| Ok((float(&pair[0])?, &pair[1]))).collect::<Result<_, _>>()?;
        let add = |zset: &mut Zset| {
            let before = zset.scores.len();
            for (score, member) in scored {
                zset.insert(member, score);
            }
            // Members that only got a new score do not count.
            zset.scores.len() - before
        };
        count(self.change(&words[0], add)?)
    }

    fn zcount(&mut self, words: Words<'_>) -> Executed {
        let bounds = score_bounds(&words[1..])?;
        count(self.read::<Zset>(&words[0])?.map_or(0, |zset| zset.within(bounds).count()))
    }

    fn zrangebyscore(&mut self, words: Words<'_>) -> Executed {
        let bounds = score_bounds(&words[1..3])?;
        self.range_by_score(words, bounds, false)
    }

    fn zrevrangebyscore(&mut self, words: Words<'_>) -> Executed {
        let bounds = score_bounds(&[words[2].clone(), words[1].clone()])?;
        self.range_by_score(words, bounds, true)
    }

    /// `key min max [WITHSCORES] [LIMIT from most]`, as the scripts write it.
    fn range_by_score(&self, words: Words<'_>, bounds: ScoreBounds, from_the_end: bool) -> Executed {
        let (mut with_scores, mut from, mut most) = (false, 0, usize::MAX);
        match &words[3..] {
            [] => {}
            [rest @ .., limit, first, count] if limit.eq_ignore_ascii_case(b"LIMIT") => {
                with_scores = rest.first().is_some_and(|word| word.eq_ignore_ascii_case(b"WITHSCORES"));
                (from, most) = (integer(first)? as usize, usize::try_from(integer(count)?).unwrap_or(usize::MAX));
            }
            _ => return Err(syntax()),
        }
        let Some(zset) = self.read::<Zset>(&words[0])? else { return Ok(Reply::List(Vec::new())) };
        let mut members: Vec<_> = zset.within(bounds).cloned().collect();
        if from_the_end {
            members.reverse();
        }
        let pair = |member: Bytes| {
            let score = with_scores.then(|| score_of(zset, &member));
            [Some(Reply::Bulk(member)), score].into_iter().flatten()
        };
        Ok(Reply::List(members.into_iter().skip(from).take(most).flat_map(pair).collect()))
    }

    /// No script uses it. Tests and people inspect a queue with it.
    fn zrange(&mut self, words: Words<'_>) -> Executed {
        let (from, to) = (integer(&words[1])?, integer(&words[2])?);
        let Some(zset) = self.read::<Zset>(&words[0])? else { return Ok(Reply::List(Vec::new())) };
        let range = index_range(from, to, zset.order.len());
        let members = zset.order.iter().skip(range.start).take(range.len());
        Ok(Reply::List(members.map(|(_, member)| Reply::Bulk(member.clone())).collect()))
    }

    fn zrem(&mut self, words: Words<'_>) -> Executed {
        let gone = |zset: &mut Zset| words[1..].iter().filter(|member| zset.remove(member)).count();
        count(self.change(&words[0], gone)?)
    }
}

/// The part of a pattern before the `*`, which must be at its end. `?` matches any byte and becomes `None`. `\`
/// escapes a character.
fn start_of(pattern: &[u8]) -> Result<Vec<Option<u8>>, Reply> {
    let (mut start, mut left) = (Vec::new(), pattern.iter());
    while let Some(byte) = left.next() {
        match byte {
            b'*' if left.len() == 0 => return Ok(start),
            b'*' | b'[' => break,
            b'?' => start.push(None),
            b'\\' => start.extend(left.next().map(|byte| Some(*byte))),
            _ => start.push(Some(*byte)),
        }
    }
    Err(error("ERR this server knows no patterns but those of a text with ? in it, and a star"))
}

/// FNV-1a without 0, which is the first and the last cursor. Deterministic, so that a simulated run can be repeated.
fn hash(key: &Bytes) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// The keys among a command's words.
fn keys_of<'a>(name: &[u8], words: Words<'a>) -> Words<'a> {
    match name {
        b"DEL" | b"EXISTS" | b"UNLINK" => &words[1..],
        b"FLUSHALL" | b"PING" | b"PUBLISH" | b"PUBSUB" | b"SCAN" | b"TIME" => &[],
        _ => &words[1..2],
    }
}

/// The bounds of ZCOUNT and of ranges. `(` before a number excludes it.
fn score_bounds(words: Words<'_>) -> Result<ScoreBounds, Reply> {
    let bound = |word: &Bytes| {
        let (number, is_open) = word.strip_prefix(b"(").map_or((&word[..], false), |number| (number, true));
        float(&number.to_vec()).map(|number| (number, is_open)).map_err(|_| error("ERR min or max is not a float"))
    };
    Ok((bound(&words[0])?, bound(&words[1])?))
}

fn score_of(zset: &Zset, member: &Bytes) -> Reply {
    zset.scores.get(member).map_or(Reply::Nil, |score| Reply::Bulk(number(*score).into_bytes()))
}

/// Writes a number as Redis does: whole numbers without a point, others with the fewest digits that are exact.
pub fn number(number: f64) -> String {
    match number {
        whole if whole.fract() == 0.0 && whole.abs() < 1e17 => format!("{whole:.0}"),
        _ if number.is_infinite() => if number > 0.0 { "inf" } else { "-inf" }.to_owned(),
        other => other.to_string(),
    }
}

/// Parses an integer as strictly as Redis, which refuses `+1`, `01` and ` 1`.
fn integer(word: &Bytes) -> Result<i64, Reply> {
    let parsed = std::str::from_utf8(word).ok().and_then(|text| Some((text, text.parse::<i64>().ok()?)));
    match parsed {
        // Accept only a number that Redis would write the same way.
        Some((text, number)) if number.to_string() == text => Ok(number),
        _ => Err(error("ERR value is not an integer or out of range")),
    }
}

fn float(word: &Bytes) -> Result<f64, Reply> {
    let parsed = std::str::from_utf8(word).ok().and_then(|text| text.parse::<f64>().ok());
    // Redis refuses NaN, which would not fit into the order of scores.
    parsed.filter(|number| !number.is_nan()).ok_or_else(|| error("ERR value is not a valid float"))
}

/// The range of LRANGE and LTRIM in a list of this length. Both ends are included, and negative ones count from the
/// end.
fn index_range(from: i64, to: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let from_start = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let end = from_start(to).saturating_add(1).clamp(0, length);
    // If the start comes after the end, Redis takes the range as empty, without an error. `end` bounds it, so that
    // slicing cannot panic.
    let start = from_start(from).clamp(0, end);
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(keyspace: &mut Keyspace, command: &str) -> Reply {
        keyspace.execute(&command.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn keys_expire_in_time_without_being_read() {
        let mut keyspace = Keyspace::default();
        keyspace.at(1_000_000);
        run(&mut keyspace, "SET a 1 PX 50");
        run(&mut keyspace, "RPUSH b x");
        run(&mut keyspace, "PEXPIRE b 60");
        run(&mut keyspace, "SET a 2 PX 70");
        keyspace.at(1_059_999);
        assert_eq!(run(&mut keyspace, "PTTL b"), Reply::Int(1));
        keyspace.at(1_060_000);
        assert_eq!(keyspace.keys(), [b"a"]);
        keyspace.at(1_070_000);
        assert!(keyspace.entries.is_empty() && keyspace.expiries.is_empty());
    }

    #[test]
    fn a_collection_is_removed_with_its_last_element_and_its_expiry_too() {
        let mut keyspace = Keyspace::default();
        for (make, unmake) in [("RPUSH k x", "RPOP k"), ("HSET k f v", "HDEL k f"), ("ZADD k 1 m", "ZREM k m")] {
            run(&mut keyspace, make);
            run(&mut keyspace, "PEXPIRE k 1000");
            run(&mut keyspace, unmake);
            assert!(keyspace.entries.is_empty() && keyspace.expiries.is_empty(), "{make}");
        }
    }

    #[test]
    fn a_failed_change_makes_no_key() {
        let mut keyspace = Keyspace::default();
        for command in ["HDEL k f", "LTRIM k 0 -1", "LREM k 0 x", "RPOP k", "ZADD k x m"] {
            run(&mut keyspace, command);
            assert!(keyspace.entries.is_empty(), "{command}");
        }
    }
}
