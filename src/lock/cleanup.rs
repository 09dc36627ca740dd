//! What a cleanup removed, and what it left.

use crate::decision::verdict::State;
use crate::error::{Error, Result};
use crate::status::Status;

/// How long a cleanup waits for what may be removed soon. The rest is left.
pub(super) const LONGEST_CLEANUP: std::time::Duration = std::time::Duration::from_mins(2);

/// What a cleanup did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Cleanup {
    /// Removed, or with `dry_run` what would be.
    pub removed: Vec<Status>,
    /// Zombies that stay, because no takeover is safe on this filesystem.
    pub left: Vec<Status>,
    /// What did not work.
    pub errors: Vec<Error>,
    /// What did not work beside the removal, such as the journal.
    pub warnings: Vec<Error>,
}

/// What was removed of one lock.
pub(super) struct CleanedUp {
    pub(super) was: Box<Status>,
    pub(super) warnings: Vec<Error>,
}

impl Cleanup {
    /// Removes what is to be removed of one lock.
    pub(super) fn add(
        &mut self,
        status: Status,
        dry_run: bool,
        remove: impl FnOnce() -> Result<Option<CleanedUp>>,
    ) {
        if !status.is_available() {
            if status.verdict.state == State::Zombie {
                self.left.push(status);
            }
            return;
        }
        if status
            .verdict
            .takeable_in
            .is_some_and(|left| left > LONGEST_CLEANUP)
        {
            self.left.push(status);
            return;
        }
        if dry_run {
            self.removed.push(status);
            return;
        }
        match remove() {
            Ok(Some(cleaned)) => {
                self.removed.push(*cleaned.was);
                self.warnings.extend(cleaned.warnings);
            }
            Ok(None) => {}
            Err(error) => self.errors.push(error),
        }
    }
}
