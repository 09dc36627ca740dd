//! Section by section what a lock file, a store or the surroundings can be, other than right.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;

use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use crate::env::{Env, Running, eventually, number_in, sleeper};

/// Every verb that could do something to it leaves what stands under `x` as it is, and says why.
#[track_caller]
fn refused_by_all(env: &Env, what: &str, intact: impl Fn(&Path) -> bool) {
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

#[test]
fn a_symlink_is_not_followed() {
    let env = Env::new();
    let target = env.write("target", "precious");
    fs::create_dir(env.store()).unwrap();
    symlink(&target, env.store().join("x.lock")).unwrap();
    refused_by_all(&env, "a symbolic link", |path| {
        path.is_symlink() && fs::read_to_string(&target).unwrap() == "precious"
    });
}

#[test]
fn a_symlink_that_leads_nowhere_is_not_created_through() {
    let env = Env::new();
    fs::create_dir(env.store()).unwrap();
    symlink(env.path("nowhere"), env.store().join("x.lock")).unwrap();
    refused_by_all(&env, "a symbolic link", |path| {
        path.is_symlink() && !env.path("nowhere").exists()
    });
}

#[test]
fn a_fifo_does_not_block_us() {
    let env = Env::new();
    fs::create_dir(env.store()).unwrap();
    let path = env.store().join("x.lock");
    let made = std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    refused_by_all(&env, "a FIFO", |path| {
        fs::symlink_metadata(path).unwrap().file_type().is_fifo()
    });
}

#[test]
fn a_directory_is_no_lock() {
    let env = Env::new();
    fs::create_dir_all(env.store().join("x.lock/y")).unwrap();
    refused_by_all(&env, "a directory", |path| path.join("y").is_dir());
}

#[test]
fn a_device_is_not_opened() {
    let env = Env::new();
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
    let env = Env::new();
    fs::create_dir(env.store()).unwrap();
    let file = fs::File::create(env.store().join("x.lock")).unwrap();
    file.set_len(10 << 30).unwrap();
    refused_by_all(&env, "too large for a lock file", |path| {
        fs::metadata(path).unwrap().len() == 10 << 30
    });
}

/// A broken record: held at first, a zombie once it has not changed for 10 s.
#[track_caller]
fn broken(content: &[u8]) {
    let env = Env::new();
    let path = env.write("store/x.lock", content);
    assert_eq!(env.check("x"), 6, "it may be in the making");
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
fn an_empty_file_is_a_broken_record() {
    broken(b"");
}

#[test]
fn nothing_but_nuls_is_a_broken_record() {
    broken(&[0; 4096]);
}

#[test]
fn torn_json_of_ours_is_a_broken_record() {
    broken(b"{\n  \"onehold\": 1,\n  \"name\": \"x\",\n  \"ho");
}

#[test]
fn json_of_ours_deeper_than_any_parser_goes_is_a_broken_record() {
    broken(format!("{{\"onehold\": 1, \"name\": {}", "[".repeat(30_000)).as_bytes());
}

/// A record held by a living process, with one key changed to what no process can have.
#[track_caller]
fn impossible_pid(pid: &str) {
    let env = Env::new();
    let _holder = env.fabricate("x", |text| {
        let line = text.lines().find(|line| line.contains("\"pid\"")).unwrap();
        text.replace(line, &format!("  \"pid\": {pid},"))
    });
    let lock = env.lock("x");
    assert_eq!(
        (&lock["state"], &lock["reason"]),
        (&"held".into(), &"in-the-making".into())
    );
    // Nobody is signalled, no group least of all: we are still here.
    env.onehold(["break", "x", "--yes"]).assert().success();
    assert_eq!(env.check("x"), 0);
}

#[test]
fn pid_0_names_nobody() {
    impossible_pid("0");
}

#[test]
fn pid_minus_1_names_nobody() {
    impossible_pid("-1");
}

#[test]
fn pid_2_to_the_31_names_nobody() {
    impossible_pid("2147483648");
}

#[test]
fn a_start_that_is_another_processs_means_that_the_pid_was_reused() {
    let env = Env::new();
    let _holder = env.fabricate("x", |text| {
        let start = text.find("\"job_start\":").unwrap() + 12;
        let end = start + text[start..].find('}').unwrap();
        let digits = "9".repeat(end - start);
        format!("{}{digits}{}", &text[..start], &text[end..])
    });
    assert_eq!(env.lock("x")["reason"], "reused");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("which is gone"));
}

#[test]
fn a_record_of_another_boot_is_taken_at_once() {
    let env = Env::new();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let _holder = env.fabricate("x", |text| {
        text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")
    });
    assert_eq!(env.lock("x")["reason"], "rebooted");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("before the machine started anew"));
}

#[test]
fn a_record_of_another_pid_namespace_is_believed_for_24_hours() {
    let env = Env::new();
    let namespace = fs::metadata("/proc/self/ns/pid")
        .map(|facts| std::os::unix::fs::MetadataExt::ino(&facts))
        .unwrap();
    let mut holder = env.fabricate("x", |text| {
        text.replace(&namespace.to_string(), "4000000000")
    });
    holder.kill();
    assert_eq!(env.lock("x")["reason"], "unproven");
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            contains("`x` may be held by process")
                .and(contains("another pid namespace (a container)")),
        );
    env.onehold(["check", "x", "--max-age", "0"])
        .assert()
        .code(5);
    env.onehold(["run", "--max-age", "0", "x", "--", "true"])
        .assert()
        .success();
}

#[test]
fn a_date_in_the_future_is_no_age_and_year_9999_is_a_date() {
    for year in ["2099", "9999"] {
        let env = Env::new();
        let _holder = env.fabricate("x", |text| {
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
fn escape_sequences_do_not_reach_the_terminal() {
    let env = Env::new();
    let nasty = "a\u{1b}[2J\u{7}\u{202e}b";
    let holder = Running::start(sleeper());
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
        assert!(said.contains("a\\u{1b}[2J\\u{7}\\u{202e}b"), "{said}");
        assert!(!said.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{said:?}");
    }
}

#[test]
fn duplicate_keys_are_a_broken_record() {
    let env = Env::new();
    let _holder = env.fabricate("x", |text| {
        text.replacen("  \"name\"", "  \"hold\": 7,\n  \"name\"", 1)
    });
    assert_eq!(env.lock("x")["reason"], "in-the-making");
}

#[test]
fn a_later_version_is_held_until_it_is_broken() {
    let env = Env::new();
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
        .stdout(contains("another version of onehold"));
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    env.onehold(["cleanup"]).assert().success();
    env.onehold(["break", "x", "--yes"]).assert().success();
    assert_eq!(env.check("x"), 0);
}

#[test]
fn a_living_holder_whose_record_was_scribbled_on_is_not_displaced() {
    let env = Env::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
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
fn a_store_that_is_no_directory_is_an_error() {
    let env = Env::new();
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

#[test]
fn a_store_behind_a_symlink_that_leads_nowhere_is_an_error_and_no_loop() {
    let env = Env::new();
    symlink(env.path("nowhere"), env.store()).unwrap();
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot open store"));
}

#[test]
fn the_directory_of_a_path_is_not_made() {
    let env = Env::new();
    env.onehold(["run", "./missing/x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot open directory"));
    assert!(!env.path("missing").exists());
}

#[test]
fn a_path_lock_leaves_nothing_beside_it_and_is_told_of_in_the_default_journal() {
    let env = Env::new();
    fs::create_dir(env.path("project")).unwrap();
    let lock = "./project/.running";
    env.onehold(["run", lock, "--", "ls", "-A", "project"])
        .assert()
        .success()
        .stdout(".running\n");
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
    let mut holder = Running::start(sleeper());
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

#[test]
fn a_stopped_process_in_the_guard_is_named_after_10_seconds() {
    let env = Env::new();
    fs::create_dir(env.store()).unwrap();
    let ready = env.path("ready");
    let blocker = Running::start({
        let mut command = std::process::Command::new("flock");
        command.args([env.store().to_str().unwrap(), "sh", "-c"]);
        command.arg(format!("echo $$ > {}; sleep 1000", ready.display()));
        command
    });
    number_in(&ready);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains(format!(
            "cannot lock directory `{}`: process {} has kept it locked for more than 10 s",
            env.store().display(),
            blocker.pid()
        )));
    assert_eq!(env.check("x"), 0, "asking takes no guard");
}

#[test]
fn a_journal_that_cannot_be_written_is_a_warning() {
    let env = Env::new();
    env.leave_dead("x");
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
fn a_journal_of_a_mebibyte_is_rotated() {
    let env = Env::new();
    env.leave_dead("x");
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

/// The record of a dead holder after its last living process has put itself on it.
fn revived(record: &str, pid: u32) -> String {
    let blank = format!("{:255}\n", "");
    let line = format!("{:255}\n", format!("{{\"job_pid\":{pid}}}"));
    let at = record.find("{\"job_pid\"").unwrap();
    let mut text = record.to_owned();
    text.replace_range(at..at + blank.len(), &line);
    text
}

/// FNV-1a of what was judged.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn modified(file: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    (file.mtime() * 1_000_000_000 + file.mtime_nsec()).to_string()
}

#[test]
fn a_taker_who_died_after_the_exchange_is_recovered_from() {
    let env = Env::new();
    env.leave_dead("x");
    let (path, aside) = (
        env.store().join("x.lock"),
        env.store().join(".onehold.00000000000000aa"),
    );
    let judged = fs::metadata(&path).unwrap();
    let swap = |inode: u64, text: &str| {
        use std::os::unix::fs::MetadataExt;
        let modified = judged.mtime() * 1_000_000_000 + judged.mtime_nsec();
        text.replacen(
            "  \"origin\"",
            &format!(
                "  \"swap\": {{\"name\": \".onehold.00000000000000aa\", \"inode\": {inode}, \"size\": {}, \"modified_ns\": {modified}, \"digest\": {}}},\n  \"origin\"",
                judged.len(),
                digest(text)
            ),
            1,
        )
    };
    let record = fs::read_to_string(&path).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&judged);
    // What he took out is what he had judged: the takeover is finished.
    fs::rename(&path, &aside).unwrap();
    fs::write(&path, swap(inode, &record)).unwrap();
    env.onehold(["run", "x", "--", "true"]).assert().success();
    assert_eq!(env.left_in_store(), [""; 0]);
    // What he took out has come alive since he judged it, and nothing about its file tells so.
    let command = Running::start(sleeper());
    fs::write(&aside, revived(&record, command.pid())).unwrap();
    let revived = fs::metadata(&aside).unwrap();
    let as_judged = swap(std::os::unix::fs::MetadataExt::ino(&revived), &record);
    fs::write(
        &path,
        as_judged.replace(&modified(&judged), &modified(&revived)),
    )
    .unwrap();
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    assert_eq!(env.lock("x")["pid"], command.pid());
    assert_eq!(env.left_in_store(), ["x.lock"]);
    drop(command);
    // What he took out is another program's: it is given back, and that program holds.
    fs::write(&aside, "4711\n").unwrap();
    fs::write(&path, swap(inode, &record)).unwrap();
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains(
            "is a bare number, which is a lock only as a pid file",
        ));
    assert_eq!(fs::read_to_string(&path).unwrap(), "4711\n");
    assert_eq!(env.left_in_store(), ["x.lock"]);
}

#[test]
fn a_directory_without_permission_is_an_error_that_names_it() {
    let env = Env::new();
    fs::create_dir(env.store()).unwrap();
    fs::set_permissions(env.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let unprivileged = rustix_uid() != 0;
    if unprivileged {
        fs::set_permissions(env.store(), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let mut command = if unprivileged {
        env.onehold(["run", "x", "--", "true"])
    } else {
        let mut command =
            env.shell("exec setpriv --reuid 4321 --regid 4321 --clear-groups $0 run x -- true");
        // Where the tester's own directories are closed to others, the program is not.
        let program = env.path("onehold");
        fs::copy(crate::env::program(), &program).unwrap();
        fs::set_permissions(env.store(), fs::Permissions::from_mode(0o700)).unwrap();
        command.arg(program);
        command
    };
    command.assert().code(125).stderr(format!(
        "onehold: cannot open store `{}`: permission denied\n",
        env.store().display()
    ));
    fs::set_permissions(env.store(), fs::Permissions::from_mode(0o700)).unwrap();
}

fn rustix_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap())
}

#[test]
fn a_command_line_of_any_length_leaves_a_record_that_can_be_read() {
    let env = Env::new();
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

#[test]
fn a_process_that_may_have_few_files_open_can_still_hold() {
    let env = Env::new();
    env.shell("ulimit -n 64; onehold run x -- onehold check -q x")
        .assert()
        .code(6);
}

#[test]
fn another_users_link_in_place_of_our_directory_is_not_followed() {
    let env = Env::new();
    fs::create_dir(env.path("victim")).unwrap();
    fs::create_dir(env.store()).unwrap();
    symlink(env.path("victim"), env.store().join(".onehold")).unwrap();
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("cannot number a hold"));
    assert_eq!(fs::read_dir(env.path("victim")).unwrap().count(), 0);
}

#[test]
fn a_path_lock_does_not_collect_what_killed_takers_left() {
    let env = Env::new();
    fs::create_dir(env.path("project")).unwrap();
    let lock = "./project/lock";
    let mut holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["acquire", lock, "--pid", &pid])
        .assert()
        .success();
    let record = fs::read_to_string(env.path("project/lock")).unwrap();
    holder.kill();
    // What a takeover of this lock is called, from a taker that is killed in the exchange.
    let killed = env
        .shell("strace -qq -o /dev/null -e trace=renameat2 -e inject=renameat2:signal=KILL onehold run ./project/lock -- true; ls -A project")
        .output()
        .unwrap();
    let names = String::from_utf8(killed.stdout).unwrap();
    let left = names
        .lines()
        .find(|name| name.starts_with(".onehold."))
        .unwrap();
    assert!(env.path("project").join(left).exists(), "{names}");
    env.onehold(["run", lock, "--", "true"]).assert().success();
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
    // And where nothing stands any more.
    fs::write(env.path("project").join(left), record).unwrap();
    env.onehold(["run", lock, "--", "true"]).assert().success();
    assert_eq!(fs::read_dir(env.path("project")).unwrap().count(), 0);
}

#[test]
fn many_questions_at_once_do_not_look_like_holders() {
    let env = Env::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let mut running = env.start(["run", "x", "--", "sh", "-c", &script]);
    let command = number_in(&ready);
    running.kill();
    crate::env::send(command, "KILL");
    eventually("its end", || env.check("x") == 5);
    let asking: Vec<_> = (0..16).map(|_| env.start(["check", "-q", "x"])).collect();
    for asking in asking {
        assert_eq!(asking.exit_code(), Some(5));
    }
}
