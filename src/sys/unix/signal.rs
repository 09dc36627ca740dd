//! Signals: blocked for a moment, queued for a supervisor, or used to end a wait.
//!
//! Nothing here happens unless the caller asks for it. Uses libc: rustix has no signals, and signal
//! crates deliver to a thread, which costs a wrapper more than all its other work.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
#[cfg(feature = "cli")]
use std::os::unix::thread::JoinHandleExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};

pub(crate) use super::alarm::Alarm;
use super::checked;
use super::process::kill;
pub use super::signal_queue::SignalQueue;
use crate::sys::start::Started;

pub(in crate::sys) const SIGCHLD: i32 = libc::SIGCHLD;
pub(in crate::sys) const SIGTSTP: Option<i32> = Some(libc::SIGTSTP);

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
    before: SignalMask,
    // The mask belongs to the thread that set it.
    _not_send: PhantomData<*const ()>,
}

impl SignalBlock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            before: SignalMask::block(set_of(&STOP_AND_TERMINATION))?,
            _not_send: PhantomData,
        })
    }
}

impl Drop for SignalBlock {
    fn drop(&mut self) {
        let _ = self.before.set();
    }
}

/// A set of blocked signals.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask(pub(in crate::sys) libc::sigset_t);

impl SignalMask {
    /// Blocks signals, too. Returns the mask before.
    pub(in crate::sys) fn block(signals: libc::sigset_t) -> io::Result<Self> {
        change_mask(libc::SIG_BLOCK, &signals).map(Self)
    }

    /// Blocks all signals. Returns the mask before.
    pub(crate) fn block_all() -> io::Result<Self> {
        change_mask(libc::SIG_SETMASK, &all_signals()).map(Self)
    }

    /// Blocks these, and no others. Async-signal-safe (signal-safety(7)).
    pub(crate) fn set(&self) -> io::Result<()> {
        change_mask(libc::SIG_SETMASK, &self.0).map(drop)
    }
}

static SIGALRM_IS_OURS: AtomicBool = AtomicBool::new(false);

/// Whether the program has allowed the use of SIGALRM. If so its handler is there from now on.
pub(in crate::sys) fn catch_sigalrm() -> bool {
    static IS_CAUGHT: OnceLock<Option<()>> = OnceLock::new();
    let catch = || {
        // Without SA_RESTART, so that flock(2) fails with EINTR (signal(7)).
        let noticed = action(do_nothing as *const () as libc::sighandler_t, 0);
        let before = change_action(libc::SIGALRM, Some(&noticed)).ok()?;
        note_callers(libc::SIGALRM, before.sa_sigaction == libc::SIG_IGN);
        Some(())
    };
    SIGALRM_IS_OURS.load(Ordering::Relaxed) && IS_CAUGHT.get_or_init(catch).is_some()
}

/// Ends a blocking call of a thread whose sleeps an alarm may end. One that it makes afterwards is not ended.
#[cfg(feature = "cli")]
pub fn interrupt<T>(thread: &std::thread::JoinHandle<T>) {
    if catch_sigalrm() {
        let thread = thread.as_pthread_t() as libc::pthread_t;
        // SAFETY: the thread has been neither joined nor detached, so that its number is valid.
        unsafe { libc::pthread_kill(thread, libc::SIGALRM) };
    }
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Lets the library use SIGALRM to end waits in the kernel at their limits, from any thread. The first
/// wait installs a handler for it that does nothing.
///
/// A process has only one handler for it, so a program that uses SIGALRM itself does not call this. Its waits
/// are woken by changes of the lock file and by the end of the holder's process instead. They poll, every 1 to
/// 50 ms, only if the holder's process is in another PID namespace or nothing is left to watch it with.
pub fn use_sigalrm() {
    SIGALRM_IS_OURS.store(true, Ordering::Relaxed);
}

/// Bit `n`: this process has changed the disposition of signal `n` for itself, which was the default
/// before. A command gets back what the caller had: an ignored signal stays ignored across execve(2), and
/// a caught one would still be caught between fork and exec.
static WERE_DEFAULT: AtomicU64 = AtomicU64::new(0);

/// Bit `n`: this process has changed the disposition of signal `n`, which was ignored before.
static WERE_IGNORED: AtomicU64 = AtomicU64::new(0);

/// Notes what was before, the first time that a signal is changed.
fn note_callers(signal: i32, was_ignored: bool) {
    let bit = 1_u64 << (signal & 63);
    let known = WERE_DEFAULT.load(Ordering::Relaxed) | WERE_IGNORED.load(Ordering::Relaxed);
    if known & bit == 0 {
        let noted = if was_ignored {
            &WERE_IGNORED
        } else {
            &WERE_DEFAULT
        };
        noted.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Notes what SIGPIPE was when the program was started. Rust's runtime ignores it after that.
#[cfg(all(feature = "cli", not(target_os = "linux")))]
pub(in crate::sys) fn note_callers_sigpipe() {
    note_callers(libc::SIGPIPE, is_ignored(libc::SIGPIPE));
}

/// Ignores SIGXFSZ from now on, in the whole process, so that a write beyond RLIMIT_FSIZE fails
/// with EFBIG instead of ending the process (setrlimit(2)). Returns whether it was ignored before.
///
/// One system call. Not needed after [`SignalQueue::open`], which blocks the signal. A command that
/// is started by this library does not inherit what this call changed.
///
/// # Errors
/// Those of sigaction(2).
pub fn ignore_file_size_signal() -> io::Result<bool> {
    replace_disposition(libc::SIGXFSZ, libc::SIG_IGN)
}

/// Sets a disposition that is no handler, for this process and not for its commands. Returns whether
/// the signal was ignored before.
pub(in crate::sys) fn replace_disposition(
    signal: i32,
    disposition: libc::sighandler_t,
) -> io::Result<bool> {
    let before = change_action(signal, Some(&action(disposition, 0)))?.sa_sigaction;
    let was_ignored = before == libc::SIG_IGN;
    // One that stays ignored is noted, too: std gives SIGPIPE its default before it executes a command.
    if before != disposition || was_ignored {
        note_callers(signal, was_ignored);
    }
    Ok(was_ignored)
}

/// Sets all dispositions back to what the caller had, in a child before it executes. Async-signal-safe,
/// and one system call for each signal that this process has changed.
pub(in crate::sys) fn restore_callers_dispositions() {
    restore(WERE_DEFAULT.load(Ordering::Relaxed));
}

/// Restores what std and execve(2) do not, before std executes a command: std sets SIGPIPE to its default, and
/// execve(2) resets caught signals.
pub(in crate::sys) fn restore_callers_dispositions_before_exec() {
    restore(WERE_DEFAULT.load(Ordering::Relaxed) & (1 << libc::SIGXFSZ));
}

/// Sets these signals to their defaults, and those that the caller ignored are ignored again.
fn restore(defaults: u64) {
    for (noted, disposition) in [
        (defaults, libc::SIG_DFL),
        (WERE_IGNORED.load(Ordering::Relaxed), libc::SIG_IGN),
    ] {
        let mut left = noted;
        while left != 0 {
            let signal = left.trailing_zeros();
            left &= left - 1;
            // SAFETY: no handler; the call is async-signal-safe (signal-safety(7)).
            unsafe { libc::signal(signal.cast_signed(), disposition) };
        }
    }
}

/// Sends a signal to a child that has not been waited for yet, so that its pid is still its own.
///
/// # Errors
/// Those of kill(2).
pub fn send(child: &Started, signal: i32) -> io::Result<()> {
    kill(child.id().cast_signed(), signal)
}

/// The process that a terminal has sent a signal to, and its group: a keeper is none that a terminal knows.
fn terminals_view() -> (libc::pid_t, libc::pid_t) {
    #[cfg(all(feature = "cluster", target_os = "linux"))]
    if let (Some(wrapper), Some(group)) = (
        crate::sys::keeper::wrapper(),
        crate::sys::keeper::wrapper_group(),
    ) {
        return (wrapper.get().cast_signed(), group);
    }
    // SAFETY: these only return numbers.
    unsafe { (libc::getpid(), libc::getpgrp()) }
}

/// Passes on a signal that a terminal sent to this process, if the terminal did not send it to the
/// child too: the child has a process group of its own, or only the leader of the session was told
/// that the terminal is gone (`session_only`). A child that leads its group gets it together with
/// that group, as from a terminal.
///
/// # Errors
/// Those of kill(2).
pub fn send_from_terminal(child: &Started, signal: i32, session_only: bool) -> io::Result<()> {
    let pid = child.id().cast_signed();
    let (own_pid, own) = terminals_view();
    // SAFETY: these only return numbers.
    let (theirs, leads_session) = unsafe { (libc::getpgid(pid), libc::getsid(own_pid) == own_pid) };
    if theirs == pid && theirs != own {
        // A positive number of a group that our own child leads.
        kill(-pid, signal)
    } else if theirs != own || (session_only && leads_session) {
        kill(pid, signal)
    } else {
        Ok(())
    }
}

/// Whether the parent belongs to another session, so that the kernel does not stop the calling process.
fn is_parent_of_another_session() -> bool {
    // SAFETY: these only return numbers.
    unsafe { libc::getsid(libc::getppid()) != libc::getsid(0) }
}

/// Stops the calling process as Ctrl-Z does, and returns once it continues. The kernel does not stop
/// a process whose group is orphaned (setpgid(2)).
///
/// `with`: the terminal sent the signal, and a child to which it did not send it stops and continues
/// too.
///
/// # Errors
/// Those of kill(2), if the child cannot be signaled. This process was stopped nevertheless.
pub fn stop(with: Option<&Started>) -> io::Result<()> {
    // A process that the child is just forking would stay stopped if CONT followed at once: Linux hands the stop on to
    // the new process, and drops a CONT that the child ignores because it has not stopped yet.
    let with = with.filter(|_| !is_parent_of_another_session());
    let passed_on = with.map(|child| send_from_terminal(child, libc::SIGTSTP, false));
    let signals = set_of(&[libc::SIGTSTP]);
    let before = change_action(libc::SIGTSTP, Some(&action(libc::SIG_DFL, 0))).ok();
    // SAFETY: raise(3) has no memory effects.
    unsafe { libc::raise(libc::SIGTSTP) };
    if let Ok(mask) = change_mask(libc::SIG_UNBLOCK, &signals) {
        let _ = change_mask(libc::SIG_SETMASK, &mask);
    }
    if let Some(before) = before {
        let _ = change_action(libc::SIGTSTP, Some(&before));
    }
    let continued = with.map(|child| send_from_terminal(child, libc::SIGCONT, false));
    passed_on.into_iter().chain(continued).collect()
}

/// The signal that came last of those of [`tell_signals_apart`]; 0: none.
static LAST_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The number that came last with TERM, by sigqueue(3).
static LAST_NUMBER: AtomicI64 = AtomicI64::new(NO_NUMBER);

const NO_NUMBER: i64 = i64::MAX;

/// The handler that was there before, one for INT, TERM and HUP.
static NEXT_HANDLER: AtomicUsize = AtomicUsize::new(0);

const TOLD_APART: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Runs `install`, which sets one handler for INT, TERM and HUP, as `ctrlc` does, and lets [`last_signal`] say
/// which of them has come. One that was ignored before is ignored again. A thread that `install` starts takes no
/// signals.
pub fn tell_signals_apart(install: impl FnOnce()) {
    let before = TOLD_APART.map(|signal| (signal, is_ignored(signal)));
    for (signal, is_ignored) in before {
        // A handler would be taken for what the caller had.
        note_callers(signal, is_ignored);
    }
    // What comes meanwhile is for the last handler.
    let _ = without_signals(|| {
        install();
        for (signal, was_ignored) in before {
            let Ok(mut action) = change_action(signal, None) else {
                continue;
            };
            let ours = our_handler();
            let handler = action.sa_sigaction;
            let is_plain = action.sa_flags & libc::SA_SIGINFO == 0;
            if was_ignored {
                action.sa_sigaction = libc::SIG_IGN;
            } else if is_plain && ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&handler) {
                NEXT_HANDLER.store(handler, Ordering::SeqCst);
                // The new one is of the same kind and has the same flags.
                action.sa_sigaction = ours;
                action.sa_flags |= libc::SA_SIGINFO;
            }
            let _ = change_action(signal, Some(&action));
        }
    });
}

/// INT, TERM and HUP do nothing from here on, except that [`last_signal`] returns them. One that is ignored or has a
/// handler stays so.
pub fn note_signals() {
    let noting = action(our_handler(), libc::SA_RESTART | libc::SA_SIGINFO);
    replace_actions(libc::SIG_DFL, &noting);
}

/// Undoes [`tell_signals_apart`] and [`note_signals`]: INT, TERM and HUP have their default action again. One that is
/// ignored stays so. [`last_signal`] still returns one that came before.
pub fn stop_telling_signals_apart() {
    replace_actions(our_handler(), &action(libc::SIG_DFL, 0));
}

/// Sets what each of INT, TERM and HUP does, if it does `before` now.
fn replace_actions(before: libc::sighandler_t, action: &libc::sigaction) {
    for signal in TOLD_APART {
        if change_action(signal, None).is_ok_and(|now| now.sa_sigaction == before) {
            note_callers(signal, false);
            let _ = change_action(signal, Some(action));
        }
    }
}

/// The signal that came last, since [`tell_signals_apart`] or [`note_signals`] was called.
pub fn last_signal() -> Option<i32> {
    Some(LAST_SIGNAL.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// The number that came last with TERM since then: see [`QueuedSignal::value`](crate::sys::QueuedSignal).
pub fn last_number() -> Option<i32> {
    i32::try_from(LAST_NUMBER.load(Ordering::SeqCst)).ok()
}

fn our_handler() -> libc::sighandler_t {
    note_and_call as *const () as libc::sighandler_t
}

/// Async-signal-safe if the handler that it calls is.
extern "C" fn note_and_call(
    signal: libc::c_int,
    info: *const libc::siginfo_t,
    _context: *const libc::c_void,
) {
    // SAFETY: the kernel passes it to a handler that was installed with SA_SIGINFO, as this one is.
    if let Some(number) = unsafe { number_of(signal, info) } {
        LAST_NUMBER.store(number.into(), Ordering::SeqCst);
    }
    LAST_SIGNAL.store(signal, Ordering::SeqCst);
    let next = NEXT_HANDLER.load(Ordering::SeqCst);
    if next != 0 {
        // SAFETY: it was installed as a handler of this kind.
        let next = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(next) };
        next(signal);
    }
}

/// The number that came with TERM.
///
/// # Safety
/// `info` is that of this signal.
#[cfg(target_os = "linux")]
unsafe fn number_of(signal: libc::c_int, info: *const libc::siginfo_t) -> Option<i32> {
    // SAFETY: as the caller says. Of a queued signal the value is there, a union whose first bytes are the number.
    unsafe {
        let has_number = signal == libc::SIGTERM && (*info).si_code == libc::SI_QUEUE;
        has_number.then(|| {
            let value = (*info).si_value();
            (&raw const value).cast::<libc::c_int>().read()
        })
    }
}

/// No number is sent here.
#[cfg(not(target_os = "linux"))]
unsafe fn number_of(_signal: libc::c_int, _info: *const libc::siginfo_t) -> Option<i32> {
    None
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

/// Sends TERM to the calling process: to its first thread, where the kernel can, because others may not block it.
pub fn terminate_self() {
    let own = std::process::id().cast_signed();
    #[cfg(target_os = "linux")]
    // SAFETY: no memory is involved. The first thread has the number of the process.
    unsafe {
        libc::syscall(libc::SYS_tgkill, own, own, libc::SIGTERM);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = kill(own, libc::SIGTERM);
}

/// The signal that ended a process, if one did.
pub fn terminating_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Runs `start` with every signal but the faults blocked in this thread, so that threads begun by
/// it inherit that and leave all signals to this one.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = SignalMask::block_all()?;
    let value = start();
    // What was started runs, whatever becomes of this: to fail now would give the lock of a command away.
    let _ = before.set();
    Ok(value)
}

/// Whether the caller of this process ignored a signal, whatever this process has made of that.
pub(in crate::sys) fn was_ignored(signal: i32) -> bool {
    let bit = 1_u64 << (signal & 63);
    let has = |noted: &AtomicU64| noted.load(Ordering::Relaxed) & bit != 0;
    has(&WERE_IGNORED) || (!has(&WERE_DEFAULT) && is_ignored(signal))
}

pub(in crate::sys) fn is_ignored(signal: i32) -> bool {
    change_action(signal, None).is_ok_and(|action| action.sa_sigaction == libc::SIG_IGN)
}

/// A handler, which is async-signal-safe and of the kind that the flags say, or what stands for none.
pub(in crate::sys) fn action(handler: libc::sighandler_t, flags: i32) -> libc::sigaction {
    // SAFETY: all-zero is a valid sigaction, with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Sets what a signal does; `None` only asks. Returns what it did before.
pub(in crate::sys) fn change_action(
    signal: i32,
    action: Option<&libc::sigaction>,
) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the new one is live or null; the kernel fills the old one.
    unsafe {
        checked(libc::sigaction(signal, action, before.as_mut_ptr()))?;
        Ok(before.assume_init())
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

/// All signals. Where that can be done also those that the C library keeps for itself: they end a
/// process as well, if another process sends them.
pub(in crate::sys) fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set. On Linux it begins with the kernel's, one bit for each
    // signal.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        #[cfg(target_os = "linux")]
        set.as_mut_ptr()
            .cast::<KernelSignalSet>()
            .write_unaligned(!0);
        set.assume_init()
    }
}

/// The kernel's set of signals (rt_sigprocmask(2)).
#[cfg(target_os = "linux")]
type KernelSignalSet = u64;

/// Returns the mask before. Async-signal-safe.
pub(in crate::sys) fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // By the kernel's own call: that of the C library leaves out the signals that it uses.
    #[cfg(target_os = "linux")]
    // SAFETY: both sets are live, and at least as long as the size says; the kernel fills the second.
    checked(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            ptr::from_ref(set),
            before.as_mut_ptr(),
            size_of::<KernelSignalSet>(),
        )
    })?;
    #[cfg(not(target_os = "linux"))]
    // SAFETY: both sets are live; the kernel fills the second.
    checked(unsafe { libc::sigprocmask(how, set, before.as_mut_ptr()) })?;
    // SAFETY: zeroed above, then filled by the call.
    Ok(unsafe { before.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_dispositions_are_restored_to_what_the_caller_had() {
        // In a process of its own, since dispositions are those of all threads.
        // SAFETY: the child makes system calls, touches atomics and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no handlers; ends this process alone.
            unsafe {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                let first = ignore_file_size_signal().is_ok_and(|was_ignored| !was_ignored);
                let again = ignore_file_size_signal().is_ok_and(|was_ignored| was_ignored);
                let of_children = replace_disposition(libc::SIGCHLD, libc::SIG_DFL);
                let changed = is_ignored(libc::SIGXFSZ) && !is_ignored(libc::SIGCHLD);
                restore_callers_dispositions();
                let restored = !is_ignored(libc::SIGXFSZ) && is_ignored(libc::SIGCHLD);
                let all = first && again && of_children.is_ok_and(|was| was) && changed && restored;
                libc::_exit(i32::from(!all));
            }
        }
        let mut status = 0;
        // SAFETY: waits for our own child, into a place of ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
