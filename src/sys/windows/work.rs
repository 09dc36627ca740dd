//! The processes of the work of a hold: a job object of the wrapper.
//!
//! All that the command starts is in the job. If the wrapper is killed, the system closes the job and
//! ends what is in it. A command that ends by itself leaves its processes behind, as on other systems.

use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, FromRawHandle, OwnedHandle};
use std::process::Child;
use std::sync::Mutex;

use windows_sys::Win32::Foundation::ERROR_MORE_DATA;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectBasicProcessIdList, JobObjectExtendedLimitInformation, QueryInformationJobObject,
    SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::PROCESS_TERMINATE;

use super::checked;
use super::file::is_code;
use super::process::{all, created, has_ended, open_to, terminate};
use crate::identity::{Pid, ProcessId};
use crate::sys::locked;
pub use crate::sys::not_linux::adopt_orphans;
pub(crate) use crate::sys::not_linux::{
    command_holds, has_open, own_children, visit_list, wait_for_any,
};
use crate::sys::work::{Each, Look, Marks};

/// The job of the command that this process supervises.
static OWN_JOB: Mutex<Option<Job>> = Mutex::new(None);

/// A job: what is in it ends when its last handle is closed, unless it is let go.
pub(super) struct Job(OwnedHandle);

impl Job {
    /// `with_descendants`: what the processes in it start is in it, too.
    pub(super) fn that_ends_with_us(with_descendants: bool) -> Option<Self> {
        // SAFETY: no name and no security are asked for; the handle is ours if it is not null.
        let job = unsafe {
            let job = CreateJobObjectW(std::ptr::null(), std::ptr::null());
            if job.is_null() {
                return None;
            }
            Self(OwnedHandle::from_raw_handle(job))
        };
        let breakaway = if with_descendants {
            0
        } else {
            JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK
        };
        job.limit(JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | breakaway)?;
        Some(job)
    }

    fn limit(&self, flags: u32) -> Option<()> {
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        limits.BasicLimitInformation.LimitFlags = flags;
        // SAFETY: the handle is open, and the place lives and its size is given.
        checked(unsafe {
            SetInformationJobObject(
                self.0.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                (&raw const limits).cast(),
                u32::try_from(size_of_val(&limits)).unwrap_or(0),
            )
        })
        .ok()
    }

    /// `None`: it is in another job that no other can be nested in (before Windows 8).
    pub(super) fn take(&self, child: &Child) -> Option<()> {
        // SAFETY: both handles are open.
        checked(unsafe { AssignProcessToJobObject(self.0.as_raw_handle(), child.as_raw_handle()) })
            .ok()
    }

    /// Its processes outlive it.
    pub(super) fn let_go(self) {
        if self.limit(JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK).is_none() {
            // Unless it is closed, it ends its processes only when this process ends.
            std::mem::forget(self);
        }
    }

    /// Keeps it until the work is over.
    pub(super) fn keep(self) {
        *locked(&OWN_JOB) = Some(self);
    }

    fn processes(&self) -> Vec<Pid> {
        // JOBOBJECT_BASIC_PROCESS_ID_LIST: two counters of 32 bits, and numbers as wide as a pointer.
        const HEADER: usize = 8 / size_of::<usize>();
        let mut room = 64;
        loop {
            let mut numbers = vec![0_usize; HEADER + room];
            let size = u32::try_from(size_of_val(numbers.as_slice())).unwrap_or(u32::MAX);
            // SAFETY: the handle is open, and the size is that of the buffer, which is ours.
            let told = checked(unsafe {
                QueryInformationJobObject(
                    self.0.as_raw_handle(),
                    JobObjectBasicProcessIdList,
                    numbers.as_mut_ptr().cast(),
                    size,
                    std::ptr::null_mut(),
                )
            });
            let is_cut = told.is_err_and(|error| is_code(&error, ERROR_MORE_DATA));
            if is_cut && room < 1 << 20 {
                room *= 4;
                continue;
            }
            let pids = numbers.into_iter().skip(HEADER);
            return pids
                .filter_map(|number| Pid::new(u32::try_from(number).ok()?))
                .collect();
        }
    }
}

/// Lets the processes live that a command has left behind, once it has ended by itself. They would
/// otherwise end with this process.
pub fn let_work_go() {
    if let Some(job) = locked(&OWN_JOB).take() {
        job.let_go();
    }
}

/// Returns whether the work of this process's command can be ended as a whole. `false` on old versions of
/// Windows, inside a job in which no other can be nested.
pub fn work_is_contained() -> bool {
    locked(&OWN_JOB).is_some()
}

/// A live process of the work, which keeps its identity as long as this exists.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) process: ProcessId,
    handle: OwnedHandle,
}

impl Target {
    fn open(pid: Pid) -> Option<Self> {
        let handle = open_to(PROCESS_TERMINATE, pid).ok()?;
        let process = ProcessId {
            pid,
            start: created(&handle),
        };
        (!has_ended(&handle)).then_some(Self { process, handle })
    }

    /// The same process, if it is still there.
    pub(in crate::sys) fn find(process: ProcessId) -> Option<Self> {
        Self::open(process.pid).filter(|target| process.is_same(target.process))
    }

    pub(in crate::sys) fn is_alive(&self) -> bool {
        !has_ended(&self.handle)
    }

    /// Ends a wrapper. The system then closes its job.
    pub(in crate::sys) fn tell_that_broken(&self, _hold: u64) -> io::Result<()> {
        // As the wrapper exits that has lost its lock.
        const LOST: u32 = 8;
        terminate(self.handle.as_handle(), LOST)
    }

    always! {
        /// It looks by itself, once a second.
        pub(in crate::sys) tell_to_look(&self) -> io::Result<()> = Ok(());
        /// Users have no numbers.
        pub(in crate::sys) users(&self) -> Option<[u32; 2]> = None;
    }

    /// Ends it as if by TERM: there is no way to ask it to.
    pub(crate) fn ask_to_end(&self) -> io::Result<()> {
        self.end(128 + 15)
    }

    /// Ends it as if by KILL.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.end(128 + 9)
    }

    fn end(&self, code: u32) -> io::Result<()> {
        match terminate(self.handle.as_handle(), code) {
            Err(error) if self.is_alive() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Calls `each` for every live process of the work.
pub(crate) fn visit(marks: &mut Marks, _command: Option<Pid>, each: &mut Each<'_>) -> Look {
    let job = locked(&OWN_JOB);
    if let Some(job) = job.as_ref().filter(|_| marks.are_of_own_command()) {
        let mut look = Look::Nothing;
        for target in job.processes().into_iter().filter_map(Target::open) {
            look = Look::Left;
            each(&target);
        }
        return look;
    }
    drop(job);
    visit_list(all(), marks, |_| false, each)
}
