//! Leaving `main` by an error, by a panic, and by `exit`. Each case runs in its own process, which is this test binary
//! again.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Duration;

use fairlock::{LockClient, LockError, Unlocked};
use tokio::runtime::Builder;

use crate::support::{Server, Timing, limit};

const URL: &str = "FAIRLOCK_LEAVING_URL";
const WAY: &str = "FAIRLOCK_LEAVING_WAY";

/// The other process. As an ordinary test it does nothing.
#[test]
fn leaving_process() {
    let (Ok(url), Ok(way)) = (std::env::var(URL), std::env::var(WAY)) else { return };
    // As `#[tokio::main]` does.
    let main = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = main.block_on(leave(&url, &way));
    drop(main);
    std::process::exit(if outcome.is_err() { 1 } else { 0 });
}

async fn leave(url: &str, way: &str) -> Result<(), Box<dyn Error>> {
    let client = Timing::default().connect(url).await;
    match way.strip_prefix("run ") {
        Some(way) => client.run(hold_and_leave(&client, way)).await,
        None => hold_and_leave(&client, way).await,
    }
}

async fn hold_and_leave(client: &LockClient, way: &str) -> Result<(), Box<dyn Error>> {
    let _guard = client.lock("left").lock().await?;
    match way {
        "by error" => Err("as the question mark does".into()),
        "by panic" => panic!("on purpose"),
        "by exit" => std::process::exit(3),
        _ => Ok(()),
    }
}

/// Lets a process leave while it holds a lock, and waits until the process has ended.
async fn after(server: &Server, way: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["leaving::leaving_process", "--exact", "--nocapture"]).env(URL, server.url()).env(WAY, way);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = child.unwrap();
    assert_eq!(status.success(), way.ends_with("by return"), "{way}: {status}");
}

#[tokio::test]
async fn run_releases_before_it_returns_fails_or_panics() {
    limit(async {
        let server = Server::start().await;
        let observer = Timing::relaxed().connect(&server.url()).await;
        for way in ["run by return", "run by error", "run by panic"] {
            for _ in 0..5 {
                after(&server, way).await;
                assert!(!observer.lock("left").is_locked().await.unwrap(), "{way}");
            }
        }
        observer.close().await.unwrap();
        server.assert_clean().await;
    })
    .await;
}

/// When the runtime ends, a release may or may not be on its way. At the latest the lease ends the hold.
#[tokio::test]
async fn without_run_the_lease_is_what_is_promised() {
    limit(async {
        let server = Server::start().await;
        let observer = Timing::default().connect(&server.url()).await;
        for way in ["by return", "by error", "by panic"] {
            after(&server, way).await;
            let lock = observer.lock("left");
            let left = lock.status().await.unwrap().holder.map_or(Duration::ZERO, |holder| holder.lease_left);
            assert!(left <= Timing::default().lease);
            assert_eq!(lock.lock().await.unwrap().unlock().await.unwrap(), Unlocked::Freed);
        }
        observer.close().await.unwrap();
    })
    .await;
}

/// `exit` runs no destructor, even inside `run`: the lock stays until its lease ends.
#[tokio::test]
async fn exit_leaves_the_lock_to_its_lease() {
    limit(async {
        let server = Server::start().await;
        let observer = Timing::default().connect(&server.url()).await;
        for way in ["by exit", "run by exit"] {
            after(&server, way).await;
            let holder = observer.lock("left").status().await.unwrap().holder;
            assert!(holder.is_none_or(|holder| holder.lease_left <= Timing::default().lease));
            observer.lock("left").lock().await.unwrap().unlock().await.unwrap();
        }
        observer.close().await.unwrap();
    })
    .await;
}

/// `run` returns the output of the work, and the close loses earlier holds.
#[tokio::test]
async fn run_returns_what_the_work_returned_and_closes() {
    crate::support::on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let elsewhere = client.lock("elsewhere").lock().await.unwrap();
        let output = client.run(async { client.lock("x").lock().await.map(|guard| guard.holds()) }).await;
        assert_eq!(output.unwrap(), 1);
        assert_eq!(elsewhere.lost().await, fairlock::Loss::Closed);
        assert!(matches!(client.lock("x").lock().await, Err(LockError::Closed)));
    })
    .await;
}
