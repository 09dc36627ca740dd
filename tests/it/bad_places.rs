//! What surrounds a lock is against it: trees that are too deep, journals and clocks of others, full disks, and
//! programs that clean up.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::harness::{TestEnv, exit_code, output};
use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

/// More than the stack, the descriptors and a name are enough for.
const DEPTH: usize = 6_000;

/// Directories in each other, as another user of a store may make them.
struct DeepTree<'a> {
    top: &'a Path,
}

impl<'a> DeepTree<'a> {
    fn new(top: &'a Path, depth: usize) -> Self {
        let (flags, all) = (OFlags::RDONLY | OFlags::DIRECTORY, Mode::from(0o777));
        fs::create_dir_all(top).unwrap();
        let mut directory: OwnedFd = open(top, flags, Mode::empty()).unwrap();
        let name = CString::new(top.file_name().unwrap().as_encoded_bytes()).unwrap();
        for _ in 1..depth {
            mkdirat(&directory, &name, all).unwrap();
            directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
        }
        Self { top }
    }
}

impl Drop for DeepTree<'_> {
    fn drop(&mut self) {
        // The standard library would open all of it at once.
        let _ = std::process::Command::new("rm")
            .arg("-rf")
            .arg(self.top)
            .status();
    }
}

#[test]
fn tree_that_is_deeper_than_names_is_left_out() {
    let env = TestEnv::new();
    let lock = |name: &str| env.store().join(name);
    let waiting = lock(".onehold/waiting");
    let tops = [
        lock("a.d"),
        waiting.join("a.d"),
        waiting.join("a.lock"),
        waiting.join("b.d"),
    ];
    let _trees: Vec<DeepTree<'_>> = tops.iter().map(|top| DeepTree::new(top, DEPTH)).collect();
    // Neither the stack nor the number of descriptors is enough for it.
    let does = |words: &str| {
        output(&mut env.shell(&format!("ulimit -n $(ulimit -Hn); exec onehold {words}")))
    };
    for words in [
        "run a -- true",
        "run -w 1m a -- true",
        "run --shared a -- true",
        "acquire a --ttl 1m --owner me",
        "renew a --owner me",
        "release a --owner me",
        "break a -y",
        "list -v",
        "cleanup",
    ] {
        let ended = does(words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let expected = if words.starts_with("break") { 3 } else { 0 };
        assert_eq!(exit_code(ended.status), expected, "{words}: {said}");
        let is_whole_store = words.starts_with("list") || words.starts_with("cleanup");
        let told = format!("directories below `{}` are deeper", tops[0].display());
        let count = said.matches(&told).count();
        assert_eq!(count, usize::from(is_whole_store), "{words}: {said}");
    }
    assert_eq!(exit_code(does("check a").status), 0);
    let listed = env.json(["list"]);
    assert_eq!(
        listed["errors"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    let found = String::from_utf8(does("doctor --quick").stdout).unwrap();
    assert_eq!(found.matches("deeper than").count(), 1, "{found}");
}

#[test]
fn name_as_long_as_names_can_be_is_a_lock_with_shared_holds() {
    let env = TestEnv::new();
    // 512 segments; and 1,024 bytes.
    for name in [["a"; 512].join("/"), ["a"; 511].join("/") + "/bc"] {
        for mode in ["--slots=2", "--shared"] {
            let ended = env.output(["run", mode, &name, "--", "onehold", "list"]);
            let listed = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(exit_code(ended.status), 0, "{ended:?}");
            assert!(listed.contains(&name), "{mode}: {listed}");
        }
        env.done(["run", &name, "--", "true"]);
    }
    assert_eq!(env.code(["cleanup"]), 0);
    let left: Vec<_> = fs::read_dir(env.store()).unwrap().collect();
    assert_eq!(left.len(), 1, "only .onehold: {left:?}");
}
