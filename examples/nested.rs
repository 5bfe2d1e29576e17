//! Nested locking: three nested functions each take the same lock.
//!
//! `cargo run --example nested`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! It ends with: `as claimed: three functions, one hold`

use fairlock::{FairLock, LockClient};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::connect(&url).await?;
    let account = client.lock("example:account:7");

    let tokens = fairlock::owner::scope(close_account(&account)).await?;
    println!("one token through all three: {}", tokens.iter().all(|token| *token == tokens[0]));
    println!("free afterwards: {}", !account.is_locked().await?);

    // Outside a scope each call has an owner of its own, so the task cannot take its own lock again.
    let _guard = account.lock().await?;
    let excluded = account.try_lock().await?.is_busy();
    println!("outside a scope a second call is excluded: {excluded}");

    let as_claimed = excluded && tokens == [tokens[0]; 3];
    drop(_guard);
    client.close().await?;
    if !as_claimed {
        return Err("nesting did not work as it should".into());
    }
    println!("as claimed: three functions, one hold");
    Ok(())
}

/// Takes the lock and calls a function that takes it again.
async fn close_account(account: &FairLock) -> Outcome<Vec<u64>> {
    let guard = account.lock().await?;
    println!("close_account: {} hold", guard.holds());
    let mut tokens = vec![guard.token()];
    tokens.extend(transfer(account).await?);
    println!("close_account: unlock returns {:?}", guard.unlock().await?);
    Ok(tokens)
}

async fn transfer(account: &FairLock) -> Outcome<Vec<u64>> {
    let guard = account.lock().await?;
    println!("  transfer: {} holds", guard.holds());
    let tokens = vec![guard.token(), write_ledger(account).await?];
    println!("  transfer: unlock returns {:?}", guard.unlock().await?);
    Ok(tokens)
}

async fn write_ledger(account: &FairLock) -> Outcome<u64> {
    let guard = account.lock().await?;
    println!("    write_ledger: {} holds, holds() = {}", guard.holds(), account.holds());
    let token = guard.token();
    println!("    write_ledger: unlock returns {:?}", guard.unlock().await?);
    Ok(token)
}
