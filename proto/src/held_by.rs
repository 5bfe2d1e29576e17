//! The holder of the lock, as an answer other than `held` names it for people to read.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::keys::label_of;
use crate::reply::{Fields, Malformed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    pub label: Box<str>,
    pub token: u64,
    /// When it was granted, in server time since 1970.
    pub since: Duration,
    /// At the time of the answer.
    pub lease_left: Option<Duration>,
}

impl Hash for HeldBy {
    /// Skips everything, because the machine decides nothing by it.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl HeldBy {
    /// Reads the field `!grant` at the end of an answer. `None` if it is absent, or if a client of another version
    /// wrote it.
    pub fn decode(lease_left: Option<Duration>, fields: &mut Fields<'_>) -> Option<Box<Self>> {
        if fields.is_empty() { None } else { Self::of_grant(lease_left, fields).ok().map(Box::new) }
    }

    fn of_grant(lease_left: Option<Duration>, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let _attempt = fields.natural()?;
        let (token, seconds, micros) = (fields.token()?, fields.natural()?, fields.natural()?);
        let since = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        let terms = fields.rest()?;
        if !terms.contains('/') {
            return Err(Malformed(format!("the terms {terms:?}")));
        }
        Ok(Self { label: label_of(terms).into(), token, since, lease_left })
    }
}
