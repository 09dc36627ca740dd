//! What is seen of a wait that is worth telling of: on a terminal one line that lives, elsewhere one
//! line when it is told and one when it ends.

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

/// How often the line is told anew.
const EVERY: Duration = Duration::from_secs(1);

/// The wait of one attempt, if there is one.
#[derive(Default)]
pub(crate) struct Progress {
    begun: RefCell<Option<Begun>>,
}

enum Begun {
    Told { name: String, since: Instant },
    Alive(Live),
}

/// The line and the thread that keeps it true.
struct Live {
    over: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// It has been waited for `status` `since` then.
    pub(crate) fn begin(&self, lock: &Lock, status: &Status, limit: WaitLimit, since: Instant) {
        let held: Vec<String> = enclosing_names()
            .iter()
            .map(|name| describe::quoted(name))
            .collect();
        let meanwhile = if held.is_empty() {
            String::new()
        } else {
            format!("; meanwhile {} stays held", held.join(", "))
        };
        let begun = if std::io::stderr().is_terminal() {
            Live::begin(lock.clone(), limit, meanwhile, since).map(Begun::Alive)
        } else {
            output::talk(&format!(
                "onehold: waiting: {}{meanwhile}",
                describe::sentence(status)
            ));
            Some(Begun::Told {
                name: describe::quoted(lock.name().as_str()),
                since,
            })
        };
        *self.begun.borrow_mut() = begun;
    }

    /// Waiting is over, one way or the other.
    pub(crate) fn end(&self) {
        match self.begun.borrow_mut().take() {
            None => {}
            Some(Begun::Told { name, since }) => output::talk(&format!(
                "onehold: waited {} for {name}",
                describe::span(since.elapsed())
            )),
            Some(Begun::Alive(live)) => {
                drop(live.over);
                let _ = live.thread.join();
            }
        }
    }
}

impl Live {
    fn begin(lock: Lock, limit: WaitLimit, meanwhile: String, since: Instant) -> Option<Self> {
        let (over, is_over) = mpsc::channel::<()>();
        // Signals are for the thread that waits.
        let thread = without_signals(|| {
            std::thread::Builder::new().spawn(move || {
                let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                    line.set_style(style);
                }
                loop {
                    line.set_message(text(&lock, since.elapsed(), limit, &meanwhile));
                    line.tick();
                    if is_over.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
                line.finish_and_clear();
            })
        });
        Some(Self {
            over,
            thread: thread.ok()?.ok()?,
        })
    }
}

/// "onehold: waiting 12s of 5m, place 2 of 3, Ctrl-C to cancel: `x` is held by …". The line is cut
/// at its end; what must be seen comes first.
fn text(lock: &Lock, elapsed: Duration, limit: WaitLimit, meanwhile: &str) -> String {
    let elapsed = describe::span(elapsed);
    let time = match limit {
        WaitLimit::AtMost(limit) => format!("{elapsed} of {}", describe::span(limit)),
        WaitLimit::Forever => elapsed,
    };
    let Ok(status) = lock.check(None) else {
        return format!("onehold: waiting {time}, Ctrl-C to cancel");
    };
    let own = status
        .waiters
        .iter()
        .find(|waiter| waiter.pid == Pid::of_self());
    let place = own.map_or_else(String::new, |own| {
        format!(", place {} of {}", own.place, status.waiters.len())
    });
    let sentence = describe::sentence(&status);
    format!("onehold: waiting {time}{place}, Ctrl-C to cancel: {sentence}{meanwhile}")
}
