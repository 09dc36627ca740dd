//! Who a process is: pid, start, boot and pid namespace, and what each of them proves.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process id that can name a process: 1 to 2³¹ − 1. Zero, which would address a whole process
/// group, and negative numbers do not exist as values of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Pid(i32);

impl Pid {
    /// `None` for 0 and for what no Linux process can have.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 || number > i32::MAX as u32 {
            return None;
        }
        Some(Self(number.cast_signed()))
    }

    /// The calling process.
    #[must_use]
    pub fn of_self() -> Self {
        Self::new(std::process::id()).unwrap_or(Self(1))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.cast_unsigned()
    }
}

impl TryFrom<u32> for Pid {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        Self::new(number).ok_or_else(|| format!("{number} is no process id"))
    }
}

impl From<Pid> for u32 {
    fn from(pid: Pid) -> Self {
        pid.get()
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One run of the machine's kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootId {
    /// `/proc/sys/kernel/random/boot_id` (random(4)).
    pub id: String,
    /// Something was mounted over that file, as containers do: then another id is not another
    /// boot.
    pub masked: bool,
}

/// A process that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its pid, in the pid namespace of the record.
    pub pid: Pid,
    /// Its start in ticks since boot, without the shift of a time namespace. `None`: not known,
    /// and then a pid that was given to another process cannot be told from the same one.
    pub start: Option<u64>,
}

/// Where and when a record was written, as far as the writer could know. What is `None` proves
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Start of the process in `pid` of the record, in ticks since boot.
    pub start: Option<u64>,
    /// The boot.
    pub boot: Option<BootId>,
    /// The pid namespace, by the inode of `/proc/self/ns/pid`.
    pub pid_namespace: Option<u64>,
    /// `CLOCK_BOOTTIME` in milliseconds when the lock was acquired, as outside any time namespace.
    pub acquired_boottime_ms: u64,
    /// Device of the store directory.
    pub store_device: u64,
    /// Inode of the store directory.
    pub store_inode: u64,
}
