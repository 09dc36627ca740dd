//! Code for all Unixes.

mod alarm;
pub(crate) mod directory;
pub(in crate::sys) mod file;
#[cfg(feature = "cli")]
pub(crate) mod keys;
pub(in crate::sys) mod process;
mod sharing;
pub(crate) mod signal;
pub(in crate::sys) mod signal_queue;
pub(crate) mod spawn;
#[cfg(feature = "cli")]
pub(crate) mod stdio;
pub(in crate::sys) mod wait;
pub(in crate::sys) mod work;

/// What a call of the C library has returned, or its error, of which −1 tells.
pub(in crate::sys) fn checked<T: From<i8> + PartialEq>(returned: T) -> std::io::Result<T> {
    if returned == T::from(-1) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(returned)
}
