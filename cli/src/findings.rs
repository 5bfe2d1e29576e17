//! The findings of `doctor`.

use serde::Serialize;

use super::exit::Failure;
use super::output::{Output, Style};
use super::render;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Good,
    /// The check could not find something out, or something optional is missing.
    Note,
    /// No promise is broken now.
    Warning,
    /// A promise is broken.
    Broken,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    /// The server, if the finding is about one of several.
    pub server: Option<String>,
    pub text: String,
    pub advice: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn good(&mut self, check: &'static str, text: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Good, server: None, text: text.into(), advice: None });
    }

    pub fn add(&mut self, check: &'static str, level: Level, text: impl Into<String>, advice: impl Into<String>) {
        let advice = Some(advice.into());
        self.findings.push(Finding { check, level, server: None, text: text.into(), advice });
    }

    /// Marks the findings from index `from` on as findings about this server.
    pub fn is_about(&mut self, from: usize, server: &str) {
        for finding in self.findings.iter_mut().skip(from) {
            finding.server = Some(server.to_owned());
        }
    }

    pub fn is_fit(&self) -> bool {
        self.findings.iter().all(|finding| finding.level != Level::Broken)
    }

    pub fn show(&self, out: &mut Output) -> Result<(), Failure> {
        for finding in &self.findings {
            let mark = match finding.level {
                Level::Good => out.styled(Style::Good, "ok     "),
                Level::Note => out.styled(Style::Dim, "note   "),
                Level::Warning => out.styled(Style::Doubtful, "warning"),
                Level::Broken => out.styled(Style::Bad, "BROKEN "),
            };
            let server = finding.server.as_ref().map_or_else(String::new, |server| format!("{server}: "));
            out.line(format!("{mark}  {:<12} {server}{}", finding.check, render::text(&finding.text)))?;
            if let Some(advice) = &finding.advice {
                out.line(format!("{:23}{}", "", render::text(advice)))?;
            }
        }
        let fit = if self.is_fit() {
            out.styled(Style::Good, "fit for locks")
        } else {
            out.styled(Style::Bad, "not fit for locks: a promise is broken")
        };
        out.line(fit)
    }
}
