//! Starting a command without a copy of the calling process's memory: the child borrows it until it
//! executes (clone(2), `CLONE_VM | CLONE_VFORK`). std's `Command` copies it as soon as anything is
//! to be done in the child, which costs a third of all that `run` costs.

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::children::wait_for_child;
use super::process::boottime;
use super::wait::pause;
#[cfg(feature = "cluster")]
use crate::sys::signal::restore_callers_dispositions;
use crate::sys::signal::{SignalMask, without_signals};
use crate::sys::spawn::BeforeExec;
use crate::sys::unix::checked;
use crate::sys::unix::process::how_child_ended;
use crate::sys::{HowEnded, Recording};

/// What execvp(3) searches where PATH is not set, as glibc does.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

const SHELL: &CStr = c"/bin/sh";

fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(io::Error::from)
}

fn variable(name: &OsStr, value: &OsStr) -> io::Result<CString> {
    text(&[name.as_bytes(), b"=", value.as_bytes()].concat())
}

/// A command, laid out for execve(2).
pub struct Program {
    /// Where it may be, in the order of PATH.
    places: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

/// A command that was started, to be waited for.
#[derive(Debug)]
pub struct Started {
    pid: libc::pid_t,
    ended: Option<ExitStatus>,
}

impl Program {
    /// A program, found by PATH like a shell finds it, and its arguments. It has the environment of the
    /// calling process. Laid out before a wait, so that it is started at once after it.
    ///
    /// # Errors
    /// A NUL in one of them.
    pub fn new(program: &OsStr, arguments: &[OsString]) -> io::Result<Self> {
        let arguments = std::iter::once(program)
            .chain(arguments.iter().map(OsString::as_os_str))
            .map(|argument| text(argument.as_bytes()))
            .collect::<io::Result<_>>()?;
        let environment = std::env::vars_os()
            .map(|(name, value)| variable(&name, &value))
            .collect::<io::Result<_>>()?;
        // An empty name is not found, wherever it is looked for.
        let places = if program.is_empty() || program.as_bytes().contains(&b'/') {
            vec![text(program.as_bytes())?]
        } else {
            let path = std::env::var_os("PATH");
            let path = path.as_deref().map_or(DEFAULT_PATH, OsStr::as_bytes);
            path.split(|byte| *byte == b':')
                .map(|directory| match directory {
                    [] => text(program.as_bytes()),
                    _ => text(&[directory, b"/", program.as_bytes()].concat()),
                })
                .collect::<io::Result<_>>()?
        };
        Ok(Self {
            places,
            arguments,
            environment,
        })
    }

    /// With these variables, in place of those with the same names; `None`: without it.
    ///
    /// # Errors
    /// A NUL in one of them.
    pub fn with(mut self, environment: &[(&str, Option<String>)]) -> io::Result<Self> {
        self.environment.retain(|old| {
            let name = old.to_bytes().split(|byte| *byte == b'=').next();
            environment
                .iter()
                .all(|(new, _)| name != Some(new.as_bytes()))
        });
        for (name, value) in environment {
            let Some(value) = value else { continue };
            let new = variable(OsStr::new(name), OsStr::new(value))?;
            self.environment.push(new);
        }
        Ok(self)
    }

    /// As it was given.
    pub fn name(&self) -> Cow<'_, str> {
        self.arguments
            .first()
            .map_or(Cow::Borrowed(""), |name| name.to_string_lossy())
    }

    /// Starts it. Its child puts itself on record, has the signals of `mask` blocked, and executes.
    pub(crate) fn start(&self, recording: Recording<'_>, mask: &SignalMask) -> io::Result<Started> {
        self.start_after(Some(BeforeExec::new(recording)?), mask)
    }

    /// Starts it as the child of a keeper, with which it ends. It stays in the process group of the keeper's
    /// wrapper, which the keeper leaves. It has the signals of `mask` blocked.
    #[cfg(feature = "cluster")]
    pub(crate) fn start_kept(&self, mask: &SignalMask) -> io::Result<Started> {
        super::keeper::begin_to_keep()?;
        let started = self.start_after(None, mask);
        super::keeper::leave_session();
        started
    }

    /// `recording`: `None` for a hold without a file, whose command is kept by a keeper.
    fn start_after(&self, recording: Option<BeforeExec>, mask: &SignalMask) -> io::Result<Started> {
        const STACK: usize = 64 * 1024;
        let record = recording.as_ref().map(|recording| recording.record);
        let mut plan = Plan {
            recording,
            // SAFETY: it only returns a number.
            #[cfg(feature = "cluster")]
            parent: unsafe { libc::getpid() },
            mask,
            places: self.places.iter().map(|place| place.as_ptr()).collect(),
            arguments: pointers(&self.arguments),
            script: Vec::with_capacity(self.arguments.len() + 2),
            environment: pointers(&self.environment),
            failed: NOT_SHARED,
        };
        // Not filled: to touch all of its pages would be a tenth of what the start costs.
        let mut stack = Vec::<u8>::with_capacity(STACK);
        // A handler must not run in the child, on memory that is ours.
        let pid = without_signals(|| {
            // SAFETY: the child runs on its own stack, which grows downwards from an aligned end, until
            // it executes or exits; only then does this thread go on, so that everything it is given
            // outlives it. It allocates nothing and makes only async-signal-safe calls.
            checked(unsafe {
                let end = stack.as_mut_ptr().add(STACK);
                let end = end.sub(end as usize % 16);
                libc::clone(
                    in_child,
                    end.cast::<c_void>(),
                    libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                    (&raw mut plan).cast::<c_void>(),
                )
            })
        })??;
        let mut started = Started { pid, ended: None };
        let failed = match plan.failed {
            NOT_SHARED => record.map_or(0, |record| failure_of_copy(record, &started)),
            failed => failed,
        };
        if failed != 0 {
            let _ = started.wait();
            return Err(io::Error::from_raw_os_error(failed));
        }
        Ok(started)
    }
}

/// What a child never writes to its plan. An emulator (qemu-user) gives the child a copy of the memory,
/// and does not wait for it.
const NOT_SHARED: c_int = -1;

/// Where the offset of the record is left by a child that could not execute: far behind any record. The
/// offset is shared even where the memory is not.
const FAILED_AT: i64 = 1 << 40;

/// Waits until a child with a copy of the memory has executed or ended; why it could not execute.
fn failure_of_copy(record: RawFd, child: &Started) -> c_int {
    /// How long that may take.
    const LIMIT: Duration = Duration::from_secs(5);
    // Of a thread: an emulator shows its own process another one.
    let command_line =
        |pid| std::fs::read(format!("/proc/{pid}/task/{pid}/cmdline")).unwrap_or_default();
    let own = command_line(std::process::id());
    let deadline = boottime() + LIMIT;
    while matches!(child.how_ended(), Ok(None)) {
        let shown = command_line(child.id());
        // One that has ended has none.
        if (!shown.is_empty() && shown != own) || boottime() >= deadline {
            return 0;
        }
        let _ = pause(Duration::from_millis(1));
    }
    // SAFETY: no memory is involved.
    let offset = unsafe { libc::lseek64(record, 0, libc::SEEK_CUR) };
    c_int::try_from(offset - FAILED_AT).map_or(0, |failed| failed.max(0))
}

/// What the child needs, laid out before, since it must not allocate.
struct Plan<'a> {
    recording: Option<BeforeExec>,
    #[cfg(feature = "cluster")]
    parent: libc::pid_t,
    mask: &'a SignalMask,
    places: Vec<*const c_char>,
    arguments: Vec<*const c_char>,
    /// Room for the arguments of a shell that runs a file which is no program.
    script: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    failed: c_int,
}

/// With a null at the end, as execve(2) wants them.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts
        .iter()
        .map(|text| text.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

extern "C" fn in_child(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `start`, whose thread sleeps until we are done with it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    plan.failed = 0;
    // Dispositions first: what is waiting comes with the mask, and is for the command.
    let prepared = match &mut plan.recording {
        Some(recording) => recording.run(),
        #[cfg(feature = "cluster")]
        None => super::keeper::leash(plan.parent, rustix::process::Signal::KILL)
            .map(|()| restore_callers_dispositions()),
        #[cfg(not(feature = "cluster"))]
        None => Ok(()),
    };
    plan.failed = match prepared.and_then(|()| plan.mask.set()) {
        Ok(()) => plan.execute(),
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    if let Some(record) = plan.recording.as_ref().map(|recording| recording.record) {
        // SAFETY: no memory is involved. Records are read and written at given places, so the offset is
        // free for use.
        unsafe { libc::lseek64(record, FAILED_AT + i64::from(plan.failed), libc::SEEK_SET) };
    }
    // SAFETY: ends the child alone; nothing of ours is run at its exit.
    unsafe { libc::_exit(127) }
}

impl Plan<'_> {
    /// Returns only on failure, with what execvp(3) would have said.
    fn execute(&mut self) -> c_int {
        let mut denied = false;
        for place in &self.places {
            // SAFETY: texts that end with NUL and lists that end with null, all of which live.
            let error = unsafe {
                libc::execve(*place, self.arguments.as_ptr(), self.environment.as_ptr());
                *libc::__errno_location()
            };
            match error {
                libc::EACCES => denied = true,
                libc::ENOENT
                | libc::ENOTDIR
                | libc::ENAMETOOLONG
                | libc::ENODEV
                | libc::ESTALE
                | libc::ETIMEDOUT => {}
                libc::ENOEXEC => {
                    self.script.clear();
                    self.script.extend([SHELL.as_ptr(), *place]);
                    self.script.extend(self.arguments.iter().skip(1));
                    // SAFETY: as above; there was room for it all, so that nothing was allocated.
                    unsafe {
                        libc::execve(
                            SHELL.as_ptr(),
                            self.script.as_ptr(),
                            self.environment.as_ptr(),
                        );
                        return *libc::__errno_location();
                    }
                }
                error => return error,
            }
        }
        if denied { libc::EACCES } else { libc::ENOENT }
    }
}

impl Started {
    /// Its pid, its own until it has been waited for.
    pub fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Whether it has ended, and how. Its PID stays its own until `wait`. Other children that have ended are
    /// reaped: this is for a process that has no other children than the orphans that it
    /// [adopts](crate::sys::work::adopt_orphans).
    ///
    /// # Errors
    /// Those of waitid(2).
    pub fn how_ended(&self) -> io::Result<Option<HowEnded>> {
        match self.ended {
            Some(status) if status.signal().is_some() => Ok(Some(HowEnded::Killed)),
            Some(_) => Ok(Some(HowEnded::Exited)),
            None => how_child_ended(self.id()),
        }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let ended = match self.ended {
            Some(ended) => ended,
            None => wait_for_child(self.pid)?,
        };
        self.ended = Some(ended);
        Ok(ended)
    }
}
