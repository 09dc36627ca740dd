//! Which process a detached hold follows: the command that acquires it ends at once, and its parent is
//! often as short-lived (`$(…)`, a pipe, a line of a makefile).

use std::time::Duration;

use crate::decision::ownership::{Caller, is_nobodys};
use crate::error::{Error, Result};
use crate::identity::{Pid, ProcessId};
use crate::observer::{descends_from, descends_from_any, is_first_of_system, own_ancestry};
use crate::record::{KILL_AFTER, Kind, Program, Record, cut_command};
use crate::status::Status;
use crate::sys::work::may_be_signaled;
use crate::sys::{ProcessState, process};

/// How long a process that gets no signal may take to end because others of the work have ended.
pub(super) const WITHOUT_SIGNAL: Duration = Duration::from_secs(1);

/// How long a wrapper may take to notice that its hold is lost.
const NOTICES_LOSS: Duration = Duration::from_secs(2);

/// What keeps a detached hold alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process that was named: the hold ends with it.
    Process(ProcessId),
    /// A process that was derived from the caller. Unlike a named one it never matches itself: two
    /// calls of one script are two holders.
    Caller {
        /// The process that the hold ends with.
        process: ProcessId,
        /// The parent of the calling process, which may be a subshell of it.
        parent: ProcessId,
        /// Its arguments show that it waits for nothing but this call, as `su -c 'onehold acquire x'` does: the
        /// hold ends with the call.
        ends_with_call: bool,
    },
    /// Time only; needs [`Options::ttl`](crate::Options::ttl).
    Lease,
}

impl Holder {
    /// A process by its PID.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if no process has it; the ID of a thread is not a PID.
    pub fn process(pid: u32) -> Result<Self> {
        ProcessId::running(pid).map(Self::Process)
    }

    /// The process that a detached hold of the caller should follow: the script that called it, which
    /// is the nearest ancestor that is no subshell. A process whose arguments end with all of ours
    /// (`sudo onehold acquire x`, `timeout 5 onehold acquire x`) lives no longer than we do, and is skipped.
    /// What adopts processes whose parent has exited is not a caller.
    ///
    /// # Errors
    /// [`Error::NoHolder`]: there is none, or /proc does not show it.
    pub fn of_caller() -> Result<Self> {
        let own = process::command_line(Pid::of_self());
        let mut ancestors = own_ancestry()
            .skip(1)
            .map_while(|(pid, shown)| Some((pid, shown?)))
            .peekable();
        let (parent, of_parent) = ancestors.peek().copied().ok_or(Error::NoHolder)?;
        let id = |pid, start| ProcessId { pid, start };
        for (pid, shown) in ancestors {
            let is_subshell = |parent| process::is_subshell(pid, parent);
            if shown.only_forked && shown.parent.is_some_and(is_subshell) {
                continue;
            }
            let command = process::command_line(pid);
            if only_starts(&command, &own) {
                continue;
            }
            if adopts_orphans(pid, &command) {
                break;
            }
            return Ok(Self::Caller {
                process: id(pid, shown.start),
                parent: id(parent, of_parent.start),
                ends_with_call: waits_only_for(&command, &own),
            });
        }
        Err(Error::NoHolder)
    }

    /// The process that the hold ends with.
    pub fn process_id(self) -> Option<ProcessId> {
        match self {
            Self::Process(process) | Self::Caller { process, .. } => Some(process),
            Self::Lease => None,
        }
    }
}

/// Whether a command line ends with all of ours: its program starts us and ends with us. Some (chronic) replace the
/// name of our program by its path.
fn only_starts(command: &[String], own: &[String]) -> bool {
    let Some((program, arguments)) = own.split_first() else {
        return false;
    };
    let begin = command.strip_suffix(arguments);
    let started = begin.and_then(<[String]>::last);
    started.is_some_and(|started| base_name(started) == base_name(program))
}

/// Whether a command line has a line for a shell that ends with ours: `su -c 'onehold acquire x'`, `sudo sh -c …`. The
/// shell has been replaced by us, or it is that shell.
fn waits_only_for(command: &[String], own: &[String]) -> bool {
    const QUOTES: [char; 3] = ['\'', '"', '\\'];
    let own = own.join(" ").replace(QUOTES, "");
    command.iter().any(|line| {
        let line = line.replace(QUOTES, "");
        let Some((_, rest)) = line.rsplit_once(&own).filter(|_| !own.is_empty()) else {
            return false;
        };
        // Only where its output goes may follow.
        let is_whole = rest.is_empty() || rest.starts_with([' ', ';', '\n', '>', '<', '&']);
        let rest = rest.trim_matches([' ', ';', '\n']).replace(">&", ">");
        let redirection = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let is_last = rest.is_empty() || redirection.starts_with(['>', '<', '&']);
        is_whole && is_last && !rest.contains([';', '|', '\n']) && !rest.contains("& ")
    })
}

/// Whether a process is the parent of those whose parent has exited, or the wrapper of a `run`: neither has called us.
/// Others that adopt cannot be told from parents.
fn adopts_orphans(pid: Pid, command: &[String]) -> bool {
    const PROGRAMS: [&str; 5] = ["systemd", "tini", "dumb-init", "docker-init", "onehold"];
    let name = command.first().map_or("", |program| base_name(program));
    // As which systemd is started in a container.
    let is_init = pid.get() == 1 && name == "init";
    is_init || PROGRAMS.contains(&name) || is_first_of_system(pid)
}

fn base_name(path: &str) -> &str {
    let name = path.rsplit(std::path::is_separator).next().unwrap_or(path);
    name.strip_suffix(std::env::consts::EXE_SUFFIX)
        .unwrap_or(name)
}

impl Program {
    /// The program that this process runs now.
    #[must_use]
    pub fn of(process: ProcessId) -> Self {
        Self {
            pid: process.pid,
            start: process.start,
            command: cut_command(process::command_line(process.pid)),
        }
    }

    /// Whether its process has ended, or that is not known.
    pub fn has_ended(&self) -> bool {
        let (pid, start) = (self.pid, self.start);
        ProcessId { pid, start }.has_ended()
    }
}

impl Caller {
    /// Whether the hold of `status` is this caller's. One whose holder has ended is nobody's.
    pub fn owns(&self, status: &Status) -> bool {
        let record = status.record.as_ref();
        let record = record.filter(|_| !is_nobodys(&status.verdict));
        record.is_some_and(|record| {
            let has_ended = ProcessId::has_ended;
            self.owns_record(record, &status.verdict, descends_from, has_ended)
        })
    }
}

impl Status {
    /// Whether the calling process descends from one that has locked the file without a record, or from a process
    /// of the `run` that holds it, whatever its environment says. A wait for it would never end.
    pub fn is_locked_by_ancestor(&self) -> bool {
        let lockers = self.lockers.iter();
        let lockers = lockers.map(|locker| ProcessId::by_pid_alone(locker.pid));
        // On etcd its processes are not looked at. Those of other machines have other starts.
        let is_here = self.is_remote() || self.verdict.pid_alive == Some(true);
        let run = self.record.as_ref();
        let run = run.filter(|record| is_here && record.kind == Kind::Run);
        let of_run = run.into_iter().flat_map(Record::processes);
        descends_from_any(lockers.chain(of_run))
    }
}

impl ProcessId {
    /// The running process with a PID.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`].
    pub fn running(pid: u32) -> Result<Self> {
        let pid = Pid::new(pid).ok_or(Error::NoSuchProcess { pid })?;
        let start = match process::presence(pid) {
            ProcessState::Gone => return Err(Error::NoSuchProcess { pid: pid.get() }),
            ProcessState::Alive { start } => start,
            ProcessState::Unknown => None,
        };
        Ok(Self { pid, start })
    }

    /// The process that started this one.
    ///
    /// # Errors
    /// [`Error::ParentExited`], also if that cannot be told from a parent that is the first process of the
    /// system; [`Error::ParentOutside`]: of this PID namespace.
    #[cfg(unix)]
    pub fn parent() -> Result<Self> {
        let parent = std::os::unix::process::parent_id();
        // Orphans are given to the first process. In a container that may as well have started this one.
        if Pid::new(parent).is_some_and(is_first_of_system) {
            return Err(Error::ParentExited);
        }
        if parent == 0 {
            return Err(Error::ParentOutside);
        }
        let found = Self::running(parent);
        // Otherwise it has exited meanwhile, and its PID may be another process's.
        if std::os::unix::process::parent_id() == parent {
            found
        } else {
            Err(Error::ParentExited)
        }
    }

    /// Blocks until it has ended.
    pub fn wait(self) {
        while !wait_until_gone(self, Duration::from_hours(1)) {}
    }
}

/// Waits until a process has ended, for at most `limit`; whether it has.
#[must_use]
pub(crate) fn wait_until_gone(recorded: ProcessId, limit: Duration) -> bool {
    let deadline = process::boottime().saturating_add(limit);
    loop {
        let left = deadline.saturating_sub(process::boottime());
        if recorded.has_ended() {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        // `None`: no pidfd to be had; a signal ends the sleep early. Either way, look again.
        if crate::sys::wait::until_gone(recorded.pid, left).is_none() {
            let _ = crate::sys::wait::pause(left.min(Duration::from_millis(50)));
        }
    }
}

impl Status {
    /// Waits until the command of a `run` has ended, for at most `limit`; whether it has. `true` for a hold without a
    /// command. If its command was not started yet, its wrapper is waited for: it exits at once if it has lost the
    /// lock before it starts it, and otherwise when the command has ended.
    #[must_use]
    pub fn wait_for_command(&self, limit: Duration) -> bool {
        let process = self.process_of_command();
        process.is_none_or(|process| wait_until_gone(process, limit))
    }

    /// How long to [wait for the command](Self::wait_for_command) of a displaced hold: 12 s, of which its wrapper
    /// has 2 s to notice the loss, and the command 10 s between TERM and KILL. 1 s if users can have written its
    /// record who may not signal that process: they can have named any.
    pub fn time_to_exit(&self) -> Duration {
        let named = self.process_of_command().zip(self.author);
        match named {
            Some((process, author)) if may_be_signaled(process, author) == Some(false) => {
                WITHOUT_SIGNAL
            }
            _ => NOTICES_LOSS + KILL_AFTER,
        }
    }

    /// What is alive of a `run` until its command has ended.
    fn process_of_command(&self) -> Option<ProcessId> {
        let is_alive = self.verdict.pid_alive == Some(true);
        let record = self.record.as_ref().filter(|_| is_alive)?;
        if record.exec || record.has_command() {
            record.live.process()
        } else {
            let is_starting = record.supervised && !record.is_without_command();
            record.writer().filter(|_| is_starting)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn program_only_starts_us_if_its_arguments_end_with_ours() {
        let own = words("onehold|acquire|x y");
        for starter in [
            "timeout|5|onehold|acquire|x y",
            "sudo|A=b|/usr/bin/onehold|acquire|x y",
            "/usr/bin/perl|/usr/bin/chronic|onehold|acquire|x y",
        ] {
            assert!(only_starts(&words(starter), &own), "{starter}");
        }
        for other in [
            "sh|-c|onehold acquire x y",
            "xargs|onehold|acquire",
            "acquire|x y",
            "a|acquire|x y",
            "",
        ] {
            assert!(!only_starts(&words(other), &own), "{other}");
        }
        // A caller that called with the path, as chronic does.
        assert!(only_starts(
            &words("chronic|onehold|acquire"),
            &words("/opt/onehold|acquire")
        ));
        assert!(!only_starts(&words("sh"), &[]));
    }

    fn su(line: &str) -> Vec<String> {
        ["su", "-c", line, "root"].map(str::to_owned).to_vec()
    }

    #[test]
    fn program_waits_only_for_us_if_a_line_for_a_shell_ends_with_ours() {
        let own = words("onehold|acquire|x y");
        for line in [
            "onehold acquire 'x y'",
            "cd /a && onehold acquire \"x y\";\n",
            "onehold acquire x\\ y >/dev/null 2>&1",
            "onehold acquire 'x y' 2> log",
            "onehold acquire 'x y' &",
        ] {
            assert!(waits_only_for(&su(line), &own), "{line}");
        }
        for line in [
            "onehold acquire 'x y'; make",
            "onehold acquire 'x y' || exit",
            "onehold acquire 'x y' && make",
            "onehold acquire 'x y' | cat",
            "onehold acquire 'x y' >/dev/null; make",
            "onehold acquire 'x y' & make",
            "onehold acquire 'x y'\nmake",
            "onehold acquire 'x y' z",
            "onehold acquire 'x y2'",
            "for i in 1 2; do onehold acquire 'x y'; done",
            "make",
        ] {
            assert!(!waits_only_for(&su(line), &own), "{line}");
        }
        assert!(!waits_only_for(&su(""), &[]));
    }

    #[test]
    fn what_adopts_orphans_is_known_by_its_name() {
        let adopts = |pid, command| adopts_orphans(Pid::new(pid).unwrap(), &words(command));
        for program in [
            "/usr/lib/systemd/systemd|--user",
            "/sbin/docker-init|--|sh",
            "tini|-s",
            "onehold|run|x",
        ] {
            assert!(adopts(77, program), "{program}");
        }
        assert!(adopts(1, "/sbin/init") && !adopts(77, "/sbin/init"));
        assert!(!adopts(77, "sh|tini") && !adopts(77, "systemd-run|x") && !adopts(77, ""));
    }
}
