//! Runs random calls of the scripts for shared names against a short oracle that knows the holders and the order of the
//! queue.
//!
//! The fixed seeds make it deterministic; `FAIRLOCK_CALLS` makes it longer, with more seeds.

use std::collections::BTreeMap;

use crate::bench::{Bench, client_of, flatten, pairs};
use crate::support::{Random, from_env, limit_to};

const OWNERS: [&str; 9] = ["c:1", "c:2", "d:1", "d:2", "d:3", "e:1", "e:2", "x:1", "y:1"];
const CLIENTS: [&str; 5] = ["c", "d", "e", "x", "y"];
/// The test subscribes to their channels, see bench.rs. A client that calls is reachable too.
const SUBSCRIBED: [&str; 2] = ["d", "e"];
const MOST_PLACES: usize = 25;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    holds: u32,
    seq: u64,
    weight: u32,
    limit: u32,
    /// Its lease has ended, and no script has taken it out yet.
    ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    owner: String,
    seq: u64,
    weight: u32,
    limit: u32,
}

impl Place {
    fn ticket(&self) -> String {
        format!("{}:{}", self.owner, self.seq)
    }
}

/// The state that the scripts keep, and no more.
#[derive(Debug, Default)]
struct Oracle {
    holders: BTreeMap<String, Held>,
    queue: Vec<Place>,
    /// The limit for all clients, if one is set.
    limit: Option<u32>,
    /// For each client that sent a request: whether it is alive.
    alive: BTreeMap<String, bool>,
}

struct Served {
    winners: Vec<Place>,
    /// A waiter remains that could come in later.
    stopped: bool,
    more: bool,
}

impl Oracle {
    fn has_room(&mut self, entering: &[Place], weight: u32, limit: u32) -> bool {
        let fits = |holders: &BTreeMap<String, Held>, set: Option<u32>| {
            let used: u32 = holders.values().map(|held| held.weight).chain(entering.iter().map(|p| p.weight)).sum();
            used + weight <= set.unwrap_or(limit) && holders.len() + entering.len() < 1024
        };
        if !fits(&self.holders, self.limit) {
            self.holders.retain(|_, held| !held.ended);
        }
        fits(&self.holders, self.limit)
    }

    /// First come, first served among the live and reachable waiters, up to the first that does not fit.
    fn serve(&mut self, caller: &str, is_heard: bool) -> Served {
        let mut served = Served { winners: Vec::new(), stopped: false, more: false };
        let (mut kept, mut dead) = (Vec::new(), Vec::new());
        for place in std::mem::take(&mut self.queue) {
            let client = client_of(&place.owner);
            let lives = is_heard && client == caller || self.alive.get(client) == Some(&true);
            if served.stopped {
                kept.push(place);
            } else if lives && (client == caller || SUBSCRIBED.contains(&client)) {
                let has_room = self.has_room(&served.winners, place.weight, place.limit);
                served.more = has_room && served.winners.iter().any(|winner| winner.owner == place.owner);
                served.stopped = served.more || !has_room;
                if served.stopped {
                    kept.push(place);
                } else {
                    // A late copy of an earlier acquire goes; otherwise an earlier hold ends.
                    if self.live(&place.owner).is_none_or(|held| held.seq < place.seq) {
                        self.holders.remove(&place.owner);
                        served.winners.push(place);
                    }
                    dead.clear();
                }
            } else if lives || !kept.is_empty() {
                // Passed over. A dead place at the head goes if a later one comes in or nobody holds the name.
                kept.push(place);
            } else {
                dead.push(place);
            }
        }
        if served.stopped || !self.holders.is_empty() || !served.winners.is_empty() {
            kept.splice(0..0, dead);
        }
        self.queue = kept;
        served
    }

    fn enter(&mut self, served: &Served) {
        for Place { owner, seq, weight, limit } in &served.winners {
            let held = Held { holds: 1, seq: *seq, weight: *weight, limit: *limit, ended: false };
            self.holders.insert(owner.clone(), held);
        }
        if self.queue.is_empty() {
            self.alive.clear();
        }
    }

    fn live(&self, owner: &str) -> Option<&Held> {
        self.holders.get(owner).filter(|held| !held.ended)
    }

    fn acquire(&mut self, place: Place, waits: bool) -> String {
        let client = client_of(&place.owner).to_owned();
        if let Some(held) = self.live(&place.owner) {
            if held.seq == place.seq {
                return format!("held {}", held.holds);
            } else if held.seq > place.seq {
                return "stale".into();
            }
        }
        let waits_already = self.queue.iter().any(|other| other.ticket() == place.ticket());
        let most = self.limit.unwrap_or(place.limit);
        if place.weight > most && most > 0 && !waits_already {
            return format!("heavy {most}");
        }
        self.holders.remove(&place.owner);
        let mut served = self.serve(&client, waits);
        let is_served = served.winners.contains(&place);
        if is_served {
            self.alive.insert(client, true);
        } else if !served.stopped
            && !served.winners.iter().any(|winner| winner.owner == place.owner)
            && self.has_room(&served.winners, place.weight, place.limit)
        {
            served.winners.push(place.clone());
        } else if waits {
            let known = self.alive.insert(client, true) == Some(true);
            if !waits_already {
                self.queue.push(place);
            }
            self.enter(&served);
            return format!("queued {} {}", u8::from(served.more), u8::from(known));
        } else {
            self.enter(&served);
            return format!("busy {}", u8::from(served.more));
        }
        self.enter(&served);
        "held 1".into()
    }

    fn pass_on(&mut self, caller: &str) -> u8 {
        let served = self.serve(caller, false);
        self.enter(&served);
        served.more.into()
    }

    fn end(&mut self, owner: &str, seq: u64) -> String {
        let ours = self.holders.get(owner).is_some_and(|held| held.seq <= seq);
        let held = ours.then(|| self.holders.remove(owner)).flatten();
        if held.is_some() { "freed".into() } else { "gone".into() }
    }

    fn shrink(&mut self, owner: &str, seq: u64, holds: u32, weight: u32) -> String {
        let Some(held) = self.holders.get_mut(owner).filter(|held| !held.ended) else { return "lost".into() };
        match held.seq.cmp(&seq) {
            std::cmp::Ordering::Greater => return "stale".into(),
            std::cmp::Ordering::Equal => return format!("held {} 0", held.holds),
            std::cmp::Ordering::Less => {}
        }
        (held.holds, held.seq, held.weight) = (holds, seq, held.weight.min(weight));
        format!("held {holds} {}", self.pass_on(client_of(owner)))
    }

    fn poll(&mut self, client: &str, waits: bool, tickets: &[String]) -> String {
        let hears = waits && !self.queue.is_empty();
        let before = self.queue.clone();
        let served = self.serve(client, hears);
        let first = hears && before.first().is_some_and(|place| client_of(&place.owner) == client);
        let known = hears && self.alive.insert(client.to_owned(), true) == Some(true);
        if before.is_empty() {
            self.alive.clear();
        }
        let held = |owner: &str, seq: u64, holders: &BTreeMap<String, Held>| {
            holders.get(owner).is_some_and(|held| !held.ended && held.seq == seq)
        };
        let holders = self.holders.clone();
        self.enter(&served);
        let state = |ticket: &String| {
            let (owner, seq) = ticket.rsplit_once(':').unwrap();
            let seq = seq.parse().unwrap();
            if held(owner, seq, &holders) || served.winners.iter().any(|winner| winner.ticket() == *ticket) {
                format!("{owner} {seq}")
            } else if before.iter().any(|place| place.ticket() == *ticket) {
                "+".into()
            } else {
                "-".into()
            }
        };
        let states: Vec<_> = tickets.iter().map(state).collect();
        let flags = [served.more, known].map(u8::from);
        format!("{} {} {} {} {}", flags[0], flags[1], self.queue.len(), u8::from(first), states.join(" "))
    }
}

/// The scripts, the oracle, and the calls so far.
struct Run {
    bench: Bench,
    oracle: Oracle,
    random: Random,
    last_token: u64,
    story: Vec<String>,
}

impl Run {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.below(of.len() as u64) as usize]
    }

    fn place(&mut self) -> Place {
        let owner = self.one(&OWNERS).to_owned();
        let seq = 1 + self.random.below(8);
        // A retry has the same arguments (R1).
        let mut of_ticket = Random::new(seq * 100 + OWNERS.iter().position(|other| *other == owner).unwrap() as u64);
        let limit = [3, 5, 5, 5, 8][of_ticket.below(5) as usize];
        let weight = [1, 1, 1, 2, 3, 5, 6][of_ticket.below(7) as usize];
        Place { owner, seq, weight, limit }
    }

    async fn call(&mut self, call: &str) -> Vec<String> {
        self.story.push(call.to_owned());
        self.bench.raw_call(call).await.unwrap_or_else(|error| panic!("{error:?}\n{}", self.story.join("\n")))
    }

    async fn token(&mut self, owner: &str) -> u64 {
        let record = flatten(self.bench.command(&format!("HGET lock {owner}")).await).concat();
        record.split(' ').nth(3).map_or(7, |token| token.parse().unwrap())
    }

    async fn step(&mut self) -> (String, String) {
        let place = self.place();
        let Place { owner, seq, weight, limit } = place.clone();
        let client = client_of(&owner).to_owned();
        let mut choice = self.random.below(100);
        if self.oracle.queue.len() >= MOST_PLACES {
            choice = 60;
        }
        match choice {
            0..40 => {
                let waits = self.random.chance(0.7);
                let mode = if waits { "" } else { " mode=0" };
                let call = format!("shared/acquire owner={owner} seq={seq} terms={weight},{limit},3000/L{mode}");
                let words = self.call(&call).await;
                let found = match &words[..] {
                    [held, _, holds, ..] if held == "held" => format!("held {holds}"),
                    [queued, _, _, more, known] if queued == "queued" => format!("queued {more} {known}"),
                    words => words.join(" "),
                };
                (found, self.oracle.acquire(place, waits))
            }
            40..60 => {
                // Releases for a holder if there is one: other releases change nothing.
                let holders: Vec<_> = self.oracle.holders.keys().cloned().collect();
                let owner = if holders.is_empty() { owner } else { holders[seq as usize % holders.len()].clone() };
                let (held, seq) = (self.oracle.holders.get(&owner).cloned(), 1 + self.random.below(10));
                let (client, token) = (client_of(&owner).to_owned(), self.token(&owner).await);
                if self.random.chance(0.3) {
                    let holds = held.map_or(1, |held| held.holds);
                    let words = self
                        .call(&format!("shared/release owner={owner} seq={seq} special={holds}:{token}:{weight}"))
                        .await;
                    return (words.join(" "), self.oracle.shrink(&owner, seq, holds, weight));
                }
                let words = self.call(&format!("shared/release owner={owner} seq={seq}")).await;
                let outcome = self.oracle.end(&owner, seq);
                (
                    format!("{} {}", words[0], words.last().unwrap()),
                    format!("{outcome} {}", self.oracle.pass_on(&client)),
                )
            }
            60..72 => {
                let index = self.random.below(MOST_PLACES as u64) as usize;
                let place = self.oracle.queue.get(index).or(self.oracle.queue.first()).cloned().unwrap_or(place);
                let Place { owner, seq, weight, limit } = place.clone();
                let terms = format!("{weight},{limit},3000/L");
                let words =
                    self.call(&format!("shared/leave owner={owner} seq={seq} place={owner}:{seq}/{terms}")).await;
                // A refused copy may have ended an attempt without a hold or a ticket, so the script counts all shares
                // again.
                let has_left = self.oracle.queue.iter().all(|other| other.ticket() != place.ticket());
                if has_left && !self.oracle.holders.contains_key(&owner) {
                    self.oracle.holders.retain(|_, held| !held.ended);
                }
                let outcome = self.oracle.end(&owner, seq);
                let count = self.oracle.queue.len();
                self.oracle.queue.retain(|other| *other != place);
                if count > 0 && self.oracle.queue.is_empty() {
                    self.oracle.alive.clear();
                }
                let more = self.oracle.pass_on(client_of(&owner));
                (format!("{} {}", words[0], words.last().unwrap()), format!("{outcome} {more}"))
            }
            72..84 => {
                let waits = self.random.chance(0.8);
                let tickets: Vec<_> = (0..3).map(|_| self.place().ticket()).collect();
                let call =
                    format!("shared/poll caller={client} waits={} tickets={}", u8::from(waits), tickets.join(","));
                let mut words = self.call(&call).await;
                let mut rest = words.split_off(8).into_iter();
                let mut states = Vec::new();
                while let Some(word) = rest.next() {
                    if word == "+" || word == "-" {
                        states.push(word);
                    } else {
                        states.push(format!("{word} {}", rest.next().unwrap()));
                        rest.by_ref().take(2).for_each(drop);
                    }
                }
                let found = format!("{} {}", words[1..5].join(" "), states.join(" "));
                (found, self.oracle.poll(&client, waits, &tickets))
            }
            84..88 => {
                let limit = [None, None, Some(0), Some(2), Some(5), Some(9)][self.random.below(6) as usize];
                let permits = limit.map(|limit: u32| limit.to_string()).unwrap_or_default();
                let words = self.call(&format!("shared/set_limit caller={client} permits={permits}")).await;
                self.oracle.limit = limit;
                (words[1].clone(), self.oracle.pass_on(&client).to_string())
            }
            88..92 => {
                let token = self.token(&owner).await;
                let words = self.call(&format!("shared/force_unlock caller={client} expected={token}")).await;
                let was_held = self.oracle.live(&owner).is_some();
                if was_held {
                    self.oracle.holders.remove(&owner);
                }
                let outcome = if was_held { "freed" } else { "free" };
                let more = self.oracle.pass_on(&client);
                (format!("{} {}", words[0], words.last().unwrap()), format!("{outcome} {more}"))
            }
            92..95 => {
                let token = self.token(&owner).await;
                let words = self.call(&format!("shared/renew owner={owner} token={token} lease=60000")).await;
                let outcome = if self.oracle.live(&owner).is_some() { "renewed" } else { "lost" };
                (words[0].clone(), outcome.into())
            }
            95..98 => {
                if let Some(held) = self.oracle.holders.get_mut(&owner) {
                    held.ended = true;
                    self.story.push(format!("the lease of {owner} ends"));
                    self.end_lease(&owner).await;
                }
                Default::default()
            }
            _ => {
                if !self.oracle.queue.is_empty() {
                    let client = self.one(&CLIENTS);
                    self.story.push(format!("dead {client}"));
                    self.bench.prepare(&format!("dead {client}")).await;
                    self.oracle.alive.insert(client.to_owned(), false);
                }
                Default::default()
            }
        }
    }

    /// Sets the end of the record and the bound of the ends to the past.
    async fn end_lease(&mut self, owner: &str) {
        let record = flatten(self.bench.command(&format!("HGET lock {owner}")).await).concat();
        let summary = flatten(self.bench.command("HGET lock !used").await).concat();
        let past = (self.bench.now().await - 5).to_string();
        let replaced = |text: &str, index: usize| {
            let mut words: Vec<_> = text.split(' ').collect();
            words[index] = &past;
            words.join("~")
        };
        let command = format!("HSET lock {owner} {} !used {}", replaced(&record, 0), replaced(&summary, 2));
        self.bench.command(&command).await;
    }

    /// Compares the whole state. P2: each grant has a greater token than all before it.
    async fn compare(&mut self) {
        let now = self.bench.now().await;
        let mut found = BTreeMap::new();
        let (mut tokens, mut used, mut summary) = (Vec::new(), 0, None);
        for pair in pairs(self.bench.command("HGETALL lock").await) {
            let (field, text) = pair.split_once('=').unwrap();
            let words: Vec<_> = text.split([' ', ',']).collect();
            if field == "!used" {
                summary = Some((words[0].parse::<u32>().unwrap(), words[1].parse::<usize>().unwrap()));
            }
            if field.starts_with('!') {
                continue;
            }
            let [ends, holds, seq, token, weight, limit, _] = words[..] else { panic!("{pair}") };
            let ended = ends.parse::<i64>().unwrap() <= now;
            let (weight, limit) = (weight.parse().unwrap(), limit.parse().unwrap());
            let held = Held { holds: holds.parse().unwrap(), seq: seq.parse().unwrap(), weight, limit, ended };
            used += held.weight;
            tokens.push(token.parse::<u64>().unwrap());
            found.insert(field.to_owned(), held);
        }
        let places = flatten(self.bench.command("LRANGE queue 0 -1").await);
        let shown: Vec<_> = self
            .oracle
            .queue
            .iter()
            .map(|place| format!("{}/{},{},3000/L", place.ticket(), place.weight, place.limit))
            .collect();
        let story = || self.story.join("\n");
        assert_eq!(found, self.oracle.holders, "holders\n{}", story());
        assert_eq!(places, shown, "the queue\n{}", story());
        assert_eq!(summary.unwrap_or_default(), (used, found.len()), "the summary\n{}", story());
        tokens.sort_unstable();
        let count = tokens.len();
        tokens.dedup();
        assert_eq!(tokens.len(), count, "two holds under one token\n{}", story());
        if let Some(token) = tokens.last() {
            let given = flatten(self.bench.command("GET tokens").await).concat().parse().unwrap();
            assert!(*token <= given && given >= self.last_token, "P2\n{}", story());
            self.last_token = given;
        }
    }
}

async fn run(bench: Bench, seed: u64, steps: u64) -> Bench {
    let mut run = Run { bench, oracle: Oracle::default(), random: Random::new(seed), last_token: 0, story: Vec::new() };
    run.bench.command("FLUSHALL").await;
    for step in 0..steps {
        let (found, expected) = run.step().await;
        assert_eq!(found, expected, "seed {seed}, step {step}\n{}", run.story.join("\n"));
        run.compare().await;
    }
    run.bench
}

#[tokio::test]
async fn p1_p3_random_calls_agree_with_a_weighted_queue() {
    limit_to(std::time::Duration::from_secs(600), async {
        let steps = from_env("FAIRLOCK_CALLS", 3000);
        for mut bench in Bench::each().await {
            // In runs of 500 calls. Each begins with no keys.
            let runs = if bench.is_real() { steps.div_ceil(2000) } else { steps.div_ceil(500) };
            for seed in 0..runs {
                bench = run(bench, seed, 500.min(steps)).await;
            }
        }
    })
    .await;
}

/// Turns a call of the lock into the same call of a semaphore of one.
fn of_one(call: &str) -> String {
    let (verb, rest) = call.split_once(' ').unwrap();
    let mut words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
    for word in &mut words {
        if let Some(place) = word.strip_prefix("place=") {
            *word = format!("place={}/1,1,3000/L", place.split('/').next().unwrap());
        }
        if let Some(rest) = word.strip_prefix("special=") {
            *word = format!("special={rest}:1");
        }
    }
    format!("shared/{verb} {}", words.join(" "))
}

/// Removes the words that only one kind answers: a semaphore reports whether a shrunken hold let others in, and how the
/// script judged its client.
fn of_both(words: &[String]) -> Vec<String> {
    let count = match words[0].as_str() {
        "held" if words.len() > 3 => 3,
        "held" => 2,
        // The remaining words name the holder of a lock; a shared name may have several.
        "queued" => 5,
        "busy" => 2,
        _ => words.len(),
    };
    let mut kept = words[..count].to_vec();
    if kept[0] == "held" && count == 3 || kept[0] == "freed" || kept[0] == "busy" {
        // Tokens differ.
        kept.iter_mut().filter(|word| word.len() >= 16).for_each(|word| *word = "T".into());
    }
    if kept[0] == "queued" {
        // Both report the floor and the lease, but not the same ones.
        (kept[1], kept[2]) = ("T".into(), "*".into());
    }
    if kept[0] == "renewed" {
        kept.truncate(1);
    }
    kept
}

/// Returns the holder with its count and its seq, and the queue.
async fn held_and_queued(bench: &mut Bench) -> (Option<(String, String, String)>, Vec<String>) {
    let fields: BTreeMap<_, _> = pairs(bench.command("HGETALL lock").await)
        .into_iter()
        .map(|pair| pair.split_once('=').map(|(field, value)| (field.to_owned(), value.to_owned())).unwrap())
        .collect();
    let held = fields.iter().find(|(field, _)| !field.starts_with('!')).map(|(field, value)| {
        let mut words = value.split(' ');
        let grant = fields.get("!grant");
        // A record begins with the end of its lease.
        let holds = words.nth(grant.is_none().into()).unwrap().to_owned();
        let seq = grant.map_or_else(|| words.next(), |grant| grant.split(' ').next()).unwrap();
        (field.clone(), holds, seq.to_owned())
    });
    let places = flatten(bench.command("LRANGE queue 0 -1").await);
    let ticket = |place: &String| place.split('/').next().unwrap().to_owned();
    (held, places.iter().map(ticket).collect())
}

/// With one permit and weights of one, a semaphore is a lock.
#[tokio::test]
async fn a_semaphore_of_one_answers_as_a_lock_does() {
    limit_to(std::time::Duration::from_secs(600), async {
        let steps = from_env("FAIRLOCK_CALLS", 3000);
        let (mut lock, mut semaphore) = (Bench::one().await, Bench::one().await);
        let mut random = Random::new(7);
        let mut story = Vec::new();
        for step in 0..steps {
            if step % 400 == 0 {
                lock.command("FLUSHALL").await;
                semaphore.command("FLUSHALL").await;
                story.clear();
            }
            let mut below = |bound: u64| random.below(bound) as usize;
            let (owner, seq) = (OWNERS[below(9)], 1 + below(8));
            let client = client_of(owner);
            let (holder, queue) = held_and_queued(&mut lock).await;
            let one_of_them = || holder.as_ref().map_or(owner, |(owner, ..)| owner.as_str());
            let call = match below(100) {
                0..35 => format!("acquire owner={owner} seq={seq}"),
                35..45 => format!("acquire owner={owner} seq={seq} mode=0"),
                45..52 => format!("acquire owner={} seq={seq} mode=1:@", one_of_them()),
                52..70 => format!("release owner={} seq={}", one_of_them(), seq + 2),
                70..75 => format!("release owner={} seq={seq} special=1:@", one_of_them()),
                75..85 => {
                    let ticket = queue.get(below(6)).cloned().unwrap_or(format!("{owner}:{seq}"));
                    let (owner, seq) = ticket.rsplit_once(':').unwrap();
                    format!("leave owner={owner} seq={seq} place={ticket}/3000/L")
                }
                85..90 => format!("renew owner={owner} token=@ lease=30000"),
                90..95 => format!("poll caller={client} waits={}", below(2)),
                95..97 => "expire".into(),
                _ => format!("dead {client}"),
            };
            story.push(call.clone());
            if call == "expire" || call.starts_with("dead") {
                for bench in [&mut lock, &mut semaphore] {
                    if call == "expire" {
                        bench.command("DEL lock").await;
                    } else if !queue.is_empty() {
                        bench.prepare(&call).await;
                    }
                }
                continue;
            }
            let token = lock.lock_token().await.unwrap_or("7".into());
            let record = flatten(semaphore.command(&format!("HGET lock {}", one_of_them())).await).concat();
            let shared_token = record.split(' ').nth(3).unwrap_or("7").to_owned();
            let answers = (
                lock.raw_call(&call.replace('@', &token)).await.unwrap(),
                semaphore.raw_call(&of_one(&call).replace('@', &shared_token)).await.unwrap(),
            );
            let story = || format!("step {step}\n{}\n{answers:?}", story.join("\n"));
            if call.starts_with("poll") {
                // More, known, places and first.
                assert_eq!(answers.0[1..5], answers.1[1..5], "{}", story());
            } else {
                assert_eq!(of_both(&answers.0), of_both(&answers.1), "{}", story());
            }
            assert_eq!(held_and_queued(&mut lock).await, held_and_queued(&mut semaphore).await, "{}", story());
        }
    })
    .await;
}
