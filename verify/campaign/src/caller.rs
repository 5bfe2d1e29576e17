//! The common part of all callers of a client process: they ask, wait, rely on their holds, release them, and record
//! all of it.

use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlock::{Held, LockClient, LockError, Loss, Tried, UnlockError};
use fastrand::Rng;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::history::{History, now};
use crate::kinds::{Guard, Wanted};
use crate::settings::Settings;

/// How often a long holder looks at its deadline.
const LOOK: Duration = Duration::from_millis(50);

/// A client process.
pub struct Worker {
    pub client: LockClient,
    pub history: History,
    pub settings: Settings,
    pub next_id: AtomicU64,
    /// Becomes true when the driver closes this process's standard input.
    pub stop: watch::Receiver<bool>,
}

/// One caller: its random choices, and its connection to the register.
pub struct Caller {
    pub worker: Arc<Worker>,
    pub rng: Rng,
    register: BufReader<UnixStream>,
}

pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Worker {
    pub fn has_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    pub async fn stopped(&self) {
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// `more`: further fields of the line.
    pub fn ask(&self, name: &str, how: &str, limit: Option<Duration>, more: &str) -> u64 {
        let id = self.new_id();
        let limit = limit.map_or_else(String::new, |limit| format!(r#","limit":{}"#, limit.as_millis()));
        self.history.line("ask", format_args!(r#""id":{id},"n":"{name}","how":"{how}"{limit}{more}"#));
        id
    }

    pub fn end(&self, id: u64, why: &str) {
        self.history.line("end", format_args!(r#""id":{id},"why":"{why}""#));
    }

    pub fn lost(&self, id: u64, loss: Loss, known: u64) {
        let why = loss_name(loss);
        self.history.line("lost", format_args!(r#""id":{id},"why":"{why}","until":{known}"#));
    }

    /// `more`: further fields of the line.
    pub fn holds(&self, id: u64, held: &Held, more: &str) {
        let (token, owner, until) = (held.token(), held.owner_id(), until(held));
        self.history.line("hold", format_args!(r#""id":{id},"tok":{token},"own":"{owner}","until":{until}{more}"#));
    }

    /// Records the outcome of a call. `fixed`: the lease is not renewed.
    pub fn told<G: Guard>(
        &self,
        id: u64,
        outcome: Result<Tried<G>, LockError>,
        fixed: Option<Duration>,
    ) -> Option<(u64, G)> {
        match outcome {
            Ok(Tried::Acquired(guard)) => {
                let fixed = fixed.map_or_else(String::new, |lease| format!(r#","fixed":{}"#, lease.as_millis()));
                self.holds(id, &guard, &fixed);
                return Some((id, guard));
            }
            Ok(Tried::Busy(_)) => self.end(id, "busy"),
            Err(error) => self.end(id, reason(&error)),
        }
        None
    }
}

/// The local deadline. It reads the clock first, so the deadline is rather too early.
pub fn until(held: &Held) -> u64 {
    let before = now();
    before + nanos(held.valid_for())
}

pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

pub fn reason(error: &LockError) -> &'static str {
    match error {
        LockError::Timeout { .. } => "timeout",
        LockError::Lost => "lost",
        LockError::QueueFull { .. } => "full",
        LockError::Unreachable(_) => "unreachable",
        LockError::Refused(_) => "refused",
        LockError::Closed => "closed",
        _ => "other",
    }
}

fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::Forced => "forced",
        Loss::Closed => "closed",
        _ => "other",
    }
}

impl Caller {
    pub async fn new(worker: &Arc<Worker>, rng: &mut Rng) -> Self {
        let stream = UnixStream::connect(&worker.settings.register).await.expect("the register is there");
        Self { worker: worker.clone(), rng: rng.fork(), register: BufReader::new(stream) }
    }

    /// Waits without a limit, until the load ends.
    pub async fn wait<W: Wanted>(&self, wanted: &W, fixed: Option<Duration>) -> Option<(u64, W::Guard)> {
        let worker = &self.worker;
        let id = worker.ask(wanted.name(), "lock", None, &wanted.share());
        let mut waiting = pin!(wanted.wait());
        tokio::select! {
            biased;
            outcome = &mut waiting => worker.told(id, outcome.map(Tried::Acquired), fixed),
            () = worker.stopped() => {
                // Before the drop, at which the server learns of it.
                worker.end(id, "cancelled");
                None
            }
        }
    }

    pub async fn wait_for<W: Wanted>(&self, wanted: &W, limit: Duration) -> Option<(u64, W::Guard)> {
        let id = self.worker.ask(wanted.name(), "timeout", Some(limit), &wanted.share());
        let outcome = wanted.wait_for(limit).await;
        self.worker.told(id, outcome.map(Tried::Acquired), None)
    }

    pub async fn try_it<W: Wanted>(&mut self, wanted: &W) -> Option<(u64, W::Guard)> {
        let id = self.worker.ask(wanted.name(), "try", None, &wanted.share());
        let got = self.worker.told(id, wanted.try_it().await, None);
        if got.is_none() {
            sleep(self.ms(1..20)).await;
        }
        got
    }

    /// Gives up by dropping its future.
    pub async fn give_up<W: Wanted>(&mut self, wanted: &W) -> Option<(u64, W::Guard)> {
        let patience = Duration::from_micros(self.rng.u64(0..40_000));
        let worker = &self.worker;
        let id = worker.ask(wanted.name(), "lock", None, &wanted.share());
        let mut waiting = pin!(wanted.wait());
        tokio::select! {
            outcome = &mut waiting => worker.told(id, outcome.map(Tried::Acquired), None),
            () = sleep(patience) => {
                worker.end(id, "cancelled");
                None
            }
        }
    }

    pub fn ms(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    /// The length of a section: mostly none.
    pub fn length(&mut self) -> Duration {
        match self.rng.u32(0..200) {
            0 => self.ms(100..600),
            1..40 => self.ms(1..6),
            _ => Duration::ZERO,
        }
    }

    pub async fn ask_register(&mut self, request: &str) -> String {
        let mut answer = String::new();
        self.register.get_mut().write_all(request.as_bytes()).await.expect("the register is there");
        self.register.read_line(&mut answer).await.expect("the register answers");
        answer.truncate(answer.trim_end().len());
        answer
    }

    /// `access`: `write`, or `read`.
    pub async fn write(&mut self, id: u64, held: &Held, access: &str) {
        let client = &self.worker.settings.id;
        let request = format!("{access} {client} {id} {} {}\n", held.name(), held.token());
        self.ask_register(&request).await;
    }

    /// Writes to the register, holds for this time, and releases. Ends early at a loss.
    pub async fn section<G: Guard>(&mut self, id: u64, guard: G, length: Duration) {
        if self.rely(id, &guard, length).await {
            self.give_back(id, guard).await;
        }
    }

    /// Writes to the register, and holds for this time. `false`: the hold was lost.
    pub async fn rely<G: Guard>(&mut self, id: u64, guard: &G, length: Duration) -> bool {
        if let Some(access) = G::AT_REGISTER {
            self.write(id, guard, access).await;
        }
        if !length.is_zero()
            && let Some((loss, known)) = self.hold_on(id, guard, length).await
        {
            self.worker.lost(id, loss, known);
            return false;
        }
        true
    }

    pub async fn give_back<G: Guard>(&mut self, id: u64, guard: G) {
        self.worker.history.line("free", format_args!(r#""id":{id}"#));
        if self.rng.u32(0..10) == 0 {
            return drop(guard);
        }
        let why = match guard.release().await {
            Ok(()) => "ok",
            Err(UnlockError::Lost(_)) => "lost",
            Err(UnlockError::Refused { .. }) => "refused",
            Err(UnlockError::Unknown { .. }) => "unknown",
            Err(_) => "other",
        };
        self.worker.history.line("freed", format_args!(r#""id":{id},"why":"{why}""#));
    }

    /// The loss, if there was one, and the last known deadline before it.
    async fn hold_on<G: Guard>(&mut self, id: u64, guard: &G, length: Duration) -> Option<(Loss, u64)> {
        let (worker, over) = (self.worker.clone(), now() + nanos(length));
        let step = nanos(worker.settings.lease) / 6;
        // Zero until the caller has seen a deadline ahead.
        let (mut known, mut written) = (0, 0);
        let mut lost = pin!(guard.lost());
        while now() < over && !worker.has_stopped() {
            let look = LOOK.min(Duration::from_nanos(over.saturating_sub(now())));
            tokio::select! {
                biased;
                loss = &mut lost => return Some((loss, known)),
                () = sleep(look) => {}
            }
            // Reads the clock before the deadline: a process that stops between the two claims too little.
            let looked = now();
            known = match nanos(guard.valid_for()) {
                0 => known,
                left => looked + left,
            };
            if known > written + step {
                worker.history.line("until", format_args!(r#""id":{id},"until":{known}"#));
                written = known;
            }
        }
        None
    }
}
