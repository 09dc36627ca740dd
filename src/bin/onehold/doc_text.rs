//! Text of the help and the man pages beyond the options.

/// Files and their descriptions, for FILES.
pub(crate) const FILES: [(&str, &str); 8] = [
    (
        "~/.local/state/onehold/",
        "Default store; on Windows %LOCALAPPDATA%\\onehold. XDG_STATE_HOME and XDG_RUNTIME_DIR are not used, because cron does not set them: cron, ssh and a terminal must use the same store.",
    ),
    (
        "NAME.lock",
        "Lock file in the store. The file of backend/task-1 is backend.d/task-1.lock.",
    ),
    (
        ".onehold/events.jsonl",
        "Journal of the store: one line for each takeover, break and cleanup, rotated at 1 MiB. Path locks and the directory of a profile use the journal of the store that --dir, ONEHOLD_DIR or the configuration's defaults name, else of the default store.",
    ),
    (
        ".onehold/last",
        "Number of the last hold in the store. Path locks have no such file: their hold numbers follow the clock.",
    ),
    (
        ".onehold/waiting/NAME.lock/",
        "Queue tickets of the waiters for a lock, see onehold-formats(5). The next waiter or cleanup removes the tickets of dead waiters.",
    ),
    (
        "~/.config/onehold/config.toml",
        "Defaults and profiles, see onehold-config(5). On Windows %APPDATA%\\onehold\\config.toml.",
    ),
    (
        ".onehold-guard",
        "On Windows a directory cannot be locked, so this file is locked instead. It is never removed, not even beside a path lock.",
    ),
    (
        ".onehold.XXXXXXXXXXXXXXXX",
        "Temporary lock file. If onehold was killed and left one, cleanup removes it.",
    ),
];

/// Environment variables, for ENVIRONMENT: first those that onehold reads, then those that it sets
/// for the command of `run`.
pub(crate) const ENVIRONMENT: [(&str, &str); 9] = [
    (
        "ONEHOLD_DIR",
        "Store directory, unless --dir is given or the profile has a directory.",
    ),
    ("ONEHOLD_PROFILE", "Profile, unless --profile is given."),
    (
        "ONEHOLD_CONFIG",
        "Configuration file, instead of config.toml in $XDG_CONFIG_HOME/onehold or ~/.config/onehold.",
    ),
    (
        "HOME",
        "Home directory, which contains the default store. If it is not set, the home directory is read from the user database.",
    ),
    ("NO_COLOR", "Disables color."),
    (
        "ONEHOLD_NAME",
        "Set for CMD: name of the lock that it runs under.",
    ),
    ("ONEHOLD_HOLD", "Set for CMD: hold number."),
    ("ONEHOLD_FILE", "Set for CMD: path of the lock file."),
    (
        "ONEHOLD_HOLDS",
        "Set for CMD: all holds that it runs under, as NUMBER:NAME separated by spaces, with NAME percent-encoded. run --reentrant and the key mine of the JSON object use it.",
    ),
];

/// A command line and its purpose.
pub(crate) type Example = (&'static str, &'static str);

/// Examples of a command; of the tool itself for any other name.
pub(crate) fn examples(verb: &str) -> &'static [Example] {
    match verb {
        "run" => &[
            (
                "onehold run backup -- ./backup.sh --full",
                "Run a backup unless one is already running (exit status 6)",
            ),
            (
                "onehold run -w 5m -m 'nightly full' backup -- ./backup.sh",
                "Wait up to five minutes, and record a reason",
            ),
            (
                "onehold run -q -E 0 -- /usr/local/bin/sync-mail",
                "In a crontab: skip this run silently if the previous one is still running; the name is derived from the command",
            ),
        ],
        "acquire" => &[
            (
                "N=$(onehold acquire deploy -w 10m) || exit",
                "Hold a lock until the script ends",
            ),
            (
                "onehold acquire deploy --ttl 30m --owner \"$CI_JOB_ID\"",
                "Hold a lock across the steps of a pipeline",
            ),
        ],
        "release" => &[
            (
                "onehold release deploy",
                "Release in the script that acquired the lock",
            ),
            (
                "onehold release deploy --owner \"$CI_JOB_ID\"",
                "Release in another step of the pipeline",
            ),
        ],
        "renew" => &[(
            "onehold renew deploy --owner \"$CI_JOB_ID\" --ttl 30m",
            "Let the lease expire half an hour from now",
        )],
        "check" => &[
            (
                "onehold check backup",
                "Show the holder, since when, and the evidence that it is alive",
            ),
            (
                "if onehold check -q backup; then …",
                "Use only the exit status",
            ),
            (
                "if onehold check -q --available backup; then …",
                "Ask whether acquire would take it now, also from a dead holder",
            ),
        ],
        "list" => &[
            ("onehold list", "List all locks with their states"),
            (
                "onehold list --json | jq -r '.locks[] | select(.is_zombie and (.takeable | not)).name'",
                "List overdue locks: their holders are alive, but older than their maximum age",
            ),
        ],
        "cleanup" => &[("onehold cleanup --dry-run", "Show what would be removed")],
        "break" => &[
            (
                "onehold break backup",
                "Show the holder and ask for confirmation",
            ),
            (
                "onehold break backup --yes --force",
                "Free the lock at once, although its work may keep running",
            ),
            (
                "onehold break backup --hold 1763600000000000 --yes",
                "Break only the hold with this number, without a question",
            ),
        ],
        _ => &[
            (
                "onehold run backup -- ./backup.sh",
                "Run a backup unless one is already running",
            ),
            (
                "onehold check backup",
                "Show the holder, since when, and the evidence that it is alive",
            ),
            ("onehold list", "List all locks with their states"),
        ],
    }
}

/// Chapters of the page of the tool: a title and its paragraphs.
pub(crate) const CHAPTERS: &[(&str, &[&str])] = &[
    (
        "LOCK STATES",
        &[
            "A lock is free, held, overdue or a zombie. A zombie is a stale lock: its holder has exited, its lease has expired, or its file is damaged. run and acquire take a zombie over, and cleanup removes it.",
            "A holder is alive if it holds the kernel lock (flock(2)) on its lock file, or if a process with the recorded PID and start time exists. The start time is counted in ticks since boot. A holder is dead if no process has its PID, if the process with that PID has another start time, or if this machine has been rebooted. A run is dead only if its command is, or if no command is recorded and its kernel lock is free. A process that may not be signaled, a process that /proc does not show, a PID that no process can have, and a host name prove nothing.",
            "Sometimes a holder can be shown neither alive nor dead: its process is in another PID namespace, on another host, or recorded under another boot ID in a container, or the part of the record that names it is damaged. Such a hold is unverified. It counts as held until it reaches its maximum age, by default 24 h after its last heartbeat, and is a zombie afterwards.",
            "A live holder older than its maximum age is overdue. It is reported, but never taken over. A live holder loses its lock to a timeout only if it was acquired with acquire --ttl, or with a profile that sets ttl.",
            "A damaged lock file is empty, all NUL bytes, or starts like a record and is not complete. It counts as held until it has not changed for 10 s, and is a zombie afterwards. A file that is not a lock file is never replaced or removed by any command; at the fixed path of a profile, break moves it aside. A record of a later version counts as held until it is broken.",
        ],
    ),
    (
        "WAITING",
        &[
            "Waiters for a name are served in order of arrival. A free lock is reserved for the first waiter that no other hold blocks, such as that of a child. check shows the PID of that waiter. If the waiter does not take the lock within 5 s, the lock is reserved for the next one.",
            "Waiting is refused at once (exit status 6) if it could never end, because the lock is held by the calling script itself or by a run that the caller runs under.",
            "Each waiter sleeps until the one ahead of it leaves the queue. If the holder has no kernel lock (acquire), the first waiter wakes when the process exits or the lock file is removed. A lock held by another host is polled, at first every 100 ms, later every 2 s.",
            "A parent and its children exclude each other, for example backend and backend/task-1, unless both have the same owner. A waiter for the parent does not keep others from acquiring a child, so it waits as long as children are acquired. Path locks have no queue: their waiters are served in no defined order. If two processes each hold one lock and wait for the other's, both wait until the limit of --wait.",
        ],
    ),
    (
        "HOW A HOLD ENDS",
        &[
            "The work of a run is its command and every process that the command has started: children, background jobs, daemons, processes in sessions of their own, with closed descriptors or under another wrapper. If the command ends by itself, the lock is released at once. What it leaves behind keeps running, holds nothing and keeps no waiter.",
            "Four things end the work by force: TERM to the wrapper, break, a lost lock (unless --on-lost warn is given) and the end of --time-limit. Every process of the work gets TERM. A second TERM to the wrapper sends it again. A process that a handler for TERM starts gets TERM only after those that got it first have ended. What still runs after --kill-after (10 s) gets KILL; with 0 it gets none. The lock is released when nothing of the work runs any more. Before the first signal the record says that the work is being ended; check then says so. If the wrapper or break is killed meanwhile, the rest keeps running until a run or an acquire wants the lock. That one sends KILL once --kill-after is over, and then takes the lock. Before that it waits, or without --wait it exits with 6. The other commands only look. The command of a run --exec has no wrapper: it gets TERM alone, and only break ends its work.",
            "One case is different: if the lock file was removed or replaced, by hand or by acquire --force, run --force or break --force, the next holder may run beside the old work until that has ended, at most 11 s with the default of --kill-after.",
            "The wrapper adopts orphans of its work (PR_SET_CHILD_SUBREAPER, prctl(2)), and finds the work by /proc. break asks the wrapper to end it. If the wrapper has been killed, and for run --exec, break finds the work itself: by the command on record, by the hold in ONEHOLD_HOLDS of the environment, by the inherited lock, and by parents. A process that has none of these any more is out of reach. If it still has the kernel lock, break says so. break names each process that it cannot end: a process of another user, or one that does not exit after KILL. The lock stays held, and break exits with 1. A PID file has no room for these data. There break removes the file and returns at once, and the wrapper then ends its work as for a lost lock.",
            "Ctrl-Z stops the wrapper and its command together, and fg or bg continues both. If the wrapper alone is stopped (SIGSTOP), its command keeps running, the lock stays held, and waiters wait until the wrapper continues and its command has ended. break continues a stopped wrapper.",
        ],
    ),
    (
        "SHARED STORES",
        &[
            "A store belongs to those whom the mode of its directory lets in. onehold makes a store with mode 0700, for one user. To share one, make its directory beforehand: with mode 2770 for a group, or with 1777 for everybody. A line for tmpfiles.d(5) that makes it at each boot is `d /run/lock/onehold 2770 root GROUP -` or `d /run/lock/onehold 1777 root root -`. What onehold makes in it gets the group and the modes of that directory, whatever the umask. On Windows each file gets the access rights that its directory hands down.",
            "With the sticky bit (1777) only root and the user who made it can remove or replace a record. So a lock there is released, broken, renewed and, if its holder has died, taken over by that user or by root. For anybody else it is an error that names the user. If one user is to take over from another, use a group's store.",
            "Root and an ordinary user do not meet in the default store, because each has one below its home directory. They meet in a store that both name by --dir, ONEHOLD_DIR or dir in the configuration file.",
        ],
    ),
    (
        "FILESYSTEMS",
        &[
            "Kernel locks count only on filesystems where every process that can open a file sees them: ext2, ext3, ext4, xfs, btrfs, tmpfs, ramfs, zfs, f2fs, overlay, bcachefs, jfs, reiserfs, nilfs2, ubifs, jffs2, ntfs3 and ecryptfs on Linux, apfs and hfs on macOS, NTFS and ReFS on drives of this machine on Windows. On any other, such as NFS, SMB, FUSE, 9p and virtiofs, locks are acquired and released, but no zombie is taken over or cleaned up, and waiters have no queue. check -v names such a filesystem.",
        ],
    ),
    (
        "LIMITATIONS",
        &[
            "Locks are advisory. On NFS, FUSE and other filesystems that other hosts can change, onehold acquires and releases locks, but does not take over zombies: use onehold break. If the wrapper of a run was killed, a command in another PID namespace is visible only through the kernel lock. With run --close, or if the command has closed its inherited descriptors, such a hold counts as held until its maximum age.",
            "The hold numbers of path locks follow the clock, because nothing is stored beside the file. They grow as long as the clock is not set back. The hold numbers of a store grow even then.",
            "check and list show the waiters for a lock by its own name. A waiter for a child that a parent's holder excludes is not among the waiters of the parent.",
            "Do not use one path for both onehold and flock(1), unless with --format flock: flock(1) does not read lock files. Its unused file is empty; after 10 s a run takes that for a damaged lock file, replaces it, and removes it at its end. onehold-formats(5) lists the lock files of other programs that onehold reads, and the races that remain with these programs.",
        ],
    ),
];

/// The object of `--json`, for JSON OUTPUT.
pub(crate) const JSON: &[&str] = &[
    "With --json, stdout contains exactly one object on one line, even on failure. For run, whose stdout belongs to CMD, the object is the last line on stderr. run --exec and run --reentrant are replaced by CMD and print an object only if they fail. If INT, TERM or HUP ends onehold while it waits or asks, the object says interrupted.",
    "Keys: success; command (the command of onehold); status; lock (an object or null); locks (of list and cleanup); hold (the number of the new hold); displaced (the hold that was taken over or taken by force, an object like lock); command_exit_code; message (a sentence); errors (the message of a failure, and warnings); error (null, or an object of code, message and details). hold, displaced and command_exit_code are only present where they apply. For release, break and cleanup, lock and locks are the state before the change. Times are RFC 3339 in UTC. Later versions may add keys.",
    "status is acquired, released, renewed, blocked, zombie-detected (also overdue), clean (free), listed, cleaned, broken, lost, timeout, interrupted (INT, TERM or HUP) or failure. error.code is the reason of a failure: LOCKED, TIMEOUT and ZOMBIE (refused), NOT_OWNER, NOT_HELD, NOT_CONFIRMED, NOT_A_LOCK, STILL_RUNNING, LOST, TIME_LIMIT, INTERRUPTED, INCOMPLETE, INVALID_NAME, TOO_LONG, UNSUPPORTED, NO_SUCH_PROCESS, NO_HOLDER, STORE_BUSY, NO_ATOMIC_EXCHANGE, COMMAND_NOT_FOUND, COMMAND_NOT_EXECUTABLE, USAGE, IO or FAILED. A profile may replace LOCKED and TIMEOUT with its own code.",
];

/// The keys of a lock in that object. All are always present.
pub(crate) const LOCK_KEYS: [(&str, &str); 33] = [
    ("name", "NAME as given"),
    ("path", "path of the lock file"),
    ("store", "directory of the lock file"),
    ("exists", "whether the lock file exists"),
    ("state", "free, held, overdue, zombie, not-a-lock"),
    (
        "reason",
        "reason of the state: no-file, finished (free); alive, starting (the wrapper is dead, and the command may be about to start), ending (its work is being ended by force), reserved (for a waiter), lease, unknown-version, incomplete, unverified (held); dead, reused, rebooted, expired, too-old, corrupt, malformed (not a lock file, where a profile has its lock) (zombie); not-a-lock",
    ),
    (
        "proof",
        "evidence: kernel-lock, kernel-lock-gone, same-process (PID and start time), same-pid, pid-gone, other-start, other-boot, clock, or null",
    ),
    ("evidence", "the evidence in words"),
    (
        "is_zombie",
        "whether the lock is a zombie or overdue; only a takeable lock can be taken without --force",
    ),
    (
        "takeable",
        "whether acquire and run take the lock without --force",
    ),
    ("kind", "run; job (acquired for a process); lease"),
    (
        "pid",
        "PID of the process that keeps the hold alive: the command of a run, or the process of an acquire",
    ),
    (
        "pid_alive",
        "whether that process is alive; null if unknown",
    ),
    ("wrapper_pid", "PID of the onehold process of a run"),
    ("wrapper_alive", "whether that process is alive"),
    ("format", "native, prodigy, sprint, memory, pid, flock"),
    ("hostname", "host of the holder"),
    (
        "owner",
        "owner label (--owner), also of the waiter that a lock is reserved for",
    ),
    ("session_id", "same as owner"),
    ("message", "reason (--message)"),
    ("command", "command line of the holder, an array"),
    ("acquired_at", "time of acquisition"),
    ("renewed_at", "last heartbeat"),
    ("age_hours", "time since the last heartbeat in hours"),
    ("age_seconds", "the same in seconds"),
    ("ttl_seconds", "time to live (--ttl)"),
    ("expires_at", "time at which the hold expires"),
    ("hold", "hold number"),
    (
        "mine",
        "whether the caller may release the hold: by --hold, --owner, $ONEHOLD_HOLDS, or as a descendant of its process",
    ),
    (
        "zombie_reason",
        "why it is a zombie, in words; null unless it is one",
    ),
    (
        "lockers",
        "of a file without a record: the processes that have locked it: pid, command, user, started_at",
    ),
    (
        "waiters",
        "the queue: position, pid, hostname, owner, command, since",
    ),
    (
        "details",
        "the same under the names of the profile's program, nested as there; null without a profile",
    ),
];

/// Returns whether the JSON object of a lock has this key.
pub(crate) fn is_lock_key(key: &str) -> bool {
    LOCK_KEYS.iter().any(|(known, _)| *known == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trusted_filesystem_is_documented() {
        let (_, paragraphs) = CHAPTERS
            .iter()
            .find(|(title, _)| *title == "FILESYSTEMS")
            .unwrap();
        let text = paragraphs.join(" ").to_lowercase();
        let names = onehold::trusted_filesystems().flat_map(|names| names.split(", "));
        for name in names {
            assert!(text.contains(name), "{name}");
        }
    }
}
