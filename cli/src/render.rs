//! Names, times and texts as people read them.

use std::time::{Duration, SystemTime};

use super::named::Named;
pub use super::output::text;

/// The last second of the year 9999, since 1970.
const END_OF_9999: Duration = Duration::from_secs(253_402_300_799);

/// `2m 3s`: whole seconds from one second on, else milliseconds.
pub fn duration(duration: Duration) -> String {
    let rounded = match duration {
        long if long >= Duration::from_secs(1) => Duration::from_secs(long.as_secs()),
        short => Duration::from_millis(u64::from(short.subsec_millis())),
    };
    humantime::format_duration(rounded).to_string()
}

/// `2026-11-22 10:31:00Z`.
pub fn time(time: SystemTime) -> String {
    // `humantime` formats only these years. A damaged key may contain any time.
    let time = time.clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + END_OF_9999);
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ")
}

/// The width of each column of a table: the width of its widest cell so far.
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

/// The row of a name. With several holders it shows the longest hold and the shortest lease.
pub fn row(named: &Named) -> Vec<String> {
    let none = || "-".to_owned();
    let holders = named.status.holders();
    let only = holders.first().filter(|_| holders.len() == 1);
    vec![
        text(&named.name),
        named.status.in_short().unwrap_or_else(none),
        holders.iter().map(|holder| holder.held_for).max().map_or_else(none, duration),
        holders.iter().map(|holder| holder.lease_left).min().map_or_else(none, duration),
        named.status.waiters().to_string(),
        only.map_or_else(none, |holder| holder.token.to_string()),
    ]
}
