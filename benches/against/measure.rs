//! The part of `benches/speed/measure.rs` that the relay needs.

use hdrhistogram::Histogram;

use crate::Outcome;

/// A histogram from a nanosecond to a minute, with three digits.
pub fn histogram() -> Outcome<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}
