//! Namespaces, containers, and the identity of host and boot.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Place;

#[test]
#[ignore = "needs root: pid namespaces"]
fn a_holder_in_another_pid_namespace_is_judged_by_its_kernel_lock_or_not_at_all() {
    let place = Place::new();
    let inside = "unshare --pid --fork --mount-proc";
    // Outside looks in: a `run` is known by its lock, dead or alive.
    let said = place.says(
        "env",
        &format!(
            "{inside} onehold run x -- sh -c 'echo > ready; exec sleep 1000' >/dev/null 2>&1 & outer=$!
            until test -e ready; do sleep 0.01; done
            onehold check --json x || test $? = 6
            kill -KILL $(pgrep -P $outer) $outer 2>/dev/null || true
            wait || true
            until onehold check -q x; test $? = 5; do sleep 0.01; done
            onehold check --json x || true
            onehold run x -- echo mine"
        ),
    );
    assert!(said.contains("\"proof\":\"kernel-lock\""), "{said}");
    // Its namespace is known to be gone once no process is left that is still ending, which tells none.
    let proofs = ["kernel-lock-gone", "namespace-gone"];
    let is_proved = proofs.map(|proof| said.contains(&format!("\"proof\":\"{proof}\"")));
    assert!(is_proved.contains(&true), "{said}");
    assert!(said.contains("mine\n"), "{said}");
    // A detached hold is not, as long as anything lives there.
    let script = "onehold acquire y --pid $$ >/dev/null; echo > acquired; exec sleep 1000";
    let mut container = place.command(inside, script).spawn().unwrap();
    wait_for(&place.path("acquired"));
    assert_eq!(place.reason("env", "y"), "unverified");
    // `unshare` is killed alone; its child is the first process of the namespace.
    let first = place.says("env", &format!("pgrep -P {}", container.id()));
    place.says("env", &format!("kill -KILL {first}"));
    container.wait().unwrap();
    assert_eq!(place.reason("env", "y"), "namespace-gone");
    // Only root sees that.
    place.says("env", "chmod -R a+rX store");
    let user = "setpriv --reuid 1234 --clear-groups";
    assert_eq!(place.reason(user, "y"), "unverified");
    let said = place.says("env", "onehold run y -- echo mine");
    assert!(
        said.contains("has ended with its container") && said.contains("mine\n"),
        "{said}"
    );
    // Inside looks out.
    place.says("env", "setsid sleep 1000 >/dev/null 2>&1 & onehold acquire z --pid $! >/dev/null 2>&1; echo $! > outside");
    assert_eq!(place.reason(inside, "z"), "unverified");
    assert_eq!(place.reason("env", "z"), "alive");
    // The same, and /proc is still the outer one's.
    assert_eq!(place.reason("unshare --pid --fork", "z"), "unverified");
    place.says("env", "kill $(cat outside)");
}

fn wait_for(file: &Path) {
    let started = Instant::now();
    while !file.exists() {
        assert!(
            started.elapsed() < Duration::from_mins(1),
            "{}",
            file.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "needs root: pid namespaces"]
fn a_restarted_instance_finds_the_holds_of_its_earlier_incarnation_dead() {
    let place = Place::new();
    let inside = "env ONEHOLD_INSTANCE=db-0 unshare --pid --fork --mount-proc";
    let taken = [
        "onehold acquire x --pid $$ >/dev/null",
        "onehold acquire x --ttl 1h >/dev/null",
        "onehold run --close x -- sleep 1000 & until onehold check x | grep -q sleep; do sleep 0.01; done; kill -KILL -1 || true",
    ];
    for script in taken {
        let _ = place.sh(inside, script);
        assert_eq!(place.reason(inside, "x"), "instance-restarted", "{script}");
        // Under another name it is not known to be the same.
        let other = "env ONEHOLD_INSTANCE=db-1 unshare --pid --fork --mount-proc";
        assert_ne!(place.reason(other, "x"), "instance-restarted", "{script}");
        let said = place.says(inside, "onehold run x -- echo mine");
        assert!(
            said.contains("ended with an earlier incarnation of its instance"),
            "{said}"
        );
    }
}

#[test]
#[ignore = "needs root: pid namespaces"]
fn two_living_instances_of_one_name_exclude_each_other_by_their_kernel_locks() {
    let place = Place::new();
    let inside = "env ONEHOLD_INSTANCE=db-0 unshare --pid --fork --mount-proc";
    let script =
        "exec onehold run x -- sh -c 'echo > held; until test -e end; do sleep 0.01; done'";
    let mut first = place.command(inside, script).spawn().unwrap();
    wait_for(&place.path("held"));
    assert_eq!(place.reason(inside, "x"), "alive");
    let refused = place.sh(inside, "onehold run x -- echo mine");
    assert_eq!(refused.status.code(), Some(6));
    fs::write(place.path("end"), "").unwrap();
    assert!(first.wait().unwrap().success());
    // The same incarnation keeps what it has.
    let script = "onehold acquire y --pid 1 >/dev/null; onehold check --json y || true";
    assert!(place.says(inside, script).contains("\"reason\":\"alive\""));
}

#[test]
#[ignore = "needs root: pid namespaces"]
fn a_waiter_in_another_pid_namespace_has_its_place_and_is_served() {
    let place = Place::new();
    let script = "onehold run x -- sh -c 'echo > held; until test -e open; do sleep 0.01; done' &
        until test -e held; do sleep 0.01; done
        unshare --pid --fork --mount-proc onehold run -q -w 1m x -- sh -c 'echo inside >> served' &
        until onehold check --json x | grep -q '\"position\":1'; do sleep 0.01; done
        onehold run -q -w 1m x -- sh -c 'echo outside >> served' &
        until onehold check --json x | grep -q '\"position\":2'; do sleep 0.01; done
        touch open; wait; cat served
        rm held open served
        unshare --pid --fork --mount-proc onehold run x -- sh -c 'echo > held; until test -e open; do sleep 0.01; done' &
        until test -e held; do sleep 0.01; done
        onehold run -q -w 1m x -- sh -c 'echo outside >> served' &
        until onehold check --json x | grep -q '\"position\":1'; do sleep 0.01; done
        touch open; wait; cat served";
    let said = place.says("env", script);
    assert_eq!(said, "inside\noutside\noutside\n");
}

#[test]
#[ignore = "needs root: time namespaces"]
fn a_shifted_boot_clock_does_not_make_another_process_of_the_holder() {
    let place = Place::new();
    let shifted = "unshare --time --fork --boottime 100000";
    place.says("env", "setsid sleep 1000 >/dev/null 2>&1 & onehold acquire x --pid $! >/dev/null 2>&1; echo $! > outside; onehold acquire lease --ttl 1h >/dev/null 2>&1");
    assert_eq!(place.reason(shifted, "x"), "alive");
    assert_eq!(place.reason(shifted, "lease"), "lease");
    place.says(
        shifted,
        "onehold acquire y --pid $(cat outside) >/dev/null 2>&1",
    );
    assert_eq!(place.reason("env", "y"), "alive");
    place.says("env", "kill $(cat outside)");
}

#[test]
#[ignore = "needs root: UTS namespaces"]
fn a_host_name_that_changes_under_a_hold_proves_nothing() {
    let place = Place::new();
    place.says("env", "setsid sleep 1000 >/dev/null 2>&1 & onehold acquire x --pid $! >/dev/null 2>&1; echo $! > outside");
    let renamed = "hostname elsewhere; onehold check --json x || test $? = 6";
    let said = place.says("unshare --uts", renamed);
    assert!(said.contains("\"reason\":\"alive\""), "{said}");
    place.says("env", "kill $(cat outside)");
    let said = place.says(
        "unshare --uts",
        "hostname elsewhere; onehold check --json x || test $? = 5",
    );
    assert!(said.contains("\"reason\":\"dead\""), "{said}");
}

#[test]
#[ignore = "needs root: a mount over the boot id"]
fn another_boot_id_where_it_is_masked_is_no_reboot() {
    let place = Place::new();
    place.says("env", "setsid sleep 1000 >/dev/null 2>&1 & onehold acquire x --pid $! >/dev/null 2>&1; echo $! > outside");
    let masked = "echo 00000000-0000-4000-8000-000000000000 > id
        mount --bind id /proc/sys/kernel/random/boot_id
        onehold check --json x || test $? = 6";
    let said = place.says("unshare --mount --propagation private", masked);
    assert!(said.contains("\"reason\":\"unverified\""), "{said}");
    place.says("env", "kill $(cat outside)");
}

#[test]
#[ignore = "needs root: a pid namespace"]
fn the_pid_of_another_namespace_is_not_passed_off_as_one_of_ours() {
    let place = Place::new();
    let script = "unshare --pid --fork --mount-proc onehold run x -- \
            sh -c 'echo > held; until test -e end; do sleep 0.01; done' >/dev/null 2>&1 &
        until test -e held; do sleep 0.01; done
        onehold check x || echo $?
        onehold run --force --yes x -- echo mine 2>&1
        touch end; wait";
    let said = place.says("env", script);
    assert!(
        said.contains("alive: holds the kernel lock; its PID cannot be checked here"),
        "{said}"
    );
    assert!(
        said.contains("onehold: warning: cannot check from here whether process "),
        "{said}"
    );
    assert!(said.contains("mine\n"), "{said}");
}

#[test]
#[ignore = "needs root: pid namespaces"]
fn a_contender_in_another_pid_namespace_does_not_get_what_is_held_outside() {
    let place = Place::new();
    let said = place.says(
        "env",
        "onehold run x -- sh -c 'echo > held; until test -e open; do sleep 0.01; done' &
        until test -e held; do sleep 0.01; done
        unshare --pid --fork --mount-proc onehold run x -- echo never >/dev/null 2>&1 || echo $?
        # A shell ignores it in what it starts in the background.
        env --default-signal=INT unshare --pid --fork --mount-proc onehold run -w 1m x -- echo waited &
        sleep 0.2; touch open; wait",
    );
    assert!(said.starts_with("6\nwaited\n"), "{said}");
}

#[test]
#[ignore = "needs root: a PID namespace"]
fn ctrl_c_ends_a_wait_of_the_first_process_of_a_container() {
    let place = Place::new();
    // Such a process survives a signal that it does not catch.
    let script = "onehold acquire x --ttl 1h 2>/dev/null
        # A shell ignores it in what it starts in the background.
        env --default-signal=INT unshare --pid --fork --mount-proc onehold run -w 1m x -- echo got & outer=$!
        caught() { grep -q '^SigCgt:.*[2367abef]$' /proc/$inner/status; }
        for i in $(seq 1000); do
            if inner=$(pgrep -P $outer) && caught; then break; fi
            sleep 0.01
        done
        kill -INT $inner
        (sleep 20; kill -KILL $inner) >/dev/null 2>&1 &
        wait $outer || echo exit $?
        onehold break x --yes 2>/dev/null";
    let said = place.says("env", script);
    assert!(
        said.contains("canceled; the command was not started"),
        "{said}"
    );
    assert!(said.contains("exit 130") && !said.contains("got"), "{said}");
}

#[test]
#[ignore = "needs root: a PID namespace"]
fn first_process_of_a_container_reaps_orphans_and_returns_the_code_of_its_command() {
    let place = Place::new();
    // Each orphan ends at once, and would be a zombie until the first process ends.
    let script = "env --default-signal unshare --pid --fork --mount-proc onehold run x -- sh -c '
            for i in 1 2 3 4 5 6 7 8; do (true &); done
            sleep 0.3; ps -o stat= --ppid 1 | grep -c Z; exit 7' || echo exit $?
        onehold list";
    let said = place.says("env", script);
    assert!(said.starts_with("0\nexit 7\n"), "{said}");
    assert!(said.contains("0 locks"), "{said}");
}

#[test]
#[ignore = "needs root: a PID namespace"]
fn term_ends_a_wait_of_the_first_process_of_a_container_within_a_second_and_its_ticket() {
    let place = Place::new();
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let script = format!(
            "onehold acquire x --ttl 1h 2>/dev/null
            env --default-signal unshare --pid --fork --mount-proc onehold run -w 1m x -- echo got & outer=$!
            waits() {{ onehold check --json x | jq -e '.lock.waiters | length == 1' >/dev/null; }}
            for i in $(seq 1000); do
                if inner=$(pgrep -P $outer) && waits; then break; fi
                sleep 0.01
            done
            sleep 0.1
            kill -{signal} $inner; before=$(date +%s%N)
            (sleep 20; kill -KILL $inner) >/dev/null 2>&1 &
            wait $outer || echo exit $?
            echo took $((($(date +%s%N) - before) / 1000000000)) s
            onehold check --json x | jq '.lock.waiters | length'
            onehold break x --yes 2>/dev/null"
        );
        let said = place.says("env", &script);
        assert!(
            said.contains(&format!("exit {code}\ntook 0 s\n0\n")),
            "{said}"
        );
        assert!(!said.contains("got"), "{said}");
    }
}

#[test]
#[ignore = "needs root: a PID namespace"]
fn break_from_outside_ends_the_work_of_a_container() {
    let place = Place::new();
    let script = "env --default-signal unshare --pid --fork --mount-proc onehold run x -- \
            sh -c 'setsid sleep 1000 & sleep 1000; :' & outer=$!
        until onehold check --json x | jq -e '.lock.pid != null' >/dev/null; do sleep 0.01; done
        onehold break x --yes
        onehold check x
        wait $outer || echo exit $?";
    let said = place.says("env", script);
    assert!(
        said.contains("broke the hold on `x`") && said.contains("`x` is free"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: a mount namespace"]
fn without_proc_locks_are_held_released_and_broken() {
    let place = Place::new();
    let script = "
        umount -l /proc
        onehold run x -- echo run
        onehold acquire y --ttl 1h >/dev/null 2>&1
        onehold check -q y || echo check $?
        onehold run y -- echo never 2>/dev/null || echo run $?
        onehold break -q --yes y && onehold check -q y && echo broke
        onehold run z -- sh -c 'echo > at-work; until test -e end; do sleep 0.01; done' &
        until test -e at-work; do sleep 0.01; done
        onehold run z -- echo never 2>/dev/null || echo run $?
        onehold run -q -w 1m z -- echo waited &
        touch end; wait
        onehold list -q";
    let said = place.says("unshare --mount --propagation private", script);
    assert_eq!(said, "run\ncheck 6\nrun 6\nbroke\nrun 6\nwaited\n");
}

#[test]
#[ignore = "needs root: namespaces"]
fn without_a_proc_of_its_own_a_wrapper_ends_all_of_its_work_before_the_lock_is_free() {
    // The outer /proc shows other processes under the same numbers.
    let kinds = [
        ("unshare --mount --propagation private", "umount -l /proc"),
        ("unshare --pid --fork", ":"),
    ];
    let orphan = "exec 9>witness; flock 9; echo > locked; exec sleep 1000";
    for (before, prepare) in kinds {
        let place = Place::new();
        fs::write(place.path("orphan.sh"), orphan).unwrap();
        let script = format!(
            "{prepare}
            onehold run --kill-after 0.5 x -- sh -c 'trap \"\" TERM; (setsid sh orphan.sh >/dev/null 2>&1 &); echo > ready; sleep 1000; :' & wrapper=$!
            until test -e ready && test -e locked; do sleep 0.01; done
            kill $wrapper
            onehold run -q -w 1m x -- sh -c 'flock -n witness echo alone || echo beside others'
            wait $wrapper || echo exit $?"
        );
        let said = place.says(before, &script);
        assert!(said.contains("alone\nexit 137\n"), "{before}: {said}");
        let warning = "cannot list what the command has started: /proc is missing or shows another PID namespace";
        assert!(said.contains(warning), "{before}: {said}");
    }
}

#[test]
#[ignore = "needs root: a PID namespace and a bind mount"]
fn first_process_of_a_container_is_not_that_of_another_one() {
    let place = Place::new();
    let script = "
        mkdir -p store elsewhere; mount --bind store elsewhere
        echo 1 > store/job.pid.lock
        container() { unshare --pid --fork --mount-proc \"$@\"; }
        container onehold --dir elsewhere check job.pid || echo $?
        container onehold --dir elsewhere run job.pid -- echo never 2>/dev/null || echo run $?
        container onehold --dir elsewhere run native -- sh -c 'echo > at-work; until test -e end; do sleep 0.01; done' &
        until test -e at-work; do sleep 0.01; done
        container onehold --dir store run native -- echo never 2>/dev/null || echo run $?
        touch end; wait
        container onehold --dir store run native -- echo mine
        umount elsewhere";
    let said = place.says("unshare --mount --propagation private", script);
    assert!(
        said.contains("in another PID namespace (a container)\n6\nrun 6\nrun 6\nmine\n"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: pid namespaces"]
fn parent_outside_of_the_container_is_said_in_words_and_no_default() {
    let place = Place::new();
    fs::write(
        place.path("own.toml"),
        "[defaults]\ndie-with = \"parent\"\n",
    )
    .unwrap();
    let run = "onehold run x -- sh -c 'echo ran $PPID'";
    // The first process of the namespace, what it starts, and what that starts.
    let script = format!(
        "export ONEHOLD_CONFIG=own.toml
        unshare --pid --fork --mount-proc {run}
        unshare --pid --fork --mount-proc sh -c \"{}; :\"
        unshare --pid --fork --mount-proc onehold run --die-with parent x -- echo never || echo $?",
        run.replace('$', "\\$")
    );
    let said = place.says("env", &script);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..3], ["ran 1", "ran 2", "125"], "{said}");
    let expected = "cannot watch the process that started onehold: it is outside of this container";
    assert!(said.contains(expected), "{said}");
    assert!(!said.contains("never"), "{said}");
}
