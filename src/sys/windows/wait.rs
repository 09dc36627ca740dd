//! Sleeping until something about a record may have changed.

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::time::Duration;

use windows_sys::Win32::Foundation::{WAIT_OBJECT_0, WAIT_TIMEOUT};
use windows_sys::Win32::System::Threading::WaitForSingleObject;

use super::file::{lock_shared, unlock_record};
use super::process::open;

use crate::identity::Pid;

/// Waits until the exclusive lock on `file` is released, for whatever reason. Takes a shared lock, and
/// releases it at once.
pub(crate) fn until_unlocked(file: &File) -> io::Result<()> {
    lock_shared(file)?;
    unlock_record(file)
}

/// Windows reports changes of whole directories only, and other files change there: there is no
/// watch, and the caller polls.
#[derive(Debug)]
pub(crate) struct Watch(std::convert::Infallible);

impl Watch {
    always! {
        pub(crate) new() -> io::Result<Self> = Err(io::ErrorKind::Unsupported.into());
        pub(crate) add(&mut self, _file: &File, _process: Option<Pid>) -> io::Result<bool> = match self.0 {};
        pub(crate) sleep(&self, _timeout: Option<Duration>) -> io::Result<()> = match self.0 {};
    }

    pub(crate) fn begin(&mut self) {
        match self.0 {}
    }
}

/// Sleeps for `timeout`.
pub(crate) fn pause(timeout: Duration) -> io::Result<()> {
    std::thread::sleep(timeout);
    Ok(())
}

/// Waits for a process to end, for at most `timeout`. `None`: it cannot be watched.
pub(crate) fn until_gone(pid: Pid, timeout: Duration) -> Option<bool> {
    let process = open(pid).ok()?;
    let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX - 1);
    // SAFETY: the handle is open, and may be waited on.
    match unsafe { WaitForSingleObject(process.as_raw_handle(), milliseconds) } {
        WAIT_OBJECT_0 => Some(true),
        WAIT_TIMEOUT => Some(false),
        _ => None,
    }
}
