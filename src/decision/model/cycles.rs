//! Which waits would never end, by the state itself, and whether those, and no others, are refused.

use super::properties::{is_full, stands_against};
use super::world::{Child, File, Holder, Setting, Step, World};

/// Both directions: who is refused would have waited for ever, and who would wait for ever is refused.
pub(super) fn refused_if_endless(setting: &Setting, world: &World, refused: bool) -> bool {
    (0..world.processes.len()).all(|at| {
        let plan = &setting.plans[at];
        if world.processes[at].step != Step::Deciding || plan.inside.is_none() || !plan.waits {
            return true;
        }
        let memory = setting.memory(world, at);
        if !setting.would_wait_for_hold(&memory, at) {
            return true;
        }
        let is_refused = setting.completes_cycle(&memory, at);
        let is_endless = is_endless(setting, world, at);
        if refused {
            !is_refused || is_endless
        } else {
            !is_endless || is_refused
        }
    })
}

/// Whether all holds in the way of a process, which would wait from now on, wait for each other and for it.
fn is_endless(setting: &Setting, world: &World, caller: usize) -> bool {
    let all = 0..world.processes.len();
    let waits = |at: usize| at == caller || world.processes[at].ticket.is_some();
    // Those that wait for what may end, or wait no longer than the caller, go on, and so do the holds that they are in.
    let mut goes_on = vec![false; world.processes.len()];
    loop {
        let before = goes_on.clone();
        for hold in all.clone() {
            let command_waits = setting.plans[hold].holder == Holder::Run
                && world.processes[hold].child == Child::Running;
            let mut inside = all.clone().filter(|at| {
                let plan = &setting.plans[*at];
                plan.inside == Some(hold) && !plan.background && waits(*at)
            });
            let awaited = inside.next().filter(|_| command_waits);
            goes_on[hold] = awaited.is_none_or(|at| {
                let is_limited = setting.plans[at].gives_up && at != caller;
                is_limited || may_be_served(setting, world, at, &before)
            });
        }
        if goes_on == before {
            return !may_be_served(setting, world, caller, &goes_on);
        }
    }
}

/// Whether nothing is in the way of a process, or something that may end.
fn may_be_served(setting: &Setting, world: &World, at: usize, goes_on: &[bool]) -> bool {
    let is_alive = |file: &File| world.is_kept(file, &setting.plans[usize::from(file.by)]);
    let is_in_its_way = |file: &&File| {
        let (held, _) = setting.held(file);
        let mut wants = setting.wants(at).iter();
        let fills =
            is_full(setting, world, at, is_alive) && wants.any(|want| want.name == held.name);
        is_alive(file) && (fills || stands_against(setting, file, at))
    };
    let mut in_its_way = world.files.iter().filter(is_in_its_way).peekable();
    in_its_way.peek().is_none() || in_its_way.any(|file| goes_on[usize::from(file.by)])
}
