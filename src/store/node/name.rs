//! Notices when a host name leads to another server while a connection lives. Managed services and orchestrators move
//! names, and the old server may continue to run.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::network::{Established, NamedServer, NetworkWire};
use super::wire::Supervised;
use crate::store::dial::Target;
use crate::store::error::ConnectError;

/// How often the client looks up a name. Redisson uses the same interval.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many answers in a row must lack the server's address: while a name moves, name servers disagree.
const ANSWERS: u32 = 2;

impl Target {
    /// Resolves when the name no longer leads to this address. For Sentinels: changing to another Sentinel loses no
    /// state, so this works without a `run_id`.
    pub async fn name_left(&self, address: Option<SocketAddr>) {
        let (Some(name), Some(address)) = (self.name(), address) else { return pending().await };
        let mut lacking = 0;
        while lacking < ANSWERS {
            sleep(INTERVAL).await;
            let Ok(addresses) = self.resolve(&name).await else { continue };
            lacking = if addresses.contains(&address) { 0 } else { lacking + 1 };
        }
    }
}

impl Supervised<NetworkWire> {
    /// Resolves with the new primary when the name leads to another one. Never resolves if the `run_id` is unknown: a
    /// new address may belong to the same server.
    pub async fn name_moved(&self, attached: &Established) -> NamedServer {
        let Established { target, server: Some(server), is_late, .. } = attached else { return pending().await };
        let (mut server, mut lacking, mut said) = (server.clone(), 0, String::new());
        // A late look-up is still under way, and its answer counts.
        let mut pause = if *is_late { Duration::ZERO } else { INTERVAL };
        loop {
            sleep(pause).await;
            pause = INTERVAL;
            // Neither an error nor an empty answer (pods that are not ready) shows where the name leads. So they
            // neither raise the count nor reset it.
            let Ok(addresses) = target.resolve(&server.name).await else { continue };
            lacking = if addresses.contains(&server.address) { 0 } else { lacking + 1 };
            if lacking < ANSWERS {
                continue;
            }
            match self.server_at(target, &addresses, &server).await {
                Some(Ok(other)) if other.run_id != server.run_id => return other,
                Some(Ok(same)) => {
                    *self.wire.named.lock() = Some(same.clone());
                    (server, lacking) = (same, 0);
                }
                Some(Err(error)) if said != error.to_string() => {
                    said = error.to_string();
                    tracing::warn!(target: "fairlock::server", address = %target.address(), %error, "the host name leads to other addresses now, but none has a usable primary: staying with the old server");
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// The primary at one of these addresses. Prefers the known one.
    async fn server_at(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        known: &NamedServer,
    ) -> Option<Result<NamedServer, ConnectError>> {
        let asking = addresses.iter().map(|address| async {
            let run_id = self.primary_at(target, *address).await?;
            Ok(NamedServer { name: known.name.clone(), address: *address, run_id })
        });
        join_all(asking).await.into_iter().min_by_key(|found| match found {
            Ok(server) if server.run_id == known.run_id => 0,
            Ok(_) => 1,
            Err(_) => 2,
        })
    }
}
