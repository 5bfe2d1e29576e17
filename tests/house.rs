//! The house in order: layers, Lua headers, and what does not belong in the library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the layers below the public page are called. None of them may know the page.
const BELOW: [&str; 8] = ["acquire", "core", "hold", "lease", "owner", "release", "wake", "watchdog"];
const PAGE: [&str; 5] = ["client", "embedded", "guard", "lock", "options"];

/// The package `fairlock`, around this one.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn files(dir: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join(dir)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(path.to_str().unwrap(), ending));
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn stem(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// The source without its unit tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn layers_know_only_what_is_below_them() {
    for path in files("src/store", ".rs") {
        let code = code(&path);
        for above in BELOW.iter().chain(&PAGE).chain(&["error"]) {
            assert!(!code.contains(&format!("crate::{above}")), "{} knows {above}", path.display());
        }
    }
    for path in files("src", ".rs").iter().filter(|path| BELOW.contains(&stem(path))) {
        let code = code(path);
        for above in PAGE.iter().filter(|above| **above != "options") {
            assert!(!code.contains(&format!("crate::{above}")), "{} knows {above}", path.display());
        }
    }
}

#[test]
fn lease_and_owner_know_no_runtime_and_no_server() {
    for name in ["src/lease.rs", "src/owner.rs"] {
        let code = code(&Path::new(ROOT).join(name));
        for word in ["tokio", "redis", "crate::"] {
            assert!(!code.contains(word), "{name} mentions {word}");
        }
    }
}

#[test]
fn redis_is_spoken_to_in_one_room() {
    for path in files("src", ".rs").iter().filter(|path| !path.ends_with("store/redis.rs")) {
        assert!(!code(path).contains("redis::aio") && !code(path).contains("redis::cmd"), "{}", path.display());
    }
}

#[test]
fn key_names_are_made_in_one_room() {
    for path in files("src", ".rs").iter().filter(|path| !path.ends_with("store/keys.rs")) {
        for suffix in [":queue", ":deadlines", ":token\"", ":left:", ":wake:\"", "{n:"] {
            assert!(!code(path).contains(suffix), "{} makes a key with {suffix}", path.display());
        }
    }
}

#[test]
fn the_library_neither_panics_nor_shouts() {
    for path in files("src", ".rs") {
        for word in
            [".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!(", "unsafe ", "println!("]
        {
            assert!(!code(&path).contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn no_test_is_ignored() {
    let ignore = ["#[ig", "nore"].concat();
    for path in files("tests", ".rs").iter().chain(&files("src", ".rs")) {
        assert!(!fs::read_to_string(path).unwrap().contains(&ignore), "{}", path.display());
    }
}

/// A script as its header and its body.
struct Script {
    name: String,
    header: String,
    body: String,
}

fn scripts() -> Vec<Script> {
    let whole = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("#!lua flags=allow-oom"), "{}", path.display());
        let header: Vec<_> = lines.clone().take_while(|line| line.starts_with("--")).collect();
        let body: Vec<_> = lines.skip(header.len()).collect();
        Script { name: stem(path).into(), header: header.join("\n"), body: body.join("\n") }
    };
    let verbs: Vec<_> =
        files("lua", ".lua").into_iter().filter(|path| !path.to_str().unwrap().contains("/lib/")).collect();
    verbs.iter().map(whole).collect()
}

/// All numbers N of `what[N`, as in `KEYS[3]` or `ARGV[7...]`.
fn indices(text: &str, what: &str) -> BTreeSet<u32> {
    let start = format!("{what}[");
    let after = text.split(&start).skip(1);
    after.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

#[test]
fn there_is_a_script_for_each_verb_and_no_other() {
    let names: Vec<_> = scripts().into_iter().map(|script| script.name).collect();
    assert_eq!(names, ["acquire", "force_unlock", "inspect", "leave", "poll", "release", "renew"]);
}

#[test]
fn lua_headers_name_exactly_the_keys_and_arguments_that_the_body_uses() {
    for script in scripts() {
        for what in ["KEYS", "ARGV"] {
            let (named, mut used) = (indices(&script.header, what), indices(&script.body, what));
            if script.body.contains(&format!("for i = 7, #{what}")) {
                used.insert(7);
            }
            assert_eq!(named, used, "{}: {what}", script.name);
            let gapless: BTreeSet<u32> = (1..=u32::try_from(named.len()).unwrap()).collect();
            assert_eq!(named, gapless, "{}: {what} has a gap", script.name);
        }
        for part in ["Returns", "second run"] {
            assert!(script.header.contains(part), "{}: the header does not say {part:?}", script.name);
        }
    }
}

/// Every status that a body returns is in its header and known to the Rust side.
#[test]
fn lua_statuses_are_in_the_header_and_in_reply_rs() {
    let reply = code(&Path::new(ROOT).join("src/store/reply.rs"));
    for script in scripts() {
        let (_, returns) = script.header.split_once("Returns").unwrap();
        let mut found = 0;
        for lead in ["answer('", "return { '", "  '", "and '", "or '", "tell(i, '"] {
            for rest in script.body.split(lead).skip(1) {
                let status = rest.split('\'').next().unwrap();
                let is_status = !status.is_empty() && status.bytes().all(|byte| byte.is_ascii_lowercase());
                if !is_status || !rest[status.len()..].starts_with("'") {
                    continue;
                }
                found += 1;
                assert!(returns.contains(status), "{}: the header does not name {status:?}", script.name);
                assert!(reply.contains(&format!("\"{status}\"")), "{}: reply.rs does not know {status:?}", script.name);
            }
        }
        assert!(found > 0, "{}: no status found", script.name);
    }
}

#[test]
fn lua_logic_names_its_keys_and_arguments_once() {
    for script in scripts() {
        let logic = script.body.split_once("--#include base").expect("every script includes base").1;
        assert!(!logic.contains("KEYS["), "{}: KEYS[…] in the logic", script.name);
    }
    for path in files("lua/lib", ".lua") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("KEYS[") && !text.contains("ARGV["), "{}", path.display());
    }
}
