//! What a system call sees or changes of what processes share: the points at which their order can matter.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use libc::user_regs_struct as Registers;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::tracee::{Identity, bytes_at, identity, open_file, open_path, polls_now, text_at};
use crate::tracer::number_at;

/// Calls that stop the process. All others cost nothing.
pub const STOPPING: [i64; 60] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_inotify_add_watch,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_exit_group,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_pause,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_vfork,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
];

/// What is shared. Names of files are below the directory of the trial, and each long number in them is `#`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Object {
    /// Which file has a name, if any.
    Name(String),
    /// Which names a directory has.
    Names(String),
    Content(String),
    KernelLock(String),
    /// Which processes there are, and their states.
    Processes,
    /// A store on a server.
    Server,
    /// Anything: what a process does next when it gets a signal.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    pub object: Object,
    pub changes: bool,
}

impl Access {
    fn sees(object: Object) -> Self {
        Self {
            object,
            changes: false,
        }
    }

    fn changes(object: Object) -> Self {
        Self {
            object,
            changes: true,
        }
    }

    /// Whether the order of the two can matter.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let same = self.object == other.object
            || self.object == Object::All
            || other.object == Object::All;
        same && (self.changes || other.changes)
    }
}

/// A call before which a process has stopped.
#[derive(Clone, Debug)]
pub struct Call {
    pub registers: Registers,
    /// The call and its file, as a trace shows it.
    pub text: String,
    /// The file that it names or has open; as in `text`, but with all digits.
    pub path: PathBuf,
    pub accesses: Vec<Access>,
}

impl Call {
    pub fn number(&self) -> i64 {
        self.registers.orig_rax.cast_signed()
    }

    pub fn leaves_section(&self) -> bool {
        self.text == IN_SECTION
    }
}

/// The call by which the command of a hold ends: what comes before it is in the critical section.
pub const IN_SECTION: &str = "in the critical section";

/// The names of files that were first seen without one, and which files were ever locked.
#[derive(Default)]
pub struct Files {
    names: HashMap<Identity, String>,
    created: HashMap<String, usize>,
    locked: HashMap<Identity, String>,
    /// All that have taken part.
    pub processes: HashSet<i32>,
}

/// Each number of four digits or more is `#`: the time, a process. So is the inode of a file without a name, which the
/// kernel shows as `#` and its number, and a random part of a name.
pub fn without_numbers(text: &str) -> String {
    for temporary in [".onehold.", ".onehold-new-"] {
        if let Some((before, after)) = text.split_once(temporary) {
            let after = after.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
            return format!("{before}{temporary}#{}", without_numbers(after));
        }
    }
    let mut out = String::new();
    let mut digits = String::new();
    for character in text.chars().chain([' ']) {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        let is_inode = !digits.is_empty() && out.ends_with('#');
        let is_short = digits.len() < 4 && !is_inode;
        out.push_str(if is_short { &digits } else { "#" });
        digits.clear();
        out.push(character);
    }
    out.pop();
    out
}

/// What a request to a server asks for: the first word in it that is quoted. `None`: no request, or the head of one
/// whose body follows.
fn asked(sent: &[u8]) -> Option<String> {
    let body = match sent.first()? {
        // The first message to PostgreSQL begins with its length.
        0 => return Some("sign in".to_owned()),
        b'{' | b'Q' => sent,
        b'P' => {
            let end = sent.windows(4).position(|four| four == b"\r\n\r\n")?;
            sent.get(end + 4..).filter(|body| !body.is_empty())?
        }
        _ => return None,
    };
    let text = String::from_utf8_lossy(body);
    Some(text.split('"').nth(1).unwrap_or("nothing").to_owned())
}

fn parent(path: &str) -> String {
    path.rsplit_once('/')
        .map_or_else(String::new, |(parent, _)| parent.to_owned())
}

/// Looks at what a process is about to do.
pub struct Examiner<'a> {
    pub pid: Pid,
    pub task: &'a str,
    /// The directory of the trial.
    pub root: &'a Path,
    pub files: &'a mut Files,
}

impl Examiner<'_> {
    /// `None` if the call neither sees nor changes anything that is shared.
    pub fn call(&mut self, registers: Registers) -> Option<Call> {
        let number = registers.orig_rax.cast_signed();
        let at = libc::AT_FDCWD as u64;
        let (first, second, third, fourth) =
            (registers.rdi, registers.rsi, registers.rdx, registers.r10);
        let mut path = PathBuf::new();
        let accesses = match number {
            libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 => {
                let (directory, name, flags) = match number {
                    libc::SYS_open => (at, first, second),
                    libc::SYS_openat => (first, second, third),
                    _ => (first, second, number_at(self.pid, third)),
                };
                path = self.path(directory, name);
                self.opens(&path, flags as i32)
            }
            libc::SYS_stat | libc::SYS_lstat | libc::SYS_access => {
                path = self.path(at, first);
                self.looks_at(&path)
            }
            libc::SYS_newfstatat | libc::SYS_statx if text_at(self.pid, second).is_empty() => {
                path = self.descriptor(first);
                self.content(first, &path, false)
            }
            libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_faccessat | libc::SYS_readlinkat => {
                path = self.path(first, second);
                self.looks_at(&path)
            }
            libc::SYS_mkdir | libc::SYS_rmdir | libc::SYS_unlink => {
                path = self.path(at, first);
                self.changes_name(&path)
            }
            libc::SYS_mkdirat | libc::SYS_unlinkat | libc::SYS_fchmodat | libc::SYS_utimensat => {
                path = self.path(first, second);
                self.changes_name(&path)
            }
            libc::SYS_rename | libc::SYS_link => {
                path = self.path(at, second);
                let from = self.path(at, first);
                [self.changes_name(&from), self.changes_name(&path)].concat()
            }
            libc::SYS_renameat | libc::SYS_renameat2 => {
                path = self.path(third, fourth);
                let from = self.path(first, second);
                [self.changes_name(&from), self.changes_name(&path)].concat()
            }
            libc::SYS_linkat => {
                path = self.path(third, fourth);
                let file = self.descriptor(first);
                [self.content(first, &file, true), self.changes_name(&path)].concat()
            }
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_fstat => {
                path = self.descriptor(first);
                self.content(first, &path, false)
            }
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_ftruncate | libc::SYS_fchmod => {
                path = self.descriptor(first);
                self.content(first, &path, true)
            }
            libc::SYS_getdents64 => {
                path = self.descriptor(first);
                let name = self.below(&path).map(Object::Names);
                name.into_iter().map(Access::sees).collect()
            }
            libc::SYS_inotify_add_watch => {
                path = self.path(at, second);
                let mut accesses = self.looks_at(&path);
                accesses.extend(self.below(&path).map(Object::Names).map(Access::sees));
                accesses
            }
            libc::SYS_flock | libc::SYS_fcntl => {
                if number == libc::SYS_fcntl && !LOCKING.contains(&(second as i32)) {
                    return None;
                }
                path = self.descriptor(first);
                self.locks(first, &path)
            }
            libc::SYS_close => {
                path = self.descriptor(first);
                self.unlocks(first, &path)
            }
            libc::SYS_sendto => {
                path = asked(&bytes_at(self.pid, second, third))?.into();
                vec![Access::changes(Object::Server)]
            }
            libc::SYS_exit_group => self.ends(),
            libc::SYS_kill | libc::SYS_tgkill if second == 0 => {
                vec![Access::sees(Object::Processes)]
            }
            libc::SYS_kill | libc::SYS_tgkill | libc::SYS_pidfd_send_signal => {
                vec![Access::changes(Object::All)]
            }
            libc::SYS_pidfd_open => vec![Access::sees(Object::Processes)],
            // A look leaves the child as it is.
            libc::SYS_waitid if fourth as i32 & libc::WNOWAIT != 0 => {
                vec![Access::sees(Object::Processes)]
            }
            libc::SYS_wait4 | libc::SYS_waitid => vec![Access::changes(Object::Processes)],
            libc::SYS_ppoll if polls_now(self.pid, third) => vec![Access::sees(Object::Processes)],
            _ => return None,
        };
        if accesses.is_empty() {
            return None;
        }
        let name = name_of(number);
        let shown = match self.below(&path) {
            Some(below) => below,
            None if self.is_of_another_process(&path) => {
                let is_number = |part: &&OsStr| part.to_string_lossy().parse::<u32>().is_ok();
                let part = |part| if is_number(&part) { "#".as_ref() } else { part };
                path.iter()
                    .map(part)
                    .collect::<PathBuf>()
                    .display()
                    .to_string()
            }
            None => without_numbers(&path.to_string_lossy()),
        };
        let detail = match number {
            libc::SYS_flock => match second as i32 & !libc::LOCK_NB {
                libc::LOCK_SH => ", shared",
                libc::LOCK_EX => ", exclusive",
                _ => ", unlock",
            },
            _ => "",
        };
        Some(Call {
            registers,
            text: format!("{name}({shown}{detail})"),
            path,
            accesses,
        })
    }

    fn path(&self, directory: u64, name: u64) -> PathBuf {
        let name = text_at(self.pid, name);
        // What is open is watched, and gets a name, by this path.
        if let Some(number) = name.strip_prefix("/proc/self/fd/") {
            return number
                .parse()
                .map_or_else(|_| name.into(), |number| self.descriptor(number));
        }
        let directory = match (directory as u32).cast_signed() {
            libc::AT_FDCWD => self.root.to_owned(),
            _ => self.descriptor(directory),
        };
        let joined = directory.join(name);
        // `x/.` is `x`.
        joined.components().collect()
    }

    fn descriptor(&self, descriptor: u64) -> PathBuf {
        open_path(self.pid, descriptor)
    }

    /// The name below the directory of the trial, without numbers. Only what is in the store and beside it counts,
    /// not the output and the home of the processes.
    fn below(&self, path: &Path) -> Option<String> {
        let below = path.strip_prefix(self.root).ok()?.to_str()?;
        let below = below.trim_end_matches(" (deleted)");
        let is_own = below.is_empty() || below.starts_with("home") || below.starts_with("out.");
        (!is_own).then(|| without_numbers(below))
    }

    /// A file in /proc of another process that takes part. What the rest of the machine does is no part of a trial.
    fn is_of_another_process(&self, path: &Path) -> bool {
        let Ok(rest) = path.strip_prefix("/proc") else {
            return false;
        };
        let first = rest.iter().next().unwrap_or_default().to_string_lossy();
        let pid = first.parse::<i32>();
        pid.is_ok_and(|pid| pid != self.pid.as_raw() && self.files.processes.contains(&pid))
    }

    fn name_of_file(&mut self, file: Identity, path: &Path) -> Option<String> {
        if let Some(name) = self.files.names.get(&file) {
            return Some(name.clone());
        }
        let mut name = self.below(path)?;
        // It was never there by a name.
        if path.to_string_lossy().contains("/#") {
            let count = self.files.created.entry(self.task.to_owned()).or_default();
            *count += 1;
            name = format!("file {count} of {}", self.task);
        }
        self.files.names.insert(file, name.clone());
        Some(name)
    }

    fn opens(&mut self, path: &Path, flags: i32) -> Vec<Access> {
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return Vec::new();
        }
        if flags & libc::O_CREAT != 0 {
            return self.changes_name(path);
        }
        self.looks_at(path)
    }

    fn looks_at(&mut self, path: &Path) -> Vec<Access> {
        if self.is_of_another_process(path) {
            return vec![Access::sees(Object::Processes)];
        }
        let Some(name) = self.below(path) else {
            return Vec::new();
        };
        let mut accesses = vec![Access::sees(Object::Name(name))];
        if let Some(file) = identity(path, false)
            && let Some(name) = self.name_of_file(file, path)
        {
            accesses.push(Access::sees(Object::Content(name)));
        }
        accesses
    }

    fn changes_name(&mut self, path: &Path) -> Vec<Access> {
        let Some(name) = self.below(path) else {
            return Vec::new();
        };
        let mut accesses = vec![
            Access::changes(Object::Names(parent(&name))),
            Access::changes(Object::Names(name.clone())),
            Access::changes(Object::Name(name)),
        ];
        if let Some(file) = identity(path, false)
            && let Some(name) = self.name_of_file(file, path)
        {
            accesses.push(Access::changes(Object::Content(name)));
        }
        accesses
    }

    fn file(&mut self, descriptor: u64, path: &Path) -> Option<(Identity, String)> {
        self.below(path)?;
        let file = identity(&open_file(self.pid, descriptor), true)?;
        let name = self.name_of_file(file.clone(), path)?;
        Some((file, name))
    }

    /// What a process has open at that path.
    fn content(&mut self, descriptor: u64, path: &Path, changes: bool) -> Vec<Access> {
        if self.is_of_another_process(path) {
            return vec![Access::sees(Object::Processes)];
        }
        let name = self.file(descriptor, path).map(|(_, name)| name);
        let access = |name| Access {
            object: Object::Content(name),
            changes,
        };
        name.into_iter().map(access).collect()
    }

    fn locks(&mut self, descriptor: u64, path: &Path) -> Vec<Access> {
        let Some((file, name)) = self.file(descriptor, path) else {
            return Vec::new();
        };
        self.files.locked.insert(file, name.clone());
        vec![Access::changes(Object::KernelLock(name))]
    }

    /// The end of a process is seen by others, and gives up what only it has open.
    fn ends(&mut self) -> Vec<Access> {
        let mut accesses = vec![Access::changes(Object::Processes)];
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid));
        for entry in open.into_iter().flatten().flatten() {
            if let Some(file) = identity(&entry.path(), true)
                && let Some(name) = self.files.locked.get(&file)
            {
                accesses.push(Access::changes(Object::KernelLock(name.clone())));
            }
        }
        accesses
    }

    /// Closing a file releases its lock, unless another process has it open.
    fn unlocks(&mut self, descriptor: u64, path: &Path) -> Vec<Access> {
        let Some((file, _)) = self.file(descriptor, path) else {
            return Vec::new();
        };
        let name = self.files.locked.get(&file).cloned();
        let change = |name| Access::changes(Object::KernelLock(name));
        name.into_iter().map(change).collect()
    }
}

/// The commands of fcntl(2) that lock.
const LOCKING: [i32; 6] = [
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
];

fn name_of(number: i64) -> &'static str {
    match number {
        libc::SYS_read => "read",
        libc::SYS_write => "write",
        libc::SYS_pread64 => "pread",
        libc::SYS_pwrite64 => "pwrite",
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 => "open",
        libc::SYS_close => "close",
        libc::SYS_stat | libc::SYS_lstat | libc::SYS_newfstatat | libc::SYS_statx => "stat",
        libc::SYS_fstat => "fstat",
        libc::SYS_getdents64 => "getdents",
        libc::SYS_mkdir | libc::SYS_mkdirat => "mkdir",
        libc::SYS_rmdir => "rmdir",
        libc::SYS_unlink | libc::SYS_unlinkat => "unlink",
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => "rename",
        libc::SYS_link | libc::SYS_linkat => "link",
        libc::SYS_ftruncate => "ftruncate",
        libc::SYS_fchmod | libc::SYS_fchmodat => "chmod",
        libc::SYS_utimensat => "utimensat",
        libc::SYS_inotify_add_watch => "inotify_add_watch",
        libc::SYS_flock => "flock",
        libc::SYS_fcntl => "fcntl",
        libc::SYS_kill | libc::SYS_tgkill => "kill",
        libc::SYS_pidfd_open => "pidfd_open",
        libc::SYS_pidfd_send_signal => "pidfd_send_signal",
        libc::SYS_wait4 | libc::SYS_waitid => "wait",
        libc::SYS_exit_group => "exit",
        libc::SYS_sendto => "ask",
        libc::SYS_ppoll => "poll",
        _ => "access",
    }
}
