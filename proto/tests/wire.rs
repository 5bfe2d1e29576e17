//! The texts of requests and replies, as `lua/` reads and writes them.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use fairlock_proto::command::{Arg, Command};
use fairlock_proto::held_by::HeldBy;
use fairlock_proto::keys::{Keys, Kind, Share, boot};
use fairlock_proto::reply::{Decode, Field, Fields, ScriptReply};
use fairlock_proto::requests::acquire::{Acquire, Acquired, Mode};
use fairlock_proto::requests::boot::{Boot, Booted};
use fairlock_proto::requests::force_unlock::{ForceUnlock, ForceUnlocked};
use fairlock_proto::requests::give::Gave;
use fairlock_proto::requests::inspect::Inspected;
use fairlock_proto::requests::leave::Left;
use fairlock_proto::requests::poll::{Polled, PolledHolder};
use fairlock_proto::requests::raise::{Raise, Raised};
use fairlock_proto::requests::release::{Release, Released};
use fairlock_proto::requests::renew::{Only, Renew, Renewed};
use fairlock_proto::requests::set_limit::{LimitSet, SetLimit};
use fairlock_proto::requests::{ClientArgs, ScriptRequest, settings};

const SECOND: Duration = Duration::from_secs(1);

fn client() -> ClientArgs {
    let settings = settings("p", 7 * SECOND, 100, 60 * SECOND);
    ClientArgs { id: "c".into(), settings, token_ttl: 60 * SECOND, boot_key: None }
}

fn strict() -> ClientArgs {
    ClientArgs { boot_key: Some(boot("p")), ..client() }
}

fn keys(kind: Kind) -> Arc<Keys> {
    Arc::new(Keys::of(kind, "p", "x"))
}

/// The script, its keys without their common beginning, and its arguments.
fn written(command: &Command<'_>) -> String {
    let keys: Vec<_> = command.keys().map(|key| key.split_once('}').map_or(key, |(_, end)| end)).collect();
    let text = |arg: &Arg<'_>| match arg {
        Arg::Text(text) => text.to_string(),
        Arg::Texts(texts) => texts.join(" "),
        Arg::Channel(text) => (*text).to_owned(),
        Arg::Int(number) => number.to_string(),
        Arg::Natural(number) => number.to_string(),
    };
    let args: Vec<_> = command.args().map(text).collect();
    format!("{} [{}] {}", command.script.name(), keys.join(" "), args.join("|"))
}

fn held_by(lease_left: Option<Duration>) -> Option<Box<HeldBy>> {
    let since = 60 * SECOND + Duration::from_micros(5);
    Some(HeldBy { label: "job 17".into(), token: 7, since, lease_left }.into())
}

fn sent(request: &impl ScriptRequest) -> String {
    written(&request.command(&client()))
}

fn read<T: Decode>(reply: &str) -> T {
    let (status, rest) = reply.split_once(' ').unwrap_or((reply, ""));
    let rest = ScriptReply::Text(rest.into());
    T::decode(status, &mut Fields::new(&rest)).unwrap_or_else(|wrong| panic!("{reply}: {wrong}"))
}

/// The same for a reply that may have empty texts.
fn read_list<T: Decode>(status: &str, fields: &[&str]) -> T {
    let reply = ScriptReply::List(fields.iter().map(|field| Field::Text(field.as_bytes().into())).collect());
    T::decode(status, &mut Fields::new(&reply)).unwrap_or_else(|wrong| panic!("{fields:?}: {wrong}"))
}

fn all_read<T: Decode + PartialEq + Debug>(cases: &[(&str, T)]) {
    for (reply, expected) in cases {
        assert_eq!(&read::<T>(reply), expected, "{reply}");
    }
    let stranger = ScriptReply::Text("1 1 1 1 1".into());
    assert!(T::decode("stranger", &mut Fields::new(&stranger)).is_err());
}

#[test]
fn each_reply_to_an_acquire_has_its_meaning() {
    all_read(&[
        ("held 7 2 3000", Acquired::Held { token: 7, holds: 2, lease_left: 3 * SECOND }),
        (
            "queued 7 3000 0 1",
            Acquired::Queued { floor: 7, lease_left: Some(3 * SECOND), more: false, known: true, holder: None },
        ),
        ("queued 7 -1 1 0", Acquired::Queued { floor: 7, lease_left: None, more: true, known: false, holder: None }),
        ("busy 1", Acquired::Busy { more: true, holder: None }),
        ("busy 0 3000 4 7 60 5 3000/job 17", Acquired::Busy { more: false, holder: held_by(Some(3 * SECOND)) }),
        ("busy 0 -1 4 7 60 5 3000/job 17", Acquired::Busy { more: false, holder: held_by(None) }),
        // A grant that someone has written by hand.
        ("busy 0 3000 4 7 60 5", Acquired::Busy { more: false, holder: None }),
        ("busy 0 3000 4 7 60 5 3000", Acquired::Busy { more: false, holder: None }),
        // The holder is for people to read: without a readable holder the answer still counts.
        ("busy 0 3000 4 7", Acquired::Busy { more: false, holder: None }),
        (
            "queued 7 3000 0 1 4 7 60 5 3000/job 17",
            Acquired::Queued {
                floor: 7,
                lease_left: Some(3 * SECOND),
                more: false,
                known: true,
                holder: held_by(Some(3 * SECOND)),
            },
        ),
        ("full 9 0", Acquired::Full { waiters: 9, more: false }),
        ("heavy 5", Acquired::TooHeavy { limit: 5 }),
        ("lost", Acquired::Lost),
        ("late", Acquired::Late),
        ("left", Acquired::Over),
        ("stale", Acquired::Over),
    ]);
}

#[test]
fn each_other_reply_has_its_meaning() {
    all_read(&[
        ("freed 7 1", Released::Freed { token: 7, more: true }),
        ("held 2", Released::Held { holds: 2, more: false }),
        ("held 2 1", Released::Held { holds: 2, more: true }),
        ("held 2 0", Released::Held { holds: 2, more: false }),
        ("gone 1", Released::Gone { more: true }),
        ("lost", Released::Lost),
        ("stale", Released::Lost),
    ]);
    all_read(&[
        ("given 3000", Gave::Given { lease_left: 3 * SECOND, weight: 0 }),
        ("given 3000 5", Gave::Given { lease_left: 3 * SECOND, weight: 5 }),
        ("lost", Gave::Lost),
        ("left", Gave::Lost),
        ("stale", Gave::Lost),
        ("late", Gave::Late),
    ]);
    all_read(&[
        ("freed 7 1", ForceUnlocked::Freed { more: true }),
        ("free 0", ForceUnlocked::Free { more: false }),
        ("other 7", ForceUnlocked::Other),
        ("late", ForceUnlocked::Late),
    ]);
    all_read(&[("freed 7 1", Left { more: true }), ("gone 1", Left { more: true }), ("gone 0", Left { more: false })]);
    all_read(&[("renewed 3000", Renewed::Renewed { lease_left: 3 * SECOND }), ("lost", Renewed::Lost)]);
    all_read(&[("raised", Raised::Raised), ("lost", Raised::Lost)]);
    all_read(&[("set 1", LimitSet::Set { more: true }), ("late", LimitSet::Late)]);
    all_read(&[("booted 99", Booted { frozen_until: 99 })]);
}

#[test]
fn a_poll_names_the_holder_or_the_rest_of_the_freeze_and_the_tickets_without_a_place() {
    let held: Polled = read("polled 0 1 20 1 d:1 5 8 6 3000 2 2 4 5 7 60 5 3000/job 17");
    let holder = PolledHolder { owner: "d:1".into(), attempt: 5, token: 8, lease_left: Some(3 * SECOND) };
    assert_eq!((held.more, held.known, held.places, held.first, held.floor), (false, true, 20, true, 6));
    assert_eq!((held.holder, held.frozen_for, held.missing), (Some(holder), None, vec![1, 3]));
    assert_eq!(held.held_by, held_by(Some(3 * SECOND)));
    let frozen: Polled = read_list("polled", &["1", "0", "2", "0", "", "0", "", "6", "3000", "0"]);
    assert_eq!((frozen.more, frozen.known, frozen.first), (true, false, false));
    assert_eq!((frozen.holder, frozen.frozen_for, frozen.missing), (None, Some(3 * SECOND), vec![]));
    let shared: Polled = read("shared 0 1 20 0 6 3000 -1 + - c:1 5 8 2000 -");
    let granted = PolledHolder { owner: "c:1".into(), attempt: 5, token: 8, lease_left: Some(2 * SECOND) };
    assert_eq!((shared.room_in, shared.frozen_for, shared.floor), (Some(3 * SECOND), None, 6));
    assert_eq!((shared.granted, shared.missing), (vec![granted], vec![1, 3]));
}

#[test]
fn an_inspection_lists_holders_and_waiters() {
    let fields = ["d:1", "2", "8", "12", "34", "label", "3000", "1", "-1", "c:1:5", "700", "of a waiter"];
    let Inspected { holders, holding, used, set_limit, waiters, frozen_for, queue } = read_list("inspected", &fields);
    let [holder] = holders.as_slice() else { panic!("{holders:?}") };
    let since = 12 * SECOND + Duration::from_micros(34);
    assert_eq!((&*holder.owner, holder.holds, holder.token, holder.since), ("d:1", 2, 8, since));
    assert_eq!((&*holder.label, holder.lease_left, holder.share), ("label", 3 * SECOND, Share::LOCK));
    assert_eq!((holding, used, set_limit, waiters, frozen_for), (1, 1, None, 1, None));
    let [waiter] = queue.as_slice() else { panic!("{queue:?}") };
    let waiter = (&*waiter.ticket, waiter.deadline_in, &*waiter.label, waiter.share);
    assert_eq!(waiter, ("c:1:5", Duration::from_millis(700), "of a waiter", Share::LOCK));
    let free: Inspected = read_list("inspected", &["", "0", "", "0", "0", "", "-2", "0", "3000"]);
    assert_eq!((free.holders, free.holding, free.frozen_for), (vec![], 0, Some(3 * SECOND)));

    let fields =
        ["3", "5", "2", "1", "-1", "1", "d:1", "1", "8000000", "3000", "2", "9", "label", "c:1:5", "700", "1", "9"];
    let shared: Inspected = read_list("shared", &[&fields[..], &["of a waiter"]].concat());
    assert_eq!((shared.used, shared.set_limit, shared.holding, shared.waiters), (3, Some(5), 2, 1));
    let [holder] = shared.holders.as_slice() else { panic!("{:?}", shared.holders) };
    assert_eq!((holder.since, holder.share), (8 * SECOND, Share { weight: 2, limit: 9 }));
    assert_eq!((holder.lease_left, &*holder.label), (3 * SECOND, "label"));
    let [waiter] = shared.queue.as_slice() else { panic!("{:?}", shared.queue) };
    assert_eq!(
        (&*waiter.ticket, waiter.share, &*waiter.label),
        ("c:1:5", Share { weight: 1, limit: 9 }, "of a waiter")
    );
}

#[test]
fn numbers_are_read_in_full_or_not_at_all() {
    let int = |text: &str| Fields::new(&ScriptReply::Text(text.into())).int().ok();
    assert_eq!([int("-12"), int("9223372036854775807")], [Some(-12), Some(i64::MAX)]);
    let wrong = ["", "-", "1x", ":1", "/1", "9223372036854775808", "11111111111111111111", "00000000000000000001"];
    assert_eq!(wrong.map(int), [None; 8]);
    let small = |text: &str| Fields::new(&ScriptReply::Text(text.into())).small().ok();
    assert_eq!([small("4294967295"), small("4294967296"), small("-1")], [Some(u32::MAX), None, None]);
    let list = ScriptReply::List(vec![Field::Int(-3), Field::Text("4 5".into())]);
    let mut fields = Fields::new(&list);
    assert_eq!((fields.int().ok(), fields.is_empty(), fields.text().ok()), (Some(-3), false, Some("4 5")));
    assert!(fields.is_empty() && fields.text().is_err());
    assert!(ScriptReply::Text("held 1".into()).is_status("held") && !ScriptReply::Text("held 1".into()).is_status("1"));
}

/// Only rare cases need the tombstone and the last argument.
#[test]
fn a_release_brings_what_its_case_needs() {
    let release = |kind, holds, copies_until, is_handle| Release {
        keys: keys(kind),
        owner: "c:1".into(),
        token: 7,
        holds,
        weight: 2,
        seq: 9,
        attempt: 5,
        copies_until,
        terms: "5000/label".into(),
        is_handle,
    };
    let common = "c:1|9|7000 100 60000 p:wake:";
    let keys = " :queue :deadlines :token";
    let lock = |holds, copies_until| sent(&release(Kind::Lock, holds, copies_until, false));
    assert_eq!(lock(0, 0), format!("release [{keys}] {common}"));
    assert_eq!(lock(0, 3), format!("release [{keys} :tombstone:c:1] {common}|3 c:1:5/5000/label"));
    assert_eq!(lock(1, 3), format!("release [{keys}] {common}|1:7"), "a copy would find the hold");
    let handle = sent(&release(Kind::Lock, 0, 3, true));
    assert_eq!(handle, format!("release [{keys} :tombstone:c:1] {common}|0:7:3"));
    let shared = |holds| sent(&release(Kind::Semaphore, holds, 0, false));
    assert_eq!(shared(0), format!("shared/release [{keys} :tombstone:c:1 :limit] {common}"));
    assert_eq!(shared(1), format!("shared/release [{keys} :tombstone:c:1 :limit] {common}|1:7:2"));
    let strict = written(&release(Kind::Lock, 0, 0, false).command(&strict()));
    assert_eq!(strict, format!("release [{keys} :tombstone:c:1 ] {common}"));
}

#[test]
fn requests_bring_their_times_in_the_units_of_the_scripts() {
    let keys = || keys(Kind::Lock);
    let common = " :queue :deadlines :token";
    let acquire = |mode| {
        let (owner, terms) = ("c:1".into(), "5000/label".into());
        sent(&Acquire { keys: keys(), owner, seq: 5, mode, lease: 30 * SECOND, terms, not_after: 3 })
    };
    let acquired = format!("acquire [{common} :tombstone:c:1] 3000|c:1|5|30000|5000/label|7000 100 60000 p:wake:");
    assert_eq!(acquire(Mode::Queue), acquired);
    assert_eq!(acquire(Mode::Try), format!("{acquired}|0"));
    assert_eq!(acquire(Mode::Propose(8)), format!("{acquired}|0:8"));
    assert_eq!(acquire(Mode::Nest(8, 2)), format!("{acquired}|2:8"));
    let raise = Raise { keys: keys(), owner: "c:1".into(), token: 7, floor: 9 };
    assert_eq!(sent(&raise), "raise [ :token] c:1|7|9|60000");
    let force = |expected| sent(&ForceUnlock { keys: keys(), expected, not_after: 3 });
    assert!(force(None).starts_with(&format!("force_unlock [{common}] 3000|")), "{}", force(None));
    assert!(force(Some(7)).contains('7') && force(Some(7)) != force(None));
    let limit = |limit| sent(&SetLimit { keys: self::keys(Kind::Semaphore), limit, not_after: 3 });
    let set = "shared/set_limit [ :queue :deadlines :token :limit] 3000|c";
    assert_eq!(limit(Some(4)), format!("{set}|4|7000 100 60000 p:wake:"));
    assert_eq!(limit(None), format!("{set}||7000 100 60000 p:wake:"));
    let boot = Boot { key: boot("p"), life: "life".into(), epoch: 2, freeze: SECOND };
    assert_eq!(written(&boot.command()), "boot [] life|2|1000");
}

#[test]
fn a_renewal_says_what_may_make_the_lease_shorter() {
    let renew = |only, remember| {
        sent(&Renew { keys: keys(Kind::Lock), owner: "c:1".into(), token: 7, lease: SECOND, only, remember })
    };
    let all = [Only::Longer, Only::Attempt(5), Only::Extend(5)].map(|only| renew(only, false));
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
    assert_ne!(renew(Only::Longer, true), all[0]);
}
