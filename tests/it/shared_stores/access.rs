//! What each user may do, and what is made with which modes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use serde_json::Value;

use super::User::{Daemon, Nobody, Root};
use super::{GROUP, Place, User};
use crate::harness::{Running, output, wait_until};

/// A lets B in: everything that the second user does works, or is refused with the owner's name.
fn second_user_gets_in(place: &Place, mode: u32, first: User, second: User) {
    // In a sticky directory only its owner and root can remove a file.
    let may_remove = mode & 0o1000 == 0 || second == Root;
    let mut last = 0;
    let mut grows = |number: u64| {
        assert!(number > last, "{number} after {last}");
        last = number;
    };
    // Each part of the store is made by the first user: the directories, the number, the journal.
    grows(place.number(
        first,
        "onehold acquire section/first --ttl 1h --owner label",
    ));
    place.leave_zombie(first, "dead");
    grows(place.number(first, "onehold run dead -- printenv ONEHOLD_HOLD"));
    place.leave_zombie(first, "dead");

    grows(place.number(second, "onehold acquire section/second --ttl 1h"));
    grows(place.number(second, "onehold run x -- printenv ONEHOLD_HOLD"));
    grows(place.number(first, "onehold run x -- printenv ONEHOLD_HOLD"));
    let listed = place.succeeds(second, "onehold list");
    for name in ["section/first", "section/second", "dead"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert_eq!(place.lock(second, "section/first")["state"], "held");
    assert_eq!(
        place
            .does(second, "onehold run section/first -- true")
            .status
            .code(),
        Some(6)
    );

    fs::write(place.env.path("order"), "").unwrap();
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(place.env.path("order"), open).unwrap();
    // Waits in order, with tickets, and is woken.
    let holder = Running::start(place.command(
        first,
        "onehold run y -- sh -c 'until test -e end; do sleep 0.01; done'",
    ));
    wait_until("it is held", || place.lock(first, "y")["state"] == "held");
    let mut waiters: Vec<Running> = Vec::new();
    for (index, user) in [second, first, second].into_iter().enumerate() {
        let words = format!("onehold run -w 60s y -- sh -c 'echo {index} >> order'");
        waiters.push(Running::start(place.command(user, &words)));
        wait_until("it has a ticket", || {
            place.lock(first, "y")["waiters"].as_array().unwrap().len() == index + 1
        });
    }
    fs::write(place.env.path("end"), "").unwrap();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    drop(holder);
    assert_eq!(
        fs::read_to_string(place.env.path("order")).unwrap(),
        "0\n1\n2\n"
    );

    // Takes over, breaks, releases.
    let take_over = "onehold run dead -- true";
    let break_it = "onehold break --yes broken";
    let release = "onehold release section/first --owner label";
    let renew = "onehold renew renewed --owner label";
    place.succeeds(first, "onehold acquire broken --ttl 1h");
    place.succeeds(first, "onehold acquire renewed --ttl 1h --owner label");
    if may_remove {
        assert!(place.does(second, take_over).status.success());
        place.succeeds(second, break_it);
        place.succeeds(second, renew);
        place.succeeds(second, release);
    } else {
        for words in [take_over, break_it, renew, release] {
            place.is_refused(second, words, first);
        }
        assert_eq!(place.lock(second, "section/first")["state"], "held");
        place.succeeds(first, release);
        assert!(place.does(first, take_over).status.success());
    }
    grows(place.number(second, "onehold run dead -- printenv ONEHOLD_HOLD"));
    // In a sticky directory each user has one of its own.
    let journal = place.succeeds(
        second,
        "cat store/.onehold/events.jsonl || cat store/.onehold-events-*.jsonl",
    );
    assert!(journal.contains("takeover"), "{journal}");
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn owner_of_a_groups_store_who_is_not_in_the_group_is_told_and_shuts_nobody_out() {
    for mode in [0o2770, 0o770] {
        let place = Place::new(mode, "022");
        chown(place.env.store(), Some(Daemon.id()), Some(GROUP)).unwrap();
        let mut owner = place.env.command("setpriv");
        let id = Daemon.id().to_string();
        owner
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(["onehold", "run", "x", "--", "true"]);
        let ended = output(&mut owner);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(125), "{mode:o}: {said}");
        assert!(
            said.contains("you do not belong to the group of the store"),
            "{said}"
        );
        place.succeeds(Nobody, "onehold run x -- true");
        place.succeeds(Nobody, "onehold cleanup");
        assert_eq!(
            place.succeeds(Nobody, "ls -A store"),
            ".onehold",
            "{mode:o}"
        );
    }
}

const ORDERS: [(User, User); 4] = [
    (Daemon, Nobody),
    (Nobody, Daemon),
    (Daemon, Root),
    (Root, Nobody),
];

#[test]
#[ignore = "needs root: two ordinary users"]
fn second_user_of_a_groups_store_can_do_everything() {
    for umask in ["000", "022", "077"] {
        for (first, second) in ORDERS {
            let place = Place::new(0o2770, umask);
            second_user_gets_in(&place, 0o2770, first, second);
        }
    }
}

#[test]
#[ignore = "needs root: two ordinary users and a sysctl"]
fn second_user_of_a_store_for_everybody_can_do_all_but_remove_what_is_another_users() {
    const SYSCTL: &str = "/proc/sys/fs/protected_regular";
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            fs::write(SYSCTL, &self.0).unwrap();
        }
    }
    // systemd sets it to 1 or 2: no file of another user is opened with O_CREAT in a sticky directory.
    let _restore = Restore(fs::read_to_string(SYSCTL).unwrap());
    fs::write(SYSCTL, "2").unwrap();
    for umask in ["000", "022", "077"] {
        for (first, second) in ORDERS {
            let place = Place::new(0o1777, umask);
            second_user_gets_in(&place, 0o1777, first, second);
        }
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn what_is_made_in_a_shared_store_has_its_modes_and_in_a_private_one_what_the_umask_leaves() {
    let mode_of = |place: &Place, name: &str| {
        let facts = fs::metadata(place.env.store().join(name)).unwrap();
        format!("{:o}", facts.permissions().mode() & 0o7777)
    };
    for (store, umask, directory, record, common) in [
        (0o2770, "077", "2770", "1660", "1660"),
        (0o2775, "022", "2775", "1664", "1664"),
        (0o755, "077", "700", "1600", "1600"),
        (0o755, "022", "755", "1644", "1644"),
    ] {
        let place = Place::new(store, umask);
        place.succeeds(Root, "onehold acquire a/b --ttl 1h");
        place.leave_zombie(Root, "dead");
        assert!(
            place
                .does(Root, "onehold run dead -- true")
                .status
                .success()
        );
        let made = [
            "a.d",
            ".onehold",
            "a.d/b.lock",
            ".onehold/last",
            ".onehold/events.jsonl",
        ];
        let modes = made.map(|name| mode_of(&place, name));
        assert_eq!(
            modes,
            [directory, directory, record, common, common],
            "{store:o}"
        );
    }
    // In a sticky one there are only files, each of one user.
    let place = Place::new(0o1777, "077");
    place.succeeds(Root, "onehold acquire a/b --ttl 1h");
    place.leave_zombie(Root, "dead");
    let replaced = place.does(Root, "onehold run dead -- true");
    assert!(replaced.status.success());
    for file in ["a%2Fb.lock", ".onehold-last-0", ".onehold-events-0.jsonl"] {
        assert_eq!(mode_of(&place, file), "1644", "{file}");
    }
    assert_eq!(place.succeeds(Root, "find store -mindepth 1 -type d"), "");
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn dead_reader_of_another_user_does_not_block_readers() {
    let place = Place::new(0o1777, "022");
    let dies = |user: User, owner: &str| {
        let words = format!("onehold acquire -q --slots 2 y --ttl 1ms --owner {owner}");
        place.number(user, &words);
        wait_until("it is over", || place.lock(user, "y")["state"] == "zombie");
    };
    dies(Daemon, "one");
    let slot = "-- printenv ONEHOLD_SLOT";
    for words in ["-s", "--slots 1", "--slots 2"] {
        let said = place.succeeds(Nobody, &format!("onehold run {words} y {slot}"));
        assert_eq!(said, "0", "{words}");
    }
    // Its own dead holds are replaced, so that there are no more of them each time.
    let files = || place.succeeds(Root, "ls store | grep -c '^y%2F.shared%2F'");
    for _ in 0..3 {
        dies(Nobody, "two");
        assert_eq!(files(), "2");
    }
    // At most as many as there are slots, each with a number of its own.
    let lease = |owner: &str| {
        let words = format!("onehold acquire -q --slots 2 y --ttl 1h --owner {owner}");
        place.does(Nobody, &words).status.code()
    };
    assert_eq!(lease("a"), Some(0));
    assert_eq!(lease("b"), Some(0));
    assert_eq!(lease("c"), Some(6));
    let lock = place.lock(Nobody, "y");
    let others = lock["others"].as_array().unwrap();
    let mut slots: Vec<&Value> = others
        .iter()
        .chain([&lock])
        .filter(|hold| hold["state"] == "held")
        .map(|hold| &hold["slot"])
        .collect();
    slots.sort_by_key(|slot| slot.as_u64());
    assert_eq!(slots, [0, 1], "{lock}");
    // Each is the one that its number and its owner name.
    assert_eq!(
        place
            .does(Nobody, "onehold release y --owner a")
            .status
            .code(),
        Some(0)
    );
    assert_eq!(
        place
            .does(Nobody, "onehold release y --owner b")
            .status
            .code(),
        Some(0)
    );
    place.succeeds(Nobody, "onehold run y -- true");
    // Who may remove it does.
    place.succeeds(Daemon, "onehold cleanup");
    assert_eq!(place.succeeds(Root, "find store -name '*.lock'"), "");
}

#[test]
#[ignore = "needs root and other users: run with sudo"]
fn users_are_shown_where_several_hold_something() {
    let place = Place::new(0o1777, "022");
    place.succeeds(Nobody, "onehold acquire one --ttl 1h");
    assert!(!place.succeeds(Root, "onehold list").contains("USER"));
    place.succeeds(Daemon, "onehold acquire two --ttl 1h");
    let listed = place.succeeds(Root, "onehold list");
    assert!(
        listed.starts_with("NAME  STATE  HOLDER  USER    AGE"),
        "{listed}"
    );
    assert!(
        listed.contains("  nobody  ") && listed.contains("  daemon  "),
        "{listed}"
    );
    assert_eq!(place.lock(Root, "one")["user"], "nobody");
    assert_eq!(place.lock(Root, "two")["uid"], Daemon.id());
}

#[test]
#[ignore = "needs root and other users: run with sudo"]
fn dead_hold_of_another_user_that_stays_is_not_said_to_be_available() {
    let place = Place::new(0o1777, "022");
    place.leave_zombie(Daemon, "x");
    let available = |user, options: &str| {
        let words = format!("onehold check -q --available {options} x");
        place.does(user, &words).status.code()
    };
    assert_eq!(available(Nobody, ""), Some(6));
    assert_eq!(available(Daemon, ""), Some(0));
    assert_eq!(available(Root, ""), Some(0));
    place.is_refused(Nobody, "onehold acquire x --ttl 1h", Daemon);
    let tried = place.does(Nobody, "onehold cleanup -n");
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(tried.stdout.is_empty(), "{tried:?}");
    assert!(
        said.ends_with("; only user daemon can remove it\n"),
        "{said}"
    );
    assert!(
        place
            .succeeds(Daemon, "onehold cleanup -n")
            .contains("would remove")
    );
    // Beside it a shared hold gets the next number.
    place.number(Daemon, "onehold acquire -q -s y --ttl 1ms");
    wait_until("it is over", || {
        place.lock(Daemon, "y")["state"] == "zombie"
    });
    let shared = place
        .does(Nobody, "onehold check -q --available -s y")
        .status;
    assert_eq!(shared.code(), Some(0));
    place.number(Nobody, "onehold acquire -q -s y --ttl 1h");
    // Whoever wants the lock alone passes it by.
    place.number(Daemon, "onehold acquire -q -s z --ttl 1ms");
    wait_until("it is over", || {
        place.lock(Daemon, "z")["state"] == "zombie"
    });
    let alone = place.does(Nobody, "onehold check --json --available z");
    assert_eq!(alone.status.code(), Some(0));
    assert_eq!(
        crate::harness::json_object(&alone.stdout)["lock"]["takeable"],
        true
    );
    place.succeeds(Nobody, "onehold run z -- true");
    assert_eq!(place.lock(Nobody, "x")["takeable"], false);
}
