//! The evidence about a lock file: what it says, whether its kernel lock is held, and what the system says about the
//! recorded processes.

use std::io;
use std::rc::Rc;

use super::lock_file::{LockFile, wall_clock};
use super::snapshot::FilesSnapshot;
use crate::decision::liveness::{DEFAULT_MAX_AGE, precedes_boot};
use crate::decision::verdict::{Reason, Verdict};
use crate::decision::{Facts, Key, ProcessFact, Revision, Snapshot as _, judge, needed};
use crate::identity::{Pid, ProcessId};
use crate::open_file::{Found, OpenFile};
use crate::record::{Content, Record, digest};
use crate::sys::directory::{clock_at_boot, facts_of_file, lockers, record_is_locked};
use crate::sys::{KernelLockCall, ProcessState, process, work};

impl FilesSnapshot<'_> {
    pub(super) fn found_file(&self, key: Key, mut file: LockFile) -> io::Result<Option<Found>> {
        let mut facts = self.facts(&file);
        // Its holder writes into it without the guard: the process that a hold is handed over to, the
        // PID of a command. If the writer has ended since the file was read, what it wrote last is
        // there only now. A process that has ended writes nothing more, so that a record which still
        // says the same is judged by its last content.
        let has_exited = |fact: &ProcessFact| fact.state == ProcessState::Gone;
        let mut reads = 1;
        while may_be_dead(&self.judge_by(&file, &facts)) || facts.processes.iter().any(has_exited) {
            if !file.read_again()? {
                // Without the guard, its holder may have released it before it exited.
                if self.guard.is_none() && facts_of_file(&file.file)?.links == 0 {
                    return Ok(None);
                }
                break;
            }
            facts = self.facts(&file);
            reads += 1;
            if reads > MAX_READS {
                return Err(io::Error::other("it keeps changing"));
            }
        }
        let open = OpenFile::new(file.file, file.facts, file.bytes);
        Ok(Some(found(key, file.content, facts, open)))
    }

    /// Judges a file that no caller asked about.
    pub(super) fn judge(&self, file: &LockFile) -> Verdict {
        self.judge_by(file, &self.facts(file))
    }

    fn judge_by(&self, file: &LockFile, facts: &Facts) -> Verdict {
        judge(
            &file.content,
            facts,
            self.files.host.observer(),
            DEFAULT_MAX_AGE,
            &self.now(),
        )
    }

    /// Gathers the facts that a verdict needs, and no others.
    fn facts(&self, file: &LockFile) -> Facts {
        let needed = needed(&file.content, self.files.host.observer());
        let record = file.content.record();
        let origin = record.and_then(|record| record.origin.as_ref());
        let same_store = origin.is_some_and(|origin| {
            (origin.store_device, origin.store_inode) == (self.root.id.device, self.root.id.inode)
                || self.is_in_use_here(file)
        });
        let modified = wall_clock(file.facts.modified);
        let is_asked = needed.kernel_lock;
        let kernel_lock = is_asked.then(|| record_is_locked(&file.file).ok());
        let kernel_lock = kernel_lock.flatten();
        // A probe does not find the readers of flock(1), and the list does. Beside a record readers do not
        // count.
        let is_asked = needed.lockers && (record.is_none() || kernel_lock == Some(true));
        let lockers = is_asked
            .then(|| lockers(&file.file, KernelLockCall::Flock))
            .flatten();
        let lockers = lockers.unwrap_or_default();
        let processes = needed.processes.into_iter();
        let start_of = |pid| {
            let mut recorded = record.into_iter().flat_map(Record::processes);
            recorded.find(|process| process.pid == pid)?.start
        };
        let pid_namespace = needed.pid_namespace.filter(|_| kernel_lock != Some(true));
        let is_asked = needed.clock_at_boot && precedes_boot(modified, &self.now());
        Facts {
            kernel_lock: kernel_lock.map(|is_locked| is_locked || lockers.is_locked),
            lockers: lockers.pids,
            processes: processes
                .map(|pid| self.process(pid, start_of(pid)))
                .collect(),
            pid_namespace: pid_namespace.and_then(|number| self.pid_namespace(number)),
            clock_at_boot: is_asked.then(clock_at_boot).flatten(),
            same_store,
            ..Facts::of_file(modified, self.root.shares_kernel_locks)
        }
    }

    /// Whether the process that wrote a record for a store of another number has this very file and this very
    /// directory open: the number has changed, as on some FUSE filesystems.
    #[cold]
    #[inline(never)]
    fn is_in_use_here(&self, file: &LockFile) -> bool {
        let writer = file.content.record().and_then(Record::writer);
        let ids = [file.facts.id, self.root.id];
        writer.is_some_and(|writer| work::has_open(writer, &ids))
    }

    /// A listing asks for the same namespace many times.
    #[cold]
    fn pid_namespace(&self, number: u64) -> Option<ProcessState> {
        let mut known = self.known.pid_namespaces.borrow_mut();
        *known
            .entry(number)
            .or_insert_with(|| process::state_of_pid_namespace(number))
    }

    /// A listing asks for the same process many times. `start`: as the record says.
    fn process(&self, pid: Pid, start: Option<u64>) -> ProcessFact {
        let mut known = self.known.processes.borrow_mut();
        *known.entry(pid).or_insert_with(|| {
            let state = process::presence_of(ProcessId { pid, start });
            let began_ms = match state {
                ProcessState::Alive { start } => start.and_then(process::milliseconds_of_start),
                _ => None,
            };
            ProcessFact {
                pid,
                state,
                began_ms,
            }
        })
    }
}

/// Number of reads of a record that changes while it is judged.
const MAX_READS: usize = 100;

/// Whether no process was seen that keeps a hold alive now. Its kernel lock was probed before.
fn may_be_dead(verdict: &Verdict) -> bool {
    !matches!(
        verdict.reason,
        Reason::Alive
            | Reason::Lease
            | Reason::Ending
            | Reason::UnknownVersion(_)
            | Reason::Malformed(_)
            | Reason::NotALock(_)
    )
}

/// What was found in a file. Its revision identifies a hold as it was shown to a person, so that permission to break
/// it covers no other.
pub(crate) fn found(key: Key, content: Content, facts: Facts, open: OpenFile) -> Found {
    let hold = content.record().map_or(0, |record| record.hold);
    Found {
        key,
        content,
        facts,
        revision: Revision {
            file: open.facts.id.inode,
            hold,
            digest: if hold == 0 { digest(&open.bytes) } else { 0 },
        },
        handle: Some(Rc::new(open)),
    }
}
