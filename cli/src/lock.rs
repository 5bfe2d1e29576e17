//! `fairlock lock`: runs a command under a lock.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use fairlock::cli::owner_of;
use fairlock::{Busy, HandleError, HeldBy, HoldError, HoldHandle, LockClient, LockError, Tried};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::args::{Args, Call, Lock};
use super::child::{self, Child};
use super::connect;
use super::exit::{self, Failure};
use super::guard::{Guard, Use, Wait};
use super::log::say;
use super::named::{AnyStatus, Named};
use super::output::{self, text};
use super::render;
use super::signals::Signals;

/// The client notices a loss within this time or a third of the lease, whichever is shorter: the server notifies nobody
/// when a handle loses its hold.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub async fn run(args: &Args, lock: &Lock) -> Result<u8, Failure> {
    // Before the first request: a signal during the wait must not leave a place in the queue.
    let mut signals = Signals::catch()?;
    let builder = match (&lock.attach, lock.at_least) {
        (Some(handle), _) => connect::builder_for_handle(args, handle.lease())?,
        (None, Some(at_least)) => connect::builder_for_at_least(args, lock.lease, at_least)?,
        (None, None) => connect::builder(args, lock.lease),
    };
    let (client, wait) = tokio::select! {
        connected = connect::connect_within(args, builder, &lock.call) => connected?,
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    let outcome = match &lock.attach {
        Some(handle) => attached(&client, handle, lock, &mut signals).await,
        None => locked(&client, lock, wait, &mut signals).await,
    };
    if let Err(error) = client.close().await {
        say(&error.to_string());
    }
    outcome
}

async fn locked(client: &LockClient, lock: &Lock, wait: Wait, signals: &mut Signals) -> Result<u8, Failure> {
    let name = lock.name.as_deref().unwrap_or_default();
    let acquired = tokio::select! {
        acquired = acquire(client, name, lock.used_as(), wait) => acquired?,
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    match acquired {
        Tried::Acquired(guard) if lock.cmd.is_empty() => hold(guard, lock, signals).await,
        Tried::Acquired(guard) => run_under(guard, lock, signals).await,
        Tried::Busy(busy) => Ok(conflict(name, &busy, &lock.call)),
    }
}

/// Returns the exit code. After a wait, prints who has the lock, if the answer named the holder. `--try` prints
/// nothing, like `flock -n`: cron sends a mail for each line.
pub fn conflict(name: &str, busy: &Busy, call: &Call) -> u8 {
    if let (Wait::For(_), Some(HeldBy { label, since, lease_left, .. })) = (call.wait(), busy.holder.as_deref()) {
        let (label, since, left) = (text(label), render::time(*since), render::duration(*lease_left));
        say(&format!("{name:?}: the last answer named \"{label}\", which held it since {since}, lease left {left}"));
    }
    call.conflict_exit_code
}

pub async fn acquire(client: &LockClient, name: &str, used_as: Use, wait: Wait) -> Result<Tried<Guard>, Failure> {
    check_nesting(client, name, used_as, wait).await?;
    match Guard::take(client, name, used_as, wait).await {
        Err(LockError::Timeout { holder }) => Ok(Tried::Busy(Busy::from(holder))),
        acquired => Ok(acquired?),
    }
}

/// Refuses to wait for a lock that a surrounding command holds: that wait would never end.
async fn check_nesting(client: &LockClient, name: &str, used_as: Use, wait: Wait) -> Result<(), Failure> {
    if !matches!(wait, Wait::No) && is_inside_itself(client, name, used_as).await {
        let text = format!("{name:?} is held by the command that this one runs under: it would wait for itself");
        return Err(Failure::usage(text));
    }
    Ok(())
}

async fn is_inside_itself(client: &LockClient, name: &str, used_as: Use) -> bool {
    let Some(outer) = outer_owners() else { return false };
    // On an error, the request for the lock will fail with it again.
    let Ok(named) = Named::of(client, used_as.kind(), name).await else { return false };
    let holders = named.status.holders().into_iter();
    let mut ours = holders.filter(|holder| outer.split(' ').any(|owner| owner == holder.owner));
    match (&named.status, used_as) {
        (AnyStatus::Semaphore(_), Use::Slots(slots)) => {
            let taken: u64 = ours.map(|holder| u64::from(holder.weight)).sum();
            taken >= u64::from(slots)
        }
        // A reader within a reader gets in, unless a writer waits.
        (AnyStatus::RwLock(status), Use::Shared) => {
            ours.next().is_some() && (status.writer.is_some() || status.waiters > 0)
        }
        (AnyStatus::RwLock(_), Use::Exclusive) | (AnyStatus::Lock(_), Use::Lock) => ours.next().is_some(),
        _ => false,
    }
}

fn outer_owners() -> Option<String> {
    std::env::var("FAIRLOCK_OWNERS").ok()
}

/// Returns the exit code of the command.
async fn run_under(guard: Guard, lock: &Lock, signals: &mut Signals) -> Result<u8, Failure> {
    let (token, owner) = (guard.token(), guard.owner_id().to_owned());
    let lost = async { guard.lost().await.to_string() };
    match run_child(lock, guard.name(), token, &owner, lost, signals).await? {
        Some(code) => unlock(guard, lock, code).await,
        None => Ok(exit::LOST),
    }
}

/// Runs the command under the hold of a handle. Extends the hold while the command runs, and leaves it to the handle.
async fn attached(client: &LockClient, handle: &HoldHandle, lock: &Lock, signals: &mut Signals) -> Result<u8, Failure> {
    let asked = Instant::now();
    let beginning = client.extend(handle, handle.lease());
    tokio::select! {
        extended = beginning => extended?,
        signal = signals.next() => return Ok(ended_by(signal)),
    }
    let lost = until_lost(client, handle, asked);
    match run_child(lock, handle.name(), handle.token(), owner_of(handle), lost, signals).await? {
        Some(code) => still_held(client, handle, code).await,
        None => Ok(exit::LOST),
    }
}

/// Returns the exit code of the command, which may end before `until_lost` has noticed a loss.
async fn still_held(client: &LockClient, handle: &HoldHandle, code: u8) -> Result<u8, Failure> {
    match client.extend(handle, handle.lease()).await {
        Ok(()) => Ok(code),
        Err(HandleError::Lost) => {
            Err(Failure::new(exit::LOST, format!("the lock was lost while the command ran: {}", HandleError::Lost)))
        }
        // Unknown, but the hold was extended in time while the command ran.
        Err(error) => {
            say(&exit::chain(&error));
            Ok(code)
        }
    }
}

/// Extends the hold of a handle again and again. Returns the reason when the hold has ended, or at the latest when its
/// lease may have ended. `asked`: a moment before the last extend.
async fn until_lost(client: &LockClient, handle: &HoldHandle, mut asked: Instant) -> String {
    let lease = handle.lease();
    // As the library counts (R5): from before the request. Clocks may differ by one percent, and times are rounded.
    let sure = lease.saturating_sub(lease / 100 + Duration::from_millis(2));
    let mut until = asked.checked_add(sure).unwrap_or(asked);
    let mut why = "the server does not answer".to_owned();
    loop {
        // Counts from the last request, even an unanswered one. Never sleeps past the lease: the next owner does not
        // wait for this process to notice its end (P1).
        let look = asked.checked_add((lease / 3).min(LOOK_EVERY)).unwrap_or(asked);
        sleep_until(look.min(until)).await;
        asked = Instant::now();
        // One more request could extend a hold that no command uses any more.
        if asked >= until {
            break;
        }
        match timeout_at(until, client.extend(handle, lease)).await {
            Ok(Ok(())) => until = asked.checked_add(sure).unwrap_or(until),
            Ok(Err(HandleError::Lost)) => return HandleError::Lost.to_string(),
            // Tries again, until the lease ends.
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => break,
        }
    }
    format!("its lease may have ended: {why}")
}

/// Holds the lock until a signal comes.
async fn hold(guard: Guard, lock: &Lock, signals: &mut Signals) -> Result<u8, Failure> {
    let line = format!("{} {}", text(guard.name()), guard.token());
    let not_printed = async {
        match output::print_aside(line).await {
            Ok(()) => std::future::pending().await,
            Err(failure) => failure,
        }
    };
    tokio::select! {
        _ = signals.next() => unlock(guard, lock, exit::OK).await,
        loss = guard.lost() => Err(Failure::new(exit::LOST, format!("lost the lock {:?}: {loss}", guard.name()))),
        failure = not_printed => unlock(guard, lock, exit::OK).await.and(Err(failure)),
    }
}

/// Returns the exit code of the command, or `None` if the lock was lost and the command had to end.
async fn run_child(
    lock: &Lock,
    name: &str,
    token: u64,
    owner: &str,
    lost: impl Future<Output = String>,
    signals: &mut Signals,
) -> Result<Option<u8>, Failure> {
    let token = token.to_string();
    let owners = outer_owners().map_or_else(|| owner.to_owned(), |outer| format!("{outer} {owner}"));
    let environment =
        [("FAIRLOCK_NAME", name), ("FAIRLOCK_TOKEN", &token), ("FAIRLOCK_OWNER", owner), ("FAIRLOCK_OWNERS", &owners)];
    let mut child = Child::start(&lock.cmd, lock.orphan, environment)?;
    let mut lost = pin!(lost);
    let mut kill_at = None;
    let status = loop {
        tokio::select! {
            status = child.ended() => break status?,
            signal = signals.next() => child.pass_on(signal),
            loss = lost.as_mut(), if kill_at.is_none() => {
                // Before printing, which may block on a stuck reader.
                child.send(Signal::SIGTERM);
                say(&format!("lost the lock {name:?}: {loss}; ending the command"));
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
        return Ok(None);
    }
    Ok(Some(child::code(status)))
}

async fn unlock(guard: Guard, lock: &Lock, code: u8) -> Result<u8, Failure> {
    let released = match lock.at_least {
        Some(at_least) => guard.release_at_least(at_least).await,
        None => guard.release().await.map_err(HoldError::from),
    };
    match released {
        Ok(()) => Ok(code),
        Err(HoldError::Lost(loss)) => {
            Err(Failure::new(exit::LOST, format!("the lock was lost while the command ran: {loss}")))
        }
        // The command ran under the lock to its end. A failed release is not its fault.
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
pub fn ended_by(signal: Signal) -> u8 {
    exit::SIGNAL.saturating_add(signal as u8)
}
