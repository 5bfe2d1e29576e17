//! The command and the recipes, which tests run as processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

const NAMES: [&str; 4] = ["fairlock", "recipe-cron", "recipe-leader", "recipe-tenants"];

/// The folder of the binaries. One build for all of them, with the features of `cargo test --workspace --all-features`, so that
/// nothing is built twice.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--workspace", "--all-features"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // With this, which `--report-time` needs, cargo would build everything anew.
    build.args(NAMES.iter().flat_map(|name| ["--bin", name])).env_remove("RUSTC_BOOTSTRAP");
    assert!(build.status().expect("cargo runs").success(), "the binaries are built");
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().with_file_name("debug")
});

pub fn path(name: &str) -> PathBuf {
    FOLDER.join(name)
}
