//! What other users could do to a store: whoever may read its directory, may write to it, owns it, or owns what leads
//! to it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use super::shared_stores::User::{self, Daemon, Nobody, Root};
use super::shared_stores::{GROUP, Place};
use crate::harness::{
    CONTENDERS, INCREMENT, Running, TestEnv, exit_code, json_object, run_together, wait_until,
};

/// A store with this mode, which is there before the first hold.
fn store_with_mode(mode: u32) -> TestEnv {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    fs::set_permissions(env.store(), fs::Permissions::from_mode(mode)).unwrap();
    env
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

// Whoever may read it.

#[test]
fn whoever_can_only_read_a_store_holds_up_nobody() {
    for mode in [0o755, 0o744, 0o750] {
        let env = store_with_mode(mode);
        env.done(["acquire", "held", "--ttl", "1h", "--owner", "me"]);
        assert_eq!(mode_of(&env.path("store/.onehold/guard")), 0o700);
        // As any process that has opened it.
        let opened = File::open(env.store()).unwrap();
        flock(&opened, FlockOperation::LockShared).unwrap();
        for (words, code) in [
            ("run a -- true", 0),
            ("run held -- true", 6),
            ("acquire b --ttl 1h --owner me", 0),
            ("renew b --owner me", 0),
            ("release b --owner me", 0),
            ("run -s c -- true", 0),
            ("cleanup", 0),
            ("break --yes held", 0),
        ] {
            let ended = env.output(words.split(' '));
            assert_eq!(
                exit_code(ended.status),
                code,
                "{mode:o}: {words}: {ended:?}"
            );
        }
    }
}

#[test]
fn store_that_nobody_else_may_read_or_that_others_may_write_to_has_no_guard_of_its_own() {
    for mode in [0o700, 0o711, 0o770, 0o2770, 0o1777] {
        let env = store_with_mode(mode);
        env.done(["run", "a", "--", "true"]);
        assert!(!env.path("store/.onehold/guard").exists(), "{mode:o}");
    }
}

#[test]
fn guard_that_is_made_by_the_first_of_many_excludes_all_of_them() {
    for _ in 0..4 {
        let env = store_with_mode(0o755);
        let run = || env.onehold(["run", "-w", "1m", "x", "--", "sh", "-c", INCREMENT]);
        for _ in 0..2 {
            let ended = run_together((0..CONTENDERS).map(|_| run()).collect());
            assert!(
                ended.iter().all(|ended| ended.status.success()),
                "{ended:?}"
            );
        }
        assert_eq!(env.count_in("number"), 2 * CONTENDERS);
        assert_eq!(env.left_in_store(), [""; 0]);
    }
}

/// One that is in the store when the guard is made comes out before anybody else goes in.
#[test]
fn guard_is_not_made_while_another_process_has_locked_the_store() {
    let env = store_with_mode(0o755);
    let opened = File::open(env.store()).unwrap();
    flock(&opened, FlockOperation::LockExclusive).unwrap();
    let mut run = env.start(["run", "x", "--", "true"]);
    wait_until("it waits for the store", || {
        crate::harness::is_blocked_in_flock(run.pid())
    });
    assert!(!env.path("store/.onehold").exists());
    flock(&opened, FlockOperation::Unlock).unwrap();
    assert_eq!(run.finish(), 0);
    assert!(env.path("store/.onehold/guard").is_dir());
}

#[test]
fn doctor_warns_of_a_store_whose_users_can_keep_it_busy() {
    for (mode, expected) in [
        (0o700, None),
        (0o755, None),
        (0o2770, Some("warning")),
        (0o1777, Some("warning")),
    ] {
        let env = store_with_mode(mode);
        let object = json_object(&env.output(["doctor", "--quick", "--json"]).stdout);
        let checks = object["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["check"] == "guard");
        let result = found.map(|check| check["result"].as_str().unwrap());
        assert_eq!(result, expected, "{mode:o}: {object}");
    }
}

// Whoever can write to it, or owns it.

/// Lets files of others be linked, as the kernel does by default, until it is dropped.
struct HardLinks(String);

impl HardLinks {
    const SYSCTL: &str = "/proc/sys/fs/protected_hardlinks";

    fn allowed() -> Self {
        let before = fs::read_to_string(Self::SYSCTL).unwrap();
        fs::write(Self::SYSCTL, "0").unwrap();
        Self(before)
    }
}

impl Drop for HardLinks {
    fn drop(&mut self) {
        let _ = fs::write(Self::SYSCTL, &self.0);
    }
}

/// Each kind of store that is not the caller's own, with its owner and its mode.
const OF_OTHERS: [(User, u32); 4] = [
    (Daemon, 0o700),
    (Daemon, 0o755),
    (Root, 0o2770),
    (Root, 0o1777),
];

fn store_of(owner: User, mode: u32) -> Place {
    let place = Place::new(mode, "022");
    chown(place.env.store(), Some(owner.id()), Some(GROUP)).unwrap();
    fs::set_permissions(place.env.store(), fs::Permissions::from_mode(mode)).unwrap();
    place
}

/// All files below a directory.
fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// A link count would not show it: the link is made when root has looked.
#[test]
#[ignore = "needs root: two ordinary users and a sysctl"]
fn root_writes_to_no_file_that_a_user_has_linked_into_a_store() {
    let _allowed = HardLinks::allowed();
    for (owner, mode) in OF_OTHERS {
        let place = store_of(owner, mode);
        let uses = [
            "run a -- true",
            "run -s shared -- true",
            "acquire zombie --ttl 1ms",
            "run zombie -- true",
        ];
        let use_store = |user: User| {
            for words in uses {
                let ended = place.does(user, &format!("ONEHOLD_HISTORY=1 onehold {words}"));
                assert!(
                    ended.status.success(),
                    "{user:?}, {mode:o}: {words}: {ended:?}"
                );
            }
        };
        use_store(Daemon);
        use_store(Root);
        let victim = place.env.path("victim");
        let content = "precious\n".repeat(500);
        fs::write(&victim, &content).unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        // The one that the program opens now, and the one that it would open next.
        for _ in 0..2 {
            let is_victim = |file: &Path| {
                fs::metadata(file).unwrap().ino() == fs::metadata(&victim).unwrap().ino()
            };
            for file in files_below(&place.env.store()) {
                if is_victim(&file) {
                    continue;
                }
                let linked = file.with_file_name("linked");
                place.succeeds(
                    Daemon,
                    &format!("ln {} {}", victim.display(), linked.display()),
                );
                fs::rename(&linked, &file).unwrap();
            }
            let before = fs::metadata(&victim).unwrap().mtime_nsec();
            use_store(Root);
            assert_eq!(fs::read_to_string(&victim).unwrap(), content, "{mode:o}");
            assert_eq!(
                fs::metadata(&victim).unwrap().mtime_nsec(),
                before,
                "{mode:o}"
            );
            for file in files_below(&place.env.store()) {
                let copied = fs::read_to_string(&file).unwrap_or_default();
                assert!(is_victim(&file) || !copied.contains("precious"), "{file:?}");
            }
        }
    }
}

/// What is to be seen is that no file is opened for writing that another process could have put there.
#[test]
#[ignore = "needs root and strace"]
fn root_opens_no_file_of_another_users_store_for_writing() {
    for (owner, mode) in OF_OTHERS {
        let place = store_of(owner, mode);
        for words in [
            "run a -- true",
            "run -s shared -- true",
            "acquire zombie --ttl 1ms",
        ] {
            place.succeeds(Daemon, &format!("ONEHOLD_HISTORY=1 onehold {words}"));
        }
        for words in [
            "run a -- true",
            "run -s shared -- true",
            "run -s shared -- true",
            "acquire roots --ttl 1h",
            "release roots --force --yes",
            "cleanup",
        ] {
            let traced = format!(
                "ONEHOLD_HISTORY=1 strace -f -o trace -e trace=openat,openat2,open,creat onehold {words}"
            );
            place.does(Root, &traced);
            let trace = fs::read_to_string(place.env.path("trace")).unwrap();
            let is_in_place = |call: &&str| {
                let is_written = call.contains("O_RDWR") || call.contains("O_WRONLY");
                let is_new = call.contains("O_EXCL") || call.contains("O_TMPFILE");
                let is_record = call.contains(".lock\"");
                is_written && !is_new && !is_record && !call.contains("/dev/")
            };
            let written: Vec<&str> = trace.lines().filter(is_in_place).collect();
            assert!(written.is_empty(), "{mode:o}: {words}: {written:#?}");
        }
    }
}

// Root in the store of a user.

#[test]
#[ignore = "needs root: two ordinary users"]
fn user_can_use_a_store_that_root_has_used_first() {
    for mode in [0o700, 0o755, 0o750] {
        for umask in ["022", "077"] {
            let mut place = Place::new(mode, umask);
            place.umask = umask;
            chown(place.env.store(), Some(Daemon.id()), Some(GROUP)).unwrap();
            place.succeeds(Root, "onehold run a -- true");
            place.succeeds(Root, "onehold run -s b/c -- true");
            place.succeeds(Root, "onehold run -s b/c -- true");
            place.does(Root, "ONEHOLD_HISTORY=1 onehold run x -- true");
            place.succeeds(Root, "onehold acquire dead --ttl 1ms");
            place.does(Root, "onehold run dead -- true");
            place.succeeds(Root, "onehold acquire roots/lease --ttl 1h");
            let lock = place.lock(Daemon, "roots/lease");
            assert_eq!(
                (&lock["state"], &lock["user"]),
                (&"held".into(), &"root".into()),
                "{lock}"
            );
            let mut last = 0;
            for words in [
                "onehold run a -- printenv ONEHOLD_HOLD",
                "onehold run -s b/c -- printenv ONEHOLD_HOLD",
                "onehold run -s b/c -- printenv ONEHOLD_HOLD",
                "onehold acquire roots/other --ttl 1h",
            ] {
                let number = place.number(Daemon, words);
                assert!(number > last, "{words}: {number} after {last}");
                last = number;
            }
            place.succeeds(Daemon, "onehold cleanup");
            place.succeeds(Daemon, "onehold history");
            let listed = place.succeeds(Daemon, "onehold list");
            assert!(listed.contains("roots/lease"), "{listed}");
            // The record is root's, and may be removed.
            place.succeeds(Daemon, "onehold break --yes roots/lease");
            let of_root: Vec<_> = files_below(&place.env.store())
                .into_iter()
                .filter(|file| fs::metadata(file).unwrap().uid() != Daemon.id())
                .collect();
            assert!(of_root.is_empty(), "{of_root:?}");
        }
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn root_with_the_home_of_a_user_leaves_the_user_its_directories() {
    let place = Place::new(0o700, "022");
    let home = place.env.path("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(Daemon.id()), Some(Daemon.id())).unwrap();
    let run = format!(
        "env -u ONEHOLD_DIR HOME={} onehold run x -- true",
        home.display()
    );
    place.succeeds(Root, &run);
    for below in [
        ".local",
        ".local/state",
        ".local/state/onehold",
        ".local/state/onehold/.onehold",
    ] {
        assert_eq!(
            fs::metadata(home.join(below)).unwrap().uid(),
            Daemon.id(),
            "{below}"
        );
    }
    assert_eq!(mode_of(&home.join(".local/state")), 0o755);
    assert_eq!(mode_of(&home.join(".local/state/onehold")), 0o700);
    place.succeeds(Daemon, &run);
    // In a directory of root's own nothing changes hands.
    let run = run.replace("/home ", "/roots ");
    place.succeeds(Root, &run);
    assert_eq!(
        fs::metadata(place.env.path("roots/.local/state/onehold"))
            .unwrap()
            .uid(),
        0
    );
}

// Links that lead to a store.

fn everything(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = files_below(directory);
    found.sort();
    found
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn root_is_not_led_by_a_link_of_a_user_to_what_is_not_that_users() {
    let place = Place::new(0o700, "022");
    let target = place.env.path("etc");
    fs::create_dir(&target).unwrap();
    fs::create_dir_all(target.join("sub.d/x.d")).unwrap();
    fs::write(target.join(".onehold.0123456789abcdef"), "").unwrap();
    let theirs = place.env.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(Daemon.id()), None).unwrap();
    place.succeeds(Daemon, &format!("ln -s {} theirs/store", target.display()));
    place.succeeds(Daemon, "ln -s store theirs/twice; ln -s .. theirs/up");
    let before = everything(&target);
    for dir in [
        "theirs/store",
        "theirs/twice",
        "theirs/store/sub.d",
        "theirs/up/theirs/store",
        "theirs/store/new",
    ] {
        for words in [
            "run x -- true",
            "cleanup",
            "release x",
            "check x",
            "list",
            "acquire a/b --ttl 1h",
        ] {
            let ended = place.does(Root, &format!("onehold --dir {dir} {words}"));
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(!ended.status.success(), "{dir}: {words}: {said}");
            assert!(
                said.contains("is a symbolic link of user daemon to what belongs to user root"),
                "{dir}: {words}: {said}"
            );
        }
    }
    let path = "onehold run ./theirs/store/x.lock -- true";
    assert_eq!(place.does(Root, path).status.code(), Some(125));
    assert_eq!(everything(&target), before);
    assert!(target.join("sub.d/x.d").exists() && !target.join("new").exists());
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn root_goes_through_links_of_root_and_of_the_owner_of_what_they_lead_to() {
    let place = Place::new(0o700, "022");
    let theirs = place.env.path("theirs");
    for directory in [&theirs, &theirs.join("real")] {
        fs::create_dir(directory).unwrap();
        chown(directory, Some(Daemon.id()), None).unwrap();
    }
    place.succeeds(Daemon, "ln -s real theirs/own");
    symlink("theirs/own", place.env.path("of_root")).unwrap();
    symlink(place.env.path("."), place.env.path("absolute")).unwrap();
    for dir in [
        "theirs/own",
        "of_root",
        "absolute/of_root",
        "absolute/theirs/own/new",
        "/proc/self/cwd/of_root",
    ] {
        place.succeeds(Root, &format!("onehold --dir {dir} run x -- true"));
    }
    assert!(theirs.join("real/.onehold").is_dir() && theirs.join("real/new").is_dir());
    // A user follows what the kernel follows.
    place.succeeds(
        Daemon,
        "mkdir -m 777 theirs/open; ln -s theirs/open theirs/../up 2>/dev/null; true",
    );
    symlink(place.env.store(), theirs.join("to_store")).unwrap();
    std::os::unix::fs::lchown(theirs.join("to_store"), Some(Nobody.id()), None).unwrap();
    chown(place.env.store(), Some(Daemon.id()), None).unwrap();
    place.succeeds(Daemon, "onehold --dir theirs/to_store run x -- true");
    let looped = place.env.path("loop");
    symlink("loop", &looped).unwrap();
    let ended = place.does(Root, "onehold --dir loop run x -- true");
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
}

// A store for everybody.

fn sticky(umask: &'static str) -> Place {
    Place::new(0o1777, umask)
}

/// Directories below the store.
fn directories_in(place: &Place) -> Vec<String> {
    let found = place.succeeds(Root, "find store -mindepth 1 -type d");
    found.lines().map(ToOwned::to_owned).collect()
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn user_who_was_first_below_a_name_cannot_remove_what_others_hold_there() {
    for shared in ["", "-s ", "--slots 2 "] {
        let place = sticky("022");
        place.succeeds(Daemon, &format!("onehold run {shared}foo/y -- true"));
        let words = format!("exec onehold run {shared}foo/x -- sleep 600");
        let mut holder = Running::start(place.command(Root, &words));
        wait_until("it is held", || {
            place.lock(Root, "foo/x")["pid_alive"] == true
        });
        assert_eq!(directories_in(&place), [""; 0]);
        // All that the other one can try.
        place.does(Daemon, "rm -rf store/* store/.[!.]*");
        place.does(
            Daemon,
            "for f in store/* store/.[!.]*; do mv $f moved; done",
        );
        assert!(!holder.has_ended());
        assert_eq!(place.lock(Nobody, "foo/x")["state"], "held");
        for (user, words) in [(Nobody, "foo/x"), (Daemon, "foo"), (Nobody, "foo/x/z")] {
            let ended = place.does(user, &format!("onehold run {words} -- true"));
            assert_eq!(ended.status.code(), Some(6), "{shared}{words}: {ended:?}");
        }
        place.succeeds(Root, "onehold break --yes foo/x");
        holder.finish();
        place.succeeds(Nobody, "onehold run foo/x -- true");
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn directory_that_a_user_has_made_in_a_sticky_store_for_numbers_and_tickets_is_named_with_its_owner()
 {
    for words in ["run x -- true", "check x", "list", "cleanup"] {
        for mode in ["700", "1777"] {
            let place = sticky("022");
            place.succeeds(Daemon, &format!("mkdir -m {mode} store/.onehold"));
            for user in [Root, Nobody, Daemon] {
                let ended = place.does(user, &format!("onehold {words}"));
                let said = String::from_utf8_lossy(&ended.stderr);
                let code = ended.status.code();
                assert!(
                    matches!(code, Some(1 | 125)),
                    "{user:?}: {words}: {code:?} {said}"
                );
                let is_named = user == Daemon || said.contains("belongs to user daemon");
                assert!(
                    is_named && said.contains(".onehold"),
                    "{user:?}: {words}: {said}"
                );
            }
        }
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn directory_that_a_user_was_first_to_make_below_a_sticky_store_is_in_nobodys_way() {
    for mode in ["700", "1777"] {
        let place = sticky("022");
        place.succeeds(Daemon, &format!("mkdir -m {mode} store/foo.d"));
        for user in [Root, Nobody, Daemon] {
            for words in [
                "run foo/x -- true",
                "run foo -- true",
                "run -s foo/x/y -- true",
                "list",
            ] {
                place.succeeds(user, &format!("onehold {words}"));
            }
        }
        // What lies in it is no lock here.
        place.succeeds(Daemon, "touch store/foo.d/x.lock");
        place.succeeds(Nobody, "onehold run foo/x -- true");
        let doctor = place.does(Nobody, "onehold doctor --quick");
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(
            said.contains("foo.d") && said.contains("belongs to user daemon"),
            "{said}"
        );
    }
}

/// One that somebody could have made there to be in the way.
#[test]
#[ignore = "needs root: two ordinary users"]
fn directory_of_a_user_beside_a_path_lock_does_not_make_it_a_lock_of_a_store() {
    let place = sticky("022");
    place.succeeds(Daemon, "mkdir store/.onehold");
    place.succeeds(Nobody, "onehold run ./store/x.lock -- true");
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn name_and_path_are_one_lock_of_a_sticky_store() {
    let place = sticky("022");
    for prepare in [false, true] {
        if prepare {
            place.succeeds(Root, "onehold doctor --quick --create");
            assert_eq!(directories_in(&place), ["store/.onehold"]);
        }
        place.succeeds(Daemon, "onehold acquire a/b --ttl 1h");
        place.succeeds(Daemon, "onehold acquire c --ttl 1h");
        for path in ["./store/a%2Fb.lock", "./store/c.lock"] {
            let ended = place.does(Nobody, &format!("onehold check -q {path}"));
            assert_eq!(ended.status.code(), Some(6), "{path}");
            place.succeeds(Daemon, &format!("onehold release --force --yes {path}"));
        }
        assert_eq!(place.succeeds(Nobody, "onehold list -q"), "");
    }
}

/// Without `O_CREAT`, by which the file of another user is not opened in a sticky directory if fs.protected_regular
/// is set (proc_sys_fs(5)).
fn overwrite(file: &Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn numbers_of_a_sticky_store_grow_although_each_user_notes_its_own() {
    let place = sticky("077");
    let mut last = 0;
    let mut grows = |user: User, words: &str| {
        let number = place.number(user, words);
        assert!(number > last, "{user:?}: {number} after {last}");
        last = number;
    };
    let run = "onehold run x -- printenv ONEHOLD_HOLD";
    for user in [Daemon, Nobody, Root, Daemon] {
        grows(user, run);
    }
    // As after a clock that was set back: it alone does not keep numbers apart.
    let ahead = |user: User| {
        let file = place
            .env
            .store()
            .join(format!(".onehold-last-{}", user.id()));
        let number = u64::from_le_bytes(fs::read(&file).unwrap().try_into().unwrap());
        overwrite(&file, &(number + 3_600_000_000).to_le_bytes());
    };
    ahead(Daemon);
    for user in [Nobody, Daemon, Root] {
        grows(user, run);
    }
    // A number that nobody could reach is none.
    let file = place
        .env
        .store()
        .join(format!(".onehold-last-{}", Daemon.id()));
    overwrite(&file, &u64::MAX.to_le_bytes());
    grows(Nobody, run);
    // What was noted before counts after the directory was made.
    place.succeeds(Root, "onehold doctor --quick --create");
    for user in [Daemon, Nobody, Root] {
        grows(user, run);
    }
    assert_eq!(directories_in(&place), ["store/.onehold"]);
    assert_eq!(mode_of(&place.env.path("store/.onehold")), 0o1777);
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn only_root_and_the_owner_of_a_sticky_store_prepare_it() {
    let place = sticky("022");
    let refused = |user: User| {
        let ended = place.does(user, "onehold doctor --quick --create");
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    assert!(
        refused(Daemon).contains("only root and user root"),
        "{}",
        refused(Daemon)
    );
    chown(place.env.store(), Some(Nobody.id()), None).unwrap();
    assert!(refused(Daemon).contains("only root and user nobody"));
    place.succeeds(Nobody, "onehold doctor --quick --create");
    place.succeeds(Nobody, "onehold doctor --quick --create");
    for user in [Daemon, Root, Nobody] {
        place.succeeds(user, "onehold run a/b -- true");
    }
    let place = sticky("022");
    place.succeeds(Daemon, "mkdir store/.onehold");
    let ended = place.does(Root, "onehold doctor --quick --create");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        !ended.status.success() && said.contains("user daemon"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn doctor_recognizes_a_sticky_store_of_earlier_versions() {
    let finding = |place: &Place| -> Value {
        let ended = place.does(Nobody, "onehold doctor --quick --json");
        let object = json_object(&ended.stdout);
        let checks = object["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["check"] == "layout");
        found.cloned().unwrap_or_default()
    };
    let place = sticky("022");
    assert_eq!(finding(&place)["result"], "ok");
    place.succeeds(
        Root,
        "mkdir -m 1777 store/.onehold; touch store/.onehold/last",
    );
    assert_eq!(finding(&place)["result"], "warning", "{}", finding(&place));
    place.succeeds(Root, "rm store/.onehold/last");
    assert_eq!(finding(&place)["result"], "ok");
    place.succeeds(Daemon, "mkdir -p store/foo.d");
    let found = finding(&place);
    assert_eq!(found["result"], "warning", "{found}");
    assert!(
        found["detail"].as_str().unwrap().contains("foo.d"),
        "{found}"
    );
    place.succeeds(Daemon, "rmdir store/foo.d");
    place.succeeds(Root, "rmdir store/.onehold");
    place.succeeds(Daemon, "mkdir store/.onehold");
    let found = finding(&place);
    assert_eq!(found["result"], "FAILED", "{found}");
    assert!(
        found["detail"].as_str().unwrap().contains("user daemon"),
        "{found}"
    );
}

#[test]
fn journal_of_a_sticky_store_is_told_by_the_name_of_the_lock() {
    let env = store_with_mode(0o1777);
    let with_history = |words: &str| {
        let mut run = env.onehold(words.split(' '));
        run.env("ONEHOLD_HISTORY", "1");
        assert!(run.output().unwrap().status.success(), "{words}");
    };
    for words in ["run a -- true", "run -s b/c -- true", "run b/c -- true"] {
        with_history(words);
    }
    let past = |words: &[&str]| {
        let object = env.json([&["history"], words].concat());
        object["holds"].as_array().unwrap().len()
    };
    assert_eq!(
        [past(&[]), past(&["a"]), past(&["b/c"]), past(&["b"])],
        [3, 1, 2, 0]
    );
    // It is moved once it is full, and what was noted stays.
    let journal = || {
        let files = files_below(&env.store()).into_iter();
        files.filter(|file| file.to_string_lossy().contains("-events-"))
    };
    let file = journal().next().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().last().unwrap().to_owned() + "\n";
    fs::write(&file, text + &line.repeat(256 * 1024 / line.len() + 1)).unwrap();
    with_history("run a -- true");
    assert_eq!(journal().count(), 2);
    assert_eq!(past(&["a"]), 2);
}

#[test]
fn place_in_the_queue_of_a_sticky_store_is_kept_and_dead_waiters_are_passed_by() {
    let env = store_with_mode(0o1777);
    let mut holder = env.hold(&["a/b"]);
    let mut killed = env.start(["run", "-w", "1m", "a/b", "--", "true"]);
    wait_until("one waits", || env.number_of_waiters("a/b") == 1);
    let words = [
        "run",
        "-w",
        "0.1",
        "--keep-place",
        "20m",
        "--owner",
        "O",
        "a/b",
        "--",
        "true",
    ];
    assert_eq!(env.code(words), 7);
    let mut last = env.start([
        "run",
        "-w",
        "1m",
        "a/b",
        "--",
        "sh",
        "-c",
        "echo last >> order",
    ]);
    wait_until("two wait", || env.number_of_waiters("a/b") == 2);
    let words = [
        "run",
        "-w",
        "1m",
        "--owner",
        "O",
        "a/b",
        "--",
        "sh",
        "-c",
        "echo kept >> order",
    ];
    let mut kept = env.start(words);
    wait_until("three wait", || env.number_of_waiters("a/b") == 3);
    killed.kill();
    env.end();
    assert_eq!((holder.finish(), kept.finish(), last.finish()), (0, 0, 0));
    assert_eq!(
        fs::read_to_string(env.path("order")).unwrap(),
        "kept\nlast\n"
    );
    env.done(["cleanup"]);
    let left = env.left_in_store();
    assert!(
        !left.iter().any(|file| file.contains("-ticket-")),
        "{left:?}"
    );
}
