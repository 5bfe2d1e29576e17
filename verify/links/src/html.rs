//! The links and the anchors of an HTML page.

use std::collections::BTreeSet;

#[derive(Default)]
pub struct Html {
    pub links: Vec<String>,
    pub anchors: BTreeSet<String>,
    /// The page to which this one redirects its readers at once, with their anchor.
    pub moved_to: Option<String>,
}

pub fn read(text: &str) -> Html {
    let mut html = Html::default();
    let mut rest = text;
    while let Some((_, inside)) = rest.split_once('<') {
        let (attributes, behind) = match inside.strip_prefix("!--") {
            Some(comment) => (Vec::new(), after(comment, "-->")),
            None => attributes(inside),
        };
        rest = if inside.starts_with("script") { after(behind, "</script") } else { behind };
        for (name, value) in attributes {
            match name {
                "href" | "src" => html.links.push(unescaped(value)),
                "id" | "name" => drop(html.anchors.insert(unescaped(value))),
                "content" => html.moved_to = value.strip_prefix("0;URL=").map(unescaped).or(html.moved_to),
                _ => {}
            }
        }
    }
    html
}

fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// The attributes of a tag, and the text after the tag. `text` begins with the name of the tag.
fn attributes(text: &str) -> (Vec<(&str, &str)>, &str) {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
        if rest.is_empty() || rest.starts_with('>') {
            return (found, rest);
        }
        let (name, behind) =
            rest.split_at(rest.find(|c: char| c.is_whitespace() || "=>".contains(c)).unwrap_or(rest.len()));
        let Some(value) = behind.strip_prefix('=') else {
            rest = behind;
            continue;
        };
        let (value, behind) = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split_once(quote).unwrap_or((&value[1..], "")),
            _ => value.split_at(value.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(value.len())),
        };
        found.push((name, value));
        rest = behind;
    }
}

fn unescaped(value: &str) -> String {
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#x27;", "'"), ("&amp;", "&")];
    entities.iter().fold(value.to_owned(), |text, (entity, c)| text.replace(entity, c))
}

#[cfg(test)]
mod tests {
    #[test]
    fn links_and_anchors_are_found_with_quotes_and_without() {
        let html = super::read(concat!(
            "<h1 id=\"a&amp;b\">1 < 2</h1> <a class=x href=#7 id=7 data-x>7</a> <img alt='a > b' src='x.svg'/>",
            "<!-- <a href=\"no\"> --> <script src=\"s.js\">\"<a href='no'>\"</script> <a\nhref=\"../b.html#c\">b</a>"
        ));
        assert_eq!(html.links, ["#7", "x.svg", "s.js", "../b.html#c"]);
        assert_eq!(html.anchors.iter().collect::<Vec<_>>(), ["7", "a&b"]);
        assert_eq!(html.moved_to, None);
        let moved = "<meta http-equiv=\"refresh\" content=\"0;URL=../b.html\"><meta content=\"c\">";
        assert_eq!(super::read(moved).moved_to.as_deref(), Some("../b.html"));
    }
}
