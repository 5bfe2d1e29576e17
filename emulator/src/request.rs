//! A request to a server.

use std::time::Instant;

/// A request with its own copies of keys and arguments: the server gets it even if its sender is dropped.
pub struct Request {
    /// The id of the client that sends it.
    pub client: String,
    /// The name of the script.
    pub name: &'static str,
    /// The script.
    pub text: &'static str,
    /// Its KEYS.
    pub keys: Vec<String>,
    /// Its ARGV.
    pub args: Vec<String>,
    /// The slot of its keys.
    pub slot: u16,
    /// ASKING came before it.
    pub asking: bool,
    /// When the client sent it.
    pub sent: Instant,
}
