//! The rights that a user needs, read from the scripts themselves, and the check that the user has them.
//!
//! Redis does not roll back, so a right that is missing in the middle of a script leaves half of its writes. The
//! client therefore checks all rights before it runs the first script.

use std::collections::HashSet;

#[cfg(feature = "_cli")]
use fairlock_proto::command::ScriptName;
use fairlock_proto::keys::{self, Keys, Kind};

use super::script;

/// Checks rights without running anything. ARGV repeats: command, the right that its arguments need, number of
/// arguments, the arguments. Returns the missing rights, as ACL SETUSER takes them. Servers without ACL checks in
/// scripts (before Redis 7.0, some relatives of Redis) report nothing as missing.
///
/// EVAL comes first. It runs this script, so the user has the right to it, and the check with keys tests the keys
/// alone. Only if keys are missing does the script check the commands without keys. It skips SET there: the server's
/// code to find SET's key reads the argument without checking that it exists.
///
/// Redis 8 answers only if the number of arguments fits the command, so the script adds some. Redis 8 cannot check a
/// command without its keys: the script reports such a command only once the user has the keys.
pub const SCRIPT: &str = "#!lua flags=no-writes,allow-stale
local missing, failed, granted, keys, fills = {}, {}, {}, true, false
if not redis.acl_check_cmd then return missing end
local function allowed(...)
  local words = { ... }
  for _ = 0, 3 do
    local known, yes = pcall(redis.acl_check_cmd, unpack(words))
    if known then return yes end
    if not string.find(type(yes) == 'table' and yes.err or yes, 'Wrong number of args', 1, true) then return false end
    fills = true
    words[#words + 1] = '0'
  end
end
local function lacking(command, right)
  local of_keys = string.sub(right, 1, 1) == '~'
  if string.sub(right, 1, 1) == '+' then return right end
  if command == 'eval' then
    keys = false
    return right
  end
  if right == '' or of_keys and keys or not of_keys and granted[right] then return '+' .. command end
  if command == 'set' then return nil end
  if not allowed(command) and not fills then return '+' .. command end
  return right
end
local i = 1
while ARGV[i] do
  local command, right, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  if allowed(command, unpack(ARGV, i + 3, i + 2 + n)) then
    granted[right] = true
  else
    failed[#failed + 1] = { command, right }
  end
  i = i + 3 + n
end
for _, of in ipairs(failed) do missing[#missing + 1] = lacking(of[1], of[2]) end
return missing
";

/// The arguments of [`SCRIPT`] for all scripts, for a client that listens on `channel`. `more`: further commands with
/// their arguments. `strict`: the client also uses boot.lua and its key.
pub fn question(prefix: &str, channel: &str, more: &[&[&str]], strict: bool) -> Vec<String> {
    // No lock has the empty name. Its keys can represent the keys of all names, since users get rights to the prefix.
    let mut asked = RightsAsked::new(prefix);
    let is_used = |name: &&str| strict || *name != "boot";
    let all: Vec<String> = KEYS.iter().filter(|name| is_used(name)).filter_map(|name| asked.key(name)).collect();
    let eval = ["".to_owned(), all.len().to_string()].into_iter().chain(all).collect();
    asked.push("eval", asked.key_pattern(), eval);
    // Reads each file once, and not once for each script that includes it: reading them is most of the cost of making
    // a client.
    let calls = script::files().flat_map(calls);
    for (command, names) in calls.filter(|(_, names)| names.first().is_none_or(is_used)) {
        asked.call(&command, &names);
    }
    // Without keys: EVAL has checked them.
    asked.push("evalsha", String::new(), vec!["0".to_owned(), "0".to_owned()]);
    asked.push("subscribe", asked.channel_pattern(), vec![channel.to_owned()]);
    if strict {
        // To detect restarts of the server.
        asked.push("info", String::new(), vec!["server".to_owned()]);
    }
    for words in more {
        let [command, arguments @ ..] = words else { continue };
        asked.push(command, String::new(), arguments.iter().map(ToString::to_string).collect());
    }
    asked.words
}

/// Optional rights of a user.
#[cfg(feature = "_cli")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside {
    /// The locks are in a database other than 0.
    pub another_database: bool,
    /// The server is a cluster.
    pub cluster: bool,
    /// The client has `strict_restart`.
    pub strict_restart: bool,
    /// The client calls `list`, which needs SCAN.
    pub lists: bool,
}

/// All rights of a user, as ACL SETUSER takes them after `reset`.
#[cfg(feature = "_cli")]
pub fn all(prefix: &str, beside: Beside) -> Vec<String> {
    // INFO shows eviction, and PING shows a cut line. Locks work without both, but the client notices less.
    let mut named = ["eval", "evalsha", "subscribe", "info", "ping"].map(str::to_owned).to_vec();
    let of_scripts = script::SCRIPTS.iter().filter(|script| script.name != ScriptName::Boot || beside.strict_restart);
    named.extend(of_scripts.flat_map(|script| calls(script.text())).map(|(command, _)| command.to_ascii_lowercase()));
    let more: [(bool, &[&str]); 3] = [
        (beside.another_database, &["select"]),
        (beside.cluster, &["cluster|slots", "cluster|info", "cluster|myid", "asking"]),
        (beside.lists, &["scan"]),
    ];
    named.extend(more.iter().filter(|(is_used, _)| *is_used).flat_map(|(_, words)| *words).map(ToString::to_string));
    let asked = RightsAsked::new(prefix);
    let mut rights = vec![asked.key_pattern(), asked.channel_pattern()];
    for command in named {
        let right = format!("+{command}");
        // In the order of the scripts, without duplicates.
        if !rights.contains(&right) {
            rights.push(right);
        }
    }
    rights
}

/// The names of keys in the scripts.
const KEYS: [&str; 7] = ["lock", "queue", "deadlines", "tokens", "tombstone", "limit", "boot"];

struct RightsAsked<'a> {
    prefix: &'a str,
    keys: Keys,
    words: Vec<String>,
    /// The questions so far. Scripts share most of their calls, and each question costs the server 3 µs.
    seen: HashSet<Vec<String>>,
}

impl<'a> RightsAsked<'a> {
    fn new(prefix: &'a str) -> Self {
        Self { prefix, keys: Keys::of(Kind::Semaphore, prefix, ""), words: Vec::new(), seen: HashSet::new() }
    }

    fn key(&self, name: &str) -> Option<String> {
        match name {
            "lock" => Some(self.keys.lock.to_string()),
            "queue" => Some(self.keys.queue.clone()),
            "deadlines" => Some(self.keys.deadlines.clone()),
            "tokens" => Some(self.keys.tokens.clone()),
            "tombstone" => Some(self.keys.tombstone("0:0")),
            "limit" => Some(self.keys.limit.clone()),
            "boot" => Some(keys::boot(self.prefix)),
            _ => None,
        }
    }

    fn key_pattern(&self) -> String {
        format!("~{}:*", self.prefix)
    }

    fn channel_pattern(&self) -> String {
        format!("&{}*", keys::channel_prefix(self.prefix))
    }

    fn call(&mut self, command: &str, names: &[&str]) {
        if let Some((container, subcommand)) = command.split_once('|') {
            let right = format!("+{}", command.to_ascii_lowercase());
            return self.push(container, right, vec![subcommand.to_ascii_lowercase()]);
        }
        if names.first() == Some(&"channel") {
            // Use another client's channel, as grants go to other clients.
            let channel = format!("{}0", keys::channel_prefix(self.prefix));
            return self.push(command, self.channel_pattern(), vec![channel, "0".into()]);
        }
        // Nothing after the keys: DEL and EXISTS would take it for another key.
        let arguments: Vec<_> = names.iter().map_while(|name| self.key(name)).collect();
        let right = if arguments.is_empty() { String::new() } else { self.key_pattern() };
        self.push(command, right, arguments);
    }

    fn push(&mut self, command: &str, right: String, arguments: Vec<String>) {
        // The number goes first: ARGV is one flat list, and the script uses the number to find the next command.
        let mut words = vec![command.to_ascii_lowercase(), right, arguments.len().to_string()];
        words.extend(arguments);
        if self.seen.insert(words.clone()) {
            self.words.extend(words);
        }
    }
}

/// Each command in the text of a script, with the names after it.
fn calls(source: &str) -> Vec<(String, Vec<&str>)> {
    let starts = ["call('", "read('"];
    let after = starts.iter().flat_map(|start| source.split(start).skip(1));
    let mut found: Vec<_> = after
        .filter_map(|rest| {
            let (command, rest) = rest.split_once('\'')?;
            // The keys come first and are plain names. So it does not matter that this cuts off nested calls.
            let mut arguments = rest.split(')').next()?.split(',').skip(1).peekable();
            // A key comes first. A quoted word there is a subcommand.
            let subcommand = arguments.next_if(|word| word.trim_start().starts_with('\''));
            let subcommand = subcommand.map(|word| format!("|{}", word.trim().trim_matches('\'')));
            Some((command.to_owned() + &subcommand.unwrap_or_default(), arguments.map(first_word).collect()))
        })
        .collect();
    // Sorted, because `dedup` compares neighbours only. The client then asks about each command once for a script.
    found.sort();
    found.dedup();
    found
}

/// The name that an argument begins with: `channel` in `channel .. client`.
fn first_word(argument: &str) -> &str {
    let argument = argument.trim_start();
    let end = argument.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(argument.len());
    argument.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::script::SCRIPTS;

    #[test]
    fn each_call_of_each_script_is_asked_for() {
        for script in &SCRIPTS {
            let found = calls(script.text());
            for (command, names) in &found {
                let known = names.first().is_some_and(|name| KEYS.contains(name) || *name == "channel");
                let has_keys = !["TIME", "PUBSUB|NUMSUB"].contains(&command.as_str());
                assert!(known || !has_keys, "{:?}: {command} of {names:?}", script.name);
            }
            // All calls name their command, except in the definitions of `call` and `read` in lua/lib.
            let (text, count) = (script.text(), |word: &str| script.text().matches(word).count());
            let (of_call, of_read) = (count("local call = redis.call\n"), count("redis.pcall(command, "));
            assert!(of_call == 1 && of_read <= 1, "{:?}", script.name);
            let direct = count("redis.call('") + count("redis.pcall('");
            assert_eq!(count("redis."), of_call + of_read + direct, "{:?}", script.name);
            let asked = found.iter().any(|(command, names)| command == "PUBLISH" && names[0] == "channel");
            assert_eq!(asked, text.contains("'PUBLISH', channel .. "), "{:?}", script.name);
            let (uses, quoted) = (count("call(") + count("read("), count("call('") + count("read('"));
            // The two others are in the definition of `read`.
            assert_eq!(uses, quoted + 2 * of_read, "{:?}: a command that is not written out", script.name);
        }
    }

    /// The client reads each file once. It must not ask for calls that are in no script, such as one in a comment.
    #[test]
    fn the_files_have_the_calls_of_the_scripts() {
        let of_files: HashSet<_> = script::files().flat_map(calls).collect();
        let of_scripts: HashSet<_> = SCRIPTS.iter().flat_map(|script| calls(script.text())).collect();
        assert_eq!(of_files, of_scripts);
    }

    #[test]
    fn a_call_is_read_with_its_keys() {
        let found = calls(
            "x = call('DEL', queue, deadlines)\nread('GET', tokens) call('TIME') call('PUBLISH', channel .. client, 'a')",
        );
        let expected = [
            ("DEL", vec!["queue", "deadlines"]),
            ("GET", vec!["tokens"]),
            ("PUBLISH", vec!["channel", ""]),
            ("TIME", vec![]),
        ];
        assert_eq!(found, expected.map(|(command, names)| (command.to_owned(), names)));
    }

    #[test]
    fn all_keys_and_channels_are_asked_for() {
        let asked = question("p", "p:wake:me", &[&["select", "0"]], true);
        for word in [
            "hset",
            "~p:*",
            "p:{s:}:tombstone:0:0",
            "p:{boot}",
            "publish",
            "p:wake:0",
            "subscribe",
            "p:wake:me",
            "evalsha",
            "info",
            "select",
        ] {
            assert!(asked.iter().any(|other| other == word), "{word}: {asked:?}");
        }
        let asked = question("p", "p:wake:me", &[], false);
        assert!(asked.iter().all(|word| word != "p:{boot}"), "{asked:?}");
        assert_eq!(asked.iter().filter(|word| *word == "time").count(), 1, "each is asked for once: {asked:?}");
    }
}
