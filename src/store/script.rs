//! The scripts of `lua/`, put together: one constant for each verb.
//!
//! A line `--#include NAME` of a script stands for `lua/lib/NAME.lua`, so that the logic that
//! several verbs share, above all passing the lock on, is written once.

use std::sync::LazyLock;

/// One verb: its name and the text that the server runs.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: LazyLock<String>,
}

macro_rules! scripts {
    ($($constant:ident = $name:literal),+ $(,)?) => {
        $(pub(crate) static $constant: Script = Script {
            name: $name,
            source: LazyLock::new(|| assemble(include_str!(concat!("../../lua/", $name, ".lua")))),
        };)+
        /// Every verb, for those who look at all of them.
        pub(crate) static ALL: &[&Script] = &[$(&$constant),+];
    };
}

scripts! {
    ACQUIRE = "acquire",
    POLL = "poll",
    LEAVE = "leave",
    RENEW = "renew",
    RELEASE = "release",
    FORCE_UNLOCK = "force_unlock",
    INSPECT = "inspect",
}

const PARTS: &[(&str, &str)] = &[
    ("--#include base", include_str!("../../lua/lib/base.lua")),
    ("--#include clock", include_str!("../../lua/lib/clock.lua")),
    ("--#include grant", include_str!("../../lua/lib/grant.lua")),
    ("--#include place", include_str!("../../lua/lib/place.lua")),
    ("--#include serve", include_str!("../../lua/lib/serve.lua")),
    ("--#include known", include_str!("../../lua/lib/known.lua")),
    ("--#include look", include_str!("../../lua/lib/look.lua")),
    ("--#include advance", include_str!("../../lua/lib/advance.lua")),
    ("--#include compact", include_str!("../../lua/lib/compact.lua")),
    ("--#include waiting", include_str!("../../lua/lib/waiting.lua")),
    ("--#include purge", include_str!("../../lua/lib/purge.lua")),
];

fn assemble(script: &str) -> String {
    let mut whole = String::with_capacity(4 * script.len());
    for line in script.lines() {
        let part = PARTS.iter().find(|(directive, _)| *directive == line.trim_start());
        whole.push_str(part.map_or(line, |(_, text)| text.trim_end()));
        whole.push('\n');
    }
    whole
}
