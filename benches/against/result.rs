//! The rows of a run, as a table and as JSON.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::side::Round;
use crate::work::Plan;
use crate::{Outcome, ROOT};

/// One value for each round: the older library's, and this one's.
type Values = [Vec<f64>; 2];

pub struct Row {
    name: &'static str,
    transport: &'static str,
    unit: &'static str,
    values: Values,
    /// CPU time of a round.
    client: Values,
    redis: Values,
}

impl Row {
    pub fn new(plan: &Plan, transport: &'static str) -> Self {
        let [values, client, redis] = Default::default();
        Self { name: plan.name, transport, unit: plan.unit, values, client, redis }
    }

    /// A round of the older library (0) or of this one (1).
    pub fn add(&mut self, side: usize, round: Round) {
        self.values[side].push(round.value);
        self.client[side].push(round.client);
        self.redis[side].push(round.redis);
    }

    pub fn line(&self) -> String {
        let [older, newer] = self.values.each_ref().map(|values| median(values));
        let [low, middle, high] = ratio(&self.values);
        let [[_, client, _], [_, redis, _]] = [ratio(&self.client), ratio(&self.redis)];
        format!(
            "{:<18}{:<6}{:<13}{older:>10.1}{newer:>10.1}{middle:>8.2}  {low:.2} to {high:.2}{client:>12.2}{redis:>11.2}",
            self.name, self.transport, self.unit
        )
    }

    fn json(&self) -> Value {
        let [low, middle, high] = ratio(&self.values);
        json!({
            "name": self.name,
            "transport": self.transport,
            "unit": self.unit,
            "older": median(&self.values[0]),
            "newer": median(&self.values[1]),
            "ratio": middle,
            "ratio_quartiles": [low, high],
            "client_cpu_ratio": ratio(&self.client)[1],
            "redis_cpu_ratio": ratio(&self.redis)[1],
            "older_rounds": self.values[0],
            "newer_rounds": self.values[1],
        })
    }
}

pub fn head() -> String {
    format!(
        "The ratio is newer / older of each round, its median; CPU the same, of CPU times.\n\n\
         {:<18}{:<6}{:<13}{:>10}{:>10}{:>8}  {:<12}{:>12}{:>11}",
        "row", "", "unit", "older", "newer", "ratio", "middle half", "CPU: client", "Redis"
    )
}

/// This library's value divided by the older one's, round by round: lower quartile, median, upper quartile.
fn ratio([older, newer]: &Values) -> [f64; 3] {
    let mut ratios: Vec<f64> = newer.iter().zip(older).map(|(newer, older)| newer / older).collect();
    ratios.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| ratios.get(ratios.len() * quarter / 4).copied().unwrap_or(f64::NAN))
}

/// The upper of the two middle values if their number is even, so that the result is a measured value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_owned();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn write(rows: &[Row]) -> Outcome<PathBuf> {
    let dir = Path::new(ROOT).canonicalize()?.join("target/bench");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("against.json");
    std::fs::write(&path, serde_json::to_string_pretty(&rows.iter().map(Row::json).collect::<Vec<_>>())?)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_same_round() {
        let mut row = Row::new(&crate::work::PLANS[0], "tcp");
        // The machine was three times slower in the last round.
        for (older, newer) in [(100.0, 80.0), (110.0, 77.0), (300.0, 240.0)] {
            row.add(0, Round { value: older, client: 2.0, redis: 4.0 });
            row.add(1, Round { value: newer, client: 1.0, redis: 1.0 });
        }
        assert_eq!(ratio(&row.values), [0.7, 0.8, 0.8]);
        let json = row.json();
        assert_eq!((&json["older"], &json["newer"]), (&json!(110.0), &json!(80.0)));
        assert_eq!((&json["client_cpu_ratio"], &json["redis_cpu_ratio"]), (&json!(0.5), &json!(0.25)));
    }
}
