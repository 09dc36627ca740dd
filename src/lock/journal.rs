//! What is noted of holds that have ended, and what is read of it. A store of many machines writes it itself, by the
//! transaction that ends the hold; for others it follows the end, in a file.

use std::time::Duration;

use chrono::{TimeDelta, Utc};

use super::lock::Lock;
use crate::backend::Backend;
use crate::decision::Key;
use crate::decision::verdict::{Reason, State};
use crate::error::{Error, Result};
use crate::files::journal::Journal;
use crate::journal_line::{
    self, Action, Event, HoldResult, Line, PastHold, Subject, last_events, past_holds, resolved,
    resolved_below,
};
use crate::open_file::Judged;
use crate::record::Record;
use crate::status::Status;

/// The past holds of a store. `only_new`: those since its journal was moved last.
pub(super) fn of_store(
    store: &dyn Backend,
    journal: &Journal,
    only_new: bool,
) -> Result<Vec<PastHold>> {
    let path = store.path();
    if store.keeps_journal() {
        return Ok(past_holds(&store.journal(None)?, Some(&path), |_| true));
    }
    let wanted = resolved(&path);
    let lines = journal.lines(only_new)?;
    Ok(past_holds(&lines, None, |hold| hold.store == wanted))
}

impl Lock {
    /// The lines about a hold that a change is going to end, for a store that writes them with the change.
    pub(super) fn lines(
        &self,
        judged: &Judged,
        action: Option<Action>,
        result: impl FnOnce(&Status) -> HoldResult,
    ) -> Vec<Line> {
        if !self.store.keeps_journal() || self.journal.rotate_at == 0 {
            return Vec::new();
        }
        self.lines_of(&self.status(judged), action, result)
    }

    #[cold]
    fn lines_of(
        &self,
        was: &Status,
        action: Option<Action>,
        result: impl FnOnce(&Status) -> HoldResult,
    ) -> Vec<Line> {
        let event = action.map(|action| journal_line::event(action, was, None));
        let event = event.map(|event| Line::Event(Box::new(event)));
        let end = self.end_of(was, result(was));
        let end = end.map(|end| Line::End(Box::new(end)));
        event.into_iter().chain(end).collect()
    }

    /// The lines about holds that a new one replaces, each with what is done to it if it is dead.
    pub(super) fn lines_of_replaced<'j>(
        &self,
        replaced: impl Iterator<Item = (&'j Judged, Action)>,
    ) -> Vec<Line> {
        let lines = replaced.flat_map(|(judged, if_dead)| {
            let action = action_on(judged.verdict.state, if_dead);
            self.lines(judged, action, result_of)
        });
        lines.collect()
    }

    /// Writes a line into the journal, or returns a warning: what was done stays done.
    pub(super) fn note(&self, action: Action, was: &Status, hold: Option<u64>) -> Option<Error> {
        if self.store.keeps_journal() {
            return None;
        }
        let event = journal_line::event(action, was, hold);
        self.journal.write(&event).err()
    }

    /// Writes the end of a hold into the history, if it was asked for with one, or returns a warning.
    pub(super) fn note_end(&self, was: &Status, result: HoldResult) -> Option<Error> {
        if self.store.keeps_journal() {
            return None;
        }
        self.journal.write(&self.end_of(was, result)?).err()
    }

    /// Notes the end of a hold that was found over, or broken.
    pub(super) fn note_found(&self, was: &Status) -> Option<Error> {
        self.note_end(was, result_of(was))
    }

    /// How a hold ended, if it was asked for with a history. That of a command whose lock stayed taken has been noted
    /// already.
    pub(super) fn end_of(&self, was: &Status, result: HoldResult) -> Option<PastHold> {
        let record = was.record.as_ref()?;
        if record.asked.is_none() || record.is_kept() {
            return None;
        }
        self.past_hold(was, record, result)
    }

    #[cold]
    #[inline(never)]
    fn past_hold(&self, was: &Status, record: &Record, result: HoldResult) -> Option<PastHold> {
        // When it was judged: nobody else could have the lock then. The age is the difference of two times that were
        // cut to milliseconds, so it can be one too long.
        let age = was.verdict.age?.saturating_sub(Duration::from_millis(1));
        let judged_at = TimeDelta::from_std(age).ok();
        let judged_at = judged_at.and_then(|age| record.renewed_at().checked_add_signed(age));
        let judged_at = judged_at.unwrap_or_else(Utc::now);
        // Whether it has expired is judged in whole milliseconds, so that it may have been just before.
        let limit = was.verdict.expires_at;
        let limit = limit.filter(|_| result == HoldResult::Expired);
        let ended_at = limit.map_or(judged_at, |limit| limit.min(judged_at));
        Some(PastHold {
            uid: was.uid,
            ..PastHold::of(record, &self.store.path(), &was.path, result, ended_at)?
        })
    }

    /// The last events of this lock in the journal of its store, at most `limit`, the latest one last:
    /// takeovers, breaks and cleanups. Lines that cannot be read are left out.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn events(&self, limit: usize) -> Result<Vec<Event>> {
        if self.store.keeps_journal() {
            let lines = self.store.journal(Some(self.name()))?;
            return Ok(last_events(&lines, |_| true, limit));
        }
        let lines = self.journal.lines(false)?;
        Ok(self.with_subject(|subject| {
            let is_of_lock = |event: &Event| {
                let names = event.from.as_ref().map_or(&[][..], |from| &from.names);
                subject.is_of(&event.path, names)
            };
            last_events(&lines, is_of_lock, limit)
        }))
    }

    /// The holds of this lock that have ended: see [`Store::history`](crate::Store::history).
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn history(&self) -> Result<Vec<PastHold>> {
        if self.store.keeps_journal() {
            let lines = self.store.journal(Some(self.name()))?;
            return Ok(past_holds(&lines, Some(&self.store.path()), |_| true));
        }
        let lines = self.journal.lines(false)?;
        Ok(self.with_subject(|subject| {
            let is_of_lock = |hold: &PastHold| {
                let is_named = hold.all_names().any(|name| name == subject.name);
                subject.is_of(&hold.path, &hold.names) || (is_named && hold.store == subject.store)
            };
            past_holds(&lines, None, is_of_lock)
        }))
    }

    fn with_subject<T>(&self, read: impl FnOnce(&Subject<'_>) -> T) -> T {
        let shared = Key::of(self.name(), Some(0.into()));
        let shared = self.store.path_of_record(&shared);
        let store = self.store.path();
        let shared = resolved_below(&store, &shared);
        let shared = shared.to_string_lossy();
        let begin = shared.strip_suffix("0.lock");
        let begin = begin.filter(|_| !self.name().is_path());
        read(&Subject {
            name: self.name().as_str(),
            store: &resolved(&store),
            path: &resolved_below(&store, &self.path()),
            shared: begin.unwrap_or_default(),
        })
    }
}

/// What is done to a hold that another one replaces.
pub(super) fn action_on(state: State, if_dead: Action) -> Option<Action> {
    match state {
        State::Zombie => Some(if_dead),
        State::Held | State::Overdue => Some(Action::Break),
        State::Free | State::NotALock => None,
    }
}

/// How a hold ended that was removed as it was found.
pub(super) fn result_of(was: &Status) -> HoldResult {
    match (was.verdict.state, was.verdict.reason) {
        (State::Held | State::Overdue, _) => HoldResult::Broken,
        (_, Reason::Expired) => HoldResult::Expired,
        (_, Reason::Finished) => HoldResult::Exited,
        _ => HoldResult::TakenOver,
    }
}
