//! Checks of the sources: the layers of `src/`, whether each script fits its Rust side, and forbidden code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlock_proto::command::ScriptName;

#[path = "../src/store/script.rs"]
#[allow(dead_code)]
mod script;

fn files(dir: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(dir)).unwrap() {
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

/// The root of the repository: the package `fairlock`.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn stem(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// The source up to its unit tests, without comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The Rust files of the packages `fairlock` and `fairlock-proto`.
fn library() -> Vec<PathBuf> {
    files("src", ".rs").into_iter().chain(files("proto/src", ".rs")).collect()
}

/// The files of `src/` by their paths within it.
fn sources() -> BTreeMap<String, String> {
    sources_of("src")
}

/// The files below a folder, by their paths within it.
fn sources_of(dir: &str) -> BTreeMap<String, String> {
    let root = root().join(dir);
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    files(dir, ".rs").iter().map(|path| (name(path), code(path))).collect()
}

/// The source folder of each crate: `src`, the protocol, command and emulator, and the packages in `benches` and
/// `verify`.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let packages = members.split('"').skip(1).step_by(2).map(str::to_owned);
    let checked = packages.filter(|package| {
        ["benches/", "verify/", "cli", "emulator", "proto"].iter().any(|start| package.starts_with(start))
    });
    let folder = |package: String| {
        let nested = format!("{package}/src");
        if root().join(&nested).is_dir() { nested } else { package }
    };
    ["src".to_owned()].into_iter().chain(checked.map(folder)).collect()
}

/// The module of a file, as the words of its path: `store/mod.rs` is `["store"]`.
fn module_of(file: &str) -> Vec<&str> {
    let mut words: Vec<&str> = file.strip_suffix(".rs").unwrap().split('/').collect();
    if matches!(words.last(), Some(&"mod" | &"lib" | &"main")) {
        words.pop();
    }
    words
}

/// The paths into its own crate that a file imports or names in its code: `crate::…`, `super::…`, and the names of its
/// own modules in a `mod.rs` or in `lib.rs`. Expands braces.
fn imported_paths(file: &str, code: &str, modules: &BTreeMap<Vec<&str>, &str>) -> Vec<Vec<String>> {
    let module = module_of(file);
    let absolute = |path: &str| -> Option<Vec<String>> {
        let mut words: Vec<&str> = path.split("::").collect();
        let mut base = match words.first() {
            Some(&"crate") => Vec::new(),
            Some(&"super") => module.clone(),
            Some(&"self") => module.clone(),
            Some(first) => {
                let mut child = module.clone();
                child.push(first);
                let is_folder = file.ends_with("mod.rs") || matches!(file, "lib.rs" | "main.rs");
                if !(is_folder && modules.contains_key(&child)) {
                    return None;
                }
                words.insert(0, "self");
                module.clone()
            }
            None => return None,
        };
        while words.first() == Some(&"super") {
            base.pop();
            words.remove(0);
        }
        if matches!(words.first(), Some(&"crate" | &"self")) {
            words.remove(0);
        }
        Some(base.into_iter().chain(words).map(str::to_owned).collect())
    };
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find("use ") {
        let at_line_start = rest[..start].rsplit('\n').next().unwrap();
        let statement = rest[start + 4..].split(';').next().unwrap();
        if matches!(at_line_start.trim(), "" | "pub" | "pub(crate)") {
            expand(&without_aliases(statement), "", &mut paths);
        }
        rest = &rest[start + 4..];
    }
    // Paths in the code outside `use`.
    paths.extend(full_paths(code, &["crate::", "super::"]));
    paths.iter().filter_map(|path| absolute(path)).collect()
}

/// The paths in the code that begin with one of `starts`.
fn full_paths(code: &str, starts: &[&str]) -> Vec<String> {
    let mut paths = Vec::new();
    for start in starts {
        // Skips the second word of `super::super::…`.
        for (index, _) in code.match_indices(start).filter(|(index, _)| !code[..*index].ends_with("::")) {
            let path: String =
                code[index..].chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
            paths.push(path.trim_end_matches(':').to_owned());
        }
    }
    paths
}

/// An import without white space and `as …`.
fn without_aliases(statement: &str) -> String {
    let mut words = statement.split_whitespace();
    let mut kept = String::new();
    while let Some(word) = words.next() {
        match word {
            "as" => kept.extend(words.next().unwrap().chars().filter(|c| matches!(c, ',' | '}'))),
            _ => kept.push_str(word),
        }
    }
    kept
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        paths.push(format!("{prefix}{tree}"));
        return;
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut begin) = (0, 0);
    for (index, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if index > begin {
                    expand(&group[begin..index], &format!("{prefix}{head}"), paths);
                }
                begin = index + 1;
            }
            _ => {}
        }
    }
}

/// For each file of `src/`, the files that it imports.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    imports_of(&sources())
}

/// For each of these files, the other ones that it imports.
fn imports_of(sources: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeMap<Vec<&str>, &str> = sources.keys().map(|file| (module_of(file), file.as_str())).collect();
    let target = |path: &[String]| -> Option<String> {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        // The longest prefix that is a module; an item in it follows.
        (1..=words.len()).rev().find_map(|length| modules.get(&words[..length])).map(ToString::to_string)
    };
    let of = |file: &str, code: &str| -> BTreeSet<String> {
        let found =
            imported_paths(file, code, &modules).iter().filter_map(|path| target(path)).collect::<BTreeSet<_>>();
        found.into_iter().filter(|other| other != file).collect()
    };
    sources.iter().map(|(file, code)| (file.clone(), of(file, code))).collect()
}

/// The nodes that lie on a cycle.
fn in_cycles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<&String> {
    let reaches_itself = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            for next in graph.get(node).into_iter().flatten() {
                if next == from {
                    return true;
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    };
    graph.keys().filter(|node| reaches_itself(node)).collect()
}

/// The files of `stages/` import each other, so they count as one node of the graph.
fn as_rooms(imports: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let room = |file: &str| if file.starts_with("stages/") { "stages".to_owned() } else { file.to_owned() };
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, others) in imports {
        let others = others.iter().map(|other| room(other)).filter(|other| *other != room(&file));
        rooms.entry(room(&file)).or_default().extend(others);
    }
    rooms
}

#[test]
fn no_files_import_each_other_in_a_cycle() {
    let crates = crates();
    assert!(crates.len() >= 8, "crates were not found: {crates:?}");
    for dir in crates {
        let imports = as_rooms(imports_of(&sources_of(&dir)));
        let edges: usize = imports.values().map(BTreeSet::len).sum();
        // If the parser above missed most imports, this test would pass without a check.
        let least = if dir == "src" { 2 * imports.len() } else { imports.len() / 2 };
        assert!(edges >= least, "{dir}: too few imports were found: {imports:?}");
        let cycles = in_cycles(&imports);
        assert!(cycles.is_empty(), "{dir}: these files import each other in a cycle: {cycles:?}");
    }
}

/// A layer is a folder of `src/` with everything below it. The files directly in `src/` are the public API, the top
/// layer. Only an upper layer may import a lower one.
#[test]
fn nothing_imports_from_a_layer_above() {
    let layer = |file: &str| match file.split_once('/') {
        None => "api".to_owned(),
        Some((folder, _)) => folder.to_owned(),
    };
    let mut layers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, others) in imports() {
        for other in others.iter().filter(|other| layer(other) != layer(&file)) {
            assert_ne!(layer(other), "api", "{file} imports {other} from the layer above");
            layers.entry(layer(&file)).or_default().insert(layer(other));
        }
    }
    assert_eq!(in_cycles(&layers), Vec::<&String>::new(), "layers import each other in a cycle: {layers:?}");
    assert!(layers["api"].len() >= 2 && layers.len() >= 2, "layers were not found: {layers:?}");
}

#[test]
fn the_parser_of_imports_finds_known_imports() {
    let found = |tree: &str| {
        let mut paths = Vec::new();
        expand(tree, "", &mut paths);
        paths
    };
    assert_eq!(without_aliases("crate::a::{b as c, task as other}"), "crate::a::{b,task}");
    assert_eq!(
        found("crate::a::{b,c::{d,e},self}"),
        ["crate::a::b", "crate::a::c::d", "crate::a::c::e", "crate::a::self"]
    );
    let imports = imports();
    for (file, other) in [
        ("lib.rs", "client.rs"),
        ("lock.rs", "driver/lock.rs"),
        ("quorum/lock.rs", "driver/task.rs"),
        ("driver/call.rs", "driver/client.rs"),
        ("driver/requests.rs", "store/call.rs"),
        ("store/runner.rs", "store/mod.rs"),
        ("store/node/mod.rs", "store/mod.rs"),
        ("store/embedded.rs", "store/node/wire.rs"),
    ] {
        assert!(imports[file].contains(other), "{file} imports {other}, and also {:?}", imports[file]);
    }
    let cycle =
        [("a", "b"), ("b", "c"), ("c", "b")].map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
    assert_eq!(in_cycles(&BTreeMap::from(cycle)), ["b", "c"]);
}

/// Only these files use types of the redis crate, so another kind of store would not touch the other files.
#[test]
fn only_the_node_talks_to_redis() {
    for path in files("src", ".rs") {
        let is_node = [
            "node/network.rs",
            "node/handshake.rs",
            "connection.rs",
            "dial.rs",
            "url.rs",
            "sentinel.rs",
            "cluster/watch.rs",
        ]
        .iter()
        .any(|name| path.ends_with(Path::new("store").join(name)));
        let speaks = ["redis::aio", "redis::cmd", "redis::Cmd", "MultiplexedConnection"];
        let code = code(&path);
        assert!(is_node || !speaks.iter().any(|word| code.contains(word)), "{}", path.display());
    }
}

/// The parts of the standard library that the protocol may use: no IO, clocks, threads or locks. Searches hash its
/// states.
const PURE: [&str; 15] = [
    "std::array",
    "std::borrow",
    "std::cmp",
    "std::collections",
    "std::error",
    "std::fmt",
    "std::hash",
    "std::iter",
    "std::mem",
    "std::num",
    "std::ops",
    "std::slice",
    "std::str",
    "std::sync::Arc",
    "std::time::Duration",
];

/// Cargo keeps it the lowest layer: the package depends on no other package of this repository.
#[test]
fn the_protocol_is_pure() {
    assert_eq!(dependencies_in("proto/Cargo.toml").trim(), "thiserror = \"2.0.12\"");
    let sources = sources_of("proto/src");
    assert!(sources.len() > 10, "files were not found: {:?}", sources.keys());
    for (file, code) in sources {
        // For a group, this finds the path before the braces.
        for path in full_paths(&code, &["std::", "core::", "alloc::"]) {
            let is_pure = PURE.iter().any(|pure| path == *pure || path.starts_with(&format!("{pure}::")));
            assert!(is_pure, "proto/src/{file} uses {path}");
        }
        for word in ["async ", ".await;", ".await?", ".await)", "thread_local!"] {
            assert!(!code.contains(word), "proto/src/{file} has {word}");
        }
    }
}

#[test]
fn key_names_are_made_in_one_file() {
    for path in library().iter().filter(|path| !path.ends_with("proto/src/keys.rs")) {
        for suffix in [":queue\"", ":deadlines", ":token\"", ":tombstone:", ":wake:\"", "{n:"] {
            assert!(!code(path).contains(suffix), "{} makes a key with {suffix}", path.display());
        }
    }
}

#[test]
fn neither_the_library_nor_the_command_nor_the_emulator_panics_or_prints() {
    for path in library().into_iter().chain(files("cli/src", ".rs")).chain(files("emulator/src", ".rs")) {
        for word in
            [".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!(", "unsafe ", "println!("]
        {
            assert!(!code(&path).contains(word), "{} has {word}", path.display());
        }
    }
}

/// An event of the log: level, target, text, and fields.
type Event = (String, String, String, Vec<String>);

/// The text inside the parentheses or quotes with which `text` begins.
fn enclosed(text: &str) -> &str {
    let (mut depth, mut in_quotes, mut chars) = (0, false, text.char_indices());
    while let Some((index, c)) = chars.next() {
        match c {
            '\\' if in_quotes => drop(chars.next()),
            '"' => in_quotes = !in_quotes,
            '(' | '[' | '{' if !in_quotes => depth += 1,
            ')' | ']' | '}' if !in_quotes => depth -= 1,
            _ => {}
        }
        if depth == 0 && !in_quotes {
            return &text[1..index];
        }
    }
    panic!("no end: {text}");
}

/// The arguments of a macro.
fn arguments(inside: &str) -> Vec<String> {
    let (mut depth, mut in_quotes, mut arguments, mut chars) = (0, false, vec![String::new()], inside.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => in_quotes = !in_quotes,
            '(' | '[' | '{' if !in_quotes => depth += 1,
            ')' | ']' | '}' if !in_quotes => depth -= 1,
            _ => {}
        }
        let current = arguments.last_mut().unwrap();
        match c {
            ',' if depth == 0 && !in_quotes => arguments.push(String::new()),
            '\\' if in_quotes => current.extend(['\\', chars.next().unwrap()]),
            _ => current.push(c),
        }
    }
    arguments.iter().map(|argument| argument.trim().to_owned()).filter(|argument| !argument.is_empty()).collect()
}

/// The events that the library logs.
fn events_of_the_code() -> BTreeSet<Event> {
    let mut events = BTreeSet::new();
    for (file, code) in sources() {
        for level in ["error", "warn", "info", "debug", "trace"] {
            let call = format!("tracing::{level}!(");
            for (index, _) in code.match_indices(&call) {
                let (mut target, mut text, mut fields) = (None, None, Vec::new());
                for argument in arguments(enclosed(&code[index + call.len() - 1..])) {
                    if let Some(name) = argument.strip_prefix("target: ") {
                        target = Some(name.trim_matches('"').to_owned());
                    } else if argument.starts_with("parent: ") {
                        // The event's span.
                    } else if argument.starts_with('"') {
                        let lines = argument.trim_matches('"').split("\\\n");
                        text = Some(lines.map(str::trim_start).collect::<String>());
                    } else {
                        let field = argument.split('=').next().unwrap().trim().trim_start_matches(['%', '?']);
                        fields.push(field.to_owned());
                    }
                }
                let place = || panic!("{file}: an event without a target or a text: {}", &code[index..][..80]);
                events.insert((level.to_uppercase(), target.unwrap_or_else(place), text.unwrap_or_else(place), fields));
            }
        }
    }
    assert!(events.len() > 40, "too few events were found");
    events
}

/// The cells of each row of the first table below this heading.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (_, section) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{page}: no {heading}"));
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        // The page escapes a bar inside a cell.
        let line = line.replace("\\|", "\u{1}");
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().replace('\u{1}', "|")).collect()
    };
    // Skips the header of the table and the line below it.
    lines.skip(2).map(cells).collect()
}

/// The words in backticks.
fn code_words(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

fn events_of_the_page() -> BTreeSet<Event> {
    let event = |row: Vec<String>| {
        let [level, target, text, fields, _when] = &row[..] else { panic!("five cells: {row:?}") };
        (level.clone(), target.trim_matches('`').to_owned(), text.clone(), code_words(fields))
    };
    rows("docs/operating.md", "### Events").into_iter().map(event).collect()
}

#[test]
fn the_page_for_those_on_call_names_each_event_of_the_log_and_no_other() {
    let (code, page) = (events_of_the_code(), events_of_the_page());
    let missing: Vec<_> = code.difference(&page).collect();
    let unknown: Vec<_> = page.difference(&code).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not on the page: {missing:#?}\nnot in the code: {unknown:#?}");
}

/// No test sees these events.
const UNSEEN: [&str; 3] = [
    // A bug of this library. driver/shared.rs tests the reaction.
    "a bug in fairlock",
    // No thread can start.
    "no thread for the deadlines",
    // 1025 masters. store/cluster/table.rs tests that the client does not use the last one.
    "more masters than a cluster may have",
];

/// The name of an event in tests: its text up to the first `:`, `;` or `(`.
fn short(text: &str) -> &str {
    text.split([':', ';', '(']).next().unwrap().trim_end()
}

/// Tests check for an event with `saw(level, text)` of [`Collect`](it/support/collect.rs).
#[test]
fn a_test_sees_each_event_of_the_log() {
    let tests: String = files("tests/it", ".rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for (level, _, text, _) in events_of_the_page() {
        let is_seen = tests.contains(&format!("saw(\"{level}\", \"{}\")", short(&text)));
        let is_excused = UNSEEN.contains(&short(&text));
        assert!(is_seen != is_excused, "{level} {text}: seen {is_seen}, excused {is_excused}");
    }
}

/// A number: name, kind, and the keys of its labels.
type Number = (String, String, Vec<String>);

fn numbers_of_the_page() -> BTreeSet<Number> {
    let number = |row: Vec<String>| {
        let [name, kind, labels, _what] = &row[..] else { panic!("four cells: {row:?}") };
        (name.trim_matches('`').to_owned(), kind.clone(), code_words(labels))
    };
    rows("docs/operating.md", "### What is measured").into_iter().map(number).collect()
}

/// The code has each name in quotes twice: with its kind and description, and at its look-up, with or without a label.
#[test]
fn the_page_for_those_on_call_names_each_number_and_no_other() {
    let code = code(&root().join("src/metrics/on.rs"));
    let (mut kinds, mut looked_up) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
    for line in code.lines() {
        let words: Vec<&str> = line.split('"').collect();
        let Some(name) = words.iter().find(|word| word.starts_with("fairlock_")) else { continue };
        if let Some((_, kind)) = line.split_once("(Metric::") {
            kinds.insert(name.to_string(), kind.split(',').next().unwrap().to_lowercase());
        } else {
            let label = words.iter().skip_while(|word| *word != name).nth(2).filter(|word| !word.contains(')'));
            looked_up.entry(name.to_string()).or_default().extend(label.map(ToString::to_string));
        }
    }
    assert_eq!(kinds.len(), looked_up.len(), "{kinds:?} {looked_up:?}");
    let number = |(name, labels): (String, BTreeSet<String>)| {
        let kind = kinds.get(&name).unwrap_or_else(|| panic!("{name} is not described"));
        (name, kind.clone(), labels.into_iter().collect())
    };
    assert_eq!(looked_up.into_iter().map(number).collect::<BTreeSet<Number>>(), numbers_of_the_page());
}

/// The `fairlock_…` series in a Prometheus expression. Histograms keep their suffix.
fn series_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("fairlock_")).map(ToOwned::to_owned).collect()
}

/// The series that expressions use: for a histogram, its buckets.
fn series_of(numbers: &BTreeSet<Number>) -> BTreeSet<String> {
    let series = |(name, kind, _): &Number| if kind == "histogram" { format!("{name}_bucket") } else { name.clone() };
    numbers.iter().map(series).collect()
}

/// The labels in selectors that neither the number, nor all numbers, nor Prometheus itself has.
fn unknown_labels(expression: &str, numbers: &BTreeSet<Number>) -> Vec<String> {
    let mut unknown = Vec::new();
    for (index, _) in expression.match_indices("fairlock_") {
        let name: String = expression[index..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let rest = &expression[index + name.len()..];
        let Some(selector) = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) else { continue };
        let (_, _, own) = numbers.iter().find(|(number, ..)| name.trim_end_matches("_bucket") == number).unwrap();
        let keys = selector.split(',').map(|pair| pair.split(['=', '!']).next().unwrap().trim().to_owned());
        let common = ["job", "instance", "node", "lock"];
        unknown.extend(keys.filter(|key| !common.contains(&key.as_str()) && !own.contains(key)));
    }
    unknown
}

/// Grafana can import the dashboard, and the dashboard shows each number.
#[test]
fn the_dashboard_loads_and_shows_each_number() {
    let text = fs::read_to_string(root().join("docs/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string() && dashboard["schemaVersion"].is_u64());
    assert!(dashboard.get("id").is_none_or(serde_json::Value::is_null), "an id belongs to one Grafana");
    let variables: Vec<_> = dashboard["templating"]["list"].as_array().unwrap().iter().collect();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "instance"]);
    let numbers = numbers_of_the_page();
    let (mut ids, mut places, mut shown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: two with that id");
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        assert!(x + w <= 24, "{title} is wider than the grid");
        for (column, row) in (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row))) {
            assert!(places.insert((column, row)), "{title} is over another one");
        }
        let mut letters = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert!(letters.insert(target["refId"].as_str().unwrap()), "{title}");
            assert_eq!(unknown_labels(expression, &numbers), Vec::<String>::new(), "{title}: {expression}");
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{title}: {expression}");
            shown.extend(series_in(expression));
        }
        assert!(!letters.is_empty(), "{title} asks for nothing");
    }
    assert_eq!(shown, series_of(&numbers));
}

/// In scripts/dashboard, promtool checks the syntax of the alerts and when they fire.
#[test]
fn the_alerts_ask_for_numbers_that_there_are_and_the_page_tells_of_each() {
    let rules = fs::read_to_string(root().join("docs/alerts.yml")).unwrap();
    let numbers = numbers_of_the_page();
    let code: String = rules.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    let asked = series_in(&code);
    assert!(asked.len() > 5 && asked.is_subset(&series_of(&numbers)), "{asked:?}");
    assert_eq!(unknown_labels(&code, &numbers), Vec::<String>::new());
    let alerts: BTreeSet<_> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(ToOwned::to_owned).collect();
    let told: BTreeSet<_> =
        rows("docs/operating.md", "## Alerts").iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    assert_eq!(alerts, told);
    let tests = fs::read_to_string(root().join("tests/alerts.yml")).unwrap();
    for alert in alerts {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
    }
}

/// The crates.io categories of the packages; crates.io refuses unknown ones.
const CATEGORIES: [&str; 5] =
    ["asynchronous", "command-line-utilities", "concurrency", "database", "development-tools::testing"];

#[test]
fn a_package_has_what_crates_io_shows_or_is_not_published() {
    let metadata = ["metadata", "--no-deps", "--locked", "--offline", "--format-version", "1"];
    let said = Command::new(env!("CARGO")).args(metadata).current_dir(root()).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let mut published = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap().iter().filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().unwrap();
        for key in ["description", "documentation", "edition", "license", "readme", "rust_version"] {
            assert!(package[key].as_str().is_some_and(|text| !text.is_empty()), "{name}: no {key}");
        }
        // crates.io resolves relative links of a README against this address, if it knows the host.
        assert!(package["repository"].as_str().is_some_and(|url| url.starts_with("https://github.com/")), "{name}");
        let words = |key: &str| package[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        assert!((1..=5).contains(&words("keywords").count()), "{name}: keywords");
        assert!(words("keywords").all(|word| word.len() <= 20), "{name}: keywords");
        assert!((1..=5).contains(&words("categories").count()), "{name}: categories");
        assert!(words("categories").all(|category| CATEGORIES.contains(&category)), "{name}: categories");
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let own = dependencies.filter(|it| it["path"].is_string()).map(|it| it["name"].as_str().unwrap().to_owned());
        published.insert((name, own.collect::<BTreeSet<_>>()));
    }
    for outside in ["benches/peers/Cargo.toml", "benches/peers/rust/Cargo.toml"] {
        assert!(fs::read_to_string(root().join(outside)).unwrap().contains("\npublish = false\n"), "{outside}");
    }
    let script = fs::read_to_string(root().join("scripts/package")).unwrap();
    let list = script.lines().find_map(|line| line.strip_prefix("packages=(")?.strip_suffix(')')).unwrap();
    let order: Vec<&str> = list.split(' ').collect();
    let listed: BTreeSet<&str> = order.iter().copied().collect();
    assert_eq!(published.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), listed, "scripts/package");
    for (name, own) in published {
        let before: Vec<&str> = order.iter().copied().take_while(|earlier| *earlier != name).collect();
        assert!(own.iter().all(|it| before.contains(&it.as_str())), "scripts/package: {name} comes before {own:?}");
    }
}

/// What a comment cites must lead to one text: P1 to the README, R1, Q1 and L1 to the design, decision 84 to the decisions.
#[test]
fn each_number_that_a_comment_cites_is_defined_once() {
    let mut defined = BTreeSet::new();
    for (page, before, after) in
        [("README.md", "- **", "** "), ("docs/design.md", "- **", ". "), ("docs/decisions.md", "", ". **")]
    {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let entries = text.lines().filter_map(|line| Some(line.strip_prefix(before)?.split_once(after)?.0));
        for number in entries.filter(|entry| is_cited_number(entry)) {
            assert!(defined.insert(number.to_owned()), "{page} defines {number} twice");
        }
    }
    assert!(defined.len() > 90, "the definitions were not found");
    let cited: Vec<_> = cited_texts().iter().flat_map(|(path, text)| citations(path, text)).collect();
    assert!(cited.len() > 500, "the citations were not found");
    for (path, number) in cited {
        assert!(defined.contains(&number), "{path}: {number} is not defined");
    }
}

/// `84`, `P1`, `R16`.
fn is_cited_number(word: &str) -> bool {
    let digits = word.strip_prefix(|letter: char| letter.is_ascii_uppercase()).unwrap_or(word);
    matches!(digits.len(), 1 | 2) && digits.chars().all(|digit| digit.is_ascii_digit())
}

/// The comments of all sources, and the pages.
fn cited_texts() -> Vec<(String, String)> {
    let sources = ["src", "proto", "cli", "emulator", "lua", "verify", "tests", "benches", "examples", "scripts"];
    let code = sources.iter().flat_map(|folder| files(folder, ""));
    let comment = |line: &&str| ["//", "--", "# "].iter().any(|start| line.trim_start().starts_with(start));
    let comments = code.filter_map(|path| {
        let text = fs::read_to_string(&path).ok()?;
        Some((path.display().to_string(), text.lines().filter(comment).collect::<Vec<_>>().join("\n")))
    });
    let pages = files("docs", ".md").into_iter();
    let whole = pages.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()));
    comments.chain(whole).collect()
}

/// Each `P1` of a text, and each number after "decision" or "decisions".
fn citations(path: &str, text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split(|it: char| !it.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    let mut after_decision = false;
    for word in words {
        let is_number = is_cited_number(word);
        let is_letter = word.starts_with(|letter: char| letter.is_ascii_uppercase());
        if is_number && (is_letter || after_decision) {
            found.push((path.to_owned(), word.to_owned()));
        }
        after_decision = matches!(word.to_lowercase().as_str(), "decision" | "decisions")
            || after_decision && (is_number && !is_letter || word == "and");
    }
    found
}

/// `scripts/package --lowest` builds with these.
#[test]
fn the_lowest_versions_are_those_of_the_manifest() {
    let lock = fs::read_to_string(root().join("verify/lowest.lock")).unwrap();
    let dependencies: String = ["Cargo.toml", "cli/Cargo.toml", "proto/Cargo.toml"].map(dependencies_in).concat();
    let mut count = 0;
    for line in dependencies.lines().filter(|line| !line.starts_with('#') && line.contains(" = ")) {
        let (name, value) = line.split_once(" = ").unwrap();
        let after = |key: &str| value.split_once(key).and_then(|(_, rest)| rest.split('"').nth(1));
        let name = after("package = ").unwrap_or(name);
        let version = after("version = ").or_else(|| value.split('"').nth(1)).unwrap().trim_start_matches('=');
        let whole = format!("{version}{}", ".0".repeat(2 - version.matches('.').count()));
        let locked = format!("name = \"{name}\"\nversion = \"{whole}\"\n");
        assert!(
            lock.contains(&locked),
            "{name} {version}: scripts/package --choose-lowest makes verify/lowest.lock anew"
        );
        count += 1;
    }
    assert!(count > 20, "dependencies were not found");
}

/// The `[dependencies]` section of a manifest.
fn dependencies_in(manifest: &str) -> String {
    let manifest = fs::read_to_string(root().join(manifest)).unwrap();
    let (_, from_dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    from_dependencies.split("\n[").next().unwrap().to_owned()
}

#[test]
fn no_test_is_ignored() {
    // Split in two, so that this line does not match itself.
    let ignore = ["#[ig", "nore"].concat();
    for path in files("tests", ".rs").iter().chain(&library()).chain(&files("cli/src", ".rs")) {
        assert!(!fs::read_to_string(path).unwrap().contains(&ignore), "{}", path.display());
    }
}

/// A script, split into header and body.
struct Script {
    name: String,
    header: String,
    body: String,
}

/// The path of a script within `lua`: `acquire`, `shared/acquire`, `lib/advance`, `shared/lib/advance`.
fn lua_name(path: &Path) -> String {
    let within = path.strip_prefix(root().join("lua")).unwrap().with_extension("");
    within.to_str().unwrap().to_owned()
}

fn is_shared(name: &str) -> bool {
    name.starts_with("shared/")
}

fn scripts() -> Vec<Script> {
    let whole = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        // With `no-writes`, a server that takes no writes still runs a script that only reads.
        let flags = if stem(path) == "inspect" { "no-writes" } else { "allow-oom" };
        assert_eq!(lines.next(), Some(&*format!("#!lua flags={flags}")), "{}", path.display());
        let header: Vec<_> = lines.clone().take_while(|line| line.starts_with("--")).collect();
        let body: Vec<_> = lines.skip(header.len()).collect();
        Script { name: lua_name(path), header: header.join("\n"), body: body.join("\n") }
    };
    let verbs: Vec<_> =
        files("lua", ".lua").into_iter().filter(|path| !path.to_str().unwrap().contains("/lib/")).collect();
    verbs.iter().map(whole).collect()
}

#[test]
fn there_is_a_script_for_each_verb_and_no_other() {
    let names: Vec<_> = scripts().into_iter().map(|script| script.name).collect();
    let of_locks = ["acquire", "boot", "force_unlock", "give", "inspect", "leave", "poll", "raise", "release", "renew"];
    let shared = ["acquire", "force_unlock", "give", "inspect", "leave", "poll", "release", "renew", "set_limit"];
    let shared = shared.iter().map(|name| format!("shared/{name}"));
    assert_eq!(names, of_locks.iter().map(ToString::to_string).chain(shared).collect::<Vec<_>>());
}

/// The first two lines of a script name its KEYS and ARGV, with the header's names in the header's order. `names...`
/// in a header means all further ones, which have no names.
#[test]
fn lua_scripts_name_their_keys_and_arguments_at_once_and_as_in_the_header() {
    for script in scripts() {
        let mut lines = script.body.lines();
        for what in ["KEYS", "ARGV"] {
            let line = lines.next().unwrap();
            let names = line.strip_prefix("local ").and_then(|line| line.strip_suffix(&format!(" = unpack({what})")));
            let mut unpacked: Vec<_> = names.unwrap_or_else(|| panic!("{}: {line}", script.name)).split(", ").collect();
            let start = format!("-- {what}[");
            let header: Vec<_> = script.header.lines().filter_map(|line| line.strip_prefix(&start)).collect();
            for (index, line) in header.iter().enumerate() {
                let number = line.split([']', '.']).next().unwrap();
                assert_eq!(number, (index + 1).to_string(), "{}: {what} in the header", script.name);
            }
            if header.last().unwrap().contains("...]") {
                assert!(script.body.contains(&format!("unpack({what}, {})", header.len())), "{}: {what}", script.name);
                unpacked.push(header.last().unwrap().split_whitespace().nth(1).unwrap());
            }
            assert_eq!(header_names(&script.header, what), unpacked, "{}: {what}", script.name);
        }
        let others = lines.filter(|line| line.contains("KEYS")).count();
        assert_eq!(others, 0, "{}: KEYS after its first line", script.name);
        for part in ["Returns", "second run"] {
            assert!(script.header.contains(part), "{}: the header does not say {part:?}", script.name);
        }
    }
    for (name, text) in parts() {
        assert!(!text.contains("KEYS[") && !text.contains("ARGV["), "{name}");
    }
}

/// The Rust code that sends a script.
fn verb(script: &str) -> String {
    code(&root().join("proto/src/requests").join(script.trim_start_matches("shared/")).with_extension("rs"))
}

/// The names in `KEYS[n] name` or `ARGV[n] name` of a header, in order.
fn header_names(header: &str, what: &str) -> Vec<String> {
    let start = format!("-- {what}[");
    let lines = header.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(|line| line.split_whitespace().nth(1).expect("a name").trim_end_matches("...").to_owned()).collect()
}

/// The names that the Rust side gives its keys or arguments, in order: `key("name", …)`, `arg("name", …)`.
fn sent_names(code: &str, what: &str) -> Vec<String> {
    let start = format!("{what}(\"");
    let calls = code
        .match_indices(&start)
        .filter(|(index, _)| !code[..*index].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
    calls.map(|(index, _)| code[index + start.len()..].split('"').next().unwrap().to_owned()).collect()
}

#[test]
fn rust_sends_keys_and_arguments_in_the_order_of_the_header() {
    for script in scripts() {
        let verb = verb(&script.name);
        // Only the scripts for shared names get these, see `ClientArgs::queue_keys`.
        let is_sent = |name: &String| is_shared(&script.name) || *name != "limit" && *name != "kind";
        let mut keys = sent_names(&verb, "key");
        if verb.contains("queue_keys(") {
            assert!(keys.is_empty(), "{}: other keys", script.name);
            keys = sent_names(&code(&root().join("proto/src/requests/mod.rs")), "key");
        }
        let has_tombstone = !verb.contains("queue_keys(&self.keys, None)");
        keys.retain(|name| is_sent(name) && (has_tombstone || name != "tombstone"));
        assert_eq!(keys, header_names(&script.header, "KEYS"), "{}: KEYS", script.name);
        let mut args: Vec<_> = sent_names(&verb, "arg").into_iter().filter(is_sent).collect();
        // The connection adds the first argument.
        args.insert(0, "request".into());
        assert_eq!(args, header_names(&script.header, "ARGV"), "{}: ARGV", script.name);
    }
}

/// Each script has one Rust file that sends it, and each file has a script, or one script of each kind.
#[test]
fn there_is_a_verb_for_each_script() {
    let verbs: BTreeSet<_> = files("proto/src/requests", ".rs").iter().map(|path| stem(path).to_owned()).collect();
    let scripts: BTreeSet<_> = scripts().into_iter().map(|script| script.name).collect();
    let names = scripts.iter().map(|name| name.trim_start_matches("shared/").to_owned());
    assert_eq!(verbs, names.chain(["mod".into()]).collect());
    let names: BTreeSet<_> = ScriptName::ALL.iter().map(|name| name.name().to_owned()).collect();
    assert_eq!(names, scripts);
    let (texts, sources) = (code(&root().join("src/store/script.rs")), sources_of("proto/src/requests"));
    for name in ScriptName::ALL {
        assert_eq!(script::of(name).name, name, "the order of SCRIPTS in script.rs");
        let (file, sent) = (name.name(), format!("ScriptName::{name:?}"));
        assert!(texts.contains(&format!("({sent}, include_str!(\"../../lua/{file}.lua\"))")), "{file}");
        for (source, code) in &sources {
            let is_its_own = source.trim_end_matches(".rs") == file.trim_start_matches("shared/");
            let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != ':');
            assert_eq!(words.filter(|word| *word == sent).count(), usize::from(is_its_own), "{file} in {source}");
        }
    }
}

#[test]
fn servers_get_each_line_of_a_script_but_no_comments() {
    let text = script::text("#!lua flags=x\n-- why\n\nif a then\n  b() -- because\nend\n", false);
    assert_eq!(text, "#!lua flags=x\nif a then\nb() -- because\nend\n");
    for script in &script::SCRIPTS {
        assert!(script.text().starts_with("#!lua flags="), "{:?}", script.name);
        assert!(script.text().lines().all(|line| !line.starts_with([' ', '-'])), "{:?}", script.name);
    }
}

/// The lowercase words in quotes, each with the code before it. A space may follow the word.
fn quoted_words(code: &str, quote: char) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = code[from..].find(quote).map(|index| from + index) {
        let Some(end) = code[start + 1..].find(quote).map(|index| start + 1 + index) else { break };
        let word = &code[start + 1..end];
        let word = word.strip_suffix(' ').unwrap_or(word);
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()) {
            found.push((&code[..start], word));
        }
        from = end + 1;
    }
    found
}

/// Each reply begins with a status. The script, its header and the Rust side know the same statuses.
#[test]
fn lua_statuses_are_those_of_the_header_and_of_the_verb() {
    let assembled: BTreeMap<_, _> = assembled().into_iter().collect();
    let mut of_verbs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for script in scripts() {
        // With the included parts: some of them reply too.
        let code: Vec<_> = assembled[&script.name].lines().map(|line| line.split("--").next().unwrap()).collect();
        let code = code.join("\n");
        // Code that can precede a status: a `return`, alone or with a choice between two, or the start of a list.
        let leads = [
            "return ",
            "return (ours and ",
            "return (was_held and ",
            "return (owner and ",
            "return (current and ",
            " or ",
            "{ ",
        ];
        let replies = quoted_words(&code, '\'');
        let found: BTreeSet<_> = replies
            .into_iter()
            .filter(|(before, _)| leads.iter().any(|lead| before.ends_with(lead)))
            .map(|(_, status)| status)
            .collect();
        assert!(!found.is_empty(), "{}: no status found", script.name);
        let (_, returns) = script.header.split_once("Returns").unwrap();
        for status in &found {
            let is_named = returns.split(|c: char| !c.is_ascii_lowercase()).any(|word| word == *status);
            assert!(is_named, "{}: the header does not name {status:?}", script.name);
        }
        let name = script.name.trim_start_matches("shared/").to_owned();
        of_verbs.entry(name).or_default().extend(found.into_iter().map(str::to_owned));
    }
    for (name, found) in of_verbs {
        let verb = verb(&name);
        let (_, decode) = verb.split_once("fn decode(").unwrap();
        let known: BTreeSet<_> = quoted_words(decode, '"').into_iter().map(|(_, status)| status.to_owned()).collect();
        assert_eq!(found, known, "{name}: in Lua and in Rust");
    }
}

/// The name of the part that a line includes.
fn include(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("--#include ")
}

/// The files of `lua/lib` and `lua/shared/lib`: name and text.
fn parts() -> Vec<(String, String)> {
    let read = |path: PathBuf| (lua_name(&path), fs::read_to_string(&path).unwrap());
    ["lua/lib", "lua/shared/lib"].into_iter().flat_map(|folder| files(folder, ".lua")).map(read).collect()
}

fn is_part(name: &str) -> bool {
    name.contains("lib/")
}

/// Each script and each part, with its includes filled in by `script.rs`. A part includes everything that it needs.
fn assembled() -> Vec<(String, String)> {
    let assemble = |path: PathBuf| {
        let (name, text) = (lua_name(&path), fs::read_to_string(&path).unwrap());
        let whole = script::assemble(&text, is_shared(&name));
        (name, whole)
    };
    files("lua", ".lua").into_iter().map(assemble).collect()
}

/// The name of the part that a line pastes.
fn paste(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("--#paste ")
}

/// The lines of a part up to its first `--#paste`, without its includes: they appear unchanged in a script.
fn own_lines(part: &str) -> Vec<&str> {
    part.lines().filter(|line| include(line).is_none()).take_while(|line| paste(line).is_none()).collect()
}

#[test]
fn lua_includes_name_parts_that_exist() {
    for (name, text) in assembled() {
        let unknown: Vec<_> = text.lines().filter(|line| line.contains("--#")).collect();
        assert!(unknown.is_empty(), "{name} includes parts that script.rs does not know: {unknown:?}");
    }
    assert_eq!(script::assemble("a\n  --#include nothing\nb\n", false), "a\n  --#include nothing\nb\n");
}

#[test]
fn each_lua_part_is_in_a_script_and_at_most_once_unless_it_is_pasted() {
    let parts = parts();
    let texts: Vec<_> = files("lua", ".lua").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let pasted: BTreeSet<_> = texts.iter().flat_map(|text| text.lines().filter_map(paste)).collect();
    for (part, text) in &parts {
        let is_pasted = pasted.contains(part.rsplit('/').next().unwrap());
        assert!(!is_pasted || !text.contains("local function") && !text.contains("--#include"), "{part} is pasted");
        let definition = own_lines(text).join("\n");
        let mut scripts = 0;
        for (name, whole) in assembled() {
            let times = whole.matches(&definition).count();
            assert!(times <= 1 || is_pasted, "{name} has {part} {times} times");
            scripts += usize::from(times > 0 && !is_part(&name));
        }
        assert!(scripts > 0, "no script includes {part}");
    }
    for (name, whole) in assembled() {
        let mut functions: Vec<_> = whole.lines().filter(|line| line.contains("local function ")).collect();
        let all = functions.len();
        functions.sort_unstable();
        functions.dedup();
        assert_eq!(functions.len(), all, "{name} defines a function twice: {functions:?}");
    }
    let twice = script::assemble("--#include place\n--#include base\n--#include place\n", false);
    assert_eq!(twice, script::assemble("--#include place\n", false));
}

/// The names of a Lua text, and the signs that matter for their scope; no comments and no strings.
fn tokens(lua: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), lua);
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '#' if rest.starts_with("#!") => rest.find('\n').unwrap_or(rest.len()),
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '\'' => {
                let mut end = 1;
                while !rest[end..].starts_with('\'') {
                    end += if rest[end..].starts_with('\\') { 2 } else { 1 };
                }
                end + 1
            }
            '_' | 'a'..='z' | 'A'..='Z' | '0'..='9' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            _ => ["..", "==", "~=", "<=", ">="]
                .iter()
                .find(|sign| rest.starts_with(**sign))
                .map_or(c.len_utf8(), |s| s.len()),
        };
        let (token, after) = rest.split_at(length);
        if !c.is_whitespace() && c != '\'' && !token.starts_with("--") && !token.starts_with("#!") {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

const LUA_GLOBALS: [&str; 11] =
    ["ARGV", "KEYS", "error", "ipairs", "math", "redis", "string", "table", "tonumber", "type", "unpack"];
const LUA_WORDS: [&str; 20] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "while",
];

/// The names that a script uses but does not declare, and how often it uses each of its own names. A name is in scope
/// from its declaration to the end of the block.
fn names_of(lua: &str) -> (Vec<&str>, BTreeMap<&str, usize>) {
    let tokens = tokens(lua);
    let (mut scopes, mut unknown, mut uses) = (vec![BTreeSet::new()], Vec::new(), BTreeMap::new());
    let (mut of_loop, mut braces, mut at) = (Vec::new(), 0, 0);
    // Reads a list of names like `a, b` at `at`, and moves `at` past it.
    let list = |at: &mut usize| {
        let mut names = vec![tokens[*at]];
        *at += 1;
        while tokens.get(*at) == Some(&",") {
            names.push(tokens[*at + 1]);
            *at += 2;
        }
        names
    };
    while let Some(token) = tokens.get(at).copied() {
        at += 1;
        match token {
            "local" if tokens[at] != "function" => {
                let names = list(&mut at);
                names.iter().for_each(|name| *uses.entry(*name).or_insert(0) += 0);
                scopes.last_mut().unwrap().extend(names);
            }
            "function" => {
                if tokens[at] != "(" {
                    scopes.last_mut().unwrap().insert(tokens[at]);
                    uses.entry(tokens[at]).or_insert(0);
                    at += 1;
                }
                at += 1;
                scopes.push(if tokens[at] == ")" { BTreeSet::new() } else { list(&mut at).into_iter().collect() });
            }
            "for" => of_loop = list(&mut at),
            "do" | "then" | "repeat" => scopes.push(std::mem::take(&mut of_loop).into_iter().collect()),
            "else" => *scopes.last_mut().unwrap() = BTreeSet::new(),
            "end" | "elseif" => drop(scopes.pop()),
            "{" => braces += 1,
            "}" => braces -= 1,
            _ if !token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || LUA_WORDS.contains(&token) => {}
            _ => {
                let is_field = matches!(tokens[at - 2], "." | ":");
                let is_key = braces > 0 && tokens.get(at) == Some(&"=");
                if is_field || is_key {
                } else if scopes.iter().any(|scope| scope.contains(token)) {
                    // `x = …` sets `x`, but does not use it.
                    *uses.entry(token).or_insert(0) += usize::from(tokens.get(at) != Some(&"="));
                } else if !LUA_GLOBALS.contains(&token) {
                    unknown.push(token);
                }
            }
        }
    }
    assert_eq!(scopes.len(), 1, "a block does not end");
    (unknown, uses)
}

#[test]
fn the_reader_of_lua_knows_where_a_name_ends() {
    let unknown = |lua| names_of(lua).0;
    assert_eq!(unknown("local function f(a) return a + b end f(a)"), ["b", "a"]);
    assert_eq!(unknown("if x then local y = 'it\\'s z' end return y -- z"), ["x", "y"]);
    assert_eq!(unknown("for i, v in ipairs(KEYS) do call(v.i, { i = v }) end return i"), ["call", "i"]);
    assert_eq!(names_of("local a, b = 1, 2\nlocal function f() a = b end").1, [("a", 0), ("b", 1), ("f", 0)].into());
}

/// A part includes everything that it needs, and a name declared inside a block ends with the block. Redis refuses an
/// unknown name only when a call reaches it.
#[test]
fn lua_names_are_there_where_they_are_used_and_all_are_used() {
    let mut uses = BTreeMap::new();
    let assembled = assembled();
    for (name, whole) in assembled.iter().filter(|(name, _)| !is_part(name)) {
        let (unknown, used) = names_of(whole);
        let own = fs::read_to_string(root().join(format!("lua/{name}.lua"))).unwrap();
        assert_eq!(unknown, Vec::<&str>::new(), "{name} uses names that are not there");
        let own_names = names_of(&own).1;
        let unused: Vec<_> = own_names.keys().filter(|own| used[**own] == 0 && **own != "_").collect();
        assert_eq!(unused, Vec::<&&str>::new(), "{name} does not use its names");
        used.iter().for_each(|(name, count)| *uses.entry(*name).or_insert(0) += count);
    }
    assert!(uses["look"] > 0 && uses["places"] > 0, "{uses:?}");
    let unused: Vec<_> = uses.iter().filter(|(name, count)| **count == 0 && **name != "_").collect();
    assert!(unused.is_empty(), "no script uses {unused:?}");
}

#[test]
fn lua_parts_include_what_they_need_in_their_first_lines() {
    for (name, text) in parts() {
        // A part included inside a block is for that block alone.
        let outside = text.lines().filter(|line| !line.starts_with(' '));
        let late: Vec<_> = outside.skip_while(|line| include(line).is_some()).filter_map(include).collect();
        assert!(late.is_empty(), "{name} includes {late:?} after its first lines");
    }
    // The header of a part lists the names of its script that it uses. All others come from its includes.
    for (name, whole) in assembled().iter().filter(|(name, _)| is_part(name)) {
        let said: BTreeSet<_> = whole
            .lines()
            .filter(|line| line.starts_with("-- "))
            .collect::<Vec<_>>()
            .join(" ")
            .split("Uses: ")
            .skip(1)
            .flat_map(|text| {
                text.split('.')
                    .next()
                    .unwrap()
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        let unsaid: BTreeSet<_> = names_of(whole).0.into_iter().filter(|name| !said.contains(*name)).collect();
        assert_eq!(unsaid, BTreeSet::new(), "{name} uses names of its script without saying so");
    }
}
