//! `list --watch`: the table again when something has changed.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::bail;

use chrono::Utc;
use console::Term;
use onehold::command_line::signal;
use onehold::status::{Pid, Reason};
use onehold::{HoldInfo, Listing, State, Status};

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Printed, is_held, local};
use crate::supervising::SIGINT;
use crate::tables::events::print_events;
use crate::tables::list::{cells, rows_of, select};
use crate::tables::table::{AGE, Mark, cut, table};
use crate::{output, words};

/// Between two redraws at least.
const PACE: Duration = Duration::from_millis(100);

/// How often to look whether the size of the terminal has changed.
const RESIZE_INTERVAL: Duration = Duration::from_millis(200);

/// How often to look, with `--json`, for what no event tells. What an event tells is noticed at once.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// How soon to look again at a store that cannot be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long after the end of such a time the store is looked at.
const EXPIRY_RECHECK: Duration = Duration::from_millis(20);

/// What happens: the locks were listed, and how many they are in words. `None`: a key or a signal ends it.
type Event = Option<anyhow::Result<(Listing, String)>>;

/// Prints the table until a key, a signal or a closed pipe ends it.
#[inline(never)]
pub(crate) fn watch(session: &Session, typed: &args::List, every: Duration) -> CommandResult {
    // Who does not read what is printed gets what is there when it does.
    let (sender, events) = sync_channel(1);
    let every = if session.global.json {
        every.max(LOOK_INTERVAL)
    } else {
        every
    };
    list_in_thread(session.clone(), typed.clone(), every, sender.clone())?;
    if session.global.json {
        on_signal(|| end_by_signal());
        let listings = events.iter().flatten();
        return print_events(session, listings.map(|listed| Ok(listed?.0.locks)));
    }
    // There, a terminal has to be asked for what others do.
    if cfg!(windows) || !io::stdout().is_terminal() {
        on_signal(|| end_by_signal());
        return one_after_another(&events, every);
    }
    let signaled = sender.clone();
    on_signal(move || drop(signaled.send(None)));
    let screen = Screen::enter(move |key| {
        const CTRL_C: u8 = 3;
        !matches!(key, b'q' | b'Q' | CTRL_C) || sender.send(None).is_ok()
    })?;
    let redrawn = redraw(&events, every);
    // First: a signal ends the program at once.
    drop(screen);
    redrawn?;
    end_by_signal()
}

/// Sends each listing of the store.
fn list_in_thread(
    session: Session,
    typed: args::List,
    every: Duration,
    sender: SyncSender<Event>,
) -> io::Result<()> {
    let list = move || {
        let mut watch = session.store.watch();
        // Before the first look, so that nothing is missed after it.
        watch.wait(&[], Duration::ZERO);
        loop {
            let mut listed = select(&session, &typed);
            let (holders, at_most) = match &mut listed {
                Ok((listing, counted)) => {
                    if listing.locks.is_empty() && session.missing_store().is_some() {
                        counted.push_str(", which does not exist");
                    }
                    if !listing.errors.is_empty() {
                        let _ = write!(counted, "; {} could not be read", listing.errors.len());
                    }
                    (holders(listing), until_next_state(listing).min(every))
                }
                // No event says that the store can be read again.
                Err(_) => (Vec::new(), every.min(RETRY_INTERVAL)),
            };
            if sender.send(Some(listed)).is_err() {
                return;
            }
            watch.wait(&holders, at_most);
            std::thread::sleep(PACE);
        }
    };
    signal::without_signals(|| std::thread::Builder::new().spawn(list))?.map(drop)
}

/// The processes whose ends would change something.
fn holders(listing: &Listing) -> Vec<Pid> {
    let verdicts = listing.locks.iter().map(|lock| &lock.verdict);
    let alive = verdicts.filter(|verdict| verdict.pid_alive == Some(true));
    // A waiter that is killed leaves its ticket.
    let waiters = listing.locks.iter().flat_map(|lock| &lock.waiters);
    let waiters = waiters.map(|waiter| waiter.pid);
    let holders = alive.filter_map(|verdict| verdict.pid);
    let processes: BTreeSet<Pid> = holders.chain(waiters).collect();
    processes.into_iter().collect()
}

/// How long until nothing but time ends a hold, or makes it overdue.
fn until_next_state(listing: &Listing) -> Duration {
    let now = Utc::now();
    let ends = |lock: &Status| {
        let is_detached = lock.info().is_some_and(HoldInfo::is_detached);
        lock.verdict
            .expires_at
            .filter(|_| is_detached && is_held(lock))
    };
    let becomes_overdue = |lock: &Status| {
        let verdict = &lock.verdict;
        let may = matches!(verdict.reason, Reason::Alive | Reason::Unverified(_));
        verdict
            .overdue_at(now)
            .filter(|_| may && verdict.state == State::Held)
    };
    let locks = listing.locks.iter();
    let times = locks
        .flat_map(|lock| [ends(lock), becomes_overdue(lock)])
        .flatten();
    let left = times.map(|at| at.signed_duration_since(now).to_std().unwrap_or_default());
    // One that is over by this clock is judged by another one, of the time since boot.
    let first = left.min().map(|left| left + EXPIRY_RECHECK);
    first.unwrap_or(Duration::MAX)
}

/// Calls this when INT, TERM or HUP comes.
fn on_signal(handle: impl FnMut() + Send + 'static) {
    signal::tell_signals_apart(|| {
        let _ = ctrlc::set_handler(handle);
    });
}

/// Ends the program. Without a signal, or by Ctrl-C, a user ends it.
fn end_by_signal() -> ! {
    let signal = signal::last_signal().unwrap_or(SIGINT);
    if signal != SIGINT {
        signal::exit_by_signal(signal);
    }
    #[allow(clippy::exit, reason = "the watch ends on a signal")]
    std::process::exit(if signal == SIGINT { 0 } else { 128 + signal });
}

/// On a pipe: one table for each change.
fn one_after_another(events: &Receiver<Event>, every: Duration) -> CommandResult {
    let mut space = "";
    let mut shown: Option<(Instant, Vec<Status>)> = None;
    for listed in events.iter().flatten() {
        let (listing, counted) = listed?;
        // One change wakes more than once.
        if let Some((at, before)) = &shown
            && at.elapsed() < every
            && !is_changed(&marked(Some(before), &listing.locks))
        {
            continue;
        }
        let text = match rows_of(listing.locks.iter().map(|lock| (lock, None))) {
            rows if rows.is_empty() => counted,
            rows => table(&rows, None, ""),
        };
        match output::data(&format!("{space}{text}")) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            printed => printed?,
        }
        space = "\n";
        shown = Some((Instant::now(), listing.locks));
    }
    Ok(Printed::Yes(Exit::DONE))
}

/// In the alternate screen of a terminal.
fn redraw(events: &Receiver<Event>, every: Duration) -> anyhow::Result<()> {
    // The marks of the rows are those since `before`.
    let (mut before, mut shown) = (None::<Vec<Status>>, None::<Vec<Status>>);
    let mut rows: Vec<(Status, Mark)> = Vec::new();
    let mut marked_at = Instant::now();
    let mut head = String::new();
    let mut size = (0, 0);
    loop {
        let has_news = match events.recv_timeout(RESIZE_INTERVAL) {
            Ok(Some(Ok((listing, counted)))) => {
                let is_changed = is_changed(&marked(shown.as_deref(), &listing.locks));
                // One change wakes more than once, and its marks are to be seen.
                if is_changed || rows.is_empty() || marked_at.elapsed() >= every {
                    marked_at = Instant::now();
                    before = shown;
                }
                rows = marked(before.as_deref(), &listing.locks);
                head = counted;
                shown = Some(listing.locks);
                true
            }
            Ok(Some(Err(error))) => {
                head = words::escape(&format!("{error:#}"));
                true
            }
            Ok(None) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => bail!("nothing is listed any more"),
        };
        let now = Term::stdout().size();
        if has_news || now != size {
            size = now;
            let (height, width) = (usize::from(size.0), usize::from(size.1));
            draw(lines(&head, &rows, width, height), width, height)?;
        }
    }
}

/// What a row is of.
fn key(lock: &Status) -> (&str, Option<u32>) {
    (&lock.name, lock.slot)
}

fn by_key(locks: &[Status]) -> HashMap<(&str, Option<u32>), &Status> {
    locks.iter().map(|lock| (key(lock), lock)).collect()
}

/// The rows with what is new, gone or otherwise than it was shown.
fn marked(before: Option<&[Status]>, now: &[Status]) -> Vec<(Status, Mark)> {
    let Some(before) = before else {
        return now.iter().map(|lock| (lock.clone(), Mark::None)).collect();
    };
    let (shown, there) = (by_key(before), by_key(now));
    let mark = |lock: &Status| match shown.get(&key(lock)) {
        None => Mark::New,
        Some(shown) if shown.hold() != lock.hold() || !look_alike(shown, lock) => Mark::Changed,
        Some(_) => Mark::None,
    };
    let mut rows: Vec<_> = now.iter().map(|lock| (lock.clone(), mark(lock))).collect();
    for (at, gone) in before.iter().enumerate() {
        if !there.contains_key(&key(gone)) {
            rows.insert(at.min(rows.len()), (gone.clone(), Mark::Gone));
        }
    }
    rows
}

fn is_changed(marked: &[(Status, Mark)]) -> bool {
    marked.iter().any(|(_, mark)| *mark != Mark::None)
}

/// Whether their rows differ in their age at most.
fn look_alike(one: &Status, other: &Status) -> bool {
    let without_age = |lock| {
        let mut cells = cells(lock, None, true);
        cells[AGE].clear();
        cells
    };
    without_age(one) == without_age(other)
}

/// The lines of the screen.
fn lines(head: &str, rows: &[(Status, Mark)], width: usize, height: usize) -> Vec<String> {
    let shown = rows.iter().take(height);
    let shown = rows_of(shown.map(|(lock, mark)| (lock, Some(*mark))));
    let now = local(Utc::now());
    let head = cut(&format!("{now}  {head}  (q quits)"), width).into_owned();
    let mut lines = vec![head, String::new()];
    if !shown.is_empty() {
        lines.extend(table(&shown, Some(width), "  ").lines().map(str::to_owned));
        // What is below the screen in any case.
        lines.resize(lines.len() + rows.len() - shown.len(), String::new());
    }
    lines
}

/// Another screen, without a cursor, that does not wrap lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Dropping it leaves the terminal as it was.
struct Screen {
    /// `None`: there is no terminal to read them from.
    #[cfg(unix)]
    _keys: Option<signal::Keys>,
}

impl Screen {
    /// `on_key`: called for each key, until it returns `false`.
    fn enter(on_key: impl FnMut(u8) -> bool + Send + 'static) -> io::Result<Self> {
        #[cfg(not(unix))]
        drop(on_key);
        let screen = Self {
            #[cfg(unix)]
            _keys: signal::Keys::read(on_key).ok(),
        };
        write(ENTER)?;
        Ok(screen)
    }
}

/// Draws over what is there, in one write: a screen that is cleared first flickers.
fn draw(mut lines: Vec<String>, width: usize, height: usize) -> io::Result<()> {
    if lines.len() > height {
        let left = lines.len() - height + 1;
        lines.truncate(height.saturating_sub(1));
        lines.push(cut(&format!("… {left} more lines"), width).into_owned());
    }
    // What is there is erased before each line: after a full one, the cursor is still on its last character.
    let last = lines.len().saturating_sub(1);
    let lines = lines.iter().enumerate().map(|(at, line)| {
        let erase = if at == last { "\x1b[J" } else { "\x1b[K" };
        format!("{erase}{}", output::painted(line))
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    write(&format!("\x1b[H{text}"))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(LEAVE);
    }
}
