//! What Redis keeps for names that are used once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlock::LockClient;

use crate::contender::together;
use crate::measure::Series;
use crate::report::{Row, Target};
use crate::{Bench, Outcome, Transport};

pub async fn run(bench: &mut Bench) -> Outcome<()> {
    let count = bench.mode.pick(1_000_000, 20_000);
    let client = LockClient::connect(bench.server.url(Transport::Tcp)).await?;
    client.lock("warm").lock().await?.unlock().await?;
    bench.admin.clear().await?;
    let before = bench.admin.info("memory", "used_memory").await?;
    use_once(&client, count).await?;
    let left = bench.admin.run::<u64>(&["DBSIZE"]).await?;
    let bytes = (bench.admin.info("memory", "used_memory").await? - before) / count as f64;
    let (seen, wrong) = sample(bench).await?;
    let note = format!("{count} names of 12 bytes");
    let row = Row::new("names-1000000", Transport::Tcp, "bytes a name", Series(vec![bytes]));
    bench.add(row.target(Target::AtMost(200.0)).note(note));
    // There must be one key for each name, and no other.
    let wrong = wrong + left.abs_diff(count);
    let row = Row::new("names-1000000-left", Transport::Tcp, "wrong keys", Series(vec![wrong as f64]));
    let note = format!("other than tokens with a TTL: {left} keys counted, {seen} looked at");
    bench.add(row.target(Target::AtMost(0.0)).note(note));
    bench.admin.clear().await
}

async fn use_once(client: &LockClient, count: u64) -> Outcome<()> {
    let next = Arc::new(AtomicU64::new(0));
    let tasks = (0..256).map(|_| {
        let (client, next) = (client.clone(), next.clone());
        async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                client.lock(format!("name:{number:07}")).lock().await?.unlock().await?;
            }
        }
    });
    together(tasks).await?;
    // The server's buffers shrink after a while.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Returns how many keys it checked, and how many of them are no token or have no TTL.
async fn sample(bench: &mut Bench) -> Outcome<(u64, u64)> {
    let (mut cursor, mut seen, mut wrong) = ("0".to_owned(), 0, 0);
    for _ in 0..5 {
        let (next, keys): (String, Vec<String>) = bench.admin.run(&["SCAN", &cursor, "COUNT", "1000"]).await?;
        for key in &keys {
            let ttl: i64 = bench.admin.run(&["PTTL", key]).await?;
            wrong += u64::from(!key.ends_with("}:token") || ttl <= 0);
        }
        (cursor, seen) = (next, seen + keys.len() as u64);
        if cursor == "0" {
            break;
        }
    }
    Ok((seen, wrong))
}
