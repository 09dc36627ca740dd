//! Whom `acquire` holds a lock for, and until when: a table of how it is called.

use std::fs;

use crate::harness::{CONTENDERS, Running, TestEnv, number_in, output, stderr, wait_until};

/// Who holds `x` after a script has called `acquire`.
#[derive(Clone, Copy)]
enum Holder {
    /// The process whose PID is in the file `holder`, until it ends, which it does once there is a file `go`.
    Until,
    /// A process that has ended with the command, as a warning says, with the name of its program.
    EndsWithCall(&'static str),
    /// Nobody: the command has failed. Its exit code is in the file `code`, if anybody is left to know it.
    Nobody,
}
use Holder::{EndsWithCall, Nobody, Until};

type Row<'a> = (&'a str, &'a str, Holder);

/// The script that executes this line is the holder.
const SCRIPT: &str = "echo $$ > pid; mv pid holder; until test -e go; do sleep 0.01; done";

/// The process that executes it is, be it a subshell.
const SELF: &str = "sh -c 'echo $PPID > pid'; mv pid holder; until test -e go; do sleep 0.01; done";

/// The program that has started `sh parent` is.
const PARENT: &str = "echo $PPID > pid; mv pid holder; until test -e go; do sleep 0.01; done";

/// Runs a script, adopts what it leaves behind, and notes the exit code of what ended last.
const ADOPTER: &str = r#"
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
code = subprocess.run(["sh", *sys.argv[1:]]).returncode
open("orphaned", "w").close()
try:
    while True: code = os.waitstatus_to_exitcode(os.wait()[1])
except ChildProcessError: pass
open("part", "w").write(f"{code}\n")
os.rename("part", "code")
"#;

/// Runs a shell for a line from a forked worker, as cron does. The worker outlives the shell.
const CRON: &str = r#"
import os, subprocess, sys, time
if os.fork() == 0:
    subprocess.run(sys.argv[1:3] + [open("line").read()])
    if len(sys.argv) > 3:
        open("pid", "w").write(f"{os.getpid()}\n")
        os.rename("pid", "holder")
        while not os.path.exists("go"): time.sleep(0.01)
    os._exit(0)
os.wait()
while len(sys.argv) > 3 and not os.path.exists("end"): time.sleep(0.01)
"#;

/// A worker of Python acquires, and is killed. Its master lives on.
const PYTHON_WORKER: &str = r#"
import multiprocessing, os, signal, subprocess, time
def work():
    subprocess.run(["onehold", "acquire", "x"])
    open("pid", "w").write(f"{os.getpid()}\n")
    os.rename("pid", "holder")
    while not os.path.exists("go"): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
while not os.path.exists("end"): time.sleep(0.01)
"#;

/// The same in Perl.
const PERL_WORKER: &str = r#"
if (!fork) {
    system "onehold", "acquire", "x";
    open my $f, ">", "pid"; print $f "$$\n"; close $f; rename "pid", "holder";
    select undef, undef, undef, 0.01 until -e "go";
    kill 9, $$;
}
wait;
select undef, undef, undef, 0.01 until -e "end";
"#;

/// A daemon of Python that has forked twice, and calls once it is an orphan.
const DAEMON: &str = r#"
import os, subprocess, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
while not os.path.exists("orphaned"): time.sleep(0.01)
subprocess.run(["onehold", "acquire", "x"])
open("pid", "w").write(f"{os.getpid()}\n")
os.rename("pid", "holder")
while not os.path.exists("go"): time.sleep(0.01)
"#;

#[track_caller]
fn assert_holder(row: &str, script: &str, expected: Holder) {
    let env = TestEnv::new();
    let programs = [
        ("adopter", ADOPTER),
        ("cron", CRON),
        ("worker.py", PYTHON_WORKER),
        ("worker.pl", PERL_WORKER),
        ("daemon", DAEMON),
        ("parent", PARENT),
    ];
    for (name, text) in programs {
        env.write(name, text);
    }
    env.write("job", script);
    let mut job = env.command("setsid");
    job.args(["-w", "bash", "job"]).env("SHELL", "/bin/bash");
    let mut running = Running::start_with_output(job);
    let mut finish = || running.finish_with_output().2.replace('\r', "");
    match expected {
        Until => {
            let file = env.path("holder");
            wait_until(row, || file.exists());
            let holder = number_in(&file);
            let lock = env.lock("x");
            assert_eq!(lock["state"], "held", "{row}: {lock}");
            assert_eq!(lock["pid"], holder, "{row}: {lock}");
            fs::write(env.path("go"), "").unwrap();
            wait_until("the hold ends with its process", || env.check("x") == 5);
            fs::write(env.path("end"), "").unwrap();
            let said = finish();
            assert!(!said.contains("warning"), "{row}: {said}");
        }
        EndsWithCall(program) => {
            let said = finish();
            let lock = env.lock("x");
            assert_eq!(lock["state"], "zombie", "{row}: {lock}\n{said}");
            let warning = format!(
                "onehold: warning: process {} ({program}) ends with this command, and the hold of `x` with it: \
                 use --pid PID, --ttl D for a lease, or `onehold run`\n",
                lock["pid"]
            );
            assert!(said.contains(&warning), "{row}: {warning}\n{said}");
        }
        Nobody => {
            let said = finish();
            let refusal = "onehold: no process to hold the lock for: the caller has exited, or ends with this command\n  \
                           use --pid PID, --ttl D for a lease, or `onehold run`; in a systemd unit: ExecStart=onehold run …\n";
            assert!(said.contains(refusal), "{row}: {said}");
            assert_eq!(env.left_in_store(), [""; 0], "{row}");
            let code = fs::read_to_string(env.path("code"));
            assert!(code.is_ok_and(|code| code == "1\n"), "{row}");
        }
    }
}

#[track_caller]
fn assert_all(rows: &[Row<'_>]) {
    for (row, script, expected) in rows {
        assert_holder(row, script, *expected);
    }
}

#[test]
fn script_holds_what_it_acquires_until_it_ends() {
    let calls = [
        "onehold acquire x",
        "T=$(onehold acquire x; true)",
        "T=`onehold acquire x`",
        "(onehold acquire x; true)",
        "( ( onehold acquire x; true ) ; true )",
        "onehold acquire x | cat",
        "sleep 0.2 | onehold acquire x",
        "sleep 0.2 | (onehold acquire x; true) | cat",
        "onehold acquire x & wait",
        "f() { onehold acquire x; true; }; f & wait",
        "cat <(onehold acquire x; true)",
        // These only start it, and end with it.
        "timeout 5 onehold acquire x",
        "(timeout 5 env A=b onehold acquire x; true)",
        "env A=b onehold acquire x",
        "nice -n 1 onehold acquire x",
        "setsid -w onehold acquire x",
        "onehold run y -- onehold acquire x",
        // A shell that is replaced by it.
        "bash -c 'onehold acquire x'",
        "bash -c 'exec onehold acquire x'",
    ];
    for call in calls {
        assert_holder(call, &format!("{call}\n{SCRIPT}\n"), Until);
    }
}

#[test]
#[ignore = "needs zsh, mksh, ksh and busybox: apt install zsh mksh ksh busybox"]
fn subshell_of_any_shell_holds_for_its_script() {
    for shell in ["dash", "zsh", "mksh", "ksh", "busybox sh"] {
        for call in [
            "(onehold acquire x; true)",
            "(onehold acquire x; true) & wait",
        ] {
            let script = format!("{call}\n{SCRIPT}");
            let job = format!("cat > script <<'E'\n{script}\nE\nexec {shell} script");
            assert_holder(&format!("{shell}: {call}"), &job, Until);
        }
    }
}

#[test]
#[ignore = "needs root, and chronic, sudo, make, parallel: apt install moreutils sudo make"]
fn each_program_that_starts_it_holds_for_as_long_as_the_table_says() {
    let sudo = "sudo ONEHOLD_DIR=$ONEHOLD_DIR";
    let after = |call: &str| format!("{call}\n{SCRIPT}");
    assert_all(&[
        ("chronic", &after("chronic onehold acquire x"), Until),
        (
            "sudo",
            &after(&format!("{sudo} $(command -v onehold) acquire x")),
            Until,
        ),
        (
            "su -c",
            "su -c 'onehold acquire x' root; true",
            EndsWithCall("su"),
        ),
        (
            "su -c, several",
            &format!("su -c 'onehold acquire x; {SCRIPT}' root"),
            Until,
        ),
        (
            "script -c",
            "script -qc 'onehold acquire x' /dev/null >&2; true",
            EndsWithCall("script"),
        ),
        (
            "sudo bash -c",
            &format!("{sudo} bash -c \"$(command -v onehold) acquire x\"; true"),
            EndsWithCall("sudo"),
        ),
        (
            "sudo dash -c",
            &format!("{sudo} dash -c \"$(command -v onehold) acquire x >/dev/null\"; true"),
            EndsWithCall("dash"),
        ),
        (
            "a one-command shell",
            "dash -c 'onehold acquire x'; true",
            EndsWithCall("dash"),
        ),
        (
            "the last command of one",
            "dash -c ': ; onehold acquire \"x\" >&2;'; true",
            EndsWithCall("dash"),
        ),
        (
            "a shell of several",
            &format!("dash -c 'onehold acquire x; {SCRIPT}'; true"),
            Until,
        ),
        (
            "timeout",
            "timeout 9 dash -c 'onehold acquire x'; true",
            EndsWithCall("dash"),
        ),
        (
            "make",
            "printf 'all:\\n\\tonehold acquire x\\n\\tsh ./parent\\n' > Makefile; make -s; true",
            Until,
        ),
        (
            "a line of a recipe",
            "printf 'all:\\n\\tonehold acquire x 2>&2\\n' > Makefile; make -s SHELL=$(command -v dash); true",
            EndsWithCall("dash"),
        ),
        (
            "xargs",
            "printf 'onehold acquire x\\nsh parent\\n' | xargs -L1 env; true",
            Until,
        ),
        (
            "parallel",
            "printf 'test $1 = 1 && exec onehold acquire x; exec sh parent' > step; parallel -j1 sh step -- 1 2; true",
            Until,
        ),
    ]);
}

#[test]
#[ignore = "needs python3 and perl: apt install python3 perl"]
fn forked_worker_holds_for_itself_and_not_for_its_master() {
    let cron = "python3 cron";
    assert_all(&[
        (
            "a worker of multiprocessing",
            "python3 worker.py; true",
            Until,
        ),
        ("a worker in Perl", "perl worker.pl; true", Until),
        (
            "a line of a crontab",
            &format!("cat > line <<'E'\nonehold acquire x; {SCRIPT}\nE\n({cron} dash -c); true"),
            Until,
        ),
        (
            "a line of one command",
            &format!("echo 'onehold acquire x' > line; ({cron} dash -c); true"),
            EndsWithCall("dash"),
        ),
        (
            "the same by bash",
            &format!("echo 'onehold acquire x' > line; ({cron} bash -c stay); true"),
            Until,
        ),
    ]);
}

/// A script that is run by what adopts orphans, a program of that name.
fn adopted(by: &str, script: &str) -> String {
    format!(
        "cat > script <<'E'\n{script}\nE\n\
         PYTHON=$(python3 -c 'import sys; print(sys.executable)')\n\
         export PYTHONHOME=$(python3 -c 'import sys; print(sys.base_prefix)')\n\
         (exec -a {by} $PYTHON adopter script); true\n"
    )
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn orphan_holds_for_itself_or_for_nobody_and_never_for_what_adopts_it() {
    let when_orphaned = "until test -e orphaned; do sleep 0.01; done";
    let function = format!("f() {{ {when_orphaned}; onehold acquire x; {SELF}; }}\nf &");
    let command = format!("({when_orphaned}; exec onehold acquire x) &");
    for adopter in ["systemd", "/sbin/tini", "dumb-init", "/sbin/docker-init"] {
        let rows = [
            (
                "a function in the background of a script that has ended",
                function.as_str(),
                Until,
            ),
            ("a command in its background", command.as_str(), Nobody),
            (
                "a daemon that has forked twice",
                "exec python3 daemon",
                Until,
            ),
            (
                "ExecStartPre=onehold acquire",
                "exec onehold acquire x",
                Nobody,
            ),
        ];
        for (row, script, expected) in rows {
            assert_holder(
                &format!("{row}, {adopter}"),
                &adopted(adopter, script),
                expected,
            );
        }
    }
}

/// A script that runs on, after one that it has called has left an orphan behind.
fn leaves(orphan: &str) -> String {
    format!(
        "cat > left <<'E'\n(until test -e orphaned; do sleep 0.01; done; {orphan}) & echo $! > orphan\nE\n\
         cat > script <<'E'\nbash left; touch orphaned\n\
         while test -e /proc/$(cat orphan); do sleep 0.01; done; echo 1 > code\nE\n"
    )
}

#[test]
fn orphan_under_a_run_does_not_hold_for_its_wrapper() {
    let (function, command) = (
        format!("onehold acquire x; {SELF}"),
        "exec onehold acquire x",
    );
    let run = "onehold run y -- bash script; true";
    assert_all(&[
        ("a function", &(leaves(&function) + run), Until),
        ("a command", &(leaves(command) + run), Nobody),
        (
            "its command",
            "onehold run y -- bash -c 'exec onehold acquire x'; echo $? > code",
            Nobody,
        ),
    ]);
}

#[test]
#[ignore = "needs root for PID namespaces, and tini and dumb-init: apt install tini dumb-init"]
fn orphan_in_a_container_does_not_hold_for_its_first_process() {
    let (function, command) = (
        format!("onehold acquire x; {SELF}"),
        "exec onehold acquire x",
    );
    let inits = [
        "unshare --pid --fork --mount-proc tini --",
        "cp $(command -v tini) docker-init; unshare --pid --fork --mount-proc ./docker-init --",
        "unshare --pid --fork --mount-proc dumb-init",
        "tini -s --",
    ];
    for init in inits {
        let run = format!("{init} bash script; true");
        assert_holder(init, &(leaves(command) + &run), Nobody);
        if init.starts_with("tini") {
            assert_holder(init, &(leaves(&function) + &run), Until);
        }
        let alone = format!("{init} bash -c 'onehold acquire x'; echo $? > code");
        assert_holder(init, &alone, Nobody);
    }
    // Any other first process may be the script itself.
    let job = "unshare --pid --fork --mount-proc bash -c 'onehold acquire x; onehold check -q x; echo $? > held'; true";
    let env = TestEnv::new();
    env.session(job).status().unwrap();
    assert_eq!(number_in(&env.path("held")), 6);
}

#[test]
#[ignore = "needs the initial PID namespace"]
fn hold_is_never_that_of_the_first_process_of_the_system() {
    if fs::read_link("/proc/self/ns/pid").unwrap().as_os_str() != "pid:[4026531836]" {
        return;
    }
    let env = TestEnv::new();
    // The parent exits at once. Of a process with another adopter than process 1 nothing is said here.
    let script = "(until read -r _ _ _ parent _ < /proc/self/stat && test $parent = 1; do sleep 0.01; done; \\
                  exec onehold acquire x 2> said) &";
    env.command("bash").args(["-c", script]).status().unwrap();
    wait_until("it has been refused", || {
        fs::read_to_string(env.path("said")).is_ok_and(|said| said.contains("ExecStart"))
    });
    assert_eq!(env.left_in_store(), [""; 0]);
    // Named, it holds the lock; and nobody is told that it is a script of theirs.
    env.done(["acquire", "x", "--pid", "1"]);
    let said = String::from_utf8(env.onehold(["acquire", "x"]).output().unwrap().stderr).unwrap();
    assert!(said.contains("to wait, add --wait"), "{said}");
    assert_eq!(env.code(["release", "x"]), 4);
}

/// Eight subshells of one script each acquire a lock, increment a number and release the lock.
fn assert_subshells_exclude_each_other(options: &str) {
    let env = TestEnv::new();
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8; do
            (
                onehold acquire n -w 50 {options} >/dev/null || exit
                n=$(cat number 2>/dev/null || echo 0)
                sleep 0.02
                echo $((n + 1)) > number
                onehold release n || echo >> not-released
            ) &
        done
        wait"
    );
    fs::write(env.path("script"), script).unwrap();
    let mut bash = env.command("bash");
    let output = output(bash.arg(env.path("script")));
    assert_eq!(env.count_in("number"), CONTENDERS, "{}", stderr(&output));
    assert_eq!(env.lines("not-released"), 0, "{}", stderr(&output));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn subshells_of_one_script_hold_one_after_the_other() {
    assert_subshells_exclude_each_other("");
}

#[test]
fn subshells_of_one_script_with_an_owner_hold_one_after_the_other() {
    assert_subshells_exclude_each_other("--owner session-1");
}
