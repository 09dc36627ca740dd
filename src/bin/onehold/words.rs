//! Text for messages: escaping, quoting, and errors with their causes.

use std::error::Error as _;
use std::io::ErrorKind;
use std::path::Path;

use onehold::{Lock, LockName};

pub(crate) use onehold::describe::{quoted, short_span, span};
pub(crate) use onehold::error::cause_text;
pub(crate) use onehold::terminal::escape;

/// An error and its causes, on one line.
pub(crate) fn error_chain(error: &onehold::Error) -> String {
    // A script whose interpreter is missing is found.
    if let onehold::Error::Spawn { program, source } = error
        && source.kind() == ErrorKind::NotFound
        && which::which(program).is_err()
    {
        return format!("command not found: {}", quoted(program));
    }
    let mut text = escape(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        text = text + ": " + &escape(&cause_text(cause));
        next = cause.source();
    }
    match error.file_owner() {
        Some(owner) => format!("{text}; it belongs to user {}", escape(&owner)),
        None => text,
    }
}

/// The names of locks that are held together: "`db` and `cache`".
pub(crate) fn names(lock: &Lock) -> String {
    quoted_names(lock.names().map(LockName::as_str))
}

pub(crate) fn quoted_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(quoted).collect();
    listed(&names)
}

/// "`a`, `b` and `c`"
pub(crate) fn listed(names: &[String]) -> String {
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// "1 lock", "3 locks"
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// "1st", "2nd", "11th"
pub(crate) fn ordinal(number: usize) -> String {
    let suffix = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

/// A path in a message.
pub(crate) fn path_text(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

/// Arguments, as a shell reads them.
pub(crate) fn shell_line(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    let words: Vec<String> = words.map(|word| shell_quoted(word.as_ref())).collect();
    words.join(" ")
}

/// An argument, as a shell reads it.
pub(crate) fn shell_quoted(text: &str) -> String {
    // What could be an assignment in front of a command is none behind it.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=./:".contains(&byte);
    if text.starts_with("--") && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape("a\u{1b}[2Jb\n\t\u{7}"), "a\\e[2Jb\\n\\t\\u{7}");
        assert_eq!(escape("\u{202e}gnp.exe"), "\\u{202e}gnp.exe");
        assert_eq!(escape("Übung ✓"), "Übung ✓");
    }
}
