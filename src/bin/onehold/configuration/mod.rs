//! Defaults for options, from the configuration file and from a profile.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
mod file;
#[cfg(feature = "postgres")]
mod postgres;
pub(crate) mod project;
mod session;
pub(crate) mod sources;
mod spelling;
mod template;
mod values;

use file::{ConfigFile, Content};
pub(crate) use session::{HISTORY, HOLDS, Session, StoreSource, enclosing_names};
use template::{Details, LIMIT, Template};
pub(crate) use values::{CALLER_OWNER, ConfigPath, TIME_IN_FILE, WANTED};
use values::{Directories, FilePath, ProjectPath, Required, Typed, Variables, resolved};

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
    conflict_exit_code: Option<Typed<u8>>,
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

/// The effective settings, and where they come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct EffectiveConfig {
    pub(crate) settings: Settings,
    /// `dir` of the configuration's defaults. A profile does not inherit it.
    pub(crate) default_dir: Option<PathBuf>,
    pub(crate) profile: Option<String>,
    pub(crate) files: Vec<ConfigFile>,
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

    /// Reads the configuration files and applies the selected profile.
    pub(crate) fn read(global: &GlobalArgs) -> anyhow::Result<Self> {
        let mut files = file::read_all()?;
        let mut dirs = files.iter().rev().map(|file| &file.content.defaults.dir);
        let default_dir = dirs.find_map(Option::as_ref);
        let default_dir = default_dir.map(Directories::first).transpose()?;
        let profile = global.profile.clone();
        let profile = profile.or_else(|| std::env::var("ONEHOLD_PROFILE").ok());
        let profile = profile.filter(|name| !name.is_empty());
        let settings = effective(&mut files, profile.as_deref())?;
        let contents = files.iter_mut().map(|file| mem::take(&mut file.content));
        let formats = contents.flat_map(|content| content.formats).collect();
        Ok(Self {
            settings,
            default_dir,
            profile,
            files,
            formats,
        })
    }

    /// Whether its files say the same as when they were read.
    #[cfg(unix)]
    pub(crate) fn is_as_read(&self) -> bool {
        file::are_as_read(&self.files)
    }

    /// The machine's file, or the user's.
    pub(crate) fn file(&self, of_machine: bool) -> Option<&Path> {
        let mut files = self.files.iter();
        let file = files.find(|file| file.of_machine == of_machine)?;
        Some(&file.path)
    }

    /// The line that `--verbose` prints.
    pub(crate) fn describe(&self) -> Option<String> {
        let files = self.files.iter().map(|file| file.path.display());
        let files = files.map(|path| format!("configuration: {path}"));
        let profile = self.profile.iter().map(|name| format!("profile: {name}"));
        let parts: Vec<String> = files.chain(profile).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The settings under a profile, or without one. Each key has the value of the last section that has it.
fn effective(files: &mut [ConfigFile], profile: Option<&str>) -> anyhow::Result<Settings> {
    if profile.is_none() && files.len() < 2 {
        let only = files.first_mut();
        return Ok(only.map_or_else(Settings::default, |file| {
            mem::take(&mut file.content.defaults)
        }));
    }
    let (values, _) = sources::values(files, profile)?;
    // By text, as they are shown: what reads a file reads them.
    let lines = values
        .iter()
        .flat_map(|(key, sourced)| sources::lines(key, &sourced.value));
    let text = lines.fold("[defaults]".to_owned(), |text, line| text + "\n" + &line);
    Ok(toml::from_str::<Content>(&text)?.defaults)
}

/// The names of all profiles.
pub(crate) fn profile_names() -> anyhow::Result<Vec<String>> {
    sources::profile_names(&file::read_all()?)
}

impl Settings {
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
            Verb::Wait(typed) => {
                let limit = typed.wait.unwrap_or(WaitLimit::Forever);
                typed.wait = Some(self.limited(limit));
                typed.max_age = typed.max_age.or(self.max_age.map(|age| age.0));
                typed.conflict_exit_code = typed.conflict_exit_code.or(self.conflict_exit_code());
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
        hold.wait = hold.wait.map(|wait| self.limited(wait));
        hold.ttl_is_default = hold.ttl.is_none();
        hold.ttl = hold.ttl.or(ttl.map(|span| span.0));
        hold.max_age = hold.max_age.or(self.max_age.map(|age| age.0));
        hold.on_zombie = hold.on_zombie.or(self.on_zombie);
        hold.conflict_exit_code = hold.conflict_exit_code.or(self.conflict_exit_code());
    }

    fn conflict_exit_code(&self) -> Option<u8> {
        self.conflict_exit_code.map(|code| code.0)
    }

    /// A wait, but not longer than the configuration allows.
    fn limited(&self, wait: WaitLimit) -> WaitLimit {
        match (wait, self.wait_limit) {
            (wait, None) => wait,
            (WaitLimit::AtMost(wait), Some(Typed(limit))) => WaitLimit::AtMost(wait.min(limit)),
            (WaitLimit::Forever, Some(Typed(limit))) => WaitLimit::AtMost(limit),
        }
    }

    /// The owner of a caller that names none. An unset or empty variable is no owner.
    pub(crate) fn owner(&self) -> Option<String> {
        self.owner_env.as_ref()?.value()
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
        let text = match *operation {
            _ if is_full => &self.unwritable,
            "remove" => &self.undeletable,
            "read" | "open" => &self.unreadable,
            "open store"
            | "open directory"
            | "lock store"
            | "take over"
            | "create lock file in the directory of" => &self.no_directory,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str, profile: &str) -> Settings {
        let file = ConfigFile::parse(Path::new("x"), text.to_owned(), false).unwrap();
        effective(&mut [file], Some(profile)).unwrap()
    }

    #[test]
    fn profile_overrides_built_in_profile_and_defaults() {
        let text = "[defaults]\nttl = 7\npoll = 8\ndir = \"d\"\n[profiles.tasks]\nwait = \"5s\"\n";
        let settings = self::settings(text, "tasks");
        let limit = Duration::from_secs(5);
        assert_eq!(settings.wait.unwrap().0, WaitLimit::AtMost(limit));
        assert_eq!(settings.ttl.unwrap().0, Duration::from_hours(1));
        assert_eq!(settings.poll.unwrap().0, Duration::from_secs(5));
        assert_eq!(settings.section_ttl.unwrap().0, Duration::from_hours(2));
        assert!(settings.dir.is_none());
        let text = "[defaults]\nttl = 7\n";
        let settings = self::settings(text, "prodigy");
        assert_eq!(settings.ttl.unwrap().0, Duration::from_secs(7));
    }
}
