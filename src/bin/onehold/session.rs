//! What one call of the program knows of its surroundings: the store, and the holds it runs in.

use std::path::PathBuf;

use anyhow::Context;
use percent_encoding::percent_decode_str;

use onehold::{Claimant, Lock, LockName, State, Status, Store};

use crate::args::Everywhere;

/// One call of the program.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) verb: &'static str,
    pub(crate) everywhere: Everywhere,
    pub(crate) store: Store,
    /// The store that every call without further word uses.
    pub(crate) is_default_store: bool,
    /// What the caller says about himself, for `mine`, release and renew.
    pub(crate) claimant: Claimant,
}

/// The holds that this call runs inside of.
pub(crate) const HOLDS: &str = "ONEHOLD_HOLDS";

impl Session {
    pub(crate) fn new(
        verb: &'static str,
        everywhere: Everywhere,
        mut claimant: Claimant,
    ) -> anyhow::Result<Self> {
        let (directory, is_default_store) = store_directory(&everywhere)?;
        let store = Store::at(directory);
        claimant.enclosing = enclosing_holds();
        Ok(Self {
            verb,
            everywhere,
            store,
            is_default_store,
            claimant,
        })
    }

    /// Whether this call runs inside the hold of `status`, which then ends only after it.
    pub(crate) fn is_inside(&self, status: &Status) -> bool {
        let in_force = matches!(status.verdict.state, State::Held | State::Overdue);
        in_force
            && status
                .hold()
                .is_some_and(|hold| self.claimant.enclosing.contains(&hold))
    }

    pub(crate) fn lock(&self, name: LockName) -> onehold::Result<Lock> {
        self.store.lock(name)
    }
}

fn store_directory(everywhere: &Everywhere) -> anyhow::Result<(PathBuf, bool)> {
    if let Some(dir) = &everywhere.dir {
        return Ok((dir.clone(), false));
    }
    if let Some(dir) = std::env::var_os("ONEHOLD_DIR").filter(|dir| !dir.is_empty()) {
        return Ok((dir.into(), false));
    }
    // Asks the user database where HOME is not set, as under some supervisors.
    let home = std::env::home_dir()
        .filter(|home| home.is_absolute())
        .context("cannot find the home directory: pass --dir")?;
    Ok((home.join(".local/state/onehold"), true))
}

fn enclosing_holds() -> Vec<u64> {
    std::env::var(HOLDS)
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|hold| hold.split_once(':')?.0.parse().ok())
        .collect()
}

/// The names of the holds that this call runs inside of.
pub(crate) fn enclosing_names() -> Vec<String> {
    std::env::var(HOLDS)
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|hold| {
            let (_, name) = hold.split_once(':')?;
            Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
        })
        .collect()
}
