//! Items with due times, soonest first. It does not know what the items are.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use crate::store::clock::now;
use crate::sync::Mutex;

/// A schedule of items by due time. One task serves all items: most holds end before their first renewal, and must
/// not cost a task each.
pub struct Schedule<T> {
    state: Mutex<Planned<T>>,
    /// Notified when the task must come sooner than it plans to, and when the schedule is dropped.
    sooner: Arc<Notify>,
}

struct Planned<T> {
    /// Keyed by due time and id. Weak: an item that is gone needs no service.
    due: BTreeMap<(Instant, u64), Weak<T>>,
    /// When the task wakes next. The item it wakes for may have been removed since.
    planned: Option<Instant>,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        let state = Mutex::new(Planned { due: BTreeMap::new(), planned: None });
        Self { state, sooner: Arc::new(Notify::new()) }
    }
}

impl<T> Schedule<T> {
    pub fn insert(&self, due: Instant, id: u64, item: &Arc<T>) {
        let mut state = self.state.lock();
        state.due.insert((due, id), Arc::downgrade(item));
        if state.planned.is_none_or(|planned| due < planned) {
            state.planned = Some(due);
            self.sooner.notify_one();
        }
    }

    pub fn remove(&self, due: Instant, id: u64) {
        self.state.lock().due.remove(&(due, id));
    }

    /// Removes and returns the due items, and the time of the next one.
    fn take_due(&self) -> (Vec<Arc<T>>, Option<Instant>) {
        let (mut state, now) = (self.state.lock(), now());
        // Up to this instant, with any id. The key is the first one after it.
        let later = state.due.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut state.due, later);
        // A plan that lies ahead stays, also for an item that has gone: short holds would wake the task each time.
        let ahead = state.planned.filter(|planned| *planned > now);
        let planned = state.due.first_key_value().map(|((next, _), _)| *next).into_iter().chain(ahead).min();
        state.planned = planned;
        drop(state);
        (due.into_values().filter_map(|item| item.upgrade()).collect(), planned)
    }

    /// Hands over what is due, until the schedule is gone with its owner. Asleep, it does not keep that alive.
    pub async fn serve<O>(owner: Weak<O>, schedule: impl Fn(&O) -> &Self, attend: impl Fn(&Arc<O>, Arc<T>)) {
        while let Some(alive) = owner.upgrade() {
            // Where the whole runtime stood still, what was woken before goes first: it may end what is due.
            yield_now().await;
            let (due, next) = schedule(&alive).take_due();
            for item in due {
                // Other items must not suffer from a panic of the user's code: a subscriber of the log.
                let _ = catch_unwind(AssertUnwindSafe(|| attend(&alive, item)));
            }
            let sooner = schedule(&alive).sooner.clone();
            drop(alive);
            tokio::select! {
                // In this order, so that the simulator can repeat a run.
                biased;
                () = sooner.notified() => {}
                () = sleep_until_any(next) => {}
            }
        }
    }

    #[cfg(all(test, feature = "embedded"))]
    pub fn len(&self) -> usize {
        self.state.lock().due.len()
    }
}

async fn sleep_until_any(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

impl<T> Drop for Schedule<T> {
    fn drop(&mut self) {
        self.sooner.notify_one();
    }
}
