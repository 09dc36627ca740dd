//! Sleeping until something about a record may have changed.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;

use super::filesystem::descriptor_path;
use super::process::{has_ended, open_pidfd};
use crate::identity::Pid;
use crate::sys::unix::wait::timespec;
pub(crate) use crate::sys::unix::wait::{pause, until_unlocked};

/// Wakes when a record is unlinked, moved or written, or when a process ends.
///
/// Closing an inotify descriptor that has had a watch takes 5 to 24 ms (measured on Linux 6.18,
/// HZ=250), also at the end of the process. So a waiter keeps it open until nothing is urgent any
/// longer.
#[derive(Debug)]
pub(crate) struct Watch {
    changes: OwnedFd,
    processes: Vec<OwnedFd>,
}

impl Watch {
    /// Fails when no inotify instance is left (EMFILE): then poll.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            changes: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            processes: Vec::new(),
        })
    }

    /// Forgets the processes of an earlier sleep.
    pub(crate) fn begin(&mut self) {
        self.processes.clear();
    }

    /// Starts to watch a file and a process. No later change is missed, so the caller judges again after
    /// this call. Returns whether the process is watched. Fails when no inotify watch is left (ENOSPC).
    pub(crate) fn add(&mut self, file: &File, process: Option<Pid>) -> io::Result<bool> {
        // On the file, not on its directory, where other files change. ATTRIB: the link count. Of a directory what
        // comes and goes in it.
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE_SELF;
        add_watch(&self.changes, descriptor_path(file), flags)?;
        let process = process.and_then(|pid| open_pidfd(pid).ok());
        let is_watched = process.is_some();
        self.processes.extend(process);
        Ok(is_watched)
    }

    /// Sleeps until something happens or `timeout` has passed. `Interrupted` when a signal came.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.changes, PollFlags::IN)];
        let processes = self.processes.iter();
        fds.extend(processes.map(|process| PollFd::new(process, PollFlags::IN)));
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

/// Waits for a process to end, for at most `timeout`. `None`: it cannot be watched.
pub(crate) fn until_gone(pid: Pid, timeout: Duration) -> Option<bool> {
    match open_pidfd(pid) {
        Ok(process) => has_ended(&process, timeout).ok(),
        Err(Errno::SRCH) => Some(true),
        Err(_) => None,
    }
}
