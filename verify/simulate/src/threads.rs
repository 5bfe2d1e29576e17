//! Work on two threads.

use std::sync::Mutex;

/// Does the same with each item. The answers are in the order of the items.
pub fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let open = Mutex::new(items.iter().enumerate());
    let mut answers =
        while_there_are(|| open.lock().expect("no thread panics").next(), |(index, item)| (index, work(item)));
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Does the same with each item from `next`, until it returns `None`.
pub fn while_there_are<T, R: Send>(next: impl Fn() -> Option<T> + Sync, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let work_off = || std::iter::from_fn(&next).map(&work).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let other = scope.spawn(work_off);
        let mut answers = work_off();
        answers.extend(other.join().expect("no thread panics"));
        answers
    })
}
