//! What help and man pages say beyond the options.

/// Name and description of the files, for FILES.
pub(crate) const FILES: [(&str, &str); 8] = [
    (
        "~/.local/state/onehold/",
        "the default store; on Windows %LOCALAPPDATA%\\onehold. XDG_STATE_HOME and XDG_RUNTIME_DIR are not consulted: cron does not set them, and cron, ssh and a terminal must reach the same store",
    ),
    (
        "NAME.lock",
        "the record of a lock in the store; backend/task-1 is backend.d/task-1.lock",
    ),
    (
        ".onehold/events.jsonl",
        "the journal of the store: one line for each takeover, break and cleanup; rotated at 1 MiB. For path locks and a profile's directory it is that of the store which --dir, ONEHOLD_DIR or the configuration's defaults name, else the default store's",
    ),
    (
        ".onehold/last",
        "the number of the store's last hold. A path lock has none: its numbers follow the clock",
    ),
    (
        ".onehold/waiting/NAME.lock/",
        "the tickets of those who wait for a lock; those of the dead go with the next waiter or cleanup",
    ),
    (
        "~/.config/onehold/config.toml",
        "defaults and profiles: see onehold-config(5). On Windows %APPDATA%\\onehold\\config.toml",
    ),
    (
        ".onehold-guard",
        "on Windows, where a directory cannot be locked, what guards it; it stays, also beside a path lock",
    ),
    (
        ".onehold.XXXXXXXXXXXXXXXX",
        "a record that has no place yet; what a killed taker left is removed by cleanup",
    ),
];

/// Variables, for ENVIRONMENT: read by onehold, then set for the command of `run`.
pub(crate) const ENVIRONMENT: [(&str, &str); 9] = [
    (
        "ONEHOLD_DIR",
        "the store, unless --dir is given or the profile has one",
    ),
    ("ONEHOLD_PROFILE", "the profile, unless --profile is given"),
    (
        "ONEHOLD_CONFIG",
        "the configuration file, instead of config.toml in $XDG_CONFIG_HOME/onehold or ~/.config/onehold",
    ),
    (
        "HOME",
        "where the default store is; if unset, the user database is asked",
    ),
    ("NO_COLOR", "no colour"),
    ("ONEHOLD_NAME", "set for CMD: the lock it runs under"),
    ("ONEHOLD_HOLD", "set for CMD: the number of the hold"),
    ("ONEHOLD_FILE", "set for CMD: the lock file"),
    (
        "ONEHOLD_HOLDS",
        "set for CMD: all holds it runs inside of, as NUMBER:NAME separated by spaces, NAME percent-encoded. It tells run --reentrant whether it is inside, and check what is mine",
    ),
];

/// What one can type, and what it is for.
pub(crate) type Example = (&'static str, &'static str);

/// Examples of a verb; of the tool itself for any other name.
pub(crate) fn examples(verb: &str) -> &'static [Example] {
    match verb {
        "run" => &[
            (
                "onehold run backup -- ./backup.sh --full",
                "run a job unless it is running already (6)",
            ),
            (
                "onehold run -w 5m -m 'nightly full' backup -- ./backup.sh",
                "wait for at most five minutes, and say why",
            ),
            (
                "onehold run -q -E 0 -- /usr/local/bin/sync-mail",
                "in a crontab: the name follows from the command, and a run that is still going on is no failure and no mail",
            ),
        ],
        "acquire" => &[
            (
                "N=$(onehold acquire deploy -w 10m) || exit",
                "hold a lock until the script ends",
            ),
            (
                "onehold acquire deploy --ttl 30m --owner \"$CI_JOB_ID\"",
                "hold it across the steps of a pipeline",
            ),
        ],
        "release" => &[
            ("onehold release deploy", "in the script that acquired it"),
            (
                "onehold release deploy --owner \"$CI_JOB_ID\"",
                "in another step of the pipeline",
            ),
        ],
        "renew" => &[(
            "onehold renew deploy --owner \"$CI_JOB_ID\" --ttl 30m",
            "half an hour more from now",
        )],
        "check" => &[
            (
                "onehold check backup",
                "who has it, since when, and is that true?",
            ),
            ("if onehold check -q backup; then …", "only the exit code"),
        ],
        "list" => &[
            ("onehold list", "all locks, with verdicts"),
            (
                "onehold list --json | jq -r '.locks[] | select(.is_zombie and (.takeable | not)).name'",
                "holders that live and are overdue: what somebody should look at",
            ),
        ],
        "cleanup" => &[("onehold cleanup --dry-run", "what would be removed")],
        "break" => &[
            ("onehold break backup", "asks, and shows whom it hits"),
            (
                "onehold break backup --hold 1763600000000000 --yes",
                "that hold and no other, without asking",
            ),
        ],
        _ => &[
            (
                "onehold run backup -- ./backup.sh",
                "run a job unless it is running already",
            ),
            (
                "onehold check backup",
                "who has it, since when, and is that true?",
            ),
            ("onehold list", "all locks, with verdicts"),
        ],
    }
}

/// Chapters of the tool's own page: a title and its paragraphs.
pub(crate) const CHAPTERS: &[(&str, &[&str])] = &[
    (
        "HOW IT DECIDES",
        &[
            "A holder is alive if it keeps the kernel lock (flock(2)) on its lock file, or if the recorded process is there with the recorded start, in ticks since boot. It is dead if no process has its pid, if the process that has it started at another time, or if the machine has started anew. Not being allowed to signal a process, not seeing it in /proc, and a host name are no proof of anything.",
            "Where neither life nor death can be proved (a process in another pid namespace, on another host, under another boot id in a container), the hold counts for its maximum age, 24 h unless told otherwise, from its last sign of life. A living holder is never displaced by a clock, unless it was acquired with a --ttl, of its own or of its profile; older than its maximum age it is only reported as overdue.",
            "A lock file that is broken, which is to say empty, all NUL, or begun like a record and not complete, and has not changed for 10 s is a zombie. A file that is no lock file is never replaced or removed by any verb. A record of a later version is held until it is broken.",
        ],
    ),
    (
        "WAITING",
        &[
            "Those who wait for a name are served in order of arrival, and nobody barges in past them: a free lock is promised to the first, whose pid check shows. If it leaves the lock untaken for 5 s, its turn goes to the next. Each sleeps in flock(2) on the one before it; a wait for what has no kernel lock (acquire) is woken by the end of the process or the removal of the file; what another host holds is looked at again after 100 ms, doubling to 2 s.",
            "A name covers those below it: backend excludes backend/task-1 and the other way round, unless both have the same owner. Waiting for a section does not hold back its tasks, and may take as long as they keep coming. A path lock has no queue, and its waiters no order. Two who each hold one lock and wait for the other's end by the limit of --wait.",
        ],
    ),
    (
        "LIMITS",
        &[
            "Locks are advisory. On NFS, FUSE and other filesystems that can be changed from elsewhere, onehold creates and releases its own locks but takes none over: that is for a person, with onehold break. With run --close, a killed wrapper and a command in another pid namespace, the hold is believed for its maximum age.",
            "A path lock keeps nothing beside its file, so its hold numbers follow the clock alone: they grow as long as the clock is not put back. Numbers of a store grow whatever the clock does.",
            "Do not share one path with flock(1): it locks files that it does not read, and an empty file as it leaves them is a broken lock file to onehold, which takes it over after 10 s. Which files it reads as such, and what remains of the races of the programs that it stands in for, is in onehold-formats(5).",
        ],
    ),
];

/// What stands in the object of `--json`, for JSON.
pub(crate) const JSON: &[&str] = &[
    "With --json, one object on one line is all that goes to stdout, also on failure; for run, whose stdout is CMD's, it is the last line on stderr. run --exec and run --reentrant, which become CMD, print one only if they fail; and a signal that ends onehold while it waits leaves none, but for Ctrl-C.",
    "Its keys: success, command (the verb), status, lock (an object or null), locks (of list and cleanup), hold (the number that came of it), displaced (the hold that was taken over or taken by force, like lock) and command_exit_code where there are such, lock is as it was before in what release, break and cleanup did, message (a sentence), errors (that sentence if it failed, and warnings) and error: null, or an object of code, message and details. Times are RFC 3339 in UTC. Keys may be added in later versions.",
    "status is acquired, released, renewed, blocked, zombie-detected (also overdue), clean (free), listed, cleaned, broken, lost, timeout, or failure. For what failed, error.code says why: LOCKED, TIMEOUT and ZOMBIE (refused), NOT_OWNER, NOT_HELD, NOT_CONFIRMED, NOT_A_LOCK, LOST, INTERRUPTED, INCOMPLETE, INVALID_NAME, TOO_LONG, UNFIT, NO_SUCH_PROCESS, NOTHING_TO_HOLD, GUARD_BUSY, CANNOT_EXCHANGE, COMMAND_NOT_FOUND, COMMAND_NOT_EXECUTABLE, USAGE, IO, FAILED; a profile may have its own word for the first two.",
];

/// The keys of a lock in that object, all of which are always there.
pub(crate) const LOCK_KEYS: [(&str, &str); 30] = [
    ("name", "NAME, as it was typed"),
    ("path", "the lock file"),
    ("store", "the directory that it is looked for in"),
    ("exists", "whether there is a lock file"),
    ("state", "free, held, overdue, zombie, not-a-lock"),
    (
        "reason",
        "why: no-file, finished (free); alive, promised (to a waiter), lease, unknown-version, in-the-making, unproven (held); dead, reused, rebooted, expired, aged, corrupt (zombie); not-a-lock",
    ),
    (
        "proof",
        "what that rests on: kernel-lock, kernel-lock-gone, same-process (pid and start), same-pid, pid-gone, other-start, other-boot, clock, or null",
    ),
    ("evidence", "the same in words"),
    (
        "is_zombie",
        "whether it is a zombie or overdue; only what is takeable is free for the taking",
    ),
    ("takeable", "whether acquire and run take it unasked"),
    ("kind", "run, job (it follows a process), lease"),
    ("pid", "the process it follows: the command of a run"),
    ("pid_alive", "whether that lives; null if nobody can tell"),
    ("wrapper_pid", "of a run: the onehold that watches over it"),
    ("wrapper_alive", "whether that lives"),
    ("format", "native, prodigy, sprint, memory, pid"),
    ("hostname", "where it was taken"),
    ("owner", "what --owner said"),
    ("session_id", "the same"),
    ("message", "what --message said"),
    ("command", "the command line of the holder, an array"),
    ("acquired_at", "when it was taken"),
    ("renewed_at", "the last sign of life"),
    ("age_hours", "since then, in hours"),
    ("age_seconds", "the same in seconds"),
    ("ttl_seconds", "its --ttl"),
    ("expires_at", "when that is over"),
    ("hold", "the number of the hold"),
    (
        "mine",
        "whether release would do: by --hold, --owner, $ONEHOLD_HOLDS, or because the caller descends from its process",
    ),
    (
        "waiters",
        "who stands in line: place, pid, hostname, command, since",
    ),
];
