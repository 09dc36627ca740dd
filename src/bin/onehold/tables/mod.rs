//! Tables of locks, holds and processes: `list`, `history`, and what `check` and `break` show.

pub(crate) mod history;
pub(crate) mod list;
mod prometheus;
mod rows;
mod screen;
pub(crate) mod table;
mod watch;
pub(crate) mod work;
