//! A store with every kind of file, made by a stranger, and what stands beside it.

mod files;
mod kept;
mod surroundings;
mod template;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use files::{clear, give, is_reached, make_directory, make_fifo, put, read, remove};
use kept::{Content, Leads};
use surroundings::{Sleeper, owned_by_root, state_of};
use template::{INNOCENT, Layout, Original, in_records};

use crate::forgery::{Edit, Facts, Forgery, How, Instead, Kind, Line, User, Whose, edited};
use crate::harness::{TestEnv, example};

pub use kept::{Kept, STORES};
pub use surroundings::Surroundings;
pub use template::Template;

/// The user that makes the store.
pub const STRANGER: u32 = 65_534;

const THIRD: u32 = 1;

/// A directory with an empty store, in memory if possible.
pub fn place() -> TestEnv {
    let memory = tempfile::tempdir_in("/dev/shm");
    let env = memory.map_or_else(|_| TestEnv::new(), |root| TestEnv { root });
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    make_directory(&env.store(), STRANGER);
    env
}

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
