
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'onehold' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'onehold'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'onehold' {
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Run a command while holding a lock')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Acquire a lock for a process or a limited time; print the hold number')
            [CompletionResult]::new('hold', 'hold', [CompletionResultType]::ParameterValue, 'Hold a lock for a program as long as stdin is open; print the hold number')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Release a lock (succeeds if it is already free)')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease, or restart the age of a hold made by `acquire`')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Show the holder of a lock and verify it; the exit status is the state')
            [CompletionResult]::new('wait', 'wait', [CompletionResultType]::ParameterValue, 'Wait until locks are free, without taking them')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List the locks in the store with their states')
            [CompletionResult]::new('cleanup', 'cleanup', [CompletionResultType]::ParameterValue, 'Remove all zombies from the store, or those with the given names')
            [CompletionResult]::new('break', 'break', [CompletionResultType]::ParameterValue, 'Remove a hold by force, after confirmation')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check that the store is suitable for locks, and that holders can be checked from here')
            [CompletionResult]::new('history', 'history', [CompletionResultType]::ParameterValue, 'List holds that have ended, the latest last')
            [CompletionResult]::new('config', 'config', [CompletionResultType]::ParameterValue, 'Show the effective settings and their sources')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'onehold;run' {
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project); may be given more than once')
            [CompletionResult]::new('--max-waiting', '--max-waiting', [CompletionResultType]::ParameterName, 'Do not wait if N wait already: exit with 6 at once')
            [CompletionResult]::new('--keep-place', '--keep-place', [CompletionResultType]::ParameterName, 'Keep the place in the queue for D, at most 30m, if the wait ends without the lock; needs --owner')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'Time to live: how long the hold lasts without a renewal')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Unique label, such as a CI job ID; the same label may release and renew the hold')
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--message', '--message', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]')
            [CompletionResult]::new('--on-zombie', '--on-zombie', [CompletionResultType]::ParameterName, 'How to handle a zombie (stale lock) [default: take]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--on-lost', '--on-lost', [CompletionResultType]::ParameterName, 'What to do if the lock file is removed or replaced while CMD runs (`break` ends CMD anyway)')
            [CompletionResult]::new('--time-limit', '--time-limit', [CompletionResultType]::ParameterName, 'End CMD and all its processes after D, and exit with 124; `0`: no limit [default: no limit]')
            [CompletionResult]::new('--kill-after', '--kill-after', [CompletionResultType]::ParameterName, 'Time between TERM and KILL when the work is ended; `0`: no KILL [default: 10s]')
            [CompletionResult]::new('--hold-at-least', '--hold-at-least', [CompletionResultType]::ParameterName, 'Keep the lock until D after it was acquired, also if CMD ends sooner; onehold exits with CMD')
            [CompletionResult]::new('--die-with', '--die-with', [CompletionResultType]::ParameterName, 'End CMD and all its processes, or the wait, once the process PID has exited; `parent`: the process that started onehold; `none`: with no process [default: none]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('--shared', '--shared', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--close', '--close', [CompletionResultType]::ParameterName, 'Do not pass the kernel lock to CMD; if onehold is killed, CMD is tracked by PID only')
            [CompletionResult]::new('--exec', '--exec', [CompletionResultType]::ParameterName, 'Replace onehold with CMD; the record remains and counts as free once CMD exits')
            [CompletionResult]::new('--reentrant', '--reentrant', [CompletionResultType]::ParameterName, 'If already running under `run` of this lock, just run CMD')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;acquire' {
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project); may be given more than once')
            [CompletionResult]::new('--max-waiting', '--max-waiting', [CompletionResultType]::ParameterName, 'Do not wait if N wait already: exit with 6 at once')
            [CompletionResult]::new('--keep-place', '--keep-place', [CompletionResultType]::ParameterName, 'Keep the place in the queue for D, at most 30m, if the wait ends without the lock; needs --owner')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'Time to live: how long the hold lasts without a renewal')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Unique label, such as a CI job ID; the same label may release and renew the hold')
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--message', '--message', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]')
            [CompletionResult]::new('--on-zombie', '--on-zombie', [CompletionResultType]::ParameterName, 'How to handle a zombie (stale lock) [default: take]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--pid', '--pid', [CompletionResultType]::ParameterName, 'Process to hold the lock for [default: the calling script]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('--shared', '--shared', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;hold' {
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: do not wait]')
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project); may be given more than once')
            [CompletionResult]::new('--max-waiting', '--max-waiting', [CompletionResultType]::ParameterName, 'Do not wait if N wait already: exit with 6 at once')
            [CompletionResult]::new('--keep-place', '--keep-place', [CompletionResultType]::ParameterName, 'Keep the place in the queue for D, at most 30m, if the wait ends without the lock; needs --owner')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Let at most N hold the lock at once, each in a slot of its own, 0 to N-1')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'Time to live: how long the hold lasts without a renewal')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Unique label, such as a CI job ID; the same label may release and renew the hold')
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--message', '--message', [CompletionResultType]::ParameterName, 'Reason to show to others, at most 1 KiB')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Age at which the hold becomes overdue (or a zombie, if the holder cannot be checked) [default: 24h]')
            [CompletionResult]::new('--on-zombie', '--on-zombie', [CompletionResultType]::ParameterName, 'How to handle a zombie (stale lock) [default: take]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--die-with', '--die-with', [CompletionResultType]::ParameterName, 'Also release the lock, or stop waiting, when process PID exits; `parent`: the process that started onehold; `none`: with no process [default: none]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Do not wait (default; overrides a configured wait)')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('--shared', '--shared', [CompletionResultType]::ParameterName, 'Hold the lock together with others that use --shared; excludes holders without it')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Take the lock from a live holder or ahead of waiters; asks first')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer yes to all questions; a live holder loses the lock only with --force')
            [CompletionResult]::new('--reentrant', '--reentrant', [CompletionResultType]::ParameterName, 'If already running under `run` of this lock, hold nothing, and print the number of that hold')
            [CompletionResult]::new('--serve', '--serve', [CompletionResultType]::ParameterName, 'Hold many locks for the program: read requests from stdin, one JSON object a line')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;release' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project)')
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'Act only on the hold with this number')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Owner label that the lock was acquired with')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--all', '--all', [CompletionResultType]::ParameterName, 'Release all holds of this --owner in the store, except those of a `run` or `hold`; takes no NAME')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Release any holder''s lock; same as `break`')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Release any holder''s lock; same as `break`')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer yes to all questions')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer yes to all questions')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;renew' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project)')
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'Act only on the hold with this number')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Owner label that the lock was acquired with')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'New time to live, starting now [default: unchanged]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;check' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project)')
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'Caller''s hold number, for `mine` in the JSON object')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Caller''s owner label, for `mine` in the JSON object; parents and children held by it are ignored')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Maximum age of holds that do not set their own [default: 24h]')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Check for a caller that would take one of N slots')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--available', '--available', [CompletionResultType]::ParameterName, 'Exit with 0 if the lock is free or can be taken over, or is a lease of --owner, with 6 if not')
            [CompletionResult]::new('--mine', '--mine', [CompletionResultType]::ParameterName, 'Exit with 0 if the caller runs under a live hold of this lock, with 4 if not; print nothing')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Check for a caller that would share the lock')
            [CompletionResult]::new('--shared', '--shared', [CompletionResultType]::ParameterName, 'Check for a caller that would share the lock')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;wait' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project); may be given more than once')
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: forever]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D: `30` (seconds), `0.5`, `30s`, `5m`, `2h`, `1d`, `forever` [default: forever]')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Caller''s owner label; parents and children held by it are ignored')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Maximum age of holds that do not set their own [default: 24h]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N instead of 6 (held) or 7 (timed out)')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;list' {
            [CompletionResult]::new('--sort', '--sort', [CompletionResultType]::ParameterName, 'Order of the locks')
            [CompletionResult]::new('--state', '--state', [CompletionResultType]::ParameterName, 'Show only locks in this state, a word of the column STATE; may be given more than once')
            [CompletionResult]::new('--watch', '--watch', [CompletionResultType]::ParameterName, 'Print the table again when something changes, and at least every D (after `=`) [default: 5s]')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Maximum age of holds that do not set their own [default: 24h]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--wide', '--wide', [CompletionResultType]::ParameterName, 'Do not fit the table to the terminal: messages are whole, and rows may be wrapped')
            [CompletionResult]::new('--prometheus', '--prometheus', [CompletionResultType]::ParameterName, 'Print metrics in the text format of Prometheus, for the textfile collector of node_exporter')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;cleanup' {
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'Maximum age of holds that do not set their own [default: 24h]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Show what would be removed, without removing it')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Show what would be removed, without removing it')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;break' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'The lock of a file or directory of the project (implies --project)')
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'Act only on the hold with this number')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--all', '--all', [CompletionResultType]::ParameterName, 'Break all holds of a lock that several share')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Free the lock at once, without waiting for the work of a `run`, which may keep running')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Free the lock at once, without waiting for the work of a `run`, which may keep running')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer yes to all questions')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer yes to all questions')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;doctor' {
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--quick', '--quick', [CompletionResultType]::ParameterName, 'Only look: write nothing, and start no process')
            [CompletionResult]::new('--create', '--create', [CompletionResultType]::ParameterName, 'First make .onehold in a store with a sticky bit (1777), as root or its owner')
            [CompletionResult]::new('--accept-epoch', '--accept-epoch', [CompletionResultType]::ParameterName, 'Take locks again at once after a change of the server (STORE_CHANGED). Needs --yes')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'No such command runs any more')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'No such command runs any more')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;history' {
            [CompletionResult]::new('--since', '--since', [CompletionResultType]::ParameterName, 'Only holds that have ended within the last D: `30m`, `12h`, `7d`')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--failed', '--failed', [CompletionResultType]::ParameterName, 'Only failed holds: all but those that ended with exit status 0 or a release')
            [CompletionResult]::new('--summary', '--summary', [CompletionResultType]::ParameterName, 'One row for each lock: runs, failures, times, and the longest holds')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;config' {
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Store directory, created if missing, or postgres://… or etcd://… [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Use a profile: `prodigy`, `sprint`, `memory`, `tasks`, or your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'Format of new lock files')
            [CompletionResult]::new('--instance', '--instance', [CompletionResultType]::ParameterName, 'Name of the caller''s instance, such as a pod of a StatefulSet; at most one exists at a time [default: $ONEHOLD_INSTANCE]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use color')
            [CompletionResult]::new('--project', '--project', [CompletionResultType]::ParameterName, 'The store of the project that the current directory is in; all worktrees of a git repository share it')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, even on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print only errors, warnings, questions, and the result of the command')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print details (store, evidence, processes), and successes too')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;help' {
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Run a command while holding a lock')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Acquire a lock for a process or a limited time; print the hold number')
            [CompletionResult]::new('hold', 'hold', [CompletionResultType]::ParameterValue, 'Hold a lock for a program as long as stdin is open; print the hold number')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Release a lock (succeeds if it is already free)')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease, or restart the age of a hold made by `acquire`')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Show the holder of a lock and verify it; the exit status is the state')
            [CompletionResult]::new('wait', 'wait', [CompletionResultType]::ParameterValue, 'Wait until locks are free, without taking them')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List the locks in the store with their states')
            [CompletionResult]::new('cleanup', 'cleanup', [CompletionResultType]::ParameterValue, 'Remove all zombies from the store, or those with the given names')
            [CompletionResult]::new('break', 'break', [CompletionResultType]::ParameterValue, 'Remove a hold by force, after confirmation')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check that the store is suitable for locks, and that holders can be checked from here')
            [CompletionResult]::new('history', 'history', [CompletionResultType]::ParameterValue, 'List holds that have ended, the latest last')
            [CompletionResult]::new('config', 'config', [CompletionResultType]::ParameterValue, 'Show the effective settings and their sources')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'onehold;help;run' {
            break
        }
        'onehold;help;acquire' {
            break
        }
        'onehold;help;hold' {
            break
        }
        'onehold;help;release' {
            break
        }
        'onehold;help;renew' {
            break
        }
        'onehold;help;check' {
            break
        }
        'onehold;help;wait' {
            break
        }
        'onehold;help;list' {
            break
        }
        'onehold;help;cleanup' {
            break
        }
        'onehold;help;break' {
            break
        }
        'onehold;help;doctor' {
            break
        }
        'onehold;help;history' {
            break
        }
        'onehold;help;config' {
            break
        }
        'onehold;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
