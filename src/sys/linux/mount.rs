//! The mounted filesystem that a file is on (proc_pid_mountinfo(5)).

use std::os::fd::{AsFd, AsRawFd};

/// A line of `/proc/self/mountinfo`.
pub(super) struct Mount(String);

impl Mount {
    /// `None`: the system does not tell.
    pub(super) fn of(file: &impl AsFd) -> Option<Self> {
        let number = value_in(&info_of(file)?, "mnt_id:")?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mut lines = mounts.lines();
        let line = lines.find(|line| line.split(' ').next() == Some(&number))?;
        Some(Self(line.to_owned()))
    }

    /// Major and minor number of its device.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.0.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// What of its filesystem is mounted.
    pub(super) fn root(&self) -> Option<&str> {
        self.0.split(' ').nth(3)
    }

    /// Its type, such as `ext4` or `fuse.sshfs`.
    pub(super) fn filesystem(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once(" - ")?;
        rest.split(' ').next()
    }

    /// The user that mounted it, where another one than root may (mount.fuse3(8)).
    pub(super) fn mounted_by(&self) -> Option<u32> {
        let (_, rest) = self.0.split_once(" - ")?;
        let mut options = rest.split(' ').nth(2)?.split(',');
        options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// What the system says of an open file (proc_pid_fdinfo(5)).
pub(super) fn info_of(file: &impl AsFd) -> Option<String> {
    let fd = file.as_fd().as_raw_fd();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()
}

/// A value in such a text.
pub(super) fn value_in(info: &str, key: &str) -> Option<String> {
    let mut lines = info.lines();
    lines.find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
}
