//! The embedded store against a real server: the same random calls must give the same replies and leave
//! the same keys.
//!
//! `FAIRLOCK_SEED` repeats a run, `FAIRLOCK_CALLS` makes it longer, `REDIS_SERVER` names another server
//! binary.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::bench::{Bench, Refused};
use crate::support::{Server, limit_to};

/// A little below the average: a case has 300 steps on average, and nine in ten are calls.
const CALLS_IN_A_CASE: u64 = 250;
const STEPS_IN_A_CASE: std::ops::RangeInclusive<usize> = 1..=600;

/// One step on both stores, written as in bench.rs. `@` is replaced by the current token of the lock.
#[derive(Debug, Clone)]
enum Step {
    Call(String),
    Prepare(String),
}

/// All values come from small sets, so that the calls affect each other.
fn owner() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["c:1", "c:2", "d:1", "d:2", "e:1", "x:1"][..])
}

fn ticket() -> impl Strategy<Value = String> {
    (owner(), 1..9u32).prop_map(|(owner, seq)| format!("{owner}:{seq}"))
}

/// Far apart, so that two of them stay different on a slow machine: `alike` allows for 4 s.
fn millis() -> impl Strategy<Value = u32> {
    prop::sample::select(&[10_000u32, 20_000, 40_000, 90_000][..])
}

fn moment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["0", "0", "+9000", "+60000", "+-9000"][..])
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["@", "@", "@", "7"][..])
}

fn acquire() -> impl Strategy<Value = String> {
    let caller = (owner(), 1..9u32, 0..4u32, token(), 0..2u32);
    let options =
        (millis(), millis(), millis(), prop::sample::select(&["+9000", "+9000", "+9000", "+-9000"][..]), 1..6u32);
    (caller, options).prop_map(|((owner, seq, holds, token, wait), (lease, waiter_ttl, grant_ttl, not_after, max_waiters))| {
        format!(
            "acquire owner={owner} seq={seq} holds={} token={token} wait={wait} lease={lease} waiter_ttl={waiter_ttl} \
             grant_ttl={grant_ttl} not_after={not_after} max_waiters={max_waiters}",
            holds.saturating_sub(1)
        )
    })
}

fn call() -> impl Strategy<Value = String> {
    let poll =
        (prop::collection::vec(ticket(), 0..4), millis(), millis()).prop_map(|(tickets, waiter_ttl, grant_ttl)| {
            let tickets = if tickets.is_empty() { String::new() } else { format!(" tickets={}", tickets.join(",")) };
            format!("poll waiter_ttl={waiter_ttl} grant_ttl={grant_ttl}{tickets}")
        });
    let leave = (owner(), 1..9u32, moment(), millis()).prop_map(|(owner, seq, copies_until, grant_ttl)| {
        format!("leave owner={owner} seq={seq} copies_until={copies_until} grant_ttl={grant_ttl}")
    });
    let renew = (owner(), token(), millis(), 0..9u32)
        .prop_map(|(owner, token, lease, only)| format!("renew owner={owner} token={token} lease={lease} only={only}"));
    let release = (owner(), 1..9u32, 0..3u32, token(), moment(), ticket()).prop_map(
        |(owner, seq, holds, token, copies_until, ticket)| {
            format!("release owner={owner} seq={seq} holds={holds} token={token} copies_until={copies_until} entry={ticket}/L")
        },
    );
    let force = moment().prop_map(|not_after| format!("force_unlock not_after={}", not_after.replace("0", "9000")));
    let inspect = (0..5u32).prop_map(|most| format!("inspect most={most}"));
    prop_oneof![9 => acquire(), 4 => poll, 4 => leave, 3 => renew, 6 => release, 1 => force, 1 => inspect]
}

/// Changes that no script makes: keys that expire, foreign values, lost data.
fn interference() -> impl Strategy<Value = String> {
    let kind = || prop::sample::select(&["lock", "queue", "deadlines", "tokens"][..]);
    prop_oneof![
        4 => Just("DEL lock".to_owned()),
        1 => kind().prop_map(|kind| format!("DEL {kind}")),
        1 => kind().prop_map(|kind| format!("foreign {kind}")),
        3 => ticket().prop_map(|ticket| format!("dead {ticket}")),
        2 => ticket().prop_map(|ticket| format!("waits {ticket}")),
        1 => ticket().prop_map(|ticket| format!("LPUSH queue {ticket}/L")),
        1 => ticket().prop_map(|ticket| format!("ZREM deadlines {ticket}")),
        1 => Just("token 9007199254740000".to_owned()),
        1 => Just("SET tokens nonsense".to_owned()),
        // Not a second owner: which one a script finds depends on the order of the hash's fields, which is not defined.
        1 => (1..9u32).prop_map(|seq| format!("HSET lock !attempt {seq}")),
        2 => Just("FLUSHALL".to_owned()),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![9 => call().prop_map(Step::Call), 1 => interference().prop_map(Step::Prepare)];
    prop::collection::vec(step, STEPS_IN_A_CASE)
}

/// A store, and the tokens it has given. A token is a time, so the two stores give different ones.
struct Side {
    bench: Bench,
    tokens: Vec<String>,
}

impl Side {
    fn new(bench: Bench) -> Self {
        Self { bench, tokens: Vec::new() }
    }

    /// Replaces `@` by the token that the lock has now.
    async fn fill_in(&mut self, text: &str) -> String {
        if !text.contains('@') {
            return text.to_owned();
        }
        let held = self.bench.lock_token().await.unwrap_or_else(|| "7".into());
        text.replace('@', &held)
    }

    async fn call(&mut self, call: &str) -> Result<Vec<String>, Refused> {
        let call = self.fill_in(call).await;
        let words = self.bench.raw_call(&call).await?;
        Ok(words.into_iter().map(|word| self.name(word)).collect())
    }

    async fn dump(&mut self) -> Vec<Vec<String>> {
        let dump = self.bench.dump().await;
        let line = |(key, contents): (String, Vec<String>)| std::iter::once(key).chain(contents);
        let mut lines: Vec<Vec<_>> =
            dump.into_iter().map(|entry| line(entry).map(|word| self.name(word)).collect()).collect();
        lines.push(self.bench.ttls().await);
        lines
    }

    /// Replaces a token by its number: T0 is the first that was seen. So the tokens of both stores compare equal.
    fn name(&mut self, word: String) -> String {
        let (field, number) = word.rsplit_once('=').map_or(("", word.as_str()), |(field, number)| (field, number));
        if number.len() < 16 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return word;
        }
        let index = self.tokens.iter().position(|seen| seen == number).unwrap_or_else(|| {
            self.tokens.push(number.to_owned());
            self.tokens.len() - 1
        });
        format!("{field}=T{index}")
    }
}

/// Equal, except for the time between the two calls.
fn alike(one: &str, other: &str) -> bool {
    match (one.parse::<i64>(), other.parse::<i64>()) {
        (Ok(one), Ok(other)) if one > 1000 => (one - other).abs() < 4000,
        _ => one == other,
    }
}

fn all_alike(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
}

/// The code and the text of an error. What stands before the text, the place in the script, is worded differently by
/// the two stores.
fn code_and_text(refused: &Refused) -> (&str, &str) {
    let text = refused.text.split_once(".lua:").or_else(|| refused.text.split_once("user_script:"));
    (&refused.code, text.map_or(refused.text.as_str(), |(_, line_and_text)| line_and_text))
}

/// Runs the steps on both stores, and compares each reply and, now and then, all keys. Returns the number of calls.
async fn compare(real: &mut Side, embedded: &mut Side, steps: &[Step]) -> Result<usize, TestCaseError> {
    let mut calls = 0;
    for side in [&mut *real, &mut *embedded] {
        side.bench.prepare("FLUSHALL").await;
    }
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Prepare(what) => {
                let outcomes = (real.bench.try_prepare(what).await, embedded.bench.try_prepare(what).await);
                prop_assert_eq!(outcomes.0, outcomes.1, "step {}: {}", number, what);
            }
            Step::Call(call) => {
                calls += 1;
                let outcomes = (real.call(call).await, embedded.call(call).await);
                let same = match &outcomes {
                    (Ok(one), Ok(other)) => all_alike(one, other),
                    (Err(one), Err(other)) => code_and_text(one) == code_and_text(other),
                    _ => false,
                };
                prop_assert!(same, "step {number}: {call}\n{:?}\n{:?}", outcomes.0, outcomes.1);
            }
        }
        if number % 40 == 0 || number + 1 == steps.len() {
            let (one, other) = (real.dump().await, embedded.dump().await);
            let same = one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| all_alike(one, other));
            prop_assert!(same, "the keys after step {number}, {step:?}\n{one:#?}\n{other:#?}");
        }
    }
    Ok(calls)
}

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn two_hundred_thousand_calls_agree_on_both_stores() {
    let calls = from_env("FAIRLOCK_CALLS", 200_000);
    let seed = from_env("FAIRLOCK_SEED", 0x5eed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sides = runtime.block_on(limit_to(std::time::Duration::from_secs(30), async {
        (Side::new(Bench::on(Server::start().await).await), Side::new(Bench::embedded()))
    }));
    let sides = RefCell::new(sides);
    let cases = u32::try_from(calls / CALLS_IN_A_CASE).unwrap();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3000, ..Config::default() };
    let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let made = RefCell::new(0);
    let outcome = runner.run(&steps(), |steps| {
        let (real, embedded) = &mut *sides.borrow_mut();
        *made.borrow_mut() += runtime.block_on(compare(real, embedded, &steps))?;
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("seed {seed}: {error}");
    }
    assert!(*made.borrow() as u64 >= calls, "only {} calls", made.borrow());
}
