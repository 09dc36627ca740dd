//! Stores that several users share: a group's, and one for everybody. As root, with two ordinary users.

mod access;
mod signals;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output};

use User::{Daemon, Nobody, Root};
use serde_json::Value;

use crate::harness::{TestEnv, output, wait_until};

/// The group of the group's store. The ordinary users belong to it.
pub(super) const GROUP: u32 = 4400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Root,
    Daemon,
    Nobody,
}

impl User {
    pub(super) fn id(self) -> u32 {
        match self {
            Root => 0,
            Daemon => 1,
            Nobody => 65534,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Root => "root",
            Daemon => "daemon",
            Nobody => "nobody",
        }
    }
}

/// A store of this mode, and a directory that each user can work in.
pub(super) struct Place {
    pub(super) env: TestEnv,
    pub(super) umask: &'static str,
}

impl Place {
    pub(super) fn new(mode: u32, umask: &'static str) -> Self {
        let env = TestEnv::new();
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(env.root.path(), open).unwrap();
        fs::create_dir(env.store()).unwrap();
        chown(env.store(), None, Some(GROUP)).unwrap();
        fs::set_permissions(env.store(), fs::Permissions::from_mode(mode)).unwrap();
        Self { env, umask }
    }

    pub(super) fn command(&self, user: User, words: &str) -> Command {
        let mut command = self.env.command("setpriv");
        let id = user.id().to_string();
        let script = format!("umask {}; {words}", self.umask);
        command
            .args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--groups",
                &GROUP.to_string(),
            ])
            .args(["sh", "-c", &script]);
        command
    }

    pub(super) fn does(&self, user: User, words: &str) -> Output {
        output(&mut self.command(user, words))
    }

    #[track_caller]
    pub(super) fn succeeds(&self, user: User, words: &str) -> String {
        let ended = self.does(user, words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            ended.status.success() && !said.contains("warning"),
            "{user:?}, umask {}: {words}: {:?} {said}",
            self.umask,
            ended.status
        );
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    }

    #[track_caller]
    pub(super) fn number(&self, user: User, words: &str) -> u64 {
        self.succeeds(user, words).parse().unwrap()
    }

    pub(super) fn lock(&self, user: User, name: &str) -> Value {
        let ended = self.does(user, &format!("onehold check --json {name}"));
        crate::harness::json_object(&ended.stdout)["lock"].take()
    }

    /// Fails, and says whose it is.
    #[track_caller]
    pub(super) fn is_refused(&self, user: User, words: &str, owner: User) {
        let ended = self.does(user, words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let code = ended.status.code();
        assert!(
            matches!(code, Some(1 | 125)),
            "{user:?}: {words}: {code:?} {said}"
        );
        let named = format!("; it belongs to user {}", owner.name());
        assert!(said.contains(&named), "{user:?}: {words}: {said}");
    }

    /// Leaves a run of a user whose wrapper and command were killed.
    pub(super) fn leave_zombie(&self, user: User, name: &str) {
        let script = format!("onehold run {name} -- sh -c 'kill -KILL $PPID $$'");
        let _ = self.does(user, &script);
        wait_until("it is a zombie", || {
            self.lock(user, name)["state"] == "zombie"
        });
    }
}
