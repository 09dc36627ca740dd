//! The exit codes, and the table of them for the help, the man pages and the README.

use crate::arguments::args::Verb;
use crate::arguments::doc_text::rows;

/// Why the program exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success; `check`: the lock is free.
    #[default]
    Done,
    /// Error.
    Failed,
    /// Usage error.
    Usage,
    /// `renew`, `break`: the lock is not held.
    NotHeld,
    /// `release`, `renew`, `break --hold`: held by another holder.
    NotYours,
    /// Zombie; `check`: also overdue.
    Zombie,
    /// Held by another holder.
    Locked,
    /// Timed out waiting.
    TimedOut,
    /// `run`: the lock was lost before the command ended.
    Lost,
    /// `run`: the command was ended at its time limit.
    TimeLimit,
    /// `run`: error of onehold itself.
    RunFailed,
    /// `run`: the command cannot be executed.
    NotExecutable,
    /// `run`: the command was not found.
    NotFound,
    /// The exit code of the command, or the one given by `-E`.
    Code(u8),
    /// The command was killed by this signal.
    Signal(i32),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotHeld => 3,
            Self::NotYours => 4,
            Self::Zombie => 5,
            Self::Locked => 6,
            Self::TimedOut => 7,
            Self::Lost => 8,
            Self::TimeLimit => 124,
            Self::RunFailed => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Code(code) => code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// Codes, and below each its meaning. A part that begins with verbs is true of these only.
pub(crate) const TABLE: &str = "
0
    success; check: the lock is free, or with --mine, the caller runs under it
1
    error: unreadable store, full disk, not a lock file, …; hold: the number could not be printed; doctor: a check has failed; break, release --force: the work could not be ended
2
    usage error
3
    renew, break: the lock is not held
4
    release, renew, break --hold: held by another holder; check: with --mine, the caller does not run under it
5
    acquire, run, hold: a zombie that --on-zombie does not take; check: zombie or overdue
6
    acquire, run, hold, check: held by another holder; break, release --force: not confirmed
7
    acquire, run, hold: timed out waiting
8
    run: the lock was lost or broken before CMD ended; hold: the lock was lost or broken
124
    run: CMD was ended at its --time-limit
125
    run, hold: error of onehold itself (instead of 1)
126, 127
    run: CMD cannot be executed; run: CMD was not found
128+n
    run: CMD was killed by signal n; acquire, run, hold, release, break: 129, 130, 143: HUP, Ctrl-C, TERM while it waits or asks; hold: 130: stdin has ended while it waits
";

/// What is true of one verb.
pub(crate) fn table_of(verb: &str) -> Vec<(&'static str, String)> {
    let of_verb = |code: &str, part: &'static str| {
        // These have another code for errors.
        let of_all = Some(part).filter(|_| code != "1" || !matches!(verb, "run" | "hold"));
        let Some((verbs, meaning)) = part.split_once(": ") else {
            return of_all;
        };
        let mut verbs = verbs.split(", ").map(|verb| verb.split(' ').next());
        let first = verbs.clone().next().flatten();
        if first.is_none_or(|first| !Verb::WORDS.contains(&first)) {
            return of_all;
        }
        verbs.any(|named| named == Some(verb)).then_some(meaning)
    };
    let rows = rows(TABLE).into_iter().map(|(code, parts)| {
        let meaning = parts.split("; ").filter_map(|part| of_verb(code, part));
        (code, meaning.collect::<Vec<_>>().join("; "))
    });
    rows.filter(|(_, meaning)| !meaning.is_empty()).collect()
}
