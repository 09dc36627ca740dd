//! What is left out in a setting, and the property that shows it.

use super::super::flaws::Flaw;
use super::super::properties::{
    ABLE, AS_SHOWN, ENDLESS_IF_REFUSED, EXCLUSION, LIMIT, NOT_DEAD, NOT_OVERTAKEN, NOT_STUCK,
    ON_RECORD, PROMPT, REFUSED_IF_ENDLESS, WHOLE,
};
use super::super::world::Setting;
use super::{
    A, B, behind_waiter_for_two, behind_writer_that_is_passed, broken, broken_lease,
    close_elsewhere, counted, crossing, cut_off, exclusive, giving_up, in_background,
    kinds_of_waiters, lease, lease_of_two_names, let_go_elsewhere, notices, owner_behind_waiter,
    owner_of_child_behind_waiters, parent_and_child, renewals, run, run_that_dies_with_its_caller,
    shared_parent, stopped_waiter, stopped_waiter_between_waiters, stopping, two_commands,
    two_runs, two_stopped_waiters, waiter_elsewhere, waiter_that_is_cut_off, writer_behind_reader,
};

#[test]
fn model_notices_that_a_reservation_is_looked_at_every_5_s_only() {
    let setting = behind_writer_that_is_passed();
    notices(setting.flawed(Flaw::RareLooksAtReservations), PROMPT);
}

#[test]
fn model_notices_that_a_kept_place_delays_others() {
    notices(
        waiter_that_is_cut_off().flawed(Flaw::KeptPlaceWaits),
        PROMPT,
    );
    for (_, holder, waiter, last) in kinds_of_waiters() {
        let setting = Setting::new(vec![holder, cut_off(waiter), last.waits()]);
        notices(setting.flawed(Flaw::KeptPlaceWaits), PROMPT);
    }
}

#[test]
fn model_notices_that_a_waiter_that_comes_again_sleeps_as_the_last() {
    let setting = waiter_that_is_cut_off().flawed(Flaw::SleepsAsTheLast);
    notices(setting, PROMPT);
}

#[test]
fn model_notices_takeover_from_dead_wrapper() {
    let setting = two_runs().flawed(Flaw::DeadWrapperIsDead);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_that_a_caller_is_ignored() {
    let setting = run_that_dies_with_its_caller().flawed(Flaw::CallerIgnored);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_slot_not_cleared() {
    let setting = two_commands().flawed(Flaw::NotCleared);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_missing_guard() {
    let setting = parent_and_child().flawed(Flaw::NoGuard);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_blind_release() {
    let setting = Setting::new(vec![lease(exclusive(A)), run(exclusive(A))]);
    notices(setting.flawed(Flaw::BlindRelease), ON_RECORD);
}

#[test]
fn model_notices_blind_renewal() {
    let setting = renewals().with_too_many_dead();
    notices(setting.flawed(Flaw::BlindRenewal), EXCLUSION);
}

#[test]
fn model_notices_shared_hold_as_child() {
    notices(shared_parent().flawed(Flaw::SharedAsChild), EXCLUSION);
}

#[test]
fn model_notices_reservation_for_whoever_came_first() {
    let setting = owner_behind_waiter().flawed(Flaw::FirstComeFirst);
    notices(setting, NOT_STUCK);
}

#[test]
fn model_notices_waiter_elsewhere_judged_from_here() {
    let setting = waiter_elsewhere().flawed(Flaw::WaiterJudgedByUs);
    notices(setting, ABLE);
}

#[test]
fn model_notices_break_without_comparison() {
    notices(broken_lease().flawed(Flaw::RevisionIgnored), AS_SHOWN);
    // An inode is used again.
    notices(broken_lease().flawed(Flaw::NumberIgnored), AS_SHOWN);
}

#[test]
fn model_notices_ignored_notes() {
    notices(close_elsewhere().flawed(Flaw::CloseIgnored), NOT_DEAD);
    notices(let_go_elsewhere().flawed(Flaw::NoteIgnored), NOT_DEAD);
    notices(let_go_elsewhere().flawed(Flaw::TornSlotTrusted), NOT_DEAD);
}

#[test]
fn model_notices_endless_reservation() {
    let setting = stopped_waiter().flawed(Flaw::EndlessReservation);
    notices(setting, NOT_STUCK);
    for (_, holder, waiter, last) in kinds_of_waiters() {
        let setting = Setting::new(vec![holder, stopping(waiter.waits()), last.waits()]);
        notices(setting.flawed(Flaw::EndlessReservation), PROMPT);
    }
}

#[test]
fn model_notices_waiters_chained_to_whoever_waits() {
    let flaw = Flaw::ChainedToWhoeverWaits;
    notices(behind_waiter_for_two().flawed(flaw), PROMPT);
    notices(owner_of_child_behind_waiters().flawed(flaw), PROMPT);
}

#[test]
fn model_notices_third_waiter_that_looks_once_a_minute() {
    notices(two_stopped_waiters().flawed(Flaw::RareLooks), PROMPT);
    notices(
        two_stopped_waiters().flawed(Flaw::ChainedToWhoeverWaits),
        PROMPT,
    );
}

#[test]
fn model_notices_waiter_that_does_not_notice_a_stop() {
    let setting = stopped_waiter_between_waiters();
    notices(setting.flawed(Flaw::StopUnnoticed), PROMPT);
}

#[test]
fn model_notices_end_that_wakes_nobody() {
    notices(behind_waiter_for_two().flawed(Flaw::NoEvents), PROMPT);
}

#[test]
fn model_notices_writer_that_does_not_note_its_turn() {
    notices(
        writer_behind_reader().flawed(Flaw::WriterSleepsThrough),
        NOT_OVERTAKEN,
    );
}

#[test]
fn model_notices_reader_counted_twice() {
    let setting = Setting::new(vec![run(counted(A, 2)), run(counted(A, 2)).waits()]);
    notices(setting.flawed(Flaw::SlotCountedTwice), NOT_STUCK);
}

#[test]
fn model_notices_index_taken_twice() {
    let one = || lease(counted(A, 2));
    let setting = Setting::new(vec![one(), one(), one()]);
    notices(setting.flawed(Flaw::IndexTakenTwice), LIMIT);
}

#[test]
fn model_notices_half_of_a_hold_left_by_a_killed_release() {
    notices(lease_of_two_names().flawed(Flaw::NotMarked), WHOLE);
}

#[test]
fn model_notices_path_not_checked() {
    notices(broken().flawed(Flaw::PathNotChecked), EXCLUSION);
}

#[test]
fn model_notices_cleanup_by_list() {
    let setting = two_runs().with_cleanup();
    notices(setting.flawed(Flaw::CleanupByList), ON_RECORD);
}

#[test]
fn model_notices_waiter_that_watches_one_of_several_holders() {
    let setting = Setting::new(vec![
        lease(counted(A, 2)),
        lease(counted(A, 2)),
        run(counted(A, 2)).waits(),
    ]);
    notices(setting.flawed(Flaw::OneHolderWatched), NOT_STUCK);
}

#[test]
fn model_notices_cycle_that_is_waited_for() {
    for flaw in [Flaw::CycleIgnored, Flaw::HoldsNotOnTicket] {
        let setting = crossing(|plan| plan, exclusive(B));
        notices(setting.flawed(flaw), REFUSED_IF_ENDLESS);
    }
}

#[test]
fn model_notices_refused_wait_that_may_end() {
    let setting = crossing(in_background, exclusive(B));
    notices(setting.flawed(Flaw::BackgroundAwaited), ENDLESS_IF_REFUSED);
    let setting = crossing(giving_up, exclusive(B));
    notices(setting.flawed(Flaw::LimitNotOnTicket), ENDLESS_IF_REFUSED);
}
