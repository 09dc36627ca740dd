//! Invalid lock files, stores and environments.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use super::env::edited;
use crate::harness::{Running, TestEnv, number_in, wait_until};
#[cfg(unix)]
use crate::harness::{Signal, exit_code, stderr};

/// Checks that every command refuses the file of `x`, says why, and leaves it unchanged.
#[track_caller]
fn refused_by_all(env: &TestEnv, what: &str, intact: impl Fn(&Path) -> bool) {
    let path = env.store().join("x.lock");
    assert!(intact(&path));
    env.onehold(["check", "x"])
        .assert()
        .code(1)
        .stderr(contains(what));
    for args in [
        vec!["run", "x", "--", "echo", "never"],
        vec!["run", "--force", "--yes", "x", "--", "echo", "never"],
        vec!["acquire", "x", "--ttl", "1h"],
        vec!["release", "x"],
        vec!["renew", "x"],
        vec!["break", "x", "--yes"],
    ] {
        let code = if args[0] == "run" { 125 } else { 1 };
        env.onehold(&args)
            .assert()
            .code(code)
            .stdout(is_empty())
            .stderr(contains(what).and(contains("x.lock` is")));
        assert!(intact(&path), "{args:?}");
    }
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stdout(is_empty());
    assert!(intact(&path), "cleanup");
    assert_eq!(env.lock("x")["state"], "not-a-lock");
}

#[cfg(unix)]
#[test]
fn symlink_is_not_followed() {
    let env = TestEnv::new();
    let target = env.write("target", "precious");
    fs::create_dir(env.store()).unwrap();
    symlink(&target, env.store().join("x.lock")).unwrap();
    refused_by_all(&env, "a symbolic link", |path| {
        path.is_symlink() && fs::read_to_string(&target).unwrap() == "precious"
    });
}

#[cfg(unix)]
#[test]
fn dangling_symlink_is_not_created_through() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    symlink(env.path("nowhere"), env.store().join("x.lock")).unwrap();
    refused_by_all(&env, "a symbolic link", |path| {
        path.is_symlink() && !env.path("nowhere").exists()
    });
}

#[cfg(unix)]
#[test]
fn fifo_does_not_block() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    let path = env.store().join("x.lock");
    let made = env.command("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    refused_by_all(&env, "a FIFO", |path| {
        fs::symlink_metadata(path).unwrap().file_type().is_fifo()
    });
}

#[test]
fn directory_is_not_a_lock() {
    let env = TestEnv::new();
    fs::create_dir_all(env.store().join("x.lock/y")).unwrap();
    refused_by_all(&env, "a directory", |path| path.join("y").is_dir());
}

#[cfg(unix)]
#[test]
fn device_is_not_opened() {
    let env = TestEnv::new();
    env.onehold(["check", "/dev/zero"])
        .assert()
        .code(1)
        .stderr(contains("a device"));
    env.onehold(["run", "/dev/null", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("a device"));
}

#[test]
fn ten_gigabytes_are_not_read() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    let file = fs::File::create(env.store().join("x.lock")).unwrap();
    file.set_len(10 << 30).unwrap();
    refused_by_all(&env, "too large for a lock file", |path| {
        fs::metadata(path).unwrap().len() == 10 << 30
    });
}

/// Checks that a damaged record is held at first, and a zombie once it has not changed for 10 s.
#[track_caller]
fn broken(content: &[u8]) {
    let env = TestEnv::new();
    let path = env.write("store/x.lock", content);
    assert_eq!(env.check("x"), 6, "it may be incomplete");
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    assert_eq!(env.lock("x")["reason"], "corrupt");
    env.onehold(["run", "x", "--", "echo", "mine"])
        .assert()
        .success()
        .stdout("mine\n");
}

#[test]
fn empty_file_is_damaged() {
    broken(b"");
}

#[test]
fn file_of_nul_bytes_is_damaged() {
    broken(&[0; 4096]);
}

#[test]
fn truncated_record_is_damaged() {
    broken(b"{\n  \"onehold\": 1,\n  \"name\": \"x\",\n  \"ho");
}

#[test]
fn too_deep_record_is_damaged() {
    broken(format!("{{\"onehold\": 1, \"name\": {}", "[".repeat(30_000)).as_bytes());
}

/// Checks records with an impossible PID, which proves nothing.
#[track_caller]
fn impossible_pid(pid: &str) {
    let env = TestEnv::new();
    // The slot keeps its width, and a checksum that is no longer right.
    let _holder = env.write_record_of_live_holder("x", |text| {
        let (from, to) = (text.find("\"pid\":").unwrap() + 6, 28 + 384);
        let rest = &text[from..to];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let slot = format!("{pid}{}", rest[digits..].trim_end());
        format!("{}{slot:<2$}{}", &text[..from], &text[to..], to - from)
    });
    let prodigy = format!(
        "{{\"job_id\": \"y\", \"process_id\": {pid}, \"hostname\": \"{}\", \"acquired_at\": \"{}\"}}",
        hostname::get().unwrap().into_string().unwrap(),
        chrono::Utc::now().to_rfc3339()
    );
    env.write("store/y.lock", prodigy);
    env.write("store/z.pid.lock", format!("{pid}\n"));
    for name in ["x", "y", "z.pid"] {
        let path = env.store().join(format!("{name}.lock"));
        let file = fs::File::options().write(true).open(&path).unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
        file.set_modified(long_ago).unwrap();
        let lock = env.lock(name);
        assert_eq!(
            (&lock["state"], &lock["reason"]),
            (&"held".into(), &"unverified".into()),
            "{lock}"
        );
        env.onehold(["run", name, "--", "true"]).assert().code(6);
        // No process was signaled, and no process group: this test still runs.
        env.onehold(["break", name, "--yes"])
            .assert()
            .success()
            .stderr(contains(format!("onehold: broke the hold on `{name}` of ")));
        assert_eq!(env.check(name), 0);
    }
}

#[test]
fn pid_0_is_no_holder() {
    impossible_pid("0");
}

#[test]
fn pid_minus_1_is_no_holder() {
    impossible_pid("-1");
}

#[test]
fn pid_2_to_the_31_is_no_holder() {
    impossible_pid("2147483648");
}

#[test]
fn different_start_time_means_pid_was_reused() {
    let env = TestEnv::new();
    let _holder = env.write_record_of_live_holder("x", |text| {
        edited(&text, |record| record["live"]["start"] = 7.into())
    });
    assert_eq!(env.lock("x")["reason"], "reused");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("has exited"));
}

#[cfg(unix)]
#[test]
fn record_of_earlier_boot_is_taken_over_at_once() {
    let env = TestEnv::new();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let _holder = env.write_record_of_live_holder("x", |text| {
        text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")
    });
    assert_eq!(env.lock("x")["reason"], "rebooted");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("ended before the last reboot"));
}

#[cfg(unix)]
#[test]
fn record_of_run_on_another_machine_is_held_for_24_hours() {
    let env = TestEnv::new();
    env.onehold(["run", "x", "--", "sh", "-c", "cp \"$ONEHOLD_FILE\" copy"])
        .assert()
        .success();
    let copy = fs::read_to_string(env.path("copy")).unwrap();
    let theirs = edited(&copy, |record| {
        record["origin"]["boot"]["id"] = "00000000-0000-4000-8000-000000000000".into();
        record["origin"]["machine"] = "0123456789abcdef".into();
        record["hostname"] = "another-machine".into();
    });
    env.write("store/x.lock", theirs);
    let lock = env.lock("x");
    assert_eq!(lock["reason"], "unverified", "{lock}");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("`x` may be held by process").and(contains("another-machine")));
    env.onehold(["cleanup"]).assert().success();
    assert_eq!(env.check("x"), 6);
    env.onehold(["run", "--max-age", "0", "x", "--", "true"])
        .assert()
        .success();
}

#[cfg(unix)]
#[test]
fn record_of_other_pid_namespace_is_held_for_24_hours() {
    let env = TestEnv::new();
    let namespace = fs::metadata("/proc/self/ns/pid")
        .map(|facts| std::os::unix::fs::MetadataExt::ino(&facts))
        .unwrap();
    let mut holder = env.write_record_of_live_holder("x", |text| {
        text.replace(&namespace.to_string(), "4000000000")
    });
    holder.kill();
    // Root of the host sees that nothing lives there, and a container does not.
    let is_root = rustix::process::geteuid().is_root() && namespace == 0xEFFF_FFFC;
    let before = if is_root {
        "unshare --pid --fork --mount-proc "
    } else {
        ""
    };
    let onehold = |words: &str| env.shell(&format!("{before}onehold {words}"));
    let told = contains("\"reason\":\"unverified\"");
    onehold("check --json x").assert().code(6).stdout(told);
    let told = contains("`x` may be held by process");
    let told = told.and(contains("another PID namespace (a container)"));
    onehold("run x -- true").assert().code(6).stderr(told);
    onehold("check x --max-age 0").assert().code(5);
    onehold("run --max-age 0 x -- true").assert().success();
}

#[test]
fn future_date_has_no_age_and_year_9999_is_valid() {
    for year in ["2099", "9999"] {
        let env = TestEnv::new();
        let _holder = env.write_record_of_live_holder("x", |text| {
            let line = text
                .lines()
                .find(|line| line.contains("\"acquired_at\""))
                .unwrap();
            text.replace(
                line,
                &format!("  \"acquired_at\": \"{year}-12-31T23:59:59Z\","),
            )
        });
        let lock = env.lock("x");
        assert_eq!(lock["state"], "held");
        assert!(
            lock["age_seconds"].as_f64().unwrap() < 60.0,
            "by the boot-time clock: {lock}"
        );
        env.onehold(["check", "x"])
            .assert()
            .code(6)
            .stdout(contains("(in the future)"));
    }
}

#[test]
fn escape_sequences_do_not_reach_terminal() {
    let env = TestEnv::new();
    let nasty = "a\u{1b}[2J\u{7}\u{202e}b";
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid, "-m", nasty, "--owner", nasty])
        .assert()
        .success();
    for args in [
        vec!["check", "-v", "x"],
        vec!["list"],
        vec!["list", "-v"],
        vec!["run", "x", "--", "true"],
    ] {
        let output = env.onehold(&args).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("a\\e[2J\\u{7}\\u{202e}b"), "{said}");
        assert!(!said.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{said:?}");
    }
}

#[test]
fn record_with_duplicate_keys_is_damaged() {
    let env = TestEnv::new();
    let _holder = env.write_record_of_live_holder("x", |text| {
        text.replacen("  \"name\"", "  \"hold\": 7,\n  \"name\"", 1)
    });
    assert_eq!(env.lock("x")["reason"], "incomplete");
}

#[cfg(unix)]
#[test]
#[cfg(target_os = "linux")]
fn break_leaves_a_lock_that_a_process_of_a_later_version_has_locked() {
    let env = TestEnv::new();
    let path = env.write("store/x.lock", "{\"onehold\": 99}\n");
    let script = format!(
        "exec 9<'{}'; flock 9; echo $$ > ready; exec sleep 1000",
        path.display()
    );
    let mut holder = Running::start({
        let mut shell = env.command("sh");
        shell.args(["-c", &script]);
        shell
    });
    number_in(&env.path("ready"));
    env.onehold(["break", "x", "--yes"])
        .assert()
        .code(1)
        .stderr(contains(format!(
            "  still running: process {} (sleep)",
            holder.pid()
        )))
        .stderr(contains(" break x --force`"));
    assert_eq!(env.check("x"), 6);
    env.onehold(["break", "x", "--yes", "--force"])
        .assert()
        .success()
        .stderr(contains("a later version of onehold (record version 99)"))
        .stderr(contains("may still be running"));
    assert_eq!(env.check("x"), 0);
    holder.kill();
}

#[test]
fn record_of_later_version_is_held_until_broken() {
    let env = TestEnv::new();
    let path = env.write(
        "store/x.lock",
        "{\"onehold\": 2, \"holder\": \"who knows\"}\n",
    );
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    env.onehold(["check", "x", "--max-age", "0"])
        .assert()
        .code(6)
        .stdout(contains("a later version of onehold (record version 2)"));
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    env.onehold(["cleanup"]).assert().success();
    env.onehold(["break", "x", "--yes"])
        .assert()
        .success()
        .stderr(
            "onehold: broke the hold on `x` of a later version of onehold (record version 2)\n\
             onehold: warning: what it was held for may still be running\n",
        );
    assert_eq!(env.check("x"), 0);
}

#[cfg(unix)]
#[test]
fn live_holder_with_damaged_record_keeps_lock() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let running = env.start(["run", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    running.wait_until_recorded();
    let path = env.store().join("x.lock");
    fs::write(&path, "").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    assert_eq!(env.check("x"), 6);
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    env.onehold(["cleanup"]).assert().success();
    assert!(path.exists());
}

#[test]
fn store_that_is_a_file_is_an_error() {
    let env = TestEnv::new();
    env.write("store", "a file");
    for args in [
        vec!["check", "x"],
        vec!["list"],
        vec!["cleanup"],
        vec!["acquire", "x", "--ttl", "1h"],
        vec!["release", "x"],
        vec!["break", "x"],
    ] {
        env.onehold(&args).assert().code(1).stderr(format!(
            "onehold: cannot open store `{}`: not a directory\n",
            env.store().display()
        ));
    }
    env.onehold(["run", "x", "--", "true"]).assert().code(125);
}

#[cfg(unix)]
#[test]
fn store_behind_dangling_symlink_is_an_error() {
    let env = TestEnv::new();
    symlink(env.path("nowhere"), env.store()).unwrap();
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot open store"));
}

#[test]
fn directory_of_path_lock_is_not_created() {
    let env = TestEnv::new();
    env.onehold(["run", "./missing/x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot open directory"));
    assert!(!env.path("missing").exists());
}

#[cfg(unix)]
#[test]
fn path_lock_leaves_no_other_files_and_uses_default_journal() {
    let env = TestEnv::new();
    fs::create_dir(env.path("project")).unwrap();
    let lock = "./project/.running";
    env.onehold(["run", lock, "--", "ls", "-A", "project"])
        .assert()
        .success()
        .stdout(".running\n");
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
    let mut holder = Running::sleeper();
    env.onehold(["acquire", lock, "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    holder.kill();
    env.onehold(["run", lock, "--", "true"])
        .assert()
        .success()
        .stderr(contains("took over"));
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
    assert_eq!(env.journal()[0]["name"], lock);
}

#[cfg(unix)]
#[test]
fn stopped_process_that_locks_store_is_named_after_10s() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    let ready = env.path("ready");
    let blocker = Running::start({
        let mut command = env.command("flock");
        command.args([env.store().to_str().unwrap(), "sh", "-c"]);
        command.arg(format!("echo $$ > {}; sleep 1000", ready.display()));
        command
    });
    number_in(&ready);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains(format!(
            "store `{}` is busy: process {} has locked it for more than 10 s",
            env.store().display(),
            blocker.pid()
        )));
    assert_eq!(env.check("x"), 0, "check does not lock the store");
}

#[cfg(unix)]
#[test]
fn unwritable_journal_is_a_warning() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let journal = env.store().join(".onehold/events.jsonl");
    symlink(env.path("elsewhere"), &journal).unwrap();
    env.onehold(["run", "x", "--", "echo", "mine"])
        .assert()
        .success()
        .stdout("mine\n")
        .stderr(contains("onehold: warning: cannot write journal"));
    assert!(!env.path("elsewhere").exists(), "the link was not followed");
}

#[test]
fn journal_is_rotated_at_1_mib() {
    let env = TestEnv::new();
    env.create_zombie("x");
    env.write("store/.onehold/events.jsonl", vec![b'\n'; 1 << 20]);
    env.onehold(["run", "x", "--", "true"]).assert().success();
    assert_eq!(env.journal().len(), 1);
    assert_eq!(
        fs::metadata(env.store().join(".onehold/events.jsonl.1"))
            .unwrap()
            .len(),
        1 << 20
    );
}

#[cfg(unix)]
fn modified_ns(file: &fs::Metadata) -> i64 {
    use std::os::unix::fs::MetadataExt;
    file.mtime() * 1_000_000_000 + file.mtime_nsec()
}

/// The record of a takeover that was killed after the swap: a dead one, in the format of another
/// program, that names the file set aside and describes it as it was judged.
#[cfg(unix)]
fn killed_takeover(record: &str, aside: &Path, judged: &str) -> String {
    use std::os::unix::fs::MetadataExt;
    let facts = fs::metadata(aside).unwrap();
    let digest = judged
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let takeover = serde_json::json!({
        "name": aside.file_name().unwrap().to_str().unwrap(),
        "inode": facts.ino(),
        "size": facts.len(),
        "modified_ns": modified_ns(&facts),
        "digest": digest,
    });
    let from = record.find("\"origin\"").unwrap();
    format!(
        "{}\"takeover\":{takeover},{}",
        &record[..from],
        &record[from..]
    )
}

#[cfg(unix)]
#[test]
fn killed_takeover_is_recovered() {
    let env = TestEnv::new();
    let mut dies = Running::sleeper();
    env.onehold(["--format", "prodigy", "acquire", "x", "--pid"])
        .arg(dies.pid().to_string())
        .assert()
        .success();
    dies.kill();
    assert_eq!(env.check("x"), 5);
    let (path, aside) = (
        env.store().join("x.lock"),
        env.store().join(".onehold.00000000000000aa"),
    );
    let run = || env.onehold(["--format", "prodigy", "run", "x", "--", "true"]);
    let record = fs::read_to_string(&path).unwrap();
    // The moved file is the judged one: the takeover is completed.
    fs::rename(&path, &aside).unwrap();
    fs::write(&path, killed_takeover(&record, &aside, &record)).unwrap();
    run().assert().success();
    assert_eq!(env.left_in_store(), [""; 0]);
    // Another program wrote into it after it was judged, in the same size and at the same time: it
    // is restored and counts as held.
    let theirs = |pid: u32| {
        format!(
            "{{\"job_id\": \"x\", \"process_id\": {pid:10}, \"hostname\": \"{}\", \"acquired_at\": \"{}\"}}",
            hostname::get().unwrap().into_string().unwrap(),
            chrono::Utc::now().format("%FT%TZ")
        )
    };
    let holder = Running::sleeper();
    fs::write(&aside, theirs(holder.pid())).unwrap();
    let judged = theirs(dies.pid());
    fs::write(&path, killed_takeover(&record, &aside, &judged)).unwrap();
    run().assert().code(6);
    assert_eq!(env.lock("x")["pid"], holder.pid());
    assert_eq!(env.left_in_store(), ["x.lock"]);
    // The moved file is not a lock file: it is restored, and left alone.
    fs::write(&aside, "4711\n").unwrap();
    fs::write(&path, killed_takeover(&record, &aside, "4712\n")).unwrap();
    run().assert().code(125).stderr(contains(
        "is not a lock: a bare number (for a PID file use --format pid)",
    ));
    assert_eq!(fs::read_to_string(&path).unwrap(), "4711\n");
    assert_eq!(env.left_in_store(), ["x.lock"]);
}

#[cfg(unix)]
#[test]
fn store_without_permission_is_an_error() {
    let env = TestEnv::new();
    fs::create_dir(env.store()).unwrap();
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(env.store(), fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = env.unprivileged(["run", "x", "--", "true"]);
    command.assert().code(125).stderr(format!(
        "onehold: cannot open store `{}`: permission denied{}\n",
        env.store().display(),
        owner_of(&env.store())
    ));
    fs::set_permissions(env.store(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[cfg(unix)]
#[test]
fn long_command_line_leaves_readable_record() {
    let env = TestEnv::new();
    let mut args = vec![
        "run",
        "x",
        "--",
        "sh",
        "-c",
        "onehold check -q x; echo $?",
        "sh",
    ];
    args.extend(std::iter::repeat_n("", 20_000));
    env.onehold(args).assert().success().stdout("6\n");
    let long = ["x"; 600].join("/");
    env.onehold(["check", &long])
        .assert()
        .code(2)
        .stderr(contains("longer than 1024 bytes"));
}

#[cfg(unix)]
#[test]
fn run_works_with_low_open_file_limit() {
    let env = TestEnv::new();
    env.session("ulimit -n 64; onehold run x -- onehold check -q x")
        .assert()
        .code(6);
}

#[cfg(unix)]
#[test]
fn symlink_in_place_of_meta_directory_is_not_followed() {
    let env = TestEnv::new();
    fs::create_dir(env.path("victim")).unwrap();
    fs::create_dir(env.store()).unwrap();
    symlink(env.path("victim"), env.store().join(".onehold")).unwrap();
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot write the hold number in"));
    assert_eq!(fs::read_dir(env.path("victim")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
#[ignore = "needs strace: apt install strace"]
fn path_lock_removes_leftovers_of_killed_takeovers() {
    let env = TestEnv::new();
    fs::create_dir(env.path("project")).unwrap();
    let lock = "./project/lock";
    let mut holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["--format", "prodigy", "acquire", lock, "--pid", &pid])
        .assert()
        .success();
    let record = fs::read_to_string(env.path("project/lock")).unwrap();
    holder.kill();
    // The name of the temporary file, from a takeover that is killed during the exchange.
    let killed = env
        .session("strace -qq -o /dev/null -e trace=renameat2 -e inject=renameat2:signal=KILL onehold --format prodigy run ./project/lock -- true; ls -A project")
        .output()
        .unwrap();
    let names = String::from_utf8(killed.stdout).unwrap();
    let left = names
        .lines()
        .find(|name| name.starts_with(".onehold."))
        .unwrap();
    assert!(env.path("project").join(left).exists(), "{names}");
    env.onehold(["--format", "prodigy", "run", lock, "--", "true"])
        .assert()
        .success();
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
    // The same if the lock has no file.
    fs::write(env.path("project").join(left), record).unwrap();
    env.onehold(["--format", "prodigy", "run", lock, "--", "true"])
        .assert()
        .success();
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn concurrent_checks_do_not_look_like_holders() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let mut running = env.start(["run", "x", "--", "sh", "-c", &script]);
    let command = number_in(&ready);
    running.kill();
    crate::harness::send(command, Signal::KILL);
    wait_until("the holder is dead", || env.check("x") == 5);
    let asking: Vec<_> = (0..16).map(|_| env.start(["check", "-q", "x"])).collect();
    for mut asking in asking {
        assert_eq!(asking.finish(), 5);
    }
}

/// What is said of a file whose owner is another user than that of [`TestEnv::unprivileged`].
#[cfg(unix)]
fn owner_of(path: &Path) -> &'static str {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(path).unwrap().uid() {
        0 => "; it belongs to user root",
        _ => "",
    }
}

#[cfg(unix)]
#[test]
fn store_with_unknown_scheme_is_a_usage_error() {
    let env = TestEnv::new();
    let output = env.output(["run", "--dir", "unknown://h:1/x", "x", "--", "true"]);
    assert_eq!(exit_code(output.status), 2, "{}", stderr(&output));
    assert!(!env.path("unknown:").exists());
}
