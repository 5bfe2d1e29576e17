//! The times during which a server grants nothing (`strict_restart`), on the clock of this machine.

use std::time::Duration;

use fairlock::LockClient;

use crate::server::Server;
use crate::testbed::{Nanos, eventually, note, now, to_ms};

pub struct Freeze {
    pub began: Nanos,
    /// The freeze ends between these two.
    pub earliest: Nanos,
    pub latest: Nanos,
    /// The end on the server's clock.
    pub until_ms: u64,
}

/// The end and the beginning of a freeze, on the server's clock.
async fn record(server: &Server) -> Option<(u64, u64)> {
    let record: String = server.ask("GET fairlock:{boot}").await.ok()?;
    let mut words = record.split(' ').map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

impl Freeze {
    /// Waits until a client has frozen this server.
    pub async fn of(server: &Server) -> Self {
        let mut freeze = None;
        eventually("the server is frozen", async || {
            let Some((until_ms, began_ms)) = record(server).await else { return false };
            let before = now();
            let Ok((seconds, micros)) = server.ask::<(u64, u64)>("TIME").await else { return false };
            let after = now();
            let time = seconds * 1_000_000_000 + micros * 1000;
            let at = |seen: Nanos, ms: u64| seen + ms * 1_000_000 - time;
            // The record of the previous server may have been replicated.
            let is_ahead = until_ms * 1_000_000 > time;
            let (began, earliest, latest) = (at(before, began_ms), at(before, until_ms), at(after, until_ms));
            freeze = is_ahead.then_some(Self { began, earliest, latest, until_ms });
            is_ahead
        })
        .await;
        let freeze = freeze.expect("it was found");
        note(format!("{} is frozen for {} ms more", server.name(), to_ms(freeze.earliest.saturating_sub(now()))));
        freeze
    }

    /// The freeze for clients that know none: from now on, for a lease and the second that is added to it.
    pub fn from_now(lease: Duration) -> Self {
        let began = now();
        let end = began + u64::try_from(lease.as_nanos()).unwrap() + 1_000_000_000;
        Self { began, earliest: end, latest: end, until_ms: 0 }
    }

    /// The end that the server has recorded, on its clock.
    pub async fn of_record(server: &Server) -> Option<u64> {
        record(server).await.map(|(until, _)| until)
    }

    /// Whether the client reports the same end in its first answer.
    pub async fn is_told_by(&self, client: &LockClient) -> bool {
        let lock = client.lock("work:0");
        let mut is_so = false;
        eventually("a client answers", async || {
            let before = now();
            let Ok(status) = lock.status().await else { return false };
            let after = now();
            let Some(left) = status.frozen_for else { return true };
            let left = u64::try_from(left.as_nanos()).unwrap();
            // The server read its clock between the two, and rounded up to a millisecond.
            is_so = before + left <= self.latest + 1_000_000 && after + left >= self.earliest;
            note(format!("a client says that it is frozen for {} ms more", to_ms(left)));
            true
        })
        .await;
        is_so
    }
}

/// Whether the server serves this client.
pub async fn is_over(client: &LockClient) -> bool {
    client.lock("work:0").status().await.is_ok_and(|status| status.frozen_for.is_none())
}
