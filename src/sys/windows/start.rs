//! Starting a command for the command-line tool, which wants to know when it ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use windows_sys::Win32::System::Threading::{INFINITE, WaitForSingleObject};

use super::process::{open, raw};
use super::signal::{SIGCHLD, SignalMask, add};
use super::spawn::spawn;
use crate::identity::Pid;
use crate::record::CommandSlot;

/// A command and its environment.
#[derive(Debug)]
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    name: String,
}

/// A command that was started, to be waited for.
#[derive(Debug)]
pub struct Started {
    child: Child,
}

impl Program {
    /// A program, found by PATH, its arguments, and what its environment has beyond that of the
    /// calling process.
    ///
    /// # Errors
    /// None.
    pub fn new(
        program: &OsStr,
        arguments: &[OsString],
        environment: &[(&str, String)],
    ) -> io::Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            name: program.to_string_lossy().into_owned(),
        })
    }

    /// As it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "it is no trifle elsewhere"
    )]
    pub(crate) fn start(
        &self,
        record: &File,
        path: &Path,
        slot: Option<CommandSlot>,
        inherit: bool,
        _mask: &SignalMask,
    ) -> io::Result<Started> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = spawn(&mut command, record, path, slot, inherit)?;
        tell_of_the_end(child.id());
        Ok(Started { child })
    }
}

/// Puts the end of a process into the queue of signals. Without it the supervisor looks each second.
fn tell_of_the_end(pid: u32) {
    let Some(process) = Pid::new(pid).and_then(|pid| open(pid).ok()) else {
        return;
    };
    let _ = std::thread::Builder::new().spawn(move || {
        // SAFETY: the handle is open, and may be waited on.
        unsafe { WaitForSingleObject(raw(&process), INFINITE) };
        add(SIGCHLD);
    });
}

impl Started {
    /// Its pid, its own until it has been waited for.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn child(&self) -> &Child {
        &self.child
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Those of WaitForSingleObject.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Those of WaitForSingleObject.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}
