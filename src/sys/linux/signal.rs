//! Signals: held back for a moment, queued for a supervisor, or used to cut a wait short.
//!
//! Nothing here is done unless its caller asks for it. `signalfd` and POSIX timers come from libc:
//! rustix has neither, and signal crates deliver to a thread, which costs a wrapper more than its
//! whole other work.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::start::Started;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Stops or ends that would leave others waiting if they struck inside the guard.
const HELD_BACK: [i32; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// While it lives, stop and termination signals to the calling thread wait.
pub(crate) struct HeldBack {
    before: libc::sigset_t,
    // The mask belongs to the thread that set it.
    _not_send: PhantomData<*const ()>,
}

impl HeldBack {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            before: change_mask(libc::SIG_BLOCK, &set_of(&HELD_BACK))?,
            _not_send: PhantomData,
        })
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        let _ = change_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// A signal taken from a [`SignalQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number (signal(7)).
    pub signal: i32,
    /// A process sent it with kill(2) or the like. Otherwise the kernel did: a terminal's Ctrl-C
    /// goes to every process of the foreground group already.
    pub from_process: bool,
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Those that are blocked in this thread now.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn current() -> io::Result<Self> {
        change_mask(libc::SIG_BLOCK, &set_of(&[])).map(Self)
    }

    /// Blocks all; what was blocked before.
    pub(crate) fn block_all() -> io::Result<Self> {
        let mut all = std::mem::MaybeUninit::uninit();
        // SAFETY: fills the set and nothing else.
        let all = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            all.assume_init()
        };
        change_mask(libc::SIG_SETMASK, &all).map(Self)
    }

    pub(crate) fn restore(self) -> io::Result<()> {
        self.set()
    }

    /// Async-signal-safe (signal-safety(7)).
    pub(crate) fn set(&self) -> io::Result<()> {
        change_mask(libc::SIG_SETMASK, &self.0).map(drop)
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalMask").finish_non_exhaustive()
    }
}

/// Signals of the calling thread, queued instead of acted upon: for a program that supervises a
/// command and must pass them on.
///
/// Queued are INT, QUIT, HUP, TERM, USR1, USR2 and CHLD, without those that the process ignores
/// (`nohup`, a background job of a shell). Children inherit what is blocked, so a command started
/// while there is a queue needs [`spare`](SignalQueue::spare).
pub struct SignalQueue {
    queue: OwnedFd,
    before: libc::sigset_t,
}

impl SignalQueue {
    /// Begins to queue. The signals stay blocked in this thread for good: what a supervisor left
    /// over would otherwise end it on its last steps.
    ///
    /// CHLD is set back to its default, because a process that inherited it as ignored could not
    /// learn how its command ended (wait(2)).
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn open() -> io::Result<Self> {
        // SAFETY: SIG_DFL is no handler; the call has no memory effects of its own.
        if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let mut signals = vec![libc::SIGCHLD];
        let passed_on = [
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGHUP,
            libc::SIGTERM,
            libc::SIGUSR1,
            libc::SIGUSR2,
        ];
        signals.extend(passed_on.into_iter().filter(|signal| !is_ignored(*signal)));
        let set = set_of(&signals);
        let before = change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: `set` is initialised and outlives the call; -1 asks for a new descriptor.
        let raw =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
            queue: unsafe { OwnedFd::from_raw_fd(raw) },
            before,
        })
    }

    /// Lets a command begin with the signals blocked that were blocked before there was a queue.
    pub fn spare(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: pthread_sigmask is async-signal-safe (signal-safety(7)), and nothing else is
        // called.
        unsafe {
            command.pre_exec(move || change_mask(libc::SIG_SETMASK, &before).map(drop));
        }
    }

    /// The signals that were blocked before there was a queue, for
    /// [`Hold::start`](crate::Hold::start).
    #[must_use]
    pub fn mask_before(&self) -> SignalMask {
        SignalMask(self.before)
    }

    /// Whether a signal that ends a process is waiting in the queue. Takes none.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        pending().is_some()
    }

    /// Takes the first signal that ends a process out of the queue: for a supervisor that has not
    /// started its command yet, and so is meant itself.
    #[must_use]
    pub fn take_ending(&self) -> Option<i32> {
        let signal = pending()?;
        while let Ok(Some(received)) = self.take() {
            if received.signal == signal {
                break;
            }
        }
        Some(signal)
    }

    /// The next signal, or `None` when `timeout` has passed without one (`None`: no limit).
    ///
    /// # Errors
    /// Those of poll(2) and read(2).
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Option<Received>> {
        if let Some(received) = self.take()? {
            return Ok(Some(received));
        }
        let mut fds = [PollFd::new(&self.queue, PollFlags::IN)];
        match poll(&mut fds, timespec(timeout).as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.take(),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&self) -> io::Result<Option<Received>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes of plain data, for which every bit pattern is valid.
        let read = unsafe { libc::read(self.queue.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) == Ok(size) {
            // SAFETY: zeroed above, then filled by the kernel.
            let info = unsafe { info.assume_init() };
            return Ok(Some(Received {
                signal: info.ssi_signo.cast_signed(),
                // SI_USER, SI_QUEUE, SI_TKILL are 0 or below; what the kernel sends is above.
                from_process: info.ssi_code <= 0,
            }));
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            error => Err(error),
        }
    }
}

impl std::fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalQueue")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

static SIGALRM_IS_OURS: AtomicBool = AtomicBool::new(false);

/// Lets the library use SIGALRM to end waits in the kernel at their limits, from any thread, and
/// installs a handler for it that does nothing.
///
/// A process has only one handler for it: a program that uses SIGALRM itself does not call this,
/// and then the library looks again from time to time, 10 times a second where it waits for a
/// lock.
///
/// # Errors
/// Those of sigaction(2).
pub fn use_sigalrm() -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction; the handler does nothing and so is
    // async-signal-safe. Without SA_RESTART, so that flock(2) fails with EINTR (signal(7)).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as *const () as libc::sighandler_t;
        if libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    SIGALRM_IS_OURS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Cuts blocking calls of the thread that made it short.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: libc::timer_t,
    // The timer signals the thread that created it.
    _not_send: PhantomData<*const ()>,
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

impl Alarm {
    /// `None` where the program has not said that SIGALRM may be used.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        if !SIGALRM_IS_OURS.load(Ordering::Relaxed) {
            return Ok(None);
        }
        change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGALRM]))?;
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: all-zero is a valid sigevent; both pointers are to live locals. BOOTTIME, so
        // that a suspended machine does not stretch the limit.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            if libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Some(Self {
            timer,
            _not_send: PhantomData,
        }))
    }

    /// Interrupts once `after` has passed, and again every 20 ms until cleared: one signal could
    /// come just before the call it is meant for.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        // All-zero would disarm.
        self.arm(
            after.max(Duration::from_micros(1)),
            Duration::from_millis(20),
        )
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        self.arm(Duration::ZERO, Duration::ZERO)
    }

    fn arm(&self, first: Duration, then: Duration) -> io::Result<()> {
        let times = libc::itimerspec {
            it_value: libc_timespec(first),
            it_interval: libc_timespec(then),
        };
        // SAFETY: the timer is ours until drop; `times` outlives the call.
        if unsafe { libc::timer_settime(self.timer, 0, &raw const times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: created by us, deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Sends a signal to a child that has not been waited for yet, so that its pid is still its own.
///
/// # Errors
/// Those of kill(2).
pub fn send(child: &Started, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: no memory is involved; the pid is positive and that of our own child.
    if unsafe { libc::kill(pid, signal) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ends the calling process by `signal`, as if it had never been caught, so that whoever started
/// it (a shell above all) sees that. Returns only if the signal does not end a process.
pub fn end_by(signal: i32) {
    let set = set_of(&[signal]);
    // SAFETY: SIG_DFL is no handler; raise(3) has no memory effects.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let _ = change_mask(libc::SIG_UNBLOCK, &set);
        libc::raise(signal);
    }
}

/// Runs `start` with every signal but the faults blocked in this thread, so that threads begun by
/// it inherit that and leave all signals to this one.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    };
    let before = change_mask(libc::SIG_SETMASK, &all)?;
    let value = start();
    change_mask(libc::SIG_SETMASK, &before)?;
    Ok(value)
}

/// A signal that waits to end this process.
fn pending() -> Option<i32> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the kernel fills the set; sigismember reads it.
    unsafe {
        if libc::sigpending(set.as_mut_ptr()) != 0 {
            return None;
        }
        let set = set.assume_init();
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]
            .into_iter()
            .find(|signal| libc::sigismember(&raw const set, *signal) == 1)
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the kernel fills the old one.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set; sigaddset fails only for numbers that are none.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Returns the mask before.
fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are live; the kernel fills the second.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: zeroed above, then filled by the call.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

pub(super) fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    let timeout = timeout?;
    Some(Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    })
}

fn libc_timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        // 68 years are as good as any longer time, and fit whatever the width of the type.
        tv_sec: i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).into(),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
