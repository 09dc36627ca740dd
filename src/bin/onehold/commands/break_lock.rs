//! `break`: remove a hold by force.

use std::time::{Duration, Instant};

use onehold::repair::Break;
use onehold::status::{Evidence, Pid, ProcessId, Reason};
use onehold::{Format, Lock, State, Status};
use serde_json::{Value, json};

use crate::arguments::args;
use crate::commands::not_yours::another;
use crate::configuration::Session;
use crate::messages::{
    CommandResult, Exit, Outcome, Refusal, describe, describe_holder, describe_past_holder,
    is_held, is_run, local,
};
use crate::output::{about_file, command_line};
use crate::supervising::cancel;
use crate::tables::work::{effects, next_holder, spared, starter};
use crate::taking::{confirm, has_terminal, moved_text, note_so_far, wait_for_displaced};
use crate::{output, words};

#[inline(never)]
pub(crate) fn break_hold(session: &Session, mut typed: args::Break) -> CommandResult {
    let lock = session.named_lock(typed.name.take())?;
    let status = lock.inspect(None)?;
    let outcome = if typed.hold.is_none() && !status.others.is_empty() {
        break_each(session, &lock, &status, &typed)
    } else {
        break_shown(session, &lock, status, &typed)
    };
    Ok(outcome?.into())
}

/// Breaks several holds of one lock, each after confirmation.
fn break_each(
    session: &Session,
    lock: &Lock,
    status: &Status,
    typed: &args::Break,
) -> anyhow::Result<Outcome> {
    let holds = status.all_holds().filter(|hold| hold.hold().is_some());
    let holds: Vec<&Status> = holds.collect();
    let name = words::quoted(lock.name().as_str());
    if typed.yes && !typed.all {
        let text = format!("{name} has {} holders", holds.len());
        let numbers: Vec<_> = holds.iter().map(|hold| hold.hold()).collect();
        return Ok(Outcome::refused(Refusal::SEVERAL_HOLDERS, text)
            .details(json!({ "holds": numbers }))
            .note(output::store_line(session, status))
            .note("  to break one of them, add --hold N; to break all, add --all")
            .lock(Box::new(status.clone())));
    }
    let mut worst = None;
    let live = holds.iter().filter(|hold| !is_harmless(hold)).count();
    let cannot_ask = live > 0 && !typed.yes && !has_terminal();
    if cannot_ask {
        let holders = words::counted(live, "holder");
        let why = "  cannot ask for confirmation: no terminal (use --hold N --yes, or --all --yes)";
        let outcome = not_confirmed(session, &format!("{name} has {holders}"), status.clone());
        worst = Some(outcome.note(why));
    }
    for hold in holds.iter().filter(|hold| !cannot_ask || is_harmless(hold)) {
        // Ctrl-C ended the wait for work: the outcome says what still runs.
        if let Some(worst) = worst.as_mut().filter(|_| cancel::is_late()) {
            worst
                .notes
                .push("  canceled: the holds after it were not broken".to_owned());
            break;
        }
        cancel::uncommit();
        let one = args::Break {
            name: None,
            path: None,
            hold: hold.hold(),
            ..*typed
        };
        let now = if one.yes {
            (*hold).clone()
        } else {
            // The answer to the question before may have come late.
            lock.inspect(None)?
        };
        let mut outcome = break_shown(session, lock, now, &one)?;
        match outcome.exit {
            Exit::DONE => {
                if session.tells() {
                    output::warn(&outcome.warnings);
                    outcome.warnings.clear();
                }
                // The next question may be canceled.
                note_so_far(|so_far| {
                    so_far.broken.extend(outcome.lock.map(|was| *was));
                    so_far.warnings.append(&mut outcome.warnings);
                });
            }
            // It has ended by itself.
            Exit::NOT_HELD => {}
            _ => {
                note_so_far(|so_far| so_far.not_broken.push(outcome.message.clone()));
                worst = worst.or(Some(outcome));
            }
        }
    }
    // A signal that has just come still reports it.
    let so_far = note_so_far(|so_far| so_far.clone());
    let text = format!(
        "broke {} of {} holds on {name}",
        so_far.broken.len(),
        holds.len()
    );
    let mut outcome = worst.unwrap_or_else(|| Outcome::new(Exit::DONE, "broken", text));
    outcome.is_removed = outcome.exit == Exit::DONE;
    outcome.locks = so_far.broken;
    outcome.warnings.extend(so_far.warnings);
    Ok(outcome)
}

/// Breaks a hold after confirmation. `status`: of the lock.
pub(crate) fn break_shown(
    session: &Session,
    lock: &Lock,
    status: Status,
    typed: &args::Break,
) -> anyhow::Result<Outcome> {
    let found = typed.hold.and_then(|hold| status.clone().of_hold(hold));
    let status = found.unwrap_or(status);
    // By force its work may keep running.
    let (yes, at_once) = (typed.yes, typed.force);
    if let Reason::NotALock(what) = status.verdict.reason {
        // Elsewhere the name may be wrong. The path of a profile is meant for this lock alone.
        if session.is_fixed_path(lock)
            && let Some(outcome) = move_aside(session, lock, &status, yes)?
        {
            return Ok(outcome);
        }
        let path = status.path;
        return Err(onehold::Error::NotALock { path, what }.into());
    }
    if lock.format().is_kernel_lock() && status.verdict.state == State::Held {
        return Ok(held_by_kernel_lock(session, status));
    }
    let Some(revision) = status.revision() else {
        return Ok(not_held(session, lock));
    };
    if let Some(hold) = typed.hold.filter(|hold| status.hold() != Some(*hold)) {
        if status.slot.is_none() {
            return Ok(another(session, Box::new(status)));
        }
        let text = format!("{}: hold {hold} has ended", words::quoted(&status.name));
        return Ok(Outcome::refused(Refusal::NOT_HELD, text).lock(Box::new(status)));
    }
    let agrees = || {
        let mut effects = effects(lock, &status, at_once);
        effects.push(next_holder(&status));
        let question = question(&status, at_once);
        confirm(session, &status, &effects, question, "--yes")
    };
    // Without force nothing is done about those who have its kernel lock.
    let is_refused = status.verdict.reason == Reason::Locked && !at_once;
    // On etcd the keeper of the work is asked to end it.
    if !yes && !at_once && is_run(&status) && !lock.is_remote() {
        let spared = lock.spared_work(&revision).unwrap_or_default();
        if !spared.is_empty() {
            let was = Box::new(status);
            return Ok(still_running(session, lock, was, (&spared, false), None));
        }
    }
    if !yes && !is_harmless(&status) && !is_refused && !agrees() {
        let details = json!({ "hold": status.hold() });
        let holder = describe_holder(&status, local);
        return Ok(not_confirmed(session, &holder, status).details(details));
    }
    let starter = starter(&status);
    // From here on Ctrl-C cannot change nothing.
    cancel::commit(());
    let broken = if at_once {
        lock.break_at_once(&revision)?
    } else {
        lock.break_hold(&revision, &mut waiting(session, &status))?
    };
    match broken {
        Break::Done { was, warnings } => {
            let name = words::quoted(&was.name);
            let text = match was.verdict.state {
                State::Zombie => format!("removed {}", describe::zombie(&was)),
                State::Free => format!("removed the lock file of {name}, which was free"),
                _ => {
                    let (names, holder) = (was.names(), describe_past_holder(&was, local));
                    format!(
                        "broke the hold on {} of {holder}",
                        words::quoted_names(names)
                    )
                }
            };
            let mut outcome = Outcome::new(Exit::DONE, "broken", text).warnings(&warnings);
            output::tell(session, &outcome.message);
            let warning = running_warning(session, &was, at_once);
            outcome.warnings.extend(warning.or(starter));
            Ok(outcome.removed(was))
        }
        Break::StillRunning {
            was,
            processes,
            look_failed,
            is_removed,
        } => {
            let look_failed = look_failed.as_ref();
            let left = (&*processes, is_removed);
            Ok(still_running(session, lock, was, left, look_failed))
        }
        Break::Nothing => Ok(not_held(session, lock)),
        Break::Changed(status) => Ok(another(session, status)),
    }
}

fn not_confirmed(session: &Session, what: &str, status: Status) -> Outcome {
    Outcome::refused(Refusal::NOT_CONFIRMED, format!("not confirmed: {what}"))
        .note(output::store_line(session, &status))
        .lock(Box::new(status))
}

/// Whether it is removed unasked.
fn is_harmless(status: &Status) -> bool {
    matches!(status.verdict.state, State::Free | State::Zombie)
}

fn question(status: &Status, at_once: bool) -> &'static str {
    let has_command = is_run(status) && !describe::is_without_command(status);
    match (has_command, at_once) {
        _ if status.verdict.reason == Reason::Kept => "Free the lock before its time?",
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
        let holder = describe::holder_on_host(was, was.info()?);
        let left = words::span(left);
        return Some(format!(
            "the work of {holder} may still be running, for {left} at most"
        ));
    }
    // Its record has no room for what ends the work. The wrapper notices the loss.
    let record = was.info();
    let is_pid_file = was.verdict.evidence == Evidence::KernelLock
        && record.is_some_and(|record| record.format() == Format::Pid);
    if ((at_once && is_run) || is_pid_file) && was.verdict.reason != Reason::Locked {
        let holder = describe::holder_on_host(was, was.info()?);
        return is_held(was).then(|| format!("the work of {holder} may still be running"));
    }
    // All of it has ended.
    if is_run && was.verdict.pid_alive == Some(true) {
        return None;
    }
    wait_for_displaced(session, std::slice::from_ref(was), None).pop()
}

/// Nothing can take a kernel lock from its process.
fn held_by_kernel_lock(session: &Session, status: Status) -> Outcome {
    let text = format!("not broken: {}", describe_holder(&status, local));
    Outcome::refused(Refusal::KERNEL_LOCK, text)
        .notes(output::block(&status, session.global.verbose))
        .note(format!("  {}", output::end_of_lockers(&status)))
        .lock(Box::new(status))
}

/// The outcome of a break that could not end all of the work. `left`: the processes, and whether another caller has
/// freed the lock.
fn still_running(
    session: &Session,
    lock: &Lock,
    was: Box<Status>,
    (processes, is_removed): (&[ProcessId], bool),
    look_failed: Option<&std::io::Error>,
) -> Outcome {
    let found = processes.iter().map(|process| process.pid);
    let found: Vec<(Pid, Vec<String>)> = found.map(|pid| (pid, pid.command_line())).collect();
    let object = |(pid, command): &_| json!({ "pid": pid, "command": command });
    let objects: Vec<Value> = found.iter().map(object).collect();
    let is_unknown = was.verdict.reason == Reason::Alive && was.info().is_none();
    let (why, mut notes) = if is_unknown || was.verdict.reason == Reason::Locked {
        let lines = output::block(&was, session.global.verbose);
        (describe_holder(&was, local), lines)
    } else {
        let line = |(pid, command): &(Pid, Vec<_>)| {
            format!("  still running: {}", describe::process(pid.get(), command))
        };
        let mut lines: Vec<String> = found.iter().map(line).collect();
        if let Some(error) = look_failed {
            let cause = words::cause_text(error);
            lines.push(format!("  its processes cannot be listed: {cause}"));
        } else if found.is_empty() {
            let unseen = "a process that keeps the lock file open and cannot be seen from here";
            lines.push(format!("  still running: {unseen}"));
        }
        let name = words::quoted(&was.name);
        (format!("the work of {name} could not be ended"), lines)
    };
    let spared = spared(lock, &was);
    let record = was.info();
    let is_never_killed = record.is_some_and(|record| record.kill_after().is_none());
    if is_never_killed && !found.is_empty() && spared.is_empty() {
        let pids: Vec<String> = found.iter().map(|(pid, _)| pid.to_string()).collect();
        notes.push(format!(
            "  it got no KILL, because of --kill-after 0; to end it, run `kill -KILL {}`",
            pids.join(" ")
        ));
    }
    notes.extend(spared);
    notes.push(output::store_line(session, &was));
    let break_it = command_line(session, "break", &was);
    notes.push(match output::only_remover(&was) {
        _ if is_removed => "  another caller has freed the lock meanwhile".to_owned(),
        Some(user) => {
            format!("  it belongs to user {user}: ask that user to run `{break_it}`")
        }
        None => format!("  to free the lock while it runs: `{break_it} --force`"),
    });
    Outcome::refused(Refusal::STILL_RUNNING, format!("not broken: {why}"))
        .details(json!({ "hold": was.hold(), "processes": objects }))
        .notes(notes)
        .lock(was)
}

/// Says once that `break` waits for the work of a hold. Returns false after Ctrl-C.
fn waiting(session: &Session, status: &Status) -> impl FnMut(Duration) -> bool {
    /// Most work ends at once.
    const DELAY: Duration = Duration::from_millis(500);
    let since = Instant::now();
    let mut is_said = !session.tells();
    move |left| {
        if !is_said && since.elapsed() >= DELAY {
            is_said = true;
            let record = status.info();
            let holder = record.map(|record| describe::holder_on_host(status, record));
            output::eprint(&format!(
                "onehold: waiting up to {} for the work of {} to end",
                words::span(left + Duration::from_millis(999)),
                holder.as_deref().unwrap_or("the holder")
            ));
        }
        cancel::signal_so_far().is_none()
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
        (outcome.exit, outcome.status) = (Exit::FAILED, "failure");
        return Ok(Some(outcome));
    }
    let Some(moved) = lock.move_aside()? else {
        return Ok(None);
    };
    let text = moved_text(status, &moved.to);
    let outcome = Outcome::new(Exit::DONE, "broken", text).warnings(&moved.warnings);
    Ok(Some(outcome.told_if(true).lock(Box::new(status.clone()))))
}

fn not_held(session: &Session, lock: &Lock) -> Outcome {
    let name = words::quoted(lock.name().as_str());
    // A parent or child can still keep the lock from being acquired.
    let is_relative = |status: &Status| status.name != lock.name().as_str();
    let Some(relative) = lock.check(None).ok().filter(is_relative) else {
        let text = format!("{name} is free: nothing to break");
        return Outcome::refused(Refusal::NOT_HELD, text).notes(about_file(session, lock));
    };
    let relation = describe::relation(&relative, lock.name());
    let holder = describe_holder(&relative, local);
    let break_it = command_line(session, "break", &relative);
    Outcome::refused(Refusal::NOT_HELD, format!("{name} itself is not held"))
        .note(format!("  its {relation} {holder}"))
        .note(format!("  to break that: `{break_it}`"))
}
