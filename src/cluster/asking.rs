//! Asks whether a waiter is there for which a free lock is reserved.

use super::commit::TAKE;
use super::keys::{Keys, Part};
use super::snapshot::is_of_waiter;
use super::store::{CHANGE, Session};
use super::txn::{Compare, Txn};
use super::view::View;

/// The time to live, in seconds, of the ticket of a waiter that was asked for.
const ASKED_TTL: i64 = 3;

impl Session<'_> {
    /// Ends the tickets of a waiter soon for which a free lock is reserved, unless it takes the lock before. Returns
    /// for how long to wait for that, in milliseconds. What cannot be done now is done with a later look.
    pub(super) fn ask_for(self, number: u64, view: &View) -> u64 {
        const LATER_MS: u64 = 300;
        let all = self.cluster.keys.all(Part::Wait);
        let its = view.tickets(&all).filter(|(other, _, found)| {
            // One that was asked for is on another lease.
            *other == number && is_of_waiter(found)
        });
        let its = its.filter(|(_, key, found)| Keys::lease_of_ticket(key) == Some(found.lease));
        let its: Vec<_> = its.map(|(_, key, found)| (key, found)).collect();
        let lease = (!its.is_empty()).then(|| self.grant(TAKE, ASKED_TTL));
        let Some(Ok(lease)) = lease else {
            return ASKED_TTL.unsigned_abs() * 1_000 + LATER_MS;
        };
        let mut txn = Txn::default();
        // During a pause it takes nothing.
        txn.only_if(Compare::is_missing(&self.cluster.keys.pause()));
        for (key, found) in its {
            txn.only_if(Compare::was_modified_at(key, found.mod_revision));
            txn.put(key, &found.value, lease.id);
        }
        let _ = self.txn(CHANGE, &txn);
        lease.ttl_ms() + LATER_MS
    }
}
