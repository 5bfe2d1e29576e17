//! The HTML page: one file that needs no network. It shows everything around violations, and a sample of all else.

use std::path::Path;

use serde_json::{Value, json};

use crate::claims::Claim;
use crate::history::{Call, History, MS, NEVER, Time};
use crate::table::{PROMISES, TABLE};
use crate::verdict::Verdict;

const TEMPLATE: &str = include_str!("page.html");
/// The most holds, and the most waits. A row has about 30 bytes, so the page stays far below 20 MB.
const ROWS: usize = 120_000;
/// The number of violations around which the page shows everything, and the time before and after each.
const WHOLE: (usize, Time) = (40, 5000 * MS);
/// The page prefers events that last longer than this.
const LONG: Time = 40 * MS;

pub fn write(history: &History, verdict: &Verdict, report: &Value, path: &Path) -> std::io::Result<()> {
    let data = data(history, verdict, report);
    // `</script>` in a text would end the script.
    let data = data.to_string().replace("</", "<\\/");
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(path, TEMPLATE.replace("/*DATA*/", &data))
}

fn data(history: &History, verdict: &Verdict, report: &Value) -> Value {
    let first = history.clients.iter().map(|client| client.began).min().unwrap_or_default();
    // In tenths of a millisecond.
    let at = |t: Time| t.min(history.run.ended).saturating_sub(first) / (MS / 10);
    let handles = history.holds.iter().enumerate();
    let handles = handles.filter_map(|(index, hold)| Some((Claim::of_handle(history, index)?, hold)));
    let holds: Vec<_> = history.holds.iter().map(|hold| (Claim::of(history, hold), hold)).chain(handles).collect();
    let chosen = sample(verdict, holds.len(), |index| (holds[index].0.start, holds[index].0.end));
    let holds: Vec<Value> = chosen
        .into_iter()
        .map(|index| {
            let (claim, hold) = &holds[index];
            // From `cut` on, the table excuses everything.
            json!([
                hold.name,
                hold.client,
                at(claim.start),
                at(claim.end),
                hold.token,
                at(claim.cut),
                hold.lost.is_some()
            ])
        })
        .collect();
    let end = |call: &Call| call.ended.min(history.clients[call.client].killed);
    let chosen = sample(verdict, history.calls.len(), |index| {
        let call = &history.calls[index];
        (call.asked, end(call))
    });
    let wait = |index: usize| {
        let call = &history.calls[index];
        json!([call.name, call.client, at(call.asked), at(end(call)), call.why])
    };
    let waits: Vec<Value> = chosen.into_iter().map(wait).collect();
    let faults = history.faults.iter().map(|fault| {
        let hosts =
            fault.hosts.as_ref().map(|hosts| hosts.iter().map(|host| &history.hosts[*host]).collect::<Vec<_>>());
        json!([fault.kind, at(fault.from), at(fault.to), hosts, fault.shards])
    });
    let lost = history.holds.iter().filter_map(|hold| {
        let (t, why) = hold.lost.as_ref()?;
        Some(json!([hold.name, hold.client, at(*t), why]))
    });
    let broken = verdict.violations.iter().map(|violation| json!([violation.promise, at(violation.t), violation.text]));
    let after = |after: &Option<crate::table::After>| match after {
        None => "kept".to_owned(),
        Some(after) => {
            format!("end + {} s{}", after.ms as f64 / 1000.0, if after.and_freeze { " + freeze" } else { "" })
        }
    };
    let rows = TABLE.iter().map(|row| {
        let suspends: Vec<_> = row.suspends.iter().map(after).collect();
        json!([row.kind, row.on, suspends, row.why])
    });
    let mut shared = vec![false; history.names.len()];
    history.calls.iter().for_each(|call| shared[call.name] = call.of > 1);
    json!({
        "report": report,
        "shared": shared,
        "names": history.names,
        "clients": history.clients.iter().map(|client| &client.name).collect::<Vec<_>>(),
        "holds": holds,
        "waits": waits,
        "faults": faults.collect::<Vec<_>>(),
        "lost": lost.collect::<Vec<_>>(),
        "violations": broken.collect::<Vec<_>>(),
        "stalls": history.stalls.iter().map(|(from, to)| json!([at(*from), at(*to)])).collect::<Vec<_>>(),
        "promises": PROMISES.map(|promise| format!("{promise:?}")),
        "table": rows.collect::<Vec<_>>(),
        "end": at(NEVER),
    })
}

/// The indices to show: all around violations, then the long ones, then a sample of the others.
fn sample(verdict: &Verdict, count: usize, times: impl Fn(usize) -> (Time, Time)) -> Vec<usize> {
    let around: Vec<_> = verdict.violations.iter().take(WHOLE.0).map(|violation| violation.t).collect();
    let is_near =
        |(from, to): (Time, Time)| around.iter().any(|t| from < t + WHOLE.1 && to.saturating_add(WHOLE.1) > *t);
    let (mut chosen, others): (Vec<usize>, Vec<usize>) = (0..count).partition(|index| is_near(times(*index)));
    let is_long = |index: &usize| times(*index).1.saturating_sub(times(*index).0) > LONG;
    let (long, short): (Vec<_>, Vec<_>) = others.into_iter().partition(is_long);
    for part in [long, short] {
        let room = ROWS.saturating_sub(chosen.len()).max(1);
        chosen.extend(part.iter().step_by(part.len() / room + 1));
    }
    chosen.sort_unstable();
    chosen
}
