//! onehold next to stand-ins of the four lock systems that it replaces, in the languages they were
//! written in: the same outcomes, the same messages, and each excludes the other.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{
    INCREMENT, Running, TestEnv, dead_pid, exit_code, foreign, json_object, output, program,
    run_together, sorted_codes, wait_until,
};
use chrono::{DateTime, Utc};
use serde_json::Value;

/// The memory lock. Arguments: session, operation, limit of the wait in seconds. Holds the lock until
/// it is killed.
const MEMORY: &str = r#"
import json, os, socket, sys, time
from datetime import datetime, timezone

LOCK = "memory/.lock"

class LockError(Exception):
    pass

def read():
    try:
        with open(LOCK) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None

def write(session, operation):
    record = {
        "pid": os.getpid(),
        "session_id": session,
        "acquired_at": datetime.now(timezone.utc).isoformat(),
        "hostname": socket.gethostname(),
        "operation": operation,
    }
    with open(LOCK + ".tmp", "w") as file:
        json.dump(record, file, indent=2)
    os.rename(LOCK + ".tmp", LOCK)

def stale_reason(record):
    try:
        os.kill(record["pid"], 0)
    except OSError:
        return f"process {record['pid']} is dead"
    acquired = datetime.fromisoformat(record["acquired_at"])
    age = (datetime.now(timezone.utc) - acquired).total_seconds()
    return f"lock is {age:.1f}s old (>30s)" if age > 30 else None

def acquire(session, operation, max_wait):
    started = time.monotonic()
    attempt = 0
    while True:
        record = read()
        if record is None:
            return write(session, operation)
        if record["pid"] == os.getpid():
            return
        reason = stale_reason(record)
        if reason:
            print(f"[LOCK] Breaking stale lock: {reason}", file=sys.stderr, flush=True)
            os.unlink(LOCK)
            return write(session, operation)
        if time.monotonic() - started >= max_wait:
            raise LockError(
                f"Could not acquire lock within {max_wait}s. Held by session "
                f"'{record['session_id']}' for operation '{record['operation']}'"
            )
        time.sleep(min(0.1 * 2 ** attempt, 2))
        attempt += 1

try:
    acquire(sys.argv[1], sys.argv[2], int(sys.argv[3]))
except LockError as error:
    sys.exit(str(error))
open("granted", "w").close()
os.execvp("sleep", ["sleep", "1000"])
"#;

/// The sprint mutex. Arguments: session, epic. Holds the lock until it is killed.
const SPRINT: &str = r#"
field() { awk -v key="$1:" '$1 == key { gsub(/"/, "", $2); print $2 }' .sprint-running; }
if test -e .sprint-running; then
    pid=$(field pid)
    if kill -0 "$pid" 2>/dev/null; then
        echo "Sprint already running (PID: $pid, session: $(field session_id), started: $(field started_at))" >&2
        exit 1
    fi
    echo "Process $pid has ended. Remove its lock? [y/n]" >&2
    answer=n
    { read -r answer </dev/tty; } 2>/dev/null
    if test "$answer" != y; then
        echo '{"success": false, "status": "blocked"}'
        exit 1
    fi
fi
cat >.sprint-running.tmp <<END
pid: $$
session_id: "$1"
started_at: "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
epic_spec: "$2"
lock_version: 1
END
mv .sprint-running.tmp .sprint-running
echo >granted
exec sleep 1000
"#;

/// The locks of tasks and sections. Arguments: `acquire NAME RUNNER [EXPIRES_AT]`,
/// `release NAME RUNNER` or `holder NAME`. A name without `/` is a section.
const TASKS: &str = r#"
import sqlite3, sys
from datetime import datetime, timedelta, timezone

action, name, *more = sys.argv[1:]
now = datetime.now(timezone.utc)
db = sqlite3.connect("locks.db", isolation_level=None)
for table in ("task_locks", "section_locks"):
    db.execute(f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY, runner_id TEXT, expires_at TEXT)")
table = "task_locks" if "/" in name else "section_locks"

def time_of(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))

def holder(table, name):
    query = f"SELECT runner_id, expires_at FROM {table} WHERE id = ?"
    row = db.execute(query, (name,)).fetchone()
    return row if row and time_of(row[1]) > now else None

def acquire(runner, expires_at):
    section = holder("section_locks", name.split("/")[0])
    if section and section[0] != runner and table == "task_locks":
        sys.exit(f'Section "{name.split("/")[0]}" is locked by runner {section[0]}')
    try:
        db.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (name, runner, expires_at))
    except sqlite3.IntegrityError:
        held = holder(table, name)
        if held and held[0] != runner:
            kind = "Task" if table == "task_locks" else "Section"
            expires = time_of(held[1]).strftime("%Y-%m-%dT%H:%M:%SZ")
            sys.exit(f'{kind} "{name}" is locked by runner {held[0]}\nLock expires at: {expires}')
        db.execute(f"UPDATE {table} SET runner_id = ?, expires_at = ? WHERE id = ?", (runner, expires_at, name))

if action == "acquire":
    default = (now + timedelta(minutes=60 if table == "task_locks" else 120)).isoformat()
    acquire(more[0], more[1] if more[1:] else default)
elif action == "release":
    db.execute(f"DELETE FROM {table} WHERE id = ? AND runner_id = ?", (name, more[0]))
else:
    held = holder(table, name)
    print(held[0] if held else "")
"#;

/// The environment of a test, with the directories that the programs expect.
fn environment() -> TestEnv {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    fs::create_dir_all(env.path(".prodigy/resume_locks")).unwrap();
    env
}

/// A stand-in with its lock file.
struct StandIn {
    /// The words of a `run` that uses the same lock file, without its command.
    run: &'static [&'static str],
    path: &'static str,
    /// How onehold says which process holds the lock.
    pid_in_refusal: &'static str,
    /// The record that the program leaves for a holder.
    text: fn(u32) -> String,
    /// Asks for the lock. The process that holds it then, or the program's refusal.
    ask: fn(&TestEnv) -> Result<Running, String>,
}

const STAND_INS: [StandIn; 3] = [
    StandIn {
        run: &["--profile", "prodigy", "job-1"],
        path: ".prodigy/resume_locks/job-1.lock",
        pid_in_refusal: "Lock held by: PID {pid} on ",
        text: |pid| foreign::prodigy("job-1", pid),
        ask: ask_prodigy,
    },
    StandIn {
        run: &["--profile", "sprint", "--owner", "s", "-m", "e"],
        path: ".sprint-running",
        pid_in_refusal: "(PID: {pid}, session: ",
        text: foreign::sprint,
        ask: |env| ask_process(env, sprint(env)),
    },
    StandIn {
        run: &["--profile", "memory", "-m", "write"],
        path: "memory/.lock",
        pid_in_refusal: " is held by process {pid} ",
        text: foreign::memory,
        ask: |env| ask_process(env, memory(env)),
    },
];

impl StandIn {
    fn ask(&self, env: &TestEnv) -> Result<Running, String> {
        (self.ask)(env)
    }

    fn write(&self, env: &TestEnv, pid: u32) {
        fs::write(env.path(self.path), (self.text)(pid)).unwrap();
    }

    /// `onehold run … -- true` for the same lock, which does not wait.
    fn run(&self, env: &TestEnv) -> Output {
        let command: &[&str] = &["-n", "--", "true"];
        env.output([&["run"], self.run, command].concat())
    }

    /// The PID in the lock file, as the program would read it.
    fn pid_in_file(&self, env: &TestEnv) -> u32 {
        let text = fs::read_to_string(env.path(self.path)).unwrap();
        if let Some(pid) = text.lines().find_map(|line| line.strip_prefix("pid:")) {
            return pid.trim().parse().unwrap();
        }
        let record: Value = serde_json::from_str(&text).unwrap();
        let pid = record.get("process_id").unwrap_or(&record["pid"]);
        pid.as_u64().unwrap().try_into().unwrap()
    }
}

/// The sprint mutex, without a terminal.
fn sprint(env: &TestEnv) -> Command {
    let mut command = env.command("setsid");
    command.args(["sh", "-c", SPRINT, "sprint", "stand-in", "epic"]);
    command
}

fn memory(env: &TestEnv) -> Command {
    let mut command = env.command("python3");
    command.args(["-c", MEMORY, "stand-in", "read", "1"]);
    command
}

/// Starts a stand-in; its stderr is the file `said`.
fn ask_process(env: &TestEnv, mut command: Command) -> Result<Running, String> {
    let granted = env.path("granted");
    let _ = fs::remove_file(&granted);
    command.stderr(fs::File::create(env.path("said")).unwrap());
    let mut asking = Running::spawn(command);
    wait_until("the stand-in holds the lock or has ended", || {
        granted.exists() || asking.has_ended()
    });
    if granted.exists() {
        return Ok(asking);
    }
    assert_eq!(asking.finish(), 1);
    Err(said(env).trim_end().to_owned())
}

/// What the last stand-in wrote to stderr.
fn said(env: &TestEnv) -> String {
    fs::read_to_string(env.path("said")).unwrap()
}

fn is_alive(pid: &Value) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// prodigy: creates the file exclusively. Removes the file of a dead holder and tries again.
fn ask_prodigy(env: &TestEnv) -> Result<Running, String> {
    let path = env.path(".prodigy/resume_locks/job-1.lock");
    let process = Running::sleeper();
    loop {
        if let Ok(mut file) = fs::File::create_new(&path) {
            let text = foreign::prodigy("job-1", process.pid());
            file.write_all(text.as_bytes()).unwrap();
            return Ok(process);
        }
        let record = serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).ok();
        let holder = match &record {
            Some(record) if !is_alive(&record["process_id"]) => {
                fs::remove_file(&path).unwrap();
                continue;
            }
            Some(record) => {
                let at = record["acquired_at"].as_str().unwrap();
                let at: DateTime<Utc> = at.parse().unwrap();
                format!(
                    "PID {} on {} (acquired {})",
                    record["process_id"],
                    record["hostname"].as_str().unwrap(),
                    at.format("%Y-%m-%d %H:%M:%S UTC")
                )
            }
            None => "unknown process".to_owned(),
        };
        return Err(format!(
            "Resume already in progress for job job-1\n\
             Lock held by: {holder}\n\
             Please wait for the other process to complete, or use --force to override."
        ));
    }
}

fn tasks(env: &TestEnv, args: &[&str]) -> Output {
    output(env.command("python3").args(["-c", TASKS]).args(args))
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The first lines of what onehold says are those of the other program.
#[track_caller]
fn assert_says_first(output: &Output, expected: &str) {
    let lines = stderr(output)
        .lines()
        // This comes before the refusal, while it still waits.
        .filter(|line| !line.starts_with("onehold: waiting for "));
    let prefixes = std::iter::once("onehold: ").chain(std::iter::repeat("  "));
    let first: Vec<&str> = lines
        .zip(prefixes)
        .take(expected.lines().count())
        .map(|(line, prefix)| line.strip_prefix(prefix).expect("a line has its prefix"))
        .collect();
    assert_eq!(first.join("\n"), expected, "{}", stderr(output));
}

/// `acquire` and `run` with these options are refused in the words of the other program.
#[track_caller]
fn assert_refused_as(env: &TestEnv, options: &[&str], code: i32, expected: &str) {
    let acquired = env.output([&["acquire"], options].concat());
    let ran = env.output([&["run"], options, &["--", "true"]].concat());
    for output in [acquired, ran] {
        assert_eq!(exit_code(output.status), code, "{}", stderr(&output));
        assert_says_first(&output, expected);
    }
}

const SECTION: &str = "backend";
const TASK_1: &str = "backend/task-1";
const TASK_2: &str = "backend/task-2";

/// A system of tasks and sections with two runners, A and B.
trait TaskLocks {
    /// A acquires or releases a lock, which succeeds at once.
    fn a_does(&mut self, action: &str, name: &str);
    /// B asks for a lock that it does not get yet.
    fn b_begins_to_wait(&mut self, name: &'static str);
    /// B gets the lock, as the last event.
    fn b_ends_waiting(&mut self);
    /// The runner that holds a lock.
    fn holder(&self, name: &str) -> Option<String>;
}

struct Onehold {
    env: TestEnv,
    waiting: Option<(&'static str, Running)>,
    last_action_began: DateTime<Utc>,
}

impl Onehold {
    fn new() -> Self {
        Self {
            env: environment(),
            waiting: None,
            last_action_began: Utc::now(),
        }
    }
}

impl TaskLocks for Onehold {
    fn a_does(&mut self, action: &str, name: &str) {
        self.last_action_began = Utc::now();
        let mut args = vec!["--profile", "tasks", action, name, "--owner", "A"];
        if action == "acquire" {
            args.push("-n");
        }
        self.env.done(args);
    }

    fn b_begins_to_wait(&mut self, name: &'static str) {
        let args = [
            "--profile",
            "tasks",
            "acquire",
            name,
            "--owner",
            "B",
            "-w",
            "1h",
        ];
        self.waiting = Some((name, self.env.start(args)));
        wait_until("B is in the queue", || {
            self.env.number_of_waiters(name) == 1
        });
    }

    fn b_ends_waiting(&mut self) {
        let (name, mut waiting) = self.waiting.take().unwrap();
        assert_eq!(waiting.finish(), 0);
        let acquired = self.env.lock(name)["acquired_at"].take();
        let acquired: DateTime<Utc> = acquired.as_str().unwrap().parse().unwrap();
        assert!(acquired > self.last_action_began, "B was served too early");
    }

    fn holder(&self, name: &str) -> Option<String> {
        // For a free task `check` shows the section that blocks it.
        let lock = self.env.lock(name);
        (lock["name"] == name && lock["exists"] == true)
            .then(|| lock["owner"].as_str().unwrap().to_owned())
    }
}

/// The stand-in, whose waiter tries again after each step of A.
struct TasksStandIn {
    env: TestEnv,
    waiting: Option<&'static str>,
    attempts: Vec<bool>,
}

impl TasksStandIn {
    fn new() -> Self {
        Self {
            env: environment(),
            waiting: None,
            attempts: Vec::new(),
        }
    }

    fn b_tries(&mut self) {
        if let Some(name) = self.waiting {
            let tried = tasks(&self.env, &["acquire", name, "B"]);
            self.attempts.push(tried.status.success());
        }
    }
}

impl TaskLocks for TasksStandIn {
    fn a_does(&mut self, action: &str, name: &str) {
        let done = tasks(&self.env, &[action, name, "A"]);
        assert!(done.status.success(), "{done:?}");
        self.b_tries();
    }

    fn b_begins_to_wait(&mut self, name: &'static str) {
        self.waiting = Some(name);
        self.b_tries();
    }

    fn b_ends_waiting(&mut self) {
        assert_eq!(self.attempts, [false, false, false, false, true]);
    }

    fn holder(&self, name: &str) -> Option<String> {
        let shown = tasks(&self.env, &["holder", name]);
        let runner = String::from_utf8(shown.stdout).unwrap().trim().to_owned();
        Some(runner).filter(|runner| !runner.is_empty())
    }
}

/// A goes from one task of its section to the next while B waits. The holders of the section and of
/// the two tasks after each step, for example "A-A".
fn holders_after_each_step(locks: &mut impl TaskLocks, wanted: &'static str) -> Vec<String> {
    let holders = |locks: &dyn TaskLocks| {
        [SECTION, TASK_1, TASK_2]
            .map(|name| locks.holder(name).unwrap_or("-".to_owned()))
            .concat()
    };
    let mut seen = Vec::new();
    for (action, name) in [("acquire", SECTION), ("acquire", TASK_1)] {
        locks.a_does(action, name);
        seen.push(holders(locks));
    }
    locks.b_begins_to_wait(wanted);
    seen.push(holders(locks));
    for (action, name) in [
        ("release", TASK_1),
        ("acquire", TASK_2),
        ("release", TASK_2),
    ] {
        locks.a_does(action, name);
        seen.push(holders(locks));
    }
    locks.a_does("release", SECTION);
    locks.b_ends_waiting();
    seen.push(holders(locks));
    seen
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn two_runners_share_a_section_one_after_the_other() {
    let expected = ["A--", "AA-", "AA-", "A--", "A-A", "A--", "--B"];
    let seen = holders_after_each_step(&mut Onehold::new(), TASK_2);
    assert_eq!(seen, expected);
    let of_stand_in = holders_after_each_step(&mut TasksStandIn::new(), TASK_2);
    assert_eq!(seen, of_stand_in);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn runner_that_waits_for_the_section_gets_it_when_the_other_is_done() {
    let expected = ["A--", "AA-", "AA-", "A--", "A-A", "A--", "B--"];
    let seen = holders_after_each_step(&mut Onehold::new(), SECTION);
    assert_eq!(seen, expected);
    let of_stand_in = holders_after_each_step(&mut TasksStandIn::new(), SECTION);
    assert_eq!(seen, of_stand_in);
}

/// Four scripts of one session increment a number twenty times each.
fn count_up_in_four_scripts(acquire: &str, release: &str) {
    let env = environment();
    let script = format!(
        "i=0; while test $i -lt 20; do i=$((i + 1)); \
         {acquire} -q -w 1h --pid $$ >/dev/null && {{ {INCREMENT}; }} && {release} || exit; done"
    );
    let scripts = (0..4)
        .map(|_| {
            let mut script = env.shell(&script);
            script.env("CLAWDBOT_SESSION_ID", "main");
            script
        })
        .collect();
    let outputs = run_together(scripts);
    assert_eq!(sorted_codes(&outputs), [0; 4], "{outputs:?}");
    assert_eq!(env.count_in("number"), 80);
}

#[test]
fn four_scripts_of_one_session_exclude_each_other_by_the_memory_lock() {
    count_up_in_four_scripts(
        "onehold --profile memory acquire",
        "onehold --profile memory release",
    );
}

#[test]
fn four_scripts_of_one_session_exclude_each_other_by_the_sprint_mutex() {
    count_up_in_four_scripts(
        "onehold --profile sprint acquire --owner s --message e",
        "onehold --profile sprint release --owner s",
    );
}

#[test]
fn refusal_of_prodigy_is_the_same() {
    let [prodigy, ..] = STAND_INS;
    let env = environment();
    let holder = Running::sleeper();
    prodigy.write(&env, holder.pid());
    let refusal = prodigy.ask(&env).err().unwrap();
    let pid = format!("Lock held by: PID {} on ", holder.pid());
    assert!(refusal.contains(&pid), "{refusal}");
    assert_refused_as(&env, prodigy.run, 6, &refusal);
}

#[test]
fn refusal_of_prodigy_for_an_unreadable_file_is_the_same() {
    let [prodigy, ..] = STAND_INS;
    let env = environment();
    fs::write(env.path(prodigy.path), "{").unwrap();
    let refusal = prodigy.ask(&env).err().unwrap();
    assert!(
        refusal.contains("\nLock held by: unknown process\n"),
        "{refusal}"
    );
    assert_refused_as(&env, prodigy.run, 6, &refusal);
}

#[test]
fn refusal_of_the_sprint_mutex_is_the_same() {
    let [_, sprint, _] = STAND_INS;
    let env = environment();
    let holder = Running::sleeper();
    sprint.write(&env, holder.pid());
    let refusal = sprint.ask(&env).err().unwrap();
    let pid = format!("(PID: {}, session: other, started: ", holder.pid());
    assert!(refusal.contains(&pid), "{refusal}");
    assert_refused_as(&env, sprint.run, 6, &refusal);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn refusal_of_the_memory_lock_is_the_same() {
    let [.., memory] = STAND_INS;
    let env = environment();
    let holder = Running::sleeper();
    memory.write(&env, holder.pid());
    let refusal = memory.ask(&env).err().unwrap();
    assert_eq!(
        refusal,
        "Could not acquire lock within 1s. Held by session 'other' for operation 'write'"
    );
    let options = [memory.run, &["-w", "1"]].concat();
    assert_refused_as(&env, &options, 7, &refusal);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn refusal_of_a_task_is_the_same() {
    let env = environment();
    env.done(["--profile", "tasks", "acquire", TASK_1, "--owner", "A"]);
    let lock = env.json(["--profile", "tasks", "check", TASK_1])["lock"].take();
    let expires_at = lock["expires_at"].as_str().unwrap();
    assert!(
        tasks(&env, &["acquire", TASK_1, "A", expires_at])
            .status
            .success()
    );
    let refused = tasks(&env, &["acquire", TASK_1, "B"]);
    let refusal = stderr(&refused).trim_end();
    let begins = "Task \"backend/task-1\" is locked by runner A\nLock expires at: ";
    assert!(refusal.starts_with(begins), "{refusal}");
    let options = ["--profile", "tasks", TASK_1, "--owner", "B", "-n"];
    assert_refused_as(&env, &options, 6, refusal);
}

/// `acquire` for a process that runs.
fn acquire_for(env: &TestEnv, process: &Running, options: &[&str]) -> Output {
    let pid = process.pid().to_string();
    env.output([&["acquire", "--pid", &pid], options].concat())
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn memory_lock_of_dead_process_is_taken_over_with_the_same_message() {
    let [.., memory] = STAND_INS;
    let env = environment();
    let has_line = |text: &str, pid: u32| {
        let begin = format!("[LOCK] Breaking stale lock: process {pid} ");
        assert!(text.lines().any(|line| line.starts_with(&begin)), "{text}");
    };

    let dead = dead_pid();
    memory.write(&env, dead);
    let stand_in = memory.ask(&env).unwrap();
    assert_eq!(memory.pid_in_file(&env), stand_in.pid());
    has_line(&said(&env), dead);

    let dead = dead_pid();
    memory.write(&env, dead);
    let process = Running::sleeper();
    let acquired = acquire_for(&env, &process, memory.run);
    assert!(acquired.status.success(), "{acquired:?}");
    assert_eq!(memory.pid_in_file(&env), process.pid());
    has_line(stderr(&acquired), dead);
}

#[test]
fn prodigy_lock_of_dead_process_is_taken_over() {
    let [prodigy, ..] = STAND_INS;
    let env = environment();

    prodigy.write(&env, dead_pid());
    let stand_in = prodigy.ask(&env).unwrap();
    assert_eq!(prodigy.pid_in_file(&env), stand_in.pid());

    prodigy.write(&env, dead_pid());
    let process = Running::sleeper();
    let acquired = acquire_for(&env, &process, prodigy.run);
    assert!(acquired.status.success(), "{acquired:?}");
    assert_eq!(prodigy.pid_in_file(&env), process.pid());
}

#[test]
fn sprint_mutex_of_dead_process_is_not_taken_over_without_a_terminal() {
    let [_, mutex, _] = STAND_INS;
    let env = environment();
    let dead = dead_pid();
    mutex.write(&env, dead);

    let asked = output(&mut sprint(&env));
    assert_eq!(exit_code(asked.status), 1);
    let said: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(said["status"], "blocked");

    let mut acquire = env.command("setsid");
    acquire.args(["-w".as_ref(), program().as_os_str()]);
    acquire.args(["--json", "acquire"]).args(mutex.run);
    let refused = output(&mut acquire);
    assert_eq!(exit_code(refused.status), 5);
    assert_eq!(json_object(&refused.stdout)["status"], "blocked");
    assert_eq!(mutex.pid_in_file(&env), dead);
}

/// onehold holds and the stand-in asks, then the other way round.
#[track_caller]
fn exclude_each_other(stand_in: &StandIn, refusal: impl Fn(u32) -> String) {
    let env = environment();
    let mut holder = env.hold(stand_in.run);
    let command = env.pid_in("began");
    let refused = stand_in.ask(&env).err().unwrap();
    assert!(refused.contains(&refusal(command)), "{refused}");
    assert_eq!(stand_in.pid_in_file(&env), command);
    env.end();
    assert_eq!(holder.finish(), 0);

    let mut holder = stand_in.ask(&env).unwrap();
    assert_eq!(stand_in.pid_in_file(&env), holder.pid());
    let refused = stand_in.run(&env);
    assert_eq!(exit_code(refused.status), 6, "{refused:?}");
    fs::remove_file(env.path(stand_in.path)).unwrap();
    holder.kill();
    let run = stand_in.run(&env);
    assert!(run.status.success(), "{run:?}");
}

#[test]
fn prodigy_and_onehold_exclude_each_other() {
    let [prodigy, ..] = STAND_INS;
    exclude_each_other(&prodigy, |pid| format!("\nLock held by: PID {pid} on "));
}

#[test]
fn sprint_mutex_and_onehold_exclude_each_other() {
    let [_, sprint, _] = STAND_INS;
    exclude_each_other(&sprint, |pid| format!("(PID: {pid}, session: s, started: "));
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn memory_lock_and_onehold_exclude_each_other() {
    let [.., memory] = STAND_INS;
    // Its refusal has no PID, only the session, which is not given here.
    exclude_each_other(&memory, |_| {
        "Held by session 'unknown' for operation 'write'".to_owned()
    });
}

#[test]
fn refusal_names_the_pid_in_the_file_even_after_the_wrapper_was_killed() {
    for stand_in in STAND_INS {
        let env = environment();
        let mut holder = env.hold(stand_in.run);
        let command = env.pid_in("began");
        for wrapper in ["runs", "was killed"] {
            let refused = stand_in.run(&env);
            let context = format!("the wrapper {wrapper}: {refused:?}");
            assert_eq!(exit_code(refused.status), 6, "{context}");
            assert_eq!(stand_in.pid_in_file(&env), command, "{context}");
            let pid = command.to_string();
            let named = stand_in.pid_in_refusal.replace("{pid}", &pid);
            assert!(stderr(&refused).contains(&named), "{context}");
            holder.kill();
        }
    }
}

/// `onehold --profile memory` in another process of the session `main`.
fn of_session(env: &TestEnv, words: &[&str]) -> Output {
    let mut command = env.onehold(["--profile", "memory"]);
    command.args(words);
    output(command.env("CLAWDBOT_SESSION_ID", "main"))
}

/// What `status()` of the module returns.
fn memory_status(env: &TestEnv, options: &[&str]) -> Value {
    let checked = of_session(env, &[&["check", "--json"], options].concat());
    json_object(&checked.stdout)["lock"]["details"].take()
}

#[test]
fn memory_lock_is_held_by_its_process_and_not_by_its_session() {
    let env = environment();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquired = of_session(&env, &["acquire", "--pid", &pid]);
    let hold = String::from_utf8(acquired.stdout).unwrap();
    assert_eq!(memory_status(&env, &[])["holder"]["session_id"], "main");
    assert_eq!(memory_status(&env, &[])["we_hold_it"], false);
    for verb in ["release", "renew"] {
        let refused = of_session(&env, &[verb]);
        assert_eq!(exit_code(refused.status), 4, "{refused:?}");
        assert_says_first(&refused, "We don't hold the lock.");
        let last = stderr(&refused).lines().last().unwrap();
        assert!(
            last.starts_with("  if it is yours, pass its number by --hold; "),
            "{last}"
        );
    }
    assert!(env.path("memory/.lock").exists());
    // It holds the lock for whatever session it names.
    let mut again = env.onehold(["--profile", "memory", "acquire", "--pid", &pid]);
    let again = output(again.env("CLAWDBOT_SESSION_ID", "other"));
    assert_eq!(String::from_utf8(again.stdout).unwrap(), hold);
    let by_number = ["--hold", hold.trim()];
    assert_eq!(memory_status(&env, &by_number)["we_hold_it"], true);
    drop(holder);
    wait_until("the holder is dead", || {
        memory_status(&env, &[])["is_stale"] == true
    });
    for options in [&[][..], &by_number] {
        assert_eq!(
            memory_status(&env, options)["we_hold_it"],
            false,
            "{options:?}"
        );
    }
}

#[test]
fn process_and_its_descendants_hold_the_memory_lock() {
    let env = environment();
    let script = "onehold --profile memory acquire --pid $$ >/dev/null
        onehold --profile memory --json check | grep -q '\"we_hold_it\":true' || exit 1
        (sh -c 'onehold --profile memory renew') && onehold --profile memory release";
    let mut script = env.shell(script);
    let ran = output(script.env("CLAWDBOT_SESSION_ID", "main"));
    assert!(ran.status.success(), "{ran:?}");
    assert!(!env.path("memory/.lock").exists());
}

#[test]
fn stale_memory_lock_of_a_live_holder_says_why_it_is_stale() {
    let [.., memory] = STAND_INS;
    let env = environment();
    let holder = Running::sleeper();
    memory.write(&env, holder.pid());
    let fresh = memory_status(&env, &[]);
    assert_eq!(
        (&fresh["is_stale"], &fresh["stale_reason"]),
        (&false.into(), &Value::Null)
    );
    let stale = || memory_status(&env, &["--max-age", "10ms"]);
    wait_until("it is old", || stale()["is_stale"] == true);
    let reason = stale()["stale_reason"].as_str().unwrap().to_owned();
    let age = reason.strip_prefix("lock is ").unwrap();
    let age = age
        .strip_suffix("s old (>0.01s)")
        .unwrap_or_else(|| panic!("{reason}"));
    assert_eq!(age.split_once('.').unwrap().1.len(), 1, "{reason}");
}
