//! Removes what finished and dead holds left.

use std::time::Duration;

use super::journal::result_of;
use super::lock::Lock;
use super::options::Options;
use super::unfinished::settle;
use crate::backend::{Change, Entry, Patience, sleep_for};
use crate::decision::ownership::may_clean_up;
use crate::decision::verdict::{Reason, State};
use crate::decision::{Asker, Request, Revision};
use crate::error::{Error, Result};
use crate::journal_line::{Action, Line};
use crate::open_file::Judged;
use crate::status::Status;

/// How long a cleanup waits for what may be removed soon. The rest is left.
const LONGEST_CLEANUP: Duration = Duration::from_mins(2);

/// Sleeps until all of them may be removed that this process has only now found dead on another machine, and that will
/// be soon.
pub(super) fn sleep_until_ripe<'a>(holds: impl Iterator<Item = &'a Status>) {
    let ripe_in = holds.filter_map(|hold| hold.verdict.takeable_in);
    if let Some(ripe_in) = ripe_in.filter(|left| *left <= LONGEST_CLEANUP).max() {
        sleep_for(Patience::of(ripe_in));
    }
}

/// Result of a cleanup.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Cleanup {
    /// Removed, or with `dry_run` what would be.
    pub removed: Vec<Status>,
    /// Zombies that stay: no takeover is safe on this filesystem, or, with `dry_run`, the caller may not remove
    /// them.
    pub left: Vec<Status>,
    /// Errors: what could not be read or removed.
    pub errors: Vec<Error>,
    /// Errors that did not prevent a removal, such as those of the journal, and those of the listing.
    pub warnings: Vec<Error>,
}

/// A record, and whether it was removed; `false`: it does not count as over. `None`: there is none.
type Removal = Option<(Judged, bool)>;

impl Cleanup {
    /// Removes what is to be removed of one lock.
    pub(super) fn add(
        &mut self,
        status: Status,
        dry_run: bool,
        remove: impl FnOnce(&mut Self) -> Result<()>,
    ) {
        let takeable_in = status.verdict.takeable_in.unwrap_or_default();
        if takeable_in > LONGEST_CLEANUP || !status.is_available() {
            if status.verdict.state == State::Zombie {
                self.left.push(status);
            }
            return;
        }
        if dry_run && status.may_be_removed() {
            self.removed.push(status);
        } else if dry_run {
            self.left.push(status);
        } else if let Err(error) = remove(self) {
            self.errors.push(error);
        }
    }
}

impl Lock {
    /// What [`Store::cleanup`](crate::Store::cleanup) does, for this lock alone. That its file is not a lock file is
    /// one of the errors in the result.
    ///
    /// # Errors
    /// The lock file cannot be read. What could not be removed is in the result.
    pub fn cleanup(&self, dry_run: bool, max_age: Option<Duration>) -> Result<Cleanup> {
        self.ensure_changeable()?;
        let mut cleanup = Cleanup::default();
        let status = self.inspect(max_age)?;
        if let Reason::NotALock(what) = status.verdict.reason {
            let path = status.path;
            cleanup.errors.push(Error::NotALock { path, what });
            return Ok(cleanup);
        }
        let holds = || status.all_holds();
        if !dry_run {
            sleep_until_ripe(holds());
        }
        for hold in holds().filter(|hold| hold.verdict.reason != Reason::NoFile) {
            cleanup.add(hold.clone(), dry_run, |cleanup| {
                self.remove_zombie(hold.revision.as_ref(), max_age, cleanup)
            });
        }
        Ok(cleanup)
    }

    /// Removes what is left of a finished or dead hold, if it is still there.
    pub(super) fn remove_zombie(
        &self,
        shown: Option<&Revision>,
        max_age: Option<Duration>,
        cleanup: &mut Cleanup,
    ) -> Result<()> {
        let Some(shown) = shown else {
            return Ok(());
        };
        let mut request = self.request(&Options::judging(max_age), Asker::Caller);
        let try_to_remove = |request: &Request| -> Result<Removal> {
            let updated = self.store.update(Entry::EXISTING, |snapshot| {
                let Some(own) = self.shown(request, snapshot, shown)? else {
                    return Ok((Change::Nothing, None));
                };
                let is_over = may_clean_up(&own.verdict, snapshot.takeover_is_safe());
                let change =
                    is_over.then(|| Change::Remove(own.clone(), self.lines_of_removed(&own)));
                Ok((change.unwrap_or(Change::Nothing), Some((own, is_over))))
            })?;
            Ok(updated.flatten())
        };
        let removal = settle(&mut request, try_to_remove, |removal| match removal {
            Some((own, false)) => Some(std::slice::from_ref(own)),
            _ => None,
        })?;
        if let Some((own, true)) = removal {
            self.note_removed(&own, cleanup);
        }
        Ok(())
    }

    /// The lines about a hold that is removed because it is over.
    pub(super) fn lines_of_removed(&self, own: &Judged) -> Vec<Line> {
        let is_noted = own.verdict.state == State::Zombie;
        self.lines(own, is_noted.then_some(Action::Cleanup), result_of)
    }

    /// Notes what was removed.
    pub(super) fn note_removed(&self, own: &Judged, cleanup: &mut Cleanup) {
        let was = self.status(own);
        let is_noted = was.verdict.state == State::Zombie;
        let warning = is_noted.then(|| self.note(Action::Cleanup, &was, None));
        let of_history = self.note_found(&was);
        cleanup.warnings.extend(warning.flatten().or(of_history));
        cleanup.removed.push(was);
    }
}
