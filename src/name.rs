//! Names of locks, and the files they stand for.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::error::{Error, Result};
use crate::sys::directory::{HAS_DEVICES, is_path};

const LOCK_SUFFIX: &str = ".lock";
const SECTION_SUFFIX: &str = ".d";
const MAX_SEGMENT_BYTES: usize = 240;
const MAX_NAME_BYTES: usize = 1024;

/// What no file name may contain on some system that may see the store.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b'%')
    .add(b'\\')
    .add(b':')
    .add(b'*')
    .add(b'?')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'|');

/// The name of a lock: one in a store (`backup`, `backend/task-1`), or the path of one lock file,
/// which starts with `/`, `./` or `../`.
///
/// ```
/// use onehold::LockName;
///
/// assert!(LockName::new("backend/task-1").is_ok());
/// assert!(LockName::new("./.sprint-running").is_ok());
/// assert!(LockName::new("a//b").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockName {
    text: String,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Encoded segments.
    Store(Vec<String>),
    Path {
        directory: PathBuf,
        file: OsString,
    },
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
            text: text.to_owned(),
            place: Place::Store(segments),
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
        if ends_in_separator {
            return Err(invalid(name, "a directory cannot be a lock file"));
        }
        let path = Path::new(name);
        match (path.parent(), path.file_name()) {
            (Some(directory), Some(file)) => Ok(Self {
                text: name.to_string_lossy().into_owned(),
                place: Place::Path {
                    directory: directory.to_owned(),
                    file: file.to_owned(),
                },
            }),
            _ => Err(invalid(name, "a directory cannot be a lock file")),
        }
    }

    /// The name, as it was given. A path that is no UTF-8 is shown with replacement characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is the path of a lock file rather than a name in a store.
    #[must_use]
    pub fn is_path(&self) -> bool {
        matches!(self.place, Place::Path { .. })
    }

    /// Whether a program that makes `NAME.lock` in the same directory, without encoding anything,
    /// means the same file; of a path that is its file name.
    pub(crate) fn is_plain(&self) -> bool {
        match &self.place {
            Place::Path { .. } => true,
            Place::Store(segments) => matches!(segments.as_slice(), [one] if *one == self.text),
        }
    }

    /// The directory that a path's lock file is in.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Store(_) => None,
            Place::Path { directory, .. } => Some(directory),
        }
    }

    /// The names that cover this one, outermost first.
    pub(crate) fn ancestors(&self) -> Vec<Self> {
        let Place::Store(segments) = &self.place else {
            return Vec::new();
        };
        (1..segments.len())
            .map(|depth| Self {
                text: self
                    .text
                    .split('/')
                    .take(depth)
                    .collect::<Vec<_>>()
                    .join("/"),
                place: Place::Store(segments.iter().take(depth).cloned().collect()),
            })
            .collect()
    }

    /// The directories that lead to the locks which this name covers; `None` for a path, which
    /// covers nothing.
    pub(crate) fn covers(&self) -> Option<Vec<OsString>> {
        match &self.place {
            Place::Path { .. } => None,
            Place::Store(segments) => Some(
                segments
                    .iter()
                    .map(|segment| section_file(segment))
                    .collect(),
            ),
        }
    }

    /// The directories below the store that lead to the lock file, outermost first.
    pub(crate) fn sections(&self) -> Vec<OsString> {
        match &self.place {
            Place::Path { .. } => Vec::new(),
            Place::Store(segments) => segments
                .iter()
                .take(segments.len().saturating_sub(1))
                .map(|segment| section_file(segment))
                .collect(),
        }
    }

    /// The lock file's own name.
    pub(crate) fn file(&self) -> OsString {
        match &self.place {
            Place::Path { file, .. } => file.clone(),
            Place::Store(segments) => {
                let mut file = segments.last().cloned().unwrap_or_default();
                file.push_str(LOCK_SUFFIX);
                file.into()
            }
        }
    }

    /// The lock file below a directory: the store, or for a path its own.
    pub(crate) fn path_below(&self, directory: &Path) -> PathBuf {
        let mut path = directory.to_owned();
        path.extend(self.sections());
        path.push(self.file());
        path
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What an entry of a store directory stands for.
pub(crate) enum Entry {
    Lock(LockName),
    /// A directory of locks, and the name they are all below.
    Section(String),
}

/// Reads a file name of a store directory; `section` is the name of the directory, if it is not
/// the store itself. `None`: no name leads there.
pub(crate) fn entry(section: Option<&str>, file: &OsStr) -> Option<Entry> {
    let file = file.to_str()?;
    let name_of = |encoded: &str| {
        let segment = percent_decode_str(encoded).decode_utf8().ok()?;
        let canonical = encode(&segment).ok()? == encoded;
        let name = match section {
            Some(section) => format!("{section}/{segment}"),
            None => segment.into_owned(),
        };
        canonical.then_some(name)
    };
    if let Some(encoded) = file.strip_suffix(LOCK_SUFFIX) {
        return LockName::new(name_of(encoded)?).ok().map(Entry::Lock);
    }
    let encoded = file.strip_suffix(SECTION_SUFFIX)?;
    Some(Entry::Section(name_of(encoded)?))
}

fn section_file(segment: &str) -> OsString {
    OsString::from(format!("{segment}{SECTION_SUFFIX}"))
}

fn encode(segment: &str) -> Result<String, &'static str> {
    if segment.is_empty() {
        return Err("empty segment");
    }
    if segment == "." || segment == ".." {
        return Err("`.` or `..` as a segment; a path starts with `/`, `./` or `../`");
    }
    if segment.chars().any(char::is_control) {
        return Err("control character");
    }
    let mut encoded = String::with_capacity(segment.len());
    let (first, after_first) = segment.split_at(segment.chars().next().map_or(0, char::len_utf8));
    let rest = if first == "." || (HAS_DEVICES && is_a_device(segment)) {
        for byte in first.bytes() {
            let _ = write!(encoded, "%{byte:02X}");
        }
        after_first
    } else {
        segment
    };
    // UTF-8 stays readable; the encoder itself would encode it.
    let mut ascii_from = 0;
    for (at, char) in rest.char_indices() {
        if !char.is_ascii() {
            encoded.extend(utf8_percent_encode(
                rest.get(ascii_from..at).unwrap_or_default(),
                RESERVED,
            ));
            encoded.push(char);
            ascii_from = at + char.len_utf8();
        }
    }
    encoded.extend(utf8_percent_encode(
        rest.get(ascii_from..).unwrap_or_default(),
        RESERVED,
    ));
    if encoded.len() > MAX_SEGMENT_BYTES {
        return Err("segment longer than 240 bytes");
    }
    Ok(encoded)
}

/// Whether Windows takes it for a device, whatever follows a dot.
fn is_a_device(segment: &str) -> bool {
    let stem = segment.split_once('.').map_or(segment, |(stem, _)| stem);
    let stem = stem.trim_end().to_ascii_lowercase();
    let numbered = |prefix| {
        stem.strip_prefix(prefix)
            .is_some_and(|number| matches!(number.as_bytes(), [b'1'..=b'9']))
    };
    ["con", "prn", "aux", "nul"].contains(&stem.as_str()) || numbered("com") || numbered("lpt")
}

fn invalid(name: &OsStr, reason: &'static str) -> Error {
    Error::InvalidName {
        name: name.to_string_lossy().into_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> String {
        let path = LockName::new(name).expect(name).path_below(Path::new("S"));
        path.to_str().expect("UTF-8").replace('\\', "/")
    }

    #[test]
    fn a_name_is_stored_as_a_tree() {
        assert_eq!(file("backup"), "S/backup.lock");
        assert_eq!(file("backend/task-1"), "S/backend.d/task-1.lock");
        assert_eq!(file("a/b/c"), "S/a.d/b.d/c.lock");
    }

    #[test]
    fn what_a_file_name_cannot_hold_is_encoded_and_utf8_is_kept() {
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
    fn a_file_name_leads_back_to_its_name() {
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
            let Some(Entry::Lock(found)) = entry(None, &LockName::new(name).expect(name).file())
            else {
                panic!("{name} is a lock");
            };
            assert_eq!(found.as_str(), name);
        }
    }

    #[test]
    fn files_that_no_name_leads_to_are_not_ours() {
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
    fn bad_names_are_refused() {
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
    fn a_name_covers_what_is_below_it() {
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
        assert_eq!(name.covers().expect("a store's"), ["a.d", "%2Eb.d", "c.d"]);
        assert!(LockName::new("a").expect("a name").ancestors().is_empty());
        assert!(LockName::new("./a/b").expect("a path").covers().is_none());
    }

    #[test]
    fn where_there_are_devices_no_file_is_called_like_one() {
        for device in ["aux", "Nul", "con.x", "COM1", "lpt9.a.b", "prn "] {
            assert!(is_a_device(device), "{device}");
        }
        for name in ["auxiliary", "com10", "com0", "x.con", "lpt"] {
            assert!(!is_a_device(name), "{name}");
        }
        let file = LockName::new("aux").expect("a name").file();
        let expected = if HAS_DEVICES {
            "%61ux.lock"
        } else {
            "aux.lock"
        };
        assert_eq!(file, expected);
    }

    #[test]
    fn a_path_is_the_lock_file_itself() {
        let name = LockName::new("./.sprint-running").expect("a path");
        assert!(name.is_path());
        assert_eq!(name.directory(), Some(Path::new(".")));
        assert_eq!(name.file(), ".sprint-running");
    }
}
