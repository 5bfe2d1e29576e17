//! The rows of the result, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::Outcome;

/// The measurements of one round, for one call.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub server_ir: f64,
    pub client_ir: f64,
    pub client_allocations: f64,
    /// How many scripts the server ran. An unexpected number shows that something else was under way.
    pub calls: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: String,
    /// `None`: not measured.
    pub server_ir: Option<f64>,
    pub client_ir: Option<f64>,
    pub client_allocations: Option<f64>,
    /// Shown only in the table.
    pub calls: Option<f64>,
}

impl Row {
    /// The median of the samples in which the server ran the fewest scripts. On a busy machine a hold may last until
    /// its renewal, which adds a script to its round.
    pub fn median(name: &str, mut samples: Vec<Sample>) -> Self {
        let fewest = samples.iter().map(|sample| sample.calls).fold(f64::INFINITY, f64::min);
        samples.retain(|sample| sample.calls == fewest);
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        Self {
            name: name.to_owned(),
            server_ir: of(|sample| sample.server_ir),
            client_ir: of(|sample| sample.client_ir),
            client_allocations: of(|sample| sample.client_allocations),
            calls: of(|sample| sample.calls),
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "server_ir": self.server_ir.map(f64::round),
            "client_ir": self.client_ir.map(f64::round),
            // With tenths: because buffers grow, this is not a whole number.
            "client_allocations": self.client_allocations.map(|count| (count * 10.0).round() / 10.0),
        })
    }

    fn cells(&self) -> [String; 5] {
        let cell = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        [
            self.name.clone(),
            cell(self.server_ir, 0),
            cell(self.client_ir, 0),
            cell(self.client_allocations, 1),
            cell(self.calls, 2),
        ]
    }
}

/// The upper of the two middle values if their number is even.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

pub fn json(rows: &[Row]) -> Outcome<String> {
    Ok(serde_json::to_string_pretty(&rows.iter().map(Row::json).collect::<Vec<_>>())?)
}

/// Reads the rows from the output of `json`.
pub fn read(text: &str) -> Outcome<Vec<Row>> {
    let rows: Vec<Value> = serde_json::from_str(text)?;
    let row = |value: &Value| {
        let number = |key: &str| value[key].as_f64();
        Ok(Row {
            name: value["name"].as_str().ok_or("a row without a name")?.to_owned(),
            server_ir: number("server_ir"),
            client_ir: number("client_ir"),
            client_allocations: number("client_allocations"),
            calls: None,
        })
    };
    rows.iter().map(row).collect()
}

pub fn table(rows: &[Row]) -> String {
    let head = ["row", "server Ir", "client Ir", "client allocations", "scripts"].map(str::to_owned);
    lines(std::iter::once(head).chain(rows.iter().map(Row::cells)))
}

/// Compares the rows that both have: before -> after, and the ratio.
pub fn comparison(before: &[Row], after: &[Row]) -> String {
    let head = ["row", "server Ir", "client Ir", "client allocations"].map(str::to_owned);
    let pairs = after.iter().filter_map(|after| Some((before.iter().find(|row| row.name == after.name)?, after)));
    let cells = pairs.map(|(before, after)| {
        [
            after.name.clone(),
            change(before.server_ir, after.server_ir),
            change(before.client_ir, after.client_ir),
            change(before.client_allocations, after.client_allocations),
        ]
    });
    lines(std::iter::once(head).chain(cells))
}

fn change(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("{before:.0} -> {after:.0} ({:.2})", after / before),
        _ => "-".to_owned(),
    }
}

fn lines<const COLUMNS: usize>(rows: impl Iterator<Item = [String; COLUMNS]>) -> String {
    let mut text = String::new();
    for cells in rows {
        for (column, cell) in cells.iter().enumerate() {
            let _ = if column == 0 { write!(text, "{cell:<12}") } else { write!(text, "{cell:>30}") };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server_ir: f64) -> Sample {
        Sample { server_ir, client_ir: 59_300.4, client_allocations: 45.02, calls: 2.0 }
    }

    #[test]
    fn a_row_is_json_of_these_names() {
        let row = Row::median("pair", vec![sample(3.0), sample(1.0), sample(2.4)]);
        let text = json(&[row]).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let expected = json!({ "name": "pair", "server_ir": 2.0, "client_ir": 59_300.0, "client_allocations": 45.0 });
        assert_eq!(read, json!([expected]));
        assert_eq!(super::read(&text).unwrap()[0].client_ir, Some(59_300.0));
    }

    #[test]
    fn a_round_with_a_renewal_does_not_count() {
        let row = Row::median("turn", vec![Sample { calls: 2.1, ..sample(9.0) }, sample(1.0)]);
        assert_eq!((row.server_ir, row.calls), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let row = Row::median("pair", Vec::new());
        let expected = json!({ "name": "pair", "server_ir": null, "client_ir": null, "client_allocations": null });
        assert_eq!(row.json(), expected);
    }
}
