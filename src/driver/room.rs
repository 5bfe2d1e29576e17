//! Requests under way. The machine bounds their number, and a new request takes the room of one that has ended, so that
//! it allocates nothing here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Poll, Wake, Waker};

use fairlock_proto::error::{Fault, RequestError};
use fairlock_proto::event::{NodeId, RequestId};
use fairlock_proto::request::Request;

use super::context::Context as ClientContext;
use super::requests::{Replied, RoomPost, UnderWay, Wakers};
use crate::sync::Mutex;

/// Goes on with woken requests.
pub trait Carrier: Send + Sync + 'static {
    /// Here and now.
    fn carry(&self);
    /// In its own task, soon.
    fn wake_task(&self);
}

pub struct Rooms {
    context: Arc<ClientContext>,
    rooms: Vec<Room>,
    /// The free rooms of each server, by its number.
    free: Vec<Vec<usize>>,
    woken: Arc<Woken>,
    /// The woken rooms, during their poll.
    polled: Vec<usize>,
}

/// Takes one request after the other, all to one server.
struct Room {
    /// `None`: the room is free, and a late wake means nothing.
    request: Option<UnderWay>,
    post: RoomPost,
    wakers: Wakers,
}

/// The rooms whose requests can go on.
struct Woken {
    rooms: Mutex<Vec<usize>>,
    carrier: Weak<dyn Carrier>,
}

impl Woken {
    /// Adds a room, and returns the carrier that should go on with it.
    fn with(&self, room: usize) -> Option<Arc<dyn Carrier>> {
        self.rooms.lock().push(room);
        self.carrier.upgrade()
    }
}

/// The waker of the post. Takes the answer where it arrives, in the connection's task: another task in between would
/// cost a hop.
struct InPlace(usize, Arc<Woken>);

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let carrier = self.1.with(self.0);
        // The log is user code. A panic in it must not end the connection.
        let _ = catch_unwind(AssertUnwindSafe(|| carrier.into_iter().for_each(|carrier| carrier.carry())));
    }
}

/// The waker of everything else: tokio wakes some futures, such as those that yield, in a place that must not poll any.
struct ByTask(usize, Arc<Woken>);

impl Wake for ByTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.1.with(self.0).into_iter().for_each(|carrier| carrier.wake_task());
    }
}

impl Rooms {
    pub fn new(context: Arc<ClientContext>, carrier: Weak<dyn Carrier>) -> Self {
        let woken = Arc::new(Woken { rooms: Mutex::default(), carrier });
        Self { context, rooms: Vec::new(), free: Vec::new(), woken, polled: Vec::new() }
    }

    pub fn begin(&mut self, id: RequestId, request: Request, answers: &mut Vec<Replied>) {
        let at = self.free(id.node).pop().unwrap_or_else(|| self.new_room(id.node));
        let Room { request: under_way, post, .. } = &mut self.rooms[at];
        // A recorder of metrics is user code. A panic in it ends only this request.
        let begin = || UnderWay::begin(&self.context, id, request, post);
        match catch_unwind(AssertUnwindSafe(begin)) {
            Ok(begun) => {
                *under_way = Some(begun);
                self.drive(at, answers);
            }
            Err(_) => {
                self.free(id.node).push(at);
                answers.push(panicked(id));
            }
        }
    }

    pub fn clear(&mut self) {
        self.rooms.clear();
        self.free.clear();
    }

    fn free(&mut self, node: NodeId) -> &mut Vec<usize> {
        let node = usize::from(node.0);
        if self.free.len() <= node {
            self.free.resize_with(node + 1, Vec::new);
        }
        &mut self.free[node]
    }

    fn new_room(&mut self, node: NodeId) -> usize {
        let room = self.rooms.len();
        let in_place = Waker::from(Arc::new(InPlace(room, self.woken.clone())));
        let by_task = Waker::from(Arc::new(ByTask(room, self.woken.clone())));
        let (post, wakers) = (self.context.runner.store.post(node.0), Wakers { in_place, by_task });
        self.rooms.push(Room { request: None, post, wakers });
        room
    }

    /// Drives the requests that can go on.
    pub fn go_on(&mut self, answers: &mut Vec<Replied>) {
        let mut polled = std::mem::take(&mut self.polled);
        std::mem::swap(&mut polled, &mut self.woken.rooms.lock());
        polled.drain(..).for_each(|room| self.drive(room, answers));
        self.polled = polled;
    }

    fn drive(&mut self, at: usize, answers: &mut Vec<Replied>) {
        // The client is closed: its rooms are gone.
        let Some(Room { request, post, wakers }) = self.rooms.get_mut(at) else { return };
        let Some(under_way) = request else { return };
        let id = under_way.id;
        let mut poll = || under_way.poll(&self.context, post, wakers);
        let answer = match catch_unwind(AssertUnwindSafe(&mut poll)) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(answer)) => (id, answer),
            Err(_) => {
                *post = self.context.runner.store.post(id.node.0);
                panicked(id)
            }
        };
        *request = None;
        self.free(id.node).push(at);
        answers.push(answer);
    }
}

fn panicked(id: RequestId) -> Replied {
    (id, Err(RequestError::Unanswered(Fault::Disconnected.into())))
}
