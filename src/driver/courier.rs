//! Sends the machine's requests and brings the answers. One thread at a time, so that requests go out in order.

use std::sync::{Arc, Weak};

use fairlock_proto::event::RequestId;
use fairlock_proto::request::Request;

use super::context::Context;
use super::requests::Replied;
use super::room::{Carrier, Rooms};

pub struct Courier {
    rooms: Rooms,
    answers: Vec<Replied>,
    outbox: Vec<(RequestId, Request)>,
}

impl Courier {
    pub fn new(context: Arc<Context>, carrier: Weak<dyn Carrier>) -> Self {
        Self { rooms: Rooms::new(context, carrier), answers: Vec::new(), outbox: Vec::new() }
    }

    /// Sends nothing more, and drops the requests under way: one without an answer would keep its connection.
    pub fn end(&mut self) {
        self.rooms.clear();
    }

    /// `exchange` hands in answers, and fetches the requests to send.
    pub fn carry(&mut self, mut exchange: impl FnMut(&mut Vec<Replied>, &mut Vec<(RequestId, Request)>)) {
        self.rooms.go_on(&mut self.answers);
        loop {
            exchange(&mut self.answers, &mut self.outbox);
            self.outbox.reverse();
            while let Some((id, request)) = self.outbox.pop() {
                self.rooms.begin(id, request, &mut self.answers);
            }
            // Usually no answer comes at once.
            if self.answers.is_empty() {
                return;
            }
        }
    }
}
