//! The names of keys, channels and tickets.
//!
//! A lock's keys are `<prefix>:{n:NAME}` and that with a suffix. The hash tag is `n:` and the name up to its first `}`.
//! It is never empty and the same for all keys of a name, so a cluster keeps them in one slot. No two names share a
//! key: only the lock key ends with `}`, and the ending of each suffix identifies it. This needs a prefix without
//! braces, which the options check.

use std::sync::Arc;
use std::time::Duration;

use super::glob;

/// The longest name of a lock, in bytes.
pub const LONGEST_NAME: usize = 1024;

/// The keys of one lock.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    pub name: String,
    pub lock: Arc<str>,
    pub queue: String,
    pub deadlines: String,
    pub tokens: String,
}

impl Keys {
    pub fn new(prefix: &str, name: &str) -> Self {
        // `concat` allocates once; `format!` would grow each text two or three times, for every lock that is named.
        let lock = [prefix, ":{n:", name, "}"].concat();
        let with = |suffix| [&*lock, suffix].concat();
        let [queue, deadlines, tokens] = [":queue", ":deadlines", ":token"].map(with);
        Self { name: name.to_owned(), queue, deadlines, tokens, lock: lock.into() }
    }

    /// The keys of the lock with this key. `None`: it has another prefix.
    pub fn of_lock(prefix: &str, lock: &str) -> Option<Self> {
        Kind::Lock.name_in(prefix, lock).map(|name| Self::new(prefix, name))
    }

    /// The tombstone of one owner (R3).
    pub fn tombstone(&self, owner: &str) -> String {
        [&*self.lock, ":tombstone:", owner].concat()
    }
}

/// A key by which a lock is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is there while the lock is held.
    Lock,
    /// It is there while the lock is waited for.
    Queue,
}

impl Kind {
    /// The name of the lock. `None`: it is another kind of key, or of another prefix.
    pub fn name_in<'k>(self, prefix: &str, key: &'k str) -> Option<&'k str> {
        let named = key.strip_prefix(prefix)?.strip_prefix(":{n:")?;
        match self {
            Self::Lock => named.strip_suffix('}'),
            Self::Queue => named.strip_suffix("}:queue"),
        }
    }
}

/// The pattern of the keys of all locks whose names begin so, as SCAN takes it.
pub fn pattern(prefix: &str, start: &str) -> String {
    format!("{}:{{n:{}*", glob::escape(prefix), glob::escape(start))
}

/// What `boot.lua` keeps, for all locks of the prefix.
pub fn boot(prefix: &str) -> String {
    // Every other key has a tag that begins with `n:`.
    format!("{prefix}:{{boot}}")
}

/// The name of an attempt in the queue.
pub fn ticket(owner: &str, seq: u64) -> String {
    format!("{owner}:{seq}")
}

/// The terms of a wait: how long a grant to it lasts until it is confirmed, and the label of the call.
pub fn terms(grant_ttl: Duration, label: &str) -> String {
    format!("{}/{label}", grant_ttl.as_millis())
}

/// The label in these terms.
pub fn label_of(terms: &str) -> &str {
    terms.split_once('/').map_or("", |(_, label)| label)
}

/// A place in the queue: the ticket and its terms.
pub fn place(owner: &str, seq: u64, terms: &str) -> String {
    // No ticket has a `/` in it. So the scripts find where it ends, and the label may have any text.
    format!("{owner}:{seq}/{terms}")
}

/// The prefix of the channels for grants.
pub fn channel_prefix(prefix: &str) -> String {
    // Without a hash tag: a channel belongs to a client, which uses it for all of its locks.
    format!("{prefix}:wake:")
}

#[cfg(test)]
mod tests {
    use super::{Keys, Kind, boot};
    use std::collections::HashSet;

    #[test]
    fn hostile_names_share_a_tag_and_no_key() {
        let names = [
            "a",
            "{}",
            "}x",
            "{",
            "}",
            "a}b",
            "a}:queue",
            "a}:tombstone:o",
            "{n:a}",
            "n:a",
            "boot",
            "ü🦀",
            " ",
            "a\r\nb",
            "a\0b",
        ];
        let mut seen = HashSet::from([boot("fairlock")]);
        for name in names {
            let keys = Keys::new("fairlock", name);
            let tombstone = keys.tombstone("0:1");
            assert_eq!(Keys::of_lock("fairlock", &keys.lock).as_ref(), Some(&keys), "{name:?}");
            assert_eq!(Kind::Queue.name_in("fairlock", &keys.queue), Some(name));
            for other in [&keys.deadlines, &keys.tokens, &keys.tombstone("0:1")] {
                assert_eq!(Kind::Lock.name_in("fairlock", other), None);
                assert_eq!(Kind::Queue.name_in("fairlock", other), None);
            }
            let all = [keys.lock.to_string(), keys.queue, keys.deadlines, keys.tokens, tombstone];
            let tags: HashSet<_> = all.iter().map(|key| tag(key)).collect();
            assert_eq!(tags.len(), 1, "{name:?}");
            for key in all {
                assert!(seen.insert(key.clone()), "{key:?} belongs to two names");
            }
        }
    }

    /// What Redis hashes: between the first `{` and the first `}` after it, if that is not empty.
    fn tag(key: &str) -> String {
        let inside = &key[key.find('{').unwrap() + 1..];
        let tag = &inside[..inside.find('}').unwrap()];
        assert!(!tag.is_empty());
        tag.to_owned()
    }
}
