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
mod wait;

use std::path::PathBuf;

use anyhow::bail;
use onehold::command_line::signal::ignore_file_size_signal;
use onehold::{Caller, State, Status};

use crate::arguments::args::{Acquire, Cli, HoldUntilEnd, Release, Renew, Run, UsageError, Verb};
use crate::configuration::project::Project;
use crate::configuration::{EffectiveConfig, Session, Settings};
use crate::messages::{Exit, Printed};
use crate::output::{failed, failed_without_store};
use crate::supervising::cancel;
use crate::tables::{history, list, watch};
use crate::{output, words};

/// The record of a hold has room for about as many names.
const MAX_PATHS: usize = 500;

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
    let takes = takes(&cli.verb);
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
        Verb::Wait(typed) => wait::wait(&session, typed),
        Verb::List(typed) => match typed.watch {
            Some(every) => watch::watch(&session, &typed, every),
            None => list::list(&session, &typed),
        },
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
    if uses_store && found_nothing && !is_examined && outcome.exit != Exit::USAGE {
        outcome.warnings.extend(session.missing_store());
    }
    // A watched list has signals of its own.
    if verb != "list" {
        cancel::close();
    }
    let printed = output::print_outcome(&session, &outcome);
    // A command has succeeded also if that cannot be said, and -E 0 asks for 0.
    let is_done = outcome.command_exit_code.is_some() || outcome.failure.is_some();
    let exit = output::printed(printed, outcome.exit);
    if is_done { outcome.exit } else { exit }
}

/// Reads the configuration and completes the typed options by it.
pub(crate) fn session(verb: &'static str, cli: &mut Cli) -> anyhow::Result<Session> {
    let config = EffectiveConfig::read(&cli.global)?;
    config.settings.complete(&mut cli.verb);
    let paths = cli.verb.take_paths();
    let project = (cli.global.project || !paths.is_empty())
        .then(|| project(&mut cli.verb, &paths, &config))
        .transpose()?;
    let caller = caller(&cli.verb, &config.settings);
    let session = Session::new(verb, cli.global.clone(), caller, config, project.as_ref())?;
    #[cfg(feature = "cluster")]
    if session.tells() {
        session.store.on_silence(|said, at_most| {
            let at_most = words::span(at_most);
            output::eprint(&format!(
                "onehold: no answer yet, trying for {at_most}: {said}"
            ));
        });
    }
    Ok(session)
}

/// Finds the project, and adds the names of the locks of these paths.
#[cold]
#[inline(never)]
fn project(
    verb: &mut Verb,
    paths: &[PathBuf],
    config: &EffectiveConfig,
) -> anyhow::Result<Project> {
    let project = Project::of_current_directory(config, paths)?;
    if paths.len() > MAX_PATHS {
        let given = paths.len();
        bail!(UsageError(format!(
            "{given} paths: a hold has at most {MAX_PATHS}; lock a directory that they are in"
        )));
    }
    for path in paths {
        let name = project.lock_of(path, config)?;
        verb.arguments_mut().add(name.as_str()).ok_or_else(|| {
            UsageError("the argument '--path' cannot be used with NAME".to_owned())
        })?;
    }
    #[cfg(unix)]
    if takes(verb) {
        project.share_store()?;
    }
    Ok(project)
}

fn takes(verb: &Verb) -> bool {
    matches!(verb, Verb::Run(_) | Verb::Acquire(_) | Verb::Hold(_))
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
        Verb::Wait(typed) => (None, &typed.owner),
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
    let outcome = failed_without_store(verb, error);
    if json {
        let _ = output::print_object(verb, None, &outcome);
    } else {
        output::eprint(&format!("onehold: {}", outcome.message));
    }
    outcome.exit
}
