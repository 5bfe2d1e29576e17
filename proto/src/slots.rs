//! The slots of a cluster: the slot of a key, its server, and the epoch.

use std::ops::RangeInclusive;

use crate::canonical::Epoch;
use crate::event::NodeId;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// CRC16/XMODEM, as the specification of Redis Cluster names it: polynomial 0x1021, from 0.
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

/// The slot of a lock's keys, which all have the same hash tag.
pub fn slot_of(lock_key: &str) -> u16 {
    let tag = lock_key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(lock_key);
    let step = |crc: u16, byte: u8| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    hashed.bytes().fold(0, step) % SLOTS
}

/// The server of a slot, and the epoch of the slot, which changes with each connection and when the slot moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Serving {
    pub node: NodeId,
    pub epoch: Epoch,
}

/// What a client is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topology {
    /// Node 0 has all keys.
    OneServer,
    /// [`LinkEvent::Serves`](crate::event::LinkEvent::Serves) reports which node has which slot.
    Cluster,
}

/// The servers of all slots.
#[derive(Debug, Clone, Hash)]
pub struct Slots {
    topology: Topology,
    /// The first slot of each range, and its server, in order.
    ranges: Vec<(u16, Serving)>,
    last: Epoch,
}

impl Slots {
    pub fn new(topology: Topology) -> Self {
        let node = match topology {
            Topology::OneServer => NodeId(0),
            Topology::Cluster => NodeId::NOBODY,
        };
        let last = Epoch::default();
        Self { topology, ranges: vec![(0, Serving { node, epoch: last })], last }
    }

    /// The slot of a lock. A single server has all of its keys in slot 0.
    pub fn of(&self, lock_key: &str) -> u16 {
        match self.topology {
            Topology::OneServer => 0,
            Topology::Cluster => slot_of(lock_key),
        }
    }

    pub fn serving(&self, slot: u16) -> Serving {
        let range = self.ranges.partition_point(|(first, _)| *first <= slot).checked_sub(1);
        let nobody = Serving { node: NodeId::NOBODY, epoch: Epoch::default() };
        range.and_then(|at| self.ranges.get(at)).map_or(nobody, |(_, serving)| *serving)
    }

    /// A node has a new connection: the client must ask again for everything it answered before.
    pub fn renew(&mut self, node: NodeId) {
        self.last = self.last.next();
        let of_node = self.ranges.iter_mut().filter(|(_, serving)| serving.node == node);
        of_node.for_each(|(_, serving)| serving.epoch = self.last);
    }

    pub fn assign(&mut self, slots: &RangeInclusive<u16>, node: NodeId) {
        self.last = self.last.next();
        let behind = slots.end().checked_add(1).filter(|behind| *behind < SLOTS);
        let behind = behind.map(|behind| (behind, self.serving(behind)));
        self.ranges.retain(|(first, _)| !slots.contains(first) && behind.is_none_or(|(behind, _)| *first != behind));
        self.ranges.push((*slots.start(), Serving { node, epoch: self.last }));
        self.ranges.extend(behind);
        self.ranges.sort_unstable_by_key(|(first, _)| *first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_of_its_tag() {
        // From the specification of Redis Cluster.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{}{bar}"), slot_of("foo{}{bar}"));
    }

    #[test]
    fn a_range_that_moves_leaves_the_others_as_they_were() {
        let (mut slots, [one, two]) = (Slots::new(Topology::Cluster), [NodeId(1), NodeId(2)]);
        slots.assign(&(0..=SLOTS - 1), one);
        let before = slots.serving(0);
        slots.assign(&(100..=200), two);
        let nodes = [0, 99, 100, 200, 201, SLOTS - 1].map(|slot| slots.serving(slot).node);
        assert_eq!(nodes, [one, one, two, two, one, one]);
        assert_eq!((slots.serving(0), slots.serving(300)), (before, before));
        slots.renew(one);
        assert!(slots.serving(0).epoch > slots.serving(100).epoch && slots.serving(100).epoch > before.epoch);
        slots.assign(&(50..=300), one);
        assert!((50..=300).all(|slot| slots.serving(slot) == slots.serving(50)) && slots.serving(100).node == one);
    }
}
