//! `fairlock lock`: runs a command under a lock.

use std::time::Duration;

use fairlock::{LockClient, LockError, LockGuard, UnlockError};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};

use super::args::{Args, Lock};
use super::child::{self, Child};
use super::connect;
use super::exit::{self, Failure};
use super::log::say;
use super::signals::Signals;

pub async fn run(args: &Args, lock: &Lock) -> Result<u8, Failure> {
    // Before the first request: a signal that comes while the lock is waited for must not leave a place in the queue.
    let mut signals = Signals::catch()?;
    let client = tokio::select! {
        client = connect::connect_with(args, connect::builder(args, lock.lease)) => client?,
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    let outcome = locked(&client, lock, &mut signals).await;
    if let Err(error) = client.close().await {
        say(&error.to_string());
    }
    outcome
}

async fn locked(client: &LockClient, lock: &Lock, signals: &mut Signals) -> Result<u8, Failure> {
    let acquiring = async {
        if waits(lock) && is_inside_itself(client, lock).await {
            let text =
                format!("{:?} is held by the command that this one runs under: it would wait for itself", lock.name);
            return Err(Failure::usage(text));
        }
        Ok(acquire(client, lock).await)
    };
    let acquired = tokio::select! {
        acquired = acquiring => acquired,
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    match acquired? {
        Ok(Some(guard)) => run_under(guard, lock, signals).await,
        Ok(None) | Err(LockError::Timeout) => Ok(lock.conflict_exit_code),
        Err(error) => Err(error.into()),
    }
}

fn waits(lock: &Lock) -> bool {
    !lock.try_only && lock.wait != Some(Duration::ZERO)
}

/// Whether one of the commands around this one holds the lock.
async fn is_inside_itself(client: &LockClient, lock: &Lock) -> bool {
    let Some(outer) = outer_owners() else { return false };
    // An error comes once more when the lock is asked for.
    let holder = client.lock(&lock.name).status().await.ok().and_then(|status| status.holder);
    holder.is_some_and(|holder| outer.split(' ').any(|owner| owner == holder.owner))
}

fn outer_owners() -> Option<String> {
    std::env::var("FAIRLOCK_OWNERS").ok()
}

async fn acquire(client: &LockClient, lock: &Lock) -> Result<Option<LockGuard>, LockError> {
    let named = client.lock(&lock.name);
    let named = lock.label.as_ref().map_or_else(|| named.clone(), |label| named.labelled(label));
    match lock.wait {
        _ if !waits(lock) => named.try_lock().await,
        Some(longest) => named.lock_timeout(longest).await.map(Some),
        None => named.lock().await.map(Some),
    }
}

/// Returns the exit code of the command.
async fn run_under(guard: LockGuard, lock: &Lock, signals: &mut Signals) -> Result<u8, Failure> {
    let token = guard.token().to_string();
    let owner = guard.owner_id();
    let owners = outer_owners().map_or_else(|| owner.to_owned(), |outer| format!("{outer} {owner}"));
    let environment = [
        ("FAIRLOCK_NAME", guard.name()),
        ("FAIRLOCK_TOKEN", &token),
        ("FAIRLOCK_OWNER", owner),
        ("FAIRLOCK_OWNERS", &owners),
    ];
    let mut child = Child::start(&lock.cmd, environment)?;
    let mut kill_at = None;
    let status = loop {
        tokio::select! {
            status = child.ended() => break status?,
            signal = signals.next() => child.pass_on(signal),
            loss = guard.lost(), if kill_at.is_none() => {
                say(&format!("lost the lock {:?}: {loss}; ending the command", lock.name));
                child.send(Signal::SIGTERM);
                kill_at = Some(Instant::now().checked_add(lock.kill_after).unwrap_or_else(far_off));
            }
            () = sleep_until(kill_at.unwrap_or_else(far_off)), if kill_at.is_some() => {
                child.send(Signal::SIGKILL);
                kill_at = Some(far_off());
            }
        }
    };
    if let Some(deadline) = kill_at {
        child.end_group(deadline).await;
        return Ok(exit::LOST);
    }
    unlock(guard, child::code(status)).await
}

async fn unlock(guard: LockGuard, code: u8) -> Result<u8, Failure> {
    match guard.unlock().await {
        Ok(_) => Ok(code),
        Err(UnlockError::Lost(loss)) => {
            Err(Failure::new(exit::LOST, format!("the lock was lost while the command ran: {loss}")))
        }
        // It was held until the command had ended. What becomes of it now is no fault of the command.
        Err(error) => {
            say(&exit::chain(&error));
            Ok(code)
        }
    }
}

fn far_off() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 24 * 3600)
}

/// The exit code of a shell for a command that a signal ended.
fn ended_by(signal: Signal) -> u8 {
    exit::SIGNAL.saturating_add(signal as u8)
}
