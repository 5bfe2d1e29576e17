//! `fairlock doctor` on broken servers.

use serde_json::Value;

use crate::connecting::{MORE_RIGHTS, RIGHTS, set_user};
use crate::support::cluster::{Cluster, command};
use crate::support::tool::{Tool, limit, on_a_server};
use crate::support::{Proxy, Server, Timing, eventually, limit_to};

/// The report of doctor: whether the server is fit, and the findings.
struct Said {
    is_fit: bool,
    findings: Vec<Value>,
}

impl Said {
    fn texts(&self, check: &str, level: &str) -> String {
        let of = |finding: &&Value| finding["check"] == check && finding["level"] == level;
        let text = |finding: &Value| format!("{} {}", finding["text"], finding["advice"]);
        self.findings.iter().filter(of).map(text).collect::<Vec<_>>().join("\n")
    }

    /// Checks for a finding with this text in it or in its advice, and that the verdict fits the findings.
    #[track_caller]
    fn has(&self, check: &str, level: &str, part: &str) {
        let texts = self.texts(check, level);
        assert!(texts.contains(part), "no {level} {part:?} about {check}: {:?}", self.findings);
        assert_eq!(self.is_fit, !self.findings.iter().any(|finding| finding["level"] == "broken"));
    }
}

/// On a busy machine a server, or its disk, may take seconds.
const PATIENT: &[&str] = &["--timeout", "10s"];

async fn doctor(url: &str, options: &[&str]) -> Said {
    let time = if options.contains(&PATIENT[0]) { &[] } else { PATIENT };
    let ended = Tool::new(url, &[&["doctor", "--json"], time, options].concat()).run().await;
    let report = ended.json("doctor").remove(0);
    let is_fit = report["is_fit"].as_bool().unwrap();
    assert_eq!(ended.code, Some(i32::from(!is_fit)), "{ended:?}");
    Said { is_fit, findings: report["findings"].as_array().unwrap().clone() }
}

/// Checks that doctor cannot even connect, and has this finding.
async fn refused(url: &str, check: &str, part: &str) {
    refused_within("10s", url, check, part).await;
}

async fn refused_within(timeout: &str, url: &str, check: &str, part: &str) {
    let said = doctor(url, &["--timeout", timeout]).await;
    assert!(!said.is_fit, "{:?}", said.findings);
    said.has(check, "broken", part);
}

async fn configure(server: &Server, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        command(server, &["CONFIG", "SET", name, value]).await;
    }
}

#[tokio::test]
async fn a_good_server_is_fit() {
    limit(async {
        let server = Server::with(&["--appendonly", "yes"]).await;
        let said = doctor(&server.url(), &[]).await;
        assert!(said.is_fit, "{:?}", said.findings);
        for (check, part) in [
            ("connection", "connected within"),
            ("round trip", "s"),
            ("version", &server.version().await[..1]),
            ("topology", "master, 0 replicas"),
            ("eviction", "noeviction"),
            ("persistence", "appendonly"),
            ("rights", "right to SCAN"),
            ("messages", "arrives"),
            ("clock", "0.0"),
            ("lock", "taken and released"),
        ] {
            said.has(check, "good", part);
        }
        said.has("restarts", "note", "no strict_restart");
        let text = Tool::new(&server.url(), &[&["doctor"], PATIENT].concat()).run().await;
        assert!(
            text.code == Some(0) && text.out.ends_with("fit for locks\n") && !text.out.contains('\x1b'),
            "{text:?}"
        );
        server.assert_clean().await;
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_connected_to_is_told() {
    limit(async {
        let server = Server::start().await;
        let url = server.url();
        refused("redis://127.0.0.1:1/", "connection", "no server listens there").await;
        refused(&url.replace("redis://", "redis://worker:wrong@"), "connection", "FAIRLOCK_URL").await;
        refused(&Server::sentinel().await.url(), "connection", "redis-sentinel://").await;
        let replica = Server::start().await;
        replica.replicate(&server).await;
        refused(&replica.url(), "connection", "replica").await;
        let proxy = Proxy::start(&server).await;
        let version = server.redis_version().await;
        proxy.rewrite(&format!("redis_version:{version}"), &format!("redis_version:6{}", &version[1..]));
        refused(&proxy.url(), "connection", "upgrade it").await;
        let wrong = Tool::new("nonsense", &["doctor"]).run().await;
        assert_eq!(wrong.code, Some(2), "{wrong:?}");
        server.pause();
        refused_within("500ms", &url, "connection", "did not answer").await;
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn each_missing_right_is_a_finding() {
    limit(async {
        let server = Server::start().await;
        let url = server.url_of_worker();
        let all: Vec<&str> = RIGHTS.into_iter().chain(MORE_RIGHTS).collect();
        let without = async |lacks: &[&str]| {
            set_user(&server, all.iter().copied().filter(|right| !lacks.contains(right))).await;
        };
        // Redis 8 names a command only if the user has its keys.
        for lacks in [&["+hset", "+publish"][..], &["~fairlock:*"]] {
            without(lacks).await;
            for right in lacks {
                refused(&url, "rights", &format!("the user lacks {right}")).await;
            }
        }
        // These rights are optional.
        without(&["+ping"]).await;
        let said = doctor(&url, &[]).await;
        assert!(said.is_fit, "{:?}", said.findings);
        for right in ["+ping", "+scan"] {
            said.has("rights", "note", right);
        }
        without(&["+info"]).await;
        let said = doctor(&url, &[]).await;
        said.has("server", "note", "+info");
        assert!(said.is_fit);
    })
    .await;
}

#[tokio::test]
async fn eviction_and_full_memory_are_found() {
    limit(async {
        let server = Server::start().await;
        configure(&server, &[("maxmemory-policy", "allkeys-lru")]).await;
        let said = doctor(&server.url(), &[]).await;
        said.has("eviction", "warning", "without maxmemory");
        assert!(said.is_fit);
        configure(&server, &[("maxmemory", "100mb")]).await;
        let said = doctor(&server.url(), &[]).await;
        said.has("eviction", "broken", "noeviction");
        assert!(!said.is_fit);

        configure(&server, &[("maxmemory-policy", "noeviction"), ("maxmemory", "5mb")]).await;
        doctor(&server.url(), &[]).await.has("eviction", "good", "noeviction");
        server.fill().await;
        let said = doctor(&server.url(), &[]).await;
        said.has("eviction", "note", "bytes are used");
        said.has("lock", "good", "taken and released");
    })
    .await;
}

#[tokio::test]
async fn disks_and_replicas_that_fail_are_found() {
    limit(async {
        let server = Server::start().await;
        doctor(&server.url(), &[]).await.has("persistence", "warning", "appendonly yes");
        configure(&server, &[("save", "3600 1")]).await;
        server.break_snapshots().await;
        refused(&server.url(), "connection", "MISCONF").await;
        // The server takes writes, but its next restart brings old data back.
        configure(&server, &[("stop-writes-on-bgsave-error", "no")]).await;
        doctor(&server.url(), &[]).await.has("persistence", "broken", "cannot write");

        let server = Server::start().await;
        let replica = Server::start().await;
        replica.replicate(&server).await;
        doctor(&server.url(), &[]).await.has("topology", "warning", "min-replicas-to-write");
        configure(&server, &[("min-replicas-to-write", "1")]).await;
        eventually("the replica is counted", async || {
            let said = doctor(&server.url(), &["--timeout", "300ms"]).await;
            said.is_fit && said.texts("topology", "good").contains("1 replicas")
        })
        .await;
        replica.kill().await;
        eventually("it is not counted any longer", async || {
            let said = doctor(&server.url(), &["--timeout", "300ms"]).await;
            said.texts("connection", "broken").contains("min-replicas-to-write is not met")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_the_way_to_the_server_is_found() {
    on_a_server(async |server| {
        let proxy = Proxy::start(server).await;
        proxy.delay(std::time::Duration::from_millis(60));
        doctor(&proxy.url(), &[]).await.has("round trip", "warning", "many round trips");
        proxy.delay(std::time::Duration::ZERO);
        proxy.drop_pushes(true);
        doctor(&proxy.url(), &[]).await.has("messages", "warning", "proxy");
        proxy.drop_pushes(false);
        // Some weeks ahead, in each reply with a time.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (here, there) = ((now / 1_000_000).to_string(), (now / 1_000_000 + 1).to_string());
        proxy.rewrite(&here, &there);
        doctor(&proxy.url(), &[]).await.has("clock", "warning", "synchronize");
        // Keys that would live until then.
        command(server, &["FLUSHALL"]).await;
    })
    .await;
}

#[tokio::test]
async fn what_strict_restart_says_is_told() {
    limit_to(std::time::Duration::from_secs(120), async {
        let server = Server::start().await;
        let strict = ["--strict-restart", "4s"];
        // A new server may have forgotten everything.
        let said = doctor(&server.url(), &strict).await;
        said.has("restarts", "warning", "it grants no lock for");
        said.has("lock", "warning", "nothing is granted");
        assert!(said.is_fit);
        doctor(&server.url(), &[]).await.has("restarts", "warning", "other clients of this prefix use strict_restart");
        eventually("the freeze is over", async || {
            doctor(&server.url(), &strict).await.texts("restarts", "good").contains("the server grants locks")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn slots_that_no_master_serves_are_found() {
    limit(async {
        let cluster = Cluster::start(2).await;
        assert!(doctor(&cluster.url(), &[]).await.is_fit);
        refused(&cluster.masters[0].url(), "connection", "redis+cluster://").await;
        command(&cluster.masters[1], &["CLUSTER", "DELSLOTSRANGE", "16000", "16383"]).await;
        eventually("the cluster knows", async || {
            let said = doctor(&cluster.url(), &["--timeout", "300ms"]).await;
            said.texts("slots", "broken").contains("of 16384 slots are served")
        })
        .await;
    })
    .await;
}

/// Another doctor, or a person, holds the lock. This breaks no promise.
#[tokio::test]
async fn two_doctors_do_not_disturb_each_other() {
    on_a_server(async |server| {
        let client = Timing::default().connect(&server.url()).await;
        let guard = client.lock("fairlock doctor").lock().await.unwrap();
        let said = doctor(&server.url(), &[]).await;
        said.has("lock", "warning", "another doctor");
        assert!(said.is_fit);
        guard.unlock().await.unwrap();
        client.close().await.unwrap();
    })
    .await;
}
