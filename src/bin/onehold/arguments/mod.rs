//! The command line: its options, how it is parsed and completed, and the texts of its help.

pub(crate) mod args;
pub(crate) mod complete;
pub(crate) mod doc_text;
pub(crate) mod fast_parse;
mod fixed_text;
pub(crate) mod parse;
pub(crate) mod slip;
pub(crate) mod table;
mod values;
