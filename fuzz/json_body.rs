//! Feeds any text to the readers of `/v1`'s bodies: they must not panic, and what they take is JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match tollgate_server::http::read_body(text) {
        Ok(()) => assert!(is_closed(text), "{text:?} is no JSON"),
        Err(detail) => assert!(!detail.is_empty()),
    }
});

/// Tells whether braces, brackets and quotes match: what a JSON object must have.
fn is_closed(text: &str) -> bool {
    let (mut open, mut is_text, mut is_escaped) = (Vec::new(), false, false);
    for character in text.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_text => is_escaped = true,
            '"' => is_text = !is_text,
            _ if is_text => {}
            '{' | '[' => open.push(character),
            '}' if open.pop() != Some('{') => return false,
            ']' if open.pop() != Some('[') => return false,
            _ => {}
        }
    }
    open.is_empty() && !is_text
}
