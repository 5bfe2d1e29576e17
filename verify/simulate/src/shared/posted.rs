//! What is passed on between actors.

use std::time::Duration;

/// A handle as others find it.
#[derive(Clone)]
pub struct Posted {
    /// As it is stored and passed on.
    pub text: String,
    /// The key of the name.
    pub name: String,
    /// The owner that was made for it.
    pub owner: String,
    pub token: u64,
    /// What it has to have, if that is known.
    pub weight: Option<u32>,
    /// Without faults it lasts until then, at least. Nothing is known once it was extended without an answer, or others have it too.
    pub lasts_until: Duration,
}
