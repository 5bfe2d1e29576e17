//! The keys of one shared name on the server.

use std::collections::{BTreeMap, BTreeSet};

use fairlock::EmbeddedServer;

use crate::keys::{ask, client_of, frozen_until, server_ms};

/// A record of the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub holds: u32,
    pub attempt: u64,
    pub token: u64,
    /// Server time, ms.
    pub ends: i64,
    pub weight: u32,
    pub limit: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub owner: String,
    pub seq: u64,
    pub weight: u32,
    pub limit: u32,
    /// Its client's deadline, server time in ms. Negative: unreachable. 0: none.
    pub until: i64,
    /// The same with a forgiven silence.
    pub lives_until: i64,
    /// False if its ticket has left.
    pub has_ticket: bool,
}

impl Place {
    pub fn client(&self) -> &str {
        client_of(&self.owner)
    }

    pub fn is_of(&self, owner: &str, seq: u64) -> bool {
        self.owner == owner && self.seq == seq
    }
}

#[derive(Debug, Clone, Default)]
pub struct Keys {
    pub records: BTreeMap<String, Record>,
    /// The sum of the weights and the number of holders, as the hash states them.
    pub used: Option<(u32, u32)>,
    /// Until when the hash lives, in server ms.
    pub lives_until: i64,
    pub places: Vec<Place>,
    pub limit: Option<u32>,
    pub frozen_until: i64,
}

impl Keys {
    pub fn of(nodes: &[EmbeddedServer], name: &str) -> Self {
        let (queue, deadlines, limit) = (format!("{name}:queue"), format!("{name}:deadlines"), format!("{name}:limit"));
        let mut keys = Self {
            limit: ask(nodes, &["GET", &limit]).first().and_then(|limit| limit.parse().ok()),
            lives_until: nodes.first().map_or(0, server_ms)
                + ask(nodes, &["PTTL", name]).first().map_or(0, |left| left.parse().unwrap_or(0)),
            frozen_until: nodes.first().map(frozen_until).unwrap_or_default(),
            ..Self::default()
        };
        for field in ask(nodes, &["HGETALL", name]).chunks(2) {
            let words: Vec<_> = field[1].split([' ', ',', '/']).collect();
            let number = |index: usize| words.get(index).and_then(|word: &&str| word.parse::<u64>().ok()).unwrap_or(0);
            if !field[0].starts_with('!') {
                let record = Record {
                    ends: number(0) as i64,
                    holds: number(1) as u32,
                    attempt: number(2),
                    token: number(3),
                    weight: number(4) as u32,
                    limit: number(5) as u32,
                };
                keys.records.insert(field[0].clone(), record);
            } else if field[0] == "!used" {
                keys.used = Some((number(0) as u32, number(1) as u32));
            }
        }
        let places = ask(nodes, &["LRANGE", &queue, "0", "-1"]);
        // `<owner>:<seq>/<weight>,<limit>,<grant_ttl>/<label>`
        let parsed: Vec<_> = places
            .iter()
            .filter_map(|place| {
                let mut parts = place.splitn(3, '/');
                let (owner, seq) = parts.next()?.rsplit_once(':')?;
                let mut terms = parts.next()?.split(',');
                let mut number = || terms.next().and_then(|word| word.parse::<u32>().ok());
                let (weight, limit) = (number()?, number()?);
                let (owner, seq) = (owner.to_owned(), seq.parse().ok()?);
                Some(Place { owner, seq, weight, limit, until: 0, lives_until: 0, has_ticket: false })
            })
            .collect();
        if parsed.is_empty() {
            return keys;
        }
        let tickets: Vec<_> = parsed.iter().map(|place| format!("{}:{}", place.owner, place.seq)).collect();
        let clients: BTreeSet<_> = parsed.iter().map(|place| place.client().to_owned()).collect();
        let score = |members: Vec<&str>| ask(nodes, &[vec!["ZMSCORE", deadlines.as_str()], members].concat());
        let scores = score(tickets.iter().map(String::as_str).collect());
        let untils = score(clients.iter().map(String::as_str).collect());
        let untils: BTreeMap<_, _> =
            clients.into_iter().zip(untils).map(|(client, at)| (client, at.parse().unwrap_or(0))).collect();
        let notes = score(vec!["!forgiven", "!spent"]);
        let note = |index: usize| notes.get(index).and_then(|at| at.parse::<i64>().ok()).unwrap_or(0);
        let (forgiven, spent) = (note(0), note(1));
        keys.places = parsed
            .into_iter()
            .zip(scores)
            .map(|(place, score)| {
                let until: i64 = untils.get(place.client()).copied().unwrap_or(0);
                let deadline = until.abs();
                let lives_until = if deadline >= spent { deadline.max(forgiven) } else { deadline };
                Place { until, lives_until, has_ticket: score == "inf", ..place }
            })
            .collect();
        keys
    }

    /// The sum of the weights, and the number, of holders whose lease has not ended.
    pub fn living(&self, now: i64) -> (u32, usize) {
        let living = || self.records.values().filter(move |record| record.ends > now);
        (living().map(|record| record.weight).sum(), living().count())
    }

    pub fn under(&self, token: u64) -> Option<(&String, &Record)> {
        self.records.iter().find(|(_, record)| record.token == token)
    }
}
