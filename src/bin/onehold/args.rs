//! What can be typed. The comments are the help text; nothing here touches the world.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use onehold::{Format, LockName};
use serde::Deserialize;

/// Hold a lock while something runs, and know who holds it when you cannot.
///
/// A lock is a NAME in a store, a directory of lock files anyone can read, or the path of one lock
/// file (`/…`, `./…`, `../…`). At most one holder has it; what a dead one left is taken over, by
/// proof that he is dead. A name covers those below it: `backend` excludes `backend/task-1` and the
/// other way round, unless both have the same --owner. Locks are advisory: they keep apart those
/// who ask.
#[derive(Debug, Parser)]
#[command(
    name = "onehold",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every verb.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Everywhere {
    /// The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else
    /// ~/.local/state/onehold]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub(crate) dir: Option<PathBuf>,
    /// Defaults for options, directory and format, for the locks of another program: `prodigy`,
    /// `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]
    ///
    /// See onehold-config(5).
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    pub(crate) profile: Option<String>,
    /// How lock files are written, for the programs that look at them
    ///
    /// All formats but `pid` are recognised and read whatever this says. See onehold-formats(5).
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_parser = format(),
        help_heading = "Everywhere"
    )]
    pub(crate) format: Option<Format>,
    /// Print exactly one JSON object, also on failure
    ///
    /// It goes to stdout; for `run`, whose stdout is CMD's, it is the last line on stderr.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Say nothing but errors; the exit code tells
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Everywhere",
        conflicts_with = "verbose"
    )]
    pub(crate) quiet: bool,
    /// Say more: the store, the evidence, every process
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) verbose: bool,
    /// When to use colour
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        help_heading = "Everywhere"
    )]
    pub(crate) color: Color,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold a lock while a command runs
    ///
    /// CMD inherits the lock: it stays held while CMD runs, even if onehold itself is killed. Its
    /// arguments reach it untouched, its exit code is passed on. TERM, USR1 and USR2 are forwarded
    /// to it; INT, QUIT and HUP only if a process sent them, for a terminal has told CMD already.
    Run(Run),
    /// Hold a lock on behalf of a process, or for a time; print the number of the hold
    ///
    /// The hold follows the process given by --pid, else the script that this is called in: the
    /// oldest ancestor in the caller's process group, else the session leader if that is an
    /// ancestor. It ends when that process does. With --ttl alone it is a lease and ends with its
    /// time. Until the number has been written, nothing is held.
    ///
    /// The same --owner may ask again for what is held by an `acquire` of his: he gets the number of
    /// that hold, which stays as it is, for the process or time it was acquired for.
    Acquire(Acquire),
    /// Give a hold back; that it is free already is a success
    ///
    /// It is yours if --hold or --owner matches, or if the process it follows is your ancestor.
    /// Never removes a successor's. What a living `run` holds ends with its command, and is not
    /// given back before that (4).
    Release(Release),
    /// Extend a lease, or refresh the age of another detached hold
    Renew(Renew),
    /// Tell who holds a lock, and whether that is true; the exit code is the answer
    Check(Check),
    /// List all locks of the store, with verdicts
    List(List),
    /// Remove every zombie of the store, and nothing else
    Cleanup(Cleanup),
    /// Take a lock away from its holder, on your word
    ///
    /// Asks first if the holder may be alive; --yes answers. No process is signalled: the wrapper
    /// of a `run` notices within two seconds and ends its command (see run --on-lost), which is
    /// waited for, 12 s at most. What `run --exec` became, and the process that an `acquire`
    /// follows, are not told and run on.
    Break(Break),
}

#[derive(Args, Debug)]
#[command(override_usage = "onehold run [NAME] [OPTIONS] -- CMD [ARG]...")]
pub(crate) struct Run {
    /// The lock: a name, or a path that starts with `/`, `./` or `../` [default: the path of the
    /// profile, else from CMD and its arguments]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) claim: Claim,
    /// What to do with CMD if the hold is lost while it runs
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_lost: OnLost,
    /// Do not let CMD inherit the lock: if onehold is killed, only CMD's pid tells that it runs
    #[arg(long)]
    pub(crate) close: bool,
    /// Become CMD instead of waiting for it; the record is left behind as finished
    #[arg(long, conflicts_with_all = ["ttl", "on_lost", "close"])]
    pub(crate) exec: bool,
    /// Inside this very hold already: just run CMD
    #[arg(long)]
    pub(crate) reentrant: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Options of those who want a lock.
#[derive(Args, Debug, Default)]
pub(crate) struct Claim {
    /// How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not
    /// at all]
    #[arg(short, long, value_name = "D", value_parser = wait_limit)]
    pub(crate) wait: Option<WaitLimit>,
    /// Do not wait; the default
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// End the hold this long after its last renewal, whatever happens to its process
    ///
    /// For `run`, which renews it each third of that, it only bounds how long others who cannot
    /// see the holder must believe in it.
    #[arg(long, value_name = "D", value_parser = time_to_live)]
    pub(crate) ttl: Option<Duration>,
    /// A label of who holds, a session or a runner; whoever gives the same may release it, and takes
    /// part in it: choose one that nobody else has
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// Why, for those who find it held; at most 1 KiB
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a
    /// zombie [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
    /// What to do about a zombie [default: take]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_zombie: Option<OnZombie>,
    /// Take it from a living holder, or from those who wait for it; asks first
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Answer every question with yes
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Exit with N where it would be 6 or 7
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// What to do about a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnZombie {
    /// Take it over, and say so
    Take,
    /// Ask on the terminal; without one, refuse unless --yes is given
    Ask,
    /// Refuse
    Fail,
}

/// What to do if the hold is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End CMD: TERM, after 10 s KILL; exit 8
    #[default]
    Term,
    /// Say so, and let it run
    Warn,
}

#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// The lock: a name, or a path that starts with `/`, `./` or `../` [default: the path of the
    /// profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) claim: Claim,
    /// The process that the hold follows [default: the calling script]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub(crate) pid: Option<u32>,
}

/// Whose a hold is.
#[derive(Args, Debug, Default)]
pub(crate) struct Claimant {
    /// The number of the hold; only that one is meant
    #[arg(long, value_name = "N")]
    pub(crate) hold: Option<u64>,
    /// The owner it was acquired with
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The lock [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) claimant: Claimant,
    /// Whoever's it is: `break` for that name
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Answer every question with yes
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// The lock [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) claimant: Claimant,
    /// A new time to live, from now on [default: as before]
    #[arg(long, value_name = "D", value_parser = time_to_live)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The lock [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    /// The number of a hold, for `mine` of the JSON object
    #[arg(long, value_name = "N")]
    pub(crate) hold: Option<u64>,
    /// Who asks, for `mine` of the JSON object; a section above or a task below that this owner holds
    /// does not count
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Cleanup {
    /// Only tell what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The lock [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    /// The number of the hold; no other is broken
    #[arg(long, value_name = "N")]
    pub(crate) hold: Option<u64>,
    /// Answer every question with yes
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    AtMost(Duration),
    Forever,
}

fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|name| name.parse())
}

fn lock_name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|error| error.to_string())
}

pub(crate) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    if text == "forever" {
        return Ok(WaitLimit::Forever);
    }
    duration(text).map(WaitLimit::AtMost)
}

/// As records keep it, in milliseconds; none at all would be over before it began.
pub(crate) fn time_to_live(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(ttl) if ttl.as_millis() == 0 => Err("too short".to_owned()),
        parsed => parsed,
    }
}

/// A bare number is seconds, as flock(1) has it also in parts.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const TRY: &str = "try `30`, `0.5`, `30s`, `5m`, `2h` or `1d`";
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(seconds) = text.parse::<f64>()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| format!("{error}; {TRY}"));
    }
    // To humantime `M` is a month, which is not what anybody means here.
    if text
        .split(|char: char| !char.is_alphabetic())
        .any(|unit| unit == "M")
    {
        return Err(format!("unknown unit of time `M`; {TRY}"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; {TRY}"))
}
