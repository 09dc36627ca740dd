//! Defaults for options: of the configuration file, and of a profile on top of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use chrono::DateTime;
use onehold::{Format, LockName};
use serde::Deserialize;
use serde_json::Value;

use crate::args::{Claimant, Everywhere, OnZombie, Verb, WaitLimit};
use crate::session::Misuse;
use crate::{describe, output};

mod values;

use values::{Directories, Key, Named, Place, Span, Template, Variable, home};

/// The built-in profiles, in the terms of a configuration file.
const BUILT_IN: &str = include_str!("profiles.toml");

/// What stands in for options that are not given. Names and meaning of the keys: onehold-config(5).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) dir: Option<Directories>,
    pub(crate) path: Option<Place>,
    format: Option<Named<Format>>,
    max_age: Option<Span>,
    ttl: Option<Span>,
    section_ttl: Option<Span>,
    wait: Option<Named<WaitLimit>>,
    poll: Option<Span>,
    backoff: Option<Span>,
    backoff_max: Option<Span>,
    on_zombie: Option<OnZombie>,
    confirm_twice: Option<bool>,
    owner_env: Option<Variable>,
    conflict_exit_code: Option<u8>,
    locked_code: Option<String>,
    refusal: Option<Template>,
    details: Option<BTreeMap<String, Key>>,
    no_directory: Option<String>,
    unreadable: Option<String>,
    undeletable: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    defaults: Settings,
    profiles: BTreeMap<String, Settings>,
}

/// The settings in force, and where they come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct InForce {
    pub(crate) settings: Settings,
    /// The store of the configuration's defaults, which is not the profile's.
    pub(crate) default_dir: Option<PathBuf>,
    pub(crate) profile: Option<String>,
    pub(crate) file: Option<PathBuf>,
}

impl InForce {
    /// Reads the configuration, and the profile that is asked for.
    pub(crate) fn read(everywhere: &Everywhere) -> anyhow::Result<Self> {
        let (file, configured) = configuration()?;
        let default_dir = match &configured.defaults.dir {
            Some(dir) => Some(dir.first()?),
            None => None,
        };
        let from_environment = || std::env::var("ONEHOLD_PROFILE").ok();
        let profile = everywhere
            .profile
            .clone()
            .or_else(from_environment)
            .filter(|name| !name.is_empty());
        let mut settings = configured.defaults;
        if let Some(name) = &profile {
            // A file's own profile of the same name changes what it says of the built-in one.
            let built_in = parse(BUILT_IN, Path::new("profiles.toml"))?;
            let mut known: Vec<String> = built_in.profiles.keys().cloned().collect();
            known.extend(configured.profiles.keys().cloned());
            known.sort();
            known.dedup();
            let own = configured.profiles.get(name).cloned();
            let base = built_in.profiles.get(name).cloned();
            if own.is_none() && base.is_none() {
                let known = known.join(", ");
                bail!(Misuse(format!("no profile `{name}`; there are {known}")));
            }
            settings = own
                .unwrap_or_default()
                .over(base.unwrap_or_default())
                .over(settings.for_profiles());
        }
        Ok(Self {
            settings,
            default_dir,
            profile,
            file,
        })
    }

    /// What `-v` says of it.
    pub(crate) fn describe(&self) -> Option<String> {
        let file = self.file.as_ref().map(|file| file.display().to_string());
        match (file, &self.profile) {
            (None, None) => None,
            (Some(file), None) => Some(format!("configuration: {file}")),
            (None, Some(profile)) => Some(format!("profile: {profile}")),
            (Some(file), Some(profile)) => {
                Some(format!("configuration: {file}; profile: {profile}"))
            }
        }
    }
}

impl Settings {
    /// These where they say something, else those.
    fn over(self, below: Self) -> Self {
        Self {
            dir: self.dir.or(below.dir),
            path: self.path.or(below.path),
            format: self.format.or(below.format),
            max_age: self.max_age.or(below.max_age),
            ttl: self.ttl.or(below.ttl),
            section_ttl: self.section_ttl.or(below.section_ttl),
            wait: self.wait.or(below.wait),
            poll: self.poll.or(below.poll),
            backoff: self.backoff.or(below.backoff),
            backoff_max: self.backoff_max.or(below.backoff_max),
            on_zombie: self.on_zombie.or(below.on_zombie),
            confirm_twice: self.confirm_twice.or(below.confirm_twice),
            owner_env: self.owner_env.or(below.owner_env),
            conflict_exit_code: self.conflict_exit_code.or(below.conflict_exit_code),
            locked_code: self.locked_code.or(below.locked_code),
            refusal: self.refusal.or(below.refusal),
            details: self.details.or(below.details),
            no_directory: self.no_directory.or(below.no_directory),
            unreadable: self.unreadable.or(below.unreadable),
            undeletable: self.undeletable.or(below.undeletable),
        }
    }

    /// A profile is for another program's locks: where ours are says nothing about those.
    fn for_profiles(self) -> Self {
        Self {
            dir: None,
            path: None,
            format: None,
            ..self
        }
    }

    pub(crate) fn format(&self) -> Option<Format> {
        self.format.as_ref().map(|format| format.0)
    }

    /// Fills in what was not typed.
    pub(crate) fn complete(&self, verb: &mut Verb, lock_of_path: Option<&LockName>) {
        let max_age = self.max_age.map(|span| span.0);
        let name_it = |name: &mut Option<LockName>| {
            if name.is_none() {
                *name = lock_of_path.cloned();
            }
        };
        match verb {
            Verb::Run(typed) => {
                name_it(&mut typed.name);
                self.complete_claim(&mut typed.claim, typed.name.as_ref());
                // What becomes its command renews nothing.
                if typed.exec {
                    typed.claim.ttl = None;
                }
            }
            Verb::Acquire(typed) => {
                name_it(&mut typed.name);
                self.complete_claim(&mut typed.claim, typed.name.as_ref());
            }
            Verb::Release(typed) => {
                name_it(&mut typed.name);
                self.complete_claimant(&mut typed.claimant);
            }
            Verb::Renew(typed) => {
                name_it(&mut typed.name);
                self.complete_claimant(&mut typed.claimant);
            }
            Verb::Check(typed) => {
                name_it(&mut typed.name);
                self.complete_owner(&mut typed.owner);
                typed.max_age = typed.max_age.or(max_age);
            }
            Verb::List(typed) => typed.max_age = typed.max_age.or(max_age),
            Verb::Cleanup(typed) => typed.max_age = typed.max_age.or(max_age),
            Verb::Break(typed) => name_it(&mut typed.name),
        }
    }
}

impl Settings {
    fn complete_claim(&self, claim: &mut crate::args::Claim, name: Option<&LockName>) {
        let is_section = name.is_some_and(|name| !name.is_path() && !name.as_str().contains('/'));
        let ttl = match self.section_ttl {
            Some(section) if is_section => Some(section),
            _ => self.ttl,
        };
        if claim.wait.is_none() && !claim.no_wait {
            claim.wait = self.wait.as_ref().map(|wait| wait.0);
        }
        claim.ttl = claim.ttl.or(ttl.map(|span| span.0));
        claim.max_age = claim.max_age.or(self.max_age.map(|span| span.0));
        claim.on_zombie = claim.on_zombie.or(self.on_zombie);
        claim.conflict_exit_code = claim.conflict_exit_code.or(self.conflict_exit_code);
        self.complete_owner(&mut claim.owner);
    }

    fn complete_claimant(&self, claimant: &mut Claimant) {
        self.complete_owner(&mut claimant.owner);
    }

    /// What is not set, or empty, is nobody.
    fn complete_owner(&self, owner: &mut Option<String>) {
        if owner.is_none() {
            *owner = self
                .owner_env
                .as_ref()
                .and_then(|name| std::env::var(&name.0).ok())
                .filter(|value| !value.is_empty());
        }
    }

    /// From where to where a wait backs off that nothing wakes.
    pub(crate) fn back_off(&self) -> Option<(Duration, Duration)> {
        if let Some(poll) = self.poll {
            return Some((poll.0, poll.0));
        }
        let first = self.backoff.or(self.backoff_max)?.0;
        Some((first, self.backoff_max.map_or(first, |most| most.0)))
    }

    /// What the profile's own program says of such an error, and then what we say.
    pub(crate) fn words_for(&self, error: &onehold::Error) -> Option<String> {
        let onehold::Error::Io {
            operation, source, ..
        } = error
        else {
            return None;
        };
        let words = match *operation {
            "remove" => &self.undeletable,
            "read" | "open" => &self.unreadable,
            "open store"
            | "open directory"
            | "lock directory"
            | "take over"
            | "create lock file in the directory of" => &self.no_directory,
            _ => return None,
        };
        let cause = output::cause_in_words(source);
        let words = words.as_ref()?;
        Some(format!("{words}: {cause} ({})", output::chain(error)))
    }

    pub(crate) fn has_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// The words of the profile's own program for being refused, with `{key}` for what the JSON
    /// object of a lock has.
    pub(crate) fn refusal(&self, lock: &Value) -> Option<String> {
        let mut text = self.refusal.as_ref()?.0.clone();
        for (key, value) in lock.as_object()? {
            let placeholder = format!("{{{key}}}");
            if text.contains(&placeholder) {
                text = text.replace(&placeholder, &in_words(value));
            }
        }
        Some(text)
    }

    /// The profile's own names for what the JSON object of a lock has.
    pub(crate) fn details(&self, lock: &Value) -> Option<Value> {
        let names = self.details.as_ref()?;
        let values = names.iter().map(|(theirs, ours)| {
            let value = lock.get(&ours.0).cloned().unwrap_or(Value::Null);
            (theirs.clone(), value)
        });
        Some(Value::Object(values.collect()))
    }

    pub(crate) fn locked_code(&self) -> Option<&str> {
        self.locked_code.as_deref()
    }

    pub(crate) fn confirms_twice(&self) -> bool {
        self.confirm_twice.unwrap_or(false)
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => match DateTime::parse_from_rfc3339(text) {
            Ok(time) => time.to_utc().format("%Y-%m-%d %H:%M:%S UTC").to_string(),
            Err(_) => describe::escape(text),
        },
        value => value.to_string(),
    }
}

/// Where the configuration is, and what it says.
fn configuration() -> anyhow::Result<(Option<PathBuf>, File)> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let (path, must_exist) = if let Some(path) = variable("ONEHOLD_CONFIG") {
        (PathBuf::from(path), true)
    } else {
        let of_the_user = if cfg!(windows) {
            "APPDATA"
        } else {
            "XDG_CONFIG_HOME"
        };
        let directory = variable(of_the_user)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(home()?.join(".config")));
        match directory {
            Some(directory) => (directory.join("onehold/config.toml"), false),
            None => return Ok((None, File::default())),
        }
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok((None, File::default()));
        }
        Err(error) => {
            let cause = output::cause_in_words(&error);
            bail!("cannot read `{}`: {cause}", path.display());
        }
    };
    let file = parse(&text, &path)?;
    Ok((Some(path), file))
}

/// Complaints name line and key.
fn parse(text: &str, path: &Path) -> anyhow::Result<File> {
    toml::from_str(text).map_err(|error| {
        let before = error
            .span()
            .and_then(|span| text.get(..span.start))
            .unwrap_or_default();
        let number = before.matches('\n').count() + 1;
        let line = text.lines().nth(number - 1).unwrap_or_default();
        let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
        anyhow::anyhow!(
            "cannot use `{}`: line {number}: `{key}`: {}",
            path.display(),
            error.message()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::duration;

    fn complaint(text: &str) -> String {
        parse(text, Path::new("config.toml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_built_in_profiles_are_those_that_are_promised() {
        let file = parse(BUILT_IN, Path::new("profiles.toml")).unwrap();
        let names: Vec<_> = file.profiles.keys().map(String::as_str).collect();
        assert_eq!(names, ["memory", "prodigy", "sprint", "tasks"]);
    }

    #[test]
    fn a_complaint_names_line_and_key() {
        let start = "cannot use `config.toml`: line ";
        for (text, expected) in [
            ("[defaults]\nwait = \"soon\"\n", "2: `wait`: "),
            (
                "[defaults]\n\nweight = 3\n",
                "3: `weight`: unknown field `weight`",
            ),
            ("[defaults]\nttl = 0\n", "2: `ttl`: too short"),
            (
                "[profiles.a]\nformat = \"xml\"\n",
                "2: `format`: no such format",
            ),
            (
                "[profiles.a]\non-zombie = \"eat\"\n",
                "2: `on-zombie`: unknown variant",
            ),
            (
                "[profiles.a]\nconflict-exit-code = 300\n",
                "2: `conflict-exit-code`: ",
            ),
            ("[profile.a]\n", "1: `[profile.a]`: unknown field `profile`"),
            ("wait = \"5s\"\n", "1: `wait`: unknown field `wait`"),
            ("[defaults]\nwait = \n", "2: `wait`: "),
            ("[defaults]\nwait = \"5s\"\nwait = \"6s\"\n", "3: `wait`: "),
            ("[defaults]\ndetails = { a = 1 }\n", "2: `details`: "),
            (
                "[defaults]\ndetails = { a = \"b\" }\n",
                "2: `details`: no lock has a `b`",
            ),
            (
                "[defaults]\nrefusal = \"{b}\"\n",
                "2: `refusal`: no lock has a `b`",
            ),
            ("[defaults]\nttl = \"100us\"\n", "2: `ttl`: too short"),
            ("[defaults]\npath = \"\"\n", "2: `path`: an empty path"),
        ] {
            let found = complaint(text);
            assert!(found.starts_with(&format!("{start}{expected}")), "{found}");
        }
    }

    #[test]
    fn the_more_special_setting_counts() {
        let settings = |text: &str| parse(text, Path::new("x")).unwrap().defaults;
        let above = settings("[defaults]\nwait = \"5s\"\n");
        let below = settings("[defaults]\nwait = \"6s\"\nttl = 7\n");
        let both = above.over(below);
        assert_eq!(
            both.wait.unwrap().0,
            WaitLimit::AtMost(Duration::from_secs(5))
        );
        assert_eq!(both.ttl.unwrap().0, Duration::from_secs(7));
    }

    proptest::proptest! {
        #[test]
        fn no_configuration_panics_and_a_complaint_always_names_a_line(
            text in "(\\[(defaults|profiles\\.[a-z]{1,3})\\]\n)?([a-z-]{1,12} = [\"'\\[{}0-9a-z.$~ ]{0,20}\n){0,6}",
        ) {
            if let Err(error) = parse(&text, Path::new("config.toml")) {
                let said = error.to_string();
                proptest::prop_assert!(said.starts_with("cannot use `config.toml`: line "), "{}", said);
            }
        }

        #[test]
        fn no_duration_panics_and_what_is_shown_is_read_as_it_was(
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
