//! Removes holds: at once, or by telling the keeper of a live `run` to end its work and to give the hold back.

use std::time::Duration;

use super::keys::Part;
use super::snapshot::ViewSnapshot;
use super::store::Session;
use super::view::View;
use super::waiting::Tickets;
use crate::backend::Deadline;
use crate::decision::Life;
use crate::error::{Fault, Result};
use crate::identity::Pid;
use crate::journal_line::Line;
use crate::open_file::Judged;
use crate::record::{KILL_AFTER, Kind, Record};
use crate::sys::wait::pause;

/// How long a keeper may take beyond the time between TERM and KILL.
const KEEPER_ENDS: Duration = Duration::from_secs(2);

/// How often to look whether a hold that was broken has been given back, at first and at last.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Removes a hold. `ahead`: the tickets that reserve the lock meanwhile. `lines`: about its end. `false`: it has
    /// changed.
    pub(super) fn remove(
        self,
        judged: &Judged,
        view: View,
        ahead: Option<&mut Tickets>,
        lines: &[Line],
    ) -> Result<bool> {
        let record = judged.record();
        let is_run = record.is_some_and(|record| record.kind != Kind::Lease);
        // Only its keeper gives it back, since its work has to be ended first.
        if !(is_run && judged.verdict.is_live()) {
            return self.commit_remove(judged, view, lines);
        }
        if self.break_run(judged, view, ahead, lines)? {
            return Ok(true);
        }
        Err(self.engine().error(
            "break a hold in",
            "its keeper has not ended its work".to_owned(),
            Some("wait until its lease ends, which nothing but its keeper keeps alive".to_owned()),
            Fault::Final,
        ))
    }

    /// Tells the keeper of a live `run` to end its work, and waits until it has given the hold back. Whether
    /// it has.
    fn break_run(
        self,
        judged: &Judged,
        mut view: View,
        mut ahead: Option<&mut Tickets>,
        lines: &[Line],
    ) -> Result<bool> {
        // Who breaks it is noted with the request to end its work; how it ended, by its keeper.
        let (events, ends): (Vec<Line>, Vec<Line>) = lines
            .iter()
            .cloned()
            .partition(|line| matches!(line, Line::Event(_)));
        let kill_after = judged.record().and_then(Record::kill_after);
        let limit = kill_after.unwrap_or(KILL_AFTER).saturating_add(KEEPER_ENDS);
        let looks_each = self.engine().limits().looks_each;
        let limit = limit.saturating_add(looks_each.unwrap_or_default());
        let deadline = Deadline::of(self.patience.for_at_most(limit));
        let mut judged = judged.clone();
        let life = self.cluster.keys.of(Part::Life, &judged.found.key);
        let mut lease = view.get(&life).map(|life| life.lease);
        // Until it says so: another one may write it meanwhile.
        while let Some(record) = judged.record()
            && record.live.broken_by.is_none()
        {
            let mut changed = record.live.clone();
            // For whoever finds that the hold was broken.
            let pid = Pid::of_self();
            changed.broken_by = Some(match &self.cluster.host.observer().hostname {
                Some(host) => format!("process {pid} on {host}"),
                None => format!("process {pid}"),
            });
            if self.commit_renew(&judged, &changed, view, &events)? {
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
            Some((rest, view)) => self.commit_remove(&rest, view, &ends),
        }
    }

    /// A hold as it is now, if it is still there.
    fn look_again(self, judged: &Judged) -> Result<Option<(Judged, View)>> {
        let snapshot = ViewSnapshot::new(self, View::unread());
        let mut all = snapshot.holds_of(&judged.found.key.name)?.into_iter();
        let found = all.find(|found| found.revision == judged.found.revision);
        let verdict = judged.verdict.clone();
        Ok(found.map(|found| (Judged { found, verdict }, snapshot.into_view())))
    }
}
