//! Standard output: colours on terminals only, one flush for each line of a stream.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsFd;
use std::thread;

use serde::Serialize;
use tokio::sync::oneshot;

use super::args::Color;
use super::exit::Failure;

pub struct Output {
    out: BufWriter<Stdout>,
    pub is_terminal: bool,
    colors: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Doubtful,
}

impl Output {
    pub fn new(color: Color) -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        // https://no-color.org
        let wanted = || is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colors = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => wanted(),
        };
        Self { out: BufWriter::new(out), is_terminal, colors }
    }

    /// The text in this style, if colours are on.
    pub fn styled(&self, style: Style, text: &str) -> String {
        if !self.colors {
            return text.to_owned();
        }
        let code = match style {
            Style::Bold => 1,
            Style::Dim => 2,
            Style::Good => 32,
            Style::Bad => 31,
            Style::Doubtful => 33,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{}", line.as_ref())?)
    }

    /// Prints one value on one line, for readers of line-delimited JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(io::Error::from)?;
        self.line(text)
    }

    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }
}

/// Prints a line from a thread of its own: a full pipe blocks the thread, while this process handles signals and renews
/// locks.
pub async fn print_aside(mut line: String) -> Result<(), Failure> {
    line.push('\n');
    // Not through `Stdout`: a blocked thread would keep its lock, and this process flushes it before it ends.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (done, printed) = oneshot::channel();
    thread::Builder::new().spawn(move || done.send(out.write_all(line.as_bytes())))?;
    Ok(printed.await.map_err(io::Error::other)??)
}

/// Escapes control characters as `\u{1b}`: names, labels and texts from a server are arbitrary.
pub fn text(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}
