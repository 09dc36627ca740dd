//! Ctrl-C, TERM and HUP while onehold waits or asks, and until what it takes is in use.
//!
//! `ctrlc` starts a thread, which costs more than acquiring a lock. So the handler is installed only
//! once a wait is to be shown, or a question asked. Until then the signals have their default action.
//!
//! While a local wait or a question lasts, that thread ends the program. From the decision to take the lock on, and
//! on etcd, it only reports, and the main thread ends the program once it has given back what it took: else a dead
//! hold would be left. In the first moments of a wait, without that thread, signals are noted from the decision on.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use onehold::WaitDecision;
use onehold::command_line::signal;

/// The program waits or asks, or has not begun to.
const CANCELABLE: u8 = 0;
/// The lock is being taken.
const TAKING: u8 = 1;
/// The lock is taken: a signal is no longer for the wait.
const COMMITTED: u8 = 2;
/// Canceled during a wait or a question.
const CANCELED: u8 = 3;
/// Canceled while the lock was being taken, or before it was used: it is given back first.
const CANCELED_LATE: u8 = 4;
/// The outcome of an attempt that came to nothing is printed: there is nothing left to cancel.
const CLOSED: u8 = 5;

static PROGRESS: AtomicU8 = AtomicU8::new(CANCELABLE);

fn advance(from: u8, to: u8) -> bool {
    let advanced = PROGRESS.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    advanced.is_ok()
}

/// Signals that follow the first one within this time belong to the same event: timeout(1) sends one to its group and
/// one to its command, and at the end of a session several programs send one.
pub(crate) const SAME_EVENT: Duration = Duration::from_secs(1);

pub(crate) const SIGINT: i32 = 2;

/// What cancels.
#[derive(Debug)]
struct Event {
    signal: i32,
    /// What has happened, if it was no signal.
    why: Option<String>,
    at: Instant,
}

/// The first one that came.
static EVENT: OnceLock<Event> = OnceLock::new();

/// The signal that has come, even if the thread of the handler does not know of it yet.
pub(crate) fn signal_so_far() -> Option<i32> {
    // On Unix the handler itself notes it, in the main thread.
    signal::last_signal().or_else(|| {
        let event = EVENT.get().filter(|event| event.why.is_none());
        event.map(|event| event.signal)
    })
}

/// Set once a wait is to be given up that leaves something behind if the program just ends.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Is set when a signal has come that cancels; see [`Then::GivesUp`].
pub(crate) fn given_up() -> &'static AtomicBool {
    &IS_GIVEN_UP
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

/// Whether the report has begun, and whether it is done.
static HAS_BEGUN_TO_REPORT: AtomicBool = AtomicBool::new(false);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

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
    IS_NOTING.store(false, Ordering::SeqCst);
    handle_signals();
    // One that came before does not end the program by itself.
    if PROGRESS.load(Ordering::SeqCst) >= CANCELED || signal_so_far().is_some() {
        commit(());
    }
}

/// Whether the handler is installed.
pub(crate) fn has_handler() -> bool {
    REPORT.get().is_some()
}

fn handle_signals() {
    IS_WATCHED.store(true, Ordering::SeqCst);
    let by_signal = || {
        cancel(signal::last_signal().unwrap_or(SIGINT), None);
    };
    // The handler's thread must not take signals that are sent to the main thread: it does not.
    signal::tell_signals_apart(|| {
        let _ = ctrlc::set_handler(by_signal);
    });
}

/// Cancels as this signal does, and ends with its exit code. `why`: what has happened. Returns `false` after
/// `commit`.
pub(crate) fn give_up(signal: i32, why: &str) -> bool {
    cancel(signal, Some(why))
}

fn cancel(signal: i32, why: Option<&str>) -> bool {
    let event = Event {
        signal,
        why: why.map(str::to_owned),
        at: Instant::now(),
    };
    // Before the main thread can see that it is canceled.
    let is_first = EVENT.set(event).is_ok();
    loop {
        match PROGRESS.load(Ordering::SeqCst) {
            CANCELABLE if advance(CANCELABLE, CANCELED) => {
                let gives_up = GIVES_UP.load(Ordering::SeqCst);
                IS_GIVEN_UP.store(gives_up, Ordering::SeqCst);
                report();
                if !gives_up {
                    end_by_event();
                }
                return true;
            }
            TAKING if advance(TAKING, CANCELED_LATE) => {
                // What is asked of a store that does not answer is given up.
                IS_GIVEN_UP.store(true, Ordering::SeqCst);
                report();
                return true;
            }
            // The main thread has just gone on.
            CANCELABLE | TAKING => {}
            COMMITTED => return false,
            _ => break,
        }
    }
    let is_same = |first: &Event| first.at.elapsed() < SAME_EVENT;
    // Another signal ends the program at once, whatever is left.
    if !is_first && why.is_none() && !EVENT.get().is_some_and(is_same) {
        report();
        end_by(signal, true);
    }
    true
}

/// Reports what has canceled, once.
fn report() {
    if HAS_BEGUN_TO_REPORT.swap(true, Ordering::SeqCst) {
        return;
    }
    let event = EVENT.get();
    let why = event.and_then(|event| event.why.as_deref());
    let signal = event.map(|event| event.signal).or_else(signal_so_far);
    let signal = signal.unwrap_or(SIGINT);
    if let Some(report) = REPORT.get() {
        // The terminal has echoed ^C without a line break.
        if why.is_none() && signal == SIGINT && std::io::stderr().is_terminal() {
            crate::output::eprint("");
        }
        report(signal, why);
    }
    IS_REPORTED.store(true, Ordering::SeqCst);
}

/// Ends the program with the signal that canceled the wait. If another event did, it ends with the exit code of that
/// signal.
fn end_by_event() -> ! {
    match EVENT.get() {
        Some(event) => end_by(event.signal, event.why.is_none()),
        None => end_by(signal_so_far().unwrap_or(SIGINT), true),
    }
}

fn end_by(number: i32, is_signal: bool) -> ! {
    if is_signal {
        signal::exit_by_signal(number);
    }
    // The first process of a PID namespace survives a signal at its default.
    #[allow(clippy::exit, reason = "the program was to end")]
    std::process::exit(128 + number);
}

/// Whether something was done about the signals.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether the signals are noted, and have no handler.
static IS_NOTING: AtomicBool = AtomicBool::new(false);

/// From here on a signal ends this process, or what takes its place. [`signal_so_far`] still returns one that came
/// before.
pub(crate) fn let_signals_end() {
    if IS_NOTING.swap(false, Ordering::SeqCst) || has_handler() {
        signal::stop_telling_signals_apart();
    }
}

/// Called by the library, see [`onehold::Wait::on_decision`].
#[cold]
#[inline(never)]
pub(crate) fn may_go_on(decision: WaitDecision) -> bool {
    match decision {
        WaitDecision::Take => {
            if !has_handler() && !IS_NOTING.swap(true, Ordering::SeqCst) {
                IS_WATCHED.store(true, Ordering::SeqCst);
                signal::note_signals();
            }
            advance(CANCELABLE, TAKING) || PROGRESS.load(Ordering::SeqCst) < CANCELED
        }
        WaitDecision::WaitAgain => {
            if IS_NOTING.swap(false, Ordering::SeqCst) {
                signal::stop_telling_signals_apart();
            }
            advance(TAKING, CANCELABLE) && signal_so_far().is_none()
        }
    }
}

/// An attempt has taken nothing. Never returns if it was canceled.
pub(crate) fn end_if_canceled() {
    if PROGRESS.load(Ordering::SeqCst) != CANCELABLE {
        let may_go_on = may_go_on(WaitDecision::WaitAgain);
        if !may_go_on || PROGRESS.load(Ordering::SeqCst) >= CANCELED {
            commit(());
        }
    }
}

/// Ends the time in which a signal cancels, and returns `value`. If one came first, drops `value`,
/// which releases the lock, and never returns.
pub(crate) fn commit<T>(value: T) -> T {
    let committed = advance(TAKING, COMMITTED) || advance(CANCELABLE, COMMITTED);
    let is_committed = committed || PROGRESS.load(Ordering::SeqCst) == COMMITTED;
    if is_committed && signal_so_far().is_none() {
        return value;
    }
    give_back(value);
    end();
}

/// Whether a signal came after `commit`.
pub(crate) fn is_late() -> bool {
    PROGRESS.load(Ordering::SeqCst) == COMMITTED && signal_so_far().is_some()
}

/// Gives back what is held after a signal, and reports that if a signal before `commit` would have been reported.
#[cold]
#[inline(never)]
pub(crate) fn give_back<T>(held: T) {
    // Another signal, a second later or more, ends the program even if the store does not answer.
    advance(COMMITTED, CANCELED_LATE);
    if IS_NOTING.swap(false, Ordering::SeqCst) {
        handle_signals();
    }
    report();
    drop(held);
}

/// Signals cancel what comes next: a question follows what was done. Never returns if one came meanwhile.
pub(crate) fn uncommit() {
    advance(COMMITTED, CANCELABLE);
    if signal_so_far().is_some() {
        commit(());
    }
}

/// Called before an outcome is printed, so that there is no second one. Never returns if the attempt was canceled.
pub(crate) fn close() {
    if IS_WATCHED.load(Ordering::SeqCst) {
        close_watched();
    }
}

#[cold]
#[inline(never)]
fn close_watched() {
    let is_closed = advance(TAKING, CLOSED) || advance(CANCELABLE, CLOSED);
    if IS_NOTING.swap(false, Ordering::SeqCst) {
        signal::stop_telling_signals_apart();
    }
    if is_closed && signal_so_far().is_none() {
        HAS_BEGUN_TO_REPORT.store(true, Ordering::SeqCst);
    } else if PROGRESS.load(Ordering::SeqCst) != COMMITTED {
        end();
    }
}

#[cold]
#[inline(never)]
fn end() -> ! {
    report();
    // Another thread may have begun to.
    while !IS_REPORTED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    end_by_event();
}
