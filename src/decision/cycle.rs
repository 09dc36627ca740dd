//! Whether a wait would complete a cycle: each of these commands waits for a lock that the next one holds, and the
//! last one for a lock of the caller.

use std::collections::BTreeMap;

use super::answer::Judged;
use super::liveness::is_reachable;
use super::request::Request;
use super::scan::{Beside, Finding, Next, scan};
use super::snapshot::{Snapshot, Ticket};
use super::verdict::Reason;
use crate::error::Result;
use crate::record::Kind;

/// So many holds are looked at.
const MAX_HOLDS: usize = 256;

/// What is known of a wait.
pub(crate) enum Cycle<H> {
    /// No other waiter runs inside of a hold.
    None,
    /// It may end. Processes that have just been started may tell more a little later.
    NotFound,
    /// It never ends. The holds of the cycle: first the one in the caller's way, last its own.
    Found(Vec<Judged<H>>),
}

/// Looks for the cycle that the caller completes by waiting.
///
/// A hold is in it if its command waits for nothing but a waiter that does not give up before the caller, and every
/// hold in the way of that waiter is in it. If any hold in the way of the caller is not, there is no cycle.
pub(crate) fn cycle<H: Clone>(request: &Request, snapshot: &dyn Snapshot<H>) -> Result<Cycle<H>> {
    let Some(until) = request.waits_until_ms else {
        return Ok(Cycle::None);
    };
    let mut waiters = snapshot.waiters_inside()?;
    let lasts = |theirs| theirs >= until;
    waiters.retain(|ticket| ticket.request.waits_until_ms.is_some_and(lasts));
    if waiters.is_empty() {
        return Ok(Cycle::None);
    }
    let mut search = Search {
        request,
        snapshot,
        waiters,
        links: Vec::new(),
        in_its_way: BTreeMap::new(),
    };
    let first = search.places(in_the_way(request, snapshot)?);
    let mut at = 0;
    while at < search.links.len() {
        if search.links.len() > MAX_HOLDS {
            return Ok(Cycle::NotFound);
        }
        search.follow(at)?;
        at += 1;
    }
    search.solve();
    Ok(search.chain(&first).map_or(Cycle::NotFound, Cycle::Found))
}

/// The holds that a hold waits for, whether or not that may end: first one in the way of a waiter that runs inside of
/// it, then one in the way of a waiter inside of that, and so on. If one comes again, it is the last.
pub(crate) fn waits_from<H: Clone>(
    hold: &Judged<H>,
    snapshot: &dyn Snapshot<H>,
) -> Result<Vec<Judged<H>>> {
    let waiters = snapshot.waiters_inside()?;
    let mut chain = vec![hold.clone()];
    while let Some(number) = chain.last().and_then(Judged::hold)
        && chain.len() <= MAX_HOLDS
    {
        let is_inside = |ticket: &&Ticket<H>| ticket.request.inside.contains(&number);
        let Some(ticket) = waiters.iter().find(is_inside) else {
            break;
        };
        let Some(next) = in_the_way(&ticket.request, snapshot)?.into_iter().next() else {
            break;
        };
        let comes_again = |known: &Judged<H>| known.found.revision == next.found.revision;
        let is_last = chain.iter().any(comes_again);
        chain.push(next);
        if is_last {
            break;
        }
    }
    chain.remove(0);
    Ok(chain)
}

/// Whether a waiter of this user counts for a hold of that user, to a caller of a third one. Anybody can write into a
/// ticket what process it is of.
pub(crate) fn counts(waiter: Option<u32>, holder: Option<u32>, caller: Option<u32>) -> bool {
    waiter.is_some_and(|waiter| waiter == 0 || [holder, caller].contains(&Some(waiter)))
}

/// All holds that can be reached from those in the way of a request. Each is looked at once, however many ways lead to
/// it.
struct Search<'a, H> {
    request: &'a Request,
    snapshot: &'a dyn Snapshot<H>,
    waiters: Vec<Ticket<H>>,
    links: Vec<Link<H>>,
    /// The places of the holds in the way of each waiter that was reached, by the number of its ticket.
    in_its_way: BTreeMap<u64, Vec<usize>>,
}

struct Link<H> {
    hold: Judged<H>,
    /// The tickets of the waiters that its command waits for.
    waits_for: Vec<u64>,
    /// `None`: it is not known to be in the cycle.
    next: Option<NextLink>,
}

/// What follows a hold in the cycle.
#[derive(Clone, Copy)]
enum NextLink {
    At(usize),
    /// It is the caller's.
    Caller,
}

impl<H: Clone> Search<'_, H> {
    /// The places of these holds among the links.
    fn places(&mut self, holds: Vec<Judged<H>>) -> Vec<usize> {
        let place = |hold: Judged<H>| {
            let is_it = |link: &Link<H>| link.hold.found.revision == hold.found.revision;
            self.links.iter().position(is_it).unwrap_or_else(|| {
                self.links.push(Link {
                    hold,
                    waits_for: Vec::new(),
                    next: None,
                });
                self.links.len() - 1
            })
        };
        holds.into_iter().map(place).collect()
    }

    /// Finds out what the command of a hold waits for, and which holds are in the way of that.
    fn follow(&mut self, at: usize) -> Result<()> {
        let Some(hold) = self.links.get(at).map(|link| link.hold.clone()) else {
            return Ok(());
        };
        let Some(number) = self.waiting_run(&hold) else {
            return Ok(());
        };
        let is_awaited = |waiter: Option<&Ticket<H>>| self.snapshot.is_awaited(waiter, &hold.found);
        let is_own = self.request.inside.contains(&number) && is_awaited(None);
        let is_inside = |ticket: &&Ticket<H>| {
            ticket.request.inside.contains(&number) && is_awaited(Some(ticket))
        };
        let mut awaited = Vec::new();
        if !is_own {
            awaited.extend(self.waiters.iter().filter(is_inside).cloned());
        }
        for ticket in &awaited {
            if !self.in_its_way.contains_key(&ticket.number) {
                let holds = in_the_way(&ticket.request, self.snapshot)?;
                let places = self.places(holds);
                self.in_its_way.insert(ticket.number, places);
            }
        }
        if let Some(link) = self.links.get_mut(at) {
            link.waits_for = awaited.iter().map(|ticket| ticket.number).collect();
            link.next = is_own.then_some(NextLink::Caller);
        }
        Ok(())
    }

    /// Notes which holds are in the cycle, from the caller's on backwards.
    fn solve(&mut self) {
        loop {
            let next = |link: &Link<H>| {
                let mut ways = link.waits_for.iter();
                ways.find_map(|ticket| self.first_of_cycle(self.in_its_way.get(ticket)?))
            };
            let links = self.links.iter().enumerate();
            let open = links.filter(|(_, link)| link.next.is_none());
            let found: Vec<(usize, usize)> = open
                .filter_map(|(at, link)| Some((at, next(link)?)))
                .collect();
            if found.is_empty() {
                return;
            }
            for (at, next) in found {
                if let Some(link) = self.links.get_mut(at) {
                    link.next = Some(NextLink::At(next));
                }
            }
        }
    }

    /// The first of these holds, if there are any, and all are in the cycle.
    fn first_of_cycle(&self, places: &[usize]) -> Option<usize> {
        let is_in = |at: &usize| self.links.get(*at).is_some_and(|link| link.next.is_some());
        let first = places.first().copied();
        first.filter(|_| places.iter().all(is_in))
    }

    /// The cycle from the first of these holds to that of the caller.
    fn chain(&self, from: &[usize]) -> Option<Vec<Judged<H>>> {
        let mut at = self.first_of_cycle(from)?;
        let mut chain = Vec::new();
        loop {
            let link = self.links.get(at)?;
            chain.push(link.hold.clone());
            match link.next? {
                NextLink::At(next) => at = next,
                NextLink::Caller => return Some(chain),
            }
        }
    }

    /// The number of a hold that lasts as long as its command waits.
    fn waiting_run(&self, hold: &Judged<H>) -> Option<u64> {
        let record = hold.record()?;
        let origin = record.origin.as_ref();
        let is_here = origin.is_some_and(|origin| is_reachable(origin, &self.snapshot.observer()));
        // A life key is seen from everywhere.
        let is_seen = is_here || hold.found.facts.life.is_some();
        let lasts = hold.verdict.is_live() && hold.verdict.reason != Reason::Ending;
        let waits = record.kind == Kind::Run && !record.is_kept() && !record.time_limited;
        (is_seen && lasts && waits && record.hold != 0).then_some(record.hold)
    }
}

/// The holds that have to end before a request is granted. Of a full lock, any of those that share it.
fn in_the_way<H>(request: &Request, snapshot: &dyn Snapshot<H>) -> Result<Vec<Judged<H>>> {
    let mut beside = Beside::none(request);
    let mut holds = Vec::new();
    scan(request, snapshot, &mut |finding| {
        match finding {
            Finding::Excludes(judged) => holds.push(judged),
            Finding::Beside(at, sharing) => {
                beside.note(at, &sharing);
                if beside.is_full(request, at, 0) {
                    holds.extend(sharing);
                }
            }
            Finding::Replaceable(_) | Finding::Removable(_) => {}
        }
        Next::All
    })?;
    Ok(holds)
}
