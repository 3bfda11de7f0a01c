//! Text from others, made fit to be shown in a terminal.

/// Escapes what a terminal would obey or hide: control characters, marks of direction, zero widths.
pub(crate) fn escaped(text: &str) -> String {
    let is_hidden = |c: char| {
        matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_hidden(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Escapes a text, and cuts it to a number of cells; an ellipsis marks the cut.
#[cfg(feature = "top")]
pub(crate) fn fit(text: &str, cells: u16) -> String {
    let text = escaped(text);
    let width = |text: &str| ratatui::text::Span::raw(text).width();
    let cells = usize::from(cells);
    if width(&text) <= cells {
        return text;
    }
    let mut out = String::new();
    for c in text.chars() {
        out.push(c);
        if width(&out) >= cells {
            out.pop();
            break;
        }
    }
    out + "…"
}

#[cfg(all(test, feature = "top"))]
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
            assert_eq!(escaped(text), shown);
        }
    }

    #[test]
    fn what_is_left_out_shows_and_controls_are_escaped() {
        for (text, cells, expected) in [
            ("short", 5, "short"),
            ("longer", 5, "long…"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("a\u{1b}[31mb", 20, "a\\u{1b}[31mb"),
            ("a\u{202e}b\n", 20, "a\\u{202e}b\\n"),
            ("anything", 1, "…"),
        ] {
            assert_eq!(fit(text, cells), expected, "{text:?} in {cells}");
        }
    }
}
