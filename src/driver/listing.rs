//! Lists, page by page, all names with a holder, a waiter, or a number of permits set for all clients.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use fairlock_proto::keys::{self, Kind, LONGEST_NAME, TRACES, name_in};
use fairlock_proto::reply::Malformed;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use crate::store::error::{Fault, NameError, RequestError};
use crate::store::glob;
use crate::store::server::Told;

/// About how many keys one SCAN reads. The server needs 0.2 ms for them, and serves no other request in that time.
const KEYS_IN_A_PAGE: &str = "250";

/// How many names to remember, in 18 MB at most, so that the listing has each only once.
const REMEMBERED: usize = 1 << 20;

/// A name in use, from [`LockClient::list`](crate::LockClient::list).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Listed {
    /// The kind of lock that the name is used as. The listing may have the same name once for each kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
}

/// The progress of a listing.
pub struct Listing {
    /// The servers still to list, the present one first.
    contexts: VecDeque<Arc<Context>>,
    /// How many of several servers may still fail: a majority knows each hold.
    may_fail: usize,
    glob: String,
    /// The pattern for the server: the literal start of the glob. A pattern with many stars could keep it busy for
    /// long.
    pattern: String,
    /// The seats still to scan, of the server or the masters of a cluster. `None` before the first page there.
    seats: Option<VecDeque<u16>>,
    place: Option<NextPage>,
    names: VecDeque<Listed>,
    seen: Seen,
}

/// The position between two pages of one server.
struct NextPage {
    cursor: String,
    /// Only the server that made a cursor understands it, and after a reconnect another one may answer.
    connection: CancellationToken,
}

impl Listing {
    /// Lists one server, or several servers with the same options.
    pub fn new(contexts: impl Iterator<Item = Arc<Context>>, glob: &str) -> Self {
        let contexts: VecDeque<_> = contexts.collect();
        let prefix = contexts.front().map_or("", |context| &context.options().prefix);
        let pattern = keys::pattern(&glob::escape(prefix), &glob::escape(&glob::literal_start(glob)));
        let (seats, names, may_fail) = (None, VecDeque::new(), contexts.len().saturating_sub(1) / 2);
        Self { contexts, may_fail, glob: glob.to_owned(), pattern, seats, place: None, names, seen: Seen::default() }
    }

    /// The next name, or `None` at the end. An error also ends the listing.
    pub async fn next(&mut self) -> Result<Option<Listed>, RequestError> {
        let outcome = self.find_next().await;
        if outcome.is_err() {
            self.contexts.clear();
        }
        outcome
    }

    async fn find_next(&mut self) -> Result<Option<Listed>, RequestError> {
        loop {
            if let Some(name) = self.names.pop_front() {
                return Ok(Some(name));
            }
            let Some(context) = self.contexts.front().cloned() else { return Ok(None) };
            if self.glob.len() > LONGEST_NAME {
                return Err(RequestError::Name(NameError::TooLong(self.glob.len())));
            }
            let seats = self.seats.get_or_insert_with(|| context.runner.store.seats().into());
            let Some(seat) = seats.front().copied() else {
                self.go_on();
                continue;
            };
            match self.read_page(&context, seat).await {
                Err(error @ (RequestError::Closed | RequestError::RuntimeGone)) => return Err(error),
                Err(_) if self.may_fail > 0 => {
                    self.may_fail -= 1;
                    self.go_on();
                }
                outcome => outcome?,
            }
        }
    }

    /// Goes on with the next server.
    fn go_on(&mut self) {
        self.contexts.pop_front();
        (self.seats, self.place) = (None, None);
    }

    async fn read_page(&mut self, context: &Context, seat: u16) -> Result<(), RequestError> {
        let runner = &context.runner;
        let server = runner.store.server(seat).ok_or_else(broken_off)?;
        let cursor = self.place.as_ref().map_or("0", |place| &place.cursor);
        let scan = ["SCAN", cursor, "MATCH", &self.pattern, "COUNT", KEYS_IN_A_PAGE];
        let (told, _) = context.ask(runner.ask(server, &scan)).await?;
        // After the answer, because the client notices the end of a connection before it has a new one.
        if self.place.as_ref().is_some_and(|place| place.connection.is_cancelled()) {
            return Err(broken_off());
        }
        let Told { texts, connection } = told;
        let mut texts = texts.into_iter().map(|text| String::from_utf8(text).ok());
        let cursor = texts.next().flatten().ok_or_else(malformed)?;
        // Keys of locks are valid UTF-8.
        let prefix = &context.options().prefix;
        texts.flatten().for_each(|key| self.keep(prefix, &key));
        self.place = (cursor != "0").then_some(NextPage { cursor, connection });
        if self.place.is_none()
            && let Some(seats) = &mut self.seats
        {
            seats.pop_front();
        }
        Ok(())
    }

    /// Keeps the name if this key shows that it is in use. The server could filter the keys by type, but that would
    /// cost it three times as much as sending them.
    fn keep(&mut self, prefix: &str, key: &str) {
        if let Some((kind, name)) = TRACES.iter().find_map(|end| name_in(prefix, key, end))
            && (1..=LONGEST_NAME).contains(&name.len())
            && glob::matches(self.glob.as_bytes(), name.as_bytes())
            && self.seen.is_new(kind, name)
        {
            self.names.push_back(Listed { kind, name: name.to_owned() });
        }
    }
}

fn broken_off() -> RequestError {
    RequestError::Unanswered(Arc::new(Fault::Disconnected))
}

fn malformed() -> RequestError {
    RequestError::Unanswered(Arc::new(Malformed("a reply to SCAN without a cursor".into())))
}

/// Names already listed: SCAN may return a key twice, and a name may have several keys.
#[derive(Default)]
struct Seen {
    /// Hashes, because names may be long. Among a million names two have the same hash once in 30 million lists.
    hashes: HashSet<u64>,
    state: RandomState,
}

impl Seen {
    fn is_new(&mut self, kind: Kind, name: &str) -> bool {
        let hash = self.state.hash_one((kind, name));
        // A longer list may repeat a name.
        if self.hashes.len() >= REMEMBERED { !self.hashes.contains(&hash) } else { self.hashes.insert(hash) }
    }
}
