//! Starts a process that is traced.
//!
//! By clone(2) as posix_spawn(3) does it: fork(2) would copy the tables of all the memory that an exploration fills,
//! which took half of its time.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use nix::unistd::Pid;

/// All that the new process needs, made before: it shares the memory of this one.
pub struct Start {
    program: CString,
    directory: CString,
    // What the pointers point to.
    _words: Vec<CString>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    output: RawFd,
    filter: Vec<libc::sock_filter>,
}

fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap()
}

/// Pointers with NULL behind them.
fn pointers(words: &[CString]) -> Vec<*const c_char> {
    let pointers = words.iter().map(|word| word.as_ptr());
    pointers.chain([std::ptr::null()]).collect()
}

impl Start {
    /// Only the program, the arguments, the directory and the environment of the command are used. It has no stdin.
    pub fn new(command: &Command, output: &File, filter: Vec<libc::sock_filter>) -> Self {
        let program = c_string(command.get_program());
        let directory = c_string(command.get_current_dir().unwrap().as_os_str());
        let own = std::iter::once(command.get_program());
        let mut words: Vec<CString> = own.chain(command.get_args()).map(c_string).collect();
        let variables = command.get_envs().filter_map(|(name, value)| {
            let mut variable = name.to_owned();
            variable.push("=");
            variable.push(value?);
            Some(c_string(&variable))
        });
        let variables: Vec<CString> = variables.collect();
        let (arguments, environment) = (pointers(&words), pointers(&variables));
        words.extend(variables);
        Self {
            program,
            directory,
            _words: words,
            arguments,
            environment,
            output: output.as_raw_fd(),
            filter,
        }
    }

    /// Starts it. It stops when it has executed its program.
    pub fn traced(&self) -> Pid {
        const STACK_BYTES: usize = 64 << 10;
        let mut stack = vec![0_u8; STACK_BYTES];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let own = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: this thread sleeps until the new process has its program or has ended, so its stack and what
        // `own` points to live for long enough. `execute` makes system calls only.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(STACK_BYTES).cast();
            libc::clone(execute, top, flags, own)
        };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Pid::from_raw(pid)
    }
}

extern "C" fn execute(start: *mut c_void) -> c_int {
    // SAFETY: `traced` sleeps meanwhile. Signals and descriptors are the new process's own.
    unsafe {
        let start = &*start.cast::<Start>();
        let program = libc::sock_fprog {
            len: start.filter.len() as u16,
            filter: start.filter.as_ptr().cast_mut(),
        };
        // Rust ignores it.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let is_ready = libc::dup2(nothing, 0) == 0
            && libc::dup2(start.output, 1) == 1
            && libc::dup2(start.output, 2) == 2
            && libc::chdir(start.directory.as_ptr()) == 0
            && libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0;
        if is_ready {
            libc::execve(
                start.program.as_ptr(),
                start.arguments.as_ptr(),
                start.environment.as_ptr(),
            );
        }
        libc::_exit(127)
    }
}
