//! Values of rounds, with their median, minimum and maximum, but no average.

use std::time::Duration;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};

use crate::Outcome;
use crate::server::Admin;

/// One value for each round.
#[derive(Debug, Clone, Default)]
pub struct Series(pub Vec<f64>);

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The upper of the two middle values if their number is even, so that the result is a measured value.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    pub fn min(&self) -> Option<f64> {
        self.0.iter().copied().min_by(f64::total_cmp)
    }

    pub fn max(&self) -> Option<f64> {
        self.0.iter().copied().max_by(f64::total_cmp)
    }

    /// The quotients of the two series, round by round.
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// A histogram from a nanosecond to a minute, with three digits.
pub fn histogram() -> Outcome<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// The median in microseconds, of a histogram in nanoseconds.
pub fn p50(histogram: &Histogram<u64>) -> f64 {
    histogram.value_at_quantile(0.5) as f64 / 1e3
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The CPU time of this process, over all threads.
pub fn own_cpu() -> Outcome<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let of = |time: nix::sys::time::TimeVal| -> Outcome<Duration> {
        Ok(Duration::new(u64::try_from(time.tv_sec())?, u32::try_from(time.tv_usec())? * 1000))
    };
    Ok(of(usage.user_time())? + of(usage.system_time())?)
}

/// The CPU time of one operation in microseconds, for each round.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    pub client: Series,
    pub redis: Series,
}

/// Measures the CPU time of this process and of Redis, from `begin` to `end`.
pub struct Meter {
    client: Duration,
    redis: Duration,
}

impl Meter {
    pub async fn begin(admin: &mut Admin) -> Outcome<Self> {
        let redis = admin.cpu().await?;
        Ok(Self { client: own_cpu()?, redis })
    }

    pub async fn end(self, admin: &mut Admin, operations: u64, cost: &mut Cost) -> Outcome<()> {
        cost.client.push(micros(own_cpu()? - self.client) / operations as f64);
        cost.redis.push(micros(admin.cpu().await? - self.redis) / operations as f64);
        Ok(())
    }
}
