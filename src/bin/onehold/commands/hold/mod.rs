//! `hold`: hold a lock for a program, as long as its end of a pipe is open. `serve` holds many.

mod event;
#[cfg(unix)]
mod serve;

use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use crate::arguments::args::{DieWith, HoldUntilEnd, OnZombie, UsageError};
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Printed};
use crate::supervising::{
    CHECK_INTERVAL, Heartbeat, SIGHUP, SIGINT, SIGQUIT, SIGTERM, Then, broken_text, cancel,
    die_with, in_thread, loss_text, supervise,
};
use crate::taking::{Taking, give_back_untold, report_cancel};
use crate::{output, words};
use anyhow::bail;
use onehold::command_line::signal::{self, QueuedSignal, SignalQueue};
use onehold::command_line::{drop_code_pages, stdin_was_closed, wait_for_end_of_stdin};
use onehold::journal::{Action, Fate, HoldResult};
use onehold::status::{Pid, Program};
use onehold::{Hold, Lock, ReleaseOutcome, RunOptions, Status};

use event::Event;

/// Why a hold ends.
#[cfg_attr(not(unix), expect(dead_code, reason = "--serve is for Unix"))]
enum End {
    Stdin,
    /// Of one of many holds.
    Request,
    /// The same, by the name of its lock: its record is gone already.
    RequestByName,
    /// With the sentence about it.
    Caller(&'static str),
    Signal(i32),
    Broken,
    /// Its file was removed or replaced, or its lease could not be kept.
    Lost,
}

impl End {
    /// `reason` of the last line.
    fn reason(&self) -> &'static str {
        match self {
            Self::Stdin => "stdin",
            Self::Request | Self::RequestByName => "request",
            Self::Caller(_) => "caller-exited",
            Self::Signal(_) => "signal",
            Self::Broken => "broken",
            Self::Lost => "lost",
        }
    }
}

#[inline(never)]
pub(crate) fn hold(session: &Session, typed: HoldUntilEnd) -> CommandResult {
    if stdin_was_closed() {
        bail!(UsageError(
            "stdin is closed: the lock is held as long as it is open".to_owned()
        ));
    }
    if typed.serve {
        #[cfg(unix)]
        return serve::serve(session, &typed);
        #[cfg(not(unix))]
        bail!(UsageError(
            "hold --serve is not supported on this system".to_owned()
        ));
    }
    let lock = session.named_locks(typed.names)?;
    let taking = Taking::new(session, &typed.hold, &lock)?;
    let die_with = die_with::find(typed.die_with)?;
    let (end, ends) = mpsc::channel();
    if let Some(process) = die_with {
        // It may exit before the lock is held.
        report_cancel(session, Then::Ends);
        let end = end.clone();
        die_with::watch(process, move |why| {
            if !cancel::cancel(SIGTERM, Some(why)) {
                let _ = end.send(End::Caller(why));
            }
        })?;
    }
    if typed.reentrant && taking.is_inside_all()? {
        return enclosed(session, &lock, &end, &ends);
    }
    let is_immediate = !taking.may_block();
    let queue = is_immediate.then(supervise::queue).transpose()?;
    let run = RunOptions::new().supervised(true).without_command();
    // Watched only while waiting or holding: so a free lock is taken even if stdin is at its end.
    let is_watched = Cell::new(false);
    let watch_stdin = || watch_stdin(&is_watched, &end);
    // What is typed on a terminal may be the answer to a question, and a terminal tells its end (Ctrl-D) only once.
    let is_terminal = std::io::stdin().is_terminal();
    let may_ask = typed.hold.on_zombie == Some(OnZombie::Ask) || typed.hold.force;
    if lock.is_remote() && !is_terminal {
        // etcd may not answer for as long as a wait lasts.
        report_cancel(session, Then::Ends);
        in_thread("unanswered", || {
            std::thread::sleep(CHECK_INTERVAL);
            stdin_cancels();
        })?;
    }
    let begins_to_wait = |status: &Status| {
        if session.global.json {
            let _ = Event::waiting(session, status).print();
        }
        // If this fails, stdin is watched once the lock is held. On a terminal, the next line may answer a question.
        if !(may_ask && is_terminal) {
            let _ = watch_stdin();
        }
    };
    // Not std::env::args_os: the program that is shipped begins without the runtime that fills it.
    let own = Pid::of_self().command_line();
    let options = taking.options().command(own);
    // The program that has started this one, as far as that is known.
    let parent = || die_with::find(Some(DieWith::Parent)).ok().flatten();
    let options = options.for_program(die_with.or_else(parent).map(Program::of));
    let taking = Taking {
        on_wait: Some(&begins_to_wait),
        ..taking
    };
    let hold = match taking.hold(run, options)? {
        Ok(hold) => hold,
        Err(outcome) => return Ok(outcome.into()),
    };
    let queue = queue.map_or_else(supervise::queue, Ok)?;
    taking.report_acquired(&hold, Some(&queue));
    if let Some(signal) = cancel::signal_so_far() {
        cancel::give_back(hold);
        return Ok(Printed::by_signal(signal));
    }
    let number = hold.number();
    pass_on_signals(queue, Some(number), telling(&end))?;
    watch_stdin()?;
    if let Err(error) = tell_held(session, &Event::held(session, &lock, &hold)) {
        return Ok(give_back_untold(hold, &lock, &error));
    }
    Ok(keep(session, &lock, hold, &ends))
}

/// Waits for the end when the caller already runs inside a hold of the lock. Holds nothing itself.
fn enclosed(
    session: &Session,
    lock: &Lock,
    end: &Sender<End>,
    ends: &Receiver<End>,
) -> CommandResult {
    cancel::commit(());
    let held = Event::enclosed(session, lock)?;
    let number = held.hold.unwrap_or_default();
    pass_on_signals(supervise::queue()?, Some(0), telling(end))?;
    watch_stdin(&Cell::new(false), end)?;
    tell_held(session, &held)?;
    let why = ends.recv()?;
    Ok(tell_end(session, number, &why, None, None))
}

/// Waits for the end of stdin. Returns whether it cancels: the lock is not held yet.
fn stdin_cancels() -> bool {
    wait_for_end_of_stdin();
    cancel::cancel(SIGINT, Some("stdin has ended"))
}

fn watch_stdin(is_watched: &Cell<bool>, end: &Sender<End>) -> anyhow::Result<()> {
    if is_watched.get() {
        return Ok(());
    }
    let end = end.clone();
    in_thread("stdin", move || {
        if !stdin_cancels() {
            let _ = end.send(End::Stdin);
        }
    })?;
    is_watched.set(true);
    Ok(())
}

/// Calls `tell` for each signal. `hold`: the hold number, which the signal of a break carries. `None`: any other signal
/// may be that of a break.
fn pass_on_signals(
    queue: SignalQueue,
    hold: Option<u64>,
    mut tell: impl FnMut(Option<End>) + Send + 'static,
) -> anyhow::Result<()> {
    let is_ours = hold.is_some() && std::io::stdin().is_terminal();
    let is_break = move |one: &QueuedSignal| hold.is_some_and(|hold| one.tells_to_break(hold));
    let listen = move || loop {
        match queue.next(None) {
            Ok(Some(one)) if is_break(&one) => tell(Some(End::Broken)),
            Ok(Some(one)) if one.is_stop() => drop(signal::stop(None)),
            Ok(Some(one)) if !ends(one, is_ours) => tell(None),
            Ok(Some(one)) if !queue.is_ignored(one.signal) => tell(Some(End::Signal(one.signal))),
            Ok(_) => {}
            // Lack of memory, for example.
            Err(_) => std::thread::sleep(CHECK_INTERVAL),
        }
    };
    in_thread("signals", listen)
}

fn telling(end: &Sender<End>) -> impl FnMut(Option<End>) + Send + 'static {
    let end = end.clone();
    move |why| {
        if let Some(why) = why {
            let _ = end.send(why);
        }
    }
}

/// Whether the signal ends the hold. `is_ours`: the terminal is stdin, and its signals are not for a program
/// that started this one.
fn ends(received: QueuedSignal, is_ours: bool) -> bool {
    match received.signal {
        SIGTERM => true,
        SIGINT | SIGHUP | SIGQUIT => received.from_process || is_ours,
        _ => false,
    }
}

/// Keeps the hold until it ends.
fn keep(session: &Session, lock: &Lock, mut hold: Hold, ends: &Receiver<End>) -> Printed {
    // On etcd a break sends no signal.
    let looks = if session.store.is_remote() { 2 } else { 1 };
    let mut heartbeat = Heartbeat::new(CHECK_INTERVAL / looks);
    let why = loop {
        // Not disconnected: the caller has a sender, too.
        if let Ok(why) = ends.recv_timeout(heartbeat.pause(&hold)) {
            break why;
        }
        if hold.is_broken() {
            break End::Broken;
        }
        let is_over = hold.lost_in().is_some_and(|left| left.is_zero());
        if heartbeat.is_check_due(is_over) {
            if is_over || matches!(hold.is_lost(), Ok(true)) {
                break end_of_lost(lock, &hold);
            }
            drop_code_pages();
        }
        heartbeat.renew_if_due(&mut hold);
    };
    let number = hold.number();
    let name = words::quoted(hold.info().name());
    let mut told = Printed::Yes(Exit::DONE);
    give_back(&mut hold, &why, &mut |why, loss, error| {
        if session.global.verbose && loss.is_none() && error.is_none() {
            output::say(session, &format!("released {name}"));
        }
        told = tell_end(session, number, why, loss, error);
    });
    told
}

/// A break notes what it has removed within this time.
const NOTED_WITHIN: Duration = Duration::from_millis(50);

/// Whether the journal says that a hold was broken whose record is gone. A server that may be out of reach is not asked.
fn is_noted_as_broken(lock: &Lock, hold: u64) -> bool {
    !lock.is_remote()
        && matches!(lock.fate(hold), Fate::Ended(event) if event.event == Action::Break)
}

/// Whether a hold whose record is gone was broken, or lost in another way.
fn end_of_lost(lock: &Lock, hold: &Hold) -> End {
    let is_noted = || is_noted_as_broken(lock, hold.number());
    let is_broken = is_noted() || {
        std::thread::sleep(NOTED_WITHIN);
        is_noted()
    };
    if is_broken { End::Broken } else { End::Lost }
}

/// Is told why a hold has ended, with its loss or an error.
type Tell<'a> = &'a mut dyn FnMut(&End, Option<&str>, Option<&onehold::Error>);

/// Releases the lock, notes the end of the hold, and reports it. A loss is reported first: after the release, another
/// may hold the lock.
fn give_back(hold: &mut Hold, why: &End, tell: Tell<'_>) {
    let told = loss(why, hold);
    if told.is_some() {
        tell(why, told.as_deref(), None);
    }
    let mut result = match why {
        End::Broken => HoldResult::Broken,
        End::Lost => HoldResult::Lost,
        _ => HoldResult::Released,
    };
    hold.will_end(result, None);
    let released = hold.release_or_keep(None, &mut |_| false);
    if result == HoldResult::Released && matches!(released, Ok(ReleaseOutcome::Lost)) {
        result = HoldResult::Lost;
    }
    let noted = hold.note_end(result, None);
    match &released {
        _ if told.is_some() => {}
        Ok(ReleaseOutcome::Lost) => tell(&End::Lost, loss(&End::Lost, hold).as_deref(), None),
        released => tell(why, None, released.as_ref().err().or(noted.as_ref())),
    }
}

/// The message if the hold ended against the will of its program.
fn loss(why: &End, hold: &Hold) -> Option<String> {
    match why {
        End::Broken => Some(broken_text(hold, "it was held")),
        End::Lost => Some(loss_text(hold, "it was held")),
        End::Stdin | End::Request | End::RequestByName | End::Caller(_) | End::Signal(_) => None,
    }
}

/// Tells the program that it holds the lock. Fails if it cannot know that.
fn tell_held(session: &Session, held: &Event<'_>) -> std::io::Result<()> {
    output::ensure_open_stdout()?;
    if session.global.json {
        return held.print();
    }
    output::warn(&held.errors);
    output::data(&held.hold.unwrap_or_default().to_string())
}

/// Tells the program that it no longer holds the lock, and ends as it has to. `loss`: the message, if the hold was
/// lost.
fn tell_end(
    session: &Session,
    hold: u64,
    why: &End,
    loss: Option<&str>,
    error: Option<&onehold::Error>,
) -> Printed {
    if session.global.json {
        // The reader may have exited.
        let _ = Event::ended(hold, why, loss, error).print();
    } else {
        if let Some(text) = loss {
            output::eprint(&format!("onehold: {text}"));
        }
        output::warn(error.map(words::error_chain));
    }
    match why {
        _ if loss.is_some() => Printed::Yes(Exit::LOST),
        // As if it had never been caught, so that a calling shell script ends, too.
        End::Signal(signal) if *signal != SIGTERM => Printed::by_signal(*signal),
        _ => Printed::Yes(Exit::DONE),
    }
}
