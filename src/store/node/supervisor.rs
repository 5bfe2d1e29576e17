//! The task that keeps a connection. It notices a dead one, reconnects without giving up, lets the listener resume,
//! and only then lets all requests use the new one.

use std::sync::Arc;

use tokio::time::sleep;

use super::wire::{Supervised, Wire};
use crate::store::backoff::Backoff;
use crate::store::clock::now;
use crate::store::error::Fault;
use crate::store::link::{Connection, State};
use crate::store::runtime::{AFTER_PANIC, survive};

/// Owns the connection until the node is closed.
pub async fn supervise<W: Wire>(node: &Arc<Supervised<W>>) {
    tokio::select! {
        // In this order: `close` ends the connection first, which must not cause a reconnect.
        biased;
        () = node.link.stop.cancelled() => {}
        () = keep(node) => {}
    }
    // Another thread may have made a connection while `close` ran.
    node.wire.close();
}

/// Never ends.
async fn keep<W: Wire>(node: &Arc<Supervised<W>>) {
    // One backoff for all connections. Otherwise, if a server accepts and closes at once, the client would dial it
    // without a pause.
    let mut backoff = Backoff::reconnect();
    loop {
        node.wanted.notified().await;
        let (mut first, mut has_panicked) = (node.first.lock().take(), false);
        while survive(keep_connected(node, first.take(), has_panicked, &mut backoff)).await.is_none() {
            // The old connection no longer has a task.
            node.link.connection().inspect(|connection| connection.dead().cancel());
            has_panicked = true;
            sleep(AFTER_PANIC).await;
        }
    }
}

/// Runs until no connection is wanted. `again`: after a panic, which gave up the previous connection.
async fn keep_connected<W: Wire>(
    node: &Arc<Supervised<W>>,
    first: Option<W::Attached>,
    again: bool,
    backoff: &mut Backoff,
) {
    if again {
        node.link.enter(State::Down(Arc::new(Fault::Disconnected)));
    }
    let mut was_connected = again || first.is_some();
    let mut known = first;
    while node.is_wanted() {
        let is_new = known.is_none();
        let mut attached = match known.take() {
            Some(first) => first,
            None => {
                let Some(next) = W::connect(node, backoff).await else { break };
                if was_connected {
                    tracing::info!(target: "fairlock::server", address = %node.wire.address(), "reconnected");
                }
                next
            }
        };
        was_connected = true;
        let (up, connection) = (now(), W::connection(&attached).clone());
        if is_new {
            node.link.resume(&connection);
        }
        let moved = W::over(node, &mut attached).await;
        // After an unanswered ping it is not cancelled yet. Requests in flight must now end as unanswered: waiting
        // for their time-out would only delay the retry.
        let was_silent = !moved && !connection.dead().is_cancelled();
        connection.dead().cancel();
        node.link.enter(State::Down(match was_silent {
            true => Arc::new(Fault::NoAnswer(node.operation_timeout)),
            false => Arc::new(Fault::Disconnected),
        }));
        if !moved {
            tracing::warn!(target: "fairlock::server", address = %node.wire.address(), "lost the connection; reconnecting");
        }
        backoff.connection_lived_for(now().saturating_duration_since(up));
    }
    node.link.rest();
}
