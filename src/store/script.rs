//! The scripts of `lua/`, put together: one constant for each verb.
//!
//! A line `--#include NAME` stands for `lua/lib/NAME.lua`, in a script and in a part. A part includes what it
//! needs itself, and ends up in a script once, at the first place where it is needed. That place matters:
//! Lua creates the functions of a part when it gets there, so a script that ends before pays nothing for them.

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

/// The parts of `lua/lib`, by name.
const PARTS: &[(&str, &str)] = &[
    ("advance", include_str!("../../lua/lib/advance.lua")),
    ("base", include_str!("../../lua/lib/base.lua")),
    ("clock", include_str!("../../lua/lib/clock.lua")),
    ("grant", include_str!("../../lua/lib/grant.lua")),
    ("purge", include_str!("../../lua/lib/purge.lua")),
    ("serve", include_str!("../../lua/lib/serve.lua")),
];

/// Puts a script together. An unknown include stays in the text, where `tests/house.rs` looks for it.
pub(crate) fn assemble(source: &str) -> String {
    let mut script = String::with_capacity(8 * source.len());
    append(source, &mut Vec::new(), &mut script);
    script
}

/// `included`: the parts that are in `script`, or about to be, so that parts that include each other end too.
fn append(source: &str, included: &mut Vec<&'static str>, script: &mut String) {
    for line in source.lines() {
        let name = line.trim_start().strip_prefix("--#include ");
        match name.and_then(|name| PARTS.iter().find(|(part, _)| *part == name)) {
            Some((part, _)) if included.contains(part) => {}
            Some((part, text)) => {
                included.push(part);
                append(text, included, script);
            }
            None => {
                script.push_str(line);
                script.push('\n');
            }
        }
    }
}
