//! A store with every kind of file, made by a stranger, and what stands beside it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::forgery::{Change, Forgery, Kind, Process, Target, forged};
use crate::harness::{TestEnv, foreign, wait_until};

/// The user that makes the store.
const STRANGER: u32 = 65_534;

/// What is no lock, and stays as it is.
const INNOCENT: [(&str, &str); 3] = [
    ("data.txt", "data\n"),
    ("section.d/notes.txt", "notes\n"),
    ("other.d/deep.d/more", "more\n"),
];

const CANARY: &str = "canary\n";

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

/// The files of a store.
pub struct Template {
    files: Vec<(PathBuf, Vec<u8>)>,
    victim: Sleeper,
}

impl Template {
    pub fn new() -> Self {
        // In a sticky one nothing is kept.
        let env = place(0o777);
        let script = "umask 0; export ONEHOLD_HISTORY=1; \
            onehold run past -- true; onehold run failed -- false; \
            onehold acquire zombie --pid $1; onehold break zombie --yes; \
            onehold run x -m why --owner o -- sleep 1000 & \
            onehold run section/y z --die-with $1 --kill-after 3 -- sleep 1000 & \
            onehold acquire pool --slots 2 --pid $1; onehold acquire pool --slots 3 --ttl 1h; \
            onehold run kept --hold-at-least 1h -- true; \
            until ! onehold check -q x; do sleep 0.01; done; \
            onehold run -w 100 x --owner a --keep-place 10m -- true & \
            onehold run -w 100 x section/y -- true & \
            wait";
        let holder = Sleeper::of(STRANGER);
        let mut shell = env.command("setpriv");
        shell.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        shell
            .arg(holder.0.id().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shell.process_group(0);
        let mut shell = shell.spawn().unwrap();
        wait_until("two wait", || {
            let queue = env.store().join(".onehold/waiting/x.lock");
            fs::read_dir(queue).is_ok_and(|tickets| tickets.count() >= 2)
        });
        let mut files = Vec::new();
        read_tree(&env.store(), Path::new(""), &mut files);
        // SAFETY: the group of the shell that was started above.
        unsafe { libc::kill(-shell.id().cast_signed(), libc::SIGKILL) };
        shell.wait().unwrap();
        let pid = holder.0.id();
        for (name, text) in [
            ("prodigy.lock", foreign::prodigy("prodigy", pid)),
            ("sprint.lock", foreign::sprint(pid)),
            ("pid.lock", format!("{pid}\n")),
        ] {
            files.push((PathBuf::from(name), text.into_bytes()));
        }
        files.sort();
        assert!(
            files.len() >= 14,
            "{:?}",
            files.iter().map(|(path, _)| path).collect::<Vec<_>>()
        );
        Self {
            files,
            victim: Sleeper::of(0),
        }
    }

    pub fn victim(&self) -> u32 {
        self.victim.0.id()
    }
}

fn place(mode: u32) -> TestEnv {
    let env = TestEnv::new();
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(env.store()).unwrap();
    own(&env.store());
    fs::set_permissions(env.store(), fs::Permissions::from_mode(mode)).unwrap();
    env
}

fn own(path: &Path) {
    lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

fn read_tree(root: &Path, below: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            read_tree(root, &path, files);
        } else {
            files.push((path, fs::read(entry.path()).unwrap()));
        }
    }
}

/// The content of a regular file. A FIFO would be waited for.
fn read(path: &Path) -> Option<Vec<u8>> {
    let facts = fs::symlink_metadata(path).ok()?;
    facts.is_file().then(|| fs::read(path).ok())?
}

/// A store with forged files.
pub struct Stranger<'a> {
    env: TestEnv,
    own: Sleeper,
    template: &'a Template,
    forged: Vec<PathBuf>,
}

impl<'a> Stranger<'a> {
    pub fn new(template: &'a Template, forgeries: &[Forgery]) -> Self {
        let env = place(0o1777);
        let outside = env.path("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("canary"), CANARY).unwrap();
        let mut stranger = Self {
            env,
            own: Sleeper::of(STRANGER),
            template,
            forged: Vec::new(),
        };
        for (path, text) in &template.files {
            stranger.put(path, text);
        }
        for (path, text) in INNOCENT {
            stranger.put(Path::new(path), text.as_bytes());
        }
        for forgery in forgeries {
            let at = forgery.file.index(template.files.len());
            let (path, text) = &template.files[at];
            stranger.forge(path, text, &forgery.change);
        }
        stranger
    }

    pub fn env(&self) -> &TestEnv {
        &self.env
    }

    pub fn process(&self) -> u32 {
        self.own.0.id()
    }

    fn put(&mut self, path: &Path, text: &[u8]) {
        let file = self.env.store().join(path);
        let mut missing = Vec::new();
        let mut parent = file.parent();
        while let Some(directory) = parent.filter(|directory| !directory.exists()) {
            missing.push(directory.to_owned());
            parent = directory.parent();
        }
        for directory in missing.iter().rev() {
            fs::create_dir(directory).unwrap();
            own(directory);
        }
        fs::write(&file, text).unwrap();
        own(&file);
    }

    fn forge(&mut self, path: &Path, text: &[u8], change: &Change) {
        let file = self.env.store().join(path);
        let process = |target| match target {
            Target::Victim => self.template.victim.process(),
            Target::Own => self.own.process(),
        };
        // An earlier change may have put something else there.
        let text = read(&file).unwrap_or_else(|| text.to_vec());
        let changed = forged(&text, change, process);
        self.forged.push(path.to_owned());
        match change {
            Change::Replace(kind) => self.replace(&file, *kind),
            Change::Rename(name) => {
                let _ = fs::rename(&file, file.with_file_name(name));
                self.forged.push(path.with_file_name(name));
            }
            Change::Copy(name) => {
                let _ = fs::hard_link(&file, file.with_file_name(name));
                self.forged.push(path.with_file_name(name));
            }
            _ => {
                let is_file = fs::symlink_metadata(&file)
                    .is_ok_and(|facts| facts.is_file() && facts.nlink() == 1);
                if is_file {
                    // Anew: in a sticky directory root may not open it with O_CREAT (proc_sys_fs(5)).
                    fs::remove_file(&file).unwrap();
                    fs::write(&file, changed).unwrap();
                    own(&file);
                }
            }
        }
    }

    fn replace(&self, file: &Path, kind: Kind) {
        if fs::symlink_metadata(file).is_ok_and(|facts| facts.is_dir()) {
            return;
        }
        let _ = fs::remove_file(file);
        let outside = self.env.path("outside");
        match kind {
            Kind::LinkToFile => symlink(outside.join("canary"), file).unwrap(),
            Kind::LinkToDirectory => symlink(&outside, file).unwrap(),
            Kind::LinkToItself => symlink(file, file).unwrap(),
            // Where fs.protected_hardlinks is off, or as its owner did.
            Kind::HardLink => fs::hard_link(outside.join("canary"), file).unwrap(),
            Kind::Fifo => {
                let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
                // SAFETY: a string that ends with NUL.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
            }
            Kind::Directory => fs::create_dir(file).unwrap(),
            Kind::Empty => fs::write(file, "").unwrap(),
            Kind::Zeros => fs::write(file, [0; 4096]).unwrap(),
            Kind::Large => fs::write(file, vec![b' '; 3 << 20]).unwrap(),
        }
        if !matches!(kind, Kind::HardLink) {
            own(file);
        }
    }

    /// What is otherwise than it must be, whatever has happened.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.template.victim.is_alive() {
            faults.push("the process of root has ended".to_owned());
        }
        let canary = self.env.path("outside/canary");
        let facts = fs::metadata(&canary).ok();
        let is_whole = fs::read_to_string(&canary).is_ok_and(|text| text == CANARY)
            && facts.is_some_and(|facts| (facts.uid(), facts.mode() & 0o777) == (0, 0o644));
        if !is_whole {
            faults.push("the file outside has changed".to_owned());
        }
        for (path, text) in INNOCENT {
            if fs::read_to_string(self.env.store().join(path))
                .ok()
                .as_deref()
                != Some(text)
            {
                faults.push(format!("{path} has changed"));
            }
        }
        faults
    }

    /// The forged files, as they are now.
    pub fn shown(&self) -> String {
        let shown = |path: &PathBuf| {
            let text = fs::read(self.env.store().join(path));
            let text = text
                .map(|text| String::from_utf8_lossy(&text[..text.len().min(1_500)]).into_owned());
            format!("{}: {text:?}", path.display())
        };
        self.forged.iter().map(shown).collect::<Vec<_>>().join("\n")
    }
}
