//! What `acquire`, `run` and `hold` share: waiting, prompts, force, and refusals.

use std::time::{Duration, Instant};

use onehold::command_line::drop_code_pages;
use onehold::command_line::signal::SignalQueue;
use onehold::status::{Evidence, Reason, Revision};
use onehold::{
    Attempt, Blocked, Format, Hold, Lock, LockName, Mode, Options, RunOptions, State, Status, Wait,
};
use serde_json::{Value, json};

use crate::arguments::args::{self, OnZombie, WaitLimit};
use crate::arguments::slip::doubtful_names;
use crate::configuration::{Session, WANTED};
use crate::messages::{
    Exit, Outcome, Printed, Refusal, describe, describe_deadlock, describe_holder,
    describe_obstacle, describe_past_holder, local,
};
use crate::output::{self, Refused, block, command_line, links, next_step, profile_values};
use crate::supervising::{Then, cancel};
use crate::tables::work::{effects, spared};
use crate::taking::progress::{LONG, Progress, is_long};
use crate::taking::{Taking, confirm, malformed, report_cancel};
use crate::words;

/// By how much a wait may end before its time, which is measured in milliseconds.
const WAKES_EARLY: Duration = Duration::from_millis(10);

/// Limit of prompts for one call. The lock can change while a prompt waits for its answer; then the
/// new state is shown and asked for again. Each of those that share a lock is asked for.
const MAX_PROMPTS: usize = 100;

/// The options of the library that `check` has, too.
pub(crate) fn basic_options(session: &Session, mode: Mode, max_age: Option<Duration>) -> Options {
    let mut options = Options::new().mode(mode).max_age(max_age);
    if let Some(owner) = &session.caller.owner {
        options = options.owner(owner);
    }
    if session.global.quiet && !session.global.json {
        // Nobody is told how many there are.
        options = options.without_waiters();
    }
    options
}

/// What `details` of a refusal has of the lock, without a profile.
const DETAILS: [&str; 6] = [
    "pid",
    "hostname",
    "owner",
    "acquired_at",
    "expires_at",
    "hold",
];

impl<'a> Taking<'a> {
    fn mode(&self) -> Mode {
        args::mode(self.typed.shared, self.typed.slots)
    }

    /// The library's options for the typed ones.
    pub(crate) fn options(&self) -> Options {
        let (session, typed, lock) = (self.session, self.typed, self.lock);
        // There is no record that a default could be written into.
        let ttl_is_for_others = typed.ttl_is_default && lock.format().is_kernel_lock();
        let mut options = basic_options(session, self.mode(), typed.max_age)
            .ttl(typed.ttl.filter(|_| !ttl_is_for_others))
            .inside(session.caller.inside.clone())
            .history(session.history);
        if let Some(message) = &typed.message {
            options = options.message(message);
        }
        if !matches!(typed.on_zombie, None | Some(OnZombie::Take)) {
            options = options.refuse_zombies();
        }
        options
    }

    /// Whether taking the lock may block. A signal then ends the program.
    pub(crate) fn may_block(&self) -> bool {
        self.typed.wait.is_some()
            || self.typed.force
            // What is dead on another machine is waited for.
            || self.lock.is_remote()
            || self.typed.on_zombie == Some(OnZombie::Ask)
    }

    /// Takes the lock for a command, or says why it is refused.
    pub(crate) fn hold(
        self,
        run: RunOptions,
        options: Options,
    ) -> anyhow::Result<Result<Hold, Outcome>> {
        let attempt = self.take(options, |options, wait| {
            self.lock.hold_for_command(options, run, wait)
        })?;
        Ok(attempt
            .into_result()
            .map_err(|blocked| self.refused(blocked)))
    }

    /// Fails if an owner is required and there is none: by the profile, or for a place that is to be kept.
    pub(crate) fn ensure_owner(self) -> Result<(), args::UsageError> {
        if self.session.caller.owner.is_some() {
            return Ok(());
        }
        match self.session.config.settings.required_owner() {
            Some(what) => Err(args::UsageError(format!("{what} required: --owner"))),
            None if self.typed.keep_place.is_some() => {
                let why = "a place in the queue is kept for an owner only: pass --owner";
                Err(args::UsageError(why.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Calls `attempt`, one call of the library, and repeats it with force after each confirmed prompt.
    pub(crate) fn take<T>(
        self,
        mut options: Options,
        attempt: impl Fn(&Options, Wait<'_>) -> onehold::Result<Attempt<T>>,
    ) -> anyhow::Result<Attempt<T>> {
        let (session, typed, lock) = (self.session, self.typed, self.lock);
        self.ensure_owner()?;
        // The first one is meant as a name.
        let others = || lock.names().skip(1);
        if others().next().is_some() && session.tells_success() {
            for told in doubtful_names(others()) {
                output::tell(session, &told);
            }
        }
        let mut limit = typed.wait.filter(|_| !typed.force);
        let mut prompts = 0;
        loop {
            let once = |limit| self.once(limit, |wait| attempt(&options, wait));
            let blocked = match malformed::attempt_beside(self, limit, once)? {
                Attempt::Blocked(blocked) if prompts < MAX_PROMPTS => blocked,
                attempted => return Ok(attempted),
            };
            if self.confirm_skip_queue(&blocked.status) {
                options = options.skip_queue();
            } else if let Some(revision) = self.confirm_replace(&blocked.status) {
                options = options.replace_hold(revision);
            } else {
                return Ok(Attempt::Blocked(blocked));
            }
            prompts += 1;
            // The lock changed hands after each confirmation: one last attempt with the last answer.
            limit = limit.filter(|_| prompts < MAX_PROMPTS);
        }
    }

    /// Calls `attempt` with the wait that was asked for, and shows that.
    fn once<T>(
        self,
        limit: Option<WaitLimit>,
        attempt: impl FnOnce(Wait<'_>) -> onehold::Result<Attempt<T>>,
    ) -> onehold::Result<Attempt<T>> {
        let progress = Progress::new(self.session, self.lock);
        // It may be long until what is in the way is known.
        if self.lock.is_remote() && limit.is_some_and(is_long) {
            progress.begin_silent();
        }
        match attempt(self.wait(limit, &progress)) {
            Ok(held) if !matches!(held, Attempt::Blocked(_)) => {
                progress.end(cancel::signal_so_far().is_none());
                // From here on Ctrl-C does not cancel.
                Ok(cancel::commit_taken(held))
            }
            attempted => {
                progress.end(false);
                cancel::end_if_canceled();
                attempted
            }
        }
    }

    /// The wait that was asked for, which shows nothing.
    pub(crate) fn plain_wait(self, limit: Option<WaitLimit>) -> Wait<'a> {
        let mut wait = match limit {
            Some(WaitLimit::Forever) => Wait::forever(),
            Some(WaitLimit::AtMost(limit)) => Wait::at_most(limit),
            // Does not wait for a holder: --force replaces it. What is found dead on another machine is taken over
            // once it has been known to be dead for long enough.
            None => Wait::no(),
        };
        wait = wait
            .max_waiting(self.typed.max_waiting)
            .keep_place(self.typed.keep_place);
        let looks_again = limit.is_some() || self.lock.is_remote();
        let back_off = self.session.config.settings.back_off();
        if let Some((first, most)) = back_off.filter(|_| looks_again) {
            wait = wait.back_off(first, most);
        }
        wait
    }

    fn wait(self, limit: Option<WaitLimit>, progress: &'a Progress<'a>) -> Wait<'a> {
        let (session, on_wait) = (self.session, self.on_wait);
        let is_remote = self.lock.is_remote();
        let mut wait = self.plain_wait(limit);
        if on_wait.is_some() && session.global.json {
            wait = wait.with_position();
        }
        if self.may_block() || cancel::has_handler() {
            wait = wait.on_decision(cancel::may_go_on);
        }
        if limit.is_none() && !is_remote {
            return wait;
        }
        // With --json, a signal must leave an object however early it comes. And the first process of a PID
        // namespace ignores a signal at its default action (pid_namespaces(7)).
        let reports_all = limit.is_some() && (session.global.json || std::process::id() == 1);
        let after = if reports_all || on_wait.is_some() {
            Duration::ZERO
        } else {
            PROGRESS_DELAY
        };
        if is_remote {
            // What has been sent would be there until its lease ends.
            report_cancel(session, Then::GivesUp);
            wait = wait.until_canceled(&cancel::IS_GIVEN_UP);
        } else if limit.is_some_and(is_long) {
            wait = wait.on_wait(LONG, |status| progress.tell_late(status));
        }
        wait.on_wait(after, move |status| {
            if !is_remote {
                report_cancel(session, Then::Ends);
            }
            if let Some(on_wait) = on_wait {
                on_wait(status);
            }
            let Some(limit) = limit else {
                tell_ripening(session, status);
                return;
            };
            let now = Instant::now();
            progress.begin(status, limit, now.checked_sub(after).unwrap_or(now));
            drop_code_pages();
        })
    }

    /// Returns the hold to replace, if options and user allow it: with `--force`, or a zombie with
    /// `--on-zombie ask`.
    fn confirm_replace(self, status: &Status) -> Option<Revision> {
        let (session, typed, lock) = (self.session, self.typed, self.lock);
        // On another machine the work of a hold that has just died may not have ended.
        let zombie = status.is_available() && status.verdict.takeable_in.is_none();
        // Programs that ask about zombies (sprint) also ask about overdue holders.
        let may_be_replaced = zombie || status.verdict.state == State::Overdue;
        let is_asked = typed.force || (typed.on_zombie == Some(OnZombie::Ask) && may_be_replaced);
        // --yes answers questions about the dead. Only --force takes a lock from the living.
        let is_enough = typed.force || zombie;
        // The hold of a parent or child is only replaced under its own name.
        if !(is_asked && (is_enough || !typed.yes) && self.is_named(status)) {
            return None;
        }
        let revision = status.revision()?;
        if typed.yes || (zombie && typed.force) {
            return Some(revision);
        }
        let instead = if is_enough { "--yes" } else { "--force --yes" };
        let twice = !zombie && session.config.settings.confirm_twice;
        let (effects, question) = if zombie {
            (Vec::new(), "Take it over?")
        } else {
            (effects(lock, status, true), "Take it?")
        };
        let again = "The holder may still be running. Take it anyway?";
        let sure = confirm(session, status, &effects, question, instead)
            && (!twice || confirm(session, status, &[], again, instead));
        sure.then_some(revision)
    }

    /// Returns whether a reserved lock may be taken ahead of its waiters.
    fn confirm_skip_queue(self, status: &Status) -> bool {
        self.typed.force
            && status.verdict.reason == Reason::Reserved
            && self.is_named(status)
            && (self.typed.yes || confirm(self.session, status, &[], "Skip the queue?", "--yes"))
    }

    /// Whether it is this lock, and not a parent or a child.
    pub(crate) fn is_named(self, status: &Status) -> bool {
        let found = LockName::new(&status.name);
        found.is_ok_and(|found| self.lock.names().any(|name| *name == found))
    }

    /// The wanted lock that `status` is in the way of: itself, a parent or a child of it.
    fn wanted(self, status: &Status) -> &'a LockName {
        // Not by `Path`: on Windows it separates at what is part of a name.
        let covers = |one: &str, other: &str| {
            let rest = other.strip_prefix(one);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_related = |name: &&LockName| {
            covers(name.as_str(), &status.name) || covers(&status.name, name.as_str())
        };
        let mut names = self.lock.names();
        names.find(is_related).unwrap_or(self.lock.name())
    }

    /// Returns whether this command already runs under holds of all these locks that exclude at least what
    /// is asked for.
    pub(crate) fn is_inside_all(self) -> onehold::Result<bool> {
        for name in self.lock.names() {
            if !self.is_inside(name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_inside(self, name: &LockName) -> onehold::Result<bool> {
        let status = self.session.lock(name.clone())?.inspect(None)?;
        let is_enough = |hold: &Status| self.mode().is_shared() || hold.slot.is_none();
        let mut holds = status.all_holds();
        Ok(holds.any(|hold| self.session.is_inside(hold) && is_enough(hold)))
    }

    /// What a `run` or `hold` can do under a hold that is in its way.
    fn reentry(self, status: &Status) -> Option<String> {
        let (session, verb) = (self.session, self.session.verb);
        if verb == "acquire" || !session.is_inside(status) {
            return None;
        }
        if !self.is_inside_all().unwrap_or(false) {
            // The others are not held.
            let is_inside = self.is_inside(self.wanted(status)).unwrap_or(false);
            return is_inside.then(|| "leave that name out".to_owned());
        }
        let mode = match self.mode() {
            Mode::Exclusive => String::new(),
            Mode::Shared => " --shared".to_owned(),
            Mode::Slots(slots) => format!(" --slots {slots}"),
        };
        let line = command_line(session, &format!("{verb} --reentrant{mode}"), status);
        let command = if verb == "run" { " -- …" } else { "" };
        Some(format!("use `{line}{command}`"))
    }

    /// The outcome of a refused `acquire`, `run` or `hold`.
    pub(crate) fn refused(self, blocked: Blocked) -> Outcome {
        let (session, typed, lock) = (self.session, self.typed, self.lock);
        let status = blocked.status;
        let asked_for = self.wanted(&status);
        // Of a refusal that is not printed only the exit code counts.
        let is_silent = session.global.quiet && !session.global.json;
        let holder = (!is_silent).then(|| describe_obstacle(&status, asked_for, local));
        let holder = holder.unwrap_or_default();
        let is_malformed = matches!(status.verdict.reason, Reason::Malformed(_));
        // Programs that ask about such a file (sprint) call it blocked if the answer is no.
        let rule = is_malformed.then(|| malformed::rule(self));
        let was_asked = rule.or(typed.on_zombie) == Some(OnZombie::Ask);
        // Dead, and it could not be taken yet.
        let takes_zombies = matches!(typed.on_zombie, None | Some(OnZombie::Take));
        let is_ripening = takes_zombies && status.verdict.takeable_in.is_some();
        let state = status.verdict.state;
        // Who does not wait may have known a hold to be dead, and another got its lock.
        let waited = blocked.waited.filter(|waited| match typed.wait {
            // No wait goes on for a dead hold that nobody may take over.
            Some(WaitLimit::AtMost(limit)) if matches!(state, State::Zombie | State::Free) => {
                is_ripening || waited.saturating_add(WAKES_EARLY) >= limit
            }
            Some(WaitLimit::AtMost(_)) => true,
            Some(WaitLimit::Forever) | None => false,
        });
        let refusal = match waited {
            _ if is_malformed => Refusal::MALFORMED,
            _ if blocked.waiting.is_some() => Refusal::QUEUE_FULL,
            _ if !blocked.deadlock.is_empty() => Refusal::DEADLOCK,
            _ if status.is_available() && !is_ripening => Refusal::ZOMBIE,
            Some(_) => Refusal::TIMEOUT,
            None if status.verdict.reason == Reason::Reserved => Refusal::RESERVED,
            None => Refusal::LOCKED,
        };
        let message = match (refusal, typed.wait) {
            (Refusal::QUEUE_FULL, _) => {
                let waiting = blocked.waiting.unwrap_or_default();
                let are = if waiting == 1 { "is" } else { "are" };
                format!("{waiting} {are} waiting already: {holder}")
            }
            (Refusal::DEADLOCK, _) => describe_deadlock(&blocked.deadlock),
            // As it was asked for: a wait ends a little later.
            (Refusal::TIMEOUT, Some(WaitLimit::AtMost(limit))) => {
                format!("timed out after {}: {holder}", words::short_span(limit))
            }
            _ => holder,
        };
        let mut outcome = Outcome::refused(refusal, message);
        if let Some(keep) = typed.keep_place {
            self.tell_kept(&mut outcome, keep, blocked.kept_position);
        }
        match (refusal, typed.conflict_exit_code) {
            (Refusal::MALFORMED | Refusal::ZOMBIE, _) if was_asked => outcome.status = "blocked",
            (Refusal::MALFORMED | Refusal::ZOMBIE, _) | (_, None) => {}
            (_, Some(code)) => outcome.exit = Exit(code),
        }
        // The text of a refusal says so. Where it is not printed, the hold must not stay unnoticed.
        if session.global.quiet || session.global.json {
            outcome
                .warnings
                .extend(describe::overdue(&status, asked_for));
        }
        if is_silent {
            return outcome;
        }
        let settings = &session.config.settings;
        // `mine` in the object needs all ancestors of the caller, so it is made only if needed.
        let is_needed = session.global.json || settings.has_refusal();
        let object = is_needed.then(|| profile_values(&status, &session.caller));
        let mut object = object.unwrap_or_default();
        if let Some(values) = object.as_object_mut() {
            values.insert(WANTED.to_owned(), asked_for.as_str().into());
        }
        if let Some(failure) = &mut outcome.failure {
            failure.details = settings.details(|| object.clone()).unwrap_or_else(|| {
                let detail =
                    |key: &str| (key.to_owned(), object.get(key).cloned().unwrap_or_default());
                Value::Object(DETAILS.into_iter().map(detail).collect())
            });
            if let Some(code) = &settings.locked_code
                && matches!(refusal, Refusal::LOCKED | Refusal::TIMEOUT)
            {
                failure.code = code.to_string().into();
            }
            if refusal == Refusal::DEADLOCK {
                failure.details = json!({ "holds": links(&blocked.deadlock) });
            }
        }
        // The message of the foreign program comes first: its callers look for it.
        if let Some(text) = settings.refusal_of(&status, &object, blocked.waited.and(typed.wait)) {
            let mut lines = text.lines().map(str::to_owned);
            let first = lines.next().unwrap_or_default();
            let own = std::mem::replace(&mut outcome.message, first);
            let lines = lines.chain([own]).map(|line| format!("  {line}"));
            outcome.notes.extend(lines);
        }
        outcome.notes.extend(block(&status, session.global.verbose));
        if status.verdict.reason == Reason::Ending {
            outcome.notes.extend(spared(lock, &status));
        }
        let refused = Refused {
            wanted: asked_for,
            to_wait: refusal.to_wait(settings.limits(typed.wait)),
            by_all: typed.slots.is_none(),
            reentry: &|| self.reentry(&status),
        };
        let next_step = next_step(session, &status, Some(&refused));
        let store = output::store_line(session, &status);
        outcome.notes.extend([store, next_step]);
        outcome.lock(status)
    }

    /// Adds whether the place in the queue is kept.
    #[cold]
    #[inline(never)]
    fn tell_kept(self, outcome: &mut Outcome, keep: Duration, position: Option<usize>) {
        if self.typed.wait.is_none() {
            let warning = "no place is kept: --keep-place has no effect without --wait";
            outcome.warnings.push(warning.to_owned());
        }
        if let Some(position) = position {
            let (place, span) = (words::ordinal(position), words::short_span(keep));
            let text = format!("; your place ({place}) is kept for {span}");
            outcome.message.push_str(&text);
            outcome.more = json!({
                "kept_position": position,
                "kept_seconds": keep.as_secs_f64(),
            });
        }
    }

    /// Says with -v what was acquired, and what has become of those that held it before.
    pub(crate) fn report_acquired(self, hold: &Hold, queue: Option<&SignalQueue>) {
        let (session, lock) = (self.session, self.lock);
        if session.global.verbose {
            let (names, number) = (words::names(lock), hold.number());
            let place = output::place(lock.is_remote());
            let path = words::path_text(hold.path());
            let acquired = format!("acquired {names}: hold {number}, {place} {path}");
            output::say(session, &acquired);
        }
        let displaced = hold.displaced();
        for was in displaced {
            if let Some(line) = displaced_text(session, was).filter(|_| session.tells()) {
                output::eprint(&line);
            }
        }
        if !displaced.is_empty() {
            output::warn(wait_for_displaced(session, displaced, queue));
        }
    }
}

/// Says when a dead holder is replaced.
#[cold]
#[inline(never)]
fn tell_ripening(session: &Session, status: &Status) {
    if session.tells_success() {
        let left = words::span(status.verdict.takeable_in.unwrap_or_default());
        let holder = describe_holder(status, local);
        output::tell(session, &format!("{holder}; taking it over in {left}"));
    }
}

/// The message about a hold that was taken over or taken by force.
pub(crate) fn displaced_text(session: &Session, status: &Status) -> Option<String> {
    match status.verdict.state {
        State::Zombie => {
            let own = format!("onehold: took over {}", describe::zombie(status));
            // The message of the foreign program comes first: its callers look for it.
            let settings = &session.config.settings;
            let foreign = settings.takeover(|| profile_values(status, &session.caller));
            Some(foreign.map_or_else(|| own.clone(), |foreign| format!("{foreign}\n{own}")))
        }
        State::Held | State::Overdue => {
            let name = words::quoted(&status.name);
            let holder = describe_past_holder(status, local);
            Some(format!("onehold: took {name} by force from {holder}"))
        }
        State::Free | State::NotALock => None,
    }
}

/// Gives back what is held under a number that could not be printed: dropped, it releases the lock.
pub(crate) fn give_back_untold<T>(held: T, lock: &Lock, error: &std::io::Error) -> Printed {
    drop(held);
    let (cause, name) = (words::cause_text(error), words::names(lock));
    output::eprint(&format!(
        "onehold: cannot print the hold number: {cause}; released {name}"
    ));
    Printed::Yes(Exit::FAILED)
}

/// Shorter waits are not shown and start no thread for signals. Both together cost a third of the time
/// of a hand-over. Until then a signal ends the program by its default action.
const PROGRESS_DELAY: Duration = Duration::from_millis(500);

/// Waits until the command of each displaced `run` has exited, for the same time for all of them, or a signal ends
/// this program. Returns a warning for each old holder of which a process still runs. `queue`: that of the signals,
/// if there is one.
#[cold]
#[inline(never)]
pub(crate) fn wait_for_displaced(
    session: &Session,
    displaced: &[Status],
    queue: Option<&SignalQueue>,
) -> Vec<String> {
    let since = Instant::now();
    let warnings = displaced
        .iter()
        .filter_map(|was| wait_for_one(session, was, since, queue));
    warnings.collect()
}

fn wait_for_one(
    session: &Session,
    status: &Status,
    since: Instant,
    queue: Option<&SignalQueue>,
) -> Option<String> {
    const CHECK_INTERVAL: Duration = Duration::from_millis(200);
    let record = status.info()?;
    let keeps_running = |who: &str| Some(format!("{who} was not signaled and keeps running"));
    if status.verdict.reason == Reason::Locked {
        let lockers = describe::lockers_in_brief(status);
        return keeps_running(lockers.as_deref().unwrap_or("who holds its kernel lock"));
    }
    let pid = status.verdict.pid?;
    let has_kernel_lock = status.verdict.evidence == Evidence::KernelLock;
    // A PID file does not say whether its process runs a command. A kernel lock means a `run`, whose
    // wrapper notices the loss itself.
    if has_kernel_lock && record.format() == Format::Pid {
        return None;
    }
    let process = describe::process(pid.get(), record.command());
    match status.verdict.pid_alive {
        Some(true) => {}
        None if has_kernel_lock => {
            let text = format!("cannot check from here whether {process} has exited");
            return Some(text);
        }
        None | Some(false) => return None,
    }
    if let Some(program) = record.program().filter(|_| record.is_served()) {
        if program.has_ended() {
            return None;
        }
        return keeps_running(&describe::process(program.pid.get(), &program.command));
    }
    // These have no wrapper that would notice the loss.
    if !(record.has_wrapper() || record.is_without_command()) {
        return keeps_running(&process);
    }
    if status.wait_for_command(Duration::ZERO) {
        return None;
    }
    let limit = status.time_to_exit();
    let deadline = since + limit;
    if Instant::now() < deadline {
        let time = words::span(limit);
        output::tell(
            session,
            &format!("waiting up to {time} for {process} to exit"),
        );
    }
    let is_ending =
        || cancel::signal_so_far().is_some() || queue.is_some_and(SignalQueue::is_ending);
    while !is_ending() {
        let left = deadline.saturating_duration_since(Instant::now());
        if status.wait_for_command(left.min(CHECK_INTERVAL)) {
            return None;
        }
        if left.is_zero() {
            break;
        }
    }
    Some(format!("{process} is still running"))
}
