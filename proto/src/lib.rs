//! Internal to fairlock: no promise of stability for others, and its versions go in step with those of fairlock.

/// What is sent to a server: a script, its keys and its arguments.
pub mod command;
/// The names of keys, channels and tickets.
pub mod keys;
/// The messages that scripts publish to a client.
pub mod push;
/// The replies of scripts, read field by field.
pub mod reply;
/// A request and its reply for each script of `lua/`.
pub mod requests;
