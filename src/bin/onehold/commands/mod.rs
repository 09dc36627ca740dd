//! The commands, one file for each: arguments in, an outcome out. `list` and `history` are in `tables`.

mod acquire;
mod break_lock;
mod check;
mod cleanup;
mod config;
pub(crate) mod doctor;
mod hold;
mod not_yours;
mod release;
mod renew;
mod run;

use onehold::command_line::signal::ignore_file_size_signal;
use onehold::{Caller, State, Status};

use crate::arguments::args::{Acquire, Cli, HoldUntilEnd, Release, Renew, Run, Verb};
use crate::configuration::session::Session;
use crate::configuration::{EffectiveConfig, Settings};
use crate::messages::{Exit, Printed};
use crate::output;
use crate::output::failure::{exit_of, failed, refusal_without_store};
use crate::supervising::cancel;
use crate::tables::{history, list};
use crate::words;

/// Runs a command and prints its outcome.
pub(crate) fn run(mut cli: Cli) -> Exit {
    output::set_color(cli.global.color);
    let verb = cli.verb.word();
    let json = cli.global.json;
    let session = match session(verb, &mut cli) {
        Ok(session) => session,
        Err(error) => return without_session(verb, json, &error),
    };
    if session.global.verbose
        && let Some(line) = session.config.describe()
    {
        output::say(&session, &words::escape(&line));
    }
    if !matches!(cli.verb, Verb::Run(_)) {
        // A write beyond RLIMIT_FSIZE is to be an error, and not the end of the program.
        let _ = ignore_file_size_signal();
    }
    // That of the profile, or all of the store, if there is none.
    let name = cli.verb.arguments().name();
    let takes = matches!(cli.verb, Verb::Run(_) | Verb::Acquire(_) | Verb::Hold(_));
    // A script asks that before its first hold.
    let is_about_caller = matches!(&cli.verb, Verb::Check(typed) if typed.mine);
    // The others would make it.
    let uses_store = !takes && !is_about_caller && name.is_none_or(|name| !name.is_path());
    let is_of_profile = name.is_none_or(|name| session.only.as_ref() == Some(name));
    let ready = if is_of_profile && !matches!(cli.verb, Verb::Config(_) | Verb::Doctor(_)) {
        session.ensure_directory(takes).map_err(anyhow::Error::from)
    } else {
        Ok(())
    };
    // The other verbs are `inline(never)`: inlined, their locals would enlarge the stack of `run`, and
    // each page of it costs a page fault.
    let result = ready.and_then(|()| match cli.verb {
        Verb::Run(typed) => run::run(&session, typed),
        Verb::Acquire(typed) => acquire::acquire(&session, typed),
        Verb::Hold(typed) => hold::hold(&session, typed),
        Verb::Release(typed) => release::release(&session, typed),
        Verb::Renew(typed) => renew::renew(&session, typed),
        Verb::Check(typed) => check::check(&session, typed),
        Verb::List(typed) => list::list(&session, &typed),
        Verb::Cleanup(typed) => cleanup::cleanup(&session, &typed),
        Verb::Break(typed) => break_lock::break_hold(&session, typed),
        Verb::Doctor(typed) => Ok(doctor::doctor(&session, &typed).into()),
        Verb::History(typed) => history::history(&session, &typed),
        Verb::Config(_) => config::config(&session),
    });
    let mut outcome = match result {
        Ok(Printed::Yes(exit)) => return exit,
        Ok(Printed::No(outcome)) => *outcome,
        Err(error) => failed(&session, &error),
    };
    let is_free = |status: &Status| status.verdict.state == State::Free;
    let found_nothing = outcome.lock.as_deref().is_none_or(is_free) && outcome.locks.is_empty();
    let is_examined = verb == "doctor";
    if uses_store && found_nothing && !is_examined && outcome.exit != Exit::Usage {
        outcome.warnings.extend(session.missing_store());
    }
    // A watched list has signals of its own.
    if verb != "list" {
        cancel::close();
    }
    output::printed(output::print_outcome(&session, &outcome), outcome.exit)
}

/// Reads the configuration and completes the typed options by it.
fn session(verb: &'static str, cli: &mut Cli) -> anyhow::Result<Session> {
    let config = EffectiveConfig::read(&cli.global)?;
    config.settings.complete(&mut cli.verb);
    let caller = caller(&cli.verb, &config.settings);
    Session::new(verb, cli.global.clone(), caller, config)
}

fn caller(verb: &Verb, settings: &Settings) -> Caller {
    let (hold, owner) = match verb {
        Verb::Run(Run { hold, .. })
        | Verb::Acquire(Acquire { hold, .. })
        | Verb::Hold(HoldUntilEnd { hold, .. }) => (None, &hold.owner),
        Verb::Release(Release { caller, .. }) | Verb::Renew(Renew { caller, .. }) => {
            (caller.hold, &caller.owner)
        }
        Verb::Check(typed) => (typed.hold, &typed.owner),
        _ => return Caller::default(),
    };
    Caller {
        hold,
        owner: owner.clone().or_else(|| settings.owner()),
        inside: Vec::new(),
    }
}

/// Reports an error that happened before the store was known.
fn without_session(verb: &str, json: bool, error: &anyhow::Error) -> Exit {
    let message = words::escape(&format!("{error:#}"));
    let refusal = refusal_without_store(error);
    if json {
        output::bare_failure(verb, refusal, &message);
    } else {
        output::eprint(&format!("onehold: {message}"));
    }
    exit_of(refusal, verb)
}
