//! `--format fcntl`: files that other programs lock by fcntl(2).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::harness::{
    CONTENDERS, INCREMENT, Running, Signal, TestEnv, example, output, run_together, wait_until,
};

/// Another program that locks a file by fcntl(2). It ends when it is dropped.
struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(env: &TestEnv, file: &str) -> Self {
        let mut command = env.command(example("programs"));
        command.args(["fcntl-lock", file]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let stdout = BufReader::new(stdout);
        Self {
            child,
            stdin,
            stdout,
        }
    }

    /// Its answer to `write`, `read`, `unlock` or `ask`.
    fn told(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns once a process sleeps until another one ends, or for a while.
fn wait_until_it_sleeps(waits: &Running) {
    wait_until("it sleeps", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", waits.pid())).unwrap();
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", waits.pid())).unwrap();
        stat.contains(") S ") && (wchan.contains("poll") || wchan.contains("nanosleep"))
    });
}

fn code(env: &TestEnv, words: &str) -> i32 {
    let mut words: Vec<&str> = words.split(' ').collect();
    words.splice(1..1, ["--format", "fcntl"]);
    env.code(words)
}

#[test]
fn each_program_is_kept_out_by_the_other() {
    let env = TestEnv::new();
    let mut other = Other::start(&env, "x.lock");
    assert_eq!(code(&env, "check x.lock"), 0);
    assert_eq!(other.told("write"), "true");
    for words in [
        "run x.lock -- true",
        "run -s x.lock -- true",
        "check x.lock",
        "check -s x.lock",
    ] {
        assert_eq!(code(&env, words), 6, "{words}");
    }
    assert_eq!(code(&env, "wait -w 50ms x.lock"), 7);
    let seen = env.json(["check", "--format", "fcntl", "x.lock"]);
    assert_eq!(seen["lock"]["format"], "fcntl");
    assert_eq!(seen["lock"]["lockers"][0]["pid"], other.child.id());
    // A reader lets readers in.
    assert_eq!(other.told("read"), "true");
    assert_eq!(code(&env, "run -s x.lock -- true"), 0);
    assert_eq!(code(&env, "run x.lock -- true"), 6);
    assert_eq!(other.told("unlock"), "true");
    // The other way round: others see no process, but the lock of an open file description.
    let mut holder = env.hold(&["--format", "fcntl", "x.lock"]);
    assert_eq!(other.told("ask"), "write -1");
    assert_eq!(other.told("read"), "false");
    assert_eq!(code(&env, "check x.lock"), 6);
    // flock(1) is another lock.
    let flock = output(env.command("flock").args(["-n", "x.lock", "true"]));
    assert!(flock.status.success());
    env.end();
    assert_eq!(holder.finish(), 0);
    assert_eq!(other.told("write"), "true");
    assert_eq!(fs::read(env.path("x.lock")).unwrap(), b"");
}

#[test]
fn wait_ends_with_the_process_that_has_the_lock_and_takes_nothing() {
    let env = TestEnv::new();
    let mut other = Other::start(&env, "x.lock");
    assert_eq!(other.told("write"), "true");
    let mut waits = env.start(["wait", "--format", "fcntl", "x.lock"]);
    wait_until_it_sleeps(&waits);
    drop(other);
    assert_eq!(waits.finish(), 0);
    // One that unlocks, and lives on.
    let mut other = Other::start(&env, "x.lock");
    assert_eq!(other.told("write"), "true");
    let mut waits = env.start(["wait", "--format", "fcntl", "x.lock"]);
    wait_until_it_sleeps(&waits);
    let mut run = env.start([
        "run", "--format", "fcntl", "-w", "60", "x.lock", "--", "true",
    ]);
    assert_eq!(other.told("unlock"), "true");
    assert_eq!((waits.finish(), run.finish()), (0, 0));
    assert_eq!(other.told("ask"), "free");
    // A killed wrapper leaves its lock to the command.
    let mut holder = env.hold(&["--format", "fcntl", "x.lock"]);
    let mut waits = env.start(["wait", "--format", "fcntl", "x.lock"]);
    wait_until_it_sleeps(&waits);
    holder.signal(Signal::KILL);
    holder.finish();
    assert_eq!(other.told("ask"), "write -1");
    assert!(!waits.has_ended());
    env.end();
    assert_eq!(waits.finish(), 0);
}

#[test]
fn eight_contenders_lose_no_increment_beside_innocents() {
    let env = TestEnv::new();
    let line = [
        "run", "--format", "fcntl", "-w", "60", "x.lock", "--", "sh", "-c", INCREMENT,
    ];
    let mut commands: Vec<_> = (0..CONTENDERS).map(|_| env.onehold(line)).collect();
    let innocent = ["run", "--format", "flock", "x.lock", "--", "true"];
    commands.push(env.onehold(innocent));
    let outputs = run_together(commands);
    assert!(
        outputs.iter().all(|output| output.status.success()),
        "{outputs:?}"
    );
    assert_eq!(env.count_in("number"), CONTENDERS);
}

#[test]
fn what_a_kernel_lock_cannot_have_is_refused() {
    let env = TestEnv::new();
    for words in [
        "acquire x.lock",
        "run --owner o x.lock -- true",
        "run --slots 2 x.lock -- true",
        "run -- true",
        "list",
        "run --project x -- true",
    ] {
        assert!([2, 125].contains(&code(&env, words)), "{words}");
    }
    assert!(!env.path("x.lock").exists());
}

/// Another user may not open the lock of a package manager, and sees it in /proc/locks.
#[test]
#[ignore = "needs root: setpriv(1) becomes another user"]
fn file_that_may_not_be_opened_is_found_in_the_list_of_locks() {
    let env = TestEnv::new();
    let mut other = Other::start(&env, "x.lock");
    assert_eq!(other.told("unlock"), "true");
    fs::set_permissions(env.path("x.lock"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let asked = |verb: &str| {
        let mut setpriv = env.command("setpriv");
        setpriv.args([
            "--reuid=65534",
            "--clear-groups",
            "onehold",
            verb,
            "--format",
            "fcntl",
        ]);
        output(setpriv.arg("x.lock").env("HOME", "/")).status.code()
    };
    assert_eq!(asked("check"), Some(0));
    assert_eq!(other.told("write"), "true");
    assert_eq!(asked("check"), Some(6));
    let mut setpriv = env.command("setpriv");
    setpriv.args([
        "--reuid=65534",
        "--clear-groups",
        "onehold",
        "wait",
        "--format",
        "fcntl",
        "x.lock",
    ]);
    let mut waits = Running::start(setpriv);
    wait_until_it_sleeps(&waits);
    assert_eq!(other.told("unlock"), "true");
    assert_eq!(waits.finish(), 0);
}

/// The command of onehold-wait(1). While another program has the lock, apt-get itself is refused; afterwards it gets it,
/// so the wait has taken nothing.
#[test]
#[ignore = "needs root, and apt: takes the lock of the package manager"]
fn lock_of_a_real_package_manager_is_waited_for() {
    const LOCK: &str = "/var/lib/dpkg/lock-frontend";
    let env = TestEnv::new();
    let apt = || {
        let mut apt = env.command("apt-get");
        // It is there, so nothing is downloaded or changed.
        apt.args([
            "-y",
            "-q",
            "-o",
            "DPkg::Lock::Timeout=0",
            "install",
            "--no-upgrade",
            "dpkg",
        ]);
        output(&mut apt)
    };
    let mut other = Other::start(&env, LOCK);
    wait_until("no other package manager runs", || {
        other.told("write") == "true"
    });
    let refused = apt();
    assert_eq!(refused.status.code(), Some(100), "{refused:?}");
    assert_eq!(code(&env, &format!("check {LOCK}")), 6);
    assert_eq!(code(&env, &format!("wait -w 100ms {LOCK}")), 7);
    let mut waits = env.start(["wait", "--format", "fcntl", LOCK, "-w", "10m"]);
    wait_until_it_sleeps(&waits);
    assert_eq!(other.told("unlock"), "true");
    assert_eq!(waits.finish(), 0);
    let done = apt();
    assert!(done.status.success(), "{done:?}");
}
