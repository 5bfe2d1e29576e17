//! Looks for each promise in a history, with one function for each. The numbers are the README's.

use crate::claims::{Claim, growing_tokens, one_holder, place, refused_writes};
use crate::handles::{handles_gone, spent_once};
use crate::history::{Call, Client, Fault, History, Hold, How, MS, NEVER, Time};
use crate::server_end::server_end;
use crate::table::{Lasting, Promise, Windows, covered, touches};
use crate::verdict::{SLACK, Verdict};

/// A call is in the queue of a working server this long after it was made.
const QUEUED: Time = 500 * MS;

/// Runs all checks.
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
    spent_once(history, &mut verdict);
    handles_gone(history, &windows, &mut verdict);
    losses(history, &windows, &mut verdict);
    nested(history, &mut verdict);
    told(history, &windows, &mut verdict);
    each_call_ends(history, &mut verdict);
    nothing_left(history, &mut verdict);
    verdict.violations.sort_by_key(|violation| (violation.promise, violation.t));
    verdict
}

/// P3: no caller gets the lock before a waiter that was in the queue when the caller asked.
fn in_order(history: &History, windows: &Windows, asked: &[usize], verdict: &mut Verdict) {
    let shard = asked.first().map_or(0, |call| history.shard_of(history.calls[*call].name));
    // Waits that others could overtake, by the time at which they were surely in the queue.
    let mut waits: Vec<(Time, &Call)> = Vec::new();
    for call in asked.iter().map(|call| &history.calls[*call]) {
        let queued = call.asked + QUEUED + 2 * history.stalled(call.asked, call.asked + QUEUED);
        let until = waits_until(history, call);
        if !matches!(call.how, How::Lock | How::Timeout) || until <= queued {
            continue;
        }
        let is_live = !windows.is_suspended(Promise::Order, shard, history.host_of(call.client), call.asked, until);
        verdict.judged(if call.of > 1 { "P3 shared" } else { "P3" }, u64::from(is_live), 1);
        if is_live {
            waits.push((queued, call));
        }
    }
    waits.sort_by_key(|(queued, _)| *queued);
    let mut gets: Vec<&Call> =
        asked.iter().map(|call| &history.calls[*call]).filter(|call| call.hold.is_some()).collect();
    // A handle's hold is in no queue.
    gets.retain(|call| call.how != How::Attach);
    gets.sort_by_key(|call| call.asked);
    // The latest turn, and the longest wait without a turn.
    let (mut waiting, mut latest, mut longest) = (waits.iter().peekable(), None::<(u64, &Call)>, None::<(Time, &Call)>);
    for call in gets {
        let (Some(token), got) = (token(history, call), call.ended) else { continue };
        // With several masters, a client that cannot reach the first one waits at another, and the two queues have no
        // common order.
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

/// Until when a call surely waited. A call that timed out may have left just before it returned.
fn waits_until(history: &History, call: &Call) -> Time {
    let limit = call.limit.map_or(NEVER, |limit| call.asked + limit);
    let client = &history.clients[call.client];
    call.ended.min(limit).min(client.killed).min(client.closing)
}

/// P6, P7, P9: a free lock soon goes to a waiter. A shared name is free if it has room for its heaviest waiter and no
/// caller comes in.
fn handed_over(history: &History, windows: &Windows, held: &[usize], asked: &[usize], verdict: &mut Verdict) {
    let Some(first) = asked.first().map(|call| &history.calls[*call]) else { return };
    let shard = history.shard_of(first.name);
    let longest = |time: fn(&Client) -> Time| history.clients.iter().map(time).max().unwrap_or_default();
    let deaths = 2 * longest(|client| client.waiter_ttl) + longest(|client| client.first_lease);
    let (lease, poll) = (longest(|client| client.lease), longest(|client| client.waiter_ttl) / 3);
    let start = |hold: &usize| history.holds[*hold].start;
    let mut in_order = held.to_vec();
    in_order.sort_by_key(start);
    let mut waits: Vec<&Call> = asked.iter().map(|call| &history.calls[*call]).collect();
    waits.retain(|call| matches!(call.how, How::Lock | How::Timeout));
    waits.sort_by_key(|call| call.asked);
    // Weights that the server may count as taken, and until when.
    let mut taken: Vec<(Time, u64)> = Vec::new();
    let mut since = history.run.began;
    let ends = in_order.iter().map(start).chain([history.run.ended]);
    for (index, next) in ends.enumerate() {
        let gap = next.saturating_sub(since);
        if gap > SLACK && next <= history.run.ended {
            let live: Vec<_> = waits
                .iter()
                .take_while(|call| call.asked < next)
                .filter(|call| waits_until(history, call) > since)
                .map(|call| {
                    let host = history.host_of(call.client);
                    let windows = windows.of(Promise::Handover, shard, Some(host));
                    (call.weight, (call.asked, waits_until(history, call), windows))
                })
                .collect();
            let heaviest = live.iter().map(|(weight, _)| *weight).max().unwrap_or(1);
            let free_since = since.max(room_since(&taken, first.of.saturating_sub(heaviest)));
            let live: Vec<Lasting> = live.into_iter().map(|(_, wait)| wait).collect();
            let waited = covered(live.clone(), free_since, next);
            let stalls = 2 * history.stalled(free_since, next);
            let died = history.faults.iter().any(|fault| {
                fault.hosts.is_some() && fault.from < next && fault.to.saturating_add(deaths + lease) > free_since
            });
            let bound = SLACK + poll + stalls + if died { deaths } else { 0 };
            if first.of > 1 {
                verdict.judged("P6 P7 shared", waited, covered(live, since, next));
            } else if next.saturating_sub(free_since) > SLACK {
                verdict.judged("P6 P7", waited, next - free_since);
            }
            if waited > bound {
                let name = &history.names[first.name];
                let text =
                    format!("{name}: free, and wanted for {} ms, in which {} are allowed", waited / MS, bound / MS);
                verdict.broken("P6 P7", next, text);
            }
        }
        if let Some(hold) = in_order.get(index) {
            since = since.max(next);
            taken.retain(|(end, _)| *end > since);
            taken.push((server_end(history, windows, *hold), history.holds[*hold].weight));
        }
    }
}

/// Since when at most this much is taken, if no caller comes in.
fn room_since(taken: &[(Time, u64)], most: u64) -> Time {
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    let mut left: u64 = taken.iter().map(|(_, weight)| weight).sum();
    let mut since = 0;
    for (end, weight) in taken {
        if left <= most {
            break;
        }
        left -= weight;
        since = end;
    }
    since
}

/// No holder loses its hold without a reason: a fault, a `force_unlock`, a lease without renewal, or a stalled
/// machine.
fn losses(history: &History, windows: &Windows, verdict: &mut Verdict) {
    for hold in &history.holds {
        let of_unlock = hold.freed.as_ref().filter(|(_, why)| why == "lost").map(|(t, _)| (*t, "unlock"));
        let Some((t, why)) = hold.lost.as_ref().map(|(t, why)| (*t, why.as_str())).or(of_unlock) else { continue };
        let client = &history.clients[hold.client];
        let since = hold.start.min(t.saturating_sub(client.lease + 1000 * MS));
        let is_forced = history.forces.iter().any(|force| force.may_end(hold) && force.from < t);
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

/// The fault to which a loss is attributed. For a hold that is gone, it prefers a fault that forgets; for an expired
/// hold, a fault that kept its client from renewing. Among these it takes the last that began.
fn cause(history: &History, hold: &Hold, from: Time, to: Time) -> Option<usize> {
    let (shard, host) = (history.shard_of(hold.name), history.host_of(hold.client));
    let gone = hold.lost.as_ref().is_some_and(|(_, why)| why == "gone");
    let fits = |fault: &Fault| match fault.kind.as_str() {
        "wipe-server" | "flush" | "flush-majority" | "kill-server" | "failover" => gone,
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

/// P8: a holder learns of its loss at its local deadline, and at once if it was forced.
fn told(history: &History, windows: &Windows, verdict: &mut Verdict) {
    for hold in history.holds.iter().filter(|hold| hold.listens) {
        let client = &history.clients[hold.client];
        let (shard, host) = (history.shard_of(hold.name), client.host);
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let told = hold.given_away().min(lost).min(client.killed).min(client.closing);
        if told > hold.until {
            // Only a stopped process misses its own deadline.
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
    for force in history.forces.iter().filter(|force| force.hit == Some(true)) {
        // Compares tokens: on several servers a part of the owner's hold may have ended while a majority remains.
        let is_meant = |hold: &&Hold| hold.listens && force.token == Some(hold.token) && force.may_end(hold);
        let Some(hold) = history.holds.iter().filter(is_meant).max_by_key(|hold| hold.start) else { continue };
        let client = &history.clients[hold.client];
        let lost = hold.lost.as_ref().map_or(NEVER, |(t, _)| *t);
        let told = hold.given_away().min(lost).min(client.killed).min(client.closing).min(hold.until + SLACK);
        let bound = force.to.max(hold.start) + SLACK + 2 * history.stalled(force.from, force.to + SLACK);
        let excused = windows.is_suspended(Promise::Told, history.shard_of(hold.name), client.host, force.from, bound);
        verdict.judged("P8", u64::from(!excused), 1);
        if told > bound && !excused {
            let late = (told.min(history.run.ended).saturating_sub(force.to)) / MS;
            verdict.broken("P8", force.to, format!("{}: forced, not told for {late} ms", place(history, hold)));
        }
    }
}

/// No call takes longer than it may, and each one ends.
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
        let longest = match call.how {
            // With several masters the client then raises the token, or releases what it got.
            How::Try if history.run.topology == "quorum" => Some(2 * client.op),
            How::Try => Some(client.op),
            // They may wait for their turn, and then for an answer.
            How::Attach | How::Release => Some(2 * client.op),
            _ => call.limit,
        };
        let Some(longest) = longest.filter(|_| call.ended != NEVER) else { continue };
        verdict.judged("ends", 1, 1);
        if !within(call.asked, call.ended, call.client, longest) {
            let took = (call.ended - call.asked) / MS;
            verdict.broken("ends", call.ended, format!("{}: took {took} ms of {}", name(), longest / MS));
        }
    }
    for hold in &history.holds {
        let op = history.clients[hold.client].op;
        if let Some(detached) = hold.detached.as_ref().filter(|detached| detached.answered != NEVER)
            && !within(detached.asked, detached.answered, hold.client, 2 * op)
        {
            let took = (detached.answered - detached.asked) / MS;
            verdict.broken("ends", detached.answered, format!("{}: detach took {took} ms", place(history, hold)));
        }
        let Some((t, _)) = &hold.freed else { continue };
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

/// P5: after all clients have closed and a last one has locked each name, only tokens remain. (It locks a name twice
/// if something remained, because the server forgives a silence of the dead once.)
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
