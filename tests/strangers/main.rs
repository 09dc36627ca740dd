//! Root uses a store that another user writes to: whatever stands in it, root signals no process but those of that
//! user, writes nothing outside of the store, opens nothing there, removes nothing that is no lock, and ends in time.
//!
//! Each case changes some files and directories of a store that has every kind of them, runs some commands under
//! strace(1), one after the other, and looks at what they did. `STRANGER_CASES` says how many cases there are. A case
//! that fails is shown as small as it can be made, and is the same again with the same `STRANGER_SEED`;
//! `STRANGER_ONLY=TEXT` runs only the cases whose text contains that. `STRANGER_COUNTS=1` goes on after a fault, shows the
//! first of each kind, and says how many cases had which.
#![cfg(target_os = "linux")]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[path = "../harness/mod.rs"]
mod harness;

mod flaws;
mod forgery;
mod links;
mod store;
mod witness;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use forgery::{Forgery, Whose};
use store::{CONFIGURATION, FIFO, Kept, SECRET, STORES, Stranger, Surroundings, Template};
use witness::{Program, TESTED};

/// Names that the store has locks of, others, and paths.
const NAMES: [&str; 18] = [
    "x",
    "x",
    "section/y",
    "z",
    "pool",
    "readers",
    "kept",
    "section",
    "new",
    "x/below",
    "left",
    "prodigy",
    "sprint",
    "memory",
    "own-prodigy",
    "own-memory",
    "./store/pid.lock",
    "./store/x.lock",
];

/// What root does; `N` stands for a name, `FIFO` for one of the stranger, and `FILE` for files that are no
/// configuration.
const COMMANDS: [&str; 63] = [
    "check -v N",
    "check --json N",
    "check -q --available -s N",
    "check N --owner o --max-age 1s",
    "list",
    "list -v --wide",
    "list --json",
    "list N",
    "list --prometheus",
    "list --watch=0.1",
    "cleanup",
    "cleanup N",
    "cleanup --dry-run --max-age 0",
    "release N",
    "release N --owner o",
    "release N --force --yes",
    "renew N --owner o",
    "renew N --ttl 1h",
    "break N --yes",
    "break N --yes",
    "break N --yes --force",
    "break N --yes --all",
    "run -n N -- true",
    "run -n --force --yes N -- true",
    "run -w 0.2 N -- true",
    "run -n -s N -- true",
    "run -n -s --owner o N -- true",
    "run -w 0.1 -s N -- true",
    "run -n --slots 2 N -- true",
    "run -n --slots 3 --owner o N -- true",
    "run -n --exec N -- true",
    "run -n N new/other -- true",
    "run -n x section/y N -- true",
    "run -n --hold-at-least 1 N -- true",
    "run -w 0.2 --keep-place 10m --owner a N -- true",
    "run -w 0.2 --keep-place 10m --owner o N -- true",
    "run -w 0.2 --max-waiting 1 N -- true",
    "run -n --max-age 0 --on-zombie take N -- true",
    "run -n --format prodigy N -- true",
    "run -n --format sprint --owner o -m why N -- true",
    "run -n --format memory N -- true",
    "run -n --format pid N -- true",
    "run -n --format flock ./store/data.txt -- true",
    "acquire N --ttl 1h --owner o",
    "acquire N -w 0.1 --pid 1",
    "acquire N --ttl 1h --force --yes",
    "hold -n N",
    "hold -w 0.1 --json -s N",
    "history",
    "history N --summary",
    "history --json --failed --since 1d",
    "doctor --quick",
    "TZ=/dev/zero check -v N",
    "TZ=:FIFO list -v",
    "TZ=FIFO history N",
    "ONEHOLD_CONFIG=FILE.0 check N",
    "ONEHOLD_CONFIG=FILE.1 list --json",
    "ONEHOLD_CONFIG=FIFO run -n N -- true",
    "list --json >&-",
    "history --json >&-",
    "cleanup --json >&-",
    BROKEN_RUN,
    BROKEN_RUN,
];

/// A run that is broken although no signal may be queued to it, which must say so.
const BROKEN_RUN: &str = "run new, and break it";

/// By these, root ends processes, or waits for them; or says what others have written.
const FREQUENT: [&str; 5] = [
    "history",
    "check -v N",
    "break N --yes --all",
    "run -n N -- true",
    "run -n --force --yes N -- true",
];

#[derive(Clone, Debug)]
struct Case {
    store: Kept,
    forgeries: Vec<Forgery>,
    commands: Vec<String>,
}

/// Most changes of a case are of one file, and most of its commands are about the lock that it belongs to.
fn cases(template: &Template) -> impl Strategy<Value = Case> {
    any::<Index>().prop_flat_map(|focus| {
        let lock = template.lock_of(focus);
        let name = prop_oneof![2 => Just(lock), 1 => select(&NAMES[..]).prop_map(str::to_owned)];
        let frequent = select(&FREQUENT[..]);
        let command = prop_oneof![1 => frequent, 2 => select(&COMMANDS[..])];
        let command = (command, name).prop_map(|(command, name)| {
            let words = command.split(' ');
            let words: Vec<_> = words
                .map(|word| if word == "N" { &name } else { word })
                .collect();
            words.join(" ")
        });
        let stores = select(&STORES[..]).prop_flat_map(move |store| {
            let forgery = if store.is_roots_own() {
                forgery::lock(focus).boxed()
            } else {
                forgery::forgery(focus).boxed()
            };
            (Just(store), vec(forgery, 1..5))
        });
        (stores, vec(command, 1..5)).prop_map(|((store, forgeries), commands)| Case {
            store,
            forgeries,
            commands,
        })
    })
}

/// How long a command may take, in seconds: longer where more processes want to run than this test starts.
fn limit() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    let usual = 2.0 * f64::from(u32::try_from(processors).unwrap());
    2.0 * (load / usual).max(1.0)
}

const SLOW: &str = "slow";

/// The exit code of the command before, and the time since the boot in seconds.
const AFTER: &str = "code=$?; read -r time _ </proc/uptime; echo $code $time\n";

/// What the lines of [`BROKEN_RUN`] begin with.
const SAYS: &str = "the run that is broken: ";

/// A command as a line of a script.
fn line(stranger: &Stranger<'_>, command: &str) -> String {
    if command == BROKEN_RUN {
        let run = "prlimit --sigpending=0 onehold run -n new -- sh -c 'echo begins; exec sleep 1'";
        return format!(
            "{{ {run} 2>&1; echo exits with $?; }} | while read -r said; do echo \"{SAYS}$said\" >&2; \
            [ \"$said\" != begins ] || onehold break new --yes >&2; done; true; {AFTER}"
        );
    }
    let (settings, command) = match command.split_once(' ') {
        Some((setting, command)) if setting.contains('=') => {
            let fifo = stranger.env().path(FIFO);
            let file = stranger.outside().join(CONFIGURATION);
            let setting = setting.replace("FIFO", fifo.to_str().unwrap());
            (setting.replace("FILE", file.to_str().unwrap()), command)
        }
        _ => (String::new(), command),
    };
    // It runs until it is ended.
    let bounded = if command.contains("--watch") {
        "timeout --foreground 0.3 "
    } else {
        ""
    };
    let to = if command.ends_with(CLOSED) { "" } else { ">&2" };
    format!("{settings} {bounded}onehold {command} {to}; {AFTER}")
}

/// At the end of a command that has no stdout.
const CLOSED: &str = ">&-";

fn check(
    template: &Template,
    around: &Surroundings,
    case: &Case,
    program: Program<'_>,
) -> Result<(), Failure> {
    // The last one: `hold` is canceled by the end of its stdin.
    const CODES: [&str; 12] = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "124", "125", "130",
    ];
    let stranger = Stranger::new(template, around, case.store, &case.forgeries);
    let lines = case.commands.iter();
    let mut script: String = lines.map(|command| line(&stranger, command)).collect();
    script.insert_str(0, &format!("true; {AFTER}"));
    if stranger.is_deep() {
        // What a recursion would need.
        script.insert_str(0, "ulimit -n $(ulimit -Hn); ");
    }
    let (output, seen) = witness::run(&stranger, &script, program);
    let mut faults = seen.faults(&stranger);
    faults.extend(stranger.faults());
    let told = String::from_utf8_lossy(&output.stderr);
    // A process of the stranger is waited for as long as any other.
    let is_waited_for = |pid| told.contains(&format!("waiting up to 12s for process {pid} "));
    let waits_for_his = stranger.processes().into_iter().any(is_waited_for);
    let printed = String::from_utf8_lossy(&output.stdout);
    let ends: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    if ends.len() <= case.commands.len() {
        faults.push(format!(
            "{SLOW}: `{}` hangs",
            case.commands[ends.len().max(1) - 1]
        ));
    }
    for (before, (command, end)) in ends
        .iter()
        .zip(case.commands.iter().zip(ends.iter().skip(1)))
    {
        let [began, ended] = [before.1, end.1].map(|time| time.parse::<f64>().unwrap());
        if !CODES.contains(&end.0) || (end.0 == "0" && command.ends_with(CLOSED)) {
            faults.push(format!("`{command}` exits with {}", end.0));
        }
        let is_long = waits_for_his && command.contains("--force");
        let limit = limit() + if is_long { 12.0 } else { 0.0 };
        if ended - began > limit {
            faults.push(format!("{SLOW}: `{command}` takes {:.1} s", ended - began));
        }
    }
    // `check -v` shows command lines of this machine, which may contain the word.
    let is_panic = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
    if told.lines().any(is_panic) {
        faults.push("a panic".to_owned());
    }
    if told.contains(SECRET) {
        faults.push("prints what only root may read".to_owned());
    }
    let of_run = told.lines().filter_map(|line| line.strip_prefix(SAYS));
    let of_run: Vec<_> = of_run.collect();
    if of_run == ["begins", "exits with 8"] {
        faults.push("a broken run says nothing".to_owned());
    }
    if faults.is_empty() {
        return Ok(());
    }
    let shown = format!("{told}\n{}", stranger.shown());
    Err(Failure { faults, shown })
}

/// What the witness says of a case.
struct Failure {
    faults: Vec<String>,
    /// What the commands have said, and the forged files.
    shown: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(into, "{}\n{}", self.faults.join("\n"), self.shown)
    }
}

impl Failure {
    fn has(&self, part: &str) -> bool {
        self.faults.iter().any(|fault| fault.contains(part))
    }

    fn is_slowness(&self) -> bool {
        self.faults.iter().all(|fault| fault.starts_with(SLOW))
    }
}

/// The same, without names and numbers.
fn kinds_of(why: &Failure) -> BTreeSet<String> {
    const KINDS: [&str; 14] = [
        "signals process",
        "writes:",
        "opens:",
        "removes:",
        "looks at:",
        "relies on a directory",
        "belongs to root",
        "a record of root has changed",
        "outside has changed",
        "exits with",
        "a panic",
        "prints what only root may read",
        "a broken run says nothing",
        SLOW,
    ];
    let kinds = KINDS.into_iter().filter(|kind| why.has(kind));
    let mut kinds: BTreeSet<String> = kinds.map(str::to_owned).collect();
    if kinds.is_empty() {
        kinds.extend(why.faults.first().cloned());
    }
    kinds
}

/// Of a seed and a thread the same ones each time.
fn numbers(seed: u32, thread: u32) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    bytes[4..8].copy_from_slice(&thread.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Of the short form.
const CASES: u32 = 400;

fn number_in(variable: &str) -> Option<u32> {
    std::env::var(variable)
        .ok()
        .map(|number| number.parse().unwrap())
}

#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn no_file_of_another_user_makes_root_do_harm() {
    const THREADS: u32 = 8;
    let count = number_in("STRANGER_CASES").unwrap_or(CASES);
    let seed = number_in("STRANGER_SEED").unwrap_or(1);
    let only = std::env::var("STRANGER_ONLY").ok();
    let template = Template::new();
    let counts = std::env::var_os("STRANGER_COUNTS").is_some();
    let kinds = Mutex::new(BTreeMap::<String, usize>::new());
    let (done, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |thread: u32| {
        let around = Surroundings::new(&template);
        let config = Config {
            cases: count / THREADS,
            failure_persistence: None,
            max_shrink_iters: 200,
            max_shrink_time: 60_000,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, numbers(seed, thread));
        let is_first = Cell::new(false);
        let result = runner.run(&cases(&template), |case| {
            // The others stop; this one makes its case smaller.
            if has_failed.load(Ordering::Relaxed) && !is_first.get() {
                return Ok(());
            }
            let is_asked_for = |part: &String| format!("{case:?}").contains(part);
            if !is_first.get() && !only.as_ref().is_none_or(is_asked_for) {
                return Ok(());
            }
            let mut checked = check(&template, &around, &case, TESTED);
            // A machine that does other things as well is slow now and then.
            for _ in 0..5 {
                if checked.as_ref().is_err_and(Failure::is_slowness) {
                    checked = check(&template, &around, &case, TESTED);
                }
            }
            if !is_first.get() {
                done.fetch_add(1, Ordering::Relaxed);
            }
            if let Err(why) = &checked
                && counts
            {
                let mut kinds = kinds.lock().unwrap();
                for fault in kinds_of(why) {
                    let count = kinds.entry(fault).or_default();
                    *count += 1;
                    if *count == 1 {
                        println!("{case:?}\n{why}");
                    }
                }
                return Ok(());
            }
            if let Err(why) = &checked
                && !has_failed.swap(true, Ordering::Relaxed)
            {
                is_first.set(true);
                // Before it is made smaller, which may take minutes.
                println!(
                    "{} cases, then: {case:?}\n{why}",
                    done.load(Ordering::Relaxed)
                );
            }
            checked.map_err(|why| TestCaseError::fail(why.to_string()))
        });
        result.err().map(|why| why.to_string())
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{} cases", done.load(Ordering::Relaxed));
    let kinds = kinds.into_inner().unwrap();
    for (kind, count) in &kinds {
        println!("{count:6} {kind}");
    }
    assert!(kinds.is_empty());
    assert!(
        failures.is_empty(),
        "STRANGER_SEED={seed}: {}",
        failures.join("\n\n")
    );
}

/// The witness sees what a program does that is no better than others.
#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn witness_sees_signals_writes_and_removals() {
    let template = Template::new();
    let around = Surroundings::new(&template);
    let outside = around.outside();
    // With the sticky bit, without it, and the stranger's own.
    let [sticky, everybodys, own] = [STORES[0], STORES[3], STORES[5]];
    let stranger = |kept| Stranger::new(&template, &around, kept, &[]);
    let check = |stranger: &Stranger<'_>, script: &str| {
        let (_, seen) = witness::run(stranger, &format!("cd store; {script}"), TESTED);
        let mut faults = seen.faults(stranger);
        faults.extend(stranger.faults());
        faults
    };
    let root = around.process(Whose::Root).pid;
    let third = around.process(Whose::Third).pid;
    let relies = "mkdir section.d; chown 65534 section.d; ln job.lock section.d/job.lock";
    let faults = check(&stranger(sticky), relies);
    let is_seen = |fault: &String| fault.contains("relies on a directory of user 65534");
    assert!(faults.iter().any(is_seen), "{relies}: {faults:?}");
    for (script, fault) in [
        ("mkdir made.d", "made.d belongs to root"),
        ("echo > new; mv new .onehold/last", "last belongs to root"),
        ("echo >> job.lock", "a record of root has changed"),
    ] {
        let faults = check(&stranger(own), script);
        let is_seen = faults.iter().any(|found| found.contains(fault));
        assert!(is_seen, "{script}: {faults:?}");
    }
    for (script, fault) in [
        ("readlink OUTSIDE/canary", "looks at"),
        ("kill -TERM THIRD", "signals process"),
        ("setsid kill -TERM 0", "signals process"),
        ("echo > ../outside", "writes"),
        ("mkdir ../made", "writes"),
        ("cat OUTSIDE/canary", "opens"),
        (
            "ln -s OUTSIDE .onehold/new; cat .onehold/new/canary",
            "opens",
        ),
        ("mv data.txt other.txt", "removes"),
        ("mv data.txt other.lock", "removes"),
        ("rm .onehold/notes", "removes"),
        ("echo x >> section.d/notes.txt", "notes.txt has changed"),
        ("rm lease.lock", "lease.lock has changed"),
        (
            "kill -KILL -ROOT; until grep -q ') Z' /proc/ROOT/stat; do sleep 0.01; done",
            "the process of root has ended",
        ),
        ("echo >> OUTSIDE/canary", "outside has changed"),
    ] {
        let script = script
            .replace("ROOT", &root.to_string())
            .replace("THIRD", &third.to_string())
            .replace("OUTSIDE", outside.to_str().unwrap());
        let faults = check(&stranger(everybodys), &script);
        let is_seen = faults.iter().any(|found| found.contains(fault));
        assert!(is_seen, "{script}: {faults:?}");
    }
    // What has changed stays so.
    let around = Surroundings::new(&template);
    let stranger = Stranger::new(&template, &around, STORES[0], &[]);
    let own = stranger.processes()[0];
    let harmless =
        format!("kill -TERM {own}; kill -0 $$; echo > own.lock; rm own.lock; sleep 9 & kill $!");
    assert_eq!(check(&stranger, &harmless), [""; 0]);
}
