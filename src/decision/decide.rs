//! The decision: may a request take its locks now, and if not, what is in its way.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Decision, Judged, Obstacle};
use super::request::{Index, Key, Request, first_free};
use super::same_holder::{is_same_hold, is_whole};
use super::scan::{Beside, Finding, Next, scan};
use super::snapshot::Snapshot;
use super::turn::reserved_for;
use super::verdict::{Reason, State};
use crate::error::Result;
use crate::record::Mode;

/// Limit of zombie parents and children that one decision removes. Each removal takes about 100 µs,
/// and the store is locked meanwhile.
const MAX_REMOVALS: usize = 256;

/// Decides about a request. The first row that applies:
///
/// | question | decision |
/// |---|---|
/// | Is the file of a wanted name not a lock file? | refuse |
/// | Is it about to be the same holder's, or to be replaced, and not confirmed yet? | wait |
/// | Does the same holder have it, by an earlier detached hold? | already held, or blocked if that hold is lost |
/// | Is a hold in the way that the caller runs inside of, or a zombie that it may not take? | blocked |
/// | Is any other hold in the way? | wait |
/// | Is an earlier waiter in the way that could take its own locks now? | wait, reserved for it |
/// | – | take |
///
/// A waiter that could not take its locks now is not in the way. The same rules apply to the caller
/// and to each waiter, with the request and the observer of each.
pub(crate) fn decide<H: Clone>(
    request: &Request,
    snapshot: &dyn Snapshot<H>,
) -> Result<Decision<H>> {
    let found = Review::of(request, snapshot)?;
    if let Some(decision) = found.in_the_way {
        return Ok(match decision {
            Decision::AlreadyHeld(judged) if !is_whole(&judged, snapshot)? => {
                Decision::Blocked(judged)
            }
            decision => decision,
        });
    }
    if !request.skip_queue
        && let Some(ticket) = reserved_for(request, &found.beside, snapshot)?
    {
        return Ok(Decision::Wait(Obstacle::Waiter(ticket)));
    }
    take(request, found, snapshot)
}

/// The first four rows, about a hold in the way.
fn about_hold<H>(request: &Request, snapshot: &dyn Snapshot<H>, judged: Judged<H>) -> Decision<H> {
    if let Reason::NotALock(what) = judged.verdict.reason {
        return Decision::Refuse(judged, what);
    }
    if is_same_hold(request, &judged) {
        return Decision::AlreadyHeld(judged);
    }
    if judged.verdict.takeable_in.is_some() && request.take_zombies {
        return Decision::Wait(Obstacle::Hold(judged));
    }
    let is_takeable = matches!(judged.verdict.state, State::Zombie | State::Free);
    if is_takeable || request.runs_inside(snapshot, &judged) {
        return Decision::Blocked(judged);
    }
    Decision::Wait(Obstacle::Hold(judged))
}

/// The holds that matter to a request.
struct Review<H> {
    /// About a hold in the way: the first one that waiting cannot change, else the first one.
    in_the_way: Option<Decision<H>>,
    beside: Beside,
    replaceable: Vec<Judged<H>>,
    removable: Vec<Judged<H>>,
}

impl<H: Clone> Review<H> {
    fn of(request: &Request, snapshot: &dyn Snapshot<H>) -> Result<Self> {
        let mut review = Self {
            in_the_way: None,
            beside: Beside::none(request),
            replaceable: Vec::new(),
            removable: Vec::new(),
        };
        let is_final = |decision: &Decision<H>| !matches!(decision, Decision::Wait(_));
        let about = |judged| about_hold(request, snapshot, judged);
        scan(request, snapshot, &mut |finding| {
            let in_the_way = match finding {
                Finding::Excludes(judged) => Some(judged),
                Finding::Beside(at, holds) => {
                    review.beside.note(at, &holds);
                    let is_full = review.beside.is_full(request, at, 0);
                    let is_final = |judged: &Judged<H>| is_final(&about(judged.clone()));
                    is_full.then(|| to_wait_for(holds, &is_final)).flatten()
                }
                Finding::Replaceable(judged) => {
                    review.replaceable.push(judged);
                    None
                }
                Finding::Removable(judged) => {
                    if review.removable.len() < MAX_REMOVALS {
                        review.removable.push(judged);
                    }
                    None
                }
            };
            if let Some(decision) = in_the_way.map(about) {
                if is_final(&decision) {
                    review.in_the_way = Some(decision);
                    return Next::Nothing;
                }
                review.in_the_way.get_or_insert(decision);
            }
            // Holds that are further away are read only to find one that the caller runs inside of.
            if review.in_the_way.is_some() && request.inside.is_empty() {
                Next::Near
            } else {
                Next::All
            }
        })?;
        Ok(review)
    }
}

/// The hold of a full lock to name: any of them may make room that does not outlive the caller.
fn to_wait_for<H>(
    holds: Vec<Judged<H>>,
    is_final: &dyn Fn(&Judged<H>) -> bool,
) -> Option<Judged<H>> {
    let at = match holds.iter().position(|judged| !is_final(judged)) {
        // One whose work is being ended may have nobody who goes on with that. One that is dead makes room soon.
        Some(first) => {
            let is_ending = |judged: &Judged<H>| judged.verdict.reason == Reason::Ending;
            let is_ripening =
                |judged: &Judged<H>| judged.verdict.takeable_in.is_some() && !is_final(judged);
            let ending = holds.iter().position(is_ending);
            let ripening = || holds.iter().position(is_ripening);
            ending.or_else(ripening).unwrap_or(first)
        }
        None => 0,
    };
    holds.into_iter().nth(at)
}

/// Takes the locks, after nothing was found in the way.
fn take<H>(request: &Request, found: Review<H>, snapshot: &dyn Snapshot<H>) -> Result<Decision<H>> {
    let mut own = found.replaceable;
    let mut put = Vec::new();
    for want in &request.wants {
        let index = match want.mode {
            Mode::Exclusive => None,
            Mode::Shared | Mode::Slots(_) => {
                let given_back: Vec<_> = own
                    .iter()
                    .filter(|judged| judged.found.key.name == want.name)
                    .collect();
                // What is replaced keeps its slot: its holder may be the one that asks.
                let is_replaced = |judged: &&&Judged<_>| request.replaces(judged);
                let replaced = given_back.iter().find(is_replaced);
                match replaced.and_then(|judged| judged.found.key.index) {
                    Some(index) => Some(index),
                    None => Some(Index {
                        number: free_number(&snapshot.shared_numbers(&want.name)?, &given_back),
                        // Where hosts do not see each other's locks, the name of a file keeps them apart.
                        asker: if snapshot.takeover_is_safe() {
                            request.asker_digest()
                        } else {
                            0
                        },
                    }),
                }
            }
        };
        let key = Key::of(&want.name, index);
        let replaced = own.iter().position(|judged| judged.found.key == key);
        put.push((key, replaced.map(|at| own.swap_remove(at))));
    }
    // Holds of the other mode are in the way, dead as they are; and what is to be replaced is alive.
    own.retain(|judged| {
        let is_excluded = |want| request.is_excluded_by(judged, want);
        request.replaces(judged) || request.wants.iter().any(is_excluded)
    });
    own.sort_by_key(|judged| !request.replaces(judged));
    own.extend(found.removable);
    own.truncate(MAX_REMOVALS);
    Ok(Decision::Take { put, remove: own })
}

/// The number of a new shared record: of the lowest slot that is free. Those `given_back` are dead, but the
/// file of one may have to stay.
fn free_number<H>(existing: &[u32], given_back: &[&Judged<H>]) -> u32 {
    let mut stays: BTreeMap<u32, bool> = BTreeMap::new();
    for found in given_back.iter().map(|judged| &judged.found) {
        if let Some(index) = found.key.index {
            // Two files may have one number.
            *stays.entry(index.number).or_default() |= found.facts.stays;
        }
    }
    let in_use = existing.iter().filter(|number| !stays.contains_key(number));
    let in_use: BTreeSet<u32> = in_use.map(|number| Index::from(*number).slot()).collect();
    let unwritable = existing.iter().copied();
    let unwritable = unwritable.filter(|number| stays.get(number).copied().unwrap_or(true));
    let unwritable: BTreeSet<u32> = unwritable.collect();
    first_free(
        |slot| in_use.contains(&slot),
        |number| !unwritable.contains(&number),
    )
}
