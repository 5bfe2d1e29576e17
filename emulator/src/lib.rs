//! Runs Lua scripts as Redis does, on keys in memory: what the feature `embedded` of fairlock is made of. It knows nothing of
//! locks, connections or time, which the caller sets.
//!
//! It has the commands that the scripts of fairlock use, and no others; their replies, conversions and errors are compared with
//! a real server by fairlock's tests. It changes with fairlock, without notice to others.
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

mod interpreter;
mod keyspace;

pub use interpreter::Interpreter;
pub use keyspace::{Dump, Keyspace, Moves, RefusedCommands, Reply, Snapshot};
