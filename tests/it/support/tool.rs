//! The command `fairlock`, as a process.

use std::ffi::OsStr;
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{LONGEST_WAIT, Server, binaries};

pub struct Tool {
    command: Command,
}

/// The output and the exit code.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The path of the command.
pub fn path() -> String {
    binaries::path("fairlock").display().to_string()
}

/// Runs a whole test. Its limit excludes the build.
pub async fn limit<F: Future>(test: F) -> F::Output {
    binaries::build().await;
    super::limit(test).await
}

/// The same, on a server.
pub async fn on_a_server(test: impl AsyncFnOnce(&Server)) {
    binaries::build().await;
    super::on_a_server(test).await;
}

/// A running command. Killed when dropped.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Tool {
    /// Without a terminal, even if the tests run in one.
    pub fn new(url: &str, arguments: &[&str]) -> Self {
        Self::behind(&[], url, arguments)
    }

    /// The same in a terminal.
    pub fn in_terminal(url: &str, arguments: &[&str]) -> Self {
        let quoted: Vec<_> = arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        let mut command = Command::new("env");
        let line = format!("exec {} {}", binaries::path("fairlock").display(), quoted.join(" "));
        command.args(["--default-signal", "script", "--quiet", "--return", "--command", &line, "/dev/null"]);
        Self::prepared(command, url)
    }

    /// The same, started by another command, such as `nohup`.
    pub fn behind(words: &[&str], url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        // The tests themselves may run with ignored signals, as under `nohup`.
        command.args(["env", "--default-signal"]).args(words).arg(binaries::path("fairlock")).args(arguments);
        Self::prepared(command, url)
    }

    fn prepared(mut command: Command, url: &str) -> Self {
        for variable in ["NO_COLOR", "FAIRLOCK_PREFIX", "FAIRLOCK_STRICT_RESTART", "FAIRLOCK_CACERT", "FAIRLOCK_OWNERS"]
        {
            command.env_remove(variable);
        }
        command.env("FAIRLOCK_URL", url).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        Self { command }
    }

    /// Adds an argument, which need not be text.
    pub fn add(&mut self, word: &OsStr) {
        self.command.arg(word);
    }

    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs to its end.
    pub async fn run(mut self) -> Ended {
        let output = timeout(LONGEST_WAIT, self.command.output()).await.expect("it ends").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Starts it. It runs next to the test.
    pub fn start(mut self) -> Running {
        let mut child = self.command.stdin(Stdio::piped()).spawn().unwrap();
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let stdin = child.stdin.take();
        Running { child, stdin, lines }
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id().expect("it runs")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Returns the next line of its output.
    pub async fn line(&mut self) -> String {
        let line = self.lines.as_mut().unwrap().next_line();
        timeout(LONGEST_WAIT, line).await.expect("it says something").unwrap().expect("it goes on")
    }

    pub async fn say(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    /// Closes the pipe that it prints to.
    pub fn close_output(&mut self) {
        self.lines = None;
    }

    /// Returns how it ended, and what it wrote to standard error.
    pub async fn end(mut self) -> (ExitStatus, String) {
        let mut err = String::new();
        self.stdin = None;
        let mut said = self.child.stderr.take().unwrap();
        let ended = async {
            let status = self.child.wait().await.unwrap();
            // A child of the command may keep the pipe open.
            let _ = timeout(std::time::Duration::from_millis(200), said.read_to_string(&mut err)).await;
            status
        };
        (timeout(LONGEST_WAIT, ended).await.expect("it ends"), err)
    }
}

impl Ended {
    /// Parses each line of the output as one value.
    pub fn json(&self, definition: &str) -> Vec<Value> {
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let values: Vec<Value> = self.out.lines().map(read).collect();
        values.iter().for_each(|value| check(value, definition));
        values
    }
}

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../../docs/command.schema.json")).unwrap());

/// Checks a value against a definition of docs/command.schema.json.
pub fn check(value: &Value, definition: &str) {
    if let Err(why) = fits(value, &SCHEMA["$defs"][definition]) {
        panic!("{why} in {value}");
    }
}

/// Knows the part of JSON Schema that the file uses; any other word is an error.
fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    let words = schema.as_object().ok_or_else(|| format!("no schema for {value}"))?;
    let of = |name: &str| schema[name].as_array().cloned().unwrap_or_default();
    for (word, meaning) in words {
        match word.as_str() {
            "description" => {}
            "$ref" => {
                let name = meaning.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                fits(value, &SCHEMA["$defs"][name])?;
            }
            "anyOf" => {
                let any = of("anyOf").iter().any(|schema| fits(value, schema).is_ok());
                any.then_some(()).ok_or_else(|| format!("{value} fits none of {meaning}"))?;
            }
            "enum" => of("enum").contains(value).then_some(()).ok_or_else(|| format!("{value} is not in {meaning}"))?,
            "type" => {
                let kinds = if meaning.is_array() { of("type") } else { vec![meaning.clone()] };
                let is = kinds.iter().any(|kind| is_of_type(value, kind.as_str().unwrap()));
                is.then_some(()).ok_or_else(|| format!("{value} is no {meaning}"))?;
            }
            // There is only one pattern, for times.
            "pattern" => {
                let text = value.as_str().unwrap_or_default();
                let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
                (shape == "0000-00-00T00:00:00.000Z").then_some(()).ok_or_else(|| format!("{value} is no time"))?;
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| fits(item, meaning))?,
            "required" => {
                let missing = of("required").into_iter().find(|name| value.get(name.as_str().unwrap()).is_none());
                missing.map_or(Ok(()), |name| Err(format!("{name} is missing")))?;
            }
            "properties" | "additionalProperties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    fits(inner, &schema["properties"][name]).map_err(|why| format!("{name}: {why}"))?;
                }
            }
            other => return Err(format!("the schema says {other:?}, which this test does not know")),
        }
    }
    Ok(())
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}
