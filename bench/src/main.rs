//! Speed and memory of tollgate and its peers.
//!
//! `cargo run --release -p tollgate-bench -- --help` lists the measurements. Tables go to
//! standard output as Markdown, progress to standard error. `docs/benchmarks.md` says how to read
//! a run, and `docs/benchmarks/` holds one.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures time, and some peers and baselines read the clock themselves"
)]

mod allocations;
mod clocks;
mod debounce;
mod decisions;
mod direct;
mod golang;
mod grid;
mod harness;
mod keyed;
mod latency;
mod ledger;
mod log;
mod machine;
mod middleware;
mod pacer;
mod peers;
mod redis;
mod service;
mod slots;
mod stats;
mod table;
mod threads;
mod waiting;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: machine::CountingAllocator = machine::CountingAllocator;

const HELP: &str = "\
Speed and memory of tollgate beside its peers

Usage: cargo run --release -p tollgate-bench -- [--quick] [--seconds=N] [TABLE]..

Tables:
  all          everything below but decisions, service, redis and waiting (default)
  decisions    what a decision costs beside governor and scc, with aims: 3 to 4 minutes
               with --quick, longer without; only if named
  clocks       what reading the time costs: the floor
  direct       one limiter, every peer, 1 and 2 threads
  threads      one hot limiter, 2, 8 and 64 threads
  leases       batches of permits held by a thread
  observed     what counting and observing cost
  latency      percentiles of single calls
  allocations  blocks of memory asked for by each verb
  keyed        a million keys, every peer, 1 and 2 threads
  keyed-memory resident bytes for each key, at 1 and 10 million (--quick: at 1 million)
  keyed-insert a million new keys, and the slowest of them
  keyed-expiry what callers feel while a million keys expire
  middleware   what a limit adds to a request of axum, beside tower_governor
  stacks       what full stacks add to a call, beside tower-resilience
  debounce     a hundred thousand keyed debouncers: triggers, memory, what is left
  log          what a log throttle costs a line, beside tracing-throttle
  ledger       a call beside 10 and 100 000 open reservations of a key; only if named
  service      the service beside redis-server and throttlecrab-server; only if named
  redis        the Redis store on one server; only if named
  slots        a slot of a concurrency limit, free and waited for
  pacer        how even the output of a pacer is
  waiting      tasks and threads that wait for permits, 12 minutes; only if named
  go           golang.org/x/time/rate beside it, where Go is installed

Options:
  --quick      3 rounds instead of 9
  --seconds=N  how long each row of waiting is watched, 1 to 600 (default 2.5)
  --help       this text

Tables go to standard output, progress to standard error. On a shared machine run
it in a session of its own, so that its priority counts:

  setsid -w sh -c 'echo -10 > /proc/self/autogroup; cargo run --release -p tollgate-bench'
";

const TABLES: [&str; 18] = [
    "clocks",
    "direct",
    "threads",
    "leases",
    "observed",
    "latency",
    "allocations",
    "keyed",
    "keyed-memory",
    "keyed-insert",
    "keyed-expiry",
    "middleware",
    "stacks",
    "debounce",
    "log",
    "slots",
    "pacer",
    "go",
];

/// The options of the command line.
pub(crate) struct Options {
    quick: bool,
    /// How long each row of the tables of waiting runs, if the command line sets it.
    seconds: Option<f64>,
    tables: Vec<&'static str>,
}

impl Options {
    /// Returns how often each row is measured.
    pub(crate) const fn rounds(&self) -> usize {
        if self.quick { 3 } else { 9 }
    }

    /// Reads the command line; `None` if it requests help.
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self { quick: false, seconds: None, tables: Vec::new() };
        for argument in arguments {
            match argument.as_str() {
                "--help" | "-h" | "help" => return Ok(None),
                "--quick" => options.quick = true,
                "all" => options.tables.extend(TABLES),
                "decisions" => options.tables.push("decisions"),
                "ledger" => options.tables.push("ledger"),
                "service" => options.tables.push("service"),
                "redis" => options.tables.push("redis"),
                "waiting" => options.tables.push("waiting"),
                name if name.starts_with("--seconds=") => options.seconds = Some(seconds(name)?),
                name => match TABLES.iter().find(|table| **table == name) {
                    Some(table) => options.tables.push(table),
                    None => {
                        return Err(format!(
                            "\"{name}\" is no table and no option; use one of all, decisions, {}, service, redis, waiting, --quick, --seconds=N, --help",
                            TABLES.join(", ")
                        ));
                    }
                },
            }
        }
        if options.tables.is_empty() {
            options.tables.extend(TABLES);
        }
        Ok(Some(options))
    }

    fn run(&self) {
        print_machine();
        for table in &self.tables {
            match *table {
                "clocks" => clocks::run(self),
                "decisions" => decisions::run(self),
                "direct" => direct::run(self),
                "threads" => threads::run(self),
                "leases" => direct::leases(self),
                "observed" => direct::observed(self),
                "latency" => latency::run(self),
                "allocations" => allocations::run(),
                "keyed" => keyed::run(self),
                "keyed-memory" => keyed::memory::run(self),
                "keyed-insert" => keyed::insert::run(self),
                "keyed-expiry" => keyed::expiry::run(self),
                "middleware" => middleware::run(self),
                "stacks" => middleware::stacks::run(self),
                "debounce" => debounce::run(self),
                "log" => log::run(self),
                "slots" => slots::run(self),
                "pacer" => pacer::run(self),
                "ledger" => ledger::run(self),
                "service" => service::run(self),
                "redis" => redis::run(self),
                "waiting" => waiting::run(self),
                _ => golang::run(self),
            }
        }
    }
}

/// Reads the number of `--seconds=N`.
fn seconds(argument: &str) -> Result<f64, String> {
    let text = argument.trim_start_matches("--seconds=");
    let number = text.parse().ok().filter(|number| (1.0..=600.0).contains(number));
    number.ok_or_else(|| format!("\"{text}\" is no number from 1 to 600; use --seconds=10"))
}

/// Prints the machine of the measurement, as far as the system reports it.
fn print_machine() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let model = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let load = read("/proc/loadavg");
    println!(
        "{} x {model}, kernel clock {}, load at start {}",
        machine::processors(),
        source.trim(),
        load.split_whitespace().next().unwrap_or("unknown")
    );
}

fn main() -> ExitCode {
    let child = keyed::child::answer(std::env::args().skip(1));
    let child = child.or_else(|| middleware::instructions::answer(std::env::args().skip(1)));
    let child = child.or_else(|| middleware::stacks::answer(std::env::args().skip(1)));
    if let Some(code) = child.or_else(|| service::echo::answer(std::env::args().skip(1))) {
        return code;
    }
    match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => {
            options.run();
            ExitCode::SUCCESS
        }
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_tables_and_options() {
        let parse = |line: &str| Options::parse(line.split_whitespace().map(String::from));
        let all = parse("").unwrap().unwrap();
        assert_eq!((all.tables.len(), all.rounds()), (TABLES.len(), 9));
        let some = parse("--quick direct go").unwrap().unwrap();
        assert_eq!((some.tables, some.quick), (vec!["direct", "go"], true));
        let long = parse("--seconds=12.5 waiting").unwrap().unwrap();
        assert_eq!((long.tables, long.seconds), (vec!["waiting"], Some(12.5)));
        for wrong in ["--seconds=0", "--seconds=1e9", "--seconds=NaN", "--seconds=", "--seconds"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("--help").unwrap().is_none());
        assert!(parse("dirct").is_err_and(|message| message.contains("dirct")));
    }
}
