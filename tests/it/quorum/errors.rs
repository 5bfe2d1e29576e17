//! The texts and kinds of errors.

use std::time::Duration;

use fairlock::{ConnectError, LockClientBuilder, LockError, OptionsError, RequestError, Tried};

use super::{Masters, builder, embedded, quick, strict};
use crate::support::{Collect, Embedded, Proxy, Timing, eventually, limit, on_several_in_virtual_time};

fn unreachable(error: LockError) -> String {
    match error {
        LockError::Unreachable(cause) => cause.to_string(),
        error => panic!("{error:?}"),
    }
}

/// As on one server: a call may report `Timeout` only after it has seen another holder.
#[tokio::test]
async fn out_of_time_before_the_first_answer_is_no_sign_of_others() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let patient = || Timing::relaxed().builder().without_strict_restart();
        let client = embedded(patient(), servers);
        servers.iter().for_each(|server| server.network.delay(Duration::from_millis(400)));
        for millis in [1, 50, 799] {
            let error = client.lock("x").lock_timeout(Duration::from_millis(millis)).await.unwrap_err();
            let text = unreachable(error);
            assert!(text.contains("no answer yet"), "{text}");
        }
        // In a queue the call has seen others: first after a round of all servers, then in the queue at once.
        servers.iter().for_each(|server| server.network.delay(Duration::ZERO));
        let held = embedded(patient(), servers).lock("y").lock().await.unwrap();
        for millis in [1, 50, 3000] {
            let error = client.lock("y").lock_timeout(Duration::from_millis(millis)).await.unwrap_err();
            assert!(matches!(error, LockError::Timeout { .. }), "{error:?}");
        }
        drop(held);
    })
    .await;
}

#[tokio::test]
async fn an_option_out_of_range_is_named() {
    limit(async {
        type Set = fn(LockClientBuilder) -> LockClientBuilder;
        let urls = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/", "redis://127.0.0.1:3/"];
        let year = Duration::from_secs(365 * 24 * 3600);
        assert!(Duration::MAX > year);
        let wrong: [(&str, Set); 5] = [
            ("strict_restart", |builder| builder.strict_restart(Duration::MAX)),
            ("clock_difference", |builder| builder.clock_difference(Duration::MAX)),
            ("clock_difference", |builder| builder.clock_difference(Duration::from_secs(366 * 24 * 3600))),
            ("server_timeout", |builder| builder.server_timeout(Duration::ZERO)),
            ("server_timeout", |builder| builder.server_timeout(Duration::from_micros(1))),
        ];
        for (name, set) in wrong {
            let error = set(builder()).connect(urls).await.unwrap_err();
            let is_named = |option: &str| option == name;
            let fits =
                matches!(&error, ConnectError::Options(OptionsError::OutOfRange { option, .. }) if is_named(option));
            assert!(fits, "{name}: {error:?}");
        }
        // Each value is in range, but their sum is not.
        let error = builder().strict_restart(year).connect(urls).await.unwrap_err().to_string();
        assert!(error.contains("strict_restart and twice the clock_difference"), "{error}");
        let error = fairlock::LockClient::builder().lease(Duration::MAX).connect(urls).await.unwrap_err();
        assert!(matches!(error, ConnectError::Options(OptionsError::OutOfRange { option: "lease", .. })), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_close_says_how_many_servers_did_not_answer() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = masters.client().await;
        let _held = client.lock("held").lock().await.unwrap();
        masters.0[1].kill().await;
        masters.0[2].kill().await;
        eventually("they are known to be down", async || {
            matches!(client.lock("x").try_lock().await, Err(LockError::Unreachable(_)))
        })
        .await;
        let error = client.close().await.unwrap_err();
        assert_eq!(error.servers, 2, "{error}");
        assert!(error.unfinished >= 2, "a release at each of them: {error}");
        assert!(error.to_string().contains("servers without an answer: 2"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn while_servers_are_frozen_the_error_says_how_long() {
    limit(async {
        let masters = Masters::start(3).await;
        let client = builder().strict_restart(Duration::from_secs(60)).connect(masters.urls()).await.unwrap();
        let error = client.lock("x").lock_timeout(Duration::from_millis(100)).await.unwrap_err();
        let text = unreachable(error);
        assert!(text.contains("3 were started lately") && text.contains("62"), "{text}");
        let text = unreachable(client.lock("x").try_lock().await.unwrap_err());
        assert!(text.contains("3 were started lately"), "{text}");
        // If no server is frozen, the error does not mention a freeze.
        let client = quick().connect(masters.urls()).await.unwrap();
        for server in &masters.0 {
            server.kill().await;
        }
        eventually("they are gone", async || {
            matches!(client.lock("x").try_lock().await, Err(LockError::Unreachable(cause))
                if cause.to_string().contains("0 of 3") && !cause.to_string().contains("lately"))
        })
        .await;
    })
    .await;
}

/// Two addresses of one server: the operator learns why the quorum does not survive a loss.
#[tokio::test]
async fn a_server_that_is_another_one_is_told_of() {
    limit(async {
        let said = Collect::default();
        let _here = said.clone().here();
        let masters = Masters::start(2).await;
        let proxy = Proxy::start(&masters.0[0]).await;
        proxy.refuse(true);
        let urls = [masters.urls()[0].clone(), masters.urls()[1].clone(), proxy.url()];
        let client = strict().connect(urls).await.unwrap();
        drop(client.lock("x").lock().await.unwrap());
        assert_eq!(client.lock("x").status().await.unwrap().servers[2].same_as, None);
        proxy.refuse(false);
        eventually("it is found out", async || client.lock("x").status().await.unwrap().servers[2].same_as == Some(0))
            .await;
        for _ in 0..5 {
            drop(client.lock("x").lock().await.unwrap());
        }
        assert!(said.saw("WARN", "two addresses of the quorum lead to one server"), "{:?}", said.lines());
        assert_eq!(said.of("WARN", "two addresses of the quorum lead to one server").len(), 1, "{:?}", said.lines());
        masters.0[1].kill().await;
        eventually("the error names it", async || {
            let outcome = client.lock("x").try_lock().await;
            matches!(outcome, Err(LockError::Unreachable(cause)) if cause.to_string().contains("are one server"))
        })
        .await;
    })
    .await;
}

/// A blind retry of a `force_unlock` could end the next owner's hold. A minority's answer about a token proves nothing
/// either: the call returned `false` while the hold was alive at the others.
#[tokio::test]
async fn what_too_few_servers_answer_is_neither_an_answer_nor_unsent() {
    limit(async {
        let masters = Masters::start(3).await;
        let (one, other) = (masters.client().await, masters.client().await);
        let held = one.lock("x").lock().await.unwrap();
        masters.0[0].kill().await;
        masters.0[1].kill().await;
        eventually("they are gone for the other one, too", async || {
            other.lock("x").status().await.unwrap().servers.iter().filter(|node| node.answer.is_err()).count() == 2
        })
        .await;
        let error = other.lock("x").force_unlock().await.unwrap_err();
        assert!(matches!(error, RequestError::Unanswered(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("confirmed by 1 of the 2 servers that are needed; one of the others: not sent"),
            "{text}"
        );
        let lock = other.lock("x");
        let shown = lock.status().await.unwrap();
        assert!(matches!(lock.force_unlock_token(held.token()).await, Err(RequestError::Unanswered(_))));
        assert!(matches!(lock.force_unlock_shown(&shown).await, Err(RequestError::Unanswered(_))));
        assert!(matches!(lock.is_locked().await, Err(RequestError::Unanswered(_))));
        assert!(matches!(other.ping().await, Err(RequestError::Unanswered(_))));
        masters.0[2].kill().await;
        eventually("it was sent nowhere", async || {
            matches!(other.lock("x").force_unlock().await, Err(RequestError::NotSent(_)))
        })
        .await;
        assert!(matches!(lock.is_locked().await, Err(RequestError::NotSent(_))));
        assert!(matches!(other.ping().await, Err(RequestError::NotSent(_))));
        drop(held);
    })
    .await;
}

/// With several servers, the error names the one at fault.
#[tokio::test]
async fn an_error_of_connecting_names_the_server() {
    limit(async {
        let masters = Masters::start(3).await;
        let [first, second, third] = &masters.urls()[..] else { panic!("three") };
        let mut redis = masters.0[1].connection().await;
        let user = ["SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-evalsha"];
        redis::cmd("ACL").arg(&user).exec_async(&mut redis).await.unwrap();
        let narrow = second.replace("redis://", "redis://narrow:secret@");
        let stranger = second.replace("redis://", "redis://narrow:hidden@");
        let port = masters.0[1].port();
        for (urls, told) in [
            ([first, &narrow, third], format!("127.0.0.1:{port}/0: the user lacks rights that locks need")),
            ([first, &stranger, third], format!("127.0.0.1:{port}/0: the server does not accept the user or password")),
            ([first, &"redis://:hidden@:x".to_owned(), third], "server 2: not a Redis URL".to_owned()),
        ] {
            let error = quick().connect(urls).await.unwrap_err();
            assert!(matches!(error, ConnectError::Server { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&told), "{text}");
            assert!(!text.contains("hidden") && !text.contains("secret"), "{text}");
        }
        masters.0[0].kill().await;
        masters.0[2].kill().await;
        let error = quick().connect(masters.urls()).await.unwrap_err().to_string();
        let (told, first) = ("1 of 3 servers can be reached, and 2 are needed: ", masters.0[0].port());
        assert!(error.starts_with(told) && error.contains(&format!("127.0.0.1:{first}")), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_close_tells_once_what_is_lost_and_nothing_of_what_was_dropped_before() {
    limit(async {
        let masters = Masters::start(3).await;
        let said = Collect::default();
        let _here = said.clone().here();
        let told = || said.lines().iter().filter(|line| line.contains("still holds locks")).count();
        for _ in 0..20 {
            let client = masters.client().await;
            drop(client.lock("x").lock().await.unwrap());
            client.close().await.unwrap();
        }
        assert_eq!(told(), 0, "{:?}", said.lines());
        let client = masters.client().await;
        let guards = [client.lock("x").lock().await.unwrap(), client.lock("y").lock().await.unwrap()];
        client.close().await.unwrap();
        assert_eq!(told(), 1, "{:?}", said.lines());
        assert!(said.lines().iter().any(|line| line.contains("held=2")), "{:?}", said.lines());
        drop(guards);
    })
    .await;
}

/// Otherwise the call would keep trying forever.
#[tokio::test]
async fn what_a_majority_refuses_for_good_is_refused() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let lock = client.lock("x");
        let key = "fairlock:{n:x}";
        servers[2].command(&["SET", key, "foreign"]);
        lock.lock().await.unwrap().unlock().await.unwrap();
        servers[0].command(&["SET", key, "foreign"]);
        for outcome in [lock.lock().await.map(Tried::Acquired), lock.try_lock().await] {
            assert!(matches!(&outcome, Err(LockError::Refused(refusal)) if refusal.code == "WRONGTYPE"), "{outcome:?}");
        }
        for server in [0, 2] {
            servers[server].command(&["DEL", key]);
        }
    })
    .await;
}

/// One server refused before the call waited at another one, and was repaired during the wait.
#[tokio::test]
async fn a_refusal_from_before_a_wait_does_not_count() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let at_two = Timing::default().builder().embedded(&servers[1].server).unwrap();
        let held = at_two.lock("x").lock().await.unwrap();
        let key = "fairlock:{n:x}";
        servers[0].command(&["SET", key, "foreign"]);
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        eventually("it waits at the second one", async || at_two.lock("x").status().await.unwrap().waiters == 1).await;
        servers[0].command(&["DEL", key]);
        servers[2].command(&["SET", key, "foreign"]);
        held.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard.servers(), [0, 1]);
        guard.unlock().await.unwrap();
        servers[2].command(&["DEL", key]);
    })
    .await;
}

#[tokio::test]
async fn an_error_says_why_servers_are_skipped() {
    on_several_in_virtual_time(async |servers: &[Embedded; 3]| {
        let client = embedded(quick(), servers);
        let refuse = |refusal| servers[1..].iter().for_each(|server| server.network.refuse(refusal));
        refuse(Some("NOREPLICAS Not enough good replicas to write."));
        let limit = Duration::from_secs(3);
        for _ in 0..3 {
            let error = client.lock("x").lock_timeout(limit).await.unwrap_err().to_string();
            assert!(error.contains("1 of 3 servers can be used") && error.contains("NOREPLICAS"), "{error}");
        }
        refuse(None);
    })
    .await;
}
