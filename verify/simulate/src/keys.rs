//! The keys of one lock on the server after a script.

use std::collections::{BTreeMap, BTreeSet};

use fairlock::EmbeddedServer;
use fairlock::simulation::command;

#[derive(Debug, Default)]
pub struct Keys {
    /// The owners in the hash: one at most, unless the server refused a script half-way.
    pub owners: Vec<String>,
    /// The number of holds of the last of them.
    pub holds: u32,
    /// The token of the grant; 0: free.
    pub token: u64,
    /// ms; -1: none.
    pub lease: i64,
    pub places: Vec<Place>,
    /// The deadlines, in ms, of the clients that have places. Negative: unreachable.
    pub clients: BTreeMap<String, i64>,
    /// Server time, ms: until then no client counts as dead. 0: no forgiven silence.
    pub forgiven_until: i64,
    /// Except for clients with an earlier deadline: they already got this for an earlier silence.
    pub spent: i64,
    /// The furthest deadline of a client, in ms, with a place or without.
    pub last_heard: i64,
    /// The number of tickets in the sorted set.
    pub tickets: usize,
    /// ms.
    pub queue_lifetime: i64,
    pub deadlines_lifetime: i64,
    /// Server time, ms: until then the server grants no lock (`strict_restart`). 0: without a record.
    pub frozen_until: i64,
}

/// The record of boot.lua.
pub const BOOT: &str = "fairlock:{boot}";

/// `<ticket>/<grant_ttl>/<label>`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub ticket: String,
    pub grant_ttl: i64,
    pub has_ticket: bool,
}

/// The key of the lock with this name, or of the semaphore (`sem0`), or of the read-write lock (`rw0`).
pub fn key_of(name: &str) -> String {
    let letter = name.chars().next().filter(|letter| matches!(letter, 's' | 'r')).unwrap_or('n');
    format!("fairlock:{{{letter}:{name}}}")
}

pub fn name_of(lock_key: &str) -> &str {
    lock_key.trim_start_matches("fairlock:{n:").trim_end_matches('}')
}

pub fn client_of(ticket_or_owner: &str) -> &str {
    ticket_or_owner.split(':').next().unwrap_or_default()
}

/// Whether this owner belongs to a handle: `<client>-<seq>:0`.
pub fn is_of_a_handle(owner: &str) -> bool {
    client_of(owner).contains('-') && owner.ends_with(":0")
}

/// The owner in the text of a handle: `fairlock1_<prefix>_<name>_<owner>_…`, with these parts in hex.
pub fn owner_in(handle: &str) -> String {
    let hex = handle.split('_').nth(3).unwrap_or_default();
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).filter_map(|pair| char::from_u32(16 * pair[0] + pair[1])).collect()
}

pub fn ticket_of(place: &str) -> &str {
    place.split_once('/').map_or(place, |(ticket, _)| ticket)
}

pub fn grant_ttl_of(place: &str) -> i64 {
    place.split('/').nth(1).and_then(|ms| ms.parse().ok()).unwrap_or_default()
}

/// Server time, ms.
pub fn frozen_until(server: &EmbeddedServer) -> i64 {
    let record = command(server, &["GET", BOOT]).concat();
    record.split(' ').next().and_then(|ms| ms.parse().ok()).unwrap_or_default()
}

/// The time by its clock.
pub fn server_ms(server: &EmbeddedServer) -> i64 {
    let time: Vec<i64> = command(server, &["TIME"]).iter().filter_map(|word| word.parse().ok()).collect();
    if let [seconds, micros] = time[..] { seconds * 1000 + micros / 1000 } else { 0 }
}

/// Runs a command about one key at the node that has it. While a slot moves, the keys of a lock are at two nodes.
/// Without nodes the result is empty.
pub fn ask(nodes: &[EmbeddedServer], words: &[&str]) -> Vec<String> {
    let has = |node: &&EmbeddedServer| command(node, &["EXISTS", words[1]]) == ["1"];
    let node = if nodes.len() > 1 { nodes.iter().find(has) } else { None };
    node.or(nodes.first()).map(|node| command(node, words)).unwrap_or_default()
}

impl Keys {
    /// Without nodes: no keys.
    pub fn of(nodes: &[EmbeddedServer], lock: &str) -> Self {
        let Some(first) = nodes.first() else { return Self::default() };
        let (queue, deadlines) = (format!("{lock}:queue"), format!("{lock}:deadlines"));
        let command = |words: &[&str]| ask(nodes, words);
        let number = |words: &[&str]| command(words).first().and_then(|word| word.parse::<i64>().ok());
        let mut keys = Self {
            lease: number(&["PTTL", lock]).unwrap_or(-2),
            tickets: number(&["ZCOUNT", &deadlines, "inf", "inf"]).unwrap_or(0) as usize,
            queue_lifetime: number(&["PTTL", &queue]).unwrap_or(-2),
            deadlines_lifetime: number(&["PTTL", &deadlines]).unwrap_or(-2),
            frozen_until: frozen_until(first),
            ..Self::default()
        };
        let members = command(&["ZRANGE", &deadlines, "0", "-1"]);
        let of_clients = members.iter().filter(|member| !member.contains(':') && !member.starts_with('!'));
        let words: Vec<_> =
            ["ZMSCORE", &deadlines, "!forgiven", "!spent"].into_iter().chain(of_clients.map(String::as_str)).collect();
        let mut scores = command(&words).into_iter().map(|score| score.parse::<i64>().unwrap_or_default());
        keys.forgiven_until = scores.next().unwrap_or_default();
        keys.spent = scores.next().unwrap_or_default();
        keys.last_heard = scores.map(i64::abs).max().unwrap_or_default();
        for field in command(&["HGETALL", lock]).chunks(2) {
            if field[0] == "!grant" {
                keys.token = field[1].split(' ').nth(1).and_then(|token| token.parse().ok()).unwrap_or(0);
            } else {
                keys.owners.push(field[0].clone());
                keys.holds = field[1].parse().unwrap_or(0);
            }
        }
        let places = command(&["LRANGE", &queue, "0", "-1"]);
        if places.is_empty() {
            return keys;
        }
        let tickets: Vec<_> = places.iter().map(|place| ticket_of(place)).collect();
        let clients: BTreeSet<_> = places.iter().map(|place| client_of(place)).collect();
        let words: Vec<_> = ["ZMSCORE", &deadlines].into_iter().chain(tickets.iter().copied()).collect();
        let scores = command(&words);
        let with_scores = places.iter().zip(&scores);
        keys.places = with_scores
            .map(|(place, score)| Place {
                ticket: ticket_of(place).to_owned(),
                grant_ttl: grant_ttl_of(place),
                has_ticket: score == "inf",
            })
            .collect();
        let words: Vec<_> = ["ZMSCORE", &deadlines].into_iter().chain(clients.iter().copied()).collect();
        let scores = command(&words);
        let with_scores = clients.into_iter().zip(scores);
        keys.clients = with_scores.filter_map(|(client, at)| Some((client.to_owned(), at.parse().ok()?))).collect();
        keys
    }

    /// Each place has its ticket, and each ticket has one place. `rounded`: by how many ms their lifetimes may differ.
    pub fn agree(&self, rounded: i64) -> bool {
        let distinct: BTreeSet<_> = self.places.iter().map(|place| &place.ticket).collect();
        let paired = self.places.iter().all(|place| place.has_ticket) && self.tickets == self.places.len();
        paired
            && distinct.len() == self.places.len()
            && (self.queue_lifetime - self.deadlines_lifetime).abs() <= rounded
    }
}
