//! Adds and removes the waiters of a name, and polls for them (R8).

use crate::canonical::{RequestNumber, Seq};
use crate::desk::Desk;
use crate::node::Asker;
use crate::queue::{NewWaiter, News, Queue, Scope};
use crate::request::{Answer, Reply, Request};
use crate::requests::poll::Poll;
use crate::sending::{Answered, LastAnswer, Sent};
use crate::slab::Id;
use crate::timers::{Timer, Wish};
use crate::trust::{Floor, Grant, Verdict};

impl Desk<'_> {
    /// From now on polls speak for this attempt.
    pub fn enqueue(&mut self, new: NewWaiter<'_>) -> Id {
        let (now, regular) = (self.now, self.now + self.settings().poll_interval);
        self.common.chores.refused.is_heard(&new.keys.lock, now);
        let id = self.common.queues.for_waiter(&new, regular);
        self.change_queue(id, |queue| queue.add(new, now, regular));
        id
    }

    pub fn dequeue(&mut self, id: Id, seq: Seq) {
        if let Some(queue) = self.common.queues.remove_waiter(id, seq) {
            self.forget(queue.standing, Timer::Queue(id));
        }
    }

    pub fn judge(&self, id: Id, grant: Grant) -> Verdict {
        let Some(queue) = self.common.queues.get(id) else { return Verdict::Ask };
        queue.trust.judge(queue.keys.kind, grant, self.serving(queue.slot).epoch, self.settings().grant_ttl, self.now)
    }

    /// A waiter of this name may have lost its place: the next round verifies all.
    pub fn verify_all(&mut self, lock_key: &str) {
        let now = self.now;
        let id = self.common.queues.of(lock_key);
        id.into_iter().for_each(|id| self.change_queue(id, |queue| queue.verify_all(now)));
    }

    pub fn verify_soon(&mut self, id: Id) {
        let now = self.now;
        self.change_queue(id, |queue| {
            queue.verify_all(now);
            queue.poll_by(now);
        });
    }

    pub fn last_answer_of(&self, id: Id) -> LastAnswer {
        self.common.queues.get(id).map_or(LastAnswer::Others(None), Queue::last_answer)
    }

    /// The node has a new connection or new slots.
    pub fn resume(&mut self, id: Id) {
        let Some(slot) = self.common.queues.get(id).map(|queue| queue.slot) else { return };
        let (now, regular, epoch) = (self.now, self.settings().poll_interval, self.serving(slot).epoch);
        self.change_queue(id, |queue| queue.resume(epoch, now, regular));
    }

    pub fn queue_time(&mut self, id: Id) {
        let (now, regular) = (self.now, self.settings().poll_interval);
        self.change_queue(id, |queue| queue.begin_round(now, regular, Scope::Full));
    }

    pub fn ask_to_poll(&mut self, id: Id, number: RequestNumber) -> Option<Request> {
        let queue = self.common.queues.get_mut(id)?;
        queue.standing.place = None;
        let tickets = queue.carry(number);
        let keys = queue.keys.clone();
        self.keep_queue(id);
        Some(Request::Poll(Poll { keys, waits: true, names_ours: false, tickets }))
    }

    /// Reads the answer to one request of a round.
    pub fn polled(&mut self, id: Id, answered: Answered) -> Option<News> {
        let (now, settings) = (self.now, &self.common.settings);
        let queue = self.common.queues.get_mut(id)?;
        let asked = queue.take(answered.number)?;
        let news = match answered.reply {
            Ok(Reply { answer: Answer::Polled(polled), .. }) => {
                self.common.chores.refused.is_heard(&queue.keys.lock, now);
                let Sent { at: asked_at, epoch } = answered.sent;
                let floor = Floor { token: polled.floor, asked: asked_at, round_trip: now.since(asked_at), epoch };
                Some(queue.read(&asked, *polled, floor, now, settings))
            }
            reply => queue.unanswered(reply.err(), now),
        };
        self.keep_queue(id);
        news
    }

    fn change_queue(&mut self, id: Id, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.common.queues.get_mut(id) {
            change(queue);
        }
        self.keep_queue(id);
    }

    pub fn keep_queue(&mut self, id: Id) {
        let Some(queue) = self.common.queues.get(id) else { return };
        let (slot, due, wants) = (queue.slot, queue.due(), queue.wants());
        let wish = Wish { timer: Timer::Queue(id), asker: Asker::Queue(id), slot, due, wants };
        let standing = self.keep(queue.standing, wish);
        if let Some(queue) = self.common.queues.get_mut(id) {
            queue.standing = standing;
        }
    }
}
