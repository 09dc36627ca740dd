//! What a stranger does to directories and names at the same time as root uses them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::harness::{Running, TestEnv, example, exit_code};
use crate::store::{STRANGER, place};

/// A program of the stranger.
fn start(env: &TestEnv, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Running {
    let mut command = env.command(program);
    command.args(words).uid(STRANGER).gid(STRANGER);
    Running::start(command)
}

fn keep(path: &Path, owner: u32, mode: u32) {
    lchown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Lets everybody link every file, as the kernel does by itself, and what containers often have. Another process sets it
/// back, also if this one is killed.
struct AllLinks(Child);

impl AllLinks {
    fn new() -> Self {
        let script = "cd /proc/sys/fs; old=$(cat protected_hardlinks); trap '' INT TERM HUP; \
            echo 0 >protected_hardlinks; echo; read -r _; echo $old >protected_hardlinks";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let said = std::io::Read::read(shell.stdout.as_mut().unwrap(), &mut [0]);
        assert_eq!(said.unwrap(), 1);
        Self(shell)
    }
}

impl AllLinks {
    /// Another process of the machine may have set it back.
    fn are_still_allowed() -> bool {
        let text = fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap();
        text.trim() == "0"
    }
}

impl Drop for AllLinks {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The link count of what is opened is 1 when it is looked at, since the link is gone again.
#[test]
#[ignore = "needs root: two users and a sysctl"]
fn root_writes_to_no_file_of_its_own_that_a_stranger_links_into_a_store() {
    const ROUNDS: usize = 60;
    let _all = AllLinks::new();
    for (mode, owner) in [(0o755, STRANGER), (0o777, 0)] {
        let env = place();
        keep(&env.store(), owner, mode);
        for words in ["run a -- true", "acquire z --ttl 1h", "break z --yes"] {
            env.done(words.split(' '));
        }
        for directory in ["store/.onehold", "store/.onehold/waiting"] {
            fs::create_dir_all(env.path(directory)).unwrap();
            keep(&env.path(directory), STRANGER, mode);
        }
        let victim = env.path("victim");
        let text = "A".repeat(4096);
        fs::write(&victim, &text).unwrap();
        keep(&victim, 0, 0o600);
        let places = ["last", "events.jsonl", "shared", "waiting/reserved"];
        let places = places.map(|name| env.path(&format!("store/.onehold/{name}")));
        let words = ["link-again-and-again", victim.to_str().unwrap()].into_iter();
        let words: Vec<&str> = words
            .chain(places.iter().map(|path| path.to_str().unwrap()))
            .collect();
        let mut racer = start(&env, example("programs"), &words);
        for round in 0..ROUNDS {
            for command in [
                "run a -- true",
                "run -s b -- true",
                "acquire z --ttl 1h",
                "break z --yes",
            ] {
                env.output(command.split(' '));
                let now = fs::read_to_string(&victim).unwrap();
                assert!(
                    now == text,
                    "{mode:o}: written by `{command}` in round {round}: {:?}",
                    now.trim_matches('A')
                );
            }
        }
        racer.kill();
        assert!(AllLinks::are_still_allowed(), "nothing was tried");
    }
}

/// Deeper than a path can be, and than most stacks.
#[test]
#[ignore = "needs root: two users"]
fn tree_of_a_stranger_ends_no_command_however_deep_it_is() {
    let env = place();
    keep(&env.store(), 0, 0o1777);
    let store = env.store();
    let mut nest = start(
        &env,
        example("programs"),
        &["nest", store.to_str().unwrap(), "a.d", "19000"],
    );
    let _ = nest.finish();
    let mut failed = Vec::new();
    for words in [
        "list",
        "list --json",
        "cleanup",
        "check -q a",
        "run a -- true",
        "run -w 0.1 a/b -- true",
        "acquire c --ttl 1h",
        "break a --yes",
        "doctor --quick",
    ] {
        let mut shell = env.shell(&format!("ulimit -n $(ulimit -Hn); exec onehold {words}"));
        let output = shell.output().unwrap();
        let code = exit_code(output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        if !(0..=8).contains(&code) || said.contains("overflow") || said.contains("panicked") {
            failed.push(format!("`{words}` ends with {code}"));
        }
    }
    // A recursion that removes it has one descriptor for each of them.
    let removed = Command::new("rm").arg("-rf").arg(&store).status();
    assert!(removed.unwrap().success());
    assert_eq!(failed, [""; 0]);
}

/// Whoever may open a directory may lock it.
#[test]
#[ignore = "needs root: two users"]
fn stranger_who_may_only_read_a_store_holds_up_nobody() {
    let env = place();
    keep(&env.store(), 0, 0o755);
    env.done(["run", "a", "--", "true"]);
    let mut locker = env.command("flock");
    locker
        .args(["--shared", "--no-fork"])
        .arg(env.store())
        .args(["sh", "-c", "echo >&2; exec sleep 1000"])
        .uid(STRANGER)
        .gid(STRANGER)
        .stderr(Stdio::piped());
    let mut locker = Running::spawn(locker);
    assert_eq!(locker.next_line(), "\n");
    let mut failed = Vec::new();
    for words in [
        "run a -- true",
        "run -s b -- true",
        "acquire c --ttl 1h",
        "break c --yes",
    ] {
        let began = Instant::now();
        let code = env.code(words.split(' '));
        let seconds = began.elapsed().as_secs_f64();
        if code != 0 || seconds > crate::limit() {
            failed.push(format!("`{words}` ends with {code} after {seconds:.1} s"));
        }
    }
    assert!(!locker.has_ended());
    assert_eq!(failed, [""; 0]);
}
