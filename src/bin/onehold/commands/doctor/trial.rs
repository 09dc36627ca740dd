//! The trial of `doctor`: processes that take one lock, in a name of its own. Each is this program again, called as
//! `onehold trial KIND DIR NAME …`. None of them leaves a line in the journal: nothing has happened to a lock of anybody.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, SystemTimeError, UNIX_EPOCH};

use anyhow::{Context, bail};
use onehold::repair::Finding;
use onehold::{Caller, Hold, Lock, LockName, Options, Wait};

use crate::arguments::args::GlobalArgs;
use crate::configuration::{EffectiveConfig, HISTORY, Session};
use crate::messages::Exit;
use crate::output;

/// The word that starts a process of the trial, in place of a command.
pub(crate) const VERB: &str = "trial";

/// Processes that contend, and how often each takes the lock.
const CONTENDERS: usize = 8;
const TIMES: usize = 200;

/// How long they contend, at most.
const CONTENTION: Duration = Duration::from_secs(4);

/// The time limit of any other step.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time limit of the whole trial.
const WHOLE: Duration = Duration::from_secs(10);

/// A process of a trial: parses its words and does its part.
pub(crate) fn work(words: &[OsString]) -> Exit {
    match part(words) {
        Ok(()) => Exit::DONE,
        Err(error) => {
            output::eprint(&format!("onehold: {error:#}"));
            Exit::FAILED
        }
    }
}

fn part(words: &[OsString]) -> anyhow::Result<()> {
    match words {
        [kind] if kind == "sleep" => {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            Ok(())
        }
        [kind, directory, name] if kind == "hold" => hold(&lock(directory, name)?),
        [kind, directory, name, file] if kind == "count" => {
            count(&lock(directory, name)?, Path::new(file))
        }
        _ => bail!("unknown part of a trial"),
    }
}

fn lock(directory: &OsString, name: &OsString) -> anyhow::Result<Lock> {
    let global = GlobalArgs {
        dir: Some(PathBuf::from(directory)),
        ..GlobalArgs::default()
    };
    let config = EffectiveConfig::read(&global)?;
    let session = Session::new(VERB, global, Caller::default(), config, None)?;
    without_journal(&session, LockName::new(name)?)
}

fn without_journal(session: &Session, name: LockName) -> anyhow::Result<Lock> {
    let mut session = session.clone();
    session.store = session.store.journal_size(0);
    Ok(session.lock(name)?)
}

/// Takes the lock, waiting for at most `patience`.
fn take(lock: &Lock, patience: Duration) -> onehold::Result<Option<Hold>> {
    let attempt = lock.hold(&Options::new(), Wait::at_most(patience))?;
    Ok(attempt.into_result().ok())
}

/// Increments a number, and prints how often.
fn count(lock: &Lock, file: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + CONTENTION;
    let mut done = 0;
    while done < TIMES {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(hold) = take(lock, left)? else {
            break;
        };
        let number = std::fs::read_to_string(file)?;
        let number: usize = number.trim().parse()?;
        std::fs::write(file, (number + 1).to_string())?;
        let _ = hold.release()?;
        done += 1;
    }
    output::data(&done.to_string())?;
    Ok(())
}

/// Holds the lock until stdin ends. Prints the number, and when that was.
fn hold(lock: &Lock) -> anyhow::Result<()> {
    let hold = take(lock, WHOLE)?.with_context(|| format!("not held within {WHOLE:?}"))?;
    output::data(&format!("{} {}", hold.number(), now()?.as_micros()))?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let _ = hold.release()?;
    Ok(())
}

/// Waits until something is so, for at most `limit`. Returns whether it is.
fn becomes(is_so: impl Fn() -> bool, limit: Duration) -> bool {
    let began = Instant::now();
    while !is_so() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

/// The wall clock, which all processes of a trial share.
fn now() -> Result<Duration, SystemTimeError> {
    SystemTime::now().duration_since(UNIX_EPOCH)
}

/// What was found where locks do not work.
fn unusable(check: &'static str, detail: impl Into<String>) -> Finding {
    Finding::failed(check, detail).advice("use another store: --dir")
}

/// A process of the trial, which ends with this one.
struct Part(Child);

impl Part {
    /// The line that it prints.
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().context("no pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(line)
    }

    /// Waits until it holds the lock. Returns its number, and when it was taken, in microseconds.
    fn held(&mut self) -> anyhow::Result<(u64, u128)> {
        let line = self.line()?;
        let parts = line.trim().split_once(' ');
        let (number, at) = parts.context("it did not get the lock")?;
        Ok((number.parse()?, at.parse()?))
    }

    /// As another process would kill it.
    fn kill(&mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The file with the number that contenders increment.
struct Counter(PathBuf);

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A trial of one store.
pub(crate) struct Trial<'a> {
    session: &'a Session,
    lock: Lock,
    program: PathBuf,
    /// All users of the store see each other's kernel locks, or it is on etcd.
    is_trusted: bool,
    deadline: Instant,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(session: &'a Session, is_trusted: bool) -> anyhow::Result<Self> {
        // Two containers that share a store may have the same process IDs.
        let (process, time) = (std::process::id(), now()?.as_nanos());
        let name = LockName::new(format!("onehold-doctor-{process}-{time}"))?;
        Ok(Self {
            session,
            lock: without_journal(session, name)?,
            program: std::env::current_exe().context("cannot find this program")?,
            is_trusted,
            deadline: Instant::now() + WHOLE,
        })
    }

    /// How long the next step may take.
    fn patience(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        left.min(PATIENCE)
    }

    /// All parts, one after the other.
    pub(crate) fn run(&self, found: &mut Vec<Finding>) -> anyhow::Result<()> {
        found.push(self.contention()?);
        found.push(self.killed_holder()?);
        if cfg!(unix) && !self.lock.is_remote() {
            found.push(self.killed_wrapper()?);
        }
        found.extend(self.order()?);
        Ok(())
    }

    fn start(&self, mut command: Command) -> anyhow::Result<Part> {
        if let Some(profile) = &self.session.config.profile {
            command.env("ONEHOLD_PROFILE", profile);
        }
        command.env(HISTORY, "0");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let started = command.spawn().context("cannot start this program again");
        Ok(Part(started?))
    }

    fn part(&self, kind: &str, file: Option<&Path>) -> anyhow::Result<Part> {
        let mut command = Command::new(&self.program);
        command.args([VERB, kind]).arg(self.session.store.path());
        command.arg(self.lock.name().as_str()).args(file);
        self.start(command)
    }

    /// Contenders that increment a number in a file.
    fn contention(&self) -> anyhow::Result<Finding> {
        const CHECK: &str = "contention";
        let file = std::env::temp_dir().join(self.lock.name().as_str());
        // An existing file belongs to someone else, and may be a link to yet another file.
        let created = File::create_new(&file).and_then(|mut created| created.write_all(b"0"));
        if let Err(error) = created {
            let detail = format!("not tried: cannot write {}: {error}", file.display());
            let advice = "set TMPDIR to a directory that can be written";
            return Ok(Finding::warning(CHECK, detail).advice(advice));
        }
        let file = Counter(file);
        let began = Instant::now();
        let parts = (0..CONTENDERS).map(|_| self.part("count", Some(&file.0)));
        let mut parts = parts.collect::<anyhow::Result<Vec<_>>>()?;
        let lines = parts.iter_mut().map(Part::line);
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        let seconds = began.elapsed().as_secs_f64();
        let done = lines.iter().filter_map(|line| line.trim().parse().ok());
        let done: Vec<usize> = done.collect();
        let (asked, failed) = (done.iter().sum::<usize>(), CONTENDERS - done.len());
        let counted = std::fs::read_to_string(&file.0).unwrap_or_default();
        let counted: usize = counted.trim().parse().unwrap_or_default();
        if failed > 0 {
            let detail = format!("{failed} of {CONTENDERS} processes could not take the lock");
            return Ok(unusable(CHECK, detail));
        }
        if counted != asked {
            let detail = format!(
                "{asked} increments by {CONTENDERS} processes make {counted}: two held it at once"
            );
            return Ok(Finding::failed(CHECK, detail).advice("do not use this store"));
        }
        let detail =
            format!("{CONTENDERS} processes, {counted} increments in {seconds:.2} s, none lost");
        if counted < CONTENDERS * TIMES {
            return Ok(Finding::warning(CHECK, detail)
                .advice("each hold takes long here: try again when the machine is idle"));
        }
        Ok(Finding::ok(CHECK, detail))
    }

    fn killed_holder(&self) -> anyhow::Result<Finding> {
        const CHECK: &str = "killed holder";
        if self.lock.is_remote() {
            let detail = "its lock is taken over one to two times --ttl later; not tried";
            return Ok(Finding::ok(CHECK, detail));
        }
        let mut part = self.part("hold", None)?;
        part.held()?;
        part.kill()?;
        let patience = self.patience();
        Ok(match self.comes_free(patience)? {
            Some(took) => {
                let took = took.as_secs_f64() * 1000.0;
                Finding::ok(CHECK, format!("taken over after {took:.1} ms"))
            }
            None if self.is_trusted => {
                unusable(CHECK, format!("not taken over within {patience:.1?}"))
            }
            None => {
                let advice = "run `onehold break NAME` when a holder is dead, or use another store";
                Finding::warning(CHECK, "no takeover on this filesystem").advice(advice)
            }
        })
    }

    /// How long the lock is not free whose holder is dead. `None`: for longer than that; where such a lock is not taken
    /// over, it is broken.
    fn comes_free(&self, patience: Duration) -> onehold::Result<Option<Duration>> {
        let began = Instant::now();
        if let Some(hold) = take(&self.lock, patience)? {
            let took = began.elapsed();
            return hold.release().map(|_| Some(took));
        }
        if !self.is_trusted
            && let Some(revision) = self.lock.inspect(None)?.revision()
        {
            let _ = self.lock.break_at_once(&revision)?;
        }
        Ok(None)
    }

    /// A wrapper that is killed while its command runs.
    fn killed_wrapper(&self) -> anyhow::Result<Finding> {
        const CHECK: &str = "killed wrapper";
        let mut command = Command::new(&self.program);
        command.arg("--dir").arg(self.session.store.path());
        // A profile may require an owner.
        command.args(["run", "--owner", VERB, self.lock.name().as_str(), "--"]);
        command.arg(&self.program).args([VERB, "sleep"]);
        let mut part = self.start(command)?;
        let has_begun = || {
            let status = self.lock.inspect(None).ok();
            let process = status.and_then(|status| status.info()?.process());
            process.is_some_and(|process| process.start.is_some())
        };
        let limit = self.patience();
        if !becomes(has_begun, limit) {
            let detail = format!("not tried: its command did not start within {limit:.1?}");
            let advice = "try `onehold run -v NAME -- COMMAND` in this store";
            return Ok(Finding::warning(CHECK, detail).advice(advice));
        }
        // Of its command, which is to run on.
        let stdin = part.0.stdin.take();
        part.kill()?;
        let is_kept = take(&self.lock, Duration::ZERO)?.is_none();
        drop(stdin);
        if !is_kept {
            let detail = "the lock was free while its command ran";
            return Ok(Finding::failed(CHECK, detail).advice("do not use this store"));
        }
        let is_free = self.comes_free(self.patience())?.is_some();
        Ok(if is_free {
            Finding::ok(CHECK, "the lock is held until its command ends")
        } else if self.is_trusted {
            unusable(CHECK, "the lock is not free once its command has ended")
        } else {
            let detail = "the lock is held until its command ends, and then a zombie";
            Finding::ok(CHECK, detail)
        })
    }

    /// Waiters, and how soon each is served.
    fn order(&self) -> anyhow::Result<Vec<Finding>> {
        let hold = take(&self.lock, self.patience())?.context("cannot take the lock again")?;
        let mut waiters = Vec::new();
        let mut have_joined = true;
        for number in 1..=CONTENDERS {
            let mut part = self.part("hold", None)?;
            // It releases the lock at once.
            part.0.stdin = None;
            let has_joined = || {
                let status = self.lock.check(None);
                status.is_ok_and(|status| status.waiters.len() >= number)
            };
            let limit = if self.is_trusted {
                self.patience()
            } else {
                PATIENCE / 20
            };
            have_joined &= becomes(has_joined, limit);
            waiters.push(part);
        }
        let released = now()?;
        let _ = hold.release()?;
        let served = waiters.iter_mut().map(Part::held);
        let served = served.collect::<anyhow::Result<Vec<_>>>()?;
        for part in &mut waiters {
            // It has yet to release the lock.
            part.0.wait()?;
        }
        let is_in_order = served.is_sorted_by_key(|(number, _)| *number);
        let mut times: Vec<u128> = served.iter().map(|(_, at)| *at).collect();
        times.push(released.as_micros());
        times.sort_unstable();
        let pairs = times.iter().zip(times.iter().skip(1));
        let mut gaps: Vec<u128> = pairs.map(|(one, next)| next - one).collect();
        gaps.sort_unstable();
        let median = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
        let longest = gaps.last().copied().unwrap_or_default();
        let order = if is_in_order {
            Finding::ok(
                "order",
                format!("{CONTENDERS} waiters are served as they came"),
            )
        } else if self.is_trusted && have_joined {
            unusable(
                "order",
                format!("{CONTENDERS} waiters are not served as they came"),
            )
        } else if self.is_trusted {
            let detail = "not tried: waiters join the queue too slowly";
            Finding::warning("order", detail).advice("each request takes long here")
        } else {
            let advice = "there is no queue on this filesystem: use another store";
            Finding::warning("order", "waiters are not served as they came").advice(advice)
        };
        let milliseconds = |micros: u128| format!("{}.{} ms", micros / 1000, micros % 1000 / 100);
        let [median, most] = [median, longest].map(milliseconds);
        let detail = format!("{median}, at most {most}");
        let latency = if longest < 1_000_000 {
            Finding::ok("wake-up", detail)
        } else {
            Finding::warning("wake-up", detail).advice("waiters poll here")
        };
        Ok(vec![order, latency])
    }
}
