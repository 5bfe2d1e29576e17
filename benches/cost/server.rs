//! A private `redis-server`, with or without callgrind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, FromRedisValue, Pipeline, cmd};

use crate::Outcome;
use crate::callgrind::{self, Dumps};

/// The function that runs ECHO in the server. No other client sends this command. Redis exports its functions, so
/// callgrind finds it even in a stripped server.
const MARK: &str = "echoCommand";

const START: Duration = Duration::from_secs(30);

/// Numbers the servers of this process, so that each has its own folder.
static SERVERS: AtomicU64 = AtomicU64::new(0);

/// Killed when dropped.
pub struct Server {
    dir: PathBuf,
    process: Child,
    admin: Connection,
    /// `None` without callgrind.
    dumps: Option<Dumps>,
}

/// The beginning of a phase.
pub struct Begun {
    at: Instant,
    calls: f64,
}

/// The server's work in a phase.
pub struct Phase {
    pub ir: f64,
    pub calls: f64,
}

/// The cost of a phase without requests.
#[derive(Default)]
pub struct Rest {
    /// The cost of the two marks.
    once: f64,
    a_second: f64,
}

impl Server {
    pub fn under_callgrind() -> Outcome<Self> {
        Self::launch(true)
    }

    /// Without callgrind, so that times mean something.
    pub fn bare() -> Outcome<Self> {
        Self::launch(false)
    }

    fn launch(counts: bool) -> Outcome<Self> {
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fairlock-cost-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let out = dir.join("server");
        let mut command = if counts { callgrind::command(MARK, &out) } else { Command::new(&binary) };
        if counts {
            command.arg(&binary);
        }
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        // Keeps background work low.
        command.args(["--hz", "1", "--dynamic-hz", "no", "--maxmemory-policy", "noeviction"]);
        command.arg("--unixsocket").arg(dir.join("socket")).arg("--dir").arg(&dir);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let admin = match connect(&url(&dir)) {
            Ok(admin) => admin,
            Err(error) => {
                let _ = (process.kill(), process.wait(), std::fs::remove_dir_all(&dir));
                return Err(format!("{binary} does not answer (under valgrind: {counts}): {error}").into());
            }
        };
        Ok(Self { dir, process, admin, dumps: counts.then(|| Dumps::of(out)) })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn url(&self) -> String {
        url(&self.dir)
    }

    pub fn begin(&mut self) -> Outcome<Begun> {
        // One transaction, so that nothing comes between the number and the dump. The cost of the second command is
        // part of the phase, and of `Rest`.
        let (info, _): (String, String) = self.run(redis::pipe().cmd("INFO").arg("commandstats").cmd("ECHO").arg(0))?;
        self.dump()?;
        Ok(Begun { at: Instant::now(), calls: calls(&info) })
    }

    pub fn end(&mut self, begun: Begun, rest: &Rest) -> Outcome<Phase> {
        let (_, info): (String, String) = self.run(redis::pipe().cmd("ECHO").arg(0).cmd("INFO").arg("commandstats"))?;
        let ir = self.dump()? - rest.once - rest.a_second * begun.at.elapsed().as_secs_f64();
        Ok(Phase { ir, calls: calls(&info) - begun.calls })
    }

    fn dump(&mut self) -> Outcome<f64> {
        self.dumps.as_mut().ok_or("this server is not under callgrind")?.next()
    }

    pub fn connection(&self) -> Outcome<Connection> {
        connect(&self.url())
    }

    /// The cost of one call: in instructions, including the marks around it, or in the server's own time in µs.
    pub fn cost(&mut self, call: &Cmd) -> Outcome<(redis::Value, f64)> {
        if self.dumps.is_none() {
            let before = self.script_time()?;
            let reply = call.query(&mut self.admin)?;
            return Ok((reply, self.script_time()? - before));
        }
        self.mark()?;
        let reply = call.query(&mut self.admin)?;
        Ok((reply, self.mark()?))
    }

    /// The instructions since the last mark.
    fn mark(&mut self) -> Outcome<f64> {
        cmd("ECHO").arg(0).exec(&mut self.admin)?;
        self.dump()
    }

    /// The time of all scripts so far, in µs.
    fn script_time(&mut self) -> Outcome<f64> {
        let info: String = cmd("INFO").arg("commandstats").query(&mut self.admin)?;
        Ok(usec(&info))
    }

    /// Measures two phases without requests: one without time, one of three seconds.
    pub fn measure_rest(&mut self) -> Outcome<Rest> {
        let mut empty = |time: Duration| {
            let begun = self.begin()?;
            std::thread::sleep(time);
            self.end(begun, &Rest::default()).map(|phase| phase.ir)
        };
        // The first marks cost more.
        empty(Duration::ZERO)?;
        let once = empty(Duration::ZERO)?;
        let seconds = 3;
        let idle = empty(Duration::from_secs(seconds))?;
        Ok(Rest { once, a_second: (idle - once) / seconds as f64 })
    }

    pub fn version(&mut self) -> Outcome<String> {
        let info: String = cmd("INFO").arg("server").query(&mut self.admin)?;
        let number = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown");
        Ok(format!("Redis {}", number.trim()))
    }

    fn run<T: FromRedisValue>(&mut self, pipeline: &mut Pipeline) -> Outcome<T> {
        Ok(pipeline.atomic().query(&mut self.admin)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn url(dir: &Path) -> String {
    format!("unix://{}", dir.join("socket").display())
}

fn connect(url: &str) -> Outcome<Connection> {
    let client = Client::open(url)?;
    let limit = Instant::now() + START;
    loop {
        match client.get_connection() {
            Ok(connection) => return Ok(connection),
            Err(error) if Instant::now() > limit => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The time of the scripts that clients ran by their hashes.
fn usec(info: &str) -> f64 {
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let words = line.and_then(|line| line.split(',').find_map(|word| word.strip_prefix("usec=")));
    words.and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// How many scripts the server has run.
fn calls(info: &str) -> f64 {
    let of = |line: &str| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let counts = ["eval", "evalsha", "fcall"].contains(&name);
        counts.then(|| numbers.split(',').next()?.parse::<f64>().ok()).flatten()
    };
    info.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::{calls, usec};

    #[test]
    fn scripts_are_counted_however_they_are_called() {
        let info = "cmdstat_eval:calls=2,usec=9\r\ncmdstat_evalsha:calls=40,usec=1\r\ncmdstat_get:calls=7,usec=1\r\n";
        assert_eq!(calls(info), 42.0);
    }

    #[test]
    fn the_time_of_scripts_is_that_of_those_called_by_their_hashes() {
        let info = "cmdstat_eval:calls=2,usec=9\r\ncmdstat_evalsha:calls=40,usec=17,usec_per_call=0.43\r\n";
        assert_eq!((usec(info), usec("cmdstat_get:calls=7,usec=1\r\n")), (17.0, 0.0));
    }
}
