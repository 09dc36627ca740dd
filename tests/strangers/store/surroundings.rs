//! What the stranger may not touch, and the processes of the users.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::files::make_directory;
use super::template::{Layout, Template};
use super::{CONFIGURATION, SECRET, STRANGER, THIRD, place};
use crate::forgery::{Process, Whose};
use crate::harness::TestEnv;

pub(super) struct Sleeper(pub(super) Child);

impl Sleeper {
    pub(super) fn of(user: u32) -> Self {
        let mut command = Command::new("sleep");
        command
            .arg("100000")
            .uid(user)
            .gid(user)
            .stdin(Stdio::null());
        command.process_group(0);
        Self(command.spawn().unwrap())
    }

    /// A process of the stranger that holds the kernel lock of a file or a directory. `None`: it is something else,
    /// or the stranger may not open it.
    pub(super) fn with_lock(file: &Path) -> Option<Self> {
        let facts = fs::symlink_metadata(file).ok()?;
        if !facts.is_file() && !facts.is_dir() {
            return None;
        }
        let mut command = Command::new("flock");
        command
            .args(["--nonblock", "--no-fork"])
            .arg(file)
            .args(["sh", "-c", "echo; exec sleep 100000"])
            .uid(STRANGER)
            .gid(STRANGER)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut locker = Self(command.process_group(0).spawn().unwrap());
        let said = locker.0.stdout.take().unwrap().read(&mut [0]);
        (said.unwrap() == 1).then_some(locker)
    }

    pub(super) fn process(&self) -> Process {
        let pid = self.0.id();
        let facts = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The 22nd of 52.
        let start = facts.rsplit(' ').nth(52 - 22).unwrap().parse().unwrap();
        Process { pid, start }
    }

    pub(super) fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the stranger may not touch, and the processes.
pub struct Surroundings {
    pub(super) outside: TestEnv,
    /// What is outside: paths, sizes, times, modes, owners.
    pub(super) before: RefCell<Vec<String>>,
    pub(super) root: RefCell<Sleeper>,
    third: RefCell<Sleeper>,
    pub(super) stranger: RefCell<Sleeper>,
}

impl Surroundings {
    pub fn new(template: &Template) -> Self {
        let around = Self {
            outside: place(),
            before: RefCell::default(),
            root: RefCell::new(Sleeper::of(0)),
            third: RefCell::new(Sleeper::of(THIRD)),
            stranger: RefCell::new(Sleeper::of(STRANGER)),
        };
        around.fill_outside(template);
        around
    }

    pub(super) fn fill_outside(&self, template: &Template) {
        let store = self.outside();
        fs::remove_dir_all(&store).unwrap();
        make_directory(&store, 0);
        template.fill(&store, 0, Layout::Tree);
        fs::write(store.join("canary"), format!("{SECRET}\n")).unwrap();
        for (number, text) in ["root:$6$", "key = "].iter().enumerate() {
            let file = store.join(format!("{CONFIGURATION}.{number}"));
            fs::write(file, format!("{text}{SECRET}\n")).unwrap();
        }
        *self.before.borrow_mut() = state_of(&store);
    }

    pub fn outside(&self) -> PathBuf {
        self.outside.store()
    }

    pub fn process(&self, of: Whose) -> Process {
        let sleeper = match of {
            Whose::Root => &self.root,
            Whose::Third => &self.third,
            Whose::Stranger => &self.stranger,
        };
        sleeper.borrow().process()
    }

    /// A case may have ended them.
    pub(super) fn revive(&self) {
        let all = [
            (&self.root, 0),
            (&self.third, THIRD),
            (&self.stranger, STRANGER),
        ];
        for (sleeper, user) in all {
            let mut sleeper = sleeper.borrow_mut();
            if !sleeper.is_alive() {
                *sleeper = Sleeper::of(user);
            }
        }
    }
}

/// What belongs to root below a directory.
pub(super) fn owned_by_root(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let Ok(facts) = entry.metadata() else {
                continue;
            };
            if facts.uid() == 0 {
                found.insert(entry.path());
            }
            if facts.is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

pub(super) fn state_of(directory: &Path) -> Vec<String> {
    let mut state = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let facts = fs::symlink_metadata(&path).unwrap();
        let (modified, mode, owner) = (facts.modified().unwrap(), facts.mode(), facts.uid());
        let size = facts.size();
        state.push(format!(
            "{} {size} {modified:?} {mode:o} {owner}",
            path.display()
        ));
        if facts.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    state.sort();
    state
}
