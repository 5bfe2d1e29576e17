//! A load on a topology, from connecting the clients to checking for leftovers.

use std::sync::Arc;
use std::time::Duration;

use fairlock::LockClient;
use redis::Value;

use crate::checker::{Findings, check};
use crate::gate::Gate;
use crate::load::{Load, Plan, connect_all};
use crate::record::Record;
use crate::report::Report;
use crate::resource::Resource;
use crate::server::Server;
use crate::testbed::{Nanos, eventually, note, now};

pub const CLIENTS: usize = 4;
/// Longer than a client may take to leave a demoted server.
const LEAVING: Duration = Duration::from_millis(1500);
/// Longer than the time after which a released name counts as a ghost.
const AFTERWARDS: Duration = Duration::from_millis(2500);
/// For each queue whose order a scenario checks.
const WAITERS: usize = 8;

/// Clients under load.
pub struct Run {
    pub record: Arc<Record>,
    pub clients: Vec<LockClient>,
    plan: Plan,
    load: Load,
}

impl Run {
    /// Connects and starts. When it returns, everything has been at work for more than a second.
    pub async fn start(url: &str, plan: Plan) -> Self {
        Self::with(connect_all(url, CLIENTS).await, plan).await
    }

    pub async fn with(clients: Vec<LockClient>, plan: Plan) -> Self {
        let record = Arc::new(Record::new(Resource::new()));
        let load = Load::start(&clients, &plan, &record).await;
        let run = Self { record, clients, plan, load };
        run.until_granted_after(now()).await;
        for name in &run.plan.long {
            let what = format!("begun {name}");
            eventually(&format!("{name} is held"), async || run.record.counted(&what) > 0).await;
        }
        tokio::time::sleep(Duration::from_millis(1300)).await;
        note("all is at work");
        run
    }

    /// Waits until every busy name was granted after this instant.
    pub async fn until_granted_after(&self, instant: Nanos) {
        eventually("each name is granted again", async || {
            let holds = self.record.holds();
            let granted = |name: &&String| holds.iter().any(|hold| hold.name == **name && hold.start > instant);
            self.plan.names.iter().chain(&self.plan.alone).all(|name| granted(&name))
        })
        .await;
    }

    /// Waits until everything works again, and then until a ghost would show.
    pub async fn settle(&self) {
        self.until_it_works().await;
        self.wait_for_ghosts().await;
    }

    pub async fn until_it_works(&self) {
        // Clients may still use the previous server.
        tokio::time::sleep(LEAVING).await;
        self.until_granted_after(now()).await;
        note("each name is granted again");
    }

    /// Call this after the last fault: a ghost of an earlier one shows by then.
    pub async fn wait_for_ghosts(&self) {
        tokio::time::sleep(AFTERWARDS).await;
    }

    /// How many waiters of a queue got the lock out of order.
    pub async fn inversions(&self, name: &str) -> usize {
        self.shut_gate(name).await.open().await
    }

    pub async fn shut_gate(&self, name: &str) -> Gate {
        Gate::shut(&self.clients, name, WAITERS).await
    }

    /// Ends the load and closes the clients, which must leave nothing. `group`: names on the same server.
    pub async fn finish(
        self,
        report: &mut Report,
        masters: &[&Server],
        others: &[&Server],
        group: impl Fn(&str) -> usize,
    ) -> Findings {
        self.load.stop().await;
        for client in &self.clients {
            if let Err(error) = client.close().await {
                report.must(false, format!("close: {error}"));
            }
        }
        for server in masters {
            until_clean(server, report).await;
        }
        for server in others {
            until_unsubscribed(server, report).await;
        }
        for (error, count) in self.record.counts("") {
            note(format!("{count} x {error}"));
        }
        let findings = check(&self.record, &group);
        for overlap in &findings.overlaps {
            note(format!("overlap: {overlap}"));
        }
        report.findings(&findings, &self.record);
        findings
    }
}

/// P10: only the token of a name remains, and it expires. Tombstones expire within seconds.
async fn until_clean(server: &Server, report: &mut Report) {
    let mut left = Vec::new();
    for _ in 0..150 {
        left = leftovers(server).await;
        if left.is_empty() {
            return until_unsubscribed(server, report).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    report.must(false, format!("left on {}: {left:#?}", server.name()));
}

async fn leftovers(server: &Server) -> Vec<String> {
    let mut left = Vec::new();
    let keys: Vec<String> = server.tell("KEYS *").await;
    for key in keys {
        let ttl: i64 = server.tell(&format!("PTTL {key}")).await;
        let may_stay = key.ends_with(":{boot}") || key.ends_with("}:token") && ttl != -1;
        // -2: the key expired in the meantime.
        if !may_stay && ttl != -2 {
            left.push(format!("{key} with a TTL of {ttl} ms"));
        }
    }
    left
}

/// All clients have closed, so their channels must lose all subscribers.
async fn until_unsubscribed(server: &Server, report: &mut Report) {
    let mut channels: Vec<String> = Vec::new();
    for _ in 0..50 {
        channels = server.tell("PUBSUB CHANNELS fairlock:*").await;
        if channels.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    report.must(false, format!("subscribed at {}: {channels:?}", server.name()));
}

pub async fn is_up(server: &Server) -> bool {
    server.ask::<Value>("PING").await.is_ok()
}
