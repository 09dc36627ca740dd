//! Ctrl-C while onehold waits or asks and holds nothing yet.
//!
//! `ctrlc` starts a thread, which costs more than acquiring a lock. So the handler is installed only
//! once there is something to cancel. TERM keeps its default action and ends the program with 143.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use onehold::signal;

const CANCELABLE: u8 = 0;
const COMMITTED: u8 = 1;
const CANCELED: u8 = 2;

static PROGRESS: AtomicU8 = AtomicU8::new(CANCELABLE);

/// Set if Ctrl-C came after `commit` and before signals were queued.
static INTERRUPTED_AFTER_COMMIT: AtomicBool = AtomicBool::new(false);

/// Returns whether Ctrl-C came after `commit` and before signals were queued.
pub(crate) fn interrupted_after_commit() -> bool {
    INTERRUPTED_AFTER_COMMIT.load(Ordering::SeqCst)
}

pub(crate) const SIGINT: i32 = 2;

/// Lets Ctrl-C call `report` and then end the program by SIGINT, so that a calling shell script
/// ends too. Has no effect if SIGINT is ignored.
pub(crate) fn on_ctrl_c(report: impl Fn() + Send + 'static) {
    let cancel = move || {
        let canceled =
            PROGRESS.compare_exchange(CANCELABLE, CANCELED, Ordering::SeqCst, Ordering::SeqCst);
        if canceled.is_ok() {
            // The terminal has echoed ^C without a line break.
            if std::io::stderr().is_terminal() {
                crate::output::eprint("");
            }
            report();
            signal::exit_by_signal(SIGINT);
            // The first process of a PID namespace survives a signal at its default.
            #[allow(clippy::exit, reason = "the program was to end by the signal")]
            std::process::exit(128 + SIGINT);
        } else {
            INTERRUPTED_AFTER_COMMIT.store(true, Ordering::SeqCst);
        }
    };
    // The handler's thread must not take signals that are sent to the main thread.
    let _ = signal::without_signals(|| ctrlc::try_set_handler(cancel));
}

/// Ends the time in which Ctrl-C cancels, and returns `value`. If Ctrl-C came first, drops `value`,
/// which releases the lock, and never returns: the program is ending.
pub(crate) fn commit<T>(value: T) -> T {
    let committed =
        PROGRESS.compare_exchange(CANCELABLE, COMMITTED, Ordering::SeqCst, Ordering::SeqCst);
    if committed == Err(CANCELED) {
        drop(value);
        loop {
            std::thread::park();
        }
    }
    value
}
