//! `doctor`: is this store fit for locks, and what can be proved from here?

pub(crate) mod trial;

use std::fmt::Write as _;
use std::io::ErrorKind;

use anstyle::{AnsiColor, Style};
use onehold::repair::{Finding, Grade, examine_host};
use serde_json::json;

use crate::arguments::args;
use crate::commands::doctor::trial::Trial;
use crate::configuration::Session;
use crate::messages::{Exit, Outcome, Refusal};
use crate::output::store_command;
use crate::tables::table::{terminal_width, wrap};
use crate::words;

#[inline(never)]
pub(crate) fn doctor(session: &Session, typed: &args::Doctor) -> Outcome {
    if typed.accept_epoch && !typed.yes {
        let text = "--accept-epoch needs --yes: no command may run any more whose hold may be lost";
        return Outcome::refused(Refusal::USAGE, text.to_owned());
    }
    let mut found = examine_host();
    if typed.accept_epoch {
        found.push(session.store.accept_epoch());
    }
    if typed.create {
        found.extend(session.store.prepare());
    }
    found.extend(session.store.examine());
    for one in &mut found {
        if (one.check, one.result) == ("records", Grade::Warning) {
            one.advice = Some(format!("run `{}`", store_command(session, "cleanup")));
        }
    }
    // A version that has faults works all the same.
    let is_in_the_way = |one: &Finding| one.result == Grade::Failed && one.check != "version";
    let is_hopeless = |found: &[Finding]| found.iter().any(is_in_the_way);
    if !typed.quick && !is_hopeless(&found) {
        found.extend(session.store.try_calls());
        if !is_hopeless(&found) {
            let is_doubtful = |one: &Finding| one.check == "filesystem" && one.result != Grade::Ok;
            let is_trusted = !found.iter().any(is_doubtful);
            let trial = Trial::new(session, is_trusted).and_then(|trial| trial.run(&mut found));
            found.extend(trial.err().map(|error| {
                let cause = error.downcast_ref::<std::io::Error>();
                let is_limit = cause.is_some_and(|cause| cause.kind() == ErrorKind::WouldBlock);
                let advice = if is_limit {
                    "too many processes of this user, which says nothing of the store: raise the limit (ulimit -u)"
                } else {
                    "use another store: --dir"
                };
                Finding::failed("trial", format!("{error:#}")).advice(advice)
            }));
        }
    }
    let count = |grade| found.iter().filter(|one| one.result == grade).count();
    let (failed, warnings) = (count(Grade::Failed), count(Grade::Warning));
    let store = session.store_text();
    let mut outcome = if failed > 0 {
        let checks = words::counted(failed, "check");
        let text = format!("{store} is not fit for locks: {checks} failed");
        Outcome::refused(Refusal::UNFIT, text)
    } else {
        let warnings = words::counted(warnings, "warning");
        let text = format!("{store} is fit for locks ({warnings})");
        Outcome::new(Exit::DONE, "fit", text)
    };
    if !session.global.quiet || failed > 0 {
        // The verdict of a failure goes to stderr.
        let verdict = if failed > 0 { "" } else { &outcome.message };
        outcome.data = Some(table(&found, verdict));
    }
    outcome.more = json!({ "checks": found });
    outcome
}

/// The width of a result, with the gaps around it.
const RESULT: usize = 11;

/// What a detail needs of a line; where there is less, it begins on the next one.
const LEAST: usize = 30;

/// A line for each check, with advice below it, and the verdict. Fits the terminal.
fn table(found: &[Finding], verdict: &str) -> String {
    let widest = found.iter().map(|one| one.check.len()).max();
    let width = widest.unwrap_or_default();
    let terminal = terminal_width().unwrap_or(usize::MAX);
    let is_narrow = terminal < width + RESULT + LEAST;
    let indent = if is_narrow { 4 } else { width + RESULT };
    let room = terminal.saturating_sub(indent).max(LEAST);
    let next = format!("\n{:indent$}", "");
    let mut text = String::new();
    for one in found {
        let (word, color) = match one.result {
            Grade::Ok => ("ok", AnsiColor::Green),
            Grade::Warning => ("warning", AnsiColor::Yellow),
            Grade::Failed => ("FAILED", AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(color.into()));
        let _ = write!(text, "{:width$}  {style}{word:7}{style:#}  ", one.check);
        let parts = std::iter::once(&one.detail).chain(&one.advice);
        let lines = parts.flat_map(|part| wrap(&words::escape(part), room));
        let lines: Vec<String> = lines.collect();
        let first = if is_narrow { next.as_str() } else { "" };
        let _ = writeln!(text, "{first}{}", lines.join(&next));
    }
    text.push_str(verdict);
    text.trim_end().to_owned()
}
