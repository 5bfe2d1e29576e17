//! A server in memory that runs Lua scripts as Redis does. The feature `embedded` of fairlock connects to it. It
//! knows nothing of locks.
//!
//! An [`Interpreter`] runs scripts on keys, and the caller sets its clock. A [`Server`] adds connections,
//! subscribers, tokio's clock and [`Faults`]. Several servers are independent masters, or the nodes of a cluster.
//!
//! It has only the commands that the scripts of fairlock use. Fairlock's tests compare their replies, conversions and
//! errors with a real server. It changes with fairlock, without notice to others.
//!
//! ```
//! use fairlock_emulator::{Interpreter, Reply};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut server = Interpreter::new()?;
//! let script = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])";
//! assert_eq!(server.eval("set", script, &[b"x"], &[b"5"]), Reply::Bulk(b"5".to_vec()));
//! # Ok(())
//! # }
//! ```

mod faults;
mod interpreter;
mod keyspace;
mod member;
mod request;
mod server;
mod sync;

pub use faults::{Delivery, Faults, Published, Ran, Redirected, Task};
pub use interpreter::Interpreter;
pub use keyspace::{Dump, Keyspace, Moves, RefusedCommands, Reply, Snapshot};
pub use member::Slot;
pub use request::Request;
pub use server::{Connection, Pushes, Server};
