//! The service beside its peers, over the network of one machine.
//!
//! The client of every row is `tollgate load` with one thread. All servers run all the time and are
//! loaded one after the other, round by round, so that a slow moment of the machine affects all of
//! them. Ratios are taken inside a round; the printed figure is the median over rounds.

mod client;
pub(crate) mod echo;
mod peer;
mod process;
mod tollgate;

use crate::{
    Options,
    harness::progress,
    stats::{median, median_ratio},
    table::{Table, figure},
};
use client::{Client, Found};
use peer::Peer;
use process::Server;
use std::path::PathBuf;

const ROUNDS: usize = 3;
const MILLION: f64 = 1e6;

const FOOTNOTE: &str = "\
Not here: limitador-server, which builds from its own repository only, and throttlecrab over gRPC, \
which speaks a protocol of its own.";

/// One server in one table: its name, its address, and the requests to it.
struct Row {
    name: &'static str,
    address: String,
    ask: Vec<String>,
}

impl Row {
    fn new(name: &'static str, address: &str, ask: &[&str]) -> Self {
        Self {
            name,
            address: address.to_owned(),
            ask: ask.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    fn words(&self, protocol: &str, column: &[&str]) -> Vec<String> {
        let mut words = vec![protocol.to_owned(), self.address.clone()];
        words.extend(self.ask.iter().cloned());
        words.extend(column.iter().map(|word| (*word).to_owned()));
        words
    }
}

/// A column: its heading and the arguments of the client.
type Column = (&'static str, &'static [&'static str]);

const RESP: [Column; 4] = [
    ("P1, 1 key", &["--pipeline", "1", "--dist", "one"]),
    ("P1, 100k keys", &["--pipeline", "1"]),
    ("P16, 1 key", &["--pipeline", "16", "--dist", "one"]),
    ("P16, 100k keys", &["--pipeline", "16"]),
];

const HTTP: [Column; 2] =
    [("P1, 1 key", &["--pipeline", "1", "--dist", "one"]), ("P1, 100k keys", &["--pipeline", "1"])];

const GRPC: [Column; 3] = [
    ("c50 s1", &["--streams", "1"]),
    ("c50 s16", &["--streams", "16"]),
    ("c2 s64", &["--connections", "2", "--streams", "64"]),
];

/// A table that was measured: its protocol, its rows, and the rate of each.
type Closed<'a> = (&'static str, &'a [Row], Vec<Option<f64>>);

/// The running servers.
struct Bench {
    client: Client,
    redis: Option<Peer>,
    lua: Option<String>,
    throttlecrab: Option<(PathBuf, Peer)>,
    echo: Option<Peer>,
    tollgate: Option<tollgate::Tollgate>,
}

/// Prints the tables of the service.
pub(crate) fn run(options: &Options) {
    println!("\n## service: RESP, HTTP and gRPC over loopback\n");
    let program = match tollgate::build() {
        Ok(program) => program,
        Err(error) => return println!("Not measured: {error}.\n"),
    };
    let (duration, warmup) = if options.quick { ("1s", "300ms") } else { ("3s", "500ms") };
    let client = Client { program, duration, warmup };
    println!(
        "Client: `tollgate load`, 1 thread, 50 connections unless the column says otherwise, \
         {duration} each after {warmup}, median of {ROUNDS} rounds. Servers: tollgate with \
         {} worker; redis-server with one thread and no persistence; throttlecrab-server 0.4.40 as \
         it comes (one thread per processor), periodic store; the echo has one thread. Each cell: \
         ratio to the first row in the same round (answers each second, p50 / p99 in ms). The limit \
         is 100 each minute: one key is denied nearly always, 100000 keys nearly never.\n",
        tollgate::WORKERS
    );
    let bench = Bench::start(client);
    let resp = bench.resp();
    let resp_rates = bench.table("RESP", "resp", &resp, &RESP);
    let http_rates = bench.http();
    let grpc = bench.grpc();
    let grpc_rates = bench.table("gRPC, Envoy's ShouldRateLimit", "grpc", &grpc, &GRPC);
    let http = bench.http_rows();
    bench.open_loop(&[
        ("resp", &resp, resp_rates),
        ("http", &http, http_rates),
        ("grpc", &grpc, grpc_rates),
    ]);
    bench.memory();
    println!("{FOOTNOTE}\n");
}

/// Prints which part is missing on standard output, and continues without it.
fn available<T>(name: &str, started: Result<T, String>) -> Option<T> {
    started.map_err(|error| println!("Missing: {name}: {error}.\n")).ok()
}

impl Bench {
    fn start(client: Client) -> Self {
        let redis = available("redis-server", peer::redis());
        let lua = redis.as_ref().and_then(|redis| available("Lua", peer::lua_gcra(redis)));
        let throttlecrab = peer::build_throttlecrab()
            .and_then(|program| peer::throttlecrab(&program).map(|peer| (program, peer)));
        Self {
            redis,
            lua,
            throttlecrab: available("throttlecrab-server", throttlecrab),
            echo: available("the HTTP/2 echo", peer::echo()),
            tollgate: available("tollgate serve", tollgate::start(&client.program)),
            client,
        }
    }

    fn resp(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some(redis) = &self.redis {
            rows.push(Row::new("redis INCR", &redis.resp, &["--command", "INCR {key}"]));
            rows.push(Row::new("redis PING", &redis.resp, &["--command", "PING"]));
            if let Some(lua) = &self.lua {
                let ask = ["--command", lua, "--reply", "zero-passes", "--key-prefix", "lua:"];
                rows.push(Row::new("redis, GCRA in Lua", &redis.resp, &ask));
            }
        }
        if let Some((_, peer)) = &self.throttlecrab {
            let ask = ["--command", "THROTTLE {key} 100 100 60"];
            rows.push(Row::new("throttlecrab THROTTLE", &peer.resp, &ask));
        }
        if let Some(tollgate) = &self.tollgate {
            let ask = ["--command", tollgate::THROTTLE];
            rows.push(Row::new("tollgate CL.THROTTLE", &tollgate.resp, &ask));
        }
        rows
    }

    fn http_rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some((_, peer)) = &self.throttlecrab {
            let body = r#"{"key":"{key}","max_burst":100,"count_per_period":100,"period":60}"#;
            let ask = ["--path", "/throttle", "--body", body];
            rows.push(Row::new("throttlecrab /throttle", &peer.http, &ask));
        }
        if let Some(tollgate) = &self.tollgate {
            rows.push(Row::new("tollgate /v1/check", &tollgate.http, &tollgate::HTTP));
        }
        rows
    }

    fn grpc(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some(echo) = &self.echo {
            rows.push(Row::new("bare HTTP/2 echo", &echo.grpc, &[]));
        }
        if let Some(tollgate) = &self.tollgate {
            rows.push(Row::new("tollgate", &tollgate.grpc, &tollgate::GRPC));
        }
        rows
    }

    /// HTTP compared with INCR, which uses another protocol; returns the rates of the HTTP rows.
    fn http(&self) -> Vec<Option<f64>> {
        let rows = self.http_rows();
        let base = self
            .redis
            .as_ref()
            .map(|redis| Row::new("redis INCR (RESP)", &redis.resp, &["--command", "INCR {key}"]));
        let all: Vec<(&str, &Row)> = base
            .iter()
            .map(|row| ("resp", row))
            .chain(rows.iter().map(|row| ("http", row)))
            .collect();
        let rates = self.measure("HTTP/1.1", &all, &HTTP);
        rates.into_iter().skip(usize::from(base.is_some())).collect()
    }

    fn table(
        &self,
        title: &str,
        protocol: &str,
        rows: &[Row],
        columns: &[Column],
    ) -> Vec<Option<f64>> {
        let rows: Vec<(&str, &Row)> = rows.iter().map(|row| (protocol, row)).collect();
        self.measure(title, &rows, columns)
    }

    /// Measures and prints a table; returns the rate of each row in the first column with many keys.
    fn measure(&self, title: &str, rows: &[(&str, &Row)], columns: &[Column]) -> Vec<Option<f64>> {
        let mut cells: Vec<Vec<Vec<Option<Found>>>> =
            vec![vec![Vec::new(); columns.len()]; rows.len()];
        for round in 1..=ROUNDS {
            for (column, (heading, words)) in columns.iter().enumerate() {
                for ((protocol, row), cells) in rows.iter().zip(&mut cells) {
                    progress(&format!("{title}, {heading}, round {round}: {}", row.name));
                    cells[column].push(self.client.timed(&row.words(protocol, words)));
                }
            }
        }
        progress("");
        println!("### {title}\n");
        let mut table =
            Table::new([""].into_iter().chain(columns.iter().map(|(heading, _)| *heading)));
        for ((_, row), line) in rows.iter().zip(&cells) {
            let mut texts = vec![row.name.to_owned()];
            texts.extend(line.iter().zip(&cells[0]).map(|(ours, base)| cell(ours, base)));
            table.line(texts);
        }
        println!("{table}");
        let many = columns.iter().position(|(_, words)| !words.contains(&"one")).unwrap_or(0);
        cells.iter().map(|line| rate(&line[many])).collect()
    }

    /// Each row again at half its rate, with latency from when a request was due.
    fn open_loop(&self, tables: &[Closed<'_>]) {
        println!("### Open loop at half the rate of P1 or s1 with 100k keys\n");
        let mut table =
            Table::new(["", "requests due each second", "p50 ms", "p99 ms", "p99.9 ms"]);
        for (protocol, rows, rates) in tables {
            for (row, rate) in rows.iter().zip(rates) {
                let Some(rate) = rate else { continue };
                let half = ((rate / 2.0) as u64).max(1).to_string();
                let mut found = Vec::new();
                for round in 1..=ROUNDS {
                    progress(&format!("open loop, round {round}: {}", row.name));
                    let words = row.words(protocol, &["--rate", &half]);
                    found.push(self.client.timed(&words));
                }
                let of = |pick: fn(&Found) -> f64| figure(middle(&found, pick));
                table.line([
                    format!("{protocol}: {}", row.name),
                    half,
                    of(|it| it.p50_ms),
                    of(|it| it.p99_ms),
                    of(|it| it.p999_ms),
                ]);
            }
        }
        progress("");
        println!("{table}");
    }

    /// Fills fresh servers with a million keys of 16 bytes.
    fn memory(&self) {
        println!("### Memory: growth of the resident set for a million new keys of 16 bytes\n");
        let mut table = Table::new(["", "bytes for each key", "MiB in all"]);
        let mut line = |name: &str, fresh: Option<(Server, String)>, command: &str| {
            let Some((server, address)) = fresh else { return };
            progress(&format!("memory: {name}"));
            let (each, all) = self.fill(&server, &address, command).unzip();
            table.line([name.to_owned(), figure(each), figure(all)]);
        };
        let redis = peer::redis().ok().map(|peer| (peer.server, peer.resp));
        line("redis INCR", redis, "INCR {key}");
        let throttlecrab = self.throttlecrab.as_ref().and_then(|(program, _)| {
            peer::throttlecrab(program).ok().map(|peer| (peer.server, peer.resp))
        });
        line("throttlecrab THROTTLE", throttlecrab, "THROTTLE {key} 100 100 3600");
        let tollgate = self.tollgate.as_ref().and_then(|_| {
            tollgate::start(&self.client.program).ok().map(|it| (it.server, it.resp))
        });
        // An hour, so that no key expires while the others are written.
        line("tollgate CL.THROTTLE", tollgate, "CL.THROTTLE {key} 99 100 3600");
        progress("");
        println!("{table}");
    }

    fn fill(&self, server: &Server, address: &str, command: &str) -> Option<(f64, f64)> {
        let send = |requests: &str, dist: &str| {
            let words = ["resp", address, "--command", command, "--dist", dist];
            let more = ["--keys", "1000000", "--requests", requests];
            let words: Vec<String> = words.iter().chain(&more).map(|it| (*it).to_owned()).collect();
            self.client.run(&words)
        };
        // The buffers of the connections are allocated before the first reading. Only one key:
        // several would touch pages of a table that was reserved but is not resident yet.
        send("10000", "one")?;
        let before = server.resident_bytes()?;
        send("1000000", "sequence")?;
        let grown = server.resident_bytes()? - before;
        Some((grown / MILLION, grown / f64::from(1 << 20)))
    }
}

fn rate(rounds: &[Option<Found>]) -> Option<f64> {
    middle(rounds, |found| found.rate)
}

fn middle(rounds: &[Option<Found>], pick: fn(&Found) -> f64) -> Option<f64> {
    median(rounds.iter().map(|found| found.as_ref().map(pick)))
}

/// Writes a cell: ratio (rate, p50 / p99).
fn cell(ours: &[Option<Found>], base: &[Option<Found>]) -> String {
    let Some(rate) = rate(ours) else { return "-".into() };
    let rates = |rounds: &[Option<Found>]| -> Vec<Option<f64>> {
        rounds.iter().map(|found| found.map(|found| found.rate)).collect()
    };
    format!(
        "{} ({:.1}k, {} / {})",
        figure(median_ratio(&rates(ours), &rates(base))),
        rate / 1000.0,
        figure(middle(ours, |found| found.p50_ms)),
        figure(middle(ours, |found| found.p99_ms)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rate: f64) -> Option<Found> {
        Some(Found { rate, p50_ms: 0.5, p99_ms: 2.0, p999_ms: 3.0 })
    }

    #[test]
    fn a_cell_has_the_ratio_of_its_round_and_the_median_of_the_rest() {
        let (ours, base) = ([found(2000.0), found(900.0)], [found(1000.0), found(450.0)]);
        assert_eq!(cell(&ours, &base), "2.00 (2.0k, 0.50 / 2.00)");
        assert_eq!(cell(&[None], &base), "-");
    }

    #[test]
    fn a_row_asks_what_its_column_adds() {
        let words = Row::new("x", "a:1", &["--command", "PING"]).words("resp", &["-P", "1"]);
        assert_eq!(words, ["resp", "a:1", "--command", "PING", "-P", "1"]);
    }
}
