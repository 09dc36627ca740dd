//! A file that is not a lock file, at the path where a profile has its only lock.

use std::path::Path;
use std::time::{Duration, Instant};

use onehold::status::Reason;
use onehold::{Attempt, Blocked, Error, Status};

use crate::arguments::args::{OnZombie, WaitLimit};
use crate::output;
use crate::taking::Taking;
use crate::taking::prompt::confirm;
use crate::words;

/// Limit of attempts: each finds something other than the one before, or waits a while.
const MAX_ATTEMPTS: usize = 1000;

/// How often a file is read again that may become a lock file.
const YOUNG_FILE_INTERVAL: Duration = Duration::from_millis(100);

/// Moves such a file aside between the attempts to take its lock.
pub(crate) struct Aside {
    limit: Option<WaitLimit>,
    /// The rest of the limit, for the next attempt.
    pub(crate) left: Option<WaitLimit>,
    began: Instant,
    attempts: usize,
}

impl Aside {
    pub(crate) fn new(limit: Option<WaitLimit>) -> Self {
        Self {
            limit,
            left: limit,
            began: Instant::now(),
            attempts: 0,
        }
    }

    /// The result of an attempt, if it counts. `None`: it is to be tried again, because a file was moved aside that
    /// is not a lock file, or was too young to tell.
    pub(crate) fn settled<T>(
        &mut self,
        taking: Taking<'_>,
        attempted: onehold::Result<Attempt<T>>,
    ) -> onehold::Result<Option<Attempt<T>>> {
        match attempted {
            // Those of a shared hold are in onehold's own directory beside it.
            Err(Error::NotALock { path, .. })
                if self.attempts < MAX_ATTEMPTS
                    && taking.session.is_fixed_path(taking.lock)
                    && path == taking.lock.path() => {}
            attempted => return attempted.map(Some),
        }
        self.attempts += 1;
        if let Some(WaitLimit::AtMost(limit)) = self.limit {
            self.left = Some(WaitLimit::AtMost(
                limit.saturating_sub(self.began.elapsed()),
            ));
        }
        self.left = self.left.filter(|_| self.attempts < MAX_ATTEMPTS);
        let Some(status) = move_aside(taking)? else {
            return Ok(None);
        };
        // Its program may still be writing it.
        if status.verdict.reason == Reason::Incomplete && waits(self.left) {
            std::thread::sleep(YOUNG_FILE_INTERVAL);
            return Ok(None);
        }
        let waited = waits(self.limit).then(|| self.began.elapsed());
        Ok(Some(Attempt::Blocked(Blocked::new(status, waited))))
    }
}

fn waits(limit: Option<WaitLimit>) -> bool {
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
        if session.tells() {
            output::eprint(&format!("onehold: {}", moved_text(&status, &moved.to)));
        }
        output::warn(moved.warnings.iter().map(words::error_chain));
    }
    Ok(None)
}

/// The message about a file that was moved aside.
pub(crate) fn moved_text(status: &Status, to: &Path) -> String {
    let (name, to) = (words::quoted(&status.name), words::path_text(to));
    format!("moved the file of {name}, which was not a lock, to {to}")
}
