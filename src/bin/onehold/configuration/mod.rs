//! Defaults for options, from the configuration file and from a profile.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onehold::error::Operation;
use onehold::status::Reason;
use onehold::{Format, LockName, State, Status};
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::args::{
    Check, Cleanup, DieWith, GlobalArgs, HoldArgs, List, OnZombie, Verb, WaitLimit,
};
use crate::words;

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod session;
pub(crate) mod sources;
mod template;
mod values;

use sources::Texts;
use template::{Details, LIMIT, Template};
pub(crate) use values::{CALLER_OWNER, ConfigPath, TIME_IN_FILE, WANTED};
use values::{Directories, FilePath, ProjectPath, Required, Typed, Variables, home, resolved};

/// The built-in profiles, written as a configuration file.
const BUILT_IN: &str = include_str!("profiles.toml");

/// Defaults for options not given on the command line. onehold-config(5) describes the keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) dir: Option<Directories>,
    pub(crate) project_dir: Option<ProjectPath>,
    pub(crate) path: Option<ConfigPath>,
    format: Option<Typed<Format>>,
    max_age: Option<Typed<Duration>>,
    ttl: Option<Typed<Duration>>,
    section_ttl: Option<Typed<Duration>>,
    wait: Option<Typed<WaitLimit>>,
    wait_limit: Option<Typed<Duration>>,
    poll: Option<Typed<Duration>>,
    backoff: Option<Typed<Duration>>,
    backoff_max: Option<Typed<Duration>>,
    on_zombie: Option<OnZombie>,
    pub(crate) confirm_twice: bool,
    owner_env: Option<Variables>,
    instance: Option<Typed<String>>,
    owner_required: Option<Required>,
    conflict_exit_code: Option<u8>,
    die_with: Option<Typed<DieWith>>,
    pub(crate) history: bool,
    journal_size: Option<Typed<u64>>,
    pub(crate) locked_code: Option<Box<str>>,
    refusal: Option<Template>,
    section_refusal: Option<Template>,
    takeover: Option<Template>,
    not_yours: Option<Template>,
    details: Option<Details>,
    malformed: Option<Box<str>>,
    no_directory: Option<Box<str>>,
    unreadable: Option<Box<str>>,
    unwritable: Option<Box<str>>,
    undeletable: Option<Box<str>>,
    pub(crate) etcd_endpoints: Option<Vec<String>>,
    pub(crate) etcd_user: Option<String>,
    pub(crate) etcd_password_file: Option<ConfigPath>,
    pub(crate) etcd_cacert: Option<ConfigPath>,
    pub(crate) etcd_cert: Option<ConfigPath>,
    pub(crate) etcd_key: Option<ConfigPath>,
}

/// A configuration file: its sections, and the formats of lock files by their paths or directories.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File<S = Settings, F = BTreeMap<FilePath, Typed<Format>>> {
    defaults: S,
    profiles: BTreeMap<String, S>,
    formats: F,
}

/// The effective settings, and where they come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct EffectiveConfig {
    pub(crate) settings: Settings,
    /// `dir` of the configuration's defaults. A profile does not inherit it.
    pub(crate) default_dir: Option<PathBuf>,
    pub(crate) profile: Option<String>,
    /// The user's file.
    pub(crate) file: Option<PathBuf>,
    /// What is in the files.
    texts: Texts,
    formats: BTreeMap<FilePath, Typed<Format>>,
}

impl EffectiveConfig {
    /// The configured format of a path, or of the directory that it is in.
    pub(crate) fn format_of(&self, name: &LockName) -> Option<Format> {
        if self.formats.is_empty() || !name.is_path() {
            return None;
        }
        let path = std::path::absolute(name.as_str()).ok()?;
        let (directory, file) = (resolved(path.parent()?), path.file_name()?);
        let covering = |of_file| {
            let mut formats = self.formats.iter();
            formats.find(|(configured, _)| configured.covers(&directory, file, of_file))
        };
        let (_, format) = covering(true).or_else(|| covering(false))?;
        Some(format.0)
    }

    /// Reads the configuration file and applies the selected profile.
    pub(crate) fn read(global: &GlobalArgs) -> anyhow::Result<Self> {
        let Read {
            file,
            texts,
            machine,
            mut configured,
        } = configuration()?;
        let default_dir = configured.defaults.dir.as_ref();
        let of_machine = machine.as_ref().and_then(|file| file.defaults.dir.as_ref());
        let default_dir = default_dir.or(of_machine);
        let default_dir = default_dir.map(Directories::first).transpose()?;
        let profile = global.profile.clone();
        let profile = profile.or_else(|| std::env::var("ONEHOLD_PROFILE").ok());
        let profile = profile.filter(|name| !name.is_empty());
        Ok(Self {
            settings: effective(&mut configured, &texts, profile.as_deref())?,
            default_dir,
            profile,
            file,
            texts,
            formats: match machine {
                Some(machine) => {
                    let formats = machine.formats.into_iter();
                    formats.chain(configured.formats).collect()
                }
                None => configured.formats,
            },
        })
    }

    /// The machine's file, if there is one.
    pub(crate) fn machine_file(&self) -> Option<&'static Path> {
        MACHINE_FILE
            .map(Path::new)
            .filter(|_| self.texts.machine.is_some())
    }

    /// The line that `--verbose` prints.
    pub(crate) fn describe(&self) -> Option<String> {
        let machine = self.machine_file().map(Path::to_owned);
        let files = machine.into_iter().chain(self.file.clone());
        let files = files.map(|file| format!("configuration: {}", file.display()));
        let profile = self.profile.iter().map(|name| format!("profile: {name}"));
        let parts: Vec<String> = files.chain(profile).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The settings under a profile, or without one. Each key has the value of the last section that has it.
fn effective(
    configured: &mut File,
    texts: &Texts,
    profile: Option<&str>,
) -> anyhow::Result<Settings> {
    if profile.is_none() && texts.machine.is_none() {
        return Ok(std::mem::take(&mut configured.defaults));
    }
    let (values, _) = sources::values(texts, profile)?;
    let values = values
        .into_iter()
        .map(|(key, sourced)| (key, sourced.value));
    Ok(values.collect::<toml::Table>().try_into()?)
}

/// The names of all profiles.
pub(crate) fn profile_names() -> anyhow::Result<Vec<String>> {
    sources::profile_names(&configuration()?.texts)
}

impl Settings {
    pub(crate) fn format(&self) -> Option<Format> {
        self.format.map(|format| format.0)
    }

    /// Sets the options that were not given on the command line.
    pub(crate) fn complete(&self, verb: &mut Verb) {
        let die_with = self.die_with.map(|with| with.0);
        let die_with = die_with.filter(|with| applies(*with));
        match verb {
            Verb::Run(typed) => {
                self.complete_hold(&mut typed.hold, typed.names.first());
                // `run --exec` leaves no process that could renew the heartbeat.
                if typed.exec {
                    typed.hold.ttl = None;
                } else {
                    typed.die_with = typed.die_with.or(die_with);
                }
            }
            Verb::Acquire(typed) => self.complete_hold(&mut typed.hold, typed.names.first()),
            Verb::Hold(typed) => {
                self.complete_hold(&mut typed.hold, typed.names.first());
                typed.die_with = typed.die_with.or(die_with);
            }
            Verb::Check(Check { max_age, .. })
            | Verb::List(List { max_age, .. })
            | Verb::Cleanup(Cleanup { max_age, .. }) => {
                *max_age = max_age.or(self.max_age.map(|age| age.0));
            }
            _ => {}
        }
    }

    fn complete_hold(&self, hold: &mut HoldArgs, name: Option<&LockName>) {
        let is_section = name.is_some_and(is_section);
        let ttl = match self.section_ttl {
            Some(section) if is_section => Some(section),
            _ => self.ttl,
        };
        if hold.wait.is_none() && !hold.no_wait {
            hold.wait = self.wait.as_ref().map(|wait| wait.0);
        }
        if let (Some(wait), Some(Typed(limit))) = (&mut hold.wait, self.wait_limit) {
            *wait = WaitLimit::AtMost(match *wait {
                WaitLimit::AtMost(wait) => wait.min(limit),
                WaitLimit::Forever => limit,
            });
        }
        hold.ttl_is_default = hold.ttl.is_none();
        hold.ttl = hold.ttl.or(ttl.map(|span| span.0));
        hold.max_age = hold.max_age.or(self.max_age.map(|age| age.0));
        hold.on_zombie = hold.on_zombie.or(self.on_zombie);
        hold.conflict_exit_code = hold.conflict_exit_code.or(self.conflict_exit_code);
    }

    /// The owner of a caller that names none. An unset or empty variable is no owner.
    pub(crate) fn owner(&self) -> Option<String> {
        self.owner_env.as_ref()?.value()
    }

    pub(crate) fn instance(&self) -> Option<String> {
        self.instance.as_ref().map(|instance| instance.0.clone())
    }

    /// In bytes.
    pub(crate) fn journal_size(&self) -> Option<u64> {
        self.journal_size.map(|size| size.0)
    }

    /// First and longest interval between two checks of a lock whose release cannot be observed.
    pub(crate) fn back_off(&self) -> Option<(Duration, Duration)> {
        if let Some(poll) = self.poll {
            return Some((poll.0, poll.0));
        }
        let first = self.backoff.or(self.backoff_max)?.0;
        Some((first, self.backoff_max.map_or(first, |most| most.0)))
    }

    /// The message about an error.
    pub(crate) fn error_message(&self, error: &onehold::Error) -> String {
        let foreign = self.foreign_message(error);
        foreign.unwrap_or_else(|| words::error_chain(error))
    }

    /// The message of the profile's program for an error, followed by the cause.
    fn foreign_message(&self, error: &onehold::Error) -> Option<String> {
        let onehold::Error::Io {
            operation, source, ..
        } = error
        else {
            return None;
        };
        let is_full = matches!(
            source.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        );
        let text = match operation {
            _ if is_full => &self.unwritable,
            Operation::Remove => &self.undeletable,
            Operation::Read | Operation::Open => &self.unreadable,
            Operation::OpenStore
            | Operation::OpenDirectory
            | Operation::LockStore
            | Operation::TakeOver
            | Operation::CreateLockFileInDirectory => &self.no_directory,
            _ => return None,
        };
        let cause = words::cause_text(source);
        let text = text.as_ref()?;
        Some(format!("{text}: {cause} ({})", words::error_chain(error)))
    }

    pub(crate) fn has_refusal(&self) -> bool {
        self.refusal.is_some() || self.section_refusal.is_some()
    }

    /// The message of the profile's program for a refusal, or for a look at the lock. `limit`: of the
    /// wait; `None`: there was none, and no message about one.
    fn refusal(&self, lock: &Value, limit: Option<WaitLimit>) -> Option<String> {
        let name = LockName::new(lock.get("name")?.as_str()?).ok()?;
        let of_section = self.section_refusal.as_ref().filter(|_| is_section(&name));
        let template = of_section.or(self.refusal.as_ref())?;
        let mut values = lock.clone();
        let limit = match limit {
            Some(WaitLimit::AtMost(limit)) => Some(words::short_span(limit)),
            None if template.names_the_limit() => return None,
            Some(WaitLimit::Forever) | None => None,
        };
        values
            .as_object_mut()?
            .insert(LIMIT.to_owned(), limit.into());
        template.fill(&values)
    }

    /// The message of the profile's program about a lock that it does not get. The arguments are those of
    /// [`refusal`](Self::refusal).
    pub(crate) fn refusal_of(
        &self,
        status: &Status,
        lock: &Value,
        limit: Option<WaitLimit>,
    ) -> Option<String> {
        let malformed = || self.malformed.as_deref().map(str::to_owned);
        match (status.verdict.state, status.verdict.reason) {
            (_, Reason::Malformed(_) | Reason::Corrupt) => malformed(),
            // Its program does not wait for the rest.
            (_, Reason::Incomplete) => malformed().or_else(|| self.refusal(lock, limit)),
            (_, Reason::Reserved) => None,
            (State::Held | State::Overdue, _) => self.refusal(lock, limit),
            _ => None,
        }
    }

    /// The message of the profile's program when it takes over from a dead holder. `lock` is only asked
    /// for if the profile has one.
    pub(crate) fn takeover(&self, lock: impl FnOnce() -> Value) -> Option<String> {
        self.takeover.as_ref()?.fill(&lock())
    }

    /// The message of the profile's program about a hold that the caller may not release or renew.
    pub(crate) fn not_yours(&self, lock: impl FnOnce() -> Value) -> Option<String> {
        self.not_yours.as_ref()?.fill(&lock())
    }

    /// The values of a lock under the keys of the profile's program, if it has some.
    pub(crate) fn details(&self, lock: impl FnOnce() -> Value) -> Option<Value> {
        Some(self.details.as_ref()?.fill(&lock()).into())
    }

    /// What an owner is called if there must be one.
    pub(crate) fn required_owner(&self) -> Option<&str> {
        self.owner_required.as_ref()?.name()
    }

    /// Whether a wait is as long as the configuration allows.
    pub(crate) fn limits(&self, wait: Option<WaitLimit>) -> bool {
        matches!((wait, self.wait_limit), (Some(WaitLimit::AtMost(wait)), Some(Typed(limit))) if wait == limit)
    }

    /// Whether its own rule for zombies is to take them.
    pub(crate) fn takes_zombies(&self) -> bool {
        matches!(self.on_zombie, None | Some(OnZombie::Take))
    }
}

/// Whether a default of `die-with` applies to this process. What process 1 starts is a service, or has lost its parent; and a
/// parent outside of this container cannot be watched.
#[cfg(unix)]
fn applies(default: DieWith) -> bool {
    default != DieWith::Parent || std::os::unix::process::parent_id() > 1
}

#[cfg(not(unix))]
fn applies(_default: DieWith) -> bool {
    true
}

/// Whether a lock of tasks is that of a whole section. A task without its section is a bare UUID.
fn is_section(name: &LockName) -> bool {
    !name.is_path() && !name.as_str().contains('/') && !is_uuid(name.as_str())
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12])
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The configuration of all users of this machine.
const MACHINE_FILE: Option<&str> = if cfg!(unix) {
    Some("/etc/onehold/config.toml")
} else {
    None
};

/// The configuration files, as they were read.
#[derive(Default)]
struct Read {
    /// The user's file, if it exists.
    file: Option<PathBuf>,
    texts: Texts,
    machine: Option<Box<File>>,
    configured: File,
}

fn configuration() -> anyhow::Result<Read> {
    let mut read = Read::default();
    if let Some(path) = MACHINE_FILE.map(Path::new)
        && let Some(text) = read_text(path, true)?
    {
        read.machine = Some(Box::new(parse(&text, path)?));
        read.texts.machine = Some(text);
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let (path, must_exist) = if let Some(path) = variable("ONEHOLD_CONFIG") {
        (PathBuf::from(path), true)
    } else {
        let (windows, others) = ("APPDATA", "XDG_CONFIG_HOME");
        let directory = variable(if cfg!(windows) { windows } else { others })
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(home()?.join(".config")));
        match directory {
            Some(directory) => (directory.join("onehold/config.toml"), false),
            None => return Ok(read),
        }
    };
    match read_text(&path, false)? {
        Some(text) => {
            read.configured = parse(&text, &path)?;
            read.texts.user = text;
            read.file = Some(path);
        }
        None if must_exist => return Err(cannot_read(&path, &ErrorKind::NotFound.into())),
        None => {}
    }
    Ok(read)
}

/// Longer files are refused: ONEHOLD_CONFIG may lead to a device that has no end.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The content of a file, if it exists. `of_machine`: it decides for all users which locks they share, so it must be
/// root's.
fn read_text(path: &Path, of_machine: bool) -> anyhow::Result<Option<String>> {
    match open(path) {
        Ok(file) => read_open(path, file, of_machine).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    }
    .map_err(|error| cannot_read(path, &error))
}

#[cold]
#[inline(never)]
fn cannot_read(path: &Path, error: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "cannot read `{}`: {}",
        path.display(),
        words::cause_text(error)
    )
}

/// A FIFO is not waited for.
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

/// A FIFO is refused, unless it is named by a descriptor of the caller, as a shell does for `<(…)`.
#[cold]
#[inline(never)]
fn read_open(path: &Path, file: std::fs::File, of_machine: bool) -> std::io::Result<String> {
    check_owner(&file, of_machine)?;
    let mut text = String::new();
    #[cfg(unix)]
    let file = if std::os::unix::fs::FileTypeExt::is_fifo(&file.metadata()?.file_type()) {
        // The whole path: behind /proc/PID/root, or `..`, there is any FIFO.
        let mut below = ["/dev/fd/", "/proc/self/fd/"].into_iter();
        let number = below.find_map(|below| path.to_str()?.strip_prefix(below));
        if !number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(std::io::Error::other("it is a FIFO"));
        }
        std::fs::File::open(path)?
    } else {
        file
    };
    let _ = path;
    let read = file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_CONFIG_BYTES {
        return Err(std::io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

#[cfg_attr(
    not(unix),
    allow(clippy::unnecessary_wraps, reason = "there is no such file")
)]
fn check_owner(file: &std::fs::File, of_machine: bool) -> std::io::Result<()> {
    #[cfg(unix)]
    if of_machine {
        use std::os::unix::fs::MetadataExt as _;
        let found = file.metadata()?;
        if found.uid() != 0 || found.mode() & 0o022 != 0 {
            let why = "it must be owned by root and not writable by others";
            return Err(std::io::Error::other(why));
        }
    }
    let _ = (file, of_machine);
    Ok(())
}

/// Parses a configuration file. Errors name the line, and the key if it has one. Of a file that is no TOML nothing
/// is repeated: whoever may choose the file of a caller with more rights would read it.
fn parse(text: &str, path: &Path) -> anyhow::Result<File> {
    toml::from_str(text).map_err(|error| {
        let syntax = toml::from_str::<toml::Table>(text).err();
        let is_syntax = syntax.is_some();
        let error = syntax.unwrap_or(error);
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let number = before.matches('\n').count() + 1;
        let line = text.lines().nth(number - 1).unwrap_or_default();
        let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
        let what = if is_syntax {
            format!("not TOML: {}", error.message())
        } else if is_key_of_defaults(error.message()) {
            format!("`{key}` belongs below [defaults]")
        } else {
            format!("`{key}`: {}", with_nearest(error.message()))
        };
        anyhow::anyhow!("cannot use `{}`: line {number}: {what}", path.display())
    })
}

/// Whether an unknown key of the file itself is one of its table of defaults.
fn is_key_of_defaults(message: &str) -> bool {
    let key = message.strip_prefix("unknown field `");
    let key = key.and_then(|message| message.split_once("`, expected one of `defaults`"));
    key.is_some_and(|(key, _)| {
        let file = toml::from_str::<File>(&format!("[defaults]\n{key:?} = []"));
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
    use super::*;
    use crate::arguments::args::duration;

    fn config_error(text: &str) -> String {
        parse(text, Path::new("config.toml"))
            .unwrap_err()
            .to_string()
    }

    fn user(text: &str) -> Texts {
        Texts {
            machine: None,
            user: text.to_owned(),
        }
    }

    #[test]
    fn built_in_profiles_match_documentation() {
        let file = parse(BUILT_IN, Path::new("profiles.toml")).unwrap();
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
                "2: `conflict-exit-code`: ",
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
            let found = config_error(text);
            assert!(found.starts_with(&format!("{start}{expected}")), "{found}");
        }
    }

    #[test]
    fn profile_overrides_built_in_profile_and_defaults() {
        let text = "[defaults]\nttl = 7\npoll = 8\ndir = \"d\"\n[profiles.tasks]\nwait = \"5s\"\n";
        let mut file = parse(text, Path::new("x")).unwrap();
        let settings = effective(&mut file, &user(text), Some("tasks")).unwrap();
        let limit = Duration::from_secs(5);
        assert_eq!(settings.wait.unwrap().0, WaitLimit::AtMost(limit));
        assert_eq!(settings.ttl.unwrap().0, Duration::from_hours(1));
        assert_eq!(settings.poll.unwrap().0, Duration::from_secs(5));
        assert_eq!(settings.section_ttl.unwrap().0, Duration::from_hours(2));
        assert!(settings.dir.is_none());
        let text = "[defaults]\nttl = 7\n";
        let mut file = parse(text, Path::new("x")).unwrap();
        let settings = effective(&mut file, &user(text), Some("prodigy")).unwrap();
        assert_eq!(settings.ttl.unwrap().0, Duration::from_secs(7));
    }

    proptest::proptest! {
        #[test]
        fn any_configuration_parses_or_fails_with_a_line_number(
            text in "(\\[(defaults|profiles\\.[a-z]{1,3})\\]\n)?([a-z-]{1,12} = [\"'\\[{}0-9a-z.$~ ]{0,20}\n){0,6}",
        ) {
            if let Err(error) = parse(&text, Path::new("config.toml")) {
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
