//! What is printed for `--version`, and for `--help` where nothing says how wide a line may be. It is always the same,
//! so clap need not be started for it. A test compares it with what clap prints.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use crate::arguments::args::LONG_VERSION;

const HELP: &str = include_str!("help.txt");

/// The text that is the answer to a command line; `None`: it is not one of those.
pub(crate) fn answer(words: &[OsString]) -> Option<String> {
    let [word] = words else {
        return None;
    };
    match word.to_str()? {
        "--version" => Some(format!("onehold {LONG_VERSION}")),
        "-V" => Some(concat!("onehold ", env!("CARGO_PKG_VERSION")).to_owned()),
        "--help" if !has_width() => Some(HELP.trim_end().to_owned()),
        _ => None,
    }
}

/// Whether clap would find a width, or print bold headings.
fn has_width() -> bool {
    let asks_for_it = |name| std::env::var_os(name).is_some();
    std::io::stdin().is_terminal()
        || std::io::stdout().is_terminal()
        || std::io::stderr().is_terminal()
        || ["COLUMNS", "CLICOLOR_FORCE"].into_iter().any(asks_for_it)
}
