//! The reports of a step: to the log, to the metrics, and to the watchers of a hold. They may run user code, which may
//! panic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fairlock_proto::effect::Note;
use fairlock_proto::error::{Ended, Loss};
use fairlock_proto::event::NodeId;
use fairlock_proto::keys::{Keys, Kind};
use fairlock_proto::requests::poll::PolledHolder;

use super::after::Report;
use super::context::Context;
use super::error;
use super::hold::{About, DrivenHold};
use super::observe::{Lost, Named, millis};
use crate::store::clock::now;
use crate::store::error::Refusal;
use crate::store::runtime::log_line;
use crate::store::server::Server;
use crate::sync::Mutex;

/// Writes the log and the metrics, and notifies the watchers of holds.
#[derive(Default)]
pub struct Reporter {
    /// The refusal with which a server refuses everything, and since when.
    refused: Mutex<BTreeMap<NodeId, (Refusal, Instant)>>,
}

impl Reporter {
    pub fn tell(&self, context: &Context, reports: Vec<Report>) {
        for report in reports {
            log_line(|| self.report(context, report));
        }
    }

    fn report(&self, context: &Context, report: Report) {
        match report {
            Report::Ended(hold, ended) => end(&hold, ended),
            Report::InLine(about, span) => span.in_line(&about.who()),
            Report::PassedOver(about) => log_passed_over(&about),
            Report::Note(note) => self.note_down(context, note),
            Report::Panicked => {
                tracing::error!(target: "fairlock::client", "a bug in fairlock: its state machine has panicked; this client has no lock any more, and is closed for locks");
            }
            Report::Wanted(node) => server(context, node).into_iter().for_each(Server::want),
            Report::Suspect(node) => server(context, node).into_iter().for_each(Server::suspect),
        }
    }

    fn note_down(&self, context: &Context, note: Note) {
        match note {
            // `Report::InLine` logs this, in the span of its call.
            Note::IsQueued(_) => {}
            Note::StillWaiting { keys, waiting, places, holder } => {
                context.options().metrics.polled();
                log_wait(&keys, waiting, places, holder.as_ref());
            }
            Note::CannotRenew(keys, cause) => tracing::debug!(
                target: "fairlock::lock",
                name = %keys.name,
                error = %error::cause(cause, &context.runner, &keys.lock),
                "a renewal failed; retrying until the lease ends"
            ),
            Note::CannotConfirm(keys, cause) => tracing::debug!(
                target: "fairlock::lock",
                name = %keys.name,
                error = %error::cause(cause, &context.runner, &keys.lock),
                "a grant could not be confirmed; polling"
            ),
            Note::WaitsForItself(keys) => warn_of_self_wait(&keys),
            Note::WaitsForAScope(keys) => warn_of_a_scope(&keys),
            Note::HeldForTooLong(keys) => tracing::warn!(
                target: "fairlock::lock",
                name = %keys.name,
                "held for max_hold: the client has stopped renewing the lease"
            ),
            Note::CannotLeave(keys, refusal) => tracing::warn!(
                target: "fairlock::lock",
                name = %keys.name,
                refusal = %error::refusal(&refusal),
                "could not leave the queue yet"
            ),
            Note::Refuses(node, refused) => self.refuses(node, error::refusal(&refused)),
            Note::AcceptsAgain(node) => self.accepts_again(node),
        }
    }

    fn refuses(&self, node: NodeId, refusal: Refusal) {
        self.refused.lock().insert(node, (refusal.clone(), now()));
        tracing::warn!(target: "fairlock::server", %refusal, "the server refuses requests; trying until it accepts them again");
    }

    fn accepts_again(&self, node: NodeId) {
        let refused = self.refused.lock().remove(&node);
        if let Some((refusal, since)) = refused {
            let after = now().saturating_duration_since(since);
            tracing::info!(target: "fairlock::server", %refusal, ?after, "the server accepts requests again");
        }
    }
}

fn server(context: &Context, node: NodeId) -> Option<&dyn Server> {
    context.runner.store.server(node.0)
}

fn log_wait(keys: &Keys, waiting: usize, places: u64, holder: Option<&PolledHolder>) {
    tracing::debug!(
        target: "fairlock::lock",
        name = %keys.name,
        waiting,
        places,
        holder = holder.map(|holder| &*holder.owner),
        lease_left_ms = holder.and_then(|holder| holder.lease_left).map(millis),
        "still waiting"
    );
}

fn warn_of_self_wait(keys: &Keys) {
    if keys.kind == Kind::Semaphore {
        tracing::warn!(
            target: "fairlock::lock",
            name = %keys.name,
            "this task waits for permits while it holds others: together they are more than there are"
        );
    } else {
        tracing::warn!(
            target: "fairlock::lock",
            name = %keys.name,
            "this task waits for a lock that it holds itself; run the work in owner::scope (or FairLock::with) to re-enter it"
        );
    }
}

fn warn_of_a_scope(keys: &Keys) {
    tracing::warn!(
        target: "fairlock::lock",
        name = %keys.name,
        "a task outside of any scope waits for a lock of a scope: that scope has held it for a whole lease, and if it waits for the task, neither ends; spawn the task with Owner::scope"
    );
}

fn log_passed_over(about: &About) {
    tracing::debug!(
        target: "fairlock::lock",
        name = %about.keys.name,
        owner = %about.owner_id,
        "a waiting future was not polled when its turn came"
    );
}

fn end(hold: &Arc<DrivenHold>, ended: Ended) {
    // Notifies the holder without any network (P8).
    log_line(|| hold.notify_watchers());
    log_end(hold, ended);
}

fn log_end(hold: &Arc<DrivenHold>, ended: Ended) {
    // The log ignores holds that nobody claimed.
    let Some(holding) = hold.holding() else { return };
    let (who, token, held_for) = (hold.entry.who(), hold.token, || hold.held_for());
    match ended {
        Ended::Freed => holding.freed(&who, token, held_for),
        Ended::Detached => holding.detached(&who, token, held_for),
        Ended::Unconfirmed => holding.forgotten(&who, token, held_for),
        Ended::Lost(lost) => {
            let (loss, is_relied_on) = (error::loss(lost), hold.live() > 0);
            holding.lost(held_for, loss, is_relied_on);
            let line = Lost { who, token, held: hold.held_for(), loss };
            // `close` logs all its losses in one line.
            if lost == Loss::Closed || !is_relied_on || line.who.is_node { line.debug() } else { line.warn() }
        }
    }
}
