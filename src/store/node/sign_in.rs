//! A connection that has signed in: to a server, a Sentinel, or a node that is asked about its cluster.

use std::net::SocketAddr;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::error::connect_error;
use crate::store::connection::{Connection, refusal};
use crate::store::dial::{Limit, Stream, Target};
use crate::store::error::ConnectError;

/// A connection, and what dialling has found.
pub struct SignedIn {
    pub connection: Connection,
    /// The address of the server, unless it is a socket.
    pub peer: Option<SocketAddr>,
}

/// Signs in at one of the addresses that the name leads to now.
pub async fn sign_in(
    target: &Target,
    limit: Limit,
    handle: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Result<SignedIn, ConnectError> {
    let addresses = target.look_up(limit).await?;
    sign_in_at(target, &addresses, limit.limit, handle).await
}

/// The time of a look-up does not count: the error would blame a host or a firewall for a slow resolver.
pub async fn sign_in_at(
    target: &Target,
    addresses: &[SocketAddr],
    limit: Duration,
    handle: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Result<SignedIn, ConnectError> {
    let limit = Limit::of(limit);
    // Before dialling: a provider that takes long must not keep a connection waiting that has not
    // signed in.
    let credentials = target.credentials(limit).await?;
    let Stream { io, peer } = target.dial(addresses, limit).await?;
    match limit.run(Connection::open(io, &credentials, handle)).await {
        Some(Ok(connection)) => Ok(SignedIn { connection, peer }),
        Some(Err(error)) => Err(sign_in_error(target, error)),
        None => Err(target.silent(limit)),
    }
}

/// An error of the first exchange: here it shows that something else than Redis answers.
fn sign_in_error(target: &Target, error: RedisError) -> ConnectError {
    if refusal(&error).is_some() || error.kind() == ErrorKind::RESP3NotSupported {
        return connect_error(target, error);
    }
    target.broken_off(&error)
}
