//! Finds the slots of a cluster that have another server than the machine knows.

use std::ops::RangeInclusive;

use fairlock_proto::event::NodeId;

pub fn node_at(seat: u16) -> NodeId {
    NodeId(seat)
}

/// The moved slots, as runs with one server each.
pub fn moves(
    slots: RangeInclusive<u16>,
    seat_of: impl Fn(u16) -> Option<u16>,
    known: impl Fn(u16) -> NodeId,
) -> Vec<(RangeInclusive<u16>, NodeId)> {
    let mut moves: Vec<(RangeInclusive<u16>, NodeId)> = Vec::new();
    for slot in slots {
        let node = seat_of(slot).map_or(NodeId::NOBODY, node_at);
        if node == known(slot) {
            continue;
        }
        match moves.last_mut() {
            Some((run, last)) if *last == node && run.end() + 1 == slot => *run = *run.start()..=slot,
            _ => moves.push((slot..=slot, node)),
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_slots_with_another_server_are_found() {
        let now = [Some(1), Some(1), None, Some(2), Some(2), Some(1)];
        let known = [1, 2, 1, 2, 1, 2].map(NodeId);
        let moves = moves(0..=5, |slot| now[usize::from(slot)], |slot| known[usize::from(slot)]);
        let (one, two, nobody) = (NodeId(1), NodeId(2), NodeId::NOBODY);
        assert_eq!(moves, [(1..=1, one), (2..=2, nobody), (4..=4, two), (5..=5, one)]);
        assert!(
            super::moves(0..=5, |slot| now[usize::from(slot)], |slot| now[usize::from(slot)].map_or(nobody, node_at))
                .is_empty()
        );
    }
}
