//! Holds that outlive a guard: a handle works once, and its hold lasts as promised.

use crate::claims::{is_repeated, place};
use crate::history::{History, How, MS};
use crate::table::Windows;
use crate::verdict::Verdict;

/// P1: of all callers that attach one handle, only one gets it.
pub fn spent_once(history: &History, verdict: &mut Verdict) {
    for (index, hold) in history.holds.iter().enumerate() {
        let mut attached: Vec<_> = history.uses(index).filter(|call| call.hold.is_some()).collect();
        attached.sort_by_key(|call| call.asked);
        for (number, call) in attached.iter().enumerate() {
            let excused = is_repeated(history, call);
            verdict.judged("P1 attach", u64::from(!excused), 1);
            if number > 0 && !excused {
                let who = &history.clients[call.client].name;
                verdict.broken("P1", call.ended, format!("{}: attached again by {who}", place(history, hold)));
            }
        }
    }
}

/// No handle ends before its deadline without a reason: another use, a force, a fault, or a stall of the machine.
pub fn handles_gone(history: &History, windows: &Windows, verdict: &mut Verdict) {
    let by_handle = |how: How| matches!(how, How::Attach | How::Release);
    let gone = history.calls.iter().filter(|call| by_handle(call.how) && call.why.as_deref() == Some("lost"));
    for (call, index) in gone.filter_map(|call| Some((call, call.handle_of?))) {
        let hold = &history.holds[index];
        let Some(handle) = hold.handle().filter(|handle| handle.until > call.ended) else { continue };
        let was_used = history.first_use(index) < call.ended;
        let was_forced = history.forces.iter().any(|force| force.may_end(hold) && force.from < call.ended);
        let (shard, host) = (history.shard_of(hold.name), history.host_of(call.client));
        let has_cause = windows.has_cause(shard, host, handle.asked, call.ended);
        let stalled = history.stalled(handle.asked, call.ended) > handle.lease / 4;
        if !(was_used || was_forced || has_cause || stalled) {
            let early = (handle.until - call.ended) / MS;
            let text =
                format!("{}: its handle is gone {early} ms early, and nothing had happened", place(history, hold));
            verdict.broken("loss", call.ended, text);
        }
    }
}
