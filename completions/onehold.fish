# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_onehold_global_optspecs
    string join \n dir= profile= format= json q/quiet v/verbose color= h/help V/version
end

function __fish_onehold_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_onehold_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_onehold_using_subcommand
    set -l cmd (__fish_onehold_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c onehold -n "__fish_onehold_needs_command" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_needs_command" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_needs_command" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_needs_command" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_needs_command" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_needs_command" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_needs_command" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_needs_command" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "run" -d 'Run a command while holding a lock'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "acquire" -d 'Acquire a lock for a process or a limited time; print the hold number'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "release" -d 'Release a lock (succeeds if it is already free)'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "renew" -d 'Extend a lease, or restart the age of a detached hold'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "check" -d 'Show the holder of a lock and verify it; the exit status is the state'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "list" -d 'List all locks in the store with their states'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "cleanup" -d 'Remove all zombies from the store'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "break" -d 'Remove a hold by force, after confirmation'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "config" -d 'Show the settings in force, and where each one comes from'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s w -l wait -d 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l ttl -d 'Time to live: how long the hold lasts without a renewal' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l owner -d 'Unique label, such as a CI job ID; the same label may release and renew the hold' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -s m -l message -d 'Reason to show to others, at most 1 KiB' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l max-age -d 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l on-zombie -d 'How to handle a zombie (stale lock) [default: take]' -r -f -a "take\t'Take it over and report it'
ask\t'Ask on the terminal; without a terminal, refuse unless --yes is given'
fail\t'Exit with status 5'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N instead of 6 (held) or 7 (timed out)' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l on-lost -d 'What to do if the lock file is removed or replaced while CMD runs (`break` ends CMD anyway)' -r -f -a "term\t'End all the work by TERM and KILL, exit with 8'
warn\t'Print a warning and let CMD run'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -l time-limit -d 'End CMD and all that it has started after D, and exit with 124; `0`: no limit [default: no limit]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l kill-after -d 'Time between TERM and KILL when the work is ended; `0`: no KILL [default: 10s]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand run" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand run" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -s n -l no-wait -d 'Do not wait (default; overrides a configured wait)'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s f -l force -d 'Take the lock from a live holder or ahead of waiters; asks first'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s y -l yes -d 'Answer yes to all questions; a living holder loses the lock only with --force'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l close -d 'Do not pass the kernel lock to CMD; if onehold is killed, CMD is tracked by PID only'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l exec -d 'Replace onehold with CMD; the record remains and counts as free once CMD exits'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l reentrant -d 'If already running under `run` of this lock, just run CMD'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s w -l wait -d 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l ttl -d 'Time to live: how long the hold lasts without a renewal' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l owner -d 'Unique label, such as a CI job ID; the same label may release and renew the hold' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s m -l message -d 'Reason to show to others, at most 1 KiB' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l max-age -d 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l on-zombie -d 'How to handle a zombie (stale lock) [default: take]' -r -f -a "take\t'Take it over and report it'
ask\t'Ask on the terminal; without a terminal, refuse unless --yes is given'
fail\t'Exit with status 5'"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N instead of 6 (held) or 7 (timed out)' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l pid -d 'Process to hold the lock for [default: the calling script]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s n -l no-wait -d 'Do not wait (default; overrides a configured wait)'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s f -l force -d 'Take the lock from a live holder or ahead of waiters; asks first'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s y -l yes -d 'Answer yes to all questions; a living holder loses the lock only with --force'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand release" -l hold -d 'Act only on the hold with this number' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l owner -d 'Owner label that the lock was acquired with' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand release" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand release" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand release" -s f -l force -d 'Release any holder\'s lock; same as `break`'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s y -l yes -d 'Answer yes to all questions'
complete -c onehold -n "__fish_onehold_using_subcommand release" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l hold -d 'Act only on the hold with this number' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l owner -d 'Owner label that the lock was acquired with' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l ttl -d 'New time to live, starting now [default: unchanged]' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand check" -l hold -d 'Caller\'s hold number, for `mine` in the JSON object' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l owner -d 'Caller\'s owner label, for `mine` in the JSON object; parents and children held by it are ignored' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l max-age -d 'Maximum age of holds that do not set their own [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand check" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand check" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand check" -l available -d 'Exit with 0 if the lock is free or can be taken over, with 6 if not'
complete -c onehold -n "__fish_onehold_using_subcommand check" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand list" -l sort -d 'Order of the locks' -r -f -a "name\t'By name, numbers in it as numbers'
age\t'The oldest hold first'
state\t'Zombies first, then what may need attention'"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l state -d 'Show only locks in this state; may be given more than once' -r -f -a "zombie\t'The next acquire takes it over'
damaged\t'Not a lock file, where a profile has its lock'
overdue\t'Alive, but older than its maximum age'
unverified\t'The holder cannot be checked, or the file is incomplete'
held\t'Held'
reserved\t'Free, but reserved for a waiter'
free\t'Left by a finished `run --exec`'
not-a-lock\t'Not a lock file'"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l max-age -d 'Maximum age of holds that do not set their own [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand list" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand list" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand list" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l max-age -d 'Maximum age of holds that do not set their own [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l dry-run -d 'Show what would be removed, without removing it'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand break" -l hold -d 'Act only on the hold with this number' -r
complete -c onehold -n "__fish_onehold_using_subcommand break" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand break" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand break" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand break" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand break" -s f -l force -d 'Free the lock at once, without waiting for the work of a `run`, which may keep running'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s y -l yes -d 'Answer yes to all questions'
complete -c onehold -n "__fish_onehold_using_subcommand break" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand config" -l dir -d 'Store directory, created if missing [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand config" -l profile -d 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand config" -l format -d 'Format of new lock files' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''
flock\t''"
complete -c onehold -n "__fish_onehold_using_subcommand config" -l color -d 'When to use color' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand config" -l json -d 'Print one JSON object, even on failure'
complete -c onehold -n "__fish_onehold_using_subcommand config" -s q -l quiet -d 'Print only errors and warnings'
complete -c onehold -n "__fish_onehold_using_subcommand config" -s v -l verbose -d 'Print details: store, evidence, processes'
complete -c onehold -n "__fish_onehold_using_subcommand config" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand config" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "run" -d 'Run a command while holding a lock'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "acquire" -d 'Acquire a lock for a process or a limited time; print the hold number'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "release" -d 'Release a lock (succeeds if it is already free)'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "renew" -d 'Extend a lease, or restart the age of a detached hold'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "check" -d 'Show the holder of a lock and verify it; the exit status is the state'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "list" -d 'List all locks in the store with their states'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "cleanup" -d 'Remove all zombies from the store'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "break" -d 'Remove a hold by force, after confirmation'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "config" -d 'Show the settings in force, and where each one comes from'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break config help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
