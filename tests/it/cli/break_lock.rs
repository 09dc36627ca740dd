use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_match};

use crate::harness::{Running, TestEnv, number_in, program};
#[cfg(unix)]
use crate::harness::{Signal, send, wait_until};

#[test]
fn break_of_free_lock_is_3() {
    let env = TestEnv::new();
    env.onehold(["break", "x", "--yes"])
        .assert()
        .code(3)
        .stderr(contains("onehold: `x` is free: nothing to break\n"));
}

#[cfg(unix)]
#[test]
fn break_asks_for_live_hold_but_not_for_zombie() {
    let env = TestEnv::new();
    env.create_zombie("x");
    env.session("onehold break x").assert().success().stderr(
        is_match("^onehold: removed zombie `x`: process \\d+ \\(sleep\\) .*, has exited\n$")
            .unwrap(),
    );
    let holder = Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.session("onehold break x")
        .assert()
        .code(6)
        .stderr(contains(
            "cannot ask for confirmation: no terminal (use --yes)",
        ));
    assert_eq!(env.check("x"), 6);
    env.session("onehold break x --yes").assert().success();
    assert_eq!(env.check("x"), 0);
    let journal = env.journal();
    assert_eq!(journal.len(), 2);
    assert_eq!(journal[1]["event"], "break");
    assert_eq!(journal[1]["reason"], "forced by user");
    assert_eq!(journal[1]["from"]["command"][0], "sleep");
}

#[test]
fn break_with_hold_number_breaks_only_that_hold() {
    let env = TestEnv::new();
    let output = env
        .onehold(["acquire", "x", "--ttl", "1h"])
        .output()
        .unwrap();
    let number = String::from_utf8(output.stdout).unwrap();
    env.onehold(["break", "x", "--yes", "--hold", "7"])
        .assert()
        .code(4)
        .stderr(contains(
            "not broken, the hold has another number: `x` is held by",
        ));
    assert_eq!(env.check("x"), 6);
    env.onehold(["break", "x", "--yes", "--hold", number.trim()])
        .assert()
        .success();
    assert_eq!(env.check("x"), 0);
}

#[cfg(unix)]
#[test]
fn prompt_shows_holder_and_defaults_to_no() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    let ask = |answer: &str| env.on_a_terminal("break x", &[answer]);
    let (code, seen) = ask("\n");
    assert_eq!(code, 6);
    assert!(seen.contains("`x` is held by process"), "{seen}");
    assert_eq!(ask("\x03").0, 130);
    assert_eq!(env.check("x"), 6);
    assert_eq!(ask("y\n").0, 0);
    assert_eq!(env.check("x"), 0);
}

#[cfg(unix)]
#[test]
fn break_of_run_waits_for_its_command() {
    let env = TestEnv::new();
    let (ready, ended) = (env.path("ready"), env.path("ended"));
    let script = format!(
        "trap 'kill $!; sleep 0.3; echo x > {}; exit' TERM; echo $$ > {}; sleep 1000 & wait",
        ended.display(),
        ready.display()
    );
    let mut running = env.start(["run", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    env.onehold(["break", "x", "--yes"]).assert().success();
    assert!(ended.exists(), "the command exited before break did");
    assert_eq!(running.finish(), 8);
}

#[cfg(unix)]
#[test]
fn break_with_force_frees_the_lock_at_once_and_says_what_may_still_run() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let mut running = env.start(["run", "--on-lost", "warn", "x", "--", "sh", "-c", &script]);
    let pid = number_in(&ready);
    env.onehold(["break", "x", "--yes", "--force"])
        .assert()
        .success()
        .stderr(contains(format!(
            "onehold: warning: the work of process {pid} (sh) on "
        )))
        .stderr(contains(" may still be running\n"));
    assert_eq!(env.check("x"), 0);
    send(pid, Signal::TERM);
    assert_eq!(running.finish(), 143);
}

#[test]
fn break_of_unheld_parent_names_held_child() {
    let env = TestEnv::new();
    env.onehold(["acquire", "backend/task-1", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["break", "backend", "--yes"])
        .assert()
        .code(3)
        .stderr(
            contains(
                "`backend` itself is not held\n  its child `backend/task-1` is held by a lease",
            )
            .and(contains(" break backend/task-1`\n")),
        );
    assert_eq!(env.check("backend/task-1"), 6);
}

#[cfg(target_os = "linux")]
#[test]
fn hold_whose_file_was_emptied_is_broken_only_by_force_while_its_kernel_lock_is_taken() {
    let env = TestEnv::new();
    let script = "until [ -e end ]; do sleep 0.02; done";
    let mut holder = env.start(["run", "x", "--", "sh", "-c", script]);
    wait_until("its command runs", || {
        env.lock("x")["pid"] != holder.pid() && env.check("x") == 6
    });
    // Until its wrapper has written all, it may be something else, or known by another process.
    wait_until("it is refused for its process", || {
        std::fs::write(env.store().join("x.lock"), "").unwrap();
        let output = env.onehold(["break", "x", "--yes"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{said}");
        let words = ["not broken: ", &holder.pid().to_string(), "--force"];
        output.status.code() == Some(1) && words.iter().all(|word| said.contains(word))
    });
    assert_eq!(env.check("x"), 6);
    assert_eq!(env.code(["run", "x", "--", "true"]), 6);
    env.write("end", "");
    holder.finish();
    env.done(["run", "x", "--", "true"]);
}

#[cfg(unix)]
#[test]
fn break_of_a_kept_hold_says_that_its_work_has_ended() {
    let env = TestEnv::new();
    let run = [
        "run",
        "--hold-at-least",
        "1h",
        "x",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    assert_eq!(env.code(run), 3);
    let (code, seen) = env.on_a_terminal("break x", &["n\n"]);
    assert_eq!(code, 6);
    assert!(seen.contains("  its work has ended\r\n"), "{seen}");
    assert!(!seen.contains("cannot be seen"), "{seen}");
    assert!(
        seen.contains("  Free the lock before its time? [y/N]"),
        "{seen}"
    );
}

#[cfg(unix)]
#[test]
fn break_waits_for_work_whose_lock_another_caller_takes_by_force_meanwhile() {
    let script = "trap '' TERM; echo $$ > ready; until test -e taken; do sleep 0.02; done; sleep 0.3; echo > ended";
    for to_wrapper in [Signal::CONT, Signal::STOP, Signal::KILL] {
        let env = TestEnv::new();
        let run = ["run", "x", "--kill-after", "60s", "--", "sh", "-c", script];
        let mut wrapper = env.start(run);
        number_in(&env.path("ready"));
        let mut shell = env.command("sh");
        shell.args(["-c", "\"$0\" break x --yes; test -e ended"]);
        shell.arg(program());
        let mut broken = Running::start(shell);
        let reason = || env.lock("x")["reason"].clone();
        wait_until("its work is being ended", || reason() == "ending");
        // The caller has to see that as well: of a wrapper that exits before, it would think that the hold has ended
        // by itself.
        std::thread::sleep(std::time::Duration::from_secs(1));
        send(wrapper.pid(), to_wrapper);
        let mut forced = env.start(["run", "--force", "--yes", "x", "--", "true"]);
        wait_until("it is taken", || reason() != "ending");
        std::fs::write(env.path("taken"), "").unwrap();
        wait_until("its work has ended", || env.path("ended").exists());
        if to_wrapper == Signal::STOP {
            send(wrapper.pid(), Signal::CONT);
        }
        assert_eq!(
            broken.finish(),
            0,
            "{to_wrapper:?}: break returned too early"
        );
        assert_eq!(forced.finish(), 0);
        wrapper.finish();
    }
}

#[cfg(unix)]
#[test]
#[ignore = "takes 12 s"]
fn break_names_the_work_that_is_left_though_another_caller_has_freed_the_lock() {
    let env = TestEnv::new();
    let script = "trap '' TERM; echo $$ > ready; until test -e go; do sleep 0.05; done";
    let run = ["run", "x", "--kill-after", "0", "--", "sh", "-c", script];
    let mut wrapper = env.start(run);
    number_in(&env.path("ready"));
    let mut broken = env.start_with_output(["break", "x", "--yes"]);
    wait_until("its work is being ended", || {
        env.lock("x")["reason"] == "ending"
    });
    env.done(["break", "x", "--yes", "--force"]);
    let (code, _, told) = broken.finish_with_output();
    assert_eq!(code, 1, "{told}");
    let pid = env.pid_in("ready");
    let left = format!("  still running: process {pid} (sh)\n");
    assert!(told.contains(&left), "{told}");
    assert!(
        told.ends_with("  another caller has freed the lock meanwhile\n"),
        "{told}"
    );
    env.write("go", "");
    wrapper.finish();
}

#[cfg(unix)]
#[test]
fn hint_about_a_copied_record_is_a_break_that_works() {
    let env = TestEnv::new();
    let _run = env.hold(&["run"]);
    std::fs::copy(env.path("store/run.lock"), env.path("store/copy.lock")).unwrap();
    let told = env.output(["run", "copy", "--", "true"]);
    let hint =
        is_match("to free the lock while it runs, run `onehold --dir .* break --force copy`");
    told.assert().code(6).stderr(hint.unwrap());
    env.done(["break", "--force", "--yes", "copy"]);
    assert_eq!((env.check("copy"), env.check("run")), (0, 6));
}
