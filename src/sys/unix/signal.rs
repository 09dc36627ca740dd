//! Signals: blocked for a moment, queued for a supervisor, or used to end a wait.
//!
//! Nothing here happens unless the caller asks for it. Uses libc: rustix has no signals, and signal
//! crates deliver to a thread, which costs a wrapper more than all its other work.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::start::Started;
pub(crate) use crate::sys::system::alarm::Alarm;
pub use crate::sys::system::signal_queue::SignalQueue;

pub(in crate::sys) const SIGCHLD: i32 = libc::SIGCHLD;

/// Whether a child has ended; it is not reaped, so that its PID stays its own.
pub(in crate::sys) fn child_has_ended(pid: u32) -> io::Result<bool> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the place is ours, and zeroes are a valid value of it.
    let information = unsafe {
        if libc::waitid(libc::P_PID, pid, information.as_mut_ptr(), options) == -1 {
            return Err(io::Error::last_os_error());
        }
        information.assume_init()
    };
    Ok(information.si_signo != 0)
}

/// Signals that stop or end a process. Inside the guard that would leave other processes waiting.
const STOP_AND_TERMINATION: [i32; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Blocks stop and termination signals of the calling thread until it is dropped.
pub(crate) struct SignalBlock {
    before: libc::sigset_t,
    // The mask belongs to the thread that set it.
    _not_send: PhantomData<*const ()>,
}

impl SignalBlock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            before: change_mask(libc::SIG_BLOCK, &set_of(&STOP_AND_TERMINATION))?,
            _not_send: PhantomData,
        })
    }
}

impl Drop for SignalBlock {
    fn drop(&mut self) {
        let _ = change_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub struct SignalMask(pub(in crate::sys) libc::sigset_t);

impl SignalMask {
    /// The signals that are blocked in this thread now.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn current() -> io::Result<Self> {
        change_mask(libc::SIG_BLOCK, &set_of(&[])).map(Self)
    }

    /// Blocks all signals. Returns the mask before.
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
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "128 bytes on Linux")]
    pub(crate) fn set(&self) -> io::Result<()> {
        change_mask(libc::SIG_SETMASK, &self.0).map(drop)
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalMask").finish_non_exhaustive()
    }
}

static SIGALRM_IS_OURS: AtomicBool = AtomicBool::new(false);

/// Whether the program has allowed the use of SIGALRM.
pub(in crate::sys) fn sigalrm_is_ours() -> bool {
    SIGALRM_IS_OURS.load(Ordering::Relaxed)
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Lets the library use SIGALRM to end waits in the kernel at their limits, from any thread, and
/// installs a handler for it that does nothing.
///
/// A process has only one handler for it. A program that uses SIGALRM itself does not call this,
/// and the library polls instead, every 1 to 50 ms while it waits for a lock.
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

static FILE_SIZE_SIGNAL_IS_IGNORED_BY_US: AtomicBool = AtomicBool::new(false);

/// Ignores SIGXFSZ from now on, in the whole process, so that a write beyond RLIMIT_FSIZE fails
/// with EFBIG instead of ending the process (setrlimit(2)). Returns whether it was ignored before.
///
/// One system call. Not needed after [`SignalQueue::open`], which blocks the signal. A command that
/// is started by this library does not inherit what this call changed.
///
/// # Errors
/// Those of sigaction(2).
pub fn ignore_file_size_signal() -> io::Result<bool> {
    // SAFETY: SIG_IGN is no handler; the call has no memory effects of its own.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let was_ignored = before == libc::SIG_IGN;
    if !was_ignored {
        FILE_SIZE_SIGNAL_IS_IGNORED_BY_US.store(true, Ordering::Relaxed);
    }
    Ok(was_ignored)
}

/// Undoes [`ignore_file_size_signal`], in a child before it executes: an ignored signal stays so
/// (execve(2)). Async-signal-safe, and no system call unless there is something to undo.
pub(in crate::sys) fn reset_file_size_signal() {
    if FILE_SIZE_SIGNAL_IS_IGNORED_BY_US.load(Ordering::Relaxed) {
        // SAFETY: SIG_DFL is no handler; the call is async-signal-safe (signal-safety(7)).
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
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

/// Ends the calling process by `signal`, as if it had never been caught, so that its parent
/// (usually a shell) sees that. Returns only if the signal does not end a process.
pub fn exit_by_signal(signal: i32) {
    let set = set_of(&[signal]);
    // SAFETY: SIG_DFL is no handler; raise(3) has no memory effects.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let _ = change_mask(libc::SIG_UNBLOCK, &set);
        libc::raise(signal);
    }
}

/// The signal that ended a process, if one did.
#[must_use]
pub fn terminating_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
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

/// A pending signal that would end this process.
#[cfg(target_os = "linux")]
pub(in crate::sys) fn pending() -> Option<i32> {
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

pub(in crate::sys) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the kernel fills the old one.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

pub(in crate::sys) fn set_of(signals: &[i32]) -> libc::sigset_t {
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
pub(in crate::sys) fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are live; the kernel fills the second.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: zeroed above, then filled by the call.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_file_size_signal_is_reset_only_if_it_was_not_ignored_before() {
        // In a process of its own, since dispositions are those of all threads.
        // SAFETY: the child makes system calls, touches atomics and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let first = ignore_file_size_signal().is_ok_and(|was_ignored| !was_ignored);
            let ignored = is_ignored(libc::SIGXFSZ);
            reset_file_size_signal();
            let reset = !is_ignored(libc::SIGXFSZ);
            // SAFETY: ends this process alone.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                FILE_SIZE_SIGNAL_IS_IGNORED_BY_US.store(false, Ordering::Relaxed);
                let again = ignore_file_size_signal().is_ok_and(|was_ignored| was_ignored);
                reset_file_size_signal();
                let kept = is_ignored(libc::SIGXFSZ);
                libc::_exit(i32::from(!(first && ignored && reset && again && kept)));
            }
        }
        let mut status = 0;
        // SAFETY: waits for our own child, into a place of ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
