//! What one call of the program knows of its surroundings: the store, and the holds it runs in.

use std::path::{Path, PathBuf};

use anyhow::Context;
use percent_encoding::percent_decode_str;

use onehold::{Claimant, Format, Lock, LockName, State, Status, Store};

use crate::args::Everywhere;
use crate::settings::InForce;
use crate::{describe, output};

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
    pub(crate) in_force: InForce,
    /// What is written, unless somebody else's file says otherwise.
    pub(crate) format: Format,
    /// The one lock that there is, under a profile for one path.
    pub(crate) only: Option<LockName>,
}

/// What was typed makes no sense, which shows only once profile and configuration are known.
#[derive(Debug)]
pub(crate) struct Misuse(pub(crate) String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// The holds that this call runs inside of.
pub(crate) const HOLDS: &str = "ONEHOLD_HOLDS";

impl Session {
    pub(crate) fn new(
        verb: &'static str,
        everywhere: Everywhere,
        mut claimant: Claimant,
        in_force: InForce,
        only: Option<LockName>,
    ) -> anyhow::Result<Self> {
        let settings = &in_force.settings;
        let format = everywhere
            .format
            .or_else(|| settings.format())
            .unwrap_or_default();
        let (directory, is_default_store) = store_directory(everywhere.dir.clone(), &in_force)?;
        let mut store = Store::at(directory).format(format);
        // Without a home the journal is where the locks are.
        if in_force.profile.is_some()
            && let Ok((own, _)) = own_store_directory(&in_force)
        {
            store = store.journal_in(&Store::at(own));
        }
        claimant.enclosing = enclosing_holds();
        Ok(Self {
            verb,
            everywhere,
            store,
            is_default_store,
            claimant,
            in_force,
            format,
            only,
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

    /// Where the locks are that `list` and `cleanup` are about.
    pub(crate) fn place(&self) -> String {
        match &self.only {
            Some(name) => describe::escape(name.as_str()),
            None => output::shown(self.store.path()),
        }
    }

    /// What `--dir` must say for another call to reach the same store, if it must be given.
    pub(crate) fn directory_to_name(&self) -> Option<&Path> {
        if self.only.is_some() {
            return self.everywhere.dir.as_deref();
        }
        let by_profile = self.in_force.profile.is_some()
            && self.in_force.settings.dir.is_some()
            && self.everywhere.dir.is_none();
        (!by_profile && !self.is_default_store).then(|| self.store.path())
    }

    /// A lock that has to be named, here or by a profile.
    pub(crate) fn named_lock(&self, name: Option<LockName>) -> anyhow::Result<Lock> {
        let name = name.ok_or_else(|| Misuse("no NAME: which lock?".to_owned()))?;
        Ok(self.lock(name)?)
    }
}

/// The lock that a profile for one path is about.
pub(crate) fn lock_of_path(
    everywhere: &Everywhere,
    in_force: &InForce,
) -> anyhow::Result<Option<LockName>> {
    let Some(path) = &in_force.settings.path else {
        return Ok(None);
    };
    let path = path
        .expanded()
        .with_context(|| format!("the path of the profile, {path:?}, is not known here"))?;
    let mut whole = everywhere.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    whole.push(path);
    if whole.is_relative() && !whole.starts_with(".") && !whole.starts_with("..") {
        whole = PathBuf::from(".").join(whole);
    }
    Ok(Some(LockName::new(whole)?))
}

/// The store of this call: where its locks are, and whether every call without further word uses
/// it. A profile is the nearer word, though it may come from the environment, too.
fn store_directory(typed: Option<PathBuf>, in_force: &InForce) -> anyhow::Result<(PathBuf, bool)> {
    if let Some(dir) = typed {
        return Ok((dir, false));
    }
    match &in_force.settings.dir {
        Some(dir) if in_force.profile.is_some() => Ok((dir.first()?, false)),
        _ => own_store_directory(in_force),
    }
}

/// The store without a profile.
fn own_store_directory(in_force: &InForce) -> anyhow::Result<(PathBuf, bool)> {
    if let Some(dir) = std::env::var_os("ONEHOLD_DIR").filter(|dir| !dir.is_empty()) {
        return Ok((dir.into(), false));
    }
    if let Some(dir) = &in_force.default_dir {
        return Ok((dir.clone(), true));
    }
    if cfg!(windows)
        && let Some(data) = std::env::var_os("LOCALAPPDATA").filter(|data| !data.is_empty())
    {
        return Ok((PathBuf::from(data).join("onehold"), true));
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
