//! A command under a hold: signals once each, the hold watched, its end told truthfully.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use onehold::memory::give_back_program;
use onehold::process::pass_on_wide_code;
use onehold::signal::{self, Received, SignalQueue};
use onehold::{Ended, Hold, LockName, Program, Started, Status};
use serde_json::json;

use crate::args::OnLost;
use crate::cancel::{self, SIGINT};
use crate::commands::{Told, failed};
use crate::describe;
use crate::exit::Exit;
use crate::output;
use crate::report::Outcome;
use crate::session::Session;

/// How often the path is compared with our own descriptor, from the second second on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a command that has lost its hold has between TERM and KILL.
const GRACE: Duration = Duration::from_secs(10);

// The same numbers wherever there are signals (POSIX, kill).
const SIGHUP: i32 = 1;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// From here on signals wait for the supervisor.
pub(crate) fn queue() -> anyhow::Result<SignalQueue> {
    SignalQueue::open().context("cannot queue signals")
}

/// Runs a command to its end and gives the hold back.
pub(crate) fn supervise(
    session: &Session,
    mut hold: Hold,
    program: &Program,
    queue: &SignalQueue,
    on_lost: OnLost,
) -> Told {
    // There is no command yet that a terminal or a process could have meant.
    let early = queue
        .take_ending()
        .or_else(|| cancel::came_too_late().then_some(SIGINT));
    if let Some(signal) = early {
        drop(hold);
        signal::end_by(signal);
        return Told::Already(Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)));
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
        interrupted: false,
    };
    let status = supervisor.wait(queue);
    supervisor.finish(status)
}

struct Supervisor<'a> {
    session: &'a Session,
    hold: Hold,
    child: Started,
    on_lost: OnLost,
    /// When the hold was found lost, and whether the command has been killed since.
    lost: Option<(Instant, bool)>,
    /// A terminal has interrupted us, and with us the command.
    interrupted: bool,
}

impl Supervisor<'_> {
    /// Never returns before the command has ended: the hold is given back then. `None`: how it
    /// ended cannot be told.
    fn wait(&mut self, queue: &SignalQueue) -> Option<ExitStatus> {
        let mut next_look = Instant::now() + LOOK_EVERY;
        let mut runs_for_long = false;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => {}
                // Somebody else has waited for it.
                Err(_) => return self.child.wait().ok(),
            }
            let until_look = next_look.saturating_duration_since(Instant::now());
            let pause = until_look.min(self.hold.renewal_due_in());
            match queue.next(Some(pause)) {
                Ok(Some(received)) => self.pass_on(received),
                Ok(None) => {}
                // Out of memory, perhaps; the command goes on, and so do we.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
            if Instant::now() >= next_look {
                self.look();
                next_look = Instant::now() + LOOK_EVERY;
                if !runs_for_long {
                    give_back_program();
                    runs_for_long = true;
                }
            }
            self.renew();
        }
    }

    fn pass_on(&mut self, received: Received) {
        let from_terminal = !received.from_process;
        match received.signal {
            // The whole foreground group got it from the terminal, the command included.
            SIGINT | SIGQUIT | SIGHUP if from_terminal => {
                self.interrupted |= received.signal == SIGINT;
            }
            signal if !received.is_of_a_child() => {
                // It may have ended already, and then there is nobody to tell.
                let _ = signal::send(&self.child, signal);
            }
            _ => {}
        }
    }

    fn look(&mut self) {
        match self.lost {
            None => {
                if matches!(self.hold.is_lost(), Ok(true)) {
                    self.lose();
                }
            }
            Some((since, false)) if self.on_lost == OnLost::Term && since.elapsed() >= GRACE => {
                let _ = signal::send(&self.child, SIGKILL);
                if !self.session.everywhere.json {
                    output::talk("onehold: the command did not end: KILL");
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
                "ending it: TERM now, KILL in 10 s"
            }
            OnLost::Warn => "it runs on",
        };
        if !self.session.everywhere.json {
            output::talk(&format!("onehold: {}; {consequence}", self.loss()));
            if let Some(now) = self.now() {
                output::talk(&format!("  now: {}", describe::sentence(&now)));
            }
        }
    }

    fn loss(&self) -> String {
        format!(
            "lost the hold of {} while its command ran",
            describe::quoted(&self.hold.record().name)
        )
    }

    /// What stands in the hold's place.
    fn now(&self) -> Option<Status> {
        let name = LockName::new(&self.hold.record().name).ok()?;
        self.session.lock(name).ok()?.check(None).ok()
    }

    fn renew(&mut self) {
        if self.lost.is_none() && self.hold.renewal_due_in().is_zero() {
            // It will be tried again; until then the hold only looks older than it is.
            let _ = self.hold.renew();
        }
    }

    fn finish(self, status: Option<ExitStatus>) -> Told {
        let name = describe::quoted(&self.hold.record().name);
        let loss = self.loss();
        let now = if self.session.everywhere.json {
            self.now()
        } else {
            None
        };
        let mut warnings: Vec<String> = self.hold.warnings().iter().map(output::chain).collect();
        let number = self.hold.number();
        let displaced = self.hold.displaced().cloned().map(Box::new);
        let was_lost = match (self.lost, self.hold.release()) {
            (None, Ok(Ended::Released)) => false,
            (None, Err(error)) => {
                warnings.push(output::chain(&error));
                false
            }
            (None, Ok(Ended::Lost)) => {
                if !self.session.everywhere.json {
                    output::talk(&format!("onehold: {loss}"));
                }
                true
            }
            (Some(_), _) => true,
        };
        let command_exit = exit_of(status);
        let mut outcome = if was_lost && self.on_lost == OnLost::Term {
            let mut outcome = Outcome::new(Exit::Lost, "lost", loss).failure("LOST", json!({}));
            if !self.session.everywhere.json {
                // Said when it happened.
                outcome.failure = None;
            }
            outcome
        } else {
            let word = if was_lost { "lost" } else { "released" };
            let text = format!("{name}: the command {}", in_words(status));
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
        let died_of = status.and_then(signal::that_ended);
        if self.interrupted && died_of == Some(SIGINT) && !was_lost {
            let _ = output::tell(self.session, &outcome);
            // A shell goes on with its script after a child that only exits with 130.
            signal::end_by(SIGINT);
            return Told::Already(outcome.exit);
        }
        if let Some(status) = status.filter(|status| !was_lost && is_wide(*status)) {
            let _ = output::tell(self.session, &outcome);
            pass_on_wide_code(status);
            return Told::Already(outcome.exit);
        }
        outcome.into()
    }
}

/// Whether a command returned what does not fit into a byte, as it can on Windows.
fn is_wide(status: ExitStatus) -> bool {
    status
        .code()
        .is_some_and(|code| u8::try_from(code).is_err())
        && signal::that_ended(status).is_none()
}

pub(crate) fn exit_of(status: Option<ExitStatus>) -> Exit {
    match status.map(|status| (signal::that_ended(status), status.code())) {
        Some((Some(signal), _)) => Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
        Some((None, Some(code))) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        _ => Exit::RunFailed,
    }
}

fn in_words(status: Option<ExitStatus>) -> String {
    match status.map(|status| (signal::that_ended(status), status.code())) {
        Some((Some(signal), _)) => format!("died of signal {signal}"),
        Some((None, Some(code))) => format!("returned {code}"),
        _ => "ended, and nobody can tell how".to_owned(),
    }
}
