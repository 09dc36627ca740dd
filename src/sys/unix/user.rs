//! Users: their names, and what the caller may do to them.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;
use rustix::process::test_kill_process;

use crate::identity::Pid;

/// Whether the caller may signal a process. Sends no signal.
pub(crate) fn may_signal(pid: Pid) -> bool {
    rustix::process::Pid::from_raw(pid.get().cast_signed())
        .is_some_and(|pid| test_kill_process(pid) != Err(Errno::PERM))
}

/// The name of a user, or the number of one that has none.
#[cold]
#[inline(never)]
pub(crate) fn user_name(uid: u32) -> String {
    /// Room for an entry of the user database. Those of large directories are longer (getpwuid_r(3)).
    const ROOM: usize = 16 * 1024;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut text = vec![0_u8; ROOM];
    let mut found = ptr::null_mut();
    // SAFETY: the places are ours, and as long as the length says. What is found points into them.
    let name = unsafe {
        let failed = libc::getpwuid_r(
            uid,
            entry.as_mut_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
            &raw mut found,
        );
        if failed != 0 || found.is_null() {
            None
        } else {
            let name = CStr::from_ptr((*found).pw_name);
            Some(name.to_string_lossy().into_owned())
        }
    };
    name.unwrap_or_else(|| uid.to_string())
}
