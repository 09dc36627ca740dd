//! What a store of many machines is kept by.
//!
//! An engine is a folder beside this file, with a type that has the methods of [`Engine`], and a constructor of
//! [`Cluster`](super::Cluster). Keys, verbs, the queue and all decisions belong to the backend, so an engine adds no
//! rule. The backend relies on this of every engine:
//!
//! - Transactions and reads are linearizable. A revision grows with each change of the store.
//! - The create revision of a key is the revision of the transaction that made it.
//! - A lease ends by the server's clock, and its keys go with it.
//! - After an answer was lost, the same transaction can be sent again: its conditions tell whether it was applied.
//!
//! It does not rely on the clock of the server, on a watch that tells everything, or on a server that never loses what
//! it has confirmed.

use std::fmt::{self, Debug};
use std::time::Duration;

use super::txn::{Epoch, Lease, Read, ReadAnswer, Txn, TxnAnswer, Watch, WatchAnswer};
use crate::backend::Patience;
use crate::error::{Error, Fault};
use crate::finding::Finding;

/// How long a member may take for each part of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// How often a request is sent again because the user has to sign in.
const SIGN_INS: u32 = 4;

pub(super) const NO_ANSWER: &str = "no answer in time";

pub(super) type Answer<T> = Result<T, Failure>;

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    /// For a person.
    pub(super) message: String,
}

/// What is known of the request. The engine decides which of its codes and words mean which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may have been done, may yet be done, or not.
    Unknown,
    /// The same, because the member has not answered.
    Unanswered,
    /// The same, because the two do not trust each other. That does not change by itself.
    Untrusted,
    /// The same, and the member has taken the request: it may be too busy.
    Silent,
    /// It was not done: the user has to sign in.
    SignedOut,
    /// It was not done: at this address is nothing that would do it. At another one may be.
    NoServer,
    /// It was not done.
    Refused(Fault),
}

impl Failure {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Whether the member has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.kind, Kind::Unanswered | Kind::Untrusted | Kind::Silent)
    }

    /// Whether the member is there, and could not do it now.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.kind, Kind::Unknown | Kind::Silent)
    }

    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.kind, Kind::Refused(_))
    }

    /// Whether it does not change by itself.
    pub(super) fn is_final(&self) -> bool {
        self.is_refusal() || matches!(self.kind, Kind::Untrusted | Kind::NoServer)
    }
}

/// What an engine cannot do, and what it asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineLimits {
    /// The most comparisons of a transaction, and the most operations.
    pub(super) operations: usize,
    /// How long callers wait at least for members that are there but too busy. `None`: as for others.
    pub(super) while_busy: Option<Duration>,
    /// How often a keeper looks at its hold for a break, by the request that keeps the lease alive. `None`: it watches
    /// the hold instead.
    pub(super) looks_each: Option<Duration>,
    /// The time to live of the ticket of a waiter, in seconds. It is kept alive twice in it.
    pub(super) ticket_seconds: i64,
    /// How often a waiter looks at least: a watch may miss events.
    pub(super) look: Duration,
    /// A waiter keeps the lease alive that its hold will have, so that the take needs no other request.
    pub(super) has_lease_ready: bool,
}

/// Told what a watch says; nothing, once, when it has ended. `false`: nothing more is to be read.
pub(super) type Listener = Box<dyn FnMut(Option<WatchAnswer>) -> bool + Send>;

/// A store of one or more members. One of them is asked, until another one is to be. Each method that returns an
/// [`Answer`] sends its request once.
pub(super) trait Engine: Send + Sync {
    /// As in the name of its man page.
    fn name(&self) -> &'static str;

    /// As people write it.
    fn title(&self) -> &'static str;

    /// The store, as it is shown.
    fn url(&self) -> &str;

    /// What all keys of the store begin with, without a `/` at its end.
    fn prefix(&self) -> &str;

    fn limits(&self) -> EngineLimits;

    /// How many members there are.
    fn members(&self) -> usize;

    /// The member that is asked.
    fn member(&self) -> &str;

    /// Asks the next member from now on. The backend chooses when.
    fn go_on(&self);

    /// Signs the user in, after a request was answered with [`Kind::SignedOut`], also in a thread. May be patient for
    /// longer than the caller, and than a lease lasts.
    fn sign_in(&self, _patience: Patience<'_>) -> Answer<()> {
        Ok(())
    }

    fn txn(&self, txn: &Txn, timeout: Duration) -> Answer<TxnAnswer>;

    fn read(&self, read: &Read) -> Answer<ReadAnswer>;

    /// Grants a lease, perhaps for longer than was asked for. It lasts as long as the answer says or longer. Its number
    /// was never another lease's.
    fn grant(&self, seconds: i64) -> Answer<Lease>;

    /// Keeps a lease alive. A time above 0 says that it was there; it counts as renewed only if a later [`txn`](Self::txn)
    /// has the same [`Epoch`].
    fn keep(&self, lease: i64, timeout: Duration) -> Answer<Lease>;

    /// Keeps a lease alive, and then does a transaction. What is known of the lease, also if that has failed.
    fn keep_and_check(
        &self,
        lease: i64,
        check: &Txn,
        timeout: Duration,
    ) -> (Option<Lease>, Answer<TxnAnswer>) {
        match self.keep(lease, timeout) {
            Ok(kept) => (Some(kept), self.txn(check, timeout)),
            Err(failure) => (None, Err(failure)),
        }
    }

    /// Ends a lease and deletes its keys.
    fn revoke(&self, lease: i64) -> Answer<()>;

    /// How much is left of a lease. `None`: nothing.
    fn time_left(&self, lease: i64) -> Answer<Option<Duration>>;

    /// Reads a watch in a thread of its own until `each` returns false, the watch ends, or some time has passed.
    /// `false`: there is no thread, and nothing is read. It may miss events.
    fn watch(&self, watches: &[Watch], each: Listener) -> bool;

    /// The present one, also for a user that is signed out, if the engine can tell. If it changes, another server
    /// decides.
    fn epoch(&self, timeout: Duration) -> Answer<Epoch>;

    /// Whether the server can still have, in a later epoch, all that it had confirmed in an earlier one. `false`: it may
    /// have come back with less.
    fn is_continued(&self, before: Epoch, now: Epoch) -> bool;

    /// Its version, of the member that is asked.
    fn version(&self) -> Answer<String>;

    /// Whether the members are suitable for locks, and whether any has answered.
    fn examine(&self) -> (Vec<Finding>, bool);

    /// Makes what a store needs, for `doctor --create`.
    fn create(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// What may help against these failures: one refusal, or what each member has said that has not answered.
    fn remedy(&self, said: &[&Failure]) -> Option<String>;
}

impl Debug for dyn Engine + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url())
    }
}

impl dyn Engine + '_ {
    /// Sends a request again once the user has signed in, if that is what it lacks.
    pub(super) fn signed_in<T>(
        &self,
        patience: Patience<'_>,
        mut once: impl FnMut() -> Answer<T>,
    ) -> Answer<T> {
        for _ in 0..SIGN_INS {
            match once() {
                Err(failure) if failure.kind == Kind::SignedOut => self.sign_in(patience)?,
                answer => return answer,
            }
        }
        once()
    }

    /// Ends a lease that no key stands on, by one request: it would end anyway.
    pub(super) fn give_up(&self, lease: i64) {
        let _ = self.signed_in(Patience::SHORT, || self.revoke(lease));
    }

    /// What is not supported.
    pub(super) fn unsupported(&self, what: &'static str) -> Error {
        Error::NotOnServer {
            engine: self.title(),
            what,
        }
    }

    /// What cannot be done with the store, and what may help.
    pub(super) fn error(
        &self,
        operation: &'static str,
        reason: String,
        remedy: Option<String>,
        fault: Fault,
    ) -> Error {
        Error::Remote {
            operation,
            store: self.url().to_owned(),
            reason,
            remedy,
            fault,
        }
    }
}
