//! The waits of a server: each in a thread, which sleeps in the kernel.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::anyhow;
use onehold::command_line::signal::{interrupt, without_signals};
use onehold::{Attempt, Hold, Holder, Lock, Options, Wait, WaitDecision};

use super::answer::{Answer, canceled, line};
use super::pipes::Notifier;
use crate::arguments::args::{HoldArgs, WaitLimit};
use crate::commands::acquire;
use crate::commands::hold::End;
use crate::commands::hold::event::Event;
use crate::configuration::Session;
use crate::output::failed;
use crate::taking::{Taking, malformed};

/// A wait that is over sooner is not told.
const TOLD_AFTER: Duration = Duration::from_millis(50);

/// Threads without work that are kept.
const MAX_IDLE: usize = 4;

pub(super) type Attempted = onehold::Result<Attempt<Hold>>;

/// What a request asks for, and who.
pub(super) struct Wanted {
    pub(super) id: u64,
    pub(super) callers: Vec<u64>,
    pub(super) prepared: Arc<Prepared>,
}

/// What is to be taken.
pub(super) struct Prepared {
    pub(super) session: Session,
    pub(super) typed: HoldArgs,
    pub(super) lock: Lock,
    pub(super) options: Options,
    /// A caller that runs inside a hold of the lock needs none of its own.
    pub(super) is_reentrant: bool,
}

impl Deref for Wanted {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        &self.prepared
    }
}

/// What a thread has to say.
pub(super) enum FromThread {
    /// Holds may have been broken.
    Look,
    /// The server is to end.
    End(End),
    /// A line about a wait or a release that is not over.
    Line(u64, String),
    /// A wait is over.
    Over(Box<Wanted>, Box<Attempted>),
    /// Something that may take long was done.
    Done(u64, Answer),
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It waits for a lock. Only that can be canceled.
    Wait,
    /// The same on a server, whose queue it has to leave.
    WaitOnServer,
    /// It releases locks by their names.
    ReleaseByName,
    /// Anything else that may take long.
    Other,
}

impl Wanted {
    pub(super) fn new(id: u64, callers: Vec<u64>, prepared: Prepared) -> Self {
        Self {
            id,
            callers,
            prepared: Arc::new(prepared),
        }
    }

    pub(super) fn taking(&self) -> Taking<'_> {
        Taking {
            session: &self.session,
            typed: &self.typed,
            lock: &self.lock,
            on_wait: None,
        }
    }

    /// Takes the lock if it is free.
    pub(super) fn try_now(&self) -> Attempted {
        self.lock
            .hold(&self.options, self.taking().plain_wait(None))
    }

    /// Whether an attempt may block for long although it does not wait.
    pub(super) fn may_block(&self) -> bool {
        use onehold::Format::{Flock, Native};
        self.lock.is_remote() || !matches!(self.lock.format(), Native | Flock)
    }

    /// What a thread does that waits for it.
    fn work(&self) -> Work {
        if self.lock.is_remote() {
            Work::WaitOnServer
        } else {
            Work::Wait
        }
    }

    pub(super) fn is_endless(&self) -> bool {
        self.typed.wait == Some(WaitLimit::Forever)
    }

    /// Calls `attempt`, one call of the library, with the wait that was asked for.
    fn wait<T>(
        &self,
        state: &State,
        notifier: &Notifier<FromThread>,
        attempt: impl Fn(Wait<'_>) -> onehold::Result<Attempt<T>>,
    ) -> onehold::Result<Attempt<T>> {
        let taking = self.taking();
        let once = |limit: Option<WaitLimit>| {
            let wait = taking
                .plain_wait(limit)
                .with_position()
                .on_decision(|decision| state.may(decision));
            let wait: Wait<'_> = if self.lock.is_remote() {
                wait.until_canceled(&state.is_canceled)
            } else {
                wait.until_interrupted(&state.is_canceled)
            };
            let wait = wait.on_wait(TOLD_AFTER, |status| {
                let event = Event::waiting(&self.session, status).of(self.id);
                notifier.send(FromThread::Line(self.id, event.line()));
            });
            attempt(wait)
        };
        malformed::attempt_beside(taking, self.typed.wait, once)
    }
}

const WAITS: u8 = 0;
const TAKES: u8 = 1;
const CANCELED: u8 = 2;

/// How far a wait has come, as far as it matters for its end.
#[derive(Default)]
struct State {
    phase: AtomicU8,
    is_canceled: AtomicBool,
}

impl State {
    /// Called before the lock is taken. Once it is canceled, it is not taken.
    fn may(&self, decision: WaitDecision) -> bool {
        let (from, to) = match decision {
            WaitDecision::Take => (WAITS, TAKES),
            WaitDecision::WaitAgain => (TAKES, WAITS),
        };
        let phase = &self.phase;
        let changed = phase.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        !self.is_canceled.load(Ordering::SeqCst) && changed.is_ok()
    }
}

/// A wait, or something else that a thread does for a request.
pub(super) struct Waiting {
    work: Work,
    state: Arc<State>,
    worker: Worker,
}

impl Waiting {
    /// Ends the wait. The lock may have been taken already; if so, the thread says so.
    pub(super) fn cancel(&self) {
        if !matches!(self.work, Work::Wait | Work::WaitOnServer) {
            return;
        }
        self.state.is_canceled.store(true, Ordering::SeqCst);
        let phase = &self.state.phase;
        let _ = phase.compare_exchange(WAITS, CANCELED, Ordering::SeqCst, Ordering::SeqCst);
        interrupt(&self.worker.thread);
    }

    pub(super) fn is_canceled(&self) -> bool {
        self.state.is_canceled.load(Ordering::SeqCst)
    }

    /// Whether its end matters although it was canceled: the lock may have been taken.
    pub(super) fn goes_on(&self) -> bool {
        self.work != Work::Wait || self.state.phase.load(Ordering::SeqCst) == TAKES
    }

    pub(super) fn releases_by_name(&self) -> bool {
        self.work == Work::ReleaseByName
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one thing after the other.
struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start() -> anyhow::Result<Self> {
        let (jobs, received) = mpsc::channel::<Job>();
        let work = move || received.into_iter().for_each(|job| job());
        let thread = Builder::new().name("wait".to_owned());
        let thread = without_signals(|| thread.spawn(work))??;
        Ok(Self { jobs, thread })
    }
}

/// Threads that wait for something to do, and what wakes the server when they have done it.
pub(super) struct Workers {
    idle: Vec<Worker>,
    pub(super) notifier: Arc<Notifier<FromThread>>,
}

impl Workers {
    pub(super) fn new(notifier: Arc<Notifier<FromThread>>) -> Self {
        let idle = Vec::new();
        Self { idle, notifier }
    }

    /// Waits in a thread.
    pub(super) fn wait(&mut self, wanted: Box<Wanted>) -> anyhow::Result<Waiting> {
        self.give(wanted.work(), move |state, notifier| {
            let hold = |wait: Wait<'_>| wanted.lock.hold(&wanted.options, wait);
            let attempted = wanted.wait(state, notifier, hold);
            FromThread::Over(wanted, Box::new(attempted))
        })
    }

    /// Acquires the lock for this holder in a thread, which waits for it.
    pub(super) fn acquire(
        &mut self,
        wanted: Box<Wanted>,
        holder: Holder,
    ) -> anyhow::Result<Waiting> {
        self.give(wanted.work(), move |state, notifier| {
            let acquire = |wait: Wait<'_>| wanted.lock.acquire(&wanted.options, holder, wait);
            let attempted = wanted.wait(state, notifier, acquire);
            let outcome = if state.is_canceled.load(Ordering::SeqCst) {
                // Dropped, it is released.
                canceled()
            } else {
                let leased = attempted.and_then(|one| acquire::leased(wanted.taking(), one));
                leased.unwrap_or_else(|error| failed(&wanted.session, &error.into()))
            };
            let line = line(&wanted.session, wanted.id, &outcome);
            let answer = Answer {
                line,
                ..Answer::default()
            };
            FromThread::Done(wanted.id, answer)
        })
    }

    /// Does in a thread what may take long.
    pub(super) fn answer(
        &mut self,
        id: u64,
        work: Work,
        answer: impl FnOnce() -> Answer + Send + 'static,
    ) -> anyhow::Result<Waiting> {
        self.give(work, move |_, _| FromThread::Done(id, answer()))
    }

    fn give(
        &mut self,
        work: Work,
        run: impl FnOnce(&State, &Notifier<FromThread>) -> FromThread + Send + 'static,
    ) -> anyhow::Result<Waiting> {
        let state = Arc::new(State::default());
        let (own, notifier) = (Arc::clone(&state), Arc::clone(&self.notifier));
        let job: Job = Box::new(move || notifier.send(run(&own, &notifier)));
        let worker = self.idle.pop().map_or_else(Worker::start, Ok)?;
        let sent = worker.jobs.send(job);
        sent.map_err(|_| anyhow!("a thread has ended"))?;
        Ok(Waiting {
            work,
            state,
            worker,
        })
    }

    /// The wait is over.
    pub(super) fn keep(&mut self, waiting: Waiting) {
        if self.idle.len() < MAX_IDLE {
            self.idle.push(waiting.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pipes::events;
    use super::*;

    #[test]
    fn what_is_no_wait_is_not_canceled_and_its_answer_comes() {
        let (notifier, events) = events().unwrap();
        let (go_on, is_asked) = mpsc::channel();
        let mut workers = Workers::new(notifier);
        let line = String::from("released");
        let answer = move || {
            is_asked.recv().unwrap();
            Answer {
                line,
                ..Answer::default()
            }
        };
        let release = workers.answer(7, Work::Other, answer).unwrap();
        release.cancel();
        assert!(!release.is_canceled() && release.goes_on());
        go_on.send(()).unwrap();
        let told = events.next(Duration::from_mins(1));
        assert!(matches!(told, Some(FromThread::Done(7, answer)) if answer.line == "released"));
    }
}
