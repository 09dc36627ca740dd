//! What happens when a verb is killed before, or fails at, each of its system calls. The thinned-out
//! sweeps run always, the whole ones by name: `cargo test --test sweeps -- --include-ignored`.
//!
//! Memory is left out of the error sweep: an allocation that fails ends a Rust program.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::case_sensitive_file_extension_comparisons,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used
)]

use nix::errno::Errno;

mod beside;
mod room;
mod tracer;

use room::{OUSTED, Room, SECTION};
use tracer::{Deed, Ended, Role, Then, trace, trace_and};

/// A verb at work on the lock `x`, and what stands there before.
struct Scene {
    name: &'static str,
    prepare: fn(&mut Room) -> Vec<String>,
    /// Options that lead to the lock.
    global: &'static [&'static str],
    lock: &'static str,
    /// Whether a trial takes long, because others have to notice: then a call fails with one error.
    slow: bool,
    /// Whether what it prints is a hold number, and nothing must be held if it fails.
    acquires: bool,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn run_section(options: &str) -> Vec<String> {
    let mut run = words(&format!("{options} -- sh -c"));
    run.push(SECTION.to_owned());
    run
}

const SCENE: Scene = Scene {
    name: "",
    prepare: |_| Vec::new(),
    global: &[],
    lock: "x",
    slow: false,
    acquires: false,
};

const SCENES: [Scene; 19] = [
    Scene {
        name: "acquire",
        prepare: |room| words(&format!("acquire x --pid {}", room.holder.pid())),
        acquires: true,
        ..SCENE
    },
    Scene {
        name: "acquire a lease in a section",
        prepare: |_| words("acquire section/deep/x --ttl 1h -m why"),
        lock: "section/deep/x",
        acquires: true,
        ..SCENE
    },
    Scene {
        name: "acquire over a dead holder",
        prepare: |room| {
            room.leave_dead("x");
            words(&format!("acquire x --pid {}", room.holder.pid()))
        },
        acquires: true,
        ..SCENE
    },
    Scene {
        name: "run",
        prepare: |_| run_section("run x"),
        ..SCENE
    },
    Scene {
        name: "run over a dead holder",
        prepare: |room| {
            room.leave_dead("x");
            run_section("run x")
        },
        ..SCENE
    },
    Scene {
        name: "run --close",
        prepare: |_| run_section("run --close x"),
        ..SCENE
    },
    Scene {
        name: "run --close in a section",
        prepare: |_| run_section("run --close section/x"),
        lock: "section/x",
        ..SCENE
    },
    Scene {
        name: "run --exec",
        prepare: |_| run_section("run --exec x"),
        ..SCENE
    },
    Scene {
        name: "run in prodigy's place over a dead one of prodigy's",
        prepare: |room| {
            let dies = Room::dead_pid();
            let host = hostname::get().unwrap().into_string().unwrap();
            let now = chrono::Utc::now().to_rfc3339();
            std::fs::create_dir_all(room.path(".prodigy/resume_locks")).unwrap();
            std::fs::write(
                room.path(".prodigy/resume_locks/x.lock"),
                format!(
                    "{{\"job_id\": \"x\", \"process_id\": {dies}, \"hostname\": \"{host}\", \"acquired_at\": \"{now}\"}}"
                ),
            )
            .unwrap();
            run_section("--profile prodigy run x")
        },
        global: &["--profile", "prodigy"],
        ..SCENE
    },
    Scene {
        name: "run on a path over a dead holder",
        prepare: |room| {
            room.leave_dead("./x");
            run_section("run ./x")
        },
        lock: "./x",
        ..SCENE
    },
    Scene {
        name: "release",
        prepare: |room| {
            let pid = room.holder.pid();
            let number = room.done(&["acquire", "x", "--pid", &pid]);
            words(&format!("release x --hold {number}"))
        },
        ..SCENE
    },
    Scene {
        name: "release of a dead holder's",
        prepare: |room| {
            room.leave_dead("x");
            words(&format!(
                "release x --hold {}",
                room.lock(&["check", "x"])["hold"]
            ))
        },
        ..SCENE
    },
    Scene {
        name: "renew",
        prepare: |room| {
            let number = room.done(&["acquire", "x", "--ttl", "1h"]);
            words(&format!("renew x --hold {number} --ttl 2h"))
        },
        ..SCENE
    },
    Scene {
        name: "break",
        prepare: |room| {
            let pid = room.holder.pid();
            room.done(&["acquire", "x", "--pid", &pid]);
            words("break x --yes")
        },
        ..SCENE
    },
    Scene {
        name: "break of a living run",
        prepare: |room| {
            room.start(&["run", "x", "--", "sh", "-c", OUSTED]);
            words("break x --yes")
        },
        slow: true,
        ..SCENE
    },
    Scene {
        name: "run by force beside a living run",
        prepare: |room| {
            room.start(&["run", "x", "--", "sh", "-c", OUSTED]);
            run_section("run x --force --yes")
        },
        slow: true,
        ..SCENE
    },
    Scene {
        name: "acquire by force",
        prepare: |room| {
            room.done(&["acquire", "x", "--ttl", "1h"]);
            words(&format!(
                "acquire x --pid {} --force --yes",
                room.holder.pid()
            ))
        },
        ..SCENE
    },
    Scene {
        name: "cleanup",
        prepare: |room| {
            room.leave_dead("x");
            room.leave_dead("section/y");
            words("cleanup")
        },
        ..SCENE
    },
    Scene {
        name: "check",
        prepare: |room| {
            room.leave_dead("x");
            words("check x")
        },
        ..SCENE
    },
];

impl Scene {
    /// Plays it; `during`: what happens to the program.
    fn play(&self, deed: Deed) -> (Room, Ended) {
        let mut room = Room::new();
        let words = (self.prepare)(&mut room);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if matches!(deed, Deed::Nothing | Deed::Fail(..)) {
            // Its command need not be waited for.
            std::fs::write(room.path("end"), "").unwrap();
        }
        let ended = trace(room.command(&words), deed);
        room.heard_of(&ended.stdout);
        (room, ended)
    }

    /// Kills the program while its child stands before a call, and has somebody ask for `wanted`
    /// before the child goes on. One of them is to get it.
    fn orphan(&self, at: usize, wanted: &str) -> Result<(), String> {
        let mut room = Room::new();
        let words = (self.prepare)(&mut room);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let pid = room.holder.pid();
        let mut asked = None;
        let ended = trace_and(room.command(&words), Deed::Orphan(at), || {
            let acquire = [self.global, &["acquire", wanted, "--pid", &pid]].concat();
            asked = Some(room.onehold(&acquire).0);
            Then::GoesOn
        });
        match (asked, ended.executed) {
            (Some(0), false) | (Some(6), true) => self.is_in_order(&mut room),
            _ => Err(format!(
                "acquire {wanted}: {asked:?}, executed: {}",
                ended.executed
            )),
        }
    }

    /// Locks that exclude its own.
    fn relatives(&self) -> Vec<String> {
        if !self.global.is_empty() || self.lock.starts_with('.') {
            return Vec::new();
        }
        let above = self
            .lock
            .rsplit_once('/')
            .map(|(above, _)| above.to_owned());
        [format!("{}/task", self.lock)]
            .into_iter()
            .chain(above)
            .collect()
    }

    fn is_in_order(&self, room: &mut Room) -> Result<(), String> {
        room.is_in_order(self.global, self.lock)
    }

    /// The calls that it makes when nothing happens to it.
    fn calls(&self) -> Ended {
        let (mut room, ended) = self.play(Deed::Nothing);
        assert!(ended.count(Role::Program) > 5, "{}: {ended:?}", self.name);
        assert!(
            matches!(ended.code, Some(0 | 5)),
            "{}: {ended:?}",
            self.name
        );
        self.is_in_order(&mut room)
            .unwrap_or_else(|why| panic!("{}: {why}", self.name));
        ended
    }
}

/// Commands that are killed themselves. They make no mark that they are in, as they would leave it.
const BRIEF: [Scene; 3] = [
    Scene {
        name: "run, its command",
        prepare: |_| brief("run x"),
        ..SCENE
    },
    Scene {
        name: "run --close, its command",
        prepare: |_| brief("run --close x"),
        ..SCENE
    },
    Scene {
        name: "run --exec, its command",
        prepare: |_| brief("run --exec x"),
        ..SCENE
    },
];

fn brief(options: &str) -> Vec<String> {
    let mut run = words(&format!("{options} -- sh -c"));
    run.push("echo $$ >> started; exit 7".to_owned());
    run
}

/// Spreads work over the processors.
fn for_all<T: Sync>(work: &[T], check: impl Fn(&T) -> Result<(), String> + Sync) -> Vec<String> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(one) =
                    work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    if let Err(failure) = check(one) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

/// Whether a `run` says that its command was killed, or was that command.
fn is_killed(ended: &Ended) -> bool {
    ended.code == Some(137) || ended.signal == Some(nix::sys::signal::Signal::SIGKILL)
}

/// Kills every scene before every `step`-th call.
fn kill_sweep(step: usize) {
    let mut points = Vec::new();
    for scene in &SCENES {
        let calls = scene.calls();
        for role in [Role::Program, Role::Child] {
            for at in (points.len() % step..calls.count(role)).step_by(step) {
                points.push((scene, role, at));
            }
        }
    }
    for scene in &BRIEF {
        let (_, ended) = scene.play(Deed::Follow);
        assert_eq!(ended.code, Some(7), "{}: {ended:?}", scene.name);
        let calls = ended.count(Role::Command);
        assert!(calls > 10, "{}: {calls} calls", scene.name);
        for at in (points.len() % step..calls).step_by(step) {
            points.push((scene, Role::Command, at));
        }
    }
    let failures = for_all(&points, |(scene, role, at)| {
        let (mut room, ended) = scene.play(Deed::Kill(*role, *at));
        if *role == Role::Command && !is_killed(&ended) {
            return Err(format!("{}: {ended:?}", scene.name));
        }
        scene.is_in_order(&mut room).map_err(|why| {
            let calls = ended.calls.get(role).cloned().unwrap_or_default();
            format!(
                "{}: {role:?} killed before call {at} ({:?}): {why}",
                scene.name,
                calls.last()
            )
        })
    });
    println!("{} kill points, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() * step > 500, "{} kill points", points.len());
}

#[test]
fn killed_before_some_of_its_calls_nothing_is_lost_and_nobody_shut_out() {
    kill_sweep(11);
}

#[test]
#[ignore = "takes a minute"]
fn killed_before_any_of_its_calls_nothing_is_lost_and_nobody_shut_out() {
    kill_sweep(1);
}

/// What a call can fail with: no space, a broken disk, no permission, too many files, a signal.
const ERRORS: [Errno; 5] = [
    Errno::ENOSPC,
    Errno::EIO,
    Errno::EACCES,
    Errno::EMFILE,
    Errno::EINTR,
];

/// A wrapper that dies while its child is about to become the command, and somebody who finds it
/// dead in that moment.
#[test]
fn a_child_without_its_wrapper_and_the_next_one_never_both_have_the_lock() {
    let mut points = Vec::new();
    for scene in &SCENES {
        let calls = scene.calls().count(Role::Child);
        for at in 0..calls {
            points.push((scene, at, scene.lock.to_owned()));
            for relative in scene.relatives() {
                points.push((scene, at, relative));
            }
        }
    }
    let failures = for_all(&points, |(scene, at, wanted)| {
        scene
            .orphan(*at, wanted)
            .map_err(|why| format!("{}: orphan before call {at}: {why}", scene.name))
    });
    println!("{} orphans, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() > 100, "{} orphans", points.len());
}

/// Calls that are not made to fail: of memory, where an allocation that fails ends a Rust program,
/// and those of which their man pages say that they always succeed, or cannot fail as they are
/// called here.
#[rustfmt::skip]
const SPARED: [u64; 20] = [
    9, 10, 11, 12, 25, 28,        // mmap mprotect munmap brk mremap madvise
    60, 231,                      // exit exit_group
    202,                          // futex
    39, 186, 110,                 // getpid gettid getppid
    102, 104, 107, 108, 95,       // getuid getgid geteuid getegid umask
    13,                           // rt_sigaction
    228,                          // clock_gettime
    318,                          // getrandom
];

/// Lets every call of every scene fail; `all`: with each of the errors, else with one of them.
fn error_sweep(step: usize, all: bool) {
    let mut points = Vec::new();
    for scene in &SCENES {
        let calls = scene.calls();
        for role in [Role::Program, Role::Child] {
            let made = calls
                .calls
                .get(&role)
                .map(Vec::as_slice)
                .unwrap_or_default();
            for (at, call) in made.iter().enumerate() {
                if SPARED.contains(call) || (at + points.len()) % step != 0 {
                    continue;
                }
                for (which, error) in ERRORS.iter().enumerate() {
                    if (all && !scene.slow) || which == at % ERRORS.len() {
                        points.push((scene, role, at, *error));
                    }
                }
            }
        }
    }
    let failures = for_all(&points, |(scene, role, at, error)| {
        let (mut room, ended) = scene.play(Deed::Fail(*role, *at, *error));
        let calls = ended.calls.get(role).cloned().unwrap_or_default();
        let what = format!(
            "{}: {error} at call {at} ({:?}) of {role:?}",
            scene.name,
            calls.get(*at)
        );
        if ended.stderr.contains("panicked") || ended.signal.is_some() {
            return Err(format!("{what}: {:?} {}", ended.signal, ended.stderr));
        }
        let code = ended.code.unwrap_or(-1);
        if !matches!(code, 0..=8 | 125..=127) {
            return Err(format!("{what}: exit code {code}: {}", ended.stderr));
        }
        if code != 0 && ended.stdout.is_empty() && ended.stderr.is_empty() {
            return Err(format!("{what}: exit code {code} without a word"));
        }
        if scene.acquires && (code == 0) != room.is_held(scene.lock) {
            return Err(format!("{what}: exit code {code}: {}", ended.stderr));
        }
        scene
            .is_in_order(&mut room)
            .map_err(|why| format!("{what}: {why}: {}", ended.stderr))
    });
    println!(
        "{} errors injected, {} failed",
        points.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn some_of_its_calls_fail_and_the_lock_is_taken_or_not_but_never_half() {
    error_sweep(11, false);
}

#[test]
#[ignore = "takes minutes"]
fn any_of_its_calls_fails_and_the_lock_is_taken_or_not_but_never_half() {
    error_sweep(1, true);
}

/// What everyday calls cost is mostly system calls, from `main` on. The ceilings are a little above
/// what there is today: whoever needs more should know that he does.
#[test]
fn everyday_calls_make_no_more_system_calls_than_they_need() {
    let count = |prepare: &[&str], words: &[&str]| {
        let mut room = Room::new();
        if !prepare.is_empty() {
            room.done(prepare);
        }
        // Another record beside it, and the store in use.
        room.done(&["acquire", "other", "--ttl", "1h"]);
        let ended = trace(room.command(words), Deed::Nothing);
        (ended.count(Role::Program), ended.count(Role::Child))
    };
    for (prepare, words, at_most) in [
        (&[][..], &["run", "x", "--", "true"][..], (106, 24)),
        (&[], &["run", "--exec", "x", "--", "true"], (74, 0)),
        (&[], &["acquire", "x", "--ttl", "1h"], (90, 0)),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["release", "x", "--force", "--yes"],
            (140, 0),
        ),
        (&[], &["check", "-q", "x"], (48, 0)),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["check", "-q", "x"],
            (50, 0),
        ),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["run", "x", "--", "true"],
            (76, 0),
        ),
    ] {
        let (program, child) = count(prepare, words);
        println!("{words:?}: {program} and {child} system calls");
        assert!(
            program <= at_most.0 && child <= at_most.1,
            "{words:?}: {program}, {child}"
        );
    }
}
