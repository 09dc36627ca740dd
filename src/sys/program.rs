//! A command that is started by std's `Command`, where there is no quicker way.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Command, ExitStatus};

use crate::sys::signal::SignalMask;
use crate::sys::system::start::start;
use crate::sys::{HowEnded, Recording};

/// A command and its environment.
#[derive(Debug)]
pub struct Program(Command);

/// A command that was started, to be waited for.
#[derive(Debug)]
pub struct Started {
    child: Child,
}

impl Program {
    /// A program, found by PATH like a shell finds it, and its arguments. It has the environment of the
    /// calling process.
    ///
    /// # Errors
    /// None: a NUL in one of them is found when it is started.
    pub fn new(program: &OsStr, arguments: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(Self(command))
    }

    /// With these variables, in place of those with the same names; `None`: without it.
    ///
    /// # Errors
    /// As [`Program::new`].
    pub fn with(mut self, environment: &[(&str, Option<String>)]) -> io::Result<Self> {
        for (name, value) in environment {
            match value {
                Some(value) => self.0.env(name, value),
                None => self.0.env_remove(name),
            };
        }
        Ok(self)
    }

    /// As it was given.
    pub fn name(&self) -> Cow<'_, str> {
        self.0.get_program().to_string_lossy()
    }

    /// Starts it. Its child puts itself on record, has the signals of `mask` blocked, and executes.
    pub(crate) fn start(
        &mut self,
        recording: Recording<'_>,
        mask: &SignalMask,
    ) -> io::Result<Started> {
        let child = start(&mut self.0, recording, *mask)?;
        Ok(Started { child })
    }
}

impl Started {
    /// Its pid, its own until it has been waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    #[cfg(windows)]
    pub(super) fn child(&self) -> &Child {
        &self.child
    }

    /// Whether it has ended, and how. Its PID stays its own until `wait`. Other children that have ended are
    /// reaped: this is for a process that has no other children than the orphans that it
    /// [adopts](crate::sys::work::adopt_orphans).
    ///
    /// # Errors
    /// Those of waitid(2), or of WaitForSingleObject.
    pub fn how_ended(&mut self) -> io::Result<Option<HowEnded>> {
        #[cfg(unix)]
        return crate::sys::unix::process::how_child_ended(self.id());
        // The handle keeps the PID.
        #[cfg(windows)]
        return Ok(self.child.try_wait()?.map(|_| HowEnded::Exited));
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Those of waitpid(2), or of WaitForSingleObject.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}
