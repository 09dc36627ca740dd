//! The script of the README that resumes a session of prodigy.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{executable, recipe};
use crate::harness::{Running, TestEnv, wait_until};

/// The script `prodigy-once` of the README, and a fake prodigy that runs until the file `end` exists.
fn wrapped_prodigy() -> TestEnv {
    let env = TestEnv::new();
    executable(&env, "prodigy-once", &recipe("# prodigy-once resume ID"));
    executable(
        &env,
        "bin/prodigy",
        "#!/bin/sh\necho $$ $* >> started\nuntil test -e end; do sleep 0.01; done\n",
    );
    // As prodigy lays its files out: the events of each job below its session.
    for job in [JOB, "mapreduce-20251101_093000"] {
        env.write(
            &format!(".prodigy/events/{SESSION}/{job}/events-1.jsonl"),
            "",
        );
    }
    env.write(
        ".prodigy/events/session-8/mapreduce-20261130_100000/events-1.jsonl",
        "",
    );
    env
}

const SESSION: &str = "session-7";

/// The last job of that session.
const JOB: &str = "mapreduce-20261120_101500";

fn resume(env: &TestEnv, id: &str) -> String {
    prodigy_once(env, &format!("resume {id}"))
}

fn prodigy_once(env: &TestEnv, words: &str) -> String {
    let path = env.path("bin").display().to_string();
    format!("PATH={path}:$PATH ./prodigy-once {words}")
}

#[test]
fn resume_job_is_wrapped_as_resume_is() {
    let env = wrapped_prodigy();
    let job = format!("resume-job {JOB} --force");
    let mut running = Running::start(env.session(&prodigy_once(&env, &job)));
    wait_until("prodigy has started", || env.path("started").exists());
    for words in [resume(&env, SESSION), prodigy_once(&env, &job)] {
        env.session(&words).assert().code(6);
    }
    env.write("end", "");
    assert_eq!(running.finish(), 0);
    let started = fs::read_to_string(env.path("started")).unwrap();
    let started: Vec<&str> = started.lines().collect();
    assert!(
        started.len() == 1 && started[0].ends_with(&job),
        "{started:?}"
    );
}

#[test]
fn resume_is_refused_beside_a_file_that_cannot_be_read() {
    let env = wrapped_prodigy();
    let file = format!(".prodigy/resume_locks/{JOB}.lock");
    let path = env.write(&file, "garbage");
    let path = path.display();
    env.session(&resume(&env, SESSION))
        .assert()
        .code(6)
        .stderr(format!(
            "onehold: `{JOB}` is not a lock: unrecognized file content\n  left unchanged; onehold \
             only removes locks: if no program needs it, run `rm {path}`\n"
        ));
    assert!(!env.path("started").exists());
}

#[test]
fn resumes_by_session_id_and_job_id_exclude_each_other() {
    for (first, second) in [(SESSION, JOB), (JOB, SESSION)] {
        let env = wrapped_prodigy();
        let mut running = Running::start(env.session(&resume(&env, first)));
        wait_until("prodigy has started", || env.path("started").exists());
        env.session(&resume(&env, second))
            .assert()
            .code(6)
            .stderr(contains(format!(
                "onehold: `prodigy/{JOB}` is held by process "
            )));
        fs::write(env.path("end"), "").unwrap();
        assert_eq!(running.finish(), 0);
        env.session(&resume(&env, second)).assert().success();
        let started = fs::read_to_string(env.path("started")).unwrap();
        assert_eq!(started.lines().count(), 2, "{started}");
    }
}

#[test]
fn concurrent_resumes_start_prodigy_once() {
    let env = wrapped_prodigy();
    let both: Vec<Running> = [SESSION, JOB]
        .map(|id| Running::start(env.session(&resume(&env, id))))
        .into();
    wait_until("prodigy has started", || env.path("started").exists());
    let mut both = both;
    wait_until("one is refused", || both.iter_mut().any(Running::has_ended));
    let started = fs::read_to_string(env.path("started")).unwrap();
    assert_eq!(started.lines().count(), 1, "{started}");
    fs::write(env.path("end"), "").unwrap();
    let mut codes: Vec<_> = both.into_iter().map(|mut run| run.finish()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 6]);
}

#[test]
fn script_finds_resume_started_without_it() {
    let env = wrapped_prodigy();
    let other = Running::sleeper();
    let host = hostname::get().unwrap().into_string().unwrap();
    let lock = |locked: &str, pid: u32, host: &str, age: chrono::TimeDelta| {
        let then = (chrono::Utc::now() - age).to_rfc3339();
        env.write(
            &format!(".prodigy/resume_locks/{locked}.lock"),
            format!(
                "{{\n  \"job_id\": \"{locked}\",\n  \"process_id\": {pid},\n  \"hostname\": \"{host}\",\n  \"acquired_at\": \"{then}\"\n}}",
            ),
        )
    };
    // prodigy locks what it was given, and the job.
    for locked in [JOB, SESSION] {
        let path = lock(locked, other.pid(), &host, chrono::TimeDelta::zero());
        for id in [JOB, SESSION] {
            env.session(&resume(&env, id))
                .assert()
                .code(6)
                .stderr(contains(format!("held by process {}", other.pid())));
        }
        fs::remove_file(path).unwrap();
    }
    assert!(!env.path("started").exists());
    // A container that is gone does not block for good.
    lock(JOB, other.pid(), "gone", chrono::TimeDelta::hours(25));
    let mut resumed = Running::start(env.session(&resume(&env, SESSION)));
    wait_until("prodigy has started", || env.path("started").exists());
    env.write("end", "");
    assert_eq!(resumed.finish(), 0);
}
