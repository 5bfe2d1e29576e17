//! A handle: a hold that outlives its guard.
//!
//! R16: a detached hold belongs to an owner of the handle's own, and to no client. So neither polls nor leaves of its
//! former client touch it, and a late renewal finds nothing. An attach gives it to an owner of a client, under the
//! same token.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::keys::{Keys, Kind, LONGEST_NAME};
use crate::requests::release::Release;
use crate::time::ServerTime;

/// The only seq of the owner of a handle: only a release by handle ends its hold.
pub const SEQ: u64 = 1;

/// In ms of server time: the year 5138.
const LATEST: i64 = 99_999_999_999_999;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    pub kind: Kind,
    pub name: String,
    /// Made for this handle: `<client id>-<seq>:0`.
    pub owner: Arc<str>,
    pub token: u64,
    pub lease: Duration,
    /// Until then the server may still serve a copy of the detach; 0 after an answer.
    pub copies_until: ServerTime,
}

impl Hash for Handle {
    /// Skips the owner, which no other handle has, and whose seq would make every state a new one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { kind, name, owner: _, token, lease, copies_until } = self;
        (kind, name, token, lease, copies_until).hash(state);
    }
}

impl Handle {
    /// Whether a detach can make this handle. With a client's owner in it, it would take the hold from a guard without
    /// a notice, and even a forced unlock sends one (R16).
    pub fn is_well_formed(&self) -> bool {
        let number = self.owner.strip_suffix(":0").and_then(|owner| owner.rsplit_once('-')).map(|(_, number)| number);
        number.is_some_and(|number| number.parse::<u64>().is_ok())
            && self.kind != Kind::RwLock
            && (1..=LONGEST_NAME).contains(&self.name.len())
            && (0..=LATEST).contains(&self.copies_until.0)
    }

    /// R16: whether the server, which found nothing at `server_ms`, may still serve a copy of the detach.
    pub fn is_undecided(&self, server_ms: i64) -> bool {
        (1..=self.copies_until.0).contains(&server_ms)
    }

    /// Gives back the hold. A copy of the detach that comes later finds a tombstone (R16).
    pub fn release(&self, keys: Arc<Keys>) -> Release {
        Release {
            keys,
            owner: self.owner.clone(),
            token: self.token,
            holds: 0,
            weight: 1,
            seq: SEQ,
            attempt: SEQ,
            copies_until: self.copies_until.0,
            terms: "".into(),
            is_handle: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        Handle {
            kind: Kind::Lock,
            name: "x".into(),
            owner: "client-5:0".into(),
            token: 7,
            lease: Duration::from_secs(1),
            copies_until: ServerTime(0),
        }
    }

    /// R16: with the owner of a guard, it would take the hold from that guard.
    #[test]
    fn a_handle_has_an_owner_of_its_own_and_values_that_a_client_writes() {
        assert!(handle().is_well_formed());
        for owner in ["client:5", "client:0", "client-5:1", "client-x:0", "client-:0", "client-5"] {
            assert!(!Handle { owner: owner.into(), ..handle() }.is_well_formed(), "{owner}");
        }
        for length in [0, LONGEST_NAME + 1] {
            assert!(!Handle { name: "x".repeat(length), ..handle() }.is_well_formed());
        }
        for time in [-1, LATEST + 1] {
            assert!(!Handle { copies_until: ServerTime(time), ..handle() }.is_well_formed());
        }
        assert!(!Handle { kind: Kind::RwLock, ..handle() }.is_well_formed());
    }

    #[test]
    fn a_detach_that_had_no_answer_is_undecided_until_its_last_copy() {
        let handle = Handle { copies_until: ServerTime(100), ..handle() };
        assert_eq!([0, 1, 100, 101].map(|now| handle.is_undecided(now)), [false, true, true, false]);
        assert!(!self::handle().is_undecided(1), "it was answered");
    }
}
