//! Draws docs/grafana.json without Grafana, for scripts/dashboard. It asks a Prometheus for each expression of the
//! panels, and writes a picture of the answers. It fails if an expression has no answer.
//!
//! `draw HOST:PORT SECONDS SVG`: the last SECONDS seconds.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Pixels of a column and of a row. The grid has 24 columns.
const COLUMN: f64 = 50.0;
const ROW: f64 = 30.0;
const COLOURS: [&str; 8] = ["#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#b877d9", "#37872d", "#8ab8ff"];

/// One line of a panel: its legend, and points of (seconds, value).
struct Line {
    legend: String,
    points: Vec<(f64, f64)>,
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [prometheus, seconds, out] = &words[..] else { return Err("draw HOST:PORT SECONDS SVG".into()) };
    let seconds: f64 = seconds.parse()?;
    let dashboard: Value = serde_json::from_str(include_str!("../../docs/grafana.json"))?;
    let until = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let (mut svg, mut height) = (String::new(), 0.0_f64);
    for panel in dashboard["panels"].as_array().ok_or("no panels")? {
        let mut lines = Vec::new();
        for target in panel["targets"].as_array().ok_or("no targets")? {
            lines.extend(ask(prometheus, target, until - seconds, until)?);
        }
        let grid = |name: &str| panel["gridPos"][name].as_f64().unwrap_or_default();
        let place = [grid("x") * COLUMN, grid("y") * ROW, grid("w") * COLUMN, grid("h") * ROW];
        height = height.max(place[1] + place[3]);
        draw(&mut svg, panel, place, &lines, [until - seconds, until])?;
    }
    let width = 24.0 * COLUMN;
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#111217\"/>\n"
    );
    std::fs::write(out, format!("{head}{svg}</svg>\n"))?;
    Ok(())
}

/// The values of the expression over that time.
fn ask(prometheus: &str, target: &Value, from: f64, until: f64) -> Outcome<Vec<Line>> {
    let text = |name: &str| target[name].as_str().unwrap_or_default();
    // The variables that Grafana fills in.
    let filled = [("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "20s")];
    let expression = filled.iter().fold(text("expr").to_owned(), |expr, (name, value)| expr.replace(name, value));
    let path = format!("/api/v1/query_range?query={}&start={from}&end={until}&step=2", encoded(&expression));
    let answer: Value = serde_json::from_str(&get(prometheus, &path)?)?;
    if answer["status"] != "success" {
        return Err(format!("{expression}: {answer}").into());
    }
    let results = answer["data"]["result"].as_array().ok_or("no result")?;
    let line = |result: &Value| {
        let labels = result["metric"].as_object().into_iter().flatten();
        let legend = labels.fold(text("legendFormat").to_owned(), |legend, (name, value)| {
            legend.replace(&format!("{{{{{name}}}}}"), value.as_str().unwrap_or_default())
        });
        let points = result["values"].as_array().into_iter().flatten().filter_map(|point| {
            Some((point[0].as_f64()?, point[1].as_str()?.parse().ok().filter(|value: &f64| value.is_finite())?))
        });
        Line { legend, points: points.collect() }
    };
    Ok(results.iter().map(line).collect())
}

fn get(host: &str, path: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(host)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").ok_or("no body")?.1.to_owned())
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => encoded.push(byte.into()),
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

fn draw(svg: &mut String, panel: &Value, [x, y, w, h]: [f64; 4], lines: &[Line], time: [f64; 2]) -> Outcome<()> {
    let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
    let title = panel["title"].as_str().unwrap_or_default();
    let (x, y, w, h) = (x + 4.0, y + 4.0, w - 8.0, h - 8.0);
    writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"2\" fill=\"#181b1f\" stroke=\"#2c3235\"/>"
    )?;
    writeln!(svg, "<text x=\"{}\" y=\"{}\" fill=\"#ccccdc\" font-weight=\"bold\">{title}</text>", x + 10.0, y + 20.0)?;
    if panel["type"] == "stat" {
        let last = lines.first().and_then(|line| line.points.last()).map_or(0.0, |point| point.1);
        // Prometheus extrapolates a 1 that came between two scrapes to 1.02.
        let is_whole = panel["fieldConfig"]["defaults"]["decimals"] == 0;
        let value = human(if is_whole { last.round() } else { last }, unit);
        let middle = (x + w / 2.0, y + h / 2.0 + 24.0);
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"#73bf69\" font-size=\"36\" text-anchor=\"middle\">{value}</text>",
            middle.0, middle.1
        )?;
        return Ok(());
    }
    let (left, right, top, bottom) = (x + 60.0, x + w - 12.0, y + 36.0, y + h - 40.0);
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let most = if most > 0.0 { most * 1.1 } else { 1.0 };
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let at = bottom - share * (bottom - top);
        let value = human(share * most, unit);
        writeln!(svg, "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#2c3235\"/>")?;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" fill=\"#8e8e9a\" text-anchor=\"end\">{value}</text>",
            left - 6.0,
            at + 4.0
        )?;
    }
    let mut legend_at = left;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let place = |(at, value): &(f64, f64)| {
            let across = left + (at - time[0]) / (time[1] - time[0]) * (right - left);
            format!("{across:.1},{:.1}", bottom - value / most * (bottom - top))
        };
        let points: Vec<_> = line.points.iter().map(place).collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        )?;
        writeln!(
            svg,
            "<rect x=\"{legend_at:.1}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
            y + h - 18.0
        )?;
        let words = &line.legend;
        writeln!(svg, "<text x=\"{:.1}\" y=\"{}\" fill=\"#ccccdc\">{words}</text>", legend_at + 16.0, y + h - 12.0)?;
        legend_at += 34.0 + 6.4 * words.len() as f64;
    }
    Ok(())
}

/// Formats a number for people.
fn human(value: f64, unit: &str) -> String {
    let plain =
        |value: f64| if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    match unit {
        "s" if value == 0.0 => "0 s".into(),
        "s" if value < 0.001 => format!("{:.0} µs", value * 1e6),
        "s" if value < 1.0 => format!("{} ms", plain(value * 1e3)),
        "s" => format!("{} s", plain(value)),
        "ops" => format!("{}/s", plain(value)),
        _ => plain(value),
    }
}
