//! Text from lock files, which is untrusted, on a terminal.

/// Escapes control characters, invisible characters, and those that change the writing direction.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\u{1b}' => escaped.push_str("\\e"),
            _ if char.is_ascii_control() => escaped.extend(char.escape_default()),
            _ if is_unsafe(char) => escaped.extend(char.escape_unicode()),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// Whether `char` could control a terminal or mislead its reader.
pub fn is_unsafe(char: char) -> bool {
    let hidden = matches!(
        char,
        '\u{061C}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{E0000}'..='\u{E007F}'
    );
    char.is_control() || hidden
}
