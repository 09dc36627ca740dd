//! Ctrl-C, TERM and HUP while onehold waits or asks, and until what it takes is in use.
//!
//! `ctrlc` starts a thread, which costs more than acquiring a lock. So the handler is installed only
//! once a wait is to be shown, or a question asked. Until then the signals have their default action.
//!
//! While a local wait or a question lasts, that thread ends the program. From the decision to take the lock on, and
//! on etcd, it only reports, and the main thread ends the program once it has given back what it took: else a dead
//! hold would be left. In the first moments of a wait, without that thread, signals are noted from the decision on.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use onehold::WaitDecision;
use onehold::command_line::signal;

/// How far an attempt has come, as far as it matters for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The program waits or asks, or has not begun to.
    Cancelable,
    /// The lock is being taken.
    Taking,
    /// The lock is taken: a signal is no longer for the wait.
    Committed,
    /// It is canceled, what was taken is given back, or the outcome of an attempt that came to nothing is printed.
    Over,
}

/// What happens in an attempt.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    WaitAgain,
    Commit,
    /// Another question follows what was done.
    Uncommit,
    /// A signal came, or another event that cancels, or the outcome is to be printed.
    End,
    /// A signal came after `Commit`.
    GiveBack,
}

impl Phase {
    fn after(self, step: Step) -> Self {
        match (self, step) {
            (Self::Cancelable, Step::Take) => Self::Taking,
            (Self::Taking, Step::WaitAgain) | (Self::Committed, Step::Uncommit) => Self::Cancelable,
            (Self::Cancelable | Self::Taking, Step::Commit) => Self::Committed,
            (Self::Cancelable | Self::Taking, Step::End) | (_, Step::GiveBack) => Self::Over,
            (phase, _) => phase,
        }
    }
}

/// What is done about signals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Nothing: they have their default action.
    None,
    /// They are noted, and have no handler.
    Noted,
    Handled,
}

/// What follows a signal that cancels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The program ends: the kernel clears up.
    Ends,
    /// The wait is given up, and leaves the queue; see [`IS_GIVEN_UP`].
    GivesUp,
}

/// What has happened, if it was no signal.
type Why = Option<&'static str>;

/// What cancels.
#[derive(Debug)]
struct Event {
    signal: i32,
    why: Why,
    at: Instant,
}

/// The first one that came.
static EVENT: OnceLock<Event> = OnceLock::new();

/// An attempt that signals can cancel.
struct Interrupt {
    phase: Phase,
    watch: Watch,
    /// A question can come between two waits.
    then: Then,
}

/// Locked for moments only.
static INTERRUPT: Mutex<Interrupt> = Mutex::new(Interrupt {
    phase: Phase::Cancelable,
    watch: Watch::None,
    then: Then::Ends,
});

/// Called with the signal, and with the event that stands for it, if there was one.
type Report = Box<dyn FnOnce(i32, Why) + Send>;

/// What reports it, until it has been called. Locked meanwhile.
static REPORT: Mutex<Option<Report>> = Mutex::new(None);

/// Is set when something has canceled a wait that leaves something behind if the program just ends.
pub(crate) static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Signals that follow the first one within this time belong to the same event: timeout(1) sends one to its group and
/// one to its command, and at the end of a session several programs send one.
pub(crate) const SAME_EVENT: Duration = Duration::from_secs(1);

pub(crate) const SIGINT: i32 = 2;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attempt after this step, and its phase before.
fn after(step: Step) -> (MutexGuard<'static, Interrupt>, Phase) {
    let mut interrupt = lock(&INTERRUPT);
    let before = interrupt.phase;
    interrupt.phase = before.after(step);
    (interrupt, before)
}

impl Interrupt {
    fn handle_signals(&mut self) {
        self.watch = Watch::Handled;
        let by_signal = || {
            // What has just been taken may be broken already: see `commit_taken`.
            if signal::last_number().is_some() && lock(&INTERRUPT).phase == Phase::Taking {
                return;
            }
            cancel(signal::last_signal().unwrap_or(SIGINT), None);
        };
        // The handler's thread must not take signals that are sent to the main thread: it does not.
        signal::tell_signals_apart(|| {
            let _ = ctrlc::set_handler(by_signal);
        });
    }

    fn stop_noting(&mut self) {
        if self.watch == Watch::Noted {
            self.watch = Watch::None;
            signal::stop_telling_signals_apart();
        }
    }
}

/// The signal that has come, even if the thread of the handler does not know of it yet.
pub(crate) fn signal_so_far() -> Option<i32> {
    // On Unix the handler itself notes it, in the main thread.
    signal::last_signal().or_else(|| {
        let event = EVENT.get().filter(|event| event.why.is_none());
        event.map(|event| event.signal)
    })
}

/// The signal that cancels, or that stands for the event that does.
fn cause() -> (i32, Why) {
    match EVENT.get() {
        Some(event) => (event.signal, event.why),
        None => (signal_so_far().unwrap_or(SIGINT), None),
    }
}

/// Lets Ctrl-C, TERM and HUP call `report` with their number and then end the program by that signal, so
/// that a calling shell script ends too. One that is ignored stays so.
///
/// The next call only says what follows.
pub(crate) fn on_interrupt(then: Then, report: impl FnOnce(i32, Why) + Send + 'static) {
    let mut interrupt = lock(&INTERRUPT);
    interrupt.then = then;
    if interrupt.watch != Watch::Handled {
        *lock(&REPORT) = Some(Box::new(report));
        interrupt.handle_signals();
    }
    let is_canceled = interrupt.phase == Phase::Over || signal_so_far().is_some();
    drop(interrupt);
    // One that came before does not end the program by itself.
    if is_canceled {
        commit(());
    }
}

/// Whether the handler is installed.
pub(crate) fn has_handler() -> bool {
    lock(&INTERRUPT).watch == Watch::Handled
}

/// Cancels as this signal does, and ends with its exit code. `why`: what has happened, if it was no signal. Returns
/// `false` after `commit`.
pub(crate) fn cancel(signal: i32, why: Why) -> bool {
    let at = Instant::now();
    // Before the main thread can see that it is canceled.
    let is_first = EVENT.set(Event { signal, why, at }).is_ok();
    let (interrupt, before) = after(Step::End);
    let ends = interrupt.then == Then::Ends;
    drop(interrupt);
    let is_same = |first: &Event| first.at.elapsed() < SAME_EVENT;
    match before {
        Phase::Committed => return false,
        Phase::Cancelable if ends => end(),
        Phase::Cancelable | Phase::Taking => {
            // What is asked of a store that does not answer is given up, too.
            IS_GIVEN_UP.store(true, Ordering::SeqCst);
            report();
        }
        // Another signal ends the program at once, whatever is left.
        Phase::Over if why.is_none() && !is_first && !EVENT.get().is_some_and(is_same) => {
            report();
            end_by(signal, true);
        }
        Phase::Over => {}
    }
    true
}

/// Reports what has canceled, once. Does not wait for another thread that does so.
fn report() {
    let (signal, why) = cause();
    let Ok(mut report) = REPORT.try_lock() else {
        return;
    };
    if let Some(report) = report.take() {
        // The terminal has echoed ^C without a line break.
        if why.is_none() && signal == SIGINT && std::io::stderr().is_terminal() {
            crate::output::eprint("");
        }
        report(signal, why);
    }
}

/// Ends the program with the signal that canceled the wait. If another event did, it ends with the exit code of that
/// signal.
#[cold]
#[inline(never)]
fn end() -> ! {
    report();
    // Another thread may have begun to.
    drop(lock(&REPORT));
    let (signal, why) = cause();
    end_by(signal, why.is_none());
}

fn end_by(number: i32, is_signal: bool) -> ! {
    if is_signal {
        signal::exit_by_signal(number);
    }
    // The first process of a PID namespace survives a signal at its default.
    #[allow(clippy::exit, reason = "the signal did not end this process")]
    std::process::exit(128 + number);
}

/// From here on a signal ends this process, or what takes its place. [`signal_so_far`] still returns one that came
/// before.
pub(crate) fn let_signals_end() {
    let mut interrupt = lock(&INTERRUPT);
    if std::mem::replace(&mut interrupt.watch, Watch::None) != Watch::None {
        signal::stop_telling_signals_apart();
    }
}

/// Called by the library, see [`onehold::Wait::on_decision`].
#[cold]
#[inline(never)]
pub(crate) fn may_go_on(decision: WaitDecision) -> bool {
    match decision {
        WaitDecision::Take => {
            let (mut interrupt, _) = after(Step::Take);
            if interrupt.watch == Watch::None {
                interrupt.watch = Watch::Noted;
                signal::note_signals();
            }
            interrupt.phase != Phase::Over
        }
        WaitDecision::WaitAgain => {
            let (mut interrupt, before) = after(Step::WaitAgain);
            interrupt.stop_noting();
            before == Phase::Taking && signal_so_far().is_none()
        }
    }
}

/// An attempt has taken nothing. Never returns if it was canceled.
pub(crate) fn end_if_canceled() {
    let has_decided = lock(&INTERRUPT).phase != Phase::Cancelable;
    if has_decided && !may_go_on(WaitDecision::WaitAgain) {
        commit(());
    }
}

/// Ends the time in which a signal cancels, and returns `value`. If one came first, drops `value`,
/// which releases the lock, and never returns.
pub(crate) fn commit<T>(value: T) -> T {
    let (interrupt, _) = after(Step::Commit);
    if interrupt.phase == Phase::Committed && signal_so_far().is_none() {
        return value;
    }
    drop(interrupt);
    give_back(value);
    end();
}

/// As [`commit`], of an attempt that has taken a lock. A signal that came with a number may say that the new hold is
/// broken: that is left to its supervisor, which knows the number.
pub(crate) fn commit_taken<T>(taken: T) -> T {
    let (interrupt, _) = after(Step::Commit);
    let is_left = interrupt.phase == Phase::Committed && signal::last_number().is_some();
    drop(interrupt);
    if is_left { taken } else { commit(taken) }
}

/// Whether a signal came after `commit`.
pub(crate) fn is_late() -> bool {
    let interrupt = lock(&INTERRUPT);
    interrupt.phase == Phase::Committed && signal_so_far().is_some()
}

/// Gives back what is held after a signal, and reports that if a signal before `commit` would have been reported.
#[cold]
#[inline(never)]
pub(crate) fn give_back<T>(held: T) {
    let (mut interrupt, _) = after(Step::GiveBack);
    // Another signal, a second later or more, ends the program even if the store does not answer.
    if interrupt.watch == Watch::Noted {
        interrupt.handle_signals();
    }
    drop(interrupt);
    report();
    drop(held);
}

/// Signals cancel what comes next: a question follows what was done. Never returns if one came meanwhile.
pub(crate) fn uncommit() {
    drop(after(Step::Uncommit));
    if signal_so_far().is_some() {
        commit(());
    }
}

/// Called before an outcome is printed, so that there is no second one. Never returns if the attempt was canceled.
pub(crate) fn close() {
    let (mut interrupt, before) = after(Step::End);
    interrupt.stop_noting();
    let is_canceled = before == Phase::Over || signal_so_far().is_some();
    drop(interrupt);
    match before {
        Phase::Committed => {}
        _ if is_canceled => end(),
        _ => drop(lock(&REPORT).take()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Phase, Step};

    #[test]
    fn each_step_leads_from_each_phase_where_it_is_to() {
        use Phase::{Cancelable, Committed, Over, Taking};
        let before = [Cancelable, Taking, Committed, Over];
        let expected = [
            (Step::Take, [Taking, Taking, Committed, Over]),
            (Step::WaitAgain, [Cancelable, Cancelable, Committed, Over]),
            (Step::Commit, [Committed, Committed, Committed, Over]),
            (Step::Uncommit, [Cancelable, Taking, Cancelable, Over]),
            (Step::End, [Over, Over, Committed, Over]),
            (Step::GiveBack, [Over; 4]),
        ];
        for (step, after) in expected {
            assert_eq!(before.map(|phase| phase.after(step)), after, "{step:?}");
        }
    }
}
