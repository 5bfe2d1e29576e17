//! Looks at names that none of this client's owners waits for: a lock that is free is passed on, and what a server that took
//! over has brought back is released once more (R15).

use std::sync::Arc;

use crate::backoff::Backoff;
use crate::canonical::{RequestNumber, Seq};
use crate::desk::{Desk, Standing, Wish};
use crate::effect::Request;
use crate::error::RequestError;
use crate::event::{Answer, Reply};
use crate::keys::Keys;
use crate::node::{Asker, Lane};
use crate::requests::poll::{Poll, PolledHolder};
use crate::sending::{Answered, Sending};
use crate::slab::{Id, Slab};
use crate::time::Instant;
use crate::timers::Timer;

#[derive(Debug, Clone, Hash)]
struct Look {
    keys: Arc<Keys>,
    slot: u16,
    purpose: Purpose,
    sending: Sending,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, Hash)]
enum Purpose {
    /// The lock is free, and a live ticket may wait behind the places that one call reads. An error ends it: clients that wait
    /// go on with polls of their own, and without them the queue expires (P10).
    PassOn,
    /// The name was released just before its server was replaced. It is asked about until there is an answer, or until a hold
    /// that is back there has ended.
    Released { until: Instant, backoff: Backoff },
}

#[derive(Debug, Clone, Default, Hash)]
pub struct Looks(Slab<Look>);

impl Looks {
    pub fn ids_from(&self, from: usize, count: usize) -> (Vec<Id>, Option<usize>) {
        self.0.ids_from(from, count)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Desk<'_> {
    pub fn pass_on(&mut self, keys: Arc<Keys>, slot: u16) {
        self.look(keys, slot, Purpose::PassOn);
    }

    pub fn look_at_released(&mut self, keys: Arc<Keys>, slot: u16, until: Instant) {
        let backoff = self.backoff(Seq::default());
        self.look(keys, slot, Purpose::Released { until, backoff });
    }

    fn look(&mut self, keys: Arc<Keys>, slot: u16, purpose: Purpose) {
        let look = Look { keys, slot, purpose, sending: Sending::Waits, standing: Standing::default() };
        let id = self.common.looks.0.insert(look);
        self.keep_look(id);
    }

    pub fn ask_to_look(&mut self, id: Id, number: RequestNumber) -> Option<(Request, u16)> {
        let look = self.common.looks.0.get_mut(id)?;
        (look.standing.place, look.sending) = (None, Sending::UnderWay(number));
        let poll = Poll { keys: look.keys.clone(), waits: false, names_ours: false, tickets: Vec::new() };
        Some((Request::Poll(poll), look.slot))
    }

    /// Returns the name and its holder.
    pub fn looked(&mut self, id: Id, answered: Answered) -> Option<(Arc<Keys>, PolledHolder)> {
        let look = self.common.looks.0.get_mut(id).filter(|look| look.sending.awaits(answered.number))?;
        match answered.reply {
            Ok(Reply { answer: Answer::Polled(polled), .. }) => {
                let keys = look.keys.clone();
                if polled.more {
                    look.sending = Sending::Waits;
                    self.keep_look(id);
                } else {
                    self.end_look(id);
                }
                polled.holder.map(|holder| (keys, holder))
            }
            reply => {
                self.look_again(id, reply.err());
                None
            }
        }
    }

    fn look_again(&mut self, id: Id, error: Option<RequestError>) {
        let now = self.now;
        let Some(look) = self.common.looks.0.get_mut(id) else { return };
        let is_final = match &error {
            Some(RequestError::Refused(refusal)) => !refusal.may_pass(),
            Some(RequestError::RuntimeGone) => true,
            _ => false,
        };
        match &mut look.purpose {
            Purpose::Released { backoff, .. } if !is_final => {
                look.sending = Sending::Pause(now + backoff.pause());
                self.keep_look(id);
            }
            _ => self.end_look(id),
        }
    }

    pub fn look_time(&mut self, id: Id) {
        let now = self.now;
        let Some(look) = self.common.looks.0.get_mut(id) else { return };
        if matches!(look.purpose, Purpose::Released { until, .. } if until <= now) {
            return self.end_look(id);
        }
        look.sending.go_on(now);
        self.keep_look(id);
    }

    fn end_look(&mut self, id: Id) {
        let Some(look) = self.common.looks.0.remove(id) else { return };
        self.forget(look.standing, Timer::Look(id));
    }

    pub fn keep_look(&mut self, id: Id) {
        let Some(look) = self.common.looks.0.get(id) else { return };
        let until = if let Purpose::Released { until, .. } = look.purpose { Some(until) } else { None };
        let due = look.sending.due().into_iter().chain(until).min();
        let (slot, wants) = (look.slot, look.sending.wants(Lane::Cleanup));
        let wish = Wish { timer: Timer::Look(id), asker: Asker::Look(id), slot, due, wants };
        let standing = self.keep(look.standing, wish);
        if let Some(look) = self.common.looks.0.get_mut(id) {
            look.standing = standing;
        }
    }
}
