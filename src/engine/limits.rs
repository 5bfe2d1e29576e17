//! The limits of other clients that differ from those of this one, so that each is warned of once.

use std::collections::HashSet;

use crate::sync::Mutex;

/// Limits kept. Then it begins anew, and may warn of one again.
const REMEMBERED: usize = 1024;

#[derive(Default)]
pub struct Limits(Mutex<HashSet<(String, u32)>>);

impl Limits {
    /// Whether this limit was not seen at this name before.
    pub fn is_new(&self, name: &str, limit: u32) -> bool {
        let mut seen = self.0.lock();
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert((name.to_owned(), limit))
    }
}
