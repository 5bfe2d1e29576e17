//! The form of a state in which a search compares it with others: times relative to now, numbers by their order.
//!
//! States derive `Hash`. Each kind of number has a newtype whose `Hash` writes it by a method of [`Hasher`] that nothing else
//! uses here, so that [`Canonical`] can tell them apart; any other hasher takes them as plain numbers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A number that grows with each use: what counts is which of two is greater.
macro_rules! growing {
    ($(#[$doc:meta])* $name:ident, $write:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub struct $name(pub u64);

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                state.$write(self.0 as _);
            }
        }
    };
}

growing! {
    /// Orders what one client asks for: greater than every seq before it (R1).
    Seq, write_i128
}

growing! {
    /// The number of a request, which is never used again.
    RequestNumber, write_u128
}

growing! {
    /// A server's time from one connection, or one gain of slots, to the next.
    Epoch, write_i32
}

impl Epoch {
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The numbers of each kind, by what they are written with.
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

    /// Writes an instant. Only instants are written as `i64`.
    pub(crate) fn instant<H: Hasher>(state: &mut H, micros: u64) {
        state.write_i64(micros.cast_signed());
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
