//! All mutants in one copy of the sources: each function that a mutant changes chooses its body at each call.
//!
//! Only the copy has these choices. The environment variable [`ACTIVE`] names the mutant of a process. Without it, the
//! process runs the unmodified code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::catalogue::Mutant;
use crate::sources::{Changed, Sources};
use crate::tokens::{Language, Token, tokens};

pub const ACTIVE: &str = "FAIRLOCK_MUTANT";

/// The module that the copy adds to `proto/src`, for `src` too. The texts of changed scripts follow it.
const MODULE: &str = r#"
static ACTIVE: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| std::env::var("FAIRLOCK_MUTANT").unwrap_or_default());

pub fn active() -> &'static str {
    &ACTIVE
}

/// The script, or what the active mutant makes of it.
pub fn script(source: &str) -> &str {
    let same = |(mutant, original, _): &&(&str, &str, &str)| *mutant == active() && *original == source;
    SCRIPTS.iter().find(same).map_or(source, |(.., changed)| changed)
}

/// The mutant, the file's text, and its text in the mutant.
const SCRIPTS: &[(&str, &str, &str)] = &[
"#;

/// The other changes of the copy: both packages have the module, allow warnings, and ask the module for each part of a
/// script.
const AROUND: [(&str, &str, &str); 3] = [
    ("proto/src/lib.rs", "pub mod command;", "pub mod mutant; pub mod command;"),
    ("src/lib.rs", "mod driver;", "use fairlock_proto::mutant; mod driver;"),
    ("src/store/script.rs", "for line in source.lines()", "for line in crate::mutant::script(source).lines()"),
];

/// The files of the copy that differ from the sources, or the problem with a mutant.
pub fn all_in_one(sources: &Sources, mutants: &[Mutant]) -> Result<Changed, String> {
    let (mut wrong, mut scripts) = (String::new(), String::new());
    let mut variants: BTreeMap<PathBuf, Vec<(&str, String)>> = BTreeMap::new();
    for mutant in mutants {
        let name = mutant.name.as_str();
        let changed = sources.with(mutant).unwrap_or_else(|why| {
            wrong += &why;
            Changed::new()
        });
        for (path, text) in changed {
            let original = sources.text(&path);
            if path.extension().is_some_and(|ending| ending == "lua") {
                let _ = writeln!(scripts, "({name:?}, {original:?}, {text:?}),");
            } else if differ_in_bodies_only(original, &text) {
                variants.entry(path).or_default().push((name, text));
            } else {
                let _ = writeln!(wrong, "{name}: an edit in {} is not inside of a function's body", path.display());
            }
        }
    }
    let mut all: Changed =
        variants.iter().map(|(path, variants)| (path.clone(), with_choices(sources.text(path), variants))).collect();
    for (path, find, replace) in AROUND {
        let text = all.entry(path.into()).or_insert_with(|| sources.text(Path::new(path)).to_owned());
        if text.matches(find).count() != 1 {
            let _ = writeln!(wrong, "{path}: does not have `{find}` once; see AROUND in schemata.rs");
        }
        *text = text.replacen(find, replace, 1);
    }
    // The arms leave variables and functions unused.
    for text in all.values_mut() {
        text.insert_str(0, "#![allow(warnings)]\n");
    }
    all.insert("proto/src/mutant.rs".into(), format!("{MODULE}{scripts}];\n"));
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

/// The text with a choice for each body that one of the variants changes.
fn with_choices(original: &str, variants: &[(&str, String)]) -> String {
    let bodies_of: Vec<_> = variants.iter().map(|(_, text)| bodies(text)).collect();
    let arms_of = |(index, place): (usize, Range<usize>)| {
        let arms =
            variants.iter().zip(&bodies_of).map(|((name, variant), bodies)| (name, &variant[bodies[index].clone()]));
        let arms = arms.filter(|(_, body)| **body != original[place.clone()]);
        let arms = arms.map(|(name, body)| format!("{name:?} => {body}\n")).collect();
        (place, arms)
    };
    let arms = bodies(original).into_iter().enumerate().map(arms_of).collect();
    with_arms(original, "active", arms)
}

/// The text with a choice for each of these bodies that has arms, one arm a line.
pub fn with_arms(original: &str, chooser: &str, mut arms: Vec<(Range<usize>, String)>) -> String {
    let mut text = original.to_owned();
    arms.retain(|(_, arms)| !arms.is_empty());
    // From the last body to the first, so that the places of the others do not move.
    arms.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
    for (place, arms) in arms {
        let unmodified = &original[place.clone()];
        let choice = format!("{{ match crate::mutant::{chooser}() {{\n{arms}_ => {unmodified}\n}} }}");
        text.replace_range(place, &choice);
    }
    text
}

fn differ_in_bodies_only(original: &str, variant: &str) -> bool {
    around_bodies(original) == around_bodies(variant)
}

/// All tokens outside bodies, with the braces of each body.
fn around_bodies(text: &str) -> Vec<&str> {
    let bodies = bodies(text);
    let inside = |token: &Token| bodies.iter().any(|body| body.start < token.at && token.end() < body.end);
    tokens(text, Language::Rust).into_iter().filter(|token| !inside(token)).map(|token| token.text).collect()
}

/// The places, with braces, of the bodies that can choose: the bodies of functions, and the outermost blocks
/// `async { … }` of functions that cannot. A nested function belongs to the body of the outer one.
pub fn bodies(text: &str) -> Vec<Range<usize>> {
    let tokens = tokens(text, Language::Rust);
    let (mut bodies, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let body = opening_brace(&tokens, at).and_then(|open| Some((open, closing_brace(&tokens, open)?)));
        at = match body {
            Some((open, close)) => {
                bodies.push(tokens[open].at..tokens[close].end());
                close + 1
            }
            None => at + 1,
        };
    }
    bodies
}

/// Where the body begins of the function or async block that starts at the token `from`. None if there is no such
/// thing, if it has no body, or if it cannot choose.
fn opening_brace(tokens: &[Token], from: usize) -> Option<usize> {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    match (text(from), text(from + 1), text(from + 2)) {
        ("async", "{", _) => return Some(from + 1),
        ("async", "move", "{") => return Some(from + 2),
        // Not the type `fn(…)`.
        ("fn", name, _) if name != "(" => {}
        _ => return None,
    }
    let mut depth = 0;
    // A `;` inside of brackets belongs to the type of an array.
    let open = (from..tokens.len()).find(|index| {
        match text(*index) {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            _ => {}
        }
        depth == 0 && matches!(text(*index), "{" | ";")
    })?;
    let signature: Vec<_> = (from..open).map(text).collect();
    let result = signature.windows(2).rposition(|pair| pair == ["-", ">"]);
    // Two bodies would have two types.
    let is_opaque = result.is_some_and(|at| signature[at..].contains(&"impl"));
    let is_const = from > 0 && text(from - 1) == "const";
    (text(open) == "{" && !is_opaque && !is_const).then_some(open)
}

fn closing_brace(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0;
    (open..tokens.len()).find(|index| {
        match tokens[*index].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        bodies(text).into_iter().map(|place| &text[place]).collect()
    }

    #[test]
    fn bodies_of_functions_are_found() {
        let text =
            "struct A { f: fn(u8) -> u8 } impl A { pub async fn b<T>(self, c: [u8; 2]) -> T where T: D { if e { f } } }
            trait G { fn g(&self); fn h() { \"}\" } } fn i() -> Result<(), J> { fn k() { l } let m = |n| { n }; '}' }";
        let expected = ["{ if e { f } }", "{ \"}\" }", "{ fn k() { l } let m = |n| { n }; '}' }"];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn functions_that_cannot_choose_are_left_out_but_not_their_async_blocks() {
        let text = "const fn a() {} fn b() -> impl Fn() { || () } fn c(d: impl Fn() -> E) -> F { g }
            fn h() -> impl Future { i(async move { j { k } }, async { l }) }";
        assert_eq!(found(text), ["{ g }", "{ j { k } }", "{ l }"]);
    }

    #[test]
    fn a_body_becomes_a_choice() {
        let original = "fn a() { 1 } async fn b() { 2 } fn c() { 3 }";
        let variants = [
            ("one", original.replace("{ 2 }", "{ if x { 4 } }")),
            ("two", original.replace("{ 2 }", "{ 5 }").replace("{ 3 }", "{ 6 }")),
        ];
        let text: String = with_choices(original, &variants).replace('\n', " ");
        let expected = "fn a() { 1 } \
            async fn b() { match crate::mutant::active() { \"one\" => { if x { 4 } } \"two\" => { 5 } _ => { 2 } } } \
            fn c() { match crate::mutant::active() { \"two\" => { 6 } _ => { 3 } } }";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_edit_outside_of_bodies_is_told_from_one_inside() {
        let original = "const A: u8 = 1; fn b() -> u8 { A } const fn c() -> u8 { 2 }";
        assert!(differ_in_bodies_only(original, &original.replace("{ A }", "{ if d { 3 } else { A } }")));
        for (find, replace) in
            [("= 1", "= 2"), ("b() -> u8", "b() -> u16"), ("{ 2 }", "{ 3 }"), ("fn b", "fn e() {} fn b")]
        {
            assert!(!differ_in_bodies_only(original, &original.replace(find, replace)), "{find}");
        }
    }

    #[test]
    fn the_module_reads_the_variable() {
        assert!(MODULE.contains(&format!("var({ACTIVE:?})")));
    }
}
