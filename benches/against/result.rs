//! The rows of a run, as a table and as JSON.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::work::Plan;
use crate::{Outcome, ROOT};

pub struct Row {
    name: &'static str,
    transport: &'static str,
    unit: &'static str,
    /// One value for each round: of the older library, and of this one.
    pub values: [Vec<f64>; 2],
}

impl Row {
    pub fn new(plan: &Plan, transport: &'static str) -> Self {
        Self { name: plan.name, transport, unit: plan.unit, values: Default::default() }
    }

    /// This library divided by the older one: the median of the ratios of the rounds, and the extremes.
    fn ratios(&self) -> [f64; 3] {
        let [older, newer] = &self.values;
        let mut ratios: Vec<f64> = newer.iter().zip(older).map(|(newer, older)| newer / older).collect();
        ratios.sort_by(f64::total_cmp);
        match ratios[..] {
            [first, .., last] => [ratios[ratios.len() / 2], first, last],
            [only] => [only; 3],
            [] => [f64::NAN; 3],
        }
    }

    pub fn line(&self) -> String {
        let [older, newer] = self.values.each_ref().map(|values| median(values));
        let [ratio, least, most] = self.ratios();
        format!(
            "{:<18} {:<5} {older:>9.1} {newer:>9.1} {:<12} {ratio:>6.2}  {least:.2} to {most:.2}",
            self.name, self.transport, self.unit
        )
    }

    fn json(&self) -> Value {
        let [ratio, least, most] = self.ratios();
        json!({
            "name": self.name,
            "transport": self.transport,
            "unit": self.unit,
            "older": median(&self.values[0]),
            "newer": median(&self.values[1]),
            "ratio": ratio,
            "ratio_min": least,
            "ratio_max": most,
            "older_rounds": self.values[0],
            "newer_rounds": self.values[1],
        })
    }
}

/// The upper one if two are in the middle, so that it is a measured value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_owned();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn table(rows: &[Row]) -> String {
    let head = format!("{:<24} {:>9} {:>9} {:<12} {:>6}  min to max\n", "row", "older", "newer", "", "ratio");
    rows.iter().fold(head, |text, row| text + &row.line() + "\n")
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
    use super::Row;

    #[test]
    fn the_ratio_is_that_of_the_same_round() {
        // The machine was three times slower in the last round.
        let values = [vec![100.0, 110.0, 300.0], vec![80.0, 77.0, 240.0]];
        let row = Row { name: "pair", transport: "tcp", unit: "µs", values };
        assert_eq!(row.ratios(), [0.8, 0.7, 0.8]);
        assert_eq!(row.json()["older"], 110.0);
    }
}
