//! One file per verb: arguments in, one call of the library, an outcome out.

mod acquire;
mod breaking;
mod check;
mod cleanup;
mod list;
mod release;
mod renew;
mod run;

use std::io::ErrorKind;

use onehold::{Claimant, Error};
use serde_json::json;

use crate::args::{self, Cli, Verb};
use crate::describe;
use crate::exit::Exit;
use crate::output;
use crate::report::Outcome;
use crate::session::{Misuse, Session, lock_of_path};
use crate::settings::InForce;

/// Carries out what was typed.
pub(crate) fn run(mut cli: Cli) -> Exit {
    output::set_colour(cli.everywhere.color);
    let verb = name(&cli.verb);
    let json = cli.everywhere.json;
    let session = match session(verb, &mut cli) {
        Ok(session) => session,
        Err(error) => return without_session(verb, json, &error),
    };
    if let Some(line) = session
        .in_force
        .describe()
        .filter(|_| session.everywhere.verbose && !json)
    {
        output::talk(&format!("onehold: {}", describe::escape(&line)));
    }
    let carried_out = match cli.verb {
        Verb::Run(typed) => run::run(&session, typed),
        Verb::Acquire(typed) => acquire::acquire(&session, typed),
        Verb::Release(typed) => release::release(&session, typed),
        Verb::Renew(typed) => renew::renew(&session, typed),
        Verb::Check(typed) => check::check(&session, typed),
        Verb::List(typed) => list::list(&session, &typed),
        Verb::Cleanup(typed) => cleanup::cleanup(&session, &typed),
        Verb::Break(typed) => breaking::break_hold(&session, typed),
    };
    let outcome = match carried_out {
        Ok(Told::Already(exit)) => return exit,
        Ok(Told::Not(outcome)) => *outcome,
        Err(error) => failed(&session, &error),
    };
    match output::tell(&session, &outcome) {
        Ok(()) => outcome.exit,
        // `onehold list | head` is no failure, nor is a check whose answer is the exit code.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => outcome.exit,
        Err(error) => {
            output::talk(&format!(
                "onehold: cannot write to stdout: {}",
                output::cause_in_words(&error)
            ));
            match outcome.exit {
                Exit::Done => Exit::Failed,
                exit => exit,
            }
        }
    }
}

/// Completes what was typed by configuration and profile.
fn session(verb: &'static str, cli: &mut Cli) -> anyhow::Result<Session> {
    let in_force = InForce::read(&cli.everywhere)?;
    let only = lock_of_path(&cli.everywhere, &in_force)?;
    in_force.settings.complete(&mut cli.verb, only.as_ref());
    let claimant = claimant(&cli.verb);
    Session::new(verb, cli.everywhere.clone(), claimant, in_force, only)
}

/// Whether an outcome has been told already.
pub(crate) enum Told {
    Already(Exit),
    Not(Box<Outcome>),
}

impl From<Outcome> for Told {
    fn from(outcome: Outcome) -> Self {
        Self::Not(Box::new(outcome))
    }
}

/// What a command returns.
pub(crate) type Carried = anyhow::Result<Told>;

fn name(verb: &Verb) -> &'static str {
    match verb {
        Verb::Run(_) => "run",
        Verb::Acquire(_) => "acquire",
        Verb::Release(_) => "release",
        Verb::Renew(_) => "renew",
        Verb::Check(_) => "check",
        Verb::List(_) => "list",
        Verb::Cleanup(_) => "cleanup",
        Verb::Break(_) => "break",
    }
}

fn claimant(verb: &Verb) -> Claimant {
    let by = |hold: Option<u64>, owner: Option<&String>| Claimant {
        hold,
        owner: owner.cloned(),
        enclosing: Vec::new(),
    };
    let of = |typed: &args::Claimant| by(typed.hold, typed.owner.as_ref());
    match verb {
        Verb::Run(typed) => by(None, typed.claim.owner.as_ref()),
        Verb::Acquire(typed) => by(None, typed.claim.owner.as_ref()),
        Verb::Release(typed) => of(&typed.claimant),
        Verb::Renew(typed) => of(&typed.claimant),
        Verb::Check(typed) => by(typed.hold, typed.owner.as_ref()),
        Verb::Break(_) | Verb::List(_) | Verb::Cleanup(_) => Claimant::default(),
    }
}

/// Without a store there is nothing to do, and little to say.
fn without_session(verb: &str, json: bool, error: &anyhow::Error) -> Exit {
    let message = describe::escape(&format!("{error:#}"));
    let (exit, code) = if error.is::<Misuse>() {
        (Exit::Usage, "USAGE")
    } else {
        (failed_as(verb), "FAILED")
    };
    if json {
        output::bare_failure(verb, code, &message);
    } else {
        output::talk(&format!("onehold: {message}"));
    }
    exit
}

fn failed_as(verb: &str) -> Exit {
    match verb {
        "run" => Exit::RunFailed,
        _ => Exit::Failed,
    }
}

/// The outcome of an error.
pub(crate) fn failed(session: &Session, error: &anyhow::Error) -> Outcome {
    if error.is::<Misuse>() {
        return failure(session, Exit::Usage, "USAGE", format!("{error:#}"));
    }
    let Some(error) = error.downcast_ref::<Error>() else {
        return failure(session, Exit::Failed, "FAILED", format!("{error:#}"));
    };
    let (exit, code) = match error {
        Error::InvalidName { .. } => (Exit::Usage, "INVALID_NAME"),
        Error::TooLong { .. } => (Exit::Usage, "TOO_LONG"),
        Error::Unfit { .. } => (Exit::Usage, "UNFIT"),
        Error::NotALock { .. } => (Exit::Failed, "NOT_A_LOCK"),
        Error::GuardBusy { .. } => (Exit::Failed, "GUARD_BUSY"),
        Error::NoSuchProcess { .. } => (Exit::Failed, "NO_SUCH_PROCESS"),
        Error::NothingToHold => (Exit::Failed, "NOTHING_TO_HOLD"),
        Error::CannotExchange { .. } => (Exit::Failed, "CANNOT_EXCHANGE"),
        Error::LostEarly { .. } => (Exit::Failed, "LOST"),
        Error::Spawn { source, .. } => match source.kind() {
            ErrorKind::NotFound => (Exit::NotFound, "COMMAND_NOT_FOUND"),
            // fork(2) failed, not execve(2).
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => (Exit::Failed, "IO"),
            _ => (Exit::NotExecutable, "COMMAND_NOT_EXECUTABLE"),
        },
        _ => (Exit::Failed, "IO"),
    };
    let message = session
        .in_force
        .settings
        .words_for(error)
        .unwrap_or_else(|| output::chain(error));
    let mut outcome = failure(session, exit, code, message);
    outcome.talk.extend(output::hint(error));
    outcome
}

fn failure(session: &Session, exit: Exit, code: &'static str, message: String) -> Outcome {
    let exit = match exit {
        Exit::Failed => failed_as(session.verb),
        exit => exit,
    };
    Outcome::new(exit, "failure", message).failure(code, json!({}))
}
