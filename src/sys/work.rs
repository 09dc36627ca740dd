//! The work of a hold: the processes that its command has started, directly or not.
//!
//! A wrapper finds them as its descendants. Where a wrapper has been killed they are found by what they
//! carry: the hold in their environment, the lock file among their descriptors, a parent that belongs
//! to the work. A process that has none of that any more is out of reach.

#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "other systems look at less")
)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::identity::{Pid, ProcessId};
pub(crate) use crate::sys::system::work::{
    Target, command_holds, has_open, own_children, visit, wait_for_any,
};
pub use crate::sys::system::work::{adopt_orphans, let_work_go, work_is_contained};

/// The number that is sent to the wrapper of a hold that is broken: what fits of the hold number, so
/// that a signal that was queued for another purpose is not taken for it.
pub(crate) fn number_to_tell(hold: u64) -> i32 {
    i32::try_from(hold & 0x7FFF_FFFF).unwrap_or(0)
}

/// Who can have written the record that names a process. A signal goes to a process on the word of a record
/// only if everybody who can have written that record may send it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Author {
    /// Only this process, its user, or root.
    Trusted,
    /// Another user as well.
    User(u32),
    /// Several users, or it is not known.
    #[default]
    Unknown,
}

impl Target {
    /// Fails if it may not be signaled on the word of that author, or ended where there are no signals. Descendants
    /// are judged one by one, too.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(crate) fn ensure_may_be_signaled(&self, author: Author) -> io::Result<()> {
        let is_of = |author| self.users().is_some_and(|users| users.contains(&author));
        match author {
            Author::Trusted => Ok(()),
            // The sender must be the real or the saved user of the process (kill(2)).
            Author::User(author) if is_of(author) => Ok(()),
            Author::User(_) | Author::Unknown => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Whether that author may have a process signaled, or ended where there are no signals. `None`: it has ended.
pub(crate) fn may_be_signaled(process: ProcessId, author: Author) -> Option<bool> {
    let target = Target::find(process)?;
    let may = target.ensure_may_be_signaled(author).is_ok();
    (may || target.is_alive()).then_some(may)
}

/// Tells the wrapper of a hold that the hold is broken.
pub(crate) fn tell_wrapper(wrapper: ProcessId, hold: u64, author: Author) -> io::Result<()> {
    let Some(target) = Target::find(wrapper) else {
        return Ok(());
    };
    target.ensure_may_be_signaled(author)?;
    target.tell_that_broken(hold)
}

/// Lets a process that holds locks for a program look at once whether they are still there.
pub(crate) fn tell_to_look(holder: ProcessId, author: Author) -> io::Result<()> {
    let Some(target) = Target::find(holder) else {
        return Ok(());
    };
    target.ensure_may_be_signaled(author)?;
    target.tell_to_look()
}

/// Is shown what is found, one process after the other.
pub(crate) type Each<'a> = dyn FnMut(&Target) + 'a;

/// What a look at the work of a hold has found out.
#[derive(Debug)]
pub(crate) enum Look {
    /// Something of it runs, or may run.
    Left,
    /// Nothing was found, but a process vanished meanwhile that may have started another one.
    Unsure,
    /// Nothing of it is left.
    Nothing,
    /// Not all of it could be looked at.
    Failed(io::Error),
}

/// How the work of a hold is recognized.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// As in `ONEHOLD_HOLDS`: number, colon, and name. No other hold has the same.
    pub(crate) hold: String,
    /// An older process has been started by something else, unless it is [known](Self::known); the
    /// start, in the unit of [`ProcessState::Alive`](crate::sys::ProcessState).
    pub(crate) since: u64,
    /// The wrapper, if it may be running: its descendants count, and it does not.
    pub(crate) wrapper: Option<ProcessId>,
    /// The lock file, if its kernel lock is taken: a process that has inherited that lock counts. It stays open,
    /// since its inode number goes to the next file once it is removed and closed.
    pub(crate) file: Option<Arc<File>>,
    /// Processes that do not count: children that the wrapper had before, such as the background jobs of a
    /// shell that became the wrapper, or a program that holds the lock and does other things as well.
    pub(crate) others: Vec<ProcessId>,
    /// Processes that are known to belong to the work: the command on record, and all that were found
    /// before.
    pub(crate) known: BTreeSet<ProcessId>,
    /// Who says all this.
    pub(crate) author: Author,
}

impl Marks {
    /// Whether the calling process is the wrapper.
    pub(crate) fn are_of_own_command(&self) -> bool {
        self.wrapper
            .is_some_and(|wrapper| wrapper.pid == Pid::of_self())
    }

    /// A process that was seen, with its start if that is known from before.
    #[cfg(target_os = "linux")]
    pub(crate) fn recognize(&self, seen: ProcessId) -> ProcessId {
        let with_that_pid = ProcessId {
            start: None,
            ..seen
        }..;
        let known = self.known.range(with_that_pid);
        let mut known = known.take_while(|known| known.pid == seen.pid);
        *known.find(|known| known.is_same(seen)).unwrap_or(&seen)
    }

    /// Whether a process does not count. The start of a process that was there before may not be known the
    /// next time.
    #[cfg(target_os = "linux")]
    pub(crate) fn belongs_to_another(&mut self, process: ProcessId) -> bool {
        if self.others.iter().any(|other| other.is_same(process)) {
            return true;
        }
        let is_older = self.is_too_old(process);
        if is_older {
            self.others.push(process);
        }
        is_older
    }

    fn is_too_old(&self, process: ProcessId) -> bool {
        process.start.is_some_and(|start| start < self.since) && !self.known.contains(&process)
    }
}

/// A process in the list of all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) process: ProcessId,
    /// 0: unknown.
    pub(crate) parent: u32,
    /// Its process group, where there are any.
    pub(crate) group: u32,
    /// It has ended, and was not waited for.
    pub(crate) is_zombie: bool,
}

/// Picks the processes of the work out of the list of all. `is_marked` looks at one process.
pub(crate) fn select(
    list: &[Listed],
    marks: &Marks,
    mut is_marked: impl FnMut(Pid) -> bool,
) -> Vec<Listed> {
    let own = Pid::of_self();
    let is_wrapper = |process: ProcessId| {
        marks
            .wrapper
            .is_some_and(|wrapper| wrapper.is_same(process))
    };
    let is_candidate = |listed: &Listed| {
        let process = listed.process;
        process.pid != own
            && !is_wrapper(process)
            && !marks.others.iter().any(|other| other.is_same(process))
            && !marks.is_too_old(process)
    };
    let candidates: Vec<Listed> = list.iter().copied().filter(is_candidate).collect();
    // A PID is not reused as long as a group has its number. An older group has other members, too, such
    // as the background jobs of a shell that became the command.
    let leads = |group: u32| {
        let leader = marks.known.iter().find(|known| known.pid.get() == group);
        leader.is_some_and(|leader| {
            leader.start.is_none_or(|start| start >= marks.since)
                && list.iter().all(|listed| {
                    listed.process.pid != leader.pid || leader.is_same(listed.process)
                })
        })
    };
    let is_found = |listed: &Listed| {
        marks.known.contains(&listed.process)
            || leads(listed.group)
            || is_marked(listed.process.pid)
    };
    let mut found: BTreeSet<Listed> = candidates.iter().copied().filter(is_found).collect();
    let pid_of = |listed: &Listed| listed.process.pid.get();
    let wrapper = list.iter().filter(|listed| is_wrapper(listed.process));
    let mut parents: BTreeSet<u32> = wrapper.map(pid_of).collect();
    // Until a round adds nothing: children may come before their parents in the list.
    loop {
        parents.extend(found.iter().map(pid_of));
        let before = found.len();
        let children = candidates.iter();
        found.extend(children.filter(|listed| parents.contains(&listed.parent)));
        if found.len() == before {
            return found.into_iter().collect();
        }
    }
}

/// Returns whether an environment, entries with a NUL behind each, says that its process runs inside a
/// hold: `ONEHOLD_HOLDS` lists them, with blanks between them.
#[cfg(unix)]
pub(crate) fn environment_names_hold(environment: &[u8], hold: &str) -> bool {
    environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"ONEHOLD_HOLDS="))
        .any(|holds| {
            holds
                .split(|byte| *byte == b' ')
                .any(|listed| listed == hold.as_bytes())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, start: u64) -> ProcessId {
        ProcessId {
            pid: Pid::new(pid).expect("a PID"),
            start: Some(start),
        }
    }

    fn listed(pid: u32, parent: u32) -> Listed {
        Listed {
            process: process(pid, 100),
            parent,
            group: pid,
            is_zombie: false,
        }
    }

    fn marks(known: &[ProcessId]) -> Marks {
        Marks {
            hold: "7:x".to_owned(),
            since: 50,
            wrapper: None,
            file: None,
            others: Vec::new(),
            known: known.iter().copied().collect(),
            author: Author::Trusted,
        }
    }

    fn pids(found: &[Listed]) -> Vec<u32> {
        found
            .iter()
            .map(|listed| listed.process.pid.get())
            .collect()
    }

    const FAR: u32 = 4_000_000;

    #[test]
    fn work_is_what_is_marked_and_all_below_it_in_any_order() {
        let list = [
            listed(FAR + 3, FAR + 2),
            listed(FAR + 2, FAR + 1),
            listed(FAR + 1, 1),
            listed(FAR + 4, 1),
        ];
        let found = select(&list, &marks(&[]), |pid| pid.get() == FAR + 1);
        assert_eq!(pids(&found), [FAR + 1, FAR + 2, FAR + 3]);
    }

    #[test]
    fn reused_pid_of_a_known_process_does_not_count() {
        let known = [process(FAR + 1, 60)];
        assert!(select(&[listed(FAR + 1, 1)], &marks(&known), |_| false).is_empty());
        let known = [process(FAR + 1, 100)];
        assert_eq!(
            select(&[listed(FAR + 1, 1)], &marks(&known), |_| false).len(),
            1
        );
    }

    #[test]
    fn group_of_a_known_process_counts_after_its_end() {
        let mut member = listed(FAR + 2, 1);
        member.group = FAR + 1;
        let found = select(&[member], &marks(&[process(FAR + 1, 60)]), |_| false);
        assert_eq!(pids(&found), [FAR + 2]);
    }

    #[test]
    fn processes_older_than_the_hold_do_not_count() {
        let mut old = marks(&[]);
        old.since = 101;
        assert!(select(&[listed(FAR + 1, 1)], &old, |_| true).is_empty());
    }

    #[test]
    fn older_process_that_became_the_command_counts_and_its_older_jobs_do_not() {
        let command = process(FAR + 1, 100);
        let mut marks = marks(&[command]);
        marks.since = 150;
        let mut job = listed(FAR + 2, FAR + 1);
        let mut child_of_job = listed(FAR + 3, FAR + 2);
        let mut child = listed(FAR + 4, FAR + 1);
        job.group = FAR + 1;
        for younger in [&mut child_of_job, &mut child] {
            younger.group = FAR + 1;
            younger.process.start = Some(150);
        }
        let list = [listed(FAR + 1, 1), job, child_of_job, child];
        assert_eq!(pids(&select(&list, &marks, |_| false)), [FAR + 1, FAR + 4]);
    }

    #[test]
    fn wrapper_does_not_count_and_its_children_do() {
        let mut marks = marks(&[]);
        marks.wrapper = Some(process(FAR + 1, 100));
        let list = [listed(FAR + 1, 1), listed(FAR + 2, FAR + 1)];
        assert_eq!(pids(&select(&list, &marks, |_| false)), [FAR + 2]);
    }

    #[test]
    fn process_that_does_other_things_does_not_count_and_neither_do_its_children() {
        let mut marks = marks(&[]);
        marks.others.push(process(FAR + 1, 100));
        let list = [listed(FAR + 1, 1), listed(FAR + 2, FAR + 1)];
        assert!(select(&list, &marks, |pid| pid.get() == FAR + 1).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn environment_names_exactly_the_holds_it_lists() {
        let environment = b"A=1\0ONEHOLD_HOLDS=17:a 7:x\0B=ONEHOLD_HOLDS=8:y\0";
        assert!(environment_names_hold(environment, "7:x"));
        assert!(environment_names_hold(environment, "17:a"));
        for other in ["7:a", "7", "8:y", "1"] {
            assert!(!environment_names_hold(environment, other), "{other}");
        }
    }
}
