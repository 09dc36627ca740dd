//! The options and arguments of the command line. The doc comments are the help text.
//!
//! Parsing reads no file and no environment variable. `arguments!` says what a row means.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use onehold::{Format, LockName};

use crate::arguments::table::{ANSWERED, Arguments, Row, arguments, verbs};
pub(crate) use crate::arguments::values::{
    Color, DieWith, ListOrder, ListState, OnLost, OnZombie, UsageError, WaitLimit, die_with,
    duration, exit_code, instance, lock_name, mode, parsed, time_to_live, wait_limit,
};
use crate::arguments::values::{choice, formats, hold_number, label, path, pid, slots};

/// What `--version` prints behind the name; `-V` prints the number alone.
pub(crate) const LONG_VERSION: &str = match (cfg!(feature = "postgres"), cfg!(feature = "etcd")) {
    (true, true) => concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: postgres, etcd"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: postgres"),
    (false, true) => concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: etcd"),
    (false, false) => concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: none"),
};

/// Run commands under named locks and see who holds them.
///
/// A lock is a NAME in a store, or the path of one lock file (`/…`, `./…`, `../…`). A store is a directory of lock
/// files or, for locks of many machines, a prefix on PostgreSQL or etcd. A lock has at most one holder, unless all of
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

arguments! {
    /// Options of every command.
    #[command(next_help_heading = "Global options")]
    GlobalArgs {
        /// Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR,
        /// else ~/.local/state/onehold]
        ///
        /// A store on PostgreSQL or etcd is for locks of many machines, see onehold-postgres(7) and onehold-etcd(7).
        dir: Option<PathBuf> = "DIR" as path, clap(global = true);
        /// The store of the project that the current directory is in; all worktrees of a git repository share it
        ///
        /// It is the directory `onehold` in that of git, unless the profile or configuration has a project-dir that is
        /// found here. See onehold-recipes(7).
        project: bool, not with dir, clap(global = true);
        /// Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default:
        /// $ONEHOLD_PROFILE]
        ///
        /// A profile sets defaults for options, the directory and the format, for example those of another program's
        /// locks. See onehold-config(5).
        profile: Option<String> = "NAME" as parsed, clap(global = true);
        /// Format of new lock files
        ///
        /// Existing lock files in any format but `pid`, `flock` and `fcntl` are recognized without this option. See
        /// onehold-formats(5).
        format: Option<Format> = "FORMAT" as parsed, clap(global = true, value_parser = formats());
        /// Name of the caller's instance, such as a pod of a StatefulSet; at most one exists at a time [default:
        /// $ONEHOLD_INSTANCE]
        ///
        /// After a restart, holds of the previous incarnation are known to be dead. See onehold-states(7).
        instance: Option<String> = "ID" by instance, clap(global = true);
        /// Print one JSON object, even on failure
        ///
        /// The object goes to stdout. For `run`, whose stdout belongs to CMD, it is the last line on
        /// stderr. See onehold-json(5).
        json: bool, clap(global = true);
        /// Print only errors, warnings, questions, and the result of the command
        ///
        /// `run`, `acquire` and `hold` say nothing if they are refused or time out, unless the holder is overdue.
        /// `acquire` still prints the hold number, `list` its table, `config` its settings. `check` and `cleanup`
        /// print nothing: the exit status is the answer. With --json, the object is printed nevertheless.
        ['q'] quiet: bool, not with verbose, clap(global = true);
        /// Print details (store, evidence, processes), and successes too
        ///
        /// On a terminal, `run` and `acquire` always say that they wait, and `acquire` that it acquired the lock.
        /// Elsewhere they do so only with this option, because cron mails all output; without it, they say once that they
        /// wait, after a minute.
        ['v'] verbose: bool, clap(global = true);
        /// When to use color
        color: Color = "WHEN" as choice, clap(global = true, value_enum, default_value_t);
    }
}

verbs! {
    /// Run a command while holding a lock
    ///
    /// CMD inherits the kernel lock, so the lock stays held while CMD runs, even if onehold is killed. CMD gets its
    /// arguments unchanged; onehold returns its exit status.
    ///
    /// onehold forwards every signal to CMD. TERM ends all the work: CMD and every process that CMD has started get
    /// TERM, and the rest gets KILL after 10 s (--kill-after). The lock is released once all of it has ended. The same
    /// happens if the lock is broken or lost, at the --time-limit, and if a signal kills CMD. If CMD exits, the lock is
    /// released at once, and processes that it leaves behind keep running without it.
    ///
    /// INT, QUIT and HUP from a terminal reach CMD once: onehold forwards them only to another process group or
    /// session. With --exec there is no wrapper: CMD gets every signal itself.
    "run" Run(Run);
    /// Acquire a lock for a process or a limited time; print the hold number
    ///
    /// The hold ends when the process --pid exits, by default the calling script: the nearest ancestor process that is
    /// no subshell and does not only start onehold, as sudo and timeout do (table in onehold-states(7)). If there is
    /// none, as in a systemd unit, nothing is held (exit status 1). A warning names a process that ends with this
    /// command, as in `su -c 'onehold acquire x'`.
    ///
    /// With --ttl and no --pid, the hold is a lease and ends when it expires. If the hold number cannot be printed,
    /// nothing is held.
    ///
    /// A second `acquire` succeeds and prints the number of the existing hold if --pid names the
    /// process that holds it already and no other --owner is given, or if both are leases of the
    /// same --owner. A longer --ttl then extends the hold. Otherwise, the lock is held: two calls of
    /// one script are two holders.
    ///
    /// If only the process that holds the lock is killed, the lock is free, and processes that it has started keep
    /// running beside the next holder. `run` ends them first: see onehold-flock(7).
    ///
    /// `acquire` runs no command. After `--`, each word is a name, even if it begins with a hyphen.
    "acquire" Acquire(Acquire);
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
    /// Others see the program as the holder, and onehold beside it: "held by process 21299 (worker.py) on vm, through
    /// onehold 7634". It is the process that started onehold, or that of --die-with.
    ///
    /// TERM also releases the lock. INT, QUIT and HUP from a terminal are ignored while the lock is held,
    /// because the program gets them too and decides when to stop; if stdin is the terminal, they release
    /// the lock.
    "hold" Hold(HoldUntilEnd);
    /// Release a lock (succeeds if it is already free)
    ///
    /// You may release a hold if --hold or --owner matches, or if the process that it follows is an ancestor of the
    /// caller, unless another subshell acquired it and is still running. A later hold is never removed. The hold of a
    /// live `run` or `hold` ends with its command or stdin and cannot be released before (exit status 4). Anyone may
    /// remove a zombie whose holder is known to have ended; the holder is reported. Locks that were acquired together
    /// are released together, by any of their names.
    "release" Release(Release);
    /// Extend a lease, or restart the age of a hold made by `acquire`
    ///
    /// You may renew a hold if --hold or --owner matches, or if the process that it follows is an
    /// ancestor of the caller. `run` and `hold` renew their holds themselves (exit status 4). An expired lease can be
    /// renewed as long as nobody else has taken the lock or waits for it.
    "renew" Renew(Renew);
    /// Show the holder of a lock and verify it; the exit status is the state
    ///
    /// For a `run`, it names the directory in which the command runs, if that can be seen (on Linux).
    ///
    /// With -v, also show the waiters, the processes of the hold (PID, user, state, CPU time,
    /// command) and the last three takeovers, breaks and cleanups of the lock.
    "check" Check(Check);
    /// Wait until locks are free, without taking them
    ///
    /// Exits with 0 once all of them are free, and with 7 at the limit of --wait; without a limit, it waits as long as it
    /// takes. A lock is free if `acquire` would take it now: nobody holds it or waits for it before, or its holder is
    /// dead, even if another user has to take it over. By the time the next command runs, another caller may have taken it: to have a
    /// lock, use `run` or `acquire`.
    ///
    /// A lease of the --owner is waited for, too.
    ///
    /// It is woken as a waiter is, but has no place in the queue and delays nobody. A file that other programs lock (--format
    /// flock, fcntl) is looked at every 0.1 to 2 s, and as soon as its holder exits.
    "wait" Wait(WaitUntilFree);
    /// List the locks in the store with their states
    ///
    /// NAME, STATE (the words are those of --state), HOLDER (PID and program, or the owner of a lease; its
    /// host if it is another one), USER (if the locks shown are held by more than one), AGE (since the lock
    /// was acquired), MESSAGE. `+2` after the state: two are waiting.
    ///
    /// On a terminal, MESSAGE gets the remaining width. NAME and HOLDER are never cut, but wrapped; only --watch cuts a
    /// NAME that is longer than the terminal. Elsewhere, and with --wide, each lock has one line.
    ///
    /// With --prometheus, onehold_lock_held counts the holds of each lock by state and host. Beside it are the age of
    /// the oldest one, the time until the first lease ends, the waiters, and the longest wait. onehold_store_up is 0
    /// if the store cannot be read; the exit status is then 1. With a history, onehold_holds_total counts the holds
    /// that have ended by their result (see onehold-history(1)); `success` is exit status 0 and `failure` any other.
    /// Not for a store on a server, which keeps a limited number of them.
    "list" List(List);
    /// Remove all zombies from the store, or those with the given names
    ///
    /// A zombie is a stale lock: its holder has exited, its lease has expired, or its file is
    /// damaged. Other locks are left unchanged.
    "cleanup" Cleanup(Cleanup);
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
    "break" Break(Break);
    /// Check that the store is suitable for locks, and that holders can be checked from here
    ///
    /// Examines the host, the filesystem and the store. Then tries a lock under a name of its own for a few
    /// seconds: eight processes increment a number up to 200 times each, a holder and a wrapper are killed, and eight
    /// waiters must be served in order. Each check is ok, a warning, or FAILED, with advice. Exits with 1 if a
    /// check failed. Run it before you trust a new machine or filesystem.
    "doctor" Doctor(Doctor);
    /// List holds that have ended, the latest last
    ///
    /// Holds leave a line in the journal of the store when they end, if `history = true` is below `[defaults]` in the
    /// configuration, or ONEHOLD_HISTORY is 1. How far back they reach depends on journal-size, see onehold-config(5).
    /// A store on a server keeps the last 50 lines of each lock, of all machines; see onehold-etcd(7). A line may be
    /// missing if onehold is killed as the hold ends. The line of a dead holder is written by the next one, with the
    /// time at which the death was noticed.
    ///
    /// RESULT is how the hold ended. For a command of `run`: exit N, signal N, time-limit, caller-exited (see
    /// --die-with) or not-started, for example because it was not found. For any hold: broken, lost (its file was
    /// removed, or its lease was not kept) or taken-over (its holder died). For `acquire` and `hold` also released,
    /// and expired (a lease that was not renewed in time). A lock that is kept by --hold-at-least has the line of its
    /// command.
    "history" History(History);
    /// Show the effective settings and their sources
    ///
    /// The output is a valid configuration file. Each value is followed by its source: an option, an
    /// environment variable, a line of the configuration file, a built-in profile, or the default.
    "config" Config(Config);
}

arguments! {
    #[command(override_usage = "onehold run [NAME]... [OPTIONS] -- CMD [ARG]...")]
    Run (
        /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile,
        /// else derived from CMD and its arguments]
        ///
        /// Several names are taken together: all of them or none, as one hold.
        names: Vec<LockName> = "NAME" by lock_name
    ) with hold: HoldArgs {
        /// What to do if the lock file is removed or replaced while CMD runs (`break` ends CMD anyway)
        on_lost: OnLost = "WHAT" as choice, clap(value_enum, default_value_t);
        /// End CMD and all its processes after D, and exit with 124; `0`: no limit [default: no limit]
        time_limit: Option<Duration> = "D" by duration;
        /// Time between TERM and KILL when the work is ended; `0`: no KILL [default: 10s]
        ///
        /// With --exec, only `break` ends the work, after this time.
        kill_after: Option<Duration> = "D" by duration;
        /// Keep the lock until D after it was acquired, also if CMD ends sooner; onehold exits with CMD
        ///
        /// The hold then is a lease with the exit code of CMD, which `release`, `break` and --force end. Nothing is kept
        /// if CMD could not be executed, or after a break. See onehold-states(7).
        hold_at_least: Option<Duration> = "D" by duration, not with exec;
        /// End CMD and all its processes, or the wait, once the process PID has exited; `parent`: the process that started
        /// onehold; `none`: with no process [default: none]
        ///
        /// As after TERM, with exit status 143. If the parent has exited before onehold looks, CMD is not started. Has no
        /// effect with --reentrant under `run` of this lock. A configured `parent` does not apply to children of process
        /// 1. See onehold-states(7).
        die_with: Option<DieWith> = "PID|parent|none" by die_with, not with exec;
        /// Do not pass the kernel lock to CMD; if onehold is killed, CMD is tracked by PID only
        close: bool;
        /// Replace onehold with CMD; the record remains and counts as free once CMD exits
        exec: bool, not with ttl on_lost close time_limit;
        /// If already running under `run` of this lock, just run CMD
        reentrant: bool;
    } -- {
        /// Command and its arguments, after `--`
        command
    }
}

arguments! {
    #[command(override_usage = "onehold hold [NAME]... [OPTIONS]")]
    HoldUntilEnd (
        /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile]
        ///
        /// Several names are taken together: all of them or none, as one hold.
        names: Vec<LockName> = "NAME" by lock_name
    ) with hold: HoldArgs {
        /// Also release the lock, or stop waiting, when process PID exits; `parent`: the process that started
        /// onehold; `none`: with no process [default: none]
        ///
        /// A wait then ends with exit status 143. A configured `parent` does not apply to children of process 1.
        die_with: Option<DieWith> = "PID|parent|none" by die_with;
        /// If already running under `run` of this lock, hold nothing, and print the number of that hold
        reentrant: bool;
        /// Hold many locks for the program: read requests from stdin, one JSON object a line
        ///
        /// The options of each lock are in its request. All locks are released when stdin ends or the program exits; the
        /// default of --die-with is `parent`. The requests and answers are in onehold-json(5).
        serve: bool, not with reentrant wait no_wait max_waiting keep_place shared slots ttl owner message max_age on_zombie force yes conflict_exit_code;
    }
}

arguments! {
    /// Options of the commands that acquire a lock.
    HoldArgs {
        /// Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not
        /// wait]
        ['w'] wait: Option<WaitLimit> = "D" by wait_limit;
        /// The lock of a file or directory of the project (implies --project); may be given more than once
        ///
        /// It excludes the locks of all that is in the directory, and vice versa. The name is `files/`, and the path
        /// without symbolic links below the root of its worktree. The file need not exist.
        path: Vec<PathBuf> = "P" as path, not with dir;
        /// Do not wait (default; overrides a configured wait)
        ['n'] no_wait: bool, not with wait;
        /// Do not wait if N wait already: exit with 6 at once
        ///
        /// With 1, a call leaves the work to one that waits already, and so starts later.
        max_waiting: Option<u32> = "N" as parsed;
        /// Keep the place in the queue for D, at most 30m, if the wait ends without the lock; needs --owner
        ///
        /// If the same owner waits for the same locks again within D, it gets its position back, even if onehold was
        /// killed. This is for tools that end a command after a few minutes. A kept place delays no other waiter.
        keep_place: Option<Duration> = "D" by duration;
        /// Hold the lock together with others that use --shared; excludes holders without it
        ///
        /// For readers: they exclude writers but not each other. A writer that waits is served before readers
        /// that come later.
        ['s'] shared: bool, not with slots;
        /// Let at most N hold the lock at once, each in a slot of its own, 0 to N-1
        ///
        /// `run` sets ONEHOLD_SLOT for CMD. `acquire` prints the slot to stderr on a terminal and with -v. JSON has it as
        /// `slot`.
        slots: Option<NonZeroU32> = "N" by slots;
        /// Time to live: how long the hold lasts without a renewal
        ///
        /// `acquire`: the hold expires D after it was acquired or last renewed, even if its process still runs. `run`: the
        /// hold does not expire while CMD runs. The heartbeat is renewed three times in D; D only limits how long other
        /// hosts count the hold as held without a heartbeat.
        ttl: Option<Duration> = "D" by time_to_live;
        /// Unique label, such as a CI job ID; the same label may release and renew the hold
        owner: Option<String> = "ID" as label, clap(value_parser = NonEmptyStringValueParser::new());
        /// Reason to show to others, at most 1 KiB
        ['m'] message: Option<String> = "TEXT" as parsed;
        /// Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked)
        /// [default: 24h]
        ///
        /// With this option, the age of a `run` counts from when it took the lock. Otherwise it counts from the last
        /// heartbeat, one an hour: the `run` becomes overdue only if its wrapper hangs.
        max_age: Option<Duration> = "D" by duration;
        /// How to handle a zombie (stale lock) [default: take]
        on_zombie: Option<OnZombie> = "WHAT" as choice, clap(value_enum);
        /// Take the lock from a live holder or ahead of waiters; asks first
        ///
        /// Waits up to 12 s for the command of a `run` that held the lock to exit, 1 s if the writer of the lock file may
        /// not signal it, and then goes on even if it has not exited.
        ['f'] force: bool;
        /// Answer yes to all questions; a live holder loses the lock only with --force
        ['y'] yes: bool;
        /// Exit with N instead of 6 (held) or 7 (timed out)
        ['E'] conflict_exit_code: Option<u8> = "N" by exit_code;
    } also {
        /// Whether the time to live is a default, not given on the command line.
        ttl_is_default
    }
}

arguments! {
    #[command(override_usage = "onehold acquire [NAME]... [OPTIONS]")]
    Acquire (
        /// Lock name, or a path that starts with `/`, `./` or `../` [default: the path of the profile]
        ///
        /// Several names are taken together: all of them or none, as one hold.
        names: Vec<LockName> = "NAME" by lock_name
    ) with hold: HoldArgs {
        /// Process to hold the lock for [default: the calling script]
        pid: Option<u32> = "PID" by pid;
    }
}

arguments! {
    /// Options that identify the caller's hold.
    CallerArgs {
        /// The lock of a file or directory of the project (implies --project)
        ///
        /// It excludes the locks of all that is in the directory, and vice versa. The name is `files/`, and the path
        /// without symbolic links below the root of its worktree. The file need not exist.
        path: Option<PathBuf> = "P" as path, not with dir;
        /// Act only on the hold with this number
        hold: Option<u64> = "N" by hold_number;
        /// Owner label that the lock was acquired with
        owner: Option<String> = "ID" as label, clap(value_parser = NonEmptyStringValueParser::new());
    }
}

arguments! {
    Release (
        /// Lock name or path [default: the path of the profile]
        name: Option<LockName> = "NAME" by lock_name
    ) with caller: CallerArgs {
        /// Release all holds of this --owner in the store, except those of a `run` or `hold`; takes no NAME
        all: bool;
        /// Release any holder's lock; same as `break`
        ['f'] force: bool;
        /// Answer yes to all questions
        ['y'] yes: bool;
    }
}

arguments! {
    Renew (
        /// Lock name or path [default: the path of the profile]
        name: Option<LockName> = "NAME" by lock_name
    ) with caller: CallerArgs {
        /// New time to live, starting now [default: unchanged]
        ttl: Option<Duration> = "D" by time_to_live;
    }
}

arguments! {
    Check (
        /// Lock name or path [default: the path of the profile]
        name: Option<LockName> = "NAME" by lock_name
    ) {
        /// The lock of a file or directory of the project (implies --project)
        ///
        /// It excludes the locks of all that is in the directory, and vice versa. The name is `files/`, and the path
        /// without symbolic links below the root of its worktree. The file need not exist.
        path: Option<PathBuf> = "P" as path, not with dir;
        /// Caller's hold number, for `mine` in the JSON object
        hold: Option<u64> = "N" by hold_number;
        /// Caller's owner label, for `mine` in the JSON object; parents and children held by it are
        /// ignored
        owner: Option<String> = "ID" as label, clap(value_parser = NonEmptyStringValueParser::new());
        /// Maximum age of holds that do not set their own [default: 24h]
        max_age: Option<Duration> = "D" by duration;
        /// Exit with 0 if the lock is free or can be taken over, or is a lease of --owner, with 6 if not
        available: bool;
        /// Exit with 0 if the caller runs under a live hold of this lock, with 4 if not; print nothing
        ///
        /// The caller runs under a hold if it descends from a process of the hold: of a `run`, or the process that
        /// `acquire` holds the lock for. A program that started `hold` does not. Environment variables do not count,
        /// because a daemon keeps them when the hold has ended. For a lease, --owner or --hold must match. Parents and
        /// children of the lock do not count. With -v or --json, also say who holds it.
        mine: bool, not with available shared slots;
        /// Check for a caller that would share the lock
        ['s'] shared: bool, not with slots;
        /// Check for a caller that would take one of N slots
        slots: Option<NonZeroU32> = "N" by slots;
    }
}

arguments! {
    #[command(override_usage = "onehold wait [NAME]... [OPTIONS]")]
    WaitUntilFree (
        /// Lock names or paths [default: the path of the profile]
        names: Vec<LockName> = "NAME" by lock_name
    ) {
        /// The lock of a file or directory of the project (implies --project); may be given more than once
        ///
        /// It excludes the locks of all that is in the directory, and vice versa. The name is `files/`, and the path
        /// without symbolic links below the root of its worktree. The file need not exist.
        path: Vec<PathBuf> = "P" as path, not with dir;
        /// Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: forever]
        ['w'] wait: Option<WaitLimit> = "D" by wait_limit;
        /// Caller's owner label; parents and children held by it are ignored
        owner: Option<String> = "ID" as label, clap(value_parser = NonEmptyStringValueParser::new());
        /// Maximum age of holds that do not set their own [default: 24h]
        max_age: Option<Duration> = "D" by duration;
        /// Exit with N instead of 6 (held) or 7 (timed out)
        ['E'] conflict_exit_code: Option<u8> = "N" by exit_code;
    }
}

arguments! {
    List (
        /// Only locks whose names begin with one of these [default: all of the store]
        prefix: Vec<String> = "PREFIX" as parsed
    ) {
        /// Order of the locks
        sort: ListOrder = "ORDER" as choice, clap(value_enum, default_value_t);
        /// Show only locks in this state, a word of the column STATE; may be given more than once
        state: Vec<ListState> = "STATE" as choice;
        /// Do not fit the table to the terminal: messages are whole, and rows may be wrapped
        wide: bool;
        /// Print the table again when something changes, and at least every D (after `=`) [default: 5s]
        ///
        /// On a terminal the table is drawn in place, and new (+), changed (*) and removed rows (-) are marked once; q or
        /// Ctrl-C ends it. Elsewhere the tables follow each other.
        ///
        /// With --json, each line is an event: first what is there, then each change as the kernel or etcd tells of it. A
        /// hold that lasts less than 0.1 s may be missing. See EVENTS OF LIST in onehold-json(5).
        watch: Option<Duration> = "D" by time_to_live or "5s", not with verbose prometheus;
        /// Print metrics in the text format of Prometheus, for the textfile collector of node_exporter
        prometheus: bool, not with json verbose wide sort;
        /// Maximum age of holds that do not set their own [default: 24h]
        max_age: Option<Duration> = "D" by duration;
    }
}

arguments! {
    Cleanup (
        /// Only these locks, each a name or a path [default: all of the store]
        names: Vec<LockName> = "NAME" by lock_name
    ) {
        /// Show what would be removed, without removing it
        ['n'] dry_run: bool;
        /// Maximum age of holds that do not set their own [default: 24h]
        max_age: Option<Duration> = "D" by duration;
    }
}

arguments! {
    Break (
        /// Lock name or path [default: the path of the profile]
        name: Option<LockName> = "NAME" by lock_name
    ) {
        /// The lock of a file or directory of the project (implies --project)
        ///
        /// It excludes the locks of all that is in the directory, and vice versa. The name is `files/`, and the path
        /// without symbolic links below the root of its worktree. The file need not exist.
        path: Option<PathBuf> = "P" as path, not with dir;
        /// Act only on the hold with this number
        hold: Option<u64> = "N" by hold_number;
        /// Break all holds of a lock that several share
        all: bool, not with hold;
        /// Free the lock at once, without waiting for the work of a `run`, which may keep running
        ['f'] force: bool;
        /// Answer yes to all questions
        ['y'] yes: bool;
    }
}

arguments! {
    #[command(override_usage = "onehold history [NAME]... [OPTIONS]")]
    History (
        /// Only holds of these locks [default: all of the store]
        names: Vec<LockName> = "NAME" by lock_name
    ) {
        /// Only holds that have ended within the last D: `30m`, `12h`, `7d`
        since: Option<Duration> = "D" by duration;
        /// Only failed holds: all but those that ended with exit status 0 or a release
        ///
        /// `run --exec` is left out: the exit status of its command is not known.
        failed: bool;
        /// One row for each lock: runs, failures, times, and the longest holds
        summary: bool;
    }
}

arguments! {
    Doctor {
        /// Only look: write nothing, and start no process
        quick: bool;
        /// First make .onehold in a store with a sticky bit (1777), as root or its owner
        create: bool;
        /// Take locks again at once after a change of the server (STORE_CHANGED). Needs --yes
        ///
        /// Only when no command runs any more whose hold may have been lost: after a restore from a backup, or a
        /// failover that has lost transactions.
        accept_epoch: bool;
        /// No such command runs any more
        ['y'] yes: bool;
    }
}

arguments! {
    Config {}
}

impl Verb {
    /// Removes the values of `--path`.
    pub(crate) fn take_paths(&mut self) -> Vec<PathBuf> {
        let one = match self {
            Self::Run(Run { hold, .. })
            | Self::Acquire(Acquire { hold, .. })
            | Self::Hold(HoldUntilEnd { hold, .. }) => return std::mem::take(&mut hold.path),
            Self::Release(Release { caller, .. }) | Self::Renew(Renew { caller, .. }) => {
                caller.path.take()
            }
            Self::Wait(typed) => return std::mem::take(&mut typed.path),
            Self::Check(typed) => typed.path.take(),
            Self::Break(typed) => typed.path.take(),
            _ => None,
        };
        one.into_iter().collect()
    }
}

/// The options of a command.
pub(crate) fn options_of(verb: &str) -> Vec<&'static Row> {
    let verb = Verb::named(verb);
    let own = verb.iter().flat_map(|verb| {
        let verb = verb.arguments();
        let shared = verb.shared().map(Arguments::rows);
        verb.rows().iter().chain(shared.unwrap_or_default())
    });
    let global = GlobalArgs::default();
    own.chain(global.rows()).chain(&ANSWERED).collect()
}

/// The options of all commands.
pub(crate) fn all_options() -> Vec<&'static Row> {
    let verbs = Verb::WORDS.iter();
    verbs.flat_map(|verb| options_of(verb)).collect()
}
