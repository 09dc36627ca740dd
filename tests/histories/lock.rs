//! Locks as one process would have them: what may happen when, one thing after the other. Written from
//! onehold-states(7), without a look at the code.

use std::collections::HashMap;

use crate::history::{Id, Mode, Take};

/// What every call that takes locks has asked for.
pub type Takes<'a> = HashMap<Id, &'a Take>;

/// One step of a call, which happens at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The locks are taken. Killed ones have said no number.
    Take(Id, Option<u64>),
    /// The asker cannot have them: for the hold of that call, or for any.
    Refuse(Id, Option<Id>),
    /// A hold ends by itself, as the call said that took or renewed it: its locks are free, its record may stay.
    End(Id, Id),
    /// A hold lasts as long as this call says, even if its time was over and nobody had noticed.
    Renew(Id, Id),
    /// A hold ends, which others have ended or found dead.
    Remove(Id),
    /// A record without a holder is removed.
    Sweep(Id),
    /// The hold is found, or what is left of it.
    Find(Id),
    /// The hold is seen.
    See(Id),
    /// The hold is not there any more.
    Miss(Id),
    /// This name has no holder.
    SeeFree(String),
}

/// A hold, or what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hold {
    id: Id,
    /// The call that said last how long it lasts.
    term: Id,
    is_over: bool,
    /// It is over, and others have taken some of its names: it does not come back.
    is_in_part: bool,
}

/// The holds of related names at one moment, and the last number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locks {
    holds: Vec<Hold>,
    last: u64,
}

impl Locks {
    pub fn holds(&self, id: Id) -> bool {
        self.holds.iter().any(|hold| hold.id == id && !hold.is_over)
    }

    /// Whether a hold lasts, as long as that call said.
    pub fn lasts(&self, id: Id, term: Id) -> bool {
        let mut holds = self.holds.iter();
        holds.any(|hold| hold.id == id && hold.term == term && !hold.is_over)
    }

    /// The locks after it; `None`: it cannot happen now.
    pub fn after(&self, act: &Act, takes: &Takes) -> Option<Self> {
        let mut after = self.clone();
        let possible = match act {
            Act::Take(id, number) => after.take(*id, *number, takes),
            Act::Refuse(asker, by) => self.refuses(*asker, *by, takes),
            Act::End(id, term) => {
                let lasts = self.lasts(*id, *term);
                if let Some(hold) = after.hold_mut(*id) {
                    hold.is_over = true;
                }
                lasts
            }
            Act::Renew(id, term) => after.renew(*id, *term, takes),
            Act::Remove(id) => after.remove(|hold| hold.id == *id),
            Act::Sweep(id) => {
                after.remove(|hold| hold.id == *id);
                !self.holds(*id)
            }
            Act::Find(id) => self.holds.iter().any(|hold| hold.id == *id),
            Act::See(id) => self.holds(*id),
            Act::Miss(id) => !self.holds(*id),
            Act::SeeFree(name) => !self.live().any(|id| takes[&id].names.contains(name)),
        };
        possible.then_some(after)
    }

    fn live(&self) -> impl Iterator<Item = Id> {
        let live = self.holds.iter().filter(|hold| !hold.is_over);
        live.map(|hold| hold.id)
    }

    fn hold_mut(&mut self, id: Id) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.id == id)
    }

    fn remove(&mut self, is_meant: impl Fn(&Hold) -> bool) -> bool {
        let count = self.holds.len();
        self.holds.retain(|hold| !is_meant(hold));
        self.holds.len() < count
    }

    fn take(&mut self, id: Id, number: Option<u64>, takes: &Takes) -> bool {
        let take = takes[&id];
        if take.by_force {
            self.remove(|hold| excludes(takes[&hold.id], take));
        }
        let is_free =
            !self.live().any(|other| excludes(takes[&other], take)) && !self.is_full(take, takes);
        let grows = number.is_none_or(|number| number > self.last);
        if !is_free || !grows {
            return false;
        }
        self.last = number.unwrap_or(self.last);
        self.replace(take, takes);
        self.holds.push(Hold {
            id,
            term: id,
            is_over: false,
            is_in_part: false,
        });
        self.holds.sort_by_key(|hold| hold.id);
        true
    }

    /// What is left of others gives way, name by name.
    fn replace(&mut self, take: &Take, takes: &Takes) {
        let has = |name: &String| take.names.contains(name);
        let gives_way = |hold: &Hold| hold.is_over && excludes(takes[&hold.id], take);
        if !take.is_in_want {
            self.remove(|hold| gives_way(hold) && takes[&hold.id].names.iter().all(has));
        }
        for hold in self.holds.iter_mut().filter(|hold| gives_way(hold)) {
            hold.is_in_part |= takes[&hold.id].names.iter().any(has);
        }
    }

    /// Whether so many share one of the names that this one may not join them.
    fn is_full(&self, take: &Take, takes: &Takes) -> bool {
        let Mode::Slots(slots) = take.mode else {
            return false;
        };
        let count = |name| {
            self.live()
                .filter(|id| takes[id].names.contains(name))
                .count()
        };
        take.names.iter().any(|name| count(name) >= slots)
    }

    fn refuses(&self, asker: Id, by: Option<Id>, takes: &Takes) -> bool {
        let take = takes[&asker];
        let is_beside = |id: Id| {
            takes[&id]
                .names
                .iter()
                .any(|name| take.names.contains(name))
        };
        let in_the_way =
            |id: Id| excludes(takes[&id], take) || (is_beside(id) && self.is_full(take, takes));
        match by {
            Some(by) => self.holds(by) && in_the_way(by),
            None => self.live().any(in_the_way),
        }
    }

    fn renew(&mut self, id: Id, term: Id, takes: &Takes) -> bool {
        let take = takes[&id];
        let is_in_the_way = |other| other != id && excludes(takes[&other], take);
        let is_excluded = self.live().any(is_in_the_way);
        let Some(hold) = self.hold_mut(id) else {
            return false;
        };
        hold.term = term;
        let was_over = std::mem::replace(&mut hold.is_over, false);
        !(was_over && (is_excluded || hold.is_in_part))
    }
}

/// Whether two holds must not be there at once, however many share a lock.
fn excludes(one: &Take, other: &Take) -> bool {
    let both_shared = one.mode != Mode::Exclusive && other.mode != Mode::Exclusive;
    let same_owner = one.owner.is_some() && one.owner == other.owner;
    let exclude =
        |one: &String, other: &String| one == other || (are_related(one, other) && !same_owner);
    !both_shared
        && (one.names.iter()).any(|one| other.names.iter().any(|other| exclude(one, other)))
}

/// Whether they are one name, or one is above the other.
pub fn are_related(one: &str, other: &str) -> bool {
    let is_above = |one: &str, other: &str| {
        let rest = other.strip_prefix(one);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_above(one, other) || is_above(other, one)
}
