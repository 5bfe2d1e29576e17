//! Replies of scripts, read field by field. A reply that does not fit is an error of the connection,
//! never a guess.

use std::time::Duration;

/// One element of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    Int(i64),
    Text(Vec<u8>),
}

/// A reply that no script gives. The connection is dropped, and the outcome of the request is
/// unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected reply from the server: {0}")]
pub struct Malformed(pub String);

/// Reads a reply from front to back.
pub struct Fields {
    rest: std::vec::IntoIter<Field>,
}

impl Fields {
    pub fn new(fields: Vec<Field>) -> Self {
        Self { rest: fields.into_iter() }
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        match self.rest.next() {
            Some(Field::Text(bytes)) => {
                // Owners, tickets and labels are texts of this library. Other bytes come from another
                // place, so nothing in such a reply can be relied on.
                String::from_utf8(bytes).map_err(|error| Malformed(format!("text that is not UTF-8: {error}")))
            }
            other => Err(Malformed(format!("{other:?} where a text is expected"))),
        }
    }

    /// An integer. Numbers above 2^31 come as text, because Lua would round them.
    pub fn int(&mut self) -> Result<i64, Malformed> {
        match self.rest.next() {
            Some(Field::Int(number)) => Ok(number),
            Some(Field::Text(bytes)) => std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| Malformed(format!("{bytes:?} where a number is expected"))),
            None => Err(Malformed("it ends where a number is expected".into())),
        }
    }

    pub fn natural(&mut self) -> Result<u64, Malformed> {
        let number = self.int()?;
        u64::try_from(number).map_err(|_| Malformed(format!("the negative number {number}")))
    }

    /// How many holds an owner has.
    pub fn holds(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.natural()?).map_err(|_| Malformed("too many holds".into()))
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.int()? == 1)
    }

    pub fn millis(&mut self) -> Result<Duration, Malformed> {
        self.natural().map(Duration::from_millis)
    }

    /// A time to live: Redis says -1 or -2 when there is none.
    pub fn millis_if_any(&mut self) -> Result<Option<Duration>, Malformed> {
        // Without a lease is not the same as with a lease of 0, which would mean that it ends now.
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    /// A token, or 0 for the empty text, which means none.
    pub fn token(&mut self) -> Result<u64, Malformed> {
        let text = self.text()?;
        // Read as text, not as a number of Lua: a token that lost a digit would be another hold's
        // (P2).
        if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| Malformed(format!("the token {text:?}"))) }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.as_slice().is_empty()
    }
}

/// The reply of one script. Its first field, the status, tells which outcome it is.
pub trait Decode: Sized {
    fn decode(status: &str, fields: &mut Fields) -> Result<Self, Malformed>;
}

/// For the last arm of a `decode`.
pub fn unknown_status<T>(status: &str) -> Result<T, Malformed> {
    Err(Malformed(format!("the status {status:?}")))
}
