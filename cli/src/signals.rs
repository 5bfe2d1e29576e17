//! The signals that this process handles.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The signals by which people and supervisors end or control a command.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

pub struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// Keeps a handler for SIGCHLD: if a parent left it ignored, this process could not read a child's exit status.
    _children: unix::Signal,
}

impl Signals {
    /// From now on these signals do not end this process.
    pub fn catch() -> io::Result<Self> {
        let ignored = ignored();
        // Under `nohup` signals are ignored, and should stay so for the command.
        let caught = PASSED_ON.into_iter().filter(|signal| ignored & (1 << (*signal as u32 - 1)) == 0);
        let stream = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        let streams = caught.map(stream).collect::<io::Result<_>>()?;
        Ok(Self { streams, _children: unix::signal(SignalKind::child())? })
    }

    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// One bit for each ignored signal, from /proc. Zero except on Linux.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
