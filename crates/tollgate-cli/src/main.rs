//! The program `tollgate`: a rate limit service, and tools to check, load and watch it.
//!
//! ```sh
//! tollgate serve                # the built-in example, in memory
//! tollgate check limits.yaml    # find errors and risky settings
//! ```
//!
//! [`args`] parses the command line, and each command has a module. [`serve`] and [`check`] are thin
//! wrappers around the server library, [`load`] measures servers, [`soak`] runs one for long, and `top` watches one. `table`,
//! `compare` and `explain` show what a quota does: [`plan`] validates their arguments and [`report`]
//! writes the result.

mod args;
mod arrivals;
mod check;
#[cfg(feature = "top")]
mod client;
mod load;
mod log;
mod plan;
mod replay;
mod report;
mod serve;
mod soak;
mod span;
mod target;
mod text;
mod tls;
#[cfg(feature = "top")]
mod top;

use args::{Args, Command, Job};
use plan::{InputError, Plan};
use std::{
    io::{self, BufWriter, ErrorKind, Write},
    process::ExitCode,
};

/// The exit code of an invalid command line; clap uses the same.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    // Without a command it serves.
    let args = Args::read(std::env::args_os());
    let job = args.command.or_else(|| Args::read(["tollgate", "serve"]).command);
    let done = match job {
        Some(Job::Load(args)) => load::run(&args),
        Some(Job::Check(args)) => check::run(&args),
        Some(Job::Soak(args)) => soak::run(&args),
        Some(Job::Serve(args)) => serve::run(&args),
        #[cfg(feature = "top")]
        Some(Job::Top(args)) => top::run(&args),
        Some(Job::Show(command)) => show(&command),
        None => return ExitCode::from(BAD_INPUT),
    };
    done.unwrap_or_else(|InputError(text)| {
        complain(format_args!("{text}\n\nFor more information, try '--help'."));
        ExitCode::from(BAD_INPUT)
    })
}

fn show(command: &Command) -> Result<ExitCode, InputError> {
    Plan::new(command).map(|plan| write(&plan))
}

fn write(plan: &Plan) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    match report::write(plan, &mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as in `tollgate table | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("cannot write the output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns a count with its noun: `1 domain`, `2 domains`, `2 policies`.
fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix("cy")) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}cies"),
        (_, None) => format!("{count} {noun}s"),
    }
}

/// Writes to standard error; if that is closed, the text is lost.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ignored = writeln!(io::stderr(), "error: {text}");
}
