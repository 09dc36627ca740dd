//! Ctrl-C while waiting or asking, when nothing is held yet. `ctrlc` starts a thread for it, which
//! costs more than taking a lock: it is set up only once there is something to cancel. TERM keeps
//! its default, which ends the program with the 143 it should have.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use onehold::signal;

const CANCELLABLE: u8 = 0;
const COMMITTED: u8 = 1;
const CANCELLED: u8 = 2;

static PROGRESS: AtomicU8 = AtomicU8::new(CANCELLABLE);

/// Ctrl-C came after there was nothing to cancel any more, and before signals were queued.
static TOO_LATE: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C came too late to cancel and too early for the queue.
pub(crate) fn came_too_late() -> bool {
    TOO_LATE.load(Ordering::SeqCst)
}

pub(crate) const SIGINT: i32 = 2;

/// From here on Ctrl-C calls `farewell` and ends the program as SIGINT does, so that a calling
/// shell script ends too. Does nothing where SIGINT is ignored.
pub(crate) fn on_ctrl_c(farewell: impl Fn() + Send + 'static) {
    let cancel = move || {
        let cancelled =
            PROGRESS.compare_exchange(CANCELLABLE, CANCELLED, Ordering::SeqCst, Ordering::SeqCst);
        if cancelled.is_ok() {
            // The terminal has echoed ^C without ending its line.
            if std::io::stderr().is_terminal() {
                crate::output::talk("");
            }
            farewell();
            signal::end_by(SIGINT);
        } else {
            TOO_LATE.store(true, Ordering::SeqCst);
        }
    };
    // The handler's thread takes no signal that is meant for this one.
    let _ = signal::without_signals(|| ctrlc::try_set_handler(cancel));
}

/// Nothing to cancel any more. If Ctrl-C was faster, the program is ending: `undo`, and wait.
pub(crate) fn commit<T>(value: T) -> T {
    let committed =
        PROGRESS.compare_exchange(CANCELLABLE, COMMITTED, Ordering::SeqCst, Ordering::SeqCst);
    if committed == Err(CANCELLED) {
        // Gives back what came in the same moment.
        drop(value);
        loop {
            std::thread::park();
        }
    }
    value
}
