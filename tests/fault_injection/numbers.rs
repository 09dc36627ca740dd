//! While somebody ends the work of a hold whose wrapper is dead, another process does so, too, and removes the record.
//! Unrelated runs begin, and on ext4 one of them gets the number of that file for its own record. It is not
//! taken for work of the hold.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::faults::{Ended, Fault, Role, Then, trace_and};
use crate::harness::innocents::Innocents;
use crate::harness::{Signal, TestEnv, disk, for_all, wait_until};

/// How the lock is held, and where the record is.
const HOLDS: [(&str, &str); 3] = [
    ("-s x", "store/x.d/.shared"),
    ("--slots 2 x", "store/x.d/.shared"),
    ("x", "store"),
];

/// Who ends what is left of a hold: on request, or because it waits for the lock.
const ENDERS: [&str; 2] = ["break x --yes", "run --wait 20s x -- true"];

/// It is ended by KILL only.
const WORK: &str = "trap '' TERM; echo $$ > started; exec sleep 1000";

/// How many innocents begin at most, until one of them has the number.
const INNOCENTS: usize = 8;

struct Trial {
    env: TestEnv,
    record: PathBuf,
    number: u64,
    work: OwnedFd,
}

impl Trial {
    fn new((hold, directory): (&'static str, &str)) -> Self {
        let env = TestEnv::on_disk();
        // The journal is there: otherwise it would get the number.
        env.done(["acquire", "z", "--ttl", "1h"]);
        env.done(["break", "z", "--yes"]);
        let run = format!("run --kill-after 400ms {hold} -- sh -c");
        let mut wrapper = env.start(run.split(' ').chain([WORK]));
        let work = Pid::from_raw(env.pid_in("started").cast_signed()).unwrap();
        let work = pidfd_open(work, PidfdFlags::empty()).unwrap();
        let records = fs::read_dir(env.path(directory)).unwrap().flatten();
        let mut records = records.map(|entry| entry.path());
        let record = records.find(|path| path.is_file()).unwrap();
        let number = record.metadata().unwrap().ino();
        wrapper.signal(Signal::TERM);
        wait_until("the record says that the work is being ended", || {
            fs::read_to_string(&record).unwrap().contains("\"ending\":")
        });
        wrapper.kill();
        Self {
            env,
            record,
            number,
            work,
        }
    }

    /// Whether the process that is stopped has the guard: then nobody else can do anything.
    fn is_guarded(&self) -> bool {
        let store = File::open(self.env.store()).unwrap();
        flock(&store, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    fn end_work(&self) {
        // Whoever ends it may have done so.
        let _ = pidfd_send_signal(&self.work, Signal::KILL);
    }

    /// The work ends, another process finds that, and innocents begin.
    fn go_on(&self) -> Innocents {
        self.end_work();
        self.env.done(["break", "x", "--yes"]);
        assert!(!self.record.exists());
        let mut innocents = Innocents::default();
        for at in 0..INNOCENTS {
            let kind = ["", "-s ", "--slots 2 "][at % 3];
            innocents.add(&self.env, &format!("run {kind}innocent-{at}"));
            if innocents.has_number(self.number) {
                break;
            }
        }
        innocents
    }

    /// Runs `verb`, and lets all this happen before a call of it. The innocents and what was done to them, if it
    /// came to that; `lies`: one of them has the number in any case, as the kernel says.
    fn play(self, verb: &str, at: usize, lies: bool) -> (Ended, Option<(bool, Vec<String>)>) {
        let mut innocents = None;
        let command = self.env.onehold(verb.split(' '));
        let ended = trace_and(command, Fault::Before(Role::Program, at), || {
            if self.is_guarded() || !self.record.exists() {
                return Then::Continue;
            }
            let innocents = innocents.insert(self.go_on());
            match innocents.number() {
                Some(number) if lies => Then::Renumber(number, self.number),
                _ => Then::Continue,
            }
        });
        self.end_work();
        let seen = innocents.map(|mut innocents| {
            let has_number = lies || innocents.has_number(self.number);
            (has_number, innocents.end(&self.env))
        });
        (ended, seen)
    }
}

/// The calls of each ender, a part of them.
fn points(part: usize) -> Vec<((&'static str, &'static str), &'static str, usize)> {
    let mut points = Vec::new();
    for hold in HOLDS {
        for ender in ENDERS {
            let (ended, _) = Trial::new(hold).play(ender, usize::MAX, false);
            let calls = ended.count(Role::Program);
            // Where it is slow, its patience ends before it has looked at all processes.
            assert!(calls > 100, "{hold:?}, {ender}: {ended:?}");
            // What it does first, and what it does last, is not about the work.
            let step = (calls / part).max(1);
            points.extend((step / 2..calls).step_by(step).map(|at| (hold, ender, at)));
        }
    }
    points
}

fn sweep(part: usize) {
    let (played, reused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let points = points(part);
    let failures = for_all(&points, |(hold, ender, at)| {
        let (_, seen) = Trial::new(*hold).play(ender, *at, false);
        let Some((has_number, harmed)) = seen else {
            return Ok(());
        };
        played.fetch_add(1, Ordering::Relaxed);
        reused.fetch_add(has_number.into(), Ordering::Relaxed);
        if harmed.is_empty() {
            return Ok(());
        }
        Err(format!("{hold:?}, `{ender}` before call {at}: {harmed:?}"))
    });
    let (played, reused) = (played.into_inner(), reused.into_inner());
    println!(
        "{} points, {played} with innocents, in {reused} one of them had the number, {} failed",
        points.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(played > points.len() / 4);
}

#[test]
fn innocent_whose_record_gets_the_number_of_a_removed_one_is_not_taken_for_its_work() {
    sweep(6);
}

#[test]
#[ignore = "takes minutes"]
fn innocent_is_not_taken_for_work_of_another_hold_at_any_of_100_moments() {
    sweep(100);
}

/// The planted flaw: the number counts, and not the file.
#[test]
fn innocent_is_seen_to_be_harmed_if_the_number_of_its_file_counts() {
    let missed = for_all(&HOLDS, |hold| {
        let harms = |at: &usize| {
            let (_, seen) = Trial::new(*hold).play(ENDERS[0], *at, true);
            seen.is_some_and(|(_, harmed)| !harmed.is_empty())
        };
        let (ended, _) = Trial::new(*hold).play(ENDERS[0], usize::MAX, false);
        let calls = ended.count(Role::Program);
        // At a few moments, and at those between them.
        let mut parts = (4..32).step_by(4).chain(1..32);
        let found = parts.find(|part| harms(&(calls * part / 32)));
        found.map(drop).ok_or_else(|| format!("{hold:?}"))
    });
    assert_eq!(missed, [""; 0]);
}

#[test]
#[ignore = "needs root: .ci/run mounts the disk"]
fn disk_of_the_sweeps_uses_the_numbers_of_files_again() {
    assert!(disk::uses_numbers_again(disk::directory().path()));
}
