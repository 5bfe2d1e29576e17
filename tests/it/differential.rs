//! The embedded store against a real server: the same random calls give the same replies and leave
//! the same keys.
//!
//! `FAIRLOCK_SEED` replays a run, `FAIRLOCK_CALLS` makes it longer, `REDIS_SERVER` names another server
//! binary.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::bench::{Bench, Refused};
use crate::support::{Server, limit_to};

/// On average, and a little less than that: nine steps in ten are calls.
const CALLS_IN_A_CASE: u64 = 250;
const STEPS_IN_A_CASE: std::ops::RangeInclusive<usize> = 1..=600;

/// One thing done to both stores, in the words of bench.rs. `@` is the token of the lock as it is.
#[derive(Debug, Clone)]
enum Step {
    Call(String),
    Prepare(String),
}

/// From few values, so that calls meet each other.
fn owner() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["c:1", "c:2", "d:1", "d:2", "e:1", "x:1"][..])
}

fn ticket() -> impl Strategy<Value = String> {
    (owner(), 1..9u32).prop_map(|(owner, seq)| format!("{owner}:{seq}"))
}

/// Far enough from each other that a loaded machine mistakes none for another.
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
    let who = (owner(), 1..9u32, 0..4u32, token(), 0..2u32);
    let terms =
        (millis(), millis(), millis(), prop::sample::select(&["+9000", "+9000", "+9000", "+-9000"][..]), 1..6u32);
    (who, terms).prop_map(|((owner, seq, holds, token, wait), (lease, waiter_ttl, grant_ttl, not_after, max_waiters))| {
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

/// What time and strangers do to the keys.
fn mischief() -> impl Strategy<Value = String> {
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
        // A second owner would be a choice by the order of the hash's fields, which nobody promises.
        1 => (1..9u32).prop_map(|seq| format!("HSET lock !attempt {seq}")),
        2 => Just("FLUSHALL".to_owned()),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![9 => call().prop_map(Step::Call), 1 => mischief().prop_map(Step::Prepare)];
    prop::collection::vec(step, STEPS_IN_A_CASE)
}

/// A store, and the tokens it has given: they are times, so each store has its own.
struct Side {
    bench: Bench,
    tokens: Vec<String>,
}

impl Side {
    fn new(bench: Bench) -> Self {
        Self { bench, tokens: Vec::new() }
    }

    /// The token that the lock has now.
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

    /// Tokens by the order in which they turned up.
    fn name(&mut self, word: String) -> String {
        let (field, number) = word.rsplit_once('=').map_or(("", word.as_str()), |(field, number)| (field, number));
        if number.len() < 16 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return word;
        }
        let place = self.tokens.iter().position(|known| known == number).unwrap_or_else(|| {
            self.tokens.push(number.to_owned());
            self.tokens.len() - 1
        });
        format!("{field}=T{place}")
    }
}

/// Equal but for what passed between the two calls.
fn alike(one: &str, other: &str) -> bool {
    match (one.parse::<i64>(), other.parse::<i64>()) {
        (Ok(one), Ok(other)) if one > 1000 => (one - other).abs() < 4000,
        _ => one == other,
    }
}

fn all_alike(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
}

/// Where in a script something happened is told in other words.
fn essence(refused: &Refused) -> (&str, &str) {
    let text = refused.text.split_once(".lua:").or_else(|| refused.text.split_once("user_script:"));
    (&refused.code, text.map_or(refused.text.as_str(), |(_, place_and_text)| place_and_text))
}

async fn agree(real: &mut Side, embedded: &mut Side, steps: &[Step]) -> Result<usize, TestCaseError> {
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
                    (Err(one), Err(other)) => essence(one) == essence(other),
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
        *made.borrow_mut() += runtime.block_on(agree(real, embedded, &steps))?;
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("seed {seed}: {error}");
    }
    assert!(*made.borrow() as u64 >= calls, "only {} calls", made.borrow());
}
