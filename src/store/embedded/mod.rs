//! The store inside this process: a server that runs the same scripts on keys in memory.

pub mod faults;
pub mod member;
mod request;
mod server;
mod wire;

pub use server::EmbeddedServer;
pub use wire::EmbeddedNode;
