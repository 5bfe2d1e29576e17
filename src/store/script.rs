//! The scripts of `lua/`, with their includes filled in.
//!
//! A line `--#include NAME` inserts `lua/lib/NAME.lua`, in scripts and in parts. A part includes what it needs
//! itself. A script contains each part once, at the first place that needs it. The place matters: Lua creates a
//! part's functions when it gets there, so a script that returns earlier does not pay for them.
//!
//! A script for shared names uses the part from `lua/shared/lib` if there is one of that name, else the one from
//! `lua/lib`. So the variant is chosen when the script is assembled, never while it runs.
//!
//! A line `--#paste NAME` inserts a part each time. Such a part does not create a function, which would cost as much
//! as a small inner call. Shared code still exists only once (decision 20).

use std::sync::OnceLock;

use fairlock_proto::command::ScriptName;

/// A script: its name, its own file, and the text that the server runs.
pub struct Script {
    pub name: ScriptName,
    own: &'static str,
    /// Made when it is first needed: a short-lived client uses few scripts.
    text: OnceLock<String>,
    sha1: OnceLock<String>,
}

impl Script {
    pub const fn new(name: ScriptName, own: &'static str) -> Self {
        Self { name, own, text: OnceLock::new(), sha1: OnceLock::new() }
    }

    pub fn text(&self) -> &str {
        self.text.get_or_init(|| text(self.own, self.name.is_shared()))
    }

    pub fn sha1(&self) -> &str {
        self.sha1.get_or_init(|| redis::Script::new(self.text()).get_hash().to_owned())
    }
}

pub static SCRIPTS: [Script; 19] = [
    Script::new(ScriptName::Acquire, include_str!("../../lua/acquire.lua")),
    Script::new(ScriptName::Boot, include_str!("../../lua/boot.lua")),
    Script::new(ScriptName::ForceUnlock, include_str!("../../lua/force_unlock.lua")),
    Script::new(ScriptName::Give, include_str!("../../lua/give.lua")),
    Script::new(ScriptName::Inspect, include_str!("../../lua/inspect.lua")),
    Script::new(ScriptName::Leave, include_str!("../../lua/leave.lua")),
    Script::new(ScriptName::Poll, include_str!("../../lua/poll.lua")),
    Script::new(ScriptName::Raise, include_str!("../../lua/raise.lua")),
    Script::new(ScriptName::Release, include_str!("../../lua/release.lua")),
    Script::new(ScriptName::Renew, include_str!("../../lua/renew.lua")),
    Script::new(ScriptName::SharedAcquire, include_str!("../../lua/shared/acquire.lua")),
    Script::new(ScriptName::SharedForceUnlock, include_str!("../../lua/shared/force_unlock.lua")),
    Script::new(ScriptName::SharedGive, include_str!("../../lua/shared/give.lua")),
    Script::new(ScriptName::SharedInspect, include_str!("../../lua/shared/inspect.lua")),
    Script::new(ScriptName::SharedLeave, include_str!("../../lua/shared/leave.lua")),
    Script::new(ScriptName::SharedPoll, include_str!("../../lua/shared/poll.lua")),
    Script::new(ScriptName::SharedRelease, include_str!("../../lua/shared/release.lua")),
    Script::new(ScriptName::SharedRenew, include_str!("../../lua/shared/renew.lua")),
    Script::new(ScriptName::SharedSetLimit, include_str!("../../lua/shared/set_limit.lua")),
];

pub fn of(name: ScriptName) -> &'static Script {
    &SCRIPTS[name as usize]
}

/// The files that make up the scripts, each once.
pub fn files() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|script| script.own).chain(PARTS.iter().chain(SHARED_PARTS).map(|(_, part)| *part))
}

/// The script as the server gets it: without comments and indentation, which are most of the text. Each new client
/// sends each script's text once.
pub fn text(source: &str, is_shared: bool) -> String {
    let script = assemble(source, is_shared);
    let mut text = String::with_capacity(script.len());
    for line in script.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--")) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

const PARTS: &[(&str, &str)] = &[
    ("advance", include_str!("../../lua/lib/advance.lua")),
    ("base", include_str!("../../lua/lib/base.lua")),
    ("before", include_str!("../../lua/lib/before.lua")),
    ("clock", include_str!("../../lua/lib/clock.lua")),
    ("examine", include_str!("../../lua/lib/examine.lua")),
    ("format", include_str!("../../lua/lib/format.lua")),
    ("freeze", include_str!("../../lua/lib/freeze.lua")),
    ("grant_lease", include_str!("../../lua/lib/grant_lease.lua")),
    ("hand_over", include_str!("../../lua/lib/hand_over.lua")),
    ("hear", include_str!("../../lua/lib/hear.lua")),
    ("hold", include_str!("../../lua/lib/hold.lua")),
    ("holder", include_str!("../../lua/lib/holder.lua")),
    ("join", include_str!("../../lua/lib/join.lua")),
    ("known_place", include_str!("../../lua/lib/known_place.lua")),
    ("lease", include_str!("../../lua/lib/lease.lua")),
    ("millis", include_str!("../../lua/lib/millis.lua")),
    ("own_place", include_str!("../../lua/lib/own_place.lua")),
    ("place", include_str!("../../lua/lib/place.lua")),
    ("purge", include_str!("../../lua/lib/purge.lua")),
    ("queued", include_str!("../../lua/lib/queued.lua")),
    ("read", include_str!("../../lua/lib/read.lua")),
    ("record", include_str!("../../lua/lib/record.lua")),
    ("refuse", include_str!("../../lua/lib/refuse.lua")),
    ("remember", include_str!("../../lua/lib/remember.lua")),
    ("silence", include_str!("../../lua/lib/silence.lua")),
    ("skipped", include_str!("../../lua/lib/skipped.lua")),
    ("sweep", include_str!("../../lua/lib/sweep.lua")),
    ("take_out", include_str!("../../lua/lib/take_out.lua")),
    ("token", include_str!("../../lua/lib/token.lua")),
];

const SHARED_PARTS: &[(&str, &str)] = &[
    ("advance", include_str!("../../lua/shared/lib/advance.lua")),
    ("fields", include_str!("../../lua/shared/lib/fields.lua")),
    ("known_place", include_str!("../../lua/shared/lib/known_place.lua")),
    ("lease", include_str!("../../lua/shared/lib/lease.lua")),
    ("leaving", include_str!("../../lua/shared/lib/leaving.lua")),
    ("new_end", include_str!("../../lua/shared/lib/new_end.lua")),
    ("next_token", include_str!("../../lua/shared/lib/next_token.lua")),
    ("place", include_str!("../../lua/shared/lib/place.lua")),
    ("queued", include_str!("../../lua/shared/lib/queued.lua")),
    ("room", include_str!("../../lua/shared/lib/room.lua")),
    ("usual_limit", include_str!("../../lua/shared/lib/usual_limit.lua")),
];

/// Fills in the includes. An unknown one stays in the text, and tests/house.rs finds it.
pub fn assemble(source: &str, is_shared: bool) -> String {
    let mut script = String::with_capacity(8 * source.len());
    append(source, is_shared, &mut Vec::new(), &mut script);
    script
}

/// The part that this line inserts.
fn part(line: &str, mark: &str, is_shared: bool) -> Option<(&'static str, &'static str)> {
    let name = line.trim_start().strip_prefix(mark)?;
    let shared = if is_shared { SHARED_PARTS } else { &[] };
    shared.iter().chain(PARTS).find(|(part, _)| *part == name).copied()
}

/// `included`: the parts already in `script`, or about to be. So parts that include each other end.
fn append(source: &str, is_shared: bool, included: &mut Vec<&'static str>, script: &mut String) {
    for line in source.lines() {
        if let Some((_, text)) = part(line, "--#paste ", is_shared) {
            append(text, is_shared, included, script);
            continue;
        }
        match part(line, "--#include ", is_shared) {
            // A second copy would create the same functions again, which costs as much as a small inner call
            // (decision 20).
            Some((part, _)) if included.contains(&part) => {}
            Some((part, text)) => {
                // Before reading its text. Otherwise parts that include each other would never end.
                included.push(part);
                append(text, is_shared, included, script);
            }
            None => {
                script.push_str(line);
                script.push('\n');
            }
        }
    }
}
