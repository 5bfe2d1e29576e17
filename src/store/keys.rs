//! Every name of a key, a channel or a ticket is made here.
//!
//! `<prefix>:{n:NAME}` and suffixes after it. The hash tag is `n:` and the name up to its first
//! `}`: never empty, the same for all keys of a name, so a cluster keeps them in one slot. The
//! mapping is injective for every name: only the lock key ends with `}`, and a suffix is known by
//! its ending. That rests on the prefix having no braces, which the builder checks.

use std::sync::Arc;

/// The longest name of a lock, in bytes.
pub(crate) const LONGEST_NAME: usize = 1024;

/// The keys of one lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) name: String,
    pub(crate) lock: Arc<str>,
    pub(crate) queue: String,
    pub(crate) deadlines: String,
    pub(crate) tokens: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &str) -> Self {
        let lock = format!("{prefix}:{{n:{name}}}");
        Self {
            name: name.to_owned(),
            queue: format!("{lock}:queue"),
            deadlines: format!("{lock}:deadlines"),
            tokens: format!("{lock}:token"),
            lock: lock.into(),
        }
    }

    /// The tombstone of one owner (R3).
    pub(crate) fn left(&self, owner: &str) -> String {
        // In one piece: format! would grow it three times, for every request.
        [&*self.lock, ":left:", owner].concat()
    }
}

/// An attempt's name in the queue.
pub(crate) fn ticket(owner: &str, seq: u64) -> String {
    format!("{owner}:{seq}")
}

/// The prefix of the channels on which clients hear of their grants.
pub(crate) fn channel_prefix(prefix: &str) -> String {
    format!("{prefix}:wake:")
}

#[cfg(test)]
mod tests {
    use super::Keys;
    use std::collections::HashSet;

    #[test]
    fn hostile_names_share_a_tag_and_no_key() {
        let names =
            ["a", "{}", "}x", "{", "}", "a}b", "a}:queue", "a}:left:o", "{n:a}", "n:a", "ü🦀", " ", "a\r\nb", "a\0b"];
        let mut seen = HashSet::new();
        for name in names {
            let keys = Keys::new("fairlock", name);
            let left = keys.left("0:1");
            let all = [keys.lock.to_string(), keys.queue, keys.deadlines, keys.tokens, left];
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
