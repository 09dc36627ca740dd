//! The configuration files: where they are, and what is in them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use onehold::Format;
use serde::Deserialize;

use super::Settings;
use super::values::{FilePath, Typed, home, variable};
use crate::words;

/// The configuration of all users of this machine.
const MACHINE_FILE: Option<&str> = if cfg!(unix) {
    Some("/etc/onehold/config.toml")
} else {
    None
};

/// A configuration file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) of_machine: bool,
    pub(super) text: String,
    pub(super) content: Content,
}

/// The sections of a file, and the formats of lock files by their paths or directories.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Content<S = Settings, F = BTreeMap<FilePath, Typed<Format>>> {
    pub(super) defaults: S,
    pub(super) profiles: BTreeMap<String, S>,
    pub(super) formats: F,
}

/// Those that exist. A later one has precedence.
pub(super) fn read_all() -> anyhow::Result<Vec<ConfigFile>> {
    let mut files = Vec::new();
    if let Some(path) = MACHINE_FILE {
        files.extend(read(Path::new(path), true)?);
    }
    if let Some((path, must_exist)) = path_of_user() {
        let file = read(&path, false)?;
        if must_exist && file.is_none() {
            // As the system says it: the kind alone has other words.
            const NO_SUCH_FILE: i32 = 2;
            let error = io::Error::from_raw_os_error(NO_SUCH_FILE);
            return Err(cannot_read(&path, &error));
        }
        files.extend(file);
    }
    Ok(files)
}

/// Whether these are all, and say what they say now.
#[cfg(unix)]
pub(super) fn are_as_read(files: &[ConfigFile]) -> bool {
    let of_machine = MACHINE_FILE.map(|path| (PathBuf::from(path), true));
    let of_user = path_of_user().map(|(path, _)| (path, false));
    of_machine
        .into_iter()
        .chain(of_user)
        .all(|(path, of_machine)| {
            let text = open(&path).and_then(|file| read_open(&path, file, of_machine));
            let known = files.iter().find(|file| file.of_machine == of_machine);
            match (text, known) {
                (Ok(text), Some(known)) => text == known.text,
                (Err(error), None) => error.kind() == ErrorKind::NotFound,
                _ => false,
            }
        })
}

/// The path of the user's file, and whether the user has named it.
fn path_of_user() -> Option<(PathBuf, bool)> {
    if let Some(path) = variable("ONEHOLD_CONFIG") {
        return Some((path.into(), true));
    }
    let (windows, others) = ("APPDATA", "XDG_CONFIG_HOME");
    let directory = variable(if cfg!(windows) { windows } else { others })
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(home()?.join(".config")))?;
    Some((directory.join("onehold/config.toml"), false))
}

/// Reads a file if it exists.
fn read(path: &Path, of_machine: bool) -> anyhow::Result<Option<ConfigFile>> {
    let text = match open(path) {
        Ok(file) => read_open(path, file, of_machine),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    let text = text.map_err(|error| cannot_read(path, &error))?;
    ConfigFile::parse(path, text, of_machine).map(Some)
}

#[cold]
#[inline(never)]
fn cannot_read(path: &Path, error: &io::Error) -> anyhow::Error {
    let cause = words::cause_text(error);
    anyhow!("cannot read `{}`: {cause}", path.display())
}

/// A FIFO is not waited for.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

#[cold]
#[inline(never)]
fn read_open(path: &Path, file: File, of_machine: bool) -> io::Result<String> {
    /// Longer files are refused: ONEHOLD_CONFIG may lead to a device that has no end.
    const MAX_BYTES: u64 = 1 << 20;
    #[cfg(unix)]
    let file = examined(path, file, of_machine)?;
    #[cfg(not(unix))]
    let _ = (path, of_machine);
    let mut text = String::new();
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

/// The file, if it may be read. That of the machine decides for all users which locks they share, so it must be root's.
/// A FIFO is refused, unless it is named by a descriptor of the caller, as a shell does for `<(…)`.
#[cfg(unix)]
fn examined(path: &Path, file: File, of_machine: bool) -> io::Result<File> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let found = file.metadata()?;
    if of_machine && (found.uid() != 0 || found.mode() & 0o022 != 0) {
        let why = "it must be owned by root and not writable by others";
        return Err(io::Error::other(why));
    }
    if !found.file_type().is_fifo() {
        return Ok(file);
    }
    // The whole path: behind /proc/PID/root, or `..`, there is any FIFO.
    let number = ["/dev/fd/", "/proc/self/fd/"]
        .into_iter()
        .find_map(|below| path.to_str()?.strip_prefix(below));
    if !number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(io::Error::other("it is a FIFO"));
    }
    File::open(path)
}

impl ConfigFile {
    /// Errors name the line, and the key if it has one. Of a file that is no TOML nothing is repeated: whoever may choose
    /// the file of a caller with more rights would read it.
    pub(super) fn parse(path: &Path, text: String, of_machine: bool) -> anyhow::Result<Self> {
        match toml::from_str(&text) {
            Ok(content) => Ok(Self {
                path: path.to_owned(),
                of_machine,
                text,
                content,
            }),
            Err(error) => {
                let why = mistake(&text, error);
                Err(anyhow!("cannot use `{}`: {why}", path.display()))
            }
        }
    }
}

/// The number of the line with this byte.
pub(super) fn line_number(text: &str, byte: usize) -> usize {
    let before = text.get(..byte).unwrap_or_default();
    before.matches('\n').count() + 1
}

fn mistake(text: &str, error: toml::de::Error) -> String {
    let syntax = toml::from_str::<toml::Table>(text).err();
    let is_syntax = syntax.is_some();
    let error = syntax.unwrap_or(error);
    let number = line_number(text, error.span().map_or(0, |span| span.start));
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
    let message = error.message();
    let what = if is_syntax {
        format!("not TOML: {message}")
    } else if is_key_of_defaults(message) {
        format!("`{key}` belongs below [defaults]")
    } else {
        format!("`{key}`: {}", with_nearest(message))
    };
    format!("line {number}: {what}")
}

/// Whether an unknown key of the file itself is one of its table of defaults.
fn is_key_of_defaults(message: &str) -> bool {
    let key = message.strip_prefix("unknown field `");
    let key = key.and_then(|message| message.split_once("`, expected one of `defaults`"));
    key.is_some_and(|(key, _)| {
        let file = toml::from_str::<Content>(&format!("[defaults]\n{key:?} = []"));
        !file.is_err_and(|error| error.message().starts_with("unknown field"))
    })
}

/// The message about an unknown key or word, with the nearest one that is known instead of all. serde
/// writes it: "unknown field `weight`, expected one of `dir`, …".
fn with_nearest(message: &str) -> String {
    /// As clap suggests options (`did_you_mean`).
    const LEAST: f64 = 0.7;
    let is_unknown = ["unknown field", "unknown variant"];
    let Some((start, expected)) = message
        .split_once(", expected ")
        .filter(|_| is_unknown.iter().any(|start| message.starts_with(start)))
    else {
        return message.to_owned();
    };
    let start = start.replacen("field", "key", 1);
    let start = start.replacen("variant", "value", 1);
    let unknown = start.split('`').nth(1).unwrap_or_default();
    let known = expected.split('`').skip(1).step_by(2);
    let nearest = known
        .map(|word| (strsim::jaro_winkler(unknown, word), word))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match nearest {
        _ if unknown == "timeout" => format!("{start}; did you mean `wait`?"),
        Some((likeness, word)) if likeness >= LEAST => format!("{start}; did you mean `{word}`?"),
        _ if start.contains("value") => message.to_owned(),
        _ => format!("{start}; onehold-config(5) has all keys"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::BUILT_IN;
    use super::*;
    use crate::arguments::args::duration;
    use std::time::Duration;

    fn parse(text: &str) -> anyhow::Result<ConfigFile> {
        ConfigFile::parse(Path::new("config.toml"), text.to_owned(), false)
    }

    #[test]
    fn built_in_profiles_match_documentation() {
        let file = parse(BUILT_IN).unwrap().content;
        let names: Vec<_> = file.profiles.keys().map(String::as_str).collect();
        assert_eq!(names, ["memory", "prodigy", "sprint", "tasks"]);
    }

    #[test]
    fn errors_name_line_and_key() {
        let start = "cannot use `config.toml`: line ";
        for (text, expected) in [
            ("[defaults]\nwait = \"soon\"\n", "2: `wait`: "),
            (
                "[defaults]\n\nweight = 3\n",
                "3: `weight`: unknown key `weight`; did you mean `wait`?",
            ),
            ("[defaults]\nttl = 0\n", "2: `ttl`: must be at least 1 ms"),
            (
                "[profiles.a]\nformat = \"xml\"\n",
                "2: `format`: unknown format",
            ),
            (
                "[profiles.a]\non-zombie = \"eat\"\n",
                "2: `on-zombie`: unknown variant",
            ),
            (
                "[profiles.a]\nconflict-exit-code = 300\n",
                "2: `conflict-exit-code`: not a number from 0 to 255",
            ),
            (
                "[profile.a]\n",
                "1: `[profile.a]`: unknown key `profile`; did you mean `profiles`?",
            ),
            (
                "[defaults]\nmax_age = 3\n",
                "2: `max_age`: unknown key `max_age`; did you mean `max-age`?",
            ),
            (
                "[defaults]\ntimeout = \"5m\"\n",
                "2: `timeout`: unknown key `timeout`; did you mean `wait`?",
            ),
            (
                "[defaults]\non-zombie = \"tke\"\n",
                "2: `on-zombie`: unknown value `tke`; did you mean `take`?",
            ),
            ("wait = \"5s\"\n", "1: `wait` belongs below [defaults]"),
            ("dir = \"/x\"\n", "1: `dir` belongs below [defaults]"),
            ("wiat = \"5s\"\n", "1: `wiat`: unknown key `wiat`"),
            (
                "\"wait time\" = 5\n",
                "1: `\"wait time\"`: unknown key `wait time`",
            ),
            // Anybody's secret may be there, if root was led to another file.
            ("[defaults]\nwait = \n", "2: not TOML: "),
            (
                "[defaults]\nwait = \"5s\"\nwait = \"6s\"\n",
                "3: not TOML: ",
            ),
            ("[defaults]\ndetails = { a = 1 }\n", "2: `details`: "),
            (
                "[defaults]\ndetails = { a = \"b\" }\n",
                "2: `details`: unknown key `b`",
            ),
            (
                "[profiles.a.details.holder]\npid = \"pid\"\nwho = \"b\"\n",
                "3: `who`: unknown key `b`",
            ),
            (
                "[defaults]\nrefusal = \"{b}\"\n",
                "2: `refusal`: unknown key `b`",
            ),
            (
                "[defaults]\nttl = \"100us\"\n",
                "2: `ttl`: must be at least 1 ms",
            ),
            ("[defaults]\npath = \"\"\n", "2: `path`: empty path"),
            (
                "[defaults]\npath = \"~root/x\"\n",
                "2: `path`: only `~/` is known, not the home of another user",
            ),
        ] {
            let found = parse(text).unwrap_err().to_string();
            assert!(found.starts_with(&format!("{start}{expected}")), "{found}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_configuration_parses_or_fails_with_a_line_number(
            text in "(\\[(defaults|profiles\\.[a-z]{1,3})\\]\n)?([a-z-]{1,12} = [\"'\\[{}0-9a-z.$~ ]{0,20}\n){0,6}",
        ) {
            if let Err(error) = parse(&text) {
                let said = error.to_string();
                proptest::prop_assert!(said.starts_with("cannot use `config.toml`: line "), "{}", said);
            }
        }

        #[test]
        fn durations_survive_formatting_and_parsing(
            text in ".{0,20}",
            milliseconds in 1..10_000_000_000_u64,
        ) {
            let _ = duration(&text);
            let span = Duration::from_millis(milliseconds);
            let shown = humantime::format_duration(span).to_string();
            proptest::prop_assert_eq!(duration(&shown), Ok(span));
        }
    }
}
