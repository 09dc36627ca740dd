# The scene of man/onehold.svg, which tests/it/docs/picture.rs plays and draws: bash, in an empty home directory.
# What bash itself says, on stderr, is not shown: that a job was killed.

# Shows a line as if it had been typed, and runs it.
enter() {
    printf '$ %s\n' "$1"
    eval "$1" 2>&1
}

# Each job has a process group, as in an interactive shell.
set -m
cat >backup.sh <<'END'
#!/bin/sh
tar --create --file=full.tar --files-from=changed
echo 'backup complete'
END
chmod +x backup.sh
# A list that does not end, so that the first backup stays at work.
mkfifo changed

enter "onehold run -m 'nightly full' backup -- ./backup.sh &"
# tar has opened the list. Then it sleeps until there is a line.
exec 3>changed
while onehold check -v backup | grep -q running; do sleep 0.05; done
enter 'onehold run backup -- ./backup.sh'
enter 'onehold check -v backup'
enter 'kill -9 %1'
until onehold check -q backup || [ $? = 5 ]; do sleep 0.05; done
# The next backup ends.
rm changed
echo backup.sh >changed
enter 'onehold run backup -- ./backup.sh'
