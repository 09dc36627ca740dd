//! Planted flaws: programs that do one wrong thing each take the place of the one under test. The cases that it is tried
//! with must show each of them.
//!
//! What the link count of a file says on FUSE cannot be had here: `tests/environments/filesystems.rs` breaks and renews
//! there, and fails if a second name of a file is taken for somebody else's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use crate::harness::write_program;
use crate::store::{Surroundings, Template};
use crate::witness::{Program, TESTED};
use crate::{CASES, SLOW, cases, check, numbers};

/// A shell script in place of `onehold`, and what the witness says of it.
struct Flaw {
    what: &'static str,
    script: &'static str,
    fault: &'static str,
}

/// What each begins with: the files of a lock in both layouts, the process in a record, and who can have written it.
const BEGIN: &str = r#"#!/bin/sh
dir=${ONEHOLD_DIR:-$HOME/.local/state/onehold}
verb=$1
own=$dir/.onehold
files_of() {
    tree=$dir/$(printf %s "$1" | sed 's|/|.d/|g').lock
    flat=$dir/$(printf %s "$1" | sed 's|/|%2F|g').lock
    for file in "$tree" "$flat"; do [ -f "$file" ] && [ ! -L "$file" ] && echo "$file"; done
}
is_of_root() { [ "$(stat -c %u%a "$1")" = 0644 ]; }
# No process but one of the test.
end() {
    pid=$(grep -o '"pid":[0-9]*' "$1" | head -n 1 | cut -d : -f 2)
    [ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" = 'sleep 100000 ' ] && kill -TERM "$pid"
}
is_straight() { [ "$(readlink -f "$dir")" = "$dir" ] && [ ! -L "$own" ]; }
"#;

const FLAWS: [Flaw; 16] = [
    Flaw {
        what: "break ends the process of a record of root's that is of another lock",
        script: r#"
            [ "$verb" = break ] || exit 1
            for name; do for file in $(files_of "$name"); do
                is_of_root "$file" && end "$file"
            done; done
            exit 1"#,
        fault: "signals process",
    },
    Flaw {
        what: "break ends the process of a record of root's that is of another store",
        script: r#"
            [ "$verb" = break ] || exit 1
            for name; do for file in $(files_of "$name"); do
                is_of_root "$file" && grep -q "\"name\": \"$name\"" "$file" && end "$file"
            done; done
            exit 1"#,
        fault: "signals process",
    },
    Flaw {
        what: "run writes the number of its hold in place, into whatever file has that name",
        script: r#"
            [ "$verb" = run ] && is_straight && [ ! -L "$own/last" ] || exit 1
            [ -f "$own/last" ] && echo 7 >"$own/last"
            exit 1"#,
        fault: "outside has changed",
    },
    Flaw {
        what: "run adds a line to the journal, whatever file has that name",
        script: r#"
            [ "$verb" = run ] && is_straight && [ ! -L "$own/events.jsonl" ] || exit 1
            [ -f "$own/events.jsonl" ] && echo '{}' >>"$own/events.jsonl"
            exit 1"#,
        fault: "outside has changed",
    },
    Flaw {
        what: "run makes its files where a link of another user leads to",
        script: r#"
            [ "$verb" = run ] || exit 1
            : >"$dir/naive.lock"
            rm "$dir/naive.lock"
            exit 1"#,
        fault: "opens:",
    },
    Flaw {
        what: "cleanup removes files where a link of another user leads to",
        script: r#"
            [ "$verb" = cleanup ] && rm -f "$dir"/.onehold.*
            exit 1"#,
        fault: "outside has changed",
    },
    Flaw {
        what: "run makes a directory in the store of a user that only root may use",
        script: r#"
            [ "$verb" = run ] && is_straight && mkdir -m 700 "$dir/.shared" 2>/dev/null
            exit 1"#,
        fault: "belongs to root",
    },
    Flaw {
        what: "the default store of a user belongs to root",
        script: r#"
            [ -z "$ONEHOLD_DIR" ] && [ "$verb" = run ] && mkdir -p "$dir"
            exit 1"#,
        fault: "belongs to root",
    },
    Flaw {
        what: "a number that root notes in the store of a user belongs to root",
        script: r#"
            [ "$verb" = run ] && is_straight && [ -d "$own" ] || exit 1
            echo 7 >"$own/.onehold-last-0" && mv "$own/.onehold-last-0" "$own/last"
            exit 1"#,
        fault: "last belongs to root",
    },
    Flaw {
        what: "a recursion into a deep tree ends by signal 11",
        script: r#"
            [ -z "$(find "$dir" -mindepth 2000 -print -quit 2>/dev/null)" ] || kill -SEGV $$
            exit 1"#,
        fault: "exits with 139",
    },
    Flaw {
        what: "the guard is the lock of a directory that others may read",
        script: r#"
            flock "$dir" true
            exit 1"#,
        fault: SLOW,
    },
    Flaw {
        what: "a line of the configuration is shown that is not understood",
        script: r#"
            [ ! -f "$ONEHOLD_CONFIG" ] || head -n 1 "$ONEHOLD_CONFIG" >&2
            exit 1"#,
        fault: "prints what only root may read",
    },
    Flaw {
        what: "history follows paths of the journal",
        script: r#"
            [ "$verb" = history ] && is_straight || exit 1
            for file in "$own"/events.jsonl* "$dir"/.onehold-events-*; do
                [ -f "$file" ] && [ ! -L "$file" ] || continue
                for path in $(grep -ao '"/[^"]*"' "$file" | tr -d '"'); do readlink -f "$path"; done
            done
            exit 1"#,
        fault: "looks at:",
    },
    Flaw {
        what: "a file is read to its end as a time zone",
        script: r#"
            cat "${TZ#:}" >/dev/null 2>&1
            exit 1"#,
        fault: SLOW,
    },
    Flaw {
        what: "data for a closed stdout is no error",
        script: "exit 0",
        fault: "exits with 0",
    },
    Flaw {
        what: "a run that is broken exits with 8 and says nothing",
        script: r#"
            [ "$verb" = run ] && [ "$3" = new ] && [ "$5" = sh ] || exit 1
            shift 4
            "$@"
            exit 8"#,
        fault: "a broken run says nothing",
    },
];

/// A directory with a program.
pub fn program(script: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("onehold");
    write_program(&file, &format!("{BEGIN}{script}\n"), 0o755);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// How many cases there are until the witness says that, the same ones each time; what it says instead of all of them.
fn cases_until(
    template: &Template,
    directory: &Path,
    fault: &str,
    at_most: u32,
) -> Result<u32, Vec<String>> {
    let around = Surroundings::new(template);
    let mut runner = TestRunner::new_with_rng(Config::default(), numbers(1, 0));
    let cases = cases(template);
    let mut others = Vec::new();
    for number in 1..=at_most {
        let case = cases.new_tree(&mut runner).unwrap().current();
        // One that hangs is not waited for.
        let seconds = if fault == SLOW { 6 } else { TESTED.seconds };
        let program = Program {
            directory: Some(directory),
            seconds,
        };
        match check(template, &around, &case, program) {
            Err(why) if why.has(fault) => return Ok(number),
            Err(why) => others.push(why.to_string()),
            Ok(()) => {}
        }
    }
    Err(others)
}

#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn each_planted_flaw_is_found_by_the_cases_of_the_short_form() {
    let template = Template::new();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(flaw) = FLAWS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let directory = program(flaw.script);
                    let cases = cases_until(&template, directory.path(), flaw.fault, CASES);
                    println!("{}: {:?}", flaw.what, cases.as_ref().ok());
                    found.lock().unwrap().push((flaw.what, cases.is_ok()));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let missed: Vec<_> = found.iter().filter(|(_, is_found)| !is_found).collect();
    assert!(
        missed.is_empty() && found.len() == FLAWS.len(),
        "{missed:?}"
    );
}

/// The flaws are found by what they do, and not by what a program lacks.
#[test]
#[ignore = "needs root, and strace: apt install strace"]
fn nothing_is_said_of_a_program_that_does_nothing() {
    let directory = program("exit 1");
    let others = cases_until(&Template::new(), directory.path(), "no fault is this", 40);
    assert_eq!(others, Err(Vec::new()));
}
