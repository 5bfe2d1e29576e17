//! The queue in difficult cases: distant clients, many waiters, waiters that gave up or died, other versions.
//!
//! Most tests repeat an attack on the first protocol, in which clients polled for each waiter by name. The attack used
//! greater numbers; these are the smallest that would make that protocol fail. Nobody ran these tests on it, because
//! its scripts and options differ.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fairlock::{FairLock, LockClient, LockError, LockGuard};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{Proxy, Server, Timing, eventually, in_virtual_time, limit, on_a_server};

const NAME: &str = "q";
const QUEUE: &str = "fairlock:{n:q}:queue";
const TOKEN: &str = "fairlock:{n:q}:token";

/// Settings for a distant server.
fn distant() -> Timing {
    Timing {
        lease: Duration::from_secs(30),
        operation_timeout: Duration::from_secs(20),
        waiter_ttl: Duration::from_millis(1500),
        poll_interval: Duration::from_millis(400),
        grant_ttl: Duration::from_millis(1200),
    }
}

fn wait(lock: &FairLock) -> JoinHandle<Result<LockGuard, LockError>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await })
}

fn waits(client: &LockClient, count: usize) -> Vec<JoinHandle<Result<LockGuard, LockError>>> {
    (0..count).map(|_| wait(&client.lock(NAME))).collect()
}

/// Gives up all waits.
fn abort<T>(waits: Vec<JoinHandle<T>>) {
    waits.iter().for_each(JoinHandle::abort);
}

/// Waits until Redis counts `waiters` live waiters.
async fn count(client: &LockClient, waiters: usize) {
    let lock = client.lock(NAME);
    eventually(&format!("{waiters} wait"), async || lock.status().await.unwrap().waiters == waiters as u64).await;
}

/// The places of the queue, in order.
async fn places(server: &Server) -> Vec<String> {
    redis::cmd("LRANGE").arg(QUEUE).arg(0).arg(-1).query_async(&mut server.connection().await).await.unwrap()
}

async fn run(server: &Server, command: &[&str]) -> redis::Value {
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut server.connection().await).await.unwrap()
}

/// The places of a distant client expired while its polls went round, so a newcomer overtook most of them.
#[tokio::test]
async fn a1_a_newcomer_behind_many_waiters_of_a_distant_client_is_served_last() {
    const MANY: usize = 2000;
    in_virtual_time(async |server| {
        let (near, far) = (server.connect(distant()).await, server.connect(distant()).await);
        let holder = near.lock(NAME).lock().await.unwrap();
        server.network.delay_of(far.id(), Duration::from_millis(100));
        let served = Arc::new(Mutex::new(Vec::new()));
        let serve = |who: &'static str, client: &LockClient| {
            let (lock, served) = (client.lock(NAME), served.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                served.lock().unwrap().push(who);
                guard.unlock().await.unwrap();
            })
        };
        let many: Vec<_> = (0..MANY).map(|_| serve("one of many", &far)).collect();
        count(&near, MANY).await;
        let newcomer = serve("the newcomer", &near);
        count(&near, MANY + 1).await;
        // Longer than two waiter_ttl: 16 polls of 128 tickets, one after the other, took longer than one.
        let places = || server.command(&["LRANGE", QUEUE, "0", "-1"]);
        let before = places();
        tokio::time::sleep(2 * distant().waiter_ttl + distant().poll_interval).await;
        assert!(places() == before, "each kept its place");
        assert_eq!(near.lock(NAME).status().await.unwrap().waiters, MANY as u64 + 1);
        holder.unlock().await.unwrap();
        let some = async || served.lock().unwrap().len() >= 5;
        eventually("some are served over the distance", some).await;
        // This spares the other waits a round trip each.
        server.network.mend(far.id());
        for task in many {
            task.await.unwrap();
        }
        newcomer.await.unwrap();
        let served = std::mem::take(&mut *served.lock().unwrap());
        assert_eq!(served.iter().position(|who| *who == "the newcomer"), Some(MANY), "of {}", served.len());
    })
    .await;
}

/// The releaser's grant_ttl decided, so a client close to the server starved a distant one.
#[tokio::test]
async fn a2_a_distant_client_is_served_beside_one_with_a_short_grant_ttl() {
    in_virtual_time(async |server| {
        let hasty = Timing {
            waiter_ttl: Duration::from_millis(1000),
            poll_interval: Duration::from_millis(100),
            grant_ttl: Duration::from_millis(50),
            ..distant()
        };
        let patient = Timing { waiter_ttl: Duration::from_secs(6), grant_ttl: Duration::from_secs(4), ..distant() };
        let (near, far) = (server.connect(hasty).await, server.connect(patient).await);
        server.network.delay_of(near.id(), Duration::from_millis(1));
        server.network.delay_of(far.id(), Duration::from_millis(150));
        let (near_turns, far_turns) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let turns = |client: &LockClient, turns: &Arc<Mutex<u32>>| {
            let (lock, turns) = (client.lock(NAME), turns.clone());
            tokio::spawn(async move {
                loop {
                    let guard = lock.lock().await.unwrap();
                    guard.unlock().await.expect("nobody's hold is lost");
                    *turns.lock().unwrap() += 1;
                }
            })
        };
        // A near client always waits, so a distant one never finds the lock free.
        let mut tasks: Vec<_> = (0..3).map(|_| turns(&near, &near_turns)).collect();
        tasks.extend((0..2).map(|_| turns(&far, &far_turns)));
        let reach = async |least: u32| {
            let [near, far] = [&near_turns, &far_turns].map(|turns| *turns.lock().unwrap());
            eventually("both have more turns", async || {
                *near_turns.lock().unwrap() >= near + least && *far_turns.lock().unwrap() >= far + least
            })
            .await;
        };
        reach(8).await;
        // Without messages, a grant must last until the next poll finds it.
        server.network.lose_messages(true);
        reach(3).await;
        assert!(!tasks.iter().any(JoinHandle::is_finished));
        abort(tasks);
        near.close().await.unwrap();
        far.close().await.unwrap();
    })
    .await;
}

/// Polls passed over places without a ticket, 128 at a time, while the lock was free.
#[tokio::test]
async fn a4_waits_that_were_given_up_leave_nothing_in_the_queue() {
    const LEFT: usize = 600;
    const LIVING: usize = 30;
    on_a_server(async |server| {
        let client = Timing::relaxed().connect(&server.url()).await;
        let holder = client.lock(NAME).lock().await.unwrap();
        let left = waits(&client, LEFT);
        count(&client, LEFT).await;
        let living: Vec<_> = waits(&client, LIVING);
        count(&client, LEFT + LIVING).await;
        abort(left);
        count(&client, LIVING).await;
        assert_eq!(places(server).await.len(), LIVING, "the list has the living only");
        let before = server.calls("evalsha").await;
        let begun = Instant::now();
        holder.unlock().await.unwrap();
        for wait in living {
            wait.await.unwrap().unwrap().unlock().await.unwrap();
        }
        let calls = server.calls("evalsha").await - before;
        // One for each release, and the regular polls of that time.
        let polls = 2 + begun.elapsed().as_millis() / Timing::default().poll_interval.as_millis();
        assert!(u128::from(calls) <= LIVING as u128 + 1 + polls, "{calls} calls");
        client.close().await.unwrap();
    })
    .await;
}

/// How long a live waiter waits after the waiters of a client whose connection is closed.
async fn behind_a_closed_connection(server: &Server, dead: usize) -> Duration {
    let client = Timing::relaxed().connect(&server.url()).await;
    let proxy = Proxy::start(server).await;
    let gone = Timing::relaxed().connect(&proxy.url()).await;
    let holder = client.lock(NAME).lock().await.unwrap();
    let dead_waits = waits(&gone, dead);
    count(&client, dead).await;
    let living = wait(&client.lock(NAME));
    count(&client, dead + 1).await;
    proxy.refuse(true);
    proxy.reset_all();
    proxy.assert_no_connections().await;
    let begun = Instant::now();
    holder.unlock().await.unwrap();
    living.await.unwrap().unwrap().unlock().await.unwrap();
    let took = begun.elapsed();
    abort(dead_waits);
    client.close().await.unwrap();
    took
}

/// If there were more unreachable tickets than one call looks at, the lock stayed free until they died, 6 s later.
#[tokio::test]
async fn a5_closed_connections_are_passed_over() {
    limit(async {
        let server = Server::start().await;
        let took = behind_a_closed_connection(&server, 1500).await;
        assert!(took < Timing::relaxed().waiter_ttl, "{took:?}");
    })
    .await;
}

/// A monitor receives the messages of every channel but subscribes to none, so it hides no client that is gone.
#[tokio::test]
async fn a5_under_a_monitor_closed_connections_are_passed_over() {
    limit(async {
        let server = Server::start().await;
        let mut monitor = server.pubsub().await;
        monitor.psubscribe("*").await.unwrap();
        let took = behind_a_closed_connection(&server, 20).await;
        // Less than even one of twenty grants.
        assert!(took < Timing::relaxed().grant_ttl, "{took:?}");
    })
    .await;
}

/// After a reconnect no caller got a lock until the client had polled for all waiters, with one round trip for each
/// 128.
#[tokio::test]
async fn a7_a_reconnect_with_many_waiters_does_not_keep_other_names_waiting() {
    in_virtual_time(async |server| {
        let (near, far) = (server.connect(distant()).await, server.connect(distant()).await);
        let round_trip = Duration::from_millis(300);
        server.network.delay_of(far.id(), round_trip / 2);
        let holder = near.lock(NAME).lock().await.unwrap();
        let many = waits(&far, 3000);
        count(&near, 3000).await;
        server.server.disconnect(far.id());
        let begun = Instant::now();
        let guard = far.lock("other").try_lock().await.unwrap().into_result().expect("it is free");
        // 24 requests one after the other would take 7 s.
        assert!(begun.elapsed() <= 3 * round_trip, "{:?}", begun.elapsed());
        guard.unlock().await.unwrap();
        count(&near, 3000).await;
        abort(many);
        count(&near, 0).await;
        holder.unlock().await.unwrap();
    })
    .await;
}

/// R8: the client verifies all places in one round of requests, 16 at a time.
#[tokio::test]
async fn many_places_are_verified_in_a_few_round_trips() {
    in_virtual_time(async |server| {
        let (near, far) = (server.connect(distant()).await, server.connect(distant()).await);
        let holder = near.lock(NAME).lock().await.unwrap();
        let many = waits(&far, 1000);
        count(&near, 1000).await;
        let round_trip = Duration::from_millis(300);
        tokio::time::sleep(round_trip).await;
        server.network.delay_of(far.id(), round_trip / 2);
        let (begun, calls) = (Instant::now(), server.network.calls());
        server.server.disconnect(far.id());
        // One poll that shows the client is alive, and eight for 128 places each.
        eventually("all are verified", async || server.network.calls() >= calls + 9).await;
        assert!(begun.elapsed() <= 4 * round_trip, "{:?}", begun.elapsed());
        abort(many);
        count(&near, 0).await;
        holder.unlock().await.unwrap();
    })
    .await;
}

/// R8: a poll finds that a place is missing, but not whose. The client then asks for all places at once, not an
/// interval later.
#[tokio::test]
async fn a_place_that_is_gone_is_found_by_the_next_poll_among_many() {
    in_virtual_time(async |server| {
        let timing = Timing { lease: Duration::from_secs(60), ..Timing::default() };
        let (client, other) = (server.connect(timing).await, server.connect(timing).await);
        let holder = other.lock(NAME).lock().await.unwrap();
        let many = waits(&client, 50);
        count(&client, 50).await;
        // The first poll verifies all places. The next one asks for the oldest, and for some of the others.
        tokio::time::sleep(timing.poll_interval * 11 / 10).await;
        let place = server.command(&["LINDEX", QUEUE, "40"]).concat();
        let ticket = place.split('/').next().unwrap();
        server.command(&["LREM", QUEUE, "1", &place]);
        server.command(&["ZREM", "fairlock:{n:q}:deadlines", ticket]);
        let begun = Instant::now();
        count(&client, 50).await;
        assert!(begun.elapsed() < timing.poll_interval * 3 / 2, "{:?}", begun.elapsed());
        abort(many);
        count(&client, 0).await;
        holder.unlock().await.unwrap();
    })
    .await;
}

/// The server counted waiters that had left or died, or refused newcomers because of them, until a call cleared them.
#[tokio::test]
async fn a9_waiters_are_counted_exactly() {
    in_virtual_time(async |server| {
        let builder = || Timing::relaxed().builder().max_waiters(10);
        let (client, dying) = (server.open(builder()).await, server.open(builder()).await);
        let full = async || match client.lock(NAME).lock().await {
            Err(LockError::QueueFull { waiters, .. }) => waiters,
            other => panic!("not full: {other:?}"),
        };
        let holder = client.lock(NAME).lock().await.unwrap();
        let (left, stay) = (waits(&client, 4), waits(&client, 3));
        count(&client, 7).await;
        let dead = waits(&dying, 3);
        count(&client, 10).await;
        assert_eq!(full().await, 10);
        abort(left);
        count(&client, 6).await;
        let more = waits(&client, 4);
        count(&client, 10).await;
        assert_eq!(full().await, 10);
        // Three waiters die.
        server.network.cut_off(dying.id());
        count(&client, 7).await;
        let last = waits(&client, 3);
        count(&client, 10).await;
        assert_eq!(full().await, 10);
        assert_eq!(client.lock(NAME).status().await.unwrap().queue.len(), 10);
        holder.unlock().await.unwrap();
        for wait in stay.into_iter().chain(more).chain(last) {
            wait.await.unwrap().unwrap().unlock().await.unwrap();
        }
        abort(dead);
        server.network.mend(dying.id());
    })
    .await;
}

/// The same for a queue with room for one.
#[tokio::test]
async fn a9_one_dead_waiter_does_not_fill_a_queue_of_one() {
    in_virtual_time(async |server| {
        let builder = || Timing::relaxed().builder().max_waiters(1);
        let (client, dying) = (server.open(builder()).await, server.open(builder()).await);
        let holder = client.lock(NAME).lock().await.unwrap();
        let dead = waits(&dying, 1);
        count(&client, 1).await;
        server.network.cut_off(dying.id());
        count(&client, 0).await;
        // It is the only waiter, so the server may have been stalled: it forgives that once.
        assert!(matches!(client.lock(NAME).lock().await, Err(LockError::QueueFull { waiters: 1, .. })));
        tokio::time::sleep(Timing::relaxed().waiter_ttl).await;
        let living = wait(&client.lock(NAME));
        count(&client, 1).await;
        assert!(matches!(client.lock(NAME).lock().await, Err(LockError::QueueFull { waiters: 1, .. })));
        holder.unlock().await.unwrap();
        living.await.unwrap().unwrap().unlock().await.unwrap();
        abort(dead);
        server.network.mend(dying.id());
    })
    .await;
}

#[tokio::test]
async fn status_tells_since_when_and_what_for() {
    on_a_server(async |server| {
        let client = Timing::relaxed().builder().label("the client").connect(server.url()).await.unwrap();
        let lock = client.lock(NAME);
        let before = SystemTime::now();
        let holder = fairlock::owner::scope(async {
            let outer = lock.labelled("job 17").lock().await.unwrap();
            let since = lock.status().await.unwrap().holder.unwrap().since;
            // A nested hold changes neither.
            let inner = lock.labelled("job 18").lock().await.unwrap();
            let holder = lock.status().await.unwrap().holder.unwrap();
            assert_eq!((holder.since, holder.holds, &*holder.label), (since, 2, "job 17"));
            inner.unlock().await.unwrap();
            outer
        })
        .await;
        // The server runs on this machine, but the clock may be adjusted a little in between.
        let since = lock.status().await.unwrap().holder.unwrap().since;
        let slack = Duration::from_secs(1);
        assert!((before - slack..=SystemTime::now() + slack).contains(&since), "{since:?}");
        let first = wait(&lock.labelled("a label / with : signs"));
        count(&client, 1).await;
        let second = wait(&lock);
        count(&client, 2).await;
        let labels: Vec<_> = lock.status().await.unwrap().queue.into_iter().map(|waiter| waiter.label).collect();
        assert_eq!(labels, ["a label / with : signs", "the client"]);
        holder.unlock().await.unwrap();
        let first = first.await.unwrap().unwrap();
        let holder = lock.status().await.unwrap().holder.unwrap();
        assert_eq!(holder.label, "a label / with : signs");
        assert!(holder.since > since, "the next hold began later");
        first.unlock().await.unwrap();
        second.await.unwrap().unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Scripts of two versions damaged each other's queue.
#[tokio::test]
async fn a10_a_newer_format_is_refused_by_name_and_stays_as_it_is() {
    limit(async {
        let server = Server::start().await;
        let client = Timing::relaxed().connect(&server.url()).await;
        let lock = client.lock(NAME);
        let dump = async |key: &str| run(&server, &["DUMP", key]).await;
        let refused = |error: LockError| {
            assert!(matches!(error, LockError::Refused(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("format 9") && text.contains("newer version of fairlock"), "{text}");
        };
        let hash = "fairlock:{n:q}";
        run(&server, &["HSET", hash, "!format", "9", "state", "held"]).await;
        let before = dump(hash).await;
        refused(lock.lock().await.unwrap_err());
        refused(lock.try_lock().await.unwrap_err());
        for error in [lock.force_unlock().await.unwrap_err(), lock.status().await.unwrap_err()] {
            assert!(error.to_string().contains("format 9"), "{error}");
        }
        assert_eq!(dump(hash).await, before);
        run(&server, &["DEL", hash]).await;
        run(&server, &["RPUSH", QUEUE, "!9/of a newer one"]).await;
        let before = dump(QUEUE).await;
        refused(lock.lock().await.unwrap_err());
        refused(lock.try_lock().await.unwrap_err());
        assert_eq!(dump(QUEUE).await, before);
        run(&server, &["DEL", QUEUE]).await;
        lock.lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The token's key expired during a hold that was longer than its time to live.
#[tokio::test]
async fn a11_the_last_token_is_remembered_under_a_long_hold() {
    on_a_server(async |server| {
        let timing = Timing::default();
        let client = timing.builder().token_ttl(timing.lease).connect(server.url()).await.unwrap();
        let lock = client.lock(NAME);
        // As if the server's clock had since gone back an hour.
        let ahead = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + Duration::from_secs(3600);
        run(server, &["SET", TOKEN, &ahead.as_micros().to_string(), "PX", "60000"]).await;
        let first = lock.lock().await.unwrap();
        assert_eq!(u128::from(first.token()), ahead.as_micros() + 1);
        let waiting = wait(&lock);
        count(&client, 1).await;
        // The key has expired, but the hash knows the token.
        run(server, &["DEL", TOKEN]).await;
        let earlier = first.token();
        first.unlock().await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        assert!(second.token() > earlier, "{} after {earlier}", second.token());
        // The queue is empty, so the hash goes with the hold. The key is needed, and a renewal restores it.
        run(server, &["DEL", TOKEN]).await;
        eventually("the key is back", async || {
            let token: Option<u64> =
                redis::cmd("GET").arg(TOKEN).query_async(&mut server.connection().await).await.unwrap();
            token == Some(second.token())
        })
        .await;
        let earlier = second.token();
        second.unlock().await.unwrap();
        let third = lock.lock().await.unwrap();
        assert!(third.token() > earlier, "{} after {earlier}", third.token());
        third.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A prefix may have a space, although the client sends its settings as words.
#[tokio::test]
async fn a_prefix_with_a_space_has_a_channel() {
    limit(async {
        let server = Server::start().await;
        let timing = Timing::relaxed();
        let builder = || timing.builder().prefix("my app");
        let (client, other) =
            (builder().connect(server.url()).await.unwrap(), builder().connect(server.url()).await.unwrap());
        let lock = client.lock(NAME);
        let holder = lock.lock().await.unwrap();
        let waiting = wait(&lock);
        count(&client, 1).await;
        // As if the holder were dead: the next call finds the lock free, and passes it on.
        run(&server, &["DEL", "my app:{n:q}"]).await;
        assert!(other.lock(NAME).try_lock().await.unwrap().is_busy(), "who waits is first");
        assert_eq!(lock.status().await.unwrap().waiters, 0, "its client was reached");
        drop(waiting.await.unwrap().unwrap());
        drop(holder);
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}
