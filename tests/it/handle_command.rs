//! Handles in a shell: `fairlock acquire`, `extend`, `release` and `lock --attach`, as processes.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlock::LockClient;
use nix::sys::signal::Signal;

use crate::support::tool::{self, Tool, limit, on_a_server};
use crate::support::{Proxy, Server, Timing, eventually};

const NAME: &str = "deploy:7";

async fn is_held(client: &LockClient) -> bool {
    client.lock(NAME).is_locked().await.unwrap()
}

async fn lease_left(client: &LockClient) -> Duration {
    client.lock(NAME).status().await.unwrap().holder.expect("it is held").lease_left
}

async fn acquired(url: &str, options: &[&str]) -> String {
    let ended = Tool::new(url, &[&["acquire", NAME], options].concat()).run().await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    ended.out.trim_end().to_owned()
}

async fn code(url: &str, words: &[&str]) -> (Option<i32>, String) {
    let ended = Tool::new(url, words).run().await;
    assert!(ended.err.lines().count() <= 1 && ended.out.is_empty(), "{ended:?}");
    (ended.code, ended.err)
}

#[tokio::test]
async fn a_lock_is_held_over_processes_until_it_is_released() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let url = server.url();
        let handle = acquired(&url, &["--lease", "30m", "--label", "pipeline 8"]).await;
        let holder = client.lock(NAME).status().await.unwrap().holder.unwrap();
        assert_eq!(holder.label, "pipeline 8");
        assert!(holder.lease_left > Duration::from_secs(1700));
        assert_eq!(code(&url, &["acquire", NAME, "--lease", "30m", "--try"]).await.0, Some(1));
        assert_eq!(code(&url, &["acquire", NAME, "--lease", "30m", "--wait", "1s", "-E", "9"]).await.0, Some(9));
        assert_eq!(code(&url, &["extend", &handle, "2h"]).await, (Some(0), String::new()));
        assert!(lease_left(&client).await > Duration::from_secs(7000));
        assert_eq!(code(&url, &["release", &handle]).await, (Some(0), String::new()));
        assert!(!is_held(&client).await);
        for words in
            [&["release", &handle][..], &["extend", &handle, "1h"], &["lock", "--attach", &handle, "--", "true"]]
        {
            let (code, err) = code(&url, words).await;
            assert!(code == Some(75) && err.contains("holds nothing"), "{words:?}: {code:?} {err}");
        }
        client.close().await.unwrap();
    })
    .await;
}

/// One of two slots, across processes: extended, used to run a command, and released, so that the next waiter gets it.
#[tokio::test]
async fn a_slot_is_held_over_processes_until_it_is_released() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let (url, gate) = (server.url(), client.semaphore(NAME, 2));
        let handle = acquired(&url, &["--slots", "2", "--lease", "30m", "--label", "pipeline 8"]).await;
        let is_taken = ["status", "--exit-code", NAME];
        assert_eq!(Tool::new(&url, &is_taken).run().await.code, Some(0), "a slot is free");
        let other = acquired(&url, &["--slots", "2", "--lease", "30m"]).await;
        assert_eq!(Tool::new(&url, &is_taken).run().await.code, Some(1), "none is");
        assert_eq!(code(&url, &["acquire", NAME, "--slots", "2", "--lease", "30m", "--try"]).await.0, Some(1));
        assert_eq!(code(&url, &["extend", &handle, "2h"]).await, (Some(0), String::new()));
        let holder = gate.status().await.unwrap().holders.remove(0);
        assert!(holder.label == "pipeline 8" && holder.lease_left > Duration::from_secs(7000), "{holder:?}");
        let script = "echo $FAIRLOCK_NAME $FAIRLOCK_TOKEN $FAIRLOCK_OWNER";
        let ended = Tool::new(&url, &["lock", "--attach", &handle, "--", "sh", "-c", script]).run().await;
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert_eq!(ended.out.trim_end(), format!("{NAME} {} {}", holder.token, holder.owner));
        let waiting = Tool::new(&url, &["acquire", NAME, "--slots", "2", "--lease", "1m"]).start();
        eventually("it waits", async || gate.status().await.unwrap().waiters == 1).await;
        assert_eq!(code(&url, &["release", &handle]).await, (Some(0), String::new()));
        let (ended, err) = waiting.end().await;
        assert_eq!((ended.code(), err.as_str()), (Some(0), ""));
        for words in
            [&["release", &handle][..], &["extend", &handle, "1h"], &["lock", "--attach", &handle, "--", "true"]]
        {
            let (code, err) = code(&url, words).await;
            assert!(code == Some(75) && err.contains("holds nothing"), "{words:?}: {code:?} {err}");
        }
        // The library attaches it.
        let permit = client.attach_permit(&other.parse().unwrap()).await.unwrap();
        assert!(gate.force_unlock_token(gate.status().await.unwrap().holders[1].token).await.unwrap());
        permit.release().await.unwrap();
        assert_eq!(gate.status().await.unwrap().used, 0);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn json_has_the_handle_and_the_library_takes_it_up() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let ended = Tool::new(&server.url(), &["acquire", NAME, "--lease", "1m", "--json"]).run().await;
        let value = ended.json("acquired").remove(0);
        assert_eq!((value["name"].as_str(), value["lease_ms"].as_u64()), (Some(NAME), Some(60_000)));
        let handle: fairlock::HoldHandle = value["handle"].as_str().unwrap().parse().unwrap();
        let guard = client.attach(&handle).await.unwrap();
        assert_eq!(value["token"].as_u64(), Some(guard.token()));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn each_wrong_use_has_its_exit_code_in_one_line() {
    on_a_server(async |server| {
        let (url, nowhere) = (server.url(), "redis://127.0.0.1:1/".to_owned());
        let handle = acquired(&url, &["--lease", "1m"]).await;
        let cut = &handle[..handle.len() - 1];
        for (url, words, expected, said) in [
            (&url, &["release", cut][..], 2, "this is not a handle"),
            (&url, &["release", &handle.replace("fairlock1", "fairlock2")], 2, "another format"),
            (&url, &["release", &handle, "--prefix", "other"], 2, "has the prefix"),
            (&url, &["extend", &handle, "1ms"], 2, "lease"),
            (&url, &["extend", &handle, "99999d"], 2, "longer than 365 days"),
            (&url, &["acquire", "x", "--lease", "99999d"], 2, "longer than 365 days"),
            (&url, &["extend", &handle], 2, "<LEASE>"),
            (&url, &["acquire", "x"], 2, "--lease"),
            (&url, &["acquire", "x", "--lease", "0s"], 2, "lease"),
            (&url, &["lock", "--attach", &handle], 2, "CMD"),
            (&url, &["lock", "x", "--attach", &handle, "--", "true"], 2, "cannot be used with"),
            (&url, &["lock", "--attach", &handle, "--", "/there/is/no/such"], 127, "cannot run"),
            (&nowhere, &["release", &handle], 69, ""),
            (&nowhere, &["acquire", "x", "--lease", "1m"], 69, ""),
        ] {
            let (code, err) = code(url, words).await;
            assert!(code == Some(expected) && err.contains(said), "{words:?}: {code:?} {err}");
        }
        assert_eq!(code(&url, &["release", &handle]).await.0, Some(0));
    })
    .await;
}

/// Messages end up in logs. If a message shows a handle with a missing last character or an extra first one, a reader
/// who knows the format can still use the handle.
#[tokio::test]
async fn no_message_shows_a_handle_and_space_around_it_does_not_matter() {
    on_a_server(async |server| {
        let url = server.url();
        let handle = acquired(&url, &["--lease", "1m"]).await;
        let secret = handle.split('_').nth(3).unwrap();
        let (cut, before, inside) = (&handle[..handle.len() - 1], format!("x{handle}"), format!("{handle}\u{1b}[0m"));
        for words in [
            &["release", cut][..],
            &["release", &before],
            &["release", &inside],
            &["extend", cut, "1m"],
            &["extend", "1m", &handle],
            &["extend", &handle, &handle],
            &["release", &handle, &handle],
            &["release", &format!("--{handle}")],
            &["lock", "--attach", cut, "--", "true"],
            &[&handle],
        ] {
            let (code, err) = code(&url, words).await;
            assert!(code == Some(2) && !err.contains(secret), "{words:?}: {code:?} {err}");
        }
        let (_, err) = code(&url, &["lock", "--attach", cut, "--", "true"]).await;
        assert!(err.contains("--attach <HANDLE>: this is not a handle"), "{err}");
        for words in [
            &["extend", &format!("{handle} "), "1m"][..],
            &["lock", "--attach", &format!("\t{handle}"), "--", "true"],
            &["release", &format!(" {handle}\r\n")],
        ] {
            assert_eq!(code(&url, words).await, (Some(0), String::new()), "{words:?}");
        }
    })
    .await;
}

/// The command refuses impossible times, and several servers, before it waits for the lock.
#[tokio::test]
async fn what_cannot_be_a_handle_is_refused_before_the_wait() {
    on_a_server(async |server| {
        let url = server.url();
        let handle = acquired(&url, &["--lease", "1m"]).await;
        let several = "redis://127.0.0.1:1/ redis://127.0.0.1:2/ redis://127.0.0.1:3/";
        for (url, words, said) in [
            (&*url, &["acquire", NAME, "--lease", "0s"][..], "lease"),
            (&url, &["acquire", NAME, "--lease", "2m", "--strict-restart", "1m"], "--strict-restart (1m)"),
            (&url, &["extend", &handle, "2m", "--strict-restart", "1m"], "--strict-restart (1m)"),
            (several, &["acquire", NAME, "--lease", "1m"], "several masters"),
            (several, &["extend", &handle, "1m"], "several masters"),
            (several, &["release", &handle], "several masters"),
            (several, &["lock", "--attach", &handle, "--", "true"], "several masters"),
        ] {
            let (code, err) = code(url, words).await;
            assert!(code == Some(2) && err.contains(said), "{words:?}: {code:?} {err}");
        }
        assert_eq!(code(&url, &["release", &handle]).await, (Some(0), String::new()));
    })
    .await;
}

/// Like `lock --lease`: the times of a request follow a short lease, and the memory of tokens follows a long one.
#[tokio::test]
async fn a_lease_may_be_shorter_than_a_request_and_longer_than_a_day() {
    on_a_server(async |server| {
        let url = server.url();
        for lease in ["1500ms", "48h"] {
            let handle = acquired(&url, &["--lease", lease]).await;
            for words in
                [&["extend", &handle, lease][..], &["lock", "--attach", &handle, "--", "true"], &["release", &handle]]
            {
                assert_eq!(code(&url, words).await, (Some(0), String::new()), "{lease} {words:?}");
            }
        }
    })
    .await;
}

/// A command that cannot print its handle releases the lock. So does one that gets a signal while it waits.
#[tokio::test]
async fn an_acquire_that_nobody_hears_of_leaves_nothing() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let script = format!("{} acquire {NAME} --lease 30m > /dev/full", tool::path());
        let full = Tool::behind(&["sh", "-c", &script], &server.url(), &[]).run().await;
        assert_eq!(full.code, Some(71), "{full:?}");
        assert!(!is_held(&client).await);
        let guard = client.lock(NAME).lock().await.unwrap();
        let waiting = Tool::new(&server.url(), &["acquire", NAME, "--lease", "30m"]).start();
        eventually("it waits", async || client.lock(NAME).status().await.unwrap().waiters == 1).await;
        waiting.signal(Signal::SIGTERM);
        let (ended, err) = waiting.end().await;
        assert_eq!((ended.code(), err.as_str()), (Some(128 + 15), ""));
        assert_eq!(client.lock(NAME).status().await.unwrap().waiters, 0);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The output pipe is full, and nobody reads it.
#[tokio::test]
async fn a_signal_is_heard_while_nobody_reads_the_handle() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let dir = tempfile::tempdir().unwrap();
        for (words, signal, expected, logged) in [
            (&["acquire", "--lease", "30m"][..], Signal::SIGTERM, 128 + 15, "detached"),
            (&["acquire", "--lease", "30m", "--json"], Signal::SIGINT, 128 + 2, "detached"),
            (&["lock"], Signal::SIGTERM, 0, "acquired"),
        ] {
            let log = dir.path().join("log");
            // Fills the pipe.
            let script = format!("head -c 65536 /dev/zero; exec \"$@\" 2> {}", log.display());
            let words = [words, &[NAME, "--verbose"]].concat();
            let running = Tool::behind(&["sh", "-c", &script, "sh"], &server.url(), &words).start();
            // The tool logs this in the same turn in which it prints the handle.
            let log = || std::fs::read_to_string(&log).unwrap_or_default();
            eventually("it prints", async || log().contains(logged)).await;
            assert!(is_held(&client).await);
            running.signal(signal);
            let (ended, _) = running.end().await;
            assert_eq!(ended.code(), Some(expected), "{words:?}: {}", log());
            assert!(!is_held(&client).await, "{words:?}");
            std::fs::remove_file(dir.path().join("log")).unwrap();
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_command_runs_under_an_attached_handle_that_stays_usable() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let handle = acquired(&server.url(), &["--lease", "3s"]).await;
        let script = "echo $FAIRLOCK_NAME $FAIRLOCK_TOKEN $FAIRLOCK_OWNER; read line; exit 3";
        let mut running = Tool::new(&server.url(), &["lock", "--attach", &handle, "--", "sh", "-c", script]).start();
        let said = running.line().await;
        let holder = client.lock(NAME).status().await.unwrap().holder.unwrap();
        assert_eq!(said, format!("{NAME} {} {}", holder.token, holder.owner));
        // Longer than the handle's lease: the tool extends it.
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert!(is_held(&client).await);
        running.say("go on\n").await;
        let (ended, err) = running.end().await;
        assert_eq!((ended.code(), err.as_str()), (Some(3), ""));
        assert_eq!(code(&server.url(), &["release", &handle]).await.0, Some(0));
        client.close().await.unwrap();
    })
    .await;
}

/// Forced, attached elsewhere, or with a server that is silent for a lease.
#[tokio::test]
async fn a_command_ends_when_its_handle_is_lost() {
    limit(async {
        for how in ["forced", "attached", "silent"] {
            let server = Server::start().await;
            let client = Timing::default().connect(&server.url()).await;
            let handle = acquired(&server.url(), &["--lease", "3s"]).await;
            let script = "trap 'echo told; exit 0' TERM; echo in; while :; do sleep 0.02; done";
            let mut running =
                Tool::new(&server.url(), &["lock", "--attach", &handle, "--", "sh", "-c", script]).start();
            assert_eq!(running.line().await, "in");
            let mut attached = None;
            match how {
                "forced" => assert!(client.lock(NAME).force_unlock().await.unwrap()),
                "attached" => attached = Some(client.attach(&handle.parse().unwrap()).await.unwrap()),
                _ => server.pause(),
            }
            assert_eq!(running.line().await, "told", "{how}");
            let (ended, err) = running.end().await;
            assert_eq!(ended.code(), Some(75), "{how}");
            assert!(err.contains("lost the lock \"deploy:7\""), "{how}: {err}");
            server.resume();
            drop(attached);
            client.close().await.unwrap();
        }
    })
    .await;
}

/// P1: the next look at the hold would come after the end of its lease, and the network is silent until then. `lock`
/// renews a lock that it took itself, and ends its command in time as well.
#[tokio::test]
async fn p1_a_command_is_told_before_another_one_has_the_lock() {
    limit(async {
        let server = Server::start().await;
        let under = async |is_attached: bool| {
            let name = if is_attached { NAME } else { "deploy:8" };
            let client = Timing::default().connect(&server.url()).await;
            let proxy = Proxy::start(&server).await;
            let script = "trap 'echo told; exit 0' TERM; echo in; sleep 60 & wait";
            let words = if is_attached {
                let handle = acquired(&server.url(), &["--lease", "9s"]).await;
                ["lock", "--attach", &handle].map(ToOwned::to_owned).to_vec()
            } else {
                ["lock", name, "--lease", "9s"].map(ToOwned::to_owned).to_vec()
            };
            let words: Vec<_> =
                words.iter().map(String::as_str).chain(["--timeout", "9s", "--", "sh", "-c", script]).collect();
            let mut running = Tool::new(&proxy.url(), &words).start();
            assert_eq!(running.line().await, "in");
            let lock = client.lock(name);
            let mut next = Box::pin(lock.lock());
            tokio::select! {
                _ = &mut next => panic!("it is held"),
                () = eventually("it waits", async || client.lock(name).status().await.unwrap().waiters == 1) => {}
            }
            proxy.blackhole(true);
            tokio::select! {
                // Both may be ready: the next holder gets the lock only after "told", so that was in time.
                biased;
                said = running.line() => assert_eq!(said, "told"),
                _ = &mut next => panic!("two have it: {is_attached}"),
            }
            let guard = next.await.unwrap();
            proxy.blackhole(false);
            let (ended, err) = running.end().await;
            assert_eq!(ended.code(), Some(75), "{err}");
            assert!(err.contains("lost the lock"), "{err}");
            guard.unlock().await.unwrap();
            client.close().await.unwrap();
        };
        tokio::join!(under(true), under(false));
    })
    .await;
}

/// The loss and the end of the command come before the next look at the hold.
#[tokio::test]
async fn a_loss_shortly_before_the_end_of_the_command_is_reported() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let handle = acquired(&server.url(), &["--lease", "1m"]).await;
        let script = "echo in; read line; exit 0";
        let mut running = Tool::new(&server.url(), &["lock", "--attach", &handle, "--", "sh", "-c", script]).start();
        assert_eq!(running.line().await, "in");
        assert!(client.lock(NAME).force_unlock().await.unwrap());
        running.say("go on\n").await;
        let (ended, err) = running.end().await;
        assert_eq!(ended.code(), Some(75));
        assert!(err.contains("lost while the command ran"), "{err}");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn without_a_command_it_holds_until_a_signal_comes() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let mut running = Tool::new(&server.url(), &["lock", NAME]).start();
        let said = running.line().await;
        let token = client.lock(NAME).status().await.unwrap().holder.unwrap().token;
        assert_eq!(said, format!("{NAME} {token}"));
        running.signal(Signal::SIGINT);
        let (ended, err) = running.end().await;
        assert_eq!((ended.code(), err.as_str()), (Some(0), ""));
        assert!(!is_held(&client).await);
        let mut running = Tool::new(&server.url(), &["lock", NAME]).start();
        running.line().await;
        assert!(client.lock(NAME).force_unlock().await.unwrap());
        let (ended, err) = running.end().await;
        assert!(ended.code() == Some(75) && err.contains("lost the lock"), "{err}");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn status_says_by_its_exit_code_whether_one_is_held() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let words = ["status", "--exit-code", NAME, "free"];
        assert_eq!(Tool::new(&server.url(), &words).run().await.code, Some(0));
        let guard = client.lock(NAME).lock().await.unwrap();
        assert_eq!(Tool::new(&server.url(), &words).run().await.code, Some(1));
        assert_eq!(Tool::new(&server.url(), &["status", NAME]).run().await.code, Some(0));
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The command continued while the next holder had the lock.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_ends_with_a_fairlock_that_was_killed_unless_it_shall_not() {
    on_a_server(async |server| {
        let url = server.url();
        for (options, ends) in [(&[][..], true), (&["--orphan", "kill"], true), (&["--orphan", "keep"], false)] {
            let script = "echo $$; while :; do sleep 0.02; done";
            let words = [&["lock", "--lease", "2s"], options, &[NAME, "--", "sh", "-c", script]].concat();
            let mut running = Tool::new(&url, &words).start();
            let pid: i32 = running.line().await.parse().unwrap();
            running.signal(Signal::SIGKILL);
            running.end().await;
            let runs = || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                !stat.is_empty() && !stat.contains(") Z ")
            };
            if ends {
                eventually("the command has ended", async || !runs()).await;
            } else {
                assert!(runs());
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            }
        }
        let client = Timing::default().connect(&url).await;
        client.lock(NAME).lock().await.unwrap().unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}

/// The parent died between fork and exec: the command must not begin.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_whose_fairlock_is_gone_already_does_not_begin() {
    let ended = Tool::new("redis://127.0.0.1:1/", &["__command", "1", "SIGTERM", "echo", "began"]).run().await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(75), ""), "{ended:?}");
}

fn blocks(heading: &str) -> Vec<String> {
    let page = include_str!("../../docs/recipes.md");
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect("the recipe is there");
    section.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// A machine with these programs. Each program writes its name and the token into `log`.
struct Machine {
    dir: tempfile::TempDir,
    environment: BTreeMap<String, String>,
}

impl Machine {
    fn new(url: &str, programs: &[&str]) -> Self {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        for program in programs {
            let path = dir.path().join(program);
            std::fs::write(&path, format!("#!/bin/sh\necho {program} $FAIRLOCK_TOKEN >> log\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(tool::path(), dir.path().join("fairlock")).unwrap();
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let pairs = [("PATH", path.as_str()), ("FAIRLOCK_URL", url), ("STEP_OUTPUT", "outputs"), ("PIPELINE_ID", "8")];
        let environment = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { dir, environment }
    }

    async fn run(&self, script: &str) -> (Option<i32>, String) {
        let mut command = tokio::process::Command::new("sh");
        command.arg("-c").arg(script).current_dir(self.dir.path()).envs(&self.environment);
        let output = tokio::time::timeout(Duration::from_secs(30), command.output()).await.unwrap().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

#[tokio::test]
async fn the_recipe_for_a_pipeline_locks_in_its_first_step_and_unlocks_in_its_last() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let blocks = blocks("A lock over the steps of a pipeline");
        let [first, second, last] = blocks.iter().map(String::as_str).collect::<Vec<_>>()[..] else { panic!() };
        let machine = || Machine::new(&server.url(), &["migrate.sh"]);
        let (build, deploy, cleanup) = (machine(), machine(), machine());
        assert_eq!(build.run(first).await, (Some(0), String::new()));
        let outputs = std::fs::read_to_string(build.dir.path().join("outputs")).unwrap();
        let handle = outputs.trim_end().strip_prefix("LOCK=").unwrap().to_owned();
        let token = client.lock("deploy").status().await.unwrap().holder.unwrap().token;
        let on = |mut machine: Machine| {
            machine.environment.insert("LOCK".into(), handle.clone());
            machine
        };
        let deploy = on(deploy);
        assert_eq!(deploy.run(second).await, (Some(0), String::new()));
        assert_eq!(deploy.log(), format!("migrate.sh {token}\n"));
        assert!(client.lock("deploy").is_locked().await.unwrap(), "it is held between the steps");
        let cleanup = on(cleanup);
        assert_eq!(cleanup.run(last).await, (Some(0), String::new()));
        assert!(!client.lock("deploy").is_locked().await.unwrap());
        // A pipeline was aborted, and its last step comes twice.
        assert_eq!(cleanup.run(last).await.0, Some(75));
        assert_eq!(deploy.run(second).await.0, Some(75));
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_recipe_for_cron_runs_on_one_machine() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let block = blocks("A cron job on many machines").remove(0);
        let machines = [1, 2, 3].map(|_| Machine::new(&server.url(), &["report.sh"]));
        assert_eq!(machines[0].run(&block).await, (Some(0), String::new()));
        assert!(machines[0].log().starts_with("report.sh 1"));
        // The job ended at once, and the clocks of these machines are slow.
        for machine in &machines[1..] {
            assert_eq!((machine.run(&block).await, machine.log()), ((Some(0), String::new()), String::new()));
        }
        assert!(client.lock("nightly").force_unlock().await.unwrap(), "it stays taken");
        client.close().await.unwrap();
    })
    .await;
}
