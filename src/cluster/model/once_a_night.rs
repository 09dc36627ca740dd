//! Three machines whose clocks differ start the same line of cron each minute, with `--hold-at-least`: one of them
//! runs it. The store and its clock are those of the model; what is decided and sent is the library's own.

use std::collections::BTreeMap;

use chrono::TimeDelta;

use super::*;
use crate::record::CommandEnd;

const MINUTE_MS: u64 = 60_000;
/// By how much the clock of a caller may differ.
const SHIFT_MS: u64 = 20_000;

#[derive(Clone, Debug)]
enum Event {
    /// The clock of this caller shows this minute.
    Due(usize, u64),
    /// The command of this caller has ended.
    Ended(usize, Held),
    LeaseEnds(i64),
}

/// Some minutes of three callers.
struct Night {
    setting: Setting,
    store: Store,
    events: BTreeMap<(u64, usize), Event>,
    count: usize,
    least_ms: u64,
    random: u64,
    /// How far ahead the clock of each caller is.
    shifts: Vec<u64>,
    /// How many have run it in each minute.
    runs: Vec<usize>,
}

impl Night {
    fn new(seed: u64, minutes: u64, least_ms: u64) -> Self {
        let mut night = Self {
            setting: setting(vec![plan(&["backup"]); 3]),
            store: Store::new(&Keys::new("/p"), ["backup"].into_iter()),
            events: BTreeMap::new(),
            count: 0,
            least_ms,
            random: seed,
            shifts: Vec::new(),
            runs: vec![0; usize::try_from(minutes).unwrap()],
        };
        for caller in 0..3 {
            let shift = night.below(2 * SHIFT_MS);
            night.shifts.push(shift);
            for minute in 0..minutes {
                // cron itself is late by a little.
                let late = night.below(1_500);
                let at = (minute + 1) * MINUTE_MS - shift + late;
                night.add(at, Event::Due(caller, minute));
            }
        }
        night
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn add(&mut self, at: u64, event: Event) {
        self.events.insert((at, self.count), event);
        self.count += 1;
    }

    /// A lease of that many seconds. etcd ends it late by a little.
    fn grant(&mut self, now: u64, seconds: u64) -> i64 {
        let lease = self.store.grant();
        let late = self.below(1_000);
        self.add(now + seconds * 1_000 + late, Event::LeaseEnds(lease));
        lease
    }

    fn moment(&self, caller: usize, now: u64) -> Moment {
        let wall = TimeDelta::milliseconds((now + self.shifts[caller]).try_into().unwrap());
        Moment {
            wall: present().wall + wall,
            boottime_ms: present().boottime_ms + now,
        }
    }

    fn record(&self, caller: usize, hold: u64, now: u64) -> Record {
        let mut record = self.setting.record(caller, hold);
        record.acquired_at = self.moment(caller, now).wall;
        record.hold_at_least_ms = Some(self.least_ms);
        record
    }

    /// `run -n`
    fn run(&mut self, caller: usize, now: u64) -> Option<Held> {
        let request = self.setting.request(caller);
        let keys = Keys::new("/p");
        let mut view = View::guess();
        loop {
            let cluster = cluster();
            let session = cluster.session(Patience::SHORT);
            let snapshot = ViewSnapshot::new(session, view);
            let _ = snapshot.now.set(self.moment(caller, now));
            let Decision::Take { put, remove } = decide(&request, &snapshot).unwrap() else {
                return None;
            };
            view = snapshot.into_view();
            let hold = number(&view, &keys, &put, now);
            let taking = Taking {
                view: &view,
                put: &put,
                remove: &remove,
                record: self.record(caller, hold, now),
                resumes: false,
                ticket: None,
            };
            let lease = self.grant(now, TTL.unsigned_abs());
            let sent = Sent {
                txn: session.take_txn(&taking, lease).unwrap(),
                keys: put.iter().map(|(key, _)| key.clone()).collect(),
                asked: vec![named("backup")],
                hold,
                lease,
                age: 0,
                tried: false,
            };
            match fate(&mut self.store, &keys, &sent) {
                Fate::Taken(written) => {
                    return Some(Held {
                        keys: sent.keys,
                        hold,
                        lease,
                        written,
                        age: 0,
                        is_at_work: true,
                        resuming: None,
                    });
                }
                Fate::Changed(now) => view = now,
                Fate::NoLease => panic!("it was granted just now"),
            }
        }
    }

    /// The command of a run that began at `began` has ended.
    fn keep(&mut self, caller: usize, held: &Held, began: u64, now: u64) {
        let mut record = self.record(caller, held.hold, began);
        record.kind = Kind::Lease;
        record.live.ended = Some(CommandEnd::now(Some(0), None));
        record.live.expires_at = record.held_until();
        let value = cluster().written(&record).unwrap();
        let left = (began + self.least_ms).saturating_sub(now);
        let lease = self.grant(now, left.div_ceil(1_000));
        let keeping = self.setting.keeping(caller, held);
        let txn = keeping.keep_txn(&keeping.state(), &value, lease);
        assert!(self.store.apply(&txn).unwrap().succeeded);
    }

    /// How many have run it in each minute.
    fn pass(mut self) -> Vec<usize> {
        let mut began = [0; 3];
        while let Some(((now, _), event)) = self.events.pop_first() {
            match event {
                Event::LeaseEnds(lease) => self.store.end(lease),
                Event::Ended(caller, held) => self.keep(caller, &held, began[caller], now),
                Event::Due(caller, minute) => {
                    let Some(held) = self.run(caller, now) else {
                        continue;
                    };
                    began[caller] = now;
                    self.runs[usize::try_from(minute).unwrap()] += 1;
                    // Shorter than its lease, so that nothing has to renew that.
                    let ends = now + self.below(8_000).min(self.least_ms / 2);
                    self.add(ends, Event::Ended(caller, held));
                }
            }
        }
        self.runs
    }
}

#[test]
fn one_of_three_callers_with_clocks_of_their_own_runs_in_each_of_1000_minutes() {
    for seed in 1..=20 {
        let runs = Night::new(seed * 0x9E37_79B9, 50, 50_000).pass();
        assert!(runs.iter().all(|runs| *runs == 1), "{seed}: {runs:?}");
    }
}

#[test]
fn lock_that_is_held_for_less_than_the_clocks_differ_lets_several_run() {
    let runs = Night::new(0x9E37_79B9, 50, 1_000).pass();
    assert!(runs.iter().any(|runs| *runs > 1), "{runs:?}");
}
