# Completion of onehold for fish. Names, owners, hold numbers and profiles come from onehold itself.

function __onehold_candidates
    set -l before (commandline --current-process --tokenize --cut-at-cursor)
    set -l word (commandline --current-token --cut-at-cursor)
    if set -l dashes (contains --index -- -- $before)
        # The completion of the command behind `--`.
        set --erase before[1..$dashes]
        complete --do-complete (string join -- ' ' (string escape -- $before) "$word")
        return
    end
    $before[1] complete (count $before) $before "$word" 2>/dev/null
end

complete --command onehold --no-files --keep-order --arguments '(__onehold_candidates)'
