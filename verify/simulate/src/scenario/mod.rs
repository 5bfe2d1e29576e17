//! Runs with written steps and exactly the named faults. A bug that a seed has found becomes a scenario, because a seed
//! means another run after any change of code or faults. The same checkers judge both.

mod cluster;
mod flushes;
mod handles;
mod one_server;
mod resting;
mod several_servers;
mod shared;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use fairlock::simulation::{self, Task};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::threads;
use crate::world::World;

/// Longer than any of them, in virtual time. A scenario that waits forever fails.
const LONGEST: Duration = Duration::from_secs(600);

pub struct Scenario {
    pub name: &'static str,
    /// What goes wrong without the rule that this scenario tests.
    pub about: &'static str,
    pub play: fn(Arc<World>) -> Task,
}

struct Played {
    violations: Vec<String>,
    timeline: Vec<String>,
}

fn all() -> impl Iterator<Item = &'static Scenario> {
    let with_one_server = one_server::ALL.iter().chain(flushes::ALL).chain(resting::ALL).chain(handles::ALL);
    with_one_server.chain(resting::OF_SETS).chain(cluster::ALL).chain(several_servers::ALL).chain(shared::ALL)
}

pub fn exists(name: &str) -> bool {
    all().any(|scenario| scenario.name == name)
}

fn play(scenario: &Scenario) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    simulation::begin_run();
    runtime.expect("a runtime of one thread").block_on(async {
        let world = World::scripted();
        if timeout(LONGEST, (scenario.play)(world.clone())).await.is_err() {
            world.state().checker.report("P9", format!("{} has no end", scenario.name));
        }
        let tasks = Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            world.state().checker.report("P10", format!("{tasks} tasks are left"));
        }
        world.serve(Vec::new());
        Played { violations: world.violations(), timeline: world.timeline() }
    })
}

/// Plays one of them, and prints all events.
pub fn tell(name: &str) -> Result<bool, String> {
    let names = || all().map(|scenario| scenario.name).collect::<Vec<_>>().join(" ");
    let scenario = all().find(|scenario| scenario.name == name);
    let scenario = scenario.ok_or_else(|| format!("{name}: unknown; there are {}", names()))?;
    let played = play(scenario);
    println!("{}\n", scenario.about);
    played.timeline.iter().for_each(|line| println!("{line}"));
    Ok(is_sound(scenario, &played))
}

/// Plays all scenarios. Prints the steps of those that fail.
pub fn tell_all() -> bool {
    let all: Vec<_> = all().collect();
    let played = threads::each(&all, |scenario| play(scenario));
    let told = all.iter().zip(&played).map(|(scenario, played)| {
        if !played.violations.is_empty() {
            let steps = played.timeline.iter().filter(|line| line.contains(stage::STEP));
            steps.for_each(|line| println!("{line}"));
        }
        is_sound(scenario, played)
    });
    // Not `all`, which would stop at the first failure.
    told.filter(|is_sound| !is_sound).count() == 0
}

fn is_sound(scenario: &Scenario, played: &Played) -> bool {
    let is_sound = played.violations.is_empty();
    played.violations.iter().for_each(|violation| println!("VIOLATED {violation}"));
    println!("scenario {}: {}", scenario.name, if is_sound { "as promised" } else { "BROKEN" });
    is_sound
}
