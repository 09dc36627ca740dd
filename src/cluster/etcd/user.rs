//! The user of a store, and what a member knows it by.

use std::path::PathBuf;
use std::sync::Mutex;

use super::address::EtcdAccess;
use crate::error::{Context as _, Result};
use crate::sys::locked;

/// What a member knows the user by.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Pass {
    /// It has not signed in yet, or its token has ended.
    None,
    Token(String),
    /// Authentication is off.
    NotNeeded,
}

impl Pass {
    pub(super) fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::None | Self::NotNeeded => None,
        }
    }
}

pub(super) struct User {
    pub(super) name: String,
    password: Mutex<String>,
    /// Where the password is from.
    file: Option<PathBuf>,
}

impl User {
    pub(super) fn of(access: &EtcdAccess) -> Result<Option<Self>> {
        let Some(name) = access.user.clone() else {
            return Ok(None);
        };
        let (password, file) = match (&access.password, &access.password_file) {
            (None, Some(file)) => {
                let read = std::fs::read_to_string(file).context("read", file)?;
                (first_line(&read), Some(file.clone()))
            }
            (password, _) => (password.clone().unwrap_or_default(), None),
        };
        Ok(Some(Self {
            name,
            password: Mutex::new(password),
            file,
        }))
    }

    pub(super) fn password(&self) -> String {
        locked(&self.password).clone()
    }

    /// Reads its file again, since the password was refused. Whether there is another one in it.
    pub(super) fn has_new_password(&self) -> bool {
        let read = self.file.as_ref().map(std::fs::read_to_string);
        let Some(Ok(read)) = read else {
            return false;
        };
        let read = first_line(&read);
        let mut known = locked(&self.password);
        *known != read && {
            *known = read;
            true
        }
    }
}

/// The password in a file: without the line break behind it.
fn first_line(read: &str) -> String {
    read.trim_end_matches(['\n', '\r']).to_owned()
}
