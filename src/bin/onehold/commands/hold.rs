//! `hold`: hold a lock for a program, as long as its end of a pipe is open.

use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, bail};
use onehold::command_line::signal::{self, QueuedSignal, SignalQueue};
use onehold::command_line::{
    command_line_of, drop_code_pages, stdin_was_closed, tells_to_break, wait_for_end_of_stdin,
};
use onehold::journal::HoldResult;
use onehold::record::Pid;
use onehold::{Hold, Lock, ReleaseOutcome, RunOptions, Status};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::args::{HoldUntilEnd, OnZombie, UsageError};
use crate::configuration::session::Session;
use crate::messages::{CommandResult, Exit, Printed, displaced};
use crate::output;
use crate::output::report::{escape_json, lock_value};
use crate::supervising::cancel::{self, SIGINT, Then};
use crate::supervising::die_with::{self, in_thread};
use crate::supervising::heartbeat::Heartbeat;
use crate::supervising::supervise::{self, CHECK_INTERVAL, SIGHUP, SIGQUIT, SIGTERM, loss_text};
use crate::taking::Taking;
use crate::taking::acquiring::give_back_untold;
use crate::taking::progress;
use crate::taking::prompt::report_cancel;
use crate::words;

/// Why a hold ends.
enum End {
    Stdin,
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
        watch_stdin_after(CHECK_INTERVAL)?;
    }
    let begins_to_wait = |status: &Status| {
        if session.global.json {
            let _ = Event::waiting(session, &lock, status).print();
        }
        // If this fails, stdin is watched once the lock is held. On a terminal, the next line may answer a question.
        if !(may_ask && is_terminal) {
            let _ = watch_stdin();
        }
    };
    // Not std::env::args_os: the program that is shipped begins without the runtime that fills it.
    let own = command_line_of(Pid::of_self());
    let hold = match taking.hold(Some(&begins_to_wait), run, &own)? {
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
    pass_on_signals(queue, number, end.clone())?;
    watch_stdin()?;
    if let Err(error) = tell_held(session, &Event::held(session, &lock, &hold)) {
        return Ok(give_back_untold(hold, &lock, &error));
    }
    Ok(keep(session, hold, &ends))
}

/// Waits for the end when the caller already runs inside a hold of the lock. Holds nothing itself.
fn enclosed(
    session: &Session,
    lock: &Lock,
    end: &Sender<End>,
    ends: &Receiver<End>,
) -> CommandResult {
    cancel::commit(());
    let status = lock.inspect(None)?;
    let outer = status.all_holds().find(|hold| session.is_inside(hold));
    let outer = outer.context("the enclosing hold has ended")?;
    // flock(1) does not number its locks.
    let number = outer.hold().unwrap_or_default();
    pass_on_signals(supervise::queue()?, 0, end.clone())?;
    watch_stdin(&Cell::new(false), end)?;
    let held = Event {
        event: "held",
        hold: Some(number),
        ..Event::default()
    };
    tell_held(session, &held)?;
    let why = ends.recv()?;
    Ok(tell_end(session, number, &why, None, None))
}

/// Gives up if stdin has ended after that time, and the lock is not held.
fn watch_stdin_after(time: Duration) -> anyhow::Result<()> {
    in_thread("unanswered", move || {
        std::thread::sleep(time);
        stdin_cancels();
    })
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

/// Turns signals into reasons to end. `hold`: the hold number, which the signal of a break carries.
fn pass_on_signals(queue: SignalQueue, hold: u64, end: Sender<End>) -> anyhow::Result<()> {
    let is_ours = std::io::stdin().is_terminal();
    in_thread("signals", move || {
        loop {
            let received = match queue.next(None) {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                // Lack of memory, for example.
                Err(_) => {
                    std::thread::sleep(CHECK_INTERVAL);
                    continue;
                }
            };
            let why = if tells_to_break(received, hold) {
                End::Broken
            } else if received.is_stop() {
                let _ = signal::stop(None);
                continue;
            } else if ends(received, is_ours) && !queue.is_ignored(received.signal) {
                End::Signal(received.signal)
            } else {
                continue;
            };
            if end.send(why).is_err() {
                return;
            }
        }
    })
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
fn keep(session: &Session, mut hold: Hold, ends: &Receiver<End>) -> Printed {
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
                break End::Lost;
            }
            drop_code_pages();
        }
        heartbeat.renew_if_due(&mut hold);
    };
    let number = hold.number();
    let name = words::quoted(&hold.record().name);
    // Tell the program first: after the release, another may hold the lock.
    let loss_told = loss(&why, &hold);
    let loss_told = loss_told.map(|text| tell_end(session, number, &why, Some(&text), None));
    let released = hold.give_back(None, &mut |_| false);
    let result = match (&why, &released) {
        (End::Broken, _) => HoldResult::Broken,
        (End::Lost, _) | (_, Ok(ReleaseOutcome::Lost)) => HoldResult::Lost,
        _ => HoldResult::Released,
    };
    let noted = hold.note_end(result, None);
    if let Some(told) = loss_told {
        return told;
    }
    let (why, error) = match &released {
        Ok(ReleaseOutcome::Released | ReleaseOutcome::Kept) => {
            if session.global.verbose {
                output::say(session, &format!("released {name}"));
            }
            (why, noted.as_ref())
        }
        Ok(ReleaseOutcome::Lost) => (End::Lost, None),
        Err(error) => (why, Some(error)),
    };
    tell_end(session, number, &why, loss(&why, &hold).as_deref(), error)
}

/// The message if the hold ended against the will of its program.
fn loss(why: &End, hold: &Hold) -> Option<String> {
    match why {
        End::Broken => {
            let name = words::quoted(&hold.record().name);
            Some(format!("lock {name} was broken while it was held"))
        }
        End::Lost => Some(loss_text(hold, "it was held")),
        End::Stdin | End::Caller(_) | End::Signal(_) => None,
    }
}

/// One line of `--json`. The line `failed` is that of other commands, see `report`.
#[derive(Default, Serialize)]
struct Event<'a> {
    event: &'static str,
    hold: Option<u64>,
    slot: Option<u32>,
    slots: Vec<u32>,
    file: Option<String>,
    position: Option<usize>,
    holder: Option<Value>,
    displaced: Option<Value>,
    reason: Option<&'static str>,
    message: Option<&'a str>,
    errors: Vec<String>,
}

impl Event<'_> {
    fn waiting(session: &Session, lock: &Lock, status: &Status) -> Self {
        Self {
            event: "waiting",
            position: progress::position(lock),
            holder: Some(lock_value(status, &session.caller)),
            ..Self::default()
        }
    }

    fn held(session: &Session, lock: &Lock, hold: &Hold) -> Self {
        let slots = hold.slots();
        let path = || hold.path().to_string_lossy().into_owned();
        let displaced = displaced(hold.displaced());
        Self {
            event: "held",
            hold: Some(hold.number()),
            slot: slots.first().copied(),
            slots,
            file: (!lock.is_remote()).then(path),
            displaced: displaced.map(|was| lock_value(&was, &session.caller)),
            errors: hold.warnings().iter().map(words::error_chain).collect(),
            ..Self::default()
        }
    }

    fn print(&self) -> std::io::Result<()> {
        // Serializing strings, numbers and lists cannot fail.
        let line = serde_json::to_string(self).unwrap_or_default();
        output::data(&escape_json(&line))
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
    let errors: Vec<String> = error.map(words::error_chain).into_iter().collect();
    if session.global.json {
        let text = match why {
            End::Caller(text) => Some(*text),
            _ => loss,
        };
        let event = Event {
            event: if loss.is_some() { "lost" } else { "released" },
            hold: Some(hold),
            reason: Some(why.reason()),
            message: text,
            errors,
            ..Event::default()
        };
        // The reader may have exited.
        let _ = event.print();
    } else {
        if let Some(text) = loss {
            output::eprint(&format!("onehold: {text}"));
        }
        output::warn(errors);
    }
    match why {
        _ if loss.is_some() => Printed::Yes(Exit::Lost),
        // As if it had never been caught, so that a calling shell script ends, too.
        End::Signal(signal) if *signal != SIGTERM => Printed::by_signal(*signal),
        _ => Printed::Yes(Exit::Done),
    }
}
