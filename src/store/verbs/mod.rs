//! The requests: one file for each script of `lua/`, with what it asks, the order of KEYS and ARGV,
//! its reply, and how the reply is read.

pub mod acquire;
pub mod boot;
pub mod force_unlock;
pub mod inspect;
pub mod leave;
pub mod poll;
pub mod release;
pub mod renew;

use super::script::Script;

/// All scripts.
pub static ALL: [&Script; 8] = [
    &acquire::SCRIPT,
    &boot::SCRIPT,
    &force_unlock::SCRIPT,
    &inspect::SCRIPT,
    &leave::SCRIPT,
    &poll::SCRIPT,
    &release::SCRIPT,
    &renew::SCRIPT,
];
