//! The command `fairlock` in odd surroundings: ignored signals, arguments that are not text, times beyond all clocks,
//! names with escape sequences, processes that nobody reaps, and the command inside itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::tool::{Tool, limit, on_a_server};
use crate::support::{Timing, eventually};

const NAME: &str = "orders:42";
const NOWHERE: &str = "redis://127.0.0.1:1/";

/// Started by a daemon that ignores SIGCHLD, fairlock returned 71, and not the code of its command like flock(1).
#[tokio::test]
async fn the_exit_code_is_known_where_the_parent_ignores_the_end_of_children() {
    on_a_server(async |server| {
        let ignoring = ["env", "--ignore-signal=CHLD"];
        for code in [0, 3] {
            let exits = format!("exit {code}");
            let words = ["lock", NAME, "--", "sh", "-c", &exits];
            let ended = Tool::behind(&ignoring, &server.url(), &words).run().await;
            assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""));
        }
        // The command runs with the default for SIGCHLD: it may wait for children of its own.
        let words = ["lock", NAME, "--", "grep", "SigIgn", "/proc/self/status"];
        let ended = Tool::behind(&ignoring, &server.url(), &words).run().await;
        let ignored = u64::from_str_radix(ended.out.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        assert_eq!(ignored & (1 << (Signal::SIGCHLD as u32 - 1)), 0, "{ended:?}");
    })
    .await;
}

#[tokio::test]
async fn an_argument_that_is_no_text_is_wrong_usage() {
    for words in
        [&[b"\xff".as_slice()][..], &[b"status", b"\xff"], &[b"lock", b"--label", b"\xff", b"x", b"--", b"true"]]
    {
        let mut tool = Tool::new(NOWHERE, &[]);
        words.iter().for_each(|word| tool.add(OsStr::from_bytes(word)));
        let ended = tool.run().await;
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    }
}

/// fairlock panicked when it lost the lock, and the command went on.
#[tokio::test]
async fn times_beyond_all_clocks_are_as_good_as_none() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let ages = "300000000000years";
        let script = "trap 'echo told; exit 0' TERM; echo in; while :; do sleep 0.02; done";
        let words = ["lock", "--kill-after", ages, "--wait", ages, NAME, "--", "sh", "-c", script];
        let mut running = Tool::new(&server.url(), &words).start();
        assert_eq!(running.line().await, "in");
        assert!(client.lock(NAME).force_unlock().await.unwrap());
        assert_eq!(running.line().await, "told");
        let (ended, err) = running.end().await;
        assert_eq!(ended.code(), Some(75), "{err}");
        assert!(!err.contains("panicked"), "{err}");
        for words in [&["--strict-restart", ages, "status", NAME][..], &["lock", "--lease", ages, NAME, "--", "true"]] {
            let ended = Tool::new(&server.url(), words).run().await;
            assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
            assert!(ended.err.contains("365 days"), "{ended:?}");
        }
        client.close().await.unwrap();
    })
    .await;
}

/// The defaults of the command follow the times that the user gives.
#[tokio::test]
async fn short_and_long_leases_need_no_other_option() {
    on_a_server(async |server| {
        for words in [
            &["lock", "--lease", "25h", NAME, "--", "true"][..],
            &["lock", "--lease", "300days", NAME, "--", "true"],
            &["lock", "--lease", "500ms", NAME, "--", "true"],
            &["--strict-restart", "2s", "status", NAME],
            &["--strict-restart", "500ms", "status", NAME],
            &["--strict-restart", "500ms", "lock", "--lease", "400ms", NAME, "--", "true"],
            &["--strict-restart", "2days", "status", NAME],
        ] {
            let ended = Tool::new(&server.url(), words).run().await;
            assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        }
    })
    .await;
}

/// Any writer of a key could move the cursor in a reader's terminal.
#[tokio::test]
async fn nothing_that_the_server_says_reaches_the_terminal_as_it_is() {
    limit(async {
        let server = crate::support::Server::start().await;
        let evil = "\u{1b}[31mEVIL\u{1b}]0;title\u{7}\u{9b}1m";
        let key = format!("fairlock:{{n:{evil}}}");
        redis::cmd("SET").arg(&[&key, "x"]).exec_async(&mut server.connection().await).await.unwrap();
        for words in [
            &["list"][..],
            &["status", evil],
            &["lock", evil, "--", "true"],
            &["force-unlock", "--yes", evil],
            &["watch", "--count", "1", "*"],
            &["--verbose", "lock", evil, "--", "true"],
        ] {
            let ended = Tool::new(&server.url(), words).run().await;
            assert!(ended.err.contains("EVIL") && ended.err.contains("\\u{1b}"), "{words:?}: {ended:?}");
            let is_bare = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
            assert!(!is_bare(&ended.err) && !is_bare(&ended.out), "{words:?}: {ended:?}");
        }
    })
    .await;
}

/// fairlock waited for ended processes that their parent did not reap, like process 1 of some containers.
#[tokio::test]
async fn what_nobody_reaps_is_not_waited_for_after_a_loss() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        // The keeper is in another group and does not reap its child, which stays in the group of the command.
        let keeper = "(sleep 0.01 & exec setsid sleep 120) >/dev/null 2>&1 & echo $!";
        let script = format!("trap 'exit 0' TERM; {keeper}; while :; do sleep 0.02; done");
        let words = ["lock", "--kill-after", "1h", NAME, "--", "sh", "-c", &script];
        let mut running = Tool::new(&server.url(), &words).start();
        let keeper = Pid::from_raw(running.line().await.parse().unwrap());
        let child = format!("/proc/{keeper}/task/{keeper}/children");
        eventually("it has a child that has ended", async || {
            let children = std::fs::read_to_string(&child).unwrap_or_default();
            let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            children.split_whitespace().any(|pid| status(pid).contains("zombie"))
        })
        .await;
        assert!(client.lock(NAME).force_unlock().await.unwrap());
        let (ended, _) = running.end().await;
        kill(keeper, Signal::SIGKILL).unwrap();
        assert_eq!(ended.code(), Some(75));
        client.close().await.unwrap();
    })
    .await;
}

/// fairlock waited forever, without a message.
#[tokio::test]
async fn a_lock_inside_itself_is_told() {
    on_a_server(async |server| {
        let url = server.url();
        let fairlock = crate::support::tool::path();
        let inside = |outer: &str, inner: &[&str]| {
            let words = [&["lock", outer, "--", &fairlock, "lock"][..], inner].concat();
            Tool::new(&url, &words)
        };
        for options in [&["a"][..], &["--wait", "1h", "a"]] {
            let ended = inside("a", &[options, &["--", "true"]].concat()).run().await;
            assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
            assert!(ended.err.contains("\"a\"") && ended.err.contains("wait for itself"), "{ended:?}");
        }
        // Even with another lock in between.
        let ended = inside("a", &["b", "--", &fairlock, "lock", "a", "--", "true"]).run().await;
        assert_eq!(ended.code, Some(2), "{ended:?}");
        // `--try` does not wait, so it just reports a busy lock.
        assert_eq!(inside("a", &["--try", "a", "--", "true"]).run().await.code, Some(1));
        // The same name under another prefix is another lock.
        let other = ["--prefix", "other", "a", "--", "echo", "in"];
        let ended = inside("a", &other).run().await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "in\n"), "{ended:?}");
    })
    .await;
}
