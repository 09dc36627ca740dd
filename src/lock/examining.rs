//! Whether a store and its host are suitable for locks: by looking, and by trying the calls.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::store::{Listing, Store};
use super::surroundings;
use crate::backend::{Change, Entry, Patience};
use crate::error::cause_text;
use crate::files::{examine, journal};
use crate::finding::Finding;
use crate::identity::Pid;
use crate::record::Format;
use crate::status::Provenance;
use crate::sys::directory::{Directory, Space, record_is_locked, try_lock_record, type_of};
use crate::sys::process;
use crate::sys::temporary::{is_temporary, random_temporary_name};
use crate::sys::wait::{Watch, until_gone};

const OTHER_STORE: &str = "use another directory as the store: --dir";

/// What is known about this host. Changes nothing.
pub fn examine_host() -> Vec<Finding> {
    let pid_namespace = process::pid_namespace();
    let mut found = vec![match pid_namespace {
        None => Finding::failed(
            "processes",
            "/proc is missing, or shows another PID namespace",
        )
        .advice("mount proc on /proc: without it no holder can be checked"),
        Some(_) if !process::shows_all() => {
            let advice =
                "holders of other users are known by their kernel locks only: check as root";
            Finding::warning("processes", "those of other users are hidden (hidepid)")
                .advice(advice)
        }
        Some(_) => Finding::ok("processes", "all are visible"),
    }];
    found.extend(pid_namespace.map(|number| {
        if process::is_container(number) {
            let what = "a container: detached holds of others cannot be checked from here";
            Finding::ok("PID namespace", what)
        } else {
            Finding::ok("PID namespace", "that of the host")
        }
    }));
    found.push(match process::boot_id() {
        None => Finding::warning("boot ID", "unknown")
            .advice("holds from before a reboot count until their maximum age"),
        Some(boot) if boot.masked => {
            let advice =
                "a reboot is not noticed: give containers the host's boot_id, or set --instance";
            Finding::warning("boot ID", "another file is mounted over it").advice(advice)
        }
        Some(boot) => Finding::ok("boot ID", boot.id),
    });
    found.push(match process::machine_id() {
        Some(_) => Finding::ok("machine ID", "known"),
        None => Finding::warning("machine ID", "unknown")
            .advice("machines with one host name are taken for one: see machine-id(5)"),
    });
    let can_watch_processes = until_gone(Pid::of_self(), Duration::ZERO).is_some();
    found.push(if can_watch_processes {
        Finding::ok("pidfd", "the end of a process wakes a waiter")
    } else {
        Finding::warning("pidfd", "missing")
            .advice("waiters notice the end of a process by polling: use Linux 5.3 or later")
    });
    found.push(match process::descriptor_limit() {
        Some(limit) if limit < 64 => Finding::warning("descriptors", format!("at most {limit}"))
            .advice("raise the limit: ulimit -n 256"),
        Some(limit) => Finding::ok("descriptors", format!("at most {limit}")),
        None => Finding::ok("descriptors", "no limit"),
    });
    let now = chrono::Utc::now();
    found.push(if now.timestamp() > 1_704_067_200 {
        Finding::ok("clock", now.format("%Y-%m-%d %H:%M:%S UTC").to_string())
    } else {
        Finding::warning("clock", format!("it is said to be {now}"))
            .advice("set the clock: leases and ages are shown by it")
    });
    found
}

impl Store {
    /// What is known about the store. Changes nothing.
    pub fn examine(&self) -> Vec<Finding> {
        if self.is_remote() {
            return self.store.examine();
        }
        let path = std::path::absolute(self.path()).unwrap_or_else(|_| self.path().to_owned());
        // The first hold makes the missing directories.
        let existing = path.ancestors().find(|above| above.exists());
        let existing = existing.unwrap_or(&path);
        let (shown, found) = (path.display(), existing.display());
        let directory = match Directory::open(existing) {
            Ok(directory) => directory,
            Err(error) => return vec![unusable("store", &format!("{found}: "), &error)],
        };
        let made = (existing != path).then_some(", made by the first hold");
        let store = Finding::ok("store", format!("{shown}{}", made.unwrap_or_default()));
        let mut found = vec![store, filesystem(existing, &directory)];
        found.extend(surroundings::examine(&path, existing));
        found.extend(self.directory(&directory, made.map(|_| existing)));
        found
    }

    /// `parent`: where it is to be made, if it does not exist; then `directory` is that.
    fn directory(&self, directory: &Directory, parent: Option<&Path>) -> Vec<Finding> {
        let mut found = match directory.space() {
            Ok(space) => space_of(space),
            Err(error) => {
                let detail = format!("unknown: {}", cause_text(&error));
                vec![Finding::warning("free space", detail).advice("see df(1)")]
            }
        };
        found.extend(self.modes(directory, parent));
        found.extend(self.users(directory, parent.is_some()));
        found.extend(examine::examine(self.path()));
        found.push(self.journal_file());
        let names = directory.names().unwrap_or_default();
        let left = names.iter().filter(|name| is_temporary(name)).count();
        let zombies = self.list(None).map(|listing| {
            found.extend(unexpected(&listing));
            let zombies = listing.locks.iter().filter(|status| status.is_available());
            zombies.filter(|status| status.verdict.is_zombie()).count()
        });
        found.push(match (left, zombies) {
            (_, Err(error)) => {
                Finding::failed("records", format!("cannot be read: {error}")).advice(OTHER_STORE)
            }
            (0, Ok(0)) => Finding::ok("records", "nothing is left by dead processes"),
            (left, Ok(zombies)) => {
                let detail = format!("dead holders: {zombies}, temporary files: {left}");
                Finding::warning("records", detail).advice("a cleanup removes them")
            }
        });
        found
    }

    /// The modes of the store, or those that the first hold will give to it in `parent`.
    fn modes(&self, directory: &Directory, parent: Option<&Path>) -> Option<Finding> {
        const CHECK: &str = "modes";
        let (mode, owner, may_write) = directory.modes()?;
        let mut detail = format!("{mode:04o}, of user {owner}");
        let umask = process::umask();
        let (read_only, not_sticky) = if let Some(parent) = parent {
            detail = format!("{}: {detail}", parent.display());
            (
                "no store can be made here by this user: use --dir",
                "anybody may put another directory in place of the store: chmod o-w, or chmod +t",
            )
        } else {
            detail.extend(umask.as_ref().map(|umask| format!("; umask {umask}")));
            (
                "no lock can be taken here by this user: use --dir",
                "anybody may remove lock files: chmod o-w, or chmod +t",
            )
        };
        if !may_write {
            return Some(Finding::failed(CHECK, detail).advice(read_only));
        }
        if mode & 0o002 != 0 && mode & 0o1000 == 0 {
            return Some(Finding::warning(CHECK, detail).advice(not_sticky));
        }
        let user = process::own_uid();
        let mut is_private = (mode & 0o070, mode & 0o007) == (0, 0);
        if parent.is_some() {
            // Directories of other programs are made as these make them. What root makes belongs to the user whose
            // it is in.
            is_private = self.store.format() == Format::Native;
            let future = match user.filter(|_| is_private) {
                Some(user) => format!("0700, of user {}", if user == 0 { owner } else { user }),
                None => format!("umask {}", umask.unwrap_or_default()),
            };
            detail = future + ", made so by the first hold";
        }
        // Root, with the home directory of that user.
        if is_private && owner != 0 && user == Some(0) {
            let of = process::user_name(owner);
            return Some(Finding::warning(CHECK, detail).advice(&format!(
                "these are the locks of user {of}: for those of root set HOME (sudo -H), or use --dir"
            )));
        }
        Some(Finding::ok(CHECK, detail))
    }

    /// Whose locks are in the store, or will be.
    fn users(&self, directory: &Directory, is_missing: bool) -> Option<Finding> {
        let (mode, owner) = if is_missing {
            let is_native = self.store.format() == Format::Native;
            (0o700, process::own_uid().filter(|_| is_native)?)
        } else {
            let (mode, owner, _) = directory.modes()?;
            (mode, owner)
        };
        Some(Finding::ok(
            "users",
            match (mode & 0o002, mode & 0o020) {
                (0, 0) => format!(
                    "{} alone: a name of another user is another lock",
                    process::user_name(owner)
                ),
                (0, _) => "those of its group share its locks".to_owned(),
                _ => "all share its locks".to_owned(),
            },
        ))
    }

    fn journal_file(&self) -> Finding {
        const CHECK: &str = "journal";
        match journal::size(&self.journal.store) {
            Ok(None) => Finding::ok(CHECK, "none yet"),
            Ok(Some(bytes)) => Finding::ok(CHECK, format!("{} KiB", bytes.div_ceil(1024))),
            Err(error) => {
                Finding::warning(CHECK, format!("cannot be written: {}", cause_text(&error)))
                    .advice("takeovers and breaks are not noted: see FILES in onehold(1)")
            }
        }
    }

    /// Makes what a store with a sticky bit lacks, if the caller is root or its owner: a directory for what is no lock,
    /// so that its users do not have to make files in the store itself. Of a store of many machines: what its server lacks.
    pub fn prepare(&self) -> Vec<Finding> {
        if self.is_remote() {
            return self.store.create();
        }
        vec![examine::create(self.path())]
    }

    /// Takes locks again at once after the server of a store of many machines was changed for one that may have lost
    /// holds ([`Error::StoreChanged`](crate::Error::StoreChanged)). Safe only once no work of such a hold runs.
    pub fn accept_epoch(&self) -> Finding {
        self.store.accept_epoch()
    }

    /// Tries the calls that locks are made of, in the directory of the store, which is made if it is missing.
    /// Leaves nothing. In a store of many machines there are none.
    pub fn try_calls(&self) -> Vec<Finding> {
        if self.is_remote() {
            return Vec::new();
        }
        let entry = Entry {
            create: true,
            patience: Patience::SHORT,
        };
        // As the first hold makes it.
        if let Err(error) = self.store.update(entry, |_| Ok((Change::Nothing, ()))) {
            return vec![Finding::failed("store", error.to_string()).advice(OTHER_STORE)];
        }
        match Directory::open(self.path()) {
            Ok(directory) => tried(&directory),
            Err(error) => vec![unusable("store", "", &error)],
        }
    }
}

/// What is in a store that onehold has not put there.
fn unexpected(listing: &Listing) -> Vec<Finding> {
    let too_deep = listing.warnings.iter().map(|warning| {
        Finding::warning("tree", warning.to_string())
            .advice("no lock is there: see who made them, and remove them")
    });
    let mut found: Vec<Finding> = too_deep.collect();
    let provenances = listing.locks.iter().filter_map(|status| status.provenance);
    let from_elsewhere = provenances.filter(|from| *from != Provenance::Here).count();
    if from_elsewhere > 0 {
        let detail = format!(
            "written for another name or store, and renamed, linked or copied: {from_elsewhere}"
        );
        let advice = "they keep their locks taken, and end no process: see check -v, and remove them with break --force";
        found.push(Finding::warning("provenance", detail).advice(advice));
    }
    found
}

/// Why no store can be here. `before`: what the message begins with.
fn unusable(check: &'static str, before: &str, error: &io::Error) -> Finding {
    let detail = format!("{before}{}", cause_text(error));
    Finding::failed(check, detail).advice(OTHER_STORE)
}

/// What was found, or that a call has failed that no store can do without.
fn needed(check: &'static str, call: &str, found: io::Result<Finding>) -> Finding {
    found.unwrap_or_else(|error| unusable(check, call, &error))
}

fn filesystem(path: &Path, directory: &Directory) -> Finding {
    const CHECK: &str = "filesystem";
    let name = type_of(path).unwrap_or_else(|| "unknown".to_owned());
    match directory.shares_kernel_locks() {
        Ok(true) => Finding::ok(CHECK, format!("{name}: all see its kernel locks")),
        Ok(false) => {
            let detail = format!("{name}: other machines may change it");
            let advice = "there is no takeover and no queue on it: use a local directory, or etcd for many machines";
            Finding::warning(CHECK, detail).advice(advice)
        }
        Err(error) => unusable(CHECK, "", &error),
    }
}

fn space_of(space: Space) -> Vec<Finding> {
    let mut found = Vec::new();
    if space.is_read_only {
        let advice = "mount it read-write, or use another directory: --dir";
        found.push(Finding::failed("mount", "read-only").advice(advice));
    }
    found.extend(space.free_bytes.map(|bytes| {
        let detail = format!("{} MiB", bytes >> 20);
        match bytes {
            0..4096 => Finding::failed("free space", "none").advice("free some space"),
            4096..0x10_0000 => Finding::warning("free space", detail).advice("free some space"),
            _ => Finding::ok("free space", detail),
        }
    }));
    found.extend(space.free_files.map(|files| match files {
        0 => Finding::failed("inodes", "none is free").advice("remove some files"),
        1..100 => {
            Finding::warning("inodes", format!("{files} are free")).advice("remove some files")
        }
        _ => Finding::ok("inodes", format!("{files} are free")),
    }));
    found
}

const LOCKS: &str = "kernel locks";
const LINK: &str = "link";

fn tried(directory: &Directory) -> Vec<Finding> {
    let names = [random_temporary_name(), random_temporary_name()];
    let [one, other] = names.each_ref().map(OsString::as_os_str);
    let found = match directory.create_named(one) {
        Ok(file) => vec![
            needed("write", "", written(&file)),
            needed(LOCKS, "flock(2): ", kernel_lock(directory, one, &file)),
            needed(LINK, "link(2): ", link(directory, one, other)),
            unnamed(directory),
            exchange(directory, one, other),
            watch(&file),
        ],
        Err(error) => vec![unusable("write", "", &error)],
    };
    for name in names {
        let _ = directory.unlink(&name);
    }
    found
}

fn written(file: &File) -> io::Result<Finding> {
    use crate::sys::directory::FileExt as _;
    file.write_all_at(&[b'x'; 4096], 0)?;
    file.sync_all()?;
    let modified = file.metadata()?.modified()?;
    let ahead = modified.duration_since(SystemTime::now());
    let apart = ahead.unwrap_or_else(|behind| behind.duration());
    if apart <= Duration::from_secs(2) {
        return Ok(Finding::ok("write", "a file is written and synced"));
    }
    let seconds = apart.as_secs();
    let detail = format!("the clock of the filesystem differs by {seconds} s");
    let advice = "ages of damaged files are wrong by that: set the clocks";
    Ok(Finding::warning("write", detail).advice(advice))
}

/// Whether a lock that is taken is refused to others.
fn kernel_lock(directory: &Directory, name: &OsStr, file: &File) -> io::Result<Finding> {
    let wrong = if !try_lock_record(file)? {
        "flock(2) refuses a lock that is free"
    } else if !record_is_locked(&directory.open_for_update(name)?)? {
        "flock(2) grants a lock that is taken"
    } else {
        let detail = "a lock that is taken is refused to others";
        return Ok(Finding::ok(LOCKS, detail));
    };
    Ok(Finding::failed(LOCKS, wrong).advice(OTHER_STORE))
}

/// Whether link(2) leaves a file alone that exists.
fn link(directory: &Directory, one: &OsStr, other: &OsStr) -> io::Result<Finding> {
    let failed = |detail: &str| Ok(Finding::failed(LINK, detail).advice(OTHER_STORE));
    if !directory.link(one, other)? {
        return failed("link(2) says that a name exists that does not");
    }
    directory.unlink(other)?;
    drop(directory.create_named(other)?);
    let before = directory.facts(other)?;
    let is_created = directory.link(one, other)?;
    let after = directory.facts(other)?;
    if is_created || before.map(|file| file.id) != after.map(|file| file.id) {
        return failed("link(2) replaces a file that exists: two can hold one lock");
    }
    Ok(Finding::ok(LINK, "an existing file is not replaced"))
}

fn unnamed(directory: &Directory) -> Finding {
    match directory.create_unnamed() {
        Ok(Some(_)) => Finding::ok("O_TMPFILE", "a killed process leaves no temporary file"),
        _ => Finding::ok("O_TMPFILE", "missing: temporary files have names"),
    }
}

fn exchange(directory: &Directory, one: &OsStr, other: &OsStr) -> Finding {
    match directory.exchange(one, other) {
        Ok(()) => Finding::ok("exchange", "lock files of other programs can be taken over"),
        Err(error) => {
            let detail = format!("RENAME_EXCHANGE: {}", cause_text(&error));
            Finding::warning("exchange", detail)
                .advice("zombies of other programs' formats are not taken over here")
        }
    }
}

fn watch(file: &File) -> Finding {
    use crate::sys::directory::FileExt as _;
    let polled = |detail: String| {
        let advice = "waiters for holds of `acquire` poll: raise fs.inotify.max_user_instances";
        Finding::warning("inotify", detail).advice(advice)
    };
    let woken = Watch::new().and_then(|mut watch| {
        watch.add(file, Some(Pid::of_self()))?;
        file.write_all_at(b"y", 0)?;
        let began = process::boottime();
        watch.sleep(Some(Duration::from_millis(500)))?;
        Ok(process::boottime().saturating_sub(began) < Duration::from_millis(400))
    });
    match woken {
        Ok(true) => Finding::ok("inotify", "a change of a file wakes a waiter"),
        Ok(false) => polled("a change of a file wakes nobody".to_owned()),
        Err(error) => polled(cause_text(&error)),
    }
}
