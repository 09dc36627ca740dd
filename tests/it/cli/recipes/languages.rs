//! Programs in other languages, and shells other than sh.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;

use super::{example, executable};
use crate::harness::{Running, TestEnv, wait_until};

type Program = fn(&TestEnv, &str) -> std::process::Command;

/// Programs in other languages, by a line of their recipe: how they are started, with the recipe and a part that
/// uses it, which is told what to do.
const LANGUAGES: [(&str, Program); 3] = [
    ("class Lost(Exception)", python),
    ("async function withLock", node),
    ("func WithLock(", go),
];

fn python(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r#"
import sys, time
def count():
    with lock("count", "-w", "1h"):
        number = int(open("number").read())
        time.sleep(0.001)
        open("number", "w").write(str(number + 1))
def work():
    with lock("x") as number:
        open("held", "w").write(f"{number}\n")
        time.sleep(float(sys.argv[2]))
if sys.argv[1] == "count":
    for _ in range(10): count()
else: work()
"#;
    env.write("program.py", format!("{recipe}{main}"));
    let mut command = env.command("python3");
    command.arg("program.py");
    command
}

fn node(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r"
const fs = require('node:fs');
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
async function count() {
  await withLock('count', ['-w', '1h'], async () => {
    const number = Number(fs.readFileSync('number'));
    await sleep(0.001);
    fs.writeFileSync('number', String(number + 1));
  });
}
async function main([what, seconds]) {
  if (what === 'count') { for (let i = 0; i < 10; i++) await count(); return; }
  await withLock('x', [], async (number, lost) => {
    fs.writeFileSync('held', `${number}\n`);
    await Promise.race([sleep(seconds), new Promise((done) => lost.addEventListener('abort', done))]);
  });
}
main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error.message); process.exit(1); });
";
    env.write("program.js", format!("{recipe}{main}"));
    let mut command = env.command("node");
    command.arg("program.js");
    command
}

fn go(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r#"package main
import ("fmt"; "os"; "strconv"; "time"; "onehold")
func count(int64) error {
	text, _ := os.ReadFile("number")
	number, err := strconv.Atoi(string(text))
	time.Sleep(time.Millisecond)
	os.WriteFile("number", []byte(strconv.Itoa(number + 1)), 0600)
	return err
}
func work(hold int64) error {
	os.WriteFile("held", []byte(fmt.Sprintln(hold)), 0600)
	seconds, err := strconv.Atoi(os.Args[2])
	time.Sleep(time.Duration(seconds) * time.Second)
	return err
}
func main() {
	var err error
	if os.Args[1] == "count" {
		for i := 0; i < 10 && err == nil; i++ { err = onehold.WithLock("count", count, "-w", "1h") }
	} else { err = onehold.WithLock("x", work) }
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
}
"#;
    let program = env.path("program");
    if !program.exists() {
        env.write("go/src/onehold/onehold.go", recipe);
        env.write("go/src/main/main.go", main);
        let mut build = env.command("go");
        build.args(["build", "-o"]).arg(&program).arg("main");
        build
            .env("GO111MODULE", "off")
            .env("GOPATH", env.path("go"));
        // Compiled once for all tests.
        let cache = std::env::temp_dir().join("onehold-test-go-cache");
        build.env("GOCACHE", cache).assert().success();
    }
    env.command(program)
}

#[test]
#[ignore = "needs python3, node and go: apt install python3 nodejs golang-go"]
fn programs_in_other_languages_exclude_each_other() {
    let env = TestEnv::new();
    env.write("number", "0");
    let mut all: Vec<Running> = (0..9)
        .map(|number| {
            let (line, program) = LANGUAGES[number % 3];
            let mut command = program(&env, &example(line));
            command.arg("count");
            Running::start_with_output(command)
        })
        .collect();
    for running in &mut all {
        let (code, _, err) = running.finish_with_output();
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(fs::read_to_string(env.path("number")).unwrap(), "90");
}

#[test]
#[ignore = "needs python3, node and go: apt install python3 nodejs golang-go"]
fn programs_in_other_languages_are_refused_lose_the_lock_and_free_it_when_they_are_killed() {
    for (line, program) in LANGUAGES {
        let env = TestEnv::new();
        let work = |seconds: &str| {
            let mut command = program(&env, &example(line));
            command.args(["work", seconds]);
            command
        };
        let _ = fs::remove_file(env.path("held"));
        let mut holder = Running::start(work("1000"));
        wait_until("it holds the lock", || env.lines("held") == 1);
        let refused = work("0").output().unwrap();
        assert!(!refused.status.success());
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains("`x` is held by process "), "{line}: {told}");
        holder.kill();
        wait_until("the lock is free", || env.check("x") == 0);
        fs::remove_file(env.path("held")).unwrap();
        let mut loser = Running::start_with_output(work("1"));
        wait_until("it holds the lock", || env.lines("held") == 1);
        env.done(["break", "x", "--yes"]);
        let (code, _, told) = loser.finish_with_output();
        assert_eq!(code, 1, "{line}");
        assert!(
            told.contains("ost") && told.contains('x') || told.contains("was broken"),
            "{line}: {told}"
        );
    }
}

#[test]
#[ignore = "needs bash"]
fn script_in_bash_holds_a_lock_by_a_coprocess() {
    let env = TestEnv::new();
    executable(
        &env,
        "import",
        "#!/bin/sh\necho \"$@\" > words; onehold check -q import; echo $? > code\n",
    );
    let script = example("coproc LOCK") + "wait; onehold check -q import; echo $?\n";
    let mut bash = env.command("bash");
    bash.args(["-c", &script]).assert().success().stdout("0\n");
    assert!(
        fs::read_to_string(env.path("words"))
            .unwrap()
            .starts_with("--hold 1")
    );
    assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "6\n");
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn python_processes_exclude_each_other() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    let program = example("class LockError")
        + "\nfor _ in range(10):\n    with acquire('count', 1000):\n        \
             n = int(open('n').read()) if os.path.exists('n') else 0\n        \
             open('n', 'w').write(str(n + 1))\n";
    let mut all: Vec<Running> = (0..8)
        .map(|_| {
            let mut python = env.command("python3");
            python.args(["-c", &program]);
            Running::start_with_output(python)
        })
        .collect();
    for mut python in all.drain(..) {
        let (code, _, err) = python.finish_with_output();
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(fs::read_to_string(env.path("n")).unwrap(), "80");
}

/// PowerShell itself is not everywhere.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn powershell_recipe_parses() {
    let mut parser = tree_sitter::Parser::new();
    let grammar = tree_sitter_powershell::LANGUAGE.into();
    parser.set_language(&grammar).unwrap();
    let mut is_valid = |text: &str| !parser.parse(text, None).unwrap().root_node().has_error();
    let recipe = example("Invoke-WithLock");
    assert!(is_valid(&recipe));
    assert!(!is_valid(&recipe.replacen('}', "", 1)));
}
