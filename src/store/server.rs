//! What one of a client's servers tells, and what is known of it.

use tokio_util::sync::CancellationToken;

use super::error::Cause;

/// What is known of a connection.
#[derive(Debug, Clone)]
pub enum Line {
    /// No lock there was asked for yet.
    Idle,
    Down(Cause),
    /// It is up again, and what is held and waited for is checked first.
    Resuming,
    Up,
    RuntimeGone,
    Closed,
}

/// The answer to a command.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its texts, without the lists that they are in.
    pub texts: Vec<Vec<u8>>,
    /// Cancelled when the connection that it came over is gone.
    pub connection: CancellationToken,
}
