//! The processes of the work of a hold, as an operator sees them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use onehold::status::{Pid, Reason};
use onehold::{HoldInfo, Lock, Status};
use serde::Serialize;
use sysinfo::{ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

use crate::messages::{describe, is_run};
use crate::tables::table::{cut, terminal_width};
use crate::words;

/// A process of the work of a hold. Parents come before their children.
#[derive(Debug, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: Option<u32>,
    user: Option<String>,
    state: &'static str,
    cpu_seconds: f64,
    pub(crate) command: Vec<String>,
    /// Number of its ancestors that belong to the work.
    #[serde(skip)]
    depth: usize,
}

/// The processes of the work of a live holder. Empty if they cannot be seen from here.
pub(crate) fn processes(lock: &Lock, status: &Status) -> Vec<Process> {
    if status.verdict.pid_alive != Some(true) {
        return Vec::new();
    }
    let work = status.revision().map(|shown| lock.work(&shown));
    let work = work.and_then(Result::ok).unwrap_or_default();
    in_order_of_a_tree(running(work.iter().map(|process| process.pid)))
}

/// Those of the processes that have not ended.
pub(crate) fn running(pids: impl Iterator<Item = Pid>) -> Vec<Process> {
    let pids: Vec<_> = pids.map(|pid| sysinfo::Pid::from_u32(pid.get())).collect();
    let mut system = System::new();
    let wanted = ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), false, wanted.with_cpu());
    let found = pids.iter().filter_map(|pid| system.process(*pid));
    found.map(shown).collect()
}

fn shown(process: &sysinfo::Process) -> Process {
    let pid = process.pid().as_u32();
    let words = process.cmd().iter();
    let mut command: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if command.is_empty() {
        command.push(process.name().to_string_lossy().into_owned());
    }
    Process {
        pid,
        parent: process.parent().map(sysinfo::Pid::as_u32),
        user: Pid::new(pid).and_then(Pid::user),
        state: state(process.status()),
        cpu_seconds: Duration::from_millis(process.accumulated_cpu_time()).as_secs_f64(),
        command,
        depth: 0,
    }
}

fn state(status: ProcessStatus) -> &'static str {
    match status {
        ProcessStatus::Run => "running",
        ProcessStatus::Sleep | ProcessStatus::Idle => "sleeping",
        ProcessStatus::UninterruptibleDiskSleep => "blocked",
        ProcessStatus::Stop | ProcessStatus::Suspended => "stopped",
        ProcessStatus::Tracing => "traced",
        ProcessStatus::Zombie => "defunct",
        ProcessStatus::Dead => "dead",
        _ => "unknown",
    }
}

/// Each process behind its parent, siblings by their PIDs.
fn in_order_of_a_tree(mut found: Vec<Process>) -> Vec<Process> {
    let pids: BTreeSet<u32> = found.iter().map(|process| process.pid).collect();
    found.sort_by_key(|process| Reverse(process.pid));
    let is_child = |process: &Process| process.parent.is_some_and(|parent| pids.contains(&parent));
    let (mut rest, mut next): (Vec<_>, Vec<_>) = found.into_iter().partition(is_child);
    let mut ordered = Vec::new();
    while let Some(process) = next.pop() {
        let depth = process.depth + 1;
        let children = rest.extract_if(.., |other| other.parent == Some(process.pid));
        next.extend(children.map(|child| Process { depth, ..child }));
        ordered.push(process);
    }
    // A PID was reused while the list was read.
    ordered.append(&mut rest);
    ordered
}

/// Of the lines below a message.
const INDENT: usize = 2;

/// A table of processes, at most `limit` of them. It fits the terminal, with the indent of the lines below a
/// message.
fn tree(processes: &[&Process], limit: usize) -> Vec<String> {
    let width = terminal_width().map(|width| width.saturating_sub(INDENT));
    let row = |pid: &str, user: &str, state: &str, cpu: &str, command: &str| {
        let line = format!("  {pid:>7}  {user:<8}  {state:<8}  {cpu:>7}  {command}");
        cut(&line, width.unwrap_or(usize::MAX)).into_owned()
    };
    let heading = row("PID", "USER", "STATE", "CPU", "COMMAND");
    let rows = processes.iter().take(limit).map(|process| {
        let command = words::escape(&process.command.join(" "));
        let indent = 2 * process.depth.min(20);
        row(
            &process.pid.to_string(),
            &words::escape(process.user.as_deref().unwrap_or("-")),
            process.state,
            &cpu_time(process.cpu_seconds),
            &format!("{:indent$}{command}", ""),
        )
    });
    let mut lines: Vec<String> = std::iter::once(heading).chain(rows).collect();
    let more = processes.len().saturating_sub(limit);
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines
}

/// "12.3s", "3h 12m"
fn cpu_time(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds:.1}s")
    } else {
        words::span(Duration::from_secs_f64(seconds))
    }
}

/// The processes, at most `limit`, under headings that say what a break does to them.
pub(crate) fn listed(
    status: &Status,
    processes: &[Process],
    at_once: bool,
    limit: usize,
) -> Vec<String> {
    let is_ended = is_run(status) && !at_once;
    let is_own = |process: &&Process| !is_ended || may_signal(process);
    let (own, others): (Vec<_>, Vec<_>) = processes.iter().partition(is_own);
    let mut lines = Vec::new();
    for (heading, processes) in [
        (heading(status, at_once), own),
        (OF_OTHERS.to_owned(), others),
    ] {
        if !processes.is_empty() {
            lines.push(heading);
            lines.extend(tree(&processes, limit));
        }
    }
    lines
}

fn may_signal(process: &Process) -> bool {
    Pid::new(process.pid).is_some_and(Pid::may_be_signaled)
}

const OF_OTHERS: &str = "processes that you may not signal, so `break` does not end them:";

/// What a break does to processes that the caller may signal.
fn heading(status: &Status, at_once: bool) -> String {
    let has_wrapper = status.verdict.wrapper_alive == Some(true);
    let kill_after = status.info().and_then(HoldInfo::kill_after);
    let text = match (is_run(status), at_once, kill_after) {
        (true, true, _) if has_wrapper => {
            "their wrapper ends these processes afterwards, except with --on-lost warn:"
        }
        (_, true, _) => "these processes keep running:",
        (false, false, _) => "processes that `break` does not end:",
        (true, false, None) => "processes that `break` ends by TERM, without KILL:",
        (true, false, Some(after)) => {
            let after = words::short_span(after);
            return format!("processes that `break` ends by TERM, and by KILL after {after}:");
        }
    };
    text.to_owned()
}

/// What happens to the work of a hold that is broken. `at_once`: nothing of it is ended first.
pub(crate) fn effects(lock: &Lock, status: &Status, at_once: bool) -> Vec<String> {
    /// Lines of a question.
    const MAX_PROCESSES: usize = 8;
    let processes = processes(lock, status);
    if let Some(lockers) = describe::lockers_in_brief(status) {
        return vec![format!("{lockers} keeps its kernel lock")];
    }
    if status.verdict.reason == Reason::Kept {
        return vec!["its work has ended".to_owned()];
    }
    if processes.is_empty() {
        return vec!["it cannot be seen from here whether its work is still going on".to_owned()];
    }
    let mut lines = listed(status, &processes, at_once, MAX_PROCESSES);
    lines.extend(starter(status));
    let is_cut_off = is_run(status) && !describe::is_without_command(status) && !at_once;
    if is_cut_off && processes.iter().any(may_signal) {
        lines.push("what they are writing may be left incomplete".to_owned());
    }
    lines
}

/// "process 4200 (python3) started it and keeps running": the program that a `hold` is for.
pub(crate) fn starter(status: &Status) -> Option<String> {
    let program = status.info()?.program()?;
    let is_here = status.verdict.pid_alive == Some(true) && !program.has_ended();
    let program = describe::process(program.pid.get(), &program.command);
    is_here.then(|| format!("{program} started it and keeps running"))
}

/// Lines on the processes that get no signal on the word of a lock file: users without that right can write it, or
/// it speaks of another lock.
pub(crate) fn spared(lock: &Lock, status: &Status) -> Vec<String> {
    /// Lines of a message.
    const MAX_PROCESSES: usize = 8;
    let processes = status.revision().map(|shown| lock.spared_work(&shown));
    let processes = processes.and_then(Result::ok).unwrap_or_default();
    if let Some(provenance) = describe::provenance(status).filter(|_| !processes.is_empty()) {
        return vec![format!("  they get no signal: {provenance}")];
    }
    let shown = processes.iter().take(MAX_PROCESSES).map(|process| {
        let user = process.pid.user().unwrap_or_else(|| "?".to_owned());
        let user = words::escape(&user);
        let process = describe::process(process.pid.get(), &process.pid.command_line());
        format!(
            "  {process} gets no signal: it belongs to user {user}, who may not be the author of the lock file"
        )
    });
    shown.collect()
}

/// Who gets the lock next.
pub(crate) fn next_holder(status: &Status) -> String {
    let name = words::quoted(&status.name);
    match (status.others.len(), status.waiters.first()) {
        (0, Some(waiter)) => format!("{name} then goes to {}", describe::process_on_host(waiter)),
        (0, None) => {
            let mut names = status.names();
            names.retain(|other| *other != status.name);
            names.insert(0, &status.name);
            format!("{} will then be free", words::quoted_names(names))
        }
        (1, _) => format!("{name} will still have another holder"),
        (others, _) => format!("{name} will still have {others} other holders"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32) -> Process {
        Process {
            pid,
            parent: Some(parent),
            user: None,
            state: "sleeping",
            cpu_seconds: 0.0,
            command: vec!["x".to_owned()],
            depth: 0,
        }
    }

    #[test]
    fn children_come_behind_their_parents() {
        let found = vec![
            process(2, 9),
            process(3, 7),
            process(5, 1),
            process(7, 5),
            process(8, 5),
            process(9, 7),
        ];
        let sorted: Vec<(u32, usize)> = in_order_of_a_tree(found)
            .iter()
            .map(|process| (process.pid, process.depth))
            .collect();
        assert_eq!(sorted, [(5, 0), (7, 1), (3, 2), (9, 2), (2, 3), (8, 1)]);
    }

    #[test]
    fn processes_that_are_their_own_parents_are_shown_once() {
        let sorted = in_order_of_a_tree(vec![process(2, 3), process(3, 2)]);
        assert_eq!(sorted.len(), 2);
        assert_eq!(
            tree(&sorted.iter().collect::<Vec<_>>(), 1)
                .last()
                .map(String::as_str),
            Some("  and 1 more")
        );
    }
}
