//! What `acquire` and `run` have in common: waiting, asking, forcing, and being refused.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use onehold::memory::give_back_program;
use onehold::{
    Attempt, Blocked, Claim, Format, Kind, Lock, Proof, Reason, Shown, State, Status, Wait,
};
use serde_json::{Value, json};

use crate::args::{self, OnZombie, WaitLimit};
use crate::ask::{Answer, ask};
use crate::cancel;
use crate::describe;
use crate::exit::Exit;
use crate::output::{self, block, next_step};
use crate::progress::Progress;
use crate::report::{Outcome, lock_value};
use crate::session::Session;

/// Rounds of asking: what was shown may have changed by the time of the answer.
const MOST_QUESTIONS: usize = 5;

/// The claim that options stand for.
pub(crate) fn claim(typed: &args::Claim) -> Claim {
    let mut claim = Claim::new();
    if let Some(owner) = &typed.owner {
        claim = claim.owner(owner);
    }
    if let Some(message) = &typed.message {
        claim = claim.message(message);
    }
    if let Some(ttl) = typed.ttl {
        claim = claim.ttl(ttl);
    }
    if let Some(max_age) = typed.max_age {
        claim = claim.max_age(max_age);
    }
    if !matches!(typed.on_zombie, None | Some(OnZombie::Take)) {
        claim = claim.refuse_zombies();
    }
    claim
}

/// Waits, asks and forces as the options say. `attempt` is one call of the library.
pub(crate) fn obtain<T>(
    session: &Session,
    typed: &args::Claim,
    lock: &Lock,
    attempt: impl Fn(&Claim, Wait<'_>) -> onehold::Result<Attempt<T>>,
) -> anyhow::Result<Attempt<T>> {
    let mut claim = claim(typed);
    // What one is inside of does not end by waiting.
    let hopeless = typed.wait.is_some()
        && !session.claimant.enclosing.is_empty()
        && session.is_inside(&lock.check(None)?);
    let limit = typed.wait.filter(|_| !hopeless && !typed.force);
    for _ in 0..MOST_QUESTIONS {
        let progress = Progress::default();
        let attempted = attempt(&claim, wait(session, limit, lock, &progress));
        progress.end();
        let blocked = match committed(attempted?) {
            Attempt::Blocked(blocked) => blocked,
            held @ Attempt::Held(_) => return Ok(held),
        };
        if may_barge(session, typed, lock, &blocked.status) {
            claim = claim.barge();
            continue;
        }
        match permission(session, typed, lock, &blocked.status) {
            Some(shown) => claim = claim.displace(shown),
            None => return Ok(Attempt::Blocked(blocked)),
        }
    }
    // Somebody takes it again each time; whoever is asked so often has given his answer.
    Ok(committed(attempt(&claim, Wait::no())?))
}

/// With the lock in hand there is nothing to cancel any more.
fn committed<T>(attempt: Attempt<T>) -> Attempt<T> {
    match attempt {
        Attempt::Held(value) => Attempt::Held(cancel::commit(value)),
        blocked @ Attempt::Blocked(_) => blocked,
    }
}

fn wait<'a>(
    session: &'a Session,
    limit: Option<WaitLimit>,
    lock: &'a Lock,
    progress: &'a Progress,
) -> Wait<'a> {
    // Force does not wait for whom it may displace.
    let Some(limit) = limit else {
        return Wait::no();
    };
    let wait = match limit {
        WaitLimit::Forever => Wait::forever(),
        WaitLimit::AtMost(limit) => Wait::at_most(limit),
    };
    let wait = match session.in_force.settings.back_off() {
        Some((first, most)) => wait.back_off(first, most),
        None => wait,
    };
    // Whoever reads an object expects one, whatever happens.
    let after = if session.everywhere.json {
        Duration::ZERO
    } else {
        WORTH_TELLING
    };
    wait.on_wait(after, move |status| {
        say_goodbye_on_ctrl_c(session);
        if !session.everywhere.quiet && !session.everywhere.json {
            let now = Instant::now();
            progress.begin(lock, status, limit, now.checked_sub(after).unwrap_or(now));
        }
        give_back_program();
    })
}

fn say_goodbye_on_ctrl_c(session: &Session) {
    let session = session.clone();
    let farewell = move || {
        let message = "cancelled: nothing was changed";
        let outcome =
            Outcome::new(Exit::Signal(2), "failure", message).failure("INTERRUPTED", json!({}));
        let _ = output::tell(&session, &outcome);
    };
    cancel::on_ctrl_c(farewell);
}

/// Whether what blocks may be displaced: by `--force`, or a zombie by `--on-zombie ask`.
fn permission(
    session: &Session,
    typed: &args::Claim,
    lock: &Lock,
    status: &Status,
) -> Option<Shown> {
    // A section's or a task's holder is displaced by that name, not by this one.
    if status.name != lock.name().as_str() {
        return None;
    }
    let zombie = status.is_takeable();
    // Whoever is overdue looks dead to those who ask.
    let questionable = zombie || status.verdict.state == State::Overdue;
    let asked = typed.force || (typed.on_zombie == Some(OnZombie::Ask) && questionable);
    if !asked {
        return None;
    }
    let shown = status.shown()?;
    if typed.yes || (zombie && typed.force) {
        return Some(shown);
    }
    let twice = !zombie && session.in_force.settings.confirms_twice();
    let sure = confirm(session, status, "take it?")
        && (!twice
            || confirm(
                session,
                status,
                "it may still be at work; take it all the same?",
            ));
    sure.then_some(shown)
}

/// Whether a free lock may be taken from those who wait for it.
fn may_barge(session: &Session, typed: &args::Claim, lock: &Lock, status: &Status) -> bool {
    typed.force
        && status.verdict.reason == Reason::Promised
        && status.name == lock.name().as_str()
        && (typed.yes || confirm(session, status, "take it all the same?"))
}

/// Shows a lock and asks; no terminal is no.
pub(crate) fn confirm(session: &Session, status: &Status, question: &str) -> bool {
    say_goodbye_on_ctrl_c(session);
    let mut text = format!("onehold: {}\n", describe::sentence(status));
    for line in block(status, session.everywhere.verbose) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str("  ");
    text.push_str(question);
    match ask(&text) {
        Answer::Yes => true,
        Answer::No => false,
        Answer::Nobody => {
            output::talk("onehold: no terminal to ask on: --yes does it without asking");
            false
        }
    }
}

/// The outcome of being refused.
pub(crate) fn refused(
    session: &Session,
    typed: &args::Claim,
    lock: &Lock,
    blocked: Blocked,
) -> Outcome {
    let status = blocked.status;
    let sentence = describe::sentence(&status);
    let conflict = |exit: Exit| typed.conflict_exit_code.map_or(exit, Exit::Code);
    let (exit, word, code, message) = match blocked.waited {
        _ if status.is_takeable() => (Exit::Zombie, "zombie-detected", "ZOMBIE", sentence),
        Some(waited) => (
            conflict(Exit::TimedOut),
            "timeout",
            "TIMEOUT",
            format!(
                "waited {} in vain: {sentence}",
                humantime::format_duration(rounded(waited))
            ),
        ),
        None => (conflict(Exit::Locked), "blocked", "LOCKED", sentence),
    };
    let settings = &session.in_force.settings;
    // To find out whether it is the caller's costs a look at all his ancestors.
    let object = if session.everywhere.json || settings.has_refusal() {
        lock_value(&status, &session.claimant)
    } else {
        Value::Null
    };
    let details = settings.details(&object).unwrap_or_else(|| {
        let keys = [
            "pid",
            "hostname",
            "owner",
            "acquired_at",
            "expires_at",
            "hold",
        ];
        let detail = |key: &str| (key.to_owned(), object.get(key).cloned().unwrap_or_default());
        Value::Object(keys.into_iter().map(detail).collect())
    });
    // What its own program says comes first, for those who look for that.
    let words = settings
        .refusal(&object)
        .filter(|_| status.verdict.state != State::Zombie);
    let (message, more) = match words {
        Some(words) => {
            let mut lines = words.lines().map(str::to_owned);
            let first = lines.next().unwrap_or_default();
            (first, lines.chain([message]).collect())
        }
        None => (message, Vec::new()),
    };
    let timed_out = code == "TIMEOUT";
    let code = match settings.locked_code() {
        Some(theirs) if code != "ZOMBIE" => Cow::Owned(theirs.to_owned()),
        _ => Cow::Borrowed(code),
    };
    let mut outcome = Outcome::new(exit, word, message).conflict(code, details);
    outcome.talk = more.iter().map(|line| format!("  {line}")).collect();
    outcome
        .talk
        .extend(block(&status, session.everywhere.verbose));
    if let Some(covers) = describe::covers(&status, lock.name()) {
        outcome.talk.push(format!("  {covers}"));
    }
    outcome.talk.extend([
        output::store_line(&status),
        next_step(session, &status, timed_out),
    ]);
    outcome.lock(status)
}

/// What is said of a hold that was displaced.
pub(crate) fn displaced(status: &Status) -> Option<String> {
    use onehold::State;
    match status.verdict.state {
        State::Zombie => Some(format!(
            "onehold: took over: {}",
            describe::sentence(status)
        )),
        State::Held | State::Overdue => Some(format!(
            "onehold: taken by force: {}",
            describe::past(status)
        )),
        State::Free | State::NotALock => None,
    }
}

/// Seconds, or milliseconds of less than one.
fn rounded(duration: Duration) -> Duration {
    if duration.as_secs() > 0 {
        Duration::from_secs(duration.as_secs())
    } else {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(0))
    }
}

/// What is over sooner is no wait to tell of; nor is the thread for Ctrl-C started, without which
/// that just ends the program: together a third of what a hand-over costs.
const WORTH_TELLING: Duration = Duration::from_millis(500);

/// How long the command of a displaced `run` may take to end: what its wrapper gives it, and a
/// little to notice.
const PATIENCE: Duration = Duration::from_secs(12);

/// Waits until the command of a displaced `run` has ended, unless `impatient` says to go on; the
/// warning that it has not.
pub(crate) fn wait_for_displaced(
    session: &Session,
    status: &Status,
    mut impatient: impl FnMut() -> bool,
) -> Option<String> {
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let record = status.record.as_ref()?;
    let pid = status.verdict.pid?;
    // A pid file does not say whether its process runs a command, and then there is none to wait for.
    let is_told = record.format == Format::Pid && status.verdict.proof == Proof::KernelLock;
    let process = describe::process(pid.get(), &record.command);
    if status.verdict.pid_alive.is_none() && status.verdict.proof == Proof::KernelLock && !is_told {
        return Some(format!(
            "whether {process} has ended cannot be told from here, where its pid may be another process's"
        ));
    }
    if status.verdict.pid_alive != Some(true) || is_told {
        return None;
    }
    // Nobody watches over these.
    if record.kind != Kind::Run || record.exec {
        return Some(format!("{process} is not told, and runs on"));
    }
    if status.wait_for_command(Duration::ZERO) {
        return None;
    }
    if !session.everywhere.quiet && !session.everywhere.json {
        output::talk(&format!(
            "onehold: waiting up to {} for {process} to end",
            describe::span(PATIENCE)
        ));
    }
    let deadline = Instant::now() + PATIENCE;
    while !impatient() {
        let left = deadline.saturating_duration_since(Instant::now());
        if status.wait_for_command(left.min(LOOK_EVERY)) {
            return None;
        }
        if left.is_zero() {
            break;
        }
    }
    Some(format!("{process} still runs"))
}
