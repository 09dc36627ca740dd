//! `hold --serve`: hold many locks for a program. One thread answers requests and releases locks; waits have threads
//! of their own.

mod answer;
mod held;
mod pipes;
mod repeated;
mod request;
mod waiting;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onehold::command_line::drop_code_pages;
use onehold::status::{Pid, ProcessId, Program};
use onehold::{Attempt, Blocked, Hold, Holder, LockName, Status};

use super::event::Event;
use super::{End, NOTED_WITHIN, pass_on_signals};
use crate::arguments::args::{
    Acquire, Cli, DieWith, HoldArgs, HoldUntilEnd, OnZombie, UsageError, Verb,
};
use crate::commands::{acquire, session};
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, Printed, Refusal};
use crate::output::{failed, failed_without_store, report};
use crate::supervising::{CHECK_INTERVAL, die_with, supervise};
use crate::taking::{Taking, malformed};
use crate::words;
use answer::{Answer, answer, canceled, line};
use held::Held;
use pipes::{Events, Input, Line, Output, events};
use repeated::Repeated;
use request::{Malformed, What};
use waiting::{Attempted, FromThread, Prepared, Waiting, Wanted, Work, Workers};

/// How long a lock may take to be taken or given back once the server is to end.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// A process that was killed has exited within this time after its files were closed.
const EXITS_WITHIN: Duration = Duration::from_millis(20);

/// How often a wait that is canceled is interrupted: a signal may come just before it sleeps.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

#[cold]
pub(super) fn serve(session: &Session, typed: &HoldUntilEnd) -> CommandResult {
    if !typed.names.is_empty() {
        let why = "hold --serve takes its names from stdin";
        bail!(UsageError(why.to_owned()));
    }
    let program = die_with::find(Some(typed.die_with.unwrap_or(DieWith::Parent)))?;
    let queue = supervise::queue()?;
    let (notifier, events) = events().context("cannot make a pipe")?;
    if let Some(process) = program {
        let notifier = notifier.clone();
        die_with::watch(process, move |why| {
            notifier.send(FromThread::End(End::Caller(why)));
        })?;
    }
    let signals = notifier.clone();
    pass_on_signals(queue, None, move |why| {
        signals.send(why.map_or(FromThread::Look, FromThread::End));
    })?;
    let start = std::env::current_dir().context("cannot find the current directory")?;
    let server = Server {
        defaults: session,
        current: start.clone(),
        start,
        process: program,
        program: program.map(Program::of),
        own: Pid::of_self().command_line(),
        holds: BTreeMap::new(),
        enclosing: BTreeMap::new(),
        waits: BTreeMap::new(),
        workers: Workers::new(notifier),
        last: None,
        output: Output::default(),
    };
    server.run(events);
    Ok(Printed::Yes(Exit::DONE))
}

struct Server<'a> {
    defaults: &'a Session,
    /// The directory in which it was started, and the one that it is in.
    start: PathBuf,
    current: PathBuf,
    /// The process that it ends with, and what is shown of it.
    process: Option<ProcessId>,
    program: Option<Program>,
    own: Vec<String>,
    holds: BTreeMap<u64, Held>,
    /// The numbers of the holds that the program runs inside of (`reentrant`).
    enclosing: BTreeMap<u64, u64>,
    waits: BTreeMap<u64, Waiting>,
    workers: Workers,
    last: Option<Repeated>,
    output: Output,
}

impl Server<'_> {
    fn run(mut self, mut events: Events<FromThread>) {
        let mut input = Input::default();
        let mut next_look = Instant::now() + CHECK_INTERVAL;
        let mut has_rested = false;
        let why = loop {
            if self.output.is_closed || input.has_ended {
                break End::Stdin;
            }
            let ready = events.sleep(&self.output, self.pause(next_look));
            let came = if ready.events {
                events.take()
            } else {
                Vec::new()
            };
            let mut looks = Instant::now() >= next_look;
            let mut end = None;
            for event in came {
                match event {
                    FromThread::End(why) => end = Some(why),
                    FromThread::Look => looks = true,
                    event => self.hear(event),
                }
            }
            if let Some(why) = end {
                break why;
            }
            if ready.input {
                input.read();
                if ready.input_ends && !input.has_ended && self.program_exits() {
                    // What it has asked for last is not done.
                    break End::Stdin;
                }
                while let Some(line) = input.next_line() {
                    match line {
                        Line::Whole(line) => self.answer(&line),
                        Line::TooLong => self.refuse(request::too_long()),
                    }
                }
                has_rested = false;
            }
            if looks {
                self.look();
                if !std::mem::replace(&mut has_rested, true) {
                    drop_code_pages();
                }
                next_look = Instant::now() + self.look_interval();
            }
            for wait in self.waits.values().filter(|wait| wait.is_canceled()) {
                wait.cancel();
            }
            self.output.write();
        };
        self.end(&why, &mut events);
    }

    /// Whether the program has exited, or does so now: its end of the pipe is closed a moment before that shows.
    fn program_exits(&self) -> bool {
        let Some(program) = &self.program else {
            return false;
        };
        let until = Instant::now() + EXITS_WITHIN;
        while !program.has_ended() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(EXITS_WITHIN / 20);
        }
        true
    }

    /// Until when nothing has to be done by the clock.
    fn pause(&self, next_look: Instant) -> Option<Duration> {
        if self.waits.values().any(Waiting::is_canceled) {
            return Some(INTERRUPT_INTERVAL);
        }
        let looks = !(self.holds.is_empty() && self.enclosing.is_empty());
        looks.then(|| next_look.saturating_duration_since(Instant::now()))
    }

    fn look_interval(&self) -> Duration {
        let holds = self.holds.values();
        if holds.clone().any(|held| held.missing_since.is_some()) {
            return NOTED_WITHIN;
        }
        // No clock ends those in a directory.
        let lost_in = holds.filter_map(|held| held.hold.lost_in());
        let lost_in = lost_in.map(|left| left.max(Duration::from_millis(10)));
        lost_in.fold(CHECK_INTERVAL, |least, left| {
            least.min(left).min(CHECK_INTERVAL / 2)
        })
    }

    fn answer(&mut self, line: &[u8]) {
        let again = self.last.as_ref().and_then(|last| last.wanted(line));
        if let Some(wanted) = again.filter(|wanted| !self.is_in_use(wanted.id)) {
            let (id, prepared) = (wanted.id, Arc::clone(&wanted.prepared));
            let taken = self.take(wanted);
            return self.tell_error(&prepared.session, id, taken);
        }
        let request = match request::read(line, &self.defaults.global) {
            Ok(request) => request,
            Err(malformed) => return self.refuse(malformed),
        };
        let id = request.id;
        match request.what {
            What::Release => self.release(id),
            What::Cancel => {
                // If there is none, it was answered meanwhile. A release under way goes on.
                if let Some(wait) = self.waits.get(&id) {
                    wait.cancel();
                }
            }
            What::Command(cli) if self.is_in_use(id) => {
                let why = UsageError(format!("id {id} is in use"));
                self.refuse_by(Some(id), cli.verb.word(), &why.into());
            }
            What::Command(cli) => {
                let command = cli.verb.word();
                let moved = self.move_to(request.cwd);
                let done = moved.and_then(|()| self.command(line, id, request.callers, cli));
                if let Err(error) = done {
                    self.refuse_by(Some(id), command, &error);
                }
            }
        }
    }

    fn is_in_use(&self, id: u64) -> bool {
        self.holds.contains_key(&id)
            || self.enclosing.contains_key(&id)
            || self.waits.contains_key(&id)
    }

    fn refuse(&mut self, malformed: Malformed) {
        self.refuse_by(malformed.id, malformed.command, &malformed.why.into());
    }

    /// Answers a request of which no store is known.
    fn refuse_by(&mut self, id: Option<u64>, command: &'static str, error: &anyhow::Error) {
        let outcome = failed_without_store(command, error);
        let request = Some(report::Request { id });
        let line = report::object(command, None, request, &outcome);
        self.output.add(&line.unwrap_or_default());
    }

    /// Makes relative paths of a request be relative to this directory.
    fn move_to(&mut self, cwd: Option<PathBuf>) -> anyhow::Result<()> {
        let wanted = cwd.unwrap_or_else(|| self.start.clone());
        if wanted != self.current {
            let path = words::path_text(&wanted);
            std::env::set_current_dir(&wanted).with_context(|| format!("cannot enter `{path}`"))?;
            self.current = wanted;
        }
        Ok(())
    }

    fn command(
        &mut self,
        request: &[u8],
        id: u64,
        callers: Vec<u64>,
        mut cli: Box<Cli>,
    ) -> anyhow::Result<()> {
        let session = session(cli.verb.word(), &mut cli)?;
        let begun = match cli.verb {
            Verb::Hold(typed) => self.hold(request, id, callers, &session, typed),
            Verb::Acquire(typed) => self.acquire(id, callers, &session, typed),
            verb if session.store.is_remote() => {
                let work = match verb {
                    Verb::Release(_) => Work::ReleaseByName,
                    _ => Work::Other,
                };
                let answer = move || answer(&session, id, verb);
                let waiting = self.workers.answer(id, work, answer)?;
                self.waits.insert(id, waiting);
                return Ok(());
            }
            verb => {
                self.tell(&answer(&session, id, verb));
                Ok(())
            }
        };
        self.tell_error(&session, id, begun);
        Ok(())
    }

    fn say(&mut self, session: &Session, id: u64, outcome: &Outcome) {
        self.output.add(&line(session, id, outcome));
    }

    fn tell_error(&mut self, session: &Session, id: u64, done: anyhow::Result<()>) {
        if let Err(error) = done {
            self.say(session, id, &failed(session, &error));
        }
    }

    fn hold(
        &mut self,
        request: &[u8],
        id: u64,
        callers: Vec<u64>,
        session: &Session,
        typed: HoldUntilEnd,
    ) -> anyhow::Result<()> {
        let mut prepared = prepared(session, typed.hold, typed.names)?;
        prepared.is_reentrant = typed.reentrant;
        let options = prepared.options.command(self.own.clone());
        prepared.options = options.for_program(self.program.clone());
        let wanted = Box::new(Wanted::new(id, callers, prepared));
        self.last = Repeated::of(request, &wanted);
        self.take(wanted)
    }

    fn take(&mut self, wanted: Box<Wanted>) -> anyhow::Result<()> {
        if wanted.is_reentrant && wanted.taking().is_inside_all()? {
            return self.enclosed(&wanted);
        }
        if wanted.may_block() {
            return self.wait(wanted, None);
        }
        match wanted.try_now() {
            Ok(Attempt::Blocked(blocked))
                if malformed::waits(wanted.typed.wait)
                    && !self.waits_for_itself(&wanted, &blocked) =>
            {
                self.wait(wanted, None)
            }
            Err(error) if malformed::is_why(wanted.taking(), &error) => self.wait(wanted, None),
            attempted => {
                self.over(&wanted, attempted, false);
                Ok(())
            }
        }
    }

    /// Takes a lease, or the lock for another process, in a thread: what is on disk delays no release.
    fn acquire(
        &mut self,
        id: u64,
        callers: Vec<u64>,
        session: &Session,
        typed: Acquire,
    ) -> anyhow::Result<()> {
        let prepared = prepared(session, typed.hold, typed.names)?;
        let wanted = Box::new(Wanted::new(id, callers, prepared));
        let holder = match (typed.pid, self.process) {
            (Some(pid), _) => Holder::process(pid)?,
            (None, _) if acquire::is_lease(wanted.taking()) => Holder::Lease,
            (None, Some(process)) => Holder::Caller {
                process,
                parent: process,
                ends_with_call: false,
            },
            (None, None) => {
                let why = "without --die-with, a request acquires a lease, by `ttl` and in the native format, or for \
                           the process `pid`";
                bail!(UsageError(why.to_owned()));
            }
        };
        if wanted.is_endless() && !wanted.lock.is_remote() {
            let status = wanted.lock.check_for(&wanted.options)?;
            let is_free = status.is_takeable();
            let blocked = Blocked::new(status, None);
            if !is_free && self.waits_for_itself(&wanted, &blocked) {
                self.refuse_wanted(&wanted, blocked);
                return Ok(());
            }
        }
        self.wait(wanted, Some(holder))
    }

    /// Waits in a thread, unless the wait would never end. `holder`: for whom the lock is acquired, if it is not held by
    /// the server.
    fn wait(&mut self, wanted: Box<Wanted>, holder: Option<Holder>) -> anyhow::Result<()> {
        if let Some(blocked) = self.blocked_unasked(&wanted) {
            self.refuse_wanted(&wanted, blocked);
            return Ok(());
        }
        let id = wanted.id;
        let waiting = match holder {
            Some(holder) => self.workers.acquire(wanted, holder),
            None => self.workers.wait(wanted),
        };
        self.waits.insert(id, waiting?);
        Ok(())
    }

    /// Whether the caller has the lock itself, so that its wait would never end.
    fn waits_for_itself(&self, wanted: &Wanted, blocked: &Blocked) -> bool {
        let callers = &wanted.callers;
        let may_hang = wanted.is_endless();
        let status = &blocked.status;
        let has = |number| {
            let mut holds = self.holds.values();
            holds.any(|held| held.is_of(callers) && held.is(number, &status.store))
        };
        let mut numbers = status.all_holds().filter_map(Status::hold);
        may_hang && numbers.any(has)
    }

    /// What is in the way of a wait for a lock that the caller holds itself, in a store of several machines. That is not
    /// asked, because it may not answer for long.
    fn blocked_unasked(&self, wanted: &Wanted) -> Option<Blocked> {
        if !wanted.lock.is_remote() || !wanted.is_endless() {
            return None;
        }
        let mut holds = self.holds.values();
        let in_the_way = holds.find(|held| {
            let is_of_caller = held.is_of(&wanted.callers);
            is_of_caller && held.hold.excludes(&wanted.lock, &wanted.options)
        })?;
        Some(Blocked::new(in_the_way.hold.status(), None))
    }

    fn enclosed(&mut self, wanted: &Wanted) -> anyhow::Result<()> {
        let held = Event::enclosed(&wanted.session, &wanted.lock)?.of(wanted.id);
        let number = held.hold.unwrap_or_default();
        self.enclosing.insert(wanted.id, number);
        self.output.add(&held.line());
        Ok(())
    }

    /// The result of an attempt. `is_canceled`: what was taken is given back.
    fn over(&mut self, wanted: &Wanted, attempted: Attempted, is_canceled: bool) {
        let (id, session) = (wanted.id, &wanted.session);
        let outcome = match attempted {
            Ok(attempt) if !is_canceled => match attempt.into_result() {
                Ok(hold) => return self.keep(wanted, hold),
                Err(blocked) => return self.refuse_wanted(wanted, blocked),
            },
            Err(error) if !is_canceled => failed(session, &error.into()),
            // Dropped, it is released.
            _ => canceled(),
        };
        self.say(session, id, &outcome);
    }

    fn keep(&mut self, wanted: &Wanted, mut hold: Hold) {
        let event = Event::held(&wanted.session, &wanted.lock, &hold).of(wanted.id);
        self.output.add(&event.line());
        // One descriptor for each hold is left.
        let mut others = self.holds.values();
        others.any(|other| hold.share_directory(&other.hold));
        let own = Held {
            hold,
            lock: wanted.lock.clone(),
            caller: wanted.callers.last().copied(),
            missing_since: None,
        };
        self.holds.insert(wanted.id, own);
    }

    fn refuse_wanted(&mut self, wanted: &Wanted, blocked: Blocked) {
        let is_own = self.waits_for_itself(wanted, &blocked);
        let mut outcome = wanted.taking().refused(blocked);
        if is_own {
            let message = std::mem::take(&mut outcome.message);
            outcome.message = format!("the caller itself holds it: {message}");
        }
        self.say(&wanted.session, wanted.id, &outcome);
    }

    /// What a thread has to say.
    fn hear(&mut self, event: FromThread) {
        match event {
            FromThread::Line(id, line) => {
                if self.waits.get(&id).is_some_and(|wait| !wait.is_canceled()) {
                    self.output.add(&line);
                }
            }
            FromThread::Over(wanted, attempted) => {
                let is_canceled = self.end_wait(wanted.id);
                self.over(&wanted, *attempted, is_canceled);
            }
            FromThread::Done(id, answer) => {
                self.end_wait(id);
                self.tell(&answer);
            }
            FromThread::Look | FromThread::End(_) => {}
        }
    }

    /// Tells what was done, and the end of those of its holds that it has released.
    fn tell(&mut self, answer: &Answer) {
        if !answer.line.is_empty() {
            self.output.add(&answer.line);
        }
        for released in &answer.released {
            let is_it = |_: &u64, held: &mut Held| match released.hold() {
                Some(number) => held.is(number, &released.store),
                // Of a format without numbers.
                None => held.hold.path() == released.path,
            };
            let found = self.holds.extract_if(.., is_it).next();
            if let Some((id, held)) = found {
                self.give_back(id, held, End::RequestByName);
            }
        }
    }

    /// Whether it was canceled.
    fn end_wait(&mut self, id: u64) -> bool {
        self.waits.remove(&id).is_none_or(|waiting| {
            let is_canceled = waiting.is_canceled();
            self.workers.keep(waiting);
            is_canceled
        })
    }

    fn release(&mut self, id: u64) {
        if let Some(held) = self.holds.remove(&id) {
            self.give_back(id, held, End::Request);
        } else if let Some(number) = self.enclosing.remove(&id) {
            let event = Event::ended(number, &End::Request, None, None).of(id);
            self.output.add(&event.line());
        } else if let Some(wait) = self.waits.get(&id) {
            wait.cancel();
        } else {
            // It may have been lost a moment ago.
            let text = format!("request {id} holds nothing");
            let outcome = Outcome::refused(Refusal::NOT_HELD, text);
            self.say(self.defaults, id, &outcome);
        }
    }

    fn give_back(&mut self, id: u64, held: Held, why: End) {
        if !held.lock.is_remote() {
            held.give_back(id, &why, &mut |line| {
                self.output.add(&line);
                self.output.write();
            });
            return;
        }
        // The store may not answer for long, but a loss is told at once.
        let notifier = Arc::clone(&self.workers.notifier);
        let work = move || {
            held.give_back(id, &why, &mut |line| {
                notifier.send(FromThread::Line(id, line));
            });
            Answer::default()
        };
        match self.workers.answer(id, Work::Other, work) {
            Ok(waiting) => drop(self.waits.insert(id, waiting)),
            Err(error) => self.refuse_by(Some(id), "hold", &error),
        }
    }

    /// Renews the holds, and gives up those that were lost.
    fn look(&mut self) {
        let mut ended = Vec::new();
        let is_releasing = self.waits.values().any(Waiting::releases_by_name);
        for (id, held) in &mut self.holds {
            if let Some(why) = held.is_over(is_releasing) {
                ended.push((*id, why));
            } else if held.hold.renewal_due_in().is_zero() {
                // If it fails, it is tried again at the next look.
                let _ = held.hold.renew();
            }
        }
        for (id, why) in ended {
            if let Some(held) = self.holds.remove(&id) {
                self.give_back(id, held, why);
            }
        }
    }

    /// Gives everything back.
    fn end(mut self, why: &End, events: &mut Events<FromThread>) {
        // They leave the queue while holds are given back.
        self.waits.values().for_each(Waiting::cancel);
        for (id, held) in std::mem::take(&mut self.holds) {
            held.give_back(id, why, &mut |line| self.output.add(&line));
            self.output.write();
        }
        let deadline = Instant::now() + LAST_ANSWER;
        // The others never take anything, and the kernel takes them out of the queue.
        self.waits.retain(|_, wait| wait.goes_on());
        while !self.waits.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(event) = events.next(left) else {
                break;
            };
            self.hear(event);
        }
        self.output.write();
    }
}

fn prepared(
    session: &Session,
    mut typed: HoldArgs,
    names: Vec<LockName>,
) -> anyhow::Result<Prepared> {
    let lock = session.named_locks(names)?;
    session.ensure_directory(true)?;
    // No terminal to ask at.
    if typed.on_zombie == Some(OnZombie::Ask) {
        typed.on_zombie = Some(OnZombie::Fail);
    }
    let taking = Taking::new(session, &typed, &lock)?;
    taking.ensure_owner()?;
    let options = taking.options();
    Ok(Prepared {
        session: session.clone(),
        options,
        typed,
        lock,
        is_reentrant: false,
    })
}
