//! What the scripts answer, decoded. An answer that does not fit is an error of the connection,
//! never a guess.

use std::collections::BTreeMap;
use std::time::Duration;

/// One element of a reply as any store gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    Int(i64),
    Text(Vec<u8>),
}

/// A reply that no script gives: `store` turns it into "drop the connection, outcome unknown".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server gave a reply that fairlock does not know: {0}")]
pub(crate) struct Malformed(pub(crate) String);

/// Reads a reply from front to back.
pub(crate) struct Fields {
    rest: std::vec::IntoIter<Field>,
}

impl Fields {
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        Self { rest: fields.into_iter() }
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        match self.rest.next() {
            Some(Field::Text(bytes)) => {
                String::from_utf8(bytes).map_err(|error| Malformed(format!("text that is not UTF-8: {error}")))
            }
            other => Err(Malformed(format!("{other:?} in place of a text"))),
        }
    }

    /// An integer, as itself or as text: numbers past 2^31 come as text.
    pub(crate) fn int(&mut self) -> Result<i64, Malformed> {
        match self.rest.next() {
            Some(Field::Int(number)) => Ok(number),
            Some(Field::Text(bytes)) => std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| Malformed(format!("{bytes:?} in place of a number"))),
            None => Err(Malformed("it ends where a number should be".into())),
        }
    }

    fn natural(&mut self) -> Result<u64, Malformed> {
        let number = self.int()?;
        u64::try_from(number).map_err(|_| Malformed(format!("{number} where none below 0 can be")))
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.int()? == 1)
    }

    fn millis(&mut self) -> Result<Duration, Malformed> {
        self.natural().map(Duration::from_millis)
    }

    /// A time that the server gives as -1 or -2 when there is none.
    fn millis_if_any(&mut self) -> Result<Option<Duration>, Malformed> {
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    /// A token, or 0 for the empty text of "none".
    fn token(&mut self) -> Result<u64, Malformed> {
        let text = self.text()?;
        if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| Malformed(format!("token {text:?}"))) }
    }

    fn is_empty(&self) -> bool {
        self.rest.as_slice().is_empty()
    }
}

/// A script's answer, told apart by its status.
pub(crate) trait Decode: Sized {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed>;
}

fn unknown<T>(status: &str) -> Result<T, Malformed> {
    Err(Malformed(format!("status {status:?}")))
}

/// acquire.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquired {
    Held {
        token: u64,
        holds: u32,
        lease_left: Duration,
    },
    Queued {
        floor: u64,
        lease_left: Option<Duration>,
        more: bool,
    },
    Busy {
        more: bool,
    },
    Full {
        waiters: u64,
    },
    Lost,
    Late,
    /// A tombstone, or a later attempt: this attempt is over on the server.
    Over,
}

impl Decode for Acquired {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        Ok(match status {
            "held" => Self::Held {
                token: fields.token()?,
                holds: u32::try_from(fields.natural()?).map_err(|_| Malformed("too many holds".into()))?,
                lease_left: fields.millis()?,
            },
            "queued" => {
                Self::Queued { floor: fields.token()?, lease_left: fields.millis_if_any()?, more: fields.flag()? }
            }
            "busy" => Self::Busy { more: fields.flag()? },
            "full" => Self::Full { waiters: fields.natural()? },
            "lost" => Self::Lost,
            "late" => Self::Late,
            "left" | "stale" => Self::Over,
            _ => return unknown(status),
        })
    }
}

/// poll.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Polled {
    pub(crate) more: bool,
    pub(crate) floor: u64,
    pub(crate) lease_left: Option<Duration>,
    /// The ticket that is first in the queue, or nothing.
    pub(crate) first: String,
    /// Of the tickets asked about, by index, those that are not just queued.
    pub(crate) places: BTreeMap<usize, Place>,
}

/// Where a ticket stands that is not just queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Granted { token: u64, lease_left: Duration },
    Unknown,
}

impl Decode for Polled {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        if status != "polled" {
            return unknown(status);
        }
        let mut polled = Self {
            more: fields.flag()?,
            floor: fields.token()?,
            lease_left: fields.millis_if_any()?,
            first: fields.text()?,
            places: BTreeMap::new(),
        };
        while !fields.is_empty() {
            let (number, place) = (fields.natural()?, fields.text()?);
            let (token, lease_left) = (fields.token()?, fields.millis()?);
            let place = match place.as_str() {
                "granted" => Place::Granted { token, lease_left },
                "unknown" => Place::Unknown,
                _ => return unknown(&place),
            };
            let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
            polled.places.insert(index.ok_or_else(|| Malformed(format!("ticket number {number}")))?, place);
        }
        Ok(polled)
    }
}

/// leave.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) more: bool,
}

impl Decode for Left {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        match status {
            "freed" | "gone" => {
                fields.token()?;
                Ok(Self { more: fields.flag()? })
            }
            _ => unknown(status),
        }
    }
}

/// renew.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renewed {
    Renewed { lease_left: Duration },
    Lost,
}

impl Decode for Renewed {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        match status {
            "renewed" => Ok(Self::Renewed { lease_left: fields.millis()? }),
            "lost" => Ok(Self::Lost),
            _ => unknown(status),
        }
    }
}

/// release.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Released {
    Freed {
        token: u64,
        more: bool,
    },
    Held {
        holds: u32,
    },
    Gone {
        more: bool,
    },
    /// Not under this token, or a later request of the owner came before.
    Lost,
}

impl Decode for Released {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        Ok(match status {
            "freed" => Self::Freed { token: fields.token()?, more: fields.flag()? },
            "held" => {
                Self::Held { holds: u32::try_from(fields.natural()?).map_err(|_| Malformed("too many holds".into()))? }
            }
            "gone" => {
                fields.token()?;
                Self::Gone { more: fields.flag()? }
            }
            "lost" | "stale" => Self::Lost,
            _ => return unknown(status),
        })
    }
}

/// force_unlock.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ForceUnlocked {
    Freed { more: bool },
    Free { more: bool },
    Late,
}

impl Decode for ForceUnlocked {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        if status == "late" {
            return Ok(Self::Late);
        }
        fields.token()?;
        let more = fields.flag()?;
        match status {
            "freed" => Ok(Self::Freed { more }),
            "free" => Ok(Self::Free { more }),
            _ => unknown(status),
        }
    }
}

/// inspect.lua
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// Empty when nobody holds it.
    pub(crate) owner: String,
    pub(crate) holds: u32,
    pub(crate) token: u64,
    pub(crate) label: String,
    pub(crate) lease_left: Option<Duration>,
    pub(crate) waiters: u64,
    pub(crate) queue: Vec<InspectedWaiter>,
}

/// One living ticket of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InspectedWaiter {
    pub(crate) ticket: String,
    pub(crate) deadline_in: Duration,
    pub(crate) label: String,
}

impl Decode for Inspected {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed> {
        if status != "inspected" {
            return unknown(status);
        }
        let mut inspected = Self {
            owner: fields.text()?,
            holds: u32::try_from(fields.natural()?).map_err(|_| Malformed("too many holds".into()))?,
            token: fields.token()?,
            label: fields.text()?,
            lease_left: fields.millis_if_any()?,
            waiters: fields.natural()?,
            queue: Vec::new(),
        };
        while !fields.is_empty() {
            inspected.queue.push(InspectedWaiter {
                ticket: fields.text()?,
                deadline_in: fields.millis()?,
                label: fields.text()?,
            });
        }
        Ok(inspected)
    }
}

/// What the server pushes to a client's channel. A push is a hint (P9): one that cannot be read
/// is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push<'a> {
    /// `grant <token> <ms that it lasts> <ticket> <lock key>`
    Grant { token: u64, lease: Duration, ticket: &'a str },
    /// `revoked <token> <owner> <lock key>`
    Revoked { token: u64, owner: &'a str, lock: &'a str },
}

impl<'a> Push<'a> {
    pub(crate) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (kind, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let (token, rest) = rest.split_once(' ')?;
        let token = token.parse().ok()?;
        match kind {
            "grant" => {
                let (millis, rest) = rest.split_once(' ')?;
                let (ticket, _lock) = rest.split_once(' ')?;
                Some(Self::Grant { token, lease: Duration::from_millis(millis.parse().ok()?), ticket })
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
    fn an_unknown_reply_is_an_error_and_never_an_answer() {
        let mut empty = Fields::new(vec![]);
        assert!(Acquired::decode("acquired", &mut empty).is_err());
        assert!(Renewed::decode("renewed", &mut empty).is_err(), "a value is missing");
        let mut negative = Fields::new(vec![Field::Text(b"5".to_vec()), Field::Int(-1), Field::Int(1)]);
        assert!(Acquired::decode("held", &mut negative).is_err());
    }

    #[test]
    fn pushes_keep_names_with_spaces_and_ignore_strangers() {
        assert_eq!(
            Push::decode(b"revoked 7 a:1 fairlock:{n:x y}"),
            Some(Push::Revoked { token: 7, owner: "a:1", lock: "fairlock:{n:x y}" })
        );
        assert_eq!(
            Push::decode(b"grant 7 3000 a:1:2 fairlock:{n:x y}"),
            Some(Push::Grant { token: 7, lease: Duration::from_secs(3), ticket: "a:1:2" })
        );
        assert_eq!(Push::decode(b"grant 7 x a:1:2 k"), None);
        assert_eq!(Push::decode(b"hello"), None);
    }
}
