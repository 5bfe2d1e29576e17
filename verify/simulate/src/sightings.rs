//! Which owners had a name, or a place in its queue, and when. With this the checkers judge a call that reported that
//! others had it.

use std::collections::BTreeMap;

/// Longer than any call with a limit takes, in ms.
const REMEMBERED: i64 = 60_000;

/// When each owner was last at a name, by key and owner: a time of one clock, in ms. Covers the last minute.
#[derive(Default)]
pub struct Sightings(BTreeMap<(String, String), i64>);

impl Sightings {
    /// These owners are there now, or were until an earlier time.
    pub fn note<'a>(&mut self, key: &str, now: i64, owners: impl Iterator<Item = (&'a String, i64)>) {
        self.0.retain(|_, at| now < *at + REMEMBERED);
        self.0.extend(owners.map(|(owner, until)| ((key.to_owned(), owner.clone()), now.min(until))));
    }

    /// Whether another owner than this was at one of these names since then.
    pub fn had_others(&self, keys: &[String], owner: &str, since: i64) -> bool {
        self.0.iter().any(|((key, other), at)| keys.contains(key) && other != owner && *at >= since)
    }
}

/// The violation if no other owner was.
pub fn untrue(owner: &str, keys: &[String]) -> String {
    format!("{owner} was told that others had {keys:?}, and none had since it asked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_counts_until_it_was_last_there_and_for_others_only() {
        let (mut seen, [one, two]) = (Sightings::default(), ["1".to_owned(), "2".to_owned()]);
        let (keys, others) = (["x".to_owned()], ["y".to_owned()]);
        seen.note("x", 100, [(&one, 50), (&two, i64::MAX)].into_iter());
        assert!(seen.had_others(&keys, "2", 50) && !seen.had_others(&keys, "2", 51));
        assert!(seen.had_others(&keys, "1", 100) && !seen.had_others(&keys, "1", 101));
        assert!(!seen.had_others(&others, "1", 0));
        seen.note("x", 100 + REMEMBERED, [].into_iter());
        assert!(!seen.had_others(&keys, "3", 0));
    }
}
