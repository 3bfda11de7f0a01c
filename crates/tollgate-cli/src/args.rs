//! The command line, taken apart and not judged yet.

use crate::{check::CheckArgs, load::LoadArgs, serve::ServeArgs};
use clap::{
    Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    builder::BoolishValueParser,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use std::{ffi::OsString, path::Path};

const QUOTA_HELP: &str = "\
How much over which time, for example \"100/s\", \"5 per 10s\" or \"1000/min burst 50\"; quotes \
are optional";

const ARRIVALS_HELP: &str = "\
When events arrive, for example \"0s x3, 1s, 2s every 50ms for 1s\"; by default, times that suit \
the quota";

const COST_HELP: &str = "\
Permits that each event asks for; by default 1, or more if the quota is large and no arrivals are \
given";

const GRAMMAR: &str = "\
Arrivals:
  items separated by commas; each is  [TIME] [every DURATION for DURATION] [x COUNT]

  100ms                   one event 100 ms after the start
  1s x3                   three events at 1 s
  every 50ms for 2s       one at 0 ms, 50 ms, ... 1950 ms; the end is not included
  3s every 5ms for 1s x2  two at a time, from 3 s on

  A time is whole numbers with a unit (ns, us, ms, s, min, h, day), as in 1s500ms. Every time
  counts from the start, so the order of the items does not matter. At most 100000 events.

Quotas:
  COUNT/UNIT or COUNT per DURATION, then optionally \"burst N\" and \"initial full|empty|N\".
  Without a burst, as many can be saved up as one period brings. \"unlimited\" admits everything.

Algorithms:
  gcra (also token-bucket, leaky-bucket), fixed-window, anchored-window, sliding-counter,
  sliding-log. Windows have no burst.";

/// Decides whether an event may pass now, later or never.
///
/// `tollgate serve` answers for any language and proxy: Envoy's rate limit protocol, HTTP/JSON,
/// forward-auth and the Redis protocol. The other commands judge its configuration, load it, watch
/// it, and show what a quota lets pass.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Job>,
}

impl Args {
    /// Reads a command line; prints why and exits if it makes no sense.
    pub(crate) fn read(line: impl IntoIterator<Item: Into<OsString> + Clone>) -> Self {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(line).unwrap_or_else(|error| refuse(&error));
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

/// Prints what is wrong with a command line, and exits. A path in place of a command gets a hint.
fn refuse(error: &clap::Error) -> ! {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && Path::new(word).exists()
    {
        crate::complain(format_args!(
            "\"{word}\" is no command; to serve this configuration, write `tollgate serve {word}`"
        ));
        std::process::exit(crate::BAD_INPUT.into());
    }
    error.exit()
}

/// Returns the command line's grammar: every flag of `serve` has an environment variable.
fn command() -> clap::Command {
    Args::command().mut_subcommand("serve", |serve| serve.mut_args(with_variable))
}

/// Gives `--some-flag` the variable `TOLLGATE_SOME_FLAG`.
fn with_variable(arg: Arg) -> Arg {
    let Some(long) = arg.get_long() else { return arg };
    let name = format!("TOLLGATE_{}", long.to_uppercase().replace('-', "_"));
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
  tollgate check limits.yaml                 is the configuration right, and is it wise?
  tollgate table 100/min burst 10            what one quota answers, event by event
  tollgate compare 10/s                      the same events through every algorithm
  tollgate explain 60/min                    what a quota means
  tollgate load resp                         how fast a server decides
  tollgate top                               what a server does, live";

#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Answer "may this pass?" over HTTP, gRPC and the Redis protocol; the default
    Serve(Box<ServeArgs>),
    /// Judge configuration files, and say which limit a request would meet
    Check(CheckArgs),
    #[command(flatten)]
    Show(Command),
    /// Send requests to a server and measure what comes back
    Load(Box<LoadArgs>),
    /// Watch a server: which policies are busy, and whom they refuse
    #[cfg(feature = "top")]
    Top(crate::top::TopArgs),
}

/// What needs no server.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay events and print each answer
    Table(TableArgs),
    /// Replay the same events through every algorithm
    Compare(CompareArgs),
    /// Say what a quota means, in words and numbers
    Explain(ExplainArgs),
}

#[derive(Debug, Default, clap::Args)]
#[command(after_long_help = GRAMMAR)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) traffic: Traffic,

    /// Which algorithm decides, by default gcra: --help lists them
    #[arg(long, short, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// How to print: text with a picture, or rows for another program
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
    /// A table, a summary and a picture
    #[default]
    Text,
    /// One row per event; times in nanoseconds
    Csv,
    /// One object; times in nanoseconds, null for what does not apply
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
    #[cfg(all(feature = "tls", feature = "top", feature = "otel"))]
    #[test]
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
