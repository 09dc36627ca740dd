//! Exit codes: one table, which the help and the man pages show.

/// Why the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; `check`: free.
    Done,
    /// The operation failed.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// Nothing there to renew or break.
    Nothing,
    /// Somebody else's.
    NotYours,
    /// A zombie or overdue.
    Zombie,
    /// Locked by another.
    Locked,
    /// Waited, timed out.
    TimedOut,
    /// The hold was lost while the command ran.
    Lost,
    /// `run` failed before the command was started.
    RunFailed,
    /// The command of `run` cannot be executed.
    NotExecutable,
    /// The command of `run` was not found.
    NotFound,
    /// What the user or the command chose.
    Code(u8),
    /// Ended by a signal.
    Signal(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Nothing => 3,
            Self::NotYours => 4,
            Self::Zombie => 5,
            Self::Locked => 6,
            Self::TimedOut => 7,
            Self::Lost => 8,
            Self::RunFailed => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Code(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// The table for people.
pub(crate) const TABLE: [(&str, &str); 12] = [
    ("0", "done; check: free"),
    (
        "1",
        "failed: store unreadable, disk full, not a lock file, …",
    ),
    ("2", "the command line makes no sense"),
    ("3", "nothing there to renew or break"),
    ("4", "not yours"),
    (
        "5",
        "check: zombie or overdue; acquire, run: a zombie that --on-zombie does not take",
    ),
    ("6", "locked by another"),
    ("7", "waited, timed out"),
    ("8", "run: the hold was lost while CMD ran"),
    ("125", "run: onehold itself failed (instead of 1)"),
    ("126, 127", "run: CMD cannot be executed, was not found"),
    (
        "128+n",
        "CMD died of signal n; 130: Ctrl-C, 143: TERM while waiting",
    ),
];
