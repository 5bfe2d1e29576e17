//! The arguments and their help text.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use fairlock::{HoldHandle, ParseHandleError};

use super::guard::{Use, Wait};

const EXAMPLES: &str = "\
Examples:
  export FAIRLOCK_URL=redis://worker:secret@redis.internal/
  fairlock lock nightly -- ./report.sh         waits its turn, then runs the command
  fairlock lock --try nightly -- ./report.sh   only if the lock is free
  HANDLE=$(fairlock acquire deploy --lease 30m)   a lock over several steps, also on other machines
  fairlock status nightly                      who holds it, and who waits
  fairlock watch 'orders:*'                    the same for many locks, as a table that refreshes
  fairlock force-unlock nightly                ends the hold of a dead holder
  fairlock doctor                              checks whether the server is fit for locks";

const LOCK_EXAMPLES: &str = "\
Examples:
  fairlock lock nightly -- ./report.sh
  fairlock lock --wait 30s --lease 10s --label \"job 17\" orders:42 -- ./ship 42
  fairlock lock --try --conflict-exit-code 0 cron -- ./once-in-the-cluster
  fairlock lock --slots 5 render -- ./render 17     at most five of them at a time
  fairlock lock --shared index -- ./search          next to other readers; --exclusive is for writers
  fairlock lock db -- sh -c 'psql -v token=\"$FAIRLOCK_TOKEN\" -f migrate.sql'

The command finds FAIRLOCK_NAME, FAIRLOCK_TOKEN and FAIRLOCK_OWNER in its environment. Each hold has a greater token
than all holds before it, so a resource that remembers the greatest token can refuse a command that was too slow. (With
--slots and --shared the token is only an identity: others run at the same time.) FAIRLOCK_OWNERS names the owners of
all locks that the command runs under: fairlock refuses to wait for a lock that one of them holds.

fairlock passes signals on. Without a terminal, the command and the processes that it starts form a process group, and
the group gets them. If the lock is lost, the command gets SIGTERM, and SIGKILL after --kill-after. If fairlock itself is
killed by SIGKILL, the command gets SIGTERM on Linux (--orphan), but the processes that it has started do not.

With --attach HANDLE the command runs under a lock that `acquire` has taken. fairlock extends its lease while the command
runs, and the lock stays held. Without a command, fairlock prints the name and the token, and holds the lock until a
signal comes.

Exit codes:
  the exit code of the command, or 128 + N if signal N ended it
  1    others have the lock (--conflict-exit-code)
  2    wrong usage
  69   the server cannot be reached, is not ready yet, does not answer, or has a full queue
  71   something on this machine failed
  75   the lock was lost while the command ran
  77   the server refuses, until someone changes something
  126  the command cannot run
  127  the command does not exist";

const HANDLE_EXAMPLES: &str = "\
Examples:
  HANDLE=$(fairlock acquire deploy --lease 30m --wait 10m)
  fairlock lock --attach \"$HANDLE\" -- ./migrate.sh
  fairlock extend \"$HANDLE\" 1h
  fairlock release \"$HANDLE\"

No process renews the lock of a handle: it is free when its lease ends. Anyone who can connect, and has seen the handle or
the `status` of its hold, can extend or release it.

Exit codes:
  0    done
  1    others have the lock
  2    wrong usage
  69   the server cannot be reached, is not ready yet, or does not answer: the outcome is unknown
  71   something on this machine failed, for example fairlock cannot print the handle
  75   the handle holds nothing: its lease has ended, or it was released, attached or taken away
  77   the server refuses, until someone changes something
  128 + N  signal N came before fairlock printed the handle (141: no process reads it); fairlock has released the lock";

/// A fair distributed lock on Redis or Valkey.
#[derive(Debug, Parser)]
#[command(name = "fairlock", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,

    /// The server: redis://, rediss://, unix://, redis-sentinel:// or redis+cluster://.
    ///
    /// To use several servers, of which a majority holds each lock, give three or more URLs: repeat --url, or separate
    /// them by spaces or newlines. All clients must list the same servers in the same order.
    ///
    /// Put a URL with a password into the environment: others on this machine can see arguments.
    #[arg(
        long = "url",
        value_name = "URL",
        global = true,
        env = "FAIRLOCK_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1/"
    )]
    urls: Vec<String>,
    /// The prefix of the keys of all locks.
    #[arg(long, global = true, env = "FAIRLOCK_PREFIX", default_value = "fairlock")]
    pub prefix: String,
    /// How long one request may take.
    #[arg(long, global = true, value_parser = duration, default_value = "2s", value_name = "DURATION")]
    pub timeout: Duration,
    /// The longest lease that any client uses, if the clients are connected with strict_restart. With several servers
    /// strict_restart is on, and this defaults to the lease.
    #[arg(long, global = true, value_parser = lease, env = "FAIRLOCK_STRICT_RESTART", value_name = "DURATION")]
    pub strict_restart: Option<Duration>,
    /// The certificate authority for TLS, as a PEM file. Defaults to the authorities that this machine trusts.
    #[arg(long, global = true, env = "FAIRLOCK_CACERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cacert: Option<PathBuf>,
    /// The password for Sentinels. They do not get the password of the servers.
    #[arg(long, global = true, env = "FAIRLOCK_SENTINEL_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    pub sentinel_password: Option<String>,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
    /// Log events to standard error, not only warnings.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

impl Args {
    pub fn is_cluster(&self) -> bool {
        self.urls().any(|url| url.contains("+cluster:"))
    }

    /// Whether a server that has restarted grants nothing for a while.
    pub fn is_strict(&self) -> bool {
        self.strict_restart.is_some() || self.urls().count() > 1
    }

    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.urls.iter().flat_map(|urls| urls.split_whitespace())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// If standard output is a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command under a lock.
    #[command(after_help = LOCK_EXAMPLES)]
    Lock(Lock),
    /// Take a lock and print a handle for it, for a job whose steps run on several machines.
    #[command(after_help = HANDLE_EXAMPLES)]
    Acquire(Acquire),
    /// Set a new lease for the lock of a handle, unless more time remains.
    #[command(after_help = HANDLE_EXAMPLES)]
    Extend(Extend),
    /// Release the lock of a handle.
    #[command(after_help = HANDLE_EXAMPLES)]
    Release(Release),
    /// Show the holders and waiters of locks.
    Status(Status),
    /// List the locks that have holders or waiters, and the semaphores that have a number of slots set for all
    /// programs.
    ///
    /// This needs the right to SCAN (+scan).
    List(List),
    /// Show locks as a table that refreshes.
    Watch(Watch),
    /// Take a lock away from its holder and give it to the next waiter.
    ///
    /// Use this for a holder that you know is dead. A live holder gets a message, and works on until that arrives.
    ForceUnlock(ForceUnlock),
    /// Set the number of slots of a semaphore for all programs, whatever number each of them gives. 0 pauses it.
    ///
    /// Programs that hold a slot keep it. The number applies until --unset. The command then shows the status.
    SetPermits(SetPermits),
    /// Check whether the server is fit for locks. Exits with 1 if something breaks a promise.
    ///
    /// This takes and releases a lock with a name of its own.
    Doctor(Doctor),
    /// Print the ACL line of a user with just the rights that locks need.
    Acl(Acl),
    /// Measure locks on this server next to PING: lock and unlock, and the hand-over to a waiter.
    Bench(Bench),
    /// Print the completions for a shell.
    Completions(Completions),
    /// Print the manual page.
    Man,
}

#[derive(Debug, clap::Args)]
pub struct Lock {
    /// The name of the lock.
    #[arg(required_unless_present = "attach")]
    pub name: Option<String>,
    /// The command and its arguments. Without a command, fairlock prints the name and the token, and holds the lock
    /// until a signal comes.
    #[arg(last = true, value_hint = ValueHint::CommandWithArguments)]
    pub cmd: Vec<OsString>,
    /// Use a semaphore instead of a lock: at most N such commands run at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["shared", "exclusive"])]
    pub slots: Option<u32>,
    /// Use a read-write lock as a reader, next to other commands with --shared.
    #[arg(long, short, conflicts_with = "exclusive")]
    pub shared: bool,
    /// Use a read-write lock as a writer, alone.
    #[arg(long, short = 'x')]
    pub exclusive: bool,
    /// Run the command under the lock or the slot of a handle, which stays held.
    #[arg(long, value_parser = handle, value_name = "HANDLE", requires = "cmd",
        conflicts_with_all = ["name", "try_only", "wait", "lease", "label", "slots", "shared", "exclusive"])]
    pub attach: Option<HoldHandle>,
    #[command(flatten)]
    pub call: Call,
    /// How long the lock stays held if this machine dies: 30s by default. fairlock renews it while the command runs.
    #[arg(long, value_parser = lease, value_name = "DURATION")]
    pub lease: Option<Duration>,
    /// Keep the lock or the slot for at least this long after it was acquired, even if the command ends earlier, fails or
    /// cannot run. If fairlock itself is killed, it stays taken for its lease. Use it for a job that should run only once
    /// on machines whose clocks differ.
    #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with_all = ["shared", "exclusive", "attach"])]
    pub at_least: Option<Duration>,
    /// What happens to the command if fairlock is killed by SIGKILL. Linux only: on other systems the command goes on.
    #[arg(long, value_enum, default_value_t = Orphan::Term, value_name = "WHAT")]
    pub orphan: Orphan,
    /// How long after SIGTERM the command gets SIGKILL if the lock is lost.
    #[arg(long, value_parser = duration, default_value = "10s", value_name = "DURATION")]
    pub kill_after: Duration,
}

impl Lock {
    pub fn used_as(&self) -> Use {
        match self.slots {
            Some(slots) => Use::Slots(slots),
            None if self.shared => Use::Shared,
            None if self.exclusive => Use::Exclusive,
            None => Use::Lock,
        }
    }
}

impl Acquire {
    pub fn used_as(&self) -> Use {
        self.slots.map_or(Use::Lock, Use::Slots)
    }
}

impl Call {
    pub fn wait(&self) -> Wait {
        match self.wait {
            Some(Duration::ZERO) => Wait::No,
            _ if self.try_only => Wait::No,
            Some(longest) => Wait::For(longest),
            None => Wait::WithoutLimit,
        }
    }
}

/// How to ask for a lock.
#[derive(Debug, clap::Args)]
pub struct Call {
    /// Do not wait: give up if others hold the lock or wait for it.
    #[arg(long = "try", short = 'n', conflicts_with = "wait")]
    pub try_only: bool,
    /// The longest wait, even for a server that is not ready yet; 0s is --try. Without it fairlock waits for the lock
    /// without a limit, but does not wait for the server.
    #[arg(long, short, value_parser = duration, value_name = "DURATION")]
    pub wait: Option<Duration>,
    /// The text that `status` shows next to this lock. Defaults to host and process ID.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// The exit code if others have the lock.
    #[arg(long, short = 'E', default_value_t = super::exit::FOUND, value_name = "N")]
    pub conflict_exit_code: u8,
}

/// What happens to a command whose fairlock was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Orphan {
    /// Send it SIGTERM.
    Term,
    /// Send it SIGKILL.
    Kill,
    /// Let it go on, without the lock.
    Keep,
}

#[derive(Debug, clap::Args)]
pub struct Acquire {
    /// The name of the lock.
    pub name: String,
    /// Use a semaphore instead of a lock: the handle has one of N slots.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    #[command(flatten)]
    pub call: Call,
    /// How long the lock stays held, unless it is extended or released.
    #[arg(long, value_parser = lease, value_name = "DURATION")]
    pub lease: Duration,
    /// Print a JSON object with the handle, the name, the token and the lease.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Extend {
    /// The handle that `acquire` printed.
    #[arg(value_parser = handle)]
    pub handle: HoldHandle,
    /// The new lease, counted from now.
    #[arg(value_parser = lease)]
    pub lease: Duration,
}

#[derive(Debug, clap::Args)]
pub struct Release {
    /// The handle that `acquire` printed.
    #[arg(value_parser = handle)]
    pub handle: HoldHandle,
}

#[derive(Debug, clap::Args)]
pub struct Status {
    /// The names of the locks.
    #[arg(required = true)]
    pub name: Vec<String>,
    /// Exit with 1 if a lock is held, or has no free slot; else with 0.
    #[arg(long)]
    pub exit_code: bool,
    /// Print one JSON object per lock, each on its own line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct List {
    /// A pattern as in Redis' KEYS: * ? [abc] [^a] [a-z], and \ before a character to take it literally.
    #[arg(default_value = "*")]
    pub glob: String,
    /// Print only the names, one per line. This is the fastest way.
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
    /// Print one JSON object per lock, each on its own line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Watch {
    /// A name, or a pattern as in `list`.
    #[arg(default_value = "*", value_name = "NAME|GLOB")]
    pub glob: String,
    /// How long to show each table.
    #[arg(long, short = 'i', value_parser = interval, default_value = "1s", value_name = "DURATION")]
    pub interval: Duration,
    /// Exit after N tables.
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one JSON object per table, each on its own line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ForceUnlock {
    /// The name of the lock.
    pub name: String,
    /// End only the hold with this token, whether of the lock, the semaphore or the read-write lock of that name. By
    /// default, end the hold of the lock that the command shows.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<u64>,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct SetPermits {
    /// The name of the semaphore.
    pub name: String,
    /// The number of slots. With 0 no program gets one.
    #[arg(required_unless_present = "unset")]
    pub permits: Option<u32>,
    /// Let the number that each program gives count again.
    #[arg(long, conflicts_with = "permits")]
    pub unset: bool,
    /// Print the status as a JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Acl {
    /// The name of the user.
    #[arg(long, short)]
    pub user: String,
    /// Let the user also run `list`, and `watch` with a pattern. It can then see the names of all keys.
    #[arg(long)]
    pub list: bool,
    /// The server is a cluster.
    #[arg(long)]
    pub cluster: bool,
    /// The locks are in a database other than 0.
    #[arg(long)]
    pub another_database: bool,
    /// Print a JSON object with the rights as a list.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Bench {
    /// How many times to measure each operation.
    #[arg(long, short = 'r', default_value_t = 1000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell.
    pub shell: Shell,
}

/// `30s`, `1m 30s`, `250ms`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s or 1m30s"))
}

/// A lease has a lower bound, because the times of a request are fractions of it.
fn lease(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(10);
    let lease = duration(text)?;
    if lease < least { Err("a lease is at least 10ms".to_owned()) } else { Ok(lease) }
}

/// Trims the text: a shell or a form may add a space or the end of a line.
fn handle(text: &str) -> Result<HoldHandle, ParseHandleError> {
    text.trim().parse()
}

/// A shorter interval would only keep the server busy.
fn interval(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(10);
    let interval = duration(text)?;
    if interval < least { Err("at least 10ms".to_owned()) } else { Ok(interval) }
}

/// Formats an error as one line with advice.
pub fn in_one_line(error: &clap::Error) -> String {
    let text = without_handles(error);
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The first paragraph is the error; tips follow, then the usage.
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let tips = text.lines().map(str::trim).filter_map(|line| line.strip_prefix("tip: "));
    let what: Vec<_> = paragraph.lines().map(str::trim).collect();
    let line: Vec<_> = std::iter::once(what.join(" ")).chain(tips.map(str::to_owned)).collect();
    format!("{}; see '{} --help'", line.join("; "), called())
}

/// The error's text without handles: messages end up in logs, and a handle that this version cannot parse can often be
/// used all the same.
fn without_handles(error: &clap::Error) -> String {
    let cause = std::error::Error::source(error);
    if let (ErrorKind::ValueValidation, Some(ContextValue::String(argument)), Some(cause)) =
        (error.kind(), error.get(ContextKind::InvalidArg), cause)
        && argument.contains("<HANDLE>")
    {
        return format!("{argument}: {cause}");
    }
    // The handle may be in the place of another argument.
    let is_of_a_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let text = error.render().to_string();
    let shown = |piece: &str| {
        let word = piece.trim_end_matches(|c| !is_of_a_word(c));
        let begin = word.split_once('_').map(|(version, _)| version).filter(|version| is_version(version));
        begin.map_or_else(|| piece.to_owned(), |begin| piece.replace(word, &format!("{begin}_…")))
    };
    text.split_inclusive(|c| !is_of_a_word(c)).map(shown).collect()
}

/// Handles begin with `fairlock1` today.
fn is_version(word: &str) -> bool {
    let number = word.strip_prefix("fairlock").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// `fairlock lock`, if the first argument is `lock`.
fn called() -> String {
    let first = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
    let is_command = <Args as clap::CommandFactory>::command().get_subcommands().any(|known| known.get_name() == first);
    if is_command { format!("fairlock {first}") } else { "fairlock".to_owned() }
}
