//! Shows a wait: on a terminal one line that is updated, elsewhere one line at its start and one
//! after the lock was acquired.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onehold::signal::without_signals;
use onehold::{Lock, Pid, Status};

use crate::args::WaitLimit;
use crate::describe;
use crate::output;
use crate::session::enclosing_names;
use crate::words;

const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of one attempt, if that waits.
#[derive(Default)]
pub(crate) struct Progress {
    shown: RefCell<Option<Shown>>,
}

enum Shown {
    Line { name: String, since: Instant },
    Live(LiveLine),
}

/// A line on the terminal and the thread that updates it.
struct LiveLine {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Starts to show a wait for `lock` that began at `since`.
    pub(crate) fn begin(&self, lock: &Lock, status: &Status, limit: WaitLimit, since: Instant) {
        let held: Vec<String> = enclosing_names()
            .iter()
            .map(|name| words::quoted(name))
            .collect();
        let still_held = if held.is_empty() {
            String::new()
        } else {
            format!("; still holding {}", held.join(", "))
        };
        let shown = if std::io::stderr().is_terminal() {
            LiveLine::start(lock.clone(), limit, still_held, since).map(Shown::Live)
        } else {
            output::eprint(&format!(
                "onehold: waiting{}: {}{still_held}",
                for_owner(status),
                describe::describe_holder(status)
            ));
            Some(Shown::Line {
                name: words::names(lock),
                since,
            })
        };
        *self.shown.borrow_mut() = shown;
    }

    /// Ends the display. `acquired`: the lock was acquired.
    pub(crate) fn end(&self, acquired: bool) {
        match self.shown.borrow_mut().take() {
            Some(Shown::Line { name, since }) if acquired => output::eprint(&format!(
                "onehold: acquired {name} after {}",
                words::span(since.elapsed())
            )),
            None | Some(Shown::Line { .. }) => {}
            Some(Shown::Live(live)) => {
                drop(live.stop);
                let _ = live.thread.join();
            }
        }
    }
}

impl LiveLine {
    fn start(lock: Lock, limit: WaitLimit, still_held: String, since: Instant) -> Option<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        // Signals must reach the thread that waits.
        let thread = without_signals(|| {
            std::thread::Builder::new().spawn(move || {
                let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                    line.set_style(style);
                }
                loop {
                    line.set_message(text(&lock, since.elapsed(), limit, &still_held));
                    line.tick();
                    if stopped.recv_timeout(UPDATE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
                line.finish_and_clear();
            })
        });
        Some(Self {
            stop,
            thread: thread.ok()?.ok()?,
        })
    }
}

/// The process that others see waiting.
fn shown_as() -> Pid {
    #[cfg(all(feature = "etcd", target_os = "linux"))]
    if let Some(wrapper) = onehold::keeper::wrapper() {
        return wrapper;
    }
    Pid::of_self()
}

/// "onehold: waiting for runner-7, 12s of 5m, position 2 of 3: `x` is held by … (Ctrl-C cancels)". A
/// narrow terminal cuts off the end, so the most important part comes first.
fn text(lock: &Lock, elapsed: Duration, limit: WaitLimit, still_held: &str) -> String {
    let elapsed = words::span(elapsed);
    let time = match limit {
        WaitLimit::AtMost(limit) => format!("{elapsed} of {}", words::span(limit)),
        WaitLimit::Forever => elapsed,
    };
    let Ok(status) = lock.check(None) else {
        return format!("onehold: waiting {time} (Ctrl-C cancels)");
    };
    let own = status
        .waiters
        .iter()
        .find(|waiter| waiter.pid == shown_as());
    let position = own.map_or_else(String::new, |own| {
        format!(", position {} of {}", own.position, status.waiters.len())
    });
    let owner = for_owner(&status);
    let comma = if owner.is_empty() { "" } else { "," };
    let holder = describe::describe_holder(&status);
    format!(
        "onehold: waiting{owner}{comma} {time}{position}: {holder}{still_held} (Ctrl-C cancels)"
    )
}

/// " for runner-7" if the holder has an owner.
fn for_owner(status: &Status) -> String {
    let owner = status
        .record
        .as_ref()
        .and_then(|record| record.owner.as_deref());
    owner.map_or_else(String::new, |owner| {
        format!(" for {}", words::escape(owner))
    })
}
