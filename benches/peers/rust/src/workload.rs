//! Workers that take a lock as often as they can.

use crate::Outcome;
use crate::process::Process;
use crate::server::Server;

#[derive(Clone, Copy)]
pub struct Race {
    /// The workers in each process.
    pub workers: usize,
    pub processes: usize,
    pub hold_us: u64,
    /// Whether each worker has its own name.
    pub own: bool,
}

pub struct Round {
    pub seconds: f64,
    pub turns: f64,
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub longest_ns: f64,
    /// Jain's index over the workers, or over the processes if there are several. 1 means that all got the same.
    pub jain: f64,
    pub client_us: f64,
    /// `None` for PostgreSQL, which has a process for each connection.
    pub server_us: Option<f64>,
}

impl Race {
    pub fn run(self, processes: &mut [Process], server: &Server, ms: u64) -> Outcome<Round> {
        let processes = &mut processes[..self.processes];
        for process in processes.iter_mut() {
            process.ask(&format!("open {}", self.workers))?;
        }
        let (clients_before, server_before) = (clients_us(processes)?, server.cpu_us()?);
        let names = if self.own { "own" } else { "one" };
        for process in processes.iter_mut() {
            process.say(&format!("race race {} {} {ms} {names}", self.workers, self.hold_us))?;
        }
        let mut answers: Vec<Vec<f64>> = Vec::new();
        for process in processes.iter_mut() {
            let answer = process.answer()?;
            answers.push(answer.split(' ').map(str::parse).collect::<Result<_, _>>().map_err(|_| answer)?);
        }
        let most = |field: usize| answers.iter().map(|answer| answer[field]).fold(0.0, f64::max);
        let counts: Vec<f64> = match &answers[..] {
            [only] => only[3..].to_vec(),
            several => several.iter().map(|answer| answer[3..].iter().sum()).collect(),
        };
        Ok(Round {
            seconds: ms as f64 / 1e3,
            turns: counts.iter().sum(),
            p50_ns: most(1),
            p99_ns: most(2),
            longest_ns: most(0),
            jain: jain(&counts),
            client_us: clients_us(processes)? - clients_before,
            server_us: server.cpu_us()?.zip(server_before).map(|(after, before)| after - before),
        })
    }
}

fn clients_us(processes: &[Process]) -> Outcome<f64> {
    processes.iter().map(Process::cpu_us).sum()
}

fn jain(counts: &[f64]) -> f64 {
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    counts.iter().sum::<f64>().powi(2) / (counts.len() as f64 * squares)
}
