//! The limits of other clients that differ from those of this one, so that each is warned of once.

use std::collections::HashMap;

use crate::sync::Mutex;

/// Names kept. Then it begins anew, and may warn of one again.
const NAMES: usize = 1024;

#[derive(Debug, Default)]
pub struct Limits(Mutex<HashMap<String, u32>>);

impl Limits {
    /// Whether this limit differs from the last limit seen at this name.
    pub fn is_new(&self, name: &str, limit: u32) -> bool {
        let mut seen = self.0.lock();
        if seen.get(name) == Some(&limit) {
            return false;
        }
        if seen.len() >= NAMES {
            seen.clear();
        }
        seen.insert(name.to_owned(), limit);
        true
    }
}
