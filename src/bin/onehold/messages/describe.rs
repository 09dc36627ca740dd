//! Describes a lock and its holder on a terminal: the sentences of the library, in local time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use chrono::{DateTime, Local, NaiveDateTime, Utc};
use clap::ValueEnum;
use onehold::describe::describe_zombie;
pub(crate) use onehold::describe::{
    age, describe_deadlock, describe_holder, describe_obstacle, describe_past_holder,
    describe_waits, evidence, holder, holder_on_host, lockers_in_brief, process, process_on_host,
    provenance, relation, reserved_for, zombie_reason,
};
use onehold::journal::{Action, Event, Fate, HoldResult};
use onehold::status::{KeptPlace, Kind, Reason, Waiter};
use onehold::{HoldInfo, Lock, LockName, Mode, State, Status, describe as sentences};

use crate::arguments::args::ListState;
use crate::words;

/// "zombie `x`: process 4262 (sleep) on vm, holder since 20:40:51, has exited"
pub(crate) fn zombie(status: &Status) -> String {
    let (name, holder) = (words::quoted(&status.name), describe_zombie(status, local));
    format!("zombie {name}: {holder}")
}

/// Whether somebody holds it, as far as that is known.
pub(crate) fn is_held(status: &Status) -> bool {
    matches!(status.verdict.state, State::Held | State::Overdue)
}

/// Of a hold that is overdue: "overdue since 02:00:07 (3h 12m ago): `backup` is held by …"
#[cold]
#[inline(never)]
pub(crate) fn overdue(status: &Status, wanted: &LockName) -> Option<String> {
    let mut holds = status.all_holds();
    let hold = holds.find(|hold| hold.verdict.state == State::Overdue)?;
    let since = sentences::since(hold.verdict.overdue_at(Utc::now())?, local);
    let holder = describe_obstacle(hold, wanted, local);
    Some(format!("overdue {since}: {holder}"))
}

/// Whether it is the hold of a `run`.
pub(crate) fn is_run(status: &Status) -> bool {
    let record = status.info();
    record.is_some_and(|record| record.kind() == Kind::Run)
}

/// The working directory of the command of a live `run`, where it can be seen.
pub(crate) fn directory(status: &Status) -> Option<PathBuf> {
    let is_alive = is_run(status) && status.verdict.pid_alive == Some(true);
    status.verdict.pid.filter(|_| is_alive)?.working_directory()
}

/// Whether it is the hold of `onehold hold`.
pub(crate) fn is_without_command(status: &Status) -> bool {
    status.info().is_some_and(HoldInfo::is_without_command)
}

/// "process 4260", of a `run` that supervises its command.
pub(crate) fn wrapper(status: &Status) -> Option<String> {
    let record = status.info().filter(|_| !status.is_remote())?;
    let pid = record.taken_by().filter(|_| record.has_wrapper())?;
    Some(match status.verdict.wrapper_alive {
        Some(true) => format!("process {pid}"),
        Some(false) => format!("process {pid}, which has exited"),
        None => format!("process {pid}, which cannot be checked here"),
    })
}

/// The name of the user who holds a lock. Asked once for each user: the user database may be slow.
pub(crate) fn user(status: &Status) -> Option<String> {
    thread_local! {
        static KNOWN: RefCell<BTreeMap<u32, Option<String>>> = RefCell::default();
    }
    let name = || status.user();
    KNOWN.with_borrow_mut(|known| known.entry(status.uid?).or_insert_with(name).clone())
}

/// The state, as `list` tells it.
pub(crate) fn list_state(status: &Status) -> ListState {
    match (status.verdict.state, status.verdict.reason) {
        (State::Free, _) => ListState::Free,
        (State::Held, Reason::Reserved) => ListState::Reserved,
        (State::Held, Reason::Kept) => ListState::Kept,
        (State::Held, Reason::Unverified(_) | Reason::Incomplete) => ListState::Unverified,
        (State::Held, _) if mode(status) == Some(Mode::Shared) => ListState::Shared,
        (State::Held, _) => ListState::Held,
        (State::Overdue, _) => ListState::Overdue,
        (State::Zombie, Reason::Malformed(_)) => ListState::Damaged,
        (State::Zombie, _) => ListState::Zombie,
        (State::NotALock, _) => ListState::NotALock,
    }
}

fn mode(status: &Status) -> Option<Mode> {
    status.info().map(HoldInfo::mode)
}

/// The state as a word of `list --state`.
pub(crate) fn state(status: &Status) -> String {
    let value = list_state(status).to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The same with slot and waiters, for a table: "held, slot 2 +1".
pub(crate) fn state_in_table(status: &Status) -> String {
    let mut text = state(status);
    let (state, mode) = (list_state(status), mode(status));
    if let (ListState::Held, Some(slot), Some(Mode::Slots(_))) = (state, status.slot, mode) {
        let _ = write!(text, ", slot {slot}");
    }
    if !status.waiters.is_empty() {
        let _ = write!(text, " +{}", status.waiters.len());
    }
    text
}

/// What identifies the holder, or the waiter that the lock is reserved for: "4242 (backup.sh)", "lease of
/// runner-7", "77 (job.sh) on db1". Without the name of this host.
pub(crate) fn holder_in_table(status: &Status, own_host: Option<&str>) -> String {
    let with_host = |holder: String, host: Option<&str>| match host {
        Some(host) if Some(host) != own_host => format!("{holder} on {}", words::escape(host)),
        _ => holder,
    };
    if let Some(waiter) = reserved_for(status) {
        let process = sentences::process_in_brief(waiter.pid.get(), &waiter.command);
        return with_host(format!("for {process}"), waiter.hostname.as_deref());
    }
    let lockers = sentences::lockers_of(status).iter();
    let lockers: Vec<String> = lockers
        .map(|locker| sentences::process_in_brief(locker.pid.get(), &locker.command))
        .collect();
    match status.info() {
        _ if !lockers.is_empty() => lockers.join(", "),
        Some(record) => {
            let holder = sentences::holder_in_brief(status, record);
            with_host(holder, record.hostname())
        }
        None => String::new(),
    }
}

/// "process 77 (job.sh) on db1, waiting since 02:00:07 (3m 1s ago): "nightly""
pub(crate) fn waiting(waiter: &Waiter) -> String {
    let process = process_on_host(waiter);
    let since = sentences::since(waiter.since, local);
    let message = sentences::message(waiter.message.as_deref());
    format!("{process}, waiting {since}{message}")
}

/// "place kept for runner-7, waiting since 02:00:07 (3m 1s ago), for 9m 12s more"
pub(crate) fn kept_place(place: &KeptPlace) -> String {
    let (owner, left) = (words::escape(&place.owner), words::span(place.left));
    let since = sentences::since(place.since, local);
    format!("place kept for {owner}, waiting {since}, for {left} more")
}

/// "02:00:07 taken over from process 3127 (backup.sh) by process 4261 of user root (onehold run backup
/// -- x): its holder has exited"
pub(crate) fn event(event: &Event, names_hosts: bool) -> String {
    let on_host = |host: &Option<String>| match host {
        Some(host) if names_hosts => format!(" on {}", words::escape(host)),
        _ => String::new(),
    };
    let what = match event.event {
        Action::Takeover => "taken over",
        Action::Break => "broken",
        Action::Cleanup => "cleaned up",
        _ => "changed",
    };
    let mut text = format!("{} {what}", local(event.at));
    if let Some(from) = &event.from {
        let holder = match (from.pid, &from.owner) {
            (Some(pid), _) => process(pid.get(), &from.command),
            (None, Some(owner)) => format!("a lease of {}", words::escape(owner)),
            (None, None) => "a lease".to_owned(),
        };
        let _ = write!(text, ", held by {holder}{}", on_host(&from.hostname));
        if let Some(user) = from.user.as_ref().filter(|_| from.user != event.by.user) {
            let _ = write!(text, " of user {}", words::escape(user));
        }
    }
    let _ = write!(text, ", by process {}", event.by.pid);
    text.push_str(&on_host(&event.by.hostname));
    if let Some(user) = &event.by.user {
        let _ = write!(text, " of user {}", words::escape(user));
    } else if let Some(uid) = event.by.uid {
        // Of earlier versions.
        let _ = write!(text, " of uid {uid}");
    }
    let command = words::escape(&event.by.command.join(" "));
    let _ = write!(text, " ({command}): {}", words::escape(&event.reason));
    text
}

/// Local time of day, with the date if it is not today.
pub(crate) fn local(at: DateTime<Utc>) -> String {
    let shown = on_local_clock(at);
    if shown.date() == on_local_clock(Utc::now()).date() {
        return shown.format("%H:%M:%S").to_string();
    }
    local_with_date(at)
}

/// Local time, with the date.
pub(crate) fn local_with_date(at: DateTime<Utc>) -> String {
    let at = on_local_clock(at);
    at.format("%Y-%m-%d %H:%M:%S").to_string()
}

/// In UTC if the time zone is no file with an end.
fn on_local_clock(at: DateTime<Utc>) -> NaiveDateTime {
    static HAS_END: OnceLock<bool> = OnceLock::new();
    if *HAS_END.get_or_init(time_zone_has_end) {
        at.with_timezone(&Local).naive_local()
    } else {
        at.naive_utc()
    }
}

/// Whether what TZ leads to can be read to its end: chrono does that, also with a pipe or a device.
fn time_zone_has_end() -> bool {
    const DIRECTORY: &str = "/usr/share/zoneinfo";
    const MOST: u64 = 1 << 20;
    let zone = std::env::var("TZ").unwrap_or_default();
    let zone = zone.strip_prefix(':').unwrap_or(&zone);
    // The others are below directories of root's.
    if !zone.starts_with('/') && !zone.contains("..") {
        return true;
    }
    // An absolute path takes the place of the directory. The other directories are on the same level.
    let found = Path::new(DIRECTORY).join(zone).metadata();
    found.map_or(true, |file| {
        file.is_dir() || (file.is_file() && file.len() <= MOST)
    })
}

/// What has become of a hold of this lock whose record is gone; `None`: nothing went wrong. The second: whether that
/// is known.
pub(crate) fn fate(lock: &Lock, hold: u64) -> Option<(String, bool)> {
    let name = words::quoted(lock.name().as_str());
    let how = match lock.fate(hold) {
        Fate::Released => return None,
        Fate::Ended(event) => self::event(&event, lock.is_remote()),
        Fate::StoreGone => "its store does not exist any more, or is empty".to_owned(),
        Fate::StoreMadeAnew(at) => {
            format!("its store was removed, and made anew at {}", local(at))
        }
        _ => {
            let how = "it was released before, or its record was removed";
            return Some((format!("hold {hold} of {name} was not there: {how}"), false));
        }
    };
    Some((format!("hold {hold} of {name} was lost: {how}"), true))
}

/// "hold 7 of `db` and `cache`"
pub(crate) fn hold_and_locks(status: &Status) -> String {
    let number = status.hold().unwrap_or_default();
    let names = words::quoted_names(status.names());
    format!("hold {number} of {names}")
}

/// How a hold ended, as in JSON: "taken-over".
pub(crate) fn result(result: HoldResult) -> String {
    let value = serde_json::to_value(result).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// The kind of a hold, as in JSON.
pub(crate) fn kind(record: HoldInfo<'_>) -> &'static str {
    match record.kind() {
        _ if record.is_without_command() || record.is_served() => "hold",
        Kind::Run => "run",
        Kind::Process => "job",
        Kind::Lease => "lease",
    }
}
