//! Stores and processes of other users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{Place, copy_program};

#[test]
#[ignore = "needs root: another user"]
fn another_users_process_in_a_foreign_record_is_alive_though_we_may_not_signal_it() {
    let place = Place::new();
    let host = hostname::get().unwrap().into_string().unwrap();
    // Their own programs would take EPERM for death, and the lock.
    let script = format!(
        "chmod 777 .; mkdir -m 777 store; sleep 1000 >/dev/null 2>&1 & pid=$!
        now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
        cat > store/a.lock <<END
{{\"job_id\": \"a\", \"process_id\": $pid, \"hostname\": \"{host}\", \"acquired_at\": \"$now\"}}
END
        printf 'pid: %s\nsession_id: \"s\"\nstarted_at: \"%s\"\nlock_version: 1\n' $pid $now > store/b.lock
        cat > store/c.lock <<END
{{\"pid\": $pid, \"session_id\": \"s\", \"hostname\": \"{host}\", \"acquired_at\": \"$now\"}}
END
        echo $pid > store/d.pid.lock
        setpriv --reuid 4321 --regid 4321 --clear-groups sh -c \"
            kill -0 $pid 2>/dev/null && exit 9
            for name in a b c d.pid; do
                onehold run \\$name -- true 2>/dev/null
                echo \\$name \\$?
                onehold check --json \\$name | grep -o '\\\"reason\\\":\\\"[a-z]*\\\"'
            done\"
        kill $pid"
    );
    let said = place.says("env", &script);
    for name in ["a", "b", "c", "d.pid"] {
        assert!(
            said.contains(&format!("{name} 6\n\"reason\":\"alive\"")),
            "{said}"
        );
    }
}

#[test]
#[ignore = "needs root: another user"]
fn another_users_process_is_alive_though_we_may_not_signal_it() {
    let place = Place::new();
    let script = "chmod 777 .; mkdir -m 777 store; sleep 1000 >/dev/null 2>&1 & pid=$!
        onehold acquire x --pid $pid >/dev/null 2>&1
        setpriv --reuid 4321 --regid 4321 --clear-groups sh -c \"
            kill -0 $pid 2>/dev/null && exit 9
            onehold check --json x || test \\$? = 6\"
        kill $pid";
    let said = place.says("env", script);
    assert!(
        said.contains("\"proof\":\"same-process\",\"evidence\""),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: hidepid"]
fn a_process_that_proc_hides_is_not_dead() {
    let place = Place::new();
    let script = "chmod 777 .; mkdir -m 777 store; sleep 1000 >/dev/null 2>&1 & pid=$!
        onehold acquire x --pid $pid >/dev/null 2>&1
        mount -o remount,hidepid=2 /proc
        setpriv --reuid 4321 --regid 4321 --clear-groups sh -c \"
            test ! -e /proc/$pid
            onehold check --json x || test \\$? = 6
            onehold cleanup\"
        kill $pid";
    let said = place.says(
        "unshare --mount --pid --fork --mount-proc --propagation private",
        script,
    );
    assert!(
        said.contains("\"reason\":\"alive\",\"proof\":\"same-pid\""),
        "{said}"
    );
    assert!(place.path("store/x.lock").exists());
}

#[test]
#[ignore = "needs root: a sticky directory and two users"]
fn another_users_record_in_a_sticky_directory_is_judged_and_not_replaced() {
    let place = Place::new();
    let script = "mkdir -m 1777 shared; chmod 755 .
        sleep 1000 >/dev/null 2>&1 & pid=$!
        onehold acquire $PWD/shared/x --pid $pid >/dev/null 2>&1
        other='setpriv --reuid 4321 --regid 4321 --clear-groups env HOME=/nonexistent'
        $other onehold run $PWD/shared/x -- true 2>&1 || echo $?
        kill -KILL $pid; wait $pid || true
        $other onehold check -q $PWD/shared/x || echo $?
        $other onehold run $PWD/shared/x -- true 2>&1 || echo $?
        $other onehold break --yes $PWD/shared/x 2>&1 || echo $?
        ls -A shared";
    let said = place.says("env", script);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("is held by process"), "{said}");
    let numbers: Vec<&&str> = lines.iter().filter(|line| line.len() <= 3).collect();
    assert_eq!(numbers, [&"6", &"5", &"125", &"1", &"x"], "{said}");
    assert!(said.contains("cannot take over `"), "{said}");
    assert!(said.contains("operation not permitted"), "{said}");
    assert!(place.path("shared/x").exists());
}

#[test]
#[ignore = "needs root: a sticky directory and two users"]
fn another_users_files_of_temporary_names_in_a_sticky_directory_are_in_nobodys_way() {
    let place = Place::new();
    // What a takeover of `x.lock`, and what is set aside from it, would be called.
    let script = r#"
        user() { uid=$1; shift; setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
        mine() { user 4321 env HOME=/nonexistent ONEHOLD_DIR=$PWD/mine onehold "$@"; }
        mkdir -m 1777 shared; mkdir -m 777 mine; chmod 755 .
        lock=$PWD/shared/x.lock
        old='{"job_id": "x", "process_id": 1, "hostname": "h", "acquired_at": "2026-01-01T00:00:00Z"}'
        for name in 88586aacfecf8b04 32e092e033f419c5; do
            for what in "echo '$old' >F" ': >F' 'umask 077; echo >F' 'mkdir F' 'mkfifo F' 'ln -s / F'; do
                for state in free dead; do
                    planted=$PWD/shared/.onehold.$name
                    user 4322 sh -c "$(echo "$what" | sed "s,F$,$planted,")"
                    if [ $state = dead ]; then
                        sleep 1000 >/dev/null 2>&1 & pid=$!
                        mine acquire -q $lock --pid $pid >/dev/null || echo "acquire: $?"
                        kill -KILL $pid; wait $pid 2>/dev/null || true
                    fi
                    mine run -q $lock -- true || echo "$what $name $state: $?"
                    ls -d $planted >/dev/null
                    rm -rf $planted
                done
            done
        done
        ls -A shared"#;
    let said = place.says("env", script);
    let strange: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains("took over"))
        .collect();
    assert!(strange.is_empty(), "{said}");
}

#[test]
#[ignore = "needs root: another user's record"]
fn another_users_dead_task_does_not_keep_a_section_for_good() {
    let place = Place::new();
    let said = place.says(
        "env",
        "mkdir store
        onehold run s/old -- sh -c 'kill -KILL $PPID; sleep 0.1' || true
        until test \"$(onehold check --json s/old | grep -o '\"reason\":\"dead\"')\"; do sleep 0.01; done
        chown -R nobody store; chown root store/s.d; chmod 755 store/s.d
        cp store/s.d/old.lock keep
        setpriv --reuid nobody --clear-groups onehold run s -- echo mine
        cmp keep store/s.d/old.lock
        for task in $(seq 300); do cp keep store/s.d/$task.lock; done
        timeout -s KILL 30 setpriv --reuid nobody --clear-groups onehold run s -- echo mine too",
    );
    assert!(
        said.contains("mine\n") && said.contains("mine too\n"),
        "{said}"
    );
}

/// A program that runs as root whoever executes it, and takes no signals of that user.
fn set_uid_setpriv(place: &Place) {
    let file = place.path("root-setpriv");
    copy_program(Path::new("/usr/bin/setpriv"), &file);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
}

/// Runs the rest as another user, in a store of that user.
const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

#[test]
#[ignore = "needs root: a set-uid program"]
fn set_uid_command_that_may_not_be_signaled_is_named_and_waited_for() {
    let place = Place::new();
    set_uid_setpriv(&place);
    fs::set_permissions(place.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The trap first: TERM may come as soon as the file is there.
    let script = "echo $$ > pid
        trap 'exit 9' TERM
        ./root-setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ > ready; until test -e go; do sleep 0.05; done' &
        wait";
    fs::write(place.path("work.sh"), script).unwrap();
    let script = format!(
        "{NOBODY} onehold run --kill-after 0.2 x -- sh work.sh & wrapper=$!
        until test -e ready; do sleep 0.01; done
        kill $wrapper
        sleep 1
        {NOBODY} onehold check x || echo check $?
        touch go
        wait $wrapper || echo exit $?"
    );
    let said = place.says("env", &script);
    let root = fs::read_to_string(place.path("ready")).unwrap();
    assert!(
        said.contains(&format!(
            "onehold: warning: cannot signal process {} (sh): operation not permitted; waiting for it to exit\n",
            root.trim()
        )),
        "{said}"
    );
    assert_eq!(said.matches("cannot signal").count(), 1, "{said}");
    assert!(
        said.contains("check 6\n") && said.contains("exit 9\n"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: another user's process"]
fn break_names_what_it_may_not_end_and_leaves_the_lock() {
    let place = Place::new();
    set_uid_setpriv(&place);
    fs::set_permissions(place.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let work = "./root-setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ > ready; exec sleep 1000'";
    fs::write(place.path("work.sh"), format!("{work}\n:")).unwrap();
    for kills_wrapper in [false, true] {
        let _ = fs::remove_file(place.path("ready"));
        let kill = if kills_wrapper {
            "kill -9 $inner; "
        } else {
            ""
        };
        let script = format!(
            "{NOBODY} onehold run --kill-after 0.2 x -- sh work.sh >/dev/null 2>&1 & wrapper=$!
            until test -s ready; do sleep 0.01; done
            inner=$({NOBODY} onehold check --json x | jq .lock.wrapper_pid)
            {kill}
            {NOBODY} onehold break x --yes || echo break $?
            {NOBODY} onehold check x || echo check $?
            {NOBODY} onehold break x --yes --force || echo force $?
            {NOBODY} onehold check x || echo check $?
            kill -9 $(cat ready); wait $wrapper || true"
        );
        let said = place.says("env", &script);
        let root = fs::read_to_string(place.path("ready")).unwrap();
        let expected = format!(
            "onehold: not broken: the work of `x` could not be ended\n  still running: process {} (sleep)\n",
            root.trim()
        );
        assert!(said.contains(&expected), "{expected}\n{said}");
        assert!(
            said.contains("break 1\n") && said.contains("check 6\n"),
            "{said}"
        );
        assert!(said.contains("may still be running"), "{said}");
        assert!(
            !said.contains("force") || said.contains("--force`"),
            "{said}"
        );
        assert!(said.contains("`x` is free"), "{said}");
    }
}

#[test]
#[ignore = "needs root: another user's process"]
fn break_of_another_users_run_names_its_wrapper() {
    let place = Place::new();
    fs::set_permissions(place.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "mkdir -m 1777 store
        onehold run x -- sh -c 'echo $$ > ready; exec sleep 1000' >/dev/null 2>&1 & wrapper=$!
        until test -s ready; do sleep 0.01; done
        {NOBODY} onehold break x --yes || echo break $?
        onehold check x || echo check $?
        onehold break x --yes
        wait $wrapper || echo run $?"
    );
    let said = place.says("env", &script);
    assert!(
        said.contains("(sleep)\n  still running: process ")
            || said.contains("(sh)\n  still running: process "),
        "{said}"
    );
    assert!(said.contains("(onehold)\n"), "{said}");
    assert!(
        said.contains("break 1\n") && said.contains("check 6\n"),
        "{said}"
    );
    assert!(said.contains("run 8\n"), "{said}");
}

#[test]
#[ignore = "needs root: another user's process"]
fn process_out_of_reach_that_keeps_the_kernel_lock_is_said() {
    let place = Place::new();
    set_uid_setpriv(&place);
    fs::set_permissions(place.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Nothing but its descriptor tells that it belongs to the work, and a user cannot see those of root.
    let daemon = "setsid env -i ./root-setpriv --reuid 0 --regid 0 --clear-groups \
                  /bin/sh -c 'echo $$ > ready; exec sleep 1000' &";
    fs::write(
        place.path("work.sh"),
        format!("({daemon})\nexec sleep 1000"),
    )
    .unwrap();
    let script = format!(
        "{NOBODY} onehold run --kill-after 0.2 x -- sh work.sh >/dev/null 2>&1 & wrapper=$!
        until test -s ready; do sleep 0.01; done
        inner=$({NOBODY} onehold check --json x | jq .lock.wrapper_pid)
        kill -9 $inner
        {NOBODY} onehold break x --yes || echo break $?
        {NOBODY} onehold check x || echo check $?
        kill -9 $(cat ready); wait $wrapper || true
        {NOBODY} onehold run x -- echo mine"
    );
    let said = place.says("env", &script);
    assert!(
        said.contains("  still running: a process that keeps the lock file open and cannot be seen from here\n"),
        "{said}"
    );
    assert!(
        said.contains("break 1\n") && said.contains("check 6\n"),
        "{said}"
    );
    assert!(
        said.ends_with("mine\n") || said.contains("\nmine\n"),
        "{said}"
    );
}

#[test]
#[ignore = "needs strace: apt install strace"]
fn dead_child_that_cannot_be_removed_does_not_fail_the_hold_of_its_parent() {
    let place = Place::new();
    let script = "onehold run sec/t -- sh -c 'kill -KILL $PPID; sleep 0.1' || true
        until test \"$(onehold check --json sec/t | grep -o '\"reason\":\"dead\"')\"; do sleep 0.01; done
        strace -f -o trace -e inject=unlink,unlinkat:error=EIO onehold acquire sec --ttl 1h
        onehold check sec || echo $?";
    let said = place.says("env", script);
    assert!(said.contains("\n6\n"), "{said}");
}

/// Below an /etc of its own.
#[test]
#[ignore = "needs root: overlayfs"]
fn configuration_of_the_machine_is_that_of_all_its_users() {
    let place = Place::new();
    let script = r#"chmod 755 .; room=$PWD/room; mkdir "$room"
        mount -t tmpfs none "$room"; mkdir "$room/upper" "$room/work"; chmod 755 "$room"
        mount -t overlay -o lowerdir=/etc,upperdir="$room/upper",workdir="$room/work" none /etc
        mkdir -p /etc/onehold; install -d -m 1777 "$room/locks"
        file=/etc/onehold/config.toml
        printf '[defaults]\ndir = "%s/locks"\nwait = "1ms"\n' "$room" >$file
        alice() { setpriv --reuid=4711 --regid=4711 --clear-groups env HOME=/nonexistent onehold "$@"; }
        unset ONEHOLD_DIR
        onehold run -q x -- sh -c 'echo; until [ -e done ]; do sleep 0.01; done' | {
            read -r _; alice check -q x || echo "held: $?"; touch done
        }
        alice config | sed "s,$room,ROOM,"
        onehold config --json | grep -o '"machine_file":"[^"]*"'
        chown 4711 $file; alice check x || echo "his: $?"
        chown 0 $file; chmod g+w $file; alice check x || echo "group: $?"
        chmod 644 $file; echo wait >>$file; alice check x || echo "broken: $?"
    "#;
    let said = place.says("unshare --mount", script);
    for expected in [
        "held: 6\n",
        "\ndir = \"ROOM/locks\"  # line 2, [defaults] of the machine\n",
        "\"machine_file\":\"/etc/onehold/config.toml\"\n",
        "his: 1\n",
        "group: 1\n",
        "config.toml`: it must be owned by root and not writable by others\n",
        "broken: 1\n",
        "config.toml`: line 4: not TOML: ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
