//! Supervises the command of `run`: forwards signals, checks the hold, and releases it at the end.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use onehold::memory::drop_code_pages;
use onehold::process::pass_on_wide_code;
use onehold::signal::{self, QueuedSignal, SignalQueue};
use onehold::{Hold, LockName, Program, ReleaseOutcome, Started, Status};
use serde_json::json;

use crate::args::OnLost;
use crate::cancel::{self, SIGINT};
use crate::describe;
use crate::exit::Exit;
use crate::outcome::Outcome;
use crate::outcome::{Printed, failed};
use crate::output;
use crate::session::Session;
use crate::words;

/// Interval of the check whether the path still leads to the own lock file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time between TERM and KILL for a command that has lost its lock.
const GRACE: Duration = Duration::from_secs(10);

// POSIX fixes these numbers, see kill(1).
const SIGHUP: i32 = 1;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Blocks signals and queues them for the supervisor.
pub(crate) fn queue() -> anyhow::Result<SignalQueue> {
    SignalQueue::open().context("cannot queue signals")
}

/// Runs a command until it exits and releases the hold.
pub(crate) fn supervise(
    session: &Session,
    mut hold: Hold,
    program: &Program,
    queue: &SignalQueue,
    on_lost: OnLost,
) -> Printed {
    // There is no command yet to forward a signal to.
    let early = queue
        .take_ending()
        .or_else(|| cancel::interrupted_after_commit().then_some(SIGINT));
    if let Some(signal) = early {
        drop(hold);
        signal::exit_by_signal(signal);
        return Printed::Yes(Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)));
    }
    let child = match hold.start(program, &queue.mask_before()) {
        Ok(child) => child,
        Err(error) => {
            let outcome = failed(session, &error.into());
            drop(hold);
            return outcome.into();
        }
    };
    let mut supervisor = Supervisor {
        session,
        hold,
        child,
        on_lost,
        lost: None,
        renewal_failed: false,
        interrupted: false,
    };
    supervisor.wait(queue);
    supervisor.finish()
}

struct Supervisor<'a> {
    session: &'a Session,
    hold: Hold,
    child: Started,
    on_lost: OnLost,
    /// When the loss of the lock was noticed, and whether KILL was sent since.
    lost: Option<(Instant, bool)>,
    /// Whether the last renewal failed since the last check.
    renewal_failed: bool,
    /// A terminal sent INT, to the wrapper and to the command.
    interrupted: bool,
}

impl Supervisor<'_> {
    /// Waits until the command has exited. Must not return earlier, because the caller then releases
    /// the hold. The command is reaped after that: a PID that is gone, on record, would let other
    /// programs remove the file before we do.
    fn wait(&mut self, queue: &SignalQueue) {
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        let mut is_long_run = false;
        loop {
            match self.child.has_ended() {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => {
                    // Waits for it in the other way; `finish` reports what that says.
                    let _ = self.child.wait();
                    return;
                }
            }
            let until_check = next_check.saturating_duration_since(Instant::now());
            let pause = match self.renewal_due_in() {
                Some(due) => until_check.min(due),
                None => until_check,
            };
            match queue.next(Some(pause)) {
                Ok(Some(received)) => self.forward(received),
                Ok(None) => {}
                // Lack of memory, for example. Keep supervising.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
            if Instant::now() >= next_check {
                self.renewal_failed = false;
                self.check();
                next_check = Instant::now() + CHECK_INTERVAL;
                if !is_long_run {
                    drop_code_pages();
                    is_long_run = true;
                }
            }
            self.renew();
        }
    }

    fn forward(&mut self, received: QueuedSignal) {
        let from_terminal = !received.from_process;
        match received.signal {
            // The terminal has sent it to the whole foreground process group, so to the command, too.
            SIGINT | SIGQUIT | SIGHUP if from_terminal => {
                self.interrupted |= received.signal == SIGINT;
            }
            signal if !received.is_of_a_child() => {
                // Fails if the command has exited already, which needs no action.
                let _ = signal::send(&self.child, signal);
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        match self.lost {
            None => {
                // A command that closes its descriptor says so in the record, or a free kernel lock
                // would pass for its end.
                let _ = self.hold.note_closed_descriptor();
                if matches!(self.hold.is_lost(), Ok(true)) {
                    self.lose();
                }
            }
            Some((since, false)) if self.on_lost == OnLost::Term && since.elapsed() >= GRACE => {
                let _ = signal::send(&self.child, SIGKILL);
                if !self.session.global.json {
                    output::eprint("onehold: the command did not exit, sending KILL");
                }
                self.lost = Some((since, true));
            }
            Some(_) => {}
        }
    }

    fn lose(&mut self) {
        self.lost = Some((Instant::now(), false));
        let consequence = match self.on_lost {
            OnLost::Term => {
                let _ = signal::send(&self.child, SIGTERM);
                "sent TERM, KILL in 10 s"
            }
            OnLost::Warn => "the command keeps running",
        };
        if !self.session.global.json {
            output::eprint(&format!("onehold: {}; {consequence}", self.loss_text()));
            if let Some(now) = self.now() {
                output::eprint(&format!("  now: {}", describe::describe_holder(&now)));
            }
        }
    }

    fn loss_text(&self) -> String {
        format!(
            "lost lock {} while the command was running",
            words::quoted(&self.hold.record().name)
        )
    }

    /// The lock as it is now.
    fn now(&self) -> Option<Status> {
        let name = LockName::new(&self.hold.record().name).ok()?;
        self.session.lock(name).ok()?.inspect(None).ok()
    }

    /// `None`: the lock is lost, or the last renewal failed and is tried again after the next check.
    fn renewal_due_in(&self) -> Option<Duration> {
        let is_renewed = self.lost.is_none() && !self.renewal_failed;
        is_renewed.then(|| self.hold.renewal_due_in())
    }

    fn renew(&mut self) {
        if self.renewal_due_in() == Some(Duration::ZERO) {
            // Until it succeeds the hold only looks older than it is.
            self.renewal_failed = self.hold.renew().is_err();
        }
    }

    fn finish(mut self) -> Printed {
        let name = words::quoted(&self.hold.record().name);
        let loss = self.loss_text();
        let now = if self.session.global.json {
            self.now()
        } else {
            None
        };
        let mut warnings: Vec<String> = self
            .hold
            .warnings()
            .iter()
            .map(words::error_chain)
            .collect();
        let number = self.hold.number();
        let displaced = self.hold.displaced().cloned().map(Box::new);
        let was_lost = match (self.lost, self.hold.release()) {
            (None, Ok(ReleaseOutcome::Released)) => false,
            (None, Err(error)) => {
                warnings.push(words::error_chain(&error));
                false
            }
            (None, Ok(ReleaseOutcome::Lost)) => {
                if !self.session.global.json {
                    output::eprint(&format!("onehold: {loss}"));
                }
                true
            }
            (Some(_), _) => true,
        };
        let status = match self.child.wait() {
            Ok(status) => Some(status),
            Err(error) => {
                let cause = words::cause_text(&error);
                warnings.push(format!("cannot read the exit code of the command: {cause}"));
                None
            }
        };
        let command_exit = exit_of(status);
        let mut outcome = if was_lost && self.on_lost == OnLost::Term {
            let mut outcome = Outcome::new(Exit::Lost, "lost", loss).failure("LOST", json!({}));
            if !self.session.global.json {
                // Printed when the loss was noticed.
                outcome.failure = None;
            }
            outcome
        } else {
            let word = if was_lost { "lost" } else { "released" };
            let text = format!("{name}: the command {}", status_text(status));
            Outcome::new(command_exit, word, text)
        };
        outcome.warnings = warnings;
        outcome.hold = Some(number);
        outcome.displaced = displaced;
        let wide = status.filter(|status| is_wide(*status));
        outcome.command_exit_code = wide
            .and_then(|status| status.code())
            .or(Some(command_exit.code().into()));
        if was_lost {
            outcome.lock = now.map(Box::new);
        }
        let killed_by = status.and_then(signal::terminating_signal);
        if self.interrupted && killed_by == Some(SIGINT) && !was_lost {
            let _ = output::print_outcome(self.session, &outcome);
            // A shell continues its script after a child that only exits with 130.
            signal::exit_by_signal(SIGINT);
            return Printed::Yes(outcome.exit);
        }
        if let Some(status) = status.filter(|status| !was_lost && is_wide(*status)) {
            let _ = output::print_outcome(self.session, &outcome);
            pass_on_wide_code(status);
            return Printed::Yes(outcome.exit);
        }
        outcome.into()
    }
}

/// Returns whether the exit code does not fit into a byte, as on Windows.
fn is_wide(status: ExitStatus) -> bool {
    status
        .code()
        .is_some_and(|code| u8::try_from(code).is_err())
        && signal::terminating_signal(status).is_none()
}

pub(crate) fn exit_of(status: Option<ExitStatus>) -> Exit {
    match status.map(|status| (signal::terminating_signal(status), status.code())) {
        Some((Some(signal), _)) => Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
        Some((None, Some(code))) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        _ => Exit::RunFailed,
    }
}

fn status_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (signal::terminating_signal(status), status.code())) {
        Some((Some(signal), _)) => format!("was killed by signal {signal}"),
        Some((None, Some(code))) => format!("exited with {code}"),
        _ => "ended with an unknown exit status".to_owned(),
    }
}
