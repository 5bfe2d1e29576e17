//! How long a lock is valid right after a hand-over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::simulation::{Delivery, Faults, server};
use fairlock::{EmbeddedServer, LockClient, LockClientBuilder};

use crate::support::virtually;

/// A line with this delay for each message. While it is `slow`, replies to polls take another 1.9 s.
#[derive(Clone, Default)]
struct Line {
    delay: Duration,
    slow: Arc<AtomicBool>,
}

impl Faults for Line {
    fn request(&self, _client: &str, script: &str) -> Vec<Delivery> {
        let late = script == "poll" && self.slow.load(Ordering::Relaxed);
        let late = if late { Duration::from_millis(1900) } else { Duration::ZERO };
        vec![Delivery { request: self.delay, reply: Some(self.delay + late) }]
    }

    fn push(&self, _client: &str) -> Vec<Duration> {
        vec![self.delay]
    }
}

/// The shortest validity that the waiter gets, over 60 instants of the release within three polls.
async fn least_left(server: &EmbeddedServer, options: LockClientBuilder) -> Duration {
    let (holder, waiter) = (LockClient::builder().embedded(server).unwrap(), options.embedded(server).unwrap());
    let mut least = Duration::MAX;
    for instant in 0..60 {
        let guard = holder.lock("x").lock().await.unwrap();
        let lock = waiter.lock("x");
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard.valid_for(), guard)
        });
        tokio::time::sleep(Duration::from_millis(1000 + 101 * instant)).await;
        guard.unlock().await.unwrap();
        let (left, guard) = waits.await.unwrap();
        least = least.min(left);
        guard.unlock().await.unwrap();
    }
    holder.close().await.unwrap();
    waiter.close().await.unwrap();
    least
}

/// 3 s, less the margin that each lease has for clocks at different speeds.
const GRANT_TTL: Duration = Duration::from_millis(2968);

#[tokio::test]
async fn a_lock_that_is_handed_over_lasts_grant_ttl_at_any_instant_between_two_polls() {
    virtually(async {
        let left = least_left(&server(Line::default()), LockClient::builder()).await;
        assert!(left >= GRANT_TTL, "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_handed_over_lasts_grant_ttl_on_a_slow_line() {
    virtually(async {
        let line = Line { delay: Duration::from_millis(300), ..Line::default() };
        let left = least_left(&server(line), LockClient::builder()).await;
        assert!(left >= GRANT_TTL, "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_handed_over_lasts_grant_ttl_while_a_poll_is_late() {
    virtually(async {
        let line = Line::default();
        line.slow.store(true, Ordering::Relaxed);
        let left = least_left(&server(line), LockClient::builder()).await;
        assert!(left >= GRANT_TTL, "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_handed_over_lasts_grant_ttl_with_a_short_waiter_ttl() {
    virtually(async {
        let short = LockClient::builder().waiter_ttl(Duration::from_secs(6));
        let left = least_left(&server(Line::default()), short).await;
        assert!(left >= GRANT_TTL, "{left:?}");
    })
    .await;
}
