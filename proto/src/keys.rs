//! The names of keys, channels and tickets.
//!
//! A lock's keys are `<prefix>:{n:NAME}` and the same with a suffix. A semaphore's keys begin with `{s:`, and a
//! read-write lock's with `{r:`. The hash tag is the letter of the kind, `:`, and the name up to its first `}`. It is
//! never empty, and all keys of a name of one kind have it, so a cluster keeps them in one slot. No two names share a
//! key: only the lock key ends with `}`, and the ending of each suffix identifies it. This needs a prefix without
//! braces, which the options check.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest name of a lock, in bytes.
pub const LONGEST_NAME: usize = 1024;

/// The kind of a name. A lock, a semaphore and a read-write lock of one name are independent of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One owner at a time.
    Lock,
    /// Holders whose weights together do not exceed a limit.
    Semaphore,
    /// A semaphore of 1,024 units, of which a reader takes one and a writer all.
    RwLock,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Lock, Self::Semaphore, Self::RwLock];

    /// Whether several owners may hold the name at a time. Then the scripts are the ones of `lua/shared`.
    #[doc(hidden)]
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Lock)
    }

    /// The letter before the name in its keys.
    const fn letter(self) -> &'static str {
        match self {
            Self::Lock => "n",
            Self::Semaphore => "s",
            Self::RwLock => "r",
        }
    }

    /// Its word in the text of a handle.
    #[doc(hidden)]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::RwLock => "rw_lock",
        }
    }

    #[doc(hidden)]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "a lock",
            Self::Semaphore => "a semaphore",
            Self::RwLock => "a read-write lock",
        })
    }
}

/// How much of a shared name a caller takes, and its own client's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// At least 1.
    pub weight: u32,
    /// The most that the weights of all holders, with this one, may come to. At least as much as the weight.
    pub limit: u32,
}

/// The units of a read-write lock, and the most holders of any shared name.
pub const UNITS: u32 = 1024;

impl Share {
    /// A lock, whose weight the server does not count.
    pub const LOCK: Self = Self { weight: 1, limit: 1 };
    pub const READER: Self = Self { weight: 1, limit: UNITS };
    pub const WRITER: Self = Self { weight: UNITS, limit: UNITS };
}

/// The keys of one name of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    pub kind: Kind,
    pub name: String,
    pub lock: Arc<str>,
    pub queue: String,
    pub deadlines: String,
    pub tokens: String,
    /// The key of the limit that wins over the clients' limits, see `set_limit`. Empty for a lock.
    pub limit: String,
}

impl Keys {
    /// The keys of a lock.
    pub fn new(prefix: &str, name: &str) -> Self {
        Self::of(Kind::Lock, prefix, name)
    }

    pub fn of(kind: Kind, prefix: &str, name: &str) -> Self {
        // `concat` allocates once; `format!` would grow each text two or three times, for every lock that a caller
        // names.
        let lock = [prefix, ":{", kind.letter(), ":", name, "}"].concat();
        let with = |suffix| [&*lock, suffix].concat();
        let [queue, deadlines, tokens] = [":queue", ":deadlines", ":token"].map(with);
        let limit = if kind.is_shared() { with(":limit") } else { String::new() };
        Self { kind, name: name.to_owned(), queue, deadlines, tokens, limit, lock: lock.into() }
    }

    /// The keys of the name with this lock key, or `None` if it has another prefix.
    pub fn of_lock(prefix: &str, lock: &str) -> Option<Self> {
        name_in(prefix, lock, TRACES[0]).map(|(kind, name)| Self::of(kind, prefix, name))
    }

    /// The tombstone of one owner (R3).
    pub fn tombstone(&self, owner: &str) -> String {
        [&*self.lock, ":tombstone:", owner].concat()
    }
}

/// The endings of the keys that show a name in use: it has a holder, it has waiters, or it has a limit for all
/// clients.
pub const TRACES: [&str; 3] = ["}", "}:queue", "}:limit"];

/// The name in a key with this ending, and its kind. `None` for another kind of key or another prefix.
pub fn name_in<'k>(prefix: &str, key: &'k str, end: &str) -> Option<(Kind, &'k str)> {
    let tag = key.strip_prefix(prefix)?.strip_prefix(":{")?.strip_suffix(end)?;
    let (letter, name) = tag.split_once(':')?;
    Some((Kind::ALL.into_iter().find(|kind| kind.letter() == letter)?, name))
}

/// The pattern for SCAN that matches the keys of all names with this beginning. In both texts the caller has escaped
/// the characters that are special in a pattern.
pub fn pattern(prefix: &str, start: &str) -> String {
    format!("{prefix}:{{?:{start}*")
}

/// The key of the record that `boot.lua` keeps for all names of the prefix.
pub fn boot(prefix: &str) -> String {
    // Every other key has a tag with a `:` after its first letter.
    format!("{prefix}:{{boot}}")
}

/// A place in the queue: the ticket and its terms.
pub fn place(owner: &str, seq: u64, terms: &str) -> String {
    // No ticket contains a `/`. So the scripts find where it ends, and the label may have any text.
    format!("{}/{terms}", ticket(owner, seq))
}

/// The name of an attempt in the queue.
pub fn ticket(owner: &str, seq: u64) -> String {
    format!("{owner}:{seq}")
}

/// The terms of a wait: how long a grant to it lasts until the client confirms it, and the label of the call.
pub fn terms(first_lease: Duration, label: &str) -> String {
    format!("{}/{label}", first_lease.as_millis())
}

/// The terms of a wait for a share: its weight, its limit, and then the same terms as for a lock.
pub fn shared_terms(share: Share, first_lease: Duration, label: &str) -> String {
    format!("{},{},{}", share.weight, share.limit, terms(first_lease, label))
}

/// The share in these terms, or `None` if they are a lock's.
pub fn share_of(terms: &str) -> Option<Share> {
    let mut numbers = terms.split(',').map(str::parse);
    Some(Share { weight: numbers.next()?.ok()?, limit: numbers.next()?.ok()? })
}

/// The label in these terms, of either form.
pub fn label_of(terms: &str) -> &str {
    terms.split_once('/').map_or("", |(_, label)| label)
}

/// The prefix of the channels for grants.
pub fn channel_prefix(prefix: &str) -> String {
    // Without a hash tag: a channel belongs to a client, which uses it for all of its locks.
    format!("{prefix}:wake:")
}

#[cfg(test)]
mod tests {
    use super::{Keys, Kind, Share, TRACES, boot, channel_prefix, label_of, name_in, pattern, share_of, shared_terms};
    use std::collections::HashSet;
    use std::time::Duration;

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
            "a}:limit",
            "{n:a}",
            "n:a",
            "boot",
            "{s:a}",
            "ü🦀",
            " ",
            "a\r\nb",
            "a\0b",
        ];
        let mut seen = HashSet::from([boot("fairlock")]);
        for name in names {
            for kind in Kind::ALL {
                let keys = Keys::of(kind, "fairlock", name);
                let tombstone = keys.tombstone("0:1");
                assert_eq!(Keys::of_lock("fairlock", &keys.lock).as_ref(), Some(&keys), "{name:?}");
                assert_eq!(name_in("fairlock", &keys.queue, TRACES[1]), Some((kind, name)));
                if kind.is_shared() {
                    assert_eq!(name_in("fairlock", &keys.limit, TRACES[2]), Some((kind, name)));
                }
                for other in [&keys.deadlines, &keys.tokens, &keys.tombstone("0:1")] {
                    for end in TRACES {
                        assert_eq!(name_in("fairlock", other, end), None);
                    }
                }
                let all = [keys.lock.to_string(), keys.queue, keys.deadlines, keys.tokens, keys.limit, tombstone];
                let tags: HashSet<_> = all.iter().filter(|key| !key.is_empty()).map(|key| tag(key)).collect();
                assert_eq!(tags.len(), 1, "{name:?}");
                for key in all.into_iter().filter(|key| !key.is_empty()) {
                    assert!(seen.insert(key.clone()), "{key:?} belongs to two names");
                }
            }
        }
    }

    #[test]
    fn the_terms_of_a_share_have_the_label_last() {
        let terms = shared_terms(Share { weight: 2, limit: 5 }, Duration::from_secs(3), "a/b,c");
        assert_eq!((&*terms, label_of(&terms)), ("2,5,3000/a/b,c", "a/b,c"));
        assert_eq!((share_of(&terms), share_of("3000/1,2")), (Some(Share { weight: 2, limit: 5 }), None));
    }

    /// Clients of other versions use the same names.
    #[test]
    fn names_that_belong_to_a_prefix_do_not_change() {
        assert_eq!([boot("p"), channel_prefix("p"), pattern("p", "x")], ["p:{boot}", "p:wake:", "p:{?:x*"]);
        for kind in Kind::ALL {
            assert_eq!(Kind::of_word(kind.word()), Some(kind));
        }
        assert_eq!(Kind::of_word("none"), None);
    }

    /// The part that Redis hashes: between the first `{` and the first `}` after it, if that is not empty.
    fn tag(key: &str) -> String {
        let inside = &key[key.find('{').unwrap() + 1..];
        let tag = &inside[..inside.find('}').unwrap()];
        assert!(!tag.is_empty());
        tag.to_owned()
    }
}
