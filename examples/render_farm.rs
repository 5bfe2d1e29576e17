//! A semaphore: at most three frames at a time, over several processes. One process is killed in the middle of a
//! frame, and its slot comes back when its lease ends. While the others work, an operator closes two of the slots and
//! opens them again.
//!
//! `cargo run --example render_farm`, against `REDIS_URL` or redis://127.0.0.1/.
//!
//! Each process appends a line to a file at the beginning and at the end of each frame, so the file has the order of
//! events.
//!
//! It ends with: `at most 3 frames at any time: 36 frames by 3 processes, and 1 by one that was killed`

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use fairlock::{FairSemaphore, LockClient};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const SLOTS: u32 = 3;
const WORKERS: usize = 3;
const FRAMES: usize = 12;
/// Short, so that the killed process's slot comes back soon.
const LEASE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let brief = LEASE / 2;
    let client = LockClient::builder().lease(LEASE).operation_timeout(brief).poll_interval(brief).connect(&url).await?;
    match std::env::args().collect::<Vec<_>>().as_slice() {
        [_, worker, name, notes] => work(&client.semaphore(name, SLOTS), worker, Path::new(notes)).await?,
        _ => run(&client).await?,
    }
    client.close().await?;
    Ok(())
}

async fn run(client: &LockClient) -> Outcome<()> {
    let name = format!("example:render_farm:{}", client.id());
    let gate = client.semaphore(&name, SLOTS);
    let notes = std::env::temp_dir().join(format!("fairlock-render-farm-{}", client.id()));
    File::create(&notes)?;

    let mut killed = start("stuck", &name, &notes)?;
    wait_until(async || Ok(read_to_string(&notes)?.lines().count() == 1)).await?;
    let workers: Vec<Child> =
        (0..WORKERS).map(|number| start(&format!("worker-{number}"), &name, &notes)).collect::<Outcome<_>>()?;
    killed.kill()?;
    killed.wait()?;
    note(&notes, "killed")?;
    println!("a process was killed with a slot: {} of {SLOTS} are in use", gate.status().await?.used);

    gate.set_permits(Some(1)).await?;
    wait_until(async || Ok(gate.status().await?.used <= 1)).await?;
    note(&notes, "one slot")?;
    wait_until(async || Ok(read_to_string(&notes)?.matches("end").count() > 6)).await?;
    note(&notes, "all slots")?;
    gate.set_permits(None).await?;

    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let told = read_to_string(&notes)?;
    std::fs::remove_file(&notes)?;
    let (most, most_with_one_slot, frames) = judge(&told);
    println!("while one slot was open: at most {most_with_one_slot}");
    if most_with_one_slot > 1 || most > SLOTS as usize {
        return Err(format!("{most} frames at a time").into());
    }
    println!("at most {most} frames at any time: {frames} frames by {WORKERS} processes, and 1 by one that was killed");
    Ok(())
}

fn start(worker: &str, name: &str, notes: &PathBuf) -> Outcome<Child> {
    Ok(Command::new(std::env::current_exe()?).args([worker, name]).arg(notes).spawn()?)
}

/// The worker process.
async fn work(gate: &FairSemaphore, worker: &str, notes: &Path) -> Outcome<()> {
    for frame in 0..FRAMES {
        let permit = gate.labelled(format!("{worker}, frame {frame}")).acquire().await?;
        note(notes, &format!("begin {worker}"))?;
        tokio::select! {
            () = render(worker) => {}
            loss = permit.lost() => return Err(format!("{worker} stops: {loss}").into()),
        }
        note(notes, &format!("end {worker}"))?;
        permit.release().await?;
    }
    Ok(())
}

async fn render(worker: &str) {
    // The stuck worker hangs. The client goes on renewing its lease until the process ends.
    let time = if worker == "stuck" { Duration::from_secs(3600) } else { Duration::from_millis(40) };
    tokio::time::sleep(time).await;
}

/// Writes the line in one call, so that lines of several processes do not mix.
fn note(notes: &Path, line: &str) -> Outcome<()> {
    Ok(OpenOptions::new().append(true).open(notes)?.write_all(format!("{line}\n").as_bytes())?)
}

async fn wait_until(is_so: impl AsyncFn() -> Outcome<bool>) -> Outcome<()> {
    for _ in 0..10_000 {
        if is_so().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Err("it never came true".into())
}

/// Returns the most frames at a time, the same while one slot was open, and the number of finished frames.
fn judge(notes: &str) -> (usize, usize, usize) {
    let (mut rendering, mut is_narrow) = (BTreeSet::new(), false);
    let (mut most, mut most_with_one_slot, mut frames) = (0, 0, 0);
    for line in notes.lines() {
        match line.split_once(' ') {
            Some(("begin", worker)) => drop(rendering.insert(worker)),
            Some(("end", worker)) => frames += usize::from(rendering.remove(worker)),
            Some(("one", _)) => is_narrow = true,
            Some(("all", _)) => is_narrow = false,
            _ => drop(rendering.remove("stuck")),
        }
        most = most.max(rendering.len());
        if is_narrow {
            most_with_one_slot = most_with_one_slot.max(rendering.len());
        }
    }
    (most, most_with_one_slot, frames)
}
