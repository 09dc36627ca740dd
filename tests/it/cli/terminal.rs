//! `run` on a terminal: signals that it sends, job control, and what a command inherits.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::harness::{TestEnv, number_in, wait_until};

/// Counts INT, QUIT and HUP in files of that name, says that it is ready, and ends once there is a file
/// `end`.
const COUNTS: &str = "\
for signal in INT QUIT HUP; do trap \"echo >> $signal\" $signal; done
echo $$ > ready
until test -e end; do sleep 0.02; done
";

fn count(env: &TestEnv, signal: &str) -> usize {
    fs::read_to_string(env.path(signal)).map_or(0, |text| text.lines().count())
}

/// A terminal whose session is led by a shell that runs a script.
fn terminal(env: &TestEnv, script: &str) -> std::process::Child {
    let outer = env.write("outer.sh", script);
    let mut command = env.command("script");
    command
        .args([
            "-qec",
            &format!("exec bash {}", outer.display()),
            "/dev/null",
        ])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

fn type_into(terminal: &mut std::process::Child, text: &[u8]) {
    let input = terminal.stdin.as_mut().unwrap();
    std::io::Write::write_all(input, text).unwrap();
}

/// Puts what follows into a process group of its own, as timeout(1) does.
const OWN_GROUP: &str =
    "python3 -c 'import os, sys; os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])'";

#[test]
#[ignore = "needs python3: apt install python3"]
fn terminal_signals_reach_the_command_once_whatever_its_group_and_session() {
    for before in ["", OWN_GROUP, "setsid"] {
        let env = TestEnv::new();
        let inner = env.write("inner.sh", COUNTS);
        // As the shell of a user does that waits for its command.
        let script = format!(
            "trap : INT QUIT; onehold run x -- {before} bash {}",
            inner.display()
        );
        let mut terminal = terminal(&env, &script);
        number_in(&env.path("ready"));
        for (typed, signal) in [(b"\x03", "INT"), (b"\x1c", "QUIT"), (b"\x03", "INT")] {
            let before = count(&env, signal);
            type_into(&mut terminal, typed);
            wait_until("the signal is noted", || count(&env, signal) > before);
        }
        env.write("end", "");
        drop(terminal.stdin.take());
        terminal.wait().unwrap();
        assert_eq!(
            (count(&env, "INT"), count(&env, "QUIT")),
            (2, 1),
            "{before}"
        );
        assert_eq!(env.left_in_store(), [""; 0]);
    }
}

#[test]
fn ctrl_c_ends_what_timeout_runs() {
    let env = TestEnv::new();
    let inner = env.write("inner.sh", "echo $$ > ready; exec sleep 1000");
    let script = format!("onehold run x -- timeout 60 sh {}", inner.display());
    let mut terminal = terminal(&env, &script);
    let sleeper = number_in(&env.path("ready"));
    type_into(&mut terminal, b"\x03");
    wait_until("the command has exited", || {
        !Path::new(&format!("/proc/{sleeper}")).exists()
    });
    drop(terminal.stdin.take());
    terminal.wait().unwrap();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn closed_terminal_is_passed_on_once_by_the_leader_of_the_session() {
    for before in ["", OWN_GROUP, "setsid"] {
        let env = TestEnv::new();
        let inner = env.write("inner.sh", COUNTS);
        // As `xterm -e onehold …` and `ssh -t host onehold …`.
        let script = format!("exec onehold run x -- {before} bash {}", inner.display());
        let mut terminal = terminal(&env, &script);
        number_in(&env.path("ready"));
        terminal.kill().unwrap();
        terminal.wait().unwrap();
        wait_until("the hangup is noted", || count(&env, "HUP") > 0);
        assert_eq!(
            env.check("x"),
            6,
            "the command goes on, and so does the hold"
        );
        env.write("end", "");
        wait_until("the lock is released", || env.check("x") == 0);
        assert_eq!(count(&env, "HUP"), 1, "{before}");
    }
}

/// Types into an interactive shell on a terminal, each line once the text before it has appeared:
/// `EXPECTED|TYPED`.
const DIALOG: &str = r#"
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1].split("/")[-1:] + sys.argv[2].split())
seen = b""
typed = ""
for step in sys.argv[3:]:
    before = typed
    expected, typed = step.split("|")
    deadline = time.monotonic() + 30
    again = time.monotonic() + 5
    while expected.encode() not in seen:
        if time.monotonic() > deadline:
            sys.exit("no %r in %r" % (expected, seen))
        if before == "\\x1a" and time.monotonic() > again:
            # A person would press it once more.
            os.write(terminal, b"\x1a")
            again = deadline
        if select.select([terminal], [], [], 0.1)[0]:
            try: seen += os.read(terminal, 4096)
            except OSError: sys.exit("closed before %r in %r" % (expected, seen))
    if expected: seen = seen.split(expected.encode(), 1)[1]
    time.sleep(0.1)
    os.write(terminal, typed.encode().decode("unicode_escape").encode())
os.close(terminal)
os.waitpid(pid, 0)
"#;

#[track_caller]
pub(crate) fn dialog(env: &TestEnv, shell: &str, options: &str, steps: &[&str]) {
    try_dialog(env, shell, options, steps).unwrap();
}

/// A process that just forks loses a stop once in hundreds of dialogs, also without onehold.
#[track_caller]
fn play(dialog: impl Fn() -> Result<(), String>) {
    const ATTEMPTS: usize = 3;
    let mut played = dialog();
    for _ in 1..ATTEMPTS {
        if played.is_err() {
            played = dialog();
        }
    }
    played.unwrap();
}

fn try_dialog(env: &TestEnv, shell: &str, options: &str, steps: &[&str]) -> Result<(), String> {
    let mut command = env.command("python3");
    command
        .args(["-c", DIALOG, shell, options])
        .args(["|PS1='READY''> '\\n"])
        .args(steps)
        .env("ENV", "")
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{shell}: {steps:?}: {said}"))
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn ctrl_z_fg_and_reading_from_the_terminal_work_as_without_onehold() {
    for (shell, options) in [("bash", "--norc --noprofile"), ("dash", "-i")] {
        for run in ["", "onehold run x -- "] {
            let env = TestEnv::new();
            let typed = format!("READY> |{run}sh -c 'echo rea''dy; read line; echo got=$line'\\n");
            let steps = [
                typed.as_str(),
                "ready|\\x1a",
                "topped|",
                "READY> |cat store/x.lock > held 2>/dev/null; fg\\n",
                "sh -c|hello\\n",
                "got=hello|",
                "READY> |echo code=$?\\n",
                "code=0|exit\\n",
            ];
            dialog(&env, shell, options, &steps);
            let was_held = fs::read_to_string(env.path("held")).is_ok_and(|text| !text.is_empty());
            assert_eq!(was_held, !run.is_empty(), "{shell}");
            assert_eq!(env.left_in_store(), [""; 0]);
        }
    }
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn ctrl_z_stops_a_command_with_a_process_group_of_its_own_and_fg_continues_it() {
    for (shell, options) in [("bash", "--norc --noprofile"), ("dash", "-i")] {
        for before in ["timeout 60", OWN_GROUP] {
            for run in ["", "onehold run x -- "] {
                play(|| {
                    let env = TestEnv::new();
                    env.write(
                        "inner.sh",
                        "echo $$ > pid; echo rea''dy; until test -e end; do sleep 0.02; done",
                    );
                    let typed = format!("READY> |{run}{before} sh inner.sh\\n");
                    let state = "READY> |until grep -q State:.T /proc/$(cat pid)/status; \
                             do sleep 0.02; done; echo state''=T\\n";
                    let steps = [
                        typed.as_str(),
                        "ready|\\x1a",
                        "topped|",
                        state,
                        // It ends only if it goes on.
                        "state=T|touch end; fg\\n",
                        "READY> |echo code''=$?\\n",
                        "code=0|exit\\n",
                    ];
                    try_dialog(&env, shell, options, &steps)?;
                    assert_eq!(env.left_in_store(), [""; 0]);
                    Ok(())
                });
            }
        }
    }
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn ctrl_z_does_not_stop_the_leader_of_a_session_nor_its_command() {
    for before in ["", OWN_GROUP] {
        let env = TestEnv::new();
        let inner = env.write("inner.sh", COUNTS);
        let script = format!("exec onehold run x -- {before} bash {}", inner.display());
        let mut terminal = terminal(&env, &script);
        number_in(&env.path("ready"));
        type_into(&mut terminal, b"\x1a");
        type_into(&mut terminal, b"\x03");
        wait_until("the signal is noted", || count(&env, "INT") == 1);
        env.write("end", "");
        drop(terminal.stdin.take());
        terminal.wait().unwrap();
        assert_eq!(env.left_in_store(), [""; 0], "{before}");
    }
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn background_job_that_reads_from_the_terminal_is_stopped_as_without_onehold() {
    for run in ["", "onehold run x -- "] {
        let env = TestEnv::new();
        let typed = format!("READY> |{run}sh -c 'echo rea''dy; read line; echo got=$line' &\\n");
        let steps = [
            // The shell reports it at once, and not at the next prompt.
            "READY> |set -b\\n",
            typed.as_str(),
            "ready|",
            "topped|fg\\n",
            "sh -c|hello\\n",
            "got=hello|exit\\n",
        ];
        dialog(&env, "bash", "--norc --noprofile", &steps);
        assert_eq!(env.left_in_store(), [""; 0]);
    }
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn hold_in_the_background_of_a_terminal_holds_until_it_is_ended() {
    let env = TestEnv::new();
    let steps = [
        "READY> |onehold hold x > number &\\n",
        "READY> |until test -s number; do :; done; sleep 1.5; onehold check -q x; echo code=$?\\n",
        "code=6|kill %1; wait %1; onehold check -q x; echo code=$?\\n",
        "code=0|exit\\n",
    ];
    dialog(&env, "bash", "--norc --noprofile", &steps);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn answer_to_a_question_is_not_taken_for_input_of_the_hold() {
    let env = TestEnv::new();
    let steps = [
        "READY> |sleep 1000 & pid=$!; onehold acquire -q x --pid $pid; (sleep 1; kill $pid) &\\n",
        "READY> |onehold hold -w 1h --on-zombie ask x\\n",
        "[y/N]|y\\n",
        "\n17|\\x04",
        "READY> |onehold check -q x; echo code=$?\\n",
        "code=0|exit\\n",
    ];
    dialog(&env, "bash", "--norc --noprofile", &steps);
}

#[cfg(target_os = "linux")]
/// Sets what a caller may have set, and executes the rest of its arguments.
const CALLER: &str = "\
import os, resource, signal, sys
for number in [signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1,
               signal.SIGALRM, signal.SIGXFSZ, signal.SIGTERM, 40]:
    signal.signal(number, signal.SIG_IGN if sys.argv[1] == 'ignored' else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, 41])
os.umask(0o27)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.dup2(0, 9, inheritable=True)
os.execvp(sys.argv[2], sys.argv[2:])
";

#[cfg(target_os = "linux")]
/// What a process has inherited. The lock's own descriptor is left out.
const INHERITED: &str = "\
grep -E '^(Sig|Shd)(Blk|Ign):' /proc/self/status; ulimit -a; umask; nice; tty; \
cut -d' ' -f6,7 /proc/self/stat; \
cd /proc/self/fd; for fd in *; do case $fd in 1??) ;; *) test -e $fd && readlink $fd;; esac; done";

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs python3: apt install python3"]
fn command_inherits_what_the_caller_had() {
    for ignored in ["ignored", "default"] {
        let env = TestEnv::new();
        let inherited = |words: &[&str]| {
            let mut command = env.command("setsid");
            command
                .args(["-w", "python3", "-c", CALLER, ignored])
                .args(words)
                .args(["bash", "-c", INHERITED])
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{words:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<String> = text
                .lines()
                // The session is another one each time, and so are the pipes.
                .filter(|line| !line.contains("pipe:") && !line.starts_with("/proc/"))
                .map(|line| match line.split_once(' ') {
                    Some((session, terminal)) if session.parse::<u32>().is_ok() => {
                        format!("terminal {terminal}")
                    }
                    _ => line.to_owned(),
                })
                .collect();
            lines
        };
        let plain = inherited(&["env"]);
        assert!(plain.len() > 20, "{plain:?}");
        for options in [
            &[][..],
            &["--exec"],
            &["--close"],
            &["-w", "1s"],
            &["--json"],
            &["--time-limit", "1h"],
            &["--force", "--yes"],
        ] {
            let mut words = vec!["onehold", "run"];
            words.extend(options);
            words.extend(["x", "--"]);
            assert_eq!(inherited(&words), plain, "{ignored} {options:?}");
        }
    }
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn acquire_in_an_interactive_shell_holds_until_the_shell_exits() {
    for (shell, options) in [("bash", "--norc --noprofile"), ("dash", "-i")] {
        let env = TestEnv::new();
        let steps = [
            "READY> |onehold acquire x\\n",
            "acquired `x` for process|",
            "READY> |onehold check -q x; echo code=$?\\n",
            "code=6|",
            "READY> |exit\\n",
        ];
        dialog(&env, shell, options, &steps);
        wait_until("the hold ends with the shell", || env.check("x") == 5);
    }
}
