//! The command of the histories: a section that other sections would notice.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::exit;
use std::time::Duration;
use std::{env, ops::Range};

use crate::seen::now;

/// As many share a lock at most.
const MOST: i64 = 1000;

/// `witnessed DIRECTORY CALL MILLISECONDS EXIT-CODE [deaf] [owned]`: writes all the time that it runs, and ends with
/// this code. The kernel knows by fcntl(2) that it runs, for as long as it does. A deaf one ignores TERM; one that is
/// owned may run beside parents and children.
pub fn section(words: &[String]) {
    let from = now();
    raise_limits();
    let directory = Path::new(&words[0]);
    let has = |word| words.iter().any(|other| other == word);
    if has("deaf") {
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    let names = env::var("ONEHOLD_NAME").unwrap();
    let slots = env::var("ONEHOLD_SLOT").unwrap_or_default();
    let mut slots = slots.split(' ');
    let mut locked = Vec::new();
    for name in names.lines() {
        let slot: Option<i64> = slots.next().and_then(|slot| slot.parse().ok());
        lock(directory, name, slot, has("owned"), &mut locked);
    }
    let is_alone = locked.iter().all(Option::is_some);
    let hold = env::var("ONEHOLD_HOLD").unwrap();
    let file = File::create(directory.join(&words[1])).unwrap();
    let ends = from + words[2].parse::<u64>().unwrap() * 1_000_000;
    let own = std::process::id();
    let write = |to: u64, is_done: bool| {
        let line = format!(
            "{from:020} {to:020} {hold} {is_done:5} {:5} {own}\n",
            !is_alone
        );
        file.write_all_at(line.as_bytes(), 0).unwrap();
    };
    loop {
        let at = now();
        if at >= ends {
            break;
        }
        write(at, false);
        std::thread::sleep(Duration::from_micros(500));
    }
    write(now(), true);
    // The locks are those of this process, until it is gone.
    exit(words[3].parse().unwrap());
}

/// The program that started it may have had less than it needs.
fn raise_limits() {
    for what in [libc::RLIMIT_NOFILE, libc::RLIMIT_AS] {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the place is ours.
        unsafe {
            libc::getrlimit(what, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(what, &raw const limit);
        }
    }
}

/// Locks what stands for one name, and what stands for it beside its parents: bytes of the files of each. `None`: somebody
/// else has it.
fn lock(
    directory: &Path,
    name: &str,
    slot: Option<i64>,
    is_owned: bool,
    locked: &mut Vec<Option<File>>,
) {
    let mut lock = |name: &str, kind: i32, bytes: Range<i64>| {
        let file = directory.join(format!("lock-{}", name.replace('/', "+")));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(file).unwrap();
        locked.push(is_locked(&file, kind, bytes).then_some(file));
    };
    // By all that hold this name.
    lock(
        name,
        libc::F_WRLCK,
        slot.map_or(0..MOST, |slot| slot..slot + 1),
    );
    if is_owned {
        return;
    }
    // By parents, against children: those that share it only against exclusive ones.
    let (exclusive, shared) = (MOST..2 * MOST, 2 * MOST..3 * MOST);
    let against = slot.map_or(MOST..3 * MOST, |slot| MOST + slot..MOST + slot + 1);
    lock(name, libc::F_WRLCK, against);
    let as_child = if slot.is_some() { shared } else { exclusive };
    let ancestors = name.match_indices('/').map(|(at, _)| &name[..at]);
    for ancestor in ancestors {
        lock(ancestor, libc::F_RDLCK, as_child.clone());
    }
}

fn is_locked(file: &File, kind: i32, bytes: Range<i64>) -> bool {
    // SAFETY: plain data, for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap();
    lock.l_start = bytes.start;
    lock.l_len = bytes.end - bytes.start;
    // SAFETY: the descriptor is open, and the lock is ours. That of the open file stays if another is closed.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) == 0 }
}
