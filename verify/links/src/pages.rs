//! The links of a Markdown page, or of a source's comments, and the names of its headings on GitHub.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::html;

/// A line, counted from 1, and its text.
type At = (usize, String);

#[derive(Default)]
pub struct Page {
    pub links: Vec<At>,
    /// The names of links without a target.
    pub undefined: Vec<At>,
    pub anchors: BTreeSet<String>,
}

impl Page {
    pub fn of_markdown(text: &str) -> Self {
        let mut page = Self::default();
        let line = |offset: usize| text[..offset].matches('\n').count() + 1;
        let mut undefined = Vec::new();
        let broken = |link: BrokenLink<'_>| {
            // `[x]` alone is often text.
            if matches!(link.link_type, LinkType::Reference | LinkType::Collapsed) {
                undefined.push((line(link.span.start), link.reference.to_string()));
            }
            None
        };
        let mut parser =
            Parser::new_with_broken_link_callback(text, Options::ENABLE_TABLES, Some(broken)).into_offset_iter();
        let (mut heading, mut headings) = (None::<String>, BTreeMap::new());
        for (event, span) in parser.by_ref() {
            match event {
                Event::Start(
                    Tag::Link { link_type: LinkType::Inline | LinkType::Autolink, dest_url, .. }
                    | Tag::Image { link_type: LinkType::Inline, dest_url, .. },
                ) => page.links.push((line(span.start), dest_url.to_string())),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|heading| numbered(slug(&heading), &mut headings)));
                }
                Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
                Event::Html(text) | Event::InlineHtml(text) => {
                    let html = html::read(&text);
                    page.links.extend(html.links.into_iter().map(|link| (line(span.start), link)));
                    page.anchors.extend(html.anchors);
                }
                _ => {}
            }
        }
        let defined = parser.reference_definitions().iter();
        page.links.extend(defined.map(|(_, defined)| (line(defined.span.start), defined.dest.to_string())));
        page.undefined = undefined;
        page
    }

    /// Without links to items, which rustdoc checks.
    pub fn of_comments(source: &str) -> Self {
        let mut page = Self::default();
        for (first, text) in comments(source) {
            let links = Self::of_markdown(&text).links.into_iter();
            let is_file = |link: &str| link.contains(['/', '.']) && (link.contains("://") || !link.contains("::"));
            page.links.extend(links.filter(|(_, link)| is_file(link)).map(|(line, link)| (first + line - 1, link)));
        }
        page
    }
}

/// The comments that rustdoc reads: their first lines, and their texts.
fn comments(source: &str) -> Vec<At> {
    let mut found: Vec<At> = Vec::new();
    let mut is_inside = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(text) = text {
            if !is_inside {
                found.push((index + 1, String::new()));
            }
            if let Some((_, comment)) = found.last_mut() {
                comment.push_str(text);
                comment.push('\n');
            }
        }
        is_inside = text.is_some();
    }
    found
}

/// The name of a heading, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// GitHub adds `-1` to the second heading of a name.
fn numbered(slug: String, seen: &mut BTreeMap<String, usize>) -> String {
    let count = seen.entry(slug.clone()).or_default();
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

#[cfg(test)]
mod tests {
    use super::Page;

    fn at(found: &[(usize, String)]) -> Vec<(usize, &str)> {
        found.iter().map(|(line, text)| (*line, text.as_str())).collect()
    }

    #[test]
    fn a_page_has_links_names_without_a_target_and_anchors() {
        let page = Page::of_markdown(concat!(
            "# One: `two` & three_4\n\n[a](b.md#c) `[no](no.md)` [d][e], [f][g] and [h]\n\n## Same\n\n## Same\n\n",
            "| [i](j.md) |\n|---|\n\n```\n[no](no.md)\n```\n\n<a id=\"k\" href=\"l.md\"></a>\n\n[e]: m.md\n"
        ));
        assert_eq!(at(&page.links), [(3, "b.md#c"), (9, "j.md"), (16, "l.md"), (18, "m.md")]);
        assert_eq!(at(&page.undefined), [(3, "g")]);
        assert_eq!(page.anchors.iter().collect::<Vec<_>>(), ["k", "one-two--three_4", "same", "same-1"]);
    }

    #[test]
    fn comments_have_links_to_files_and_sites() {
        let page = Page::of_comments(concat!(
            "//! A [file](a/b.rs), and an [item](crate::c)\n\nfn d() {}\n",
            "    /// [e](../f.md)\n    /// [g](https://docs.rs/g)\n    fn h() {} // [no](no.md)\n"
        ));
        assert_eq!(at(&page.links), [(1, "a/b.rs"), (4, "../f.md"), (5, "https://docs.rs/g")]);
    }
}
