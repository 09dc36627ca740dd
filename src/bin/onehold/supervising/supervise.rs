//! Supervises the command of `run`: forwards signals, checks the hold, ends the work if it must, and
//! releases the hold at the end.

use std::io::ErrorKind;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::{DateTime, Utc};
use onehold::command_line::signal::{self, QueuedSignal, SignalQueue};
use onehold::command_line::{
    Ending, HowEnded, Program, Remaining, Started, adopt_orphans, drop_code_pages, let_work_go,
    pass_on_wide_code, work_is_contained,
};
use onehold::journal::HoldResult;
use onehold::status::{CommandEnd, KILL_AFTER};
use onehold::{Hold, Lock, LockName, ReleaseOutcome, Status};
use serde_json::json;

use crate::arguments::args::{self, OnLost};
use crate::configuration::Session;
use crate::messages::{
    CommandResult, Exit, Outcome, Printed, Refusal, describe, describe_holder, displaced, local,
};
use crate::supervising::{Heartbeat, SIGINT, broken_text, cancel, die_with, loss_text};
use crate::{output, words};

/// Interval of the check whether the path still leads to the own lock file.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often to look for work that is being ended, if the end of no child wakes the wrapper.
const ENDING_INTERVAL: Duration = Duration::from_millis(250);

// POSIX fixes these numbers, see kill(1).
pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;

/// How long a process takes from closing its files to its end.
const EXITING: Duration = Duration::from_millis(10);

/// Why the work is ended by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Terminated,
    CallerExited,
    TimeLimit,
    Broken,
    Lost,
    /// A signal has killed the command, and what it had begun may go on.
    Killed,
}

/// Blocks signals and queues them for the supervisor.
pub(crate) fn queue() -> anyhow::Result<SignalQueue> {
    SignalQueue::open().context("cannot queue signals")
}

/// Runs a command until it exits and releases the hold.
pub(crate) fn supervise(
    session: &Session,
    mut hold: Hold,
    program: &mut Program,
    queue: &SignalQueue,
    typed: &args::Run,
) -> CommandResult {
    // There is no command yet to forward a signal to.
    let early = queue.take_ending();
    let number = hold.number();
    let is_told = early.is_some_and(|signal| signal.tells_to_break(number));
    if is_told || QueuedSignal::has_told_to_break(number) {
        return Ok(broken_early(hold).into());
    }
    let early = early.map(|early| early.signal);
    if let Some(signal) = early.or_else(cancel::signal_so_far) {
        if let Some(why) = die_with::has_exited() {
            drop(hold);
            return Ok(die_with::not_started(session.verb, why).into());
        }
        cancel::give_back(hold);
        return Ok(Printed::by_signal(signal));
    }
    // Without it orphans would be out of reach, and the rest of the work is not.
    let _ = adopt_orphans();
    let child = hold.start(program, &queue.mask_before())?;
    let time_limit = typed.time_limit.filter(|limit| !limit.is_zero());
    let mut supervisor = Supervisor {
        session,
        typed,
        deadline: time_limit.and_then(|limit| Instant::now().checked_add(limit)),
        hold,
        child,
        forced: None,
        is_lost: false,
        heartbeat: Heartbeat::new(CHECK_INTERVAL),
        interrupted: false,
        has_said_kill: false,
        has_said_refused: false,
        has_said_unlisted: false,
    };
    if !work_is_contained() {
        supervisor.say(
            "warning: cannot keep the processes of the command together: the job of this \
             session allows no other in it",
        );
    }
    supervisor.wait(queue);
    Ok(supervisor.finish(queue))
}

/// Gives back a hold that was broken before it had a command.
#[cold]
#[inline(never)]
fn broken_early(mut hold: Hold) -> Outcome {
    let name = words::quoted(hold.info().name());
    hold.will_end(HoldResult::Broken, None);
    let released = hold.release_or_keep(None, &mut |_| false);
    let noted = hold.note_end(HoldResult::Broken, None);
    let text = format!("lock {name} was broken before its command was started");
    let mut outcome = Outcome::refused(Refusal::LOST, text);
    outcome.hold = Some(hold.number());
    outcome.displaced = displaced(hold.displaced());
    let failed = released.err();
    let warnings = failed.iter().chain(&noted).map(words::error_chain);
    outcome.warnings = warnings.collect();
    outcome
}

struct Supervisor<'a> {
    session: &'a Session,
    typed: &'a args::Run,
    hold: Hold,
    child: Started,
    /// When the time limit ends.
    deadline: Option<Instant>,
    /// The work is being ended by force.
    forced: Option<(Cause, Ending)>,
    /// The loss of the lock was noticed.
    is_lost: bool,
    heartbeat: Heartbeat,
    /// A terminal sent INT.
    interrupted: bool,
    has_said_kill: bool,
    /// That a process could not be signaled. Those that it starts later cannot either.
    has_said_refused: bool,
    /// That the work cannot be listed.
    has_said_unlisted: bool,
}

impl Supervisor<'_> {
    /// Waits until the command has exited, and, if the work is ended by force, all of it. Must not return
    /// earlier, because the caller then releases the hold. The command is reaped after that: a PID that
    /// is gone, on record, would let other programs remove the file before we do.
    fn wait(&mut self, queue: &SignalQueue) {
        let mut is_long_run = false;
        loop {
            let how_ended = self.child.how_ended().unwrap_or_else(|_| {
                // Waits for it in the other way; `finish` reports what that says.
                let _ = self.child.wait();
                Some(HowEnded::Exited)
            });
            if how_ended == Some(HowEnded::Killed) && self.forced.is_none() {
                self.end_work(Cause::Killed);
            }
            if self.has_work_ended(how_ended.is_some()) {
                return;
            }
            match queue.next(Some(self.pause())) {
                Ok(Some(received)) => self.receive(received, queue),
                Ok(None) => {}
                // Lack of memory, for example. Keep supervising.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
            let is_over = |deadline: &mut Instant| Instant::now() >= *deadline;
            if self.deadline.take_if(is_over).is_some() {
                self.end_work(Cause::TimeLimit);
            }
            // The keeper of a lease tells by a signal.
            let is_over = !self.is_lost && self.hold.lost_in().is_some_and(|left| left.is_zero());
            let is_told = is_over || (self.hold.is_broken() && self.forced.is_none());
            if self.heartbeat.is_check_due(is_told) {
                self.check();
                if !std::mem::replace(&mut is_long_run, true) {
                    drop_code_pages();
                }
            }
            if !self.is_lost {
                self.heartbeat.renew_if_due(&mut self.hold);
            }
        }
    }

    fn pause(&self) -> Duration {
        let heartbeat = if self.is_lost {
            self.heartbeat.until_check()
        } else {
            self.heartbeat.pause(&self.hold)
        };
        let limit = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ending = self.forced.as_ref().map(|_| ENDING_INTERVAL);
        limit
            .into_iter()
            .chain(ending)
            .fold(heartbeat, Duration::min)
    }

    /// Returns whether nothing is left to wait for. Sends the signals that are due.
    fn has_work_ended(&mut self, command_has_ended: bool) -> bool {
        let Some((_, ending)) = &mut self.forced else {
            return command_has_ended;
        };
        let remaining = self.hold.step(ending);
        self.report(&remaining);
        // Not at the first step: most work ends at once.
        if let Some(error) = &remaining.look_failed
            && !std::mem::replace(&mut self.has_said_unlisted, true)
        {
            let cause = words::cause_text(error);
            self.say(&format!(
                "warning: cannot list what the command has started: {cause}; each process \
                 gets its signal once its parent has exited"
            ));
        }
        command_has_ended && remaining.is_over
    }

    fn report(&mut self, remaining: &Remaining) {
        for process in &remaining.refused {
            self.report_refused(process.pid.get());
        }
        if !remaining.killed.is_empty() && !self.has_said_kill {
            self.has_said_kill = true;
            let command = self.child.id();
            let mut killed = remaining.killed.iter();
            let what = if killed.any(|process| process.pid.get() == command) {
                "the command"
            } else {
                "a process that the command started"
            };
            self.say(&format!("{what} did not exit, sent KILL"));
        }
    }

    fn report_refused(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.has_said_refused, true) {
            let command = onehold::status::Pid::new(pid).map(onehold::status::Pid::command_line);
            let process = describe::process(pid, &command.unwrap_or_default());
            self.say(&format!(
                "warning: cannot signal {process}: operation not permitted; waiting for it to exit"
            ));
        }
    }

    fn say(&self, message: &str) {
        output::say(self.session, message);
    }

    fn receive(&mut self, received: QueuedSignal, queue: &SignalQueue) {
        if received.is_of_a_child() {
            return;
        }
        // What its own thread sends loses its sender, too, if there is no room.
        let is_own = received.has_lost_value && die_with::has_exited().is_some();
        if !is_own && received.tells_to_break(self.hold.number()) {
            self.end_work(Cause::Broken);
            return;
        }
        if queue.is_ignored(received.signal) {
            return;
        }
        let sent = match received.signal {
            _ if received.is_stop() => {
                signal::stop((!received.from_process).then_some(&self.child))
            }
            SIGINT | SIGQUIT | SIGHUP if !received.from_process => {
                self.interrupted |= received.signal == SIGINT;
                let leader_only = received.signal == SIGHUP;
                signal::send_from_terminal(&self.child, received.signal, leader_only)
            }
            SIGTERM if received.from_process && !is_own => {
                self.end_work(Cause::Terminated);
                return;
            }
            // Sent by the thread that has waited for that. It may have waited for the end of the command itself, as a
            // reader of its pipe does: its exit code is there a moment later.
            SIGTERM if die_with::has_exited().is_some() => {
                std::thread::sleep(EXITING);
                self.end_work(Cause::CallerExited);
                return;
            }
            signal if received.from_process => signal::send(&self.child, signal),
            // Of this process alone: a timer, a limit, a closed pipe.
            _ => return,
        };
        // Another error: the command has exited already.
        if sent.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            self.report_refused(self.child.id());
        }
    }

    /// Begins to end the work: sends TERM.
    fn end_work(&mut self, cause: Cause) {
        if let Some((before, ending)) = &mut self.forced {
            match cause {
                Cause::Terminated => ending.tell_again(),
                Cause::TimeLimit | Cause::CallerExited | Cause::Killed => {}
                Cause::Broken | Cause::Lost => {
                    *before = cause;
                    self.say(&self.end_text(cause));
                }
            }
            return;
        }
        // If it has ended meanwhile, its exit code counts.
        let is_by_others = matches!(
            cause,
            Cause::Broken | Cause::CallerExited | Cause::TimeLimit
        );
        if is_by_others && matches!(self.child.how_ended(), Ok(Some(_))) {
            return;
        }
        let mut ending = self.hold.end_work(&self.child);
        // First: a message can be kept waiting by who reads it.
        let remaining = self.hold.step(&mut ending);
        self.forced = Some((cause, ending));
        if matches!(cause, Cause::Terminated | Cause::Killed) {
            self.report(&remaining);
            return;
        }
        // Zero: no KILL.
        let wanted = self.typed.kill_after.unwrap_or(KILL_AFTER);
        // Without a lease the work has to end before another holder may begin.
        let left = self.hold.valid_until().filter(|_| cause == Cause::Lost);
        let kill_after = match left.map(|left| Duration::from_secs(left.as_secs())) {
            Some(left) if wanted.is_zero() => left,
            Some(left) => left.min(wanted),
            None => wanted,
        };
        let kill = match kill_after {
            Duration::ZERO => String::new(),
            after => format!(", KILL in {}", words::short_span(after)),
        };
        let text = self.end_text(cause);
        self.say(&format!("{text}; sent TERM{kill}"));
        self.report(&remaining);
    }

    fn check(&mut self) {
        if self.is_lost {
            return;
        }
        // A command that closes its descriptor says so in the record, or a free kernel lock would pass
        // for its end.
        let _ = self.hold.note_closed_descriptor();
        if matches!(self.hold.is_lost(), Ok(true)) {
            self.lose();
        } else if self.hold.is_broken() && !matches!(self.forced, Some((Cause::Broken, _))) {
            self.end_work(Cause::Broken);
        }
    }

    fn lose(&mut self) {
        self.is_lost = true;
        // Whoever breaks a hold that does not answer removes it at last.
        let is_broken = matches!(self.forced, Some((Cause::Broken, _)));
        match self.typed.on_lost {
            OnLost::Term if !is_broken => self.end_work(Cause::Lost),
            OnLost::Term => {}
            OnLost::Warn => {
                let loss = self.end_text(Cause::Lost);
                self.say(&format!("{loss}; the command keeps running"));
            }
        }
        // Of a store that may be out of reach nothing is asked: there is no time for it.
        if self.session.store.is_remote() || self.session.global.json {
            return;
        }
        let now = self.now();
        let now = now.map(|now| format!("now: {}", describe_holder(&now, local)));
        for line in now.into_iter().chain(self.fate()) {
            output::eprint(&format!("  {line}"));
        }
    }

    fn end_text(&self, cause: Cause) -> String {
        match cause {
            // Whoever did that knows it.
            Cause::Terminated | Cause::Killed => String::new(),
            Cause::CallerExited => die_with::has_exited().unwrap_or_default().to_owned(),
            Cause::Broken => broken_text(&self.hold, WHILE_RUNNING),
            Cause::Lost => loss_text(&self.hold, WHILE_RUNNING),
            Cause::TimeLimit => {
                let limit = words::short_span(self.typed.time_limit.unwrap_or_default());
                format!("the command exceeded its time limit of {limit}")
            }
        }
    }

    fn lock(&self) -> Option<Lock> {
        let name = LockName::new(self.hold.info().name()).ok()?;
        self.session.lock(name).ok()
    }

    /// How the hold was lost, if that is known.
    fn fate(&self) -> Option<String> {
        let (text, is_known) = describe::fate(&self.lock()?, self.hold.number())?;
        is_known.then_some(text)
    }

    /// Now there is time to ask, and the store answers.
    #[cold]
    fn tell_fate_of_remote(&self) {
        if self.session.store.is_remote() && !self.session.global.json {
            self.fate()
                .inspect(|line| output::eprint(&format!("  {line}")));
        }
    }

    /// The lock as it is now; of several holds our own, if it is still there.
    fn now(&self) -> Option<Status> {
        let status = self.lock()?.inspect(None).ok()?;
        Some(status.clone().of_hold(self.hold.number()).unwrap_or(status))
    }

    fn reap(&mut self, warnings: &mut Vec<String>) -> Option<ExitStatus> {
        let status = self.child.wait().inspect_err(|error| {
            let cause = words::cause_text(error);
            warnings.push(format!("cannot read the exit code of the command: {cause}"));
        });
        status.ok()
    }

    fn finish(mut self, queue: &SignalQueue) -> Printed {
        let name = words::quoted(self.hold.info().name());
        if self.forced.is_none() {
            let_work_go();
        }
        let session = self.session;
        // With --json: as it was before the release.
        let now = session.global.json.then(|| self.now()).flatten();
        let warnings = self.hold.warnings().iter();
        let mut warnings: Vec<String> = warnings.map(words::error_chain).collect();
        let cause = self.forced.as_ref().map(|(cause, _)| *cause);
        let is_broken = cause == Some(Cause::Broken);
        // Otherwise it is reaped after the release: see `wait`. A store of many machines asks for no process.
        let is_to_be_kept = self.hold.info().hold_at_least().is_some() && !is_broken;
        let is_noted_first = session.history && session.store.is_remote();
        let early = (is_to_be_kept || is_noted_first).then(|| self.reap(&mut warnings));
        let end = early.map(command_end);
        if let Some(end) = end.filter(|_| is_noted_first) {
            let result = result_of(cause, self.is_lost, end);
            self.hold.will_end(result, Some(end));
        }
        let mut goes_on = tries_to_keep(session, queue, &name, self.hold.info().held_until());
        let released = self
            .hold
            .release_or_keep(end.filter(|_| is_to_be_kept), &mut goes_on);
        let was_noticed = self.is_lost || is_broken;
        let is_gone = was_noticed || matches!(released, Ok(ReleaseOutcome::Lost));
        let mut loss = is_gone.then(|| loss_text(&self.hold, WHILE_RUNNING));
        match &released {
            _ if is_gone => {}
            Ok(how) if session.global.verbose => say_released(session, &name, &self.hold, *how),
            Ok(_) => {}
            // Others may have it before the time that was asked for.
            Err(error) if is_to_be_kept => {
                let cause = words::error_chain(error);
                loss = Some(format!(
                    "lost lock {name} after the command had ended: {cause}"
                ));
            }
            Err(error) => warnings.push(words::error_chain(error)),
        }
        if let Some(loss) = loss.as_ref().filter(|_| !was_noticed) {
            output::say(session, loss);
        }
        if is_gone && !is_broken && released.is_ok() {
            self.tell_fate_of_remote();
        }
        let was_lost = loss.is_some();
        let status = early.unwrap_or_else(|| self.reap(&mut warnings));
        if session.history {
            let end = command_end(status);
            let noted = self
                .hold
                .note_end(result_of(cause, was_lost, end), Some(end));
            warnings.extend(noted.as_ref().map(words::error_chain));
        }
        let command_exit = exit_of(status);
        let refusal = match cause {
            _ if was_lost && (is_broken || self.typed.on_lost == OnLost::Term) => {
                Some(Refusal::LOST)
            }
            Some(Cause::CallerExited) => Some(Refusal::CALLER_EXITED),
            Some(Cause::TimeLimit) => Some(Refusal::TIME_LIMIT),
            _ => None,
        };
        let mut outcome = if let Some(refusal) = refusal {
            let loss = loss.filter(|_| refusal == Refusal::LOST && !is_broken);
            let ended = || cause.map(|cause| self.end_text(cause)).unwrap_or_default();
            Outcome::refused(refusal, loss.unwrap_or_else(ended))
        } else {
            let text = format!("{name}: the command {}", status_text(status));
            Outcome::new(command_exit, word_of(was_lost, &released), text)
        };
        if refusal == Some(Refusal::TIME_LIMIT) {
            let limit = self.typed.time_limit.unwrap_or_default().as_secs_f64();
            outcome = outcome.details(json!({ "time_limit_seconds": limit }));
        }
        // What was printed when the work began to be ended is not printed again.
        if !session.global.json {
            outcome.failure = None;
        }
        outcome.warnings = warnings;
        outcome.hold = Some(self.hold.number());
        outcome.displaced = displaced(self.hold.displaced());
        let wide = status.filter(|status| is_wide(*status));
        let code = wide.and_then(|status| status.code());
        outcome.command_exit_code = code.or(Some(command_exit.0.into()));
        outcome.lock = now.map(Box::new);
        // Of a command that exits with 130, the signal is not known.
        let killed_by = status.and_then(signal::terminating_signal);
        let is_interrupted = self.interrupted && killed_by == Some(SIGINT);
        if was_lost || refusal.is_some() || !(is_interrupted || wide.is_some()) {
            return outcome.into();
        }
        let _ = output::print_outcome(session, &outcome);
        match wide {
            Some(status) => pass_on_wide_code(status),
            // A shell continues its script after a child that only exits with 130.
            None => signal::exit_by_signal(SIGINT),
        }
        Printed::Yes(outcome.exit)
    }
}

const WHILE_RUNNING: &str = "the command was running";

/// Called while a lock cannot be kept whose command has ended: until a signal ends this program, that is tried again.
fn tries_to_keep(
    session: &Session,
    queue: &SignalQueue,
    name: &str,
    until: Option<DateTime<Utc>>,
) -> impl FnMut(&onehold::Error) -> bool {
    let mut failed_first = None;
    let mut has_said = false;
    move |error| {
        let since = *failed_first.get_or_insert_with(Instant::now);
        if since.elapsed() >= CHECK_INTERVAL && !std::mem::replace(&mut has_said, true) {
            let cause = words::error_chain(error);
            let until = until.map(|until| format!("; trying until {}", local(until)));
            let until = until.unwrap_or_default();
            output::say(
                session,
                &format!("cannot keep {name} locked yet: {cause}{until}"),
            );
        }
        !queue.is_ending()
    }
}

#[cold]
#[inline(never)]
fn say_released(session: &Session, name: &str, hold: &Hold, how: ReleaseOutcome) {
    let text = match (how, hold.info().held_until()) {
        (ReleaseOutcome::Kept, Some(until)) => {
            format!("{name} stays locked until {}", local(until))
        }
        _ => format!("released {name}"),
    };
    output::say(session, &text);
}

/// `status` of the JSON object.
fn word_of(was_lost: bool, released: &onehold::Result<ReleaseOutcome>) -> &'static str {
    match released {
        _ if was_lost => "lost",
        Ok(ReleaseOutcome::Kept) => "kept",
        Ok(_) => "released",
        Err(_) => "not-released",
    }
}

/// Returns whether the exit code does not fit into a byte, as on Windows.
fn is_wide(status: ExitStatus) -> bool {
    let code = status.code().map(u8::try_from);
    matches!(code, Some(Err(_))) && signal::terminating_signal(status).is_none()
}

pub(crate) fn exit_of(status: Option<ExitStatus>) -> Exit {
    match status.map(|status| (signal::terminating_signal(status), status.code())) {
        Some((Some(signal), _)) => Exit::signal(signal),
        Some((None, Some(code))) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
        _ => Exit::RUN_FAILED,
    }
}

#[cold]
#[inline(never)]
fn command_end(status: Option<ExitStatus>) -> CommandEnd {
    let code = status.and_then(|status| status.code());
    CommandEnd::now(code, status.and_then(signal::terminating_signal))
}

/// How the hold has ended, for the history.
#[cold]
#[inline(never)]
fn result_of(cause: Option<Cause>, was_lost: bool, end: CommandEnd) -> HoldResult {
    match cause {
        Some(Cause::Broken) => HoldResult::Broken,
        _ if was_lost => HoldResult::Lost,
        Some(Cause::TimeLimit) => HoldResult::TimeLimit,
        Some(Cause::CallerExited) => HoldResult::CallerExited,
        _ if end.signal.is_some() => HoldResult::Signal,
        _ => HoldResult::Exited,
    }
}

fn status_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (signal::terminating_signal(status), status.code())) {
        Some((Some(signal), _)) => format!("was killed by signal {signal}"),
        Some((None, Some(code))) => format!("exited with {code}"),
        _ => "ended with an unknown exit status".to_owned(),
    }
}
