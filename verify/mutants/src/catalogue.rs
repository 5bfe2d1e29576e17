//! Reads `mutants.txt`, which describes its own format.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutant {
    pub name: String,
    /// The rule that it drops.
    pub sentence: String,
    pub edits: Vec<Edit>,
}

/// Replaces the text `find` with `replace`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    pub find: String,
    pub replace: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    line: usize,
    why: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mutants.txt, line {}: {}", self.line, self.why)
    }
}

/// A rule of the machine in `proto`, which its explorer judges.
pub fn is_of_the_machine(mutant: &str) -> bool {
    mutant.starts_with("M-")
}

impl Mutant {
    pub fn all(text: &str) -> Result<Vec<Self>, Malformed> {
        let mut mutants: Vec<Self> = Vec::new();
        // The sign of the previous line: `-`, `+`, or a space for the sentence.
        let mut sign = ' ';
        for (index, line) in text.lines().enumerate() {
            let malformed = |why| Err(Malformed { line: index + 1, why });
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if !line.starts_with(' ') {
                mutants.push(Self { name: line.trim().into(), sentence: String::new(), edits: Vec::new() });
                sign = ' ';
                continue;
            }
            let Some(mutant) = mutants.last_mut() else {
                return malformed("a mutant begins with its name, at the margin");
            };
            let line = line.trim();
            let (now, rest) = match line.split_at(1) {
                ("-", rest) => ('-', rest.trim()),
                ("+", rest) => ('+', rest.trim()),
                _ => (' ', line),
            };
            match (sign, now, mutant.edits.last_mut()) {
                (' ', ' ', _) => push(&mut mutant.sentence, rest),
                (' ' | '+', '-', _) => mutant.edits.push(Edit { find: rest.into(), replace: String::new() }),
                ('-', '-', Some(edit)) => push(&mut edit.find, rest),
                ('-' | '+', '+', Some(edit)) => push(&mut edit.replace, rest),
                ('-', ..) => return malformed("a `-` needs a `+` after it; an empty one takes the text out"),
                (_, '+', _) => return malformed("a `+` needs a `-` before it"),
                _ => return malformed("the sentence comes before the edits"),
            }
            sign = now;
        }
        let lacks = |mutant: &Self| mutant.sentence.is_empty() || mutant.edits.is_empty();
        if mutants.iter().any(lacks) || sign == '-' {
            return Err(Malformed { line: text.lines().count(), why: "a mutant has a name, a sentence and an edit" });
        }
        Ok(mutants)
    }
}

fn push(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_has_a_name_a_sentence_and_edits() {
        let text = "# Of a comment\n\nR0-none\n  Nothing is\n  checked.\n  - if a\n  - then b\n  + b\n  - c\n  +\n";
        let edits = vec![
            Edit { find: "if a\nthen b".into(), replace: "b".into() },
            Edit { find: "c".into(), replace: String::new() },
        ];
        let mutant = Mutant { name: "R0-none".into(), sentence: "Nothing is\nchecked.".into(), edits };
        assert_eq!(Mutant::all(text), Ok(vec![mutant]));
    }

    #[test]
    fn an_incomplete_mutant_is_an_error() {
        for text in
            ["a\n  b\n  - c\n", "a\n  b\n  - c\n  d\n", "a\n  b\n  + c\n", "a\n  - c\n  + d\n", "a\n  b\n", "  b\n"]
        {
            assert!(Mutant::all(text).is_err(), "{text}");
        }
    }
}
