//! The errors of arrivals.

use super::EVENTS_MAX;
use std::fmt;

/// Why a text does not describe arrivals. Each message names the value, the rule and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalsError {
    NotUnderstood { item: String, expected: &'static str, found: String },
    NoInterval { item: String },
    NoSpan { item: String },
    NoCopies { item: String },
    TooMany { events: u64 },
    TooLate { item: String },
}

impl fmt::Display for ArrivalsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUnderstood { item, expected, found } => {
                write!(f, "arrival \"{item}\" is not valid: expected {expected}, found ")?;
                match found.as_str() {
                    "" => f.write_str("the end")?,
                    found => write!(f, "\"{found}\"")?,
                }
                f.write_str("; write it as in \"0s, 1s x3, every 50ms for 2s\"")
            }
            Self::NoInterval { item } => write!(
                f,
                "arrival \"{item}\" has no time between its events; give at least 1ns, or write x5 \
                 for five at once"
            ),
            Self::NoSpan { item } => {
                write!(
                    f,
                    "arrival \"{item}\" contains no events; give a longer time, or leave it out"
                )
            }
            Self::NoCopies { item } => {
                write!(f, "arrival \"{item}\" contains no events; use at least x1, or leave it out")
            }
            Self::TooMany { events } => write!(
                f,
                "these arrivals contain {events} events or more, above the limit of {EVENTS_MAX} \
                 per run; use a longer interval, a shorter time or fewer copies"
            ),
            Self::TooLate { item } => write!(
                f,
                "arrival \"{item}\" lies beyond 11.4 years, the latest time that a limiter can \
                 represent; use an earlier one"
            ),
        }
    }
}

impl std::error::Error for ArrivalsError {}

/// Keeps an error message short, regardless of the input.
pub(super) fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
