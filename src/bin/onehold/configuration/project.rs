//! The project that a directory belongs to, and the locks of its files.
//!
//! It is found without git(1), which would take longer than the lock.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use onehold::LockName;

use super::EffectiveConfig;
use super::spelling::{Spelling, spelled};
use super::values::ProjectPath;
use crate::arguments::args::UsageError;
use crate::words::{cause_text, path_text};

/// The directory of the store in that of git, which `git clean` and `git gc` leave alone.
const STORE: &str = "onehold";

/// The locks of all files are below this name.
const FILES: &str = "files";

/// The longest chain of symbolic links that is followed, as in path_resolution(7).
const MAX_LINKS: usize = 40;

/// A project, as it is seen from one directory.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    /// The directory of its locks. All worktrees of a repository share it.
    pub(crate) store: PathBuf,
    /// The root of the worktree. `None`: there is none in a git directory.
    root: Option<PathBuf>,
}

impl Project {
    /// That of the current directory. `paths`: the files whose locks are wanted of it.
    pub(crate) fn of_current_directory(
        config: &EffectiveConfig,
        paths: &[PathBuf],
    ) -> anyhow::Result<Self> {
        let current = std::env::current_dir().context("cannot find the current directory")?;
        let configured = config.settings.project_dir.as_ref();
        if let Some(project) = Self::of(&current, configured)? {
            return Ok(project);
        }
        if let Some(path) = paths.first() {
            let (current, path) = (path_text(&current), path_text(path));
            bail!(
                "no project: `{current}` is in no git repository; to lock `{path}`, run it inside the repository"
            )
        }
        let mark = configured.map(|path| format!(", or `mkdir {}`", path_text(path.parts().1)));
        let (current, mark) = (path_text(&current), mark.unwrap_or_default());
        bail!(
            "no project: `{current}` is in no git repository; to make one, run `git init`{mark}; else use --dir DIR"
        )
    }

    /// `configured`: what the profile says of projects comes first.
    fn of(directory: &Path, configured: Option<&ProjectPath>) -> anyhow::Result<Option<Self>> {
        let marked = configured.map(|path| Self::marked(directory, path));
        if let Some(project) = marked.transpose()?.flatten() {
            return Ok(Some(project));
        }
        for directory in directory.ancestors() {
            if let Some(project) = Self::of_repository(directory)? {
                return Ok(Some(project));
            }
        }
        Ok(None)
    }

    /// The nearest directory that has the first part of the profile's path.
    pub(crate) fn marked(directory: &Path, path: &ProjectPath) -> anyhow::Result<Option<Self>> {
        let (path, mark) = path.parts();
        let mut above = directory.ancestors();
        let Some(root) = above.find(|directory| directory.join(mark).is_dir()) else {
            return Ok(None);
        };
        let store = root.join(path);
        ensure_trusted(&root.join(mark), &store)?;
        if store.symlink_metadata().is_ok() {
            ensure_trusted(&store, &store)?;
        }
        Ok(Some(Self {
            store,
            root: Some(root.to_owned()),
        }))
    }

    /// The repository that has its worktree, or its git directory, exactly here.
    fn of_repository(directory: &Path) -> anyhow::Result<Option<Self>> {
        let entry = directory.join(".git");
        let of_git = &Path::new("…/.git").join(STORE);
        let (git, root) = match fs::metadata(&entry) {
            // Of a linked worktree, or of a submodule.
            Ok(found) if found.is_file() => {
                ensure_trusted(&entry, of_git)?;
                (named_directory(&entry)?, Some(directory))
            }
            Ok(_) if is_git_directory(&entry) => (entry.clone(), Some(directory)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!(failed("cannot read", &entry)(error));
            }
            _ if is_bare(directory) => (directory.to_owned(), None),
            _ => return Ok(None),
        };
        ensure_trusted(&git, of_git)?;
        let common = common_directory(&git)?;
        ensure_trusted(&common, of_git)?;
        Ok(Some(Self {
            store: common.join(STORE),
            root: root.map(Path::to_owned),
        }))
    }

    /// The lock of a file or directory.
    pub(crate) fn lock_of(
        &self,
        typed: &Path,
        config: &EffectiveConfig,
    ) -> anyhow::Result<LockName> {
        let shown = || path_text(typed);
        let path = std::path::absolute(typed).and_then(|path| real_path(&path, MAX_LINKS));
        let path = path.map_err(failed("cannot resolve", typed))?;
        // The root of a submodule is a directory of the repository that it is in.
        let starts = [Some(path.as_path()), path.parent()];
        for start in starts.into_iter().flatten() {
            let project = Self::of(start, config.settings.project_dir.as_ref())?;
            let Some(project) = project.filter(|project| self.has_store_of(project)) else {
                continue;
            };
            let below = project.root.as_deref().map(|root| path.strip_prefix(root));
            let Some(Ok(below)) = below else {
                bail!(UsageError(format!(
                    "`{}` is in the directory of git, and not in a worktree",
                    shown()
                )));
            };
            let mut name = FILES.to_owned();
            let mut spelling = Spelling::below(project.root.as_deref().unwrap_or(&path));
            for part in below {
                name.push('/');
                push_escaped(&mut name, spelling.of(part).as_encoded_bytes());
            }
            return Ok(LockName::new(name)?);
        }
        let root = self.root.as_ref().unwrap_or(&self.store);
        bail!(UsageError(format!(
            "`{}` is outside of the project `{}`",
            shown(),
            path_text(root)
        )))
    }

    fn has_store_of(&self, other: &Self) -> bool {
        self.store == other.store || spelled(&self.store) == spelled(&other.store)
    }

    /// Makes the store of a repository that its group shares (`git init --shared`), so that the group can use it
    /// whatever the umask is. Every other store is made with its first lock.
    #[cfg(unix)]
    pub(crate) fn share_store(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;

        const GROUP_WRITES: u32 = 0o020;
        let above = self
            .store
            .parent()
            .and_then(|above| fs::metadata(above).ok());
        let Some(above) = above.filter(|above| above.permissions().mode() & GROUP_WRITES != 0)
        else {
            return Ok(());
        };
        let made = fs::create_dir(&self.store);
        match made.and_then(|()| fs::set_permissions(&self.store, above.permissions())) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(failed("cannot create store", &self.store)(error))
            }
            _ => Ok(()),
        }
    }
}

/// An error about a path.
fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow!("{what} `{}`: {}", path_text(path), cause_text(&error))
}

/// As gitrepository-layout(5) has it.
fn is_git_directory(path: &Path) -> bool {
    let has = |name: &str| fs::symlink_metadata(path.join(name)).is_ok();
    has("HEAD") && (has("commondir") || (has("objects") && has("refs")))
}

/// Whether a repository without a worktree is here. What a worktree contains may look like one, and would choose
/// the store. Below `.git` there is nothing that was committed.
fn is_bare(directory: &Path) -> bool {
    if !is_git_directory(directory) || directory.join("commondir").symlink_metadata().is_ok() {
        return false;
    }
    let git_of = |above: &Path| above.join(".git");
    let mut above = directory.ancestors().skip(1);
    let above = above.find(|above| git_of(above).symlink_metadata().is_ok());
    above.is_none_or(|above| directory.starts_with(git_of(above)))
}

/// The git directory that a `.git` file names.
fn named_directory(file: &Path) -> anyhow::Result<PathBuf> {
    let shown = path_text(file);
    let text = fs::read_to_string(file).map_err(failed("cannot read", file))?;
    let Some(named) = text.strip_prefix("gitdir:") else {
        bail!("`{shown}` names no git directory");
    };
    let named = file.with_file_name(named.trim());
    if !is_git_directory(&named) {
        let named = path_text(&named);
        bail!("`{shown}` names `{named}`, which is no git directory: see `git worktree repair`");
    }
    Ok(named)
}

/// The git directory that all worktrees of a repository share.
fn common_directory(git: &Path) -> anyhow::Result<PathBuf> {
    let common = match fs::read_to_string(git.join("commondir")) {
        Ok(named) => git.join(named.trim_end()),
        Err(error) if error.kind() == ErrorKind::NotFound => git.to_owned(),
        Err(error) => return Err(failed("cannot read", git)(error)),
    };
    fs::canonicalize(&common).map_err(failed("cannot find git directory", &common))
}

/// As git(1) does: whoever made a repository above the current directory would choose the store. That of root, and
/// with sudo(8) that of the calling user, may be used. `store`: what the message says to name in place of it.
#[cfg(unix)]
fn ensure_trusted(path: &Path, store: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt as _;

    let found = fs::symlink_metadata(path).map_err(failed("cannot read", path))?;
    let owner = found.uid();
    let own = rustix::process::geteuid().as_raw();
    let called_by = std::env::var("SUDO_UID").ok().filter(|_| own == 0);
    let is_caller = called_by.is_some_and(|uid| uid.parse() == Ok(owner));
    if owner == own || owner == 0 || is_caller {
        return Ok(());
    }
    let (path, store) = (path_text(path), path_text(store));
    bail!(
        "`{path}` belongs to another user (uid {owner}): to use its locks, name the store: --dir {store}"
    )
}

/// Owners are those of Unix.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as that of Unix")]
fn ensure_trusted(_path: &Path, _store: &Path) -> anyhow::Result<()> {
    Ok(())
}

/// The path without symbolic links, of a file that need not exist, nor the directories that it is in.
fn real_path(path: &Path, links: usize) -> io::Result<PathBuf> {
    let error = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        found => return found,
    };
    let (Some(directory), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(error);
    };
    let directory = real_path(directory, links)?;
    match fs::read_link(directory.join(file)) {
        // It leads to a file that does not exist.
        Ok(_) if links == 0 => Err(error),
        Ok(target) => real_path(&directory.join(target), links - 1),
        Err(_) => Ok(directory.join(file)),
    }
}

/// Writes bytes that the name of a lock cannot have as `\xHH`, and a backslash, too.
fn push_escaped(name: &mut String, part: &[u8]) {
    let escape = |bytes: &[u8], name: &mut String| {
        for byte in bytes {
            let _ = write!(name, "\\x{byte:02x}");
        }
    };
    for chunk in part.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char == '\\' || char.is_control() {
                escape(char.encode_utf8(&mut [0; 4]).as_bytes(), name);
            } else {
                name.push(char);
            }
        }
        escape(chunk.invalid(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_becomes_another_part_of_a_name() {
        let escaped = |part: &[u8]| {
            let mut name = String::new();
            push_escaped(&mut name, part);
            name
        };
        assert_eq!(escaped("ä b%.rs".as_bytes()), "ä b%.rs");
        assert_eq!(escaped(b"a\nb"), r"a\x0ab");
        assert_eq!(escaped(br"a\x0ab"), r"a\x5cx0ab");
        assert_eq!(escaped(b"\xff\xc3"), r"\xff\xc3");
        assert_eq!(escaped("\u{85}".as_bytes()), r"\xc2\x85");
    }
}
