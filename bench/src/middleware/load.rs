//! The same over loopback: real servers, and wrk as the client.

use super::app::{Case, Guard, router};
use crate::{
    Options,
    harness::progress,
    machine,
    stats::{median, median_ratio},
    table::{Table, figure},
};
use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

/// The rows that need only an address.
const GUARDS: [Guard; 4] = [Guard::Bare, Guard::Governor, Guard::Default, Guard::Legacy];

/// The arguments of a round of wrk: one thread, 50 connections, a second.
const WRK: [&str; 3] = ["-t1", "-c50", "-d1s"];

/// Prints the tables, or the reason why they cannot be measured.
pub(super) fn run(options: &Options) {
    println!("\n### middleware, over loopback\n");
    if let Err(error) = Command::new("wrk").arg("-v").stdout(Stdio::null()).status() {
        return println!("Not measured: wrk cannot be run ({error}); apt-get install wrk.\n");
    }
    let rounds = options.rounds();
    println!(
        "Client: `wrk {}` on one machine with the servers, median of {rounds} rounds. Each server has \
         one thread, and all its requests come from one address. Thousands of requests each second, \
         their ratio to the first row in the same round, and microseconds of the server's processor \
         time for each.\n",
        WRK.join(" ")
    );
    let tables = [Case::Allowed, Case::Refused].map(|case| measure(case, rounds));
    let headings = ["", "passed k/s", "ratio", "us", "refused k/s", "ratio", "us"];
    let mut table = Table::new(headings);
    for (row, guard) in GUARDS.into_iter().enumerate() {
        let mut line = vec![match guard {
            Guard::Bare => "no limit (refused: a layer that says 429)".to_owned(),
            other => other.name(Case::Allowed).to_owned(),
        }];
        for rounds in &tables {
            let column = |of: fn(&Round) -> f64, row: usize| -> Vec<Option<f64>> {
                rounds[row].iter().map(|round| round.as_ref().map(of)).collect()
            };
            let rates = column(|round| round.per_second / 1e3, row);
            let ratio = median_ratio(&rates, &column(|round| round.per_second / 1e3, 0));
            line.push(figure(median(rates)));
            line.push(ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")));
            line.push(figure(median(column(|round| round.cpu_us, row))));
        }
        table.line(line);
    }
    println!("{table}");
}

/// One run of the client.
struct Round {
    per_second: f64,
    /// Processor time of the server for each request.
    cpu_us: f64,
}

/// Loads each server in turn; by row, one for each round.
fn measure(case: Case, rounds: usize) -> Vec<Vec<Option<Round>>> {
    let servers = GUARDS.map(|guard| {
        Server::start(guard, case).map_err(|error| eprintln!("\n{guard:?}: {error}")).ok()
    });
    let mut measured: Vec<Vec<_>> = GUARDS.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..servers.len() {
            let row = (turn + round) % servers.len();
            progress(&format!("wrk, round {}/{rounds}: {:?}", round + 1, GUARDS[row]));
            let server = servers[row].as_ref();
            let load = server.map(|server| load(server.address, case));
            let load = load.and_then(|load| {
                load.map_err(|error| eprintln!("\n{:?}, {case:?}: {error}", GUARDS[row])).ok()
            });
            measured[row].push(load);
        }
    }
    progress("");
    measured
}

/// A server that ends when this is dropped.
struct Server {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Server {
    fn start(guard: Guard, case: Case) -> Result<Self, String> {
        let app = router(guard, case)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async move { axum::serve(listener, service).await });
        Ok(Self { address, _runtime: runtime })
    }
}

/// Runs wrk once, and checks that the answers were correct.
fn load(address: SocketAddr, case: Case) -> Result<Round, String> {
    let cpu_ns = machine::process_cpu_ns();
    let output = Command::new("wrk").args(WRK).arg(format!("http://{address}/")).output();
    let cpu_ns = machine::process_cpu_ns() - cpu_ns;
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |mark: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.contains(mark))?;
        let digits = |word: &str| word.parse().ok();
        line.split_whitespace().find_map(digits)
    };
    let (requests, per_second) = (number("requests in"), number("Requests/sec:"));
    let (Some(requests), Some(per_second)) = (requests, per_second) else {
        return Err(format!("wrk said: {text}"));
    };
    let refused = number("Non-2xx").unwrap_or(0.0);
    // The very first request passes, although all others are refused.
    let is_right = match case {
        Case::Allowed => refused == 0.0,
        Case::Refused => requests - refused <= 1.0,
    };
    if !is_right || requests == 0.0 || text.contains("Socket errors") {
        return Err(format!("{refused} of {requests} requests were refused: {text}"));
    }
    Ok(Round { per_second, cpu_us: cpu_ns as f64 / requests / 1e3 })
}
