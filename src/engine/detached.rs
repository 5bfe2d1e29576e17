//! What a handle says, and why a hold has none.

use std::time::Duration;

use super::error::Loss;
use crate::store::error::RequestError;
use crate::store::options::OptionsError;

/// What a handle says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detached {
    pub name: String,
    /// Made for this handle: `<client id>-<seq>:0`.
    pub owner: String,
    pub token: u64,
    pub lease: Duration,
    /// Server time until which a copy of the detach may still be served; 0: it was answered.
    pub copies_until: i64,
}

/// Why a hold was not detached.
#[derive(Debug, Clone)]
pub enum NotDetached {
    /// The number of guards that share it.
    Nested(u32),
    Lease(OptionsError),
    Lost(Loss),
    /// Nothing was sent, or the server refuses.
    Failed(RequestError),
}
