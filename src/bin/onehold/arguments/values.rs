//! The values of options: their types, and how they are parsed.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use onehold::{Format, LockName, Mode};
use serde::Deserialize;

use crate::arguments::table::Choice;

/// When to use color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How to handle a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnZombie {
    /// Take it over and report it
    Take,
    /// Ask on the terminal; without a terminal, refuse unless --yes is given
    Ask,
    /// Exit with status 5
    Fail,
}

/// The process that a `run` ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DieWith {
    /// In place of a default.
    None,
    Parent,
    Pid(u32),
}

/// What to do if the lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End all the work by TERM and KILL, exit with 8
    #[default]
    Term,
    /// Print a warning and let CMD run
    Warn,
}

/// Order of `list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListOrder {
    /// By name, in natural order (job-9 before job-10)
    #[default]
    Name,
    /// The oldest hold first
    Age,
    /// Zombies first, then what may need attention
    State,
}

/// State of a lock in `list`, in the order in which it needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ListState {
    /// The holder has ended, or the file is damaged; the next acquire takes it over
    Zombie,
    /// A file that is not a lock, at the path of a profile
    Damaged,
    /// Held by a live holder for longer than its maximum age
    Overdue,
    /// Held by a holder that cannot be checked, or the file is incomplete
    Unverified,
    /// Held, or some of its slots are
    Held,
    /// Held together with others (--shared)
    Shared,
    /// The command has ended, and the lock stays taken for a while (--hold-at-least)
    Kept,
    /// Free, but only the first waiter may take it, for 5 s
    Reserved,
    /// Left by a finished `run --exec` or `run --hold-at-least`, or by a release that was killed
    Free,
    /// A file that is not a lock
    NotALock,
}

impl Choice for Color {}
impl Choice for OnLost {}
impl Choice for ListOrder {}

/// The limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    AtMost(Duration),
    Forever,
}

/// A mistake on the command line that is found only after profile and configuration have been read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// For clap, which lists them.
pub(crate) fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|name| name.parse())
}

pub(crate) fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false)
}

pub(crate) fn path(text: &str) -> Result<PathBuf, ()> {
    label(text).map(PathBuf::from)
}

/// A text that is not empty.
pub(crate) fn label(text: &str) -> Result<String, ()> {
    Some(text.to_owned())
        .filter(|text| !text.is_empty())
        .ok_or(())
}

pub(crate) fn parsed<T: FromStr>(text: &str) -> Result<T, T::Err> {
    text.parse()
}

pub(crate) fn lock_name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|error| match error {
        // clap prints the value itself.
        onehold::Error::InvalidName { reason, .. } => reason.to_owned(),
        error => error.to_string(),
    })
}

pub(crate) fn slots(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| format!("not a number from 1 to {}", u32::MAX))
}

pub(crate) fn instance(text: &str) -> Result<String, String> {
    const MAX_BYTES: usize = 256;
    match text.len() {
        0 => Err("an empty name".to_owned()),
        length if length > MAX_BYTES => Err(format!("longer than {MAX_BYTES} bytes")),
        _ => Ok(text.to_owned()),
    }
}

pub(crate) fn exit_code(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| format!("not a number from 0 to {}", u8::MAX))
}

pub(crate) fn die_with(text: &str) -> Result<DieWith, String> {
    match text {
        "none" => Ok(DieWith::None),
        "parent" => Ok(DieWith::Parent),
        _ => pid(text)
            .map(DieWith::Pid)
            .map_err(|error| format!("{error}, nor `parent` or `none`")),
    }
}

pub(crate) fn pid(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|pid| (1..=i32::MAX.unsigned_abs()).contains(pid))
        .ok_or_else(|| format!("not a number from 1 to {}", i32::MAX))
}

pub(crate) fn hold_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a hold number".to_owned())
}

/// How a lock is to be held.
pub(crate) fn mode(shared: bool, slots: Option<NonZeroU32>) -> Mode {
    match slots {
        Some(slots) => Mode::Slots(slots),
        None if shared => Mode::Shared,
        None => Mode::Exclusive,
    }
}

pub(crate) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    if text == "forever" {
        return Ok(WaitLimit::Forever);
    }
    duration(text).map(WaitLimit::AtMost)
}

/// Parses a time to live, or an interval. Records keep it in milliseconds, so it must be at least one.
pub(crate) fn time_to_live(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(ttl) if ttl.as_millis() == 0 => Err("must be at least 1 ms".to_owned()),
        parsed => parsed,
    }
}

/// Parses a duration. A bare number is in seconds and may have a fraction, as for flock(1).
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const USE: &str = "use `30`, `0.5`, `30s`, `5m`, `2h` or `1d`";
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let is_of_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if text.bytes().all(is_of_number)
        && let Ok(seconds) = text.parse::<f64>()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| format!("{error}; {USE}"));
    }
    // humantime reads `M` as a month. Here it is a mistyped `m`.
    let mut units = text.split(|char: char| !char.is_alphabetic());
    if units.any(|unit| unit == "M") {
        return Err(format!("unknown unit `M`; {USE}"));
    }
    // It wants a digit before the point.
    let zero = if text.starts_with('.') { "0" } else { "" };
    humantime::parse_duration(&format!("{zero}{text}")).map_err(|error| match error {
        humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
            format!("unknown unit `{unit}`; {USE}")
        }
        humantime::DurationError::NumberOverflow => format!("too long; {USE}"),
        _ => format!("not a duration; {USE}"),
    })
}
