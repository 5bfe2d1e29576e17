//! Internal to fairlock: its versions go in step with fairlock's, and its API is stable for no one else.
//!
//! The client side of fairlock's protocol as a state machine. The machine decides and does no IO:
//! [`Event`](event::Event)s go in, [`Effect`](effect::Effect)s come out, and the driver passes in the time as a
//! number. So every race is a sequence of calls that a test can write down and a search can find. quinn-proto, rustls
//! and raft-rs have the same shape.
//!
//! ```text
//! session.step(now, event, &mut effects);     // one client
//! session.next_timer();                       // when Event::Time is due
//! ```
//!
//! # Stages
//!
//! Each owner is in one of these stages at each name. A transition takes the stage by value and returns the next one.
//!
//! ```text
//!               call                 queued                 a grant that is trusted
//!   Idle ----------------> Asking ------------> Queued --------------------------------+
//!     ^                     |  | ^               |  ^ |                                 |
//!     |  busy, failed, gone |  | |  no place     |  | | a grant that is asked about     |
//!     +---------------------+  | +---------------+  | v                                 v
//!     |                        |   held, too late  Confirming ----------------------> Held
//!     |                        +------------------->    held                            |
//!     |                        |                                                        |
//!     |                        +-------------------- held ----------------------------->|
//!     |                                                                                 |
//!     |   answered, or its time is over               the last guard ends               |
//!     +------------------------------- Releasing <--------------------------------------+
//!     |                                                                                 |
//!     |   given, or that is unknown                   it is to be a handle's            |
//!     +------------------------------- Detaching <------------------------------------->|
//!     |                                                            refused              |
//!     |   the last guard ends                         expired, gone, forced, closed     |
//!     +------------------------------- Lost <-------------------------------------------+
//! ```
//!
//! - **Idle.** The server keeps nothing of the owner, and the owner's next call begins.
//! - **Asking.** A request for the lock is waiting to be sent, under way, or pausing before a retry, always with the
//!   same seq (R1). A grant may come before the answer that the client needs to judge it (R7).
//! - **Queued.** The server has given the attempt a place. The [`queue`] of the name polls for all waiters together
//!   (R8).
//! - **Confirming.** The server granted the lock, but the client cannot be sure that it still has it, and asks.
//! - **Held.** At least one guard exists, and each is offered, claimed or ending. The server's count is settled, or
//!   the client asks for one more hold, a smaller count (P4), or a longer lease. The lease is as the client wants it,
//!   or the client asks about it. Each guard has a weight, 1 for a lock; the server counts the greatest.
//! - **Detaching.** The only guard gives its hold to a handle (R16), and does not rely on it in the meantime. If the
//!   server refuses, the guard keeps the hold. If the outcome is unknown, the caller gets the handle and the owner
//!   leaves.
//! - **Releasing.** No guard is left. The client repeats the release until it is answered, or the lease has ended.
//! - **Lost.** The hold is lost, and guards still exist. Each guard learns of the loss, and nested calls fail.
//!
//! Calls of one owner wait in line at its [`entry`](stages::entry). A request that makes the server forget something
//! is a [`chore`], which no stage waits for (R9).
//!
//! One step can make these transitions; `verify/explore` compares the list with the transitions that it sees. Two of
//! them may look like one: if a call ends, the next in line begins at once, and once the runtime has gone, a release
//! ends as it begins.
//!
//! ```text
//! Asking -> Queued, Confirming, Held, HeldEntering, Lost, Idle
//! Queued -> Asking, Confirming, Held, HeldEntering, Lost, Idle
//! Confirming -> Asking, Queued, Held, HeldEntering, Lost, Idle
//! Held -> HeldEntering, HeldSetting, HeldExtending, Detaching, Releasing, Lost, Idle
//! HeldEntering -> Held, HeldSetting, HeldExtending, Releasing, Lost
//! HeldSetting -> Held, HeldEntering, HeldExtending, Detaching, Releasing, Lost, Idle
//! HeldExtending -> Held, HeldEntering, HeldSetting, Lost
//! Detaching -> Held, HeldEntering, Asking, Lost, Idle
//! Releasing -> Idle, Asking
//! Lost -> Idle
//! ```
//!
//! # What the driver does
//!
//! - It sends each [`Effect::Send`](effect::Effect::Send) at once, in order, and only on the connection that the
//!   effect names. The machine keeps the limits, lanes and time-outs ([`node`]).
//! - It hands in each answer, message and change of a connection. The machine counts an answer of an earlier
//!   connection as missing, and drops its messages. Otherwise a hold could begin that the new server does not know,
//!   and nothing would check it.
//! - It steps the machine again at [`next_timer`](session::Session::next_timer). A step does a bounded part of the
//!   work, and then the timer is due at once. The bound counts owners, names, timers and requests: one step notifies
//!   all calls of an owner.
//! - It gives each [`Effect::Tell`](effect::Effect::Tell) to the caller, and reports to the machine that the caller
//!   has claimed its grant. The machine gives back a grant that stays unclaimed for 250 ms.

pub mod backoff;
pub mod canonical;
pub mod chore;
pub mod command;
pub mod desk;
pub mod effect;
pub mod errand;
pub mod error;
pub mod event;
pub mod handle;
pub mod held_by;
pub mod housekeeping;
pub mod keys;
pub mod lease;
pub mod line;
pub mod node;
pub mod polling;
pub mod push;
pub mod question;
pub mod queue;
pub mod released;
pub mod reply;
pub mod request;
pub mod requests;
pub mod self_wait;
pub mod sending;
pub mod session;
pub mod settings;
pub mod slab;
pub mod slots;
pub mod stages;
pub mod time;
pub mod timers;
pub mod trust;
pub mod work;
