//! Starting a command, by std's `Command`. That copies the calling process (fork(2)): there is no
//! clone(2) here whose child could borrow its memory and do something before it executes.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use crate::record::CommandSlot;
use crate::sys::signal::SignalMask;
use crate::sys::spawn::spawn;

/// A command, laid out for execve(2).
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    /// Beyond that of the calling process.
    environment: Vec<(String, String)>,
    name: String,
}

/// A command that was started, to be waited for.
#[derive(Debug)]
pub struct Started {
    child: Child,
}

impl Program {
    /// A program, found by PATH like a shell finds it, its arguments, and what its environment has
    /// beyond that of the calling process.
    ///
    /// # Errors
    /// A NUL in one of them.
    pub fn new(
        program: &OsStr,
        arguments: &[OsString],
        environment: &[(&str, String)],
    ) -> io::Result<Self> {
        let texts = std::iter::once(program.as_bytes())
            .chain(arguments.iter().map(|argument| argument.as_bytes()))
            .chain(environment.iter().map(|(name, _)| name.as_bytes()))
            .chain(environment.iter().map(|(_, value)| value.as_bytes()));
        for text in texts {
            CString::new(text)?;
        }
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

    /// Starts it. Its child has the signals of `mask` blocked, fills `slot` of `record`, looks whether
    /// `path` still leads there, keeps the descriptor if `inherit`, and executes. std's `Command`
    /// gives it the default of SIGPIPE back, which Rust's runtime ignores.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "128 bytes on Linux")]
    pub(crate) fn start(
        &self,
        record: &File,
        path: &Path,
        slot: Option<CommandSlot>,
        inherit: bool,
        mask: &SignalMask,
    ) -> io::Result<Started> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mask = *mask;
        // What is waiting comes then, and is for the command: the handler of a queue sees that it
        // runs in a child, and exec gives what is caught its default back.
        // SAFETY: pthread_sigmask(2) is async-signal-safe (sigaction(2)), and nothing else is called.
        unsafe { command.pre_exec(move || mask.set()) };
        let before = SignalMask::block_all()?;
        let child = spawn(&mut command, record, path, slot, inherit);
        // The command has been started, whatever becomes of this: to fail now would give its lock away.
        let _ = before.restore();
        Ok(Started { child: child? })
    }
}

impl Started {
    /// Its pid, its own until it has been waited for.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}
