//! One run of a script: its keys and arguments.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::keys::Kind;

/// A script of `lua/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScriptName {
    Acquire,
    Boot,
    ForceUnlock,
    Give,
    Inspect,
    Leave,
    Poll,
    Raise,
    Release,
    Renew,
    SharedAcquire,
    SharedForceUnlock,
    SharedGive,
    SharedInspect,
    SharedLeave,
    SharedPoll,
    SharedRelease,
    SharedRenew,
    SharedSetLimit,
}

impl ScriptName {
    /// All scripts, in order.
    pub const ALL: [Self; 19] = [
        Self::Acquire,
        Self::Boot,
        Self::ForceUnlock,
        Self::Give,
        Self::Inspect,
        Self::Leave,
        Self::Poll,
        Self::Raise,
        Self::Release,
        Self::Renew,
        Self::SharedAcquire,
        Self::SharedForceUnlock,
        Self::SharedGive,
        Self::SharedInspect,
        Self::SharedLeave,
        Self::SharedPoll,
        Self::SharedRelease,
        Self::SharedRenew,
        Self::SharedSetLimit,
    ];

    /// The script's file in `lua/`, without the extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Boot => "boot",
            Self::ForceUnlock => "force_unlock",
            Self::Give => "give",
            Self::Inspect => "inspect",
            Self::Leave => "leave",
            Self::Poll => "poll",
            Self::Raise => "raise",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::SharedAcquire => "shared/acquire",
            Self::SharedForceUnlock => "shared/force_unlock",
            Self::SharedGive => "shared/give",
            Self::SharedInspect => "shared/inspect",
            Self::SharedLeave => "shared/leave",
            Self::SharedPoll => "shared/poll",
            Self::SharedRelease => "shared/release",
            Self::SharedRenew => "shared/renew",
            Self::SharedSetLimit => "shared/set_limit",
        }
    }

    /// Whether the script is for names that several owners may hold at a time.
    pub fn is_shared(self) -> bool {
        self.name().starts_with("shared/")
    }
}

/// KEYS of a script, in the order of its header. Unneeded keys are absent: each key costs time, and an ACL that allows
/// only the prefix forbids the empty key.
pub type SentKeys<'a, const N: usize> = [Option<Cow<'a, str>>; N];

/// The most KEYS of a script.
pub const MOST_KEYS: usize = 7;
/// The most arguments of a script, without the request's number.
const MOST_ARGS: usize = 9;

/// One run of a script. It has room for the longest one, so it allocates nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Command<'a> {
    pub script: ScriptName,
    keys: SentKeys<'a, MOST_KEYS>,
    args: [Option<Arg<'a>>; MOST_ARGS],
}

impl<'a> Command<'a> {
    /// The first key is the lock key. `args` does not have the first argument, the request's number.
    // Inlined, because the arrays would otherwise be copied once more for each call.
    #[inline]
    pub fn new<const KEYS: usize, const ARGS: usize>(
        script: ScriptName,
        keys: SentKeys<'a, KEYS>,
        args: [Option<Arg<'a>>; ARGS],
    ) -> Self {
        const { assert!(KEYS <= MOST_KEYS && ARGS <= MOST_ARGS) };
        Self { script, keys: filled(keys), args: filled(args) }
    }

    /// The same for a request that has one script for locks and one for shared names.
    #[inline]
    pub fn of<const KEYS: usize, const ARGS: usize>(
        kind: Kind,
        [lock, shared]: [ScriptName; 2],
        keys: SentKeys<'a, KEYS>,
        args: [Option<Arg<'a>>; ARGS],
    ) -> Self {
        Self::new(if kind.is_shared() { shared } else { lock }, keys, args)
    }

    /// KEYS.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map_while(|key| key.as_deref())
    }

    /// ARGV without the first value, the request's number.
    pub fn args(&self) -> impl Iterator<Item = &Arg<'a>> {
        self.args.iter().map_while(Option::as_ref)
    }
}

/// Moves the present items to the front.
#[inline]
fn filled<T, const N: usize, const M: usize>(items: [Option<T>; N]) -> [Option<T>; M] {
    let (mut filled, mut count) = ([const { None }; M], 0);
    for item in items {
        // Never past the end: see `new`.
        if item.is_some() && count < M {
            filled[count] = item;
            count += 1;
        }
    }
    filled
}

/// One value of ARGV, or several at its end. Redis gets each as text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Arg<'a> {
    Text(Cow<'a, str>),
    /// One value for each text.
    Texts(&'a [String]),
    /// A text that ends with the prefix of the clients' channels. The node that runs the script may add its own name.
    Channel(&'a str),
    Int(i64),
    /// Scripts compare tokens as texts, so no digit may get lost.
    Natural(u64),
}

/// The id of a node of a cluster, and a colon.
const LONGEST_TAG: usize = 41;
/// The characters of the longest number, with its sign.
const LONGEST_NUMBER: usize = 20;

impl Arg<'_> {
    /// How many values of ARGV it is.
    pub fn count(&self) -> usize {
        if let Self::Texts(texts) = self { texts.len() } else { 1 }
    }

    /// Its length as text, or a little more.
    #[inline]
    pub fn len_at_most(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Channel(text) => text.len() + LONGEST_TAG,
            // Asking for a few bytes too many is cheaper than counting.
            Self::Int(_) | Self::Natural(_) => LONGEST_NUMBER,
        }
    }
}

/// A value of KEYS under its name in the script's header. The name is for tests/house.rs, which reads it in the source
/// and compares names and order with the header.
pub fn key<'a>(_name: &'static str, key: impl Into<Cow<'a, str>>) -> Option<Cow<'a, str>> {
    Some(key.into())
}

/// A value of ARGV under its name in the script's header, which tests/house.rs checks in the same way.
pub fn arg<'a>(_name: &'static str, value: impl Into<Arg<'a>>) -> Option<Arg<'a>> {
    Some(value.into())
}

/// Whole milliseconds, as the scripts count.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a Arc<str>> for Arg<'a> {
    fn from(text: &'a Arc<str>) -> Self {
        Self::Text((&**text).into())
    }
}

impl From<String> for Arg<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<Cow<'a, str>> for Arg<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a Vec<String>> for Arg<'a> {
    fn from(texts: &'a Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Natural(number)
    }
}

impl From<u32> for Arg<'_> {
    fn from(number: u32) -> Self {
        Self::Natural(number.into())
    }
}

impl From<Duration> for Arg<'_> {
    fn from(duration: Duration) -> Self {
        Self::Int(millis(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_a_name_and_those_of_shared_names_begin_so() {
        assert!(ScriptName::ALL.is_sorted());
        for name in ScriptName::ALL {
            assert_eq!(name.is_shared(), format!("{name:?}").starts_with("Shared"), "{name:?}");
        }
    }

    #[test]
    fn what_is_not_needed_is_left_out() {
        let tickets = ["a:1:2".to_owned(), "a:1:33".to_owned()];
        let keys = [key("lock", "k"), None, key("tombstone", "t".to_owned())];
        let args = [arg("owner", "a:1"), arg("seq", u64::MAX), None, Some(Arg::Texts(&tickets))];
        let command = Command::of(Kind::RwLock, [ScriptName::Poll, ScriptName::SharedPoll], keys, args);
        assert_eq!(command.script, ScriptName::SharedPoll);
        assert!(command.keys().eq(["k", "t"]));
        let sizes: Vec<_> = command.args().map(|arg| (arg.count(), arg.len_at_most())).collect();
        assert_eq!(sizes, [(1, 3), (1, 20), (2, 11)]);
    }
}
