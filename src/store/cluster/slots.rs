//! The slots of a cluster: which slot a key has, and which node serves it.

use std::sync::atomic::{AtomicU16, Ordering};

pub use fairlock_proto::slots::{SLOTS, slot_of};

const NOBODY: u16 = u16::MAX;

/// The seat of the node that serves each slot. Every call reads it, without a lock.
pub struct SlotMap(Box<[AtomicU16]>);

impl SlotMap {
    pub fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU16::new(NOBODY)).collect())
    }

    /// `None`: no node serves this slot.
    pub fn seat_of(&self, slot: u16) -> Option<u16> {
        // Relaxed: another thread filled the seat before it stored the number here, and the seat has its own
        // synchronization. If the answer is stale, the node corrects it with MOVED.
        let seat = self.0.get(usize::from(slot))?.load(Ordering::Relaxed);
        (seat != NOBODY).then_some(seat)
    }

    /// Returns the seat that had the slot before.
    pub fn set(&self, slot: u16, seat: Option<u16>) -> Option<u16> {
        let before = self.0.get(usize::from(slot))?.swap(seat.unwrap_or(NOBODY), Ordering::Relaxed);
        (before != NOBODY).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // CLUSTER KEYSLOT of Redis 7.0.15 returns the same.
        for (key, slot) in [("foo", 12182), ("{foo}bar", 12182), ("{}foo", 9500), ("", 0), ("123456789", 12739)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn a_slot_has_one_seat_or_none() {
        let map = SlotMap::new();
        assert_eq!(map.seat_of(7), None);
        assert_eq!(map.set(7, Some(2)), None);
        assert_eq!((map.seat_of(7), map.seat_of(8)), (Some(2), None));
        assert_eq!(map.set(7, None), Some(2));
        assert_eq!(map.seat_of(SLOTS), None);
    }
}
