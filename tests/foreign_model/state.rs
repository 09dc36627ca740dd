//! The states of the model.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Run,
    Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Process(usize),
    Foreign,
    /// A process that was killed before all this began.
    Dead,
}

/// A lock file, by its place in the order of creation.
pub type FileId = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct File {
    pub owner: Owner,
    pub kind: Kind,
    pub number: u8,
    /// The command of a run is on record; a lease is confirmed.
    pub command: bool,
    /// Under whose temporary name it was made, what it was to replace, and what that said: its two
    /// flags.
    pub swap: Option<(usize, FileId, (bool, bool))>,
    pub expired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Idle,
    /// In the guard, about to look at the name.
    Looking,
    /// What was found there. Its process may have ended since, and it may be there no more.
    Judging(Option<FileId>),
    Publishing,
    /// A dead record whose taker left a file aside.
    Recovering(FileId),
    RecoveringAside(FileId),
    /// With whose temporary name, in place of what was judged dead.
    Returning(usize, Option<FileId>),
    /// Judged dead, as it was read.
    Making(FileId, File),
    Unlinking(FileId),
    Exchanging(FileId, FileId, File),
    Verifying(FileId, FileId, File),
    /// With whose temporary name, and what is to come out again.
    PuttingBack(usize, FileId),
    Discarding(usize, FileId),
    /// Published; still in the guard.
    Taken,
    /// The number of a lease has been printed.
    Confirming,
    /// It was found in its place, and is about to be confirmed.
    InPlace,
    Holding,
    Renewing,
    Releasing,
    /// What has the name was compared, and is its own.
    TakingOut,
    /// What had the name has a temporary one.
    Removing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Child {
    None,
    Forked,
    Recorded,
    Running,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub kind: Kind,
    pub alive: bool,
    pub step: Step,
    /// Attempts it still makes.
    pub attempts: u8,
    pub file: Option<FileId>,
    pub child: Child,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Foreign {
    Idle,
    Holding,
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub name: Option<FileId>,
    /// The file under the temporary name of each process.
    pub aside: Vec<Option<FileId>>,
    pub files: Vec<File>,
    pub guard: Option<usize>,
    /// A child that is not on record yet keeps the record by its kernel lock.
    pub kernel_locks: bool,
    pub processes: Vec<Process>,
    pub foreign: Foreign,
    pub foreign_attempts: u8,
    /// `last` of the store.
    pub last: u8,
    pub numbers_shrank: bool,
    /// What has happened on the way here.
    pub taken_over: bool,
    pub put_back: bool,
    pub recovered: bool,
}

impl State {
    // `judge_record`.
    /// No process of its record is alive, or the lease has expired.
    pub fn is_dead(&self, id: FileId) -> bool {
        let file = &self.files[id];
        match (file.owner, file.kind) {
            (Owner::Dead, _) => true,
            (Owner::Foreign, _) => {
                self.foreign != Foreign::Holding || self.foreigns_file() != Some(id)
            }
            (Owner::Process(_), Kind::Lease) if file.command => file.expired,
            (Owner::Process(by), _) => {
                let process = &self.processes[by];
                // A live process keeps every record that names it.
                let wrapper = process.alive && process.step != Step::Done;
                let child = process.file == Some(id) && process.has_child();
                !wrapper && !(child && (file.command || self.kernel_locks))
            }
        }
    }

    fn foreigns_file(&self) -> Option<FileId> {
        self.files
            .iter()
            .rposition(|file| file.owner == Owner::Foreign)
    }

    /// A file of another program that was left aside, and under whose temporary name.
    pub fn foreigns_aside(&self) -> Option<(usize, FileId)> {
        let is_ours = |id: &FileId| matches!(self.files[*id].owner, Owner::Process(_));
        let aside = self.aside.iter().enumerate();
        let mut aside = aside.filter_map(|(slot, id)| Some((slot, id.filter(|id| !is_ours(id))?)));
        aside.next()
    }

    /// Removes a record that a killed process has left under a temporary name, which is the same for all.
    pub fn claim_temporary_name(&mut self) -> bool {
        let is_ours = |id: FileId| matches!(self.files[id].owner, Owner::Process(_));
        let left = self.aside.iter().position(|id| id.is_some_and(is_ours));
        left.map(|slot| self.aside[slot] = None).is_some()
    }

    /// How many are in their critical sections.
    pub fn holders(&self) -> usize {
        let ours = self.processes.iter().filter(|process| match process.kind {
            Kind::Run => process.child == Child::Running,
            Kind::Lease => {
                let published = matches!(
                    process.step,
                    Step::Holding | Step::Renewing | Step::Releasing | Step::TakingOut
                );
                let valid = process.file.is_some_and(|id| !self.files[id].expired);
                process.alive && published && valid
            }
        });
        ours.count() + usize::from(self.foreign == Foreign::Holding)
    }

    // `number::next`.
    /// A new file by a process; no hold had its number before.
    pub fn create(&mut self, by: usize, kind: Kind, judged: Option<(FileId, &File)>) -> FileId {
        let swap = judged.map(|(judged, read)| (by, judged, (read.command, read.expired)));
        let replaced = judged.map_or(0, |(_, read)| read.number);
        let number = self.last.max(replaced) + 1;
        self.last = number;
        let greatest = self.files.iter().map(|file| file.number).max();
        self.numbers_shrank |= greatest.is_some_and(|greatest| number <= greatest);
        self.files.push(File {
            owner: Owner::Process(by),
            kind,
            number,
            command: false,
            swap,
            expired: false,
        });
        self.files.len() - 1
    }

    /// Leaves the guard at the end of an attempt.
    pub fn leave(&mut self, by: usize, next: Step) {
        if self.guard == Some(by) {
            self.guard = None;
        }
        let process = &mut self.processes[by];
        process.step = next;
        if process.step == Step::Idle && process.attempts == 0 {
            process.step = Step::Done;
        }
    }

    /// Whether a newcomer can take the lock when nothing else happens.
    pub fn can_be_taken(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..4 {
            let Some(found) = state.name else {
                return true;
            };
            if !state.is_dead(found) {
                // A live holder that does nothing any more never releases: there must be none.
                return false;
            }
            match state.files[found].swap {
                Some((slot, judged, _)) if state.aside[slot].is_some() => {
                    let aside = state.aside[slot].take();
                    if aside != Some(judged) && aside != Some(found) {
                        state.name = aside;
                    }
                }
                _ => return true,
            }
        }
        false
    }
}

impl Process {
    pub fn has_child(&self) -> bool {
        matches!(self.child, Child::Forked | Child::Recorded | Child::Running)
    }
}
