//! `fairlock force-unlock`.

use std::io::{self, BufRead, IsTerminal, Write};

use fairlock::{Holder, LockClient, RequestError};
use serde::Serialize;

use super::args::{Args, ForceUnlock};
use super::connect::connect;
use super::exit::{self, Failure};
use super::named::{AnyStatus, Named};
use super::output::Output;
use super::render;

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    name: &'a str,
    /// Whether the command ended a hold: the one that it showed, or the one with the given token.
    was_held: bool,
    /// The holder just before.
    holder: Option<Holder>,
}

pub async fn run(args: &Args, force: &ForceUnlock, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    let shown = Named::ask(&client, &force.name).await?;
    let mut holders = shown.iter().flat_map(|named| named.status.holders());
    let holder = match (force.token, &shown[0].status) {
        (Some(token), _) => holders.find(|holder| holder.token == token),
        // If the lock is in use, it comes first.
        (None, AnyStatus::Lock(status)) => status.holder.as_ref(),
        (None, _) => {
            let text = format!("several may hold {:?}: add --token TOKEN, as `fairlock status` shows it", force.name);
            return Err(Failure::usage(text));
        }
    };
    if !force.yes && !is_confirmed(&force.name, holder)? {
        return Err(Failure::new(exit::FOUND, "nothing was changed"));
    }
    let mut was_held = false;
    for named in &shown {
        was_held = was_held || end(&client, named, force.token).await?;
    }
    let is_held = shown.iter().any(|named| named.status.holding() > 0);
    tell(&Outcome { name: &force.name, was_held, holder: holder.cloned() }, is_held, force, out)
}

/// Ends the hold with this token, or without a token the hold of the lock that the user saw. Never ends the hold of a
/// later holder, who came while the user decided.
async fn end(client: &LockClient, named: &Named, token: Option<u64>) -> Result<bool, RequestError> {
    match (&named.status, token) {
        (AnyStatus::Lock(shown), None) => client.lock(&named.name).force_unlock_shown(shown).await,
        (AnyStatus::Lock(_), Some(token)) => client.lock(&named.name).force_unlock_token(token).await,
        (AnyStatus::Semaphore(_), Some(token)) => client.semaphore(&named.name, 1).force_unlock_token(token).await,
        (AnyStatus::RwLock(_), Some(token)) => client.rw_lock(&named.name).force_unlock_token(token).await,
        (_, None) => Ok(false),
    }
}

/// `is_held`: whether there was a holder just before.
fn tell(outcome: &Outcome<'_>, is_held: bool, force: &ForceUnlock, out: &mut Output) -> Result<u8, Failure> {
    if force.json {
        out.json(outcome)?;
    } else {
        out.line(told(outcome, is_held))?;
    }
    Ok(exit::OK)
}

fn told(outcome: &Outcome<'_>, is_held: bool) -> String {
    let name = render::text(outcome.name);
    match &outcome.holder {
        Some(holder) if outcome.was_held => {
            format!("{name} was taken away from {}, token {}", render::text(&holder.label), holder.token)
        }
        None if outcome.was_held => format!("{name} was taken away"),
        _ if is_held => format!("nothing was changed: {name} is not held under that token"),
        _ => format!("{name} was not held"),
    }
}

/// Asks on the terminal.
fn is_confirmed(name: &str, holder: Option<&Holder>) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask: add --yes to take the lock away"));
    }
    let of = holder.map_or_else(
        || "which is free now".to_owned(),
        |holder| format!("held by {} for {}", render::text(&holder.label), render::duration(holder.held_for)),
    );
    // Not on standard output, which may be a file.
    let mut terminal = io::stderr();
    write!(terminal, "take away {}, {of}? [y/N] ", render::text(name))?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
