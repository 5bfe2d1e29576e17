//! The scripts of `lua/`, with their includes filled in.

use std::sync::LazyLock;

/// A script: its name and the text that the server runs.
#[derive(Debug)]
pub struct Script {
    pub name: &'static str,
    pub source: LazyLock<String>,
}

impl Script {
    pub const fn new(name: &'static str, source: fn() -> String) -> Self {
        Self { name, source: LazyLock::new(source) }
    }
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

pub fn assemble(script: &str) -> String {
    let mut whole = String::with_capacity(4 * script.len());
    for line in script.lines() {
        let part = PARTS.iter().find(|(directive, _)| *directive == line.trim_start());
        whole.push_str(part.map_or(line, |(_, text)| text.trim_end()));
        whole.push('\n');
    }
    whole
}
