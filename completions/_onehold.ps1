
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
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Hold a lock while a command runs')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Hold a lock on behalf of a process, or for a time; print the number of the hold')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Give a hold back; that it is free already is a success')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease, or refresh the age of another detached hold')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Tell who holds a lock, and whether that is true; the exit code is the answer')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List all locks of the store, with verdicts')
            [CompletionResult]::new('cleanup', 'cleanup', [CompletionResultType]::ParameterValue, 'Remove every zombie of the store, and nothing else')
            [CompletionResult]::new('break', 'break', [CompletionResultType]::ParameterValue, 'Take a lock away from its holder, on your word')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'onehold;run' {
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'End the hold this long after its last renewal, whatever happens to its process')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has')
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Why, for those who find it held; at most 1 KiB')
            [CompletionResult]::new('--message', '--message', [CompletionResultType]::ParameterName, 'Why, for those who find it held; at most 1 KiB')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]')
            [CompletionResult]::new('--on-zombie', '--on-zombie', [CompletionResultType]::ParameterName, 'What to do about a zombie [default: take]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N where it would be 6 or 7')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N where it would be 6 or 7')
            [CompletionResult]::new('--on-lost', '--on-lost', [CompletionResultType]::ParameterName, 'What to do with CMD if the hold is lost while it runs')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Do not wait; the default')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Do not wait; the default')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Take it from a living holder, or from those who wait for it; asks first')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Take it from a living holder, or from those who wait for it; asks first')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--close', '--close', [CompletionResultType]::ParameterName, 'Do not let CMD inherit the lock: if onehold is killed, only CMD''s pid tells that it runs')
            [CompletionResult]::new('--exec', '--exec', [CompletionResultType]::ParameterName, 'Become CMD instead of waiting for it; the record is left behind as finished')
            [CompletionResult]::new('--reentrant', '--reentrant', [CompletionResultType]::ParameterName, 'Inside this very hold already: just run CMD')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;acquire' {
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'End the hold this long after its last renewal, whatever happens to its process')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has')
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Why, for those who find it held; at most 1 KiB')
            [CompletionResult]::new('--message', '--message', [CompletionResultType]::ParameterName, 'Why, for those who find it held; at most 1 KiB')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]')
            [CompletionResult]::new('--on-zombie', '--on-zombie', [CompletionResultType]::ParameterName, 'What to do about a zombie [default: take]')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with N where it would be 6 or 7')
            [CompletionResult]::new('--conflict-exit-code', '--conflict-exit-code', [CompletionResultType]::ParameterName, 'Exit with N where it would be 6 or 7')
            [CompletionResult]::new('--pid', '--pid', [CompletionResultType]::ParameterName, 'The process that the hold follows [default: the calling script]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Do not wait; the default')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Do not wait; the default')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Take it from a living holder, or from those who wait for it; asks first')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Take it from a living holder, or from those who wait for it; asks first')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;release' {
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'The number of the hold; only that one is meant')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'The owner it was acquired with')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'Whoever''s it is: `break` for that name')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Whoever''s it is: `break` for that name')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;renew' {
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'The number of the hold; only that one is meant')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'The owner it was acquired with')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'A new time to live, from now on [default: as before]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;check' {
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'The number of a hold, for `mine` of the JSON object')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Who asks, for `mine` of the JSON object; a section above or a task below that this owner holds does not count')
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;list' {
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;cleanup' {
            [CompletionResult]::new('--max-age', '--max-age', [CompletionResultType]::ParameterName, 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Only tell what would be removed')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;break' {
            [CompletionResult]::new('--hold', '--hold', [CompletionResultType]::ParameterName, 'The number of the hold; no other is broken')
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]')
            [CompletionResult]::new('--format', '--format', [CompletionResultType]::ParameterName, 'How lock files are written, for the programs that look at them')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Answer every question with yes')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print exactly one JSON object, also on failure')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing but errors; the exit code tells')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Say more: the store, the evidence, every process')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            break
        }
        'onehold;help' {
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Hold a lock while a command runs')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Hold a lock on behalf of a process, or for a time; print the number of the hold')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Give a hold back; that it is free already is a success')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease, or refresh the age of another detached hold')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Tell who holds a lock, and whether that is true; the exit code is the answer')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List all locks of the store, with verdicts')
            [CompletionResult]::new('cleanup', 'cleanup', [CompletionResultType]::ParameterValue, 'Remove every zombie of the store, and nothing else')
            [CompletionResult]::new('break', 'break', [CompletionResultType]::ParameterValue, 'Take a lock away from its holder, on your word')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'onehold;help;run' {
            break
        }
        'onehold;help;acquire' {
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
        'onehold;help;list' {
            break
        }
        'onehold;help;cleanup' {
            break
        }
        'onehold;help;break' {
            break
        }
        'onehold;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
