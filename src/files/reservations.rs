//! Since when a free lock has been reserved for which waiter. All of it may be lost: then a waiter has its turn again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};

use super::flat::Flat;
use super::lock_file::open_or_replace;
use crate::open_file::read_all;
use crate::sys::directory::{Directory, FileExt as _, Found};
use crate::sys::process::boottime_milliseconds;
use crate::sys::temporary::random_temporary_name;

/// Read as far as a record is: that is enough for thousands of stopped waiters.
pub(super) const RESERVATIONS: &str = "reserved";

/// Since when a free lock has been reserved for which ticket.
pub(super) type Reservations = BTreeMap<u64, u64>;

/// Those of a store that is not a sticky one. `None`: something else is in the place of the file, so that no
/// reservation can be written, and none may last.
pub(super) fn read(waiting: &Directory) -> Option<Reservations> {
    let file = match waiting.find(OsStr::new(RESERVATIONS)) {
        Ok(Found::File(file, _)) => file,
        Ok(Found::Other(_)) => return None,
        _ => return Some(BTreeMap::new()),
    };
    // An empty text is not parsed: to say where the error is, serde_json asks the processor for
    // its features, which takes 50 µs in a virtual machine.
    let text = read_all(&file).ok().filter(|text| !text.is_empty());
    let read = text.and_then(|text| serde_json::from_slice(&text).ok());
    Some(read.unwrap_or_default())
}

pub(super) fn write(waiting: &Directory, reservations: &Reservations) -> io::Result<()> {
    let name = OsStr::new(RESERVATIONS);
    // In a sticky directory another user's file cannot be removed, and is emptied.
    if reservations.is_empty() && waiting.unlink(name).is_ok() {
        return Ok(());
    }
    let text = serde_json::to_vec(reservations)?;
    if !waiting.is_own() {
        return waiting.replace(&random_temporary_name(), name, &text);
    }
    let file = open_or_replace(waiting, name)?;
    file.set_len(0)?;
    file.write_all_at(&text, 0)
}

/// What the users of a sticky store have written about reservations, each in a file of its own: since when a free lock
/// has been reserved for which ticket, and when which waiter was given its turn again. The later one counts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FlatReservations {
    reserved: Reservations,
    restored: Reservations,
}

impl FlatReservations {
    fn read(file: &File) -> Option<Self> {
        serde_json::from_slice(&read_all(file).ok()?).ok()
    }

    pub(super) fn of_all(flat: &Flat) -> Self {
        let mut all = Self::default();
        for one in flat.open_files(RESERVATIONS) {
            let one = Self::read(&one).unwrap_or_default();
            for (number, at) in one.reserved {
                let first = all.reserved.entry(number).or_insert(at);
                *first = at.min(*first);
            }
            for (number, at) in one.restored {
                let last = all.restored.entry(number).or_insert(at);
                *last = at.max(*last);
            }
        }
        all
    }

    pub(super) fn of_caller(flat: &Flat) -> Self {
        let own = flat.directory().find(&Flat::own_file(RESERVATIONS)).ok();
        let own = own.and_then(Found::file);
        own.and_then(|own| Self::read(&own)).unwrap_or_default()
    }

    pub(super) fn merged(mut self) -> Reservations {
        let restored = self.restored;
        self.reserved
            .retain(|number, at| restored.get(number).is_none_or(|restored| restored < at));
        self.reserved
    }

    /// Notes both, and forgets the tickets that are not `left`. Under the guard.
    pub(super) fn change(
        mut self,
        flat: &Flat,
        reserve: Option<u64>,
        restore: Option<u64>,
        is_left: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let now = boottime_milliseconds();
        self.reserved.extend(reserve.map(|number| (number, now)));
        self.restored.extend(restore.map(|number| (number, now)));
        self.reserved.retain(|number, _| is_left(*number));
        self.restored.retain(|number, _| is_left(*number));
        flat.replace(RESERVATIONS, &serde_json::to_vec(&self)?)
    }
}
