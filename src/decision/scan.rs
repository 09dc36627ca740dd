//! Finds the holds that are in the way of a request. Waiters are not among them: see `turn`.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Duration;

use super::answer::Judged;
use super::compatibility::excludes;
use super::liveness::judge;
use super::request::{Key, Moment, Observer, Request, Want};
use super::same_holder::{awaits_confirmation, is_same_hold};
use super::snapshot::{Found, Snapshot};
use super::verdict::State;
use crate::error::Result;
use crate::record::Mode;

/// How a record matters to a request. Records that do not matter are left out.
pub(super) enum Finding<H> {
    /// It keeps the request from being granted.
    Excludes(Judged<H>),
    /// The shared holds of this wanted name that the request may stand beside, if there is room.
    Beside(usize, Vec<Judged<H>>),
    /// A record of a wanted name that may be replaced: dead, or named by the request.
    Replaceable(Judged<H>),
    /// A dead relative that may be removed.
    Removable(Judged<H>),
}

/// How many shared holds stand beside a request, for each of its wants.
#[derive(Debug)]
pub(super) struct Beside(Vec<u32>);

impl Beside {
    pub(super) fn none(request: &Request) -> Self {
        Self(vec![0; request.wants.len()])
    }

    pub(super) fn note<H>(&mut self, at: usize, holds: &[Judged<H>]) {
        if let Some(count) = self.0.get_mut(at) {
            *count = u32::try_from(holds.len()).unwrap_or(u32::MAX);
        }
    }

    /// Whether a counted lock would be full with so many more holders.
    pub(super) fn is_full(&self, request: &Request, at: usize, more: u32) -> bool {
        let held = self.0.get(at).copied().unwrap_or(0);
        let slots = request.wants.get(at).and_then(|want| want.mode.slots());
        slots.is_some_and(|slots| held.saturating_add(more) >= slots.get())
    }
}

/// How far a visitor wants to read on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    All,
    /// No further than the ancestors of this name, which cost little.
    Near,
    Nothing,
}

/// Tells `visit` what concerns a request, in the order of reading: for each wanted name its exclusive
/// hold, its shared holds, the holds of its ancestors, then what is below it.
pub(super) fn scan<H>(
    request: &Request,
    snapshot: &dyn Snapshot<H>,
    visit: &mut dyn FnMut(Finding<H>) -> Next,
) -> Result<()> {
    for (at, want) in request.wants.iter().enumerate() {
        let ancestors = want.name.ancestors();
        let mut next = Next::All;
        if let Some(own) = snapshot.exclusive(&want.name)?
            && let Role::Told(finding) = role(request, snapshot, want, own)
        {
            next = visit(finding);
            if next == Next::Nothing || (next == Next::Near && ancestors.is_empty()) {
                return Ok(());
            }
        }
        let mut near = match want.mode {
            Mode::Shared => snapshot.shared_beside(request, &want.name)?,
            Mode::Slots(_) | Mode::Exclusive => snapshot.shared(&want.name)?,
        };
        for ancestor in ancestors {
            near.extend(snapshot.exclusive(&ancestor)?);
            if !want.mode.is_shared() {
                near.extend(snapshot.shared(&ancestor)?);
            }
        }
        let mut beside = Vec::new();
        for found in near {
            match role(request, snapshot, want, found) {
                Role::None => {}
                Role::Beside(judged) => beside.push(judged),
                Role::Told(finding) => next = visit(finding),
            }
            if next == Next::Nothing {
                return Ok(());
            }
        }
        if !beside.is_empty() {
            next = visit(Finding::Beside(at, beside));
        }
        if next != Next::All {
            return Ok(());
        }
        snapshot.below(&want.name, &mut |found| {
            if let Role::Told(finding) = role(request, snapshot, want, found) {
                next = visit(finding);
            }
            match next {
                Next::All => ControlFlow::Continue(()),
                Next::Near | Next::Nothing => ControlFlow::Break(()),
            }
        })?;
        if next != Next::All {
            return Ok(());
        }
    }
    Ok(())
}

enum Role<H> {
    None,
    Beside(Judged<H>),
    Told(Finding<H>),
}

/// How one record matters to one of the wants.
fn role<H>(request: &Request, snapshot: &dyn Snapshot<H>, want: &Want, found: Found<H>) -> Role<H> {
    let judged = request.judge(snapshot, found);
    let is_own = judged.found.key.name == want.name;
    // It has no holder, so relatives ignore it; but it must not be overwritten either.
    let is_not_a_lock = judged.verdict.state == State::NotALock;
    if is_own && (is_not_a_lock || awaits_confirmation(request, &judged)) {
        return Role::Told(Finding::Excludes(judged));
    }
    if is_not_a_lock {
        return Role::None;
    }
    if is_own && request.replaces(&judged) {
        return Role::Told(Finding::Replaceable(judged));
    }
    if is_own && is_same_hold(request, &judged) {
        return Role::Told(Finding::Excludes(judged));
    }
    let is_excluded = request.is_excluded_by(&judged, want);
    match (may_take(request, snapshot, &judged), is_own, is_excluded) {
        (true, true, _) => Role::Told(Finding::Replaceable(judged)),
        (true, false, true) => Role::Told(Finding::Removable(judged)),
        (false, _, true) => Role::Told(Finding::Excludes(judged)),
        (false, true, false) => Role::Beside(judged),
        (_, false, false) => Role::None,
    }
}

/// Whether a record counts for nothing: its hold is over.
fn may_take<H>(request: &Request, snapshot: &dyn Snapshot<H>, judged: &Judged<H>) -> bool {
    let is_over = match judged.verdict.state {
        State::Free => true,
        State::Zombie => request.take_zombies && judged.verdict.takeable_in.is_none(),
        State::Held | State::Overdue | State::NotALock => false,
    };
    is_over && snapshot.takeover_is_safe()
}

impl<H> Judged<H> {
    /// Judges a record as that observer sees it. `max_age`: if it sets none.
    pub(crate) fn by(by: &Observer, found: Found<H>, max_age: Duration, now: &Moment) -> Self {
        let verdict = judge(&found.content, &found.facts, by, max_age, now);
        Self { found, verdict }
    }
}

impl Request {
    /// Judges a record by the request's observer and maximum age.
    pub(crate) fn judge<H>(&self, snapshot: &dyn Snapshot<H>, mut found: Found<H>) -> Judged<H> {
        let observer = match &self.observer {
            Some(observer) => Cow::Borrowed(observer),
            None => Cow::Owned(snapshot.observer()),
        };
        found.facts.is_over |= self.over.contains(&found.revision);
        let max_age = Duration::from_millis(self.max_age_ms);
        Judged::by(&observer, found, max_age, &snapshot.now())
    }

    pub(super) fn replaces<H>(&self, judged: &Judged<H>) -> bool {
        self.replace.contains(&judged.found.revision)
    }

    pub(super) fn is_excluded_by<H>(&self, judged: &Judged<H>, want: &Want) -> bool {
        let Key { name, index } = &judged.found.key;
        let mode = index.map_or(Mode::Exclusive, |_| Mode::Shared);
        let held = Want::of(name, mode);
        let holder = judged.record().and_then(|record| record.owner.as_deref());
        excludes(&held, holder, want, self.owner.as_deref())
    }
}
