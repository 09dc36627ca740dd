//! The history: a line in the journal for each hold that was asked for with it, once it has ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::event::{MAX_NAMES, resolved, resolved_below};
use crate::name::LockName;
use crate::record::{MAX_HOLD, Mode, Record, has_four_digits, is_default};
use crate::sys::process::user_name;

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HoldResult {
    /// Its command exited. The exit code of a `run --exec` is not known.
    Exited,
    /// A signal ended its command.
    Signal,
    /// Its command was ended at its time limit, whatever it made of that.
    TimeLimit,
    /// Its command was ended because the process of `run --die-with` had exited.
    CallerExited,
    /// Its command was not started: it was not found, for example, or a signal came first.
    NotStarted,
    /// It was given back.
    Released,
    /// Another process broke it, or took the lock by force.
    Broken,
    /// Its lock file was removed or replaced, or its lease was not kept.
    Lost,
    /// Its time to live ended.
    Expired,
    /// Its holder died, and another process found that.
    TakenOver,
}

/// Tells the line from the other ones of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Line {
    #[serde(rename = "end")]
    End,
}

/// A hold that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PastHold {
    pub(crate) event: Line,
    /// Its store: a directory, or a URL.
    pub store: PathBuf,
    /// Its lock file; of a hold of several locks that of the first one.
    pub path: PathBuf,
    /// The name of the lock, as given; of a hold of several locks the first one.
    pub name: String,
    /// The names of all locks, if it had several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Its number.
    pub hold: u64,
    /// How the locks were held.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The number of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name of its user, where other machines read it: the number may be another user's there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// Its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its owner label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The command line of the holder.
    pub command: Vec<String>,
    /// When the lock was asked for, by the wall clock, as all times here.
    pub asked_at: DateTime<Utc>,
    /// How many waited already when its holder began to wait; 0 if it did not wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting_on_arrival: u32,
    /// When it was acquired.
    pub acquired_at: DateTime<Utc>,
    /// When it ended: not later than the next one could begin. Of a hold whose holder died: when that was found.
    pub ended_at: DateTime<Utc>,
    /// How it ended.
    pub result: HoldResult,
    /// The exit code of its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl PastHold {
    /// `None`: it was not asked for with a history.
    pub(crate) fn of(
        record: &Record,
        store: &Path,
        path: &Path,
        result: HoldResult,
        ended_at: DateTime<Utc>,
    ) -> Option<Self> {
        let asked = record.asked?;
        Some(Self {
            event: Line::End,
            // JSON has no other paths.
            store: resolved(store).to_string_lossy().into_owned().into(),
            path: resolved_below(store, path)
                .to_string_lossy()
                .into_owned()
                .into(),
            name: record.name.clone(),
            names: record.names.clone(),
            hold: record.hold,
            mode: record.mode,
            uid: None,
            user: None,
            host: record.hostname.clone(),
            owner: record.owner.clone(),
            command: record.command.clone(),
            asked_at: asked.at,
            waiting_on_arrival: asked.waiting,
            acquired_at: record.acquired_at,
            ended_at: ended_at.trunc_subsecs(6),
            result,
            exit_code: None,
            signal: None,
        })
    }

    /// The name of its user, or the number of one without a name.
    pub fn user(&self) -> Option<String> {
        self.user.clone().or_else(|| self.uid.map(user_name))
    }

    /// The names of all its locks.
    pub fn all_names(&self) -> impl Iterator<Item = &str> {
        let only = self.names.is_empty().then_some(&self.name);
        self.names.iter().chain(only).map(String::as_str)
    }

    /// How long its holder waited; zero if the clock was set back meanwhile.
    pub fn waited(&self) -> TimeDelta {
        (self.acquired_at - self.asked_at).max(TimeDelta::zero())
    }

    /// How long it was held; zero if the clock was set back meanwhile.
    pub fn held(&self) -> TimeDelta {
        (self.ended_at - self.acquired_at).max(TimeDelta::zero())
    }

    /// Whether it ended as its holder wanted. `None`: its command exited with a code that is not known.
    pub fn succeeded(&self) -> Option<bool> {
        match self.result {
            HoldResult::Exited => self.exit_code.map(|code| code == 0),
            // A lock that was kept after its command has the line of the command, and no other when it expires.
            result => Some(result == HoldResult::Released),
        }
    }
}

/// The past holds in these lines that are wanted, the oldest first. Lines that cannot be read are left out. `store`:
/// the one that all of them are of, whatever they say.
pub(crate) fn past_holds(
    lines: &[Vec<u8>],
    store: Option<&Path>,
    is_wanted: impl Fn(&PastHold) -> bool,
) -> Vec<PastHold> {
    let mut holds = Vec::new();
    // Whoever breaks a hold that does not answer notes its end, and so does its wrapper. A hold of several locks may
    // have a line for each.
    let mut known = BTreeSet::new();
    for line in lines {
        let Ok(mut hold) = serde_json::from_slice::<PastHold>(line) else {
            continue;
        };
        if let Some(store) = store {
            store.clone_into(&mut hold.store);
        }
        if is_valid(&hold) && is_wanted(&hold) && known.insert((hold.store.clone(), hold.hold)) {
            holds.push(hold);
        }
    }
    holds.sort_by_key(|hold| hold.ended_at);
    holds
}

/// Any process that may write there may have written it.
fn is_valid(hold: &PastHold) -> bool {
    let times = [hold.asked_at, hold.acquired_at, hold.ended_at];
    times.into_iter().all(has_four_digits)
        && hold.hold <= MAX_HOLD
        && hold.names.len() <= MAX_NAMES
        && hold
            .names
            .iter()
            .chain([&hold.name])
            .all(|name| LockName::new(name).is_ok())
}
