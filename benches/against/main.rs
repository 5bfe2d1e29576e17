//! Compares this library with an older version of itself. Both are clients of one private server and take turns in
//! each round of each row, so that other load on the machine hits both. `scripts/bench --against COMMIT` builds this
//! program with each library, and starts it as `fairlock-against OLDER [--short]`.

// The same relay as in `benches/speed`. This program does not use the rest of that file.
#[path = "../speed/contender.rs"]
#[allow(dead_code)]
mod contender;
mod measure;
mod result;
mod server;
mod side;
mod work;

use result::Row;
use server::Server;
use side::Side;

/// The repository. Results go to its `target`.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [work::ROLE, url] => work::serve(url),
        [older] => compare(older, false),
        [older, "--short"] => compare(older, true),
        _ => Err("with --against COMMIT there is only the option --short".into()),
    }
}

fn compare(older: &str, short: bool) -> Outcome<()> {
    let server = Server::start()?;
    println!("{}", result::head());
    let mut rows = Vec::new();
    for (transport, url) in [("tcp", server.tcp()), ("unix", server.unix())] {
        // Connects once for all rows, so that no round includes connecting.
        let mut sides = [Side::start(older.as_ref(), &url)?, Side::start(&std::env::current_exe()?, &url)?];
        for plan in work::PLANS.iter().filter(|plan| plan.both || transport == "tcp") {
            let mut row = Row::new(plan, transport);
            // The first round warms up, and does not count.
            sides.iter_mut().try_for_each(|side| side.measure(plan, &server).map(drop))?;
            for round in 0..if short { 2 } else { plan.rounds } {
                // The sides alternate in who is first.
                for index in [round % 2, 1 - round % 2] {
                    row.add(index, sides[index].measure(plan, &server)?);
                }
            }
            println!("{}", row.line());
            rows.push(row);
        }
    }
    println!("{}", result::write(&rows)?.display());
    Ok(())
}
