//! Ctrl-C, TERM and HUP while onehold waits or asks and holds nothing yet.
//!
//! `ctrlc` starts a thread, which costs more than acquiring a lock. So the handler is installed only
//! once there is something to cancel. Until then the signals have their default action.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};

use onehold::command_line::signal;

const CANCELABLE: u8 = 0;
const COMMITTED: u8 = 1;
const CANCELED: u8 = 2;

static PROGRESS: AtomicU8 = AtomicU8::new(CANCELABLE);

/// Set if one of the signals came after `commit` and before signals were queued.
static INTERRUPTED_AFTER_COMMIT: AtomicBool = AtomicBool::new(false);

/// Returns the signal that came after `commit` and before signals were queued.
pub(crate) fn interrupted_after_commit() -> Option<i32> {
    let interrupted = INTERRUPTED_AFTER_COMMIT.load(Ordering::SeqCst);
    interrupted.then(|| signal::last_signal().unwrap_or(SIGINT))
}

pub(crate) const SIGINT: i32 = 2;

/// Set once a wait is to be given up that leaves something behind if the program just ends.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Is set when a signal has come that cancels; see [`Then::GivesUp`].
pub(crate) fn given_up() -> &'static AtomicBool {
    &IS_GIVEN_UP
}

/// Ends the program with the signal or exit code that canceled the wait.
pub(crate) fn end_if_given_up() {
    if IS_GIVEN_UP.load(Ordering::SeqCst) {
        end_by(CANCELED_BY.load(Ordering::SeqCst));
    }
}

/// What follows a signal that cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The program ends: the kernel clears up.
    Ends,
    /// The wait is given up, and leaves the queue; see [`given_up`].
    GivesUp,
}

/// What follows; a question can come between two waits.
static GIVES_UP: AtomicBool = AtomicBool::new(false);

/// The signal that canceled the wait. Negative: another event did, and the program ends with the exit code of
/// that signal.
static CANCELED_BY: AtomicI32 = AtomicI32::new(SIGINT);

fn end_by(cause: i32) {
    if cause > 0 {
        signal::exit_by_signal(cause);
    }
    // The first process of a PID namespace survives a signal at its default.
    #[allow(clippy::exit, reason = "the program was to end")]
    std::process::exit(128 + cause.abs());
}

/// Called with the signal, and with the event that stands for it, if there was one.
type Report = Box<dyn Fn(i32, Option<&str>) + Send + Sync>;

static REPORT: OnceLock<Report> = OnceLock::new();

/// Lets Ctrl-C, TERM and HUP call `report` with their number and then end the program by that signal, so
/// that a calling shell script ends too. One that is ignored stays so.
///
/// The next call only says what follows.
pub(crate) fn on_interrupt(then: Then, report: impl Fn(i32, Option<&str>) + Send + Sync + 'static) {
    GIVES_UP.store(then == Then::GivesUp, Ordering::SeqCst);
    let _ = REPORT.set(Box::new(report));
    let by_signal = || {
        if !cancel(signal::last_signal().unwrap_or(SIGINT), None) {
            INTERRUPTED_AFTER_COMMIT.store(true, Ordering::SeqCst);
        }
    };
    // The handler's thread must not take signals that are sent to the main thread: it does not.
    signal::tell_signals_apart(|| {
        let _ = ctrlc::set_handler(by_signal);
    });
}

/// Cancels as Ctrl-C does, and ends with its exit code. `why`: what has happened. Returns `false` after
/// `commit`.
pub(crate) fn give_up(why: &str) -> bool {
    cancel(SIGINT, Some(why))
}

fn cancel(number: i32, why: Option<&str>) -> bool {
    let cause = if why.is_some() { -number } else { number };
    let canceled =
        PROGRESS.compare_exchange(CANCELABLE, CANCELED, Ordering::SeqCst, Ordering::SeqCst);
    if canceled.is_ok() {
        CANCELED_BY.store(cause, Ordering::SeqCst);
        // The terminal has echoed ^C without a line break.
        if cause == SIGINT && std::io::stderr().is_terminal() {
            crate::output::eprint("");
        }
        if let Some(report) = REPORT.get() {
            report(number, why);
        }
        if GIVES_UP.load(Ordering::SeqCst) {
            IS_GIVEN_UP.store(true, Ordering::SeqCst);
        } else {
            end_by(cause);
        }
    } else if IS_GIVEN_UP.load(Ordering::SeqCst) {
        // A second signal ends the program at once. Two other causes may be one event: a program exits, so its pipe
        // is closed.
        if why.is_none() && CANCELED_BY.swap(cause, Ordering::SeqCst) > 0 {
            end_by(cause);
        }
    } else {
        return false;
    }
    true
}

/// Ends the time in which a signal cancels, and returns `value`. If one came first, drops `value`,
/// which releases the lock, and never returns: the program is ending.
pub(crate) fn commit<T>(value: T) -> T {
    let committed =
        PROGRESS.compare_exchange(CANCELABLE, COMMITTED, Ordering::SeqCst, Ordering::SeqCst);
    if committed == Err(CANCELED) {
        drop(value);
        end_if_given_up();
        loop {
            std::thread::park();
        }
    }
    value
}
