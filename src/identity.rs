//! The identity of a process: PID, start time, boot, machine and PID namespace.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process ID that can name a process: 1 to 2³¹ − 1. Zero, which kill(2) takes for a whole
/// process group, and negative numbers are not values of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Pid(i32);

impl Pid {
    /// `None` for 0 and for what no process can have.
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
    pub const fn get(self) -> u32 {
        self.0.cast_unsigned()
    }
}

impl TryFrom<u32> for Pid {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        Self::new(number).ok_or_else(|| format!("{number} is not a process ID"))
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct BootId {
    /// `/proc/sys/kernel/random/boot_id` (random(4)).
    pub id: String,
    /// Another file is mounted over it, as some containers do. Then a different id does not prove
    /// a different boot.
    pub masked: bool,
}

/// A process that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its PID, in the PID namespace of the record.
    pub pid: Pid,
    /// Its start in ticks since boot, without the offset of a time namespace. `None`: not known, so
    /// that a reused PID cannot be noticed.
    pub start: Option<u64>,
}

impl ProcessId {
    /// A process of which no more is known than its PID.
    pub(crate) fn by_pid_alone(pid: Pid) -> Self {
        Self { pid, start: None }
    }

    /// Whether the process that now has this PID is another one, by its start. A difference of one
    /// tick proves nothing: a time namespace shifts starts by fractions of a tick.
    pub(crate) fn started_at_another_time(self, start: Option<u64>) -> bool {
        are_different_starts(self.start, start)
    }

    /// Whether a process that was seen now is this one, as far as can be told.
    pub(crate) fn is_same(self, seen: Self) -> bool {
        self.pid == seen.pid && !self.started_at_another_time(seen.start)
    }
}

/// Whether both starts are known and differ, by more than the tick that proves nothing.
pub(crate) fn are_different_starts(one: Option<u64>, other: Option<u64>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one.abs_diff(other) > 1)
}

/// What tells a PID namespace, or an instance, from an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Incarnation {
    /// The start of the first process of the PID namespace, in ticks since boot: numbers of namespaces are used
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_start: Option<u64>,
    /// The name of the instance, as the operator says: there is at most one of that name at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// Where and when a record was written, as far as the writer knew. A `None` proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// Start of the process that wrote the record, in ticks since boot.
    pub start: Option<u64>,
    /// The boot.
    pub boot: Option<BootId>,
    /// A digest of the machine's id (machine-id(5)), the same after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The PID namespace, by the inode of `/proc/self/ns/pid`.
    pub pid_namespace: Option<u64>,
    /// What tells it from one with the same number. Only in a container, and if there is an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Box<Incarnation>>,
    /// `CLOCK_BOOTTIME` in milliseconds when the lock was acquired, as outside any time namespace.
    pub acquired_boottime_ms: u64,
    /// Device of the store directory.
    pub store_device: u64,
    /// Inode of the store directory.
    pub store_inode: u64,
}
