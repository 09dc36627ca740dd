//! The exit codes, and the table of them for the help, the man pages and the README.

use crate::arguments::args::Verb;
use crate::arguments::doc_text::rows;

/// The code that the program exits with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const DONE: Self = Self(0);
    pub(crate) const FAILED: Self = Self(1);
    pub(crate) const USAGE: Self = Self(2);
    pub(crate) const NOT_HELD: Self = Self(3);
    pub(crate) const NOT_YOURS: Self = Self(4);
    pub(crate) const ZOMBIE: Self = Self(5);
    pub(crate) const LOCKED: Self = Self(6);
    pub(crate) const TIMED_OUT: Self = Self(7);
    pub(crate) const LOST: Self = Self(8);
    pub(crate) const TIME_LIMIT: Self = Self(124);
    pub(crate) const RUN_FAILED: Self = Self(125);
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// Of a program that was killed by this signal.
    pub(crate) fn signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

/// Codes, and below each its meaning. A part that begins with verbs is true of these only.
pub(crate) const TABLE: &str = include_str!("exit_status.txt");

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
