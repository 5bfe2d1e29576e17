//! Locks, times and texts as people read them.

use std::time::{Duration, SystemTime};

use fairlock::{LockStatus, RequestError};
use serde::Serialize;

use super::log::say;
pub use super::output::text;

/// A lock with its name, as `--json` shows it.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: String,
    #[serde(flatten)]
    pub status: LockStatus,
}

impl Named {
    pub async fn ask(lock: fairlock::FairLock) -> Result<Self, RequestError> {
        Ok(Self { status: lock.status().await?, name: lock.name().to_owned() })
    }

    /// Asks for a name from a list: it may have been released since it was found, and is `None` then. A key that is no
    /// lock is reported, and the list goes on.
    pub async fn ask_listed(lock: fairlock::FairLock) -> Result<Option<Self>, RequestError> {
        let name = text(lock.name());
        match Self::ask(lock).await {
            Ok(named) => Ok((!named.is_free()).then_some(named)),
            Err(RequestError::Refused(refusal)) if refusal.message.contains("fairlock: the key ") => {
                say(&format!("{name}: {refusal}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_free(&self) -> bool {
        self.status.holder.is_none() && self.status.waiters == 0
    }
}

/// `2m 3s`: whole seconds above one, else milliseconds.
pub fn duration(duration: Duration) -> String {
    let rounded = match duration {
        long if long >= Duration::from_secs(1) => Duration::from_secs(long.as_secs()),
        short => Duration::from_millis(u64::from(short.subsec_millis())),
    };
    humantime::format_duration(rounded).to_string()
}

/// `2026-11-22 10:31:00Z`.
pub fn time(time: SystemTime) -> String {
    // A time before 1970 has no such text. No server has one.
    let time = time.max(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ")
}

/// How wide each column of a table is: as wide as its widest cell so far.
#[derive(Debug, Default)]
pub struct Columns {
    widths: Vec<usize>,
}

impl Columns {
    pub fn fit(&mut self, row: &[String]) {
        self.widths.resize(self.widths.len().max(row.len()), 0);
        for (width, cell) in self.widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }

    pub fn line(&self, row: &[String]) -> String {
        let cell = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width - cell.chars().count()));
        let cells: Vec<_> = row.iter().zip(&self.widths).map(cell).collect();
        cells.join("  ").trim_end().to_owned()
    }
}

pub const HEAD: [&str; 6] = ["NAME", "HOLDER", "HELD FOR", "LEASE LEFT", "WAITING", "TOKEN"];

pub fn head() -> Vec<String> {
    HEAD.map(str::to_owned).to_vec()
}

/// The row of a lock.
pub fn row(named: &Named) -> Vec<String> {
    let none = || "-".to_owned();
    let holder = named.status.holder.as_ref();
    vec![
        text(&named.name),
        holder.map_or_else(none, |holder| text(&holder.label)),
        holder.map_or_else(none, |holder| duration(holder.held_for)),
        holder.map_or_else(none, |holder| duration(holder.lease_left)),
        named.status.waiters.to_string(),
        holder.map_or_else(none, |holder| holder.token.to_string()),
    ]
}
