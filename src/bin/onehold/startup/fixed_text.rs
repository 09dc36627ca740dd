//! What is printed for `--version`, and for `--help` to what is not a terminal. It never changes, so clap need not
//! be started for it. A test compares it with what clap prints.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use crate::args::LONG_VERSION;

const HELP: &str = include_str!("help.txt");

/// The text that is the answer to a command line; `None`: it is not one of those.
pub(crate) fn answer(words: &[OsString]) -> Option<String> {
    let [word] = words else {
        return None;
    };
    match word.to_str()? {
        "--version" => Some(format!("onehold {LONG_VERSION}")),
        "-V" => Some(concat!("onehold ", env!("CARGO_PKG_VERSION")).to_owned()),
        // A terminal has another width, and bold headings.
        "--help" if !std::io::stdout().is_terminal() => Some(HELP.trim_end().to_owned()),
        _ => None,
    }
}
