//! What a process does that holds a lock, and how its hold ends.

use super::flaws::Flaw;
use super::world::{
    Child, File, Holder, Own, Setting, Step, Visitor, World, child_pid, max_age_ms, observer,
    wrapper_pid,
};
use crate::Caller;
use crate::decision::ownership::{May, may_release, may_renew};
use crate::decision::{Asker, Judged, Request};

impl Setting {
    /// A wrapper that holds its lock: it starts commands, and writes what it knows of them.
    pub(super) fn work(&self, world: &mut World, by: usize) -> Option<()> {
        let plan = &self.plans[by];
        let process = &world.processes[by];
        let torn = process
            .own
            .iter()
            .find(|own| world.file(own.id).is_some_and(|file| file.torn));
        if let Some(own) = torn {
            Self::finish_note(world, own.id);
            return Some(());
        }
        if plan.holder == Holder::Exec {
            Self::work_as_exec(world, by);
            return Some(());
        }
        if process.child == Child::Running && process.ticket.is_some() {
            // `Hold::started`.
            Self::leave_queue(&mut world.processes[by]);
            return Some(());
        }
        let is_between = matches!(process.child, Child::None | Child::Gone | Child::Daemon);
        if !is_between || process.commands == 0 {
            return None;
        }
        if !process.own.iter().all(|own| world.is_in_place(*own)) {
            // `Hold::spawn` fails; the caller drops the hold.
            self.begin_release(world, by)?;
            return Some(());
        }
        let commanded: Vec<u8> = process
            .own
            .iter()
            .filter_map(|own| world.file(own.id))
            .filter(|file| file.pid != 0 && file.pid != wrapper_pid(by))
            .map(|file| file.id)
            .collect();
        if !commanded.is_empty() && !self.is_flawed(Flaw::NotCleared) {
            for id in commanded {
                if let Some(file) = world.file_mut(id) {
                    file.pid = 0;
                    file.let_go = false;
                }
            }
            return Some(());
        }
        let process = &mut world.processes[by];
        process.commands -= 1;
        process.children += 1;
        process.child = Child::Forked(0);
        process.let_go = false;
        if plan.holder == Holder::Run {
            process.broken = false;
        }
        Some(())
    }

    /// `Hold::exec`: a look at the path, then it is the command, which ends.
    fn work_as_exec(world: &mut World, by: usize) {
        let process = &world.processes[by];
        if process.in_force {
            let process = &mut world.processes[by];
            process.in_force = false;
            process.alive = false;
            process.locked = false;
            process.step = Step::Done;
        } else if process.own.iter().all(|own| world.is_in_place(*own)) {
            let process = &mut world.processes[by];
            Self::leave_queue(process);
            process.in_force = true;
        } else {
            Self::end(world, by);
        }
    }

    pub(super) fn finish_note(world: &mut World, id: u8) {
        if let Some(file) = world.file_mut(id) {
            file.torn = false;
            file.let_go = true;
        }
    }

    pub(super) fn begin_release(&self, world: &mut World, by: usize) -> Option<()> {
        self.enter_process(world, by)?;
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.in_force = false;
        process.step = Step::Releasing(0);
        let own = process.own.clone();
        let is_detached = matches!(self.plans[by].holder, Holder::Lease | Holder::Process);
        if is_detached && own.len() > 1 && !self.is_flawed(Flaw::NotMarked) {
            // One write into the file that has all the names.
            for own in own {
                if let Some(file) = world.file_mut(own.id) {
                    file.released = true;
                }
            }
        }
        Some(())
    }

    pub(super) fn release(&self, world: &mut World, by: usize) {
        let process = &world.processes[by];
        let own_at = |at: u8| process.own.get(usize::from(at)).copied();
        let next = match process.step {
            Step::Releasing(at) => match own_at(at) {
                None => Step::Leaving(Box::new(Step::Unlocking)),
                Some(own) if self.may_unlink(world, by, own) => Step::Unlinking(at),
                Some(_) => Step::Releasing(at + 1),
            },
            Step::Unlinking(at) => {
                let slot = own_at(at).map(|own| own.slot);
                world.files.retain(|file| Some(file.slot) != slot);
                Step::Releasing(at + 1)
            }
            _ => {
                Self::end(world, by);
                return;
            }
        };
        world.processes[by].step = next;
    }

    /// A `run` compares the file; `onehold release` asks for permission.
    fn may_unlink(&self, world: &World, by: usize, own: Own) -> bool {
        if self.is_flawed(Flaw::BlindRelease) {
            return true;
        }
        if !matches!(self.plans[by].holder, Holder::Lease | Holder::Process) {
            return world.is_in_place(own);
        }
        let memory = self.memory(world, by);
        world.file_at(own.slot).is_some_and(|file| {
            let judged = self.judged_by(world, by, file);
            may_release(&Self::caller(world, by), &judged, &memory) == May::Go
        })
    }

    /// By the number that `acquire` printed.
    fn caller(world: &World, by: usize) -> Caller {
        Caller {
            hold: Some(u64::from(world.processes[by].number)),
            ..Caller::default()
        }
    }

    fn judged_by(&self, world: &World, by: usize, file: &File) -> Judged<u8> {
        self.judged(world, file, &observer(self.plans[by].pid_namespace))
    }

    /// Its hold is over, and everything closed.
    pub(super) fn end(world: &mut World, by: usize) {
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.own.clear();
        process.child = Child::None;
        process.locked = false;
        process.let_go = false;
        process.in_force = false;
        process.expired = false;
        process.broken = false;
        process.step = if process.attempts == 0 {
            Step::Done
        } else {
            Step::Idle
        };
    }

    pub(super) fn renew(&self, world: &mut World, by: usize) {
        let process = &world.processes[by];
        let next = match process.step {
            Step::Renewing(at) => match process.own.get(usize::from(at)) {
                None => Step::Leaving(Box::new(Step::Holding)),
                Some(own) => match world.file_at(own.slot) {
                    Some(file) if self.may_renew(world, by, file) => {
                        Step::WritingRenewal(at, file.id)
                    }
                    _ => Step::Renewing(at + 1),
                },
            },
            Step::WritingRenewal(at, id) => {
                // One write, whatever the number of its names.
                if let Some(renewed) = world.file(id).cloned() {
                    for file in &mut world.files {
                        if (file.by, file.number) == (renewed.by, renewed.number) {
                            file.expired = false;
                        }
                    }
                    world.processes[usize::from(renewed.by)].expired = false;
                }
                Step::Renewing(at + 1)
            }
            _ => return,
        };
        world.processes[by].step = next;
    }

    fn may_renew(&self, world: &World, by: usize, file: &File) -> bool {
        let judged = self.judged_by(world, by, file);
        let caller = Self::caller(world, by);
        if self.is_flawed(Flaw::BlindRenewal) {
            return caller.hold == judged.record().map(|record| record.hold);
        }
        // As `Lock::renew` makes it.
        let request = Request {
            wants: Vec::new(),
            owner: None,
            inside: Vec::new(),
            asker: Asker::Caller,
            max_age_ms: max_age_ms(),
            take_zombies: true,
            replace: Vec::new(),
            skip_queue: false,
            keep_ms: None,
            waits_until_ms: None,
            waits_beside: Some(0),
            ticket: None,
            observer: Some(observer(self.plans[by].pid_namespace)),
            over: Vec::new(),
        };
        let memory = self.memory(world, by);
        let may = may_renew(&caller, &judged, &request, &memory).unwrap();
        may == May::Go
    }

    /// As `BeforeExec::run`.
    pub(super) fn child_step(&self, world: &mut World, of: usize) -> Option<()> {
        let plan = &self.plans[of];
        let process = &world.processes[of];
        let pid = child_pid(of, process.children);
        let next = match process.child {
            Child::Forked(at) => match process.own.get(usize::from(at)).copied() {
                Some(own) => {
                    if let Some(file) = world.file_mut(own.id) {
                        file.pid = pid;
                    }
                    Child::Forked(at + 1)
                }
                None => Child::Recorded,
            },
            Child::Recorded => {
                let is_own = process.own.iter().all(|own| world.is_in_place(*own));
                if is_own || self.is_flawed(Flaw::PathNotChecked) {
                    Child::Checked
                } else {
                    Child::Gone
                }
            }
            Child::Checked => Child::Running,
            Child::Running if self.has_unfinished_inside(world, of) => return None,
            Child::Running if plan.daemon => Child::Daemon,
            Child::Running => Child::Gone,
            Child::None | Child::Gone | Child::Daemon => return None,
        };
        world.processes[of].child = next;
        self.drop_descriptors(world, of);
        Some(())
    }

    /// A command waits for what it has started.
    pub(super) fn has_unfinished_inside(&self, world: &World, of: usize) -> bool {
        self.plans
            .iter()
            .zip(&world.processes)
            .any(|(plan, process)| plan.inside == Some(of) && !plan.background && process.exists())
    }

    /// The kernel unlocks a file with the last descriptor of it.
    pub(super) fn drop_descriptors(&self, world: &mut World, of: usize) {
        let process = &mut world.processes[of];
        let command_has_it = matches!(process.child, Child::Running | Child::Daemon)
            && !self.plans[of].close
            && !process.let_go;
        if !process.exists() && !process.child.is_starting() && !command_has_it {
            process.locked = false;
        }
    }

    pub(super) fn kill(&self, world: &mut World, by: usize) {
        if world.guard == Some(Visitor::Process(u8::try_from(by).unwrap())) {
            world.guard = None;
        }
        let is_detached = matches!(self.plans[by].holder, Holder::Lease | Holder::Process);
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.alive = false;
        process.stopped = false;
        process.in_force &= is_detached;
        process.step = Step::Done;
        self.drop_descriptors(world, by);
    }

    pub(super) fn let_go(&self, world: &mut World, of: usize) -> Option<()> {
        let process = &world.processes[of];
        let can = self.plans[of].lets_go
            && process.child == Child::Running
            && process.step == Step::Holding
            && !process.let_go;
        if !can {
            return None;
        }
        // It takes up to a second until the wrapper notices, which is left out.
        for own in process.own.clone() {
            if let Some(file) = world.file_mut(own.id) {
                file.torn = true;
            }
        }
        world.processes[of].let_go = true;
        Some(())
    }
}
