//! Messages that scripts publish to a client's channel.

use std::time::Duration;

/// A push is a hint (P9): the client drops a malformed push, and a poll finds the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Push<'a> {
    /// `grant <token> <ms that it lasts> <ticket> <lock key>`
    Grant { token: u64, lease: Duration, ticket: &'a str, lock: &'a str },
    /// `revoked <token> <owner> <lock key>`
    Revoked { token: u64, owner: &'a str, lock: &'a str },
}

impl<'a> Push<'a> {
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (kind, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let (token, rest) = rest.split_once(' ')?;
        let token = token.parse().ok()?;
        match kind {
            "grant" => {
                // The duration of the grant, by the options of the client that passed the lock on. They may differ
                // from those here (decision 1).
                let (millis, rest) = rest.split_once(' ')?;
                // The lock key comes last, because it may contain spaces.
                let (ticket, lock) = rest.split_once(' ')?;
                Some(Self::Grant { token, lease: Duration::from_millis(millis.parse().ok()?), ticket, lock })
            }
            "revoked" => {
                let (owner, lock) = rest.split_once(' ')?;
                Some(Self::Revoked { token, owner, lock })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_keep_names_with_spaces_and_ignore_strangers() {
        assert_eq!(
            Push::decode(b"revoked 7 a:1 fairlock:{n:x y}"),
            Some(Push::Revoked { token: 7, owner: "a:1", lock: "fairlock:{n:x y}" })
        );
        assert_eq!(
            Push::decode(b"grant 7 3000 a:1:2 fairlock:{n:x y}"),
            Some(Push::Grant { token: 7, lease: Duration::from_secs(3), ticket: "a:1:2", lock: "fairlock:{n:x y}" })
        );
        assert_eq!(Push::decode(b"grant 7 x a:1:2 k"), None);
        assert_eq!(Push::decode(b"hello"), None);
    }
}
