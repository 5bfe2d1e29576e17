//! The freezes of a server, with `strict_restart`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlock_proto::keys;
use fairlock_proto::reply::{Decode, Fields, Head, Malformed, ScriptReply};
use fairlock_proto::requests::boot::{Boot as Request, Booted};

#[cfg(doc)]
use super::dial::Place;
use super::options::Options;
use super::runtime::log_line;

/// One client's freeze for its server, and the last answer.
pub struct Boot {
    key: String,
    freeze: Duration,
    /// The end of the last logged freeze, by the server's clock.
    said: AtomicU64,
    frozen_until: AtomicU64,
    told: AtomicU64,
}

impl Boot {
    /// `None`: without `strict_restart`.
    pub fn new(options: &Options) -> Option<Self> {
        let freeze = options.freeze()?;
        let key = keys::boot(&options.prefix);
        Some(Self { key, freeze, said: AtomicU64::new(0), frozen_until: AtomicU64::new(0), told: AtomicU64::new(0) })
    }

    /// Whether another freeze has begun since the last [`tell`](Self::tell).
    pub fn has_news(&self) -> bool {
        self.frozen_until() != self.told.load(Ordering::Relaxed)
    }

    /// [`frozen_until`](Self::frozen_until), which the listener knows from now on.
    pub fn tell(&self) -> u64 {
        let frozen_until = self.frozen_until();
        self.told.store(frozen_until, Ordering::Relaxed);
        frozen_until
    }

    /// Server time, in ms since 1970. It may have passed.
    pub fn frozen_until(&self) -> u64 {
        self.frozen_until.load(Ordering::Relaxed)
    }

    /// `life`: a different text after each start and promotion of the server. `epoch`: see [`Place`].
    pub fn request(&self, life: String, epoch: u64) -> Request {
        Request { key: self.key.clone(), life, epoch, freeze: self.freeze }
    }

    /// Reads the reply, and logs each freeze of the server once.
    pub fn booted(&self, reply: &ScriptReply, address: &str) -> Result<(), Malformed> {
        let mut fields = Fields::new(reply);
        let head = Head::decode(&mut fields)?;
        let Booted { frozen_until } = Booted::decode(head.status, &mut fields)?;
        self.frozen_until.store(frozen_until, Ordering::Relaxed);
        let now = u64::try_from(head.server_ms()).unwrap_or(0);
        let left = Duration::from_millis(frozen_until.saturating_sub(now));
        if !left.is_zero() && self.said.swap(frozen_until, Ordering::Relaxed) != frozen_until {
            log_line(|| {
                tracing::warn!(
                    target: "fairlock::server",
                    address,
                    frozen_for = ?left,
                    frozen_until_ms = frozen_until,
                    "strict_restart: the server was restarted, promoted, or lost its data, and may have forgotten a \
                     lock: it grants none until the longest lease has ended"
                );
            });
        }
        Ok(())
    }
}
