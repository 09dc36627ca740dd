//! Filesystems that are read-only, full, stacked, remote-like, or lose power; and foreign locks on files.

use std::fs;

use crate::{Place, json_object, on_tmpfs};

#[test]
#[ignore = "needs root: a read-only mount"]
fn a_read_only_store_can_be_looked_at_and_nothing_else() {
    let said = on_tmpfs(
        "size=1m",
        "onehold acquire x --ttl 1h >/dev/null 2>&1
        mount -o remount,ro store
        onehold check -q x || echo $?
        onehold list -q
        onehold run y -- true 2>&1 || echo $?
        onehold release x --owner nobody 2>&1 || echo $?",
    );
    assert!(said.starts_with("6\n"), "{said}");
    assert!(said.contains("read-only file system\n125\n"), "{said}");
    assert!(said.ends_with("4\n"), "{said}");
}

#[test]
#[ignore = "needs root: an immutable directory"]
fn a_release_that_fails_after_the_command_ended_is_a_warning() {
    let place = Place::new();
    let script = "onehold run x -- sh -c 'chattr +i store; exit 17' 2>&1 || echo $?
        onehold check -q x || echo $?
        chattr -i store
        onehold run x -- echo mine 2>/dev/null";
    let said = place.says("env", script);
    assert!(
        said.starts_with("onehold: warning: cannot remove `"),
        "{said}"
    );
    assert!(
        said.ends_with("operation not permitted\n17\n5\nmine\n"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: a full filesystem"]
fn a_disk_full_of_bytes_or_of_inodes_is_an_error_and_nothing_is_half_taken() {
    for (options, fill) in [
        (
            "size=64k",
            "head -c 1m /dev/zero > store/fill 2>/dev/null || true",
        ),
        (
            "size=1m,nr_inodes=4",
            "touch store/1 store/2 store/3 2>/dev/null || true",
        ),
    ] {
        let said = on_tmpfs(
            options,
            &format!(
                "onehold check -q x
                {fill}
                onehold run x -- echo never 2>&1 || echo $?
                onehold acquire x --ttl 1h 2>&1 || echo $?
                onehold check -q x && echo free
                rm store/fill store/1 store/2 store/3 2>/dev/null || true
                onehold run x -- echo mine 2>&1"
            ),
        );
        assert!(
            said.contains("no space left on device\n125\n"),
            "{options}: {said}"
        );
        assert!(
            said.contains("no space left on device\n1\n"),
            "{options}: {said}"
        );
        assert!(said.ends_with("free\nmine\n"), "{options}: {said}");
    }
}

#[test]
#[ignore = "needs root: a full filesystem"]
fn on_a_full_disk_a_zombie_can_still_be_removed() {
    let said = on_tmpfs(
        "size=1m,nr_inodes=16",
        "sleep 1000 >/dev/null 2>&1 & pid=$!
        for name in x y; do onehold acquire $name --pid $pid >/dev/null 2>&1; done
        kill -KILL $pid; wait $pid || true
        n=0; while touch store/fill$n 2>/dev/null; do n=$((n + 1)); done
        onehold break x
        onehold cleanup
        ls store/*.lock 2>&1 || true",
    );
    assert!(said.contains("removed zombie `y`"), "{said}");
    assert!(said.contains("No such file"), "{said}");
}

#[test]
#[ignore = "needs root: mounts"]
fn a_waiter_whose_section_is_a_filesystem_of_its_own_is_served() {
    let said = on_tmpfs(
        "size=1m,mode=700",
        "mkdir store/s.d; mount -t tmpfs none store/s.d
        onehold run s/t -- sh -c 'until test -e end; do sleep 0.01; done' &
        until onehold check s/t 2>&1 | grep -q held; do sleep 0.01; done
        onehold run -w 20s s/t -- echo mine &
        waiter=$!
        until onehold check --json s/t | grep -q '\"position\":1'; do sleep 0.01; done
        touch end
        wait $waiter",
    );
    assert!(said.contains("mine\n"), "{said}");
}

#[test]
#[ignore = "needs root: a FUSE filesystem (bindfs)"]
fn on_fuse_locks_are_held_and_released_and_none_is_taken_over_without_a_person() {
    let place = Place::new();
    let script = "mkdir -p behind store; bindfs behind store
        onehold run x -- onehold check -q x || echo $?
        sleep 1000 >/dev/null 2>&1 & pid=$!
        onehold acquire y --pid $pid >/dev/null 2>&1
        kill -KILL $pid; wait $pid || true
        onehold check -q y || echo $?
        onehold check -v y | grep filesystem
        onehold run y -- echo never 2>&1 || echo $?
        onehold cleanup 2>&1
        ls behind
        onehold break y >/dev/null 2>&1
        onehold run y -- echo mine
        onehold run z -- sh -c 'echo > held; until test -e open; do sleep 0.01; done' &
        until test -e held; do sleep 0.01; done
        onehold run -q -w 1m z -- echo waited &
        sleep 0.3; touch open; wait
        umount store";
    let said = place.says("unshare --mount --propagation private", script);
    let start =
        "6\n5\n  filesystem: fuse, whose kernel locks other machines may not see: no takeover";
    assert!(said.starts_with(start), "{said}");
    assert!(
        said.contains(
            "no takeover on a shared filesystem; if the holder is dead, run `onehold --dir "
        ),
        "{said}"
    );
    assert!(
        said.contains("\n6\nonehold: warning: not removed: `y` is a zombie: "),
        "{said}"
    );
    assert!(said.contains("\ny.lock\nmine\nwaited\n"), "{said}");
}

#[test]
#[ignore = "needs root: a FUSE filesystem (bindfs)"]
fn on_fuse_a_lock_with_a_dead_and_a_live_reader_is_held() {
    let place = Place::new();
    let script = "mkdir -p behind store; bindfs behind store
        onehold acquire -q -s x --ttl 1ms --owner dead >/dev/null
        sleep 0.02; onehold check -q x || echo $?
        onehold acquire -q -s x --ttl 1h --owner live >/dev/null
        onehold check x || echo $?
        onehold check -q -s x || echo $?
        umount store";
    let said = place.says("unshare --mount --propagation private", script);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"5"), "{said}");
    assert!(lines[1].contains("is shared by a lease of live"), "{said}");
    assert!(said.contains("of dead"), "{said}");
    assert_eq!(lines.last(), Some(&"6"), "{said}");
}

#[test]
#[ignore = "needs root: a FUSE filesystem (bindfs)"]
fn on_fuse_a_wait_for_a_lease_that_expires_is_refused_and_does_not_say_that_it_has_timed_out() {
    let place = Place::new();
    let script = "mkdir -p behind store; bindfs behind store
        onehold acquire -q l --ttl 0.3s --owner o >/dev/null
        onehold run -w 1m l -- echo never 2>&1 || echo $?
        umount store";
    let said = place.says("unshare --mount --propagation private", script);
    assert!(said.contains("`l` is a zombie: a lease of o"), "{said}");
    assert!(said.contains("has expired"), "{said}");
    assert!(
        said.ends_with("\n6\n") && !said.contains("timed out"),
        "{said}"
    );
}

/// A file that has lost its temporary name while it is open keeps it there as `.fuse_hidden…`.
#[test]
#[ignore = "needs root: a FUSE filesystem (bindfs)"]
fn on_fuse_a_lease_is_renewed_and_a_run_is_broken_in_its_first_second() {
    let place = Place::new();
    let script = "mkdir -p behind store; bindfs behind store
        onehold acquire -q l --ttl 20s --owner o >/dev/null; onehold renew -q l --owner o; echo $?
        onehold run -q b -- sh -c 'echo > held; exec sleep 1000' & run=$!
        until test -e held; do sleep 0.01; done
        onehold break -q -y b; echo $?
        wait $run || echo $?
        umount store";
    let said = place.says("unshare --mount --propagation private", script);
    assert!(said.starts_with("0\n0\n8\n"), "{said}");
}

#[test]
#[ignore = "needs root: overlayfs"]
fn the_same_store_by_its_overlay_and_by_its_lower_directory_frees_nothing() {
    let place = Place::new();
    let script = "mkdir lower upper work merged
        onehold --dir lower run x -- sh -c '
            mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged
            onehold --dir merged check --json x || test $? = 6'";
    let said = place.says("unshare --mount --propagation private", script);
    // By the pid alone, while the wrapper has not yet added its start.
    assert!(
        said.contains("\"reason\":\"alive\",\"proof\":\"same-p"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root: mounts"]
fn through_two_fuse_mounts_of_one_directory_there_are_no_two_holders() {
    let place = Place::new();
    // The kernel locks of one are not seen in the other: only what the record says is.
    let script = "mkdir -p behind one two; bindfs behind one; bindfs behind two
        onehold --dir one run x -- sh -c 'echo > held; until test -e open; do sleep 0.01; done' &
        until test -e held; do sleep 0.01; done
        onehold --dir two run x -- echo never >/dev/null 2>&1 || echo $?
        onehold --dir two check --json x || true
        touch open; wait
        onehold --dir two run x -- echo mine
        sleep 1000 >/dev/null 2>&1 & pid=$!
        onehold --dir one acquire y --pid $pid >/dev/null 2>&1
        kill -KILL $pid; wait $pid || true
        onehold --dir two run y -- echo never 2>&1 || echo $?
        umount one two";
    let said = place.says("unshare --mount --propagation private", script);
    assert!(said.starts_with("6\n{"), "{said}");
    assert!(said.contains("\"state\":\"held\""), "{said}");
    assert!(said.contains("mine\n"), "{said}");
    assert!(said.contains(" break y`\n6\n"), "{said}");
    assert!(!said.contains("never\n"), "{said}");
}

/// A filesystem of its own that is cut off from its disk without writing anything back, and then
/// mounted again, as after a power failure.
fn after_power_loss(before: &str, after: &str) -> String {
    let place = Place::new();
    // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h).
    let shutdown = "python3 -c 'import fcntl, os, struct; \
        fcntl.ioctl(os.open(\"store\", os.O_RDONLY), 0x8004587D, struct.pack(\"I\", 2))'";
    let script = format!(
        "mkdir store; truncate -s 32M disk; mkfs.ext4 -q disk; mount -o loop disk store
        {before}
        {shutdown}
        umount store; mount -o loop disk store
        {after}
        umount store"
    );
    place.says("unshare --mount --propagation private", &script)
}

#[test]
#[ignore = "needs root: mounts"]
fn a_lease_survives_power_loss_and_other_holds_are_whole_or_gone() {
    let said = after_power_loss(
        "onehold acquire lease --ttl 1h -m why >number 2>/dev/null
        onehold acquire section/lease --ttl 1h >/dev/null 2>&1
        onehold acquire job --pid $$ >/dev/null 2>&1
        onehold run -q early -- true",
        "onehold check --json lease || true; cat number
        onehold check -q section/lease || echo $?
        onehold check --json job || true
        onehold run -w 15s after -- echo mine
        onehold acquire lease2 --ttl 1h 2>/dev/null",
    );
    let number = said.lines().nth(1).unwrap().trim().to_owned();
    assert!(said.contains("\"reason\":\"lease\""), "{said}");
    assert!(said.contains(&format!("\"hold\":{number},")), "{said}");
    assert!(said.contains("\n6\n"), "{said}");
    // Its process lives still, and it says so; or its file never came to be.
    let job = said
        .lines()
        .find(|line| line.contains("\"name\":\"job\""))
        .unwrap();
    let whole = job.contains("\"reason\":\"alive\"");
    let gone =
        job.contains("\"reason\":\"no-file\"") || job.contains("\"reason\":\"in-the-making\"");
    assert!(whole || gone, "{job}");
    assert!(said.contains("\nmine\n"), "{said}");
    let last: u64 = said.lines().last().unwrap().parse().unwrap();
    assert!(
        last > number.parse().unwrap(),
        "numbers grow across the loss"
    );
}

#[test]
#[ignore = "needs root: mounts"]
fn a_store_that_vanishes_under_a_hold_is_noticed_and_one_in_use_cannot_become_read_only() {
    // While a record is open for writing the kernel refuses (mount(2), EBUSY).
    let script =
        "onehold run x -- sh -c 'mount -o remount,ro store 2>/dev/null || exit 3' || echo $?
        onehold run x -- sh -c 'rm -rf store/*; exec sleep 20' || echo $?
        onehold run x -- echo mine";
    let said = on_tmpfs("size=1m", script);
    assert!(said.starts_with("3\n8\nmine\n"), "{said}");
}

/// What fcntl(2) calls the two kinds of locks: of a process, and of an open file (Linux).
const FCNTL_LOCKS: [(&str, &str); 4] = [
    ("posix write", "fcntl.lockf(f, fcntl.LOCK_EX)"),
    ("posix read", "fcntl.lockf(f, fcntl.LOCK_SH)"),
    (
        "ofd write",
        "fcntl.fcntl(f, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))",
    ),
    (
        "ofd read, of one byte",
        "fcntl.fcntl(f, 37, struct.pack('hhqqi', fcntl.F_RDLCK, 0, 1, 1, 0))",
    ),
];

#[test]
#[ignore = "needs python3: apt install python3"]
fn file_under_an_fcntl_lock_is_held_whatever_it_says() {
    for (kind, lock) in FCNTL_LOCKS {
        let place = Place::new();
        let python = format!(
            "import fcntl, struct, sys, time\n\
             f = open(sys.argv[1], 'r+')\n\
             {lock}\n\
             open('locked', 'w').close()\n\
             time.sleep(float(sys.argv[2]))\n"
        );
        fs::write(place.path("lock.py"), python).unwrap();
        let script = "
            locked() {
                python3 lock.py $1 $2 & locker=$!
                until test -e locked; do test -e $1; sleep 0.01; done; rm locked
            }
            mkdir store
            sh -c 'echo $$' > daemon.pid; : > store/empty.lock
            for lock in $PWD/daemon.pid empty; do
                file=store/$lock.lock; case $lock in /*) file=$lock;; esac
                : >> $file; touch -d '1 hour ago' $file
                onehold check -q $lock || echo unlocked $?
                locked $file 1000
                onehold check -q $lock || echo locked $?
                onehold run $lock -- echo never 2>/dev/null || echo run $?
                onehold cleanup -q
                kill $locker; wait $locker 2>/dev/null || true
                onehold check -q $lock || echo unlocked $?
                locked $file 0.5
                onehold run -q -w 1m $lock -- echo waited
                wait $locker
            done";
        let said = place.says("timeout 60", script);
        let each = "unlocked 5\nlocked 6\nrun 6\nunlocked 5\nwaited\n";
        assert_eq!(said, [each, each].concat(), "{kind}");
    }
}

#[test]
fn path_through_a_symlink_into_a_store_is_the_lock_of_that_store() {
    let place = Place::new();
    place.says(
        "env",
        "onehold acquire -q sec/x --ttl 1h; ln -s store/sec.d link",
    );
    let check = place.says("env", "onehold check --json ./link/x.lock || true");
    let object = json_object(&check);
    assert_eq!(object["lock"]["name"], "sec/x", "{check}");
}

#[test]
fn cleanup_removes_empty_directories() {
    let place = Place::new();
    let left = place.says(
        "env",
        "onehold run x -- true; mkdir -p store/a.d/b.d; onehold cleanup -q; ls store",
    );
    assert_eq!(left, "");
}
