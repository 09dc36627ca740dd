# Completion of onehold for bash. Names, owners, hold numbers and profiles come from onehold itself.

_onehold() {
    local -a words=()
    local -i i last=-1 cword=0
    local rest=$COMP_LINE word line prefix
    # bash also breaks words at `=` and `:`. A part that no blank precedes belongs to the word before.
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        if ((last >= 0)) && [[ $rest != [[:blank:]]* ]]; then
            words[last]+=$word
        else
            rest=${rest#"${rest%%[![:blank:]]*}"}
            words[++last]=$word
        fi
        rest=${rest#"$word"}
        ((i != COMP_CWORD)) || cword=last
        if [[ $word == -- ]] && ((i < COMP_CWORD)); then
            _onehold_command $((i + 1)) "$2"
            return
        fi
    done
    word=${words[cword]}
    # Only the part behind the last break is replaced.
    prefix=${word%"${word##*[=:]}"}
    COMPREPLY=()
    while IFS= read -r line; do
        line=${line%%$'\t'*}
        COMPREPLY+=("$(printf %q "${line#"$prefix"}")")
    done < <("$1" complete "$cword" "${words[@]:0:cword+1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

# The completion of the command behind `--`.
_onehold_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$2")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
    fi
}

complete -o nosort -F _onehold onehold 2>/dev/null || complete -F _onehold onehold
