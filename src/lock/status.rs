//! The public status of a lock.

use std::path::PathBuf;

use chrono::{TimeDelta, Utc};

use crate::backend::Backend;
use crate::decision::Key;
use crate::decision::verdict::{Reason, State, Uncertainty, Verdict};
use crate::files::provenance;
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::Judged;
use crate::record::{Content, Record, cut_command};
use crate::status::{Locker, Status};
use crate::sys::process;

/// The status of a lock by its record, without a copy of that.
pub(super) fn without_record(store: &dyn Backend, judged: &Judged) -> Status {
    let is_kernel_lock = judged.found.content == Content::KernelLock;
    // Neither can be replaced.
    let is_record = judged.verdict.state != State::NotALock && !is_kernel_lock;
    let Key { name, index } = &judged.found.key;
    // The readers of flock(1) share one file and have no slots.
    let slot = index.filter(|_| !is_kernel_lock);
    let key = Key::of(name, slot);
    let lockers = &judged.found.facts.lockers;
    let lockers: Vec<Locker> = lockers.iter().copied().filter_map(locker).collect();
    // Who made a file need not be who has locked it.
    let uid = if is_kernel_lock || judged.verdict.reason == Reason::Locked {
        lockers.first().and_then(|locker| locker.uid)
    } else {
        let open = judged.found.handle.as_ref().filter(|_| is_record);
        open.and_then(|open| open.owner())
    };
    Status {
        slot: key.slot(),
        lockers,
        uid,
        provenance: provenance::of(&judged.found),
        can_take_over: judged.found.facts.shares_kernel_locks,
        revision: is_record.then(|| judged.found.revision.clone()),
        modified: (judged.verdict.state == State::NotALock && judged.found.handle.is_some())
            .then_some(judged.found.facts.modified),
        ..with_verdict(
            store,
            name,
            store.path_of_record(&key),
            judged.verdict.clone(),
        )
    }
}

/// Completes a record that tells no more of its holder than a PID by the program that has this PID now.
#[cold]
pub(super) fn name_program(record: &mut Record, verdict: &Verdict) {
    let may_be_holder = verdict.pid_alive == Some(true)
        || verdict.reason == Reason::Unverified(Uncertainty::PidOnly);
    if let Some(pid) = verdict.pid.filter(|_| may_be_holder) {
        record.command = cut_command(process::command_line(pid));
    }
}

/// A free lock.
pub(super) fn of_free(store: &dyn Backend, name: &LockName) -> Status {
    with_verdict(store, name, store.path_of(name), Verdict::default())
}

/// A status with this verdict, without what only a record has.
pub(super) fn with_verdict(
    store: &dyn Backend,
    name: &LockName,
    path: PathBuf,
    verdict: Verdict,
) -> Status {
    Status {
        name: name.as_str().to_owned(),
        path,
        store: store.path(),
        is_remote: store.is_remote(),
        format: store.format(),
        verdict,
        can_take_over: true,
        ..Status::default()
    }
}

/// `None`: it has ended meanwhile.
fn locker(pid: Pid) -> Option<Locker> {
    let uid = process::user_of(pid)?;
    let command = process::command_line(pid);
    // Last: what has no start has ended by now, and the rest may be missing.
    let began = process::milliseconds_of_start(process::start_ticks(pid)?);
    let now = i64::try_from(process::boottime_milliseconds()).unwrap_or(i64::MAX);
    let ago = began.and_then(|began| TimeDelta::try_milliseconds(now.saturating_sub(began)));
    Some(Locker {
        pid,
        command,
        uid: Some(uid),
        user: Some(process::user_name(uid)),
        started: ago.and_then(|ago| Utc::now().checked_sub_signed(ago)),
    })
}
