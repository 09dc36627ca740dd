//! The files and directories of a store, as onehold makes them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::files::{give, make_directory};
use super::surroundings::Sleeper;
use super::{STRANGER, place};
use crate::forgery::fnv;
use crate::harness::{foreign, wait_until};

/// What is no lock, and what is a lock of a holder that lives. Both stay as they are.
pub(super) const INNOCENT: [&str; 8] = [
    "data.txt",
    "x.lock.bak",
    "%zz.lock",
    "section.d/notes.txt",
    "other.d/deep.d/more",
    ".onehold/notes",
    ".onehold/waiting/notes",
    "lease.lock",
];

/// The files and directories of a store.
pub struct Template {
    pub(super) files: Vec<Original>,
    pub(super) directories: Vec<PathBuf>,
    /// As records name it.
    pub(super) store: String,
}

pub(super) struct Original {
    pub(super) path: PathBuf,
    pub(super) text: Vec<u8>,
    pub(super) mode: u32,
    /// An earlier file that it is another name of.
    pub(super) link: Option<usize>,
}

impl Template {
    pub fn new() -> Self {
        // In a sticky one nothing is kept.
        let env = place();
        let script = "umask 0; export ONEHOLD_HISTORY=1; \
            onehold run past -- true; onehold run failed -- false; \
            onehold acquire zombie --pid $1; onehold break zombie --yes; \
            for name in dead left; do sleep 100 & onehold acquire $name --pid $!; kill $!; wait $!; done; \
            onehold run dead -- true; onehold cleanup; \
            onehold run x -m why --owner o -- sleep 1000 & \
            onehold run section/y z --die-with $1 --kill-after 3 -- sleep 1000 & \
            for format in prodigy memory sprint pid; do \
                onehold run --format $format --owner o -m why own-$format -- sleep 1000 & done; \
            onehold acquire pool --slots 2 --pid $1; onehold acquire pool --slots 3 --ttl 10d --owner o; \
            onehold run -s readers -- sleep 1000 & \
            onehold run -s readers --owner o -- sleep 1000 & \
            onehold acquire lease --ttl 10d --owner other; \
            onehold run kept --hold-at-least 10d -- true; \
            until ! onehold check -q x; do sleep 0.01; done; \
            wait_for() { until [ \"$(ls $ONEHOLD_DIR/.onehold/waiting/x.lock | wc -l)\" = $1 ]; do sleep 0.01; done; }; \
            onehold run -w 100 x --owner a --keep-place 10m -- true & wait_for 1; \
            onehold run -w 100 x section/y -- true & wait_for 2; \
            onehold run -w 100 x --owner b --keep-place 30m -- true & kept=$!; \
            wait_for 3; kill $kept; wait $kept; touch ready; wait";
        let holder = Sleeper::of(STRANGER);
        let mut shell = env.command("setpriv");
        shell.args("--reuid 65534 --regid 65534 --clear-groups sh -c".split(' '));
        shell.arg(script).arg("sh").arg(holder.0.id().to_string());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        shell.process_group(0);
        let mut shell = shell.spawn().unwrap();
        wait_until("all kinds of files are there", || {
            let readers = fs::read_dir(env.path("store/readers.d/.shared"));
            env.path("ready").exists()
                && readers.is_ok_and(|readers| readers.count() == 2)
                && [
                    "section.d/y",
                    "own-prodigy",
                    "own-memory",
                    "own-sprint",
                    "own-pid",
                ]
                .iter()
                .all(|name| env.path(&format!("store/{name}.lock")).exists())
        });
        let store = fs::metadata(env.store()).unwrap();
        let mut template = Self {
            files: Vec::new(),
            directories: vec![PathBuf::new()],
            store: in_records(&store),
        };
        template.read(&env.store(), Path::new(""), &mut BTreeMap::new());
        // SAFETY: the group of the shell that was started above.
        unsafe { libc::kill(-shell.id().cast_signed(), libc::SIGKILL) };
        shell.wait().unwrap();
        template.add_what_is_there_for_a_moment(holder.0.id());
        template
    }

    /// `seen`: the files by their inodes.
    pub(super) fn read(&mut self, root: &Path, below: &Path, seen: &mut BTreeMap<u64, usize>) {
        let entries = fs::read_dir(root.join(below)).unwrap();
        let mut entries: Vec<_> = entries.map(Result::unwrap).collect();
        // A seed gives the same cases each time.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = below.join(entry.file_name());
            let facts = entry.metadata().unwrap();
            if facts.is_dir() {
                self.directories.push(path.clone());
                self.read(root, &path, seen);
                continue;
            }
            let text = fs::read(entry.path()).unwrap();
            let link = seen.get(&facts.ino()).copied();
            seen.entry(facts.ino()).or_insert(self.files.len());
            let mode = facts.mode() & 0o7777;
            self.files.push(Original {
                path,
                text,
                mode,
                link,
            });
        }
    }

    fn add_what_is_there_for_a_moment(&mut self, pid: u32) {
        let tickets = self
            .files
            .iter()
            .filter(|file| file.path.starts_with(".onehold/waiting/x.lock"));
        let numbers = tickets.map(|ticket| {
            let name = ticket.path.file_name().unwrap().to_str().unwrap();
            let number: u64 = name.split('-').next().unwrap().parse().unwrap();
            format!("\"{number}\":1000")
        });
        let reserved = format!("{{{}}}", numbers.collect::<Vec<_>>().join(","));
        // What a takeover that was killed has set aside.
        let aside = |file: &str| format!(".onehold.{:016x}", fnv(file.as_bytes()));
        let journal = self.text_of(".onehold/events.jsonl");
        for (path, text) in [
            (".onehold/waiting/reserved", reserved),
            (".onehold/events.jsonl.1", journal),
            (".onehold/waiting/.onehold.00000000000000ff", String::new()),
            ("prodigy.lock", foreign::prodigy("prodigy", pid)),
            (&*aside("prodigy.lock"), foreign::prodigy("prodigy", pid)),
            ("sprint.lock", foreign::sprint(pid)),
            ("memory.lock", foreign::memory(pid)),
            (&*aside("own-memory.lock"), foreign::memory(pid)),
            ("pid.lock", format!("{pid}\n")),
            ("empty.lock", String::new()),
        ] {
            self.files.push(Original {
                path: path.into(),
                text: text.into_bytes(),
                mode: 0o644,
                link: None,
            });
        }
        let paths = self
            .files
            .iter()
            .map(|file| file.path.display().to_string());
        let paths = paths.collect::<Vec<_>>().join(" ");
        assert!(
            self.files.len() >= 30 && self.directories.len() >= 9,
            "{paths}"
        );
        assert_eq!(
            self.files.iter().filter(|file| file.link.is_some()).count(),
            2,
            "{paths}"
        );
    }

    pub(super) fn text_of(&self, path: &str) -> String {
        let mut files = self.files.iter();
        let file = files.find(|file| file.path == Path::new(path)).unwrap();
        String::from_utf8(file.text.clone()).unwrap()
    }

    /// The name of the lock that a file belongs to.
    pub fn lock_of(&self, file: proptest::sample::Index) -> String {
        let path = &file.get(&self.files).path;
        let path = path.strip_prefix(".onehold/waiting").unwrap_or(path);
        let mut name = Vec::new();
        for part in path.iter().map(|part| part.to_str().unwrap()) {
            match part.strip_suffix(".d").or(part.strip_suffix(".lock")) {
                Some(stem) if !part.starts_with('.') => name.push(stem),
                _ => break,
            }
        }
        // No command is about the hold that is to stay.
        if name.is_empty() || name == ["lease"] {
            "x".to_owned()
        } else {
            name.join("/")
        }
    }

    pub(super) fn fill(&self, store: &Path, owner: u32, layout: Layout) {
        let here = in_records(&fs::metadata(store).unwrap());
        for directory in self.directories.iter().skip(1) {
            if layout == Layout::Tree {
                make_directory(&store.join(directory), owner);
            }
        }
        for Original {
            path,
            text,
            mode,
            link,
        } in &self.files
        {
            let file = store.join(layout.place(path));
            if let Some(link) = link {
                let linked = layout.place(&self.files[*link].path);
                fs::hard_link(store.join(linked), file).unwrap();
                continue;
            }
            match std::str::from_utf8(text) {
                Ok(text) => fs::write(&file, text.replace(&self.store, &here)).unwrap(),
                Err(_) => fs::write(&file, text).unwrap(),
            }
            give(&file, owner, *mode);
        }
        for path in INNOCENT {
            let file = store.join(layout.place(Path::new(path)));
            make_directory(file.parent().unwrap(), owner);
            if !file.exists() {
                fs::write(&file, "innocent\n").unwrap();
                give(&file, owner, 0o644);
            }
        }
    }
}

/// A store in the records of its locks.
pub(super) fn in_records(store: &fs::Metadata) -> String {
    let (device, inode) = (store.dev(), store.ino());
    format!("\"store_device\":{device},\"store_inode\":{inode}")
}

/// Where the files of a store lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Tree,
    /// That of a store with the sticky bit.
    Flat,
}

impl Layout {
    pub(super) fn of(mode: u32) -> Self {
        if mode & 0o1000 == 0 {
            Self::Tree
        } else {
            Self::Flat
        }
    }

    /// Where a file of the tree lies.
    pub(super) fn place(self, path: &Path) -> PathBuf {
        let text = path.to_str().unwrap();
        if self == Self::Tree {
            return path.to_owned();
        }
        let flat = |path: &str| path.replace(".d/", "/").replace('/', "%2F");
        let user = |kind: &str, end: &str| format!(".onehold-{kind}-{STRANGER}{end}");
        let placed = match text.strip_prefix(".onehold/") {
            Some("last") => user("last", ""),
            Some("waiting/reserved") => user("reserved", ""),
            Some("events.jsonl") => user("events", ".jsonl"),
            Some("events.jsonl.1") => user("events", ".jsonl.1"),
            Some(other) => match other
                .strip_prefix("waiting/")
                .and_then(|of| of.rsplit_once('/'))
            {
                Some((of, ticket)) => format!(".onehold-ticket-{ticket}+{}", flat(of)),
                None => flat(text).replace(".onehold%2F", ".onehold-"),
            },
            None => flat(text),
        };
        placed.into()
    }
}
