//! What has become of a hold whose record is gone.

use std::io::ErrorKind;
use std::time::SystemTime;

use chrono::{DateTime, TimeDelta, Utc};

use super::lock::Lock;
use crate::files::layout::META_DIR;
use crate::journal_line::{Event, HoldResult};

/// What has become of a hold whose record is not there any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fate {
    /// Another process has ended it.
    Ended(Box<Event>),
    /// It has ended as its holder wanted.
    Released,
    /// Its store is not there any more, or is empty.
    StoreGone,
    /// Its store was removed, and made anew at this time.
    StoreMadeAnew(DateTime<Utc>),
    /// It was released, or its record was removed: nothing tells which.
    Unknown,
}

/// How far the clock of a filesystem may be ahead.
const TOLERANCE: TimeDelta = TimeDelta::seconds(1);

/// No hold is older. Numbers of holds on etcd are no times.
const FIRST_HOLD: DateTime<Utc> = DateTime::from_timestamp_nanos(1_704_067_200_000_000_000);

impl Lock {
    /// What has become of the hold with this number, whose record is gone: what the journal says, and what its
    /// store shows. Changes nothing.
    #[cold]
    pub fn fate(&self, hold: u64) -> Fate {
        let is_it = |event: &Event| event.from.as_ref().and_then(|from| from.hold) == Some(hold);
        let events = self.events(usize::MAX).unwrap_or_default();
        if let Some(event) = events.into_iter().find(is_it) {
            return Fate::Ended(Box::new(event));
        }
        let past = self.history().unwrap_or_default();
        let is_unwanted = |result| {
            use HoldResult::{Broken, Expired, Lost, TakenOver};
            matches!(result, Lost | Broken | Expired | TakenOver)
        };
        let mut past = past.iter();
        if past.any(|past| past.hold == hold && !is_unwanted(past.result)) {
            return Fate::Released;
        }
        if self.is_remote() {
            return Fate::Unknown;
        }
        self.fate_of_store(hold).unwrap_or(Fate::Unknown)
    }

    fn fate_of_store(&self, hold: u64) -> Option<Fate> {
        let store = self.store.path();
        let is_gone = match std::fs::read_dir(&store) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(mut entries) => entries.next().is_none(),
        };
        if is_gone {
            return Some(Fate::StoreGone);
        }
        // Beside a path lock there is none.
        let own = store.join(META_DIR).symlink_metadata().ok()?;
        let made = own.created().unwrap_or(SystemTime::UNIX_EPOCH);
        let made = DateTime::<Utc>::from(made);
        let taken = DateTime::from_timestamp_micros(i64::try_from(hold).ok()?)?;
        let is_earlier = taken >= FIRST_HOLD && taken + TOLERANCE < made;
        is_earlier.then_some(Fate::StoreMadeAnew(made))
    }
}
