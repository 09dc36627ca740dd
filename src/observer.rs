//! Where this process looks from: boot, machine, PID namespace and host.

use std::sync::OnceLock;

use crate::decision::{Moment, Observer};
use crate::identity::{Incarnation, Origin, Pid, ProcessId};
use crate::record::Record;
use crate::sys::{FileId, ProcessParent, process};

/// Facts about this host that do not change, gathered once.
#[derive(Debug, Default)]
pub(crate) struct HostFacts {
    observer: OnceLock<Observer>,
    /// The instance that this process belongs to, as the operator says.
    instance: Option<String>,
}

impl HostFacts {
    pub(crate) fn of_instance(instance: String) -> Self {
        Self {
            instance: Some(instance),
            ..Self::default()
        }
    }

    pub(crate) fn observer(&self) -> &Observer {
        self.observer.get_or_init(|| {
            let pid_namespace = process::pid_namespace();
            let is_in_container = pid_namespace.is_some_and(process::is_container);
            let has_incarnation = is_in_container || self.instance.is_some();
            let incarnation = has_incarnation.then(|| Box::new(self.incarnation()));
            Observer {
                boot: process::boot_id(),
                machine: process::machine_id(),
                pid_namespace,
                is_in_container,
                hostname: crate::sys::hostname(),
                incarnation,
            }
        })
    }

    #[cold]
    #[inline(never)]
    fn incarnation(&self) -> Incarnation {
        Incarnation {
            init_start: Pid::new(1).and_then(process::start_ticks),
            instance: self.instance.clone(),
        }
    }

    /// What a record written now by this process says of its origin.
    pub(crate) fn origin(&self, store: FileId) -> Origin {
        // First, because what tells our start tells whose /proc it is.
        let start = process::start_ticks(Pid::of_self());
        let observer = self.observer();
        Origin {
            start,
            boot: observer.boot.clone(),
            machine: observer.machine.clone(),
            pid_namespace: observer.pid_namespace,
            incarnation: observer.incarnation.clone(),
            acquired_boottime_ms: process::boottime_milliseconds(),
            store_device: store.device,
            store_inode: store.inode,
        }
    }
}

/// The present.
pub(crate) fn now() -> Moment {
    Moment {
        wall: chrono::Utc::now(),
        boottime_ms: process::boottime_milliseconds(),
    }
}

/// More generations than any real process has; /proc could name a circle while it changes.
const MAX_GENERATIONS: usize = 256;

/// The calling process and its ancestors, its parent second. `None`: the system does not show it.
pub(crate) fn own_ancestry() -> impl Iterator<Item = (Pid, Option<ProcessParent>)> {
    let mut next = Some(Pid::of_self());
    std::iter::from_fn(move || {
        let pid = next?;
        let shown = process::kinship(pid);
        next = shown.and_then(|shown| shown.parent);
        Some((pid, shown))
    })
    .take(MAX_GENERATIONS)
}

/// Whether a process is this command, or each of those from the command down to it does nothing but wait for the next.
#[cold]
pub(crate) fn is_awaited_by(process: Pid, command: ProcessId) -> bool {
    let mut below = process;
    for _ in 0..MAX_GENERATIONS {
        let Some(shown) = process::kinship(below) else {
            return false;
        };
        if below == command.pid {
            return !command.started_at_another_time(shown.start);
        }
        match shown.parent {
            Some(parent) if process::waits_only_for(parent, below) => below = parent,
            _ => return false,
        }
    }
    false
}

/// The wrapper of the `run` with a keeper whose command is this process, or waits for it as above.
#[cold]
pub(crate) fn awaiting_run(process: Pid) -> Option<ProcessId> {
    let mut below = process;
    for _ in 0..MAX_GENERATIONS {
        let parent = process::kinship(below)?.parent?;
        if !process::waits_only_for(parent, below) {
            // A keeper has more to do.
            let pid = process::kinship(parent)?.parent?;
            let start = process::kinship(pid)?.start;
            return Some(ProcessId { pid, start });
        }
        below = parent;
    }
    None
}

/// Whether a process is the first one of the system, and not of a container. It adopts orphans, and every process
/// descends from it.
#[cold]
pub(crate) fn is_first_of_system(pid: Pid) -> bool {
    pid.get() == 1 && !process::pid_namespace().is_some_and(process::is_container)
}

/// Whether the calling process is, or descends from, a process of its own PID namespace. That all processes
/// descend from the first one says nothing.
pub(crate) fn descends_from(process: ProcessId) -> bool {
    descends_from_any(std::iter::once(process))
}

/// The least start of a process that was started for a hold; 0 if it is not known. A process that takes a lock may be
/// much older: it may have been a shell before.
pub(crate) fn least_start_of_work(record: &Record) -> u64 {
    let since = record.origin.as_ref().and_then(|origin| {
        let acquired = process::least_start_after(origin.acquired_boottime_ms);
        Some(origin.start?.max(acquired.unwrap_or(0)))
    });
    since.unwrap_or(0)
}

/// Of a process that the calling one is, or descends from: whether it is that process, or descends from what that has
/// started for this hold.
pub(crate) fn is_started_by(process: ProcessId, record: &Record) -> bool {
    let command = record.live.process().filter(|command| *command != process);
    let mut start_of_child = None;
    for (pid, shown) in own_ancestry().take_while(|(pid, _)| *pid != process.pid) {
        let start = shown.and_then(|shown| shown.start);
        let is_it =
            |command: ProcessId| command.pid == pid && !command.started_at_another_time(start);
        if command.is_some_and(is_it) {
            return true;
        }
        start_of_child = start;
    }
    // What is not the command may have been started just before the hold: starts are in ticks.
    let least = least_start_of_work(record) + if command.is_some() { 2 } else { 0 };
    start_of_child.is_none_or(|start| start >= least)
}

/// Whether that is so of any of these: each ancestor is read once for all of them.
pub(crate) fn descends_from_any(processes: impl Iterator<Item = ProcessId>) -> bool {
    let mut asked: Vec<ProcessId> = processes.collect();
    if asked.is_empty() {
        return false;
    }
    for (pid, shown) in own_ancestry() {
        let start = shown.and_then(|shown| shown.start);
        let is_it =
            |process: &ProcessId| process.pid == pid && !process.started_at_another_time(start);
        if asked.iter().any(is_it) && !is_first_of_system(pid) {
            return true;
        }
        // Its ancestors are older still, also where it was reparented: a subreaper (prctl(2)) is
        // an ancestor from the beginning.
        let is_older = |other: u64| start.is_some_and(|own| own + 1 < other);
        asked.retain(|process| process.pid != pid && !process.start.is_some_and(is_older));
        if asked.is_empty() {
            break;
        }
    }
    false
}
