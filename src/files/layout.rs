//! Where the files of a store are: `NAME.lock`, `NAME.d/` for the names below it, in that
//! `.shared/N.lock` or `N-DIGEST.lock` for the shared holds of NAME, and `.onehold/` for everything that is not a lock.
//! In a sticky store there are no such directories: each `.d/` is a `%2F` in the name of one file.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::decision::{Index, Key};
use crate::error::{Context as _, Error, Result};
use crate::name::{LockName, MAX_NAME_BYTES, encode};
use crate::sys::directory::is_sticky_store;

/// The directory of a store that keeps what is not a lock.
pub(crate) const META_DIR: &str = ".onehold";

/// The directory of the shared holds of a name, beside the locks below it. No name leads there.
pub(crate) const SHARED_DIR: &str = ".shared";

const LOCK_SUFFIX: &str = ".lock";
const CHILDREN_SUFFIX: &str = ".d";

/// What stands for a directory in a flat layout: `/`, encoded. No segment of a name has it, because each `%` of a name
/// is encoded, too.
const SEPARATOR: &str = "%2F";

/// How the records of a store lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Tree,
    /// That of a sticky store: all in one directory.
    Flat,
}

impl Layout {
    /// That of the store at a path.
    pub(crate) fn of(store: &Path) -> Self {
        if is_sticky_store(store) {
            Self::Flat
        } else {
            Self::Tree
        }
    }

    /// Where a record is: the directories below the store that lead to it, and its file there.
    pub(crate) fn place_of(self, key: &Key) -> (Vec<OsString>, OsString) {
        match (self, key.index) {
            (Self::Tree, None) => (parents(&key.name), file_name(&key.name)),
            (Self::Tree, Some(index)) => {
                let file = format!("{index}{LOCK_SUFFIX}");
                (shared(&key.name), file.into())
            }
            (Self::Flat, _) => (Vec::new(), flat_file_name(key)),
        }
    }

    /// The file of a record below a directory: the store, or for a path its own.
    pub(crate) fn path_below(self, directory: &Path, key: &Key) -> PathBuf {
        let (parents, file) = self.place_of(key);
        let mut path = directory.to_owned();
        path.extend(parents);
        path.push(file);
        path
    }
}

/// The name of the lock file in its directory.
pub(crate) fn file_name(name: &LockName) -> OsString {
    if let Some(file) = name.path_file() {
        return file.to_owned();
    }
    let mut file = name.segments().last().cloned().unwrap_or_default();
    file.push_str(LOCK_SUFFIX);
    file.into()
}

/// The name of a record's file in a flat layout.
pub(crate) fn flat_file_name(key: &Key) -> OsString {
    if let Some(file) = key.name.path_file() {
        return file.to_owned();
    }
    let mut file = key.name.segments().join(SEPARATOR);
    if let Some(index) = key.index {
        let _ = write!(file, "{SEPARATOR}{SHARED_DIR}{SEPARATOR}{index}");
    }
    file.push_str(LOCK_SUFFIX);
    file.into()
}

/// Which record a file of a flat layout is. `None`: no name leads there.
pub(crate) fn flat_key(file: &OsStr) -> Option<Key> {
    let record = file.to_str()?.strip_suffix(LOCK_SUFFIX)?;
    let mut parts: Vec<&str> = record.split(SEPARATOR).collect();
    let index = match parts.as_slice() {
        [.., SHARED_DIR, index] => {
            let index = index.parse().ok()?;
            parts.truncate(parts.len() - 2);
            Some(index)
        }
        _ => None,
    };
    let segments = parts.into_iter().map(decoded).collect::<Option<Vec<_>>>()?;
    let name = LockName::new(segments.join("/")).ok()?;
    (!name.is_path()).then_some(Key { name, index })
}

/// The first segment, encoded, of the names below which a directory of another layout may have locks.
pub(crate) fn children_of(file: &OsStr) -> Option<&str> {
    let encoded = file.to_str()?.strip_suffix(CHILDREN_SUFFIX)?;
    decoded(encoded).map(|_| encoded)
}

/// What a part of a file name says, if it is written as it is for that.
fn decoded(encoded: &str) -> Option<String> {
    let segment = percent_decode_str(encoded).decode_utf8().ok()?;
    (encode(&segment).ok()? == encoded && !segment.contains('/')).then(|| segment.into_owned())
}

/// The directories below the store that lead to the lock file, outermost first.
pub(crate) fn parents(name: &LockName) -> Vec<OsString> {
    let segments = name.segments().split_last();
    directories(segments.map_or(&[], |(_, parents)| parents))
}

/// The directories below the store that lead to the locks below a name.
pub(crate) fn children(name: &LockName) -> Vec<OsString> {
    directories(name.segments())
}

/// The directories below the store that lead to the shared holds of a name.
pub(crate) fn shared(name: &LockName) -> Vec<OsString> {
    let mut parts = children(name);
    parts.push(SHARED_DIR.into());
    parts
}

/// Whether a directory is that of the shared holds of a name.
fn is_shared_dir(directory: &Path) -> bool {
    let parent = directory.parent().and_then(Path::file_name);
    let is_below_name = parent.is_some_and(|name| {
        name.as_encoded_bytes()
            .ends_with(CHILDREN_SUFFIX.as_bytes())
    });
    is_below_name && directory.file_name() == Some(OsStr::new(SHARED_DIR))
}

/// The directory of a path, absolute, so that it stays the same when the caller changes its directory. `None`: it
/// is no path.
pub(crate) fn directory_of(name: &LockName) -> Result<Option<PathBuf>> {
    let Some(directory) = name.directory() else {
        return Ok(None);
    };
    if is_shared_dir(directory) {
        return Err(Error::InvalidName {
            name: name.as_str().to_owned(),
            reason: "a slot of a shared lock has no path of its own: use the name of the lock",
        });
    }
    let absolute = std::path::absolute(directory);
    absolute.context("find the directory", directory).map(Some)
}

/// Which shared hold a file is of.
pub(crate) fn shared_index(file: &OsStr) -> Option<Index> {
    file.to_str()?.strip_suffix(LOCK_SUFFIX)?.parse().ok()
}

/// An entry of a store directory, by its name.
pub(crate) enum Entry {
    Lock(LockName),
    /// The directory of the locks below this name.
    Children(String),
    /// The directory of the shared holds of the parent.
    Shared(LockName),
    /// A directory so deep that no name leads to it: another user may have made any number of them in each other.
    TooDeep,
}

/// Reads a file name of a store directory. `parent`: the name whose children the directory has, if it
/// is not the store itself. `None`: no name leads there.
pub(crate) fn entry(parent: Option<&str>, file: &OsStr) -> Option<Entry> {
    let file = file.to_str()?;
    if file == SHARED_DIR {
        return LockName::new(parent?).ok().map(Entry::Shared);
    }
    let name_of = |encoded: &str| {
        let segment = decoded(encoded)?;
        Some(match parent {
            Some(parent) => format!("{parent}/{segment}"),
            None => segment,
        })
    };
    if let Some(encoded) = file.strip_suffix(LOCK_SUFFIX) {
        return LockName::new(name_of(encoded)?).ok().map(Entry::Lock);
    }
    let name = name_of(file.strip_suffix(CHILDREN_SUFFIX)?)?;
    Some(if name.len() > MAX_NAME_BYTES {
        Entry::TooDeep
    } else {
        Entry::Children(name)
    })
}

/// Whether a file of this name can be a lock of a store.
pub(crate) fn has_lock_suffix(file: &OsStr) -> bool {
    file.as_encoded_bytes().ends_with(LOCK_SUFFIX.as_bytes())
}

/// The lock of a store that a path leads to: a lock file in a directory that has `.onehold`, or in
/// one of the `.d` directories below it. So one file is one lock, however it is named.
pub(crate) fn lock_in_store(directory: &Path, file: &OsStr) -> Option<(PathBuf, LockName)> {
    let encoded = file.to_str()?.strip_suffix(LOCK_SUFFIX)?;
    let meta = |path: &Path| std::fs::symlink_metadata(path.join(META_DIR)).ok();
    let own = meta(directory);
    if own.is_some() && Layout::of(directory) == Layout::Flat {
        let key = flat_key(file)?;
        return key
            .index
            .is_none()
            .then(|| (directory.to_owned(), key.name));
    }
    let mut store = directory.to_owned();
    let mut segments = vec![percent_decode_str(encoded).decode_utf8().ok()?.into_owned()];
    let mut found = own;
    while !found.is_some_and(|found| found.is_dir()) {
        let encoded = store.file_name()?.to_str()?.strip_suffix(CHILDREN_SUFFIX)?;
        segments.push(percent_decode_str(encoded).decode_utf8().ok()?.into_owned());
        store.pop();
        found = meta(&store);
    }
    segments.reverse();
    let name = LockName::new(segments.join("/")).ok()?;
    // A file of another spelling is another file.
    let path = Layout::of(&store).path_below(&store, &Key::exclusive(&name));
    (path == directory.join(file)).then_some((store, name))
}

fn directories(segments: &[String]) -> Vec<OsString> {
    let directories = segments.iter();
    directories
        .map(|segment| format!("{segment}{CHILDREN_SUFFIX}").into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> String {
        let key = Key::exclusive(&LockName::new(name).expect(name));
        let path = Layout::Tree.path_below(Path::new("S"), &key);
        path.to_str().expect("UTF-8").replace('\\', "/")
    }

    #[test]
    fn name_is_stored_as_a_tree() {
        assert_eq!(file("backup"), "S/backup.lock");
        assert_eq!(file("backend/task-1"), "S/backend.d/task-1.lock");
        assert_eq!(file("a/b/c"), "S/a.d/b.d/c.lock");
    }

    #[test]
    fn shared_holds_are_files_beside_the_locks_below_their_name() {
        let name = LockName::new("a/b").unwrap();
        let key = |index: u32| Key {
            name: name.clone(),
            index: Some(index.into()),
        };
        let path = Layout::Tree.path_below(Path::new("S"), &key(12));
        assert_eq!(path, Path::new("S/a.d/b.d/.shared/12.lock"));
        assert_eq!(shared_index(OsStr::new("12.lock")), Some(12.into()));
        let found = shared_index(OsStr::new("12-00c0ffee.lock")).unwrap();
        assert_eq!((found.number, found.asker), (12, 0x00c0_ffee));
        for other in [
            "012.lock",
            "12",
            "x.lock",
            "-1.lock",
            "4294967296.lock",
            "12-0.lock",
            "12-00000000.lock",
            "12-00C0FFEE.lock",
            "12-00c0ffee-1.lock",
            ".onehold.lock",
        ] {
            assert_eq!(shared_index(OsStr::new(other)), None, "{other}");
        }
        let entry = entry(Some("a/b"), OsStr::new(SHARED_DIR));
        assert!(matches!(entry, Some(Entry::Shared(of)) if of == name));
    }

    #[test]
    fn file_of_a_flat_layout_leads_back_to_its_record() {
        let key = |name: &str, index: Option<u32>| Key {
            name: LockName::new(name).expect(name),
            index: index.map(Into::into),
        };
        let mut files = Vec::new();
        for name in [
            "a",
            "a/b",
            "a/b/c",
            "a%2Fb",
            "a%252Fb",
            "a/.shared",
            "a/.shared/1",
            ".shared/1",
            "a/1",
            "x.lock/%/ü",
        ] {
            for index in [None, Some(1), Some(12)] {
                let key = key(name, index);
                let (parents, file) = Layout::Flat.place_of(&key);
                assert!(parents.is_empty(), "{name}");
                let found = flat_key(&file).expect(name);
                assert_eq!((found.name, found.index), (key.name, index.map(Into::into)));
                files.push(file);
            }
        }
        let all = files.len();
        files.sort();
        files.dedup();
        assert_eq!(files.len(), all);
        assert!(files.contains(&"a%2Fb.lock".into()));
        assert!(files.contains(&"a%2Fb%2F.shared%2F12.lock".into()));
        for other in [
            "a%2fb.lock",
            "a%2F.lock",
            "%2Fa.lock",
            ".a.lock",
            "a%2F.shared%2Fx.lock",
        ] {
            assert!(flat_key(OsStr::new(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn reserved_characters_are_encoded_and_utf8_is_kept() {
        assert_eq!(file("50%"), "S/50%25.lock");
        assert_eq!(file(".hidden"), "S/%2Ehidden.lock");
        assert_eq!(file(r#"x\:*?"<>|"#), "S/x%5C%3A%2A%3F%22%3C%3E%7C.lock");
        assert_eq!(file("Sicherung übers Netz"), "S/Sicherung übers Netz.lock");
        assert_eq!(file("a.d/b.lock"), "S/a.d.d/b.lock.lock");
    }

    #[test]
    fn two_names_never_share_a_file() {
        let names = [
            "a", "a.lock", "a.d", "a.d/b", "a/b", "a%2Fb", "%2Ea", ".a", "a/.b", "A",
        ];
        let mut files: Vec<String> = names.iter().map(|name| file(name)).collect();
        files.sort();
        files.dedup();
        assert_eq!(files.len(), names.len());
    }

    #[test]
    fn file_name_leads_back_to_its_name() {
        for name in [
            "backup",
            "50%",
            ".hidden",
            "Übung",
            r#"x\:*?"<>|"#,
            "a.lock",
            "aux",
            "Com1.x",
        ] {
            let Some(Entry::Lock(found)) =
                entry(None, &file_name(&LockName::new(name).expect(name)))
            else {
                panic!("{name} is a lock");
            };
            assert_eq!(found.as_str(), name);
        }
    }

    #[test]
    fn file_names_of_no_name_are_ignored() {
        for name in [
            "a%2Fb.lock",
            ".hidden.lock",
            "a%2eb.lock",
            "lock",
            "a.locked",
            ".lock",
        ] {
            assert!(entry(None, OsStr::new(name)).is_none(), "{name}");
        }
    }

    #[test]
    fn path_into_a_store_names_a_lock_of_that_store() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("store");
        std::fs::create_dir_all(store.join(META_DIR)).unwrap();
        let found = |path: &str| {
            let path = store.join(path);
            lock_in_store(path.parent().unwrap(), path.file_name().unwrap())
        };
        let expected = |name: &str| Some((store.clone(), LockName::new(name).unwrap()));
        assert_eq!(found("backup.lock"), expected("backup"));
        assert_eq!(found("backend.d/task-1.lock"), expected("backend/task-1"));
        assert_eq!(found("%2Ehidden.d/50%25.lock"), expected(".hidden/50%"));
        assert_eq!(found("backup.pid"), None);
        assert_eq!(found("other/task-1.lock"), None);
        assert_eq!(found("50%.lock"), None);
        assert_eq!(lock_in_store(root.path(), OsStr::new("backup.lock")), None);
    }
}
