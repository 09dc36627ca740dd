//! A status in words, as certain as its evidence and no more.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::{DateTime, Local, Utc};
use onehold::{Doubt, Kind, LockName, Proof, Reason, Record, State, Status, Waiter};

/// What somebody wrote into a lock file must not steer a terminal: control characters and those
/// that change the direction or hide are shown as escapes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if is_unfit_for_terminals(char) {
            escaped.extend(char.escape_unicode());
        } else {
            escaped.push(char);
        }
    }
    escaped
}

pub(crate) fn is_unfit_for_terminals(char: char) -> bool {
    let hidden = matches!(
        char,
        '\u{061C}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{E0000}'..='\u{E007F}'
    );
    char.is_control() || hidden
}

/// Name in backquotes, as in all messages.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", escape(name))
}

/// "`backup` is held by process 4242 (backup.sh) on db1, since 02:00:07 (3h 12m ago): "nightly""
pub(crate) fn sentence(status: &Status) -> String {
    tell(status, false)
}

/// The same of a hold that has just been ended.
pub(crate) fn past(status: &Status) -> String {
    tell(status, true)
}

fn tell(status: &Status, is_over: bool) -> String {
    let name = quoted(&status.name);
    let verdict = &status.verdict;
    if verdict.reason == Reason::Promised {
        return match status
            .waiters
            .iter()
            .find(|waiter| Some(waiter.pid) == verdict.pid)
        {
            Some(waiter) => format!("{name} is free and promised to {}", waiting(waiter)),
            None => format!("{name} is free and promised to the first of those who wait for it"),
        };
    }
    let Some(record) = &status.record else {
        return match verdict.reason {
            Reason::NoFile | Reason::Finished => format!("{name} is free"),
            Reason::UnknownVersion => {
                format!(
                    "{name} is held by another version of onehold, whose record this one cannot read"
                )
            }
            Reason::InTheMaking => format!("{name} may be held: its lock file is not complete yet"),
            Reason::Corrupt => format!("{name} has a broken lock file, which nobody holds"),
            Reason::NotALock(what) => format!("{name} is not a lock: its file is {what}"),
            _ => format!("{name} is held, though its lock file is broken"),
        };
    };
    if verdict.state == State::Free {
        return format!("{name} is free");
    }
    let mut text = match verdict.state {
        _ if is_over => format!("{name} was held by {}", holder(status, record)),
        State::Zombie => match verdict.reason {
            Reason::Aged(_) => format!("{name} may have been held by {}", holder(status, record)),
            _ => format!("{name} was held by {}", holder(status, record)),
        },
        _ => match verdict.reason {
            Reason::Unproven(_) => format!("{name} may be held by {}", holder(status, record)),
            _ => format!("{name} is held by {}", holder(status, record)),
        },
    };
    if let Some(host) = &record.hostname {
        let _ = write!(text, " on {}", escape(host));
    }
    let _ = write!(text, ", {}", since(record));
    if let Some(fate) = fate(status) {
        let _ = write!(text, ", {fate}");
    }
    if let Some(message) = &record.message {
        let _ = write!(text, ": \"{}\"", escape(message));
    }
    text
}

/// "`backend` covers `backend/task-1`", if a lock is held by way of another.
pub(crate) fn covers(status: &Status, wanted: &LockName) -> Option<String> {
    let (found, wanted) = (status.name.as_str(), wanted.as_str());
    if found == wanted {
        return None;
    }
    let (above, below) = if wanted.starts_with(found) {
        (found, wanted)
    } else {
        (wanted, found)
    };
    Some(format!("{} covers {}", quoted(above), quoted(below)))
}

/// The second line: by what evidence. `None`: the sentence says it all.
pub(crate) fn evidence(status: &Status) -> Option<String> {
    let verdict = &status.verdict;
    let text = match verdict.reason {
        Reason::Alive => {
            let word = if verdict.state == State::Overdue {
                "overdue"
            } else {
                "alive"
            };
            let how = match verdict.proof {
                Proof::KernelLock => "its kernel lock is kept",
                Proof::SameProcess => "same process",
                _ => "a process has its pid",
            };
            let wrapper = match (verdict.wrapper_alive, &status.record) {
                (Some(false), Some(record)) if !record.exec => {
                    format!("; its wrapper, process {}, is gone", record.pid)
                }
                _ if verdict.pid_alive.is_none() => {
                    "; its pid is not to be checked from here, where it may be another process's"
                        .to_owned()
                }
                _ => String::new(),
            };
            format!("{word}: {how}, checked just now{wrapper}")
        }
        Reason::Promised => "promised: it waits for its turn, checked just now".to_owned(),
        Reason::Lease => format!("lease: {}", expiry(status)),
        Reason::UnknownVersion => "held until broken".to_owned(),
        Reason::InTheMaking => "less than 10 s old".to_owned(),
        Reason::Unproven(doubt) => format!("unproven: {}", doubt_in_words(doubt)),
        Reason::Aged(doubt) => format!(
            "zombie: older than its maximum age, and {}",
            doubt_in_words(doubt)
        ),
        Reason::Dead if verdict.proof == Proof::KernelLockGone => {
            "zombie: nobody keeps its kernel lock any more".to_owned()
        }
        Reason::Dead => "zombie: no process has its pid any more".to_owned(),
        Reason::Reused => "zombie: its pid belongs to another process now".to_owned(),
        Reason::Rebooted => "zombie: the machine has started anew since".to_owned(),
        Reason::Expired => format!("zombie: {}", expiry(status)),
        Reason::Corrupt => "zombie: empty or unreadable, and unchanged for 10 s".to_owned(),
        Reason::Finished => "left by a finished `run --exec`".to_owned(),
        Reason::NoFile | Reason::NotALock(_) => return None,
    };
    Some(text)
}

/// One word for a table.
pub(crate) fn state(status: &Status) -> &'static str {
    match status.verdict.state {
        State::Free => "free",
        State::Held => match status.verdict.reason {
            Reason::Unproven(_) | Reason::InTheMaking => "held?",
            _ => "held",
        },
        State::Overdue => "overdue",
        State::Zombie => "zombie",
        State::NotALock => "not a lock",
    }
}

/// "process 4242 (backup.sh)", "a lease of runner-7"
pub(crate) fn holder(status: &Status, record: &Record) -> String {
    let mut text = if record.is_lease() {
        "a lease".to_owned()
    } else {
        let pid = status.verdict.pid.unwrap_or(record.pid);
        process(pid.get(), &record.command)
    };
    if let Some(owner) = &record.owner {
        let _ = write!(text, " of {}", escape(owner));
    }
    text
}

/// "process 77 (job.sh) on db1, who waits since 02:00:07"
pub(crate) fn waiting(waiter: &Waiter) -> String {
    let on = match &waiter.hostname {
        Some(host) => format!(" on {}", escape(host)),
        None => String::new(),
    };
    format!(
        "{}{on}, who waits since {}",
        process(waiter.pid.get(), &waiter.command),
        local(waiter.since)
    )
}

/// "process 4242 (backup.sh)"
pub(crate) fn process(pid: u32, command: &[String]) -> String {
    match program(command) {
        Some(program) => format!("process {pid} ({})", escape(program)),
        None => format!("process {pid}"),
    }
}

/// The name of what runs: for an interpreter the script, as the kernel shows `#!` scripts as
/// arguments of theirs.
fn program(command: &[String]) -> Option<&str> {
    const INTERPRETERS: [&str; 14] = [
        "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "python", "python3", "perl",
        "ruby", "node", "env",
    ];
    let first = command.first()?;
    let name = base_name(first).trim_start_matches('-');
    match command.get(1) {
        Some(script) if INTERPRETERS.contains(&name) && !script.starts_with('-') => {
            Some(base_name(script))
        }
        _ => Some(name).filter(|name| !name.is_empty()),
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// "since 02:00:07 (3h 12m ago)"
fn since(record: &Record) -> String {
    let at = record.acquired_at;
    let ago = Utc::now().signed_duration_since(at).to_std();
    match ago {
        Ok(ago) => format!("since {} ({} ago)", local(at), span(ago)),
        Err(_) => format!("since {} (in the future)", local(at)),
    }
}

/// How long it has been held: since it was taken, not since the last sign of life.
pub(crate) fn age(status: &Status) -> Option<Duration> {
    let since = status
        .record
        .as_ref()
        .map(|record| Utc::now().signed_duration_since(record.acquired_at));
    since
        .and_then(|since| since.to_std().ok())
        .or(status.verdict.age)
}

fn fate(status: &Status) -> Option<&'static str> {
    match status.verdict.reason {
        Reason::Dead | Reason::Reused => Some("which is gone"),
        Reason::Expired => Some("which has expired"),
        Reason::Rebooted => Some("before the machine started anew"),
        Reason::Unproven(Doubt::OtherHost) => Some("which cannot be checked from here"),
        Reason::Aged(_) => Some("too long ago to be believed"),
        _ => None,
    }
}

fn doubt_in_words(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::OtherHost => "its process is on another host",
        Doubt::OtherPidNamespace => "its process is in another pid namespace (a container)",
        Doubt::UnknownBoot => "whether the machine has started anew since cannot be told here",
        Doubt::NoIdentity => "a process has its pid, but was started later",
        Doubt::NoAnswer => "the system does not tell whether its process is there",
    }
}

fn expiry(status: &Status) -> String {
    match status.verdict.expires_at {
        Some(at) => match at.signed_duration_since(Utc::now()).to_std() {
            Ok(left) => format!("expires at {} (in {})", local(at), span(left)),
            Err(_) => format!("expired at {}", local(at)),
        },
        None => "never expires".to_owned(),
    }
}

/// Time of day, with the date if that is not today's.
pub(crate) fn local(at: DateTime<Utc>) -> String {
    let at = at.with_timezone(&Local);
    let format = if at.date_naive() == Local::now().date_naive() {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    at.format(format).to_string()
}

/// A duration by its two largest units: "3h 12m".
pub(crate) fn span(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    let Some(first) = UNITS.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    parts.join(" ")
}

/// Kinds in JSON and tables.
pub(crate) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Run => "run",
        Kind::Job => "job",
        Kind::Lease => "lease",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_by_its_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_661, "1h 1m"),
            (11_520, "3h 12m"),
            (90_000, "1d 1h"),
            (86_401, "1d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(escape("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(escape("\u{202e}gnp.exe"), "\\u{202e}gnp.exe");
        assert_eq!(escape("Übung ✓"), "Übung ✓");
    }

    #[test]
    fn a_script_is_named_rather_than_its_interpreter() {
        let named = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            program(&command).map(ToOwned::to_owned)
        };
        assert_eq!(
            named(&["/bin/bash", "./deploy.sh"]).as_deref(),
            Some("deploy.sh")
        );
        assert_eq!(named(&["-bash"]).as_deref(), Some("bash"));
        assert_eq!(named(&["bash", "-c", "x"]).as_deref(), Some("bash"));
        assert_eq!(named(&["/usr/bin/sleep", "9"]).as_deref(), Some("sleep"));
        assert_eq!(named(&[]), None);
    }
}
