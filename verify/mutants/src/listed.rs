//! The mutants that cargo-mutants lists. We use only its list, because a build for each of them would take a day.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::schemata::{bodies, with_arms};
use crate::sources::{Changed, Sources};

/// The module that the copy adds to `proto/src`. A process runs the mutant with the number in its environment, or
/// none.
const MODULE: &str = r#"
static CHOSEN: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {
    std::env::var("FAIRLOCK_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
});

pub fn chosen() -> usize {
    *CHOSEN
}
"#;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// From 1 on.
    pub number: usize,
    /// `FILE:LINE:COLUMN: what is replaced`
    pub name: String,
    pub file: PathBuf,
    place: Range<usize>,
    replacement: String,
}

impl Listed {
    /// Reads the output of `cargo mutants --list --json` about these sources.
    pub fn all(json: &str, sources: &Sources) -> Result<Vec<Self>, String> {
        let list: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let list = list.as_array().ok_or("the list of cargo-mutants is no array")?;
        let read = |(index, it): (usize, &Value)| {
            let text = |key: &str| it[key].as_str().map(ToOwned::to_owned).ok_or(format!("no {key} in {it}"));
            let file = PathBuf::from(text("file")?);
            let place = [&it["span"]["start"], &it["span"]["end"]].map(|end| offset(sources.text(&file), end));
            let [Some(start), Some(end)] = place else { return Err(format!("no such place: {it}")) };
            Ok(Self {
                number: index + 1,
                name: text("name")?,
                file,
                place: start..end,
                replacement: text("replacement")?,
            })
        };
        list.iter().enumerate().map(read).collect()
    }

    /// The name without the place, which any edit of the file would change.
    pub fn lasting_name(&self) -> String {
        let parts: Vec<_> = self.name.splitn(4, ':').collect();
        if let [file, _, _, what] = parts.as_slice() { format!("{file}:{what}") } else { self.name.clone() }
    }

    /// The text of its file.
    fn text(&self, sources: &Sources) -> String {
        let mut text = sources.text(&self.file).to_owned();
        text.replace_range(self.place.clone(), &self.replacement);
        text
    }
}

/// The position of a line and a column, both from 1 on. Columns count characters.
fn offset(text: &str, place: &Value) -> Option<usize> {
    let number = |key: &str| place[key].as_u64().and_then(|number| usize::try_from(number).ok());
    let line: usize = text.split_inclusive('\n').take(number("line")? - 1).map(str::len).sum();
    let column = text[line..].char_indices().map(|(at, _)| at).chain([text.len() - line]).nth(number("column")? - 1)?;
    Some(line + column)
}

/// The sources with all these mutants, and the mutants that cannot choose at run time, because their function is
/// `const` or has an opaque result.
pub fn in_one<'a>(sources: &Sources, mutants: &'a [Listed], unviable: &BTreeSet<usize>) -> (Changed, Vec<&'a Listed>) {
    let (mut changed, mut alone) = (around(sources), Vec::new());
    let mut by_file: BTreeMap<&Path, Vec<&Listed>> = BTreeMap::new();
    for mutant in mutants.iter().filter(|mutant| !unviable.contains(&mutant.number)) {
        by_file.entry(&mutant.file).or_default().push(mutant);
    }
    for (file, mutants) in by_file {
        let original = changed.get(file).map_or(sources.text(file), String::as_str).to_owned();
        let mut arms: Vec<_> = bodies(&original).into_iter().map(|body| (body, String::new())).collect();
        for mutant in mutants {
            let place = &mutant.place;
            match arms.iter_mut().find(|(body, _)| body.start < place.start && place.end < body.end) {
                Some((body, arms)) => {
                    let (before, after) = (&original[body.start..place.start], &original[place.end..body.end]);
                    let _ = writeln!(arms, "{} => {before}{}{after}", mutant.number, mutant.replacement);
                }
                None => alone.push(mutant),
            }
        }
        changed.insert(file.to_owned(), with_arms(&original, "chosen", arms));
    }
    (changed, alone)
}

/// The sources with only this mutant.
pub fn alone(sources: &Sources, mutant: &Listed) -> Changed {
    let mut changed = around(sources);
    changed.entry(mutant.file.clone()).or_insert_with(|| mutant.text(sources));
    changed
}

/// The changes of every copy. The module comes last, so that no place moves.
fn around(sources: &Sources) -> Changed {
    let root = PathBuf::from("proto/src/lib.rs");
    let text = format!("{}\npub mod mutant;\n", sources.text(&root));
    [(root, text), ("proto/src/mutant.rs".into(), MODULE.into())].into()
}

/// The mutant whose arm has this line of a file with choices.
pub fn mutant_at(text: &str, line: usize) -> Option<usize> {
    let before: Vec<_> = text.lines().take(line).collect();
    let arm =
        before.into_iter().rev().find_map(|line| line.split_once(" => {").filter(|(pattern, _)| is_pattern(pattern)));
    arm?.0.parse().ok()
}

fn is_pattern(text: &str) -> bool {
    text == "_" || !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: usize, file: &str, place: Range<usize>, replacement: &str) -> Listed {
        let (name, file) = (format!("{file}:1:{}: a", place.start + 1), file.into());
        Listed { number, name, file, place, replacement: replacement.into() }
    }

    fn sources(text: &str) -> Sources {
        let texts = [("proto/src/lib.rs", ""), ("proto/src/a.rs", text)];
        Sources(texts.map(|(path, text)| (path.into(), text.to_owned())).into())
    }

    #[test]
    fn the_list_is_read_with_places_that_count_characters() {
        let sources = sources("// ä\n/* ä */ fn a() { b() }\n");
        let json = r#"[{"name": "proto/src/a.rs:2:18: replace a with ()", "file": "proto/src/a.rs", "replacement": "()",
            "span": {"start": {"line": 2, "column": 18}, "end": {"line": 2, "column": 21}}}]"#;
        let all = Listed::all(json, &sources).expect("it is a list");
        assert_eq!(all[0].text(&sources), "// ä\n/* ä */ fn a() { () }\n");
        assert_eq!(all[0].lasting_name(), "proto/src/a.rs: replace a with ()");
    }

    #[test]
    fn a_function_chooses_between_its_mutants_and_a_const_one_cannot() {
        let sources = sources("fn a() { 1 < 2 }\nconst fn b() { 3 }\n");
        let mutants = [(1, 11..12, "=="), (2, 9..14, "true"), (3, 32..33, "0")];
        let mutants = mutants.map(|(number, place, text)| listed(number, "proto/src/a.rs", place, text));
        let (changed, alone) = in_one(&sources, &mutants, &[2].into());
        let expected =
            "fn a() { match crate::mutant::chosen() {\n1 => { 1 == 2 }\n_ => { 1 < 2 }\n} }\nconst fn b() { 3 }\n";
        assert_eq!(changed[Path::new("proto/src/a.rs")], expected);
        assert_eq!(alone, [&mutants[2]]);
    }

    #[test]
    fn an_error_is_of_the_arm_that_has_its_line() {
        let text = "fn a() { match crate::mutant::chosen() {\n7 => { b();\n    1 }\n8 => { 2 }\n_ => { 3 }\n} }";
        assert_eq!([1, 2, 3, 4, 5].map(|line| mutant_at(text, line)), [None, Some(7), Some(7), Some(8), None]);
    }
}
