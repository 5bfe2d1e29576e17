//! Whether README.md, docs/guide.md and docs/cli.md are true. Each command line on them runs here on its own server, or
//! the list below names the check that runs it. The figures of the README must be those of docs/performance.md. (The
//! Rust blocks of all pages compile as documentation tests: `src/lib.rs` includes each page.)

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::time::timeout;

use crate::support::tool::{self, limit};
use crate::support::{LONGEST_WAIT, Server};

const PAGES: [&str; 3] = ["README.md", "docs/guide.md", "docs/cli.md"];

enum Proof {
    /// Runs in a shell, in place of `{}`. The output must contain this text.
    Runs(&'static str, &'static str),
    /// Too slow here, or needs something else: this file runs it, in a line with this text.
    Elsewhere(&'static str, &'static str),
    /// No check runs it: the reason, and the file that must exist.
    Unrun(&'static str, &'static str),
}
use Proof::{Elsewhere, Runs, Unrun};

/// All command lines on the pages.
const SHOWN: [(&str, Proof); 50] = [
    ("export FAIRLOCK_URL=redis://127.0.0.1/", Runs("{}; printenv FAIRLOCK_URL", "redis://127.0.0.1/")),
    ("fairlock lock nightly -- ./report.sh", Runs("{}", "the report of nightly")),
    ("fairlock status nightly", Runs("fairlock lock nightly -- {}", "held by")),
    ("fairlock status orders:42", Runs("fairlock lock orders:42 -- {}", "lease left")),
    ("fairlock lock NAME -- CMD ARG…", Runs("{}", "ran under orders:42")),
    ("fairlock lock render --slots 5 -- ./render.sh", Runs("{}", "rendered under render")),
    ("fairlock lock render --slots 5 -- ./render 17", Runs("{}", "rendered under render")),
    ("fairlock lock NAME --slots 5 -- CMD ARG…", Runs("{}", "ran under orders:42")),
    ("fairlock lock NAME --shared -- CMD ARG…", Runs("{}", "ran under orders:42")),
    ("fairlock status NAME…", Runs("{}", "free")),
    ("fairlock list [GLOB]", Runs("fairlock lock orders:42 -- {}", "orders:42")),
    ("fairlock watch [NAME|GLOB]", Runs("fairlock lock orders:42 -- {} --count 1", "orders:42")),
    (
        "fairlock force-unlock NAME",
        Runs("HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} --yes && fairlock status orders:42", "free"),
    ),
    ("fairlock set-permits NAME 3", Runs("{} && fairlock list orders:42", "0 of 3 permits")),
    (
        "fairlock set-permits NAME --unset",
        Runs("fairlock set-permits orders:42 0 && {} && fairlock lock --try --slots 1 orders:42 -- echo open", "open"),
    ),
    ("fairlock doctor", Runs("{}", "noeviction")),
    ("fairlock acl --user USER", Runs("{}", "ACL SETUSER worker")),
    ("fairlock bench", Elsewhere("tests/it/command.rs", "a_bench_measures_and_leaves_nothing")),
    ("fairlock completions bash", Runs("{}", "complete ")),
    ("fairlock man", Runs("{}", ".TH fairlock")),
    ("fairlock lock NAME", Elsewhere("tests/it/handle_command.rs", "without_a_command_it_holds_until_a_signal_comes")),
    (
        "HANDLE=$(fairlock acquire deploy --lease 30m)",
        Runs("{} && fairlock status deploy && fairlock release \"$HANDLE\"", "held by"),
    ),
    (
        "HANDLE=$(fairlock acquire deploy --lease 30m --wait 10m)",
        Runs("{} && fairlock status deploy && fairlock release \"$HANDLE\"", "held by"),
    ),
    (
        "fairlock acquire",
        Runs(
            "HANDLE=$({} orders:42 --lease 30m) && fairlock status orders:42 && fairlock release \"$HANDLE\"",
            "held by",
        ),
    ),
    (
        "fairlock acquire NAME --lease 30m",
        Runs("HANDLE=$({}) && fairlock status orders:42 && fairlock release \"$HANDLE\"", "held by"),
    ),
    (
        "fairlock acquire NAME --lease 30m [--wait 10m]",
        Runs("HANDLE=$({}) && fairlock status orders:42 && fairlock release \"$HANDLE\"", "held by"),
    ),
    (
        "fairlock acquire NAME --slots 5 --lease 30m",
        Runs("HANDLE=$({}) && fairlock status orders:42 && fairlock release \"$HANDLE\"", "1 of 5 permits"),
    ),
    (
        "fairlock extend \"$HANDLE\" 1h",
        Runs(
            "HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock status orders:42 && fairlock release \"$HANDLE\"",
            "held by",
        ),
    ),
    (
        "fairlock extend HANDLE 1h",
        Runs(
            "HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock status orders:42 && fairlock release \"$HANDLE\"",
            "held by",
        ),
    ),
    (
        "fairlock lock --attach \"$HANDLE\" -- ./migrate.sh",
        Runs("HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock release \"$HANDLE\"", "migrated"),
    ),
    (
        "fairlock lock --attach HANDLE -- CMD ARG…",
        Runs(
            "HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock release \"$HANDLE\"",
            "ran under orders:42",
        ),
    ),
    (
        "fairlock release \"$HANDLE\"",
        Runs("HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock status orders:42", "free"),
    ),
    (
        "fairlock release HANDLE",
        Runs("HANDLE=$(fairlock acquire orders:42 --lease 30m) && {} && fairlock status orders:42", "free"),
    ),
    ("cargo install --path cli", Unrun("builds the command once more; the tests run it as built", "cli/Cargo.toml")),
    ("cargo add fairlock --git <URL of this repository>", Unrun("there is no public URL yet", "Cargo.toml")),
    ("cargo doc --open", Elsewhere("scripts/test", "step docs cargo doc")),
    ("cargo run --example job_gate --features embedded", Elsewhere("scripts/examples", "without server")),
    ("cargo run --example nested", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example lost", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example fencing", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example from_setnx", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example render_farm", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example documents", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run --example quorum", Elsewhere("scripts/examples", "for source in examples/*.rs")),
    ("cargo run -p fairlock-metrics --bin serve", Elsewhere("scripts/examples", "$built/serve")),
    (
        "scripts/job_gate",
        Unrun("builds with other features; scripts/examples runs the example on a server", "scripts/job_gate"),
    ),
    ("scripts/examples", Elsewhere("scripts/test", "step examples scripts/examples")),
    ("scripts/test", Elsewhere(".ci/run", "scripts/test")),
    ("scripts/verify", Elsewhere(".ci/run", "scripts/verify")),
    ("scripts/hunt --minutes 60", Unrun("searches for an hour", "scripts/hunt")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The lines of shell blocks, the lines after `$ ` in other blocks, and inline code that begins like a command.
fn commands_of(page: &str) -> BTreeSet<String> {
    let (mut found, mut block) = (BTreeSet::new(), None);
    for line in page.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(kind), None) => block = Some(kind),
            (Some(_), Some(_)) => block = None,
            (None, Some("sh" | "console")) => drop(found.insert(without_comment(line))),
            (None, Some(_)) => found.extend(line.strip_prefix("$ ").map(without_comment)),
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                let is_command =
                    |span: &&str| ["fairlock ", "cargo ", "scripts/"].iter().any(|it| span.starts_with(it));
                found.extend(spans.filter(is_command).map(|span| span.replace("\\|", "|")));
            }
        }
    }
    found.remove("");
    found
}

fn without_comment(line: &str) -> String {
    line.split(" #").next().unwrap().trim().to_owned()
}

#[test]
fn each_command_that_is_shown_runs_somewhere() {
    let shown: BTreeSet<String> = PAGES.iter().flat_map(|page| commands_of(&read(page))).collect();
    let known: BTreeSet<String> = SHOWN.iter().map(|(command, _)| (*command).to_owned()).collect();
    let (new, gone): (Vec<_>, Vec<_>) = (shown.difference(&known).collect(), known.difference(&shown).collect());
    assert!(new.is_empty() && gone.is_empty(), "shown, and run by nothing: {new:#?}\nno longer shown: {gone:#?}");
    for (command, proof) in &SHOWN {
        match proof {
            Runs(..) => {}
            Elsewhere(file, text) => assert!(read(file).contains(text), "{file} does not run {command}: no {text:?}"),
            Unrun(why, file) => assert!(!why.is_empty() && root().join(file).exists(), "{command}: no {file}"),
        }
        if let Some(example) = command.strip_prefix("cargo run --example ").and_then(|rest| rest.split(' ').next()) {
            assert!(read(&format!("examples/{example}.rs")).contains("It ends with: `"), "scripts/examples: {example}");
        }
    }
}

#[tokio::test]
async fn the_commands_of_the_pages_do_what_the_pages_say() {
    limit(async {
        let server = Server::start().await;
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("report.sh", "echo the report of $FAIRLOCK_NAME"),
            ("job", "echo ran under $FAIRLOCK_NAME"),
            ("migrate.sh", "echo migrated"),
            ("render.sh", "echo rendered under $FAIRLOCK_NAME"),
            ("render", "echo rendered under $FAIRLOCK_NAME"),
        ] {
            let script = dir.path().join(name);
            fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for (command, proof) in &SHOWN {
            if let Runs(line, output) = proof {
                let said = run(&line.replace("{}", &filled_in(command)), &server.url(), dir.path()).await;
                assert!(said.contains(output), "{command}: no {output:?} in {said}");
            }
        }
    })
    .await;
}

/// Replaces each word in capitals by a value.
fn filled_in(command: &str) -> String {
    let values = [
        ("NAME…", "orders:42"),
        ("[NAME|GLOB]", "orders:42"),
        ("[GLOB]", "'orders:*'"),
        ("[--wait 10m]", "--wait 10m"),
        (" HANDLE", " \"$HANDLE\""),
        ("NAME", "orders:42"),
    ];
    let jobs = [("CMD ARG…", "./job"), ("CMD", "./job"), ("USER", "worker")];
    values.iter().chain(&jobs).fold(command.to_owned(), |line, (word, value)| line.replace(word, value))
}

/// Returns the output of a command, which must succeed.
async fn run(line: &str, url: &str, dir: &Path) -> String {
    let tool = PathBuf::from(tool::path());
    let path = format!("{}:{}", tool.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", line]).current_dir(dir).env("PATH", path).env("FAIRLOCK_URL", url);
    for variable in ["FAIRLOCK_PREFIX", "FAIRLOCK_STRICT_RESTART", "FAIRLOCK_CACERT", "FAIRLOCK_OWNERS"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended =
        timeout(LONGEST_WAIT, command.output()).await.unwrap_or_else(|_| panic!("{line} does not end")).unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{line}: {said}{}", String::from_utf8_lossy(&ended.stderr));
    said
}

/// The command must have every option that docs/cli.md names.
#[tokio::test]
async fn the_options_of_the_page_are_those_of_the_command() {
    limit(async {
        let mut help = String::new();
        for subcommand in
            ["", "lock", "status", "list", "watch", "force-unlock", "set-permits", "doctor", "acl", "bench"]
        {
            help += &run(&format!("fairlock {subcommand} --help"), "redis://127.0.0.1/", Path::new("/")).await;
        }
        let known: BTreeSet<&str> = options(&help).collect();
        let page = read("docs/cli.md");
        let unknown: Vec<_> =
            page.split('`').skip(1).step_by(2).flat_map(options).filter(|it| !known.contains(it)).collect();
        // These belong to `cargo install` and `docker run`.
        assert_eq!(unknown, ["--path", "--init"], "no options of the command");
    })
    .await;
}

/// Words such as `--try`.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--"))
}

/// The numbers of a text, without their commas.
fn numbers(text: &str) -> Vec<f64> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || ",.".contains(c)));
    words.filter_map(|word| word.trim_matches([',', '.']).replace(',', "").parse().ok()).collect()
}

/// The rows of the first table with this head, each as its cells.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let lines = page.lines().skip_while(|line| !line.starts_with(head)).take_while(|line| line.starts_with('|'));
    let plain = |cell: &str| cell.trim().replace("**", "");
    let rows: Vec<Vec<_>> = lines.skip(2).map(|line| line.trim_matches('|').split('|').map(plain).collect()).collect();
    assert!(!rows.is_empty(), "there is no table {head:?}");
    rows
}

#[test]
fn the_figures_beside_other_locks_are_those_of_the_page_on_performance() {
    let (readme, performance) = (read("README.md"), read("docs/performance.md"));
    let sources = [
        "| lock and unlock, one worker |",
        "| 64 workers, a name each |",
        "| 16 workers, one name, 1 ms inside |",
        "| 16 workers, one name, 1 ms inside |",
    ];
    let shown = table(&readme, "| | pairs/s of one worker |");
    for row in &shown {
        for (cell, source) in row[1..].iter().zip(sources) {
            let rows = table(&performance, source);
            let measured = rows.iter().find(|measured| measured[0].starts_with(row[0].as_str()));
            let measured = numbers(&measured.unwrap_or_else(|| panic!("{} is not in {source}", row[0])).join(" "));
            assert!(!numbers(cell).is_empty(), "no figure for {} in {source}", row[0]);
            let wrong: Vec<_> = numbers(cell).into_iter().filter(|number| !measured.contains(number)).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?} is not in the row of {source}", row[0]);
        }
    }
    assert!(shown.len() >= 5 && shown[0].len() == 5, "{shown:?}");
}

/// Figures that are not measured, because the code sets them, and the file that explains each.
const STATED: [(&str, &str); 4] = [
    ("60 s", "docs/decisions.md"),
    ("30 s", "docs/guide.md"),
    ("100 ms", "docs/design.md"),
    ("2.9 s", "docs/deploying.md"),
];

/// The numbers before a unit, each with its unit.
fn figures(text: &str) -> BTreeSet<String> {
    let words: Vec<&str> = text.split([' ', '\n', '|', '(', ')', '*', ';', '`']).collect();
    let unit = |word: &str| word.trim_end_matches([',', '.', ':']).to_owned();
    let figure = |pair: &[&str]| {
        let (number, unit) = (pair[0].trim_start_matches('+'), unit(pair[1]));
        let is_figure = number.starts_with(|c: char| c.is_ascii_digit()) && ["s", "ms", "µs", "%"].contains(&&*unit);
        is_figure.then(|| format!("{number} {unit}"))
    };
    words.windows(2).filter_map(figure).collect()
}

#[test]
fn figures_with_a_unit_are_measured_or_stated() {
    let (readme, performance) = (read("README.md"), read("docs/performance.md"));
    // In a table of that page the unit may be in the head.
    let measured = |figure: &str| {
        let number = numbers(figure)[0];
        figures(&performance).contains(figure)
            || performance.lines().any(|line| line.starts_with("| ") && numbers(line).contains(&number))
    };
    let stated = |figure: &str| STATED.iter().any(|(known, file)| *known == figure && read(file).contains(figure));
    let untraced: Vec<_> = figures(&readme).into_iter().filter(|it| !measured(it) && !stated(it)).collect();
    assert!(untraced.is_empty(), "neither in docs/performance.md nor among those stated: {untraced:?}");
    let (_, short) = readme.split_once("In short about speed").expect("the paragraph on speed");
    let short = short.split("\n\n").next().unwrap();
    let known = numbers(&performance);
    let unknown: Vec<_> = numbers(short).into_iter().filter(|number| !known.contains(number)).collect();
    assert!(unknown.is_empty() && numbers(short).len() > 5, "not in docs/performance.md: {unknown:?}");
}
