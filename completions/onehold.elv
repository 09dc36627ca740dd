
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
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand run 'Hold a lock while a command runs'
            cand acquire 'Hold a lock on behalf of a process, or for a time; print the number of the hold'
            cand release 'Give a hold back; that it is free already is a success'
            cand renew 'Extend a lease, or refresh the age of another detached hold'
            cand check 'Tell who holds a lock, and whether that is true; the exit code is the answer'
            cand list 'List all locks of the store, with verdicts'
            cand cleanup 'Remove every zombie of the store, and nothing else'
            cand break 'Take a lock away from its holder, on your word'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'onehold;run'= {
            cand -w 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]'
            cand --wait 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]'
            cand --ttl 'End the hold this long after its last renewal, whatever happens to its process'
            cand --owner 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has'
            cand -m 'Why, for those who find it held; at most 1 KiB'
            cand --message 'Why, for those who find it held; at most 1 KiB'
            cand --max-age 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]'
            cand --on-zombie 'What to do about a zombie [default: take]'
            cand -E 'Exit with N where it would be 6 or 7'
            cand --conflict-exit-code 'Exit with N where it would be 6 or 7'
            cand --on-lost 'What to do with CMD if the hold is lost while it runs'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand -n 'Do not wait; the default'
            cand --no-wait 'Do not wait; the default'
            cand -f 'Take it from a living holder, or from those who wait for it; asks first'
            cand --force 'Take it from a living holder, or from those who wait for it; asks first'
            cand -y 'Answer every question with yes'
            cand --yes 'Answer every question with yes'
            cand --close 'Do not let CMD inherit the lock: if onehold is killed, only CMD''s pid tells that it runs'
            cand --exec 'Become CMD instead of waiting for it; the record is left behind as finished'
            cand --reentrant 'Inside this very hold already: just run CMD'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;acquire'= {
            cand -w 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]'
            cand --wait 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]'
            cand --ttl 'End the hold this long after its last renewal, whatever happens to its process'
            cand --owner 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has'
            cand -m 'Why, for those who find it held; at most 1 KiB'
            cand --message 'Why, for those who find it held; at most 1 KiB'
            cand --max-age 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]'
            cand --on-zombie 'What to do about a zombie [default: take]'
            cand -E 'Exit with N where it would be 6 or 7'
            cand --conflict-exit-code 'Exit with N where it would be 6 or 7'
            cand --pid 'The process that the hold follows [default: the calling script]'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand -n 'Do not wait; the default'
            cand --no-wait 'Do not wait; the default'
            cand -f 'Take it from a living holder, or from those who wait for it; asks first'
            cand --force 'Take it from a living holder, or from those who wait for it; asks first'
            cand -y 'Answer every question with yes'
            cand --yes 'Answer every question with yes'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;release'= {
            cand --hold 'The number of the hold; only that one is meant'
            cand --owner 'The owner it was acquired with'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand -f 'Whoever''s it is: `break` for that name'
            cand --force 'Whoever''s it is: `break` for that name'
            cand -y 'Answer every question with yes'
            cand --yes 'Answer every question with yes'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;renew'= {
            cand --hold 'The number of the hold; only that one is meant'
            cand --owner 'The owner it was acquired with'
            cand --ttl 'A new time to live, from now on [default: as before]'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;check'= {
            cand --hold 'The number of a hold, for `mine` of the JSON object'
            cand --owner 'Who asks, for `mine` of the JSON object; a section above or a task below that this owner holds does not count'
            cand --max-age 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;list'= {
            cand --max-age 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;cleanup'= {
            cand --max-age 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand --dry-run 'Only tell what would be removed'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;break'= {
            cand --hold 'The number of the hold; no other is broken'
            cand --dir 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]'
            cand --profile 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]'
            cand --format 'How lock files are written, for the programs that look at them'
            cand --color 'When to use colour'
            cand -y 'Answer every question with yes'
            cand --yes 'Answer every question with yes'
            cand --json 'Print exactly one JSON object, also on failure'
            cand -q 'Say nothing but errors; the exit code tells'
            cand --quiet 'Say nothing but errors; the exit code tells'
            cand -v 'Say more: the store, the evidence, every process'
            cand --verbose 'Say more: the store, the evidence, every process'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'onehold;help'= {
            cand run 'Hold a lock while a command runs'
            cand acquire 'Hold a lock on behalf of a process, or for a time; print the number of the hold'
            cand release 'Give a hold back; that it is free already is a success'
            cand renew 'Extend a lease, or refresh the age of another detached hold'
            cand check 'Tell who holds a lock, and whether that is true; the exit code is the answer'
            cand list 'List all locks of the store, with verdicts'
            cand cleanup 'Remove every zombie of the store, and nothing else'
            cand break 'Take a lock away from its holder, on your word'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'onehold;help;run'= {
        }
        &'onehold;help;acquire'= {
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
        &'onehold;help;help'= {
        }
    ]
    $completions[$command]
}
