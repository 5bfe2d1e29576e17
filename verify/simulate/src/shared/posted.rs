//! Handles that actors pass to each other.

use std::time::Duration;

/// A handle as others find it.
#[derive(Clone)]
pub struct Posted {
    /// As callers store it and pass it on.
    pub text: String,
    /// The key of the name.
    pub name: String,
    /// The owner made for it.
    pub owner: String,
    pub token: u64,
    /// The weight that it must have, if known.
    pub weight: Option<u32>,
    /// Without faults it lasts at least until then. Zero after an unanswered extend, or if others have it too.
    pub lasts_until: Duration,
}
