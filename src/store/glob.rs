//! Patterns of names, as in Redis' KEYS and SCAN: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\` to escape a character.
//! They match bytes, so `?` matches only a part of a multi-byte character.

/// Takes time in proportion to the product of the two lengths, at most. Redis' own matcher may take exponential time,
/// so the client sends a server only the text before the first special character.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // Where to continue after a mismatch: after the last `*`, which then takes one more byte.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(after) = rest.strip_prefix(b"*") {
            rest = after;
            retry = Some((after, left));
            continue;
        }
        let next = match (rest, left) {
            ([], []) => return true,
            (_, [byte, behind @ ..]) => step(rest, *byte).map(|rest| (rest, behind)),
            _ => None,
        };
        (rest, left) = match (next, retry) {
            (Some(next), _) => next,
            (None, Some((after, [_, longer @ ..]))) => {
                let again = (after, longer);
                retry = Some(again);
                again
            }
            (None, _) => return false,
        };
    }
}

/// The common beginning of all matching texts.
pub fn literal_start(pattern: &str) -> String {
    let mut start = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '[' => break,
            // At the end, it means itself.
            '\\' => start.push(chars.next().unwrap_or('\\')),
            _ => start.push(c),
        }
    }
    start
}

/// A pattern that matches this text alone.
pub fn escape(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// The rest of a pattern after its first element (not a `*`), if that element matches the byte.
fn step(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (fits, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => (true, rest),
        [b'\\', own, rest @ ..] => (*own == byte, rest),
        [b'[', class @ ..] => {
            let (class, wanted) = class.strip_prefix(b"^").map_or((class, true), |class| (class, false));
            let (class, rest) = class.split_at(class_end(class));
            // A class without a `]` goes to the end of the pattern.
            (is_in(class, byte) == wanted, rest.get(1..).unwrap_or_default())
        }
        [own, rest @ ..] => (*own == byte, rest),
    };
    fits.then_some(rest)
}

/// The index of the `]` that ends a class: neither escaped nor the end of a range.
fn class_end(class: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += match class.get(at..).unwrap_or_default() {
            [] | [b']', ..] => return at,
            [b'\\', _, ..] => 2,
            [_, b'-', _, ..] => 3,
            _ => 1,
        };
    }
}

fn is_in(mut class: &[u8], byte: u8) -> bool {
    let mut found = false;
    loop {
        class = match class {
            [] => return found,
            [b'\\', own, rest @ ..] => {
                found |= *own == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [own, rest @ ..] => {
                found |= *own == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, is_match) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXbYb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[abc]x", "bx", true),
            ("[^abc]x", "bx", false),
            ("[a-c]", "b", true),
            ("[c-a]", "b", true),
            ("[\\]]", "]", true),
            ("[ab", "a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("orders:*:eu", "orders:42:eu", true),
            ("**", "anything", true),
            ("ü?", "üb", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), is_match, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let text = "a".repeat(2000);
        assert!(!matches(format!("{}b", "a*".repeat(100)).as_bytes(), text.as_bytes()));
    }

    #[test]
    fn the_start_of_a_pattern_has_no_special_characters() {
        for (pattern, start) in [("orders:*", "orders:"), ("a\\*b?c", "a*b"), ("*", ""), ("x", "x"), ("a\\", "a\\")] {
            assert_eq!(literal_start(pattern), start);
        }
        for text in ["a*b", "[x]", "^-\\", "plain"] {
            assert!(matches(escape(text).as_bytes(), text.as_bytes()), "{text}");
        }
    }
}
