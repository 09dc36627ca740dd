//! One lock: its names, its store, and the holds that are there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::options::{Options, milliseconds};
use crate::backend::{Asked, BackOff, Backend, LockSnapshot, Patience};
use crate::decision::liveness::DEFAULT_MAX_AGE;
use crate::decision::ownership::may_break;
use crate::decision::verdict::Reason;
use crate::decision::{Asker, Key, Request, Revision, Want};
use crate::error::{Error, Result};
use crate::files::journal::Journal;
use crate::identity::{Pid, ProcessId};
use crate::journal_line::{HoldResult, Line};
use crate::name::LockName;
use crate::open_file::{Judged, Until};
use crate::record::{Format, Mode, Record};
use crate::status::Status;

/// A lock: a name in a store, or the path of one lock file.
///
/// It is advisory: it excludes only processes that ask for it.
#[derive(Clone, Debug)]
pub struct Lock {
    name: LockName,
    /// To be held with it.
    others: Vec<LockName>,
    pub(super) store: Arc<dyn Backend>,
    pub(super) journal: Journal,
}

/// Where nothing wakes, a confirmation is looked for after this, doubling up to the second.
const CONFIRMATION_PACE: BackOff = BackOff {
    first: Duration::from_millis(1),
    most: Duration::from_millis(50),
};

impl Lock {
    /// The lock with this name in a store, or at this path.
    pub(super) fn new(name: LockName, store: &Arc<dyn Backend>, journal: &Journal) -> Result<Self> {
        let (store, name) = Arc::clone(store).locate(name)?;
        Ok(Self {
            name,
            others: Vec::new(),
            store,
            journal: journal.clone(),
        })
    }

    /// Together with another lock of the same store: all of them are taken at once or none is, as one
    /// hold with one number, which is released as a whole. What else is asked of this lock concerns its
    /// own name. A name that is there already changes nothing.
    ///
    /// ```no_run
    /// # fn main() -> onehold::Result<()> {
    /// let both = onehold::lock("db")?.and("cache".parse()?)?;
    /// let _hold = both.try_hold()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTogether`]: one name includes the other, or a path is among them, which has no store.
    /// [`Error::Unsupported`]: other formats have no room for several names.
    pub fn and(mut self, name: LockName) -> Result<Self> {
        let other = Self::new(name, &self.store, &self.journal)?;
        if [self.format(), other.format()] != [Format::Native; 2] {
            return Err(self.store.unsupported("one lock at a time"));
        }
        let is_same_store = self.store.path() == other.store.path();
        if is_same_store && self.names().any(|name| *name == other.name) {
            return Ok(self);
        }
        for name in self.names() {
            let why = if name.is_path() || other.name.is_path() {
                "a path has no store"
            } else if !is_same_store {
                "they are in two stores"
            } else if name.is_ancestor_of(&other.name) {
                "the first includes the second"
            } else if other.name.is_ancestor_of(name) {
                "the second includes the first"
            } else {
                continue;
            };
            return Err(Error::NotTogether {
                one: name.as_str().to_owned(),
                other: other.name.as_str().to_owned(),
                why,
            });
        }
        self.others.push(other.name);
        Ok(self)
    }

    /// All names that it holds together.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(&self.name).chain(&self.others)
    }

    /// Its name. A path into a store is the name in that store.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The format that a new hold of it has.
    pub fn format(&self) -> Format {
        self.store.format()
    }

    /// Whether its store is one of several machines, and not a directory.
    pub fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    /// Facts about the hold of a status that only a store on etcd has; `None`: the store is a directory.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn store_facts(&self, status: &Status) -> Result<Option<crate::status::StoreFacts>> {
        let name = LockName::new(&status.name)?;
        self.store
            .facts(&Key::of(&name, status.slot.map(Into::into)))
    }

    /// Gives back the hold of a keeper that was killed, by the request that it has left, in its wrapper. Whether it
    /// was still there. `history`: notes that it was lost.
    ///
    /// # Errors
    /// The store cannot be reached, or refuses.
    #[doc(hidden)]
    #[cold]
    pub fn release_for_keeper(&self, request: &[u8], history: bool) -> Result<bool> {
        let own = Some(ProcessId::of(Pid::of_self()));
        let is_own = |hold: &&Status| hold.record.as_ref().and_then(Record::writer) == own;
        let status = history.then(|| self.inspect(None).ok()).flatten();
        let was = status.and_then(|status| status.all_holds().find(is_own).cloned());
        let end = was.and_then(|was| self.end_of(&was, HoldResult::Lost));
        let lines: Vec<Line> = end
            .map(|end| Line::End(Box::new(end)))
            .into_iter()
            .collect();
        self.store.release_for_keeper(request, &lines)
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.store.path_of(&self.name)
    }

    pub(super) fn request(&self, options: &Options, asker: Asker) -> Request {
        let mut request = self.unobserved_request(options, asker);
        request.observer = Some(self.store.host().observer().clone());
        request
    }

    /// The same without an observer, which is not asked for before a record is found.
    pub(super) fn unobserved_request(&self, options: &Options, asker: Asker) -> Request {
        Request {
            wants: self.wants(options.mode).collect(),
            owner: options.owner.clone(),
            inside: options.inside.clone(),
            asker,
            max_age_ms: milliseconds(options.max_age.unwrap_or(DEFAULT_MAX_AGE)),
            take_zombies: !options.refuse_zombies,
            replace: options.replace.clone(),
            skip_queue: options.skip_queue,
            ..Request::default()
        }
    }

    pub(super) fn wants(&self, mode: Mode) -> impl Iterator<Item = Want> {
        self.names().map(move |name| Want::of(name, mode))
    }

    /// The lock's own records, judged: the exclusive one first.
    pub(super) fn holds(
        &self,
        request: &Request,
        snapshot: &dyn LockSnapshot,
    ) -> Result<Vec<Judged>> {
        let judge = |found| request.judge(snapshot, found);
        let exclusive = snapshot.exclusive(&self.name)?;
        let mut holds = Vec::from_iter(exclusive.map(judge));
        // Beside a live one there is no other.
        if !holds.iter().any(|own| own.verdict.is_live()) {
            holds.extend(snapshot.shared(&self.name)?.into_iter().map(judge));
        }
        Ok(holds)
    }

    pub(super) fn look_shown(&self, shown: &Revision) -> Result<Option<Judged>> {
        let request = self.request(&Options::new(), Asker::Caller);
        let look = |snapshot: &dyn LockSnapshot| self.shown(&request, snapshot, shown);
        Ok(self.store.look(look)?.flatten())
    }

    /// The hold that was shown, if it is still there.
    pub(super) fn shown(
        &self,
        request: &Request,
        snapshot: &dyn LockSnapshot,
        shown: &Revision,
    ) -> Result<Option<Judged>> {
        let judge = |found| request.judge(snapshot, found);
        let exclusive = snapshot.exclusive(self.name())?.map(judge);
        if exclusive.as_ref().is_some_and(|own| may_break(shown, own)) {
            return Ok(exclusive);
        }
        let shared = snapshot.shared_shown(self.name(), shown)?.map(judge);
        Ok(shared.filter(|own| may_break(shown, own)))
    }

    /// Waits until the process that acquires a hold confirms it, or ends, or has had its time for that.
    pub(super) fn wait_until_confirmed(&self, judged: &Judged) {
        let Some(left) = judged.confirmed_within() else {
            return;
        };
        let shown = &judged.found.revision;
        let mut is_unchanged = || {
            let now = self.look_shown(shown);
            matches!(now, Ok(Some(now)) if now.confirmed_within().is_some())
        };
        let until = Until::Released(judged.clone());
        self.store
            .contender(CONFIRMATION_PACE, Mode::Exclusive)
            .sleep(&until, Patience::of(left), &mut is_unchanged);
    }

    /// Fails if nobody else can change a hold of it.
    pub(super) fn ensure_changeable(&self) -> Result<()> {
        match self.store.why_not(&self.name, Asked::Change) {
            Some(why_not) => Err(self.store.unsupported(why_not)),
            None => Ok(()),
        }
    }

    pub(super) fn ensure_lock(&self, own: &Judged) -> Result<()> {
        match own.verdict.reason {
            Reason::NotALock(what) => Err(self.not_a_lock(&own.found.key, what)),
            _ => Ok(()),
        }
    }

    pub(super) fn not_a_lock(&self, key: &Key, what: &'static str) -> Error {
        Error::NotALock {
            path: self.store.path_of_record(key),
            what,
        }
    }
}
