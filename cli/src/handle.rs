//! `fairlock acquire`, `extend`, `release`: a lock, or a slot of a semaphore, over several steps, each in its own
//! process.

use std::fmt::Debug;
use std::io;

use fairlock::{DetachError, HandleError, HoldError, HoldHandle, LockClient, RequestError, Tried};
use serde::Serialize;

use super::args::{Acquire, Args, Extend, Release};
use super::connect;
use super::exit::{self, Failure};
use super::guard::{Guard, Wait};
use super::lock;
use super::log::say;
use super::output;
use super::signals::Signals;

#[derive(Debug, Serialize)]
struct Acquired<'a> {
    handle: &'a HoldHandle,
    name: &'a str,
    token: u64,
    lease_ms: u64,
}

pub async fn acquire(args: &Args, acquire: &Acquire) -> Result<u8, Failure> {
    // Like `lock`: a signal must leave nothing behind.
    let mut signals = Signals::catch()?;
    // Until the guard is detached, the client renews it, with a lease of the usual length at most.
    let builder = connect::builder_for_handle(args, acquire.lease)?;
    let (client, wait) = tokio::select! {
        connected = connect::connect_within(args, builder, &acquire.call) => connected?,
        signal = signals.next() => return Ok(lock::ended_by(signal)),
    };
    let outcome = tokio::select! {
        // The signal first: without its handle printed, the hold must end.
        biased;
        signal = signals.next() => Ok(lock::ended_by(signal)),
        outcome = acquired(&client, acquire, wait) => match outcome {
            Ok(Tried::Busy(busy)) => Ok(lock::conflict(&acquire.name, &busy, &acquire.call)),
            Ok(Tried::Acquired(handle)) => {
                let printed = print(&handle, acquire, &mut signals).await;
                if !matches!(printed, Ok(exit::OK)) {
                    give_back(&client, &handle).await;
                }
                printed
            }
            Err((failure, handle)) => {
                if let Some(handle) = handle {
                    give_back(&client, &handle).await;
                }
                Err(failure)
            }
        },
    };
    close(&client).await;
    outcome
}

/// Why a detach failed, and the handle that may have the hold.
type NotDetached = (Failure, Option<HoldHandle>);

async fn acquired(client: &LockClient, acquire: &Acquire, wait: Wait) -> Result<Tried<HoldHandle>, NotDetached> {
    let guard = lock::acquire(client, &acquire.name, acquire.used_as(), wait).await;
    let handle = match guard.map_err(|failure| (failure, None))? {
        Tried::Busy(busy) => return Ok(Tried::Busy(busy)),
        Tried::Acquired(Guard::Lock(guard)) => guard.detach(acquire.lease).await.map_err(not_detached)?,
        Tried::Acquired(Guard::Permit(permit)) => permit.detach(acquire.lease).await.map_err(not_detached)?,
        // `Acquire::used_as` never asks for these.
        Tried::Acquired(Guard::Read(_) | Guard::Write(_)) => {
            return Err((Failure::usage("read-write locks have no handles"), None));
        }
    };
    Ok(Tried::Acquired(handle))
}

fn not_detached<G: Debug>(error: DetachError<G>) -> NotDetached {
    let text = exit::chain(&error);
    match error {
        // Drops the guard, which releases the hold.
        DetachError::Refused { reason: HoldError::Lease(_) | HoldError::SeveralServers, .. } => {
            (Failure::usage(text), None)
        }
        DetachError::Refused { reason: HoldError::Request(RequestError::Refused(refusal)), .. } => {
            (Failure::new(exit::code_of_refusal(&refusal), text), None)
        }
        DetachError::Unanswered { handle, .. } => (Failure::new(exit::UNAVAILABLE, text), Some(handle)),
        _ => (Failure::new(exit::UNAVAILABLE, text), None),
    }
}

/// Returns the exit code. If that is not 0, the handle was not printed completely.
async fn print(handle: &HoldHandle, acquire: &Acquire, signals: &mut Signals) -> Result<u8, Failure> {
    let line = if acquire.json {
        let lease_ms = u64::try_from(handle.lease().as_millis()).unwrap_or(u64::MAX);
        let acquired = Acquired { handle, name: handle.name(), token: handle.token(), lease_ms };
        serde_json::to_string(&acquired).map_err(io::Error::from)?
    } else {
        handle.to_string()
    };
    tokio::select! {
        // A printed handle counts, even if a signal comes at the same time: a program may rely on it.
        biased;
        printed = output::print_aside(line) => printed.map(|()| exit::OK),
        signal = signals.next() => Ok(lock::ended_by(signal)),
    }
}

async fn give_back(client: &LockClient, handle: &HoldHandle) {
    match client.release(handle).await {
        Ok(()) | Err(HandleError::Lost) => {}
        Err(error) => say(&format!("{:?} is held until its lease ends: {error}", handle.name())),
    }
}

pub async fn extend(args: &Args, extend: &Extend) -> Result<u8, Failure> {
    let client = connect::connect_with(args, connect::builder_for_handle(args, extend.lease)?).await?;
    let outcome = client.extend(&extend.handle, extend.lease).await;
    close(&client).await;
    Ok(outcome.map(|()| exit::OK)?)
}

pub async fn release(args: &Args, release: &Release) -> Result<u8, Failure> {
    connect::check_for_handles(args)?;
    let client = connect::connect(args).await?;
    let outcome = client.release(&release.handle).await;
    close(&client).await;
    Ok(outcome.map(|()| exit::OK)?)
}

async fn close(client: &LockClient) {
    if let Err(error) = client.close().await {
        say(&error.to_string());
    }
}
