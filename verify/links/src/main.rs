//! `fairlock-links DOC` checks links: in the pages and comments of the repository, in the documentation that
//! `cargo doc` built in the folder DOC, and in the packages to publish. It does not ask other sites. Exit code 1: a
//! link is dead.

mod html;
mod packages;
mod pages;
mod site;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use packages::Package;
use pages::Page;
use site::Site;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<ExitCode> {
    let doc = env::args().nth(1).ok_or("usage: fairlock-links DOC")?;
    let mut site = Site::read(&fs::canonicalize(&doc).map_err(|error| format!("{doc}: {error}"))?)?;
    let mut report = Report::default();
    repository(&mut site, &mut report)?;
    documentation(&mut site, &mut report)?;
    report.dead.iter().for_each(|dead| eprintln!("{dead}"));
    println!("{} links, {} of them dead", report.links, report.dead.len());
    Ok(if report.dead.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Report {
    links: usize,
    dead: BTreeSet<String>,
}

impl Report {
    /// Adds a link, and the problem with it if there is one.
    fn add(&mut self, place: String, link: &str, found: Result<(), String>) {
        self.links += 1;
        if let Err(problem) = found {
            self.dead.insert(format!("{place}: {link}: {problem}"));
        }
    }
}

/// Checks the pages and the comments, and that those in a package do not lead out of it.
fn repository(site: &mut Site, report: &mut Report) -> io::Result<()> {
    for file in site.files.clone() {
        let text = || text(&site.root.join(&file));
        let page = match file.extension().and_then(|ending| ending.to_str()) {
            Some("md") => Page::of_markdown(&text()?),
            Some("rs") => Page::of_comments(&text()?),
            _ => continue,
        };
        let place = |line: usize| format!("{}:{line}", file.display());
        for (line, name) in page.undefined {
            report.add(place(line), &name, Err("is not defined on this page".to_owned()));
        }
        for (line, link) in page.links {
            let target = site.follow(&site.root.join(&file), &link);
            let found =
                target.and_then(|target| target.map_or(Ok(()), |target| packed_with(site, &file, &target, &link)));
            report.add(place(line), &link, found);
        }
    }
    let urls = |package: &Package| package.documentation.clone().map(|url| (package.name.clone(), url));
    for (package, url) in site.packages.iter().filter_map(urls).collect::<Vec<_>>() {
        let found = site.follow(&site.root.clone(), &url).map(|_| ());
        report.add(package, &url, found);
    }
    Ok(())
}

/// crates.io resolves the links of a README by the repository, but not the links of other files in a package.
fn packed_with(site: &Site, file: &Path, target: &Path, link: &str) -> Result<(), String> {
    let has_it = |package: &Package| target.strip_prefix(&site.root).is_ok_and(|target| package.files.contains(target));
    let is_left = |package: &&Package| {
        package.files.contains(file) && package.readme.as_deref() != Some(file) && !has_it(package)
    };
    match site.packages.iter().find(is_left) {
        Some(package) if !link.contains("://") => Err(format!("is not packed with {}", package.name)),
        _ => Ok(()),
    }
}

/// Checks the pages that readers can reach from the first page of each library. Files of an earlier build may lie next
/// to them.
fn documentation(site: &mut Site, report: &mut Report) -> io::Result<()> {
    let mut open: Vec<PathBuf> = site.libraries().map(|name| site.doc.join(name).join("index.html")).collect();
    let mut seen: BTreeSet<PathBuf> = open.iter().cloned().collect();
    while let Some(page) = open.pop() {
        for link in html::read(&text(&page)?).links {
            let found = site.follow(&page, &link).map(|target| {
                let next = target.filter(|target| site.is_documentation(target));
                open.extend(next.filter(|next| seen.insert(next.clone())));
            });
            report.add(page.display().to_string(), &link, found);
        }
    }
    Ok(())
}

fn text(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}
