//! The log of the service: its flags, its throttle, and text without control characters.
//!
//! Clients choose keys, paths and other texts that are logged. Raw, a newline in one of them would forge
//! a log line, and an escape sequence would reach the operator's terminal.
//!
//! A store that is away or a port scan must not fill the disk, so [`LogThrottle`] limits the lines of each callsite. A full
//! disk or a stopped reader must not stop the service, so [`LossyWriter`] drops lines instead of waiting.

use crate::{plan::InputError, text::escaped};
use clap::ValueEnum;
use std::{
    io::{self, IsTerminal},
    str::FromStr,
    time::Duration,
};
use tollgate::{
    Quota,
    log::{LogThrottle, LogThrottleHandle, LossyWriter},
};
use tollgate_server::admin::LostLogLines;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    field::MakeExt,
    fmt::{
        self,
        format::{FormatFields, debug_fn},
    },
    prelude::*,
};

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Log level (error, warn, info, debug), or filters such as tollgate_server=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,

    /// Log format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,

    /// How many lines each place in the source may log, or off; the others are counted
    #[arg(long, value_name = "QUOTA", default_value = "10/s burst 100")]
    log_limit: LogLimit,

    /// Log one denial out of N; 0 logs none
    #[arg(long, value_name = "N")]
    pub(crate) denial_log: Option<u64>,

    /// Include keys in logged denials
    #[arg(long)]
    pub(crate) log_keys: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Targets of lines that are never left out: changes by administrators, and the addresses at the start.
const EXEMPT: [&str; 2] = ["tollgate::audit", "tollgate::serve::banner"];

/// The quota of each callsite, if there is one.
#[derive(Clone, Copy, Debug, Default)]
struct LogLimit(Option<Quota>);

impl FromStr for LogLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let quota = text.parse().map_err(|error| format!("{error}; or write off"))?;
        Ok(Self(Some(quota)))
    }
}

/// The running log. At its end it writes what waits.
#[derive(Debug)]
pub(crate) struct Log {
    throttle: Option<LogThrottleHandle>,
    writer: LossyWriter,
}

impl Log {
    /// How long the service waits for its output. A reader that takes nothing for so long has stopped.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

    /// Returns what counts the lines that were not written.
    pub(crate) fn lost_lines(&self) -> impl Fn() -> LostLogLines + Send + Sync + 'static {
        let (throttle, writer) = (self.throttle.clone(), self.writer.clone());
        move || LostLogLines {
            throttled: throttle.as_ref().map_or(0, |throttle| throttle.counts().left_out),
            dropped: writer.dropped(),
        }
    }

    /// Waits until all lines are written or dropped.
    pub(crate) fn flush(&self) {
        self.writer.flush_within(Self::FLUSH_TIMEOUT);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(throttle) = &self.throttle {
            throttle.flush();
        }
        self.flush();
    }
}

impl LogArgs {
    /// Starts the log of this process.
    pub(crate) fn start(&self) -> Result<Log, InputError> {
        let filter = EnvFilter::try_new(&self.log)
            .map_err(|error| InputError(format!("--log \"{}\": {error}", self.log)))?;
        let cannot =
            |error: &dyn std::fmt::Display| InputError(format!("cannot start the log: {error}"));
        let writer = LossyWriter::builder(io::stderr()).notice(self.log_format.notice());
        let writer = writer.start().map_err(|error| cannot(&error))?;
        let output = self.log_format.output(&writer);
        let (layer, throttle) = match self.log_limit.0 {
            None => (output, None),
            Some(quota) => {
                let builder =
                    EXEMPT.into_iter().fold(LogThrottle::builder(quota), |builder, target| {
                        builder.exempt_target(target)
                    });
                let throttle = builder.build().map_err(|error| {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    InputError(format!("--log-limit: {error}: {}", cause.unwrap_or_default()))
                })?;
                let handle = throttle.handle();
                (throttle.wrap(output).boxed(), Some(handle))
            }
        };
        let set = tracing_subscriber::registry().with(layer).with(filter).try_init();
        set.map_err(|error| cannot(&error))?;
        Ok(Log { throttle, writer })
    }
}

impl LogFormat {
    fn output(self, writer: &LossyWriter) -> Box<dyn Layer<Registry> + Send + Sync> {
        let writer = writer.clone();
        let layer = fmt::layer().with_writer(move || writer.clone());
        match self {
            Self::Text => layer.with_ansi(io::stderr().is_terminal()).fmt_fields(fields()).boxed(),
            Self::Json => layer.json().boxed(),
        }
    }

    /// Returns the line that tells how many lines were dropped.
    fn notice(self) -> fn(u64) -> String {
        const WHY: &str = "log lines dropped: standard error is full or slow";
        match self {
            Self::Text => |lines| format!("WARN tollgate::log: {lines} {WHY} dropped={lines}\n"),
            Self::Json => |lines| {
                let fields =
                    serde_json::json!({"message": format!("{lines} {WHY}"), "dropped": lines});
                let line = serde_json::json!({"level": "WARN", "fields": fields, "target": "tollgate::log"});
                format!("{line}\n")
            },
        }
    }
}

/// Writes the message and the fields of an event, all of them [escaped].
fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(|writer, field, value| {
        if field.name() != "message" {
            write!(writer, "{field}=")?;
        }
        writer.write_str(&escaped(&format!("{value:?}")))
    })
    .delimited(" ")
}
