//! Where a record belongs, as it says itself.

use super::layout;
use crate::decision::Key;
use crate::name::LockName;
use crate::open_file::Found;
use crate::record::Record;
use crate::status::Provenance;

/// Where a found record was written. Only one that was written here makes others send signals or write into it:
/// its file may have been renamed, linked or copied from elsewhere. `None`: it does not say.
pub(crate) fn of(found: &Found) -> Option<Provenance> {
    let record = found.content.record()?;
    record.origin.as_ref()?;
    Some(if !found.facts.same_store {
        Provenance::OtherStore
    } else if names(record, &found.key) {
        Provenance::Here
    } else {
        Provenance::OtherName
    })
}

/// Whether a record says that it is one of a key.
fn names(record: &Record, key: &Key) -> bool {
    let is_shared = record.mode.is_shared();
    is_shared == key.index.is_some()
        && record.all_names().any(|name| {
            name == key.name.as_str()
                || LockName::new(name).is_ok_and(|name| leads_to(&name, &key.name))
        })
}

/// Whether two names lead to one file of a directory. A path can be written in many ways, and its store is that
/// directory.
fn leads_to(name: &LockName, other: &LockName) -> bool {
    name == other
        || ((name.is_path() || other.is_path())
            && layout::parents(name) == layout::parents(other)
            && layout::file_name(name) == layout::file_name(other))
}
