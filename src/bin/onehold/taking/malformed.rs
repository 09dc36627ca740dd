//! A file that is not a lock file, at the path where a profile has its only lock.

use std::path::Path;
use std::time::{Duration, Instant};

use onehold::status::Reason;
use onehold::{Attempt, Blocked, Error, Status};

use crate::arguments::args::{OnZombie, WaitLimit};
use crate::taking::{Taking, confirm};
use crate::{output, words};

/// Limit of attempts: each finds something other than the one before, or waits a while.
const MAX_ATTEMPTS: usize = 1000;

/// How often a file is read again that may become a lock file.
const YOUNG_FILE_INTERVAL: Duration = Duration::from_millis(100);

/// Calls `attempt`, also beside such a file.
pub(crate) fn attempt_beside<T>(
    taking: Taking<'_>,
    limit: Option<WaitLimit>,
    attempt: impl Fn(Option<WaitLimit>) -> onehold::Result<Attempt<T>>,
) -> onehold::Result<Attempt<T>> {
    let began = Instant::now();
    match attempt(limit) {
        Err(error) if is_why(taking, &error) => take_beside(taking, limit, began, attempt),
        attempted => attempted,
    }
}

/// Whether that is why an attempt has failed.
pub(crate) fn is_why(taking: Taking<'_>, error: &Error) -> bool {
    // Those of a shared hold are in onehold's own directory beside it.
    matches!(error, Error::NotALock { path, .. }
        if taking.session.is_fixed_path(taking.lock) && *path == taking.lock.path())
}

/// Repeats an attempt after such a file was moved aside, or as long as it is too young to tell. `began`: the first
/// attempt, which has failed.
#[cold]
fn take_beside<T>(
    taking: Taking<'_>,
    limit: Option<WaitLimit>,
    began: Instant,
    attempt: impl Fn(Option<WaitLimit>) -> onehold::Result<Attempt<T>>,
) -> onehold::Result<Attempt<T>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let left = match limit {
            Some(WaitLimit::AtMost(limit)) => {
                Some(WaitLimit::AtMost(limit.saturating_sub(began.elapsed())))
            }
            limit => limit,
        };
        let left = left.filter(|_| attempts < MAX_ATTEMPTS);
        if let Some(status) = move_aside(taking)? {
            // Its program may still be writing it.
            if status.verdict.reason != Reason::Incomplete || !waits(left) {
                let waited = waits(limit).then(|| began.elapsed());
                return Ok(Attempt::Blocked(Blocked::new(status, waited)));
            }
            std::thread::sleep(YOUNG_FILE_INTERVAL);
        }
        match attempt(left) {
            Err(error) if attempts < MAX_ATTEMPTS && is_why(taking, &error) => {}
            attempted => return attempted,
        }
    }
}

/// Whether somebody who wants this waits for what is held.
pub(crate) fn waits(limit: Option<WaitLimit>) -> bool {
    limit.is_some_and(|limit| limit != WaitLimit::AtMost(Duration::ZERO))
}

/// What is done about a damaged file. It may be data that is needed, so `--on-zombie take` alone does not
/// move it: only a profile that takes zombies moves it unasked.
pub(crate) fn rule(taking: Taking<'_>) -> OnZombie {
    match taking.typed.on_zombie {
        Some(OnZombie::Fail) => OnZombie::Fail,
        None | Some(OnZombie::Take) if taking.session.config.settings.takes_zombies() => {
            OnZombie::Take
        }
        _ => OnZombie::Ask,
    }
}

/// Moves the file aside if the profile takes zombies, or the user agrees. `None`: it is no longer in the way, or
/// may be a lock file by now.
fn move_aside(taking: Taking<'_>) -> onehold::Result<Option<Status>> {
    let (session, typed, lock) = (taking.session, taking.typed, taking.lock);
    let status = session.at_fixed_path(lock.inspect(None)?);
    match status.verdict.reason {
        Reason::Malformed(_) => {}
        Reason::Incomplete => return Ok(Some(status)),
        Reason::NotALock(what) => {
            let path = status.path;
            return Err(Error::NotALock { path, what });
        }
        _ => return Ok(None),
    }
    let agrees = match rule(taking) {
        OnZombie::Take => true,
        OnZombie::Ask => {
            typed.yes || confirm(session, &status, &[], "Move the file aside?", "--yes")
        }
        OnZombie::Fail => false,
    };
    if !agrees {
        return Ok(Some(status));
    }
    if let Some(moved) = lock.move_aside()? {
        output::tell(session, &moved_text(&status, &moved.to));
        output::warn(moved.warnings.iter().map(words::error_chain));
    }
    Ok(None)
}

/// The message about a file that was moved aside.
pub(crate) fn moved_text(status: &Status, to: &Path) -> String {
    let (name, to) = (words::quoted(&status.name), words::path_text(to));
    format!("moved the file of {name}, which was not a lock, to {to}")
}
