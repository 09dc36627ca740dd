//! A file that is not a lock file, at the path of a lock.

use std::path::PathBuf;

use chrono::Utc;

use super::lock::Lock;
use crate::decision::liveness::is_unchanged;
use crate::decision::verdict::{Evidence, Reason, Verdict};
use crate::error::{Error, Result};
use crate::journal_line::Action;
use crate::status::Status;

/// A file that was not a lock file, and was moved out of the way.
#[derive(Debug)]
#[non_exhaustive]
pub struct MovedAside {
    /// Where it is now.
    pub to: PathBuf,
    /// Errors that did not prevent the move.
    pub warnings: Vec<Error>,
}

impl Lock {
    /// Adapts a status to a path that is meant for this lock alone: a file that is not a lock file counts as
    /// a damaged one, and as incomplete while its program may still be writing it. `moves_aside`: whether the
    /// caller moves a damaged one aside unasked when it acquires the lock.
    #[must_use]
    pub fn at_own_place(mut status: Status, moves_aside: bool) -> Status {
        // No program writes its lock into a directory or a device, which have no such time.
        let seen = (status.verdict.reason, status.modified);
        let (Reason::NotALock(what), Some(modified)) = seen else {
            return status;
        };
        let reason = if is_unchanged(modified, Utc::now()) {
            Reason::Malformed(what)
        } else {
            Reason::Incomplete
        };
        status.verdict = Verdict::new(reason, Evidence::Clock);
        status.is_moved_aside = moves_aside;
        status
    }

    /// Moves a file that is not a lock file aside, in its directory, so that the lock can be taken. It
    /// is never removed. `None`: it is not a regular file, or has become a lock file, or it changed
    /// less than 10 s ago, so that its program may still be writing it.
    ///
    /// # Errors
    /// The store cannot be used, or the file cannot be renamed.
    pub fn move_aside(&self) -> Result<Option<MovedAside>> {
        self.ensure_changeable()?;
        let was = self.inspect(None)?;
        let Some(to) = self.store.move_aside(self.name())? else {
            return Ok(None);
        };
        let warnings = self.note(Action::Break, &was, None).into_iter().collect();
        Ok(Some(MovedAside { to, warnings }))
    }
}
