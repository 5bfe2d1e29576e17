//! When a hold has surely ended at the server, as far as its holders can know.

use crate::history::{Detached, History, MS, NEVER, Time};
use crate::table::{Windows, touches};
use crate::verdict::SLACK;

/// Until when the server may have this hold or its handle.
pub fn server_end(history: &History, windows: &Windows, index: usize) -> Time {
    let hold = &history.holds[index];
    if let Some(handle) = hold.handle() {
        return handle_end(history, index, handle);
    }
    let client = &history.clients[hold.client];
    let after_lease = |last: Time| after_lease(history, hold.name, hold.client, client.lease, last);
    match (&hold.lost, &hold.freed) {
        (Some((t, why)), _) if why == "forced" || why == "gone" => *t,
        (Some((t, _)), _) => after_lease(*t),
        (None, Some((t, why))) if why == "ok" => *t,
        (None, Some((t, _))) => after_lease(*t),
        // The guard was dropped, or the process died.
        (None, None) if hold.free != NEVER && client.killed > hold.free + client.op => {
            if windows.has_cause(history.shard_of(hold.name), client.host, hold.free, hold.free) {
                return after_lease(hold.free);
            }
            hold.free + SLACK
        }
        (None, None) => after_lease(client.killed.min(client.closed).min(history.run.ended)),
    }
}

/// A request that was under way in a partition arrives when that ends, and its effect lasts for a lease.
fn after_lease(history: &History, name: usize, client: usize, lease: Time, last: Time) -> Time {
    let shard = history.shard_of(name);
    let host = history.host_of(client);
    let cut = history.faults.iter().filter(|fault| touches(fault, shard, Some(host)));
    let healed = cut.filter(|fault| fault.from < last && fault.to.saturating_add(lease) > last);
    let healed = healed.map(|fault| fault.to.min(history.run.ended)).max().unwrap_or_default();
    last.max(healed) + lease + lease / 50 + 100 * MS
}

/// Until it is attached, which makes another hold, or released. Otherwise until its lease ends, or the lease of an
/// attach that the server may have served.
fn handle_end(history: &History, index: usize, handle: &Detached) -> Time {
    let hold = &history.holds[index];
    let known = |client: usize, t: Time| t.min(history.clients[client].killed).min(history.run.ended);
    let last = known(hold.client, handle.answered) + history.clients[hold.client].op;
    let mut latest = after_lease(history, hold.name, hold.client, handle.lease, last);
    let mut taken = NEVER;
    for call in history.uses(index) {
        match (call.hold, call.why.as_deref()) {
            (Some(attached), _) => taken = taken.min(history.holds[attached].start),
            (None, Some("ok")) => taken = taken.min(call.ended),
            (None, Some("lost")) => {}
            (None, _) => {
                let lease = history.clients[call.client].lease;
                let last = known(call.client, call.ended);
                latest = latest.max(after_lease(history, call.name, call.client, lease, last));
            }
        }
    }
    if taken == NEVER { latest } else { taken }
}
