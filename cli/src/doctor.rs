//! `fairlock doctor`: checks whether this server is fit for locks.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use fairlock::cli::{Said, ask, boot_key};
use fairlock::{ConnectError, LockClient, RequestError, Tried};
use serde::Serialize;

use super::args::{Args, Doctor};
use super::connect;
use super::exit::{self, Failure, chain};
use super::findings::{Level, Report};
use super::output::Output;
use super::render;

/// A name of its own, so that the doctor disturbs no other user.
const NAME: &str = "fairlock doctor";
/// Lets its last token expire soon.
const TOKEN_TTL: Duration = Duration::from_secs(60);
/// With longer round trips, a hand-over takes longer than people expect.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Synchronized clocks differ by less.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize)]
struct Told<'a> {
    is_fit: bool,
    #[serde(flatten)]
    report: &'a Report,
}

pub async fn run(args: &Args, doctor: &Doctor, out: &mut Output) -> Result<u8, Failure> {
    let mut report = Report::default();
    let begun = Instant::now();
    let options = connect::builder(args, None);
    let options = options.token_ttl(TOKEN_TTL.max(args.strict_restart.unwrap_or_default()));
    match options.connect_with(connect::servers(args)?).await {
        Err(error @ (ConnectError::Options(_) | ConnectError::Url(_) | ConnectError::CertificatesProvider(_))) => {
            return Err(error.into());
        }
        Err(error) => not_connected(&error, &mut report),
        Ok(client) => {
            report.good("connection", format!("connected within {}", render::duration(begun.elapsed())));
            examine(&client, args, &mut report).await;
            // A lock that the client could not release ends with its lease, and the report is complete.
            let _ = client.close().await;
        }
    }
    if doctor.json {
        out.json(&Told { is_fit: report.is_fit(), report: &report })?;
    } else {
        report.show(out)?;
    }
    Ok(if report.is_fit() { exit::OK } else { exit::FOUND })
}

fn not_connected(error: &ConnectError, report: &mut Report) {
    if let ConnectError::Rights { missing, .. } = error {
        for right in missing {
            let advice = format!("ACL SETUSER <user> {right}; `fairlock acl` prints all that a user needs");
            report.add("rights", Level::Broken, format!("the user lacks {right}"), advice);
        }
        return;
    }
    // Unwraps the error of one of several servers.
    let mut cause = error;
    while let ConnectError::Server { cause: inner, .. } | ConnectError::NoQuorum { cause: inner, .. } = cause {
        cause = inner;
    }
    let advice = match cause {
        ConnectError::Unreachable { .. } => "is it the right address, and does the server run?",
        ConnectError::Credentials(_) => "put user and password into FAIRLOCK_URL",
        ConnectError::TooOld { .. } => "scripts with flags came with Redis 7.0 and Valkey 7.2",
        ConnectError::ReadOnly => "a replica grants nothing: take redis-sentinel:// to follow the primary",
        cause if cause.may_pass() => "it is not ready yet: no lock can be taken until it is",
        _ => "no lock can be taken until this is fixed",
    };
    report.add("connection", Level::Broken, chain(error), advice);
}

async fn examine(client: &LockClient, args: &Args, report: &mut Report) {
    round_trip(client, report).await;
    for answer in ask(client, &["INFO"]).await {
        let before = report.findings.len();
        match &answer.texts {
            Ok(texts) => about_server(&Info::read(&texts.concat()), args, report),
            Err(error) => report.add(
                "server",
                Level::Note,
                format!("version, eviction and persistence are not known: {}", chain(error)),
                "give the user +info",
            ),
        }
        report.is_about(before, &answer.address);
    }
    slots(client, args, report).await;
    optional_rights(client, report).await;
    messages(client, report);
    clocks(client, report).await;
    strict_restart(client, args, report).await;
    lock_and_unlock(client, report).await;
}

async fn round_trip(client: &LockClient, report: &mut Report) {
    match client.ping().await {
        Ok(took) if took < LONG_ROUND_TRIP => report.good("round trip", format!("{took:.1?}")),
        Ok(took) => report.add(
            "round trip",
            Level::Warning,
            format!("{took:.0?}"),
            "choose leases and time-outs of many round trips; a lock and an unlock take two",
        ),
        Err(error) => report.add("round trip", Level::Broken, chain(&error), "the server does not answer in time"),
    }
}

/// The lines of INFO.
struct Info(HashMap<String, String>);

impl Info {
    fn read(text: &str) -> Self {
        let pair = |line: &str| line.trim().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self(text.lines().filter_map(pair).collect())
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

fn about_server(info: &Info, args: &Args, report: &mut Report) {
    let name = if info.text("valkey_version").is_empty() { "Redis" } else { "Valkey" };
    let version = [info.text("valkey_version"), info.text("redis_version")].into_iter().find(|text| !text.is_empty());
    report.good("version", format!("{name} {}", version.unwrap_or("of an unknown version")));
    topology(info, report);
    eviction(info, report);
    persistence(info, args, report);
}

fn topology(info: &Info, report: &mut Report) {
    let mode = [info.text("redis_mode"), info.text("server_mode")].into_iter().find(|mode| !mode.is_empty());
    let replicas = info.number("connected_slaves");
    let text = format!("{}, {}, {replicas} replicas", mode.unwrap_or("?"), info.text("role"));
    // INFO has this line only with `min-replicas-to-write`.
    if replicas > 0 && info.text("min_slaves_good_slaves").is_empty() {
        let advice = "set min-replicas-to-write 1: a primary that is cut off then stops granting locks; let the resource \
                      check tokens, since a failover forgets what was not replicated";
        report.add("topology", Level::Warning, text, advice);
    } else {
        report.good("topology", text);
    }
}

fn eviction(info: &Info, report: &mut Report) {
    let (policy, most) = (info.text("maxmemory_policy"), info.number("maxmemory"));
    let used = info.number("used_memory");
    let advice = "set maxmemory-policy noeviction: an evicted lock is held by two (P1)";
    match policy {
        "" => report.add("eviction", Level::Note, "the server does not report its policy", "it must not evict keys"),
        "noeviction" if most > 0 && used > most / 10 * 9 => {
            let text = format!("noeviction, and {used} of {most} bytes are used");
            report.add(
                "eviction",
                Level::Note,
                text,
                "when the memory is full locks go on, and other writes are refused",
            );
        }
        "noeviction" => report.good("eviction", "noeviction"),
        _ if most == 0 => {
            report.add(
                "eviction",
                Level::Warning,
                format!("{policy}, without maxmemory, so nothing is evicted"),
                advice,
            );
        }
        _ => report.add("eviction", Level::Broken, format!("{policy}: locks may be evicted"), advice),
    }
}

fn persistence(info: &Info, args: &Args, report: &mut Report) {
    if info.text("rdb_last_bgsave_status") == "err" || info.text("aof_last_write_status") == "err" {
        let advice = "see the log of the server: it may refuse all writes (MISCONF), and no lock is granted then";
        report.add("persistence", Level::Broken, "the server cannot write its data to disk", advice);
    } else if info.text("aof_enabled") == "1" {
        report.good("persistence", "appendonly: a restart remembers locks");
    } else if args.is_strict() {
        report.good("persistence", "none that locks can rely on; strict_restart waits after a restart");
    } else {
        let advice = "a restart forgets locks, and two may hold one until a lease ends: set appendonly yes, or, on one \
                      server, use strict_restart in all clients";
        report.add("persistence", Level::Warning, "no append-only file", advice);
    }
}

/// Checks the slots of a cluster.
async fn slots(client: &LockClient, args: &Args, report: &mut Report) {
    if !args.is_cluster() {
        return;
    }
    for Said { address, texts } in ask(client, &["CLUSTER", "INFO"]).await {
        let before = report.findings.len();
        let text = texts.map(|texts| texts.concat()).unwrap_or_default();
        let info = Info::read(&text);
        let served = format!("{} of 16384 slots are served", info.number("cluster_slots_ok"));
        if info.text("cluster_state") == "ok" {
            report.good("slots", served);
        } else {
            let text = format!("the cluster is {}: {served}", info.text("cluster_state"));
            report.add("slots", Level::Broken, text, "see CLUSTER SLOTS: locks of the other slots wait");
        }
        report.is_about(before, &address);
    }
}

/// Checks the optional rights of the user. Connecting has checked the rights that locks need.
async fn optional_rights(client: &LockClient, report: &mut Report) {
    let mut lacks = Vec::new();
    for (words, right, without) in [
        (&["PING"][..], "+ping", "the server's ACL LOG fills with refused PINGs"),
        (&["SCAN", "0", "COUNT", "1"], "+scan", "`list`, and `watch` with a pattern, are refused"),
    ] {
        let answers = ask(client, words).await;
        if answers.iter().any(|answer| matches!(&answer.texts, Err(RequestError::Refused(r)) if r.code == "NOPERM")) {
            lacks.push((right, without));
        }
    }
    if lacks.is_empty() {
        report.good("rights", "the user has all that locks need, and the right to SCAN");
    } else {
        report.good("rights", "the user has all that locks need");
    }
    for (right, without) in lacks {
        report.add("rights", Level::Note, format!("without {right}: {without}"), format!("ACL SETUSER <user> {right}"));
    }
}

fn messages(client: &LockClient, report: &mut Report) {
    let servers = client.state().servers;
    let deaf: Vec<_> = servers.iter().filter(|server| !server.hears_messages).collect();
    if deaf.is_empty() {
        return report.good("messages", "what is published arrives");
    }
    for server in deaf {
        let before = report.findings.len();
        let advice = "a proxy may swallow them: connect to the server itself, else each hand-over takes up to 2 s";
        report.add("messages", Level::Warning, "published messages do not arrive", advice);
        report.is_about(before, &server.address);
    }
}

/// Compares the clocks of the servers with the clock of this machine.
async fn clocks(client: &LockClient, report: &mut Report) {
    let asked = SystemTime::now();
    let mut offsets = Vec::new();
    for answer in ask(client, &["TIME"]).await {
        let Ok(texts) = &answer.texts else { continue };
        let number = |index: usize| texts.get(index).and_then(|text: &String| text.parse().ok()).unwrap_or(0);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number(0)) + Duration::from_micros(number(1));
        let ahead =
            time.duration_since(asked).map_or_else(|error| -error.duration().as_secs_f64(), |d| d.as_secs_f64());
        offsets.push(ahead);
    }
    let (least, most) = offsets.iter().fold((f64::MAX, f64::MIN), |(a, b), offset| (a.min(*offset), b.max(*offset)));
    let text = format!("{most:+.3} s from the clock of this machine");
    if offsets.is_empty() {
        report.add("clock", Level::Note, "the server's clock is unknown", "give the user +time");
    } else if most - least > CLOCKS_DIFFER.as_secs_f64() {
        let text = format!("the clocks of the masters differ by {:.3} s", most - least);
        report.add(
            "clock",
            Level::Warning,
            text,
            "synchronize them: over a failover tokens grow as far as they agree (P2)",
        );
    } else if most.abs().max(least.abs()) > CLOCKS_DIFFER.as_secs_f64() {
        report.add(
            "clock",
            Level::Warning,
            text,
            "synchronize it by slewing: a jump ends leases early or late (P1, P7)",
        );
    } else {
        report.good("clock", text);
    }
}

async fn strict_restart(client: &LockClient, args: &Args, report: &mut Report) {
    const CHECK: &str = "restarts";
    if args.is_strict() {
        return match client.lock(NAME).status().await.map(|status| status.frozen_for) {
            Ok(None) => report.good(CHECK, "strict_restart, and the server grants locks"),
            Ok(Some(left)) => {
                let text = format!("the server was restarted: it grants no lock for {}", render::duration(left));
                report.add(CHECK, Level::Warning, text, "this passes; it is what strict_restart is for");
            }
            Err(error) => {
                report.add(CHECK, Level::Broken, chain(&error), "the record of the last start cannot be read")
            }
        };
    }
    if args.is_cluster() {
        let advice = "after a restart without data two may hold a lock until its lease ends";
        return report.add(CHECK, Level::Note, "there is no strict_restart in a cluster", advice);
    }
    let key = boot_key(&args.prefix);
    let answers = ask(client, &["EXISTS", &key]).await;
    if answers.iter().any(|answer| answer.texts.as_ref().is_ok_and(|texts| texts.first().is_some_and(|n| n == "1"))) {
        let advice = "all clients have to set it, and alike: one without it takes what is frozen for the others; here it \
                      is --strict-restart";
        report.add(CHECK, Level::Warning, "other clients of this prefix use strict_restart", advice);
    } else {
        report.add(
            CHECK,
            Level::Note,
            "no strict_restart",
            "after a restart without data two may hold a lock until its lease ends",
        );
    }
}

/// Takes and releases a lock, as the proof.
async fn lock_and_unlock(client: &LockClient, report: &mut Report) {
    const CHECK: &str = "lock";
    let lock = client.lock(NAME);
    match lock.try_lock().await {
        Ok(Tried::Acquired(guard)) => match guard.unlock().await {
            Ok(_) => report.good(CHECK, "a lock was taken and released"),
            Err(error) => report.add(CHECK, Level::Broken, chain(&error), "the server does not accept releases"),
        },
        Ok(Tried::Busy(_)) => {
            let text = format!("{NAME:?} is held, or nothing is granted for a while");
            report.add(CHECK, Level::Warning, text, "another doctor may be at work: see `fairlock status`");
        }
        Err(error) => report.add(CHECK, Level::Broken, chain(&error), "no lock can be taken"),
    }
}
