//! The lock protocol of fairlock, checked exhaustively within bounds. See README.md.

mod client;
mod network;
mod properties;
mod protocol;
mod rules;
mod server;
mod variants;

use std::process::ExitCode;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use protocol::Protocol;
use variants::Variant;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|a| a == flag).and_then(|i| args.get(i + 1)).cloned();
    let only = value("--only");
    let num = |flag: &str| value(flag).and_then(|v| v.parse::<u8>().ok());
    for mut v in variants::all() {
        if only.as_ref().is_some_and(|o| o != v.name) { continue; }
        if let Some(n) = num("--time") { v.bounds.end = n; }
        if let Some(n) = num("--attempts") { v.bounds.attempts = n; }
        if let Some(n) = num("--clients") { v.bounds.clients = n; }
        if let Some(n) = num("--copies") { v.bounds.copies = n; }
        if let Some(n) = num("--in-flight") { v.bounds.in_flight = n.into(); }
        run(v, only.is_some());
    }
    ExitCode::SUCCESS
}

fn run(v: Variant, verbose: bool) {
    let t = Instant::now();
    let c = Protocol::new(v.rules, v.bounds).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{} unique {} depth {} {:.1}s seen {:?}", v.name, c.unique_state_count(), c.max_depth(), t.elapsed().as_secs_f32(), c.model().seen());
    for (name, path) in c.discoveries() {
        println!("  VIOLATED {name} in {} steps", path.clone().into_actions().len());
        if verbose { for (s, a) in path.into_vec() { println!("  {s:?}\n   -> {a:?}"); } }
    }
}
