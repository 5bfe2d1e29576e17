//! The part of a run's timeline about one lock. A run has ten thousand lines, and a violation concerns a few.

use std::collections::BTreeSet;

/// How many of the last lines about the lock to show. For the names in the violation, the story starts at the
/// beginning.
const LAST: usize = 60;
/// Events that concern everybody.
const EVERYWHERE: [&str; 18] = [
    "calm",
    "failovers",
    "failovers_unnoticed",
    "flushes",
    "goes down",
    "has moved",
    "is up",
    "keys_deleted",
    "masters_emptied",
    "masters_frozen",
    "masters_put_back",
    "nodes_replaced",
    "server_restarts",
    "server_restarts_without_data",
    "snapshot",
    "stops",
    "strict_restarts",
    "takes over",
];

/// The lines of `timeline` that belong to the lock of this violation, in order: all that name its owner, token or
/// actor, the last ones about the lock, and the events at servers and at the clients that use the lock in that time.
/// The violation uses the words of the timeline.
pub fn about<'a>(violation: &str, timeline: &'a [String]) -> Vec<&'a str> {
    let lines: Vec<_> = timeline.iter().map(|line| Line::of(line)).collect();
    let subjects = subjects(violation);
    let names_one = |line: &Line<'_>| subjects.iter().any(|subject| names(line.words, subject));
    let lock = lock_in(violation).or_else(|| lines.iter().rev().filter(|line| names_one(line)).find_map(Line::lock));
    // A line of an actor usually does not name the lock: it is about the lock that the actor last wanted.
    let mut wanting = BTreeSet::new();
    let mut is_about = Vec::new();
    for line in &lines {
        let actor = line.actor();
        if let (Some(actor), "wants") = (actor, line.what) {
            if line.lock() == lock {
                wanting.insert(actor)
            } else {
                wanting.remove(actor)
            };
        }
        let is_its = line.lock() == lock && lock.is_some();
        is_about.push(is_its || actor.is_some_and(|actor| line.lock().is_none() && wanting.contains(actor)));
    }
    let first_named = lines.iter().position(names_one).unwrap_or(lines.len());
    let of_lock: Vec<_> = (0..lines.len()).filter(|index| is_about[*index]).collect();
    let recent = of_lock[of_lock.len().saturating_sub(LAST)..].first().copied().unwrap_or(lines.len());
    let clients: BTreeSet<_> =
        lines.iter().zip(&is_about).filter(|(_, about)| **about).filter_map(|(line, _)| line.client()).collect();
    let shown = |index: usize| {
        let line = &lines[index];
        let is_named = is_about[index] && names_one(line);
        let is_recent = is_about[index] && index >= recent;
        let happens = EVERYWHERE.contains(&line.what) || line.is_of_a_client() && names_any(line.words, &clients);
        is_named || is_recent || happens && index >= first_named.min(recent) || line.what == "VIOLATION"
    };
    (0..lines.len()).filter(|index| shown(*index)).map(|index| timeline[index].as_str()).collect()
}

/// `  12.345 s  what         words`
struct Line<'a> {
    what: &'a str,
    words: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let rest = line.split_once(" s  ").map_or(line, |(_, rest)| rest);
        // A column of twelve letters, or a longer word without a space.
        let column = rest.char_indices().skip(12).find(|(_, letter)| *letter == ' ');
        let (what, words) = rest.split_at(column.map_or(rest.len(), |(end, _)| end));
        Self { what: what.trim(), words: words.trim() }
    }

    fn lock(&self) -> Option<&'a str> {
        let is_short = |word: &&str| {
            let number = word.strip_prefix("lock").unwrap_or_default();
            !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
        };
        lock_in(self.words).or_else(|| self.words.split(' ').find(is_short))
    }

    fn actor(&self) -> Option<&'a str> {
        self.words.strip_prefix("actor ")?.split(' ').next()
    }

    /// The client that sent a request.
    fn client(&self) -> Option<&'a str> {
        self.words.split_once("from ")?.1.split(' ').next()
    }

    fn is_of_a_client(&self) -> bool {
        let its = [
            "connected",
            "disconnected",
            "deaths",
            "disconnects",
            "goes on",
            "parts",
            "pauses",
            "runtimes_ended",
            "verbs_refused",
        ];
        its.contains(&self.what)
    }
}

/// The lock that a text is about: `lock0` in `fairlock:{n:lock0}`.
fn lock_in(text: &str) -> Option<&str> {
    text.split_once("fairlock:{")?.1.split_once(':')?.1.split('}').next()
}

/// The owners, tokens and actors that a violation is about.
fn subjects(violation: &str) -> BTreeSet<String> {
    let words: Vec<_> =
        violation.split([' ', ',', '(', ')', '"', '[', ']']).map(|word| word.trim_end_matches(':')).collect();
    let numbered = |word: &str, prefix: char| {
        let number = word.strip_prefix(prefix).unwrap_or_default();
        number.starts_with(|digit: char| digit.is_ascii_digit())
    };
    let named = words.iter().filter(|word| numbered(word, 'T') || numbered(word, 'P') && word.contains(':'));
    let owner = |word: &&str| word.split(':').take(2).collect::<Vec<_>>().join(":");
    let actors = words.windows(2).filter(|pair| pair[0] == "actor").map(|pair| pair.join(" "));
    named.map(owner).chain(actors).collect()
}

/// As a whole word: `P2:1` is not in `P2:10`.
fn names(words: &str, subject: &str) -> bool {
    words.match_indices(subject).any(|(index, _)| {
        let before = words[..index].chars().next_back();
        let after = words[index + subject.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

fn names_any(words: &str, clients: &BTreeSet<&str>) -> bool {
    clients.iter().any(|client| names(words, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELINE: &str = "    0.100 s  wants        actor 1 lock0
    0.101 s  wants        actor 2 lock1
    0.102 s  acquire      T900 P1:7 1 1 606/x from P1 on fairlock:{n:lock0} -> held T5 1 1774
    0.103 s  acquire      T900 P2:9 1 1 606/x from P2 on fairlock:{n:lock1} -> held T6 1 1774
    0.104 s  holds        actor 1 fairlock:{n:lock0} under T5
    0.105 s  holds        actor 2 fairlock:{n:lock1} under T6
    0.106 s  server_restarts_without_data 
    0.107 s  disconnected P1
    0.108 s  disconnected P2
    0.109 s  unlocks      actor 2 T6, 0 left: Freed
    0.110 s  gets nothing actor 1 not acquired in time: others hold the lock or were first
    0.110 s  unlocks      actor 1 T5, 0 left: Freed
    0.111 s    publishes  grant T7 606 P1:70:3 fairlock:{n:lock0}";

    fn told(violation: &str) -> Vec<String> {
        let timeline: Vec<_> = TIMELINE.lines().map(str::to_owned).collect();
        about(violation, &timeline)
            .into_iter()
            .map(|line| line.split(" s  ").next().unwrap_or_default().trim().to_owned())
            .collect()
    }

    #[test]
    fn a_story_has_the_lines_of_its_lock_alone() {
        let about_lock0 = ["0.100", "0.102", "0.104", "0.106", "0.107", "0.110", "0.110", "0.111"];
        assert_eq!(told("P1: fairlock:{n:lock0} is given away under T5"), about_lock0);
        // The lock comes from the lines that name the token.
        assert_eq!(told("P4: without faults T5 ended with an error"), about_lock0);
        assert_eq!(
            told("P4: without faults T6 ended with an error"),
            ["0.101", "0.103", "0.105", "0.106", "0.108", "0.109"]
        );
    }

    #[test]
    fn what_a_violation_names_is_told_from_its_beginning() {
        let mut timeline: Vec<_> = TIMELINE.lines().map(str::to_owned).collect();
        let later =
            |number: usize| format!("    1.{number:03} s  poll         from P1 on fairlock:{{n:lock0}} -> polled");
        timeline.extend((0..500).map(later));
        let story = about("P5: a hold of P1:7 on fairlock:{n:lock0} was left to expire", &timeline);
        assert_eq!(story.len(), LAST + 3, "{story:?}");
        assert!(story[0].contains("acquire") && story[1].contains("restarts") && story[2].contains("disconnected P1"));
    }

    #[test]
    fn owners_tokens_and_actors_are_what_a_violation_is_about() {
        let subjects = subjects("R5: actor 12 relies on T55 on fairlock:{n:lock0}, and P2:10:3 overtook P2:1");
        assert_eq!(subjects.into_iter().collect::<Vec<_>>(), ["P2:1", "P2:10", "T55", "actor 12"]);
        assert!(names("grant T5 P2:1:3", "P2:1") && !names("grant T5 P2:10:3", "P2:1"));
    }
}
