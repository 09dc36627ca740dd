//! The two processes of a `run` whose lock is kept by a lease: a keeper, which does everything with the store
//! and has the command as its child, and a wrapper, which has the signals and the exit code, and watches the
//! keeper. Either ends the work in time if the other one is stopped; if the keeper is killed, the kernel
//! kills the command.
//!
//! The kernel resumes whichever process is stopped while there is something to do for it: the keeper once the work
//! has to be over, by a timer; the wrapper once the keeper has ended, by a pipe.
//!
//! Both share a page: until when the work may run, and what gives the hold back.

use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::process::ExitStatus;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_name};

use super::children::{own_children, wait_for_child};
use super::process::{boottime, boottime_milliseconds};
use super::timer::Timer;
use super::wait::pause;
use super::work::{adopt_orphans, kill_descendants, sigval};
use crate::identity::{Pid, ProcessId};
use crate::sys::QueuedSignal;
use crate::sys::unix::checked;
use crate::sys::unix::process::how_child_ended;

/// Room for a request that gives a hold back; twice, so that one is whole while the other is written.
const REQUEST_BYTES: usize = 128 * 1024;

/// How long after its deadline a keeper is continued that was stopped. Its wrapper has acted by then, unless it is
/// stopped or dead itself.
const LATE: Duration = Duration::from_millis(200);

/// How often after that, since it may be stopped again.
const AGAIN: Duration = Duration::from_millis(100);

/// Sent with a signal that a terminal has sent to the wrapper.
const FROM_TERMINAL: i32 = 0x7E41;

/// What wrapper and keeper share.
struct Page {
    /// The keeper has the lock. Until then it takes it, or waits for it.
    has_lock: AtomicBool,
    wrapper: AtomicI32,
    group: AtomicI32,
    /// When nothing of the work may run any more, by the boot-time clock in milliseconds. 0: there is none.
    kill_at_ms: AtomicU64,
    /// Where the valid one of the requests begins, in the upper half, and its length; 0: there is none.
    valid: AtomicU64,
    requests: UnsafeCell<[u8; 2 * REQUEST_BYTES]>,
}

// SAFETY: everything but the requests is atomic; those are written by one thread at a time, and read by
// another process once that has ended.
unsafe impl Sync for Page {}

/// Set in both processes when there is a keeper.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The work may run on without the lock.
static HAS_NO_END: AtomicBool = AtomicBool::new(false);

/// Whether the calling process is the keeper.
static IS_KEEPER: AtomicBool = AtomicBool::new(false);

/// Set in the keeper once it has the lock. The first continues it. The second wakes its supervisor, whose pause
/// would only go on.
static CONTINUE: OnceLock<[Timer; 2]> = OnceLock::new();

fn page() -> Option<&'static Page> {
    // SAFETY: a page that is mapped for good, and changed only through atomics and as `requests` says.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn own_page() -> Option<&'static Page> {
    page().filter(|_| is_keeper())
}

/// Whether the calling process is the keeper of a command.
pub(crate) fn is_keeper() -> bool {
    IS_KEEPER.load(Ordering::Relaxed)
}

/// The wrapper that the calling process keeps a hold for.
#[must_use]
pub fn wrapper() -> Option<Pid> {
    let pid = own_page()?.wrapper.load(Ordering::Relaxed);
    Pid::new(u32::try_from(pid).ok()?)
}

/// The process group to which a terminal sends its signals: that of the wrapper.
pub(in crate::sys) fn wrapper_group() -> Option<libc::pid_t> {
    Some(own_page()?.group.load(Ordering::Relaxed))
}

/// Tells the wrapper until when the work may run (0: there is no end), and what gives the hold back if this
/// process is killed.
pub(crate) fn tell_wrapper(kill_at_ms: u64, request: &[u8]) {
    let Some(page) = own_page() else {
        return;
    };
    if !HAS_NO_END.load(Ordering::Relaxed) {
        page.kill_at_ms.store(kill_at_ms, Ordering::SeqCst);
        let _ = CONTINUE
            .get()
            .map(|timers| continue_after(timers, kill_at_ms));
    }
    if request.len() > REQUEST_BYTES {
        return;
    }
    let is_first = page.valid.load(Ordering::Acquire) >> 32 == 0;
    let begin = if is_first { REQUEST_BYTES } else { 0 };
    // SAFETY: the wrapper reads the other one, and only once this process has ended; of this process one
    // thread at a time calls this, while it holds the lock of its state.
    unsafe {
        let place = page.requests.get().cast::<u8>().add(begin);
        ptr::copy_nonoverlapping(request.as_ptr(), place, request.len());
    }
    let valid = (begin as u64) << 32 | request.len() as u64;
    page.valid.store(valid, Ordering::Release);
}

/// Has the kernel continue this process once nothing of the work may run any more. 0: there is no end.
fn continue_after(timers: &[Timer; 2], kill_at_ms: u64) -> io::Result<()> {
    if kill_at_ms == 0 {
        return Ok(());
    }
    let left = kill_at_ms.saturating_sub(boottime_milliseconds());
    let mut timers = timers.iter();
    timers.try_for_each(|timer| timer.set(Duration::from_millis(left) + LATE, AGAIN))
}

/// Nothing is to be ended any more.
pub(crate) fn work_is_over() {
    HAS_NO_END.store(true, Ordering::Relaxed);
    if let Some(page) = own_page() {
        page.kill_at_ms.store(0, Ordering::SeqCst);
    }
}

/// Wakes the thread that supervises the command.
pub(crate) fn wake_supervisor() {
    // SAFETY: no memory is involved. The signal is ignored by default, and queued by a supervisor.
    unsafe { libc::kill(libc::getpid(), libc::SIGCHLD) };
}

/// What a signal that the keeper has received means. `None`: it is not for it.
pub(in crate::sys) fn admit(received: QueuedSignal, sender: u32) -> Option<QueuedSignal> {
    let Some(page) = own_page() else {
        return Some(received);
    };
    let is_of_wrapper = i32::try_from(sender) == Ok(page.wrapper.load(Ordering::Relaxed));
    let is_taking = !page.has_lock.load(Ordering::Relaxed);
    // Its own: see `terminate_self`.
    let is_own = received.signal == libc::SIGTERM && sender == std::process::id();
    if received.is_of_a_child() || is_own || (is_taking && !received.from_process) {
        return Some(received);
    }
    (is_of_wrapper || received.has_lost_value).then(|| QueuedSignal {
        from_process: received.value != Some(FROM_TERMINAL),
        value: None,
        ..received
    })
}

/// Since the hold is there, no key on a terminal, and not the end of the wrapper, ends the calling process from
/// now on. Who stops it does so until the work has to be over.
///
/// # Errors
/// Those of prctl(2) and timer_create(2).
pub(in crate::sys) fn begin_to_keep() -> io::Result<()> {
    let Some(page) = own_page() else {
        return Ok(());
    };
    set_parent_process_death_signal(None)?;
    let timers = [
        Timer::of_process(libc::SIGCONT)?,
        Timer::of_process(libc::SIGCHLD)?,
    ];
    continue_after(&timers, page.kill_at_ms.load(Ordering::SeqCst))?;
    let _ = CONTINUE.set(timers);
    // From now on the wrapper passes on what the terminal sends.
    page.has_lock.store(true, Ordering::SeqCst);
    Ok(())
}

/// Leaves the session of the wrapper, once the command has been started there: nothing that a terminal or a
/// process group gets reaches the calling process from now on, and a message on a terminal does not stop it (stty
/// tostop).
///
/// A process group of its own is not enough. As the parent of the command it would be in another group of the same
/// session, so that the end of the command could orphan a group with a stopped process, which then gets HUP
/// (exit(3)).
pub(in crate::sys) fn leave_session() {
    // It cannot fail: a keeper leads no process group.
    let _ = setsid();
}

/// Ends everything below the keeper in time if its supervisor does not. Runs in a thread of its own, which
/// does nothing with the network.
pub(crate) fn guard() -> io::Result<()> {
    let Some(page) = own_page() else {
        return Ok(());
    };
    let guard = move || {
        loop {
            let kill_at = page.kill_at_ms.load(Ordering::SeqCst);
            if kill_at == 0 {
                return;
            }
            if boottime_milliseconds() < kill_at {
                sleep_until(kill_at);
                continue;
            }
            let _ = kill_descendants(Pid::of_self(), &[]);
            let _ = pause(Duration::from_millis(20));
        }
    };
    crate::sys::start_thread("guard", 64 * 1024, guard)
}

/// Sleeps until a moment of the boot-time clock, in milliseconds: time for which the machine is suspended
/// counts, as it does not for other timeouts. May return earlier.
fn sleep_until(milliseconds: u64) {
    let left = milliseconds.saturating_sub(boottime_milliseconds());
    // By the clock of this time namespace.
    let until = boottime().saturating_add(Duration::from_millis(left));
    if let Ok(until) = until.try_into() {
        let _ = clock_nanosleep_absolute(ClockId::Boottime, &until);
    }
}

/// What a child does first: it gets this signal when its parent ends, and ends now if it has none any more.
/// Async-signal-safe.
pub(in crate::sys) fn leash(parent: libc::pid_t, signal: Signal) -> io::Result<()> {
    let is_set = set_parent_process_death_signal(Some(signal));
    // SAFETY: no memory is involved.
    unsafe {
        if libc::getppid() != parent {
            libc::_exit(127);
        }
    }
    Ok(is_set?)
}

/// Lets the work run on when its hold is lost: nothing of it is killed.
pub fn let_run_on() {
    HAS_NO_END.store(true, Ordering::Relaxed);
}

/// The keeper, as its wrapper sees it.
#[derive(Debug)]
pub struct Keeper {
    pid: libc::pid_t,
    /// Closed at its other end when the keeper ends.
    _end: io::PipeReader,
    /// The children that its wrapper had before.
    others: Vec<ProcessId>,
}

/// Forks a keeper. To be called before there is a connection or a thread. Returns it to the wrapper; `None`: the
/// calling process is the keeper.
///
/// # Errors
/// Those of mmap(2), pipe(2), fcntl(2), fork(2) and prctl(2).
pub fn fork() -> io::Result<Option<Keeper>> {
    // SAFETY: a new mapping, which both processes share; zeroes are a valid page.
    let page = unsafe {
        let page = libc::mmap(
            ptr::null_mut(),
            size_of::<Page>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        page.cast::<Page>()
    };
    PAGE.store(page, Ordering::Release);
    // SAFETY: it was mapped above.
    let shared = unsafe { &*page };
    // SAFETY: these return numbers.
    let (own, group) = unsafe { (libc::getpid(), libc::getpgrp()) };
    shared.wrapper.store(own, Ordering::Relaxed);
    shared.group.store(group, Ordering::Relaxed);
    let others = own_children();
    // What the command leaves behind when the keeper is killed comes to the wrapper.
    adopt_orphans()?;
    let (end, open) = io::pipe()?;
    signal_at_end(&end, libc::SIGCONT)?;
    // SAFETY: the caller has no other thread.
    match checked(unsafe { libc::fork() })? {
        0 => {
            IS_KEEPER.store(true, Ordering::Relaxed);
            let _ = ManuallyDrop::new(open);
            let _ = set_name(c"onehold-keeper");
            let _ = leash(own, Signal::TERM);
            Ok(None)
        }
        pid => Ok(Some(Keeper {
            pid,
            others,
            _end: end,
        })),
    }
}

/// Has the kernel send a signal to this process when the other end of the pipe is closed, which it does to a stopped
/// process as well.
fn signal_at_end(pipe: &io::PipeReader, signal: i32) -> io::Result<()> {
    // fcntl(2). libc does not have it for every system.
    const F_SETSIG: libc::c_int = 10;
    let set = |command, value: libc::c_int| {
        // SAFETY: a descriptor of ours, and numbers.
        checked(unsafe { libc::fcntl(pipe.as_raw_fd(), command, value) }).map(drop)
    };
    // SAFETY: it returns a number.
    set(libc::F_SETOWN, unsafe { libc::getpid() })?;
    set(F_SETSIG, signal)?;
    set(libc::F_SETFL, libc::O_ASYNC)
}

impl Keeper {
    /// Whether it has ended. It is not reaped.
    pub fn has_ended(&self) -> bool {
        !matches!(how_child_ended(self.pid.unsigned_abs()), Ok(None))
    }

    /// Whether it has had the lock.
    pub fn has_kept(&self) -> bool {
        page().is_some_and(|page| page.has_lock.load(Ordering::SeqCst))
    }

    /// When nothing of the work may run any more: how long until then. `None`: there is no work, or no end.
    pub fn time_left(&self) -> Option<Duration> {
        let kill_at = page()?.kill_at_ms.load(Ordering::SeqCst);
        let left = kill_at.saturating_sub(boottime_milliseconds());
        (kill_at != 0).then(|| Duration::from_millis(left))
    }

    /// Passes a signal on.
    pub fn pass_on(&self, received: QueuedSignal) {
        // The terminal has sent it to the keeper, too.
        if !received.from_process && !self.has_kept() {
            return;
        }
        let is_of_terminal = !received.from_process;
        let value = sigval(if is_of_terminal { FROM_TERMINAL } else { 0 });
        // SAFETY: the number is passed on, and points to nothing.
        unsafe { libc::sigqueue(self.pid, received.signal, value) };
    }

    /// Kills everything below the keeper, and the keeper itself.
    pub fn kill(&self) {
        if let Some(pid) = Pid::new(self.pid.unsigned_abs()) {
            let _ = kill_descendants(pid, &[]);
        }
        // SAFETY: a child that has not been reaped: the PID is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Kills what is left of its work, which has come to this process. Returns whether nothing is left.
    #[must_use]
    pub fn end_rest(&self) -> bool {
        kill_descendants(Pid::of_self(), &self.others)
    }

    /// What gives the hold back. `None`: there is none.
    pub fn request(&self) -> Option<Vec<u8>> {
        let page = page()?;
        let valid = page.valid.load(Ordering::Acquire);
        let [begin, length] = [valid >> 32, valid & u64::from(u32::MAX)]
            .map(|part| usize::try_from(part).unwrap_or(0).min(REQUEST_BYTES));
        // SAFETY: the keeper has ended, so that nobody writes there.
        let request = unsafe {
            let place = page.requests.get().cast::<u8>().add(begin);
            std::slice::from_raw_parts(place, length)
        };
        (valid != 0).then(|| request.to_vec())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(&self) -> io::Result<ExitStatus> {
        wait_for_child(self.pid)
    }
}
