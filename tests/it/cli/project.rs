//! Locks of a project, and of its files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

use crate::harness::{self, Running, TestEnv, write_program};

/// A repository `main` with a file `src/a.rs`, and a worktree `other` of it.
fn repository() -> TestEnv {
    let env = TestEnv::new();
    env.write("main/src/a.rs", "");
    git(&env, "main", "init -q .");
    git(&env, "main", "add .");
    let user = "-c user.name=a -c user.email=a@b";
    git(&env, "main", &format!("{user} commit -q -m first"));
    git(&env, "main", "worktree add -q ../other");
    env
}

fn git(env: &TestEnv, directory: &str, words: &str) {
    let mut command = env.command("git");
    command
        .args(words.split(' '))
        .current_dir(env.path(directory));
    command.assert().success();
}

/// `onehold WORDS` in a directory, without a store in the environment.
fn onehold(env: &TestEnv, directory: impl AsRef<Path>, words: &str) -> assert_cmd::assert::Assert {
    let mut command = env.onehold(words.split(' '));
    command
        .current_dir(env.root.path().join(directory))
        .env_remove("ONEHOLD_DIR");
    command.assert()
}

/// A lease on the locks that these words name.
fn claim(env: &TestEnv, directory: &str, owner: &str, words: &str) -> i32 {
    let words = format!("acquire --ttl 1h --owner {owner} {words}");
    let output = onehold(env, directory, &words).get_output().clone();
    output.status.code().unwrap()
}

#[test]
fn worktrees_and_directories_of_a_repository_share_its_store() {
    let env = repository();
    assert_eq!(claim(&env, "main/src", "one", "--project build"), 0);
    for directory in ["main", "other", "other/src", "main/.git", "main/.git/hooks"] {
        onehold(&env, directory, "check --project build")
            .code(6)
            .stdout(contains("`build` is held by a lease of one"));
    }
    // Another project, the store of the user, and no project.
    git(&env, "main", "init -q ../second");
    onehold(&env, "second", "check --project build").code(0);
    onehold(&env, "main", "check build").code(0);
    onehold(&env, ".", "check --project build")
        .code(1)
        .stderr(contains(
            "is in no git repository; to make one, run `git init`",
        ));
    onehold(&env, "main", "--dir x check --project build").code(2);
    let store = env.path("main/.git/onehold");
    onehold(&env, "other", "config --project")
        .success()
        .stdout(contains(store.to_str().unwrap()).and(contains("# --project")));
}

#[test]
fn git_leaves_the_locks_of_a_project() {
    let env = repository();
    assert_eq!(claim(&env, "main", "one", "--path src/a.rs"), 0);
    git(&env, "main", "clean -fdxq");
    git(&env, "main", "gc -q --prune=now");
    git(&env, "main", "worktree prune");
    git(&env, "main", "fsck --strict");
    git(&env, "main", "worktree remove --force ../other");
    onehold(&env, "main", "check --path src/a.rs").code(6);
    let mut status = env.command("git");
    status
        .args(["status", "--porcelain"])
        .current_dir(env.path("main"));
    assert_eq!(harness::output(&mut status).stdout, b"");
    git(&env, "main", "clone -q --bare . ../bare.git");
    onehold(&env, "bare.git", "run --project build -- ls onehold")
        .success()
        .stdout(contains("build.lock"));
    onehold(&env, "bare.git", "run --path HEAD -- true")
        .code(2)
        .stderr(contains("`HEAD` is in the directory of git"));
}

#[test]
fn directory_excludes_its_files_in_all_worktrees() {
    let env = repository();
    assert_eq!(claim(&env, "main", "one", "--path src"), 0);
    for path in ["a.rs", "new/file.rs", "../../main/src/a.rs", ".", ".."] {
        let words = format!("--path {path}");
        assert_eq!(claim(&env, "other/src", "two", &words), 6, "{path}");
    }
    assert_eq!(
        claim(&env, "other", "two", "--path README --path docs/x"),
        0
    );
    onehold(&env, "other", "list --project files/src")
        .success()
        .stdout(contains("files/src ").and(contains("README").not()));
    onehold(&env, "main", "check --path docs")
        .code(6)
        .stdout(contains(
            "`files/docs/x`, a child of `files/docs`, is held by a lease of two",
        ));
    onehold(&env, "main", "release --path docs/x --owner one").code(4);
    onehold(&env, "main", "release --path docs/x --owner two").code(0);
    onehold(&env, "main", "check --path README").code(0);
}

#[test]
fn path_is_that_of_the_file_itself() {
    let env = repository();
    symlink("src", env.path("main/link")).unwrap();
    symlink("../src/made-later", env.path("main/src/dangling")).unwrap();
    symlink("loop", env.path("main/loop")).unwrap();
    let name = |path: &str| {
        let words = format!("run --path {path} -- sh -c echo:$ONEHOLD_NAME");
        let words = words.replace("echo:", "echo\u{a0}");
        let words: Vec<String> = words
            .split(' ')
            .map(|word| word.replace('\u{a0}', " "))
            .collect();
        let mut command = env.onehold(words);
        let output = harness::output(command.current_dir(env.path("main")));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(name("link/a.rs"), "files/src/a.rs");
    assert_eq!(name("src/../link/./a.rs"), "files/src/a.rs");
    assert_eq!(name("link/dangling"), "files/src/made-later");
    assert_eq!(name("new/deep/x"), "files/new/deep/x");
    assert_eq!(name("."), "files");
    assert_eq!(name("../other/src"), "files/src");
    assert_eq!(name(r"a\b"), r"files/a\x5cb");
    assert_eq!(name("100%/.env"), "files/100%/.env");
    for (path, why) in [
        ("/etc/passwd", "`/etc/passwd` is outside of the project `"),
        ("..", "`..` is outside of the project `"),
        (".git/config", "is in the directory of git"),
        ("new/../x", "cannot resolve `new/../x`: no such file"),
        ("loop", "cannot resolve `loop`"),
        (&"x".repeat(241), "name part longer than 240 bytes"),
    ] {
        let words = format!("check --path {path}");
        onehold(&env, "main", &words)
            .failure()
            .stderr(contains(why));
    }
    for (many, says) in [
        (501, "501 paths: a hold has at most 500"),
        (2_000, "2000 paths: a hold has at most 500"),
    ] {
        onehold(
            &env,
            "main",
            &format!("acquire{}", " --path x".repeat(many)),
        )
        .code(2)
        .stderr(contains(says));
    }
    onehold(&env, "main", "check x --path y")
        .code(2)
        .stderr(contains("'--path' cannot be used with NAME"));
}

/// The locks are on another disk, so that their files do not collapse there.
#[test]
#[ignore = "needs root, and ntfs-3g: apt install ntfs-3g"]
fn every_spelling_of_a_path_is_one_lock_on_a_disk_that_ignores_case() {
    let env = repository();
    let script = "set -e
        truncate -s 16M disk.img; mkntfs -q -F -Q disk.img 2>/dev/null; mkdir disk
        device=$(losetup -f --show disk.img); room=$PWD; trap 'cd $room; umount disk' EXIT
        lowntfs-3g -o ignore_case \"$device\" disk; losetup -d \"$device\"
        git -C main worktree add -q ../disk/Tree; mkdir disk/Tree/Empty
        cd disk/tree
        while read -r path other name; do
            onehold acquire --ttl 1h --owner a --path $path >/dev/null 2>&1
            onehold acquire --ttl 1h --owner b --path $other 2>&1 | grep -o '`files[^ ]*`.* is held' || echo \"$other: free\"
            (cd ../TREE/SRC; onehold check -q --path ../$other && echo free; onehold release --path ../$other --owner a)
            test \"$(onehold run --path $other -- sh -c 'echo $ONEHOLD_NAME')\" = $name
        done";
    let rows = [
        ("src/a.rs", "SRC/A.rs", "files/src/a.rs"),
        ("Src", "sRC", "files/src"),
        ("New/Deep/X", "new/deep/x", "files/new/deep/x"),
        ("EMPTY/B", "empty/b", "files/empty/b"),
        ("Ä", "ä", "files/ä"),
    ];
    let typed = rows.map(|(path, other, name)| format!("{path} {other} {name}\n"));
    env.write("rows", typed.concat());
    let mut command = env.session(&format!("{{ {script}; }} < rows"));
    command.env_remove("ONEHOLD_DIR");
    let output = harness::output(&mut command);
    let said = String::from_utf8(output.stdout).unwrap();
    let expected: Vec<_> = rows
        .iter()
        .map(|(_, _, name)| format!("`{name}` is held"))
        .collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert!(output.status.success(), "{}", output.status);
    // Elsewhere they are two files.
    assert_eq!(
        claim(&env, "main", "a", "--path src/A.rs --path src/a.rs"),
        0
    );
}

#[test]
fn hold_has_500_paths_all_or_none() {
    let env = repository();
    let paths = (0..500).map(|number| format!("--path d{}/f{number}", number % 7));
    let all = &paths.collect::<Vec<_>>().join(" ");
    assert_eq!(claim(&env, "main", "one", all), 0);
    let held = || {
        let list = onehold(&env, "other", "list --project --json");
        let object = harness::json_object(&list.get_output().stdout);
        object["locks"].as_array().unwrap().len()
    };
    assert_eq!(held(), 500);
    for path in ["d3/f3", "d6", "."] {
        assert_eq!(claim(&env, "other", "two", &format!("--path {path}")), 6);
    }
    // One of them releases all.
    onehold(&env, "main", "release --path d0/f0 --owner one").code(0);
    assert_eq!(held(), 0);
    assert_eq!(claim(&env, "other", "two", "--path d2/f499"), 0);
    assert_eq!(claim(&env, "main", "one", all), 6);
    assert_eq!(held(), 1);
}

#[test]
fn worktree_that_is_removed_leaves_its_locks_to_the_others() {
    let env = repository();
    assert_eq!(claim(&env, "other", "one", "--path src/a.rs"), 0);
    let script = "cd other && git -C ../main worktree remove --force ../other
        onehold check --project files/src/a.rs; echo $?";
    let mut command = env.session(script);
    command.env_remove("ONEHOLD_DIR");
    let output = harness::output(&mut command);
    assert_eq!(output.stdout, b"1\n");
    assert!(
        harness::stderr(&output).contains("cannot find the current directory"),
        "{output:?}"
    );
    onehold(&env, "main", "check --path src/a.rs").code(6);
    onehold(&env, "main", "release --path src/a.rs --owner one").code(0);
}

#[test]
#[ignore = "needs root to mount a filesystem"]
fn repository_on_a_read_only_disk_can_be_looked_at() {
    let env = repository();
    assert_eq!(claim(&env, "main", "one", "--path src/a.rs"), 0);
    fs::create_dir(env.path("disk")).unwrap();
    let script = "set -e
        mount --bind main disk; mount -o remount,bind,ro disk; cd disk
        code() { \"$@\" > /dev/null 2>> ../said && echo 0 || echo $?; }
        code onehold check --path src/a.rs; code onehold check --path src
        code onehold wait --path b.rs; code onehold list --project
        code onehold run --project build -- true; code onehold acquire --path b.rs --ttl 1m";
    let mut command = env.command("unshare");
    command.args(["--mount", "sh", "-c", script]);
    let path = format!(
        "{}:{}",
        harness::program().parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    command.env("PATH", path).env_remove("ONEHOLD_DIR");
    let output = harness::output(&mut command);
    let codes = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        codes.lines().collect::<Vec<_>>(),
        ["6", "6", "0", "0", "125", "1"]
    );
    let said = fs::read_to_string(env.path("said")).unwrap();
    assert_eq!(said.matches("read-only file system").count(), 2, "{said}");
}

#[test]
fn submodule_is_a_project_of_its_own() {
    let env = repository();
    git(&env, "main", "init -q ../part");
    let user = "-c user.name=a -c user.email=a@b";
    git(
        &env,
        "part",
        &format!("{user} commit -q --allow-empty -m first"),
    );
    git(
        &env,
        "main",
        "-c protocol.file.allow=always submodule --quiet add ../part part",
    );
    assert_eq!(claim(&env, "main/part", "one", "--path x"), 0);
    assert!(env.path("main/.git/modules/part/onehold").is_dir());
    onehold(&env, "main", "check --path part").code(0);
    onehold(&env, "main", "check --path part/x")
        .code(2)
        .stderr(contains("`part/x` is outside of the project"));
}

#[test]
fn repository_that_cannot_be_used_is_an_error() {
    let env = repository();
    fs::rename(env.path("main"), env.path("moved")).unwrap();
    onehold(&env, "other", "run --project x -- true")
        .code(125)
        .stderr(contains(
            "which is no git directory: see `git worktree repair`",
        ));
    env.write("broken/.git", "what?");
    onehold(&env, "broken", "check --project x")
        .code(1)
        .stderr(contains("names no git directory"));
    // As on a disk that can only be read.
    fs::create_dir(env.path("moved/.git/onehold")).unwrap();
    let read_only = fs::Permissions::from_mode(0o500);
    fs::set_permissions(env.path("moved/.git/onehold"), read_only).unwrap();
    if !rustix::process::geteuid().is_root() {
        onehold(&env, "moved", "run --project x -- true")
            .code(125)
            .stderr(contains("permission denied"));
    }
    onehold(&env, "moved", "check --project x").code(0);
}

#[test]
fn what_is_committed_is_no_repository() {
    let env = repository();
    for made in ["docs/objects", "docs/refs"] {
        fs::create_dir_all(env.path(&format!("main/{made}"))).unwrap();
    }
    env.write("main/docs/HEAD", "ref: refs/heads/main");
    assert_eq!(claim(&env, "main", "one", "--project build"), 0);
    onehold(&env, "main/docs", "check --project build").code(6);
    env.write("main/docs/commondir", "/tmp");
    onehold(&env, "main/docs", "check --project build").code(6);
    assert!(!env.path("main/docs/onehold").exists());
    // Nor is one that shares the directory of another.
    for made in ["copy/objects", "copy/refs"] {
        fs::create_dir_all(env.path(made)).unwrap();
    }
    env.write("copy/HEAD", "ref: refs/heads/main");
    onehold(&env, "copy", "check --project x").code(0);
    env.write("copy/commondir", "../main/.git");
    onehold(&env, "copy", "check --project x")
        .code(1)
        .stderr(contains("is in no git repository"));
}

#[test]
fn path_from_outside_of_its_repository_is_advised_to_go_there() {
    let env = repository();
    let checked = onehold(&env, ".", "check --path main/src/a.rs");
    checked.code(1).stderr(
        contains("to lock `main/src/a.rs`, run it inside the repository")
            .and(contains("git init").not()),
    );
}

#[test]
fn store_of_a_shared_repository_is_shared() {
    let env = TestEnv::new();
    git(&env, ".", "init -q --shared=group shared");
    let words = ["umask 077; onehold run --project x -- stat -c %a .git .git/onehold"];
    let mut command = env.session(words[0]);
    command
        .current_dir(env.path("shared"))
        .env_remove("ONEHOLD_DIR");
    let output = harness::output(&mut command);
    let modes = String::from_utf8(output.stdout).unwrap();
    let modes: Vec<&str> = modes.lines().collect();
    assert_eq!(modes.len(), 2, "{modes:?}");
    assert_eq!(modes[0], modes[1]);
}

#[test]
fn project_of_a_profile_comes_first() {
    let env = repository();
    env.configure("[profiles.mine]\nproject-dir = \".mine/locks\"\n");
    fs::create_dir_all(env.path("main/src/.mine")).unwrap();
    onehold(&env, "main/src", "--profile mine run --path a.rs -- true").success();
    assert!(env.path("main/src/.mine/locks").is_dir());
    onehold(&env, "main", "--profile mine run --path src/a.rs -- true")
        .code(2)
        .stderr(contains("outside of the project"));
    onehold(&env, "other", "--profile mine run --path src/a.rs -- true").success();
    assert!(env.path("main/.git/onehold").is_dir());
    onehold(&env, "other", "--profile sprint check --project")
        .code(2)
        .stderr(contains("this profile has a path of its own"));
}

#[test]
fn all_holds_of_an_owner_are_released_at_once() {
    let env = repository();
    assert_eq!(claim(&env, "main", "one", "--path src/a.rs"), 0);
    assert_eq!(claim(&env, "other", "one", "--path x --path y"), 0);
    assert_eq!(claim(&env, "other", "two", "--path z"), 0);
    let mut run = env.onehold([
        "run",
        "--project",
        "--owner",
        "one",
        "job",
        "--",
        "sleep",
        "1000",
    ]);
    run.current_dir(env.path("main"));
    let _run = Running::start(run);
    harness::wait_until("the run holds its lock", || {
        let check = onehold(&env, "main", "check -q --project job");
        check.get_output().status.code() == Some(6)
    });
    onehold(&env, "other", "release --project --all --owner one -v")
        .success()
        .stderr(
            contains("released 2 holds of `one`").and(contains("not released: `job` is held by")),
        );
    onehold(&env, "main", "list --project").success().stdout(
        contains("files/z")
            .and(contains("job"))
            .and(contains("a.rs").not()),
    );
    onehold(&env, "main", "release --project --all").code(2);
}

/// The recipe of onehold-recipes(7), up to the release.
#[test]
fn recipe_for_one_project_locks_builds_and_files() {
    let env = repository();
    let page = include_str!("../../../man/onehold-recipes.7").replace("\\-", "-");
    let page = page.replace("\\(dq", "\"").replace("\\(aq", "'");
    let recipe = page
        .split(".EX\n")
        .find(|block| block.contains("--path src/parser.rs"));
    let recipe = recipe.unwrap().split(".EE").next().unwrap();
    let (claim, release) = recipe.split_once("onehold list").unwrap();
    let mut script = env.shell(&format!(
        "set -e; make() {{ :; }}; {claim} onehold list{release}"
    ));
    write_program(
        &env.path("bin/make"),
        "#!/bin/sh\nonehold list --project\n",
        0o755,
    );
    let path = format!(
        "{}:{}",
        env.path("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let path = format!("{}:{path}", harness::program().parent().unwrap().display());
    script
        .env("PATH", path)
        .env("SESSION", "s-1")
        .env_remove("ONEHOLD_DIR");
    let output = harness::output(script.current_dir(env.path("main")));
    let seen = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{seen}");
    for line in [
        "build ",
        "`files/src` is free",
        "files/src/parser.rs  held",
        "rename Token",
    ] {
        assert!(seen.contains(line), "{line}: {seen}");
    }
    onehold(&env, "other", "list --project --json")
        .success()
        .stdout(contains("\"locks\":[]"));
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn hook_of_agents_passes_its_own_tests() {
    let env = TestEnv::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/agents/tests");
    let mut python = env.command("python3");
    python.args(["-B", "-m", "unittest", "discover"]).arg(tests);
    python.assert().success();
}

#[test]
#[ignore = "needs root: chown(2)"]
fn repository_of_another_user_is_refused_unless_that_user_has_called_sudo() {
    const OTHER: u32 = 65534;
    let env = repository();
    std::os::unix::fs::chown(env.path("main/.git"), Some(OTHER), None).unwrap();
    for directory in ["main", "other"] {
        onehold(&env, directory, "run --project x -- true")
            .code(125)
            .stderr(contains(
                "belongs to another user (uid 65534): to use its locks",
            ));
    }
    env.configure("[profiles.mine]\nproject-dir = \".mine/locks\"\n");
    fs::create_dir_all(env.path("marked/.mine/locks")).unwrap();
    for part in [".mine", ".mine/locks"] {
        let part = env.path("marked").join(part);
        std::os::unix::fs::chown(&part, Some(OTHER), None).unwrap();
        for words in ["check --project x", "check x"] {
            onehold(&env, "marked", &format!("--profile mine {words}"))
                .code(1)
                .stderr(contains("belongs to another user (uid 65534)"))
                .stderr(contains("marked/.mine/locks"));
        }
        std::os::unix::fs::chown(&part, Some(0), None).unwrap();
    }
    onehold(&env, "marked", "--profile mine check --project x").code(0);
    let mut sudo = env.onehold(["run", "--project", "x", "--", "true"]);
    sudo.current_dir(env.path("main"))
        .env_remove("ONEHOLD_DIR")
        .env("SUDO_UID", OTHER.to_string());
    sudo.assert().success();
}
