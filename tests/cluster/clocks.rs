use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::at_work::{assert_exclusive, run, seconds_after, sections};
use crate::cluster::On;
use crate::harness::seen::now;
use crate::harness::{CONTENDERS, Running, exit_code, wait_until};
use crate::keeper::{children_of, send};

use crate::scene::scenes;

scenes! {
    clocks_that_are_set_let_nobody_in,
    hold_is_looked_at_at_once_when_the_wall_clock_was_set,
    work_of_a_suspended_machine_is_ended_when_it_resumes,
}

const DAY: i64 = 24 * 60 * 60;

/// The wall clock of one process: that of the machine, and so many seconds more.
pub struct WallClock {
    steps: fs::File,
    path: PathBuf,
}

impl WallClock {
    pub fn new(on: &On, name: &str) -> Self {
        Self::at(on.env.path(name))
    }

    pub fn at(path: PathBuf) -> Self {
        let steps = fs::File::create(&path).unwrap();
        let clock = Self { steps, path };
        clock.set(0);
        clock
    }

    pub fn set(&self, seconds: i64) {
        self.steps.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// A process and its children have this clock.
    pub fn of(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", shim().clone()),
            ("WALL_CLOCK_STEP", self.path.clone()),
        ]
    }
}

/// A library that moves the wall clock of a process by what a file says.
fn shim() -> &'static PathBuf {
    static SHIM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let source = r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <stdint.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <sys/time.h>
        #include <time.h>
        #include <unistd.h>
        static volatile int64_t *step;
        __attribute__((constructor)) static void begin(void) {
            const char *path = getenv("WALL_CLOCK_STEP");
            int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
            if (file < 0) return;
            void *page = mmap(0, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
            if (page != MAP_FAILED) step = page;
            close(file);
        }
        int clock_gettime(clockid_t clock, struct timespec *now) {
            int failed = syscall(SYS_clock_gettime, clock, now);
            if (!failed && clock == CLOCK_REALTIME && step) now->tv_sec += *step;
            return failed;
        }
        int gettimeofday(struct timeval *now, void *zone) {
            struct timespec exact;
            int failed = clock_gettime(CLOCK_REALTIME, &exact);
            if (!failed) *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
            return failed;
        }
    "#;
    let (_, path) = SHIM.get_or_init(|| {
        let room = tempfile::tempdir().unwrap();
        // Servers run as another user.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(room.path(), all).unwrap();
        let path = room.path().join("wall_clock.so");
        fs::write(room.path().join("wall_clock.c"), source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&path);
        compiler.arg(room.path().join("wall_clock.c"));
        assert!(compiler.status().expect("cc is installed").success());
        (room, path)
    });
    path
}

fn clocks_that_are_set_let_nobody_in() {
    let on = On::of_scene();
    let clock = WallClock::new(&on, "clock");
    let mut command = run(&on, &["--ttl", "10", "x"], 13_000);
    clock.of(command.stderr(std::process::Stdio::null()));
    let mut holder = Running::spawn(command);
    wait_until("the section has begun", || sections(&on).len() == 1);
    // Waiters whose clocks differ by years, and are set while they wait.
    let waiters: Vec<_> = (0..CONTENDERS)
        .map(|at| {
            let own = WallClock::new(&on, &format!("clock{at}"));
            let days = [-900, -30, -1, 0, 0, 1, 30, 900];
            own.set(days[at % days.len()] * DAY);
            let mut command = run(&on, &["--ttl", "10", "-w", "120", "x"], 50);
            own.of(command.stderr(std::process::Stdio::null()));
            (Running::spawn(command), own)
        })
        .collect();
    wait_until("all wait", || on.waiters("x") == CONTENDERS);
    let began = Instant::now();
    for step in [DAY, -DAY, 900 * DAY, 0, -900 * DAY] {
        clock.set(step);
        for (_, own) in &waiters {
            own.set(step);
        }
        let contender = WallClock::new(&on, "contender");
        contender.set(-step);
        let mut contending = run(&on, &["-n", "x"], 50);
        contender.of(contending.stderr(std::process::Stdio::null()));
        assert_eq!(exit_code(contending.status().unwrap()), 6);
        std::thread::sleep(Duration::from_millis(1_200));
    }
    assert!(began.elapsed() < Duration::from_secs(13));
    assert_eq!(holder.finish(), 0);
    for (mut waiter, _) in waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(assert_exclusive(&on).len(), CONTENDERS + 1);
}

/// The boot-time clock of a virtual machine stands still while it is paused, and its wall clock is set when it
/// goes on.
fn hold_is_looked_at_at_once_when_the_wall_clock_was_set() {
    let on = On::of_scene();
    let (proxy, url) = on.behind_one();
    let clock = WallClock::new(&on, "clock");
    // Beats each 10 s.
    let mut command = run(&on, &["--ttl", "30", "x"], 12_000);
    clock.of(command.stderr(std::process::Stdio::null()));
    command.env("ONEHOLD_DIR", url);
    let mut holder = Running::spawn(command);
    wait_until("the section has begun", || sections(&on).len() == 1);
    std::thread::sleep(Duration::from_secs(2));
    proxy.forget();
    for step in [1_000, 0] {
        clock.set(step);
        let set = Instant::now();
        let beats = || {
            let paths = proxy.paths();
            let looks = ["keep", "/v3/kv/txn"];
            paths
                .iter()
                .filter(|path| looks.contains(&&***path))
                .count()
        };
        wait_until("it is looked at", || beats() == 1);
        assert!(
            set.elapsed() < Duration::from_secs(3),
            "{:?}",
            set.elapsed()
        );
        proxy.forget();
    }
    assert_eq!(holder.finish(), 0);
}

/// A machine that is suspended, as far as its processes see: none of them runs, and the boot-time clock goes on.
fn work_of_a_suspended_machine_is_ended_when_it_resumes() {
    let on = On::of_scene();
    let mut command = run(&on, &["--ttl", "10", "x"], 60_000);
    command.stderr(std::process::Stdio::null());
    let mut holder = Running::spawn(command);
    wait_until("the section has begun", || sections(&on).len() == 1);
    let keeper = children_of(holder.pid())[0];
    let work = children_of(keeper)[0];
    for pid in [work, keeper, holder.pid()] {
        send(pid, Signal::STOP);
    }
    let mut command = run(&on, &["--ttl", "10", "-w", "60", "x"], 2_000);
    command.stderr(std::process::Stdio::null());
    let mut successor = Running::spawn(command);
    wait_until("the successor is at work", || sections(&on).len() == 2);
    let resumed = now();
    // The work before who ends it. Where only the processes were stopped, the kernel has continued them
    // before, in time to end it.
    for pid in [work, keeper, holder.pid()] {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        let _ = kill_process(pid, Signal::CONT);
    }
    let code = holder.finish();
    assert!(matches!(code, 8 | 137), "{code}");
    assert_eq!(successor.finish(), 0);
    let all = sections(&on);
    let (first, second) = (&all[0], &all[1]);
    assert!(second.from < resumed);
    let ran_on = seconds_after(first, resumed);
    println!("after it had resumed the work ran for {ran_on} s");
    assert!(ran_on < 0.1, "{ran_on} s");
    assert!(second.hold > first.hold);
}
