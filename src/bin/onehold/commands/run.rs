//! `run`: run a command while holding a lock.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use onehold::command_line::signal::ignore_file_size_signal;
use onehold::command_line::{Program, pass_on_wide_code, replace_process};
use onehold::{Hold, LockName, RunOptions};
use sha2::{Digest, Sha256};

use crate::arguments::args::{self, UsageError};
use crate::configuration::{HOLDS, Session};
use crate::messages::{CommandResult, Printed};
use crate::output;
#[cfg(all(feature = "cluster", target_os = "linux"))]
use crate::supervising::keeper;
use crate::supervising::{Then, cancel, die_with, supervise};
use crate::taking::{Taking, report_cancel};
use crate::words;

pub(crate) fn run(session: &Session, mut typed: args::Run) -> CommandResult {
    let Some((program, arguments)) = typed.command.split_first() else {
        bail!("no command");
    };
    let mut names = std::mem::take(&mut typed.names);
    let is_derived = names.is_empty() && session.only.is_none();
    if is_derived {
        names.push(derived_name(session, program, arguments)?);
    }
    let lock = session.named_locks(names)?;
    let taking = Taking::new(session, &typed.hold, &lock)?;
    let mut command = Command::new(program);
    command.args(arguments);
    if typed.reentrant && taking.is_inside_all()? {
        let status =
            replace_process(&mut command).map_err(|source| spawn_error(program, source))?;
        pass_on_wide_code(status);
        return Ok(Printed::Yes(supervise::exit_of(Some(status))));
    }
    // Before a keeper is between it and this process.
    let die_with = die_with::find(typed.die_with)?;
    #[cfg(all(feature = "cluster", target_os = "linux"))]
    if lock.is_remote()
        && !typed.exec
        && let Some(printed) = keeper::wrap(session, &lock, typed.on_lost)?
    {
        return Ok(printed);
    }
    let run_options = RunOptions::new()
        .close(typed.close)
        .exec(typed.exec)
        .supervised(!typed.exec)
        .kill_after(typed.kill_after)
        .time_limited(typed.time_limit.is_some_and(|limit| !limit.is_zero()))
        .die_with(die_with)
        .hold_at_least(typed.hold_at_least.filter(|least| !least.is_zero()));
    // Signals are queued for the supervisor from here on. A call that may wait or ask queues them
    // later, because until then a signal must be able to end it.
    let queue = if taking.may_block() || typed.exec {
        // A queue does this, too.
        let _ = ignore_file_size_signal();
        None
    } else {
        Some(supervise::queue()?)
    };
    if let Some(process) = die_with {
        if queue.is_none() {
            report_cancel(session, Then::Ends);
        }
        die_with::terminate_with(process)?;
    }
    // Before the wait, so that the command starts at once after it: only the variables of the hold are left to add.
    let waits = typed.hold.wait.is_some() && !typed.exec;
    let laid_out = waits.then(|| lay_out(program, arguments)).transpose()?;
    let words = typed.command.iter();
    let words: Vec<_> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let hold = match taking.hold(run_options, taking.options().command(words))? {
        Ok(hold) => hold,
        Err(mut outcome) => {
            if is_derived {
                let program = words::path_text(Path::new(program));
                let arguments = if arguments.is_empty() { "" } else { " …" };
                outcome.notes.push(format!(
                    "  name derived from the command; to choose one: `onehold run NAME -- {program}{arguments}`"
                ));
            }
            return Ok(outcome.into());
        }
    };
    if is_derived && !session.global.verbose && session.tells_success() {
        let name = words::names(&lock);
        let text = format!("no NAME given: holding {name}, derived from the command");
        output::tell(session, &text);
    }
    if typed.exec {
        taking.report_acquired(&hold, None);
        return replaced_by(command, hold);
    }
    // Queue signals before anything else, so that none is lost.
    let queue = queue.map_or_else(supervise::queue, Ok)?;
    taking.report_acquired(&hold, Some(&queue));
    let environment = hold.environment(std::env::var(HOLDS).ok().as_deref());
    let mut command = laid_out
        .map_or_else(|| lay_out(program, arguments), Ok)?
        .with(&environment)
        .map_err(|source| spawn_error(program, source))?;
    supervise::supervise(session, hold, &mut command, &queue, &typed)
}

/// Returns only if the command does not take the place of this program.
fn replaced_by(mut command: Command, mut hold: Hold) -> CommandResult {
    cancel::let_signals_end();
    if let Some(signal) = cancel::signal_so_far() {
        cancel::give_back(hold);
        return Ok(Printed::by_signal(signal));
    }
    for (name, value) in hold.environment(std::env::var(HOLDS).ok().as_deref()) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let error = hold.exec(&mut command);
    drop(hold);
    Err(error.into())
}

/// The command, as far as it does not depend on its hold.
fn lay_out(program: &OsString, arguments: &[OsString]) -> onehold::Result<Program> {
    // Finds a script by the suffixes in PATHEXT, which Windows itself does not apply.
    let found = cfg!(windows).then(|| which::which(program).ok()).flatten();
    let found = found
        .as_deref()
        .map_or(program.as_os_str(), Path::as_os_str);
    Program::new(found, arguments).map_err(|source| spawn_error(program, source))
}

/// Derives a lock name from the resolved path of the command and its arguments. The working directory
/// does not matter.
fn derived_name(
    session: &Session,
    program: &OsString,
    arguments: &[OsString],
) -> anyhow::Result<LockName> {
    // At most four bytes for each character, and the digest: this fits into a segment of a name.
    const MAX_CHARS: usize = 48;
    if session.format.is_kernel_lock() {
        let format = session.format;
        bail!(UsageError(format!(
            "missing NAME: {format} format needs the path of a file"
        )));
    }
    let resolved = resolve(program)?;
    let mut digest = Sha256::new();
    digest.update(resolved.as_os_str().as_encoded_bytes());
    for argument in arguments {
        digest.update([0]);
        digest.update(argument.as_encoded_bytes());
    }
    let digest = digest.finalize();
    let digest = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let plain = |char: char| if char.is_control() { '_' } else { char };
    let base: String = name.chars().map(plain).take(MAX_CHARS).collect();
    Ok(LockName::new(format!("{base}-{digest:016x}"))?)
}

// The errors that execve(2) would have returned, see errno(3).
const NO_SUCH_FILE: i32 = 2;
const PERMISSION_DENIED: i32 = 13;

fn resolve(program: &OsString) -> onehold::Result<PathBuf> {
    let found = which::which(program).map_err(|error| {
        let is_there = Path::new(program).components().count() > 1 && Path::new(program).exists();
        let why = match error {
            which::Error::CannotFindBinaryPath if !is_there => NO_SUCH_FILE,
            _ => PERMISSION_DENIED,
        };
        spawn_error(program, std::io::Error::from_raw_os_error(why))
    })?;
    // PATH can name one directory in two ways, such as /bin and /usr/bin.
    Ok(found.canonicalize().unwrap_or(found))
}

fn spawn_error(program: &OsString, source: std::io::Error) -> onehold::Error {
    onehold::Error::Spawn {
        program: program.to_string_lossy().into_owned(),
        source,
    }
}
