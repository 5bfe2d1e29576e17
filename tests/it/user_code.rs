//! User code that the library calls: a panic in it ends only that one call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use fairlock::{ConnectError, ConnectOptions, ConnectionState, Credentials, LockClient};
use futures::FutureExt;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::cluster::{Cluster, command};
use crate::support::{LONGEST_WAIT, Server, Timing, eventually, limit, on_a_server};

/// Panics as often as set, in the call or in its future.
#[derive(Clone, Default)]
struct Provider {
    panics_in_call: Arc<AtomicBool>,
    panics_in_future: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Provider {
    fn of(&self, options: ConnectOptions) -> ConnectOptions {
        let provider = self.clone();
        options.credentials_provider(move || {
            provider.calls.fetch_add(1, Ordering::SeqCst);
            assert!(!provider.panics_in_call.swap(false, Ordering::SeqCst), "on purpose: in the call");
            let panics = provider.panics_in_future.swap(false, Ordering::SeqCst);
            async move {
                assert!(!panics, "on purpose: in the future");
                Ok::<_, std::io::Error>(Credentials::default())
            }
        })
    }

    fn ways(&self) -> [&AtomicBool; 2] {
        [&self.panics_in_call, &self.panics_in_future]
    }
}

/// The provider blocked a thread of the runtime, and with it the time-out of the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_credentials_provider_that_blocks_its_thread_costs_a_call_its_time_out() {
    on_a_server(async |server| {
        let (go_on, gone_on) = std::sync::mpsc::channel::<()>();
        let gone_on = Arc::new(Mutex::new(gone_on));
        let options = ConnectOptions::tcp("127.0.0.1", server.port()).credentials_provider(move || {
            let gone_on = gone_on.clone();
            async move {
                let _ = gone_on.lock().unwrap().recv_timeout(LONGEST_WAIT);
                Ok::<_, std::io::Error>(Credentials::default())
            }
        });
        let error = Timing::default().builder().connect_with(options).await.expect_err("it still blocks");
        assert!(matches!(error, ConnectError::CredentialsProvider(_)), "{error:?}");
        drop(go_on);
    })
    .await;
}

async fn cut(server: &Server, kind: &str) {
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", kind]).exec_async(&mut server.connection().await).await.unwrap();
}

/// The panic ended the task that keeps the connection, and the client reported that its runtime had ended.
#[tokio::test]
async fn a_credentials_provider_that_panics_is_asked_again() {
    on_a_server(async |server| {
        let provider = Provider::default();
        let connect = async || {
            let options = provider.of(ConnectOptions::tcp("127.0.0.1", server.port()));
            Timing::default().builder().connect_with(options).await
        };
        for way in provider.ways() {
            way.store(true, Ordering::SeqCst);
            let error = connect().await.expect_err("it has panicked");
            assert!(matches!(error, ConnectError::CredentialsProvider(_)), "{error:?}");
            assert!(error.to_string().contains("panicked"), "{error}");
        }
        let client = connect().await.unwrap();
        let guard = client.lock("held").lock().await.unwrap();
        for way in provider.ways() {
            let calls = provider.calls.load(Ordering::SeqCst);
            way.store(true, Ordering::SeqCst);
            cut(server, "pubsub").await;
            eventually("it is back", async || {
                client.lock("other").try_lock().await.is_ok_and(|lock| lock.into_result().is_ok())
            })
            .await;
            assert_eq!(provider.calls.load(Ordering::SeqCst), calls + 2, "it was asked again");
        }
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The panic ended the task that asks for the slots, and nothing reported it.
#[tokio::test]
async fn in_a_cluster_the_nodes_are_asked_after_a_panic_of_the_provider_too() {
    limit(async {
        let cluster = Cluster::start(1).await;
        let node = &cluster.masters[0];
        let provider = Provider::default();
        let options = provider.of(ConnectOptions::cluster([("127.0.0.1", node.port())]));
        let client = Timing::default().builder().connect_with(options).await.unwrap();
        let goes_on = async || {
            let asked = node.calls("cluster|info").await;
            eventually("it is asked", async || node.calls("cluster|info").await > asked + 1).await;
        };
        for way in provider.ways() {
            goes_on().await;
            let calls = provider.calls.load(Ordering::SeqCst);
            way.store(true, Ordering::SeqCst);
            // The connections that do not subscribe: only the one on which the client asks for the slots.
            cut(node, "normal").await;
            eventually("the provider is asked", async || provider.calls.load(Ordering::SeqCst) > calls).await;
            goes_on().await;
        }
        client.close().await.unwrap();
    })
    .await;
}

/// Panics at the first line of each of these texts, or at each line, or at the nth exit or close of a span.
struct Panicking {
    texts: Vec<(&'static str, AtomicBool)>,
    always: bool,
    exits_left: AtomicU32,
    closes_left: AtomicU32,
}

fn panic_at_the_last(left: &AtomicU32) {
    let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert!(left != Ok(1), "on purpose: at a span");
}

impl Panicking {
    fn at<const N: usize>(texts: [&'static str; N]) -> Self {
        let texts = texts.map(|text| (text, AtomicBool::new(false))).into();
        Self { texts, always: false, exits_left: AtomicU32::new(0), closes_left: AtomicU32::new(0) }
    }
}

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        assert!(!self.always, "on purpose: at a span");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert!(!self.always, "on purpose: at a line");
        let mut line = crate::support::Text::default();
        event.record(&mut line);
        for (text, has_panicked) in &self.texts {
            let panics = line.0.contains(text) && !has_panicked.swap(true, Ordering::SeqCst);
            assert!(!panics, "on purpose: at {:?}", line.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {
        panic_at_the_last(&self.exits_left);
    }

    fn try_close(&self, _: Id) -> bool {
        panic_at_the_last(&self.closes_left);
        true
    }
}

/// The task that keeps the connection logs. A panic there makes it rebuild its state.
#[tokio::test]
async fn a_log_subscriber_that_panics_does_not_end_the_client() {
    on_a_server(async |server| {
        let subscriber = Arc::new(Panicking::at(["lost the connection", "reconnected"]));
        let client: LockClient = Timing::default().connect(&server.url()).await;
        let _logging = crate::support::log_to(subscriber.clone());
        let guard = client.lock("held").lock().await.unwrap();
        cut(server, "pubsub").await;
        eventually("it has panicked at both lines, and is back", async || {
            let has_panicked = subscriber.texts.iter().all(|(_, has_panicked)| has_panicked.load(Ordering::SeqCst));
            has_panicked && client.state().connection() == ConnectionState::Connected
        })
        .await;
        assert!(guard.is_valid());
        client.lock("other").try_lock().await.unwrap().into_result().expect("it is free").unlock().await.unwrap();
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

async fn subscribed(server: &Server) -> Vec<String> {
    let list: String = redis::cmd("CLIENT")
        .arg(&["LIST", "TYPE", "pubsub"])
        .query_async(&mut server.connection().await)
        .await
        .unwrap();
    list.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The task that reads the replies reports a loss. Without that task each request of the client would fail.
#[tokio::test]
async fn a_log_subscriber_that_panics_at_a_loss_costs_no_connection() {
    on_a_server(async |server| {
        let subscriber = Arc::new(Panicking::at(["lost a lock"]));
        let client: LockClient = Timing::default().connect(&server.url()).await;
        let other: LockClient = Timing::default().connect(&server.url()).await;
        let _logging = crate::support::log_to(subscriber.clone());
        let guards = [client.lock("x").lock().await.unwrap(), client.lock("y").lock().await.unwrap()];
        let before = subscribed(server).await;
        // A task of its own reports the first loss a little later; the second one comes at once.
        for guard in guards {
            other.lock(guard.name()).force_unlock().await.unwrap();
            assert_eq!(guard.lost().await, fairlock::Loss::Forced);
        }
        eventually("it has panicked", async || subscriber.texts[0].1.load(Ordering::SeqCst)).await;
        client.lock("x").try_lock().await.unwrap().into_result().expect("it is free").unlock().await.unwrap();
        assert_eq!(subscribed(server).await, before);
        client.close().await.unwrap();
        other.close().await.unwrap();
    })
    .await;
}

/// The subscriber panics in the tasks of the client, at the first line of each of these texts. Everything that others
/// need goes on.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_log_subscriber_that_panics_in_the_background_costs_nobody_a_lock() {
    use crate::support::in_virtual_time;

    const SECOND: Duration = Duration::from_secs(1);
    in_virtual_time(async |embedded| {
        let texts = ["still waiting", "a renewal failed", "was not polled when its turn came", "lost a lock"];
        let subscriber = Arc::new(Panicking::at(texts));
        let (client, other) = (embedded.open(LockClient::builder()).await, embedded.open(LockClient::builder()).await);
        let (kept, forced) = (client.lock("kept").lock().await.unwrap(), client.lock("forced").lock().await.unwrap());
        let held = other.lock("x").lock().await.unwrap();
        let _logging = crate::support::log_to(subscriber.clone());
        // The test does not poll two calls, and a third waits after them for longer than a silent client lives.
        let lock = client.lock("x");
        let mut resting = [Box::pin(lock.lock()), Box::pin(lock.lock())];
        for _ in 0..3 {
            resting.iter_mut().for_each(|call| assert!(call.now_or_never().is_none()));
            tokio::task::yield_now().await;
        }
        let waits = client.lock("x");
        let waiting = tokio::spawn(async move { waits.lock().await });
        other.lock("forced").force_unlock().await.unwrap();
        assert_eq!(forced.lost().await, fairlock::Loss::Forced);
        tokio::time::sleep(120 * SECOND).await;
        // A renewal of each of its holds fails at least once.
        embedded.network.refuse(Some("BUSY Redis is busy running a script."));
        tokio::time::sleep(12 * SECOND).await;
        embedded.network.refuse(None);
        tokio::time::sleep(120 * SECOND).await;
        assert!(kept.is_valid(), "it is renewed after a panic in a renewal");
        held.unlock().await.unwrap();
        let guard = tokio::time::timeout(2 * SECOND, waiting).await.expect("both are passed over").unwrap().unwrap();
        let is_missing =
            |(text, has_panicked): &(&'static str, AtomicBool)| (!has_panicked.load(Ordering::SeqCst)).then_some(*text);
        assert_eq!(subscriber.texts.iter().find_map(is_missing), None, "it has panicked at each of them");
        drop((guard, resting));
        kept.unlock().await.unwrap();
    })
    .await;
}

/// The client probes a skipped server until it serves, even if the log panics in that task.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_log_subscriber_that_panics_as_a_server_is_probed_costs_no_server() {
    use crate::support::{Embedded, embedded, on_several_in_virtual_time};

    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let builder = Timing::default().builder().without_strict_restart();
        let client = embedded(builder, servers);
        let servers_of_next = async || {
            let guard = client.lock("x").lock().await.unwrap();
            let servers = guard.servers();
            guard.unlock().await.unwrap();
            servers
        };
        servers[0].network.silence(true);
        assert_eq!(servers_of_next().await, [1, 2]);
        {
            let _logging = crate::support::log_to(Arc::new(Panicking { always: true, ..Panicking::at([]) }));
            servers[0].network.refuse(Some("LOADING Redis is loading the dataset in memory"));
            servers[0].network.silence(false);
            eventually("it is refused", async || servers[0].network.refused() > 9).await;
            servers[0].network.refuse(None);
            let before = servers[0].network.calls();
            eventually("it serves", async || servers[0].network.calls() > before).await;
        }
        eventually("the server is used again", async || servers_of_next().await == [0, 1, 2]).await;
    })
    .await;
}

/// The panic left a hold without a guard, and the client renewed it until it was closed.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_log_subscriber_that_panics_as_a_call_leaves_its_span_leaves_no_hold() {
    use std::time::Duration;

    use crate::support::{Embedded, embedded, on_several_in_virtual_time};

    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let builder = || LockClient::builder().without_strict_restart();
        let (mut panics, mut calls) = (0, 0);
        for client in [servers[0].open(builder()).await, embedded(builder(), servers)] {
            for (nth, closes) in (2..18).flat_map(|nth| [(nth, false), (nth, true)]) {
                let lock = client.lock(format!("x{nth}, closes: {closes}"));
                {
                    let subscriber = Panicking::at([]);
                    let left = if closes { &subscriber.closes_left } else { &subscriber.exits_left };
                    left.store(nth / 2, Ordering::SeqCst);
                    let _logging = crate::support::log_to(Arc::new(subscriber));
                    let pair = async || match nth % 2 {
                        0 => lock.lock().await.map(drop),
                        _ => lock.lock_timeout(Duration::from_secs(60)).await.map(drop),
                    };
                    let called = std::panic::AssertUnwindSafe(pair()).catch_unwind().await;
                    panics += u32::from(called.is_err());
                }
                calls += 1;
                let again = tokio::time::timeout(Duration::from_secs(2), lock.lock()).await;
                again.expect("nothing is held").unwrap().unlock().await.unwrap();
            }
        }
        assert!(panics > 2 && panics < calls, "{panics} of {calls} have panicked");
    })
    .await;
}

/// The handle had the hold, but the caller got no handle; a dropped detach ended the process.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_log_subscriber_that_panics_as_a_guard_is_detached_costs_nobody_a_lock() {
    use std::time::Duration;

    crate::support::in_virtual_time(async |embedded| {
        let client = embedded.open(LockClient::builder()).await;
        embedded.network.delay(Duration::from_millis(10));
        for is_dropped in [false, true] {
            let guard = client.lock("x").lock().await.unwrap();
            let mut detaching = Box::pin(guard.detach(Duration::from_secs(3600)));
            let _logging = crate::support::log_to(Arc::new(Panicking::at(["detached"])));
            if is_dropped {
                assert!(detaching.as_mut().now_or_never().is_none(), "it is under way");
                drop(detaching);
            } else {
                client.attach(&detaching.await.unwrap()).await.unwrap().unlock().await.unwrap();
            }
            let waiting = tokio::time::timeout(Duration::from_secs(2), client.lock("x").lock()).await;
            waiting.expect("nothing is held").unwrap().unlock().await.unwrap();
        }
    })
    .await;
}

/// In the call itself the panic is the caller's. The call must not panic again as it unwinds, because that ends the
/// process.
#[cfg(feature = "embedded")]
#[tokio::test]
async fn a_log_subscriber_that_always_panics_ends_the_call_and_not_the_process() {
    let client = LockClient::embedded().unwrap();
    let lock = client.lock("x");
    let held = lock.lock().await.unwrap();
    {
        let _logging = crate::support::log_to(Arc::new(Panicking { always: true, ..Panicking::at([]) }));
        let waits = std::panic::AssertUnwindSafe(limit(lock.lock())).catch_unwind();
        assert!(waits.await.is_err(), "it has panicked");
    }
    held.unlock().await.unwrap();
    limit(lock.lock()).await.unwrap().unlock().await.unwrap();
}

/// Uses the client while the client calls it.
#[derive(Default)]
struct Asking {
    client: OnceLock<LockClient>,
    asked: AtomicU32,
    asks: AtomicBool,
    /// Whether it tries to lock, too.
    calls: bool,
    /// Panics at this question, counted from now; 0 means never.
    panics_in: AtomicU32,
    lines: Mutex<Vec<String>>,
}

impl Asking {
    fn ask(&self) {
        panic_at_the_last(&self.panics_in);
        let Some(client) = self.client.get() else { return };
        // The client's work for this call causes events too.
        if self.asks.swap(true, Ordering::SeqCst) {
            return;
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        let _ = (client.state(), client.lock("x").holds());
        if self.calls {
            // This looks at the gate, even while the server refuses.
            let _ = client.lock("asked").try_lock().now_or_never();
        }
        self.asks.store(false, Ordering::SeqCst);
    }
}

/// Runs in a thread, because the work may wait for itself.
fn apart(work: impl AsyncFnOnce() + Send + 'static) {
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work());
        end.send(()).unwrap();
    });
    ended.recv_timeout(2 * LONGEST_WAIT).expect("nothing waits for itself");
}

/// All events of the client: connections, waits, holds, losses and the end.
fn each_kind_of_news(asking: &Arc<Asking>, here: impl Fn(&Arc<Asking>) -> Box<dyn std::any::Any> + Send + 'static) {
    let asking = asking.clone();
    apart(async move || {
        let _here = here(&asking);
        on_a_server(async |server| {
            let builder = Timing::default().builder();
            #[cfg(feature = "metrics")]
            let builder = builder.metrics_group(str::to_owned);
            let client = builder.connect(server.url()).await.unwrap();
            let _ = asking.client.set(client.clone());
            let mut redis = server.connection().await;
            let mut refuses = async |replicas: &str| {
                let set = ["SET", "min-replicas-to-write", replicas];
                redis::cmd("CONFIG").arg(&set).exec_async(&mut redis).await.unwrap();
            };
            refuses("1").await;
            assert!(client.lock("refused").try_lock().await.is_err());
            refuses("0").await;
            let lock = client.lock("x");
            let guard = lock.lock().await.unwrap();
            assert!(lock.try_lock().await.unwrap().is_busy());
            assert!(lock.lock_timeout(std::time::Duration::from_millis(20)).await.is_err());
            let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
            let lock = client.lock("x");
            eventually("it waits", async || lock.status().await.unwrap().waiters == 1).await;
            cut(server, "pubsub").await;
            eventually("it is cut off", async || client.state().connection() != ConnectionState::Connected).await;
            eventually("it is back", async || client.state().connection() == ConnectionState::Connected).await;
            guard.unlock().await.unwrap();
            let guard = waiting.await.unwrap();
            assert!(lock.force_unlock().await.unwrap());
            guard.lost().await;
            drop(guard);
            let _lost = lock.lock().await.unwrap();
            client.close().await.unwrap();
        })
        .await;
    });
}

impl Subscriber for Asking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.ask();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = crate::support::Text::default();
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
        self.ask();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_log_subscriber_may_look_at_the_client() {
    let asking = Arc::new(Asking { calls: true, ..Asking::default() });
    each_kind_of_news(&asking, |asking| Box::new(crate::support::log_to(asking.clone())));
    assert!(asking.asked.load(Ordering::SeqCst) > 10);
}

async fn all_slots_to_the_first(cluster: &Cluster) {
    command(&cluster.masters[1], &["FLUSHALL"]).await;
    for master in &cluster.masters {
        command(master, &["CLUSTER", "DELSLOTSRANGE", "8192", "16383"]).await;
    }
    command(&cluster.masters[0], &["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]).await;
}

/// The task that asks the nodes logs, so a panic of the log reaches it.
#[tokio::test]
async fn in_a_cluster_the_nodes_are_asked_after_a_panic_of_the_log_too() {
    limit(async {
        let cluster = Cluster::start(2).await;
        let subscriber = Arc::new(Panicking::at(["serves no slots now"]));
        let _logging = crate::support::log_to(subscriber.clone());
        let client = Timing::default().connect(&cluster.url()).await;
        // Each node has some of these names.
        for number in 0..16 {
            client.lock(format!("name {number}")).lock().await.unwrap().unlock().await.unwrap();
        }
        all_slots_to_the_first(&cluster).await;
        eventually("it has panicked", async || subscriber.texts[0].1.load(Ordering::SeqCst)).await;
        // The client asks either of them.
        let asked =
            async || cluster.masters[0].calls("cluster|info").await + cluster.masters[1].calls("cluster|info").await;
        let before = asked().await;
        eventually("one is asked", async || asked().await > before + 2).await;
        client.close().await.unwrap();
    })
    .await;
}

/// The client logged a node while it had the table of the cluster locked.
#[test]
fn a_log_subscriber_may_look_at_the_client_of_a_cluster() {
    apart(async || {
        let asking = Arc::new(Asking::default());
        let _here = crate::support::log_to(asking.clone());
        let cluster = Cluster::start(2).await;
        let client = Timing::default().connect(&cluster.url()).await;
        let _ = asking.client.set(client.clone());
        for number in 0..16 {
            client.lock(format!("name {number}")).lock().await.unwrap().unlock().await.unwrap();
        }
        all_slots_to_the_first(&cluster).await;
        let is_told = async || asking.lines.lock().unwrap().iter().any(|line| line.contains("serves no slots now"));
        eventually("it is told", is_told).await;
        client.close().await.unwrap();
    });
}

#[cfg(feature = "metrics")]
mod recorder {
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };

    use super::*;

    impl CounterFn for Asking {
        fn increment(&self, _: u64) {
            self.ask();
        }

        fn absolute(&self, _: u64) {
            self.ask();
        }
    }

    impl GaugeFn for Asking {
        fn increment(&self, _: f64) {
            self.ask();
        }

        fn decrement(&self, _: f64) {
            self.ask();
        }

        fn set(&self, _: f64) {
            self.ask();
        }
    }

    impl HistogramFn for Asking {
        fn record(&self, _: f64) {
            self.ask();
        }
    }

    struct All(Arc<Asking>);

    impl Recorder for All {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            self.0.ask();
            Counter::from_arc(self.0.clone())
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            self.0.ask();
            Gauge::from_arc(self.0.clone())
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            self.0.ask();
            Histogram::from_arc(self.0.clone())
        }
    }

    /// The client called the recorder while it had the state of the connection locked.
    #[test]
    fn a_recorder_may_look_at_the_client() {
        let asking = Arc::new(Asking::default());
        // The recorder outlives its guard, which lives as long as the thread.
        each_kind_of_news(&asking, |asking| {
            Box::new(metrics::set_default_local_recorder(Box::leak(Box::new(All(asking.clone())))))
        });
        assert!(asking.asked.load(Ordering::SeqCst) > 10);
    }

    /// A panic as a hold began left a hold without a guard. Nothing released it, and it cost others a lease.
    #[cfg(feature = "embedded")]
    #[tokio::test]
    async fn a_recorder_that_panics_in_a_call_costs_nobody_a_lock() {
        use std::time::Duration;

        crate::support::in_virtual_time(async |embedded| {
            let asking = Arc::new(Asking::default());
            let _here = metrics::set_default_local_recorder(Box::leak(Box::new(All(asking.clone()))));
            let (client, other) =
                (embedded.open(LockClient::builder()).await, embedded.open(LockClient::builder()).await);
            let (mut panics, calls) = (0, 20);
            for nth in 1..=calls {
                let lock = client.lock(format!("x{nth}"));
                asking.panics_in.store(nth, Ordering::SeqCst);
                let pair = async || lock.lock().await.map(drop);
                panics += u32::from(std::panic::AssertUnwindSafe(pair()).catch_unwind().await.is_err());
                asking.panics_in.store(0, Ordering::SeqCst);
                let next = tokio::time::timeout(Duration::from_secs(2), other.lock(lock.name()).lock()).await;
                next.expect("nothing is held").unwrap().unlock().await.unwrap();
            }
            assert!(panics > 2 && panics < calls, "{panics} of {calls} have panicked");
        })
        .await;
    }

    /// The client asks the function for each new lock. If it panics, the lock belongs to no group.
    #[test]
    fn a_function_that_makes_groups_may_panic_and_use_the_client() {
        let asking = Arc::new(Asking { calls: true, ..Asking::default() });
        let group_asks = asking.clone();
        apart(async move || {
            on_a_server(async |server| {
                let group = move |name: &str| {
                    group_asks.ask();
                    assert!(name != "x", "on purpose: in the group");
                    name.to_owned()
                };
                let client = Timing::default().builder().metrics_group(group).connect(server.url()).await.unwrap();
                let _ = asking.client.set(client.clone());
                for name in ["x", "other", "x"] {
                    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
                }
                assert!(asking.asked.load(Ordering::SeqCst) >= 3);
                client.close().await.unwrap();
            })
            .await;
        });
    }
}

const SHORT: Duration = Duration::from_millis(1_200);

/// A waker that panics.
struct Angry;

impl Wake for Angry {
    fn wake(self: Arc<Self>) {
        panic!("on purpose: in the waker");
    }
}

/// The panic ended the task of the client: it renewed nothing, and calls did not end any more.
#[tokio::test]
async fn a_waker_that_panics_at_the_end_of_a_lease_ends_no_client() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let kept = client.lock("kept").lock().await.unwrap();
        let lease = kept.valid_for();
        let short = client.lock("short").with_lease(SHORT).lock().await.unwrap();
        let held = short.held();
        let mut watching = Box::pin(held.ended());
        let angry = Waker::from(Arc::new(Angry));
        assert!(watching.as_mut().poll(&mut Context::from_waker(&angry)).is_pending());
        eventually("its lease ends", async || !short.is_valid()).await;
        // The client's timers still work: another lease ends, and a call times out.
        let other = client.lock("other").with_lease(SHORT).lock().await.unwrap();
        assert_eq!(other.lost().await, fairlock::Loss::Expired);
        let waiting = client.lock("kept").lock_timeout(SHORT).await;
        assert!(matches!(waiting, Err(fairlock::LockError::Timeout { .. })), "{waiting:?}");
        tokio::time::sleep(lease).await;
        assert!(kept.is_valid());
        drop(watching);
        kept.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}
