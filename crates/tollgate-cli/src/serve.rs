//! `tollgate serve`: the service.

mod banner;

use crate::{
    complain,
    log::{Log, LogArgs, LogFormat},
    plan::InputError,
};
use clap::{builder::TypedValueParser, parser::ValueSource};
use std::{ffi::OsStr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tollgate::Clock;
use tollgate_server::{
    config::{
        Endpoint, Fleet, MemorySettings, RedisOptions, ServerSettings, SnapshotSettings, StoreKind,
        TlsSettings, parse_duration,
    },
    net::raise_descriptor_limit,
    server::{Manager, Server, Source, notify},
    trace::TraceSettings,
};

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                     the built-in example policy, in memory
  tollgate serve limits.yaml                         your own limits; changed files are reloaded
  tollgate serve /etc/tollgate --snapshot /var/lib/tollgate/state
  tollgate serve --resp unix:/run/tollgate.sock --http off --grpc off
  tollgate serve limits.yaml --store redis://10.0.0.5:6379   share limits between processes
  TOLLGATE_HTTP=0.0.0.0:8080 tollgate serve limits.yaml      flags are also variables; flags win

Signals: SIGTERM and SIGINT finish open requests and stop; a second one stops without waiting. \
SIGHUP reloads the configuration.";

#[derive(Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Configuration files or directories; by default a built-in example
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Same as PATH; if both are given, all paths are read
    #[arg(long, value_name = "PATH", num_args = 1.., value_delimiter = ',')]
    config: Vec<PathBuf>,

    /// HTTP: /v1, /json and forward-auth [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", help_heading = 
        "Listeners (HOST:PORT, unix:PATH or off)", value_parser = endpoint)]
    http: Option<Endpoint>,

    /// gRPC: Envoy's rate limit protocol [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS", help_heading = 
        "Listeners (HOST:PORT, unix:PATH or off)", value_parser = endpoint)]
    grpc: Option<Endpoint>,

    /// Redis protocol [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS", help_heading = 
        "Listeners (HOST:PORT, unix:PATH or off)", value_parser = endpoint)]
    resp: Option<Endpoint>,

    /// Admin API, dashboard (in a browser) and Prometheus metrics [default: 127.0.0.1:6070]
    #[arg(long, value_name = "ADDRESS", help_heading = 
        "Listeners (HOST:PORT, unix:PATH or off)", value_parser = endpoint)]
    admin: Option<Endpoint>,

    /// Save the state to this file, and restore it at the next start
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,

    /// How often to write the snapshot
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    snapshot_every: Duration,

    /// Reserve fixed memory for this many live keys; by default the table grows up to --max-keys
    #[arg(long, value_name = "KEYS")]
    bounded: Option<u64>,

    /// Maximum number of keys in a growing table [default: 10 million]
    #[arg(long, value_name = "KEYS", conflicts_with = "bounded")]
    max_keys: Option<u64>,

    /// Worker threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: Option<usize>,

    /// Maximum connections per listener [default: what the file descriptor limit allows]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_connections: Option<usize>,

    /// How long to keep serving after SIGTERM while /ready responds 503 [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain_delay: Option<Duration>,

    /// How long to wait for open connections at shutdown [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain_timeout: Option<Duration>,

    /// How often to check the files for changes; 0s for never
    #[arg(long, value_name = "TIME", value_parser = duration)]
    watch_interval: Option<Duration>,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    security: Security,

    #[command(flatten)]
    log: LogArgs,

    #[command(flatten)]
    trace: TraceArgs,
}

const STORE_HELP: &str = "\
Where state lives [default: memory]

  memory                                       this process
  redis://[user:password@]host[:port][/db]     one server
  rediss://...                                 the same, with TLS
  redis+sentinel://host,host/name              the primary that the Sentinels report
  redis+cluster://host,host                    a Cluster
  redis+unix:///path                           a Unix socket

Valkey uses the same addresses. At start, the service waits for the servers (--store-startup-wait). If \
they do not respond in that time, it serves without them: each policy's `failure` setting (open, closed \
or local) decides until they respond. Changing the store requires a restart.";

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Store")]
struct StoreArgs {
    /// Where state lives: memory, redis://, rediss://, redis+sentinel://, redis+cluster://
    #[arg(
        long,
        value_name = "URL",
        hide_env_values = true,
        value_parser = StoreParser,
        long_help = STORE_HELP
    )]
    store: Option<StoreKind>,

    /// File with the password of the Redis servers; keeps it out of process listings
    #[arg(long, value_name = "FILE")]
    store_password_file: Option<PathBuf>,

    /// Number of processes that share the limits; auto counts them
    #[arg(long, value_name = "N|auto", value_parser = fleet)]
    fleet_size: Option<Fleet>,

    /// Timeout of a call to a Redis server [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    store_deadline: Option<Duration>,

    /// How long to wait for the Redis servers at start [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    store_startup_wait: Option<Duration>,

    /// Prefix of all key names in Redis [default: tollgate]
    #[arg(long, value_name = "TEXT")]
    store_prefix: Option<String>,

    /// File with a secret of 32 hexadecimal digits; Redis then stores fingerprints of the keys
    #[arg(long, value_name = "FILE")]
    store_key_secret_file: Option<PathBuf>,
}

impl StoreArgs {
    fn options(&self) -> RedisOptions {
        RedisOptions {
            password_file: self.store_password_file.clone(),
            fleet_size: self.fleet_size,
            deadline: self.store_deadline,
            startup_wait: self.store_startup_wait,
            prefix: self.store_prefix.clone(),
            key_secret_file: self.store_key_secret_file.clone(),
            failure: None,
        }
    }
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Security")]
struct Security {
    /// File with the token that clients of the admin API must send
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// File with the password for the Redis protocol
    #[arg(long, value_name = "FILE")]
    resp_password_file: Option<PathBuf>,

    /// File with the token that clients of /v1 must send
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,

    /// Certificate chain for all listeners (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// CA certificates that client certificates must be signed by (PEM); turns on mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

/// Without the feature they are not shown, and say so.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Traces")]
struct TraceArgs {
    /// Send traces to this OpenTelemetry collector, for example http://127.0.0.1:4317
    #[arg(long, value_name = "URL", hide = cfg!(not(feature = "otel")))]
    otlp: Option<String>,

    /// Fraction of requests to trace, from 0 to 1
    #[arg(
        long,
        value_name = "PART",
        default_value_t = 0.01,
        requires = "otlp",
        hide = cfg!(not(feature = "otel"))
    )]
    trace_sample: f64,
}

impl TraceArgs {
    /// Starts to send traces, if a collector is set.
    fn start(&self, server: &Server) -> Result<(), String> {
        let Some(endpoint) = self.otlp.clone() else { return Ok(()) };
        let settings = TraceSettings { endpoint, sample: self.trace_sample };
        server.shared().trace.start(&settings).map_err(|error| format!("--otlp: {error}"))
    }
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Reads an address of a store. Unlike clap, its error does not repeat the address, which may hold a
/// password.
#[derive(Clone, Copy, Debug)]
struct StoreParser;

impl TypedValueParser for StoreParser {
    type Value = StoreKind;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<StoreKind, clap::Error> {
        self.parse_ref_(command, arg, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<StoreKind, clap::Error> {
        value.to_string_lossy().parse().map_err(|error| {
            let is_variable = source == ValueSource::EnvVariable;
            let name = if is_variable { "TOLLGATE_STORE" } else { "--store" };
            let text = format!("{name}: {error}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

fn fleet(text: &str) -> Result<Fleet, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1; leave it out for the default".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}; write a whole number")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

impl ServeArgs {
    /// Drops `--config` if a PATH is given.
    pub(crate) fn prefer_paths(&mut self) {
        if !self.paths.is_empty() {
            self.config.clear();
        }
    }

    fn source(&self) -> Source {
        let security = &self.security;
        let tls = security.tls_cert.clone().zip(security.tls_key.clone());
        let flags = ServerSettings {
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            resp: self.resp.clone(),
            admin: self.admin.clone(),
            tls: tls.map(|(certificate, key)| TlsSettings {
                certificate,
                key,
                client_ca: security.tls_client_ca.clone(),
            }),
            admin_token_file: security.admin_token_file.clone(),
            resp_password_file: security.resp_password_file.clone(),
            http_token_file: security.http_token_file.clone(),
            workers: self.workers,
            max_connections: self.max_connections,
            drain_delay: self.drain_delay,
            drain_timeout: self.drain_timeout,
            watch_interval: self.watch_interval,
            store: self.store.store.clone(),
            redis: self.store.options(),
            snapshot: self
                .snapshot
                .clone()
                .map(|path| SnapshotSettings { path, every: self.snapshot_every }),
            memory: MemorySettings {
                bounded: self.bounded,
                max_keys: self.max_keys,
                ..MemorySettings::default()
            },
            denial_log: self.log.denial_log,
            log_keys: self.log.log_keys.then_some(true),
            ..ServerSettings::default()
        };
        Source { paths: [&self.paths[..], &self.config].concat(), flags }
    }
}

/// Serves until a signal stops the service.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, InputError> {
    let log = args.log.start()?;
    // The server logs the limit together with the bounds that follow from it.
    let _ = raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| InputError(format!("cannot start the async runtime: {error}")))?;
    let done = runtime.block_on(serve(args, &log));
    // A thread that is stuck in a file or a name lookup does not keep the process alive.
    runtime.shutdown_background();
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            match args.log.log_format {
                LogFormat::Text => {
                    log.flush();
                    complain(format_args!("{error}"));
                }
                LogFormat::Json => tracing::error!("{error}"),
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// How long an interrupted start may take to release the addresses that it has bound.
const BIND_REST: Duration = Duration::from_millis(500);

async fn serve(args: &ServeArgs, log: &Log) -> Result<(), String> {
    // A program that sees a listener may send a signal, so signal handlers come first.
    let mut signals = Signals::listen()?;
    let source = args.source();
    // A separate thread reads the files: an unresponsive file system must not block signals.
    let mut bound = tokio::task::spawn_blocking(move || Server::bind(source, &Clock::monotonic()));
    let server = tokio::select! {
        bound = &mut bound => bound.map_err(|error| error.to_string())?,
        () = Signals::stop(&mut signals.terminate, &mut signals.interrupt) => {
            // Listeners that are already bound remove their Unix sockets.
            let _ = tokio::time::timeout(BIND_REST, bound).await;
            return Ok(());
        }
    };
    let server = server.map_err(|error| error.to_string())?;
    args.trace.start(&server)?;
    server.shared().admin.set_lost_log_lines(log.lost_lines());
    // The banner does not go through the log.
    log.flush();
    banner::print(&server, args.log.log_format);
    let (stop, stopped) = mpsc::channel(1);
    tokio::spawn(signals.forward(Arc::clone(server.manager()), stop));
    server.run(stopped).await.map_err(|error| error.to_string())
}

/// The signals that the process handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, String> {
        let listen = |kind: SignalKind| -> Result<Signal, String> {
            signal(kind).map_err(|error| format!("cannot listen for signals: {error}"))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that stops the process.
    async fn stop(terminate: &mut Signal, interrupt: &mut Signal) {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        notify("STOPPING=1");
    }

    /// Forwards each stop signal to the server. SIGHUP reloads the configuration.
    async fn forward(mut self, manager: Arc<Manager>, stop: mpsc::Sender<()>) {
        loop {
            tokio::select! {
                () = Self::stop(&mut self.terminate, &mut self.interrupt) => {
                    // If the server has not received the last message yet, it needs no other.
                    let _ = stop.try_send(());
                }
                _ = self.hang_up.recv() => {
                    let manager = Arc::clone(&manager);
                    tokio::spawn(async move {
                        notify("RELOADING=1");
                        manager.reload().await;
                        notify("READY=1");
                    });
                }
            }
        }
    }
}
