//! One name on its own server. The test builds its queue by hand, and measures each call of a script.

use std::collections::{BTreeSet, HashMap};

use redis::{Connection, Value, cmd, pipe};

use crate::Outcome;
use crate::script::text;
use crate::server::Server;

const SCRIPTS: [(&str, &str); 6] = [
    ("acquire", include_str!("../../../lua/acquire.lua")),
    ("force_unlock", include_str!("../../../lua/force_unlock.lua")),
    ("inspect", include_str!("../../../lua/inspect.lua")),
    ("leave", include_str!("../../../lua/leave.lua")),
    ("poll", include_str!("../../../lua/poll.lua")),
    ("release", include_str!("../../../lua/release.lua")),
];

/// waiter_ttl, max_waiters, token_ttl and the prefix of the channels. Under callgrind everything takes a hundred times
/// as long, and no client may time out because of that.
const SETTINGS: &str = "3600000 65536 86400000 fairlock:wake:";
const LIVES_MS: i64 = 3_600_000;
/// The lease of the lock, and of each grant.
const LEASE: &str = "3600000";
const NEVER: &str = "9999999999999999";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    Dead(usize),
    /// Alive by its deadline, but its connection is gone.
    Unreachable(usize),
    Living(usize),
}

impl Client {
    fn id(self) -> String {
        match self {
            Self::Dead(number) => format!("d{number:031x}"),
            Self::Unreachable(number) => format!("e{number:031x}"),
            Self::Living(number) => format!("f{number:031x}"),
        }
    }
}

/// A place in the queue.
#[derive(Clone, Copy)]
pub struct Place {
    pub client: Client,
    /// Whether it still has its ticket, that is, has not left.
    pub waits: bool,
}

pub struct Call {
    pub script: &'static str,
    pub cost: f64,
}

pub struct Queue {
    server: Server,
    redis: Connection,
    /// Subscribes to the channels of live clients.
    subscriber: Connection,
    hashes: HashMap<&'static str, String>,
    key: String,
    label: String,
    /// The number of the last place and of the last request.
    number: usize,
    newcomers: usize,
    pub calls: Vec<Call>,
    /// The cost of all calls of a hand-over, or of a pair, together.
    pub rounds: Vec<f64>,
}

impl Queue {
    /// Starts with a held lock.
    pub fn new(server: Server) -> Outcome<Self> {
        let (mut redis, subscriber) = (server.connection()?, server.connection()?);
        let mut hashes = HashMap::new();
        for (name, source) in SCRIPTS {
            hashes.insert(name, cmd("SCRIPT").arg("LOAD").arg(text(source, false)).query(&mut redis)?);
        }
        let (key, label) = ("fairlock:{n:orders}".to_owned(), "x".repeat(40));
        let (calls, rounds) = (Vec::new(), Vec::new());
        let mut queue = Self { server, redis, subscriber, hashes, key, label, number: 0, newcomers: 0, calls, rounds };
        queue.acquire(Client::Living(0), "")?;
        Ok(queue)
    }

    /// From now on, labels of places have the greatest length.
    pub fn label_at_length(&mut self) {
        self.label = "x".repeat(256);
    }

    /// Goes on with another held lock on the same server.
    pub fn begin_another(&mut self) -> Outcome<()> {
        self.key = "fairlock:{n:others}".to_owned();
        self.acquire(Client::Living(0), "").map(drop)
    }

    fn keys(&self, suffixes: &[&str]) -> Vec<String> {
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.key)).collect()
    }

    /// Adds places without measuring, and returns the number of the first one.
    pub fn fill(&mut self, places: &[Place]) -> Outcome<usize> {
        let first = self.number + 1;
        for part in places.chunks(500) {
            let (mut push, mut add) = (cmd("RPUSH"), cmd("ZADD"));
            push.arg(format!("{}:queue", self.key));
            add.arg(format!("{}:deadlines", self.key)).arg(0).arg("unused");
            for place in part {
                self.number += 1;
                push.arg(self.place(place.client, self.number));
                if place.waits {
                    add.arg("inf").arg(ticket(place.client, self.number));
                }
            }
            pipe().add_command(push).add_command(add).exec(&mut self.redis)?;
        }
        let clients: BTreeSet<_> = places.iter().map(|place| place.client).collect();
        self.hear(&clients.into_iter().collect::<Vec<_>>())?;
        for key in self.keys(&[":queue", ":deadlines"]) {
            cmd("PEXPIRE").arg(key).arg(LEASE).exec(&mut self.redis)?;
        }
        cmd("ZREM").arg(format!("{}:deadlines", self.key)).arg("unused").exec(&mut self.redis)?;
        Ok(first)
    }

    /// Sets the deadlines of clients, even if they have no places.
    pub fn hear(&mut self, clients: &[Client]) -> Outcome<()> {
        let (s, us): (i64, i64) = cmd("TIME").query(&mut self.redis)?;
        let now = s * 1000 + us / 1000;
        for part in clients.chunks(500) {
            let mut add = cmd("ZADD");
            add.arg(format!("{}:deadlines", self.key));
            for client in part {
                let is_dead = matches!(client, Client::Dead(_));
                add.arg(if is_dead { now - 1000 } else { now + LIVES_MS }).arg(client.id());
            }
            add.exec(&mut self.redis)?;
        }
        let living = clients.iter().filter(|client| matches!(client, Client::Living(_)));
        living.map(|client| client.id()).collect::<Vec<_>>().iter().try_for_each(|id| self.subscribe(id))
    }

    fn subscribe(&mut self, client: &str) -> Outcome<()> {
        let subscribe = cmd("SUBSCRIBE").arg(format!("fairlock:wake:{client}")).get_packed_command();
        self.subscriber.send_packed_command(&subscribe)?;
        self.subscriber.recv_response()?;
        Ok(())
    }

    /// Records that earlier searches have passed over this many places at the front.
    pub fn note(&mut self, passed: usize) -> Outcome<()> {
        cmd("ZADD").arg(format!("{}:deadlines", self.key)).arg(passed).arg("!skip").exec(&mut self.redis)?;
        Ok(())
    }

    fn place(&self, client: Client, number: usize) -> String {
        format!("{}/{LEASE}/{}", ticket(client, number), self.label)
    }

    /// Runs a script, and returns the words of its reply.
    fn call(&mut self, script: &'static str, keys: &[String], args: &[String]) -> Outcome<Vec<String>> {
        self.number += 1;
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(keys.len()).arg(keys).arg(self.number).arg(args);
        let (reply, cost) = self.server.cost(&call)?;
        self.calls.push(Call { script, cost });
        match reply {
            Value::Array(_) => Ok(Vec::new()),
            text => Ok(redis::from_redis_value::<String>(text)?.split(' ').map(str::to_owned).collect()),
        }
    }

    /// With an empty mode the request waits; with 0 it does not. Returns the status.
    pub fn acquire(&mut self, client: Client, mode: &str) -> Outcome<String> {
        self.acquire_as(&client.id(), mode)
    }

    fn acquire_as(&mut self, client: &str, mode: &str) -> Outcome<String> {
        let (owner, seq) = (format!("{client}:{}", self.number + 1), (self.number + 1).to_string());
        let keys = self.keys(&["", ":queue", ":deadlines", ":token", &format!(":tombstone:{owner}")]);
        let terms = format!("{LEASE}/{}", self.label);
        let mut args = [NEVER, &owner, &seq, LEASE, &terms, SETTINGS].map(str::to_owned).to_vec();
        args.extend((!mode.is_empty()).then(|| mode.to_owned()));
        let mut words = self.call("acquire", &keys, &args)?;
        Ok(words.swap_remove(0))
    }

    /// A new client asks for the lock.
    pub fn newcomer(&mut self, mode: &str) -> Outcome<String> {
        self.newcomers += 1;
        let id = format!("a{:031x}", self.newcomers);
        self.subscribe(&id)?;
        self.acquire_as(&id, mode)
    }

    /// Polls with the tickets of this many places from `first` on. Returns true if another poll should follow at once.
    pub fn poll(&mut self, client: Client, first: usize, tickets: usize) -> Outcome<bool> {
        let mut args = vec![client.id(), "1".to_owned(), SETTINGS.to_owned()];
        args.extend((first..first + tickets).map(|number| ticket(client, number)));
        self.send_poll(&args)
    }

    fn send_poll(&mut self, args: &[String]) -> Outcome<bool> {
        let keys = self.keys(&["", ":queue", ":deadlines", ":token"]);
        Ok(self.call("poll", &keys, args)?[4] == "1")
    }

    pub fn inspect(&mut self) -> Outcome<()> {
        let keys = self.keys(&["", ":queue", ":deadlines"]);
        self.call("inspect", &keys, &["100".to_owned()]).map(drop)
    }

    pub fn leave(&mut self, client: Client, number: usize) -> Outcome<()> {
        let owner = format!("{}:{number}", client.id());
        let keys = self.keys(&["", ":queue", ":deadlines", ":token", &format!(":tombstone:{owner}")]);
        let args = ["0".to_owned(), owner, number.to_string(), self.place(client, number), SETTINGS.to_owned()];
        self.call("leave", &keys, &args).map(drop)
    }

    pub fn force_unlock(&mut self) -> Outcome<()> {
        let keys = self.keys(&["", ":queue", ":deadlines", ":token"]);
        let args = [NEVER, &Client::Living(0).id(), "", SETTINGS].map(str::to_owned);
        let words = self.call("force_unlock", &keys, &args)?;
        self.pass_on(words.last().is_some_and(|more| more == "1"), false)
    }

    /// Polls as a client without waiters until the server has looked at everything. With `newcomers`, a client joins
    /// before each poll.
    fn pass_on(&mut self, mut more: bool, newcomers: bool) -> Outcome<()> {
        while more {
            if newcomers {
                self.newcomer("")?;
            }
            more = self.send_poll(&[Client::Living(0).id(), "0".to_owned(), SETTINGS.to_owned()])?;
        }
        Ok(())
    }

    /// The holder releases the lock, and the next in line gets it.
    pub fn hand_over(&mut self, newcomers: bool) -> Outcome<()> {
        let begun = self.calls.len();
        let more = self.release()?;
        self.pass_on(more, newcomers)?;
        // Newcomers' acquires are not part of the hand-over.
        let own = self.calls[begun..].iter().filter(|call| call.script != "acquire");
        self.rounds.push(own.map(|call| call.cost).sum());
        Ok(())
    }

    /// Returns true if polls should follow.
    pub fn release(&mut self) -> Outcome<bool> {
        let owners: Vec<String> = cmd("HKEYS").arg(&self.key).query(&mut self.redis)?;
        let owner = owners.into_iter().find(|field| field != "!grant").ok_or("nobody has the lock")?;
        let keys = self.keys(&["", ":queue", ":deadlines", ":token"]);
        let args = [owner, (self.number + 1).to_string(), SETTINGS.to_owned()];
        let words = self.call("release", &keys, &args)?;
        Ok(words.last().is_some_and(|more| more == "1"))
    }

    /// Takes and releases a free lock.
    pub fn pair(&mut self) -> Outcome<()> {
        let begun = self.calls.len();
        let outcome = self.acquire(Client::Living(0), "")?;
        if outcome != "held" {
            return Err(format!("the lock was to be free: {outcome}").into());
        }
        self.release()?;
        self.rounds.push(self.calls[begun..].iter().map(|call| call.cost).sum());
        Ok(())
    }

    pub fn len(&mut self) -> Outcome<usize> {
        Ok(cmd("LLEN").arg(format!("{}:queue", self.key)).query(&mut self.redis)?)
    }
}

fn ticket(client: Client, number: usize) -> String {
    format!("{}:{number}:{number}", client.id())
}
