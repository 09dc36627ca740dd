//! All output of the program: data on stdout, messages on stderr.

mod failure;
pub(crate) mod report;
mod suggested;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use onehold::command_line::stdout_was_closed;
use onehold::status::{Kind, Locker, Reason};
use onehold::{Caller, Format, HoldInfo, LockName, State, Status};

use crate::arguments::args::Color;
use crate::configuration::{Session, StoreSource};
use crate::messages::{Exit, Outcome, describe, is_held, is_run, local};
use crate::words::{self, path_text};
pub(crate) use failure::{failed, failed_without_store, hint_about_file};
pub(crate) use report::{escape_json, links, lock_value, profile_values};
use report::{object, warnings};
pub(crate) use suggested::{about_file, command_line, store_command};

/// Sets for the whole program whether output is colored.
pub(crate) fn set_color(color: Color) {
    match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    }
    .write_global();
}

/// Prints an outcome. Fails if the data could not be written to stdout.
pub(crate) fn print_outcome(session: &Session, outcome: &Outcome) -> io::Result<()> {
    print_data(session, outcome)?;
    print_notes(session, outcome);
    Ok(())
}

/// Prints what goes to stdout. With `--json` it is all of it.
pub(crate) fn print_data(session: &Session, outcome: &Outcome) -> io::Result<()> {
    let global = &session.global;
    if global.json {
        return print_object(session.verb, Some(session), outcome);
    }
    outcome.data.as_ref().map_or(Ok(()), |text| data(text))
}

/// Prints what goes to stderr, but with `--json`.
pub(crate) fn print_notes(session: &Session, outcome: &Outcome) {
    let global = &session.global;
    if global.json {
        return;
    }
    let failure = outcome.failure.as_ref();
    let is_in_exit_status = failure.is_none_or(|failure| failure.refusal.is_conflict());
    if !(global.quiet && is_in_exit_status) {
        if failure.is_some() {
            eprint(&format!("onehold: {}", outcome.message));
        }
        if !outcome.notes.is_empty() {
            eprint(&outcome.notes.join("\n"));
        }
    }
    warn(warnings(Some(session), outcome));
}

/// Prints warnings to stderr.
pub(crate) fn warn(warnings: impl IntoIterator<Item = impl Display>) {
    for warning in warnings {
        eprint(&format!("onehold: warning: {warning}"));
    }
}

/// Prints a message to stderr, unless it is for the JSON object to say what happens.
pub(crate) fn say(session: &Session, message: &str) {
    if !session.global.json {
        eprint(&format!("onehold: {message}"));
    }
}

/// The same, but not with `--quiet` either.
pub(crate) fn tell(session: &Session, message: &str) {
    if session.tells() {
        say(session, message);
    }
}

/// Prints lines to stderr in one write. Ignores errors.
pub(crate) fn eprint(line: &str) {
    let line = format!("{line}\n");
    let _ = anstream::stderr().lock().write_all(line.as_bytes());
}

/// A text as stdout gets it: without colors, if it is to have none.
pub(crate) fn painted(text: &str) -> String {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// The runtime has replaced a closed stdout by /dev/null, so writing to it would succeed.
pub(crate) fn ensure_open_stdout() -> io::Result<()> {
    if stdout_was_closed() {
        return Err(io::Error::other("stdout is closed"));
    }
    Ok(())
}

/// The exit code of a command that has printed its data, or could not.
pub(crate) fn printed(result: io::Result<()>, exit: Exit) -> Exit {
    match result {
        Ok(()) => exit,
        // A closed pipe is not an error: `onehold list | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(error) => {
            let cause = words::cause_text(&error);
            eprint(&format!("onehold: cannot write to stdout: {cause}"));
            match exit {
                Exit::DONE => Exit::FAILED,
                exit => exit,
            }
        }
    }
}

pub(crate) fn data(text: &str) -> io::Result<()> {
    ensure_open_stdout()?;
    let mut out = AutoStream::auto(io::stdout().lock());
    writeln!(out, "{text}")?;
    out.flush()
}

/// The lines below a description: evidence, waiters and, if `verbose`, command, hold and file.
pub(crate) fn block(status: &Status, verbose: bool) -> Vec<String> {
    lines_below(status, verbose, |directory| {
        Path::new(directory.file_name().unwrap_or_default())
    })
}

/// The same with the whole path of the working directory.
pub(crate) fn whole_block(status: &Status, verbose: bool) -> Vec<String> {
    lines_below(status, verbose, |directory| directory)
}

fn lines_below(status: &Status, verbose: bool, part: fn(&Path) -> &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let evidence = describe::evidence(status, local).map(|evidence| paint(status, &evidence));
    let waiters = status.waiters.len();
    let waiting = (waiters > 0 && !verbose).then(|| format!("{waiters} waiting"));
    let others = status.others.iter().filter(|other| is_held(other)).count();
    let is_beside = status.info().is_some();
    let holder = if is_beside { "more holder" } else { "holder" };
    let others = (others > 0).then(|| words::counted(others, holder));
    let directory = describe::directory(status);
    let runs_in = directory.as_deref().map(part).filter(|_| !verbose);
    let runs_in = runs_in.map(|directory| format!("runs in {}", path_text(directory)));
    let facts = [evidence, runs_in, others, waiting];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if !facts.is_empty() {
        lines.push(format!("  {}", facts.join("; ")));
    }
    let provenance = describe::provenance(status);
    lines.extend(provenance.map(|provenance| format!("  {provenance}")));
    if !verbose {
        return lines;
    }
    if waiters > 0 {
        lines.push("  waiting, in order:".to_owned());
    }
    for waiter in &status.waiters {
        let position = waiter.position;
        lines.push(format!("    {position}. {}", describe::waiting(waiter)));
    }
    if let Some(record) = status.info() {
        if !record.command().is_empty() {
            let command = record.command().iter().map(|word| words::escape(word));
            lines.push(format!("  command: {}", words::shell_line(command)));
        }
        lines.extend(directory.map(|path| format!("  directory: {}", path_text(&path))));
        // Other programs do not number their holds.
        if let Some(hold) = status.hold() {
            lines.push(format!("  hold: {hold} ({})", describe::kind(record)));
        }
        if status.names().len() > 1 {
            let names: Vec<String> = status.names().into_iter().map(words::quoted).collect();
            lines.push(format!("  locks: {}", names.join(", ")));
        }
        lines.extend(describe::wrapper(status).map(|wrapper| format!("  wrapper: {wrapper}")));
        let die_with = record.die_with();
        lines.extend(die_with.map(|with| format!("  ends with: process {}", with.pid)));
    }
    let user = describe::user(status);
    lines.extend(user.map(|user| format!("  user: {}", words::escape(&user))));
    let what = place(status.is_remote());
    lines.push(format!("  {what}: {}", path_text(&status.path)));
    if !status.can_take_over {
        let filesystem = status.filesystem();
        lines.push(format!(
            "  filesystem: {}, whose kernel locks other machines may not see: no takeover, no queue",
            filesystem.as_deref().unwrap_or("unknown")
        ));
    }
    lines
}

/// What a record is.
pub(crate) fn place(is_remote: bool) -> &'static str {
    if is_remote { "key" } else { "file" }
}

/// What `acquire` or `run` was refused.
pub(crate) struct Refused<'a> {
    /// The lock that it asked for.
    pub(crate) wanted: &'a LockName,
    /// What would let it wait longer, if it has waited, or wanted to.
    pub(crate) to_wait: Option<&'static str>,
    /// Whether all that hold it are in its way. A slot needs the end of one of them.
    pub(crate) by_all: bool,
    /// What it can do instead. Asked for only under the hold that refuses it: to find that out reads the ancestors of the caller.
    pub(crate) reentry: &'a dyn Fn() -> Option<String>,
}

/// What to do about a refusal. `refused`: of `acquire` or `run`.
pub(crate) fn next_step(session: &Session, status: &Status, refused: Option<&Refused>) -> String {
    let verdict = &status.verdict;
    let is_by_all = refused.is_some_and(|refused| refused.by_all) && !status.others.is_empty();
    let has_command = is_run(status) && !describe::is_without_command(status);
    // On the word of a copied record no process gets a signal.
    let is_copied = has_command && describe::provenance(status).is_some();
    let break_it = match (is_copied, is_by_all) {
        (true, _) => "break --force",
        (false, true) => "break --all",
        (false, false) => "break",
    };
    let break_it = command_line(session, break_it, status);
    let remove = |what: &str| match only_remover(status) {
        Some(user) => format!("only user {user} can remove it"),
        None => format!("to {what}, run `{break_it}`"),
    };
    let acquires = matches!(session.verb, "acquire" | "run" | "hold");
    let is_renewal = matches!(session.verb, "release" | "renew");
    let to_wait_longer = refused.and_then(|refused| refused.to_wait);
    let wait = |otherwise: &'static str| to_wait_longer.unwrap_or(otherwise);
    let to_wait = wait("to wait, add --wait");
    let only = session.only.as_ref();
    let is_at_own_path = only.is_some_and(|only| only.as_str() == status.name);
    let is_unnamed = status.info().is_none() || verdict.reason == Reason::Locked;
    let end_hold = match (has_command, is_by_all) {
        _ if is_copied => "free the lock while it runs",
        (true, false) => "end its command",
        (true, true) => "end their commands",
        (false, false) => "remove the hold",
        (false, true) => "remove their holds",
    };
    let step = match verdict.reason {
        _ if verdict.takeable_in.is_some() && to_wait_longer.is_some() => {
            format!("{to_wait}; {}", remove("remove it"))
        }
        _ if acquires && status.is_available() => {
            let remove_it = remove("remove it");
            format!("to take it over, use --on-zombie take; {remove_it}")
        }
        Reason::Malformed(_) => {
            let break_it = store_command(session, "break");
            let yes = if acquires { "add --yes or " } else { "" };
            format!("file left unchanged; to move it aside, {yes}run `{break_it}`")
        }
        Reason::Incomplete if status.info().is_none() && is_at_own_path => {
            let to_wait = wait("to wait for that, add --wait");
            format!("it is damaged if it stays unchanged for 10 s; {to_wait}")
        }
        _ if verdict.is_zombie() && !status.can_take_over => {
            format!("no takeover on a shared filesystem; if the holder is dead, run `{break_it}`")
        }
        Reason::Alive | Reason::Locked if is_unnamed => {
            let may_wait = acquires || session.verb == "wait";
            next_step_for_kernel_lock(status, may_wait.then_some(to_wait))
        }
        _ if session.is_inside(status) => inside_hint(session, status, refused),
        Reason::Reserved if acquires => {
            let to_wait = wait("to queue, add --wait");
            format!("{to_wait}; to skip the queue, add --force")
        }
        _ if (acquires || session.verb == "wait") && is_held_for_ancestor(status) => {
            let release = command_line(session, "release", status);
            format!("your own shell or script holds it: run `{release}` first")
        }
        Reason::Lease if (acquires || session.verb == "wait") && session.caller.owns(status) => {
            own_lease_hint(session, status)
        }
        Reason::Ending if acquires => {
            let to_wait = wait("to wait for it, add --wait");
            format!("the lock is free once that work has ended; {to_wait}")
        }
        _ if acquires => format!("{to_wait}; {}", remove(end_hold)),
        _ if verdict.state == State::Zombie => next_step_for_zombie(session, status),
        // The hold number does not release the hold of a `run`.
        _ if is_renewal && status.hold().is_some() && !is_run(status) => {
            let (pass, remove) = (proof(status), remove(end_hold));
            format!("if it is yours, pass its {pass}; {remove}")
        }
        _ => remove(end_hold),
    };
    format!("  {step}")
}

/// What shows that a hold is the caller's.
pub(crate) fn proof(status: &Status) -> &'static str {
    let has_owner =
        |record: HoldInfo<'_>| record.owner().is_some() && !record.format().has_labels();
    if status.info().is_some_and(has_owner) {
        "--owner or --hold"
    } else {
        "number by --hold"
    }
}

/// The only user who can remove a record, beside root and the owner of its directory, if that is not the
/// caller.
pub(crate) fn only_remover(status: &Status) -> Option<String> {
    if status.may_be_removed() {
        return None;
    }
    describe::user(status).map(|user| words::escape(&user))
}

/// How a zombie ends that can be taken over.
fn next_step_for_zombie(session: &Session, status: &Status) -> String {
    let cleanup = command_line(session, "cleanup", status);
    match only_remover(status) {
        Some(user) if status.slot.is_some() => format!("only user {user} can remove it"),
        Some(user) => format!("only user {user} can take it over or remove it"),
        None if session.config.settings.takes_zombies() => {
            format!("the next `run` or `acquire` takes it over; to remove it, run `{cleanup}`")
        }
        None => format!("to remove it, run `{cleanup}`"),
    }
}

/// A hint for a command that was called under the hold that refuses it.
fn inside_hint(session: &Session, status: &Status, refused: Option<&Refused>) -> String {
    let name = words::quoted(&status.name);
    let begin = format!("this command already runs under {name}");
    let is_relative = refused.is_some_and(|refused| refused.wanted.as_str() != status.name);
    if is_relative && has_owner(session, status) {
        return format!("{begin}: give both the same --owner");
    }
    match refused.and_then(|refused| (refused.reentry)()) {
        _ if session.verb == "wait" => format!("{begin}: a wait would never end"),
        Some(instead) => format!("{begin}: {instead}"),
        None => format!("{begin}, which stays held until it exits"),
    }
}

/// Whether both the hold and the one that was asked for can have an owner.
fn has_owner(session: &Session, status: &Status) -> bool {
    let format = status.info().map(HoldInfo::format);
    session.format.has_owners() && format.is_some_and(Format::has_owners)
}

/// A hint for the owner of a lease who wants its lock once more. A wait would be one for itself.
#[cold]
fn own_lease_hint(session: &Session, status: &Status) -> String {
    let record = status.info();
    let owner = record.and_then(HoldInfo::owner);
    let owner = words::shell_quoted(owner.unwrap_or_default());
    let begin = "your own lease holds it";
    let release = command_line(session, "release", status);
    let release = format!("`{release} --owner {owner}`");
    let is_path = LockName::new(&status.name).is_ok_and(|name| name.is_path());
    if session.verb == "acquire" && status.names().len() > 1 {
        let renew = command_line(session, "renew", status);
        return format!(
            "{begin}, with others: to extend it, run `{renew} --owner {owner}`; or run {release} first"
        );
    }
    let has_no_command = matches!(session.verb, "acquire" | "wait");
    if has_no_command || !has_owner(session, status) || is_path {
        return format!("{begin}: run {release} first");
    }
    let line = command_line(session, session.verb, status);
    let command = if session.verb == "run" { " -- …" } else { "" };
    format!(
        "{begin}: use its child, `{line}/step --owner {owner}{command}`, or run {release} first"
    )
}

/// Returns whether `acquire` holds the lock for an ancestor of the caller.
fn is_held_for_ancestor(status: &Status) -> bool {
    let record = status.info();
    let follows_process = record.is_some_and(|record| record.kind() == Kind::Process);
    follows_process && is_held(status) && Caller::default().owns(status)
}

/// `to_wait`: what `acquire` and `run` can do.
fn next_step_for_kernel_lock(status: &Status, to_wait: Option<&str>) -> String {
    let end = end_of_lockers(status);
    if status.format == Format::Native && status.info().is_none() {
        // flock(2) shows its holders; fcntl(2) may not.
        let format = if status.lockers.is_empty() {
            "if other programs lock it by fcntl(2), add --format fcntl, if by flock(1), --format flock"
        } else {
            "to exclude flock(1) and be excluded by it, add --format flock"
        };
        return format!("the file has no record; {format}; {end}");
    }
    match to_wait {
        Some(_) if status.is_locked_by_ancestor() => {
            "this command runs under that process: a wait would never end".to_owned()
        }
        Some(to_wait) => format!("{to_wait}; {end}"),
        None => end,
    }
}

/// How a kernel lock ends.
pub(crate) fn end_of_lockers(status: &Status) -> String {
    let is_wrapper = |locker: &&Locker| {
        let mut words = locker.command.iter();
        let program = words.next().is_some_and(|word| word.ends_with("onehold"));
        program && words.any(|word| word == "run" || word == "hold")
    };
    match status.lockers.iter().find(is_wrapper) {
        Some(wrapper) => format!("to end its work, run `kill {}`", wrapper.pid),
        None => "the lock ends with the last process that has it or has inherited it".to_owned(),
    }
}

/// The store of a lock, and whose it is if that is not by choice.
pub(crate) fn store_line(session: &Session, status: &Status) -> String {
    let is_default = session.store_source == StoreSource::Default;
    let whose = if is_default && session.store.path() == status.store {
        " (each user has one)"
    } else {
        ""
    };
    format!("  store: {}{whose}", path_text(&status.store))
}

/// Colors text by the state of a lock.
pub(crate) fn paint(status: &Status, text: &str) -> String {
    let color = match status.verdict.state {
        State::Free => AnsiColor::Green,
        State::Held => return text.to_owned(),
        State::Overdue | State::NotALock => AnsiColor::Yellow,
        State::Zombie => AnsiColor::Red,
    };
    let style = Style::new().fg_color(Some(color.into()));
    format!("{style}{text}{style:#}")
}

/// Prints an object. `session`: `None` before the store is known.
pub(crate) fn print_object(
    verb: &str,
    session: Option<&Session>,
    outcome: &Outcome,
) -> io::Result<()> {
    let line = object(verb, session, None, outcome)?;
    // The stdout of `run` belongs to its command, whose last line may lack its line break.
    match outcome.command_exit_code {
        Some(_) => eprint(&format!("\n{line}")),
        None if verb == "run" => eprint(&line),
        None => data(&line)?,
    }
    Ok(())
}
