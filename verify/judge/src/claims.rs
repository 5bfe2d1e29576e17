//! P1 and P2: the claims of holders at the same time, and their tokens.

use std::collections::BTreeMap;

use crate::history::{Call, Fault, History, Hold, How, MS, NEVER, Time};
use crate::table::{Promise, forgets_uses, touches, window};
use crate::verdict::{SLACK, Verdict};

/// The time in which a holder could rely on its hold: from when it got it until it released or detached it, learned of
/// its loss, or its local deadline passed. `cut`: the table excuses what comes later.
#[derive(Clone, Copy)]
pub struct Claim {
    pub start: Time,
    pub end: Time,
    pub cut: Time,
}

impl Claim {
    pub fn of(history: &History, hold: &Hold) -> Self {
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let call = &history.calls[hold.call];
        // A successful attach took over the handle's hold: the name was never free in between.
        let start = if call.how == How::Attach { call.asked } else { hold.start };
        let end = hold.until.min(hold.given_away()).min(lost).max(start);
        // A `lock_all` holds this name while it waits for the others.
        let began = if call.how == How::All { call.asked } else { granted_since(history, hold, start) };
        let claim = Self::until_excused(history, hold, (start, end), (call.asked, began));
        if is_repeated(history, call) { Self { cut: start, ..claim } } else { claim }
    }

    /// The claim of a hold's handle: from the detach until a caller attaches or releases the handle, or may have done
    /// so, or until its lease ends. A handle does not learn of a force.
    pub fn of_handle(history: &History, index: usize) -> Option<Self> {
        let hold = &history.holds[index];
        let handle = hold.handle().filter(|handle| handle.until > 0)?;
        let hits = history.forces.iter().filter(|force| force.hit == Some(true) && force.may_end(hold));
        let forced = hits.map(|force| force.to).filter(|to| *to > handle.asked).min();
        let end = handle.until.min(history.first_use(index)).min(forced.unwrap_or(NEVER)).max(handle.asked);
        Some(Self::until_excused(history, hold, (handle.asked, end), (handle.asked, handle.asked)))
    }

    fn until_excused(history: &History, hold: &Hold, (start, end): (Time, Time), (asked, began): (Time, Time)) -> Self {
        let shard = history.shard_of(hold.name);
        let by_fault = history.faults.iter().filter(|fault| touches(fault, shard, None)).filter_map(|fault| {
            let (from, to) = window(history, fault, Promise::One)?;
            // A busy process is late to record a grant from before the fault.
            let late = if asked < from { SLACK } else { 0 };
            (began < to.saturating_add(late) && end > from).then_some(from)
        });
        let by_force = history.forces.iter().filter(|force| force.may_end(hold)).filter_map(|force| {
            let may_run_until = if force.to == NEVER { force.from + 10_000 * MS } else { force.to };
            // A hold that was certainly ended was granted before, however late its process records that.
            let began = if force.has_ended(hold) { asked } else { began };
            (began < may_run_until && end > force.from).then_some(force.from)
        });
        let cut = by_fault.chain(by_force).min().unwrap_or(end).clamp(start, end);
        Self { start, end, cut }
    }
}

/// The earliest time of the grant: the answer that a stopped process finds when it continues may be from before the
/// stop.
fn granted_since(history: &History, hold: &Hold, start: Time) -> Time {
    let (shard, host) = (history.shard_of(hold.name), history.host_of(hold.client));
    let asked = history.calls[hold.call].asked;
    let has_just_ended =
        |fault: &&Fault| fault.from < start && fault.to > asked && fault.to.saturating_add(1000 * MS) > start;
    let stops = history.faults.iter().filter(|fault| fault.kind == "stop-client" && touches(fault, shard, Some(host)));
    stops.filter(has_just_ended).map(|fault| fault.from.max(asked)).min().unwrap_or(start)
}

/// Whether the call uses a handle again, after a failover that may have forgotten the first use.
pub fn is_repeated(history: &History, call: &Call) -> bool {
    let Some(hold) = call.handle_of.filter(|_| call.how == How::Attach) else { return false };
    let mut earlier = history.uses(hold).filter(|other| other.asked <= call.asked && !std::ptr::eq(*other, call));
    earlier.any(|other| forgets_uses(history, history.shard_of(call.name), other.asked, call.ended))
}

pub fn place(history: &History, hold: &Hold) -> String {
    format!("{} token {} of {}", history.names[hold.name], hold.token, history.clients[hold.client].name)
}

/// A part of a claim with one weight.
struct Part {
    from: Time,
    to: Time,
    weight: u64,
    hold: usize,
}

/// The claims on a name of its holders and handles. Counts how much of them it judges.
fn parts(history: &History, claims: &[Claim], held: &[usize], verdict: &mut Verdict) -> Vec<Part> {
    let mut parts = Vec::new();
    for hold in held {
        let (claim, found) = (claims[*hold], &history.holds[*hold]);
        let label = if history.calls[found.call].of > 1 { "P1 shared" } else { "P1" };
        verdict.judged(label, claim.cut - claim.start, claim.end - claim.start);
        let (shrunk, left) = found.shrunk.unwrap_or((NEVER, found.weight));
        let between = shrunk.clamp(claim.start, claim.cut);
        parts.push(Part { from: claim.start, to: between, weight: found.weight, hold: *hold });
        parts.push(Part { from: between, to: claim.cut, weight: left, hold: *hold });
        if let Some(handle) = Claim::of_handle(history, *hold) {
            verdict.judged("P1 handles", handle.cut - handle.start, handle.end - handle.start);
            parts.push(Part { from: handle.start, to: handle.cut, weight: left, hold: *hold });
        }
    }
    parts.retain(|part| part.from < part.to);
    parts.sort_by_key(|part| part.from);
    parts
}

/// P1: claims never weigh more than the limit together (1 for a lock). Guards and handles under one grant count once.
pub fn one_holder(history: &History, claims: &[Claim], held: &[usize], verdict: &mut Verdict) {
    let grant = |part: &Part| history.holds[part.hold].grant;
    let of = held.first().map_or(1, |hold| history.calls[history.holds[*hold].call].of);
    let mut active: Vec<&Part> = Vec::new();
    for part in &parts(history, claims, held, verdict) {
        active.retain(|other| other.to > part.from);
        let mut weights = BTreeMap::from([(grant(part), part.weight)]);
        for other in &active {
            let weight = weights.entry(grant(other)).or_default();
            *weight = other.weight.max(*weight);
        }
        if weights.values().sum::<u64>() > of {
            let others: Vec<&&Part> = active.iter().filter(|other| grant(other) != grant(part)).collect();
            let both = others.iter().map(|other| other.to).chain([part.to]).min().unwrap_or(part.to) - part.from;
            let places = others.iter().map(|other| place(history, &history.holds[other.hold]));
            let places: Vec<_> = places.chain([place(history, &history.holds[part.hold])]).collect();
            verdict.broken("P1", part.from, format!("{} for {} us", places.join(" and "), both / 1000));
        }
        active.push(part);
    }
}

/// P1 at the resource: if it refuses the write of a valid holder, a later holder was there.
pub fn refused_writes(history: &History, claims: &[Claim], verdict: &mut Verdict) {
    for write in history.writes.iter().filter(|write| !write.ok) {
        let Some(index) = write.call.and_then(|call| history.calls[call].hold) else { continue };
        if claims[index].start <= write.t && write.t < claims[index].cut {
            let what = place(history, &history.holds[index]);
            verdict.broken("P1", write.t, format!("{what}: the register has a later one, and it is valid"));
        }
    }
}

/// P2: a caller that asked while another hold existed gets a greater token, and no token is given twice. Never
/// suspended. An attach keeps its token.
pub fn growing_tokens(history: &History, claims: &[Claim], held: &[usize], verdict: &mut Verdict) {
    let hold = |index: &usize| &history.holds[*index];
    let asked = |index: &usize| history.calls[hold(index).call].asked;
    let attached = held.iter().filter(|index| !history.is_grant(**index));
    for (index, before) in attached.filter_map(|index| Some((index, history.calls[hold(index).call].handle_of?))) {
        verdict.judged("P2", 1, 1);
        if hold(index).token != hold(&before).token {
            let (one, two) = (place(history, hold(&before)), place(history, hold(index)));
            verdict.broken("P2", hold(index).start, format!("{two} was attached by the handle of {one}"));
        }
    }
    let mut by_start = held.to_vec();
    by_start.retain(|index| history.is_grant(*index));
    let mut by_token = by_start.clone();
    by_token.sort_by_key(|index| hold(index).token);
    for pair in by_token.windows(2).filter(|pair| hold(&pair[0]).token == hold(&pair[1]).token) {
        let (one, two) = (place(history, hold(&pair[0])), place(history, hold(&pair[1])));
        verdict.broken("P2", hold(&pair[1]).start, format!("{one} and {two}: given twice"));
    }
    by_start.sort_by_key(|index| hold(index).start);
    let mut by_asked = by_start.clone();
    by_asked.sort_by_key(asked);
    let mut before = by_start.iter().peekable();
    let mut greatest: Option<&usize> = None;
    let larger = |one: &usize, other: Option<&usize>| other.is_none_or(|other| hold(one).token > hold(other).token);
    for index in &by_asked {
        while let Some(earlier) = before.next_if(|earlier| hold(earlier).start < asked(index)) {
            if larger(earlier, greatest) {
                greatest = Some(earlier);
            }
        }
        verdict.judged("P2", 1, 1);
        if let Some(earlier) = greatest.filter(|earlier| !larger(index, Some(earlier))) {
            let (one, two) = (place(history, hold(earlier)), place(history, hold(index)));
            verdict.broken("P2", hold(index).start, format!("{two} was asked for when {one} was there"));
        }
    }
    // Two claims that exclude each other and follow each other. If a force ended a hold before its call returned, its
    // guard was never valid.
    let is_relied_on = |claim: &Claim| claim.cut == claim.end && claim.start < claim.end;
    let relied_on: Vec<_> = by_start.iter().filter(|index| is_relied_on(&claims[**index])).collect();
    for pair in relied_on.windows(2) {
        let in_turn = claims[*pair[0]].end <= claims[*pair[1]].start;
        let least = hold(pair[0]).shrunk.map_or(hold(pair[0]).weight, |(_, left)| left);
        let excluded = least + hold(pair[1]).weight > history.calls[hold(pair[0]).call].of;
        if in_turn && excluded && hold(pair[0]).token >= hold(pair[1]).token {
            let (one, two) = (place(history, hold(pair[0])), place(history, hold(pair[1])));
            verdict.broken("P2", hold(pair[1]).start, format!("{two} comes behind {one}"));
        }
    }
}
