//! Processes: of holders, of waiters, and of those that have locked a file.

use std::fmt::Write as _;

use super::on_host;
use super::time::{ShowTime, since};
use crate::decision::verdict::Reason;
use crate::status::{Locker, Status, Waiter};
use crate::terminal::escape;

/// "process 4242 (backup.sh)"
pub fn process(pid: u32, command: &[String]) -> String {
    format!("process {}", process_in_brief(pid, command))
}

/// "4242 (backup.sh)"
pub fn process_in_brief(pid: u32, command: &[String]) -> String {
    match program(command) {
        Some(program) => format!("{pid} ({})", escape(program)),
        None => pid.to_string(),
    }
}

/// "process 77 (job.sh) on db1"
pub fn process_on_host(waiter: &Waiter) -> String {
    let process = match &waiter.program {
        Some(program) => process(program.pid.get(), &program.command),
        None => process(waiter.pid.get(), &waiter.command),
    };
    on_host(process, waiter.hostname.as_deref())
}

/// Who has locked a file whose record does not say it.
pub(super) fn lockers(status: &Status, time: ShowTime) -> String {
    if status.lockers.is_empty() {
        return "a process that cannot be seen from here".to_owned();
    }
    let lockers = status.lockers.iter().map(|one| locker(one, time));
    lockers.collect::<Vec<_>>().join(" and ")
}

/// The processes that have locked the file, in brief, if no record says who holds the lock: "process 4242 (backup.sh)".
pub fn lockers_in_brief(status: &Status) -> Option<String> {
    let lockers = lockers_of(status).iter();
    let lockers: Vec<String> = lockers
        .map(|one| process(one.pid.get(), &one.command))
        .collect();
    (!lockers.is_empty()).then(|| lockers.join(" and "))
}

/// Who holds a lock of which no record says it.
pub fn lockers_of(status: &Status) -> &[Locker] {
    let is_unnamed = status.record.is_none() || status.verdict.reason == Reason::Locked;
    if is_unnamed { &status.lockers } else { &[] }
}

/// "process 4242 (backup.sh) of user root, running since 02:00:07 (3h 12m ago)"
fn locker(locker: &Locker, time: ShowTime) -> String {
    let mut text = process(locker.pid.get(), &locker.command);
    if let Some(user) = &locker.user {
        let _ = write!(text, " of user {}", escape(user));
    }
    if let Some(started) = locker.started {
        let _ = write!(text, ", running {}", since(started, time));
    }
    text
}

/// The name of the program. For an interpreter it is the script: the kernel shows a `#!` script as
/// an argument of its interpreter.
pub fn program(command: &[String]) -> Option<&str> {
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

/// The last part of a path, which may be one of Windows in a record that is read elsewhere.
fn base_name(path: &str) -> &str {
    let of_windows = path.get(1..3) == Some(":\\");
    let is_separator = |c| c == '/' || (of_windows && c == '\\');
    path.rsplit(is_separator).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_named_instead_of_its_interpreter() {
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
        assert_eq!(
            named(&["C:\\Program Files\\backup.exe"]).as_deref(),
            Some("backup.exe")
        );
        assert_eq!(named(&["/a/C:\\b"]).as_deref(), Some("C:\\b"));
        assert_eq!(named(&[]), None);
    }
}
