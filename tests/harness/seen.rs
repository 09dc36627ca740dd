//! What the programs that tests run see and note, and the tests, too.

use std::fs;
use std::io::Write;
use std::path::Path;

/// Nanoseconds on a clock that all processes read alike.
#[cfg(unix)]
pub fn now() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Appends a line to a file by one write, so that lines of several processes do not mix.
pub fn append_line(file: &Path, line: &str) {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Identifies a process by pid and start time: pids are reused within a minute.
#[cfg(target_os = "linux")]
pub fn identity(pid: u32) -> Option<String> {
    let (_, start) = state_and_start(pid)?;
    Some(format!("{pid}.{start}"))
}

/// The state of a process, as in /proc: one letter.
#[cfg(target_os = "linux")]
pub fn state(pid: u32) -> Option<String> {
    state_and_start(pid).map(|(state, _)| state)
}

/// Whether a process runs: a zombie does not, and neither does one that has no memory any more, on the way to become
/// one.
#[cfg(target_os = "linux")]
pub fn runs(pid: u32) -> bool {
    let has_memory = || {
        let pages = fs::read_to_string(format!("/proc/{pid}/statm"));
        pages.is_ok_and(|pages| !pages.starts_with("0 "))
    };
    state(pid).is_some_and(|state| !matches!(state.as_str(), "Z" | "X")) && has_memory()
}

#[cfg(target_os = "linux")]
fn state_and_start(pid: u32) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ').map(str::to_owned);
    let state = fields.next()?;
    Some((state, fields.nth(18)?))
}

/// The running processes whose environment is as wanted.
#[cfg(target_os = "linux")]
pub fn processes_with(is_wanted: impl Fn(&[&[u8]]) -> bool) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
            is_wanted(&variables) && runs(*pid)
        })
        .collect()
}

/// The running processes with this variable, and what they are called.
#[cfg(target_os = "linux")]
pub fn marked(variable: &str) -> Vec<String> {
    processes_with(|variables| variables.contains(&variable.as_bytes()))
        .into_iter()
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim())
        })
        .collect()
}
