//! Judges the history of a campaign: `fairlock-judge DIR [--page FILE] [--gate]`.
//!
//! Exit code 1: a promise was broken. With `--gate` only P1, P2 and P5 count, which no busy machine can break. Only
//! campaigns judge bounds of time.

mod checks;
mod claims;
mod handles;
mod history;
mod page;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod planted_shared;
mod record;
mod server_end;
#[cfg(test)]
mod story;
mod table;
mod verdict;

use std::path::Path;
use std::process::ExitCode;

use history::History;

const GATE: &[&str] = &["P1", "P2", "P5"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let page = words.iter().position(|word| word == "--page").and_then(|at| words.get(at + 1));
    let only = if words.iter().any(|word| word == "--gate") { GATE } else { &[] };
    let Some(dir) = words.first() else {
        eprintln!("usage: fairlock-judge DIR [--page FILE] [--gate]");
        return ExitCode::FAILURE;
    };
    let history = match History::read(Path::new(dir)) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("{dir}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let verdict = checks::judge(&history);
    for violation in verdict.violations.iter().take(60) {
        let at = (violation.t.saturating_sub(history.run.began)) / 1_000_000;
        println!("{} at {at} ms: {}", violation.promise, violation.text);
    }
    let report = verdict.report(&history);
    if let Some(Err(error)) = page.map(|page| page::write(&history, &verdict, &report, Path::new(page))) {
        eprintln!("the page: {error}");
        return ExitCode::FAILURE;
    }
    println!("{report}");
    // A run without holds proves nothing.
    if verdict.fails(only) || history.holds.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
