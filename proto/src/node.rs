//! One server: its connection, its clock, and its requests, under way or waiting.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::canonical::{Epoch, RequestNumber};
use crate::effect::Note;
use crate::error::{Cause, Fault, Refusal, RefusalKind, RequestError};
use crate::event::{Connection, NodeId};
use crate::line::Line;
use crate::released::Released;
use crate::slab::Id;
use crate::time::{Clock, Instant, ServerTime};

/// The longest pause before the client probes a refusing server again. It is shorter than the time left to a waiter
/// that was alive before the refusal: the server may grant it the lock as soon as the refusal ends (P3, P6).
const LONGEST_BEFORE_A_PROBE: Duration = Duration::from_millis(500);

/// The part of the machine that asks and reads the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asker {
    /// An owner at a name, for the lock or about the number of its holds.
    Entry(Id),
    /// The renewal of an owner's hold.
    Renewal(Id),
    /// The waiters of a name.
    Queue(Id),
    /// A request that no stage waits for.
    Chore(Id),
}

/// A kind of request with a limit of its own, so that any number of new calls leaves room for renewals (P8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Renewals, confirmations and polls. The client sends nothing else until it has checked a new connection.
    Urgent,
    /// Releases. Others wait for a lock that is not in use.
    Release,
    Cleanup,
    Acquire,
    /// Requests that change nothing. A server that refuses everything else serves them, so their answers do not show
    /// whether it still refuses.
    Read,
}

impl Lane {
    pub const ALL: [Self; 5] = [Self::Urgent, Self::Release, Self::Cleanup, Self::Acquire, Self::Read];
}

/// The place where a request waits until the client may send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub node: NodeId,
    pub lane: Lane,
    pub number: RequestNumber,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy, Hash)]
pub struct InFlight {
    pub asker: Asker,
    pub lane: Lane,
    pub slot: u16,
    /// Leases count from here (R5).
    pub sent: Instant,
    /// The epoch of the slot at that time.
    pub epoch: Epoch,
}

#[derive(Debug, Clone, Hash)]
pub enum Link {
    Down(Cause),
    /// The client checks waits and holds first, until this instant at the latest.
    Checking(Connection, Instant),
    Up(Connection),
}

/// Whether the server serves requests.
#[derive(Debug, Clone, Hash)]
enum Gate {
    Open,
    /// It refuses all requests. One at a time finds out whether it still does.
    Refusing {
        refusal: Refusal,
        backoff: Backoff,
        next_probe: Instant,
        probe: Option<RequestNumber>,
    },
}

#[derive(Debug, Clone, Hash)]
pub struct Node {
    pub id: NodeId,
    pub link: Link,
    pub clock: Clock,
    pub frozen_until: ServerTime,
    /// When the last connection ended.
    pub broke: Option<Instant>,
    pub released: Released,
    /// When the node next has something to do.
    pub due: Option<Instant>,
    gate: Gate,
    waiting: [Line<Asker>; Lane::ALL.len()],
    in_flight: Line<InFlight>,
    counts: [usize; Lane::ALL.len()],
}

impl Node {
    pub fn new(id: NodeId, window: Duration) -> Self {
        Self {
            id,
            link: Link::Down(Fault::NotConnected.into()),
            clock: Clock::default(),
            frozen_until: ServerTime::default(),
            broke: None,
            released: Released::new(window),
            due: None,
            gate: Gate::Open,
            waiting: Default::default(),
            in_flight: Line::default(),
            counts: [0; Lane::ALL.len()],
        }
    }

    pub fn connection(&self) -> Option<Connection> {
        match self.link {
            Link::Down(_) => None,
            Link::Checking(connection, _) | Link::Up(connection) => Some(connection),
        }
    }

    /// How much longer the server grants nothing.
    pub fn frozen_for(&self, now: Instant) -> Option<Duration> {
        let left = self.frozen_until.0.saturating_sub(self.clock.at(now).0);
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_millis)
    }

    /// Why a request that has not failed is unanswered.
    pub fn why_no_answer(&self) -> Cause {
        match (&self.link, &self.gate) {
            (Link::Down(cause), _) => cause.clone(),
            (_, Gate::Refusing { refusal, .. }) => refusal.cause.clone(),
            _ => Fault::NoAnswerYet.into(),
        }
    }

    /// Whether the first request of this lane could go out if the server did not refuse.
    fn is_next(&self, lane: Lane, limit: usize) -> bool {
        // Checked first, because usually no request waits.
        self.has_line(lane)
            && self.counts[lane as usize] < limit
            && match &self.link {
                Link::Down(_) => false,
                Link::Checking(..) => lane == Lane::Urgent,
                Link::Up(_) => true,
            }
    }

    fn may_pass(&self, lane: Lane, now: Instant) -> bool {
        match &self.gate {
            Gate::Open => true,
            Gate::Refusing { .. } if lane == Lane::Read => true,
            Gate::Refusing { next_probe, probe, .. } => probe.is_none() && *next_probe <= now,
        }
    }

    pub fn has_line(&self, lane: Lane) -> bool {
        !self.waiting[lane as usize].is_empty()
    }

    pub fn wait(&mut self, lane: Lane, number: RequestNumber, asker: Asker) -> Place {
        self.waiting[lane as usize].push(number, asker);
        Place { node: self.id, lane, number }
    }

    pub fn stop_waiting(&mut self, place: Place) {
        self.waiting[place.lane as usize].remove(place.number);
    }

    /// Takes the first request that may go out now from its line.
    pub fn take_next(&mut self, limit: usize, now: Instant) -> Option<(Lane, Asker)> {
        let lane = Lane::ALL.into_iter().find(|lane| self.is_next(*lane, limit) && self.may_pass(*lane, now))?;
        self.waiting[lane as usize].pop_first().map(|asker| (lane, asker))
    }

    pub fn sent(&mut self, number: RequestNumber, request: InFlight) {
        self.counts[request.lane as usize] += 1;
        if let Gate::Refusing { probe, .. } = &mut self.gate
            && request.lane != Lane::Read
        {
            *probe = Some(number);
        }
        self.in_flight.push(number, request);
    }

    /// The request has its answer, or will never get one. Its room is free for another one.
    pub fn end(&mut self, number: RequestNumber) -> Option<InFlight> {
        let request = self.in_flight.remove(number)?;
        self.counts[request.lane as usize] -= 1;
        if let Gate::Refusing { probe, .. } = &mut self.gate {
            probe.take_if(|probe| *probe == number);
        }
        Some(request)
    }

    /// The asker of a request that is under way.
    pub fn asker(&self, number: RequestNumber) -> Option<Asker> {
        self.in_flight.get(number).map(|request| request.asker)
    }

    /// The requests under way that pass `is_meant`.
    pub fn under_way(&self, is_meant: impl Fn(&InFlight) -> bool) -> Vec<RequestNumber> {
        self.in_flight.iter().filter(|(_, request)| is_meant(request)).map(|(number, _)| number).collect()
    }

    /// Opens or closes the gate. A request without an answer does neither.
    pub fn answered<T>(&mut self, reply: &Result<T, RequestError>, seed: u64, now: Instant) -> Option<Note> {
        match reply {
            Ok(_) => self.served(),
            Err(RequestError::Refused(refusal)) if refusal.ran_in_part() => self.served(),
            Err(RequestError::Refused(refusal)) if refusal.kind == RefusalKind::ServerForNow => {
                self.refused(refusal, seed, now)
            }
            // The server makes refusals such as NOPERM before it looks whether it refuses everything.
            Err(_) => None,
        }
    }

    fn served(&mut self) -> Option<Note> {
        let was_open = matches!(std::mem::replace(&mut self.gate, Gate::Open), Gate::Open);
        (!was_open).then_some(Note::AcceptsAgain(self.id))
    }

    fn refused(&mut self, refusal: &Refusal, seed: u64, now: Instant) -> Option<Note> {
        if let Gate::Refusing { refusal: last, backoff, next_probe, .. } = &mut self.gate {
            *last = refusal.clone();
            // The server also refuses requests that were under way when the gate closed. They must not push the probe
            // away.
            if *next_probe <= now {
                *next_probe = now + backoff.pause().min(LONGEST_BEFORE_A_PROBE);
            }
            return None;
        }
        let mut backoff = Backoff::new(seed);
        let next_probe = now + backoff.pause();
        self.gate = Gate::Refusing { refusal: refusal.clone(), backoff, next_probe, probe: None };
        Some(Note::Refuses(self.id, refusal.clone()))
    }

    /// Whether all checks on a new connection have their answers.
    pub fn is_checked(&self) -> bool {
        self.counts[Lane::Urgent as usize] == 0 && !self.has_line(Lane::Urgent)
    }

    /// Plans the next time to act: when the time of a request runs out, or when a probe or the end of the checks is
    /// due.
    pub fn plan(&mut self, timeout: Duration, limit: usize) {
        let first = self.in_flight.first().map(|request| request.sent + timeout);
        let probe = match self.gate {
            Gate::Refusing { next_probe, probe: None, .. } => Some(next_probe),
            _ => None,
        };
        let probe = probe.filter(|_| Lane::ALL.into_iter().any(|lane| self.is_next(lane, limit)));
        let checked = if let Link::Checking(_, until) = self.link { Some(until) } else { None };
        self.due = first.into_iter().chain(probe).chain(checked).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    /// Otherwise the line of a server that is down would grow with each call that its caller gives up.
    #[test]
    fn a_request_that_is_not_wanted_leaves_the_line() {
        let (mut node, id) = (Node::new(NodeId(0), Duration::ZERO), Slab::default().insert(()));
        let place = node.wait(Lane::Acquire, RequestNumber(1), Asker::Entry(id));
        assert!(node.has_line(Lane::Acquire));
        node.stop_waiting(place);
        assert!(!node.has_line(Lane::Acquire));
    }

    #[test]
    fn a_server_is_frozen_until_its_clock_says_otherwise() {
        let mut node = Node::new(NodeId(0), Duration::ZERO);
        node.clock.learn(Instant::default(), 100_000);
        assert_eq!(node.frozen_for(Instant::default()), None);
        node.frozen_until = ServerTime(105);
        assert_eq!(node.frozen_for(Instant::default()), Some(Duration::from_millis(5)));
        assert_eq!(node.frozen_for(Instant::from_micros(5000)), None);
    }

    /// P3, P6: soon enough for the waiters.
    #[test]
    fn a_server_that_goes_on_refusing_is_asked_again_after_a_pause() {
        let refusal = Refusal { kind: RefusalKind::ServerForNow, cause: Fault::OtherReply.into() };
        let refused = Err::<(), _>(RequestError::Refused(refusal));
        let mut node = Node::new(NodeId(0), Duration::ZERO);
        for second in 60..70 {
            let now = Instant::from_micros(second * 1_000_000);
            assert!(node.may_pass(Lane::Acquire, now));
            node.answered(&refused, 7, now);
            assert!(!node.may_pass(Lane::Acquire, now));
            assert!(node.may_pass(Lane::Acquire, now + LONGEST_BEFORE_A_PROBE));
        }
        // A request that the server stops half-way has begun to run, so the server serves again.
        let half_way = Refusal { kind: RefusalKind::HalfWay, cause: Fault::OtherReply.into() };
        let note = node.answered(&Err::<(), _>(RequestError::Refused(half_way)), 7, Instant::default());
        assert!(matches!(note, Some(Note::AcceptsAgain(_))) && node.may_pass(Lane::Acquire, Instant::default()));
    }
}
