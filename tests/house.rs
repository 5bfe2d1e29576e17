//! Checks on the sources themselves: the layers of `src/`, that each script and its Rust side agree, and
//! what the library must not contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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

/// The source without its unit tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The files of `src/` by their paths within it.
fn sources() -> BTreeMap<String, String> {
    let root = root().join("src");
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    files("src", ".rs").iter().map(|path| (name(path), code(path))).collect()
}

/// The module of a file, as the words of its path: `store/mod.rs` is `["store"]`.
fn module_of(file: &str) -> Vec<&str> {
    let mut words: Vec<&str> = file.strip_suffix(".rs").unwrap().split('/').collect();
    if matches!(words.last(), Some(&"mod" | &"lib")) {
        words.pop();
    }
    words
}

/// The paths into this crate that a file imports or names in its code: `crate::…`, `super::…`, and, in a `mod.rs` or
/// in `lib.rs`, the names of its own modules. Braces are expanded.
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
                let is_folder = file.ends_with("mod.rs") || file == "lib.rs";
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
    // Full paths in the code, outside of `use`.
    for start in ["crate::", "super::"] {
        for (index, _) in code.match_indices(start) {
            let path: String =
                code[index..].chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
            paths.push(path.trim_end_matches(':').to_owned());
        }
    }
    paths.iter().filter_map(|path| absolute(path)).collect()
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

/// Which file of `src/` imports which.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources();
    let modules: BTreeMap<Vec<&str>, &str> = sources.keys().map(|file| (module_of(file), file.as_str())).collect();
    let target = |path: &[String]| -> Option<String> {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        // The longest prefix that is a module; the rest is an item in it.
        (1..=words.len()).rev().find_map(|length| modules.get(&words[..length])).map(ToString::to_string)
    };
    let of = |file: &str, code: &str| -> BTreeSet<String> {
        let found =
            imported_paths(file, code, &modules).iter().filter_map(|path| target(path)).collect::<BTreeSet<_>>();
        found.into_iter().filter(|other| other != file).collect()
    };
    sources.iter().map(|(file, code)| (file.clone(), of(file, code))).collect()
}

/// The nodes from which the edges lead back to the node itself.
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

#[test]
fn no_files_import_each_other_in_a_cycle() {
    let imports = imports();
    let edges: usize = imports.values().map(BTreeSet::len).sum();
    // If the parser above found too little, this test would pass without checking anything.
    assert!(edges > 2 * imports.len(), "too few imports were found: {imports:?}");
    let cycles = in_cycles(&imports);
    assert!(cycles.is_empty(), "these files import each other in a cycle: {cycles:?}");
}

/// A layer is a folder of `src/` with everything below it. The files of `src/` itself are the public API, the top
/// layer. Of two layers, the upper one imports the lower one.
#[test]
fn nothing_imports_from_a_layer_above() {
    let layer = |file: &str| file.split_once('/').map_or("api", |(folder, _)| folder).to_owned();
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
        ("lock.rs", "engine/mod.rs"),
        ("engine/mod.rs", "engine/poller.rs"),
        ("engine/acquire.rs", "engine/mod.rs"),
        ("engine/poller.rs", "store/verbs/poll.rs"),
        ("store/verbs/poll.rs", "store/keys.rs"),
        ("store/node.rs", "store/mod.rs"),
        ("store/embedded/store.rs", "store/embedded/server.rs"),
    ] {
        assert!(imports[file].contains(other), "{file} imports {other}, and also {:?}", imports[file]);
    }
    let cycle =
        [("a", "b"), ("b", "c"), ("c", "b")].map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
    assert_eq!(in_cycles(&BTreeMap::from(cycle)), ["b", "c"]);
}

#[test]
fn lease_and_owner_need_neither_a_runtime_nor_a_server() {
    for name in ["src/engine/lease.rs", "src/engine/owner.rs"] {
        let code = code(&root().join(name));
        for word in ["tokio", "redis", "crate::", "super::"] {
            assert!(!code.contains(word), "{name} mentions {word}");
        }
    }
}

/// Only these files use the types of the redis crate, so another kind of store does not touch the rest.
#[test]
fn only_the_node_talks_to_redis() {
    for path in files("src", ".rs") {
        let is_node = ["node.rs", "connection.rs", "dial.rs", "url.rs"]
            .iter()
            .any(|name| path.ends_with(Path::new("store").join(name)));
        let speaks = ["redis::aio", "redis::cmd", "redis::Cmd", "MultiplexedConnection"];
        let code = code(&path);
        assert!(is_node || !speaks.iter().any(|word| code.contains(word)), "{}", path.display());
    }
}

#[test]
fn key_names_are_made_in_one_file() {
    for path in files("src", ".rs").iter().filter(|path| !path.ends_with("store/keys.rs")) {
        for suffix in [":queue", ":deadlines", ":token\"", ":tombstone:", ":wake:\"", "{n:"] {
            assert!(!code(path).contains(suffix), "{} makes a key with {suffix}", path.display());
        }
    }
}

#[test]
fn the_library_neither_panics_nor_prints() {
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
    // In two parts, so that this line does not match itself.
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
            // poll takes any number of tickets, in a loop from here on.
            if script.body.contains(&format!("for i = 7, #{what}")) {
                used.insert(7);
            }
            assert_eq!(named, used, "{}: {what}", script.name);
            let without_gaps: BTreeSet<u32> = (1..=u32::try_from(named.len()).unwrap()).collect();
            assert_eq!(named, without_gaps, "{}: {what} has a gap", script.name);
        }
        for part in ["Returns", "second run"] {
            assert!(script.header.contains(part), "{}: the header does not say {part:?}", script.name);
        }
    }
}

/// The Rust side of a script.
fn verb(script: &str) -> String {
    code(&root().join("src/store/verbs").join(script).with_extension("rs"))
}

/// The names in `KEYS[n] name` or `ARGV[n] name` of a header, in order.
fn header_names(header: &str, what: &str) -> Vec<String> {
    let start = format!("-- {what}[");
    let lines = header.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(|line| line.split_whitespace().nth(1).expect("a name").trim_end_matches("...").to_owned()).collect()
}

/// The names that the Rust side gives to its keys or arguments, in order: `key("name", …)`, `arg("name", …)`.
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
        let keys = sent_names(&verb, "key");
        assert_eq!(keys, header_names(&script.header, "KEYS"), "{}: KEYS", script.name);
        let mut args = sent_names(&verb, "arg");
        // The runner adds the first argument. In poll, a ticket and its lease have one name.
        args.insert(0, "request".into());
        args.dedup();
        assert_eq!(args, header_names(&script.header, "ARGV"), "{}: ARGV", script.name);
    }
}

/// Each script has one file on the Rust side that includes it, and each file has a script.
#[test]
fn there_is_a_verb_for_each_script() {
    let verbs: BTreeSet<_> = files("src/store/verbs", ".rs").iter().map(|path| stem(path).to_owned()).collect();
    let scripts: BTreeSet<_> = scripts().into_iter().map(|script| script.name).collect();
    assert_eq!(verbs, scripts.iter().cloned().chain(["mod".into()]).collect());
    for name in scripts {
        assert!(verb(&name).contains(&format!("include_str!(\"../../../lua/{name}.lua\")")), "{name}");
    }
}

/// Each status that a script can return is named in its header and decoded on the Rust side.
#[test]
fn lua_statuses_are_in_the_header_and_in_the_verb() {
    for script in scripts() {
        let reply = verb(&script.name);
        let (_, returns) = script.header.split_once("Returns").unwrap();
        let mut found = 0;
        // What stands before a status in the scripts: at the start of a reply, or in an expression.
        for lead in ["return { '", "  '", "and '", "or '", "= i, '"] {
            for rest in script.body.split(lead).skip(1) {
                let status = rest.split('\'').next().unwrap();
                let is_status = !status.is_empty() && status.bytes().all(|byte| byte.is_ascii_lowercase());
                if !is_status || !rest[status.len()..].starts_with("'") {
                    continue;
                }
                found += 1;
                assert!(returns.contains(status), "{}: the header does not name {status:?}", script.name);
                assert!(
                    reply.contains(&format!("\"{status}\"")),
                    "{}: the Rust side does not know {status:?}",
                    script.name
                );
            }
        }
        assert!(found > 0, "{}: no status found", script.name);
    }
}

#[test]
fn lua_logic_names_its_keys_and_arguments_once() {
    for script in scripts() {
        let logic = script.body.split_once("--#include ").expect("every script includes a part").1;
        assert!(!logic.contains("KEYS["), "{}: KEYS[…] in the logic", script.name);
    }
    for path in files("lua/lib", ".lua") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("KEYS[") && !text.contains("ARGV["), "{}", path.display());
    }
}

/// The part that a line includes, and how far the line is indented.
fn include(line: &str) -> Option<(usize, &str)> {
    let directive = line.trim_start();
    Some((line.len() - directive.len(), directive.strip_prefix("--#include ")?))
}

/// The files of `lua/lib`: name and text.
fn parts() -> Vec<(String, String)> {
    let read = |path: PathBuf| (stem(&path).to_owned(), fs::read_to_string(&path).unwrap());
    files("lua/lib", ".lua").into_iter().map(read).collect()
}

/// Each script with its includes filled in by `script.rs`, and each part by itself: a part includes what it needs.
fn assembled() -> Vec<(String, String)> {
    let assemble = |path: PathBuf| {
        let is_part = path.parent().unwrap().ends_with("lib");
        (!is_part).then(|| (stem(&path).to_owned(), script::assemble(&fs::read_to_string(&path).unwrap())))
    };
    let whole = files("lua", ".lua").into_iter().filter_map(assemble);
    whole.chain(parts().into_iter().map(|(name, text)| (format!("lib/{name}"), script::assemble(&text)))).collect()
}

/// The text of a part without its own includes, as it appears in a script.
fn own_lines(part: &str) -> Vec<&str> {
    part.lines().filter(|line| include(line).is_none()).collect()
}

#[test]
fn lua_includes_name_parts_that_exist() {
    for (name, text) in assembled() {
        let unknown: Vec<_> = text.lines().filter(|line| line.contains("#include")).collect();
        assert!(unknown.is_empty(), "{name} includes parts that script.rs does not know: {unknown:?}");
    }
    assert_eq!(script::assemble("a\n  --#include nothing\nb\n"), "a\n  --#include nothing\nb\n");
}

#[test]
fn each_lua_part_is_included_by_a_script_and_at_most_once() {
    let parts = parts();
    for (part, text) in &parts {
        let definition = own_lines(text).join("\n");
        let mut scripts = 0;
        for (name, whole) in assembled() {
            let times = whole.matches(&definition).count();
            assert!(times <= 1, "{name} has {part} {times} times");
            scripts += usize::from(times == 1 && !name.starts_with("lib/"));
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
    let twice = script::assemble("--#include serve\n--#include base\n--#include serve\n");
    assert_eq!(twice, script::assemble("--#include serve\n"));
}

/// A part includes what it needs, and a script calls no function of a part above the line that includes it.
#[test]
fn lua_functions_are_called_after_their_definition() {
    let parts = parts();
    let lines = parts.iter().flat_map(|(_, text)| text.lines());
    let definitions = lines.filter_map(|line| line.strip_prefix("local function "));
    let functions: Vec<_> = definitions.filter_map(|rest| rest.split('(').next()).collect();
    assert!(functions.contains(&"advance") && functions.contains(&"read_lock"), "{functions:?}");
    for (name, whole) in assembled() {
        for function in &functions {
            let mut is_defined = false;
            for line in whole.lines() {
                is_defined |= line.starts_with(&format!("local function {function}("));
                let code = line.split("--").next().unwrap();
                let calls = |before: &str| !before.ends_with(|c: char| c.is_ascii_alphanumeric() || "_.:".contains(c));
                let used = code.match_indices(&format!("{function}(")).any(|(start, _)| calls(&code[..start]));
                assert!(is_defined || !used, "{name} calls {function} before its definition: {line}");
            }
        }
    }
}

/// Functions that a part defines inside a block end with the block. `script.rs` does not fill in the same part again
/// after it, so nothing after the block may need it.
#[test]
fn lua_parts_included_inside_a_block_are_not_needed_after_it() {
    fn needed(part: &str, all: &mut BTreeSet<String>) {
        if all.insert(part.to_owned()) {
            let text = parts().into_iter().find(|(name, _)| name == part).map(|(_, text)| text).unwrap_or_default();
            text.lines().filter_map(include).for_each(|(_, name)| needed(name, all));
        }
    }
    for script in scripts() {
        let (mut outside, mut inside) = (BTreeSet::new(), BTreeSet::new());
        for (indent, part) in script.body.lines().filter_map(include) {
            let mut all = BTreeSet::new();
            needed(part, &mut all);
            let hidden: Vec<_> = all.intersection(&inside).collect();
            assert!(hidden.is_empty(), "{}: {part} needs {hidden:?}, included inside an earlier block", script.name);
            if indent == 0 { outside.extend(all) } else { inside.extend(all.difference(&outside).cloned()) }
        }
    }
    for (name, text) in parts() {
        let late: Vec<_> = text.lines().skip_while(|line| include(line).is_some()).filter_map(include).collect();
        assert!(late.is_empty(), "{name} includes {late:?} after its first lines");
    }
}
