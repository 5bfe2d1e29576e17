//! One run of a script: its keys and arguments.

use std::ops::Deref;
use std::time::Duration;

use super::admission::Priority;
use super::clock::millis;
use super::keys::Kind;
use super::script::Script;

/// One run of a script.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub script: &'static Script,
    /// KEYS; the first one is always the lock's own key.
    pub keys: &'a [&'a str],
    /// ARGV without the first one, which is the number of the request.
    pub args: &'a [Arg<'a>],
    /// Sent to a node of a cluster that is about to get the slot of the keys, after the node that has it
    /// answered ASK.
    pub asking: bool,
    /// The request's priority.
    pub priority: Priority,
}

impl<'a> Call<'a> {
    pub fn new(script: &'static Script, keys: &'a [&'a str], args: &'a [Arg<'a>]) -> Self {
        Self { script, keys, args, asking: false, priority: Priority::Urgent }
    }

    /// A run of a verb that has two scripts: one for locks, one for shared names.
    pub fn of(kind: Kind, [lock, shared]: [&'static Script; 2], keys: &'a [&'a str], args: &'a [Arg<'a>]) -> Self {
        Self::new(if kind.is_shared() { shared } else { lock }, keys, args)
    }

    pub fn asking(self) -> Self {
        Self { asking: true, ..self }
    }

    /// The key that decides which server is asked.
    pub fn lock_key(&self) -> &'a str {
        // Each script has the lock as its first key, so the default is never used.
        self.keys.first().copied().unwrap_or_default()
    }
}

/// The keys that are sent of those in a script's header. A key that is not needed is left out: a call pays for each of them,
/// and a user who may use the prefix only may not use an empty key.
pub struct SentKeys<'a> {
    keys: [&'a str; 7],
    count: usize,
}

impl<'a> SentKeys<'a> {
    pub fn of<const N: usize>(keys: [Option<&'a str>; N]) -> Self {
        let mut sent = Self { keys: [""; 7], count: 0 };
        for (slot, key) in sent.keys.iter_mut().zip(keys.into_iter().flatten()) {
            *slot = key;
            sent.count += 1;
        }
        sent
    }
}

impl<'a> Deref for SentKeys<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &[&'a str] {
        &self.keys[..self.count]
    }
}

/// A value of ARGV.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Text(&'a str),
    /// A text that ends with what the clients' channels begin with. The node that runs the script may add
    /// its own name, see `Connection::channel_tag`.
    Channel(&'a str),
    Int(i64),
}

/// The id of a node of a cluster, and a colon.
const LONGEST_TAG: usize = 41;

impl Arg<'_> {
    /// Its length as text, or a little more.
    pub fn len_at_most(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Channel(text) => text.len() + LONGEST_TAG,
            // As many as i64::MIN has, with its sign. Asking for a few bytes too many is cheaper than
            // counting.
            Self::Int(_) => 20,
        }
    }
}

/// A value of KEYS under its name in the script's header. The name is not sent: tests/house.rs reads
/// it in the source, and compares names and order with the header.
pub fn key<'a>(_name: &'static str, key: &'a str) -> &'a str {
    key
}

/// A value of ARGV under its name in the script's header, which is checked in the same way.
pub fn arg<'a>(_name: &'static str, value: impl Into<Arg<'a>>) -> Arg<'a> {
    value.into()
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        // No seq and no time comes near this bound. Tokens go as text.
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Arg<'_> {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<Duration> for Arg<'_> {
    fn from(duration: Duration) -> Self {
        Self::Int(millis(duration))
    }
}
