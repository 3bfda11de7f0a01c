//! The parsed command line, before it is checked.

use crate::{check::CheckArgs, load::LoadArgs, serve::ServeArgs, soak::SoakArgs};
use clap::{
    Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    builder::BoolishValueParser,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

const QUOTA_HELP: &str =
    "The quota, for example \"100/s\", \"5 per 10s\" or \"1000/min burst 50\"; quotes are optional";

const ARRIVALS_HELP: &str = "\
When events arrive, for example \"0s x3, 1s, 2s every 50ms for 1s\"; by default, times that suit \
the quota";

const COST_HELP: &str = "Permits that each event takes; by default 1, or more if the quota is \
                         large and --arrivals is not given";

const GRAMMAR: &str = "\
Arrivals:
  items separated by commas; each is  [TIME] [every DURATION for DURATION] [x COUNT]

  100ms                   one event 100 ms after the start
  1s x3                   three events at 1 s
  every 50ms for 2s       one at 0 ms, 50 ms, ... 1950 ms; the end is not included
  3s every 5ms for 1s x2  two every 5 ms, starting at 3 s

  A time is one or more whole numbers with units (ns, us, ms, s, min, h, day), as in 1s500ms. Times
  count from the start, so the order of the items does not matter. At most 100000 events.

Quotas:
  COUNT/UNIT or COUNT per DURATION, then optionally \"burst N\" and \"initial full|empty|N\".
  Without a burst, one period's worth can be saved up. \"unlimited\" admits everything.

Algorithms:
  gcra (also token-bucket, leaky-bucket), fixed-window, anchored-window, sliding-counter,
  sliding-log. Windows have no burst.";

/// Decides whether an event may pass now, later or never.
///
/// `tollgate serve` decides for clients in any language: Envoy's rate limit protocol, HTTP/JSON,
/// forward-auth and the Redis protocol. The other commands check its configuration, put load on it,
/// watch it, and show what a quota admits.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Job>,
}

impl Args {
    /// Reads a command line; if it is invalid, prints why and exits.
    pub(crate) fn read(line: impl IntoIterator<Item: Into<OsString> + Clone>) -> Self {
        let mut command = command();
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        let matches = command.try_get_matches_from_mut(&line);
        let matches = matches.unwrap_or_else(|error| refuse(error, &line));
        let mut args = match Self::from_arg_matches(&matches) {
            Ok(args) => args,
            Err(error) => error.format(&mut command).exit(),
        };
        let is_from_env =
            |serve: &ArgMatches| serve.value_source("config") == Some(ValueSource::EnvVariable);
        // The command line wins over the environment, also in its other spelling.
        if let Some(Job::Serve(serve)) = &mut args.command
            && matches.subcommand_matches("serve").is_some_and(is_from_env)
        {
            serve.prefer_paths();
        }
        args
    }
}

/// Prints what is wrong with a command line, and exits. A path in place of a command gets a hint, and
/// a bad value from the environment the name of its variable.
fn refuse(mut error: clap::Error, line: &[OsString]) -> ! {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && Path::new(word).exists()
    {
        crate::complain(format_args!(
            "\"{word}\" is not a command; to serve this configuration, write `tollgate serve \
             {word}`"
        ));
        std::process::exit(crate::BAD_INPUT.into());
    }
    if let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg)
        && let Some(flag) = arg.split(' ').next()
        && let variable = variable_of(flag)
        && std::env::var_os(&variable).is_some()
        && !line.iter().any(|word| is_flag(word, flag))
    {
        let named = ContextValue::String(format!("{arg} (from {variable})"));
        error.insert(ContextKind::InvalidArg, named);
    }
    error.exit()
}

/// Tells whether a word of the command line is this flag, as `--flag` or `--flag=value`.
fn is_flag(word: &OsStr, flag: &str) -> bool {
    let word = word.to_string_lossy();
    word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Returns the variable that stands for a flag: `TOLLGATE_SOME_FLAG` for `--some-flag`.
fn variable_of(flag: &str) -> String {
    format!("TOLLGATE_{}", flag.trim_start_matches('-').to_uppercase().replace('-', "_"))
}

/// Returns the command line's grammar: every flag of `serve` has an environment variable.
fn command() -> clap::Command {
    Args::command().mut_subcommand("serve", |serve| serve.mut_args(with_variable))
}

/// Gives `--some-flag` the variable `TOLLGATE_SOME_FLAG`.
fn with_variable(arg: Arg) -> Arg {
    let Some(long) = arg.get_long() else { return arg };
    let name = variable_of(long);
    let arg = match arg.get_action() {
        // clap reads only `true` and `false` otherwise; `1` and `yes` are as usual.
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    };
    // clap keeps names of variables as `'static`. A process reads its command line once.
    arg.env(&*name.leak())
}

const EXAMPLES: &str = "\
Examples:
  tollgate                                   serve the built-in example
  tollgate serve limits.yaml                 serve your own limits
  tollgate check limits.yaml                 find errors and risky settings in a configuration
  tollgate table 100/min burst 10            show each decision of a quota
  tollgate compare 10/s                      run the same events through every algorithm
  tollgate explain 60/min                    explain a quota
  tollgate load resp                         measure a server's throughput and latency
  tollgate soak --for 30m                    run the service for long, and judge it
  tollgate top                               watch a server live";

#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Run the rate limit service over HTTP, gRPC and the Redis protocol; the default command
    Serve(Box<ServeArgs>),
    /// Check configuration files, and show which limits apply to a request
    Check(CheckArgs),
    #[command(flatten)]
    Show(Command),
    /// Send requests to a server and measure throughput and latency
    Load(Box<LoadArgs>),
    /// Run the service under mixed load for long, and judge its memory and counters
    Soak(SoakArgs),
    /// Watch a server live: which policies are busy, and which keys they deny
    #[cfg(feature = "top")]
    Top(crate::top::TopArgs),
}

/// What needs no server.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run events through one quota and print each decision
    Table(TableArgs),
    /// Run the same events through every algorithm
    Compare(CompareArgs),
    /// Explain a quota in words and numbers
    Explain(ExplainArgs),
}

#[derive(Debug, Default, clap::Args)]
#[command(after_long_help = GRAMMAR)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) traffic: Traffic,

    /// The algorithm [default: gcra]; --help lists all
    #[arg(long, short, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = GRAMMAR)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) traffic: Traffic,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[arg(help = QUOTA_HELP, required = true)]
    pub(crate) quota: Vec<String>,
}

/// The quota and the events that meet it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Traffic {
    /// In words, so that quotes are optional in the shell.
    #[arg(help = QUOTA_HELP)]
    pub(crate) quota: Vec<String>,

    #[arg(long, value_name = "SPEC", help = ARRIVALS_HELP)]
    pub(crate) arrivals: Option<String>,

    #[arg(long, value_name = "N", help = COST_HELP)]
    pub(crate) cost: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table, a summary and a chart
    #[default]
    Text,
    /// One row per event; times in nanoseconds
    Csv,
    /// One JSON object; times in nanoseconds, null where a field does not apply
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn clap_finds_no_contradiction() {
        command().debug_assert();
    }

    /// Each line: the command, a flag or a positional argument, and its environment variable.
    #[test]
    #[cfg_attr(not(feature = "otel"), ignore = "the list has the flags of all features")]
    fn flags_are_as_recorded() {
        fn collect(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
            for arg in command.get_arguments() {
                let short = arg.get_short().map(|short| format!(" -{short}"));
                let name = match arg.get_long() {
                    Some(long) => format!("--{long}{}", short.unwrap_or_default()),
                    None => format!("<{}>", arg.get_id()),
                };
                let variable = arg.get_env().map(|name| format!(" {}", name.to_string_lossy()));
                found.insert(format!("{path} {name}{}", variable.unwrap_or_default()));
            }
            for command in command.get_subcommands() {
                collect(command, &format!("{path} {}", command.get_name()), found);
            }
        }
        let mut found = BTreeSet::new();
        collect(&command(), "tollgate", &mut found);
        tollgate_rig::golden("flags", &found);
    }
}
