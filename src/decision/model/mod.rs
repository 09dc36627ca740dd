//! The protocol as a model, all of whose states are visited. It calls the library's own decision:
//! `decide`, `until`, `judge`, `may_release`, `may_renew`, `may_break` and `may_clean_up`, over locks
//! in memory. Each step of a process is one atomic action of the protocol, and every process may be
//! killed between any two.
//!
//! * [`world`]: the states, and the records and facts that they stand for.
//! * [`protocol`]: what each process may do.
//! * [`properties`]: what must be true.
//! * [`flaws`]: what can be left out, to show that the model would notice.
//! * [`settings`]: the tests.
//!
//! What a second PID namespace cannot know is left out: between the moment in which a command closes
//! its descriptor and the note of its wrapper, which may take a second, it looks dead from there.
#![allow(clippy::print_stdout)]

mod flaws;
mod properties;
mod protocol;
mod settings;
mod world;
