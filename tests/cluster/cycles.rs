use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::cluster::On;
use crate::harness::ring::{FOREVER, Ring, assert_refused_within_50_ms, waits_of};
use crate::harness::{Running, Signal, send, wait_until};
use crate::scene::scenes;

scenes! {
    last_comer_of_a_cycle_is_refused_and_the_others_take_their_locks,
    #[ignore = "is timed, on a machine that does nothing else"]
    last_comer_of_a_cycle_is_refused_within_50_ms,
    of_8_commands_that_begin_to_wait_in_pairs_at_once_one_of_each_pair_is_refused,
    wait_is_refused_only_if_the_other_command_waits_for_nothing_but_its_waiter,
    hold_is_waited_for_that_has_a_time_limit_or_another_slot,
    #[ignore = "needs root: a PID namespace is as another machine"]
    last_comer_from_another_machine_is_refused,
    #[ignore = "needs root: a PID namespace is as another machine"]
    wait_that_may_end_is_not_refused_from_another_machine,
}

fn start<'a>(
    on: &'a On,
    waiters: &'a dyn Fn(&str) -> usize,
    names: &[&'a str],
    waits: &[&str],
) -> Ring<'a> {
    Ring::start(
        &on.env,
        names,
        waits,
        &|_, words| on.onehold(words),
        waiters,
    )
}

const RINGS: [&[&str]; 2] = [&["a", "b"], &["a", "b", "c"]];

fn refused_after(names: &[&str]) -> Duration {
    let on = On::of_scene();
    let waiters = |name: &str| on.waiters(name);
    let mut ring = start(&on, &waiters, names, &waits_of(names));
    ring.assert_last_is_refused();
    assert_eq!(on.left(), [""; 0]);
    ring.took(names.len() - 1)
}

fn last_comer_of_a_cycle_is_refused_and_the_others_take_their_locks() {
    for names in RINGS {
        // Not only once a ticket has lasted that long.
        let took = refused_after(names);
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}

fn last_comer_of_a_cycle_is_refused_within_50_ms() {
    for names in RINGS {
        assert_refused_within_50_ms(&|| refused_after(names));
    }
}

fn of_8_commands_that_begin_to_wait_in_pairs_at_once_one_of_each_pair_is_refused() {
    let on = On::of_scene();
    let waiters = |name: &str| on.waiters(name);
    let pairs = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]];
    let mut rings: Vec<_> = pairs
        .iter()
        .map(|names| start(&on, &waiters, names, &[FOREVER; 2]))
        .collect();
    let mut innocent = Running::start(on.onehold(&["run", "innocent", "--", "sleep", "1"]));
    for ring in &rings {
        ring.go(0);
        ring.go(1);
    }
    for ring in &mut rings {
        let mut codes = ring.codes();
        codes.sort_unstable();
        assert_eq!(codes, [0, 6]);
    }
    assert_eq!(innocent.finish(), 0);
}

fn wait_is_refused_only_if_the_other_command_waits_for_nothing_but_its_waiter() {
    let limited = "onehold run -w 1s NEXT -- true";
    for (row, wait, code) in [
        ("below another shell", format!("sh -c '{FOREVER}; true'"), 6),
        (
            "in the background, beside a command",
            format!("{FOREVER} & until test -e code-b; do sleep 0.01; done; wait"),
            7,
        ),
        (
            "left over, so that its hold has ended",
            format!("({FOREVER} &)"),
            0,
        ),
        ("for a limited time", format!("timeout 60 {FOREVER}"), 7),
        (
            "that gives up before",
            "onehold run -w 500ms NEXT -- true".to_owned(),
            0,
        ),
        ("of no run", "env -u ONEHOLD_HOLDS ".to_owned() + FOREVER, 7),
    ] {
        let on = On::of_scene();
        let waiters = |name: &str| on.waiters(name);
        let mut ring = start(&on, &waiters, &["a", "b"], &[&wait, limited]);
        ring.go_and_wait(0);
        ring.go(1);
        ring.finish();
        assert_eq!(on.env.pid_in("code-b"), code, "{row}: {}", ring.told(1));
    }
}

fn hold_is_waited_for_that_has_a_time_limit_or_another_slot() {
    for (options, has_other, wait, code) in [
        ("--time-limit 60s", false, "", 7),
        ("--slots 2", false, "", 6),
        ("--slots 2", true, "--slots 2", 7),
    ] {
        let on = On::of_scene();
        let until = |file: &str| format!("until test -e {file}; do sleep 0.005; done");
        let script = format!(
            "touch first; {}; {}",
            until("go"),
            FOREVER.replace("NEXT", "a")
        );
        let words = ["run", options, "b", "--", "sh", "-c", &script];
        let words: Vec<&str> = words
            .iter()
            .flat_map(|word| match *word {
                word if word == options => word.split(' ').collect(),
                word => vec![word],
            })
            .collect();
        let mut first = Running::start(on.onehold(&words));
        let other = ["run", "--slots", "2", "b", "--", "sh", "-c", &until("end")];
        let mut other = has_other.then(|| Running::start(on.onehold(&other)));
        let script = format!(
            "touch last; {}; onehold run -w 1s {wait} b -- true; echo $? > code",
            until("go-last")
        );
        let mut last = Running::start(on.onehold(&["run", "a", "--", "sh", "-c", &script]));
        wait_until("they have their locks", || {
            let holds = on.lock("b")["others"].as_array().map_or(0, Vec::len);
            on.env.path("first").exists()
                && on.env.path("last").exists()
                && holds == usize::from(has_other)
        });
        fs::write(on.env.path("go"), "").unwrap();
        wait_until("the first is in the queue", || on.waiters("a") == 1);
        fs::write(on.env.path("go-last"), "").unwrap();
        assert_eq!(last.finish(), 0);
        assert_eq!(on.env.pid_in("code"), code, "{options} {has_other}");
        fs::write(on.env.path("end"), "").unwrap();
        assert_eq!(first.finish(), 0);
        if let Some(other) = &mut other {
            assert_eq!(other.finish(), 0);
        }
    }
}

/// The same command, in a PID namespace of its own.
fn elsewhere(command: &Command) -> Command {
    let mut there = Command::new("unshare");
    there.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    there.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => there.env(name, value),
            None => there.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        there.current_dir(directory);
    }
    there
}

fn start_elsewhere<'a>(
    on: &'a On,
    waiters: &'a dyn Fn(&str) -> usize,
    names: &[&'a str],
    waits: &[&str],
) -> Ring<'a> {
    let onehold = |at: usize, words: &[&str]| {
        let command = on.onehold(words);
        if at == 0 {
            command
        } else {
            elsewhere(&command)
        }
    };
    Ring::start(&on.env, names, waits, &onehold, waiters)
}

fn last_comer_from_another_machine_is_refused() {
    for names in RINGS {
        let on = On::of_scene();
        let waiters = |name: &str| on.waiters(name);
        let mut ring = start_elsewhere(&on, &waiters, names, &waits_of(names));
        ring.assert_last_is_refused();
        // The ticket of a waiter that is dead lasts so long.
        let took = ring.took(names.len() - 1);
        assert!(took > Duration::from_secs(5), "{took:?}");
        assert_eq!(on.left(), [""; 0]);
    }
}

fn wait_that_may_end_is_not_refused_from_another_machine() {
    let limited = "onehold run -w 8s NEXT -- true";
    for (row, wait, code) in [
        (
            "in the background",
            format!("{FOREVER} & until test -e code-b; do sleep 0.01; done; wait"),
            7,
        ),
        // Its limit is by the clock of its machine, whatever it is.
        (
            "with a limit",
            "onehold run -w 1h NEXT -- true".to_owned(),
            7,
        ),
        (
            "killed",
            format!("{FOREVER}; until test -e code-b; do sleep 0.01; done"),
            7,
        ),
    ] {
        let on = On::of_scene();
        let waiters = |name: &str| on.waiters(name);
        let mut ring = start_elsewhere(&on, &waiters, &["a", "b"], &[&wait, limited]);
        ring.go_and_wait(0);
        if row == "killed" {
            let pid = on.lock("b")["waiters"][0]["pid"].as_u64().unwrap();
            send(u32::try_from(pid).unwrap(), Signal::KILL);
        }
        ring.go(1);
        ring.finish();
        assert_eq!(on.env.pid_in("code-b"), code, "{row}: {}", ring.told(1));
    }
}
