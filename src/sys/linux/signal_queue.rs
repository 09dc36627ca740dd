//! Signals in a queue, by signalfd(2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[cfg(feature = "cluster")]
use super::keeper::admit;
use super::process::status_of;
use crate::sys::QueuedSignal;
use crate::sys::signal::{SignalMask, all_signals, is_ignored, replace_disposition};
use crate::sys::unix::checked;
use crate::sys::unix::signal_queue::ENDING;

/// Queued signals of the calling thread, for a program that supervises a command and must forward
/// them.
///
/// Queued is every signal that can be but CONT, TTIN and TTOU: none of them ends, stops or interrupts
/// this process any more. A write beyond RLIMIT_FSIZE fails with EFBIG. What the
/// process ignores (`nohup`, a background job of a shell) is queued as well; see
/// [`is_ignored`](SignalQueue::is_ignored). Children inherit what is blocked, so a command started
/// while there is a queue is started with [`mask_before`](SignalQueue::mask_before).
#[derive(Debug)]
pub struct SignalQueue {
    pub(in crate::sys) queue: OwnedFd,
    pub(in crate::sys) before: SignalMask,
}

impl SignalQueue {
    /// Starts to queue. The signals stay blocked in this thread for good: one that the supervisor
    /// has not read could otherwise end it during its last steps.
    ///
    /// CHLD is set back to its default, because a process that inherited it as ignored could not
    /// learn how its command ended (wait(2)). A command that is started by this library inherits it as
    /// the caller had it.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn open() -> io::Result<Self> {
        replace_disposition(libc::SIGCHLD, libc::SIG_DFL)?;
        let mut set = all_signals();
        for signal in [
            libc::SIGSTOP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGCONT,
            libc::SIGKILL,
        ] {
            // SAFETY: the set is initialised.
            unsafe { libc::sigdelset(&raw mut set, signal) };
        }
        // The kernel keeps a blocked signal even if it is ignored (linux/kernel/signal.c,
        // `sig_ignored`).
        let before = SignalMask::block(set)?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set lives; -1 asks for a new descriptor.
        let raw = checked(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        Ok(Self {
            // SAFETY: the kernel has just created this descriptor; nothing else owns it.
            queue: unsafe { OwnedFd::from_raw_fd(raw) },
            before,
        })
    }

    pub(in crate::sys) fn take(&self) -> io::Result<Option<QueuedSignal>> {
        while let Some((received, sender)) = self.take_any()? {
            if let Some(received) = admit(received, sender) {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    /// The next signal and the process that has sent it.
    fn take_any(&self) -> io::Result<Option<(QueuedSignal, u32)>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes of plain data, for which every bit pattern is valid.
        let read = unsafe { libc::read(self.queue.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) == Ok(size) {
            // SAFETY: zeroed above, then filled by the kernel.
            let info = unsafe { info.assume_init() };
            let received = QueuedSignal {
                signal: info.ssi_signo.cast_signed(),
                // Not a timer's, and not one of the kernel's. XFSZ and PIPE look like our own.
                from_process: matches!(
                    info.ssi_code,
                    libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL
                ) && info.ssi_pid != std::process::id(),
                value: (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_int),
                has_lost_value: info.ssi_code == libc::SI_USER
                    && info.ssi_pid == 0
                    && is_out_of_room(),
            };
            return Ok(Some((received, info.ssi_pid)));
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            error => Err(error),
        }
    }
}

/// Whether no more signals may be queued for this user (`RLIMIT_SIGPENDING`). One that comes then by sigqueue(3)
/// arrives without number and sender, and looks like one of kill(2) from another PID namespace. One of kill(2)
/// loses neither (linux/kernel/signal.c, `__send_signal_locked`).
#[cold]
fn is_out_of_room() -> bool {
    let counts = status_of("self", "SigQ:").unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().ok();
    let counts = counts.split_once('/');
    counts.is_some_and(|(queued, most)| number(queued) >= number(most))
}

/// A pending signal that would end this process.
pub(in crate::sys) fn pending() -> Option<i32> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the kernel fills the set; sigismember reads it.
    unsafe {
        if libc::sigpending(set.as_mut_ptr()) != 0 {
            return None;
        }
        let set = set.assume_init();
        ENDING
            .into_iter()
            .find(|signal| libc::sigismember(&raw const set, *signal) == 1 && !is_ignored(*signal))
    }
}

/// Every signal is for this process.
#[cfg(not(feature = "cluster"))]
fn admit(received: QueuedSignal, _sender: u32) -> Option<QueuedSignal> {
    Some(received)
}
