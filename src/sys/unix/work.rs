//! Signals for the processes of the work of a hold.

use std::io;

use crate::sys::system::process::users_of;
use crate::sys::system::work::Target;

impl Target {
    /// Its real and its saved user.
    pub(in crate::sys) fn users(&self) -> Option<[u32; 2]> {
        let users = users_of(self.process.pid);
        // Read about this process, and not about the next one with its PID.
        users.filter(|_| self.is_alive())
    }

    /// Sends TERM. A stopped process acts upon it once it is continued.
    pub(crate) fn ask_to_end(&self) -> io::Result<()> {
        self.send(libc::SIGTERM)?;
        let _ = self.send(libc::SIGCONT);
        Ok(())
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(libc::SIGKILL)
    }
}

/// Nothing to do: what a command leaves behind gets another parent when this process ends.
pub fn let_work_go() {}

/// Returns whether the work of this process's command can be ended as a whole.
pub fn work_is_contained() -> bool {
    true
}
