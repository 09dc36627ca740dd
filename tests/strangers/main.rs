//! Root uses a store that another user writes to: whatever stands in its files, root signals no process but those of
//! that user, writes nothing outside of the store, removes nothing that is no lock, and ends in time.
//!
//! Each case changes some files of a store that has every kind of them, runs a command under strace(1), and looks at
//! what that did. `STRANGER_CASES` says how many cases there are: 100,000 take an hour and a half. A case that
//! fails is shown as small as it can be made.
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

mod forgery;
mod store;
mod witness;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use forgery::Forgery;
use harness::exit_code;
use store::{Stranger, Template};

/// The names that the store has locks of, and one that it has not.
const NAMES: [&str; 7] = ["x", "section/y", "pool", "kept", "sprint", "section", "new"];

/// What root does; `N` stands for a name.
const COMMANDS: [&str; 30] = [
    "check -v N",
    "check --json N",
    "list",
    "list -v",
    "list --prometheus",
    "cleanup",
    "cleanup N",
    "release N",
    "release N --owner o",
    "renew N --owner o",
    "break N --yes",
    "break N --yes --force",
    "break N --yes --all",
    "run -n N -- true",
    "run -n --force --yes N -- true",
    "run -w 0.2 N -- true",
    "run -n -s N -- true",
    "run -n --slots 2 N -- true",
    "run -n --exec N -- true",
    "run -n N new/other -- true",
    "run -n --hold-at-least 1 N -- true",
    "run -w 0.2 --keep-place 10m --owner o N -- true",
    "run -w 0.2 --max-waiting 1 N -- true",
    "acquire N --ttl 1h --owner o",
    "acquire N -w 0.1 --pid 1",
    "acquire N --ttl 1h --force --yes",
    "hold -n N",
    "history",
    "history N --summary",
    "doctor --quick",
];

#[derive(Clone, Debug)]
struct Case {
    forgeries: Vec<Forgery>,
    command: &'static str,
    name: &'static str,
}

fn cases() -> impl Strategy<Value = Case> {
    let forgeries = prop::collection::vec(forgery::any(), 1..4);
    let command = prop::sample::select(&COMMANDS[..]);
    let name = prop::sample::select(&NAMES[..]);
    (forgeries, command, name).prop_map(|(forgeries, command, name)| Case {
        forgeries,
        command,
        name,
    })
}

/// No command waits for longer than this.
const LIMIT: Duration = Duration::from_secs(2);

fn check(template: &Template, case: &Case) -> Result<(), String> {
    let stranger = Stranger::new(template, &case.forgeries);
    let words = case.command.split(' ');
    let words: Vec<&str> = words
        .map(|word| if word == "N" { case.name } else { word })
        .collect();
    let began = Instant::now();
    let (output, seen) = witness::run(stranger.env(), &words);
    let took = began.elapsed();
    let mut faults = seen.faults(&stranger);
    faults.extend(stranger.faults());
    let code = exit_code(output.status);
    if ![0, 1, 2, 3, 4, 5, 6, 7, 8, 125].contains(&code) {
        faults.push(format!("exits with {code}"));
    }
    // strace slows it down by about that.
    if took > LIMIT + Duration::from_millis(500) {
        faults.push(format!("takes {took:?}"));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{}\n{told}\n{}",
        faults.join("\n"),
        stranger.shown()
    ))
}

fn count() -> u32 {
    let asked = std::env::var("STRANGER_CASES").ok();
    asked.map_or(300, |cases| cases.parse().unwrap())
}

#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn no_file_of_another_user_makes_root_do_harm() {
    const THREADS: u8 = 4;
    let template = Template::new();
    let seed = std::env::var("STRANGER_SEED").ok();
    let seed: u8 = seed.map_or(1, |seed| seed.parse().unwrap());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = |thread: u8| {
            let template = &template;
            move || {
                let config = Config {
                    cases: count() / u32::from(THREADS),
                    failure_persistence: None,
                    max_shrink_iters: 100,
                    max_shrink_time: 60_000,
                    ..Config::default()
                };
                let bytes = [seed ^ (thread << 6); 32];
                let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
                let mut runner = TestRunner::new_with_rng(config, rng);
                let run = |case| check(template, &case).map_err(TestCaseError::fail);
                runner.run(&cases(), run).err().map(|why| why.to_string())
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{} cases", count());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The witness sees what a program does that is no better than others.
#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn witness_sees_signals_writes_and_removals() {
    for (script, fault) in [
        ("kill -TERM VICTIM", "signals process"),
        ("kill -KILL -VICTIM", "signals process"),
        ("echo > ../outside/canary", "writes"),
        ("rm ../outside/canary", "writes"),
        ("mkdir ../made", "writes"),
        ("mv data.txt other.txt", "data.txt"),
        ("echo x >> section.d/notes.txt", "notes.txt"),
    ] {
        let template = Template::new();
        let stranger = Stranger::new(&template, &[]);
        let script = script.replace("VICTIM", &template.victim().to_string());
        let (_, seen) = witness::run_shell(stranger.env(), &format!("cd store; {script}"));
        let mut faults = seen.faults(&stranger);
        faults.extend(stranger.faults());
        assert!(
            faults.iter().any(|found| found.contains(fault)),
            "{script}: {faults:?}"
        );
    }
    let template = Template::new();
    let stranger = Stranger::new(&template, &[]);
    let harmless = format!(
        "cd store; kill -TERM {}; kill -0 $$; echo > own.lock; rm own.lock; \
        sleep 9 & kill $!",
        stranger.process()
    );
    let (_, seen) = witness::run_shell(stranger.env(), &harmless);
    assert_eq!(seen.faults(&stranger), [""; 0]);
    assert_eq!(stranger.faults(), [""; 0]);
}
