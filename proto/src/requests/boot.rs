//! boot.lua: freezes a server that may have forgotten a grant. With `strict_restart`, each connection sends it first,
//! so it goes past the limits of requests.

use std::time::Duration;

use crate::command::{Command, ScriptName, arg, key};
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Boot {
    /// See `keys::boot`.
    pub key: String,
    /// It changes with each start and each promotion of the server.
    pub life: String,
    /// The number of the last failover, as Sentinels count them; 0 without Sentinels.
    pub epoch: u64,
    pub freeze: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Booted {
    /// Server time in ms until which the server grants nothing. It may have passed.
    pub frozen_until: u64,
}

impl Boot {
    pub fn command(&self) -> Command<'_> {
        let args = [arg("life", &self.life), arg("epoch", self.epoch), arg("freeze", self.freeze)];
        Command::new(ScriptName::Boot, [key("boot", &self.key)], args)
    }
}

impl Decode for Booted {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "booted" => Ok(Self { frozen_until: fields.natural()? }),
            _ => unknown_status(status),
        }
    }
}
