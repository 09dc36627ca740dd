//! Changes of a whole store: those of its directories, and the ends of processes.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::ChangeWatch;
use crate::identity::Pid;
use crate::sys::directory::{Directory, facts_of_file};
use crate::sys::wait::{Watch, pause};

/// Most directories that are watched; of others it is noticed later.
const MAX_WATCHED: usize = 1000;

/// Most processes. Each needs a descriptor, of which a process usually has 1024.
const MAX_PROCESSES: usize = 256;

/// How often to look where the store cannot be watched.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct TreeWatch {
    store: PathBuf,
    watch: Watch,
    /// The directories that were there before: device and inode.
    known: HashSet<(u64, u64)>,
}

impl TreeWatch {
    /// `None`: this system has no watch for it, or none is left.
    pub(super) fn new(store: PathBuf) -> Option<Self> {
        let mut watch = Self {
            store,
            watch: Watch::new().ok()?,
            known: HashSet::new(),
        };
        watch.add_directories(&[]);
        Some(watch)
    }

    /// Watches all directories, and these processes. Whether there is a new one, and whether any is watched.
    fn add_directories(&mut self, processes: &[Pid]) -> (bool, bool) {
        self.watch.begin();
        let before = std::mem::take(&mut self.known);
        // Its path may lead root by another user's link, which a store is not reached by either.
        let is_store = Directory::open(&self.store).is_ok();
        let mut left: Vec<_> = is_store.then(|| self.store.clone()).into_iter().collect();
        let mut processes = processes.iter().take(MAX_PROCESSES);
        while let Some(path) = left.pop().filter(|_| self.known.len() < MAX_WATCHED) {
            let Some(id) = self.add(&path, processes.next().copied()) else {
                continue;
            };
            if self.known.insert(id) {
                left.extend(directories_in(&path));
            }
        }
        for process in processes.filter(|_| is_store) {
            let _ = self.add(&self.store.clone(), Some(*process));
        }
        (!self.known.is_subset(&before), !self.known.is_empty())
    }

    fn add(&mut self, path: &Path, process: Option<Pid>) -> Option<(u64, u64)> {
        let directory = File::open(path).ok()?;
        let id = facts_of_file(&directory).ok()?.id;
        self.watch.add(&directory, process).ok()?;
        Some((id.device, id.inode))
    }
}

fn directories_in(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_directory =
        |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_directory).map(|entry| entry.path())
}

impl ChangeWatch for TreeWatch {
    fn wait(&mut self, processes: &[Pid], at_most: Duration) {
        let (is_new, is_watched) = self.add_directories(processes);
        // What has happened in a new directory before it was watched is not known.
        if is_new {
            return;
        }
        let slept = if is_watched {
            self.watch.sleep(Some(at_most))
        } else {
            pause(at_most.min(LOOK_INTERVAL))
        };
        let _ = slept;
        // The caller needs descriptors.
        self.watch.begin();
    }
}
