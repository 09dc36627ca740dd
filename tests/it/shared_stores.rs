//! Stores that several users share: a group's, and one for everybody. As root, with two ordinary users.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use crate::harness::{Running, TestEnv, output, wait_until};
use serde_json::{Map, Value, json};

/// The group of the group's store. The ordinary users belong to it.
pub(super) const GROUP: u32 = 4400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Root,
    Daemon,
    Nobody,
}

use User::{Daemon, Nobody, Root};

impl User {
    pub(super) fn id(self) -> u32 {
        match self {
            Root => 0,
            Daemon => 1,
            Nobody => 65534,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Root => "root",
            Daemon => "daemon",
            Nobody => "nobody",
        }
    }
}

/// A store of this mode, and a directory that each user can work in.
pub(super) struct Place {
    pub(super) env: TestEnv,
    pub(super) umask: &'static str,
}

impl Place {
    pub(super) fn new(mode: u32, umask: &'static str) -> Self {
        let env = TestEnv::new();
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(env.root.path(), open).unwrap();
        fs::create_dir(env.store()).unwrap();
        chown(env.store(), None, Some(GROUP)).unwrap();
        fs::set_permissions(env.store(), fs::Permissions::from_mode(mode)).unwrap();
        Self { env, umask }
    }

    pub(super) fn command(&self, user: User, words: &str) -> Command {
        let mut command = self.env.command("setpriv");
        let id = user.id().to_string();
        let script = format!("umask {}; {words}", self.umask);
        command
            .args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--groups",
                &GROUP.to_string(),
            ])
            .args(["sh", "-c", &script]);
        command
    }

    pub(super) fn does(&self, user: User, words: &str) -> Output {
        output(&mut self.command(user, words))
    }

    #[track_caller]
    pub(super) fn succeeds(&self, user: User, words: &str) -> String {
        let ended = self.does(user, words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            ended.status.success() && !said.contains("warning"),
            "{user:?}, umask {}: {words}: {:?} {said}",
            self.umask,
            ended.status
        );
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    }

    #[track_caller]
    pub(super) fn number(&self, user: User, words: &str) -> u64 {
        self.succeeds(user, words).parse().unwrap()
    }

    pub(super) fn lock(&self, user: User, name: &str) -> Value {
        let ended = self.does(user, &format!("onehold check --json {name}"));
        crate::harness::json_object(&ended.stdout)["lock"].take()
    }

    /// Fails, and says whose it is.
    #[track_caller]
    pub(super) fn is_refused(&self, user: User, words: &str, owner: User) {
        let ended = self.does(user, words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let code = ended.status.code();
        assert!(
            matches!(code, Some(1 | 125)),
            "{user:?}: {words}: {code:?} {said}"
        );
        let named = format!("; it belongs to user {}", owner.name());
        assert!(said.contains(&named), "{user:?}: {words}: {said}");
    }

    /// Leaves a run of a user whose wrapper and command were killed.
    pub(super) fn leave_zombie(&self, user: User, name: &str) {
        let script = format!("onehold run {name} -- sh -c 'kill -KILL $PPID $$'");
        let _ = self.does(user, &script);
        wait_until("it is a zombie", || {
            self.lock(user, name)["state"] == "zombie"
        });
    }
}

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

/// Rewrites a native record, with the sum that its reader expects.
fn forged(record: &[u8], edit: impl FnOnce(&mut Map<String, Value>)) -> Vec<u8> {
    const SLOT: std::ops::Range<usize> = 28..412;
    const SUMMED_FROM: usize = 24;
    let mut document: Map<String, Value> = serde_json::from_slice(record).unwrap();
    edit(&mut document);
    document.remove("onehold");
    let mut live = document.remove("live").unwrap();
    live.as_object_mut().unwrap().remove("sum");
    let live = serde_json::to_string(&live).unwrap();
    let mut slot = format!("{{\"sum\":\"0123456789abcdef\",{}", &live[1..]).into_bytes();
    assert!(slot.len() <= SLOT.len(), "{live}");
    slot.resize(SLOT.len(), b' ');
    let sum = slot[SUMMED_FROM..]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    slot[8..SUMMED_FROM].copy_from_slice(format!("{sum:016x}").as_bytes());
    let rest = serde_json::to_string(&document).unwrap();
    [&record[..SLOT.start], &slot, b",", &rest.as_bytes()[1..]].concat()
}

/// A process that another user's record names.
struct Victim {
    process: Child,
    start: u64,
}

impl Victim {
    fn of(place: &Place, user: User) -> Self {
        let process = place.command(user, "exec sleep 600").spawn().unwrap();
        let pid = process.id();
        wait_until("it sleeps", || {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
        });
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let mut fields = line.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        let start = fields.nth(19).unwrap().parse().unwrap();
        Self { process, start }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A lock whose record user [`Daemon`] has written, and what that record must not do to others.
struct Forgery {
    place: Place,
    lock: String,
    file: PathBuf,
    genuine: Vec<u8>,
    victims: [Victim; 2],
    outside: (PathBuf, Vec<(String, SystemTime)>),
    /// Owner and mode of the forged file.
    owner: User,
    mode: u32,
}

/// TERM in the masks of /proc/PID/status.
const TERM: u64 = 1 << 14;

impl Forgery {
    fn new(store: u32, is_path: bool, owner: User, mode: u32) -> Self {
        let place = Place::new(store, "022");
        if store == 0o700 {
            chown(place.env.store(), Some(Daemon.id()), Some(GROUP)).unwrap();
        }
        let lock = if is_path {
            place.env.store().join("x.lock").display().to_string()
        } else {
            "x".to_owned()
        };
        // A run that is being ended by TERM, whose wrapper and work were killed.
        let words = format!(
            "exec onehold run --kill-after 30 {lock} -- sh -c 'trap : TERM; while :; do sleep 1; done'"
        );
        let mut wrapper = place.command(Daemon, &words);
        let mut wrapper = wrapper.stderr(Stdio::null()).spawn().unwrap();
        let file = place.env.store().join("x.lock");
        let read = || serde_json::from_slice::<Value>(&fs::read(&file).unwrap_or_default());
        wait_until("its command runs", || {
            read().is_ok_and(|record| record["live"]["start"].is_u64())
        });
        let kill = |signal: &str, pid: &str| {
            let words = ["-c", &format!("kill {signal} {pid}")];
            assert!(Command::new("sh").args(words).status().unwrap().success());
        };
        let command = read().unwrap()["live"]["pid"].to_string();
        wait_until("it catches TERM", || {
            let status = fs::read_to_string(format!("/proc/{command}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & TERM != 0
        });
        kill("-TERM", &wrapper.id().to_string());
        wait_until("its work is being ended", || {
            read().is_ok_and(|record| record["live"]["ending"].is_u64())
        });
        let genuine = fs::read(&file).unwrap();
        kill("-KILL", &wrapper.id().to_string());
        kill("-KILL", &command);
        wrapper.wait().unwrap();
        let outside = place.env.path("outside");
        fs::create_dir(&outside).unwrap();
        for name in ["file", "x.lock", ".onehold.0123456789abcdef"] {
            fs::write(outside.join(name), &genuine).unwrap();
        }
        let victims = [Victim::of(&place, Root), Victim::of(&place, Nobody)];
        let state = state_of(&outside);
        Self {
            place,
            lock,
            file,
            genuine,
            victims,
            outside: (outside, state),
            owner,
            mode,
        }
    }

    /// Puts a forged record in place, runs a verb, and looks at what has become of the others.
    fn plays(&mut self, record: &[u8], user: User, verb: &str) {
        let temporary = self.file.with_extension("new");
        fs::write(&temporary, record).unwrap();
        chown(&temporary, Some(self.owner.id()), Some(GROUP)).unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(self.mode)).unwrap();
        fs::rename(&temporary, &self.file).unwrap();
        let words = format!("timeout 30 onehold {}", verb.replace("LOCK", &self.lock));
        let ended = self.place.does(user, &words);
        let text = String::from_utf8_lossy(record);
        let code = ended.status.code();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            code.is_some_and(|code| code < 124 || code == 125) && !said.contains("panicked"),
            "{user:?}: {words}: {code:?} {said}\n{text}"
        );
        for victim in &mut self.victims {
            let status = victim.process.try_wait().unwrap();
            assert!(
                status.is_none(),
                "{status:?}: {user:?}: {words}: {said}\n{text}"
            );
        }
        let (outside, before) = &self.outside;
        assert_eq!(state_of(outside), *before, "{user:?}: {words}\n{text}");
    }

    /// The record that leads to a signal for sure if it is believed.
    fn names_victim(&self, record: &mut Map<String, Value>, victim: usize) {
        let victim = &self.victims[victim];
        let live = record["live"].as_object_mut().unwrap();
        live.insert("pid".to_owned(), json!(victim.pid()));
        live.insert("start".to_owned(), json!(victim.start));
        live.insert("ending".to_owned(), json!(1));
        live.insert("told".to_owned(), json!(true));
        record["origin"]["start"] = json!(1);
        record["origin"]["acquired_boottime_ms"] = json!(1);
    }

    /// A live wrapper, which a break tells to end its work.
    fn names_wrapper(&self, record: &mut Map<String, Value>, victim: usize) {
        let victim = &self.victims[victim];
        let live = record["live"].as_object_mut().unwrap();
        live.insert("pid".to_owned(), json!(victim.pid()));
        live.insert("start".to_owned(), json!(victim.start));
        live.remove("ending");
        live.remove("told");
        record.insert("taken_by".to_owned(), json!(victim.pid()));
        record["origin"]["start"] = json!(victim.start);
    }
}

/// Names, and when each was changed last.
fn state_of(directory: &Path) -> Vec<(String, SystemTime)> {
    let mut entries: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, entry.metadata().unwrap().modified().unwrap())
        })
        .collect();
    entries.sort();
    entries
}

/// Each place where other users can put a record: mode of the store, whether it is a path, owner and mode
/// of the forged record.
const FORGERIES: [(u32, bool, User, u32); 7] = [
    (0o700, false, Daemon, 0o644),
    (0o2770, false, Daemon, 0o640),
    (0o2770, false, Daemon, 0o660),
    // A lease of root, which the group may write.
    (0o2770, false, Root, 0o660),
    (0o1777, false, Daemon, 0o644),
    (0o1777, true, Daemon, 0o644),
    (0o1777, true, Root, 0o666),
];

const VERBS: [&str; 9] = [
    "run LOCK -- true",
    "break --yes LOCK",
    "check -v LOCK",
    "list -v",
    "cleanup",
    "release LOCK",
    "renew LOCK",
    "run --force --yes LOCK -- true",
    "break --yes --force LOCK",
];

#[test]
#[ignore = "needs root: two ordinary users"]
fn no_verb_signals_a_process_on_the_word_of_a_user_who_may_not_signal_it() {
    std::thread::scope(|scope| {
        for (store, is_path, owner, mode) in FORGERIES {
            scope.spawn(move || {
                let mut forgery = Forgery::new(store, is_path, owner, mode);
                // Root's process and a third user's.
                for (victim, user, verbs) in [
                    (0, Root, &VERBS[..]),
                    (1, Root, &VERBS),
                    (0, Nobody, &VERBS[..2]),
                ] {
                    let work = forged(&forgery.genuine, |record| {
                        forgery.names_victim(record, victim);
                    });
                    let wrapper = forged(&forgery.genuine, |record| {
                        forgery.names_wrapper(record, victim);
                    });
                    for verb in verbs {
                        forgery.plays(&work, user, verb);
                        forgery.plays(&wrapper, user, verb);
                    }
                }
            });
        }
    });
}

/// Each key of a record, with the path that leads to it.
fn keys(document: &Map<String, Value>) -> Vec<Vec<String>> {
    let mut keys = Vec::new();
    for (key, value) in document {
        keys.push(vec![key.clone()]);
        if let Value::Object(inner) = value {
            let below = self::keys(inner).into_iter();
            keys.extend(below.map(|below| [vec![key.clone()], below].concat()));
        }
    }
    keys
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn no_field_of_another_users_record_makes_root_signal_its_own_process() {
    /// All that a record may have, besides what the genuine one has.
    const OTHER_KEYS: [&str; 10] = [
        "names",
        "mode",
        "owner",
        "message",
        "ttl_ms",
        "max_age_ms",
        "close",
        "exec",
        "takeover",
        "visible",
    ];
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..crate::harness::CONTENDERS {
            let next = &next;
            scope.spawn(move || {
                let (is_path, mode) = if worker % 2 == 0 {
                    (false, 0o644)
                } else {
                    (true, 0o644)
                };
                let mut forgery = Forgery::new(0o1777, is_path, Daemon, mode);
                let victim = json!(forgery.victims[0].pid());
                let mut whole = serde_json::from_slice(&forgery.genuine).unwrap();
                forgery.names_victim(&mut whole, 0);
                whole["live"].as_object_mut().unwrap().remove("sum");
                let mut keys = keys(&whole);
                keys.retain(|key| key != &["onehold"] && key != &["live"]);
                keys.extend(OTHER_KEYS.map(|key| vec![key.to_owned()]));
                let outside = forgery.outside.0.join("file").display().to_string();
                let takeover = json!({
                    "name": "../outside/.onehold.0123456789abcdef",
                    "inode": 1, "size": 1, "modified_ns": 1, "digest": 1,
                });
                let values = [
                    victim,
                    json!(0),
                    json!(true),
                    json!(false),
                    json!(outside),
                    json!(["x", outside, "../outside/x"]),
                    takeover,
                ];
                let cases = keys
                    .iter()
                    .flat_map(|key| values.iter().map(move |value| (key, value)));
                let cases: Vec<_> = cases.collect();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((key, value)) = cases.get(at) else {
                        break;
                    };
                    let record = forged(&forgery.genuine, |record| {
                        forgery.names_victim(record, 0);
                        let (last, parents) = key.split_last().unwrap();
                        let parent = parents.iter().fold(&mut *record, |inner, key| {
                            inner[key].as_object_mut().unwrap()
                        });
                        parent.insert(last.clone(), (*value).clone());
                    });
                    for verb in ["run LOCK -- true", "break --yes LOCK", "cleanup"] {
                        forgery.plays(&record, Root, verb);
                    }
                }
            });
        }
    });
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn process_that_gets_no_signal_is_named_with_its_user() {
    let mut forgery = Forgery::new(0o1777, false, Daemon, 0o644);
    let record = forged(&forgery.genuine, |record| forgery.names_victim(record, 0));
    forgery.plays(&record, Root, "check LOCK");
    let pid = forgery.victims[0].pid();
    let named = format!("process {pid} (sleep) gets no signal: it belongs to user root");
    for (verb, code) in [("run x -- true", 6), ("break --yes x", 1)] {
        let ended = forgery.place.does(Root, &format!("onehold {verb}"));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{verb}: {said}");
        assert!(said.contains(&named), "{verb}: {said}");
    }
    // A person may free the lock all the same.
    forgery.plays(&record, Root, "break --yes --force LOCK");
    forgery.place.succeeds(Root, "onehold run x -- true");
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn break_asks_for_nothing_that_it_cannot_do() {
    for (store, mode) in [(0o1777, 0o644), (0o2770, 0o660)] {
        let mut forgery = Forgery::new(store, false, Daemon, mode);
        let record = forged(&forgery.genuine, |record| forgery.names_victim(record, 0));
        forgery.plays(&record, Root, "check LOCK");
        let pid = forgery.victims[0].pid();
        let ended = forgery.place.does(Root, "onehold break x");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{store:o}: {said}");
        let named = format!("process {pid} (sleep) gets no signal: it belongs to user root");
        assert!(said.contains(&named), "{store:o}: {said}");
        assert!(!said.contains("confirm"), "{store:o}: {said}");
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn break_does_not_wait_for_a_process_that_gets_no_signal() {
    let mut forgery = Forgery::new(0o1777, false, Daemon, 0o644);
    // TERM was sent, it says, and KILL is due in 4,000 years.
    let record = forged(&forgery.genuine, |record| {
        forgery.names_victim(record, 0);
        record["live"]["ending"] = json!(1);
        record["live"]["told"] = json!(true);
        record["kill_after_ms"] = json!(130_000_000_000_000_u64);
    });
    forgery.plays(&record, Root, "check LOCK");
    let ended = forgery.place.does(Root, "timeout 20 onehold break --yes x");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let pid = forgery.victims[0].pid();
    let named = format!("process {pid} (sleep) gets no signal: it belongs to user root");
    assert!(said.contains(&named), "{said}");
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn force_does_not_wait_for_a_process_that_gets_no_signal() {
    for has_command in [true, false] {
        let mut forgery = Forgery::new(0o1777, false, Daemon, 0o644);
        let record = forged(&forgery.genuine, |record| {
            let root = &forgery.victims[0];
            forgery.names_wrapper(record, usize::from(has_command));
            let live = record["live"].as_object_mut().unwrap();
            live.remove("pid");
            live.remove("start");
            if has_command {
                live.insert("pid".to_owned(), json!(root.pid()));
                live.insert("start".to_owned(), json!(root.start));
            }
        });
        forgery.plays(&record, Root, "check LOCK");
        let (file, locked) = (&forgery.file, forgery.file.with_file_name("locked"));
        let keeps_lock = format!(
            "exec flock --no-fork {} sh -c 'touch {}; exec sleep 1000'",
            file.display(),
            locked.display()
        );
        let _keeper = Running::start(forgery.place.command(Daemon, &keeps_lock));
        wait_until("it is locked", || locked.exists());
        let taken = "timeout 20 onehold run --force --yes x -- true";
        let ended = forgery.place.does(Root, taken);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{has_command}: {said}");
        let pid = forgery.victims[0].pid();
        let named = format!("process {pid} (");
        assert!(said.contains(&named), "{said}");
        assert!(said.contains("is still running"), "{said}");
    }
}

#[test]
#[ignore = "needs root: two ordinary users"]
fn root_ends_the_work_of_a_user_whose_wrapper_was_killed_in_every_store() {
    for (store, is_path, ..) in FORGERIES {
        let forgery = Forgery::new(store, is_path, Daemon, 0o644);
        let work = Victim::of(&forgery.place, Daemon);
        let record = forged(&forgery.genuine, |record| {
            record["live"]["pid"] = json!(work.pid());
            record["live"]["start"] = json!(work.start);
            record["live"]["ending"] = json!(1);
            record["origin"]["start"] = json!(1);
        });
        // Not made: that is what another test has forbidden meanwhile.
        let mut existing = fs::File::options();
        existing.write(true).truncate(true);
        let mut file = existing.open(&forgery.file).unwrap();
        file.write_all(record.as_ref()).unwrap();
        chown(&forgery.file, Some(Daemon.id()), Some(GROUP)).unwrap();
        let words = format!("onehold run -w 60 {} -- true", forgery.lock);
        let ended = forgery.place.does(Root, &words);
        assert_eq!(ended.status.code(), Some(0), "{store:o}: {ended:?}");
        let mut work = work;
        wait_until("it has got KILL", || {
            work.process.try_wait().unwrap().is_some()
        });
    }
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
fn break_of_the_run_of_another_user_says_whom_to_ask() {
    let place = Place::new(0o1777, "022");
    let mut run = place.command(Root, "exec onehold run roots -- sleep 1000");
    run.stdout(std::process::Stdio::null());
    let mut run = Running::spawn(run);
    wait_until("it is held", || {
        place.lock(Root, "roots")["pid_alive"] == true
    });
    let ended = place.does(Daemon, "onehold break roots --yes");
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        said.contains("  it belongs to user root: ask that user to run `onehold ")
            && said.ends_with(" break roots`\n"),
        "{said}"
    );
    assert!(!said.contains("--force"), "{said}");
    let checked = place.does(Daemon, "onehold check -v roots").stdout;
    let checked = String::from_utf8(checked).unwrap();
    let heading = "  processes that you may not signal, so `break` does not end them:\n";
    assert!(checked.contains(heading), "{checked}");
    assert!(!checked.contains("ends by TERM"), "{checked}");
    // Where it can be removed, the hint helps.
    let refused = place.does(Daemon, "onehold run roots -- true").stderr;
    let refused = String::from_utf8(refused).unwrap();
    assert!(
        refused.ends_with("add --wait; only user root can remove it\n"),
        "{refused}"
    );
    place.succeeds(Root, "onehold break roots --yes");
    run.finish();
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
