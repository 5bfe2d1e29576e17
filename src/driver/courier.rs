//! Sends what the machine has to send, hands in the answers, and keeps the timers. One thread at a time, so that requests go
//! out in their order.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fairlock_proto::effect::Request;
use fairlock_proto::event::{Event, RequestId};
use futures::FutureExt;
use tokio::time::{Sleep, sleep_until};

use super::Driver;
use super::after::After;
use super::requests::Replied;
use super::room::Rooms;
use crate::engine::context::Context as ClientContext;
use crate::store::clock::now;

pub struct Courier {
    rooms: Rooms,
    answers: Vec<Replied>,
    outbox: Vec<(RequestId, Request)>,
}

/// The task. It ends when the machine is closed, and the connection with it.
pub async fn run(driver: Arc<Driver>) {
    let mut sleep = pin!(sleep_until(now().into()));
    poll_fn(|context| {
        driver.task.get_or_init(|| {
            driver.courier.lock().rooms.serve(context.waker().clone());
            context.waker().clone()
        });
        driver.carry();
        driver.keep_time(sleep.as_mut(), context);
        if driver.closed.initialized() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Courier {
    pub fn new(context: Arc<ClientContext>) -> Self {
        Self { rooms: Rooms::new(context), answers: Vec::new(), outbox: Vec::new() }
    }

    fn carry(&mut self, driver: &Driver) {
        self.rooms.go_on(&mut self.answers);
        loop {
            driver.exchange(&mut self.answers, &mut self.outbox);
            self.outbox.reverse();
            while let Some((id, request)) = self.outbox.pop() {
                self.rooms.begin(id, request, &mut self.answers);
            }
            // As a rule no answer is there at once.
            if self.answers.is_empty() {
                return;
            }
        }
    }
}

impl Driver {
    /// Sends and reads what there is, unless another thread is at it: that one then looks once more. So nobody waits here.
    pub(super) fn carry(&self) {
        self.is_wanted_once_more.store(true, Ordering::SeqCst);
        while self.is_wanted_once_more.load(Ordering::SeqCst)
            && let Some(mut courier) = self.courier.try_lock()
        {
            self.is_wanted_once_more.store(false, Ordering::SeqCst);
            courier.carry(self);
        }
    }

    /// Hands answers to the machine, and fetches what is to be sent.
    fn exchange(&self, answers: &mut Vec<Replied>, outbox: &mut Vec<(RequestId, Request)>) {
        let mut after = After::default();
        {
            let mut shared = self.shared.lock();
            answers.reverse();
            while let Some((id, reply)) = answers.pop() {
                shared.step(Event::Replied(id, reply), &mut after);
            }
            shared.swap_outbox(outbox);
        }
        after.sends = false;
        self.finish(after);
    }

    /// Tells the machine when a timer is due. Otherwise the task is woken then.
    fn keep_time(&self, mut sleep: Pin<&mut Sleep>, context: &mut Context<'_>) {
        let mut after = After::default();
        let due = self.shared.lock().time(&mut after);
        // Comes once more for what is to be sent.
        self.finish(after);
        let Some(due) = due.map(|due| self.clock.instant(due).into()) else { return };
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        if sleep.poll_unpin(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }
}
