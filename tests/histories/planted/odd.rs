//! Histories that locks have, though they look odd.

use super::{
    Histories, broke, call, checked, killed, lease, refused, refused_for_waiter, renewed, run,
    vanished,
};
use crate::history::{Outcome, Store, Verb};

#[allow(clippy::too_many_lines, reason = "a list")]
pub fn odd() -> Histories {
    let files = Store::FILES;
    vec![
        (
            "refused for a section that has ended, while its wrapper has not",
            files,
            vec![run(1, "a", (0, 60), (10, 30)), refused(2, "a", (40, 50), 1)],
        ),
        (
            "taken while the wrapper of the hold before has not returned",
            files,
            vec![
                run(1, "a", (0, 60), (10, 30)),
                run(2, "a", (5, 55), (31, 50)),
            ],
        ),
        (
            "a killed call that took effect, and one that did not",
            files,
            vec![
                vanished(1, "a", (0, 50)),
                vanished(2, "a", (0, 50)),
                refused(3, "a", (20, 40), 1),
                run(4, "a", (55, 70), (60, 65)),
            ],
        ),
        (
            "refused for a lease while it ends",
            files,
            vec![lease(1, "a", (0, 20), 100), refused(2, "a", (105, 115), 1)],
        ),
        (
            "taken while a lease ends",
            files,
            vec![
                lease(1, "a", (0, 20), 100),
                run(3, "a", (90, 130), (102, 120)),
            ],
        ),
        (
            "a hold that a killed call has ended by force, of which nobody says a word",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                vanished(2, "a --force", (20, 40)),
                run(3, "a", (50, 70), (55, 65)),
            ],
        ),
        (
            "a lease whose call was killed between its number and its confirmation",
            files,
            vec![
                call(
                    1,
                    lease(1, "a", (0, 0), 300).verb,
                    (0, 20),
                    Outcome::Unknown,
                ),
                call(2, Verb::Cleanup, (30, 40), Outcome::Removed(vec![1])),
                run(3, "a", (50, 70), (55, 65)),
            ],
        ),
        (
            "a lease that has expired and is renewed",
            files,
            vec![
                lease(1, "a", (0, 5), 100),
                renewed(2, 1, (200, 210), 100),
                refused(3, "a", (250, 260), 1),
            ],
        ),
        (
            "a lease that is seen to have expired, and is renewed at once",
            files,
            vec![
                lease(1, "a", (0, 5), 100),
                checked(2, "a", (101, 140), Outcome::Nothing),
                renewed(3, 1, (101, 140), 100),
                checked(4, "a", (150, 160), Outcome::Saw(vec![1])),
            ],
        ),
        (
            "a lease that has expired, one of whose locks another has had, and that is broken",
            files,
            vec![
                lease(1, "b c", (0, 5), 100),
                run(2, "c -s", (110, 150), (120, 140)),
                broke(3, "b", (160, 170), Outcome::Broke(vec![1])),
            ],
        ),
        (
            "a run that two break at once",
            files,
            vec![
                run(1, "a", (0, 60), (10, 40)),
                broke(2, "a", (20, 61), Outcome::Broke(vec![1])),
                broke(3, "a", (30, 62), Outcome::Broke(vec![1])),
            ],
        ),
        (
            "a killed break that took effect",
            files,
            vec![
                lease(1, "a", (0, 5), 1000),
                broke(2, "a", (20, 30), Outcome::Unknown),
                run(3, "a", (40, 60), (45, 50)),
            ],
        ),
        (
            "a killed break that did not",
            files,
            vec![
                lease(1, "a", (0, 5), 1000),
                broke(2, "a", (20, 30), Outcome::Unknown),
                refused(3, "a", (40, 60), 1),
            ],
        ),
        (
            "a third one joins two that want at most two",
            files,
            vec![
                run(1, "a --slots 2", (0, 50), (10, 40)),
                run(2, "a --slots 2", (0, 50), (10, 40)),
                run(3, "a --slots 3", (0, 50), (20, 40)),
                run(4, "a -s", (0, 50), (20, 40)),
            ],
        ),
        (
            "parent and child of one owner",
            files,
            vec![
                run(1, "a --owner o", (0, 50), (10, 40)),
                run(2, "a/b/c --owner o", (5, 50), (20, 30)),
            ],
        ),
        (
            "parent and child, both shared",
            files,
            vec![
                run(1, "a -s", (0, 50), (10, 40)),
                run(2, "a/b --slots 1", (5, 50), (20, 30)),
            ],
        ),
        (
            "siblings, and a name that only begins alike",
            files,
            vec![
                run(1, "a/b", (0, 50), (10, 40)),
                run(2, "a/c", (5, 50), (20, 30)),
                run(3, "a/bc", (5, 50), (20, 30)),
            ],
        ),
        (
            "a forced take beside the work that it displaces",
            files,
            vec![
                run(1, "a", (0, 90), (10, 80)),
                run(2, "a --force", (20, 60), (30, 50)),
                run(3, "a", (20, 85), (55, 75)),
            ],
        ),
        (
            "calls that return in the other order",
            files,
            vec![
                run(2, "a", (0, 90), (50, 60)),
                run(1, "a", (5, 95), (20, 30)),
            ],
        ),
        (
            "two locks between two holds of each",
            files,
            vec![
                run(1, "a", (0, 30), (10, 20)),
                run(2, "b", (0, 30), (10, 25)),
                run(3, "b a", (0, 60), (30, 40)),
                run(4, "a", (0, 90), (50, 80)),
                run(5, "b", (0, 90), (50, 80)),
            ],
        ),
        (
            "refused for a waiter that was killed a moment ago",
            files,
            vec![
                vanished(1, "a -w 60", (0, 50)),
                refused_for_waiter(2, "a", (4_000, 4_010)),
            ],
        ),
        (
            "work that a killed wrapper has left, and that is broken",
            files,
            vec![
                killed(run(1, "a", (0, 20), (10, 80)), 81),
                broke(2, "a", (30, 85), Outcome::Broke(vec![1])),
                run(3, "a", (30, 95), (83, 90)),
            ],
        ),
        (
            "a hold that is broken as it ends",
            files,
            vec![
                run(1, "a", (0, 60), (10, 40)),
                broke(2, "a", (38, 58), Outcome::Broke(vec![1])),
                checked(3, "a", (59, 60), Outcome::Nothing),
            ],
        ),
        (
            "seen, free and seen, while two hold it in turn",
            files,
            vec![
                run(1, "a", (0, 50), (10, 20)),
                run(2, "a", (0, 90), (60, 80)),
                checked(3, "a", (15, 18), Outcome::Saw(vec![1])),
                checked(4, "a", (21, 59), Outcome::Nothing),
                checked(5, "a", (40, 59), Outcome::Saw(vec![2])),
            ],
        ),
        (
            "a server whose dead holder is in the way for two TTLs",
            Store::SERVER,
            vec![
                killed(run(1, "a", (0, 20), (10, 30)), 31),
                refused(2, "a", (20_000, 20_100), 1),
                run(3, "a", (20_000, 25_000), (24_000, 24_500)),
            ],
        ),
        (
            "a server that does what a killed process had asked for",
            Store::SERVER,
            vec![
                vanished(1, "a", (0, 50)),
                checked(2, "a", (60, 70), Outcome::Nothing),
                refused(3, "a", (80, 90), 1),
            ],
        ),
        (
            "the rest of a dead hold beside that of who had too few descriptors to remove it",
            files,
            vec![
                killed(run(1, "s --slots 2", (0, 20), (10, 30)), 31),
                run(2, "s --in-want", (40, 90), (50, 80)),
                broke(3, "s", (55, 88), Outcome::Broke(vec![1])),
            ],
        ),
        (
            "an end that has to come before a take, and that before another one with a higher number",
            files,
            vec![
                run(1, "a/x", (0, 80), (10, 20)),
                run(2, "a/x", (5, 90), (70, 75)),
                run(3, "a/y", (8, 100), (60, 95)),
                refused(4, "a", (12, 15), 1),
            ],
        ),
    ]
}
