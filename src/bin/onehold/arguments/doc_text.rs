//! Text of the help and the man pages beyond the options.

/// The rows of a table: each is a line, and below it what the line means.
pub(crate) fn rows(table: &'static str) -> Vec<(&'static str, &'static str)> {
    let lines = table.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.is_empty());
    std::iter::from_fn(|| lines.next().zip(lines.next())).collect()
}

/// Files and their descriptions, for FILES.
pub(crate) const FILES: &str = include_str!("files.txt");

/// Environment variables, for ENVIRONMENT: first those that onehold reads, then those that it sets
/// for the command of `run`.
pub(crate) const ENVIRONMENT: &str = include_str!("environment.txt");

/// Examples of a command, each with its purpose; of the tool itself for any other name.
pub(crate) fn examples(verb: &str) -> &'static str {
    let below = EXAMPLES.split_once(&format!("\n[{verb}]\n"));
    let table = below.map_or(EXAMPLES, |(_, table)| table);
    table.split_once("\n[").map_or(table, |(table, _)| table)
}

/// Those of the tool, and behind its name those of each command.
const EXAMPLES: &str = include_str!("examples.txt");

/// The keys of a lock in the JSON object. All are always present; onehold-json(5) describes them.
pub(crate) fn lock_keys() -> impl Iterator<Item = &'static str> {
    LOCK_KEYS.split_whitespace()
}

const LOCK_KEYS: &str = "
    name path store exists state reason proof evidence is_zombie takeable takeable_in_ms kind program
    pid pid_alive wrapper_pid wrapper_alive die_with format hostname user uid owner session_id
    message command directory acquired_at renewed_at age_hours age_seconds ttl_seconds expires_at ended_at
    exit_code signal hold mode slot names provenance mine zombie_reason others lockers waiters reserved_for
    details
";
