//! What commands do to others, as strace(1) sees it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use crate::harness::output;
use crate::store::{CONFIGURATION, Stranger};

const TRACED: &str = "trace=kill,tkill,tgkill,pidfd_send_signal,rt_sigqueueinfo,rt_tgsigqueueinfo,open,openat,openat2,\
    creat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mkdir,mkdirat,rmdir,mknod,mknodat,readlink,readlinkat,\
    chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,truncate,ftruncate,utimensat,setxattr,mount,clone,fork,vfork,\
    clone3";

/// The lines of a trace.
pub struct Seen {
    lines: Vec<String>,
}

/// The program that `onehold` is, and how many seconds a case may take.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// In this directory. `None`: the one under test.
    pub directory: Option<&'a Path>,
    pub seconds: u32,
}

/// The program under test.
pub const TESTED: Program<'static> = Program {
    directory: None,
    seconds: 60,
};

/// Runs a shell script in the directory of the store's parent.
pub fn run(stranger: &Stranger<'_>, script: &str, program: Program<'_>) -> (Output, Seen) {
    let file = stranger.env().path("trace");
    let mut strace = stranger.env().command("timeout");
    if let Some(directory) = program.directory {
        let usual = strace.get_envs().find(|(name, _)| *name == "PATH");
        let usual = usual.and_then(|(_, path)| path).unwrap().to_owned();
        let first = std::iter::once(directory.to_owned());
        let path = std::env::join_paths(first.chain(std::env::split_paths(&usual)));
        strace.env("PATH", path.unwrap());
    }
    match stranger.home() {
        Some(home) => strace.env("HOME", home).env_remove("ONEHOLD_DIR"),
        None => strace.env("ONEHOLD_DIR", stranger.dir()),
    };
    strace.args(["-s", "KILL", &program.seconds.to_string()]);
    strace.args(["strace", "-f", "-qq", "-s", "4096"]);
    strace.args(["--decode-fds=path,pidfd", "--seccomp-bpf"]);
    strace
        .args(["--signal=none", "-e", TRACED, "-o"])
        .arg(&file);
    strace
        .args(["sh", "-c", script])
        .env("ONEHOLD_HISTORY", "1");
    let output = output(&mut strace);
    let text = fs::read(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    let text = String::from_utf8_lossy(&text);
    (
        output,
        Seen {
            lines: whole(&text),
        },
    )
}

/// The calls of a trace, those in one piece that others came in between.
fn whole(trace: &str) -> Vec<String> {
    let (mut lines, mut begun) = (Vec::new(), HashMap::new());
    for line in trace.lines() {
        let pid = line.split(' ').next().unwrap_or_default();
        if let Some(begin) = line.strip_suffix(" <unfinished ...>") {
            begun.insert(pid, begin);
        } else if let Some((_, end)) = line.split_once(" resumed>") {
            lines.push(format!("{}{end}", begun.remove(pid).unwrap_or_default()));
        } else {
            lines.push(line.to_owned());
        }
    }
    // Of processes that were killed meanwhile.
    lines.extend(begun.into_values().map(str::to_owned));
    lines
}

impl Seen {
    pub fn faults(&self, stranger: &Stranger<'_>) -> Vec<String> {
        // What was traced is the command's own.
        let mut own: HashSet<i64> = HashSet::new();
        own.extend(stranger.processes().into_iter().map(i64::from));
        let number = |text: &str| text.parse::<i64>().ok();
        for line in &self.lines {
            own.extend(line.split(' ').next().and_then(number));
            // One that was killed before its first call.
            let starts = ["clone", "fork"].iter().any(|call| line.contains(call));
            let started = line.rsplit_once(" = ").filter(|_| starts);
            own.extend(started.and_then(|(_, pid)| number(pid)));
        }
        let places = Places::of(stranger);
        let fault = |line: &String| {
            let (_, call) = line.split_once(' ')?;
            let (name, arguments) = call.trim_start().split_once('(')?;
            // Its process ended meanwhile, by another thread.
            let arguments = arguments.trim_end_matches(" = ? <unavailable>");
            if name.contains("kill") || name.contains("sig") {
                return signal(name, arguments, &own, line);
            }
            // Of what is no link it fails.
            if name.starts_with("readlink") {
                return places.look(arguments, line);
            }
            let is_start = ["clone", "clone3", "fork", "vfork"].contains(&name);
            // Of a thread that ends with its process strace shows a call without a name.
            if is_start || line.contains(" = -1 ") || name.starts_with("syscall_") {
                return None;
            }
            if name.starts_with("open") {
                return places.open(arguments, line);
            }
            if !places.are_inside(arguments) {
                return Some(format!("writes: {line}"));
            }
            if ["link", "rename"].iter().any(|call| name.starts_with(call))
                && let Some(owner) = places.owner_of_target(arguments)
            {
                return Some(format!("relies on a directory of user {owner}: {line}"));
            }
            let removes = ["unlink", "rename", "rmdir"]
                .iter()
                .any(|call| name.starts_with(call));
            // What gets a name that is free removes nothing there.
            let count = if arguments.contains("RENAME_NOREPLACE") {
                1
            } else {
                2
            };
            let is_fine = !removes || names(arguments).take(count).all(may_be_removed);
            (!is_fine).then(|| format!("removes: {line}"))
        };
        self.lines.iter().filter_map(fault).collect()
    }
}

/// A signal to a process that is none of those.
fn signal(name: &str, arguments: &str, own: &HashSet<i64>, line: &str) -> Option<String> {
    let words: Vec<&str> = arguments.split(", ").collect();
    let at = if name.contains("tg") { 2 } else { 1 };
    if words
        .get(at)
        .is_some_and(|signal| signal.starts_with("0)") || *signal == "0")
    {
        return None;
    }
    // 7<pid:4711>; of one that has ended 7<pid:-1>, or if it ends meanwhile 7<anon_inode:[pidfd]>
    let by_descriptor = words[0]
        .split_once("<pid:")
        .map(|(_, pid)| pid.trim_end_matches('>'));
    let target = by_descriptor.unwrap_or(words[0]).trim_end_matches(')');
    let target = target.parse::<i64>().ok();
    let is_own = target.is_some_and(|target| own.contains(&target.abs()));
    let ends_meanwhile = words[0].ends_with("[pidfd]>") && line.contains("= -1 ESRCH");
    let has_ended = by_descriptor == Some("-1") || ends_meanwhile;
    (!is_own && !has_ended).then(|| format!("signals process {target:?}: {line}"))
}

/// The names in the arguments of a call.
fn names(arguments: &str) -> impl Iterator<Item = &str> {
    let quoted = arguments
        .split(", ")
        .filter_map(|part| part.strip_prefix('"'));
    quoted.map(|name| name.rsplit_once('"').map_or(name, |(name, _)| name))
}

/// What the names of files begin with that onehold makes for each user, or replaces others by.
const OF_USERS: [&str; 6] = [
    ".onehold-new-",
    ".onehold-last-",
    ".onehold-events-",
    ".onehold-ticket-",
    ".onehold-reserved-",
    "events-0.jsonl",
];

/// Whether a name can be that of a lock, or of what onehold makes.
fn may_be_removed(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let is_ticket = name.starts_with(|first: char| first.is_ascii_digit());
    let ends = [".lock", ".d", ".shared"];
    let own = [
        ".onehold",
        "guard",
        "waiting",
        "reserved",
        "last",
        "shared",
        "events.jsonl",
        "events.jsonl.1",
    ];
    is_ticket
        || own.contains(&name)
        || name.starts_with(".onehold.")
        || OF_USERS.iter().any(|begin| name.starts_with(begin))
        || ends.iter().any(|end| name.ends_with(end))
        || name.contains(".lock.aside-")
}

struct Places {
    store: String,
    /// Where names without a directory are.
    here: String,
    outside: String,
    /// Where the path of the store leads, which is the caller's own word.
    leads_to: String,
    owner_of_sticky: Option<u32>,
}

impl Places {
    fn of(stranger: &Stranger<'_>) -> Self {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let leads_to = fs::canonicalize(stranger.dir());
        Self {
            store: text(&stranger.ground()),
            here: text(stranger.env().root.path()),
            outside: text(&stranger.outside()),
            leads_to: leads_to.map_or_else(|_| String::new(), |path| text(&path)),
            owner_of_sticky: stranger.owner_of_sticky(),
        }
    }

    /// The store, or what everybody may write to.
    fn may_be_written(&self, path: &str) -> bool {
        path.starts_with(&self.store)
            || ["/dev/null", "/dev/tty", "/proc/self/"]
                .iter()
                .any(|known| path.starts_with(known))
    }

    /// An open of what is not the stranger's. What was opened is behind the number, through all symlinks.
    fn open(&self, arguments: &str, line: &str) -> Option<String> {
        let (_, opened) = arguments.rsplit_once(" = ")?;
        // Its thread ended with its process meanwhile. Or only a place was opened, which has no effect.
        if opened == "?" || arguments.contains("O_PATH") {
            return None;
        }
        let path = opened.split_once('<').map_or("", |(_, path)| path);
        let is_write = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"]
            .iter()
            .any(|flag| arguments.contains(flag));
        if let Some(below) = path.strip_prefix(&self.outside) {
            // The caller's own word.
            let is_named = !is_write && below[1.min(below.len())..].starts_with(CONFIGURATION);
            return (!is_named).then(|| format!("opens: {line}"));
        }
        (is_write && !self.may_be_written(path)).then(|| format!("writes: {line}"))
    }

    /// A look at a path that leads out of the store, on the word of a file in it.
    fn look(&self, arguments: &str, line: &str) -> Option<String> {
        let mut paths = names(arguments);
        paths
            .any(|path| path.starts_with(&self.outside) && path != self.leads_to)
            .then(|| format!("looks at: {line}"))
    }

    /// In a sticky store: the owner of the directory that a file gets into, if that user may remove it although it is
    /// root's.
    fn owner_of_target(&self, arguments: &str) -> Option<u32> {
        let owner = self.owner_of_sticky?;
        // `…, 3</store>, "x.lock", 0`: the last of each.
        let parts = arguments.split(", ").filter(|part| !part.starts_with('"'));
        let paths = parts.filter_map(|part| part.split_once('<')?.1.split('>').next());
        let path = Path::new(paths.last()?).join(names(arguments).last()?);
        let found = fs::symlink_metadata(path.parent()?).ok()?.uid();
        (found != 0 && found != owner).then_some(found)
    }

    /// Whether each path of a call is one that may be written.
    fn are_inside(&self, arguments: &str) -> bool {
        // A name is relative to the descriptor before it.
        let mut base = self.here.clone();
        let mut are_inside = true;
        for part in arguments.split(", ") {
            if let Some((_, rest)) = part.split_once('<')
                && let Some((path, _)) = rest.rsplit_once('>')
                && !part.starts_with('"')
            {
                path.trim_end_matches("(deleted)").clone_into(&mut base);
                // The call is of the descriptor alone.
                if !arguments.contains('"') {
                    are_inside &= self.may_be_written(&base);
                }
            } else if let Some(name) = part.strip_prefix('"') {
                let name = name.split('"').next().unwrap_or_default();
                let path = if name.starts_with('/') {
                    name.to_owned()
                } else {
                    format!("{base}/{name}")
                };
                // What leads out of it again is outside.
                are_inside &=
                    self.may_be_written(&path) && !name.split('/').any(|part| part == "..");
            }
        }
        are_inside
    }
}
