//! The embedded store against a real server: the same random calls must give the same replies and leave the same keys.
//!
//! `FAIRLOCK_SEED` repeats a run, `FAIRLOCK_CALLS` makes it longer, `REDIS_SERVER` names another server binary.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::bench::{Bench, Refused};
use crate::support::{Server, from_env, limit_to};

/// Slightly below the average: a case has 300 steps on average, and nine in ten are calls.
const CALLS_IN_A_CASE: u64 = 250;
const STEPS_IN_A_CASE: std::ops::RangeInclusive<usize> = 1..=600;

/// One step on both stores, in the notation of bench.rs. `@` is the current token of the lock.
#[derive(Debug, Clone)]
enum Step {
    Call(String),
    Prepare(String),
}

/// All values come from small sets, so that the calls affect each other.
fn owner() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["c:1", "c:2", "d:1", "d:2", "e:1", "x:1", "y:1"][..])
}

fn client() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["c", "d", "e", "x", "y"][..])
}

fn ticket() -> impl Strategy<Value = String> {
    (owner(), 1..9u32).prop_map(|(owner, seq)| format!("{owner}:{seq}"))
}

/// The terms of a call. Most calls have the same, so that a leave finds its place.
fn terms() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["3000/L", "3000/L", "3000/L", "20000/a~b/c"][..])
}

/// Far apart, so that two of them stay different on a slow machine: `alike` allows for 4 s. None is just above half of
/// another one: at that silence a script assumes a standstill, and the stores might disagree by a millisecond.
fn millis() -> impl Strategy<Value = u32> {
    prop::sample::select(&[11_000u32, 23_000, 47_000, 95_000][..])
}

fn moment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["0", "0", "+9000", "+60000", "+-9000"][..])
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["@", "@", "@", "7"][..])
}

fn acquire() -> impl Strategy<Value = String> {
    let mode = prop_oneof![1 => Just("0".to_owned()), 4 => Just("1".to_owned()), 2 => (1..4u32, token()).prop_map(|(holds, token)| format!("{holds}:{token}"))];
    let caller = (owner(), 1..9u32, mode, terms());
    let not_after = prop::sample::select(&["+9000", "+9000", "+9000", "+-9000"][..]);
    let options = (millis(), millis(), not_after, prop::sample::select(&[1u32, 2, 4, 60][..]));
    (caller, options).prop_map(|((owner, seq, mode, terms), (lease, waiter_ttl, not_after, max_waiters))| {
        format!(
            "acquire owner={owner} seq={seq} mode={mode} terms={terms} lease={lease} waiter_ttl={waiter_ttl} \
             not_after={not_after} max_waiters={max_waiters}"
        )
    })
}

fn call() -> impl Strategy<Value = String> {
    let strict = (plain_call(), prop::bool::weighted(0.1)).prop_map(|(call, strict)| {
        let takes_it = strict && !call.starts_with("renew") && !call.starts_with("raise") && !call.starts_with("give");
        if takes_it { format!("{call} boot=1") } else { call }
    });
    let boot = (prop::sample::select(&["L", "M"][..]), millis())
        .prop_map(|(life, freeze)| format!("boot life={life} freeze={freeze}"));
    prop_oneof![29 => strict, 1 => boot]
}

fn plain_call() -> impl Strategy<Value = String> {
    let heard = prop_oneof![1 => Just(0u32), 4 => millis()];
    let poll = (client(), heard, prop::collection::vec(ticket(), 0..4)).prop_map(|(client, waiter_ttl, tickets)| {
        let tickets = if tickets.is_empty() { String::new() } else { format!(" tickets={}", tickets.join(",")) };
        format!("poll caller={client} waiter_ttl={waiter_ttl}{tickets}")
    });
    let leave = (ticket(), moment(), terms()).prop_map(|(ticket, copies_until, terms)| {
        let (owner, seq) = ticket.rsplit_once(':').unwrap();
        format!("leave owner={owner} seq={seq} copies_until={copies_until} place={ticket}/{terms}")
    });
    let renew = (owner(), token(), millis(), 0..9u32, prop::bool::weighted(0.3)).prop_map(
        |(owner, token, lease, only, remember)| {
            let remember = if remember { " remember=60000" } else { "" };
            format!("renew owner={owner} token={token} lease={lease} only={only}{remember}")
        },
    );
    let raise = (owner(), token(), token())
        .prop_map(|(owner, token, floor)| format!("raise owner={owner} token={token} floor={floor}"));
    let give =
        (owner(), 1..9u32, token(), owner(), 1..9u32, millis()).prop_map(|(from, seq, token, to, attempt, lease)| {
            format!("give from={from} seq={seq} token={token} to={to} attempt={attempt} lease={lease} not_after=+9000")
        });
    let holds = (0..3u32, token()).prop_map(|(holds, token)| format!(" special={holds}:{token}"));
    let late =
        (moment(), ticket(), terms()).prop_map(|(until, ticket, terms)| format!(" special={until}~{ticket}/{terms}"));
    let special = prop_oneof![4 => Just(String::new()), 3 => holds, 2 => late];
    let release = (owner(), 1..9u32, special)
        .prop_map(|(owner, seq, special)| format!("release owner={owner} seq={seq}{special}"));
    let not_after = prop::sample::select(&["+9000", "+9000", "+-9000"][..]);
    let force = (client(), not_after)
        .prop_map(|(client, not_after)| format!("force_unlock caller={client} not_after={not_after}"));
    let inspect = (0..5u32).prop_map(|most| format!("inspect most={most}"));
    prop_oneof![9 => acquire(), 4 => poll, 4 => leave, 3 => renew, 2 => raise, 2 => give, 6 => release, 1 => force, 1 => inspect]
}

/// Changes that no script makes: keys that expire or are deleted, dead clients, foreign values.
fn interference() -> impl Strategy<Value = String> {
    let kind = || prop::sample::select(&["lock", "queue", "deadlines", "tokens"][..]);
    prop_oneof![
        4 => Just("DEL lock".to_owned()),
        3 => kind().prop_map(|kind| format!("DEL {kind}")),
        1 => kind().prop_map(|kind| format!("foreign {kind}")),
        4 => client().prop_map(|client| format!("dead {client}")),
        1 => client().prop_map(|client| format!("unreachable {client}")),
        1 => client().prop_map(|client| format!("ZREM deadlines {client}")),
        2 => ticket().prop_map(|ticket| format!("waits {ticket}")),
        // Enough places of one client for a `!skip` count.
        1 => (client(), 30..45u32).prop_map(|(client, count)| {
            let places: String = (1..=count).map(|n| format!(" {client}:1:{n}/3000/L")).collect();
            format!("RPUSH queue{places}")
        }),
        1 => (client(), 30..45u32).prop_map(|(client, count)| {
            let tickets: String = (1..=count).map(|n| format!(" inf {client}:1:{n}")).collect();
            format!("ZADD deadlines{tickets}")
        }),
        1 => ticket().prop_map(|ticket| format!("ZREM deadlines {ticket}")),
        1 => Just("LPOP queue".to_owned()),
        1 => Just("RPUSH queue !9/x".to_owned()),
        1 => Just("newer lock".to_owned()),
        2 => prop::sample::select(&["frozen -1", "frozen 40000", "SET boot nonsense"][..]).prop_map(str::to_owned),
        1 => Just("token 9007199254740000".to_owned()),
        1 => Just("SET tokens nonsense".to_owned()),
        // Never a second owner: which one a script finds depends on the order of the fields, which is undefined.
        5 => Just("FLUSHALL".to_owned()),
    ]
}

fn steps() -> BoxedStrategy<Vec<Step>> {
    let step = prop_oneof![9 => call().prop_map(Step::Call), 1 => interference().prop_map(Step::Prepare)];
    prop::collection::vec(step, STEPS_IN_A_CASE).boxed()
}

fn shared_call() -> impl Strategy<Value = String> {
    let terms =
        || prop::sample::select(&["1,3,3000/L", "1,3,3000/L", "2,3,3000/L", "3,3,20000/a~b/c", "4,5,3000/L"][..]);
    let mode = prop_oneof![2 => Just(" mode=0".to_owned()), 5 => Just(String::new()), 2 => (1..4u32, token()).prop_map(|(holds, token)| format!(" mode={holds}:{token}"))];
    let limits = (millis(), millis(), prop::sample::select(&[2u32, 4, 60, 60][..]));
    let acquire = (owner(), 1..9u32, mode, terms(), limits).prop_map(|(owner, seq, mode, terms, (lease, waiter_ttl, most))| {
        format!("shared/acquire owner={owner} seq={seq}{mode} terms={terms} lease={lease} waiter_ttl={waiter_ttl} max_waiters={most} not_after=+9000")
    });
    let poll = (client(), millis(), 0..2u32, prop::collection::vec(ticket(), 1..4)).prop_map(
        |(client, waiter_ttl, waits, tickets)| {
            format!("shared/poll caller={client} waits={waits} waiter_ttl={waiter_ttl} tickets={}", tickets.join(","))
        },
    );
    let leave = (ticket(), moment(), terms()).prop_map(|(ticket, until, terms)| {
        let (owner, seq) = ticket.rsplit_once(':').unwrap();
        format!("shared/leave owner={owner} seq={seq} copies_until={until} place={ticket}/{terms}")
    });
    let holds =
        (0..3u32, token(), 1..3u32).prop_map(|(holds, token, weight)| format!(" special={holds}:{token}:{weight}"));
    let late =
        (moment(), ticket(), terms()).prop_map(|(until, ticket, terms)| format!(" special={until}~{ticket}/{terms}"));
    let special = prop_oneof![5 => Just(String::new()), 3 => holds, 1 => late];
    let release = (owner(), 1..9u32, special)
        .prop_map(|(owner, seq, special)| format!("shared/release owner={owner} seq={seq}{special}"));
    let renew = (owner(), token(), millis(), 0..9u32, prop::bool::weighted(0.3)).prop_map(
        |(owner, token, lease, only, remember)| {
            let remember = if remember { " remember=60000" } else { "" };
            format!("shared/renew owner={owner} token={token} lease={lease} only={only}{remember}")
        },
    );
    let give = (owner(), 1..9u32, token(), owner(), 1..9u32, millis(), terms()).prop_map(
        |(from, seq, token, to, attempt, lease, terms)| {
            format!("shared/give from={from} seq={seq} token={token} to={to} attempt={attempt} lease={lease} terms={terms} not_after=+9000")
        },
    );
    let force = (client(), token())
        .prop_map(|(client, token)| format!("shared/force_unlock caller={client} expected={token} not_after=+9000"));
    let set = prop::sample::select(&["", "", "0", "2", "9"][..])
        .prop_map(|permits| format!("shared/set_limit permits={permits} not_after=+9000"));
    let inspect = (0..5u32).prop_map(|most| format!("shared/inspect most={most}"));
    let shared = prop_oneof![9 => acquire, 4 => poll, 4 => leave, 6 => release, 3 => renew, 2 => give, 1 => force, 1 => set, 1 => inspect];
    let shared = (shared, prop::bool::weighted(0.05)).prop_map(|(call, strict)| {
        let takes_it = !["shared/renew", "shared/give"].iter().any(|name| call.starts_with(name));
        let strict = if strict && takes_it { " boot=1" } else { "" };
        format!("{call}{strict}")
    });
    prop_oneof![160 => shared, 2 => Just("boot life=L freeze=11000".to_owned())]
}

/// The steps of [`interference`], and leases that have ended.
fn shared_interference() -> impl Strategy<Value = String> {
    let ended = owner().prop_map(|owner| format!("ended {owner}"));
    let queues = ticket().prop_map(|ticket| format!("queues {ticket}"));
    prop_oneof![3 => interference(), 2 => ended, 2 => queues, 1 => Just("SET limit x".to_owned()), 2 => Just("DEL limit".to_owned()),
        // Otherwise the stores would refuse most calls because of foreign values.
        5 => Just("FLUSHALL".to_owned())]
}

fn shared_steps() -> BoxedStrategy<Vec<Step>> {
    let step =
        prop_oneof![12 => shared_call().prop_map(Step::Call), 1 => shared_interference().prop_map(Step::Prepare)];
    prop::collection::vec(step, STEPS_IN_A_CASE).boxed()
}

/// A store, and the tokens that it gave. A token is a time, so the two stores give different ones.
struct Side {
    bench: Bench,
    tokens: Vec<String>,
}

impl Side {
    fn new(bench: Bench) -> Self {
        Self { bench, tokens: Vec::new() }
    }

    /// Replaces `@` by the current token of the lock.
    async fn fill_in(&mut self, text: &str) -> String {
        if !text.contains('@') {
            return text.to_owned();
        }
        let held = self.bench.last_token().await.unwrap_or_else(|| "7".into());
        text.replace('@', &held)
    }

    async fn call(&mut self, call: &str) -> Result<Vec<String>, Refused> {
        let call = self.fill_in(call).await;
        let mut words = self.bench.raw_call(&call).await?;
        if words[0] == "inspected" {
            words[5] = "MICROS".into();
        }
        // A reply that ends with the holder's grant: the word before the terms is its time.
        if ["queued", "busy", "polled"].contains(&&*words[0])
            && let Some(terms) = words.iter().position(|word| word.contains('/'))
        {
            words[terms - 1] = "MICROS".into();
        }
        Ok(words.into_iter().flat_map(|word| self.names(&word)).collect())
    }

    async fn dump(&mut self) -> Vec<Vec<String>> {
        let dump = self.bench.dump().await;
        let line = |(key, contents): (String, Vec<String>)| std::iter::once(key).chain(contents);
        let mut lines: Vec<Vec<_>> =
            dump.into_iter().map(|entry| line(entry).flat_map(|word| self.names(&word)).collect()).collect();
        lines.push(self.bench.ttls().await);
        lines
    }

    /// The words of a field or a label. Replaces each token by its index in the order of appearance, so the tokens of
    /// both stores compare equal.
    fn names(&mut self, text: &str) -> Vec<String> {
        // A grant is `!grant=ATTEMPT TOKEN SECONDS MICROS TERMS`, and the times of the two stores differ.
        let is_grant = text.starts_with("!grant=");
        let named = text.split(['=', ' ']).enumerate().map(|(index, word)| match index {
            4 if is_grant => "MICROS".to_owned(),
            _ => self.name(word.to_owned()),
        });
        named.collect()
    }

    fn name(&mut self, word: String) -> String {
        if word.len() < 16 || !word.bytes().all(|byte| byte.is_ascii_digit()) {
            return word;
        }
        // A floor is a time too: one less than a token that no one got.
        let index = self.tokens.iter().position(|seen| *seen == word).unwrap_or_else(|| {
            self.tokens.push(word);
            self.tokens.len() - 1
        });
        format!("T{index}")
    }
}

/// Equal up to the time between the two calls. On a busy machine one store may reply 1348 ms and the other 852.
fn alike(one: &str, other: &str) -> bool {
    match (one.parse::<i64>(), other.parse::<i64>()) {
        (Ok(one), Ok(other)) if one.abs().max(other.abs()) > 1000 && one.signum() == other.signum() => {
            (one - other).abs() < 4000
        }
        _ => one == other,
    }
}

fn all_alike(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
}

/// The code and the text of an error, without the place in the script: the two stores word that differently.
fn code_and_text(refused: &Refused) -> (&str, &str) {
    let text = refused.text.split_once(".lua:").or_else(|| refused.text.split_once("user_script:"));
    (&refused.code, text.map_or(refused.text.as_str(), |(_, line_and_text)| line_and_text))
}

/// Otherwise two calls could fall into one millisecond on one store and into two on the other. After a noted silence,
/// a script counts a client as alive only if it polled in a later millisecond. Both stores use the machine's clock.
fn end_of_the_millisecond() {
    let micros = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_micros());
    std::thread::sleep(Duration::from_micros(1000 - micros % 1000));
}

/// Runs the steps on both stores. Compares each reply and, now and then, all keys. Returns the number of calls, and
/// how many of them the stores refused.
async fn compare(real: &mut Side, embedded: &mut Side, steps: &[Step]) -> Result<(u64, u64), TestCaseError> {
    let (mut calls, mut refused) = (0, 0);
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
                let outcomes = (real.call(call).await, embedded.call(call).await);
                end_of_the_millisecond();
                calls += 1;
                refused += u64::from(outcomes.0.is_err());
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
    Ok((calls, refused))
}

#[test]
fn random_calls_agree_on_both_stores() {
    agree(steps());
}

#[test]
fn random_calls_for_shared_names_agree_on_both_stores() {
    agree(shared_steps());
}

fn agree(steps: BoxedStrategy<Vec<Step>>) {
    let calls = from_env("FAIRLOCK_CALLS", 6000);
    let seed = from_env("FAIRLOCK_SEED", 0x5eed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sides = runtime.block_on(limit_to(Duration::from_secs(30), async {
        (Side::new(Bench::on(Server::start().await).await), Side::new(Bench::embedded()))
    }));
    let sides = RefCell::new(sides);
    let cases = u32::try_from(calls / CALLS_IN_A_CASE).unwrap();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3000, ..Config::default() };
    let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let made = RefCell::new((0, 0));
    let outcome = runner.run(&steps, |steps| {
        let (real, embedded) = &mut *sides.borrow_mut();
        let (calls, refused) = runtime.block_on(compare(real, embedded, &steps))?;
        let mut made = made.borrow_mut();
        *made = (made.0 + calls, made.1 + refused);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("seed {seed}: {error}");
    }
    let (made, refused) = *made.borrow();
    assert!(made >= calls / 2, "only {made} calls");
    assert!(refused < made / 4, "{refused} of {made} calls were refused");
}
