//! Windows, from 10 on.
//!
//! | difference | consequence |
//! |---|---|
//! | file locks are mandatory | records are locked on a byte behind their content, so that `type`, `check` and other programs can read them |
//! | a lock belongs to the process that took it | a command does not inherit its wrapper's lock; it keeps the hold alive because its PID and start are on record before it runs |
//! | a directory cannot be locked | the guard is a file in it, which cannot be removed while a process has it open |
//! | no exchange of two names | a dead record is moved aside; where other programs create files (paths, foreign formats) a person has to decide |
//! | no signals | nothing is blocked; the console sends Ctrl-C and Ctrl-Break to the command itself |
//! | a file that another process has open cannot be removed, renamed or opened | such an operation is retried for half a second before it fails |

pub(crate) mod directory;
mod file;
mod owner;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod spawn;
pub(crate) mod start;
#[cfg(feature = "cli")]
pub(crate) mod stdio;
pub(crate) mod wait;
pub(crate) mod work;

/// The error of a call of the system, which has returned 0 if it has failed.
fn checked(returned: windows_sys::core::BOOL) -> std::io::Result<()> {
    if returned == 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
