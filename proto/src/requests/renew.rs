//! renew.lua: gives the holder its lease again, and confirms a grant.

use std::sync::Arc;
use std::time::Duration;

use super::{ClientArgs, ScriptRequest};
use crate::command::{Arg, Command, ScriptName, arg, key};
use crate::keys::Keys;
use crate::reply::{Decode, Fields, Malformed, unknown_status};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Renew {
    pub keys: Arc<Keys>,
    pub owner: Arc<str>,
    pub token: u64,
    pub lease: Duration,
    pub only: Only,
    /// Also renews the server's memory of the token, which must outlive a long hold (P2).
    pub remember: bool,
}

/// Whether the lease may also get shorter, see renew.lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Only {
    Longer,
    /// Longer, or shorter if the server has served no request after this attempt.
    Attempt(u64),
    /// Longer only, and from then on no request before this one makes it shorter.
    Extend(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Renewed {
    Renewed { lease_left: Duration },
    Lost,
}

impl ScriptRequest for Renew {
    type Reply = Renewed;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn command<'a>(&'a self, client: &'a ClientArgs) -> Command<'a> {
        let Keys { kind, lock, tokens, .. } = &*self.keys;
        let only = match self.only {
            Only::Longer => Arg::Natural(0),
            Only::Attempt(seq) => Arg::Natural(seq),
            Only::Extend(seq) => format!("+{seq}").into(),
        };
        // Usually one key: a cluster that moves a slot refuses a script over several keys when one is absent.
        let keys = [key("lock", &**lock), key("tokens", tokens).filter(|_| self.remember)];
        let args = [
            arg("owner", &self.owner),
            arg("token", self.token),
            arg("lease", self.lease),
            arg("only", only),
            arg("token_ttl", client.token_ttl).filter(|_| self.remember),
        ];
        Command::of(*kind, [ScriptName::Renew, ScriptName::SharedRenew], keys, args)
    }
}

impl Decode for Renewed {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        match status {
            "renewed" => Ok(Self::Renewed { lease_left: fields.millis()? }),
            "lost" => Ok(Self::Lost),
            _ => unknown_status(status),
        }
    }
}
