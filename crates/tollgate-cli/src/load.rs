//! `tollgate load`: sends requests to a server and measures what comes back.
//!
//! [`plan`] judges the command line, [`worker`] starts threads, [`pipe`] and [`grpc`] are the
//! connections, [`schedule`] says when a request is due, and [`report`] writes the result.

mod clock;
mod gate;
mod grpc;
mod http;
mod keys;
mod pipe;
mod plan;
mod report;
mod resp;
mod schedule;
mod tally;
mod template;
mod worker;

use crate::{plan::InputError, tls::TlsArgs};
use clap::{Args, Subcommand, ValueEnum};
use plan::Plan;
pub(crate) use report::Report;
use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    process::ExitCode,
    sync::{Arc, Barrier, OnceLock, PoisonError},
    time::Duration,
};
use tally::Tally;
use tokio::sync::Semaphore;
use worker::{Run, Worker};

const EXAMPLES: &str = "\
Examples:
  tollgate load resp
      `tollgate serve` on this machine, as fast as it answers: 50 connections, 16 commands in flight on each

  tollgate load resp 127.0.0.1:6379 --command 'INCR {key}' --pipeline 1
      any server and any command; {key} is replaced by a key

  tollgate load http --rate 20000 --dist zipf
      20000 requests per second, however slow the server is; latency counts from the due time

  tollgate load grpc --domain example --descriptor user={key} --streams 4
      Envoy's rate limit protocol

  tollgate load http https://limits.example:8080 --cacert ca.pem
      over TLS

  tollgate load resp --dist one --requests 5000 --admit-exactly 100
      fails unless exactly 100 of 5000 pass";

/// The command line of `tollgate load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Debug, Subcommand)]
enum Protocol {
    /// Send RESP commands, as Redis clients do
    Resp(RespArgs),
    /// Send HTTP/1.1 requests
    Http(HttpArgs),
    /// Send gRPC calls of Envoy's rate limit protocol
    Grpc(GrpcArgs),
}

#[derive(Debug, Args)]
struct RespArgs {
    #[command(flatten)]
    shared: Shared,

    /// The command, words separated by spaces; {key} is replaced by a key
    #[arg(long, value_name = "WORDS", default_value = "CL.THROTTLE {key} 99 100 60")]
    command: String,

    /// Commands in flight per connection, written together
    #[arg(long, short = 'P', value_name = "N", default_value_t = 16, conflicts_with = "rate")]
    pipeline: u64,

    /// Which replies mean allowed
    #[arg(long, value_enum, default_value_t)]
    reply: RespReply,
}

#[derive(Debug, Args)]
struct HttpArgs {
    #[command(flatten)]
    shared: Shared,

    /// The path; {key} is replaced by a key
    #[arg(long, default_value = "/v1/check")]
    path: String,

    /// The body; {key} is replaced by a key; not sent with GET and HEAD
    #[arg(long, default_value = r#"{"policy":"api","key":"{key}"}"#)]
    body: String,

    /// The method
    #[arg(long, default_value = "POST")]
    method: String,

    /// An additional header, for example "X-User: {key}"; can be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Requests in flight per connection, written together
    #[arg(long, short = 'P', value_name = "N", default_value_t = 1, conflicts_with = "rate")]
    pipeline: u64,
}

#[derive(Debug, Args)]
struct GrpcArgs {
    #[command(flatten)]
    shared: Shared,

    /// The domain of the request
    #[arg(long, default_value = "example")]
    domain: String,

    /// A descriptor: entries separated by commas; can be repeated
    #[arg(long = "descriptor", value_name = "NAME=VALUE,..", default_value = "user={key}")]
    descriptors: Vec<String>,

    /// Calls in flight per connection
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: u64,

    /// The gRPC method to call
    #[arg(long, default_value = grpc::SHOULD_RATE_LIMIT)]
    path: String,
}

/// What all protocols have in common.
#[derive(Debug, Args)]
struct Shared {
    /// The server: HOST:PORT, https://HOST:PORT or unix:/PATH [default: where `tollgate serve` listens]
    address: Option<String>,

    /// Connections, divided among the threads
    #[arg(long, short, value_name = "N", default_value_t = 50)]
    connections: u64,

    /// Sending threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u64,

    /// Open loop: start this many requests per second, however slow the server is
    #[arg(long, value_name = "N")]
    rate: Option<u64>,

    /// How long to send, after the warm-up [default: 10s, or no end with --requests]
    #[arg(long, short, value_name = "TIME")]
    duration: Option<String>,

    /// Warm-up time; its requests do not count [default: 1s; 0 with --requests, --admit-exactly]
    #[arg(long, value_name = "TIME")]
    warmup: Option<String>,

    /// Stop after this many requests
    #[arg(long, short = 'n', value_name = "N")]
    requests: Option<u64>,

    /// Give up after this long without a response, and this long after the end
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: String,

    /// Number of distinct keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,

    /// Distribution of the keys
    #[arg(long, value_enum, default_value_t)]
    dist: Spreads,

    /// The exponent of --dist zipf
    #[arg(long, value_name = "S", default_value_t = 1.1)]
    zipf: f64,

    /// Prefix of each key; 12 digits follow
    #[arg(long, value_name = "TEXT", default_value = "key:")]
    key_prefix: String,

    /// Seed of the random keys; the same seed gives each connection the same keys
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Fail if there are more errors than this
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_errors: u64,

    /// Fail unless exactly this many requests were allowed
    #[arg(long, value_name = "N")]
    admit_exactly: Option<u64>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    format: Format,

    /// Print progress each second even if standard error is not a terminal
    #[arg(long)]
    progress: bool,

    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Spreads {
    /// Every key equally often
    #[default]
    Uniform,
    /// A few keys get most requests
    Zipf,
    /// One key gets all requests
    One,
    /// Each key in turn
    Sequence,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum RespReply {
    /// By the command: zero-passes for CL.THROTTLE, one-passes for THROTTLE and TG.*, else any
    #[default]
    Auto,
    /// Allowed if the first number is 0, denied if it is 1
    ZeroPasses,
    /// Allowed if the first number is 1, denied if it is 0
    OnePasses,
    /// Every reply except an error
    Any,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    #[default]
    Text,
    /// One JSON object; latency in milliseconds
    Json,
}

impl LoadArgs {
    const fn shared(&self) -> &Shared {
        match &self.protocol {
            Protocol::Resp(args) => &args.shared,
            Protocol::Http(args) => &args.shared,
            Protocol::Grpc(args) => &args.shared,
        }
    }
}

/// A command line without the program's name.
#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: LoadArgs,
}

/// Runs the load of a command line, whose first word is `load`, and prints nothing. Returns the result, and what is wrong with it.
pub(crate) fn run_line(words: &[String]) -> Result<(Report, Option<String>), String> {
    let line = <Line as clap::Parser>::try_parse_from(words).map_err(|error| error.to_string())?;
    let plan = Plan::new(&line.args).map_err(|InputError(text)| text)?;
    drive(plan, false).map_err(|error| error.to_string())
}

/// Runs the load and prints the result.
pub(crate) fn run(args: &LoadArgs) -> Result<ExitCode, InputError> {
    let plan = Plan::new(args)?;
    let shared = args.shared();
    let progress = shared.progress || io::stderr().is_terminal();
    let outcome = drive(plan, progress).and_then(|(report, problem)| {
        let mut out = io::stdout().lock();
        match shared.format {
            // Figures of nothing would only hide the sentence that says why.
            Format::Text if report.decided == 0 => {}
            Format::Text => report.write_text(&mut out)?,
            Format::Json => report.write_json(&mut out)?,
        }
        out.flush()?;
        Ok(problem)
    });
    Ok(match outcome {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(problem)) => {
            crate::complain(format_args!("{problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            crate::complain(format_args!("cannot run the load test: {error}"));
            ExitCode::FAILURE
        }
    })
}

/// Starts the workers, watches over them, and adds up.
fn drive(plan: Plan, progress: bool) -> io::Result<(Report, Option<String>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let threads = plan.threads;
    let run = Arc::new(Run {
        plan,
        start: Barrier::new(threads as usize),
        clock: OnceLock::new(),
        halt: Arc::default(),
    });
    let done = Arc::new(Semaphore::new(0));
    let workers: io::Result<Vec<Worker>> =
        (0..threads).map(|number| Worker::spawn(&run, number, &done)).collect();
    let workers = workers?;
    let mut watch = Watch { run: &run, workers: &workers, progress, quiet: 0, seen: 0 };
    let ended_early = runtime.block_on(watch.until_done(&done))?;
    let tally = watch.sum()?;
    for worker in workers {
        let ended = worker.thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("a load thread panicked")))?;
    }
    let report = Report::new(&run.plan, &tally, ended_early);
    let problem = report.problem(&run.plan);
    Ok((report, problem))
}

/// Looks at the workers four times a second.
struct Watch<'a> {
    run: &'a Run,
    workers: &'a [Worker],
    progress: bool,
    /// How many seconds no answer came.
    quiet: u64,
    seen: u64,
}

/// How often in a second to look: a run that is in vain ends within a second.
const LOOKS: u32 = 4;

impl Watch<'_> {
    /// Waits for the workers; says whether the user ended it early.
    async fn until_done(&mut self, done: &Semaphore) -> io::Result<bool> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / LOOKS);
        ticks.tick().await;
        let mut looks = 0;
        let mut ended_early = false;
        let all = u32::try_from(self.workers.len()).map_err(io::Error::other)?;
        let mut all_done = pin!(done.acquire_many(all));
        loop {
            tokio::select! {
                _ = &mut all_done => break,
                _ = tokio::signal::ctrl_c() => {
                    // Asked twice: what is in flight is not waited for either.
                    if ended_early {
                        self.run.halt.abandon();
                    }
                    ended_early = true;
                    self.run.halt.set();
                }
                _ = ticks.tick() => {
                    looks += 1;
                    if self.sum()?.is_in_vain(self.run.plan.max_errors) {
                        self.run.halt.abandon();
                    }
                    if looks % LOOKS == 0 {
                        self.tick()?;
                    }
                }
            }
        }
        if self.progress {
            let _ignored = writeln!(io::stderr());
        }
        Ok(ended_early)
    }

    fn tick(&mut self) -> io::Result<()> {
        let Some(clock) = self.run.clock.get() else { return Ok(()) };
        let tally = self.sum()?;
        let now = clock.now_ns();
        self.quiet = if tally.answers > self.seen { 0 } else { self.quiet + 1 };
        let rate = tally.answers - self.seen;
        self.seen = tally.answers;
        let end = self.run.plan.schedule.end_ns;
        let late =
            end.is_some_and(|end| now > end.saturating_add(clock::ns(self.run.plan.timeout)));
        if late || self.quiet >= self.run.plan.timeout.as_secs().max(1) {
            self.run.halt.abandon();
        }
        if self.progress {
            let (seconds, errors) = (now / 1_000_000_000, crate::counted(tally.errors, "error"));
            let p99 = tally.latency_ms().p99;
            // If standard error is closed, the line is lost.
            let _ignored =
                write!(io::stderr(), "\r{seconds:>4} s {rate:>9}/s  p99 {p99:>9.3} ms  {errors} ");
        }
        Ok(())
    }

    fn sum(&self) -> io::Result<Tally> {
        let mut sum = Tally::new().map_err(io::Error::other)?;
        for worker in self.workers {
            sum.add(&worker.tally.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(sum)
    }
}
