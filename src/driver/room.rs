//! Requests that are under way. Their number is bounded by the machine, and the room of one that has ended is used again, so
//! that a request allocates nothing here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use fairlock_proto::effect::Request;
use fairlock_proto::error::{Fault, RequestError};
use fairlock_proto::event::RequestId;

use super::requests::{Replied, RoomPost, UnderWay};
use crate::engine::context::Context as ClientContext;
use crate::sync::Mutex;

/// Who goes on with requests that were woken.
pub trait Carrier: Send + Sync + 'static {
    fn carry(&self);
}

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
    /// `None`: it is free, and a late wake means nothing.
    request: Option<UnderWay>,
    post: RoomPost,
    waker: Waker,
}

/// The rooms whose requests can go on.
struct Woken {
    rooms: Mutex<Vec<usize>>,
    carrier: Weak<dyn Carrier>,
}

struct RoomWaker {
    room: usize,
    woken: Arc<Woken>,
}

impl Wake for RoomWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Takes the answer where it arrives, in the connection's task: another task between the two would cost a hop.
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.rooms.lock().push(self.room);
        self.woken.carrier.upgrade().into_iter().for_each(|carrier| carrier.carry());
    }
}

impl Rooms {
    pub fn new(context: Arc<ClientContext>, carrier: Weak<dyn Carrier>) -> Self {
        let woken = Arc::new(Woken { rooms: Mutex::default(), carrier });
        Self { context, rooms: Vec::new(), free: Vec::new(), woken, polled: Vec::new() }
    }

    pub fn begin(&mut self, id: RequestId, request: Request, answers: &mut Vec<Replied>) {
        let at = self.free.pop().unwrap_or_else(|| self.new_room());
        let Room { request: under_way, post, .. } = &mut self.rooms[at];
        // A recorder of metrics is the user's. Its panic ends this request alone.
        let begin = || UnderWay::begin(&self.context, id, request, post);
        match catch_unwind(AssertUnwindSafe(begin)) {
            Ok(begun) => {
                *under_way = Some(begun);
                self.drive(at, answers);
            }
            Err(_) => {
                self.free.push(at);
                answers.push(panicked(id));
            }
        }
    }

    fn new_room(&mut self) -> usize {
        let room = self.rooms.len();
        let waker = Waker::from(Arc::new(RoomWaker { room, woken: self.woken.clone() }));
        self.rooms.push(Room { request: None, post: self.context.runner.store.post(), waker });
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
        let Room { request, post, waker } = &mut self.rooms[at];
        let Some(under_way) = request else { return };
        let id = under_way.id;
        let mut poll = || under_way.poll(&self.context, post, &mut Context::from_waker(waker));
        let answer = match catch_unwind(AssertUnwindSafe(&mut poll)) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(answer)) => (id, answer),
            Err(_) => {
                *post = self.context.runner.store.post();
                panicked(id)
            }
        };
        *request = None;
        self.free.push(at);
        answers.push(answer);
    }
}

fn panicked(id: RequestId) -> Replied {
    (id, Err(RequestError::Unanswered(Fault::Disconnected.into())))
}
