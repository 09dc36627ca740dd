//! `run`: hold while a command runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use onehold::process::{pass_on_wide_code, replace_process};
use onehold::signal::SignalQueue;
use onehold::{Attempt, Hold, Keeping, LockName, Program};
use sha2::{Digest, Sha256};

use crate::args;
use crate::claiming::{displaced, obtain, refused, wait_for_displaced};
use crate::commands::{Carried, Told};
use crate::describe;
use crate::output;
use crate::session::{HOLDS, Session};
use crate::supervise;

pub(crate) fn run(session: &Session, typed: args::Run) -> Carried {
    let Some((program, arguments)) = typed.command.split_first() else {
        anyhow::bail!("no command");
    };
    let derived = typed.name.is_none();
    let name = match typed.name {
        Some(name) => name,
        None => derived_name(program, arguments)?,
    };
    let lock = session.lock(name)?;
    let mut command = Command::new(program);
    command.args(arguments);
    if typed.reentrant
        && !session.claimant.enclosing.is_empty()
        && session.is_inside(&lock.check(None)?)
    {
        let status =
            replace_process(&mut command).map_err(|source| spawn_error(program, source))?;
        pass_on_wide_code(status);
        return Ok(Told::Already(supervise::exit_of(Some(status))));
    }
    let keeping = Keeping {
        close: typed.close,
        exec: typed.exec,
    };
    // A signal from here on waits for the supervisor, unless there may be something to wait for
    // or to ask: then it must still be able to end us.
    let patient = typed.claim.wait.is_some()
        || typed.claim.force
        || typed.claim.on_zombie == Some(args::OnZombie::Ask);
    let queue = if patient || typed.exec {
        None
    } else {
        Some(supervise::queue()?)
    };
    let words: Vec<String> = typed
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let attempt = obtain(session, &typed.claim, &lock, |claim, wait| {
        lock.hold_for_command(&claim.clone().command(words.clone()), keeping, wait)
    })?;
    let mut hold = match attempt {
        Attempt::Held(hold) => hold,
        Attempt::Blocked(blocked) => {
            let mut outcome = refused(session, &typed.claim, &lock, blocked);
            if derived {
                outcome.talk.push(format!(
                    "  the name follows from the command; give one yourself: onehold run NAME -- {}{}",
                    output::shown(Path::new(program)),
                    if arguments.is_empty() { "" } else { " …" }
                ));
            }
            return Ok(outcome.into());
        }
    };
    // Opened before anything else can take time: what comes from here on is not lost.
    let queue = match queue {
        None if !typed.exec => Some(supervise::queue()?),
        queue => queue,
    };
    if session.everywhere.verbose && !session.everywhere.json {
        output::talk(&format!(
            "onehold: holding {}, hold {}, file {}",
            describe::quoted(lock.name().as_str()),
            hold.number(),
            output::shown(hold.path())
        ));
    }
    tell_of_displaced(session, &hold, queue.as_ref());
    let environment = hold.environment(std::env::var(HOLDS).ok().as_deref());
    if typed.exec {
        let error = hold.exec(command.envs(environment));
        drop(hold);
        return Err(error.into());
    }
    let Some(queue) = queue else {
        anyhow::bail!("no signal queue");
    };
    // Scripts are found by what PATHEXT adds to their names, which Windows itself does not do.
    let found = cfg!(windows).then(|| which::which(program).ok()).flatten();
    let found = found
        .as_deref()
        .map_or(program.as_os_str(), Path::as_os_str);
    let command = Program::new(found, arguments, &environment)
        .map_err(|source| spawn_error(program, source))?;
    Ok(supervise::supervise(
        session,
        hold,
        &command,
        &queue,
        typed.on_lost,
    ))
}

fn tell_of_displaced(session: &Session, hold: &Hold, queue: Option<&SignalQueue>) {
    let Some(was) = hold.displaced() else {
        return;
    };
    let quiet = session.everywhere.quiet || session.everywhere.json;
    if let Some(line) = displaced(was).filter(|_| !quiet) {
        output::talk(&line);
    }
    let impatient = || queue.is_some_and(SignalQueue::is_ending);
    if let Some(warning) = wait_for_displaced(session, was, impatient) {
        output::talk(&format!("onehold: warning: {warning}"));
    }
}

/// A name from the command itself, the same wherever it is started from: what it resolves to and
/// its arguments, not the working directory.
fn derived_name(program: &OsString, arguments: &[OsString]) -> anyhow::Result<LockName> {
    // Four bytes each at most, and the digest: no longer than a segment may be.
    const SHOWN: usize = 48;
    let resolved = resolve(program)?;
    let mut digest = Sha256::new();
    digest.update(resolved.as_os_str().as_encoded_bytes());
    for argument in arguments {
        digest.update([0]);
        digest.update(argument.as_encoded_bytes());
    }
    let digest = digest.finalize();
    let digest = digest
        .iter()
        .take(8)
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let base: String = Path::new(program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .chars()
        .map(|char| if char.is_control() { '_' } else { char })
        .take(SHOWN)
        .collect();
    Ok(LockName::new(format!("{base}-{digest:016x}"))?)
}

// errno(3): what execve(2) itself would have said.
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
    // /bin and /usr/bin are one directory on many systems, and PATH names either.
    Ok(found.canonicalize().unwrap_or(found))
}

fn spawn_error(program: &OsString, source: std::io::Error) -> onehold::Error {
    onehold::Error::Spawn {
        program: program.to_string_lossy().into_owned(),
        source,
    }
}
