//! Ends a hold of the caller, or extends it.

use std::cmp::Reverse;
use std::time::Duration;

use super::hold::renewed;
use super::journal::result_of;
use super::lock::Lock;
use super::options::Options;
use super::unfinished::settle;
use crate::backend::{Change, Entry};
use crate::decision::ownership::{Caller, May, is_lost, may_release, may_renew};
use crate::decision::verdict::State;
use crate::decision::{Asker, Request};
use crate::error::{Error, Result};
use crate::format::{MEMORY_TTL, MEMORY_TTL_LIMIT};
use crate::journal_line::HoldResult;
use crate::open_file::Judged;
use crate::record::{Format, Record};
use crate::status::Status;

/// Result of a release.
#[derive(Debug)]
#[must_use]
pub enum Release {
    /// Released; what it was.
    Done(Box<Status>),
    /// It had lost one of its locks before, whose record was removed or replaced. The others are released.
    Lost(Box<Status>),
    /// It was free.
    Free,
    /// Another holds it.
    NotYours(Box<Status>),
    /// A live `run` holds it until its command exits.
    HeldByRun(Box<Status>),
}

/// Result of a renewal.
#[derive(Debug)]
#[must_use]
pub enum Renewal {
    /// Renewed; as it is now.
    Done(Box<Status>),
    /// There is nothing to renew.
    Nothing(Box<Status>),
    /// It has lost one of its locks, whose record was removed or replaced. The others are left.
    Lost(Box<Status>),
    /// Another holds it.
    NotYours(Box<Status>),
    /// A live `run` renews it.
    HeldByRun(Box<Status>),
}

/// One attempt to release or renew: the decision, and the record that it was about.
type Tried = (May, Option<Judged>);

const NOTHING: Tried = (May::Nothing, None);

impl Lock {
    /// Releases a hold of `caller`.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn release(&self, caller: &Caller) -> Result<Release> {
        self.ensure_changeable()?;
        let mut request = self.request(&Options::new(), Asker::Caller);
        loop {
            let (may, own) = settle(
                &mut request,
                |request| self.try_release(caller, request),
                |(may, own)| match may {
                    May::Go | May::Lost => None,
                    _ => Some(own.as_slice()),
                },
            )?;
            let Some(own) = own else {
                return Ok(Release::Free);
            };
            let status = Box::new(self.status(&own));
            if matches!(may, May::Go | May::Lost) {
                let _ = self.note_end(&status, result_of_release(may, &status));
            }
            return Ok(match may {
                May::Go if status.verdict.state == State::Free => Release::Free,
                May::Go => Release::Done(status),
                May::Lost => Release::Lost(status),
                May::Nothing => Release::Free,
                May::NotYours => Release::NotYours(status),
                May::HeldByRun => Release::HeldByRun(status),
                May::Unconfirmed => {
                    self.wait_until_confirmed(&own);
                    continue;
                }
            });
        }
    }

    fn try_release(&self, caller: &Caller, request: &Request) -> Result<Tried> {
        let updated = self.store.update(Entry::EXISTING, |snapshot| {
            let holds = self.holds(request, snapshot)?;
            let holds = holds
                .into_iter()
                .map(|own| (may_release(caller, &own, snapshot), own));
            // What is left of a dead one can wait.
            let rank = |may, own: &Judged| match may {
                May::Go if !own.verdict.is_live() => 4,
                may => rank(may),
            };
            let Some((may, own)) = first_by(holds, rank) else {
                return Ok((Change::Nothing, NOTHING));
            };
            self.ensure_lock(&own)?;
            let may = match may {
                May::Go if is_lost(&own, snapshot)? => May::Lost,
                may => may,
            };
            Ok(match may {
                May::Go | May::Lost => {
                    let result = |was: &Status| result_of_release(may, was);
                    let lines = self.lines(&own, None, result);
                    (Change::Remove(own.clone(), lines), (may, Some(own)))
                }
                _ => (Change::Nothing, (may, Some(own))),
            })
        })?;
        Ok(updated.unwrap_or(NOTHING))
    }

    /// Extends a lease, or restarts the age of another detached hold; `ttl` changes its time to live.
    /// An expired lease can be renewed as long as it could be acquired.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn renew(&self, caller: &Caller, ttl: Option<Duration>) -> Result<Renewal> {
        self.ensure_changeable()?;
        // Of a file, its record decides.
        if ttl.is_some() && self.is_remote() {
            let is_detached = true;
            let had = self.store.ttl(ttl, is_detached);
            had.map_err(|why_not| self.store.unsupported(why_not))?;
        }
        loop {
            let (may, Some(own)) = self.try_renew(caller, ttl)? else {
                return Ok(Renewal::Nothing(Box::new(self.free())));
            };
            let status = Box::new(self.status(&own));
            return Ok(match may {
                May::Go => {
                    let now = self.inspect(None)?;
                    match status.hold() {
                        // Another caller has ended it meanwhile.
                        Some(hold) => match now.clone().of_hold(hold) {
                            Some(renewed) => Renewal::Done(Box::new(renewed)),
                            None => Renewal::Nothing(Box::new(now)),
                        },
                        None => Renewal::Done(Box::new(now)),
                    }
                }
                May::Nothing => Renewal::Nothing(status),
                May::Lost => Renewal::Lost(status),
                May::NotYours => Renewal::NotYours(status),
                May::HeldByRun => Renewal::HeldByRun(status),
                May::Unconfirmed => {
                    self.wait_until_confirmed(&own);
                    continue;
                }
            });
        }
    }

    fn try_renew(&self, caller: &Caller, ttl: Option<Duration>) -> Result<Tried> {
        let request = self.request(&Options::new(), Asker::Caller);
        let updated = self.store.update(Entry::EXISTING, |snapshot| {
            let mut holds = Vec::new();
            for own in self.holds(&request, snapshot)? {
                self.ensure_lock(&own)?;
                let may = may_renew(caller, &own, &request, snapshot)?;
                holds.push((may, own));
            }
            let Some((may, own)) = first_by(holds, |may, _| rank(may)) else {
                return Ok((Change::Nothing, NOTHING));
            };
            let change = match (may, own.record()) {
                (May::Go, Some(record)) => {
                    check_memory_ttl(record, ttl)?;
                    Change::Renew(own.clone(), Box::new(renewed(&*self.store, record, ttl)))
                }
                _ => Change::Nothing,
            };
            Ok((change, (may, Some(own))))
        })?;
        Ok(updated.unwrap_or(NOTHING))
    }
}

/// How a hold ends that its holder gives back.
fn result_of_release(may: May, was: &Status) -> HoldResult {
    match (may, was.verdict.state) {
        (May::Lost, _) => HoldResult::Lost,
        (_, State::Free | State::Zombie) => result_of(was),
        _ => HoldResult::Released,
    }
}

/// The hold with the lowest rank; of several the latest.
fn first_by(
    holds: impl IntoIterator<Item = (May, Judged)>,
    rank: impl Fn(May, &Judged) -> u8,
) -> Option<(May, Judged)> {
    holds
        .into_iter()
        .min_by_key(|(may, own)| (rank(*may, own), Reverse(own.hold())))
}

/// What comes first of the holds of a lock; 4 is left to `try_release`.
fn rank(may: May) -> u8 {
    match may {
        May::Go => 0,
        May::Unconfirmed => 1,
        May::HeldByRun | May::Lost => 2,
        May::NotYours => 3,
        May::Nothing => 5,
    }
}

fn check_memory_ttl(record: &Record, ttl: Option<Duration>) -> Result<()> {
    if record.format == Format::Memory && ttl.is_some_and(|ttl| ttl > MEMORY_TTL) {
        return Err(Error::Unsupported {
            format: Format::Memory,
            what: MEMORY_TTL_LIMIT,
        });
    }
    Ok(())
}
