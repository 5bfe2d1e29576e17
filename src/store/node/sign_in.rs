//! A signed-in connection: to a server, to a Sentinel, or to a node that the client asks about its cluster.

use std::net::SocketAddr;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::error::connect_error;
use crate::store::connection::{Connection, refusal};
use crate::store::dial::{Limit, Stream, Target};
use crate::store::error::ConnectError;

/// A connection, and the address that dialling has reached.
pub struct SignedIn {
    pub connection: Connection,
    /// The address of the server, unless it is a socket.
    pub peer: Option<SocketAddr>,
}

/// Signs in at one of the addresses to which the name leads now.
pub async fn sign_in(
    target: &Target,
    limit: Limit,
    handle: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Result<SignedIn, ConnectError> {
    let addresses = target.look_up(limit).await?;
    sign_in_at(target, &addresses, limit.limit, handle).await
}

/// The limit excludes the look-up: otherwise the error would blame a host or a firewall for a slow resolver.
pub async fn sign_in_at(
    target: &Target,
    addresses: &[SocketAddr],
    limit: Duration,
    handle: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Result<SignedIn, ConnectError> {
    let limit = Limit::of(limit);
    // Before dialling: a slow provider must not keep a connection waiting that has not signed in.
    let credentials = target.credentials(limit).await?;
    let Stream { io, peer } = target.dial(addresses, limit).await?;
    match limit.run(Connection::open(io, &credentials, handle)).await {
        Some(Ok(connection)) => Ok(SignedIn { connection, peer }),
        Some(Err(error)) => Err(sign_in_error(target, error)),
        None => Err(target.silent(limit)),
    }
}

/// An error of the first exchange, which also shows if something other than Redis answers.
fn sign_in_error(target: &Target, error: RedisError) -> ConnectError {
    if refusal(&error).is_some() || error.kind() == ErrorKind::RESP3NotSupported {
        return connect_error(target, error);
    }
    target.broken_off(&error)
}
