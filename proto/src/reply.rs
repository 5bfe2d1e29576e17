//! Reads the replies of scripts field by field. A reply that does not fit is an error of the connection, never a
//! guess.

use std::time::Duration;

/// The reply of a script.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ScriptReply {
    /// Words with a space between them: the cheapest reply for both sides.
    Text(Vec<u8>),
    /// For replies in which a field may have any text.
    List(Vec<Field>),
}

/// One element of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field {
    Int(i64),
    Text(Vec<u8>),
}

impl ScriptReply {
    pub fn is_status(&self, status: &str) -> bool {
        Fields::new(self).text().is_ok_and(|first| first == status)
    }
}

/// A reply that no script gives. The client drops the connection, and the outcome of the request is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("unexpected reply from the server: {0}")]
pub struct Malformed(pub String);

/// Reads a reply from front to back.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: Rest<'a>,
}

#[derive(Debug, Clone)]
enum Rest<'a> {
    /// `None` after the last one.
    Words(Option<&'a [u8]>),
    List(std::slice::Iter<'a, Field>),
}

impl<'a> Fields<'a> {
    pub fn new(reply: &'a ScriptReply) -> Self {
        let rest = match reply {
            ScriptReply::Text(bytes) => Rest::Words(Some(bytes)),
            ScriptReply::List(fields) => Rest::List(fields.iter()),
        };
        Self { rest }
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        utf8(self.bytes()?)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let missing = || Malformed("it ends where a text is expected".into());
        match &mut self.rest {
            Rest::Words(words) => {
                let bytes = words.ok_or_else(missing)?;
                // Byte by byte: for such short words `split` takes four times as long.
                let end = bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len());
                *words = bytes.get(end + 1..);
                Ok(bytes.get(..end).unwrap_or_default())
            }
            Rest::List(fields) => match fields.next().ok_or_else(missing)? {
                Field::Text(bytes) => Ok(bytes),
                other => Err(Malformed(format!("{other:?} where a text is expected"))),
            },
        }
    }

    /// An integer. In a list, numbers above 2^31 come as text, because Lua would round them.
    pub fn int(&mut self) -> Result<i64, Malformed> {
        if let Rest::List(fields) = &mut self.rest
            && let [Field::Int(number), rest @ ..] = fields.as_slice()
        {
            *fields = rest.iter();
            return Ok(*number);
        }
        let bytes = self.bytes()?;
        let (digits, sign) = bytes.strip_prefix(b"-").map_or((bytes, 1), |digits| (digits, -1));
        let number = natural(digits).and_then(|number| i64::try_from(number).ok()).map(|number| sign * number);
        number.ok_or_else(|| Malformed(format!("{:?} where a number is expected", String::from_utf8_lossy(bytes))))
    }

    pub fn natural(&mut self) -> Result<u64, Malformed> {
        let number = self.int()?;
        u64::try_from(number).map_err(|_| Malformed(format!("the negative number {number}")))
    }

    /// The number that only the scripts for shared names send, at the end of a reply, or else 0.
    pub fn last_natural(&mut self) -> Result<u32, Malformed> {
        if self.is_empty() { Ok(0) } else { self.small() }
    }

    /// A number of holds, a weight, a limit, or the like.
    pub fn small(&mut self) -> Result<u32, Malformed> {
        let number = self.natural()?;
        u32::try_from(number).map_err(|_| Malformed(format!("{number} is too much")))
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.int()? == 1)
    }

    pub fn millis(&mut self) -> Result<Duration, Malformed> {
        self.natural().map(Duration::from_millis)
    }

    /// A time to live: Redis returns -1 or -2 when there is none.
    pub fn millis_if_any(&mut self) -> Result<Option<Duration>, Malformed> {
        // No lease is not the same as a lease of 0, which would mean that it ends now.
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    /// A token, or 0 for the empty text, which means none.
    pub fn token(&mut self) -> Result<u64, Malformed> {
        let bytes = self.bytes()?;
        // Read as text, not as a number of Lua: a token that lost a digit would be another hold's (P2).
        let token = if bytes.is_empty() { Some(0) } else { natural(bytes) };
        token.ok_or_else(|| Malformed(format!("the token {:?}", String::from_utf8_lossy(bytes))))
    }

    /// Everything that is left, with its spaces. In a list, the next text.
    pub fn rest(&mut self) -> Result<&'a str, Malformed> {
        match &mut self.rest {
            Rest::Words(words) => utf8(words.take().unwrap_or_default()),
            Rest::List(_) => self.text(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match &self.rest {
            Rest::Words(words) => words.is_none(),
            Rest::List(fields) => fields.as_slice().is_empty(),
        }
    }
}

/// A number with this many digits always fits. No script sends more.
const MOST_DIGITS: usize = 19;

/// A number without a sign. `str::parse` takes twice as long, partly because it checks for an overflow at each digit.
fn natural(digits: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| Some(u64::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10);
    let append = |number: u64, byte: &u8| Some(10 * number + digit(byte)?);
    if (1..=MOST_DIGITS).contains(&digits.len()) { digits.iter().try_fold(0, append) } else { None }
}

/// Owners, tickets and labels are texts of this library. Other bytes come from another place, so nothing in such a
/// reply is reliable.
fn utf8(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|error| Malformed(format!("text that is not UTF-8: {error}")))
}

/// The beginning of each reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head<'a> {
    /// The outcome.
    pub status: &'a str,
    /// The number of the request that it answers.
    pub request: i64,
    /// The server's clock, in seconds since 1970, or 0 if the script did not read it.
    pub seconds: i64,
    /// The microseconds on top of the seconds.
    pub micros: i64,
}

impl<'a> Head<'a> {
    pub fn decode(fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        let (status, request) = (fields.text()?, fields.int()?);
        Ok(Self { status, request, seconds: fields.int()?, micros: fields.int()? })
    }

    /// The server's clock in milliseconds since 1970, or 0 if the script did not read it.
    pub fn server_ms(&self) -> i64 {
        self.seconds * 1000 + self.micros / 1000
    }
}

/// The reply of one script. Its first field, the status, is the outcome.
pub trait Decode: Sized {
    fn decode(status: &str, fields: &mut Fields<'_>) -> Result<Self, Malformed>;
}

/// For the last arm of a `decode`.
pub fn unknown_status<T>(status: &str) -> Result<T, Malformed> {
    Err(Malformed(format!("the status {status:?}")))
}
