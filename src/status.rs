//! What is found out about one lock at one moment.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::error::{Context, Result};
use crate::identity::{BootId, Origin, Pid};
use crate::lockfile::{LockFile, Standing};
use crate::queue::Waiter;
use crate::record::{Content, Record, has_four_digits};
use crate::sys::directory::{Directory, record_is_locked};
use crate::sys::process;
use crate::verdict::{Here, Presence, Probe, Proof, Reason, State, Verdict, judge};

/// A lock, as it was found: its record and what can be said of it.
#[derive(Clone, Debug)]
pub struct Status {
    /// The lock, as it was named.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The store directory; for a path lock, the directory of the file.
    pub store: PathBuf,
    /// What the file says, if it is a record of ours.
    pub record: Option<Record>,
    /// What can be said of it.
    pub verdict: Verdict,
    /// Who waits for it, the first to be served first.
    pub waiters: Vec<Waiter>,
    /// Whether who takes a lock over can be settled here: not on NFS, FUSE and the like, where
    /// the guard reaches this host only.
    pub settles: bool,
    seen: Option<Seen>,
}

/// Names one state of one lock file, so that permission to displace what was shown is not
/// permission to displace whatever has come since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(Seen);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Hold {
        inode: u64,
        hold: u64,
    },
    File {
        inode: u64,
        size: u64,
        modified: DateTime<Utc>,
    },
}

impl Status {
    /// Whether acquire takes the lock unasked.
    #[must_use]
    pub fn is_takeable(&self) -> bool {
        match self.verdict.state {
            State::Free if self.verdict.reason == Reason::NoFile => true,
            State::Free | State::Zombie => self.settles,
            State::Held | State::Overdue | State::NotALock => false,
        }
    }

    /// The same lock, promised to somebody who waits for it.
    pub(crate) fn promised_to(mut self, waiter: &Waiter) -> Self {
        self.verdict.state = State::Held;
        self.verdict.reason = Reason::Promised;
        self.verdict.proof = Proof::KernelLock;
        self.verdict.pid = Some(waiter.pid);
        self.verdict.pid_alive = Some(true);
        self.verdict.age = None;
        self.verdict.expires_at = None;
        // Whoever held it before has nothing to do with it any more, and permission to displace him
        // is none to displace whoever takes what was promised.
        self.record = None;
        self.seen = None;
        self
    }

    /// The number of the hold; `None` for those of programs that do not number theirs.
    #[must_use]
    pub fn hold(&self) -> Option<u64> {
        let record = self.record.as_ref()?;
        Some(record.hold).filter(|hold| *hold != 0)
    }

    /// What permission to displace this very hold is bound to. `None`: nothing is there, or
    /// nothing that any permission covers.
    #[must_use]
    pub fn shown(&self) -> Option<Shown> {
        if self.verdict.state == State::NotALock {
            return None;
        }
        self.seen.clone().map(Shown)
    }
}

impl Shown {
    pub(crate) fn is(&self, status: &Status) -> bool {
        status.shown().as_ref() == Some(self)
    }
}

/// What is true of the caller's process and host, gathered once.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    facts: OnceLock<Facts>,
}

#[derive(Clone, Debug)]
struct Facts {
    boot: Option<BootId>,
    pid_namespace: Option<u64>,
    hostname: Option<String>,
    /// The process that asked, and its start.
    own: (Pid, Option<u64>),
}

/// A store directory seen from here: what judging in it needs.
pub(crate) struct Observatory {
    here: RefCell<Here>,
    /// The process that asked, and its start.
    own: (Pid, Option<u64>),
}

impl Surroundings {
    pub(crate) fn observe(&self, root: &Directory, path: &Path) -> Result<Observatory> {
        let facts = self.facts.get_or_init(|| Facts {
            boot: process::boot_id(),
            pid_namespace: process::pid_namespace(),
            hostname: hostname(),
            own: {
                let own = process::own_pid();
                (own, process::start_ticks(own))
            },
        });
        let store = root.id().context("inspect store", path)?;
        let shares_kernel_locks = root
            .filesystem()
            .context("inspect the filesystem of", path)?
            .shares_kernel_locks;
        Ok(Observatory {
            here: RefCell::new(Here {
                now: DateTime::UNIX_EPOCH,
                boottime_ms: 0,
                boot: facts.boot.clone(),
                pid_namespace: facts.pid_namespace,
                hostname: facts.hostname.clone(),
                shares_kernel_locks,
                store_device: store.device,
                store_inode: store.inode,
            }),
            own: facts.own,
        })
    }
}

impl Observatory {
    pub(crate) fn settles(&self) -> bool {
        self.here.borrow().shares_kernel_locks
    }

    pub(crate) fn hostname(&self) -> Option<String> {
        self.here.borrow().hostname.clone()
    }

    pub(crate) fn boot_id(&self) -> Option<String> {
        let here = self.here.borrow();
        here.boot.as_ref().map(|boot| boot.id.clone())
    }

    /// What a record written now by this process says of its origin.
    pub(crate) fn origin(&self) -> Origin {
        let here = self.here.borrow();
        Origin {
            start: match self.own {
                (pid, start) if pid == process::own_pid() => start,
                // A child forked since.
                _ => process::start_ticks(process::own_pid()),
            },
            boot: here.boot.clone(),
            pid_namespace: here.pid_namespace,
            acquired_boottime_ms: process::boottime_milliseconds(),
            store_device: here.store_device,
            store_inode: here.store_inode,
        }
    }

    /// Judges what stands in a place.
    pub(crate) fn status(
        &self,
        about: &About<'_>,
        standing: &Standing,
        presences: &mut Presences,
    ) -> Status {
        let mut status = self.status_without_record(about, standing, presences);
        if let Standing::File(found) = standing {
            status.record = found.record().cloned();
        }
        status
    }

    /// The same, for what is not needed any more: nothing is copied.
    pub(crate) fn final_status(
        &self,
        about: &About<'_>,
        standing: Standing,
        presences: &mut Presences,
    ) -> Status {
        let mut status = self.status_without_record(about, &standing, presences);
        if let Standing::File(LockFile {
            content: Content::Record(record),
            ..
        }) = standing
        {
            status.record = Some(*record);
        }
        status
    }

    fn status_without_record(
        &self,
        about: &About<'_>,
        standing: &Standing,
        presences: &mut Presences,
    ) -> Status {
        let mut here = self.here.borrow_mut();
        here.now = Utc::now();
        here.boottime_ms = process::boottime_milliseconds();
        let (verdict, seen) = match standing {
            Standing::Nothing => (nothing(), None),
            Standing::NoFile(kind) => (no_lock(kind), None),
            Standing::File(found) => {
                let modified = wall_clock(found.facts.modified);
                let mut probe = LiveProbe {
                    file: &found.file,
                    presences,
                };
                let verdict = judge(&found.content, modified, &here, about.max_age, &mut probe);
                (verdict, Some(seen(found, modified)))
            }
        };
        Status {
            name: about.name.to_owned(),
            path: about.path.to_owned(),
            store: about.store.to_owned(),
            record: None,
            verdict,
            waiters: Vec::new(),
            settles: here.shares_kernel_locks,
            seen,
        }
    }
}

/// Which lock is judged, and by what age.
pub(crate) struct About<'a> {
    pub(crate) name: &'a str,
    pub(crate) path: &'a Path,
    pub(crate) store: &'a Path,
    pub(crate) max_age: Duration,
}

impl About<'_> {
    /// A lock whose store does not exist.
    pub(crate) fn free(&self) -> Status {
        Status {
            name: self.name.to_owned(),
            path: self.path.to_owned(),
            store: self.store.to_owned(),
            record: None,
            verdict: nothing(),
            waiters: Vec::new(),
            settles: true,
            seen: None,
        }
    }
}

/// Processes already asked for: a listing asks for the same one many times.
#[derive(Default)]
pub(crate) struct Presences(HashMap<Pid, Presence>);

struct LiveProbe<'a> {
    file: &'a File,
    presences: &'a mut Presences,
}

impl Probe for LiveProbe<'_> {
    fn kernel_lock(&mut self) -> Option<bool> {
        record_is_locked(self.file).ok()
    }

    fn process(&mut self, pid: Pid) -> Presence {
        *self
            .presences
            .0
            .entry(pid)
            .or_insert_with(|| process::presence(pid))
    }

    fn milliseconds_of_start(&self, start: u64) -> Option<i64> {
        process::milliseconds_of_start(start)
    }
}

/// A file's time; one that no calendar has is as far away as can be.
pub(crate) fn wall_clock(time: SystemTime) -> DateTime<Utc> {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs())
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, since.subsec_nanos()))
        .filter(|time| has_four_digits(*time))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// The name of this host; `None` if it cannot be told.
pub(crate) fn hostname() -> Option<String> {
    hostname::get()
        .ok()
        .map(|name| name.to_string_lossy().into_owned())
}

fn nothing() -> Verdict {
    verdict(State::Free, Reason::NoFile)
}

fn no_lock(kind: &'static str) -> Verdict {
    verdict(State::NotALock, Reason::NotALock(kind))
}

fn verdict(state: State, reason: Reason) -> Verdict {
    Verdict {
        state,
        reason,
        proof: Proof::None,
        pid: None,
        pid_alive: None,
        wrapper_alive: None,
        age: None,
        expires_at: None,
    }
}

fn seen(found: &LockFile, modified: DateTime<Utc>) -> Seen {
    let inode = found.facts.id.inode;
    match &found.content {
        Content::Record(record) if record.hold != 0 => Seen::Hold {
            inode,
            hold: record.hold,
        },
        _ => Seen::File {
            inode,
            size: found.facts.size,
            modified,
        },
    }
}
