//! Whom a file belongs to.

use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Security::{
    EqualSid, GetKernelObjectSecurity, GetSecurityDescriptorOwner, GetTokenInformation,
    IsWellKnownSid, OWNER_SECURITY_INFORMATION, PSID, TOKEN_QUERY, TOKEN_USER, TokenUser,
    WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::checked;

/// Room for a descriptor with an owner alone, or for a user: a SID has at most 68 bytes
/// (`SECURITY_MAX_SID_SIZE`). Aligned for the structures in front of it.
type Room = [u64; 32];

/// Whether a file belongs to the user of this process, to the system, or to the administrators, who may
/// end every process.
pub(super) fn is_own_or_of_an_administrator(file: &File) -> io::Result<bool> {
    let mut room: Room = [0; 32];
    let size = u32::try_from(size_of::<Room>()).unwrap_or(0);
    let descriptor = room.as_mut_ptr().cast();
    let mut needed = 0;
    let mut owner: PSID = std::ptr::null_mut();
    let mut is_default = 0;
    // SAFETY: the handle is open, and the buffer is ours and as long as is said.
    unsafe {
        checked(GetKernelObjectSecurity(
            file.as_raw_handle(),
            OWNER_SECURITY_INFORMATION,
            descriptor,
            size,
            &raw mut needed,
        ))?;
        let is_default = &raw mut is_default;
        checked(GetSecurityDescriptorOwner(
            descriptor,
            &raw mut owner,
            is_default,
        ))?;
    }
    if owner.is_null() {
        return Ok(false);
    }
    let mut own: Room = [0; 32];
    fill_with_own_user(&mut own)?;
    // SAFETY: the buffer begins with a TOKEN_USER, which points into it; the owner points into the other
    // one. Both live.
    Ok(unsafe {
        let user = own.as_ptr().cast::<TOKEN_USER>();
        EqualSid(owner, (*user).User.Sid) != 0
            || IsWellKnownSid(owner, WinBuiltinAdministratorsSid) != 0
            || IsWellKnownSid(owner, WinLocalSystemSid) != 0
    })
}

fn fill_with_own_user(room: &mut Room) -> io::Result<()> {
    let size = u32::try_from(size_of::<Room>()).unwrap_or(0);
    let mut needed = 0;
    let mut token: HANDLE = std::ptr::null_mut();
    // SAFETY: a token that was opened is ours to close, and the buffer is as long as is said.
    unsafe {
        checked(OpenProcessToken(
            GetCurrentProcess(),
            TOKEN_QUERY,
            &raw mut token,
        ))?;
        let token = OwnedHandle::from_raw_handle(token);
        checked(GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            room.as_mut_ptr().cast(),
            size,
            &raw mut needed,
        ))
    }
}
