//! The options and arguments of the command line. The doc comments are the help text.
//!
//! Parsing reads no file and no environment variable.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use onehold::{Format, LockName, Mode};
use serde::Deserialize;

/// What `--version` prints behind the name; `-V` prints the number alone.
pub(crate) const LONG_VERSION: &str = if cfg!(feature = "etcd") {
    concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: etcd")
} else {
    concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: none")
};

/// Run commands under named locks and see who holds them.
///
/// A lock is a NAME in a store, or the path of one lock file (`/…`, `./…`, `../…`). A store is a directory of lock
/// files or, for locks of many machines, a prefix of an etcd cluster. A lock has at most one holder, unless all of
/// them share it (--shared, --slots). The next caller takes over the lock of a dead holder. A parent and its children
/// exclude each other (`backend` and `backend/task-1`), unless both have the same --owner. Locks are advisory: they
/// only affect programs that ask for them.
#[derive(Debug, Parser)]
#[command(
    name = "onehold",
    version,
    long_version = LONG_VERSION,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else
    /// ~/.local/state/onehold]
    ///
    /// A store on etcd is for locks of many machines, see onehold-etcd(7).
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default:
    /// $ONEHOLD_PROFILE]
    ///
    /// A profile sets defaults for options, the directory and the format, for example those of another program's
    /// locks. See onehold-config(5).
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Format of new lock files
    ///
    /// Existing lock files in any format but `pid` and `flock` are recognized without this option. See
    /// onehold-formats(5).
    #[arg(long, global = true, value_name = "FORMAT", value_parser = format())]
    pub(crate) format: Option<Format>,
    /// Name of the caller's instance, such as a pod of a StatefulSet; at most one exists at a time [default:
    /// $ONEHOLD_INSTANCE]
    ///
    /// After a restart, holds of the previous incarnation are known to be dead. See onehold-states(7).
    #[arg(long, global = true, value_name = "ID", value_parser = instance)]
    pub(crate) instance: Option<String>,
    /// Print one JSON object, even on failure
    ///
    /// The object goes to stdout. For `run`, whose stdout belongs to CMD, it is the last line on
    /// stderr. See onehold-json(5).
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only errors, warnings, questions, and the result of the command
    ///
    /// `run`, `acquire` and `hold` say nothing if they are refused or time out, unless the holder is overdue.
    /// `acquire` still prints the hold number, `list` its table, `config` its settings. `check` and `cleanup`
    /// print nothing: the exit status is the answer. With --json, the object is printed nevertheless.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print details (store, evidence, processes), and successes too
    ///
    /// On a terminal, `run` and `acquire` always say that they wait, and `acquire` that it acquired the lock.
    /// Elsewhere they do so only with this option, because cron mails all output; without it, they say once that they
    /// wait, after a minute.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// When to use color
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// When to use color.
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
    /// Run a command while holding a lock
    ///
    /// CMD inherits the kernel lock, so the lock stays held while CMD runs, even if onehold is killed. CMD gets its
    /// arguments unchanged; onehold returns its exit status.
    ///
    /// onehold forwards every signal to CMD. TERM ends all the work: CMD and every process that CMD has started get
    /// TERM, and the rest gets KILL after 10 s (see --kill-after). The lock is released once all of it has ended. The
    /// same happens if the lock is broken or lost, at the --time-limit, and if a signal kills CMD. If CMD exits, the
    /// lock is released at once, and the processes that it leaves behind keep running without it.
    ///
    /// INT, QUIT and HUP from a terminal reach CMD once: onehold forwards them only to another process group or
    /// session. With --exec there is no wrapper: CMD gets every signal itself.
    Run(Run),
    /// Acquire a lock for a process or a limited time; print the hold number
    ///
    /// The hold follows a process and ends when that process exits. --pid names the process. Without it, the process
    /// is the calling script: the nearest ancestor process that is no subshell and does not only start onehold, as
    /// sudo and timeout do. If there is none, as for a command of a systemd unit, nothing is held (exit status 1). A
    /// warning names a process that ends with this command, as in `su -c 'onehold acquire x'`. onehold-states(7) has a
    /// table.
    ///
    /// With --ttl and no --pid, the hold is a lease and ends when it expires. If the hold number cannot be printed,
    /// nothing is held.
    ///
    /// A second `acquire` succeeds and prints the number of the existing hold if --pid names the
    /// process that holds it already and no other --owner is given, or if both are leases of the
    /// same --owner. A longer --ttl then extends the hold. Otherwise, the lock is held: two calls of
    /// one script are two holders.
    ///
    /// If only the process that holds the lock is killed, the lock is free, and the processes that it has started keep
    /// running beside the next holder. `run` ends them first. A script can run itself under `run`: see `check --mine`,
    /// and onehold-flock(7).
    ///
    /// `acquire` runs no command. After `--`, each word is a name, even if it begins with a hyphen.
    Acquire(Acquire),
    /// Hold a lock for a program as long as stdin is open; print the hold number
    ///
    /// For programs in any language: start `onehold hold NAME` with pipes for stdin and stdout, read a line, do the
    /// work, and close stdin. This releases the lock, and the exit status is 0. If the program is killed, the kernel
    /// closes its end of the pipe, which also releases the lock, unless another process keeps that end open. Input on
    /// stdin is ignored.
    ///
    /// stdout gets the hold number once the lock is held; with --json one object on each line: see onehold-json(5). If
    /// the hold is broken, onehold says so at once; if its file was removed, within two seconds. It exits with 8, and
    /// the program must stop its work: `break` does not end it.
    ///
    /// TERM also releases the lock. INT, QUIT and HUP from a terminal are ignored while the lock is held,
    /// because the program gets them too and decides when to stop; if stdin is the terminal, they release
    /// the lock.
    Hold(HoldUntilEnd),
    /// Release a lock (succeeds if it is already free)
    ///
    /// You may release a hold if --hold or --owner matches, or if the process that it follows is an ancestor of the
    /// caller, unless another subshell acquired it and is still running. A later hold is never removed. The hold of a
    /// live `run` ends with its command and cannot be released before (exit status 4). Anyone may remove a zombie
    /// whose holder is known to have ended; the holder is reported. Locks that were acquired together are released
    /// together, by any of their names.
    Release(Release),
    /// Extend a lease, or restart the age of a hold made by `acquire`
    ///
    /// You may renew a hold if --hold or --owner matches, or if the process that it follows is an
    /// ancestor of the caller. A `run` renews its hold itself (exit status 4). An expired lease can be
    /// renewed as long as nobody else has taken the lock or waits for it.
    Renew(Renew),
    /// Show the holder of a lock and verify it; the exit status is the state
    ///
    /// For a `run`, it names the directory in which the command runs, if that can be seen (on Linux).
    ///
    /// With -v, also show the waiters, the processes of the hold (PID, user, state, CPU time,
    /// command) and the last three takeovers, breaks and cleanups of the lock.
    Check(Check),
    /// List the locks in the store with their states
    ///
    /// NAME, STATE (the words are those of --state), HOLDER (PID and program, or the owner of a lease; its
    /// host if it is another one), USER (if the locks shown are held by more than one), AGE (since the lock
    /// was acquired), MESSAGE. `+2` after the state: two are waiting.
    ///
    /// On a terminal, MESSAGE gets the remaining width. NAME and HOLDER are never cut, but wrapped. Elsewhere, and
    /// with --wide, each lock has one line.
    ///
    /// With --prometheus, onehold_lock_held counts the holds of each lock by state and host. Beside it are the age of
    /// the oldest one, the time until the first lease ends, the waiters, and the longest wait. onehold_store_up is 0
    /// if the store cannot be read; the exit status is then 1. With a history, onehold_holds_total counts the holds
    /// that have ended by their result (see onehold-history(1)); `success` is exit status 0 and `failure` any other.
    List(List),
    /// Remove all zombies from the store, or those with the given names
    ///
    /// A zombie is a stale lock: its holder has exited, its lease has expired, or its file is
    /// damaged. Other locks are left unchanged.
    Cleanup(Cleanup),
    /// Remove a hold by force, after confirmation
    ///
    /// Asks first if the holder may be alive, and says which processes it ends; --yes skips the question. The work of
    /// a live `run` is ended first: its command and every process that the command has started get TERM, and the rest
    /// gets KILL after 10 s, or after `run --kill-after`. Once all of it has ended, the lock is free, and `break`
    /// returns. If something cannot be ended, `break` names it, leaves the lock held and exits with 1. The process of
    /// an `acquire` is not signaled and keeps running.
    ///
    /// At the fixed path of a profile, `break` also moves aside a file that is not a lock file, if the file has not
    /// changed for 10 s. It never removes that file.
    Break(Break),
    /// Check that the store is suitable for locks, and that holders can be checked from here
    ///
    /// Examines the host, the filesystem and the store. Then tries a lock under a name of its own for a few
    /// seconds: eight processes increment a number up to 200 times each, a holder and a wrapper are killed, and eight
    /// waiters must be served in order. Each check is ok, a warning, or FAILED, with advice. Exits with 1 if a
    /// check failed. Run it before you trust a new machine or filesystem.
    Doctor(Doctor),
    /// List holds that have ended, the latest last
    ///
    /// Holds leave a line in the journal of the store when they end, if `history = true` is below `[defaults]` in the
    /// configuration, or ONEHOLD_HISTORY is 1. How far back they reach depends on journal-size, see onehold-config(5).
    /// For a store on etcd they are those of this machine. A line may be missing if onehold is killed as the hold
    /// ends. The line of a dead holder is written by the next one, with the time at which the death was noticed.
    ///
    /// RESULT is how the hold ended. For a command of `run`: exit N, signal N, time-limit, caller-exited (see
    /// --die-with) or not-started, for example because it was not found. For any hold: broken, lost (its file was
    /// removed, or its lease was not kept) or taken-over (its holder died). For `acquire` and `hold` also released,
    /// and expired (a lease that was not renewed in time). A lock that is kept by --hold-at-least has the line of its
    /// command.
    History(History),
    /// Show the effective settings and their sources
    ///
    /// The output is a valid configuration file. Each value is followed by its source: an option, an
    /// environment variable, a line of the configuration file, a built-in profile, or the default.
    Config,
}

#[derive(Args, Debug, Default)]
#[command(override_usage = "onehold run [NAME]... [OPTIONS] -- CMD [ARG]...")]
pub(crate) struct Run {
    /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile,
    /// else derived from CMD and its arguments]
    ///
    /// Several names are taken together: all of them or none, as one hold.
    #[arg(value_name = "NAME", value_parser = lock_name)]
    pub(crate) names: Vec<LockName>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// What to do if the lock file is removed or replaced while CMD runs (`break` ends CMD anyway)
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_lost: OnLost,
    /// End CMD and all its processes after D, and exit with 124; `0`: no limit [default: no limit]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) time_limit: Option<Duration>,
    /// Time between TERM and KILL when the work is ended; `0`: no KILL [default: 10s]
    ///
    /// With --exec, only `break` ends the work, after this time.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Keep the lock until D after it was acquired, also if CMD ends sooner; onehold exits with CMD
    ///
    /// The hold then is a lease with the exit code of CMD, until that time. `release`, `break` and --force end the
    /// lease. Nothing is kept if CMD could not be executed, or after a break. See onehold-states(7).
    #[arg(long, value_name = "D", value_parser = duration, conflicts_with = "exec")]
    pub(crate) hold_at_least: Option<Duration>,
    /// End CMD and all its processes, or the wait, once the process PID has exited; `parent`: the process that started
    /// onehold; `none`: with no process [default: none]
    ///
    /// As after TERM, with exit status 143. If the parent has exited before onehold looks, CMD is not started. Has no
    /// effect with --reentrant under `run` of this lock. A configured `parent` does not apply to children of process
    /// 1. See onehold-states(7).
    #[arg(long, value_name = "PID|parent|none", value_parser = die_with, conflicts_with = "exec")]
    pub(crate) die_with: Option<DieWith>,
    /// Do not pass the kernel lock to CMD; if onehold is killed, CMD is tracked by PID only
    #[arg(long)]
    pub(crate) close: bool,
    /// Replace onehold with CMD; the record remains and counts as free once CMD exits
    #[arg(long, conflicts_with_all = ["ttl", "on_lost", "close", "time_limit"])]
    pub(crate) exec: bool,
    /// If already running under `run` of this lock, just run CMD
    #[arg(long)]
    pub(crate) reentrant: bool,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug, Default)]
#[command(override_usage = "onehold hold [NAME]... [OPTIONS]")]
pub(crate) struct HoldUntilEnd {
    /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile]
    ///
    /// Several names are taken together: all of them or none, as one hold.
    #[arg(value_name = "NAME", value_parser = lock_name)]
    pub(crate) names: Vec<LockName>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Also release the lock, or stop waiting, when process PID exits; `parent`: the process that started
    /// onehold; `none`: with no process [default: none]
    ///
    /// A wait then ends with exit status 143. A configured `parent` does not apply to children of process 1.
    #[arg(long, value_name = "PID|parent|none", value_parser = die_with)]
    pub(crate) die_with: Option<DieWith>,
    /// If already running under `run` of this lock, hold nothing, and print the number of that hold
    #[arg(long)]
    pub(crate) reentrant: bool,
}

/// Options of the commands that acquire a lock.
#[derive(Args, Debug, Default)]
pub(crate) struct HoldArgs {
    /// Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not
    /// wait]
    #[arg(short, long, value_name = "D", value_parser = wait_limit)]
    pub(crate) wait: Option<WaitLimit>,
    /// Do not wait (default; overrides a configured wait)
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Do not wait if N wait already: exit with 6 at once
    ///
    /// With 1, a call leaves the work to one that waits already, and so starts later.
    #[arg(long, value_name = "N")]
    pub(crate) max_waiting: Option<u32>,
    /// Keep the place in the queue for D, at most 30m, if the wait ends without the lock; needs --owner
    ///
    /// If the same owner waits for the same locks again within D, it gets its position back, even if onehold was
    /// killed. This is for tools that end a command after a few minutes. A kept place delays no other waiter.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) keep_place: Option<Duration>,
    /// Hold the lock together with others that use --shared; excludes holders without it
    ///
    /// For readers: they exclude writers but not each other. A writer that waits is served before readers
    /// that come later.
    #[arg(short, long, conflicts_with = "slots")]
    pub(crate) shared: bool,
    /// Let at most N hold the lock at once, each in a slot of its own, 0 to N-1
    ///
    /// `run` sets ONEHOLD_SLOT for CMD. `acquire` prints the slot to stderr on a terminal and with -v. JSON has it as
    /// `slot`.
    #[arg(long, value_name = "N", value_parser = slots)]
    pub(crate) slots: Option<NonZeroU32>,
    /// Time to live: how long the hold lasts without a renewal
    ///
    /// `acquire`: the hold expires D after it was acquired or last renewed, even if its process still runs. `run`: the
    /// hold does not expire while CMD runs. The heartbeat is renewed three times in D; D only limits how long other
    /// hosts count the hold as held without a heartbeat.
    #[arg(long, value_name = "D", value_parser = time_to_live)]
    pub(crate) ttl: Option<Duration>,
    /// Whether the time to live is a default, not given on the command line.
    #[arg(skip)]
    pub(crate) ttl_is_default: bool,
    /// Unique label, such as a CI job ID; the same label may release and renew the hold
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// Reason to show to others, at most 1 KiB
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked)
    /// [default: 24h]
    ///
    /// With this option, the age of a `run` counts from when it took the lock. Otherwise it counts from the last
    /// heartbeat, one an hour: the `run` becomes overdue only if its wrapper hangs.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
    /// How to handle a zombie (stale lock) [default: take]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_zombie: Option<OnZombie>,
    /// Take the lock from a live holder or ahead of waiters; asks first
    ///
    /// Waits up to 12 s for the command of a `run` that held the lock to exit, 1 s if the writer of the lock file may
    /// not signal it, and then goes on even if it has not exited.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Answer yes to all questions; a live holder loses the lock only with --force
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Exit with N instead of 6 (held) or 7 (timed out)
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code)]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// How to handle a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnZombie {
    /// Take it over and report it
    Take,
    /// Ask on the terminal; without a terminal, refuse unless --yes is given
    Ask,
    /// Exit with status 5
    Fail,
}

/// The process that a `run` ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DieWith {
    /// In place of a default.
    None,
    Parent,
    Pid(u32),
}

/// What to do if the lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End all the work by TERM and KILL, exit with 8
    #[default]
    Term,
    /// Print a warning and let CMD run
    Warn,
}

#[derive(Args, Debug, Default)]
#[command(override_usage = "onehold acquire [NAME]... [OPTIONS]")]
pub(crate) struct Acquire {
    /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile]
    ///
    /// Several names are taken together: all of them or none, as one hold.
    #[arg(value_name = "NAME", value_parser = lock_name)]
    pub(crate) names: Vec<LockName>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Process to hold the lock for [default: the calling script]
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub(crate) pid: Option<u32>,
}

/// Options that identify the caller's hold.
#[derive(Args, Debug, Default)]
pub(crate) struct CallerArgs {
    /// Act only on the hold with this number
    #[arg(long, value_name = "N", value_parser = hold_number)]
    pub(crate) hold: Option<u64>,
    /// Owner label that the lock was acquired with
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Release {
    /// Lock name or path [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) caller: CallerArgs,
    /// Release any holder's lock; same as `break`
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Answer yes to all questions
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// Lock name or path [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) caller: CallerArgs,
    /// New time to live, starting now [default: unchanged]
    #[arg(long, value_name = "D", value_parser = time_to_live)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Check {
    /// Lock name or path [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    /// Caller's hold number, for `mine` in the JSON object
    #[arg(long, value_name = "N", value_parser = hold_number)]
    pub(crate) hold: Option<u64>,
    /// Caller's owner label, for `mine` in the JSON object; parents and children held by it are
    /// ignored
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    /// Maximum age of holds that do not set their own [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
    /// Exit with 0 if the lock is free or can be taken over, with 6 if not
    #[arg(long)]
    pub(crate) available: bool,
    /// Exit with 0 if the caller runs under a live hold of this lock, with 4 if not; print nothing
    ///
    /// The caller runs under a hold if it descends from a process of the hold: of a `run`, or the process that
    /// `acquire` holds the lock for. A program that started `hold` does not. Environment variables do not count,
    /// because a daemon keeps them when the hold has ended. For a lease, --owner or --hold must match. Parents and
    /// children of the lock do not count. With -v or --json, also say who holds it.
    #[arg(long, conflicts_with_all = ["available", "shared", "slots"])]
    pub(crate) mine: bool,
    /// Check for a caller that would share the lock
    #[arg(short, long, conflicts_with = "slots")]
    pub(crate) shared: bool,
    /// Check for a caller that would take one of N slots
    #[arg(long, value_name = "N", value_parser = slots)]
    pub(crate) slots: Option<NonZeroU32>,
}

/// Order of `list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListOrder {
    /// By name, in natural order (job-9 before job-10)
    Name,
    /// The oldest hold first
    Age,
    /// Zombies first, then what may need attention
    State,
}

/// State of a lock in `list`, in the order in which it needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ListState {
    /// The holder has ended, or the file is damaged; the next acquire takes it over
    Zombie,
    /// A file that is not a lock, at the path of a profile
    Damaged,
    /// Held by a live holder for longer than its maximum age
    Overdue,
    /// Held by a holder that cannot be checked, or the file is incomplete
    Unverified,
    /// Held, or some of its slots are
    Held,
    /// Held together with others (--shared)
    Shared,
    /// The command has ended, and the lock stays taken for a while (--hold-at-least)
    Kept,
    /// Free, but only the first waiter may take it, for 5 s
    Reserved,
    /// Left by a finished `run --exec` or `run --hold-at-least`, or by a release that was killed
    Free,
    /// A file that is not a lock
    NotALock,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct List {
    /// Only locks whose names begin with one of these [default: all of the store]
    pub(crate) prefix: Vec<String>,
    /// Order of the locks
    #[arg(long, value_name = "ORDER", default_value = "name")]
    pub(crate) sort: ListOrder,
    /// Show only locks in this state, a word of the column STATE; may be given more than once
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Vec<ListState>,
    /// Do not fit the table to the terminal: messages are whole, and rows may be wrapped
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the table again when something changes, and at least every D (after `=`) [default: 5s]
    ///
    /// On a terminal the table is drawn in place, and new (+), changed (*) and removed rows (-) are marked once; q or
    /// Ctrl-C ends it. Elsewhere the tables follow each other.
    #[arg(long, value_name = "D", value_parser = duration, num_args = 0..=1, require_equals = true,
        default_missing_value = "5s", conflicts_with_all = ["json", "verbose", "prometheus"])]
    pub(crate) watch: Option<Duration>,
    /// Print metrics in the text format of Prometheus, for the textfile collector of node_exporter
    #[arg(long, conflicts_with_all = ["json", "verbose", "wide", "sort"])]
    pub(crate) prometheus: bool,
    /// Maximum age of holds that do not set their own [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Cleanup {
    /// Only these locks, each a name or a path [default: all of the store]
    #[arg(value_name = "NAME", value_parser = lock_name)]
    pub(crate) names: Vec<LockName>,
    /// Show what would be removed, without removing it
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Maximum age of holds that do not set their own [default: 24h]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_age: Option<Duration>,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Break {
    /// Lock name or path [default: the path of the profile]
    #[arg(value_parser = lock_name)]
    pub(crate) name: Option<LockName>,
    /// Act only on the hold with this number
    #[arg(long, value_name = "N", value_parser = hold_number)]
    pub(crate) hold: Option<u64>,
    /// Break all holds of a lock that several share
    #[arg(long, conflicts_with = "hold")]
    pub(crate) all: bool,
    /// Free the lock at once, without waiting for the work of a `run`, which may keep running
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Answer yes to all questions
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug, Default)]
#[command(override_usage = "onehold history [NAME]... [OPTIONS]")]
pub(crate) struct History {
    /// Only holds of these locks [default: all of the store]
    #[arg(value_name = "NAME", value_parser = lock_name)]
    pub(crate) names: Vec<LockName>,
    /// Only holds that have ended within the last D: `30m`, `12h`, `7d`
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Only failed holds: all but those that ended with exit status 0 or a release
    ///
    /// `run --exec` is left out: the exit status of its command is not known.
    #[arg(long)]
    pub(crate) failed: bool,
    /// One row for each lock: runs, failures, times, and the longest holds
    #[arg(long)]
    pub(crate) summary: bool,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Doctor {
    /// Only look: write nothing, and start no process
    #[arg(long)]
    pub(crate) quick: bool,

    /// First make .onehold in a store with a sticky bit (1777), as root or its owner
    #[arg(long)]
    pub(crate) create: bool,
}

/// The limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    AtMost(Duration),
    Forever,
}

/// A mistake on the command line that is found only after profile and configuration have been read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|name| name.parse())
}

fn lock_name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|error| match error {
        // clap prints the value itself.
        onehold::Error::InvalidName { reason, .. } => reason.to_owned(),
        error => error.to_string(),
    })
}

pub(crate) fn slots(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| format!("not a number from 1 to {}", u32::MAX))
}

pub(crate) fn instance(text: &str) -> Result<String, String> {
    const MAX_BYTES: usize = 256;
    match text.len() {
        0 => Err("an empty name".to_owned()),
        length if length > MAX_BYTES => Err(format!("longer than {MAX_BYTES} bytes")),
        _ => Ok(text.to_owned()),
    }
}

fn exit_code(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| format!("not a number from 0 to {}", u8::MAX))
}

pub(crate) fn die_with(text: &str) -> Result<DieWith, String> {
    match text {
        "none" => return Ok(DieWith::None),
        "parent" => return Ok(DieWith::Parent),
        _ => {}
    }
    pid(text)
        .map(DieWith::Pid)
        .map_err(|error| format!("{error}, nor `parent` or `none`"))
}

pub(crate) fn pid(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|pid| (1..=i32::MAX.unsigned_abs()).contains(pid))
        .ok_or_else(|| format!("not a number from 1 to {}", i32::MAX))
}

fn hold_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a hold number".to_owned())
}

/// How a lock is to be held.
pub(crate) fn mode(shared: bool, slots: Option<NonZeroU32>) -> Mode {
    match slots {
        Some(slots) => Mode::Slots(slots),
        None if shared => Mode::Shared,
        None => Mode::Exclusive,
    }
}

pub(crate) fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    if text == "forever" {
        return Ok(WaitLimit::Forever);
    }
    duration(text).map(WaitLimit::AtMost)
}

/// Parses a time to live. Records keep it in milliseconds, so it must be at least one.
pub(crate) fn time_to_live(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(ttl) if ttl.as_millis() == 0 => Err("must be at least 1 ms".to_owned()),
        parsed => parsed,
    }
}

/// Parses a duration. A bare number is in seconds and may have a fraction, as for flock(1).
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const USE: &str = "use `30`, `0.5`, `30s`, `5m`, `2h` or `1d`";
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let is_of_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if text.bytes().all(is_of_number)
        && let Ok(seconds) = text.parse::<f64>()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| format!("{error}; {USE}"));
    }
    // humantime reads `M` as a month. Here it is a mistyped `m`.
    let mut units = text.split(|char: char| !char.is_alphabetic());
    if units.any(|unit| unit == "M") {
        return Err(format!("unknown unit `M`; {USE}"));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
            format!("unknown unit `{unit}`; {USE}")
        }
        humantime::DurationError::NumberOverflow => format!("too long; {USE}"),
        _ => format!("not a duration; {USE}"),
    })
}
