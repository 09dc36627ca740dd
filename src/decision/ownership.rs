//! What a caller may do to a hold that exists: release, renew, break and clean up.

use super::answer::{Decision, Judged};
use super::decide::decide;
use super::liveness::{belongs_to_acquirer, has_ended};
use super::request::{Asker, Key, Request, Revision, Want};
use super::same_holder::{is_whole, runs_below};
use super::snapshot::Snapshot;
use super::verdict::{Evidence, Reason, State, Verdict};
use crate::error::Result;
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::record::{Format, Kind, Mode, Record, is_same_owner};

/// Identifies the caller of a release or renewal. The hold is the caller's if any field matches.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The number of the hold. If given, only that hold is meant, whatever else matches.
    pub hold: Option<u64>,
    /// The owner that it was acquired with. It shows nothing where [owners are labels](Format::has_labels).
    pub owner: Option<String>,
    /// The numbers of the holds that the caller runs inside of.
    pub inside: Vec<u64>,
}

/// Whether a hold may be released, or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    Go,
    /// It is free; of one to be renewed: it has ended, or another could take it now.
    Nothing,
    /// It has lost one of its locks. The others may be released.
    Lost,
    NotYours,
    /// The wrapper renews it, and releases it when its command exits.
    HeldByRun,
    /// Not decided before the process that acquires it has confirmed it.
    Unconfirmed,
}

impl Caller {
    /// Whether a hold is the caller's. `descends_from`: whether the caller is, or descends from, a
    /// process; `has_ended`: whether a process has ended.
    pub(crate) fn owns_record(
        &self,
        record: &Record,
        verdict: &Verdict,
        descends_from: impl Fn(ProcessId) -> bool,
        has_ended: impl Fn(ProcessId) -> bool,
    ) -> bool {
        let hold = Some(record.hold).filter(|hold| *hold != 0);
        if self.hold.is_some() {
            return self.hold == hold;
        }
        // An expired hold may be renewed by the process that it follows.
        let is_alive = matches!(verdict.reason, Reason::Alive | Reason::Expired)
            && verdict.pid_alive == Some(true);
        (!record.format.has_labels()
            && is_same_owner(self.owner.as_deref(), record.owner.as_deref()))
            || hold.is_some_and(|hold| self.inside.contains(&hold))
            || (is_alive
                && record
                    .processes()
                    .any(|process| Some(process.pid) == verdict.pid && descends_from(process))
                && belongs_to_acquirer(record, descends_from, has_ended))
    }

    /// Whether the caller runs under a live hold, whatever its environment says: what a daemon has inherited
    /// outlives the hold. A lease has no process, so its number or owner has to be given.
    #[cold]
    pub(crate) fn runs_under<H>(&self, judged: &Judged<H>, snapshot: &dyn Snapshot<H>) -> bool {
        let descends_from = |process| snapshot.descends_from(process);
        let Some(record) = judged.record() else {
            let mut lockers = judged.found.facts.lockers.iter();
            return lockers.any(|&pid| descends_from(ProcessId::by_pid_alone(pid)));
        };
        let has_ended = |process| has_ended(process, &judged.found.facts);
        let is_under = if record.is_lease() {
            self.owns_judged(judged, snapshot)
        } else {
            runs_below(snapshot, judged) && belongs_to_acquirer(record, descends_from, has_ended)
        };
        is_under && judged.verdict.is_live() && !record.is_kept()
    }

    fn owns_judged<H>(&self, judged: &Judged<H>, snapshot: &dyn Snapshot<H>) -> bool {
        judged.record().is_some_and(|record| {
            self.owns_record(
                record,
                &judged.verdict,
                |process| snapshot.descends_from(process),
                |process| has_ended(process, &judged.found.facts),
            )
        })
    }

    /// Whether the caller named another hold than this one.
    fn means_another<H>(&self, judged: &Judged<H>) -> bool {
        self.hold.is_some() && self.hold != judged.hold()
    }
}

/// Whether what is to be removed is what is left of a live hold that has lost one of its locks.
pub(crate) fn is_lost<H>(judged: &Judged<H>, snapshot: &dyn Snapshot<H>) -> Result<bool> {
    Ok(judged.verdict.is_live() && !is_whole(judged, snapshot)?)
}

pub(crate) fn may_release<H>(
    caller: &Caller,
    judged: &Judged<H>,
    snapshot: &dyn Snapshot<H>,
) -> May {
    let verdict = &judged.verdict;
    let may_anybody = !caller.means_another(judged) && snapshot.takeover_is_safe();
    // A holder that is known to be dead cannot release it itself.
    let is_dead = is_proved(verdict) && verdict.takeable_in.is_none();
    match verdict.state {
        State::Free if may_anybody => May::Go,
        State::Free => May::Nothing,
        State::Zombie if may_anybody && is_dead => May::Go,
        _ if judged.confirmed_within().is_some() => May::Unconfirmed,
        _ if !caller.owns_judged(judged, snapshot) => May::NotYours,
        _ if is_held_by_run(judged) => May::HeldByRun,
        _ => May::Go,
    }
}

/// Whether a hold may be renewed. An expired one only if it could be acquired now: a relative, or a
/// waiter, may have come in the meantime.
pub(crate) fn may_renew<H: Clone>(
    caller: &Caller,
    judged: &Judged<H>,
    request: &Request,
    snapshot: &dyn Snapshot<H>,
) -> Result<May> {
    if judged.confirmed_within().is_some() {
        return Ok(May::Unconfirmed);
    }
    // Until it is confirmed a detached hold is its writer's, which may not live to hand it over, or is
    // about to write the same bytes, without the guard. And the run of a hold that is kept is over.
    let is_nobodys = judged.record().is_some_and(|record| {
        let is_pending = record.is_ours() && record.is_detached() && !record.is_confirmed();
        is_pending || record.is_kept()
    });
    let expired = judged.verdict.reason == Reason::Expired;
    if is_nobodys || !(judged.verdict.is_live() || expired) {
        return Ok(May::Nothing);
    }
    if !caller.owns_judged(judged, snapshot) {
        return Ok(May::NotYours);
    }
    // A holder of a kernel lock writes its record itself, without the guard: what was read here may
    // be an earlier command of it.
    let writes_itself = judged.verdict.evidence == Evidence::KernelLock;
    if writes_itself || is_held_by_run(judged) {
        return Ok(May::HeldByRun);
    }
    if !is_whole(judged, snapshot)? {
        return Ok(May::Lost);
    }
    if !expired {
        return Ok(May::Go);
    }
    let again = Request {
        wants: wants_of(judged),
        owner: judged.record().and_then(|record| record.owner.clone()),
        asker: Asker::Caller,
        take_zombies: true,
        replace: vec![judged.found.revision.clone()],
        ..request.clone()
    };
    Ok(match decide(&again, snapshot)? {
        Decision::Take { .. } => May::Go,
        _ => May::Nothing,
    })
}

/// The locks of a hold, and how each is held.
fn wants_of<H>(judged: &Judged<H>) -> Vec<Want> {
    let Key { name, index } = &judged.found.key;
    let record = judged.record();
    let mode = match (index, record.map(|record| record.mode)) {
        (None, _) => Mode::Exclusive,
        (Some(_), Some(mode @ Mode::Slots(_))) => mode,
        (Some(_), _) => Mode::Shared,
    };
    let names = record.map_or(&[][..], |record| &record.names);
    let others = names.iter().filter_map(|other| LockName::new(other).ok());
    let others = others.filter(|other| other != name);
    [name.clone()]
        .into_iter()
        .chain(others)
        .map(|name| Want { name, mode })
        .collect()
}

/// Whether a hold is still the one that a person was shown and decided about.
pub(crate) fn may_break<H>(shown: &Revision, judged: &Judged<H>) -> bool {
    judged.found.revision == *shown && judged.verdict.state != State::NotALock
}

/// Whether `cleanup` removes a record.
pub(crate) fn may_clean_up(verdict: &Verdict, takeover_is_safe: bool) -> bool {
    let is_left = verdict.state == State::Zombie || verdict.reason == Reason::Finished;
    is_left && takeover_is_safe && verdict.takeable_in.is_none()
}

/// Whether the holder of a zombie is known to have ended, rather than too old or damaged.
fn is_proved(verdict: &Verdict) -> bool {
    use Reason::{Corrupt, Malformed, TooOld};
    !matches!(verdict.reason, TooOld(_) | Corrupt | Malformed(_))
}

/// Whether the holder is known to have ended, so that nobody has the hold. What has expired may be renewed.
pub(crate) fn is_nobodys(verdict: &Verdict) -> bool {
    verdict.state == State::Zombie && is_proved(verdict) && verdict.reason != Reason::Expired
}

/// A live `run` is released by its wrapper only.
fn is_held_by_run<H>(judged: &Judged<H>) -> bool {
    let is_run = judged.record().is_some_and(|record| {
        // A PID file does not say so, but nothing else locks one of ours.
        let is_locked = judged.verdict.evidence == Evidence::KernelLock;
        record.kind == Kind::Run || (record.format == Format::Pid && is_locked)
    });
    is_run && judged.verdict.is_live()
}
