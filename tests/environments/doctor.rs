//! `doctor` where locks do not work, or not for this user.

use crate::Place;

#[test]
#[ignore = "needs root: another user"]
fn doctor_says_whether_this_user_can_take_locks_here() {
    let place = Place::new();
    let script = "chmod 755 .; mkdir -m 755 store
        user='setpriv --reuid 4321 --regid 4321 --clear-groups'
        $user onehold doctor --quick 2>&1 | grep ^modes
        $user onehold doctor --quick >/dev/null 2>&1 || echo user $?
        chown 4321 store; chmod 700 store
        onehold doctor --quick 2>&1 | grep ^modes
        $user onehold doctor --quick >/dev/null; echo user 0";
    let said = place.says("env", script);
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(lines[0].contains("FAILED"), "{said}");
    assert_eq!(lines[1], "user 1", "{said}");
    // For root, which is not that user.
    assert!(lines[2].contains(" warning "), "{said}");
    assert_eq!(lines[3], "user 0", "{said}");
}

/// `onehold doctor` in a store below `mnt`, which `mount` has put there.
fn doctor_on(mount: &str) -> (String, String) {
    let place = Place::new();
    let script = format!(
        "mkdir mnt; {mount}; code=0; onehold --dir mnt/store doctor || code=$?; echo \"exit $code\"; \
         umount mnt 2>/dev/null || umount -l mnt"
    );
    let said = place.says("unshare --mount --propagation private", &script);
    let failed = said.lines().filter(|line| line.contains("FAILED"));
    let failed = failed.collect::<Vec<_>>().join("\n");
    (failed, said)
}

#[test]
#[ignore = "needs root: mounts"]
fn doctor_fails_on_filesystems_that_are_read_only_full_or_without_inodes() {
    for (mount, expected) in [
        ("mount -t tmpfs -o ro none mnt", "mount  "),
        (
            "mount -t tmpfs -o size=64k none mnt; cp /dev/zero mnt/full 2>/dev/null || true",
            "free space",
        ),
        (
            "mount -t tmpfs -o nr_inodes=2 none mnt; touch mnt/last",
            "inodes",
        ),
    ] {
        let (failed, said) = doctor_on(mount);
        assert!(failed.starts_with(expected), "{mount}: {said}");
        assert!(said.contains("exit 1\n"), "{said}");
    }
}

#[test]
#[ignore = "needs root: mounts"]
fn doctor_fails_on_filesystems_without_working_locks_and_warns_on_fuse() {
    let programs = std::path::absolute(assert_cmd::cargo::cargo_bin!("onehold")).unwrap();
    let programs = programs.with_file_name("examples").join("programs");
    assert!(programs.exists(), "run `cargo build --examples`");
    for (flaw, expected) in [
        ("none", ""),
        ("flock", "flock(2) grants a lock that is taken"),
        (
            "link",
            "link(2) replaces a file that exists: two can hold one lock",
        ),
    ] {
        let mount = format!(
            "{} flawed-filesystem {flaw} mnt >/dev/null 2>&1 & until mountpoint -q mnt; do sleep 0.01; done",
            programs.display()
        );
        let (failed, said) = doctor_on(&mount);
        assert!(
            said.contains("filesystem      warning") || said.contains("filesystem     warning"),
            "{said}"
        );
        if flaw == "none" {
            assert!(failed.is_empty() && said.contains("exit 0\n"), "{said}");
        } else {
            assert!(
                failed.contains(expected) && said.contains("exit 1\n"),
                "{said}"
            );
        }
    }
}

#[test]
#[ignore = "needs root: mounts"]
fn doctor_warns_of_a_store_that_other_processes_do_not_see() {
    let place = Place::new();
    let here = "onehold --dir mnt/store doctor --quick | grep ^mounts || echo nothing";
    // The first process may be asked; and it may not, as by a unit of an ordinary user with PrivateTmp.
    let script = format!(
        "mkdir -p mnt systemd-private-7/tmp; {here}
         unshare --mount sh -c 'mount -t tmpfs none mnt; {here}'
         user='setpriv --reuid 4321 --regid 4321 --clear-groups sh -c'
         chmod 777 . systemd-private-7/tmp
         unshare --mount sh -c \"mount --bind systemd-private-7/tmp mnt; $user '{here}'\""
    );
    let said = place.says(
        "unshare --pid --fork --kill-child --mount --mount-proc --propagation private",
        &script,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert_eq!(lines[0], "nothing", "{said}");
    let expected = "warning  other processes see another directory there";
    assert!(
        lines[1].contains(expected) && lines[2].contains(expected),
        "{said}"
    );
}

/// sudo keeps HOME on some systems: root's locks would be those of the user.
#[test]
#[ignore = "needs root: another user"]
fn doctor_says_whose_store_root_uses_and_what_is_wrong_with_the_host() {
    let place = Place::new();
    let script = "mkdir home; chown 4711:4711 home; chmod 755 . home; unset ONEHOLD_DIR; export HOME=$PWD/home
        echo FUTURE; onehold doctor | grep -A 1 '^modes'; echo NOW; onehold doctor | grep -A 1 '^modes'
        echo LIMIT; setpriv --reuid=4711 --regid=4711 --clear-groups bash -c 'ulimit -u 1; exec onehold doctor' |
            grep -A 1 '^trial'
        echo CHROOT; mkdir -p root/proc
        for directory in bin lib lib64 usr; do mkdir -p root/$directory; mount --rbind /$directory root/$directory; done
        cp \"$(command -v onehold)\" root/onehold; HOME=/ chroot root /onehold doctor | grep '^filesystem'; true";
    let said = place.says("unshare --mount --propagation private", script);
    let user =
        "these are the locks of user 4711: for those of root set HOME (sudo -H), or use --dir";
    let words: Vec<&str> = said.split_whitespace().collect();
    let said = words.join(" ");
    for expected in [
        format!("FUTURE modes warning 0700, of user 4711, made so by the first hold {user} NOW"),
        format!("NOW modes warning 0700, of user 4711; umask 0022 {user} LIMIT"),
        "too many processes of this user, which says nothing of the store: raise the limit (ulimit -u)".to_owned(),
    ] {
        assert!(said.contains(&expected), "{expected}\n{said}");
    }
    let (_, of_chroot) = said.split_once("CHROOT filesystem ok ").unwrap();
    assert!(!of_chroot.starts_with("unknown"), "{said}");
}
