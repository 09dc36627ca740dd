//! Locks on etcd as a model, all of whose states are visited. The store is a small one in memory, which does
//! the library's own transactions; views, decisions and verdicts are the library's, too. A request can be done
//! and its answer be lost; a lease can end at any moment, whatever its holder has been told; a keeper can be
//! killed. Clocks run alike. One step of the clock is 3 s, and the time to live of every hold 10 s: work has
//! to be over 9 s after the last confirmed keepalive was sent, which is 3 steps, and a dead hold is taken over
//! after 10 s, which are 4.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::EtcdAccess;
use super::commit::{Taken, Taking, names_of, number, request_to_resume};
use super::history::KnownLines;
use super::keeping::Keeping;
use super::keys::Keys;
use super::lease::Granted;
use super::snapshot::ViewSnapshot;
use super::store::{Cluster, Gone, Written};
use super::txn::{
    Compare, Epoch, KeyValue, Operation, ReadAnswer, Relation, Target, Txn, TxnAnswer,
};
use super::view::{View, reads};
use crate::backend::Patience;
use crate::decision::{Asker, Decision, Key, Moment, Request, Want, decide, excludes};
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::record::{Format, Kind, Mode, Record};

const STEP_MS: u64 = 3_000;
const TTL: i64 = 10;
/// Steps after which no work may be left.
const OVER: u8 = 3;
/// Steps after which nothing changes any more.
const LONG: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A dead hold is taken over as soon as it is seen.
    NoGrace,
    /// Work goes on when its lease was not confirmed in time.
    NoDeadline,
    /// Descendants are not compared.
    NoRange,
    /// Ancestors are not compared.
    NoAncestors,
    /// The life key of the lock is not compared, nor its record.
    NoOwnKeys,
    /// What was decided on an older view is committed as if it had been decided on the latest one.
    Unjudged,
    /// Whether the record is still one's own is not asked before work goes on.
    BlindBeat,
    /// The last number is not compared.
    NoLast,
    /// Of several locks only the first one has its number written.
    FirstLast,
    /// No remainder of a number tells its group.
    NoGroup,
}

#[derive(Clone, Debug)]
struct Plan {
    names: Vec<&'static str>,
    owner: Option<&'static str>,
    mode: Mode,
    attempts: u8,
}

struct Setting {
    plans: Vec<Plan>,
    /// How many leases end early, answers are lost, keepers are killed.
    ends: u8,
    losses: u8,
    deaths: u8,
    /// All clocks say the same, and stand still.
    has_one_clock: bool,
    flaw: Flaw,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Store {
    keys: BTreeMap<String, KeyValue>,
    revision: i64,
    leases: BTreeSet<i64>,
    granted: i64,
}

/// A transaction that was sent, and is to be sent again until its fate is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    txn: Txn,
    keys: Vec<Key>,
    asked: Vec<LockName>,
    hold: u64,
    lease: i64,
    /// Steps since the lease was asked for.
    age: u8,
    tried: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    keys: Vec<Key>,
    hold: u64,
    lease: i64,
    written: i64,
    /// Steps since the last confirmed keepalive was sent.
    age: u8,
    is_at_work: bool,
    resuming: Option<Sent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Looks(View),
    Takes(Sent),
    Holds(Held),
    /// Its keeper was killed, or it has lost its hold.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    attempts: u8,
    /// For how many steps it has known records to be dead.
    known: BTreeMap<String, (Written, u8)>,
    has_resumed: bool,
    has_taken_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    clients: Vec<Client>,
    /// The highest number of a hold of each tree.
    numbers: BTreeMap<&'static str, u64>,
    /// A later hold had no higher one.
    has_fallen: bool,
    ends: u8,
    losses: u8,
    deaths: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Try(usize),
    Look(usize),
    Decide(usize),
    /// `true`: the answer is lost.
    Send(usize, bool),
    Beat(usize),
    Release(usize),
    Killed(usize),
    EndWork(usize),
    LeaseEnds(i64),
    Clock,
}

fn named(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

impl Store {
    fn new<'a>(keys: &Keys, names: impl Iterator<Item = &'a str>) -> Self {
        let last = names.map(|name| {
            let key = keys.last(&named(name));
            let last = KeyValue {
                key: key.clone().into_bytes(),
                value: b"0000000000000001".to_vec(),
                create_revision: 1,
                mod_revision: 1,
                lease: 0,
            };
            (key, last)
        });
        Self {
            keys: last.collect(),
            revision: 1,
            leases: BTreeSet::new(),
            granted: 0,
        }
    }

    fn grant(&mut self) -> i64 {
        self.granted += 1;
        self.leases.insert(self.granted);
        self.granted
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let before = self.keys.len();
        self.keys.retain(|_, found| found.lease != lease);
        if self.keys.len() != before {
            self.revision += 1;
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let nothing = KeyValue::default();
        let is_true = |found: &KeyValue, is_there: bool| {
            let order = match &compare.target {
                Target::Created(revision) => found.create_revision.cmp(revision),
                Target::Modified(revision) => found.mod_revision.cmp(revision),
                Target::Lease(lease) => found.lease.cmp(lease),
                // A value of a key that is not there compares with nothing.
                Target::Value(_) if !is_there => return false,
                Target::Value(value) => found.value.as_slice().cmp(value.as_bytes()),
            };
            match compare.relation {
                Relation::Equal => order.is_eq(),
                Relation::Greater => order.is_gt(),
                Relation::Less => order.is_lt(),
            }
        };
        if compare.range.end.is_empty() {
            return match self.keys.get(&compare.range.start) {
                Some(found) => is_true(found, true),
                None => is_true(&nothing, false),
            };
        }
        let range = || self.keys.range(compare.range.clone());
        // An empty range compares like one key that is not there.
        match range().next() {
            Some(_) => range().all(|(_, found)| is_true(found, true)),
            None => is_true(&nothing, false),
        }
    }

    /// `None`: a lease is not there any more, and nothing was done.
    fn apply(&mut self, txn: &Txn) -> Option<TxnAnswer> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let operations = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let is_kept = |operation: &Operation| match operation {
            Operation::Put { lease, .. } => *lease == 0 || self.leases.contains(lease),
            Operation::Read(_) | Operation::Delete(_) => true,
        };
        if !operations.iter().all(is_kept) {
            return None;
        }
        let writes = |operation: &Operation| !matches!(operation, Operation::Read(_));
        if operations.iter().any(writes) {
            self.revision += 1;
        }
        let revision = self.revision;
        let mut answers = Vec::new();
        for operation in operations {
            let mut answer = ReadAnswer::default();
            match operation {
                Operation::Read(read) => {
                    let found = self.keys.range(read.range.clone());
                    answer.kvs = found.map(|(_, found)| found.clone()).collect();
                }
                Operation::Put { key, value, lease } => {
                    let created = self.keys.get(key).map(|found| found.create_revision);
                    let found = KeyValue {
                        key: key.clone().into_bytes(),
                        value: value.clone(),
                        create_revision: created.unwrap_or(revision),
                        mod_revision: revision,
                        lease: *lease,
                    };
                    self.keys.insert(key.clone(), found);
                }
                Operation::Delete(range) => {
                    self.keys.retain(|key, _| !range.contains(key));
                }
            }
            answers.push(answer);
        }
        Some(TxnAnswer {
            revision,
            epoch: Epoch::default(),
            succeeded,
            answers,
        })
    }
}

/// The present. What has been known for some steps began before it.
fn present() -> Moment {
    Moment {
        wall: DateTime::<Utc>::from_timestamp(1_800_000_000, 0).unwrap(),
        boottime_ms: 1_000_000,
    }
}

thread_local! {
    /// Nothing is sent by it. Made once: that takes longer than a step.
    static CLUSTER: Cluster = Cluster::on_etcd("etcd://h/p", &EtcdAccess::default()).unwrap();
}

/// The store, of which this process knows nothing.
fn cluster() -> Cluster {
    let cluster = CLUSTER.with(Clone::clone);
    cluster.gone.lock().unwrap().clear();
    cluster
}

impl Setting {
    fn request(&self, client: usize) -> Request {
        let plan = &self.plans[client];
        let want = |name: &&str| Want {
            name: named(name),
            mode: plan.mode,
        };
        Request {
            wants: plan.names.iter().map(want).collect(),
            owner: plan.owner.map(str::to_owned),
            inside: Vec::new(),
            asker: Asker::Caller,
            max_age_ms: u64::MAX,
            take_zombies: true,
            replace: Vec::new(),
            skip_queue: false,
            keep_ms: None,
            waits_until_ms: None,
            waits_beside: Some(0),
            ticket: None,
            observer: None,
            over: Vec::new(),
        }
    }

    fn record(&self, client: usize, hold: u64) -> Record {
        let plan = &self.plans[client];
        let pid = Pid::new(u32::try_from(client).unwrap() + 1);
        let mut record = Record::new(Format::Native, pid, present().wall);
        plan.names[0].clone_into(&mut record.name);
        record.kind = Kind::Run;
        record.mode = plan.mode;
        record.owner = plan.owner.map(str::to_owned);
        record.ttl_ms = Some(TTL.unsigned_abs() * 1000);
        record.hold = hold;
        record.live.pid = pid;
        record
    }

    /// Decides on a view, with what the client knows of the dead, and notes what it learns.
    fn decide(
        &self,
        client: &mut Client,
        request: &Request,
        view: View,
    ) -> (Decision<Handle>, View) {
        let cluster = cluster();
        {
            let mut gone = cluster.gone.lock().unwrap();
            for (key, (record, steps)) in &client.known {
                let steps = if self.flaw == Flaw::NoGrace {
                    LONG
                } else {
                    *steps
                };
                let known = Gone {
                    record: *record,
                    since_ms: present().boottime_ms - u64::from(steps) * STEP_MS,
                };
                gone.insert(key.clone(), known);
            }
        }
        let snapshot = ViewSnapshot::new(cluster.session(Patience::SHORT), view);
        let _ = snapshot.now.set(present());
        let decision = decide(request, &snapshot).unwrap();
        let view = snapshot.into_view();
        let gone = cluster.gone.lock().unwrap();
        let before = std::mem::take(&mut client.known);
        client.known = gone
            .iter()
            .map(|(key, gone)| {
                let known = before.get(key).filter(|known| known.0 == gone.record);
                (key.clone(), known.copied().unwrap_or((gone.record, 0)))
            })
            .collect();
        drop(gone);
        (decision, view)
    }

    /// What is sent to take what was decided on. `None`: it is not to be taken.
    fn take(
        &self,
        world: &mut World,
        at: usize,
        view: View,
        lease: Option<(i64, u8)>,
    ) -> (Option<Sent>, View) {
        let request = self.request(at);
        let (decision, mut view) = self.decide(&mut world.clients[at], &request, view);
        let Decision::Take { put, remove } = decision else {
            return (None, view);
        };
        let cluster = cluster();
        if self.flaw == Flaw::Unjudged && !view.is_assumed() {
            let txn = Txn::of_reads(reads(&cluster.keys, &view.asked));
            let answer = world.store.apply(&txn).unwrap();
            view = View::of_answer(&cluster.keys, &view.asked, answer);
        }
        let mut replaced = put.iter().filter_map(|(_, old)| old.as_ref()?.record());
        world.clients[at].has_taken_over |= replaced.next().is_some();
        let (lease, age) = lease.unwrap_or_else(|| (world.store.grant(), 0));
        // Clocks in microseconds differ: it is not the number that keeps two from taking at once.
        let clock = if self.has_one_clock {
            1_000
        } else {
            1_000 + 100 * lease.unsigned_abs()
        };
        let hold = match self.flaw {
            Flaw::NoGroup => clock,
            _ => number(&view, &cluster.keys, &put, clock),
        };
        let taking = Taking {
            view: &view,
            put: &put,
            remove: &remove,
            record: self.record(at, hold),
            resumes: false,
            ticket: None,
        };
        let session = cluster.session(Patience::SHORT);
        let txn = session.take_txn(&taking, lease).unwrap();
        let sent = Sent {
            txn: self.flawed(at, txn),
            asked: names_of(&put),
            keys: put.into_iter().map(|(key, _)| key).collect(),
            hold,
            lease,
            age,
            tried: false,
        };
        (Some(sent), view)
    }

    fn flawed(&self, at: usize, mut txn: Txn) -> Txn {
        let keys = Keys::new("/p");
        let names = self.plans[at].names.iter().map(|name| named(name));
        let own: Vec<LockName> = names.collect();
        let is_of = |compare: &Compare, names: &[LockName]| {
            names.iter().any(|name| {
                [super::keys::Part::Hold, super::keys::Part::Life]
                    .iter()
                    .any(|part| compare.range.start == keys.exclusive(*part, name))
            })
        };
        let is_last = |key: &str| key.contains("//last/");
        if self.flaw == Flaw::FirstLast {
            let others: Vec<String> = own.iter().skip(1).map(|name| keys.last(name)).collect();
            txn.success.retain(|operation| match operation {
                Operation::Put { key, .. } => !others.contains(key),
                Operation::Read(_) | Operation::Delete(_) => true,
            });
        }
        let ancestors: Vec<LockName> = own.iter().flat_map(LockName::ancestors).collect();
        txn.compare.retain(|compare| match self.flaw {
            Flaw::NoRange => compare.range.end.is_empty(),
            Flaw::NoAncestors => !is_of(compare, &ancestors),
            Flaw::NoOwnKeys => !is_of(compare, &own) && !is_last(&compare.range.start),
            Flaw::NoLast => !is_last(&compare.range.start),
            _ => true,
        });
        txn
    }

    fn keeping(&self, at: usize, held: &Held) -> Arc<Keeping> {
        let since_ms = crate::sys::process::boottime_milliseconds();
        let taken = Taken {
            record: self.record(at, held.hold),
            lease: Granted {
                since_ms,
                ..granted(held.lease)
            },
            sent_ms: since_ms,
            keys: held.keys.clone(),
            written: held.written,
            epoch: Epoch::default(),
            tickets: Vec::new(),
            lines: KnownLines::default(),
        };
        Keeping::begin(&cluster(), taken)
    }
}

fn granted(id: i64) -> Granted {
    Granted {
        id,
        ttl: TTL,
        since_ms: 0,
        epoch: Epoch::default(),
        due_ms: 0,
    }
}

/// What a transaction that takes has come to.
enum Fate {
    Taken(i64),
    Changed(View),
    NoLease,
}

fn fate(store: &mut Store, keys: &Keys, sent: &Sent) -> Fate {
    let Some(answer) = store.apply(&sent.txn) else {
        return Fate::NoLease;
    };
    if answer.succeeded {
        return Fate::Taken(answer.revision);
    }
    let view = View::of_answer(keys, &sent.asked, answer);
    let own = view.get(&keys.of(super::keys::Part::Life, &sent.keys[0]));
    match own.filter(|own| sent.tried && own.lease == sent.lease) {
        Some(own) => Fate::Taken(own.create_revision),
        None => Fate::Changed(view),
    }
}

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let client = |plan: &Plan| Client {
            phase: Phase::Idle,
            attempts: plan.attempts,
            known: BTreeMap::new(),
            has_resumed: false,
            has_taken_over: false,
        };
        vec![World {
            store: Store::new(
                &Keys::new("/p"),
                self.plans
                    .iter()
                    .flat_map(|plan| plan.names.iter().copied()),
            ),
            numbers: BTreeMap::new(),
            has_fallen: false,
            clients: self.plans.iter().map(client).collect(),
            ends: self.ends,
            losses: self.losses,
            deaths: self.deaths,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let mut kept = BTreeSet::new();
        let mut may_pass = true;
        for (at, client) in world.clients.iter().enumerate() {
            match &client.phase {
                Phase::Idle if client.attempts > 0 => steps.push(Step::Try(at)),
                Phase::Idle | Phase::Gone => {}
                Phase::Looks(_) => steps.extend([Step::Look(at), Step::Decide(at)]),
                Phase::Takes(sent) => {
                    kept.insert(sent.lease);
                    steps.push(Step::Send(at, false));
                    if world.losses > 0 {
                        steps.push(Step::Send(at, true));
                    }
                }
                Phase::Holds(held) => {
                    kept.insert(held.lease);
                    match &held.resuming {
                        Some(sent) => {
                            kept.insert(sent.lease);
                            steps.push(Step::Send(at, false));
                        }
                        None => steps.extend([Step::Beat(at), Step::Release(at)]),
                    }
                    if world.deaths > 0 {
                        steps.push(Step::Killed(at));
                    }
                    if held.is_at_work && held.age + 1 >= OVER {
                        steps.push(Step::EndWork(at));
                        may_pass &= self.flaw == Flaw::NoDeadline;
                    }
                }
            }
        }
        for lease in &world.store.leases {
            if world.ends > 0 || !kept.contains(lease) {
                steps.push(Step::LeaseEnds(*lease));
            }
        }
        if may_pass {
            steps.push(Step::Clock);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let keys = Keys::new("/p");
        match step {
            Step::Try(at) => {
                next.clients[at].attempts -= 1;
                let (sent, _) = self.take(&mut next, at, View::guess(), None);
                next.clients[at].phase = Phase::Takes(sent?);
            }
            Step::Look(at) => {
                let asked: Vec<LockName> = self.plans[at]
                    .names
                    .iter()
                    .map(|name| named(name))
                    .collect();
                let answer = next.store.apply(&Txn::of_reads(reads(&keys, &asked)))?;
                let view = View::of_answer(&keys, &asked, answer);
                next.clients[at].phase = Phase::Looks(view);
            }
            Step::Decide(at) => {
                let Phase::Looks(view) = next.clients[at].phase.clone() else {
                    return None;
                };
                let (sent, view) = self.take(&mut next, at, view, None);
                next.clients[at].phase = sent.map_or(Phase::Looks(view), Phase::Takes);
            }
            Step::Send(at, is_lost) => self.send(&mut next, at, is_lost),
            Step::Beat(at) => self.beat(&mut next, at)?,
            Step::Release(at) => {
                let Phase::Holds(held) = next.clients[at].phase.clone() else {
                    return None;
                };
                let kept = self.keeping(at, &held);
                let txn = kept.release_txn(&kept.state());
                let _ = next.store.apply(&txn);
                next.clients[at].phase = Phase::Idle;
            }
            Step::Killed(at) => {
                next.deaths -= 1;
                next.clients[at].phase = Phase::Gone;
            }
            Step::EndWork(at) => next.clients[at].phase = Phase::Gone,
            Step::LeaseEnds(lease) => {
                let is_kept = next.clients.iter().any(|client| match &client.phase {
                    Phase::Holds(held) => held.lease == lease,
                    Phase::Takes(sent) => sent.lease == lease,
                    _ => false,
                });
                next.ends -= u8::from(is_kept);
                next.store.end(lease);
            }
            Step::Clock => {
                let later = |steps: &mut u8| *steps = (*steps + 1).min(LONG);
                for client in &mut next.clients {
                    let known = client.known.values_mut();
                    known.for_each(|(_, steps)| later(steps));
                    match &mut client.phase {
                        Phase::Takes(sent) => later(&mut sent.age),
                        Phase::Holds(held) => {
                            later(&mut held.age);
                            if let Some(sent) = &mut held.resuming {
                                later(&mut sent.age);
                            }
                        }
                        Phase::Idle | Phase::Looks(_) | Phase::Gone => {}
                    }
                }
            }
        }
        // What is not there any more is forgotten.
        for client in &mut next.clients {
            let store = &next.store;
            client.known.retain(|key, (record, _)| {
                let found = store.keys.get(key);
                found.is_some_and(|found| Written::of(found) == *record)
            });
        }
        Some(next).filter(|next| next != world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two at work", |setting: &Setting, world: &World| {
                let at_work: Vec<usize> = (0..world.clients.len())
                    .filter(|at| {
                        matches!(&world.clients[*at].phase, Phase::Holds(held) if held.is_at_work)
                    })
                    .collect();
                at_work.iter().all(|one| {
                    at_work.iter().filter(|other| *other > one).all(|other| {
                        let (one, other) = (setting.request(*one), setting.request(*other));
                        !one.wants.iter().any(|held| {
                            other.wants.iter().any(|want| {
                                let (holder, asker) = (&one.owner, &other.owner);
                                excludes(held, holder.as_deref(), want, asker.as_deref())
                            })
                        })
                    })
                })
            }),
            Property::always("numbers are given once", |_: &Setting, world: &World| {
                let holds = world
                    .clients
                    .iter()
                    .filter_map(|client| match &client.phase {
                        Phase::Holds(held) => Some(held.hold),
                        _ => None,
                    });
                let holds: Vec<u64> = holds.collect();
                holds.iter().collect::<BTreeSet<_>>().len() == holds.len()
            }),
            Property::always("numbers of a lock grow", |_: &Setting, world: &World| {
                !world.has_fallen
            }),
            Property::sometimes("takeover", |_: &Setting, world: &World| {
                world
                    .clients
                    .iter()
                    .any(|client| client.has_taken_over && matches!(client.phase, Phase::Holds(_)))
            }),
            Property::sometimes("resumed", |_: &Setting, world: &World| {
                world.clients.iter().any(|client| client.has_resumed)
            }),
        ]
    }
}

impl Setting {
    fn beat(&self, next: &mut World, at: usize) -> Option<()> {
        let Phase::Holds(mut held) = next.clients[at].phase.clone() else {
            return None;
        };
        let kept = self.keeping(at, &held);
        let check = kept.check_txn(&kept.state());
        let is_alive = next.store.leases.contains(&held.lease);
        let answer = next.store.apply(&check)?;
        if (is_alive && answer.succeeded) || self.flaw == Flaw::BlindBeat {
            held.age = 0;
            next.clients[at].phase = Phase::Holds(held);
            return Some(());
        }
        // The record first, then the life key, of each lock.
        let found = answer.found().next()?;
        let record = found.map(|found| super::view::content(&found.value, true));
        let is_ours = record
            .as_ref()
            .and_then(crate::record::Content::record)
            .is_some_and(|record| record.hold == held.hold);
        if !is_ours {
            next.clients[at].phase = Phase::Gone;
            return Some(());
        }
        let record = self.record(at, held.hold);
        let keys = Keys::new("/p");
        let asked: Vec<LockName> = held.keys.iter().map(|key| key.name.clone()).collect();
        let answer = next.store.apply(&Txn::of_reads(reads(&keys, &asked)))?;
        let view = View::of_answer(&keys, &asked, answer);
        let request = request_to_resume(&record, &held.keys);
        let (decision, view) = self.decide(&mut next.clients[at], &request, view);
        let Decision::Take { put, remove } = decision else {
            next.clients[at].phase = Phase::Gone;
            return Some(());
        };
        if !remove.is_empty() || put.iter().any(|(_, old)| old.is_none()) {
            next.clients[at].phase = Phase::Gone;
            return Some(());
        }
        let lease = next.store.grant();
        let taking = Taking {
            view: &view,
            put: &put,
            remove: &[],
            record,
            resumes: true,
            ticket: None,
        };
        let cluster = cluster();
        let session = cluster.session(Patience::SHORT);
        let txn = session.take_txn(&taking, lease).ok()?;
        held.resuming = Some(Sent {
            txn: self.flawed(at, txn),
            keys: held.keys.clone(),
            asked,
            hold: held.hold,
            lease,
            age: 0,
            tried: false,
        });
        next.clients[at].phase = Phase::Holds(held);
        Some(())
    }
}

impl Setting {
    fn send(&self, next: &mut World, at: usize, is_lost: bool) {
        let keys = Keys::new("/p");
        let phase = next.clients[at].phase.clone();
        let (sent, held) = match &phase {
            Phase::Takes(sent) => (sent.clone(), None),
            Phase::Holds(held) => match &held.resuming {
                Some(sent) => (sent.clone(), Some(held.clone())),
                None => return,
            },
            _ => return,
        };
        if is_lost {
            next.losses -= 1;
            let _ = next.store.apply(&sent.txn);
            next.clients[at].phase = Phase::Takes(Sent {
                tried: true,
                ..sent
            });
            return;
        }
        let fate = fate(&mut next.store, &keys, &sent);
        if matches!(fate, Fate::Taken(_)) && held.is_none() {
            let names = self.plans[at].names.iter();
            let trees = names.map(|name| name.split('/').next().unwrap_or(name));
            for tree in trees.collect::<BTreeSet<_>>() {
                let before = next.numbers.insert(tree, sent.hold);
                next.has_fallen |= before >= Some(sent.hold);
            }
        }
        next.clients[at].phase = match (fate, held) {
            (Fate::Taken(written), held) => {
                next.clients[at].has_resumed |= held.is_some();
                // Too late to begin, or to go on.
                if sent.age + 1 >= OVER {
                    Phase::Gone
                } else {
                    Phase::Holds(Held {
                        keys: sent.keys,
                        hold: sent.hold,
                        lease: sent.lease,
                        written,
                        age: sent.age,
                        is_at_work: true,
                        resuming: None,
                    })
                }
            }
            (Fate::Changed(_) | Fate::NoLease, Some(_)) => Phase::Gone,
            (Fate::Changed(view), None) => Phase::Looks(view),
            (Fate::NoLease, None) => Phase::Idle,
        };
    }
}

fn plan(names: &[&'static str]) -> Plan {
    Plan {
        names: names.to_vec(),
        owner: None,
        mode: Mode::Exclusive,
        attempts: 1,
    }
}

fn setting(plans: Vec<Plan>) -> Setting {
    Setting {
        plans,
        ends: 1,
        losses: 1,
        deaths: 1,
        has_one_clock: false,
        flaw: Flaw::None,
    }
}

fn check(setting: Setting, until: HasDiscoveries) -> impl Checker<Setting> {
    let checker = setting.checker().threads(2).finish_when(until);
    checker.spawn_bfs().join()
}

#[test]
fn no_two_are_at_work_whatever_is_lost_ended_or_killed() {
    let shared = |names: &[&'static str]| Plan {
        mode: Mode::Shared,
        ..plan(names)
    };
    let of = |owner, names: &[&'static str]| Plan {
        owner: Some(owner),
        ..plan(names)
    };
    let settings = vec![
        setting(vec![plan(&["x"]), plan(&["x"])]),
        setting(vec![plan(&["a"]), plan(&["a/b"])]),
        setting(vec![plan(&["a/b"]), plan(&["a"])]),
        setting(vec![shared(&["x"]), plan(&["x"])]),
        setting(vec![shared(&["a"]), plan(&["a/b"])]),
        setting(vec![plan(&["a", "b"]), plan(&["b", "a"])]),
        Setting {
            losses: 0,
            deaths: 0,
            ..setting(vec![of("me", &["a"]), of("me", &["a/b"])])
        },
    ];
    for setting in settings {
        let plans = format!("{:?}", setting.plans);
        let checker = check(setting, HasDiscoveries::All);
        println!("{} states: {plans}", checker.unique_state_count());
        checker.assert_no_discovery("no two at work");
        checker.assert_no_discovery("numbers are given once");
        checker.assert_no_discovery("numbers of a lock grow");
        if !plans.contains("me") {
            checker.assert_any_discovery("takeover");
        }
        checker.assert_any_discovery("resumed");
    }
}

#[test]
fn what_is_left_out_is_noticed() {
    let same = || vec![plan(&["x"]), plan(&["x"])];
    // Seen held, seen free, and held again.
    let twice = || {
        let again = Plan {
            attempts: 2,
            ..plan(&["a/b"])
        };
        vec![plan(&["a"]), again]
    };
    let related = || vec![plan(&["a"]), plan(&["a/b"])];
    for (flaw, plans) in [
        (Flaw::NoGrace, same()),
        (Flaw::NoDeadline, same()),
        (Flaw::NoOwnKeys, same()),
        (Flaw::BlindBeat, same()),
        (Flaw::Unjudged, twice()),
        (Flaw::NoRange, related()),
        (Flaw::NoAncestors, related()),
    ] {
        let flawed = Setting {
            flaw,
            ..setting(plans)
        };
        let noticed = ["no two at work"].into_iter().collect();
        let checker = check(flawed, HasDiscoveries::AnyOf(noticed));
        let states = checker.unique_state_count();
        println!("{flaw:?}: {states} states");
        let is_noticed = checker.discovery("no two at work").is_some();
        assert!(is_noticed, "{flaw:?} was not noticed in {states} states");
    }
}

/// What is looked at is numbers alone, so nothing is lost, ended or killed.
fn numbering(plans: Vec<Plan>, has_one_clock: bool, flaw: Flaw) -> Setting {
    Setting {
        ends: 0,
        losses: 0,
        deaths: 0,
        has_one_clock,
        flaw,
        ..setting(plans)
    }
}

#[test]
fn numbers_of_locks_grow_and_are_given_once_whatever_clocks_say() {
    for has_one_clock in [false, true] {
        for plans in [
            vec![plan(&["x"]), plan(&["x"])],
            vec![plan(&["x"]), plan(&["y"])],
            vec![plan(&["a", "b"]), plan(&["b"])],
            vec![plan(&["a"]), plan(&["a/b"])],
        ] {
            let names = format!("{plans:?}");
            let checker = check(
                numbering(plans, has_one_clock, Flaw::None),
                HasDiscoveries::AnyFailures,
            );
            println!("{} states: {names}", checker.unique_state_count());
            checker.assert_no_discovery("numbers are given once");
            checker.assert_no_discovery("numbers of a lock grow");
        }
    }
    let grow = "numbers of a lock grow";
    for (flaw, has_one_clock, plans, property) in [
        (Flaw::NoLast, false, vec![plan(&["x"]), plan(&["x"])], grow),
        (
            Flaw::FirstLast,
            false,
            vec![plan(&["a", "b"]), plan(&["b"])],
            grow,
        ),
        (
            Flaw::NoGroup,
            true,
            vec![plan(&["x"]), plan(&["y"])],
            "numbers are given once",
        ),
    ] {
        let until = HasDiscoveries::AnyOf([property].into_iter().collect());
        let checker = check(numbering(plans, has_one_clock, flaw), until);
        let states = checker.unique_state_count();
        println!("{flaw:?}: {states} states");
        assert!(
            checker.discovery(property).is_some(),
            "{flaw:?} was not noticed"
        );
    }
}

mod once_a_night;
