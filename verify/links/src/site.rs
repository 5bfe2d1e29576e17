//! Finds the target of a link, and whether it exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::packages::{self, Package, said};
use crate::pages::Page;
use crate::{Outcome, html};

/// Links in texts of tracing and of the standard library, which rustdoc copies.
const OF_OTHERS: [&str; 2] = ["dispatcher#setting-the-default-subscriber", "../../../nomicon/atomics.html"];

pub struct Site {
    pub root: PathBuf,
    /// The folder of the built documentation.
    pub doc: PathBuf,
    /// The files of the repository, and all folders above them.
    pub files: BTreeSet<PathBuf>,
    pub packages: Vec<Package>,
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Site {
    pub fn read(doc: &Path) -> Outcome<Self> {
        let root = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
        let listed = said(&root, "git ls-files -z --cached --others --exclude-standard")?;
        let is_there = |file: &&Path| root.join(file).is_file();
        let files = listed.split_terminator('\0').map(Path::new).filter(is_there).flat_map(Path::ancestors);
        let files = files.map(Path::to_owned).collect();
        let packages = packages::read(&root)?;
        Ok(Self { doc: doc.to_owned(), files, packages, root, anchors: BTreeMap::new() })
    }

    pub fn libraries(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().filter_map(|package| package.library.as_deref())
    }

    /// Whether the file is a page of these libraries, not of others that were built before.
    pub fn is_documentation(&self, file: &Path) -> bool {
        let within = file.strip_prefix(&self.doc).map(|within| within.strip_prefix("src").unwrap_or(within));
        let is_html = file.extension().is_some_and(|ending| ending == "html");
        is_html && within.is_ok_and(|within| self.libraries().any(|library| within.starts_with(library)))
    }

    /// The file that a link on this page leads to, or none for another site.
    pub fn follow(&mut self, page: &Path, link: &str) -> Result<Option<PathBuf>, String> {
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let Some(file) = self.file(page, link, path.split('?').next().unwrap_or(path))? else { return Ok(None) };
        let file = if file.starts_with(&self.doc) && file.is_dir() { file.join("index.html") } else { file };
        if !self.has(&file) {
            return Err("there is no such file".to_owned());
        }
        match anchor {
            Some(anchor) if !self.has_anchor(&file, anchor) => Err(format!("{} has no such place", file.display())),
            _ => Ok(Some(file)),
        }
    }

    /// For docs.rs and the repository on the web, it uses the files that are to be published.
    fn file(&self, page: &Path, link: &str, path: &str) -> Result<Option<PathBuf>, String> {
        if path.is_empty() {
            return Ok(Some(page.to_owned()));
        }
        if let Some(published) = self.published(path) {
            return published.map(Some);
        }
        let is_elsewhere = path.split(['/', '.']).next().is_some_and(|word| word.contains(':'));
        let is_here = !is_elsewhere && !OF_OTHERS.contains(&link);
        Ok(is_here.then(|| joined(page.parent().unwrap_or(page), path)))
    }

    /// The file for a link to one of our pages on the web.
    fn published(&self, url: &str) -> Option<Result<PathBuf, String>> {
        if let Some(within) = url.strip_prefix("https://docs.rs/crate/") {
            let (package, source) = within.split_once('/').unwrap_or((within, ""));
            let package = self.packages.iter().find(|own| own.name == package)?;
            let file = source.strip_prefix("latest/source/").map(|file| package.folder.join(file));
            let packed = file.filter(|file| package.files.contains(file)).map(|file| self.root.join(file));
            return Some(packed.ok_or_else(|| format!("is not packed with {}", package.name)));
        }
        if let Some(within) = url.strip_prefix("https://docs.rs/") {
            let (package, page) = within.split_once('/').unwrap_or((within, ""));
            let own = self.packages.iter().find(|own| own.name == package && !own.files.is_empty())?;
            let Some(library) = &own.library else { return Some(Err(format!("{package} has no library"))) };
            let page = page.strip_prefix("latest/").unwrap_or(page);
            return Some(Ok(self.doc.join(if page.is_empty() { library } else { page })));
        }
        let repository = self.packages.iter().find_map(|own| own.repository.as_deref())?;
        let within = url.strip_prefix(repository)?.trim_start_matches('/');
        let path = ["blob/main/", "tree/main/"].iter().find_map(|start| within.strip_prefix(start));
        match path {
            Some(path) => Some(Ok(joined(&self.root, path))),
            None if within.is_empty() => Some(Ok(self.root.clone())),
            None => Some(Err("is neither the repository nor a file of its branch main".to_owned())),
        }
    }

    /// The folder of the documentation may be inside the repository.
    fn has(&self, file: &Path) -> bool {
        let is_tracked = || file.strip_prefix(&self.root).is_ok_and(|file| self.files.contains(file));
        if file.starts_with(&self.doc) { file.is_file() } else { is_tracked() }
    }

    fn has_anchor(&mut self, file: &Path, anchor: &str) -> bool {
        if !self.anchors.contains_key(file) {
            self.anchors.insert(file.to_owned(), anchors_of(file));
        }
        let anchors = &self.anchors[file];
        // rustdoc's script goes to `#7-9` of a source.
        let line = anchor.split('-').next().filter(|line| line.bytes().all(|byte| byte.is_ascii_digit()));
        anchor.is_empty() || anchors.contains(anchor) || line.is_some_and(|line| anchors.contains(line))
    }
}

fn anchors_of(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("html") => {
            let html = html::read(&text);
            // The page's script keeps the anchor.
            html.moved_to.map_or(html.anchors, |page| anchors_of(&joined(file.parent().unwrap_or(file), &page)))
        }
        Some("md") => Page::of_markdown(&text).anchors,
        _ => BTreeSet::new(),
    }
}

/// Removes each `..`, even if there is no such folder.
fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut joined = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(joined.pop()),
            Component::CurDir => {}
            part => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        let package = Package {
            name: "a-b".to_owned(),
            library: Some("a_b".to_owned()),
            folder: PathBuf::new(),
            repository: Some("https://github.com/a/b".to_owned()),
            documentation: None,
            readme: None,
            files: BTreeSet::from(["docs/c.md".into()]),
        };
        let files = ["docs/c.md", "docs", ""].map(PathBuf::from).into();
        let anchors = BTreeMap::from([("/r/docs/c.md".into(), BTreeSet::from(["d".to_owned()]))]);
        Site { root: "/r".into(), doc: "/r/target/doc".into(), files, packages: vec![package], anchors }
    }

    const PAGE: &str = "/r/docs/x.md";

    #[test]
    fn links_lead_to_files_here_or_to_sites_of_others() {
        for (link, file) in [
            ("c.md", "/r/docs/c.md"),
            ("../e.md", "/r/e.md"),
            ("", PAGE),
            ("https://docs.rs/a-b", "/r/target/doc/a_b"),
            ("https://docs.rs/a-b/latest/a_b/c.html", "/r/target/doc/a_b/c.html"),
            ("https://docs.rs/crate/a-b/latest/source/docs/c.md", "/r/docs/c.md"),
            ("https://github.com/a/b", "/r"),
            ("https://github.com/a/b/blob/main/docs/c.md", "/r/docs/c.md"),
        ] {
            assert_eq!(site().file(Path::new(PAGE), link, link), Ok(Some(file.into())), "{link}");
        }
        for link in
            ["https://docs.rs/tokio", "https://docs.rs/crate/tokio/latest", "mailto:a@b", "http://localhost:1/a"]
        {
            assert_eq!(site().file(Path::new(PAGE), link, link), Ok(None), "{link}");
        }
    }

    #[test]
    fn dead_links_are_found() {
        let follow = |link: &str| site().follow(Path::new(PAGE), link);
        for link in ["c.md", "c.md#d", "../docs", "https://github.com/a/b/tree/main/docs"] {
            assert!(follow(link).is_ok_and(|file| file.is_some()), "{link}");
        }
        for link in [
            "d.md",
            "c.md#e",
            "../../c.md",
            "https://docs.rs/a-b/latest/a_b/c.html",
            "https://docs.rs/crate/a-b/latest/source/e.md",
            "https://github.com/a/b/blob/main/e.md",
            "https://github.com/a/b/issues",
        ] {
            assert!(follow(link).is_err(), "{link}");
        }
    }
}
