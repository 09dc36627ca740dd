//! A filesystem that gives the number of a removed file to the next one: ext4 does so at once, tmpfs never does.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::TestEnv;

/// Where CI has mounted one, else the disk of the checkout.
fn place() -> PathBuf {
    let mounted = std::env::var_os("ONEHOLD_TEST_DISK");
    mounted.map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}

/// A directory there that is removed when it is dropped.
pub fn directory() -> TempDir {
    let place = place();
    fs::create_dir_all(&place).unwrap();
    tempfile::tempdir_in(place).unwrap()
}

impl TestEnv {
    /// The same as [`new`](Self::new), on such a filesystem.
    pub fn on_disk() -> Self {
        Self::at(directory())
    }
}

/// Whether a file that is made now has the number of one that was removed, at least once in some times: other processes
/// make files, too.
pub fn uses_numbers_again(directory: &Path) -> bool {
    let number = |name: String| {
        let path = directory.join(name);
        let made = File::create(&path).unwrap().metadata().unwrap().ino();
        fs::remove_file(path).unwrap();
        made
    };
    let mut before = number("0".to_owned());
    (1..20).any(|at| {
        let after = number(at.to_string());
        std::mem::replace(&mut before, after) == after
    })
}
