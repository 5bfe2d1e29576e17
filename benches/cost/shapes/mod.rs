//! The longest call of a script in queues of all shapes: in instructions, and in the server's own time as the median
//! of nine fresh servers with the scripts loaded.

mod queue;

use std::fmt::Write as _;

use queue::{Client, Place, Queue};
use serde_json::json;

use crate::server::Server;
use crate::{Outcome, ROOT, callgrind};

use Client::{Dead, Living, Unreachable};

struct Shape {
    name: &'static str,
    /// Makes the queue, then the calls.
    play: fn(&mut Queue) -> Outcome<()>,
}

const SHAPES: [Shape; 14] = [
    Shape { name: "20,000 dead places of a client", play: |queue| tour(queue, &places(20_000, |_| Dead(1))) },
    Shape { name: "… of 2,000 clients", play: |queue| tour(queue, &places(20_000, |n| Dead(n % 2000))) },
    Shape { name: "… and a newcomer before each call", play: newcomers },
    Shape { name: "20,000 unreachable of a client", play: |queue| tour(queue, &places(20_000, |_| Unreachable(1))) },
    Shape { name: "… of 2,000 clients", play: |queue| tour(queue, &places(20_000, |n| Unreachable(n % 2000))) },
    Shape { name: "living, dead and left, mixed", play: |queue| tour(queue, &mixed()) },
    Shape { name: "60,000 former clients", play: former },
    Shape { name: "130,000 places, of which half have left", play: half_left },
    Shape { name: "… the first who counts in the middle", play: in_the_middle },
    Shape { name: "65,536 waiters, half of them dead", play: half_dead },
    Shape { name: "8,192 leave, the oldest first", play: |queue| leaves(queue, 0, 8191) },
    Shape { name: "20,000 leave, the oldest first", play: |queue| leaves(queue, 10_000, 20_000) },
    Shape { name: "pairs beside one dead place", play: |queue| pairs(queue, Dead(1)) },
    Shape { name: "pairs beside one unreachable place", play: |queue| pairs(queue, Unreachable(1)) },
];

/// A live client at the end of the queue, which waits with many owners.
const LAST: Client = Living(1);
const HAND_OVERS: usize = 10;
const SERVERS: usize = 9;

fn places(count: usize, of: impl Fn(usize) -> Client) -> Vec<Place> {
    (0..count).map(|number| Place { client: of(number), waits: true }).collect()
}

/// Runs all calls, with a live client after these places.
fn tour(queue: &mut Queue, before: &[Place]) -> Outcome<()> {
    queue.fill(before)?;
    let first = queue.fill(&places(200, |_| LAST))?;
    go_around(queue, first, false)
}

/// `first`: the first of the last client's 200 places.
fn go_around(queue: &mut Queue, first: usize, newcomers: bool) -> Outcome<()> {
    queue.newcomer("")?;
    queue.poll(LAST, first + 50, 16)?;
    queue.poll(LAST, first + 50, 128)?;
    queue.inspect()?;
    for _ in 0..HAND_OVERS {
        queue.hand_over(newcomers)?;
        queue.newcomer("")?;
    }
    queue.poll(LAST, first + 50, 128)?;
    queue.inspect()?;
    queue.leave(LAST, first + 100)?;
    queue.newcomer("0")?;
    queue.force_unlock()
}

fn newcomers(queue: &mut Queue) -> Outcome<()> {
    queue.fill(&places(20_000, |n| Dead(n % 2000)))?;
    let first = queue.fill(&places(200, |_| LAST))?;
    go_around(queue, first, true)
}

/// Only one place in forty has a live waiter.
fn mixed() -> Vec<Place> {
    let of = |number: usize| match number % 4 {
        0 => Dead(number % 2000),
        1 => Unreachable(number % 2000),
        _ => Living(2 + number % 2000),
    };
    (0..20_000).map(|number| Place { client: of(number), waits: number % 4 < 2 || number % 40 == 39 }).collect()
}

/// Empties the queue once with releases, and once with a leave.
fn former(queue: &mut Queue) -> Outcome<()> {
    let here_once: Vec<_> = (0..60_000).map(Dead).collect();
    let first = queue.fill(&places(3, |_| LAST))?;
    queue.hear(&here_once)?;
    queue.newcomer("")?;
    queue.poll(LAST, first, 3)?;
    queue.inspect()?;
    while queue.len()? > 0 {
        queue.hand_over(false)?;
    }
    queue.begin_another()?;
    let last = queue.fill(&places(1, |_| LAST))?;
    queue.hear(&here_once)?;
    queue.leave(LAST, last)
}

fn half_left(queue: &mut Queue) -> Outcome<()> {
    let mut before = places(65_000, |_| LAST);
    before.iter_mut().for_each(|place| place.waits = false);
    queue.fill(&before)?;
    let first = queue.fill(&places(65_536, |_| LAST))?;
    (0..20).try_for_each(|_| queue.newcomer("").map(drop))?;
    go_around(queue, first, false)
}

/// An earlier search has already passed over the places at the front.
fn in_the_middle(queue: &mut Queue) -> Outcome<()> {
    queue.fill(&places(65_000, |_| Unreachable(1)))?;
    let first = queue.fill(&places(200, |_| LAST))?;
    queue.fill(&places(65_000, |_| Living(2)))?;
    queue.note(65_000)?;
    go_around(queue, first, false)
}

fn half_dead(queue: &mut Queue) -> Outcome<()> {
    let first = queue.fill(&places(200, |_| LAST))?;
    queue.fill(&places(65_336, |number| if number % 2 == 0 { Dead(number % 2000) } else { Living(2) }))?;
    (0..20).try_for_each(|_| queue.newcomer("").map(drop))?;
    go_around(queue, first, false)
}

/// Owners leave that wait after a waiter who stays, so none of them is the first. The first `left` places have no
/// ticket.
fn leaves(queue: &mut Queue, left: usize, count: usize) -> Outcome<()> {
    queue.label_at_length();
    queue.fill(&places(1, |_| LAST))?;
    let mut all = places(count, |_| Living(2));
    all[..left].iter_mut().for_each(|place| place.waits = false);
    let first = queue.fill(&all)? + left;
    (first..first + 50).try_for_each(|number| queue.leave(Living(2), number))?;
    (0..5).try_for_each(|_| queue.hand_over(false))
}

fn pairs(queue: &mut Queue, beside: Client) -> Outcome<()> {
    queue.release()?;
    for _ in 0..HAND_OVERS {
        queue.fill(&places(1, |_| beside))?;
        queue.pair()?;
    }
    Ok(())
}

/// Plays a shape on one server, and returns the costs of its calls.
fn play(shape: &Shape, server: Server) -> Outcome<Queue> {
    let mut queue = Queue::new(server)?;
    (shape.play)(&mut queue).map_err(|error| format!("{}: {error}", shape.name))?;
    Ok(queue)
}

/// The median of each call over the servers, since a busy machine delays one of them now and then. If the servers made
/// different numbers of calls, only the calls that all of them made count.
fn medians(servers: &[Vec<f64>]) -> Vec<f64> {
    let calls = servers.iter().map(Vec::len).min().unwrap_or(0);
    let median = |call: usize| {
        let mut costs: Vec<_> = servers.iter().map(|server| server[call]).collect();
        costs.sort_by(f64::total_cmp);
        costs[costs.len() / 2]
    };
    (0..calls).map(median).collect()
}

#[derive(Default)]
struct Result {
    script: &'static str,
    longest: f64,
    /// The longest hand-over or pair after the first one, with all of its calls.
    round: f64,
}

fn result(played: &[Queue]) -> Result {
    let calls: Vec<_> = played.iter().map(|queue| queue.calls.iter().map(|call| call.cost).collect()).collect();
    let rounds: Vec<_> = played.iter().map(|queue| queue.rounds.clone()).collect();
    let (calls, rounds) = (medians(&calls), medians(&rounds));
    let longest = calls.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
    let Some((number, longest)) = longest else { return Result::default() };
    let round = rounds.into_iter().skip(1).fold(0.0, f64::max);
    Result { script: played[0].calls[number].script, longest: *longest, round }
}

pub fn measure(short: bool) -> Outcome<()> {
    let counts = !short && callgrind::is_there();
    let mut table = String::from(
        "| queue | instructions of the longest call | µs of the longest call | a hand-over or pair: instructions | µs |\n\
         |---|---|---|---|---|\n",
    );
    println!("{table}");
    let mut rows = Vec::new();
    for shape in &SHAPES {
        let counted = if counts { Some(result(&[play(shape, Server::under_callgrind()?)?])) } else { None };
        let timed = (0..if short { 1 } else { SERVERS }).map(|_| play(shape, Server::bare()?));
        let timed = result(&timed.collect::<Outcome<Vec<_>>>()?);
        let ir = |value: fn(&Result) -> f64| {
            counted.as_ref().map_or_else(|| "-".to_owned(), |one| format!("{:.0}", value(one)))
        };
        let line = format!(
            "| {} | {} {} | {} {:.0} | {} | {:.0} |",
            shape.name,
            counted.as_ref().map_or("", |one| one.script),
            ir(|one| one.longest),
            timed.script,
            timed.longest,
            ir(|one| one.round),
            timed.round,
        );
        println!("{line}");
        writeln!(table, "{line}")?;
        rows.push(json!({
            "name": shape.name, "micros": timed.longest, "round_micros": timed.round,
            "instructions": counted.as_ref().map(|one| one.longest), "round_instructions": counted.as_ref().map(|one| one.round),
        }));
    }
    let dir = std::path::Path::new(ROOT).canonicalize()?.join("target/bench");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("shapes.md"), table)?;
    std::fs::write(dir.join("shapes.json"), serde_json::to_string_pretty(&rows)?)?;
    println!("{}", dir.join("shapes.md").display());
    Ok(())
}
