//! What a verdict says in short.

use std::collections::BTreeSet;

use crate::decision::verdict::{Evidence, Reason, State, Uncertainty, Verdict};

#[test]
fn each_reason_and_evidence_has_a_name_of_its_own() {
    let why = Uncertainty::NoProcess;
    let reasons = [
        Reason::NoFile,
        Reason::Finished,
        Reason::Alive,
        Reason::Locked,
        Reason::Starting,
        Reason::Ending,
        Reason::Reserved,
        Reason::Lease,
        Reason::Kept,
        Reason::UnknownVersion(2),
        Reason::Incomplete,
        Reason::Unverified(why),
        Reason::Dead,
        Reason::Reused,
        Reason::Rebooted,
        Reason::InstanceRestarted,
        Reason::NamespaceGone,
        Reason::Expired,
        Reason::TooOld(why),
        Reason::Corrupt,
        Reason::Malformed("x"),
        Reason::NotALock("x"),
    ];
    let names: BTreeSet<&str> = reasons.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), reasons.len());
    let evidence = [
        Evidence::KernelLock,
        Evidence::SameProcess,
        Evidence::SamePid,
        Evidence::PidGone,
        Evidence::StartMismatch,
        Evidence::BootMismatch,
        Evidence::OtherIncarnation,
        Evidence::NamespaceGone,
        Evidence::KernelLockGone,
        Evidence::Clock,
        Evidence::LeaseKept,
        Evidence::LeaseEnded,
    ];
    let names: BTreeSet<&str> = evidence.iter().map(|found| found.name()).collect();
    assert_eq!(names.len(), evidence.len());
    assert!(!names.contains(Evidence::None.name()));
    assert_eq!(Evidence::None.name(), "");
}

#[test]
fn verdict_says_whether_others_are_kept_out_and_whether_an_operator_should_look() {
    use State::{Free, Held, NotALock, Overdue, Zombie};
    let unverified = Reason::Unverified(Uncertainty::OtherHost);
    for (state, reason, is_live, is_certain, is_zombie) in [
        (Free, Reason::NoFile, false, false, false),
        (Held, Reason::Alive, true, true, false),
        (Held, unverified, true, false, false),
        (Held, Reason::Incomplete, true, false, false),
        (Overdue, Reason::Alive, true, true, true),
        (Zombie, Reason::Dead, false, false, true),
        (NotALock, Reason::NotALock("x"), false, false, false),
    ] {
        let verdict = Verdict {
            state,
            ..Verdict::new(reason, Evidence::None)
        };
        assert_eq!(verdict.is_live(), is_live, "{verdict:?}");
        assert_eq!(verdict.is_certainly_held(), is_certain, "{verdict:?}");
        assert_eq!(verdict.is_zombie(), is_zombie, "{verdict:?}");
    }
}
