//! How the command ends: exit codes like those of `flock(1)`, shells and `sysexits.h`.

use std::error::Error;
use std::io;

use fairlock::{ConnectError, HandleError, LockError, Refusal, RequestError};

pub const OK: u8 = 0;
/// `doctor` found something that breaks a promise. Also `lock`'s default if others have the lock.
pub const FOUND: u8 = 1;
pub const USAGE: u8 = 2;
/// EX_UNAVAILABLE: the server cannot be reached, is not ready yet, does not answer, or has a full queue.
pub const UNAVAILABLE: u8 = 69;
/// EX_OSERR: something on this machine failed.
const SYSTEM: u8 = 71;
/// EX_TEMPFAIL: the lock was lost while the command ran.
pub const LOST: u8 = 75;
/// EX_NOPERM: the server refuses until someone changes something.
const REFUSED: u8 = 77;
pub const CANNOT_RUN: u8 = 126;
pub const NOT_FOUND: u8 = 127;
/// Plus the number of the signal.
pub const SIGNAL: u8 = 128;
const SIGPIPE: u8 = 13;

#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// One line, or empty for no message.
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }
}

/// The error's text, with its causes.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::new(code_of(&error), chain(&error))
    }
}

fn code_of(error: &ConnectError) -> u8 {
    match error {
        // Only --cacert provides certificates.
        ConnectError::Options(_) | ConnectError::Url(_) | ConnectError::CertificatesProvider(_) => USAGE,
        // The error of one of several servers.
        ConnectError::Server { cause, .. } => code_of(cause),
        error if error.may_pass() => UNAVAILABLE,
        _ => REFUSED,
    }
}

pub fn code_of_refusal(refusal: &Refusal) -> u8 {
    if refusal.may_pass() { UNAVAILABLE } else { REFUSED }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::Name(_) | RequestError::SeveralServers => USAGE,
            RequestError::Refused(refusal) => code_of_refusal(refusal),
            _ => UNAVAILABLE,
        };
        Self::new(code, chain(&error))
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockError::Name(_)
            | LockError::Lease(_)
            | LockError::Label(_)
            | LockError::Permits { .. }
            | LockError::SeveralServers => USAGE,
            LockError::Refused(refusal) => code_of_refusal(refusal),
            _ => UNAVAILABLE,
        };
        Self::new(code, chain(&error))
    }
}

impl From<HandleError> for Failure {
    fn from(error: HandleError) -> Self {
        let code = match &error {
            HandleError::OtherPrefix { .. } | HandleError::SeveralServers | HandleError::Lease(_) => USAGE,
            HandleError::Request(RequestError::Refused(refusal)) => code_of_refusal(refusal),
            HandleError::Lost => LOST,
            _ => UNAVAILABLE,
        };
        Self::new(code, chain(&error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The reader has closed the output, as `head` does. Other commands die of SIGPIPE then.
            io::ErrorKind::BrokenPipe => Self::new(SIGNAL + SIGPIPE, ""),
            _ => Self::new(SYSTEM, error.to_string()),
        }
    }
}
