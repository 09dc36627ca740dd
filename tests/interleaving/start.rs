//! Starts processes that are traced.
//!
//! The filter of their calls is installed once, in a process from which the others have it: the kernel translates each
//! filter anew, and after some millions of them one hung. That process makes them by clone(2) as posix_spawn(3) does
//! it: fork(2) would copy the tables of all the memory that an exploration fills, which took half of its time.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use nix::errno::Errno;
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
    nothing: File,
}

/// Starts processes for the thread that made it, whose children they are.
pub struct Launcher {
    requests: UnixDatagram,
    own: Box<Own>,
    _stack: Vec<u8>,
}

/// What its process has.
struct Own {
    requests: UnixDatagram,
    filter: Vec<libc::sock_filter>,
    /// Of the process that it starts, until that has executed its program.
    stack: Vec<u8>,
}

const STACK_BYTES: usize = 64 << 10;

/// The flag of clone(2) by which the filter knows a call of the launcher.
pub const OF_LAUNCHER: u32 = libc::CLONE_PARENT.cast_unsigned();

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
    pub fn new(command: &Command, output: &File) -> Self {
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
            nothing: File::open("/dev/null").unwrap(),
        }
    }
}

impl Launcher {
    pub fn new(filter: Vec<libc::sock_filter>) -> Self {
        let (requests, others) = UnixDatagram::pair().unwrap();
        let mut own = Box::new(Own {
            requests: others,
            filter,
            stack: vec![0; STACK_BYTES],
        });
        let mut stack = vec![0_u8; STACK_BYTES];
        // Without a signal at its end: waitpid(2) without __WALL does not wait for it.
        let flags = libc::CLONE_VM | libc::CLONE_FILES;
        // SAFETY: the stack and what `own` points to live until the new process has ended, see `drop`.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(STACK_BYTES).cast();
            libc::clone(launch, top, flags, (&raw mut *own).cast())
        };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Self {
            requests,
            own,
            _stack: stack,
        }
    }

    /// Starts a process. It stops when it has executed its program.
    pub fn start(&self, start: &Start) -> Pid {
        let address = std::ptr::from_ref(start).addr();
        self.requests.send(&address.to_ne_bytes()).unwrap();
        let mut pid = [0; 4];
        self.requests.recv(&mut pid).unwrap();
        let pid = i32::from_ne_bytes(pid);
        assert!(pid > 0, "{pid}");
        Pid::from_raw(pid)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.own
            .requests
            .shutdown(std::net::Shutdown::Both)
            .unwrap();
        let flags = libc::__WCLONE | libc::__WNOTHREAD;
        loop {
            // SAFETY: no pointers.
            let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), flags) };
            // Its stack is in use until then.
            if waited == -1 && Errno::last() != Errno::EINTR {
                return;
            }
        }
    }
}

extern "C" fn launch(own: *mut c_void) -> c_int {
    // SAFETY: `Launcher` has it until this process has ended. All calls are ones that the filter lets pass. It shares
    // errno with the thread of the launcher, so it reads none, and while a call could fail, that thread waits.
    unsafe {
        let own = &mut *own.cast::<Own>();
        let program = libc::sock_fprog {
            len: own.filter.len() as u16,
            filter: own.filter.as_ptr().cast_mut(),
        };
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let is_ready = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0;
        let requests = own.requests.as_raw_fd();
        let mut address = 0_usize;
        let size = size_of::<usize>();
        let request = libc::iovec {
            iov_base: (&raw mut address).cast(),
            iov_len: size,
        };
        // A traced process stops before recv(2) and send(2).
        while libc::readv(requests, &raw const request, 1) == size.cast_signed() {
            let pid = if is_ready {
                let flags = libc::CLONE_PARENT | libc::CLONE_VM | libc::CLONE_VFORK;
                let top = own.stack.as_mut_ptr().add(STACK_BYTES).cast();
                libc::clone(execute, top, flags, address as *mut c_void)
            } else {
                -1
            };
            let answer = libc::iovec {
                iov_base: (&raw const pid).cast_mut().cast(),
                iov_len: size_of::<c_int>(),
            };
            libc::writev(requests, &raw const answer, 1);
        }
        libc::syscall(libc::SYS_exit, 0);
    }
    0
}

extern "C" fn execute(start: *mut c_void) -> c_int {
    // SAFETY: the thread of the launcher waits meanwhile. Signals and descriptors are the new process's own.
    unsafe {
        let start = &*start.cast::<Start>();
        // Rust ignores it.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let is_ready = libc::dup2(start.nothing.as_raw_fd(), 0) == 0
            && libc::dup2(start.output, 1) == 1
            && libc::dup2(start.output, 2) == 2
            && libc::chdir(start.directory.as_ptr()) == 0
            && libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0;
        if is_ready {
            libc::execve(
                start.program.as_ptr(),
                start.arguments.as_ptr(),
                start.environment.as_ptr(),
            );
        }
        libc::syscall(libc::SYS_exit, 127);
    }
    127
}
