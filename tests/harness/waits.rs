//! Waits as they were seen from outside, and an observer that looks for those that were in vain: who could have taken
//! its locks, and did not.
//!
//! It knows calls and holds by the lines of a log, in which the test and the commands note what they do:
//!
//! | line | what has happened |
//! |---|---|
//! | `call CALL AT WORDS…` | a call is about to be started |
//! | `stop CALL AT`, `cont CALL AT` | the test has stopped it while it waited; is about to continue it |
//! | `gone CALL AT` | the test is about to kill it, or has seen its end |
//! | `in ID AT NAME HOLD SLOT AT-MOST CALL` | its command, the process `ID`, has begun |
//! | `out ID AT`, `kill ID AT` | the command is about to end; the test is about to kill it |
//! | `lost FROM AT` | from when to when the observer waited for the machine |

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::intervals::covers;

const SECOND: u64 = 1_000_000_000;

/// What a machine may need to start a call, or to wake one, beside the time for which the observer waited for it, too.
pub const MARGIN: u64 = 2 * SECOND;

/// By how much a stopped waiter may delay those behind it: onehold-states(7).
const FOR_EACH_STOPPED: u64 = 10 * SECOND;

/// What a call asks for.
#[derive(Debug)]
struct Request {
    words: String,
    names: Vec<String>,
    owner: Option<String>,
    is_shared: bool,
    at_most: Option<usize>,
}

impl Request {
    fn new(words: &[&str]) -> Self {
        let mut request = Self {
            words: words.join(" "),
            names: Vec::new(),
            owner: None,
            is_shared: false,
            at_most: None,
        };
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "-s" => request.is_shared = true,
                "--slots" => {
                    request.is_shared = true;
                    request.at_most = words.next().unwrap().parse().ok();
                }
                "--owner" => request.owner = words.next().map(str::to_owned),
                "--keep-place" => drop(words.next()),
                name => request.names.push(name.to_owned()),
            }
        }
        request
    }

    /// Whether a hold of this keeps `wanted` out, as the table of onehold-states(7) says.
    fn excludes(&self, wanted: &Self) -> bool {
        let are_shared = self.is_shared && wanted.is_shared;
        let have_one_owner = self.owner.is_some() && self.owner == wanted.owner;
        let mut pairs = self.pairs(wanted);
        !are_shared
            && pairs.any(|(held, wanted)| {
                held == wanted
                    || (!have_one_owner && (covers(held, wanted) || covers(wanted, held)))
            })
    }

    fn has_name_of(&self, other: &Self) -> bool {
        self.pairs(other).any(|(own, other)| own == other)
    }

    /// Whether it may be ahead of the other in a queue.
    fn is_related_to(&self, other: &Self) -> bool {
        let tree = |name: &str| name.split('/').next().map(str::to_owned);
        self.pairs(other)
            .any(|(own, other)| tree(own) == tree(other))
    }

    fn pairs<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.names
            .iter()
            .flat_map(|own| other.names.iter().map(move |other| (&**own, &**other)))
    }
}

/// A call that waits, or is about to.
struct Waiter {
    request: Rc<Request>,
    from: u64,
    is_stopped: bool,
    /// Since when it could have taken its locks.
    free_since: Option<u64>,
}

/// How long a waiter could have taken its locks without a break.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub call: usize,
    pub words: String,
    pub from: u64,
    pub to: u64,
    /// How many other waiters were stopped meanwhile.
    pub stopped: usize,
    /// For how long the observer waited for the machine meanwhile: who is to take a lock waits for it, too.
    pub lost: u64,
}

impl Stretch {
    pub fn length(&self) -> u64 {
        self.to - self.from
    }

    fn bound(&self) -> u64 {
        MARGIN + FOR_EACH_STOPPED * self.stopped as u64 + self.lost
    }

    pub fn is_too_long(&self) -> bool {
        self.length() > self.bound()
    }

    fn is_long(&self) -> bool {
        self.length() > self.bound() / 2
    }
}

struct Stop {
    call: usize,
    request: Rc<Request>,
    from: u64,
    to: u64,
}

/// The waits of a log, as far as it has been read.
#[derive(Default)]
pub struct Waits {
    requests: HashMap<usize, Rc<Request>>,
    waiters: BTreeMap<usize, Waiter>,
    /// By process.
    holders: HashMap<String, (usize, Rc<Request>)>,
    stops: Vec<Stop>,
    /// From when to when the observer waited for the machine.
    lost: Vec<(u64, u64)>,
    stretches: Vec<Stretch>,
}

impl Waits {
    /// All stretches of a log.
    pub fn stretches(log: &str) -> Vec<Stretch> {
        let at = |line: &&str| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap();
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_by_key(at);
        let mut waits = Self::default();
        for line in &lines {
            waits.read(line);
        }
        let end = lines.last().map_or(0, at);
        let unfinished: Vec<Stretch> = waits.unfinished(end).collect();
        waits.stretches.extend(unfinished);
        let mut stretches = std::mem::take(&mut waits.stretches);
        for stretch in &mut stretches {
            stretch.lost = waits.lost_in(stretch);
        }
        stretches
    }

    pub fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[2].parse().unwrap();
        let call = || words[1].parse::<usize>().unwrap();
        match words[0] {
            "call" => {
                let request = Rc::new(Request::new(&words[3..]));
                self.requests.insert(call(), Rc::clone(&request));
                let waiter = Waiter {
                    request,
                    from: at,
                    is_stopped: false,
                    free_since: None,
                };
                self.waiters.insert(call(), waiter);
            }
            "in" => {
                let call = words[7].parse().unwrap();
                let request = Rc::clone(&self.requests[&call]);
                self.holders.insert(words[1].to_owned(), (call, request));
                self.leave(call, at);
            }
            "out" | "kill" => drop(self.holders.remove(words[1])),
            "lost" => self.lost.push((words[1].parse().unwrap(), at)),
            "stop" => {
                if let Some(waiter) = self.waiters.get_mut(&call()) {
                    waiter.is_stopped = true;
                    self.stops.push(Stop {
                        call: call(),
                        request: Rc::clone(&waiter.request),
                        from: at,
                        to: u64::MAX,
                    });
                }
            }
            "cont" | "gone" => {
                let mut stops = self.stops.iter_mut().rev();
                if let Some(stop) = stops.find(|stop| stop.call == call()) {
                    stop.to = stop.to.min(at);
                }
                if words[0] == "gone" {
                    self.leave(call(), at);
                } else if let Some(waiter) = self.waiters.get_mut(&call()) {
                    waiter.is_stopped = false;
                }
            }
            _ => panic!("{line}"),
        }
        self.note(at);
    }

    fn leave(&mut self, call: usize, at: u64) {
        let Some(waiter) = self.waiters.remove(&call) else {
            return;
        };
        let stretch = self.stretch(call, &waiter, at);
        self.stretches.extend(stretch);
    }

    /// Notes who could take its locks from now on, and who no longer can.
    fn note(&mut self, at: u64) {
        let calls: Vec<(usize, bool)> = self
            .waiters
            .iter()
            .map(|(call, waiter)| (*call, self.could_take(waiter)))
            .collect();
        for (call, could_take) in calls {
            let waiter = &self.waiters[&call];
            if could_take == waiter.free_since.is_some() {
                continue;
            }
            let stretch = self.stretch(call, waiter, at);
            self.stretches.extend(stretch);
            let free_since = could_take.then_some(at);
            self.waiters.get_mut(&call).unwrap().free_since = free_since;
        }
    }

    fn could_take(&self, waiter: &Waiter) -> bool {
        let request = &waiter.request;
        let mut holders = self.holders.values();
        !waiter.is_stopped
            && !holders.any(|(_, held)| held.excludes(request))
            && !self.is_full(request)
            && !self.is_behind_writer(waiter)
    }

    fn is_full(&self, request: &Request) -> bool {
        request.at_most.is_some_and(|at_most| {
            request.names.iter().any(|name| {
                let holders = self.holders.values();
                let sharing = holders.filter(|(_, held)| held.names.contains(name));
                sharing.count() >= at_most
            })
        })
    }

    /// Whether a writer, which may be ahead, waits for readers: new ones do not pass it.
    fn is_behind_writer(&self, waiter: &Waiter) -> bool {
        self.waiters.values().any(|writer| {
            let request = &writer.request;
            // Its place may have been kept for it.
            let may_be_ahead = request.words.contains("--keep-place")
                || writer.from < waiter.from.saturating_add(MARGIN);
            let holders = self.holders.values();
            let mut in_the_way = holders
                .filter(|(_, held)| held.excludes(request))
                .peekable();
            !writer.is_stopped
                && !request.is_shared
                && may_be_ahead
                && request.excludes(&waiter.request)
                && in_the_way.peek().is_some()
                && in_the_way.all(|(_, held)| held.is_shared && held.has_name_of(request))
        })
    }

    fn stretch(&self, call: usize, waiter: &Waiter, to: u64) -> Option<Stretch> {
        let from = waiter.free_since?;
        let stopped: HashSet<usize> = self
            .stops
            .iter()
            .rev()
            // A run of hours has thousands.
            .take(64)
            .filter(|stop| stop.from < to && stop.to > from && stop.call != call)
            .filter(|stop| stop.request.is_related_to(&waiter.request))
            .map(|stop| stop.call)
            .collect();
        Some(Stretch {
            call,
            words: waiter.request.words.clone(),
            from,
            to: to.max(from),
            stopped: stopped.len(),
            lost: 0,
        })
    }

    fn lost_in(&self, stretch: &Stretch) -> u64 {
        let first = self.lost.partition_point(|(_, to)| *to < stretch.from);
        let meanwhile = self.lost[first..].iter();
        meanwhile
            .take_while(|(from, _)| *from < stretch.to)
            .map(|(from, to)| to.min(&stretch.to) - from.max(&stretch.from))
            .sum()
    }

    fn unfinished(&self, at: u64) -> impl Iterator<Item = Stretch> {
        self.waiters
            .iter()
            .filter_map(move |(call, waiter)| self.stretch(*call, waiter, at))
    }

    /// Those that wait for more than half of their bound.
    pub fn late(&self, at: u64) -> Vec<Stretch> {
        self.unfinished(at).filter(Stretch::is_long).collect()
    }

    /// What is known of those that wait and those that hold.
    pub fn describe(&self, at: u64) -> String {
        let ago = |since: u64| at.saturating_sub(since) / 1_000_000;
        let waiters = self.waiters.iter().map(|(call, waiter)| {
            let state = match waiter.free_since {
                _ if waiter.is_stopped => "stopped".to_owned(),
                Some(since) => format!("could take its locks for {} ms", ago(since)),
                None => "cannot take its locks".to_owned(),
            };
            let words = &waiter.request.words;
            format!(
                "call {call} ({words}) for {} ms: {state}\n",
                ago(waiter.from)
            )
        });
        let holders = self
            .holders
            .iter()
            .map(|(id, (call, held))| format!("{id} of call {call} holds {}\n", held.words));
        waiters.chain(holders).collect()
    }
}
