//! Sleeping until something about a record may have changed.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::kqueue::{
    Event, EventFilter, EventFlags, ProcessEvents, VnodeEvents, kevent, kqueue,
};

use crate::identity::Pid;
pub(crate) use crate::sys::unix::wait::{pause, until_unlocked};

/// Wakes when a record is unlinked, moved or written, or when a process ends.
#[derive(Debug)]
pub(crate) struct Watch {
    queue: OwnedFd,
    /// The files that are watched: to close one would end its watch (kqueue(2)).
    watched: Vec<File>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: kqueue()?,
            watched: Vec::new(),
        })
    }

    /// Forgets the files of an earlier sleep.
    pub(crate) fn begin(&mut self) {
        self.watched.clear();
    }

    /// Starts to watch a file and a process. No later change is missed, so the caller judges again after
    /// this call. Returns whether the process is watched.
    pub(crate) fn add(&mut self, file: &File, process: Option<Pid>) -> io::Result<bool> {
        let file = file.try_clone()?;
        let changes = Event::new(
            EventFilter::Vnode {
                vnode: file.as_raw_fd(),
                flags: VnodeEvents::DELETE
                    | VnodeEvents::WRITE
                    | VnodeEvents::RENAME
                    | VnodeEvents::ATTRIBUTES
                    | VnodeEvents::LINK,
            },
            EventFlags::ADD | EventFlags::CLEAR,
            std::ptr::null_mut(),
        );
        self.add_event(changes)?;
        self.watched.push(file);
        let pid = process.and_then(|pid| rustix::process::Pid::from_raw(pid.get().cast_signed()));
        Ok(pid.is_some_and(|pid| self.add_event(end_of(pid)).is_ok()))
    }

    fn add_event(&self, event: Event) -> io::Result<()> {
        // Without room for events, an error of the request is that of the call (kevent(2)).
        let none: &mut [Event] = &mut [];
        // SAFETY: the descriptor that the event may name is open, and is kept as long as it is watched.
        unsafe { kevent(&self.queue, &[event], none, Some(Duration::ZERO)) }?;
        Ok(())
    }

    /// Sleeps until something happens or `timeout` has passed. `Interrupted` when a signal came.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = [MaybeUninit::<Event>::uninit(); 4];
        // SAFETY: nothing is added.
        unsafe { kevent(&self.queue, &[], &mut events, timeout) }?;
        Ok(())
    }
}

fn end_of(pid: rustix::process::Pid) -> Event {
    Event::new(
        EventFilter::Proc {
            pid,
            flags: ProcessEvents::EXIT,
        },
        EventFlags::ADD | EventFlags::ONESHOT,
        std::ptr::null_mut(),
    )
}

/// Waits for a process to end, for at most `timeout`. `None`: it cannot be watched.
pub(crate) fn until_gone(pid: Pid, timeout: Duration) -> Option<bool> {
    let pid = rustix::process::Pid::from_raw(pid.get().cast_signed())?;
    let queue = kqueue().ok()?;
    let mut events = [MaybeUninit::<Event>::uninit()];
    // SAFETY: the event names a process, no descriptor.
    let (events, _) = unsafe { kevent(&queue, &[end_of(pid)], &mut events, Some(timeout)) }.ok()?;
    match events.first() {
        None => Some(false),
        // An error of the request takes the place of an event (kevent(2)).
        Some(event) if event.flags().contains(EventFlags::ERROR) => {
            (event.data() == i64::from(libc::ESRCH)).then_some(true)
        }
        Some(_) => Some(true),
    }
}
