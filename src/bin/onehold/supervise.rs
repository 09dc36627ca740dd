//! A command under a hold: signals once each, the hold watched, its end told truthfully.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use onehold::signal::{self, Received, SignalQueue};
use onehold::{Ended, Hold};
use serde_json::json;

use crate::args::OnLost;
use crate::commands::{Carried, Told, failed};
use crate::describe;
use crate::exit::Exit;
use crate::output;
use crate::report::Outcome;
use crate::session::Session;

/// How often the path is compared with our own descriptor, from the second second on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a command that has lost its hold has between TERM and KILL.
const GRACE: Duration = Duration::from_secs(10);

// signal(7): the same numbers on every Linux for these.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
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
    command: &mut Command,
    queue: &SignalQueue,
    on_lost: OnLost,
) -> Carried {
    queue.spare(command);
    let child = match hold.spawn(command) {
        Ok(child) => child,
        Err(error) => {
            let outcome = failed(session, &error.into());
            drop(hold);
            return Ok(outcome.into());
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
    let status = supervisor.wait(queue)?;
    Ok(supervisor.finish(status))
}

struct Supervisor<'a> {
    session: &'a Session,
    hold: Hold,
    child: Child,
    on_lost: OnLost,
    /// When the hold was found lost, and whether the command has been killed since.
    lost: Option<(Instant, bool)>,
    /// A terminal has interrupted us, and with us the command.
    interrupted: bool,
}

impl Supervisor<'_> {
    fn wait(&mut self, queue: &SignalQueue) -> anyhow::Result<ExitStatus> {
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            if let Some(status) = self
                .child
                .try_wait()
                .context("cannot wait for the command")?
            {
                return Ok(status);
            }
            let until_look = next_look.saturating_duration_since(Instant::now());
            let pause = until_look.min(self.hold.renewal_due_in());
            let received = queue.next(Some(pause)).context("cannot wait for signals")?;
            if let Some(received) = received {
                self.pass_on(received);
            }
            if Instant::now() >= next_look {
                self.look();
                next_look = Instant::now() + LOOK_EVERY;
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
            signal if is_for_the_command(signal) => {
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
                "ending the command"
            }
            OnLost::Warn => "the command runs on",
        };
        if !self.session.everywhere.json {
            output::talk(&format!("onehold: {}; {consequence}", self.loss()));
        }
    }

    fn loss(&self) -> String {
        format!(
            "lost the hold of {} while its command ran",
            describe::quoted(&self.hold.record().name)
        )
    }

    fn renew(&mut self) {
        if self.lost.is_none() && self.hold.renewal_due_in().is_zero() {
            // It will be tried again; until then the hold only looks older than it is.
            let _ = self.hold.renew();
        }
    }

    fn finish(self, status: ExitStatus) -> Told {
        let name = describe::quoted(&self.hold.record().name);
        let loss = self.loss();
        let mut warnings: Vec<String> = self.hold.warnings().iter().map(output::chain).collect();
        let number = self.hold.number();
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
        outcome.command_exit_code = Some(command_exit.code());
        if self.interrupted && status.signal() == Some(SIGINT) && !was_lost {
            let _ = output::tell(self.session, &outcome);
            // A shell goes on with its script after a child that only exits with 130.
            signal::end_by(SIGINT);
            return Told::Already(outcome.exit);
        }
        outcome.into()
    }
}

/// All that is queued but the end of a child.
fn is_for_the_command(signal: i32) -> bool {
    const SIGUSR1: i32 = 10;
    const SIGUSR2: i32 = 12;
    [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2].contains(&signal)
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
        (None, None) => Exit::RunFailed,
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("returned {code}"),
        (None, Some(signal)) => format!("died of signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
