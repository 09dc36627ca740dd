//! Why a command fails or is refused: one table.

use crate::messages::exit::Exit;

/// The reason of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Some commands exit with another code.
    pub(crate) exit: Exit,
    /// `status` of the JSON object.
    pub(crate) status: &'static str,
    /// `error.code` of the JSON object. onehold-json(5) lists them.
    pub(crate) code: &'static str,
}

impl Refusal {
    // Another holder is in the way.
    pub(crate) const LOCKED: Self = Self::row(Exit::Locked, "blocked", "LOCKED");
    pub(crate) const TIMEOUT: Self = Self::row(Exit::TimedOut, "timeout", "TIMEOUT");
    pub(crate) const QUEUE_FULL: Self = Self::row(Exit::Locked, "blocked", "QUEUE_FULL");
    pub(crate) const RESERVED: Self = Self::row(Exit::Locked, "blocked", "RESERVED");
    pub(crate) const ZOMBIE: Self = Self::row(Exit::Zombie, "zombie-detected", "ZOMBIE");
    pub(crate) const MALFORMED: Self = Self::row(Exit::Zombie, "zombie-detected", "MALFORMED");

    // The hold is not as the command wants it, or not in its power.
    pub(crate) const NOT_OWNER: Self = Self::row(Exit::NotYours, "failure", "NOT_OWNER");
    pub(crate) const NOT_HELD: Self = Self::row(Exit::NotHeld, "failure", "NOT_HELD");
    pub(crate) const NOT_CONFIRMED: Self = Self::row(Exit::Locked, "blocked", "NOT_CONFIRMED");
    pub(crate) const SEVERAL_HOLDERS: Self = Self::row(Exit::Usage, "failure", "SEVERAL_HOLDERS");
    pub(crate) const KERNEL_LOCK: Self = Self::row(Exit::Failed, "failure", "KERNEL_LOCK");
    pub(crate) const STILL_RUNNING: Self = Self::row(Exit::Failed, "failure", "STILL_RUNNING");
    pub(crate) const NOT_A_LOCK: Self = Self::row(Exit::Failed, "failure", "NOT_A_LOCK");
    pub(crate) const NOT_RENEWABLE: Self = Self::row(Exit::Failed, "failure", "NOT_RENEWABLE");
    pub(crate) const UNFIT: Self = Self::row(Exit::Failed, "failure", "UNFIT");
    pub(crate) const INCOMPLETE: Self = Self::row(Exit::Failed, "failure", "INCOMPLETE");

    // It ended before its time.
    pub(crate) const LOST: Self = Self::row(Exit::Lost, "lost", "LOST");
    pub(crate) const TIME_LIMIT: Self = Self::row(Exit::TimeLimit, "failure", "TIME_LIMIT");
    pub(crate) const CALLER_EXITED: Self =
        Self::row(Exit::Signal(15), "interrupted", "CALLER_EXITED");
    pub(crate) const INTERRUPTED: Self = Self::row(Exit::Failed, "interrupted", "INTERRUPTED");

    // What was asked for makes no sense, or is not possible.
    pub(crate) const USAGE: Self = Self::row(Exit::Usage, "failure", "USAGE");
    pub(crate) const INVALID_NAME: Self = Self::row(Exit::Usage, "failure", "INVALID_NAME");
    pub(crate) const TOO_LONG: Self = Self::row(Exit::Usage, "failure", "TOO_LONG");
    pub(crate) const UNSUPPORTED: Self = Self::row(Exit::Usage, "failure", "UNSUPPORTED");
    pub(crate) const NO_SUCH_PROCESS: Self = Self::row(Exit::Failed, "failure", "NO_SUCH_PROCESS");
    pub(crate) const NO_HOLDER: Self = Self::row(Exit::Failed, "failure", "NO_HOLDER");
    pub(crate) const COMMAND_NOT_FOUND: Self =
        Self::row(Exit::NotFound, "failure", "COMMAND_NOT_FOUND");
    pub(crate) const COMMAND_NOT_EXECUTABLE: Self =
        Self::row(Exit::NotExecutable, "failure", "COMMAND_NOT_EXECUTABLE");

    // The store or the system fails.
    pub(crate) const STORE_BUSY: Self = Self::row(Exit::Failed, "failure", "STORE_BUSY");
    pub(crate) const STORE: Self = Self::row(Exit::Failed, "failure", "STORE");
    pub(crate) const NO_ATOMIC_EXCHANGE: Self =
        Self::row(Exit::Failed, "failure", "NO_ATOMIC_EXCHANGE");
    pub(crate) const IO: Self = Self::row(Exit::Failed, "failure", "IO");
    pub(crate) const FAILED: Self = Self::row(Exit::Failed, "failure", "FAILED");

    const fn row(exit: Exit, status: &'static str, code: &'static str) -> Self {
        Self { exit, status, code }
    }

    /// Whether another holder is in the way, which the exit code says, too.
    pub(crate) fn is_conflict(self) -> bool {
        let says_so = matches!(self.exit, Exit::Locked | Exit::TimedOut | Exit::Zombie);
        says_so && self != Self::NOT_CONFIRMED
    }
}
