//! Slots on their way to another node. A script whose keys are on two nodes is refused, for as long as the move takes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::time::{Duration, Instant};

use crate::store::clock::now;
use crate::store::error::Refusal;
use crate::sync::Mutex;

/// One request in this time asks whether a slot has arrived; the others are answered here, as the node would. A
/// thousand callers would otherwise ask five times a second each.
const PROBES_EVERY: Duration = Duration::from_millis(50);
/// Slots often move one after the other, for minutes.
const SAID_AT_MOST_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Moving {
    /// How many slots are known to move, for the usual case without the mutex.
    count: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// For each slot, the node's refusal and when it is asked again. At most as many as there are slots.
    slots: BTreeMap<u16, (Refusal, Instant)>,
    /// When the log last reported that locks wait.
    said: Option<Instant>,
}

impl Moving {
    /// The node's refusal, if a request for this slot need not be sent. `None`: this one is to ask.
    pub fn answer(&self, slot: u16) -> Option<Refusal> {
        // Relaxed: one request more that is sent does no harm.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut known = self.known.lock();
        let (refusal, next) = known.slots.get_mut(&slot)?;
        if now() < *next {
            return Some(refusal.clone());
        }
        *next = now() + PROBES_EVERY;
        None
    }

    pub fn refused(&self, slot: u16, refusal: &Refusal) {
        let mut known = self.known.lock();
        known.slots.insert(slot, (refusal.clone(), now() + PROBES_EVERY));
        self.count.store(known.slots.len(), Ordering::Relaxed);
        if known.said.is_none_or(|said| now() >= said + SAID_AT_MOST_EVERY) {
            known.said = Some(now());
            // The log's subscriber is the user's.
            drop(known);
            tracing::warn!(target: "fairlock::server", slot, "a slot is on its way to another node: calls for its locks wait; renewals do not");
        }
    }

    /// A request for this slot was served.
    pub fn served(&self, slot: u16) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.known.lock();
        known.slots.remove(&slot);
        self.count.store(known.slots.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_request_at_a_time_asks_whether_a_slot_has_arrived() {
        let moving = Moving::default();
        assert!(moving.answer(7).is_none());
        moving.refused(7, &Refusal::new("TRYAGAIN", "Multiple keys request during rehashing of slot"));
        let asked = || (0..1000).filter(|_| moving.answer(7).is_none()).count();
        assert_eq!(asked(), 0);
        tokio::time::advance(PROBES_EVERY).await;
        assert_eq!(asked(), 1);
        assert!(moving.answer(8).is_none(), "the other slots are not concerned");
        moving.served(7);
        assert_eq!(asked(), 1000);
    }
}
