//! Sleeping until something about a record may have changed.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use super::filesystem::descriptor_path;
use super::times::timespec;
use crate::identity::Pid;

/// Blocks until the exclusive kernel lock on `file` is given up, whoever or whatever ends it.
/// `Interrupted` when a signal came first. The shared lock it gets is given back at once.
pub(crate) fn until_unlocked(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::LockShared)?;
    Ok(flock(file, FlockOperation::Unlock)?)
}

/// Wakes when a record is unlinked, moved or written, or when a process ends.
///
/// Closing an inotify descriptor that has had a watch takes 5 to 24 ms (measured on Linux 6.18,
/// HZ=250), also at the end of the process: whoever waits keeps it until there is nothing left to
/// hurry for.
#[derive(Debug)]
pub(crate) struct Watch {
    changes: OwnedFd,
    process: Option<OwnedFd>,
}

impl Watch {
    /// Fails when inotify runs out (EMFILE): then look again from time to time.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            changes: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            process: None,
        })
    }

    /// Begins to watch; what happens from here on is not missed, so judge again after it. Fails
    /// when inotify runs out (ENOSPC).
    pub(crate) fn watch(&mut self, file: &File, process: Option<Pid>) -> io::Result<()> {
        // On the file, not its directory, which others make changes in. ATTRIB: the link count.
        let flags = WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE_SELF;
        add_watch(&self.changes, descriptor_path(file), flags)?;
        self.process = process
            .and_then(|pid| rustix::process::Pid::from_raw(pid.get().cast_signed()))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(())
    }

    /// Whether the end of the process is watched too.
    pub(crate) fn sees_the_process(&self) -> bool {
        self.process.is_some()
    }

    /// Sleeps until something happens or `timeout` has passed. `Interrupted` when a signal came.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.changes, PollFlags::IN)];
        if let Some(process) = &self.process {
            fds.push(PollFd::new(process, PollFlags::IN));
        }
        poll(&mut fds, timespec(timeout).as_ref())?;
        self.forget_changes()
    }

    fn forget_changes(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut reader = Reader::new(&self.changes, &mut buffer);
        loop {
            match reader.next() {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sleeps for `timeout`; `Interrupted` when a signal came.
pub(crate) fn pause(timeout: Duration) -> io::Result<()> {
    poll(&mut [], timespec(Some(timeout)).as_ref())?;
    Ok(())
}

/// Waits for a process to end, for at most `timeout`. `None`: it cannot be watched.
pub(crate) fn until_gone(pid: Pid, timeout: Duration) -> Option<bool> {
    let raw = rustix::process::Pid::from_raw(pid.get().cast_signed())?;
    let process = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Some(true),
        Err(_) => return None,
    };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    Some(poll(&mut fds, timespec(Some(timeout)).as_ref()).ok()? > 0)
}

/// A number below `limit` that nobody can foretell, to keep waiters from moving in step.
pub(crate) fn random_below(limit: u64) -> u64 {
    random_u64().checked_rem(limit).unwrap_or(0)
}

/// 64 random bits; zero if the system has none.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0_u8; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
