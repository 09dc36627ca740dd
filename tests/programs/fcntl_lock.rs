//! A program that locks a file by fcntl(2), as package managers do: what it is told on stdin.

use std::fs::{File, OpenOptions};
use std::io::{Write, stdin, stdout};
use std::os::fd::AsRawFd;

/// Each line of stdin is what to do with the lock on the whole file: `write`, `read`, `unlock`, or `ask`, whose answer
/// is the kind of the lock in the way, and its process. The others are answered with whether they have succeeded.
pub fn obey(words: &[String]) {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(&words[0]).unwrap();
    for line in stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "write" => call(&file, libc::F_SETLK, libc::F_WRLCK)
                .is_some()
                .to_string(),
            "read" => call(&file, libc::F_SETLK, libc::F_RDLCK)
                .is_some()
                .to_string(),
            "unlock" => call(&file, libc::F_SETLK, libc::F_UNLCK)
                .is_some()
                .to_string(),
            "ask" => match call(&file, libc::F_GETLK, libc::F_WRLCK).unwrap() {
                (libc::F_UNLCK, _) => "free".to_owned(),
                (libc::F_RDLCK, pid) => format!("read {pid}"),
                (_, pid) => format!("write {pid}"),
            },
            other => panic!("{other}"),
        };
        println!("{answer}");
        stdout().flush().unwrap();
    }
}

fn call(file: &File, command: i32, kind: i32) -> Option<(i32, i32)> {
    // SAFETY: plain data, for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    // SAFETY: the descriptor is open, and the lock is ours.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    (answer == 0).then(|| (i32::from(lock.l_type), lock.l_pid))
}
