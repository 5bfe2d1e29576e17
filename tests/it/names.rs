//! Servers with a host name whose look-up is late, fails, or leads to another server.

use std::time::Duration;

use fairlock::{LockClient, LockGuard};
use tokio::time::timeout;

use crate::connecting::{MORE_RIGHTS, RIGHTS, set_user};
use crate::support::sentinels::{Sentinels, watch};
use crate::support::{Answer, Collect, LONGEST_WAIT, Server, Timing, eventually, with_names};

const NAME: &str = "lock.test";
const OLD: Answer = Answer::At("127.0.0.1");
const NEW: Answer = Answer::At("127.0.0.2");
/// Longer than a reconnect waits before it tries an earlier address.
const SLOW: Duration = Duration::from_millis(400);
const QUICK: Duration = Duration::ZERO;

fn url(server: &Server) -> String {
    server.url().replace("127.0.0.1", NAME)
}

/// The server to which the name leads at first, and another one.
async fn two() -> (Server, Server) {
    let old = Server::start().await;
    let new = Server::beside(&old, "127.0.0.2").await;
    (old, new)
}

async fn holding(server: &Server) -> (LockClient, LockGuard) {
    let client = Timing::relaxed().connect(&url(server)).await;
    let guard = client.lock("x").lock().await.unwrap();
    (client, guard)
}

/// The ids of the client connections there.
async fn subscribers(server: &Server) -> Vec<String> {
    let mut redis = server.connection().await;
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
    let subscribed = list.lines().filter(|line| line.contains(" sub=1 "));
    subscribed.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Drops the connections, as an operator or a network may.
async fn cut(server: &Server) {
    let mut redis = server.connection().await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.unwrap();
}

/// The holder learns of the loss, and works at the new server. If the client stayed, it and new clients would both hold
/// the lock.
async fn is_at_the_new_one((client, guard): (LockClient, LockGuard), old: &Server, new: &Server) {
    timeout(LONGEST_WAIT, guard.lost()).await.expect("the holder is told");
    let is_there = async || subscribers(old).await.is_empty() && subscribers(new).await.len() == 1;
    eventually("it is there", is_there).await;
    let another = Timing::relaxed().connect(&url(new)).await;
    let taken = another.lock("x").try_lock().await.unwrap().into_result().expect("it is free there");
    assert!(client.lock("x").try_lock().await.unwrap().is_busy(), "and they see each other");
    taken.unlock().await.unwrap();
}

#[tokio::test]
async fn a_name_that_moves_takes_its_clients_along() {
    with_names(async |names| {
        names.lead(NAME, SLOW, OLD);
        let ((old, new), said) = (two().await, Collect::default());
        let holding = holding(&old).await;
        let _here = said.clone().here();
        names.lead(NAME, SLOW, NEW);
        is_at_the_new_one(holding, &old, &new).await;
        assert!(said.saw("WARN", "the host name leads to another server now"), "{:?}", said.lines());
    })
    .await;
}

/// The look-up is late, so the client comes back to the earlier address. It stayed there for good.
#[tokio::test]
async fn a_client_that_comes_back_by_an_earlier_address_does_not_stay_there() {
    with_names(async |names| {
        names.lead(NAME, SLOW, OLD);
        let (old, new) = two().await;
        let holding = holding(&old).await;
        names.lead(NAME, SLOW, NEW);
        cut(&old).await;
        is_at_the_new_one(holding, &old, &new).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_came_back_while_look_ups_failed_follows_its_name_later() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let (old, new) = two().await;
        let holding = holding(&old).await;
        for failure in [Answer::Fails, Answer::Empty] {
            names.lead(NAME, QUICK, failure);
            let before = subscribers(&old).await;
            cut(&old).await;
            eventually("it is back", async || {
                let now = subscribers(&old).await;
                now.len() == 1 && now != before
            })
            .await;
            assert!(holding.1.is_valid(), "it is the same server");
        }
        names.lead(NAME, SLOW, NEW);
        is_at_the_new_one(holding, &old, &new).await;
    })
    .await;
}

/// The server dies, and its name moves. The resolver takes longer than its head start.
#[tokio::test]
async fn a_late_answer_leads_to_a_new_server_where_the_earlier_address_leads_nowhere() {
    with_names(async |names| {
        names.lead(NAME, SLOW, OLD);
        let (old, new) = two().await;
        let (client, guard) = holding(&old).await;
        names.lead(NAME, 2 * SLOW, NEW);
        old.kill().await;
        timeout(LONGEST_WAIT, guard.lost()).await.expect("the holder is told");
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        assert_eq!(subscribers(&new).await.len(), 1);
    })
    .await;
}

/// Another server took over the earlier address. It grants nothing to a client that looks for the old server.
#[tokio::test]
async fn an_earlier_address_leads_to_no_other_server() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let server = Server::start().await;
        let (client, guard) = holding(&server).await;
        names.lead(NAME, QUICK, Answer::Fails);
        server.restart().await;
        eventually("it was asked several times", async || server.calls("hello").await >= 3).await;
        assert_eq!((server.calls("subscribe").await, server.calls("evalsha").await), (0, 0));
        let error = client.lock("y").lock_timeout(Duration::from_secs(1)).await.unwrap_err().to_string();
        assert!(error.contains("resolved") && error.contains("run_id"), "{error}");
        names.lead(NAME, QUICK, OLD);
        timeout(LONGEST_WAIT, guard.lost()).await.expect("the holder is told");
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn without_the_right_to_ask_for_its_run_id_an_earlier_address_is_not_used() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let server = Server::start().await;
        let rights =
            |unwanted: &'static str| RIGHTS.into_iter().chain(MORE_RIGHTS).filter(move |right| *right != unwanted);
        set_user(&server, rights("")).await;
        let of_worker = url(&server).replace("redis://", "redis://worker:secret@");
        let client = Timing::relaxed().connect(&of_worker).await;
        names.lead(NAME, QUICK, Answer::Fails);
        cut(&server).await;
        eventually("it may ask, and is back", async || subscribers(&server).await.len() == 1).await;
        set_user(&server, rights("+info")).await;
        cut(&server).await;
        let asked = server.calls("hello").await;
        eventually("it was asked several times", async || server.calls("hello").await >= asked + 3).await;
        assert_eq!(subscribers(&server).await.len(), 0);
        let error = client.lock("y").lock_timeout(Duration::from_secs(1)).await.unwrap_err().to_string();
        assert!(error.contains("resolved") && error.contains("+info"), "{error}");
        names.lead(NAME, QUICK, OLD);
        client.lock("y").lock().await.unwrap().unlock().await.unwrap();
        // Now it is unknown which server that is.
        names.lead(NAME, QUICK, Answer::Fails);
        cut(&server).await;
        let asked = server.calls("hello").await;
        names.after(3).await;
        assert_eq!(server.calls("hello").await, asked);
    })
    .await;
}

#[tokio::test]
async fn a_name_that_leads_to_a_replica_moves_nobody_until_it_is_promoted() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let ((old, new), said) = (two().await, Collect::default());
        new.replicate(&old).await;
        let (_client, guard) = holding(&old).await;
        let _here = said.clone().here();
        let connected = subscribers(&old).await;
        names.lead(NAME, QUICK, NEW);
        let is_warned =
            async || said.saw("WARN", "the host name leads to other addresses now, but none has a usable primary");
        eventually("it has asked there", is_warned).await;
        assert_eq!(subscribers(&old).await, connected);
        new.promote().await;
        // The hold was replicated, so the new server knows it.
        eventually("it is there", async || subscribers(&new).await.len() == 1).await;
        assert!(guard.is_valid() && subscribers(&old).await.is_empty());
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn errors_and_empty_answers_move_nobody_and_keep_nobody() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let (old, new) = two().await;
        let holding = holding(&old).await;
        let connected = subscribers(&old).await;
        names.lead(NAME, QUICK, Answer::Fails);
        names.after(1).await;
        names.lead(NAME, QUICK, Answer::Empty);
        names.after(1).await;
        names.lead(NAME, QUICK, NEW);
        names.after(1).await;
        // Failed look-ups do not count, and earlier answers keep counting.
        names.lead(NAME, QUICK, Answer::Fails);
        names.after(1).await;
        assert_eq!(subscribers(&old).await, connected);
        names.lead(NAME, QUICK, NEW);
        is_at_the_new_one(holding, &old, &new).await;
    })
    .await;
}

#[tokio::test]
async fn a_single_answer_without_its_address_moves_nobody() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let (old, new) = two().await;
        let (_client, guard) = holding(&old).await;
        let connected = subscribers(&old).await;
        for answer in [NEW, Answer::At("127.0.0.2 127.0.0.1"), NEW, OLD] {
            names.lead(NAME, QUICK, answer);
            names.after(1).await;
        }
        assert_eq!(subscribers(&old).await, connected);
        assert!(guard.is_valid() && new.calls("hello").await == 0);
        guard.unlock().await.unwrap();
    })
    .await;
}

/// The client asks the server once; from then on this is its address.
#[tokio::test]
async fn another_address_of_the_same_server_moves_nobody() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let server = Server::with(&["--bind", "127.0.0.1", "127.0.0.2"]).await;
        let (_client, guard) = holding(&server).await;
        let connected = subscribers(&server).await;
        names.lead(NAME, QUICK, NEW);
        names.after(4).await;
        assert_eq!(subscribers(&server).await, connected);
        // Two for the connection, whose second one sets its name, and one to ask the server.
        assert_eq!(server.calls("hello").await, 3);
        guard.unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_error_about_a_slow_look_up_blames_no_host_and_no_firewall() {
    with_names(async |names| {
        names.lead(NAME, 3 * Timing::default().operation_timeout, OLD);
        let server = Server::start().await;
        let connect = || Timing::default().builder().connect(url(&server));
        let error = connect().await.unwrap_err().to_string();
        assert!(error.contains("resolved within 1s") && !error.contains("firewall"), "{error}");
        // A look-up has its own time limit, and this one takes most of it.
        names.lead(NAME, Duration::from_millis(900), OLD);
        connect().await.unwrap().lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// If a look-up takes longer than an attempt, the next attempt does not start it again.
#[tokio::test]
async fn a_client_comes_to_its_server_however_slow_the_resolver_is() {
    with_names(async |names| {
        names.lead(NAME, Duration::from_millis(2500), OLD);
        let server = Server::start().await;
        let builder = Timing::default().builder().retry_on_initial_connect();
        let client = builder.connect(url(&server)).await.unwrap();
        eventually("it is there", async || subscribers(&server).await.len() == 1).await;
        client.lock("x").lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn addresses_and_sockets_are_not_looked_up() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let server = Server::start().await;
        let by_address = Timing::relaxed().connect(&server.url()).await;
        let by_socket = Timing::relaxed().connect(&server.unix_url()).await;
        let by_name = Timing::relaxed().connect(&url(&server)).await;
        cut(&server).await;
        for client in [&by_address, &by_socket, &by_name] {
            client.lock("x").lock().await.unwrap().unlock().await.unwrap();
        }
        // Five seconds later, after all look-ups that happen at all.
        names.after(1).await;
        let looked_up = names.looked_up();
        assert!(looked_up.len() > 2 && looked_up.iter().all(|line| line.starts_with(NAME)), "{looked_up:?}");
    })
    .await;
}

/// A Sentinel at an earlier address does not vote, and the last majority still decides.
#[tokio::test]
async fn sentinels_whose_names_cannot_be_looked_up_have_no_vote() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let (servers, said) = (Sentinels::start().await, Collect::default());
        let client = Timing::relaxed().connect(&servers.url().replace("127.0.0.1", NAME)).await;
        let _here = said.clone().here();
        let guard = client.lock("x").lock().await.unwrap();
        names.lead(NAME, QUICK, Answer::Fails);
        for sentinel in &servers.sentinels {
            let mut redis = sentinel.connection().await;
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut redis).await.unwrap();
        }
        eventually("it stays", async || said.saw("WARN", "staying with the last primary")).await;
        guard.unlock().await.unwrap();
        names.lead(NAME, QUICK, OLD);
        let is_back = async || said.saw("INFO", "a majority of the Sentinels names a primary again");
        eventually("they vote again", is_back).await;
    })
    .await;
}

/// The votes of Sentinels at the old addresses say nothing about the primary of new clients. The client stayed there
/// for good, and a new client got the lock at the other primary: two holders.
#[tokio::test]
async fn sentinels_whose_names_move_take_their_clients_along() {
    with_names(async |names| {
        names.lead(NAME, QUICK, OLD);
        let old = Sentinels::start().await;
        let new = Server::start().await;
        let mut sentinels = Vec::new();
        for sentinel in &old.sentinels {
            sentinels.push(Server::beside(sentinel, "127.0.0.2").await);
        }
        for sentinel in &sentinels {
            watch(sentinel, &new).await;
        }
        let url = old.url().replace("127.0.0.1", NAME);
        let client = Timing::relaxed().connect(&url).await;
        let guard = client.lock("x").lock().await.unwrap();
        names.lead(NAME, QUICK, NEW);
        timeout(LONGEST_WAIT, guard.lost()).await.expect("the holder is told");
        let another = Timing::relaxed().connect(&url).await;
        let taken = another.lock("x").lock_timeout(LONGEST_WAIT).await.unwrap();
        assert!(client.lock("x").try_lock().await.unwrap().is_busy(), "and they see each other");
        taken.unlock().await.unwrap();
    })
    .await;
}

/// The server counted as two of three: the hold was valid at one server, and others could get the lock at the other
/// two.
#[tokio::test]
async fn a_name_that_moves_to_another_server_of_the_quorum_counts_no_longer() {
    with_names(async |names| {
        names.lead(NAME, QUICK, NEW);
        let one = Server::start().await;
        let (two, three) = (Server::beside(&one, "127.0.0.2").await, Server::start().await);
        let urls = [one.url(), url(&one), three.url()];
        let client = Timing::relaxed().builder().without_strict_restart().connect(urls).await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        assert_eq!(guard.servers(), [0, 1, 2]);
        names.lead(NAME, QUICK, OLD);
        eventually("it is there", async || subscribers(&one).await.len() == 2 && subscribers(&two).await.is_empty())
            .await;
        assert!(guard.is_valid(), "at the first server and at the third one");
        let status = client.lock("x").status().await.unwrap();
        assert_eq!(status.servers[1].same_as, Some(0));
        three.restart().await;
        timeout(LONGEST_WAIT, guard.lost()).await.expect("it is held at one server of three");
        three.kill().await;
        let error = client.lock("y").lock_timeout(Duration::from_secs(1)).await.unwrap_err().to_string();
        assert!(error.contains("are one server"), "{error}");
    })
    .await;
}
