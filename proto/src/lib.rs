//! Internal to fairlock: no promise of stability for others, and versions in step.
//!
//! The client side of fairlock's protocol as a state machine. It decides, and does no IO: [`Event`](event::Event)s go in,
//! [`Effect`](effect::Effect)s come out, and time is a number that its driver brings along. So every race is a sequence of calls,
//! which a test writes down and a search finds. The shape is that of quinn-proto, rustls and raft-rs.
//!
//! ```text
//! session.step(now, event, &mut effects);     // one client
//! session.next_timer();                       // when Event::Time is due
//! ```
//!
//! # Stages
//!
//! What one owner has or wants at one name is one of these. A transition takes the stage by value and returns the next one.
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
//! - **Idle.** Nothing of the owner is at the server, and the next of its calls begins.
//! - **Asking.** A request for the lock is to be sent, under way, or to be repeated after a pause, always with the same seq (R1).
//!   A grant may come before the answer that is needed to judge it (R7).
//! - **Queued.** The server has given it a place. The [`queue`] of its name polls for all waiters together (R8).
//! - **Confirming.** It was granted the lock and cannot be sure that this is still so: the server is asked.
//! - **Held.** A product of small enums: its guards are offered, claimed or ending; what the server counts of them is settled, one more
//!   hold is asked for, less is set (P4), or a longer lease is asked for; and the lease is kept, or asked about. At least one guard is
//!   there. Each guard has a weight: of a lock 1. The server counts the greatest.
//! - **Detaching.** The only guard gives its hold to a handle (R16), and does not rely on it meanwhile. Refused, it is held as before;
//!   if the outcome is unknown, the handle is told and the owner leaves.
//! - **Releasing.** No guard is left, and the release is repeated until it is answered, or the lease is over.
//! - **Lost.** The hold is lost, and guards are still there: each learns of it, and a nested call is refused.
//!
//! Calls of one owner wait in a line at its [`entry`](stages::entry), so they need no turns. What is to be forgotten by the server
//! is a [`chore`] of its own, which no stage waits for (R9).
//!
//! These transitions happen within one step; `verify/explore` holds the list to what it sees. Where a call ends another one of its
//! line begins at once, and with the runtime gone a release ends as it begins, so two of them may be seen as one:
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
//! - It sends what [`Effect::Send`](effect::Effect::Send) says, at once, in order, and by that connection alone. Limits, lanes and
//!   time-outs are the machine's ([`node`]).
//! - It hands in each answer, message and change of a connection. An answer to a request of an earlier connection counts as none,
//!   and a message by one is dropped: else a hold would begin that the new server does not know, and that nobody checks.
//! - It comes back at [`next_timer`](session::Session::next_timer). A step does a bounded part of what is due; then the timer is due
//!   at once. The bound counts owners, names, timers and requests: the calls of one owner are told in one step.
//! - It tells callers what [`Effect::Tell`](effect::Effect::Tell) says, and that they have claimed it. A grant that its caller does
//!   not claim within 250 ms is given back.

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
