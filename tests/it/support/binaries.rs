//! The command and the recipes, which tests run as processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

const NAMES: [&str; 4] = ["fairlock", "recipe-cron", "recipe-leader", "recipe-tenants"];

/// The folder of the binaries. One build makes all of them, with the features of `cargo test --workspace
/// --all-features`, so that nothing is built twice.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--workspace", "--all-features"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    build.args(NAMES.iter().flat_map(|name| ["--bin", name]));
    // Cargo compares these variables with its last run. With the values that it has set for this test, or that
    // `--report-time` needs, it would rebuild ring and everything that depends on it, and the next build without them
    // would do the same.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    build.env_remove("RUSTC_BOOTSTRAP");
    assert!(build.status().expect("cargo runs").success(), "the binaries are built");
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().with_file_name("debug")
});

/// Builds them before a test begins. A build inside the test would stop its runtime, and with it the renewals of its
/// own holds.
pub async fn build() {
    tokio::task::spawn_blocking(|| LazyLock::force(&FOLDER)).await.unwrap();
}

pub fn path(name: &str) -> PathBuf {
    FOLDER.join(name)
}
