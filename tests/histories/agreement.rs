//! Whether exit codes, JSON and `history` agree with each other, with onehold(1), and with what has happened.

use std::collections::HashMap;

use serde_json::Value;

use crate::client::Told;
use crate::history::{Id, MILLISECOND, Outcome, SECOND, Store, Take, Verb};
use crate::lock::are_related;
use crate::plan::Want;
use crate::signals::{Part, Sent};

const KILL: i32 = 9;
/// How long after an outage of a server a lock may be lost.
const AFTER_OUTAGE: u64 = 20 * SECOND;

pub fn faults(told: &[Told], past: &[Value], store: Store, outages: &[(u64, u64)]) -> Vec<String> {
    let all = All {
        told,
        is_server: store == Store::SERVER,
        outages,
    };
    let mut faults: Vec<String> = told
        .iter()
        .filter_map(|told| {
            let why = all.fault_of(told).err()?;
            Some(format!("{why}: {told:?}"))
        })
        .collect();
    faults.extend(all.faults_of_history(past));
    faults
}

struct All<'a> {
    told: &'a [Told],
    is_server: bool,
    outages: &'a [(u64, u64)],
}

impl All<'_> {
    fn fault_of(&self, told: &Told) -> Result<(), String> {
        let call = &told.call;
        if let (Some(section), Outcome::Took(number)) = (&call.section, &call.outcome)
            && section.hold != *number
        {
            return Err(format!("its command had the hold {}", section.hold));
        }
        if call
            .section
            .as_ref()
            .is_some_and(|section| section.is_overlapping)
            && !self.is_forced(told)
        {
            return Err("its section was not alone".to_owned());
        }
        if self.is_explained(told) {
            return Ok(());
        }
        Err(format!("no reason for exit code {}", told.code))
    }

    /// Whether its exit code is one of the page, and has its reason.
    fn is_explained(&self, told: &Told) -> bool {
        let was_sent = |signal: i32| told.sent.iter().any(|sent| sent.signal == signal);
        let error = told.result["error"]["code"].as_str().unwrap_or_default();
        let is_run = matches!(told.call.verb, Verb::Run(_));
        let section = told.call.section.as_ref();
        let is_done = section.is_some_and(|section| section.is_done);
        match told.code {
            // Without memory it cannot even be started, or say why it ends; nor can its command be started.
            -6 | -11 if matches!(told.plan.want, Some(Want::Memory(_))) => true,
            127 | 134 | 139 if told.plan.want.is_some() && !is_done => true,
            // Signals that come before it has set itself up, and those that it cannot handle.
            code if code < 0 => was_sent(-code),
            code if is_run && is_done && Some(code) == told.plan.work.map(|work| work.code) => {
                told.result["command_exit_code"] == code && told.result["success"] == true
            }
            0 => !is_run && told.result["success"] == true,
            1 | 125 if is_run == (told.code == 125) => {
                (self.is_server && self.is_troubled(told))
                    || self.is_lost_early(told, error)
                    || self.is_short_of_something(told)
            }
            3 | 4 => matches!(
                told.call.verb,
                Verb::Renew(..) | Verb::Release(_) | Verb::Break { .. }
            ),
            // A zombie, or an overdue hold.
            5 => {
                matches!(told.call.verb, Verb::Check(_)) && told.result["lock"]["is_zombie"] == true
            }
            6 => match told.call.verb {
                Verb::Check(_) => told.result["lock"]["state"] == "held",
                _ => {
                    section.is_none()
                        && matches!(error, "LOCKED" | "RESERVED" | "DEADLOCK" | "STORE_CHANGED")
                }
            },
            7 => section.is_none() && error == "TIMEOUT" && has_waited(told),
            8 => is_run && (self.is_taken_away(told) || (self.is_server && self.is_troubled(told))),
            code if code > 128 => {
                let signal = code - 128;
                was_sent(signal) || (self.is_server && signal == KILL && self.is_troubled(told))
            }
            _ => false,
        }
    }

    /// Another call has broken it, or taken it by force.
    fn is_taken_away(&self, told: &Told) -> bool {
        self.told.iter().any(|other| {
            let takes_away = match &other.call.verb {
                Verb::Break { name, .. } => {
                    take(told).is_some_and(|take| take.names.contains(name))
                }
                _ => take(other).is_some_and(|other| {
                    other.by_force && take(told).is_some_and(|take| meet(take, other))
                }),
            };
            // A run lasts as long as its processes, other holds longer than their calls.
            let is_run = matches!(told.call.verb, Verb::Run(_));
            let is_in_time = told.call.called <= other.call.gone
                && (!is_run || other.call.called <= told.call.gone);
            takes_away && other.call.id != told.call.id && is_in_time
        })
    }

    /// It displaced a hold whose work was given up, or was displaced so.
    fn is_forced(&self, told: &Told) -> bool {
        let own = take(told).unwrap();
        self.told.iter().any(|other| {
            let is_forced = take(other).is_some_and(|other| other.by_force && meet(own, other));
            is_forced
                && other.call.called <= told.call.gone
                && told.call.called <= other.call.gone + 15 * SECOND
        })
    }

    /// A hold that was removed before its number was printed, or right after that.
    fn is_lost_early(&self, told: &Told, error: &str) -> bool {
        (error == "LOST" || told.said.contains("lost")) && self.is_taken_away(told)
    }

    /// It says what there was too little of, and there was.
    fn is_short_of_something(&self, told: &Told) -> bool {
        let says = |what: &str| told.said.to_lowercase().contains(what);
        match told.plan.want {
            Some(Want::Descriptors(_)) if says("too many open files") => true,
            Some(Want::Memory(_)) if says("cannot allocate memory") || says("out of memory") => {
                true
            }
            _ => says("no space left") && self.is_in_outage(told, 0),
        }
    }

    fn is_in_outage(&self, told: &Told, after: u64) -> bool {
        let mut outages = self.outages.iter();
        outages.any(|(from, to)| *from <= told.call.gone && told.call.called <= to + after)
    }

    /// Its server failed, or one of its own processes was stopped or killed.
    fn is_troubled(&self, told: &Told) -> bool {
        let is_kept = |sent: &Sent| sent.to == Part::Keeper || sent.to == Part::Caller;
        told.sent.iter().any(is_kept) || self.is_in_outage(told, AFTER_OUTAGE)
    }

    fn faults_of_history(&self, past: &[Value]) -> Vec<String> {
        let mut faults = Vec::new();
        let by_number: HashMap<u64, &Told> = (self.told.iter())
            .filter_map(|told| Some((number(told)?, told)))
            .collect();
        let unknown = self
            .told
            .iter()
            .filter(|told| told.call.outcome == Outcome::Unknown);
        let (unknown, mut unnamed) = (unknown.count(), 0);
        let mut noted: HashMap<Id, Vec<&Value>> = HashMap::new();
        for hold in past {
            let Some(number) = hold["hold"].as_u64() else {
                faults.push(format!("no number: {hold}"));
                continue;
            };
            let Some(told) = by_number.get(&number) else {
                // Also those that have tried afterwards whether a lock is stuck.
                unnamed += 1;
                continue;
            };
            noted.entry(told.call.id).or_default().push(hold);
            if let Some(why) = self.contradiction(told, hold) {
                faults.push(format!("{why}: {hold} of {told:?}"));
            }
        }
        if unnamed > unknown + crate::plan::NAMES.len() {
            faults.push(format!(
                "{unnamed} past holds of nobody, {unknown} calls of unknown fate"
            ));
        }
        for told in self
            .told
            .iter()
            .filter(|told| told.call.is_clean && told.call.section.is_some())
        {
            let noted = noted.get(&told.call.id).map_or(&[][..], Vec::as_slice);
            if noted.is_empty() && self.is_server && is_forgotten(told, past) {
                continue;
            }
            // Who cannot note it, says so.
            let has_errors = !told.result["errors"].as_array().is_none_or(Vec::is_empty);
            let is_warned = has_errors && (told.plan.want.is_some() || self.is_in_outage(told, 0));
            if noted.is_empty() && is_warned {
                continue;
            }
            if noted.len() != 1 {
                faults.push(format!("not one past hold, but {noted:?}, of {told:?}"));
            }
        }
        faults
    }

    fn contradiction(&self, told: &Told, hold: &Value) -> Option<&'static str> {
        let names: Vec<&str> = hold["names"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut own = take(told)?.names.clone();
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        own.sort_unstable();
        names.sort_unstable();
        if own != names {
            return Some("other names");
        }
        let is_run = matches!(told.call.verb, Verb::Run(_));
        let says = match hold["result"].as_str()? {
            "exited" => {
                is_run
                    && hold["exit_code"].as_i64() == told.plan.work.map(|work| i64::from(work.code))
            }
            "signal" => {
                is_run
                    && !told
                        .call
                        .section
                        .as_ref()
                        .is_some_and(|section| section.is_done)
                    || !told.sent.is_empty()
            }
            "not-started" => is_run && told.call.section.is_none(),
            "broken" => self.is_taken_away(told),
            "lost" => self.is_taken_away(told) || (self.is_server && self.is_troubled(told)),
            "taken-over" => !told.call.is_clean || matches!(told.call.verb, Verb::Job(_)),
            "released" | "expired" => !is_run,
            _ => false,
        };
        (!says).then_some("another end")
    }
}

/// A server remembers the last holds of a lock: all that it remembers are later ones.
fn is_forgotten(told: &Told, past: &[Value]) -> bool {
    let (Some(number), Some(take)) = (number(told), take(told)) else {
        return false;
    };
    let of_lock = |hold: &&Value| {
        let names = hold["names"].as_array().into_iter().flatten();
        let mut names = names.filter_map(Value::as_str);
        names.any(|name| take.names.iter().any(|own| own == name))
    };
    let mut later = past.iter().filter(of_lock).peekable();
    later.peek().is_some() && later.all(|hold| hold["hold"].as_u64() > Some(number))
}

/// The number of its hold, if that is known.
fn number(told: &Told) -> Option<u64> {
    match (&told.call.section, &told.call.outcome) {
        (Some(section), _) => Some(section.hold),
        (None, Outcome::Took(number)) => Some(*number),
        _ => None,
    }
}

fn take(told: &Told) -> Option<&Take> {
    told.call.take()
}

fn has_waited(told: &Told) -> bool {
    let limit = match &told.call.verb {
        Verb::Wait(_) => Some(200 * MILLISECOND),
        _ => take(told).and_then(|take| take.waits),
    };
    limit.is_some_and(|limit| told.call.returned - told.call.called >= limit)
}

fn meet(one: &Take, other: &Take) -> bool {
    (one.names.iter()).any(|one| other.names.iter().any(|other| are_related(one, other)))
}
