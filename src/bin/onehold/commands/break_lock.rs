//! `break`: remove a hold by force.

use std::time::{Duration, Instant};

use onehold::command_line::command_line_of;
use onehold::record::ProcessId;
use onehold::status::{Evidence, Reason};
use onehold::{Break, Format, Lock, State, Status};
use serde_json::json;

use crate::acquiring::wait_for_displaced;
use crate::args;
use crate::cancel;
use crate::commands::not_yours::another;
use crate::describe::{
    self, describe_holder, describe_past_holder, describe_zombie, is_held, is_run, local,
};
use crate::exit::Exit;
use crate::malformed::moved_text;
use crate::outcome::{CommandResult, Outcome, Printed};
use crate::output;
use crate::prompt::{confirm, has_terminal};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::suggested::command_line;
use crate::words;
use crate::work::{effects, next_holder, spared, starter};

/// How a hold is to be broken.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The one with this number, among those of the lock.
    pub(crate) hold: Option<u64>,
    pub(crate) yes: bool,
    /// Its work may keep running.
    pub(crate) at_once: bool,
}

#[inline(never)]
pub(crate) fn break_hold(session: &Session, mut typed: args::Break) -> CommandResult {
    let lock = session.named_lock(typed.name.take())?;
    let asked = Asked {
        hold: typed.hold,
        yes: typed.yes,
        at_once: typed.force,
    };
    if typed.hold.is_none() {
        let status = lock.inspect(None)?;
        if !status.others.is_empty() {
            return break_each(session, &lock, &status, asked, typed.all);
        }
    }
    break_lock(session, &lock, asked)
}

/// Breaks several holds of one lock, each after confirmation.
fn break_each(
    session: &Session,
    lock: &Lock,
    status: &Status,
    asked: Asked,
    all: bool,
) -> CommandResult {
    let holds: Vec<&Status> = status
        .all_holds()
        .filter(|hold| hold.hold().is_some())
        .collect();
    let name = words::quoted(lock.name().as_str());
    if asked.yes && !all {
        let text = format!("{name} has {} holders", holds.len());
        let numbers: Vec<_> = holds.iter().map(|hold| hold.hold()).collect();
        return Ok(Outcome::refused(Refusal::SEVERAL_HOLDERS, text)
            .details(json!({ "holds": numbers }))
            .note(output::store_line(status))
            .note("  to break one of them, add --hold N; to break all, add --all")
            .lock(Box::new(status.clone()))
            .into());
    }
    let (mut broken, mut worst, mut warnings) = (Vec::new(), None, Vec::new());
    let live = holds.iter().filter(|hold| !is_harmless(hold)).count();
    let cannot_ask = live > 0 && !asked.yes && !has_terminal();
    if cannot_ask {
        let holders = words::counted(live, "holder");
        let text = format!("not confirmed: {name} has {holders}");
        let outcome = Outcome::refused(Refusal::NOT_CONFIRMED, text)
            .note(output::store_line(status))
            .note("  cannot ask for confirmation: no terminal (use --hold N --yes, or --all --yes)")
            .lock(Box::new(status.clone()));
        worst = Some(Box::new(outcome));
    }
    for hold in holds.iter().filter(|hold| !cannot_ask || is_harmless(hold)) {
        let asked = Asked {
            hold: hold.hold(),
            ..asked
        };
        let ended = if asked.yes {
            break_shown(session, lock, (*hold).clone(), asked)
        } else {
            // As it is now: the answer to the question before may have come late.
            break_lock(session, lock, asked)
        };
        match ended? {
            Printed::No(outcome) if outcome.exit == Exit::Done => {
                warnings.extend(outcome.warnings);
                broken.extend(outcome.lock.map(|was| *was));
            }
            // It has ended by itself.
            Printed::No(outcome) if outcome.exit == Exit::NotHeld => {}
            Printed::No(outcome) => worst = worst.or(Some(outcome)),
            Printed::Yes(exit) => return Ok(Printed::Yes(exit)),
        }
    }
    let text = format!("broke {} of {} holds on {name}", broken.len(), holds.len());
    let none = || Outcome::new(Exit::Done, "broken", text);
    let mut outcome = worst.map_or_else(none, |worst| *worst);
    outcome.is_removed = outcome.exit == Exit::Done;
    outcome.locks = broken;
    outcome.warnings.extend(warnings);
    Ok(outcome.into())
}

/// Breaks a hold after confirmation.
pub(crate) fn break_lock(session: &Session, lock: &Lock, asked: Asked) -> CommandResult {
    let status = lock.inspect(None)?;
    let found = asked.hold.and_then(|hold| status.clone().of_hold(hold));
    break_shown(session, lock, found.unwrap_or(status), asked)
}

fn break_shown(session: &Session, lock: &Lock, status: Status, asked: Asked) -> CommandResult {
    let Asked { hold, yes, at_once } = asked;
    if let Reason::NotALock(what) = status.verdict.reason {
        // Elsewhere the name may be wrong. The path of a profile is meant for this lock alone.
        if session.is_fixed_path(lock)
            && let Some(outcome) = move_aside(session, lock, &status, yes)?
        {
            return Ok(outcome.into());
        }
        return Err(onehold::Error::NotALock {
            path: status.path,
            what,
        }
        .into());
    }
    if lock.format() == Format::Flock && status.verdict.state == State::Held {
        return Ok(held_by_kernel_lock(session, status).into());
    }
    let Some(revision) = status.revision() else {
        return Ok(not_held(session, lock).into());
    };
    if let Some(hold) = hold.filter(|hold| status.hold() != Some(*hold)) {
        if status.slot.is_none() {
            return Ok(another(session, Box::new(status)).into());
        }
        let text = format!("{}: hold {hold} has ended", words::quoted(&status.name));
        let outcome = Outcome::refused(Refusal::NOT_HELD, text);
        return Ok(outcome.lock(Box::new(status)).into());
    }
    let agrees = || {
        let mut effects = effects(lock, &status, at_once);
        effects.push(next_holder(&status));
        let question = question(&status, at_once);
        confirm(session, &status, &effects, question, "--yes")
    };
    // Without force nothing is done about those who have its kernel lock.
    let is_refused = status.verdict.reason == Reason::Locked && !at_once;
    if !yes && !is_harmless(&status) && !is_refused && !agrees() {
        let text = format!("not confirmed: {}", describe_holder(&status, local));
        let outcome = Outcome::refused(Refusal::NOT_CONFIRMED, text)
            .details(json!({ "hold": status.hold() }))
            .note(output::store_line(&status))
            .lock(Box::new(status));
        return Ok(outcome.into());
    }
    let starter = starter(&status);
    // From here on Ctrl-C cannot change nothing.
    cancel::commit(());
    let broken = if at_once {
        lock.break_at_once(&revision)?
    } else {
        let mut progress = Waiting {
            session,
            status: &status,
            since: Instant::now(),
            is_said: false,
        };
        lock.break_hold(&revision, &mut |left| progress.goes_on(left))?
    };
    match broken {
        Break::Done { was, warnings } => {
            let name = words::quoted(&was.name);
            let text = match was.verdict.state {
                State::Zombie => {
                    format!("removed zombie {name}: {}", describe_zombie(&was, local))
                }
                State::Free => format!("removed the lock file of {name}, which was free"),
                _ => format!(
                    "broke the hold on {} of {}",
                    words::quoted_names(was.names()),
                    describe_past_holder(&was, local)
                ),
            };
            let mut outcome = Outcome::new(Exit::Done, "broken", text).warnings(&warnings);
            if session.tells() {
                output::eprint(&format!("onehold: {}", outcome.message));
            }
            let warning = running_warning(session, &was, at_once);
            outcome.warnings.extend(warning.or(starter));
            Ok(outcome.removed(was).into())
        }
        Break::StillRunning {
            was,
            processes,
            look_failed,
        } => {
            let spared = spared(lock, &was);
            let outcome = still_running(session, was, &processes, look_failed.as_ref(), spared);
            Ok(outcome.into())
        }
        Break::Nothing => Ok(not_held(session, lock).into()),
        Break::Changed(status) => Ok(another(session, status).into()),
    }
}

/// Whether it is removed unasked.
fn is_harmless(status: &Status) -> bool {
    matches!(status.verdict.state, State::Free | State::Zombie)
}

fn question(status: &Status, at_once: bool) -> &'static str {
    let has_command = is_run(status) && !describe::is_without_command(status);
    match (has_command, at_once) {
        (false, _) => "Break it?",
        (true, false) => "End its work and free the lock?",
        (true, true) => "Free the lock now, even though its work may keep running?",
    }
}

/// What may still run of a hold that was broken.
fn running_warning(session: &Session, was: &Status, at_once: bool) -> Option<String> {
    if matches!(was.verdict.reason, Reason::UnknownVersion(_)) {
        return Some("what it was held for may still be running".to_owned());
    }
    let is_run = is_run(was);
    if let Some(left) = was.verdict.takeable_in.filter(|_| is_run) {
        let holder = describe::holder_on_host(was, was.record.as_ref()?);
        let left = words::span(left);
        return Some(format!(
            "the work of {holder} may still be running, for {left} at most"
        ));
    }
    // Its record has no room for what ends the work. The wrapper notices the loss.
    let record = was.record.as_ref();
    let is_pid_file = was.verdict.evidence == Evidence::KernelLock
        && record.is_some_and(|record| record.format == Format::Pid);
    if ((at_once && is_run) || is_pid_file) && was.verdict.reason != Reason::Locked {
        let holder = describe::holder_on_host(was, was.record.as_ref()?);
        return is_held(was).then(|| format!("the work of {holder} may still be running"));
    }
    // All of it has ended.
    if is_run && was.verdict.pid_alive == Some(true) {
        return None;
    }
    wait_for_displaced(session, was, None)
}

/// Nothing can take a kernel lock from its process.
fn held_by_kernel_lock(session: &Session, status: Status) -> Outcome {
    let text = format!("not broken: {}", describe_holder(&status, local));
    Outcome::refused(Refusal::KERNEL_LOCK, text)
        .notes(output::block(&status, session.global.verbose))
        .note(format!("  {}", output::end_of_lockers(&status)))
        .lock(Box::new(status))
}

/// The outcome of a break that could not end all of the work.
fn still_running(
    session: &Session,
    was: Box<Status>,
    processes: &[ProcessId],
    look_failed: Option<&std::io::Error>,
    spared: Vec<String>,
) -> Outcome {
    let name = words::quoted(&was.name);
    let found: Vec<(u32, Vec<String>)> = processes
        .iter()
        .map(|process| (process.pid.get(), command_line_of(process.pid)))
        .collect();
    let details = json!({
        "hold": was.hold(),
        "processes": found
            .iter()
            .map(|(pid, command)| json!({ "pid": pid, "command": command }))
            .collect::<Vec<_>>(),
    });
    let is_locked = was.verdict.reason == Reason::Locked;
    let text = if is_locked {
        format!("not broken: {}", describe_holder(&was, local))
    } else {
        format!("not broken: the work of {name} could not be ended")
    };
    let mut outcome = Outcome::refused(Refusal::STILL_RUNNING, text).details(details);
    if is_locked {
        outcome.notes = output::block(&was, session.global.verbose);
    } else {
        outcome.notes.extend(found.iter().map(|(pid, command)| {
            let process = describe::process(*pid, command);
            format!("  still running: {process}")
        }));
        match look_failed.map(|error| words::cause_text(error)) {
            Some(cause) => outcome
                .notes
                .push(format!("  its processes cannot be listed: {cause}")),
            None if found.is_empty() => outcome.notes.push(
                "  still running: a process that keeps the lock file open and cannot be seen from here"
                    .to_owned(),
            ),
            None => {}
        }
    }
    let is_spared = !spared.is_empty();
    outcome.notes.extend(spared);
    let record = was.record.as_ref();
    let is_never_killed = record.is_some_and(|record| record.kill_after().is_none());
    if is_never_killed && !found.is_empty() && !is_spared {
        let pids: Vec<String> = found.iter().map(|(pid, _)| pid.to_string()).collect();
        outcome.notes.push(format!(
            "  it got no KILL, because of --kill-after 0; to end it, run `kill -KILL {}`",
            pids.join(" ")
        ));
    }
    outcome.notes.push(output::store_line(&was));
    let break_it = command_line(session, "break", &was);
    outcome.notes.push(match output::only_remover(&was) {
        Some(user) => {
            format!("  it belongs to user {user}: ask that user to run `{break_it}`")
        }
        None => format!("  to free the lock while it runs: `{break_it} --force`"),
    });
    outcome.lock(was)
}

/// Says once that `break` waits for the work of a hold.
struct Waiting<'a> {
    session: &'a Session,
    status: &'a Status,
    since: Instant,
    is_said: bool,
}

impl Waiting<'_> {
    /// Returns false after Ctrl-C.
    fn goes_on(&mut self, left: Duration) -> bool {
        /// Most work ends at once.
        const DELAY: Duration = Duration::from_millis(500);
        let is_due = self.since.elapsed() >= DELAY && !self.is_said;
        if is_due && self.session.tells() {
            self.is_said = true;
            let record = self.status.record.as_ref();
            let holder = record.map(|record| describe::holder_on_host(self.status, record));
            output::eprint(&format!(
                "onehold: waiting up to {} for the work of {} to end",
                words::span(left + Duration::from_millis(999)),
                holder.as_deref().unwrap_or("the holder")
            ));
        }
        cancel::interrupted_after_commit().is_none()
    }
}

/// Moves a file that is not a lock file aside, after confirmation. `None`: it cannot be moved.
fn move_aside(
    session: &Session,
    lock: &Lock,
    status: &Status,
    yes: bool,
) -> anyhow::Result<Option<Outcome>> {
    if !yes && !confirm(session, status, &[], "Move the file aside?", "--yes") {
        let text = format!("not confirmed: {}", describe_holder(status, local));
        let mut outcome = Outcome::refused(Refusal::NOT_CONFIRMED, text);
        (outcome.exit, outcome.status) = (Exit::Failed, "failure");
        return Ok(Some(outcome));
    }
    let Some(moved) = lock.move_aside()? else {
        return Ok(None);
    };
    let text = moved_text(status, &moved.to);
    let outcome = Outcome::new(Exit::Done, "broken", text).warnings(&moved.warnings);
    Ok(Some(outcome.told_if(true).lock(Box::new(status.clone()))))
}

fn not_held(session: &Session, lock: &Lock) -> Outcome {
    let name = words::quoted(lock.name().as_str());
    // A parent or child can still keep the lock from being acquired.
    let relative = lock
        .check(None)
        .ok()
        .filter(|status| status.name != lock.name().as_str());
    let Some(relative) = relative else {
        let text = format!("{name} is free: nothing to break");
        return Outcome::refused(Refusal::NOT_HELD, text);
    };
    let relation = describe::relation(&relative, lock.name());
    let holder = describe_holder(&relative, local);
    let break_it = command_line(session, "break", &relative);
    Outcome::refused(Refusal::NOT_HELD, format!("{name} itself is not held"))
        .note(format!("  its {relation} {holder}"))
        .note(format!("  to break that: `{break_it}`"))
}
