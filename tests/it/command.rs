//! The command `fairlock` against real servers, as users run it.

use std::time::Duration;

use fairlock::{LockClient, Loss};
use nix::sys::signal::Signal;

use crate::connecting::set_user;
use crate::support::cluster::Cluster;
use crate::support::tool::{Running, Tool, limit, on_a_server};
use crate::support::{Proxy, Server, Timing, eventually};

const NAME: &str = "orders:42";
/// `NAME` with a lease that a test can wait for.
const SHORT: [&str; 3] = ["--lease", "2s", NAME];

async fn waiters(client: &LockClient) -> u64 {
    client.lock(NAME).status().await.unwrap().waiters
}

async fn is_held(client: &LockClient) -> bool {
    client.lock(NAME).is_locked().await.unwrap()
}

fn locked<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["lock"], options, &["--"], command].concat()
}

/// Runs a shell script under the lock, and waits until the script prints `in`.
async fn holding(url: &str, options: &[&str], script: &str) -> Running {
    let script = format!("echo in; {script}");
    let mut running = Tool::new(url, &locked(options, &["sh", "-c", &script])).start();
    assert_eq!(running.line().await, "in");
    running
}

#[tokio::test]
async fn a_command_runs_under_the_lock_and_knows_its_token() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let script = "echo $FAIRLOCK_NAME $FAIRLOCK_TOKEN $FAIRLOCK_OWNER; read line; exit 3";
        let mut running =
            Tool::new(&server.url(), &locked(&["--label", "job 17", NAME], &["sh", "-c", script])).start();
        let said = running.line().await;
        let status = client.lock(NAME).status().await.unwrap();
        let holder = status.holder.unwrap();
        assert_eq!((holder.label.as_str(), said), ("job 17", format!("{NAME} {} {}", holder.token, holder.owner)));
        running.say("go on\n").await;
        let (ended, err) = running.end().await;
        assert_eq!((ended.code(), err.as_str()), (Some(3), ""), "its exit code, and nothing else is said");
        assert!(!is_held(&client).await);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn each_way_to_end_has_its_exit_code() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let url = server.url();
        let _guard = client.lock("taken").lock().await.unwrap();
        redis::cmd("SET").arg(&["fairlock:{n:foreign}", "x"]).exec_async(&mut server.connection().await).await.unwrap();
        let long = "x".repeat(1025);
        let wrong = url.replace("redis://", "redis://worker:wrong@");
        for (url, arguments, code, said) in [
            (&url, &["lock", NAME, "--", "sh", "-c", "exit 200"][..], 200, ""),
            (&url, &["lock", NAME, "--", "sh", "-c", "kill -KILL $$"], 128 + 9, ""),
            (&url, &["lock", NAME, "--", "/there/is/no/such/file"], 127, "cannot run"),
            (&url, &["lock", NAME, "--", "/etc/passwd"], 126, "cannot run"),
            (&url, &["lock", "--try", "taken", "--", "true"], 1, ""),
            (&url, &["lock", "--try", "-E", "9", "taken", "--", "true"], 9, ""),
            (&url, &["lock", "--wait", "0s", "taken", "--", "true"], 1, ""),
            (
                &url,
                &["lock", "--wait", "2s", "--conflict-exit-code", "0", "taken", "--", "false"],
                0,
                "which held it since",
            ),
            (&url, &["lock", &long, "--", "true"], 2, "1024 are allowed"),
            (&url, &["lock", "--lease", "0s", NAME, "--", "true"], 2, "lease"),
            (&url, &["lock", "foreign", "--", "true"], 77, "delete that key"),
            (&wrong, &["lock", NAME, "--", "true"], 77, "user or password"),
            (&"redis://127.0.0.1:1/".into(), &["lock", NAME, "--", "true"], 69, "no server listens there"),
            (&"ftp://x".into(), &["status", NAME], 2, "not a Redis URL"),
        ] {
            let ended = Tool::new(url, arguments).run().await;
            assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
            assert!(ended.err.contains(said) && (!said.is_empty() || ended.err.is_empty()), "{arguments:?}: {ended:?}");
            assert!(ended.err.lines().count() <= 1, "{ended:?}");
        }
        redis::cmd("DEL").arg("fairlock:{n:foreign}").exec_async(&mut server.connection().await).await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// A key that someone has written by hand may have a time that no calendar shows.
#[tokio::test]
async fn a_damaged_time_does_not_end_the_command() {
    on_a_server(async |server| {
        let (client, url) = (Timing::default().connect(&server.url()).await, server.url());
        let guard = client.lock("taken").lock().await.unwrap();
        // Later than the year 9999, and than any time of the system.
        for (at, since) in [
            ("67767976233532800 208409", "since 9999-12-31"),
            ("9223372036854775807 9223372036854775807", "since 1970-01-01"),
        ] {
            let grant = format!("9 {} {at} 3500/victim", guard.token());
            let damage = ["fairlock:{n:taken}", "!grant", &grant];
            redis::cmd("HSET").arg(&damage).exec_async(&mut server.connection().await).await.unwrap();
            for (words, code, said) in [
                (&["lock", "--wait", "1s", "taken", "--", "true"][..], 1, since),
                (&["status", "taken"], 0, "victim"),
                (&["status", "--json", "taken"], 0, "victim"),
                (&["list"], 0, "victim"),
            ] {
                let ended = Tool::new(&url, words).run().await;
                assert!(ended.code == Some(code) && (ended.out + &ended.err).contains(said), "{words:?}");
            }
        }
    })
    .await;
}

/// The line says what to do.
#[tokio::test]
async fn wrong_usage_is_told_in_one_line() {
    for (arguments, said) in [
        (&[][..], "requires a subcommand"),
        (&["lok"], "a similar subcommand exists: 'lock'; see 'fairlock --help'"),
        (&["lock"], "<NAME>; see 'fairlock lock --help'"),
        (&["lock", NAME, "--wait", "5", "--", "true"], "write it as 30s or 1m30s"),
        (&["lock", NAME, "--try", "--wait", "5s", "--", "true"], "cannot be used with '--wait"),
        (&["status"], "<NAME>..."),
        (&["status", "--jsn", NAME], "'--json'"),
        (&["acl", "--user", "a b"], "a word without spaces"),
        (&["acl", "--user", "a", "--prefix", "pre*"], "as a pattern"),
        (&["watch", "-i", "0s"], "at least 10ms"),
        (&["lock", "--lease", "1ms", "n", "--", "true"], "a lease is at least 10ms"),
        (&["force-unlock", NAME, "--strict-restart", "x"], "--strict-restart"),
        (&["status", NAME, "--strict-restart", "0s"], "a lease is at least 10ms"),
        (&["status", NAME, "--url", ""], "--url, or FAIRLOCK_URL, is empty"),
    ] {
        let ended = Tool::new("redis://127.0.0.1:1/", arguments).run().await;
        assert_eq!((ended.code, ended.err.lines().count(), ended.out.as_str()), (Some(2), 1, ""), "{ended:?}");
        assert!(ended.err.starts_with("fairlock: ") && ended.err.contains(said), "{arguments:?}: {ended:?}");
    }
}

/// The command read them as one URL, whose database was not a number.
#[tokio::test]
async fn several_urls_may_be_on_lines_of_their_own() {
    limit(async {
        let servers = [Server::start().await, Server::start().await, Server::start().await];
        let [one, two, three] = servers.each_ref().map(Server::url);
        let ended = Tool::new(&format!("{one}\n{two}\r\n  {three}\n"), &["status", NAME]).run().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for server in &servers {
            assert_eq!(server.keys().await, [crate::support::BOOT], "it is one of several");
        }
    })
    .await;
}

#[tokio::test]
async fn two_commands_run_one_after_the_other() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let mut first = holding(&server.url(), &[NAME], "read line; echo out").await;
        let mut second = Tool::new(&server.url(), &locked(&[NAME], &["echo", "in"])).start();
        eventually("the second waits", async || waiters(&client).await == 1).await;
        first.say("go on\n").await;
        assert_eq!(first.line().await, "out");
        assert_eq!(second.line().await, "in");
        assert_eq!((first.end().await.0.code(), second.end().await.0.code()), (Some(0), Some(0)));
        client.close().await.unwrap();
    })
    .await;
}

/// The command starts another process. Both get the signal, and both have ended when the lock becomes free.
#[tokio::test]
async fn signals_are_passed_on_to_all_that_runs() {
    on_a_server(async |server| {
        for (signal, name) in [(Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP"), (Signal::SIGUSR1, "USR1")] {
            let inner = format!("trap 'echo inner; exit 0' {name}; echo ready; while :; do sleep 0.02; done");
            let script = format!("trap 'wait $!; echo outer; exit 7' {name}; sh -c \"{inner}\" & wait $!; wait $!");
            let mut running = holding(&server.url(), &[NAME], &script).await;
            assert_eq!(running.line().await, "ready");
            running.signal(signal);
            assert_eq!([running.line().await, running.line().await], ["inner", "outer"], "{name}");
            assert_eq!(running.end().await.0.code(), Some(7));
        }
        // A shell makes its background jobs ignore the keyboard's signals, so no inner process here.
        for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGQUIT, "QUIT"), (Signal::SIGUSR2, "USR2")] {
            let script = format!("trap 'echo {name}; exit 8' {name}; echo ready; while :; do sleep 0.02; done");
            let mut running = holding(&server.url(), &[NAME], &script).await;
            assert_eq!(running.line().await, "ready");
            running.signal(signal);
            assert_eq!((running.line().await.as_str(), running.end().await.0.code()), (name, Some(8)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_signal_that_comes_while_it_waits_leaves_no_place_in_the_queue() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock(NAME).lock().await.unwrap();
        let waiting = Tool::new(&server.url(), &locked(&[NAME], &["true"])).start();
        eventually("it waits", async || waiters(&client).await == 1).await;
        waiting.signal(Signal::SIGTERM);
        let (ended, _) = waiting.end().await;
        assert_eq!((ended.code(), waiters(&client).await), (Some(128 + 15), 0));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// Signals that `nohup` ignores stay ignored.
#[tokio::test]
async fn nohup_works_for_the_command_too() {
    on_a_server(async |server| {
        let script = "trap 'echo told; exit 6' USR1; echo in; while :; do sleep 0.02; done";
        let mut running = Tool::behind(&["nohup"], &server.url(), &locked(&[NAME], &["sh", "-c", script])).start();
        assert_eq!(running.line().await, "in");
        running.signal(Signal::SIGHUP);
        // fairlock would have passed SIGHUP on first.
        running.signal(Signal::SIGUSR1);
        assert_eq!(running.line().await, "told");
        assert_eq!(running.end().await.0.code(), Some(6));
    })
    .await;
}

#[tokio::test]
async fn a_lock_is_free_a_lease_after_fairlock_was_killed() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let running = holding(&server.url(), &SHORT, "read line").await;
        running.signal(Signal::SIGKILL);
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        running.end().await;
        client.close().await.unwrap();
    })
    .await;
}

/// A stopped fairlock cannot renew. When it continues, it ends the command, which may overlap with the next holder.
#[tokio::test]
async fn a_command_ends_when_fairlock_was_stopped_for_too_long() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let script = "trap 'echo told; exit 0' TERM; while :; do sleep 0.02; done";
        let mut running = holding(&server.url(), &SHORT, script).await;
        running.signal(Signal::SIGSTOP);
        let guard = client.lock(NAME).lock().await.unwrap();
        running.signal(Signal::SIGCONT);
        assert_eq!(running.line().await, "told");
        let (ended, err) = running.end().await;
        assert_eq!(ended.code(), Some(75));
        assert!(err.contains("lost the lock \"orders:42\""), "{err}");
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The command, or a process that it started, ignores SIGTERM. SIGKILL ends them all.
#[tokio::test]
async fn a_command_that_does_not_end_is_killed_when_the_server_is_gone() {
    limit(async {
        let dir = tempfile::tempdir().unwrap();
        let beats = dir.path().join("beats");
        for outer in ["trap '' TERM", "trap 'exit 0' TERM"] {
            let server = Server::start().await;
            let inner = format!("trap \"\" TERM; while :; do date +%N > {}; sleep 0.02; done", beats.display());
            let script = format!("{outer}; sh -c '{inner}' & wait");
            let options = [&["--kill-after", "300ms"], &SHORT[..]].concat();
            let running = holding(&server.url(), &options, &script).await;
            server.pause();
            let (ended, err) = running.end().await;
            assert_eq!(ended.code(), Some(75));
            assert!(err.contains("its lease ended"), "{err}");
            let last = std::fs::read_to_string(&beats).unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(std::fs::read_to_string(&beats).unwrap(), last, "nothing of it runs: {outer}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_lock_can_be_taken_away() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let mut running =
            holding(&server.url(), &["--label", "the dead", NAME], "trap 'echo told; exit 0' TERM; read line").await;
        let asked = Tool::new(&server.url(), &["force-unlock", NAME]).run().await;
        assert_eq!((asked.code, is_held(&client).await), (Some(2), true), "there is nobody to ask: {asked:?}");
        assert!(asked.err.contains("add --yes"), "{asked:?}");
        let forced = Tool::new(&server.url(), &["force-unlock", "--yes", NAME]).run().await;
        assert!(
            forced.code == Some(0) && forced.out.starts_with("orders:42 was taken away from the dead"),
            "{forced:?}"
        );
        let (ended, err) = running.end().await;
        assert!(ended.code() == Some(75) && err.contains("by force"), "{ended:?} {err}");
        let again = Tool::new(&server.url(), &["force-unlock", "--yes", "--json", NAME]).run().await;
        let outcome = &again.json("force-unlock")[0];
        assert!(outcome["was_held"] == false && outcome["holder"].is_null(), "{outcome}");

        // Another client is the holder now.
        let guard = client.lock(NAME).lock().await.unwrap();
        let token = (guard.token() - 1).to_string();
        let stale = Tool::new(&server.url(), &["force-unlock", "--yes", "--token", &token, NAME]).run().await;
        assert!(stale.code == Some(0) && stale.out.contains("nothing was changed"), "{stale:?}");
        assert!(guard.is_valid());
        guard.unlock().await.unwrap();

        // On a terminal, the command asks.
        for (answer, is_taken) in [("n\n", false), ("\n", false), ("y\n", true)] {
            running = holding(&server.url(), &[NAME], "read line").await;
            let mut asking = Tool::in_terminal(&server.url(), &["force-unlock", NAME]).start();
            asking.say(answer).await;
            let (ended, _) = asking.end().await;
            assert_eq!(ended.code(), Some(i32::from(!is_taken)), "{answer:?}");
            assert_eq!(!is_held(&client).await, is_taken, "{answer:?}");
            if !is_taken {
                running.say("go on\n").await;
            }
            running.end().await;
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn locks_are_shown_as_text_and_as_json() {
    on_a_server(async |server| {
        let client = Timing::default().builder().label("the\x1b[31m holder").connect(server.url()).await.unwrap();
        let guard = client.lock(NAME).lock().await.unwrap();
        let lock = client.lock(NAME).labelled("the waiter");
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        eventually("it waits", async || waiters(&client).await == 1).await;
        let run = async |arguments: &[&str]| {
            let ended = Tool::new(&server.url(), arguments).run().await;
            assert!(ended.code == Some(0) && ended.err.is_empty(), "{arguments:?}: {ended:?}");
            assert!(!ended.out.contains('\x1b'), "no colours without a terminal, and none of others: {ended:?}");
            ended
        };
        let token = guard.token().to_string();
        let status = run(&["status", NAME, "free"]).await.out;
        for part in [
            "orders:42\n",
            "held by     the\\u{1b}[31m holder\n",
            "lease left",
            &token,
            "1. the waiter",
            "free\n  free",
        ] {
            assert!(status.contains(part), "{part:?} in {status}");
        }
        let status = run(&["status", "--json", NAME, "free"]).await.json("status");
        assert_eq!((status.len(), &status[0]["holder"]["label"]), (2, &"the\x1b[31m holder".into()));
        assert_eq!((&status[0]["waiters"], &status[0]["queue"][0]["position"]), (&1.into(), &1.into()));
        assert!(status[1]["holder"].is_null());

        let list = run(&["list"]).await.out;
        assert!(list.starts_with("NAME") && list.lines().count() == 2 && list.contains(&token), "{list}");
        assert_eq!(run(&["list", "*:43"]).await.out, "");
        assert_eq!(run(&["list", "--names", "orders:*"]).await.out, "orders:42\n");
        assert_eq!(run(&["list", "--json"]).await.json("status")[0]["name"], NAME);

        for glob in [NAME, "orders:*"] {
            let watch = run(&["watch", "--count", "2", "--interval", "10ms", glob]).await.out;
            assert!(watch.matches("1. the waiter").count() == 2 && watch.matches("1 lock ").count() == 2, "{watch}");
        }
        let watch = run(&["watch", "--json", "-c", "1"]).await.json("watch");
        assert_eq!((watch[0]["locks"][0]["name"].as_str(), watch[0]["is_cut"].as_bool()), (Some(NAME), Some(false)));
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn colours_are_for_terminals() {
    on_a_server(async |server| {
        let status = &["status", NAME][..];
        let out = |ended: crate::support::tool::Ended| {
            assert_eq!(ended.code, Some(0), "{ended:?}");
            ended.out.contains("\x1b[1m")
        };
        assert!(!out(Tool::new(&server.url(), status).run().await));
        assert!(out(Tool::new(&server.url(), &["status", NAME, "--color", "always"]).run().await));
        assert!(out(Tool::in_terminal(&server.url(), status).run().await));
        assert!(!out(Tool::in_terminal(&server.url(), status).with_env("NO_COLOR", "1").run().await));
        let never = ["--color", "never", "status", NAME];
        assert!(!out(Tool::in_terminal(&server.url(), &never).run().await));
        // A table that refreshes starts in the upper left corner.
        let watch = ["watch", "-c", "1", NAME];
        assert!(Tool::in_terminal(&server.url(), &watch).run().await.out.contains("\x1b[H\x1b[J"));
    })
    .await;
}

/// Like `fairlock list | head -1`: it ends as if by SIGPIPE, like other commands, and reports no error.
#[tokio::test]
async fn a_closed_pipe_ends_it_quietly() {
    on_a_server(async |server| {
        let mut redis = server.connection().await;
        let mut pipe = redis::pipe();
        for number in 0..20_000 {
            let key = format!("fairlock:{{n:job:{number}}}");
            pipe.hset(&key, "c:1", 1).ignore().hset(&key, "!grant", "1 7 1 1 3000/L").ignore();
        }
        pipe.exec_async(&mut redis).await.unwrap();
        for arguments in [&["list", "--names"][..], &["list"], &["list", "--json"], &["watch", "--interval", "10ms"]] {
            let mut running = Tool::new(&server.url(), arguments).start();
            running.line().await;
            running.close_output();
            let (ended, err) = running.end().await;
            assert_eq!((ended.code(), err.as_str()), (Some(141), ""), "{arguments:?}");
        }
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap();
    })
    .await;
}

/// On a terminal the command runs in the foreground with fairlock, so it can read, and it receives Ctrl-C once.
#[tokio::test]
async fn a_command_can_use_the_terminal() {
    on_a_server(async |server| {
        let script = "n=0; trap 'n=$((n+1))' INT; echo in; read line; echo got $line; \
                      while [ $n = 0 ]; do sleep 0.02; done; sleep 0.2; echo count $n; exit 5";
        let mut running = Tool::in_terminal(&server.url(), &locked(&[NAME], &["sh", "-c", script])).start();
        assert_eq!(running.line().await.trim(), "in");
        running.say("a line\n").await;
        // The terminal echoes the input.
        while running.line().await.trim() != "got a line" {}
        running.say("\x03").await;
        assert!(running.line().await.trim().ends_with("count 1"));
        assert_eq!(running.end().await.0.code(), Some(5));
    })
    .await;
}

#[tokio::test]
async fn a_watch_survives_an_outage() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        let arguments = ["watch", "--interval", "20ms", NAME];
        let mut running = Tool::new(&proxy.url(), &arguments).start();
        while !running.line().await.starts_with("NAME") {}
        proxy.refuse(true);
        proxy.reset_all();
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.refuse(false);
        while !running.line().await.is_empty() {}
        while !running.line().await.starts_with("NAME") {}
        running.signal(Signal::SIGTERM);
        let (_, err) = running.end().await;
        assert!(err.contains("lost the connection"), "{err}");
    })
    .await;
}

#[tokio::test]
async fn it_works_on_a_cluster() {
    limit(async {
        let cluster = Cluster::start(3).await;
        let client = Timing::relaxed().connect(&cluster.url()).await;
        let mut guards = Vec::new();
        for number in 0..9 {
            guards.push(client.lock(format!("{number}")).lock().await.unwrap());
        }
        let listed = Tool::new(&cluster.url(), &["list", "--json"]).run().await;
        assert_eq!(listed.json("status").len(), 9, "{listed:?}");
        let ran = Tool::new(&cluster.url(), &locked(&["x"], &["true"])).run().await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let doctor = Tool::new(&cluster.url(), &["doctor", "--json"]).run().await;
        assert!(doctor.code == Some(0) && doctor.json("doctor")[0]["is_fit"] == true, "{doctor:?}");
    })
    .await;
}

#[tokio::test]
async fn a_bench_measures_and_leaves_nothing() {
    on_a_server(async |server| {
        let bench = Tool::new(&server.url(), &["bench", "--rounds", "20", "--json"]).run().await;
        let measured = &bench.json("bench")[0];
        assert!(measured["hand_over"]["p50_us"].as_f64() > Some(0.0), "{measured}");
        let bench = Tool::new(&server.url(), &["bench", "-r", "5"]).run().await;
        assert!(bench.out.contains("lock and unlock") && bench.out.lines().count() == 4, "{bench:?}");
    })
    .await;
}

#[tokio::test]
async fn completions_and_the_manual_page_are_made_of_the_arguments() {
    let url = "redis://127.0.0.1:1/";
    for shell in ["bash", "zsh", "fish"] {
        let ended = Tool::new(url, &["completions", shell]).run().await;
        assert!(
            ended.code == Some(0) && ended.out.contains("force-unlock") && ended.out.contains("kill-after"),
            "{shell}"
        );
    }
    let manual = Tool::new(url, &["man"]).run().await.out;
    for part in [".TH fairlock 1", "force\\-unlock", "FAIRLOCK LOCK", "\\-\\-kill\\-after", "\\-\\-orphan"] {
        assert!(manual.contains(part), "{part}: {manual}");
    }
    let help = Tool::new(url, &["lock", "--help"]).run().await;
    assert!(help.code == Some(0) && help.out.contains("Examples:") && help.out.contains("Exit codes:"), "{help:?}");
}

/// Uses every right of a user: takes, queues, hands over, loses by force, waits in vain, lists, and idles.
async fn use_all_rights(server: &Server, url: &str) -> Result<(), String> {
    let timing = Timing::default();
    let client = timing.builder().connect(url).await.map_err(|error| error.to_string())?;
    let other = timing.builder().connect(url).await.map_err(|error| error.to_string())?;
    for _ in 0..3 {
        let guard = client.lock("x").lock().await.map_err(|error| error.to_string())?;
        let (lock, late) = (other.lock("x"), other.lock("x"));
        let waiting = tokio::spawn(async move { lock.lock().await });
        let in_vain = late.lock_timeout(Duration::from_millis(50)).await;
        assert!(in_vain.is_err());
        guard.unlock().await.map_err(|error| error.to_string())?;
        waiting.await.unwrap().map_err(|error| error.to_string())?.unlock().await.map_err(|error| error.to_string())?;
    }
    let _held = client.lock("y").lock().await.map_err(|error| error.to_string())?;
    client.list("*").next().await.expect("y is held").map_err(|error| error.to_string())?;
    other.lock("y").force_unlock().await.map_err(|error| error.to_string())?;
    // The client pings a silent connection, after twice that time at the latest.
    tokio::time::sleep(2 * timing.operation_timeout + Duration::from_millis(500)).await;
    client.close().await.ok();
    other.close().await.ok();
    let denied: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::cmd("ACL").arg("LOG").query_async(&mut server.connection().await).await.unwrap();
    if denied.is_empty() { Ok(()) } else { Err(format!("denied: {denied:?}")) }
}

/// With the printed line everything works and the server denies nothing. Without any of its words the server refuses
/// something.
#[tokio::test]
async fn acl_prints_the_least_that_a_user_needs() {
    crate::support::limit_to(Duration::from_secs(240), async {
        let server = Server::start().await;
        let printed = Tool::new(&server.url(), &["acl", "--user", "worker", "--list"]).run().await;
        let line = printed.out.trim().replace(">PASSWORD", ">secret");
        let words: Vec<&str> = line.strip_prefix("ACL SETUSER worker reset ").expect("the line").split(' ').collect();
        let url = server.url_of_worker();
        set_user(&server, words.iter().copied()).await;
        use_all_rights(&server, &url).await.unwrap();
        let rights: Vec<&str> = words.iter().copied().filter(|word| word.starts_with(['+', '~', '&'])).collect();
        assert!(rights.len() > 35, "{rights:?}");
        for right in rights {
            set_user(&server, words.iter().copied().filter(|word| *word != right)).await;
            redis::cmd("ACL").arg(&["LOG", "RESET"]).exec_async(&mut server.connection().await).await.unwrap();
            let outcome = use_all_rights(&server, &url).await;
            let name = right.trim_start_matches('+').split('|').next().unwrap();
            assert!(outcome.as_ref().is_err_and(|error| error.contains(name)), "without {right}: {outcome:?}");
        }
        let json = Tool::new(&server.url(), &["acl", "--user", "worker", "--json"]).run().await.json("acl");
        assert_eq!(json[0]["rights"].as_array().unwrap().len() + 1, words.len() - 2, "+scan is for --list");
    })
    .await;
}

/// The line in docs/deploying.md, for the prefix `fairlock`, has the same rights as the output of `acl`.
#[tokio::test]
async fn the_line_of_the_readme_is_that_of_acl() {
    let sorted = |rights: &[&str]| {
        let mut rights: Vec<String> =
            rights.iter().filter(|r| r.starts_with(['+', '~', '&'])).map(ToString::to_string).collect();
        rights.sort();
        rights
    };
    let page = include_str!("../../docs/deploying.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER worker ")).expect("the line in the page");
    let printed = Tool::new("redis://127.0.0.1:1/", &["acl", "--user", "worker"]).run().await.out;
    let words = |text: &str| sorted(&text.split_whitespace().collect::<Vec<_>>());
    assert_eq!(words(line), words(&printed));
    for (option, rights) in [
        ("--another-database", &["+select"][..]),
        ("--cluster", &["+asking", "+cluster|info", "+cluster|myid", "+cluster|slots"]),
        ("--list", &["+scan"]),
    ] {
        let more = Tool::new("redis://127.0.0.1:1/", &["acl", "--user", "worker", option]).run().await.out;
        let added: Vec<_> = words(&more).into_iter().filter(|right| !words(&printed).contains(right)).collect();
        assert_eq!(added, rights);
    }
    let other = Tool::new("redis://127.0.0.1:1/", &["acl", "--user", "w", "--prefix", "jobs"]).run().await.out;
    assert!(other.contains(" ~jobs:* &jobs:wake:* "), "{other}");
}

#[tokio::test]
async fn slots_let_so_many_commands_run_at_a_time() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let gate = client.semaphore(NAME, 2);
        let mut first = holding(&server.url(), &["--slots", "2", "--label", "job 1", NAME], "read line").await;
        let mut second = holding(&server.url(), &["--slots", "2", NAME], "echo $FAIRLOCK_TOKEN; read line").await;
        let token = second.line().await;
        let (code, out, _) = ran(Tool::new(&server.url(), &locked(&["--slots", "2", "--try", NAME], &["true"]))).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "both slots are in use");
        let (code, out, _) = ran(Tool::new(&server.url(), &["status", "--exit-code", NAME])).await;
        assert_eq!(code, Some(1));
        assert!(
            out.contains("2 of 2 permits") && out.contains("job 1") && out.contains(&format!("token {token}")),
            "{out}"
        );
        let (_, out, _) = ran(Tool::new(&server.url(), &["list"])).await;
        assert!(out.contains("2 of 2 permits"), "{out}");
        // A forced unlock takes one slot by its token, and its command loses the slot.
        let (code, _, err) = ran(Tool::new(&server.url(), &["force-unlock", "--yes", NAME])).await;
        assert!(code == Some(2) && err.contains("--token"), "{err}");
        let (code, out, _) = ran(Tool::new(&server.url(), &["force-unlock", "--yes", "--token", "7", NAME])).await;
        assert!(code == Some(0) && out.contains("nothing was changed"), "{out}");
        let (code, out, _) = ran(Tool::new(&server.url(), &["force-unlock", "--yes", "--token", &token, NAME])).await;
        assert!(code == Some(0) && out.contains("was taken away"), "{out}");
        let (ended, err) = second.end().await;
        // The signal ends the command, or the end of its input does.
        assert!(ended.code() == Some(75) && err.contains("lost"), "{err}");
        eventually("a slot is free", async || gate.status().await.unwrap().used == 1).await;
        // A lock of the same name is separate: it is free, `status` shows both, and without a token the lock is
        // forced.
        let (code, ..) = ran(Tool::new(&server.url(), &locked(&["--try", NAME], &["true"]))).await;
        assert_eq!(code, Some(0));
        let guard = client.lock(NAME).lock().await.unwrap();
        let (_, out, _) = ran(Tool::new(&server.url(), &["status", NAME])).await;
        assert!(out.contains(&guard.token().to_string()) && out.contains("1 of 2 permits"), "{out}");
        let (code, out, _) = ran(Tool::new(&server.url(), &["force-unlock", "--yes", NAME])).await;
        assert!(code == Some(0) && out.contains("was taken away"), "{out}");
        assert_eq!((guard.lost().await, gate.status().await.unwrap().used), (Loss::Forced, 1));
        first.say("go on\n").await;
        assert_eq!(first.end().await.0.code(), Some(0));
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_lock_or_a_slot_stays_taken_though_the_command_has_ended() {
    on_a_server(async |server| {
        let (client, url) = (Timing::default().connect(&server.url()).await, server.url());
        let kept = ["lock", "--at-least", "20s", NAME, "--", "true"];
        assert_eq!(Tool::new(&url, &kept).run().await.code, Some(0));
        assert_eq!(Tool::new(&url, &["lock", "--try", NAME, "--", "true"]).run().await.code, Some(1));
        assert!(client.lock(NAME).force_unlock().await.unwrap());
        let slot = ["lock", "--at-least", "20s", "--slots", "1", NAME, "--", "true"];
        assert_eq!(Tool::new(&url, &slot).run().await.code, Some(0));
        let gate = client.semaphore(NAME, 1);
        let holder = gate.status().await.unwrap().holders.remove(0);
        assert!(holder.lease_left > Duration::from_secs(5), "{holder:?}");
        assert!(gate.force_unlock_token(holder.token).await.unwrap());
        // Longer than a token is remembered by default.
        assert_eq!(Tool::new(&url, &["lock", "--at-least", "25h", NAME, "--", "true"]).run().await.code, Some(0));
        assert!(client.lock(NAME).force_unlock().await.unwrap(), "it stays taken");
        // fairlock refuses before it runs the command. Handles do not exist on several masters.
        let several = format!("{url} redis://127.0.0.1:1/");
        for (url, words) in [(&several, &["20s"][..]), (&url, &["400d"]), (&url, &["20s", "--strict-restart", "10s"])] {
            let words = [&["lock", "--at-least"], words, &[NAME, "--", "echo", "ran"]].concat();
            let refused = Tool::new(url, &words).run().await;
            assert!(refused.code == Some(2) && !refused.out.contains("ran"), "{words:?}: {refused:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_number_of_slots_is_set_for_all_programs() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let gate = client.semaphore(NAME, 1);
        let one = gate.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.acquire().await }
        });
        eventually("it waits", async || gate.status().await.unwrap().waiters == 1).await;
        let (code, out, _) = ran(Tool::new(&server.url(), &["set-permits", NAME, "2"])).await;
        assert!(code == Some(0) && out.contains("2 of 2 permits, as set for all clients"), "{out}");
        let two = waiting.await.unwrap().unwrap();
        one.release().await.unwrap();
        two.release().await.unwrap();
        // Nobody holds it or waits for it, but it has a limit for all clients, so fairlock lists it.
        let (code, out, _) = ran(Tool::new(&server.url(), &["set-permits", "--json", NAME, "0"])).await;
        assert!(code == Some(0) && out.contains(r#""set_permits":0"#), "{out}");
        for (arguments, shown) in
            [(&["list"][..], "paused"), (&["list", "--names"], NAME), (&["status", NAME], "paused")]
        {
            let (_, out, _) = ran(Tool::new(&server.url(), arguments)).await;
            assert!(out.contains(shown) && !out.contains("free"), "{arguments:?}: {out}");
        }
        let (code, ..) = ran(Tool::new(&server.url(), &locked(&["--slots", "5", "--try", NAME], &["true"]))).await;
        assert_eq!(code, Some(1), "it is paused");
        let (code, ..) = ran(Tool::new(&server.url(), &["set-permits", NAME, "--unset"])).await;
        assert_eq!(code, Some(0));
        let (_, out, _) = ran(Tool::new(&server.url(), &["list", "--names"])).await;
        assert_eq!(out, "");
        for wrong in [&[NAME][..], &[NAME, "-1"], &[NAME, "4294967296"], &[NAME, "1", "--unset"]] {
            let (code, ..) = ran(Tool::new(&server.url(), &[&["set-permits"], wrong].concat())).await;
            assert_eq!(code, Some(2), "{wrong:?}");
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn shared_and_exclusive_commands_are_readers_and_writers() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let document = client.rw_lock(NAME);
        let mut readers = Vec::new();
        for _ in 0..2 {
            readers.push(holding(&server.url(), &["--shared", NAME], "read line").await);
        }
        let (code, ..) = ran(Tool::new(&server.url(), &locked(&["-x", "--try", NAME], &["true"]))).await;
        assert_eq!(code, Some(1), "two read");
        let writer = Tool::new(&server.url(), &locked(&["-x", NAME], &["sh", "-c", "echo wrote"])).start();
        eventually("it waits", async || document.status().await.unwrap().waiters == 1).await;
        let (code, ..) = ran(Tool::new(&server.url(), &locked(&["-s", "--try", NAME], &["true"]))).await;
        assert_eq!(code, Some(1), "a reader does not overtake the writer");
        let (_, out, _) = ran(Tool::new(&server.url(), &["status", NAME])).await;
        assert!(out.matches("(reads)").count() == 2 && out.matches("(writes)").count() == 1, "{out}");
        let (_, out, _) = ran(Tool::new(&server.url(), &["status", "--json", NAME])).await;
        assert!(out.contains(r#""kind":"rw_lock""#) && out.contains(r#""weight":1024"#), "{out}");
        for mut reader in readers {
            reader.say("go on\n").await;
            assert_eq!(reader.end().await.0.code(), Some(0));
        }
        let mut writer = writer;
        assert_eq!(writer.line().await, "wrote");
        assert_eq!(writer.end().await.0.code(), Some(0));
        // A nested command would wait for the outer one.
        let inner = format!("{} lock -x {NAME} -- true", crate::support::tool::path());
        let (code, _, err) = ran(Tool::new(&server.url(), &locked(&["-s", NAME], &["sh", "-c", &inner]))).await;
        assert!(code == Some(2) && err.contains("wait for itself"), "{err}");
        client.close().await.unwrap();
    })
    .await;
}

async fn ran(tool: Tool) -> (Option<i32>, String, String) {
    let ended = tool.run().await;
    (ended.code, ended.out, ended.err)
}
