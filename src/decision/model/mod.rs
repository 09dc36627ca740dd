//! The protocol as a model, all of whose states are visited. It calls the library's own decision:
//! `decide`, `until`, `judge`, `may_release`, `may_renew`, `may_break` and `may_clean_up`, over locks
//! in memory. Each step of a process is one atomic action of the protocol, and every process may be
//! killed between any two.
//!
//! * [`world`]: the states.
//! * [`facts`]: the records, facts and verdicts that they stand for.
//! * [`protocol`]: what each process may do; [`waiting`] and [`holding`] have the parts of who waits and who holds.
//! * [`properties`]: what must be true; [`cycles`]: of those who wait for each other.
//! * [`flaws`]: what can be left out, to show that the model would notice.
//! * [`settings`]: the tests.
//!
//! What a second PID namespace cannot know is left out: between the moment in which a command closes
//! its descriptor and the note of its wrapper, which may take a second, it looks dead from there.
#![allow(clippy::print_stdout)]

mod cycles;
mod facts;
mod flaws;
mod holding;
mod properties;
mod protocol;
mod settings;
mod waiting;
mod world;
