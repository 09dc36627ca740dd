//! Whether a request comes from the holder of a hold that exists: a caller that acquires once more what it
//! has, or that runs inside of it.

use super::answer::Judged;
use super::liveness::{belongs_to_acquirer, has_ended, is_reachable};
use super::request::{Asker, Key, Request, Want};
use super::snapshot::Snapshot;
use super::verdict::Reason;
use crate::error::Result;
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::record::{Kind, Record, is_same_owner};

/// Whether a request asks for a hold of the same kind: for its locks, all of them and no others, and not for
/// another owner. Which process it is to follow is not compared.
fn asks_for_same(request: &Request, held: &Key, record: &Record) -> bool {
    let has = |want: &Want| {
        want.name == held.name || record.names.iter().any(|name| name == want.name.as_str())
    };
    let is_wanted = |want: &Want| held.index.is_some() == want.mode.is_shared() && has(want);
    let is_same_kind = match request.asker {
        Asker::Caller | Asker::Derived(_) => false,
        Asker::Process(_) => record.kind == Kind::Process && !request.is_for_another_owner(record),
        Asker::Lease => {
            record.kind == Kind::Lease
                && !record.is_kept()
                && is_same_owner(request.owner.as_deref(), record.owner.as_deref())
        }
    };
    is_same_kind
        && request.wants.len() == record.all_names().count()
        && request.wants.iter().all(is_wanted)
}

/// Whether the same holder asks again for its detached hold.
pub(super) fn is_same_hold<H>(request: &Request, judged: &Judged<H>) -> bool {
    let Some(record) = judged.record() else {
        return false;
    };
    judged.verdict.is_live()
        && record.is_confirmed()
        && asks_for_same(request, &judged.found.key, record)
        && match request.asker {
            // With the start, or a reused PID would pass for the holder; and seen from here, or one of
            // another PID namespace would.
            Asker::Process(process) => {
                record.live.process() == Some(process) && judged.verdict.pid_alive == Some(true)
            }
            _ => true,
        }
}

/// Whether a hold of several locks still has all of them: one whose record was removed or replaced is
/// lost.
pub(super) fn is_whole<H>(judged: &Judged<H>, snapshot: &dyn Snapshot<H>) -> Result<bool> {
    let names = judged.record().map_or(&[][..], |record| &record.names);
    // They may be anything, if another program wrote them.
    let names = names.iter().filter_map(|name| LockName::new(name).ok());
    for name in names.filter(|name| !name.is_path()) {
        let found = match judged.found.key.index {
            None => snapshot.exclusive(&name)?.into_iter().collect(),
            Some(_) => snapshot.shared(&name)?,
        };
        let own = &judged.found.revision;
        if !found.iter().any(|found| found.revision == *own) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether it has to be known first what becomes of a hold that is not confirmed yet: it may be the same
/// holder's, or is to be replaced.
pub(crate) fn awaits_confirmation<H>(request: &Request, judged: &Judged<H>) -> bool {
    // Which process it will follow is not on record yet.
    let may_be_same = |record| asks_for_same(request, &judged.found.key, record);
    judged.confirmed_within().is_some()
        && (request.replaces(judged) || judged.record().is_some_and(may_be_same))
}

impl Request {
    /// Whether the request names an owner that is not the one on record. Two sessions may name one process.
    fn is_for_another_owner(&self, record: &Record) -> bool {
        let asked = self.owner.as_deref().filter(|owner| !owner.is_empty());
        let is_label = record.format.has_labels() || !record.format.has_owners();
        asked.is_some() && !is_label && !is_same_owner(asked, record.owner.as_deref())
    }

    /// Whether a hold ends only after the request has: the caller runs under it, or waits below a process of that run,
    /// or the process that it follows is the one that asks, or an ancestor of the caller.
    pub(super) fn runs_inside<H>(&self, snapshot: &dyn Snapshot<H>, judged: &Judged<H>) -> bool {
        let is_locked_by_others = judged.verdict.reason == Reason::Locked;
        let Some(record) = judged.record().filter(|_| !is_locked_by_others) else {
            let lockers = judged.found.facts.lockers.iter();
            let mut lockers = lockers.copied().map(ProcessId::by_pid_alone);
            return lockers.any(|locker| snapshot.descends_from(locker));
        };
        if record.is_kept() {
            // What its command has left behind can wait for the end of the time.
            return false;
        }
        if record.hold != 0 && self.inside.contains(&record.hold) {
            return true;
        }
        if record.kind == Kind::Run {
            let is_to_be_found = self.waits_beside.is_some_and(|known| known != record.hold);
            return is_to_be_found && runs_below(snapshot, judged);
        }
        let is_alive = judged.verdict.pid_alive == Some(true);
        let Some(process) = record
            .live
            .process()
            .filter(|_| is_alive && record.is_confirmed())
        else {
            return false;
        };
        // Under another owner label another session may release it meanwhile.
        let asks_for_itself =
            |process| self.asker == Asker::Process(process) && !self.is_for_another_owner(record);
        let belongs_to =
            |process: ProcessId| asks_for_itself(process) || snapshot.descends_from(process);
        // Another part of the same script, which is still running, can release it.
        belongs_to_acquirer(record, belongs_to, |process| {
            has_ended(process, &judged.found.facts)
        }) && belongs_to(process)
    }
}

/// Whether the caller descends from a process that keeps a hold, whatever its environment says: that of a
/// command may have been cleared, as by sudo(8).
#[cold]
pub(super) fn runs_below<H>(snapshot: &dyn Snapshot<H>, judged: &Judged<H>) -> bool {
    judged.record().is_some_and(|record| {
        let is_here = match (judged.found.facts.life, &record.origin) {
            (None, _) => judged.verdict.pid_alive == Some(true),
            // Whether it is alive is not told by its processes, which may be those of another machine.
            (Some(_), Some(origin)) => is_reachable(origin, &snapshot.observer()),
            (Some(_), None) => false,
        };
        let is_above = |process| match record.kind {
            Kind::Run => snapshot.is_started_by(process, record),
            _ => snapshot.descends_from(process),
        };
        // What its command has started is below its wrapper, too, as long as that lives.
        is_here
            && match judged.verdict.wrapper_alive {
                Some(true) => record.writer().is_some_and(is_above),
                _ => record.processes().any(is_above),
            }
    })
}
