//! The trial of `doctor`: processes that take one lock, in a name of its own. Each is this program again, called as
//! `onehold trial KIND DIR NAME …`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, SystemTimeError, UNIX_EPOCH};

use anyhow::{Context, bail};
use onehold::{Attempt, Caller, Finding, Hold, Lock, LockName, Options, Wait};

use crate::args::GlobalArgs;
use crate::config::EffectiveConfig;
use crate::exit::Exit;
use crate::output;
use crate::session::Session;

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
        Ok(()) => Exit::Done,
        Err(error) => {
            output::eprint(&format!("onehold: {error:#}"));
            Exit::Failed
        }
    }
}

fn part(words: &[OsString]) -> anyhow::Result<()> {
    let [kind, rest @ ..] = words else {
        bail!("no part of a trial");
    };
    if kind == "sleep" {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return Ok(());
    }
    let [directory, name, file @ ..] = rest else {
        bail!("no lock for a trial");
    };
    let global = GlobalArgs {
        dir: Some(PathBuf::from(directory)),
        ..GlobalArgs::default()
    };
    let config = EffectiveConfig::read(&global)?;
    let session = Session::new(VERB, global, Caller::default(), config)?;
    let lock = session.lock(LockName::new(name)?)?;
    match (kind.to_str(), file) {
        (Some("count"), [file]) => count(&lock, Path::new(file)),
        (Some("hold"), _) => hold(&lock),
        _ => bail!("unknown part of a trial"),
    }
}

/// Increments a number, and prints how often.
fn count(lock: &Lock, file: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + CONTENTION;
    let mut done = 0;
    while done < TIMES {
        let left = deadline.saturating_duration_since(Instant::now());
        let hold = match lock.hold(&Options::new(), Wait::at_most(left))? {
            Attempt::Held(hold) => hold,
            Attempt::Blocked(_) => break,
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
    let attempt = lock.hold(&Options::new(), Wait::at_most(WHOLE))?;
    let Attempt::Held(hold) = attempt else {
        bail!("not held within {WHOLE:?}");
    };
    output::data(&format!("{} {}", hold.number(), now()?.as_micros()))?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let _ = hold.release()?;
    Ok(())
}

/// The wall clock, which all processes of a trial share.
fn now() -> Result<Duration, SystemTimeError> {
    SystemTime::now().duration_since(UNIX_EPOCH)
}

/// A process of the trial, which ends with this one.
struct Part {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
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
            lock: session.lock(name)?,
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
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start this program again")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = BufReader::new(stdout.context("no pipe")?);
        Ok(Part {
            child,
            stdin,
            stdout,
        })
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
            return Ok(Finding::warning(CHECK, detail, advice));
        }
        let file = Counter(file);
        let began = Instant::now();
        let parts = (0..CONTENDERS).map(|_| self.part("count", Some(&file.0)));
        let mut parts = parts.collect::<anyhow::Result<Vec<_>>>()?;
        let mut asked: usize = 0;
        let mut failed = 0;
        for part in &mut parts {
            let mut line = String::new();
            part.stdout.read_line(&mut line)?;
            match line.trim().parse::<usize>() {
                Ok(done) => asked += done,
                Err(_) => failed += 1,
            }
        }
        let took = began.elapsed();
        let counted = std::fs::read_to_string(&file.0).unwrap_or_default();
        let all = CONTENDERS * TIMES;
        let counted: usize = counted.trim().parse().unwrap_or_default();
        if counted != asked && failed == 0 {
            let detail = format!(
                "{asked} increments by {CONTENDERS} processes make {counted}: two held it at once"
            );
            return Ok(Finding::failed(CHECK, detail, "do not use this store"));
        }
        if failed > 0 {
            let detail = format!("{failed} of {CONTENDERS} processes could not take the lock");
            return Ok(Finding::failed(CHECK, detail, "use another store: --dir"));
        }
        let seconds = took.as_secs_f64();
        let detail =
            format!("{CONTENDERS} processes, {counted} increments in {seconds:.2} s, none lost");
        if counted < all {
            return Ok(Finding::warning(CHECK, detail, "each hold takes long here"));
        }
        Ok(Finding::ok(CHECK, detail))
    }

    /// A process that holds the lock. Returns its number, and when it was taken, in microseconds.
    fn holder(part: &mut Part) -> anyhow::Result<(u64, u128)> {
        let mut line = String::new();
        part.stdout.read_line(&mut line)?;
        let (number, at) = line
            .trim()
            .split_once(' ')
            .context("it did not get the lock")?;
        Ok((number.parse()?, at.parse()?))
    }

    /// Takes the lock, waiting for at most `patience`.
    fn take(&self, patience: Duration) -> onehold::Result<Option<Hold>> {
        Ok(
            match self.lock.hold(&Options::new(), Wait::at_most(patience))? {
                Attempt::Held(hold) => Some(hold),
                Attempt::Blocked(_) => None,
            },
        )
    }

    fn killed_holder(&self) -> anyhow::Result<Finding> {
        const CHECK: &str = "killed holder";
        if self.lock.is_remote() {
            let detail = "its lock is taken over one to two times --ttl later; not tried";
            return Ok(Finding::ok(CHECK, detail));
        }
        let mut part = self.part("hold", None)?;
        Self::holder(&mut part)?;
        part.child.kill()?;
        part.child.wait()?;
        let began = Instant::now();
        let patience = self.patience();
        let hold = self.take(patience)?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        Ok(match hold {
            Some(hold) => {
                let _ = hold.release()?;
                Finding::ok(CHECK, format!("taken over after {took:.1} ms"))
            }
            None if self.is_trusted => {
                let detail = format!("not taken over within {patience:.1?}");
                Finding::failed(CHECK, detail, "use another store: --dir")
            }
            None => {
                self.break_it()?;
                let advice = "run `onehold break NAME` when a holder is dead, or use another store";
                Finding::warning(CHECK, "no takeover on this filesystem", advice)
            }
        })
    }

    /// Breaks the hold of the dead holder.
    fn break_it(&self) -> onehold::Result<()> {
        if let Some(revision) = self.lock.inspect(None)?.revision() {
            let _ = self.lock.break_at_once(&revision)?;
        }
        Ok(())
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
        let began = Instant::now();
        let has_begun = || {
            let record = self
                .lock
                .inspect(None)
                .ok()
                .and_then(|status| status.record);
            record.is_some_and(|record| record.live.pid.is_some() && record.live.start.is_some())
        };
        let limit = self.patience();
        while !has_begun() && began.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !has_begun() {
            let detail = format!("not tried: its command did not start within {limit:.1?}");
            let advice = "try `onehold run -v NAME -- COMMAND` in this store";
            return Ok(Finding::warning(CHECK, detail, advice));
        }
        part.child.kill()?;
        part.child.wait()?;
        let is_kept = self.take(Duration::ZERO)?.is_none();
        // Its command ends.
        part.stdin = None;
        let free = self.take(self.patience())?;
        if !is_kept {
            let detail = "the lock was free while its command ran";
            return Ok(Finding::failed(CHECK, detail, "do not use this store"));
        }
        Ok(match free {
            Some(hold) => {
                let _ = hold.release()?;
                Finding::ok(CHECK, "the lock is held until its command ends")
            }
            None if self.is_trusted => {
                let detail = "the lock is not free once its command has ended";
                Finding::failed(CHECK, detail, "use another store: --dir")
            }
            None => {
                self.break_it()?;
                Finding::ok(
                    CHECK,
                    "the lock is held until its command ends, and then a zombie",
                )
            }
        })
    }

    /// Waiters, and how soon each is served.
    fn order(&self) -> anyhow::Result<Vec<Finding>> {
        let Some(hold) = self.take(self.patience())? else {
            bail!("cannot take the lock again");
        };
        let mut waiters = Vec::new();
        let mut have_joined = true;
        for number in 1..=CONTENDERS {
            let mut part = self.part("hold", None)?;
            // It releases the lock at once.
            part.stdin = None;
            let began = Instant::now();
            let waiting = || {
                self.lock
                    .check(None)
                    .map_or(0, |status| status.waiters.len())
            };
            let limit = if self.is_trusted {
                self.patience()
            } else {
                PATIENCE / 20
            };
            while waiting() < number && began.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
            have_joined &= waiting() >= number;
            waiters.push(part);
        }
        let released = now()?;
        let _ = hold.release()?;
        let served = waiters.iter_mut().map(Self::holder);
        let served = served.collect::<anyhow::Result<Vec<_>>>()?;
        for part in &mut waiters {
            // It has yet to release the lock.
            part.child.wait()?;
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
        let milliseconds = |micros: u128| format!("{}.{} ms", micros / 1000, micros % 1000 / 100);
        let order = if is_in_order {
            Finding::ok(
                "order",
                format!("{CONTENDERS} waiters are served as they came"),
            )
        } else if self.is_trusted && have_joined {
            let detail = format!("{CONTENDERS} waiters are not served as they came");
            Finding::failed("order", detail, "use another store: --dir")
        } else if self.is_trusted {
            let detail = "not tried: waiters join the queue too slowly";
            Finding::warning("order", detail, "each request takes long here")
        } else {
            let advice = "there is no queue on this filesystem: use another store";
            Finding::warning("order", "waiters are not served as they came", advice)
        };
        let detail = format!(
            "{}, at most {}",
            milliseconds(median),
            milliseconds(longest)
        );
        let latency = if longest < 1_000_000 {
            Finding::ok("wake-up", detail)
        } else {
            Finding::warning("wake-up", detail, "waiters poll here")
        };
        Ok(vec![order, latency])
    }
}
