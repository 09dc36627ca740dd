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

complete -c onehold -n "__fish_onehold_needs_command" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_needs_command" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_needs_command" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_needs_command" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_needs_command" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_needs_command" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_needs_command" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_needs_command" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "run" -d 'Hold a lock while a command runs'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "acquire" -d 'Hold a lock on behalf of a process, or for a time; print the number of the hold'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "release" -d 'Give a hold back; that it is free already is a success'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "renew" -d 'Extend a lease, or refresh the age of another detached hold'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "check" -d 'Tell who holds a lock, and whether that is true; the exit code is the answer'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "list" -d 'List all locks of the store, with verdicts'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "cleanup" -d 'Remove every zombie of the store, and nothing else'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "break" -d 'Take a lock away from its holder, on your word'
complete -c onehold -n "__fish_onehold_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s w -l wait -d 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l ttl -d 'End the hold this long after its last renewal, whatever happens to its process' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l owner -d 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -s m -l message -d 'Why, for those who find it held; at most 1 KiB' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l max-age -d 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l on-zombie -d 'What to do about a zombie [default: take]' -r -f -a "take\t'Take it over, and say so'
ask\t'Ask on the terminal; without one, refuse unless --yes is given'
fail\t'Refuse'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N where it would be 6 or 7' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l on-lost -d 'What to do with CMD if the hold is lost while it runs' -r -f -a "term\t'End CMD: TERM, after 10 s KILL; exit 8'
warn\t'Say so, and let it run'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand run" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand run" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand run" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand run" -s n -l no-wait -d 'Do not wait; the default'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s f -l force -d 'Take it from a living holder, or from those who wait for it; asks first'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s y -l yes -d 'Answer every question with yes'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l close -d 'Do not let CMD inherit the lock: if onehold is killed, only CMD\'s pid tells that it runs'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l exec -d 'Become CMD instead of waiting for it; the record is left behind as finished'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l reentrant -d 'Inside this very hold already: just run CMD'
complete -c onehold -n "__fish_onehold_using_subcommand run" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand run" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s w -l wait -d 'How long to wait for it: `30` or `0.5` (seconds), `30s`, `5m`, `2h`, `1d` or `forever` [default: not at all]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l ttl -d 'End the hold this long after its last renewal, whatever happens to its process' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l owner -d 'A label of who holds, a session or a runner; whoever gives the same may release it, and takes part in it: choose one that nobody else has' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s m -l message -d 'Why, for those who find it held; at most 1 KiB' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l max-age -d 'From which age on the hold is overdue, or, where nobody can tell whether its holder lives, a zombie [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l on-zombie -d 'What to do about a zombie [default: take]' -r -f -a "take\t'Take it over, and say so'
ask\t'Ask on the terminal; without one, refuse unless --yes is given'
fail\t'Refuse'"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N where it would be 6 or 7' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l pid -d 'The process that the hold follows [default: the calling script]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s n -l no-wait -d 'Do not wait; the default'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s f -l force -d 'Take it from a living holder, or from those who wait for it; asks first'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s y -l yes -d 'Answer every question with yes'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand acquire" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand release" -l hold -d 'The number of the hold; only that one is meant' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l owner -d 'The owner it was acquired with' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand release" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand release" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand release" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand release" -s f -l force -d 'Whoever\'s it is: `break` for that name'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s y -l yes -d 'Answer every question with yes'
complete -c onehold -n "__fish_onehold_using_subcommand release" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand release" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l hold -d 'The number of the hold; only that one is meant' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l owner -d 'The owner it was acquired with' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l ttl -d 'A new time to live, from now on [default: as before]' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand renew" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand renew" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand check" -l hold -d 'The number of a hold, for `mine` of the JSON object' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l owner -d 'Who asks, for `mine` of the JSON object; a section above or a task below that this owner holds does not count' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l max-age -d 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand check" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand check" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand check" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand check" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand check" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand list" -l max-age -d 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand list" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand list" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand list" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand list" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand list" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l max-age -d 'From which age on a hold that does not say so itself is overdue or a zombie [default: 24h]' -r
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l dry-run -d 'Only tell what would be removed'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand cleanup" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand break" -l hold -d 'The number of the hold; no other is broken' -r
complete -c onehold -n "__fish_onehold_using_subcommand break" -l dir -d 'The store: a directory of locks, made if need be [default: $ONEHOLD_DIR, else ~/.local/state/onehold]' -r -F
complete -c onehold -n "__fish_onehold_using_subcommand break" -l profile -d 'Defaults for options, directory and format, for the locks of another program: `prodigy`, `sprint`, `memory`, `tasks`, or one of your own [default: $ONEHOLD_PROFILE]' -r
complete -c onehold -n "__fish_onehold_using_subcommand break" -l format -d 'How lock files are written, for the programs that look at them' -r -f -a "native\t''
prodigy\t''
sprint\t''
memory\t''
pid\t''"
complete -c onehold -n "__fish_onehold_using_subcommand break" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c onehold -n "__fish_onehold_using_subcommand break" -s y -l yes -d 'Answer every question with yes'
complete -c onehold -n "__fish_onehold_using_subcommand break" -l json -d 'Print exactly one JSON object, also on failure'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s q -l quiet -d 'Say nothing but errors; the exit code tells'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s v -l verbose -d 'Say more: the store, the evidence, every process'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onehold -n "__fish_onehold_using_subcommand break" -s V -l version -d 'Print version'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "run" -d 'Hold a lock while a command runs'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "acquire" -d 'Hold a lock on behalf of a process, or for a time; print the number of the hold'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "release" -d 'Give a hold back; that it is free already is a success'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "renew" -d 'Extend a lease, or refresh the age of another detached hold'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "check" -d 'Tell who holds a lock, and whether that is true; the exit code is the answer'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "list" -d 'List all locks of the store, with verdicts'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "cleanup" -d 'Remove every zombie of the store, and nothing else'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "break" -d 'Take a lock away from its holder, on your word'
complete -c onehold -n "__fish_onehold_using_subcommand help; and not __fish_seen_subcommand_from run acquire release renew check list cleanup break help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
