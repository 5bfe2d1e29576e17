//! The spans and events in the table of docs/operating.md. If another test knows how to cause an event, that test
//! checks it with `saw`.

use std::time::Duration;

use fairlock::{FairLock, LockError, Tried, owner};
use tracing::Level;

use crate::support::cluster::{Cluster, command, slot_of};
use crate::support::sentinels::{url, watching};
use crate::support::{Collect, Proxy, Server, Timing, eventually, in_virtual_time, limit, on_each_store};

/// Starts a task that waits for the lock and then releases it.
async fn wait_behind(lock: &FairLock) -> tokio::task::JoinHandle<()> {
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await.unwrap().unlock().await.map(drop).unwrap() })
    };
    eventually("it waits", async || lock.status().await.unwrap().waiters == 1).await;
    waiting
}

#[tokio::test]
async fn a_call_and_its_hold_are_spans_of_their_caller() {
    on_each_store(async |store| {
        let client = store.connect(Timing::default()).await;
        let holder = client.lock("x").lock().await.unwrap();
        let said = Collect::default();
        let _here = said.clone().here();
        let lock = client.lock("x").labelled("job 17");
        let request = tracing::info_span!(target: "test", "request");
        let frees = async {
            // With the embedded server, time passes only while all tasks wait.
            tokio::time::sleep(Duration::from_millis(2)).await;
            holder.unlock().await.unwrap();
        };
        let (guard, ()) = {
            use tracing::Instrument;
            tokio::join!(lock.lock().instrument(request), frees)
        };
        let guard = guard.unwrap();
        let [call] = &said.spans("lock")[..] else { panic!("{:?}", said.spans("lock")) };
        assert!(call.is_closed() && call.parent == Some("request"), "{call:?}");
        assert_eq!((call.level, call.target.as_str()), (Level::DEBUG, "fairlock::lock"));
        let [hold] = &said.spans("hold")[..] else { panic!("{:?}", said.spans("hold")) };
        assert!(!hold.is_closed() && hold.parent == Some("request"), "{hold:?}");
        assert_eq!((hold.level, hold.target.as_str()), (Level::DEBUG, "fairlock::lock"));
        let (token, owner) = (guard.token().to_string(), guard.held().owner_id().to_owned());
        for span in [call, hold] {
            let field = |name: &str| span.fields.get(name).cloned().unwrap_or_default();
            assert_eq!(["name", "label", "owner", "token"].map(field), ["x", "job 17", &owner, &token]);
        }
        assert!(call.fields["wait_ms"].parse::<f64>().unwrap() > 0.0, "{call:?}");
        assert!(!hold.fields.contains_key("held_ms"), "{hold:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
        // A view keeps the hold in memory, but the span has ended.
        let _view = guard.held();
        guard.unlock().await.unwrap();
        let [hold] = &said.spans("hold")[..] else { panic!("{:?}", said.spans("hold")) };
        assert!(hold.is_closed() && hold.fields["end"] == "released", "{hold:?}");
        assert!(hold.fields["held_ms"].parse::<f64>().unwrap() > 0.0, "{hold:?}");
    })
    .await;
}

#[tokio::test]
async fn a_detached_hold_says_so() {
    on_each_store(async |store| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = store.connect(Timing::default()).await;
        let handle = client.lock("x").lock().await.unwrap().detach(Duration::from_secs(60)).await.unwrap();
        assert!(said.saw("DEBUG", "detached") && !said.saw("DEBUG", "released"));
        let [hold] = &said.spans("hold")[..] else { panic!("{:?}", said.spans("hold")) };
        assert!(hold.is_closed() && hold.fields["end"] == "detached", "{hold:?}");
        client.release(&handle).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn nested_calls_are_parts_of_one_hold() {
    on_each_store(async |store| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        owner::scope(async {
            let outer = lock.lock().await.unwrap();
            let inner = lock.lock().await.unwrap();
            inner.unlock().await.unwrap();
            assert!(!said.saw("DEBUG", "released"));
            outer.unlock().await.unwrap();
        })
        .await;
        assert_eq!((said.spans("lock").len(), said.spans("hold").len()), (2, 1));
        assert_eq!((said.of("DEBUG", "acquired").len(), said.of("DEBUG", "released").len()), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn the_life_of_a_lock_is_told_at_debug() {
    in_virtual_time(async |store| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        let guard = lock.lock().await.unwrap();
        assert!(said.saw("DEBUG", "acquired"));
        let first = said.of("DEBUG", "acquired").concat();
        for field in ["name=x", &format!("owner={}", guard.held().owner_id()), "label=", "wait_ms="] {
            assert!(first.contains(field), "{first}");
        }
        assert!(first.contains(&format!("token={}", guard.token())) && first.contains("handed_over=false"), "{first}");
        assert!(lock.try_lock().await.unwrap().is_busy());
        assert!(said.saw("DEBUG", "not free"));
        let error = lock.lock_timeout(Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }));
        assert!(said.saw("DEBUG", "not acquired"));
        assert!(said.of("DEBUG", "not acquired")[0].contains("not acquired in time"), "{:?}", said.lines());
        let dropped = tokio::time::timeout(Duration::from_millis(20), lock.lock()).await;
        assert!(dropped.is_err());
        assert!(said.saw("DEBUG", "gave up"));
        said.clear();
        let waiting = wait_behind(&lock).await;
        eventually("it is told", async || said.saw("DEBUG", "waits in the queue")).await;
        eventually("it is polled for", async || said.saw("DEBUG", "still waiting")).await;
        let polled = said.of("DEBUG", "still waiting")[0].clone();
        assert!(polled.contains("waiting=1 places=1") && polled.contains(guard.held().owner_id()), "{polled}");
        guard.unlock().await.unwrap();
        assert!(said.saw("DEBUG", "released"));
        waiting.await.unwrap();
        assert!(said.of("DEBUG", "acquired")[0].contains("handed_over=true"), "{:?}", said.lines());
        client.close().await.unwrap();
        assert!(said.saw("DEBUG", "closed"));
    })
    .await;
}

#[tokio::test]
async fn a_loss_is_a_warning_and_the_rest_is_silence() {
    on_each_store(async |store| {
        let said = Collect::up_to(Level::INFO);
        let _here = said.clone().here();
        let client = store.connect(Timing::default()).await;
        let lock = client.lock("x");
        for _ in 0..3 {
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
        assert_eq!(said.lines(), Vec::<String>::new(), "a client that works says nothing");
        assert!(said.spans("lock").is_empty() && said.spans("hold").is_empty());
        let guard = lock.lock().await.unwrap();
        lock.force_unlock().await.unwrap();
        guard.lost().await;
        eventually("it is told", async || said.saw("WARN", "lost a lock")).await;
        let lines = said.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        for field in
            ["name=x", &format!("owner={}", guard.held().owner_id()), "held_ms=", "loss=it was unlocked by force"]
        {
            assert!(lines[0].contains(field), "{lines:?}");
        }
        assert!(lines[0].contains(&format!("token={}", guard.token())), "{lines:?}");
    })
    .await;
}

/// The quorum logs the hold once, and each server logs it at DEBUG.
#[tokio::test]
async fn a_quorum_tells_of_its_holds_once_for_all_servers() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let (servers, mut urls) = ([Server::start().await, Server::start().await, Server::start().await], Vec::new());
        urls.extend(servers.iter().map(Server::url));
        let builder = Timing::default().builder().without_strict_restart();
        let client = builder.connect(urls).await.unwrap();
        let lock = client.lock("x").labelled("job 17");
        let guard = lock.lock().await.unwrap();
        let [call] = &said.spans("lock")[..] else { panic!("{:?}", said.spans("lock")) };
        let [hold] = &said.spans("hold")[..] else { panic!("{:?}", said.spans("hold")) };
        let token = guard.token().to_string();
        for span in [call, hold] {
            assert_eq!(["name", "label", "token"].map(|name| span.fields[name].clone()), ["x", "job 17", &token]);
        }
        assert!(said.saw("DEBUG", "has a majority"));
        assert!(said.of("DEBUG", "has a majority")[0].contains("nodes=[0, 1, 2]"), "{:?}", said.lines());
        assert_eq!(said.of("DEBUG", "acquired").len(), 1, "{:?}", said.lines());
        assert!(lock.try_lock().await.unwrap().is_busy());
        assert_eq!(said.of("DEBUG", "not free").len(), 1, "{:?}", said.lines());
        guard.unlock().await.unwrap();
        assert_eq!(said.of("DEBUG", "released").len(), 1, "{:?}", said.lines());
        assert!(said.spans("hold")[0].is_closed());

        let guard = lock.lock().await.unwrap();
        // A loss at one of three servers does no harm, so it is not a warning.
        redis::cmd("FLUSHALL").exec_async(&mut servers[2].connection().await).await.unwrap();
        eventually("one is lost", async || said.saw("DEBUG", "lost a lock")).await;
        assert!(guard.is_valid() && !said.saw("WARN", "lost a lock"), "{:?}", said.lines());
        lock.force_unlock().await.unwrap();
        guard.lost().await;
        eventually("it is told", async || said.saw("WARN", "lost a lock")).await;
        assert_eq!(said.of("WARN", "lost a lock").len(), 1, "{:?}", said.lines());
        assert!(said.of("WARN", "lost a lock")[0].contains(&format!("token={}", guard.token())), "{:?}", said.lines());
        drop(guard);

        // Another client holds the lock at the first server.
        let one = Timing::default().connect(&servers[0].url()).await;
        let taken = one.lock("y").lock().await.unwrap();
        let tried = client.lock("y").try_lock().await;
        assert!(matches!(tried, Ok(Tried::Busy(_))), "{tried:?}");
        assert!(said.saw("DEBUG", "split vote at once"), "{:?}", said.lines());
        taken.unlock().await.unwrap();
        // Others hold three of five servers, but not the gate.
        let more = [Server::start().await, Server::start().await];
        let urls: Vec<_> = servers.iter().chain(&more).map(Server::url).collect();
        let builder = Timing::default().builder().without_strict_restart();
        let five = builder.connect(urls.clone()).await.unwrap();
        let mut others = Vec::new();
        for url in &urls[1..4] {
            let other = Timing::default().connect(url).await;
            others.push((other.lock("z").lock().await.unwrap(), other));
        }
        let waits = five.lock("z").lock_timeout(Duration::from_millis(300)).await;
        assert!(matches!(waits, Err(LockError::Timeout { .. })), "{waits:?}");
        assert!(said.saw("DEBUG", "split vote after a wait"), "{:?}", said.lines());
        for (guard, _) in others {
            guard.unlock().await.unwrap();
        }
        // It queues at the first server at once, because others lately wanted the lock.
        let silent = [&servers[1], &servers[2], &more[0]];
        silent.iter().for_each(|server| server.pause());
        let waits = five.lock("z").lock_timeout(Duration::from_secs(4)).await;
        silent.iter().for_each(|server| server.resume());
        assert!(matches!(waits, Err(LockError::Unreachable(_))), "{waits:?}");
        assert!(said.saw("DEBUG", "too many servers are out"), "{:?}", said.lines());
    })
    .await;
}

#[tokio::test]
async fn a_server_of_a_quorum_that_is_silent_is_told_of_and_when_it_is_back() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let (servers, mut urls) = ([Server::start().await, Server::start().await, Server::start().await], Vec::new());
        urls.extend(servers.iter().map(Server::url));
        let builder = Timing::default().builder().without_strict_restart();
        let client = builder.connect(urls).await.unwrap();
        servers[1].pause();
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        assert!(said.saw("WARN", "a server of the quorum is skipped until it serves again"), "{:?}", said.lines());
        servers[1].resume();
        eventually("it is back", async || said.saw("INFO", "a server of the quorum serves again")).await;
        let warned = said.of("WARN", "a server of the quorum is skipped until it serves again").len();
        assert_eq!(warned, said.of("INFO", "a server of the quorum serves again").len(), "{:?}", said.lines());
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_breaks_is_told_once_and_when_it_is_back() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let server = Server::with(&["--appendonly", "yes"]).await;
        let client = Timing::default().connect(&server.url()).await;
        assert!(said.saw("DEBUG", "connected"));
        server.kill().await;
        eventually("it is told", async || said.saw("WARN", "cannot connect yet")).await;
        assert!(said.saw("WARN", "lost the connection"));
        // Calls and later attempts add nothing.
        for _ in 0..3 {
            let outcome = client.lock("x").lock_timeout(Duration::from_millis(300)).await;
            assert!(matches!(outcome, Err(LockError::Unreachable(_))), "{outcome:?}");
        }
        let warnings = said.of("WARN", "");
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        server.restart_with_data().await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        assert!(said.saw("INFO", "reconnected"));
        assert_eq!(said.of("INFO", "").len(), 1, "{:?}", said.of("INFO", ""));
    })
    .await;
}

/// One line reports the server, so failed renewals are logged only at DEBUG.
#[tokio::test]
async fn a_renewal_and_a_release_without_an_answer_are_told_at_debug() {
    in_virtual_time(async |server| {
        let said = Collect::default();
        let _here = said.clone().here();
        let client = server.connect(Timing::default()).await;
        let (held, given_back) =
            (client.lock("held").lock().await.unwrap(), client.lock("other").lock().await.unwrap());
        server.network.silence(true);
        drop(given_back);
        held.lost().await;
        assert!(said.saw("DEBUG", "a renewal failed"), "{:?}", said.lines());
        eventually("it is over", async || said.saw("DEBUG", "released without an answer")).await;
        server.network.silence(false);
    })
    .await;
}

#[tokio::test]
async fn a_close_that_finds_holds_or_no_answers_says_so() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let server = Server::start().await;
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("x").lock().await.unwrap();
        client.close().await.unwrap();
        assert!(said.saw("WARN", "closing a client that still holds locks"));
        assert_eq!(said.of("WARN", "").len(), 1, "the lost locks are not told one by one: {:?}", said.of("WARN", ""));
        drop(guard);
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("y").lock().await.unwrap();
        server.pause();
        client.run(async { drop(guard) }).await;
        assert!(said.saw("WARN", "closed before all answers came"), "{:?}", said.lines());
        server.resume();
    })
    .await;
}

#[test]
fn a_runtime_that_ends_before_its_client_is_told_of() {
    let said = Collect::default();
    let _here = said.clone().here();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, here) = (runtime(), runtime());
    let server = here.block_on(Server::start());
    let client = first.block_on(Timing::default().connect(&server.url()));
    let guard = first.block_on(client.lock("x").lock()).unwrap();
    drop(first);
    assert!(said.saw("WARN", "the runtime of a client has ended"), "{:?}", said.lines());
    drop(guard);
}

#[tokio::test]
async fn a_leave_that_a_person_has_to_help_is_told_of() {
    limit(async {
        // A foreign key in place of the lock's (WRONGTYPE), and a right that the script lacks.
        let foreign = ["DEL fairlock:{n:x}", "SET fairlock:{n:x} foreign"];
        for (refuse, allow) in
            [(foreign.as_slice(), foreign[0]), (&["ACL SETUSER default -unlink"], "ACL SETUSER default +unlink")]
        {
            let said = Collect::default();
            let _here = said.clone().here();
            let server = Server::start().await;
            let mut redis = server.connection().await;
            let mut run = async |command: &str| {
                let mut words = command.split(' ');
                let name = words.next().unwrap();
                redis::cmd(name).arg(words.collect::<Vec<_>>()).exec_async(&mut redis).await.unwrap();
            };
            let client = Timing::default().connect(&server.url()).await;
            let guard = client.lock("x").lock().await.unwrap();
            let lock = client.lock("x");
            let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
            eventually("it waits", async || client.lock("x").status().await.unwrap().waiters == 1).await;
            for command in refuse {
                run(command).await;
            }
            waiting.abort();
            eventually("it is told", async || said.saw("WARN", "could not leave the queue yet")).await;
            run(allow).await;
            drop(guard);
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_server_cannot_tell_is_told_at_debug() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let without_eval = Server::with(&["--rename-command", "EVAL", ""]).await;
        let refused = Timing::default().builder().connect(without_eval.url()).await;
        assert!(refused.is_err());
        assert!(said.saw("DEBUG", "the server does not report the rights of its user"), "{:?}", said.lines());
        let server = Server::start().await;
        let mut redis = server.connection().await;
        let client = Timing::default().connect(&server.url()).await;
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").arg("fairlock:*").query_async(&mut redis).await.unwrap();
        redis::cmd("PUBLISH").arg(&channels[0]).arg("what?").exec_async(&mut redis).await.unwrap();
        eventually("it is told", async || said.saw("DEBUG", "an unknown message on this client's channel")).await;
        client.close().await.unwrap();
    })
    .await;
}

/// A proxy has lost a reply, so this one and all later ones belong to other requests. The client took it for a sign of
/// life, for up to 17 s.
#[tokio::test]
async fn a_ping_or_a_script_that_is_answered_by_something_else_ends_the_connection() {
    limit(async {
        for (from, to) in [("+PONG", "+PING"), ("$9\r\ninspected", ",1.2345678901")] {
            let said = Collect::default();
            let _here = said.clone().here();
            let server = Server::start().await;
            let proxy = Proxy::start(&server).await;
            let client = Timing::default().connect(&proxy.url()).await;
            proxy.rewrite(from, to);
            if from != "+PONG" {
                assert!(client.lock("x").status().await.is_err());
            }
            eventually("it reconnects", async || said.saw("WARN", "lost the connection; reconnecting")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn replies_that_are_not_ours_are_told_of() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let server = Server::start().await;
        let proxy = Proxy::start(&server).await;
        let client = Timing::default().connect(&proxy.url()).await;
        proxy.rewrite("inspected", "inscepted");
        let outcome = client.lock("x").status().await;
        assert!(outcome.is_err(), "{outcome:?}");
        assert!(said.saw("WARN", "a reply belongs to another request"), "{:?}", said.lines());
    })
    .await;
}

/// A grant comes so late that the client must confirm it, while the server is silent.
#[tokio::test]
async fn a_grant_that_cannot_be_confirmed_is_told_at_debug() {
    in_virtual_time(async |server| {
        let said = Collect::default();
        let _here = said.clone().here();
        let holder = server.connect(Timing::default()).await;
        let (operation_timeout, grant_ttl) = (Duration::from_millis(300), Duration::from_millis(1000));
        let client = server.connect(Timing { operation_timeout, grant_ttl, ..Timing::default() }).await;
        let guard = holder.lock("x").lock().await.unwrap();
        let waiting = wait_behind(&client.lock("x")).await;
        // There and back takes longer than the grant lasts and than a request may take.
        server.network.delay_of(client.id(), Duration::from_millis(1300));
        guard.unlock().await.unwrap();
        eventually("it is told", async || said.saw("DEBUG", "a grant could not be confirmed")).await;
        server.network.mend(client.id());
        waiting.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn sentinels_without_a_majority_are_told_of() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let server = Server::start().await;
        let sentinels = [watching(&server).await, watching(&server).await, watching(&server).await];
        let _client = Timing::default().connect(&url(&sentinels, "mymaster")).await;
        sentinels[1..].iter().for_each(Server::pause);
        eventually("it is told", async || said.saw("WARN", "staying with the last primary")).await;
        assert!(said.saw("DEBUG", "a Sentinel does not answer"));
        sentinels[1..].iter().for_each(Server::resume);
        eventually("it is over", async || said.saw("INFO", "a majority of the Sentinels names a primary again")).await;
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_lacks_nodes_and_slots_is_told_of() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let cluster = Cluster::with(2, &["--cluster-require-full-coverage", "no", "--appendonly", "yes"]).await;
        let client = Timing::default().connect(&cluster.url()).await;
        let slot = slot_of(&cluster.masters[0], "x").await;
        for master in &cluster.masters {
            command(master, &["CLUSTER", "DELSLOTS", &slot.to_string()]).await;
        }
        eventually("it is told", async || said.saw("WARN", "slots of the cluster have no master")).await;
        for master in &cluster.masters {
            command(master, &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &cluster.id(0).await]).await;
        }
        eventually("it is over", async || said.saw("INFO", "all slots of the cluster are served again")).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        for master in &cluster.masters {
            master.kill().await;
        }
        eventually("no node answers", async || said.saw("WARN", "no node of the cluster reports the table of slots"))
            .await;
        assert!(said.saw("DEBUG", "cannot ask this node of the cluster"));
        assert!(said.saw("DEBUG", "no answer about the cluster"), "{:?}", said.lines());
        for master in &cluster.masters {
            master.restart_with_data().await;
        }
        eventually("it is over", async || said.saw("INFO", "a node of the cluster answers again")).await;
    })
    .await;
}

#[tokio::test]
async fn a_node_that_has_lost_all_its_slots_is_told_of() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let cluster = Cluster::start(2).await;
        let client = Timing::default().connect(&cluster.url()).await;
        for number in 0..16 {
            client.lock(format!("name {number}")).lock().await.unwrap().unlock().await.unwrap();
        }
        // First without keys, because a node does not give up a slot that has some.
        command(&cluster.masters[1], &["FLUSHALL"]).await;
        for master in &cluster.masters {
            command(master, &["CLUSTER", "DELSLOTSRANGE", "8192", "16383"]).await;
        }
        command(&cluster.masters[0], &["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]).await;
        eventually("it is told", async || said.saw("INFO", "this node of the cluster serves no slots now")).await;
    })
    .await;
}
