//! The recipe "test your code that locks", written like a crate that uses fairlock. With paused time an hour of leases
//! takes milliseconds, and the test decides when the server fails.
#![cfg(feature = "embedded")]

use std::time::Duration;

use fairlock::{EmbeddedServer, FairLock, LockClient, LockError, Loss};
use tokio::time::Instant;

/// The code under test. It pays out once, however many workers try, and stops when it loses the lock.
async fn pay_out(lock: &FairLock, ledger: &tokio::sync::Mutex<Vec<u64>>) -> Result<Outcome, LockError> {
    let guard = lock.lock_timeout(Duration::from_secs(120)).await?;
    let work = async {
        if ledger.lock().await.is_empty() {
            // The bank is slow.
            tokio::time::sleep(Duration::from_secs(60)).await;
            ledger.lock().await.push(guard.token());
        }
    };
    tokio::select! {
        () = work => Ok(Outcome::Done),
        loss = guard.lost() => Ok(Outcome::Stopped(loss)),
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Done,
    Stopped(Loss),
}

fn worker(server: &EmbeddedServer) -> LockClient {
    LockClient::builder().embedded(server).expect("the settings are the defaults")
}

#[tokio::test(start_paused = true)]
async fn two_workers_pay_out_once() {
    let server = EmbeddedServer::new();
    let (one, two) = (worker(&server).lock("payout"), worker(&server).lock("payout"));
    let ledger = tokio::sync::Mutex::new(Vec::new());
    let (first, second) = tokio::join!(pay_out(&one, &ledger), pay_out(&two, &ledger));
    assert_eq!((first.unwrap(), second.unwrap()), (Outcome::Done, Outcome::Done));
    assert_eq!(ledger.lock().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_server_stops_at_the_end_of_its_lease() {
    let server = EmbeddedServer::new();
    let lock = worker(&server).lock("payout");
    let ledger = tokio::sync::Mutex::new(Vec::new());
    let outage = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.shut_down();
    };
    let begun = Instant::now();
    let (outcome, ()) = tokio::join!(pay_out(&lock, &ledger), outage);
    assert_eq!(outcome.unwrap(), Outcome::Stopped(Loss::Expired));
    assert!(begun.elapsed() <= Duration::from_secs(30), "the lease of the defaults");
    assert_eq!(ledger.lock().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_waits_too_long_is_told_why() {
    let server = EmbeddedServer::new();
    let _operator = worker(&server).lock("payout").lock().await.unwrap();
    let lock = worker(&server).lock("payout");
    let outcome = pay_out(&lock, &tokio::sync::Mutex::default()).await;
    assert!(matches!(outcome, Err(LockError::Timeout { .. })));

    server.shut_down();
    let outcome = pay_out(&lock, &tokio::sync::Mutex::default()).await;
    assert!(matches!(outcome, Err(LockError::Unreachable(_))), "the error is not that another worker has the lock");
    server.start_up();
}

/// After a flush, or a failover that lost the last writes, two workers may both hold the lock for a moment.
#[tokio::test(start_paused = true)]
async fn a_worker_is_told_when_the_server_has_lost_its_data() {
    let server = EmbeddedServer::new();
    let guard = worker(&server).lock("payout").lock().await.unwrap();
    server.flush();
    let next = worker(&server).lock("payout").lock().await.unwrap();
    assert!(next.token() > guard.token(), "a fenced ledger can refuse the older one");
    assert_eq!(guard.lost().await, Loss::Gone);
}
