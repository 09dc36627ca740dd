//! Shows a wait. On a terminal: the holder, in full, and below it a short line that is updated. With
//! --verbose elsewhere: one line at its start and one at its end; else, because cron mails all
//! output, one line once it has lasted for a minute.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onehold::command_line::signal::without_signals;
use onehold::status::{Pid, Reason};
use onehold::{HoldInfo, Lock, Status};

use crate::arguments::args::WaitLimit;
use crate::configuration::{Session, enclosing_names};
use crate::messages::{describe_holder, is_held, local};
use crate::{output, words};

const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// From then on, silence looks as if the program hung.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// The progress of one attempt, if that waits.
pub(crate) struct Progress<'a> {
    session: &'a Session,
    lock: &'a Lock,
    shown: RefCell<Option<Shown>>,
}

enum Shown {
    Line {
        name: String,
        since: Instant,
    },
    /// A line on the terminal and the thread that updates it, until the sender is dropped. Without the thread's
    /// handle: one that says once whom the wait is for. It may be asking a store that does not answer.
    Live(mpsc::Sender<()>, Option<JoinHandle<()>>),
}

impl<'a> Progress<'a> {
    pub(crate) fn new(session: &'a Session, lock: &'a Lock) -> Self {
        Self {
            session,
            lock,
            shown: RefCell::default(),
        }
    }

    /// Starts to show a wait that began at `since`.
    pub(crate) fn begin(&self, status: &Status, limit: WaitLimit, since: Instant) {
        if !self.session.tells_success() {
            return;
        }
        let held = enclosing_names();
        let held: Vec<String> = held.iter().map(|name| words::quoted(name)).collect();
        let still_held = match &held[..] {
            [] => String::new(),
            held => format!("; still holding {}", held.join(", ")),
        };
        output::eprint(&format!("{}{still_held}", holder_line(status)));
        *self.shown.borrow_mut() = if std::io::stderr().is_terminal() {
            Shown::live(self.lock.clone(), holder_of(status), limit, since)
        } else {
            let name = words::names(self.lock);
            Some(Shown::Line { name, since })
        };
    }

    /// Says whom a wait is for that is not shown, once it is [long](LONG).
    #[cold]
    pub(crate) fn tell_late(&self, status: &Status) {
        if self.session.tells() && self.shown.borrow().is_none() {
            output::eprint(&holder_line(status));
        }
    }

    /// The same for a store that may not answer for so long.
    #[cold]
    pub(crate) fn begin_silent(&self) {
        if self.session.tells() {
            *self.shown.borrow_mut() = Shown::late(self.lock.clone());
        }
    }

    /// Ends the display. `acquired`: the lock was acquired.
    pub(crate) fn end(&self, acquired: bool) {
        match self.shown.borrow_mut().take() {
            Some(Shown::Line { name, since }) if acquired => {
                let waited = words::span(since.elapsed());
                output::eprint(&format!("onehold: waited {waited} for {name}"));
            }
            None | Some(Shown::Line { .. }) => {}
            Some(Shown::Live(stop, thread)) => {
                drop(stop);
                let _ = thread.map(JoinHandle::join);
            }
        }
    }
}

impl Shown {
    /// `shown`: the holder that has been shown.
    fn live(lock: Lock, mut shown: Option<Held>, limit: WaitLimit, since: Instant) -> Option<Self> {
        let (stop, thread) = while_waiting(move |lasts| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                line.set_style(style);
            }
            loop {
                let status = lock.check(None).ok();
                let holder = status.as_ref().and_then(holder_of);
                if let Some(status) = status.as_ref()
                    && holder.is_some()
                    && holder != shown
                {
                    shown = holder;
                    line.suspend(|| output::eprint(&holder_line(status)));
                }
                line.set_message(text(status.as_ref(), since.elapsed(), limit));
                line.tick();
                if !lasts(UPDATE_INTERVAL) {
                    break;
                }
            }
            line.finish_and_clear();
        })?;
        Some(Self::Live(stop, Some(thread)))
    }

    fn late(lock: Lock) -> Option<Self> {
        let (stop, _) = while_waiting(move |lasts| {
            if !lasts(LONG) {
                return;
            }
            let text = match lock.check(None) {
                Ok(status) => holder_line(&status),
                Err(error) => {
                    let (name, error) = (words::names(&lock), words::error_chain(&error));
                    format!("onehold: waiting for {name}: {error}")
                }
            };
            if lasts(Duration::ZERO) {
                output::eprint(&text);
            }
        })?;
        Some(Self::Live(stop, None))
    }
}

/// Starts a thread, and calls this in it with what returns whether the wait lasts for so much longer.
fn while_waiting(
    run: impl FnOnce(&dyn Fn(Duration) -> bool) + Send + 'static,
) -> Option<(mpsc::Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel();
    let lasts = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    // Signals must reach the thread that waits.
    let thread = without_signals(|| std::thread::Builder::new().spawn(move || run(&lasts)));
    Some((stop, thread.ok()?.ok()?))
}

/// Whether a wait may last long enough to be reported.
pub(crate) fn is_long(limit: WaitLimit) -> bool {
    match limit {
        WaitLimit::AtMost(limit) => limit > LONG,
        WaitLimit::Forever => true,
    }
}

/// The process that others see waiting.
fn shown_as() -> Pid {
    #[cfg(all(feature = "cluster", target_os = "linux"))]
    if let Some(wrapper) = onehold::keeper::wrapper() {
        return wrapper;
    }
    Pid::of_self()
}

/// The position of this process in the queue, and the number of waiters.
fn own_position(status: &Status) -> Option<(usize, usize)> {
    let mut waiters = status.waiters.iter();
    let own = waiters.find(|waiter| waiter.pid == shown_as())?;
    Some((own.position, status.waiters.len()))
}

/// What tells one hold from the next: its number, or its process.
type Held = (Option<u64>, Option<Pid>);

/// The only holder of a lock. Those of a shared one come and go.
fn holder_of(status: &Status) -> Option<Held> {
    let is_alone = status.slot.is_none() && status.verdict.reason != Reason::Reserved;
    let process = status.verdict.pid.filter(|_| status.hold().is_none());
    (is_held(status) && is_alone).then(|| (status.hold(), process))
}

/// "onehold: waiting for runner-7: `x` is held by …"
fn holder_line(status: &Status) -> String {
    let record = status.info();
    let owner = record.and_then(HoldInfo::owner);
    let owner = owner.map(|owner| format!(" for {}", words::escape(owner)));
    let (owner, holder) = (owner.unwrap_or_default(), describe_holder(status, local));
    format!("onehold: waiting{owner}: {holder}")
}

/// "onehold: waiting 12s of 5m, position 2 of 3 (Ctrl-C cancels)"
fn text(status: Option<&Status>, elapsed: Duration, limit: WaitLimit) -> String {
    let elapsed = words::span(elapsed);
    let time = match limit {
        WaitLimit::AtMost(limit) => format!("{elapsed} of {}", words::span(limit)),
        WaitLimit::Forever => elapsed,
    };
    let own = status.and_then(own_position);
    let position = own.map_or_else(String::new, |(own, waiters)| {
        format!(", position {own} of {waiters}")
    });
    format!("onehold: waiting {time}{position} (Ctrl-C cancels)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_told_if_it_can_last_for_more_than_a_minute() {
        let at_most = |seconds| WaitLimit::AtMost(Duration::from_secs(seconds));
        assert!(!is_long(at_most(0)));
        assert!(!is_long(at_most(60)));
        assert!(is_long(at_most(61)));
        assert!(is_long(WaitLimit::Forever));
    }
}
