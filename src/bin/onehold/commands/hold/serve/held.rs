//! A hold of a server, and its end.

use std::path::Path;
use std::time::Instant;

use onehold::{Hold, Lock};

use crate::commands::hold::event::Event;
use crate::commands::hold::{End, NOTED_WITHIN, give_back, is_noted_as_broken};

/// A hold of the program.
pub(super) struct Held {
    pub(super) hold: Hold,
    pub(super) lock: Lock,
    pub(super) caller: Option<u64>,
    /// Since when its file is known to be gone.
    pub(super) missing_since: Option<Instant>,
}

impl Held {
    /// Whether it is the hold of this number in this store.
    pub(super) fn is(&self, number: u64, store: &Path) -> bool {
        self.hold.number() == number && self.hold.path().starts_with(store)
    }

    /// Whether one of these callers has it.
    pub(super) fn is_of(&self, callers: &[u64]) -> bool {
        self.caller.is_some_and(|caller| callers.contains(&caller))
    }

    /// Why the hold has ended, if it has. `is_releasing`: a record that is gone may be one that the program itself
    /// has just released by its name.
    pub(super) fn is_over(&mut self, is_releasing: bool) -> Option<End> {
        if self.hold.is_broken() {
            return Some(End::Broken);
        }
        let is_over = self.hold.lost_in().is_some_and(|left| left.is_zero());
        if !is_over && (is_releasing || !matches!(self.hold.is_lost(), Ok(true))) {
            return None;
        }
        if is_noted_as_broken(&self.lock, self.hold.number()) {
            return Some(End::Broken);
        }
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        (is_over || since.elapsed() >= NOTED_WITHIN).then_some(End::Lost)
    }

    /// Gives it back. A loss is reported first: after the release, another may hold the lock.
    pub(super) fn give_back(mut self, id: u64, why: &End, tell: &mut dyn FnMut(String)) {
        let number = self.hold.number();
        let mut tell = |why: &End, loss: Option<&str>, error: Option<&onehold::Error>| {
            tell(Event::ended(number, why, loss, error).of(id).line());
        };
        if matches!(why, End::RequestByName) {
            // What is left of it: its place in the queue, for example.
            drop(self.hold);
            return tell(why, None, None);
        }
        give_back(&mut self.hold, why, &mut tell);
    }
}
