//! The names that the clients of a world use.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use fairlock_proto::keys::{self, Keys, Kind, Share, UNITS};

use crate::caller::FIRST_LEASE;

/// The names that the callers of a world want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Two locks.
    Locks,
    /// A lock, a semaphore and a read-write lock. Callers change their holds and detach them to handles.
    Kinds,
}

impl Subject {
    pub fn names(self) -> Range<usize> {
        match self {
            Self::Locks => 0..2,
            Self::Kinds => 2..5,
        }
    }
}

const NAMES: [(Kind, &str, u32); 5] = [
    (Kind::Lock, "0", 1),
    (Kind::Lock, "1", 1),
    (Kind::Lock, "h", 1),
    (Kind::Semaphore, "s", 3),
    (Kind::RwLock, "r", UNITS),
];

static KEYS: LazyLock<[Arc<Keys>; NAMES.len()]> =
    LazyLock::new(|| NAMES.map(|(kind, name, _)| Arc::new(Keys::of(kind, "p", name))));

pub fn keys(name: usize) -> Arc<Keys> {
    KEYS[name].clone()
}

pub fn is_shared(name: usize) -> bool {
    NAMES[name].0.is_shared()
}

/// The limit of all shares together.
pub fn limit_of(name: usize) -> u32 {
    NAMES[name].2
}

/// The shares that a caller may want.
pub fn shares(name: usize) -> Vec<Share> {
    let limit = limit_of(name);
    let weights = match NAMES[name].0 {
        Kind::Semaphore => vec![1, 1, 2, 3],
        Kind::RwLock => vec![1, 1, UNITS],
        _ => vec![1],
    };
    weights.into_iter().map(|weight| Share { weight, limit }).collect()
}

/// The terms of a place that asks for this share.
pub fn terms(name: usize, share: Share) -> Arc<str> {
    if is_shared(name) {
        keys::shared_terms(share, FIRST_LEASE, "x").into()
    } else {
        keys::terms(FIRST_LEASE, "x").into()
    }
}
