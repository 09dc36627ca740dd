//! A store with every kind of file, made by a stranger, and what stands beside it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::forgery::{Edit, Facts, Forgery, How, Instead, Kind, Line, Process, User, Whose};
use crate::forgery::{edited, fnv};
use crate::harness::{TestEnv, example, foreign, wait_until};

/// The user that makes the store.
pub const STRANGER: u32 = 65_534;
const THIRD: u32 = 1;

/// What is no lock, and what is a lock of a holder that lives. Both stay as they are.
const INNOCENT: [&str; 8] = [
    "data.txt",
    "x.lock.bak",
    "%zz.lock",
    "section.d/notes.txt",
    "other.d/deep.d/more",
    ".onehold/notes",
    ".onehold/waiting/notes",
    "lease.lock",
];

struct Sleeper(Child);

impl Sleeper {
    fn of(user: u32) -> Self {
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
    fn with_lock(file: &Path) -> Option<Self> {
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

    fn process(&self) -> Process {
        let pid = self.0.id();
        let facts = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The 22nd of 52.
        let start = facts.rsplit(' ').nth(52 - 22).unwrap().parse().unwrap();
        Process { pid, start }
    }

    fn is_alive(&self) -> bool {
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

/// The files and directories of a store.
pub struct Template {
    files: Vec<Original>,
    directories: Vec<PathBuf>,
    /// As records name it.
    store: String,
}

struct Original {
    path: PathBuf,
    text: Vec<u8>,
    mode: u32,
    /// An earlier file that it is another name of.
    link: Option<usize>,
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
    fn read(&mut self, root: &Path, below: &Path, seen: &mut BTreeMap<u64, usize>) {
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

    fn text_of(&self, path: &str) -> String {
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

    fn fill(&self, store: &Path, owner: u32, layout: Layout) {
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
fn in_records(store: &fs::Metadata) -> String {
    let (device, inode) = (store.dev(), store.ino());
    format!("\"store_device\":{device},\"store_inode\":{inode}")
}

fn give(path: &Path, owner: u32, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    lchown(path, Some(owner), Some(owner)).unwrap();
}

/// A directory that everybody may write to, like a shared store.
fn make_directory(path: &Path, owner: u32) {
    let mut missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    while let Some(directory) = missing.pop() {
        fs::create_dir(directory).unwrap();
        give(directory, owner, 0o777);
    }
}

/// A directory with an empty store, in memory if possible.
pub fn place() -> TestEnv {
    let memory = tempfile::tempdir_in("/dev/shm");
    let env = memory.map_or_else(|_| TestEnv::new(), |root| TestEnv { root });
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    make_directory(&env.store(), STRANGER);
    env
}

/// What the stranger may not touch, and the processes.
pub struct Surroundings {
    outside: TestEnv,
    /// What is outside: paths, sizes, times, modes, owners.
    before: RefCell<Vec<String>>,
    root: RefCell<Sleeper>,
    third: RefCell<Sleeper>,
    stranger: RefCell<Sleeper>,
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

    fn fill_outside(&self, template: &Template) {
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
    fn revive(&self) {
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
fn owned_by_root(directory: &Path) -> BTreeSet<PathBuf> {
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

fn state_of(directory: &Path) -> Vec<String> {
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

/// Where the files of a store lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Tree,
    /// That of a store with the sticky bit.
    Flat,
}

impl Layout {
    fn of(mode: u32) -> Self {
        if mode & 0o1000 == 0 {
            Self::Tree
        } else {
            Self::Flat
        }
    }

    /// Where a file of the tree lies.
    fn place(self, path: &Path) -> PathBuf {
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

/// Whose a store is, and what others may do there.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    mode: u32,
    owner: u32,
    /// Of the directories in it, whose mode is the same.
    owner_of_directories: u32,
    path: Leads,
    content: Content,
}

/// How the path of a store leads to it. All but the first lead through a link of the stranger to a directory of root's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    Straight,
    /// The link is in place of the store.
    ByLink,
    /// In place of its parent.
    ByParent,
    /// Behind a link of root's.
    ByTwoLinks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Every kind of file.
    Full,
    Empty,
    /// It is the default one in a home of the stranger, and does not exist yet.
    Missing,
}

impl Kept {
    /// The stranger may read it, and change nothing there.
    pub const fn is_roots_own(self) -> bool {
        self.owner == 0 && self.mode & 0o022 == 0
    }
}

const fn kept(mode: u32, owner: u32) -> Kept {
    Kept {
        mode,
        owner,
        owner_of_directories: STRANGER,
        path: Leads::Straight,
        content: Content::Full,
    }
}

const fn led(path: Leads) -> Kept {
    Kept {
        path,
        ..kept(0o755, STRANGER)
    }
}

const fn first_used_by_root(mode: u32, content: Content) -> Kept {
    Kept {
        content,
        ..kept(mode, STRANGER)
    }
}

pub const STORES: [Kept; 14] = [
    kept(0o1777, 0),
    Kept {
        owner_of_directories: 0,
        ..kept(0o1777, 0)
    },
    kept(0o1777, STRANGER),
    kept(0o777, 0),
    kept(0o2777, STRANGER),
    kept(0o755, STRANGER),
    kept(0o700, STRANGER),
    led(Leads::ByLink),
    led(Leads::ByParent),
    led(Leads::ByTwoLinks),
    first_used_by_root(0o700, Content::Empty),
    first_used_by_root(0o755, Content::Empty),
    first_used_by_root(0o755, Content::Missing),
    Kept {
        owner_of_directories: 0,
        ..kept(0o755, 0)
    },
];

/// The record of a live hold of root's, which no command is about.
const OF_ROOT: &str = "job.lock";

/// Beside the store: a FIFO that nobody writes to, a home of the stranger, and a link in place of the store's parent.
pub const FIFO: &str = "fifo";
const HOME: &str = "home";
const PARENT: &str = "parent";

/// Files outside that are no configuration begin with these names, and have this in them.
pub const CONFIGURATION: &str = "configuration";
pub const SECRET: &str = "s3cret-of-root";

/// A store with forged files.
pub struct Stranger<'a> {
    env: TestEnv,
    template: &'a Template,
    around: &'a Surroundings,
    layout: Layout,
    /// What of it stands there after the forgeries.
    innocent: Vec<(PathBuf, Vec<u8>)>,
    kept: Kept,
    /// The records of root, and what they say.
    of_root: Vec<(fs::File, Vec<u8>)>,
    /// What belongs to root at the beginning.
    roots: BTreeSet<PathBuf>,
    forged: Vec<PathBuf>,
    third_has_written: bool,
    /// Those of the stranger that hold kernel locks.
    lockers: Vec<Sleeper>,
    is_deep: bool,
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        if self.is_deep {
            remove(self.env.root.path());
        }
    }
}

impl<'a> Stranger<'a> {
    pub fn new(
        template: &'a Template,
        around: &'a Surroundings,
        kept: Kept,
        forgeries: &[Forgery],
    ) -> Self {
        around.revive();
        let env = place();
        let layout = Layout::of(kept.mode);
        make_fifo(&env.path(FIFO));
        lchown(env.path(FIFO), Some(STRANGER), Some(STRANGER)).unwrap();
        let owner = if kept.is_roots_own() { 0 } else { STRANGER };
        if kept.content == Content::Full {
            template.fill(&env.store(), owner, layout);
        }
        let of_directories = kept.owner_of_directories;
        for directory in template.directories.iter().skip(1) {
            if layout == Layout::Tree && kept.content == Content::Full {
                give(&env.store().join(directory), of_directories, kept.mode);
            }
        }
        give(&env.store(), kept.owner, kept.mode);
        if kept.is_roots_own() {
            // As root's first use has left it.
            let guard = env.store().join(".onehold/guard");
            fs::create_dir(&guard).unwrap();
            give(&guard, 0, 0o700);
        }
        if kept.content == Content::Missing {
            fs::remove_dir(env.store()).unwrap();
            make_directory(&env.path(HOME), STRANGER);
            give(&env.path(HOME), STRANGER, kept.mode);
        }
        let mut stranger = Self {
            env,
            template,
            around,
            kept,
            of_root: Vec::new(),
            roots: BTreeSet::new(),
            layout,
            innocent: Vec::new(),
            forged: Vec::new(),
            third_has_written: false,
            lockers: Vec::new(),
            is_deep: false,
        };
        let store = stranger.env.store();
        if kept.content != Content::Missing {
            stranger.put_record_of_root(&store.join(OF_ROOT), &store, "job");
        }
        for forgery in forgeries {
            stranger.forge(forgery);
        }
        stranger.roots = owned_by_root(&stranger.ground());
        stranger.innocent = INNOCENT
            .iter()
            .map(|path| stranger.env.store().join(layout.place(Path::new(path))))
            .filter(|file| is_reached(file) && !stranger.forged.contains(file))
            .filter_map(|file| read(&file).map(|text| (file, text)))
            .collect();
        if kept.path != Leads::Straight {
            fs::rename(&store, stranger.env.path("theirs")).unwrap();
            let outside = stranger.outside();
            let (link, to) = match kept.path {
                Leads::Straight | Leads::ByLink => (store, &*outside),
                Leads::ByParent => (stranger.env.path(PARENT), outside.parent().unwrap()),
                Leads::ByTwoLinks => {
                    symlink("second", &store).unwrap();
                    (stranger.env.path("second"), &*outside)
                }
            };
            symlink(to, &link).unwrap();
            lchown(&link, Some(STRANGER), Some(STRANGER)).unwrap();
            stranger.innocent.clear();
        }
        stranger
    }

    /// The store, as root names it.
    pub fn dir(&self) -> PathBuf {
        match (self.kept.content, self.kept.path) {
            (Content::Missing, _) => self.env.path(HOME).join(".local/state/onehold"),
            (_, Leads::ByParent) => self.env.path(PARENT).join("store"),
            _ => self.env.store(),
        }
    }

    /// The home of the stranger that root has still, where no store is named.
    pub fn home(&self) -> Option<PathBuf> {
        (self.kept.content == Content::Missing).then(|| self.env.path(HOME))
    }

    /// Below which root may make files.
    pub fn ground(&self) -> PathBuf {
        self.home().unwrap_or_else(|| self.env.store())
    }

    /// There is a tree that is deeper than a path can be.
    pub const fn is_deep(&self) -> bool {
        self.is_deep
    }

    /// A record of a live hold of root's: of the lock `name` in `store`.
    fn put_record_of_root(&mut self, path: &Path, store: &Path, name: &str) {
        let text = self.template.text_of("x.lock");
        let key = "\"name\": \"x\"";
        assert!(text.contains(key), "the record has another form");
        let named = text.replacen(key, &format!("\"name\": \"{name}\""), 1);
        let there = in_records(&fs::metadata(store).unwrap());
        let text = named.replace(&self.template.store, &there);
        let text = self.edited(text.as_bytes(), &[Edit::Wrapper(Whose::Root)]);
        if clear(path) {
            fs::write(path, &text).unwrap();
            give(path, 0, 0o644);
            self.of_root.push((fs::File::open(path).unwrap(), text));
        }
    }

    fn put_of_root(&mut self, path: &Path, at: proptest::sample::Index, how: How) {
        let (store, outside) = (self.env.store(), self.outside());
        let own = store.join(OF_ROOT);
        // In a sticky directory only its owner may do that.
        let may_rename = self.kept.mode & 0o1000 == 0 || self.kept.owner == STRANGER;
        match how {
            How::Moved if may_rename && clear(path) => {
                // An earlier change has done so already.
                let _ = fs::rename(own, path);
            }
            How::Linked if clear(path) => {
                let _ = fs::hard_link(own, path);
            }
            How::Moved | How::Linked => {}
            How::FromElsewhere => self.put_record_of_root(path, &outside, "job"),
            How::SameFromElsewhere => {
                let name = self.template.lock_of(at);
                let place = PathBuf::from(format!("{}.lock", name.replace('/', ".d/")));
                let path = store.join(self.layout.place(&place));
                if is_reached(&path) {
                    self.put_record_of_root(&path, &outside, &name);
                    self.forged.push(path);
                }
            }
        }
    }

    pub fn env(&self) -> &TestEnv {
        &self.env
    }

    pub fn outside(&self) -> PathBuf {
        self.around.outside()
    }

    /// Whose directories are used in the store, if others have some there, too: root's and these.
    pub fn owner_of_sticky(&self) -> Option<u32> {
        // A forgery may have given the store away.
        let found = fs::metadata(self.env().store()).ok();
        let (mode, owner) = found.map_or((self.kept.mode, self.kept.owner), |found| {
            (found.mode(), found.uid())
        });
        (mode & 0o1000 != 0).then_some(owner)
    }

    /// The processes that root may send signals to.
    pub fn processes(&self) -> Vec<u32> {
        let of_third = self.third_has_written.then_some(Whose::Third);
        let all = [Some(Whose::Stranger), of_third].into_iter().flatten();
        let lockers = self.lockers.iter().map(|locker| locker.0.id());
        let all = all.map(|whose| self.around.process(whose).pid);
        all.chain(lockers).collect()
    }

    fn edited(&self, text: &[u8], edits: &[Edit]) -> Vec<u8> {
        let facts = Facts {
            process: &|whose| self.around.process(whose),
            outside: &self.outside().display().to_string(),
        };
        edited(text, edits, &facts)
    }

    fn file(&self, at: proptest::sample::Index) -> &'a Original {
        at.get(&self.template.files)
    }

    /// Lets a file or a directory belong to another user.
    fn give_away(&mut self, path: &Path, user: User) {
        // What belongs to root already may have its other name outside.
        let facts = fs::symlink_metadata(path).ok();
        let Some(facts) = facts.filter(|facts| facts.uid() != 0) else {
            return;
        };
        let owner = match user {
            User::Root => 0,
            User::Third => THIRD,
        };
        self.third_has_written |= owner == THIRD;
        lchown(path, Some(owner), Some(owner)).unwrap();
        if facts.is_file() && owner == 0 {
            // Or it would be root's word.
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        }
    }

    /// An earlier change may have put something else there: then there is nothing to do.
    fn forge(&mut self, forgery: &Forgery) {
        let store = self.env.store();
        let directory = |at: &proptest::sample::Index| {
            let path = at.get(&self.template.directories);
            // In a flat layout there are none. One that is made all the same is in the way.
            let depth = if self.layout == Layout::Flat {
                1
            } else {
                usize::MAX
            };
            store.join(path.iter().take(depth).collect::<PathBuf>())
        };
        let placed = |path: &Path| store.join(self.layout.place(path));
        let path = match forgery {
            Forgery::Text(at, _)
            | Forgery::TextOf(at, ..)
            | Forgery::Replace(at, _)
            | Forgery::Rename(at, _)
            | Forgery::Link(at, _)
            | Forgery::Lock(at, _)
            | Forgery::OfRoot(at, _)
            | Forgery::Owner(at, _)
            | Forgery::Mode(at, _) => placed(&self.file(*at).path),
            Forgery::Copy(of, _, at, name) => {
                let old = self.layout.place(&self.file(*of).path);
                let old = old.file_name().unwrap().to_str().unwrap();
                directory(at).join(name.of(old))
            }
            Forgery::Lines(true, _) => placed(".onehold/events.jsonl.1".as_ref()),
            Forgery::Lines(false, _) => placed(".onehold/events.jsonl".as_ref()),
            Forgery::Directory(at, _)
            | Forgery::OwnerOfDirectory(at, _)
            | Forgery::ModeOfDirectory(at, _)
            | Forgery::LockDirectory(Some(at)) => directory(at),
            Forgery::LockDirectory(None) => store.clone(),
            Forgery::Linked(path) => placed(Path::new(path)),
        };
        if !is_reached(&path) {
            return;
        }
        self.forged.push(path.clone());
        match forgery {
            Forgery::Text(_, edits) | Forgery::TextOf(_, edits, _) | Forgery::Lock(_, edits) => {
                if let Some(text) = read(&path)
                    && !self.kept.is_roots_own()
                {
                    put(&path, &self.edited(&text, edits));
                }
                match forgery {
                    Forgery::TextOf(.., user) => self.give_away(&path, *user),
                    Forgery::Lock(..) => self.lockers.extend(Sleeper::with_lock(&path)),
                    _ => {}
                }
            }
            Forgery::Copy(of, edits, ..) => {
                let text = read(&placed(&self.file(*of).path));
                let text = text.unwrap_or_else(|| self.file(*of).text.clone());
                put(&path, &self.edited(&text, edits));
            }
            Forgery::Lines(_, lines) => {
                let mut text = read(&path).unwrap_or_default();
                for line in lines {
                    self.add_line(&mut text, line);
                }
                put(&path, &text);
            }
            Forgery::Replace(_, kind) => self.replace(&path, *kind),
            Forgery::Linked(_) => self.replace(&path, Kind::HardLink),
            Forgery::OfRoot(at, how) => self.put_of_root(&path, *at, *how),
            Forgery::Rename(_, name) | Forgery::Link(_, name) => {
                let new = path.with_file_name(name.of(path.file_name().unwrap().to_str().unwrap()));
                // A file of root that only root may write to is no forgery.
                let _ = match forgery {
                    Forgery::Rename(..) => fs::rename(&path, &new),
                    _ => fs::hard_link(&path, &new),
                };
                self.forged.push(new);
            }
            Forgery::Owner(_, user) | Forgery::OwnerOfDirectory(_, user) => {
                self.give_away(&path, *user);
            }
            Forgery::Mode(_, mode) | Forgery::ModeOfDirectory(_, mode) => {
                let facts = fs::symlink_metadata(&path).ok();
                let may =
                    |facts: fs::Metadata| facts.uid() != 0 && (facts.is_dir() || facts.is_file());
                if facts.is_some_and(may) {
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
                }
            }
            Forgery::Directory(_, instead) if path != store => {
                self.replace_directory(&path, *instead);
            }
            Forgery::Directory(..) => {}
            Forgery::LockDirectory(_) => self.lockers.extend(Sleeper::with_lock(&path)),
        }
    }

    fn add_line(&self, text: &mut Vec<u8>, line: &Line) {
        let journal = self.template.text_of(".onehold/events.jsonl");
        let lines: Vec<&str> = journal.lines().collect();
        let line_of_journal = line.of.get(&lines).replace(&self.template.store, "");
        let new = self.edited(line_of_journal.as_bytes(), &line.edits);
        for _ in 0..line.times {
            text.extend_from_slice(&new);
            text.push(b'\n');
        }
    }

    fn replace(&self, file: &Path, kind: Kind) {
        if !clear(file) {
            return;
        }
        match kind {
            Kind::SymlinkOutside => symlink(self.same_outside(file), file).unwrap(),
            Kind::SymlinkToItself => symlink(file, file).unwrap(),
            // Where fs.protected_hardlinks is off, or as its owner did.
            Kind::HardLink => fs::hard_link(self.same_outside(file), file).unwrap(),
            Kind::Fifo => make_fifo(file),
            Kind::Directory => fs::create_dir(file).unwrap(),
            Kind::Empty => fs::write(file, "").unwrap(),
            Kind::Zeros => fs::write(file, [0; 4096]).unwrap(),
            Kind::Large => fs::write(file, vec![b' '; 3 << 20]).unwrap(),
        }
        if !matches!(kind, Kind::HardLink) {
            lchown(file, Some(STRANGER), Some(STRANGER)).unwrap();
        }
    }

    /// The same place of the other store.
    fn same_outside(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix(self.env.store()).unwrap();
        let same = self.outside().join(below);
        // It has the layout of a tree.
        if same.parent().is_some_and(Path::is_dir) && (same.exists() || self.layout == Layout::Tree)
        {
            same
        } else {
            self.outside().join("canary")
        }
    }

    fn replace_directory(&mut self, path: &Path, instead: Instead) {
        remove(path);
        match instead {
            Instead::SymlinkOutside => symlink(self.same_outside(path), path).unwrap(),
            Instead::SymlinkToItself => symlink(path, path).unwrap(),
            Instead::SymlinkToStore => symlink(self.env.store(), path).unwrap(),
            Instead::File => fs::write(path, "").unwrap(),
            Instead::Fifo => make_fifo(path),
            Instead::Nothing => return,
            Instead::Nested(depth) => {
                make_directory(path, STRANGER);
                let mut nest = Command::new(example("programs"));
                // An earlier change may have closed the way to it.
                nest.args(["nest", "/proc/self/fd/0", "d.d", &depth.to_string()]);
                nest.stdin(fs::File::open(path).unwrap());
                let nested = nest.uid(STRANGER).gid(STRANGER).status().unwrap();
                assert!(nested.success());
                self.is_deep |= depth > 1_000;
            }
        }
        lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }

    /// What is otherwise than it must be, whatever has happened.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.around.root.borrow().is_alive() {
            faults.push("the process of root has ended".to_owned());
        }
        let now = state_of(&self.outside());
        let before = self.around.before.borrow().clone();
        if now != before {
            let differs = |file: &&String| now.contains(file) != before.contains(file);
            let differences: Vec<_> = now.iter().chain(&before).filter(differs).collect();
            faults.push(format!("outside has changed: {differences:#?}"));
            self.around.fill_outside(self.template);
        }
        for (file, text) in &self.of_root {
            let mut now = vec![0; text.len() + 1];
            let length = file.read_at(&mut now, 0).unwrap();
            if now[..length] != text[..] {
                let now = String::from_utf8_lossy(&now[..length]);
                faults.push(format!("a record of root has changed: {now}"));
            }
        }
        // Where nobody else writes, root leaves nothing that locks the owner out. Records and tickets stay root's.
        let is_own = self.kept.mode & 0o1022 == 0
            && !self.kept.is_roots_own()
            && self.kept.path == Leads::Straight;
        let made = owned_by_root(&self.ground());
        for path in made.difference(&self.roots).filter(|_| is_own) {
            let is_forged = self.forged.iter().any(|forged| path.starts_with(forged));
            let facts = fs::symlink_metadata(path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let own = [
                "last",
                "shared",
                "reserved",
                "events.jsonl",
                "events.jsonl.1",
            ];
            if !is_forged && (facts.is_dir() || own.contains(&name)) {
                faults.push(format!("{} belongs to root", path.display()));
            }
        }
        for (path, text) in &self.innocent {
            if read(path).as_ref() != Some(text) {
                faults.push(format!("{} has changed", path.display()));
            }
        }
        faults
    }

    /// The forged files, as they are now.
    pub fn shown(&self) -> String {
        let shown = |path: &PathBuf| {
            let facts = fs::symlink_metadata(path);
            let facts = facts.map(|facts| format!("{:o} {}", facts.mode(), facts.uid()));
            let text = read(path)
                .map(|text| String::from_utf8_lossy(&text[..text.len().min(1_500)]).into_owned());
            format!("{} {facts:?}: {text:?}", path.display())
        };
        self.forged.iter().map(shown).collect::<Vec<_>>().join("\n")
    }
}

/// Whether a place is not behind a symlink that was put there.
fn is_reached(place: &Path) -> bool {
    let parent = place.parent().unwrap();
    let is_plain = place.components().all(|part| part != Component::ParentDir);
    is_plain && parent.is_dir() && parent.canonicalize().is_ok_and(|found| found == parent)
}

/// Anew: in a sticky directory root may not open it with `O_CREAT` (proc_sys_fs(5)).
fn put(path: &Path, text: &[u8]) {
    let before = fs::symlink_metadata(path)
        .ok()
        .filter(fs::Metadata::is_file);
    // There are names that no file can have.
    if clear(path) && fs::write(path, text).is_ok() {
        give(
            path,
            STRANGER,
            before.map_or(0o644, |before| before.mode() & 0o7777),
        );
    }
}

/// Removes what is there, however deep it is: a recursion has one descriptor for each directory.
fn remove(path: &Path) {
    let removed = Command::new("rm").arg("-rf").arg(path).status();
    assert!(removed.unwrap().success());
}

/// Removes what is there, but not a directory: `false`.
fn clear(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() => false,
        Ok(_) => fs::remove_file(path).is_ok(),
        Err(_) => true,
    }
}

/// The content of a regular file. A FIFO would be waited for.
fn read(path: &Path) -> Option<Vec<u8>> {
    let facts = fs::symlink_metadata(path).ok()?;
    facts.is_file().then(|| fs::read(path).ok())?
}

fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a string that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}
