//! Steps of pipelines, workflows, playbooks, makefiles and containers.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{example, executable, path_of, recipe};
use crate::harness::{Running, TestEnv, wait_until};

#[test]
fn steps_of_a_pipeline_share_one_lease() {
    let env = TestEnv::new();
    for program in ["deploy.sh", "smoke-test.sh"] {
        executable(
            &env,
            program,
            "#!/bin/sh\nonehold check -q deploy; echo $? >> seen\n",
        );
    }
    let steps = recipe("onehold acquire deploy");
    // Each step is a shell of its own.
    for step in steps.lines() {
        env.session(step).env("CI_JOB_ID", "77").assert().success();
    }
    assert_eq!(fs::read_to_string(env.path("seen")).unwrap(), "6\n6\n");
    assert_eq!(env.check("deploy"), 0);
}

#[test]
fn expired_lease_lets_no_other_job_in_beside_a_step_and_the_next_step_stops() {
    let env = TestEnv::new();
    executable(
        &env,
        "deploy.sh",
        "#!/bin/sh\necho >> began\nwhile test -e began && ! test -e end; do sleep 0.01; done\n",
    );
    executable(&env, "smoke-test.sh", "#!/bin/sh\necho >> tested\n");
    let steps = recipe("onehold acquire deploy").replace("--ttl 30m", "--ttl 300ms");
    let steps: Vec<&str> = steps.lines().collect();
    let step = |job: &str, line: &str| {
        let mut step = env.session(line);
        step.env("CI_JOB_ID", job);
        step
    };
    step("77", steps[0]).assert().success();
    let mut working = Running::start(step("77", steps[1]));
    wait_until("the step is at work", || env.lines("began") == 1);
    wait_until("the lease has expired", || {
        env.json(["list"])["locks"]
            .to_string()
            .contains("\"reason\":\"expired\"")
    });
    let forever = steps[0].replace("--ttl 300ms", "--ttl 1h");
    let mut other = Running::start(step("78", &forever));
    env.wait_for_waiter("deploy");
    assert!(!other.has_ended());
    env.end();
    assert_eq!(working.finish(), 0);
    assert_eq!(other.finish(), 0);
    step("77", steps[2]).assert().code(4);
    assert!(!env.path("tested").exists());
    step("77", steps[3]).assert().code(4);
    step("78", steps[2]).assert().success();
    step("78", steps[3]).assert().success();
    assert_eq!(env.lines("tested"), 1);
    // And if the other job has come and gone.
    step("77", steps[2]).assert().code(3);
}

#[test]
fn step_under_the_lease_of_its_own_job_is_told_what_to_run() {
    let env = TestEnv::new();
    env.done(["acquire", "deploy", "--ttl", "1h", "--owner", "job 77"]);
    let refused = env.output(["run", "deploy", "--owner", "job 77", "--", "true"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(6), "{said}");
    assert!(!said.contains("--wait"), "{said}");
    let (_, hint) = said
        .split_once("your own lease holds it: use its child, ")
        .unwrap();
    let lines: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
    env.shell(&lines[0].replace('…', "true")).assert().success();
    env.shell(lines[1]).assert().success();
    assert_eq!(env.check("deploy"), 0);
    // Of another owner.
    env.done(["acquire", "deploy", "--ttl", "1h", "--owner", "78"]);
    env.onehold(["run", "deploy", "--owner", "job 77", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("to wait, add --wait"));
}

/// The lines of the page that a workflow of GitHub, or a playbook, gives to a shell.
fn lines_after(text: &str, marker: &str) -> Vec<String> {
    let text = example(text);
    let lines = text.lines().filter_map(|line| line.split_once(marker));
    lines.map(|(_, line)| line.to_owned()).collect()
}

#[test]
fn steps_of_a_workflow_share_one_lease() {
    let env = TestEnv::new();
    for program in ["deploy.sh", "smoke-test.sh"] {
        let text = format!("#!/bin/sh\nonehold check -q deploy; echo {program} $? >> seen\n");
        executable(&env, program, &text);
    }
    let steps = lines_after("# .github/workflows/deploy.yml", "run: ");
    assert_eq!(steps.len(), 4);
    for step in &steps {
        env.session(step).env("OWNER", "4711-1").assert().success();
    }
    let seen = fs::read_to_string(env.path("seen")).unwrap();
    assert_eq!(seen, "deploy.sh 6\nsmoke-test.sh 6\n");
    assert_eq!(env.check("deploy"), 0);
    // Another attempt of the run comes in between.
    env.session(&steps[0])
        .env("OWNER", "4711-1")
        .assert()
        .success();
    env.session(&steps[3])
        .env("OWNER", "4711-1")
        .assert()
        .success();
    env.session(&steps[0])
        .env("OWNER", "4711-2")
        .assert()
        .success();
    for (step, code) in [(1, 4), (2, 4), (3, 4)] {
        env.session(&steps[step])
            .env("OWNER", "4711-1")
            .assert()
            .code(code);
    }
    assert_eq!(env.lines("seen"), 2);
}

#[test]
fn playbook_and_migration_run_once_at_a_time() {
    let env = TestEnv::new();
    for program in ["bin/ansible-playbook", "migrate"] {
        executable(&env, program, "#!/bin/sh\necho $0 $ONEHOLD_NAME >> ran\n");
    }
    let play = example("ansible-playbook").replace("/run/lock/", "./");
    let migrate = lines_after("ansible.builtin.command", "command: ").remove(0);
    let migrate = migrate
        .replace("--dir etcds://db1,db2,db3/locks", "")
        .replace("/opt/app/", "./");
    for (line, name) in [(&play, "./site.lock"), (&migrate, "migrate")] {
        let mut command = env.session(line);
        let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
        command
            .env("PATH", path)
            .env("USER", "ops")
            .assert()
            .success();
        let ran = fs::read_to_string(env.path("ran")).unwrap();
        assert!(ran.ends_with(&format!(" {name}\n")), "{ran}");
        let mut holder = env.hold(&[name]);
        let short = line.replace("-w 30m", "-w 0.1").replace("-w 10m", "-w 0.1");
        env.session(&short).env("USER", "ops").assert().code(7);
        env.end();
        holder.finish();
        fs::remove_file(env.path("end")).unwrap();
    }
    assert_eq!(env.lines("ran"), 2);
}

#[test]
#[ignore = "needs make: apt install make"]
fn makefile_links_two_at_once_and_deploys_alone() {
    let env = TestEnv::new();
    executable(
        &env,
        "bin/cc",
        "#!/bin/sh\nmkdir link-$ONEHOLD_SLOT || echo >> twice\nls -d link-* | wc -l >> together\n\
         sleep 0.05\nrmdir link-$ONEHOLD_SLOT\ntouch app\n",
    );
    executable(
        &env,
        "deploy.sh",
        "#!/bin/sh\nmkdir deploying || echo >> twice\nrmdir deploying\necho >> deployed\n",
    );
    for number in 0..6 {
        env.write(&format!("{number}/Makefile"), example("# Makefile"));
        env.write(&format!("{number}/main.o"), "");
        std::os::unix::fs::symlink("../deploy.sh", env.path(&format!("{number}/deploy.sh")))
            .unwrap();
    }
    let make =
        "for n in 0 1 2 3 4 5; do make -s -C $n CC=\"cd ..; $PWD/bin/cc\" deploy & done; wait";
    // The compiler is a command line for a shell here.
    let make = make.replace("cd ..; ", "env -C .. ");
    env.session(&make).assert().success();
    assert!(!env.path("twice").exists());
    let together = fs::read_to_string(env.path("together")).unwrap();
    let most = together
        .lines()
        .map(|line| line.trim().parse::<u32>().unwrap());
    assert!(most.max() <= Some(2), "{together}");
    assert_eq!(together.lines().count(), 6);
}

/// `docker` is a program that does what `docker run` does with this line, but for the container.
#[test]
fn containers_that_share_a_volume_migrate_one_after_the_other() {
    let env = TestEnv::new();
    let docker = "#!/bin/sh\nuntil [ \"$1\" = -e ]; do shift; done\n\
        export \"${2%%=*}=$PWD${2#*=}\"\nshift 3\nexec \"$@\"\n";
    executable(&env, "bin/docker", docker);
    executable(
        &env,
        "migrate",
        "#!/bin/sh\nmkdir alone || exit 9\necho $ONEHOLD_FILE >> ran\nsleep 0.02\nrmdir alone\n",
    );
    let script = format!(
        "set -e\nwait_all=\nfor n in 1 2 3; do {} & wait_all=\"$wait_all $!\"; done\n\
        for pid in $wait_all; do wait $pid; done",
        example("docker run").trim()
    );
    let mut command = env.session(&script);
    let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
    command.env("PATH", path).assert().success();
    let ran = fs::read_to_string(env.path("ran")).unwrap();
    let file = format!("{}/locks/migrate.lock\n", env.root.path().display());
    assert_eq!(ran, file.repeat(3));
}
