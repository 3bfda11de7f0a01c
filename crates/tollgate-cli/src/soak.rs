//! `tollgate soak`: runs the real service under mixed load for a long time, and checks that its
//! memory and its counters stay right.
//!
//! [`service`] starts `tollgate serve` as a separate process, [`load`] sends checks over three
//! protocols, [`reservations`] takes and gives back, and [`verdict`] decides: resident memory must
//! stay flat, and the service's counts must equal the clients'.

mod reservations;
mod service;
mod verdict;

use crate::{complain, load, plan::InputError};
use reservations::{HELD_KEYS, REFUNDED_KEYS, Reservations};
use service::{Http, Metrics, Service};
use std::{
    io::{self, Write},
    process::ExitCode,
    thread::{self, JoinHandle},
    time::Duration,
};
use tollgate::{Clock, Tick};
use tollgate_server::config::parse_duration;
use verdict::{Counted, Memory, Sample, Verdict};

const RULES: &str = "\
The service runs as a process of its own on free loopback ports, with its state in memory. Half of
the calls go over the Redis protocol, a quarter over HTTP and a quarter over gRPC. Beside them one
client reserves, settles, lets reservations expire, refunds, enters and leaves; the configuration
is reloaded every 30 s.

The command fails unless
  - the line through the samples of resident memory, without the first third of the run, rises by
    at most 1 MiB or 2 %, whichever is more (judged in runs of 5 minutes and more);
  - the service has counted each decision and each permit that the clients have counted, and no
    call failed.";

#[derive(Debug, clap::Args)]
#[command(after_help = RULES)]
pub(crate) struct SoakArgs {
    /// How long to run
    #[arg(long = "for", value_name = "TIME", default_value = "30m")]
    duration: String,

    /// Checks per second, over all protocols
    #[arg(long, value_name = "N", default_value_t = 2000)]
    rate: u64,

    /// Number of distinct keys of each protocol
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,
}

/// The shortest and the longest run.
const DURATIONS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(7 * 86_400);

/// How often the configuration is reloaded.
const RELOAD_EVERY: Duration = Duration::from_secs(30);

/// How often the client of [`Reservations`] acts.
const RESERVE_EVERY: Duration = Duration::from_millis(20);

/// Samples of a long run; short ones have one each second.
const SAMPLES: u32 = 600;

/// Runs the command.
pub(crate) fn run(args: &SoakArgs) -> Result<ExitCode, InputError> {
    let duration =
        parse_duration(&args.duration).map_err(|error| InputError(format!("--for: {error}")))?;
    if !DURATIONS.contains(&duration) {
        let text = format!("--for {} is out of range; use 2s to 7d, usually 30m", args.duration);
        return Err(InputError(text));
    }
    if !(4..=1_000_000).contains(&args.rate) {
        let text = format!("--rate {} is out of range; use 4 to 1000000", args.rate);
        return Err(InputError(text));
    }
    let done = soak(args, duration).and_then(|verdict| {
        let mut out = io::stdout().lock();
        write!(out, "{verdict}").and_then(|()| out.flush())?;
        Ok(verdict.is_good())
    });
    Ok(match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(format_args!("cannot run the soak test: {error}"));
            ExitCode::FAILURE
        }
    })
}

fn soak(args: &SoakArgs, duration: Duration) -> io::Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let service = Service::start()?;
    let loads = start_loads(args, duration, &service)?;
    let watched = runtime.block_on(watch(duration, &service, &loads));
    let mut reports = Vec::new();
    for Load { policy, thread } in loads {
        let ended = thread.join().map_err(|_| io::Error::other("a load thread panicked"))?;
        reports.push((policy, ended.map_err(io::Error::other)?));
    }
    let Watched { samples, reservations, mut http, seconds, reloads } = watched?;
    let (metrics, used) = runtime.block_on(async {
        let used = used_of_keys(&mut http).await?;
        Ok::<_, io::Error>((service.metrics().await?, used))
    })?;
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    for (policy, (report, problem)) in &reports {
        let counted = |result: &str| metrics.decisions(policy, result);
        let spare = report.unanswered;
        rows.push(Counted::up_to(
            format!("{policy} allowed"),
            (report.allowed, spare),
            counted("allowed"),
        ));
        rows.push(Counted::up_to(
            format!("{policy} denied"),
            (report.denied, spare),
            counted("denied"),
        ));
        problems.extend(problem.iter().map(|problem| format!("{policy}: {problem}")));
    }
    rows.extend(reservations.rows(&metrics, used));
    let calls = reports.iter().map(|(_, (report, _))| report.sent).sum::<u64>() + http.calls();
    let memory = Memory::of(&samples, Duration::from_secs_f64(seconds));
    Ok(Verdict { seconds, calls, reloads, memory, samples, rows, problems })
}

/// One protocol's load.
struct Load {
    /// The policy that it checks, which has the name of the protocol.
    policy: &'static str,
    thread: JoinHandle<Result<(load::Report, Option<String>), String>>,
}

fn start_loads(args: &SoakArgs, duration: Duration, service: &Service) -> io::Result<Vec<Load>> {
    let quarter = args.rate / 4;
    let lines = [
        ("resp", quarter * 2, "--command", "TG.CHECK resp {key}".to_owned(), "zipf"),
        ("http", quarter, "--body", r#"{"policy":"http","key":"{key}"}"#.to_owned(), "zipf"),
        ("grpc", quarter, "--descriptor", "grpc={key}".to_owned(), "uniform"),
    ];
    let start = |(policy, rate, flag, asks, dist): (&'static str, u64, &str, String, &str)| {
        let mut words: Vec<String> = ["load", policy, service.address(policy)]
            .into_iter()
            .chain(["--warmup", "0ms", "--connections", "4", "--dist", dist, flag, &asks])
            .map(str::to_owned)
            .collect();
        let (millis, keys) = (duration.as_millis(), args.keys);
        words.extend([format!("--duration={millis}ms"), format!("--keys={keys}")]);
        words.push(format!("--rate={rate}"));
        if policy == "grpc" {
            words.extend(["--domain".into(), service::DOMAIN.into()]);
        }
        let thread = thread::Builder::new().name(format!("soak {policy}"));
        let thread = thread.spawn(move || load::run_line(&words))?;
        Ok(Load { policy, thread })
    };
    lines.into_iter().map(start).collect()
}

/// The observations while the loads ran.
struct Watched {
    samples: Vec<Sample>,
    reservations: Reservations,
    http: Http,
    seconds: f64,
    reloads: u64,
}

/// Samples, reserves and reloads until the loads are over.
async fn watch(duration: Duration, service: &Service, loads: &[Load]) -> io::Result<Watched> {
    let every = (duration / SAMPLES).max(Duration::from_secs(1));
    let clock = Clock::monotonic();
    let start = clock.now();
    let since = |then: Tick| clock.now().since(then);
    let mut http = Http::connect(service.address("http")).await?;
    let (mut samples, mut reservations, mut reloads) = (Vec::new(), Reservations::default(), 0);
    let mut reserve = tokio::time::interval(RESERVE_EVERY);
    let mut sample = tokio::time::interval(every);
    let mut reload = tokio::time::interval(RELOAD_EVERY);
    reload.tick().await;
    for ticks in [&mut reserve, &mut sample, &mut reload] {
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    while loads.iter().any(|load| !load.thread.is_finished()) {
        tokio::select! {
            _ = reserve.tick() => reservations.act(&mut http).await?,
            _ = sample.tick() => {
                let metrics = service.metrics().await?;
                samples.push(sample_of(&metrics, since(start)));
            }
            _ = reload.tick() => {
                reloads += 1;
                service.reload(reloads)?;
            }
        }
    }
    Ok(Watched { samples, reservations, http, seconds: since(start).as_secs_f64(), reloads })
}

fn sample_of(metrics: &Metrics, at: Duration) -> Sample {
    let resident = metrics.sum("process_resident_memory_bytes", &[]);
    Sample { at, resident, keys: metrics.sum("tollgate_keys", &[]) }
}

/// Returns what the keys of [`Reservations`] have used, as the store knows it.
async fn used_of_keys(http: &mut Http) -> io::Result<u64> {
    let held = (0..HELD_KEYS).map(|number| format!("held-{number}"));
    let refunded = (0..REFUNDED_KEYS).map(|number| format!("refunded-{number}"));
    let mut used = 0;
    for key in held.chain(refunded) {
        let body = serde_json::json!({"policy": "held", "key": key, "cost": 0});
        let told = http.post("/v1/peek", &body).await?;
        let figure = |name: &str| told.body[name].as_u64().unwrap_or_default();
        used += figure("limit").saturating_sub(figure("remaining"));
    }
    Ok(used)
}
