//! What must be true of every state, and what must happen in some.

use stateright::Property;

use super::cycles::refused_if_endless;
use super::facts::{Memory, is_dead};
use super::world::{
    Child, File, Holder, Outcome, Process, Reserved, Setting, Sleep, Step, World, observer,
};
use crate::decision::verdict::State;
use crate::decision::{Decision, Want, decide, excludes};
use crate::record::Mode;

pub(super) const EXCLUSION: &str = "no two at work exclude each other";
pub(super) const LIMIT: &str = "no more are at work than the limit";
pub(super) const NUMBERS: &str = "numbers grow";
pub(super) const ON_RECORD: &str = "each holder at work is on record";
pub(super) const NOTHING_BESIDE: &str = "nothing that excludes a hold at work is left beside it";
pub(super) const NOT_DEAD: &str = "nobody at work is judged dead";
pub(super) const AS_SHOWN: &str = "a break removes only what was shown";
pub(super) const ABLE: &str = "a lock is reserved only for a waiter that could take it";
pub(super) const NOT_STUCK: &str = "nobody waits for what nobody has";
pub(super) const NOT_ITSELF: &str = "nobody waits for what it runs inside of";
pub(super) const AGREEMENT: &str = "check and acquire agree";

pub(super) const PROMPT: &str =
    "a free lock is taken at once, or 10 s later for each stopped waiter";
pub(super) const NOT_OVERTAKEN: &str = "no reader passes a writer that waits for readers";

pub(super) const WHOLE: &str = "a hold of several names is held as a whole or not at all";

pub(super) const ENDLESS_IF_REFUSED: &str = "a wait that may end is not refused";
pub(super) const REFUSED_IF_ENDLESS: &str = "a wait that never ends is refused";

pub(super) const ALWAYS: [&str; 16] = [
    ENDLESS_IF_REFUSED,
    REFUSED_IF_ENDLESS,
    WHOLE,
    PROMPT,
    NOT_OVERTAKEN,
    NOTHING_BESIDE,
    EXCLUSION,
    LIMIT,
    NUMBERS,
    ON_RECORD,
    NOT_DEAD,
    AS_SHOWN,
    ABLE,
    NOT_STUCK,
    NOT_ITSELF,
    AGREEMENT,
];

pub(super) const TAKEOVER: &str = "a takeover";
pub(super) const SERVED: &str = "a waiter is served";
pub(super) const DEADLOCK: &str = "a wait would never end";
pub(super) const TURN_PASSED: &str = "a turn is passed";
pub(super) const SIDE_BY_SIDE: &str = "two at work side by side";

pub(super) fn properties(setting: &Setting) -> Vec<Property<Setting>> {
    let mut properties = vec![
        Property::always(EXCLUSION, exclusion),
        Property::always(LIMIT, limit),
        Property::always(NUMBERS, |_, world: &World| !world.numbers_shrank),
        Property::always(ON_RECORD, on_record),
        Property::always(NOTHING_BESIDE, nothing_beside),
        Property::always(NOT_DEAD, not_dead),
        Property::always(AS_SHOWN, |_, world: &World| !world.broke_another),
        Property::always(ABLE, able),
        Property::always(NOT_STUCK, |setting: &Setting, world: &World| {
            !is_stuck(setting, world)
        }),
        Property::always(NOT_ITSELF, not_itself),
        Property::always(AGREEMENT, agreement),
        Property::always(WHOLE, whole),
        Property::always(PROMPT, prompt),
        Property::always(NOT_OVERTAKEN, not_overtaken),
        Property::always(ENDLESS_IF_REFUSED, |setting: &Setting, world: &World| {
            refused_if_endless(setting, world, true)
        }),
        Property::always(REFUSED_IF_ENDLESS, |setting: &Setting, world: &World| {
            refused_if_endless(setting, world, false)
        }),
    ];
    for what in &setting.must_happen {
        properties.push(match *what {
            TAKEOVER => Property::sometimes(TAKEOVER, |_, world: &World| {
                world.processes.iter().any(|process| {
                    matches!(&process.step, Step::Committing { puts, removes, .. }
                        if puts.iter().any(|put| put.replaced.is_some()) || !removes.is_empty())
                })
            }),
            SERVED => Property::sometimes(SERVED, |_, world: &World| {
                world.processes.iter().any(is_being_served)
            }),
            DEADLOCK => Property::sometimes(DEADLOCK, |setting: &Setting, world: &World| {
                (0..world.processes.len()).any(|at| {
                    let memory = setting.memory(world, at);
                    world.processes[at].step == Step::Deciding
                        && setting.completes_cycle(&memory, at)
                })
            }),
            TURN_PASSED => Property::sometimes(TURN_PASSED, turn_passed),
            _ => Property::sometimes(SIDE_BY_SIDE, |setting: &Setting, world: &World| {
                (0..world.processes.len())
                    .filter(|at| is_at_work(setting, world, *at))
                    .count()
                    > 1
            }),
        });
    }
    properties
}

fn is_being_served(process: &Process) -> bool {
    process.ticket.is_some() && matches!(process.step, Step::Committing { .. })
}

fn turn_passed(_: &Setting, world: &World) -> bool {
    let takes = |process: &Process| matches!(process.step, Step::Committing { .. });
    let missed = |process: &Process| process.reserved == Reserved::Missed;
    world.processes.iter().any(takes) && world.processes.iter().any(missed)
}

/// Whether a process, or its command, works under its hold.
fn is_at_work(setting: &Setting, world: &World, at: usize) -> bool {
    let process = &world.processes[at];
    let by_itself = process.in_force
        && match setting.plans[at].holder {
            Holder::Run => false,
            Holder::Lease => !process.expired,
            Holder::Process => process.followed,
            Holder::Exec | Holder::Library => process.alive,
        };
    // What the command has left behind belongs to the work that ends with another process.
    let is_left = process.left && process.child == Child::Daemon;
    !process.broken && (by_itself || is_left || process.child == Child::Running)
}

fn at_work<'a>(
    setting: &'a Setting,
    world: &'a World,
) -> impl Iterator<Item = (usize, &'a Want, Option<&'static str>)> {
    (0..world.processes.len())
        .filter(|at| is_at_work(setting, world, *at))
        .flat_map(|at| {
            let owner = setting.plans[at].owner;
            setting.wants(at).iter().map(move |want| (at, want, owner))
        })
}

fn exclusion(setting: &Setting, world: &World) -> bool {
    at_work(setting, world).all(|(at, want, owner)| {
        at_work(setting, world)
            .all(|(other, held, holder)| at == other || !excludes(held, holder, want, owner))
    })
}

fn limit(setting: &Setting, world: &World) -> bool {
    at_work(setting, world).all(|(_, want, _)| match limit_of(want) {
        Some(most) => {
            let same = at_work(setting, world).filter(|(_, held, _)| *held == want);
            same.count() <= most
        }
        None => true,
    })
}

fn limit_of(want: &Want) -> Option<usize> {
    usize::try_from(want.mode.slots()?.get()).ok()
}

fn own_files(world: &World, at: usize) -> impl Iterator<Item = Option<&File>> {
    world.processes[at].own.iter().map(|own| world.file(own.id))
}

fn on_record(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len())
        .filter(|at| is_at_work(setting, world, *at))
        .all(|at| own_files(world, at).all(|file| file.is_some()))
}

/// A renewal removes nothing.
fn nothing_beside(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len())
        .filter(|at| setting.plans[*at].renewals == 0 && !setting.too_many_dead)
        .filter(|at| is_at_work(setting, world, *at))
        .all(|at| {
            let mut others = world.files.iter().filter(|file| usize::from(file.by) != at);
            others.all(|file| !stands_against(setting, file, at))
        })
}

/// From wherever somebody may look.
fn not_dead(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len())
        .filter(|at| is_at_work(setting, world, *at))
        .flat_map(|at| own_files(world, at).flatten())
        .all(|file| {
            setting.plans.iter().all(|plan| {
                let by = observer(plan.pid_namespace);
                !is_dead(&setting.judged(world, file, &by).verdict)
            })
        })
}

/// Of a `run`, the wrapper gives back the rest.
fn whole(setting: &Setting, world: &World) -> bool {
    world
        .files
        .iter()
        .filter(|file| file.confirmed)
        .all(|file| {
            let plan = &setting.plans[usize::from(file.by)];
            let of_hold = |other: &&File| (other.by, other.number) == (file.by, file.number);
            let is_whole = world.files.iter().filter(of_hold).count() == plan.wants.len();
            let by = observer(plan.pid_namespace);
            is_whole || is_dead(&setting.judged(world, file, &by).verdict)
        })
}

/// Who has a ticket.
fn waiter(world: &World, ticket: u8) -> Option<usize> {
    world
        .processes
        .iter()
        .position(|process| process.ticket == Some(ticket))
}

/// Whether a record keeps a process from taking what it wants, where it counts as alive.
pub(super) fn stands_against(setting: &Setting, file: &File, at: usize) -> bool {
    let (held, holder) = setting.held(file);
    let owner = setting.plans[at].owner;
    setting
        .wants(at)
        .iter()
        .any(|want| excludes(&held, holder, want, owner))
}

/// Whether as many records of a wanted name count as alive as may.
pub(super) fn is_full(
    setting: &Setting,
    world: &World,
    at: usize,
    is_alive: impl Fn(&File) -> bool,
) -> bool {
    setting.wants(at).iter().any(|want| {
        let readers = world.files.iter().filter(|file| {
            let (held, _) = setting.held(file);
            file.slot.index.is_some() && held.name == want.name && is_alive(file)
        });
        limit_of(want).is_some_and(|most| readers.count() >= most)
    })
}

/// Whether a file is a shared hold of what a process wants exclusively.
fn is_reader_before(setting: &Setting, file: &File, at: usize) -> bool {
    let (held, _) = setting.held(file);
    let wanted = Want {
        mode: Mode::Exclusive,
        ..held
    };
    file.slot.index.is_some() && setting.wants(at).contains(&wanted)
}

fn is_inside(setting: &Setting, file: &File, at: usize) -> bool {
    setting.plans[at].inside == Some(usize::from(file.by))
}

fn able(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len()).all(|at| {
        if world.processes[at].step != Step::Deciding {
            return true;
        }
        let outcome = setting.outcome(&setting.memory(world, at), at);
        let Outcome::Wait {
            behind: Some(ticket),
            ..
        } = outcome
        else {
            return true;
        };
        waiter(world, ticket).is_some_and(|other| {
            let by = observer(setting.plans[other].pid_namespace);
            let is_alive = |file: &File| !is_dead(&setting.judged(world, file, &by).verdict);
            // New readers wait behind a writer that waits only for readers.
            let passes = |file: &File| {
                is_reader_before(setting, file, other) && !is_inside(setting, file, at)
            };
            let mut alive = world.files.iter().filter(|file| is_alive(file));
            alive.all(|file| !stands_against(setting, file, other) || passes(file))
                && !is_full(setting, world, other, is_alive)
        })
    })
}

/// Nothing happens any more but what need not: what works may work for ever.
fn is_quiet(setting: &Setting, world: &World) -> bool {
    let is_quiet = |at: usize| {
        let (process, plan) = (&world.processes[at], &setting.plans[at]);
        // Whoever waits for it ends its work.
        if process.child.is_starting() || process.left {
            return false;
        }
        if !process.exists() {
            return true;
        }
        match process.step {
            Step::Idle | Step::Queued(_) => true,
            Step::Holding => match plan.holder {
                Holder::Run => process.child == Child::Running && process.ticket.is_none(),
                _ => process.in_force && process.ticket.is_none(),
            },
            _ => false,
        }
    };
    world.guard.is_none() && (0..world.processes.len()).all(is_quiet)
}

/// Whether a waiter is kept out for ever by what is neither at work nor able to take the lock.
fn is_stuck(setting: &Setting, world: &World) -> bool {
    let queued = |world: &World, at: usize| match world.processes[at].step {
        Step::Queued(sleep) if !world.processes[at].stopped => Some(sleep),
        _ => None,
    };
    let waits = |at: &usize| queued(world, *at).is_some();
    let waiters: Vec<usize> = (0..world.processes.len()).filter(waits).collect();
    if !is_quiet(setting, world) || !waiters.iter().any(|at| is_owed(setting, world, *at)) {
        return false;
    }
    // Everybody looks again whenever it wakes, and time passes.
    let mut later = world.clone();
    for _ in 0..=2 * waiters.len() {
        for at in &waiters {
            let Some(sleep) = queued(&later, *at) else {
                continue;
            };
            if !setting.wakes(&later, *at, sleep) {
                continue;
            }
            let outcome = setting.outcome(&setting.memory(&later, *at), *at);
            let Outcome::Wait { sleep, .. } = outcome else {
                return false;
            };
            Setting::note_turns(&mut later, *at, &outcome);
            later.processes[*at].step = Step::Queued(sleep);
        }
        setting.pass(&mut later);
    }
    true
}

/// Whether a waiter takes what nothing keeps from it: woken by what it sleeps on, or within a second; or, if
/// others are stopped, by its looks, of which the latest have just been made, within 10 s for each.
fn prompt(setting: &Setting, world: &World) -> bool {
    let queued = |world: &World, at: usize| match world.processes[at].step {
        Step::Queued(sleep) if !world.processes[at].stopped => Some(sleep),
        _ => None,
    };
    let all = 0..world.processes.len();
    let waiters: Vec<usize> = all.filter(|at| queued(world, *at).is_some()).collect();
    if !is_quiet(setting, world) || !waiters.iter().any(|at| is_owed(setting, world, *at)) {
        return true;
    }
    let is_stopped = |process: &&Process| process.stopped && process.ticket.is_some();
    let stopped = world.processes.iter().filter(is_stopped).count();
    let mut later = world.clone();
    let mut slept = vec![0; world.processes.len()];
    for _ in 0..=2 * stopped {
        let mut is_settled = false;
        let mut rounds = 2 * waiters.len();
        while !is_settled && rounds > 0 {
            is_settled = true;
            rounds -= 1;
            for at in &waiters {
                let Some(sleep) = queued(&later, *at) else {
                    continue;
                };
                let is_due = matches!(sleep, Sleep::LeftQueue(ticket, looks)
                    if slept[*at] >= looks
                        || (slept[*at] >= 1 && setting.notices_stop(&later, ticket)));
                if !is_due && !setting.is_woken(&later, *at, sleep) {
                    continue;
                }
                let outcome = setting.outcome(&setting.memory(&later, *at), *at);
                let Outcome::Wait { sleep: next, .. } = outcome else {
                    return true;
                };
                Setting::note_turns(&mut later, *at, &outcome);
                later.processes[*at].step = Step::Queued(next);
                slept[*at] = 0;
                is_settled &= next == sleep;
            }
        }
        setting.pass(&mut later);
        for slept in &mut slept {
            *slept += 1;
        }
    }
    false
}

/// A writer that is not stopped keeps its turn as long as only readers are in its way.
fn not_overtaken(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len()).all(|reader| {
        let process = &world.processes[reader];
        let Step::Committing { done: 0, .. } = &process.step else {
            return true;
        };
        let is_earlier = |ticket: u8| process.ticket.is_none_or(|own| ticket < own);
        (0..world.processes.len()).all(|writer| {
            let Step::Queued(sleep @ Sleep::Released(_)) = world.processes[writer].step else {
                return true;
            };
            let waits = !world.processes[writer].stopped
                && world.processes[writer].ticket.is_some_and(is_earlier)
                && !setting.is_woken(world, writer, sleep);
            let in_the_way: Vec<&File> = world
                .files
                .iter()
                .filter(|file| stands_against(setting, file, writer))
                .collect();
            let is_passed = setting.wants(reader).iter().any(|want| {
                let writes = |own: &Want| own.name == want.name && own.mode == Mode::Exclusive;
                want.mode.is_shared() && setting.wants(writer).iter().any(writes)
            });
            !waits
                || !is_passed
                || in_the_way.is_empty()
                || in_the_way.iter().any(|file| {
                    !is_reader_before(setting, file, writer) || is_inside(setting, file, reader)
                })
        })
    })
}

/// Whether nothing that may still work keeps a waiter out.
fn is_owed(setting: &Setting, world: &World, at: usize) -> bool {
    let keeps = |file: &File| {
        let plan = &setting.plans[usize::from(file.by)];
        // From another PID namespace only the kernel lock tells, and some records do not go by it.
        let is_unknown = plan.close
            || file.let_go
            || world.processes[usize::from(file.by)].child == Child::Daemon
            || matches!(plan.holder, Holder::Process | Holder::Lease) && !file.expired;
        let is_hidden = plan.pid_namespace != setting.plans[at].pid_namespace && is_unknown;
        // Nobody can read what it says.
        let is_unreadable = file.torn;
        is_hidden || is_unreadable || world.is_kept(file, plan)
    };
    let is_kept_out = world
        .files
        .iter()
        .any(|file| keeps(file) && stands_against(setting, file, at));
    !is_kept_out && !is_full(setting, world, at, keeps) && !is_behind_writer(setting, world, at)
}

/// Whether a reader waits for a writer that waits for readers at work: it keeps its turn.
fn is_behind_writer(setting: &Setting, world: &World, at: usize) -> bool {
    (0..world.processes.len()).any(|writer| {
        let process = &world.processes[writer];
        let is_earlier = process.ticket.is_some() && process.ticket < world.processes[at].ticket;
        let waits = is_earlier && !process.stopped && matches!(process.step, Step::Queued(_));
        waits
            && world.files.iter().any(|file| {
                let (held, _) = setting.held(file);
                let mut asked = setting.wants(at).iter();
                let plan = &setting.plans[usize::from(file.by)];
                world.is_kept(file, plan)
                    && is_reader_before(setting, file, writer)
                    && !is_inside(setting, file, at)
                    && asked.any(|want| want.name == held.name && want.mode.is_shared())
            })
    })
}

fn not_itself(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len()).all(|at| match world.processes[at].step {
        Step::Queued(Sleep::Released(id)) => world
            .file(id)
            .is_none_or(|file| !is_inside(setting, file, at) || !stands_against(setting, file, at)),
        _ => true,
    })
}

/// What `check` says, which may list the records in another order and enters no guard, is what an
/// attempt would be told.
fn agreement(setting: &Setting, world: &World) -> bool {
    (0..world.processes.len()).all(|at| {
        if world.processes[at].step != Step::Deciding {
            return true;
        }
        let request = setting.request(world, at);
        let kind = |is_reversed| {
            let memory = Memory {
                is_reversed,
                ..setting.memory(world, at)
            };
            let decision = decide(&request, &memory).unwrap();
            match decision {
                Decision::Take { put, .. } => {
                    let keys: Vec<_> = put.into_iter().map(|(key, _)| key).collect();
                    (State::Free, keys)
                }
                Decision::AlreadyHeld(_) => (State::Overdue, Vec::new()),
                Decision::Wait(_) => (State::Held, Vec::new()),
                Decision::Blocked(_) => (State::Zombie, Vec::new()),
                Decision::Refuse(..) => (State::NotALock, Vec::new()),
            }
        };
        kind(false) == kind(true)
    })
}
