//! Who holds the locks of flock(2) and fcntl(2), as the kernel lists them (proc(5), `/proc/locks`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::fstat;

use super::filesystem::names_in;
use super::mount::{Mount, info_of, value_in};
use super::process::{is_container, pid_namespace, presence, shown_pids};
use crate::identity::Pid;
use crate::sys::unix::file::id_of;
use crate::sys::{KernelLockCall, Lockers, ProcessState};

/// More than the kernel returns at once: a page, or one line.
const LIST_BYTES: usize = 16 * 1024;

/// How often a list that comes in pieces is read to find a lock that may have been skipped.
const MAX_LOOKS: usize = 4;

/// The processes that hold a lock by such a call on an open file, without the calling one. `None`: the
/// list cannot be read.
///
/// A lock belongs to an open file description, and the list names the process that took it. If that
/// one has exited, the processes that have inherited the descriptor are looked for, as far as this
/// process may see that.
pub(crate) fn lockers(file: &impl AsFd, by: KernelLockCall) -> Option<Lockers> {
    // Without a /proc of this namespace the PIDs in the list mean other processes.
    let own_namespace = pid_namespace()?;
    let key = ListedFile::of(file, by)?;
    let (listed, is_exact) = key.listed().ok()?;
    let is_complete = is_exact && !is_container(own_namespace);
    let mut is_exclusive = listed.iter().any(|lock| lock.is_exclusive);
    let taken_by = listed.iter().filter_map(|lock| lock.taken_by);
    let mut pids: Vec<Pid> = taken_by
        .filter(|pid| !matches!(presence(*pid), ProcessState::Gone))
        .collect();
    // In a container the list leaves out what processes of outer namespaces have locked, and what was
    // locked by a process that has exited.
    let is_unlisted = listed.is_empty() && !is_complete;
    if is_unlisted || pids.len() < listed.len() {
        for (pid, lock) in key.inheritors() {
            pids.push(pid);
            is_exclusive |= lock.is_exclusive;
        }
    }
    let is_locked = !listed.is_empty() || !pids.is_empty();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != Pid::of_self());
    Some(Lockers {
        is_locked,
        is_exclusive,
        pids,
        is_complete,
    })
}

/// The list of locks, and whether one call returned it all.
///
/// The kernel returns about a page at a time (seq_file), and finds the place to go on by counting: where a
/// lock before it was given back in between, one is skipped. A small buffer breaks the list up even
/// where it is short, so `std::fs::read_to_string` does not do.
fn listed_locks() -> io::Result<(String, bool)> {
    let mut file = File::open("/proc/locks")?;
    let mut listed = Vec::new();
    let mut buffer = vec![0; LIST_BYTES];
    let mut pieces = 0;
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        pieces += 1;
        listed.extend_from_slice(buffer.get(..length).unwrap_or_default());
    }
    let listed = String::from_utf8(listed).map_err(io::Error::other)?;
    Ok((listed, pieces <= 1))
}

/// A line of a list of locks.
struct ListedLock {
    /// `None`: by a process of another namespace.
    taken_by: Option<Pid>,
    is_exclusive: bool,
}

/// How the kernel refers to a file in a list of locks: `MAJOR:MINOR:INODE`.
struct ListedFile(String, KernelLockCall);

impl ListedFile {
    fn of(file: &impl AsFd, by: KernelLockCall) -> Option<Self> {
        let seen = id_of(&fstat(file).ok()?);
        let info = info_of(file).unwrap_or_default();
        // The list has the device of the filesystem, which is not always that of stat(2): btrfs gives
        // each subvolume a number of its own.
        let device = Mount::of(file).and_then(|mount| mount.device());
        let (major, minor) = device.unwrap_or_else(|| {
            (
                rustix::fs::major(seen.device),
                rustix::fs::minor(seen.device),
            )
        });
        // Since Linux 5.14. Overlay filesystems have other numbers in stat(2).
        let inode = value_in(&info, "ino:").unwrap_or_else(|| seen.inode.to_string());
        Some(Self(format!("{major:02x}:{minor:02x}:{inode}"), by))
    }

    /// The locks on this file, and whether that is exact.
    fn listed(&self) -> io::Result<(Vec<ListedLock>, bool)> {
        for _ in 0..MAX_LOOKS {
            let (listed, is_one_piece) = listed_locks()?;
            let lines = listed.lines();
            let locks: Vec<ListedLock> = lines.filter_map(|line| self.lock(line)).collect();
            if is_one_piece || !locks.is_empty() {
                return Ok((locks, is_one_piece));
            }
        }
        Ok((Vec::new(), false))
    }

    /// A line of the list, if that is a lock on this file.
    fn lock(&self, line: &str) -> Option<ListedLock> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A line with `->` is a waiter.
        match fields.as_slice() {
            [_, call, _, mode, pid, file, ..] if *file == self.0 && self.is_of(call) => {
                Some(ListedLock {
                    taken_by: pid.parse().ok().and_then(Pid::new),
                    is_exclusive: *mode != "READ",
                })
            }
            _ => None,
        }
    }

    /// Whether it is a lock by this call. A lock of an open file description has the PID -1.
    fn is_of(&self, call: &str) -> bool {
        match self.1 {
            KernelLockCall::Flock => call == "FLOCK",
            KernelLockCall::Fcntl => matches!(call, "POSIX" | "OFDLCK"),
        }
    }

    /// The processes that have such a lock by a descriptor of theirs (proc_pid_fdinfo(5)).
    fn inheritors(&self) -> Vec<(Pid, ListedLock)> {
        let pids = shown_pids().into_iter().flatten().flatten();
        pids.filter_map(|pid| Some((pid, self.lock_of(pid)?)))
            .collect()
    }

    fn lock_of(&self, pid: Pid) -> Option<ListedLock> {
        let directory = PathBuf::from(format!("/proc/{pid}/fdinfo"));
        let mut names = names_in(&directory).ok()?.flatten();
        names.find_map(|name| {
            let info = std::fs::read_to_string(directory.join(name)).ok()?;
            let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
            locks.find_map(|line| self.lock(line))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn holder_is_listed_while_eight_others_lock_and_unlock() {
        const LOOKS: usize = 500;
        let held = tempfile::tempfile().unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let is_over = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let other: File = tempfile::tempfile().unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        flock(&other, FlockOperation::LockExclusive).unwrap();
                        flock(&other, FlockOperation::Unlock).unwrap();
                    }
                });
            }
            let looks = (0..LOOKS).filter_map(|_| lockers(&held, KernelLockCall::Flock));
            let missed = looks.filter(|found| found.is_complete && !found.is_locked);
            let missed = missed.count();
            is_over.store(true, Ordering::Relaxed);
            missed
        });
        assert_eq!(missed, 0, "of {LOOKS} looks");
    }
}
