//! The context of one invocation: the store, the configuration, and the holds that it runs under.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use percent_encoding::percent_decode_str;

#[cfg(feature = "etcd")]
use onehold::command_line::is_etcd_url;
#[cfg(feature = "postgres")]
use onehold::command_line::is_postgres_url;
use onehold::status::Reason;
use onehold::{Caller, Format, Lock, LockName, Status, Store};

use super::project::Project;
use super::values::{of_variable, truth, variable};
use crate::arguments::args::{self, GlobalArgs, UsageError};
use crate::configuration::{ConfigPath, EffectiveConfig, Settings};
use crate::messages::is_held;
use crate::words;

/// The context of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) verb: &'static str,
    pub(crate) global: GlobalArgs,
    pub(crate) store: Store,
    pub(crate) store_source: StoreSource,
    /// The caller, for `mine`, `release` and `renew`.
    pub(crate) caller: Caller,
    pub(crate) config: EffectiveConfig,
    /// Format of new lock files, unless the configuration has another one for the path.
    pub(crate) format: Format,
    /// The lock of a profile with a path.
    pub(crate) only: Option<LockName>,
    /// Whether holds leave a line in the journal when they end.
    pub(crate) history: bool,
    /// What is wrong with how the store is reached. Printed with the outcome.
    pub(crate) warning: Option<String>,
}

/// Environment variable with the holds that an invocation runs under.
pub(crate) const HOLDS: &str = "ONEHOLD_HOLDS";

impl Session {
    pub(crate) fn new(
        verb: &'static str,
        global: GlobalArgs,
        mut caller: Caller,
        config: EffectiveConfig,
        project: Option<&Project>,
    ) -> anyhow::Result<Self> {
        let only = lock_of_path(&global, &config)?;
        let settings = &config.settings;
        let configured = settings.format.map(|format| format.0);
        let format = global.format.or(configured).unwrap_or_default();
        let (directory, store_source) = match project {
            Some(_) if only.is_some() => bail!(UsageError(
                "this profile has a path of its own: --project cannot be used".to_owned()
            )),
            Some(_) if format.is_kernel_lock() => bail!(UsageError(format!(
                "{format} format: its locks are files, and not in the store of a project"
            ))),
            Some(project) => (project.store.clone(), StoreSource::Project),
            None => store_directory(global.dir.clone(), &config)?,
        };
        let mut store = store_at(directory, &config)?.format(format);
        if store.is_remote() && format != Format::Native {
            bail!(UsageError(format!(
                "{format} format: its programs read files: use --dir DIRECTORY"
            )));
        }
        if let Some(instance) = instance(&global, settings)? {
            store = store.instance(instance);
        }
        // A profile's directory belongs to another program, so the journal is in onehold's own store.
        // Without a home directory there is none, and the journal is beside the locks.
        if config.profile.is_some() {
            match own_store_directory(&config) {
                Ok((own, _)) => store = store.journal_in(&Store::at(own)),
                Err(error) if error.is::<UsageError>() => return Err(error),
                Err(_) => {}
            }
        }
        if let Some(bytes) = settings.journal_size {
            store = store.journal_size(bytes.0);
        }
        let history = of_variable(HISTORY, truth)?.unwrap_or(settings.history);
        caller.inside = enclosing(|number, _| number.parse().ok());
        let warning = unexpanded(global.dir.as_deref());
        #[cfg(feature = "etcd")]
        let warning = if store.is_remote() {
            super::etcd::warning(&config)
        } else {
            warning
        };
        Ok(Self {
            verb,
            global,
            store,
            store_source,
            caller,
            config,
            format,
            only,
            history,
            warning,
        })
    }

    /// Makes sure that the directory of a profile's lock can be used: a mistyped one would be a free lock.
    /// `make`: makes what is missing of it below the directory that the user gave.
    pub(crate) fn ensure_directory(&self, make: bool) -> onehold::Result<()> {
        let Some(name) = &self.only else {
            return Ok(());
        };
        let fail = |path: &Path, source| onehold::Error::Io {
            operation: "open directory",
            path: path.to_owned(),
            source,
        };
        let root = self.root();
        let directory = Path::new(name.as_str()).parent().unwrap_or(root);
        if directory.is_absolute() && !directory.starts_with(root) {
            return Ok(());
        }
        std::fs::read_dir(root).map_err(|source| fail(root, source))?;
        if make {
            std::fs::create_dir_all(directory).map_err(|source| fail(directory, source))?;
        }
        Ok(())
    }

    /// What the paths of a profile, and of files of flock(1), are relative to.
    fn root(&self) -> &Path {
        self.global.dir.as_deref().unwrap_or(Path::new("."))
    }

    /// Returns whether this invocation runs under the hold of `status`. Such a hold ends later than
    /// this invocation.
    pub(crate) fn is_inside(&self, status: &Status) -> bool {
        let is_inside = |hold| self.caller.inside.contains(&hold);
        is_held(status)
            && status.verdict.reason != Reason::Kept
            && (status.hold().is_some_and(is_inside) || status.is_locked_by_ancestor())
    }

    /// Whether it is said what goes well: to a person, or if asked to. cron mails all output.
    pub(crate) fn tells_success(&self) -> bool {
        self.tells() && (self.global.verbose || std::io::stderr().is_terminal())
    }

    /// Whether it is said on stderr what happens.
    pub(crate) fn tells(&self) -> bool {
        !self.global.quiet && !self.global.json
    }

    /// The warning that a store named by the user does not exist: its name may be mistyped.
    pub(crate) fn missing_store(&self) -> Option<String> {
        let is_named = matches!(
            self.store_source,
            StoreSource::CommandLine | StoreSource::Environment | StoreSource::Configuration
        );
        let path = self.store.path();
        // Names are then files in the working directory.
        let is_elsewhere = self.format.is_kernel_lock() && self.global.dir.is_none();
        if !is_named
            || is_elsewhere
            || self.store.is_remote()
            || self.only.is_some()
            || !matches!(path.try_exists(), Ok(false))
        {
            return None;
        }
        let lost = match self.verb {
            "release" | "renew" => ": a hold in it is lost",
            _ => "",
        };
        let path = words::path_text(path);
        Some(format!("store `{path}` does not exist{lost}"))
    }

    /// Returns whether a lock is the one at the fixed path of the profile.
    pub(crate) fn is_fixed_path(&self, lock: &Lock) -> bool {
        self.only.as_ref() == Some(lock.name())
    }

    /// What was found at the fixed path of the profile.
    pub(crate) fn at_fixed_path(&self, status: Status) -> Status {
        Lock::at_own_place(status, self.config.settings.takes_zombies())
    }

    pub(crate) fn lock(&self, mut name: LockName) -> onehold::Result<Lock> {
        let typed = self.global.format;
        let format = typed.or_else(|| self.config.format_of(&name));
        let format = format.unwrap_or(self.format);
        if format.is_kernel_lock() && !name.is_path() {
            // As flock(1) takes it.
            let below = self.root().strip_prefix(".").unwrap_or(self.root());
            name = LockName::new(Path::new(".").join(below).join(name.as_str()))?;
        }
        if format == self.format {
            self.store.lock(name)
        } else {
            self.store.clone().format(format).lock(name)
        }
    }

    /// The store, or the lock of a profile with a path.
    pub(crate) fn store_name(&self) -> Cow<'_, str> {
        match &self.only {
            Some(name) => name.as_str().into(),
            None => self.store.path().to_string_lossy(),
        }
    }

    /// The same for messages of `list` and `cleanup`.
    pub(crate) fn store_text(&self) -> String {
        words::escape(&self.store_name())
    }

    /// The `--dir` that another invocation needs to reach the same store. `None`: it needs none.
    pub(crate) fn directory_to_name(&self) -> Option<PathBuf> {
        use StoreSource::{CommandLine, Environment, Project};
        // Which lock or store it is depends on the current directory.
        if self.only.is_some() {
            let root = self.root();
            return Some(std::path::absolute(root).unwrap_or_else(|_| root.to_owned()));
        }
        let is_needed = matches!(self.store_source, CommandLine | Project | Environment)
            || self.config.settings.project_dir.is_some();
        is_needed.then(|| self.store.path().to_owned())
    }

    /// The locks that were named on the command line or by a profile. None: all of the store.
    pub(crate) fn chosen<'a>(&'a self, typed: &'a [LockName]) -> &'a [LockName] {
        if typed.is_empty() {
            self.only.as_slice()
        } else {
            typed
        }
    }

    /// The lock that was named on the command line or by a profile.
    pub(crate) fn named_lock(&self, name: Option<LockName>) -> anyhow::Result<Lock> {
        let name = name.or_else(|| self.only.clone());
        let why = match self.config.profile {
            Some(_) => " (this profile has no path)",
            None => "",
        };
        let name = name.ok_or_else(|| UsageError(format!("missing NAME{why}")))?;
        Ok(self.lock(name)?)
    }

    /// The locks that were named, to be held together.
    pub(crate) fn named_locks(&self, names: Vec<LockName>) -> anyhow::Result<Lock> {
        let mut names = names.into_iter();
        let first = self.named_lock(names.next())?;
        let and = |lock: Lock, name| {
            lock.and(name).map_err(|error| match error {
                onehold::Error::Io { .. } => anyhow::Error::from(error),
                error => UsageError(error.to_string()).into(),
            })
        };
        names.try_fold(first, and)
    }
}

/// The instance that the caller belongs to.
fn instance(global: &GlobalArgs, settings: &Settings) -> Result<Option<String>, UsageError> {
    if global.instance.is_some() {
        return Ok(global.instance.clone());
    }
    let id = of_variable("ONEHOLD_INSTANCE", args::instance)?;
    Ok(id.or_else(|| Some(settings.instance.as_ref()?.0.clone())))
}

/// Environment variable that turns the history on or off.
pub(crate) const HISTORY: &str = "ONEHOLD_HISTORY";

/// The lock of a profile with a path.
fn lock_of_path(global: &GlobalArgs, config: &EffectiveConfig) -> anyhow::Result<Option<LockName>> {
    let Some(path) = &config.settings.path else {
        return Ok(None);
    };
    let path = path.of_key("path")?;
    let root = global.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let mut whole = local_directory(root)?;
    whole.push(local_directory(path)?);
    if whole.is_relative() && !whole.starts_with(".") && !whole.starts_with("..") {
        whole = PathBuf::from(".").join(whole);
    }
    Ok(Some(LockName::new(whole)?))
}

/// Where the store directory comes from, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreSource {
    CommandLine,
    /// The project that the current directory is in, with `--project` or as the profile says.
    Project,
    Profile,
    Environment,
    Configuration,
    Default,
}

fn store_directory(
    typed: Option<PathBuf>,
    config: &EffectiveConfig,
) -> anyhow::Result<(PathBuf, StoreSource)> {
    let of_profile = config.settings.dir.as_ref();
    if let Some(dir) = typed {
        Ok((local_directory(dir)?, StoreSource::CommandLine))
    } else if let Some(project) = project_store(config)? {
        Ok((project, StoreSource::Project))
    } else if let Some(dir) = of_profile.filter(|_| config.profile.is_some()) {
        Ok((local_directory(dir.first()?)?, StoreSource::Profile))
    } else {
        own_store_directory(config)
    }
}

/// The store of the project that the current directory is in: below the nearest directory, from the
/// current one upwards, that has the first part of the profile's path.
fn project_store(config: &EffectiveConfig) -> anyhow::Result<Option<PathBuf>> {
    let Some(project) = &config.settings.project_dir else {
        return Ok(None);
    };
    let current = std::env::current_dir().context("cannot find the current directory")?;
    let marked = Project::marked(&current, project)?;
    Ok(marked.map(|project| project.store))
}

/// The store directory without a profile.
fn own_store_directory(config: &EffectiveConfig) -> anyhow::Result<(PathBuf, StoreSource)> {
    if let Some(dir) = variable("ONEHOLD_DIR") {
        return Ok((directory_of_variable(dir.into())?, StoreSource::Environment));
    }
    if let Some(dir) = &config.default_dir {
        return Ok((local_directory(dir.clone())?, StoreSource::Configuration));
    }
    let store = Store::of_user().map_err(|error| anyhow!("{error}: use --dir"))?;
    Ok((store.path().to_owned(), StoreSource::Default))
}

/// The store that `ONEHOLD_DIR` names. cron and systemd pass a `~` or variable as it is written. A relative path would
/// be another store in each directory.
fn directory_of_variable(mut dir: PathBuf) -> anyhow::Result<PathBuf> {
    if dir.has_root() {
        return Ok(dir);
    }
    if let Some(text) = dir.to_str().filter(|text| text.starts_with(['~', '$'])) {
        let path = ConfigPath::try_from(text.to_owned());
        let path = path.map_err(|why| UsageError(format!("ONEHOLD_DIR: `{text}`: {why}")))?;
        let expanded = path.of_key("ONEHOLD_DIR");
        dir = expanded.map_err(|error| UsageError(error.to_string()))?;
    }
    let dir = local_directory(dir)?;
    if dir.has_root() || is_url(&dir) {
        return Ok(dir);
    }
    let here = std::path::absolute(&dir).unwrap_or_default();
    let (dir, here) = (words::path_text(&dir), words::path_text(&here));
    let why = "it is relative, which is another store in each directory";
    bail!(UsageError(format!(
        "cannot use `{dir}` of ONEHOLD_DIR as the store: {why}; here it is `{here}`"
    )))
}

/// The warning that a shell did not replace the `~` of `--dir`, which is a directory of that name then.
fn unexpanded(typed: Option<&Path>) -> Option<String> {
    let typed = typed.filter(|dir| dir.starts_with("~"))?;
    let path = std::path::absolute(typed).ok()?;
    let (typed, path) = (words::path_text(typed), words::path_text(&path));
    Some(format!(
        "`--dir {typed}` is `{path}`: a shell replaces `~/` only if it is not quoted"
    ))
}

/// Whether it is the URL of a store that this build knows.
fn is_url(dir: &Path) -> bool {
    let known: &[fn(&str) -> bool] = &[
        #[cfg(feature = "etcd")]
        is_etcd_url,
        #[cfg(feature = "postgres")]
        is_postgres_url,
    ];
    known.iter().any(|is_url| is_url(&dir.to_string_lossy()))
}

/// The store with this name: a directory, or a URL.
#[cfg_attr(
    not(feature = "cluster"),
    allow(clippy::unnecessary_wraps, reason = "a directory always can be")
)]
fn store_at(name: PathBuf, config: &EffectiveConfig) -> anyhow::Result<Store> {
    #[cfg(feature = "cluster")]
    let usage = |error| match error {
        onehold::Error::InvalidStore { .. } => anyhow::Error::from(UsageError(error.to_string())),
        error => error.into(),
    };
    #[cfg(feature = "etcd")]
    if is_etcd_url(&name.to_string_lossy()) {
        let store = Store::on_etcd(&name.to_string_lossy(), &super::etcd::access(config)?);
        return store.map_err(usage);
    }
    #[cfg(feature = "postgres")]
    if is_postgres_url(&name.to_string_lossy()) {
        let store = Store::on_postgres(&name.to_string_lossy(), &super::postgres::access()?);
        return store.map_err(usage);
    }
    let _ = config;
    Ok(Store::at(name))
}

/// Rejects `scheme://…` of a store that this build does not know: a directory of that name would not
/// exclude other machines.
fn local_directory(dir: PathBuf) -> Result<PathBuf, UsageError> {
    if is_url(&dir) {
        return Ok(dir);
    }
    let text = dir.to_string_lossy();
    let lower = text.to_ascii_lowercase();
    // A single letter is a drive of Windows.
    let is_scheme = |scheme: &str| {
        let fits = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
        scheme.len() > 1
            && scheme.starts_with(|char: char| char.is_ascii_alphabetic())
            && scheme.chars().all(fits)
    };
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let why = if matches!(scheme, Some("etcd" | "etcds")) {
        "this build has no etcd: install a released one, or build it with `--features etcd`"
    } else if matches!(scheme, Some("postgres" | "postgresql")) {
        "this build has no PostgreSQL: install a released one, or build it with `--features postgres`"
    } else if lower.starts_with("etcd:") || lower.starts_with("etcds:") {
        "a store on etcd is etcd://HOSTS/PREFIX, or etcds:// for TLS"
    } else if scheme.is_some_and(is_scheme) {
        "it is neither a directory, nor postgres://HOST/DATABASE/PREFIX, nor etcd://HOSTS/PREFIX"
    } else {
        return Ok(dir);
    };
    Err(UsageError(format!(
        "cannot use `{text}` as the store: {why}"
    )))
}

/// The numbers and names of the holds that this invocation runs under.
fn enclosing<T>(read: impl Fn(&str, &str) -> Option<T>) -> Vec<T> {
    let holds = std::env::var(HOLDS).unwrap_or_default();
    let holds = holds.split_whitespace();
    let holds = holds.filter_map(|hold| hold.split_once(':'));
    holds
        .filter_map(|(number, name)| read(number, name))
        .collect()
}

/// The names of the holds that this invocation runs under.
pub(crate) fn enclosing_names() -> Vec<String> {
    let decoded = |name: &str| percent_decode_str(name).decode_utf8_lossy().into_owned();
    enclosing(|_, name| Some(decoded(name)))
}
