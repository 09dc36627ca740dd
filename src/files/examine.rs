//! What `doctor` says about a store that is a directory, and what it makes in one.

use std::ffi::OsStr;
use std::path::Path;

use super::flat::Flat;
use super::guard::{Guard, Root, Whose};
use super::layout::{self, META_DIR};
use crate::backend::Patience;
use crate::error::{Context as _, Error, Result, cause_text};
use crate::finding::Finding;
use crate::sys::directory::{Directory, Kind};
use crate::sys::process::{own_uid, user_name};

const LAYOUT: &str = "layout";
const CREATE: &str = "create";

/// Files that earlier versions made in `.onehold` of a sticky store.
const OF_EARLIER: [&str; 4] = ["last", "waiting", "events.jsonl", "shared"];

/// Who can keep the guard, and how a sticky store is laid out. Changes nothing.
pub(crate) fn examine(store: &Path) -> Vec<Finding> {
    let Ok(mut directory) = Directory::open(store) else {
        return Vec::new();
    };
    if directory.share().is_err() || !directory.is_shared() {
        return Vec::new();
    }
    let advice =
        "calls that wait for it say which process does; a store of one user has no such users";
    let busy = "every user who may read the store can keep it busy";
    let mut found = vec![Finding::warning("guard", busy).advice(advice)];
    if directory.is_sticky_store() {
        let layout = layout(store, &directory);
        found.push(layout.unwrap_or_else(|error| failed(LAYOUT, &error)));
    }
    found
}

fn layout(store: &Path, directory: &Directory) -> Result<Finding> {
    let Some(root) = Root::open(store, true)? else {
        return Ok(Finding::ok(LAYOUT, "flat"));
    };
    let entries = directory.entries();
    for (file, kind) in entries.context("read directory", store)? {
        if kind == Kind::OtherOrUnknown && layout::children_of(&file).is_some() {
            let owner = directory.facts(&file).ok().flatten();
            let owner = user_name(owner.map_or(0, |facts| facts.owner));
            let detail = format!(
                "{} is of an earlier version, or of somebody else: it belongs to user {owner}",
                store.join(&file).display()
            );
            let advice =
                "locks in it are not seen: end what earlier versions hold there, and remove it";
            return Ok(Finding::warning(LAYOUT, detail).advice(advice));
        }
    }
    let Some(own) = root.flat.as_ref().and_then(|flat| flat.prepared()) else {
        let detail = "flat; each user has files of its own for numbers, tickets and the journal";
        return Ok(Finding::ok(LAYOUT, detail));
    };
    let is_there = |name: &str| matches!(own.facts(OsStr::new(name)), Ok(Some(_)));
    Ok(match OF_EARLIER.iter().find(|name| is_there(name)) {
        Some(name) => {
            let path = store.join(META_DIR).join(name);
            let detail = format!("earlier versions have used it: {}", path.display());
            let advice =
                "they and this one do not exclude each other: end what they hold, and remove it";
            Finding::warning(LAYOUT, detail).advice(advice)
        }
        None => Finding::ok(LAYOUT, "flat; files of each user are in .onehold"),
    })
}

/// Makes what root makes in a sticky store, so that its users do not.
pub(crate) fn create(store: &Path) -> Finding {
    prepare(store).unwrap_or_else(|error| failed(CREATE, &error))
}

fn prepare(store: &Path) -> Result<Finding> {
    let needs_nothing = Finding::ok(CREATE, "nothing: it is no store with a sticky bit");
    let Some(guard) = Guard::enter(store, Patience::SHORT, Whose::Store)? else {
        return Ok(needs_nothing);
    };
    let Some(flat) = guard.root.flat.as_deref() else {
        return Ok(needs_nothing);
    };
    let owner = guard
        .root
        .directory
        .modes()
        .map_or(0, |(_, owner, _)| owner);
    if !own_uid().is_some_and(|own| own == 0 || own == owner) {
        let detail = format!("only root and user {} can prepare it", user_name(owner));
        return Ok(Finding::failed(CREATE, detail).advice("run it as one of these"));
    }
    let path = store.join(META_DIR);
    Flat::prepare(flat).context("create directory", &path)?;
    let detail = format!("{} is there, for all users", path.display());
    Ok(Finding::ok(CREATE, detail))
}

/// An error with its cause.
fn failed(check: &'static str, error: &Error) -> Finding {
    let text = match error {
        Error::Io { source, .. } => format!("{error}: {}", cause_text(source)),
        _ => error.to_string(),
    };
    Finding::failed(check, text).advice("remove what is in the way once no lock is held in it")
}
