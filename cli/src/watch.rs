//! `fairlock watch`: a table of locks that refreshes.

use std::future::ready;
use std::time::SystemTime;

use fairlock::LockClient;
use futures::stream::{StreamExt, TryStreamExt};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::args::{Args, Watch};
use super::connect::connect;
use super::exit::{self, Failure};
use super::named::Named;
use super::output::{Output, Style};
use super::render::{self, Columns};
use super::status::AT_ONCE;

/// A longer table is of no use to anybody.
const MOST_LOCKS: usize = 1000;
/// How many waiters to show for each lock.
const MOST_WAITERS: usize = 5;

#[derive(Debug, Serialize)]
struct Table {
    /// The locks, sorted by name.
    locks: Vec<Named>,
    /// Whether there are more locks than this.
    is_cut: bool,
}

pub async fn run(args: &Args, watch: &Watch, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    let mut ticks = interval(watch.interval);
    // After an outage one table is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = watch.count;
    while left != Some(0) {
        ticks.tick().await;
        match look(&client, &watch.glob).await {
            Ok(table) if watch.json => out.json(&table)?,
            Ok(table) => show(&table, args, out)?,
            // An outage passes, a refusal usually does not.
            Err(failure) if failure.code == exit::UNAVAILABLE => {
                clear(out)?;
                super::log::say(&failure.message);
            }
            Err(failure) => return Err(failure),
        }
        out.flush()?;
        left = left.map(|left| left - 1);
    }
    Ok(exit::OK)
}

async fn look(client: &LockClient, glob: &str) -> Result<Table, Failure> {
    let is_pattern = glob.contains(['*', '?', '[', '\\']);
    let (mut locks, is_cut) = if is_pattern {
        let asked = client.list(glob).map_ok(|lock| Named::ask_listed(client, lock)).try_buffer_unordered(AT_ONCE);
        let held = asked.try_filter_map(|named| ready(Ok(named)));
        let mut locks: Vec<_> = held.take(MOST_LOCKS + 1).try_collect().await?;
        let is_cut = locks.len() > MOST_LOCKS;
        locks.truncate(MOST_LOCKS);
        (locks, is_cut)
    } else {
        // A single name does not need the right to SCAN, and appears even if it is free.
        (Named::ask(client, glob).await?, false)
    };
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Table { locks, is_cut })
}

fn clear(out: &mut Output) -> Result<(), Failure> {
    // Moves to the upper left corner and clears the rest of the screen.
    if out.is_terminal { out.raw(b"\x1b[H\x1b[J") } else { Ok(()) }
}

fn show(table: &Table, args: &Args, out: &mut Output) -> Result<(), Failure> {
    clear(out)?;
    let now = render::time(SystemTime::now());
    out.line(out.styled(Style::Dim, &format!("{now}  {} of {}", counted(table), args.prefix)))?;
    let rows: Vec<_> = table.locks.iter().map(|named| (named, render::row(named))).collect();
    let mut columns = Columns::default();
    columns.fit(&render::head());
    rows.iter().for_each(|(_, row)| columns.fit(row));
    out.line(out.styled(Style::Bold, &columns.line(&render::head())))?;
    for (named, row) in &rows {
        out.line(columns.line(row))?;
        for waiter in named.status.queue().iter().take(MOST_WAITERS) {
            out.line(out.styled(Style::Dim, &format!("  {:>3}. {}", waiter.position, render::text(&waiter.label))))?;
        }
    }
    if !out.is_terminal {
        out.line("")?;
    }
    Ok(())
}

fn counted(table: &Table) -> String {
    match (table.locks.len(), table.is_cut) {
        (1, _) => "1 lock".to_owned(),
        (count, false) => format!("{count} locks"),
        (count, true) => format!("the first {count} locks"),
    }
}
