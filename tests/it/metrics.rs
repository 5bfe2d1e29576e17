//! The library's metrics, as a Prometheus recorder receives them.

use std::time::Duration;

use fairlock::{LockClient, LockError, Loss, UnlockError, owner};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::support::{Proxy, Server, Timing, eventually, in_virtual_time, limit, on_each_store};

/// The recorder of this thread: tests run on a runtime of one thread.
struct Recorder {
    recorder: &'static PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Recorder {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // The recorder outlives its guard, which lives as long as the test.
        Self { recorder: Box::leak(Box::new(recorder)), handle }
    }

    fn here(&self) -> metrics::LocalRecorderGuard<'static> {
        metrics::set_default_local_recorder(self.recorder)
    }

    /// Each line is a series and its value.
    fn series(&self) -> Vec<(String, f64)> {
        let text = self.handle.render();
        let lines = text.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(name, _)| !name.starts_with('#'));
        lines.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect()
    }

    fn value(&self, series: &str) -> f64 {
        let all = self.series();
        let found = all.iter().find(|(name, _)| name == series);
        found.unwrap_or_else(|| panic!("no {series} in {all:#?}")).1
    }

    /// The series that are not zero, except quantiles and sums of times.
    fn counted(&self) -> Vec<(String, f64)> {
        let is_time = |name: &str| name.contains("_seconds{") || name.contains("_sum") || name.contains("round_trip");
        self.series().into_iter().filter(|(name, value)| *value != 0.0 && !is_time(name)).collect()
    }
}

#[tokio::test]
async fn each_call_counts_once_by_how_it_ended() {
    in_virtual_time(async |store| {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        assert_eq!(recorder.value("fairlock_locks_held"), 1.0);
        assert_eq!(recorder.value("fairlock_calls_waiting"), 0.0);
        assert!(lock.try_lock().await.unwrap().is_busy());
        let timed_out = lock.lock_timeout(Duration::from_millis(20)).await;
        assert!(matches!(timed_out, Err(LockError::Timeout { .. })));
        assert!(tokio::time::timeout(Duration::from_millis(20), lock.lock()).await.is_err());
        assert!(matches!(client.lock("").lock().await, Err(LockError::Name(_))));
        let waiting = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await.unwrap() })
        };
        eventually("it waits", async || lock.status().await.unwrap().waiters == 1).await;
        assert_eq!(recorder.value("fairlock_calls_waiting"), 1.0);
        eventually("it is polled for", async || recorder.value("fairlock_polls_total") > 0.0).await;
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
        owner::scope(async {
            let outer = lock.lock().await.unwrap();
            let inner = lock.lock().await.unwrap();
            assert_eq!(recorder.value("fairlock_locks_held"), 1.0, "nested ones count once");
            assert_eq!(recorder.value("fairlock_acquired_total"), 4.0, "and are calls of their own");
            inner.unlock().await.unwrap();
            outer.unlock().await.unwrap();
        })
        .await;
        client.close().await.unwrap();
        assert!(matches!(lock.lock().await, Err(LockError::Closed)));
        let polls = ("fairlock_polls_total".to_owned(), recorder.value("fairlock_polls_total"));
        let expected = [
            ("fairlock_acquired_total", 4.0),
            ("fairlock_busy_total", 1.0),
            ("fairlock_failed_total{error=\"closed\"}", 1.0),
            ("fairlock_failed_total{error=\"invalid\"}", 1.0),
            ("fairlock_given_up_total", 1.0),
            ("fairlock_handed_over_total", 1.0),
            ("fairlock_hold_seconds_count", 3.0),
            ("fairlock_timed_out_total", 1.0),
            ("fairlock_wait_seconds_count", 4.0),
        ];
        let mut expected: Vec<_> = expected.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        expected.push(polls);
        let (mut counted, by_name) =
            (recorder.counted(), |one: &(String, f64), other: &(String, f64)| one.0.cmp(&other.0));
        counted.sort_by(by_name);
        expected.sort_by(by_name);
        assert_eq!(counted, expected, "all gauges are back at zero");
        let waited = recorder.value("fairlock_wait_seconds_sum");
        assert!(waited > 0.0 && waited < 30.0, "in seconds: {waited}");
        let held = recorder.value("fairlock_hold_seconds_sum");
        assert!(held > 0.0 && held < 60.0, "in seconds: {held}");
    })
    .await;
}

/// The guard ended after its deadline, before the client had noticed that.
#[tokio::test]
async fn a_loss_that_the_end_of_its_guard_finds_counts_once() {
    in_virtual_time(async |store| {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let client = store.connect(Timing::default()).await;
        for lost in [1.0, 2.0] {
            let guard = client.lock("late").lock().await.unwrap();
            let _ = futures::FutureExt::now_or_never(tokio::time::advance(guard.valid_for()));
            drop(guard);
            assert_eq!(recorder.value("fairlock_lost_total{cause=\"expired\"}"), lost);
            tokio::time::sleep(Timing::default().lease).await;
            assert_eq!(recorder.value("fairlock_lost_total{cause=\"expired\"}"), lost);
            assert_eq!(recorder.value("fairlock_lost_total{cause=\"gone\"}"), 0.0);
            assert_eq!(recorder.value("fairlock_locks_held"), 0.0);
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn losses_count_by_their_cause() {
    on_each_store(async |store| {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let client = store.connect(Timing::default()).await;
        let lost = |cause: &str| recorder.value(&format!("fairlock_lost_total{{cause=\"{cause}\"}}"));
        let forced = client.lock("forced").lock().await.unwrap();
        client.lock("forced").force_unlock().await.unwrap();
        assert_eq!(forced.lost().await, Loss::Forced);
        let fixed = client.lock("fixed").with_lease(Timing::default().operation_timeout).lock().await.unwrap();
        assert_eq!(fixed.lost().await, Loss::Expired);
        assert_eq!((lost("forced"), lost("expired"), lost("gone"), lost("closed")), (1.0, 1.0, 0.0, 0.0));
        // The guards still exist, but change nothing any more.
        assert_eq!(recorder.value("fairlock_locks_held"), 0.0);
        drop((forced, fixed));
        let open = client.lock("open").lock().await.unwrap();
        client.close().await.unwrap();
        assert_eq!(open.lost().await, Loss::Closed);
        assert_eq!((lost("forced"), lost("expired"), lost("gone"), lost("closed")), (1.0, 1.0, 0.0, 1.0));
        assert_eq!(recorder.value("fairlock_hold_seconds_count"), 3.0);
        assert_eq!(recorder.value("fairlock_locks_held"), 0.0);
    })
    .await;
}

#[tokio::test]
async fn servers_refusals_and_reconnects_count() {
    limit(async {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        let servers = || {
            ["connected", "disconnected"].map(|state| recorder.value(&format!("fairlock_servers{{state=\"{state}\"}}")))
        };
        assert_eq!(servers(), [1.0, 0.0]);
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        assert_eq!(recorder.value("fairlock_round_trip_seconds_count"), 2.0);
        proxy.refuse(true);
        proxy.reset_all();
        eventually("it is noticed", async || servers() == [0.0, 1.0]).await;
        let failed = client.lock("x").lock_timeout(Duration::from_millis(100)).await;
        assert!(matches!(failed, Err(LockError::Unreachable(_))), "{failed:?}");
        assert_eq!(recorder.value("fairlock_failed_total{error=\"unreachable\"}"), 1.0);
        proxy.refuse(false);
        eventually("it is back", async || servers() == [1.0, 0.0]).await;
        assert_eq!(recorder.value("fairlock_reconnects_total"), 1.0);

        let mut redis = server.connection().await;
        redis::cmd("SET").arg("fairlock:{n:foreign}").arg("1").exec_async(&mut redis).await.unwrap();
        let refused = client.lock("foreign").lock().await;
        assert!(matches!(refused, Err(LockError::Refused(_))), "{refused:?}");
        redis::cmd("DEL").arg("fairlock:{n:foreign}").exec_async(&mut redis).await.unwrap();
        assert_eq!(recorder.value("fairlock_refused_total{code=\"WRONGTYPE\"}"), 1.0);
        assert_eq!(recorder.value("fairlock_failed_total{error=\"refused\"}"), 1.0);

        // A request under way.
        proxy.blackhole(true);
        let call = {
            let client = client.clone();
            tokio::spawn(async move { client.lock("y").lock().await.map(drop) })
        };
        eventually("it was sent", async || recorder.value("fairlock_requests_in_flight") == 1.0).await;
        proxy.blackhole(false);
        call.await.unwrap().unwrap();
        client.close().await.unwrap();
        eventually("all are back", async || {
            recorder.value("fairlock_requests_in_flight") == 0.0 && servers() == [0.0, 0.0]
        })
        .await;
    })
    .await;
}

/// After a flush the server does not know the hold.
#[tokio::test]
async fn a_hold_that_a_flush_has_taken_is_gone() {
    limit(async {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        redis::cmd("FLUSHALL").exec_async(&mut server.connection().await).await.unwrap();
        assert_eq!(guard.lost().await, Loss::Gone);
        assert_eq!(recorder.value("fairlock_lost_total{cause=\"gone\"}"), 1.0);
        drop(guard);
        // Here the unlock finds out.
        let guard = client.lock("x").lock().await.unwrap();
        redis::cmd("DEL").arg("fairlock:{n:x}").exec_async(&mut server.connection().await).await.unwrap();
        assert!(matches!(guard.unlock().await, Err(UnlockError::Lost(Loss::Gone))));
        assert_eq!(recorder.value("fairlock_lost_total{cause=\"gone\"}"), 2.0);
        assert_eq!(recorder.value("fairlock_locks_held"), 0.0);
    })
    .await;
}

#[tokio::test]
async fn names_are_no_labels_unless_they_are_grouped() {
    on_each_store(async |store| {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let plain = store.connect(Timing::default()).await;
        plain.lock("secret name").lock().await.unwrap().unlock().await.unwrap();
        assert!(!recorder.handle.render().contains("secret name"));
        let group = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        let grouped = store.open(Timing::default().builder().metrics_group(group)).await;
        for name in ["orders:1", "orders:2", "users:1"] {
            grouped.lock(name).lock().await.unwrap().unlock().await.unwrap();
        }
        assert_eq!(recorder.value("fairlock_acquired_total{lock=\"orders\"}"), 2.0);
        assert_eq!(recorder.value("fairlock_hold_seconds_count{lock=\"users\"}"), 1.0);
        assert_eq!(recorder.value("fairlock_acquired_total"), 1.0, "that of the other client");
        // There is a bound for a function that makes a group of each name.
        let each = store.open(Timing::default().builder().metrics_group(str::to_owned)).await;
        for number in 0..1200 {
            let _lock = each.lock(format!("name {number}"));
        }
        each.lock("one more").lock().await.unwrap().unlock().await.unwrap();
        assert_eq!(recorder.value("fairlock_acquired_total{lock=\"other\"}"), 1.0);
        assert!(!recorder.handle.render().contains("one more"));
    })
    .await;
}

#[tokio::test]
async fn a_quorum_counts_its_locks_once_and_its_servers_each() {
    limit(async {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let (servers, mut urls) = ([Server::start().await, Server::start().await, Server::start().await], Vec::new());
        urls.extend(servers.iter().map(Server::url));
        let builder = Timing::default().builder().without_strict_restart();
        let client = builder.connect(urls).await.unwrap();
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        assert_eq!(recorder.value("fairlock_locks_held"), 1.0);
        assert!(lock.try_lock().await.unwrap().is_busy());
        guard.unlock().await.unwrap();
        let of_nodes = |name: &str| -> Vec<f64> {
            let all = recorder.series();
            let of_node = all.iter().filter(|(series, _)| series.starts_with(&format!("{name}{{node=\"")));
            of_node.map(|(_, value)| *value).collect()
        };
        assert_eq!(recorder.value("fairlock_acquired_total"), 1.0);
        assert_eq!(recorder.value("fairlock_busy_total"), 1.0);
        assert_eq!(recorder.value("fairlock_hold_seconds_count"), 1.0);
        assert_eq!(recorder.value("fairlock_locks_held"), 0.0);
        assert_eq!(of_nodes("fairlock_acquired_total"), [1.0; 3]);
        let connected = recorder.series();
        let connected =
            connected.iter().filter(|(name, _)| name.contains("state=\"connected\"") && name.contains("node="));
        assert_eq!(connected.map(|(_, value)| value).sum::<f64>(), 3.0);

        let guard = lock.lock().await.unwrap();
        lock.force_unlock().await.unwrap();
        guard.lost().await;
        eventually("it counts", async || recorder.value("fairlock_lost_total{cause=\"forced\"}") == 1.0).await;
        drop(guard);
        client.close().await.unwrap();
        assert_eq!((recorder.value("fairlock_locks_held"), recorder.value("fairlock_calls_waiting")), (0.0, 0.0));
        assert_eq!(recorder.value("fairlock_hold_seconds_count"), 2.0);
    })
    .await;
}

/// The gauge must not keep a hold whose end is never reported.
#[test]
fn a_client_that_is_gone_with_its_runtime_leaves_no_gauge_behind() {
    let recorder = Recorder::new();
    let _here = recorder.here();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::default().connect(&server.url()));
    let guard = first.block_on(client.lock("x").lock()).unwrap();
    assert_eq!(recorder.value("fairlock_locks_held"), 1.0);
    drop(first);
    drop(guard);
    drop(client);
    for gauge in ["fairlock_locks_held", "fairlock_calls_waiting", "fairlock_requests_in_flight"] {
        assert_eq!(recorder.value(gauge), 0.0, "{gauge}");
    }
    assert_eq!(recorder.value("fairlock_servers{state=\"connected\"}"), 0.0);
}

/// All series exist from the beginning, so that a rate can start at zero.
#[tokio::test]
async fn each_number_of_the_page_is_there_when_the_client_connects() {
    limit(async {
        let recorder = Recorder::new();
        let _here = recorder.here();
        let server = Server::start().await;
        let client: LockClient = Timing::default().connect(&server.url()).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        let text = recorder.handle.render();
        let page = include_str!("../../docs/operating.md");
        let names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `fairlock_")).collect();
        assert!(names.len() > 15, "{names:?}");
        for line in names {
            let name = format!("fairlock_{}", line.split('`').next().unwrap());
            assert!(text.contains(&format!("# HELP {name} ")), "{name}: {text}");
        }
        client.close().await.unwrap();
    })
    .await;
}
