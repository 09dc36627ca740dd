//! `list --prometheus`: the locks as metrics, in the text format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use chrono::{DateTime, Utc};
use onehold::{Listing, Status};

use crate::describe;
use crate::session::Session;
use crate::words;

/// A metric of a lock, its description, and its value for the holds of that lock.
type Metric = (
    &'static str,
    &'static str,
    fn(&[&Status], DateTime<Utc>) -> Option<f64>,
);

const METRICS: [Metric; 4] = [
    (
        "onehold_lock_age_seconds",
        "Time since the lock was acquired; of the oldest hold, if several share it.",
        |holds, _| {
            greatest(
                holds
                    .iter()
                    .filter_map(|hold| describe::age(hold)?.as_secs_f64().into()),
            )
        },
    ),
    (
        "onehold_lock_expires_seconds",
        "Time until the lease of a holder ends, the first one if several share the lock; negative once it has ended.",
        |holds, now| {
            let first = holds
                .iter()
                .filter_map(|hold| hold.verdict.expires_at)
                .min()?;
            Some(seconds(first, now))
        },
    ),
    (
        "onehold_lock_waiters",
        "Processes that wait for the lock.",
        |holds, _| greatest(holds.iter().map(|hold| float(hold.waiters.len()))),
    ),
    (
        "onehold_lock_longest_wait_seconds",
        "How long the process has waited that waits longest.",
        |holds, now| {
            let waiters = holds.iter().flat_map(|hold| &hold.waiters);
            Some(seconds(now, waiters.map(|waiter| waiter.since).min()?))
        },
    ),
];

#[allow(clippy::cast_precision_loss, reason = "there are fewer than 2^53")]
fn float(count: usize) -> f64 {
    count as f64
}

fn greatest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

fn seconds(to: DateTime<Utc>, from: DateTime<Utc>) -> f64 {
    to.signed_duration_since(from).as_seconds_f64()
}

/// The metrics of a store. `listing`: `None` if it cannot be reached or read.
pub(crate) fn metrics(session: &Session, listing: Option<&Listing>) -> String {
    let store = format!("store=\"{}\"", label(&session.store_text()));
    let mut text = Text::default();
    text.describe(
        "onehold_store_up",
        "Whether the store could be read: 1 if so, else 0.",
    );
    text.sample(&store, u8::from(listing.is_some()));
    let Some(listing) = listing else {
        return text.written;
    };
    text.describe(
        "onehold_store_errors",
        "Locks and directories that could not be read.",
    );
    text.sample(&store, listing.errors.len());
    // Two names or hosts may be equal after escaping, but a series must not be repeated.
    let mut locks: BTreeMap<String, Vec<&Status>> = BTreeMap::new();
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for hold in &listing.locks {
        let name = format!("name=\"{}\",{store}", label(&hold.name));
        let host = hold
            .record
            .as_ref()
            .and_then(|record| record.hostname.as_deref());
        let (state, host) = (describe::state(hold), label(host.unwrap_or_default()));
        *held
            .entry(format!("{name},state=\"{state}\",host=\"{host}\""))
            .or_default() += 1;
        locks.entry(name).or_default().push(hold);
    }
    text.describe(
        "onehold_lock_held",
        "Holds by their state and host, several if they share the lock; the next acquire takes over a zombie.",
    );
    for (labels, count) in held {
        text.sample(&labels, count);
    }
    let now = Utc::now();
    for (metric, help, value) in METRICS {
        text.describe(metric, help);
        for (labels, holds) in &locks {
            if let Some(value) = value(holds, now) {
                text.sample(labels, value);
            }
        }
    }
    if session.history {
        past_holds(session, &store, &mut text);
    }
    text.written
}

/// What the history tells, as far back as the journal reaches.
fn past_holds(session: &Session, store: &str, text: &mut Text) {
    let Ok(holds) = session.store.recent_history() else {
        return;
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut sums: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for hold in &holds {
        let result = serde_json::to_value(hold.result).unwrap_or_default();
        let result = result.as_str().unwrap_or_default();
        for name in hold.all_names() {
            let name = format!("name=\"{}\",{store}", label(name));
            *counts
                .entry(format!("{name},result=\"{result}\""))
                .or_default() += 1;
            let [waited, held] = sums.entry(name).or_default();
            *waited += hold.waited().as_seconds_f64();
            *held += hold.held().as_seconds_f64();
        }
    }
    text.describe_counter(
        "onehold_holds_total",
        "Holds that have ended, by how; it begins anew when the journal is rotated.",
    );
    for (labels, count) in counts {
        text.sample(&labels, count);
    }
    for (at, metric, help) in [
        (
            0,
            "onehold_hold_waited_seconds_total",
            "How long those holders waited, in sum.",
        ),
        (
            1,
            "onehold_hold_held_seconds_total",
            "How long those holds lasted, in sum.",
        ),
    ] {
        text.describe_counter(metric, help);
        for (labels, sum) in &sums {
            text.sample(labels, sum.get(at).copied().unwrap_or_default());
        }
    }
}

#[derive(Default)]
struct Text {
    written: String,
    metric: &'static str,
}

impl Text {
    fn describe(&mut self, metric: &'static str, help: &str) {
        self.describe_as("gauge", metric, help);
    }

    fn describe_counter(&mut self, metric: &'static str, help: &str) {
        self.describe_as("counter", metric, help);
    }

    fn describe_as(&mut self, kind: &str, metric: &'static str, help: &str) {
        let _ = writeln!(
            self.written,
            "# HELP {metric} {help}\n# TYPE {metric} {kind}"
        );
        self.metric = metric;
    }

    fn sample(&mut self, labels: &str, value: impl Display) {
        let _ = writeln!(self.written, "{}{{{labels}}} {value}", self.metric);
    }
}

/// The value of a label. Names and hosts are untrusted: any process that may write to the store chooses them.
fn label(text: &str) -> String {
    words::escape(text)
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
}
