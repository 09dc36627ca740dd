//! What a stranger does in a directory while others use it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

/// `link-again-and-again FILE NAME…`: links a file under these names, and removes the names again, until it is killed.
/// What has only one name, when it is looked at, had two when it was opened.
pub fn link_again_and_again(words: &[String]) {
    let (file, names) = words.split_first().unwrap();
    println!();
    for round in 0_u32.. {
        for name in names {
            let name = Path::new(name);
            if fs::hard_link(file, name).is_err() {
                let _ = fs::remove_file(name);
                continue;
            }
            for _ in 0..round % 40 * 10 {
                std::hint::spin_loop();
            }
            let _ = fs::remove_file(name);
        }
    }
}

/// `nest DIRECTORY NAME DEPTH`: so many directories, each in the one before, for everybody.
pub fn nest(words: &[String]) {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = openat(CWD, &words[0], flags, Mode::empty()).unwrap();
    for _ in 0..words[2].parse().unwrap() {
        mkdirat(&at, &words[1], Mode::from_raw_mode(0o777)).unwrap();
        at = openat(&at, &words[1], flags, Mode::empty()).unwrap();
    }
}
