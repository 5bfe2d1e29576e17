//! `fairlock status`.

use futures::stream::{self, StreamExt, TryStreamExt};

use fairlock::{LockStatus, ServerStatus};

use super::args::{Args, Status};
use super::connect::connect;
use super::exit::{self, Failure};
use super::named::{AnyStatus, Named, permits};
use super::output::{Output, Style};
use super::render;

/// How many requests share the connection at a time.
pub const AT_ONCE: usize = 64;

pub async fn run(args: &Args, status: &Status, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    let locks = stream::iter(&status.name).map(|name| Named::ask(&client, name));
    let mut asked = locks.buffered(AT_ONCE);
    let mut is_held = false;
    while let Some(all) = asked.try_next().await? {
        for named in &all {
            is_held |= named.status.is_taken();
            if status.json { out.json(named)? } else { show(named, out)? }
        }
    }
    Ok(if status.exit_code && is_held { exit::FOUND } else { exit::OK })
}

pub fn show(named: &Named, out: &mut Output) -> Result<(), Failure> {
    out.line(out.styled(Style::Bold, &render::text(&named.name)))?;
    match &named.status {
        AnyStatus::Lock(status) => show_lock(status, out)?,
        AnyStatus::Semaphore(status) => {
            out.line(format!("  {}", permits(status)))?;
            show_holders(&named.status, out)?;
        }
        AnyStatus::RwLock(_) if named.status.holding() == 0 => out.line("  free")?,
        AnyStatus::RwLock(_) => show_holders(&named.status, out)?,
    }
    if let Some(left) = named.status.frozen_for() {
        let text = format!("  no lock is granted for {}: the server was restarted", render::duration(left));
        out.line(out.styled(Style::Doubtful, &text))?;
    }
    if let AnyStatus::Lock(status) = &named.status
        && status.servers.len() > 1
    {
        for server in &status.servers {
            out.line(out.styled(Style::Dim, &format!("  {}  {}", render::text(&server.address), told(server))))?;
        }
    }
    for waiter in named.status.queue() {
        let label = format!("{}{}", render::text(&waiter.label), share(&named.status, waiter.weight));
        out.line(format!(
            "  {:>4}. {label} {}",
            waiter.position,
            out.styled(Style::Dim, &render::text(&waiter.owner))
        ))?;
    }
    let shown = u64::try_from(named.status.queue().len()).unwrap_or(u64::MAX);
    if named.status.waiters() > shown {
        out.line(format!("        and {} more", named.status.waiters() - shown))?;
    }
    Ok(())
}

fn show_lock(status: &LockStatus, out: &mut Output) -> Result<(), Failure> {
    match &status.holder {
        None if !status.is_known() => out.line("  not known: too few servers answer"),
        None => out.line("  free"),
        Some(holder) => {
            out.line(format!("  held by     {}", render::text(&holder.label)))?;
            out.line(format!("  since       {} ({})", render::time(holder.since), render::duration(holder.held_for)))?;
            out.line(format!("  lease left  {}", render::duration(holder.lease_left)))?;
            out.line(format!("  token       {}", holder.token))?;
            let owner = format!("  owner       {}, holds: {}", render::text(&holder.owner), holder.holds);
            out.line(out.styled(Style::Dim, &owner))
        }
    }
}

/// Prints a line for each holder of a semaphore or a read-write lock.
fn show_holders(status: &AnyStatus, out: &mut Output) -> Result<(), Failure> {
    let holders = status.holders();
    for holder in &holders {
        let (label, share) = (render::text(&holder.label), share(status, holder.weight));
        let times = (render::duration(holder.held_for), render::duration(holder.lease_left));
        let line =
            format!("  held by     {label}{share}, for {}, lease left {}, token {}", times.0, times.1, holder.token);
        out.line(line)?;
    }
    let hidden = status.holding().saturating_sub(u64::try_from(holders.len()).unwrap_or(u64::MAX));
    if hidden > 0 { out.line(format!("  and {hidden} more")) } else { Ok(()) }
}

/// The share of a holder or waiter, to follow its label.
fn share(status: &AnyStatus, weight: u32) -> String {
    match (status, weight) {
        (AnyStatus::RwLock(_), 1) => " (reads)".to_owned(),
        (AnyStatus::RwLock(_), _) => " (writes)".to_owned(),
        (AnyStatus::Lock(_), _) | (_, 1) => String::new(),
        (AnyStatus::Semaphore(_), permits) => format!(" ({permits} permits)"),
    }
}

/// The answer of one of several servers, on one line.
fn told(server: &ServerStatus) -> String {
    let answer = match &server.answer {
        Err(error) => return render::text(&error.to_string()),
        Ok(answer) => answer,
    };
    match (server.same_as, answer.frozen_for, &answer.holder) {
        (Some(other), ..) => format!("not counted: it is server {} by another address", other + 1),
        (_, Some(left), _) => format!("grants no lock for {}", render::duration(left)),
        (.., Some(holder)) => format!("{}, token {}", render::text(&holder.owner), holder.token),
        (.., None) => "free".into(),
    }
}
