//! Signals in a queue: a handler notes them, and a pipe wakes the thread that waits for them. macOS
//! has neither signalfd(2) nor sigwaitinfo(2).

use std::ffi::{c_int, c_void};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{getpgrp, getsid};
use rustix::termios::tcgetpgrp;

use crate::sys::signal::{SignalMask, action, change_action, change_mask, is_ignored, set_of};
use crate::sys::unix::signal_queue::ENDING;
use crate::sys::{QueuedSignal, locked};

/// The queued signals, in the order in which they are taken.
const SIGNALS: [i32; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGIO,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGTSTP,
    libc::SIGCHLD,
];

/// For each of [`SIGNALS`]: 0, or [`NOTED`] and the pid of its sender. Like in the kernel, one that
/// waits already does not wait twice.
static NOTES: [AtomicU64; SIGNALS.len()] = [const { AtomicU64::new(0) }; SIGNALS.len()];

const NOTED: u64 = 1 << 32;

/// The process that notes, and where it wakes itself, for the handler.
static OWNER: AtomicI32 = AtomicI32::new(0);
static WAKER: AtomicI32 = AtomicI32::new(-1);

/// Never closed: a handler may be about to write to it.
static PIPE: Mutex<Option<Pipe>> = Mutex::new(None);

struct Pipe {
    owner: i32,
    reader: PipeReader,
    _writer: PipeWriter,
}

/// Queued signals of the calling process, for a program that supervises a command and must forward
/// them.
///
/// Queued are INT, QUIT, HUP, TERM, TSTP, USR1, USR2, TRAP, SYS, IO, VTALRM, PROF, XCPU and CHLD,
/// without those that the process ignores (`nohup`, a background job of a shell). They are unblocked
/// in this thread, and XFSZ is blocked, so that a write beyond RLIMIT_FSIZE fails with EFBIG. So a
/// command started while there is a queue is started with [`mask_before`](SignalQueue::mask_before). A
/// process has one queue; opening it again shares it.
///
/// The system does not say whether a process or a terminal sent a signal. Taken for a terminal's
/// are INT, QUIT, HUP and TSTP while the process is in the foreground of its terminal, unless a process
/// of the same session sent them, or one that has ended since.
#[derive(Debug)]
pub struct SignalQueue {
    /// Readable once a signal was noted.
    pub(in crate::sys) queue: PipeReader,
    pub(in crate::sys) before: SignalMask,
}

impl SignalQueue {
    /// Starts to queue. The signals stay caught for good: one that the supervisor has not read
    /// could otherwise end it during its last steps.
    ///
    /// CHLD is caught even where it is ignored, because a process that inherited it so could not
    /// learn how its command ended (wait(2)).
    ///
    /// # Errors
    /// Those of pipe(2) and sigaction(2).
    pub fn open() -> io::Result<Self> {
        let queue = Pipe::of_this_process()?;
        let caught: Vec<i32> = SIGNALS
            .into_iter()
            .filter(|signal| *signal == libc::SIGCHLD || !is_ignored(*signal))
            .collect();
        for signal in &caught {
            catch(*signal)?;
        }
        // A write beyond RLIMIT_FSIZE then fails with EFBIG.
        let before = SignalMask::block(set_of(&[libc::SIGXFSZ]))?;
        // The parent may have blocked them.
        change_mask(libc::SIG_UNBLOCK, &set_of(&caught))?;
        Ok(Self { queue, before })
    }

    pub(in crate::sys) fn take(&self) -> io::Result<Option<QueuedSignal>> {
        // In this order: a signal that is noted after the pipe was emptied writes to the pipe
        // again.
        self.forget_wakes()?;
        Ok(take())
    }

    fn forget_wakes(&self) -> io::Result<()> {
        let mut bytes = [0_u8; 64];
        loop {
            match rustix::io::read(&self.queue, &mut bytes) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Pipe {
    /// The pipe that wakes this process, created if missing. A forked child needs its own.
    fn of_this_process() -> io::Result<PipeReader> {
        let mut kept = locked(&PIPE);
        // SAFETY: getpid(2) only returns a number.
        let owner = unsafe { libc::getpid() };
        if let Some(pipe) = kept.as_ref().filter(|pipe| pipe.owner == owner) {
            return pipe.reader.try_clone();
        }
        let (reader, writer) = io::pipe()?;
        ioctl_fionbio(&reader, true)?;
        ioctl_fionbio(&writer, true)?;
        let wakes = reader.try_clone()?;
        for note in &NOTES {
            note.store(0, Ordering::SeqCst);
        }
        WAKER.store(writer.as_raw_fd(), Ordering::SeqCst);
        OWNER.store(owner, Ordering::SeqCst);
        *kept = Some(Self {
            owner,
            reader,
            _writer: writer,
        });
        Ok(wakes)
    }
}

fn note_of(signal: i32) -> Option<&'static AtomicU64> {
    let (_, note) = SIGNALS
        .iter()
        .zip(&NOTES)
        .find(|(noted, _)| **noted == signal)?;
    Some(note)
}

/// A noted signal that would have ended this process.
pub(in crate::sys) fn pending() -> Option<i32> {
    let is_noted = |note: &AtomicU64| note.load(Ordering::SeqCst) != 0;
    ENDING
        .into_iter()
        .find(|signal| note_of(*signal).is_some_and(is_noted))
}

fn take() -> Option<QueuedSignal> {
    SIGNALS.into_iter().zip(&NOTES).find_map(|(signal, note)| {
        let noted = note.swap(0, Ordering::SeqCst);
        (noted != 0).then(|| QueuedSignal {
            signal,
            from_process: is_from_process(signal, i32::try_from(noted & !NOTED).unwrap_or(0)),
            ..QueuedSignal::default()
        })
    })
}

/// Notes a signal from now on, instead of acting upon it.
fn catch(signal: i32) -> io::Result<()> {
    // With SA_RESTART, since nothing is to be cut short by it.
    let flags = libc::SA_SIGINFO | libc::SA_RESTART;
    let action = action(note as *const () as libc::sighandler_t, flags);
    change_action(signal, Some(&action)).map(drop)
}

/// The handler. Only atomics and calls that are async-signal-safe (sigaction(2)).
extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: errno is this thread's own. The kernel passes valid information to a handler with
    // SA_SIGINFO, for as long as it runs. The descriptor stays open, and the byte lives.
    unsafe {
        let errno = *libc::__error();
        let own = libc::getpid();
        if own == OWNER.load(Ordering::SeqCst) {
            if let Some(note) = note_of(signal) {
                let noted = NOTED | u64::from(info.as_ref().map_or(0, sender).cast_unsigned());
                // The first one stays, as in the kernel.
                let _ = note.compare_exchange(0, noted, Ordering::SeqCst, Ordering::SeqCst);
            }
            // A full pipe wakes as well.
            let byte = 0_u8;
            libc::write(WAKER.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
        } else {
            // A child that has not executed its command yet: the signal is for that. It is
            // delivered again when this handler, during which it is blocked, has returned.
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(own, signal);
        }
        *libc::__error() = errno;
    }
}

/// The PID of the sender; 0 if the kernel does not report it.
fn sender(info: &libc::siginfo_t) -> libc::pid_t {
    // <sys/signal.h>. The kernel leaves it 0; with any other code, the PID is that of a child that
    // has ended (XNU, `psignal_internal` and `sendsig`).
    const SI_USER: c_int = 0x10001;
    match info.si_code {
        0 | SI_USER => info.si_pid.max(0),
        _ => 0,
    }
}

/// Whether a process sent it. The kernel reports the terminal program as the sender of a terminal's
/// signal (XNU: `psignal_internal` takes the running process, which is the one that writes the
/// typed characters). That program is alive, and in another session than the processes in the
/// terminal.
fn is_from_process(signal: i32, sender: libc::pid_t) -> bool {
    match signal {
        // The kernel sends it to a process that exceeds its own limit of CPU time.
        libc::SIGCHLD | libc::SIGXCPU => false,
        libc::SIGINT | libc::SIGQUIT | libc::SIGHUP | libc::SIGTSTP => {
            !is_in_foreground() || is_of_our_session(sender)
        }
        _ => true,
    }
}

/// Whether we receive a terminal's signals: they go to its foreground group (termios(4)).
fn is_in_foreground() -> bool {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(CWD, c"/dev/tty", flags, Mode::empty()).and_then(tcgetpgrp) == Ok(getpgrp())
}

fn is_of_our_session(sender: libc::pid_t) -> bool {
    let Some(sender) = rustix::process::Pid::from_raw(sender) else {
        return false;
    };
    match getsid(Some(sender)) {
        Ok(theirs) => getsid(None) == Ok(theirs),
        // It has sent its signal and ended.
        Err(Errno::SRCH) => true,
        Err(_) => false,
    }
}
