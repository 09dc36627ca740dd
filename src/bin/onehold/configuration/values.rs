//! Types of the values in a configuration file.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use onehold::Format;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::arguments::args::{
    DieWith, UsageError, WaitLimit, die_with, exit_code, instance, parsed, time_to_live, wait_limit,
};
use crate::arguments::doc_text::lock_keys;

/// An environment variable. An empty one is unset.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What a variable says. `None`: it is not set.
pub(super) fn of_variable<T, E: fmt::Display>(
    name: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, UsageError> {
    let value = variable(name).map(|value| read(&value.to_string_lossy()));
    let value = value.transpose();
    value.map_err(|why| UsageError(format!("{name}: {why}")))
}

/// `true` or `false`, as variables have it.
pub(super) fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("`{text}` is neither 1 nor 0")),
    }
}

/// A variable that is text.
#[cfg(feature = "cluster")]
pub(super) fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

pub(super) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// One directory, or several: the first whose variable is set is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or an array of paths")]
pub(crate) enum Directories {
    One(ConfigPath),
    Several(Vec<ConfigPath>),
}

/// An absolute path of a file, or, with a slash at its end, of the directory of files. It may begin
/// with `~` or a variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct FilePath(ConfigPath);

impl TryFrom<String> for FilePath {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_absolute =
            Path::new(&text).is_absolute() || text.starts_with('~') || text.starts_with('$');
        if !is_absolute {
            return Err("must be an absolute path");
        }
        ConfigPath::try_from(text).map(Self)
    }
}

impl FilePath {
    /// Whether this is the path of a file (`of_file`), or of the directory that it is in. `directory` and
    /// `file`: of the file, resolved: two paths that lead to one file mean one lock.
    pub(crate) fn covers(&self, directory: &Path, file: &OsStr, of_file: bool) -> bool {
        let is_directory = self.0.0.ends_with('/');
        let Some(path) = self.0.expanded().filter(|_| is_directory != of_file) else {
            return false;
        };
        if of_file {
            path.file_name() == Some(file)
                && path.parent().is_some_and(|own| resolved(own) == directory)
        } else {
            resolved(&path) == directory
        }
    }
}

/// A directory without symbolic links and `..`, as far as it exists.
pub(crate) fn resolved(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory).unwrap_or_else(|_| directory.components().collect())
}

/// A path that may begin with `~` or a variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ConfigPath(Box<str>);

impl TryFrom<String> for ConfigPath {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let first = text.split('/').next().unwrap_or_default();
        if text.is_empty() {
            return Err("empty path");
        }
        if first.starts_with('~') && first != "~" {
            return Err("only `~/` is known, not the home of another user");
        }
        Ok(Self(text.into()))
    }
}

impl ConfigPath {
    /// The path that is the value of a key.
    pub(crate) fn of_key(&self, key: &str) -> anyhow::Result<PathBuf> {
        let expanded = self.expanded();
        expanded.with_context(|| format!("`{key}`: no variable in `{}` is set", self.0))
    }

    /// The path with `~` or the variable replaced. `None`: the variable is not set.
    fn expanded(&self) -> Option<PathBuf> {
        let (first, rest) = self.0.split_once('/').unwrap_or((&self.0, ""));
        let base = match first.strip_prefix('$') {
            Some(name) => PathBuf::from(variable(name)?),
            None if first == "~" => home()?,
            None => return Some(PathBuf::from(&*self.0)),
        };
        Some(base.join(rest))
    }
}

/// A path below the root of a project, whose first part marks the root.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ProjectPath(Box<str>);

impl TryFrom<String> for ProjectPath {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_plain = |part| matches!(part, Component::Normal(_));
        let begins_with_variable = text.starts_with(['~', '$']);
        if text.is_empty() || begins_with_variable || !Path::new(&text).components().all(is_plain) {
            return Err("must be a relative path without `.`, `..`, `~` and variables");
        }
        Ok(Self(text.into()))
    }
}

impl ProjectPath {
    /// The path, and its first part.
    pub(crate) fn parts(&self) -> (&Path, &Path) {
        let path = Path::new(&*self.0);
        (path, path.iter().next().map_or(path, Path::new))
    }
}

/// The name that was asked for: in a refusal, where the lock may be a parent. Else the name of the lock.
pub(crate) const WANTED: &str = "wanted";

/// The time of acquisition as the lock file has it, which its programs may have written anew since.
pub(crate) const TIME_IN_FILE: &str = "time_in_file";

/// The owner that the caller gave.
pub(crate) const CALLER_OWNER: &str = "caller_owner";

/// A key of the JSON object of a lock, or one of those above.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Key(pub(super) String);

impl TryFrom<String> for Key {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_own = [WANTED, TIME_IN_FILE, CALLER_OWNER].contains(&text.as_str());
        if is_own || lock_keys().any(|key| key == text) {
            Ok(Self(text))
        } else {
            Err(format!("unknown key `{text}`"))
        }
    }
}

impl Directories {
    pub(crate) fn first(&self) -> anyhow::Result<PathBuf> {
        let all = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several.as_slice(),
        };
        all.iter().find_map(ConfigPath::expanded).with_context(|| {
            let all: Vec<_> = all.iter().map(|path| format!("`{}`", path.0)).collect();
            format!("`dir`: no variable in {} is set", all.join(", "))
        })
    }
}

/// Variables: the first one that is set counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a variable name, or an array of them")]
pub(super) enum Variables {
    One(Variable),
    Several(Vec<Variable>),
}

impl Variables {
    /// The value of the first one that is set, and not empty.
    pub(super) fn value(&self) -> Option<String> {
        let variables = match self {
            Self::One(variable) => std::slice::from_ref(variable),
            Self::Several(variables) => variables,
        };
        let values = variables.iter().map(|variable| std::env::var(&variable.0));
        values.flatten().find(|value| !value.is_empty())
    }
}

/// The name of an environment variable.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Variable(pub(super) String);

impl TryFrom<String> for Variable {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err("not a variable name");
        }
        Ok(Self(name))
    }
}

/// `true` or `false`, or what is required by its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a name")]
pub(super) enum Required {
    Is(bool),
    Named(Box<str>),
}

impl Required {
    /// What it is called if it is required.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Is(false) => None,
            Self::Is(true) => Some("owner"),
            Self::Named(name) => Some(name),
        }
    }
}

/// A value that is written as on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Typed<T>(pub(super) T);

/// What each type is called if there is something else, and what reads it.
macro_rules! typed {
    ($($Type:ty: $expected:literal, $parse:ident;)*) => {$(
        impl<'de> Deserialize<'de> for Typed<$Type> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = from.deserialize_any(Scalar($expected))?;
                $parse(&text).map(Typed).map_err(de::Error::custom)
            }
        }
    )*};
}

typed! {
    Duration: "a duration such as `30s`", time_to_live;
    DieWith: "`parent`, `none` or a PID", die_with;
    String: "the name of an instance", instance;
    Format: "the name of a format", parsed;
    WaitLimit: "a duration or `forever`", wait_limit;
    u8: "a number from 0 to 255", exit_code;
    u64: "a size such as `4M`", size;
}

/// Parses a number of bytes: `65536`, `64K`, `1M`, `1G`.
fn size(text: &str) -> Result<u64, &'static str> {
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let mut split = units
        .into_iter()
        .filter_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (digits, shift) = split.next().unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|count| count.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (4096..=1 << 40).contains(bytes))
        .ok_or("not a size from 4K to 1024G: use `64K`, `4M` or `1G`")
}

/// A string, or a number as a string.
struct Scalar(&'static str);

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}
