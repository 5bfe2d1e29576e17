//! Source text as tokens, so that an edit matches any layout.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    Lua,
}

/// A token and its position in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl Token<'_> {
    pub fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The tokens of a text: strings, words and numbers, and each other character alone. It skips white space, comments,
/// and the comma that rustfmt adds after the last element of a broken list.
pub fn tokens(text: &str, language: Language) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, length) = next(rest, first, language);
        if kind == Kind::Code {
            let closes = matches!(first, ')' | ']' | '}');
            if closes && tokens.last().is_some_and(|last| last.text == ",") {
                tokens.pop();
            }
            tokens.push(Token { text: &rest[..length], at });
        }
        at += length;
    }
    tokens
}

#[derive(PartialEq, Eq)]
enum Kind {
    Code,
    Skipped,
}

/// The kind and the length of the first token of `rest`.
fn next(rest: &str, first: char, language: Language) -> (Kind, usize) {
    let comment = if language == Language::Rust { "//" } else { "--" };
    if first.is_whitespace() {
        return (Kind::Skipped, first.len_utf8());
    }
    if rest.starts_with(comment) {
        return (Kind::Skipped, rest.find('\n').unwrap_or(rest.len()));
    }
    if language == Language::Rust && rest.starts_with("/*") {
        return (Kind::Skipped, rest.find("*/").map_or(rest.len(), |end| end + 2));
    }
    let length = match (first, language) {
        ('"', _) | ('\'', Language::Lua) => quoted(rest, first),
        ('\'', Language::Rust) => character(rest).unwrap_or(1),
        _ if is_word(first) => {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            match &rest[..word] {
                "r" | "br" if language == Language::Rust => word + raw(&rest[word..]),
                _ => word,
            }
        }
        _ => first.len_utf8(),
    };
    (Kind::Code, length)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// From the opening quote to the closing one.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a Rust character literal; `None` for the start of a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut after = rest.char_indices().skip(1);
    let (_, first) = after.next()?;
    if first == '\\' {
        return Some(quoted(rest, '\''));
    }
    let (at, second) = after.next()?;
    (second == '\'').then_some(at + 1)
}

/// The length of the text after the `r` of a raw string; 0 if it is not one.
fn raw(rest: &str) -> usize {
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    if !rest[hashes..].starts_with('"') {
        return 0;
    }
    let closing = format!("\"{}", "#".repeat(hashes));
    let from = hashes + 1;
    rest[from..].find(&closing).map_or(rest.len(), |end| from + end + closing.len())
}

/// The tokens of a Rust file without the items under `#[cfg(test)]`.
pub fn without_tests(mut tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    while let Some(start) = tokens.windows(MARK.len()).position(|window| texts(window).eq(MARK)) {
        let mut depth = 0;
        let item = tokens[start + MARK.len()..].iter().position(|token| {
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(token.text, "}" | ";")
        });
        let end = item.map_or(tokens.len(), |length| start + MARK.len() + length + 1);
        tokens.drain(start..end);
    }
    tokens
}

fn texts<'a>(tokens: &'a [Token<'a>]) -> impl Iterator<Item = &'a str> {
    tokens.iter().map(|token| token.text)
}

/// The ranges of the text in which the tokens `wanted` follow each other.
pub fn find(within: &[Token], wanted: &[Token]) -> Vec<Range<usize>> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let windows = within.windows(wanted.len()).filter(|window| texts(window).eq(texts(wanted)));
    windows.map(|window| window[0].at..window[wanted.len() - 1].end()).collect()
}

/// The place with the most tokens of `wanted` in the same order: its beginning, and its share of the tokens.
pub fn nearest(within: &[Token], wanted: &[Token]) -> Option<(usize, f64)> {
    let mut best: Option<(usize, usize)> = None;
    for window in within.windows(wanted.len().min(within.len()).max(1)) {
        // A cheap check first. Tokens in any order are an upper bound for tokens in the same order.
        let shared = window.iter().filter(|token| wanted.iter().any(|other| other.text == token.text)).count();
        if best.is_none_or(|(_, most)| shared > most) {
            let common = common(window, wanted);
            if best.is_none_or(|(_, most)| common > most) {
                best = Some((window[0].at, common));
            }
        }
    }
    best.map(|(at, common)| (at, common as f64 / wanted.len() as f64))
}

/// The length of the longest common subsequence.
fn common(left: &[Token], right: &[Token]) -> usize {
    let mut row = vec![0; right.len() + 1];
    for one in left {
        let mut diagonal = 0;
        for (index, other) in right.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if one.text == other.text { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, language: Language) -> Vec<&str> {
        tokens(text, language).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn layout_and_comments_do_not_count() {
        let one = words("deadline(self.asked, lease) // until then", Language::Rust);
        assert_eq!(one, words("deadline(\n    self.asked,\n    /* of it */ lease,\n)", Language::Rust));
        assert_eq!(words("a == 'b -- c' -- d", Language::Lua), ["a", "=", "=", "'b -- c'"]);
    }

    #[test]
    fn strings_characters_and_lifetimes_are_told_apart() {
        let text = r####"f::<'a>("// \" no", '"', '\'', r#"a "b" // c"#, rest)"####;
        let expected = [
            "f",
            ":",
            ":",
            "<",
            "'",
            "a",
            ">",
            "(",
            r#""// \" no""#,
            ",",
            "'\"'",
            ",",
            "'\\''",
            ",",
            r##"r#"a "b" // c"#"##,
            ",",
            "rest",
            ")",
        ];
        assert_eq!(words(text, Language::Rust), expected);
    }

    #[test]
    fn unit_tests_are_skipped() {
        let text = "a; #[cfg(test)] mod tests { fn b() { c; } } d; #[cfg(test)] mod e; f;";
        let left = without_tests(tokens(text, Language::Rust));
        assert_eq!(texts(&left).collect::<String>(), "a;d;f;");
    }

    #[test]
    fn the_nearest_place_is_the_most_similar() {
        let text = "x = 1; deadline(self.asked, wanted); y = 2;";
        let (place, share) =
            nearest(&tokens(text, Language::Rust), &tokens("deadline(self.asked, lease)", Language::Rust))
                .expect("there is a text");
        assert_eq!(place, 7);
        assert!((share - 7.0 / 8.0).abs() < 0.01, "{share}");
    }
}
