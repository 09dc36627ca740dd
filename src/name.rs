//! Names of locks: what is a name, and which name is above which.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::sys::directory::is_path;
use crate::sys::{FILES_IGNORE_CASE, HAS_DEVICES};

const MAX_SEGMENT_BYTES: usize = 240;
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// The name of a lock: one in a store (`backup`, `backend/task-1`), or the path of one lock file,
/// which starts with `/`, `./` or `../`.
///
/// ```
/// use onehold::LockName;
///
/// let name: LockName = "backend/task-1".parse()?;
/// assert!(!name.is_path());
/// assert!(LockName::new("./.sprint-running")?.is_path());
/// assert!(LockName::new("a//b").is_err());
/// # Ok::<(), onehold::Error>(())
/// ```
#[derive(Clone, Debug, Eq)]
pub struct LockName {
    // Shared: names are copied for every waiter, record and relative that a decision looks at.
    text: Arc<str>,
    place: Arc<Place>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Place {
    /// Encoded segments.
    Store(Vec<String>),
    /// With a directory and a file name.
    Path(PathBuf),
}

impl LockName {
    /// Checks a name; touches nothing.
    ///
    /// # Errors
    /// [`Error::InvalidName`]: an empty, `.` or `..` segment, a control character, a segment
    /// longer than 240 bytes once encoded, a
    /// name longer than 1 KiB, or a path that ends in no file name.
    pub fn new(name: impl AsRef<OsStr>) -> Result<Self> {
        let name = name.as_ref();
        if is_path(name) {
            return Self::of_path(name);
        }
        let Some(text) = name.to_str() else {
            return Err(invalid(name, "not valid UTF-8"));
        };
        if text.len() > MAX_NAME_BYTES {
            return Err(invalid(name, "longer than 1024 bytes"));
        }
        let segments = text
            .split('/')
            .map(|segment| encode(segment).map_err(|reason| invalid(name, reason)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            text: text.into(),
            place: Arc::new(Place::Store(segments)),
        })
    }

    fn of_path(name: &OsStr) -> Result<Self> {
        if name.as_encoded_bytes().iter().any(u8::is_ascii_control) {
            return Err(invalid(name, "control character"));
        }
        // Path::file_name ignores a trailing slash or dot, which ask for a directory.
        let bytes = name.as_encoded_bytes();
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        let ends_in_separator = bytes
            .last()
            .is_some_and(|byte| std::path::is_separator(char::from(*byte)));
        let path = Path::new(name);
        if ends_in_separator || path.file_name().is_none() {
            return Err(invalid(name, "a directory cannot be a lock file"));
        }
        if HAS_DEVICES && path.file_name().is_some_and(is_no_file_name) {
            return Err(invalid(name, "Windows has no file of that name"));
        }
        Ok(Self {
            text: name.to_string_lossy().into(),
            place: Arc::new(Place::Path(path.to_owned())),
        })
    }

    /// The name, as it was given. A path that is not UTF-8 is shown with replacement characters.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is the path of a lock file rather than a name in a store.
    pub fn is_path(&self) -> bool {
        self.as_path().is_some()
    }

    /// Whether a program that creates `NAME.lock` in the same directory, without encoding anything,
    /// means the same file.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_path() || matches!(self.segments(), [one] if **one == *self.text)
    }

    fn as_path(&self) -> Option<&Path> {
        match &*self.place {
            Place::Store(_) => None,
            Place::Path(path) => Some(path),
        }
    }

    /// The directory of a path.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.as_path()?.parent()
    }

    /// The ancestors of this name, outermost first.
    pub(crate) fn ancestors(&self) -> Vec<Self> {
        let Place::Store(segments) = &*self.place else {
            return Vec::new();
        };
        let ends = self.text.match_indices('/').map(|(at, _)| at);
        ends.zip(1..)
            .map(|(end, depth)| Self {
                text: self.text.get(..end).unwrap_or_default().into(),
                place: Arc::new(Place::Store(segments.iter().take(depth).cloned().collect())),
            })
            .collect()
    }

    /// Whether `other` is below this name. A path has no relatives.
    pub(crate) fn is_ancestor_of(&self, other: &Self) -> bool {
        let (own, others) = (self.segments(), other.segments());
        !own.is_empty() && own.len() < others.len() && begin_alike(own, others)
    }

    /// Its segments, encoded for file names; empty for a path.
    pub(crate) fn segments(&self) -> &[String] {
        match &*self.place {
            Place::Store(segments) => segments,
            Place::Path(_) => &[],
        }
    }

    /// The file name of a path.
    pub(crate) fn path_file(&self) -> Option<&OsStr> {
        self.as_path()?.file_name()
    }
}

/// Whether two names mean one lock: as far as can be told without the filesystem.
impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (self.segments(), other.segments());
        self.text == other.text
            || (FILES_IGNORE_CASE
                && !own.is_empty()
                && own.len() == others.len()
                && begin_alike(own, others))
    }
}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if FILES_IGNORE_CASE {
            self.text.to_lowercase().hash(state);
        } else {
            self.text.hash(state);
        }
    }
}

/// Whether the segments that both names have are the same.
fn begin_alike(one: &[String], other: &[String]) -> bool {
    let same = |(one, other): (&String, &String)| {
        one == other || (FILES_IGNORE_CASE && one.to_lowercase() == other.to_lowercase())
    };
    one.iter().zip(other).all(same)
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

/// Encodes a segment, so that it can be part of a file name on any system.
pub(crate) fn encode(segment: &str) -> Result<String, &'static str> {
    if segment.is_empty() {
        return Err("empty name part");
    }
    if segment == "." || segment == ".." {
        return Err("`.` or `..` as a name part (a path starts with `/`, `./` or `../`)");
    }
    if segment.chars().any(char::is_control) {
        return Err("control character");
    }
    let mut encoded = String::with_capacity(segment.len());
    for (at, char) in segment.char_indices() {
        let begins_badly = at == 0 && (char == '.' || (HAS_DEVICES && is_a_device(segment)));
        if begins_badly || is_reserved(char) {
            // All of these, and the letters that devices begin with, are ASCII.
            let _ = write!(encoded, "%{:02X}", u32::from(char));
        } else {
            encoded.push(char);
        }
    }
    if encoded.len() > MAX_SEGMENT_BYTES {
        return Err("name part longer than 240 bytes");
    }
    Ok(encoded)
}

/// Whether some system that may see the store does not allow it in a file name, or it is the sign of an
/// encoded character.
fn is_reserved(char: char) -> bool {
    matches!(char, '%' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|')
}

/// Whether Windows takes the name of a file for another one, or for none: it leaves out dots and blanks
/// at the end.
fn is_no_file_name(file: &OsStr) -> bool {
    let file = file.to_string_lossy();
    file.ends_with(['.', ' '])
        || file.contains(['<', '>', ':', '"', '|', '?', '*'])
        || is_a_device(&file)
}

/// Whether Windows takes it for a device; what follows a dot does not matter.
fn is_a_device(segment: &str) -> bool {
    let stem = segment.split_once('.').map_or(segment, |(stem, _)| stem);
    let stem = stem.trim_end().to_ascii_lowercase();
    let numbered = |prefix| {
        stem.strip_prefix(prefix)
            // The digits above the line count as well.
            .is_some_and(|number| {
                matches!(number, "¹" | "²" | "³") || matches!(number.as_bytes(), [b'1'..=b'9'])
            })
    };
    ["con", "prn", "aux", "nul", "conin$", "conout$"].contains(&stem.as_str())
        || numbered("com")
        || numbered("lpt")
}

fn invalid(name: &OsStr, reason: &'static str) -> Error {
    Error::InvalidName {
        name: name.to_string_lossy().into_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        let long = "x".repeat(241);
        for name in [
            "", "a//b", "a/", "a/./b", "a/../b", "..", ".", "a\nb", "a\u{7f}", "/", "./", "../..",
            "/tmp/.", &long,
        ] {
            assert!(LockName::new(name).is_err(), "{name:?}");
        }
        assert!(LockName::new("x".repeat(240)).is_ok());
        assert!(LockName::new("%".repeat(81)).is_err());
    }

    #[test]
    fn name_is_an_ancestor_of_the_names_below_it() {
        let name = LockName::new("a/.b/c").expect("a name");
        let ancestors: Vec<String> = name.ancestors().iter().map(ToString::to_string).collect();
        assert_eq!(ancestors, ["a", "a/.b"]);
        assert_eq!(
            name.ancestors(),
            [
                LockName::new("a").expect("a"),
                LockName::new("a/.b").expect("b")
            ]
        );
        let named = |name| LockName::new(name).expect("a name");
        assert!(named("a").ancestors().is_empty());
        assert!(named("a").is_ancestor_of(&name) && named("a/.b").is_ancestor_of(&name));
        for other in ["a/.b/c", "a/.b/c/d", "ab", "a/b", "b"] {
            assert!(!named(other).is_ancestor_of(&name), "{other}");
        }
        assert!(!named("./a").is_ancestor_of(&named("./a/b")));
    }

    #[test]
    fn names_that_differ_in_case_are_one_where_their_files_are() {
        let named = |name| LockName::new(name).expect("a name");
        let (one, other) = (named("Übung/A"), named("übung/a"));
        assert_eq!(one == other, FILES_IGNORE_CASE);
        assert_eq!(named("ÜBUNG").is_ancestor_of(&one), FILES_IGNORE_CASE);
        let hash = |name: &LockName| BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        assert_eq!(hash(&one) == hash(&other), FILES_IGNORE_CASE);
        assert_ne!(one, named("Übung"));
        assert_ne!(named("./A"), named("./a"));
    }

    #[test]
    fn no_file_has_the_name_of_a_device() {
        for device in [
            "aux", "Nul", "con.x", "COM1", "lpt9.a.b", "prn ", "CONIN$", "com²",
        ] {
            assert!(is_a_device(device), "{device}");
        }
        for name in ["auxiliary", "com10", "com0", "x.con", "lpt"] {
            assert!(!is_a_device(name), "{name}");
        }
        let expected = if HAS_DEVICES { "%61ux" } else { "aux" };
        assert_eq!(LockName::new("aux").expect("a name").segments(), [expected]);
    }

    #[test]
    fn path_names_no_file_that_windows_takes_for_another_one() {
        for file in ["x.", "x ", "NUL", "aux.lock", "x:stream", "a?b"] {
            assert!(is_no_file_name(OsStr::new(file)), "{file}");
            assert_eq!(
                LockName::new(format!("./{file}")).is_err(),
                HAS_DEVICES,
                "{file}"
            );
        }
        assert!(!is_no_file_name(OsStr::new(".sprint-running")));
    }

    #[test]
    fn path_names_the_lock_file_itself() {
        let name = LockName::new("./.sprint-running").expect("a path");
        assert!(name.is_path());
        assert_eq!(name.directory(), Some(Path::new(".")));
        assert_eq!(name.path_file(), Some(OsStr::new(".sprint-running")));
    }
}
