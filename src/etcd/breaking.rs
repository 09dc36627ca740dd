//! Removes holds: at once, or by telling the keeper of a live `run` to end its work and to give the hold back.

use std::time::Duration;

use super::keys::Part;
use super::snapshot::EtcdSnapshot;
use super::store::Session;
use super::view::View;
use super::waiting::Tickets;
use crate::backend::Deadline;
use crate::decision::{Judged, Life, Snapshot as _};
use crate::error::Result;
use crate::identity::Pid;
use crate::open_file::Handle;
use crate::record::{KILL_AFTER, Kind, Record};
use crate::sys::wait::pause;

/// How long a keeper may take beyond the time between TERM and KILL.
const KEEPER_ENDS: Duration = Duration::from_secs(2);

/// How often to look whether a hold that was broken has been given back, at first and at last.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Removes a hold. `ahead`: the tickets that reserve the lock meanwhile. `false`: it has changed.
    pub(super) fn remove(
        self,
        judged: &Judged<Handle>,
        view: View,
        ahead: Option<&mut Tickets>,
    ) -> Result<bool> {
        let record = judged.record();
        let is_run = record.is_some_and(|record| record.kind != Kind::Lease);
        // Only its keeper gives it back, since its work has to be ended first.
        if !(is_run && judged.verdict.is_live()) {
            return self.commit_remove(judged, view);
        }
        if self.break_run(judged, view, ahead)? {
            return Ok(true);
        }
        Err(self.client().address.error(
            "break a hold in",
            "its keeper has not ended its work".to_owned(),
            Some("wait until its lease ends, which nothing but its keeper keeps alive"),
        ))
    }

    /// Tells the keeper of a live `run` to end its work, and waits until it has given the hold back. Whether
    /// it has.
    fn break_run(
        self,
        judged: &Judged<Handle>,
        mut view: View,
        mut ahead: Option<&mut Tickets>,
    ) -> Result<bool> {
        let kill_after = judged.record().and_then(Record::kill_after);
        let limit = kill_after.unwrap_or(KILL_AFTER).saturating_add(KEEPER_ENDS);
        let deadline = Deadline::of(self.patience.for_at_most(limit));
        let mut judged = judged.clone();
        let life = self.keys().of(Part::Life, &judged.found.key);
        let mut lease = view.get(&life).map(|life| life.lease);
        // Until it says so: another one may write it meanwhile.
        while let Some(record) = judged.record()
            && record.live.broken_by.is_none()
        {
            let mut changed = record.live.clone();
            // For whoever finds that the hold was broken.
            let pid = Pid::of_self();
            changed.broken_by = Some(match &self.etcd.host.observer().hostname {
                Some(host) => format!("process {pid} on {host}"),
                None => format!("process {pid}"),
            });
            if self.commit_renew(&judged, &changed, view)? {
                break;
            }
            let Some(now) = self.look_again(&judged)? else {
                return Ok(true);
            };
            (judged, view) = now;
            lease = view.get(&life).map(|life| life.lease);
            if deadline.next_sleep(FIRST_INTERVAL).is_none() {
                return Ok(false);
            }
        }
        let mut interval = FIRST_INTERVAL;
        // A waiter may have it afterwards.
        while self.read_key(&life)?.map(|life| life.lease) == lease {
            let Some(left) = deadline.next_sleep(interval) else {
                return Ok(false);
            };
            if let Some(ahead) = &mut ahead {
                let _ = ahead.keep();
            }
            let _ = pause(left);
            interval = (interval * 2).min(LONGEST_INTERVAL);
        }
        // Its lease may have ended before its keeper gave it back.
        match self.look_again(&judged)? {
            None => Ok(true),
            // It was resumed.
            Some((rest, _)) if rest.found.facts.life == Some(Life::Kept) => Ok(false),
            Some((rest, view)) => self.commit_remove(&rest, view),
        }
    }

    /// A hold as it is now, if it is still there.
    fn look_again(self, judged: &Judged<Handle>) -> Result<Option<(Judged<Handle>, View)>> {
        let snapshot = EtcdSnapshot::new(self, View::unread());
        let name = &judged.found.key.name;
        let exclusive = snapshot.exclusive(name)?;
        let mut all = exclusive.into_iter().chain(snapshot.shared(name)?);
        let Some(found) = all.find(|found| found.revision == judged.found.revision) else {
            return Ok(None);
        };
        let verdict = judged.verdict.clone();
        Ok(Some((Judged { found, verdict }, snapshot.into_view())))
    }
}
