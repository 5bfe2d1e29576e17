//! How a slot that moves between two nodes of a cluster looks from inside of a script (R13).

/// What happens to the slot of a script while that runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Moves {
    #[default]
    Rests,
    /// To another node: a command finds only keys that are here.
    Leaves,
    /// From another node: so does a command with several keys.
    Comes,
}

impl Moves {
    /// Whether a command on keys, of which so many are not here, would have to run at another node.
    pub fn is_elsewhere(self, keys: usize, missing: usize) -> bool {
        match self {
            Self::Rests => false,
            Self::Leaves => missing > 0,
            Self::Comes => missing > 0 && keys > 1,
        }
    }
}
