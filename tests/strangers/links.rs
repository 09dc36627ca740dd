//! What a stranger links into a store at the same time as root writes there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::flaws;
use crate::harness::{Running, TestEnv, example, output, program};
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
struct AllLinks {
    shell: Child,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// The one that ends first would set it back for the other one.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl AllLinks {
    fn new() -> Self {
        let one_at_a_time = ONE_AT_A_TIME.lock();
        let script = "cd /proc/sys/fs; old=$(cat protected_hardlinks); trap '' INT TERM HUP; \
            echo 0 >protected_hardlinks; echo; read -r _; echo $old >protected_hardlinks";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let said = std::io::Read::read(shell.stdout.as_mut().unwrap(), &mut [0]);
        assert_eq!(said.unwrap(), 1);
        Self {
            shell,
            _one_at_a_time: one_at_a_time.unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Another process of the machine may have set it back.
    fn are_still_allowed() -> bool {
        let text = fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap();
        text.trim() == "0"
    }
}

impl Drop for AllLinks {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// What commands of a program write to a file of root's, which the stranger links into a store again and again. The link
/// count of what is opened is 1 when it is looked at, since the link is gone again.
fn written_by(program: &Path) -> Vec<String> {
    const ROUNDS: usize = 60;
    let _all = AllLinks::new();
    let mut written = Vec::new();
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
                output(env.command(program).args(command.split(' ')));
                let now = fs::read_to_string(&victim).unwrap();
                if now != text {
                    let now = now.trim_matches('A');
                    written.push(format!("{mode:o}: `{command}`, round {round}: {now:?}"));
                    fs::write(&victim, &text).unwrap();
                }
            }
        }
        racer.kill();
        assert!(AllLinks::are_still_allowed(), "nothing was tried");
    }
    written
}

#[test]
#[ignore = "needs root: two users and a sysctl"]
fn root_writes_to_no_file_of_its_own_that_a_stranger_links_into_a_store() {
    assert_eq!(written_by(&program()), [""; 0]);
}

/// A planted flaw.
#[test]
#[ignore = "needs root: two users and a sysctl"]
fn program_that_trusts_a_link_count_is_found() {
    let counts = r#"
        exec 3<>"$own/last" || exit 1
        [ "$(stat -L -c %h /dev/fd/3)" != 1 ] || echo 7 >&3"#;
    let directory = flaws::program(counts);
    let written = written_by(&directory.path().join("onehold"));
    println!("{} writes", written.len());
    assert!(!written.is_empty());
}
