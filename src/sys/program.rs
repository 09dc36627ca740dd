//! A command that is started by std's `Command`, where there is no quicker way.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::process::{Child, Command, ExitStatus};

use crate::sys::signal::SignalMask;
use crate::sys::system::start::start;
use crate::sys::{HowEnded, Recording};

/// A command and its environment.
#[derive(Debug)]
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    /// Beyond that of the calling process.
    environment: Vec<(String, Option<String>)>,
    name: String,
}

/// A command that was started, to be waited for.
#[derive(Debug)]
pub struct Started {
    child: Child,
}

fn refuse_nul(text: &OsStr) -> io::Result<()> {
    CString::new(text.as_encoded_bytes())?;
    Ok(())
}

impl Program {
    /// A program, found by PATH like a shell finds it, and its arguments. It has the environment of the
    /// calling process.
    ///
    /// # Errors
    /// A NUL in one of them.
    pub fn new(program: &OsStr, arguments: &[OsString]) -> io::Result<Self> {
        refuse_nul(program)?;
        arguments
            .iter()
            .try_for_each(|argument| refuse_nul(argument))?;
        Ok(Self {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
            environment: Vec::new(),
            name: program.to_string_lossy().into_owned(),
        })
    }

    /// With these variables, in place of those with the same names; `None`: without it.
    ///
    /// # Errors
    /// A NUL in one of them.
    pub fn with(mut self, environment: &[(&str, Option<String>)]) -> io::Result<Self> {
        for (name, value) in environment {
            refuse_nul(OsStr::new(name))?;
            refuse_nul(OsStr::new(value.as_deref().unwrap_or_default()))?;
            self.environment.push(((*name).to_owned(), value.clone()));
        }
        Ok(self)
    }

    /// As it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it. Its child puts itself on record, has the signals of `mask` blocked, and executes.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "128 bytes on Linux")]
    pub(crate) fn start(&self, recording: Recording<'_>, mask: &SignalMask) -> io::Result<Started> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = start(&mut command, recording, *mask)?;
        Ok(Started { child })
    }
}

impl Started {
    /// Its pid, its own until it has been waited for.
    #[must_use]
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
