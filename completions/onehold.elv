
use builtin;
use str;

set edit:completion:arg-completer[onehold] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'onehold'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'onehold'= {
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand run 'Run a command while holding a lock'
            cand acquire 'Acquire a lock for a process or a limited time; print the hold number'
            cand hold 'Hold a lock for a program as long as stdin is open; print the hold number'
            cand release 'Release a lock (succeeds if it is already free)'
            cand renew 'Extend a lease, or restart the age of a hold made by `acquire`'
            cand check 'Show the holder of a lock and verify it; the exit status is the state'
            cand list 'List the locks in the store with their states'
            cand cleanup 'Remove all zombies from the store, or those with the given names'
            cand break 'Remove a hold by force, after confirmation'
            cand config 'Show the effective settings and their sources'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'onehold;run'= {
            cand -w 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --wait 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --max-waiting 'Do not wait if N wait already: exit with 6 at once'
            cand --slots 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1'
            cand --ttl 'Time to live: how long the hold lasts without a renewal'
            cand --owner 'Unique label, such as a CI job ID; the same label may release and renew the hold'
            cand -m 'Reason to show to others, at most 1 KiB'
            cand --message 'Reason to show to others, at most 1 KiB'
            cand --max-age 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]'
            cand --on-zombie 'How to handle a zombie (stale lock) [default: take]'
            cand -E 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --conflict-exit-code 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --on-lost 'What to do if the lock file is removed or replaced while CMD runs (`break` ends CMD anyway)'
            cand --time-limit 'End CMD and all that it has started after D, and exit with 124; `0`: no limit [default: no limit]'
            cand --kill-after 'Time between TERM and KILL when the work is ended; `0`: no KILL [default: 10s]'
            cand --die-with 'End CMD and all that it has started, or the wait, once the process PID has exited; `parent`: the process that started onehold'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand -n 'Do not wait (default; overrides a configured wait)'
            cand --no-wait 'Do not wait (default; overrides a configured wait)'
            cand -s 'Hold the lock together with others that use --shared; excludes holders without it'
            cand --shared 'Hold the lock together with others that use --shared; excludes holders without it'
            cand -f 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand --force 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand -y 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --yes 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --close 'Do not pass the kernel lock to CMD; if onehold is killed, CMD is tracked by PID only'
            cand --exec 'Replace onehold with CMD; the record remains and counts as free once CMD exits'
            cand --reentrant 'If already running under `run` of this lock, just run CMD'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;acquire'= {
            cand -w 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --wait 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --max-waiting 'Do not wait if N wait already: exit with 6 at once'
            cand --slots 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1'
            cand --ttl 'Time to live: how long the hold lasts without a renewal'
            cand --owner 'Unique label, such as a CI job ID; the same label may release and renew the hold'
            cand -m 'Reason to show to others, at most 1 KiB'
            cand --message 'Reason to show to others, at most 1 KiB'
            cand --max-age 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]'
            cand --on-zombie 'How to handle a zombie (stale lock) [default: take]'
            cand -E 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --conflict-exit-code 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --pid 'Process to hold the lock for [default: the calling script]'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand -n 'Do not wait (default; overrides a configured wait)'
            cand --no-wait 'Do not wait (default; overrides a configured wait)'
            cand -s 'Hold the lock together with others that use --shared; excludes holders without it'
            cand --shared 'Hold the lock together with others that use --shared; excludes holders without it'
            cand -f 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand --force 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand -y 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --yes 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;hold'= {
            cand -w 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --wait 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]'
            cand --max-waiting 'Do not wait if N wait already: exit with 6 at once'
            cand --slots 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1'
            cand --ttl 'Time to live: how long the hold lasts without a renewal'
            cand --owner 'Unique label, such as a CI job ID; the same label may release and renew the hold'
            cand -m 'Reason to show to others, at most 1 KiB'
            cand --message 'Reason to show to others, at most 1 KiB'
            cand --max-age 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]'
            cand --on-zombie 'How to handle a zombie (stale lock) [default: take]'
            cand -E 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --conflict-exit-code 'Exit with N instead of 6 (held) or 7 (timed out)'
            cand --die-with 'Release the lock, or end the wait, once the process PID has exited, too; `parent`: the process that started onehold'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand -n 'Do not wait (default; overrides a configured wait)'
            cand --no-wait 'Do not wait (default; overrides a configured wait)'
            cand -s 'Hold the lock together with others that use --shared; excludes holders without it'
            cand --shared 'Hold the lock together with others that use --shared; excludes holders without it'
            cand -f 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand --force 'Take the lock from a live holder or ahead of waiters, without waiting; asks first'
            cand -y 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --yes 'Answer yes to all questions; a live holder loses the lock only with --force'
            cand --reentrant 'If already running under `run` of this lock, hold nothing, and print the number of that hold'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;release'= {
            cand --hold 'Act only on the hold with this number'
            cand --owner 'Owner label that the lock was acquired with'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand -f 'Release any holder''s lock; same as `break`'
            cand --force 'Release any holder''s lock; same as `break`'
            cand -y 'Answer yes to all questions'
            cand --yes 'Answer yes to all questions'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;renew'= {
            cand --hold 'Act only on the hold with this number'
            cand --owner 'Owner label that the lock was acquired with'
            cand --ttl 'New time to live, starting now [default: unchanged]'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;check'= {
            cand --hold 'Caller''s hold number, for `mine` in the JSON object'
            cand --owner 'Caller''s owner label, for `mine` in the JSON object; parents and children held by it are ignored'
            cand --max-age 'Maximum age of holds that do not set their own [default: 24h]'
            cand --slots 'Check for a caller that would take one of N slots'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --available 'Exit with 0 if the lock is free or can be taken over, with 6 if not'
            cand -s 'Check for a caller that would share the lock'
            cand --shared 'Check for a caller that would share the lock'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;list'= {
            cand --sort 'Order of the locks'
            cand --state 'Show only locks in this state, a word of the column STATE; may be given more than once'
            cand --max-age 'Maximum age of holds that do not set their own [default: 24h]'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --wide 'Do not fit the table to the terminal: messages are whole, and rows may be wrapped'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;cleanup'= {
            cand --max-age 'Maximum age of holds that do not set their own [default: 24h]'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand -n 'Show what would be removed, without removing it'
            cand --dry-run 'Show what would be removed, without removing it'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;break'= {
            cand --hold 'Act only on the hold with this number'
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --all 'Break all holds of a lock that several share'
            cand -f 'Free the lock at once, without waiting for the work of a `run`, which may keep running'
            cand --force 'Free the lock at once, without waiting for the work of a `run`, which may keep running'
            cand -y 'Answer yes to all questions'
            cand --yes 'Answer yes to all questions'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;config'= {
            cand --dir 'Store directory, created if missing, or etcd://HOSTS/PREFIX [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]'
            cand --format 'Format of new lock files'
            cand --color 'When to use color'
            cand --json 'Print one JSON object, even on failure'
            cand -q 'Print only errors, warnings, questions, and what the command is for'
            cand --quiet 'Print only errors, warnings, questions, and what the command is for'
            cand -v 'Print details (store, evidence, processes), and successes too'
            cand --verbose 'Print details (store, evidence, processes), and successes too'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;help'= {
            cand run 'Run a command while holding a lock'
            cand acquire 'Acquire a lock for a process or a limited time; print the hold number'
            cand hold 'Hold a lock for a program as long as stdin is open; print the hold number'
            cand release 'Release a lock (succeeds if it is already free)'
            cand renew 'Extend a lease, or restart the age of a hold made by `acquire`'
            cand check 'Show the holder of a lock and verify it; the exit status is the state'
            cand list 'List the locks in the store with their states'
            cand cleanup 'Remove all zombies from the store, or those with the given names'
            cand break 'Remove a hold by force, after confirmation'
            cand config 'Show the effective settings and their sources'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'onehold;help;run'= {
        }
        &'onehold;help;acquire'= {
        }
        &'onehold;help;hold'= {
        }
        &'onehold;help;release'= {
        }
        &'onehold;help;renew'= {
        }
        &'onehold;help;check'= {
        }
        &'onehold;help;list'= {
        }
        &'onehold;help;cleanup'= {
        }
        &'onehold;help;break'= {
        }
        &'onehold;help;config'= {
        }
        &'onehold;help;help'= {
        }
    ]
    $completions[$command]
}
