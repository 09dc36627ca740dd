//! Histories that no locks have, and what is wrong with each.

use super::{
    Histories, broke, call, checked, killed, lease, refused, refused_for_waiter, released, renewed,
    run, vanished,
};
use crate::history::{Outcome, Store, Verb};

#[allow(clippy::too_many_lines, reason = "a list")]
pub fn wrong() -> Histories {
    let files = Store::FILES;
    vec![
        (
            "two sections at once",
            files,
            vec![
                run(1, "a", (0, 50), (10, 40)),
                run(2, "a", (5, 60), (39, 50)),
            ],
        ),
        (
            "a section beside the work that a killed wrapper has left",
            files,
            vec![
                killed(run(1, "a", (0, 20), (10, 80)), 81),
                run(2, "a", (30, 70), (50, 60)),
            ],
        ),
        (
            "a child beside its parent",
            files,
            vec![
                run(1, "a", (0, 50), (10, 40)),
                run(2, "a/b/c", (5, 50), (20, 30)),
            ],
        ),
        (
            "a child beside its parent of another owner",
            files,
            vec![
                run(1, "a --owner o", (0, 50), (10, 40)),
                run(2, "a/b --owner p", (5, 50), (20, 30)),
            ],
        ),
        (
            "one owner twice",
            files,
            vec![
                run(1, "a --owner o", (0, 50), (10, 40)),
                run(2, "a --owner o", (5, 50), (20, 30)),
            ],
        ),
        (
            "three in two slots",
            files,
            vec![
                run(1, "a --slots 2", (0, 50), (10, 40)),
                run(2, "a --slots 2", (0, 50), (10, 40)),
                run(3, "a --slots 2", (0, 50), (20, 40)),
            ],
        ),
        (
            "a reader beside a writer",
            files,
            vec![
                run(1, "a", (0, 50), (10, 40)),
                run(2, "a -s", (0, 50), (20, 30)),
            ],
        ),
        (
            "a writer beside a reader",
            files,
            vec![
                run(1, "a -s", (0, 50), (10, 40)),
                run(2, "a", (0, 50), (20, 30)),
            ],
        ),
        (
            "two locks, one of which another holds",
            files,
            vec![
                run(1, "b", (0, 50), (10, 40)),
                run(2, "a b c", (0, 50), (20, 30)),
            ],
        ),
        (
            "taken before the end of a lease",
            files,
            vec![lease(1, "a", (0, 5), 100), run(2, "a", (50, 99), (60, 98))],
        ),
        (
            "taken before the end of a lease that was renewed",
            files,
            vec![
                lease(1, "a", (0, 5), 100),
                renewed(2, 1, (90, 95), 100),
                run(3, "a", (120, 180), (150, 170)),
            ],
        ),
        (
            "refused for a lease that has expired",
            files,
            vec![lease(1, "a", (0, 5), 100), refused(2, "a", (130, 140), 1)],
        ),
        (
            "renewed although another has had it meanwhile",
            files,
            vec![
                lease(1, "a", (0, 5), 100),
                run(2, "a", (110, 150), (120, 140)),
                renewed(3, 1, (160, 170), 100),
            ],
        ),
        (
            "renewed although another has had one of its locks meanwhile",
            files,
            vec![
                lease(1, "b c", (0, 5), 100),
                run(2, "c -s", (110, 150), (120, 140)),
                renewed(3, 1, (160, 170), 100),
            ],
        ),
        (
            "a run that is broken, and goes on",
            files,
            vec![
                killed(run(1, "a", (0, 90), (10, 80)), 90),
                broke(2, "a", (20, 70), Outcome::Broke(vec![1])),
                checked(3, "a", (71, 79), Outcome::Saw(vec![1])),
            ],
        ),
        (
            "refused for a run that has returned",
            files,
            vec![run(1, "a", (0, 50), (10, 40)), refused(2, "a", (51, 60), 1)],
        ),
        (
            "refused for a dead holder",
            files,
            vec![
                killed(run(1, "a", (0, 20), (10, 30)), 31),
                refused(2, "a", (40, 60), 1),
            ],
        ),
        (
            "refused for a hold that was released",
            files,
            vec![
                lease(1, "a", (0, 5), 1000),
                released(2, 1, (10, 20)),
                refused(3, "a", (30, 40), 1),
            ],
        ),
        (
            "refused for a hold of another lock",
            files,
            vec![
                run(1, "a", (0, 50), (10, 40)),
                refused(2, "ab", (20, 30), 1),
            ],
        ),
        (
            "refused although a slot is free",
            files,
            vec![
                run(1, "a --slots 2", (0, 50), (10, 40)),
                refused(2, "a --slots 2", (20, 30), 1),
            ],
        ),
        (
            "refused for a call that was itself refused",
            files,
            vec![
                run(1, "a", (0, 50), (10, 40)),
                refused(2, "a", (20, 30), 1),
                refused(3, "a", (20, 35), 2),
            ],
        ),
        (
            "refused for a waiter, and nobody waits",
            files,
            vec![
                run(1, "a -w 1", (0, 50), (10, 40)),
                refused_for_waiter(2, "b", (20, 30)),
            ],
        ),
        (
            "refused, and its section has run",
            files,
            vec![{
                let mut call = run(1, "a", (0, 50), (10, 40));
                call.outcome = Outcome::Refused(None);
                call
            }],
        ),
        (
            "a hold number that falls",
            files,
            vec![
                run(2, "a", (0, 50), (10, 40)),
                run(1, "a", (60, 90), (70, 80)),
            ],
        ),
        (
            "a break that returns before the work has ended",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                broke(2, "a", (20, 70), Outcome::Broke(vec![1])),
            ],
        ),
        (
            "a break of nothing, while it is held",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                broke(2, "a", (20, 70), Outcome::Nothing),
            ],
        ),
        (
            "a broken hold that is still in the way",
            files,
            vec![
                lease(1, "a", (0, 5), 1000),
                broke(2, "a", (20, 30), Outcome::Broke(vec![1])),
                refused(3, "a", (40, 50), 1),
            ],
        ),
        (
            "a hold that is broken twice",
            files,
            vec![
                lease(1, "a", (0, 5), 1000),
                broke(2, "a", (20, 30), Outcome::Broke(vec![1])),
                broke(3, "a", (40, 50), Outcome::Broke(vec![1])),
            ],
        ),
        (
            "a lock that is seen free while it is held",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                checked(2, "a", (20, 70), Outcome::Nothing),
            ],
        ),
        (
            "a hold that is seen after its end",
            files,
            vec![
                run(1, "a", (0, 40), (10, 30)),
                checked(2, "a", (50, 60), Outcome::Saw(vec![1])),
            ],
        ),
        (
            "a hold that is seen before its call",
            files,
            vec![
                checked(2, "a", (0, 10), Outcome::Saw(vec![1])),
                run(1, "a", (20, 40), (25, 30)),
            ],
        ),
        (
            "a killed call that takes effect long after",
            files,
            vec![vanished(1, "a", (0, 10)), refused(2, "a", (30, 40), 1)],
        ),
        (
            "a live hold that is cleaned up",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                call(2, Verb::Cleanup, (20, 70), Outcome::Removed(vec![1])),
            ],
        ),
        (
            "a lease in force that is cleaned up",
            files,
            vec![
                lease(1, "a", (0, 20), 300),
                call(2, Verb::Cleanup, (30, 40), Outcome::Removed(vec![1])),
            ],
        ),
        (
            "a take beside one that was forced",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                run(2, "a --force", (20, 60), (30, 50)),
                run(3, "a", (20, 60), (35, 45)),
            ],
        ),
        (
            "three calls, of which each two can be put in order",
            files,
            vec![
                run(1, "a", (0, 100), (10, 20)),
                checked(2, "a", (12, 30), Outcome::Nothing),
                checked(3, "a", (31, 40), Outcome::Saw(vec![1])),
            ],
        ),
        (
            "a server that gives a dead holder's lock away while it works",
            Store::SERVER,
            vec![
                killed(run(1, "a", (0, 20), (10, 9_000)), 9_001),
                run(2, "a", (30, 9_500), (8_000, 9_400)),
            ],
        ),
        (
            "a server that keeps a dead holder's lock for ever",
            Store::SERVER,
            vec![
                killed(run(1, "a", (0, 20), (10, 30)), 31),
                refused(2, "a", (61_000, 61_100), 1),
            ],
        ),
        (
            "the rest of a dead hold beside that of who had all that it needs",
            files,
            vec![
                killed(run(1, "s --slots 2", (0, 20), (10, 30)), 31),
                run(2, "s", (40, 90), (50, 80)),
                broke(3, "s", (55, 88), Outcome::Broke(vec![1])),
            ],
        ),
    ]
}
