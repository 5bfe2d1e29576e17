//! Requests that are under way. Their number is bounded by the machine, and the room of one that has ended is used again, so
//! that a request allocates nothing here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use fairlock_proto::effect::Request;
use fairlock_proto::error::{Fault, RequestError};
use fairlock_proto::event::RequestId;
use tokio_util::sync::ReusableBoxFuture;

use super::requests::{Replied, send};
use crate::engine::context::Context as ClientContext;
use crate::sync::Mutex;

pub struct Rooms {
    context: Arc<ClientContext>,
    rooms: Vec<Room>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    /// What was woken, while it is polled.
    polled: Vec<usize>,
}

/// For one request after the other.
struct Room {
    id: RequestId,
    /// `None`: it is free, and a late wake means nothing.
    request: Option<ReusableBoxFuture<'static, Replied>>,
    spare: Option<ReusableBoxFuture<'static, Replied>>,
    waker: Waker,
}

/// The rooms whose requests can go on.
#[derive(Default)]
struct Woken {
    rooms: Mutex<Vec<usize>>,
    task: OnceLock<Waker>,
}

struct RoomWaker {
    room: usize,
    woken: Arc<Woken>,
}

impl Wake for RoomWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.rooms.lock().push(self.room);
        self.woken.task.get().into_iter().for_each(Waker::wake_by_ref);
    }
}

impl Rooms {
    pub fn new(context: Arc<ClientContext>) -> Self {
        Self { context, rooms: Vec::new(), free: Vec::new(), woken: Arc::default(), polled: Vec::new() }
    }

    /// The task that is to be woken when a request can go on.
    pub fn serve(&self, task: Waker) {
        let _ = self.woken.task.set(task);
    }

    pub fn begin(&mut self, id: RequestId, request: Request, answers: &mut Vec<Replied>) {
        let at = self.free.pop().unwrap_or_else(|| self.new_room(id));
        let sending = send(self.context.clone(), id, request);
        let Room { id: of, request, spare, .. } = &mut self.rooms[at];
        *of = id;
        *request = Some(match spare.take() {
            Some(mut spare) => {
                spare.set(sending);
                spare
            }
            None => ReusableBoxFuture::new(sending),
        });
        self.drive(at, answers);
    }

    fn new_room(&mut self, id: RequestId) -> usize {
        let room = self.rooms.len();
        let waker = Waker::from(Arc::new(RoomWaker { room, woken: self.woken.clone() }));
        self.rooms.push(Room { id, request: None, spare: None, waker });
        room
    }

    /// Drives those that can go on.
    pub fn go_on(&mut self, answers: &mut Vec<Replied>) {
        let mut polled = std::mem::take(&mut self.polled);
        std::mem::swap(&mut polled, &mut self.woken.rooms.lock());
        polled.drain(..).for_each(|room| self.drive(room, answers));
        self.polled = polled;
    }

    fn drive(&mut self, at: usize, answers: &mut Vec<Replied>) {
        let Room { id, request, spare, waker } = &mut self.rooms[at];
        let Some(sending) = request else { return };
        // A recorder of metrics is the user's. Its panic ends this request alone.
        let polled = catch_unwind(AssertUnwindSafe(|| sending.poll(&mut Context::from_waker(waker))));
        let answer = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(answer)) => {
                *spare = request.take();
                answer
            }
            Err(_) => {
                *request = None;
                (*id, Err(RequestError::Unanswered(Fault::Disconnected.into())))
            }
        };
        self.free.push(at);
        answers.push(answer);
    }
}
