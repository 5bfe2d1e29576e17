//! Files of the driver on loom's mutexes and atomics. Loom runs each test in all orders of its threads.

#[path = "../../../src/driver/relay.rs"]
pub mod relay;

/// Replaces the library's `crate::sync`.
pub mod sync {
    use std::ops::{Deref, DerefMut};

    pub use loom::sync::atomic;
    use loom::sync::atomic::{AtomicBool, Ordering};

    /// As weak as the memory model allows. With loom's own mutex no other thread comes between a thread's last action
    /// and its unlock, and all threads see each unlock at once.
    pub struct Mutex<T> {
        is_locked: AtomicBool,
        value: loom::sync::Mutex<T>,
    }

    pub struct MutexGuard<'a, T> {
        of: &'a Mutex<T>,
        value: Option<loom::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self { is_locked: AtomicBool::new(false), value: loom::sync::Mutex::new(value) }
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
            Some(MutexGuard { of: self, value: self.value.lock().ok() })
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_deref().expect("it is locked")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_deref_mut().expect("it is locked")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            drop(self.value.take());
            self.of.is_locked.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use crate::relay::{Left, Relay};

    /// Items that wait for the courier, and items that it has carried.
    struct Site {
        waiting: Mutex<Vec<u32>>,
        relay: Relay<Vec<u32>>,
        /// Items that the courier has handed over, once it is free.
        finished: Mutex<Vec<u32>>,
    }

    impl Site {
        fn new(rounds: usize) -> Arc<Self> {
            let relay = Relay::new(Vec::new(), rounds);
            Arc::new(Self { waiting: Mutex::new(Vec::new()), relay, finished: Mutex::new(Vec::new()) })
        }

        fn bring(&self, item: u32) -> Left {
            self.waiting.lock().unwrap().push(item);
            self.carry()
        }

        fn carry(&self) -> Left {
            let work = |courier: &mut Vec<u32>| {
                let some = std::mem::take(&mut *self.waiting.lock().unwrap());
                courier.extend(&some);
                some
            };
            self.relay.carry(work, |done| self.finished.lock().unwrap().extend(done))
        }

        fn is_done(&self, count: usize) -> bool {
            self.waiting.lock().unwrap().is_empty() && self.finished.lock().unwrap().len() == count
        }
    }

    /// Starts one thread for each entry of `others`, which brings that many items. This thread brings one more.
    fn all_is_carried(rounds: usize, others: &'static [u32], most_switches: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = most_switches;
        model.check(move || {
            let site = Site::new(rounds);
            let bring = |count: &'static u32| {
                let site = site.clone();
                thread::spawn(move || (0..*count).map(|item| site.bring(item)).collect::<Vec<_>>())
            };
            let bringing: Vec<_> = others.iter().map(bring).collect();
            let mut left = vec![site.bring(7)];
            left.extend(bringing.into_iter().flat_map(|thread| thread.join().unwrap()));
            // If any thread had to stop, the task finishes its work.
            if left.contains(&Left::Something) {
                site.carry();
            }
            assert!(site.is_done(1 + others.iter().sum::<u32>() as usize), "something was left");
        });
    }

    #[test]
    fn what_two_threads_bring_is_carried() {
        all_is_carried(8, &[1], None);
    }

    #[test]
    fn what_a_thread_brings_again_is_carried() {
        all_is_carried(8, &[2], Some(3));
    }

    #[test]
    fn what_three_threads_bring_is_carried() {
        all_is_carried(8, &[1, 1], Some(2));
    }

    #[test]
    fn a_thread_that_has_looked_often_enough_says_that_something_is_left() {
        all_is_carried(1, &[1], None);
    }
}
