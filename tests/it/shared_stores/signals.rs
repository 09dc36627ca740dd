//! Who gets a signal on whose word: records that a user has forged, and holds of others that are ended by force.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::User::{Daemon, Nobody, Root};
use super::{GROUP, Place, User};
use crate::harness::{Running, wait_until};

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
