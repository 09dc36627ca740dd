//! Real processes and filesystems in places where others go wrong. Most need root and namespaces,
//! and are ignored unless asked for: `cargo test --test environments -- --include-ignored`.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod containers;
mod doctor;
mod filesystems;
mod kernel;
mod users;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the tests of the schema use the rest"
)]
#[path = "../harness/schema.rs"]
mod schema;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Copies a program that is executed soon. Not by this process: what another thread forks would keep the
/// copy open for writing, and until it executes its program, the copy could not be executed (ETXTBSY,
/// execve(2)).
fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// What `--json` has printed.
fn json_object(said: &str) -> Value {
    let object = serde_json::from_str(said).unwrap();
    schema::assert_valid(&object);
    object
}

struct Place {
    root: TempDir,
}

impl Place {
    /// A directory that anybody may enter, with a copy of the program that anybody may run.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let place = Self { root };
        fs::set_permissions(place.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = assert_cmd::cargo::cargo_bin!("onehold");
        copy_program(program, &place.path("onehold"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// `sh -ec SCRIPT` with `onehold` in PATH and a store; what `before` makes of it comes first,
    /// as `unshare --pid`.
    fn sh(&self, before: &str, script: &str) -> Output {
        self.command(before, script).output().unwrap()
    }

    fn command(&self, before: &str, script: &str) -> Command {
        let path = format!(
            "{}:{}",
            self.root.path().display(),
            std::env::var("PATH").unwrap()
        );
        let mut words = before.split_whitespace().chain(["sh", "-ec", script]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .env("PATH", path)
            .env("ONEHOLD_DIR", self.path("store"))
            .env("HOME", self.root.path())
            .env_remove("ONEHOLD_HOLDS")
            .current_dir(self.root.path());
        command
    }

    #[track_caller]
    fn says(&self, before: &str, script: &str) -> String {
        let output = self.sh(before, script);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            output.status.success(),
            "{before} {script}: {:?}\n{said}",
            output.status
        );
        said
    }

    fn reason(&self, before: &str, name: &str) -> String {
        let said = self.says(before, &format!("onehold check --json {name} || true"));
        let object = json_object(&said);
        object["lock"]["reason"].as_str().unwrap().to_owned()
    }
}

fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .contains(path.to_str().unwrap())
}

/// A tmpfs of its own in a mount namespace of its own, which ends with the script.
fn on_tmpfs(options: &str, script: &str) -> String {
    let place = Place::new();
    fs::create_dir(place.path("store")).unwrap();
    let mount = format!("mount -t tmpfs -o {options} none store; {script}");
    let said = place.says("unshare --mount --propagation private", &mount);
    assert!(!is_mounted(&place.path("store")));
    said
}
