//! Flaws that are planted into the shipped program, at its calls: each has to be found.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use libc::user_regs_struct as Registers;
use nix::unistd::Pid;

use crate::calls::{Call, Object};
use crate::tracee::bytes_at;
use crate::tracer::write_memory;

pub enum Change {
    /// The call is not made, and returns this.
    Return(i64),
    Registers(Box<Registers>),
    /// The call, a stat(2), is made, and says that the file has this number.
    Number(u64),
}

#[derive(Clone, Copy)]
pub struct Flaw {
    pub name: &'static str,
    /// Pairs of processes that it makes go wrong.
    pub scenarios: &'static [&'static str],
    /// What becomes of a call of that process, which was started with these words. The last is how often the flaw
    /// was planted before.
    pub change: fn(&Call, Pid, &str, usize) -> Option<Change>,
}

fn locks(call: &Call) -> bool {
    call.number() == libc::SYS_flock && call.registers.rsi as i32 & libc::LOCK_UN == 0
}

/// The guard is the lock of the store directory.
fn is_guard(call: &Call) -> bool {
    call.number() == libc::SYS_flock
        && call
            .accesses
            .iter()
            .any(|access| access.object == Object::KernelLock("s".to_owned()))
}

fn is(call: &Call, number: i64, path: &str) -> bool {
    call.number() == number && call.path.ends_with(path)
}

/// The record that a `run` has open.
fn own_record(pid: Pid) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/100"));
    path.metadata()
        .is_ok_and(|found| found.len() > 0)
        .then_some(path)
}

/// The number of the record of `a`, if this asks for the record that an innocent has open.
fn number_of_another(call: &Call) -> Option<u64> {
    let is_asked_for = call.number() == libc::SYS_newfstatat && call.path.starts_with("/proc");
    // A file that was made without a name is not shown with the one that it has now.
    let open = fs::read_link(&call.path).ok().filter(|_| is_asked_for)?;
    let number = |name| Some(open.with_file_name(name).metadata().ok()?.ino());
    (call.path.metadata().ok()?.ino() == number("innocent.lock")?).then(|| number("a.lock"))?
}

/// Writes another word of the same length into a request, which is sent then.
fn write_instead(call: &Call, pid: Pid, word: &str, other: &str) {
    if call.number() != libc::SYS_sendto {
        return;
    }
    let sent = bytes_at(pid, call.registers.rsi, call.registers.rdx);
    let found = sent
        .windows(word.len())
        .position(|part| part == word.as_bytes());
    if let Some(at) = found {
        write_memory(pid, call.registers.rsi + at as u64, other.as_bytes());
    }
}

/// Of requests to servers.
pub const FLAWS_OF_REQUESTS: [Flaw; 4] = [
    Flaw {
        name: "a transaction on etcd has no condition",
        scenarios: &["etcd-run-run"],
        change: |call, pid, _, _| {
            write_instead(call, pid, r#"{"compare":"#, r#"{"cOmpare":"#);
            None
        },
    },
    Flaw {
        name: "a transaction on PostgreSQL has no condition",
        scenarios: &["postgres-run-run"],
        change: |call, pid, _, _| {
            write_instead(call, pid, r#""if":"#, r#""iF":"#);
            None
        },
    },
    Flaw {
        name: "a lease on etcd has no condition",
        scenarios: &["etcd-run-acquire"],
        change: |call, pid, words, _| {
            if words.starts_with("acquire") {
                write_instead(call, pid, r#"{"compare":"#, r#"{"cOmpare":"#);
            }
            None
        },
    },
    Flaw {
        name: "a lease on PostgreSQL has no condition",
        scenarios: &["postgres-run-acquire"],
        change: |call, pid, words, _| {
            if words.starts_with("acquire") {
                write_instead(call, pid, r#""if":"#, r#""iF":"#);
            }
            None
        },
    },
];

pub const FLAWS: [Flaw; 16] = [
    Flaw {
        name: "the guard is never taken",
        scenarios: &["run-run-zombie", "two-names", "run-child-parent"],
        change: |call, _, _, _| is_guard(call).then_some(Change::Return(0)),
    },
    Flaw {
        name: "a release does not take the guard",
        scenarios: &["release-release-run"],
        change: |call, _, words, _| {
            (words.starts_with("release") && is_guard(call)).then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "a cleanup does not take the guard",
        scenarios: &[
            "run-cleanup-zombie",
            "two-zombie-cleanup",
            "shared-zombie-cleanup",
        ],
        change: |call, _, words, _| {
            (words.starts_with("cleanup") && is_guard(call)).then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "a break does not take the guard",
        scenarios: &["break-run", "break-run-runw"],
        change: |call, _, words, _| {
            (words.starts_with("break") && is_guard(call)).then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "the decision sees no record",
        scenarios: &["run-run"],
        change: |call, pid, _, _| {
            (is(call, libc::SYS_newfstatat, "a.lock") && own_record(pid).is_none())
                .then_some(Change::Return(-i64::from(libc::ENOENT)))
        },
    },
    Flaw {
        name: "nothing is removed",
        scenarios: &["run-run", "runw-release"],
        change: |call, _, _, _| (call.number() == libc::SYS_unlinkat).then_some(Change::Return(0)),
    },
    Flaw {
        name: "a takeover replaces whatever is there",
        scenarios: &["prodigy-zombie"],
        change: |call, _, _, _| {
            let mut registers = call.registers;
            (call.number() == libc::SYS_renameat2 && registers.r8 & 2 != 0).then(|| {
                registers.r8 = 0;
                Change::Registers(Box::new(registers))
            })
        },
    },
    Flaw {
        name: "every other process is taken for dead",
        scenarios: &["run-run", "acq-run"],
        change: |call, _, _, _| match call.number() {
            libc::SYS_pidfd_open => Some(Change::Return(-i64::from(libc::ESRCH))),
            _ if call.text.starts_with("open(/proc/#/stat") => {
                Some(Change::Return(-i64::from(libc::ENOENT)))
            }
            _ => None,
        },
    },
    Flaw {
        name: "a waiter sleeps with the guard",
        scenarios: &["runw-release", "runw-runw"],
        change: |call, _, words, _| {
            let unlocks = call.number() == libc::SYS_flock && !locks(call);
            (unlocks && words.starts_with("run -w") && call.text.contains("(s,"))
                .then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "a waiter is not woken by the kernel lock",
        scenarios: &["runw-runw"],
        change: |call, _, _, _| {
            let mut registers = call.registers;
            let waits = locks(call) && registers.rsi as i32 & libc::LOCK_NB == 0;
            (waits && call.text.contains("a.lock")).then(|| {
                registers.orig_rax = libc::SYS_pause.cast_unsigned();
                Change::Registers(Box::new(registers))
            })
        },
    },
    Flaw {
        name: "no record is locked",
        scenarios: &["run-run"],
        change: |call, _, _, _| {
            (locks(call) && call.text.starts_with("flock(s/##")).then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "no number is the last one",
        scenarios: &["number-ahead"],
        change: |call, _, _, _| {
            is(call, libc::SYS_pwrite64, ".onehold/last").then_some(Change::Return(8))
        },
    },
    Flaw {
        name: "no file is watched",
        scenarios: &["runw-release", "runw-runw"],
        change: |call, _, _, _| {
            (call.number() == libc::SYS_inotify_add_watch)
                .then_some(Change::Return(-i64::from(libc::ENOSPC)))
        },
    },
    Flaw {
        name: "a ticket is not locked",
        scenarios: &["runw-runw-release", "runw-3"],
        change: |call, _, _, _| {
            (locks(call) && call.text.starts_with("flock(s/.onehold/waiting/"))
                .then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "a break signals nobody",
        scenarios: &["break-endless", "break-endless-runw"],
        change: |call, _, words, _| {
            (words.starts_with("break") && call.number() == libc::SYS_pidfd_send_signal)
                .then_some(Change::Return(0))
        },
    },
    Flaw {
        name: "the number of a file is taken for the file",
        scenarios: &["innocent-orphan"],
        change: |call, _, words, _| {
            let number = number_of_another(call).filter(|_| words.starts_with("break"));
            number.map(Change::Number)
        },
    },
];
