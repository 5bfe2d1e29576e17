//! The canonical form, in which the search compares states: times relative to now, numbers by their order.
//!
//! proto/src/canonical.rs defines how to write each kind of number.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The numbers of each kind, by the integer type that writes them.
#[derive(Default)]
struct Numbers {
    seqs: BTreeMap<i128, u32>,
    requests: BTreeMap<u128, u32>,
    epochs: BTreeMap<i32, u32>,
}

fn rank<K: Ord>(numbers: &mut BTreeMap<K, u32>) {
    numbers.values_mut().zip(0..).for_each(|(rank, order)| *rank = order);
}

/// Hashes a state in two passes: the first collects its numbers, the second writes each by its order.
pub struct Canonical {
    now: u64,
    numbers: Numbers,
    /// `None` in the first pass.
    hasher: Option<DefaultHasher>,
}

impl Canonical {
    /// The hash of a state at this time.
    pub fn hash_of(now_micros: u64, state: &impl Hash) -> u64 {
        let mut canonical = Self { now: now_micros, numbers: Numbers::default(), hasher: None };
        state.hash(&mut canonical);
        let Numbers { seqs, requests, epochs } = &mut canonical.numbers;
        rank(seqs);
        rank(requests);
        rank(epochs);
        canonical.hasher = Some(DefaultHasher::new());
        state.hash(&mut canonical);
        canonical.finish()
    }
}

impl Hasher for Canonical {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.write(bytes);
        }
    }

    fn write_i64(&mut self, instant: i64) {
        self.write(&instant.wrapping_sub(self.now.cast_signed()).to_ne_bytes());
    }

    fn write_i128(&mut self, seq: i128) {
        let rank = *self.numbers.seqs.entry(seq).or_default();
        self.write_u32(rank);
    }

    fn write_u128(&mut self, request: u128) {
        let rank = *self.numbers.requests.entry(request).or_default();
        self.write_u32(rank);
    }

    fn write_i32(&mut self, epoch: i32) {
        let rank = *self.numbers.epochs.entry(epoch).or_default();
        self.write_u32(rank);
    }

    fn finish(&self) -> u64 {
        self.hasher.as_ref().map_or(0, Hasher::finish)
    }
}

#[cfg(test)]
mod tests {
    use fairlock_proto::canonical::{RequestNumber, Seq};
    use fairlock_proto::time::Instant;

    use super::*;

    #[test]
    fn numbers_count_by_their_order_and_times_by_their_distance() {
        let state =
            |micros, seqs: [u64; 2], number| (Instant::from_micros(micros), seqs.map(Seq), RequestNumber(number), 7);
        let hash = |now, state| Canonical::hash_of(now, &state);
        assert_eq!(hash(10, state(15, [3, 9], 1)), hash(110, state(115, [4, 5], 70)));
        assert_ne!(hash(10, state(15, [3, 9], 1)), hash(10, state(16, [3, 9], 1)));
        assert_ne!(hash(10, state(15, [3, 9], 1)), hash(10, state(15, [9, 3], 1)));
    }
}
