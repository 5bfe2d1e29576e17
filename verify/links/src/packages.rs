//! The packages, from the output of cargo.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Outcome;

pub struct Package {
    pub name: String,
    /// The name of its library in code.
    pub library: Option<String>,
    /// The folder of the files below, within the repository.
    pub folder: PathBuf,
    pub repository: Option<String>,
    pub documentation: Option<String>,
    pub readme: Option<PathBuf>,
    /// The packed files. Empty for a package that is not published.
    pub files: BTreeSet<PathBuf>,
}

/// The packages of the workspace at the root.
pub fn read(root: &Path) -> Outcome<Vec<Package>> {
    let metadata = said(root, "cargo metadata --no-deps --locked --offline --format-version 1")?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    metadata["packages"].as_array().ok_or("no packages")?.iter().map(|package| package_of(root, package)).collect()
}

fn package_of(root: &Path, package: &Value) -> Outcome<Package> {
    let text = |key: &str| package[key].as_str().map(ToOwned::to_owned);
    let name = text("name").ok_or("no name")?;
    let manifest = text("manifest_path").map(PathBuf::from).ok_or("no manifest")?;
    let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok()).ok_or("outside of the root")?;
    let targets = package["targets"].as_array().ok_or("no targets")?;
    let library = targets.iter().find(|target| target["kind"][0] == "lib");
    let mut files = BTreeSet::new();
    if package["publish"].is_null() {
        let list =
            said(root, &format!("cargo package --package {name} --list --allow-dirty --locked --offline --quiet"))?;
        files.extend(list.lines().map(|file| folder.join(file)));
    }
    Ok(Package {
        library: library.and_then(|library| library["name"].as_str()).map(ToOwned::to_owned),
        repository: text("repository"),
        documentation: text("documentation"),
        readme: text("readme").map(|readme| folder.join(readme)),
        folder: folder.to_owned(),
        files,
        name,
    })
}

/// The output of a command.
pub fn said(folder: &Path, command: &str) -> Outcome<String> {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).current_dir(folder).output()?;
    if !output.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
