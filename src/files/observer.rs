//! Where this process looks from: boot, machine, PID namespace and host.

use std::sync::OnceLock;

use crate::decision::{Moment, Observer};
use crate::identity::{Origin, Pid, ProcessId};
use crate::sys::FileId;
use crate::sys::process;

/// Facts about this process and host that do not change, gathered once.
#[derive(Debug, Default)]
pub(crate) struct HostFacts {
    facts: OnceLock<Facts>,
}

#[derive(Debug)]
struct Facts {
    observer: Observer,
    /// The process that asked, and its start.
    own: (Pid, Option<u64>),
}

impl HostFacts {
    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let own = process::own_pid();
            Facts {
                observer: Observer {
                    boot: process::boot_id(),
                    machine: process::machine_id(),
                    pid_namespace: process::pid_namespace(),
                    hostname: crate::sys::hostname(),
                },
                own: (own, process::start_ticks(own)),
            }
        })
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.facts().observer
    }

    /// The start of the calling process, in ticks since boot.
    pub(crate) fn own_start(&self) -> Option<u64> {
        match self.facts().own {
            (pid, start) if pid == process::own_pid() => start,
            // A child forked since.
            _ => process::start_ticks(process::own_pid()),
        }
    }

    /// What a record written now by this process says of its origin.
    pub(super) fn origin(&self, store: FileId) -> Origin {
        let observer = self.observer();
        Origin {
            start: self.own_start(),
            boot: observer.boot.clone(),
            machine: observer.machine.clone(),
            pid_namespace: observer.pid_namespace,
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
const MAX_ANCESTORS: usize = 256;

/// The calling process and its ancestors, as far as /proc shows them.
pub(crate) fn own_ancestors() -> Vec<ProcessId> {
    let mut ancestors = Vec::new();
    let mut next = Some(process::own_pid());
    while let Some(pid) = next.filter(|_| ancestors.len() < MAX_ANCESTORS) {
        ancestors.push(ProcessId {
            pid,
            start: process::start_ticks(pid),
        });
        next = process::kinship(pid).and_then(|parent| parent.parent);
    }
    ancestors
}
