//! Text for messages: escaping, quoting, and errors with their causes.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

pub(crate) use onehold::terminal::escape;

/// A lock name in backquotes, as in all messages.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", escape(name))
}

/// An error and its causes, on one line.
pub(crate) fn error_chain(error: &onehold::Error) -> String {
    let mut text = escape(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&escape(&cause_text(cause)));
        next = cause.source();
    }
    if let Some(owner) = error.file_owner() {
        text.push_str("; it belongs to user ");
        text.push_str(&escape(&owner));
    }
    text
}

/// The text of a cause without Rust's "(os error 13)" and the full stop of Windows, in lower case.
pub(crate) fn cause_text(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = cause.to_string();
    match text.rfind(" (os error ") {
        Some(end) => {
            let text = text.get(..end).unwrap_or(&text).trim_end_matches('.');
            let mut chars = text.chars();
            match chars.next() {
                Some(first) => first.to_lowercase().chain(chars).collect(),
                None => String::new(),
            }
        }
        None => text,
    }
}

/// A path in a message.
pub(crate) fn path_text(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

/// "10s", or "0.5s".
pub(crate) fn short_span(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return span(duration);
    }
    format!("{}s", duration.as_secs_f64())
}

/// A duration by its two largest units: "3h 12m".
pub(crate) fn span(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    let Some(first) = UNITS.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_shown_in_its_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_661, "1h 1m"),
            (11_520, "3h 12m"),
            (90_000, "1d 1h"),
            (86_401, "1d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(escape("\u{202e}gnp.exe"), "\\u{202e}gnp.exe");
        assert_eq!(escape("Übung ✓"), "Übung ✓");
    }
}
