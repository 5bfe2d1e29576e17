//! The crates rslock and redis-lock, in the process of benches/peers.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use crate::child::Child;
use crate::contender::Shares;
use crate::{Outcome, ROOT};

pub const PEERS: [&str; 2] = ["rslock", "redis-lock"];

pub struct Peers(Child);

impl Peers {
    /// Builds the process if needed, from its own workspace. A build without optimization takes a third of the time,
    /// and is enough to see that the rows still run.
    pub async fn start(url: &str, is_optimized: bool) -> Outcome<Self> {
        let root = Path::new(ROOT);
        let target = root.join("target");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut build = Command::new(cargo);
        let (profile, folder) = if is_optimized { ("release", "release") } else { ("dev", "debug") };
        build.args(["build", "--profile", profile, "--locked", "--quiet", "--config", "profile.dev.debug=false"]);
        build.arg("--manifest-path").arg(root.join("benches/peers/Cargo.toml")).arg("--target-dir").arg(&target);
        if !build.status().await?.success() {
            return Err("benches/peers does not build".into());
        }
        let mut command = Command::new(target.join(folder).join("fairlock-peers"));
        command.arg(url);
        Ok(Self(Child::start(command)?))
    }

    pub async fn compete(&mut self, peer: &str, tasks: usize, hold: Duration, time: Duration) -> Outcome<Shares> {
        let line = format!("compete {peer} {tasks} {} {}", hold.as_micros(), time.as_millis());
        let answer = self.0.ask(&line).await?;
        let numbers: Vec<u64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let (longest, counts) = numbers.split_first().ok_or("an empty answer")?;
        Ok(Shares { counts: counts.to_vec(), longest_wait: Duration::from_nanos(*longest) })
    }
}
