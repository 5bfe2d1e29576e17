//! The error of a failed attempt to connect.

use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::store::connection::refusal;
use crate::store::dial::Target;
use crate::store::error::{Cause, ConnectError, Fault, Refusal, RequestError};

pub fn connect_error(target: &Target, error: RedisError) -> ConnectError {
    if error.kind() == ErrorKind::RESP3NotSupported {
        // RESP3 came with Redis 6.0.
        return ConnectError::TooOld { found: "older than 6.0".into() };
    }
    match refusal(&error) {
        Some(refusal) => refused(refusal),
        None => target.unreachable(cause(error)),
    }
}

/// For a truncated reply, the crate reports a parser error, which would mislead.
fn cause(error: RedisError) -> Cause {
    if error.kind() == ErrorKind::Parse { Arc::new(Fault::Disconnected) } else { Arc::new(error) }
}

pub fn probe_error(target: &Target, error: RequestError) -> ConnectError {
    match error {
        RequestError::Refused(refusal) => refused(refusal),
        RequestError::NotSent(cause) | RequestError::Unanswered(cause) => target.unreachable(cause),
        _ => target.unreachable(Arc::new(Fault::Disconnected)),
    }
}

fn refused(refusal: Refusal) -> ConnectError {
    match refusal.code.as_str() {
        "READONLY" => ConnectError::ReadOnly,
        "NOAUTH" | "WRONGPASS" => ConnectError::Credentials(refusal),
        // Redis before 7.0 reports `#!lua` as a syntax error.
        _ if refusal.message.contains("unexpected symbol near '#'") => {
            ConnectError::TooOld { found: "older than 7.0".into() }
        }
        _ => ConnectError::Refused(refusal),
    }
}

/// A server that answers CLUSTER with an error is not in a cluster, or the user may not ask.
pub fn cluster_error(target: &Target, error: RedisError) -> ConnectError {
    match refusal(&error) {
        Some(refusal) if refusal.is_about_rights() => {
            let missing = ["+cluster|info", "+cluster|myid", "+cluster|slots"].map(ToOwned::to_owned);
            ConnectError::Rights { missing: missing.to_vec() }
        }
        Some(refusal) if refusal.message.contains("unknown command") => ConnectError::Sentinel,
        Some(refusal) if refusal.message.contains("cluster support disabled") => {
            ConnectError::NotCluster { address: target.place.address.to_string() }
        }
        _ => connect_error(target, error),
    }
}
