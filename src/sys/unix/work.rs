//! Signals for the processes of the work of a hold.

use std::io;

use super::process::kill;
use crate::sys::system::process::users_of;
use crate::sys::system::work::Target;
use crate::sys::work::Author;

impl Target {
    /// Fails if it may not be signaled on the word of that author. Descendants are judged one by one, too.
    pub(crate) fn ensure_may_be_signaled(&self, author: Author) -> io::Result<()> {
        author.ensure_may_signal(|| {
            let users = users_of(self.process.pid);
            // Read about this process, and not about the next one with its PID.
            users.filter(|_| self.is_alive())
        })
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

    pub(in crate::sys) fn send_by_pid(&self, signal: i32) -> io::Result<()> {
        kill(self.process.pid.get().cast_signed(), signal)
    }
}

/// Nothing to do: what a command leaves behind gets another parent when this process ends.
pub fn let_work_go() {}

/// Returns whether the work of this process's command can be ended as a whole.
#[must_use]
pub fn work_is_contained() -> bool {
    true
}
