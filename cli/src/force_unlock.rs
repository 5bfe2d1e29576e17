//! `fairlock force-unlock`.

use std::io::{self, BufRead, IsTerminal, Write};

use fairlock::Holder;
use serde::Serialize;

use super::args::{Args, ForceUnlock};
use super::connect::connect;
use super::exit::{self, Failure};
use super::output::Output;
use super::render;

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    name: &'a str,
    /// Whether the hold that was shown, or that has the given token, was ended.
    was_held: bool,
    /// The holder a moment before.
    holder: Option<Holder>,
}

pub async fn run(args: &Args, force: &ForceUnlock, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    let lock = client.lock(&force.name);
    let shown = lock.status().await?;
    let holder = shown.holder.clone();
    if !force.yes && !is_confirmed(&force.name, holder.as_ref())? {
        return Err(Failure::new(exit::FOUND, "nothing was changed"));
    }
    // Never the lock of a holder that came while a person decided.
    let was_held = match force.token {
        Some(token) => lock.force_unlock_token(token).await?,
        None => lock.force_unlock_shown(&shown).await?,
    };
    let outcome = Outcome { name: &force.name, was_held, holder };
    if force.json {
        out.json(&outcome)?;
    } else {
        out.line(told(&outcome))?;
    }
    Ok(exit::OK)
}

fn told(outcome: &Outcome<'_>) -> String {
    let name = render::text(outcome.name);
    match &outcome.holder {
        Some(holder) if outcome.was_held => {
            format!("{name} was taken away from {}, token {}", render::text(&holder.label), holder.token)
        }
        Some(_) => format!("nothing was changed: {name} is not held under that token"),
        None if outcome.was_held => format!("{name} was taken away"),
        None => format!("{name} was not held"),
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
    // Not to standard output, which may be a file.
    let mut terminal = io::stderr();
    write!(terminal, "take away {}, {of}? [y/N] ", render::text(name))?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
