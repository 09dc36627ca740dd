//! What can be left out or done wrongly. Each flaw changes what the model passes to the library, or
//! one step of the protocol; the library itself is always the one that is built.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// A hold whose recorded processes are dead is dead, whatever a child of it still locks.
    DeadWrapperIsDead,
    /// The record still names the first command when the second one is started.
    NotCleared,
    /// Nobody enters the guard.
    NoGuard,
    /// A release unlinks whatever has the name.
    BlindRelease,
    /// An expired lease is renewed without asking whether it could be acquired.
    BlindRenewal,
    /// Whoever wants a child exclusively does not look at the shared holds of its ancestors.
    SharedAsChild,
    /// A lock is reserved for the first waiter, whether it could take it or not.
    FirstComeFirst,
    /// A waiter of another PID namespace is judged from where the caller looks.
    WaiterJudgedByUs,
    /// `break` removes what is there, not what was shown.
    RevisionIgnored,
    /// `break` compares the file with what was shown, but not the number of the hold.
    NumberIgnored,
    /// The record does not say that the command does not inherit the kernel lock.
    CloseIgnored,
    /// The record does not say which process a run dies with.
    CallerIgnored,
    /// The note that the command has let go of the kernel lock is not read.
    NoteIgnored,
    /// A record that could not be read counts as one that says nothing.
    TornSlotTrusted,
    /// A lock stays reserved for a waiter that does not take it.
    EndlessReservation,
    /// A reader is counted twice.
    SlotCountedTwice,
    /// The index of a live reader is given to another.
    IndexTakenTwice,
    /// The child executes its command without looking at the path.
    PathNotChecked,
    /// `cleanup` removes by name what it has judged outside the guard.
    CleanupByList,
    /// A hold of several names is not marked as released before its names are removed one by one.
    NotMarked,
    /// A waiter behind a full lock wakes for one of its holders only.
    OneHolderWatched,
    /// A waiter sleeps on the latest earlier one that waits for the same hold and would be in its way,
    /// whatever else that one waits for; the third looks once a minute. As it was until this was checked.
    ChainedToWhoeverWaits,
    /// A waiter sleeps on one like itself, and all but the second of a kind look once a minute.
    RareLooks,
    /// A waiter sleeps on the one that a free lock is reserved for, and looks no sooner than on another.
    RareLooksAtReservations,
    /// A waiter sleeps on one that is stopped, and looks 5 s later for each one of its kind ahead: there may
    /// have been many.
    StopUnnoticed,
    /// A waiter that stands where it stood sleeps on what was decided while it had no place.
    SleepsAsTheLast,
    /// A place that is kept for a waiter that is gone delays those behind it.
    KeptPlaceWaits,
    /// The end of what a waiter sleeps on does not wake it; it looks again after some seconds.
    NoEvents,
    /// Who would complete a cycle waits.
    CycleIgnored,
    /// A ticket does not say which holds its waiter runs inside of.
    HoldsNotOnTicket,
    /// A waiter in the background counts as one that the command waits for.
    BackgroundAwaited,
    /// A ticket says that its waiter never gives up.
    LimitNotOnTicket,
    /// A writer sleeps until a reader is gone, and notes its turn no more often.
    WriterSleepsThrough,
}
