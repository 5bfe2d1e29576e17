//! Several locks at once without deadlock: transfers between accounts.
//!
//! `cargo run --example transfer`, against `REDIS_URL` or redis://127.0.0.1/. Each transfer locks both accounts, in
//! the order in which it happens to name them. With two calls of `lock`, a transfer from 1 to 2 and one from 2 to 1
//! would wait for each other. `lock_all` sorts the names.
//!
//! It ends with: `300 transfers between 4 accounts, nothing was lost`

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fairlock::{LockClient, LockError};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 300;
const BALANCE: i64 = 1000;

type Accounts = [AtomicI64; ACCOUNTS];

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    // Two clients, as if on two machines.
    let clients = [LockClient::connect(&url).await?, LockClient::connect(&url).await?];
    let accounts: Arc<Accounts> = Arc::new(std::array::from_fn(|_| AtomicI64::new(BALANCE)));

    let mut transfers = JoinSet::new();
    for number in 0..TRANSFERS {
        let (client, accounts) = (clients[number % 2].clone(), accounts.clone());
        let from = number % ACCOUNTS;
        let to = (from + 1 + number / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS;
        transfers.spawn(async move { transfer(&client, &accounts, from, to).await });
    }
    while let Some(done) = transfers.join_next().await {
        done??;
    }

    // All or none: one name is taken, so the call gets nothing and keeps nothing.
    let other = clients[0].lock("example:account:1").lock().await?;
    let both = clients[1].lock_all(["example:account:2", "example:account:1"]);
    let refused = both.lock_timeout(Duration::from_millis(300)).await;
    let is_kept = !matches!(refused, Err(LockError::Timeout { .. })) || both.try_lock().await?.into_result().is_ok();
    other.unlock().await?;
    for client in &clients {
        client.close().await?;
    }

    let sum: i64 = accounts.iter().map(|account| account.load(Ordering::Relaxed)).sum();
    if is_kept || sum != BALANCE * ACCOUNTS as i64 {
        return Err(format!("not as claimed: {sum} in all accounts").into());
    }
    println!("{TRANSFERS} transfers between {ACCOUNTS} accounts, nothing was lost");
    Ok(())
}

async fn transfer(client: &LockClient, accounts: &Accounts, from: usize, to: usize) -> Outcome<()> {
    let guard = client.lock_all([from, to].map(|account| format!("example:account:{account}"))).lock().await?;
    let work = async {
        // Reads and writes are separate, so without the locks concurrent transfers would lose money.
        let (before_from, before_to) = (accounts[from].load(Ordering::Relaxed), accounts[to].load(Ordering::Relaxed));
        tokio::task::yield_now().await;
        accounts[from].store(before_from - 1, Ordering::Relaxed);
        accounts[to].store(before_to + 1, Ordering::Relaxed);
    };
    tokio::select! {
        () = work => guard.unlock().await?,
        (name, loss) = guard.lost() => return Err(format!("{name}: {loss}").into()),
    }
    Ok(())
}
