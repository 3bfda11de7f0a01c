//! The checked command line. Every invalid argument is rejected here.

use super::{
    HttpArgs, LoadArgs, Protocol, RespReply, Shared, Spreads,
    clock::ns,
    grpc,
    http::{HttpRequest, HttpScan},
    keys::{KeySpace, Spread},
    resp::{self, Meaning, RespScan},
    schedule::{Pace, Schedule},
    template::{MAX_KEYS, Template},
};
use crate::{counted, plan::InputError, target::Target};
use std::{sync::Arc, time::Duration};
use tollgate_server::server::Settings;

const MAX_CONNECTIONS: u64 = 10_000;
const MAX_THREADS: u64 = 256;
const MAX_STREAMS: u64 = 10_000;
const MAX_RATE: u64 = 1_000_000_000;
const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);

/// The most bytes that one connection writes at once, and all streams of a run.
const MAX_BATCH_BYTES: u64 = 64 << 20;

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_WARMUP: Duration = Duration::from_secs(1);

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Arc<Target>,
    pub(crate) template: Arc<Template>,
    pub(crate) wire: Wire,
    /// The flags that choose the limit to test.
    pub(crate) asked: String,
    pub(crate) keys: KeySpace,
    pub(crate) schedule: Schedule,
    pub(crate) threads: u64,
    pub(crate) timeout: Duration,
    pub(crate) max_errors: u64,
    pub(crate) admit_exactly: Option<u64>,
}

/// How to talk to the server.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    Resp(RespScan),
    Http(HttpScan),
    Grpc { uri: http::Uri, streams: u64 },
}

impl Wire {
    /// Returns the name that is also the subcommand.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Resp(_) => "resp",
            Self::Http(_) => "http",
            Self::Grpc { .. } => "grpc",
        }
    }
}

impl Plan {
    pub(crate) fn new(args: &LoadArgs) -> Result<Self, InputError> {
        let (shared, defaults) = (args.shared(), Settings::default());
        let (default, protocol) = match &args.protocol {
            Protocol::Resp(_) => (defaults.resp, &b""[..]),
            Protocol::Http(_) => (defaults.http, &b"http/1.1"[..]),
            Protocol::Grpc(_) => (defaults.grpc, &b"h2"[..]),
        };
        let address = shared.address.clone().unwrap_or_else(|| default.to_string());
        let target = Target::new(&address, &shared.tls, protocol).map_err(InputError)?;
        let ((wire, template, depth), asked) = match &args.protocol {
            Protocol::Resp(args) => (resp(args)?, format!("--command '{}'", args.command)),
            Protocol::Http(args) => {
                let HttpArgs { path, body, .. } = args;
                (http(args, &target)?, format!("--path '{path}' --body '{body}'"))
            }
            Protocol::Grpc(args) => {
                let (domain, descriptors) = (&args.domain, args.descriptors.join(" --descriptor "));
                let asked = format!("--domain {domain} --descriptor {descriptors}");
                (grpc(args, &target)?, asked)
            }
        };
        bound("--connections", shared.connections, MAX_CONNECTIONS)?;
        bound("--threads", shared.threads, MAX_THREADS.min(shared.connections))?;
        if let Wire::Grpc { streams, .. } = wire {
            bound("--streams", streams, MAX_STREAMS)?;
        }
        bound("--keys", shared.keys, MAX_KEYS)?;
        let batch = depth.saturating_mul(template.len() as u64);
        if batch > MAX_BATCH_BYTES {
            return Err(InputError(format!(
                "{} of {} bytes in flight per connection make {batch} bytes, above \
                 {MAX_BATCH_BYTES}; lower --pipeline or --streams",
                counted(depth, "request"),
                template.len()
            )));
        }
        Ok(Self {
            target: Arc::new(target),
            template: Arc::new(template),
            wire,
            asked,
            keys: keys(shared)?,
            schedule: schedule(shared, depth)?,
            threads: shared.threads,
            timeout: duration("--timeout", &shared.timeout)?,
            max_errors: shared.max_errors,
            admit_exactly: shared.admit_exactly,
        })
    }
}

fn bound(name: &str, value: u64, largest: u64) -> Result<(), InputError> {
    if value == 0 || value > largest {
        let text = format!("{name} {value} is out of range; use 1 to {largest}");
        return Err(InputError(text));
    }
    Ok(())
}

type Request = (Wire, Template, u64);

fn resp(args: &super::RespArgs) -> Result<Request, InputError> {
    bound("--pipeline", args.pipeline, MAX_BATCH_BYTES)?;
    let Some(name) = args.command.split_whitespace().next() else {
        let text = "--command is empty; write a command, as in \"INCR {key}\"";
        return Err(InputError(text.into()));
    };
    let meaning = match args.reply {
        RespReply::Auto => Meaning::of_command(name),
        RespReply::ZeroPasses => Meaning::ZeroPasses,
        RespReply::OnePasses => Meaning::OnePasses,
        RespReply::Any => Meaning::AllPass,
    };
    let template = resp::encode(&args.command, &args.shared.key_prefix);
    Ok((Wire::Resp(RespScan(meaning)), template, args.pipeline))
}

fn http(args: &HttpArgs, target: &Target) -> Result<Request, InputError> {
    bound("--pipeline", args.pipeline, MAX_BATCH_BYTES)?;
    let word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !args.path.starts_with('/') || !word(&args.path) {
        let text = format!("--path \"{}\" must start with / and have no spaces", args.path);
        return Err(InputError(text));
    }
    if !args.method.bytes().all(|byte| byte.is_ascii_uppercase()) || args.method.is_empty() {
        let text = format!("--method \"{}\" must be capital letters, as in POST", args.method);
        return Err(InputError(text));
    }
    for header in &args.headers {
        let named = header.split_once(':').is_some_and(|(name, _)| word(name));
        if !named || header.contains(['\r', '\n']) {
            let text = format!("--header \"{header}\" must be NAME: VALUE on one line");
            return Err(InputError(text));
        }
        if header.to_ascii_lowercase().starts_with("content-length") {
            let text = "--header Content-Length is set from the body; leave it out";
            return Err(InputError(text.into()));
        }
    }
    let request = HttpRequest {
        method: &args.method,
        path: &args.path,
        host: target.authority(),
        headers: &args.headers,
        body: if matches!(args.method.as_str(), "GET" | "HEAD") { "" } else { &args.body },
        key_prefix: &args.shared.key_prefix,
    };
    let scan = HttpScan { no_body: args.method == "HEAD" };
    Ok((Wire::Http(scan), request.encode(), args.pipeline))
}

fn grpc(args: &super::GrpcArgs, target: &Target) -> Result<Request, InputError> {
    let uri = grpc::uri(target, &args.path).map_err(InputError)?;
    let entry = |text: &str| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(InputError(format!(
            "--descriptor \"{text}\" must be NAME=VALUE, with commas between entries"
        ))),
    };
    let descriptor = |text: &String| text.split(',').map(entry).collect();
    let descriptors: Result<Vec<Vec<(String, String)>>, InputError> =
        args.descriptors.iter().map(descriptor).collect();
    let template = grpc::encode(&args.domain, &descriptors?, &args.shared.key_prefix);
    Ok((Wire::Grpc { uri, streams: args.streams }, template, args.streams))
}

fn keys(shared: &Shared) -> Result<KeySpace, InputError> {
    let spread = match shared.dist {
        Spreads::Uniform => Spread::Uniform,
        Spreads::One => Spread::One,
        Spreads::Sequence => Spread::Sequence,
        Spreads::Zipf => {
            if !(shared.zipf > 0.0 && shared.zipf <= 10.0) {
                let text = format!(
                    "--zipf {} is out of range; use a number above 0, up to 10",
                    shared.zipf
                );
                return Err(InputError(text));
            }
            Spread::Zipf(shared.zipf)
        }
    };
    Ok(KeySpace { count: shared.keys, spread, seed: shared.seed })
}

fn schedule(shared: &Shared, depth: u64) -> Result<Schedule, InputError> {
    let pace = match shared.rate {
        Some(rate) => {
            bound("--rate", rate, MAX_RATE)?;
            Pace::Open { rate }
        }
        None => Pace::Closed { depth },
    };
    if shared.requests == Some(0) {
        return Err(InputError("--requests 0 sends nothing; use 1 or more".into()));
    }
    // A run that is counted request by request has no part that does not count.
    let counted = shared.requests.is_some() || shared.admit_exactly.is_some();
    let warmup = match &shared.warmup {
        Some(text) => duration("--warmup", text)?,
        None if counted => Duration::ZERO,
        None => DEFAULT_WARMUP,
    };
    if counted && !warmup.is_zero() {
        return Err(InputError(
            "--warmup excludes requests that --requests and --admit-exactly count; remove one of \
             them"
                .into(),
        ));
    }
    let duration = match &shared.duration {
        Some(text) => Some(duration("--duration", text)?),
        None if shared.requests.is_some() => None,
        None => Some(DEFAULT_DURATION),
    };
    if duration.is_some_and(|duration| duration.is_zero()) {
        return Err(InputError("--duration 0 sends nothing; use 1s or more".into()));
    }
    Ok(Schedule {
        pace,
        connections: shared.connections,
        measure_from_ns: ns(warmup),
        end_ns: duration.map(|duration| ns(warmup + duration)),
        requests: shared.requests,
    })
}

/// Reads a number and a unit.
fn duration(name: &str, text: &str) -> Result<Duration, InputError> {
    let refuse = || {
        InputError(format!(
            "{name} \"{text}\" is not a duration of at most 7 days; write a whole number and ms, \
             s, min or h, as in 10s"
        ))
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "" if number == 0 => 0,
        _ => return Err(refuse()),
    };
    let duration = number.checked_mul(unit_ms).map(Duration::from_millis);
    duration.filter(|duration| *duration <= MAX_DURATION).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::{super::Line, *};
    use clap::Parser;

    fn plan(line: &str) -> Result<Plan, String> {
        let words = ["load"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Plan::new(&line.args).map_err(|InputError(text)| text)
    }

    #[test]
    fn defaults_make_a_plan_for_every_protocol() {
        for (line, name, depth) in [
            ("resp localhost:1", "resp", 16),
            ("http localhost:1", "http", 1),
            ("grpc unix:/x", "grpc", 16),
            ("resp", "resp", 16),
            ("http https://localhost:1", "http", 1),
            ("grpc --tls", "grpc", 16),
        ] {
            let plan = plan(line).unwrap();
            assert_eq!((plan.wire.name(), plan.schedule.pace), (name, Pace::Closed { depth }));
            assert_eq!(plan.schedule.end_ns, Some(11_000_000_000), "{line}");
        }
    }

    #[test]
    fn a_counted_run_has_no_warmup_and_no_end() {
        let plan = plan("resp localhost:1 --requests 5").unwrap();
        assert_eq!((plan.schedule.measure_from_ns, plan.schedule.end_ns), (0, None));
    }

    #[test]
    fn nonsense_is_refused_with_the_name_of_the_option() {
        for (line, word) in [
            ("resp localhost", "address"),
            ("http http://localhost:1 --tls", "remove one"),
            ("http ftp://localhost:1", "scheme"),
            ("http localhost:1 --cacert /nowhere.pem", "--cacert /nowhere.pem"),
            ("http localhost:1 --cert a.pem", "--key"),
            ("resp localhost:1 --connections 0", "--connections"),
            ("resp localhost:1 --connections 10001", "--connections"),
            ("resp localhost:1 --connections 2 --threads 3", "--threads"),
            ("resp localhost:1 --pipeline 0", "--pipeline"),
            ("resp localhost:1 --pipeline 9999999", "--pipeline"),
            ("resp localhost:1 --rate 10 --pipeline 2", "--rate"),
            ("resp localhost:1 --rate 0", "--rate"),
            ("resp localhost:1 --requests 0", "--requests"),
            ("resp localhost:1 --requests 5 --warmup 1s", "--warmup"),
            ("resp localhost:1 --admit-exactly 5 --warmup 1s", "--warmup"),
            ("resp localhost:1 --duration 10", "--duration"),
            ("resp localhost:1 --duration 0s", "--duration"),
            ("resp localhost:1 --duration 999h", "--duration"),
            ("resp localhost:1 --keys 0", "--keys"),
            ("resp localhost:1 --dist zipf --zipf 0", "--zipf"),
            ("resp localhost:1 --dist zipf --zipf NaN", "--zipf"),
            ("resp localhost:1 --command=", "--command"),
            ("http localhost:1 --path x", "--path"),
            ("http localhost:1 --method post", "--method"),
            ("http localhost:1 --header x", "--header"),
            ("http localhost:1 --header content-length:5", "Content-Length"),
            ("grpc localhost:1 --descriptor x", "--descriptor"),
            ("grpc localhost:1 --streams 0", "--streams"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
