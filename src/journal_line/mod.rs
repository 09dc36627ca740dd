//! What the journal of a store says: events, and holds that have ended. Where it is kept is a matter of the backend.

mod event;
mod past_hold;

pub use event::{Action, Actor, Event, PreviousHold};
pub(crate) use event::{Subject, event, last_events, resolved, resolved_below};
pub(crate) use past_hold::past_holds;
pub use past_hold::{HoldResult, PastHold};

/// A line about a hold that has ended, of a store that writes it by what ends the hold.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    Event(Box<Event>),
    End(Box<PastHold>),
}

#[cfg(feature = "cluster")]
impl Line {
    /// The number of the hold that has ended.
    pub(crate) fn hold(&self) -> Option<u64> {
        match self {
            Self::Event(event) => event.from.as_ref()?.hold,
            Self::End(end) => Some(end.hold),
        }
    }

    /// With the number of the hold that replaces what was taken over.
    pub(crate) fn replaced_by(mut self, hold: u64) -> Self {
        if let Self::Event(event) = &mut self
            && event.event != Action::Cleanup
        {
            event.hold = Some(hold);
        }
        self
    }

    /// The locks that it is about.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Event(event) => {
                let names = event.from.as_ref().map_or(&[][..], |from| &from.names);
                let only = names.is_empty().then_some(&event.name);
                names.iter().chain(only).map(String::as_str).collect()
            }
            Self::End(end) => end.all_names().collect(),
        }
    }

    pub(crate) fn text(&self) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::Event(event) => serde_json::to_vec(event),
            Self::End(end) => serde_json::to_vec(end),
        }
    }
}
