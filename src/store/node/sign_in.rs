//! A connection that has signed in: to a server, a Sentinel, or a node that is asked about its cluster.

use redis::{ErrorKind, RedisError};

use super::error::{cause, connect_error};
use crate::store::connection::{Connection, Unasked, refusal};
use crate::store::dial::{FirstBytes, Limit, Stream, Target};
use crate::store::error::ConnectError;

/// Also returns the first bytes that came: they distinguish an HTTP or TLS server from a silent one.
pub async fn sign_in(
    target: &Target,
    limit: Limit,
    handle: impl Fn(Unasked<'_>) + Send + Sync + 'static,
) -> Result<(Connection, FirstBytes), ConnectError> {
    // Before dialling: a provider that takes long must not keep a connection waiting that has not
    // signed in.
    let credentials = target.credentials(limit).await?;
    let Stream { io, first } = target.dial(limit).await?;
    match limit.run(Connection::open(io, &credentials, handle)).await {
        Some(Ok(connection)) => Ok((connection, first)),
        Some(Err(error)) => Err(sign_in_error(target, error, &first)),
        None => Err(target.silent(&first, limit)),
    }
}

/// An error of the first exchange: here it shows that something else than Redis answers.
fn sign_in_error(target: &Target, error: RedisError, first: &FirstBytes) -> ConnectError {
    if refusal(&error).is_some() || error.kind() == ErrorKind::RESP3NotSupported {
        return connect_error(target, error);
    }
    target.broken_off(first, cause(error))
}
