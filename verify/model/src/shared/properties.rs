//! The promises as properties of single states.

use std::collections::BTreeSet;

use stateright::Property;

use super::bounds::Fault;
use super::events::Violation;
use super::network::{HANDLES, OwnerId, Seq, Ticket, Time, Token, Weight};
use super::owner::{Hold, Owner, Stage};
use super::protocol::{Shared, State};
use super::settle;

pub fn all() -> Vec<Property<Shared>> {
    vec![
        Property::always("P1 weights within limits", within_limits),
        Property::always("P1 backed by the server", backed),
        Property::always("P2 tokens grow", tokens_grow),
        Property::always("P2 tokens are unique", tokens_are_unique),
        Property::always("P3 no overtaking", no_overtaking),
        Property::always("P3 served at once", served_at_once),
        Property::always("P3 served once", served_once),
        Property::always("P4 count exact", count_exact),
        Property::always("P4 used is the sum", used_is_the_sum),
        Property::always("P5 nothing left behind", nothing_left_behind),
        Property::always("P10 holders are bounded", holders_are_bounded),
        Property::always("P9 no waiter is stuck", settle::no_waiter_is_stuck),
    ]
}

fn holds(state: &State) -> impl Iterator<Item = (OwnerId, &Hold)> {
    (0..).zip(&state.owners).filter_map(|(id, owner): (OwnerId, &Owner)| match &owner.stage {
        Stage::Holding(hold) => Some((id, hold)),
        _ => None,
    })
}

/// What callers rely on at this instant. Of what was revoked or lost with the server's data they learn later; with
/// `strict_restart` the latter counts too (R14).
fn valid<'a>(shared: &'a Shared, state: &'a State) -> impl Iterator<Item = Relied> + 'a {
    let ghost = &state.ghost;
    let strict = shared.bounds.strict;
    let guards = holds(state).filter(|(_, hold)| hold.is_valid(state.now, &shared.rules));
    let guards = guards.map(|(id, hold)| Relied { id, token: hold.token, weight: hold.weight, until: hold.deadline });
    let handles = (HANDLES..).zip(&state.handles).filter(|(_, handle)| state.now < handle.until);
    let handles = handles.map(|(id, it)| Relied { id, token: it.token, weight: it.weight, until: it.until });
    let counts = move |it: &Relied| (strict || it.token > ghost.exempt_up_to) && it.token != ghost.revoked;
    guards.chain(handles).filter(counts)
}

/// What the caller of a guard, or somebody with a handle, relies on.
struct Relied {
    id: OwnerId,
    token: Token,
    weight: Weight,
    until: Time,
}

/// P1: the valid weights together never exceed the limit that each was admitted under: those that were there before, and its
/// own.
fn within_limits(shared: &Shared, state: &State) -> bool {
    valid(shared, state).all(|hold| {
        let limit = state.ghost.admitted.get(&hold.token).copied().unwrap_or(shared.bounds.limit(hold.id));
        let earlier = valid(shared, state).filter(|other| other.token <= hold.token);
        earlier.map(|other| other.weight).sum::<Weight>() <= limit
    })
}

/// The server agrees with each caller, at least until the local deadline (R5).
fn backed(shared: &Shared, state: &State) -> bool {
    let known = valid(shared, state).filter(|hold| hold.token > state.ghost.exempt_up_to);
    known.into_iter().all(|hold| {
        state.server.holders.get(&hold.id).is_some_and(|holder| {
            holder.token == hold.token && holder.ends >= hold.until && holder.weight >= hold.weight
        })
    })
}

fn tokens_grow(_: &Shared, state: &State) -> bool {
    state.ghost.violation != Some(Violation::TokenDidNotGrow)
}

fn tokens_are_unique(_: &Shared, state: &State) -> bool {
    let held: BTreeSet<_> = holds(state).map(|(_, hold)| hold.token).collect();
    let served: BTreeSet<_> = state.server.holders.iter().map(|(_, holder)| holder.token).collect();
    held.len() == holds(state).count() && served.len() == state.server.holders.iter().count()
}

fn no_overtaking(_: &Shared, state: &State) -> bool {
    state.ghost.violation != Some(Violation::Overtaken)
}

fn served_at_once(_: &Shared, state: &State) -> bool {
    state.ghost.violation != Some(Violation::NotServed)
}

/// P3: an attempt that holds no longer waits.
fn served_once(_: &Shared, state: &State) -> bool {
    let mut served = state.server.holders.iter().map(|(owner, holder)| Ticket { owner: *owner, seq: holder.attempt });
    served.all(|ticket| !state.server.queue.contains(&ticket))
}

/// P4: at rest the server counts what the client does.
fn count_exact(_: &Shared, state: &State) -> bool {
    holds(state).filter(|(_, hold)| hold.is_settled()).all(|(id, hold)| {
        let holder = state.server.holders.get(&id).filter(|holder| holder.token == hold.token);
        holder.is_none_or(|holder| (holder.holds, holder.weight) == (hold.guards, hold.weight))
    })
}

/// P4
fn used_is_the_sum(_: &Shared, state: &State) -> bool {
    state.server.used == state.server.holders.iter().map(|(_, holder)| holder.weight).sum::<Weight>()
}

/// P5: for each place and each holder, the client still wants it or retries a leave that will end it. Holders whose lease is
/// over do not count: they block nobody.
fn nothing_left_behind(shared: &Shared, state: &State) -> bool {
    if state.ghost.fault == Some(Fault::Flush) {
        return true;
    }
    let wanted = |ticket: Ticket| {
        if ticket.owner >= HANDLES {
            return state.handles[usize::from(ticket.owner - HANDLES)].is_wanted();
        }
        let owner = &state.owners[usize::from(ticket.owner)];
        is_wanted(owner, ticket.seq) || owner.is_leaving(ticket.seq)
    };
    let living = state.server.holders.iter().filter(|(_, holder)| holder.ends > state.now);
    let held = living.map(|(owner, holder)| Ticket { owner: *owner, seq: holder.attempt });
    let lives = |ticket: &&Ticket| state.server.alive_until(**ticket, state.now, &shared.bounds).is_some();
    held.chain(state.server.queue.iter().filter(lives).copied()).all(wanted)
}

fn is_wanted(owner: &Owner, seq: Seq) -> bool {
    match &owner.stage {
        Stage::Idle => false,
        Stage::Acquiring { seq: ours, .. } | Stage::Waiting { seq: ours, .. } => seq == *ours,
        Stage::Holding(hold) => seq >= hold.attempt,
    }
}

fn holders_are_bounded(shared: &Shared, state: &State) -> bool {
    state.server.holders.iter().count() <= shared.bounds.max_holders
}
