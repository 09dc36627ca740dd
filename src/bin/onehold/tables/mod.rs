//! Tables of locks, holds and processes: `list`, `history`, and what `check` and `break` show.

mod events;
pub(crate) mod history;
pub(crate) mod list;
mod prometheus;
pub(crate) mod table;
pub(crate) mod watch;
pub(crate) mod work;
