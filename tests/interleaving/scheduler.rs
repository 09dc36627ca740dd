//! Runs a few processes under ptrace(2), one at a time. Time is virtual: it passes only when all of them sleep.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use libc::user_regs_struct as Registers;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::calls::{Call, Examiner, Files, IN_SECTION, STOPPING};
use crate::flaws::{Change, Flaw};
use crate::start::{Launcher, OF_LAUNCHER, Start};
use crate::tracee::{
    Sleep, end_at_once, end_by_signal, has_signal, hide_vdso, is_free, open_path, polls_now, send,
    show_as_running, signaled, thread_group, wait_for_answer,
};
use crate::tracer::{Event, Tracees, Until, file_number_of, memory, write_memory};

/// What a process waits for, as the scheduler sees it.
enum State {
    /// It goes on until its next call that stops it.
    Running,
    /// It has stopped before a call that others can see.
    Ready(Call),
    /// It has asked for a kernel lock that somebody has. Whoever comes first gets it.
    AwaitsLock(Call),
    /// It sleeps by the clock.
    Asleep,
    /// It sleeps in the kernel.
    Blocked,
}

/// What is done when a call returns.
enum Return {
    /// A lock that was asked for without waiting.
    Lock(Call),
    /// A call whose arguments were changed.
    Restore(Registers),
    /// The state of a process was read, which says of a stopped one that it is traced.
    Stat(u64),
    /// A file was asked for, and is to have this number.
    Number(u64),
    /// A server was asked by this socket.
    Answer(u64),
}

struct Task {
    pid: Pid,
    /// `A0` is the first process, `A1` its first child or thread.
    name: String,
    tree: usize,
    state: State,
    /// Whether the call that it is in may sleep.
    may_sleep: bool,
    /// It asks again for a lock that it awaited.
    retries: bool,
    /// When its sleep ends, by the virtual clock.
    deadline: Option<Duration>,
    timed_out: bool,
    at_return: Option<Return>,
    sleep: Option<Sleep>,
}

impl Task {
    fn sleeps(&self) -> bool {
        self.sleep.as_ref().is_some_and(Sleep::is_sound)
    }
}

struct Timer {
    task: Pid,
    next: Duration,
    interval: Duration,
}

/// The command of a hold, while it runs.
struct Inside {
    pid: Pid,
    section: String,
    /// `x` excludes all, `s` excludes `x`; a digit is how many there may be.
    mode: char,
}

pub struct Scheduler<'a> {
    root: &'a Path,
    words: Vec<Vec<String>>,
    flaw: Option<Flaw>,
    tasks: Vec<Task>,
    roots: Vec<Pid>,
    tracees: Tracees,
    children: HashMap<usize, usize>,
    timers: HashMap<(Pid, u64), Timer>,
    files: Files,
    inside: Vec<Inside>,
    began: (Duration, Duration),
    /// How long all have slept.
    pub passed: Duration,
    ticks: u64,
    pub exit_codes: Vec<Option<i32>>,
    /// The hold numbers that commands were given.
    pub numbers: Vec<String>,
    pub overlaps: Vec<String>,
    /// Signals to processes of an [innocent](INNOCENT), from others.
    pub harmed: Vec<String>,
    /// The processes that have a ticket and not yet the lock, in order of arrival.
    waiting: Vec<usize>,
    pub overtaken: Vec<String>,
    /// How often the flaw was planted.
    pub planted: usize,
    pub hung: bool,
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        self.tracees.kill_all();
        while waitpid(None, Some(WaitPidFlag::__WNOTHREAD)).is_ok() {}
    }
}

impl<'a> Scheduler<'a> {
    pub fn new(root: &'a Path, words: Vec<Vec<String>>, flaw: Option<Flaw>) -> Self {
        // A file that is written in a trial has the time of the machine: it is not in the future.
        let ahead = Duration::from_secs(1);
        let real = SystemTime::UNIX_EPOCH.elapsed().unwrap() + ahead;
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let boot = Duration::new(boot.tv_sec.cast_unsigned(), boot.tv_nsec as u32) + ahead;
        Self {
            root,
            words,
            flaw,
            tasks: Vec::new(),
            roots: Vec::new(),
            tracees: Tracees::new(Until::Filter),
            children: HashMap::new(),
            timers: HashMap::new(),
            files: Files::default(),
            inside: Vec::new(),
            began: (real, boot),
            passed: Duration::ZERO,
            ticks: 0,
            exit_codes: Vec::new(),
            numbers: Vec::new(),
            overlaps: Vec::new(),
            harmed: Vec::new(),
            waiting: Vec::new(),
            overtaken: Vec::new(),
            planted: 0,
            hung: false,
        }
    }

    /// Starts a process, which stops before its first call that others can see.
    pub fn start(&mut self, launcher: &Launcher, command: &Command, output: &File) {
        let pid = launcher.start(&Start::new(command, output));
        self.tracees.add(pid);
        let tree = self.roots.len();
        self.roots.push(pid);
        self.exit_codes.push(None);
        self.add(pid, tree);
        hide_vdso(pid);
        let _ = ptrace::cont(pid, None);
        self.settle();
    }

    fn add(&mut self, pid: Pid, tree: usize) {
        self.files.processes.insert(pid.as_raw());
        let number = self.children.entry(tree).or_default();
        let letter = char::from(b'A' + tree as u8);
        self.tasks.push(Task {
            pid,
            name: format!("{letter}{number}"),
            tree,
            state: State::Running,
            may_sleep: false,
            retries: false,
            deadline: None,
            timed_out: false,
            at_return: None,
            sleep: Sleep::of(pid),
        });
        *number += 1;
    }

    pub fn has_ended(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The processes that can go on, and the calls by which they do.
    pub fn ready(&self) -> Vec<(String, Call)> {
        let mut ready: Vec<_> = self
            .tasks
            .iter()
            .filter_map(|task| match &task.state {
                State::Ready(call) => Some((task.name.clone(), call.clone())),
                State::AwaitsLock(call) if is_free(task.pid, call) || has_signal(task.pid) => {
                    Some((task.name.clone(), call.clone()))
                }
                _ => None,
            })
            .collect();
        ready.sort_by(|one, other| one.0.cmp(&other.0));
        ready
    }

    /// Lets one process go on to its next call that others can see, or to its end.
    pub fn step(&mut self, name: &str) {
        let at = self
            .tasks
            .iter()
            .position(|task| task.name == name)
            .unwrap();
        let task = &mut self.tasks[at];
        match std::mem::replace(&mut task.state, State::Running) {
            State::Ready(call) => {
                if call.leaves_section() {
                    let pid = task.pid;
                    self.inside.retain(|inside| inside.pid != pid);
                }
                self.notes_order(at, &call);
                self.notes_harm(at, &call);
                if call.number() == libc::SYS_exit_group {
                    self.ends_threads(at);
                }
                if !self.plant(at, &call) {
                    self.make(at, call.registers, Some(call));
                }
            }
            State::AwaitsLock(call) => {
                let mut registers = call.registers;
                if is_free(task.pid, &call) {
                    // Once more, from the instruction that makes the call.
                    registers.rip -= 2;
                    registers.rax = registers.orig_rax;
                    registers.orig_rax = u64::MAX;
                    task.retries = true;
                } else {
                    registers.rax = failed(ERESTARTSYS);
                }
                let _ = ptrace::setregs(task.pid, registers);
                let _ = ptrace::cont(task.pid, None);
            }
            _ => panic!("{name} cannot go on"),
        }
        self.settle();
    }

    /// The threads of a process that exits end as well, whatever they sleep in.
    fn ends_threads(&mut self, at: usize) {
        let Task { pid, tree, .. } = self.tasks[at];
        let process = thread_group(pid);
        for task in &mut self.tasks {
            if task.pid != pid && task.tree == tree && thread_group(task.pid) == process {
                task.state = State::Running;
                task.may_sleep = false;
            }
        }
    }

    /// Notes who joins the queue, and who takes the lock before those that have joined it earlier.
    fn notes_order(&mut self, at: usize, call: &Call) {
        let tree = self.tasks[at].tree;
        let path = call.path.strip_prefix(self.root).unwrap_or(&call.path);
        let creates =
            call.number() == libc::SYS_openat && call.registers.rdx as i32 & libc::O_CREAT != 0;
        if creates && path.starts_with("s/.onehold/waiting") {
            self.waiting.push(tree);
        } else if call.number() == libc::SYS_linkat && path == Path::new("s/a.lock") {
            match self.waiting.iter().position(|waiter| *waiter == tree) {
                Some(0) => {}
                None if self.waiting.is_empty() => {}
                _ => self.overtaken.push(format!("{:?} by {tree}", self.waiting)),
            }
            self.waiting.retain(|waiter| *waiter != tree);
        }
    }

    fn notes_harm(&mut self, at: usize, call: &Call) {
        let Task { tree, .. } = self.tasks[at];
        let Some(target) = signaled(self.tasks[at].pid, call) else {
            return;
        };
        let harmed = self.tasks.iter().find(|task| {
            thread_group(task.pid) == Some(target)
                && task.tree != tree
                && self.words[task.tree].iter().any(|word| word == INNOCENT)
        });
        if let Some(harmed) = harmed {
            let by = self.words[tree].join(" ");
            self.harmed.push(format!("{} by `{by}`", harmed.name));
        }
    }

    /// All sleep: lets time pass until one of them is woken by it. Whether there was such a time.
    pub fn let_time_pass(&mut self) -> bool {
        let sleeps = self.tasks.iter().filter_map(|task| task.deadline);
        let timers = self.timers.values().map(|timer| timer.next);
        let Some(next) = sleeps.chain(timers).min() else {
            return false;
        };
        self.passed = self.passed.max(next);
        for task in &mut self.tasks {
            if task.deadline.is_none_or(|deadline| deadline > self.passed) {
                continue;
            }
            task.deadline = None;
            match task.state {
                State::Asleep => {
                    let mut registers = ptrace::getregs(task.pid).unwrap();
                    registers.orig_rax = u64::MAX;
                    registers.rax = 0;
                    task.state = State::Running;
                    let _ = ptrace::setregs(task.pid, registers);
                    let _ = ptrace::cont(task.pid, None);
                }
                State::Blocked => {
                    task.timed_out = true;
                    // It cannot be blocked, and is not delivered.
                    send(task.pid, libc::SIGSTOP);
                    task.state = State::Running;
                }
                _ => {}
            }
        }
        let passed = self.passed;
        let tasks = &mut self.tasks;
        self.timers.retain(|_, timer| {
            if timer.next > passed {
                return true;
            }
            send(timer.task, libc::SIGALRM);
            for task in tasks.iter_mut() {
                if task.pid == timer.task && matches!(task.state, State::Blocked) {
                    task.state = State::Running;
                }
            }
            timer.next = passed + timer.interval;
            !timer.interval.is_zero()
        });
        self.settle();
        true
    }

    /// Whether a process that is not under this scheduler wakes one within this time.
    pub fn waits_for_others(&mut self, within: Duration) -> bool {
        let began = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(5));
            self.settle();
            if self.has_ended() || !self.ready().is_empty() {
                return true;
            }
            if began.elapsed() >= within {
                return false;
            }
        }
    }

    /// What each process does, for a message.
    pub fn states(&self) -> String {
        let state = |task: &Task| match &task.state {
            State::Ready(call) => format!("{} before {}", task.name, call.text),
            State::AwaitsLock(call) => format!("{} waits in {}", task.name, call.text),
            State::Asleep => format!("{} sleeps", task.name),
            State::Running => format!("{} runs", task.name),
            State::Blocked => {
                let call = fs::read_to_string(format!("/proc/{}/syscall", task.pid));
                let call = call.unwrap_or_default();
                let number = call.split(' ').next().unwrap_or_default().to_owned();
                format!("{} sleeps in call {number}", task.name)
            }
        };
        self.tasks.iter().map(state).collect::<Vec<_>>().join(", ")
    }

    /// Waits until each process has stopped, sleeps, or has ended.
    fn settle(&mut self) {
        let mut looks = 0_u64;
        loop {
            let mut runs = false;
            let mut may_sleep = false;
            for task in &mut self.tasks {
                match task.state {
                    State::Blocked if !task.sleeps() => {
                        task.state = State::Running;
                    }
                    State::Running if task.may_sleep && looks > 0 && task.sleeps() => {
                        task.state = State::Blocked;
                    }
                    _ => {}
                }
                if matches!(task.state, State::Running) {
                    runs = true;
                    may_sleep |= task.may_sleep;
                }
            }
            if !runs {
                return;
            }
            looks += 1;
            if looks > 20_000_000 {
                self.hung = true;
                return;
            }
            match self.tracees.next(!may_sleep) {
                Ok(None) => std::thread::yield_now(),
                Ok(Some((pid, event))) => {
                    looks = 0;
                    self.event(pid, event);
                }
                Err(Errno::ECHILD) => {
                    self.tasks.clear();
                    return;
                }
                Err(Errno::EINTR) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn position(&self, pid: Pid) -> Option<usize> {
        self.tasks.iter().position(|task| task.pid == pid)
    }

    fn event(&mut self, pid: Pid, event: Event) {
        if let Event::Ended(end) = event {
            return self.ended(pid, end.unwrap_or_else(|signal| -(signal as i32)));
        }
        let Some(at) = self.position(pid) else {
            return;
        };
        match event {
            Event::Call => self.returned(at),
            Event::Filtered => self.before_call(at),
            Event::Executed => self.executed(at),
            Event::Created(new, _) => {
                self.add(new, self.tasks[at].tree);
                self.tracees.go_on(pid, None);
            }
            Event::Ended(_) | Event::Stepped | Event::GoesOn => {}
        }
    }

    fn ended(&mut self, pid: Pid, code: i32) {
        self.tasks.retain(|task| task.pid != pid);
        self.inside.retain(|inside| inside.pid != pid);
        self.timers.retain(|_, timer| timer.task != pid);
        if let Some(tree) = self.roots.iter().position(|root| *root == pid) {
            self.exit_codes[tree] = Some(code);
        }
    }

    /// A process has executed a program: the command of a hold, which is in its section from now on.
    fn executed(&mut self, at: usize) {
        let pid = self.tasks[at].pid;
        self.tasks[at].sleep = Sleep::of(pid);
        self.tasks[at].may_sleep = false;
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        if let [COMMAND, section, mode, ..] = words.as_slice() {
            match mode.chars().next().unwrap() {
                'f' => {
                    self.enters(pid, section, 'x');
                    end_by_signal(pid);
                }
                mode => {
                    self.enters(pid, section, mode);
                    end_at_once(pid);
                }
            }
        } else {
            hide_vdso(pid);
        }
        let _ = ptrace::cont(pid, None);
    }

    fn enters(&mut self, pid: Pid, section: &str, mode: char) {
        let others: Vec<char> = self
            .inside
            .iter()
            .filter(|inside| inside.section == section)
            .map(|inside| inside.mode)
            .collect();
        let fits = match mode {
            's' => !others.contains(&'x'),
            'x' => others.is_empty(),
            limit => others.len() < limit.to_digit(10).unwrap() as usize,
        };
        if !fits {
            self.overlaps.push(format!("{mode} beside {others:?}"));
        }
        self.inside.push(Inside {
            pid,
            section: section.to_owned(),
            mode,
        });
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variable = |name: &str| {
            let text = String::from_utf8_lossy(&environment);
            let found = text.split('\0').find_map(|text| text.strip_prefix(name));
            found.map(str::to_owned)
        };
        self.numbers.extend(variable("ONEHOLD_HOLD="));
    }

    fn before_call(&mut self, at: usize) {
        let task = &mut self.tasks[at];
        task.may_sleep = false;
        let Ok(mut registers) = ptrace::getregs(task.pid) else {
            return;
        };
        let now = self.passed + Duration::from_micros(self.ticks);
        let answer = |mut registers: Registers, value: u64| {
            registers.orig_rax = u64::MAX;
            registers.rax = value;
            let _ = ptrace::setregs(task.pid, registers);
            let _ = ptrace::cont(task.pid, None);
        };
        match registers.orig_rax.cast_signed() {
            libc::SYS_clock_gettime | libc::SYS_gettimeofday | libc::SYS_time => {
                self.ticks += 1;
                let number = registers.orig_rax.cast_signed();
                let (clock, to) = match number {
                    libc::SYS_clock_gettime => (registers.rdi as i32, registers.rsi),
                    _ => (libc::CLOCK_REALTIME, registers.rdi),
                };
                let time = match clock {
                    libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => self.began.0 + now,
                    libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID => {
                        let _ = ptrace::cont(task.pid, None);
                        return;
                    }
                    _ => self.began.1 + now,
                };
                let fraction = match number {
                    libc::SYS_clock_gettime => time.subsec_nanos(),
                    _ => time.subsec_micros(),
                };
                let bytes = [time.as_secs(), fraction.into()]
                    .map(u64::to_ne_bytes)
                    .concat();
                if number == libc::SYS_time {
                    answer(registers, time.as_secs());
                } else {
                    write_memory(task.pid, to, &bytes);
                    answer(registers, 0);
                }
            }
            libc::SYS_timer_settime => {
                let key = (task.pid, registers.rdi);
                let mut times = [0; 32];
                memory(task.pid, registers.rdx, &mut times).unwrap();
                let (interval, first) = (duration(&times[..16]), duration(&times[16..]));
                if first.is_zero() {
                    self.timers.remove(&key);
                } else {
                    let new = Timer {
                        task: task.pid,
                        next: now + first,
                        interval,
                    };
                    self.timers.insert(key, new);
                }
                answer(registers, 0);
            }
            libc::SYS_timer_delete => {
                self.timers.remove(&(task.pid, registers.rdi));
                let _ = ptrace::cont(task.pid, None);
            }
            libc::SYS_nanosleep => {
                let mut time = [0; 16];
                memory(task.pid, registers.rdi, &mut time).unwrap();
                task.deadline = Some(now + duration(&time));
                task.state = State::Asleep;
            }
            libc::SYS_clock_nanosleep => {
                let mut time = [0; 16];
                memory(task.pid, registers.rdx, &mut time).unwrap();
                let is_absolute = registers.rsi as i32 & libc::TIMER_ABSTIME != 0;
                let began = match registers.rdi as i32 {
                    libc::CLOCK_REALTIME => self.began.0,
                    _ => self.began.1,
                };
                let time = duration(&time);
                task.deadline = Some(if is_absolute {
                    time.saturating_sub(began)
                } else {
                    now + time
                });
                task.state = State::Asleep;
            }
            libc::SYS_poll if registers.rdx as i32 > 0 => {
                let original = registers;
                task.deadline = Some(now + Duration::from_millis(registers.rdx));
                registers.rdx = u64::MAX;
                self.make_changed(at, original, registers);
            }
            libc::SYS_ppoll if registers.rdx != 0 && !polls_now(task.pid, registers.rdx) => {
                let original = registers;
                let mut time = [0; 16];
                memory(task.pid, registers.rdx, &mut time).unwrap();
                task.deadline = Some(now + duration(&time));
                registers.rdx = 0;
                self.make_changed(at, original, registers);
            }
            _ => {
                let mut examiner = Examiner {
                    pid: task.pid,
                    task: &task.name,
                    root: self.root,
                    files: &mut self.files,
                };
                let mut call = examiner.call(registers);
                if let Some(call) = &mut call
                    && call.number() == libc::SYS_exit_group
                    && self.inside.iter().any(|inside| inside.pid == task.pid)
                {
                    IN_SECTION.clone_into(&mut call.text);
                }
                match call {
                    Some(call) if !std::mem::take(&mut task.retries) => {
                        task.state = State::Ready(call);
                    }
                    call => self.make(at, registers, call),
                }
            }
        }
    }

    /// Makes a call that may sleep, with changed arguments.
    fn make_changed(&mut self, at: usize, original: Registers, registers: Registers) {
        let task = &mut self.tasks[at];
        task.may_sleep = true;
        task.at_return = Some(Return::Restore(original));
        let _ = ptrace::setregs(task.pid, registers);
        let _ = ptrace::syscall(task.pid, None);
    }

    fn make(&mut self, at: usize, mut registers: Registers, call: Option<Call>) {
        let task = &mut self.tasks[at];
        let number = registers.orig_rax.cast_signed();
        let waits = registers.rsi as i32 & (libc::LOCK_NB | libc::LOCK_UN) == 0;
        task.may_sleep = match number {
            libc::SYS_wait4 => registers.rdx as i32 & libc::WNOHANG == 0,
            libc::SYS_waitid => registers.r10 as i32 & libc::WNOHANG == 0,
            libc::SYS_ppoll => !polls_now(task.pid, registers.rdx),
            libc::SYS_poll => registers.rdx as i32 != 0,
            // A pipe and the like; a read of a file in /proc only seems to sleep.
            libc::SYS_read => call.is_none() && !open_path(task.pid, registers.rdi).is_absolute(),
            libc::SYS_recvfrom
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_futex
            | libc::SYS_pause
            | libc::SYS_clone
            | libc::SYS_clone3
            | libc::SYS_vfork => true,
            _ => false,
        };
        match call {
            Some(call) if number == libc::SYS_flock && waits => {
                registers.rsi |= libc::LOCK_NB as u64;
                let _ = ptrace::setregs(task.pid, registers);
                task.at_return = Some(Return::Lock(call));
                let _ = ptrace::syscall(task.pid, None);
            }
            Some(call)
                if matches!(number, libc::SYS_read | libc::SYS_pread64)
                    && call.path.ends_with("stat") =>
            {
                task.at_return = Some(Return::Stat(registers.rsi));
                let _ = ptrace::syscall(task.pid, None);
            }
            Some(_) if number == libc::SYS_sendto => {
                task.at_return = Some(Return::Answer(registers.rdi));
                let _ = ptrace::syscall(task.pid, None);
            }
            _ => {
                let _ = ptrace::cont(task.pid, None);
            }
        }
    }

    fn returned(&mut self, at: usize) {
        let task = &mut self.tasks[at];
        task.may_sleep = false;
        let Ok(mut registers) = ptrace::getregs(task.pid) else {
            return;
        };
        match task.at_return.take() {
            Some(Return::Lock(mut call)) => {
                registers.rsi = call.registers.rsi;
                let _ = ptrace::setregs(task.pid, registers);
                if registers.rax == failed(libc::EAGAIN) {
                    call.registers = registers;
                    task.state = State::AwaitsLock(call);
                    return;
                }
            }
            Some(Return::Restore(original)) => {
                registers.rdx = original.rdx;
                task.deadline = None;
                if std::mem::take(&mut task.timed_out) {
                    registers.rax = 0;
                }
                let _ = ptrace::setregs(task.pid, registers);
            }
            Some(Return::Stat(text)) => show_as_running(task.pid, text, registers.rax),
            Some(Return::Number(number)) => {
                if let Some(address) = file_number_of(&registers) {
                    write_memory(task.pid, address, &number.to_ne_bytes());
                }
            }
            // Asked and answered is one step.
            Some(Return::Answer(socket)) => wait_for_answer(task.pid, socket),
            None => {}
        }
        let _ = ptrace::cont(task.pid, None);
    }

    /// Whether the call was left out or changed.
    fn plant(&mut self, at: usize, call: &Call) -> bool {
        let Some(flaw) = self.flaw else {
            return false;
        };
        let task = &mut self.tasks[at];
        let verb = self.words[task.tree].join(" ");
        let Some(change) = (flaw.change)(call, task.pid, &verb, self.planted) else {
            return false;
        };
        self.planted += 1;
        let mut registers = call.registers;
        match change {
            Change::Return(value) => {
                registers.orig_rax = u64::MAX;
                registers.rax = value.cast_unsigned();
            }
            Change::Registers(changed) => registers = *changed,
            Change::Number(number) => {
                task.at_return = Some(Return::Number(number));
                let _ = ptrace::syscall(task.pid, None);
                return true;
            }
        }
        let _ = ptrace::setregs(task.pid, registers);
        // A changed call may be one that sleeps.
        task.may_sleep = true;
        let _ = ptrace::cont(task.pid, None);
        true
    }
}

/// The lock of those that have nothing to do with the others.
const INNOCENT: &str = "innocent";

/// What commands are called: they end at once, by [`end_at_once`].
pub const COMMAND: &str = "/bin/true";

/// Of a call that is made again after a signal, unless that has a handler that says otherwise (`ERESTARTSYS` of
/// the kernel).
const ERESTARTSYS: i32 = 512;

fn failed(number: i32) -> u64 {
    i64::from(-number).cast_unsigned()
}

fn duration(bytes: &[u8]) -> Duration {
    let number = |part: &[u8]| u64::from_ne_bytes(part.try_into().unwrap());
    Duration::new(number(&bytes[..8]), number(&bytes[8..]) as u32)
}

/// Stops at the calls of [`STOPPING`].
pub fn seccomp_filter() -> Vec<libc::sock_filter> {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = 16;
    let statement = |code, jump_true, jump_false, value| libc::sock_filter {
        code,
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    let mut filter = vec![
        statement(LOAD, 0, 0, NUMBER),
        statement(JUMP_IF_EQUAL, 0, 3, libc::SYS_clone as u32),
        statement(LOAD, 0, 0, FIRST_ARGUMENT),
        statement(JUMP_IF_SET, 0, 1, OF_LAUNCHER),
        statement(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(LOAD, 0, 0, NUMBER),
    ];
    for (at, call) in STOPPING.iter().enumerate() {
        let rest = (STOPPING.len() - at) as u8;
        filter.push(statement(JUMP_IF_EQUAL, rest, 0, *call as u32));
    }
    filter.push(statement(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(RETURN, 0, 0, libc::SECCOMP_RET_TRACE));
    filter
}
