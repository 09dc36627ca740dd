//! Text of the help and the man pages beyond the options.

/// The rows of a table: each is a line, and below it what the line means.
pub(crate) fn rows(table: &'static str) -> Vec<(&'static str, &'static str)> {
    let lines = table.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.is_empty());
    std::iter::from_fn(|| lines.next().zip(lines.next())).collect()
}

/// Files and their descriptions, for FILES.
pub(crate) const FILES: &str = r"
~/.local/state/onehold/
    Default store; on Windows %LOCALAPPDATA%\onehold. XDG_STATE_HOME and XDG_RUNTIME_DIR are not used: cron does not set them, and must use the same store as a terminal.
NAME.lock
    Lock file in the store. The file of backend/task-1 is backend.d/task-1.lock; in a store with the sticky bit backend%2Ftask-1.lock.
.onehold/events.jsonl
    Journal of the store. Each takeover, break and cleanup has a line, with the user and process that did it (by) and those of the hold that ended (from). So has the end (event end) of each hold with a history, see onehold-history(1). Rotated at 1 MiB, or at journal-size. Path locks and the directory of a profile use the journal of the store that --dir, ONEHOLD_DIR or the configuration's defaults name, else of the default store.
.onehold/last
    Number of the last hold in the store. Path locks have no such file: their hold numbers follow the clock.
.onehold/guard/
    Locked instead of a store that others may read, but not write to.
.onehold-last-UID, .onehold-events-UID.jsonl, .onehold-ticket-NUMBER+NAME.lock, .onehold-reserved-UID
    Such files of each user in a store with the sticky bit, see onehold-states(7). Only root or the owner of the store can make the directory .onehold there, by doctor --create.
.onehold/waiting/NAME.lock/
    Queue tickets of the waiters for a lock, see onehold-formats(5). The next waiter or cleanup removes the tickets of dead waiters.
~/.config/onehold/config.toml
    Defaults and profiles, see onehold-config(5). On Windows %APPDATA%\onehold\config.toml.
/etc/onehold/config.toml
    The same for all users of this machine.
.onehold-guard
    On Windows a directory cannot be locked, so this file is locked instead. It is never removed, not even beside a path lock.
.onehold.XXXXXXXXXXXXXXXX
    Temporary lock file. If onehold was killed and left one, cleanup removes it.
";

/// Environment variables, for ENVIRONMENT: first those that onehold reads, then those that it sets
/// for the command of `run`.
pub(crate) const ENVIRONMENT: &str = r"
ONEHOLD_DIR
    Store directory, unless --dir, the profile's directory or its project directory applies. An absolute path, or one that begins with ~ or $NAME, which is replaced.
ONEHOLD_PROFILE
    Profile, unless --profile is given.
ONEHOLD_CONFIG
    The user's configuration file, instead of config.toml in $XDG_CONFIG_HOME/onehold or ~/.config/onehold.
ONEHOLD_INSTANCE
    Instance of the caller, unless --instance is given.
ONEHOLD_HISTORY
    1: holds leave a line in the journal when they end, see onehold-history(1); 0: they do not. Overrides the key history of the configuration.
HOME
    Home directory, which contains the default store. If it is not set, the user database is used.
NO_COLOR
    Disables color.
ONEHOLD_NAME
    Set for CMD: name of its lock.
ONEHOLD_HOLD
    Set for CMD: hold number.
ONEHOLD_FILE
    Set for CMD: path of the lock file. If CMD runs under several locks, this and ONEHOLD_NAME have one line for each.
ONEHOLD_SLOT
    Set for CMD by run --slots and run --shared: the number of its slot, from 0; of several locks, one number each, separated by spaces. Other holds unset it.
ONEHOLD_HOLDS
    Set for CMD: all holds that it runs under, as NUMBER:NAME separated by spaces, with NAME percent-encoded. run --reentrant and the key mine of the JSON object use it. A daemon keeps these variables after the hold; check --mine does not rely on them.
";

/// Examples of a command, each with its purpose; of the tool itself for any other name.
pub(crate) fn examples(verb: &str) -> &'static str {
    let below = EXAMPLES.split_once(&format!("\n[{verb}]\n"));
    let table = below.map_or(EXAMPLES, |(_, table)| table);
    table.split_once("\n[").map_or(table, |(table, _)| table)
}

/// Those of the tool, and behind its name those of each command.
const EXAMPLES: &str = r#"
onehold run backup -- ./backup.sh
    Run a backup unless one is already running
onehold check backup
    Show the holder, since when, and the evidence that it is alive
onehold list
    List all locks with their states

[run]
onehold run backup -- ./backup.sh --full
    Run a backup unless one is already running (exit status 6)
onehold run -w 5m -m 'nightly full' backup -- ./backup.sh
    Wait up to five minutes, and record a reason
onehold run -q -E 0 -- /usr/local/bin/sync-mail
    In a crontab: skip this run silently if the previous one is still running; the name is derived from the command
xargs -P 8 -I{} onehold run --slots 3 -w forever fetch -- curl -sO {} <urls
    Download eight URLs at a time, but only three of them at once, also beside other scripts that use the name
onehold run -s -w 1h report -- ./report.sh
    Share the lock with other readers; the nightly `onehold run -w 6h report -- ./rebuild.sh` waits for them and keeps new ones out
onehold run -w 10m db cache -- ./deploy.sh
    Deploy under two locks, which are taken together

[acquire]
N=$(onehold acquire deploy -w 10m) || exit
    Hold a lock until the script ends
onehold acquire deploy --ttl 30m --owner "$CI_JOB_ID"
    Hold a lock across the steps of a pipeline

[history]
onehold history --since 1d --failed
    What went wrong since yesterday
onehold history --summary backup
    How long the backup takes, and how long it waits

[hold]
onehold hold --json -w 5m import
    As a program starts it, with pipes for stdin and stdout
coproc onehold hold -w 5m import; read -r N <&${COPROC[0]} || exit
    In bash: until the script ends, or closes ${COPROC[1]}

[release]
onehold release deploy
    Release in the script that acquired the lock
onehold release deploy --owner "$CI_JOB_ID"
    Release in another step of the pipeline

[renew]
onehold renew deploy --owner "$CI_JOB_ID" --ttl 30m
    Let the lease expire half an hour from now

[check]
onehold check backup
    Show the holder, since when, and the evidence that it is alive
if onehold check -q backup; then …
    Use only the exit status
if onehold check -q --available backup; then …
    Would acquire succeed now, if need be by takeover?
onehold check --mine job || exec onehold run job -- "$0" "$@"
    First line of a script: run it under the lock

[list]
onehold list
    List all locks with their states
onehold list --state zombie --state overdue backend/
    Show what needs attention below a parent
onehold list --json | jq -r '.locks[] | select(.state == "overdue").name'
    List overdue locks: their holders are alive, but older than their maximum age
onehold list --prometheus
    Print metrics; onehold-recipes(7) has a timer and alerts

[cleanup]
onehold cleanup -n
    Show what would be removed
onehold cleanup backup
    Remove one zombie

[doctor]
onehold doctor
    Before the first lock on a new machine or filesystem
onehold --dir /mnt/share/locks doctor --quick
    Look at a directory without writing to it
sudo onehold --dir /run/lock/onehold doctor --create
    Prepare a store for everybody (mode 1777)

[config]
onehold config
    Show the effective settings
onehold --profile sprint config
    Show what a profile sets

[break]
onehold break backup
    Show the holder and ask for confirmation
onehold break backup --yes --force
    Free the lock at once, even though its work may keep running
onehold break backup --hold 1763600000000000 --yes
    Break only the hold with this number, without a question
onehold break report --all
    Break the hold of each reader, asking about each
"#;

/// The keys of a lock in the JSON object. All are always present; onehold-json(5) describes them.
pub(crate) fn lock_keys() -> impl Iterator<Item = &'static str> {
    LOCK_KEYS.split_whitespace()
}

const LOCK_KEYS: &str = "
    name path store exists state reason proof evidence is_zombie takeable takeable_in_ms kind
    pid pid_alive wrapper_pid wrapper_alive die_with format hostname user uid owner session_id
    message command directory acquired_at renewed_at age_hours age_seconds ttl_seconds expires_at ended_at
    exit_code signal hold mode slot names provenance mine zombie_reason others lockers waiters reserved_for
    details
";
