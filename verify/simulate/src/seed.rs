//! Decisions that depend on the seed alone, not on a draw: a new one leaves all other runs unchanged.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topology {
    OneServer,
    Cluster,
    Quorum,
    /// Semaphores and read-write locks, at one server or in a cluster.
    Shared,
}

/// Seeds from here on are runs of shared names, so smaller seeds keep their meaning.
pub const SHARED: u64 = 1_000_000_000_000_000_000;

impl Topology {
    pub const ALL: [Self; 4] = [Self::OneServer, Self::Cluster, Self::Quorum, Self::Shared];

    pub fn of(seed: u64) -> Self {
        match seed {
            SHARED.. => Self::Shared,
            _ if seed % 7 == 2 => Self::Quorum,
            _ if seed % 5 == 1 => Self::Cluster,
            _ => Self::OneServer,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::OneServer => "one server",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
            Self::Shared => "shared",
        }
    }
}

/// All clients of this run have `strict_restart`. A quorum decides that itself.
pub fn is_strict(seed: u64) -> bool {
    seed % 4 == 3 && matches!(Topology::of(seed), Topology::OneServer | Topology::Shared) && !is_shared_in_cluster(seed)
}

/// Shared names in a cluster. Not in older runs of the corpus.
pub fn is_shared_in_cluster(seed: u64) -> bool {
    matches!(seed % 11, 7 | 8) && Topology::of(seed) == Topology::Shared
}

/// Futures of callers may go unpolled, in two runs of three. Not yet in a quorum.
pub fn may_rest(seed: u64) -> bool {
    matches!(seed % 3, 1 | 2) && Topology::of(seed) != Topology::Quorum
}

/// Handles pass holds on.
pub fn has_handles(seed: u64) -> bool {
    matches!(seed % 13, 0 | 10) && Topology::of(seed) != Topology::Quorum
}

/// Guards also extend leases. Not with shared names, nor in older runs of the corpus with handles.
pub fn has_extends(seed: u64) -> bool {
    has_handles(seed) && seed % 2 == 1 && Topology::of(seed) != Topology::Shared
}

/// Clients have a `max_hold`. Not in older runs of the corpus.
pub fn has_max_hold(seed: u64) -> bool {
    matches!(seed % 17, 9..13) && Topology::of(seed) == Topology::OneServer
}

/// Handles pass permits on. These seeds differ from the seeds with handles of locks, which stay unchanged.
pub fn has_handles_of_permits(seed: u64) -> bool {
    matches!(seed % 13, 5..8) && Topology::of(seed) == Topology::Shared
}

/// Clients lose a right for a while. Not in older runs of the corpus.
pub fn loses_rights(seed: u64) -> bool {
    match seed % 19 {
        3 | 7 => true,
        9 | 11 | 16 => Topology::of(seed) != Topology::Quorum,
        _ => false,
    }
}

/// Clients close with calls under way. Not in older runs of the corpus.
pub fn closes(seed: u64) -> bool {
    match Topology::of(seed) {
        Topology::OneServer | Topology::Cluster => matches!(seed % 29, 7..10 | 12 | 13),
        Topology::Quorum => matches!(seed % 29, 10..16),
        Topology::Shared => matches!(seed % 29, 0..5),
    }
}

/// Random, and short enough for people.
pub fn random() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}

/// Seeds from `first` on, of each topology in turn: a fair share of each.
pub fn in_turn(first: u64) -> impl Iterator<Item = u64> {
    let first = first % SHARED;
    let begins = |topology| if topology == Topology::Shared { SHARED + first } else { first };
    let mut next =
        Topology::ALL.map(|topology| (begins(topology)..).filter(move |seed| Topology::of(*seed) == topology));
    (0..next.len()).cycle().filter_map(move |turn| next[turn].next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topology_has_its_turn() {
        let seeds: Vec<_> = in_turn(1000).take(400).collect();
        for topology in Topology::ALL {
            assert_eq!(seeds.iter().filter(|seed| Topology::of(**seed) == topology).count(), 100);
        }
        let distinct: std::collections::BTreeSet<_> = seeds.iter().collect();
        assert_eq!(distinct.len(), 400);
    }
}
