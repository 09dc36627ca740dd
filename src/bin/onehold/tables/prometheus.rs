//! `list --prometheus`: the locks as metrics, in the text format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use chrono::{DateTime, Utc};
use onehold::journal::{HoldResult, PastHold};
use onehold::{HoldInfo, Listing, State, Status};

use crate::configuration::Session;
use crate::messages::describe;
use crate::words;

fn seconds(to: DateTime<Utc>, from: DateTime<Utc>) -> f64 {
    to.signed_duration_since(from).as_seconds_f64()
}

/// The metrics of a store. `listing`: `None` if it cannot be reached or read.
pub(crate) fn metrics(session: &Session, listing: Option<&Listing>) -> String {
    let store = format!("store=\"{}\"", label(&session.store_name()));
    let mut text = String::new();
    add(
        &mut text,
        "onehold_store_up",
        "Whether the store could be read: 1 if so, else 0.",
        [(&store, u8::from(listing.is_some()))],
    );
    let Some(listing) = listing else {
        return text;
    };
    add(
        &mut text,
        "onehold_store_errors",
        "Locks and directories that could not be read.",
        [(&store, listing.errors.len())],
    );
    // Two names or hosts may be equal after escaping, but a series must not be repeated.
    let mut locks: BTreeMap<String, Vec<&Status>> = BTreeMap::new();
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for hold in &listing.locks {
        let name = format!("name=\"{}\",{store}", label(&hold.name));
        let record = hold.info();
        let host = record.and_then(HoldInfo::hostname);
        let (state, host) = (describe::state(hold), label(host.unwrap_or_default()));
        let labels = format!("{name},state=\"{state}\",host=\"{host}\"");
        let is_free = matches!(hold.verdict.state, State::Free | State::NotALock);
        *held.entry(labels).or_default() += usize::from(!is_free);
        locks.entry(name).or_default().push(hold);
    }
    add(
        &mut text,
        "onehold_lock_held",
        "Holds by their state and host, several if they share the lock; 0: free, or not a lock. The next acquire takes over a zombie.",
        held,
    );
    let now = Utc::now();
    let mut of_locks = |metric, about, value: &dyn Fn(&[&Status]) -> Option<f64>| {
        let sample = |(labels, holds): (_, &Vec<_>)| Some((labels, value(holds)?));
        add(&mut text, metric, about, locks.iter().filter_map(sample));
    };
    let about = "Time since the lock was acquired; of the oldest hold, if several share it.";
    of_locks("onehold_lock_age_seconds", about, &|holds| {
        let ages = holds.iter().filter_map(|hold| describe::age(hold));
        Some(ages.max()?.as_secs_f64())
    });
    let about = "Time until the lease of a holder ends, the first one if several share the lock; negative once it has ended.";
    of_locks("onehold_lock_expires_seconds", about, &|holds| {
        let ends = holds.iter().filter_map(|hold| hold.verdict.expires_at);
        Some(seconds(ends.min()?, now))
    });
    let about = "Processes that wait for the lock.";
    of_locks("onehold_lock_waiters", about, &|holds| {
        let waiters = holds.iter().map(|hold| hold.waiters.len()).max()?;
        Some(f64::from(u32::try_from(waiters).ok()?))
    });
    let about = "How long the process has waited that waits longest.";
    of_locks("onehold_lock_longest_wait_seconds", about, &|holds| {
        let waiters = holds.iter().flat_map(|hold| &hold.waiters);
        Some(seconds(now, waiters.map(|waiter| waiter.since).min()?))
    });
    // What a server keeps is bounded in number, and so no counter.
    if session.history && !session.store.is_remote() {
        past_holds(session, &store, &mut text);
    }
    text
}

/// What the history tells, as far back as the journal reaches.
fn past_holds(session: &Session, store: &str, text: &mut String) {
    let Ok(holds) = session.store.recent_history() else {
        return;
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut sums: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for hold in &holds {
        let result = result(hold);
        for name in hold.all_names() {
            let name = format!("name=\"{}\",{store}", label(name));
            let labels = format!("{name},result=\"{result}\"");
            *counts.entry(labels).or_default() += 1;
            let [waited, held] = sums.entry(name).or_default();
            *waited += hold.waited().as_seconds_f64();
            *held += hold.held().as_seconds_f64();
        }
    }
    add(
        text,
        "onehold_holds_total",
        "Holds that have ended, by how (success: exit status 0, failure: another one); it begins anew when the journal is rotated.",
        counts,
    );
    add(
        text,
        "onehold_hold_waited_seconds_total",
        "How long those holders waited, in sum.",
        sums.iter().map(|(labels, [waited, _])| (labels, waited)),
    );
    add(
        text,
        "onehold_hold_held_seconds_total",
        "How long those holds lasted, in sum.",
        sums.iter().map(|(labels, [_, held])| (labels, held)),
    );
}

fn result(hold: &PastHold) -> String {
    match (hold.result, hold.succeeded()) {
        (HoldResult::Exited, Some(true)) => "success".to_owned(),
        (HoldResult::Exited, Some(false)) => "failure".to_owned(),
        (result, _) => describe::result(result),
    }
}

/// Adds a metric with its samples: labels and values.
fn add(
    text: &mut String,
    metric: &str,
    help: &str,
    samples: impl IntoIterator<Item = (impl Display, impl Display)>,
) {
    // As names of counters end.
    let is_counter = metric.ends_with("_total");
    let kind = if is_counter { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{metric}{{{labels}}} {value}");
    }
}

/// The value of a label. Names and hosts are untrusted: any process that may write to the store chooses them. The
/// format has escapes of its own for a backslash, a quotation mark and a newline.
fn label(text: &str) -> String {
    let lines = text.split('\n').map(words::escape);
    let lines = lines.map(|line| line.replace('\\', r"\\").replace('"', r#"\""#));
    lines.collect::<Vec<_>>().join(r"\n")
}
