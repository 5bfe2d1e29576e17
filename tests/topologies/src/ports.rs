//! Ports for servers. `tests/it` uses this file too.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 11_000;
const COUNT: u16 = 20_000;

/// A port that is free, that this process has never returned before, and that the system does not give to outgoing
/// connections: a restarted server needs the same port, and so does the client that tries to reconnect. Ports chosen
/// by the system (port 0) collided: with a port just returned to another test, or with one at which another test's
/// client still tried to reach a killed server.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Concurrent processes start far from each other.
    let first = std::process::id().wrapping_mul(7919) % u32::from(COUNT);
    loop {
        let given = u32::from(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from((first + given) % u32::from(COUNT)).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
