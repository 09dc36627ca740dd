use std::fmt::Write as _;

use crate::cluster::On;
use crate::harness::{TestEnv, wait_until};
use crate::scene::scenes;

/// One call: its arguments, its exit code, and what it says.
struct Step {
    args: &'static str,
    code: i32,
    says: &'static str,
}

const fn step(args: &'static str, code: i32, says: &'static str) -> Step {
    Step { args, code, says }
}

/// What each verb does, in scenes that begin with an empty store. `&`: held until the scene is over.
#[rustfmt::skip]
#[allow(clippy::too_many_lines, reason = "a table")]
fn scenes() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("a free lock", vec![
            step("check x", 0, "`x` is free"),
            step("release x", 0, ""),
            step("renew x --ttl 10", 3, "`x` is free"),
            step("break x", 3, "nothing to break"),
            step("list", 0, "0 locks"),
            step("cleanup", 0, ""),
        ]),
        ("a run", vec![
            step("run x -- true", 0, ""),
            step("run x -- sh -c 'exit 3'", 3, ""),
            step("run x -- sh -c 'kill -9 $$'", 137, ""),
            step("run x -- /nonexistent", 127, "command not found: `/nonexistent`"),
            step("run x -- /etc/passwd", 126, "cannot run `/etc/passwd`"),
            step("run x -- sh -c 'test $ONEHOLD_NAME = x && test $ONEHOLD_HOLDS = $ONEHOLD_HOLD:x'", 0, ""),
            step("run x -- sh -c 'onehold check x'", 6, "`x` is held by process"),
            step("run x -- sh -c 'onehold run x -- true'", 6, "this command already runs under `x`"),
            step("run x -- onehold run --reentrant x -- true", 0, ""),
            step("run x -- env -u ONEHOLD_HOLDS onehold run -w 20 x -- true", 6, "this command already runs under `x`"),
            step("run x -- env -u ONEHOLD_HOLDS onehold run --reentrant x -- true", 0, ""),
            step("run x -- sh -c 'onehold release x'", 4, "not released"),
            step("run x -- onehold check --mine x", 0, ""),
            step("run x -- env -u ONEHOLD_HOLDS setsid -w onehold check --mine x", 0, ""),
            step("run -s x -- onehold check --mine x", 0, ""),
            step("run y -- onehold check --mine x", 4, ""),
            step("check --mine x", 4, ""),
            step("run --time-limit 0.2 x -- sleep 60", 124, "exceeded its time limit"),
            step("check x", 0, "`x` is free"),
        ]),
        ("a held lock", vec![
            step("& run x -m why -- @hold", 0, ""),
            step("check x", 6, "\"why\""),
            step("check --available x", 6, ""),
            step("check --mine x", 4, ""),
            step("check -v x", 6, " (run)"),
            step("check --json x", 6, r#""kind":"run""#),
            step("run x -- true", 6, "`x` is held by process"),
            step("run x -- true", 6, "to end its command, run"),
            step("check x; script -qec 'onehold break x' /dev/null </dev/null", 6, "End its work and free the lock?"),
            step("run -E 0 x -- true", 0, "`x` is held by process"),
            step("run -w 0.3 x -- true", 7, "timed out after 0.3s"),
            step("acquire x --ttl 10", 6, "is held by"),
            step("renew x --ttl 10", 4, "not renewed"),
            step("release x", 4, "not released"),
            step("list", 0, "why"),
            step("cleanup", 0, ""),
            step("check x", 6, ""),
            step("break x --yes", 0, "broke the hold on `x`"),
            step("check x", 0, ""),
        ]),
        ("a lease", vec![
            step("acquire -v x --ttl 30 --owner me -m why", 0, "acquired `x`"),
            step("check x", 6, "lease: expires"),
            step("acquire x --ttl 30", 6, "a lease of me"),
            step("acquire -v x --ttl 60 --owner me", 0, "already acquired"),
            step("check --mine x", 4, ""),
            step("check --mine --owner me x", 0, ""),
            step("run x --owner me -- true", 6, "your own lease holds it"),
            step("run x/step --owner me -- true", 0, ""),
            step("renew x", 4, "not renewed"),
            step("renew x --owner me --ttl 40", 0, ""),
            step("release x", 4, "not released"),
            step("release x --owner me", 0, ""),
            step("check x", 0, "free"),
            step("acquire x --ttl 30", 0, ""),
            step("break x --yes", 0, "broke the hold on `x` of a lease"),
            step("acquire x --ttl 30", 0, ""),
            step("run --force --yes x -- true", 0, "took `x` by force from a lease"),
            step("check x", 0, "free"),
        ]),
        ("parents and children", vec![
            step("& run a/b -- @hold", 0, ""),
            step("run a -- true", 6, "`a/b`, a child of `a`,"),
            step("run a/b/c -- true", 6, "`a/b`, the parent of `a/b/c`,"),
            step("run a/c -- true", 0, ""),
            step("run a0 -- true", 0, ""),
            step("run -s a -- true", 6, "a/b"),
            step("check a", 6, ""),
        ]),
        ("one owner", vec![
            step("acquire a --ttl 30 --owner me", 0, ""),
            step("run a/b --owner me -- true", 0, ""),
            step("run a/b --owner you -- true", 6, "the parent"),
            step("run a/b -- true", 6, "the parent"),
        ]),
        ("readers and a writer", vec![
            step("& run -s x -- @hold", 0, ""),
            step("run -s x -- true", 0, ""),
            step("run -s x -- sh -c 'test $ONEHOLD_SLOT = 1'", 0, ""),
            step("run x -- true", 6, "`x` is shared by"),
            step("run x/y -- true", 6, "x"),
            step("run -s x/y -- true", 0, ""),
            step("check -s x", 0, ""),
            step("check x", 6, ""),
        ]),
        ("slots", vec![
            step("& run --slots 2 x -- @hold", 0, ""),
            step("run --slots 2 x -- sh -c 'test $ONEHOLD_SLOT = 1'", 0, ""),
            step("& run --slots 2 x -- @hold", 0, ""),
            step("run --slots 2 x -- true", 6, "is held by"),
            step("run --slots 3 x -- true", 0, ""),
            step("check --slots 2 x", 6, ""),
        ]),
        ("several names", vec![
            step("run x y -- sh -c 'onehold check y'", 6, "`y` is held by process"),
            step("& run y -- @hold", 0, ""),
            step("run x y -- true", 6, "`y` is held"),
            step("check x", 0, ""),
            step("acquire x z --ttl 30 --owner me", 0, ""),
            step("check z", 6, ""),
            step("release z --owner me", 0, ""),
            step("check x", 0, ""),
            step("run x x/y -- true", 2, "the first includes the second"),
        ]),
        ("an old hold", vec![
            step("& run x -- @hold", 0, ""),
            step("check --max-age 0.001 x", 5, "overdue: older than its maximum age, but alive"),
            step("check --max-age 9 x", 6, ""),
            step("run --max-age 0.001 x -- true", 6, "overdue"),
            step("list --max-age 0.001", 0, "overdue"),
            step("run --on-lost warn --time-limit 9 y z -- true", 0, ""),
        ]),
        ("a number", vec![
            step("acquire x --ttl 30", 0, ""),
            step("release x --hold 1", 4, ""),
            step("break x --hold 1 --yes", 4, ""),
            step("check x", 6, ""),
        ]),
    ]
}

fn play(on: &On) -> String {
    let mut failures = String::new();
    for (scene, steps) in scenes() {
        let mut running = Vec::new();
        let before = on.dir.clone();
        // Each scene has a store of its own.
        let on = On::at(format!("{before}{}", scene.replace(' ', "-")));
        for Step { args, code, says } in steps {
            let line = args.strip_prefix("& ");
            let command = line.unwrap_or(args).replace(
                "@hold",
                "sh -c 'touch began; while ! test -e end; do sleep 0.02; done'",
            );
            let _ = std::fs::remove_file(on.env.path("began"));
            let mut shell = on.env.shell(&format!("onehold {command}"));
            shell.env("ONEHOLD_DIR", &on.dir);
            if line.is_some() {
                running.push(crate::harness::Running::start(shell));
                wait_until("the holder has begun", || on.env.path("began").exists());
                continue;
            }
            let output = crate::harness::output(&mut shell);
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            let found = crate::harness::exit_code(output.status);
            if found != code || !said.contains(says) {
                writeln!(
                    failures,
                    "{scene}: `{args}`: {found} instead of {code}, {says:?} in: {said}"
                )
                .unwrap();
            }
        }
        on.env.end();
        for mut holder in running {
            holder.finish();
        }
    }
    failures
}

#[test]
fn verbs_do_the_same_on_files() {
    let env = TestEnv::new();
    let on = On::at(format!("{}/", env.path("stores").display()));
    std::fs::create_dir_all(env.path("stores")).unwrap();
    assert_eq!(play(&on), "");
}

scenes! {
    verbs_do_the_same_as_on_files,
}

fn verbs_do_the_same_as_on_files() {
    let on = On::of_scene();
    let on = On::at(format!("{}-", on.dir));
    assert_eq!(play(&on), "");
    // What is left are leases that were not given back.
    let left = On::at(format!("{}a-run", on.dir)).left();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_cannot_be_on_etcd_is_refused_before_anything_is_sent() {
    // Nobody answers there.
    let on = On::at("etcd://127.0.0.1:9/x".to_owned());
    for (args, says) in [
        (&["acquire", "x"][..], "pass --ttl"),
        (&["acquire", "x", "--pid", "1"], "pass --ttl"),
        (
            &["acquire", "x", "--ttl", "4"],
            "minimum --ttl of a lease is 5s",
        ),
        (&["acquire", "x", "--ttl", "5500ms"], "whole seconds"),
        (
            &["run", "--ttl", "9", "x", "--", "true"],
            "minimum --ttl of a run is 10s",
        ),
        (&["run", "--exec", "x", "--", "true"], "--exec"),
        (
            &["run", "./x", "--", "true"],
            "a path is a file of this machine",
        ),
        (&["check", "/tmp/x"], "a path is a file of this machine"),
        (&["--format", "prodigy", "check", "x"], "prodigy format"),
        (&["--profile", "sprint", "check"], "format"),
        (
            &[
                "check",
                "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z/1/2/3/4/5/6",
            ],
            "31 parts",
        ),
    ] {
        let started = std::time::Instant::now();
        let (code, _, stderr) = on.output(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
        assert!(started.elapsed().as_secs() < 2, "{args:?}");
    }
    for (dir, says) in [
        ("etcd://me:secret@h/x", "seen by every user"),
        ("etcd:///x", "no host"),
        ("etcd://h//x", "empty part"),
        ("ftp://h/x", "neither a directory, nor postgres://"),
        ("etcd:/h:2379/x", "a store on etcd is etcd://HOSTS/PREFIX"),
        ("etcd:h", "a store on etcd is etcd://HOSTS/PREFIX"),
        ("ETCDS://h/x", "a store on etcd is etcd://HOSTS/PREFIX"),
    ] {
        let (code, _, stderr) = on.output(&["--dir", dir, "check", "x"]);
        assert_eq!(code, 2, "{dir}: {stderr}");
        assert!(
            stderr.contains(says) && !stderr.contains("secret"),
            "{dir}: {stderr}"
        );
    }
}
