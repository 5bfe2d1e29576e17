//! The promises, looked for in a history. Each function is one of them; the numbers are those of README.md.

use crate::history::{Call, Fault, Force, History, Hold, How, MS, NEVER, Time};
use crate::table::{Promise, Windows, covered, touches, window};
use crate::verdict::Verdict;

/// A call is in the queue of a server that works, this long after it was made.
const QUEUED: Time = 500 * MS;
/// What a machine that is busy with the campaign may add to any time.
const SLACK: Time = 750 * MS;

/// Everything there is to check.
pub fn judge(history: &History) -> Verdict {
    let windows = Windows::new(history);
    let mut verdict = Verdict::new();
    let holds = history.by_name(&history.holds, |hold| hold.name);
    let calls = history.by_name(&history.calls, |call| call.name);
    let claims: Vec<Claim> = history.holds.iter().map(|hold| Claim::of(history, hold)).collect();
    for (held, asked) in holds.iter().zip(&calls) {
        one_holder(history, &claims, held, &mut verdict);
        growing_tokens(history, &claims, held, &mut verdict);
        in_order(history, &windows, asked, &mut verdict);
        handed_over(history, &windows, held, asked, &mut verdict);
    }
    refused_writes(history, &claims, &mut verdict);
    losses(history, &windows, &mut verdict);
    nested(history, &mut verdict);
    told(history, &windows, &mut verdict);
    each_call_ends(history, &mut verdict);
    nothing_left(history, &mut verdict);
    verdict.violations.sort_by_key(|violation| (violation.promise, violation.t));
    verdict
}

/// For how long a holder could rely on its hold: from when it had it until it gave it back, heard of its loss, or its local
/// deadline passed. `cut`: the table excuses what comes later.
#[derive(Clone, Copy)]
pub struct Claim {
    pub start: Time,
    pub end: Time,
    pub cut: Time,
}

impl Claim {
    pub fn of(history: &History, hold: &Hold) -> Self {
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let end = hold.until.min(hold.free).min(lost).max(hold.start);
        let shard = history.shard_of(hold.name);
        // One name of several is held for as long as the call waits for the others.
        let call = &history.calls[hold.call];
        let began = if call.how == How::All { call.asked } else { hold.start };
        let by_fault = history.faults.iter().filter(|fault| touches(fault, shard, None)).filter_map(|fault| {
            let (from, to) = window(history, fault, Promise::One)?;
            (began < to && end > from).then_some(from)
        });
        let by_force = history.forces.iter().filter(|force| force.name == hold.name).filter_map(|force| {
            let meant = force.token.is_none_or(|token| token == hold.token) && force.hit != Some(false);
            let may_run_until = if force.to == NEVER { force.from + 10_000 * MS } else { force.to };
            (meant && began < may_run_until && end > force.from).then_some(force.from)
        });
        let cut = by_fault.chain(by_force).min().unwrap_or(end).clamp(hold.start, end);
        Self { start: hold.start, end, cut }
    }
}

fn place(history: &History, hold: &Hold) -> String {
    format!("{} token {} of {}", history.names[hold.name], hold.token, history.clients[hold.client].name)
}

/// P1: no two claims at the same time.
fn one_holder(history: &History, claims: &[Claim], held: &[usize], verdict: &mut Verdict) {
    let mut in_order = held.to_vec();
    in_order.sort_by_key(|hold| claims[*hold].start);
    let mut last: Option<usize> = None;
    for hold in in_order {
        let claim = claims[hold];
        verdict.judged("P1", claim.cut - claim.start, claim.end - claim.start);
        if let Some(other) = last.filter(|other| claims[*other].cut > claim.start && claim.cut > claim.start) {
            let both = claims[other].cut.min(claim.cut) - claim.start;
            let (one, two) = (place(history, &history.holds[other]), place(history, &history.holds[hold]));
            verdict.broken("P1", claim.start, format!("{one} and {two} for {} us", both / 1000));
        }
        if last.is_none_or(|other| claims[other].cut < claim.cut) {
            last = Some(hold);
        }
    }
}

/// P1 at the resource: it refuses the write of a holder that may rely on the lock, so a later holder was there.
fn refused_writes(history: &History, claims: &[Claim], verdict: &mut Verdict) {
    for write in history.writes.iter().filter(|write| !write.ok) {
        let Some(index) = write.call.and_then(|call| history.calls[call].hold) else { continue };
        if claims[index].start <= write.t && write.t < claims[index].cut {
            let what = place(history, &history.holds[index]);
            verdict.broken("P1", write.t, format!("{what}: the register has a later one, and it is valid"));
        }
    }
}

/// P2: who asked when another hold was there has a greater token. Never suspended.
fn growing_tokens(history: &History, claims: &[Claim], held: &[usize], verdict: &mut Verdict) {
    let hold = |index: &usize| &history.holds[*index];
    let asked = |index: &usize| history.calls[hold(index).call].asked;
    let mut by_start = held.to_vec();
    by_start.sort_by_key(|index| hold(index).start);
    let mut by_asked = held.to_vec();
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
    // Two that may both rely on it, one behind the other. A guard whose hold was taken away by force before its call returned
    // was never valid.
    let is_relied_on = |claim: &Claim| claim.cut == claim.end && claim.start < claim.end;
    let relied_on: Vec<_> = by_start.iter().filter(|index| is_relied_on(&claims[**index])).collect();
    for pair in relied_on.windows(2) {
        let in_turn = claims[*pair[0]].end <= claims[*pair[1]].start;
        if in_turn && hold(pair[0]).token >= hold(pair[1]).token {
            let (one, two) = (place(history, hold(pair[0])), place(history, hold(pair[1])));
            verdict.broken("P2", hold(pair[1]).start, format!("{two} comes behind {one}"));
        }
    }
}

/// P3: no caller gets the lock before a waiter that was in the queue when he asked.
fn in_order(history: &History, windows: &Windows, asked: &[usize], verdict: &mut Verdict) {
    let shard = asked.first().map_or(0, |call| history.shard_of(history.calls[*call].name));
    // Waits that could be overtaken, by when they were surely in the queue.
    let mut waits: Vec<(Time, &Call)> = Vec::new();
    for call in asked.iter().map(|call| &history.calls[*call]) {
        let queued = call.asked + QUEUED + 2 * history.stalled(call.asked, call.asked + QUEUED);
        let until = waits_until(history, call);
        if !matches!(call.how, How::Lock | How::Timeout) || until <= queued {
            continue;
        }
        let is_live = !windows.is_suspended(Promise::Order, shard, history.host_of(call.client), call.asked, until);
        verdict.judged("P3", u64::from(is_live), 1);
        if is_live {
            waits.push((queued, call));
        }
    }
    waits.sort_by_key(|(queued, _)| *queued);
    let mut gets: Vec<&Call> =
        asked.iter().map(|call| &history.calls[*call]).filter(|call| call.hold.is_some()).collect();
    gets.sort_by_key(|call| call.asked);
    // The latest turn, and the longest wait without a turn.
    let (mut waiting, mut latest, mut longest) = (waits.iter().peekable(), None::<(u64, &Call)>, None::<(Time, &Call)>);
    for call in gets {
        let (Some(token), got) = (token(history, call), call.ended) else { continue };
        // With several masters, a client that cannot reach the first one waits at another, and between the two there is no order.
        let elsewhere = history.run.topology == "quorum"
            && windows.is_suspended(Promise::Order, shard, history.host_of(call.client), call.asked, got);
        while let Some((_, wait)) = waiting.next_if(|(queued, _)| *queued < call.asked) {
            match self::token(history, wait) {
                Some(token) if latest.is_none_or(|(latest, _)| token > latest) => latest = Some((token, wait)),
                None if longest.is_none_or(|(until, _)| waits_until(history, wait) > until) => {
                    longest = Some((waits_until(history, wait), wait));
                }
                _ => {}
            }
        }
        let served_later = latest.filter(|(later, _)| *later > token).map(|(_, wait)| wait);
        let still_waits = longest.filter(|(until, _)| *until > got).map(|(_, wait)| wait);
        if let Some(wait) = served_later.or(still_waits).filter(|_| !elsewhere) {
            let (who, by) = (&history.clients[wait.client].name, &history.clients[call.client].name);
            let since = (call.asked - wait.asked) / MS;
            let name = &history.names[call.name];
            verdict.broken("P3", got, format!("{name}: {by} overtook {who}, which had asked {since} ms before it"));
        }
    }
}

fn token(history: &History, call: &Call) -> Option<u64> {
    call.hold.map(|hold| history.holds[hold].token)
}

/// Until when a call surely waited. A call that ran out of time may have left just before it returned.
fn waits_until(history: &History, call: &Call) -> Time {
    let limit = call.limit.map_or(NEVER, |limit| call.asked + limit);
    let client = &history.clients[call.client];
    call.ended.min(limit).min(client.killed).min(client.closing)
}

/// P6, P7, P9: a lock that is free goes to a waiter soon.
fn handed_over(history: &History, windows: &Windows, held: &[usize], asked: &[usize], verdict: &mut Verdict) {
    let Some(first) = asked.first() else { return };
    let shard = history.shard_of(history.calls[*first].name);
    let longest =
        |time: fn(&crate::history::Client) -> Time| history.clients.iter().map(time).max().unwrap_or_default();
    let deaths = 2 * longest(|client| client.waiter_ttl) + longest(|client| client.grant_ttl);
    let (lease, poll) = (longest(|client| client.lease), longest(|client| client.waiter_ttl) / 3);
    let mut in_order: Vec<&Hold> = held.iter().map(|hold| &history.holds[*hold]).collect();
    in_order.sort_by_key(|hold| hold.start);
    let mut waits: Vec<&Call> = asked.iter().map(|call| &history.calls[*call]).collect();
    waits.retain(|call| matches!(call.how, How::Lock | How::Timeout));
    waits.sort_by_key(|call| call.asked);
    // The longest, to know how far back a relevant wait may have begun.
    let mut free_since = history.run.began;
    let ends = in_order.iter().map(|hold| hold.start).chain([history.run.ended]);
    for (index, next) in ends.enumerate() {
        let gap = next.saturating_sub(free_since);
        if gap > SLACK && next <= history.run.ended {
            let live: Vec<_> = waits
                .iter()
                .take_while(|call| call.asked < next)
                .map(|call| {
                    let host = history.host_of(call.client);
                    (call.asked, waits_until(history, call), windows.of(Promise::Handover, shard, Some(host)))
                })
                .filter(|(_, until, _)| *until > free_since)
                .collect();
            let waited = covered(live, free_since, next);
            let stalls = 2 * history.stalled(free_since, next);
            let died = history.faults.iter().any(|fault| {
                fault.hosts.is_some() && fault.from < next && fault.to.saturating_add(deaths + lease) > free_since
            });
            let bound = SLACK + poll + stalls + if died { deaths } else { 0 };
            verdict.judged("P6 P7", waited, gap);
            if waited > bound {
                let name = &history.names[history.calls[*first].name];
                let text =
                    format!("{name}: free, and wanted for {} ms, in which {} are allowed", waited / MS, bound / MS);
                verdict.broken("P6 P7", next, text);
            }
        }
        if let Some(hold) = in_order.get(index) {
            free_since = free_since.max(server_end(history, windows, hold));
        }
    }
}

/// Until when the server may have this hold, at the latest.
fn server_end(history: &History, windows: &Windows, hold: &Hold) -> Time {
    let client = &history.clients[hold.client];
    // A renewal that was under way in a partition arrives when that is over, and lasts for a lease.
    let after_lease = |last: Time| {
        let shard = history.shard_of(hold.name);
        let cut = history.faults.iter().filter(|fault| touches(fault, shard, Some(client.host)));
        let healed = cut.filter(|fault| fault.from < last && fault.to.saturating_add(client.lease) > last);
        let healed = healed.map(|fault| fault.to.min(history.run.ended)).max().unwrap_or_default();
        last.max(healed) + client.lease + client.lease / 50 + 100 * MS
    };
    match (&hold.lost, &hold.freed) {
        (Some((t, why)), _) if why == "forced" || why == "gone" => *t,
        (Some((t, _)), _) => after_lease(*t),
        (None, Some((t, why))) if why == "ok" => *t,
        (None, Some((t, _))) => after_lease(*t),
        // Dropped, or the process died.
        (None, None) if hold.free != NEVER && client.killed > hold.free + client.op => {
            if windows.has_cause(history.shard_of(hold.name), client.host, hold.free, hold.free) {
                return after_lease(hold.free);
            }
            hold.free + SLACK
        }
        (None, None) => after_lease(client.killed.min(client.closed).min(history.run.ended)),
    }
}

/// No hold is lost without a reason: a fault, a `force_unlock`, a lease that is not renewed, or a machine that stood still.
fn losses(history: &History, windows: &Windows, verdict: &mut Verdict) {
    for hold in &history.holds {
        let of_unlock = hold.freed.as_ref().filter(|(_, why)| why == "lost").map(|(t, _)| (*t, "unlock"));
        let Some((t, why)) = hold.lost.as_ref().map(|(t, why)| (*t, why.as_str())).or(of_unlock) else { continue };
        let client = &history.clients[hold.client];
        let since = hold.start.min(t.saturating_sub(client.lease + 1000 * MS));
        let is_forced = history.forces.iter().any(|force| is_meant(force, hold) && force.from < t);
        let stalled = history.stalled(t.saturating_sub(client.lease), t) > client.lease / 4;
        let cause = if is_forced { None } else { cause(history, hold, since, t) };
        verdict.loss(history, is_forced, cause);
        let shard = history.shard_of(hold.name);
        let explained = match why {
            "closed" => true,
            "forced" => is_forced,
            _ => is_forced || hold.is_fixed || stalled || windows.has_cause(shard, client.host, since, t),
        };
        if !explained {
            verdict.broken("loss", t, format!("{}: {why}, and nothing had happened", place(history, hold)));
        }
    }
}

fn is_meant(force: &Force, hold: &Hold) -> bool {
    force.name == hold.name && force.token.is_none_or(|token| token == hold.token) && force.hit != Some(false)
}

/// The fault that a loss is counted for: for a hold that is gone rather a fault that forgets, for an expired hold rather a fault that kept
/// its client from renewing it, and of these the last that began.
fn cause(history: &History, hold: &Hold, from: Time, to: Time) -> Option<usize> {
    let (shard, host) = (history.shard_of(hold.name), history.host_of(hold.client));
    let gone = hold.lost.as_ref().is_some_and(|(_, why)| why == "gone");
    let fits = |fault: &Fault| match fault.kind.as_str() {
        "wipe-server" | "flush" | "kill-server" | "failover" => gone,
        _ => !gone && fault.to.saturating_sub(fault.from) > history.clients[hold.client].lease / 3,
    };
    let may_be = |fault: &&Fault| {
        touches(fault, shard, Some(host)) && fault.from < to && fault.to.saturating_add(5000 * MS) > from
    };
    let all = history.faults.iter().enumerate().filter(|(_, fault)| may_be(fault));
    all.max_by_key(|(_, fault)| (fits(fault), fault.from)).map(|(index, _)| index)
}

/// P4: as many holds as guards.
fn nested(history: &History, verdict: &mut Verdict) {
    for hold in history.holds.iter().filter(|hold| !hold.nested.is_empty()) {
        verdict.judged("P4", 1, 1);
        for (is_in, holds) in &hold.nested {
            let right = if *is_in { 2 } else { 1 };
            if *holds != right {
                verdict.broken("P4", hold.start, format!("{}: {holds} holds, not {right}", place(history, hold)));
            }
        }
    }
}

/// P8: a holder hears of its loss at its local deadline, and at once when it was forced.
fn told(history: &History, windows: &Windows, verdict: &mut Verdict) {
    for hold in history.holds.iter().filter(|hold| hold.listens) {
        let client = &history.clients[hold.client];
        let (shard, host) = (history.shard_of(hold.name), client.host);
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let told = hold.free.min(lost).min(client.killed).min(client.closing);
        if told > hold.until {
            // Only a process that was stopped does not notice its own deadline.
            let bound = hold.until.saturating_add(SLACK + 2 * history.stalled(hold.until, told.min(history.run.ended)));
            let stopped = history.faults.iter().any(|fault| {
                let there = touches(fault, shard, Some(host)) && fault.kind == "stop-client";
                there && fault.from < told && fault.to.saturating_add(1000 * MS) > hold.until
            });
            verdict.judged("P8", u64::from(!stopped), 1);
            if told > bound && !stopped {
                let late = (told.min(history.run.ended).saturating_sub(hold.until)) / MS;
                verdict.broken("P8", hold.until, format!("{}: not told for {late} ms", place(history, hold)));
            }
        }
    }
    for force in history.forces.iter().filter(|force| force.hit == Some(true) && force.token.is_some()) {
        let Some(hold) = history.holds.iter().rfind(|hold| hold.listens && is_meant(force, hold)) else { continue };
        let client = &history.clients[hold.client];
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let told = hold.free.min(lost).min(client.killed).min(client.closing).min(hold.until + SLACK);
        let bound = force.to.max(hold.start) + SLACK + 2 * history.stalled(force.from, force.to + SLACK);
        let excused = windows.is_suspended(Promise::Told, history.shard_of(hold.name), client.host, force.from, bound);
        verdict.judged("P8", u64::from(!excused), 1);
        if told > bound && !excused {
            let late = (told.min(history.run.ended).saturating_sub(force.to)) / MS;
            verdict.broken("P8", force.to, format!("{}: forced, not told for {late} ms", place(history, hold)));
        }
    }
}

/// No call lasts longer than it may, and none is without an end.
fn each_call_ends(history: &History, verdict: &mut Verdict) {
    let within = |from: Time, to: Time, client: usize, longest: Time| {
        let Some(took) = to.checked_sub(from) else { return true };
        let host = history.host_of(client);
        let stopped = history.faults.iter().filter(|fault| fault.kind == "stop-client");
        let stopped = stopped.filter(|fault| touches(fault, 0, Some(host)) && fault.from < to && fault.to > from);
        let stopped: Time = stopped.map(|fault| fault.to.min(to) - fault.from.max(from)).sum();
        took <= longest + SLACK + stopped + 2 * history.stalled(from, to)
    };
    for call in &history.calls {
        let client = &history.clients[call.client];
        let name = || format!("{} {:?} call {} of {}", history.names[call.name], call.how, call.id, client.name);
        if call.ended == NEVER && client.closed != NEVER {
            verdict.broken("ends", call.asked, format!("{}: without an end", name()));
        }
        let longest = if call.how == How::Try { Some(client.op) } else { call.limit };
        let Some(longest) = longest.filter(|_| call.ended != NEVER) else { continue };
        verdict.judged("ends", 1, 1);
        if !within(call.asked, call.ended, call.client, longest) {
            let took = (call.ended - call.asked) / MS;
            verdict.broken("ends", call.ended, format!("{}: took {took} ms of {}", name(), longest / MS));
        }
    }
    for hold in &history.holds {
        let Some((t, _)) = &hold.freed else { continue };
        let op = history.clients[hold.client].op;
        if !within(hold.free, *t, hold.client, op) {
            verdict.broken("ends", *t, format!("{}: unlock took {} ms", place(history, hold), (t - hold.free) / MS));
        }
    }
    for (index, client) in history.clients.iter().enumerate().filter(|(_, client)| client.closing != NEVER) {
        if client.closed == NEVER || !within(client.closing, client.closed, index, 3 * client.op) {
            verdict.broken("ends", client.closing, format!("{}: close takes too long", client.name));
        }
    }
    for (t, what, text) in &history.notes {
        verdict.broken("ends", *t, format!("{what}: {text}"));
    }
}

/// P5: when all clients are closed, and a last one has locked each name (a second time where something was left: a silence of
/// the dead is forgiven once), nothing is left but tokens.
fn nothing_left(history: &History, verdict: &mut Verdict) {
    match &history.left {
        None => verdict.broken("P5", history.run.ended, "nobody looked what is left".into()),
        Some(keys) => {
            verdict.judged("P5", 1, 1);
            for key in keys {
                verdict.broken("P5", history.run.ended, format!("left behind: {key}"));
            }
        }
    }
}
