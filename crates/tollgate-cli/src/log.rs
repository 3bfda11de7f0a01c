//! Text logs that show control characters instead of sending them to the terminal.
//!
//! Clients choose keys, paths and other texts that are logged. Raw, a newline in one of them would forge
//! a log line, and an escape sequence would reach the operator's terminal.

use std::borrow::Cow;
use tracing_subscriber::{
    field::MakeExt,
    fmt::format::{FormatFields, debug_fn},
};

/// Writes the message and the fields of an event, all of them [visible].
pub(crate) fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(|writer, field, value| {
        if field.name() != "message" {
            write!(writer, "{field}=")?;
        }
        writer.write_str(&visible(&format!("{value:?}")))
    })
    .delimited(" ")
}

/// Returns a text whose control characters, line ends and marks of direction are written as escapes,
/// such as `\n` and `\u{1b}`.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_invisible(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Tells whether a character moves the cursor, ends a line, or changes the direction or the order in
/// which others are shown.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        // C0, DEL and C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Marks, embeddings and isolates of direction; zero width; line and paragraph separators.
        | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes_and_others_stay() {
        for (text, shown) in [
            ("alice@example.com", "alice@example.com"),
            ("Ünï → 日本", "Ünï → 日本"),
            ("a\x1b[31m\r\nb\tc", "a\\u{1b}[31m\\r\\nb\\tc"),
            ("\u{9b}2J\u{7f}\0", "\\u{9b}2J\\u{7f}\\u{0}"),
            ("x\u{202e}y\u{2066}z\u{2028}", "x\\u{202e}y\\u{2066}z\\u{2028}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
