//! Lets a search compare states: times relative to now, numbers by their order (`verify/explore/src/canonical.rs`).
//!
//! States derive `Hash`. Each kind of number has a newtype whose `Hash` writes it by a method of [`Hasher`] that
//! nothing else uses here, so that the search can distinguish the kinds. Any other hasher takes them as plain numbers.

use std::hash::{Hash, Hasher};

/// A number that grows with each use. Only the order of two numbers counts.
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
    /// Orders the requests of one client: greater than every seq before it (R1).
    Seq, write_i128
}

growing! {
    /// The number of a request. It never comes again.
    RequestNumber, write_u128
}

growing! {
    /// The period of a server from one connection, or one gain of slots, to the next.
    Epoch, write_i32
}

impl Epoch {
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Writes an instant. Nothing else writes an `i64`.
pub(crate) fn write_instant<H: Hasher>(state: &mut H, micros: u64) {
    state.write_i64(micros.cast_signed());
}
