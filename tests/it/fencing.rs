//! Fencing as in docs/guide.md and docs/recipes.md: two holders at once, one of which was paused, in every order of
//! their steps. The tests run the text of those pages. `FAIRLOCK_SQL=psql` uses PostgreSQL, with the settings in
//! psql's environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::{Timing, on_a_server};

const GUIDE: &str = include_str!("../../docs/guide.md");
const RECIPES: &str = include_str!("../../docs/recipes.md");
const ORDERS: u32 = 20;

/// A number that two holders increment.
trait Number {
    fn reset(&mut self);
    fn claim(&mut self, token: u64) -> bool;
    fn read(&mut self) -> u64;
    fn write(&mut self, token: u64, value: u64) -> bool;
}

/// A holder: `claim`, `read` and `write` in turn, up to the first refusal.
#[derive(Default)]
struct Holder {
    steps: u8,
    value: u64,
    is_refused: bool,
}

impl Holder {
    fn step(&mut self, number: &mut impl Number, token: u64) {
        if !self.is_refused {
            match self.steps {
                0 => self.is_refused = !number.claim(token),
                1 => self.value = number.read() + 1,
                _ => self.is_refused = !number.write(token, self.value),
            }
        }
        self.steps += 1;
    }
}

/// Runs both holders in every order. Returns the orders that lost an accepted increment.
fn lost_updates(number: &mut impl Number) -> Vec<String> {
    let mut lost = Vec::new();
    let orders: Vec<u32> = (0_u32..64).filter(|order| order.count_ones() == 3).collect();
    assert_eq!(orders.len(), ORDERS as usize);
    for order in orders {
        let mut holders = [Holder::default(), Holder::default()];
        number.reset();
        for step in 0..6 {
            let who = usize::from(order >> step & 1 == 1);
            holders[who].step(number, 1_795_346_167_824_911 + who as u64);
        }
        let accepted = holders.iter().filter(|holder| !holder.is_refused).count() as u64;
        assert!(!holders[1].is_refused, "the later holder is never refused: {order:06b}");
        if number.read() != accepted {
            lost.push(format!("{order:06b}: {accepted} accepted, the number is {}", number.read()));
        }
    }
    lost
}

/// The code blocks of a page in this language.
fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A database, driven through its own shell.
struct Sql {
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    is_psql: bool,
    /// CREATE, claim, read and write of the guide.
    statements: [&'static str; 4],
}

impl Sql {
    fn start() -> Self {
        let program = std::env::var("FAIRLOCK_SQL").unwrap_or_else(|_| "sqlite3".into());
        let is_psql = program == "psql";
        let options: &[&str] = if is_psql { &["-XqAt"] } else { &["-batch", "-noheader", ":memory:"] };
        let mut shell = Command::new(&program)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup sqlite3 installs it"));
        let (input, output) = (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()));
        let page = blocks(GUIDE, "sql");
        let [page] = page[..] else { panic!("the guide has one block of SQL") };
        let statements: Vec<_> = page.split_inclusive(';').filter(|text| text.contains(';')).collect();
        Self { shell, input, output, is_psql, statements: statements.try_into().unwrap() }
    }

    /// Returns the lines that the shell prints.
    fn run(&mut self, statement: &str) -> Vec<String> {
        const END: &str = "--the-end--";
        let end = if self.is_psql { format!("\\echo {END}") } else { format!(".print {END}") };
        writeln!(self.input, "{statement}\n{end}").unwrap();
        self.input.flush().unwrap();
        let lines = self.output.by_ref().lines().map(Result::unwrap);
        lines.take_while(|line| line != END).collect()
    }

    fn statement(&self, which: usize, token: u64, value: u64) -> String {
        let statement = self.statements[which].replace("$1", "'n'");
        statement.replace("$2", &token.to_string()).replace("$3", &value.to_string())
    }

    /// Whether the statement changed a row.
    fn changes(&mut self, statement: &str) -> bool {
        let count = if self.is_psql { "\\echo :ROW_COUNT" } else { "SELECT changes();" };
        let lines = self.run(&format!("{statement}\n{count}"));
        assert!(lines == ["0"] || lines == ["1"], "{statement}: {lines:?}");
        lines == ["1"]
    }
}

impl Drop for Sql {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

impl Number for Sql {
    fn reset(&mut self) {
        let create = self.statements[0].replace("CREATE TABLE", "CREATE TEMPORARY TABLE");
        self.run(&format!("DROP TABLE IF EXISTS counters;\n{create}"));
    }

    fn claim(&mut self, token: u64) -> bool {
        let claim = self.statement(1, token, 0);
        self.changes(&claim)
    }

    fn read(&mut self) -> u64 {
        let read = self.statement(2, 0, 0);
        self.run(&read)[0].parse().unwrap()
    }

    fn write(&mut self, token: u64, value: u64) -> bool {
        let write = self.statement(3, token, value);
        self.changes(&write)
    }
}

#[test]
fn the_sql_of_the_guide_loses_no_update() {
    assert_eq!(lost_updates(&mut Sql::start()), Vec::<String>::new());
}

/// The guide's former statements: no claim, and a write that checks the token.
struct CheckedAtTheWrite(Sql);

impl Number for CheckedAtTheWrite {
    fn reset(&mut self) {
        self.0.reset();
        self.0.run("INSERT INTO counters VALUES ('n', 0, 0);");
    }

    fn claim(&mut self, _: u64) -> bool {
        true
    }

    fn read(&mut self) -> u64 {
        self.0.read()
    }

    fn write(&mut self, token: u64, value: u64) -> bool {
        self.0.changes(&format!(
            "UPDATE counters SET value = {value}, token = {token} WHERE name = 'n' AND token <= {token};"
        ))
    }
}

#[test]
fn a_token_that_is_checked_at_the_write_alone_loses_updates() {
    assert!(!lost_updates(&mut CheckedAtTheWrite(Sql::start())).is_empty());
}

/// A Redis hash, with the scripts of docs/recipes.md.
struct Hash {
    redis: redis::Connection,
    scripts: [redis::Script; 2],
}

impl Hash {
    fn run(&mut self, script: usize, token: u64, value: u64) -> bool {
        self.scripts[script].key("n").arg(token).arg(value).invoke(&mut self.redis).unwrap()
    }
}

impl Number for Hash {
    fn reset(&mut self) {
        redis::cmd("DEL").arg("n").exec(&mut self.redis).unwrap();
    }

    fn claim(&mut self, token: u64) -> bool {
        self.run(0, token, 0)
    }

    fn read(&mut self) -> u64 {
        redis::cmd("HGET").arg("n").arg("value").query::<Option<u64>>(&mut self.redis).unwrap().unwrap_or(0)
    }

    fn write(&mut self, token: u64, value: u64) -> bool {
        self.run(1, token, value)
    }
}

#[tokio::test]
async fn the_scripts_of_the_recipe_lose_no_update() {
    on_a_server(async |server| {
        let redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let scripts = blocks(RECIPES, "lua").into_iter().map(redis::Script::new).collect::<Vec<_>>();
        let Ok(scripts) = scripts.try_into() else { panic!("the page has two blocks of Lua") };
        let mut hash = Hash { redis, scripts };
        assert_eq!(lost_updates(&mut hash), Vec::<String>::new());
        hash.reset();
    })
    .await;
}

/// Such a token fits a BIGINT, a double and a JSON number.
#[tokio::test]
async fn a_token_is_below_two_to_the_53() {
    on_a_server(async |server| {
        const GREATEST: u64 = (1 << 53) - 1;
        let client = Timing::default().connect(&server.url()).await;
        let lock = client.lock("n");
        let mut redis = server.connection().await;
        redis::cmd("SET").arg("fairlock:{n:n}:token").arg(GREATEST - 1).exec_async(&mut redis).await.unwrap();
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.token(), GREATEST);
        guard.unlock().await.unwrap();
        let refused = lock.try_lock().await.unwrap_err().to_string();
        assert!(refused.contains("does not hold a token"), "{refused}");
    })
    .await;
}
