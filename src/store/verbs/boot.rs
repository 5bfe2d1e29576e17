//! boot.lua: freezes a server that may have forgotten a grant. Each connection of a client with `strict_restart` sends
//! it first, so it goes past the runner.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::call::{Arg, arg, key};
#[cfg(doc)]
use crate::store::dial::Place;
use crate::store::keys;
use crate::store::options::Options;
use crate::store::reply::{Fields, Malformed, ScriptReply, unknown_status};
use crate::store::runtime::log_line;
use crate::store::script::Script;

pub static SCRIPT: Script = Script::new("boot", include_str!("../../../lua/boot.lua"));

/// One client's freeze for its server, and the last answer.
pub struct Boot {
    key: String,
    freeze: Duration,
    /// The end of the last logged freeze, by the server's clock.
    said: AtomicU64,
    /// The server's last answer.
    frozen_until: AtomicU64,
}

impl Boot {
    /// `None`: without `strict_restart`.
    pub fn new(options: &Options) -> Option<Self> {
        let freeze = options.freeze()?;
        let key = keys::boot(&options.prefix);
        Some(Self { key, freeze, said: AtomicU64::new(0), frozen_until: AtomicU64::new(0) })
    }

    /// Server time, in ms since 1970. It may have passed.
    pub fn frozen_until(&self) -> u64 {
        self.frozen_until.load(Ordering::Relaxed)
    }

    pub fn keys(&self) -> [&str; 1] {
        [key("boot", &self.key)]
    }

    /// `life`: another one after each start and each promotion of the server. `epoch`: see [`Place`].
    pub fn args<'a>(&self, life: &'a str, epoch: u64) -> [Arg<'a>; 3] {
        [arg("life", life), arg("epoch", epoch), arg("freeze", self.freeze)]
    }

    /// Reads the reply, and logs that the server is frozen: once for each freeze.
    pub fn booted(&self, reply: &ScriptReply, address: &str) -> Result<(), Malformed> {
        let mut fields = Fields::new(reply);
        let (status, _request) = (fields.text()?, fields.int()?);
        let now = fields.natural()? * 1000 + fields.natural()? / 1000;
        let frozen_until = decode(status, &mut fields)?;
        self.frozen_until.store(frozen_until, Ordering::Relaxed);
        let left = Duration::from_millis(frozen_until.saturating_sub(now));
        if !left.is_zero() && self.said.swap(frozen_until, Ordering::Relaxed) != frozen_until {
            log_line(|| {
                tracing::warn!(
                    target: "fairlock::server",
                    address,
                    frozen_for = ?left,
                    frozen_until_ms = frozen_until,
                    "strict_restart: the server was started anew, promoted, or lost its data, and may have forgotten a \
                     lock: none is granted until the longest lease is over"
                );
            });
        }
        Ok(())
    }
}

/// Until when the server grants nothing.
fn decode(status: &str, fields: &mut Fields<'_>) -> Result<u64, Malformed> {
    match status {
        "booted" => fields.natural(),
        _ => unknown_status(status),
    }
}
