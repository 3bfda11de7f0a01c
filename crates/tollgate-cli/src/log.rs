//! Text logs that show control characters instead of sending them to the terminal.
//!
//! Clients choose keys, paths and other texts that are logged. Raw, a newline in one of them would forge
//! a log line, and an escape sequence would reach the operator's terminal.

use crate::text::escaped;
use tracing_subscriber::{
    field::MakeExt,
    fmt::format::{FormatFields, debug_fn},
};

/// Writes the message and the fields of an event, all of them [escaped].
pub(crate) fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(|writer, field, value| {
        if field.name() != "message" {
            write!(writer, "{field}=")?;
        }
        writer.write_str(&escaped(&format!("{value:?}")))
    })
    .delimited(" ")
}
