//! The slots of a cluster: which one a key has, and which node serves it.

use std::sync::atomic::{AtomicU16, Ordering};

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;
/// Stands for no node.
const NOBODY: u16 = u16::MAX;

/// CRC16 of the XMODEM kind, as the specification of Redis Cluster names it: polynomial 0x1021, from 0.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The slot of a lock's keys: that of their hash tag, which each of them has (keys.rs).
pub fn slot_of(lock_key: &str) -> u16 {
    let tag = lock_key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(lock_key);
    let step = |crc: u16, byte: u8| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    hashed.bytes().fold(0, step) % SLOTS
}

/// Which node serves each slot, by the number of its seat. Read by every call, so without a lock.
pub struct SlotMap(Box<[AtomicU16]>);

impl SlotMap {
    pub fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU16::new(NOBODY)).collect())
    }

    /// `None`: no node serves it.
    pub fn seat_of(&self, slot: u16) -> Option<u16> {
        // Relaxed: a seat that is read here was filled before by another thread, whose store to it this one
        // sees by the seat's own means. A stale answer is corrected by the node, with MOVED.
        let seat = self.0.get(usize::from(slot))?.load(Ordering::Relaxed);
        (seat != NOBODY).then_some(seat)
    }

    /// Returns the seat that had it.
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
