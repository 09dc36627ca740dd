//! `history`: the holds that have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use onehold::LockName;
use onehold::journal::{HoldResult, PastHold};
use serde_json::{Value, json};

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, describe, local_with_date};
use crate::tables::table::{plain, terminal_width};
use crate::words;

/// How many of the longest holders a summary names.
const LONGEST: usize = 3;

#[inline(never)]
pub(crate) fn history(session: &Session, typed: &args::History) -> CommandResult {
    let mut holds = read(session, session.chosen(&typed.names))?;
    let since = typed.since.and_then(|since| {
        let since = TimeDelta::from_std(since).ok()?;
        Utc::now().checked_sub_signed(since)
    });
    holds.retain(|hold| {
        since.is_none_or(|since| hold.ended_at >= since) && (!typed.failed || has_failed(hold))
    });
    // None may be left of many.
    let all = match holds.len() {
        0 => session.store.history()?.len(),
        count => count,
    };
    let found = if all == holds.len() {
        ""
    } else {
        "no match among "
    };
    let (count, store) = (words::counted(all, "past hold"), session.store_text());
    let message = format!("{found}{count} in {store}");
    let mut outcome = Outcome::new(Exit::DONE, "listed", message);
    outcome = outcome.told_if(session.global.verbose || holds.is_empty());
    if all == 0 && !session.history {
        outcome = outcome.note("  nothing is recorded: that takes `history = true` below `[defaults]` in the configuration, or ONEHOLD_HISTORY=1");
    }
    if session.global.json {
        let (key, objects): (_, Vec<Value>) = if typed.summary {
            let summaries = by_lock(&holds).into_iter().map(summary_object);
            ("summary", summaries.collect())
        } else {
            ("holds", holds.iter().map(object).collect())
        };
        outcome.more = json!({ key: objects });
    } else if !holds.is_empty() {
        let width = terminal_width();
        outcome.data = Some(if typed.summary {
            let rows = by_lock(&holds).into_iter().map(summary_cells);
            plain(SUMMARY_TITLES, rows, NAME_AND_HOLDS, width)
        } else {
            plain(TITLES, holds.iter().map(cells), NAME_AND_WHO, width)
        });
    }
    Ok(outcome.into())
}

fn read(session: &Session, names: &[LockName]) -> anyhow::Result<Vec<PastHold>> {
    if names.is_empty() {
        return Ok(session.store.history()?);
    }
    let mut holds: Vec<PastHold> = Vec::new();
    for name in names {
        let found = session.lock(name.clone())?.history()?;
        let is_new = |hold: &PastHold| holds.iter().all(|known| known.hold != hold.hold);
        let found: Vec<PastHold> = found.into_iter().filter(is_new).collect();
        holds.extend(found);
    }
    holds.sort_by_key(|hold| hold.ended_at);
    Ok(holds)
}

fn has_failed(hold: &PastHold) -> bool {
    hold.succeeded() == Some(false)
}

const TITLES: [&str; 6] = ["WHEN", "NAME", "WHO", "WAITED", "HELD", "RESULT"];
const NAME_AND_WHO: (usize, usize) = (1, 2);

fn cells(hold: &PastHold) -> [String; 6] {
    [
        local_with_date(hold.acquired_at),
        words::escape(&hold.all_names().collect::<Vec<_>>().join(" ")),
        who(hold),
        span(hold.waited()),
        span(hold.held()),
        result(hold),
    ]
}

/// "root (backup.sh)"
fn who(hold: &PastHold) -> String {
    let user = hold.owner.clone().or_else(|| hold.user());
    let program = onehold::describe::program(&hold.command).map(|program| format!("({program})"));
    let parts: Vec<String> = user.into_iter().chain(program).collect();
    words::escape(&parts.join(" "))
}

fn result(hold: &PastHold) -> String {
    match (hold.result, hold.exit_code, hold.signal) {
        (HoldResult::Exited, Some(code), _) => format!("exit {code}"),
        (_, _, Some(signal)) if hold.result == HoldResult::Signal => format!("signal {signal}"),
        (result, ..) => describe::result(result),
    }
}

/// "0.4s", "3m 1s"
fn span(time: TimeDelta) -> String {
    let time = time.to_std().unwrap_or_default();
    if time < Duration::from_secs(10) {
        return format!("{:.1}s", time.as_secs_f64());
    }
    words::span(time)
}

fn object(hold: &PastHold) -> Value {
    json!({
        "name": hold.name,
        "names": hold.all_names().collect::<Vec<_>>(),
        "hold": hold.hold,
        "mode": hold.mode,
        "user": hold.user(),
        "owner": hold.owner,
        "host": hold.host,
        "command": hold.command,
        "asked_at": hold.asked_at,
        "waited_seconds": hold.waited().as_seconds_f64(),
        "waiting_on_arrival": hold.waiting_on_arrival,
        "acquired_at": hold.acquired_at,
        "ended_at": hold.ended_at,
        "held_seconds": hold.held().as_seconds_f64(),
        "result": hold.result,
        "exit_code": hold.exit_code,
        "signal": hold.signal,
    })
}

const SUMMARY_TITLES: [&str; 6] = [
    "NAME",
    "RUNS",
    "FAILED",
    "WAITED p50/p90/max",
    "HELD p50/p90/max",
    "LONGEST",
];
const NAME_AND_HOLDS: (usize, usize) = (0, 5);

/// The past holds of each lock, the longest first.
fn by_lock(holds: &[PastHold]) -> BTreeMap<&str, Vec<&PastHold>> {
    let mut of_names: BTreeMap<&str, Vec<&PastHold>> = BTreeMap::new();
    for hold in holds {
        for name in hold.all_names() {
            of_names.entry(name).or_default().push(hold);
        }
    }
    for holds in of_names.values_mut() {
        holds.sort_by_key(|hold| std::cmp::Reverse(hold.held()));
    }
    of_names
}

/// p50, p90 and the longest, by nearest rank.
fn quantiles(holds: &[&PastHold], time: fn(&PastHold) -> TimeDelta) -> [TimeDelta; 3] {
    let mut times: Vec<TimeDelta> = holds.iter().map(|hold| time(hold)).collect();
    times.sort_unstable();
    [50, 90, 100].map(|percent| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).copied().unwrap_or_default()
    })
}

fn failures(holds: &[&PastHold]) -> usize {
    holds.iter().filter(|hold| has_failed(hold)).count()
}

fn summary_cells((name, holds): (&str, Vec<&PastHold>)) -> [String; 6] {
    let joined = |time| quantiles(&holds, time).map(span).join("/");
    let longest = holds.iter().take(LONGEST);
    let longest = longest.map(|hold| format!("{} {}", span(hold.held()), who(hold)));
    [
        words::escape(name),
        holds.len().to_string(),
        failures(&holds).to_string(),
        joined(PastHold::waited),
        joined(PastHold::held),
        longest.collect::<Vec<_>>().join(", "),
    ]
}

fn summary_object((name, holds): (&str, Vec<&PastHold>)) -> Value {
    let seconds = |time| {
        let [p50, p90, max] = quantiles(&holds, time).map(TimeDelta::as_seconds_f64);
        json!({ "p50": p50, "p90": p90, "max": max })
    };
    json!({
        "name": name,
        "runs": holds.len(),
        "failed": failures(&holds),
        "waited_seconds": seconds(PastHold::waited),
        "held_seconds": seconds(PastHold::held),
        "longest": holds.iter().take(LONGEST).map(|hold| object(hold)).collect::<Vec<_>>(),
    })
}
