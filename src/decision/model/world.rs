//! What the model is made of: small states, and the records, facts and requests that they stand for.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::flaws::Flaw;
use crate::decision::liveness::DEFAULT_MAX_AGE;
use crate::decision::{Asker, Key, Observer, Request, Want};
use crate::identity::{BootId, Pid, ProcessId};
use crate::name::LockName;
use crate::record::Mode;

/// The locks of the model, by number.
pub(super) const NAMES: [&str; 4] = ["a", "a/t", "a/u", "b"];

/// The boot-time clock. It stands still: what has run out was begun earlier.
pub(super) const NOW_MS: u64 = 1_000_000;

pub(super) const TTL_MS: u64 = 60_000;

/// Longer than a lock stays reserved.
pub(super) const LONG_MS: u64 = 10_000;

pub(super) const BOOT: &str = "boot";

/// What keeps a hold alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// `run`.
    Run,
    /// `run --exec`.
    Exec,
    /// `Lock::hold`: the process itself, which may start commands.
    Library,
    /// `acquire --pid`.
    Process,
    /// `acquire --ttl`.
    Lease,
}

/// What one process of a setting is going to do.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) wants: Vec<(u8, Mode)>,
    pub(super) owner: Option<&'static str>,
    pub(super) holder: Holder,
    /// `--close`: the command does not inherit the kernel lock.
    pub(super) close: bool,
    /// The command closes its descriptor of the lock file while it runs.
    pub(super) lets_go: bool,
    /// The command leaves a process behind that has its descriptors.
    pub(super) daemon: bool,
    /// `--die-with`: the work ends with the process that it follows.
    pub(super) dies_with: bool,
    pub(super) waits: bool,
    /// How often its wait is cut off; its place is kept, and it comes again.
    pub(super) cuts: u8,
    /// It may be stopped (SIGSTOP) while it waits.
    pub(super) may_stop: bool,
    pub(super) pid_namespace: u64,
    /// Commands that it starts under one hold, one after the other.
    pub(super) commands: u8,
    pub(super) attempts: u8,
    pub(super) renewals: u8,
    /// It belongs to the command of this other process.
    pub(super) inside: Option<usize>,
    /// That command does not wait for it.
    pub(super) background: bool,
    /// It does not wait for ever.
    pub(super) gives_up: bool,
}

/// One record: the number of its name, and its index if it is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) name: u8,
    pub(super) index: Option<u8>,
}

/// A lock file in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) slot: Slot,
    /// Never used again, unlike the inode.
    pub(super) id: u8,
    pub(super) inode: u8,
    pub(super) by: u8,
    pub(super) number: u8,
    /// The process in its slot for what changes, 0 if none.
    pub(super) pid: u8,
    pub(super) confirmed: bool,
    pub(super) expired: bool,
    pub(super) let_go: bool,
    /// It is being written.
    pub(super) torn: bool,
    /// It has been given back.
    pub(super) released: bool,
}

/// A record of a process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Own {
    pub(super) slot: Slot,
    pub(super) id: u8,
    pub(super) inode: u8,
}

/// One record to write, in place of what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Put {
    pub(super) slot: Slot,
    pub(super) replaced: Option<u8>,
}

/// What the library says a process should do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Take {
        puts: Vec<Put>,
        removes: Vec<u8>,
    },
    AlreadyHeld(u8),
    Wait {
        /// The ticket for which the lock is reserved.
        behind: Option<u8>,
        restores_turn: bool,
        sleep: Sleep,
    },
    Blocked,
}

/// What a waiter sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sleep {
    /// The end of the hold in this file.
    Released(u8),
    /// The end of the wait with this ticket. It looks again after so many times 5 s anyway; 0: after
    /// a second.
    LeftQueue(u8, u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Idle,
    /// In the guard, about to decide.
    Deciding,
    /// Writes the number, then each record, then removes dead relatives.
    Committing {
        puts: Vec<Put>,
        removes: Vec<u8>,
        done: u8,
    },
    /// In the guard, about to leave it.
    Leaving(Box<Self>),
    Queued(Sleep),
    /// It stands where it stood, and is about to decide again.
    Resumed,
    /// A detached hold is about to be handed over.
    Confirming,
    /// It was found in its place, and is about to be confirmed.
    InPlace,
    Holding,
    /// In the guard, about to look at one of its own records.
    Releasing(u8),
    /// In the guard, about to unlink what it looked at.
    Unlinking(u8),
    /// It has left the guard, and still holds its kernel lock.
    Unlocking,
    Renewing(u8),
    WritingRenewal(u8, u8),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Child {
    None,
    /// It has written its PID into so many records.
    Forked(u8),
    Recorded,
    /// The path was its own.
    Checked,
    Running,
    Gone,
    /// It has ended, and left a process with its descriptors.
    Daemon,
}

impl Child {
    /// Whether its process exists.
    pub(super) fn exists(self) -> bool {
        matches!(
            self,
            Self::Forked(_) | Self::Recorded | Self::Checked | Self::Running
        )
    }

    /// Whether it has not executed its command yet.
    pub(super) fn is_starting(self) -> bool {
        self.exists() && self != Self::Running
    }
}

/// Whether a free lock is reserved for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reserved {
    No,
    Yes,
    /// It was, and the time has passed.
    Missed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) alive: bool,
    pub(super) stopped: bool,
    pub(super) step: Step,
    pub(super) attempts: u8,
    pub(super) renewals: u8,
    pub(super) child: Child,
    /// Children it has had, which gives each one another PID.
    pub(super) children: u8,
    /// Commands that it still starts under this hold.
    pub(super) commands: u8,
    /// The process that a detached hold follows, or that a run dies with, is alive.
    pub(super) followed: bool,
    /// The process that its run dies with has exited, and nobody has ended the work yet.
    pub(super) left: bool,
    /// All of its work has been ended by force.
    pub(super) over: bool,
    pub(super) own: Vec<Own>,
    pub(super) number: u8,
    /// Its open lock files are locked.
    pub(super) locked: bool,
    pub(super) let_go: bool,
    pub(super) ticket: Option<u8>,
    /// The place that is kept for it while it is gone.
    pub(super) kept: Option<u8>,
    pub(super) cuts: u8,
    pub(super) reserved: Reserved,
    /// A detached hold was handed over; a process works under its own hold.
    pub(super) in_force: bool,
    pub(super) expired: bool,
    /// A person broke its hold while it was at work.
    pub(super) broken: bool,
}

/// Whoever is in the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Visitor {
    Process(u8),
    /// `break`, about to unlink what has this name.
    Break(Slot),
    /// `cleanup`, likewise.
    Cleanup(Slot),
}

/// What a person was shown, to decide whether to break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shown {
    pub(super) slot: Slot,
    pub(super) id: u8,
    pub(super) inode: u8,
    pub(super) number: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// By slot.
    pub(super) files: Vec<File>,
    pub(super) processes: Vec<Process>,
    pub(super) guard: Option<Visitor>,
    /// `.onehold/last`.
    pub(super) last: u8,
    pub(super) last_id: u8,
    pub(super) last_ticket: u8,
    pub(super) shown: Option<Shown>,
    /// What `cleanup` removes, if it does not judge again in the guard.
    pub(super) listed: Option<Slot>,
    /// How often somebody still breaks a hold.
    pub(super) breaks: u8,
    pub(super) greatest: u8,
    pub(super) numbers_shrank: bool,
    pub(super) broke_another: bool,
}

impl World {
    pub(super) fn file_at(&self, slot: Slot) -> Option<&File> {
        self.files.iter().find(|file| file.slot == slot)
    }

    pub(super) fn file(&self, id: u8) -> Option<&File> {
        self.files.iter().find(|file| file.id == id)
    }

    pub(super) fn file_mut(&mut self, id: u8) -> Option<&mut File> {
        self.files.iter_mut().find(|file| file.id == id)
    }

    pub(super) fn is_in_place(&self, own: Own) -> bool {
        self.file_at(own.slot).is_some_and(|file| file.id == own.id)
    }

    /// Whether the work of a hold has been ended by force.
    pub(super) fn is_over(&self, number: u8) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.over && process.number == number)
    }

    /// Removes all files of a hold: its several names are those of one file.
    pub(super) fn remove_hold(&mut self, file: &File) {
        self.files
            .retain(|other| (other.by, other.number) != (file.by, file.number));
    }

    pub(super) fn put(&mut self, file: File) {
        self.files.retain(|old| old.slot != file.slot);
        self.files.push(file);
        self.files.sort_by_key(|file| file.slot);
    }

    /// An inode that neither a name nor an open descriptor uses.
    pub(super) fn free_inode(&self) -> u8 {
        let is_open = |inode| {
            self.processes.iter().any(|process| {
                process.has_descriptor() && process.own.iter().any(|own| own.inode == inode)
            })
        };
        let is_named = |inode| self.files.iter().any(|file| file.inode == inode);
        (1..u8::MAX)
            .find(|inode| !is_named(*inode) && !is_open(*inode))
            .unwrap_or(u8::MAX)
    }

    /// A record whose holder, or a child of it, may do anything under it.
    pub(super) fn is_kept(&self, file: &File, plan: &Plan) -> bool {
        let process = &self.processes[usize::from(file.by)];
        let is_own = process.own.iter().any(|own| own.id == file.id);
        let writer_works = is_own && process.exists();
        match plan.holder {
            Holder::Lease if file.confirmed => !file.expired,
            Holder::Process if file.confirmed => process.followed,
            Holder::Lease | Holder::Process => writer_works,
            Holder::Run | Holder::Exec | Holder::Library => {
                // A hold that was killed between two commands stays beside a daemon of the first.
                let between = process.child == Child::Daemon && file.pid == 0 && !plan.close;
                writer_works || (is_own && (process.child.exists() || between))
            }
        }
    }
}

impl Process {
    pub(super) fn exists(&self) -> bool {
        self.alive && self.step != Step::Done
    }

    /// Whether its lock files are open somewhere.
    pub(super) fn has_descriptor(&self) -> bool {
        self.exists() || self.child.exists() || self.child == Child::Daemon
    }
}

/// A setting: who takes part, and what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) plans: Vec<Plan>,
    pub(super) cleanup: bool,
    pub(super) breaks: u8,
    /// There are more dead relatives than one decision removes.
    pub(super) too_many_dead: bool,
    pub(super) flaw: Flaw,
    /// What must happen in it, or it shows nothing.
    pub(super) must_happen: Vec<&'static str>,
    pub(super) names: Vec<LockName>,
    requests: Vec<Request>,
    pub(super) now: DateTime<Utc>,
}

pub(super) fn observer(pid_namespace: u64) -> Observer {
    Observer {
        boot: Some(boot_id()),
        machine: Some("machine".to_owned()),
        pid_namespace: Some(pid_namespace),
        is_in_container: false,
        hostname: Some("host".to_owned()),
        incarnation: None,
    }
}

pub(super) fn boot_id() -> BootId {
    BootId {
        id: BOOT.to_owned(),
        masked: false,
    }
}

pub(super) fn wrapper_pid(process: usize) -> u8 {
    u8::try_from(process).unwrap() * 20 + 1
}

pub(super) fn followed_pid(process: usize) -> u8 {
    wrapper_pid(process) + 1
}

/// The PID of its latest child.
pub(super) fn child_pid(process: usize, children: u8) -> u8 {
    followed_pid(process) + children
}

pub(super) fn process_id(pid: u8) -> ProcessId {
    ProcessId {
        pid: Pid::new(u32::from(pid)).unwrap(),
        start: Some(u64::from(pid) * 100),
    }
}

impl Setting {
    pub(super) fn new(plans: Vec<Plan>) -> Self {
        let names: Vec<LockName> = NAMES
            .into_iter()
            .map(|name| LockName::new(name).unwrap())
            .collect();
        let requests = plans
            .iter()
            .enumerate()
            .map(|(at, plan)| Request {
                wants: plan
                    .wants
                    .iter()
                    .map(|(name, mode)| Want {
                        name: names[usize::from(*name)].clone(),
                        mode: *mode,
                    })
                    .collect(),
                owner: plan.owner.map(str::to_owned),
                inside: Vec::new(),
                asker: match plan.holder {
                    Holder::Run | Holder::Exec | Holder::Library => Asker::Caller,
                    Holder::Process => Asker::Process(process_id(followed_pid(at))),
                    Holder::Lease => Asker::Lease,
                },
                max_age_ms: u64::try_from(DEFAULT_MAX_AGE.as_millis()).unwrap(),
                take_zombies: true,
                replace: Vec::new(),
                skip_queue: false,
                keep_ms: None,
                waits_until_ms: (plan.waits && plan.inside.is_some()).then_some(if plan.gives_up {
                    NOW_MS + LONG_MS
                } else {
                    u64::MAX
                }),
                waits_beside: Some(0),
                ticket: None,
                observer: Some(observer(plan.pid_namespace)),
                over: Vec::new(),
            })
            .collect();
        Self {
            plans,
            cleanup: false,
            breaks: 0,
            too_many_dead: false,
            flaw: Flaw::None,
            must_happen: Vec::new(),
            names,
            requests,
            now: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        }
    }

    pub(super) fn is_flawed(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    pub(super) fn start(&self) -> World {
        World {
            files: Vec::new(),
            processes: self
                .plans
                .iter()
                .map(|plan| Process {
                    alive: true,
                    stopped: false,
                    step: Step::Idle,
                    attempts: plan.attempts,
                    renewals: plan.renewals,
                    child: Child::None,
                    children: 0,
                    commands: plan.commands,
                    followed: plan.holder == Holder::Process || plan.dies_with,
                    left: false,
                    over: false,
                    own: Vec::new(),
                    number: 0,
                    locked: false,
                    let_go: false,
                    ticket: None,
                    kept: None,
                    cuts: plan.cuts,
                    reserved: Reserved::No,
                    in_force: false,
                    expired: false,
                    broken: false,
                })
                .collect(),
            guard: None,
            last: 0,
            last_id: 0,
            last_ticket: 0,
            shown: None,
            listed: None,
            breaks: self.breaks,
            greatest: 0,
            numbers_shrank: false,
            broke_another: false,
        }
    }

    pub(super) fn request(&self, world: &World, process: usize) -> Request {
        let mut request = self.requests[process].clone();
        request.ticket = world.processes[process].ticket.map(u64::from);
        if let Some(parent) = self.plans[process].inside {
            request.inside = vec![u64::from(world.processes[parent].number)];
        }
        request
    }

    pub(super) fn wants(&self, process: usize) -> &[Want] {
        &self.requests[process].wants
    }

    /// What a file keeps from others.
    pub(super) fn held(&self, file: &File) -> (Want, Option<&'static str>) {
        let want = Want {
            name: self.names[usize::from(file.slot.name)].clone(),
            mode: match file.slot.index {
                None => Mode::Exclusive,
                Some(_) => Mode::Shared,
            },
        };
        (want, self.plans[usize::from(file.by)].owner)
    }

    pub(super) fn slot_of(&self, key: &Key) -> Slot {
        let name = self.names.iter().position(|name| *name == key.name);
        Slot {
            name: u8::try_from(name.unwrap()).unwrap(),
            index: key.index.map(|index| u8::try_from(index.number).unwrap()),
        }
    }
}

/// The longest age of a hold, for requests that are made up.
pub(super) fn max_age_ms() -> u64 {
    u64::try_from(Duration::as_millis(&DEFAULT_MAX_AGE)).unwrap()
}
