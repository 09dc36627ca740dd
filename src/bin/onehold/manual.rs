//! What help and man pages say beyond the options.

/// Name and description of the files, for FILES.
pub(crate) const FILES: [(&str, &str); 5] = [
    (
        "~/.local/state/onehold/",
        "the default store. XDG_STATE_HOME and XDG_RUNTIME_DIR are not consulted: cron does not set them, and cron, ssh and a terminal must reach the same store",
    ),
    (
        "NAME.lock",
        "the record of a lock in the store; backend/task-1 is backend.d/task-1.lock",
    ),
    (
        ".onehold/events.jsonl",
        "the journal of the store: one line for each takeover, break and cleanup; rotated at 1 MiB. For path locks it is the default store's",
    ),
    (
        ".onehold/last",
        "the number of the store's last hold. A path lock has none: its numbers follow the clock",
    ),
    (
        ".onehold.XXXXXXXXXXXXXXXX",
        "a record that has no place yet; what a killed taker left is removed by cleanup",
    ),
];

/// Variables, for ENVIRONMENT: read by onehold, then set for the command of `run`.
pub(crate) const ENVIRONMENT: [(&str, &str); 7] = [
    ("ONEHOLD_DIR", "the store, unless --dir is given"),
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
        "set for CMD, and read by release, renew and run --reentrant: all holds it runs inside of, as NUMBER:NAME separated by spaces, NAME percent-encoded",
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
                "onehold run -E 0 -- /usr/local/bin/sync-mail",
                "in a crontab: the name follows from the command, and a run that is still going on is no failure",
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
                "onehold list --json | jq -r '.locks[] | select(.is_zombie).name'",
                "what somebody should look at",
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
