//! Tables of locks, holds and processes: `list`, `history`, and what `check` and `break` show.

mod events;
pub(crate) mod history;
pub(crate) mod list;
mod prometheus;
pub(crate) mod table;
mod watch;
pub(crate) mod work;
