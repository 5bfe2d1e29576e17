//! The rows of a run, as a table, JSON and Markdown.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::measure::{Cost, Series};
use crate::{Outcome, ROOT, Transport};

/// The values that reach the target.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Target {
    fn is_reached(self, by: f64) -> bool {
        match self {
            Self::AtLeast(bound) => by >= bound,
            Self::AtMost(bound) => by <= bound,
            Self::Below(bound) => by < bound,
        }
    }

    fn bound(self) -> f64 {
        let (Self::AtLeast(bound) | Self::AtMost(bound) | Self::Below(bound)) = self;
        bound
    }

    fn sign(self) -> &'static str {
        match self {
            Self::AtLeast(_) => ">=",
            Self::AtMost(_) => "<=",
            Self::Below(_) => "<",
        }
    }
}

/// One line of the result. The target applies to the ratio, or to the value if there is no ratio.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub transport: &'static str,
    pub unit: &'static str,
    pub values: Series,
    pub baseline: Option<(&'static str, Series)>,
    pub ratios: Option<Series>,
    pub target: Option<Target>,
    pub cost: Option<Cost>,
    pub baseline_cost: Option<Cost>,
    pub note: String,
    /// Whether the target applies to the worst round, not to the median.
    strict: bool,
}

impl Row {
    pub fn new(name: impl Into<String>, transport: Transport, unit: &'static str, values: Series) -> Self {
        Self {
            name: name.into(),
            transport: transport.name(),
            unit,
            values,
            baseline: None,
            ratios: None,
            target: None,
            cost: None,
            baseline_cost: None,
            note: String::new(),
            strict: false,
        }
    }

    /// The worst round must reach the target, not only the median.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Ours divided by theirs, round by round.
    pub fn over(mut self, name: &'static str, theirs: &Series) -> Self {
        self.ratios = Some(self.values.over(theirs));
        self.baseline = Some((name, theirs.clone()));
        self
    }

    /// Theirs divided by ours, round by round: how many times faster we are.
    pub fn faster_than(mut self, name: &'static str, theirs: &Series) -> Self {
        self.ratios = Some(theirs.over(&self.values));
        self.baseline = Some((name, theirs.clone()));
        self
    }

    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    pub fn cost(mut self, ours: &Cost, theirs: Option<&Cost>) -> Self {
        (self.cost, self.baseline_cost) = (Some(ours.clone()), theirs.cloned());
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn ratio(&self) -> Option<f64> {
        self.ratios.as_ref()?.median()
    }

    pub fn reached(&self) -> Option<bool> {
        let judged = match (&self.ratios, self.strict) {
            (Some(ratios), _) => ratios.median(),
            (None, true) => self.values.max(),
            (None, false) => self.values.median(),
        };
        Some(self.target?.is_reached(judged?))
    }

    /// The row in summary.json, for other programs.
    fn summary(&self) -> Value {
        json!({
            "name": self.name,
            "transport": self.transport,
            "value": self.values.median(),
            "min": self.values.min(),
            "max": self.values.max(),
            "baseline": self.baseline.as_ref().and_then(|(_, series)| series.median()),
            "ratio": self.ratio(),
            "target": self.target.map(Target::bound),
            "reached": self.reached(),
        })
    }

    fn details(&self) -> Value {
        let cost = |cost: &Option<Cost>| {
            cost.as_ref().map(|cost| json!({ "client_us": cost.client.0, "redis_us": cost.redis.0 }))
        };
        json!({
            "summary": self.summary(),
            "unit": self.unit,
            "rounds": self.values.0,
            "baseline_name": self.baseline.as_ref().map(|(name, _)| name),
            "baseline_rounds": self.baseline.as_ref().map(|(_, series)| &series.0),
            "ratio_rounds": self.ratios.as_ref().map(|series| &series.0),
            "target_sign": self.target.map(Target::sign),
            "cpu_per_operation": cost(&self.cost),
            "baseline_cpu_per_operation": cost(&self.baseline_cost),
            "note": self.note,
        })
    }

    fn cells(&self) -> [String; 9] {
        let value = |value: Option<f64>| value.map_or_else(String::new, number);
        let range = match (self.values.min(), self.values.max()) {
            (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
            _ => String::new(),
        };
        let baseline = self
            .baseline
            .as_ref()
            .map_or_else(String::new, |(name, series)| format!("{name} {}", value(series.median())));
        let target =
            self.target.map_or_else(String::new, |target| format!("{} {}", target.sign(), number(target.bound())));
        let reached = self.reached().map_or("", |reached| if reached { "yes" } else { "**no**" });
        [
            self.name.clone(),
            self.transport.to_owned(),
            format!("{} {}", value(self.values.median()), self.unit),
            range,
            baseline,
            value(self.ratio()),
            target,
            reached.to_owned(),
            self.remark(),
        ]
    }

    fn remark(&self) -> String {
        let cost = |who: &str, cost: &Option<Cost>| {
            let cost = cost.as_ref()?;
            Some(format!("CPU{who} {} + {} µs", number(cost.client.median()?), number(cost.redis.median()?)))
        };
        let baseline = self.baseline.as_ref().map_or("", |(name, _)| name);
        let parts = [
            Some(self.note.clone()).filter(|note| !note.is_empty()),
            cost("", &self.cost),
            cost(&format!(" of {baseline}"), &self.baseline_cost),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Formats with three digits, or with all digits of a whole number.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// One line of a plot.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The content of the plots. A curve list without points makes no plot.
#[derive(Debug, Clone, Default)]
pub struct Curves {
    pub hand_off: Vec<Curve>,
    pub throughput: Vec<Curve>,
    pub fairness: Vec<Curve>,
    pub waiting: Vec<Curve>,
}

/// The machine and the kind of run.
#[derive(Debug, Clone)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
    pub redis: String,
    pub mode: &'static str,
    pub rounds: usize,
}

impl Machine {
    pub fn new(redis: String, mode: &'static str, rounds: usize) -> Self {
        let first_line = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().next().unwrap_or("unknown").trim().to_owned()
        };
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu.map_or("unknown", |(_, model)| model).to_owned(),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            redis,
            mode,
            rounds,
        }
    }

    pub fn text(&self) -> String {
        let Self { cores, cpu, kernel, redis, mode, rounds } = self;
        // Other work on the machine affects the results, so the load is part of them.
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
        format!("{cores} cores ({cpu}), Linux {kernel}, Redis {redis}, {mode} run of {rounds} rounds, load {load}")
    }
}

#[derive(Default)]
pub struct Report {
    pub rows: Vec<Row>,
    pub curves: Curves,
}

const HEAD: [&str; 9] = ["row", "transport", "median", "min to max", "baseline", "ratio", "target", "reached", "notes"];

impl Report {
    pub fn table(&self) -> String {
        let lines: Vec<[String; 9]> =
            std::iter::once(HEAD.map(str::to_owned)).chain(self.rows.iter().map(Row::cells)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..8).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(text, "{cell:<width$}  ");
            }
            let _ = writeln!(text, "{}", line[8]);
        }
        text
    }

    pub fn markdown(&self, machine: &str) -> String {
        let mut text = format!("{machine}\n\n| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len()));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.cells().join(" | "));
        }
        text
    }

    /// Writes summary.json, report.json and table.md. Returns their directory.
    pub fn write(&self, machine: &str) -> Outcome<PathBuf> {
        let dir = Path::new(ROOT).canonicalize()?.join("target/bench");
        std::fs::create_dir_all(&dir)?;
        let summary: Vec<Value> = self.rows.iter().map(Row::summary).collect();
        std::fs::write(dir.join("summary.json"), serde_json::to_string_pretty(&summary)?)?;
        let rows: Vec<Value> = self.rows.iter().map(Row::details).collect();
        let report = json!({ "machine": machine, "rows": rows, "plots": self.plotted() });
        std::fs::write(dir.join("report.json"), serde_json::to_string_pretty(&report)?)?;
        std::fs::write(dir.join("table.md"), self.markdown(machine))?;
        Ok(dir)
    }

    fn plotted(&self) -> Value {
        let curves = |curves: &[Curve]| -> Value {
            curves.iter().map(|curve| json!({ "name": curve.name, "points": curve.points })).collect()
        };
        json!({
            "hand_off": curves(&self.curves.hand_off),
            "throughput": curves(&self.curves.throughput),
            "fairness": curves(&self.curves.fairness),
            "waiting": curves(&self.curves.waiting),
        })
    }
}
