//! The sources of the library and of its machine, with edits applied.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::catalogue::{Edit, Mutant, is_of_the_machine};
use crate::tokens::{Language, find, nearest, tokens, without_tests};

/// The sources of the machine.
const MACHINE: &str = "proto/src";

/// How many similar places it shows for an edit that it did not find.
const SHOWN: usize = 3;

/// The files that a mutant changes.
pub type Changed = BTreeMap<PathBuf, String>;

/// Texts by path, relative to the repository.
pub struct Sources(pub BTreeMap<PathBuf, String>);

impl Sources {
    /// All files that an edit may touch: src/**/*.rs and lua/**/*.lua, or proto/src/**/*.rs for a mutant of the
    /// machine.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut texts = BTreeMap::new();
        for (dir, ending) in [("src", "rs"), ("lua", "lua"), (MACHINE, "rs")] {
            for path in files(&root.join(dir))? {
                if path.extension().is_some_and(|found| found == ending) {
                    let text = fs::read_to_string(&path)?;
                    texts.insert(path.strip_prefix(root).unwrap_or(&path).to_owned(), text);
                }
            }
        }
        Ok(Self(texts))
    }

    pub fn text(&self, path: &Path) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    /// The changed files, or the problem with the mutant's edits.
    pub fn with(&self, mutant: &Mutant) -> Result<Changed, String> {
        let mut wrong = String::new();
        let mut splices: BTreeMap<&Path, Vec<_>> = BTreeMap::new();
        for edit in &mutant.edits {
            match self.places(mutant, edit).as_slice() {
                [(path, place)] => splices.entry(path).or_default().push((place.clone(), &edit.replace)),
                places => wrong += &self.describe(mutant, edit, places),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let mut changed = Changed::new();
        for (path, mut splices) in splices {
            let mut text = self.0[path].clone();
            splices.sort_by_key(|(place, _)| place.start);
            if splices.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
                return Err(format!("{}: two edits overlap in {}\n", mutant.name, path.display()));
            }
            for (place, replace) in splices.into_iter().rev() {
                text.replace_range(place, replace);
            }
            changed.insert(path.to_owned(), text);
        }
        Ok(changed)
    }

    /// The texts that this mutant may change.
    fn of<'a>(&'a self, mutant: &Mutant) -> impl Iterator<Item = (&'a PathBuf, &'a String)> {
        let is_of_the_machine = is_of_the_machine(&mutant.name);
        self.0.iter().filter(move |(path, _)| path.starts_with(MACHINE) == is_of_the_machine)
    }

    /// All places where the edit could apply.
    fn places(&self, mutant: &Mutant, edit: &Edit) -> Vec<(&Path, std::ops::Range<usize>)> {
        let mut places = Vec::new();
        for (path, text) in self.of(mutant) {
            let wanted = tokens(&edit.find, language(path));
            // A quick check first: most files do not have these words.
            if wanted.iter().any(|token| !text.contains(token.text)) {
                continue;
            }
            let found = find(&code(path, text), &wanted);
            places.extend(found.into_iter().map(|place| (path.as_path(), place)));
        }
        places
    }

    fn describe(&self, mutant: &Mutant, edit: &Edit, places: &[(&Path, std::ops::Range<usize>)]) -> String {
        let mut text = format!("{}: found {} times instead of once:\n", mutant.name, places.len());
        for line in edit.find.lines() {
            let _ = writeln!(text, "    - {line}");
        }
        if places.is_empty() {
            text += "  It does not occur in src/**/*.rs and lua/**/*.lua, or for M- in proto/src. The most similar places:\n";
            for (path, at, share) in self.nearest(mutant, edit) {
                let _ = writeln!(text, "  {:3.0} % {}", share * 100.0, self.line(path, at));
            }
            text +=
                "  If the code was only renamed or rewritten, change the `-` lines of this mutant to the new code.\n";
        } else {
            for (path, place) in places {
                let _ = writeln!(text, "    {}", self.line(path, place.start));
            }
            text += "  Add some of the code before or after the right one, in `-` and in `+`.\n";
        }
        text
    }

    /// The most similar place of each file, best first.
    fn nearest(&self, mutant: &Mutant, edit: &Edit) -> Vec<(&Path, usize, f64)> {
        let mut best: Vec<_> = self
            .of(mutant)
            .filter_map(|(path, text)| {
                let (at, share) = nearest(&code(path, text), &tokens(&edit.find, language(path)))?;
                Some((path.as_path(), at, share))
            })
            .collect();
        best.sort_by(|one, other| other.2.total_cmp(&one.2));
        best.truncate(SHOWN);
        best
    }

    fn line(&self, path: &Path, at: usize) -> String {
        let text = &self.0[path];
        let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let line = text[start..].lines().next().unwrap_or_default().trim();
        format!("{}:{}: {line}", path.display(), text[..at].matches('\n').count() + 1)
    }
}

fn language(path: &Path) -> Language {
    if path.extension().is_some_and(|ending| ending == "lua") { Language::Lua } else { Language::Rust }
}

fn code<'a>(path: &Path, text: &'a str) -> Vec<crate::tokens::Token<'a>> {
    match language(path) {
        Language::Rust => without_tests(tokens(text, Language::Rust)),
        Language::Lua => tokens(text, Language::Lua),
    }
}

/// All files in a directory and its subdirectories.
pub fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(texts: &[(&str, &str)]) -> Sources {
        Sources(texts.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }

    fn mutant(edits: &[(&str, &str)]) -> Mutant {
        let edits = edits.iter().map(|(find, replace)| Edit { find: (*find).into(), replace: (*replace).into() });
        Mutant { name: "R0".into(), sentence: "Nothing.".into(), edits: edits.collect() }
    }

    #[test]
    fn an_edit_applies_in_any_file_and_layout() {
        let sources = sources(&[("lua/a.lua", "if a   then -- so\n  b() end\nc()"), ("src/b.rs", "fn d() {}")]);
        let changed = sources.with(&mutant(&[("if a then b()", "b() if a then"), ("d()", "e()")])).expect("both apply");
        assert_eq!(changed[Path::new("lua/a.lua")], "b() if a then end\nc()");
        assert_eq!(changed[Path::new("src/b.rs")], "fn e() {}");
    }

    #[test]
    fn a_mutant_of_the_machine_changes_the_machine_alone() {
        let sources = sources(&[("proto/src/a.rs", "fn d() {}"), ("src/b.rs", "fn d() {}")]);
        let of_others = mutant(&[("d()", "e()")]);
        let of_the_machine = Mutant { name: "M-d".into(), ..of_others.clone() };
        let changed = |mutant| sources.with(mutant).expect("it applies").into_keys().collect::<Vec<_>>();
        assert_eq!(changed(&of_others), [Path::new("src/b.rs")]);
        assert_eq!(changed(&of_the_machine), [Path::new("proto/src/a.rs")]);
    }

    #[test]
    fn an_edit_that_does_not_apply_once_names_the_possible_places() {
        let sources = sources(&[("lua/a.lua", "x()\nif a then b() end"), ("src/b.rs", "d();\nd();")]);
        let wrong = sources.with(&mutant(&[("if a then c()", ""), ("d()", "")])).expect_err("neither applies");
        for part in [
            "R0: found 0 times",
            "lua/a.lua:2: if a then b() end",
            "found 2 times",
            "src/b.rs:1: d();",
            "src/b.rs:2: d();",
        ] {
            assert!(wrong.contains(part), "{part} is missing in:\n{wrong}");
        }
    }
}
