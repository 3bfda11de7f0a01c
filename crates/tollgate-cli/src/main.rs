//! The `tollgate` program: shows what a quota lets pass, and when.
//!
//! Three steps, one module each: [`args`] takes the command line apart, [`plan`] judges it, and
//! [`report`] writes. What decides is the library; nothing here reads a clock, except [`load`],
//! which measures servers.

mod args;
mod arrivals;
mod load;
mod plan;
mod replay;
mod report;
mod span;

use args::{Args, Command, Job};
use clap::Parser;
use plan::{InputError, Plan};
use std::{
    io::{self, BufWriter, ErrorKind, Write},
    process::ExitCode,
};

/// The exit code of a command line that makes no sense; clap uses the same.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Some(Job::Load(args)) => load::run(&args),
        Some(Job::Show(command)) => show(Some(&command)),
        None => show(None),
    };
    done.unwrap_or_else(|InputError(text)| {
        complain(format_args!("{text}\n\nFor more information, try '--help'."));
        ExitCode::from(BAD_INPUT)
    })
}

fn show(command: Option<&Command>) -> Result<ExitCode, InputError> {
    Plan::new(command).map(|plan| write(&plan))
}

fn write(plan: &Plan) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    match report::write(plan, &mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as in `tollgate table | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("the output could not be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard error; if that is closed, nobody wants to know.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ignored = writeln!(io::stderr(), "error: {text}");
}
